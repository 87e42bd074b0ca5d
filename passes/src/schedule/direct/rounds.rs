//! Long sums of direct convolutions in rounds: a few channels of the image are added up for all pixels before the next ones, with the sums
//! in memory in between. That keeps close what tiles read again where a tile has so few pixels that it uses less than half of each cache line
//! of a long sum's image, and the image is one short row; and where the second cache holds neither the image nor what one row of pixels
//! multiplies, and the last one is far.

use tlc_ir::index::VarId;
use tlc_ir::kernel::{Bind, Memory, Scope};
use tlc_ir::target::CACHE_LINE_BYTES;
use tlc_ir::{DType, Precision};

use super::{Tile, loads};
use crate::schedule::{Directive, ScheduleReason, Scheduler};
use crate::tree;
use crate::tuning::Tunable;

/// The fewest products that are added to a sum at once: as many times as there are more, sums are loaded and stored.
const FEWEST_SUMMED: i64 = 64;

/// The most sums that rounds hold in scratch.
const MOST_HELD: i64 = 1 << 16;

/// How a long sum is cut into rounds.
#[derive(Clone, Copy)]
struct Rounds {
    /// Channels of the image that are added up at once.
    summed: i64,
    /// Blocks of channels of the result that they are added to.
    blocks: i64,
}

