//! Rows times panels that come from beyond the second-level cache: each panel meets all rows before the next one is read, and the next one is
//! asked for meanwhile.
//!
//! The loops around this one read all panels of a pass for the first strip, which waits for memory, and then again for the others, which
//! do not: what takes time is the sum of both. Here a tile asks for a part of the next panel at each step of its sum, so that reading and
//! multiplying overlap. Results are those of micro-kernels to the bit: a chain of multiply-adds for each block of the sum, and the blocks added up.

use std::arch::x86_64::*;

use super::super::unroll::unroll;

/// Rows of a tile.
const ROWS: usize = 6;
/// Vectors of a panel.
const VECTORS: usize = 4;
/// Elements of a vector.
const LANES: usize = 16;
/// Elements across a panel.
pub(super) const PANEL: usize = VECTORS * LANES;
/// Steps of the sum from an element of a panel to one that is asked for from the second-level cache meanwhile: 0.90 to 0.95 of the time without, on
/// Emerald Rapids.
const NEAR: isize = 24;
/// The most rows: of more, the first strip is a small part, and the second-level cache has to hold them.
const MOST_ROWS: usize = 64;

/// A part of a product: `results[i, j] = Σ_k rows[i, k] * panels[k, j]`, the results of a row beside each other.
pub(super) struct Part<T> {
    pub panels: *const T,
    /// Columns that lie together in a block of panels, a multiple of [`PANEL`], and the stride between blocks.
    pub blocks: (usize, isize),
    /// The number of the first column among those of all blocks, a multiple of [`PANEL`].
    pub first: usize,
    /// From element to element of the sum in a panel, which can be read in whole vectors.
    pub panel_sum: isize,
    pub columns: usize,
    pub rows: *const T,
    /// From row to row; elements of a row lie together.
    pub row_stride: isize,
    pub row_count: usize,
    pub results: *mut T,
    /// From row to row.
    pub result_stride: isize,
    pub k: usize,
    /// Elements of a block of the sum.
    pub block: usize,
}

impl<T> Part<T> {
    /// Where the panel of a column begins, at an element of the sum.
    fn panel(&self, column: usize, k: usize) -> *const T {
        let ((width, stride), column) = (self.blocks, self.first + column);
        let across = (column / width) as isize * stride + (column % width) as isize;
        self.panels.wrapping_offset(across + k as isize * self.panel_sum)
    }
}

/// Whether so many rows meet panels in this way.
pub(super) fn takes(rows: usize) -> bool {
    rows <= MOST_ROWS
}

/// One tile in a block of the sum.
#[derive(Clone, Copy)]
struct Tile {
    panel: *const f32,
    panel_sum: isize,
    rows: *const f32,
    row_stride: isize,
    results: *mut f32,
    result_stride: isize,
    columns: usize,
    depth: usize,
    /// Whether results are added to what is there.
    added: bool,
    /// Where the lines begin that are asked for, as many for each element of the sum as the function says.
    ahead: *const f32,
}

/// Computes a tile of `R` rows, and asks for `LINES` lines at each step.
///
/// # Safety
/// The machine has AVX-512; the panel's vectors and the rows can be read, and the results written.
#[target_feature(enable = "avx512f")]
unsafe fn tile<const R: usize, const LINES: usize>(t: Tile) {
    let mut sums = [[_mm512_setzero_ps(); VECTORS]; R];
    let (mut panel, mut ahead) = (t.panel, t.ahead);
    for k in 0..t.depth {
        // SAFETY: the caller's promise.
        unsafe {
            unroll!(l < LINES { _mm_prefetch::<_MM_HINT_T1>(ahead.wrapping_add(l * LANES).cast()); });
            let near = panel.wrapping_offset(NEAR * t.panel_sum);
            unroll!(v < VECTORS { _mm_prefetch::<_MM_HINT_T0>(near.wrapping_add(v * LANES).cast()); });
            let mut w = [_mm512_setzero_ps(); VECTORS];
            unroll!(v < VECTORS { w[v] = _mm512_loadu_ps(panel.add(v * LANES)); });
            unroll!(i < R {
                let x = _mm512_set1_ps(*t.rows.wrapping_offset(i as isize * t.row_stride).add(k));
                unroll!(v < VECTORS { sums[i][v] = _mm512_fmadd_ps(w[v], x, sums[i][v]); });
            });
        }
        panel = panel.wrapping_offset(t.panel_sum);
        ahead = ahead.wrapping_offset(t.panel_sum);
    }
    unroll!(i < R {
        unroll!(v < VECTORS {
            let lanes = LANES.min(t.columns.saturating_sub(v * LANES));
            let mask = ((1u32 << lanes) - 1) as __mmask16;
            let to = t.results.wrapping_offset(i as isize * t.result_stride).wrapping_add(v * LANES);
            // SAFETY: elements of the results.
            unsafe {
                let sum = match t.added {
                    true => _mm512_add_ps(_mm512_maskz_loadu_ps(mask, to), sums[i][v]),
                    false => sums[i][v],
                };
                _mm512_mask_storeu_ps(to, mask, sum);
            }
        });
    });
}

