//! cuBLASLt, NVIDIA's library of matrix products, loaded where it is there.
//!
//! Invariants:
//! - Every entry point is looked up before the first call. A library that is absent, of another CUDA or not complete is an error that says so.
//! - Sums are added up by one block of threads in one order: algorithms that split them, or add up by atomic operations, are not asked for,
//!   and refused if they are offered. f32 is multiplied as f32, never as tf32.
//! - The library allocates nothing for a product: it works in memory that it is given.
//!
//! Where it is looked for: the file, or the folder that has it, that `TLC_CUBLASLT` names; else the folders that `TLC_NVRTC` names, and the dynamic
//! linker's path. A simulated device has it only where `TLC_CUBLASLT` names the stand-in for it, and a real one never takes that.
//!
//! Matrices are described as the library knows them best, by columns (cuBLAS library, "cublasLtOrder_t"): one that lies by rows is one by
//! columns turned around, and where the result lies by rows, it is the turned product of the turned operands in the other order.

use std::ffi::{c_int, c_uint, c_void};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libloading::os::unix::{Library as Loaded, RTLD_NOW};
use tlc_ir::DType;
use tlc_ir::target::GPU_ACCESS_BYTES;

use super::library::{Address, Handle};
use crate::binding::product::{BoundMatrix, BoundProduct};
use crate::error::Unavailable;
use crate::machine::library_folders;

/// The name of the library.
const NAME: &str = "libcublasLt.so.13";
/// What a stand-in exports, and NVIDIA's library does not.
const STAND_IN: &[u8] = b"tlcSimCublasLt\0";
/// The oldest that is known to do what is asked of it: that of CUDA 13.0.
const OLDEST: usize = 130_000;

/// What every entry point returns: `cublasStatus_t`.
pub(super) type Status = c_uint;

/// Attributes and values (cuBLAS library, "cuBLASLt Datatypes Reference"; a test compares them with cudarc's bindings).
mod value {
    /// `CUDA_R_32F`, `CUDA_R_64F`, `CUDA_R_16F` and `CUDA_R_16BF`.
    pub(super) const SINGLE: u32 = 0;
    pub(super) const DOUBLE: u32 = 1;
    pub(super) const HALF: u32 = 2;
    pub(super) const BRAIN: u32 = 14;
    /// `CUBLAS_COMPUTE_32F` and `CUBLAS_COMPUTE_64F`: not `_FAST_TF32`.
    pub(super) const IN_SINGLE: u32 = 68;
    pub(super) const IN_DOUBLE: u32 = 70;
    /// `CUBLASLT_MATMUL_DESC_TRANSA` and `_TRANSB`.
    pub(super) const TURNED: [u32; 2] = [3, 4];
    /// `CUBLAS_OP_N` and `CUBLAS_OP_T`.
    pub(super) const OPERATIONS: [i32; 2] = [0, 1];
    /// `CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT`.
    pub(super) const BATCH_COUNT: u32 = 5;
    /// `CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET`.
    pub(super) const BATCH_OFFSET: u32 = 6;
    /// `CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES`.
    pub(super) const MOST_WORKSPACE: u32 = 1;
    /// `CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK`.
    pub(super) const REDUCTIONS: u32 = 3;
    /// `CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES`, `_B_`, `_C_` and `_D_`.
    pub(super) const ALIGNMENTS: [u32; 4] = [5, 6, 7, 8];
    /// `CUBLASLT_ALGO_CONFIG_SPLITK_NUM`.
    pub(super) const PARTS_OF_SUM: u32 = 2;
    /// `CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME`.
    pub(super) const REDUCTION: u32 = 3;
}

/// `cublasLtMatmulAlgo_t`: what it means is the library's.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Algorithm {
    data: [u64; 8],
}

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Proposal {
    algorithm: Algorithm,
    workspace_bytes: usize,
    state: Status,
    waves: f32,
    reserved: [c_int; 4],
}

/// A type that is inferred.
#[cfg(test)]
macro_rules! any {
    ($arg:ty) => {
        _
    };
}

