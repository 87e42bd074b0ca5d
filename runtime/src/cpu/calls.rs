//! Running host functions of a bound plan.

use tlc_ir::HostTensor;

use super::host_functions::counted::counted;
use super::host_functions::sort::{Buffers, sort};
use crate::binding::call::{BoundCall, Counted};
use crate::binding::overflow;
use crate::error::RunError;
use crate::pool::Pool;

/// Runs a host function; returns the symbol that it binds, and its value.
///
/// # Safety
/// The slots are those of the call's binding: each holds the bytes that the binding says, what the call reads is written, and nothing
/// else touches them meanwhile.
///
/// # Errors
/// If the system has no memory left.
pub(super) unsafe fn call(c: &BoundCall, slots: &[*mut u8], threads: &Pool) -> Result<Option<(usize, i64)>, RunError> {
    match c {
        // SAFETY: the caller's promise.
        BoundCall::Counted(c) => unsafe { run_counted(c, slots) }.map(Some),
        BoundCall::Sort {
            x,
            values,
            places,
            workspace,
            rows_at_once,
            sort: settings,
        } => {
            let buffers = Buffers {
                x: slots[*x],
                values: slots[*values],
                places: slots[*places],
                workspace: slots[*workspace],
                rows_at_once: *rows_at_once,
            };
            // SAFETY: binding checked what each buffer holds; the planner's buffers do not overlap.
            unsafe { sort(settings, buffers, threads)? };
            Ok(None)
        }
    }
}

/// # Safety
/// As [`call`].
unsafe fn run_counted(c: &Counted, slots: &[*mut u8]) -> Result<(usize, i64), RunError> {
    let misfit = || overflow(c.function.name());
    let mut operands = Vec::with_capacity(c.operands.len());
    for (slot, dtype, shape) in &c.operands {
        let bytes = shape.iter().product::<usize>() * dtype.bytes();
        let data: &[u8] = match bytes {
            0 => &[],
            // SAFETY: binding checked that the slot holds so many bytes, which an earlier step or the caller wrote.
            n => unsafe { std::slice::from_raw_parts(slots[*slot], n) },
        };
        operands.push(HostTensor::from_bytes(*dtype, shape, data).map_err(|_| misfit())?);
    }
    let results = counted(&c.function, &operands).ok_or_else(misfit)?;
    let count = results
        .last()
        .filter(|t| t.len() == 1)
        .ok_or_else(misfit)?
        .get(0)
        .as_i64();
    if count > c.most || results.len() != c.results.len() {
        return Err(misfit());
    }
    for ((slot, room), result) in c.results.iter().zip(&results) {
        let bytes = result.bytes();
        if bytes.len() > *room {
            return Err(misfit());
        }
        // SAFETY: the slot has room for so many bytes, and is not the result's own memory.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), slots[*slot], bytes.len()) };
    }
    Ok((c.symbol, count))
}
