//! einsum.

use tlc::{DType, HostTensor};

use super::support::Place;

#[test]
fn a_product_is_written_and_its_path_told() {
    let p = Place::new();
    p.f32s("a.npy", &[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    p.f32s("b.npy", &[3, 2], &[1.0, 0.0, 0.0, 1.0, 1.0, 1.0]);
    let ran = p
        .run(&["einsum", "ij,jk->ik", "a.npy", "b.npy", "--output", "c.npy"])
        .code(0);
    assert_eq!(ran.out, "");
    for part in [
        "naive",
        "chosen",
        "flops",
        "largest intermediate",
        "f32[2, 3], f32[3, 2] -> f32[2, 2]",
    ] {
        assert!(ran.err.contains(part), "{part} in\n{}", ran.err);
    }
    let c = p.read("c.npy");
    assert_eq!(
        (c.shape(), c.as_slice::<f32>().unwrap()),
        (&[2, 2][..], &[4.0f32, 5.0, 10.0, 11.0][..])
    );
}

#[test]
fn without_output_a_summary_is_printed() {
    let p = Place::new();
    p.f32s("a.npy", &[3], &[1.0, 2.0, 3.0]);
    let ran = p.run(&["einsum", "i->", "a.npy"]).code(0);
    assert!(
        ran.out.starts_with("result: f32[]  min 6") && ran.out.contains("\n  6"),
        "{}",
        ran.out
    );
    let json = p
        .run(&["einsum", "i,i->", "a.npy", "a.npy", "--format", "json"])
        .code(0)
        .json();
    assert_eq!(json["result"]["first"][0], 14.0);
    assert!(json["flops"].is_number() && json["path"].is_array());
    let ran = p.run(&["einsum", "i->i", "a.npy", "--output", "-"]).code(0);
    assert_eq!(
        tlc_formats::npy::read(&ran.bytes).unwrap().as_slice::<f32>().unwrap(),
        [1.0, 2.0, 3.0]
    );
}

#[test]
fn dtypes_promote_and_ones_broadcast() {
    let p = Place::new();
    p.npy("i.npy", &HostTensor::from_slice(&[1, 2], &[10i32, 20]).unwrap());
    p.npy(
        "f.npy",
        &HostTensor::from_slice(&[3, 2], &[0.5f64, 1.0, 1.5, 2.0, 2.5, 3.0]).unwrap(),
    );
    p.run(&["einsum", "ij,ij->i", "i.npy", "f.npy", "--output", "c.npy"])
        .code(0);
    let c = p.read("c.npy");
    assert_eq!(c.dtype(), DType::F64);
    assert_eq!(c.as_slice::<f64>().unwrap(), [25.0, 55.0, 85.0]);
}

#[test]
fn a_malformed_expression_is_shown_with_a_caret() {
    let p = Place::new();
    p.f32s("a.npy", &[2, 3], &[0.0; 6]);
    let ran = p.run(&["einsum", "i>->i", "a.npy"]).code(3);
    assert!(
        ran.first_error().starts_with("error: EXPR:1:2: unexpected '>'"),
        "{}",
        ran.err
    );
    assert!(ran.err.contains("1 | i>->i\n  |  ^"), "{}", ran.err);
    let ran = p.run(&["einsum", "ij,ij->i", "a.npy"]).code(3);
    assert!(ran.first_error().starts_with("error: EXPR"), "{}", ran.err);
    p.f32s("b.npy", &[4, 3], &[0.0; 12]);
    let ran = p.run(&["einsum", "ij,ij->i", "a.npy", "b.npy"]).code(3);
    assert!(
        ran.first_error().contains('2') && ran.first_error().contains('4'),
        "{}",
        ran.err
    );
    p.run(&["einsum", "ij"]).code(2);
}

#[test]
fn an_expression_may_begin_with_an_arrow() {
    let p = Place::new();
    p.f32s("s.npy", &[], &[7.5]);
    let ran = p.run(&["einsum", "->", "s.npy"]).code(0);
    assert!(ran.out.starts_with("result: f32[]  min 7.5"), "{}", ran.out);
    p.run(&["einsum", "--output", "c.npy", "->", "s.npy"]).code(0);
    assert_eq!(p.read("c.npy").get(0).as_f64(), 7.5);
    p.run(&["einsum", "->", "s.npy", "-o", "d.npy", "--threads", "1"])
        .code(0);
    assert_eq!(p.read("d.npy").get(0).as_f64(), 7.5);
    // What is neither an option nor an expression stays wrong usage.
    p.run(&["einsum", "--outptu", "c.npy", "->", "s.npy"]).code(2);
    p.run(&["einsum", "-x", "s.npy"]).code(2);
}

#[test]
fn labels_beyond_letters_are_taken() {
    let p = Place::new();
    p.f32s("a.npy", &[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    p.f32s("b.npy", &[3, 2], &[1.0, 0.0, 0.0, 1.0, 1.0, 1.0]);
    // opt_einsum's labels 75 and 107 are `×` and `÷`; digits and control characters are labels there too.
    for expression in ["i×,×÷->i÷", "12,23->13", "\u{1b}\t,\t@->\u{1b}@", "αb,bж->αж"] {
        let ran = p
            .run(&["einsum", expression, "a.npy", "b.npy", "--output", "c.npy"])
            .code(0);
        assert_eq!(
            p.read("c.npy").as_slice::<f32>().unwrap(),
            [4.0, 5.0, 10.0, 11.0],
            "{expression}"
        );
        assert!(!ran.err.contains(['\u{1b}', '\t']), "{:?}", ran.err);
    }
}

#[test]
fn a_memory_limit_that_no_path_obeys_is_a_resource_limit() {
    let p = Place::new();
    let zeros = HostTensor::zeros(DType::F32, &[64, 64]).unwrap();
    p.npy("a.npy", &zeros);
    let args = [
        "einsum",
        "ab,bc,cd,da->",
        "a.npy",
        "a.npy",
        "a.npy",
        "a.npy",
        "--max-memory",
    ];
    let ran = p.run(&[&args[..], &["16640"]].concat());
    assert!(ran.code == 0 || ran.code == 5, "{}", ran.err);
    let ran = p.run(&[&args[..], &["1KiB"]].concat()).code(5);
    assert!(ran.first_error().starts_with("error: "), "{}", ran.err);
}

#[test]
fn a_graph_without_outputs_is_invalid() {
    let p = Place::new();
    p.write(
        "nothing.tlir",
        "graph @nothing(%a: f32[2]) {\n  %0 = neg %a : f32[2]\n  return\n}\n",
    );
    for (command, code) in [
        // A check that failed.
        (&["check", "nothing.tlir"][..], 1),
        (&["run", "nothing.tlir", "--input", "a=random"], 3),
        (&["explain", "nothing.tlir"], 3),
        (&["bench", "nothing.tlir"], 3),
        (&["export", "--onnx", "nothing.tlir", "-o", "nothing.onnx"], 3),
    ] {
        let ran = p.run(command).code(code);
        assert!(
            ran.err.contains("the graph has no outputs; expected at least one"),
            "{command:?}: {}",
            ran.err
        );
    }
}
