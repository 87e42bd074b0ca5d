//! What no real driver exports: what the stand-in for cuBLASLt asks for.

use std::collections::BTreeSet;
use std::ffi::{c_char, c_int};
use std::sync::{Arc, Mutex};

use super::{CUdeviceptr, Handle, entry, number, text};
use crate::driver::Driver;
use crate::machine::lock;
use crate::product::{Element, Matrix, Product};
use crate::result::{CUDA_ERROR_INVALID_VALUE, CUresult};
use crate::work::Work;

/// A stack of matrices: strides in elements.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct TlcSimMatrix {
    /// Of its first element.
    pub address: CUdeviceptr,
    /// From row to row.
    pub down: u64,
    /// From column to column.
    pub across: u64,
    /// From matrix to matrix.
    pub stack: u64,
}

/// `result = f(left * right + bias)`, for each matrix of a stack; see [`tlcSimProduct`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct TlcSimProduct {
    /// `cudaDataType_t` of all elements: f32, f64, f16 or bf16.
    pub element: u32,
    /// `cublasLtEpilogue_t`: 1, 2 (relu), 4 (bias) or 6 (both).
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
    pub left: TlcSimMatrix,
    /// The right factor.
    pub right: TlcSimMatrix,
    /// The result.
    pub result: TlcSimMatrix,
    /// Where the library leaves what it needs meanwhile.
    pub workspace: CUdeviceptr,
    /// How many bytes.
    pub workspace_bytes: u64,
    /// Where the bias lies, if there is one: an element for each row.
    pub bias: CUdeviceptr,
}

/// Multiplies matrices on the host in the order of a stream; while the stream captures, as a node of the graph. It counts as a launch.
///
/// `CUresult tlcSimProduct(CUstream stream, const TlcSimProduct *product)`. No extent is zero, and every matrix is in one allocation.
///
/// # Safety
/// `product` is null or points to one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlcSimProduct(stream: Handle, product: *const TlcSimProduct) -> CUresult {
    entry("tlcSimProduct", || {
        let driver = Driver::get()?;
        driver.current()?;
        if product.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: it is not null, so the caller promises that it is valid.
        let given = unsafe { product.read_unaligned() };
        let matrix = |m: TlcSimMatrix| Matrix {
            address: m.address,
            down: m.down,
            across: m.across,
            stack: m.stack,
        };
        let product = Product {
            element: Element::of(given.element).ok_or(CUDA_ERROR_INVALID_VALUE)?,
            rows: given.rows,
            columns: given.columns,
            terms: given.terms,
            batch: given.batch,
            left: matrix(given.left),
            right: matrix(given.right),
            result: matrix(given.result),
            workspace: (given.workspace, given.workspace_bytes),
            bias: (given.epilogue & 4 != 0).then_some(given.bias),
            rectified: given.epilogue & 2 != 0,
        };
        let bias_bytes = given.rows.checked_mul(product.element.bytes());
        if product
            .bias
            .is_some_and(|at| !bias_bytes.is_some_and(|b| driver.machine.holds(at, b)))
        {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if [given.rows, given.columns, given.terms, given.batch].contains(&0) || ![1, 2, 4, 6].contains(&given.epilogue)
        {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        for (matrix, extents) in product.matrices() {
            let ranges = product.ranges(&matrix, extents).ok_or(CUDA_ERROR_INVALID_VALUE)?;
            let end = ranges.iter().map(|r| r.1).max().unwrap_or(matrix.address);
            if !driver.machine.holds(matrix.address, end - matrix.address) {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
        }
        if given.workspace_bytes > 0 && !driver.machine.holds(given.workspace, given.workspace_bytes) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        driver.submit(number(stream), "cublasLtMatmul", Work::Product(Arc::new(product)))?;
        Ok(())
    })
}

/// Notes a call of a library beside the driver, so that [`tlcSimReport`](super::tlcSimReport) counts it with those of the driver, and how many
/// handles more or fewer there are since.
///
/// # Safety
/// `name` is null or ended by a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlcSimLibraryCall(name: *const c_char, handles: c_int) -> CUresult {
    /// Few, and kept for the process.
    static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let noted = || {
        let driver = Driver::get()?;
        // SAFETY: as the caller promises.
        let name = unsafe { text(name) }?;
        let mut names = lock(&NAMES);
        let known = names.get(&*name).copied();
        let known = known.unwrap_or_else(|| {
            let kept: &'static str = name.leak();
            names.insert(kept);
            kept
        });
        lock(&driver.machine.log).call(known);
        driver.state().library_handles += i64::from(handles);
        Ok(())
    };
    match noted() {
        Ok(()) => 0,
        Err(e) => e,
    }
}
