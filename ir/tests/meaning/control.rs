//! Loops, calls and sizes that data decides: what the parser and the verifier refuse, and where the interpreter stops.

use tlc_ir::graph::verify::verify;
use tlc_ir::graph::{HostFunction, NodeKind, Origin, TensorType};
use tlc_ir::interp::{InterpError, Options, compare, interpret, interpret_with_bounds};
use tlc_ir::text::{no_data, parse_graph};
use tlc_ir::{DType, Graph, HostTensor};

/// A loop with its parts replaced.
fn text(changes: &[(&str, &str)]) -> String {
    let mut text = "graph @g(%x: f32[3, 4], %h: f32[4], %n: i64[], %c: bool[], %k: f32[2]) {
  %l = loop %h, %x {trip=3, carried=1, slices=[0], stacks=[1]} body @b(%i: i64[], %h: f32[4], %x: f32[4]) {
    %0 = add %h, %x : f32[4]
    return %0, %h
  } : (f32[4], f32[4, 3])
  %p = project %l {result=0} : f32[4]
  return %p
}
"
    .to_string();
    for (from, to) in changes {
        assert!(text.contains(from), "{from}");
        text = text.replace(from, to);
    }
    text
}

#[test]
fn a_loop_that_does_not_fit_is_one_error_at_its_place() {
    assert!(parse_graph(&text(&[]), &mut no_data).is_ok());
    let cases: &[(&[(&str, &str)], &str)] = &[
        (
            &[("trip=3, ", "")],
            "no end; expected a trip count, a count or a condition",
        ),
        (&[("trip=3", "trip=2")], "sliced operand 0"),
        (&[("slices=[0]", "slices=[2]")], "axis 2"),
        (&[("stacks=[1]", "stacks=[2]")], "axis 2 for elements of rank 1"),
        (&[("carried=1", "carried=2")], "operands for a body of"),
        (
            &[("loop %h, %x", "loop %k, %x")],
            "carried value 0 of f32[2]; expected f32[4]",
        ),
        (
            &[("loop %h, %x", "loop %h, %x, %k")],
            "3 operands for a body of 3 inputs",
        ),
        (
            &[("return %0, %h", "return %i, %h")],
            "carried value 0 becomes i64[]; expected f32[4]",
        ),
        (&[("return %0, %h", "return %0")], "a body of 1 outputs; expected 2"),
        (
            &[("(f32[4], f32[4, 3])", "(f32[4], f32[3, 4])")],
            "expected (f32[4], f32[4, 3])",
        ),
        (&[("add %h, %x", "add %h, %q")], "unknown value"),
        (&[("result=0", "result=2")], "result 2; expected one below 2"),
        (&[("project %l {result=0}", "neg %l")], "has several results"),
        (&[("return %p", "return %l")], "an output of several results"),
        (
            &[("project %l {result=0}", "project %h {result=0}")],
            "a node of one result",
        ),
        (&[("carried=1", "carried=1, conditional")], "expected"),
        (
            &[("body @b(%i: i64[]", "body @b(%i: i32[]")],
            "the body's first input i32[]; expected i64[]",
        ),
    ];
    for (changes, expected) in cases {
        let errors = parse_graph(&text(changes), &mut no_data).expect_err(expected);
        assert_eq!(errors.len(), 1, "{changes:?}: {errors:?}");
        assert!(
            errors[0].message.contains(expected),
            "{changes:?}: {}",
            errors[0].message
        );
    }
}

#[test]
fn loops_nest_boundedly_in_a_text() {
    let mut text = "graph @g(%h: f32[4]) {\n".to_string();
    for _ in 0..40 {
        text += "%l = loop %h {trip=1, carried=1} body @b(%i: i64[], %h: f32[4]) {\n";
    }
    let errors = parse_graph(&text, &mut no_data).unwrap_err();
    assert!(
        errors
            .iter()
            .any(|e| e.message.contains("loops and regions inside each other")),
        "{errors:?}"
    );
}

