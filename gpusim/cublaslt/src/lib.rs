//! cuBLASLt without a GPU: the entry points of NVIDIA's library of matrix products that tlc calls, over the simulated driver.
//!
//! The library that this crate builds is, under the names `libcublasLt.so.13` and `libcublasLt.so`, cuBLASLt to a program whose driver is
//! `gpusim/driver`, which it finds in the process. It tests how the library is called, not the library:
//!
//! - Descriptions of operations, matrices and preferences are looked up and never followed; those of a product must fit each other, and an
//!   algorithm the product that it was proposed for.
//! - Addresses must be aligned as was said when the algorithm was chosen, the memory to work in as large, and nothing may overlap the result.
//! - Sums are added up by the host, in f32 or f64, when it is the product's turn in the stream. Then it is checked as a copy is: by allocation
//!   and slot, for bytes that nobody wrote, and for operations that nothing orders. The memory to work in is overwritten first.
//! - Unless the program asks for no reduction, what is proposed for long sums splits them.
//!
//! What does not fit is said on the error output and returned as `CUBLAS_STATUS_INVALID_VALUE` (7); what the real library may have and this
//! one lacks is `CUBLAS_STATUS_NOT_SUPPORTED` (15): other types, complex transposition, epilogues other than bias and relu (of f64 all), factors other than 1 and 0.
//! `TLC_SIM_PRODUCTS_OFFER=none` has it propose no algorithm for anything, `plain` none for an epilogue. Descriptions count as handles and calls as calls in what `tlcSimReport` says.
#![allow(
    non_snake_case,
    clippy::missing_safety_doc,
    reason = "the names are those of NVIDIA's header, and its manual is the contract of every function"
)]

mod algorithm;
mod description;
mod driver;
mod entry;
mod refusal;

pub use algorithm::{Algorithm, Proposal};
pub use driver::{Handle, Matrix, Product};
pub use entry::*;
