//! bench, profile, hwbench.

use tlc_runtime::hwbench::{Effort, HwBench};
use tlc_runtime::pool::Pool;

use super::support::{CHAIN, PRODUCT, Place};

#[test]
fn bench_saves_and_compares() {
    let p = Place::new();
    p.write("m.tlir", CHAIN);
    let args = ["bench", "m.tlir", "--set", "n=64", "--time", "0.05", "--threads", "1"];
    let ran = p.run(&[&args[..], &["--save", "base.json"]].concat()).code(0);
    assert!(
        ran.out.starts_with("@chain: median ") && ran.out.contains("x the limit"),
        "{}",
        ran.out
    );
    let text = std::fs::read_to_string(p.path("base.json")).unwrap();
    let mut saved: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(saved["schema"], 1);
    saved["median_ns"] = 1e12.into();
    p.write("slow.json", saved.to_string());
    saved["median_ns"] = 1e-3.into();
    p.write("fast.json", saved.to_string());
    let ran = p.run(&[&args[..], &["--against", "slow.json"]].concat()).code(0);
    assert!(ran.out.contains("x faster"), "{}", ran.out);
    let ran = p
        .run(&[&args[..], &["--against", "fast.json", "--format", "json"]].concat())
        .code(1);
    assert!(ran.json()["ratio"].as_f64().unwrap() > 1.0);
    assert!(
        ran.first_error().contains("x the saved time; expected at most 1.10x"),
        "{}",
        ran.err
    );
    let json = ran.json();
    assert_eq!(
        (&json["error"]["exit_code"], &json["error"]["kind"]),
        (&1.into(), &"failed".into())
    );
    p.write("other.json", "{}");
    p.run(&[&args[..], &["--against", "other.json"]].concat()).code(3);
    p.run(&[&args[..], &["--against", "none.json"]].concat()).code(3);
}

#[test]
fn a_saved_result_of_something_else_is_refused() {
    let p = Place::new();
    p.write("m.tlir", CHAIN);
    let bench = |model: &str, rest: &[&str]| p.run(&[&["bench", model, "--time", "0.01"], rest].concat());
    bench("m.tlir", &["--set", "n=64", "--threads", "1", "--save", "base.json"]).code(0);
    let same = [
        "--set",
        "n=64",
        "--threads",
        "1",
        "--against",
        "base.json",
        "--tolerance",
        "1e9",
    ];
    bench("m.tlir", &same).code(0);
    let refused = |model: &str, rest: &[&str], says: &str| {
        let ran = bench(model, &[rest, &["--tolerance", "1e9"]].concat()).code(2);
        assert!(ran.first_error().contains(says), "{}", ran.err);
        assert_eq!(ran.out, "");
    };
    let against = ["--against", "base.json"];
    refused(
        "m.tlir",
        &[&["--set", "n=64", "--threads", "2"], &against[..]].concat(),
        "1 thread;",
    );
    refused(
        "m.tlir",
        &[&["--set", "n=65", "--threads", "1"], &against[..]].concat(),
        "other sizes",
    );
    p.write("other.tlir", CHAIN.replace("max %2", "min %2"));
    let one = [&["--set", "n=64", "--threads", "1"], &against[..]].concat();
    refused("other.tlir", &one, "another graph @chain");
    p.write("named.tlir", CHAIN.replace("@chain", "@link"));
    refused("named.tlir", &one, "a result of @chain on");
    let saved = std::fs::read_to_string(p.path("base.json")).unwrap();
    let cpu = serde_json::from_str::<serde_json::Value>(&saved).unwrap()["cpu"].to_string();
    p.write("cpu.json", saved.replace(&cpu, "\"Z80\""));
    let elsewhere = ["--set", "n=64", "--threads", "1", "--against", "cpu.json"];
    refused("m.tlir", &elsewhere, "on Z80");
    let level = serde_json::from_str::<serde_json::Value>(&saved).unwrap()["kernel_level"].to_string();
    p.write("level.json", saved.replace(&level, "\"neon\""));
    let narrower = ["--set", "n=64", "--threads", "1", "--against", "level.json"];
    refused("m.tlir", &narrower, "at neon");
    // No time is beyond a tolerance that is no number.
    for tolerance in ["nan", "inf", "-inf", "ten"] {
        let tolerance = format!("--tolerance={tolerance}");
        let ran = bench("m.tlir", &[&one[..], &[&tolerance]].concat()).code(2);
        assert!(ran.first_error().contains("expected a finite number"), "{}", ran.err);
    }
}