macro_rules! entry_points {
    ($($name:ident($($arg:ty),*);)*) => {
        /// The loaded library.
        #[allow(non_snake_case, reason = "the library's own names")]
        pub(super) struct Library {
            $($name: unsafe extern "C" fn($($arg),*) -> Status,)*
            version: usize,
            // The functions are in it.
            _loaded: Loaded,
        }

        impl Library {
            /// Looks up everything.
            fn of(loaded: Loaded, version: usize, path: &Path) -> Result<Library, Unavailable> {
                Ok(Library {
                    $(
                        // SAFETY: the type is that of the declaration in cublasLt.h, as the test of signatures says.
                        $name: *unsafe { loaded.get(concat!(stringify!($name), "\0").as_bytes()) }
                            .map_err(|_| lacks(path, stringify!($name)))?,
                    )*
                    version,
                    _loaded: loaded,
                })
            }
        }

        /// By entry point: its signature here, and in the bindings of cudarc.
        #[cfg(test)]
        fn signatures() -> Vec<(&'static str, Vec<super::library::tests::Kind>, Vec<super::library::tests::Kind>)> {
            use super::library::tests::{Signature, kinds};
            vec![$({
                type Ours = unsafe extern "C" fn($($arg),*) -> Status;
                let theirs: unsafe fn($(any!($arg)),*) -> _ = cudarc::cublaslt::sys::$name;
                (stringify!($name), <Ours as Signature>::kinds(), kinds(theirs))
            }),*]
        }
    };
}

entry_points! {
    cublasLtCreate(*mut Handle);
    cublasLtMatmulDescCreate(*mut Handle, c_uint, c_uint);
    cublasLtMatmulDescSetAttribute(Handle, c_uint, *const c_void, usize);
    cublasLtMatmulDescDestroy(Handle);
    cublasLtMatrixLayoutCreate(*mut Handle, c_uint, u64, u64, i64);
    cublasLtMatrixLayoutSetAttribute(Handle, c_uint, *const c_void, usize);
    cublasLtMatrixLayoutDestroy(Handle);
    cublasLtMatmulPreferenceCreate(*mut Handle);
    cublasLtMatmulPreferenceSetAttribute(Handle, c_uint, *const c_void, usize);
    cublasLtMatmulPreferenceDestroy(Handle);
    cublasLtMatmulAlgoGetHeuristic(
        Handle, Handle, Handle, Handle, Handle, Handle, Handle, c_int, *mut Proposal, *mut c_int
    );
    cublasLtMatmulAlgoConfigGetAttribute(*const Algorithm, c_uint, *mut c_void, usize, *mut usize);
    cublasLtMatmul(
        Handle, Handle, *const c_void, *const c_void, Handle, *const c_void, Handle, *const c_void, *const c_void, Handle, *mut c_void, Handle,
        *const Algorithm, *mut c_void, usize, Handle
    );
}

/// Where it is among the libraries of the packages that NVRTC is in.
fn beside_nvrtc() -> impl Iterator<Item = PathBuf> {
    let hint = std::env::var_os("TLC_NVRTC").map(PathBuf::from);
    let folders = hint.map(|hint| library_folders(&hint)).unwrap_or_default();
    folders.into_iter().map(|f| f.join(NAME)).filter(|f| f.is_file())
}

fn lacks(path: &Path, name: &str) -> Unavailable {
    Unavailable::Products {
        message: format!("{} has no `{name}`", path.display()),
    }
}

/// What the library calls a status (cuBLAS library, "cublasStatus_t").
fn status_text(status: Status) -> String {
    let name = match status {
        1 => "NOT_INITIALIZED",
        3 => "ALLOC_FAILED",
        7 => "INVALID_VALUE",
        8 => "ARCH_MISMATCH",
        11 => "MAPPING_ERROR",
        13 => "EXECUTION_FAILED",
        14 => "INTERNAL_ERROR",
        15 => "NOT_SUPPORTED",
        16 => "LICENSE_ERROR",
        other => return format!("status {other}"),
    };
    format!("CUBLAS_STATUS_{name}")
}

/// What an entry point said that did not succeed.
fn checked(call: &'static str, status: Status) -> Result<(), String> {
    match status {
        0 => Ok(()),
        status => Err(format!("{call}: {}", status_text(status))),
    }
}

