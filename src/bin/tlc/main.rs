//! The tlc command.
#![forbid(unsafe_code)]
fn main() {}