/// Sizes that inputs bring are not known when code is made: what is measured is a version for them, once it is made, or the code for any sizes.
#[test]
fn bench_measures_the_version_for_sizes_or_the_code_for_any() {
    let p = Place::new();
    p.write("m.tlir", CHAIN);
    p.f32s("a.npy", &[512, 4], &[0.5; 2048]);
    let args = [
        "bench",
        "m.tlir",
        "-i",
        "a=a.npy",
        "-i",
        "b=a.npy",
        "--time",
        "0.02",
        "--threads",
        "1",
    ];
    let bench = |more: &[&str]| p.run(&[&args[..], &["--format", "json"], more].concat());
    let json = bench(&["--save", "version.json"]).code(0).json();
    let versions = json["versions"].as_array().unwrap();
    assert_eq!(versions.len(), 1, "{json}");
    assert!(
        versions[0].as_str().unwrap().starts_with("n=512: the same shapes in "),
        "{json}"
    );
    let json = bench(&["--any-sizes", "--save", "any.json"]).code(0).json();
    assert_eq!(
        (&json["versions"], &json["any_sizes"]),
        (&serde_json::json!([]), &true.into())
    );
    let ran = bench(&["--against", "any.json", "--tolerance", "1e9"]).code(2);
    assert!(
        ran.first_error()
            .contains("a result of the code for any sizes of @chain"),
        "{}",
        ran.err
    );
    bench(&["--any-sizes", "--against", "any.json", "--tolerance", "1e9"]).code(0);
}

#[test]
fn bench_needs_sizes() {
    let p = Place::new();
    p.write("m.tlir", CHAIN);
    let ran = p.run(&["bench", "m.tlir", "--time", "0"]).code(2);
    assert!(ran.first_error().contains("expected --set n=N"), "{}", ran.err);
}

#[test]
fn profile_has_a_row_for_every_step() {
    let p = Place::new();
    p.write("m.tlir", PRODUCT);
    let ran = p.run(&["profile", "m.tlir", "--time", "0.05"]).code(0);
    assert!(
        ran.out.contains("library matmul") && ran.out.contains("kernel 0"),
        "{}",
        ran.out
    );
    let json = p
        .run(&["profile", "m.tlir", "--time", "0.05", "--format", "json"])
        .code(0)
        .json();
    let steps = json["steps"].as_array().unwrap();
    let share: f64 = steps.iter().map(|s| s["share"].as_f64().unwrap()).sum();
    assert!(steps.len() == 1 && (share - 1.0).abs() < 1e-6, "{json}");
    assert!(
        steps
            .iter()
            .all(|s| !s["advice"].as_str().unwrap().is_empty() && s["floor_ns"].is_number())
    );
}

/// Puts a model of this machine where `tlc hwbench` keeps it: all its speeds are so many times those that were measured.
fn kept_model(p: &Place, factor: f64, disturbed_share: f64) {
    let mut bench = HwBench::measure(&Pool::new(1), Effort::QUICK, &mut |_, _| {}).expect("memory");
    bench
        .bandwidth
        .iter_mut()
        .for_each(|row| row.bytes_per_second *= factor);
    for rate in [&mut bench.f32_flops_per_second, &mut bench.xmm_ops_per_second] {
        rate.one_thread *= factor;
        rate.all_threads *= factor;
    }
    bench.disturbed_share = disturbed_share;
    std::fs::create_dir_all(p.path("tlc")).expect("a directory");
    p.write("tlc/hwbench.json", bench.to_json());
}

