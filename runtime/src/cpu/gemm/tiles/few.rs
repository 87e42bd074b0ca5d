//! Few rows times a matrix whose columns lie together: the matrix is read once, line by line, where it is.
//!
//! A micro-kernel walks a panel of such a matrix down its whole depth: a few cache lines of each line, a page apart, and again for
//! every strip. Here the accumulators of all rows and of a piece of the lines are in the first-level cache, and each element that is
//! loaded goes to all rows. Results are those of micro-kernels to the bit: a chain of multiply-adds for each block of the sum,
//! and the blocks added up.

use std::arch::x86_64::*;

use super::super::unroll::unroll;

/// The most rows.
pub(super) const ROWS: usize = 16;
/// Lines that are added up in registers.
const TOGETHER: usize = 8;
/// Elements of all accumulators at once, about: with what streams through they stay in the first-level cache.
const ACCUMULATORS: usize = 6144;
/// A multiple of the columns that any instruction set takes at once.
const COLUMNS: usize = 64;

/// A part of a product: `results[i, j] = Σ_k rows[i, k] * lines[k, j]`, the columns `j` of the lines beside each other.
#[derive(Clone, Copy)]
pub(super) struct Part<T> {
    pub lines: *const T,
    pub line_stride: isize,
    pub rows: *const T,
    /// From row to row, and along the sum.
    pub row_strides: (isize, isize),
    pub results: *mut T,
    /// From row to row, and from column to column.
    pub result_strides: (isize, isize),
    pub row_count: usize,
    pub columns: usize,
    pub k: usize,
    /// Elements of a block of the sum.
    pub block: usize,
    /// Whether the next lines are asked for while these are multiplied: they come from far, and apart from each other.
    pub ahead: bool,
}

/// Columns of one piece.
fn piece(rows: usize, columns: usize) -> usize {
    let most = ACCUMULATORS / rows.max(1) / COLUMNS * COLUMNS;
    columns.next_multiple_of(COLUMNS).min(most.max(COLUMNS))
}

/// Elements of scratch that so many rows and columns need.
pub(super) fn scratch(rows: usize, columns: usize) -> usize {
    rows * piece(rows, columns)
}

macro_rules! few {
    (
        $name:ident, $features:literal, $element:ty, $lanes:literal, $vectors:literal,
        $zero:ident, $set:ident, $load:ident, $store:ident, $fma:ident, $add:ident
    ) => {
        /// Computes a part of a product; `sums` has room for what [`scratch`] says.
        ///
        /// # Safety
        /// The machine has the features; lines and rows can be read and results written, which overlap neither.
        #[target_feature(enable = $features)]
        pub(super) unsafe fn $name(p: Part<$element>, sums: *mut $element) {
            const LANES: usize = $lanes;
            const WIDTH: usize = LANES * $vectors;

            /// Adds `K` lines of `V` vectors to the sums of all rows, which are `pitch` apart; what was there is zero at `first`.
            ///
            /// # Safety
            /// As for the function around it.
            #[target_feature(enable = $features)]
            #[inline]
            unsafe fn add<const K: usize, const V: usize>(
                (lines, stride): (*const $element, isize),
                (rows, (row, along), count): (*const $element, (isize, isize), usize),
                (sums, pitch): (*mut $element, usize),
                (first, ahead): (bool, bool),
            ) {
                let mut w = [[$zero(); V]; K];
                if ahead {
                    unroll!(k < K {
                        unroll!(v < V {
                            let next = lines.wrapping_offset((K + k) as isize * stride).wrapping_add(v * LANES);
                            _mm_prefetch::<_MM_HINT_T0>(next.cast());
                        });
                    });
                }
                // SAFETY: the caller's promise.
                unsafe {
                    unroll!(k < K {
                        unroll!(v < V {
                            w[k][v] = $load(lines.wrapping_offset(k as isize * stride).add(v * LANES));
                        });
                    });
                    for i in 0..count {
                        let x = rows.wrapping_offset(i as isize * row);
                        let sum = sums.add(i * pitch);
                        let mut total = [$zero(); V];
                        if !first {
                            unroll!(v < V { total[v] = $load(sum.add(v * LANES)); });
                        }
                        unroll!(k < K {
                            let x = $set(*x.wrapping_offset(k as isize * along));
                            unroll!(v < V { total[v] = $fma(w[k][v], x, total[v]); });
                        });
                        unroll!(v < V { $store(sum.add(v * LANES), total[v]); });
                    }
                }
            }

            let pitch = piece(p.row_count, p.columns);
            for begin in (0..p.columns).step_by(pitch) {
                let columns = pitch.min(p.columns - begin);
                for from in (0..p.k).step_by(p.block) {
                    let depth = p.block.min(p.k - from);
                    let mut at = 0;
                    while at < depth {
                        let taken = if depth - at >= TOGETHER { TOGETHER } else { 1 };
                        let (first, along) = (at == 0, p.row_strides.1);
                        let line = (from + at) as isize;
                        let rows = p.rows.wrapping_offset(line * along);
                        let rows = (rows, p.row_strides, p.row_count);
                        let line = p.lines.wrapping_offset(line * p.line_stride).wrapping_add(begin);
                        let mut j = 0;
                        // SAFETY: whole vectors of the lines, then what is left of them, in an array; sums have room for whole vectors.
                        unsafe {
                            while j + WIDTH <= columns {
                                let (lines, sums) = ((line.add(j), p.line_stride), (sums.add(j), pitch));
                                match taken {
                                    TOGETHER => add::<TOGETHER, $vectors>(lines, rows, sums, (first, p.ahead)),
                                    _ => add::<1, $vectors>(lines, rows, sums, (first, false)),
                                }
                                j += WIDTH;
                            }
                            while j < columns {
                                let width = LANES.min(columns - j);
                                let (mut lines, mut left) =
                                    ((line.add(j), p.line_stride), [0 as $element; LANES * TOGETHER]);
                                if width < LANES {
                                    for k in 0..taken {
                                        let from = lines.0.wrapping_offset(k as isize * p.line_stride);
                                        std::ptr::copy_nonoverlapping(from, left.as_mut_ptr().add(k * LANES), width);
                                    }
                                    lines = (left.as_ptr(), LANES as isize);
                                }
                                let sums = (sums.add(j), pitch);
                                match taken {
                                    TOGETHER => add::<TOGETHER, 1>(lines, rows, sums, (first, false)),
                                    _ => add::<1, 1>(lines, rows, sums, (first, false)),
                                }
                                j += width;
                            }
                        }
                        at += taken;
                    }
                    for i in 0..p.row_count {
                        let to = i as isize * p.result_strides.0 + begin as isize * p.result_strides.1;
                        let (to, sum) = (p.results.wrapping_offset(to), sums.wrapping_add(i * pitch));
                        // SAFETY: elements of the results, and sums of them.
                        unsafe {
                            let mut j = 0;
                            if p.result_strides.1 == 1 {
                                while j + LANES <= columns {
                                    let sum = $load(sum.add(j));
                                    $store(to.add(j), if from == 0 { sum } else { $add($load(to.add(j)), sum) });
                                    j += LANES;
                                }
                            }
                            for j in j..columns {
                                let to = to.wrapping_offset(j as isize * p.result_strides.1);
                                *to = if from == 0 { *sum.add(j) } else { *to + *sum.add(j) };
                            }
                        }
                    }
                }
            }
        }
    };
}

