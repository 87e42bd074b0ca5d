//! Aligned memory for slots, outputs and weights, and a pool that dropped outputs return to.
//!
//! Invariants:
//!
//! - An [`AlignedBuffer`] starts at a multiple of [`ALIGNMENT`] bytes and owns its memory alone. From
//!   [`HUGE_PAGE_BYTES`] on it is (on Linux) a mapping of its own that starts at a multiple of that and asks for huge
//!   pages, so a fresh 16M-element output costs 32 page faults rather than 16,384.
//! - Running out of memory is an [`AllocError`], never an abort, whatever the size asked for.
//! - All bytes of a buffer are initialized, except after [`AlignedBuffer::uninit`], which is `unsafe` for that reason.
//!   Pool buffers are zeroed when fresh and carry stale contents when reused: initialized either way.
//! - [`BufferPool`] hands out buffers of a *size class* (at most 12.5% above the request, never below), so equal and
//!   nearly equal sizes reuse each other's memory. Idle bytes never exceed the limit; the longest idle go first. Memory
//!   is released to the system outside the lock.

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tlc_ir::fallible::fallibly;

/// Where every buffer starts: a multiple of this many bytes (a cache line, and one AVX-512 vector).
pub const ALIGNMENT: usize = 64;

/// From this size on, buffers ask for huge pages and start at a multiple of it.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;

/// The system had no memory for a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("out of memory: cannot allocate {bytes} bytes")]
pub struct AllocError {
    /// The size asked for, in bytes.
    pub bytes: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// Nothing was allocated: the buffer is empty.
    Nothing,
    /// The Rust allocator, with this layout.
    Heap(Layout),
    /// A mapping of this many bytes.
    #[cfg(target_os = "linux")]
    Mapping(usize),
}

/// Bytes aligned to [`ALIGNMENT`], zeroed or not, with huge pages from [`HUGE_PAGE_BYTES`] on.
#[derive(Debug)]
pub struct AlignedBuffer {
    start: NonNull<u8>,
    len: usize,
    source: Source,
}

// SAFETY: a buffer owns its memory alone, and shared references to it only read.
unsafe impl Send for AlignedBuffer {}
// SAFETY: as above.
unsafe impl Sync for AlignedBuffer {}

/// Bytes of all buffers that live, and the most there have been.
static LIVE_BYTES: AtomicUsize = AtomicUsize::new(0);
static PEAK_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Bytes that all [`AlignedBuffer`]s of the process have: arenas, scratch, outputs, what is kept. Idle ones count.
#[must_use]
pub fn live_bytes() -> usize {
    LIVE_BYTES.load(Ordering::Relaxed)
}

/// The most that [`live_bytes`] has been since the last call of this function, or ever.
#[must_use]
pub fn take_peak_bytes() -> usize {
    PEAK_BYTES.swap(live_bytes(), Ordering::Relaxed)
}

