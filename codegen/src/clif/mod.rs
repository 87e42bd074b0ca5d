//! Kernels to Cranelift functions.
//!
//! Invariants:
//! - The translation is structural and deterministic: one statement becomes the obvious instructions, in order.
//! - Nothing reaches Cranelift that it cannot lower: what is unsupported is a [`CodegenError`] here, never a panic there.
//!   Vector code uses only operations on 128 bits that every Cranelift back end with vectors has (those of WebAssembly
//!   SIMD); the rest runs lane by lane.
//! - A kernel that passed the kernel verifier translates to code that touches only its parameters, in bounds.
//!
//! The calling convention is that of [`crate::code`].
//!
//! # Lanes
//! In a lanes loop of `L` iterations a value that depends on the lane is one vector if its elements fit `128 / L` bits
//! (its upper lanes are unused where they are narrower), otherwise `L` scalars. Bools are masks of `128 / L` bits. A value
//! that does not depend on the lane stays a scalar and is spread where it meets one that does.

mod address;
mod control;
mod convert;
mod host;
mod memory;
mod scalar_ops;
mod table;
mod translate;
mod values;
mod vector_ops;

use std::sync::Arc;

use cranelift_codegen::binemit::Reloc;
use cranelift_codegen::control::ControlPlane;
use cranelift_codegen::ir::{ExternalName, Function};
use cranelift_codegen::isa::TargetIsa;
use cranelift_codegen::settings::{self, Configurable};
use cranelift_codegen::{Context, FinalizedRelocTarget};
use cranelift_frontend::FunctionBuilderContext;
use tlc_ir::Kernel;
use tlc_ir::target::Emitter;

use crate::code::{CodeReloc, CompiledCode, RelocKind};
use crate::error::{CodegenError, Result};
use crate::flat::Flat;
use crate::generator::CodeGenerator;
use crate::host::RuntimeFunction;

pub use table::emitter;

/// What to keep beside the code.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct EmitText {
    /// The CLIF text, before optimization.
    pub listing: bool,
    /// The disassembly with virtual registers resolved.
    pub disasm: bool,
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
        let listing = text.listing.then(|| self.context.func.display().to_string());
        let refused = |message: String| CodegenError::Refused {
            by: "Cranelift",
            message,
        };
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
                    names.get(*name).and_then(|n| RuntimeFunction::from_index(n.index))
                }
                FinalizedRelocTarget::ExternalName(ExternalName::LibCall(call)) => host::from_libcall(*call),
                _ => None,
            };
            relocs.push(CodeReloc {
                offset: r.offset,
                kind: reloc_kind(r.kind).ok_or_else(|| refused(format!("unknown relocation {}", r.kind)))?,
                target: target.ok_or_else(|| refused(format!("unknown relocation target {:?}", r.target)))?,
                addend: r.addend,
            });
        }
        Ok(CompiledCode {
            bytes: code.code_buffer().to_vec(),
            alignment: code.buffer.alignment as u64,
            relocs,
            listing,
            disasm: code.vcode.clone(),
        })
    }
}

/// The lowered form of a kernel as it is translated.
///
/// # Errors
/// [`CodegenError`] if the kernel uses what this emitter lacks.
pub fn flatten<'k>(kernel: &'k Kernel, isa: &dyn TargetIsa) -> Result<Flat<'k>> {
    translate::flatten(kernel, isa)
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

fn reloc_kind(kind: Reloc) -> Option<RelocKind> {
    match kind {
        Reloc::Abs8 => Some(RelocKind::Absolute8),
        Reloc::X86CallPCRel4 => Some(RelocKind::X86Call4),
        _ => None,
    }
}

/// The CLIF emitter for one machine. One per thread.
pub struct Generator {
    isa: Arc<dyn TargetIsa>,
    table: &'static Emitter,
    text: EmitText,
    compiler: Compiler,
}

impl Generator {
    /// The emitter for a machine; the code comes with the text asked for.
    pub fn new(isa: Arc<dyn TargetIsa>, text: EmitText) -> Generator {
        Generator {
            table: table::shared_emitter(isa.has_native_fma()),
            isa,
            text,
            compiler: Compiler::new(),
        }
    }
}

impl CodeGenerator for Generator {
    type Code = CompiledCode;
    type Error = CodegenError;

    fn table(&self) -> &Emitter {
        self.table
    }

    fn emit(&mut self, kernel: &Kernel) -> Result<CompiledCode> {
        self.compiler.compile(kernel, &*self.isa, self.text)
    }
}
