//! Kernels as callable functions.
//!
//! Invariants:
//! - The memory of a batch lives as long as any [`KernelFn`] of it, and is returned to the system with the last one.
//! - Equal kernels of a batch are compiled once, or were before (`jit/ahead.rs`); the result does not depend on the number of threads.
//! - Code is written before it becomes executable and never after.

mod ahead;

use std::fmt;
use std::mem::{ManuallyDrop, offset_of};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use cranelift_codegen::binemit::Reloc;
use cranelift_codegen::ir::Signature;
use cranelift_codegen::isa::{OwnedTargetIsa, TargetIsa};
use cranelift_jit::{JITBuilder, JITModule};
use cranelift_module::{FuncId, Linkage, Module, ModuleReloc, ModuleRelocTarget};
use rustc_hash::{FxBuildHasher, FxHashMap};
use tlc_codegen::clif::{self, EmitText};
use tlc_codegen::code::{self, CompiledCode, RelocKind};
use tlc_codegen::flat::Flat;
use tlc_codegen::wide::{Extensions, Level};
use tlc_codegen::{CodeGenerator, CodegenError, RuntimeFunction, wide};
use tlc_ir::Kernel;
use tlc_ir::target::{CpuEmitter, Emitter, EmitterId};

use crate::cpu::{host_functions, level};
pub use crate::error::JitError;
use crate::machine::scales;
use ahead::Made;
pub use ahead::{Ahead, compile_with};

/// What a kernel is called with. See [`tlc_codegen::code`] for the convention.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Args {
    /// The parameters' buffers, in order.
    pub buffers: *const *mut u8,
    /// The symbols' values, in order.
    pub symbols: *const i64,
    /// This thread's scratch, 64-byte aligned, of `Kernel::cache_scratch_bytes`; anything if that is 0.
    pub scratch: *mut u8,
}

const _: () = assert!(
    offset_of!(Args, buffers) == code::ARGS_BUFFERS as usize
        && offset_of!(Args, symbols) == code::ARGS_SYMBOLS as usize
        && offset_of!(Args, scratch) == code::ARGS_SCRATCH as usize
);

type Entry = unsafe extern "C" fn(*const Args, i64, i64);

fn load_error(e: impl fmt::Display) -> JitError {
    JitError::Load { message: e.to_string() }
}

/// The code generator for this machine, built once.
///
/// # Errors
/// [`JitError::Host`] if Cranelift has no back end for it.
pub fn host_isa() -> Result<Arc<dyn TargetIsa>, JitError> {
    static ISA: OnceLock<Result<OwnedTargetIsa, String>> = OnceLock::new();
    ISA.get_or_init(|| {
        let builder = cranelift_native::builder().map_err(|e| e.to_string())?;
        builder
            .finish(clif::flags(cfg!(debug_assertions)))
            .map_err(|e| e.to_string())
    })
    .clone()
    .map_err(|message| JitError::Host { message })
}

/// What the code generator has on this machine.
///
/// # Errors
/// As [`host_isa`].
pub fn emitter() -> Result<Emitter, JitError> {
    Ok(clif::emitter(host_isa()?.has_native_fma()))
}

/// A generator of code for a host. All agree on the calling convention.
type HostGenerator = dyn CodeGenerator<Code = CompiledCode, Error = CodegenError>;

/// Makes a generator; the level is that of the wide one, if it is to make code.
type MakeGenerator = fn(Arc<dyn TargetIsa>, Option<Level>, &JitOptions) -> Option<Box<HostGenerator>>;

/// A code generator of a host: what it has on this machine, if it is one for it, and how one is made.
struct GeneratorEntry {
    has: fn(&dyn TargetIsa, Option<Level>) -> Option<CpuEmitter>,
    make: MakeGenerator,
}

/// Vector instructions of a level's width a second of a modest machine: it does two at a time of 512 bits where it does three of 128
/// or 256.
fn ops_per_second(level: Level) -> f64 {
    match level {
        Level::Avx512 => 6e9,
        Level::Avx2 => 9e9,
    }
}

