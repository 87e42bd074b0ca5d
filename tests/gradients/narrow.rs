//! f16 and bf16: sums of many are carried in f32 and rounded once, forwards and backwards. Expected values are sums in f64 of what the
//! elements are exactly.

use half::{bf16, f16};
use tlc::{CompileOptions, CrossEntropy, DType, Graph, HostTensor, Input, Reduction, Tensor, checkpoint, grad};

const NARROW: [DType; 2] = [DType::F16, DType::BF16];

fn round(dtype: DType, v: f64) -> f64 {
    match dtype {
        DType::F16 => f16::from_f64(v).to_f64(),
        _ => bf16::from_f64(v).to_f64(),
    }
}

fn host(dtype: DType, shape: &[usize], values: &[f64]) -> HostTensor {
    let values = values.iter();
    match dtype {
        DType::F16 => HostTensor::from_slice(shape, &values.map(|&v| f16::from_f64(v)).collect::<Vec<_>>()),
        _ => HostTensor::from_slice(shape, &values.map(|&v| bf16::from_f64(v)).collect::<Vec<_>>()),
    }
    .expect("as many")
}

/// What `f` records from an input of that shape, compiled and run.
fn run(dtype: DType, shape: &[usize], values: &[f64], f: impl Fn(&Tensor) -> Tensor) -> Vec<f64> {
    let g = Graph::new("narrow");
    let x = g.input("x", dtype, shape);
    let y = f(&x);
    assert_eq!(y.dtype(), dtype);
    g.output("y", &y);
    let run = g.compile(&CompileOptions::default()).unwrap_or_else(|e| panic!("{e}"));
    let x = host(dtype, shape, values);
    let found = run.run(&[Input::from(&x)]).expect("it runs")[0].to_host();
    (0..found.len()).map(|i| found.get(i).as_f64()).collect()
}

/// What is found is the number nearest to what is exact, unless that lies, to the precision of f32, in the middle of two.
fn nearest(what: &str, dtype: DType, found: &[f64], exact: &[f64]) {
    assert_eq!(found.len(), exact.len(), "{what}");
    let size = exact.iter().fold(0f64, |m, e| m.max(e.abs()));
    for (k, (found, exact)) in found.iter().zip(exact).enumerate() {
        let slack = 1e-5 * exact.abs() + 1e-6 * size;
        let (low, high) = (round(dtype, exact - slack), round(dtype, exact + slack));
        assert!(
            low <= *found && *found <= high,
            "{what}, {dtype}, element {k}: {found}, expected {exact}"
        );
    }
}

/// Checks a function of one tensor against the exact one, for f16 and bf16.
fn check(
    what: &str,
    shape: &[usize],
    value: impl Fn(usize) -> f64,
    f: impl Fn(&Tensor) -> Tensor,
    exact: impl Fn(&[f64]) -> Vec<f64>,
) {
    for dtype in NARROW {
        let values: Vec<f64> = (0..shape.iter().product()).map(|k| round(dtype, value(k))).collect();
        nearest(what, dtype, &run(dtype, shape, &values, &f), &exact(&values));
    }
}

fn small(k: usize) -> f64 {
    ((k * 37) % 101) as f64 / 25.0 - 2.0
}

/// Squares of these are no f16, and sums of few of them neither.
fn large(k: usize) -> f64 {
    ((k * 37) % 101) as f64 * 250.0 + 20000.0
}

fn mean(x: &[f64]) -> f64 {
    x.iter().sum::<f64>() / x.len() as f64
}

fn normal(x: &[f64]) -> Vec<f64> {
    let m = mean(x);
    let deviation = mean(&x.iter().map(|v| (v - m).powi(2)).collect::<Vec<_>>()).sqrt();
    x.iter().map(|v| (v - m) / deviation).collect()
}

fn softmax(x: &[f64]) -> Vec<f64> {
    let most = x.iter().copied().fold(f64::MIN, f64::max);
    let total: f64 = x.iter().map(|v| (v - most).exp()).sum();
    x.iter().map(|v| (v - most).exp() / total).collect()
}

