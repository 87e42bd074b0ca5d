//! Device memory: allocations with room between them, and which of their bytes were ever written.

use std::collections::HashMap;

/// Where the first allocation is; no small number is an address.
const FIRST: u64 = 0x7_0000_0000;

/// The least space between two allocations.
const RED_ZONE: u64 = 256;

/// A bit for each byte: whether it was written.
#[derive(Clone, Debug, Default)]
pub(crate) struct Written {
    words: Vec<u64>,
}

impl Written {
    pub(crate) fn new(bytes: usize) -> Written {
        Written {
            words: vec![0; bytes.div_ceil(64)],
        }
    }

    /// Whether all bytes of a range were.
    pub(crate) fn all(&self, at: usize, bytes: usize) -> bool {
        let (word, bit) = (at / 64, at % 64);
        if bit + bytes <= 64 {
            let mask = ones(bytes) << bit;
            return self.words.get(word).is_some_and(|w| w & mask == mask);
        }
        (at..at + bytes).all(|i| self.words.get(i / 64).is_some_and(|w| w >> (i % 64) & 1 == 1))
    }

    pub(crate) fn set(&mut self, at: usize, bytes: usize) {
        let (word, bit) = (at / 64, at % 64);
        if bit + bytes <= 64 {
            if let Some(w) = self.words.get_mut(word) {
                *w |= ones(bytes) << bit;
            }
            return;
        }
        let end = at + bytes;
        let mut i = at;
        while i < end {
            let here = (64 - i % 64).min(end - i);
            if let Some(w) = self.words.get_mut(i / 64) {
                *w |= ones(here) << (i % 64);
            }
            i += here;
        }
    }

    pub(crate) fn clear(&mut self) {
        self.words.fill(0);
    }
}

const fn ones(bits: usize) -> u64 {
    if bits >= 64 { u64::MAX } else { (1 << bits) - 1 }
}

/// Little-endian bytes of memory as a number.
pub(crate) fn load(data: &[u8], at: usize, bytes: u32) -> u64 {
    let slice = &data[at..at + bytes as usize];
    match *slice {
        [a] => u64::from(a),
        [a, b] => u64::from(u16::from_le_bytes([a, b])),
        [a, b, c, d] => u64::from(u32::from_le_bytes([a, b, c, d])),
        [a, b, c, d, e, f, g, h] => u64::from_le_bytes([a, b, c, d, e, f, g, h]),
        _ => 0,
    }
}

/// A number as little-endian bytes of memory.
pub(crate) fn store(data: &mut [u8], at: usize, bytes: u32, value: u64) {
    let slice = &mut data[at..at + bytes as usize];
    match slice {
        [a] => *a = value as u8,
        [_, _] => slice.copy_from_slice(&(value as u16).to_le_bytes()),
        [_, _, _, _] => slice.copy_from_slice(&(value as u32).to_le_bytes()),
        _ => slice.copy_from_slice(&value.to_le_bytes()[..bytes as usize]),
    }
}

#[derive(Debug)]
pub(crate) struct Allocation {
    pub(crate) base: u64,
    pub(crate) size: u64,
    pub(crate) data: Vec<u8>,
    pub(crate) written: Written,
    pub(crate) is_live: bool,
    pub(crate) is_read_only: bool,
}

/// Why an access of the host is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// No allocation holds the range.
    #[error("{bytes} bytes at {address:#x} are in no allocation")]
    OutOfBounds {
        /// Where it begins.
        address: u64,
        /// How long it is.
        bytes: u64,
    },
    /// The allocation was freed, or there never was one.
    #[error("{0:#x} is not the start of a live allocation")]
    NotAllocated(u64),
    /// The device has no more room.
    #[error("out of memory: {asked} bytes asked for, {free} free")]
    OutOfMemory {
        /// How many were asked for.
        asked: u64,
        /// How many are left.
        free: u64,
    },
}

/// Why an access of a kernel is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    Nowhere,
    Freed,
}

/// A simulated device: its memory. [`launch`](Device::launch) runs kernels on it.
#[derive(Debug)]
pub struct Device {
    pub(crate) allocations: Vec<Allocation>,
    next: u64,
    used: u64,
    capacity: u64,
    /// The addresses of each module's variables.
    pub(crate) modules: HashMap<u64, Vec<u64>>,
}

impl Default for Device {
    fn default() -> Device {
        Device::new(1 << 37)
    }
}