fn counted(source: &Source, made: bool) {
    let bytes = match *source {
        Source::Nothing => 0,
        Source::Heap(layout) => layout.size(),
        #[cfg(target_os = "linux")]
        Source::Mapping(bytes) => bytes,
    };
    if made {
        let live = LIVE_BYTES.fetch_add(bytes, Ordering::Relaxed) + bytes;
        PEAK_BYTES.fetch_max(live, Ordering::Relaxed);
    } else {
        LIVE_BYTES.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl AlignedBuffer {
    /// A buffer of `len` zero bytes.
    ///
    /// # Errors
    ///
    /// [`AllocError`] if the system has no such memory.
    pub fn zeroed(len: usize) -> Result<Self, AllocError> {
        Self::allocate(len, true)
    }

    /// A buffer of `len` bytes that hold anything.
    ///
    /// # Errors
    ///
    /// [`AllocError`] if the system has no such memory.
    ///
    /// # Safety
    ///
    /// The bytes must be written (through [`AlignedBuffer::as_mut_ptr`]) before anything reads them, which includes
    /// making a slice of them.
    pub unsafe fn uninit(len: usize) -> Result<Self, AllocError> {
        Self::allocate(len, false)
    }

    /// A buffer of `len` zero bytes that no page belongs to yet, where the system allows, and that asks for none larger
    /// than ordinary: for measuring what touching memory costs.
    pub(crate) fn fresh_small_pages(len: usize) -> Result<Self, AllocError> {
        #[cfg(target_os = "linux")]
        if len >= HUGE_PAGE_BYTES {
            let (start, mapped) = mapping::map(len, libc::MADV_NOHUGEPAGE).ok_or(AllocError { bytes: len })?;
            return Ok(AlignedBuffer::made(start, len, Source::Mapping(mapped)));
        }
        Self::allocate(len, true)
    }

    fn allocate(len: usize, zero: bool) -> Result<Self, AllocError> {
        let error = AllocError { bytes: len };
        if len == 0 {
            return Ok(AlignedBuffer::default());
        }
        #[cfg(target_os = "linux")]
        if len >= HUGE_PAGE_BYTES {
            let (start, mapped) = mapping::map(len, libc::MADV_HUGEPAGE).ok_or(error)?;
            return Ok(AlignedBuffer::made(start, len, Source::Mapping(mapped)));
        }
        let layout = Layout::from_size_align(len, ALIGNMENT).map_err(|_| error)?;
        // SAFETY: the layout's size is not zero.
        let start = fallibly(|| unsafe { if zero { alloc_zeroed(layout) } else { alloc(layout) } });
        let start = NonNull::new(start).ok_or(error)?;
        Ok(AlignedBuffer::made(start, len, Source::Heap(layout)))
    }

    fn made(start: NonNull<u8>, len: usize, source: Source) -> AlignedBuffer {
        counted(&source, true);
        AlignedBuffer { start, len, source }
    }

    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `len` bytes of ours, initialized (see the module's invariants), borrowed for as long as `self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// The bytes, writable.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as for `as_slice`, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// The first byte's address; valid for reads of `len` bytes while the buffer lives.
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }

    /// The first byte's address; valid for reads and writes of `len` bytes while the buffer lives.
    #[must_use]
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.start.as_ptr()
    }
}

impl AsRef<[u8]> for AlignedBuffer {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl Default for AlignedBuffer {
    /// An empty buffer.
    fn default() -> Self {
        let start = NonNull::<Line>::dangling().cast();
        AlignedBuffer {
            start,
            len: 0,
            source: Source::Nothing,
        }
    }
}

/// A type whose dangling pointer has our alignment.
#[repr(align(64))]
struct Line;

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        counted(&self.source, false);
        match self.source {
            Source::Nothing => {}
            // SAFETY: allocated with exactly this layout, and freed once.
            Source::Heap(layout) => unsafe { dealloc(self.start.as_ptr(), layout) },
            #[cfg(target_os = "linux")]
            // SAFETY: mapped with exactly this size, and unmapped once.
            Source::Mapping(bytes) => unsafe { mapping::unmap(self.start.as_ptr(), bytes) },
        }
    }
}

#[cfg(target_os = "linux")]
mod mapping {
    use super::HUGE_PAGE_BYTES;
    use std::ptr::{NonNull, null_mut};