impl Library {
    /// Finds and loads the library, once for the process. `simulated` says whether the devices are.
    pub(super) fn get(simulated: bool) -> Result<&'static Library, Unavailable> {
        static LIBRARY: OnceLock<Result<Library, Unavailable>> = OnceLock::new();
        let loaded = LIBRARY.get_or_init(|| Library::load(simulated));
        loaded.as_ref().map_err(Clone::clone)
    }

    fn load(simulated: bool) -> Result<Library, Unavailable> {
        let refused = |message: String| Unavailable::Products { message };
        let set = std::env::var_os("TLC_CUBLASLT")
            .filter(|v| !v.is_empty())
            .map(PathBuf::from);
        let paths = match set {
            Some(folder) if folder.is_dir() => vec![folder.join(NAME)],
            Some(file) => vec![file],
            None if simulated => {
                return Err(refused(
                    "the device is simulated, and TLC_CUBLASLT names no stand-in".into(),
                ));
            }
            None => beside_nvrtc().chain([PathBuf::from(NAME)]).collect(),
        };
        let mut tried = Vec::new();
        let opened = paths.into_iter().find_map(|path| {
            // SAFETY: initializers of cuBLASLt have no preconditions; the file is that by its name, or because the user says so.
            match unsafe { Loaded::open(Some(&path), RTLD_NOW) } {
                Ok(loaded) => Some((loaded, path)),
                Err(e) => {
                    // The linker's own words begin with the path.
                    let why = std::error::Error::source(&e).map(ToString::to_string);
                    tried.push(why.unwrap_or_else(|| format!("{}: {e}", path.display())));
                    None
                }
            }
        });
        let (loaded, path) = opened.ok_or_else(|| refused(tried.join("; ")))?;
        // SAFETY: the type is that of the declaration in cublasLt.h; the function may be called before any other.
        let version = unsafe {
            let get = loaded.get::<unsafe extern "C" fn() -> usize>(b"cublasLtGetVersion\0");
            get.map_err(|_| lacks(&path, "cublasLtGetVersion"))?()
        };
        if version < OLDEST {
            let expected = version_text(OLDEST);
            return Err(refused(format!(
                "{} is of version {}; expected {expected}",
                path.display(),
                version_text(version)
            )));
        }
        // SAFETY: it is only asked whether it is there.
        let stands_in = unsafe { loaded.get::<unsafe extern "C" fn()>(STAND_IN) }.is_ok();
        if stands_in != simulated {
            let [library, device] = match stands_in {
                true => ["a stand-in", "is real"],
                false => ["not the stand-in", "is simulated"],
            };
            return Err(refused(format!(
                "{} is {library}, and the device {device}",
                path.display()
            )));
        }
        Library::of(loaded, version, &path)
    }

    /// Its version.
    pub(super) fn version(&self) -> String {
        version_text(self.version)
    }

    /// Makes what every product is asked for with, in the context that is current on the thread.
    pub(super) fn open(&self) -> Result<Handle, Unavailable> {
        let mut handle: Handle = std::ptr::null_mut();
        // SAFETY: a valid place for the result.
        let opened = checked("cublasLtCreate", unsafe { (self.cublasLtCreate)(&mut handle) });
        opened.map_err(|message| Unavailable::Products { message })?;
        Ok(handle)
    }
}

/// A version as NVIDIA writes it.
fn version_text(version: usize) -> String {
    format!("{}.{}", version / 10_000, version % 10_000 / 100)
}

/// A stack of matrices by columns.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Layout {
    rows: u64,
    columns: u64,
    /// Elements from column to column.
    leading: i64,
    /// Elements from matrix to matrix.
    stack: i64,
    /// Whether what is multiplied is the matrix turned around.
    turned: bool,
    /// Bytes that its address is a multiple of.
    alignment: u32,
}

/// What distinguishes one product from others for the library: all but addresses.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Shape {
    dtype: DType,
    /// Of the two factors in their order for the library, and of the result.
    layouts: [Layout; 3],
    /// Whether the first factor is the right operand.
    swapped: bool,
    batch: c_int,
    workspace_bytes: u64,
}

/// Where matrices are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Places {
    /// Of the left and right operand, and of the result.
    pub(super) matrices: [Address; 3],
    /// Of the memory to work in.
    pub(super) workspace: Address,
}

