//! check, fmt, opt, explain, emit.

use serde_json::json;

use super::support::{CHAIN, PRODUCT, Place, Ran};

const BROKEN: &str = "graph @f(%x: f32[4]) {
  %0 = exp %x : f32[5]
  %1 = nonsense %x : f32[4]
  return %0
}
";

#[test]
fn check_is_silent_about_good_files() {
    let p = Place::new();
    p.write("a.tlir", CHAIN);
    p.write("b.tlir", PRODUCT);
    let ran = p.run(&["check", "a.tlir", "b.tlir"]).code(0);
    assert_eq!((ran.out.as_str(), ran.err.as_str()), ("", ""));
}

#[test]
fn check_tells_every_error_of_every_file() {
    let p = Place::new();
    p.write("good.tlir", CHAIN);
    p.write("bad.tlir", BROKEN);
    p.write("worse.tlir", "graph");
    let ran = p.run(&["check", "bad.tlir", "good.tlir", "worse.tlir"]).code(1);
    assert!(ran.first_error().starts_with("error: bad.tlir:2:"), "{}", ran.err);
    assert!(
        ran.err.contains("error: bad.tlir:3:8: ") && ran.err.contains("error: worse.tlir:1:"),
        "{}",
        ran.err
    );
    assert!(!ran.err.contains("good.tlir"));
    let ran = p.run(&["check", "--format", "json", "bad.tlir", "good.tlir"]).code(1);
    let json = ran.json();
    assert_eq!(json["files"][0]["ok"], false);
    assert_eq!(json["files"][0]["errors"][0]["line"], 2);
    assert_eq!(json["files"][1]["ok"], true);
}

#[test]
fn a_text_error_shows_its_line_with_a_caret() {
    let p = Place::new();
    p.write("bad.tlir", BROKEN);
    let ran = p.run(&["check", "bad.tlir"]);
    let lines: Vec<&str> = ran.err.lines().collect();
    let at = lines
        .iter()
        .position(|l| l.starts_with("error: bad.tlir:3:8:"))
        .expect("the second error");
    assert_eq!(lines[at + 2], "3 |   %1 = nonsense %x : f32[4]");
    assert!(lines[at + 3].starts_with("  |        ^^^^^^^^"), "{}", lines[at + 3]);
}

#[test]
fn missing_and_foreign_files_have_codes_of_their_own() {
    let p = Place::new();
    p.write("m.onnx", "not really");
    let ran = p.run(&["check", "none.tlir"]).code(3);
    assert_eq!(
        ran.first_error(),
        "error: none.tlir: cannot be read: No such file or directory"
    );
    let ran = p.run(&["run", "m.onnx"]).code(3);
    assert!(
        ran.first_error().starts_with("error: m.onnx: not a valid ONNX file"),
        "{}",
        ran.err
    );
    let ran = p.run(&["fmt", "m.onnx"]).code(4);
    assert_eq!(
        ran.first_error(),
        "error: m.onnx: an ONNX model has no text; expected a .tlir file"
    );
    p.run(&["explain", "."]).code(3);
}

#[test]
fn a_model_comes_from_standard_input_too() {
    let p = Place::new();
    p.run_with(&["check", "-"], CHAIN.as_bytes()).code(0);
    let ran = p.run_with(&["check", "-"], BROKEN.as_bytes()).code(1);
    assert!(ran.first_error().starts_with("error: <stdin>:2:"), "{}", ran.err);
}

#[test]
fn fmt_rewrites_in_place_and_check_compares() {
    let p = Place::new();
    let wild = CHAIN.replace("  %0 = mul", "     %0   = mul").replace("%0", "%product");
    p.write("m.tlir", &wild);
    let ran = p.run(&["fmt", "--check", "m.tlir"]).code(1);
    assert!(
        ran.first_error()
            .starts_with("error: m.tlir:2:1: not canonical; expected `%0 = mul"),
        "{}",
        ran.err
    );
    assert_eq!(std::fs::read_to_string(p.path("m.tlir")).unwrap(), wild);
    p.run(&["fmt", "m.tlir"]).code(0);
    assert_eq!(std::fs::read_to_string(p.path("m.tlir")).unwrap(), CHAIN);
    p.run(&["fmt", "--check", "m.tlir"]).code(0);
    assert_eq!(p.list("."), ["m.tlir"]);
    assert_eq!(p.run_with(&["fmt", "-"], wild.as_bytes()).code(0).out, CHAIN);
}

