//! Calls that show what each step reads and writes: for comparing a compiled graph with its meaning, value by value.
//!
//! Invariant: a watched call runs the very steps of any other call, on the same slots, aliases, arena and threads. All that
//! memory holds garbage first, so that what a step forgets to write shows, whatever an earlier call left there.

use tlc_ir::plan::SlotId;

use super::{Binding, Executable, OutputTensor, RunError, TensorView};

/// What memory holds that nothing has written: as floats, NaN.
const GARBAGE: u8 = 0xFF;

/// The slots of a call, before or after one of its steps.
pub struct Watched<'a> {
    /// Position in the plan's steps.
    pub step: usize,
    /// Whether the step is about to run; otherwise it has.
    pub begins: bool,
    slots: &'a [*mut u8],
    binding: &'a Binding,
}

impl Watched<'_> {
    /// The bytes of a slot: what it holds if a step has written it, and anything otherwise. `None` where the call has no
    /// memory for it.
    pub fn slot(&self, slot: SlotId) -> Option<&[u8]> {
        let address = *self.slots.get(slot.0 as usize)?;
        let bytes = self.binding.sizes.slot_bytes[slot.0 as usize] as usize;
        if address.is_null() {
            return None;
        }
        // SAFETY: the binding gave the slot at least `bytes` bytes of memory that was initialized when it was allocated
        // (zeroed, a result, or the caller's), no step runs while a `Watched` exists, and nothing else writes them.
        Some(unsafe { std::slice::from_raw_parts(address, bytes) })
    }
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
        let binding = self.binding(inputs)?;
        self.run_observed(&binding, inputs, Some(GARBAGE), &mut |step, begins, slots, binding| {
            watch(&Watched {
                step,
                begins,
                slots,
                binding,
            });
        })
    }
}
