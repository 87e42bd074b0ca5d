//! Structural translation of kernels. Decides nothing: a clever `if` here is a missing legalization.
#![forbid(unsafe_code)]

pub mod cuda;
