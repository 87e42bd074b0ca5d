//! The loops of products by [`amx`]: strips of [`amx::BLOCK`] rows by panels of as many columns, in blocks of the sum.
//!
//! A strip in use stays in the first-level cache, the panels of a pass in the second. Of a strip, sums of all panels of a block are stored
//! before those of the next one continue them; complete ones move to the results ([`Series`]). What is no whole square of results, or no whole
//! step of a sum, is multiplied by itself.

use super::amx::{self, BLOCK, Operands, STEP, Words};
use super::second_level_bytes;
use super::series::{Room, Rows, Series, Then};

/// Bytes of a word, and of a sum.
pub(super) const WORD_BYTES: usize = 4;
/// Words of a block of the sum: a strip of as many stays in the first-level cache.
pub(super) const BLOCK_WORDS: usize = 256;
/// Bytes from one line to the next of the same set of the first-level cache.
const SET_BYTES: usize = 4096;
/// Bytes of a square of sums.
const SQUARE_BYTES: usize = BLOCK * BLOCK * WORD_BYTES;

/// Whether rows of so many words that are that many bytes apart share sets of the first-level cache, so that no strip of them stays in it: a
/// block of each has an eighth of the sets or more, and all begin in one of two.
pub(super) fn share_sets(row: isize, length: usize) -> bool {
    row.unsigned_abs().is_multiple_of(SET_BYTES / 2) && length > STEP
}

/// Panels of one pass over strips: half of the second-level cache holds them.
pub(super) fn panels_of_a_pass(length: usize, wide: usize) -> usize {
    let bytes = length.max(1) * WORD_BYTES * BLOCK;
    let most = (second_level_bytes() / 2 / bytes).max(1);
    wide.div_ceil(BLOCK).clamp(1, most)
}

/// The words of a strip.
#[derive(Clone, Copy)]
pub(super) enum StripWords {
    /// Rows where they are: the first word of the first row, and the bytes from row to row.
    InPlace(*const u8, isize),
    /// A copy, each block of the sum by itself, of so many rows.
    Blocks(*const u32, usize),
}

impl StripWords {
    /// Those of a block of the sum: where they begin, and the bytes from row to row.
    fn block(self, begin: usize, depth: usize) -> (*const u8, isize) {
        match self {
            StripWords::InPlace(start, row) => (start.wrapping_add(begin * WORD_BYTES), row),
            StripWords::Blocks(start, rows) => (
                start.wrapping_add(rows * begin).cast(),
                (depth * WORD_BYTES) as isize,
            ),
        }
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

    /// Computes it. `strip` has the words of so many rows from one on, and `panel` those of a panel by the number of its first column, which
    /// is a multiple of [`BLOCK`]; where columns end within 16, words up to there can be read, and of a whole panel all. Calls `tell`
    /// with the number of rows that are complete.
    ///
    /// # Safety
    /// This process may use tiles of matrices, and a session has begun on this thread; operands can be read, and sums and results written.
    pub(super) unsafe fn run(
        &self,
        panel: impl Fn(usize) -> *const u8,
        mut strip: impl FnMut(usize, usize) -> StripWords,
        mut tell: Option<impl FnMut(usize)>,
    ) {
        let size = self.size();
        let in_rows = self.length.is_multiple_of(STEP) && self.results.wide == size as isize;
        let mut room = Room::new();
        let mut series = Series::new(self.words, &mut room);
        for top in (0..self.tall).step_by(BLOCK) {
            let height = BLOCK.min(self.tall - top);
            let strip = strip(top, height);
            for begin in (0..self.length).step_by(BLOCK_WORDS) {
                let depth = BLOCK_WORDS.min(self.length - begin);
                let complete = begin + depth == self.length;
                let continued = begin > 0 || self.added;
                let (start, row) = strip.block(begin, depth);
                for left in (0..self.across).step_by(BLOCK) {
                    let width = BLOCK.min(self.across - left);
                    let sums = self.sums.wrapping_add(left / BLOCK * SQUARE_BYTES);
                    let to = self.results.at(top, left);
                    let operands = Operands {
                        strip: start,
                        strip_row: row,
                        panel: panel(left).wrapping_offset(begin as isize * self.panel_sum),
                        panel_sum: self.panel_sum,
                        depth,
                    };
                    // SAFETY: the caller's promise.
                    unsafe {
                        if self.added && begin == 0 {
                            self.load(sums.cast(), (top, height), (left, width));
                        }
                        if in_rows && height == BLOCK && width == BLOCK {
                            let then = match complete {
                                true => Then::Moved(Rows {
                                    start: to,
                                    row: self.results.tall,
                                }),
                                false => Then::Stored(sums),
                            };
                            let before = if continued { sums.cast_const() } else { std::ptr::null() };
                            series.square(operands, before, then);
                            continue;
                        }
                        series.end();
                        let part = amx::Part {
                            sums: sums.cast(),
                            rows: height,
                            columns: width,
                            added: continued,
                        };
                        amx::multiply(self.words, operands, part);
                        if complete {
                            self.finish(sums.cast(), (top, height), (left, width));
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

    /// Loads results of i32 as sums of a square.
    ///
    /// # Safety
    /// They can be read, and the square written.
    unsafe fn load(&self, sums: *mut u32, (top, height): (usize, usize), (left, width): (usize, usize)) {
        for i in 0..height {
            for j in 0..width {
                // SAFETY: the caller's promise.
                unsafe { *sums.add(i * BLOCK + j) = *self.results.at(top + i, left + j).cast::<u32>() };
            }
        }
    }

    /// Moves complete sums of a square to the results.
    ///
    /// # Safety
    /// Whole vectors of the square can be read, and the results written.
    unsafe fn finish(&self, sums: *const u32, (top, height): (usize, usize), (left, width): (usize, usize)) {
        for i in 0..height {
            let from = sums.wrapping_add(i * BLOCK);
            // SAFETY: the caller's promise; a machine with tiles has the instructions.
            unsafe {
                match (self.words, self.results.wide) {
                    (Words::Halves, stride) => {
                        let to = self.results.at(top + i, left).cast::<u16>();
                        super::halves::round(from.cast(), to, stride / size_of::<u16>() as isize, width);
                    }
                    (_, 4) => std::ptr::copy_nonoverlapping(from, self.results.at(top + i, left).cast::<u32>(), width),
                    _ => (0..width).for_each(|j| *self.results.at(top + i, left + j).cast::<u32>() = *from.add(j)),
                }
            }
        }
    }
}
