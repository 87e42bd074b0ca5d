//! Running the steps of a plan, and of the bodies of its loops.

use std::ops::Range;

use tlc_ir::plan::{Plan, Storage};

use super::bind::at_most_one_chunk;
use super::product::{Along, BoundGemm};
use super::repeat::constant;
use super::{Binding, BoundLaunch, BoundStep, Code, Frame, RunError, SCRATCH_ALIGNMENT, UNWRITTEN};
use crate::cpu::gemm::{Follow, multiply};
use crate::cpu::jit::{Args, KernelFn};
use crate::pool::Pool;

/// A plan on its way through a call.
pub(super) struct Run<'r> {
    pub(super) plan: &'r Plan,
    pub(super) code: &'r Code,
    pub(super) binding: &'r Binding,
    pub(super) threads: &'r Pool,
    /// `scratch_bytes` for each worker, enough for the bodies too.
    pub(super) scratch: *mut u8,
    pub(super) scratch_bytes: u64,
}

/// What workers share.
struct Shared<'a> {
    kernels: &'a [KernelFn],
    args: &'a [*mut u8],
    scratch: *mut u8,
    scratch_bytes: usize,
}

// SAFETY: workers only read the pointers; what they point to is split between them by the kernels' invariant that parallel
// iterations write disjoint memory, and each worker has a scratch area of its own.
unsafe impl Sync for Shared<'_> {}

impl Shared<'_> {
    /// Runs iterations of a kernel with the scratch of a worker, from a byte of it on.
    ///
    /// # Safety
    /// Its arguments are in place, the range lies in the kernel's parallel range, no one else runs it, and the worker is this
    /// thread.
    unsafe fn call(&self, l: &BoundLaunch, (worker, byte): (usize, usize), begin: u64, end: u64) {
        let args = Args {
            buffers: self.args[l.first_arg..].as_ptr(),
            symbols: l.symbols.as_ptr(),
            // SAFETY: the scratch area has `scratch_bytes` for each of the pool's workers.
            scratch: unsafe { self.scratch.add(worker * self.scratch_bytes + byte) },
        };
        // SAFETY: the binding evaluated every parameter's length and gave each a buffer of at least that size; the rest is the
        // caller's promise.
        unsafe { self.kernels[l.kernel].call(&args, begin as i64, end as i64) };
    }
}

/// Writes down where a launch's buffers are.
fn point(l: &BoundLaunch, frame: &mut Frame) {
    for (k, &slot) in l.args.iter().enumerate() {
        frame.args[l.first_arg + k] = frame.slots[slot];
    }
}

