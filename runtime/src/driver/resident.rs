//! Calls whose inputs and outputs stay in the memory of a device.
//!
//! Invariants:
//! - A tensor's memory is written by the call that makes it, and by one that it is given away to; else it is only read.
//! - What the host gives, and what is not aligned, is copied to memory of the call's state before the first step, in the device's first
//!   queue, for which the other queues wait.
//! - A call whose steps are all the device's returns when the device has been given them; what the host gave is copied by then. Memory
//!   remembers what still reads or writes it, for which the queues of whoever touches it next wait, and the host where it reads it. It is
//!   given back with that. An error shows where something is waited for.
//! - Any other call returns when the device is done with it.

use std::ffi::c_void;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use tlc_ir::plan::Storage;
use tlc_ir::target::GPU_ACCESS_BYTES;
use tlc_ir::{DType, HostTensor};

use super::state_memory::same_memory;
use super::walk::{Finish, slot_text};
use super::{Bound, Description, Executable, MemoryNeed, RunError, TensorView, grown, located_behind, lock};
use crate::binding::steps::BoundWork;
use crate::cuda;
use crate::device::{Mark, Queued, RECORDED, Use};

/// A C-contiguous tensor in the memory of a device. Clones share the memory.
#[derive(Clone)]
pub struct DeviceTensor {
    dtype: DType,
    shape: Vec<usize>,
    bytes: usize,
    memory: Arc<Memory>,
}

/// The queue of copies to the host that nobody waits for yet, beside those that steps are in.
const DOWNLOADS: u32 = RECORDED - 1;

/// Memory of a device, whoever it belongs to.
struct Memory {
    device: Arc<dyn Queued>,
    start: *mut u8,
    /// What the device allocated, and takes back.
    room: Option<usize>,
    uses: Mutex<Uses>,
    /// Whom it belongs to otherwise.
    _owner: Option<Box<dyn Send + Sync>>,
}

/// A copy to the host's memory that is on its way; see [`DeviceTensor::to_host_async`]. Dropping it waits for it.
pub struct Download {
    tensor: DeviceTensor,
    /// Memory that the device copies to by itself, and a mark behind that.
    there: Option<(*mut u8, Mark)>,
}

// SAFETY: what the address points to is read by whoever has the handle alone; devices are `Sync`.
unsafe impl Send for Download {}
// SAFETY: as above.
unsafe impl Sync for Download {}

// SAFETY: the address is handed around and never read or written through here; devices are `Sync`.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

/// What may still use memory.
#[derive(Default)]
struct Uses {
    /// What writes it, and the last step of that for messages.
    written: Option<(Use, Arc<str>)>,
    /// What reads it, or had it before.
    others: Vec<Use>,
}

impl Memory {
    fn new(device: &Arc<dyn Queued>, bytes: usize) -> Result<Memory, RunError> {
        let (start, others) = device.take_in_use(bytes)?;
        Ok(Memory {
            start,
            device: Arc::clone(device),
            room: Some(bytes),
            uses: Mutex::new(Uses { written: None, others }),
            _owner: None,
        })
    }

    /// Has a queue of a device wait for what writes it.
    fn before_reading(&self, device: &Arc<dyn Queued>, queue: u32) -> Result<(), RunError> {
        let written = lock(&self.uses).written.as_ref().map(|w| w.0.clone());
        written.map_or(Ok(()), |w| w.before(device, queue))
    }

    /// Has a queue of a device wait for all that uses it.
    fn before_writing(&self, device: &Arc<dyn Queued>, queue: u32) -> Result<(), RunError> {
        let others = lock(&self.uses).others.clone();
        others.iter().try_for_each(|u| u.before(device, queue))?;
        self.before_reading(device, queue)
    }

    /// Notes what reads it from now on.
    fn is_read(&self, by: &Use) {
        let others = &mut lock(&self.uses).others;
        match others.iter_mut().find(|u| u.is_beside(by)) {
            Some(earlier) => *earlier = by.clone(),
            None => {
                others.retain(|u| !u.is_known_done());
                others.push(by.clone());
            }
        }
    }

    /// Notes what writes it from now on, which comes behind all other uses.
    fn is_written(&self, by: &Use, step: &Arc<str>) {
        *lock(&self.uses) = Uses {
            written: Some((by.clone(), Arc::clone(step))),
            others: Vec::new(),
        };
    }