#[test]
fn a_condition_that_never_ends_a_loop_ends_the_interpretation() {
    let text = "graph @g(%h: i64[], %c: bool[]) {
  %l = loop %c, %h {conditional, carried=1} body @b(%i: i64[], %h: i64[]) {
    %0 = add %h, %i : i64[]
    %1 = const true : bool[]
    return %1, %0
  } : (i64[])
  %p = project %l {result=0} : i64[]
  return %p
}
";
    let graph = parse_graph(text, &mut no_data).unwrap();
    let options = Options {
        max_steps: Some(1000),
        ..Options::default()
    };
    let h = HostTensor::from_slice(&[], &[1i64]).unwrap();
    let go = |v| HostTensor::from_slice(&[], &[v]).unwrap();
    let error = interpret(&graph, &[h.clone(), go(true)], &options).unwrap_err();
    assert!(matches!(error, InterpError::Steps { limit: 1000, .. }), "{error}");
    assert_eq!(interpret(&graph, &[h.clone(), go(false)], &options).unwrap(), [h]);
}

#[test]
fn an_uncertain_condition_makes_the_results_uncertain() {
    // Whether exp(x) exceeds e decides; at x = 1 either is right.
    let text = "graph @g(%x: f32[], %h: f32[]) {
  %0 = exp %x : f32[]
  %1 = const 2.7182817 : f32[]
  %2 = lt %1, %0 : bool[]
  %l = loop %2, %h {trip=1, conditional, carried=1} body @b(%i: i64[], %h: f32[]) {
    %0 = neg %h : f32[]
    %1 = const true : bool[]
    return %1, %0
  } : (f32[])
  %p = project %l {result=0} : f32[]
  return %p
}
";
    let graph = parse_graph(text, &mut no_data).unwrap();
    let scalar = |v: f32| HostTensor::from_slice(&[], &[v]).unwrap();
    let run = |x: f32| interpret_with_bounds(&graph, &[scalar(x), scalar(4.0)], &Options::default()).unwrap();
    assert_eq!(run(1.0)[0].uncertain(), 1);
    assert_eq!(run(2.0)[0].uncertain(), 0);
    assert!(compare(&scalar(-4.0), &run(2.0)[0]).is_ok());
    assert!(compare(&scalar(4.0), &run(2.0)[0]).is_err());
}

#[test]
fn a_size_that_data_decides_has_one_call_and_no_use_before_it() {
    let mut g = Graph::new("g");
    let x = g
        .add_input("x", TensorType::new(DType::I64, [4i64]), Origin::Unknown)
        .unwrap();
    let count = g.add_data_symbol("k", 4.into());
    let call = NodeKind::Call(HostFunction::NonZero { count });
    let first = g.add(call.clone(), &[x], Origin::Unknown).unwrap();
    let y = g
        .add(NodeKind::Map(tlc_ir::ScalarOp::Neg), &[x], Origin::Unknown)
        .unwrap();
    let places = g.add(NodeKind::Project(0), &[first], Origin::Unknown).unwrap();
    g.add_output("y", places);
    assert!(verify(&g).is_empty());
    g.add(call, &[y], Origin::Unknown).unwrap();
    let errors: Vec<String> = verify(&g).iter().map(ToString::to_string).collect();
    assert!(
        errors.len() == 1 && errors[0].contains("is bound by a call above"),
        "{errors:?}"
    );

    let mut g = Graph::new("g");
    let count = g.add_data_symbol("k", 4.into());
    let x = g
        .add_input("x", TensorType::new(DType::I64, [count]), Origin::Unknown)
        .unwrap();
    g.add_output("x", x);
    let errors: Vec<String> = verify(&g).iter().map(ToString::to_string).collect();
    assert!(
        errors.len() == 1 && errors[0].contains("is used before a call binds it"),
        "{errors:?}"
    );

    // Too small a bound would let the result leave its buffer.
    let mut g = Graph::new("g");
    let x = g
        .add_input("x", TensorType::new(DType::I64, [4i64]), Origin::Unknown)
        .unwrap();
    let count = g.add_data_symbol("k", 3.into());
    let error = g
        .add(NodeKind::Call(HostFunction::NonZero { count }), &[x], Origin::Unknown)
        .unwrap_err();
    assert!(
        error.to_string().contains("a count of at most 3; expected 4"),
        "{error}"
    );
}