    /// Maps `len` zero bytes (rounded up to whole pages) at a multiple of [`HUGE_PAGE_BYTES`], and gives the system
    /// `advice` about them; `None` when out of memory. Also returns the mapping's size.
    pub(super) fn map(len: usize, advice: libc::c_int) -> Option<(NonNull<u8>, usize)> {
        let size = len.checked_next_multiple_of(page_bytes())?;
        // Enough to find an aligned start inside; what lies around it goes back at once.
        let room = size.checked_add(HUGE_PAGE_BYTES)?;
        isize::try_from(room).ok()?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh anonymous mapping at an address of the system's choice touches no other memory.
        let base = unsafe {
            libc::mmap(
                null_mut(),
                room,
                protection,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return None;
        }
        let base = base.cast::<u8>();
        let before = base.align_offset(HUGE_PAGE_BYTES);
        // SAFETY: `before < HUGE_PAGE_BYTES`, so start and end lie within the mapping; all bounds are multiples of the
        // page size; the parts unmapped are used by nobody.
        unsafe {
            let start = base.add(before);
            if before > 0 {
                unmap(base, before);
            }
            if before < HUGE_PAGE_BYTES {
                unmap(start.add(size), HUGE_PAGE_BYTES - before);
            }
            // Only a wish: kernels without transparent huge pages refuse it.
            libc::madvise(start.cast(), size, advice);
            NonNull::new(start).map(|start| (start, size))
        }
    }

    /// # Safety
    ///
    /// The range must be mapped, page-aligned, and used by nobody any more.
    pub(super) unsafe fn unmap(start: *mut u8, bytes: usize) {
        // SAFETY: the caller vouches for it. It cannot fail for such a range, save for lack of kernel memory, which
        // would leak the range.
        let result = unsafe { libc::munmap(start.cast(), bytes) };
        debug_assert_eq!(result, 0, "munmap failed");
    }

    fn page_bytes() -> usize {
        // SAFETY: a plain query.
        let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        usize::try_from(bytes)
            .ok()
            .filter(|bytes| bytes.is_power_of_two())
            .unwrap_or(4096)
    }
}

/// Size classes: multiples of 64 up to 512, then eight steps to each power of two.
const STEPS: usize = 8;
const CLASSES: usize = STEPS * 40;

/// The class of a size and the class's size in bytes; `None` for sizes beyond the last class (tens of TiB).
fn size_class(len: usize) -> Option<(usize, usize)> {
    let units = len.div_ceil(ALIGNMENT).max(1);
    if units <= STEPS {
        return Some((units - 1, units * ALIGNMENT));
    }
    // 2^octave < units <= 2^(octave + 1), in steps of an eighth of 2^octave.
    let octave = (units - 1).ilog2() as usize;
    let step = 1usize << (octave - STEPS.ilog2() as usize);
    let above = (units - (1 << octave)).div_ceil(step);
    let class = (octave - STEPS.ilog2() as usize + 1) * STEPS + above - 1;
    (class < CLASSES).then(|| (class, ((1 << octave) + above * step) * ALIGNMENT))
}

/// Bytes that a buffer of a pool takes.
pub(crate) fn pooled_bytes(len: u64) -> u64 {
    match usize::try_from(len).ok().and_then(size_class) {
        Some((_, bytes)) if len > 0 => bytes as u64,
        _ => len,
    }
}

/// What a pool has done and holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PoolStats {
    /// Requests served from idle memory.
    pub reused: u64,
    /// Requests that went to the system.
    pub fresh: u64,
    /// Bytes that lie idle in the pool.
    pub idle_bytes: usize,
    /// Bytes handed out and not yet returned.
    pub in_use_bytes: usize,
    /// The most that idle and handed-out bytes ever were together.
    pub peak_bytes: usize,
}

/// A thread-safe pool of [`AlignedBuffer`]s that dropped [`PooledBuffer`]s return to.
#[derive(Debug)]
pub struct BufferPool {
    /// Asked of the system when memory first is: a program that only compiles needs neither.
    limit_bytes: OnceLock<usize>,
    state: Mutex<PoolState>,
}

#[derive(Debug)]
struct PoolState {
    /// By class; the longest idle first.
    idle: Vec<Vec<Idle>>,
    clock: u64,
    stats: PoolStats,
}

#[derive(Debug)]
struct Idle {
    buffer: AlignedBuffer,
    since: u64,
}

impl BufferPool {
    /// A pool that keeps a quarter of this machine's memory idle at most (of its container's, where that is less).
    #[must_use]
    pub fn new() -> Arc<Self> {
        Self::limited(OnceLock::new())
    }

    /// A pool that keeps `limit_bytes` idle at most; 0 keeps nothing.
    #[must_use]
    pub fn with_limit(limit_bytes: usize) -> Arc<Self> {
        Self::limited(OnceLock::from(limit_bytes))
    }

    fn limited(limit_bytes: OnceLock<usize>) -> Arc<Self> {
        let idle = std::iter::repeat_with(Vec::new).take(CLASSES).collect();
        let state = PoolState {
            idle,
            clock: 0,
            stats: PoolStats::default(),
        };
        Arc::new(BufferPool {
            limit_bytes,
            state: Mutex::new(state),
        })
    }

    /// A buffer of `len` bytes with unspecified (but initialized) contents.
    ///
    /// # Errors
    ///
    /// [`AllocError`] if the system has no such memory, even after everything idle was given back.
    pub fn take(self: &Arc<Self>, len: usize) -> Result<PooledBuffer, AllocError> {
        self.take_tracked(len).map(|(buffer, _)| buffer)
    }

