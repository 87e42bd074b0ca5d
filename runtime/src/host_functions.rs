//! The functions that compiled kernels may call.
//!
//! Invariant: scalar functions compute exactly what [`ScalarOp::eval`] says, so emitters and interpreters agree bit for bit.

mod copy;
pub(crate) mod counted;
pub(crate) mod sort;

use tlc_codegen::clif::HostFunction;
use tlc_ir::{DType, Scalar, ScalarOp};

macro_rules! operations {
    ($($module:ident $op:ident ($($x:ident),*);)*) => {
        $(mod $module {
            use super::*;
            pub extern "C" fn single($($x: f32),*) -> f32 {
                let mut v = [0.0; 3];
                for (slot, x) in v.iter_mut().zip([$($x),*]) {
                    *slot = x as f64;
                }
                ScalarOp::$op.eval_f64(&v) as f32
            }
            pub extern "C" fn double($($x: f64),*) -> f64 {
                let mut v = [0.0; 3];
                for (slot, x) in v.iter_mut().zip([$($x),*]) {
                    *slot = x;
                }
                ScalarOp::$op.eval_f64(&v)
            }
        })*

        fn operation(op: ScalarOp, dtype: DType) -> Option<*const u8> {
            match (op, dtype) {
                $((ScalarOp::$op, DType::F32) => Some($module::single as *const u8),
                (ScalarOp::$op, DType::F64) => Some($module::double as *const u8),)*
                _ => None,
            }
        }
    };
}

operations! {
    exp Exp (x);
    exp2 Exp2 (x);
    expm1 Expm1 (x);
    log Log (x);
    log2 Log2 (x);
    log1p Log1p (x);
    sin Sin (x);
    cos Cos (x);
    tan Tan (x);
    asin Asin (x);
    acos Acos (x);
    atan Atan (x);
    sinh Sinh (x);
    cosh Cosh (x);
    tanh Tanh (x);
    asinh Asinh (x);
    acosh Acosh (x);
    atanh Atanh (x);
    erf Erf (x);
    pow Pow (x, y);
    atan2 Atan2 (x, y);
    rem Rem (x, y);
    modulo Mod (x, y);
    floor Floor (x);
    ceil Ceil (x);
    trunc Trunc (x);
    round Round (x);
    fma Fma (x, y, z);
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

/// The address of a host function; `None` only for functions that [`HostFunction::all`] does not list.
pub fn address(function: HostFunction) -> Option<*const u8> {
    match function {
        HostFunction::Map(ScalarOp::Fma, DType::F32) => Some(fma_single as *const u8),
        HostFunction::Map(op, dtype) => operation(op, dtype),
        HostFunction::Convert(from, to) => match (from, to) {
            (DType::F64, DType::F16) => Some(f64_f16 as *const u8),
            (DType::F64, DType::BF16) => Some(f64_bf16 as *const u8),
            (DType::I64, DType::F16) => Some(i64_f16 as *const u8),
            (DType::I64, DType::BF16) => Some(i64_bf16 as *const u8),
            (DType::U64, DType::F16) => Some(u64_f16 as *const u8),
            (DType::U64, DType::BF16) => Some(u64_bf16 as *const u8),
            _ => None,
        },
        HostFunction::Copy {
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
        let all = HostFunction::all();
        let found = all.iter().filter_map(|f| address(*f)).count();
        assert_eq!(found, all.len());
    }
}
