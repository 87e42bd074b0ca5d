//! Models in which sizes decide the rank of a value: axes that go where they have one element, and branches on a size.

use tlc::onnx::{ImportOptions, import};
use tlc::{HostTensor, inputs};
use tlc_formats::ErrorKind;

use crate::proto::A::I;
use crate::proto::*;
use crate::steering::File;

fn tensor(shape: &[usize]) -> HostTensor {
    let data: Vec<f32> = (0..shape.iter().product()).map(|i: usize| i as f32 - 2.0).collect();
    HostTensor::from_slice(shape, &data).expect("a tensor")
}

fn elements(t: &HostTensor) -> Vec<f32> {
    t.as_slice::<f32>().expect("f32").to_vec()
}

fn branch(nodes: Vec<Message>, constants: Vec<Message>) -> Message {
    graph(nodes, constants, vec![], vec![result("r")])
}

fn chosen(condition: &str, then: Message, otherwise: Message, to: &str) -> Message {
    node("If", "choose", &[condition], &[to])
        .message(5, graph_attribute("then_branch", then))
        .message(5, graph_attribute("else_branch", otherwise))
}

/// `x.squeeze(axis)` as tracing of PyTorch writes it: an axis of one element goes, any other stays.
fn squeezed(x: &str, axis: i64, to: &str) -> Vec<Message> {
    let there = branch(
        vec![node("Squeeze", "squeeze", &[x, "gone"], &["r"])],
        vec![ints("gone", &[1], &[axis])],
    );
    let else_all = branch(vec![node("Identity", "all", &[x], &["r"])], vec![]);
    vec![
        node("Shape", "shape", &[x], &["s"]),
        node("Gather", "extent", &["s", "axis"], &["n"]),
        node("Equal", "is_one", &["n", "one"], &["c"]),
        chosen("c", there, else_all, to),
    ]
}

fn constants(axis: i64) -> Vec<Message> {
    vec![ints("axis", &[], &[axis]), ints("one", &[], &[1])]
}

#[test]
fn squeeze_without_axes_removes_what_has_one_element_in_a_call() {
    // The sum along the first axis that is left tells which that is.
    let nodes = vec![
        op("Squeeze x -> y", &[]),
        op("ReduceSum y first -> s", &[("keepdims", I(0))]),
    ];
    let inputs = vec![value("x", FLOAT, &[D::Sym("b"), D::N(1), D::Sym("n")])];
    let outputs = vec![result("y"), result("s")];
    let of = graph(nodes, vec![ints("first", &[1], &[0])], inputs, outputs);
    let model = File::new("squeeze", &model(of, vec![])).open().expect("it opens");
    for _ in 0..2 {
        for (b, n, y, s) in [
            (3usize, 4usize, &[3usize, 4][..], &[4usize][..]),
            (1, 4, &[4], &[]),
            (5, 1, &[5], &[]),
            (2, 2, &[2, 2], &[2]),
        ] {
            let x = tensor(&[b, 1, n]);
            let found = model.run(&inputs![&x]).expect("it runs");
            assert_eq!(found[0].shape(), y);
            assert_eq!(found[1].shape(), s);
            assert_eq!(elements(&found[0].to_host()), elements(&x));
            let all: f32 = elements(&found[1].to_host()).iter().sum();
            assert_eq!(all, elements(&x).iter().sum::<f32>());
        }
    }
}

/// What data decides is known when a call is under way: of one element it is refused there.
#[test]
fn squeeze_without_axes_of_what_data_decides_is_right_or_refused() {
    let nodes = vec![op("NonZero x -> all", &[]), op("Squeeze all -> y", &[])];
    let inputs = vec![value("x", FLOAT, &[D::Sym("n")])];
    let bytes = model(graph(nodes, vec![], inputs, vec![result("y")]), vec![]);
    let model = File::new("places", &bytes).open().expect("it opens");
    for x in [&[1.0f32, 0.0, 2.0][..], &[0.0, 0.0], &[3.0, 1.0, 1.0, 1.0]] {
        let x = HostTensor::from_slice(&[x.len()], x).expect("a tensor");
        let places: Vec<i64> = (0..)
            .zip(elements(&x))
            .filter(|(_, v)| *v != 0.0)
            .map(|(i, _)| i)
            .collect();
        let y = model.run(&inputs![&x]).expect("it runs");
        assert_eq!(y[0].shape(), [places.len()]);
        assert_eq!(y[0].to_host().as_slice::<i64>().expect("i64"), places);
    }
    let one = HostTensor::from_slice(&[3], &[0.0f32, 5.0, 0.0]).expect("a tensor");
    let refused = model.run(&inputs![&one]).expect_err("of rank 0").to_string();
    assert!(refused.contains("the graph needs"), "{refused}");
}

