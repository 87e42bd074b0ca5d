//! ir
#![forbid(unsafe_code)]
