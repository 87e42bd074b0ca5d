//! One graph per verifier error, pushed without the builder's checks.

use smallvec::smallvec;
use tlc_ir::dtype::Scalar;
use tlc_ir::graph::verify::verify;
use tlc_ir::graph::{Graph, Monoid, Node, NodeId, NodeKind, Origin, ScatterOp, Semiring, TensorType, View};
use tlc_ir::{DType, IndexExpr, ScalarOp, SymId};

fn ty(dtype: DType, shape: &[i64]) -> TensorType {
    TensorType::new(dtype, shape.iter().copied())
}

/// A graph with `%x: f32[2, 3]`, `%i: i64[2]`, `%p: bool[2, 3]`, `%k: u64[]`.
fn base() -> Graph {
    let mut g = Graph::new("bad");
    for (name, t) in [
        ("x", ty(DType::F32, &[2, 3])),
        ("i", ty(DType::I64, &[2])),
        ("p", ty(DType::Bool, &[2, 3])),
        ("k", ty(DType::U64, &[])),
    ] {
        g.add_input(name, t, Origin::Unknown).unwrap();
    }
    g.add_output("base", X);
    g
}

const X: NodeId = NodeId(0);
const I: NodeId = NodeId(1);
const P: NodeId = NodeId(2);
const K: NodeId = NodeId(3);

fn push(g: &mut Graph, kind: NodeKind, operands: &[NodeId], t: TensorType) -> NodeId {
    g.push_unchecked(Node::new(kind, operands.into(), t, Origin::Unknown))
}

/// The graph's only error.
fn only_error(g: &Graph) -> String {
    let errors = verify(g);
    assert_eq!(errors.len(), 1, "{errors:?}");
    let _ = g.to_string(); // Even this must print.
    errors[0].to_string()
}

/// The error of one node over the base graph. The builder must refuse it with the same words.
fn node_error(kind: NodeKind, operands: &[NodeId]) -> String {
    let mut g = base();
    push(&mut g, kind.clone(), operands, ty(DType::F32, &[2, 3]));
    let found = only_error(&g);
    if operands.iter().all(|o| o.0 < 4) {
        let refused = base().add(kind, operands, Origin::Unknown).unwrap_err();
        assert!(found.contains(&refused.problem), "{found} / {refused}");
    }
    found
}

fn einsum(labels: &[&[u16]], output: &[u16]) -> NodeKind {
    NodeKind::Einsum {
        inputs: labels.iter().map(|l| l.iter().copied().collect()).collect(),
        output: output.iter().copied().collect(),
        semiring: Semiring::AddMul,
        accumulator: DType::F32,
        dtype: DType::F32,
    }
}

fn pad(lo: &[i64], value: Scalar) -> NodeKind {
    NodeKind::View(View::Pad {
        lo: lo.iter().map(|&d| d.into()).collect(),
        hi: [IndexExpr::ZERO, IndexExpr::ZERO].into(),
        interior: [0; 2].into(),
        value,
    })
}

fn slice(start: i64, step: i64, size: i64) -> NodeKind {
    NodeKind::View(View::Slice {
        start: [start.into(), 0.into()].into(),
        step: [step, 1].into(),
        size: [size.into(), 3.into()].into(),
    })
}

fn window(axis: u8, size: i64, stride: i64) -> NodeKind {
    NodeKind::View(View::Window {
        axis,
        size: size.into(),
        stride,
        dilation: 1,
    })
}

fn reduce(monoid: Monoid, axes: &[u8]) -> NodeKind {
    NodeKind::Reduce {
        monoid,
        axes: axes.iter().copied().collect(),
    }
}

fn scan(monoid: Monoid, axis: u8) -> NodeKind {
    NodeKind::Scan {
        monoid,
        axis,
        exclusive: false,
        reverse: false,
    }
}

