//! Copies of blocks in schedules: which nests become copies, which results are written past the caches, and that plans
//! with them verify and mean the same.

use std::sync::Arc;

use tlc_ir::graph::{Origin, TensorType, View};
use tlc_ir::kernel::{Bind, Kernel, Stmt};
use tlc_ir::plan::interp::interpret_bound;
use tlc_ir::target::Cpu;
use tlc_ir::{DType, Graph, HostTensor, IndexExpr, NodeId, NodeKind, Scalar, ScalarOp};
use tlc_passes::{Compiled, Options, compile};

/// With a last cache of 500 kB, so that results of 512 KiB are written past it.
fn compiled(graph: &Graph) -> Compiled {
    let cpu = Cpu {
        l3_bytes: 500_000,
        ..Cpu::modest(Arc::new(tlc_codegen::clif::emitter(true)))
    };
    let compiled = compile(graph, &Options::new(cpu)).unwrap();
    let report = tlc_ir::plan::verify::verify(&compiled.planned.plan);
    assert!(report.errors.is_empty(), "{:?}", report.errors);
    compiled
}

fn count(kernel: &Kernel, bind: Bind) -> usize {
    let bound = |s: &&Stmt| matches!(s, Stmt::Loop { bind: b, .. } if *b == bind);
    kernel.statements().filter(bound).count()
}

/// Copies, and copies past the caches, of the only kernel.
fn copies(c: &Compiled) -> (usize, usize) {
    let [kernel] = &c.planned.plan.kernels[..] else {
        panic!("one kernel expected")
    };
    (count(kernel, Bind::Copy), count(kernel, Bind::Stream))
}

fn input(g: &mut Graph, name: &str, dtype: DType, shape: &[i64]) -> NodeId {
    let ty = TensorType::new(dtype, shape.iter().copied());
    g.add_input(name, ty, Origin::Unknown).unwrap()
}

fn tensor(dtype: DType, shape: &[usize]) -> HostTensor {
    let mut t = HostTensor::zeros(dtype, shape).unwrap();
    for i in 0..t.len() {
        let v = (i.wrapping_mul(2_654_435_761) >> 7) % 101;
        t.set(i, Scalar::from_f64(dtype, v as f64));
    }
    t
}

fn transposed(g: &mut Graph, x: NodeId) -> NodeId {
    g.add(
        NodeKind::View(View::Permute([1u8, 0][..].into())),
        &[x],
        Origin::Unknown,
    )
    .unwrap()
}

fn map(g: &mut Graph, op: ScalarOp, operands: &[NodeId]) -> NodeId {
    g.add(NodeKind::Map(op), operands, Origin::Unknown).unwrap()
}

#[test]
fn a_large_result_is_written_past_the_caches_and_a_small_one_is_not() {
    for (n, streams) in [(200_003, 1), (100_000, 0)] {
        let mut g = Graph::new("add");
        let (x, y) = (
            input(&mut g, "x", DType::F32, &[n]),
            input(&mut g, "y", DType::F32, &[n]),
        );
        let sum = map(&mut g, ScalarOp::Add, &[x, y]);
        g.add_output("z", sum);
        let c = compiled(&g);
        assert_eq!(copies(&c), (0, streams), "{n}");
        let inputs = [tensor(DType::F32, &[n as usize]), tensor(DType::F32, &[n as usize])];
        let found = interpret_bound(&c.planned.plan, None, &inputs, &[]).unwrap();
        for i in 0..n as usize {
            let expected = inputs[0].get(i).as_f64() + inputs[1].get(i).as_f64();
            assert_eq!(found[0].get(i).as_f64(), expected, "{i}");
        }
    }
}

#[test]
fn a_symbolic_size_that_may_be_small_is_never_streamed() {
    let mut g = Graph::new("symbolic");
    let n = g.add_symbol("n", 0, 1 << 40);
    let ty = TensorType::new(DType::F32, [IndexExpr::from(n)]);
    let x = g.add_input("x", ty, Origin::Unknown).unwrap();
    let y = map(&mut g, ScalarOp::Neg, &[x]);
    g.add_output("y", y);
    assert_eq!(copies(&compiled(&g)), (0, 0));
}

#[test]
fn a_transposition_of_any_width_is_one_copy_and_one_with_arithmetic_stages_its_operand() {
    for dtype in [
        DType::U8,
        DType::Bool,
        DType::F16,
        DType::I32,
        DType::F32,
        DType::F64,
        DType::I64,
    ] {
        let mut g = Graph::new("transpose");
        let x = input(&mut g, "x", dtype, &[130, 71]);
        let y = transposed(&mut g, x);
        g.add_output("y", y);
        let c = compiled(&g);
        assert_eq!(copies(&c), (1, 0), "{dtype}");
        let inputs = [tensor(dtype, &[130, 71])];
        let found = interpret_bound(&c.planned.plan, None, &inputs, &[]).unwrap();
        for (i, j) in (0..71).flat_map(|i| (0..130).map(move |j| (i, j))) {
            assert_eq!(found[0].get(i * 130 + j), inputs[0].get(j * 71 + i), "{dtype} {i} {j}");
        }
    }
    let mut g = Graph::new("fused");
    let (x, y) = (
        input(&mut g, "x", DType::F32, &[130, 71]),
        input(&mut g, "y", DType::F32, &[71, 130]),
    );
    let turned = transposed(&mut g, x);
    let sum = map(&mut g, ScalarOp::Add, &[turned, y]);
    g.add_output("z", sum);
    let c = compiled(&g);
    assert_eq!(copies(&c), (1, 0));
    let lanes = &c.planned.launches[0].schedule.inner;
    assert!(lanes.iter().all(Result::is_ok), "{lanes:?}");
}
