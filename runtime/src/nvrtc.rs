//! NVRTC, NVIDIA's run-time compiler, loaded when it is there: CUDA C++ to a CUBIN for a real architecture.
//!
//! It needs no GPU and no driver. Invariants:
//! - A missing library is an error that says where was looked; nothing here panics or aborts.
//! - A program is destroyed on every path. Strings handed to C are NUL-terminated and outlive the call.
//!
//! Where it is looked for, in order: `TLC_NVRTC` (a file, or a folder of libraries or of Python packages; if set, nowhere else); the dynamic linker's path; the
//! folders `nvidia/*/lib` of the site-packages of `python3`, where the wheel `nvidia-cuda-nvrtc` puts it.

use std::ffi::{CStr, CString, c_char, c_int};
use std::path::{Path, PathBuf};
use std::process::Command;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LAZY, Symbol};

/// Names of the library, newest first.
const NAMES: [&str; 2] = ["libnvrtc.so.13", "libnvrtc.so.12"];

/// `NVRTC_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: c_int = 1;

/// `nvrtcProgram`: a pointer to something of NVRTC's.
type Program = *mut std::ffi::c_void;

type CreateProgram = unsafe extern "C" fn(
    *mut Program,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> c_int;
type DestroyProgram = unsafe extern "C" fn(*mut Program) -> c_int;
type CompileProgram = unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int;
type GetSize = unsafe extern "C" fn(Program, *mut usize) -> c_int;
type GetBytes = unsafe extern "C" fn(Program, *mut c_char) -> c_int;
type ErrorString = unsafe extern "C" fn(c_int) -> *const c_char;
type Version = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
type GetInts = unsafe extern "C" fn(*mut c_int) -> c_int;

/// Why there is no CUBIN.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NvrtcError {
    /// The library was not found or does not load.
    #[error("NVRTC is not available: {}", .tried.join("; "))]
    Missing {
        /// What was tried, and why it failed.
        tried: Vec<String>,
    },
    /// The text does not compile.
    #[error("NVRTC refuses `{name}`: {log}")]
    Compile {
        /// The program's name.
        name: String,
        /// What the compiler says.
        log: String,
    },
    /// The compiler ran out of memory.
    #[error("NVRTC has no memory left for `{name}`")]
    Memory {
        /// The program's name.
        name: String,
    },
    /// A call failed for another reason.
    #[error("{call}: {message}")]
    Call {
        /// The function of NVRTC.
        call: &'static str,
        /// Its error.
        message: String,
    },
    /// A string with a NUL inside.
    #[error("the {0} contains a NUL byte")]
    Nul(&'static str),
}

/// Machine code for one architecture.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cubin {
    /// The ELF file.
    pub bytes: Vec<u8>,
    /// What compiler and assembler said.
    pub log: String,
    /// Registers of a thread: the most of any function, if the assembler said.
    pub registers: Option<u32>,
    /// Bytes spilled to local memory, stores and loads together.
    pub spill_bytes: u64,
    /// Bytes of stack of a thread: arrays that are not in registers.
    pub stack_bytes: u64,
}

/// The loaded compiler.
pub struct Nvrtc {
    create: Symbol<CreateProgram>,
    destroy: Symbol<DestroyProgram>,
    compile: Symbol<CompileProgram>,
    cubin_size: Symbol<GetSize>,
    cubin: Symbol<GetBytes>,
    ptx_size: Symbol<GetSize>,
    ptx: Symbol<GetBytes>,
    log_size: Symbol<GetSize>,
    log: Symbol<GetBytes>,
    error_string: Symbol<ErrorString>,
    arch_count: Symbol<GetInts>,
    archs: Symbol<GetInts>,
    version: (i32, i32),
    path: PathBuf,
    // Dropped last: the symbols point into them.
    _library: Library,
    _builtins: Option<Library>,
}