/// What the wide emitter has on a level of this machine.
fn wide_emitter(level: Level) -> Emitter {
    let mut table = wide::emitter(level);
    table.scales = level == Level::Avx512 && scales();
    table.looks_bytes_up = level::extensions(level).byte_tables;
    table
}

/// The code generators of a host; an [`EmitterId`] is a position in this list. The first has every operation.
const GENERATORS: &[GeneratorEntry] = &[
    GeneratorEntry {
        has: |isa, _| {
            let all = clif::emitter(isa.has_native_fma());
            Some(CpuEmitter::modest(Arc::new(match level::has_vectors() {
                true => all,
                false => all.without_vectors(),
            })))
        },
        make: |isa, _, options| Some(Box::new(clif::Generator::new(isa, options.text))),
    },
    GeneratorEntry {
        has: |_, level| {
            level.map(|level| CpuEmitter {
                table: Arc::new(wide_emitter(level)),
                vector_ops_per_second: ops_per_second(level),
            })
        },
        make: |_, level, options| {
            level.map(|level| {
                let extensions = match options.level_alone {
                    true => Extensions::default(),
                    false => level::extensions(level),
                };
                Box::new(wide::Generator::new(level, options.text).with_extensions(extensions)) as Box<HostGenerator>
            })
        },
    },
];

/// The code generators of this machine, at the speed of a modest one: what passes choose from for each kernel.
///
/// # Errors
/// As [`host_isa`].
pub fn emitters() -> Result<Vec<CpuEmitter>, JitError> {
    let isa = host_isa()?;
    Ok(GENERATORS.iter().map_while(|g| (g.has)(&*isa, level::wide())).collect())
}

/// Executable memory of one batch of kernels.
struct CodeModule {
    module: ManuallyDrop<JITModule>,
    code_bytes: usize,
}

// SAFETY: after construction the module is not touched again until it is dropped, which has exclusive access; only the
// finished code is executed, through pointers. JITModule is Send.
unsafe impl Sync for CodeModule {}

impl Drop for CodeModule {
    fn drop(&mut self) {
        // SAFETY: the field is not used again.
        let module = unsafe { ManuallyDrop::take(&mut self.module) };
        // SAFETY: every `KernelFn` holds an `Arc` of `self`, so no function of this module is running or can be called.
        unsafe { module.free_memory() };
    }
}

/// A compiled kernel. Cloning shares the code.
#[derive(Clone)]
pub struct KernelFn {
    module: Arc<CodeModule>,
    entry: Entry,
    size_bytes: usize,
}

impl fmt::Debug for KernelFn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KernelFn({:p}, {} bytes)", self.entry as *const u8, self.size_bytes)
    }
}

impl KernelFn {
    /// Runs iterations `begin..end` of the kernel's parallel loop (a kernel without one runs once, whatever they are).
    ///
    /// # Safety
    /// `args.buffers` points to one pointer for each parameter, valid for that parameter's length at its element's
    /// alignment under the symbols given, for reads and, where it is written, for writes; `args.symbols` points to one value
    /// for each symbol, within its range; `args.scratch` is this thread's alone and large enough. `0 <= begin` and `end` is
    /// at most the loop's extent. No two calls that overlap in time write the same memory, or one what the other reads.
    /// Parameters overlap only as [`tlc_codegen::code`] allows.
    pub unsafe fn call(&self, args: &Args, begin: i64, end: i64) {
        // SAFETY: the entry is code for this signature, kept alive by `self.module`; the rest is the caller's promise.
        unsafe { (self.entry)(args, begin, end) }
    }

    /// Bytes of machine code of this kernel.
    pub fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// Bytes of machine code of its whole batch.
    pub fn batch_bytes(&self) -> usize {
        self.module.code_bytes
    }

    /// Where the code starts, for disassemblers and profilers.
    pub fn address(&self) -> *const u8 {
        self.entry as *const u8
    }
}

