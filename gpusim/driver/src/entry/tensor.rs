//! Maps of tensors for copies of their tiles.

use std::ffi::{c_uint, c_ulonglong, c_void};

use tlc_gpusim::{Swizzle, TENSOR_MAP_BYTES, TensorMap};

use super::entry;
use crate::driver::Driver;
use crate::result::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED, CUresult};

/// The least capability of a device that copies tiles.
const CAPABILITY: (u32, u32) = (9, 0);

/// The most dimensions of a tensor.
const MOST_DIMENSIONS: usize = 5;

/// What a map must be at a multiple of.
const MAP_ALIGN: usize = 64;

/// `CUtensorMap`.
#[repr(C, align(128))]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CUtensorMap {
    pub opaque: [c_ulonglong; TENSOR_MAP_BYTES / 8],
}

impl Default for CUtensorMap {
    fn default() -> CUtensorMap {
        CUtensorMap {
            opaque: [0; TENSOR_MAP_BYTES / 8],
        }
    }
}

/// Bytes of an element of a `CUtensorMapDataType`. Those that are flushed, rounded or packed on their way are not simulated.
fn element_bytes(kind: c_uint) -> Result<u32, CUresult> {
    match kind {
        // `UINT8`; `UINT16`, `FLOAT16`, `BFLOAT16`; `UINT32`, `INT32`, `FLOAT32`; `UINT64`, `INT64`, `FLOAT64`.
        0 => Ok(1),
        1 | 6 | 9 => Ok(2),
        2 | 3 | 7 => Ok(4),
        4 | 5 | 8 => Ok(8),
        10..=15 => Err(CUDA_ERROR_NOT_SUPPORTED),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

/// The permutation of a `CUtensorMapSwizzle`.
fn swizzle(kind: c_uint) -> Result<Swizzle, CUresult> {
    match kind {
        0 => Ok(Swizzle::None),
        1 => Ok(Swizzle::Bytes32),
        2 => Ok(Swizzle::Bytes64),
        3 => Ok(Swizzle::Bytes128),
        4..=6 => Err(CUDA_ERROR_NOT_SUPPORTED),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

/// A list of a caller.
///
/// # Safety
/// `at` is null or points to so many.
unsafe fn list<T: Copy>(at: *const T, count: usize) -> Result<Vec<T>, CUresult> {
    if at.is_null() && count > 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: the caller's promise.
    Ok((0..count).map(|i| unsafe { at.add(i).read_unaligned() }).collect())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuTensorMapEncodeTiled(
    to: *mut CUtensorMap,
    element: c_uint,
    rank: c_uint,
    address: *mut c_void,
    sizes: *const c_ulonglong,
    strides: *const c_ulonglong,
    tile: *const c_uint,
    steps: *const c_uint,
    interleave: c_uint,
    permuted: c_uint,
    promotion: c_uint,
    fill: c_uint,
) -> CUresult {
    entry("cuTensorMapEncodeTiled", || {
        let driver = Driver::get()?;
        let rank = rank as usize;
        let is_there = !to.is_null() && to.addr().is_multiple_of(MAP_ALIGN);
        if !is_there || !(1..=MOST_DIMENSIONS).contains(&rank) || interleave > 2 || promotion > 3 || fill > 1 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: the manual's contract for the caller's pointers, here and below.
        let (sizes, strides, tile, steps) = unsafe {
            let strides = list(strides, rank - 1)?;
            (list(sizes, rank)?, strides, list(tile, rank)?, list(steps, rank)?)
        };
        // What the first is has no meaning, but must be one of these too.
        if steps.iter().any(|step| !(1..=8).contains(step)) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let map = TensorMap {
            address: address.addr() as u64,
            element_bytes: element_bytes(element)?,
            sizes,
            strides,
            tile,
            swizzle: swizzle(permuted)?,
        };
        let bytes = map.encode().map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
        let copies_tiles = |gpu: &crate::machine::Gpu| gpu.description.capability >= CAPABILITY;
        let is_plain = steps[1..].iter().all(|&step| step == 1) && interleave == 0 && fill == 0;
        if !is_plain || !driver.machine.gpus.iter().any(copies_tiles) {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        // SAFETY: see above.
        unsafe { to.cast::<[u8; TENSOR_MAP_BYTES]>().write(bytes) };
        Ok(())
    })
}
