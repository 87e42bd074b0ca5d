//! A device that moves nothing: it goes through a bound plan as any device does, and counts what that takes.
//!
//! Invariant: nothing here reads a value, so that what data decides is taken at its most: sizes, and the iterations of a loop. A loop of
//! which nobody knows how often it runs counts one iteration.

use tlc_ir::kernel::Access;
use tlc_ir::plan::{DeviceId, Plan, QueueId, Repeat, SlotId, Step, Storage, Work};

use crate::binding::{Sizes, overflow};
use crate::error::RunError;

/// What a call takes, counted.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Kernel launches, those of epilogues included; those that write nothing are not launched.
    pub launches: u64,
    /// Blocks of all launches that have a grid.
    pub blocks: u64,
    /// Matrix products of a library.
    pub products: u64,
    /// Calls of host functions.
    pub calls: u64,
    /// Iterations of loops.
    pub iterations: u64,
    /// Copies within one device.
    pub copies: u64,
    /// Bytes of them.
    pub copied_bytes: u64,
    /// Copies between devices.
    pub transfers: u64,
    /// Bytes of them.
    pub transferred_bytes: u64,
    /// Waits of one queue for another.
    pub waits: u64,
    /// Whether each loop's iterations are known before a call; otherwise the numbers are those of the most, or of one.
    pub exact: bool,
}

/// A step of a call, in the order of the list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CountedStep {
    /// Its number.
    pub step: usize,
    /// Its queue.
    pub queue: QueueId,
    /// The steps that it waits for.
    pub waits: Vec<usize>,
    /// The device that runs it; for a copy, where the bytes go.
    pub device: DeviceId,
    /// Where a copy's bytes come from.
    pub from: DeviceId,
    /// What it takes, the iterations of a loop included.
    pub counts: Counts,
}

/// The memory that a call needs on one device, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DeviceMemory {
    /// The caller's inputs.
    pub inputs: u64,
    /// The caller's states.
    pub states: u64,
    /// The outputs.
    pub outputs: u64,
    /// Constants, as the graph has them.
    pub constants: u64,
    /// What is computed or copied once per executable.
    pub kept: u64,
    /// Values between steps.
    pub arena: u64,
}

impl DeviceMemory {
    /// All of it.
    pub fn total(&self) -> u64 {
        let all = [
            self.inputs,
            self.states,
            self.outputs,
            self.constants,
            self.kept,
            self.arena,
        ];
        all.into_iter().fold(0, u64::saturating_add)
    }
}

impl Counts {
    fn none() -> Counts {
        Counts {
            exact: true,
            ..Counts::default()
        }
    }

    /// Adds another's, so many times.
    pub fn add(&mut self, other: &Counts, times: u64) {
        for (sum, n) in [
            (&mut self.launches, other.launches),
            (&mut self.blocks, other.blocks),
            (&mut self.products, other.products),
            (&mut self.calls, other.calls),
            (&mut self.iterations, other.iterations),
            (&mut self.copies, other.copies),
            (&mut self.copied_bytes, other.copied_bytes),
            (&mut self.transfers, other.transfers),
            (&mut self.transferred_bytes, other.transferred_bytes),
            (&mut self.waits, other.waits),
        ] {
            *sum = sum.saturating_add(n.saturating_mul(times));
        }
        self.exact &= other.exact;
    }
}

/// What a call takes in all, and step by step.
///
/// # Errors
/// [`RunError::Overflow`].
pub fn call(plan: &Plan, sizes: &Sizes) -> Result<(Counts, Vec<CountedStep>), RunError> {
    let mut all = Counts::none();
    let mut out = Vec::with_capacity(plan.steps.len());
    let mut loops = 0;
    for (number, step) in plan.steps.iter().enumerate() {
        let turn = plan.turns.get(number).cloned().unwrap_or_default();
        let device = |s: SlotId| plan.slots[s.0 as usize].device;
        let mut touched = Vec::new();
        step.visit_slots(&mut |s, _| touched.push(s), &plan.kernels);
        let on = touched.first().map_or(DeviceId::HOST, |&s| device(s));
        let (from, to) = match step {
            Step::Copy { src, dst } => (device(*src), device(*dst)),
            Step::Loop(_) | Step::Call(_) => (DeviceId::HOST, DeviceId::HOST),
            Step::Launch(_) | Step::Group(_) | Step::Gemm(_) => (on, on),
        };
        let mut counts = count(plan, sizes, step, &mut loops)?;
        counts.waits += turn.waits.len() as u64;
        all.add(&counts, 1);
        out.push(CountedStep {
            step: number,
            queue: turn.queue,
            waits: turn.waits.iter().map(|&w| w as usize).collect(),
            device: to,
            from,
            counts,
        });
    }
    Ok((all, out))
}