/// How to compile a batch.
#[derive(Clone, Copy, Debug)]
pub struct JitOptions {
    /// Threads that compile, the caller's included.
    pub threads: usize,
    /// Text to keep.
    pub text: EmitText,
    /// Whether code has no instructions but those of its level, whatever the processor has besides.
    pub level_alone: bool,
}

impl Default for JitOptions {
    /// As many threads as there are processors, no text.
    fn default() -> JitOptions {
        JitOptions::on_threads(crate::pool::default_threads())
    }
}

impl JitOptions {
    /// So many threads, no text.
    #[must_use]
    pub fn on_threads(threads: usize) -> JitOptions {
        JitOptions {
            threads,
            text: EmitText::default(),
            level_alone: false,
        }
    }
}

/// A kernel's function, with the text that was asked for.
#[derive(Clone, Debug)]
pub struct LoadedKernel {
    /// The function.
    pub function: KernelFn,
    /// The text of the emitter's own form, before optimization.
    pub listing: Option<Arc<str>>,
    /// Disassembly.
    pub disasm: Option<Arc<str>>,
}

/// Compiles a batch of kernels into one piece of executable memory; the results are in the order of the kernels.
///
/// # Errors
/// [`JitError`]; the first failing kernel's if several fail. Nothing stays allocated then.
pub fn compile(kernels: &[&Kernel], options: &JitOptions) -> Result<Vec<LoadedKernel>, JitError> {
    compile_for(host_isa()?, level::wide(), &by_first(kernels), Made::default(), options)
}

/// As [`compile`], each kernel by the emitter that is said: one of [`emitters`], by its position.
///
/// # Errors
/// As [`compile`], and [`JitError::Emitter`].
pub fn compile_by(kernels: &[(&Kernel, EmitterId)], options: &JitOptions) -> Result<Vec<LoadedKernel>, JitError> {
    compile_made(Made::default(), kernels, options)
}

/// As [`compile_by`], with code that was made before.
fn compile_made(
    made: Made,
    kernels: &[(&Kernel, EmitterId)],
    options: &JitOptions,
) -> Result<Vec<LoadedKernel>, JitError> {
    compile_for(host_isa()?, level::wide(), kernels, made, options)
}

/// As [`compile`], all kernels by the wide emitter at a level, whichever of them this process uses.
///
/// # Errors
/// As [`compile`], and [`JitError::Level`] if the processor lacks it.
pub fn compile_wide(level: Level, kernels: &[&Kernel], options: &JitOptions) -> Result<Vec<LoadedKernel>, JitError> {
    if !level::all().contains(&level) {
        return Err(JitError::Level { name: level.name() });
    }
    let kernels: Vec<_> = kernels.iter().map(|&k| (k, EmitterId(1))).collect();
    compile_for(host_isa()?, Some(level), &kernels, Made::default(), options)
}

/// The lowered form of a kernel as an emitter takes it.
///
/// # Errors
/// As [`host_isa`]; within, that the kernel uses what the emitter lacks.
pub fn flatten(kernel: &Kernel, emitter: EmitterId) -> Result<Result<Flat<'_>, CodegenError>, JitError> {
    let isa = host_isa()?;
    Ok(match (emitter.0, level::wide()) {
        (1, Some(level)) => wide::flatten_with(kernel, level, level::extensions(level)),
        _ => clif::flatten(kernel, &*isa),
    })
}

/// Kernels that the first emitter makes.
fn by_first<'k>(kernels: &[&'k Kernel]) -> Vec<(&'k Kernel, EmitterId)> {
    kernels.iter().map(|&k| (k, EmitterId::default())).collect()
}

/// As [`compile`], for another processor of the host's kind, as one with fewer features.
///
/// # Safety
/// This machine runs the instructions of `isa`, which has the host's default calling convention.
///
/// # Errors
/// As [`compile`].
pub unsafe fn compile_with_isa(
    isa: Arc<dyn TargetIsa>,
    kernels: &[&Kernel],
    options: &JitOptions,
) -> Result<Vec<LoadedKernel>, JitError> {
    compile_for(isa, level::wide(), &by_first(kernels), Made::default(), options)
}

