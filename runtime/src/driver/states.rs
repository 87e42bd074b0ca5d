//! Calls that read and update states of the caller: memory that is bound for a call as inputs are, and that the plan writes as well.
//!
//! Invariants:
//! - A state's buffer is as large as the plan says under the binding, and nothing but the plan's own steps writes it during the call; the
//!   caller's exclusive borrow says so. What is borrowed otherwise is written by no step.
//! - A call that fails says whether the caller's bytes may have been written by then.

use std::sync::Arc;

use tlc_ir::plan::{PlanState, Step};
use tlc_ir::{DType, IndexExpr};

use super::{Bound, Description, Destination, Executable, OutputTensor, PackedForms, RunError, TensorView, grown};
use crate::device::Queued;

/// The element bytes of a state, as those of a [`TensorView`].
#[derive(Debug)]
pub enum StateBytes<'a> {
    /// The caller's alone; after the call, those of the new value if the plan sets one.
    Own(&'a mut [u8]),
    /// Bytes that others may read at the same time, of a state that the plan does not set.
    Shared(&'a [u8]),
    /// As `Shared`, of a state that stays as it is as long as `packed` lives.
    Frozen {
        /// The bytes.
        bytes: &'a [u8],
        /// What calls have made of them.
        packed: &'a PackedForms,
    },
}

impl StateBytes<'_> {
    fn bytes(&self) -> &[u8] {
        match self {
            StateBytes::Own(bytes) => bytes,
            StateBytes::Shared(bytes) | StateBytes::Frozen { bytes, .. } => bytes,
        }
    }

    /// Where they are. Those that are shared may not be written.
    fn start(&mut self) -> *mut u8 {
        match self {
            StateBytes::Own(bytes) => bytes.as_mut_ptr(),
            StateBytes::Shared(bytes) | StateBytes::Frozen { bytes, .. } => bytes.as_ptr().cast_mut(),
        }
    }
}

