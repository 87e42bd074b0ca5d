//! Batch normalization while training: values, running statistics and derivatives beside NumPy's
//! (`tests/reference/batch_norm.py`), finite differences, narrow dtypes, symbolic sizes, refusals.

use serde_json::Value;
use tlc::{CompileOptions, DType, Graph, HostTensor, Scalar, Tensor, inputs, vjp};

use super::against::check;

fn numbers(v: &Value) -> Vec<f64> {
    let number = |v: &Value| v.as_f64().expect("a number");
    v.as_array().expect("a list").iter().map(number).collect()
}

fn close(what: &str, found: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (k, (a, b)) in found.iter().zip(expected).enumerate() {
        assert!(
            (a - b).abs() <= tolerance * (1.0 + b.abs()),
            "{what}[{k}] is {a}, expected {b}"
        );
    }
}

/// What was recorded, and the names of its parts.
fn rows() -> Vec<Value> {
    let recorded: Value = serde_json::from_str(include_str!("../reference/batch_norm.json")).expect("JSON");
    recorded["rows"].as_array().expect("rows").clone()
}

/// Elements rounded to a dtype.
fn rounded(shape: &[usize], elements: &[f64], dtype: DType) -> HostTensor {
    let mut host = HostTensor::zeros(dtype, shape).expect("a size that fits");
    assert_eq!(host.len(), elements.len());
    for (i, v) in elements.iter().enumerate() {
        host.set(i, Scalar::from_f64(dtype, *v));
    }
    host
}

fn recorded(row: &Value, name: &str, shape: &[usize], dtype: DType) -> HostTensor {
    rounded(shape, &numbers(&row[name]), dtype)
}

fn shape_of(row: &Value) -> Vec<usize> {
    numbers(&row["shape"]).into_iter().map(|n| n as usize).collect()
}

#[test]
fn values_statistics_and_derivatives_are_those_of_numpy() {
    for row in rows() {
        let shape = shape_of(&row);
        let channels = [shape[1]];
        for (dtype, tolerance) in [(DType::F64, 1e-12), (DType::F32, 2e-5)] {
            let g = Graph::new("batch_norm");
            let x = g.input("x", dtype, &shape);
            let [w, b, mean, var] = ["weight", "bias", "mean", "var"].map(|name| g.input(name, dtype, channels));
            let (momentum, eps) = (row["momentum"].as_f64().unwrap(), row["eps"].as_f64().unwrap());
            let (y, next_mean, next_var) = x.batch_norm_train(&mean, &var, Some(&w), Some(&b), momentum, eps);
            let elements = shape.iter().product::<usize>() as f64;
            let dy = (g.arange(0.0, elements, 1.0, dtype) / 4.0 + 1.0).reshape(&shape);
            let d = vjp(&[&y], &[&dy], &[&x, &w, &b]);
            let all = [&y, &next_mean, &next_var, &d[0], &d[1], &d[2]];
            for (k, t) in all.into_iter().enumerate() {
                assert_eq!(t.dtype(), dtype);
                g.output(&k.to_string(), &t.cast(DType::F64));
            }
            let given = ["x", "weight", "bias", "mean", "var"]
                .map(|name| recorded(&row, name, if name == "x" { &shape } else { &channels }, dtype));
            let run = g.compile(&CompileOptions::default()).unwrap();
            let found = run.run(&given.each_ref().map(Into::into)).unwrap();
            let gradients = row["gradients"].as_array().unwrap();
            let expected = [&row["y"], &row["next_mean"], &row["next_var"]]
                .into_iter()
                .chain(gradients);
            for (k, expected) in expected.enumerate() {
                let expected = numbers(expected);
                // Derivatives are sums of numbers up to the largest.
                let largest = expected.iter().fold(1f64, |m, v| m.max(v.abs()));
                let tolerance = if k < 3 { tolerance } else { tolerance * largest };
                let found = found[k].as_slice::<f64>().unwrap();
                close(&format!("{shape:?}, {dtype}, result {k}"), found, &expected, tolerance);
            }
        }
    }
}

#[test]
fn derivatives_are_those_of_finite_differences() {
    let channels: &[usize] = &[3];
    let given = [
        (&[4usize, 3, 2][..], -2.0, 2.0),
        (channels, 0.5, 1.5),
        (channels, -1.0, 1.0),
    ];
    check("batch_norm_train", &given, |g, x| {
        let (mean, var) = (g.zeros(3, DType::F64), g.ones(3, DType::F64));
        x[0].batch_norm_train(&mean, &var, Some(&x[1]), Some(&x[2]), 0.1, 1e-3)
            .0
    });
}

#[test]
fn running_statistics_are_constants_to_derivatives() {
    let g = Graph::new("constants");
    let x = g.constant([[1.0f64, 2.0], [3.0, 5.0], [-1.0, 0.5]]);
    let (mean, var) = (g.zeros(2, DType::F64), g.ones(2, DType::F64));
    let (_, next_mean, next_var) = x.batch_norm_train(&mean, &var, None, None, 0.5, 1e-5);
    let loss = (next_mean + next_var).sum(..);
    for d in tlc::grad(&loss, &[&x, &mean, &var]) {
        assert!(d.eval().unwrap().as_slice::<f64>().unwrap().iter().all(|v| *v == 0.0));
    }
}

