//! What a call needs of memory, known before it runs.

use tlc_ir::index::IndexExpr;
use tlc_ir::plan::{DeviceId, PlanOutput, Storage};

use super::packed::packed_bytes;
use super::{Bound, CallState, Description, Executable, RunError, TensorView};
use crate::binding::Sizes;
use crate::device::Room;
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
    /// The inputs, which the caller holds.
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
    /// States of the caller.
    pub states: u64,
    /// What of it is not allocated yet, if none of the executable's other calls runs.
    pub missing: u64,
    /// What the device has, if it has memory of its own.
    pub room: Option<Room>,
}

impl DeviceNeed {
    /// All of it.
    pub fn total(&self) -> u64 {
        [self.arena, self.states]
            .iter()
            .fold(self.kept, |n, b| n.saturating_add(*b))
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
    /// The memory that a call with the given inputs needs, and states that are read, which follow them.
    ///
    /// # Errors
    /// If the shapes do not fit the declared inputs.
    pub fn memory(&self, sources: &[TensorView<'_>]) -> Result<MemoryNeed, RunError> {
        let binding = self.bound(sources.iter().map(Description::from))?;
        self.need(&binding)
    }

    /// As [`Executable::memory`], where those of the plan's states are frozen that `frozen` says, by their numbers.
    ///
    /// # Errors
    /// As [`Executable::memory`].
    pub fn memory_with_frozen(
        &self,
        sources: &[TensorView<'_>],
        frozen: &dyn Fn(usize) -> bool,
    ) -> Result<MemoryNeed, RunError> {
        let binding = self.bound(sources.iter().map(Description::from))?;
        let mut need = self.need(&binding)?;
        need.packed = packed_bytes(binding.packed.iter().filter(|o| frozen(o.state)));
        Ok(need)
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
        self.need(&self.bind_sizes(self.binder().bind(shapes.collect())?)?)
    }

    pub(super) fn need(&self, binding: &Bound) -> Result<MemoryNeed, RunError> {
        let kept = self.kept_on(&binding.sizes, DeviceId::HOST);
        let output = |o: &PlanOutput| pooled_bytes(binding.sizes.slot_bytes[o.slot.0 as usize]);
        // The `init` steps have scratch of their own while they run.
        let areas = if self.plan.init.is_empty() { 1 } else { 2 };
        let declared = self.plan.sources().map(|(_, ty)| ty.dtype.bytes() as u64);
        let elements = |shape: &Vec<usize>| shape.iter().fold(1u64, |n, &e| n.saturating_mul(e as u64));
        let inputs = declared.zip(&binding.sizes.shapes);
        let inputs = inputs.fold(0u64, |n, (width, shape)| {
            n.saturating_add(elements(shape).saturating_mul(width))
        });
        Ok(MemoryNeed {
            constants: self.plan.constants.iter().map(|c| c.bytes().len() as u64).sum(),
            kept,
            arena: binding.sizes.layout.host().bytes,
            scratch: areas * self.scratch_of(binding) as u64,
            inputs,
            outputs: self.plan.outputs.iter().map(output).sum(),
            packed: 0,
            devices: self.device_needs(binding)?,
        })
    }

    fn device_needs(&self, binding: &Bound) -> Result<Vec<DeviceNeed>, RunError> {
        let states = super::lock(&self.states);
        // The one that the next call takes.
        let state = states.last().map(|s| &**s);
        let needs: Vec<DeviceNeed> = (0..self.others.len())
            .map(|k| self.device_need(binding, state, k))
            .collect();
        drop(states);
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
    fn device_need(&self, binding: &Bound, state: Option<&CallState>, other: usize) -> DeviceNeed {
        let device = DeviceId(other as u32 + 1);
        let kept = self.kept_on(&binding.sizes, device);
        let arena = binding.sizes.layout.arena(device).bytes;
        let has = state
            .and_then(|s| s.arenas.get(other)?.as_ref())
            .map_or(0, |b| b.bytes() as u64);
        let mut states = 0u64;
        let mut missing = arena.saturating_sub(has);
        for (number, declared) in self.plan.states.iter().enumerate() {
            if self.plan.slots[declared.slot.0 as usize].device != device {
                continue;
            }
            let bytes = binding.sizes.slot_bytes[declared.slot.0 as usize];
            let has = state
                .and_then(|s| s.states.get(number)?.as_ref())
                .map_or(0, |b| b.bytes() as u64);
            states = states.saturating_add(bytes);
            missing = missing.saturating_add(bytes.saturating_sub(has));
        }
        if self.kept.get().is_none() {
            missing = missing.saturating_add(kept);
        }
        DeviceNeed {
            kept,
            arena,
            states,
            missing,
            room: None,
        }
    }

    /// An error if a call with a state, which is about to begin, needs more memory of a device than is free: said before anything is
    /// allocated or runs. A device is asked where there is something to allocate.
    pub(super) fn check_room(&self, binding: &Bound, state: &CallState) -> Result<(), RunError> {
        for (k, device) in self.others.iter().enumerate() {
            let need = self.device_need(binding, Some(state), k);
            if need.missing == 0 {
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
                });
            }
        }
        Ok(())
    }

    /// What is kept on a device as long as the executable, with what only the `init` steps read.
    fn kept_on(&self, sizes: &Sizes, device: DeviceId) -> u64 {
        let slots = self.plan.slots.iter().zip(&sizes.slot_bytes);
        let kept = slots.filter(|(s, _)| matches!(s.storage, Storage::Persistent) && s.device == device);
        kept.fold(0, |n, (_, &b)| n.saturating_add(b))
    }
}