#[test]
fn reductions_of_many_round_once() {
    let n = 100_000;
    check("mean", &[n], |k| small(k) + 3.0, |x| x.mean(..), |x| vec![mean(x)]);
    // Sums that would stay at 2048 (f16) or 256 (bf16) if each step were rounded.
    check(
        "sum",
        &[n],
        |k| (k % 2) as f64 / 4.0,
        |x| x.sum(..),
        |x| vec![x.iter().sum()],
    );
    check(
        "columns",
        &[4096, 3],
        |k| (k % 3) as f64,
        |x| x.sum(0),
        |x| (0..3).map(|c| x.iter().skip(c).step_by(3).sum()).collect(),
    );
    check(
        "var",
        &[4096],
        |k| small(k) * 50.0 + 900.0,
        |x| x.var(.., 0),
        |x| {
            let m = mean(x);
            vec![mean(&x.iter().map(|v| (v - m).powi(2)).collect::<Vec<_>>())]
        },
    );
    check(
        "norm",
        &[4096],
        |k| small(k) * 200.0,
        |x| x.norm(0),
        |x| vec![x.iter().map(|v| v * v).sum::<f64>().sqrt()],
    );
    check(
        "cumsum",
        &[4096],
        |k| (k % 2) as f64,
        |x| x.cumsum(0),
        |x| {
            let mut total = 0.0;
            x.iter()
                .map(|v| {
                    total += v;
                    total
                })
                .collect()
        },
    );
    check(
        "global_avg_pool",
        &[1, 1, 300, 300],
        large,
        |x| x.global_avg_pool().reshape(1),
        |x| vec![mean(x)],
    );
}

#[test]
fn softmax_and_norms_compute_in_f32() {
    check("softmax", &[4096], small, |x| x.softmax(0), softmax);
    check(
        "log_softmax",
        &[4096],
        small,
        |x| x.log_softmax(0),
        |x| softmax(x).iter().map(|v| v.ln()).collect(),
    );
    check(
        "logsumexp",
        &[4096],
        |k| small(k) + 8.0,
        |x| x.logsumexp(0),
        |x| vec![x.iter().map(|v| v.exp()).sum::<f64>().ln()],
    );
    check("layer_norm", &[4096], large, |x| x.layer_norm(None, None, 0.0), normal);
    check(
        "group_norm",
        &[1, 4, 1024],
        large,
        |x| x.group_norm(1, None, None, 0.0),
        normal,
    );
    check(
        "rms_norm",
        &[4096],
        large,
        |x| x.rms_norm(None, 0.0),
        |x| {
            let root = mean(&x.iter().map(|v| v * v).collect::<Vec<_>>()).sqrt();
            x.iter().map(|v| v / root).collect()
        },
    );
    check(
        "batch_norm_train",
        &[4096, 1],
        large,
        |x| {
            let g = x.graph();
            let (mean, var) = (g.zeros(1, DType::F32), g.ones(1, DType::F32));
            x.batch_norm_train(&mean, &var, None, None, 0.1, 0.0).0
        },
        normal,
    );
}

