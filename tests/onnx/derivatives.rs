//! Derivatives of imported models at corners. Expected are the values of PyTorch, or those of the formula.

use std::sync::Arc;

use tlc::onnx::{ImportOptions, Imported, import};
use tlc::{Graph, HostTensor, Tensor, grad};

use crate::proto::*;

/// A model of f32 with a result `y`.
fn model_with(version: i64, nodes: Vec<Message>, constants: Vec<Message>, inputs: Vec<Message>, y: &[D]) -> Vec<u8> {
    model_of(
        version,
        graph(nodes, constants, inputs, vec![value("y", FLOAT, y)]),
        vec![],
    )
}

fn f32s(shape: &[usize], data: &[f32]) -> HostTensor {
    HostTensor::from_slice(shape, data).expect("a tensor")
}

fn values(t: &Tensor) -> Vec<f32> {
    t.eval().expect("it runs").as_slice::<f32>().expect("f32").to_vec()
}

/// The result, and the derivatives of the sum of its elements by the inputs that are floats, of first and second order, with inputs of these
/// values.
fn derivatives(imported: Imported, inputs: &[HostTensor]) -> (Vec<f32>, Vec<Vec<f32>>, Vec<Vec<f32>>) {
    let g = Graph::default();
    let given: Vec<Tensor> = inputs.iter().map(|x| g.constant(x.clone())).collect();
    let all: Vec<&Tensor> = given.iter().collect();
    let y = g.record_ir(&Arc::new(imported.graph), &[], &all).remove(0);
    let floats: Vec<&Tensor> = given.iter().filter(|x| x.dtype().is_float()).collect();
    let first = grad(&y.sum(..), &floats);
    let mut second = vec![];
    for (x, d) in floats.iter().zip(&first) {
        second.push(values(&grad(&d.sum(..), &[x])[0]));
    }
    (values(&y), first.iter().map(values).collect(), second)
}

