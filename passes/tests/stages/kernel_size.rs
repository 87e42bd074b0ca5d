//! Kernels stay below the largest that code generators take, whatever a graph holds: chains and trees of every scalar operation
//! and conversion, in front of reductions and in rows, however many statements an operation becomes.
//!
//! The statements are counted on the final kernels, loops unrolled, not with the estimate that decides.

use std::sync::Arc;

use tlc_ir::graph::{Labels, Monoid, Origin, Semiring, TensorType, View};
use tlc_ir::kernel::{Bind, Kernel, MAX_STATEMENTS, Stmt};
use tlc_ir::scalar::Cost;
use tlc_ir::target::Cpu;
use tlc_ir::{DType, Graph, IndexExpr, NodeId, NodeKind, Scalar, ScalarOp};
use tlc_passes::legalize::{convert_statements, map_statements};
use tlc_passes::{Compiled, Options, compile};

fn input(g: &mut Graph, name: &str, dtype: DType, shape: &[i64]) -> NodeId {
    let ty = TensorType::new(dtype, shape.iter().copied());
    g.add_input(name, ty, Origin::Unknown).unwrap()
}

fn add(g: &mut Graph, kind: NodeKind, operands: &[NodeId]) -> NodeId {
    g.add(kind, operands, Origin::Unknown).unwrap()
}

/// Statements with every `Unroll` loop copied out, as a code generator meets them.
fn unrolled(kernel: &Kernel, body: &[Stmt]) -> u64 {
    let of = |s: &Stmt| match s {
        Stmt::Loop { var, bind, body } => {
            let copies = match bind {
                Bind::Unroll => kernel.extents[var.0 as usize].as_const().expect("unrolled") as u64,
                _ => 1,
            };
            1 + copies * (unrolled(kernel, body) + u64::from(*bind == Bind::Unroll))
        }
        Stmt::If { body, .. } => 1 + unrolled(kernel, body),
        _ => 1,
    };
    body.iter().map(of).sum()
}

/// Compiles; returns the statements of the largest kernel, and how many kernels there are.
fn largest(g: &Graph) -> (u64, usize) {
    let Compiled { planned, .. } = compile(
        g,
        &Options::new(Cpu::modest(Arc::new(tlc_codegen::clif::emitter(true)))),
    )
    .unwrap();
    let sizes = planned.plan.kernels.iter().map(|k| unrolled(k, &k.body));
    (sizes.max().unwrap_or(0), planned.launches.len())
}

fn check(what: &str, g: &Graph) -> usize {
    let (statements, launches) = largest(g);
    assert!(statements <= MAX_STATEMENTS, "{what}: {statements} statements");
    launches
}

/// The operation applied again and again, the other operands constant.
fn chain(op: ScalarOp, dtype: DType, steps: usize, shape: &[i64]) -> Option<Graph> {
    let mut g = Graph::new("chain");
    let mut x = input(&mut g, "x", dtype, shape);
    let other = input(&mut g, "other", dtype, shape);
    let condition = input(&mut g, "condition", DType::Bool, shape);
    for _ in 0..steps {
        let operands = match op {
            ScalarOp::Select => vec![condition, x, other],
            _ => [x, other, other][..op.arity()].to_vec(),
        };
        x = g.add(NodeKind::Map(op), &operands, Origin::Unknown).ok()?;
        if g.ty(x).dtype != dtype {
            x = add(&mut g, NodeKind::Convert(dtype), &[x]);
        }
    }
    g.add_output("y", x);
    Some(g)
}

#[test]
fn chains_of_every_operation_on_every_dtype_fit() {
    let mut graphs = 0;
    for &op in ScalarOp::ALL {
        for dtype in DType::ALL {
            // Ragged, so that there are several vectors, one vector, and elements that are left over.
            let Some(g) = chain(op, dtype, 1000, &[67]) else {
                continue;
            };
            check(&format!("{op} {dtype}"), &g);
            graphs += 1;
        }
    }
    assert!(graphs > 350, "{graphs} graphs");
}

