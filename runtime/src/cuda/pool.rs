//! The memory of a device: a pool of the driver's, where it has pools, and what is spare for the next call.
//!
//! Invariants:
//! - Memory of the driver's pool is allocated and given back in the order of a stream of its own. A stream that is given work waits for the
//!   latest allocation before ([`Context::allocated_since`]); what is given back nothing uses any longer, as [`Context::free`] asks for.
//! - What is put back may still be used by work that was given before: who takes it waits for that, or has its queue wait.
//! - What is spare is the device's, whichever executable took it. It goes back to the driver where memory runs out, where it would be more
//!   than its share, and with the last executable, and with it what the driver's pool keeps.
//! - Nobody waits for the device while the lock is held, but for what the pool's stream was given: memory that nothing uses.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::context::{Context, OUT_OF_MEMORY, Properties};
use super::library::{Address, Handle, PoolProps, Refusal};
use crate::device::Use;
use crate::error::RunError;

/// `CU_STREAM_NON_BLOCKING`: it does not wait for the default stream, which nothing here uses.
const STREAM_FLAGS: u32 = 1;
/// `CU_EVENT_DISABLE_TIMING`.
const EVENT_FLAGS: u32 = 2;
/// Buffers that are kept for the next call.
const MOST_SPARE: usize = 256;
/// Of the memory of a device, one in so many bytes may be in such buffers, and as much in what the driver's pool keeps.
const SPARE_SHARE: u64 = 16;

/// Numbers of `CUmemPool_attribute`.
mod attribute {
    pub(super) const RELEASE_THRESHOLD: u32 = 4;
    pub(super) const RESERVED: u32 = 5;
    pub(super) const RESERVED_HIGH: u32 = 6;
    pub(super) const USED: u32 = 7;
    pub(super) const USED_HIGH: u32 = 8;
}

/// What tlc has of the memory of a device, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct PoolUse {
    /// Whether it comes from a pool of the driver's; otherwise each buffer is allocated by itself.
    pub pooled: bool,
    /// What is allocated, what is spare included.
    pub allocated: u64,
    /// What of it is kept for the next call that wants a buffer of the same size.
    pub spare: u64,
    /// What the driver's pool holds of the device's memory.
    pub reserved: u64,
    /// The most that it ever held, since an executable first needed memory.
    pub reserved_peak: u64,
    /// The most that was allocated from it.
    pub allocated_peak: u64,
    /// How often the driver was asked for memory.
    pub fresh: u64,
    /// How often what was spare was enough.
    pub reused: u64,
}

/// What a device keeps of its memory.
#[derive(Default)]
pub(super) struct Pool {
    state: Mutex<State>,
    /// How often memory was allocated in the order of the pool's stream.
    allocations: AtomicU64,
}

#[derive(Default)]
struct State {
    /// From the first allocation on, where the driver has pools.
    of_driver: Option<OfDriver>,
    /// How many executables there are.
    executables: usize,
    /// What is allocated, by address.
    allocated: BTreeMap<Address, usize>,
    /// What was put back, by bytes: the last first, so that calls find the addresses that their graphs were recorded with.
    spare: BTreeMap<usize, Vec<Spare>>,
    /// Whether the driver's pool may keep something that nothing uses.
    may_keep: bool,
    fresh: u64,
    reused: u64,
}

/// Memory for the next call, and what may still use it.
type Spare = (Address, Vec<Use>);

/// A pool of the driver's.
#[derive(Clone, Copy)]
struct OfDriver {
    pool: Handle,
    /// In whose order memory comes and goes.
    stream: Handle,
    /// Behind the latest allocation.
    event: Handle,
}

// SAFETY: the handles are the driver's, which takes them on every thread.
unsafe impl Send for State {}

impl State {
    fn allocated_bytes(&self) -> u64 {
        self.allocated.values().map(|n| *n as u64).sum()
    }

    /// How many buffers are spare, and their bytes.
    fn spare(&self) -> (usize, u64) {
        self.spare.iter().fold((0, 0), |(count, sum), (n, all)| {
            (count + all.len(), sum + (n * all.len()) as u64)
        })
    }

    /// Takes out what is spare.
    fn take_spare(&mut self) -> Vec<Spare> {
        std::mem::take(&mut self.spare).into_values().flatten().collect()
    }
}

impl Pool {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Properties {
    /// The most bytes of its memory that are kept although nothing uses them: in buffers for the next call, and as much by the driver's
    /// pool.
    pub fn most_idle_bytes(&self) -> u64 {
        self.memory_bytes / SPARE_SHARE
    }
}

impl Context {
    /// Bytes that are allocated here.
    pub fn live_bytes(&self) -> u64 {
        self.pool().lock().allocated_bytes()
    }

