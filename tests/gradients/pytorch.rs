//! Values and derivatives beside what PyTorch computes, which `tests/reference/gradients.py` and `composed.py` recorded: corners, ties, zeros, NaN,
//! infinities, empty tensors, broadcasts.

use serde_json::Value;
use tlc::ops::resample::{Coordinates, Interpolation, Resample, Rounding};
use tlc::{
    Attention, CompileOptions, Conv, CrossEntropy, Ctc, DType, Graph, HostTensor, Input, Pool, Reduction, Tensor,
    concat, einsum, jvp, keep, s, stack, vjp, where_,
};

fn number(v: &Value) -> f64 {
    match v {
        Value::String(text) => text.parse().expect("nan, inf or -inf"),
        v => v.as_f64().expect("a number"),
    }
}

fn numbers(v: &Value) -> Vec<f64> {
    v.as_array().expect("a list").iter().map(number).collect()
}

fn extents(v: &Value) -> Vec<usize> {
    numbers(v).into_iter().map(|n| n as usize).collect()
}

fn whole(x: &Tensor, numbers: &[i64]) -> Tensor {
    x.graph().constant(numbers.to_vec())
}

fn entropy(x: &Tensor, classes: &[i64], options: CrossEntropy) -> Tensor {
    x.cross_entropy_with(&whole(x, classes), &options)
}

