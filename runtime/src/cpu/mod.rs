//! The host as a device: kernels as machine code, matrix products, host functions, and the calls of a loaded plan.

pub mod executable;
pub mod gemm;
pub mod host_functions;
pub mod jit;
