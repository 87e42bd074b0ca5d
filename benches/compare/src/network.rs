//! Convolutions, pooling, normalization over images, and whole networks: an MLP, attention, a transformer encoder layer.

use candle_core::{D, Tensor as Candle};
use tlc::{Attention, Conv, Pool, Tensor};

use crate::workload::Workload;

fn mlp() -> Workload {
    let shapes: &[&[usize]] = &[&[64, 784], &[784, 256], &[256], &[256, 128], &[128], &[128, 10], &[10]];
    let flops = 2.0 * 64.0 * (784.0 * 256.0 + 256.0 * 128.0 + 128.0 * 10.0);
    Workload::new("mlp_fwd_b64", shapes, mlp_graph)
        .costs(flops, 1200.0, 784.0 * 256.0 * 8.0)
        .candle(|t| {
            let h = t[0].matmul(&t[1])?.broadcast_add(&t[2])?.relu()?;
            let h = h.matmul(&t[3])?.broadcast_add(&t[4])?.relu()?;
            h.matmul(&t[5])?.broadcast_add(&t[6])
        })
}

/// 784-256-128-10 with ReLU.
pub fn mlp_graph(t: &[Tensor]) -> Tensor {
    let h = (t[0].matmul(&t[1]) + &t[2]).relu();
    let h = (h.matmul(&t[3]) + &t[4]).relu();
    h.matmul(&t[5]) + &t[6]
}

fn attend(q: &Candle, k: &Candle, v: &Candle) -> candle_core::Result<Candle> {
    let scale = 1.0 / (q.dim(D::Minus1)? as f64).sqrt();
    let scores = (q.matmul(&k.t()?)? * scale)?;
    candle_nn::ops::softmax_last_dim(&scores)?.matmul(v)
}

fn attention(batch: usize, heads: usize, length: usize, width: usize) -> Workload {
    let shape: &[usize] = &[batch, heads, length, width];
    let cells = (batch * heads * length * length) as f64;
    Workload::new(
        &format!("attention_{batch}x{heads}x{length}x{width}"),
        &[shape, shape, shape],
        |t| t[0].attention(&t[1], &t[2], &Attention::new()),
    )
    .costs(cells * (4.0 * width as f64 + 23.0), 100.0 + length as f64, 2.0)
    .candle(|t| attend(&t[0], &t[1], &t[2]))
}

/// Batch 8, length 128, width 384, 12 heads, MLP of 1536; q, k and v come in projected.
pub const ENCODER: [&[usize]; 14] = [
    &[8, 128, 384],
    &[8, 128, 384],
    &[8, 128, 384],
    &[8, 128, 384],
    &[384, 384],
    &[384],
    &[384],
    &[384],
    &[384, 1536],
    &[1536],
    &[1536, 384],
    &[384],
    &[384],
    &[384],
];

/// Post-norm encoder layer: `[x, q, k, v, wo, bo, ln1 weight, ln1 bias, w1, b1, w2, b2, ln2 weight, ln2 bias]`.
pub fn encoder_graph(t: &[Tensor]) -> Tensor {
    let heads = |x: &Tensor| x.reshape([8, 128, 12, 32]).permute([0, 2, 1, 3]);
    let a = heads(&t[1]).attention(&heads(&t[2]), &heads(&t[3]), &Attention::new());
    let a = a.permute([0, 2, 1, 3]).reshape([8, 128, 384]);
    let x = (&t[0] + a.matmul(&t[4]) + &t[5]).layer_norm(Some(&t[6]), Some(&t[7]), 1e-5);
    let h = (x.matmul(&t[8]) + &t[9]).gelu();
    (x + h.matmul(&t[10]) + &t[11]).layer_norm(Some(&t[12]), Some(&t[13]), 1e-5)
}

