//! Calls that show what each step reads and writes: for comparing a compiled graph with its meaning, value by value.
//!
//! Invariant: a watched call runs the very steps of any other call, on the same slots, aliases, arena and threads. All that
//! memory holds garbage first, so that what a step forgets to write shows, whatever an earlier call left there.

use std::cell::OnceCell;

use tlc_ir::plan::SlotId;

use super::{Bound, Executable, OutputTensor, RunError, TensorView};
use crate::device::Queued;
use crate::memory::AlignedBuffer;

/// What memory holds that nothing has written: as floats, NaN.
const GARBAGE: u8 = 0xFF;

/// The slots of a call, before or after one of its steps.
pub struct Watched<'a> {
    /// Position in the plan's steps.
    pub step: usize,
    /// Whether the step is about to run; otherwise it has.
    pub begins: bool,
    slots: &'a [*mut u8],
    binding: &'a Bound,
    executable: &'a Executable,
    /// What slots of other devices than the host hold, as far as it was asked for.
    copies: Vec<OnceCell<Option<AlignedBuffer>>>,
}

impl Watched<'_> {
    /// The bytes of a slot: what it holds if a step has written it, and anything otherwise. `None` where the call has no
    /// memory for it, or its device does not hand it out.
    pub fn slot(&self, slot: SlotId) -> Option<&[u8]> {
        let address = *self.slots.get(slot.0 as usize)?;
        let bytes = self.binding.sizes.slot_bytes[slot.0 as usize] as usize;
        if address.is_null() {
            return None;
        }
        let device = self.executable.plan.slots[slot.0 as usize].device.0;
        if let Some(other) = device.checked_sub(1) {
            let fetch = || fetched(&*self.executable.others[other as usize], address, bytes);
            return self.copies[slot.0 as usize]
                .get_or_init(fetch)
                .as_ref()
                .map(AlignedBuffer::as_slice);
        }
        // SAFETY: the binding gave the slot at least `bytes` bytes of memory that was initialized when it was allocated
        // (zeroed, a result, or the caller's), no step runs while a `Watched` exists, and nothing else writes them.
        Some(unsafe { std::slice::from_raw_parts(address, bytes) })
    }
}

/// What a device has at an address.
fn fetched(device: &dyn Queued, from: *const u8, bytes: usize) -> Option<AlignedBuffer> {
    let mut copy = AlignedBuffer::zeroed(bytes).ok()?;
    // SAFETY: the slot has so many bytes there, and no step runs.
    let copied = unsafe { device.download(0, from, copy.as_mut_ptr(), bytes) };
    // Also where it failed: nothing may write to memory that is gone.
    let settled = device.settle(0);
    copied.and(settled).ok().map(|()| copy)
}

impl Executable {
    /// As [`Executable::run`], and calls `watch` before and after each step of the call.
    ///
    /// # Errors
    /// As [`Executable::run`].
    pub fn run_watched(
        &self,
        inputs: &[TensorView<'_>],
        watch: &mut dyn FnMut(&Watched<'_>),
    ) -> Result<Vec<OutputTensor>, RunError> {
        self.run_observed(inputs, Some(GARBAGE), &mut |step, begins, slots, binding| {
            watch(&Watched {
                step,
                begins,
                slots,
                binding,
                executable: self,
                copies: match self.others.is_empty() {
                    true => Vec::new(),
                    false => slots.iter().map(|_| OnceCell::new()).collect(),
                },
            });
        })
    }
}
