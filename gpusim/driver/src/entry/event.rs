//! Events.

use std::ffi::c_uint;

use super::{Handle, entry, handle, number, put};
use crate::clock::Clock;
use crate::driver::{Driver, Event, Recorded};
use crate::result::{
    CUDA_ERROR_CAPTURED_EVENT, CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_READY, CUresult,
};
use crate::work::{Ticket, Work};
use std::sync::Arc;

/// `CU_EVENT_BLOCKING_SYNC`, `CU_EVENT_DISABLE_TIMING` and `CU_EVENT_INTERPROCESS`.
const FLAGS: c_uint = 7;
const NO_TIMING: c_uint = 2;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(to: *mut Handle, flags: c_uint) -> CUresult {
    entry("cuEventCreate", || {
        let driver = Driver::get()?;
        let gpu = driver.current()?;
        if to.is_null() || flags & !FLAGS != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let mut state = driver.state();
        let new = state.handle();
        let event = Event {
            gpu,
            has_time: flags & NO_TIMING == 0,
            recorded: None,
        };
        state.events.insert(new, event);
        // SAFETY: the manual's contract for the caller's pointer.
        unsafe { put(to, handle(new)) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventDestroy_v2(event: Handle) -> CUresult {
    entry("cuEventDestroy_v2", || {
        let removed = Driver::get()?.state().events.remove(&number(event));
        removed.map(|_| ()).ok_or(CUDA_ERROR_INVALID_HANDLE)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecord(event: Handle, stream: Handle) -> CUresult {
    entry("cuEventRecord", || {
        let driver = Driver::get()?;
        let mut state = driver.state();
        let known = state.events.get(&number(event)).map(|e| e.gpu);
        let gpu = known.ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        let stream = state.stream(&driver.machine, number(stream))?;
        let at = state.streams.get(&stream).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        if at.gpu != gpu {
            return Err(CUDA_ERROR_INVALID_HANDLE);
        }
        let recorded = match at.capture.clone() {
            Some(captured) => Recorded::Captured(captured),
            None => {
                let ticket = state.enqueue(&driver.machine, stream, "cuEventRecord", Work::Mark)?;
                let clock = state.streams.get(&stream).map(|s| s.clock.clone());
                Recorded::Done(ticket, clock.unwrap_or_default())
            }
        };
        if let Some(event) = state.events.get_mut(&number(event)) {
            event.recorded = Some(recorded);
        }
        Ok(())
    })
}

/// When an event is reached, and what is known then.
type Mark = (Arc<Ticket>, Clock);

/// The device of an event and what it recorded, if it is not of a capture.
fn recorded(driver: &Driver, event: Handle) -> Result<(usize, Option<Mark>), CUresult> {
    let state = driver.state();
    let event = state.events.get(&number(event)).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
    match event.recorded.clone() {
        None => Ok((event.gpu, None)),
        Some(Recorded::Done(ticket, clock)) => Ok((event.gpu, Some((ticket, clock)))),
        Some(Recorded::Captured(_)) => Err(CUDA_ERROR_CAPTURED_EVENT),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventSynchronize(event: Handle) -> CUresult {
    entry("cuEventSynchronize", || {
        let driver = Driver::get()?;
        let (gpu, recorded) = recorded(driver, event)?;
        if let Some((ticket, clock)) = recorded {
            ticket.wait();
            driver.state().host.learn(&clock);
        }
        driver.machine.gpus[gpu].failure()
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventQuery(event: Handle) -> CUresult {
    entry("cuEventQuery", || {
        let driver = Driver::get()?;
        let (gpu, recorded) = recorded(driver, event)?;
        driver.machine.gpus[gpu].failure()?;
        if let Some((ticket, clock)) = recorded {
            if !ticket.is_done() {
                return Err(CUDA_ERROR_NOT_READY);
            }
            driver.state().host.learn(&clock);
        }
        Ok(())
    })
}

/// The time between two events in milliseconds.
///
/// # Safety
/// `to` is null or valid for writing.
unsafe fn elapsed(to: *mut f32, start: Handle, end: Handle) -> Result<(), CUresult> {
    let driver = Driver::get()?;
    let timed = |event: Handle| {
        let state = driver.state();
        let has_time = state.events.get(&number(event)).is_some_and(|e| e.has_time);
        if has_time {
            Ok(())
        } else {
            Err(CUDA_ERROR_INVALID_HANDLE)
        }
    };
    timed(start)?;
    timed(end)?;
    let ((gpu, start), (_, end)) = (recorded(driver, start)?, recorded(driver, end)?);
    driver.machine.gpus[gpu].failure()?;
    let (Some((start, _)), Some((end, _))) = (start, end) else {
        return Err(CUDA_ERROR_INVALID_HANDLE);
    };
    let (Some(start), Some(end)) = (start.at(), end.at()) else {
        return Err(CUDA_ERROR_NOT_READY);
    };
    let forth = end.saturating_duration_since(start).as_secs_f32();
    let back = start.saturating_duration_since(end).as_secs_f32();
    // SAFETY: as the caller promises.
    unsafe { put(to, (forth - back) * 1e3) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime(to: *mut f32, start: Handle, end: Handle) -> CUresult {
    // SAFETY: the manual's contract for the caller's pointer.
    entry("cuEventElapsedTime", || unsafe { elapsed(to, start, end) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime_v2(to: *mut f32, start: Handle, end: Handle) -> CUresult {
    // SAFETY: the manual's contract for the caller's pointer.
    entry("cuEventElapsedTime_v2", || unsafe { elapsed(to, start, end) })
}
