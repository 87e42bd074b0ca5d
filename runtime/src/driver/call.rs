//! What calls need besides inputs and outputs, kept from one call to the next.
//!
//! A call takes a state, which remembers the binding of the call that had it before. Where that binding fits this call's inputs too,
//! nothing is looked up and nothing is sized: the way of a warm call takes no lock.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex};

use tlc_ir::plan::DeviceId;

use super::frame::Frame;
use super::memory_need::Wanted;
use super::record::Recordings;
use super::sources::Description;
use super::{Bound, Executable, RunError, UNWRITTEN, grown, lock};
use crate::device::DeviceBuffer;
use crate::memory::AlignedBuffer;

/// What one call needs besides its inputs and outputs.
pub(super) struct CallState {
    pub(super) arena: AlignedBuffer,
    /// The arenas of the devices beside the host.
    pub(super) arenas: Vec<Option<DeviceBuffer>>,
    /// By input: what the host gave of it, where the plan has it on another device.
    pub(super) inputs: Vec<Option<DeviceBuffer>>,
    pub(super) scratch: AlignedBuffer,
    pub(super) frame: Frame,
    pub(super) recordings: Recordings,
    /// Whether the host waits for each step before it goes on, for who looks at memory or the time between steps.
    pub(super) step_by_step: bool,
    /// Whether the call returns before devices are done with it.
    pub(super) goes_on: bool,
    /// The binding of the last call that had this state.
    last: Option<Arc<Bound>>,
    /// Whether frame, arena and scratch are those of the binding that the state was taken for.
    pub(super) sized: bool,
}

// SAFETY: the pointers are rewritten at the start of each call, by the thread that owns the state for that call.
unsafe impl Send for CallState {}

impl CallState {
    pub(super) fn new() -> Result<CallState, RunError> {
        Ok(CallState {
            arena: AlignedBuffer::zeroed(0)?,
            arenas: Vec::new(),
            inputs: Vec::new(),
            scratch: AlignedBuffer::zeroed(0)?,
            frame: Frame::default(),
            recordings: Recordings::default(),
            step_by_step: false,
            goes_on: false,
            last: None,
            sized: false,
        })
    }
}

/// The states that no call has.
#[derive(Default)]
pub(super) struct IdleStates {
    /// The one that came back last, or null: calls that follow one another take and return it by one atomic operation each.
    latest: AtomicPtr<CallState>,
    // Boxed, because a pointer to it is what `latest` has.
    #[allow(clippy::vec_box, reason = "moving a pointer takes less than moving a state")]
    others: Mutex<Vec<Box<CallState>>>,
}

impl IdleStates {
    #[inline]
    fn take(&self) -> Option<Box<CallState>> {
        let latest = self.latest.swap(null_mut(), Ordering::Acquire);
        if latest.is_null() {
            return lock(&self.others).pop();
        }
        // SAFETY: it is from `Box::into_raw` in `give`, and whoever swapped it out is the only one that has it.
        Some(unsafe { Box::from_raw(latest) })
    }

    #[inline]
    fn give(&self, state: Box<CallState>) {
        let before = self.latest.swap(Box::into_raw(state), Ordering::AcqRel);
        if !before.is_null() {
            // SAFETY: as in `take`.
            lock(&self.others).push(unsafe { Box::from_raw(before) });
        }
    }

    /// Calls `f` with the state that the next call takes, if there is one.
    pub(super) fn with_next<T>(&self, f: impl FnOnce(Option<&CallState>) -> T) -> T {
        let next = self.take();
        let result = f(next.as_deref());
        if let Some(next) = next {
            self.give(next);
        }
        result
    }
}

impl Drop for IdleStates {
    fn drop(&mut self) {
        drop(self.take());
    }
}

/// Whether extents are the same. They are few: comparing them here takes less than a call that compares memory.
#[inline]
pub(super) fn same_extents(a: &[usize], b: &[usize]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a == b)
}

/// A call that has its sizes, and a state.
pub(super) struct Begun {
    pub(super) binding: Arc<Bound>,
    state: Box<CallState>,
}

