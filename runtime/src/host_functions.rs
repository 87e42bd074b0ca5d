//! Host functions that generated code calls (see [`tlc_codegen::clif::HostFunction`]). Each follows the scalar semantics of
//! `tlc_ir::scalar` exactly, because it evaluates them.

use tlc_codegen::clif::HostFunction;
use tlc_ir::{DType, Scalar, ScalarOp};

extern "C" fn fma_f32(a: f32, b: f32, c: f32) -> f32 {
    a.mul_add(b, c)
}
extern "C" fn fma_f64(a: f64, b: f64, c: f64) -> f64 {
    a.mul_add(b, c)
}
extern "C" fn rem_f32(a: f32, b: f32) -> f32 {
    a % b
}
extern "C" fn rem_f64(a: f64, b: f64) -> f64 {
    a % b
}
extern "C" fn mod_f32(a: f32, b: f32) -> f32 {
    ScalarOp::Mod.eval_f64(&[a as f64, b as f64, 0.0]) as f32
}
extern "C" fn mod_f64(a: f64, b: f64) -> f64 {
    ScalarOp::Mod.eval_f64(&[a, b, 0.0])
}
extern "C" fn f16_to_f32(bits: u32) -> f32 {
    half::f16::from_bits(bits as u16).to_f32()
}
extern "C" fn f64_to_f16(v: f64) -> u32 {
    Scalar::from_f64(DType::F16, v).bits() as u32
}
extern "C" fn f64_to_bf16(v: f64) -> u32 {
    Scalar::from_f64(DType::BF16, v).bits() as u32
}
extern "C" fn i64_to_f16(v: i64) -> u32 {
    Scalar::from_i64(DType::F16, v).bits() as u32
}
extern "C" fn i64_to_bf16(v: i64) -> u32 {
    Scalar::from_i64(DType::BF16, v).bits() as u32
}
extern "C" fn u64_to_f16(v: u64) -> u32 {
    Scalar::from_u64(DType::F16, v).bits() as u32
}
extern "C" fn u64_to_bf16(v: u64) -> u32 {
    Scalar::from_u64(DType::BF16, v).bits() as u32
}

/// The address of a host function.
pub fn address(f: HostFunction) -> *const u8 {
    match f {
        HostFunction::FmaF32 => fma_f32 as *const u8,
        HostFunction::FmaF64 => fma_f64 as *const u8,
        HostFunction::RemF32 => rem_f32 as *const u8,
        HostFunction::RemF64 => rem_f64 as *const u8,
        HostFunction::ModF32 => mod_f32 as *const u8,
        HostFunction::ModF64 => mod_f64 as *const u8,
        HostFunction::F16ToF32 => f16_to_f32 as *const u8,
        HostFunction::F64ToF16 => f64_to_f16 as *const u8,
        HostFunction::F64ToBF16 => f64_to_bf16 as *const u8,
        HostFunction::I64ToF16 => i64_to_f16 as *const u8,
        HostFunction::I64ToBF16 => i64_to_bf16 as *const u8,
        HostFunction::U64ToF16 => u64_to_f16 as *const u8,
        HostFunction::U64ToBF16 => u64_to_bf16 as *const u8,
    }
}
