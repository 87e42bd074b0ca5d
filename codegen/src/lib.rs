//! codegen
#![forbid(unsafe_code)]
