//! The driver that the process has loaded.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

/// A handle of any kind, as programs hold it.
pub type Handle = *mut c_void;

/// An address of device memory.
type CUdeviceptr = u64;

/// What the driver's entry points return.
type CUresult = c_uint;

/// A stack of matrices, as the driver takes it: `TlcSimMatrix` there.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Matrix {
    /// Of its first element.
    pub address: CUdeviceptr,
    /// Elements from row to row.
    pub down: u64,
    /// From column to column.
    pub across: u64,
    /// From matrix to matrix.
    pub stack: u64,
}

/// A product, as the driver takes it: `TlcSimProduct` there.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Product {
    /// `cudaDataType_t` of all elements.
    pub element: u32,
    /// `cublasLtEpilogue_t`.
    pub epilogue: u32,
    /// Rows of the result.
    pub rows: u64,
    /// Columns of the result.
    pub columns: u64,
    /// Terms of each sum.
    pub terms: u64,
    /// Matrices of the stack.
    pub batch: u64,
    /// The left factor.
    pub left: Matrix,
    /// The right factor.
    pub right: Matrix,
    /// The result.
    pub result: Matrix,
    /// Where anything may be left.
    pub workspace: CUdeviceptr,
    /// How many bytes.
    pub workspace_bytes: u64,
    /// Where the bias lies, if there is one.
    pub bias: CUdeviceptr,
}

/// `RTLD_NOW` and `RTLD_NOLOAD`: what is not loaded is not found.
const LOADED: c_int = 2 | 4;

unsafe extern "C" {
    fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// What is asked of it.
pub(crate) struct Driver {
    pub(crate) product: unsafe extern "C" fn(Handle, *const Product) -> CUresult,
    pub(crate) fill: unsafe extern "C" fn(CUdeviceptr, u8, usize, Handle) -> CUresult,
    noted: unsafe extern "C" fn(*const c_char, c_int) -> CUresult,
}

impl Driver {
    /// The driver, if the process has loaded the simulated one.
    pub(crate) fn get() -> Option<&'static Driver> {
        static DRIVER: OnceLock<Option<Driver>> = OnceLock::new();
        DRIVER.get_or_init(Driver::find).as_ref()
    }

    fn find() -> Option<Driver> {
        // SAFETY: a name that a zero byte ends; nothing is loaded.
        let library = unsafe { dlopen(c"libcuda.so.1".as_ptr(), LOADED) };
        if library.is_null() {
            return None;
        }
        let address = |name: &CStr| {
            // SAFETY: a library that is loaded, and a name that a zero byte ends.
            let found = unsafe { dlsym(library, name.as_ptr()) };
            (!found.is_null()).then_some(found)
        };
        let (product, fill) = (address(c"tlcSimProduct")?, address(c"cuMemsetD8Async")?);
        let noted = address(c"tlcSimLibraryCall")?;
        // SAFETY: only the simulated driver has functions of these names, and they have these types there.
        unsafe {
            Some(Driver {
                product: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(Handle, *const Product) -> CUresult>(
                    product,
                ),
                fill: std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(CUdeviceptr, u8, usize, Handle) -> CUresult,
                >(fill),
                noted: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const c_char, c_int) -> CUresult>(
                    noted,
                ),
            })
        }
    }

    /// Has the driver count a call, and handles that were made or destroyed by it.
    pub(crate) fn note(&self, name: &CStr, handles: c_int) {
        // A driver that was not started counts nothing.
        // SAFETY: a zero byte ends the name.
        let _ = unsafe { (self.noted)(name.as_ptr(), handles) };
    }
}