fn compile_for(
    isa: Arc<dyn TargetIsa>,
    wide: Option<Level>,
    kernels: &[(&Kernel, EmitterId)],
    mut made: Made,
    options: &JitOptions,
) -> Result<Vec<LoadedKernel>, JitError> {
    // With room for all: a table that grows hashes each kernel again.
    let mut seen: FxHashMap<(&Kernel, EmitterId), usize> =
        FxHashMap::with_capacity_and_hasher(kernels.len(), FxBuildHasher);
    let mut unique: Vec<usize> = Vec::new();
    let mut unique_of = Vec::with_capacity(kernels.len());
    let known = GENERATORS.len() - usize::from(wide.is_none());
    for (i, &(kernel, emitter)) in kernels.iter().enumerate() {
        if emitter.0 as usize >= known {
            return Err(JitError::Emitter {
                kernel: i,
                emitter,
                known,
            });
        }
        let next = unique.len();
        let at = *seen.entry((kernel, emitter)).or_insert(next);
        if at == next {
            unique.push(i);
        }
        unique_of.push(at);
    }
    let made = unique.iter().map(|&k| made.take(kernels[k].0, kernels[k].1)).collect();
    let codes = compile_all(kernels, &unique, made, &isa, (wide, options))?;
    let unique_fns = load(isa, codes)?;
    Ok(unique_of.into_iter().map(|at| unique_fns[at].clone()).collect())
}

/// The code generators of a thread, each made when the first kernel wants it.
struct Generators<'o> {
    isa: Arc<dyn TargetIsa>,
    wide: Option<Level>,
    options: &'o JitOptions,
    made: Vec<Option<Box<HostGenerator>>>,
}