#[test]
fn chains_of_every_length_fit() {
    for (op, dtype) in [
        (ScalarOp::Sin, DType::F32),
        (ScalarOp::Sin, DType::F64),
        (ScalarOp::Pow, DType::F64),
        (ScalarOp::Tan, DType::BF16),
        (ScalarOp::Add, DType::F32),
        (ScalarOp::Div, DType::I64),
    ] {
        for steps in [10, 59, 113, 500, 2000, 10_000] {
            let g = chain(op, dtype, steps, &[64]).unwrap();
            let launches = check(&format!("{op} {dtype} {steps}"), &g);
            // Not more kernels than a third of the most statements would make.
            let each = map_statements(op, dtype) as usize;
            assert!(
                launches <= steps * each / 4000 + 1,
                "{op} {dtype} {steps}: {launches} kernels"
            );
        }
    }
}

#[test]
fn chains_of_every_conversion_fit() {
    for from in DType::ALL {
        for to in DType::ALL {
            let mut g = Graph::new("conversions");
            let mut x = input(&mut g, "x", from, &[67]);
            for _ in 0..500 {
                x = add(&mut g, NodeKind::Convert(to), &[x]);
                x = add(&mut g, NodeKind::Convert(from), &[x]);
            }
            g.add_output("y", x);
            check(&format!("{from} {to}"), &g);
        }
    }
}

#[test]
fn trees_and_mixtures_fit() {
    // Every value from two others: 1,023 functions in one tree.
    for (op, dtype) in [(ScalarOp::Pow, DType::F32), (ScalarOp::Atan2, DType::F64)] {
        let mut g = Graph::new("tree");
        let mut level: Vec<NodeId> = (0..1024)
            .map(|i| input(&mut g, &format!("x{i}"), dtype, &[33]))
            .collect();
        while level.len() > 1 {
            level = level.chunks(2).map(|p| add(&mut g, NodeKind::Map(op), p)).collect();
        }
        g.add_output("y", level[0]);
        check(&format!("tree {op}"), &g);
    }
    let functions: Vec<ScalarOp> = ScalarOp::ALL
        .iter()
        .copied()
        .filter(|o| o.cost() == Cost::Function && o.arity() == 1)
        .collect();
    for dtype in [DType::F16, DType::F32, DType::F64] {
        let mut g = Graph::new("mixture");
        let mut x = input(&mut g, "x", dtype, &[7, 67]);
        let row = input(&mut g, "row", dtype, &[67]);
        for i in 0..2000usize {
            let f = functions[i * 7 % functions.len()];
            x = add(&mut g, NodeKind::Map(f), &[x]);
            if i % 5 == 0 {
                let wide = add(
                    &mut g,
                    NodeKind::View(View::Expand([7i64.into(), 67i64.into()].into_iter().collect())),
                    &[row],
                );
                x = add(&mut g, NodeKind::Map(ScalarOp::Add), &[x, wide]);
            }
            if i % 400 == 0 {
                g.add_output(&format!("y{i}"), x);
            }
        }
        g.add_output("y", x);
        check(&format!("mixture {dtype}"), &g);
    }
}

/// A long function of each element.
fn functions(g: &mut Graph, mut x: NodeId, steps: usize) -> NodeId {
    for i in 0..steps {
        let f = [ScalarOp::Sin, ScalarOp::Tanh, ScalarOp::Expm1][i % 3];
        x = add(g, NodeKind::Map(f), &[x]);
    }
    x
}

fn reduced(g: &mut Graph, monoid: Monoid, axis: u8, x: NodeId) -> NodeId {
    let axes = [axis][..].into();
    add(g, NodeKind::Reduce { monoid, axes }, &[x])
}