/// In the body of a loop the sizes are those of the graph around it.
#[test]
fn squeeze_without_axes_in_a_body_removes_what_has_one_element_in_a_call() {
    let body = graph(
        vec![
            op("Squeeze x -> r", &[]),
            op("Identity go -> again", &[]),
            op("Identity s -> t", &[]),
        ],
        vec![],
        vec![value("i", INT64, &[]), value("go", BOOL, &[]), value("s", FLOAT, &[])],
        vec![result("again"), result("t"), result("r")],
    );
    let nodes = vec![node("Loop", "loop", &["two", "", "zero"], &["s", "y"]).message(5, graph_attribute("body", body))];
    let constants = vec![ints("two", &[], &[2]), floats("zero", &[], &[0.0])];
    let inputs = vec![value("x", FLOAT, &[D::Sym("a"), D::Sym("b")])];
    let bytes = model(graph(nodes, constants, inputs, vec![result("y")]), vec![]);
    let model = File::new("body", &bytes).open().expect("it opens");
    for (a, b, shape) in [
        (2usize, 3usize, &[2usize, 2, 3][..]),
        (1, 3, &[2, 3]),
        (3, 1, &[2, 3]),
        (1, 1, &[2]),
    ] {
        let x = tensor(&[a, b]);
        let y = model.run(&inputs![&x]).expect("it runs");
        assert_eq!(y[0].shape(), shape);
        assert_eq!(elements(&y[0].to_host()), [elements(&x), elements(&x)].concat());
    }
}

/// An extent that is at least 2 asks nothing.
#[test]
fn an_axis_that_cannot_have_one_element_stays_without_a_guard() {
    let nodes = vec![
        op("Concat x two -> more", &[("axis", I(0))]),
        op("Squeeze more -> y", &[]),
    ];
    let inputs = vec![value("x", FLOAT, &[D::Sym("b"), D::N(1)])];
    let imported = import(
        &model(
            graph(
                nodes,
                vec![floats("two", &[2, 1], &[1.0, 2.0])],
                inputs,
                vec![result("y")],
            ),
            vec![],
        ),
        &ImportOptions::default(),
    )
    .expect("it is imported");
    assert!(imported.graph.guards().is_empty(), "{:?}", imported.graph.guards());
    assert_eq!(imported.graph.ty(imported.graph.outputs()[0].node).rank(), 1);
}

/// Behind it stands what takes one rank: the other is assumed at first, and the model imported again.
#[test]
fn a_branch_on_a_size_whose_rank_the_rest_of_the_model_decides() {
    let mut nodes = squeezed("x", 2, "v");
    nodes.push(op("Gemm v w -> y", &[]));
    let mut all = constants(2);
    all.push(floats("w", &[3, 2], &[1.0, 0.0, 0.0, 1.0, 1.0, 1.0]));
    let inputs = vec![value("x", FLOAT, &[D::Sym("b"), D::N(3), D::Sym("t")])];
    let bytes = model(graph(nodes, all, inputs, vec![result("y")]), vec![]);
    let file = File::new("gemm", &bytes);
    let model = file.open().expect("it opens");
    let y = model.run(&inputs![&tensor(&[2, 3, 1])]).expect("it runs");
    assert_eq!(
        (y[0].shape(), elements(&y[0].to_host())),
        (&[2usize, 2][..], vec![-2.0, -1.0, 4.0, 5.0])
    );
    // With another size it is no model, and the message says what the branch that is taken needs.
    let refused = model
        .run(&inputs![&tensor(&[2, 3, 4])])
        .expect_err("of rank 3")
        .to_string();
    assert!(refused.contains("needs t = 1"), "{refused}");
}

