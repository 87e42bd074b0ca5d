//! Errors as programs read them: with `--format json`, one object of schema 1 on standard output.

use super::support::{CHAIN, PRODUCT, Place, Ran};

/// The error of a run, which is on standard error too.
#[track_caller]
fn error(ran: &Ran, code: i32, kind: &str) -> serde_json::Value {
    assert_eq!(ran.code, code, "stdout:\n{}\nstderr:\n{}", ran.out, ran.err);
    let json = ran.json();
    let error = json["error"].clone();
    assert_eq!(
        (&error["exit_code"], &error["kind"]),
        (&code.into(), &kind.into()),
        "{json}"
    );
    let message = error["message"].as_str().unwrap();
    let first = ran.first_error().strip_prefix("error: ").unwrap();
    assert!(
        message.starts_with(first.trim_end_matches(':')),
        "{message} against {}",
        ran.err
    );
    assert!(!error["reports"].as_array().unwrap().is_empty());
    error
}

#[test]
fn every_kind_of_error_is_an_object_too() {
    let p = Place::new();
    p.write("m.tlir", CHAIN);
    p.write("product.tlir", PRODUCT);
    p.write(
        "bad.tlir",
        "graph @f(%x: f32[3]) {\n  %0 = xep %x : f32[3]\n  return %0 as y\n}\n",
    );
    p.f32s("a.npy", &[2], &[1.0, f32::NAN]);
    let json = |args: &[&str]| p.run(&[args, &["--format", "json"]].concat());
    // Usage: found by clap, and later.
    error(&json(&["dance"]), 2, "usage");
    error(&json(&["run"]), 2, "usage");
    error(&p.run(&["--format=json", "info", "--threads", "0"]), 2, "usage");
    error(
        &json(&["emit", "m.tlir", "--what", "plan", "--kernel", "0"]),
        2,
        "usage",
    );
    error(&json(&["run", "m.tlir", "--set", "z=1"]), 2, "usage");
    // Invalid input, with its place.
    let e = error(&json(&["explain", "bad.tlir"]), 3, "invalid");
    let report = &e["reports"][0];
    assert_eq!(
        (&report["place"], &report["line"], &report["column"]),
        (&"bad.tlir".into(), &2.into(), &8.into())
    );
    error(&json(&["run", "none.tlir"]), 3, "invalid");
    error(&json(&["run", "m.tlir"]), 3, "invalid");
    error(&json(&["run", "--batch", "none.jsonl"]), 3, "invalid");
    error(&json(&["einsum", "i>->i", "a.npy"]), 3, "invalid");
    error(
        &json(&["bench", "product.tlir", "--against", "none.json"]),
        3,
        "invalid",
    );
    // Unsupported, limits, bugs.
    error(&json(&["fmt", "m.onnx"]), 4, "unsupported");
    error(
        &json(&[
            "run",
            "product.tlir",
            "-i",
            "a=zeros",
            "-i",
            "b=zeros",
            "--max-memory",
            "1K",
        ]),
        5,
        "limit",
    );
    let panics = p.run_under(("TLC", "fault=panic"), &["info", "--format", "json"]);
    error(&panics, 70, "bug");
    error(&p.run_under(("TLC", "fun"), &["info", "--format", "json"]), 2, "usage");
}

#[test]
fn a_check_that_failed_gives_its_result_and_the_error() {
    let p = Place::new();
    p.write(
        "m.tlir",
        "graph @f(%x: f32[2]) {\n  %0 = sqrt %x : f32[2]\n  return %0 as y\n}\n",
    );
    p.write(
        "n.tlir",
        "graph @f(%x: f32[2]) {\n  %0 = exp %x : f32[2]\n  return %0 as y\n}\n",
    );
    p.write("bad.tlir", "graph @f(");
    p.write(
        "loose.tlir",
        "graph @f(%x: f32[2]) {\n%0 = sqrt %x : f32[2]\n  return %0 as y\n}\n",
    );
    p.f32s("x.npy", &[2], &[1.0, -1.0]);
    let ran = p.run(&["check", "m.tlir", "bad.tlir", "--format", "json"]);
    error(&ran, 1, "failed");
    let files = ran.json()["files"].clone();
    assert_eq!((&files[0]["ok"], &files[1]["ok"]), (&true.into(), &false.into()));
    let ran = p.run(&["fmt", "--check", "m.tlir", "loose.tlir", "--format", "json"]);
    error(&ran, 1, "failed");
    assert_eq!(ran.json()["files"][1]["canonical"], false);
    let ran = p.run(&["compare", "m.tlir", "n.tlir", "-i", "x=x.npy", "--format", "json"]);
    error(&ran, 1, "failed");
    assert_eq!(ran.json()["within"], false);
    let ran = p.run(&["run", "m.tlir", "-i", "x=x.npy", "--check-nan", "--format", "json"]);
    error(&ran, 1, "failed");
    // What went well has no error.
    let ran = p.run(&["check", "m.tlir", "--format", "json"]).code(0);
    assert!(ran.json().get("error").is_none());
}

