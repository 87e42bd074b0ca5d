//! What is computed once per executable: constants too large to fold, weights in another order or dtype.
//!
//! Invariants: the `init` steps run once, whoever calls first, while other callers wait; if they fail, the next call tries
//! again. What only `init` steps read is freed when they are done. Nothing here depends on a binding: the sizes of what
//! lives as long as the executable are constants.

use tlc_ir::plan::Storage;

use super::walk::Finish;
use super::{Bound, CallState, Executable, RunError, lock};
use crate::device::DeviceBuffer;
use crate::memory::AlignedBuffer;

/// Memory that lives as long as the executable.
enum Buffer {
    Host(AlignedBuffer),
    Other(DeviceBuffer),
}

/// What the `init` steps left.
pub(super) struct Kept {
    /// By slot.
    buffers: Vec<Option<Buffer>>,
}

impl Kept {
    /// Where a slot's bytes are. They are only read.
    pub(super) fn address(&self, slot: usize) -> *mut u8 {
        let buffer = self.buffers.get(slot).and_then(Option::as_ref);
        buffer.map_or(std::ptr::null_mut(), |b| match b {
            Buffer::Host(b) => b.as_ptr().cast_mut(),
            Buffer::Other(b) => b.start(),
        })
    }
}

impl Executable {
    /// The results of the `init` steps; the first call computes them. `binding` is any binding of the plan.
    pub(super) fn kept(&self, binding: &Bound) -> Result<&Kept, RunError> {
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

    fn initialize(&self, binding: &Bound) -> Result<Kept, RunError> {
        let _span = tracing::info_span!("init", plan = %self.plan.name, steps = self.plan.init.len()).entered();
        let slots = self.plan.slots.len();
        let mut buffers: Vec<Option<Buffer>> = (0..slots).map(|_| None).collect();
        if self.plan.init.is_empty() {
            return Ok(Kept { buffers });
        }
        let threads = self.threads().threads() as u64;
        let mut state = CallState::new()?;
        state.scratch = AlignedBuffer::zeroed(binding.scratch_bytes.saturating_mul(threads) as usize)?;
        state.frame.fit(binding, self.plan.devices.len());
        for (i, slot) in self.plan.slots.iter().enumerate() {
            match &slot.storage {
                Storage::Constant(k) => {
                    state.frame.slots[i] = self.code.constant(i, &self.plan.constants[*k as usize]);
                }
                Storage::Persistent => {
                    let bytes = binding.sizes.slot_bytes[i] as usize;
                    let buffer = match slot.device.0.checked_sub(1) {
                        None => {
                            let mut buffer = AlignedBuffer::zeroed(bytes)?;
                            state.frame.slots[i] = buffer.as_mut_ptr();
                            Buffer::Host(buffer)
                        }
                        Some(other) => {
                            let buffer = DeviceBuffer::new(&self.others[other as usize], bytes)?;
                            state.frame.slots[i] = buffer.start();
                            Buffer::Other(buffer)
                        }
                    };
                    buffers[i] = Some(buffer);
                }
                Storage::Input(_)
                | Storage::Output(_)
                | Storage::State(_)
                | Storage::Arena
                | Storage::Alias(_)
                | Storage::Lines => {}
            }
        }
        // Dropped before the buffers are, if a step fails.
        let finish = Finish(&self.others);
        let walk = self.walk(binding, &mut state.scratch);
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
            walk.work(step, step.queue, &mut state.frame)?;
            // The steps of `init` run one after another.
            walk.settle(&[(step.on, step.queue)])?;
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
        drop(finish);
        for (buffer, read) in buffers.iter_mut().zip(read) {
            buffer.take_if(|_| !read);
        }
        Ok(Kept { buffers })
    }
}
