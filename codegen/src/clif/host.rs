//! Host functions as Cranelift sees them.

use cranelift_codegen::ir::{AbiParam, LibCall, Signature, Type, types};
use cranelift_codegen::isa::CallConv;
use tlc_ir::{DType, ScalarOp};

use crate::host::RuntimeFunction;

/// The function that stands for a call which Cranelift inserts on its own.
pub(super) fn from_libcall(call: LibCall) -> Option<RuntimeFunction> {
    let (op, dtype) = match call {
        LibCall::CeilF32 => (ScalarOp::Ceil, DType::F32),
        LibCall::CeilF64 => (ScalarOp::Ceil, DType::F64),
        LibCall::FloorF32 => (ScalarOp::Floor, DType::F32),
        LibCall::FloorF64 => (ScalarOp::Floor, DType::F64),
        LibCall::TruncF32 => (ScalarOp::Trunc, DType::F32),
        LibCall::TruncF64 => (ScalarOp::Trunc, DType::F64),
        LibCall::NearestF32 => (ScalarOp::Round, DType::F32),
        LibCall::NearestF64 => (ScalarOp::Round, DType::F64),
        LibCall::FmaF32 => (ScalarOp::Fma, DType::F32),
        LibCall::FmaF64 => (ScalarOp::Fma, DType::F64),
        _ => return None,
    };
    Some(RuntimeFunction::Map(op, dtype))
}

/// The signature of a host function.
pub(super) fn signature(function: RuntimeFunction, call_conv: CallConv) -> Signature {
    let float = |d| if d == DType::F32 { types::F32 } else { types::F64 };
    let (operand, count, result): (Type, usize, Option<Type>) = match function {
        RuntimeFunction::Map(op, dtype) => (float(dtype), op.arity(), Some(float(dtype))),
        RuntimeFunction::Convert(DType::F64, _) => (types::F64, 1, Some(types::I32)),
        RuntimeFunction::Convert(..) => (types::I64, 1, Some(types::I32)),
        RuntimeFunction::Copy { .. } => (types::I64, 6, None),
    };
    let mut signature = Signature::new(call_conv);
    signature.params.extend((0..count).map(|_| AbiParam::new(operand)));
    signature.returns.extend(result.map(AbiParam::new));
    signature
}
