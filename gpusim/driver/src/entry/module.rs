//! Modules of PTX and their kernels.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::Arc;

use tlc_gpusim::Module;

use super::{Handle, entry, handle, number, put, text};
use crate::description::Description;
use crate::driver::{Driver, Function, Loaded};
use crate::result::{
    CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_IMAGE, CUDA_ERROR_INVALID_PTX, CUDA_ERROR_INVALID_VALUE,
    CUDA_ERROR_NO_BINARY_FOR_GPU, CUDA_ERROR_NOT_FOUND, CUDA_ERROR_UNSUPPORTED_PTX_VERSION, CUresult,
};

/// The registers of a thread that are reported for every kernel: PTX does not say how many a real device would take.
pub(super) const REGISTERS: u32 = 32;

/// The version of PTX that a driver for a version of CUDA reads.
fn newest_ptx((major, minor): (u32, u32)) -> (u32, u32) {
    match major {
        0..=11 => (7, minor.min(8)),
        12 => (8, minor),
        _ => (9, minor),
    }
}

/// Whether a device runs code for a target such as `sm_80` or `sm_90a`.
fn runs(target: &str, device: &Description) -> bool {
    let digits: String = target.chars().filter(char::is_ascii_digit).collect();
    let wanted = digits.parse::<u32>().unwrap_or(u32::MAX);
    let (major, minor) = device.capability;
    let own = major * 10 + minor;
    match target.chars().last() {
        // Features of one architecture, or of a family of them.
        Some('a') => wanted == own,
        Some('f') => wanted / 10 == major && wanted <= own,
        _ => wanted <= own,
    }
}

/// Reads an image.
///
/// # Safety
/// `image` is null, or points to a binary or to a text that a zero byte ends.
unsafe fn read(image: *const c_void, device: &Description) -> Result<Module, (CUresult, String)> {
    if image.is_null() {
        return Err((CUDA_ERROR_INVALID_VALUE, String::new()));
    }
    let bytes: *const u8 = image.cast();
    let starts = |magic: &[u8]| {
        // SAFETY: a byte is looked at only if those before it are as in `magic`, which has no zero that ends a text.
        magic
            .iter()
            .enumerate()
            .all(|(i, &want)| unsafe { bytes.add(i).read() } == want)
    };
    // ELF, and what fatbin begins with, in memory and wrapped.
    if starts(b"\x7fELF") || starts(&[0x50, 0xed, 0x55, 0xba]) || starts(&[0xb1, 0x43, 0x62, 0x46]) {
        let why = "the simulated device runs PTX alone".to_string();
        return Err((CUDA_ERROR_NO_BINARY_FOR_GPU, why));
    }
    // SAFETY: it is no binary, so a zero byte ends it.
    let source = unsafe { text(image.cast()) }.map_err(|e| (e, String::new()))?;
    if source.trim().is_empty() {
        return Err((CUDA_ERROR_INVALID_IMAGE, "the image is empty".to_string()));
    }
    let module = Module::parse(&source).map_err(|e| (CUDA_ERROR_INVALID_PTX, e.to_string()))?;
    let newest = newest_ptx(device.driver);
    if module.version() > newest {
        let (major, minor) = module.version();
        let why = format!(
            "PTX {major}.{minor} is newer than {}.{}, which the driver reads",
            newest.0, newest.1
        );
        return Err((CUDA_ERROR_UNSUPPORTED_PTX_VERSION, why));
    }
    if !runs(module.target(), device) {
        let (major, minor) = device.capability;
        let why = format!("the device is sm_{major}{minor} and does not run {}", module.target());
        return Err((CUDA_ERROR_NO_BINARY_FOR_GPU, why));
    }
    Ok(module)
}