#[test]
fn losses_compute_in_f32() {
    let n = 4096;
    let label = 77usize;
    let classes = |x: &Tensor| x.graph().constant([label as i64]);
    check(
        "cross_entropy",
        &[1, n],
        small,
        |x| x.cross_entropy(&classes(x)),
        |x| vec![-softmax(x)[label].ln()],
    );
    let smoothed = CrossEntropy::new().smoothing(0.1);
    check(
        "smoothed",
        &[1, n],
        small,
        |x| x.cross_entropy_with(&classes(x), &smoothed),
        |x| {
            let logs: Vec<f64> = softmax(x).iter().map(|v| v.ln()).collect();
            vec![-0.9 * logs[label] - 0.1 * mean(&logs)]
        },
    );
    let zeros = |x: &Tensor| x.zeros_like();
    let of = |x: &[f64], f: fn(f64) -> f64| vec![mean(&x.iter().map(|&v| f(v)).collect::<Vec<_>>())];
    let far = |k: usize| small(k) * 100.0;
    check(
        "mse",
        &[n],
        far,
        |x| x.mse_loss(&zeros(x), Reduction::Mean),
        |x| of(x, |v| v * v),
    );
    check(
        "l1",
        &[n],
        large,
        |x| x.l1_loss(&zeros(x), Reduction::Mean),
        |x| of(x, f64::abs),
    );
    check(
        "huber",
        &[n],
        far,
        |x| x.huber_loss(&zeros(x), 50.0, Reduction::Mean),
        |x| {
            of(x, |v| {
                if v.abs() < 50.0 {
                    v * v / 2.0
                } else {
                    50.0 * (v.abs() - 25.0)
                }
            })
        },
    );
    check(
        "binary_cross_entropy_with_logits",
        &[100_000],
        small,
        |x| x.binary_cross_entropy_with_logits(&zeros(x), Reduction::Mean),
        |x| of(x, |v| v.exp().ln_1p()),
    );
    check(
        "cosine_similarity",
        &[n],
        |k| small(k) * 100.0 + 300.0,
        |x| x.cosine_similarity(&x.flip(0), 0, 1e-8),
        |x| {
            let product: f64 = x.iter().zip(x.iter().rev()).map(|(a, b)| a * b).sum();
            vec![product / x.iter().map(|v| v * v).sum::<f64>()]
        },
    );
}

/// Elements of 1 and 0: sums that are rounded on their way stay at 2048 or 256.
#[test]
fn products_accumulate_in_f32() {
    let n = 4096;
    let dot = |x: &[f64]| vec![x.iter().map(|v| v * v).sum::<f64>()];
    check(
        "row by column",
        &[1, n],
        |k| (k % 2) as f64,
        |x| x.matmul(&x.transpose()),
        dot,
    );
    check(
        "einsum",
        &[n],
        |k| (k % 2) as f64,
        |x| tlc::einsum("k,k->", &[x, x]),
        dot,
    );
    check(
        "matrix",
        &[16, n],
        |k| ((k % 7) as f64 - 1.0) / 2.0,
        |x| x.matmul(&x.transpose()),
        |x| {
            let row = |i: usize| &x[i * n..(i + 1) * n];
            let all = (0..256).map(|k| row(k / 16).iter().zip(row(k % 16)).map(|(a, b)| a * b).sum());
            all.collect()
        },
    );
    check(
        "conv",
        &[1, 2048, 2],
        |k| (k % 2) as f64,
        |x| x.conv1d(x, None, &tlc::Conv::new()),
        dot,
    );
}

/// Numbers of 8 bits, so that they are bf16 exactly; no two are the same.
fn weight(k: usize) -> f64 {
    (128 + k % 128) as f64 * 2f64.powi((k / 128) as i32 - 7)
}

#[test]
fn cotangents_of_a_value_that_is_used_300_times_are_added_up_in_f32() {
    let total: f64 = (0..300).map(weight).sum();
    for dtype in NARROW {
        let constant = |g: &Graph, k: usize| g.constant(host(dtype, &[1], &[weight(k)]));
        // Each use has a cotangent of its own, rounded already; a sum of them that is rounded each time is another.
        let by_hand = (0..300).fold(0.0, |sum, k| round(dtype, sum + weight(k)));
        assert_ne!(by_hand, round(dtype, total));
        let uses = |x: &Tensor, g: &Graph| {
            let all = (0..300).map(|k| (x * constant(g, k)).cast(DType::F32).sum(..));
            all.reduce(|a, b| a + b).expect("some")
        };
        let plain = run(dtype, &[1], &[1.0], |x| grad(&uses(x, x.graph()), &[x]).remove(0));
        assert_eq!(plain, [round(dtype, total)], "{dtype}");
        let inside = run(dtype, &[1], &[1.0], |x| {
            let y = checkpoint(&[x], |t| vec![uses(&t[0], t[0].graph())]).remove(0);
            grad(&y, &[x]).remove(0)
        });
        assert_eq!(inside, [round(dtype, total)], "{dtype}, in a checkpoint");
        // One use in each of 300 iterations.
        let weights: Vec<f64> = (0..300).map(weight).collect();
        let around = run(dtype, &[1], &[1.0], |x| {
            let g = x.graph();
            let weights = g.constant(host(dtype, &[300, 1], &weights));
            let zero = g.scalar(0.0, DType::F32);
            let y = g.repeat(300).carry(&zero).slice(&weights, 0).record(|i| {
                let use_ = (i.capture(x) * &i.slices[0]).cast(DType::F32).sum(..);
                vec![&i.carried[0] + use_]
            });
            grad(&y[0], &[x]).remove(0)
        });
        assert_eq!(around, [round(dtype, total)], "{dtype}, in a loop");
    }
}

