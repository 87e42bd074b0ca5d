//! What the compiler knows of the machine it compiles for. Filled by the runtime, read by the passes.

/// A machine model.
#[derive(Clone, PartialEq, Debug)]
pub struct Target {
    /// Bits of a vector register that the emitter uses (128 for CLIF).
    pub vector_bits: u32,
    /// Vector registers.
    pub vector_registers: u32,
    /// True if fused multiply-add is one instruction.
    pub has_fma: bool,
    /// Neighbouring columns of a matrix that the library of products reads without copying where they lie together for each
    /// step along the sum; 0 if it copies in any case.
    pub panel_elements: u32,
    /// Threads of the pool.
    pub threads: usize,
    /// Bytes of one core's first-level data cache.
    pub l1_bytes: u64,
    /// Bytes of one core's second-level cache.
    pub l2_bytes: u64,
    /// Bytes of the last-level cache.
    pub l3_bytes: u64,
    /// Bytes a second that one thread moves, as {L2, L3, memory}.
    pub bytes_per_second: [f64; 3],
    /// 128-bit vector instructions a second of one thread.
    pub vector_ops_per_second: f64,
    /// f32 operations a second of one thread at full width (a fused multiply-add counts 2).
    pub f32_flops_per_second: f64,
}

impl Default for Target {
    /// A modest 128-bit machine: 32 KiB, 1 MiB and 32 MiB of cache, 3 vector instructions a nanosecond.
    fn default() -> Target {
        Target {
            vector_bits: 128,
            vector_registers: 16,
            has_fma: true,
            panel_elements: 64,
            threads: 1,
            l1_bytes: 32 << 10,
            l2_bytes: 1 << 20,
            l3_bytes: 32 << 20,
            bytes_per_second: [100e9, 40e9, 15e9],
            vector_ops_per_second: 9e9,
            f32_flops_per_second: 200e9,
        }
    }
}