    /// What tlc has of the device's memory.
    ///
    /// # Errors
    /// If the driver does not say.
    pub fn pool_use(&self) -> Result<PoolUse, RunError> {
        let state = self.pool().lock();
        let asked = |which| match state.of_driver {
            Some(of) => self.pool_attribute(of, which),
            None => Ok(0),
        };
        Ok(PoolUse {
            pooled: self.properties().memory_pools,
            allocated: state.allocated_bytes(),
            spare: state.spare().1,
            reserved: asked(attribute::RESERVED)?,
            reserved_peak: asked(attribute::RESERVED_HIGH)?,
            allocated_peak: asked(attribute::USED_HIGH)?,
            fresh: state.fresh,
            reused: state.reused,
        })
    }

    /// Gives back what nothing uses: what is spare for the next call, and what the driver's pool keeps. Whether there was any.
    ///
    /// # Errors
    /// If the device failed.
    pub fn release_idle_memory(&self) -> Result<bool, RunError> {
        let spare = self.pool().lock().take_spare();
        self.free_spare(&spare);
        Ok(self.trim(&mut self.pool().lock())? || !spare.is_empty())
    }

    /// Bytes that would be free if what nothing uses were given back.
    pub(super) fn idle_bytes(&self) -> u64 {
        let mut state = self.pool().lock();
        // What the driver does not say is not counted.
        state.spare().1 + self.kept(&mut state).unwrap_or(0)
    }

    /// Bytes that the driver's pool keeps although nothing uses them.
    fn kept(&self, state: &mut State) -> Result<u64, RunError> {
        let Some(of) = state.of_driver.filter(|_| state.may_keep) else {
            return Ok(0);
        };
        let (reserved, used) = (
            self.pool_attribute(of, attribute::RESERVED)?,
            self.pool_attribute(of, attribute::USED)?,
        );
        let kept = reserved.saturating_sub(used);
        // What is on its way back counts as used until it is there.
        state.may_keep = kept > 0 || used > state.allocated_bytes();
        Ok(kept)
    }

    /// Gives back what was spare, once nothing uses it.
    fn free_spare(&self, spare: &[Spare]) {
        for (address, uses) in spare {
            // What failed is known where it was waited for, and uses nothing any longer.
            uses.iter().for_each(|u| drop(u.reach()));
            // SAFETY: it was put back, and what touched it is done.
            unsafe { self.free(*address) };
        }
    }

    /// Notes that there is an executable more.
    pub(super) fn enters(&self) {
        self.pool().lock().executables += 1;
    }

    /// Notes that one is gone. With the last one goes what nothing uses.
    pub(super) fn leaves(&self) {
        let spare = {
            let mut state = self.pool().lock();
            state.executables = state.executables.saturating_sub(1);
            match state.executables {
                0 => state.take_spare(),
                _ => return,
            }
        };
        self.free_spare(&spare);
        let mut state = self.pool().lock();
        // What fails here failed before.
        let _ = self.trim(&mut state);
        if state.executables == 0
            && state.allocated.is_empty()
            && let Some(of) = state.of_driver.take()
        {
            self.close(of);
        }
    }

    /// Allocates memory, aligned to 256 bytes.
    pub(super) fn allocate(&self, bytes: usize) -> Result<Address, RunError> {
        // Not nothing, so that each buffer has an address of its own.
        let bytes = bytes.max(1);
        let asked = match self.ask(bytes) {
            // Without idle memory the result would be the same.
            Err(Refused::Driver(e)) if e.code == OUT_OF_MEMORY && self.release_idle_memory()? => self.ask(bytes),
            other => other,
        };
        match asked {
            Ok(address) => Ok(address),
            Err(Refused::Driver(e)) if e.code == OUT_OF_MEMORY => {
                let (free, total) = self.memory().unwrap_or((0, self.properties().memory_bytes));
                Err(RunError::DeviceMemory {
                    device: self.properties().title(),
                    wanted: bytes as u64,
                    free,
                    total,
                    what: None,
                })
            }
            Err(Refused::Driver(e)) => Err(RunError::Device {
                device: self.properties().title(),
                message: e.to_string(),
            }),
            Err(Refused::Other(e)) => Err(e),
        }
    }

