//! Runs of steps that one device beside the host does from beginning to end, so that it may be given all of them at once.
//!
//! Invariants:
//! - The host has nothing to do within a segment, and no other device waits for the middle of one.
//! - What a segment copies from or to the host lies in inputs and outputs of the caller that are staged: copied through memory whose
//!   address does not change from call to call.
//! - A loop is part of one if the host knows how often it runs and all that its body does is the device's; the numbers of its
//!   iterations come from a table.

use std::ops::Range;

use tlc_ir::plan::{Plan, Storage};

use super::Sizes;
use super::repeat::BoundLoop;
use super::steps::{BoundStep, BoundWork};

/// Bytes of a tensor up to which it is staged: beyond that it takes longer than the calls of a driver that are saved.
const MOST_STAGED: u64 = 32 << 20;
/// Bytes that are staged for one call at most.
const MOST_STAGED_TOGETHER: u64 = 256 << 20;
/// Operations of a segment with loops, each counted as often as it runs: what is recorded has a node for each.
pub const MOST_OPERATIONS: u64 = 1 << 13;
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
    /// Whether there are loops among them. What follows a loop in the list of steps relies on it without waiting.
    pub has_loops: bool,
    /// The slots that they touch.
    pub slots: Vec<usize>,
    /// The first and the last launch.
    pub launches: Option<[LaunchAt; 2]>,
}

