//! Calls that read and update states of the caller: memory that is bound for a call as inputs are, and that the plan writes as well, on the
//! device where the plan has it.
//!
//! Invariants:
//! - A state's memory is as large as the plan says under the binding, and nothing but the plan's own steps writes it during the call; the
//!   caller's exclusive borrow says so. What is borrowed otherwise is written by no step.
//! - A call that fails leaves each state as it was where it wrote nothing of it, or wrote a copy of it; it says whether there are others.

use std::sync::Arc;

use smallvec::SmallVec;
use tlc_ir::plan::{PlanState, SlotId, Storage};
use tlc_ir::{DType, IndexExpr};

use super::profile::StepClock;
use super::{
    Begun, Bound, CallState, Description, Destination, Executable, OutputTensor, PackedForms, RunError, Sources,
    StateMemory, TensorView,
};
use crate::device::Queued;

/// The element bytes of a state, in C order.
#[derive(Debug)]
pub enum StateBytes<'a> {
    /// The caller's alone; after the call, those of the new value if the plan sets one.
    Own(&'a mut StateMemory),
    /// Bytes that others may read at the same time, of a state that the plan does not set.
    Shared(&'a StateMemory),
    /// As `Shared`, of a state that stays as it is as long as `packed` lives.
    Frozen {
        /// The bytes.
        memory: &'a StateMemory,
        /// What calls have made of them.
        packed: &'a PackedForms,
    },
}

impl StateBytes<'_> {
    fn memory(&self) -> &StateMemory {
        match self {
            StateBytes::Own(memory) => memory,
            StateBytes::Shared(memory) | StateBytes::Frozen { memory, .. } => memory,
        }
    }
}

/// A state of the caller.
#[derive(Debug)]
pub struct StateView<'a> {
    /// Element type.
    pub dtype: DType,
    /// Extents.
    pub shape: &'a [usize],
    /// Element bytes.
    pub data: StateBytes<'a>,
}

/// Why a call with states failed.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Stopped {
    /// What happened.
    #[source]
    pub error: RunError,
    /// Whether a state may hold another value than before the call: anything.
    pub torn: bool,
}

impl From<RunError> for Stopped {
    /// Nothing was written.
    fn from(error: RunError) -> Stopped {
        Stopped { error, torn: false }
    }
}

