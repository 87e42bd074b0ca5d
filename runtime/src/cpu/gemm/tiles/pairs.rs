//! Micro-kernels by AVX512-BF16: tiles of results in registers, whose operands are words of two bf16 values.
//!
//! An instruction multiplies the words of a vector by one word and adds both products of each to a lane. A panel has for each word along the
//! sum those of neighbouring columns together. Few rows are multiplied by elements that lie together across the sum where they are
//! ([`few`]): two lines of them are made a line of words in registers.
//!
//! Every result takes its words in order, one chain of them, whatever rows and columns are beside it, and whichever of the two computes it.

#![expect(
    clippy::needless_range_loop,
    reason = "counted loops of constant length become registers; iterators are calls, which lack the instructions"
)]

use std::arch::x86_64::{
    __m512bh, __m512i, __mmask32, _mm512_cvtne2ps_pbh, _mm512_dpbf16_ps, _mm512_loadu_ps, _mm512_loadu_si512,
    _mm512_mask_storeu_epi16, _mm512_maskz_loadu_epi16, _mm512_set1_epi32, _mm512_setzero_ps, _mm512_setzero_si512,
    _mm512_storeu_ps, _mm512_unpackhi_epi16, _mm512_unpacklo_epi16,
};
use std::mem::transmute;

/// Lanes of a vector.
const LANES: usize = 16;
/// The most rows of a tile: with two vectors of each they leave registers for the operands.
pub(super) const ROWS: usize = 12;
/// The most vectors of a row.
const VECTORS: usize = 2;
/// Columns of a panel.
pub(super) const PANEL: usize = VECTORS * LANES;
/// Bytes of a word.
const WORD_BYTES: usize = 4;

/// Words of rows. Strides in bytes.
#[derive(Clone, Copy)]
pub(super) struct Strip {
    /// The first word of the first row.
    pub start: *const u8,
    /// The stride between rows.
    pub row: isize,
    /// The stride along the sum.
    pub sum: isize,
}

impl Strip {
    /// That from another row and word on.
    pub(super) fn from(self, row: usize, word: usize) -> Strip {
        let start = self
            .start
            .wrapping_offset(row as isize * self.row + word as isize * self.sum);
        Strip { start, ..self }
    }
}

/// Sums, those of a row together. The stride in elements.
#[derive(Clone, Copy)]
pub(super) struct Sums {
    /// The first of the first row.
    pub start: *mut f32,
    /// The stride between rows.
    pub row: usize,
    /// Rows, at least 1.
    pub rows: usize,
    /// Whether products are added to what is there.
    pub added: bool,
}

impl Sums {
    /// Some of the rows.
    fn part(self, first: usize, rows: usize) -> Sums {
        let start = self.start.wrapping_add(first * self.row);
        Sums { start, rows, ..self }
    }
}

/// A panel of words.
#[derive(Clone, Copy)]
pub(super) struct Panel {
    /// The first line.
    pub start: *const u8,
    /// Words along the sum, at least 1.
    pub depth: usize,
    /// Columns that are multiplied: whole vectors of the [`PANEL`] that there are.
    pub columns: usize,
}

/// Lines of elements that lie together across the sum.
#[derive(Clone, Copy)]
pub(super) struct Lines {
    /// The first line.
    pub start: *const u16,
    /// The stride between lines, in elements.
    pub line: isize,
    /// Lines, at least 1.
    pub depth: usize,
    /// Elements of a line.
    pub columns: usize,
}

/// Where sums go, rounded, those of a row together. The stride in elements.
#[derive(Clone, Copy)]
pub(super) struct Rounded {
    /// The first of the first row.
    pub start: *mut u16,
    /// The stride between rows.
    pub row: isize,
    /// Columns, at least 1 and no more than are multiplied.
    pub columns: usize,
}

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

/// Computes the sums of a tile.
type TileOf = unsafe fn(Strip, Panel, Sums, Option<Rounded>);

/// The functions for 1 to [`ROWS`] rows.
macro_rules! by_rows {
    ($f:ident $(, $more:literal)*) => {
        [
            $f::<1 $(, $more)*>, $f::<2 $(, $more)*>, $f::<3 $(, $more)*>, $f::<4 $(, $more)*>, $f::<5 $(, $more)*>, $f::<6 $(, $more)*>,
            $f::<7 $(, $more)*>, $f::<8 $(, $more)*>, $f::<9 $(, $more)*>, $f::<10 $(, $more)*>, $f::<11 $(, $more)*>, $f::<12 $(, $more)*>,
        ]
    };
}

/// The rows of a part of several of nearly equal size: few rows do not keep the multipliers busy.
fn parts(rows: usize) -> impl Iterator<Item = (usize, usize)> {
    let parts = rows.div_ceil(ROWS);
    (0..parts).map(move |part| {
        let (first, end) = (part * rows / parts, (part + 1) * rows / parts);
        (first, end - first)
    })
}

