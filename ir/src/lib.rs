//! ir
#![forbid(unsafe_code)]
pub mod einsum;