impl Nvrtc {
    /// Finds and loads the library.
    ///
    /// # Errors
    /// [`NvrtcError::Missing`], saying where was looked.
    pub fn load() -> Result<Nvrtc, NvrtcError> {
        let mut tried = Vec::new();
        for path in candidates(&mut tried) {
            match Nvrtc::open(&path) {
                Ok(found) => return Ok(found),
                Err(e) => {
                    // The linker's own words begin with the path.
                    let why = std::error::Error::source(&e).map(ToString::to_string);
                    tried.push(why.unwrap_or_else(|| format!("{}: {e}", path.display())));
                }
            }
        }
        Err(NvrtcError::Missing { tried })
    }

    /// Loads the library from a path, or by its bare name from the linker's path.
    fn open(path: &Path) -> Result<Nvrtc, libloading::Error> {
        let builtins = path.parent().and_then(load_builtins);
        // SAFETY: NVRTC's initializers have no preconditions; the file is a CUDA library by its name.
        let library = unsafe { Library::open(Some(path), RTLD_LAZY)? };
        let mut version = (0, 0);
        // SAFETY: every type below is the declaration of that function in nvrtc.h of CUDA 12 and 13.
        unsafe {
            let get_version: Symbol<Version> = library.get(b"nvrtcVersion\0")?;
            get_version(&mut version.0, &mut version.1);
            Ok(Nvrtc {
                create: library.get(b"nvrtcCreateProgram\0")?,
                destroy: library.get(b"nvrtcDestroyProgram\0")?,
                compile: library.get(b"nvrtcCompileProgram\0")?,
                cubin_size: library.get(b"nvrtcGetCUBINSize\0")?,
                cubin: library.get(b"nvrtcGetCUBIN\0")?,
                ptx_size: library.get(b"nvrtcGetPTXSize\0")?,
                ptx: library.get(b"nvrtcGetPTX\0")?,
                log_size: library.get(b"nvrtcGetProgramLogSize\0")?,
                log: library.get(b"nvrtcGetProgramLog\0")?,
                error_string: library.get(b"nvrtcGetErrorString\0")?,
                arch_count: library.get(b"nvrtcGetNumSupportedArchs\0")?,
                archs: library.get(b"nvrtcGetSupportedArchs\0")?,
                version,
                path: path.to_path_buf(),
                _library: library,
                _builtins: builtins,
            })
        }
    }

    /// Major and minor version.
    pub const fn version(&self) -> (i32, i32) {
        self.version
    }

    /// The architectures that it makes code for, as 80 for `sm_80`.
    ///
    /// # Errors
    /// If it does not say.
    pub fn architectures(&self) -> Result<Vec<i32>, NvrtcError> {
        let mut count = 0;
        // SAFETY: a valid place for the result.
        self.check("nvrtcGetNumSupportedArchs", unsafe { (self.arch_count)(&mut count) })?;
        let mut found = vec![0; count.max(0) as usize];
        // SAFETY: it writes as many numbers as it just said.
        self.check("nvrtcGetSupportedArchs", unsafe { (self.archs)(found.as_mut_ptr()) })?;
        Ok(found)
    }

    /// Where the library was found.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of the library's file, by which builds of one version differ; 0 where only the dynamic linker knows the file.
    pub fn library_bytes(&self) -> u64 {
        std::fs::metadata(&self.path).map_or(0, |m| m.len())
    }

    /// Compiles CUDA C++ for a real architecture (`sm_90a`), with further compiler options.
    ///
    /// # Errors
    /// [`NvrtcError::Compile`] with the compiler's log if the text is refused; other variants if a call fails.
    pub fn compile(&self, source: &str, name: &str, arch: &str, options: &[&str]) -> Result<Cubin, NvrtcError> {
        let options = [&["--ptxas-options=-v"], options].concat();
        let (program, log) = self.program(source, name, arch, &options)?;
        let bytes = self.bytes(program.handle, "nvrtcGetCUBIN", &self.cubin_size, &self.cubin)?;
        let usage = Usage::of(&log);
        Ok(Cubin {
            bytes,
            log,
            registers: usage.registers,
            spill_bytes: usage.spill_bytes,
            stack_bytes: usage.stack_bytes,
        })
    }

