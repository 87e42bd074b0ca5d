//! The host as a device: kernels as machine code, matrix products, host functions.

mod calls;
pub mod device;
pub mod gemm;
pub mod host_functions;
pub mod jit;
pub mod level;
pub mod product;
