//! Initial values: fans, bounds and deviations in closed form, orthogonal matrices.

use tlc::init::{self, Distribution, Fan, Fans, Init, Nonlinearity};
use tlc::{DType, Graph};

use super::against::{correlation, follows, has_moments, normal_below, values};

#[test]
fn fans_are_those_of_pytorch() {
    // `torch.nn.init._calculate_fan_in_and_fan_out` is (size(1), size(0)), each times the product of the other extents.
    let cases: [(&[usize], usize, usize); 6] = [
        (&[10, 20], 20, 10),
        (&[64, 3, 7, 7], 147, 3136),
        (&[8, 4, 3], 12, 24),
        (&[6, 1, 3, 3], 9, 54),
        (&[2, 3, 4, 5, 6], 360, 240),
        (&[0, 5], 5, 0),
    ];
    for (shape, input, output) in cases {
        assert_eq!(Fans::of(shape), Some(Fans { input, output }), "{shape:?}");
    }
    assert_eq!(Fans::of(&[7]), None);
    assert_eq!(Fans::of(&[]), None);
    let (input, output) = (20, 10);
    assert_eq!(Fans::over(&[20, 10], 0, 1), Some(Fans { input, output }));
    // An attention's projection [model, heads, size]: JAX's `in_axis=0, out_axis=(1, 2)`.
    assert_eq!(Fans::over(&[32, 4, 8], 0, [1, 2]), Some(Fans { input: 32, output: 32 }));
    assert_eq!(Fans::over(&[3, 3, 4, 5], -2, -1), Some(Fans { input: 36, output: 45 }));
    assert_eq!(Fans::over(&[4, 5], 1, 1), None);
    assert_eq!(Fans::over(&[4, 5], 0, 2), None);
}

#[test]
fn gains_are_those_of_pytorch() {
    // `torch.nn.init.calculate_gain`.
    let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-15, "{a} {b}");
    close(Nonlinearity::Linear.gain(), 1.0);
    close(Nonlinearity::Sigmoid.gain(), 1.0);
    close(Nonlinearity::Tanh.gain(), 1.6666666666666667);
    close(Nonlinearity::Relu.gain(), std::f64::consts::SQRT_2);
    close(Nonlinearity::LeakyRelu(0.2).gain(), 1.3867504905630728);
    close(Nonlinearity::LeakyRelu(5f64.sqrt()).gain(), 0.5773502691896257);
    close(Nonlinearity::Selu.gain(), 0.75);
}

/// Weights of 100 outputs, 40 inputs and a kernel of 5 by 5: fans of 1000 and 2500.
const SHAPE: [usize; 4] = [100, 40, 5, 5];

