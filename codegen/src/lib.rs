//! Structural translation of kernels to code. Decides nothing: every choice was made in `passes` and is written in the
//! kernel.
#![forbid(unsafe_code)]

pub mod clif;