    /// Gives memory back.
    ///
    /// # Safety
    /// It was allocated here, and nothing that still runs touches it.
    pub(super) unsafe fn free(&self, address: Address) {
        let mut state = self.pool().lock();
        if state.allocated.remove(&address).is_none() {
            return;
        }
        // What fails here failed before: the memory goes with the device.
        let _ = match state.of_driver {
            // Under the lock, so that the pool stays meanwhile.
            Some(of) => {
                state.may_keep = true;
                // SAFETY: the caller's promise; the pool's stream is alive.
                self.quietly("cuMemFreeAsync", |d| unsafe { (d.cuMemFreeAsync)(address, of.stream) })
            }
            None => {
                // The driver waits for the device.
                drop(state);
                // SAFETY: the caller's promise.
                self.quietly("cuMemFree_v2", |d| unsafe { (d.cuMemFree_v2)(address) })
            }
        };
    }

    /// As [`Context::allocate`], for memory that is [put back](Context::put_back) and may be given again.
    pub(super) fn take(&self, bytes: usize) -> Result<Address, RunError> {
        let (address, uses) = self.take_in_use(bytes)?;
        // What failed is known where it was waited for, and uses nothing any longer.
        uses.iter().for_each(|u| drop(u.reach()));
        Ok(address)
    }

    /// As [`Context::take`], with what may still use the memory.
    pub(super) fn take_in_use(&self, bytes: usize) -> Result<(Address, Vec<Use>), RunError> {
        {
            let mut state = self.pool().lock();
            if let Some(spare) = state.spare.get_mut(&bytes).and_then(Vec::pop) {
                state.reused += 1;
                return Ok(spare);
            }
        }
        Ok((self.allocate(bytes)?, Vec::new()))
    }

    /// Bytes of those of these buffers, each of so many bytes, for which what is spare is enough.
    pub(super) fn spare_bytes(&self, sizes: &[usize]) -> u64 {
        let state = self.pool().lock();
        let has = |(at, n): &(usize, &usize)| {
            let before = sizes[..*at].iter().filter(|m| m == n).count();
            state.spare.get(*n).is_some_and(|all| all.len() > before)
        };
        sizes.iter().enumerate().filter(has).map(|(_, n)| *n as u64).sum()
    }

    /// Puts memory back.
    ///
    /// # Safety
    /// It was taken here with so many bytes, and nothing that still runs touches it but these uses.
    pub(super) unsafe fn put_back(&self, address: Address, bytes: usize, uses: Vec<Use>) {
        let (count, sum) = {
            let mut state = self.pool().lock();
            state.spare.entry(bytes).or_default().push((address, uses));
            state.spare()
        };
        // Sizes that never come again must not fill the device.
        if count > MOST_SPARE || sum > self.properties().most_idle_bytes() {
            // What fails here failed before.
            let _ = self.release_idle_memory();
        }
    }

    /// How often memory was allocated so that streams must wait for it.
    #[inline]
    pub(super) fn allocations(&self) -> u64 {
        self.pool().allocations.load(Ordering::Acquire)
    }

    /// Has a stream wait for what was allocated so far.
    #[cold]
    pub(super) fn allocated_since(&self, stream: Handle) -> Result<(), RunError> {
        let state = self.pool().lock();
        // Without a pool nothing that was allocated is left.
        let Some(of) = state.of_driver else { return Ok(()) };
        // SAFETY: both are of this context and alive.
        self.call("cuStreamWaitEvent", |d| unsafe {
            (d.cuStreamWaitEvent)(stream, of.event, 0)
        })
    }

    /// Asks the driver for memory.
    fn ask(&self, bytes: usize) -> Result<Address, Refused> {
        let mut state = self.pool().lock();
        let mut address = 0;
        if !self.properties().memory_pools {
            drop(state);
            // SAFETY: a valid place for the result.
            self.asked("cuMemAlloc_v2", |d| unsafe { (d.cuMemAlloc_v2)(&mut address, bytes) })?;
            state = self.pool().lock();
        } else {
            let of = match state.of_driver {
                Some(known) => known,
                None => *state.of_driver.insert(self.open_pool()?),
            };
            // SAFETY: a valid place for the result, and a pool and a stream of this context.
            self.asked("cuMemAllocFromPoolAsync", |d| unsafe {
                (d.cuMemAllocFromPoolAsync)(&mut address, bytes, of.pool, of.stream)
            })?;
            // SAFETY: both are of this context and alive.
            let recorded = self.asked("cuEventRecord", |d| unsafe { (d.cuEventRecord)(of.event, of.stream) });
            if let Err(e) = recorded {
                // SAFETY: nothing knows of it.
                let _ = self.quietly("cuMemFreeAsync", |d| unsafe { (d.cuMemFreeAsync)(address, of.stream) });
                return Err(e.into());
            }
            self.pool().allocations.fetch_add(1, Ordering::Release);
        }
        state.fresh += 1;
        state.allocated.insert(address, bytes);
        Ok(address)
    }

