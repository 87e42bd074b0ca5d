//! What a call needs of memory, known before it runs.

use std::sync::Arc;

use smallvec::SmallVec;
use tlc_ir::index::IndexExpr;
use tlc_ir::plan::{DeviceId, Slot, Storage};

use super::packed::packed_bytes;
use super::walk::step_label;
use super::{Bound, CallState, Executable, RunError, Sources, scratch_of_all};
use crate::binding::Sizes;
use crate::device::{DeviceBuffer, Queued, Room};
use crate::memory::pooled_bytes;

/// The memory that a call needs, in bytes: the host's, and that of each device beside it. What loops and library calls of unusual size
/// allocate besides is not counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryNeed {
    /// Constants as the graph has them: mapped from a file, or in memory.
    pub constants: u64,
    /// What is computed once per executable: constants in another order.
    pub kept: u64,
    /// Values between the steps of a call, placed by the planner.
    pub arena: u64,
    /// Working memory of kernels and products, of all threads together.
    pub scratch: u64,
    /// The inputs, which the caller holds, and states that are read. What is computed on another device is counted there: the copy that
    /// the caller may have of it in the host's memory is not.
    pub inputs: u64,
    /// The outputs, in memory of the pool.
    pub outputs: u64,
    /// Copies of frozen states in the layout in which products read them, made by the first call that needs them and shared by all states
    /// that share the entries.
    pub packed: u64,
    /// On the devices beside the host, in the plan's order.
    pub devices: Vec<DeviceNeed>,
}

/// The memory of a device beside the host that a call needs, in bytes; what an executable has there already is part of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceNeed {
    /// Constants, and what is computed once per executable.
    pub kept: u64,
    /// Copies of inputs and outputs, and values between the steps of a call, placed by the planner.
    pub arena: u64,
    /// Inputs that stay there between calls, or are copied there from the host.
    pub inputs: u64,
    /// Outputs that stay there.
    pub outputs: u64,
    /// States of the caller, which stay there between calls.
    pub states: u64,
    /// What of it is not allocated yet, if none of the executable's other calls runs.
    pub missing: u64,
    /// What the device has, if it has memory of its own.
    pub room: Option<Room>,
}

fn is_output(slot: &Slot) -> bool {
    matches!(slot.storage, Storage::Output(_))
}

/// Whether a call has to find memory for a tensor of the caller's that is on a device beside the host.
pub(super) type Wanted<'a> = &'a dyn Fn(&Storage) -> bool;

impl DeviceNeed {
    /// All of it.
    pub fn total(&self) -> u64 {
        let all = [self.kept, self.arena, self.inputs, self.outputs, self.states];
        all.iter().fold(0, |n, b| n.saturating_add(*b))
    }
}

impl MemoryNeed {
    /// All of the host's.
    pub fn total(&self) -> u64 {
        let all = [
            self.constants,
            self.kept,
            self.arena,
            self.scratch,
            self.inputs,
            self.outputs,
            self.packed,
        ];
        all.iter().fold(0, |n, b| n.saturating_add(*b))
    }

    /// An error if the host or a device needs more than so many bytes, of the one that needs the most.
    ///
    /// # Errors
    /// [`RunError::MemoryLimit`].
    pub fn within(&self, limit: u64) -> Result<(), RunError> {
        let (mut needed, mut device) = (self.total(), None);
        for other in &self.devices {
            if other.total() > needed {
                needed = other.total();
                device = other.room.as_ref().map(|room| room.device.clone());
            }
        }
        match needed > limit {
            true => Err(RunError::MemoryLimit { needed, limit, device }),
            false => Ok(()),
        }
    }
}