#[test]
fn narrow_inputs_have_statistics_of_f32() {
    for (dtype, tolerance) in [(DType::F16, 3e-4), (DType::BF16, 2.2e-3)] {
        let g = Graph::new("narrow");
        // Sums and squares beyond what f16 holds, and means that bf16 cannot tell apart.
        let n = 4096;
        let wide: Vec<f64> = (0..n).map(|i| 300.0 + ((i * 37) % 101) as f64 / 4.0).collect();
        let host = rounded(&[n, 1], &wide, dtype);
        let given: Vec<f64> = (0..n).map(|i| host.get(i).as_f64()).collect();
        let x = g.constant(host);
        let (mean, var) = (g.zeros(1, DType::F32), g.zeros(1, DType::F32));
        let (y, mean, var) = x.batch_norm_train(&mean, &var, None, None, 1.0, 1e-5);
        assert_eq!((y.dtype(), mean.dtype()), (dtype, DType::F32));
        let exact = given.iter().sum::<f64>() / n as f64;
        let squares = given.iter().map(|v| (v - exact).powi(2)).sum::<f64>();
        let of = |t: &Tensor| f64::from(t.eval().unwrap().as_scalar::<f32>().unwrap());
        close("mean", &[of(&mean)], &[exact], 1e-6);
        close("variance", &[of(&var)], &[squares / (n - 1) as f64], 1e-5);
        let std = (squares / n as f64 + 1e-5).sqrt();
        let expected: Vec<f64> = given.iter().map(|v| (v - exact) / std).collect();
        let y = y.cast(DType::F64).eval().unwrap().to_host();
        close("y", y.as_slice::<f64>().unwrap(), &expected, tolerance);
    }
}

#[test]
fn a_call_gives_the_size_of_the_batch() {
    let row = &rows()[0];
    let shape = shape_of(row);
    let g = Graph::new("symbolic");
    let n = g.symbol("n", 1..=64);
    let x = g.input("x", DType::F64, (&n, 4));
    let (mean, var) = (g.input("mean", DType::F64, 4), g.input("var", DType::F64, 4));
    let (y, next_mean, next_var) = x.batch_norm_train(&mean, &var, None, None, 0.1, 1e-5);
    for (name, t) in [("y", &y), ("mean", &next_mean), ("var", &next_var)] {
        g.output(name, t);
    }
    let run = g.compile(&CompileOptions::default()).unwrap();
    let [x, mean, var] =
        [("x", &shape[..]), ("mean", &[4]), ("var", &[4])].map(|(name, shape)| recorded(row, name, shape, DType::F64));
    let found = run.run(&inputs![&x, &mean, &var]).unwrap();
    close(
        "mean",
        found["mean"].as_slice::<f64>().unwrap(),
        &numbers(&row["next_mean"]),
        1e-12,
    );
    close(
        "var",
        found["var"].as_slice::<f64>().unwrap(),
        &numbers(&row["next_var"]),
        1e-12,
    );
    // One value of each channel: nothing is infinite.
    let one = HostTensor::from_slice(&[1, 4], &[1.0f64, 2.0, 3.0, 4.0]).unwrap();
    let found = run.run(&inputs![&one, &mean, &var]).unwrap();
    assert_eq!(found["y"].as_slice::<f64>().unwrap(), [0.0; 4]);
    let expected: Vec<f64> = numbers(&row["var"]).iter().map(|v| v * 0.9).collect();
    close("var", found["var"].as_slice::<f64>().unwrap(), &expected, 1e-15);
}

#[test]
fn what_cannot_be_normalized_is_refused() {
    let cases: [(&[usize], usize, DType, f64, &str); 6] = [
        (&[4], 4, DType::F32, 0.1, "at least 2 axes"),
        (&[1, 4], 4, DType::F32, 0.1, "1 values for each channel"),
        (&[0, 4], 4, DType::F32, 0.1, "0 values for each channel"),
        (&[5, 4], 3, DType::F32, 0.1, "a running mean has extent 3"),
        (&[5, 4], 4, DType::I32, 0.1, "running statistics"),
        (&[5, 4], 4, DType::F32, 1.5, "momentum 1.5"),
    ];
    for (shape, channels, dtype, momentum, expected) in cases {
        let g = Graph::new("refused");
        let x = g.ones(shape, DType::F32);
        let (mean, var) = (g.zeros(channels, dtype), g.ones(channels, dtype));
        let (y, ..) = x.batch_norm_train(&mean, &var, None, None, momentum, 1e-5);
        assert!(y.is_poisoned());
        let errors = g.errors();
        assert_eq!(errors.len(), 1);
        assert!(errors[0].to_string().contains(expected), "{}", errors[0]);
    }
}