/// What one step takes. `loops` counts the loops before it.
fn count(plan: &Plan, sizes: &Sizes, step: &Step, loops: &mut usize) -> Result<Counts, RunError> {
    let mut counts = Counts::none();
    for l in step.launches() {
        let params = &plan.kernels[l.kernel.0 as usize].params;
        let written = l.args.iter().zip(params).filter(|(_, p)| p.access != Access::Read);
        if written.into_iter().all(|(s, _)| sizes.slot_bytes[s.0 as usize] == 0) {
            continue;
        }
        counts.launches += 1;
        if let Work::Grid(grid) = &l.work {
            let blocks = grid.blocks.eval_symbols(&sizes.symbols);
            counts.blocks += blocks.ok_or_else(|| overflow(&l.label))?.max(0) as u64;
        }
    }
    match step {
        Step::Launch(_) | Step::Group(_) => {}
        Step::Gemm(_) => counts.products += 1,
        Step::Call(_) => counts.calls += 1,
        Step::Copy { src, dst } => {
            let bytes = sizes.slot_bytes[src.0 as usize].min(sizes.slot_bytes[dst.0 as usize]);
            match plan.slots[src.0 as usize].device == plan.slots[dst.0 as usize].device {
                true => (counts.copies, counts.copied_bytes) = (1, bytes),
                false => (counts.transfers, counts.transferred_bytes) = (1, bytes),
            }
        }
        Step::Loop(l) => {
            let (iterations, exact) = trips(l, &sizes.symbols)?;
            let body = inside(l, sizes, *loops)?;
            *loops += 1;
            counts.add(&call(&l.body, &body)?.0, iterations);
            counts.iterations = counts.iterations.saturating_add(iterations);
            counts.exact &= exact;
        }
    }
    Ok(counts)
}

/// How often a loop runs, and whether that is known before a call.
pub fn trips(l: &Repeat, symbols: &[i64]) -> Result<(u64, bool), RunError> {
    let certain = l.count.is_none() && l.condition.is_none() && l.follows.is_none();
    match &l.trip {
        Some(trip) => {
            let trip = trip.eval_symbols(symbols).ok_or_else(|| overflow(&l.label))?;
            Ok((trip.max(0) as u64, certain))
        }
        None => Ok((1, false)),
    }
}

/// The numbers of a loop's body; `number` loops are before it in its plan.
pub fn inside(l: &Repeat, sizes: &Sizes, number: usize) -> Result<Sizes, RunError> {
    let misfit = || overflow(&l.label);
    let symbols = l.inner_symbols(&sizes.symbols).ok_or_else(misfit)?;
    let layout = sizes.layout.bodies.get(number).ok_or_else(misfit)?.layout.clone();
    Sizes::of(&l.body, &symbols, Vec::new(), layout, &[])
}

/// The memory that a call needs, by device.
pub fn memory(plan: &Plan, sizes: &Sizes) -> Vec<DeviceMemory> {
    let mut out = vec![DeviceMemory::default(); plan.devices.len()];
    for (slot, &bytes) in plan.slots.iter().zip(&sizes.slot_bytes) {
        let on = &mut out[slot.device.0 as usize];
        let sum = match slot.storage {
            Storage::Input(_) => &mut on.inputs,
            Storage::State(_) => &mut on.states,
            Storage::Output(_) => &mut on.outputs,
            Storage::Constant(_) => &mut on.constants,
            Storage::Persistent => &mut on.kept,
            Storage::Arena | Storage::Alias(_) => continue,
        };
        *sum = sum.saturating_add(bytes);
    }
    constants_inside(plan, &mut out[DeviceId::HOST.0 as usize].constants);
    for (device, on) in out.iter_mut().enumerate() {
        on.arena = sizes.layout.arena(DeviceId(device as u32)).bytes;
    }
    out
}

/// Adds the constants of loops' bodies, which the host has.
fn constants_inside(plan: &Plan, sum: &mut u64) {
    for step in &plan.steps {
        if let Step::Loop(l) = step {
            let bytes = l.body.constants.iter().map(|c| c.bytes().len() as u64);
            *sum = bytes.fold(*sum, u64::saturating_add);
            constants_inside(&l.body, sum);
        }
    }
}
