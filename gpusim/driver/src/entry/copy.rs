//! Copies and fills.

use std::ffi::{c_uchar, c_uint, c_void};

use super::{CUdeviceptr, Handle, entry, number};
use crate::driver::Driver;
use crate::machine::lock;
use crate::result::{CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE, CUresult};
use crate::work::{End, Work};

/// When a copy returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Returns {
    /// When it is done.
    Done,
    /// When it is asked for, except that memory of the host that is not pinned is used before.
    Asked,
}

/// What a copy between devices may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Between {
    /// The stream's device must reach both ends.
    Reached,
    /// Where it does not, bytes go through the host.
    Any,
}

/// Copies between memories of devices and the host.
fn copy(what: &str, to: u64, from: u64, bytes: usize, stream: u64, returns: Returns) -> Result<(), CUresult> {
    copied(what, (to, from, bytes), stream, returns, Between::Reached)
}

/// As [`copy`].
fn copied(
    what: &str,
    (to, from, bytes): (u64, u64, usize),
    stream: u64,
    returns: Returns,
    between: Between,
) -> Result<(), CUresult> {
    let driver = Driver::get()?;
    driver.current()?;
    if bytes == 0 {
        return Ok(());
    }
    let bytes = bytes as u64;
    let machine = &driver.machine;
    let (is_capturing, pinned_from, pinned_to, reaches) = {
        let mut state = driver.state();
        let handle = state.stream(machine, stream)?;
        let stream = state.streams.get(&handle).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        let (captures, gpu) = (stream.capture.is_some(), stream.gpu);
        let reaches = |address| machine.owner(address).is_none() || state.reaches(machine, gpu, address);
        let reaches = reaches(from) && reaches(to);
        (
            captures,
            state.is_pinned(from, bytes),
            state.is_pinned(to, bytes),
            reaches,
        )
    };
    let on_device = |address: u64| match machine.owner(address) {
        Some(_) if machine.holds(address, bytes) => Ok(true),
        Some(_) => Err(CUDA_ERROR_INVALID_VALUE),
        None if address == 0 => Err(CUDA_ERROR_INVALID_VALUE),
        None => Ok(false),
    };
    let (source, target) = (on_device(from)?, on_device(to)?);
    if source && target {
        let crosses = machine.owner(from) != machine.owner(to);
        if !reaches && between == Between::Reached {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if crosses {
            lock(&machine.log).exchanged(!reaches, bytes);
        }
    }
    let mut waits = returns == Returns::Done && !(source && target);
    let from = if source {
        End::Device(from)
    } else if is_capturing || pinned_from {
        End::Host(from, pinned_from)
    } else {
        // SAFETY: the caller's range of the host has so many bytes to read now.
        let taken = unsafe { std::slice::from_raw_parts(from as usize as *const u8, bytes as usize) };
        End::Taken(taken.into())
    };
    let to = if target {
        End::Device(to)
    } else {
        waits |= !pinned_to && !is_capturing;
        End::Host(to, pinned_to)
    };
    driver.submit(stream, what, Work::Copy { from, to, bytes })?;
    if waits {
        driver.wait_for_stream(stream)?;
    }
    Ok(())
}

/// Whether an address is of a device, for copies that say so.
fn of_device(address: CUdeviceptr) -> Result<u64, CUresult> {
    let owner = Driver::get()?.machine.owner(address);
    owner.map(|_| address).ok_or(CUDA_ERROR_INVALID_VALUE)
}

fn of_host(at: *const c_void) -> Result<u64, CUresult> {
    let address = at as usize as u64;
    if address == 0 || Driver::get()?.machine.owner(address).is_some() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    Ok(address)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoD_v2(to: CUdeviceptr, from: *const c_void, bytes: usize) -> CUresult {
    entry("cuMemcpyHtoD_v2", || {
        copy("cuMemcpyHtoD", of_device(to)?, of_host(from)?, bytes, 0, Returns::Done)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoH_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize) -> CUresult {
    entry("cuMemcpyDtoH_v2", || {
        copy("cuMemcpyDtoH", of_host(to)?, of_device(from)?, bytes, 0, Returns::Done)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoD_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize) -> CUresult {
    entry("cuMemcpyDtoD_v2", || {
        copy(
            "cuMemcpyDtoD",
            of_device(to)?,
            of_device(from)?,
            bytes,
            0,
            Returns::Done,
        )
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoDAsync_v2(
    to: CUdeviceptr,
    from: *const c_void,
    bytes: usize,
    stream: Handle,
) -> CUresult {
    entry("cuMemcpyHtoDAsync_v2", || {
        let (to, from) = (of_device(to)?, of_host(from)?);
        copy("cuMemcpyHtoDAsync", to, from, bytes, number(stream), Returns::Asked)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoHAsync_v2(
    to: *mut c_void,
    from: CUdeviceptr,
    bytes: usize,
    stream: Handle,
) -> CUresult {
    entry("cuMemcpyDtoHAsync_v2", || {
        let (to, from) = (of_host(to)?, of_device(from)?);
        copy("cuMemcpyDtoHAsync", to, from, bytes, number(stream), Returns::Asked)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoDAsync_v2(
    to: CUdeviceptr,
    from: CUdeviceptr,
    bytes: usize,
    stream: Handle,
) -> CUresult {
    entry("cuMemcpyDtoDAsync_v2", || {
        let (to, from) = (of_device(to)?, of_device(from)?);
        copy("cuMemcpyDtoDAsync", to, from, bytes, number(stream), Returns::Asked)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyAsync(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: Handle) -> CUresult {
    entry("cuMemcpyAsync", || {
        copy("cuMemcpyAsync", to, from, bytes, number(stream), Returns::Asked)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyPeerAsync(
    to: CUdeviceptr,
    to_context: Handle,
    from: CUdeviceptr,
    from_context: Handle,
    bytes: usize,
    stream: Handle,
) -> CUresult {
    entry("cuMemcpyPeerAsync", || {
        let driver = Driver::get()?;
        for (address, context) in [(to, to_context), (from, from_context)] {
            let owner = driver.machine.owner(address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
            if driver.state().contexts[owner].handle != number(context) {
                return Err(CUDA_ERROR_INVALID_CONTEXT);
            }
        }
        let what = (to, from, bytes);
        copied("cuMemcpyPeerAsync", what, number(stream), Returns::Asked, Between::Any)
    })
}

/// Fills memory with a pattern.
fn fill(what: &str, address: u64, pattern: &[u8], count: usize, stream: Handle) -> Result<(), CUresult> {
    let driver = Driver::get()?;
    driver.current()?;
    if count == 0 {
        return Ok(());
    }
    let bytes = (pattern.len() as u64).checked_mul(count as u64);
    let bytes = bytes.ok_or(CUDA_ERROR_INVALID_VALUE)?;
    if !driver.machine.holds(address, bytes) || !address.is_multiple_of(pattern.len() as u64) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let work = Work::Fill {
        address,
        pattern: pattern.to_vec(),
        count: count as u64,
    };
    driver.submit(number(stream), what, work)?;
    Ok(())
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD8Async(to: CUdeviceptr, value: c_uchar, count: usize, stream: Handle) -> CUresult {
    entry("cuMemsetD8Async", || {
        fill("cuMemsetD8Async", to, &[value], count, stream)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD32Async(to: CUdeviceptr, value: c_uint, count: usize, stream: Handle) -> CUresult {
    entry("cuMemsetD32Async", || {
        fill("cuMemsetD32Async", to, &value.to_le_bytes(), count, stream)
    })
}
