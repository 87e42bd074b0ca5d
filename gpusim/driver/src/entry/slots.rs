//! What no real driver exports: slots, and what was found.

use std::ffi::{c_char, c_uint};
use std::sync::Arc;

use tlc_gpusim::SlotEvent;

use super::{CUdeviceptr, Handle, entry, number, put_if, text};
use crate::driver::Driver;
use crate::result::{CUDA_ERROR_INVALID_VALUE, CUresult};
use crate::work::{SlotChange, Work};

/// What happens to a part of an allocation; see [`tlcSimSlots`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TlcSimSlot {
    /// Where it begins.
    pub address: CUdeviceptr,
    /// How many bytes it has.
    pub bytes: u64,
    /// 0: it is born, and nobody has written its bytes. 1: it is born over bytes that keep their values, as the result of a step
    /// in place is. 2: it dies.
    pub event: u32,
    /// Zero.
    pub reserved: u32,
    /// What it is called in findings, ended by a zero byte; it is copied. May be null.
    pub name: *const c_char,
}

/// Announces births and deaths of slots, in the order of a stream; while the stream captures, as a node of the graph.
///
/// `CUresult tlcSimSlots(CUstream stream, unsigned int count, const TlcSimSlot *slots)`. A program looks the entry point up and does
/// without it where it is absent, as it is in every real driver. From the first slot of an allocation on, an access to the
/// allocation is right only within a live slot, and that of a kernel only within live slots that one of the launch's parameters
/// points into. A slot that is born replaces those that it overlaps. Leave at least 256 bytes between slots: what a store beside
/// one hits there is found at any distance up to that.
///
/// # Safety
/// `slots` is null or points to `count` of them, whose names are null or ended by a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlcSimSlots(stream: Handle, count: c_uint, slots: *const TlcSimSlot) -> CUresult {
    entry("tlcSimSlots", || {
        let driver = Driver::get()?;
        driver.current()?;
        if count == 0 {
            return Ok(());
        }
        if slots.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let mut changes = Vec::with_capacity(count as usize);
        for i in 0..count as usize {
            // SAFETY: the caller gives `count` of them.
            let slot = unsafe { slots.add(i).read_unaligned() };
            let event = match slot.event {
                0 => SlotEvent::Birth,
                1 => SlotEvent::Adoption,
                2 => SlotEvent::Death,
                _ => return Err(CUDA_ERROR_INVALID_VALUE),
            };
            let name: Arc<str> = if slot.name.is_null() {
                format!("{:#x}", slot.address).into()
            } else {
                // SAFETY: it is not null, so the caller promises that a zero byte ends it.
                unsafe { text(slot.name) }?.into()
            };
            let end = slot.address.checked_add(slot.bytes);
            end.ok_or(CUDA_ERROR_INVALID_VALUE)?;
            changes.push(SlotChange {
                event,
                address: slot.address,
                bytes: slot.bytes,
                name,
            });
        }
        driver.submit(number(stream), "tlcSimSlots", Work::Slots(changes.into()))?;
        Ok(())
    })
}

/// Writes what was found and counted since the driver was loaded as JSON.
///
/// `CUresult tlcSimReport(char *buffer, size_t room, size_t *needed)`. The text is ended by a zero byte; `needed` gets how many bytes
/// it takes with that, and a buffer with less room is left as it is and `CUDA_ERROR_INVALID_VALUE` returned, unless it is null.
/// Its keys: `findings` (the first thousand), `found` (how many), `kinds` (how many of each), `launches`, `lane_instructions`,
/// `bytes_to_device` and `bytes_to_host` (what copies moved between the host and devices),
/// `device_bytes`, `device_peak_bytes`, `pinned_bytes`, `handles` (streams, events, modules, functions, pools, graphs that are not
/// destroyed), and `calls` (how often each entry point was called).
///
/// # Safety
/// `buffer` is null or has `room` bytes, and `needed` is null or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlcSimReport(buffer: *mut c_char, room: usize, needed: *mut usize) -> CUresult {
    entry("tlcSimReport", || {
        let report = Driver::get()?.report();
        // SAFETY: as the caller promises.
        unsafe { put_if(needed, report.len() + 1) };
        if buffer.is_null() {
            return Ok(());
        }
        if room <= report.len() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: the buffer has room for the text and its end.
        unsafe {
            std::ptr::copy_nonoverlapping(report.as_ptr().cast(), buffer, report.len());
            buffer.add(report.len()).write(0);
        }
        Ok(())
    })
}
