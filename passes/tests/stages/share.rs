//! Which launches are worth sharing among threads, and in what pieces: counted in chunks, from the plan.

use std::sync::Arc;

use tlc_ir::graph::{Origin, TensorType};
use tlc_ir::index::{IndexExpr, IndexNode};
use tlc_ir::plan::{Launch, Plan, Step, Work};
use tlc_ir::target::Cpu;
use tlc_ir::{DType, Graph, NodeId, NodeKind, ScalarOp};
use tlc_passes::{Options, compile};

fn input(g: &mut Graph, name: &str, shape: &[IndexExpr]) -> NodeId {
    let ty = TensorType::new(DType::F32, shape.iter().cloned());
    g.add_input(name, ty, Origin::Unknown).unwrap()
}

fn map(g: &mut Graph, op: ScalarOp, operands: &[NodeId]) -> NodeId {
    g.add(NodeKind::Map(op), operands, Origin::Unknown).unwrap()
}

fn plan(g: &Graph) -> Plan {
    let options = Options::new(Cpu::modest(Arc::new(tlc_codegen::clif::emitter(true))));
    Arc::unwrap_or_clone(compile(g, &options).unwrap().planned.plan)
}

/// Parallel iterations of a launch, and chunks that they make (below 1 where they are a part of one).
fn chunks(plan: &Plan, l: &Launch, symbols: &[i64]) -> (i64, f64) {
    let extent = plan.kernels[l.kernel.0 as usize].parallel_extent();
    let extent = extent.replace(&mut |n| match n {
        IndexNode::Sym(s) => l.symbols.get(s.0 as usize).cloned(),
        _ => None,
    });
    let extent = extent.eval_symbols(symbols).unwrap();
    let Work::Chunks { grain } = &l.work else {
        panic!("a launch of a CPU: {:?}", l.work)
    };
    (extent, extent as f64 / grain.eval_symbols(symbols).unwrap() as f64)
}

/// A chain of functions of a tensor.
fn functions(shape: &[IndexExpr], op: ScalarOp, steps: usize) -> Graph {
    let mut g = Graph::new("functions");
    let mut x = input(&mut g, "x", shape);
    for _ in 0..steps {
        x = map(&mut g, op, &[x]);
    }
    g.add_output("y", x);
    g
}

fn only(plan: &Plan) -> &Launch {
    match &plan.steps[..] {
        [Step::Launch(l)] => l,
        steps => panic!("{} steps", steps.len()),
    }
}

#[test]
fn small_work_is_one_chunk_and_large_work_many() {
    for (elements, op, steps, least, most) in [
        // 64 KiB: moved in less time than a fork takes.
        (8192, ScalarOp::Neg, 1, 0.0, 1.0),
        // As many bytes, but a hundred microseconds of arithmetic.
        (65_536, ScalarOp::Sin, 20, 4.0, 32.0),
        // 32 MiB.
        (1 << 22, ScalarOp::Neg, 1, 64.0, 2048.0),
    ] {
        let p = plan(&functions(&[elements.into()], op, steps));
        let (extent, chunks) = chunks(&p, only(&p), &[]);
        assert!(
            (least..=most).contains(&chunks),
            "{elements} {op}: {extent} iterations, {chunks} chunks"
        );
    }
}

#[test]
fn what_sizes_decide_is_decided_when_they_are_bound() {
    let mut g = Graph::new("symbolic");
    let n: IndexExpr = g.add_symbol("n", 0, 1 << 40).into();
    let x = input(&mut g, "x", &[n, 128.into()]);
    let y = map(&mut g, ScalarOp::Tanh, &[x]);
    g.add_output("y", y);
    let p = plan(&g);
    let at = |n| chunks(&p, only(&p), &[n]).1;
    assert!(
        at(0) <= 1.0 && at(1) <= 1.0 && at(4) <= 1.0,
        "{} {} {}",
        at(0),
        at(1),
        at(4)
    );
    assert!(at(100_000) >= 64.0, "{}", at(100_000));
}

#[test]
fn a_group_of_small_launches_is_less_than_a_chunk() {
    // Gates of a recurrent network: a few rows each, of different shapes, so that they are kernels of their own.
    let mut g = Graph::new("gates");
    for (name, columns) in [("a", 96), ("b", 128), ("c", 160)] {
        let x = input(&mut g, name, &[4.into(), columns.into()]);
        let y = map(&mut g, ScalarOp::Tanh, &[x]);
        g.add_output(&format!("{name}.y"), y);
    }
    let p = plan(&g);
    let [Step::Group(all)] = &p.steps[..] else {
        panic!("one group expected")
    };
    let sum: f64 = all.iter().map(|l| chunks(&p, l, &[]).1).sum();
    assert!(all.len() == 3 && sum <= 1.0, "{} launches, {sum} chunks", all.len());
}
