//! The entry points, under the names that NVIDIA's driver exports.
//!
//! What each does and demands of its pointers, the CUDA Driver API manual says. All of them return an error in place of a panic.

#![allow(
    missing_docs,
    clippy::missing_safety_doc,
    reason = "the manual is the contract of every function here, for its caller's side of `unsafe` too"
)]

mod context;
mod copy;
mod device;
mod event;
mod graph;
mod launch;
mod memory;
mod module;
mod pool;
mod procedure;
mod product;
mod slots;
mod stream;
mod tensor;

pub use context::*;
pub use copy::*;
pub use device::*;
pub use event::*;
pub use graph::*;
pub use launch::*;
pub use memory::*;
pub use module::*;
pub use pool::*;
pub use procedure::*;
pub use product::*;
pub use slots::*;
pub use stream::*;
pub use tensor::*;

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::driver::Driver;
use crate::machine::lock;
use crate::result::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_UNKNOWN, CUDA_SUCCESS, CUresult};

/// A handle of any kind, as programs hold it.
pub type Handle = *mut c_void;

/// The number of a device.
pub type CUdevice = i32;

/// An address of device memory.
pub type CUdeviceptr = u64;

/// What an entry point does: it is counted, and what goes wrong is its result.
fn entry(name: &'static str, body: impl FnOnce() -> Result<(), CUresult>) -> CUresult {
    let done = catch_unwind(AssertUnwindSafe(|| {
        if let Ok(driver) = Driver::get() {
            lock(&driver.machine.log).call(name);
        }
        body()
    }));
    match done {
        Ok(Ok(())) => CUDA_SUCCESS,
        Ok(Err(result)) => result,
        Err(_) => CUDA_ERROR_UNKNOWN,
    }
}

/// Writes a result to where the caller wants it.
///
/// # Safety
/// `to` is null or valid for writing.
unsafe fn put<T>(to: *mut T, value: T) -> Result<(), CUresult> {
    if to.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: it is not null, so the caller promises that it is valid. It may be unaligned only if the program is wrong about its
    // own types, which this does not mind.
    unsafe { to.write_unaligned(value) };
    Ok(())
}

/// Writes a result that the caller may not want.
///
/// # Safety
/// `to` is null or valid for writing.
unsafe fn put_if<T>(to: *mut T, value: T) {
    // SAFETY: as the caller promises; that null is an error does not matter here.
    let _ = unsafe { put(to, value) };
}

/// The text of a C string.
///
/// # Safety
/// `text` is null or points to bytes that a zero byte ends.
unsafe fn text(text: *const std::ffi::c_char) -> Result<String, CUresult> {
    if text.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: as the caller promises.
    let text = unsafe { std::ffi::CStr::from_ptr(text) };
    Ok(text.to_string_lossy().into_owned())
}

/// A handle as it is looked up.
fn number(handle: Handle) -> u64 {
    handle as usize as u64
}

/// A number as programs hold it.
fn handle(number: u64) -> Handle {
    number as usize as Handle
}
