//! Softmax, norms, mean and variance: what reads a row several times is one kernel that reads it once.

use tlc::{Tensor, keep};

use crate::{F32, compile, counts, expect, input, launch_bytes, launches};

/// One launch that reads its row once and writes its result once.
fn row_local(name: &str, rows: usize, columns: usize, result: usize, f: impl Fn(&Tensor) -> Tensor) {
    let e = compile(|g| g.output(name, &f(&input(g, "x", [rows, columns]))));
    assert_eq!(counts(&e), launches(1), "{name}\n{}", e.explain());
    assert_eq!(launch_bytes(&e), ((rows * columns + result) * 4) as i64, "{name}");
}

#[test]
fn row_local_functions_are_one_launch_that_reads_each_row_once() {
    for (rows, columns) in [(4096, 1024), (4096, 10), (3, 7)] {
        let all = rows * columns;
        row_local("softmax", rows, columns, all, |x| x.softmax(-1));
        row_local("log_softmax", rows, columns, all, |x| x.log_softmax(-1));
        row_local("logsumexp", rows, columns, rows, |x| x.logsumexp(-1));
        row_local("layer_norm", rows, columns, all, |x| x.layer_norm(None, None, 1e-5));
        row_local("rms_norm", rows, columns, all, |x| x.rms_norm(None, 1e-5));
    }
}

#[test]
fn norms_take_weight_bias_and_residual_into_the_same_launch() {
    expect(launches(1), |g| {
        let (x, residual) = (input(g, "x", [512, 384]), input(g, "residual", [512, 384]));
        let (w, b) = (input(g, "w", [384]), input(g, "b", [384]));
        g.output("y", &(&x + &residual).layer_norm(Some(&w), Some(&b), 1e-5).relu());
    });
    expect(launches(1), |g| {
        let x = input(g, "x", [512, 384]);
        let w = input(g, "w", [384]);
        g.output("y", &(x.rms_norm(Some(&w), 1e-6) * 2.0));
    });
}

#[test]
fn mean_and_variance_are_one_launch() {
    let e = expect(launches(1), |g| {
        let x = input(g, "x", [512, 384]);
        g.output("mean", &x.mean(-1));
        g.output("var", &x.var(-1, 0));
    });
    assert_eq!(launch_bytes(&e), (512 * 384 + 2 * 512) * 4);
}

#[test]
fn row_local_functions_stay_one_launch_at_odd_ranks_and_sizes() {
    type Function = fn(&Tensor) -> Tensor;
    let functions: [(&str, Function); 6] = [
        ("softmax", |x| x.softmax(-1)),
        ("log_softmax", |x| x.log_softmax(-1)),
        ("logsumexp", |x| x.logsumexp(-1)),
        ("layer_norm", |x| x.layer_norm(None, None, 1e-5)),
        ("rms_norm", |x| x.rms_norm(None, 1e-5)),
        ("var", |x| x.var(-1, 1)),
    ];
    for (name, f) in functions {
        for shape in [[3, 5, 7, 131], [1, 1, 1, 1000], [2, 1, 9, 1], [5, 3, 1, 17]] {
            let e = compile(|g| g.output(name, &f(&input(g, "x", shape))));
            assert_eq!(counts(&e), launches(1), "{name} of {shape:?}\n{}", e.explain());
        }
        // Rows of a length that only the caller knows, up to what the cache does not hold.
        expect(launches(1), |g| {
            let (n, t) = (g.symbol("n", 1..=1 << 20), g.symbol("t", 1..=1 << 20));
            g.output(name, &f(&g.input("x", F32, (&n, 3, &t))));
        });
    }
}

