//! What every code generator is.

use tlc_ir::Kernel;
use tlc_ir::target::Emitter;

use crate::error::CodegenError;

/// Makes code of kernels: the machine behind an [`Emitter`], which is its table of operations as data.
///
/// Passes make a kernel for a table; what the table allows, [`Self::emit`] does. A refusal of that is a bug, either of the table
/// or of the generator.
pub trait CodeGenerator {
    /// What becomes of a kernel.
    type Code;
    /// Why there is no code.
    type Error: From<CodegenError>;

    /// What it has, as data for passes to choose by.
    fn table(&self) -> &Emitter;

    /// The code of a legal kernel.
    ///
    /// # Errors
    /// If the kernel uses what the table lacks, or breaks a rule of the kernel language.
    fn emit(&mut self, kernel: &Kernel) -> Result<Self::Code, Self::Error>;
}