/// The function of that name there.
fn function(name: &str, t: &[Tensor]) -> Tensor {
    let x = &t[0];
    let weights = || x.graph().constant(vec![0.5f64, 1.0, 2.0, 0.25]);
    let image = |f: &dyn Fn(&Tensor) -> Tensor| f(&x.unsqueeze(0)).squeeze(0);
    match name {
        "neg" => -x,
        "abs" => x.abs(),
        "sign" => x.sign(),
        "square" => x.square(),
        "exp" => x.exp(),
        "exp2" => x.exp2(),
        "expm1" => x.expm1(),
        "sin" => x.sin(),
        "cos" => x.cos(),
        "tan" => x.tan(),
        "tanh" => x.tanh(),
        "sinh" => x.sinh(),
        "cosh" => x.cosh(),
        "asinh" => x.asinh(),
        "acosh" => x.acosh(),
        "asin" => x.asin(),
        "acos" => x.acos(),
        "atan" => x.atan(),
        "atanh" => x.atanh(),
        "erfinv_like" => x.atanh() * x,
        "erf" => x.erf(),
        "floor" => x.floor(),
        "ceil" => x.ceil(),
        "round" => x.round(),
        "trunc" => x.trunc(),
        "relu" => x.relu(),
        "relu6" => x.relu6(),
        "gelu" => x.gelu(),
        "gelu_tanh" => x.gelu_tanh(),
        "sigmoid" => x.sigmoid(),
        "silu" => x.silu(),
        "softplus" => x.softplus(),
        "log_sigmoid" => x.log_sigmoid(),
        "elu" => x.elu(1.5),
        "leaky_relu" => x.leaky_relu(0.25),
        "softsign" => x.softsign(),
        "mish" => x.mish(),
        "hard_sigmoid" => x.hard_sigmoid(),
        "hard_swish" => x.hard_swish(),
        "hard_tanh" => x.hard_tanh(-1.0, 1.0),
        "clamp" => x.clamp(-1.0, 2.0),
        "clamp_low" => x.clamp(0.0, f64::INFINITY),
        "pow0" => x.pow(0.0),
        "pow1" => x.pow(1.0),
        "pow2" => x.pow(2.0),
        "pow3" => x.pow(3.0),
        "pow_half" => x.pow(0.5),
        "pow_minus" => x.pow(-1.5),
        "reciprocal" => x.reciprocal(),
        "sqrt" => x.sqrt(),
        "rsqrt" => x.rsqrt(),
        "log" => x.log(),
        "log2" => x.log2(),
        "log10" => x.log10(),
        "log1p" => x.log1p(),
        "add" => x + &t[1],
        "sub" => x - &t[1],
        "mul" | "hadamard" => x * &t[1],
        "div" => x / &t[1],
        "maximum" => x.maximum(&t[1]),
        "minimum" => x.minimum(&t[1]),
        "atan2" => x.atan2(&t[1]),
        "fmod" => x.rem(&t[1]),
        "remainder" => x.remainder(&t[1]),
        "pow" => x.pow(&t[1]),
        "lerp" => x + (&t[1] - x) * &t[2],
        "where" => where_(&x.gt(&t[1]), x, &t[1] * 2.0),
        "fma" => x.fma(&t[1], &t[2]),
        "clamp_between" => x.clamp(&t[1], &t[2]),
        "masked_fill" => x.masked_fill(&x.gt(0.0), 2.5),
        "sum" => x.sum(1),
        "sum_all" => x.sum(..),
        "mean" => x.mean(1),
        "prod" => x.prod(1),
        "max_all" => x.max(..),
        "amax" => x.max(1),
        "amin" => x.min(1),
        "var" => x.var(1, 1),
        "std" => x.std(1, 0),
        "logsumexp" => x.logsumexp(1),
        "norm" => x.norm(1),
        "softmax" => x.softmax(1),
        "log_softmax" => x.log_softmax(1),
        "cumsum" => x.cumsum(1),
        "cumprod" => x.cumprod(1),
        "cummax" => x.cummax(1),
        "cummin" => x.cummin(1),
        "max_dim" => x.top_k(1, 1, true).0.squeeze(1),
        "sort" => x.sort(1, false),
        "topk" => x.top_k(2, 1, true).0,
        "layer_norm" => x.layer_norm(None, None, 1e-5),
        "logcumsum" => x.exp().cumsum(1).log(),
        "sum_keep" => x / x.sum(keep(1)),
        "rms_norm" => x.rms_norm(None, 1e-5),
        "reshape" => x.reshape([6, 2]),
        "permute" => x.permute([1, 0]),
        "expand" => x.slice((s(..), s(..1))).expand([3, 5]),
        "flip" => x.flip(1),
        "roll" => x.roll(1, 1),
        "slice" => x.slice((s(..), s(1..4).step(2))),
        "select" => x.select_index(0, 1),
        "pad" => x.pad(&[(0, 0), (1, 2)], 0.0),
        "tile" => x.tile([2, 2]),
        "repeat" => x.repeat(2, 1),
        "tril" => x.tril(0),
        "triu" => x.triu(0),
        "diagonal" => x.diagonal(1, 0, 1),
        "trace" => x.slice((s(..), s(..3))).trace(),
        "concat" => concat(&[x, &(x * 2.0)], 1),
        "stack" => stack(&[x, &x.exp()], 0),
        "take" => x.take(&whole(x, &[0, 2, 2, 1]), 1),
        "take_along" => x.take_along_axis(&whole(x, &[0, 0, 3, 1, 2, 2]).reshape([3, 2]), 1),
        "embedding" => x.embedding(&whole(x, &[2, 0, 2])),
        "scatter_add" => (x.graph().zeros([5, 4], DType::F64)).scatter_add(0, &whole(x, &[1, 1, 4]), x),
        "unfold" => x.window(1, 2, 1, 1),
        "swap" => x.transpose() * 2.0,
        "matmul" | "batched" | "matvec" => x.matmul(&t[1]),
        "dot" => x.dot(&t[1]),
        "outer" => x.outer(&t[1]),
        "trace_product" => einsum("ij,ji->", &[x, &t[1]]),
        "diagonal_product" => einsum("ii,ij->i", &[x, &t[1]]),
        "linear" => x.linear(&t[1], Some(&t[2])),
        "three" => einsum("ab,bc,cd->ad", &[x, &t[1], &t[2]]),
        "conv1d" => x.conv1d(&t[1], Some(&t[2]), &Conv::new().stride(2).padding(1)),
        "conv2d" => x.conv2d(&t[1], Some(&t[2]), &Conv::new().padding(1)),
        "conv_dilated" => x.conv2d(&t[1], None, &Conv::new().stride(2).dilation(2)),
        "conv_grouped" => x.conv2d(&t[1], None, &Conv::new().groups(2)),
        "attention" => x.attention(&t[1], &t[2], &Attention::new()),
        "attention_causal" => x.attention(&t[1], &t[2], &Attention::new().causal()),
        "layer_norm_affine" => x.layer_norm(Some(&t[1]), Some(&t[2]), 1e-5),
        "group_norm" => x.group_norm(2, Some(&t[1]), Some(&t[2]), 1e-5),
        "max_pool1d" => x.max_pool(&Pool::new(3).stride(2).padding(1)),
        "max_pool2d" => image(&|x| x.max_pool(&Pool::new(2))),
        "max_pool_overlap" => image(&|x| x.max_pool(&Pool::new(3).stride(1))),
        "avg_pool" => image(&|x| x.avg_pool(&Pool::new(2))),
        "avg_pool_padded" => image(&|x| x.avg_pool(&Pool::new(3).stride(2).padding(1).exclude_padding())),
        "global_avg" => image(&|x| x.global_avg_pool()),
        "bilinear" => {
            let linear = Resample::new(Interpolation::Linear).coordinates(Coordinates::HalfPixel);
            x.resample(1, 6, &linear).resample(2, 8, &linear)
        }
        "nearest" => {
            let nearest = Resample::new(Interpolation::Nearest(Rounding::Floor)).coordinates(Coordinates::Asymmetric);
            let doubled = |x: &Tensor, axis: i64| x.resample(axis, x.dim(axis) * 2, &nearest);
            doubled(&doubled(x, 1), 2)
        }
        "cross_entropy" => x.cross_entropy(&whole(x, &[1, 0, 3])),
        "ce_ignored" => entropy(x, &[1, -100, 3], CrossEntropy::new().ignore(-100)),
        "ce_smooth" => entropy(x, &[1, 0, 3], CrossEntropy::new().smoothing(0.1)),
        "ce_weighted" => entropy(x, &[1, 0, 3], CrossEntropy::new().weights(&weights())),
        "ce_all" => {
            let options = CrossEntropy::new().weights(&weights()).smoothing(0.2).ignore(-100);
            entropy(x, &[1, -100, 3], options)
        }
        "ce_sum" => entropy(x, &[1, 0, 3], CrossEntropy::new().reduction(Reduction::Sum)),
        "ce_each" => entropy(x, &[1, 0, 3], CrossEntropy::new().reduction(Reduction::Each)),
        "nll" => x.nll_loss(&whole(x, &[1, 0, 3]), &CrossEntropy::new()),
        "mse" => x.mse_loss(&t[1], Reduction::Mean),
        "mse_each" => x.mse_loss(&t[1], Reduction::Each),
        "l1" => x.l1_loss(&t[1], Reduction::Mean),
        "l1_sum" => x.l1_loss(&t[1], Reduction::Sum),
        "huber" => x.huber_loss(&t[1], 0.75, Reduction::Mean),
        "smooth_l1" => x.smooth_l1_loss(&t[1], 0.5, Reduction::Mean),
        "bce" => x.binary_cross_entropy(&t[1], Reduction::Mean),
        "bce_logits" => x.binary_cross_entropy_with_logits(&t[1], Reduction::Mean),
        "kl_batch" => x.kl_div(&t[1], false, Reduction::Sum),
        "kl_log" => x.kl_div(&t[1], true, Reduction::Mean),
        "cosine" => x.cosine_similarity(&t[1], 1, 1e-8),
        "cosine_embedding" => {
            let same = x.graph().constant(vec![1.0f64, -1.0, 1.0]);
            x.cosine_embedding_loss(&t[1], &same, 0.1, Reduction::Mean)
        }
        "ctc" | "ctc_each" => {
            let options = Ctc {
                input_lengths: whole(x, &[6, 5]),
                target_lengths: whole(x, &[3, 1]),
                blank: 0,
                zero_infinity: false,
                reduction: if name == "ctc" {
                    Reduction::Mean
                } else {
                    Reduction::Each
                },
            };
            x.log_softmax(2)
                .ctc_loss(&whole(x, &[1, 2, 2, 3, 1, 1]).reshape([2, 3]), &options)
        }
        "softmax_large" => x.softmax(0),
        "square_of_norm" => x.norm(..).square(),
        "det" => x.det(),
        other => super::composed::function(other, t),
    }
}

