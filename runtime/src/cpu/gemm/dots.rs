//! A matrix times a vector, both with the summed axis together in memory: a dot product for each row.
//!
//! Such a product reads every element of the matrix once, so nothing is packed. Each row is summed in two vectors of
//! accumulators, whatever its neighbours, so its bits depend on the summed extent alone.

use std::arch::x86_64::*;

use tlc_ir::DType;

use super::{Matrix, Product};

/// Rows that share the loads of the vector.
const ROWS: usize = 4;

/// Whether this is such a product, and this machine has the instructions.
pub(super) fn fits(p: &Product<'_>) -> bool {
    (p.m == 1 || p.n == 1)
        && p.lhs.composite.is_none()
        && p.rhs.composite.is_none()
        && p.lhs.column == 1
        && p.rhs.row == 1
        && p.k > 0
        && (std::is_x86_feature_detected!("avx512f")
            || std::is_x86_feature_detected!("fma") && std::is_x86_feature_detected!("avx"))
}

/// Computes a piece of one.
///
/// # Safety
/// As for [`super::multiply`]; the product [`fits`], or is a piece of one that does.
pub(super) unsafe fn run(p: &Product<'_>, rows_are_results: bool) {
    let (matrix, vector, rows, stride, step): (&Matrix<'_>, &Matrix<'_>, usize, isize, isize) = match rows_are_results {
        true => (&p.lhs, &p.rhs, p.m, p.lhs.row, p.dst.row),
        false => (&p.rhs, &p.lhs, p.n, p.rhs.column, p.dst.column),
    };
    let wide = std::is_x86_feature_detected!("avx512f");
    let (a, x, y) = (matrix.start, vector.start, p.dst.start);
    // SAFETY: the caller's promise, and the instructions were looked for.
    unsafe {
        match (p.dtype, wide) {
            (DType::F64, true) => avx512_f64(rows, p.k, a.cast(), stride, x.cast(), y.cast(), step),
            (DType::F64, false) => fma_f64(rows, p.k, a.cast(), stride, x.cast(), y.cast(), step),
            (_, true) => avx512_f32(rows, p.k, a.cast(), stride, x.cast(), y.cast(), step),
            (_, false) => fma_f32(rows, p.k, a.cast(), stride, x.cast(), y.cast(), step),
        }
    }
}

macro_rules! dots {
    ($name:ident, $features:literal, $element:ty, $lanes:literal, $zero:ident, $load:ident, $fma:ident, $add:ident, $store:ident) => {
        /// `y[i * step] = Σ_k a[i * stride + k] * x[k]` for all rows.
        ///
        /// # Safety
        /// The machine has the features, `rows` rows of `k` elements of `a` and `k` of `x` can be read, and the results written.
        #[target_feature(enable = $features)]
        unsafe fn $name(
            rows: usize,
            k: usize,
            a: *const $element,
            stride: isize,
            x: *const $element,
            y: *mut $element,
            step: isize,
        ) {
            const LANES: usize = $lanes;
            let whole = k / LANES * LANES;
            let rest = k - whole;
            // The last elements of the vector, then zeros.
            let mut x_rest = [0 as $element; LANES];
            // SAFETY: in the vector.
            unsafe { std::ptr::copy_nonoverlapping(x.add(whole), x_rest.as_mut_ptr(), rest) };
            let mut first = 0;
            while first < rows {
                let taken = if rows - first >= ROWS { ROWS } else { 1 };
                let row = |r: usize| a.wrapping_offset((first + r) as isize * stride);
                let mut sums = [[$zero(); 2]; ROWS];
                // SAFETY: whole vectors before the end of the vector and the rows.
                unsafe {
                    let mut i = 0;
                    while i + 2 * LANES <= k {
                        let v = [$load(x.add(i)), $load(x.add(i + LANES))];
                        if taken == ROWS {
                            for (r, sums) in sums.iter_mut().enumerate() {
                                sums[0] = $fma($load(row(r).add(i)), v[0], sums[0]);
                                sums[1] = $fma($load(row(r).add(i + LANES)), v[1], sums[1]);
                            }
                        } else {
                            sums[0][0] = $fma($load(row(0).add(i)), v[0], sums[0][0]);
                            sums[0][1] = $fma($load(row(0).add(i + LANES)), v[1], sums[0][1]);
                        }
                        i += 2 * LANES;
                    }
                    if i < whole {
                        let v = $load(x.add(i));
                        for (r, sums) in sums.iter_mut().enumerate().take(taken) {
                            sums[0] = $fma($load(row(r).add(i)), v, sums[0]);
                        }
                    }
                }
                for (r, sums) in sums.iter().enumerate().take(taken) {
                    let mut lanes = [0 as $element; LANES];
                    // SAFETY: the rest of the row, the result, and arrays of a vector's length.
                    unsafe {
                        std::ptr::copy_nonoverlapping(row(r).add(whole), lanes.as_mut_ptr(), rest);
                        let last = match rest {
                            0 => sums[1],
                            _ => $fma($load(lanes.as_ptr()), $load(x_rest.as_ptr()), sums[1]),
                        };
                        $store(lanes.as_mut_ptr(), $add(sums[0], last));
                        let mut half = LANES / 2;
                        while half > 0 {
                            for l in 0..half {
                                lanes[l] += lanes[l + half];
                            }
                            half /= 2;
                        }
                        *y.wrapping_offset((first + r) as isize * step) = lanes[0];
                    }
                }
                first += taken;
            }
        }
    };
}

dots!(
    avx512_f32,
    "avx512f",
    f32,
    16,
    _mm512_setzero_ps,
    _mm512_loadu_ps,
    _mm512_fmadd_ps,
    _mm512_add_ps,
    _mm512_storeu_ps
);
dots!(
    avx512_f64,
    "avx512f",
    f64,
    8,
    _mm512_setzero_pd,
    _mm512_loadu_pd,
    _mm512_fmadd_pd,
    _mm512_add_pd,
    _mm512_storeu_pd
);
dots!(
    fma_f32,
    "avx,fma",
    f32,
    8,
    _mm256_setzero_ps,
    _mm256_loadu_ps,
    _mm256_fmadd_ps,
    _mm256_add_ps,
    _mm256_storeu_ps
);
dots!(
    fma_f64,
    "avx,fma",
    f64,
    4,
    _mm256_setzero_pd,
    _mm256_loadu_pd,
    _mm256_fmadd_pd,
    _mm256_add_pd,
    _mm256_storeu_pd
);
