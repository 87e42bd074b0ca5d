//! Kernels as machine code: CUDA C++ from the emitter, NVRTC, a module of the driver.
//!
//! Several kernels are one program, each in a namespace of its own, for NVRTC takes most of its time to begin; and there are as many
//! programs as threads to compile them. A CUBIN is made where NVRTC knows the device's architecture, else PTX of the newest one
//! that it knows and the device can run, which the driver then compiles. `TLC_CUDA_CODE=ptx` or `cubin` asks for one of them.

use std::ffi::c_void;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use tlc_codegen::cuda::{COMPILE_FLAGS, CudaOptions, emit};

use super::library::{Handle, NO_BINARY_FOR_GPU};
use super::{Context, CudaError};
use crate::device::Loaded;
use crate::nvrtc::{Nvrtc, NvrtcError};

/// A program that the driver loaded; it goes when this is dropped.
pub(super) struct Module {
    context: Context,
    handle: Handle,
}

// SAFETY: as for `Context`.
unsafe impl Send for Module {}
// SAFETY: as for `Context`.
unsafe impl Sync for Module {}

impl Drop for Module {
    fn drop(&mut self) {
        if let Ok(driver) = self.context.enter() {
            // SAFETY: the module is loaded, and the device that owns it has waited for what it launched. What fails here failed
            // before, or the context is lost.
            unsafe { (driver.unload_module)(self.handle) };
        }
    }
}

/// Machine code or assembly.
enum Code {
    Cubin(Vec<u8>),
    Ptx(String),
}

/// The compiler of this process, found at the first call.
fn nvrtc() -> Result<&'static Nvrtc, CudaError> {
    static NVRTC: OnceLock<Result<Nvrtc, NvrtcError>> = OnceLock::new();
    NVRTC.get_or_init(Nvrtc::load).as_ref().map_err(|e| e.clone().into())
}

/// Whether a driver of this process refused a binary of the right architecture: a simulated one, which only reads PTX.
static REFUSES_BINARIES: AtomicBool = AtomicBool::new(false);

/// What kernels are compiled to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Cubin,
    Ptx,
}

/// The form that is asked for or fits the device, and the architecture to compile for.
fn form(nvrtc: &Nvrtc, architecture: i32) -> Result<(Form, i32), CudaError> {
    let known = nvrtc.architectures()?;
    let asked = std::env::var("TLC_CUDA_CODE").ok();
    let exact = known.contains(&architecture);
    let form = match asked.as_deref() {
        Some("ptx") => Form::Ptx,
        Some("cubin") => Form::Cubin,
        _ if exact && !REFUSES_BINARIES.load(Ordering::Relaxed) => Form::Cubin,
        _ => Form::Ptx,
    };
    let newest = known.iter().copied().filter(|a| *a <= architecture).max();
    Ok((form, newest.unwrap_or(architecture)))
}