#[test]
fn every_rule_of_a_node_has_its_error() {
    let f = |v| Scalar::from_f64(DType::F32, v);
    let reshape = |d: &[i64]| NodeKind::View(View::Reshape(d.iter().map(|&d| d.into()).collect()));
    let expand = |d: &[i64]| NodeKind::View(View::Expand(d.iter().map(|&d| d.into()).collect()));
    let permute = |a: &[u8]| NodeKind::View(View::Permute(a.iter().copied().collect()));
    let gather = |a: &[u8]| NodeKind::Gather {
        axes: a.iter().copied().collect(),
    };
    let scatter = |op| NodeKind::Scatter { axes: smallvec![0], op };
    let or_and = NodeKind::Einsum {
        inputs: smallvec![smallvec![0, 1]],
        output: smallvec![0],
        semiring: Semiring::OrAnd,
        accumulator: DType::F32,
        dtype: DType::F32,
    };
    let cases: Vec<(NodeKind, Vec<NodeId>, &str)> = vec![
        (
            NodeKind::Map(ScalarOp::Exp),
            vec![NodeId(9)],
            "operand %9 is not defined before it is used",
        ),
        (
            NodeKind::Map(ScalarOp::Exp),
            vec![NodeId(4)],
            "operand %4 is not defined before it is used",
        ),
        (NodeKind::Map(ScalarOp::Add), vec![X], "takes 2 operands, found 1"),
        (
            NodeKind::Map(ScalarOp::Add),
            vec![X, P],
            "dtypes f32, bool; expected operands of one dtype",
        ),
        (NodeKind::Map(ScalarOp::Exp), vec![I], "dtypes i64; expected floats"),
        (
            NodeKind::Map(ScalarOp::Select),
            vec![P, I, I],
            "ranks 2 and 1 differ; expected operands of one shape",
        ),
        (
            NodeKind::Iota {
                ty: ty(DType::Bool, &[2]),
                axis: 0,
            },
            vec![],
            "dtype bool; expected integers or floats",
        ),
        (
            NodeKind::Iota {
                ty: ty(DType::I32, &[2]),
                axis: 1,
            },
            vec![],
            "axis 1 of a tensor of rank 1",
        ),
        (
            NodeKind::Iota {
                ty: ty(DType::I32, &[-2]),
                axis: 0,
            },
            vec![],
            "extent -2 is negative",
        ),
        (
            NodeKind::Iota {
                ty: ty(DType::I32, &[1; 65]),
                axis: 0,
            },
            vec![],
            "rank 65; expected at most 64 axes",
        ),
        (
            NodeKind::Iota {
                ty: ty(DType::I32, &[1 << 40, 1 << 40]),
                axis: 0,
            },
            vec![],
            "the element count overflows",
        ),
        (
            NodeKind::Random {
                shape: smallvec![],
                stream: 0,
            },
            vec![X],
            "key f32[2, 3]; expected a key of u64[]",
        ),
        (
            NodeKind::Random {
                shape: smallvec![(1i64 << 33).into()],
                stream: 0,
            },
            vec![K],
            "expected at most 2^32",
        ),
        (
            NodeKind::Bitcast(DType::F16),
            vec![X],
            "f32 of 32 bits as f16; expected a dtype of 32 bits",
        ),
        (einsum(&[], &[]), vec![], "no operand"),
        (
            einsum(&[&[0]], &[0]),
            vec![X],
            "operand 0 has 1 labels and 2 axes; expected one label per axis",
        ),
        (
            einsum(&[&[1, 0]], &[0]),
            vec![X],
            "label 1 before label 0; expected labels numbered by first appearance",
        ),
        (einsum(&[&[0, 0]], &[0]), vec![X], "extents 2 and 3 of label 0 differ"),
        (einsum(&[&[0, 1]], &[0, 0]), vec![X], "label 0 twice in the output"),
        (einsum(&[&[0, 1]], &[2]), vec![X], "output label 2 is in no operand"),
        (or_and, vec![X], "semiring or-and with accumulator f32"),
        (
            reduce(Monoid::Add, &[0]),
            vec![P],
            "dtype bool; expected integers or floats",
        ),
        (
            reduce(Monoid::And, &[0]),
            vec![X],
            "dtype f32; expected bool or integers",
        ),
        (
            reduce(Monoid::Add, &[1, 0]),
            vec![X],
            "axes [1, 0]; expected ascending, distinct axes",
        ),
        (reduce(Monoid::Add, &[2]), vec![X], "axis 2 of a tensor of rank 2"),
        (
            reduce(Monoid::ArgMax, &[0, 1]),
            vec![X],
            "2 axes; expected exactly one axis",
        ),
        (scan(Monoid::Add, 2), vec![X], "axis 2 of a tensor of rank 2"),
        (scan(Monoid::ArgMin, 0), vec![X], "monoid argmin; expected one of add"),
        (reshape(&[7]), vec![X], "6 elements into [7]; expected as many elements"),
        (permute(&[0]), vec![X], "1 entries; expected one per axis, 2"),
        (permute(&[0, 0]), vec![X], "axes [0, 0]; expected each axis once"),
        (
            expand(&[3]),
            vec![X],
            "rank 2 to rank 1; expected at least as many axes",
        ),
        (
            expand(&[4, 3]),
            vec![X],
            "extent 2 of axis 0 to 4; expected 1 or an equal extent",
        ),
        (pad(&[1], f(0.0)), vec![X], "1 entries; expected one per axis, 2"),
        (pad(&[1, 0], DType::I8.zero()), vec![X], "fill of i8; expected f32"),
        (
            pad(&[-1, 0], f(0.0)),
            vec![X],
            "padding -1; expected no negative padding",
        ),
        (
            slice(0, 0, 1),
            vec![X],
            "step 0 on axis 0; expected a step other than 0",
        ),
        (
            slice(1, 1, 2),
            vec![X],
            "axis 0: start 1, step 1, size 2 leaves the extent 2",
        ),
        (
            slice(-1, 1, 1),
            vec![X],
            "leaves the extent 2; expected every taken index inside the axis",
        ),
        (window(2, 1, 1), vec![X], "axis 2 of a tensor of rank 2"),
        (
            window(0, 1, 0),
            vec![X],
            "size 1, stride 0, dilation 1; expected all at least 1",
        ),
        (gather(&[]), vec![X], "no indexed axis"),
        (
            gather(&[2]),
            vec![X, I],
            "axes [2]; expected distinct axes below the rank 2",
        ),
        (
            gather(&[0, 0]),
            vec![X, I, I],
            "axes [0, 0]; expected distinct axes below the rank 2",
        ),
        (gather(&[0]), vec![X, X], "indices of f32; expected an integer dtype"),
        (
            scatter(ScatterOp::Set),
            vec![X, P, I],
            "updates of bool into f32; expected one dtype",
        ),
        (
            scatter(ScatterOp::Add),
            vec![P, P, I],
            "dtype bool; expected integers or floats",
        ),
        (scatter(ScatterOp::Set), vec![I, I, K], "updates [2]; expected []"),
    ];
    for (kind, operands, expected) in cases {
        let found = node_error(kind, &operands);
        assert!(found.contains(expected), "found: {found}\nexpected: {expected}");
    }
}