    /// A buffer of `len` zero bytes.
    ///
    /// # Errors
    ///
    /// As for [`BufferPool::take`].
    pub fn take_zeroed(self: &Arc<Self>, len: usize) -> Result<PooledBuffer, AllocError> {
        let (mut buffer, fresh) = self.take_tracked(len)?;
        if !fresh {
            buffer.as_mut_slice().fill(0);
        }
        Ok(buffer)
    }

    /// Also returns whether the memory is fresh, hence zero.
    fn take_tracked(self: &Arc<Self>, len: usize) -> Result<(PooledBuffer, bool), AllocError> {
        if len == 0 {
            return Ok((
                PooledBuffer {
                    buffer: AlignedBuffer::default(),
                    len,
                    pool: Arc::clone(self),
                },
                true,
            ));
        }
        let (class, bytes) = size_class(len).ok_or(AllocError { bytes: len })?;
        let reused = {
            let mut state = self.lock();
            let reused = state.idle[class].pop();
            if reused.is_some() {
                state.stats.reused += 1;
                state.stats.idle_bytes -= bytes;
                state.stats.in_use_bytes += bytes;
            }
            reused
        };
        if let Some(Idle { buffer, .. }) = reused {
            return Ok((
                PooledBuffer {
                    buffer,
                    len,
                    pool: Arc::clone(self),
                },
                false,
            ));
        }
        let fresh = AlignedBuffer::zeroed(bytes).or_else(|_| {
            self.trim(0);
            AlignedBuffer::zeroed(bytes)
        });
        let buffer = fresh.map_err(|_| AllocError { bytes: len })?;
        // Here, where the system is asked anyway, and not when a warm call gives the buffer back.
        let _ = self.limit_bytes();
        let mut state = self.lock();
        state.stats.fresh += 1;
        state.stats.in_use_bytes += bytes;
        state.stats.peak_bytes = state
            .stats
            .peak_bytes
            .max(state.stats.in_use_bytes + state.stats.idle_bytes);
        drop(state);
        Ok((
            PooledBuffer {
                buffer,
                len,
                pool: Arc::clone(self),
            },
            true,
        ))
    }

    /// Gives idle memory back to the system, the longest idle first, until `keep_bytes` at most are idle.
    pub fn trim(&self, keep_bytes: usize) {
        let released = self.lock().evict(keep_bytes);
        // Unmapping takes long: not under the lock.
        drop(released);
    }

    /// The most bytes it keeps idle.
    #[must_use]
    pub fn limit_bytes(&self) -> usize {
        *self.limit_bytes.get_or_init(|| {
            let total = crate::machine::total_memory_bytes().unwrap_or(4 << 30);
            usize::try_from(total / 4).unwrap_or(usize::MAX)
        })
    }

    /// What it has done and holds.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        self.lock().stats
    }

    fn give_back(&self, buffer: AlignedBuffer) {
        let bytes = buffer.len();
        let Some((class, _)) = size_class(bytes) else { return };
        let limit_bytes = self.limit_bytes();
        let mut state = self.lock();
        state.stats.in_use_bytes -= bytes;
        if bytes > limit_bytes {
            drop(state);
            return;
        }
        let released = if state.stats.idle_bytes > limit_bytes - bytes {
            state.evict(limit_bytes - bytes)
        } else {
            Vec::new()
        };
        state.clock += 1;
        let since = state.clock;
        state.idle[class].push(Idle { buffer, since });
        state.stats.idle_bytes += bytes;
        drop(state);
        drop(released);
    }

    /// Forgets `bytes` that were handed out and will not return.
    fn write_off(&self, bytes: usize) {
        self.lock().stats.in_use_bytes -= bytes;
    }

    fn lock(&self) -> MutexGuard<'_, PoolState> {
        // Nothing here panics half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PoolState {
    /// Takes out the longest idle until `keep_bytes` at most are idle.
    fn evict(&mut self, keep_bytes: usize) -> Vec<AlignedBuffer> {
        let mut released = Vec::new();
        while self.stats.idle_bytes > keep_bytes {
            let oldest = self
                .idle
                .iter_mut()
                .filter(|list| !list.is_empty())
                .min_by_key(|list| list[0].since);
            let Some(list) = oldest else { break };
            let Idle { buffer, .. } = list.remove(0);
            self.stats.idle_bytes -= buffer.len();
            released.push(buffer);
        }
        released
    }
}