    /// Has the host wait for what writes it.
    fn wait(&self) -> Result<(), RunError> {
        let written = lock(&self.uses).written.clone();
        match written {
            Some((by, step)) => by.reach().map_err(|e| located_behind(e, &step)),
            None => Ok(()),
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let uses = self.uses.get_mut().unwrap_or_else(PoisonError::into_inner);
        let mut all = std::mem::take(&mut uses.others);
        all.extend(uses.written.take().map(|w| w.0));
        all.retain(|u| !u.is_known_done());
        match self.room {
            // SAFETY: it was taken there, and what the device was given that uses it is told.
            Some(bytes) => unsafe { self.device.put_back_in_use(self.start, bytes, all) },
            // Its owner knows nothing of them. What failed uses it no longer.
            None => all.iter().for_each(|u| drop(u.reach())),
        }
    }
}

impl DeviceTensor {
    /// A copy of a tensor of the host.
    ///
    /// # Errors
    /// If the device has no memory for it, or fails.
    pub fn upload(device: &Arc<dyn Queued>, tensor: TensorView<'_>) -> Result<DeviceTensor, RunError> {
        let memory = Memory::new(device, tensor.data.len())?;
        memory.before_writing(device, 0)?;
        // SAFETY: the memory has the bytes and nothing else knows of it; the host's is borrowed until the device is done.
        let copied = unsafe { device.upload(0, tensor.data.as_ptr(), memory.start, tensor.data.len()) };
        copied.and(device.settle(0))?;
        Ok(DeviceTensor {
            dtype: tensor.dtype,
            shape: tensor.shape.to_vec(),
            bytes: tensor.data.len(),
            memory: Arc::new(memory),
        })
    }