#[test]
fn scaled_values_have_the_bounds_and_deviations_of_their_formulas() {
    let relu = 2f64.sqrt();
    let uniform: [(Init, f64); 5] = [
        (
            init::kaiming_uniform(Fan::In, Nonlinearity::Relu),
            (6f64 / 1000.0).sqrt(),
        ),
        (
            init::kaiming_uniform(Fan::Out, Nonlinearity::LeakyRelu(5f64.sqrt())),
            (1f64 / 2500.0).sqrt(),
        ),
        (init::xavier_uniform(relu), relu * (6f64 / 3500.0).sqrt()),
        (init::lecun_uniform(), (3f64 / 1000.0).sqrt()),
        (init::uniform(-0.25, 0.25), 0.25),
    ];
    let g = Graph::new("scaled");
    let key = g.key(12);
    for (k, (init, bound)) in uniform.into_iter().enumerate() {
        for dtype in [DType::F32, DType::F64] {
            let sample = values(&init.draw(&key.fold_in(k), SHAPE, dtype));
            let what = format!("{init:?}, {dtype}");
            assert!(sample.iter().all(|v| v.abs() <= bound * (1.0 + 1e-7)), "{what}");
            let most = sample.iter().fold(0f64, |m, v| m.max(v.abs()));
            assert!(most > 0.9999 * bound, "{what}: {most} of {bound}");
            follows(&what, &sample, |x| ((x / bound + 1.0) / 2.0).clamp(0.0, 1.0));
            has_moments(&what, &sample, 0.0, bound / 3f64.sqrt(), 1.8);
        }
    }
    let normal: [(Init, f64, f64); 6] = [
        (
            init::kaiming_normal(Fan::In, Nonlinearity::Relu),
            0.0,
            (2f64 / 1000.0).sqrt(),
        ),
        (
            init::kaiming_normal(Fan::Out, Nonlinearity::Tanh),
            0.0,
            5.0 / 3.0 / 50.0,
        ),
        (init::xavier_normal(1.0), 0.0, (2f64 / 3500.0).sqrt()),
        (init::lecun_normal(), 0.0, (1f64 / 1000.0).sqrt()),
        (init::normal(0.5, 0.02), 0.5, 0.02),
        (
            init::variance_scaling(2.0, Fan::Average, Distribution::Normal),
            0.0,
            (4f64 / 1750.0).sqrt(),
        ),
    ];
    for (k, (init, mean, std)) in normal.into_iter().enumerate() {
        for dtype in [DType::F32, DType::F64] {
            let sample = values(&init.draw(&key.fold_in(100 + k), SHAPE, dtype));
            let what = format!("{init:?}, {dtype}");
            follows(&what, &sample, |x| normal_below((x - mean) / std));
            has_moments(&what, &sample, mean, std, 3.0);
        }
    }
}

#[test]
fn truncated_values_lie_between_their_bounds() {
    let g = Graph::new("truncated");
    let draw = |init: &Init, seed: u64| values(&init.draw(&g.key(seed), SHAPE, DType::F32));
    // The fourth central moment of a normal distribution cut off at two deviations, over the squared variance, is 2.36.
    let scaled = init::variance_scaling(1.0, Fan::In, Distribution::TruncatedNormal);
    let (sample, std) = (draw(&scaled, 1), (1f64 / 1000.0).sqrt());
    has_moments("two deviations", &sample, 0.0, std, 2.37);
    let wide = std / 0.8796256610342398;
    assert!(sample.iter().all(|v| v.abs() <= 2.0 * wide * (1.0 + 1e-6)));
    let all = normal_below(2.0) - normal_below(-2.0);
    follows("two deviations", &sample, |x| {
        (normal_below(x / wide) - normal_below(-2.0)) / all
    });

    let (mean, std, lo, hi) = (1.0, 0.5, 0.75, 3.0);
    let sample = draw(&init::truncated_normal(mean, std, lo, hi), 2);
    assert!(sample.iter().all(|v| (lo..=hi).contains(v)));
    let below = |x: f64| normal_below((x - mean) / std);
    follows("bounds", &sample, |x| (below(x) - below(lo)) / (below(hi) - below(lo)));
}

#[test]
fn narrow_dtypes_are_drawn_in_f32_and_rounded() {
    let g = Graph::new("narrow");
    let key = g.key(3);
    for init in [
        init::xavier_uniform(1.0),
        init::kaiming_normal(Fan::In, Nonlinearity::Relu),
        init::orthogonal(1.0),
    ] {
        for dtype in [DType::F16, DType::BF16] {
            let (narrow, wide) = (init.draw(&key, [24, 36], dtype), init.draw(&key, [24, 36], DType::F32));
            assert_eq!(narrow.dtype(), dtype);
            assert_eq!(values(&narrow), values(&wide.cast(dtype)), "{init:?}");
        }
    }
}