/// A value of extent 1 that is spread over many rows: its cotangent is their sum.
#[test]
fn cotangents_of_broadcast_values_are_added_up_in_f32() {
    let rows = 4096;
    for dtype in NARROW {
        let weights: Vec<f64> = (0..rows).map(|k| round(dtype, small(k) + 3.0)).collect();
        let found = run(dtype, &[1], &[1.0], |x| {
            let weights = x.graph().constant(host(dtype, &[rows], &weights));
            grad(&(x * weights).cast(DType::F32).sum(..), &[x]).remove(0)
        });
        nearest("broadcast", dtype, &found, &[weights.iter().sum()]);
        let found = run(dtype, &[3], &[1.0; 3], |x| {
            let indices = x.graph().constant(vec![1i64; rows].as_slice());
            let weights = x.graph().constant(host(dtype, &[rows], &weights));
            grad(&(x.take(&indices, 0) * weights).cast(DType::F32).sum(..), &[x]).remove(0)
        });
        nearest("taken", dtype, &found, &[0.0, weights.iter().sum(), 0.0]);
        let found = run(dtype, &[1, 1], &[1.0], |x| {
            let weights = x.graph().constant(host(dtype, &[rows, 1], &weights));
            grad(&weights.matmul(x).cast(DType::F32).sum(..), &[x]).remove(0)
        });
        nearest("product", dtype, &found, &[weights.iter().sum()]);
    }
}

/// Derivatives of what is computed in f32 are, too.
#[test]
fn derivatives_of_losses_and_norms_round_once() {
    let n = 4096;
    let label = 77usize;
    check(
        "cross_entropy",
        &[1, n],
        small,
        |x| {
            let loss = x.cast(DType::F32).cross_entropy(&x.graph().constant([label as i64]));
            grad(&loss, &[x]).remove(0)
        },
        |x| {
            let mut d = softmax(x);
            d[label] -= 1.0;
            d
        },
    );
    check(
        "cross_entropy of what is narrow",
        &[1, n],
        small,
        |x| grad(&x.cross_entropy(&x.graph().constant([label as i64])), &[x]).remove(0),
        |x| {
            let mut d = softmax(x);
            d[label] -= 1.0;
            d
        },
    );
    // Down the square of the first element of the normal ones.
    check(
        "layer_norm",
        &[512],
        |k| large(k) / 20.0,
        |x| {
            let first = x.layer_norm(None, None, 0.0).narrow(0, 0, 1).cast(DType::F32).sum(..);
            grad(&(first * 1000.0), &[x]).remove(0)
        },
        |x| {
            let (count, y) = (x.len() as f64, normal(x));
            let deviation = (x[1] - x[0]) / (y[1] - y[0]);
            // d y0 / d xk = ((k = 0) - 1/n - y0 yk / n) / deviation
            let slope = |(k, yk): (usize, &f64)| f64::from(u8::from(k == 0)) - (1.0 + y[0] * yk) / count;
            y.iter()
                .enumerate()
                .map(slope)
                .map(|d| 1000.0 * d / deviation)
                .collect()
        },
    );
}