#[test]
fn hwbench_keeps_a_quiet_machine_and_no_other() {
    let p = Place::new();
    let ran = p.run(&["hwbench", "--quick", "--format", "json", "--threads", "1"]);
    let json = ran.json();
    assert!(json["f32_flops_per_second"]["one_thread"].as_f64().unwrap() > 0.0);
    // Whether this machine is quiet is not ours to say.
    if ran.code == 0 {
        assert_eq!(p.list("tlc"), ["hwbench.json"]);
        assert!(json["disturbed_share"].as_f64().unwrap() <= 0.05, "{json}");
        let info = p.run(&["info", "--format", "json"]).code(0).json();
        assert_eq!(info["measured"], true);
    } else {
        assert_eq!((ran.code, &json["error"]["kind"]), (1, &"failed".into()));
        assert!(ran.first_error().contains("the machine is busy"), "{}", ran.err);
        assert_eq!((p.list("tlc").len(), &json["saved"]), (0, &serde_json::Value::Null));
    }
}

#[test]
fn a_kept_model_is_used_if_it_is_worth_it() {
    let p = Place::new();
    p.write("m.tlir", PRODUCT);
    let measured = || {
        let json = p.run(&["explain", "m.tlir", "--format", "json"]).code(0).json();
        json["measured_machine"] == true
    };
    kept_model(&p, 1.0, 0.0);
    assert!(measured());
    // A broken file is as good as none, and so is the model of a busy machine.
    p.write("tlc/hwbench.json", "{");
    assert!(!measured());
    kept_model(&p, 1.0, 0.3);
    assert!(!measured());
}

#[test]
fn a_limit_that_is_beaten_is_called_wrong() {
    let p = Place::new();
    p.write("m.tlir", PRODUCT);
    // A machine that was measured ten thousand times slower than it is.
    kept_model(&p, 1e-4, 0.0);
    let ran = p.run(&["bench", "m.tlir", "--time", "0.02"]).code(0);
    assert!(
        ran.out.contains("beaten, so the limit is wrong") && !ran.out.contains("x the limit"),
        "{}",
        ran.out
    );
    assert!(ran.err.contains("the model of this machine is wrong"), "{}", ran.err);
    let json = p
        .run(&["bench", "m.tlir", "--time", "0.02", "--format", "json"])
        .code(0)
        .json();
    assert_eq!(json["model_wrong"], true);
    let ran = p.run(&["profile", "m.tlir", "--time", "0.02"]).code(0);
    assert!(
        ran.out.contains(" beaten ") && ran.err.contains("1 limit beaten"),
        "{}\n{}",
        ran.out,
        ran.err
    );
    // One that it cannot reach is no such case.
    kept_model(&p, 1e4, 0.0);
    let json = p
        .run(&["bench", "m.tlir", "--time", "0.02", "--format", "json"])
        .code(0)
        .json();
    assert_eq!(json["model_wrong"], false);
}

/// A loop that doubles until a limit: `n` iterations at most, and fewer where `%limit` is reached before.
const DOUBLING: &str = "graph @f(%x: f32[4096], %go: bool[], %limit: f32[]) {
  %0 = loop %go, %x, %limit {trip=1000, conditional, carried=1} body @double(%i: i64[], %s: f32[4096], %limit: f32[]) {
    %0 = add %s, %s : f32[4096]
    %1 = reduce max %0 {axes=[0]} : f32[]
    %2 = lt %1, %limit : bool[]
    return %2, %0
  } : (f32[4096])
  %1 = project %0 {result=0} : f32[4096]
  %2 = exp %1 : f32[4096]
  return %2 as y
}
";

fn doubling(limit: f32) -> Place {
    let p = Place::new();
    p.write("m.tlir", DOUBLING);
    p.f32s("limit.npy", &[], &[limit]);
    p
}