/// The stride of a matrix' rows or columns, if they have one.
fn straight(legs: &[crate::binding::product::Leg]) -> Option<i64> {
    match legs {
        [leg] => i64::try_from(leg.stride).ok(),
        _ => None,
    }
}

/// A matrix of so many rows and columns with these strides, by columns: as it is, or turned around.
fn by_columns([rows, columns]: [usize; 2], [down, across]: [i64; 2]) -> Option<Layout> {
    let lies = |[rows, columns]: [usize; 2], [down, across]: [i64; 2]| {
        let together = down == 1 || rows == 1;
        // A single column has no next one.
        let leading = if columns == 1 { rows as i64 } else { across };
        (together && leading >= rows as i64).then_some((rows as u64, columns as u64, leading))
    };
    let as_it_is = lies([rows, columns], [down, across]).map(|found| (found, false));
    let ((rows, columns, leading), turned) =
        as_it_is.or_else(|| lies([columns, rows], [across, down]).map(|found| (found, true)))?;
    Some(Layout {
        rows,
        columns,
        leading,
        stack: 0,
        turned,
        alignment: 0,
    })
}

impl Shape {
    /// A product as the library takes it; none if it cannot. None of its extents is 0.
    pub(super) fn of(p: &BoundProduct) -> Option<Shape> {
        let batch = match p.batch[..] {
            [] => 1,
            [count] => c_int::try_from(count).ok()?,
            _ => return None,
        };
        let layout = |matrix: &BoundMatrix, extents: [usize; 2], turns: bool| {
            let [rows, columns] = extents;
            let [down, across] = [straight(&matrix.row)?, straight(&matrix.column)?];
            let found = match turns {
                true => by_columns([columns, rows], [across, down]),
                false => by_columns([rows, columns], [down, across]),
            };
            let offset = matrix.offset.unsigned_abs() * p.dtype.bytes();
            Some(Layout {
                stack: matrix.batch.first().map_or(0, |stride| *stride as i64),
                alignment: 1 << (offset | GPU_ACCESS_BYTES as usize).trailing_zeros(),
                ..found?
            })
        };
        let (m, n, k) = (p.m, p.n, p.k);
        let as_it_is = layout(&p.dst, [m, n], false).filter(|result| !result.turned);
        let (swapped, result) = match as_it_is {
            Some(result) => (false, result),
            None => (true, layout(&p.dst, [m, n], true).filter(|result| !result.turned)?),
        };
        let [left, right] = [layout(&p.lhs, [m, k], swapped)?, layout(&p.rhs, [k, n], swapped)?];
        let [first, second] = if swapped { [right, left] } else { [left, right] };
        Some(Shape {
            dtype: p.dtype,
            layouts: [first, second, result],
            swapped,
            batch,
            workspace_bytes: p.workspace.as_ref().map_or(0, |w| w.bytes),
        })
    }

    /// `cudaDataType_t` of the elements, and `cublasComputeType_t` and `cudaDataType_t` of sums and factors.
    fn types(&self) -> Option<[c_uint; 3]> {
        Some(match self.dtype {
            DType::F32 => [value::SINGLE, value::IN_SINGLE, value::SINGLE],
            DType::F64 => [value::DOUBLE, value::IN_DOUBLE, value::DOUBLE],
            DType::F16 => [value::HALF, value::IN_SINGLE, value::SINGLE],
            DType::BF16 => [value::BRAIN, value::IN_SINGLE, value::SINGLE],
            _ => return None,
        })
    }
}

/// What the library keeps of a shape, which goes with it.
pub(super) struct Multiplication {
    library: &'static Library,
    shape: Shape,
    operation: Handle,
    layouts: [Handle; 3],
    algorithm: Algorithm,
    workspace_bytes: usize,
}

// SAFETY: the library's descriptions are memory of the host, which nothing changes once they are made.
unsafe impl Send for Multiplication {}

/// Sets an attribute of something of the library's.
fn set<T>(
    call: &'static str,
    f: unsafe extern "C" fn(Handle, c_uint, *const c_void, usize) -> Status,
    (of, attribute): (Handle, u32),
    value: &T,
) -> Result<(), String> {
    // SAFETY: the handle is alive, and the value has the type that the attribute has in the library's manual.
    checked(call, unsafe {
        f(of, attribute, std::ptr::from_ref(value).cast(), size_of::<T>())
    })
}