/// Of several, where what decides them comes last.
#[test]
fn several_branches_whose_ranks_the_end_of_the_model_decides() {
    const SIZES: [&str; 7] = ["a", "b", "c", "d", "e", "f", "g"];
    for of_one in [7, 0, 6, 1] {
        let (mut nodes, mut ends, mut inputs) = (vec![], vec![], vec![]);
        for (k, n) in SIZES.into_iter().enumerate() {
            let (x, v) = (format!("x{n}"), format!("v{n}"));
            let names = ["s", "n", "c"].map(|name| format!("{name}{n}"));
            let [s, extent, c] = names.each_ref().map(String::as_str);
            let there = branch(
                vec![node("Squeeze", "squeeze", &[x.as_str(), "gone"], &["r"])],
                vec![ints("gone", &[1], &[2])],
            );
            let all = branch(vec![node("Identity", "all", &[x.as_str()], &["r"])], vec![]);
            nodes.extend([
                node("Shape", s, &[x.as_str()], &[s]),
                node("Gather", extent, &[s, "axis"], &[extent]),
                node("Equal", c, &[extent, "one"], &[c]),
                chosen(c, there, all, &v),
            ]);
            // What takes a matrix, or any matrices.
            let last = if k < of_one { "Gemm" } else { "MatMul" };
            let w = if k < of_one { "w" } else { "u" };
            ends.push(op(&format!("{last} {v} {w} -> y{n}"), &[]));
            inputs.push(value(&x, FLOAT, &[D::N(2), D::N(3), D::Sym(n)]));
        }
        nodes.extend(ends);
        let mut all = constants(2);
        all.push(floats("w", &[3, 1], &[1.0; 3]));
        all.push(floats("u", &[4, 1], &[1.0; 4]));
        let outputs = SIZES.iter().map(|n| result(&format!("y{n}"))).collect();
        let bytes = model(graph(nodes, all, inputs, outputs), vec![]);
        let model = File::new(&format!("ends{of_one}"), &bytes).open().expect("it opens");
        let given: Vec<HostTensor> = (0..7)
            .map(|k| tensor(&[2, 3, if k < of_one { 1 } else { 4 }]))
            .collect();
        let given: Vec<tlc::Input<'_>> = given.iter().map(Into::into).collect();
        let y = model.run(&given).expect("it runs");
        for (k, y) in y.iter().enumerate() {
            let shape = if k < of_one { &[2usize, 1][..] } else { &[2, 3, 1] };
            assert_eq!(y.shape(), shape, "{k} of {of_one}");
        }
    }
}

/// Where either rank will do, each call has the one of its sizes.
#[test]
fn a_branch_on_a_size_of_which_both_are_models() {
    for axis in [0, 1] {
        let mut nodes = squeezed("x", axis, "v");
        nodes.push(op("Relu v -> y", &[]));
        let inputs = vec![value("x", FLOAT, &[D::Sym("a"), D::Sym("b")])];
        let bytes = model(graph(nodes, constants(axis), inputs, vec![result("y")]), vec![]);
        let model = File::new(&format!("either{axis}"), &bytes).open().expect("it opens");
        for (a, b) in [(3usize, 2usize), (1, 4), (4, 1), (1, 1), (2, 5)] {
            let mut shape = vec![a, b];
            if shape[axis as usize] == 1 {
                shape.remove(axis as usize);
            }
            let x = tensor(&[a, b]);
            let y = model.run(&inputs![&x]).expect("it runs");
            assert_eq!(y[0].shape(), shape);
            let relu: Vec<f32> = elements(&x).iter().map(|v| v.max(0.0)).collect();
            assert_eq!(elements(&y[0].to_host()), relu);
        }
    }
}

/// Conditions of several comparisons, one of which may hold for most sizes.
#[test]
fn conditions_of_several_comparisons_of_sizes() {
    let shape = |k: i64, to: &str| {
        let at = format!("at{k}");
        (
            node("Gather", to, &["s", at.as_str()], &[to]),
            ints(at.as_str(), &[], &[k]),
        )
    };
    for (text, holds) in [
        ("And", (|a, b| a > 2 && b <= 3) as fn(usize, usize) -> bool),
        ("Or", |a, b| a > 2 || b <= 3),
        ("Xor", |a, b| (a > 2) != (b <= 3)),
    ] {
        let ((a, at0), (b, at1)) = (shape(0, "a"), shape(1, "b"));
        let first = branch(vec![op("ReduceSum x zero -> r", &[("keepdims", I(0))])], vec![]);
        let all = branch(vec![node("Identity", "all", &["x"], &["r"])], vec![]);
        let nodes = vec![
            node("Shape", "shape", &["x"], &["s"]),
            a,
            b,
            op("Greater a two -> p", &[]),
            op("LessOrEqual b three -> q", &[]),
            op(&format!("{text} p q -> c"), &[]),
            op("Not c -> d", &[]),
            op("Not d -> e", &[]),
            chosen("e", first, all, "y"),
        ];
        let constants = vec![
            at0,
            at1,
            ints("two", &[], &[2]),
            ints("three", &[], &[3]),
            ints("zero", &[1], &[0]),
        ];
        let inputs = vec![value("x", FLOAT, &[D::Sym("a"), D::Sym("b")])];
        let bytes = model(graph(nodes, constants, inputs, vec![result("y")]), vec![]);
        let model = File::new(&format!("several{text}"), &bytes).open().expect("it opens");
        for (a, b) in [(1usize, 2usize), (3, 2), (1, 5), (4, 6), (2, 3), (3, 3), (2, 4)] {
            let y = model.run(&inputs![&tensor(&[a, b])]).expect("it runs");
            let shape = if holds(a, b) { vec![b] } else { vec![a, b] };
            assert_eq!(y[0].shape(), shape, "{text} of {a} and {b}");
        }
    }
}

