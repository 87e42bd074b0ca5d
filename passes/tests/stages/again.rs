//! Values that are read again and again are computed once where that costs less than to store and to load them, and the
//! decision says both costs. Kernels and operations are counted; every plan means what its graph does.

use std::sync::Arc;

use tlc_ir::graph::{Labels, Monoid, Origin, Semiring, TensorType, View};
use tlc_ir::interp::{self, compare, interpret_with_bounds};
use tlc_ir::plan::Step;
use tlc_ir::plan::interp::interpret_bound;
use tlc_ir::target::Cpu;
use tlc_ir::{DType, Graph, HostTensor, IndexExpr, NodeId, NodeKind, Scalar, ScalarOp};
use tlc_passes::reason::FusionReason;
use tlc_passes::{Compiled, Options, compile};

fn input(g: &mut Graph, name: &str, shape: &[IndexExpr]) -> NodeId {
    let ty = TensorType::new(DType::F32, shape.iter().cloned());
    g.add_input(name, ty, Origin::Unknown).unwrap()
}

fn add(g: &mut Graph, kind: NodeKind, operands: &[NodeId]) -> NodeId {
    g.add(kind, operands, Origin::Unknown).unwrap()
}

fn map(g: &mut Graph, op: ScalarOp, operands: &[NodeId]) -> NodeId {
    add(g, NodeKind::Map(op), operands)
}

/// `x * tanh(x) * x`: some forty operations.
fn costly(g: &mut Graph, x: NodeId) -> NodeId {
    let t = map(g, ScalarOp::Tanh, &[x]);
    let y = map(g, ScalarOp::Mul, &[x, t]);
    map(g, ScalarOp::Mul, &[y, x])
}

fn cheap(g: &mut Graph, x: NodeId) -> NodeId {
    map(g, ScalarOp::Abs, &[x])
}

fn product(g: &mut Graph, semiring: Semiring, a: NodeId, b: NodeId) -> NodeId {
    let labels = |l: [u16; 2]| -> Labels { l.into_iter().collect() };
    let kind = NodeKind::Einsum {
        inputs: [labels([0, 1]), labels([1, 2])].into_iter().collect(),
        output: labels([0, 2]),
        semiring,
        accumulator: DType::F32,
        dtype: DType::F32,
    };
    add(g, kind, &[a, b])
}

fn expand(g: &mut Graph, x: NodeId, to: &[IndexExpr]) -> NodeId {
    add(g, NodeKind::View(View::Expand(to.iter().cloned().collect())), &[x])
}

fn launches(c: &Compiled) -> usize {
    c.planned.plan.steps.iter().flat_map(Step::launches).count()
}

/// Floating-point operations of a call.
fn flops(c: &Compiled, symbols: &[i64]) -> i64 {
    let all = c.planned.plan.steps.iter().flat_map(Step::launches);
    all.map(|l| l.flops.eval_symbols(symbols).unwrap()).sum()
}

/// Compiles, and runs the plan in its interpreter against the graph's, within derived bounds.
fn compiled(g: &Graph, symbols: &[i64]) -> Compiled {
    let c = compile(
        g,
        &Options::new(Cpu::modest(Arc::new(tlc_codegen::clif::emitter(true)))),
    )
    .unwrap();
    let report = tlc_ir::plan::verify::verify(&c.planned.plan);
    assert!(report.errors.is_empty(), "{:?}", report.errors);
    let inputs: Vec<HostTensor> = g
        .inputs()
        .iter()
        .map(|&i| {
            let shape = g.ty(i).shape.iter().map(|d| d.eval_symbols(symbols).unwrap() as usize);
            let mut t = HostTensor::zeros(DType::F32, &shape.collect::<Vec<_>>()).unwrap();
            (0..t.len()).for_each(|i| t.set(i, Scalar::from_f64(DType::F32, ((i * 37) % 101) as f64 / 50.0 - 1.0)));
            t
        })
        .collect();
    let options = interp::Options {
        symbols: g
            .symbols()
            .iter()
            .map(|s| s.name.clone())
            .zip(symbols.iter().copied())
            .collect(),
        ..interp::Options::default()
    };
    let bounded = interpret_with_bounds(g, &inputs, &options).unwrap();
    let found = interpret_bound(&c.planned.plan, None, &inputs, symbols).unwrap();
    for (found, bounded) in found.iter().zip(&bounded) {
        compare(found, bounded).unwrap_or_else(|e| panic!("{e}"));
    }
    c
}

/// The costs that the decision for storing a value names, if it was taken.
fn stored(c: &Compiled) -> Option<(u64, u64)> {
    c.clusters.ledger.entries().iter().find_map(|d| match d.reason {
        FusionReason::CheaperStored { computed, stored } => Some((computed, stored)),
        _ => None,
    })
}

fn computed_again(c: &Compiled) -> Option<(u64, u64)> {
    c.clusters.ledger.entries().iter().find_map(|d| match d.reason {
        FusionReason::CheaperAgain { computed, stored } => Some((computed, stored)),
        _ => None,
    })
}

