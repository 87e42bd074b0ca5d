//! Calls that update states of the caller: memory that is bound for a call as inputs are, and that the plan writes as well.
//!
//! Invariant: a state's buffer is as large as the plan says under the binding, and nothing but the plan's own steps writes it during
//! the call; the caller's exclusive borrow says so.

use std::sync::Arc;

use tlc_ir::plan::PlanState;
use tlc_ir::{DType, IndexExpr};

use super::{Executable, OutputTensor, RunError, TensorView, grown};
use crate::device::Queued;

/// A state of the caller, C-contiguous in host memory.
#[derive(Debug)]
pub struct StateView<'a> {
    /// Element type.
    pub dtype: DType,
    /// Extents.
    pub shape: &'a [usize],
    /// Element bytes, as those of a [`TensorView`]; after the call, those of the new value if the plan sets one.
    pub data: &'a mut [u8],
}

impl Executable {
    /// As [`Executable::run`], for a plan with states, which are given in the order of [`Plan::states`](tlc_ir::Plan).
    ///
    /// # Errors
    /// As [`Executable::run`], and if a state does not fit; nothing has run then. When a call fails otherwise, its states hold
    /// anything.
    pub fn run_updating(
        &self,
        inputs: &[TensorView<'_>],
        states: &mut [StateView<'_>],
    ) -> Result<Vec<OutputTensor>, RunError> {
        let binding = self.bound(inputs)?;
        if states.len() != self.plan.states.len() {
            return Err(self.state_count(states.len()));
        }
        for (declared, given) in self.plan.states.iter().zip(states.iter()) {
            let extent = |d: &IndexExpr| usize::try_from(d.eval_symbols(&binding.sizes.symbols)?).ok();
            let extents = || declared.ty.shape.iter().map(extent);
            let (align, bytes) = (given.dtype.bytes(), binding.sizes.slot_bytes[declared.slot.0 as usize]);
            let aligned = given.data.is_empty() || given.data.as_ptr().addr() % align == 0;
            let fits = extents().eq(given.shape.iter().map(|&n| Some(n))) && given.data.len() as u64 == bytes;
            if declared.ty.dtype != given.dtype || !fits || !aligned {
                return Err(RunError::State {
                    name: declared.name.clone(),
                    expected: declared.ty.dtype,
                    shape: extents().map(Option::unwrap_or_default).collect(),
                    dtype: given.dtype,
                    found: given.shape.to_vec(),
                    bytes: given.data.len(),
                });
            }
        }
        let mut outputs = self.take_outputs(&binding)?;
        let last = self.with_state(&binding, |call| {
            let slots = &mut call.frame.slots;
            for (o, out) in self.plan.outputs.iter().zip(&mut outputs) {
                slots[o.slot.0 as usize] = out.data.as_mut_ptr();
            }
            call.states.resize_with(self.plan.states.len(), || None);
            for ((declared, given), buffer) in self.plan.states.iter().zip(states.iter_mut()).zip(&mut call.states) {
                slots[declared.slot.0 as usize] = match self.elsewhere(declared) {
                    None => given.data.as_mut_ptr(),
                    Some(device) => {
                        let there = grown(buffer, device, given.data.len())?;
                        if declared.read {
                            // SAFETY: the buffer has room for the state, and nothing else knows of it.
                            let copied = unsafe { device.upload(0, given.data.as_ptr(), there, given.data.len()) };
                            // Also where it failed: no device may still read what is the caller's again.
                            copied.and(device.settle(0))?;
                        }
                        there
                    }
                };
            }
            let address = |k: usize| inputs[k].data.as_ptr().cast_mut();
            let last = self.execute(&binding, call, &address, &mut |_, _, _, _| {})?;
            for ((declared, given), buffer) in self.plan.states.iter().zip(states).zip(&call.states) {
                if let (Some(device), Some(buffer), Some(_)) = (self.elsewhere(declared), buffer, declared.set) {
                    // SAFETY: the call is over, and the buffer has as many bytes as the state.
                    let copied =
                        unsafe { device.download(0, buffer.start(), given.data.as_mut_ptr(), given.data.len()) };
                    copied.and(device.settle(0))?;
                }
            }
            Ok(last)
        })?;
        self.cut(&mut outputs, last.as_deref());
        Ok(outputs)
    }

    /// The device that has a state during a call, if it is not the host, where the caller has it between calls.
    fn elsewhere(&self, state: &PlanState) -> Option<&Arc<dyn Queued>> {
        let device = self.plan.slots[state.slot.0 as usize].device.0.checked_sub(1)?;
        self.others.get(device as usize)
    }

    pub(super) fn state_count(&self, found: usize) -> RunError {
        let expected = self.plan.states.len();
        RunError::StateCount { expected, found }
    }
}