impl Multiplication {
    /// Describes a product to the library, and has it choose how to compute it.
    pub(super) fn new(library: &'static Library, handle: Handle, shape: Shape) -> Result<Multiplication, String> {
        let types = shape.types();
        let [element, sum, scale] = types.ok_or_else(|| format!("cuBLASLt does not multiply {}", shape.dtype))?;
        let null: Handle = std::ptr::null_mut();
        // What is made so far goes if something fails.
        let mut made = Multiplication {
            library,
            shape,
            operation: null,
            layouts: [null; 3],
            algorithm: Algorithm::default(),
            workspace_bytes: 0,
        };
        // SAFETY: a valid place for the result, here and below.
        let created = unsafe { (library.cublasLtMatmulDescCreate)(&mut made.operation, sum, scale) };
        checked("cublasLtMatmulDescCreate", created)?;
        for (attribute, of) in value::TURNED.into_iter().zip(&shape.layouts) {
            let turned = &value::OPERATIONS[usize::from(of.turned)];
            let call = "cublasLtMatmulDescSetAttribute";
            set(
                call,
                library.cublasLtMatmulDescSetAttribute,
                (made.operation, attribute),
                turned,
            )?;
        }
        for (layout, of) in made.layouts.iter_mut().zip(&shape.layouts) {
            // SAFETY: see above.
            let created =
                unsafe { (library.cublasLtMatrixLayoutCreate)(layout, element, of.rows, of.columns, of.leading) };
            checked("cublasLtMatrixLayoutCreate", created)?;
            let call = "cublasLtMatrixLayoutSetAttribute";
            let f = library.cublasLtMatrixLayoutSetAttribute;
            set(call, f, (*layout, value::BATCH_COUNT), &shape.batch)?;
            set(call, f, (*layout, value::BATCH_OFFSET), &of.stack)?;
        }
        made.choose(handle)?;
        Ok(made)
    }

    /// Has the library choose an algorithm.
    fn choose(&mut self, handle: Handle) -> Result<(), String> {
        let library = self.library;
        let mut preference: Handle = std::ptr::null_mut();
        // SAFETY: a valid place for the result.
        let created = unsafe { (library.cublasLtMatmulPreferenceCreate)(&mut preference) };
        checked("cublasLtMatmulPreferenceCreate", created)?;
        let proposed = self.proposal(handle, preference);
        // SAFETY: made above, destroyed once.
        let _ = unsafe { (library.cublasLtMatmulPreferenceDestroy)(preference) };
        let Proposal {
            algorithm,
            workspace_bytes,
            ..
        } = proposed?;
        for (attribute, most) in [(value::PARTS_OF_SUM, 1), (value::REDUCTION, 0)] {
            let (mut found, mut written) = (0u32, 0);
            let room = std::ptr::from_mut(&mut found).cast();
            // SAFETY: valid places for the results, of the type that these attributes have.
            let asked = unsafe {
                (library.cublasLtMatmulAlgoConfigGetAttribute)(
                    &algorithm,
                    attribute,
                    room,
                    size_of::<u32>(),
                    &mut written,
                )
            };
            checked("cublasLtMatmulAlgoConfigGetAttribute", asked)?;
            if found > most {
                return Err("cuBLASLt offers only to add up parts of sums".into());
            }
        }
        if workspace_bytes as u64 > self.shape.workspace_bytes {
            return Err(format!(
                "cuBLASLt wants {workspace_bytes} bytes to work in; it was told of fewer"
            ));
        }
        self.algorithm = algorithm;
        self.workspace_bytes = workspace_bytes;
        Ok(())
    }

