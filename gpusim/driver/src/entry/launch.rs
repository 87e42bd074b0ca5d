//! Launches of kernels.

use std::ffi::{c_uint, c_void};

use tlc_gpusim::{Argument, Kernel, Launch};

use super::module::{dynamic_limit, function};
use super::{Handle, entry, number};
use crate::description::Description;
use crate::driver::{Driver, Function};
use crate::result::{CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_FOUND, CUresult};
use crate::work::Work;

/// `CU_LAUNCH_PARAM_END`, `CU_LAUNCH_PARAM_BUFFER_POINTER` and `CU_LAUNCH_PARAM_BUFFER_SIZE`.
const EXTRA: (usize, usize, usize) = (0, 1, 2);

/// Reads the arguments of a launch.
///
/// # Safety
/// As `cuLaunchKernel` demands of `params` and `extra`.
pub(super) unsafe fn arguments(
    kernel: &Kernel,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Result<Vec<Argument>, CUresult> {
    let sizes = &kernel.parameters;
    if sizes.is_empty() {
        return Ok(Vec::new());
    }
    let mut found = Vec::with_capacity(sizes.len());
    if !params.is_null() {
        for (i, &(_, bytes)) in sizes.iter().enumerate() {
            let mut data = vec![0; bytes as usize];
            // SAFETY: the caller gives a pointer for each parameter, to as many bytes as that has.
            unsafe {
                let at = params.add(i).read();
                if at.is_null() {
                    return Err(CUDA_ERROR_INVALID_VALUE);
                }
                std::ptr::copy_nonoverlapping(at.cast::<u8>(), data.as_mut_ptr(), data.len());
            }
            found.push(Argument(data));
        }
        return Ok(found);
    }
    if extra.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let (mut buffer, mut len) = (std::ptr::null::<u8>(), 0);
    let mut at = extra;
    loop {
        // SAFETY: the caller's list goes on until `CU_LAUNCH_PARAM_END`, which stops this; the others have a value each.
        let (what, value) = unsafe {
            let what = at.read() as usize;
            let ends = what == EXTRA.0;
            (what, if ends { std::ptr::null_mut() } else { at.add(1).read() })
        };
        if what == EXTRA.0 {
            break;
        } else if what == EXTRA.1 {
            buffer = value.cast();
        } else if what == EXTRA.2 && !value.is_null() {
            // SAFETY: the value is a pointer to a size.
            len = unsafe { value.cast::<usize>().read_unaligned() };
        } else {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: the list goes on after the value.
        at = unsafe { at.add(2) };
    }
    if buffer.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    for &(offset, bytes) in sizes {
        if offset as usize + bytes as usize > len {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let mut data = vec![0; bytes as usize];
        // SAFETY: the caller's buffer has `len` bytes, which hold this parameter.
        unsafe { std::ptr::copy_nonoverlapping(buffer.add(offset as usize), data.as_mut_ptr(), data.len()) };
        found.push(Argument(data));
    }
    Ok(found)
}

/// Looks whether a device runs a launch of that size.
pub(super) fn check_size(
    launch: &Launch,
    function: &Function,
    kernel: &Kernel,
    device: &Description,
) -> Result<(), CUresult> {
    let threads = launch.block.iter().map(|&n| u128::from(n)).product::<u128>();
    let fits = (1..=u128::from(device.threads_per_block)).contains(&threads)
        && launch.block[2] <= 64
        && !launch.grid.contains(&0)
        && launch.grid[0] <= i32::MAX as u32
        && launch.grid[1..].iter().all(|&n| n <= 65_535)
        && launch.shared_bytes <= dynamic_limit(function, device, kernel.shared_bytes);
    if fits { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchKernel(
    of: Handle,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared_bytes: c_uint,
    stream: Handle,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CUresult {
    entry("cuLaunchKernel", || {
        let driver = Driver::get()?;
        driver.current()?;
        let known = function(driver, of)?;
        let kernel = known.module.kernel(&known.name).ok_or(CUDA_ERROR_NOT_FOUND)?;
        let launch = Launch {
            grid: [grid_x, grid_y, grid_z],
            block: [block_x, block_y, block_z],
            shared_bytes,
            // SAFETY: the manual's contract for the caller's pointers.
            arguments: unsafe { arguments(&kernel, params, extra) }?,
        };
        check_size(&launch, &known, &kernel, &driver.machine.gpus[known.gpu].description)?;
        if driver.device_of(number(stream))? != known.gpu {
            return Err(CUDA_ERROR_INVALID_HANDLE);
        }
        let what = format!("launch of `{}`", known.name);
        let work = Work::Launch {
            function: number(of),
            module: known.module,
            kernel: known.name,
            launch,
        };
        driver.submit(number(stream), &what, work)?;
        Ok(())
    })
}
