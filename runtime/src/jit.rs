//! Compiling kernels to machine code in executable memory.
//!
//! Invariants: one [`cranelift_jit::JITModule`] holds the code of one batch and is freed when the last [`KernelFn`] of it is
//! dropped; functions are compiled in parallel on the pool over one shared instruction set, and placed in order, so the
//! result does not depend on the number of threads.

use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, PoisonError};

use cranelift_codegen::Context;
use cranelift_codegen::control::ControlPlane;
use cranelift_codegen::isa::OwnedTargetIsa;
use cranelift_codegen::settings::{self, Configurable};
use cranelift_jit::{JITBuilder, JITModule};
use cranelift_module::{FuncId, Linkage, Module, ModuleReloc};
use tlc_codegen::clif::{self, CodegenError, HOST_FUNCTIONS};
use tlc_ir::Kernel;

use crate::host_functions;
use crate::pool::{Pool, PoolPanic};

/// The argument block of a kernel; its layout is [`tlc_codegen::clif::abi`].
#[repr(C)]
pub struct Args {
    /// One pointer per parameter.
    pub buffers: *const *mut u8,
    /// One value per symbol.
    pub symbols: *const i64,
    /// The thread's cache scratch, 64-byte aligned.
    pub scratch: *mut u8,
}

/// Why a batch of kernels could not be compiled.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompileError {
    /// Cranelift does not support this CPU.
    #[error("no code generator for this machine: {0}")]
    Machine(String),
    /// A kernel cannot be translated: a bug in the passes, or an unsupported feature.
    #[error("kernel {kernel}: {source}")]
    Kernel {
        /// Position in the batch.
        kernel: usize,
        /// Why.
        source: CodegenError,
    },
    /// The code could not be placed in executable memory.
    #[error("executable memory: {0}")]
    Memory(String),
    /// A compiling thread panicked: a bug.
    #[error(transparent)]
    Worker(#[from] PoolPanic),
}

/// The code of one batch.
struct CodeModule {
    module: ManuallyDrop<JITModule>,
}

// SAFETY: after `finalize_definitions` the module is only read through function pointers and freed once, on drop.
unsafe impl Send for CodeModule {}
// SAFETY: as above; no method of the module is called between construction and drop.
unsafe impl Sync for CodeModule {}

impl Drop for CodeModule {
    fn drop(&mut self) {
        // SAFETY: `module` is taken once, here; every `KernelFn` keeps the `CodeModule` alive, so no code of it is running
        // or will run.
        unsafe { ManuallyDrop::take(&mut self.module).free_memory() };
    }
}

/// A compiled kernel.
#[derive(Clone)]
pub struct KernelFn {
    entry: unsafe extern "C" fn(*const Args, i64, i64),
    code_bytes: usize,
    _code: Arc<CodeModule>,
}

impl KernelFn {
    /// Runs parallel iterations `begin..end`.
    ///
    /// # Safety
    /// `args` must give every parameter a buffer of at least the elements that the kernel declares under the given symbols,
    /// initialized where it is read, written by nobody else meanwhile, distinct for written parameters (or bound in place
    /// as the compiler allowed), and scratch of at least [`Kernel::cache_scratch_bytes`]; `begin..end` must lie in the
    /// kernel's parallel extent.
    pub unsafe fn call(&self, args: &Args, begin: i64, end: i64) {
        // SAFETY: the pointer is to code compiled with this signature, alive as long as `self`.
        unsafe { (self.entry)(args, begin, end) }
    }

    /// Bytes of machine code.
    pub fn code_bytes(&self) -> usize {
        self.code_bytes
    }
}

/// The text forms of a compiled kernel.
#[derive(Clone, Debug)]
pub struct KernelText {
    /// Cranelift's intermediate form.
    pub clif: String,
    /// Disassembly of the machine code, as Cranelift prints it.
    pub assembly: String,
}

/// Machine code of one function before it is placed.
struct Compiled {
    bytes: Vec<u8>,
    alignment: u64,
    relocations: Vec<ModuleReloc>,
}

/// The code generator for this machine.
pub struct Compiler {
    isa: OwnedTargetIsa,
    has_fma: bool,
}

impl Compiler {
    /// A code generator for the CPU it runs on.
    ///
    /// # Errors
    /// [`CompileError::Machine`] if there is none.
    pub fn new() -> Result<Compiler, CompileError> {
        let mut flags = settings::builder();
        let set = [
            ("opt_level", "speed"),
            ("is_pic", "false"),
            ("use_colocated_libcalls", "false"),
            ("enable_probestack", "false"),
            ("enable_verifier", if cfg!(debug_assertions) { "true" } else { "false" }),
            ("unwind_info", "false"),
        ];
        for (name, value) in set {
            flags
                .set(name, value)
                .map_err(|e| CompileError::Machine(format!("{name}: {e}")))?;
        }
        let isa = cranelift_native::builder()
            .map_err(|e| CompileError::Machine(e.to_string()))?
            .finish(settings::Flags::new(flags))
            .map_err(|e| CompileError::Machine(e.to_string()))?;
        let has_fma = clif::has_fma(&*isa);
        Ok(Compiler { isa, has_fma })
    }

