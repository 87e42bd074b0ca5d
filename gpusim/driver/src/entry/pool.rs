//! Memory that is allocated and freed in the order of streams.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use super::device::index;
use super::memory::allocate;
use super::{CUdevice, CUdeviceptr, Handle, entry, handle, number, put};
use crate::driver::Driver;
use crate::pool::Pool;
use crate::result::{
    CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, CUresult,
};
use crate::work::{Returned, Work};

/// The beginning of `CUmemPoolProps`: what is allocated, which handles it may have, and where.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUmemPoolProps {
    /// Pinned memory of a device: 1.
    pub allocation: c_int,
    /// What it can be exported as: nothing.
    pub handles: c_int,
    /// A device: 1.
    pub location: c_int,
    /// Which.
    pub device: c_int,
    /// For handles of Windows.
    pub security: *mut c_void,
    /// The most bytes; 0 leaves that to the driver.
    pub most: usize,
    /// Usage and what is not used yet.
    pub rest: [u8; 56],
}

/// `CUmemAccessDesc`: who may access memory, and how.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUmemAccessDesc {
    /// A device: 1.
    pub location: c_int,
    /// Which.
    pub device: c_int,
    /// Nobody: 0, for reading: 1, for reading and writing: 3.
    pub flags: c_int,
}

/// The pool of a handle.
fn pool(driver: &Driver, of: Handle) -> Result<Arc<Pool>, CUresult> {
    let found = driver.state().pools.get(&number(of)).cloned();
    found.ok_or(CUDA_ERROR_INVALID_HANDLE)
}

/// An error for a device that has no pools.
fn has_pools(driver: &Driver, gpu: usize) -> Result<(), CUresult> {
    match driver.machine.gpus[gpu].description.has_memory_pools {
        true => Ok(()),
        false => Err(CUDA_ERROR_NOT_SUPPORTED),
    }
}