    /// A tensor in memory that others allocated in the primary context of a GPU, as cudarc, candle and PyTorch do. `owner` is dropped when
    /// no clone is left. The stream is waited for: what it was given before is done when this returns; null is the default stream.
    ///
    /// # Safety
    /// From `address` on the GPU of that number has the elements, in C order, as long as `owner` lives, bools as bytes of 0 and 1; nobody writes them
    /// meanwhile but what the stream was given before, and the stream is one of the GPU's primary context.
    ///
    /// # Errors
    /// If the GPU cannot be used, the stream failed, or the address is not aligned to the elements.
    pub unsafe fn from_raw(
        ordinal: u32,
        address: u64,
        (dtype, shape): (DType, &[usize]),
        stream: *mut c_void,
        owner: impl Send + Sync + 'static,
    ) -> Result<DeviceTensor, RunError> {
        let bytes = tlc_ir::tensor::element_count(shape).and_then(|n| n.checked_mul(dtype.bytes()));
        let bytes = bytes.ok_or_else(|| RunError::Overflow {
            name: format!("{dtype}{shape:?}"),
        })?;
        let align = dtype.bytes();
        if bytes > 0 && (address == 0 || !address.is_multiple_of(align as u64)) {
            return Err(RunError::Device {
                device: format!("cuda:{ordinal}"),
                message: format!("{address:#x} is no address of elements of {dtype}; expected a multiple of {align}"),
            });
        }
        // SAFETY: the caller's promise.
        unsafe { cuda::wait_for(ordinal, stream)? };
        Ok(DeviceTensor {
            dtype,
            shape: shape.to_vec(),
            bytes,
            memory: Arc::new(Memory {
                device: cuda::shared(ordinal)?,
                start: std::ptr::without_provenance_mut(address as usize),
                room: None,
                uses: Mutex::default(),
                _owner: Some(Box::new(owner)),
            }),
        })
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Extents.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Where its elements are in the memory of the device, for whom reads them while this tensor lives. The host waits for the call that
    /// computes them, so that they are there; [`DeviceTensor::synchronize`] says if that failed.
    pub fn as_raw(&self) -> u64 {
        // Then there are no elements, as `synchronize` says.
        let _ = self.memory.wait();
        self.memory.start.addr() as u64
    }

    /// Waits for the call that computes it.
    ///
    /// # Errors
    /// If that failed.
    pub fn synchronize(&self) -> Result<(), RunError> {
        self.memory.wait()
    }

    /// The device.
    pub fn device(&self) -> &Arc<dyn Queued> {
        &self.memory.device
    }

    /// A copy in the host's memory.
    ///
    /// # Errors
    /// If there is no memory for it, or the device fails.
    pub fn to_host(&self) -> Result<HostTensor, RunError> {
        let mut tensor = HostTensor::zeros(self.dtype, &self.shape)?;
        let (device, bytes) = (&self.memory.device, tensor.bytes_mut());
        // The copy would not wait for a device that failed.
        self.memory.wait()?;
        // SAFETY: the tensor has those bytes, and the host's memory lives until the device is done.
        let copied = unsafe { device.download(0, self.memory.start, bytes.as_mut_ptr(), bytes.len()) };
        copied.and(device.settle(0))?;
        Ok(tensor)
    }

    /// Begins a copy in the host's memory, while the device and the caller go on. The tensor's memory stays as it is until the copy is done:
    /// given away to a call, it is not overwritten.
    ///
    /// # Errors
    /// If there is no memory that the device can copy to, or the device fails.
    pub fn to_host_async(&self) -> Result<Download, RunError> {
        let device = &self.memory.device;
        let mut download = Download {
            tensor: self.clone(),
            there: None,
        };
        if let Some(recorder) = device.recorder().filter(|_| self.bytes > 0) {
            let there = recorder.allocate_host(self.bytes)?;
            // From here on the handle gives it back.
            let there = &mut download.there.insert((there, Mark::default()));
            self.memory.before_reading(device, DOWNLOADS)?;
            // SAFETY: there is room for the bytes, and nothing else knows of it; the handle keeps the tensor.
            unsafe { device.download(DOWNLOADS, self.memory.start, there.0, self.bytes)? };
            there.1 = device.mark(DOWNLOADS)?;
        }
        Ok(download)
    }

    /// Leaves what the memory belongs to with it.
    pub(super) fn own(&mut self, owner: impl Send + Sync + 'static) {
        if let Some(memory) = Arc::get_mut(&mut self.memory) {
            memory._owner = Some(Box::new(owner));
        }
    }

    /// Its memory, if nobody else has it and it has that many bytes.
    fn into_memory(self, bytes: usize) -> Result<Memory, DeviceTensor> {
        if self.bytes != bytes || self.memory.room.is_none() {
            return Err(self);
        }
        Arc::try_unwrap(self.memory).map_err(|memory| DeviceTensor { memory, ..self })
    }
}

impl Download {
    /// Waits for the copy.
    ///
    /// # Errors
    /// If there is no memory for it, or the device failed.
    pub fn wait(self) -> Result<HostTensor, RunError> {
        let Some((there, mark)) = self.there else {
            return self.tensor.to_host();
        };
        let mut tensor = HostTensor::zeros(self.tensor.dtype, &self.tensor.shape)?;
        self.tensor.memory.device.reach(mark)?;
        self.tensor.memory.wait()?;
        let bytes = tensor.bytes_mut();
        // SAFETY: both have the bytes, and the device is done with them.
        unsafe { bytes.as_mut_ptr().copy_from_nonoverlapping(there, bytes.len()) };
        Ok(tensor)
    }
}

impl Drop for Download {
    fn drop(&mut self) {
        let device = &self.tensor.memory.device;
        if let (Some((there, _)), Some(recorder)) = (self.there, device.recorder()) {
            // Whatever became of it is nobody's concern; a device that is lost does nothing any longer.
            let _ = device.settle(DOWNLOADS);
            // SAFETY: it was allocated there, and the device is done with it.
            unsafe { recorder.release_host(there) };
        }
    }
}

impl fmt::Debug for Download {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Download({:?})", self.tensor)
    }
}

impl fmt::Debug for DeviceTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "DeviceTensor({}{:?} at {:#x})",
            self.dtype,
            self.shape,
            self.memory.start.addr()
        )
    }
}

/// An input of [`Executable::run_resident`].
#[derive(Debug)]
pub enum ResidentInput<'a> {
    /// In the host's memory, and copied.
    Host(TensorView<'a>),
    /// In the device's memory, and stays the caller's.
    Lent(&'a DeviceTensor),
    /// In the device's memory, and may be overwritten.
    Donated(DeviceTensor),
}

impl ResidentInput<'_> {
    fn tensor(&self) -> Option<&DeviceTensor> {
        match self {
            ResidentInput::Host(_) => None,
            ResidentInput::Lent(tensor) => Some(tensor),
            ResidentInput::Donated(tensor) => Some(tensor),
        }
    }
}

