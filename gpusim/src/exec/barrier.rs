//! Barriers of a block.

use super::step::{Next, lanes};
use super::warp::{Split, Wait};
use super::{Block, Machine};
use crate::program::{BarrierKind, Guard, Reg};
use crate::report::FindingKind;

/// A barrier of a block; there are 16.
#[derive(Clone, Debug, Default)]
pub(super) struct Barrier {
    /// Warps and their lanes that came.
    arrived: Vec<(u32, u32)>,
    /// Threads that came, by the number that the barrier goes by.
    count: u32,
    /// The threads that it waits for, if it was said.
    threads: Option<u32>,
    /// Lanes whose predicate holds.
    holds: u32,
}

/// The barriers of a block.
pub(super) fn all() -> Vec<Barrier> {
    vec![Barrier::default(); 16]
}

/// The operands of a barrier.
pub(super) type Operands = (Reg, Option<Reg>, BarrierKind, bool);

const fn predicate(kind: BarrierKind) -> Option<Guard> {
    match kind {
        BarrierKind::Sync | BarrierKind::Arrive => None,
        BarrierKind::Count(_, p) | BarrierKind::All(_, p) | BarrierKind::Any(_, p) => Some(p),
    }
}

impl Machine<'_> {
    pub(super) fn barrier(
        &mut self,
        block: &mut Block,
        at: usize,
        index: usize,
        active: u32,
        (id, threads, kind, aligned): Operands,
    ) -> Next {
        if active == 0 {
            return Next::On;
        }
        let Split { mask, pc, frame, .. } = block.warps[at].splits[index];
        let alive = block.warps[at].alive;
        if self.options.synccheck && aligned && (mask != alive || active != mask) {
            let site = self.site_of(block, at, frame, pc, active);
            let missing = alive & !active;
            let detail = format!("lanes {missing:#010x} of the warp are elsewhere");
            self.found(FindingKind::DivergentBarrier, site, None, 0, detail);
        }
        let lane = active.trailing_zeros() as usize;
        let state = &block.warps[at].frames[frame as usize];
        let number = state.reg(id)[lane] as u32 & 15;
        let wanted = threads.map(|r| state.reg(r)[lane] as u32);
        let holds = predicate(kind).map_or(0, |p| state.holds(p) & active);
        let warp = block.warps[at].index;
        if let Some(proxy) = &mut block.proxy {
            lanes(active).for_each(|lane| proxy.publish(warp * 32 + lane as u32));
        }
        let barrier = &mut block.barriers[number as usize];
        barrier.arrived.push((warp, active));
        // A whole warp counts as 32 threads, as the number in the instruction does.
        let whole = active == alive;
        barrier.count += if whole && wanted.is_some() {
            32
        } else {
            active.count_ones()
        };
        barrier.threads = barrier.threads.or(wanted);
        barrier.holds += holds.count_ones();
        if kind == BarrierKind::Arrive {
            self.complete_barriers(block);
            return Next::On;
        }
        let split = &mut block.warps[at].splits[index];
        if active == mask {
            split.wait = Wait::Barrier(number);
        } else {
            // Lanes that the guard excludes go on.
            let rest = Split {
                mask: mask & !active,
                pc: pc + 1,
                ..*split
            };
            split.mask = active;
            split.wait = Wait::Barrier(number);
            block.warps[at].splits.push(rest);
        }
        self.complete_barriers(block);
        Next::Changed
    }

    /// Lets the threads of each barrier go on to which all came.
    pub(super) fn complete_barriers(&mut self, block: &mut Block) {
        let alive: u32 = block.warps.iter().map(|w| w.alive.count_ones()).sum();
        for number in 0..block.barriers.len() {
            let barrier = &block.barriers[number];
            let wanted = barrier.threads.unwrap_or(alive);
            if barrier.arrived.is_empty() || barrier.count < wanted {
                continue;
            }
            let done = std::mem::take(&mut block.barriers[number]);
            let threads: u32 = done.arrived.iter().map(|(_, mask)| mask.count_ones()).sum();
            if let Some(clocks) = &mut block.clocks {
                clocks.barrier(&done.arrived, threads >= alive);
            }
            self.counters.barriers += 1;
            self.progress = self.steps;
            for at in 0..block.warps.len() {
                for index in 0..block.warps[at].splits.len() {
                    let split = block.warps[at].splits[index];
                    if split.wait == Wait::Barrier(number as u32) {
                        self.pass(block, at, index, &done, threads);
                    }
                }
            }
        }
    }

    /// Gives a split what the barrier computed, and lets it go on.
    fn pass(&self, block: &mut Block, at: usize, index: usize, done: &Barrier, threads: u32) {
        let warp = &mut block.warps[at];
        let Split { mask, pc, frame, .. } = warp.splits[index];
        let code = warp.frames[frame as usize].code;
        let instr = &self.program.codes[code].instrs[pc as usize];
        let state = &mut warp.frames[frame as usize];
        if let crate::program::Op::Barrier { kind, .. } = &instr.op {
            match *kind {
                BarrierKind::Sync | BarrierKind::Arrive => {}
                BarrierKind::Count(d, _) => state.put(d, mask, &[u64::from(done.holds); 32]),
                BarrierKind::All(d, _) => state.put_pred(d, mask, if done.holds == threads { u32::MAX } else { 0 }),
                BarrierKind::Any(d, _) => state.put_pred(d, mask, if done.holds > 0 { u32::MAX } else { 0 }),
            }
        }
        warp.splits[index].pc += 1;
        warp.splits[index].wait = Wait::Ready;
    }

    /// The lanes of a warp at instructions of the warp, whether they can go on now that others left.
    pub(super) fn wake_collective(&mut self, block: &mut Block, at: usize) {
        // Looked at again: each finds for itself whether all that it waits for are there.
        for split in &mut block.warps[at].splits {
            if split.wait == Wait::Warp {
                split.wait = Wait::Ready;
            }
        }
    }
}