    /// Makes a pool of the driver's.
    fn open_pool(&self) -> Result<OfDriver, Refused> {
        let mut of = OfDriver {
            pool: std::ptr::null_mut(),
            stream: std::ptr::null_mut(),
            event: std::ptr::null_mut(),
        };
        let props = PoolProps::of_device(self.properties().ordinal);
        // SAFETY: valid places for the results here and below, and what the driver asks to know of a pool.
        self.call("cuMemPoolCreate", |d| unsafe {
            (d.cuMemPoolCreate)(&mut of.pool, &props)
        })?;
        let mut most = self.properties().most_idle_bytes();
        let made = self
            .call("cuMemPoolSetAttribute", |d| unsafe {
                // SAFETY: the attribute is a number of 64 bits.
                (d.cuMemPoolSetAttribute)(
                    of.pool,
                    attribute::RELEASE_THRESHOLD,
                    std::ptr::from_mut(&mut most).cast::<c_void>(),
                )
            })
            .and_then(|()| {
                self.call("cuStreamCreate", |d| unsafe {
                    // SAFETY: as above.
                    (d.cuStreamCreate)(&mut of.stream, STREAM_FLAGS)
                })
            })
            .and_then(|()| {
                self.call("cuEventCreate", |d| unsafe {
                    // SAFETY: as above.
                    (d.cuEventCreate)(&mut of.event, EVENT_FLAGS)
                })
            });
        match made {
            Ok(()) => {
                if let Err(e) = self.share_new(of.pool) {
                    // Copies from other devices go through the host then.
                    tracing::debug!(
                        "other devices do not reach the memory of {}: {e}",
                        self.properties().title()
                    );
                }
                Ok(of)
            }
            Err(e) => {
                self.close(of);
                Err(e.into())
            }
        }
    }

    /// Has devices reach what the pool has allocated and will, if there is a pool. One that is made later is shared when it is made.
    pub(super) fn share_pool(&self, devices: &[c_int]) -> Result<(), Refusal> {
        let state = self.pool().lock();
        match state.of_driver {
            Some(of) => self.share(of.pool, devices),
            None => Ok(()),
        }
    }

    /// Gives a pool back that nothing is allocated from. What fails here failed before.
    fn close(&self, of: OfDriver) {
        if !of.event.is_null() {
            // SAFETY: made here and destroyed once, as what follows; nothing is asked to wait for it any more.
            let _ = self.quietly("cuEventDestroy_v2", |d| unsafe { (d.cuEventDestroy_v2)(of.event) });
        }
        if !of.stream.is_null() {
            // SAFETY: as above.
            let _ = self.quietly("cuStreamDestroy_v2", |d| unsafe { (d.cuStreamDestroy_v2)(of.stream) });
        }
        // SAFETY: as above.
        let _ = self.quietly("cuMemPoolDestroy", |d| unsafe { (d.cuMemPoolDestroy)(of.pool) });
    }

    /// Has the driver's pool keep nothing that nothing uses; whether it kept any.
    fn trim(&self, state: &mut State) -> Result<bool, RunError> {
        let Some(of) = state.of_driver.filter(|_| state.may_keep) else {
            return Ok(false);
        };
        // What is on its way back is not back yet.
        // SAFETY: a stream of this context.
        self.call("cuStreamSynchronize", |d| unsafe { (d.cuStreamSynchronize)(of.stream) })?;
        let kept = self.kept(state)? > 0;
        if kept {
            // SAFETY: a pool of this context.
            self.call("cuMemPoolTrimTo", |d| unsafe { (d.cuMemPoolTrimTo)(of.pool, 0) })?;
        }
        state.may_keep = false;
        Ok(kept)
    }

    fn pool_attribute(&self, of: OfDriver, which: u32) -> Result<u64, RunError> {
        let mut value = 0u64;
        // SAFETY: a pool of this context, and a place for a number of 64 bits, as each of these attributes is.
        self.call("cuMemPoolGetAttribute", |d| unsafe {
            (d.cuMemPoolGetAttribute)(of.pool, which, std::ptr::from_mut(&mut value).cast::<c_void>())
        })?;
        Ok(value)
    }
}

/// Why there is no memory.
enum Refused {
    /// The driver said so.
    Driver(Refusal),
    /// There is no pool.
    Other(RunError),
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Refused {
        Refused::Driver(refusal)
    }
}

impl From<RunError> for Refused {
    fn from(error: RunError) -> Refused {
        Refused::Other(error)
    }
}
