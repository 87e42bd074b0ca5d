//! Every kind of node of one result, with each choice of operands that differ from example to example.

use tlc::ir::graph::NodeKind;
use tlc::{DType, Monoid, ScatterOp, Semiring, Tensor, einsum, einsum_over, s};

use crate::against::check;

const F: DType = DType::F64;

/// A line for each kind of node: one that is new does not compile here.
fn listed(kind: &NodeKind) {
    match kind {
        NodeKind::Input { .. } | NodeKind::Const(_) | NodeKind::Data(_) | NodeKind::Iota { .. } => {}
        NodeKind::Random { .. } | NodeKind::Map(_) | NodeKind::Convert(_) | NodeKind::Bitcast(_) => {}
        NodeKind::Einsum { .. } | NodeKind::Reduce { .. } | NodeKind::View(_) | NodeKind::Gather { .. } => {}
        NodeKind::Scatter { .. } | NodeKind::Scan { .. } | NodeKind::Copy => {}
        // In `control.rs`.
        NodeKind::Loop(_) | NodeKind::Call(_) | NodeKind::Region(_) | NodeKind::Project(_) => {}
    }
}

const _: fn(&NodeKind) = listed;

/// Checks `f` for each choice of operands that differ, whose examples lie along their first axis; and along their last.
fn every(name: &str, given: &[(DType, &[usize])], f: impl Fn(&[Tensor]) -> Vec<Tensor>) {
    for choice in 1..1usize << given.len() {
        for last in [false, true] {
            let axis = |k: usize, rank: usize| (choice >> k & 1 == 1).then_some(if last { rank } else { 0 });
            let operands: Vec<_> = (given.iter().enumerate())
                .map(|(k, (dtype, shape))| (*dtype, *shape, axis(k, shape.len())))
                .collect();
            check(&format!("{name}, {choice:b}"), &operands, &f);
        }
    }
}

/// Places in an axis of 4, some beyond it.
fn places(x: &Tensor) -> Tensor {
    x.abs() % 5
}

#[test]
fn elementwise() {
    every("map", &[(F, &[2, 3]), (F, &[2, 3]), (DType::Bool, &[2, 3])], |x| {
        vec![x[0].atan2(&x[1]) * 2.0, x[2].select(&x[0], &x[1]), x[0].lt(&x[1])]
    });
    every("broadcast", &[(F, &[2, 1]), (F, &[3])], |x| {
        vec![&x[0] * &x[1], x[0].exp() + 1.0]
    });
    every("conversions", &[(DType::F32, &[4])], |x| {
        vec![
            x[0].cast(DType::I32),
            x[0].bitcast(DType::U32),
            x[0].cast(DType::F16),
            x[0].copy(),
        ]
    });
    every("values of no operand", &[(F, &[3])], |x| {
        let g = x[0].graph();
        let table = g.constant((0..80).map(f64::from).collect::<Vec<_>>()).reshape([80]);
        vec![
            &x[0] + g.range(3, F),
            table.narrow(0, 10, 3) * &x[0],
            g.range(4, DType::I64),
            x[0].clone(),
            g.scalar(1.5, F),
        ]
    });
}

#[test]
fn contractions() {
    every("product", &[(F, &[2, 3]), (F, &[3, 4])], |x| vec![x[0].matmul(&x[1])]);
    every("three", &[(F, &[2, 3]), (F, &[3, 4]), (F, &[4])], |x| {
        vec![einsum("ij,jk,k->i", &[&x[0], &x[1], &x[2]])]
    });
    every("diagonal", &[(F, &[3, 3]), (F, &[3, 2])], |x| {
        vec![einsum("ii,ij->j", &[&x[0], &x[1]])]
    });
    every("one of a label", &[(F, &[1, 3]), (F, &[2, 3])], |x| {
        vec![einsum("ij,ij->i", &[&x[0], &x[1]])]
    });
    every("scalars", &[(F, &[]), (F, &[])], |x| {
        vec![einsum(",->", &[&x[0], &x[1]])]
    });
    for semiring in Semiring::ALL {
        let name = semiring.name();
        every(name, &[(F, &[2, 3]), (F, &[3, 2])], |x| match semiring {
            Semiring::OrAnd => vec![einsum_over(semiring, "ij,jk->ki", &[&x[0].gt(1.0), &x[1].gt(1.0)])],
            Semiring::AddDot4 => {
                let words = [0, 1].map(|k: usize| (&x[k] * 1e6).cast(DType::I32));
                vec![einsum_over(semiring, "ij,jk->ki", &[&words[0], &words[1]])]
            }
            _ => vec![einsum_over(semiring, "ij,jk->ki", &[&x[0], &x[1]])],
        });
    }
}

