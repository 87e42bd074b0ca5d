//! Blocks of channels that threads cannot share evenly are cut along their pixels as well.
//!
//! A result with few channels has one block of them, or three: one thread would compute all of it, or two thirds. Pieces of equal length
//! are loops around the tiles, so each has its own tile for what whole ones leave over; a cut costs that and pays where it evens out more.

use tlc_ir::index::VarId;

use super::{Directive, Scheduler, Tile};
use crate::tuning::Tunable;

/// A cut must take so many parts less of the time.
const LEAST_GAIN: i64 = 20;

/// Times within so many parts of the least are as good: of these the fewest pieces.
const AS_GOOD: i64 = 50;

/// The most pieces for each thread: more are no more even.
const MOST_PIECES: i64 = 16;

impl Scheduler<'_> {
    /// Cuts a row of pixels in pieces, if threads share the loops around them more evenly with one over pieces. Returns the row, or the
    /// piece; the loop over pieces is added to those that are shared.
    pub(super) fn balanced(&mut self, pixels: VarId, tile: Tile, shared: &mut Vec<VarId>) -> VarId {
        let model = self.even_piece(pixels, tile, shared).unwrap_or(0);
        let factor = self.choose(Tunable::PiecePixels, model, |s| {
            let (n, threads) = (s.extent(pixels).unwrap_or(1), s.cpu.threads as i64);
            let pieces = (2..=MOST_PIECES * threads).filter(move |k| n % k == 0 && n / k >= tile.rows && threads > 1);
            pieces.map(move |k| n / k).chain([0])
        });
        if factor > 0
            && let Some(&[pieces, piece]) = self.apply(Directive::Split { var: pixels, factor }).as_deref()
        {
            shared.push(pieces);
            return piece;
        }
        pixels
    }

    /// Pixels of the pieces that take the least time, if they take less than a whole row.
    fn even_piece(&self, pixels: VarId, tile: Tile, shared: &[VarId]) -> Option<i64> {
        let threads = self.cpu.threads as i64;
        let n = self.extent(pixels)?;
        let rows = (shared.iter()).try_fold(1i64, |all, v| all.checked_mul(self.extent(*v)?))?;
        if threads < 2 || rows.checked_mul(n)? <= tile.rows * threads {
            return None;
        }
        // What the thread with most of them takes.
        let time = |pieces: i64| {
            let each = self.rows_and_time(n / pieces, tile).1;
            ((rows * pieces - 1) / threads + 1).saturating_mul(each)
        };
        let most = (2 * n / tile.rows).min(MOST_PIECES * threads);
        let counts = || (1..=most).filter(|k| n % k == 0);
        let least = counts().map(time).min()?;
        let pieces = counts().find(|k| time(*k) <= least + least / AS_GOOD)?;
        (time(pieces) < time(1) - time(1) / LEAST_GAIN).then_some(n / pieces)
    }
}