fn plain(bytes: &[u8]) -> Imported {
    import(bytes, &ImportOptions::default()).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn a_fill_that_is_computed_has_a_derivative() {
    // The fill is v * v; a negative pad takes an element away.
    let nodes = vec![op("Mul v v -> w", &[]), op("Pad x p w -> y", &[])];
    let inputs = vec![value("x", FLOAT, &[D::N(3)]), value("v", FLOAT, &[])];
    let bytes = model_with(17, nodes, vec![ints("p", &[2], &[2, -1])], inputs, &[D::N(4)]);
    let (y, first, second) = derivatives(plain(&bytes), &[f32s(&[3], &[1.0, 2.0, 4.0]), f32s(&[], &[3.0])]);
    assert_eq!(y, [9.0, 9.0, 1.0, 2.0]);
    assert_eq!(first, [vec![1.0, 1.0, 0.0], vec![12.0]]);
    assert_eq!(second, [vec![0.0; 3], vec![4.0]]);
    // One of another dtype, or of several elements.
    for (element, dims, found) in [
        (INT64, vec![], "operand 2 of i64; expected f32"),
        (FLOAT, vec![D::N(2)], "a fill of 2 elements"),
    ] {
        let inputs = vec![value("x", FLOAT, &[D::N(3)]), value("v", element, &dims)];
        let nodes = vec![op("Pad x p v -> y", &[])];
        let bytes = model_with(17, nodes, vec![ints("p", &[2], &[1, 0])], inputs, &[D::N(4)]);
        let error = import(&bytes, &ImportOptions::default())
            .map(|_| ())
            .expect_err("it is refused");
        assert!(error.to_string().contains(found), "{error}");
    }
}

#[test]
fn a_range_of_floats_has_the_derivatives_of_its_numbers() {
    let scalar = |name| value(name, FLOAT, &[]);
    let nodes = vec![op("Range s l d -> y", &[])];
    let bytes = model_with(
        17,
        nodes,
        vec![floats("l", &[], &[3.0])],
        vec![scalar("s"), scalar("d")],
        &[D::Sym("n")],
    );
    let known = |name: &str, _| Some(f32s(&[], &[if name == "s" { 0.25 } else { 1.5 }]));
    let options = ImportOptions {
        values: Some(&known),
        ..ImportOptions::default()
    };
    let imported = import(&bytes, &options).unwrap_or_else(|e| panic!("{e}"));
    let (y, first, _) = derivatives(imported, &[f32s(&[], &[0.25]), f32s(&[], &[1.5])]);
    assert_eq!(y, [0.25, 1.75]);
    assert_eq!(first, [[2.0], [1.0]]);
}

#[test]
fn a_branch_that_is_not_taken_has_no_part_in_derivatives() {
    // If(c) { sqrt(x) * v } else { if (c) { log(x) } else { x * x } }
    let branch = |nodes, y| graph(nodes, vec![], vec![], vec![value(y, FLOAT, &[D::N(2)])]);
    let either = |names: [&str; 2], then: Message, other: Message| {
        node("If", names[0], &["c"], &[names[1]])
            .message(5, graph_attribute("then_branch", then))
            .message(5, graph_attribute("else_branch", other))
    };
    let root = branch(vec![op("Sqrt x -> r", &[]), op("Mul r v -> t", &[])], "t");
    let inner = either(
        ["inner", "e"],
        branch(vec![op("Log x -> a", &[])], "a"),
        branch(vec![op("Mul x x -> b", &[])], "b"),
    );
    let nodes = vec![either(["outer", "y"], root, branch(vec![inner], "e"))];
    let inputs = vec![
        value("c", BOOL, &[]),
        value("x", FLOAT, &[D::N(2)]),
        value("v", FLOAT, &[D::N(2)]),
    ];
    let bytes = model_with(17, nodes, vec![], inputs, &[D::N(2)]);
    let run = |c: bool, x: [f32; 2]| {
        let c = HostTensor::from_slice(&[], &[c]).expect("a tensor");
        derivatives(plain(&bytes), &[c, f32s(&[2], &x), f32s(&[2], &[1.0, 1.0])])
    };
    let (y, first, second) = run(false, [0.0, 3.0]);
    assert_eq!(y, [0.0, 9.0]);
    assert_eq!(first, [[0.0, 6.0], [0.0, 0.0]]);
    assert_eq!(second, [[2.0, 2.0], [0.0, 0.0]]);
    let (y, first, second) = run(true, [4.0, 1.0]);
    assert_eq!(y, [2.0, 1.0]);
    assert_eq!(first, [[0.25, 0.5], [2.0, 1.0]]);
    assert_eq!(second, [[-1.0 / 32.0, -0.25], [0.0, 0.0]]);
}

/// torch.nn.functional.lp_pool2d takes NaN there; torch.linalg.vector_norm, which these are, has a derivative of 0.
#[test]
fn norms_of_zeros_have_no_derivative() {
    for p in [1, 2, 3] {
        let norm = |text: &str, more: &[(&str, A)], y: &[D]| {
            let nodes = vec![op(text, &[&[("p", A::I(p))], more].concat())];
            let inputs = vec![value("x", FLOAT, &[D::N(1), D::N(1), D::N(4)])];
            let bytes = model_with(18, nodes, vec![], inputs, y);
            derivatives(plain(&bytes), &[f32s(&[1, 1, 4], &[0.0, 0.0, 3.0, 0.0])])
        };
        let size = [("kernel_shape", A::Is(vec![2])), ("strides", A::Is(vec![2]))];
        let (y, first, _) = norm("LpPool x -> y", &size, &[D::N(1), D::N(1), D::N(2)]);
        assert!(y[0] == 0.0 && (y[1] - 3.0).abs() < 1e-6, "{p}: {y:?}");
        let d = &first[0];
        assert!(
            d[..2] == [0.0, 0.0] && (d[2] - 1.0).abs() < 1e-6 && d[3] == 0.0,
            "{p}: {d:?}"
        );
        let nodes = vec![op("GlobalLpPool x -> y", &[("p", A::I(p))])];
        let inputs = vec![value("x", FLOAT, &[D::N(1), D::N(1), D::N(2)])];
        let bytes = model_with(18, nodes, vec![], inputs, &[D::N(1), D::N(1), D::N(1)]);
        let (y, first, _) = derivatives(plain(&bytes), &[f32s(&[1, 1, 2], &[0.0, 0.0])]);
        assert_eq!((y, first), (vec![0.0], vec![vec![0.0, 0.0]]));
    }
}

/// torch.nn.functional.max_pool1d of two negative infinities: [2, 1] with padding on both sides, [2, 0] with padding before.
#[test]
fn padding_of_pools_has_no_derivative() {
    let low = f32::NEG_INFINITY;
    for (pads, windows, expected) in [(vec![1, 1], 3, [2.0, 1.0]), (vec![1, 0], 2, [2.0, 0.0])] {
        let settings = [("kernel_shape", A::Is(vec![2])), ("pads", A::Is(pads))];
        let nodes = vec![op("MaxPool x -> y", &settings)];
        let inputs = vec![value("x", FLOAT, &[D::N(1), D::N(1), D::N(2)])];
        let bytes = model_with(17, nodes, vec![], inputs, &[D::N(1), D::N(1), D::N(windows)]);
        let (_, first, _) = derivatives(plain(&bytes), &[f32s(&[1, 1, 2], &[low, low])]);
        assert_eq!(first, [expected]);
    }
}

/// The corner of a line that is bent at 0 is on the side of its slope, as in PyTorch (2.15).
#[test]
fn bent_lines_have_their_slope_at_zero() {
    let x = f32s(&[4], &[-2.0, -0.0, 0.0, 3.0]);
    let inputs = || vec![value("x", FLOAT, &[D::N(4)])];
    let bent = plain(&model_with(
        17,
        vec![op("PRelu x s -> y", &[])],
        vec![floats("s", &[1], &[0.25])],
        inputs(),
        &[D::N(4)],
    ));
    let (y, first, _) = derivatives(bent, std::slice::from_ref(&x));
    assert_eq!(y, [-0.5, -0.0, 0.0, 3.0]);
    assert_eq!(first, [[0.25, 0.25, 0.25, 1.0]]);
    let leaky = vec![op("LeakyRelu x -> y", &[("alpha", A::F(0.5))])];
    let leaky = plain(&model_with(17, leaky, vec![], inputs(), &[D::N(4)]));
    assert_eq!(derivatives(leaky, &[x]).1, [[0.5, 0.5, 0.5, 1.0]]);
}

#[test]
fn an_exponential_of_what_is_not_shown_has_no_part_in_a_derivative() {
    // Of 100 / 0.5 the exponential is infinite.
    let nodes = vec![op("Celu x -> y", &[("alpha", A::F(0.5))])];
    let inputs = vec![value("x", FLOAT, &[D::N(4)])];
    let bytes = model_with(12, nodes, vec![], inputs, &[D::N(4)]);
    let x = f32s(&[4], &[-200.0, 2.0, 100.0, f32::INFINITY]);
    let (y, first, second) = derivatives(plain(&bytes), &[x]);
    assert_eq!(y, [-0.5, 2.0, 100.0, f32::INFINITY]);
    assert_eq!(first, [vec![0.0, 1.0, 1.0, 1.0]]);
    assert_eq!(second, [vec![0.0; 4]]);
}
