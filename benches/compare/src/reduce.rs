//! Reductions, and the row-local family: softmax, log-softmax, layer norm, RMS norm.

use candle_core::D;
use ndarray::{ArrayView2, Axis};

use crate::workload::Workload;

const SIDE: usize = 1024;
const N: f64 = (SIDE * SIDE) as f64;

/// A reduction of 1024x1024. Sums are of positive numbers, so that a lost row would be outside of the tolerance.
fn reduce(name: &str, terms: f64, f: fn(&tlc::Tensor) -> tlc::Tensor) -> Workload {
    let mut w = Workload::new(name, &[&[SIDE, SIDE]], move |t| f(&t[0])).costs(N, terms, terms);
    w.positive = if terms > 1.0 { vec![0] } else { vec![] };
    w
}

fn matrix<'a>(t: &[&'a [f32]]) -> ArrayView2<'a, f32> {
    ArrayView2::from_shape((SIDE, SIDE), t[0]).expect("1024 by 1024")
}

fn log_softmax(rows: usize, columns: usize) -> Workload {
    Workload::new(&format!("log_softmax_{rows}x{columns}"), &[&[rows, columns]], |t| {
        t[0].log_softmax(-1)
    })
    .costs(23.0 * (rows * columns) as f64, 60.0, 10.0)
    .candle(|t| candle_nn::ops::log_softmax(&t[0], D::Minus1))
}

/// Every workload of this module.
pub fn all() -> Vec<Workload> {
    let wide: &[usize] = &[4096, 1024];
    let cells = 4096.0 * 1024.0;
    vec![
        Workload::new("sum_all_256x256", &[&[256, 256]], |t| t[0].sum(..))
            .costs(65536.0, 65536.0, 32768.0)
            .candle(|t| t[0].sum_all())
            .ndarray(|t, out| out[0] = ndarray::ArrayView1::from(t[0]).sum()),
        reduce("sum_all_1024x1024", N, |x| x.sum(..))
            .candle(|t| t[0].sum_all())
            .ndarray(|t, out| out[0] = matrix(t).sum()),
        reduce("sum_axis0_1024", 1024.0, |x| x.sum(0))
            .candle(|t| t[0].sum(0))
            .ndarray(|t, out| out.copy_from_slice(matrix(t).sum_axis(Axis(0)).as_slice().expect("contiguous"))),
        reduce("sum_axis1_1024", 1024.0, |x| x.sum(1))
            .candle(|t| t[0].sum(1))
            .ndarray(|t, out| out.copy_from_slice(matrix(t).sum_axis(Axis(1)).as_slice().expect("contiguous"))),
        reduce("mean_axis0_1024", 1024.0, |x| x.mean(0))
            .candle(|t| t[0].mean(0))
            .ndarray(|t, out| {
                let mean = matrix(t).mean_axis(Axis(0)).expect("not empty");
                out.copy_from_slice(mean.as_slice().expect("contiguous"));
            }),
        reduce("max_axis1_1024", 1.0, |x| x.max(1))
            .candle(|t| t[0].max(1))
            .ndarray(|t, out| {
                for (o, row) in out.iter_mut().zip(matrix(t).rows()) {
                    *o = row.fold(f32::NEG_INFINITY, |a, &b| if b > a { b } else { a });
                }
            }),
        reduce("max_all_1024x1024", 1.0, |x| x.max(..)).candle(|t| t[0].max_all()),
        reduce("argmax_axis1_1024", 0.0, |x| x.argmax(1)).candle(|t| t[0].argmax(1)),
        log_softmax(256, 10),
        log_softmax(1024, 10),
        log_softmax(4096, 10),
        log_softmax(4096, 1024),
        Workload::new("softmax_4096x1024", &[wide], |t| t[0].softmax(-1))
            .costs(23.0 * cells, 1100.0, 1.0)
            .candle(|t| candle_nn::ops::softmax_last_dim(&t[0])),
        Workload::new("softmax_axis0_1024", &[&[1024, 1024]], |t| t[0].softmax(0))
            .costs(23.0 * 1024.0 * 1024.0, 1100.0, 1.0)
            .candle(|t| candle_nn::ops::softmax(&t[0], 0)),
        Workload::new("softmax_axis1_32x64x56x56", &[&[32, 64, 56, 56]], |t| t[0].softmax(1))
            .costs(23.0 * 32.0 * 64.0 * 56.0 * 56.0, 150.0, 1.0)
            .candle(|t| candle_nn::ops::softmax(&t[0], 1)),
        Workload::new("layernorm_4096x1024", &[wide, &[1024], &[1024]], |t| {
            t[0].layer_norm(Some(&t[1]), Some(&t[2]), 1e-5)
        })
        .costs(8.0 * cells, 1100.0, 4.0)
        .candle(|t| candle_nn::ops::layer_norm(&t[0], &t[1], &t[2], 1e-5)),
        Workload::new("rmsnorm_4096x1024", &[wide, &[1024]], |t| {
            t[0].rms_norm(Some(&t[1]), 1e-5)
        })
        .costs(5.0 * cells, 1100.0, 4.0)
        .candle(|t| candle_nn::ops::rms_norm(&t[0], &t[1], 1e-5)),
    ]
}
