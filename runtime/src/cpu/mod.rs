//! The host as a device: kernels as machine code, matrix products, host functions.

pub mod amx;
mod calls;
pub mod device;
pub mod gemm;
pub mod host_functions;
pub mod jit;
pub mod level;
pub mod product;
