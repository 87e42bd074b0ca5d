//! Matrix products, einsums, matrix-vector products.

use candle_core::D;
use ndarray::linalg::{general_mat_mul, general_mat_vec_mul};
use ndarray::{ArrayView1, ArrayView2, ArrayViewMut1, ArrayViewMut2};

use crate::workload::Workload;

/// `out = a b` for row-major matrices, by the crate `gemm` itself.
pub fn gemm<T: Copy + 'static>(
    (m, n, k): (usize, usize, usize),
    a: &[T],
    b: &[T],
    out: &mut [T],
    unit: T,
    threads: usize,
) {
    assert!(a.len() >= m * k && b.len() >= k * n && out.len() >= m * n);
    let parallelism = if threads > 1 {
        gemm::Parallelism::Rayon(threads)
    } else {
        gemm::Parallelism::None
    };
    let (n_, k_) = (n as isize, k as isize);
    // SAFETY: the matrices lie inside their slices, as just checked; `out` is borrowed exclusively. `dst` is not read
    // (`read_dst` is false), so `alpha` counts for nothing.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            n_,
            false,
            a.as_ptr(),
            1,
            k_,
            b.as_ptr(),
            1,
            n_,
            unit,
            unit,
            false,
            false,
            false,
            parallelism,
        );
    }
}

fn matrix(rows: usize, columns: usize, data: &[f32]) -> ArrayView2<'_, f32> {
    ArrayView2::from_shape((rows, columns), data).expect("rows by columns")
}

/// Sum of absolute terms of a dot product of `k` terms uniform in -1..1: k / 4 expected, k / 2 is never passed.
fn dot(k: usize) -> (f64, f64) {
    (k as f64, k as f64 / 2.0)
}

fn matmul(n: usize) -> Workload {
    let (terms, magnitude) = dot(n);
    Workload::new(&format!("matmul_{n}"), &[&[n, n], &[n, n]], |t| t[0].matmul(&t[1]))
        .costs(2.0 * (n * n * n) as f64, terms, magnitude)
        .candle(|t| t[0].matmul(&t[1]))
        .native("gemm x86-v4", move |t, out, threads| {
            gemm((n, n, n), t[0], t[1], out, 1f32, threads)
        })
        .ndarray(move |t, out| {
            let mut out = ArrayViewMut2::from_shape((n, n), out).expect("n by n");
            general_mat_mul(1.0, &matrix(n, n, t[0]), &matrix(n, n, t[1]), 0.0, &mut out);
        })
}

fn matmul_f64(n: usize) -> Workload {
    let (terms, magnitude) = dot(n);
    let mut w = Workload::new(&format!("matmul_f64_{n}"), &[&[n, n], &[n, n]], |t| t[0].matmul(&t[1]))
        .costs(2.0 * (n * n * n) as f64, terms, magnitude)
        .candle(|t| t[0].matmul(&t[1]));
    w.double = true;
    w.native.push((
        "gemm x86-v4",
        Box::new(move |t, out, threads| {
            let (a, b): (&[f64], &[f64]) = (bytemuck::cast_slice(t[0]), bytemuck::cast_slice(t[1]));
            gemm((n, n, n), a, b, bytemuck::cast_slice_mut(out), 1.0, threads);
        }),
    ));
    w
}

fn mm_bias_relu(name: &str, m: usize, k: usize, n: usize) -> Workload {
    let (terms, magnitude) = dot(k);
    Workload::new(name, &[&[m, k], &[k, n], &[n]], |t| (t[0].matmul(&t[1]) + &t[2]).relu())
        .costs(2.0 * (m * n * k) as f64, terms + 1.0, magnitude + 1.0)
        .candle(|t| t[0].matmul(&t[1])?.broadcast_add(&t[2])?.relu())
        .native("gemm x86-v4", move |t, out, threads| {
            gemm((m, n, k), t[0], t[1], out, 1f32, threads);
            for row in out.chunks_exact_mut(n) {
                row.iter_mut().zip(t[2]).for_each(|(o, b)| *o = (*o + b).max(0.0));
            }
        })
}

fn einsum(
    name: &str,
    expression: &'static str,
    shapes: &[&[usize]],
    flops: f64,
    terms: usize,
    magnitude: f64,
) -> Workload {
    Workload::new(name, shapes, move |t| {
        tlc::einsum(expression, &t.iter().collect::<Vec<_>>())
    })
    .costs(flops, terms as f64, magnitude)
}