#[test]
fn fmt_never_loses_a_comment_unasked() {
    let p = Place::new();
    let text = CHAIN.replace("  %0 = mul", "  // the product\n  %0 = mul");
    p.write("m.tlir", text.replace("  %0 = mul", "%0=mul"));
    p.run(&["fmt", "m.tlir"]).code(0);
    assert_eq!(std::fs::read_to_string(p.path("m.tlir")).unwrap(), text);
    p.run(&["fmt", "--drop-comments", "m.tlir"]).code(0);
    assert_eq!(std::fs::read_to_string(p.path("m.tlir")).unwrap(), CHAIN);
    // Two statements that become one.
    let text = text.replace("  %1 = expand", "  %again = mul %a, %b : f32[n, 4]\n  %1 = expand");
    p.write("m.tlir", &text);
    let ran = p.run(&["fmt", "m.tlir"]).code(1);
    assert!(
        ran.first_error()
            .starts_with("error: m.tlir:2:3: comment beside statements"),
        "{}",
        ran.err
    );
    assert_eq!(std::fs::read_to_string(p.path("m.tlir")).unwrap(), text);
    p.run(&["fmt", "--drop-comments", "m.tlir"]).code(0);
    assert_eq!(std::fs::read_to_string(p.path("m.tlir")).unwrap(), CHAIN);
}

#[test]
fn what_emit_prints_passes_check_and_is_canonical() {
    let p = Place::new();
    let weights = vec!["0.5"; 1500].join(", ");
    let constant = format!("%w = const [{weights}] : f32[1500]");
    let heavy = format!(
        "graph @heavy(%x: f32[n, 1500]) where n in 1..=8 {{\n  {constant}\n  %e = expand %w : f32[n, 1500]\n  \
         %y = mul %x, %e : f32[n, 1500]\n  return %y\n}}\n"
    );
    for (name, text) in [("chain", CHAIN), ("product", PRODUCT), ("heavy", &heavy)] {
        p.write("m.tlir", text);
        for what in ["graph", "kernel", "plan"] {
            let file = format!("{name}-{what}.tlir");
            p.write(&file, p.run(&["emit", "m.tlir", "--what", what]).code(0).out);
            p.run(&["check", &file]).code(0);
            p.run(&["fmt", "--check", &file]).code(0);
        }
        // All in one file.
        let all: Vec<String> = ["graph", "kernel", "plan"]
            .map(|what| std::fs::read_to_string(p.path(&format!("{name}-{what}.tlir"))).unwrap())
            .into();
        p.write("all.tlir", all.join("\n"));
        p.run(&["check", "all.tlir"]).code(0);
        p.run(&["fmt", "--check", "all.tlir"]).code(0);
        p.run(&["explain", "all.tlir"]).code(0);
    }
}

/// What a guard excludes is no error of the plan's kernels, and a plan for a GPU is text as any other.
#[test]
fn plans_with_guards_and_for_gpus_pass_check() {
    let p = Place::new();
    let guarded = "graph @f(%x: f32[n], %y: f32[8]) where n in 1..=64 {
  %0 = exp %x : f32[n]
  %1 = add %0, %y : f32[8]
  return %1 as z
}
";
    for (name, text) in [("chain", CHAIN), ("product", PRODUCT), ("guarded", guarded)] {
        p.write("m.tlir", text);
        for device in ["cpu", "cuda"] {
            let file = format!("{name}-{device}.tlir");
            let plan = p
                .run(&["emit", "m.tlir", "--what", "plan", "--device", device])
                .code(0)
                .out;
            p.write(&file, &plan);
            p.run(&["check", &file]).code(0);
            p.run(&["fmt", "--check", &file]).code(0);
        }
    }
    // Without the guard the kernel would read beyond the eight elements.
    let plan = std::fs::read_to_string(p.path("guarded-cpu.tlir")).unwrap();
    let guards = plan.lines().filter(|l| l.trim_start().starts_with("guard ")).count();
    assert!(guards > 0, "{plan}");
    let kept = plan.lines().filter(|l| !l.trim_start().starts_with("guard "));
    p.write("open.tlir", kept.map(|l| format!("{l}\n")).collect::<String>());
    p.run(&["check", "open.tlir"]).code(1);
}