impl<'a> From<&'a ResidentInput<'_>> for Description<'a> {
    fn from(input: &'a ResidentInput<'_>) -> Description<'a> {
        let tensor = |t: &'a DeviceTensor| Description {
            dtype: t.dtype,
            shape: &t.shape,
            address: t.memory.start.addr(),
            bytes: t.bytes,
        };
        match input {
            ResidentInput::Host(view) => view.into(),
            ResidentInput::Lent(t) => tensor(t),
            ResidentInput::Donated(t) => tensor(t),
        }
    }
}

/// The memory of an input that is given away, if nobody else has it and it has so many bytes.
fn given(input: &mut Option<ResidentInput<'_>>, bytes: usize) -> Option<Memory> {
    match input.take()? {
        ResidentInput::Donated(tensor) => match tensor.into_memory(bytes) {
            Ok(memory) => return Some(memory),
            Err(tensor) => *input = Some(ResidentInput::Donated(tensor)),
        },
        other => *input = Some(other),
    }
    None
}

impl Executable {
    /// Whether a call with its tensors on the device returns before the device is done: all of its steps are that device's, and nothing of
    /// them is in memory of the host.
    fn goes_on(&self, binding: &Bound) -> bool {
        let [device] = &self.others[..] else { return false };
        let alone = |work: &BoundWork<_>| match work {
            BoundWork::Launches { .. } => true,
            BoundWork::Product { product, .. } => product.epilogue.as_ref().is_none_or(|e| e.library.is_some()),
            BoundWork::Copy(c) => c.from == 1 && c.to == 1,
            // The number of an iteration, and what functions work on, are the host's.
            BoundWork::Loop(_) | BoundWork::Call(_) => false,
        };
        let mut steps = binding.steps.iter();
        device.runs_behind_calls()
            && self.plan.states.is_empty()
            && steps.all(|s| s.on == 1 && !s.awaited_by_host && alone(&s.work))
    }