/// Loads a module; what is wrong with its text goes to `log` too.
///
/// # Safety
/// As [`read`], and `module` is null or valid for writing.
unsafe fn load(module: *mut Handle, image: *const c_void, log: impl FnOnce(&str)) -> Result<(), CUresult> {
    let driver = Driver::get()?;
    let gpu = driver.current()?;
    if module.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: as the caller promises.
    let loaded = unsafe { read(image, &driver.machine.gpus[gpu].description) };
    let loaded = loaded.map_err(|(error, why)| {
        log(&why);
        error
    })?;
    let mut state = driver.state();
    let new = state.handle();
    let module_of = Arc::new(loaded);
    state.modules.insert(new, Loaded { gpu, module: module_of });
    // SAFETY: as the caller promises.
    unsafe { put(module, handle(new)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadData(module: *mut Handle, image: *const c_void) -> CUresult {
    entry("cuModuleLoadData", || {
        // SAFETY: the manual's contract for the caller's pointers.
        unsafe { load(module, image, |_| {}) }
    })
}

/// `CU_JIT_ERROR_LOG_BUFFER` and `CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES`.
const ERROR_LOG: (c_uint, c_uint) = (5, 6);

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadDataEx(
    module: *mut Handle,
    image: *const c_void,
    count: c_uint,
    options: *mut c_uint,
    values: *mut *mut c_void,
) -> CUresult {
    entry("cuModuleLoadDataEx", || {
        if count > 0 && (options.is_null() || values.is_null()) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let (mut buffer, mut room) = (std::ptr::null_mut::<c_void>(), 0);
        let mut room_at = None;
        for i in 0..count as usize {
            // SAFETY: the caller gives `count` options and values.
            let (option, value) = unsafe { (options.add(i).read(), values.add(i).read()) };
            if option == ERROR_LOG.0 {
                buffer = value;
            } else if option == ERROR_LOG.1 {
                room = value as usize;
                room_at = Some(i);
            }
        }
        let log = |why: &str| {
            if buffer.is_null() || room == 0 {
                return;
            }
            let copied = why.len().min(room - 1);
            // SAFETY: the caller's buffer has `room` bytes, and `values` an element at `room_at`, which gets how many were used.
            unsafe {
                std::ptr::copy_nonoverlapping(why.as_ptr(), buffer.cast(), copied);
                buffer.cast::<u8>().add(copied).write(0);
                if let Some(at) = room_at {
                    values.add(at).write((copied + 1) as *mut c_void);
                }
            }
        };
        // SAFETY: the manual's contract for the caller's pointers.
        unsafe { load(module, image, log) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuModuleUnload(module: Handle) -> CUresult {
    entry("cuModuleUnload", || {
        let driver = Driver::get()?;
        let loaded = driver.state().modules.get(&number(module)).cloned();
        let loaded = loaded.ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        // What is still on its way uses the module; the real driver waits too.
        let waited = driver.wait_for_device(loaded.gpu);
        let mut state = driver.state();
        state.modules.remove(&number(module));
        state.functions.retain(|_, f| f.handle_of_module != number(module));
        drop(state);
        driver.machine.gpus[loaded.gpu].unload(&loaded.module);
        waited
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetFunction(function: *mut Handle, module: Handle, name: *const c_char) -> CUresult {
    entry("cuModuleGetFunction", || {
        let driver = Driver::get()?;
        driver.current()?;
        // SAFETY: the manual's contract for the caller's pointers.
        let name = unsafe { text(name) }?;
        let mut state = driver.state();
        let loaded = state.modules.get(&number(module)).cloned();
        let loaded = loaded.ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        if loaded.module.kernel(&name).is_none() {
            return Err(CUDA_ERROR_NOT_FOUND);
        }
        let same = |f: &Function| f.handle_of_module == number(module) && *f.name == *name;
        let old = state.functions.iter().find(|(_, f)| same(f)).map(|(&h, _)| h);
        let new = old.unwrap_or_else(|| {
            let new = state.handle();
            let found = Function {
                handle_of_module: number(module),
                gpu: loaded.gpu,
                module: loaded.module,
                name: name.into(),
                dynamic_shared: 0,
            };
            state.functions.insert(new, found);
            new
        });
        // SAFETY: as above.
        unsafe { put(function, handle(new)) }
    })
}

/// The function of a handle.
pub(super) fn function(driver: &Driver, of: Handle) -> Result<Function, CUresult> {
    let found = driver.state().functions.get(&number(of)).cloned();
    found.ok_or(CUDA_ERROR_INVALID_HANDLE)
}

/// The most dynamic shared memory of a block that a function may be launched with, as things are.
pub(super) fn dynamic_limit(function: &Function, device: &Description, of_static: u32) -> u32 {
    let usual = device.shared_per_block.saturating_sub(of_static);
    function.dynamic_shared.max(usual)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFuncGetAttribute(value: *mut c_int, attribute: c_uint, of: Handle) -> CUresult {
    entry("cuFuncGetAttribute", || {
        let driver = Driver::get()?;
        driver.current()?;
        let function = function(driver, of)?;
        let device = &driver.machine.gpus[function.gpu].description;
        let kernel = function.module.kernel(&function.name).ok_or(CUDA_ERROR_NOT_FOUND)?;
        let (major, minor) = function.module.version();
        let found = match attribute {
            0 => device.threads_per_block,
            1 => kernel.shared_bytes,
            2 => 0,
            3 => kernel.local_bytes,
            4 => REGISTERS,
            5 => major * 10 + minor,
            6 => device.capability.0 * 10 + device.capability.1,
            7 => 0,
            8 => dynamic_limit(&function, device, kernel.shared_bytes),
            // The preferred carveout is the driver's choice: -1.
            9 => u32::MAX,
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        };
        // SAFETY: the manual's contract for the caller's pointer.
        unsafe { put(value, found as c_int) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuFuncSetAttribute(of: Handle, attribute: c_uint, value: c_int) -> CUresult {
    entry("cuFuncSetAttribute", || {
        let driver = Driver::get()?;
        driver.current()?;
        let known = function(driver, of)?;
        let device = &driver.machine.gpus[known.gpu].description;
        let kernel = known.module.kernel(&known.name).ok_or(CUDA_ERROR_NOT_FOUND)?;
        match attribute {
            8 => {
                let most = device.shared_per_block_optin.saturating_sub(kernel.shared_bytes);
                let wanted = u32::try_from(value).ok().filter(|&v| v <= most);
                let wanted = wanted.ok_or(CUDA_ERROR_INVALID_VALUE)?;
                if let Some(f) = driver.state().functions.get_mut(&number(of)) {
                    f.dynamic_shared = wanted;
                }
                Ok(())
            }
            9 if (-1..=100).contains(&value) => Ok(()),
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
    blocks: *mut c_int,
    of: Handle,
    threads: c_int,
    dynamic: usize,
) -> CUresult {
    entry("cuOccupancyMaxActiveBlocksPerMultiprocessor", || {
        let driver = Driver::get()?;
        driver.current()?;
        let function = function(driver, of)?;
        let device = &driver.machine.gpus[function.gpu].description;
        let kernel = function.module.kernel(&function.name).ok_or(CUDA_ERROR_NOT_FOUND)?;
        let threads = u32::try_from(threads).ok().filter(|&t| t > 0);
        let threads = threads.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let shared = u64::from(kernel.shared_bytes) + dynamic as u64;
        // The system takes 1 KiB of shared memory for each block.
        let taken = shared + 1024;
        let warps = threads.div_ceil(32);
        let by_shared = (u64::from(device.shared_per_multiprocessor) / taken).min(u64::from(u32::MAX)) as u32;
        let by_threads = device.threads_per_multiprocessor / (warps * 32);
        let by_registers = device.registers_per_multiprocessor / (warps * 32 * REGISTERS);
        let fits = threads <= device.threads_per_block && shared <= u64::from(device.shared_per_block_optin);
        let most = by_shared
            .min(by_threads)
            .min(by_registers)
            .min(device.blocks_per_multiprocessor);
        // SAFETY: the manual's contract for the caller's pointer.
        unsafe { put(blocks, if fits { most as c_int } else { 0 }) }
    })
}
