//! Direct convolutions: a tile of neighbouring pixels by channels in registers, for the whole sum over channels and windows.
//!
//! Pixels of a row are the tile's rows, each an element that all lanes multiply by; channels of the result are its columns, in
//! lanes. Channels have no rest (`crate::direct` sees to it); pixels that whole tiles leave over take tiles of half as many, and so
//! on, down to one. The sum's loops stay in their order: each result takes its products one
//! after another, whatever the tile.

use tlc_ir::DType;
use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::{Bind, Op, Scope, Stmt};

use super::{Directive, ScheduleReason, Scheduler};
use crate::direct::tile;
use crate::tree;

/// The indices of what statements load whatever the case.
fn loads(body: &[Stmt]) -> Vec<&IndexExpr> {
    fn of(s: &Stmt) -> Option<&IndexExpr> {
        match s {
            Stmt::Let {
                op: Op::Load { index, mask: None, .. },
                ..
            } => Some(index),
            _ => None,
        }
    }
    body.iter().filter_map(of).collect()
}

impl Scheduler<'_> {
    /// Computes sums over windows tile by tile. Returns whether it was done.
    pub(super) fn direct(&mut self, parallel: &[VarId]) -> bool {
        let [outer @ .., channels, row, pixels] = parallel else {
            return false;
        };
        if !self.is_direct(*pixels, *channels) {
            return false;
        }
        let saved = (self.kernel.clone(), self.schedule.clone());
        let done = self.direct_tiles(outer, [*channels, *row, *pixels]).is_some();
        if !done {
            (self.kernel, self.schedule) = saved;
        }
        done
    }

    /// Whether what a loop over pixels adds up are products of windows of an image with weights, which differ with the channels alone.
    fn is_direct(&self, pixels: VarId, channels: VarId) -> bool {
        let Some(sums) = self.sum_over_windows(pixels) else {
            return false;
        };
        let last = sums[sums.len() - 1];
        let Some(body) = tree::loop_body(&self.kernel.body, last) else {
            return false;
        };
        let image = |e: &IndexExpr| e.uses(pixels) && e.uses(last) && !e.uses(channels);
        let weights = |e: &IndexExpr| e.uses(channels) && e.uses(last) && !e.uses(pixels);
        matches!(&loads(body)[..], [a, b] if image(a) && weights(b) || image(b) && weights(a))
    }

    /// The loops of a sum, outermost first, that is all that a loop over pixels computes in loops.
    fn sum_over_windows(&self, pixels: VarId) -> Option<Vec<VarId>> {
        let body = tree::loop_body(&self.kernel.body, pixels)?;
        let mut loops = body.iter().filter(|s| matches!(s, Stmt::Loop { .. }));
        let (Some(Stmt::Loop { var, body, .. }), None) = (loops.next(), loops.next()) else {
            return None;
        };
        let (mut sums, mut body) = (vec![*var], body);
        while let [Stmt::Loop { var, body: inner, .. }] = &body[..] {
            sums.push(*var);
            body = inner;
        }
        (sums.len() >= 2).then_some(sums)
    }

    /// The one loop that a loop holds.
    fn only_loop(&self, var: VarId) -> Option<VarId> {
        match &tree::loop_body(&self.kernel.body, var)?[..] {
            [Stmt::Loop { var, .. }] => Some(*var),
            _ => None,
        }
    }

    fn direct_tiles(&mut self, outer: &[VarId], [channels, row, pixels]: [VarId; 3]) -> Option<()> {
        let count = self.kernel.extents[channels.0 as usize].as_const()?;
        let [rows, columns] = tile(self.emitter, count)?;
        self.because(ScheduleReason::DirectConvolution { rows, columns });
        let factor = columns;
        let [blocks, n] = self.apply(Directive::Split { var: channels, factor })?[..] else {
            return None;
        };
        for inner in [row, pixels] {
            self.apply(Directive::Interchange { outer: n, inner })?;
        }
        let mut shared: Vec<VarId> = outer.iter().copied().chain([blocks, row]).collect();
        let (mut left, mut factor) = (Some(pixels), rows);
        while let Some(var) = left {
            let made = self.apply(Directive::Split { var, factor })?;
            let whole = match made[..] {
                [parts, tile] => Some((parts, tile, None)),
                [parts, tile, rest] => Some((parts, tile, Some(rest))),
                // Fewer pixels than that.
                [_] => None,
                _ => return None,
            };
            if let Some((parts, tile, rest)) = whole {
                if rest.is_none() && var == pixels {
                    shared.push(parts);
                }
                self.direct_tile(tile, factor, columns)?;
                left = rest;
            } else {
                left = made.first().copied();
            }
            factor = (factor / 2).max(1);
        }
        self.schedule.inner.push(Ok(self.emitter.lanes(DType::F32) as u32));
        self.parallel(&shared)?;
        Some(())
    }

    /// Keeps the sums of so many pixels and channels in registers.
    fn direct_tile(&mut self, pixels: VarId, rows: i64, columns: i64) -> Option<()> {
        let channels = self.only_loop(pixels)?;
        let sums = self.sum_over_windows(channels)?;
        let summed = tree::loop_body(&self.kernel.body, *sums.last()?)?;
        let beside = |e: &&IndexExpr| e.affine_in(channels).is_some_and(|(stride, _)| stride.is(1)) && !e.uses(pixels);
        loads(summed).into_iter().find(beside)?;
        let made = self.apply(Directive::TileSum {
            outer: pixels,
            inner: channels,
            sum: sums[0],
            rows,
            columns,
            scope: Scope::Register,
        })?;
        let [_, set, down, across, ref loops @ .., _, behind] = made[..] else {
            return None;
        };
        let (&last, around) = loops.split_last().filter(|_| loops.len() == sums.len())?;
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
        })?;
        for var in [set, behind] {
            let factor = self.emitter.lanes(DType::F32);
            let [_, var] = self.apply(Directive::Split { var, factor })?[..] else {
                return None;
            };
            let bind = Bind::Lanes;
            self.apply(Directive::Bind { var, bind })?;
        }
        Some(())
    }
}
