//! Direct convolutions, and products of words with weights in blocks: a tile of neighbouring pixels by channels in registers, for the whole sum over channels and windows.
//!
//! Pixels of a row are the tile's rows, each an element that all lanes multiply by; channels of the result are its columns, in
//! lanes. Channels have no rest (`crate::direct` sees to it); rows of a known length are cut into tiles of about the same size, and of
//! others the pixels that whole tiles leave over take tiles of half as many, and so on, down to one. The sum's loops stay in their order:
//! each result takes its products one after another, whatever the tile.
//!
//! Weights come from memory once a call, as fast as it reads them if it knows of them in time: tiles of one block of channels ask for the
//! next block's, each for a share. Long sums over large images are cut into [`rounds`].

mod balance;
mod rounds;

use std::cmp::Ordering;
use std::ops::RangeInclusive;

use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::visit::{Effect, MemoryAccess, walk};
use tlc_ir::kernel::{Bind, Memory, Op, Scope, Stmt};
use tlc_ir::{DType, Precision, ScalarOp};

use super::prefetch::lines_of_iteration;
use super::{Directive, ScheduleReason, Scheduler};
use crate::direct::{fewest_accumulators, tiles};
use crate::tree;
use crate::tuning::Tunable;

/// The fewest pixels of a tile whose results are turned: fewer are stored apart sooner.
const FEWEST_TURNED: i64 = 3;

/// The most pixels of a tile that takes about as long as one of a single pixel: its sums wait for one another. What larger tiles leave over of a row is
/// one tile where it has no more pixels, and not two of them.
const SMALL: i64 = 3;

/// Pixels of the tiles of one vector of channels that rows of unknown length are cut into: images have widths of powers of two, and of seven times
/// such. Fewer are tiles of [`SMALL`] and less.
const WIDTHS: [i64; 4] = [16, 14, 8, 7];

/// Shares of the next block's weights where nobody knows how many tiles a block has: as few as an image of 7 by 7 pixels has, for what further tiles
/// ask for is there already.
const SHARES: i64 = 3;

/// Steps of a sum without windows, between which the next block's weights are asked for.
const STEPS: i64 = 8;

/// Products between a channel's prefetch and its use, some two hundred cycles of the widest vectors: what a line takes from another core's cache.
const CHANNELS_AHEAD: i64 = 16 * 14 * 32;

/// Multiply-adds of vectors that take as long as asking for a line is worth.
const LINE_PRODUCTS: i64 = 9;

/// A sum of so many products is long.
const LONG: i64 = 1 << 16;

/// Which loop prefetches the next block's weights: that over tiles, each of which prefetches a share.
#[derive(Clone, Copy)]
struct Ahead {
    by: VarId,
    shares: i64,
}

/// Pixels of a row that is made of an image that is one long one.
const PIECES: RangeInclusive<i64> = 28..=128;

/// What statements load whatever the case, and where.
fn loads(body: &[Stmt]) -> impl Iterator<Item = (Memory, &IndexExpr)> {
    body.iter().filter_map(|s| match s {
        Stmt::Let {
            op: Op::Load {
                memory,
                index,
                mask: None,
            },
            ..
        } => Some((*memory, index)),
        _ => None,
    })
}

/// Multiply-adds of vectors that take as long as what is done with a vector of sums of words: it is turned, made a float, scaled, rounded and
/// made bytes.
const BEHIND_WORDS: i64 = 8;

/// Tiles of a piece of a row of pixels of unknown length: so many that the weights of a block, which each piece reads, are of no account.
const TILES_OF_A_PIECE: i64 = 16;

/// A tile of sums.
#[derive(Clone, Copy)]
struct Tile {
    /// Pixels, or rows of a product.
    rows: i64,
    /// Channels, or columns of a product.
    columns: i64,
    /// What it multiplies: i32 where they are words of bytes.
    dtype: DType,
    /// Products of each sum, or as many as make the rest of no account.
    products: i64,
}

