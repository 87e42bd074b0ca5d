//! Products of words of four bytes by [`amx`](super::amx): sums of i32, which wrap.
//!
//! Panels are copied, or lie as such already; strips are read where their words lie together along the sum, unless rows share sets of the
//! first-level cache. Of long sums some words are multiplied at once, and added to the results of those before.

use super::amx::{BLOCK, STEP, Words};
use super::strips::{BLOCK_WORDS, Pass, Results, Rows, Strips, WORD_BYTES, panels_of_a_pass};
use super::{Blocks, Product, Tell, along_rows, halves, pack};

/// Words of a sum that are multiplied at once: half of the second-level cache has panels enough of as many.
const MOST_WORDS: usize = 2048;

/// Scratch that a piece needs: panels, two strips, and the sums of one.
pub(super) fn scratch_bytes(p: &Product<'_>) -> usize {
    let wide = if along_rows(p) { p.m } else { p.n };
    let length = p.k.clamp(1, MOST_WORDS);
    let panels = panels_of_a_pass(length, wide);
    WORD_BYTES * BLOCK * ((panels + 2) * length + panels * BLOCK)
}

/// Words of an operand: those across the sum, and along it.
#[derive(Clone, Copy)]
struct Side {
    start: *const u32,
    across: isize,
    sum: isize,
}

impl Side {
    fn at(self, across: usize, sum: usize) -> *const u32 {
        let to = across as isize * self.across + sum as isize * self.sum;
        self.start.wrapping_offset(to)
    }
}

/// Computes a piece, in a session of tiles.
///
/// # Safety
/// As for [`super::run`].
pub(super) unsafe fn run(p: &Product<'_>, scratch: *mut u8, tell: &mut Tell<'_>) {
    let rows = along_rows(p);
    let side = |m: &super::super::Matrix<'_>, across: isize, sum: isize| Side {
        start: m.start.cast_const().cast(),
        across,
        sum,
    };
    let word = WORD_BYTES as isize;
    let (panel, strip, tall, wide, dst_tall, dst_wide) = match rows {
        true => (
            side(&p.lhs, p.lhs.row, p.lhs.column),
            side(&p.rhs, p.rhs.column, p.rhs.row),
            p.n,
            p.m,
            p.dst.column,
            p.dst.row,
        ),
        false => (
            side(&p.rhs, p.rhs.column, p.rhs.row),
            side(&p.lhs, p.lhs.row, p.lhs.column),
            p.m,
            p.n,
            p.dst.row,
            p.dst.column,
        ),
    };
    // Dimensions across panels and along the sum, and the number of the first element across.
    let composite = match rows {
        true => p.lhs.composite.map(|w| (w.rows, w.columns, w.first_row)),
        false => p.rhs.composite.map(|w| (w.columns, w.rows, w.first_column)),
    };
    let blocks = composite.and_then(|(across, depth, origin)| {
        let blocks = Blocks::of(across, depth, BLOCK)?;
        // Parts begin between panels, and end there or in what the last block has to spare, so that every vector is whole.
        let end = origin + wide.next_multiple_of(STEP);
        (origin.is_multiple_of(BLOCK) && end <= blocks.elements).then_some((blocks, origin))
    });
    let results = Results {
        start: p.dst.start,
        tall: dst_tall * word,
        wide: dst_wide * word,
    };
    if p.k == 0 {
        for i in 0..tall {
            for j in 0..wide {
                // SAFETY: an element of the result.
                unsafe { *results.at(i, j).cast::<u32>() = 0 };
            }
        }
        return;
    }
    let most = p.k.min(MOST_WORDS);
    let pass = panels_of_a_pass(most, wide);
    let panels = scratch.cast::<u32>();
    let room = panels.wrapping_add(pass * BLOCK * most);
    let sums = room.wrapping_add(2 * BLOCK * most).cast::<u8>();
    for first in (0..wide).step_by(pass * BLOCK) {
        let across = (pass * BLOCK).min(wide - first);
        for from in (0..p.k).step_by(most) {
            let length = most.min(p.k - from);
            if blocks.is_none() {
                // SAFETY: part of the operand, and scratch has room for whole panels.
                unsafe {
                    match composite {
                        Some((dims_across, dims_depth, origin)) => {
                            let source = pack::CompositeSource {
                                start: panel.start.cast(),
                                dims_across,
                                dims_depth,
                                first: origin + first,
                                across,
                                begin: from,
                                depth: length,
                            };
                            pack::composite_avx512_f32::<BLOCK, STEP>(source, panels.cast());
                        }
                        None => {
                            let source = pack::Source {
                                start: panel.at(first, from).cast(),
                                across,
                                depth: length,
                                stride_across: panel.across,
                                stride_depth: panel.sum,
                            };
                            pack::panels_avx_f32::<BLOCK, STEP>(source, panels.cast());
                        }
                    }
                }
            }
            let (words_panel, panel_sum) = (
                |left: usize| match blocks {
                    Some((blocks, origin)) => {
                        let to = blocks.at(origin + first + left) + from as isize * blocks.sum;
                        panel.start.wrapping_offset(to).cast()
                    }
                    None => panels.wrapping_add(left * length).cast_const().cast(),
                },
                blocks.map_or(BLOCK as isize, |(blocks, _)| blocks.sum) * word,
            );
            let strips = Strips {
                lying: |top: usize| {
                    (strip.sum == 1).then_some(Rows {
                        start: strip.at(top, from).cast_mut().cast(),
                        row: strip.across * word,
                    })
                },
                copy: |top: usize, height: usize, to: *mut u8| {
                    let start = strip.at(top, from);
                    // SAFETY: part of the operand, and scratch has room for a strip.
                    unsafe { copy_strip(Side { start, ..strip }, height, length, to.cast()) };
                },
                room: room.cast(),
            };
            // Whole lines are complete after the last words of one pass over all columns.
            let last = across == wide && from + length == p.k;
            let pass = Pass {
                words: match rows {
                    true => Words::SignedByUnsigned,
                    false => Words::UnsignedBySigned,
                },
                tall,
                across,
                length,
                panel_sum,
                sums,
                results: Results {
                    start: results.at(0, first),
                    ..results
                },
                added: from > 0,
            };
            let tell = (last && tell.is_asked()).then_some(|lines| tell.complete(lines, WORD_BYTES));
            // SAFETY: the caller's promise; panels are in the operand or in scratch, which has room for sums.
            unsafe { pass.run(words_panel, &strips, false, tell) };
        }
    }
}

/// Copies rows of words together, those of each block of the sum by themselves.
///
/// # Safety
/// Every word of the source can be read, and as many written; this machine has the instructions, as all with tiles.
unsafe fn copy_strip(from: Side, rows: usize, length: usize, to: *mut u32) {
    for begin in (0..length).step_by(BLOCK_WORDS) {
        let depth = BLOCK_WORDS.min(length - begin);
        let to = to.wrapping_add(rows * begin);
        // SAFETY: the caller's promise.
        unsafe {
            if from.across == 1 {
                halves::turn_words(from.at(0, begin), from.sum, (rows, depth), (to, depth));
                continue;
            }
            for row in 0..rows {
                let (from_row, to) = (from.at(row, begin), to.wrapping_add(row * depth));
                match from.sum {
                    1 => std::ptr::copy_nonoverlapping(from_row, to, depth),
                    _ => (0..depth).for_each(|d| *to.add(d) = *from.at(row, begin + d)),
                }
            }
        }
    }
}