few!(
    avx512_f32,
    "avx512f",
    f32,
    16,
    2,
    _mm512_setzero_ps,
    _mm512_set1_ps,
    _mm512_loadu_ps,
    _mm512_storeu_ps,
    _mm512_fmadd_ps,
    _mm512_add_ps
);
few!(
    avx512_f64,
    "avx512f",
    f64,
    8,
    2,
    _mm512_setzero_pd,
    _mm512_set1_pd,
    _mm512_loadu_pd,
    _mm512_storeu_pd,
    _mm512_fmadd_pd,
    _mm512_add_pd
);
few!(
    fma_f32,
    "avx,fma",
    f32,
    8,
    1,
    _mm256_setzero_ps,
    _mm256_set1_ps,
    _mm256_loadu_ps,
    _mm256_storeu_ps,
    _mm256_fmadd_ps,
    _mm256_add_ps
);
few!(
    fma_f64,
    "avx,fma",
    f64,
    4,
    1,
    _mm256_setzero_pd,
    _mm256_set1_pd,
    _mm256_loadu_pd,
    _mm256_storeu_pd,
    _mm256_fmadd_pd,
    _mm256_add_pd
);

#[cfg(test)]
mod tests {
    use super::*;

    /// What every instruction set of this machine computes: sums of products, block by block, and no other element is written.
    #[test]
    fn every_instruction_set_sums_all_products() {
        macro_rules! check {
            ($f:ident, $element:ty, $feature:tt) => {
                if std::is_x86_feature_detected!($feature) {
                    for row_count in 1..=ROWS {
                        for columns in [1usize, 3, 8, 17, 32, 70, 700] {
                            let sums = [(1usize, 1usize), (7, 7), (19, 8), (40, 20)];
                            for ((k, block), turned) in sums.into_iter().flat_map(|s| [(s, false), (s, true)]) {
                                let value = |i: usize| (i * 37 % 101) as f64 / 64.0 - 0.75;
                                let lines: Vec<$element> = (0..k * columns).map(|i| value(i) as $element).collect();
                                let rows: Vec<$element> =
                                    (0..row_count * k).map(|i| value(i + 5) as $element).collect();
                                let mut results = vec![9 as $element; row_count * columns + 1];
                                let mut sums = vec![<$element>::NAN; scratch(row_count, columns)];
                                let part = Part {
                                    lines: lines.as_ptr(),
                                    line_stride: columns as isize,
                                    rows: rows.as_ptr(),
                                    row_strides: (k as isize, 1),
                                    results: results.as_mut_ptr(),
                                    result_strides: if turned {
                                        (1, row_count as isize)
                                    } else {
                                        (columns as isize, 1)
                                    },
                                    row_count,
                                    columns,
                                    k,
                                    block,
                                    ahead: k == 40,
                                };
                                // SAFETY: the vectors have so many elements, and the feature was looked for.
                                unsafe { $f(part, sums.as_mut_ptr()) };
                                for i in 0..row_count {
                                    for j in 0..columns {
                                        // Multiples of 2^-12 below 2^8: every sum is exact.
                                        let terms = (0..k).map(|s| value(s * columns + j) * value(i * k + s + 5));
                                        let at = if turned {
                                            j * row_count + i
                                        } else {
                                            i * columns + j
                                        };
                                        let found = f64::from(results[at]);
                                        let case = (row_count, columns, k, block, turned);
                                        assert_eq!(found, terms.sum::<f64>(), "{} {case:?}", stringify!($f));
                                    }
                                }
                                assert_eq!(results[row_count * columns], 9 as $element);
                            }
                        }
                    }
                }
            };
        }
        check!(avx512_f32, f32, "avx512f");
        check!(avx512_f64, f64, "avx512f");
        check!(fma_f32, f32, "fma");
        check!(fma_f64, f64, "fma");
    }
}
