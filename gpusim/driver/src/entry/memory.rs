//! Memory of devices, and pinned memory of the host.

use std::alloc::{Layout, alloc, dealloc};
use std::ffi::{c_uint, c_void};

use super::{CUdeviceptr, entry, put};
use crate::driver::Driver;
use crate::machine::lock;
use crate::report::event;
use crate::result::{CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY, CUresult};

/// Allocates for a device. Where there is no room, what is on its way and what pools keep is waited for and given back first.
pub(super) fn allocate(driver: &Driver, gpu: usize, bytes: u64) -> Result<u64, CUresult> {
    if bytes == 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let device = &driver.machine.gpus[gpu];
    if bytes > device.free_bytes() && bytes <= device.description.memory {
        // What fails while waiting is of others.
        let _ = driver.wait_for_device(gpu);
        let pools: Vec<_> = driver.state().pools.values().cloned().collect();
        for pool in pools.iter().filter(|p| p.gpu == gpu) {
            pool.trim(device, 0);
        }
    }
    driver.machine.allocate(gpu, bytes)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(to: *mut CUdeviceptr, bytes: usize) -> CUresult {
    entry("cuMemAlloc_v2", || {
        let driver = Driver::get()?;
        let gpu = driver.current()?;
        if to.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let address = allocate(driver, gpu, bytes as u64)?;
        // SAFETY: the manual's contract for the caller's pointer.
        unsafe { put(to, address) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(address: CUdeviceptr) -> CUresult {
    entry("cuMemFree_v2", || {
        let driver = Driver::get()?;
        driver.state().current()?;
        if address == 0 {
            return Ok(());
        }
        let gpu = driver.machine.owner(address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        // As on a real device, nothing that is on its way may use it; an error that stays does not keep memory.
        let waited = driver.wait_for_device(gpu);
        let bytes = driver.machine.free(gpu, address)?;
        let pool = driver.state().pooled.remove(&address);
        if let Some(pool) = pool {
            use crate::work::Returned;
            pool.returned(&driver.machine.gpus[gpu], bytes);
        }
        waited
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> CUresult {
    entry("cuMemGetInfo_v2", || {
        let driver = Driver::get()?;
        let device = &driver.machine.gpus[driver.current()?];
        // SAFETY: the manual's contract for the caller's pointers.
        unsafe {
            put(free, device.free_bytes() as usize)?;
            put(total, device.description.memory as usize)
        }
    })
}

/// How pinned memory is laid out on the host: by pages, as the real driver does.
fn layout(bytes: u64) -> Result<Layout, CUresult> {
    let bytes = usize::try_from(bytes).map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?;
    Layout::from_size_align(bytes, 4096).map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostAlloc(to: *mut *mut c_void, bytes: usize, flags: c_uint) -> CUresult {
    entry("cuMemHostAlloc", || {
        let driver = Driver::get()?;
        driver.current()?;
        if to.is_null() || bytes == 0 || flags > 7 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let layout = layout(bytes as u64)?;
        // SAFETY: the layout has bytes.
        let at = unsafe { alloc(layout) };
        if at.is_null() {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        driver.state().pinned.insert(at as usize as u64, bytes as u64);
        // SAFETY: the manual's contract for the caller's pointer.
        unsafe { put(to, at.cast()) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFreeHost(at: *mut c_void) -> CUresult {
    entry("cuMemFreeHost", || {
        let driver = Driver::get()?;
        driver.state().current()?;
        let address = at as usize as u64;
        let bytes = driver.state().pinned.get(&address).copied();
        let bytes = bytes.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        // Who is on the way to it would write to memory of somebody else afterwards; that it was waited for is looked at then.
        for gpu in 0..driver.machine.gpus.len() {
            let (tickets, _) = driver.state().tails(gpu);
            tickets.iter().for_each(|t| t.wait());
        }
        let mut state = driver.state();
        let used = lock(&driver.machine.history).unknown(address, address + bytes, &state.host);
        if let Some(user) = used.filter(|_| driver.machine.settings.checks) {
            let detail = format!(
                "cuMemFreeHost of {bytes} bytes at {address:#x}, which the host has not waited for {user} to leave"
            );
            let json = event("unordered", "cuMemFreeHost", Some(&user), (address, bytes), &detail);
            let gpu = state.current()?;
            driver
                .machine
                .found(gpu, "unordered", &detail, json, CUDA_ERROR_ILLEGAL_ADDRESS);
        }
        state.pinned.remove(&address);
        drop(state);
        lock(&driver.machine.history).forget(address, address + bytes);
        // SAFETY: it was allocated with this layout, and is no longer listed, so that nobody frees it again.
        unsafe { dealloc(at.cast(), layout(bytes)?) };
        Ok(())
    })
}