#[test]
fn constant_values_need_no_fans_and_take_any_size() {
    let g = Graph::new("constant");
    let key = g.key(0);
    assert_eq!(values(&init::zeros().draw(&key, 3, DType::F32)), [0.0; 3]);
    assert_eq!(values(&init::ones().draw(&key, (), DType::BF16)), [1.0]);
    assert_eq!(values(&init::constant(2.5).draw(&key, [2, 1], DType::F64)), [2.5; 2]);
    let n = g.symbol("n", 1..=8);
    assert_eq!(init::normal(0.0, 1.0).draw(&key, (&n, 3), DType::F32).dim(0), n);
    assert!(values(&init::orthogonal(1.0).draw(&key, [0, 4], DType::F32)).is_empty());
    assert!(values(&init::xavier_uniform(1.0).draw(&key, [4, 0], DType::F32)).is_empty());
    assert!(g.check().is_ok());
}

#[test]
fn orthogonal_values_are_orthogonal() {
    let g = Graph::new("orthogonal");
    let shapes: [&[usize]; 9] = [
        &[1, 1],
        &[2, 2],
        &[3, 7],
        &[7, 3],
        &[1, 9],
        &[64, 64],
        &[256, 256],
        &[40, 8, 3, 3],
        &[200, 100],
    ];
    for (k, shape) in shapes.into_iter().enumerate() {
        for (dtype, tolerance) in [(DType::F32, 1e-5), (DType::F64, 1e-13)] {
            let rows = shape[0];
            let columns = shape[1..].iter().product::<usize>();
            let w = init::orthogonal(1.5).draw(&g.key(k as u64), shape, dtype);
            assert_eq!(w.const_shape(), Some(shape.to_vec()));
            let w = values(&w);
            let row = |i: usize| (0..columns).map(move |j| i * columns + j);
            let column = |j: usize| (0..rows).map(move |i| i * columns + j);
            let dot = |a: usize, b: usize| -> f64 {
                match rows <= columns {
                    true => row(a).zip(row(b)).map(|(i, j)| w[i] * w[j]).sum(),
                    false => column(a).zip(column(b)).map(|(i, j)| w[i] * w[j]).sum(),
                }
            };
            for a in 0..rows.min(columns) {
                for b in 0..=a {
                    let expected = if a == b { 2.25 } else { 0.0 };
                    let found = dot(a, b);
                    assert!(
                        (found - expected).abs() <= 2.25 * tolerance,
                        "{shape:?}, {dtype}: rows or columns {a} and {b} give {found}"
                    );
                }
            }
        }
    }
}

#[test]
fn orthogonal_values_go_where_their_axes_are() {
    let g = Graph::new("axes");
    // A kernel [height, width, in, out]: what each output sees is orthonormal.
    let w = init::orthogonal(1.0)
        .axes(2, 3)
        .draw(&g.key(1), [3, 3, 4, 5], DType::F64);
    let rows = w.reshape([36, 5]);
    let off = (rows.transpose().matmul(&rows) - g.eye(5, 5, 0, DType::F64))
        .abs()
        .max(..);
    assert!(values(&off)[0] < 1e-13);
    // The same numbers as of the default layout, moved.
    let plain = init::orthogonal(1.0).draw(&g.key(1), [5, 3, 3, 4], DType::F64);
    assert_eq!(values(&plain.permute([1, 2, 3, 0])), values(&w));
    let (a, b) = (init::xavier_uniform(1.0), init::xavier_uniform(1.0).axes(0, 1));
    let spread = |init: &Init| {
        values(&init.draw(&g.key(2), [4, 4000], DType::F64))
            .iter()
            .fold(0f64, |m, v| m.max(v.abs()))
    };
    assert_eq!(spread(&a), spread(&b));
    let (a, b) = (init::lecun_uniform(), init::lecun_uniform().axes(0, 1));
    assert!((spread(&b) / spread(&a) - 1000f64.sqrt()).abs() < 1e-9);
}

