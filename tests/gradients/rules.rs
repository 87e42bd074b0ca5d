//! Every other kind of node: views, contractions, reductions, scans, gathers, scatters, sorts, conversions.

use tlc::ir::graph::HostFunction;
use tlc::{DType, Monoid, ScatterOp, Semiring, Tensor, einsum, einsum_over, keep, s};

use crate::against::{check, check_on, host};

#[test]
fn views() {
    let m = &[(&[3usize, 4][..], -2.0, 2.0)];
    check("reshape", m, |_, x| x[0].reshape([2, 6]).square());
    check("permute", &[(&[2, 3, 4], -2.0, 2.0)], |_, x| {
        x[0].permute([2, 0, 1]).square()
    });
    check("expand", &[(&[3, 1], -2.0, 2.0)], |_, x| {
        x[0].expand([2, 3, 4]).square()
    });
    check("expand rank 0", &[(&[], -2.0, 2.0)], |_, x| {
        x[0].expand([2, 3]).square()
    });
    check("expand of ones", &[(&[1, 1], -2.0, 2.0)], |_, x| {
        x[0].expand([1, 3]).square()
    });
    check("pad", m, |_, x| x[0].pad(&[(1, 2), (0, 3)], 5.0).square());
    check("pad interior", m, |_, x| {
        x[0].pad_interior(&[(1, 2), (0, 3)], &[2, 1], 5.0).square()
    });
    check("slice", m, |_, x| x[0].slice((s(1..), s(..3))).square());
    check("slice with steps", m, |_, x| {
        x[0].slice((s(..).step(2), s(1..).step(2))).square()
    });
    check("flip", m, |_, x| x[0].flip([0, 1]).square().cumsum(0));
    check("slice backwards", &[(&[9], -2.0, 2.0)], |_, x| {
        x[0].slice(tlc::Slice::down(7, 0).step(-3)).square()
    });
    check("one element", m, |_, x| x[0].select_index(1, 2).square());
    check("nothing", m, |_, x| x[0].slice(s(1..1)).square());
}

#[test]
fn windows() {
    let v = &[(&[11usize][..], -2.0, 2.0)];
    for (size, stride, dilation) in [
        (3, 1, 1),
        (3, 2, 1),
        (2, 3, 1),
        (3, 1, 2),
        (4, 2, 3),
        (9, 1, 1),
        (11, 1, 1),
        (1, 1, 1),
    ] {
        let name = format!("window {size} {stride} {dilation}");
        check(&name, v, |_, x| x[0].window(0, size, stride, dilation).square());
    }
    check("windows of two axes", &[(&[2, 5, 6], -2.0, 2.0)], |_, x| {
        x[0].window(1, 3, 2, 1).window(2, 2, 1, 1).square()
    });
    check("long windows inside", &[(&[2, 12, 3], -2.0, 2.0)], |_, x| {
        x[0].window(1, 10, 1, 1).square()
    });
}

