//! The loops of products by [`amx`]: strips of [`amx::BLOCK`] rows by panels of as many columns, in blocks of the sum.
//!
//! A strip in use stays in the first-level cache, the panels of a pass in the second. Of a strip, sums of all panels of a block are stored
//! before those of the next one continue them; complete ones move to the results ([`Series`]). What is no whole square of results, or no whole
//! step of a sum, is multiplied by itself.

use std::arch::x86_64::{__mmask16, _mm512_mask_storeu_epi32, _mm512_maskz_loadu_epi32};

use super::amx::{self, BLOCK, Operands, STEP, Words};
pub(super) use super::series::Rows;
use super::series::{Copied, Room, Series, Then};
use super::{halves, second_level_bytes};

/// Bytes of a word, and of a sum.
pub(super) const WORD_BYTES: usize = 4;
/// Panels of a pass from which on rows that share sets are copied.
const MANY_PANELS: usize = 2;
/// Rows up to which a set of the first-level cache has room for a line of each and of a panel.
const NEAR_ROWS: usize = 8;
/// Steps of the last block of a sum from which on i32 move to the results beside those of the next square: beside fewer it takes longer than to
/// store them there, one row at a time.
const STEPS_TO_MOVE: usize = 12;
/// Words of a block of the sum: a strip of as many stays in the first-level cache.
pub(super) const BLOCK_WORDS: usize = 256;
/// Bytes from one line to the next of the same set of the first-level cache.
const SET_BYTES: usize = 4096;
/// Bytes of a square of sums.
const SQUARE_BYTES: usize = BLOCK * BLOCK * WORD_BYTES;

/// Whether rows of so many words that are that many bytes apart share sets of the first-level cache, so that no strip of them stays in it: a
/// block of each has an eighth of the sets or more, and all begin in one of two.
fn share_sets(row: isize, length: usize) -> bool {
    row.unsigned_abs().is_multiple_of(SET_BYTES / 2) && length > STEP
}

/// Panels of one pass over strips: half of the second-level cache holds them.
pub(super) fn panels_of_a_pass(length: usize, wide: usize) -> usize {
    let bytes = length.max(1) * WORD_BYTES * BLOCK;
    let most = (second_level_bytes() / 2 / bytes).max(1);
    wide.div_ceil(BLOCK).clamp(1, most)
}

/// Where the words of a strip are.
#[derive(Clone, Copy)]
enum StripWords {
    /// Rows where they lie: the first word of the first row, and the bytes from row to row.
    InPlace(Rows),
    /// A copy, each block of the sum by itself, of so many rows.
    Blocks(*mut u8, usize),
}

impl StripWords {
    /// Those of a block of the sum.
    fn block(self, begin: usize, depth: usize) -> Rows {
        match self {
            StripWords::InPlace(Rows { start, row }) => Rows {
                start: start.wrapping_add(begin * WORD_BYTES),
                row,
            },
            StripWords::Blocks(start, rows) => Rows {
                start: start.wrapping_add(rows * begin * WORD_BYTES),
                row: (depth * WORD_BYTES) as isize,
            },
        }
    }
}

/// The strips of an operand.
pub(super) struct Strips<L, C> {
    /// Where the rows of the strip lie that begins with that row, if their words lie together.
    pub lying: L,
    /// Copies the words of so many rows from one on, those of each block of [`BLOCK_WORDS`] of the sum together.
    pub copy: C,
    /// Room for two copies of a strip.
    pub room: *mut u8,
}

/// A strip of which words are copied while that before it is multiplied.
#[derive(Clone, Copy)]
struct Ahead {
    from: Rows,
    to: *mut u8,
    /// Parts of [`BLOCK`] words of each row that have been copied.
    parts: usize,
}

impl Ahead {
    /// The next part of rows of so many words, if there is one.
    fn next(&mut self, length: usize) -> Option<Copied> {
        let word = self.parts * BLOCK;
        if word == length {
            return None;
        }
        self.parts += 1;
        let begin = word / BLOCK_WORDS * BLOCK_WORDS;
        let depth = BLOCK_WORDS.min(length - begin);
        let to = BLOCK * begin + (word - begin);
        Some(Copied {
            from: Rows {
                start: self.from.start.wrapping_add(word * WORD_BYTES),
                ..self.from
            },
            to: Rows {
                start: self.to.wrapping_add(to * WORD_BYTES),
                row: (depth * WORD_BYTES) as isize,
            },
        })
    }
}

