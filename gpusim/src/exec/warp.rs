//! The state of a warp: which of its lanes are where, and where they will meet.
//!
//! Lanes that are at one place are a *split*. Where lanes part, a *join* says where they meet again; it is kept until all of
//! them came, left the function or were let go. A join only makes lanes run together: no result depends on it.

use super::flight::{Flight, Watch};
use crate::arith::Lanes;
use crate::program::Pc;

/// No join.
pub(super) const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wait {
    Ready,
    /// At an instruction of the warp, for other lanes.
    Warp,
    /// At a barrier of the block.
    Barrier(u32),
    /// For a phase of the barrier at an address of shared memory.
    Phase(u32),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Split {
    pub(super) mask: u32,
    pub(super) pc: Pc,
    pub(super) frame: u32,
    pub(super) join: u32,
    pub(super) wait: Wait,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Join {
    pub(super) pc: Pc,
    pub(super) frame: u32,
    pub(super) expected: u32,
    pub(super) arrived: u32,
    pub(super) parent: u32,
    /// The frame that lanes leave by coming here, if it is a call's.
    pub(super) callee: Option<u32>,
    pub(super) is_open: bool,
}

/// A function that runs.
#[derive(Clone, Debug)]
pub(super) struct Frame {
    pub(super) code: usize,
    pub(super) regs: Vec<Lanes>,
    pub(super) preds: Vec<u32>,
    /// Lanes of each register that hold what memory never written gave.
    pub(super) undefined: Vec<u32>,
    /// Parameter memory, a lane after the other.
    pub(super) params: Vec<u8>,
    pub(super) local_base: u32,
    /// What asynchronous products do with each register; empty until there was one.
    pub(super) watch: Vec<Watch>,
}

/// A copy that was issued: words, and where they go.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) lane: usize,
    /// The group, by number from the thread's first; the latest is not committed yet.
    pub(super) group: u32,
    pub(super) to: usize,
    pub(super) bytes: u32,
    pub(super) data: [u64; 2],
    pub(super) here: (u32, Pc),
}

#[derive(Debug)]
pub(super) struct Warp {
    /// Its number in the block.
    pub(super) index: u32,
    /// The lanes that have not left the kernel.
    pub(super) alive: u32,
    pub(super) splits: Vec<Split>,
    pub(super) joins: Vec<Join>,
    pub(super) frames: Vec<Frame>,
    pub(super) free_frames: Vec<u32>,
    /// Local memory of each lane, and which of its bytes were written.
    pub(super) local: Vec<super::private::Private>,
    /// How many undefined values there may be in registers; none are looked for while it is 0.
    pub(super) suspicious: bool,
    /// The allocation that was accessed last.
    pub(super) hint: usize,
    /// Asynchronous copies of each lane.
    pub(super) copies: Vec<Pending>,
    /// How many groups of copies each lane has committed.
    pub(super) groups: [u32; 32],
    /// Asynchronous products.
    pub(super) flight: Flight,
    /// The barrier in shared memory, by number, that it last found not complete.
    pub(super) held: Option<usize>,
    /// Whether it is not held for the next phase that is not complete.
    pub(super) is_impatient: bool,
    /// Where in the list of splits to look first.
    pub(super) turn: usize,
}

impl Warp {
    /// Whether any split could run.
    pub(super) fn is_ready(&self) -> bool {
        self.splits.iter().any(|s| s.wait == Wait::Ready)
    }

    /// Makes a join.
    pub(super) fn open(&mut self, join: Join) -> u32 {
        if let Some(at) = self.joins.iter().position(|j| !j.is_open) {
            self.joins[at] = join;
            return at as u32;
        }
        self.joins.push(join);
        (self.joins.len() - 1) as u32
    }

    /// Lanes come to a join; the split that they were is gone already.
    pub(super) fn arrive(&mut self, join: u32, mask: u32) {
        self.joins[join as usize].arrived |= mask;
        self.settle(join);
    }

    /// Lets the lanes of a join go on if all came.
    fn settle(&mut self, index: u32) {
        let join = self.joins[index as usize];
        if !join.is_open || join.arrived != join.expected {
            return;
        }
        self.joins[index as usize].is_open = false;
        if let Some(callee) = join.callee {
            self.free_frames.push(callee);
        }
        if join.expected != 0 {
            self.resume(join, join.arrived);
        }
    }

    fn resume(&mut self, join: Join, mask: u32) {
        let split = Split {
            mask,
            pc: join.pc,
            frame: join.frame,
            join: join.parent,
            wait: Wait::Ready,
        };
        // Coming to one join may be coming to the next.
        if join.parent != NONE {
            let parent = self.joins[join.parent as usize];
            if parent.callee.is_none() && parent.pc == join.pc && parent.frame == join.frame {
                self.arrive(join.parent, mask);
                return;
            }
        }
        self.splits.push(split);
    }

    /// Lanes leave the joins from one on, up to a call's or all.
    pub(super) fn leave(&mut self, mut join: u32, mask: u32, until_call: bool) -> u32 {
        while join != NONE {
            let entry = &mut self.joins[join as usize];
            if until_call && entry.callee.is_some() {
                return join;
            }
            let parent = entry.parent;
            entry.expected &= !mask;
            self.settle(join);
            join = parent;
        }
        NONE
    }

    /// Lets lanes that wait at a join go on without the others; whether there were any.
    pub(super) fn release_join(&mut self) -> bool {
        let waits = |j: &Join| j.is_open && j.arrived != 0;
        let Some(at) = self.joins.iter().position(waits) else {
            return false;
        };
        let join = self.joins[at];
        let entry = &mut self.joins[at];
        entry.expected &= !join.arrived;
        entry.arrived = 0;
        if entry.expected == 0 {
            entry.is_open = false;
        }
        self.resume(join, join.arrived);
        true
    }
}
