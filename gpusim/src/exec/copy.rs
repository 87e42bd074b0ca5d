//! Asynchronous copies from global to shared memory.
//!
//! Bytes are read when a copy is issued and arrive when its thread waits for it: the latest moment that is allowed, so that a
//! wait that is missing shows.

use super::access::{Here, Request, Spot, addresses, shifted};
use super::step::lanes;
use super::warp::Pending;
use super::{Block, Machine};
use crate::program::{Guard, Pc, Place, Reg};
use crate::race::Kind;
use crate::report::FindingKind;
use crate::syntax::Space;

/// The operands of a copy.
pub(super) type Operands = (Place, Place, u32, Option<Reg>, Option<Guard>);

impl Machine<'_> {
    pub(super) fn copy_async(&mut self, block: &mut Block, at: usize, frame: u32, pc: Pc, what: Operands, active: u32) {
        let here = Here { at, frame, pc };
        let (to, from, bytes, size, ignore) = what;
        let state = &block.warps[at].frames[frame as usize];
        let (to_base, from_base) = (*state.reg(to.base), *state.reg(from.base));
        let sizes = size.map(|r| *state.reg(r));
        let ignored = ignore.map_or(0, |g| state.holds(g));
        let mut request = Request::default();
        for lane in lanes(active) {
            let target = addresses(&to_base, to.offset, lane);
            let source = addresses(&from_base, from.offset, lane);
            let Some(Spot::Shared(target)) = self.spot(block, here, lane, (Space::Shared, target), bytes, true) else {
                continue;
            };
            let mut count = sizes.map_or(bytes, |s| (s[lane] as u32).min(bytes));
            if ignored >> lane & 1 == 1 {
                count = 0;
            }
            let mut data = [0_u64; 2];
            if count > 0 {
                // A copy of fewer bytes than it names reads only those.
                let unit = if count == bytes { bytes } else { 1 };
                let Some(spot) = self.spot(block, here, lane, (Space::Global, source), unit, false) else {
                    continue;
                };
                if unit == 1
                    && self
                        .spot(
                            block,
                            here,
                            lane,
                            (Space::Global, source + u64::from(count) - 1),
                            1,
                            false,
                        )
                        .is_none()
                {
                    continue;
                }
                request.note(lane, spot, source, count);
                self.check_race(block, here, lane, spot, count, Kind::Read);
                for i in 0..count as usize {
                    let (byte, defined) = self.read(block, here, lane, shifted(spot, i), 1);
                    data[i / 8] |= byte << (8 * (i % 8));
                    if !defined {
                        let detail = "nobody wrote these bytes".to_string();
                        let address = (Space::Global, source + i as u64);
                        self.wrong(block, here, lane, FindingKind::Unwritten, (address, 1), detail);
                    }
                }
            }
            self.check_race(block, here, lane, Spot::Shared(target), bytes, Kind::Issue);
            let warp = &mut block.warps[at];
            let group = warp.groups[lane];
            warp.copies.push(Pending {
                lane,
                group,
                to: target,
                bytes,
                data,
                here: (frame, pc),
            });
        }
        self.count(&mut request, false);
        self.progress = self.steps;
    }

    pub(super) fn copy_commit(&mut self, block: &mut Block, at: usize, active: u32) {
        for lane in lanes(active) {
            block.warps[at].groups[lane] += 1;
        }
    }

    /// Lets copies arrive until at most `pending` groups of each lane are left, or all of them.
    pub(super) fn copy_wait(&mut self, block: &mut Block, at: usize, active: u32, pending: Option<u32>) {
        if block.warps[at].copies.is_empty() {
            return;
        }
        let copies = std::mem::take(&mut block.warps[at].copies);
        let mut left = Vec::with_capacity(copies.len());
        for copy in copies {
            let committed = block.warps[at].groups[copy.lane];
            let arrives = pending.is_none_or(|pending| copy.group.saturating_add(pending) < committed);
            if active >> copy.lane & 1 == 0 || !arrives {
                left.push(copy);
                continue;
            }
            let (frame, pc) = copy.here;
            let here = Here { at, frame, pc };
            for i in 0..copy.bytes as usize / 4 {
                let word = copy.data[i / 2] >> (32 * (i % 2)) & 0xffff_ffff;
                block.shared.write(copy.to + 4 * i, 4, word);
            }
            self.note_write(block, at, copy.lane, copy.to, copy.bytes);
            self.check_race(block, here, copy.lane, Spot::Shared(copy.to), copy.bytes, Kind::Arrival);
        }
        block.warps[at].copies = left;
    }
}
