//! Products of bf16 by the micro-kernels of [`amx`] or [`pairs`], added up in f32 and rounded once.
//!
//! A word is two neighbours along the sum. Strips are read where they lie if their elements lie together along the sum, of which there is an even
//! number; panels are copied, or lie as words already, in blocks of [`amx::BLOCK`] columns (`passes/src/rewrite/panels.rs` makes such blocks). Results
//! of a strip are f32 in scratch memory until their sums are complete.
//!
//! Invariant: each result takes the pairs of its sum in order, in steps of [`amx::STEP`] from the first one on, whatever is beside it.

use std::arch::x86_64::{
    __mmask16, __mmask32, _mm256_mask_storeu_epi16, _mm512_cvtneps_pbh, _mm512_loadu_ps, _mm512_maskz_loadu_epi16,
    _mm512_permutex2var_epi64, _mm512_setr_epi64, _mm512_storeu_si512, _mm512_unpackhi_epi16, _mm512_unpacklo_epi16,
};

use super::super::{Composite, Product, StridedDim};
use super::{Tell, along_rows, amx, pack, pairs, second_level_bytes};
use crate::cpu::level::{self, Halves};

/// Elements of a word.
const PAIR: usize = 2;
/// Words of a block of the sum: a strip of as many stays in the first-level cache.
const BLOCK_WORDS: usize = 256;
/// Bytes of a word, and of a sum.
const WORD_BYTES: usize = 4;

/// Whether tiles of matrices multiply them, in a session of those, and not [`pairs`].
pub(super) fn by_tiles() -> bool {
    level::halves() == Some(Halves::Tiles)
}

/// Words of a sum.
fn words(k: usize) -> usize {
    k.div_ceil(PAIR)
}

/// Panels of one pass: half of the second-level cache holds them.
fn panels_of_a_pass(k: usize, wide: usize) -> usize {
    let bytes = words(k).max(1) * WORD_BYTES * amx::BLOCK;
    let most = (second_level_bytes() / 2 / bytes).max(1);
    wide.div_ceil(amx::BLOCK).clamp(1, most)
}

/// Bytes of scratch that a piece needs: panels, a strip, and its results.
pub(super) fn scratch_bytes(p: &Product<'_>) -> usize {
    let wide = if along_rows(p) { p.m } else { p.n };
    let panels = panels_of_a_pass(p.k, wide);
    WORD_BYTES * amx::BLOCK * ((panels + 1) * words(p.k) + panels * amx::BLOCK)
}

/// Where blocks of words lie that need no copy.
#[derive(Clone, Copy)]
struct Blocks {
    /// Bytes from one to the next.
    stride: isize,
    /// The number of the first.
    first: usize,
}

impl Blocks {
    /// The blocks of an operand with those dimensions, if that is how it lies.
    fn of(across: &[StridedDim], depth: &[StridedDim], origin: usize) -> Option<Blocks> {
        let dim = |extent: usize, stride: usize| StridedDim {
            extent,
            stride: stride as isize,
        };
        let pairs = depth.len() == 2 && depth[1] == dim(PAIR, 1) && depth[0].stride == (PAIR * amx::BLOCK) as isize;
        let (stride, inner) = match across {
            [inner] => (0, inner),
            [outer, inner] => (outer.stride, inner),
            _ => return None,
        };
        (pairs && *inner == dim(amx::BLOCK, PAIR) && origin.is_multiple_of(amx::BLOCK)).then_some(Blocks {
            stride: stride * size_of::<u16>() as isize,
            first: origin / amx::BLOCK,
        })
    }
}

/// Whether an operand lies in blocks of words.
pub(super) fn is_in_blocks(across: &[StridedDim], depth: &[StridedDim]) -> bool {
    Blocks::of(across, depth, 0).is_some()
}

/// An operand: elements across the sum, and along it.
#[derive(Clone, Copy)]
struct Side {
    start: *const u16,
    across: isize,
    sum: isize,
}

impl Side {
    fn at(self, across: usize, sum: usize) -> *const u16 {
        let to = across as isize * self.across + sum as isize * self.sum;
        self.start.wrapping_offset(to)
    }
}

