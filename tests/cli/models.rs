//! check, fmt, opt, explain, emit.

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
    let ran = p.run(&["run", "m.onnx"]).code(4);
    assert!(
        ran.first_error()
            .starts_with("error: m.onnx: ONNX models are not supported"),
        "{}",
        ran.err
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
    p.write("m.tlir", &text);
    let ran = p.run(&["fmt", "m.tlir"]).code(1);
    assert!(
        ran.first_error()
            .starts_with("error: m.tlir:2:3: comment inside a graph"),
        "{}",
        ran.err
    );
    assert_eq!(std::fs::read_to_string(p.path("m.tlir")).unwrap(), text);
    p.run(&["fmt", "--drop-comments", "m.tlir"]).code(0);
    assert_eq!(std::fs::read_to_string(p.path("m.tlir")).unwrap(), CHAIN);
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
            .starts_with("error: unknown pass `magic`; expected canonicalize"),
        "{}",
        ran.err
    );
}

#[test]
fn explain_tells_kernels_fusion_and_the_library_step() {
    let p = Place::new();
    p.write("m.tlir", PRODUCT);
    let ran = p.run(&["explain", "m.tlir"]).code(0);
    for part in [
        "library matmul",
        "kernel 0",
        "fusion decisions",
        "a matrix product by the library",
        "vectors side by side hide each other's latency: split",
        "innermost loops: 4 lanes",
        "arena",
    ] {
        assert!(ran.out.contains(part), "{part} in\n{}", ran.out);
    }
    let json = p.run(&["explain", "m.tlir", "--format", "json"]).code(0).json();
    assert_eq!(json["steps"][0]["what"], "library matmul");
    assert_eq!(json["steps"][0]["flops"], 2 * 256 * 128 * 192);
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
fn emit_prints_every_stage() {
    let p = Place::new();
    p.write("m.tlir", CHAIN);
    let emit = |what: &str, more: &[&str]| -> Ran { p.run(&[&["emit", "m.tlir", "--what", what], more].concat()) };
    for (what, part) in [
        ("graph", "graph @chain("),
        ("clusters", "cluster 0: loops over"),
        ("kernel", "// kernel 0\nkernel("),
        ("plan", "plan @chain"),
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