    fn proposal(&self, handle: Handle, preference: Handle) -> Result<Proposal, String> {
        let (library, shape) = (self.library, &self.shape);
        let call = "cublasLtMatmulPreferenceSetAttribute";
        let f = library.cublasLtMatmulPreferenceSetAttribute;
        set(call, f, (preference, value::MOST_WORKSPACE), &shape.workspace_bytes)?;
        set(call, f, (preference, value::REDUCTIONS), &0u32)?;
        let [first, second, result] = shape.layouts.map(|l| l.alignment);
        for (attribute, alignment) in value::ALIGNMENTS.into_iter().zip([first, second, result, result]) {
            set(call, f, (preference, attribute), &alignment)?;
        }
        let (mut proposal, mut count) = (Proposal::default(), 0);
        let [a, b, c] = self.layouts;
        // SAFETY: all handles are alive, and there are valid places for one result and their number.
        let asked = unsafe {
            (library.cublasLtMatmulAlgoGetHeuristic)(
                handle,
                self.operation,
                a,
                b,
                c,
                c,
                preference,
                1,
                &mut proposal,
                &mut count,
            )
        };
        checked("cublasLtMatmulAlgoGetHeuristic", asked)?;
        match (count, proposal.state) {
            (1, 0) => Ok(proposal),
            _ => Err("cuBLASLt has no algorithm for the product".into()),
        }
    }

    /// Gives a stream the product.
    ///
    /// # Safety
    /// The context of `handle` is current on the thread, the stream is one of it, and the places hold matrices of this shape and as much memory
    /// to work in as was said, which nothing else touches meanwhile.
    pub(super) unsafe fn give(&self, handle: Handle, places: &Places, stream: Handle) -> Result<(), String> {
        // Factors of the product, and of what the result held before, which is not read.
        let (single, double) = ([1f32, 0.0], [1f64, 0.0]);
        let [one, zero]: [*const c_void; 2] = match self.shape.dtype {
            DType::F64 => double.each_ref().map(|v| std::ptr::from_ref(v).cast()),
            _ => single.each_ref().map(|v| std::ptr::from_ref(v).cast()),
        };
        let [left, right, result] = places
            .matrices
            .map(|at| std::ptr::without_provenance_mut::<c_void>(at as usize));
        let [a, b] = if self.shape.swapped {
            [right, left]
        } else {
            [left, right]
        };
        let [first, second, of_result] = self.layouts;
        let workspace = std::ptr::without_provenance_mut(places.workspace as usize);
        // SAFETY: the descriptions are alive and agree with the algorithm; the caller promises the rest.
        let given = unsafe {
            (self.library.cublasLtMatmul)(
                handle,
                self.operation,
                one,
                a,
                first,
                b,
                second,
                zero,
                result,
                of_result,
                result,
                of_result,
                &self.algorithm,
                workspace,
                self.workspace_bytes,
                stream,
            )
        };
        checked("cublasLtMatmul", given)
    }
}

