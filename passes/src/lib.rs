//! passes
#![forbid(unsafe_code)]
pub mod einsum_path;