#[test]
fn check_places_what_verifiers_find_in_kernels_and_plans() {
    let p = Place::new();
    p.write("m.tlir", CHAIN);
    let plan = p.run(&["emit", "m.tlir", "--what", "plan"]).code(0).out;
    // A slot that there is not.
    let launch = plan.lines().position(|l| l.contains("launch kernel 0($")).unwrap();
    p.write(
        "plan.tlir",
        plan.replacen("launch kernel 0($", "launch kernel 0($999", 1),
    );
    let ran = p.run(&["check", "plan.tlir"]).code(1);
    let expected = format!("error: plan.tlir:{}:5: @chain: there is no slot $999", launch + 1);
    assert!(ran.first_error().starts_with(&expected), "{}", ran.err);
    let json = p.run(&["check", "plan.tlir", "--format", "json"]).code(1).json();
    assert_eq!(json["files"][0]["errors"][0]["line"], launch + 1);
    p.write(
        "kernel.tlir",
        "kernel(p0: f32[8] write) {\n  for i0 in 0..9 serial {\n    %0: f32 = const nan\n    store p0[i0], %0\n  }\n}\n",
    );
    let ran = p.run(&["check", "kernel.tlir"]).code(1);
    assert_eq!(
        ran.first_error(),
        "error: kernel.tlir:4:5: p0 is accessed outside its length for i0=8"
    );
    assert!(ran.err.contains("store p0[i0], %0"), "{}", ran.err);
    let ran = p
        .run_with(&["check", "-"], b"kernel(p0: f32[8] write) {\n  store p0[0] 4\n}\n")
        .code(1);
    assert_eq!(
        ran.first_error(),
        "error: <stdin>:2:15: malformed store; expected `,`, found `4`"
    );
}

#[test]
fn kernels_and_plans_alone_are_not_compiled() {
    let p = Place::new();
    p.write("m.tlir", CHAIN);
    for (what, held) in [("kernel", "1 kernel"), ("plan", "1 plan")] {
        p.write("only.tlir", p.run(&["emit", "m.tlir", "--what", what]).code(0).out);
        for command in ["run", "explain", "opt"] {
            let ran = p.run(&[command, "only.tlir"]).code(3);
            assert!(
                ran.first_error()
                    .starts_with("error: only.tlir: the file holds no graph, but ")
                    && ran.first_error().contains(&held[2..]),
                "{}",
                ran.err
            );
        }
    }
}

#[test]
fn fmt_of_a_broken_file_changes_nothing() {
    let p = Place::new();
    p.write("m.tlir", BROKEN);
    p.run(&["fmt", "m.tlir"]).code(3);
    assert_eq!(std::fs::read_to_string(p.path("m.tlir")).unwrap(), BROKEN);
}

#[test]
fn opt_prints_a_graph_that_reads_back() {
    let p = Place::new();
    p.write("m.tlir", CHAIN.replace("max %2, %4", "add %0, %0"));
    let ran = p.run(&["opt", "m.tlir", "--passes", "canonicalize,cse,dce"]).code(0);
    assert!(ran.out.starts_with("graph @chain("), "{}", ran.out);
    p.run_with(&["check", "-"], ran.out.as_bytes()).code(0);
    let all = p
        .run(&["opt", "m.tlir", "--passes", "cse,dce", "--print-after", "all"])
        .code(0);
    assert!(
        all.out.contains("// after cse\ngraph") && all.out.contains("// after dce\ngraph"),
        "{}",
        all.out
    );
    let json = p.run(&["opt", "m.tlir", "--format", "json"]).code(0).json();
    assert!(json["graph"].as_str().unwrap().starts_with("graph @chain"));
    let ran = p.run(&["opt", "m.tlir", "--passes", "cse,magic"]).code(2);
    assert!(
        ran.first_error()
            .starts_with("error: unknown pass `magic`; expected dequantized, canonicalize"),
        "{}",
        ran.err
    );
}

#[test]
fn explain_tells_kernels_fusion_and_the_library_step() {
    let p = Place::new();
    p.write("m.tlir", PRODUCT);
    // As on every machine.
    let ran = p.run_under(("TLC_CPU", "sse"), &["explain", "m.tlir"]).code(0);
    for part in [
        "library matmul",
        "kernel 0",
        "fusion decisions",
        "behind the matrix product in its step",
        "a matrix product by the library",
        "vectors side by side hide each other's latency: split",
        "innermost loops: 4 lanes",
        "arena",
    ] {
        assert!(ran.out.contains(part), "{part} in\n{}", ran.out);
    }
    let json = p.run(&["explain", "m.tlir", "--format", "json"]).code(0).json();
    // The product, and the sums of its rows behind it.
    assert_eq!(json["steps"][0]["what"], "library matmul + kernel 0");
    assert_eq!(json["steps"][0]["flops"], 2 * 256 * 128 * 192 + 256 * 192);
    assert!(json["memory"]["arena_bytes"].is_u64() && json["clusters"].is_array() && json["decisions"].is_array());
    let applied = json["schedules"][0]["applied"].as_array().map_or(0, Vec::len);
    assert!(
        applied > 0 && json["schedules"][0]["applied"][0]["reason"].is_string(),
        "{json}"
    );
}