    /// True if fused multiply-add is one instruction.
    pub fn has_fma(&self) -> bool {
        self.has_fma
    }

    /// Compiles a batch of kernels, in parallel on the pool; answers them in order.
    ///
    /// # Errors
    /// [`CompileError`], of the first kernel that fails.
    pub fn compile(&self, kernels: &[Kernel], threads: &Pool) -> Result<Vec<KernelFn>, CompileError> {
        if kernels.is_empty() {
            return Ok(Vec::new());
        }
        let results: Vec<Mutex<Option<Result<Compiled, CodegenError>>>> =
            kernels.iter().map(|_| Mutex::new(None)).collect();
        threads.parallel_for(kernels.len() as u64, 1, &|_, begin, end| {
            for i in begin as usize..end as usize {
                let _span = tracing::debug_span!("codegen", kernel = i).entered();
                let compiled = self.compile_one(&kernels[i], false).map(|(c, _)| c);
                *results[i].lock().unwrap_or_else(PoisonError::into_inner) = Some(compiled);
            }
        })?;
        let mut builder = JITBuilder::with_isa(Arc::clone(&self.isa), cranelift_module::default_libcall_names());
        for f in HOST_FUNCTIONS {
            builder.symbol(f.name(), host_functions::address(f));
        }
        let mut module = JITModule::new(builder);
        // Host functions are declared first and in order: their number in the generated code is their id here.
        let memory = |e: cranelift_module::ModuleError| CompileError::Memory(e.to_string());
        let mut placed = Vec::with_capacity(kernels.len());
        let outcome = (|| {
            for f in HOST_FUNCTIONS {
                let (params, result) = f.types();
                let mut signature = module.make_signature();
                signature
                    .params
                    .extend(params.iter().map(|&t| cranelift_codegen::ir::AbiParam::new(t)));
                signature.returns.push(cranelift_codegen::ir::AbiParam::new(result));
                module
                    .declare_function(&f.name(), Linkage::Import, &signature)
                    .map_err(memory)?;
            }
            for (i, slot) in results.into_iter().enumerate() {
                let compiled = slot
                    .into_inner()
                    .unwrap_or_else(PoisonError::into_inner)
                    .expect("every kernel was visited")
                    .map_err(|source| CompileError::Kernel { kernel: i, source })?;
                let signature = module.make_signature();
                let id = module.declare_anonymous_function(&signature).map_err(memory)?;
                module
                    .define_function_bytes(id, compiled.alignment, &compiled.bytes, &compiled.relocations)
                    .map_err(memory)?;
                placed.push((id, compiled.bytes.len()));
            }
            module.finalize_definitions().map_err(memory)
        })();
        if let Err(e) = outcome {
            // SAFETY: no function pointer of this module was handed out.
            unsafe { module.free_memory() };
            return Err(e);
        }
        let entries: Vec<*const u8> = placed
            .iter()
            .map(|(id, _)| module.get_finalized_function(*id))
            .collect();
        let code = Arc::new(CodeModule {
            module: ManuallyDrop::new(module),
        });
        Ok(entries
            .into_iter()
            .zip(placed)
            .map(|(entry, (_, code_bytes))| KernelFn {
                // SAFETY: the code was compiled from a function of exactly this signature.
                entry: unsafe { std::mem::transmute::<*const u8, unsafe extern "C" fn(*const Args, i64, i64)>(entry) },
                code_bytes,
                _code: Arc::clone(&code),
            })
            .collect())
    }

    /// The text forms of one kernel.
    ///
    /// # Errors
    /// [`CompileError::Kernel`].
    pub fn text(&self, kernel: &Kernel) -> Result<KernelText, CompileError> {
        let (_, text) = self
            .compile_one(kernel, true)
            .map_err(|source| CompileError::Kernel { kernel: 0, source })?;
        Ok(text.expect("asked for"))
    }

    fn compile_one(&self, kernel: &Kernel, text: bool) -> Result<(Compiled, Option<KernelText>), CodegenError> {
        let mut frontend = cranelift_frontend::FunctionBuilderContext::new();
        let function = clif::translate(kernel, &*self.isa, &mut frontend)?;
        let clif_text = text.then(|| function.display().to_string());
        let mut context = Context::for_function(function);
        context.set_disasm(text);
        let backend = |e: String| CodegenError::Backend { message: e };
        context
            .compile(&*self.isa, &mut ControlPlane::default())
            .map_err(|e| backend(format!("{:?}", e.inner)))?;
        let code = context.compiled_code().expect("compiled just now");
        // The id only matters for relocations to the function itself, which kernels do not have.
        let own = FuncId::from_u32(HOST_FUNCTIONS.len() as u32);
        let relocations = code
            .buffer
            .relocs()
            .iter()
            .map(|r| ModuleReloc::from_mach_reloc(r, &context.func, own))
            .collect();
        let compiled = Compiled {
            bytes: code.code_buffer().to_vec(),
            alignment: code.buffer.alignment as u64,
            relocations,
        };
        let text = clif_text.map(|clif| KernelText {
            clif,
            assembly: code.vcode.clone().unwrap_or_default(),
        });
        Ok((compiled, text))
    }
}
