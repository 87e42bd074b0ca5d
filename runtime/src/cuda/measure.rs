//! How fast a device copies: within its memory, from the host's and to it.

use std::sync::Arc;

use super::context::Context;
use super::device::queued;
use crate::device::{DeviceBuffer, Queued};
use crate::error::RunError;

/// Bytes a second, the best of several times.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Transfers {
    /// Within the device's memory: bytes read and written.
    pub within: f64,
    /// From pinned memory of the host.
    pub from_host: f64,
    /// To pinned memory of the host.
    pub to_host: f64,
}

/// Pinned memory of the host, which it gets back.
struct Pinned<'d> {
    device: &'d dyn Queued,
    start: *mut u8,
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        if let Some(recorder) = self.device.recorder() {
            // SAFETY: it was allocated there, and the queue is settled before it goes.
            unsafe { recorder.release_host(self.start) };
        }
    }
}

/// Measures copies of so many bytes, so many times each.
///
/// # Errors
/// If the device fails, or has not twice the memory.
pub fn transfers(context: &Arc<Context>, bytes: usize, times: usize) -> Result<Transfers, RunError> {
    let [device] = &queued(std::slice::from_ref(context))[..] else {
        return Ok(Transfers::default());
    };
    let (from, to) = (DeviceBuffer::new(device, bytes)?, DeviceBuffer::new(device, bytes)?);
    let pinned = match device.recorder() {
        Some(recorder) => Pinned {
            device: &**device,
            start: recorder.allocate_host(bytes)?,
        },
        None => return Ok(Transfers::default()),
    };
    // SAFETY: it has so many bytes, and nothing else knows of it.
    unsafe { pinned.start.write_bytes(0, bytes) };
    let best = |copy: &dyn Fn() -> Result<(), RunError>| -> Result<f64, RunError> {
        let mut least = f64::INFINITY;
        // The first may take longer for what it touches first.
        for _ in 0..times.max(1) + 1 {
            device.time(0, false)?;
            let copied = copy().and(device.time(0, true));
            // Also where it failed: nothing may be under way when memory goes.
            device.settle(0)?;
            copied?;
            let ns = device.time_taken(0)?.unwrap_or(0).max(1);
            least = least.min(ns as f64);
        }
        Ok(bytes as f64 / least * 1e9)
    };
    let (here, there) = (from.start(), to.start());
    // SAFETY: both have the bytes, nothing else knows of them, and the copy is settled before the next.
    let from_host = best(&|| unsafe { device.upload(0, pinned.start, here, bytes) })?;
    // SAFETY: as above.
    let within = 2.0 * best(&|| unsafe { device.copy(0, here, there, bytes) })?;
    // SAFETY: as above.
    let to_host = best(&|| unsafe { device.download(0, there, pinned.start, bytes) })?;
    Ok(Transfers {
        within,
        from_host,
        to_host,
    })
}
