//! From kernels to functions that a device has loaded.
//!
//! Kernels are emitted as CUDA C++, several to a program, and compiled by NVRTC: to machine code where it knows the device's architecture,
//! else to PTX of the newest that it knows and the device has, which the driver compiles. `TLC_CUDA_CODE=ptx` or `cubin` asks for one of
//! them. A driver that refuses machine code gets PTX from then on, as the simulated one.

use std::ffi::{CString, c_void};
use std::sync::{Arc, OnceLock};

use tlc_codegen::cuda::{
    COMPILE_FLAGS, CudaError, CudaKernel, CudaOptions, TiledMatrix, emit, emit_launch_group, emit_sequence,
};
use tlc_ir::Kernel;

use super::cache;
use super::context::Context;
use super::library::Handle;
use crate::device::{Joining, ToJoin, ToLoad};
use crate::error::{JitError, RunError, Unavailable};
use crate::nvrtc::{Nvrtc, NvrtcError};

/// What a simulated device is compiled for as well: it names the line of a kernel's text in which something is wrong.
const LINES: &str = "--generate-line-info";
/// So many kernels to a program are worth a thread.
const KERNELS_PER_PROGRAM: usize = 8;
/// Bytes for what the driver says of a text that it refuses.
const LOG_BYTES: usize = 8 << 10;
/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`.
const MAX_DYNAMIC_SHARED_BYTES: u32 = 8;
/// `CUDA_ERROR_NO_BINARY_FOR_GPU`.
const NO_BINARY: u32 = 209;
/// `CU_JIT_ERROR_LOG_BUFFER` and `CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES`.
const ERROR_LOG: [u32; 2] = [5, 6];

/// What a program is compiled to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// Machine code of one architecture.
    Cubin,
    /// NVIDIA's virtual instructions, which the driver compiles.
    Ptx,
}

/// Code that a device has loaded.
pub(super) struct Loaded {
    context: Arc<Context>,
    module: Handle,
}

// SAFETY: the handle is the driver's, which takes it on every thread.
unsafe impl Send for Loaded {}

impl Drop for Loaded {
    fn drop(&mut self) {
        // What fails here failed before: the module goes with the device.
        // SAFETY: loaded once, unloaded once; who owns this has waited for the device.
        let _ = self
            .context
            .quietly("cuModuleUnload", |d| unsafe { (d.cuModuleUnload)(self.module) });
    }
}

/// A function that a device has loaded.
pub(super) struct Function {
    pub(super) handle: Handle,
    pub(super) name: String,
    /// Bytes of shared memory that a launch must ask for.
    pub(super) dynamic_shared_bytes: u32,
    /// Whether it is given one structure of all values.
    pub(super) takes_structure: bool,
    /// How many of its parameters are addresses of buffers, which come first; the others are symbols.
    pub(super) buffers: usize,
    /// Matrices of which it copies tiles, where they lie being told behind its other parameters.
    pub(super) matrices: Vec<TiledMatrix>,
}

/// What a launch of a function is to be told beside its parameters' values.
type Needs = (u32, Vec<TiledMatrix>);

/// Code, and the functions in it.
type Functions = (Vec<Loaded>, Vec<Function>);

/// NVRTC, loaded at the first call.
fn nvrtc() -> Result<&'static Nvrtc, Unavailable> {
    static NVRTC: OnceLock<Result<Nvrtc, NvrtcError>> = OnceLock::new();
    let loaded = NVRTC.get_or_init(Nvrtc::load);
    loaded
        .as_ref()
        .map_err(|e| Unavailable::Compiler { message: e.to_string() })
}

/// The architecture that kernels for a device are compiled for: of the one that has instructions which no later device has, that with those.
pub fn arch_name((major, minor): (i32, i32)) -> String {
    let only_there = if (major, minor) == (9, 0) { "a" } else { "" };
    format!("sm_{major}{minor}{only_there}")
}

/// What NVRTC is asked for: the form, and the architecture as its option names it.
///
/// # Errors
/// If `TLC_CUDA_CODE` is neither, or NVRTC knows nothing that the device has.
pub fn arch_of(capability: (i32, i32), supported: &[i32], form: Option<Form>) -> Result<(Form, String), Unavailable> {
    let own = capability.0 * 10 + capability.1;
    let form = form.unwrap_or(match supported.contains(&own) {
        true => Form::Cubin,
        false => Form::Ptx,
    });
    let prefix = match form {
        Form::Cubin => "sm",
        Form::Ptx => "compute",
    };
    let known = match form {
        Form::Cubin => Some(own),
        Form::Ptx => supported.iter().copied().filter(|&a| a <= own).max(),
    };
    match known {
        Some(arch) if arch == own => Ok((form, arch_name(capability).replace("sm", prefix))),
        Some(arch) => Ok((form, format!("{prefix}_{arch}"))),
        None => Err(Unavailable::Compiler {
            message: format!(
                "NVRTC knows no architecture that a device of compute capability {}.{} has",
                capability.0, capability.1
            ),
        }),
    }
}

/// The form that the environment asks for.
fn asked() -> Result<Option<Form>, Unavailable> {
    match std::env::var("TLC_CUDA_CODE").as_deref() {
        Err(_) | Ok("") => Ok(None),
        Ok("ptx") => Ok(Some(Form::Ptx)),
        Ok("cubin") => Ok(Some(Form::Cubin)),
        Ok(other) => Err(Unavailable::Setting {
            message: format!("TLC_CUDA_CODE is `{other}`; expected ptx or cubin"),
        }),
    }
}

/// What a function is made of.
#[derive(Clone, Copy)]
pub(super) enum Wanted<'k> {
    /// One kernel.
    Kernel(ToLoad<'k>),
    /// Launches that are one.
    Joined(&'k ToJoin<'k>),
}

impl Wanted<'_> {
    /// A name for the function of that number.
    fn name(&self, number: usize) -> String {
        match self {
            Wanted::Kernel(_) => format!("kernel{number}"),
            Wanted::Joined(all) => match all.joining {
                Joining::InTurn => format!("sequence{number}"),
                Joining::Beside => format!("group{number}"),
            },
        }
    }

    /// How many addresses of buffers its function is given.
    fn buffers(&self) -> usize {
        match self {
            Wanted::Kernel(k) => k.kernel.params.len(),
            Wanted::Joined(_) => 0,
        }
    }

    /// Whether its function is given all values as one structure.
    fn takes_structure(&self) -> bool {
        matches!(self, Wanted::Joined(all) if all.joining == Joining::Beside)
    }

    /// Its text.
    fn emitted(&self, name: &str, arch: &str) -> Result<CudaKernel, CudaError> {
        let options = |may_alias| CudaOptions {
            arch: arch.replace("compute_", "sm_"),
            may_alias,
        };
        match self {
            Wanted::Kernel(k) => emit(k.kernel, name, &options(k.in_place)),
            Wanted::Joined(all) => {
                let kernels: Vec<&Kernel> = all.kernels.iter().map(|k| k.kernel).collect();
                match all.joining {
                    Joining::InTurn => emit_sequence(&kernels, &all.order, name, &options(true)),
                    Joining::Beside => {
                        let in_place: Vec<bool> = all.kernels.iter().map(|k| k.in_place).collect();
                        emit_launch_group(&kernels, &in_place, &all.order, name, &options(true))
                    }
                }
            }
        }
    }
}

/// The text of kernels as one program, and of each the bytes of shared memory that launches must ask for and its matrices. Each is in a namespace of its
/// own, for they define what they need by the same names. With `lines` each is a source of its own as well, whose lines the compiler counts.
fn program(
    kernels: &[Wanted<'_>],
    first: usize,
    (arch, lines): (&str, bool),
) -> Result<(String, Vec<Needs>), RunError> {
    let mut text = String::new();
    let mut needs = Vec::with_capacity(kernels.len());
    for (k, wanted) in kernels.iter().enumerate() {
        let number = first + k;
        let emitted = wanted.emitted(&wanted.name(number), arch);
        let emitted = emitted.map_err(|source| JitError::Cuda { kernel: number, source })?;
        let source = match lines {
            true => format!("{BEGINS}{}.cu\"\n", wanted.name(number)),
            false => String::new(),
        };
        text.push_str(&format!("namespace space{number} {{\n{source}{}}}\n", emitted.source));
        needs.push((emitted.dynamic_shared_bytes, emitted.matrices));
    }
    Ok((text, needs))
}

/// How the text of a kernel begins whose lines are counted, up to its name.
const BEGINS: &str = "#line 1 \"";

/// The sources of a program as comments, as the simulated driver reads them behind PTX.
fn as_comments(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        match line.strip_prefix(BEGINS) {
            Some(name) => out.push_str(&format!("//= {}\n", name.trim_end_matches('"'))),
            None => out.push_str(&format!("//| {line}\n")),
        }
    }
    out
}

/// A compiled program.
fn compiled(text: &str, form: Form, (arch, lines): (&str, bool)) -> Result<Vec<u8>, RunError> {
    let nvrtc = nvrtc()?;
    let mut flags = COMPILE_FLAGS.to_vec();
    flags.extend(lines.then_some(LINES));
    let key = cache::Key {
        text,
        arch,
        flags: &flags,
        version: nvrtc.version(),
        library_bytes: nvrtc.library_bytes(),
    };
    if let Some(known) = cache::get(&key) {
        return Ok(known);
    }
    let made = match form {
        Form::Cubin => nvrtc.compile(text, "tlc.cu", arch, &flags).map(|c| c.bytes),
        Form::Ptx => nvrtc.compile_to_ptx(text, "tlc.cu", arch, &flags).map(|mut ptx| {
            if lines {
                ptx.push('\n');
                ptx.push_str(&as_comments(text));
            }
            ptx.into_bytes()
        }),
    };
    let made = made.map_err(|e| match e {
        NvrtcError::Memory { .. } => JitError::Load { message: e.to_string() },
        e => JitError::Nvrtc { message: e.to_string() },
    })?;
    cache::put(&key, &made);
    Ok(made)
}

/// Makes functions of kernels; returns what holds them, and each with its name.
pub(super) fn load(context: &Arc<Context>, kernels: &[Wanted<'_>], threads: usize) -> Result<Functions, RunError> {
    if kernels.is_empty() {
        return Ok((Vec::new(), Vec::new()));
    }
    let supported = nvrtc()?
        .architectures()
        .map_err(|e| Unavailable::Compiler { message: e.to_string() })?;
    let asked = asked()?;
    let forced = match context.wants_ptx() {
        true => asked.or(Some(Form::Ptx)),
        false => asked,
    };
    let (form, arch) = arch_of(context.properties().capability, &supported, forced)?;
    match load_as((form, &arch), context, kernels, threads) {
        Err(Refused::Binary) if asked.is_none() => {
            context.refused_binary();
            let (form, arch) = arch_of(context.properties().capability, &supported, Some(Form::Ptx))?;
            load_as((form, &arch), context, kernels, threads).map_err(|e| e.into_error(context))
        }
        other => other.map_err(|e| e.into_error(context)),
    }
}

/// Makes a function of a text that has it by that name, with no shared memory that the launch sizes.
pub(super) fn from_text(context: &Arc<Context>, text: &str, name: &str) -> Result<(Loaded, Function), RunError> {
    let supported = nvrtc()?
        .architectures()
        .map_err(|e| Unavailable::Compiler { message: e.to_string() })?;
    let asked = asked()?;
    let made = |form: Option<Form>| -> Result<Loaded, Refused> {
        let (form, arch) = arch_of(context.properties().capability, &supported, form).map_err(RunError::from)?;
        module(context, form, compiled(text, form, (&arch, false))?)
    };
    let first = asked.or(context.wants_ptx().then_some(Form::Ptx));
    let loaded = match made(first) {
        Err(Refused::Binary) if asked.is_none() => {
            context.refused_binary();
            made(Some(Form::Ptx))
        }
        other => other,
    };
    let loaded = loaded.map_err(|e| e.into_error(context))?;
    let handle = function_of(context, &loaded, name)?;
    let function = Function {
        handle,
        name: name.into(),
        dynamic_shared_bytes: 0,
        takes_structure: false,
        buffers: 0,
        matrices: Vec::new(),
    };
    Ok((loaded, function))
}

/// The function of that name in code that was loaded.
fn function_of(context: &Context, loaded: &Loaded, name: &str) -> Result<Handle, RunError> {
    let symbol = CString::new(name).unwrap_or_default();
    let mut function: Handle = std::ptr::null_mut();
    // SAFETY: a valid place for the result, a module that was loaded, a NUL-terminated name.
    context.call("cuModuleGetFunction", |d| unsafe {
        (d.cuModuleGetFunction)(&mut function, loaded.module, symbol.as_ptr())
    })?;
    Ok(function)
}

/// Why code was not loaded.
enum Refused {
    /// The driver has no use for such machine code.
    Binary,
    Other(RunError),
}

impl From<RunError> for Refused {
    fn from(e: RunError) -> Refused {
        Refused::Other(e)
    }
}

impl Refused {
    fn into_error(self, context: &Context) -> RunError {
        match self {
            Refused::Other(e) => e,
            Refused::Binary => RunError::Device {
                device: context.properties().title(),
                message: format!(
                    "{} takes no machine code; expected TLC_CUDA_CODE=ptx, or unset",
                    context.properties().name
                ),
            },
        }
    }
}

fn load_as(
    (form, arch): (Form, &str),
    context: &Arc<Context>,
    kernels: &[Wanted<'_>],
    threads: usize,
) -> Result<Functions, Refused> {
    let for_whom = (arch, context.properties().simulated);
    let each = kernels.len().div_ceil(threads.max(1)).max(KERNELS_PER_PROGRAM);
    let (mut texts, mut needs) = (Vec::new(), Vec::with_capacity(kernels.len()));
    for (part, kernels) in kernels.chunks(each).enumerate() {
        let (text, each) = program(kernels, part * each, for_whom)?;
        texts.push(text);
        needs.extend(each);
    }
    let images: Vec<Result<Vec<u8>, RunError>> = match &texts[..] {
        [one] => vec![compiled(one, form, for_whom)],
        several => std::thread::scope(|scope| {
            let running: Vec<_> = several
                .iter()
                .map(|t| scope.spawn(|| compiled(t, form, for_whom)))
                .collect();
            let panicked = |_| {
                Err(JitError::Nvrtc {
                    message: "its thread panicked".into(),
                }
                .into())
            };
            running.into_iter().map(|r| r.join().unwrap_or_else(panicked)).collect()
        }),
    };
    let (mut modules, mut functions) = (Vec::new(), Vec::new());
    for (part, image) in images.into_iter().enumerate() {
        let loaded = module(context, form, image?)?;
        for k in 0..kernels.len().saturating_sub(part * each).min(each) {
            let name = kernels[part * each + k].name(part * each + k);
            let function = function_of(context, &loaded, &name)?;
            let (dynamic_shared_bytes, matrices) = std::mem::take(&mut needs[part * each + k]);
            if dynamic_shared_bytes > 0 {
                // SAFETY: a function of a module that was loaded; how much it may be is for the driver to say.
                context.call("cuFuncSetAttribute", |d| unsafe {
                    (d.cuFuncSetAttribute)(function, MAX_DYNAMIC_SHARED_BYTES, dynamic_shared_bytes as i32)
                })?;
            }
            functions.push(Function {
                handle: function,
                name,
                dynamic_shared_bytes,
                takes_structure: kernels[part * each + k].takes_structure(),
                buffers: kernels[part * each + k].buffers(),
                matrices,
            });
        }
        modules.push(loaded);
    }
    Ok((modules, functions))
}

fn module(context: &Arc<Context>, form: Form, mut image: Vec<u8>) -> Result<Loaded, Refused> {
    if form == Form::Ptx {
        image.push(0);
    }
    let mut log = vec![0u8; LOG_BYTES];
    let mut options = ERROR_LOG;
    let mut values = [
        log.as_mut_ptr().cast::<c_void>(),
        std::ptr::without_provenance_mut(LOG_BYTES),
    ];
    let mut module: Handle = std::ptr::null_mut();
    // SAFETY: PTX ends in a zero byte, and machine code is an ELF file that NVRTC made; options and values are two each, and the buffer
    // for what the driver says has the bytes that are said.
    let done = context.asked("cuModuleLoadDataEx", |d| unsafe {
        (d.cuModuleLoadDataEx)(
            &mut module,
            image.as_ptr().cast(),
            2,
            options.as_mut_ptr(),
            values.as_mut_ptr(),
        )
    });
    match done {
        Ok(()) => Ok(Loaded {
            context: Arc::clone(context),
            module,
        }),
        Err(e) if e.code == NO_BINARY && form == Form::Cubin => Err(Refused::Binary),
        Err(e) => {
            let said = log.split(|b| *b == 0).next().unwrap_or_default();
            let said = String::from_utf8_lossy(said);
            let message = match said.trim() {
                "" => e.to_string(),
                said => format!("{e}: {said}"),
            };
            Err(Refused::Other(RunError::Device {
                device: context.properties().title(),
                message,
            }))
        }
    }
}