/// Every workload of this module.
pub fn all(large: bool) -> Vec<Workload> {
    let mut out: Vec<Workload> = [64, 128, 256, 512, 1000, 1024, 2048].into_iter().map(matmul).collect();
    if large {
        out.push(matmul(4096));
    }
    let (k, attention) = (4096, [8, 12, 128, 64]);
    out.push(matmul_f64(1000));
    out.push(mm_bias_relu("mm_bias_relu_1024", 1024, 1024, 1024));
    out.push(mm_bias_relu("mm_bias_relu_64x784x256", 64, 784, 256));
    out.push(
        Workload::new("bmm_32x128x64x128", &[&[32, 128, 64], &[32, 64, 128]], |t| {
            t[0].matmul(&t[1])
        })
        .costs(2.0 * 32.0 * 128.0 * 64.0 * 128.0, 64.0, 32.0)
        .candle(|t| t[0].matmul(&t[1])),
    );
    out.push(
        Workload::new("matvec_4096", &[&[k, k], &[k]], |t| t[0].matmul(&t[1]))
            .costs(2.0 * (k * k) as f64, dot(k).0, dot(k).1)
            .candle(|t| t[0].matmul(&t[1].unsqueeze(1)?)?.squeeze(1))
            .ndarray(move |t, out| {
                let mut out = ArrayViewMut1::from(out);
                general_mat_vec_mul(1.0, &matrix(k, k, t[0]), &ArrayView1::from(t[1]), 0.0, &mut out);
            }),
    );
    let cube = 2.0 * 512f64.powi(3);
    out.push(
        einsum(
            "einsum_mm_512",
            "ij,jk->ik",
            &[&[512, 512], &[512, 512]],
            cube,
            512,
            256.0,
        )
        .candle(|t| t[0].matmul(&t[1])),
    );
    let scores = 2.0 * 8.0 * 12.0 * 128.0 * 128.0 * 64.0;
    out.push(
        einsum(
            "einsum_attn_scores",
            "bhqd,bhkd->bhqk",
            &[&attention, &attention],
            scores,
            64,
            32.0,
        )
        .candle(|t| t[0].matmul(&t[1].transpose(D::Minus1, D::Minus2)?)),
    );
    // (kl,lm) first, then ijk with the 256x128 product.
    let three = 2.0 * (256.0 * 256.0 * 128.0 + 32.0 * 64.0 * 256.0 * 128.0);
    let shapes: &[&[usize]] = &[&[32, 64, 256], &[256, 256], &[256, 128]];
    out.push(
        einsum(
            "einsum_three_operand",
            "ijk,kl,lm->ijm",
            shapes,
            three,
            512,
            256.0 * 64.0,
        )
        .candle(|t| {
            t[0].reshape((2048, 256))?
                .matmul(&t[1].matmul(&t[2])?)?
                .reshape((32, 64, 128))
        }),
    );
    let f = [16usize; 4];
    out.push(
        einsum(
            "einsum_abcd_16",
            "abcd,cdef,efgh->abgh",
            &[&f, &f, &f],
            4.0 * 256f64.powi(3),
            512,
            256.0 * 64.0,
        )
        .candle(|t| {
            let two = |x: &candle_core::Tensor| x.reshape((256, 256));
            two(&t[0])?
                .matmul(&two(&t[1])?)?
                .matmul(&two(&t[2])?)?
                .reshape((16, 16, 16, 16))
        }),
    );
    // Along the two rails: 16x64x64 products; five sites. The sum has 16^5 * 64^8 terms, so its rounding is that of the
    // chain of contractions, 64 * 64 * 16 terms in the longest of them.
    let (w, p) = (64usize, 16usize);
    let shapes: [&[usize]; 10] = [
        &[p, w],
        &[p, w],
        &[w, p, w],
        &[w, p, w],
        &[w, p, w],
        &[w, p, w],
        &[w, p, w],
        &[w, p, w],
        &[w, p],
        &[w, p],
    ];
    let network = 3.0 * 2.0 * 2.0 * (w * w * w * p) as f64 + 2.0 * 2.0 * (w * w * p) as f64;
    let mut network = einsum(
        "einsum_network_10",
        "pa,pe,aqb,eqf,brc,frg,csd,gsh,dt,ht->",
        &shapes,
        network,
        4096,
        0.0,
    );
    // Nothing beside it; magnitude is of no use.
    network.magnitude = 1e30;
    out.push(network);
    out
}