/// A state of the caller, C-contiguous in host memory.
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
        let binding = self.bound_with_states(inputs, states)?;
        let mut outputs = self.take_outputs(&binding)?;
        let last = self.update(&binding, inputs, states, |k| outputs[k].data.as_mut_ptr())?;
        self.cut(&mut outputs, last.as_deref());
        Ok(outputs)
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
        let binding = self.bound_with_states(inputs, states)?;
        self.check_outputs(&binding, outputs)?;
        self.update(&binding, inputs, states, |k| outputs[k].bytes_mut().as_mut_ptr())
            .map(drop)
    }

    /// The shapes that the plan's states have in a call with these [`sources`](tlc_ir::Plan::sources).
    ///
    /// # Errors
    /// If they do not fit the plan.
    pub fn state_shapes(&self, sources: &[TensorView<'_>]) -> Result<Vec<Vec<usize>>, RunError> {
        let binding = self.bound(sources.iter().map(Description::from))?;
        let shape = |s: &PlanState| extents(s, &binding).map(Option::unwrap_or_default).collect();
        Ok(self.plan.states.iter().map(shape).collect())
    }

    /// Calls `f` with the values of the plan's symbols, by position, which follow from inputs and states that are read; where data decides, the
    /// largest. Allocates nothing for shapes that are known.
    ///
    /// # Errors
    /// If they do not fit the plan, its guards included.
    pub fn with_sizes<R>(&self, sources: &[TensorView<'_>], f: impl FnOnce(&[i64]) -> R) -> Result<R, RunError> {
        let binding = self.bound(sources.iter().map(Description::from))?;
        Ok(f(&binding.sizes.symbols))
    }

    /// The binding for inputs and states, all of which fit the plan.
    fn bound_with_states(&self, inputs: &[TensorView<'_>], states: &[StateView<'_>]) -> Result<Arc<Bound>, RunError> {
        if inputs.len() != self.plan.inputs.len() {
            return Err(self.binder().source_count(inputs.len()));
        }
        if states.len() != self.plan.states.len() {
            return Err(self.state_count(states.len()));
        }
        let described = |view: &StateView<'_>| view.data.bytes().as_ptr().addr();
        let read = self
            .plan
            .states
            .iter()
            .zip(states)
            .filter(|(declared, _)| declared.read);
        let read = read.map(|(_, view)| Description {
            dtype: view.dtype,
            shape: view.shape,
            address: described(view),
            bytes: view.data.bytes().len(),
        });
        let binding = self.bound(inputs.iter().map(Description::from).chain(read))?;
        for (declared, given) in self.plan.states.iter().zip(states) {
            let data = given.data.bytes();
            let (align, bytes) = (given.dtype.bytes(), binding.sizes.slot_bytes[declared.slot.0 as usize]);
            let aligned = data.is_empty() || data.as_ptr().addr() % align == 0;
            let shape_fits = extents(declared, &binding).eq(given.shape.iter().map(|&n| Some(n)));
            if declared.ty.dtype != given.dtype || !shape_fits || data.len() as u64 != bytes || !aligned {
                return Err(RunError::State {
                    name: declared.name.clone(),
                    expected: declared.ty.dtype,
                    shape: extents(declared, &binding).map(Option::unwrap_or_default).collect(),
                    dtype: given.dtype,
                    found: given.shape.to_vec(),
                    bytes: data.len(),
                });
            }
            if declared.set.is_some() && !matches!(given.data, StateBytes::Own(_)) {
                return Err(RunError::StateShared {
                    name: declared.name.clone(),
                });
            }
        }
        Ok(binding)
    }

    /// Runs a call; `output` says where each output's bytes go.
    fn update(
        &self,
        binding: &Bound,
        inputs: &[TensorView<'_>],
        states: &mut [StateView<'_>],
        mut output: impl FnMut(usize) -> *mut u8,
    ) -> Result<Option<Arc<Bound>>, Stopped> {
        let mut progress = Progress::Before;
        let result = self.with_state(binding, |call| {
            let slots = &mut call.frame.slots;
            for (k, o) in self.plan.outputs.iter().enumerate() {
                slots[o.slot.0 as usize] = output(k);
            }
            call.states.resize_with(self.plan.states.len(), || None);
            for ((declared, given), buffer) in self.plan.states.iter().zip(states.iter_mut()).zip(&mut call.states) {
                slots[declared.slot.0 as usize] = match self.elsewhere(declared) {
                    None => given.data.start(),
                    Some(device) => {
                        let data = given.data.bytes();
                        let there = grown(buffer, device, data.len())?;
                        if declared.read {
                            // SAFETY: the buffer has room for the state, and nothing else knows of it.
                            let copied = unsafe { device.upload(0, data.as_ptr(), there, data.len()) };
                            // Also where it failed: no device may still read what is the caller's again.
                            copied.and(device.settle(0))?;
                        }
                        there
                    }
                };
            }
            self.find_packed(binding, states, &mut call.frame)?;
            let address = |k: usize| inputs[k].data.as_ptr().cast_mut();
            // Where calls are recorded for a device, nobody says which step it is at.
            progress = match self.others.is_empty() {
                true => Progress::Before,
                false => Progress::Somewhere,
            };
            let last = self.execute(binding, call, &address, &mut |number, begins, _, _| {
                if begins {
                    progress = Progress::Step(number);
                }
            })?;
            for ((declared, given), buffer) in self.plan.states.iter().zip(states.iter_mut()).zip(&call.states) {
                if let (Some(device), Some(buffer), Some(_), StateBytes::Own(data)) =
                    (self.elsewhere(declared), buffer, declared.set, &mut given.data)
                {
                    progress = Progress::Fetching;
                    // SAFETY: the call is over, and the buffer has as many bytes as the state.
                    let copied = unsafe { device.download(0, buffer.start(), data.as_mut_ptr(), data.len()) };
                    copied.and(device.settle(0))?;
                }
            }
            Ok(last)
        });
        result.map_err(|error| Stopped {
            torn: self.wrote(progress),
            error,
        })
    }

    /// Whether a call that got so far may have written a state in the host's memory.
    #[cold]
    fn wrote(&self, progress: Progress) -> bool {
        let begun = match progress {
            Progress::Before => 0,
            Progress::Step(number) => number + 1,
            Progress::Somewhere => self.plan.steps.len(),
            Progress::Fetching => return true,
        };
        let writes = |step: &Step| {
            let mut any = false;
            step.visit_slots(
                &mut |slot, writes| {
                    let root = self.plan.root(slot);
                    any |= writes
                        && self.plan.slots[root.0 as usize].device.0 == 0
                        && self.plan.states.iter().any(|s| s.slot == root);
                },
                &self.plan.kernels,
            );
            any
        };
        self.plan.steps[..begun].iter().any(writes)
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

/// How far a call got.
#[derive(Clone, Copy)]
enum Progress {
    /// No step has begun.
    Before,
    /// That step has begun, and none behind it.
    Step(usize),
    /// Any steps may have run.
    Somewhere,
    /// All steps have run; new values are on their way from a device.
    Fetching,
}

/// The extents of a state under a binding.
fn extents<'a>(state: &'a PlanState, binding: &'a Bound) -> impl Iterator<Item = Option<usize>> + 'a {
    let extent = |d: &IndexExpr| usize::try_from(d.eval_symbols(&binding.sizes.symbols)?).ok();
    state.ty.shape.iter().map(extent)
}
