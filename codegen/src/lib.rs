//! Structural translation of kernels to machine code and to CUDA C++. Decides nothing: what a target lacks was legalized
//! before, what is left translates one to one or is refused.
#![forbid(unsafe_code)]

pub mod clif;
pub mod cuda;