#[test]
fn row_local_functions_over_other_axes_than_the_last_are_one_launch_that_reads_once() {
    type Function = fn(&Tensor, &[i64]) -> Tensor;
    let functions: [(&str, Function); 3] = [
        ("softmax", |x, axes| {
            let e = (x - x.max(keep(axes))).exp();
            &e / e.sum(keep(axes))
        }),
        ("log_softmax", |x, axes| x - x.logsumexp(keep(axes))),
        ("layer_norm", |x, axes| {
            let centered = x - x.mean(keep(axes));
            let variance = centered.square().mean(keep(axes));
            &centered / (variance + 1e-5).sqrt()
        }),
    ];
    let cases: [(&[usize], &[i64]); 9] = [
        (&[1024, 1024], &[0]),
        (&[2000, 300], &[0]),
        (&[32, 128, 64, 64], &[1]),
        (&[4, 7, 5, 3], &[1]),
        (&[8, 16, 12, 20], &[1, 2]),
        (&[8, 16, 12, 20], &[0, 1]),
        (&[8, 16, 12, 20], &[0, 2]),
        (&[33, 17, 1], &[0]),
        (&[3, 9, 1, 131], &[1]),
    ];
    for (name, f) in functions {
        for (shape, axes) in cases {
            let e = compile(|g| g.output(name, &f(&g.input("x", F32, shape.to_vec()), axes)));
            assert_eq!(
                counts(&e),
                launches(1),
                "{name} of {shape:?} over {axes:?}\n{}",
                e.explain()
            );
            let all: usize = shape.iter().product();
            assert_eq!(
                launch_bytes(&e),
                (2 * all * 4) as i64,
                "{name} of {shape:?} over {axes:?}"
            );
        }
        // As many columns as the caller likes, of a length that is bounded.
        expect(launches(1), |g| {
            let (n, h) = (g.symbol("n", 1..=64), g.symbol("h", 1..=1 << 20));
            g.output(name, &f(&g.input("x", F32, (&n, 100, &h)), &[1]));
        });
        expect(launches(1), |g| {
            let h = g.symbol("h", 1..=1000);
            g.output(name, &f(&g.input("x", F32, (&h, 100)), &[0]));
        });
    }
    let e = compile(|g| g.output("y", &input(g, "x", [128, 1000]).logsumexp(0)));
    assert_eq!(counts(&e), launches(1), "{}", e.explain());
    assert_eq!(launch_bytes(&e), (128 * 1000 + 1000) * 4);
}

#[test]
fn columns_of_which_no_tile_stays_in_cache_are_refused_with_the_reason() {
    let e = compile(|g| g.output("y", &input(g, "x", [100_000, 64]).softmax(0)));
    assert!(counts(&e).launches > 1, "{}", e.explain());
    assert!(
        e.explain().contains("columns of up to 100000 elements"),
        "{}",
        e.explain()
    );
    let e = compile(|g| {
        let t = g.symbol("t", 1..=1 << 30);
        g.output("y", &g.input("x", F32, (&t, 64)).softmax(0));
    });
    assert!(counts(&e).launches > 1, "{}", e.explain());
    assert!(
        e.explain().contains("no tile of them stays in cache"),
        "{}",
        e.explain()
    );
}

#[test]
fn symbolic_rows_are_judged_by_the_middle_of_their_range() {
    // Half a million to two million elements are never held in cache: the row is read again.
    let e = compile(|g| {
        let t = g.symbol("t", 500_000..=2_000_000);
        g.output("y", &g.input("x", F32, (64, &t)).softmax(-1));
    });
    assert!(counts(&e).launches > 1, "{}", e.explain());
    assert!(e.explain().contains("do not stay in cache"));
}

#[test]
fn mean_and_variance_of_rank_four_are_one_launch() {
    for (shape, axis) in [([2, 3, 5, 77], -1), ([4, 1, 33, 9], -1)] {
        let e = expect(launches(1), |g| {
            let x = input(g, "x", shape);
            g.output("mean", &x.mean(axis));
            g.output("var", &x.var(axis, 1));
        });
        let all: usize = shape.iter().product();
        assert_eq!(launch_bytes(&e), ((all + 2 * all / shape[3]) * 4) as i64);
    }
}
