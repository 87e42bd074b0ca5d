//! What is computed once per executable: constants too large to fold, weights in another order or dtype.
//!
//! Invariants: the `init` steps run once, whoever calls first, while other callers wait; if they fail, the next call tries
//! again. What only `init` steps read is freed when they are done. Nothing here depends on a binding: the sizes of what
//! lives as long as the executable are constants.

use tlc_ir::plan::Storage;

use super::repeat::constant;
use super::{Binding, CallState, Executable, Frame, RunError, lock};
use crate::memory::AlignedBuffer;

/// What the `init` steps left.
pub(super) struct Kept {
    /// By slot.
    buffers: Vec<Option<AlignedBuffer>>,
}

impl Kept {
    /// Where a slot's bytes are. They are only read.
    pub(super) fn address(&self, slot: usize) -> *mut u8 {
        let buffer = self.buffers.get(slot).and_then(Option::as_ref);
        buffer.map_or(std::ptr::null_mut(), |b| b.as_ptr().cast_mut())
    }
}

impl Executable {
    /// The results of the `init` steps; the first call computes them. `binding` is any binding of the plan.
    pub(super) fn kept(&self, binding: &Binding) -> Result<&Kept, RunError> {
        if let Some(kept) = self.kept.get() {
            return Ok(kept);
        }
        let _one_at_a_time = lock(&self.initializing);
        if let Some(kept) = self.kept.get() {
            return Ok(kept);
        }
        let kept = self.initialize(binding)?;
        Ok(self.kept.get_or_init(|| kept))
    }

    fn initialize(&self, binding: &Binding) -> Result<Kept, RunError> {
        let _span = tracing::info_span!("init", plan = %self.plan.name, steps = self.plan.init.len()).entered();
        let slots = self.plan.slots.len();
        let mut buffers: Vec<Option<AlignedBuffer>> = (0..slots).map(|_| None).collect();
        if self.plan.init.is_empty() {
            return Ok(Kept { buffers });
        }
        let threads = self.threads.threads() as u64;
        let mut state = CallState {
            arena: AlignedBuffer::zeroed(0)?,
            scratch: AlignedBuffer::zeroed(binding.scratch_bytes.saturating_mul(threads) as usize)?,
            frame: Frame::default(),
        };
        state.frame.fit(binding);
        for (i, slot) in self.plan.slots.iter().enumerate() {
            match &slot.storage {
                Storage::Constant(k) => {
                    state.frame.slots[i] = constant(&self.code, i, &self.plan.constants[*k as usize]);
                }
                Storage::Persistent => {
                    let mut buffer = AlignedBuffer::zeroed(binding.sizes.slot_bytes[i] as usize)?;
                    state.frame.slots[i] = buffer.as_mut_ptr();
                    buffers[i] = Some(buffer);
                }
                Storage::Input(_) | Storage::Output(_) | Storage::State(_) | Storage::Arena | Storage::Alias(_) => {}
            }
        }
        let (arena, scratch) = (state.arena.as_mut_ptr(), state.scratch.as_mut_ptr());
        let run = self.steps_of(binding, scratch);
        let mut read = vec![false; slots];
        let mut last = vec![None; slots];
        let (init, steps) = (self.plan.init.iter().enumerate(), &self.plan.steps);
        for (number, step) in init {
            let mut see = |s, _| last[self.plan.root(s).0 as usize] = Some(number);
            step.visit_slots(&mut see, &self.plan.kernels);
        }
        for step in steps {
            step.visit_slots(
                &mut |s, _| read[self.plan.root(s).0 as usize] = true,
                &self.plan.kernels,
            );
        }
        for (number, step) in binding.init.iter().enumerate() {
            run.step(step, &mut state.frame, arena)?;
            // Pages of a file that nothing reads again need not stay beside what was made of them.
            for (i, slot) in self.plan.slots.iter().enumerate() {
                if let Storage::Constant(k) = slot.storage
                    && last[i] == Some(number)
                    && !read[i]
                {
                    crate::mmap::release(self.plan.constants[k as usize].bytes());
                }
            }
        }
        for (buffer, read) in buffers.iter_mut().zip(read) {
            buffer.take_if(|_| !read);
        }
        Ok(Kept { buffers })
    }
}