#[test]
fn what_is_reduced_and_what_reads_reductions_fits() {
    for dtype in [DType::F32, DType::F64] {
        // In rows, in columns, and short rows side by side.
        for (shape, axis) in [([64, 257], 1), ([257, 64], 0), ([300, 5], 1), ([3, 5], 0)] {
            for monoid in [Monoid::Add, Monoid::Max, Monoid::ArgMax] {
                for steps in [10, 60, 113, 500] {
                    let mut g = Graph::new("reduction");
                    let x = input(&mut g, "x", dtype, &shape);
                    let y = functions(&mut g, x, steps);
                    let r = reduced(&mut g, monoid, axis, y);
                    g.add_output("y", r);
                    check(&format!("{dtype} {shape:?} {monoid:?} {steps}"), &g);
                }
            }
            // Several passes over the same rows, each with a long function of what the one before it found.
            let mut g = Graph::new("rows");
            let mut x = input(&mut g, "x", dtype, &shape);
            let whole = |g: &mut Graph, r: NodeId| {
                let mut kept = shape.to_vec();
                kept[axis as usize] = 1;
                let to = |s: &[i64]| s.iter().map(|&n| n.into()).collect();
                let r = add(g, NodeKind::View(View::Reshape(to(&kept))), &[r]);
                add(g, NodeKind::View(View::Expand(to(&shape))), &[r])
            };
            for _ in 0..12 {
                let y = functions(&mut g, x, 15);
                let r = reduced(&mut g, Monoid::Max, axis, y);
                let r = whole(&mut g, r);
                x = add(&mut g, NodeKind::Map(ScalarOp::Sub), &[y, r]);
            }
            g.add_output("y", x);
            check(&format!("rows {dtype} {shape:?}"), &g);
        }
    }
}

#[test]
fn operands_of_contractions_scans_and_windows_fit() {
    let steps = 200;
    let mut g = Graph::new("contraction");
    let (a, b) = (
        input(&mut g, "a", DType::F64, &[5, 31]),
        input(&mut g, "b", DType::F64, &[31, 9]),
    );
    let (a, b) = (functions(&mut g, a, steps), functions(&mut g, b, steps));
    let labels = |l: &[u16]| -> Labels { l.iter().copied().collect() };
    let kind = NodeKind::Einsum {
        inputs: [labels(&[0, 1]), labels(&[1, 2])].into_iter().collect(),
        output: labels(&[0, 2]),
        semiring: Semiring::MaxAdd,
        accumulator: DType::F64,
        dtype: DType::F64,
    };
    let y = add(&mut g, kind, &[a, b]);
    g.add_output("y", y);
    check("contraction", &g);

    let mut g = Graph::new("scan");
    let x = input(&mut g, "x", DType::F64, &[5, 31]);
    let x = functions(&mut g, x, steps);
    let kind = NodeKind::Scan {
        monoid: Monoid::Add,
        axis: 1,
        exclusive: false,
        reverse: false,
    };
    let y = add(&mut g, kind, &[x]);
    g.add_output("y", y);
    check("scan", &g);

    // Windows of images, which the schedule copies out in several ways: at the edges, and rows together.
    let mut g = Graph::new("windows");
    let x = input(&mut g, "x", DType::F32, &[20, 30, 30]);
    let pad = |n: i64| -> Box<[IndexExpr]> { [0, n, n].into_iter().map(|n: i64| n.into()).collect() };
    let (lo, hi) = (pad(1), pad(1));
    let value = Scalar::from_f64(DType::F32, 0.0);
    let mut y = add(
        &mut g,
        NodeKind::View(View::Pad {
            lo,
            hi,
            interior: [0; 3].into_iter().collect(),
            value,
        }),
        &[x],
    );
    for axis in [1, 2] {
        let window = View::Window {
            axis,
            size: 3.into(),
            stride: 1,
            dilation: 1,
        };
        y = add(&mut g, NodeKind::View(window), &[y]);
    }
    let axes = [3, 4][..].into();
    let y = add(
        &mut g,
        NodeKind::Reduce {
            monoid: Monoid::Add,
            axes,
        },
        &[y],
    );
    let y = functions(&mut g, y, steps);
    g.add_output("y", y);
    check("windows", &g);
}

#[test]
fn the_estimate_follows_the_formulas() {
    assert_eq!(map_statements(ScalarOp::Add, DType::F32), 1);
    // Two conversions up, one down.
    assert_eq!(map_statements(ScalarOp::Add, DType::F16), 4);
    assert_eq!(convert_statements(DType::F32, DType::F64), 1);
    assert!(map_statements(ScalarOp::Sin, DType::F64) > map_statements(ScalarOp::Sin, DType::F32));
    assert!(convert_statements(DType::F32, DType::F8E4M3FN) > 5);
    // No such operation.
    assert_eq!(map_statements(ScalarOp::Sin, DType::Bool), 1);
}
