//! Parameters of f16 and bf16: computed in f32, rounded once.

use half::{bf16, f16};
use tlc::optim::Optimizer;
use tlc::{DType, HostTensor, inputs};

use crate::reference::{first, gradient, step_of};

/// The step of AdamW on parameters that were rounded, in f32, as NumPy would.
#[test]
fn narrow_parameters_are_updated_in_f32_and_rounded_once() {
    let optimizer: Optimizer = "adamw:lr=0.01,wd=0.1".parse().unwrap();
    let (n, t) = (64, 3i64);
    for dtype in [DType::F16, DType::BF16] {
        let round = |v: f64| match dtype {
            DType::F16 => f64::from(f16::from_f64(v)),
            _ => f64::from(bf16::from_f64(v)),
        };
        let slots: Vec<_> = optimizer.slots(dtype, &[n.into()]).iter().map(|s| s.dtype).collect();
        assert_eq!(slots, [DType::F32; 2]);
        let (p, d): (Vec<f64>, Vec<f64>) = (
            first(n).into_iter().map(round).collect(),
            gradient(n, 5).into_iter().map(round).collect(),
        );
        let (m, v): (Vec<f32>, Vec<f32>) = (0..n).map(|i| (i as f32 / 100.0 - 0.3, i as f32 / 70.0 + 0.01)).unzip();
        let host = |values: &[f64]| match dtype {
            DType::F16 => HostTensor::from_slice(&[n], &values.iter().map(|&v| f16::from_f64(v)).collect::<Vec<_>>()),
            _ => HostTensor::from_slice(&[n], &values.iter().map(|&v| bf16::from_f64(v)).collect::<Vec<_>>()),
        };
        let step = step_of(&optimizer, dtype, &[n]);
        let found = step
            .run(&inputs![t, host(&p).unwrap(), host(&d).unwrap(), &m, &v])
            .unwrap();
        let next = found[0].to_host();
        assert_eq!((next.dtype(), found[1].dtype()), (dtype, DType::F32));
        for i in 0..n {
            let (mean, square) = (
                f64::from(m[i]) + (d[i] - f64::from(m[i])) * 0.1,
                f64::from(v[i]) * 0.999 + d[i] * d[i] * 0.001,
            );
            let (first, second) = (1.0 - 0.9f64.powi(3), 1.0 - 0.999f64.powi(3));
            let exact = p[i] * (1.0 - 0.01 * 0.1) - 0.01 / first * mean / (square.sqrt() / second.sqrt() + 1e-8);
            // The nearest number, unless what is exact lies beside a middle of two.
            let near = [exact * (1.0 - 1e-6), exact * (1.0 + 1e-6)].map(round);
            assert!(
                near.contains(&next.get(i).as_f64()),
                "{dtype} {i}: {} for {exact}",
                next.get(i).as_f64()
            );
            assert!((f64::from(found[1].as_slice::<f32>().unwrap()[i]) - mean).abs() < 1e-6);
        }
    }
}