/// A buffer that returns to its pool when dropped.
#[derive(Debug)]
pub struct PooledBuffer {
    buffer: AlignedBuffer,
    len: usize,
    pool: Arc<BufferPool>,
}

impl PooledBuffer {
    /// Its length in bytes, as asked for.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Keeps at most the first `len` bytes; the others stay occupied.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// The bytes that it occupies: its size class, at least its length.
    #[must_use]
    pub fn capacity_bytes(&self) -> usize {
        self.buffer.len()
    }

    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.buffer.as_slice()[..self.len]
    }

    /// The bytes, writable.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.buffer.as_mut_slice()[..self.len]
    }

    /// The first byte's address, aligned to [`ALIGNMENT`]; valid for reads of `len` bytes while the buffer lives.
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        self.buffer.as_ptr()
    }

    /// The first byte's address; valid for reads and writes of `len` bytes while the buffer lives.
    #[must_use]
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.buffer.as_mut_ptr()
    }

    /// Takes the memory out of the pool's care. The buffer is [`PooledBuffer::capacity_bytes`] long.
    #[must_use]
    pub fn detach(mut self) -> AlignedBuffer {
        let buffer = std::mem::take(&mut self.buffer);
        self.pool.write_off(buffer.len());
        buffer
    }

    /// The pool that it returns to.
    #[must_use]
    pub fn pool(&self) -> &Arc<BufferPool> {
        &self.pool
    }
}

impl Drop for PooledBuffer {
    fn drop(&mut self) {
        let buffer = std::mem::take(&mut self.buffer);
        if !buffer.is_empty() {
            self.pool.give_back(buffer);
        }
    }
}