    /// Compiles CUDA C++ to PTX for a virtual architecture (`compute_80`), with further compiler options.
    ///
    /// # Errors
    /// As for [`Nvrtc::compile`].
    pub fn compile_to_ptx(&self, source: &str, name: &str, arch: &str, options: &[&str]) -> Result<String, NvrtcError> {
        let (program, _) = self.program(source, name, arch, options)?;
        let bytes = self.bytes(program.handle, "nvrtcGetPTX", &self.ptx_size, &self.ptx)?;
        Ok(String::from_utf8_lossy(&bytes).trim_end_matches('\0').to_string())
    }

    /// A program that was compiled, and what the compiler said.
    fn program(
        &self,
        source: &str,
        name: &str,
        arch: &str,
        options: &[&str],
    ) -> Result<(OwnedProgram<'_>, String), NvrtcError> {
        let text = CString::new(source).map_err(|_| NvrtcError::Nul("source"))?;
        let c_name = CString::new(name).map_err(|_| NvrtcError::Nul("name"))?;
        let mut flags = vec![format!("--gpu-architecture={arch}")];
        flags.extend(options.iter().map(|o| o.to_string()));
        let flags: Vec<CString> = flags
            .into_iter()
            .map(|f| CString::new(f).map_err(|_| NvrtcError::Nul("option")))
            .collect::<Result<_, _>>()?;
        let pointers: Vec<*const c_char> = flags.iter().map(|f| f.as_ptr()).collect();
        let mut program = OwnedProgram {
            nvrtc: self,
            handle: std::ptr::null_mut(),
        };
        // SAFETY: `handle` is a valid place for the result; both strings are NUL-terminated and outlive the call, which
        // copies them; no headers are passed, so their arrays may be null.
        let code = unsafe {
            (self.create)(
                &mut program.handle,
                text.as_ptr(),
                c_name.as_ptr(),
                0,
                std::ptr::null(),
                std::ptr::null(),
            )
        };
        self.check("nvrtcCreateProgram", code)?;
        // SAFETY: the program was created above; `pointers` holds as many NUL-terminated strings as its length says.
        let compiled = unsafe { (self.compile)(program.handle, pointers.len() as c_int, pointers.as_ptr()) };
        let log = self.bytes(program.handle, "nvrtcGetProgramLog", &self.log_size, &self.log)?;
        let log = String::from_utf8_lossy(&log).trim_end_matches('\0').trim().to_string();
        if compiled != 0 {
            let log = if log.is_empty() { self.message(compiled) } else { log };
            // Whatever stands in the text, names of kernels have no spaces.
            if compiled == OUT_OF_MEMORY || log.contains("catastrophic error: out of memory") {
                return Err(NvrtcError::Memory { name: name.into() });
            }
            return Err(NvrtcError::Compile { name: name.into(), log });
        }
        Ok((program, log))
    }

    fn bytes(
        &self,
        program: Program,
        call: &'static str,
        size: &Symbol<GetSize>,
        get: &Symbol<GetBytes>,
    ) -> Result<Vec<u8>, NvrtcError> {
        let mut len = 0usize;
        // SAFETY: the program is alive and `len` a valid place for the size.
        self.check(call, unsafe { size(program, &mut len) })?;
        let mut out = vec![0u8; len];
        // SAFETY: the buffer has the number of bytes that NVRTC just asked for.
        self.check(call, unsafe { get(program, out.as_mut_ptr().cast()) })?;
        Ok(out)
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<(), NvrtcError> {
        match code {
            0 => Ok(()),
            code => Err(NvrtcError::Call {
                call,
                message: self.message(code),
            }),
        }
    }

    fn message(&self, code: c_int) -> String {
        // SAFETY: NVRTC returns a static NUL-terminated string for every code, known or not.
        let text = unsafe { (self.error_string)(code) };
        if text.is_null() {
            return format!("error {code}");
        }
        // SAFETY: not null, and static as said above.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}

/// Destroys the program when it goes.
struct OwnedProgram<'n> {
    nvrtc: &'n Nvrtc,
    handle: Program,
}

impl Drop for OwnedProgram<'_> {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: created by the same library, destroyed once; the call only clears the handle it is given.
            unsafe { (self.nvrtc.destroy)(&mut self.handle) };
        }
    }
}

