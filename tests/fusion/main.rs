//! What fusion reaches, as counts: kernel launches, library calls, copies, steps, and bytes moved.
//!
//! Every number is exact. A change that needs more launches or moves more bytes fails here, and so does one that needs
//! fewer, so that the new number is written down.

mod row_local;

use tlc::{Attention, CompileOptions, DType, Executable, Graph, HostTensor, Input, Scalar, Tensor, keep, s};
use tlc_ir::ScalarOp;
use tlc_ir::kernel::{Op, Stmt};
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
    e.plan().steps.iter().flat_map(Step::launches).collect()
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

/// A chain of `steps` steps over a matrix, a row and a column, with an output every `outputs` steps; returns the last value.
fn chain(g: &Graph, shape: [usize; 2], steps: usize, outputs: usize) -> Tensor {
    let (a, b) = (input(g, "a", shape), input(g, "b", shape));
    let (row, column) = (input(g, "row", [shape[1]]), input(g, "column", [shape[0], 1]));
    let mut t = a.clone();
    for i in 0..steps {
        t = match i % 5 {
            0 => &t * &b,
            1 => &t + &row,
            2 => t.relu(),
            3 => &t - &column,
            _ => t.abs(),
        };
        if (i + 1) % outputs == 0 {
            g.output(&format!("y{i}"), &t);
        }
    }
    t
}

#[test]
fn an_elementwise_chain_of_any_length_is_one_kernel() {
    for length in [5, 10, 100, 300, 1000, 10_000] {
        let e = expect(launches(1), |g| drop(chain(g, [64, 256], length, length)));
        assert_eq!(launch_bytes(&e), (3 * 64 * 256 + 256 + 64) * 4, "{length}");
        // Each step is a rounding of its own, so the interpreter's result is the result.
        let g = Graph::new("chain");
        chain(&g, [3, 7], length, length);
        let e = g.compile(&CompileOptions::default()).unwrap();
        let data: Vec<HostTensor> = [&[3, 7][..], &[3, 7], &[7], &[3, 1]]
            .iter()
            .enumerate()
            .map(|(k, shape)| {
                let n: usize = shape.iter().product();
                let values: Vec<f32> = (0..n).map(|i| 1.0 - ((i * 7 + k) % 5) as f32 * 0.3).collect();
                HostTensor::from_slice(shape, &values).unwrap()
            })
            .collect();
        let inputs: Vec<Input<'_>> = data.iter().map(Input::from).collect();
        let found = e.run(&inputs).unwrap()[0].to_host();
        let ir = g.finish().unwrap();
        let expected = tlc_ir::interp::interpret(&ir, &data, &Default::default()).unwrap();
        assert_eq!(found, expected[0], "{length}");
    }
}

#[test]
fn a_long_chain_with_an_output_at_every_hundredth_step_is_one_kernel() {
    let e = expect(launches(1), |g| drop(chain(g, [64, 256], 5000, 100)));
    assert_eq!(launch_bytes(&e), (52 * 64 * 256 + 256 + 64) * 4);
}