/// Where a launch is among the steps of a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LaunchAt {
    /// The steps of the loops that it is in, from the outermost on.
    pub loops: Vec<usize>,
    /// Its step in the innermost body.
    pub step: usize,
    /// Its place there.
    pub place: usize,
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
            let (device, mut to, mut operations) = (home(plan, &steps[from]), from, 0);
            while let Some(step) = steps.get(to) {
                operations += operations_of(&step.work);
                // However many steps there are, each is there once; loops may be any number of operations.
                let fits = operations <= MOST_OPERATIONS || !matches!(step.work, BoundWork::Loop(_));
                if !fits || home(plan, step) != device || !found.takes(plan, sizes, step) {
                    break;
                }
                to += 1;
            }
            // One operation is no less than one graph.
            let one = to == from + 1 && !matches!(steps[from].work, BoundWork::Loop(_));
            if let Some(device) = device.filter(|_| to > from && !one) {
                found.all.push(segment((plan, steps), device, from..to));
            }
            from = to.max(from + 1);
        }
        found
    }

    /// Whether a step of a device may be part of a segment; if so, the host's end of a copy is staged.
    fn takes<P>(&mut self, plan: &Plan, sizes: &Sizes, step: &BoundStep<P>) -> bool {
        if step.awaited_by_host {
            return false;
        }
        match &step.work {
            // A loop that has a device is all that device's.
            BoundWork::Launches { .. } | BoundWork::Loop(_) => true,
            BoundWork::Product { product, .. } => product.epilogue.as_ref().is_none_or(|e| e.library.is_some()),
            BoundWork::Copy(c) if c.from == c.to => true,
            BoundWork::Copy(c) if c.from == 0 => self.stages(plan, sizes, c.src),
            BoundWork::Copy(c) if c.to == 0 => self.stages(plan, sizes, c.dst),
            BoundWork::Copy(_) | BoundWork::Call(_) => false,
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
            Storage::Constant(_)
            | Storage::Persistent
            | Storage::State(_)
            | Storage::Arena
            | Storage::Alias(_)
            | Storage::Part { .. }
            | Storage::Lines => return false,
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

/// The device beside the host that does a step.
fn home<P>(plan: &Plan, step: &BoundStep<P>) -> Option<usize> {
    match (&step.work, step.on) {
        (BoundWork::Loop(l), _) => home_of_loop(plan, l),
        (_, 0) => None,
        (_, on) => Some(on),
    }
}

/// The device that does all of a loop whose trip count is known, if there is one.
fn home_of_loop<P>(plan: &Plan, l: &BoundLoop<P>) -> Option<usize> {
    let body = l.body_in(plan);
    let decided = l.count.or(l.condition).or(l.follows.map(|f| f.0));
    if l.trip.is_none() || decided.is_some() {
        return None;
    }
    let walks = l.slices.iter().chain(&l.stacks).map(|w| Some(w.on));
    let edges = walks.chain(l.carried.iter().map(|c| Some(c.on)));
    let mut all = edges.chain(l.body.steps.iter().map(|step| match &step.work {
        _ if step.awaited_by_host => None,
        BoundWork::Launches { .. } => Some(step.on),
        BoundWork::Product { product, .. } if product.epilogue.as_ref().is_none_or(|e| e.library.is_some()) => {
            Some(step.on)
        }
        BoundWork::Copy(c) if c.from == c.to => Some(step.on),
        BoundWork::Copy(c) if c.from == 0 && is_number(body, &l.body.sizes, c.src) => Some(step.on),
        BoundWork::Loop(inner) => home_of_loop(body, inner),
        BoundWork::Copy(_) | BoundWork::Product { .. } | BoundWork::Call(_) => None,
    }));
    let first = all.next()?.filter(|on| *on != 0)?;
    all.all(|on| on == Some(first)).then_some(first)
}

/// Whether a slot of a loop's body has the number of the iteration, on the host.
fn is_number(body: &Plan, sizes: &Sizes, slot: usize) -> bool {
    let slot = &body.slots[sizes.root[slot]];
    slot.device.0 == 0 && slot.storage == Storage::Input(0)
}

/// Operations that a device is given for a step, at least.
fn operations_of<P>(work: &BoundWork<P>) -> u64 {
    match work {
        BoundWork::Launches { launches, .. } => launches.len() as u64,
        // At least: what is behind a product may be a kernel of its own.
        BoundWork::Product { .. } | BoundWork::Copy(_) | BoundWork::Call(_) => 1,
        BoundWork::Loop(l) => {
            let walks = l.slices.iter().chain(&l.stacks).filter(|w| w.element.is_some());
            let copies: u64 = walks.map(|w| w.outer as u64).fold(0, u64::saturating_add);
            let steps = l.body.steps.iter().map(|s| operations_of(&s.work));
            // An iteration counts even if it has nothing to do: its number comes from a table of so many.
            let each = steps.fold(copies, u64::saturating_add).max(1);
            each.saturating_mul(l.trip.unwrap_or(0) as u64)
        }
    }
}

/// What a segment's steps touch and run.
#[derive(Default)]
struct Inside {
    queues: Vec<u32>,
    slots: Vec<usize>,
    launches: Option<[LaunchAt; 2]>,
    has_loops: bool,
}

impl Inside {
    fn enters(&mut self, queue: u32) {
        if !self.queues.contains(&queue) {
            self.queues.push(queue);
        }
    }

    fn launches<P>(&mut self, loops: &mut Vec<usize>, step: usize, work: &BoundWork<P>) {
        match work {
            BoundWork::Launches { launches, .. } => {
                for place in 0..launches.len() {
                    let loops = loops.clone();
                    let at = LaunchAt { loops, step, place };
                    let first = self.launches.take().map_or_else(|| at.clone(), |[first, _]| first);
                    self.launches = Some([first, at]);
                }
            }
            BoundWork::Loop(l) => {
                loops.push(step);
                for (step, inner) in l.body.steps.iter().enumerate() {
                    self.launches(loops, step, &inner.work);
                }
                loops.pop();
            }
            BoundWork::Product { .. } | BoundWork::Copy(_) | BoundWork::Call(_) => {}
        }
    }

    fn takes<P>(&mut self, number: usize, step: &BoundStep<P>) {
        match &step.work {
            BoundWork::Launches { launches, .. } => {
                self.enters(step.queue);
                self.slots.extend(launches.iter().flat_map(|l| &l.args));
            }
            BoundWork::Copy(c) => {
                self.enters(step.queue);
                self.slots.extend([c.src, c.dst]);
            }
            BoundWork::Loop(l) => {
                self.has_loops = true;
                let queues = l.edges.iter().chain(&l.body.queues);
                queues.for_each(|q| self.enters(q.1));
                self.slots.extend(&l.captures);
                self.slots
                    .extend(l.carried.iter().flat_map(|c| [c.first, c.last, c.spare]));
                let walks = l.slices.iter().chain(&l.stacks);
                self.slots
                    .extend(walks.flat_map(|w| std::iter::once(w.slot).chain(w.element)));
            }
            BoundWork::Product { product, .. } => {
                self.enters(step.queue);
                let matrices = [&product.lhs, &product.rhs, &product.dst].map(|m| m.slot);
                self.slots.extend(matrices);
                self.slots.extend(product.workspace.iter().map(|w| w.slot));
                let behind = product.epilogue.iter().flat_map(|e| &e.launch.args);
                self.slots.extend(behind);
            }
            BoundWork::Call(_) => {}
        }
        self.launches(&mut Vec::new(), number, &step.work);
    }
}

fn segment<P>((plan, steps): (&Plan, &[BoundStep<P>]), device: usize, range: Range<usize>) -> Segment {
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
    let mut inside = Inside::default();
    for (number, step) in range.clone().zip(&steps[range.clone()]) {
        inside.takes(number, step);
    }
    let Inside {
        mut queues,
        mut slots,
        launches,
        has_loops,
    } = inside;
    if queues.is_empty() {
        // Loops that run nothing.
        queues.push(0);
    }
    slots.sort_unstable();
    slots.dedup();
    Segment {
        device,
        queues,
        waits,
        awaited,
        goes_on: range.end < steps.len(),
        has_loops,
        slots,
        launches,
        steps: range,
    }
}