/// Where results lie: i32, or bf16 for [`Words::Halves`]. Strides in bytes.
#[derive(Clone, Copy)]
pub(super) struct Results {
    pub start: *mut u8,
    /// From row to row of a strip.
    pub tall: isize,
    /// From column to column of a panel.
    pub wide: isize,
}

impl Results {
    pub(super) fn at(self, row: usize, column: usize) -> *mut u8 {
        let to = row as isize * self.tall + column as isize * self.wide;
        self.start.wrapping_offset(to)
    }
}

/// A part of the results: the first row and how many there are, and the same of columns.
type Place = ((usize, usize), (usize, usize));

/// A pass over strips by some panels.
pub(super) struct Pass {
    pub words: Words,
    /// Rows of all strips.
    pub tall: usize,
    /// Columns of all panels.
    pub across: usize,
    /// Words of the sum, at least 1.
    pub length: usize,
    /// Bytes from word to word along the sum of a panel.
    pub panel_sum: isize,
    /// Room for a square for each panel.
    pub sums: *mut u8,
    pub results: Results,
    /// Whether sums are added to the results, which are i32.
    pub added: bool,
}

impl Pass {
    /// Bytes of an element of the results.
    fn size(&self) -> usize {
        match self.words {
            Words::Halves => size_of::<u16>(),
            Words::UnsignedBySigned | Words::SignedByUnsigned => size_of::<i32>(),
        }
    }

    /// Computes it. `panel` has the words of a panel by the number of its first column, which is a multiple of [`BLOCK`]; where columns end within
    /// 16, words up to there can be read, and of a whole panel all. Calls `tell` with the number of rows that are complete. If `kept`, the
    /// only strip has been copied by a pass before.
    ///
    /// # Safety
    /// This process may use tiles of matrices, and a session has begun on this thread; operands can be read, and sums, copies and results written.
    pub(super) unsafe fn run<L, C>(
        &self,
        panel: impl Fn(usize) -> *const u8,
        strips: &Strips<L, C>,
        kept: bool,
        mut tell: Option<impl FnMut(usize)>,
    ) where
        L: Fn(usize) -> Option<Rows>,
        C: Fn(usize, usize, *mut u8),
    {
        let size = self.size();
        let in_rows = self.length.is_multiple_of(STEP) && self.results.wide == size as isize;
        let many = self.across > MANY_PANELS * BLOCK;
        let mut room = Room::new();
        let mut series = Series::new(self.words, &mut room);
        let mut ahead: Option<Ahead> = None;
        for (number, top) in (0..self.tall).step_by(BLOCK).enumerate() {
            let height = BLOCK.min(self.tall - top);
            let here = |number: usize| strips.room.wrapping_add(number % 2 * BLOCK * self.length * WORD_BYTES);
            let lying = (strips.lying)(top);
            let strip = match lying {
                Some(rows) if !(many && height > NEAR_ROWS && share_sets(rows.row, self.length)) => {
                    StripWords::InPlace(rows)
                }
                _ => {
                    let copy = here(number);
                    match ahead.take() {
                        // SAFETY: rows of the operand, and room for them.
                        Some(mut ahead) => unsafe {
                            while let Some(part) = ahead.next(self.length) {
                                copy_part(part);
                            }
                        },
                        None if kept => {}
                        None => (strips.copy)(top, height, copy),
                    }
                    let next = top + BLOCK;
                    // A part is a whole number of vectors, of as many rows as a square has.
                    if lying.is_some() && next + BLOCK <= self.tall && self.length.is_multiple_of(BLOCK) {
                        ahead = (strips.lying)(next).map(|from| Ahead {
                            from,
                            to: here(number + 1),
                            parts: 0,
                        });
                    }
                    StripWords::Blocks(copy, height)
                }
            };
            for begin in (0..self.length).step_by(BLOCK_WORDS) {
                let depth = BLOCK_WORDS.min(self.length - begin);
                let complete = begin + depth == self.length;
                let continued = begin > 0 || self.added;
                let rows = strip.block(begin, depth);
                for left in (0..self.across).step_by(BLOCK) {
                    let width = BLOCK.min(self.across - left);
                    let sums = self.sums.wrapping_add(left / BLOCK * SQUARE_BYTES);
                    let to = self.results.at(top, left);
                    let operands = Operands {
                        strip: rows.start,
                        strip_row: rows.row,
                        panel: panel(left).wrapping_offset(begin as isize * self.panel_sum),
                        panel_sum: self.panel_sum,
                        depth,
                    };
                    let place = ((top, height), (left, width));
                    if !(in_rows && height == BLOCK) {
                        // SAFETY: the caller's promise.
                        unsafe {
                            series.end();
                            self.part(operands, place, sums, continued, complete);
                        }
                        continue;
                    }
                    let kept = Rows {
                        start: sums,
                        row: (BLOCK * WORD_BYTES) as isize,
                    };
                    let result = Rows {
                        start: to,
                        row: self.results.tall,
                    };
                    let whole = width == BLOCK;
                    let then = match complete && whole {
                        false => Then::Stored(kept),
                        true if self.words != Words::Halves && depth < STEPS_TO_MOVE * STEP => Then::Stored(result),
                        true => Then::Moved(result),
                    };
                    let before = if continued { sums.cast_const() } else { std::ptr::null() };
                    let beside = match series.moves() {
                        true => None,
                        false => ahead.as_mut().and_then(|a| a.next(self.length)),
                    };
                    // SAFETY: the caller's promise.
                    unsafe {
                        if self.added && begin == 0 {
                            self.load(sums.cast(), place);
                        }
                        series.square(operands, before, then, beside);
                        if complete && !whole {
                            series.end();
                            self.finish(sums.cast(), place);
                        }
                    }
                }
            }
            if let Some(tell) = &mut tell {
                // SAFETY: the caller's promise.
                unsafe { series.end() };
                tell(top + height);
            }
        }
        // SAFETY: the caller's promise.
        unsafe { series.end() };
    }

