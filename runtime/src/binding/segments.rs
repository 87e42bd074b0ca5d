//! Runs of steps that one device beside the host does from beginning to end, so that it may be given all of them at once.
//!
//! Invariants:
//! - The host has nothing to do within a segment, and no other device waits for the middle of one.
//! - What a segment copies from or to the host lies in inputs and outputs of the caller that are staged: copied through memory whose
//!   address does not change from call to call.

use std::ops::Range;

use tlc_ir::plan::{Plan, Storage};

use super::Sizes;
use super::steps::{BoundStep, BoundWork};

/// Bytes of a tensor up to which it is staged: beyond that it takes longer than the calls of a driver that are saved.
const MOST_STAGED: u64 = 32 << 20;
/// Bytes that are staged for one call at most.
const MOST_STAGED_TOGETHER: u64 = 256 << 20;
/// Alignment of tensors in the memory that they are staged in.
const ALIGNMENT: u64 = 256;

/// Steps of a call that a device does from beginning to end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Segment {
    /// The steps.
    pub steps: Range<usize>,
    /// The device.
    pub device: usize,
    /// Its queues that they are in, in the order of their first steps.
    pub queues: Vec<u32>,
    /// The steps before them that they wait for.
    pub waits: Vec<usize>,
    /// Those of them that steps behind them wait for.
    pub awaited: Vec<usize>,
    /// Whether steps follow.
    pub goes_on: bool,
    /// Whether they touch inputs or outputs that are on their device, whose addresses are the caller's to choose.
    pub of_caller: bool,
    /// The slots that they touch.
    pub slots: Vec<usize>,
    /// The first and the last launch: step and place in it.
    pub launches: Option<[(usize, usize); 2]>,
}

/// An input or output of the caller that is copied through memory of the driver.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Staged {
    /// Its slot.
    pub slot: usize,
    /// For an input, its number.
    pub input: Option<usize>,
    /// Where it is in that memory.
    pub offset: usize,
    /// Its bytes.
    pub bytes: usize,
}

/// The segments of a plan's steps.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Segments {
    /// In their order.
    pub all: Vec<Segment>,
    /// What they copy from and to the caller.
    pub staged: Vec<Staged>,
    /// Bytes of the memory that it goes through.
    pub staging_bytes: usize,
}

impl Segments {
    /// Finds them.
    pub(super) fn of<P>(plan: &Plan, sizes: &Sizes, steps: &[BoundStep<P>]) -> Segments {
        let mut found = Segments::default();
        if plan.devices.len() < 2 || plan.turns.len() != steps.len() {
            return found;
        }
        let mut from = 0;
        while from < steps.len() {
            let mut to = from;
            while to < steps.len() && steps[to].on == steps[from].on && found.takes(plan, sizes, &steps[to]) {
                to += 1;
            }
            // One operation is no less than one graph.
            if to > from + 1 {
                found.all.push(segment(plan, sizes, steps, from..to));
            }
            from = to.max(from + 1);
        }
        found
    }

    /// Whether a step may be part of a segment; if so, the host's end of a copy is staged.
    fn takes<P>(&mut self, plan: &Plan, sizes: &Sizes, step: &BoundStep<P>) -> bool {
        if step.on == 0 || step.awaited_by_host {
            return false;
        }
        match &step.work {
            BoundWork::Launches { .. } => true,
            BoundWork::Copy(c) if c.from == c.to => true,
            BoundWork::Copy(c) if c.from == 0 => self.stages(plan, sizes, c.src),
            BoundWork::Copy(c) if c.to == 0 => self.stages(plan, sizes, c.dst),
            BoundWork::Copy(_) | BoundWork::Product { .. } | BoundWork::Loop(_) | BoundWork::Call(_) => false,
        }
    }

    /// Whether a slot of the host is staged.
    fn stages(&mut self, plan: &Plan, sizes: &Sizes, slot: usize) -> bool {
        let slot = sizes.root[slot];
        if self.staged.iter().any(|s| s.slot == slot) {
            return true;
        }
        let input = match plan.slots[slot].storage {
            Storage::Input(k) => Some(k as usize),
            Storage::Output(_) => None,
            Storage::Constant(_) | Storage::Persistent | Storage::State(_) | Storage::Arena | Storage::Alias(_) => {
                return false;
            }
        };
        let bytes = sizes.slot_bytes[slot];
        let offset = (self.staging_bytes as u64).next_multiple_of(ALIGNMENT);
        if bytes > MOST_STAGED || offset + bytes > MOST_STAGED_TOGETHER {
            return false;
        }
        self.staging_bytes = (offset + bytes) as usize;
        self.staged.push(Staged {
            slot,
            input,
            offset: offset as usize,
            bytes: bytes as usize,
        });
        true
    }
}

fn segment<P>(plan: &Plan, sizes: &Sizes, steps: &[BoundStep<P>], range: Range<usize>) -> Segment {
    let inside = &steps[range.clone()];
    let mut queues: Vec<u32> = Vec::new();
    for step in inside {
        if !queues.contains(&step.queue) {
            queues.push(step.queue);
        }
    }
    let waits_of = |steps: Range<usize>| {
        let all = plan.turns[steps].iter().flat_map(|t| &t.waits);
        let mut all: Vec<usize> = all.map(|w| *w as usize).collect();
        all.sort_unstable();
        all.dedup();
        all
    };
    let mut waits = waits_of(range.clone());
    waits.retain(|w| *w < range.start && steps[*w].on != 0);
    let mut awaited = waits_of(range.end..steps.len());
    awaited.retain(|w| range.contains(w));
    let mut slots = Vec::new();
    let mut launches: Option<[(usize, usize); 2]> = None;
    for (number, step) in range.clone().zip(inside) {
        match &step.work {
            BoundWork::Launches { launches: all, .. } => {
                for (place, l) in all.iter().enumerate() {
                    slots.extend(&l.args);
                    let at = (number, place);
                    launches = Some([launches.map_or(at, |l| l[0]), at]);
                }
            }
            BoundWork::Copy(c) => slots.extend([c.src, c.dst]),
            BoundWork::Product { .. } | BoundWork::Loop(_) | BoundWork::Call(_) => {}
        }
    }
    slots.sort_unstable();
    slots.dedup();
    let of_caller = |s: &usize| {
        let slot = &plan.slots[sizes.root[*s]];
        slot.device.0 != 0 && matches!(slot.storage, Storage::Input(_) | Storage::Output(_))
    };
    Segment {
        of_caller: slots.iter().any(of_caller),
        device: inside[0].on,
        queues,
        waits,
        awaited,
        goes_on: range.end < steps.len(),
        slots,
        launches,
        steps: range,
    }
}
