//! Calls whose inputs and outputs stay in the memory of a device.
//!
//! Invariants:
//! - A tensor's memory is written by the call that makes it, and by one that it is given away to; else it is only read.
//! - What the host gives, and what is not aligned, is copied to memory of the call's state before the first step, in the device's first
//!   queue, for which the other queues wait.
//! - When a call returns, the device is done with it.

use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

use tlc_ir::plan::Storage;
use tlc_ir::target::GPU_ACCESS_BYTES;
use tlc_ir::{DType, HostTensor};

use super::state_memory::same_memory;
use super::walk::Finish;
use super::{Description, Executable, MemoryNeed, RunError, TensorView, grown};
use crate::cuda;
use crate::device::{Mark, Queued, RECORDED};

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

impl Memory {
    fn new(device: &Arc<dyn Queued>, bytes: usize) -> Result<Memory, RunError> {
        Ok(Memory {
            start: device.take(bytes)?,
            device: Arc::clone(device),
            room: Some(bytes),
            _owner: None,
        })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Some(bytes) = self.room {
            // SAFETY: it was taken there, and calls wait for what they gave the device before they end.
            unsafe { self.device.put_back(self.start, bytes) };
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
    /// From `address` on the GPU of that number has the elements, in C order, as long as `owner` lives; nobody writes them meanwhile but
    /// what the stream was given before, and the stream is one of the GPU's primary context.
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

    /// Where its elements are in the memory of the device, for whom reads them while this tensor lives: calls have ended when they return,
    /// so there is nothing to wait for.
    pub fn as_raw(&self) -> u64 {
        self.memory.start.addr() as u64
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
            self.as_raw()
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
    /// The memory that a [resident](Executable::run_resident) call with these inputs needs, they and its outputs included.
    ///
    /// # Errors
    /// If the shapes do not fit the declared inputs.
    pub fn resident_memory(&self, inputs: &[ResidentInput<'_>]) -> Result<MemoryNeed, RunError> {
        self.need(&*self.binding(inputs.iter().map(Description::from))?, &|_| true)
    }

    /// As [`Executable::run`], for a plan whose inputs and outputs are in the memory of its first device beside the host. An output is
    /// computed in the memory of an input that is given away where the plan allows it.
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
        let binding = self.binding(inputs.iter().map(Description::from))?;
        for (declared, input) in self.plan.inputs.iter().zip(&inputs) {
            if let Some(tensor) = input.tensor()
                && !same_memory(device, tensor.device())
            {
                return Err(RunError::OtherDevice {
                    name: declared.name.clone(),
                });
            }
        }
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
        let last = self.with_state(&binding, &wanted, |state| {
            for (o, memory) in self.plan.outputs.iter().zip(&mut outputs) {
                let slot = o.slot.0 as usize;
                let memory = match memory {
                    Some(memory) => memory,
                    None => memory.insert(Memory::new(device, binding.sizes.slot_bytes[slot] as usize)?),
                };
                state.frame.slots[slot] = memory.start;
            }
            state.inputs.resize_with(inputs.len(), || None);
            // Also where something fails: no device may still read what is the caller's again.
            let finish = Finish(&self.others);
            let mut uploaded = false;
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
                uploaded = true;
            }
            if uploaded {
                let behind = device.mark(0)?;
                let others = binding.queues.iter().filter(|q| q.0 == 1 && q.1 != 0);
                others.into_iter().try_for_each(|q| device.wait(q.1, behind))?;
            }
            let last = self.execute(&binding, state, &|k| addresses[k], &mut |_, _, _, _| {});
            drop(finish);
            last
        })?;
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
