//! The bytes of a state, wherever they are: in the host's memory, in that of devices, or in several at once.
//!
//! Invariants:
//! - All whole copies hold the same bytes; without any, the bytes are zeros. While a call writes one of them, the others keep what was
//!   there before, and when it ends well, that one alone is whole.
//! - A copy is made where somebody asks for it, from one that there is. What several callers share is only read.
//! - Memory of a device belongs to the state and to no executable. It stays where it is as long as the state, so that what was recorded
//!   with its address can be given again, unless another device writes the state.

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::{RunError, lock};
use crate::cuda;
use crate::device::{DeviceBuffer, Queued};
use crate::memory::{AlignedBuffer, AllocError};

/// The bytes of a state. Whoever has it alone may have calls write it.
pub struct StateMemory {
    bytes: usize,
    host: OnceLock<AlignedBuffer>,
    copies: Mutex<Vec<DeviceCopy>>,
}

/// Memory of a device for the bytes.
struct DeviceCopy {
    buffer: DeviceBuffer,
    /// Whether they are there; otherwise it is only room for them.
    whole: bool,
}

/// Whether two devices have one memory.
pub(super) fn same_memory(a: &Arc<dyn Queued>, b: &Arc<dyn Queued>) -> bool {
    Arc::ptr_eq(a, b) || a.ordinal().is_some() && a.ordinal() == b.ordinal()
}

/// What memory is allocated from that outlives an executable with that device.
fn owner(device: &Arc<dyn Queued>) -> Result<Arc<dyn Queued>, RunError> {
    match device.ordinal() {
        Some(ordinal) => cuda::shared(ordinal),
        None => Ok(Arc::clone(device)),
    }
}

impl StateMemory {
    /// So many zeros, for which there is no memory yet.
    #[must_use]
    pub fn zeros(bytes: usize) -> StateMemory {
        StateMemory {
            bytes,
            host: OnceLock::new(),
            copies: Mutex::default(),
        }
    }

    /// A copy of bytes.
    ///
    /// # Errors
    /// If memory for them is refused.
    pub fn of(bytes: &[u8]) -> Result<StateMemory, AllocError> {
        let mut memory = StateMemory::zeros(bytes.len());
        memory.overwrite(bytes)?;
        Ok(memory)
    }

    /// How many bytes there are.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes that it takes in the memory of devices, those included that hold no value at present.
    pub fn device_bytes(&self) -> u64 {
        lock(&self.copies).iter().map(|c| c.buffer.bytes() as u64).sum()
    }

    /// Whether the bytes are in the host's memory.
    pub fn is_on_host(&self) -> bool {
        self.host.get().is_some()
    }

    /// Whether it has memory on a device.
    pub fn is_on(&self, device: &Arc<dyn Queued>) -> bool {
        lock(&self.copies)
            .iter()
            .any(|c| same_memory(c.buffer.device(), device))
    }

    /// The bytes in the host's memory, native-endian. Those that are on a device alone are copied, and the copy stays until a call on a
    /// device writes the state.
    ///
    /// # Errors
    /// If memory for the copy is refused, or the device fails.
    pub fn on_host(&self) -> Result<&[u8], RunError> {
        Ok(self.host_buffer()?.as_slice())
    }

    fn host_buffer(&self) -> Result<&AlignedBuffer, RunError> {
        match self.host.get() {
            Some(buffer) => Ok(buffer),
            None => self.fetched(&lock(&self.copies)),
        }
    }

    /// As [`StateMemory::host_buffer`], by whoever holds the lock.
    #[cold]
    fn fetched(&self, copies: &[DeviceCopy]) -> Result<&AlignedBuffer, RunError> {
        if let Some(buffer) = self.host.get() {
            return Ok(buffer);
        }
        let mut buffer = AlignedBuffer::zeroed(self.bytes)?;
        download(copies, buffer.as_mut_slice())?;
        Ok(self.host.get_or_init(|| buffer))
    }

    /// Copies the bytes to memory of as many, and keeps no copy.
    ///
    /// # Errors
    /// If the device that has them fails.
    ///
    /// # Panics
    /// If there is room for another number of bytes.
    pub fn read_into(&self, to: &mut [u8]) -> Result<(), RunError> {
        assert_eq!(to.len(), self.bytes, "room for the bytes");
        match self.host.get() {
            Some(buffer) => to.copy_from_slice(buffer.as_slice()),
            None if download(&lock(&self.copies), to)? => {}
            None => to.fill(0),
        }
        Ok(())
    }