impl Executable {
    /// Begins a call with these inputs of a plan that has no states.
    #[inline]
    pub(super) fn begin<'s>(&self, inputs: impl Iterator<Item = Description<'s>> + Clone) -> Result<Begun, RunError> {
        match self.plan.states.is_empty() {
            true => self.begin_with_states(inputs),
            false => Err(self.state_count(0)),
        }
    }

    /// Begins a call with these inputs, and states that are read.
    #[inline]
    pub(super) fn begin_with_states<'s>(
        &self,
        sources: impl Iterator<Item = Description<'s>> + Clone,
    ) -> Result<Begun, RunError> {
        let mut state = match self.idle_states.take() {
            Some(state) => state,
            None => Box::new(CallState::new()?),
        };
        if let Some(binding) = state.last.take_if(|last| fits(last, sources.clone())) {
            return Ok(Begun { binding, state });
        }
        state.sized = false;
        match self.bound(sources) {
            Ok(binding) => Ok(Begun { binding, state }),
            Err(error) => {
                self.idle_states.give(state);
                Err(error)
            }
        }
    }

    /// Calls `f` with the state of a call, and keeps the state for the next one.
    #[inline]
    pub(super) fn call<T, E>(
        &self,
        begun: Begun,
        f: impl FnOnce(&Bound, &mut CallState) -> Result<T, E>,
    ) -> Result<T, E> {
        let Begun { binding, mut state } = begun;
        let result = f(&binding, &mut state);
        state.last = Some(binding);
        self.idle_states.give(state);
        result
    }

    /// Makes a state fit the binding of its call. `wanted` is what the call will allocate on devices besides.
    #[inline]
    pub(super) fn size(&self, binding: &Bound, state: &mut CallState, wanted: Wanted<'_>) -> Result<(), RunError> {
        state.step_by_step = false;
        state.goes_on = false;
        if !state.sized || !self.others.is_empty() {
            self.grow(binding, state, wanted)?;
        }
        if cfg!(debug_assertions) {
            state.scratch.as_mut_slice().fill(UNWRITTEN);
        }
        Ok(())
    }

    #[inline(never)]
    fn grow(&self, binding: &Bound, state: &mut CallState, wanted: Wanted<'_>) -> Result<(), RunError> {
        let scratch = self.scratch_of(binding);
        let arena = binding.sizes.layout.host().bytes as usize;
        state.frame.fit(binding, self.plan.devices.len());
        // The arenas only grow.
        if state.arena.len() < arena {
            state.arena = AlignedBuffer::zeroed(arena)?;
        }
        state.frame.arenas[0] = state.arena.as_mut_ptr();
        if !self.others.is_empty() {
            self.grow_arenas(binding, state, wanted)?;
        }
        if state.scratch.len() < scratch {
            state.scratch = AlignedBuffer::zeroed(scratch)?;
        }
        state.sized = true;
        Ok(())
    }

    /// Finds room for the arenas of the devices beside the host.
    fn grow_arenas(&self, binding: &Bound, state: &mut CallState, wanted: Wanted<'_>) -> Result<(), RunError> {
        state.arenas.resize_with(self.others.len(), || None);
        self.check_room(binding, state, wanted)?;
        for (k, (device, buffer)) in self.others.iter().zip(&mut state.arenas).enumerate() {
            let number = DeviceId(k as u32 + 1);
            let bytes = binding.sizes.layout.arena(number).bytes as usize;
            let grown = grown(buffer, device, bytes);
            state.frame.arenas[k + 1] = grown.map_err(|e| e.needed_for(|| self.fullest(binding, number)))?;
        }
        Ok(())
    }
}

/// Whether inputs, and states that are read, are those that a binding is for: in number, types, extents, bytes and alignment.
#[inline]
fn fits<'s>(binding: &Bound, mut sources: impl Iterator<Item = Description<'s>>) -> bool {
    let known = binding.sources.iter().zip(&binding.sizes.shapes);
    let all = known.into_iter().all(|(known, shape)| {
        sources.next().is_some_and(|found| {
            let aligned = found.bytes == 0 || found.address & (known.dtype.bytes() - 1) == 0;
            found.dtype == known.dtype && found.bytes == known.bytes && aligned && same_extents(found.shape, shape)
        })
    });
    all && sources.next().is_none()
}
