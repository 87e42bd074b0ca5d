//! What a call needs of memory, known before it runs.

use tlc_ir::plan::{DeviceId, PlanOutput, Storage};

use super::{Executable, RunError, TensorView};
use crate::memory::pooled_bytes;

/// The memory of the host that a call needs, in bytes. What loops and library calls of unusual size allocate besides is not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryNeed {
    /// Constants as the graph has them: mapped from a file, or in memory.
    pub constants: u64,
    /// What is computed once per executable: constants in another order.
    pub kept: u64,
    /// Values between the steps of a call, placed by the planner.
    pub arena: u64,
    /// Working memory of kernels and products, of all threads together.
    pub scratch: u64,
    /// The inputs, which the caller holds.
    pub inputs: u64,
    /// The outputs, in memory of the pool.
    pub outputs: u64,
}

impl MemoryNeed {
    /// All of it.
    pub fn total(&self) -> u64 {
        let all = [
            self.constants,
            self.kept,
            self.arena,
            self.scratch,
            self.inputs,
            self.outputs,
        ];
        all.iter().fold(0, |n, b| n.saturating_add(*b))
    }
}

impl Executable {
    /// The memory that a call with the given inputs needs.
    ///
    /// # Errors
    /// If the shapes do not fit the declared inputs.
    pub fn memory(&self, inputs: &[TensorView<'_>]) -> Result<MemoryNeed, RunError> {
        let binding = self.binding(inputs)?;
        let slots = self.plan.slots.iter().zip(&binding.sizes.slot_bytes);
        let kept = slots
            .filter(|(s, _)| matches!(s.storage, Storage::Persistent) && s.device == DeviceId::HOST)
            .map(|(_, &b)| b);
        let output = |o: &PlanOutput| pooled_bytes(binding.sizes.slot_bytes[o.slot.0 as usize]);
        // The `init` steps have scratch of their own while they run.
        let areas = if self.plan.init.is_empty() { 1 } else { 2 };
        Ok(MemoryNeed {
            constants: self.plan.constants.iter().map(|c| c.bytes().len() as u64).sum(),
            kept: kept.sum(),
            arena: binding.sizes.layout.host().bytes,
            scratch: areas * self.scratch_of(&binding) as u64,
            inputs: inputs.iter().map(|i| i.data.len() as u64).sum(),
            outputs: self.plan.outputs.iter().map(output).sum(),
        })
    }
}
