//! The library's file and its entry points.

use std::ffi::{c_int, c_uint, c_void};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libloading::os::unix::{Library as Loaded, RTLD_NOW};

use super::super::library::Handle;
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

/// `CUBLAS_STATUS_NOT_SUPPORTED`.
pub(super) const NOT_SUPPORTED: Status = 15;

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
    pub(super) algorithm: Algorithm,
    pub(super) workspace_bytes: usize,
    pub(super) state: Status,
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
        pub(in super::super) struct Library {
            $(pub(super) $name: unsafe extern "C" fn($($arg),*) -> Status,)*
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
        fn signatures() -> Vec<(&'static str, Vec<super::super::library::tests::Kind>, Vec<super::super::library::tests::Kind>)> {
            use super::super::library::tests::{Signature, kinds};
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
pub(super) fn checked(call: &'static str, status: Status) -> Result<(), String> {
    match status {
        0 => Ok(()),
        status => Err(format!("{call}: {}", status_text(status))),
    }
}

impl Library {
    /// Finds and loads the library, once for the process. `simulated` says whether the devices are.
    pub(in super::super) fn get(simulated: bool) -> Result<&'static Library, Unavailable> {
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
    pub(in super::super) fn version(&self) -> String {
        version_text(self.version)
    }

    /// Makes what every product is asked for with, in the context that is current on the thread.
    pub(in super::super) fn open(&self) -> Result<Handle, Unavailable> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_the_signatures_of_the_librarys_header() {
        for (name, ours, theirs) in signatures() {
            assert_eq!(ours, theirs, "{name}");
        }
    }
}
