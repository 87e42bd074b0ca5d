//! Random numbers of models: each node draws its own, in each iteration of a loop others.

use std::collections::HashSet;

use tlc::onnx::{ImportOptions, import};
use tlc::{CompileOptions, HostTensor, compile_ir};
use tlc_ir::interp::{Options, interpret};

use crate::proto::*;
use A::{F, I, Is};

/// The outputs of compiled code, the same on one and two threads, and within some roundings of the interpreter's.
fn run(model: &[u8]) -> Vec<HostTensor> {
    let graph = import(model, &ImportOptions::default()).unwrap().graph;
    let right = interpret(&graph, &[], &Options::default()).unwrap();
    let on = |threads: usize| -> Vec<HostTensor> {
        let options = CompileOptions {
            threads: Some(threads),
            ..CompileOptions::default()
        };
        let found = compile_ir(&graph, &options).unwrap().run(&[]).unwrap();
        found.iter().map(|o| o.to_host()).collect()
    };
    let found = on(1);
    assert_eq!(found, on(2));
    for (found, right) in found.iter().zip(&right) {
        assert_eq!(found.shape(), right.shape());
        for i in 0..found.len() {
            let (found, right) = (found.get(i).as_f64(), right.get(i).as_f64());
            assert!((found - right).abs() <= 2e-6, "element {i}: {found}, expected {right}");
        }
    }
    found
}

/// No number twice.
fn assert_distinct<'a>(all: impl IntoIterator<Item = &'a HostTensor>) {
    let mut seen = HashSet::new();
    for t in all {
        for value in t.as_slice::<f32>().unwrap() {
            assert!(seen.insert(value.to_bits()), "{value} twice");
        }
    }
    assert!(seen.len() > 1);
}

/// A loop of three iterations, each of which stacks what `nodes` make as `out`.
fn repeated(name: &'static str, nodes: Vec<Message>, to: &str) -> Message {
    let mut nodes = nodes;
    nodes.push(node("Identity", "", &["go"], &["still"]));
    let body = Message::default()
        .messages(1, nodes)
        .bytes(2, "body")
        .messages(11, [value("i", INT64, &[]), value("go", BOOL, &[])])
        .messages(12, [value("still", BOOL, &[]), value("out", FLOAT, &[])]);
    node("Loop", name, &["n", ""], &[to]).messages(5, [graph_attribute("body", body)])
}

fn shape() -> (&'static str, A) {
    ("shape", Is(vec![8]))
}

fn uniform(to: &str, attributes: &[(&str, A)]) -> Message {
    let mut all = vec![shape()];
    all.extend(attributes.iter().cloned());
    op(&format!("RandomUniform -> {to}"), &all)
}

fn model_with(nodes: Vec<Message>, outputs: &[&str]) -> Vec<u8> {
    let outputs = outputs.iter().map(|name| value(name, FLOAT, &[])).collect();
    let given = vec![ints("n", &[], &[3]), floats("half", &[8], &[0.5; 8])];
    model(graph(nodes, given, vec![], outputs), vec![])
}

#[test]
fn a_loop_in_a_model_draws_other_numbers_in_each_iteration() {
    let normal = |to: &str| op(&format!("RandomNormalLike half -> {to}"), &[]);
    let nested = repeated("inner", vec![uniform("out", &[])], "all");
    let flat = node("Reshape", "", &["all", "minus"], &["out"]);
    let minus = node("Constant", "", &[], &["minus"]).message(5, {
        let list = ints("", &[1], &[-1]);
        Message::default().bytes(1, "value").message(5, list).int(20, 4)
    });
    let found = run(&model_with(
        vec![
            uniform("before", &[]),
            repeated("uniform", vec![uniform("out", &[])], "first"),
            repeated("normal", vec![normal("out")], "second"),
            repeated("outer", vec![nested, minus, flat], "third"),
            uniform("behind", &[]),
        ],
        &["before", "first", "second", "third", "behind"],
    ));
    let shapes: Vec<&[usize]> = found.iter().map(|t| t.shape()).collect();
    assert_eq!(shapes, [&[8][..], &[3, 8], &[3, 8], &[3, 24], &[8]]);
    assert_distinct(&found);
}

#[test]
fn a_seed_of_a_node_in_a_loop_gives_other_numbers_in_each_iteration_and_the_same_in_each_run() {
    let of = |seed: f32| {
        let nodes = vec![repeated("loop", vec![uniform("out", &[("seed", F(seed))])], "all")];
        run(&model_with(nodes, &["all"])).remove(0)
    };
    assert_distinct([&of(1.0), &of(2.0)]);
    assert_eq!(of(1.0), of(1.0));
}

#[test]
fn a_bernoulli_in_a_loop_differs_between_iterations() {
    let drawn = op("Bernoulli many -> out", &[("dtype", I(FLOAT))]);
    let many = op(
        "RandomUniform -> many",
        &[("shape", Is(vec![64])), ("low", F(0.5)), ("high", F(0.5))],
    );
    let found = run(&model_with(vec![repeated("loop", vec![many, drawn], "all")], &["all"]));
    let rows: HashSet<Vec<u32>> = found[0]
        .as_slice::<f32>()
        .unwrap()
        .chunks(64)
        .map(|row| row.iter().map(|v| v.to_bits()).collect())
        .collect();
    assert_eq!(rows.len(), 3);
}

#[test]
fn a_node_that_is_added_leaves_the_numbers_of_the_others() {
    let draws = |more: bool| {
        let mut nodes = vec![uniform("a", &[])];
        if more {
            nodes.push(uniform("b", &[]));
            nodes.push(repeated("more", vec![uniform("out", &[])], "c"));
        }
        nodes.push(repeated("loop", vec![uniform("out", &[])], "d"));
        nodes.push(uniform("e", &[]));
        run(&model_with(nodes, &["a", "d", "e"]))
    };
    assert_eq!(draws(false), draws(true));
}

#[test]
fn a_model_without_a_graph_or_without_outputs_is_invalid() {
    let none = model_with(vec![uniform("a", &[])], &[]);
    let empty = Message::default().int(1, 8).message(8, opset("", 17)).0;
    for (model, expected) in [
        (none, "the graph has no outputs; expected at least one"),
        (empty, "no graph; expected an ONNX model"),
    ] {
        let error = import(&model, &ImportOptions::default()).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        assert_eq!(error.kind(), tlc_formats::ErrorKind::Invalid);
    }
}