impl Executable {
    /// As [`Executable::run`], for a plan with states, which are given in the order of [`Plan::states`](tlc_ir::Plan).
    ///
    /// # Errors
    /// As [`Executable::run`], and if a state does not fit; nothing has run then.
    pub fn run_updating(
        &self,
        inputs: &[TensorView<'_>],
        states: &mut [StateView<'_>],
    ) -> Result<Vec<OutputTensor>, Stopped> {
        let begun = self.begin_updating(inputs, states)?;
        self.call(begun, |binding, call| {
            self.check_states(binding, states)?;
            let mut outputs = self.take_outputs(binding)?;
            let last = self.update((binding, call), inputs, states, |k| outputs[k].data.as_mut_ptr(), None)?;
            self.cut(&mut outputs, last.as_deref());
            Ok(outputs)
        })
    }

    /// As [`Executable::run_into`], for a plan with states, which are given in the order of [`Plan::states`](tlc_ir::Plan).
    ///
    /// # Errors
    /// As [`Executable::run_into`], and if a state does not fit; nothing has run then.
    pub fn run_updating_into(
        &self,
        inputs: &[TensorView<'_>],
        states: &mut [StateView<'_>],
        outputs: &mut [impl Destination],
    ) -> Result<(), Stopped> {
        self.update_into(inputs, states, outputs, None)
    }

    /// As [`Executable::run_updating_into`], with the times of the steps if there is a clock.
    pub(super) fn update_into(
        &self,
        inputs: &[TensorView<'_>],
        states: &mut [StateView<'_>],
        outputs: &mut [impl Destination],
        clock: Option<&mut StepClock<'_>>,
    ) -> Result<(), Stopped> {
        let begun = self.begin_updating(inputs, states)?;
        self.call(begun, |binding, call| {
            self.check_states(binding, states)?;
            self.check_outputs(binding, outputs)?;
            let output = |k: usize| outputs[k].bytes_mut().as_mut_ptr();
            self.update((binding, call), inputs, states, output, clock).map(drop)
        })
    }

    /// The shapes that the plan's states have in a call with these [`sources`](tlc_ir::Plan::sources).
    ///
    /// # Errors
    /// If they do not fit the plan.
    pub fn state_shapes<'s>(&self, sources: impl Into<Sources<'s>>) -> Result<Vec<Vec<usize>>, RunError> {
        let binding = self.bound(sources.into().iter())?;
        let shape = |s: &PlanState| extents(s, &binding).map(Option::unwrap_or_default).collect();
        Ok(self.plan.states.iter().map(shape).collect())
    }

    /// Calls `f` with the values of the plan's symbols, by position, which follow from inputs and states that are read; where data decides, the
    /// largest. Allocates nothing for shapes that are known.
    ///
    /// # Errors
    /// If they do not fit the plan, its guards included.
    pub fn with_sizes<'s, R>(
        &self,
        sources: impl Into<Sources<'s>>,
        f: impl FnOnce(&[i64]) -> R,
    ) -> Result<R, RunError> {
        let binding = self.bound(sources.into().iter())?;
        Ok(f(&binding.sizes.symbols))
    }

    /// Begins a call with inputs and states. Those that are only set are not looked at.
    fn begin_updating(&self, inputs: &[TensorView<'_>], states: &[StateView<'_>]) -> Result<Begun, RunError> {
        if inputs.len() != self.plan.inputs.len() {
            return Err(self.binder().source_count(inputs.len()));
        }
        if states.len() != self.plan.states.len() {
            return Err(self.state_count(states.len()));
        }
        let pairs = self.plan.states.iter().zip(states);
        let read = pairs.filter(|(declared, _)| declared.read);
        let read = read.map(|(_, view)| Description::new(view.dtype, view.shape, view.data.memory().bytes()));
        self.begin_with_states(inputs.iter().map(Description::from).chain(read))
    }

    /// An error if a state does not fit.
    fn check_states(&self, binding: &Bound, states: &[StateView<'_>]) -> Result<(), RunError> {
        for (declared, given) in self.plan.states.iter().zip(states) {
            let found = given.data.memory().bytes();
            let bytes = binding.sizes.slot_bytes[declared.slot.0 as usize];
            let shape_fits = extents(declared, binding).eq(given.shape.iter().map(|&n| Some(n)));
            if declared.ty.dtype != given.dtype || !shape_fits || found as u64 != bytes {
                return Err(RunError::State {
                    name: declared.name.clone(),
                    expected: declared.ty.dtype,
                    shape: extents(declared, binding).map(Option::unwrap_or_default).collect(),
                    dtype: given.dtype,
                    found: given.shape.to_vec(),
                    bytes: found,
                });
            }
            if declared.set.is_some() && !matches!(given.data, StateBytes::Own(_)) {
                return Err(RunError::StateShared {
                    name: declared.name.clone(),
                });
            }
        }
        Ok(())
    }

    /// Runs a call; `output` says where each output's bytes go.
    fn update(
        &self,
        (binding, call): (&Bound, &mut CallState),
        inputs: &[TensorView<'_>],
        states: &mut [StateView<'_>],
        mut output: impl FnMut(usize) -> *mut u8,
        clock: Option<&mut StepClock<'_>>,
    ) -> Result<Option<Arc<Bound>>, Stopped> {
        // The steps that may have run.
        let mut begun = 0;
        let absent = |(declared, given): (&PlanState, &StateView<'_>)| {
            self.elsewhere(declared).is_some_and(|d| !given.data.memory().is_on(d))
        };
        // There is nowhere else to be for what runs on the host alone.
        let known = if self.others.is_empty() { &[][..] } else { &states[..] };
        let absent: SmallVec<[bool; 32]> = self.plan.states.iter().zip(known).map(absent).collect();
        let wanted = |storage: &Storage| matches!(*storage, Storage::State(k) if absent[k as usize]);
        let result = self.size(binding, call, &wanted).and_then(|()| {
            let slots = &mut call.frame.slots;
            for (k, o) in self.plan.outputs.iter().enumerate() {
                slots[o.slot.0 as usize] = output(k);
            }
            for (declared, given) in self.plan.states.iter().zip(&*states) {
                let there = given.data.memory().place(self.elsewhere(declared), declared.read)?;
                slots[declared.slot.0 as usize] = there;
            }
            self.find_packed(binding, states, &mut call.frame)?;
            let address = |k: usize| inputs[k].data.as_ptr().cast_mut();
            self.execute_timed((binding, call), &address, clock, &mut |number, begins, _, _| {
                if begins {
                    begun = number + 1;
                }
            })
        });
        let set = self.plan.states.iter().zip(states).filter(|(s, _)| s.set.is_some());
        let set = set.filter_map(|(declared, given)| match &mut given.data {
            StateBytes::Own(memory) => Some((declared, memory)),
            StateBytes::Shared(_) | StateBytes::Frozen { .. } => None,
        });
        match result {
            Ok(last) => {
                set.for_each(|(declared, memory)| memory.wrote(self.elsewhere(declared)));
                Ok(last)
            }
            Err(error) => {
                let lost = |(declared, memory): (&PlanState, &mut &mut StateMemory)| {
                    self.writes(begun, declared.slot) && !memory.spoiled(self.elsewhere(declared))
                };
                // Each is asked, for those that are not lost are as they were.
                let torn = set.map(lost).fold(false, |torn, lost| torn | lost);
                Err(Stopped { error, torn })
            }
        }
    }

    /// Whether one of the first steps writes a state.
    #[cold]
    fn writes(&self, steps: usize, state: SlotId) -> bool {
        self.plan.steps[..steps].iter().any(|step| {
            let mut any = false;
            step.visit_slots(
                &mut |slot, writes| any |= writes && self.plan.root(slot) == state,
                &self.plan.kernels,
            );
            any
        })
    }

    /// The device that has a state, if it is not the host.
    pub(super) fn elsewhere(&self, state: &PlanState) -> Option<&Arc<dyn Queued>> {
        let device = self.plan.slots[state.slot.0 as usize].device.0.checked_sub(1)?;
        self.others.get(device as usize)
    }

    pub(super) fn state_count(&self, found: usize) -> RunError {
        let expected = self.plan.states.len();
        RunError::StateCount { expected, found }
    }
}

/// The extents of a state under a binding.
fn extents<'a>(state: &'a PlanState, binding: &'a Bound) -> impl Iterator<Item = Option<usize>> + 'a {
    let extent = |d: &IndexExpr| usize::try_from(d.eval_symbols(&binding.sizes.symbols)?).ok();
    state.ty.shape.iter().map(extent)
}