#[test]
fn a_size_that_nothing_determines_is_asked_for() {
    let p = Place::new();
    p.write(
        "m.tlir",
        "graph @f(%x: f32[n], %z: f32[m - 1]) where n in 1..=4, m in 2..=9 {\n  %0 = exp %x : f32[n]\n  \
         %1 = exp %z : f32[m - 1]\n  return %0 as y, %1 as w\n}\n",
    );
    for command in ["run", "verify", "bench"] {
        let ran = p.run(&[
            command, "m.tlir", "--input", "x=random", "--input", "z=random", "--set", "n=3",
        ]);
        assert_eq!(ran.code, 2, "{}", ran.err);
        let expected = "error: m.tlir: size `m` is the extent of no input; expected --set m=N with N in 2..=9";
        assert_eq!(ran.first_error(), expected);
    }
    p.run(&["verify", "m.tlir", "--set", "n=3", "--set", "m=4"]).code(0);
}

#[test]
fn sizes_that_nothing_determines_are_asked_for_at_once() {
    let p = Place::new();
    p.write(
        "of_inputs.tlir",
        "graph @f(%x: f32[a, b, 2], %z: f32[c, b]) where a in 1..=4, b in 2..=9, c in 0..=7 {\n  \
         %0 = exp %x : f32[a, b, 2]\n  %1 = exp %z : f32[c, b]\n  return %0 as y, %1 as w\n}\n",
    );
    let ran = p.run(&["verify", "of_inputs.tlir"]);
    assert_eq!(ran.code, 2, "{}", ran.err);
    let expected = "error: of_inputs.tlir: nothing determines sizes `a`, `b` and `c`; expected --set a=N with N in 1..=4, \
                    --set b=N with N in 2..=9 and --set c=N with N in 0..=7";
    assert_eq!(ran.first_error(), expected);
    p.write(
        "of_none.tlir",
        "graph @f(%x: f32[a - 1], %z: f32[b + 1]) where a in 1..=4, b in 2..=9 {\n  \
         %0 = exp %x : f32[a - 1]\n  %1 = exp %z : f32[b + 1]\n  return %0 as y, %1 as w\n}\n",
    );
    let ran = p.run(&["verify", "of_none.tlir"]);
    assert_eq!(ran.code, 2, "{}", ran.err);
    let expected = "error: of_none.tlir: sizes `a` and `b` are the extents of no input; expected --set a=N with N in 1..=4 \
                    and --set b=N with N in 2..=9";
    assert_eq!(ran.first_error(), expected);
}

#[test]
fn a_size_of_one_value_is_not_asked_for() {
    let p = Place::new();
    p.write(
        "m.tlir",
        "graph @f(%x: f32[n, m + 1]) where n = 3, m in 4..=4 {\n  %0 = exp %x : f32[n, m + 1]\n  return %0 as y\n}\n",
    );
    for command in ["run", "verify", "bench"] {
        p.run(&[command, "m.tlir", "--input", "x=random"]).code(0);
    }
}

#[test]
fn a_size_that_nothing_needs_is_not_asked_for() {
    let p = Place::new();
    // Nothing reads `z`, nobody takes what is repeated `q` times, and nothing mentions `r`.
    p.write(
        "m.tlir",
        "graph @f(%x: f32[n], %z: f32[m - 1]) where n in 1..=4, m in 2..=9, q in 2..=3, r in 5..=6 {\n  \
         %0 = expand %x : f32[q, n]\n  %1 = slice %0 {start=[1, 0], step=[1, 1]} : f32[q - 1, n]\n  \
         %2 = neg %x : f32[n]\n  return %2 as y\n}\n",
    );
    p.f32s("x.npy", &[2], &[1.0, -2.0]);
    p.f32s("z.npy", &[5], &[0.0; 5]);
    p.f32s("flat.npy", &[1, 5], &[0.0; 5]);
    let given = ["m.tlir", "--input", "x=x.npy", "--input", "z=z.npy"];
    let with = |command: &'static str, more: &[&'static str]| p.run(&[&[command], &given[..], more].concat());
    for command in ["run", "verify"] {
        with(command, &[]).code(0);
        with(command, &["--set", "m=6"]).code(0);
        // A value that is given is one that the inputs are held to.
        with(command, &["--set", "m=7"]).code(3);
    }
    p.run(&["bench", "m.tlir", "--set", "n=2"]).code(0);
    p.run(&["plan", "m.tlir", "--set", "n=2"]).code(0);
    let flat = p.run(&["run", "m.tlir", "--input", "x=x.npy", "--input", "z=flat.npy"]);
    flat.code(3);
}
