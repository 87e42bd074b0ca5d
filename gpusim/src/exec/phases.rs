//! Barriers in shared memory, whose phases threads arrive in and wait for.
//!
//! A phase is complete when nothing is missing of it: neither arrivals nor bytes that copies of tiles bring. A thread that tries to
//! wait for one (`try_wait`) is held until it is complete; only where nobody else can go on it finds that it is not.

use super::access::{Here, Spot, addresses};
use super::step::{Next, lanes};
use super::warp::{Split, Wait};
use super::{Block, Machine};
use crate::program::{Arrival, Instr, PhaseOp, PhaseWait, Place, Scope};
use crate::race::{Kind, MOST_BARRIERS, Phase};
use crate::report::{FindingKind, Site};
use crate::syntax::Space;

/// The most arrivals and bytes that a phase may wait for.
const MOST: i64 = (1 << 20) - 1;

/// Bytes of a barrier.
const BYTES: u32 = 8;

/// Instructions that a thread is held for before it finds that a phase is not complete.
const HELD: u64 = 1000;

/// A barrier in shared memory.
#[derive(Debug)]
pub(super) struct PhaseBarrier {
    /// Its address.
    pub(super) at: usize,
    is_live: bool,
    /// The arrivals of each phase.
    arrivals: u32,
    /// What is missing of the phase that is not complete; more bytes may have come than were expected so far.
    missing: u32,
    missing_bytes: i64,
    /// The number of that phase. Those of a barrier that begins again go on, at an even one.
    pub(super) phase: u32,
    /// Who began it, and whether copies may know of it.
    starter: u32,
    pub(super) is_fenced: bool,
    /// The phase before which somebody saw that all are complete.
    pub(super) seen: u32,
    /// The last phase that a copy was to complete in, and who asked for it.
    pub(super) copy: Option<(u32, Site)>,
}

impl PhaseBarrier {
    /// What lies in memory: of no meaning but that nobody else may write there.
    fn word(&self) -> u64 {
        let state = u64::from(self.missing) << 32 | u64::from(self.missing_bytes as u32);
        state ^ (u64::from(self.phase) << 56) ^ 0x5a5a_0000_0000_0000
    }

    /// What is missing, in words.
    pub(super) fn missing(&self) -> String {
        format!(
            "{} arrivals and {} bytes are missing in phase {} of the barrier at shared address {:#x}",
            self.missing, self.missing_bytes, self.phase, self.at
        )
    }

    const fn is_complete(&self, of: u64, by_parity: bool) -> bool {
        if by_parity {
            self.phase as u64 & 1 != of & 1
        } else {
            self.phase as u64 > of
        }
    }
}