#[test]
fn set_fixes_symbols() {
    let p = Place::new();
    p.write("m.tlir", CHAIN);
    let json = p
        .run(&["explain", "m.tlir", "--format", "json", "--set", "n=8"])
        .code(0)
        .json();
    assert!(json["steps"][0]["bytes"].is_u64(), "{json}");
    let open = p.run(&["explain", "m.tlir", "--format", "json"]).code(0).json();
    let formula = open["steps"][0]["bytes_formula"]
        .as_str()
        .unwrap_or_default()
        .to_string();
    assert!(open["steps"][0]["bytes"].is_null() && formula.contains('n'), "{open}");
    let ran = p.run(&["explain", "m.tlir", "--set", "k=8"]).code(2);
    assert_eq!(
        ran.first_error(),
        "error: --set k=8: m.tlir has no size `k`; expected n"
    );
    let ran = p.run(&["explain", "m.tlir", "--set", "n=0"]).code(2);
    assert_eq!(ran.first_error(), "error: --set n=0: out of range; expected 1..=1024");
    p.run(&["explain", "m.tlir", "--set", "n"]).code(2);
}

#[test]
fn a_level_of_the_processor_is_forced_or_refused() {
    let p = Place::new();
    p.write("m.tlir", CHAIN);
    let asm = |level| p.run_under(("TLC_CPU", level), &["emit", "m.tlir", "--what", "asm"]);
    assert!(!asm("sse").code(0).out.contains("zmm"));
    let scalar = p.run_under(("TLC_CPU", "scalar"), &["explain", "m.tlir"]).code(0).out;
    assert!(
        scalar.contains("innermost loops: scalar (the emitter has no vectors)"),
        "{scalar}"
    );
    let named = p.run_under(("TLC_CPU", "scalar"), &["info"]).code(0).out;
    assert!(
        named.lines().any(|l| l.split_whitespace().eq(["kernels", "scalar"])),
        "{named}"
    );
    // Kernels are those of the level below, and only the library of products has more.
    if tlc_runtime::cpu::level::name() == "avx512_bf16" {
        assert!(asm("avx512_bf16").code(0).out.contains("zmm"));
    }
    for (level, register) in [("avx512", "zmm"), ("avx2", "ymm")] {
        match tlc_runtime::cpu::level::all().iter().any(|l| l.name() == level) {
            true => {
                let code = asm(level).code(0).out;
                assert!(code.contains(register));
                // Each statement stands beside its first instruction.
                let beside = |statement: &str, instruction: &str| {
                    (code.lines()).any(|l| l.contains(instruction) && l.contains(&format!("; {statement}")))
                };
                assert!(beside("store p", "mov"), "{code}");
                assert!(
                    code.lines().any(|l| l.contains("; %") && l.contains("= load p0[")),
                    "{code}"
                );
            }
            false => {
                println!("SKIP code of {level}: the processor lacks it");
                assert!(asm(level).code(4).first_error().contains("lacks"));
            }
        }
    }
    // Neither the registers nor the masks of the wider level.
    if tlc_runtime::cpu::level::all().iter().any(|l| l.name() == "avx2") {
        let code = asm("avx2").code(0).out;
        assert!(
            !code.contains("zmm") && !code.contains("mm16") && !code.contains("{k"),
            "{code}"
        );
    }
    assert_eq!(
        asm("mmx").code(2).first_error(),
        "error: TLC_CPU=mmx: unknown level; expected amx, avx512_bf16, avx512, avx2, sse or scalar"
    );
}

