//! Kernels to Cranelift functions.
//!
//! Invariants:
//! - The translation is structural and deterministic: one statement becomes the obvious instructions, in order.
//! - Nothing reaches Cranelift that it cannot lower: what is unsupported is a [`CodegenError`] here, never a panic there.
//!   Vector code uses only operations on 128 bits that every Cranelift back end with vectors has (those of WebAssembly
//!   SIMD); the rest runs lane by lane.
//! - A kernel that passed the kernel verifier translates to code that touches only its parameters, in bounds.
//!
//! # Calling convention
//! `extern "C" fn(args: *const Args, begin: i64, end: i64)`, where `Args` is three pointers: to the buffer pointers in
//! parameter order ([`ARGS_BUFFERS`]), to the symbol values ([`ARGS_SYMBOLS`]) and to this thread's scratch
//! ([`ARGS_SCRATCH`], 64-byte aligned, of `Kernel::cache_scratch_bytes`). `begin..end` is the part of the parallel loop to
//! run; a kernel without one ignores it. Parameters that are written may not overlap any other parameter, except that an
//! element that is not read again after it is written may share its place with the element written.
//!
//! # Lanes
//! In a lanes loop of `L` iterations a value that depends on the lane is one vector if its elements fit `128 / L` bits
//! (its upper lanes are unused where they are narrower), otherwise `L` scalars. Bools are masks of `128 / L` bits. A value
//! that does not depend on the lane stays a scalar and is spread where it meets one that does.

mod check;
mod convert;
mod copy;
mod host;
mod index;
mod loops;
mod memory;
mod registers;
mod scalar_ops;
mod table;
mod translate;
mod values;
mod vector_ops;

use cranelift_codegen::binemit::Reloc;
use cranelift_codegen::control::ControlPlane;
use cranelift_codegen::ir::{ExternalName, Function};
use cranelift_codegen::isa::TargetIsa;
use cranelift_codegen::settings::{self, Configurable};
use cranelift_codegen::{Context, FinalizedRelocTarget};
use cranelift_frontend::FunctionBuilderContext;
use tlc_ir::Kernel;

pub use host::HostFunction;
pub use table::emitter;

/// Byte offset in `Args` of the pointer to the buffer pointers.
pub const ARGS_BUFFERS: i32 = 0;
/// Byte offset in `Args` of the pointer to the symbol values (i64).
pub const ARGS_SYMBOLS: i32 = 8;
/// Byte offset in `Args` of the scratch pointer.
pub const ARGS_SCRATCH: i32 = 16;

/// Why a kernel did not become code.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CodegenError {
    /// The kernel uses what this emitter does not have; legalize or schedule differently.
    #[error("the CLIF emitter does not support {what}")]
    Unsupported {
        /// What is missing.
        what: String,
    },
    /// The kernel breaks a rule of the kernel language.
    #[error("invalid kernel: {what}")]
    Invalid {
        /// Which rule.
        what: String,
    },
    /// Unrolling makes the kernel too large.
    #[error("kernel unrolls to more than {limit} statements")]
    TooLarge {
        /// The limit on statements after unrolling.
        limit: u64,
    },
    /// Cranelift refused the function: a bug in the translation, or its limits on code size.
    #[error("Cranelift: {message}")]
    Cranelift {
        /// Its message.
        message: String,
    },
}

/// Shorthand.
pub type Result<T> = std::result::Result<T, CodegenError>;

/// What to keep beside the code.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct EmitText {
    /// The CLIF text, before optimization.
    pub clif: bool,
    /// The disassembly with virtual registers resolved.
    pub disasm: bool,
}

/// A place in code to be patched with the address of a host function.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CodeReloc {
    /// Byte offset in the code.
    pub offset: u32,
    /// How the address is written.
    pub kind: Reloc,
    /// Whose address.
    pub target: HostFunction,
    /// Added to the address.
    pub addend: i64,
}

/// The machine code of one kernel.
#[derive(Clone, PartialEq, Debug)]
pub struct CompiledCode {
    /// The instructions and their constants.
    pub bytes: Vec<u8>,
    /// Required alignment of the first byte.
    pub alignment: u64,
    /// Places to patch, by offset.
    pub relocs: Vec<CodeReloc>,
    /// CLIF text, if asked for.
    pub clif: Option<String>,
    /// Disassembly, if asked for.
    pub disasm: Option<String>,
}

