//! What barriers in shared memory order: who sees a phase complete knows of what its arrivals knew, and of the copies that
//! completed in it.

use super::{BlockClocks, Foreign, NEVER, OF_PHASES, Phase, Stamp, THREADS, WarpClocks};

/// Bits of a phase's number in a clock; those between them and [`OF_PHASES`] are the barrier's.
const PHASE_BITS: u32 = 24;

/// Barriers of a block that are told apart; one less than the bits could, since that one is a copy in flight.
pub(crate) const MOST_BARRIERS: usize = 126;

impl Phase {
    /// The clock of what completes in it.
    pub(super) const fn clock(self) -> u32 {
        OF_PHASES | self.barrier << PHASE_BITS | self.number & ((1 << PHASE_BITS) - 1)
    }
}

/// What a barrier hands on.
#[derive(Debug)]
pub(super) struct Handed {
    /// When it began.
    began: Stamp,
    /// Of the arrivals of the phase that is not complete.
    coming: Foreign,
    /// Of all phases that are.
    complete: Foreign,
}

impl Default for Handed {
    fn default() -> Handed {
        Handed {
            began: NEVER,
            coming: Foreign::default(),
            complete: Foreign::default(),
        }
    }
}

impl WarpClocks {
    /// Takes what is known of phases of a block's own barriers out of what a lane learns.
    pub(super) fn see_phases(&mut self, number: u32, lane: usize, learned: &mut Foreign) {
        for ((block, barrier), phase) in learned.phases.drain() {
            if block == number {
                self.see_phase(barrier, lane, phase);
            }
        }
    }

    fn see_phase(&mut self, barrier: u32, lane: usize, phase: u32) {
        let barrier = barrier as usize;
        if self.phases.len() <= barrier {
            self.phases.resize(barrier + 1, [0; 32]);
        }
        let seen = &mut self.phases[barrier][lane];
        *seen = phase.max(*seen);
    }

    /// All that a lane can hand on.
    pub(super) fn all_known(&self, number: u32, epoch: u32, warp: u32, lane: usize) -> Foreign {
        let mut known = self.foreign[lane].clone();
        known.blocks.insert(number, epoch);
        known.warps.insert(number * (THREADS / 32) + warp, self.known[lane]);
        for (barrier, phases) in self.phases.iter().enumerate().filter(|(_, p)| p[lane] > 0) {
            known.phases.insert((number, barrier as u32), phases[lane]);
        }
        known
    }
}

impl BlockClocks {
    pub(super) fn knows_phase(&self, stamp: Stamp, warp: u32, lane: usize) -> bool {
        let barrier = (stamp.clock & !OF_PHASES) >> PHASE_BITS;
        let number = stamp.clock & ((1 << PHASE_BITS) - 1);
        stamp.thread / THREADS == self.number && self.phase_known(barrier, warp, lane) > number
    }

    /// The phase of a barrier before which a thread knows of everything.
    pub(crate) fn phase_known(&self, barrier: u32, warp: u32, lane: usize) -> u32 {
        let phases = &self.warps[warp as usize].phases;
        phases.get(barrier as usize).map_or(0, |p| p[lane])
    }

    /// Lanes of warps meet: each knows of the phases that any knew of.
    pub(super) fn share_phases(&mut self, arrived: &[(u32, u32)]) {
        let warps = arrived.iter().map(|&(warp, _)| self.warps[warp as usize].phases.len());
        let barriers = warps.max().unwrap_or(0);
        for barrier in 0..barriers {
            let lanes = |mask: u32| (0..32).filter(move |l| mask >> l & 1 == 1);
            let mut most = 0;
            for &(warp, mask) in arrived {
                if let Some(phases) = self.warps[warp as usize].phases.get(barrier) {
                    most = lanes(mask).map(|l| phases[l]).max().unwrap_or(0).max(most);
                }
            }
            for &(warp, mask) in arrived {
                for lane in lanes(mask) {
                    self.warps[warp as usize].see_phase(barrier as u32, lane, most);
                }
            }
        }
    }

    /// After a barrier of the whole block its epoch says all that threads knew of each other: a writer that knows nothing else is
    /// not taken for one that synchronized by other means.
    pub(super) fn forget_own(&mut self) {
        let (number, per_block) = (self.number, THREADS / 32);
        for warp in &mut self.warps {
            for foreign in &mut warp.foreign {
                foreign.blocks.remove(&number);
                foreign.warps.retain(|warp, _| warp / per_block != number);
            }
            warp.has_foreign = warp.foreign.iter().any(|f| !f.is_empty());
        }
    }

    /// A thread makes a barrier begin with a phase.
    pub(crate) fn begin_phases(&mut self, barrier: u32, phase: u32, (warp, lane): (u32, usize), site: u32) {
        let clocks = &mut self.warps[warp as usize];
        clocks.see_phase(barrier, lane, phase);
        let began = Stamp {
            thread: self.number * THREADS + warp * 32 + lane as u32,
            epoch: self.epoch,
            clock: clocks.known[lane][lane],
            site,
        };
        *self.handed(barrier) = Handed {
            began,
            ..Handed::default()
        };
    }

    /// When a barrier began, if a thread does not know of it.
    pub(crate) fn began(&self, barrier: u32, (warp, lane): (u32, usize)) -> Option<Stamp> {
        let began = self.handed.get(barrier as usize)?.began;
        (!self.is_ordered(began, warp, lane)).then_some(began)
    }

    /// A thread arrives at a barrier and hands on what it did.
    pub(crate) fn arrive(&mut self, barrier: u32, (warp, lane): (u32, usize)) {
        let (number, epoch) = (self.number, self.epoch);
        let clocks = &mut self.warps[warp as usize];
        let known = clocks.all_known(number, epoch, warp, lane);
        clocks.known[lane][lane] += 1;
        self.handed(barrier).coming.learn(&known);
    }

    fn handed(&mut self, barrier: u32) -> &mut Handed {
        let barrier = barrier as usize;
        if self.handed.len() <= barrier {
            self.handed.resize_with(barrier + 1, Handed::default);
        }
        &mut self.handed[barrier]
    }

    /// A phase of a barrier is complete.
    pub(crate) fn complete_phase(&mut self, barrier: u32) {
        let handed = self.handed(barrier);
        let coming = std::mem::take(&mut handed.coming);
        handed.complete.learn(&coming);
    }

    /// A thread sees that the phases of a barrier before one are complete.
    pub(crate) fn see_complete(&mut self, phase: Phase, (warp, lane): (u32, usize)) {
        let (number, epoch, own) = (self.number, self.epoch, self.number * (THREADS / 32) + warp);
        let mut learned = self.handed(phase.barrier).complete.clone();
        let clocks = &mut self.warps[warp as usize];
        clocks.see_phase(phase.barrier, lane, phase.number);
        clocks.see_phases(number, lane, &mut learned);
        // What it knows anyway is no sign that it synchronized with others.
        learned.blocks.retain(|&block, e| block != number || *e > epoch);
        if let Some(lanes) = learned.warps.remove(&own) {
            for (known, clock) in clocks.known[lane].iter_mut().zip(lanes) {
                *known = clock.max(*known);
            }
        }
        if !learned.is_empty() {
            clocks.foreign[lane].learn(&learned);
            clocks.has_foreign = true;
        }
    }
}