impl Executable {
    /// The memory that a call with the given inputs needs, and states that are read. `resident` says which of the plan's states, by number,
    /// have memory on a device already, and `frozen` which of them nobody changes any longer.
    ///
    /// # Errors
    /// If the shapes do not fit the declared inputs.
    pub fn memory<'s>(
        &self,
        sources: impl Into<Sources<'s>>,
        resident: &dyn Fn(usize, &Arc<dyn Queued>) -> bool,
        frozen: &dyn Fn(usize) -> bool,
    ) -> Result<MemoryNeed, RunError> {
        let binding = self.bound(sources.into().iter())?;
        let wanted = |storage: &Storage| match *storage {
            Storage::State(k) => {
                let device = self.elsewhere(&self.plan.states[k as usize]);
                device.is_none_or(|d| !resident(k as usize, d))
            }
            _ => true,
        };
        Ok(MemoryNeed {
            packed: packed_bytes(binding.packed.iter().filter(|o| frozen(o.state))),
            ..self.need(&binding, &wanted)?
        })
    }

    /// Bytes of the copies of each state, by number, that calls have if it is frozen. For a plan whose sizes no input decides;
    /// otherwise, or where there are none, empty.
    ///
    /// # Errors
    /// If a size overflows.
    pub fn packed_if_frozen(&self) -> Result<Vec<(usize, u64)>, RunError> {
        let by_input = |d: &IndexExpr| d.as_const().is_none();
        if self.plan.sources().any(|(_, ty)| ty.shape.iter().any(by_input)) {
            return Ok(Vec::new());
        }
        let extent = |e: &IndexExpr| e.as_const().and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
        let shapes = self.plan.sources().map(|(_, ty)| ty.shape.iter().map(extent).collect());
        let binding = self.bind_sizes(self.binder().bind(shapes.collect())?)?;
        let of = |state: usize| packed_bytes(binding.packed.iter().filter(move |o| o.state == state));
        let all = (0..self.plan.states.len()).map(|state| (state, of(state)));
        Ok(all.filter(|(_, bytes)| *bytes > 0).collect())
    }

    /// As [`Executable::memory`], of a call whose sizes no input decides.
    ///
    /// # Errors
    /// If a size is a symbol.
    pub fn fixed_memory(&self) -> Result<MemoryNeed, RunError> {
        let extent = |e: &IndexExpr| e.as_const().and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
        let shapes = self.plan.sources().map(|(_, ty)| ty.shape.iter().map(extent).collect());
        self.need(&self.bind_sizes(self.binder().bind(shapes.collect())?)?, &|_| true)
    }

    /// What a call with a binding needs, without copies of frozen states.
    pub(super) fn need(&self, binding: &Bound, wanted: Wanted<'_>) -> Result<MemoryNeed, RunError> {
        Ok(MemoryNeed {
            devices: self.device_needs(binding, wanted)?,
            ..self.host_need(binding)
        })
    }

    /// As [`Executable::need`], of the host alone: no device is asked.
    pub(super) fn host_need(&self, binding: &Bound) -> MemoryNeed {
        let kept = self.kept_on(&binding.sizes, DeviceId::HOST);
        let of_host = self.plan.slots.iter().zip(&binding.sizes.slot_bytes);
        let of_host = of_host.filter(|(slot, _)| slot.device == DeviceId::HOST);
        let (mut inputs, mut outputs) = (0u64, 0u64);
        for (slot, &bytes) in of_host {
            match slot.storage {
                Storage::Input(_) => inputs = inputs.saturating_add(bytes),
                Storage::State(k) if self.plan.states[k as usize].read => inputs = inputs.saturating_add(bytes),
                Storage::Output(_) => outputs = outputs.saturating_add(pooled_bytes(bytes)),
                _ => {}
            }
        }
        MemoryNeed {
            constants: self.plan.constants.iter().map(|c| c.bytes().len() as u64).sum(),
            kept,
            arena: binding.sizes.layout.host().bytes,
            scratch: scratch_of_all(&self.plan, binding.scratch_bytes, self.threads().threads()),
            inputs,
            outputs,
            packed: 0,
            devices: Vec::new(),
        }
    }

    fn device_needs(&self, binding: &Bound, wanted: Wanted<'_>) -> Result<Vec<DeviceNeed>, RunError> {
        let needs: Vec<DeviceNeed> = self.idle_states.with_next(|state| {
            let need = |k| self.device_need(binding, state, wanted, k);
            (0..self.others.len()).map(need).collect()
        });
        let asked = needs.into_iter().zip(&self.others);
        asked
            .map(|(need, device)| {
                Ok(DeviceNeed {
                    room: device.room()?,
                    ..need
                })
            })
            .collect()
    }

    /// What a call with a state needs on the device after the host of that number.
    fn device_need(&self, binding: &Bound, state: Option<&CallState>, wanted: Wanted<'_>, other: usize) -> DeviceNeed {
        let device = DeviceId(other as u32 + 1);
        let mut need = DeviceNeed {
            kept: self.kept_on(&binding.sizes, device),
            arena: binding.sizes.layout.arena(device).bytes,
            ..DeviceNeed::default()
        };
        let has =
            |buffer: Option<&Option<DeviceBuffer>>| buffer.and_then(Option::as_ref).map_or(0, |b| b.bytes() as u64);
        let arena = has(state.and_then(|s| s.arenas.get(other)));
        need.missing = need.arena.saturating_sub(arena);
        if self.kept.get().is_none() {
            let there = self.kept_there_already(&binding.sizes.slot_bytes, device);
            need.missing = need.missing.saturating_add(need.kept.saturating_sub(there));
        }
        let here = self.plan.slots.iter().zip(&binding.sizes.slot_bytes);
        for (slot, &bytes) in here.filter(|(slot, _)| slot.device == device) {
            let (sum, there) = match slot.storage {
                Storage::Input(k) => (&mut need.inputs, has(state.and_then(|s| s.inputs.get(k as usize)))),
                Storage::Output(_) => (&mut need.outputs, 0),
                Storage::State(_) => (&mut need.states, 0),
                _ => continue,
            };
            *sum = sum.saturating_add(bytes);
            if wanted(&slot.storage) {
                need.missing = need.missing.saturating_add(bytes.saturating_sub(there));
            }
        }
        need
    }

    /// An error if a call with a state, which is about to begin, needs more memory of a device than is free: said before anything is
    /// allocated or runs. A device is asked where there is something to allocate.
    pub(super) fn check_room(&self, binding: &Bound, state: &CallState, wanted: Wanted<'_>) -> Result<(), RunError> {
        for (k, device) in self.others.iter().enumerate() {
            let need = self.device_need(binding, Some(state), wanted, k);
            if need.missing == 0 || need.missing <= self.spare_outputs(binding, wanted, k) {
                continue;
            }
            let Some(room) = device.room()? else { continue };
            if need.missing > room.free {
                return Err(RunError::DeviceTooSmall {
                    device: room.device,
                    peak: need.total(),
                    missing: need.missing,
                    free: room.free,
                    total: room.total,
                    what: None,
                }
                .needed_for(|| self.fullest(binding, DeviceId(k as u32 + 1))));
            }
        }
        Ok(())
    }

    /// The step of a call at which values in the arena of a device have the most bytes, for messages.
    pub(super) fn fullest(&self, binding: &Bound, device: DeviceId) -> String {
        let mut change = vec![0i128; self.plan.steps.len() + 1];
        let lives = self.plan.lives().into_iter().zip(&self.plan.slots);
        for ((life, slot), &bytes) in lives.zip(&binding.sizes.slot_bytes) {
            if let (Some((first, last)), Storage::Arena) = (life, &slot.storage)
                && slot.device == device
            {
                change[first] += i128::from(bytes);
                change[last + 1] -= i128::from(bytes);
            }
        }
        let alive = change.iter().scan(0, |alive, c| {
            *alive += c;
            Some(*alive)
        });
        let mut most = (0, 0);
        for (step, bytes) in alive.enumerate() {
            if bytes > most.1 {
                most = (step, bytes);
            }
        }
        format!("what is alive at step {}, {}", most.0, step_label(&self.plan, most.0))
    }

    /// Bytes of outputs on the device after the host of that number that are wanted there and need no new memory.
    fn spare_outputs(&self, binding: &Bound, wanted: Wanted<'_>, other: usize) -> u64 {
        let outputs = self.plan.slots.iter().zip(&binding.sizes.slot_bytes);
        let here =
            outputs.filter(|(slot, _)| slot.device.0 as usize == other + 1 && is_output(slot) && wanted(&slot.storage));
        let sizes: SmallVec<[usize; 16]> = here.map(|(_, bytes)| *bytes as usize).collect();
        self.others[other].spare(&sizes)
    }

    /// What is kept on a device as long as the executable, with what only the `init` steps read.
    fn kept_on(&self, sizes: &Sizes, device: DeviceId) -> u64 {
        let slots = self.plan.slots.iter().zip(&sizes.slot_bytes);
        let kept = slots.filter(|(s, _)| matches!(s.storage, Storage::Persistent) && s.device == device);
        kept.fold(0, |n, (_, &b)| n.saturating_add(b))
    }
}