impl Device {
    /// A device with so many bytes of memory; the host has as many as are used.
    pub fn new(capacity: u64) -> Device {
        Device {
            allocations: Vec::new(),
            next: FIRST,
            used: 0,
            capacity,
            modules: HashMap::new(),
        }
    }

    /// Memory whose bytes are not written yet, at a multiple of 256.
    ///
    /// # Errors
    /// [`MemoryError::OutOfMemory`].
    pub fn allocate(&mut self, bytes: u64) -> Result<u64, MemoryError> {
        let free = self.capacity - self.used;
        let data_len = usize::try_from(bytes).ok().filter(|_| bytes <= free);
        let Some(len) = data_len else {
            return Err(MemoryError::OutOfMemory { asked: bytes, free });
        };
        let base = self.next;
        self.next = (base + bytes + RED_ZONE).next_multiple_of(RED_ZONE);
        self.used += bytes;
        self.allocations.push(Allocation {
            base,
            size: bytes,
            data: vec![0xa5; len],
            written: Written::new(len),
            is_live: true,
            is_read_only: false,
        });
        Ok(base)
    }

    /// Gives memory back; its addresses are never used again, so that later accesses are found.
    ///
    /// # Errors
    /// [`MemoryError::NotAllocated`].
    pub fn free(&mut self, address: u64) -> Result<(), MemoryError> {
        let found = self.allocations.binary_search_by_key(&address, |a| a.base).ok();
        let live = found.filter(|&i| self.allocations[i].is_live);
        let Some(index) = live else {
            return Err(MemoryError::NotAllocated(address));
        };
        let allocation = &mut self.allocations[index];
        allocation.is_live = false;
        allocation.data = Vec::new();
        allocation.written = Written::default();
        self.used -= allocation.size;
        Ok(())
    }

    /// Bytes that are allocated.
    pub const fn used(&self) -> u64 {
        self.used
    }

    /// Copies from the host.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`].
    pub fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), MemoryError> {
        let (index, at) = self.range(address, bytes.len() as u64)?;
        let allocation = &mut self.allocations[index];
        allocation.data[at..at + bytes.len()].copy_from_slice(bytes);
        allocation.written.set(at, bytes.len());
        Ok(())
    }

    /// Copies to the host.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`].
    pub fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), MemoryError> {
        let (index, at) = self.range(address, bytes.len() as u64)?;
        bytes.copy_from_slice(&self.allocations[index].data[at..at + bytes.len()]);
        Ok(())
    }

    fn range(&self, address: u64, bytes: u64) -> Result<(usize, usize), MemoryError> {
        let mut hint = 0;
        let wrong = MemoryError::OutOfBounds { address, bytes };
        self.find(address, bytes, &mut hint).map_err(|_| wrong)
    }

    /// The allocation that holds a range, and where in it. The last one found is looked at first.
    pub(crate) fn find(&self, address: u64, bytes: u64, hint: &mut usize) -> Result<(usize, usize), Refusal> {
        if let Some(a) = self.allocations.get(*hint) {
            let at = address.wrapping_sub(a.base);
            if a.is_live && at < a.size && bytes <= a.size - at {
                return Ok((*hint, at as usize));
            }
        }
        let index = self.allocations.partition_point(|a| a.base <= address);
        let Some(a) = index.checked_sub(1).and_then(|i| self.allocations.get(i)) else {
            return Err(Refusal::Nowhere);
        };
        let at = address - a.base;
        if at > a.size || bytes > a.size - at {
            return Err(Refusal::Nowhere);
        }
        if !a.is_live {
            return Err(Refusal::Freed);
        }
        *hint = index - 1;
        Ok((*hint, at as usize))
    }

    /// How far an address is from the next allocation, in words.
    pub(crate) fn neighbourhood(&self, address: u64) -> String {
        let index = self.allocations.partition_point(|a| a.base <= address);
        let Some(a) = index.checked_sub(1).and_then(|i| self.allocations.get(i)) else {
            return "no allocation is below it".to_string();
        };
        let end = a.base + a.size;
        let state = if a.is_live { "an" } else { "a freed" };
        if address < end {
            format!("{} bytes into {state} allocation of {} bytes", address - a.base, a.size)
        } else {
            format!(
                "{} bytes past {state} allocation of {} bytes at {:#x}",
                address - end,
                a.size,
                a.base
            )
        }
    }
}