/// A size that one of two others is, by a comparison: `Where` of sizes is one.
#[test]
fn sizes_that_a_comparison_chooses() {
    let nodes = vec![
        node("Shape", "of_x", &["x"], &["s"]),
        node("Shape", "of_z", &["z"], &["t"]),
        op("Less s t -> c", &[]),
        op("Where c t s -> longer", &[]),
        node("Expand", "expand", &["v", "longer"], &["y"]),
    ];
    let inputs = vec![
        value("x", FLOAT, &[D::Sym("n")]),
        value("z", FLOAT, &[D::Sym("m")]),
        value("v", FLOAT, &[D::N(1)]),
    ];
    let bytes = model(graph(nodes, vec![], inputs, vec![result("y")]), vec![]);
    let model = File::new("longer", &bytes).open().expect("it opens");
    for (n, m) in [(2, 5), (5, 2), (3, 3), (1, 2)] {
        let y = model
            .run(&inputs![&tensor(&[n]), &tensor(&[m]), &tensor(&[1])])
            .expect("it runs");
        assert_eq!(elements(&y[0].to_host()), vec![-2.0; n.max(m)]);
    }
    assert_eq!(model.imports(), 1);
}

/// A model for two rates: which of the branches is taken an input says, and each is one for its own sizes alone.
#[test]
fn a_branch_that_is_no_model_for_the_sizes_of_a_call_and_is_not_taken() {
    let of = |width: i64, factor: f32| {
        let mut nodes = vec![op("Reshape x to -> p", &[])];
        nodes.extend(squeezed("p", 2, "v"));
        nodes.push(op("Gemm v w -> g", &[]));
        nodes.push(op("Mul g by -> r", &[]));
        let mut all = constants(2);
        all.extend([
            ints("to", &[3], &[1, width, -1]),
            floats("w", &[width, 1], &vec![1.0; width as usize]),
            floats("by", &[], &[factor]),
        ]);
        branch(nodes, all)
    };
    let nodes = vec![
        op("Equal rate high -> is_high", &[]),
        chosen("is_high", of(6, 1.0), of(3, 10.0), "y"),
    ];
    let inputs = vec![value("x", FLOAT, &[D::Sym("n")]), value("rate", INT64, &[])];
    let bytes = model(
        graph(nodes, vec![ints("high", &[], &[16])], inputs, vec![result("y")]),
        vec![],
    );
    let model = File::new("rates", &bytes).open().expect("it opens");
    for _ in 0..2 {
        let y = model.run(&inputs![&tensor(&[6]), 16i64]).expect("it runs");
        assert_eq!((y[0].shape(), elements(&y[0].to_host())), (&[1usize, 1][..], vec![3.0]));
        let y = model.run(&inputs![&tensor(&[3]), 8i64]).expect("it runs");
        assert_eq!(
            (y[0].shape(), elements(&y[0].to_host())),
            (&[1usize, 1][..], vec![-30.0])
        );
    }
    assert!(model.run(&inputs![&tensor(&[6]), 8i64]).is_err());
    assert!(model.run(&inputs![&tensor(&[4]), 16i64]).is_err());
}

/// What no assumption makes a model is refused once, for what the import found first.
#[test]
fn many_ranks_that_fit_nothing_are_refused() {
    const SIZES: [&str; 12] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"];
    let mut nodes = vec![];
    let mut inputs = vec![];
    for n in SIZES {
        nodes.push(op(&format!("Squeeze x{n} -> v{n}"), &[]));
        nodes.push(op(&format!("Relu v{n} -> y{n}"), &[]));
        inputs.push(value(&format!("x{n}"), FLOAT, &[D::Sym(n), D::N(1)]));
    }
    nodes.push(op("NoSuchOperator yd -> y", &[]));
    let refused = import(
        &model(graph(nodes, vec![], inputs, vec![result("y")]), vec![]),
        &ImportOptions::default(),
    )
    .expect_err("no such operator");
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    assert!(refused.to_string().contains("NoSuchOperator"), "{refused}");
}
