//! Primary contexts, and which is current on a thread.

use std::ffi::c_uint;

use super::device::index;
use super::{CUdevice, Handle, entry, handle, number, put};
use crate::driver::{CURRENT, Context, Driver};
use crate::result::{
    CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED,
    CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, CUresult,
};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut Handle, device: CUdevice) -> CUresult {
    entry("cuDevicePrimaryCtxRetain", || {
        let driver = Driver::get()?;
        let gpu = index(device)?;
        if context.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        driver.machine.gpus[gpu].failure()?;
        let mut state = driver.state();
        state.contexts[gpu].retained += 1;
        // SAFETY: the manual's contract for the caller's pointer.
        unsafe { put(context, handle(state.contexts[gpu].handle)) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRelease_v2(device: CUdevice) -> CUresult {
    entry("cuDevicePrimaryCtxRelease_v2", || {
        let driver = Driver::get()?;
        let gpu = index(device)?;
        let last = {
            let mut state = driver.state();
            let context = &mut state.contexts[gpu];
            context.retained = context.retained.checked_sub(1).ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
            context.retained == 0
        };
        if last {
            driver.destroy_context(gpu);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCurrent(context: Handle) -> CUresult {
    entry("cuCtxSetCurrent", || {
        let driver = Driver::get()?;
        let wanted = number(context);
        let state = driver.state();
        let known = state.contexts.iter().any(|c| c.handle == wanted && c.retained > 0);
        if wanted != 0 && !known {
            return Err(CUDA_ERROR_INVALID_CONTEXT);
        }
        CURRENT.set(wanted);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetCurrent(context: *mut Handle) -> CUresult {
    entry("cuCtxGetCurrent", || {
        Driver::get()?;
        // SAFETY: the manual's contract for the caller's pointer.
        unsafe { put(context, handle(CURRENT.get())) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetDevice(device: *mut CUdevice) -> CUresult {
    entry("cuCtxGetDevice", || {
        let gpu = Driver::get()?.state().current()?;
        // SAFETY: the manual's contract for the caller's pointer.
        unsafe { put(device, gpu as CUdevice) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSynchronize() -> CUresult {
    entry("cuCtxSynchronize", || {
        let driver = Driver::get()?;
        let gpu = driver.state().current()?;
        driver.refuse_while_capturing(gpu)?;
        driver.wait_for_device(gpu)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxEnablePeerAccess(peer: Handle, flags: c_uint) -> CUresult {
    entry("cuCtxEnablePeerAccess", || {
        let driver = Driver::get()?;
        driver.current()?;
        if flags != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let mut state = driver.state();
        let gpu = state.current()?;
        let alive = |c: &Context| c.handle == number(peer) && c.retained > 0;
        let other = state.contexts.iter().position(alive).filter(|other| *other != gpu);
        let other = other.ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
        if !driver.machine.settings.peers {
            return Err(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
        }
        match state.contexts[gpu].peers.insert(other) {
            true => Ok(()),
            false => Err(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED),
        }
    })
}