#[test]
fn contractions() {
    let (a, b) = ((&[3usize, 4][..], -2.0, 2.0), (&[4usize, 2][..], -2.0, 2.0));
    let square = (&[3usize, 3][..], -2.0, 2.0);
    check("product", &[a, b], |_, x| x[0].matmul(&x[1]));
    check("batch", &[(&[2, 3, 4], -2.0, 2.0), (&[4, 2], -2.0, 2.0)], |_, x| {
        x[0].matmul(&x[1])
    });
    check("three", &[a, b, (&[2, 3], -2.0, 2.0)], |_, x| {
        einsum("ij,jk,kl->il", &[&x[0], &x[1], &x[2]])
    });
    check("a label of one operand", &[a, b], |_, x| {
        einsum("ij,kl->il", &[&x[0], &x[1]])
    });
    check("a sum", &[a], |_, x| einsum("ij->j", &[&x[0]]));
    check("a transpose", &[a], |_, x| einsum("ij->ji", &[&x[0]]));
    check("everything", &[a], |_, x| einsum("ij->", &[&x[0]]));
    check("diagonal", &[square], |_, x| einsum("ii->i", &[&x[0]]));
    check("trace", &[square], |_, x| einsum("ii->", &[&x[0]]));
    check("diagonal times", &[square, square], |_, x| {
        einsum("ii,ij->j", &[&x[0], &x[1]])
    });
    check("three times", &[(&[2, 2, 2], -2.0, 2.0)], |_, x| {
        einsum("iii->i", &[&x[0]])
    });
    check("twice", &[a], |_, x| einsum("ij,ij->i", &[&x[0], &x[0]]));
    check("thrice", &[a], |_, x| einsum("ij,kj,ij->ik", &[&x[0], &x[0], &x[0]]));
    check("broadcast", &[(&[3, 1], -2.0, 2.0), (&[3, 4], -2.0, 2.0)], |_, x| {
        einsum("ij,ij->ij", &[&x[0], &x[1]])
    });
    check("outer", &[(&[3], -2.0, 2.0), (&[4], -2.0, 2.0)], |_, x| {
        x[0].outer(&x[1])
    });
    check("scalars", &[(&[], -2.0, 2.0), (&[4], -2.0, 2.0)], |_, x| {
        einsum(",i->i", &[&x[0], &x[1]])
    });
    check("mixed dtypes", &[a], |g, x| {
        x[0].matmul(&g.constant([[1i32, 2], [3, 4], [5, 6], [7, 8]]))
    });
}

#[test]
fn contractions_over_other_semirings() {
    let (a, b) = ((&[3usize, 4][..], 0.5, 2.0), (&[4usize, 2][..], 0.5, 2.0));
    for semiring in Semiring::ALL {
        let name = semiring.name();
        match semiring {
            Semiring::OrAnd => check(name, &[a, b], |_, x| {
                let both = [x[0].gt(1.0), x[1].gt(1.0)];
                einsum_over(semiring, "ij,jk->ik", &[&both[0], &both[1]]).cast(DType::F64)
            }),
            // Of words, which are no floats: nothing to derive.
            Semiring::AddDot4 => {}
            Semiring::AddMul | Semiring::MaxAdd | Semiring::MinAdd | Semiring::MaxMul => {
                check(name, &[a, b], |_, x| {
                    einsum_over(semiring, "ij,jk->ki", &[&x[0], &x[1]])
                });
                check(name, &[a, a], |_, x| {
                    einsum_over(semiring, "ij,ij->ij", &[&x[0], &x[1]])
                });
                check(name, &[(&[3, 3], 0.5, 2.0), a], |_, x| {
                    einsum_over(semiring, "ii,ij->i", &[&x[0], &x[1]])
                });
            }
        }
    }
}

#[test]
fn reductions() {
    let t = &[(&[3usize, 2, 4][..], -2.0, 2.0)];
    for monoid in Monoid::ALL {
        let name = monoid.name();
        match monoid {
            Monoid::Add => {
                check(name, t, |_, x| x[0].sum([0, 2]).square());
                check("mean", t, |_, x| x[0].mean(1).square());
                check("var", t, |_, x| x[0].var(.., 1));
                check("std", t, |_, x| x[0].std(keep(1), 0));
                check("softmax", t, |_, x| x[0].softmax(-1).square());
                check("log_softmax", t, |_, x| x[0].log_softmax(0));
                check("logsumexp", t, |_, x| x[0].logsumexp([1, 2]));
                check("norm", t, |_, x| x[0].norm(2));
            }
            Monoid::Mul => {
                check(name, t, |_, x| x[0].prod(1));
                check(name, t, |_, x| x[0].prod([0, 2]));
                check(name, t, |_, x| x[0].prod(..));
                // One zero in a row, and two.
                let zeros = host(&[3, 3], &[1.0, 0.0, 2.0, 0.0, 3.0, 0.0, 4.0, 5.0, 6.0]);
                check_on("product with zeros", &[zeros], |_, x| x[0].prod(1));
            }
            Monoid::Max => check(name, t, |_, x| x[0].max([0, 1]).square()),
            Monoid::Min => check(name, t, |_, x| x[0].min(..)),
            Monoid::And => check(name, t, |_, x| x[0].gt(0.0).all(1).cast(DType::F64)),
            Monoid::Or => check(name, t, |_, x| x[0].gt(0.0).any(1).cast(DType::F64)),
            Monoid::ArgMax => check(name, t, |_, x| x[0].argmax(1).cast(DType::F64)),
            Monoid::ArgMin => check(name, t, |_, x| x[0].argmin(1).cast(DType::F64)),
        }
    }
}