/// Computes a piece, in a session of tiles if it is [by tiles](by_tiles).
///
/// # Safety
/// As for [`super::run`], and a composite operand [lies in blocks](is_in_blocks).
pub(super) unsafe fn run(p: &Product<'_>, scratch: *mut u8, tell: &mut Tell<'_>) {
    let rows = along_rows(p);
    let (panel_of, strip_of, tall, wide) = match rows {
        true => (&p.lhs, &p.rhs, p.n, p.m),
        false => (&p.rhs, &p.lhs, p.m, p.n),
    };
    let (dst_tall, dst_wide) = match rows {
        true => (p.dst.column, p.dst.row),
        false => (p.dst.row, p.dst.column),
    };
    let side = |m: &super::super::Matrix<'_>, across: isize, sum: isize| Side {
        start: m.start.cast_const().cast(),
        across,
        sum,
    };
    let (panel, strip) = match rows {
        true => (
            side(panel_of, p.lhs.row, p.lhs.column),
            side(strip_of, p.rhs.column, p.rhs.row),
        ),
        false => (
            side(panel_of, p.rhs.column, p.rhs.row),
            side(strip_of, p.lhs.row, p.lhs.column),
        ),
    };
    let in_blocks = |w: Composite<'_>| match rows {
        true => Blocks::of(w.rows, w.columns, w.first_row),
        false => Blocks::of(w.columns, w.rows, w.first_column),
    };
    let blocks = panel_of.composite.and_then(in_blocks);
    let dst = p.dst.start.cast::<u16>();
    if p.k == 0 {
        for i in 0..tall as isize {
            for j in 0..wide as isize {
                // SAFETY: an element of the result.
                unsafe { *dst.wrapping_offset(i * dst_tall + j * dst_wide) = 0 };
            }
        }
        return;
    }
    let tiles = by_tiles();
    let length = words(p.k);
    let pass = panels_of_a_pass(p.k, wide);
    let panels = scratch.cast::<u32>();
    let strips = panels.wrapping_add(pass * amx::BLOCK * length);
    let sums = strips.wrapping_add(amx::BLOCK * length);
    // Rows of words where they are.
    let in_rows = strip.sum == 1 && p.k.is_multiple_of(PAIR);
    for first in (0..wide).step_by(pass * amx::BLOCK) {
        let across = (pass * amx::BLOCK).min(wide - first);
        if blocks.is_none() {
            let from = Side {
                start: panel.at(first, 0),
                ..panel
            };
            // SAFETY: part of the operand, and scratch has room for whole panels.
            unsafe { pack_panels(from, across, p.k, panels) };
        }
        for top in (0..tall).step_by(amx::BLOCK) {
            let height = amx::BLOCK.min(tall - top);
            let from = Side {
                start: strip.at(top, 0),
                ..strip
            };
            if !in_rows {
                // SAFETY: part of the operand, and scratch has room for a strip.
                unsafe { pack_strip(from, height, p.k, strips.cast()) };
            }
            for begin in (0..length).step_by(BLOCK_WORDS) {
                let depth = BLOCK_WORDS.min(length - begin);
                let (rows_of_block, row_bytes) = match in_rows {
                    true => (from.at(0, PAIR * begin), strip.across * size_of::<u16>() as isize),
                    false => (
                        strips.wrapping_add(height * begin).cast_const().cast(),
                        (depth * WORD_BYTES) as isize,
                    ),
                };
                for left in (0..across).step_by(amx::BLOCK) {
                    let own = match blocks {
                        Some(b) => {
                            let number = b.first + (first + left) / amx::BLOCK;
                            panel_of.start.cast_const().wrapping_offset(number as isize * b.stride)
                        }
                        None => panels.wrapping_add(left * length).cast_const().cast(),
                    };
                    let operands = amx::Operands {
                        strip: rows_of_block.cast(),
                        strip_row: row_bytes,
                        panel: own.wrapping_add(begin * amx::BLOCK * WORD_BYTES),
                        panel_sum: (amx::BLOCK * WORD_BYTES) as isize,
                        depth,
                    };
                    let results = amx::Results {
                        // A block after the other.
                        start: sums.wrapping_add(left * amx::BLOCK),
                        row: amx::BLOCK as isize,
                        column: 1,
                        rows: height,
                        // Whole tiles, for scratch has room: what is beside the result is not looked at.
                        columns: (across - left).min(amx::BLOCK).next_multiple_of(amx::STEP),
                        added: begin > 0,
                    };
                    // SAFETY: the caller's promise; the results are scratch.
                    unsafe {
                        match tiles {
                            true => amx::multiply(amx::Words::Halves, operands, results),
                            false => pairs::multiply(operands, results),
                        }
                    }
                }
            }
            for i in 0..height {
                for left in (0..across).step_by(amx::BLOCK) {
                    let from = sums.wrapping_add((left + i) * amx::BLOCK).cast::<f32>();
                    let to = (top + i) as isize * dst_tall + (first + left) as isize * dst_wide;
                    let width = amx::BLOCK.min(across - left);
                    // SAFETY: sums of a row, of which whole vectors are scratch, and those results.
                    unsafe { round(from, dst.wrapping_offset(to), dst_wide, width) };
                }
            }
            if across == wide {
                tell.complete(top + height, size_of::<u16>());
            }
        }
    }
}

