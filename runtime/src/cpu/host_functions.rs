//! The functions that compiled kernels may call.
//!
//! Invariant: scalar functions compute exactly what [`ScalarOp::eval`] says, so emitters and interpreters agree bit for bit.

mod copy;
pub(crate) mod counted;
pub(crate) mod sort;

use tlc_codegen::RuntimeFunction;
use tlc_ir::{DType, Scalar, ScalarOp};

/// A function on f32 and one on f64 that compute a scalar operation; the address of one of them.
macro_rules! operation {
    ($op:ident ($($x:ident)*) $($zero:literal)*; $dtype:ident) => {{
        extern "C" fn single($($x: f32),*) -> f32 {
            ScalarOp::$op.eval_f64(&[$(f64::from($x),)* $($zero),*]) as f32
        }
        extern "C" fn double($($x: f64),*) -> f64 {
            ScalarOp::$op.eval_f64(&[$($x,)* $($zero),*])
        }
        match $dtype {
            DType::F32 => Some(single as *const u8),
            DType::F64 => Some(double as *const u8),
            _ => None,
        }
    }};
}

/// The operations whose row says that they are functions.
macro_rules! functions {
    ($($op:ident $name:literal $arity:tt $class:ident $cost:tt $form:ident $carry:ident $ulps:literal $doc:literal;)*) => {
        fn function(op: ScalarOp, dtype: DType) -> Option<*const u8> {
            $(functions!(@ $cost $arity $op; op dtype);)*
            None
        }
    };
    (@ Function 1 $op:ident; $given:ident $dtype:ident) => {
        if $given == ScalarOp::$op {
            return operation!($op (x) 0.0 0.0; $dtype);
        }
    };
    (@ Function 2 $op:ident; $given:ident $dtype:ident) => {
        if $given == ScalarOp::$op {
            return operation!($op (x y) 0.0; $dtype);
        }
    };
    (@ $cost:tt $arity:tt $op:ident; $given:ident $dtype:ident) => {};
}

tlc_ir::scalar_rows!(functions);

fn operation(op: ScalarOp, dtype: DType) -> Option<*const u8> {
    match op {
        ScalarOp::Rem => operation!(Rem (x y) 0.0; dtype),
        ScalarOp::Mod => operation!(Mod (x y) 0.0; dtype),
        ScalarOp::Floor => operation!(Floor (x) 0.0 0.0; dtype),
        ScalarOp::Ceil => operation!(Ceil (x) 0.0 0.0; dtype),
        ScalarOp::Trunc => operation!(Trunc (x) 0.0 0.0; dtype),
        ScalarOp::Round => operation!(Round (x) 0.0 0.0; dtype),
        ScalarOp::Fma => operation!(Fma (x y z); dtype),
        op => function(op, dtype),
    }
}

/// An f32 product and sum with one rounding: not what f64 arithmetic and a second rounding give.
extern "C" fn fma_single(x: f32, y: f32, z: f32) -> f32 {
    x.mul_add(y, z)
}

macro_rules! conversions {
    ($($name:ident $from:ty, $make:ident, $to:ident;)*) => {
        $(extern "C" fn $name(x: $from) -> i32 {
            Scalar::$make(DType::$to, x).bits() as i32
        })*
    };
}

conversions! {
    f64_f16 f64, from_f64, F16;
    f64_bf16 f64, from_f64, BF16;
    i64_f16 i64, from_i64, F16;
    i64_bf16 i64, from_i64, BF16;
    u64_f16 u64, from_u64, F16;
    u64_bf16 u64, from_u64, BF16;
}

/// The address of a function that code calls; `None` only for functions that [`RuntimeFunction::all`] does not list.
pub fn address(function: RuntimeFunction) -> Option<*const u8> {
    match function {
        RuntimeFunction::Map(ScalarOp::Fma, DType::F32) => Some(fma_single as *const u8),
        RuntimeFunction::Map(op, dtype) => operation(op, dtype),
        RuntimeFunction::Convert(from, to) => match (from, to) {
            (DType::F64, DType::F16) => Some(f64_f16 as *const u8),
            (DType::F64, DType::BF16) => Some(f64_bf16 as *const u8),
            (DType::I64, DType::F16) => Some(i64_f16 as *const u8),
            (DType::I64, DType::BF16) => Some(i64_bf16 as *const u8),
            (DType::U64, DType::F16) => Some(u64_f16 as *const u8),
            (DType::U64, DType::BF16) => Some(u64_bf16 as *const u8),
            _ => None,
        },
        RuntimeFunction::Copy {
            element,
            transposed,
            streaming,
        } => copy::address(element, transposed, streaming),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_host_function_has_an_address_of_its_own() {
        let all = RuntimeFunction::all();
        let found = all.iter().filter_map(|f| address(*f)).count();
        assert_eq!(found, all.len());
    }
}