    /// Computes part of a square: sums of i32 in the results, and others at `sums`.
    ///
    /// # Safety
    /// As for [`Pass::run`].
    unsafe fn part(&self, o: Operands, place: Place, sums: *mut u8, added: bool, complete: bool) {
        let ((top, rows), (left, columns)) = place;
        // SAFETY: the caller's promise.
        unsafe {
            if self.words != Words::Halves {
                let (row, column) = (self.results.tall, self.results.wide);
                let results = amx::Results {
                    start: self.results.at(top, left).cast(),
                    row: row / WORD_BYTES as isize,
                    column: column / WORD_BYTES as isize,
                    rows,
                    columns,
                    added,
                };
                return amx::multiply(self.words, o, results);
            }
            let results = amx::Results {
                start: sums.cast(),
                row: BLOCK as isize,
                column: 1,
                rows,
                // Whole vectors, for there is room: what is beside the result is not looked at.
                columns: columns.next_multiple_of(STEP),
                added,
            };
            amx::multiply(self.words, o, results);
            if complete {
                self.finish(sums.cast(), place);
            }
        }
    }

    /// Loads results of i32 that lie in rows as sums of a square.
    ///
    /// # Safety
    /// They can be read, and the square written.
    unsafe fn load(&self, sums: *mut u32, ((top, height), (left, width)): Place) {
        for i in 0..height {
            let from = self.results.at(top + i, left).cast::<u32>();
            // SAFETY: the caller's promise.
            unsafe { std::ptr::copy_nonoverlapping(from, sums.add(i * BLOCK), width) };
        }
    }

    /// Moves complete sums of a square to the results, which lie in rows if they are i32.
    ///
    /// # Safety
    /// Whole vectors of the square can be read, and the results written; this machine has the instructions, as all with tiles.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
    unsafe fn finish(&self, sums: *const u32, ((top, height), (left, width)): Place) {
        for i in 0..height {
            let (from, to) = (sums.wrapping_add(i * BLOCK), self.results.at(top + i, left));
            // SAFETY: the caller's promise.
            unsafe {
                if self.words == Words::Halves {
                    let stride = self.results.wide / size_of::<u16>() as isize;
                    halves::round(from.cast(), to.cast(), stride, width);
                    continue;
                }
                for begin in (0..width).step_by(STEP) {
                    let mask = ((1u32 << STEP.min(width - begin)) - 1) as __mmask16;
                    let vector = _mm512_maskz_loadu_epi32(mask, from.add(begin).cast());
                    _mm512_mask_storeu_epi32(to.cast::<i32>().add(begin), mask, vector);
                }
            }
        }
    }
}

/// Copies a part of a strip.
///
/// # Safety
/// Its rows can be read and written.
unsafe fn copy_part(part: Copied) {
    let at = |rows: Rows, i: usize| rows.start.wrapping_offset(i as isize * rows.row);
    for i in 0..BLOCK {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(at(part.from, i), at(part.to, i), BLOCK * WORD_BYTES) };
    }
}
