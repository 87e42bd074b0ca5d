//! Running the steps of a plan, and of the bodies of its loops.

use tlc_ir::plan::{Plan, Storage};

use super::repeat::constant;
use super::{Binding, BoundLaunch, BoundStep, Code, Frame, RunError};
use crate::gemm::multiply;
use crate::jit::Args;
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
                    let at = self.binding.layout.offsets[i].unwrap_or(0) as usize;
                    // SAFETY: the layout places every arena slot inside `arena_bytes`, which the arena has.
                    frame.slots[i] = unsafe { arena.add(at) };
                }
                Storage::Persistent => frame.slots[i] = kept(i),
                Storage::Output(_) | Storage::Alias(_) => {}
            }
        }
        for (i, &root) in self.binding.root.iter().enumerate() {
            if root != i {
                frame.slots[i] = frame.slots[root];
            }
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
            BoundStep::Launches(launches) => {
                for l in launches {
                    for (k, &slot) in l.args.iter().enumerate() {
                        frame.args[l.first_arg + k] = frame.slots[slot];
                    }
                }
                self.launch(launches, &frame.args)?;
                Ok(None)
            }
            BoundStep::Gemm(g) => {
                let product = g.product(&frame.slots);
                // SAFETY: the three matrices lie inside their slots by construction of the matrix form, the result overlaps
                // neither operand, and every worker has `scratch_bytes` of scratch, which the binding made enough for the
                // cut.
                unsafe {
                    multiply(
                        &product,
                        g.cut(),
                        self.threads,
                        self.scratch,
                        self.scratch_bytes as usize,
                    )?
                };
                Ok(None)
            }
            BoundStep::Copy { src, dst, bytes } => {
                // SAFETY: both slots hold `bytes` bytes under this binding, and are different buffers.
                unsafe { std::ptr::copy_nonoverlapping(frame.slots[*src], frame.slots[*dst], *bytes) };
                Ok(None)
            }
            BoundStep::Loop(l) => self.repeat(l, frame, arena).map(|()| None),
            BoundStep::Call(c) => c.run(&frame.slots, self.threads),
        }
    }

    fn launch(&self, launches: &[BoundLaunch], args: &[*mut u8]) -> Result<(), RunError> {
        struct Shared<'a> {
            args: &'a [*mut u8],
            scratch: *mut u8,
        }
        // SAFETY: workers only read the pointers; what they point to is split between them by the kernels' invariant that
        // parallel iterations write disjoint memory, and each worker has a scratch area of its own.
        unsafe impl Sync for Shared<'_> {}
        let (scratch, scratch_bytes) = (self.scratch, self.scratch_bytes);
        let shared = Shared { args, scratch };
        let kernels = &self.code.kernels;
        let run = |l: &BoundLaunch, worker: usize, begin: u64, end: u64| {
            let shared = &shared;
            let args = Args {
                buffers: shared.args[l.first_arg..].as_ptr(),
                symbols: l.symbols.as_ptr(),
                // SAFETY: the scratch area has `scratch_bytes` for each of the pool's workers.
                scratch: unsafe { shared.scratch.add(worker * scratch_bytes as usize) },
            };
            // SAFETY: the binding evaluated every parameter's length and gave each a buffer of at least that size, and
            // `begin..end` lies in the kernel's parallel range.
            unsafe { kernels[l.kernel].call(&args, begin as i64, end as i64) };
        };
        match launches {
            [one] if one.extent <= one.grain || self.threads.threads() == 1 => {
                if one.extent > 0 {
                    run(one, 0, 0, one.extent);
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