/// Loads kernels, on so many threads; returns the modules, and the function of each kernel.
pub(super) fn load(
    context: Context,
    architecture: i32,
    kernels: &[Loaded<'_>],
    threads: usize,
) -> Result<(Vec<Module>, Vec<Handle>), CudaError> {
    if kernels.is_empty() {
        return Ok(Default::default());
    }
    let nvrtc = nvrtc()?;
    let sources = kernels.iter().enumerate().map(|(kernel, k)| {
        let options = CudaOptions {
            arch: format!("sm_{architecture}"),
            may_alias: k.aliases,
        };
        let text = emit(k.kernel, &name(kernel), &options);
        text.map(|k| k.source).map_err(|e| CudaError::Text {
            kernel,
            message: e.to_string(),
        })
    });
    let sources: Vec<String> = sources.collect::<Result<_, _>>()?;
    let each = sources.len().div_ceil(threads.max(1));
    let programs: Vec<String> = sources.chunks(each).enumerate().map(|(c, s)| program(c * each, s)).collect();
    let (form, architecture) = form(nvrtc, architecture)?;
    let compiled = compile_all(nvrtc, &programs, form, architecture)?;
    let modules = match load_all(context, &compiled) {
        Err(CudaError::Call {
            status: NO_BINARY_FOR_GPU,
            ..
        }) if form == Form::Cubin => {
            REFUSES_BINARIES.store(true, Ordering::Relaxed);
            load_all(context, &compile_all(nvrtc, &programs, Form::Ptx, architecture)?)?
        }
        modules => modules?,
    };
    let function = |kernel: usize| context.driver.function_of(modules[kernel / each].handle, &name(kernel));
    let functions = (0..kernels.len()).map(function).collect::<Result<_, _>>()?;
    Ok((modules, functions))
}

fn name(kernel: usize) -> String {
    format!("kernel_{kernel}")
}

/// The text of several kernels.
fn program(first: usize, sources: &[String]) -> String {
    let mut text = String::new();
    for (i, source) in sources.iter().enumerate() {
        text += &format!("namespace of_kernel_{} {{\n{source}}}\n", first + i);
    }
    text
}

fn compile_all(
    nvrtc: &Nvrtc,
    programs: &[String],
    form: Form,
    architecture: i32,
) -> Result<Vec<Code>, CudaError> {
    let compile = |text: &String| -> Result<Code, CudaError> {
        let (name, flags) = ("tlc.cu", &COMPILE_FLAGS[..]);
        Ok(match form {
            Form::Cubin => Code::Cubin(nvrtc.compile(text, name, &format!("sm_{architecture}"), flags)?.bytes),
            Form::Ptx => Code::Ptx(nvrtc.compile_to_ptx(text, name, &format!("compute_{architecture}"), flags)?),
        })
    };
    let Some((first, others)) = programs.split_first() else {
        return Ok(Vec::new());
    };
    std::thread::scope(|scope| {
        let running: Vec<_> = others.iter().map(|p| scope.spawn(move || compile(p))).collect();
        let mut all = vec![compile(first)?];
        for thread in running {
            all.push(thread.join().unwrap_or_else(|_| {
                Err(CudaError::Text {
                    kernel: 0,
                    message: "the thread that compiled it panicked".into(),
                })
            })?);
        }
        Ok(all)
    })
}

fn load_all(context: Context, all: &[Code]) -> Result<Vec<Module>, CudaError> {
    let driver = context.enter()?;
    let load = |code: &Code| {
        let text: Vec<u8>;
        let image: &[u8] = match code {
            Code::Cubin(bytes) => bytes,
            Code::Ptx(ptx) => {
                text = [ptx.as_bytes(), &[0]].concat();
                &text
            }
        };
        let mut log = [0u8; 4096];
        // CU_JIT_ERROR_LOG_BUFFER and CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES.
        let mut options = [5, 6];
        let mut values: [*mut c_void; 2] = [log.as_mut_ptr().cast(), std::ptr::without_provenance_mut(log.len())];
        let mut handle = std::ptr::null_mut();
        // SAFETY: the image is a whole ELF file or a NUL-terminated text; the options say where a log goes and how much fits.
        let status = unsafe {
            (driver.load_module)(
                &mut handle,
                image.as_ptr().cast(),
                options.len() as u32,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        let loaded = context.check("cuModuleLoadDataEx", status);
        loaded.map(|()| Module { context, handle }).map_err(|e| with_log(e, &log))
    };
    all.iter().map(load).collect()
}

/// An error with what the driver's compiler wrote.
fn with_log(error: CudaError, log: &[u8]) -> CudaError {
    let text: Vec<u8> = log.iter().copied().take_while(|c| *c != 0).collect();
    let text = String::from_utf8_lossy(&text).trim().replace('\n', "; ");
    match error {
        CudaError::Call { call, status, message } if !text.is_empty() => CudaError::Call {
            call,
            status,
            message: format!("{message}: {text}"),
        },
        error => error,
    }
}