/// The Cranelift settings that the translation assumes and that were measured to pay.
///
/// `verify` runs Cranelift's own verifier on every function (tests and debugging).
pub fn flags(verify: bool) -> settings::Flags {
    let mut builder = settings::builder();
    let mut set = |name: &str, value: &str| {
        // The names are constants of this Cranelift version; a test builds the flags.
        builder.set(name, value).expect("known Cranelift setting");
    };
    set("opt_level", "speed");
    set("regalloc_algorithm", "backtracking");
    set("enable_alias_analysis", "true");
    set("enable_verifier", if verify { "true" } else { "false" });
    set("enable_probestack", "false");
    set("is_pic", "false");
    set("use_colocated_libcalls", "false");
    set("unwind_info", "false");
    settings::Flags::new(builder)
}

/// Translates kernels, keeping its allocations from one to the next. One per thread.
pub struct Compiler {
    context: Context,
    frontend: FunctionBuilderContext,
}

impl Default for Compiler {
    fn default() -> Compiler {
        Compiler::new()
    }
}

impl Compiler {
    /// A compiler.
    pub fn new() -> Compiler {
        Compiler {
            context: Context::new(),
            frontend: FunctionBuilderContext::new(),
        }
    }

    /// The Cranelift function of a kernel, unoptimized.
    ///
    /// # Errors
    /// [`CodegenError`] if the kernel uses what this emitter lacks.
    pub fn translate(&mut self, kernel: &Kernel, isa: &dyn TargetIsa) -> Result<Function> {
        let result = translate::translate(kernel, isa, &mut self.frontend);
        if result.is_err() {
            // An abandoned builder leaves its context dirty.
            self.frontend = FunctionBuilderContext::new();
        }
        result
    }

    /// The machine code of a kernel.
    ///
    /// # Errors
    /// [`CodegenError`] if the kernel uses what this emitter lacks, or Cranelift refuses it.
    pub fn compile(&mut self, kernel: &Kernel, isa: &dyn TargetIsa, text: EmitText) -> Result<CompiledCode> {
        self.context.clear();
        self.context.func = self.translate(kernel, isa)?;
        self.context.set_disasm(text.disasm);
        let clif = text.clif.then(|| self.context.func.display().to_string());
        let refused = |message: String| CodegenError::Cranelift { message };
        let code = self
            .context
            .compile(isa, &mut ControlPlane::default())
            .map_err(|e| refused(format!("{:?}", e.inner)))?;
        let mut relocs = Vec::with_capacity(code.buffer.relocs().len());
        let names = self.context.func.params.user_named_funcs();
        let code = self.context.compiled_code().unwrap_or_else(|| unreachable!());
        for r in code.buffer.relocs() {
            let target = match &r.target {
                FinalizedRelocTarget::ExternalName(ExternalName::User(name)) => {
                    names.get(*name).and_then(|n| HostFunction::from_index(n.index))
                }
                FinalizedRelocTarget::ExternalName(ExternalName::LibCall(call)) => HostFunction::from_libcall(*call),
                _ => None,
            };
            relocs.push(CodeReloc {
                offset: r.offset,
                kind: r.kind,
                target: target.ok_or_else(|| refused(format!("unknown relocation target {:?}", r.target)))?,
                addend: r.addend,
            });
        }
        Ok(CompiledCode {
            bytes: code.code_buffer().to_vec(),
            alignment: code.buffer.alignment as u64,
            relocs,
            clif,
            disasm: code.vcode.clone(),
        })
    }
}

/// The Cranelift function of a kernel, unoptimized. See [`Compiler::translate`].
///
/// # Errors
/// [`CodegenError`] if the kernel uses what this emitter lacks.
pub fn translate(kernel: &Kernel, isa: &dyn TargetIsa) -> Result<Function> {
    Compiler::new().translate(kernel, isa)
}

/// The machine code of a kernel. See [`Compiler::compile`].
///
/// # Errors
/// [`CodegenError`] if the kernel uses what this emitter lacks, or Cranelift refuses it.
pub fn compile(kernel: &Kernel, isa: &dyn TargetIsa, text: EmitText) -> Result<CompiledCode> {
    Compiler::new().compile(kernel, isa, text)
}

fn unsupported<T>(what: impl Into<String>) -> Result<T> {
    Err(CodegenError::Unsupported { what: what.into() })
}

fn invalid<T>(what: impl Into<String>) -> Result<T> {
    Err(CodegenError::Invalid { what: what.into() })
}