impl Deref for PooledBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl DerefMut for PooledBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.as_mut_slice()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_zeroed_and_writable() {
        for len in [
            0,
            1,
            63,
            64,
            65,
            4096,
            100_000,
            HUGE_PAGE_BYTES - 1,
            HUGE_PAGE_BYTES,
            3 * HUGE_PAGE_BYTES + 5,
        ] {
            let mut buffer = AlignedBuffer::zeroed(len).unwrap();
            assert_eq!((buffer.len(), buffer.is_empty()), (len, len == 0));
            let alignment = if cfg!(target_os = "linux") && len >= HUGE_PAGE_BYTES {
                HUGE_PAGE_BYTES
            } else {
                ALIGNMENT
            };
            assert!(buffer.as_ptr().addr().is_multiple_of(alignment), "{len}");
            assert!(buffer.as_slice().iter().all(|byte| *byte == 0));
            buffer.as_mut_slice().fill(7);
            assert!(buffer.as_slice().iter().all(|byte| *byte == 7));
            // SAFETY: written in full before it is read.
            let mut buffer = unsafe { AlignedBuffer::uninit(len) }.unwrap();
            assert!(buffer.as_ptr().addr().is_multiple_of(alignment));
            // SAFETY: `len` bytes are ours to write.
            unsafe { buffer.as_mut_ptr().write_bytes(3, len) };
            assert!(buffer.as_slice().iter().all(|byte| *byte == 3));
        }
    }

    #[test]
    fn impossible_sizes_are_errors() {
        for len in [usize::MAX, usize::MAX / 2, isize::MAX as usize, 1 << 62, 1 << 50] {
            assert_eq!(AlignedBuffer::zeroed(len).unwrap_err(), AllocError { bytes: len });
            assert_eq!(
                BufferPool::with_limit(1 << 20).take(len).unwrap_err(),
                AllocError { bytes: len }
            );
        }
    }

    #[test]
    fn size_classes_are_tight_ordered_and_stable() {
        let mut previous = (0, ALIGNMENT);
        for len in (1..100_000).chain([(2 << 20) + 1, (16 << 20) + 1, 1 << 40]) {
            let (class, bytes) = size_class(len).unwrap();
            assert!(bytes >= len && bytes.is_multiple_of(ALIGNMENT));
            assert!(bytes <= len.next_multiple_of(64) + len / 8, "{len} -> {bytes}");
            assert_eq!(size_class(bytes), Some((class, bytes)));
            assert!(class >= previous.0 && (class > previous.0) == (bytes > previous.1));
            assert!(class <= previous.0 + 1 || len > 100_000);
            previous = (class, bytes);
        }
        assert_eq!(
            size_class((16 << 20) + 1),
            Some((size_class(16 << 20).unwrap().0 + 1, 18 << 20))
        );
        assert_eq!(size_class(usize::MAX), None);
    }

    #[test]
    fn equal_and_nearly_equal_sizes_reuse_memory() {
        let pool = BufferPool::with_limit(64 << 20);
        let first = pool.take(1_000_000).unwrap();
        let address = first.as_ptr().addr();
        drop(first);
        assert!(pool.stats().idle_bytes >= 1_000_000);
        let second = pool.take(1_000_100).unwrap();
        assert_eq!(second.as_ptr().addr(), address);
        assert_eq!(second.len(), 1_000_100);
        let stats = pool.stats();
        assert_eq!((stats.fresh, stats.reused, stats.idle_bytes), (1, 1, 0));
        assert_eq!(stats.in_use_bytes, second.capacity_bytes());
    }

    #[test]
    fn zeroed_buffers_are_zero_even_when_reused() {
        let pool = BufferPool::with_limit(64 << 20);
        for len in [100, 3 << 20] {
            pool.take(len).unwrap().fill(9);
            let buffer = pool.take_zeroed(len).unwrap();
            assert!(buffer.iter().all(|byte| *byte == 0));
        }
        assert_eq!(pool.stats().reused, 2);
    }

    #[test]
    fn idle_bytes_stay_within_the_limit_and_the_oldest_go_first() {
        let pool = BufferPool::with_limit(4096);
        let buffers: Vec<_> = (0..8).map(|_| pool.take(1024).unwrap()).collect();
        let addresses: Vec<_> = buffers.iter().map(|buffer| buffer.as_ptr().addr()).collect();
        // Vec drops front to back: the last four stay.
        drop(buffers);
        assert_eq!(pool.stats().idle_bytes, 4096);
        let again: Vec<_> = (0..4).map(|_| pool.take(1024).unwrap()).collect();
        let mut found: Vec<_> = again.iter().map(|buffer| buffer.as_ptr().addr()).collect();
        found.reverse();
        assert_eq!(found, addresses[4..]);
        drop(again);
        // Too large to keep at all.
        drop(pool.take(5000).unwrap());
        assert_eq!(pool.stats().idle_bytes, 4096);
        pool.trim(2048);
        assert_eq!(pool.stats().idle_bytes, 2048);
        pool.trim(0);
        let stats = pool.stats();
        assert_eq!((stats.idle_bytes, stats.in_use_bytes), (0, 0));
        assert!(stats.peak_bytes >= 8192);
        let nothing = BufferPool::with_limit(0);
        drop(nothing.take(10).unwrap());
        assert_eq!(nothing.stats().idle_bytes, 0);
    }

    #[test]
    fn detached_and_empty_buffers_do_not_return() {
        let pool = BufferPool::with_limit(1 << 20);
        let buffer = pool.take(100).unwrap().detach();
        assert_eq!(buffer.len(), 128);
        assert_eq!(pool.stats().in_use_bytes, 0);
        drop(buffer);
        let empty = pool.take(0).unwrap();
        assert!(empty.is_empty() && empty.as_slice().is_empty());
        drop(empty);
        assert_eq!(pool.stats().idle_bytes, 0);
    }

    #[test]
    fn many_threads_share_a_pool() {
        let pool = BufferPool::with_limit(1 << 20);
        std::thread::scope(|scope| {
            for thread in 0..8u8 {
                let pool = &pool;
                scope.spawn(move || {
                    for round in 0..500usize {
                        let mut buffer = pool.take(1 + round * 37 % 5000).unwrap();
                        buffer.fill(thread);
                        std::thread::yield_now();
                        assert!(buffer.iter().all(|byte| *byte == thread));
                    }
                });
            }
        });
        let stats = pool.stats();
        assert_eq!(stats.in_use_bytes, 0);
        assert_eq!(stats.fresh + stats.reused, 4000);
        assert!(stats.idle_bytes <= 1 << 20);
    }

    #[test]
    fn a_buffer_may_outlive_every_other_handle_of_its_pool() {
        let pool = BufferPool::new();
        assert!(pool.limit_bytes() > 0);
        let buffer = pool.take(1000).unwrap();
        drop(pool);
        assert_eq!(Arc::strong_count(buffer.pool()), 1);
    }
}
