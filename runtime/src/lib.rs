//! runtime
pub mod host_functions;
pub mod jit;