fn encoder_candle(t: &[Candle]) -> candle_core::Result<Candle> {
    let heads = |x: &Candle| x.reshape((8, 128, 12, 32))?.transpose(1, 2)?.contiguous();
    let a = attend(&heads(&t[1])?, &heads(&t[2])?, &heads(&t[3])?)?;
    let a = a.transpose(1, 2)?.contiguous()?.reshape((1024, 384))?;
    let x = t[0].reshape((1024, 384))?;
    let x = (x + a.matmul(&t[4])?.broadcast_add(&t[5])?)?;
    let x = candle_nn::ops::layer_norm(&x, &t[6], &t[7], 1e-5)?;
    let h = x.matmul(&t[8])?.broadcast_add(&t[9])?.gelu_erf()?;
    let x = (&x + h.matmul(&t[10])?.broadcast_add(&t[11])?)?;
    candle_nn::ops::layer_norm(&x, &t[12], &t[13], 1e-5)?.reshape((8, 128, 384))
}

/// Every workload of this module.
pub fn all(large: bool) -> Vec<Workload> {
    let images: &[usize] = &[32, 16, 24, 24];
    let cells = 32.0 * 16.0 * 24.0 * 24.0;
    let batch: &[usize] = &[32, 64, 56, 56];
    let channels: &[usize] = &[64];
    let encoder_flops = 2.0 * 1024.0 * 384.0 * (384.0 + 2.0 * 1536.0)
        + 8.0 * 12.0 * 128.0 * 128.0 * (4.0 * 32.0 + 23.0)
        + 1024.0 * 1536.0 * 24.0;
    let mut batch_norm = Workload::new(
        "batchnorm_32x64x56x56",
        &[batch, channels, channels, channels, channels],
        |t| t[0].batch_norm(&t[1], &t[2], Some(&t[3]), Some(&t[4]), 1e-5),
    )
    .costs(2.0 * 32.0 * 64.0 * 56.0 * 56.0, 8.0, 8.0)
    .candle(|t| {
        let scale = ((&t[2] + 1e-5)?.sqrt()?.recip()? * &t[3])?;
        let shift = (&t[4] - (&t[1] * &scale)?)?;
        let wide = |x: &Candle| x.reshape((1, 64, 1, 1));
        t[0].broadcast_mul(&wide(&scale)?)?.broadcast_add(&wide(&shift)?)
    });
    batch_norm.positive = vec![2];
    let mut out = vec![
        Workload::new("conv2d_32x1x28x28_16x3x3", &[&[32, 1, 28, 28], &[16, 1, 3, 3]], |t| {
            t[0].conv2d(&t[1], None, &Conv::new())
        })
        .costs(2.0 * 32.0 * 16.0 * 26.0 * 26.0 * 9.0, 9.0, 9.0)
        .candle(|t| t[0].conv2d(&t[1], 0, 1, 1, 1)),
        Workload::new("conv2d_8x64x56x56_64x3x3", &[&[8, 64, 56, 56], &[64, 64, 3, 3]], |t| {
            t[0].conv2d(&t[1], None, &Conv::new().padding(1))
        })
        .costs(2.0 * 8.0 * 64.0 * 56.0 * 56.0 * 576.0, 576.0, 288.0)
        .candle(|t| t[0].conv2d(&t[1], 1, 1, 1, 1)),
        Workload::new("maxpool2d_32x16x24x24", &[images], |t| t[0].max_pool(&Pool::new(2)))
            .costs(cells, 1.0, 1.0)
            .candle(|t| t[0].max_pool2d(2)),
        Workload::new("avgpool2d_32x16x24x24", &[images], |t| t[0].avg_pool(&Pool::new(2)))
            .costs(cells, 4.0, 1.0)
            .candle(|t| t[0].avg_pool2d(2)),
        batch_norm,
        mlp(),
        attention(8, 12, 128, 64),
        Workload::new("encoder_layer_8x128x384", &ENCODER, encoder_graph)
            .costs(encoder_flops, 2000.0, 40.0)
            .candle(encoder_candle),
    ];
    if large {
        out.push(attention(1, 12, 1024, 64));
    }
    out
}