#[test]
fn every_orthogonal_matrix_is_equally_likely() {
    // Under Haar's measure on 3 by 3 matrices any element is uniform in [-1, 1] (Archimedes: a coordinate of a point on the sphere), the
    // determinant is 1 or -1 with equal probability, and the trace of matrices of determinant 1 is 1 + 2 cos θ with density (1 - cos θ) / π on 0..π.
    let g = Graph::new("haar");
    let count = 20_000;
    let key = g.key(21);
    let results = g.repeat(count).record(|i| {
        let key = tlc::Key::from_tensor(&i.capture(key.tensor())).fold_in(&i.number);
        let q = init::orthogonal(1.0).draw(&key, [3, 3], DType::F32);
        i.stack(&q, 0);
        vec![]
    });
    let all = values(&results[0]);
    let element = |k: usize| -> Vec<f64> { all.chunks(9).map(|q| q[k]).collect() };
    for k in 0..9 {
        follows(&format!("element {k}"), &element(k), |x| {
            ((x + 1.0) / 2.0).clamp(0.0, 1.0)
        });
        for other in 0..k {
            let found = correlation(&element(k), &element(other)) * (count as f64).sqrt();
            assert!(found.abs() < 4.5, "elements {k} and {other}: {found}");
        }
    }
    let determinant = |q: &[f64]| {
        q[0] * (q[4] * q[8] - q[5] * q[7]) - q[1] * (q[3] * q[8] - q[5] * q[6]) + q[2] * (q[3] * q[7] - q[4] * q[6])
    };
    let rotations: Vec<&[f64]> = all.chunks(9).filter(|q| determinant(q) > 0.0).collect();
    let share = rotations.len() as f64 / count as f64;
    assert!((share - 0.5).abs() < 4.0 * 0.5 / (count as f64).sqrt(), "{share}");
    let angles: Vec<f64> = rotations
        .iter()
        .map(|q| ((q[0] + q[4] + q[8] - 1.0) / 2.0).clamp(-1.0, 1.0).acos())
        .collect();
    follows("angles", &angles, |t| (t - t.sin()) / std::f64::consts::PI);
}

#[test]
fn what_has_no_initial_values_is_refused() {
    let cases: [(Init, &[usize], DType, &str); 10] = [
        (init::xavier_uniform(1.0), &[3], DType::F32, "weights of rank 1"),
        (init::orthogonal(1.0), &[], DType::F32, "weights of rank 0"),
        (
            init::orthogonal(1.0).axes(1, 2),
            &[3, 3],
            DType::F32,
            "weights of rank 2",
        ),
        (
            init::lecun_normal().axes(1, 1),
            &[3, 3],
            DType::F32,
            "weights of rank 2",
        ),
        (init::normal(0.0, 1.0), &[3], DType::I32, "a float dtype"),
        (init::normal(0.0, -1.0), &[3], DType::F32, "deviation -1"),
        (init::uniform(1.0, 0.0), &[3], DType::F32, "the bounds 1 and 0"),
        (
            init::truncated_normal(0.0, 1.0, 2.0, 1.0),
            &[3],
            DType::F32,
            "the lower one first",
        ),
        (
            init::truncated_normal(0.0, 0.0, -1.0, 1.0),
            &[3],
            DType::F32,
            "larger than 0",
        ),
        (
            init::variance_scaling(f64::NAN, Fan::In, Distribution::Normal),
            &[3, 3],
            DType::F32,
            "deviation NaN",
        ),
    ];
    for (init, shape, dtype, expected) in cases {
        let g = Graph::new("refused");
        assert!(init.draw(&g.key(1), shape, dtype).is_poisoned(), "{init:?}");
        let errors = g.errors();
        assert_eq!(errors.len(), 1, "{init:?}");
        assert!(errors[0].to_string().contains(expected), "{}", errors[0]);
    }
    let g = Graph::new("symbolic");
    let n = g.symbol("n", 1..=8);
    assert!(
        init::xavier_normal(1.0)
            .draw(&g.key(1), (&n, 3), DType::F32)
            .is_poisoned()
    );
}
