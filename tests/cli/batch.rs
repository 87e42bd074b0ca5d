//! run --batch.

use serde_json::{Value, json};

use super::support::{CHAIN, Place, Ran};

const EXP: &str = "graph @f(%x: f32[n]) {\n  %0 = exp %x : f32[n]\n  return %0 as y\n}\n";

fn lines(ran: &Ran) -> Vec<Value> {
    ran.out
        .lines()
        .map(|l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{e}: {l}")))
        .collect()
}

fn place() -> Place {
    let p = Place::new();
    p.write("m.tlir", EXP);
    p.write("chain.tlir", CHAIN);
    p.write("bad.tlir", "graph @f(");
    p.write("m.onnx", "");
    p.f32s("x.npy", &[3], &[0.0, 1.0, 2.0]);
    p
}

#[test]
fn every_case_answers_one_line_and_none_ends_the_batch() {
    let p = place();
    let cases = [
        json!({"id": "first", "model": "m.tlir", "inputs": {"x": "x.npy"}, "output_dir": "one"}),
        json!({"id": 2, "model": "bad.tlir", "inputs": {}, "output_dir": "two"}),
        json!({"id": "onnx", "model": "m.onnx", "inputs": {}, "output_dir": "three"}),
        json!({"id": "name", "model": "m.tlir", "inputs": {"z": "x.npy"}, "output_dir": "four"}),
        json!({"id": "no-model"}),
        json!({"id": "last", "model": "m.tlir", "inputs": {"x": "x.npy"}, "output_dir": "six"}),
    ];
    let mut manifest: Vec<String> = cases.iter().map(Value::to_string).collect();
    manifest.insert(1, "{not json".into());
    manifest.insert(3, String::new());
    p.write("cases.jsonl", manifest.join("\n"));
    let ran = p.run(&["run", "--batch", "cases.jsonl"]).code(1);
    assert_eq!(
        ran.first_error(),
        "error: cases.jsonl: 5 of 7 cases failed; expected none"
    );
    let answers = lines(&ran);
    let status: Vec<(&Value, &str)> = answers
        .iter()
        .map(|a| (&a["id"], a["status"].as_str().unwrap()))
        .collect();
    assert_eq!(
        status,
        [
            (&json!("first"), "ok"),
            (&Value::Null, "error"),
            (&json!(2), "error"),
            (&json!("onnx"), "error"),
            (&json!("name"), "error"),
            (&json!("no-model"), "error"),
            (&json!("last"), "ok"),
        ]
    );
    for a in &answers {
        let keys: Vec<&String> = a.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["id", "status", "message", "seconds"]);
        assert!(a["message"].is_string() && a["seconds"].as_f64().unwrap() >= 0.0);
    }
    assert!(
        answers[1]["message"].as_str().unwrap().starts_with("cases.jsonl:2:"),
        "{}",
        answers[1]
    );
    assert!(
        answers[2]["message"].as_str().unwrap().starts_with("bad.tlir:1:"),
        "{}",
        answers[2]
    );
    assert!(
        answers[4]["message"].as_str().unwrap().contains("expected x: f32[n]"),
        "{}",
        answers[4]
    );
    assert_eq!(p.list("one"), ["y.npy"]);
    assert_eq!(p.list("six"), ["y.npy"]);
    assert!(["two", "three", "four"].iter().all(|d| !p.path(d).exists()));
    let y = p.read("six/y.npy");
    let expected = [1.0, 1f32.exp(), 2f32.exp()];
    let close = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-6 * b.abs();
    assert!(y.as_slice::<f32>().unwrap().iter().zip(&expected).all(close));
}

