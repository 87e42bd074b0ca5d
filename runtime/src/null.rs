//! A device that moves nothing: the driver goes through a bound plan on it as on any device, and it counts what that takes.
//!
//! Invariant: nothing here reads a value, so that what data decides is taken at its most: sizes, and the iterations of a loop. A loop of
//! which nobody knows how often it runs counts one iteration.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tlc_ir::plan::{DeviceId, Plan, QueueId, Repeat, SlotId, Step, Storage};

use crate::binding::call::BoundCall;
use crate::binding::product::{BoundProduct, Prepared};
use crate::binding::steps::{Binding, BoundLaunch};
use crate::binding::{Sizes, overflow};
use crate::cpu::product;
use crate::device::{Device, Host, Joining, KernelHandle, Mark, Peer, Places, Queued, Scratch, ToLoad};
use crate::driver::{Code, Frame, Walk, scratch_of_all};
use crate::error::RunError;
use crate::memory::pooled_bytes;

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
    /// Working memory of the host's kernels and products, of all threads together.
    pub scratch: u64,
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
            self.scratch,
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

/// What a call takes in all, and step by step: the driver goes through the plan, and nothing is run.
///
/// # Errors
/// [`RunError::Overflow`].
pub fn call(plan: &Plan, sizes: &Sizes) -> Result<(Counts, Vec<CountedStep>), RunError> {
    let null = Arc::new(Null {
        counts: Mutex::new(Counts::none()),
        outside: Mutex::default(),
    });
    let others: Vec<Arc<dyn Queued>> = (1..plan.devices.len())
        .map(|_| Arc::clone(&null) as Arc<dyn Queued>)
        .collect();
    let binding = Binding::new(plan, sizes.clone(), &|product| Device::prepare(&*null, product))?;
    let code = Code::without_kernels(plan, others.len());
    let mut frame = Frame::default();
    frame.fit(&binding, plan.devices.len());
    let walk = Walk {
        plan,
        code: &code,
        binding: &binding,
        host: &*null,
        others: &others,
        scratch: Scratch {
            start: std::ptr::null_mut(),
            bytes: 0,
        },
    };
    let mut all = Counts::none();
    let mut out = Vec::with_capacity(plan.steps.len());
    for (number, (step, bound)) in plan.steps.iter().zip(&binding.steps).enumerate() {
        walk.step(number, &mut frame)?;
        let counts = std::mem::replace(&mut *null.counts(), Counts::none());
        all.add(&counts, 1);
        let device = |s: SlotId| plan.slots[s.0 as usize].device;
        let on = DeviceId(bound.on as u32);
        let (from, to) = match step {
            Step::Copy { src, dst } => (device(*src), device(*dst)),
            Step::Launch(_) | Step::Group(_) | Step::Sequence(_) | Step::Gemm(_) | Step::Loop(_) | Step::Call(_) => {
                (on, on)
            }
        };
        let turn = plan.turns.get(number).cloned().unwrap_or_default();
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

/// Every device of a plan: what it is asked to do, it counts.
struct Null {
    counts: Mutex<Counts>,
    /// What was counted before each loop whose body is gone through.
    outside: Mutex<Vec<Counts>>,
}

impl Null {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn outside(&self) -> MutexGuard<'_, Vec<Counts>> {
        self.outside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn launched(&self, l: &BoundLaunch) {
        let mut counts = self.counts();
        if l.extent > 0 {
            counts.launches += 1;
        }
        if l.block_threads.is_some() {
            counts.blocks += l.extent;
        }
    }

    fn transferred(&self, bytes: usize) -> Result<(), RunError> {
        let mut counts = self.counts();
        counts.transfers += 1;
        counts.transferred_bytes += bytes as u64;
        Ok(())
    }
}

impl Device for Null {
    type Kernel = KernelHandle;
    type Product = ();

    fn load(&self, kernels: &[ToLoad<'_>], _: usize) -> Result<Vec<KernelHandle>, RunError> {
        Ok(vec![KernelHandle(0); kernels.len()])
    }

    fn prepare(&self, _: &BoundProduct) -> Prepared<()> {
        Prepared::default()
    }

    unsafe fn launch(
        &self,
        _: u32,
        launches: &[BoundLaunch],
        _: bool,
        _: &Places<'_, KernelHandle>,
    ) -> Result<(), RunError> {
        launches.iter().for_each(|l| self.launched(l));
        Ok(())
    }

    unsafe fn multiply(
        &self,
        _: u32,
        product: &BoundProduct,
        _: &(),
        _: &mut Places<'_, KernelHandle>,
    ) -> Result<(), RunError> {
        self.counts().products += 1;
        product.epilogue.iter().for_each(|e| self.launched(&e.launch));
        Ok(())
    }

    unsafe fn copy(&self, _: u32, _: *const u8, _: *mut u8, bytes: usize) -> Result<(), RunError> {
        let mut counts = self.counts();
        counts.copies += 1;
        counts.copied_bytes += bytes as u64;
        Ok(())
    }

    unsafe fn fill(&self, _: u32, _: *mut u8, _: u8, _: usize) -> Result<(), RunError> {
        Ok(())
    }
}

impl Host for Null {
    const VALUES: bool = false;

    unsafe fn call(&self, _: &BoundCall, _: &Places<'_, KernelHandle>) -> Result<Option<(usize, i64)>, RunError> {
        self.counts().calls += 1;
        // Sizes that data decides stay at their most.
        Ok(None)
    }

    fn enter(&self) {
        let outside = std::mem::replace(&mut *self.counts(), Counts::none());
        self.outside().push(outside);
    }

    fn leave(&self, times: u64, known: bool) {
        let outside = self.outside().pop().unwrap_or_default();
        let inside = std::mem::replace(&mut *self.counts(), outside);
        let mut counts = self.counts();
        counts.add(&inside, times);
        counts.iterations = counts.iterations.saturating_add(times);
        counts.exact &= known;
    }
}

impl Queued for Null {
    unsafe fn launch_joined(
        &self,
        _: u32,
        (launches, joining): (&[BoundLaunch], Joining),
        _: Option<KernelHandle>,
        _: &Places<'_, KernelHandle>,
    ) -> Result<(), RunError> {
        let mut counts = self.counts();
        if launches.iter().any(|l| l.extent > 0) {
            counts.launches += 1;
            counts.blocks += match joining {
                Joining::InTurn => 1,
                Joining::Beside => launches.iter().map(|l| l.extent).sum(),
            };
        }
        Ok(())
    }

    fn allocate(&self, _: usize) -> Result<*mut u8, RunError> {
        Ok(std::ptr::null_mut())
    }

    unsafe fn release(&self, _: *mut u8) {}

    unsafe fn upload(&self, _: u32, _: *const u8, _: *mut u8, bytes: usize) -> Result<(), RunError> {
        self.transferred(bytes)
    }

    unsafe fn download(&self, _: u32, _: *const u8, _: *mut u8, bytes: usize) -> Result<(), RunError> {
        self.transferred(bytes)
    }

    unsafe fn exchange(&self, _: u32, _: Peer, _: *const u8, _: *mut u8, bytes: usize) -> Result<(), RunError> {
        self.transferred(bytes)
    }

    fn mark(&self, _: u32) -> Result<Mark, RunError> {
        Ok(Mark::default())
    }

    fn wait(&self, _: u32, _: Mark) -> Result<(), RunError> {
        self.counts().waits += 1;
        Ok(())
    }

    fn reach(&self, _: Mark) -> Result<(), RunError> {
        self.counts().waits += 1;
        Ok(())
    }

    fn settle(&self, _: u32) -> Result<(), RunError> {
        Ok(())
    }

    fn finish(&self) {}
}

/// How often a loop runs, and whether that is known before a call.
///
/// # Errors
/// If the number does not fit 64 bits.
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
///
/// # Errors
/// If one does not fit 64 bits, or the layout is of another plan.
pub fn inside(l: &Repeat, sizes: &Sizes, number: usize) -> Result<Sizes, RunError> {
    let misfit = || overflow(&l.label);
    let symbols = l.inner_symbols(&sizes.symbols).ok_or_else(misfit)?;
    let layout = sizes.layout.bodies.get(number).ok_or_else(misfit)?.layout.clone();
    Sizes::of(&l.body, &symbols, Vec::new(), layout, &[])
}

/// The memory that a call needs, by device, where the host has so many threads: what [`MemoryNeed`](crate::driver::MemoryNeed) says
/// of an executable.
///
/// # Errors
/// [`RunError::Overflow`].
pub fn memory(plan: &Plan, sizes: &Sizes, threads: usize) -> Result<Vec<DeviceMemory>, RunError> {
    let mut out = vec![DeviceMemory::default(); plan.devices.len()];
    for (slot, &bytes) in plan.slots.iter().zip(&sizes.slot_bytes) {
        let on = &mut out[slot.device.0 as usize];
        let sum = match slot.storage {
            Storage::Input(_) => &mut on.inputs,
            Storage::State(_) => &mut on.states,
            Storage::Output(_) => &mut on.outputs,
            Storage::Constant(_) => &mut on.constants,
            Storage::Persistent => &mut on.kept,
            Storage::Arena | Storage::Alias(_) | Storage::Part { .. } | Storage::Lines => continue,
        };
        let pooled = matches!(slot.storage, Storage::Output(_)) && slot.device == DeviceId::HOST;
        *sum = sum.saturating_add(if pooled { pooled_bytes(bytes) } else { bytes });
    }
    for (device, on) in out.iter_mut().enumerate() {
        on.arena = sizes.layout.arena(DeviceId(device as u32)).bytes;
    }
    let binding = Binding::new(plan, sizes.clone(), &|p| product::choose(p, threads))?;
    let host = &mut out[DeviceId::HOST.0 as usize];
    host.scratch = scratch_of_all(plan, binding.scratch_bytes, threads);
    constants_inside(plan, &mut host.constants);
    Ok(out)
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
