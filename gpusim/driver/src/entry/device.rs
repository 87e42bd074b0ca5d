//! What devices there are and what they are like.

use std::ffi::{c_char, c_int, c_uint};

use super::{CUdevice, entry, put};
use crate::description::Description;
use crate::driver::Driver;
use crate::result::{CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NO_DEVICE, CUresult, words};

/// The description of a device.
fn description(device: CUdevice) -> Result<&'static Description, CUresult> {
    Ok(&Driver::get()?.machine.gpus[index(device)?].description)
}

/// The index of a device.
pub(super) fn index(device: CUdevice) -> Result<usize, CUresult> {
    let devices = Driver::get()?.machine.gpus.len();
    let index = usize::try_from(device).ok().filter(|&i| i < devices);
    index.ok_or(CUDA_ERROR_INVALID_DEVICE)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuInit(flags: c_uint) -> CUresult {
    entry("cuInit", || {
        if flags != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let driver = Driver::init()?;
        if driver.machine.gpus.is_empty() {
            return Err(CUDA_ERROR_NO_DEVICE);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> CUresult {
    entry("cuDriverGetVersion", || {
        // It may be asked for before `cuInit`.
        let driver = Driver::init()?;
        let (major, minor) = driver.machine.gpus.first().map_or((13, 0), |g| g.description.driver);
        // SAFETY: the manual's contract for the caller's pointer.
        unsafe { put(version, (major * 1000 + minor * 10) as c_int) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> CUresult {
    entry("cuDeviceGetCount", || {
        let devices = Driver::get()?.machine.gpus.len();
        // SAFETY: the manual's contract for the caller's pointer.
        unsafe { put(count, devices as c_int) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int) -> CUresult {
    entry("cuDeviceGet", || {
        index(ordinal)?;
        // SAFETY: the manual's contract for the caller's pointer.
        unsafe { put(device, ordinal) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, len: c_int, device: CUdevice) -> CUresult {
    entry("cuDeviceGetName", || {
        let text = description(device)?.name.as_bytes();
        let room = usize::try_from(len).ok().and_then(|l| l.checked_sub(1));
        let room = room.filter(|_| !name.is_null()).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let copied = text.len().min(room);
        // SAFETY: the caller gives `len` bytes, of which `copied + 1` are at most all.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr().cast(), name, copied);
            name.add(copied).write(0);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice) -> CUresult {
    entry("cuDeviceTotalMem_v2", || {
        let memory = description(device)?.memory;
        // SAFETY: the manual's contract for the caller's pointer.
        unsafe { put(bytes, memory as usize) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: CUdevice) -> CUresult {
    entry("cuDeviceGetUuid_v2", || {
        let mut id = *b"tlc-gpusim-dev-0";
        id[15] = b'0'.wrapping_add(index(device)? as u8);
        // SAFETY: the manual's contract for the caller's pointer.
        unsafe { put(uuid, id) }
    })
}

/// An attribute of a device, by the number that `cuda.h` gives it.
fn attribute(d: &Description, attribute: c_uint, device: CUdevice) -> Option<u32> {
    Some(match attribute {
        1..=3 => d.threads_per_block,
        4 => 64,
        5 => i32::MAX as u32,
        6 | 7 => 65_535,
        8 => d.shared_per_block,
        9 => 65_536,
        10 => 32,
        11 => i32::MAX as u32,
        12 => d.registers_per_block,
        13 => d.clock_khz,
        14 => 512,
        // Copies overlap, the host's memory is mapped, kernels run beside each other, memory corrects its errors.
        15 | 19 | 31 | 32 => 1,
        16 => d.multiprocessors,
        // No time limit, not integrated, any mode, on bus 0, no driver of Windows.
        17 | 18 | 20 | 35 | 50 => 0,
        33 => device as u32 + 1,
        34 => 0,
        36 => d.memory_clock_khz,
        37 => d.memory_bus_bits,
        38 => d.l2_cache,
        39 => d.threads_per_multiprocessor,
        40 => 2,
        41 => 1,
        75 => d.capability.0,
        76 => d.capability.1,
        // Priorities of streams, and caching of global and local memory in L1.
        78..=80 => 1,
        81 => d.shared_per_multiprocessor,
        82 => d.registers_per_multiprocessor,
        // Neither managed memory, nor several GPUs on a board, nor pageable memory, nor cooperative launches.
        83..=86 | 88..=89 | 91..=96 => 0,
        90 => 1,
        97 => d.shared_per_block_optin,
        106 => d.blocks_per_multiprocessor,
        108 => 0,
        111 => 1024,
        115 => d.has_memory_pools.into(),
        _ => return None,
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(value: *mut c_int, which: c_uint, device: CUdevice) -> CUresult {
    entry("cuDeviceGetAttribute", || {
        let found = attribute(description(device)?, which, device).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        // SAFETY: the manual's contract for the caller's pointer.
        unsafe { put(value, found as c_int) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceCanAccessPeer(can: *mut c_int, device: CUdevice, peer: CUdevice) -> CUresult {
    entry("cuDeviceCanAccessPeer", || {
        let (own, other) = (index(device)?, index(peer)?);
        let reaches = own != other && Driver::get()?.machine.settings.peers;
        // SAFETY: the manual's contract for the caller's pointer.
        unsafe { put(can, reaches.into()) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(error: CUresult, name: *mut *const c_char) -> CUresult {
    entry("cuGetErrorName", || {
        let found = words(error).map(|(name, _)| name.as_ptr().cast());
        // SAFETY: the manual's contract for the caller's pointer.
        unsafe { put(name, found.unwrap_or(std::ptr::null())) }?;
        found.map(|_| ()).ok_or(CUDA_ERROR_INVALID_VALUE)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(error: CUresult, text: *mut *const c_char) -> CUresult {
    entry("cuGetErrorString", || {
        let found = words(error).map(|(_, text)| text.as_ptr().cast());
        // SAFETY: the manual's contract for the caller's pointer.
        unsafe { put(text, found.unwrap_or(std::ptr::null())) }?;
        found.map(|_| ()).ok_or(CUDA_ERROR_INVALID_VALUE)
    })
}
