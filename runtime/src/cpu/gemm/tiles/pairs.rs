//! Micro-kernels by AVX512-BF16: tiles of results in registers, whose operands are words of two bf16 values.
//!
//! An instruction multiplies the words of a vector by one word and adds both products of each to a lane. Operands lie as those of [`amx`] do:
//! a strip is rows of words that lie together along the sum, a panel has for each word along the sum those of neighbouring columns together.
//!
//! Every result takes its words in order, one chain of them, whatever rows and columns are beside it.

use std::arch::x86_64::{
    __m512bh, __m512i, _mm512_dpbf16_ps, _mm512_loadu_ps, _mm512_loadu_si512, _mm512_set1_epi32, _mm512_setzero_ps,
    _mm512_setzero_si512, _mm512_storeu_ps,
};
use std::mem::transmute;

use super::amx::{Operands, Results};

/// Lanes of a vector.
const LANES: usize = 16;
/// The most rows of a tile: with two vectors of each they leave registers for the operands.
pub(super) const ROWS: usize = 12;
/// The most vectors of a row.
const VECTORS: usize = 2;

/// Words, which are pairs of bf16.
#[target_feature(enable = "avx512f,avx512bf16")]
#[inline]
fn pairs(words: __m512i) -> __m512bh {
    // SAFETY: 64 bytes, whatever they are called.
    unsafe { transmute::<__m512i, __m512bh>(words) }
}

/// A word for every lane.
///
/// # Safety
/// It can be read.
#[target_feature(enable = "avx512f,avx512bf16")]
#[inline]
unsafe fn each(word: *const u8) -> __m512bh {
    // SAFETY: the caller's promise.
    pairs(_mm512_set1_epi32(unsafe { word.cast::<i32>().read_unaligned() }))
}

/// The functions for 1 to [`ROWS`] rows.
macro_rules! by_rows {
    ($f:ident $(, $more:literal)*) => {
        [
            $f::<1 $(, $more)*>, $f::<2 $(, $more)*>, $f::<3 $(, $more)*>, $f::<4 $(, $more)*>, $f::<5 $(, $more)*>, $f::<6 $(, $more)*>,
            $f::<7 $(, $more)*>, $f::<8 $(, $more)*>, $f::<9 $(, $more)*>, $f::<10 $(, $more)*>, $f::<11 $(, $more)*>, $f::<12 $(, $more)*>,
        ]
    };
}

/// Computes a tile of results, of whole vectors that lie together.
///
/// # Safety
/// This machine has the instructions; the operands can be read and the results written.
pub(super) unsafe fn multiply(o: Operands, r: Results) {
    static TILES: [[unsafe fn(Operands, Results); ROWS]; VECTORS] = [by_rows!(tile, 1), by_rows!(tile, 2)];
    debug_assert!(r.column == 1 && r.columns.is_multiple_of(LANES) && r.columns <= VECTORS * LANES);
    let parts = r.rows.div_ceil(ROWS);
    for part in 0..parts {
        // Of nearly equal size: few rows do not keep the multipliers busy.
        let (first, end) = (part * r.rows / parts, (part + 1) * r.rows / parts);
        let operands = Operands {
            strip: o.strip.wrapping_offset(first as isize * o.strip_row),
            ..o
        };
        let results = Results {
            start: r.start.wrapping_offset(first as isize * r.row),
            rows: end - first,
            ..r
        };
        // SAFETY: the caller's promise.
        unsafe { TILES[r.columns / LANES - 1][end - first - 1](operands, results) };
    }
}

/// `R` rows of `V` vectors.
///
/// # Safety
/// As for [`multiply`].
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn tile<const R: usize, const V: usize>(o: Operands, r: Results) {
    // Counted loops of constant length, which are unrolled, so that all of it is registers.
    let mut sums = [[_mm512_setzero_ps(); V]; R];
    let start = r.start.cast::<f32>();
    // SAFETY: the caller's promise.
    unsafe {
        if r.added {
            for i in 0..R {
                for v in 0..V {
                    sums[i][v] = _mm512_loadu_ps(start.wrapping_offset(i as isize * r.row).add(v * LANES));
                }
            }
        }
        let (mut panel, mut strip) = (o.panel, o.strip);
        for _ in 0..o.depth {
            let mut words = [_mm512_setzero_si512(); V];
            for v in 0..V {
                words[v] = _mm512_loadu_si512(panel.add(v * 4 * LANES).cast());
            }
            for i in 0..R {
                let word = each(strip.wrapping_offset(i as isize * o.strip_row));
                for v in 0..V {
                    sums[i][v] = _mm512_dpbf16_ps(sums[i][v], pairs(words[v]), word);
                }
            }
            panel = panel.wrapping_offset(o.panel_sum);
            strip = strip.wrapping_add(4);
        }
        for i in 0..R {
            for v in 0..V {
                _mm512_storeu_ps(start.wrapping_offset(i as isize * r.row).add(v * LANES), sums[i][v]);
            }
        }
    }
}
