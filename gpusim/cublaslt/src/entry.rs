//! The entry points, under the names that NVIDIA's library exports. What each does, the cuBLAS manual says.

#![allow(missing_docs, reason = "the manual is the documentation of every function here")]

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::algorithm::{Algorithm, Problem, Proposal};
use crate::description::{Described, Layout, Operation, Preference, table};
use crate::driver::{Driver, Handle, Matrix, Product};
use crate::refusal::Refusal;

/// `cublasStatus_t`.
pub type Status = c_uint;

/// What memory to work in is overwritten with.
const LEFT_BEHIND: u8 = 0xa5;

/// What an entry point does: it is counted, and what goes wrong is its result.
fn entry(name: &CStr, handles: c_int, body: impl FnOnce() -> Result<(), Refusal>) -> Status {
    let done = catch_unwind(AssertUnwindSafe(|| {
        let driver = Driver::get().ok_or(Refusal::NoDriver)?;
        let done = body();
        driver.note(name, if done.is_ok() { handles } else { 0 });
        done
    }));
    let said = |why: &str| eprintln!("tlc-gpusim: {}: {why}", name.to_string_lossy());
    match done {
        Ok(Ok(())) => 0,
        Ok(Err(Refusal::NoDriver)) => 1,
        Ok(Err(Refusal::Invalid(why))) => {
            said(why);
            7
        }
        Ok(Err(Refusal::Unsupported(why))) => {
            said(why);
            15
        }
        // `CUDA_ERROR_OUT_OF_MEMORY` is `CUBLAS_STATUS_ALLOC_FAILED`, anything else `CUBLAS_STATUS_EXECUTION_FAILED`.
        Ok(Err(Refusal::Driver(2))) => 3,
        Ok(Err(Refusal::Driver(code))) => {
            said(&format!("the driver returns {code}"));
            13
        }
        // `CUBLAS_STATUS_INTERNAL_ERROR`
        Err(_) => 14,
    }
}

/// Writes a result to where the caller wants it.
///
/// # Safety
/// `to` is null or valid for writing.
unsafe fn put<T>(to: *mut T, value: T) -> Result<(), Refusal> {
    if to.is_null() {
        return Err(Refusal::Invalid("a null pointer for a result"));
    }
    // SAFETY: as the caller promises.
    unsafe { to.write_unaligned(value) };
    Ok(())
}

/// Makes something, and gives its handle.
///
/// # Safety
/// As [`put`].
unsafe fn make(to: *mut Handle, new: Described) -> Result<(), Refusal> {
    if to.is_null() {
        return Err(Refusal::Invalid("a null pointer for a result"));
    }
    // SAFETY: as the caller promises.
    unsafe { put(to, table().add(new)) }
}

/// The value of an attribute.
///
/// # Safety
/// `from` is null or has as many bytes as are said.
unsafe fn value<T: Copy>(from: *const c_void, bytes: usize) -> Result<T, Refusal> {
    if from.is_null() || bytes != size_of::<T>() {
        return Err(Refusal::Invalid("an attribute of another size"));
    }
    // SAFETY: as the caller promises.
    Ok(unsafe { from.cast::<T>().read_unaligned() })
}

/// Says that this is no real library.
#[unsafe(no_mangle)]
pub extern "C" fn tlcSimCublasLt() {}

