//! passes
#![forbid(unsafe_code)]