#[test]
fn emit_prints_every_stage() {
    let p = Place::new();
    p.write("m.tlir", CHAIN);
    // As on every machine.
    let emit = |what: &str, more: &[&str]| -> Ran {
        let args = [&["emit", "m.tlir", "--what", what], more].concat();
        p.run_under(("TLC_CPU", "sse"), &args)
    };
    for (what, part) in [
        ("graph", "graph @chain("),
        ("clusters", "cluster 0: loops over"),
        ("schedule", "// kernel 0\n// vectors of 4\nsplit i3 factor=4"),
        ("kernel", "// kernel 0\nkernel("),
        ("plan", "plan @chain"),
        ("flat", "store p"),
        ("clif", "function "),
        ("asm", "ret"),
        ("cuda", "__global__"),
        ("dot", "digraph \"chain\" {"),
    ] {
        let ran = emit(what, &[]).code(0);
        assert!(ran.out.contains(part), "{what}:\n{}", ran.out);
        let json = emit(what, &["--format", "json"]).code(0).json();
        assert!(json["texts"][0]["text"].as_str().unwrap().len() > 20);
    }
    assert!(emit("kernel", &["--kernel", "0"]).code(0).out.starts_with("kernel("));
    // For a GPU, which need not be here.
    for (what, part) in [
        ("graph", "graph @chain("),
        ("clusters", "cluster 0: loops over"),
        ("schedule", " block\n"),
        ("kernel", " thread {"),
        ("plan", " threads 256 shared "),
        ("flat", " thread {\n"),
        ("cuda", "__global__"),
        ("dot", "digraph \"chain\" {"),
    ] {
        let ran = emit(what, &["--device", "cuda"]).code(0);
        assert!(ran.out.contains(part), "{what}:\n{}", ran.out);
    }
    p.write("gpu.tlir", emit("plan", &["--device", "cuda"]).code(0).out);
    p.run(&["check", "gpu.tlir"]).code(0);
    for (what, device) in [("asm", "cuda"), ("clif", "cuda"), ("cuda", "cpu"), ("plan", "tpu")] {
        emit(what, &["--device", device]).code(2);
    }
    // Where NVRTC is.
    let ran = emit("ptx", &[]);
    match ran.code {
        0 => assert!(ran.out.contains(".visible .entry"), "{}", ran.out),
        _ => assert!(ran.code(4).first_error().contains("nvidia-cuda-nvrtc")),
    }
    emit("ptx", &["--device", "cpu"]).code(2);
    emit("sass", &["--device", "cpu"]).code(2);
    // Where its disassembler is as well.
    let ran = emit("sass", &["--kernel", "0"]);
    match ran.code {
        0 => assert!(ran.out.contains(" EXIT"), "{}", ran.out),
        _ => assert!(ran.code(4).first_error().contains("nvidia-cuda-nv")),
    }
    let ran = emit("kernel", &["--kernel", "99"]).code(2);
    assert!(
        ran.first_error().starts_with("error: m.tlir: no kernel 99; expected "),
        "{}",
        ran.err
    );
    emit("plan", &["--kernel", "0"]).code(2);
    emit("poem", &[]).code(2);
    let ran = emit("cuda", &["--arch", "sm_1"]).code(2);
    assert!(ran.first_error().contains("unknown architecture `sm_1`"), "{}", ran.err);
}

#[test]
fn what_a_gpu_does_in_one_launch_is_shown_as_one() {
    let p = Place::new();
    let steps = (1..6).map(|k| format!("  %{k} = einsum %{}, %w {{ab,bc->ac}} : f32[32, 32]\n", k - 1));
    let (first, steps) = (
        "  %0 = einsum %x, %w {ab,bc->ac} : f32[32, 32]\n",
        steps.collect::<String>(),
    );
    let graph = format!("graph @chain(%x: f32[32, 32], %w: f32[32, 32]) {{\n{first}{steps}  return %5\n}}\n");
    p.write("m.tlir", graph);
    let emit = |more: &[&str]| p.run(&[&["emit", "m.tlir", "--what", "cuda"], more].concat()).code(0);
    let ran = emit(&[]);
    let headings: Vec<&str> = ran.out.lines().filter(|l| l.starts_with("// ")).collect();
    let one = "// one launch that does 6 in turn, of kernels 0";
    assert_eq!(headings, ["// kernel 0", one], "{}", ran.out);
    assert_eq!(ran.out.matches("extern \"C\" __global__").count(), 2, "{}", ran.out);
    let texts = &emit(&["--format", "json"]).json()["texts"];
    assert_eq!((&texts[0]["kernel"], &texts[0]["sequence"]), (&json!(0), &json!(null)));
    assert_eq!(texts[1]["sequence"], json!([0, 0, 0, 0, 0, 0]));
    assert!(!emit(&["--kernel", "0"]).out.contains("in turn"));
    // Where the architecture is another, too.
    assert!(emit(&["--arch", "sm_80"]).out.contains(one));
}

