//! Elementwise workloads, optimizer updates, and transposes.

use candle_core::D;
use ndarray::{ArrayView2, ArrayViewMut2, Zip};

use crate::workload::Workload;

const M: usize = 1 << 20;

/// A unary function over a million elements.
fn unary(
    name: &str,
    flops: f64,
    f: fn(&tlc::Tensor) -> tlc::Tensor,
    candle: fn(&candle_core::Tensor) -> candle_core::Result<candle_core::Tensor>,
    scalar: fn(f32) -> f32,
) -> Workload {
    Workload::new(name, &[&[M]], move |t| f(&t[0]))
        .costs(flops * M as f64, 40.0, 3.0)
        .candle(move |t| candle(&t[0]))
        .ndarray(move |t, out| {
            for (o, &x) in out.iter_mut().zip(t[0]) {
                *o = scalar(x);
            }
        })
}

fn add(name: &str, shape: &[usize]) -> Workload {
    let n: usize = shape.iter().product();
    Workload::new(name, &[shape, shape], |t| &t[0] + &t[1])
        .costs(n as f64, 1.0, 2.0)
        .candle(|t| &t[0] + &t[1])
        .ndarray(|t, out| {
            Zip::from(out).and(t[0]).and(t[1]).for_each(|o, &a, &b| *o = a + b);
        })
}

fn fma_relu(name: &str, n: usize) -> Workload {
    Workload::new(name, &[&[n], &[n], &[n]], |t| (&t[0] * &t[1] + &t[2]).relu())
        .costs(3.0 * n as f64, 2.0, 2.0)
        .candle(|t| ((&t[0] * &t[1])? + &t[2])?.relu())
        .ndarray(|t, out| {
            Zip::from(out)
                .and(t[0])
                .and(t[1])
                .and(t[2])
                .for_each(|o, &a, &b, &c| *o = (a * b + c).max(0.0));
        })
}

fn chain10(name: &str, n: usize) -> Workload {
    Workload::new(name, &[&[n], &[n]], |t| {
        let (a, b) = (&t[0], &t[1]);
        let x = ((a * b + a) * 0.5 - b).relu();
        ((x.square() + 1.0) * a).abs() - 0.25
    })
    .costs(10.0 * n as f64, 10.0, 8.0)
    .candle(|t| {
        let (a, b) = (&t[0], &t[1]);
        let x = ((((a * b)? + a)? * 0.5)? - b)?.relu()?;
        (((x.sqr()? + 1.0)? * a)?.abs())? - 0.25
    })
    .ndarray(|t, out| {
        Zip::from(out).and(t[0]).and(t[1]).for_each(|o, &a, &b| {
            let x = ((a * b + a) * 0.5 - b).max(0.0);
            *o = ((x * x + 1.0) * a).abs() - 0.25;
        });
    })
}

fn transpose(n: usize) -> Workload {
    Workload::new(&format!("transpose_{n}"), &[&[n, n]], |t| t[0].permute([1, 0]))
        .candle(|t| t[0].t()?.contiguous())
        .ndarray(move |t, out| {
            let source = ArrayView2::from_shape((n, n), t[0]).expect("n by n");
            ArrayViewMut2::from_shape((n, n), out)
                .expect("n by n")
                .assign(&source.t());
        })
}

/// Parameter, gradient and two moments to the new parameter and moments.
fn adam(n: usize) -> Workload {
    let (b1, b2, rate, eps) = (0.9, 0.999, 1e-3, 1e-8);
    let mut w = Workload::new("adam_10m", &[&[n], &[n], &[n], &[n]], |t| t[0].clone())
        .costs(14.0 * n as f64, 20.0, 4.0)
        .candle(move |t| {
            let m = ((&t[2] * b1)? + (&t[1] * (1.0 - b1))?)?;
            let v = ((&t[3] * b2)? + (t[1].sqr()? * (1.0 - b2))?)?;
            &t[0] - ((m * rate)? / (v.sqrt()? + eps)?)?
        });
    w.positive = vec![3];
    w.record = Box::new(move |t| {
        let m = &t[2] * b1 + &t[1] * (1.0 - b1);
        let v = &t[3] * b2 + t[1].square() * (1.0 - b2);
        vec![&t[0] - &m * rate / (v.sqrt() + eps), m, v]
    });
    w
}

fn sgdm(n: usize) -> Workload {
    let mut w = Workload::new("sgdm_10m", &[&[n], &[n], &[n]], |t| t[0].clone())
        .costs(4.0 * n as f64, 4.0, 4.0)
        .candle(|t| {
            let m = ((&t[2] * 0.9)? + &t[1])?;
            &t[0] - (m * 0.01)?
        });
    w.record = Box::new(|t| {
        let m = &t[2] * 0.9 + &t[1];
        vec![&t[0] - &m * 0.01, m]
    });
    w
}

/// Every workload of this module.
pub fn all(large: bool) -> Vec<Workload> {
    let tanh_gelu = |x: f32| x * 0.5 * (((x + 0.044715 * x * x * x) * 0.797_884_6).tanh() + 1.0);
    let mut out = vec![
        add("add_256x256", &[256, 256]),
        add("add_1024x1024", &[1024, 1024]),
        fma_relu("fma_relu_64k", 1 << 16),
        fma_relu("fma_relu_1m", M),
        unary(
            "gelu_tanh_1m",
            28.0,
            tlc::Tensor::gelu_tanh,
            candle_core::Tensor::gelu,
            tanh_gelu,
        ),
        unary("sigmoid_1m", 22.0, tlc::Tensor::sigmoid, candle_nn::ops::sigmoid, |x| {
            1.0 / (1.0 + (-x).exp())
        }),
        unary("tanh_1m", 20.0, tlc::Tensor::tanh, candle_core::Tensor::tanh, f32::tanh),
        unary("exp_1m", 20.0, tlc::Tensor::exp, candle_core::Tensor::exp, f32::exp),
        chain10("chain10_1m", M),
        transpose(1024),
        transpose(4096),
        Workload::new("tiny5_16", &[&[16], &[16]], |t| {
            ((&t[0] + &t[1]) * &t[0] - &t[1]).relu() * 0.5
        })
        .costs(80.0, 5.0, 4.0)
        .candle(|t| (((&t[0] + &t[1])? * &t[0])? - &t[1])?.relu()? * 0.5)
        .ndarray(|t, out| {
            Zip::from(out)
                .and(t[0])
                .and(t[1])
                .for_each(|o, &a, &b| *o = ((a + b) * a - b).max(0.0) * 0.5);
        }),
        Workload::new("permute_8x128x12x64", &[&[8, 128, 12, 64]], |t| {
            t[0].permute([0, 2, 1, 3])
        })
        .candle(|t| t[0].transpose(1, D::Minus2)?.contiguous()),
    ];
    if large {
        out.push(add("add_16m", &[16 * M]));
        out.push(fma_relu("fma_relu_16m", 16 * M));
        out.push(chain10("chain10_16m", 16 * M));
        out.push(adam(10_000_000));
        out.push(sgdm(10_000_000));
    }
    out
}