impl Machine<'_> {
    pub(super) fn phase(
        &mut self,
        block: &mut Block,
        at: usize,
        index: usize,
        (instr, place, what): (&Instr, Place, PhaseOp),
        active: u32,
    ) -> Next {
        let Split { mask, pc, frame, .. } = block.warps[at].splits[index];
        let here = Here { at, frame, pc };
        if let PhaseOp::Wait(wait) = what {
            return self.wait_for_phase(block, (at, index), (instr, place, wait), active, mask);
        }
        let number = |block: &Block, register: Option<u32>, lane: usize| {
            register.map(|r| block.warps[at].frames[frame as usize].reg(r)[lane] as u32)
        };
        for lane in lanes(active) {
            let Some(address) = self.barrier_address(block, here, lane, place) else {
                continue;
            };
            match what {
                PhaseOp::Init(count) => {
                    let count = number(block, Some(count), lane).unwrap_or(0);
                    self.begin_phases(block, here, lane, address, count);
                }
                PhaseOp::Invalidate => {
                    if let Some(slot) = self.live_barrier(block, here, lane, address, true) {
                        self.check_race(block, here, lane, Spot::Shared(address), BYTES, Kind::Write);
                        block.phases[slot].is_live = false;
                    }
                }
                PhaseOp::Expect(bytes) => {
                    let bytes = number(block, Some(bytes), lane);
                    self.arrive(block, here, lane, address, (0, bytes, None));
                }
                PhaseOp::Arrive(arrival) => {
                    let count = number(block, arrival.count, lane).unwrap_or(1);
                    let bytes = number(block, arrival.bytes, lane);
                    self.arrive(block, here, lane, address, (count, bytes, Some(arrival)));
                }
                PhaseOp::Wait(_) => {}
            }
        }
        if active != 0 {
            self.progress = self.steps;
        }
        Next::On
    }

    /// Where a barrier of a lane is, if it can be there.
    pub(super) fn barrier_address(
        &mut self,
        block: &mut Block,
        here: Here,
        lane: usize,
        place: Place,
    ) -> Option<usize> {
        let base = *block.warps[here.at].frames[here.frame as usize].reg(place.base);
        let address = addresses(&base, place.offset, lane);
        match self.spot(block, here, lane, (place.space, address), BYTES, true)? {
            Spot::Shared(at) => Some(at),
            _ => {
                let detail = "the barrier is not in shared memory".to_string();
                self.wrong(
                    block,
                    here,
                    lane,
                    FindingKind::Phase,
                    ((place.space, address), BYTES),
                    detail,
                );
                None
            }
        }
    }

    fn misused_phase(&mut self, block: &Block, here: Here, lane: usize, address: usize, detail: String) {
        let place = ((Space::Shared, address as u64), BYTES);
        self.wrong(block, here, lane, FindingKind::Phase, place, detail);
    }

    fn begin_phases(&mut self, block: &mut Block, here: Here, lane: usize, address: usize, count: u32) {
        if !(1..=MOST).contains(&i64::from(count)) {
            let detail = format!("a barrier waits for 1 to {MOST} arrivals, not {count}");
            self.misused_phase(block, here, lane, address, detail);
        }
        let old = block.phases.iter().position(|b| b.at == address);
        if old.is_some_and(|slot| block.phases[slot].is_live) {
            let detail = "the barrier begins again before it ended (`mbarrier.inval`)".to_string();
            self.misused_phase(block, here, lane, address, detail);
        }
        self.check_race(block, here, lane, Spot::Shared(address), BYTES, Kind::Write);
        let slot = old.unwrap_or(block.phases.len());
        if slot >= MOST_BARRIERS {
            let detail = format!("more than {MOST_BARRIERS} barriers of a block are not simulated");
            self.misused_phase(block, here, lane, address, detail);
            return;
        }
        let warp = block.warps[here.at].index;
        let phase = old.map_or(0, |slot| (block.phases[slot].phase + 1).next_multiple_of(2));
        let new = PhaseBarrier {
            at: address,
            is_live: true,
            arrivals: count.max(1),
            missing: count.max(1),
            missing_bytes: 0,
            phase,
            starter: warp * 32 + lane as u32,
            is_fenced: false,
            seen: phase,
            copy: None,
        };
        block.shared.write(address, BYTES, new.word());
        match old {
            Some(slot) => block.phases[slot] = new,
            None => block.phases.push(new),
        }
        let site = self.number_of(block, here);
        if let Some(clocks) = &mut block.clocks {
            clocks.begin_phases(slot as u32, phase, (warp, lane), site);
        }
    }

    /// The barrier at an address, which must have begun before the access.
    pub(super) fn live_barrier(
        &mut self,
        block: &mut Block,
        here: Here,
        lane: usize,
        address: usize,
        is_write: bool,
    ) -> Option<usize> {
        let found = block.phases.iter().position(|b| b.at == address && b.is_live);
        let Some(slot) = found else {
            let detail = "there is no barrier: nobody initialized it".to_string();
            self.misused_phase(block, here, lane, address, detail);
            return None;
        };
        let warp = block.warps[here.at].index;
        let began = block.clocks.as_ref().and_then(|c| c.began(slot as u32, (warp, lane)));
        if let Some(began) = began {
            self.race(block, here, lane, Spot::Shared(address), BYTES, began);
        } else {
            let kind = if is_write {
                Kind::Atomic(Scope::Block)
            } else {
                Kind::StrongRead(Scope::Block)
            };
            self.check_race(block, here, lane, Spot::Shared(address), BYTES, kind);
        }
        if block.shared.read(address, BYTES) != block.phases[slot].word() {
            let detail = "something else was written over the barrier".to_string();
            self.misused_phase(block, here, lane, address, detail);
        }
        Some(slot)
    }

    /// Whether a thread that takes part in a phase knows that the one before is complete; else it may take part in that.
    pub(super) fn check_phase_known(&mut self, block: &Block, here: Here, lane: usize, slot: usize) {
        let Some(clocks) = &block.clocks else { return };
        let known = clocks.phase_known(slot as u32, block.warps[here.at].index, lane);
        let barrier = &block.phases[slot];
        if known < barrier.phase && self.options.synccheck {
            let detail = format!(
                "it takes part in phase {} and has not seen that phase {} is complete: it may as well take part in that",
                barrier.phase,
                barrier.phase - 1
            );
            self.misused_phase(block, here, lane, barrier.at, detail);
        }
    }

    fn arrive(
        &mut self,
        block: &mut Block,
        here: Here,
        lane: usize,
        address: usize,
        (count, bytes, arrival): (u32, Option<u32>, Option<Arrival>),
    ) {
        let Some(slot) = self.live_barrier(block, here, lane, address, true) else {
            return;
        };
        self.check_phase_known(block, here, lane, slot);
        let barrier = &mut block.phases[slot];
        barrier.missing_bytes += i64::from(bytes.unwrap_or(0));
        let too_many = count > barrier.missing;
        let too_large = barrier.missing_bytes > MOST;
        if too_many || too_large {
            let detail = if too_many {
                format!("{count} arrivals in a phase that waits for {}", barrier.missing)
            } else {
                format!("a phase waits for at most {MOST} bytes")
            };
            self.misused_phase(block, here, lane, address, detail);
        }
        let barrier = &mut block.phases[slot];
        barrier.missing = barrier.missing.saturating_sub(count);
        let phase = barrier.phase;
        if let Some(arrival) = arrival {
            let warp = &mut block.warps[here.at];
            let who = (warp.index, lane);
            if let Some(state) = arrival.state {
                warp.frames[here.frame as usize].put(state, 1 << lane, &[u64::from(phase); 32]);
            }
            if arrival.releases {
                if let Some(proxy) = &mut block.proxy {
                    proxy.publish(who.0 * 32 + lane as u32);
                }
                if let Some(clocks) = &mut block.clocks {
                    clocks.arrive(slot as u32, who);
                }
            }
        }
        self.settle_phase(block, slot);
    }

    /// Bytes of a copy came.
    pub(super) fn count_bytes(&mut self, block: &mut Block, slot: usize, bytes: u64) {
        block.phases[slot].missing_bytes -= bytes as i64;
        self.settle_phase(block, slot);
    }

    /// Completes the phase of a barrier if nothing is missing, and lets those go on that are held for it.
    fn settle_phase(&mut self, block: &mut Block, slot: usize) {
        let barrier = &mut block.phases[slot];
        let is_complete = barrier.missing == 0 && barrier.missing_bytes == 0;
        if is_complete {
            barrier.phase += 1;
            barrier.missing = barrier.arrivals;
            self.counters.phases += 1;
            self.progress = self.steps;
        }
        let (at, word) = (barrier.at, barrier.word());
        block.shared.write(at, BYTES, word);
        if !is_complete {
            return;
        }
        if let Some(clocks) = &mut block.clocks {
            clocks.complete_phase(slot as u32);
        }
        for split in block.warps.iter_mut().flat_map(|w| &mut w.splits) {
            if split.wait == Wait::Phase(at as u32) {
                split.wait = Wait::Ready;
            }
        }
    }

    fn wait_for_phase(
        &mut self,
        block: &mut Block,
        (at, index): (usize, usize),
        (instr, place, wait): (&Instr, Place, PhaseWait),
        active: u32,
        mask: u32,
    ) -> Next {
        let Split { pc, frame, .. } = block.warps[at].splits[index];
        let here = Here { at, frame, pc };
        let of = *block.warps[at].frames[frame as usize].reg(wait.of);
        let (mut complete, mut held_at) = (0, None);
        for lane in lanes(active) {
            let known = self.barrier_address(block, here, lane, place);
            let slot = known.and_then(|address| self.live_barrier(block, here, lane, address, false));
            // Who waits for what is no barrier would wait forever; that it is none was reported.
            let is_complete = slot.is_none_or(|slot| self.look_at_phase(block, here, lane, slot, (wait, of[lane])));
            complete |= u32::from(is_complete) << lane;
            if !is_complete && held_at.is_none() {
                held_at = known;
            }
        }
        let warp = &mut block.warps[at];
        warp.held = held_at.and_then(|at| block.phases.iter().position(|b| b.at == at));
        if let Some(held_at) = held_at {
            self.polled = self.steps;
            if complete == 0 && active == mask && wait.holds && !warp.is_impatient {
                warp.splits[index].wait = Wait::Phase(held_at as u32);
                // It is executed again, and counts then.
                self.counters.warp[instr.class as usize] -= 1;
                self.counters.lanes[instr.class as usize] -= u64::from(active.count_ones());
                return Next::Changed;
            }
            warp.is_impatient = false;
        }
        if let Some(done) = wait.done {
            warp.frames[frame as usize].put_pred(done, active, complete);
        }
        Next::On
    }

    /// Whether the phase that a lane waits for is complete; what it learns then.
    fn look_at_phase(
        &mut self,
        block: &mut Block,
        here: Here,
        lane: usize,
        slot: usize,
        (wait, of): (PhaseWait, u64),
    ) -> bool {
        let barrier = &mut block.phases[slot];
        let (address, phase) = (barrier.at, barrier.phase);
        let is_complete = barrier.is_complete(of, wait.by_parity);
        if is_complete {
            barrier.seen = phase;
        }
        if wait.by_parity && of > 1 {
            let detail = format!("the parity of a phase is 0 or 1, not {of}");
            self.misused_phase(block, here, lane, address, detail);
        }
        let warp = block.warps[here.at].index;
        let Some(clocks) = block.clocks.as_mut().filter(|_| wait.acquires) else {
            return is_complete;
        };
        let known = clocks.phase_known(slot as u32, warp, lane);
        if is_complete {
            let phase = Phase {
                barrier: slot as u32,
                number: phase,
            };
            clocks.see_complete(phase, (warp, lane));
        }
        if wait.by_parity && phase >= known + 2 && self.options.synccheck {
            let detail = format!(
                "the parity of a phase is looked at, and phases {known} to {} are complete that the thread has not seen: \
                 it may mean either",
                phase - 1
            );
            self.misused_phase(block, here, lane, address, detail);
        }
        is_complete
    }

    /// Threads make the barriers that they began known to copies.
    pub(super) fn fence_phases(&self, block: &mut Block, at: usize, active: u32) {
        let warp = block.warps[at].index;
        for barrier in &mut block.phases {
            let is_own = barrier.starter / 32 == warp && active >> (barrier.starter % 32) & 1 == 1;
            barrier.is_fenced |= is_own;
        }
    }

    /// Lets threads that are held for phases find that these are not complete; whether there were any.
    pub(super) fn release_held(&mut self, block: &mut Block) -> bool {
        let mut any = false;
        for warp in &mut block.warps {
            for split in &mut warp.splits {
                if matches!(split.wait, Wait::Phase(_)) {
                    split.wait = Wait::Ready;
                    warp.is_impatient = true;
                    any = true;
                }
            }
        }
        if any {
            self.steps += HELD;
        }
        any
    }
}