#[test]
fn a_manifest_comes_from_standard_input_line_by_line() {
    use std::io::{BufRead, BufReader, Write};
    let p = place();
    let mut child = p
        .command(&["run", "--batch", "-"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    for id in 0..3 {
        // The line arrives before the next case is given.
        writeln!(
            input,
            "{}",
            json!({"id": id, "model": "m.tlir", "inputs": {"x": "x.npy"}})
        )
        .unwrap();
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let answer: Value = serde_json::from_str(&line).unwrap();
        assert_eq!((&answer["id"], &answer["status"]), (&json!(id), &json!("ok")));
    }
    drop(input);
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_panic_is_an_answer_too() {
    let p = place();
    p.write(
        "cases.jsonl",
        json!({"id": 1, "model": "m.tlir", "inputs": {"x": "x.npy"}}).to_string(),
    );
    let ran = p
        .run_under(("TLC", "fault=panic"), &["run", "--batch", "cases.jsonl"])
        .code(1);
    let answers = lines(&ran);
    assert_eq!(answers[0]["status"], "error");
    assert!(
        answers[0]["message"].as_str().unwrap().starts_with("internal error: "),
        "{}",
        answers[0]
    );
}

#[test]
fn asked_for_json_every_line_has_the_schema() {
    let p = place();
    p.write(
        "cases.jsonl",
        json!({"id": 1, "model": "m.tlir", "inputs": {"x": "x.npy"}}).to_string(),
    );
    let ran = p.run(&["run", "--batch", "cases.jsonl", "--format", "json"]).code(0);
    assert_eq!(lines(&ran)[0]["schema"], 1);
    p.run(&["run", "--batch", "none.jsonl"]).code(3);
    p.run(&["run", "m.tlir", "--batch", "cases.jsonl"]).code(2);
}

#[test]
fn inputs_are_made_up_as_run_makes_them_up() {
    let p = place();
    let made =
        |kind: &str| json!({"id": kind, "model": "m.tlir", "inputs": {"x": kind}, "output_dir": kind}).to_string();
    p.write("cases.jsonl", ["zeros", "ones", "random"].map(made).join("\n"));
    p.run(&["run", "--batch", "cases.jsonl", "--set", "n=5", "--seed", "3"])
        .code(0);
    for kind in ["zeros", "ones", "random"] {
        let input = format!("x={kind}");
        p.run(&[
            "run", "m.tlir", "-i", &input, "--set", "n=5", "--seed", "3", "-o", "alone",
        ])
        .code(0);
        let (alone, batch) = (p.read("alone/y.npy"), p.read(&format!("{kind}/y.npy")));
        assert_eq!(alone.shape(), [5]);
        assert_eq!(alone.bytes(), batch.bytes(), "{kind}");
    }
    p.write(
        "bad.jsonl",
        json!({"id": 1, "model": "m.tlir", "inputs": {"x": 5}}).to_string(),
    );
    let ran = p.run(&["run", "--batch", "bad.jsonl"]).code(1);
    assert!(ran.out.contains("zeros, ones or random"), "{}", ran.out);
}

#[test]
fn a_line_that_is_no_case_fails_the_batch() {
    let p = place();
    for (line, place) in [("{", "b.jsonl:1:"), ("{\"id\": 7}", "b.jsonl:1:1")] {
        p.write("b.jsonl", line);
        for format in ["human", "json"] {
            let ran = p.run(&["run", "--batch", "b.jsonl", "--format", format]).code(1);
            let answers = lines(&ran);
            assert_eq!(answers.len(), 1, "{}", ran.out);
            assert!(
                answers[0]["message"].as_str().unwrap().starts_with(place),
                "{}",
                ran.out
            );
        }
    }
}

#[test]
fn a_key_that_means_nothing_is_an_error_that_names_it() {
    let p = place();
    for (line, expected) in [
        (
            r#"{"model": "m.tlir", "input": {"x": "x.npy"}}"#,
            r#"b.jsonl:2:21: unknown key "input" (did you mean "inputs"?); expected "id", "model", "inputs", "output_dir", "graph", "grad""#,
        ),
        (
            r#"{"model": "m.tlir", "inputs": {"x": "x.npy"}, "outputDir": "out"}"#,
            r#"b.jsonl:2:47: unknown key "outputDir" (did you mean "output_dir"?); expected "#,
        ),
        (
            r#"{"model": "m.tlir", "inputs": {"x": "x.npy"}, "comment": "a"}"#,
            r#"b.jsonl:2:47: unknown key "comment"; expected "id", "#,
        ),
        (
            r#"{"model": "m.tlir", "inputs": {"x": "x.npy"}, "grad": {"of": ["y"], "wrt": ["x"], "frezee": ["x"]}}"#,
            r#"b.jsonl:2:83: unknown key "frezee" of "grad" (did you mean "freeze"?); expected "of", "wrt", "freeze", "prefix", "max_iterations""#,
        ),
    ] {
        p.write("b.jsonl", format!("\n{line}\n"));
        let ran = p.run(&["run", "--batch", "b.jsonl"]).code(1);
        let answers = lines(&ran);
        let message = answers[0]["message"].as_str().expect("a text");
        assert!(message.contains(expected), "{message}");
        assert!(!p.path("out").exists());
    }
}
