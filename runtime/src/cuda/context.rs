//! Devices, their primary contexts, and what is known of them.

use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::cublaslt;
use super::library::{Code, Handle, Library, Refusal};
use super::peers::Peers;
use super::pool::Pool;
use crate::error::{RunError, Unavailable};

/// The oldest devices that kernels run on: maxima that keep NaN came with 8.0.
const OLDEST: (i32, i32) = (8, 0);

/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub(super) const OUT_OF_MEMORY: Code = 2;

/// Numbers of `CUdevice_attribute`.
mod attribute {
    pub(super) const MAX_SHARED_BYTES_PER_BLOCK: u32 = 8;
    pub(super) const CLOCK_KHZ: u32 = 13;
    pub(super) const MULTIPROCESSORS: u32 = 16;
    pub(super) const MEMORY_CLOCK_KHZ: u32 = 36;
    pub(super) const MEMORY_BUS_BITS: u32 = 37;
    pub(super) const L2_BYTES: u32 = 38;
    pub(super) const THREADS_PER_MULTIPROCESSOR: u32 = 39;
    pub(super) const MAJOR: u32 = 75;
    pub(super) const MINOR: u32 = 76;
    pub(super) const SHARED_BYTES_PER_MULTIPROCESSOR: u32 = 81;
    pub(super) const REGISTERS_PER_MULTIPROCESSOR: u32 = 82;
    pub(super) const MAX_SHARED_BYTES_OPT_IN: u32 = 97;
    pub(super) const BLOCKS_PER_MULTIPROCESSOR: u32 = 106;
    pub(super) const MEMORY_POOLS: u32 = 115;
}

/// What a multiprocessor holds at once; 0 where the driver does not say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    /// Bytes of shared memory.
    pub shared_bytes: u32,
    /// Registers of 32 bits.
    pub registers: u32,
    /// Threads.
    pub threads: u32,
    /// Blocks.
    pub blocks: u32,
}

/// What a device is.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Properties {
    /// Its number among those the driver shows.
    pub ordinal: u32,
    /// Its name.
    pub name: String,
    /// Its compute capability, major and minor.
    pub capability: (i32, i32),
    /// Bytes of its memory.
    pub memory_bytes: u64,
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// What each of them holds at once.
    pub multiprocessor: Held,
    /// Bytes of shared memory that a block may have, without asking and at most.
    pub shared_bytes: (u32, u32),
    /// Whether its driver has pools of memory that comes and goes in the order of streams.
    pub memory_pools: bool,
    /// Bytes of its second-level cache.
    pub l2_bytes: u32,
    /// Clock of its multiprocessors, in kHz; 0 if the driver does not say.
    pub clock_khz: u32,
    /// Clock of its memory, in kHz, and the width of the bus in bits; 0 if the driver does not say.
    pub memory_clock: (u32, u32),
    /// The driver's version.
    pub driver: String,
    /// Where the driver is.
    pub driver_path: String,
    /// Whether no device is behind it, so that times say nothing.
    pub simulated: bool,
}

impl Properties {
    /// What it is called in messages.
    pub fn title(&self) -> String {
        format!("cuda:{} ({})", self.ordinal, self.name)
    }
}

/// A device in use.
pub struct Context {
    driver: &'static Library,
    handle: Handle,
    /// The driver's name of it.
    device: c_int,
    properties: Properties,
    peers: Peers,
    /// What failed so that nothing works from then on.
    lost: OnceLock<String>,
    /// Whether it refused machine code, so that it gets PTX.
    wants_ptx: AtomicBool,
    pool: Pool,
    products: OnceLock<Result<Products, Unavailable>>,
}

/// The library of products, opened for a context, with which it stays.
#[derive(Clone, Copy)]
pub(super) struct Products {
    pub(super) library: &'static cublaslt::Library,
    pub(super) handle: Handle,
}

// SAFETY: the context's handle is the driver's, which takes it on every thread.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// The driver, loaded at the first call. What it says then is said for the whole life of the process.
fn driver() -> Result<&'static Library, Unavailable> {
    static DRIVER: OnceLock<Result<Library, Unavailable>> = OnceLock::new();
    DRIVER.get_or_init(Library::load).as_ref().map_err(Clone::clone)
}

fn broken(e: &Refusal) -> Unavailable {
    Unavailable::Failed { message: e.to_string() }
}

