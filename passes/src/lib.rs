//! passes
#![forbid(unsafe_code)]

pub mod math;
