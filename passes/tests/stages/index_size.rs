//! Index expressions stay short whatever chain of views leads to a value: permutations and reshapes of which nothing cancels,
//! of constant and of symbolic sizes, alone and below products and reductions. What is counted are the nodes of the expressions
//! in the kernels; every plan means what its graph does.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tlc_ir::graph::{Labels, Monoid, Origin, Semiring, Shape, TensorType, View};
use tlc_ir::interp::{self, interpret};
use tlc_ir::kernel::{Op, Stmt};
use tlc_ir::plan::interp::interpret_bound;
use tlc_ir::target::Cpu;
use tlc_ir::{DType, Graph, HostTensor, IndexExpr, NodeId, NodeKind, Scalar};
use tlc_passes::access::MAX_INDEX_SIZE;
use tlc_passes::{Options, compile};

fn add(g: &mut Graph, kind: NodeKind, operands: &[NodeId]) -> NodeId {
    g.add(kind, operands, Origin::Unknown).unwrap()
}

fn permuted(g: &mut Graph, x: NodeId, axes: &[u8]) -> NodeId {
    add(g, NodeKind::View(View::Permute(axes.into())), &[x])
}

fn reshaped(g: &mut Graph, x: NodeId, shape: &[IndexExpr]) -> NodeId {
    add(
        g,
        NodeKind::View(View::Reshape(shape.iter().cloned().collect::<Shape>())),
        &[x],
    )
}

/// What reads the end of a chain.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Reader {
    Output,
    Product,
    Sum,
}

/// Sizes `[13, 5, 6]`, as symbols or as numbers.
fn chain(pairs: usize, symbolic: bool, rank: usize, reader: Reader) -> Graph {
    let mut g = Graph::new("views");
    let sizes: Vec<IndexExpr> = [("n", 13), ("m", 5), ("k", 6)][..rank]
        .iter()
        .map(|&(name, size)| match symbolic {
            true => g.add_symbol(name, 1, 64).into(),
            false => IndexExpr::Const(size),
        })
        .collect();
    let ty = TensorType::new(DType::F32, sizes.iter().cloned());
    let mut x = g.add_input("x", ty, Origin::Unknown).unwrap();
    let axes: &[u8] = if rank == 2 { &[1, 0] } else { &[2, 0, 1] };
    for pair in 0..pairs {
        x = permuted(&mut g, x, axes);
        // Back to the first shape, and now and then by way of one axis fewer.
        if rank == 3 && pair % 3 == 1 {
            let shape = g.ty(x).shape.clone();
            x = reshaped(&mut g, x, &[shape[0].clone() * shape[1].clone(), shape[2].clone()]);
        }
        x = reshaped(&mut g, x, &sizes);
    }
    let y = match reader {
        Reader::Output => x,
        Reader::Sum => {
            let axes = [rank as u8 - 1][..].into();
            let monoid = Monoid::Add;
            add(&mut g, NodeKind::Reduce { monoid, axes }, &[x])
        }
        Reader::Product => {
            let labels = |l: std::ops::Range<u16>| -> Labels { l.collect() };
            let last = rank as u16 - 1;
            let kind = NodeKind::Einsum {
                inputs: [labels(0..last + 1), [last, last + 1].into_iter().collect()]
                    .into_iter()
                    .collect(),
                output: labels(0..last).into_iter().chain([last + 1]).collect(),
                semiring: Semiring::AddMul,
                accumulator: DType::F32,
                dtype: DType::F32,
            };
            let ty = TensorType::new(DType::F32, [sizes[rank - 1].clone(), 3.into()]);
            let w = g.add_input("w", ty, Origin::Unknown).unwrap();
            add(&mut g, kind, &[x, w])
        }
    };
    g.add_output("y", y);
    g
}

fn check(pairs: usize, symbolic: bool, rank: usize, reader: Reader) {
    let what = format!("{pairs} pairs, symbolic {symbolic}, rank {rank}, {reader:?}");
    let graph = chain(pairs, symbolic, rank, reader);
    let start = Instant::now();
    let compiled = compile(
        &graph,
        &Options::new(Cpu::modest(Arc::new(tlc_codegen::clif::emitter(true)))),
    )
    .unwrap();
    // A guard against what takes for ever, not a measurement.
    assert!(
        start.elapsed() < Duration::from_secs(60),
        "{what}: {:?}",
        start.elapsed()
    );
    let plan = &compiled.planned.plan;
    let (mut longest, mut all) = (0, 0u64);
    for kernel in &plan.kernels {
        let mut see = |e: &IndexExpr| {
            longest = longest.max(e.size());
            all += u64::from(e.size());
        };
        kernel.extents.iter().for_each(&mut see);
        for s in kernel.statements() {
            match s {
                Stmt::Let {
                    op: Op::Load { index, .. } | Op::Index(index, _),
                    ..
                }
                | Stmt::Store { index, .. } => see(index),
                _ => {}
            }
        }
    }
    // One reshape beyond the limit at most triples what it is given, and fused and split loops take the place of variables.
    assert!(longest <= 12 * MAX_INDEX_SIZE, "{what}: {longest} nodes");
    // However long the chain, its kernels are alike.
    assert!(all <= 60 * u64::from(MAX_INDEX_SIZE), "{what}: {all} nodes in all");

    let sizes = [13usize, 5, 6];
    let names: Vec<String> = graph.symbols().iter().map(|s| s.name.clone()).collect();
    let symbols: Vec<i64> = sizes[..names.len()].iter().map(|&n| n as i64).collect();
    let mut inputs = Vec::new();
    for shape in [&sizes[..rank], &[sizes[rank - 1], 3]]
        .iter()
        .take(1 + usize::from(reader == Reader::Product))
    {
        let mut t = HostTensor::zeros(DType::F32, shape).unwrap();
        // Whole numbers, so that sums are exact in any order.
        (0..t.len()).for_each(|i| t.set(i, Scalar::from_f64(DType::F32, (i % 97) as f64)));
        inputs.push(t);
    }
    let options = interp::Options {
        symbols: names.into_iter().zip(symbols.iter().copied()).collect(),
        ..interp::Options::default()
    };
    let expected = interpret(&graph, &inputs, &options).unwrap();
    let found = interpret_bound(plan, None, &inputs, &symbols).unwrap();
    assert_eq!(found, expected, "{what}");
}

#[test]
fn chains_of_permutations_and_reshapes_have_short_indices() {
    for symbolic in [false, true] {
        for rank in [2, 3] {
            for reader in [Reader::Output, Reader::Product, Reader::Sum] {
                for pairs in [1, 3, 5, 8, 10, 20, 40, 60] {
                    check(pairs, symbolic, rank, reader);
                }
            }
        }
    }
}