fn count(driver: &Library) -> Result<u32, Unavailable> {
    let mut count = 0;
    // SAFETY: a valid place for the result.
    let code = unsafe { (driver.cuDeviceGetCount)(&mut count) };
    driver.check("cuDeviceGetCount", code).map_err(|e| broken(&e))?;
    Ok(count.max(0) as u32)
}

/// The devices that the driver shows, those that are too old included.
///
/// # Errors
/// If there is no driver, or it cannot be used.
pub fn devices() -> Result<Vec<Properties>, Unavailable> {
    let driver = driver()?;
    (0..count(driver)?)
        .map(|ordinal| Ok(properties(driver, ordinal)?.1))
        .collect()
}

fn properties(driver: &Library, ordinal: u32) -> Result<(c_int, Properties), Unavailable> {
    let mut device = 0;
    // SAFETY: a valid place for the result.
    let code = unsafe { (driver.cuDeviceGet)(&mut device, ordinal as c_int) };
    driver.check("cuDeviceGet", code).map_err(|e| broken(&e))?;
    let mut name = [0u8; 256];
    // SAFETY: the driver writes at most as many bytes as the call says, the zero at the end included.
    let code = unsafe { (driver.cuDeviceGetName)(name.as_mut_ptr().cast::<c_char>(), name.len() as c_int, device) };
    driver.check("cuDeviceGetName", code).map_err(|e| broken(&e))?;
    let name = name.split(|b| *b == 0).next().unwrap_or_default();
    let mut memory = 0;
    // SAFETY: a valid place for the result.
    let code = unsafe { (driver.cuDeviceTotalMem_v2)(&mut memory, device) };
    driver.check("cuDeviceTotalMem_v2", code).map_err(|e| broken(&e))?;
    let attribute = |which: u32| -> Result<c_int, Refusal> {
        let mut value = 0;
        // SAFETY: a valid place for the result.
        let code = unsafe { (driver.cuDeviceGetAttribute)(&mut value, which, device) };
        driver.check("cuDeviceGetAttribute", code)?;
        Ok(value)
    };
    let needed = |which| attribute(which).map_err(|e| broken(&e));
    let wanted = |which| attribute(which).map_or(0, |v| v.max(0) as u32);
    let found = Properties {
        ordinal,
        name: String::from_utf8_lossy(name).into_owned(),
        capability: (needed(attribute::MAJOR)?, needed(attribute::MINOR)?),
        memory_bytes: memory as u64,
        multiprocessors: wanted(attribute::MULTIPROCESSORS),
        multiprocessor: Held {
            shared_bytes: wanted(attribute::SHARED_BYTES_PER_MULTIPROCESSOR),
            registers: wanted(attribute::REGISTERS_PER_MULTIPROCESSOR),
            threads: wanted(attribute::THREADS_PER_MULTIPROCESSOR),
            blocks: wanted(attribute::BLOCKS_PER_MULTIPROCESSOR),
        },
        shared_bytes: (
            wanted(attribute::MAX_SHARED_BYTES_PER_BLOCK),
            wanted(attribute::MAX_SHARED_BYTES_OPT_IN),
        ),
        memory_pools: wanted(attribute::MEMORY_POOLS) != 0,
        l2_bytes: wanted(attribute::L2_BYTES),
        clock_khz: wanted(attribute::CLOCK_KHZ),
        memory_clock: (wanted(attribute::MEMORY_CLOCK_KHZ), wanted(attribute::MEMORY_BUS_BITS)),
        driver: driver.version(),
        driver_path: driver.path().display().to_string(),
        simulated: driver.slots.is_some(),
    };
    Ok((device, found))
}

/// A device by its number, made ready at the first call.
///
/// # Errors
/// If there is no driver, no device of that number, or it is too old.
pub fn open(ordinal: u32) -> Result<Arc<Context>, Unavailable> {
    static OPEN: Mutex<Vec<Arc<Context>>> = Mutex::new(Vec::new());
    let driver = driver()?;
    let mut known = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(context) = known.iter().find(|c| c.properties.ordinal == ordinal) {
        return Ok(Arc::clone(context));
    }
    let count = count(driver)?;
    if ordinal >= count {
        return Err(Unavailable::Device { ordinal, count });
    }
    let (device, properties) = properties(driver, ordinal)?;
    if properties.capability < OLDEST {
        let (major, minor) = properties.capability;
        return Err(Unavailable::OldDevice {
            name: properties.name,
            found: format!("{major}.{minor}"),
        });
    }
    let mut handle: Handle = std::ptr::null_mut();
    // SAFETY: a valid place for the result, and a device that the driver named.
    let code = unsafe { (driver.cuDevicePrimaryCtxRetain)(&mut handle, device) };
    let retained = driver.check("cuDevicePrimaryCtxRetain", code);
    retained.map_err(|e| broken(&e))?;
    let context = Arc::new(Context {
        driver,
        handle,
        device,
        properties,
        peers: Peers::default(),
        lost: OnceLock::new(),
        wants_ptx: AtomicBool::new(false),
        pool: Pool::default(),
        products: OnceLock::new(),
    });
    known.push(Arc::clone(&context));
    Ok(context)
}