const DOUBLED: [&str; 8] = [
    "m.tlir",
    "-i",
    "x=ones",
    "-i",
    "go=ones",
    "-i",
    "limit=limit.npy",
    "--time",
];

#[test]
fn profile_goes_into_loops() {
    // 2, 4, ... 32 is the first that is not below 32.
    let p = doubling(32.0);
    let args = [&["profile"], &DOUBLED[..], &["0.02", "--format", "json"]].concat();
    let json = p.run(&args).code(0).json();
    let steps = json["steps"].as_array().unwrap();
    let one = steps
        .iter()
        .find(|s| s["what"].as_str().unwrap().starts_with("loop"))
        .unwrap();
    assert_eq!(one["iterations"], 5, "{json}");
    let inner = one["inner"].as_array().unwrap();
    assert!(!inner.is_empty(), "{json}");
    let sum = |part: &str| -> f64 { inner.iter().map(|s| s[part].as_f64().unwrap()).sum() };
    assert!(sum("share") > 0.0 && sum("ns") > 0.0, "{json}");
    for (k, step) in inner.iter().enumerate() {
        assert_eq!(step["step"], format!("{}.{k}", one["step"].as_str().unwrap()));
    }
    // What one iteration reads and writes at least, five times.
    assert!(sum("bytes") >= 5.0 * 2.0 * 4096.0 * 4.0, "{json}");
    assert_eq!(Some(sum("bytes")), one["bytes"].as_f64());
    let text = p.run(&[&["profile"], &DOUBLED[..], &["0.02"]].concat()).code(0).out;
    assert!(text.contains("5 iterations of loop %0"), "{text}");
}

#[test]
fn the_limit_of_a_loop_is_that_of_the_iterations_that_ran() {
    let limit = |limit: f32| -> (f64, f64) {
        let p = doubling(limit);
        let bench = [&["bench"], &DOUBLED[..], &["0.01", "--format", "json"]].concat();
        let profile = [&["profile"], &DOUBLED[..], &["0.01", "--format", "json"]].concat();
        let steps = p.run(&profile).code(0).json()["steps"].as_array().unwrap().clone();
        let one = steps
            .iter()
            .find(|s| s["what"].as_str().unwrap().starts_with("loop"))
            .unwrap();
        let whole = p.run(&bench).code(0).json()["floor_ns"].as_f64().unwrap();
        (whole, one["floor_ns"].as_f64().unwrap())
    };
    let ((few, few_inside), (many, many_inside)) = (limit(8.0), limit(512.0));
    // Three iterations and nine, of a thousand that the trip count allows.
    assert!(
        (many_inside / few_inside - 3.0).abs() < 1e-6,
        "{few_inside} {many_inside}"
    );
    assert!(
        (many - few - (many_inside - few_inside)).abs() < 1e-6 * many,
        "{few} {many}"
    );
}

#[test]
fn the_limit_takes_sizes_from_the_inputs() {
    let p = Place::new();
    p.write("m.tlir", CHAIN);
    p.f32s("a.npy", &[64, 4], &[1.0; 256]);
    let limit = |args: &[&str]| {
        let args = [&["bench", "m.tlir", "--time", "0.01", "--format", "json"], args].concat();
        p.run(&args).code(0).json()["floor_ns"].as_f64()
    };
    let given = limit(&["-i", "a=a.npy"]);
    assert!(given.is_some() && given == limit(&["--set", "n=64"]), "{given:?}");
    let text = p
        .run(&["bench", "m.tlir", "--time", "0.01", "-i", "a=a.npy"])
        .code(0)
        .out;
    assert!(text.contains("x the limit"), "{text}");
}

const SUMS: &str = "graph @sums(%x: f32[300, 400]) {
  %0 = exp %x : f32[300, 400]
  %1 = reduce add %0 {axes=[0]} : f32[400]
  return %1
}
";