impl Scheduler<'_> {
    /// Adds up in rounds, where that keeps more of what is read close.
    pub(super) fn in_rounds(&mut self, outer: &[VarId], channels: VarId, behind: &[VarId], tile: Tile) -> Option<()> {
        let pixels = *behind.last()?;
        let sums = self.sum_over_windows(pixels)?;
        let (rows, columns) = (tile.rows, tile.columns);
        let tile = Tile {
            rows: self.even_rows(pixels, tile),
            ..tile
        };
        let rounds = self.rounds_of_one_row(outer, channels, behind, &sums, tile);
        let rounds = rounds.or_else(|| self.rounds_of_long_sums(outer, channels, behind, &sums, tile))?;
        let summed = self.choose(Tunable::RoundChannels, rounds.summed, |s| {
            let all = s.extent(sums[0]).unwrap_or(1);
            let others = [rounds.summed / 2, rounds.summed * 2];
            others
                .into_iter()
                .filter(move |n| *n > 0 && all % n == 0 && *n < all)
                .chain([0])
        });
        if summed == 0 {
            return None;
        }
        let rounds = Rounds { summed, ..rounds };
        let saved = (self.kernel.clone(), self.schedule.clone());
        self.because(ScheduleReason::DirectConvolution { rows, columns });
        let done = self.direct_rounds(outer, channels, behind, tile, rounds);
        if done.is_none() {
            (self.kernel, self.schedule) = saved;
        }
        done
    }

    /// Rounds for an image that is one short row, of which a tile has so few pixels that it uses less than half of each cache line: they keep the
    /// lines in the first cache.
    fn rounds_of_one_row(
        &self,
        outer: &[VarId],
        channels: VarId,
        behind: &[VarId],
        sums: &[VarId],
        Tile { rows, columns, .. }: Tile,
    ) -> Option<Rounds> {
        let (&[pixels], &[sum]) = (behind, sums) else {
            return None;
        };
        let (row, summed) = (self.extent(pixels)?, self.extent(sum)?);
        let (bytes, close) = (DType::F32.bytes() as i64, self.cpu.l1_bytes as i64);
        if 2 * rows * bytes > CACHE_LINE_BYTES || row <= 2 * rows || 2 * row * columns * bytes > close {
            return None;
        }
        let blocks = self.extent(channels)? / columns;
        if self.blocks_at_once(outer, blocks, behind, sums, columns).is_some() {
            return None;
        }
        let most = close / (row * bytes);
        let summed = (FEWEST_SUMMED..=most)
            .rev()
            .find(|n| summed % n == 0 && summed > most)?;
        Some(Rounds { summed, blocks: 1 })
    }

    /// Rounds for a sum so long that the second cache does not hold a block's weights and what a row of pixels reads of the image: each tile would have
    /// them come from further away again.
    fn rounds_of_long_sums(
        &self,
        outer: &[VarId],
        channels: VarId,
        behind: &[VarId],
        sums: &[VarId],
        Tile { columns, .. }: Tile,
    ) -> Option<Rounds> {
        if self.cpu.feeds_tiles {
            return None;
        }
        let (bytes, second) = (DType::F32.bytes() as i64, self.cpu.l2_bytes as i64);
        let all = |vars: &[VarId]| vars.iter().try_fold(1i64, |n, v| n.checked_mul(self.extent(*v)?));
        let (pixels, length) = (all(behind)?, self.extent(sums[0])?);
        let block = all(sums)?.checked_mul(columns * bytes)?;
        let body = tree::loop_body(&self.kernel.body, *sums.last()?)?;
        let (memory, image) = loads(body).find(|(_, e)| behind.iter().any(|&v| e.uses(v)))?;
        // What a row of pixels reads of each channel: pieces of so many elements side by side.
        let mut steps = Vec::new();
        for &v in sums[1..].iter().chain(behind.last()) {
            steps.push((image.affine_in(v)?.0.as_const()?.checked_abs()?, self.extent(v)?));
        }
        steps.sort();
        let line = CACHE_LINE_BYTES / bytes;
        let (span, pieces) = steps.iter().fold((1i64, 1i64), |(span, pieces), &(step, n)| {
            match step <= span.max(line) {
                true => (span.saturating_add(step.saturating_mul(n - 1)), pieces),
                false => (span, pieces.saturating_mul(n)),
            }
        });
        let read = [pieces, span.saturating_add(line - 1), bytes]
            .into_iter()
            .fold(length, i64::saturating_mul);
        let held = pixels.checked_mul(columns)?;
        let images = all(outer)?;
        let image = self.elements_of_one(memory, outer)? * bytes;
        // Between two uses of a weight the next row's part of the image comes beside this one's.
        if image < second || block.saturating_add(read.saturating_mul(2)) <= second / 4 * 3 || held * bytes > second / 8
        {
            return None;
        }
        let most = self.cpu.l1_bytes as i64 / 2 / (block / length);
        let taps = all(&sums[1..])?;
        let summed = (1..=most)
            .rev()
            .find(|n| length % n == 0 && n * taps >= FEWEST_SUMMED && *n < length)?;
        // The image is read as few times as there are threads to share the blocks.
        let blocks = self.extent(channels)? / columns;
        let fits = |n: &i64| {
            blocks % n == 0
                && n * held <= MOST_HELD.min(second / 4 / bytes)
                && images * (blocks / n) >= self.cpu.threads as i64
        };
        let blocks = (1..=blocks).rev().find(fits)?;
        Some(Rounds { summed, blocks })
    }

    /// Adds up a few channels of the image for all pixels and some blocks of channels of the result, then the next ones.
    fn direct_rounds(
        &mut self,
        outer: &[VarId],
        channels: VarId,
        behind: &[VarId],
        Tile { rows, columns, .. }: Tile,
        Rounds { summed, blocks }: Rounds,
    ) -> Option<()> {
        let width = blocks * columns;
        let [groups, n] = self.apply(Directive::Split {
            var: channels,
            factor: width,
        })?[..] else {
            return None;
        };
        for &inner in behind {
            self.apply(Directive::Interchange { outer: n, inner })?;
        }
        let (row, pixels) = match *behind {
            [pixels] => (None, pixels),
            [outer, inner] => {
                let row = self.extent(inner)?;
                (Some(row), *self.apply(Directive::Fuse { outer, inner })?.first()?)
            }
            _ => return None,
        };
        self.because(ScheduleReason::ChannelsAtOnce { channels: summed });
        let sums = self.sum_over_windows(n)?;
        let made = self.apply(Directive::TileSum {
            outer: pixels,
            inner: n,
            sum: sums[0],
            rows: self.extent(pixels)?,
            columns: width,
            scope: Scope::Cache,
        })?;
        let [_, set, down, across, sum, .., results, _] = made[..] else {
            return None;
        };
        let [rounds, _] = self.apply(Directive::Split {
            var: sum,
            factor: summed,
        })?[..] else {
            return None;
        };
        for outer in [across, down] {
            self.apply(Directive::Interchange { outer, inner: rounds })?;
        }
        if blocks > 1 {
            let [inner, _] = self.apply(Directive::Split {
                var: across,
                factor: columns,
            })?[..] else {
                return None;
            };
            self.apply(Directive::Interchange { outer: down, inner })?;
        }
        let down = self.along_row(down, row)?;
        let parts = match self.apply(Directive::Split {
            var: down,
            factor: rows,
        })?[..]
        {
            [_, tile] => vec![tile],
            [_, tile, rest] => vec![tile, rest],
            [all] => vec![all],
            _ => return None,
        };
        for outer in parts {
            self.held_tile(outer, columns)?;
        }
        self.channels_in_lanes(set)?;
        // What is done with the results goes along as many pixels as a vector has lanes, for one channel after another.
        let lanes = self.emitter.lanes(DType::F32);
        let results = self.along_row(results, row)?;
        let parts = self.apply(Directive::Split {
            var: results,
            factor: lanes,
        })?;
        let (pixels, rest) = match parts[..] {
            [_, pixels] => (Some(pixels), None),
            [_, pixels, rest] => (Some(pixels), Some(rest)),
            [rest] => (None, Some(rest)),
            _ => return None,
        };
        if let Some(rest) = rest {
            let channels = self.only_loop(rest)?;
            self.channels_in_lanes(channels)?;
        }
        if let Some(pixels) = pixels {
            let mut turned = self.only_loop(pixels)?;
            self.apply(Directive::Interchange {
                outer: pixels,
                inner: turned,
            })?;
            if blocks > 1 {
                let [_, block] = self.apply(Directive::Split {
                    var: turned,
                    factor: columns,
                })?[..] else {
                    return None;
                };
                turned = block;
            }
            let bind = Bind::Unroll;
            self.apply(Directive::Bind { var: turned, bind })?;
            self.apply(Directive::Across {
                var: pixels,
                lanes,
                masked: true,
            })?;
        }
        self.schedule.inner.push(Ok(lanes as u32));
        let shared: Vec<VarId> = outer.iter().copied().chain([groups]).collect();
        self.parallel(&shared).map(|_| ())
    }

    /// The loop along the pixels of a row, of one over those of all rows of so many.
    fn along_row(&mut self, pixels: VarId, row: Option<i64>) -> Option<VarId> {
        let Some(factor) = row else { return Some(pixels) };
        match self.apply(Directive::Split { var: pixels, factor })?[..] {
            [_, pixels] | [pixels] => Some(pixels),
            _ => None,
        }
    }

    /// Has a tile of the sums of rounds be in registers while it is added to.
    fn held_tile(&mut self, outer: VarId, columns: i64) -> Option<()> {
        let rows = self.extent(outer)?;
        let inner = self.only_loop(outer)?;
        let sums = self.sum_over_windows(inner)?;
        let image = self.image_of_sum(&sums, inner, outer)?;
        let sums = match self.cpu.threads > 1 {
            true => self.in_steps(sums)?,
            false => sums,
        };
        let made = self.apply(Directive::Hold {
            outer,
            inner,
            sum: sums[0],
            rows,
            columns,
        })?;
        let (&[_, loaded, ..], &[.., stored]) = (&made[..], &made[..]) else {
            return None;
        };
        let (&sum, around) = sums.split_last()?;
        for &next in around {
            self.apply(Directive::Interchange {
                outer: inner,
                inner: next,
            })?;
            self.apply(Directive::Interchange { outer, inner: next })?;
        }
        self.apply(Directive::Contract {
            outer,
            inner,
            sum,
            rows,
            columns,
            block: 1,
            precision: Precision::Exact,
        })?;
        if let (Memory::Param(param), Some(&var)) = (image, around.first()) {
            self.channels_ahead(var, param, rows * columns);
        }
        self.channels_in_lanes(loaded)?;
        self.channels_in_lanes(stored)
    }
}