/// Whether nothing works after an error (CUDA Driver API, `CUresult`).
fn stays(code: Code) -> bool {
    // Unavailable, memory beyond repair, an address, a time limit, and what else ends a kernel.
    matches!(code, 46 | 214 | 700 | 702 | 710 | 714..=720)
}

impl Context {
    /// What it is.
    pub fn properties(&self) -> &Properties {
        &self.properties
    }

    /// The version of the library of matrix products, which is loaded at the first call.
    ///
    /// # Errors
    /// If there is none that can be used here.
    pub fn product_library(&self) -> Result<String, Unavailable> {
        Ok(self.products()?.library.version())
    }

    /// The library of matrix products.
    pub(super) fn products(&self) -> Result<Products, Unavailable> {
        let opened = self.products.get_or_init(|| {
            let library = cublaslt::Library::get(self.properties.simulated)?;
            let current = self.quietly("cuCtxSetCurrent", |_| 0);
            current.map_err(|e| broken(&e))?;
            let handle = library.open()?;
            Ok(Products { library, handle })
        });
        opened.clone()
    }

    /// Bytes of its memory that are free, and all there are.
    ///
    /// # Errors
    /// If the driver does not say.
    pub fn memory(&self) -> Result<(u64, u64), RunError> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: valid places for the results.
        self.call("cuMemGetInfo_v2", |d| unsafe {
            (d.cuMemGetInfo_v2)(&mut free, &mut total)
        })?;
        Ok((free as u64, total as u64))
    }

    /// Whether it finds accesses beside the slots of arenas, as the simulated device does where slots lie apart.
    pub fn checks_slots(&self) -> bool {
        self.driver.slots.is_some()
    }

    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }

    pub(super) fn peers(&self) -> &Peers {
        &self.peers
    }

    pub(super) fn device(&self) -> c_int {
        self.device
    }

    pub(super) fn handle(&self) -> Handle {
        self.handle
    }

    pub(super) fn wants_ptx(&self) -> bool {
        self.wants_ptx.load(Ordering::Relaxed)
    }

    pub(super) fn refused_binary(&self) {
        self.wants_ptx.store(true, Ordering::Relaxed);
    }

    /// Calls the driver with this context current on the thread.
    pub(super) fn call(&self, name: &'static str, f: impl FnOnce(&Library) -> Code) -> Result<(), RunError> {
        self.asked(name, f).map_err(|e| match e.code {
            OUT_OF_MEMORY => RunError::DriverMemory {
                device: self.properties.title(),
                call: name,
            },
            _ => RunError::Device {
                device: self.properties.title(),
                message: e.to_string(),
            },
        })
    }

    /// As [`Context::call`], with the driver's error as it is. A device that is lost is not asked again.
    pub(super) fn asked(&self, name: &'static str, f: impl FnOnce(&Library) -> Code) -> Result<(), Refusal> {
        if let Some(why) = self.lost.get() {
            return Err(Refusal {
                call: name,
                code: 0,
                text: format!("{} is lost since {why}", self.properties.name),
            });
        }
        let done = self.quietly(name, f);
        if let Err(e) = &done
            && stays(e.code)
        {
            self.lost.get_or_init(|| e.to_string());
        }
        done
    }

    /// As [`Context::asked`], for what is given back and may fail because the device was lost before.
    pub(super) fn quietly(&self, name: &'static str, f: impl FnOnce(&Library) -> Code) -> Result<(), Refusal> {
        let driver = self.driver;
        // SAFETY: the context was retained and is never released.
        driver.check("cuCtxSetCurrent", unsafe { (driver.cuCtxSetCurrent)(self.handle) })?;
        driver.check(name, f(driver))
    }
}