/// Its version: that of CUDA 13.0.
#[unsafe(no_mangle)]
pub extern "C" fn cublasLtGetVersion() -> usize {
    130_000
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtCreate(to: *mut Handle) -> Status {
    // SAFETY: the manual's contract for the caller's pointer, here and below.
    entry(c"cublasLtCreate", 1, || unsafe { make(to, Described::Library) })
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtDestroy(of: Handle) -> Status {
    entry(c"cublasLtDestroy", -1, || {
        let mut table = table();
        table.library(of)?;
        table.remove(of).map(drop)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmulDescCreate(to: *mut Handle, compute: c_uint, scale: c_uint) -> Status {
    let new = Described::Operation(Operation {
        compute,
        scale,
        turned: [false; 2],
        epilogue: 1,
        bias: 0,
    });
    // SAFETY: see above.
    entry(c"cublasLtMatmulDescCreate", 1, || unsafe { make(to, new) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmulDescSetAttribute(
    of: Handle,
    attribute: c_uint,
    from: *const c_void,
    bytes: usize,
) -> Status {
    entry(c"cublasLtMatmulDescSetAttribute", 0, || {
        let which = match attribute {
            3 => 0,
            4 => 1,
            7 => {
                // SAFETY: see above.
                let epilogue = unsafe { value::<u32>(from, bytes) }?;
                if ![1, 2, 4, 6].contains(&epilogue) {
                    return Err(Refusal::Unsupported("an epilogue other than bias and relu"));
                }
                table().operation(of)?.epilogue = epilogue;
                return Ok(());
            }
            8 => {
                // SAFETY: see above.
                table().operation(of)?.bias = unsafe { value::<u64>(from, bytes) }?;
                return Ok(());
            }
            _ => return Err(Refusal::Unsupported("another attribute of an operation")),
        };
        // SAFETY: see above.
        let turned = match unsafe { value::<i32>(from, bytes) }? {
            0 => false,
            1 => true,
            _ => return Err(Refusal::Unsupported("complex numbers")),
        };
        table().operation(of)?.turned[which] = turned;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtMatmulDescDestroy(of: Handle) -> Status {
    entry(c"cublasLtMatmulDescDestroy", -1, || {
        let mut table = table();
        table.operation(of)?;
        table.remove(of).map(drop)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatrixLayoutCreate(
    to: *mut Handle,
    element: c_uint,
    rows: u64,
    columns: u64,
    leading: i64,
) -> Status {
    let new = Described::Layout(Layout {
        element,
        rows,
        columns,
        leading,
        batch: 1,
        stack: 0,
    });
    // SAFETY: see above.
    entry(c"cublasLtMatrixLayoutCreate", 1, || unsafe { make(to, new) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatrixLayoutSetAttribute(
    of: Handle,
    attribute: c_uint,
    from: *const c_void,
    bytes: usize,
) -> Status {
    entry(c"cublasLtMatrixLayoutSetAttribute", 0, || {
        let mut table = table();
        let layout = table.layout(of)?;
        // SAFETY: see above.
        unsafe {
            match attribute {
                5 => layout.batch = value(from, bytes)?,
                6 => layout.stack = value(from, bytes)?,
                _ => return Err(Refusal::Unsupported("another attribute of a matrix")),
            }
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtMatrixLayoutDestroy(of: Handle) -> Status {
    entry(c"cublasLtMatrixLayoutDestroy", -1, || {
        let mut table = table();
        table.layout(of)?;
        table.remove(of).map(drop)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmulPreferenceCreate(to: *mut Handle) -> Status {
    // As the manual says of what is not set.
    let new = Described::Preference(Preference {
        workspace_bytes: 0,
        reductions: 7,
        alignments: [256; 4],
    });
    // SAFETY: see above.
    entry(c"cublasLtMatmulPreferenceCreate", 1, || unsafe { make(to, new) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmulPreferenceSetAttribute(
    of: Handle,
    attribute: c_uint,
    from: *const c_void,
    bytes: usize,
) -> Status {
    entry(c"cublasLtMatmulPreferenceSetAttribute", 0, || {
        let mut table = table();
        let preference = table.preference(of)?;
        // SAFETY: see above.
        unsafe {
            match attribute {
                1 => preference.workspace_bytes = value(from, bytes)?,
                3 => preference.reductions = value(from, bytes)?,
                5..=8 => preference.alignments[attribute as usize - 5] = value(from, bytes)?,
                _ => return Err(Refusal::Unsupported("another preference")),
            }
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtMatmulPreferenceDestroy(of: Handle) -> Status {
    entry(c"cublasLtMatmulPreferenceDestroy", -1, || {
        let mut table = table();
        table.preference(of)?;
        table.remove(of).map(drop)
    })
}

/// A product by the handles of its descriptions, and where its bias is.
fn problem(operation: Handle, layouts: [Handle; 4]) -> Result<(Problem, u64), Refusal> {
    let mut table = table();
    let mut operation = *table.operation(operation)?;
    // An algorithm is for a bias anywhere.
    let bias = std::mem::take(&mut operation.bias);
    let [a, b, c, d] = layouts;
    let layouts = [
        *table.layout(a)?,
        *table.layout(b)?,
        *table.layout(c)?,
        *table.layout(d)?,
    ];
    Ok((Problem { operation, layouts }, bias))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmulAlgoGetHeuristic(
    library: Handle,
    operation: Handle,
    a: Handle,
    b: Handle,
    c: Handle,
    d: Handle,
    preference: Handle,
    wanted: c_int,
    proposals: *mut Proposal,
    count: *mut c_int,
) -> Status {
    entry(c"cublasLtMatmulAlgoGetHeuristic", 0, || {
        table().library(library)?;
        let (problem, _) = problem(operation, [a, b, c, d])?;
        let may = *table().preference(preference)?;
        if wanted < 1 {
            return Err(Refusal::Invalid("no algorithm is asked for"));
        }
        let offer = std::env::var("TLC_SIM_PRODUCTS_OFFER").unwrap_or_default();
        if offer == "none" || offer == "plain" && problem.operation.epilogue != 1 {
            return Err(Refusal::Unsupported("no algorithm, as TLC_SIM_PRODUCTS_OFFER says"));
        }
        // SAFETY: see above.
        unsafe {
            put(proposals, problem.propose(&may)?)?;
            put(count, 1)
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmulAlgoConfigGetAttribute(
    algorithm: *const Algorithm,
    attribute: c_uint,
    to: *mut c_void,
    bytes: usize,
    written: *mut usize,
) -> Status {
    entry(c"cublasLtMatmulAlgoConfigGetAttribute", 0, || {
        // SAFETY: see above; an algorithm is bytes.
        let found = unsafe { value::<Algorithm>(algorithm.cast(), size_of::<Algorithm>()) }?.attribute(attribute)?;
        if bytes < size_of::<u32>() {
            return Err(Refusal::Invalid("no room for an attribute"));
        }
        // SAFETY: see above.
        unsafe {
            put(to.cast::<u32>(), found)?;
            put(written, size_of::<u32>())
        }
    })
}

/// Whether a factor is a number.
///
/// # Safety
/// `at` is null or points to an f64, or to an f32 if the scale's type is not f64 (1).
unsafe fn is(at: *const c_void, scale: u32, number: f64) -> Result<(), Refusal> {
    if at.is_null() {
        return Err(Refusal::Invalid("a null pointer to a factor"));
    }
    // SAFETY: as the caller promises.
    let found = unsafe {
        match scale {
            1 => at.cast::<f64>().read_unaligned(),
            _ => at.cast::<f32>().read_unaligned().into(),
        }
    };
    match found == number {
        true => Ok(()),
        false => Err(Refusal::Unsupported("factors other than 1 and 0")),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmul(
    library: Handle,
    operation: Handle,
    alpha: *const c_void,
    a: *const c_void,
    of_a: Handle,
    b: *const c_void,
    of_b: Handle,
    beta: *const c_void,
    c: *const c_void,
    of_c: Handle,
    d: *mut c_void,
    of_d: Handle,
    algorithm: *const Algorithm,
    workspace: *mut c_void,
    workspace_bytes: usize,
    stream: Handle,
) -> Status {
    entry(c"cublasLtMatmul", 0, || {
        table().library(library)?;
        let (problem, bias) = problem(operation, [of_a, of_b, of_c, of_d])?;
        let [rows, columns, terms] = problem.extents()?;
        // SAFETY: see above, for the factors too.
        let algorithm = unsafe {
            is(alpha, problem.operation.scale, 1.0)?;
            is(beta, problem.operation.scale, 0.0)?;
            value::<Algorithm>(algorithm.cast(), size_of::<Algorithm>())?
        };
        let addresses = [a, b, c, d.cast_const()].map(|at| at.addr() as u64);
        let workspace = workspace.addr() as u64;
        algorithm.fits(&problem, addresses, (workspace, workspace_bytes as u64))?;
        let matrix = |number: usize, turned: bool| {
            let layout = &problem.layouts[number];
            // Their signs were looked at with the extents.
            let leading = layout.leading.unsigned_abs();
            let [down, across] = if turned { [leading, 1] } else { [1, leading] };
            Matrix {
                address: addresses[number],
                down,
                across,
                stack: layout.stack.unsigned_abs(),
            }
        };
        let [turned_a, turned_b] = problem.operation.turned;
        let product = Product {
            element: problem.layouts[3].element,
            epilogue: problem.operation.epilogue,
            rows,
            columns,
            terms,
            batch: problem.layouts[3].batch.unsigned_abs().into(),
            left: matrix(0, turned_a),
            right: matrix(1, turned_b),
            result: matrix(3, false),
            workspace,
            workspace_bytes: algorithm.workspace_bytes(),
            bias,
        };
        let driver = Driver::get().ok_or(Refusal::NoDriver)?;
        let done = |code: u32| if code == 0 { Ok(()) } else { Err(Refusal::Driver(code)) };
        if product.workspace_bytes > 0 {
            // SAFETY: the driver checks the range.
            done(unsafe { (driver.fill)(workspace, LEFT_BEHIND, product.workspace_bytes as usize, stream) })?;
        }
        // SAFETY: a valid pointer; the driver checks what it says.
        done(unsafe { (driver.product)(stream, &product) })
    })
}