#[test]
fn reductions_and_scans() {
    for monoid in Monoid::ALL {
        let name = monoid.name();
        every(name, &[(F, &[2, 3, 2])], |x| {
            let x = &x[0];
            match monoid {
                Monoid::Add => vec![x.sum([0, 2]), x.sum(..), x.cumsum(1), x.scan(monoid, 0, true, true)],
                Monoid::Mul => vec![x.prod(1), x.scan(monoid, 2, true, false)],
                Monoid::Max => vec![x.max([1, 2]), x.scan(monoid, 1, false, true)],
                Monoid::Min => vec![x.min(..), x.scan(monoid, 1, false, false)],
                Monoid::And => vec![x.gt(0.0).all(1), x.gt(0.0).scan(monoid, 1, false, false)],
                Monoid::Or => vec![x.gt(0.0).any([0, 1]), x.gt(0.0).scan(monoid, 1, true, false)],
                Monoid::ArgMax => vec![x.argmax(1)],
                Monoid::ArgMin => vec![x.argmin(2)],
            }
        });
    }
    every("softmax", &[(F, &[3, 4])], |x| {
        vec![x[0].softmax(1), x[0].var(0, 1), x[0].logsumexp(..)]
    });
}

#[test]
fn views() {
    every("views", &[(F, &[2, 3, 4])], |x| {
        let x = &x[0];
        vec![
            x.reshape([4, 6]),
            x.permute([2, 0, 1]),
            x.slice(s![.., 1..3, ..]),
            x.flip([0, 2]),
            x.pad(&[(1, 0), (0, 2), (3, 3)], 7.0),
            x.window(1, 2, 1, 1),
            x.window(2, 2, 2, 1),
            x.sum(..).reshape([1, 1]).expand([3, 2]),
        ]
    });
    every("expand", &[(F, &[1, 3]), (F, &[])], |x| {
        vec![x[0].expand([2, 5, 3]), x[1].expand([2, 2]), x[0].expand([4, 3])]
    });
    every("concat", &[(F, &[2, 3]), (F, &[1, 3])], |x| {
        vec![tlc::concat(&[&x[0], &x[1]], 0)]
    });
}

#[test]
fn gathers_and_scatters() {
    let i = DType::I64;
    every("take", &[(F, &[4, 3]), (i, &[2, 2])], |x| {
        vec![x[0].take_from_start(&places(&x[1]), 0)]
    });
    every("take, last", &[(F, &[3, 4]), (i, &[2])], |x| {
        vec![x[0].take_from_start(&places(&x[1]), 1)]
    });
    every("gather", &[(F, &[4, 2, 4]), (i, &[3]), (DType::I32, &[3])], |x| {
        vec![x[0].gather(&[2, 0], &[&places(&x[1]), &places(&x[2])])]
    });
    every("along an axis", &[(F, &[2, 4]), (i, &[2, 3])], |x| {
        vec![x[0].take_along_axis(&(x[1].abs() % 4), 1)]
    });
    for how in ScatterOp::ALL {
        let name = how.name();
        every(name, &[(F, &[4, 2]), (i, &[5]), (F, &[5, 2])], |x| {
            vec![x[0].scatter(&[0], &[&places(&x[1])], &x[2], how)]
        });
        every(name, &[(F, &[2, 4, 2]), (i, &[3]), (F, &[3, 2, 2])], |x| {
            vec![x[0].scatter(&[1], &[&places(&x[1])], &x[2], how)]
        });
        every(name, &[(F, &[4, 4]), (i, &[6]), (F, &[6])], |x| {
            let at = places(&x[1]);
            vec![x[0].scatter(&[0, 1], &[&at, &(&at + 1)], &x[2], how)]
        });
    }
}

#[test]
fn compositions() {
    every("attention", &[(F, &[4, 3]), (F, &[5, 3]), (F, &[5, 2])], |x| {
        vec![x[0].matmul(&x[1].t()).softmax(-1).matmul(&x[2])]
    });
    every("conv", &[(F, &[2, 6, 5]), (F, &[3, 2, 3, 3])], |x| {
        let image = x[0].unsqueeze(0);
        vec![image.conv(&x[1], None, &tlc::Conv::new().padding(1).stride(2))]
    });
    every("losses", &[(F, &[4, 5]), (DType::U8, &[4])], |x| {
        vec![
            x[0].cross_entropy(&(&x[1] % 5).cast(DType::I64)),
            x[0].gelu(),
            x[0].norm(1),
        ]
    });
    every("determinant", &[(F, &[3, 3])], |x| vec![x[0].det()]);
}