#[test]
fn a_costly_operand_of_a_product_of_one_row_is_computed_once() {
    let mut g = Graph::new("decoding");
    let (x, w) = (
        input(&mut g, "x", &[1.into(), 300.into()]),
        input(&mut g, "w", &[300.into(), 70.into()]),
    );
    let y = costly(&mut g, x);
    let y = product(&mut g, Semiring::AddMul, y, w);
    g.add_output("y", y);
    let c = compiled(&g, &[]);
    assert_eq!(launches(&c), 2);
    // Two operations for each element of the weights, and the function once.
    assert!(flops(&c, &[]) < 300 * 70 * 2 + 300 * 50, "{}", flops(&c, &[]));
    let (computed, stored) = stored(&c).expect("the decision says so");
    // 70 times a function of 40 to 50 operations with its load, against once and 70 loads.
    assert!((300 * 70 * 40..300 * 70 * 60).contains(&computed), "{computed}");
    assert!(
        (300 * 70 * 4..300 * 70 * 4 + 300 * 70 + 2000).contains(&stored),
        "{stored}"
    );
    let text = c
        .clusters
        .ledger
        .entries()
        .iter()
        .map(|d| d.reason.to_string())
        .collect::<Vec<_>>();
    let both = format!("storing and loading it takes {stored} operations, computing it wherever it is read {computed}");
    assert!(text.contains(&both), "{text:?}");
}

#[test]
fn what_is_cheap_or_small_is_computed_where_it_is_read() {
    let mut g = Graph::new("cheap");
    let (x, w) = (
        input(&mut g, "x", &[1.into(), 300.into()]),
        input(&mut g, "w", &[300.into(), 70.into()]),
    );
    let y = cheap(&mut g, x);
    let y = product(&mut g, Semiring::AddMul, y, w);
    g.add_output("y", y);
    let c = compiled(&g, &[]);
    assert_eq!((launches(&c), stored(&c)), (1, None));

    let mut g = Graph::new("small");
    let (x, w) = (
        input(&mut g, "x", &[1.into(), 8.into()]),
        input(&mut g, "w", &[8.into(), 4.into()]),
    );
    let y = costly(&mut g, x);
    let y = product(&mut g, Semiring::AddMul, y, w);
    g.add_output("y", y);
    let c = compiled(&g, &[]);
    assert_eq!((launches(&c), stored(&c)), (1, None));
    let (computed, stored) = computed_again(&c).expect("the decision says so");
    assert!(computed <= stored && computed > 4 * 8 * 40, "{computed} {stored}");
}

#[test]
fn symbolic_rows_and_other_semirings_count_as_well() {
    for (n, launched) in [(1000, 2), (1, 2)] {
        let mut g = Graph::new("rows");
        let rows: IndexExpr = g.add_symbol("rows", 1, n).into();
        let (x, w) = (
            input(&mut g, "x", &[rows, 90.into()]),
            input(&mut g, "w", &[90.into(), 70.into()]),
        );
        let y = costly(&mut g, x);
        let y = product(&mut g, Semiring::MaxAdd, y, w);
        g.add_output("y", y);
        let c = compiled(&g, &[n.min(3)]);
        assert_eq!(launches(&c), launched, "{n}");
        assert!(stored(&c).is_some());
    }
    // The weights: each is read once for each row, of which there is one.
    let mut g = Graph::new("weights");
    let (x, w) = (
        input(&mut g, "x", &[1.into(), 90.into()]),
        input(&mut g, "w", &[90.into(), 70.into()]),
    );
    let w = costly(&mut g, w);
    let y = product(&mut g, Semiring::AddMul, x, w);
    g.add_output("y", y);
    let c = compiled(&g, &[]);
    assert_eq!((launches(&c), stored(&c)), (1, None));
}

#[test]
fn what_is_broadcast_along_rows_is_stored_and_what_is_constant_in_a_row_is_not() {
    for (shape, expected) in [([1, 512], 2), ([300, 1], 1)] {
        let mut g = Graph::new("broadcast");
        let (r, x) = (
            input(&mut g, "r", &shape.map(IndexExpr::from)),
            input(&mut g, "x", &[300.into(), 512.into()]),
        );
        let r = costly(&mut g, r);
        let wide = expand(&mut g, r, &[300.into(), 512.into()]);
        let y = map(&mut g, ScalarOp::Mul, &[wide, x]);
        g.add_output("y", y);
        let c = compiled(&g, &[]);
        assert_eq!(launches(&c), expected, "{shape:?}");
        assert_eq!(stored(&c).is_some(), expected == 2, "{shape:?}");
    }
}

#[test]
fn a_value_that_is_an_output_as_well_is_not_computed_again_by_its_reader() {
    let mut g = Graph::new("output");
    let (x, w) = (
        input(&mut g, "x", &[1.into(), 300.into()]),
        input(&mut g, "w", &[300.into(), 70.into()]),
    );
    let t = costly(&mut g, x);
    let y = product(&mut g, Semiring::AddMul, t, w);
    g.add_output("t", t);
    g.add_output("y", y);
    let c = compiled(&g, &[]);
    assert_eq!(launches(&c), 2);
    assert!(flops(&c, &[]) < 300 * 70 * 2 + 300 * 50, "{}", flops(&c, &[]));
}

#[test]
fn a_stored_operand_still_joins_the_kernel_that_computes_it_row_by_row() {
    // A softmax in front of a product of one row: its rows are one kernel, the product another.
    let mut g = Graph::new("softmax");
    let (x, w) = (
        input(&mut g, "x", &[1.into(), 300.into()]),
        input(&mut g, "w", &[300.into(), 70.into()]),
    );
    let e = map(&mut g, ScalarOp::Exp, &[x]);
    let axes = [1u8][..].into();
    let monoid = Monoid::Add;
    let sum = add(&mut g, NodeKind::Reduce { monoid, axes }, &[e]);
    let sum = add(
        &mut g,
        NodeKind::View(View::Reshape([1.into(), 1.into()].into_iter().collect())),
        &[sum],
    );
    let sum = expand(&mut g, sum, &[1.into(), 300.into()]);
    let p = map(&mut g, ScalarOp::Div, &[e, sum]);
    let y = product(&mut g, Semiring::AddMul, p, w);
    g.add_output("y", y);
    assert_eq!(launches(&compiled(&g, &[])), 2);
}