impl<'o> Generators<'o> {
    fn new(isa: Arc<dyn TargetIsa>, wide: Option<Level>, options: &'o JitOptions) -> Generators<'o> {
        Generators {
            isa,
            wide,
            options,
            made: GENERATORS.iter().map(|_| None).collect(),
        }
    }

    /// Those for this machine.
    fn of_machine(options: &'o JitOptions) -> Result<Generators<'o>, JitError> {
        Ok(Generators::new(host_isa()?, level::wide(), options))
    }

    /// The code of a kernel. The translation keeps from Cranelift what it would panic on; should it panic all the same, the caller learns
    /// which kernel it was.
    fn emit(&mut self, kernel: &Kernel, EmitterId(emitter): EmitterId) -> Result<CompiledCode, CodegenError> {
        let code = catch_unwind(AssertUnwindSafe(|| {
            let generator = self.made.get_mut(emitter as usize)?;
            if generator.is_none() {
                *generator = (GENERATORS[emitter as usize].make)(self.isa.clone(), self.wide, self.options);
            }
            Some(generator.as_mut()?.emit(kernel))
        }));
        let refused = |message: &str| {
            Err(CodegenError::Refused {
                by: "compiler thread",
                message: message.into(),
            })
        };
        match code {
            Ok(Some(code)) => code,
            Ok(None) => refused("the machine has no such code generator"),
            Err(_) => {
                self.made[emitter as usize] = None;
                refused("the code generator panicked")
            }
        }
    }
}

/// Compiles the kernels at `unique` that have no code yet, on several threads if there is work for them.
fn compile_all(
    kernels: &[(&Kernel, EmitterId)],
    unique: &[usize],
    made: Vec<Option<CompiledCode>>,
    isa: &Arc<dyn TargetIsa>,
    (wide, options): (Option<Level>, &JitOptions),
) -> Result<Vec<CompiledCode>, JitError> {
    type Slot = Mutex<Option<Result<CompiledCode, CodegenError>>>;
    let slots: Vec<Slot> = made.into_iter().map(|code| Mutex::new(code.map(Ok))).collect();
    let is_left = |slot: &Slot| slot.lock().is_ok_and(|code| code.is_none());
    let left: Vec<usize> = (0..slots.len()).filter(|k| is_left(&slots[*k])).collect();
    let next = AtomicUsize::new(0);
    let work = || {
        let mut generators = Generators::new(isa.clone(), wide, options);
        while let Some(&at) = left.get(next.fetch_add(1, Ordering::Relaxed)) {
            let (kernel, emitter) = kernels[unique[at]];
            let code = generators.emit(kernel, emitter);
            if let Ok(mut slot) = slots[at].lock() {
                *slot = Some(code);
            }
        }
    };
    // A kernel compiles in about 0.2 ms, a thread starts in about 0.05 ms.
    let helpers = options.threads.min(left.len()).saturating_sub(1);
    std::thread::scope(|scope| {
        for _ in 0..helpers {
            // A thread that cannot be had is not needed: the caller does all that is left.
            let _ = std::thread::Builder::new()
                .name("tlc-compile".into())
                .spawn_scoped(scope, work);
        }
        work();
    });
    slots
        .into_iter()
        .zip(unique)
        .map(|(slot, &kernel)| {
            let code = slot.into_inner().ok().flatten();
            let code = code.unwrap_or_else(|| {
                Err(CodegenError::Refused {
                    by: "compiler thread",
                    message: "a compiler thread stopped".into(),
                })
            });
            code.map_err(|source| JitError::Kernel { kernel, source })
        })
        .collect()
}

/// Makes code executable.
fn load(isa: Arc<dyn TargetIsa>, codes: Vec<CompiledCode>) -> Result<Vec<LoadedKernel>, JitError> {
    let signature = Signature::new(isa.default_call_conv());
    let mut builder = JITBuilder::with_isa(isa, cranelift_module::default_libcall_names());
    let mut hosts: Vec<RuntimeFunction> = codes.iter().flat_map(|c| c.relocs.iter().map(|r| r.target)).collect();
    hosts.sort();
    hosts.dedup();
    for host in &hosts {
        let address = host_functions::address(*host)
            .ok_or_else(|| load_error(format!("host function {} is missing", host.name())))?;
        builder.symbol(host.name(), address);
    }
    // From here on the module owns memory that only `CodeModule` gives back.
    let mut owner = CodeModule {
        module: ManuallyDrop::new(JITModule::new(builder)),
        code_bytes: codes.iter().map(|c| c.bytes.len()).sum(),
    };
    let module = &mut *owner.module;
    let mut host_ids = Vec::with_capacity(hosts.len());
    for host in &hosts {
        let id = module
            .declare_function(&host.name(), Linkage::Import, &signature)
            .map_err(load_error)?;
        host_ids.push(id);
    }
    let mut ids: Vec<FuncId> = Vec::with_capacity(codes.len());
    for code in &codes {
        let id = module.declare_anonymous_function(&signature).map_err(load_error)?;
        let relocs: Vec<ModuleReloc> = code
            .relocs
            .iter()
            .map(|r| ModuleReloc {
                offset: r.offset,
                kind: match r.kind {
                    RelocKind::Absolute8 => Reloc::Abs8,
                    RelocKind::X86Call4 => Reloc::X86CallPCRel4,
                },
                // Present: `hosts` was made from these.
                name: ModuleRelocTarget::from(host_ids[hosts.partition_point(|h| *h < r.target)]),
                addend: r.addend,
            })
            .collect();
        module
            .define_function_bytes(id, code.alignment, &code.bytes, &relocs)
            .map_err(load_error)?;
        ids.push(id);
    }
    module.finalize_definitions().map_err(load_error)?;
    let entries: Vec<*const u8> = ids.iter().map(|id| module.get_finalized_function(*id)).collect();
    let owner = Arc::new(owner);
    Ok(codes
        .into_iter()
        .zip(entries)
        .map(|(code, address)| {
            // SAFETY: the address is the start of a function that was compiled with this signature and convention (the
            // platform's default), and stays valid while `module` does.
            let entry = unsafe { std::mem::transmute::<*const u8, Entry>(address) };
            LoadedKernel {
                function: KernelFn {
                    module: owner.clone(),
                    entry,
                    size_bytes: code.bytes.len(),
                },
                listing: code.listing.map(Arc::from),
                disasm: code.disasm.map(Arc::from),
            }
        })
        .collect())
}
