//! runtime

//pub mod hwbench;
pub mod machine {
    pub fn total_memory_bytes() -> Option<u64> {
        None
    }
}
pub mod memory;
pub mod mmap;
pub mod nvrtc;
pub mod pool;