#[test]
fn scans() {
    let t = &[(&[2usize, 5][..], -2.0, 2.0)];
    let zeros = host(
        &[4, 4],
        &[
            1.5, 0.0, 2.0, -3.0, 0.0, 3.0, 0.0, 1.0, 4.0, 5.0, 6.0, 0.0, 0.0, 0.0, 0.0, 2.0,
        ],
    );
    for monoid in Monoid::ALL {
        for (exclusive, reverse) in [(false, false), (true, false), (false, true), (true, true)] {
            let name = format!("scan {} {exclusive} {reverse}", monoid.name());
            match monoid {
                Monoid::Add | Monoid::Mul => {
                    check(&name, t, |_, x| x[0].scan(monoid, 1, exclusive, reverse));
                    let inputs = [zeros.clone()];
                    check_on(&name, &inputs, |_, x| x[0].scan(monoid, 1, exclusive, reverse));
                    check_on(&name, &inputs, |_, x| x[0].scan(monoid, 0, exclusive, reverse));
                }
                // The identity of an exclusive one is too large for differences.
                Monoid::Max | Monoid::Min => {
                    check(&name, t, |_, x| x[0].scan(monoid, 1, exclusive, reverse).clamp(-3, 3))
                }
                Monoid::And | Monoid::Or => check(&name, t, |_, x| {
                    x[0].gt(0.0).scan(monoid, 1, exclusive, reverse).cast(DType::F64)
                }),
                Monoid::ArgMax | Monoid::ArgMin => {}
            }
        }
    }
}

#[test]
fn gathers_and_scatters() {
    let (m, v) = ((&[3usize, 4][..], -2.0, 2.0), (&[4usize][..], -2.0, 2.0));
    check("take", &[m], |g, x| {
        x[0].take(&g.constant([[2i64, 0], [2, 2]]), 0).square()
    });
    check("gather", &[m], |g, x| {
        let (i, j) = (g.constant([2i64, 0, 2, 9]), g.constant([1i64, 1, 1, 0]));
        x[0].gather(&[0, 1], &[&i, &j]).square()
    });
    check("take_along_axis", &[m], |g, x| {
        x[0].take_along_axis(&g.constant([[2i64], [0], [3]]), 1).square()
    });
    for how in ScatterOp::ALL {
        let name = how.name();
        // Twice to the same place, once beside it.
        let duplicates =
            |g: &tlc::Graph, x: &[Tensor]| x[0].scatter(&[0], &[&g.constant([2i64, 0, 2, 7])], &x[1], how).square();
        check(name, &[m, (&[4, 4], -2.0, 2.0)], duplicates);
        check(name, &[m, v], |g, x| {
            let (i, j) = (g.constant([2i64, 0, 2, 1]), g.constant([1i64, 1, 1, 3]));
            x[0].scatter(&[0, 1], &[&i, &j], &x[1], how).square()
        });
        check(name, &[(&[3, 4, 2], -2.0, 2.0), (&[2, 3, 2], -2.0, 2.0)], |g, x| {
            x[0].scatter(&[1], &[&g.constant([2i64, 0])], &x[1], how).square()
        });
    }
    let base = host(&[4], &[0.0, 2.0, 0.0, 3.0]);
    let updates = host(&[6], &[5.0, 0.0, 0.0, 7.0, 0.0, 1.5]);
    check_on("scatter mul with zeros", &[base, updates], |g, x| {
        let at = g.constant([0i64, 1, 2, 2, 3, 3]);
        x[0].scatter(&[0], &[&at], &x[1], ScatterOp::Mul)
    });
}

