//! What fusion reaches, as counts: kernel launches, library calls, copies, steps, and bytes moved.
//!
//! Every number is exact. A change that needs more launches or moves more bytes fails here, and so does one that needs
//! fewer, so that the new number is written down.

use tlc::{CompileOptions, DType, Executable, Graph, Tensor, keep, s};
use tlc_ir::plan::{Launch, Step};

const F32: DType = DType::F32;

/// What a plan does at each call.
#[derive(Debug, PartialEq, Eq)]
struct Counts {
    launches: usize,
    library: usize,
    copies: usize,
    steps: usize,
}

/// `n` kernel launches in as many steps, and nothing else.
fn launches(n: usize) -> Counts {
    Counts {
        launches: n,
        library: 0,
        copies: 0,
        steps: n,
    }
}

fn compile(record: impl FnOnce(&Graph)) -> Executable {
    let g = Graph::new("fusion");
    record(&g);
    let options = CompileOptions {
        threads: Some(1),
        ..CompileOptions::default()
    };
    g.compile(&options).unwrap_or_else(|e| panic!("{e}"))
}

fn all_launches(e: &Executable) -> Vec<&Launch> {
    let mut out = Vec::new();
    for step in &e.plan().steps {
        match step {
            Step::Launch(l) => out.push(l),
            Step::Group(all) => out.extend(all),
            Step::Gemm(_) | Step::Copy { .. } => {}
        }
    }
    out
}

fn counts(e: &Executable) -> Counts {
    let steps = &e.plan().steps;
    Counts {
        launches: all_launches(e).len(),
        library: steps.iter().filter(|s| matches!(s, Step::Gemm(_))).count(),
        copies: steps.iter().filter(|s| matches!(s, Step::Copy { .. })).count(),
        steps: steps.len(),
    }
}

/// Bytes that all launches read and write, each operand once a launch.
fn launch_bytes(e: &Executable) -> i64 {
    all_launches(e)
        .iter()
        .map(|l| l.bytes.as_const().expect("no size is symbolic"))
        .sum()
}

#[track_caller]
fn expect(expected: Counts, record: impl FnOnce(&Graph)) -> Executable {
    let e = compile(record);
    assert_eq!(counts(&e), expected, "\n{}", e.explain());
    e
}

fn input<const N: usize>(g: &Graph, name: &str, shape: [usize; N]) -> Tensor {
    g.input(name, F32, shape.to_vec())
}

#[test]
fn an_elementwise_chain_of_any_length_is_one_kernel() {
    for length in [1, 10, 100, 300] {
        let e = expect(launches(1), |g| {
            let (a, b) = (input(g, "a", [64, 256]), input(g, "b", [64, 256]));
            let mut t = a.clone();
            for i in 0..length {
                t = match i % 4 {
                    0 => &t * &b,
                    1 => &t + &a,
                    2 => (&t * 0.5).relu(),
                    _ => (&t - &b).abs(),
                };
            }
            g.output("y", &t);
        });
        assert_eq!(launch_bytes(&e), 3 * 64 * 256 * 4);
    }
}

#[test]
fn broadcasts_and_several_outputs_stay_in_one_kernel() {
    let e = expect(launches(1), |g| {
        let x = input(g, "x", [64, 256]);
        let (row, column) = (input(g, "row", [256]), input(g, "column", [64, 1]));
        let scale = g.input("scale", F32, ());
        let t = (&x * &row + &column) * &scale;
        g.output("t", &t);
        g.output("relu", &t.relu());
        g.output("squared", &(&t * &t - &x));
    });
    assert_eq!(launch_bytes(&e), (4 * 64 * 256 + 256 + 64 + 1) * 4);
}

#[test]
fn an_elementwise_kernel_over_symbolic_sizes_is_one_kernel() {
    expect(launches(1), |g| {
        let n = g.symbol("n", 1..=4096);
        let x = g.input("x", F32, (&n, 256));
        let bias = input(g, "bias", [256]);
        g.output("y", &(&x + &bias).gelu());
    });
}

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
fn an_adam_step_is_one_launch() {
    let e = expect(launches(1), |g| {
        let p = input(g, "p", [784, 256]);
        let grad = input(g, "grad", [784, 256]);
        let (m, v) = (input(g, "m", [784, 256]), input(g, "v", [784, 256]));
        let (lr, step) = (g.input("lr", F32, ()), g.input("step", F32, ()));
        let m = &m * 0.9 + &grad * 0.1;
        let v = &v * 0.999 + &grad * &grad * 0.001;
        let m_hat = &m / (1.0 - g.scalar(0.9, F32).pow(&step));
        let v_hat = &v / (1.0 - g.scalar(0.999, F32).pow(&step));
        g.output("p", &(&p - &lr * m_hat / (v_hat.sqrt() + 1e-8)));
        g.output("m", &m);
        g.output("v", &v);
    });
    assert_eq!(launch_bytes(&e), (7 * 784 * 256 + 2) * 4);
}