/// The default pool of a device, made at its first use.
fn default_pool(driver: &Driver, gpu: usize) -> u64 {
    let mut state = driver.state();
    if let Some(&known) = state.default_pools.get(&gpu) {
        return known;
    }
    let new = state.handle();
    state.pools.insert(new, Arc::new(Pool::new(gpu)));
    state.default_pools.insert(gpu, new);
    new
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetDefaultMemPool(to: *mut Handle, device: CUdevice) -> CUresult {
    entry("cuDeviceGetDefaultMemPool", || {
        let driver = Driver::get()?;
        let gpu = index(device)?;
        has_pools(driver, gpu)?;
        let found = default_pool(driver, gpu);
        // SAFETY: the manual's contract for the caller's pointer.
        unsafe { put(to, handle(found)) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolCreate(to: *mut Handle, props: *const CUmemPoolProps) -> CUresult {
    entry("cuMemPoolCreate", || {
        let driver = Driver::get()?;
        if to.is_null() || props.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: it is not null, so the caller promises that it is valid.
        let props = unsafe { props.read_unaligned() };
        if (props.allocation, props.handles, props.location) != (1, 0, 1) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let gpu = index(props.device)?;
        has_pools(driver, gpu)?;
        let mut state = driver.state();
        let new = state.handle();
        state.pools.insert(new, Arc::new(Pool::new(gpu)));
        // SAFETY: the manual's contract for the caller's pointer.
        unsafe { put(to, handle(new)) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemPoolDestroy(of: Handle) -> CUresult {
    entry("cuMemPoolDestroy", || {
        let driver = Driver::get()?;
        let found = pool(driver, of)?;
        let mut state = driver.state();
        if state.default_pools.values().any(|&d| d == number(of)) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        state.pools.remove(&number(of));
        drop(state);
        // What is still allocated goes back to the device when it is freed.
        found.set(|a| a.threshold = 0);
        found.trim(&driver.machine.gpus[found.gpu], 0);
        Ok(())
    })
}

/// `CU_MEMPOOL_ATTR_*`: reuse (three of them), the threshold, and what is reserved and used, each now and at most.
const ATTRIBUTES: std::ops::RangeInclusive<c_uint> = 1..=8;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolSetAttribute(of: Handle, attribute: c_uint, value: *mut c_void) -> CUresult {
    entry("cuMemPoolSetAttribute", || {
        let driver = Driver::get()?;
        let found = pool(driver, of)?;
        if value.is_null() || !ATTRIBUTES.contains(&attribute) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if attribute <= 3 {
            return Ok(());
        }
        // SAFETY: from the threshold on, the attributes are numbers of 64 bits.
        let number = unsafe { value.cast::<u64>().read_unaligned() };
        match attribute {
            4 => found.set(|a| a.threshold = number),
            6 if number == 0 => found.set(|a| a.reserved_high = a.reserved),
            8 if number == 0 => found.set(|a| a.used_high = a.used),
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolGetAttribute(of: Handle, attribute: c_uint, value: *mut c_void) -> CUresult {
    entry("cuMemPoolGetAttribute", || {
        let driver = Driver::get()?;
        let account = pool(driver, of)?.account();
        let number = match attribute {
            // SAFETY: the attributes of reuse are numbers of 32 bits; the manual's contract for the caller's pointer.
            1..=3 => return unsafe { put(value.cast::<c_int>(), 1) },
            4 => account.threshold,
            5 => account.reserved,
            6 => account.reserved_high,
            7 => account.used,
            8 => account.used_high,
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        };
        // SAFETY: as above, of 64 bits.
        unsafe { put(value.cast::<u64>(), number) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolSetAccess(of: Handle, access: *const CUmemAccessDesc, count: usize) -> CUresult {
    entry("cuMemPoolSetAccess", || {
        let driver = Driver::get()?;
        let found = pool(driver, of)?;
        if access.is_null() || count == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        for number in 0..count {
            // SAFETY: it is not null, so the caller promises that there are so many.
            let access = unsafe { access.add(number).read_unaligned() };
            if access.location != 1 || !matches!(access.flags, 0 | 1 | 3) {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            let gpu = index(access.device)?;
            match (gpu == found.gpu, access.flags) {
                // A device always reaches its own memory.
                (true, 0) => return Err(CUDA_ERROR_INVALID_VALUE),
                (true, _) => {}
                (false, 1 | 3) if !driver.machine.settings.peers => return Err(CUDA_ERROR_INVALID_DEVICE),
                (false, flags) => found.set_reached_by(gpu, flags != 0),
            }
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemPoolTrimTo(of: Handle, keep: usize) -> CUresult {
    entry("cuMemPoolTrimTo", || {
        let driver = Driver::get()?;
        let found = pool(driver, of)?;
        found.trim(&driver.machine.gpus[found.gpu], keep as u64);
        Ok(())
    })
}

/// Allocates from a pool in the order of a stream.
///
/// # Safety
/// `to` is null or valid for writing.
unsafe fn allocate_from(to: *mut CUdeviceptr, bytes: usize, of: Handle, stream: Handle) -> Result<(), CUresult> {
    let driver = Driver::get()?;
    driver.current()?;
    let found = pool(driver, of)?;
    if to.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let stream = {
        let mut state = driver.state();
        let stream = state.stream(&driver.machine, number(stream))?;
        if state.streams.get(&stream).is_some_and(|s| s.capture.is_some()) {
            return Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        stream
    };
    let address = allocate(driver, found.gpu, bytes as u64)?;
    found.taken(&driver.machine.gpus[found.gpu], bytes as u64);
    let mut state = driver.state();
    state.pooled.insert(address, found);
    // Who uses it must be after the allocation, so that counts as a write.
    let ticket = state.enqueue(
        &driver.machine,
        stream,
        "cuMemAllocAsync",
        Work::Claim {
            address,
            bytes: bytes as u64,
        },
    );
    drop(state);
    ticket?;
    // SAFETY: as the caller promises.
    unsafe { put(to, address) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocAsync(to: *mut CUdeviceptr, bytes: usize, stream: Handle) -> CUresult {
    entry("cuMemAllocAsync", || {
        let driver = Driver::get()?;
        let gpu = driver.current()?;
        has_pools(driver, gpu)?;
        let of = default_pool(driver, gpu);
        // SAFETY: the manual's contract for the caller's pointer.
        unsafe { allocate_from(to, bytes, handle(of), stream) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocFromPoolAsync(
    to: *mut CUdeviceptr,
    bytes: usize,
    of: Handle,
    stream: Handle,
) -> CUresult {
    entry("cuMemAllocFromPoolAsync", || {
        // SAFETY: the manual's contract for the caller's pointer.
        unsafe { allocate_from(to, bytes, of, stream) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeAsync(address: CUdeviceptr, stream: Handle) -> CUresult {
    entry("cuMemFreeAsync", || {
        let driver = Driver::get()?;
        driver.state().current()?;
        let gpu = driver.machine.owner(address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if !driver.machine.is_start(address) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let pool = driver.state().pooled.remove(&address);
        let returned = pool.clone().map(|p| p as Arc<dyn Returned>);
        let work = Work::Free {
            address,
            pool: returned,
        };
        let asked = driver.submit(number(stream), "cuMemFreeAsync", work);
        if asked.is_err() && driver.machine.gpus[gpu].failure().is_err() {
            // An error that stays does not keep memory.
            let bytes = driver.machine.free(gpu, address)?;
            if let Some(pool) = pool {
                pool.returned(&driver.machine.gpus[gpu], bytes);
            }
        }
        asked.map(|_| ())
    })
}