    /// Gives it other bytes, as many. Memory of devices is kept as room.
    ///
    /// # Errors
    /// If memory for them is refused; the bytes are then as they were.
    ///
    /// # Panics
    /// If there are more or fewer.
    pub fn overwrite(&mut self, bytes: &[u8]) -> Result<(), AllocError> {
        assert_eq!(bytes.len(), self.bytes, "as many bytes");
        match self.host.get_mut() {
            Some(buffer) => buffer.as_mut_slice().copy_from_slice(bytes),
            None => {
                let mut buffer = AlignedBuffer::zeroed(bytes.len())?;
                buffer.as_mut_slice().copy_from_slice(bytes);
                self.host = OnceLock::from(buffer);
            }
        }
        self.wrote(None);
        Ok(())
    }

    fn copies_mut(&mut self) -> &mut Vec<DeviceCopy> {
        self.copies.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the bytes are in the memory of a device, or else of the host, for a call that reads them, or writes all of them. Who shares it
    /// writes nothing there.
    pub(super) fn place(&self, device: Option<&Arc<dyn Queued>>, reads: bool) -> Result<*mut u8, RunError> {
        let Some(device) = device else {
            return Ok(self.host_buffer()?.as_ptr().cast_mut());
        };
        let mut copies = lock(&self.copies);
        let known = copies.iter().position(|c| same_memory(c.buffer.device(), device));
        let at = match known {
            Some(at) => at,
            None => {
                let buffer = DeviceBuffer::new(&owner(device)?, self.bytes)?;
                copies.push(DeviceCopy { buffer, whole: false });
                copies.len() - 1
            }
        };
        if reads && !copies[at].whole {
            let from = self.fetched(&copies)?;
            let copy = &mut copies[at];
            let (device, to) = (copy.buffer.device(), copy.buffer.start());
            // SAFETY: the buffer has as many bytes, and nothing reads them before they are whole; the host's live until the device is done.
            let given = unsafe { device.upload(0, from.as_ptr(), to, self.bytes) };
            // Also where it failed: no device may still read what is the host's.
            given.and(device.settle(0))?;
            copy.whole = true;
        }
        Ok(copies[at].buffer.start())
    }

    /// Says that a call which ended well has written all that is at the [place](StateMemory::place) there.
    pub(super) fn wrote(&mut self, device: Option<&Arc<dyn Queued>>) {
        match device {
            None => self.copies_mut().iter_mut().for_each(|c| c.whole = false),
            Some(device) => {
                self.host.take();
                let copies = self.copies_mut();
                copies.retain(|c| same_memory(c.buffer.device(), device));
                copies.iter_mut().for_each(|c| c.whole = true);
            }
        }
    }

    /// Says that a call which failed may have written what is at the place there; returns whether another copy has what was there before.
    pub(super) fn spoiled(&mut self, device: Option<&Arc<dyn Queued>>) -> bool {
        let host = self.host.get().is_some();
        let copies = self.copies_mut();
        let here = |c: &DeviceCopy| device.is_some_and(|d| same_memory(c.buffer.device(), d));
        let others = copies.iter().any(|c| c.whole && !here(c));
        match device {
            None if others => drop(self.host.take()),
            None => return false,
            Some(_) => {
                let kept = host || others;
                let spoiled = copies.iter_mut().filter(|c| here(c) && c.whole);
                // What was not whole was no copy.
                return spoiled.map(|c| c.whole = !kept).count() == 0 || kept;
            }
        }
        true
    }
}

/// Copies the bytes from a device that has them; returns whether there is one.
fn download(copies: &[DeviceCopy], to: &mut [u8]) -> Result<bool, RunError> {
    let Some(copy) = copies.iter().find(|c| c.whole) else {
        return Ok(false);
    };
    let device = copy.buffer.device();
    // SAFETY: the buffer has as many bytes, which no call writes meanwhile, and the host's are borrowed until the device is done.
    let given = unsafe { device.download(0, copy.buffer.start(), to.as_mut_ptr(), to.len()) };
    given.and(device.settle(0))?;
    Ok(true)
}

impl fmt::Debug for StateMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StateMemory({} bytes)", self.bytes)
    }
}