#[test]
fn host_functions() {
    // A line for each: one that is new does not compile here.
    let listed = |function: &HostFunction| match function {
        HostFunction::Sort { .. } | HostFunction::Unique { .. } => true,
        HostFunction::NonZero { .. } | HostFunction::Suppress { .. } => false,
    };
    let _ = listed;
    let m = &[(&[3usize, 5][..], -2.0, 2.0)];
    check("sort", m, |_, x| x[0].sort(1, false).cumsum(1).square());
    check("sort down", m, |_, x| x[0].sort(0, true).cumsum(0).square());
    check("top_k", m, |_, x| x[0].top_k(2, 1, true).0.square());
    check("unique", m, |_, x| x[0].unique(None, true).values.square().sum(..));
    check("unique rows", m, |_, x| {
        x[0].unique(Some(0), true).values.square().sum(..)
    });
    check("nonzero", m, |_, x| {
        let places = x[0].gt(0.0).flatten().nonzero().select_index(0, 0);
        x[0].flatten().take(&places, 0).square().sum(..)
    });
}

#[test]
fn conversions_and_copies() {
    let m = &[(&[3usize, 4][..], -2.0, 2.0)];
    check("copy", m, |_, x| x[0].copy().square());
    check("to integers", m, |_, x| x[0].cast(DType::I32).cast(DType::F64));
    check("to bool", m, |_, x| x[0].cast(DType::Bool).cast(DType::F64));
    check("random", m, |g, x| &x[0] * g.rand([3, 4], DType::F64));
}

/// What is recorded of several operations.
#[test]
fn compositions() {
    check("layer norm", &[(&[3, 8], -2.0, 2.0)], |_, x| {
        let centered = &x[0] - x[0].mean(keep(-1));
        &centered / (centered.square().mean(keep(-1)) + 1e-5).sqrt()
    });
    check(
        "attention",
        &[(&[4, 3], -1.0, 1.0), (&[5, 3], -1.0, 1.0), (&[5, 2], -1.0, 1.0)],
        |_, x| x[0].matmul(&x[1].t()).softmax(-1).matmul(&x[2]),
    );
    check(
        "conv",
        &[(&[2, 3, 6, 5], -1.0, 1.0), (&[4, 3, 3, 3], -1.0, 1.0)],
        |_, x| x[0].conv(&x[1], None, &tlc::Conv::new().padding(1).stride(2)),
    );
    check("max pool", &[(&[1, 2, 6, 6], -1.0, 1.0)], |_, x| {
        x[0].max_pool(&tlc::Pool::new(2).stride(2))
    });
    check("gelu", &[(&[9], -2.0, 2.0)], |_, x| x[0].gelu());
    check("silu", &[(&[9], -2.0, 2.0)], |_, x| x[0].silu());
    check("softplus", &[(&[9], -2.0, 2.0)], |_, x| x[0].softplus());
    check("cross entropy", &[(&[4, 5], -2.0, 2.0)], |g, x| {
        x[0].cross_entropy(&g.constant([1i64, 0, 4, 2]))
    });
    check("determinant", &[(&[3, 3], -2.0, 2.0)], |_, x| x[0].det());
    check("concat", &[(&[2, 3], -2.0, 2.0), (&[1, 3], -2.0, 2.0)], |_, x| {
        tlc::concat(&[&x[0], &x[1]], 0).square()
    });
    check("roll", &[(&[5], -2.0, 2.0)], |_, x| x[0].roll(2, 0).cumsum(0).square());
}