/// Computes sums of products of rows and a panel, and leaves them rounded where that is said, or else as they are.
///
/// # Safety
/// This machine has the instructions; the operands can be read, and the sums and what they are rounded to written.
pub(super) unsafe fn multiply(strip: Strip, panel: Panel, sums: Sums, rounded: Option<Rounded>) {
    static TILES: [[TileOf; ROWS]; VECTORS] = [by_rows!(tile, 1), by_rows!(tile, 2)];
    debug_assert!(panel.columns.is_multiple_of(LANES) && panel.columns <= PANEL);
    for (first, rows) in parts(sums.rows) {
        let compute = TILES[panel.columns / LANES - 1][rows - 1];
        let rounded = rounded.map(|to| Rounded {
            start: to.start.wrapping_offset(first as isize * to.row),
            ..to
        });
        // SAFETY: the caller's promise.
        unsafe { compute(strip.from(first, 0), panel, sums.part(first, rows), rounded) };
    }
}

/// `R` rows of `V` vectors.
///
/// # Safety
/// As for [`multiply`].
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn tile<const R: usize, const V: usize>(strip: Strip, panel: Panel, sums: Sums, rounded: Option<Rounded>) {
    let mut tile = [[_mm512_setzero_ps(); V]; R];
    // SAFETY: the caller's promise.
    unsafe {
        if sums.added {
            for i in 0..R {
                for v in 0..V {
                    tile[i][v] = _mm512_loadu_ps(sums.start.add(i * sums.row + v * LANES));
                }
            }
        }
        let (mut line, mut word) = (panel.start, strip.start);
        for _ in 0..panel.depth {
            let mut words = [_mm512_setzero_si512(); V];
            for v in 0..V {
                words[v] = _mm512_loadu_si512(line.add(v * WORD_BYTES * LANES).cast());
            }
            for i in 0..R {
                let word = each(word.wrapping_offset(i as isize * strip.row));
                for v in 0..V {
                    tile[i][v] = _mm512_dpbf16_ps(tile[i][v], pairs(words[v]), word);
                }
            }
            line = line.wrapping_add(WORD_BYTES * PANEL);
            word = word.wrapping_offset(strip.sum);
        }
        if let Some(to) = rounded {
            let mask = ((1u64 << to.columns) - 1) as __mmask32;
            for i in 0..R {
                let high = if V > 1 { tile[i][V - 1] } else { _mm512_setzero_ps() };
                let halves = _mm512_cvtne2ps_pbh(high, tile[i][0]);
                let row = to.start.wrapping_offset(i as isize * to.row);
                // SAFETY: 64 bytes, whatever they are called.
                _mm512_mask_storeu_epi16(row.cast(), mask, transmute::<__m512bh, __m512i>(halves));
            }
            return;
        }
        for i in 0..R {
            for v in 0..V {
                _mm512_storeu_ps(sums.start.add(i * sums.row + v * LANES), tile[i][v]);
            }
        }
    }
}

/// Computes sums of products of few rows and lines of elements. Of each 32 columns, the sums of those come first that two lines interleaved have in the
/// lower halves of their quarters: 0 to 3, 8 to 11, 16 to 19 and 24 to 27.
///
/// # Safety
/// This machine has the instructions; the operands can be read, and sums written for whole panels.
pub(super) unsafe fn few(strip: Strip, lines: Lines, sums: Sums) {
    static FEW: [unsafe fn(Strip, Lines, Sums); ROWS] = by_rows!(interleaved);
    for (first, rows) in parts(sums.rows) {
        // SAFETY: the caller's promise.
        unsafe { FEW[rows - 1](strip.from(first, 0), lines, sums.part(first, rows)) };
    }
}

/// `R` rows.
///
/// # Safety
/// As for [`few`].
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn interleaved<const R: usize>(strip: Strip, lines: Lines, sums: Sums) {
    for first in (0..lines.columns).step_by(PANEL) {
        let width = PANEL.min(lines.columns - first);
        let mask = ((1u64 << width) - 1) as __mmask32;
        let mut tile = [[_mm512_setzero_ps(); VECTORS]; R];
        // SAFETY: the caller's promise.
        unsafe {
            let room = sums.start.add(first);
            if sums.added {
                for i in 0..R {
                    for v in 0..VECTORS {
                        tile[i][v] = _mm512_loadu_ps(room.add(i * sums.row + v * LANES));
                    }
                }
            }
            let mut line = lines.start.wrapping_add(first);
            let mut word = strip.start;
            for step in 0..lines.depth.div_ceil(2) {
                let even = _mm512_maskz_loadu_epi16(mask, line.cast());
                // What is masked altogether is not loaded: where no page is, it takes the processor hundreds of cycles to leave it out.
                let odd = match 2 * step + 1 < lines.depth {
                    true => _mm512_maskz_loadu_epi16(mask, line.wrapping_offset(lines.line).cast()),
                    false => _mm512_setzero_si512(),
                };
                let words = [_mm512_unpacklo_epi16(even, odd), _mm512_unpackhi_epi16(even, odd)];
                for i in 0..R {
                    let word = each(word.wrapping_offset(i as isize * strip.row));
                    for v in 0..VECTORS {
                        tile[i][v] = _mm512_dpbf16_ps(tile[i][v], pairs(words[v]), word);
                    }
                }
                line = line.wrapping_offset(2 * lines.line);
                word = word.wrapping_offset(strip.sum);
            }
            for i in 0..R {
                for v in 0..VECTORS {
                    _mm512_storeu_ps(room.add(i * sums.row + v * LANES), tile[i][v]);
                }
            }
        }
    }
}
