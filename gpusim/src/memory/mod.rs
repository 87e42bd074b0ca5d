//! Device memory: allocations with room between them, and which of their bytes were ever written.

mod slots;
mod written;

use std::collections::HashMap;

use crate::module::Module;

pub(crate) use slots::Slot;
pub use slots::SlotEvent;
use written::append;
pub(crate) use written::{Written, load, store};

/// Where the first allocation is; no small number is an address.
const FIRST: u64 = 0x7_0000_0000;

/// The least space between two allocations.
const RED_ZONE: u64 = 256;

/// Bytes of a chunk: what is kept of an allocation at once, when it is first used.
const CHUNK: usize = 1 << 16;

/// What a byte holds that nobody wrote.
const UNWRITTEN: u8 = 0xa5;

/// A part of an allocation that was used.
#[derive(Debug)]
struct Chunk {
    data: Box<[u8]>,
    written: Written,
    /// What the launch that runs read and wrote; empty where it is not wanted.
    reads: Written,
    writes: Written,
    is_touched: bool,
}

#[derive(Debug)]
pub(crate) struct Allocation {
    pub(crate) base: u64,
    pub(crate) size: u64,
    chunks: Vec<Option<Box<Chunk>>>,
    pub(crate) is_live: bool,
    is_counted: bool,
    pub(crate) is_read_only: bool,
    /// Parts that were announced, in order; if there are any, nothing else may be accessed.
    pub(crate) slots: Vec<Slot>,
}

impl Allocation {
    fn chunk(&mut self, at: usize) -> &mut Chunk {
        let index = at / CHUNK;
        let len = (self.size as usize - index * CHUNK).min(CHUNK);
        self.chunks[index].get_or_insert_with(|| {
            Box::new(Chunk {
                data: vec![UNWRITTEN; len].into_boxed_slice(),
                written: Written::new(len),
                reads: Written::default(),
                writes: Written::default(),
                is_touched: false,
            })
        })
    }

    /// Reads a number that lies in one chunk, and whether all of its bytes were written.
    pub(crate) fn load(&self, at: usize, bytes: u32) -> (u64, bool) {
        match &self.chunks[at / CHUNK] {
            Some(chunk) => {
                let at = at % CHUNK;
                (load(&chunk.data, at, bytes), chunk.written.all(at, bytes as usize))
            }
            None => (load(&[UNWRITTEN; 8], 0, bytes), false),
        }
    }

    /// Writes a number that lies in one chunk.
    pub(crate) fn store(&mut self, at: usize, bytes: u32, value: u64, marks: bool) {
        let chunk = self.chunk(at);
        let at = at % CHUNK;
        store(&mut chunk.data, at, bytes, value);
        if marks {
            chunk.written.set(at, bytes as usize);
        }
    }

    /// Remembers an access that lies in one chunk; whether it is the first there.
    fn touch(&mut self, at: usize, bytes: usize, is_write: bool) -> bool {
        let chunk = self.chunk(at);
        let is_first = !chunk.is_touched;
        if is_first {
            chunk.is_touched = true;
            chunk.reads = Written::new(chunk.data.len());
            chunk.writes = Written::new(chunk.data.len());
        }
        let touched = if is_write { &mut chunk.writes } else { &mut chunk.reads };
        touched.set(at % CHUNK, bytes);
        is_first
    }

    /// The pieces of a range that each lie in one chunk: where they begin, and how many bytes they have.
    fn pieces(at: usize, bytes: usize) -> impl Iterator<Item = (usize, usize)> {
        let end = at + bytes;
        let first = std::iter::once(at).filter(move |_| bytes > 0);
        let more = (at / CHUNK + 1..).map(|c| c * CHUNK).take_while(move |&s| s < end);
        first
            .chain(more)
            .map(move |s| (s, end.min((s / CHUNK + 1) * CHUNK) - s))
    }

    fn forget(&mut self, at: usize, bytes: usize) {
        for (start, len) in Allocation::pieces(at, bytes) {
            if let Some(chunk) = &mut self.chunks[start / CHUNK] {
                chunk.written.unset(start % CHUNK, len);
            }
        }
    }
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
    /// There is memory at that address already, or there was.
    #[error("the memory at {0:#x} is taken")]
    Taken(u64),
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
    /// The allocation has slots, and the range is in none that may be accessed.
    Slot,
}