#[test]
fn tune_keeps_what_is_faster_and_others_take_it() {
    let p = Place::new();
    p.write("m.tlir", SUMS);
    let tune = ["tune", "m.tlir", "--threads", "2", "--time", "2", "-o", "tuned.json"];
    let ran = p.run(&tune).code(0);
    assert!(
        ran.out.contains(" tried for ") && ran.out.contains("\na call took ") && ran.err.contains("kept in tuned.json"),
        "{}{}",
        ran.out,
        ran.err
    );
    // A second run goes on from there.
    let ran = p.run(&[&tune[..], &["--format", "json"]].concat()).code(0);
    let json = ran.json();
    assert!(
        json["tried"].as_u64() > Some(0) && json["kernels"].as_array().is_some_and(|k| !k.is_empty()),
        "{json}"
    );
    let explained = p
        .run(&["explain", "m.tlir", "--threads", "2", "--tuned", "tuned.json"])
        .code(0);
    let choices = explained
        .out
        .lines()
        .find(|l| l.contains("choices ("))
        .expect("choices");
    assert!(
        choices.contains("by the model") || choices.contains("measured"),
        "{choices}"
    );
    let plain = p.run(&["explain", "m.tlir", "--threads", "2"]).code(0);
    let calculated = plain.out.lines().find(|l| l.contains("choices (")).expect("choices");
    assert!(
        calculated.contains("by the model") && !calculated.contains("measured"),
        "{calculated}"
    );
    // What is pinned is taken, and computes what the graph means.
    let key = choices.split(['(', ')']).nth(1).expect("a key");
    let text = std::fs::read_to_string(p.path("tuned.json")).unwrap();
    let mut file: serde_json::Value = serde_json::from_str(&text).unwrap();
    file["kernels"] = serde_json::json!([{
        "cpu": tlc_runtime::machine::MachineInfo::detect_without_gpu().cpu.key(),
        "level": tlc_runtime::cpu::level::of_kernels(),
        "threads": 2, "kernel": key, "label": "by hand", "choices": ["thread-work=32"], "calculated_ns": 2.0, "tuned_ns": 1.0,
    }]);
    p.write("pinned.json", file.to_string());
    let pinned = ["--threads", "2", "--tuned", "pinned.json"];
    let explained = p.run(&[&["explain", "m.tlir"], &pinned[..]].concat()).code(0);
    assert!(explained.out.contains("thread-work=32 measured"), "{}", explained.out);
    p.run(&[&["verify", "m.tlir"], &pinned[..]].concat()).code(0);
}

#[test]
fn files_of_choices_that_are_none_are_refused() {
    let p = Place::new();
    p.write("m.tlir", SUMS);
    p.write("bad.json", "{}");
    p.write("other.json", r#"{"tuned": 9, "kernels": []}"#);
    #[cfg(unix)]
    {
        let ran = p.run(&["explain", "m.tlir", "--tuned", "/dev/zero"]).code(3);
        assert!(ran.first_error().contains("more than 16777216 bytes"), "{}", ran.err);
    }
    for (file, code, wrong) in [
        ("bad.json", 3, "bad.json: missing field `tuned`"),
        (
            "other.json",
            3,
            "other.json: the file has version 9 of its form; expected 1",
        ),
        ("none.json", 3, "none.json"),
    ] {
        for command in [
            &["run", "m.tlir", "-i", "x=zeros"][..],
            &["explain", "m.tlir"],
            &["bench", "m.tlir"],
        ] {
            let ran = p.run(&[command, &["--tuned", file]].concat()).code(code);
            assert!(ran.first_error().contains(wrong), "{}", ran.err);
        }
    }
    // A file that is none is not written over, and nothing is left where one cannot be written.
    p.run(&["tune", "m.tlir", "--time", "1", "-o", "bad.json"]).code(3);
    assert_eq!(std::fs::read_to_string(p.path("bad.json")).unwrap(), "{}");
    p.run(&["tune", "m.tlir", "--time", "1", "-o", "no/such/tuned.json"])
        .code(3);
}
