//! What this emitter has, as data for passes to choose by.

use tlc_ir::scalar::Form;
use tlc_ir::target::{Emitter, MatrixTile, Support, WARP_GROUP_ROWS, Width};
use tlc_ir::{DType, Precision, ScalarOp};

/// Registers of 32 bits that a thread can have (CUDA C++ Programming Guide, "Compute Capabilities").
const REGISTERS: u32 = 255;

/// Rows and columns of the matrix instructions that warps have (PTX ISA, "mma.m16n8k16" of 16-bit floats and "mma.m16n8k8" of tf32, since
/// 7.0).
pub(super) const MATRIX_TILE: [i64; 2] = [16, 8];

/// The one architecture where four warps multiply together (PTX ISA, "wgmma.mma_async").
pub(super) const GROUPS_ON: &str = "sm_90a";
/// The most columns of such a product.
pub(super) const GROUP_COLUMNS: i64 = 256;

/// Steps of the sum that such an instruction takes of operands which are stored as that type: 32 bytes.
pub(super) const fn matrix_steps(operand: DType) -> i64 {
    32 / operand.bytes() as i64
}

/// The table of the CUDA emitter for an architecture, as `sm_90a`.
pub fn emitter_for(arch: &str) -> Emitter {
    match arch {
        GROUPS_ON => emitter().with_group_matrices([DType::F16, DType::BF16].map(|operand| MatrixTile {
            operands: [operand; 2],
            accumulator: DType::F32,
            precision: Precision::Exact,
            extents: [WARP_GROUP_ROWS, MATRIX_TILE[1], matrix_steps(operand)],
        })),
        _ => emitter(),
    }
}

/// The table of the CUDA emitter for every device of compute capability 8.0 and later. A thread works on one element of any type; there are
/// no lanes.
pub fn emitter() -> Emitter {
    let tile = |operand: DType, precision| MatrixTile {
        operands: [operand; 2],
        accumulator: DType::F32,
        precision,
        extents: [MATRIX_TILE[0], MATRIX_TILE[1], matrix_steps(operand)],
    };
    let matrices = [
        tile(DType::F16, Precision::Exact),
        tile(DType::BF16, Precision::Exact),
        tile(DType::F32, Precision::Tf32),
    ];
    Emitter::new("cuda", 0, REGISTERS, true, map, convert)
        .with_matrices(matrices)
        .with_blocks()
}

fn map(op: ScalarOp, on: DType, width: Width) -> Support {
    use ScalarOp::*;
    match op {
        _ if width == Width::Lanes => Support::Missing,
        Select => Support::Native,
        Max | Min | Eq | Ne | Lt | Le if on == DType::Bool => Support::Formula,
        // The device's own functions round differently: the formulas give the bits that other emitters give.
        _ if on.is_float() && op.form() == Form::Formula => Support::Formula,
        // Arithmetic on 16-bit floats is f32's, rounded.
        _ if matches!(on, DType::F16 | DType::BF16) => Support::Formula,
        _ => Support::Native,
    }
}

fn convert(from: DType, to: DType, width: Width) -> Support {
    match width {
        Width::Lanes => Support::Missing,
        Width::Scalar if from != to && (from.is_storage() || to.is_storage()) => Support::Formula,
        Width::Scalar => Support::Native,
    }
}
