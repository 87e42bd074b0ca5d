//! runtime

pub mod hwbench;
pub mod machine;
pub mod memory;
pub mod mmap;
pub mod pool;