/// What is around the tiles of a row of pixels.
#[derive(Clone, Copy, Default)]
struct Around {
    /// The loop over rows, if there is one.
    rows: Option<VarId>,
    /// Whether there are blocks of channels whose weights tiles ask for.
    ahead: bool,
    /// Whether blocks of channels are walked between rows and tiles.
    close: bool,
    /// Whether they are walked for one tile after another.
    inside: bool,
}

/// Pixels of the tile behind one of so many, in rows of which each may have some left over.
fn next_rows(pixels: i64, one_vector: bool) -> i64 {
    let width = WIDTHS.into_iter().find(|&width| width < pixels);
    match width {
        Some(width) if one_vector => width,
        _ if pixels <= 2 * SMALL || one_vector => (pixels - 1).clamp(1, SMALL),
        _ => pixels / 2,
    }
}

impl Scheduler<'_> {
    /// Computes sums over windows tile by tile. Returns whether it was done.
    pub(super) fn direct(&mut self, parallel: &[VarId]) -> bool {
        let Some((at, tile)) = self.channels(parallel) else {
            return false;
        };
        let saved = (self.kernel.clone(), self.schedule.clone());
        let (mut parallel, mut at) = (parallel.to_vec(), at);
        if tile.dtype == DType::F32 && at + 1 == parallel.len() {
            at = self.pixels_inside(&mut parallel);
        }
        // Rows of a product are around its columns.
        let rows = (at + 1 == parallel.len() && at > 0 && tile.dtype == DType::I32).then(|| at - 1);
        let done = match rows {
            Some(row) => self.direct_product(&parallel[..row], parallel[row], parallel[at], tile),
            None => {
                let image = self.one_row(&parallel[at + 1..]);
                let behind = image.as_ref().map_or(&parallel[at + 1..], std::slice::from_ref);
                let in_rounds = self.in_rounds(&parallel[..at], parallel[at], behind, tile);
                in_rounds.or_else(|| self.direct_tiles(&parallel[..at], parallel[at], behind, tile))
            }
        };
        let done = done.is_some();
        if !done {
            (self.kernel, self.schedule) = saved;
        }
        done
    }

    /// Moves the loop over channels, the last one, around those over rows and columns of pixels: of a result whose channels lie together. Returns where it
    /// is then.
    fn pixels_inside(&mut self, parallel: &mut [VarId]) -> usize {
        let mut at = parallel.len() - 1;
        for _ in 0..2 {
            let Some(before) = at.checked_sub(1) else { break };
            let (outer, inner) = (parallel[before], parallel[at]);
            // Of no pixels there are no tiles.
            if self.extent(outer) == Some(0) {
                break;
            }
            // Groups walk weights as channels do.
            let body = tree::loop_body(&self.kernel.body, inner).map_or(&[][..], |b| b);
            let apart = walk(body)
                .flat_map(|s| s.accesses())
                .all(|a| a.effect != Effect::Load || !(a.index.uses(outer) && a.index.uses(inner)));
            if !apart || self.apply(Directive::Interchange { outer, inner }).is_none() {
                break;
            }
            parallel.swap(before, at);
            at = before;
        }
        at
    }

    /// Makes one row of an image of rows and columns where all that is accessed goes on from one row to the next as it goes along a
    /// row: tiles are then not cut off at the end of each.
    fn one_row(&mut self, image: &[VarId]) -> Option<VarId> {
        let [outer, inner] = *image else { return None };
        let saved = (self.kernel.clone(), self.schedule.clone());
        let made = self.apply(Directive::Fuse { outer, inner });
        if let Some([pixels]) = made.as_deref()
            && let body = tree::loop_body(&self.kernel.body, *pixels)?
            && walk(body)
                .flat_map(|s| s.accesses())
                .all(|a| a.index.affine_in(*pixels).is_some())
        {
            return Some(*pixels);
        }
        (self.kernel, self.schedule) = saved;
        None
    }

    /// Which of the loops is over the channels of the result, where the innermost adds up products of windows with weights in blocks
    /// of channels, and the tile that has as many: no other loop than that over channels, and what is summed without gaps, walks the
    /// weights.
    fn channels(&self, parallel: &[VarId]) -> Option<(usize, Tile)> {
        let sums = self.sum_over_windows(*parallel.last()?)?;
        let summed = tree::loop_body(&self.kernel.body, *sums.last()?)?;
        let mut read = loads(summed).map(|(_, index)| index);
        let (Some(a), Some(b), None) = (read.next(), read.next(), read.next()) else {
            return None;
        };
        let words = |s: &Stmt| {
            matches!(
                s,
                Stmt::Let {
                    op: Op::Map(ScalarOp::Dot4, _),
                    ..
                }
            )
        };
        let dtype = match summed.iter().any(words) {
            true => DType::I32,
            false => DType::F32,
        };
        let in_blocks = |e: &IndexExpr, columns: i64| {
            let mut distance = Some(columns);
            sums.iter().rev().all(|&v| {
                let walks = distance.is_some_and(|d| e.affine_in(v).is_some_and(|(stride, _)| stride.is(d)));
                distance = distance.and_then(|d| d.checked_mul(self.extent(v)?));
                walks
            })
        };
        // The innermost loop last: an image whose rows are as long as a block is wide looks like weights.
        let (last, others) = parallel.split_last()?;
        let others = others.iter().enumerate().rev();
        others.chain([(parallel.len() - 1, last)]).find_map(|(at, &c)| {
            let weights = |w: &IndexExpr, image: &IndexExpr, [_, columns]: [i64; 2]| {
                // Groups, which are around the channels, both have.
                let apart = parallel.iter().enumerate().all(|(i, &v)| match i.cmp(&at) {
                    Ordering::Less => !w.uses(v) || image.uses(v),
                    Ordering::Equal => w.uses(v) && !image.uses(v),
                    Ordering::Greater => !w.uses(v),
                });
                apart && in_blocks(w, columns)
            };
            tiles(self.emitter, dtype, self.extent(c)?)
                .find(|&t| weights(a, b, t) || weights(b, a, t))
                .map(|[rows, columns]| {
                    let products = sums.iter().try_fold(1i64, |n, v| n.checked_mul(self.extent(*v)?));
                    let products = products.unwrap_or(LONG).clamp(1, LONG);
                    (
                        at,
                        Tile {
                            rows,
                            columns,
                            dtype,
                            products,
                        },
                    )
                })
        })
    }

    /// The loops of a sum, outermost first, that is all that a loop over pixels computes in loops.
    fn sum_over_windows(&self, pixels: VarId) -> Option<Vec<VarId>> {
        let body = tree::loop_body(&self.kernel.body, pixels)?;
        let mut loops = body.iter().filter(|s| matches!(s, Stmt::Loop { .. }));
        let (Some(Stmt::Loop { var, body, .. }), None) = (loops.next(), loops.next()) else {
            return None;
        };
        let (mut sums, mut summed) = (vec![*var], body);
        while let [Stmt::Loop { var, body: inner, .. }] = &summed[..] {
            sums.push(*var);
            summed = inner;
        }
        // The sum's own accumulator has a place for each result of a tile, another one behind it, of a sum over no axes, has not.
        let own: Vec<Memory> = walk(summed).flat_map(|s| s.accesses()).map(|a| a.memory).collect();
        let one_place = |a: MemoryAccess<'_>| {
            matches!(a.memory, Memory::Scratch(_)) && !a.index.has_vars() && !own.contains(&a.memory)
        };
        let others = walk(tree::loop_body(&self.kernel.body, pixels)?);
        (!others.flat_map(|s| s.accesses()).any(one_place)).then_some(sums)
    }

    fn extent(&self, var: VarId) -> Option<i64> {
        self.kernel.extents[var.0 as usize].as_const()
    }

    /// The one loop that a loop holds.
    pub(super) fn only_loop(&self, var: VarId) -> Option<VarId> {
        match &tree::loop_body(&self.kernel.body, var)?[..] {
            [Stmt::Loop { var, .. }] => Some(*var),
            _ => None,
        }
    }

    fn direct_tiles(
        &mut self,
        outer: &[VarId],
        channels: VarId,
        behind: &[VarId],
        tile @ Tile { rows, columns, .. }: Tile,
    ) -> Option<()> {
        let lanes = self.emitter.lanes(DType::F32) as u32;
        self.because(ScheduleReason::DirectConvolution { rows, columns });
        let factor = columns;
        let [blocks, n] = self.apply(Directive::Split { var: channels, factor })?[..] else {
            return None;
        };
        let Some((&pixels, between)) = behind.split_last() else {
            // An image of one pixel: a tile of one row.
            let [blocks, pixel] = self.apply(Directive::Split { var: blocks, factor: 1 })?[..] else {
                return None;
            };
            self.direct_tile(pixel, [1, columns], None)?;
            self.schedule.inner.push(Ok(lanes));
            let shared: Vec<VarId> = outer.iter().copied().chain([blocks]).collect();
            return self.parallel(&shared).map(|_| ());
        };
        for &inner in behind {
            self.apply(Directive::Interchange { outer: n, inner })?;
        }
        // Blocks of channels that are walked for one row of pixels after the other, so that the image comes from far once for all of them.
        let (mut pixels, mut between) = (pixels, between.to_vec());
        let sums = self.sum_over_windows(self.only_loop(pixels)?)?;
        let at_once = (self.extent(blocks)).and_then(|all| self.chosen_blocks(outer, all, behind, &sums, columns));
        if at_once.is_some() && between.is_empty() {
            let pieces = self
                .extent(pixels)
                .and_then(|n| PIECES.rev().find(|p| n > *p && n % p == 0));
            if let Some(factor) = pieces
                && let [rows, piece] = self.apply(Directive::Split { var: pixels, factor })?[..]
            {
                between.push(rows);
                pixels = piece;
            }
        }
        let inside = match at_once {
            Some(most) if between.is_empty() => {
                let all = self.extent(blocks)?;
                self.blocks_of_a_tile(most, pixels, (all, self.block_bytes(&sums, columns)?))
            }
            _ => None,
        };
        let (blocks, close) = match at_once.filter(|_| !between.is_empty()) {
            None if let Some(factor) = inside => {
                let parts = self.apply(Directive::Split { var: blocks, factor })?;
                let (&outer, groups) = parts.split_last()?;
                self.apply(Directive::Interchange { outer, inner: pixels })?;
                (groups.first().copied(), false)
            }
            Some(factor) => {
                let parts = self.apply(Directive::Split { var: blocks, factor })?;
                let (&outer, groups) = parts.split_last()?;
                for &inner in &between {
                    self.apply(Directive::Interchange { outer, inner })?;
                }
                (groups.first().copied(), true)
            }
            None => (Some(blocks), false),
        };
        let mut shared: Vec<VarId> = outer.iter().copied().chain(blocks).collect();
        shared.extend(&between);
        if between.is_empty() {
            pixels = match self.extent(pixels) {
                Some(_) => self.balanced(pixels, tile, &mut shared),
                None => self.in_pieces(pixels, tile, blocks, &mut shared)?,
            };
        }
        let factor = self.chosen_rows(pixels, tile);
        let ahead = self.emitter.prefetches
            && inside.is_none()
            && blocks.is_some_and(|b| !self.kernel.extents[b.0 as usize].is(1));
        let around = Around {
            rows: between.last().copied(),
            ahead: self.choose(Tunable::WeightsAhead, ahead.into(), |_| [0, ahead.into()]) != 0,
            close,
            inside: inside.is_some(),
        };
        self.cut_rows(pixels, [factor, columns], around, &mut shared)?;
        self.schedule.inner.push(Ok(lanes));
        self.parallel(&shared).map(|_| ())
    }

    /// Cuts a row of pixels of unknown length into pieces that threads share, each for all blocks of channels, one piece after another: what a step
    /// before left of a piece is in the cache of the thread that computed it. Returns the loop over the pixels of a piece.
    fn in_pieces(
        &mut self,
        pixels: VarId,
        tile: Tile,
        blocks: Option<VarId>,
        shared: &mut Vec<VarId>,
    ) -> Option<VarId> {
        if self.cpu.threads < 2 {
            return Some(pixels);
        }
        let factor = TILES_OF_A_PIECE * tile.rows;
        let [pieces, inner] = self.apply(Directive::Block { var: pixels, factor })?[..] else {
            return None;
        };
        let at = match blocks {
            Some(outer) => {
                self.apply(Directive::Interchange { outer, inner: pieces })?;
                shared.len() - 1
            }
            None => shared.len(),
        };
        shared.insert(at, pieces);
        Some(inner)
    }

    /// Computes a product with weights in blocks of columns: tiles of rows, for one block after another.
    fn direct_product(&mut self, outer: &[VarId], rows_of_all: VarId, columns_of_all: VarId, tile: Tile) -> Option<()> {
        let Tile {
            rows, columns, dtype, ..
        } = tile;
        // Rows of results are stored as they are.
        let tile = Tile { products: LONG, ..tile };
        self.because(ScheduleReason::DirectProduct { rows, columns });
        let [blocks, _] = self.apply(Directive::Split {
            var: columns_of_all,
            factor: columns,
        })?[..] else {
            return None;
        };
        self.apply(Directive::Interchange {
            outer: rows_of_all,
            inner: blocks,
        })?;
        let mut shared: Vec<VarId> = outer.iter().copied().chain([blocks]).collect();
        let rows_of_all = self.balanced(rows_of_all, tile, &mut shared);
        let factor = self.chosen_rows(rows_of_all, tile);
        self.cut_rows(rows_of_all, [factor, columns], Around::default(), &mut shared)?;
        self.schedule.inner.push(Ok(self.emitter.lanes(dtype) as u32));
        self.parallel(&shared).map(|_| ())
    }

    /// Makes tiles of so many pixels or rows, and of fewer what is left over. If all have as many, their loop is one that threads share.
    fn cut_rows(
        &mut self,
        pixels: VarId,
        [factor, columns]: [i64; 2],
        around: Around,
        shared: &mut Vec<VarId>,
    ) -> Option<()> {
        let one_vector = columns <= self.emitter.lanes(DType::F32);
        let (mut left, mut factor) = (Some(pixels), factor);
        while let Some(var) = left {
            let made = self.apply(Directive::Split { var, factor })?;
            let whole = match made[..] {
                [parts, tile] => Some((parts, tile, None)),
                [parts, tile, rest] => Some((parts, tile, Some(rest))),
                // Fewer pixels than that, but not none.
                [_] if factor > 1 => None,
                _ => return None,
            };
            if let Some((parts, tile, rest)) = whole {
                if around.inside {
                    let inner = self.only_loop(tile)?;
                    self.apply(Directive::Interchange { outer: tile, inner })?;
                }
                if rest.is_none() && var == pixels && !around.close {
                    shared.push(parts);
                }
                let by = around.rows.or((var == pixels).then_some(parts));
                let ahead = by.filter(|_| around.ahead).and_then(|by| {
                    let shares = self.extent(by).unwrap_or(SHARES);
                    (shares > 1).then_some(Ahead { by, shares })
                });
                self.direct_tile(tile, [factor, columns], ahead)?;
                left = rest;
            } else {
                left = made.first().copied();
            }
            let over = left.and_then(|v| self.extent(v));
            factor = match over {
                Some(over) if over < factor => over.max(1),
                // Each row has pixels left over.
                _ if around.rows.is_some() => next_rows(factor, one_vector),
                _ => (factor / 2).max(1),
            };
        }
        Some(())
    }

    /// Blocks of channels whose weights half of the second cache holds, or all of it where the last one feeds tiles, if half does not hold the image.
    fn blocks_at_once(&self, outer: &[VarId], all: i64, image: &[VarId], sums: &[VarId], columns: i64) -> Option<i64> {
        let body = tree::loop_body(&self.kernel.body, *sums.last()?)?;
        let windows = loads(body).find(|(_, e)| image.iter().any(|&v| e.uses(v)))?.0;
        let elements = self.elements_of_one(windows, outer);
        let half = self.cpu.l2_bytes as i64 / 2;
        if elements.is_some_and(|n| n.saturating_mul(DType::F32.bytes() as i64) <= half) {
            return None;
        }
        let each = self.block_bytes(sums, columns)?;
        let room = match self.cpu.feeds_tiles {
            true => 2 * half,
            false => half,
        };
        (2..=all).rev().find(|n| all % n == 0 && n.saturating_mul(each) <= room)
    }

    /// Bytes of the weights of a block of channels.
    fn block_bytes(&self, sums: &[VarId], columns: i64) -> Option<i64> {
        let row = columns * DType::F32.bytes() as i64;
        sums.iter().try_fold(row, |n, v| n.checked_mul(self.extent(*v)?))
    }

    /// Blocks of channels that are walked for each tile of an image of unknown size, of so many whose weights the second cache holds: the image may
    /// be too large for it, and comes from the last cache once for all of them. Not where that feeds tiles, and where weights leave no room for tiles
    /// beside them. Threads share the rest.
    fn blocks_of_a_tile(&self, at_once: i64, pixels: VarId, (all, each): (i64, i64)) -> Option<i64> {
        let bytes = all.saturating_mul(each);
        if self.extent(pixels).is_some() || self.cpu.feeds_tiles || bytes > self.cpu.l2_bytes as i64 / 4 {
            return None;
        }
        let most = at_once.min(all / (self.cpu.threads as i64).max(1));
        (2..=most).rev().find(|n| all % n == 0)
    }

    /// As [`Self::blocks_at_once`], where these or others may be chosen.
    fn chosen_blocks(
        &mut self,
        outer: &[VarId],
        all: i64,
        image: &[VarId],
        sums: &[VarId],
        columns: i64,
    ) -> Option<i64> {
        let model = self.blocks_at_once(outer, all, image, sums, columns).unwrap_or(0);
        let chosen = self.choose(Tunable::BlocksPerRow, model, |_| {
            (2..=all).filter(move |n| all % n == 0).chain([0])
        });
        (chosen > 0).then_some(chosen)
    }

    /// Elements that a memory has for each of the images that loops go through.
    fn elements_of_one(&self, memory: Memory, images: &[VarId]) -> Option<i64> {
        let images = images
            .iter()
            .try_fold(1i64, |n, v| n.checked_mul(self.extent(*v)?.max(1)))?;
        Some(self.kernel.memory_len(memory).as_const()? / images)
    }

    /// Pixels of a tile: of those that take the least time for a row of a known length, the most.
    fn even_rows(&self, pixels: VarId, tile: Tile) -> i64 {
        self.extent(pixels).map_or(tile.rows, |n| self.rows_and_time(n, tile).0)
    }

    /// As [`Self::even_rows`], where these or others may be chosen: with them a row has as many tiles, and none that is much smaller.
    fn chosen_rows(&mut self, pixels: VarId, tile: Tile) -> i64 {
        let model = self.even_rows(pixels, tile);
        self.choose(Tunable::TilePixels, model, |s| {
            let n = s.extent(pixels).unwrap_or(model);
            let most = s.emitter.tile(tile.dtype, tile.columns).map_or(tile.rows, |t| t.rows);
            let least = (model / 2).max(2);
            (1..=n / least)
                .map(move |tiles| (n + tiles - 1) / tiles)
                .filter(move |r| (least..=most).contains(r))
        })
    }

    /// The tile that takes the least time for a row of so many pixels, and that time. What whole tiles leave over is a tile of its own, and one
    /// with too few accumulators takes as long as one with enough. Behind short sums of words a vector of results takes as long as the
    /// sums, however many of its lanes are pixels.
    fn rows_and_time(&self, n: i64, tile: Tile) -> (i64, i64) {
        let Tile {
            rows,
            columns,
            dtype,
            products,
        } = tile;
        let lanes = self.emitter.lanes(dtype);
        let vectors = columns / lanes;
        let most = self.emitter.tile(dtype, columns).map_or(rows, |t| t.rows.min(2 * rows));
        // Few registers hold hardly more accumulators than overlap.
        let enough = fewest_accumulators(dtype).min(2 * most * vectors / 3);
        let enough = (enough + vectors - 1) / vectors;
        let each = |r: i64| match dtype {
            // Each step loads the weights.
            DType::I32 => (r.max(enough) + 1) * products + (r + lanes - 1) / lanes * lanes * BEHIND_WORDS,
            _ => r.max(enough),
        };
        let rest = |r: i64| if n % r == 0 { 0 } else { each(n % r) };
        let time = |r: i64| (n / r).saturating_mul(each(r)).saturating_add(rest(r));
        let best = (enough..=most).rev().min_by_key(|&r| time(r)).unwrap_or(rows);
        (best, time(best))
    }

    /// Keeps the sums of so many pixels and channels in registers.
    fn direct_tile(&mut self, pixels: VarId, [rows, columns]: [i64; 2], ahead: Option<Ahead>) -> Option<()> {
        let channels = self.only_loop(pixels)?;
        let sums = self.sum_over_windows(channels)?;
        let image = self.image_of_sum(&sums, channels, pixels)?;
        let summed = tree::loop_body(&self.kernel.body, *sums.last()?)?;
        let weights = loads(summed).map(|(memory, _)| memory).find(|m| *m != image)?;
        let made = self.apply(Directive::TileSum {
            outer: pixels,
            inner: channels,
            sum: sums[0],
            rows,
            columns,
            scope: Scope::Register,
        })?;
        let [_, set, down, across, ref loops @ .., results, behind] = made[..] else {
            return None;
        };
        if loops.len() != sums.len() {
            return None;
        }
        let mut loops = loops.to_vec();
        let length = loops.iter().try_fold(1i64, |n, v| n.checked_mul(self.extent(*v)?));
        let ahead = ahead.zip(length.and_then(|n| n.checked_mul(columns)));
        if ahead.is_some() || !self.is_close(image) {
            loops = self.in_steps(loops)?;
        }
        let (&last, around) = loops.split_last()?;
        for &inner in around {
            self.apply(Directive::Interchange { outer: across, inner })?;
            self.apply(Directive::Interchange { outer: down, inner })?;
        }
        self.apply(Directive::Contract {
            outer: down,
            inner: across,
            sum: last,
            rows,
            columns,
            block: 1,
            precision: Precision::Exact,
        })?;
        if let (Some((Ahead { by, shares }, ahead)), Memory::Param(param), Some(&var)) =
            (ahead, weights, around.first())
        {
            // A hint: tiles are as good without it.
            self.because(ScheduleReason::Ahead);
            self.apply(Directive::Prefetch {
                var,
                by,
                param,
                ahead,
                shares,
            });
        }
        if let (Memory::Param(param), Some(&var)) = (image, around.first()) {
            self.channels_ahead(var, param, rows * columns);
        }
        self.channels_in_lanes(set)?;
        let turned = rows >= FEWEST_TURNED && !self.stores_side_by_side(behind);
        if turned && self.pixels_in_lanes(results, behind).is_some() {
            return Some(());
        }
        self.channels_in_lanes(behind)
    }

    /// What a sum, over channels in lanes for a loop over pixels, multiplies weights by.
    fn image_of_sum(&self, sums: &[VarId], channels: VarId, pixels: VarId) -> Option<Memory> {
        let summed = tree::loop_body(&self.kernel.body, *sums.last()?)?;
        let weights = |e: &IndexExpr| e.affine_in(channels).is_some_and(|(stride, _)| stride.is(1)) && !e.uses(pixels);
        Some(loads(summed).find(|(_, e)| !weights(e))?.0)
    }

    /// The loops of a sum, that over channels without windows in steps between which something is asked for.
    fn in_steps(&mut self, sums: Vec<VarId>) -> Option<Vec<VarId>> {
        match sums[..] {
            [var] if self.emitter.prefetches && self.extent(var).is_some_and(|n| n > STEPS && n % STEPS == 0) => {
                self.apply(Directive::Split { var, factor: STEPS })
            }
            _ => Some(sums),
        }
    }

    /// Whether a core finds an image in its own caches: a small one on one thread, and on several one so small that little of it is another core's.
    fn is_close(&self, image: Memory) -> bool {
        let cache = match self.cpu.threads {
            0 | 1 => self.cpu.l2_bytes / 4,
            _ => self.cpu.l1_bytes / 2,
        };
        let bytes = self.kernel.memory_dtype(image).bytes() as i64;
        let elements = self.kernel.memory_len(image).as_const();
        elements.is_some_and(|n| n.saturating_mul(bytes) as u64 <= cache)
    }

    /// Has the next channels of an image asked for in a loop that multiplies so many results by each of its iterations' elements: other
    /// cores have written some, and an element comes from their caches many times as late as from a core's own. On one thread too the channels of a
    /// large image lie further apart than processors foresee, and where they lie a multiple of 4 KiB apart even the second level keeps few of them.
    fn channels_ahead(&mut self, var: VarId, param: u32, results: i64) {
        let Some(body) = tree::loop_body(&self.kernel.body, var) else {
            return;
        };
        if !self.emitter.prefetches || self.is_close(Memory::Param(param)) {
            return;
        }
        let steps = walk(body).filter_map(|s| match s {
            Stmt::Loop { var, .. } => self.extent(*var),
            Stmt::Contract(c) => self.extent(c.k()),
            _ => None,
        });
        let products = steps.fold(results, i64::saturating_mul).max(1);
        let Some(lines) = lines_of_iteration(&self.kernel, var, param) else {
            return;
        };
        if products / self.emitter.lanes(DType::F32) < LINE_PRODUCTS * lines as i64 {
            return;
        }
        let model = (CHANNELS_AHEAD / products).clamp(1, 16);
        let ahead = self.choose(Tunable::ChannelsAhead, model, |_| [0, 1, 2, 4, 8, 16]);
        if ahead == 0 {
            return;
        }
        self.because(ScheduleReason::ChannelsAhead);
        // A hint: tiles are as good without it.
        self.apply(Directive::PrefetchIteration { var, param, ahead });
    }

    /// Whether the iterations of a loop store to elements side by side, as those over the columns of a matrix do.
    fn stores_side_by_side(&self, var: VarId) -> bool {
        let Some(body) = tree::loop_body(&self.kernel.body, var) else {
            return false;
        };
        let stores = walk(body)
            .flat_map(|s| s.accesses())
            .filter(|a| a.effect == Effect::Store);
        let mut stores = stores.filter(|a| matches!(a.memory, Memory::Param(_))).peekable();
        stores.peek().is_some() && stores.all(|a| a.index.affine_in(var).is_some_and(|(step, _)| step.is(1)))
    }

    fn channels_in_lanes(&mut self, var: VarId) -> Option<()> {
        let factor = self.emitter.lanes(DType::F32);
        let [_, var] = self.apply(Directive::Split { var, factor })?[..] else {
            return None;
        };
        let bind = Bind::Lanes;
        self.apply(Directive::Bind { var, bind }).map(|_| ())
    }

    /// Has what is done with the results go along the pixels of one channel after another, in lanes: the tile is turned in registers.
    fn pixels_in_lanes(&mut self, pixels: VarId, channels: VarId) -> Option<()> {
        let saved = (self.kernel.clone(), self.schedule.clone());
        let done = self.turned_tile(pixels, channels);
        if done.is_none() {
            (self.kernel, self.schedule) = saved;
        }
        done
    }

    fn turned_tile(&mut self, pixels: VarId, channels: VarId) -> Option<()> {
        self.apply(Directive::Interchange {
            outer: pixels,
            inner: channels,
        })?;
        for (var, bind) in [(channels, Bind::Unroll), (pixels, Bind::Serial)] {
            self.apply(Directive::Bind { var, bind })?;
        }
        let lanes = self.emitter.lanes(DType::F32);
        self.apply(Directive::Across {
            var: pixels,
            lanes,
            masked: true,
        })
        .map(|_| ())
    }
}