impl Run<'_> {
    /// Finds out where each slot is. The frame already knows where the outputs go.
    pub(super) fn place(
        &self,
        frame: &mut Frame,
        arena: *mut u8,
        input: &dyn Fn(usize) -> *mut u8,
        kept: &dyn Fn(usize) -> *mut u8,
    ) {
        for (i, slot) in self.plan.slots.iter().enumerate() {
            match &slot.storage {
                Storage::Input(k) => frame.slots[i] = input(*k as usize),
                Storage::Constant(k) => {
                    frame.slots[i] = constant(self.code, i, &self.plan.constants[*k as usize]);
                }
                Storage::Arena => {
                    let at = self.binding.sizes.layout.offsets[i].unwrap_or(0) as usize;
                    // SAFETY: the layout places every arena slot inside the arena's bytes, which the arena has.
                    frame.slots[i] = unsafe { arena.add(at) };
                }
                Storage::Persistent => frame.slots[i] = kept(i),
                Storage::Output(_) | Storage::State(_) | Storage::Alias(_) => {}
            }
        }
        for (i, &root) in self.binding.sizes.root.iter().enumerate() {
            if root != i {
                frame.slots[i] = frame.slots[root];
            }
        }
    }

    /// Fills the slots whose lives begin at a step, in builds with debug assertions.
    pub(super) fn mark_unwritten(&self, number: usize, frame: &mut Frame) {
        for &slot in self.binding.births.get(number).into_iter().flatten() {
            let bytes = self.binding.sizes.slot_bytes[slot] as usize;
            // SAFETY: the slot is in the arena, with room for its bytes, and nothing that is still needed is there.
            unsafe { std::ptr::write_bytes(frame.slots[slot], UNWRITTEN, bytes) };
        }
    }

    /// Runs one step.
    ///
    /// Answers the symbol that the step binds, and its value.
    pub(super) fn step(
        &self,
        step: &BoundStep,
        frame: &mut Frame,
        arena: *mut u8,
    ) -> Result<Option<(usize, i64)>, RunError> {
        match step {
            BoundStep::Launches { launches, alone } => {
                launches.iter().for_each(|l| point(l, frame));
                self.launch(launches, *alone, &frame.args)?;
                Ok(None)
            }
            BoundStep::Gemm(g) => self.product(g, frame).map(|()| None),
            BoundStep::Copy { src, dst, bytes } => {
                // SAFETY: both slots hold `bytes` bytes under this binding, and are different buffers.
                unsafe { std::ptr::copy_nonoverlapping(frame.slots[*src], frame.slots[*dst], *bytes) };
                Ok(None)
            }
            BoundStep::Loop(l) => self.repeat(l, frame, arena).map(|()| None),
            BoundStep::Call(c) => c.run(&frame.slots, self.threads),
        }
    }

    /// Runs a product, and the kernel behind it along with it.
    fn product(&self, g: &BoundGemm, frame: &mut Frame) -> Result<(), RunError> {
        if let Some(e) = g.epilogue() {
            point(&e.launch, frame);
        }
        let counters = g.counters();
        frame.counters[..counters].iter_mut().for_each(|c| *c.get_mut() = 0);
        let product = g.product(&frame.slots);
        let along = g
            .epilogue()
            .and_then(|e| e.along.as_ref().map(|along| (&e.launch, along)));
        let shared = self.shared(&frame.args);
        let scratch_before = g.cut().scratch_bytes.next_multiple_of(SCRATCH_ALIGNMENT as usize);
        // Lines of the kernel from `first` to `last`.
        let lines = |(launch, along): (&BoundLaunch, &Along), worker: usize, first: u64, last: u64| {
            let (begin, end) = (first * along.iterations, last * along.iterations);
            // SAFETY: the binding gave each worker scratch for the kernel behind that for the product, and pieces and lines
            // are disjoint parts of the kernel's range. Until the product is done, only lines whose elements are.
            unsafe { shared.call(launch, (worker, scratch_before), begin, end) };
        };
        let run = |worker: usize, entry: usize, done: Range<usize>, next: &mut u64| {
            let Some((launch, along)) = along else { return };
            let element = |line: usize| (entry as u64 * along.lines + line as u64) * along.width;
            let (first, last) = along.within(element(done.start), element(done.end));
            let first = first.max(*next);
            if first < last {
                lines((launch, along), worker, first, last);
                *next = last;
            }
        };
        let follow = along.map(|(_, along)| Follow {
            side: along.side,
            run: &run,
            done: &frame.counters[..counters],
        });
        // SAFETY: the three matrices lie inside their slots by construction of the matrix form, the result overlaps neither
        // operand, and every worker has `scratch_bytes` of scratch, which the binding made enough for the cut.
        unsafe {
            multiply(
                &product,
                g.cut(),
                self.threads,
                self.scratch,
                self.scratch_bytes as usize,
                follow.as_ref(),
            )?
        };
        match (along, g.epilogue()) {
            (Some(both), _) => g.late(both.1, &mut |line| lines(both, 0, line, line + 1)),
            (None, Some(e)) => {
                let launches = std::slice::from_ref(&e.launch);
                self.launch(launches, at_most_one_chunk(launches), &frame.args)?;
            }
            (None, None) => {}
        }
        Ok(())
    }

    fn shared<'s>(&'s self, args: &'s [*mut u8]) -> Shared<'s> {
        Shared {
            kernels: &self.code.kernels,
            args,
            scratch: self.scratch,
            scratch_bytes: self.scratch_bytes as usize,
        }
    }

    /// Runs launches that do not depend on each other; on this thread if they are to be `alone`.
    fn launch(&self, launches: &[BoundLaunch], alone: bool, args: &[*mut u8]) -> Result<(), RunError> {
        let shared = self.shared(args);
        let run = |l: &BoundLaunch, worker: usize, begin: u64, end: u64| {
            // SAFETY: `begin..end` lies in the kernel's parallel range, and no other worker is given it.
            unsafe { shared.call(l, (worker, 0), begin, end) };
        };
        match launches {
            all if alone || self.threads.threads() == 1 => {
                for l in all.iter().filter(|l| l.extent > 0) {
                    run(l, 0, 0, l.extent);
                }
            }
            [one] => self
                .threads
                .parallel_ranges(one.extent, one.grain, &|w, b, e| run(one, w, b, e))?,
            many => {
                self.threads.parallel_for(many.len() as u64, 1, &|w, b, e| {
                    for l in &many[b as usize..e as usize] {
                        if l.extent > 0 {
                            run(l, w, 0, l.extent);
                        }
                    }
                })?;
            }
        }
        Ok(())
    }
}