fn same(a: f64, b: f64) -> bool {
    // Sums of terms that cancel.
    let close = (a - b).abs() <= 1e-11 * b.abs().max(1.0);
    a == b || (a.is_nan() && b.is_nan()) || close
}

/// What is not PyTorch's on purpose: it takes the sign of NaN for 0, and lets derivatives be numbers where the value is NaN; of equal
/// running extrema it takes the last; and its `hardsigmoid` multiplies with 1/6 in f32.
fn differs(name: &str, operand: &[f64]) -> bool {
    match name {
        "abs" | "sign" | "elu" | "hard_swish" | "clamp" | "clamp_low" => operand.iter().any(|v| v.is_nan()),
        "cummax" | "cummin" => operand.len() == 8,
        "hard_sigmoid" => true,
        _ => false,
    }
}

#[test]
fn derivatives_are_those_of_pytorch() {
    let rows = |json: &str| match serde_json::from_str::<Value>(json).expect("JSON")["rows"].take() {
        Value::Array(rows) => rows,
        other => panic!("no rows: {other}"),
    };
    let mut all = rows(include_str!("../reference/gradients.json"));
    all.extend(rows(include_str!("../reference/composed.json")));
    let rows = all;
    let names: std::collections::BTreeSet<&str> = rows.iter().filter_map(|r| r["name"].as_str()).collect();
    assert!(names.len() >= 250, "{} functions", names.len());
    let mut wrong = vec![];
    for row in &rows {
        let name = row["name"].as_str().expect("a name");
        let data: Vec<HostTensor> = (row["operands"].as_array().expect("a list").iter())
            .map(|o| {
                HostTensor::from_slice(&extents(&o["shape"]), &numbers(&o["data"])).expect("as many as the shape has")
            })
            .collect();
        if differs(name, data[0].as_slice::<f64>().expect("doubles")) {
            continue;
        }
        let g = Graph::new(name);
        let operands: Vec<Tensor> = (data.iter().enumerate())
            .map(|(k, t)| g.input(&format!("x{k}"), DType::F64, t.shape()))
            .collect();
        let y = function(name, &operands);
        let count = y
            .shape()
            .iter()
            .map(|d| d.as_const().expect("a number"))
            .product::<i64>();
        let weights: Vec<f64> = (0..count).map(|i| 1.0 + i as f64 / 4.0).collect();
        let weights = g.constant(weights).reshape(y.shape());
        let found = vjp(&[&y], &[&weights], &operands.iter().collect::<Vec<_>>());
        let moves: Vec<Vec<f64>> = (data.iter())
            .map(|x| (0..x.len()).map(|i| ((i * 29 + 7) % 31) as f64 / 16.0 - 1.0).collect())
            .collect();
        let tangents: Vec<Tensor> = (moves.iter().zip(&data))
            .map(|(t, x)| g.constant(HostTensor::from_slice(x.shape(), t).expect("as many")))
            .collect();
        let by: Vec<&Tensor> = operands.iter().collect();
        let ahead = jvp(&[&y], &by, &tangents.iter().collect::<Vec<_>>()).remove(0);
        g.output("y", &y);
        found
            .iter()
            .enumerate()
            .for_each(|(k, d)| g.output(&format!("d{k}"), d));
        g.output("ahead", &(ahead * &weights).sum(..));
        let run = g
            .compile(&CompileOptions::default())
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        let results = run
            .run(&data.iter().map(Input::from).collect::<Vec<_>>())
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        let gradients = row["gradients"].as_array().expect("a list").iter();
        // Forwards: the same, along a direction.
        let terms: Vec<f64> = (gradients.clone().zip(&moves))
            .flat_map(|(d, t)| numbers(d).into_iter().zip(t.clone()).map(|(d, t)| d * t))
            .collect();
        let (along, size): (f64, f64) = (terms.iter().sum(), terms.iter().map(|t| t.abs()).sum());
        let ahead = results["ahead"].as_scalar::<f64>().expect("a double");
        if size.is_finite() && (ahead - along).abs() > 1e-11 * size.max(1.0) {
            wrong.push(format!("{name} {}: forwards {ahead}, PyTorch {along}", row["operands"]));
        }
        let expected = std::iter::once(&row["value"]).chain(gradients).map(numbers);
        for (k, expected) in expected.enumerate() {
            let found = results[k].as_slice::<f64>().expect("doubles");
            let fits = found.len() == expected.len() && found.iter().zip(&expected).all(|(a, b)| same(*a, *b));
            if !fits {
                let what = if k == 0 {
                    "value".to_string()
                } else {
                    format!("derivative {}", k - 1)
                };
                wrong.push(format!(
                    "{name} {}: {what}\n  {found:?}\n  {expected:?}",
                    row["operands"]
                ));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {}:\n{}",
        wrong.len(),
        rows.len(),
        wrong.join("\n")
    );
}
