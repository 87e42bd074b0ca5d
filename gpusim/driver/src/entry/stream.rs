//! Streams.

use std::ffi::{c_int, c_uint};

use super::{Handle, entry, handle, number, put};
use crate::driver::{Driver, Recorded};
use crate::result::{CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_READY, CUresult};
use crate::work::Work;

/// Makes a stream.
///
/// # Safety
/// `to` is null or valid for writing.
unsafe fn create(to: *mut Handle, flags: c_uint) -> Result<(), CUresult> {
    let driver = Driver::get()?;
    let gpu = driver.current()?;
    // `CU_STREAM_DEFAULT` and `CU_STREAM_NON_BLOCKING`.
    if to.is_null() || flags > 1 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let new = driver.state().open_stream(&driver.machine, gpu, flags == 0)?;
    // SAFETY: as the caller promises.
    unsafe { put(to, handle(new)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(to: *mut Handle, flags: c_uint) -> CUresult {
    // SAFETY: the manual's contract for the caller's pointer.
    entry("cuStreamCreate", || unsafe { create(to, flags) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreateWithPriority(to: *mut Handle, flags: c_uint, _priority: c_int) -> CUresult {
    // SAFETY: the manual's contract for the caller's pointer.
    entry("cuStreamCreateWithPriority", || unsafe { create(to, flags) })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamDestroy_v2(stream: Handle) -> CUresult {
    entry("cuStreamDestroy_v2", || {
        let driver = Driver::get()?;
        let mut state = driver.state();
        if !state.streams.contains_key(&number(stream)) {
            return Err(CUDA_ERROR_INVALID_HANDLE);
        }
        state.close_stream(number(stream));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamSynchronize(stream: Handle) -> CUresult {
    entry("cuStreamSynchronize", || Driver::get()?.wait_for_stream(number(stream)))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamQuery(stream: Handle) -> CUresult {
    entry("cuStreamQuery", || {
        let driver = Driver::get()?;
        let mut state = driver.state();
        let stream = state.stream(&driver.machine, number(stream))?;
        let (gpu, ticket, clock) = state.tail(stream)?;
        driver.machine.gpus[gpu].failure()?;
        if ticket.is_some_and(|t| !t.is_done()) {
            return Err(CUDA_ERROR_NOT_READY);
        }
        state.host.learn(&clock);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamWaitEvent(stream: Handle, event: Handle, flags: c_uint) -> CUresult {
    entry("cuStreamWaitEvent", || {
        let driver = Driver::get()?;
        if flags > 1 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let mut state = driver.state();
        let stream = state.stream(&driver.machine, number(stream))?;
        let event = state.events.get(&number(event)).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        match event.recorded.clone() {
            // An event that recorded nothing is waited for no longer than that.
            None => Ok(()),
            Some(Recorded::Captured(captured)) => state.join_capture(stream, &captured),
            Some(Recorded::Done(ticket, clock)) => {
                state.refuse_if_capturing(stream)?;
                let other = Some((&ticket, &clock));
                state.enqueue_after(&driver.machine, stream, "cuStreamWaitEvent", Work::Mark, other)?;
                Ok(())
            }
        }
    })
}