#[test]
fn argmax_over_an_empty_axis_is_an_error() {
    let mut g = Graph::new("bad");
    g.add_input("e", ty(DType::F32, &[0]), Origin::Unknown).unwrap();
    g.add_output("e", X);
    push(&mut g, reduce(Monoid::ArgMax, &[0]), &[X], ty(DType::I64, &[]));
    assert!(only_error(&g).contains("argmax over the empty axis 0"));
}

#[test]
fn a_type_that_is_not_the_inferred_one_is_an_error() {
    let mut g = base();
    push(&mut g, NodeKind::Map(ScalarOp::Exp), &[X], ty(DType::F32, &[3, 2]));
    assert_eq!(only_error(&g), "%0: exp: has type f32[3, 2]; expected f32[2, 3]");
}

#[test]
fn unknown_symbols_are_errors_in_types_and_in_attributes() {
    let mut g = base();
    let t = TensorType::new(DType::I32, [SymId(3)]);
    push(&mut g, NodeKind::Iota { ty: t.clone(), axis: 0 }, &[], t);
    assert_eq!(only_error(&g), "%0: an extent names an unknown symbol");
    let mut g = base();
    let kind = NodeKind::View(View::Slice {
        start: [SymId(3).into(), 0.into()].into(),
        step: [1, 1].into(),
        size: [1.into(), 3.into()].into(),
    });
    push(&mut g, kind, &[X], ty(DType::F32, &[1, 3]));
    assert_eq!(only_error(&g), "%0: an extent names an unknown symbol");
}

#[test]
fn symbol_ranges_must_hold_a_size() {
    let mut g = base();
    g.add_symbol("n", 0, 4);
    g.add_symbol("n", 5, 9);
    assert_eq!(only_error(&g), "symbol n: range 5..=4 is empty or negative");
    let mut g = base();
    g.add_symbol("n", -1, 4);
    assert_eq!(only_error(&g), "symbol n: range -1..=4 is empty or negative");
}