/// Rounds sums to bf16.
///
/// # Safety
/// As many sums can be read as are whole vectors, and the results written; this machine has the instructions, as all with tiles.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
unsafe fn round(from: *const f32, to: *mut u16, stride: isize, count: usize) {
    for begin in (0..count).step_by(amx::STEP) {
        let left = amx::STEP.min(count - begin);
        // SAFETY: the caller's promise.
        unsafe {
            let halves = _mm512_cvtneps_pbh(_mm512_loadu_ps(from.add(begin)));
            // SAFETY: 16 halves, whatever they are called.
            let halves = std::mem::transmute::<std::arch::x86_64::__m256bh, std::arch::x86_64::__m256i>(halves);
            if stride == 1 {
                let mask = ((1u32 << left) - 1) as __mmask16;
                _mm256_mask_storeu_epi16(to.add(begin).cast(), mask, halves);
                continue;
            }
            let mut apart = [0u16; amx::STEP];
            std::arch::x86_64::_mm256_storeu_si256(apart.as_mut_ptr().cast(), halves);
            for (i, half) in apart.iter().enumerate().take(left) {
                *to.wrapping_offset((begin + i) as isize * stride) = *half;
            }
        }
    }
}

/// Copies panels of words, each with its words along the sum one after the other. Columns that the last one lacks, up to a whole tile, are zero.
///
/// # Safety
/// Every element of the source can be read, and whole panels written; this machine has the instructions.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn pack_panels(from: Side, across: usize, k: usize, to: *mut u32) {
    let length = words(k);
    // Columns that lie together along the sum: their words are moved as f32 are, which are as long.
    let columns =
        from.sum == 1 && k.is_multiple_of(PAIR) && from.across % 2 == 0 && from.start.cast::<f32>().is_aligned();
    if columns {
        let source = pack::Source {
            start: from.start.cast::<f32>(),
            across,
            depth: length,
            stride_across: from.across / PAIR as isize,
            stride_depth: 1,
        };
        // SAFETY: the caller's promise.
        return unsafe { pack::panels_avx_f32::<{ amx::BLOCK }, { amx::STEP }>(source, to.cast()) };
    }
    let low = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
    let high = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    for first in (0..across).step_by(amx::BLOCK) {
        let width = amx::BLOCK.min(across - first);
        let to = to.wrapping_add(first * length);
        for word in 0..length {
            let room = to.wrapping_add(word * amx::BLOCK);
            let both = PAIR * word + 1 < k;
            if from.across == 1 {
                let mask = ((1u64 << width) - 1) as __mmask32;
                // SAFETY: elements of the source, and a line of a panel.
                unsafe {
                    let a = _mm512_maskz_loadu_epi16(mask, from.at(first, PAIR * word).cast());
                    let mask = if both { mask } else { 0 };
                    let b = _mm512_maskz_loadu_epi16(mask, from.at(first, PAIR * word + 1).cast());
                    let (even, odd) = (_mm512_unpacklo_epi16(a, b), _mm512_unpackhi_epi16(a, b));
                    _mm512_storeu_si512(room.cast(), _mm512_permutex2var_epi64(even, low, odd));
                    _mm512_storeu_si512(room.add(amx::STEP).cast(), _mm512_permutex2var_epi64(even, high, odd));
                }
                continue;
            }
            for column in 0..amx::BLOCK {
                let element = |sum: usize| match column < width && sum < k {
                    // SAFETY: an element of the source.
                    true => u32::from(unsafe { *from.at(first + column, sum) }),
                    false => 0,
                };
                let pair = element(PAIR * word) | element(PAIR * word + 1) << 16;
                // SAFETY: a word of the panel.
                unsafe { *room.add(column) = pair };
            }
        }
    }
}

/// Copies rows of words together, those of each block of the sum by themselves. What the last word lacks is zero.
///
/// # Safety
/// Every element of the source can be read, and so many words of each row written.
unsafe fn pack_strip(from: Side, rows: usize, k: usize, to: *mut u16) {
    for begin in (0..k).step_by(PAIR * BLOCK_WORDS) {
        let count = (PAIR * BLOCK_WORDS).min(k - begin);
        let length = count.next_multiple_of(PAIR);
        for row in 0..rows {
            let to = to.wrapping_add(rows * begin + row * length);
            // SAFETY: the caller's promise.
            unsafe {
                match from.sum {
                    1 => std::ptr::copy_nonoverlapping(from.at(row, begin), to, count),
                    _ => (0..count).for_each(|d| *to.add(d) = *from.at(row, begin + d)),
                }
                if count < length {
                    *to.add(count) = 0;
                }
            }
        }
    }
}