/// A function as [`tile`] for so many rows and lines.
type TileFn = unsafe fn(Tile);

/// By rows, less one, and by lines: none, one, two and four.
static TILES: [[TileFn; 4]; ROWS] = {
    macro_rules! of {
        ($($rows:literal)*) => {
            [$([tile::<$rows, 0>, tile::<$rows, 1>, tile::<$rows, 2>, tile::<$rows, 4>]),*]
        };
    }
    of!(1 2 3 4 5 6)
};

/// Computes a part of a product.
///
/// # Safety
/// The machine has AVX-512; panels and rows can be read and results written, which overlap neither. The last panel can be read in whole.
pub(super) unsafe fn avx512_f32(p: Part<f32>) {
    let strips = p.row_count.div_ceil(ROWS);
    for left in (0..p.columns).step_by(PANEL) {
        for begin in (0..p.k).step_by(p.block) {
            let depth = p.block.min(p.k - begin);
            // The next block of this panel, or the first of the next one.
            let ahead = match begin + depth < p.k {
                true => Some(p.panel(left, begin + depth)),
                false if left + PANEL < p.columns => Some(p.panel(left + PANEL, 0)),
                false => None,
            };
            let mut top = 0;
            for strip in 0..strips {
                let height = (p.row_count - top).div_ceil(strips - strip);
                // Which vectors of the next panel this strip asks for.
                let share = |strip: usize| strip * VECTORS / strips.min(VECTORS);
                let (first, lines) = match ahead {
                    Some(_) if strip < VECTORS => (share(strip), share(strip + 1) - share(strip)),
                    _ => (0, 0),
                };
                let lines = match lines {
                    0..3 => lines,
                    _ => 3,
                };
                let t = Tile {
                    panel: p.panel(left, begin),
                    panel_sum: p.panel_sum,
                    rows: p.rows.wrapping_offset(top as isize * p.row_stride).wrapping_add(begin),
                    row_stride: p.row_stride,
                    results: p
                        .results
                        .wrapping_offset(top as isize * p.result_stride)
                        .wrapping_add(left),
                    result_stride: p.result_stride,
                    columns: PANEL.min(p.columns - left),
                    depth,
                    added: begin > 0,
                    ahead: ahead.unwrap_or(p.rows).wrapping_add(first * LANES),
                };
                // SAFETY: the caller's promise.
                unsafe { TILES[height - 1][lines](t) };
                top += height;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sums of products, block by block, of any rows; elements behind a row's results stay as they are.
    #[test]
    fn every_count_of_rows_sums_all_products() {
        if !std::is_x86_feature_detected!("avx512f") {
            println!("SKIP: this machine has no AVX-512");
            return;
        }
        // Multiples of 2^-12 below 2^10: every sum is exact.
        let value = |i: usize| (i * 37 % 101) as f32 / 64.0 - 0.75;
        for row_count in 1..=MOST_ROWS + 3 {
            for (columns, width) in [(64usize, 64usize), (100, 64), (1, 128), (192, 128), (256, 256)] {
                for ((k, block), first) in [((1usize, 1), 0usize), ((7, 7), 64), ((37, 19), 0), ((60, 20), 64)] {
                    let all = (first + columns).next_multiple_of(width);
                    let panels: Vec<f32> = (0..all * k).map(value).collect();
                    let at = |s: usize, j: usize| ((first + j) / width * k + s) * width + (first + j) % width;
                    let row_stride = k + 3;
                    let rows: Vec<f32> = (0..row_count * row_stride).map(|i| value(i + 5)).collect();
                    let result_stride = columns + 5;
                    let mut results = vec![9.0f32; row_count * result_stride];
                    let part = Part {
                        panels: panels.as_ptr(),
                        blocks: (width, (k * width) as isize),
                        first,
                        panel_sum: width as isize,
                        columns,
                        rows: rows.as_ptr(),
                        row_stride: row_stride as isize,
                        row_count,
                        results: results.as_mut_ptr(),
                        result_stride: result_stride as isize,
                        k,
                        block,
                    };
                    // SAFETY: the vectors have so many elements, and the feature was looked for.
                    unsafe { avx512_f32(part) };
                    for i in 0..row_count {
                        for j in 0..columns {
                            let terms =
                                (0..k).map(|s| f64::from(panels[at(s, j)]) * f64::from(rows[i * row_stride + s]));
                            let found = f64::from(results[i * result_stride + j]);
                            assert_eq!(
                                found,
                                terms.sum::<f64>(),
                                "{:?}",
                                (row_count, columns, width, k, first, i, j)
                            );
                        }
                        let behind = &results[i * result_stride + columns..(i + 1) * result_stride];
                        assert!(behind.iter().all(|x| *x == 9.0));
                    }
                }
            }
        }
    }
}