#[test]
fn inputs_have_their_position_and_a_name_of_their_own() {
    let mut g = base();
    let t = ty(DType::F32, &[2]);
    let input = |index, name: &str| NodeKind::Input {
        index,
        name: name.to_string(),
        ty: ty(DType::F32, &[2]),
    };
    push(&mut g, input(7, "y"), &[], t.clone());
    assert_eq!(only_error(&g), "%y: input y: numbered 7; expected 4");
    let mut g = base();
    push(&mut g, input(4, "x"), &[], t);
    assert_eq!(only_error(&g), "%x: input name x is used twice");
}

#[test]
fn outputs_exist_and_have_a_name_of_their_own() {
    let mut g = base();
    g.add_output("y", NodeId(9));
    assert_eq!(only_error(&g), "output y names %9, which does not exist");
    let mut g = base();
    g.add_output("y", X);
    g.add_output("y", I);
    assert_eq!(only_error(&g), "output name y is used twice");
}

#[test]
fn a_graph_has_outputs() {
    let mut g = Graph::new("nothing");
    assert_eq!(only_error(&g), "the graph has no outputs; expected at least one");
    let x = g.add_input("x", ty(DType::F32, &[2]), Origin::Unknown).unwrap();
    assert_eq!(only_error(&g), "the graph has no outputs; expected at least one");
    g.add_output("x", x);
    assert_eq!(verify(&g), []);
}

#[test]
fn all_errors_are_reported_at_once() {
    let mut g = base();
    push(&mut g, NodeKind::Map(ScalarOp::Exp), &[I], ty(DType::I64, &[2]));
    push(&mut g, NodeKind::Map(ScalarOp::Add), &[X], ty(DType::F32, &[2, 3]));
    g.add_output("y", NodeId(9));
    assert_eq!(verify(&g).len(), 3);
}

#[test]
fn storage_types_are_moved_selected_and_converted_and_nothing_else() {
    for storage in DType::ALL.into_iter().filter(|d| d.is_storage()) {
        let mut g = Graph::new("storage");
        let x = g.add_input("x", ty(storage, &[2, 3]), Origin::Unknown).unwrap();
        let i = g.add_input("i", ty(DType::I64, &[2]), Origin::Unknown).unwrap();
        let p = g.add_input("p", ty(DType::Bool, &[2, 3]), Origin::Unknown).unwrap();
        let scattered = |op| NodeKind::Scatter { axes: smallvec![0], op };
        let taken = [
            (NodeKind::Map(ScalarOp::Select), vec![p, x, x]),
            (NodeKind::Convert(DType::F16), vec![x]),
            (NodeKind::Bitcast(DType::U8), vec![x]),
            (pad(&[1, 0], storage.highest()), vec![x]),
            (NodeKind::Gather { axes: smallvec![0] }, vec![x, i]),
            (scattered(ScatterOp::Set), vec![x, x, i]),
            (NodeKind::Copy, vec![x]),
        ];
        for (kind, operands) in taken {
            g.add(kind, &operands, Origin::Unknown).unwrap();
        }
        g.add_output("x", x);
        assert_eq!(verify(&g), []);
        let iota = NodeKind::Iota {
            ty: ty(storage, &[2]),
            axis: 0,
        };
        let accumulated = NodeKind::Einsum {
            inputs: smallvec![smallvec![0]],
            output: smallvec![],
            semiring: Semiring::AddMul,
            accumulator: storage,
            dtype: DType::F32,
        };
        let refused = [
            (NodeKind::Map(ScalarOp::Add), vec![x, x]),
            (NodeKind::Map(ScalarOp::Eq), vec![x, x]),
            (NodeKind::Map(ScalarOp::Max), vec![x, x]),
            (NodeKind::Map(ScalarOp::And), vec![x, x]),
            (NodeKind::Map(ScalarOp::Exp), vec![x]),
            (reduce(Monoid::Max, &[0]), vec![x]),
            (scan(Monoid::Add, 0), vec![x]),
            (einsum(&[&[0, 1]], &[0]), vec![x]),
            (accumulated, vec![i]),
            (scattered(ScatterOp::Max), vec![x, x, i]),
            (iota, vec![]),
        ];
        for (kind, operands) in refused {
            let error = g.add(kind, &operands, Origin::Unknown).unwrap_err().to_string();
            assert!(error.contains("convert"), "{error}");
        }
    }
}
