//! Structural translation of kernels to machine code and to CUDA C++. Decides nothing: what a target lacks was legalized
//! before, what is left translates one to one or is refused.
//!
//! Every emitter starts from the lowered form of a kernel ([`flat`]), in which the walk over statements, index arithmetic,
//! addresses, register scratch, masks and the choice between vectors and lanes are settled; it adds instructions.
#![forbid(unsafe_code)]

pub mod clif;
pub mod code;
pub mod cuda;
mod error;
pub mod flat;
mod generator;
mod host;
pub mod wide;

pub use error::CodegenError;
pub use generator::CodeGenerator;
pub use host::RuntimeFunction;
