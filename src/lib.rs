//! tlc
#![forbid(unsafe_code)]