#[test]
fn one_of_several_graphs_is_chosen_by_name() {
    let p = Place::new();
    p.write("m.tlir", format!("{CHAIN}\n{PRODUCT}"));
    assert!(p.run(&["opt", "m.tlir"]).code(0).out.starts_with("graph @chain("));
    assert!(
        p.run(&["opt", "m.tlir", "--graph", "product"])
            .code(0)
            .out
            .starts_with("graph @product(")
    );
    let ran = p.run(&["opt", "m.tlir", "--graph", "none"]).code(2);
    assert_eq!(
        ran.first_error(),
        "error: m.tlir: no graph @none; expected @chain, @product"
    );
}

#[test]
fn the_variable_tlc_shows_stages() {
    let p = Place::new();
    p.write("m.tlir", CHAIN);
    let ran = p.run_under(
        ("TLC", "print=after:cluster,verify=each,limit=3,dump=stages"),
        &["explain", "m.tlir"],
    );
    let ran = ran.code(0);
    assert!(ran.err.contains("// after cluster\ncluster 0:"), "{}", ran.err);
    let files = p.list("stages");
    assert_eq!(files.iter().filter(|f| f.starts_with("0")).count(), 4, "{files:?}");
    assert!(
        files.contains(&"clusters.txt".into()) && files.contains(&"plan.tlir".into()),
        "{files:?}"
    );
    let ran = p.run_under(("TLC", "print=after:cse"), &["opt", "m.tlir"]).code(0);
    assert!(ran.err.contains("// after cse\ngraph @chain"), "{}", ran.err);
    let ran = p.run_under(("TLC", "shout"), &["explain", "m.tlir"]).code(2);
    assert!(
        ran.first_error()
            .starts_with("error: TLC=shout: unknown `shout`; expected print="),
        "{}",
        ran.err
    );
}

#[test]
fn explain_says_what_a_value_was_derived_from() {
    let p = Place::new();
    let text = "graph @g(%x: f32[64]) {\n  %0 = exp %x : f32[64] from gradient of exp \"layer.1\"\n  return %0\n}\n";
    p.write("m.tlir", text);
    let ran = p.run(&["explain", "m.tlir"]).code(0);
    assert!(ran.out.contains("%0 exp (gradient of exp 'layer.1')"), "{}", ran.out);
    p.run(&["fmt", "--check", "m.tlir"]).code(0);
}

#[test]
fn products_of_f32_are_exact_unless_asked() {
    let p = Place::new();
    let text = "graph @m(%x: f32[64, 96], %y: f32[96, 64]) {\n  %0 = einsum %x, %y {ab,bc->ac} : f32[64, 64]\n  return %0\n}\n";
    p.write("m.tlir", text);
    let emit = |more: &[&str]| p.run(&[&["emit", "m.tlir", "--what", "cuda"], more].concat());
    assert!(!emit(&[]).code(0).out.contains("mma.sync"));
    assert!(!emit(&["--precision", "exact"]).code(0).out.contains("mma.sync"));
    assert!(
        emit(&["--precision", "tf32"])
            .code(0)
            .out
            .contains("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32")
    );
    let schedule = p.run(&[
        "emit",
        "m.tlir",
        "--what",
        "schedule",
        "--device",
        "cuda",
        "--precision",
        "tf32",
    ]);
    assert!(schedule.code(0).out.contains("operands rounded to tf32"));
    // The host is exact whatever is allowed.
    p.run(&["verify", "m.tlir", "--precision", "tf32"]).code(0);
    let refused = emit(&["--precision", "quick"]).code(2);
    assert!(refused.err.contains("expected exact, tf32 or fast"), "{}", refused.err);
}

#[test]
fn functions_are_approximated_only_where_asked() {
    let p = Place::new();
    let text = "graph @m(%x: f16[4096]) {\n  %0 = tanh %x : f16[4096]\n  return %0\n}\n";
    p.write("m.tlir", text);
    let emit = |precision: &str| {
        p.run(&["emit", "m.tlir", "--what", "cuda", "--precision", precision])
            .code(0)
            .out
    };
    for precision in ["exact", "tf32"] {
        assert!(!emit(precision).contains(".approx"));
    }
    assert!(emit("fast").contains("ex2.approx.ftz.f32"));
    p.run(&["verify", "m.tlir", "--precision", "fast"]).code(0);
}