#[test]
fn a_chain_of_a_hundred_thousand_steps_is_cut_at_the_limit_and_says_so() {
    let steps = 100_000;
    let e = compile(|g| drop(chain(g, [16, 16], steps, steps)));
    let limit = tlc_passes::cluster::MAX_KERNEL_STATEMENTS as usize;
    assert!(counts(&e).launches <= steps / limit + 2, "{:?}", counts(&e));
    assert!(e.explain().contains("the kernel would have"));
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
fn an_epilogue_of_a_matmul_is_one_kernel_in_its_step() {
    let one_and_one = || Counts {
        launches: 1,
        library: 1,
        copies: 0,
        steps: 1,
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

/// Scores, their softmax behind them, and the product with the values behind that.
fn one_step() -> Counts {
    Counts {
        launches: 1,
        library: 1,
        copies: 0,
        steps: 1,
    }
}

#[test]
fn attention_is_one_step_and_its_scores_are_in_no_memory() {
    for causal in [false, true] {
        let e = expect(one_step(), |g| {
            let q = input(g, "q", [8, 12, 128, 64]);
            let (k, v) = (input(g, "k", [8, 12, 128, 64]), input(g, "v", [8, 12, 128, 64]));
            let plain = Attention::new();
            let options = if causal { plain.causal() } else { plain };
            g.output("y", &q.attention(&k, &v, &options));
        });
        arena_is(&e, 0);
    }
}

/// The arena holds so many bytes, and no placement could do with less.
#[track_caller]
fn arena_is(e: &Executable, bytes: u64) {
    let layout = tlc_passes::memory::pack(e.plan(), &[]).unwrap();
    assert_eq!((layout.host().bytes, layout.host().lower_bound_bytes), (bytes, bytes));
}

#[test]
fn attention_takes_masks_layouts_and_symbolic_sizes_into_its_step() {
    // A mask for all heads, as bool and as something added; more keys than queries, odd sizes.
    for dtype in [DType::Bool, F32] {
        let e = expect(one_step(), |g| {
            let q = input(g, "q", [2, 3, 65, 20]);
            let (k, v) = (input(g, "k", [2, 3, 77, 20]), input(g, "v", [2, 3, 77, 24]));
            let mask = g.input("mask", dtype, [2, 1, 65, 77]);
            g.output("y", &q.attention(&k, &v, &Attention::new().mask(&mask)));
        });
        arena_is(&e, 0);
    }
    // Heads as they come out of a projection, and the result as the next projection wants it.
    expect(one_step(), |g| {
        let heads = |name: &str| {
            input(g, name, [4, 64, 96])
                .reshape([4, 64, 3, 32])
                .permute([0, 2, 1, 3])
        };
        let y = heads("q").attention(&heads("k"), &heads("v"), &Attention::new().causal());
        g.output("y", &y.permute([0, 2, 1, 3]).reshape([4, 64, 96]));
    });
    // One head, no batch.
    expect(one_step(), |g| {
        let (q, k, v) = (
            input(g, "q", [64, 32]),
            input(g, "k", [80, 32]),
            input(g, "v", [80, 32]),
        );
        g.output("y", &q.attention(&k, &v, &Attention::new()));
    });
    // Any number of sequences, queries and keys.
    for causal in [false, true] {
        expect(one_step(), |g| {
            let (b, s, t) = (g.symbol("b", 1..=64), g.symbol("s", 1..=4096), g.symbol("t", 1..=4096));
            let q = g.input("q", F32, (&b, 12, &s, 64));
            let (k, v) = (g.input("k", F32, (&b, 12, &t, 64)), g.input("v", F32, (&b, 12, &t, 64)));
            let plain = Attention::new();
            let options = if causal { plain.causal() } else { plain };
            g.output("y", &q.attention(&k, &v, &options));
        });
    }
}

#[test]
fn an_encoder_layer_has_no_kernel_for_a_change_of_layout() {
    // Attention, projection, norm; two products with an activation between, norm.
    let expected = Counts {
        launches: 4,
        library: 4,
        copies: 0,
        steps: 4,
    };
    let e = expect(expected, |g| {
        let tokens = |name: &str| input(g, name, [8, 128, 384]);
        let row = |name: &str, n: usize| input(g, name, [n]);
        let heads = |x: Tensor| x.reshape([8, 128, 12, 32]).permute([0, 2, 1, 3]);
        let (q, k, v) = (heads(tokens("q")), heads(tokens("k")), heads(tokens("v")));
        let a = q.attention(&k, &v, &Attention::new());
        let a = a.permute([0, 2, 1, 3]).reshape([8, 128, 384]);
        let x = tokens("x") + a.matmul(&input(g, "wo", [384, 384])) + row("bo", 384);
        let x = x.layer_norm(Some(&row("g1", 384)), Some(&row("b1", 384)), 1e-5);
        let h = (x.matmul(&input(g, "w1", [384, 1536])) + row("c1", 1536)).gelu();
        let y = &x + h.matmul(&input(g, "w2", [1536, 384])) + row("c2", 384);
        g.output("y", &y.layer_norm(Some(&row("g2", 384)), Some(&row("b2", 384)), 1e-5));
    });
    let layout = tlc_passes::memory::pack(e.plan(), &[]).unwrap();
    assert!(
        layout.host().bytes as f64 <= 1.05 * layout.host().lower_bound_bytes as f64,
        "{layout:?}"
    );
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
            steps: 12,
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

#[test]
fn pools_and_depthwise_convolutions_are_one_launch_that_runs_in_lanes() {
    type Function = fn(&[Tensor]) -> Tensor;
    let functions: [(&str, Function); 5] = [
        ("max", |t| t[0].max_pool(&tlc::Pool::new(2))),
        ("mean", |t| t[0].avg_pool(&tlc::Pool::new(2))),
        ("max, stride 1", |t| t[0].max_pool(&tlc::Pool::new(3).stride(1))),
        ("max, padded", |t| {
            t[0].max_pool(&tlc::Pool::new(3).stride(2).padding(1))
        }),
        ("depthwise, padded", |t| {
            t[0].conv2d(&t[1], None, &tlc::Conv::new().groups(16).padding(1))
        }),
    ];
    for (name, f) in functions {
        let e = expect(launches(1), |g| {
            let t = [input(g, "x", [32, 16, 24, 24]), input(g, "w", [16, 1, 3, 3])];
            let kept = f(&t);
            g.output("y", &kept);
        });
        let text = e.explain();
        assert!(
            text.contains("each of a small window, fill the lanes"),
            "{name}\n{text}"
        );
        // Windows that slide leave out what is padding.
        let apart = text.contains("peel") || name.contains("depthwise") && text.contains("slide");
        assert_eq!(name.contains("padded"), apart, "{name}\n{text}");
    }
}

#[test]
fn one_row_times_a_matrix_walks_the_rows_of_the_matrix() {
    let e = expect(launches(3), |g| {
        let mut x = input(g, "x", [1, 784]);
        for (i, shape) in [[784, 256], [256, 128], [128, 10]].into_iter().enumerate() {
            let (w, b) = (
                input(g, &format!("w{i}"), shape),
                input(g, &format!("b{i}"), [shape[1]]),
            );
            x = (x.matmul(&w) + &b).relu();
        }
        g.output("y", &x);
    });
    let text = e.explain();
    assert_eq!(text.matches("columns form").count(), 3, "{text}");
}

#[test]
fn optimizer_steps_are_one_launch_for_any_shape() {
    for shape in [[1, 1], [7, 13], [1, 100_003]] {
        expect(launches(1), |g| {
            let (p, grad) = (input(g, "p", shape), input(g, "grad", shape));
            let (m, v) = (input(g, "m", shape), input(g, "v", shape));
            let (m, v) = (&m * 0.9 + &grad * 0.1, &v * 0.999 + &grad * &grad * 0.001);
            g.output("p", &(&p - 0.01 * &m / (v.sqrt() + 1e-8)));
            g.output("m", &m);
            g.output("v", &v);
        });
    }
}

#[test]
fn what_is_cheap_is_computed_again_however_many_views_and_constants_it_has() {
    // A shared value of two operations over one load, read along rows and along columns, side by side.
    let both = Counts {
        steps: 1,
        ..launches(2)
    };
    let e = expect(both, |g| {
        let t = input(g, "x", [512, 512]).reshape([256, 1024]) * 0.5 + 1.0;
        g.output("rows", &t.sum(1));
        g.output("columns", &t.sum(0));
    });
    assert_eq!(launch_bytes(&e), (2 * 512 * 512 + 256 + 1024) * 4);
    assert!(
        e.explain().contains("recomputing 2 cheap operations"),
        "{}",
        e.explain()
    );
}

#[test]
fn siblings_of_rank_three_with_odd_sizes_are_one_launch() {
    let e = expect(launches(1), |g| {
        let x = input(g, "x", [5, 77, 131]);
        g.output("sum", &x.sum(-1));
        g.output("max", &x.max(-1));
        g.output("norm", &(&x * &x).sum(-1).sqrt());
    });
    assert_eq!(launch_bytes(&e), (5 * 77 * 131 + 3 * 5 * 77) * 4);
}

#[test]
fn epilogues_of_odd_and_symbolic_products_are_one_kernel() {
    let one_and_one = || Counts {
        launches: 1,
        library: 1,
        copies: 0,
        steps: 1,
    };
    expect(one_and_one(), |g| {
        let (x, w) = (input(g, "x", [3, 67, 129]), input(g, "w", [129, 35]));
        let (b, residual) = (input(g, "b", [35]), input(g, "residual", [3, 67, 35]));
        g.output("y", &((x.matmul(&w) + &b).tanh() + &residual));
    });
    expect(one_and_one(), |g| {
        let n = g.symbol("n", 1..=4096);
        let (x, w) = (g.input("x", F32, (&n, 128)), input(g, "w", [128, 64]));
        let (b, residual) = (input(g, "b", [64]), g.input("residual", F32, (&n, 64)));
        g.output("y", &((x.matmul(&w) + &b).gelu() + &residual));
    });
}

#[test]
fn a_mask_of_integers_is_converted_once_and_not_in_every_row() {
    let masked = |g: &Graph| {
        let scores = input(g, "scores", [2, 4, 16, 24]);
        let mask = g.input("mask", DType::I64, [2, 1, 1, 24]);
        let hidden = (1.0 - mask.cast(F32)) * -10_000.0;
        g.output("y", &(scores + hidden).softmax(-1));
    };
    // The portable emitter converts 64-bit integers one by one.
    match tlc_runtime::cpu::level::wide() {
        Some(_) => drop(expect(launches(1), masked)),
        None => {
            let explained = expect(launches(2), masked).explain();
            assert!(explained.contains("no vector form, and every row"), "{explained}");
        }
    }
    // What has a vector form stays where it is used, and so does what a row has one of.
    expect(launches(1), |g| {
        let scores = input(g, "scores", [2, 4, 16, 24]);
        let mask = g.input("mask", DType::I32, [2, 1, 1, 24]);
        g.output("y", &(scores + (1.0 - mask.cast(F32)) * -10_000.0).softmax(-1));
    });
    expect(launches(1), |g| {
        let scores = input(g, "scores", [2, 4, 16, 24]);
        let scale = g.input("scale", DType::I64, [2, 4, 16, 1]);
        g.output("y", &(scores * scale.cast(F32)).softmax(-1));
    });
}

#[test]
fn an_activation_that_reads_its_operand_twice_is_computed_where_it_is_padded() {
    let swish = |g: &Graph| {
        let x = input(g, "x", [1, 8, 14, 14]) + input(g, "bias", [8, 1, 1]);
        let y = &x * &((&x + 3.0).clamp(0.0, 6.0) / 6.0);
        g.output("y", &y.pad(&[(0, 0), (0, 0), (2, 2), (2, 2)], 0.0));
    };
    let e = expect(launches(1), swish);
    assert!(e.explain().contains("elementwise form"), "{}", e.explain());
}

/// Where clusters that are merged lie around others, what depends on what no longer follows from the order of the nodes: `tanh`
/// and the first output must not share a kernel, since the second scatter stands between them.
const AROUND: &str = "\
graph @cycle(%x0: f64[1], %v9: f64[1], %v10: f64[1, 1, 1], %v60: f64[1]) {
  %0 = const -0.5 : f64[]
  %1 = div %x0, %v9 : f64[1]
  %2 = pad %1 {lo=[0], hi=[1], value=0.0} : f64[2]
  %3 = const 1 : i64[]
  %4 = expand %3 : i64[1, 1, 1]
  %5 = scatter set %2, %v10, %4 {axes=[0]} : f64[2]
  %6 = slice %5 {start=[0], step=[1]} : f64[1]
  %7 = tanh %x0 : f64[1]
  %8 = pow %6, %7 : f64[1]
  %9 = pad %7 {lo=[0], hi=[1], value=0.0} : f64[2]
  %10 = scatter set %9, %0, %3 {axes=[0]} : f64[2]
  %11 = slice %10 {start=[0], step=[1]} : f64[1]
  %12 = convert %11 : i32[1]
  %13 = convert %12 : i64[1]
  %14 = expand %3 : i64[1]
  %15 = le %14, %13 : bool[1]
  %16 = select %15, %1, %v60 : f64[1]
  %17 = call sort %16 {axis=0, count=1, descending} : (f64[1], i64[1])
  %18 = project %17 {result=1} : i64[1]
  %19 = expand %8 : f64[0, 1]
  return %19 as y78, %18 as y77
}
";

#[test]
fn clusters_around_others_are_not_merged_into_a_cycle() {
    let graph = tlc_ir::text::parse_graph(AROUND, &mut |_, _, _| Err("no data".into())).expect("a graph");
    let options = CompileOptions {
        threads: Some(1),
        ..CompileOptions::default()
    };
    let e = tlc::compile_ir(&graph, &options).expect("it compiles");
    let of = |shape: &[usize], value: f64| HostTensor::from_slice(shape, &[value]).unwrap();
    let inputs = [of(&[1], 2.0), of(&[1], 4.0), of(&[1, 1, 1], 3.0), of(&[1], 5.0)];
    let expected = tlc_ir::interp::interpret(&graph, &inputs, &Default::default()).unwrap();
    let found = e.run(&inputs.iter().map(Input::from).collect::<Vec<_>>()).unwrap();
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!(found.to_host(), expected);
    }
}

fn run_on(e: &Executable, x: &[f32]) -> Vec<f32> {
    let x = HostTensor::from_slice(&[x.len()], x).expect("a tensor");
    let outputs = e.run(&[Input::from(&x)]).expect("it runs");
    outputs[0].as_slice::<f32>().expect("f32").to_vec()
}

/// Each step reads the one before at its own place and at another: in one kernel the first would be computed 3^12 times.
#[test]
fn what_is_read_at_several_places_is_not_computed_again_without_end() {
    const N: usize = 24;
    let e = compile(|g| {
        let mut x = g.input("x", F32, [N]);
        for _ in 0..12 {
            x = x.roll(5, 0).sin() + &x;
        }
        g.output("y", &x);
    });
    assert_eq!(counts(&e), launches(4));
    let mut x: Vec<f32> = (0..N).map(|i| i as f32 / 7.0 - 1.0).collect();
    let y = run_on(&e, &x);
    for _ in 0..12 {
        x = (0..N).map(|i| x[(i + N - 5) % N].sin() + x[i]).collect();
    }
    for (a, b) in y.iter().zip(&x) {
        assert!((a - b).abs() < 1e-4, "{y:?}, expected {x:?}");
    }
}

/// Each reshape divides the indices that the ones behind it made.
#[test]
fn reshapes_of_reshapes_are_written_down_before_their_indices_grow_without_end() {
    const N: usize = 30;
    let e = compile(|g| {
        let mut x = g.input("x", F32, [N]);
        for k in 0..32 {
            let rows = [3, 5][k % 2];
            x = x.reshape([rows, N / rows]).t().reshape([N]);
        }
        g.output("y", &(x + 1.0));
    });
    assert_eq!(counts(&e), launches(6));
    let mut x: Vec<f32> = (0..N).map(|i| i as f32).collect();
    let y = run_on(&e, &x);
    for k in 0..32 {
        let rows = [3, 5][k % 2];
        x = (0..N).map(|i| x[i % rows * (N / rows) + i / rows]).collect();
    }
    let expected: Vec<f32> = x.iter().map(|v| v + 1.0).collect();
    assert_eq!(y, expected);
}

/// Each row of a concatenation is one part's: which is asked once a row, and no element of the others is looked at.
#[test]
fn rows_of_a_concatenation_are_read_from_their_part_alone() {
    let channels = [1usize, 2, 3, 5, 7];
    let side = 13;
    let e = expect(launches(1), |g| {
        let parts: Vec<Tensor> = (channels.iter().enumerate())
            .map(|(i, &c)| input(g, &format!("x{i}"), [2, c, side, side]))
            .collect();
        let all = tlc::concat(&parts.iter().collect::<Vec<_>>(), 1);
        g.output("y", &(&all * 2.0));
    });
    let kernel = &e.plan().kernels[0];
    let (mut cases, mut choices) = (0, 0);
    for s in kernel.statements() {
        match s {
            Stmt::If { .. } => cases += 1,
            Stmt::Let { op, .. } => {
                choices += usize::from(matches!(
                    op,
                    Op::Map(ScalarOp::Select, _) | Op::Load { mask: Some(_), .. }
                ));
            }
            _ => {}
        }
    }
    assert_eq!((cases, choices), (channels.len(), 0), "{kernel}");
    let plane = side * side;
    let inputs: Vec<HostTensor> = (channels.iter().enumerate())
        .map(|(i, &c)| {
            let mut x = HostTensor::zeros(F32, &[2, c, side, side]).unwrap();
            for k in 0..2 * c * plane {
                x.set(k, Scalar::from_f64(F32, (1000 * i + k) as f64));
            }
            x.set(0, Scalar::from_f64(F32, f64::NAN));
            x
        })
        .collect();
    let found = e.run(&inputs.iter().map(Input::from).collect::<Vec<_>>()).unwrap()[0].to_host();
    let mut at = 0;
    for image in 0..2 {
        for (x, &c) in inputs.iter().zip(&channels) {
            for k in 0..c * plane {
                let (expected, found) = (2.0 * x.get(image * c * plane + k).as_f64(), found.get(at).as_f64());
                assert!(
                    expected == found || expected.is_nan() && found.is_nan(),
                    "{at}: {expected} {found}"
                );
                at += 1;
            }
        }
    }
}