/// The bytes that a launch accessed, as ranges from a first address to one past the last, in order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Footprint {
    /// What it read.
    pub reads: Vec<(u64, u64)>,
    /// What it wrote; atomic operations are among them.
    pub writes: Vec<(u64, u64)>,
}

/// A simulated device: its memory. [`launch`](Device::launch) runs kernels on it.
#[derive(Debug)]
pub struct Device {
    pub(crate) allocations: Vec<Allocation>,
    next: u64,
    used: u64,
    capacity: u64,
    /// Launches so far.
    pub(crate) launches: u64,
    /// The chunks that the launch that runs touched.
    touched: Vec<(usize, usize)>,
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
        Device::at(FIRST, capacity)
    }

    /// The same with the address that its memory begins at.
    pub fn at(first: u64, capacity: u64) -> Device {
        Device {
            allocations: Vec::new(),
            next: first.next_multiple_of(RED_ZONE),
            used: 0,
            capacity,
            launches: 0,
            touched: Vec::new(),
            modules: HashMap::new(),
        }
    }

    /// Memory whose bytes are not written yet, at a multiple of 256.
    ///
    /// # Errors
    /// [`MemoryError::OutOfMemory`].
    pub fn allocate(&mut self, bytes: u64) -> Result<u64, MemoryError> {
        let free = self.capacity - self.used;
        if bytes > free {
            return Err(MemoryError::OutOfMemory { asked: bytes, free });
        }
        let base = self.next;
        self.next = (base + bytes + RED_ZONE).next_multiple_of(RED_ZONE);
        self.used += bytes;
        self.insert(base, bytes, true);
        Ok(base)
    }

    /// Memory at an address that the caller chose and accounts for: it is not part of [`used`](Device::used).
    ///
    /// # Errors
    /// [`MemoryError::Taken`] if memory is there, or was.
    pub fn allocate_at(&mut self, address: u64, bytes: u64) -> Result<(), MemoryError> {
        let index = self.allocations.partition_point(|a| a.base <= address);
        let below = index.checked_sub(1).map(|i| &self.allocations[i]);
        let starts = below.is_none_or(|a| a.base + a.size.max(1) <= address);
        let end = address.checked_add(bytes.max(1));
        let above = self.allocations.get(index).map_or(u64::MAX, |a| a.base);
        if !starts || end.is_none_or(|end| end > above) {
            return Err(MemoryError::Taken(address));
        }
        self.insert(address, bytes, false);
        Ok(())
    }

    fn insert(&mut self, base: u64, bytes: u64, is_counted: bool) {
        let allocation = Allocation {
            base,
            size: bytes,
            chunks: std::iter::repeat_with(|| None)
                .take((bytes as usize).div_ceil(CHUNK))
                .collect(),
            is_live: true,
            is_counted,
            is_read_only: false,
            slots: Vec::new(),
        };
        let index = self.allocations.partition_point(|a| a.base < base);
        self.allocations.insert(index, allocation);
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
        allocation.chunks = Vec::new();
        allocation.slots = Vec::new();
        if allocation.is_counted {
            self.used -= allocation.size;
        }
        Ok(())
    }

    /// Gives the memory of a module's variables back.
    pub fn unload(&mut self, module: &Module) {
        for address in self.modules.remove(&module.id).into_iter().flatten() {
            // They were allocated when the module was loaded, and nobody else may free them.
            let freed = self.free(address);
            debug_assert!(freed.is_ok());
        }
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
        let mut rest = bytes;
        for (start, len) in Allocation::pieces(at, bytes.len()) {
            let (now, later) = rest.split_at(len);
            let chunk = allocation.chunk(start);
            let start = start % CHUNK;
            chunk.data[start..start + len].copy_from_slice(now);
            chunk.written.set(start, len);
            rest = later;
        }
        Ok(())
    }

    /// Copies to the host.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`].
    pub fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), MemoryError> {
        let (index, at) = self.range(address, bytes.len() as u64)?;
        let mut rest = bytes;
        let bytes = rest.len();
        for (start, len) in Allocation::pieces(at, bytes) {
            let (now, later) = rest.split_at_mut(len);
            match &self.allocations[index].chunks[start / CHUNK] {
                Some(chunk) => now.copy_from_slice(&chunk.data[start % CHUNK..][..len]),
                None => now.fill(UNWRITTEN),
            }
            rest = later;
        }
        Ok(())
    }

    /// The parts of a range that nobody wrote, each from its first address to one past its last.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`].
    pub fn unwritten(&self, address: u64, bytes: u64) -> Result<Vec<(u64, u64)>, MemoryError> {
        let (index, at) = self.range(address, bytes)?;
        let allocation = &self.allocations[index];
        let mut found: Vec<(u64, u64)> = Vec::new();
        for (start, len) in Allocation::pieces(at, bytes as usize) {
            let base = allocation.base + (start - start % CHUNK) as u64;
            match &allocation.chunks[start / CHUNK] {
                Some(chunk) => chunk.written.unset_ranges(start % CHUNK, len, base, &mut found),
                None => append(&mut found, base + (start % CHUNK) as u64, len as u64),
            }
        }
        Ok(found)
    }

    /// Makes bytes be ones that nobody wrote.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`].
    pub fn forget(&mut self, address: u64, bytes: u64) -> Result<(), MemoryError> {
        let (index, at) = self.range(address, bytes)?;
        self.allocations[index].forget(at, bytes as usize);
        Ok(())
    }

    /// Remembers an access of the launch that runs.
    pub(crate) fn touch(&mut self, index: usize, at: usize, bytes: u32, is_write: bool) {
        if self.allocations[index].touch(at, bytes as usize, is_write) {
            self.touched.push((index, at / CHUNK));
        }
    }

    /// What the launch accessed; it is forgotten.
    pub(crate) fn footprint(&mut self) -> Footprint {
        let mut found = Footprint::default();
        let mut touched = std::mem::take(&mut self.touched);
        touched.sort_unstable();
        for &(index, chunk) in &touched {
            let allocation = &mut self.allocations[index];
            let base = allocation.base + (chunk * CHUNK) as u64;
            if let Some(Some(chunk)) = allocation.chunks.get_mut(chunk) {
                chunk.is_touched = false;
                std::mem::take(&mut chunk.reads).ranges(base, &mut found.reads);
                std::mem::take(&mut chunk.writes).ranges(base, &mut found.writes);
            }
        }
        touched.clear();
        self.touched = touched;
        found
    }

    fn range(&self, address: u64, bytes: u64) -> Result<(usize, usize), MemoryError> {
        let wrong = MemoryError::OutOfBounds { address, bytes };
        let index = self.allocations.partition_point(|a| a.base <= address);
        let found = index.checked_sub(1).map(|i| (i, &self.allocations[i]));
        let (index, a) = found.ok_or_else(|| wrong.clone())?;
        let at = address - a.base;
        if at > a.size || bytes > a.size - at || !a.is_live {
            return Err(wrong);
        }
        Ok((index, at as usize))
    }

    /// The allocation that holds a range, and where in it. The last one found is looked at first.
    pub(crate) fn find(&self, address: u64, bytes: u64, hint: &mut usize) -> Result<(usize, usize), Refusal> {
        if let Some(a) = self.allocations.get(*hint) {
            let at = address.wrapping_sub(a.base);
            if a.is_live && a.slots.is_empty() && at < a.size && bytes <= a.size - at {
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
        if !a.slots.is_empty() && !a.slots_hold(at, bytes, self.launches) {
            return Err(Refusal::Slot);
        }
        Ok((*hint, at as usize))
    }

    /// How far an address is from the next allocation or slot, in words.
    pub(crate) fn neighbourhood(&self, address: u64) -> String {
        let index = self.allocations.partition_point(|a| a.base <= address);
        let Some(a) = index.checked_sub(1).and_then(|i| self.allocations.get(i)) else {
            return "no allocation is below it".to_string();
        };
        let end = a.base + a.size;
        let state = if a.is_live { "an" } else { "a freed" };
        if address < end && !a.slots.is_empty() {
            a.slot_neighbourhood(address - a.base, self.launches)
        } else if address < end {
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
