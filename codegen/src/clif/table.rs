//! What this emitter has, as data for passes to choose by.

use ScalarOp::*;
use tlc_ir::scalar::Form;
use tlc_ir::target::{Emitter, Support, Width};
use tlc_ir::{DType, ScalarOp};

/// Bits of a vector: Cranelift lowers no wider ones.
const VECTOR_BITS: u32 = 128;
/// Vector registers of x86-64 without AVX-512, the fewest of all targets with vectors.
const VECTOR_REGISTERS: u32 = 16;

/// The table of the CLIF emitter, on a machine with or without a fused multiply-add.
pub fn emitter(has_fma: bool) -> Emitter {
    Emitter::new(
        "clif",
        VECTOR_BITS,
        VECTOR_REGISTERS,
        has_fma,
        |op, on, width| map(op, on, width, has_fma),
        convert,
    )
}

fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

fn map(op: ScalarOp, on: DType, width: Width, has_fma: bool) -> Support {
    let support = match on.is_float() {
        true => float(op, has_fma),
        false => integer(op, on, width),
    };
    // There is no arithmetic on 16-bit floats: it is f32's, rounded.
    match is_half(on) && op != Select && support == Support::Native {
        true => Support::Formula,
        false => support,
    }
}

fn float(op: ScalarOp, has_fma: bool) -> Support {
    match op {
        // Functions would be a call for each element; their formulas are vector code.
        _ if op.form() == Form::Formula => Support::Formula,
        Fma if has_fma => Support::Native,
        // A call of the host for each element.
        Fma | Rem | Mod => Support::PerLane,
        _ => Support::Native,
    }
}

/// Operations on bool, integers and storage types.
fn integer(op: ScalarOp, on: DType, width: Width) -> Support {
    let lanes_of = |bits: &[u32]| match width == Width::Scalar || bits.contains(&on.bits()) {
        true => Support::Native,
        false => Support::PerLane,
    };
    match op {
        // On bool they are bitwise operations, which is what masks have.
        Max | Min | Eq | Ne | Lt | Le if on == DType::Bool => Support::Formula,
        // x86 multiplies neither 8-bit nor 64-bit lanes in less than lane by lane.
        Mul => lanes_of(&[16, 32]),
        // By one amount for all lanes; where amounts differ, lanes are shifted one by one.
        Shl | Shr => lanes_of(&[32]),
        // No machine divides integers in lanes.
        Div | Rem | Mod => lanes_of(&[]),
        _ => Support::Native,
    }
}

fn convert(from: DType, to: DType, width: Width) -> Support {
    if from == to {
        return Support::Native;
    }
    if from.is_storage() || to.is_storage() {
        return Support::Formula;
    }
    // One rounding takes a call where f32 in between would round twice.
    let host = is_half(to) && (from == DType::F64 || from.is_int() && from.bits() >= 32);
    let vector = match (to.is_float(), from.is_float()) {
        _ if to == DType::Bool || from == DType::Bool => true,
        (false, false) => true,
        (true, false) => from.bits() <= 16 && to != DType::F64 || from.bits() == 32 && to == DType::F32,
        (false, true) => from != DType::F64 && to.bits() <= 32,
        (true, true) => !(from == DType::F64 && is_half(to)),
    };
    let fits_significand = from.is_int() && from.bits() <= 32;
    match (host, width) {
        // Integers are put into the significand of a large number.
        (_, Width::Lanes) if fits_significand && to == DType::F64 => Support::Formula,
        (false, Width::Scalar) => Support::Native,
        (_, Width::Lanes) if vector => Support::Native,
        _ => Support::PerLane,
    }
}
