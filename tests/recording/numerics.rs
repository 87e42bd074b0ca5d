//! Composites against NumPy and SciPy: `tests/reference/recording.py` makes the expected values, in f64.

use tlc::functions::*;
use tlc::{
    Attention, CompileOptions, Conv, DType, Graph, HostTensor, Pool, Scalar, Slice, Tensor, compile_ir, keep, s,
};

use crate::eval::evaluate;

/// The operands of the reference script.
pub fn data(g: &Graph, shape: &[usize], seed: usize) -> Tensor {
    let count: usize = shape.iter().product();
    let values: Vec<f64> = (0..count)
        .map(|i| ((i * 37 + seed * 11) % 101) as f64 / 25.0 - 2.0)
        .collect();
    g.data(&values, shape)
}

fn cases(g: &Graph) -> Vec<(&'static str, Tensor)> {
    let d = |shape: &[usize], seed: usize| data(g, shape, seed);
    let (a, b, v) = (d(&[3, 4], 0), d(&[3, 4], 1), d(&[4], 2));
    let x4 = d(&[2, 4, 5, 6], 0);
    let pos = a.abs() + 0.1;
    let unit = &a / 2.5;
    let idx = g.constant([[2i64, 0], [1, 1]]);
    let mask = d(&[3, 4], 5).lt(1.5);
    vec![
        ("arith", (&a + &v) * 2.5 - &b / (&pos + 1) + (1.5 - &a) / 2),
        ("floor_divide", a.floor_divide(&b)),
        ("remainder", &a % &pos),
        ("rem", a.rem(&pos)),
        ("pow", pow(&pos, &b)),
        ("powi", a.powi(5)),
        ("log10", pos.log10()),
        (
            "functions",
            a.exp() + log(&pos) + a.sin() * b.cos() + a.tanh() + b.erf() + a.atan2(&b),
        ),
        (
            "inverse",
            unit.asin() + unit.acos() + a.atan() + a.expm1() + pos.log1p() + a.exp2() + pos.log2(),
        ),
        (
            "rounding",
            a.floor() + b.ceil() * 10 + (&a * 2).round() * 100 + b.trunc() * 1000 + a.sign(),
        ),
        ("clamp", a.clamp(-1, 0.5)),
        ("gelu", a.gelu()),
        ("gelu_tanh", a.gelu_tanh()),
        ("sigmoid", a.sigmoid()),
        ("silu", a.silu()),
        ("softplus", (&a * 300).softplus()),
        ("elu", a.elu(0.7)),
        ("leaky_relu", a.leaky_relu(0.1)),
        ("mish", a.mish()),
        ("hard_swish", a.hard_swish()),
        ("sum", x4.sum(keep([1, 3]))),
        ("mean", x4.mean([0, -1])),
        ("var", x4.var([2, 3], 1)),
        ("std", x4.std(.., 0)),
        ("prod", a.prod(1)),
        ("max", x4.max([2, 0])),
        ("logsumexp", (&x4 * 300).logsumexp([1, 2])),
        ("argmax", x4.argmax(2)),
        ("argmin_all", x4.argmin(..)),
        ("cumsum", x4.cumsum(2)),
        ("cumprod", a.cumprod(0)),
        ("cummax", a.cummax(-1)),
        ("softmax", (&x4 * 200).softmax(1)),
        ("log_softmax", x4.log_softmax(-1)),
        ("cross_entropy", d(&[2, 2, 3], 0).cross_entropy(&idx)),
        ("matmul_batch", d(&[2, 1, 3, 4], 0).matmul(&d(&[5, 4, 2], 1))),
        ("matmul_left_vector", v.matmul(&d(&[2, 4, 3], 0))),
        ("matmul_right_vector", d(&[2, 3, 4], 0).matmul(&v)),
        ("matmul_vectors", v.matmul(&v)),
        ("dot", d(&[2, 3, 4], 0).dot(&d(&[5, 4, 2], 1))),
        ("outer", a.outer(&v)),
        (
            "tensordot",
            d(&[2, 3, 4], 0).tensordot(&d(&[4, 2, 5], 1), &[0, 2], &[1, 0]),
        ),
        (
            "einsum",
            einsum("...ij,jk,k->...ik", &[&d(&[2, 3, 4], 0), &d(&[4, 5], 1), &d(&[5], 2)]),
        ),
        (
            "einsum_diagonal",
            einsum("iij,jk", &[&d(&[3, 3, 4], 0), &d(&[1, 2], 1)]),
        ),
        ("trace", d(&[4, 4], 0).trace()),
        ("diagonal", x4.diagonal(1, 3, 1)),
        ("diagonal_below", x4.diagonal(-2, 2, 3)),
        ("linear", d(&[2, 3, 4], 0).linear(&d(&[5, 4], 1), Some(&d(&[5], 2)))),
        ("tile", a.tile([2, 1, 3])),
        ("repeat", a.repeat(3, 1)),
        ("roll", x4.roll(-2, 2)),
        ("slice", x4.slice((1.., s(..).step(-2), Slice::down(3, 0), -2))),
        ("flip", x4.flip([0, 3])),
        ("pad", a.pad(&[(1, 2), (0, 3)], 7)),
        ("concat", concat(&[&a, &(&b * 2), &-&a, &d(&[1, 4], 0), &b], 0)),
        ("stack", stack(&[&a, &b, &(&a * &b)], -1)),
        ("chunk", x4.chunk(4, 2)[1].clone()),
        ("move_axis", x4.move_axis(3, 1)),
        ("take", x4.take(&idx, 1)),
        (
            "take_along",
            a.take_along_axis(&g.constant([[1i32, 3], [0, 0], [2, 1]]), 1),
        ),
        ("one_hot", idx.one_hot(4, DType::F64)),
        ("tril", x4.tril(1)),
        ("triu", x4.triu(-1)),
        ("diag_embed", a.diag_embed()),
        ("layer_norm", x4.layer_norm(Some(&d(&[6], 3)), Some(&d(&[6], 4)), 1e-5)),
        ("rms_norm", x4.rms_norm(Some(&d(&[6], 3)), 1e-6)),
        (
            "batch_norm",
            x4.batch_norm(
                &d(&[4], 1),
                &d(&[4], 2).abs(),
                Some(&d(&[4], 3)),
                Some(&d(&[4], 4)),
                1e-5,
            ),
        ),
        (
            "group_norm",
            x4.group_norm(2, Some(&d(&[4], 3)), Some(&d(&[4], 4)), 1e-5),
        ),
        (
            "conv1d",
            d(&[2, 3, 9], 0).conv1d(
                &d(&[4, 3, 3], 1),
                Some(&d(&[4], 2)),
                &Conv::new().stride(2).padding_sides(1, 2),
            ),
        ),
        (
            "conv2d",
            d(&[2, 3, 6, 7], 0).conv2d(
                &d(&[4, 3, 3, 2], 1),
                Some(&d(&[4], 2)),
                &Conv::new().stride([2, 1]).padding([1, 0]).dilation([1, 2]),
            ),
        ),
        (
            "conv2d_groups",
            x4.conv2d(&d(&[6, 2, 3, 3], 1), None, &Conv::new().groups(2).padding(1)),
        ),
        (
            "conv2d_depthwise",
            x4.conv2d(&d(&[4, 1, 3, 3], 1), None, &Conv::new().groups(4)),
        ),
        (
            "conv3d",
            d(&[1, 2, 4, 3, 4], 0).conv3d(&d(&[3, 2, 2, 2, 3], 1), None, &Conv::new().padding(1)),
        ),
        ("max_pool", x4.max_pool(&Pool::new(3).stride(2).padding(1))),
        ("avg_pool", x4.avg_pool(&Pool::new(3).stride(2).padding(1))),
        (
            "avg_pool_exclude",
            x4.avg_pool(&Pool::new(3).stride(2).padding(1).exclude_padding()),
        ),
        (
            "attention",
            d(&[2, 3, 5, 4], 0).attention(&d(&[2, 3, 6, 4], 1), &d(&[2, 3, 6, 2], 2), &Attention::new()),
        ),
        (
            "attention_causal",
            d(&[2, 5, 4], 0).attention(
                &d(&[2, 5, 4], 1),
                &d(&[2, 5, 3], 2),
                &Attention::new().causal().scale(0.3),
            ),
        ),
        (
            "attention_mask",
            d(&[2, 3, 4], 0).attention(&d(&[2, 4, 4], 1), &d(&[2, 4, 3], 2), &Attention::new().mask(&mask)),
        ),
        ("arange", g.arange(-1.0, 2.0, 0.25, DType::F64)),
        ("linspace", g.linspace(-1.0, 2.0, 7, DType::F64)),
        ("eye", g.eye(3, 5, 1, DType::F64)),
    ]
}