#[test]
fn views_that_feed_another_operation_cost_nothing() {
    type View = fn(&Tensor) -> Tensor;
    let views: [(&str, View); 8] = [
        ("reshape", |x| x.reshape([32, 128])),
        ("permute", |x| x.permute([1, 0])),
        ("slice", |x| x.slice((s(3..40), s(1..60).step(2)))),
        ("expand", |x| x.unsqueeze(0).expand([4, 64, 64])),
        ("pad", |x| x.pad(&[(1, 2), (0, 3)], 0.5)),
        ("flip", |x| x.flip([0, 1])),
        ("window", |x| x.window(1, 3, 1, 1)),
        ("all of them", |x| {
            let t = x.permute([1, 0]).slice_axis(0, s(2..34)).reshape([64, 32]);
            t.flip(1).pad(&[(1, 1), (0, 0)], 0.0).unsqueeze(1).expand([66, 2, 32])
        }),
    ];
    for (name, view) in views {
        let e = compile(|g| g.output("y", &(view(&input(g, "x", [64, 64])) * 2.0).relu()));
        assert_eq!(
            counts(&e),
            launches(1),
            "{name} before an elementwise chain\n{}",
            e.explain()
        );
        let e = compile(|g| g.output("y", &view(&input(g, "x", [64, 64])).sum(-1)));
        assert_eq!(counts(&e), launches(1), "{name} before a reduction\n{}", e.explain());
        let e = compile(|g| g.output("y", &view(&(input(g, "x", [64, 64]) * 2.0).relu()).abs()));
        assert_eq!(
            counts(&e),
            launches(1),
            "{name} between elementwise operations\n{}",
            e.explain()
        );
    }
}

#[test]
fn views_of_the_operands_of_a_large_matmul_cost_nothing() {
    expect(
        Counts {
            launches: 0,
            library: 1,
            copies: 0,
            steps: 1,
        },
        |g| {
            let (a, b) = (input(g, "a", [256, 300]), input(g, "b", [512, 256]));
            g.output("y", &a.slice_axis(1, s(20..276)).matmul(&b.t().slice_axis(1, s(..384))));
        },
    );
}

#[test]
fn an_epilogue_of_a_matmul_is_one_kernel_beside_the_library_call() {
    let one_and_one = || Counts {
        launches: 1,
        library: 1,
        copies: 0,
        steps: 2,
    };
    expect(one_and_one(), |g| {
        let (x, w) = (input(g, "x", [512, 512]), input(g, "w", [512, 512]));
        let (b, residual) = (input(g, "b", [512]), input(g, "residual", [512, 512]));
        g.output("y", &((x.matmul(&w) + &b).relu() + &residual));
    });
    expect(one_and_one(), |g| {
        let (x, w) = (input(g, "x", [512, 512]), input(g, "w", [512, 512]));
        let b = input(g, "b", [512]);
        g.output("y", &x.linear(&w, Some(&b)).gelu().layer_norm(None, None, 1e-5));
    });
}

#[test]
fn attention_is_three_steps() {
    for causal in [false, true] {
        expect(
            Counts {
                launches: 1,
                library: 2,
                copies: 0,
                steps: 3,
            },
            |g| {
                let q = input(g, "q", [8, 12, 128, 64]);
                let (k, v) = (input(g, "k", [8, 12, 128, 64]), input(g, "v", [8, 12, 128, 64]));
                let plain = tlc::Attention::new();
                let options = if causal { plain.causal() } else { plain };
                g.output("y", &q.attention(&k, &v, &options));
            },
        );
    }
}

#[test]
fn sibling_reductions_over_one_space_are_one_launch() {
    for axis in [0i64, 1] {
        let e = expect(launches(1), |g| {
            let x = input(g, "x", [512, 512]);
            g.output("sum", &x.sum(axis));
            g.output("max", &x.max(axis));
            g.output("min", &x.min(axis));
            g.output("squares", &(&x * &x).sum(axis));
        });
        assert_eq!(launch_bytes(&e), (512 * 512 + 4 * 512) * 4);
    }
}

#[test]
fn a_reduction_takes_its_producers_and_its_epilogue_along() {
    let e = expect(launches(1), |g| {
        let (x, y) = (input(g, "x", [512, 512]), input(g, "y", [512, 512]));
        let distance = (&x - &y).square().sum(-1).sqrt();
        g.output("distance", &(distance * 0.5 + 1.0));
    });
    assert_eq!(launch_bytes(&e), (2 * 512 * 512 + 512) * 4);
    expect(launches(1), |g| {
        let x = input(g, "x", [512, 512]);
        let e = (&x - x.max(keep(-1))).exp();
        g.output("y", &(&e / e.sum(keep(-1))));
        g.output("largest", &x.max(-1));
    });
}

#[test]
fn small_independent_elementwise_graphs_run_in_one_group() {
    expect(
        Counts {
            launches: 6,
            library: 0,
            copies: 0,
            steps: 1,
        },
        |g| {
            for (i, shape) in [[3, 5], [16, 16], [7, 1], [1, 64], [30, 30], [2, 2]]
                .into_iter()
                .enumerate()
            {
                let (p, grad) = (input(g, &format!("p{i}"), shape), input(g, &format!("g{i}"), shape));
                g.output(&format!("y{i}"), &(&p - &grad * 0.01));
            }
        },
    );
}

#[test]
fn equal_kernels_are_compiled_once() {
    let e = expect(
        Counts {
            launches: 12,
            library: 12,
            copies: 0,
            steps: 24,
        },
        |g| {
            let mut x = input(g, "x", [256, 256]);
            for layer in 0..12 {
                let w = input(g, &format!("w{layer}"), [256, 256]);
                let b = input(g, &format!("b{layer}"), [256]);
                x = (x.matmul(&w) + &b).relu();
            }
            g.output("y", &x);
        },
    );
    assert_eq!(e.plan().kernels.len(), 1);
}
