//! How fast a device multiplies by matrix instructions of a warp: `mma.sync`, on registers alone.
//!
//! Newer GPUs have instructions of several warps that are faster still; kernels of tlc that do not use them are held to these rates.

use std::sync::Arc;

use super::context::Context;
use super::device::timed_text;
use crate::device::DeviceBuffer;
use crate::error::RunError;

/// Threads of a block: enough warps for each of a multiprocessor's four parts to have two.
const THREADS: u32 = 256;
/// Products that do not wait for each other.
const BESIDE: usize = 8;
/// Name of the function.
const NAME: &str = "matrix_rate";

/// Operations a second, the best of several times; a multiplication and an addition are two.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct MatrixRates {
    /// Of f16, added up in f32.
    pub f16: f64,
    /// Of bf16, added up in f32.
    pub bf16: f64,
    /// Of f32 that are rounded to tf32.
    pub tf32: f64,
}

/// A kind of matrix instruction.
struct Instruction {
    /// Its shape and types.
    name: &'static str,
    /// Operations of one.
    operations: f64,
    /// The bits of what is multiplied: ones, so that sums stay finite.
    ones: u32,
}

const F16: Instruction = Instruction {
    name: "m16n8k16.row.col.f32.f16.f16.f32",
    operations: 2.0 * 16.0 * 8.0 * 16.0,
    ones: 0x3c00_3c00,
};
const BF16: Instruction = Instruction {
    name: "m16n8k16.row.col.f32.bf16.bf16.f32",
    operations: 2.0 * 16.0 * 8.0 * 16.0,
    ones: 0x3f80_3f80,
};
const TF32: Instruction = Instruction {
    name: "m16n8k8.row.col.f32.tf32.tf32.f32",
    operations: 2.0 * 16.0 * 8.0 * 8.0,
    ones: 0x3f80_0000,
};

impl Instruction {
    /// A kernel of so many rounds of independent products by each warp: `s0` rounds of operands `s1`. What it stores it never does, which
    /// the compiler does not know.
    fn text(&self) -> String {
        format!(
            r#"extern "C" __global__ void __launch_bounds__({THREADS}) {NAME}(float* p0, long long s0, long long s1) {{
    const unsigned v = (unsigned)s1;
    float d[{BESIDE}][4];
    #pragma unroll
    for (int j = 0; j < {BESIDE}; ++j)
        for (int i = 0; i < 4; ++i) d[j][i] = 0.0f;
    for (int r = 0; r < (int)s0; ++r) {{
        #pragma unroll
        for (int j = 0; j < {BESIDE}; ++j)
            asm volatile("mma.sync.aligned.{} {{%0, %1, %2, %3}}, {{%4, %4, %4, %4}}, {{%4, %4}}, {{%0, %1, %2, %3}};"
                : "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3]) : "r"(v));
    }}
    float sum = 0.0f;
    #pragma unroll
    for (int j = 0; j < {BESIDE}; ++j) sum += d[j][0] + d[j][1] + d[j][2] + d[j][3];
    if (sum < 0.0f) p0[threadIdx.x] = sum;
}}
"#,
            self.name
        )
    }
}

/// Measures so many blocks with so many rounds of products each, so many times.
///
/// # Errors
/// If the device or NVRTC fails.
pub fn matrix_rates(context: &Arc<Context>, blocks: u32, rounds: u32, times: usize) -> Result<MatrixRates, RunError> {
    let rate = |of: &Instruction| -> Result<f64, RunError> {
        let values = |out: &DeviceBuffer| [out.start().addr() as u64, rounds.into(), of.ones.into()];
        let bytes = THREADS as usize * size_of::<f32>();
        let ns = timed_text(context, (&of.text(), NAME), (blocks, THREADS), (bytes, &values), times)?;
        let warps = f64::from(blocks) * f64::from(THREADS / 32);
        Ok(warps * f64::from(rounds) * BESIDE as f64 * of.operations / ns.max(1) as f64 * 1e9)
    };
    Ok(MatrixRates {
        f16: rate(&F16)?,
        bf16: rate(&BF16)?,
        tf32: rate(&TF32)?,
    })
}
