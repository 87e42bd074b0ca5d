//! Kernels to x86-64 code of full width.
//!
//! Invariants:
//! - The translation is structural and deterministic: the lowered form ([`crate::flat`]) says what runs, this emitter with which
//!   instructions. It takes what its table has.
//! - A vector of the lowered form is one register of 128, 256 or 512 bits, the narrowest that holds it; a scalar that is no index is
//!   the first lane of one. A mask is a mask register, or where there are none a vector whose lanes are all ones or zeros; lanes beyond
//!   the vector's may hold anything.
//! - Code touches only the kernel's parameters, in bounds: an access of some lanes names them in a mask, by which the processor
//!   leaves the others alone.
//! - Kernels keep the System V calling convention and [`crate::code`]'s; every way out ends with `vzeroupper`.
//!
//! `select/` chooses instructions for registers without number (`machine.rs`), a scan of lifetimes (`scan.rs`) or regalloc2 (`allocate.rs`)
//! gives them numbers, and `encode.rs` makes bytes of them (`assemble.rs`, by the rows of `rows.rs`), in the VEX form where there is no AVX-512 (`vex.rs`).

mod allocate;
mod assemble;
mod encode;
mod machine;
mod opcodes;
mod rows;
mod scan;
mod select;
mod table;
mod vex;

use regalloc2::Ctx;
use tlc_ir::Kernel;
use tlc_ir::target::Emitter;

use crate::clif::EmitText;
use crate::code::CompiledCode;
use crate::error::{CodegenError, Result};
use crate::flat::{self, Flat};
use crate::generator::CodeGenerator;

pub use table::emitter;

/// Which instructions a processor has.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Level {
    /// AVX-512 F, BW, CD, DQ and VL, with what came before them (x86-64-v4).
    Avx512,
    /// AVX2 with FMA and F16C (x86-64-v3).
    Avx2,
}

impl Level {
    /// Every level, the widest first.
    pub const ALL: [Level; 2] = [Level::Avx512, Level::Avx2];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Level::Avx512 => "avx512",
            Level::Avx2 => "avx2",
        }
    }

    /// Bits of a vector.
    pub const fn vector_bits(self) -> u32 {
        match self {
            Level::Avx512 => 512,
            Level::Avx2 => 256,
        }
    }

    /// Vector registers.
    pub const fn vector_registers(self) -> u32 {
        match self {
            Level::Avx512 => 32,
            Level::Avx2 => 16,
        }
    }

    /// Whether masks have registers of their own, a bit a lane.
    const fn has_mask_registers(self) -> bool {
        match self {
            Level::Avx512 => true,
            Level::Avx2 => false,
        }
    }
}

/// Every instruction that the emitter writes, at any level, by its name in iced-x86: what tests of its code have to know.
#[doc(hidden)]
pub fn instructions() -> impl Iterator<Item = iced_x86::Code> {
    rows::all().map(|(code, _)| code)
}

/// The lowered form of a kernel as it is translated.
///
/// # Errors
/// [`CodegenError`] if the kernel uses what this emitter lacks.
pub fn flatten(kernel: &Kernel, level: Level) -> Result<Flat<'_>> {
    flatten_with(kernel, level, Extensions::default())
}

/// As [`flatten`], for a processor that has these instructions too.
///
/// # Errors
/// As [`flatten`].
pub fn flatten_with(kernel: &Kernel, level: Level, extensions: Extensions) -> Result<Flat<'_>> {
    flat::flatten(kernel, &table::Machine::of(level, extensions))
}

/// Instructions that a processor may have beside those of its level. No level asks for them, and the bits of results are the same without.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Extensions {
    /// Products of bytes (`vpdpbusd`: AVX512-VNNI with VL, and AVX-VNNI on AVX2).
    pub dots: bool,
    /// Bytes picked from two vectors of them (`vpermt2b`: AVX512-VBMI).
    pub byte_tables: bool,
}

/// The machine code of a kernel.
///
/// # Errors
/// [`CodegenError`] if the kernel uses what this emitter lacks.
pub fn compile(kernel: &Kernel, level: Level, text: EmitText) -> Result<CompiledCode> {
    Generator::new(level, text).emit(kernel)
}

fn compile_in(
    kernel: &Kernel,
    level: Level,
    extensions: Extensions,
    text: EmitText,
    context: &mut Ctx,
) -> Result<CompiledCode> {
    let flat = flatten_with(kernel, level, extensions)?;
    let machine = select::select(&flat, level, extensions.dots, text.disasm)?;
    let linear = allocate::Linear::new(&machine);
    let scanned = scan::scan(&linear);
    if cfg!(debug_assertions)
        && let Some(scanned) = &scanned
    {
        allocate::check(&linear, &scanned.output)?;
    }
    let (output, made_again) = match &scanned {
        Some(scanned) => (&scanned.output, &scanned.made_again[..]),
        None => (allocate::allocate(&linear, context)?, &[][..]),
    };
    let code = encode::encode(&machine, &linear, output, made_again, text.disasm);
    // The allocator empties some of its tables for each value that it places, which takes as long as they are large.
    if scanned.is_none() && linear.is_large() {
        *context = Ctx::default();
    }
    code
}

/// The emitter for one level. One per thread.
pub struct Generator {
    level: Level,
    extensions: Extensions,
    text: EmitText,
    /// Of the register allocation, whose tables are the better part of the memory that a compilation asks for.
    context: Ctx,
}

impl Generator {
    /// The emitter for a level that the processor has; the code comes with the text asked for.
    pub fn new(level: Level, text: EmitText) -> Generator {
        Generator {
            level,
            extensions: Extensions::default(),
            text,
            context: Ctx::default(),
        }
    }

    /// The emitter for a processor that has these instructions too.
    pub fn with_extensions(self, extensions: Extensions) -> Generator {
        Generator { extensions, ..self }
    }
}

impl CodeGenerator for Generator {
    type Code = CompiledCode;
    type Error = CodegenError;

    fn table(&self) -> &Emitter {
        table::shared_emitter(self.level)
    }

    fn emit(&mut self, kernel: &Kernel) -> Result<CompiledCode> {
        compile_in(kernel, self.level, self.extensions, self.text, &mut self.context)
    }
}
