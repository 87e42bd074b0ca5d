//! The PTX texts beside the CUDA C++ sources are what NVRTC makes of them.
//!
//! Skipped where NVRTC is not; `TLC_GPUSIM_REGENERATE=1` writes them in place of comparing. NVRTC is looked for under
//! `TLC_NVRTC`, a file or a folder that holds `libnvrtc.so.13`, and else by the linker.

use std::ffi::{CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};

use libloading::{Library, Symbol};

/// Source, text, and what NVRTC is told.
const TEXTS: [(&str, &str, &[&str]); 5] = [
    (
        "tlc_gather.cu",
        "tlc_gather.sm_80.ptx",
        &["--gpu-architecture=compute_80", "--fmad=false"],
    ),
    ("programs.cu", "programs.sm_80.ptx", &["--gpu-architecture=compute_80"]),
    (
        "programs.cu",
        "programs.sm_100.ptx",
        &["--gpu-architecture=compute_100"],
    ),
    (
        "broken.cu",
        "broken.sm_80.ptx",
        &["--gpu-architecture=compute_80", "-DBROKEN"],
    ),
    ("broken.cu", "right.sm_80.ptx", &["--gpu-architecture=compute_80"]),
];

type Program = *mut c_void;
type Strings = *const *const c_char;

fn load() -> Option<(Library, Option<Library>)> {
    let name = match std::env::var_os("TLC_NVRTC").map(PathBuf::from) {
        Some(path) if path.is_dir() => path.join("libnvrtc.so.13"),
        Some(path) => path,
        None => PathBuf::from("libnvrtc.so.13"),
    };
    let builtins = name
        .parent()
        .map(|p| p.join("libnvrtc-builtins.so.13.0"))
        .filter(|p| p.exists());
    // SAFETY: NVIDIA's libraries have no conditions on being loaded.
    unsafe {
        use libloading::os::unix;
        let builtins = builtins
            .and_then(|p| unix::Library::open(Some(p), unix::RTLD_NOW | unix::RTLD_GLOBAL).ok())
            .map(Library::from);
        Library::new(name).ok().map(|library| (library, builtins))
    }
}

fn compile(library: &Library, source: &str, name: &str, options: &[&str]) -> String {
    let (source, name) = (CString::new(source).unwrap(), CString::new(name).unwrap());
    let options: Vec<CString> = options
        .iter()
        .chain(&["-lineinfo"])
        .map(|o| CString::new(*o).unwrap())
        .collect();
    let pointers: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();
    // SAFETY: the types are those of nvrtc.h, strings end in NUL and outlive the calls, sizes are asked for first.
    unsafe {
        type Create =
            unsafe extern "C" fn(*mut Program, *const c_char, *const c_char, c_int, Strings, Strings) -> c_int;
        let create: Symbol<Create> = library.get(b"nvrtcCreateProgram\0").unwrap();
        let compile: Symbol<unsafe extern "C" fn(Program, c_int, Strings) -> c_int> =
            library.get(b"nvrtcCompileProgram\0").unwrap();
        let size: Symbol<unsafe extern "C" fn(Program, *mut usize) -> c_int> =
            library.get(b"nvrtcGetPTXSize\0").unwrap();
        let text: Symbol<unsafe extern "C" fn(Program, *mut c_char) -> c_int> = library.get(b"nvrtcGetPTX\0").unwrap();
        let destroy: Symbol<unsafe extern "C" fn(*mut Program) -> c_int> =
            library.get(b"nvrtcDestroyProgram\0").unwrap();
        let mut program = std::ptr::null_mut();
        let none = std::ptr::null();
        assert_eq!(create(&mut program, source.as_ptr(), name.as_ptr(), 0, none, none), 0);
        assert_eq!(
            compile(program, pointers.len() as c_int, pointers.as_ptr()),
            0,
            "{name:?} does not compile"
        );
        let mut bytes = 0;
        assert_eq!(size(program, &mut bytes), 0);
        let mut ptx = vec![0_u8; bytes];
        assert_eq!(text(program, ptx.as_mut_ptr().cast()), 0);
        destroy(&mut program);
        ptx.pop();
        String::from_utf8(ptx).unwrap()
    }
}

/// Without the folder that NVRTC puts before the name of the source.
fn without_folder(ptx: &str) -> String {
    let line = |l: &str| match l
        .split_once("\t\"")
        .filter(|_| l.contains(".file"))
        .or_else(|| l.split_once(" \""))
    {
        Some((before, path)) if l.contains(".file") => {
            format!("{before} \"{}", path.rsplit('/').next().unwrap_or(path))
        }
        _ => l.to_string(),
    };
    ptx.lines().map(line).collect::<Vec<_>>().join("\n") + "\n"
}

#[test]
fn texts_are_what_nvrtc_makes() {
    let Some((library, _builtins)) = load() else {
        println!("SKIP: NVRTC is not here; TLC_NVRTC may name its folder");
        return;
    };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernels");
    for (source, text, options) in TEXTS {
        let made = compile(
            &library,
            &std::fs::read_to_string(folder.join(source)).unwrap(),
            source,
            options,
        );
        let made = without_folder(&made);
        if std::env::var_os("TLC_GPUSIM_REGENERATE").is_some() {
            std::fs::write(folder.join(text), &made).unwrap();
        }
        assert!(
            made == std::fs::read_to_string(folder.join(text)).unwrap(),
            "{text} is not up to date"
        );
    }
}
