//! Loads, runs and measures compiled plans. Owns all `unsafe` of the workspace.

pub mod binding;
pub mod cpu;
pub mod cuda;
pub mod device;
pub mod driver;
pub mod error;
pub mod float_mode;
pub mod hwbench;
pub mod machine;
pub mod memory;
pub mod mmap;
pub mod null;
pub mod nvrtc;
pub mod pool;
pub mod process;
pub mod simulated;
pub mod target;