/// Every case against the value of its name in `text`.
pub fn compare(g: &Graph, cases: &[(String, Tensor)], text: &str) {
    let expected: serde_json::Map<String, serde_json::Value> = serde_json::from_str(text).unwrap();
    cases.iter().for_each(|(name, t)| g.output(name, t));
    let graph = g.finish().unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(tlc_ir::graph::verify::verify(&graph), []);
    check_values(cases, &evaluate(&graph, &[], &[]), &expected);
    // And once more compiled.
    let executable = compile_ir(&graph, &CompileOptions::default()).unwrap_or_else(|e| panic!("{e}"));
    let outputs = executable.run(&[]).unwrap_or_else(|e| panic!("{e}"));
    let values: Vec<HostTensor> = outputs.iter().map(|o| o.to_host()).collect();
    check_values(cases, &values, &expected);
}

fn check_values(
    cases: &[(String, Tensor)],
    values: &[HostTensor],
    expected: &serde_json::Map<String, serde_json::Value>,
) {
    assert_eq!(
        cases.len(),
        expected.len(),
        "a case without a reference, or the other way round"
    );
    let mut wrong = vec![];
    for ((name, _), found) in cases.iter().zip(values) {
        let numbers = |field: &str| expected[name][field].as_array().unwrap().clone();
        let shape: Vec<usize> = numbers("shape").iter().map(|n| n.as_u64().unwrap() as usize).collect();
        let want: Vec<f64> = numbers("values").iter().map(|n| n.as_f64().unwrap()).collect();
        let have: Vec<f64> = (0..found.len()).map(|i| found.get(i).as_f64()).collect();
        // A few hundred f64 operations at most, none of which cancels more than three digits.
        let close = |a: f64, b: f64| a == b || (a - b).abs() <= 1e-12 * (1.0 + a.abs().max(b.abs()));
        if shape != found.shape() || !have.iter().zip(&want).all(|(&a, &b)| close(a, b)) {
            wrong.push(format!(
                "{name}: {:?} {have:?}, expected {shape:?} {want:?}",
                found.shape()
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn composites_compute_what_numpy_computes() {
    let g = Graph::new("cases");
    let cases: Vec<_> = cases(&g).into_iter().map(|(n, t)| (n.to_string(), t)).collect();
    compare(&g, &cases, include_str!("../reference/recording.json"));
}

pub fn run(g: &Graph, t: &Tensor) -> Vec<f64> {
    let graph = g.extract(&[("result", t)]).unwrap_or_else(|e| panic!("{e}"));
    let value = evaluate(&graph, &[], &[]).remove(0);
    (0..value.len()).map(|i| value.get(i).as_f64()).collect()
}

#[test]
fn edges_of_composites_are_as_documented() {
    let g = Graph::new("edges");
    let inf = f64::INFINITY;
    let rows = g.constant([[-inf, -inf], [inf, 1.0], [f64::NAN, 0.0]]);
    let lse = run(&g, &rows.logsumexp(1));
    assert!(lse[0] == -inf && lse[1] == inf && lse[2].is_nan());
    // The means of f16 are carried in f32: the sum would overflow.
    let large = g.full([100], 60000.0, DType::F16);
    assert_eq!(
        run(&g, &large.mean(..)),
        [60000.0_f64.min(Scalar::from_f64(DType::F16, 60000.0).as_f64())]
    );
    // Minus zero survives concatenation.
    let joined = run(&g, &concat(&[&g.constant([-0.0f32]), &g.constant([1.0f32])], 0));
    assert!(joined[0].is_sign_negative());
    // A count that is used up gives a division by zero, as in NumPy.
    assert!(run(&g, &g.constant([3.0]).var(.., 1))[0].is_nan());
    assert!(run(&g, &g.constant([-1000.0f32, 1000.0]).sigmoid()) == [0.0, 1.0]);
    assert!(run(&g, &g.constant([-1000.0f32, 1000.0]).silu())[1] == 1000.0);
    assert_eq!(run(&g, &g.constant([1i64, -7, 5]).floor_divide(2)), [0.0, -4.0, 2.0]);
    assert_eq!(run(&g, &g.constant([1i64, -7, 5]).trunc_divide(2)), [0.0, -3.0, 2.0]);
    assert_eq!(run(&g, &g.constant([1i32, 0]).div(2)), [0.5, 0.0]);
    assert_eq!(run(&g, &g.constant([3i32, -2]).pow(3)), [27.0, -8.0]);
    assert_eq!(run(&g, &g.constant([true, true, false]).sum(..)), [2.0]);
    assert_eq!(
        run(&g, &g.constant([1.0f64, f64::NAN, inf]).is_finite()),
        [1.0, 0.0, 0.0]
    );
}

#[test]
fn scatters_apply_updates_in_order_and_drop_those_out_of_range() {
    let g = Graph::new("scatter");
    let base = g.zeros([3, 2], DType::F32);
    let updates = g.constant([[1.0f32, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]]);
    let rows = g.constant([2i64, 0, 2, 9]);
    assert_eq!(
        run(&g, &base.scatter_add(0, &rows, &updates)),
        [3.0, 4.0, 0.0, 0.0, 6.0, 8.0]
    );
    assert_eq!(
        run(&g, &base.scatter_set(0, &rows, &updates)),
        [3.0, 4.0, 0.0, 0.0, 5.0, 6.0]
    );
    let columns = g.constant([1i32, 0, 1, -1]);
    let added = base.t().scatter_add(1, &rows, &updates.t());
    assert_eq!(run(&g, &added), [3.0, 0.0, 6.0, 4.0, 0.0, 8.0]);
    let ones = g.ones((), DType::F32);
    let dots = base.scatter(&[0, 1], &[&rows, &columns], &ones, tlc::ScatterOp::Add);
    assert_eq!(run(&g, &dots), [1.0, 0.0, 0.0, 0.0, 0.0, 2.0]);
    let along = g.zeros([2, 3], DType::F32).scatter_along_axis(
        &g.constant([[0i64, 2], [1, 1]]),
        1,
        &g.constant([[1.0f32, 2.0], [3.0, 4.0]]),
        tlc::ScatterOp::Add,
    );
    assert_eq!(run(&g, &along), [1.0, 0.0, 2.0, 0.0, 7.0, 0.0]);
}

#[test]
fn random_numbers_have_their_distributions() {
    let g = Graph::new("random");
    g.seed(42);
    let n = 20_000;
    let moments = |v: &[f64]| {
        let mean = v.iter().sum::<f64>() / v.len() as f64;
        (mean, v.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / v.len() as f64)
    };
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        let uniform = run(&g, &g.rand(n, dtype));
        assert!(uniform.iter().all(|v| (0.0..1.0).contains(v)), "{dtype}");
        let (mean, var) = moments(&uniform);
        // Five standard errors, and the half step of bf16.
        assert!(
            (mean - 0.5).abs() < 0.0125 && (var - 1.0 / 12.0).abs() < 0.005,
            "{dtype}: {mean} {var}"
        );
        let (mean, var) = moments(&run(&g, &g.randn(n, dtype)));
        assert!(mean.abs() < 0.036 && (var - 1.0).abs() < 0.05, "{dtype}: {mean} {var}");
    }
    let dice = run(&g, &g.randint(-2, 4, n, DType::I8));
    for face in -2..4 {
        let share = dice.iter().filter(|&&v| v == face as f64).count() as f64 / n as f64;
        assert!((share - 1.0 / 6.0).abs() < 0.0135, "{face}: {share}");
    }
    let (a, b) = (g.rand(4, DType::F32), g.rand(4, DType::F32));
    assert_ne!(a.id(), b.id());
    assert_ne!(run(&g, &a), run(&g, &b));
}

#[test]
fn symbolic_sizes_give_the_same_numbers() {
    let g = Graph::new("symbolic");
    let n = g.symbol("n", 1..=64);
    let x = g.input("x", DType::F64, (&n, 3));
    g.output("mean", &x.mean(0));
    g.output("var", &x.var(.., 1));
    g.output("halves", &x.slice(s(..-1).step(2)));
    g.output("joined", &concat(&[&x, &x.flip(0)], 0));
    g.output("flat", &x.reshape([-1, 1]));
    let q = x.unsqueeze(0);
    g.output("attention", &q.attention(&q, &q, &Attention::new().causal()));
    let graph = g.finish().unwrap();
    assert_eq!(tlc_ir::graph::verify::verify(&graph), []);
    let rows: Vec<f64> = (0..15).map(|i| (i * i % 7) as f64).collect();
    let host = HostTensor::from_slice(&[5, 3], &rows).unwrap();
    let found = evaluate(&graph, &[host], &[5]);

    let h = Graph::new("fixed");
    let x = h.data(&rows, &[5, 3]);
    let q = x.unsqueeze(0);
    let fixed = [
        x.mean(0),
        x.var(.., 1),
        x.slice(s(..-1).step(2)),
        concat(&[&x, &x.flip(0)], 0),
        x.reshape([-1, 1]),
        q.attention(&q, &q, &Attention::new().causal()),
    ];
    for (a, b) in found.iter().zip(&fixed) {
        let values: Vec<f64> = (0..a.len()).map(|i| a.get(i).as_f64()).collect();
        assert_eq!(values, run(&h, b));
        assert_eq!(Some(a.shape().to_vec()), b.const_shape());
    }
}

/// Of all pairs of bytes, and of numbers whose quotients leave their type on the way.
#[test]
fn quotients_of_integers_are_rounded_down() {
    let floor = |x: i128, y: i128| x.div_euclid(y) - i128::from(y < 0 && x.rem_euclid(y) != 0);
    let pairs: Vec<(i8, i8)> = (-128..=127)
        .flat_map(|x| (-128..=127).map(move |y| (x, y)))
        .filter(|(x, y)| *y != 0 && (*x, *y) != (-128, -1))
        .collect();
    let (x, y): (Vec<i8>, Vec<i8>) = pairs.iter().copied().unzip();
    let g = Graph::default();
    let count = pairs.len();
    let a = g.input("a", DType::I8, [count as i64]);
    let b = g.input("b", DType::I8, [count as i64]);
    g.output("q", &a.floor_divide(&b));
    let e = g.compile(&CompileOptions::default()).unwrap();
    let found = e.run(&tlc::inputs![&x, &y]).unwrap();
    for (found, (x, y)) in found["q"].as_slice::<i8>().unwrap().iter().zip(&pairs) {
        assert_eq!(i128::from(*found), floor((*x).into(), (*y).into()), "{x} // {y}");
    }
    let g = Graph::default();
    for (x, y) in [
        (-6_000_000_000_000_000_000i64, 5_000_000_000_000_000_000),
        (-3, i64::MAX),
        (i64::MAX, i64::MIN),
        (i64::MIN, i64::MAX),
    ] {
        let q = g.constant([x]).floor_divide(g.constant([y])).eval().unwrap();
        assert_eq!(
            i128::from(q.as_slice::<i64>().unwrap()[0]),
            floor(x.into(), y.into()),
            "{x} // {y}"
        );
    }
    let by_zero = g.constant([-5i32, 5]).floor_divide(g.constant([0i32])).eval().unwrap();
    assert_eq!(by_zero.as_slice::<i32>().unwrap(), [0, 0]);
    let unsigned = g.constant([200u8, 7]).floor_divide(g.constant([7u8])).eval().unwrap();
    assert_eq!(unsigned.as_slice::<u8>().unwrap(), [28, 1]);
}

/// Another axis is longer than the type of the indices counts.
#[test]
fn indices_of_bytes_run_along_one_axis_of_long_ones() {
    let g = Graph::default();
    let values: Vec<i64> = (0..3 * 300).collect();
    let x = g.constant(ndarray::Array2::from_shape_vec((3, 300), values).unwrap());
    let row = |k: usize| k * 7 % 3;
    let taken: Vec<i64> = (0..300).map(|k| (row(k) * 300 + k) as i64).collect();
    let unsigned = ndarray::Array2::from_shape_fn((1, 300), |(_, k)| row(k) as u8);
    let signed = unsigned.mapv(|k| k as i8);
    for indices in [g.constant(unsigned), g.constant(signed)] {
        let found = x.take_along_axis(&indices, 0).eval().unwrap();
        assert_eq!(found.as_slice::<i64>().unwrap(), taken);
        let zeros = g.zeros([3, 300], DType::I64);
        let updates = g.constant(ndarray::Array2::from_shape_fn((1, 300), |(_, k)| k as i64 + 1));
        let found = zeros
            .scatter_along_axis(&indices, 0, &updates, tlc::ScatterOp::Add)
            .eval()
            .unwrap();
        for (at, found) in found.as_slice::<i64>().unwrap().iter().enumerate() {
            let (r, k) = (at / 300, at % 300);
            assert_eq!(*found, if r == row(k) { k as i64 + 1 } else { 0 }, "{r}, {k}");
        }
    }
}

/// What is small beside 1 keeps its digits in the derivative of `expm1` and of what is made of it, and powers are rounded once.
#[test]
fn derivatives_of_exponentials_and_powers_keep_their_digits() {
    let g = Graph::default();
    let x = g.constant([-12.0f32, -15.0, -20.0]);
    let d = tlc::grad(&x.elu(1.3).sum(..), &[&x]).remove(0).eval().unwrap();
    for (found, x) in d.as_slice::<f32>().unwrap().iter().zip([-12.0f64, -15.0, -20.0]) {
        let right = 1.3 * x.exp();
        assert!(
            (f64::from(*found) - right).abs() < 1e-6 * right,
            "{x}: {found}, {right}"
        );
    }
    for (x, n, right) in [
        (300.0, -2, 300f64.powi(-2)),
        (50.0, -3, 50f64.powi(-3)),
        (1.5, 7, 1.5f64.powi(7)),
    ] {
        let power = g
            .constant([x])
            .cast(DType::F16)
            .powi(n)
            .cast(DType::F64)
            .eval()
            .unwrap();
        let found = power.as_slice::<f64>().unwrap()[0];
        // Half of the distance of subnormal numbers, or of a last digit.
        assert!(
            (found - right).abs() <= (right / 2048.0).max(3e-8),
            "{x} ** {n}: {found}, {right}"
        );
    }
}