    /// The memory that a [resident](Executable::run_resident) call with these inputs needs, they and its outputs included.
    ///
    /// # Errors
    /// If the shapes do not fit the declared inputs.
    pub fn resident_memory(&self, inputs: &[ResidentInput<'_>]) -> Result<MemoryNeed, RunError> {
        self.need(&*self.binding(inputs.iter().map(Description::from))?, &|_| true)
    }

    /// As [`Executable::run`], for a plan whose inputs and outputs are in the memory of its first device beside the host. An output is
    /// computed in the memory of an input that is given away where the plan allows it. The call returns before the device is done, if all
    /// of it is the device's to do.
    ///
    /// # Errors
    /// As [`Executable::run`], and if the plan is another, or an input is in the memory of another device.
    pub fn run_resident(&self, inputs: Vec<ResidentInput<'_>>) -> Result<Vec<DeviceTensor>, RunError> {
        let slots = self.plan.slots.iter();
        let on_host =
            |s: &tlc_ir::plan::Slot| matches!(s.storage, Storage::Input(_) | Storage::Output(_)) && s.device.0 != 1;
        let (Some(device), false) = (self.others.first(), slots.into_iter().any(on_host)) else {
            return Err(RunError::NoDevice);
        };
        for (declared, input) in self.plan.inputs.iter().zip(&inputs) {
            if let Some(tensor) = input.tensor()
                && !same_memory(device, tensor.device())
            {
                return Err(RunError::OtherDevice {
                    name: declared.name.clone(),
                });
            }
        }
        let begun = self.begin(inputs.iter().map(Description::from))?;
        let binding = Arc::clone(&begun.binding);
        let mut addresses: Vec<*mut u8> = inputs
            .iter()
            .map(|i| i.tensor().map_or(std::ptr::null_mut(), |t| t.memory.start))
            .collect();
        let mut inputs: Vec<Option<ResidentInput<'_>>> = inputs.into_iter().map(Some).collect();
        let mut outputs: Vec<Option<Memory>> = Vec::with_capacity(self.plan.outputs.len());
        for (k, o) in self.plan.outputs.iter().enumerate() {
            let bytes = binding.sizes.slot_bytes[o.slot.0 as usize] as usize;
            let mut givers = self.plan.donations.iter().filter(|d| d.1 as usize == k);
            outputs.push(givers.find_map(|&(input, _)| given(&mut inputs[input as usize], bytes)));
        }
        // Kernels read several elements at once, which memory of others need not be aligned for.
        let unaligned = |at: &*mut u8| !at.addr().is_multiple_of(GPU_ACCESS_BYTES as usize);
        let of_host = |input: &Option<ResidentInput<'_>>| matches!(input, Some(ResidentInput::Host(_)));
        let copied = inputs.iter().zip(&addresses);
        let copied: Vec<bool> = copied.map(|(input, at)| of_host(input) || unaligned(at)).collect();
        let made: Vec<bool> = outputs.iter().map(Option::is_none).collect();
        let wanted = |storage: &Storage| match *storage {
            Storage::Input(k) => copied[k as usize],
            Storage::Output(k) => made[k as usize],
            _ => false,
        };
        let goes_on = self.goes_on(&binding);
        let (last, end) = self.call(begun, |binding, state| -> Result<_, RunError> {
            self.size(binding, state, &wanted)?;
            state.goes_on = goes_on;
            for (o, memory) in self.plan.outputs.iter().zip(&mut outputs) {
                let slot = o.slot.0 as usize;
                let memory = match memory {
                    Some(memory) => memory,
                    None => {
                        let made = Memory::new(device, binding.sizes.slot_bytes[slot] as usize);
                        memory.insert(made.map_err(|e| e.needed_for(|| slot_text(&self.plan, slot)))?)
                    }
                };
                state.frame.slots[slot] = memory.start;
            }
            state.inputs.resize_with(inputs.len(), || None);
            // Also where something fails: no device may still read what is the caller's again.
            let finish = Finish(&self.others);
            let tensors = || inputs.iter().flatten().filter_map(ResidentInput::tensor);
            tensors().try_for_each(|t| t.memory.before_reading(device, 0))?;
            outputs.iter().flatten().try_for_each(|m| m.before_writing(device, 0))?;
            if self.others.len() > 1 {
                // Other devices come to them by themselves.
                device.settle(0)?;
            }
            let mut given = false;
            for (k, input) in inputs.iter().enumerate().filter(|i| copied[i.0]) {
                let of_host = match input {
                    Some(ResidentInput::Host(view)) => Some(view),
                    _ => None,
                };
                let bytes = match (of_host, input.as_ref().and_then(ResidentInput::tensor)) {
                    (Some(view), _) => view.data.len(),
                    (None, tensor) => tensor.map_or(0, |t| t.bytes),
                };
                let there = grown(&mut state.inputs[k], device, bytes)?;
                // SAFETY: the buffer has room for it, and nothing else knows of it.
                unsafe {
                    match of_host {
                        Some(view) => device.upload(0, view.data.as_ptr(), there, bytes)?,
                        None => device.copy(0, addresses[k], there, bytes)?,
                    }
                }
                addresses[k] = there;
                given |= of_host.is_some();
            }
            let others = || binding.queues.iter().filter(|q| q.0 == 1 && q.1 != 0).map(|q| q.1);
            let behind = match given || others().next().is_some() {
                true => Some(device.mark(0)?),
                false => None,
            };
            if let Some(behind) = behind {
                others().try_for_each(|q| device.wait(q, behind))?;
            }
            let last = self.execute(binding, state, &|k| addresses[k], &mut |_, _, _, _| {})?;
            if !goes_on {
                drop(finish);
                return Ok((last, None));
            }
            // The next call finds its queues behind all of this one.
            for q in others() {
                let end = device.mark(q)?;
                device.wait(0, end)?;
            }
            let end = device.mark(0)?;
            others().try_for_each(|q| device.wait(q, end))?;
            // The host's memory is the caller's again.
            if let Some(behind) = behind.filter(|_| given) {
                device.reach(behind)?;
            }
            std::mem::forget(finish);
            Ok((last, Some(Use::new(device, end))))
        })?;
        if let Some(end) = &end {
            let tensors = inputs.iter().flatten().filter_map(ResidentInput::tensor);
            tensors.for_each(|t| t.memory.is_read(end));
            let made = outputs.iter().flatten();
            made.for_each(|m| m.is_written(end, self.last_step()));
        }
        let sizes = last.as_deref().map_or(&binding.sizes, |last| &last.sizes);
        let tensors = self
            .plan
            .outputs
            .iter()
            .zip(&sizes.output_shapes)
            .zip(outputs.into_iter().flatten());
        let tensors = tensors.map(|((o, shape), memory)| DeviceTensor {
            dtype: o.ty.dtype,
            shape: shape.clone(),
            bytes: sizes.slot_bytes[o.slot.0 as usize] as usize,
            memory: Arc::new(memory),
        });
        Ok(tensors.collect())
    }
}