impl Drop for Multiplication {
    fn drop(&mut self) {
        for layout in self.layouts.into_iter().filter(|l| !l.is_null()) {
            // SAFETY: made in `new`, destroyed once.
            let _ = unsafe { (self.library.cublasLtMatrixLayoutDestroy)(layout) };
        }
        if !self.operation.is_null() {
            // SAFETY: as above.
            let _ = unsafe { (self.library.cublasLtMatmulDescDestroy)(self.operation) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::binding::product::Leg;

    #[test]
    fn the_table_has_the_signatures_of_the_librarys_header() {
        for (name, ours, theirs) in signatures() {
            assert_eq!(ours, theirs, "{name}");
        }
    }

    #[test]
    fn numbers_are_those_of_the_librarys_header() {
        use cudarc::cublaslt::sys::cublasComputeType_t::{CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_64F};
        use cudarc::cublaslt::sys::cublasLtMatmulAlgoConfigAttributes_t::{
            CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, CUBLASLT_ALGO_CONFIG_SPLITK_NUM,
        };
        use cudarc::cublaslt::sys::cublasLtMatmulDescAttributes_t::{
            CUBLASLT_MATMUL_DESC_TRANSA, CUBLASLT_MATMUL_DESC_TRANSB,
        };
        use cudarc::cublaslt::sys::cublasLtMatmulPreferenceAttributes_t::{
            CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        };
        use cudarc::cublaslt::sys::cublasLtMatrixLayoutAttribute_t::{
            CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
        };
        use cudarc::cublaslt::sys::{cublasLtMatmulHeuristicResult_t, cudaDataType_t};
        assert_eq!(value::IN_SINGLE, CUBLAS_COMPUTE_32F as u32);
        assert_eq!(value::IN_DOUBLE, CUBLAS_COMPUTE_64F as u32);
        let types = [
            cudaDataType_t::CUDA_R_32F,
            cudaDataType_t::CUDA_R_64F,
            cudaDataType_t::CUDA_R_16F,
            cudaDataType_t::CUDA_R_16BF,
        ];
        assert_eq!(
            [value::SINGLE, value::DOUBLE, value::HALF, value::BRAIN],
            types.map(|t| t as u32)
        );
        assert_eq!(
            value::TURNED,
            [CUBLASLT_MATMUL_DESC_TRANSA as u32, CUBLASLT_MATMUL_DESC_TRANSB as u32]
        );
        assert_eq!(value::BATCH_COUNT, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT as u32);
        assert_eq!(value::BATCH_OFFSET, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET as u32);
        assert_eq!(value::MOST_WORKSPACE, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES as u32);
        assert_eq!(value::REDUCTIONS, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK as u32);
        let alignments = [
            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
        ];
        assert_eq!(value::ALIGNMENTS, alignments.map(|a| a as u32));
        assert_eq!(value::PARTS_OF_SUM, CUBLASLT_ALGO_CONFIG_SPLITK_NUM as u32);
        assert_eq!(value::REDUCTION, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME as u32);
        assert_eq!(size_of::<Proposal>(), size_of::<cublasLtMatmulHeuristicResult_t>());
    }

    /// A product of so many rows, columns and terms whose matrices have these strides: down and across.
    fn product([m, n, k]: [usize; 3], strides: [[isize; 2]; 3]) -> BoundProduct {
        let matrix = |[down, across]: [isize; 2], [rows, columns]: [usize; 2]| BoundMatrix {
            slot: 0,
            offset: 0,
            batch: Vec::new(),
            row: vec![Leg {
                extent: rows,
                stride: down,
            }],
            column: vec![Leg {
                extent: columns,
                stride: across,
            }],
            composite: false,
        };
        let [lhs, rhs, dst] = strides;
        BoundProduct {
            dtype: DType::F32,
            batch: Vec::new(),
            m,
            n,
            k,
            lhs: matrix(lhs, [m, k]),
            rhs: matrix(rhs, [k, n]),
            dst: matrix(dst, [m, n]),
            workspace: None,
            epilogue: None,
            states: [None, None],
        }
    }

    #[test]
    fn matrices_are_described_by_columns() {
        let described = |p: &BoundProduct| {
            let shape = Shape::of(p)?;
            Some((
                shape.swapped,
                shape.layouts.map(|l| (l.rows, l.columns, l.leading, l.turned)),
            ))
        };
        // By rows: the turned product of the operands in the other order.
        let by_rows = product([5, 7, 3], [[3, 1], [7, 1], [7, 1]]);
        let expected = [(7, 3, 7, false), (3, 5, 3, false), (7, 5, 7, false)];
        assert_eq!(described(&by_rows), Some((true, expected)));
        // The left operand by columns, rows of the right one apart.
        let mixed = product([5, 7, 3], [[1, 5], [10, 1], [7, 1]]);
        let expected = [(7, 3, 10, false), (5, 3, 5, true), (7, 5, 7, false)];
        assert_eq!(described(&mixed), Some((true, expected)));
        let by_columns = product([5, 7, 3], [[1, 6], [1, 3], [1, 5]]);
        let expected = [(5, 3, 6, false), (3, 7, 3, false), (5, 7, 5, false)];
        assert_eq!(described(&by_columns), Some((false, expected)));
        // Sides of one element have no stride that matters.
        let thin = product([1, 1, 3], [[3, 1], [1, 1], [1, 1]]);
        let expected = [(1, 3, 1, false), (3, 1, 3, false), (1, 1, 1, false)];
        assert_eq!(described(&thin), Some((false, expected)));
        // Gaps along both axes, and rows that overlap.
        assert_eq!(described(&product([5, 7, 3], [[6, 2], [7, 1], [7, 1]])), None);
        assert_eq!(described(&product([5, 7, 3], [[1, 1], [7, 1], [7, 1]])), None);
    }
}