/// NVRTC opens this library by name; loaded before, it is found wherever it lies.
fn load_builtins(folder: &Path) -> Option<Library> {
    let mut found: Vec<PathBuf> = std::fs::read_dir(folder)
        .ok()?
        .filter_map(|e| Some(e.ok()?.path()))
        .filter(|p| {
            let name = p
                .file_name()
                .map(|n| n.to_string_lossy().into_owned())
                .unwrap_or_default();
            name.starts_with("libnvrtc-builtins.so")
        })
        .collect();
    found.sort();
    // SAFETY: a data library of NVRTC's without initializers that have preconditions.
    found
        .into_iter()
        .find_map(|p| unsafe { Library::open(Some(p), RTLD_LAZY | RTLD_GLOBAL) }.ok())
}

/// Paths to try, in order.
fn candidates(tried: &mut Vec<String>) -> Vec<PathBuf> {
    if let Some(set) = std::env::var_os("TLC_NVRTC").filter(|set| !set.is_empty()) {
        let set = PathBuf::from(set);
        if set.is_dir() {
            let folders = std::iter::once(set.clone()).chain(wheel_folders(&set));
            return folders.flat_map(|f| NAMES.map(|n| f.join(n))).collect();
        }
        return vec![set];
    }
    let mut out: Vec<PathBuf> = NAMES.iter().map(PathBuf::from).collect();
    match python_paths() {
        Ok(paths) => {
            let folders = paths.iter().flat_map(|p| wheel_folders(p));
            out.extend(folders.flat_map(|f| NAMES.map(|n| f.join(n))).filter(|p| p.exists()));
        }
        Err(why) => tried.push(format!("python3: {why}")),
    }
    out
}

/// The folders `nvidia/*/lib` under a folder of Python's.
fn wheel_folders(site: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(site.join("nvidia")) else {
        return Vec::new();
    };
    let mut out: Vec<PathBuf> = entries.filter_map(|e| Some(e.ok()?.path().join("lib"))).collect();
    out.sort();
    out
}

fn python_paths() -> Result<Vec<PathBuf>, String> {
    let output = Command::new("python3")
        .args(["-c", "import sys; print('\\n'.join(sys.path))"])
        .output()
        .map_err(|e| e.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().filter(|l| !l.is_empty()).map(PathBuf::from).collect())
}

/// What ptxas says of its functions.
struct Usage {
    registers: Option<u32>,
    spill_bytes: u64,
    stack_bytes: u64,
}

impl Usage {
    fn of(log: &str) -> Usage {
        let before = |marker: &str| -> Vec<u64> {
            log.match_indices(marker)
                .filter_map(|(at, _)| log[..at].split_whitespace().next_back()?.parse().ok())
                .collect()
        };
        Usage {
            registers: before(" registers").into_iter().max().map(|r| r as u32),
            spill_bytes: before(" bytes spill stores").iter().sum::<u64>()
                + before(" bytes spill loads").iter().sum::<u64>(),
            stack_bytes: before(" bytes stack frame").iter().sum(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_read_from_the_log() {
        let log = "ptxas info    : 0 bytes gmem\n\
                   ptxas info    : Compiling entry function 'k' for 'sm_90a'\n\
                   ptxas info    : Function properties for k\n    \
                   16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads\n\
                   ptxas info    : Used 24 registers, used 1 barriers, 16 bytes cumulative stack size\n";
        let usage = Usage::of(log);
        assert_eq!(usage.registers, Some(24));
        assert_eq!(usage.spill_bytes, 20);
        assert_eq!(usage.stack_bytes, 16);
    }
}
