//! Comparisons.

use super::rounding::{BF16, F16};
use super::{Test, Ty, test_each};

/// `setp`'s comparison of a type.
#[expect(
    clippy::neg_cmp_op_on_partial_ord,
    reason = "unordered comparisons are the negation of ordered ones"
)]
pub(crate) fn comparison(name: &str, ty: Ty) -> Option<Test> {
    macro_rules! ints {
        ($t:ty) => {
            match name {
                "eq" => test_each!(|a: u64, b: u64| a as $t == b as $t),
                "ne" => test_each!(|a: u64, b: u64| a as $t != b as $t),
                "lt" | "lo" => test_each!(|a: u64, b: u64| (a as $t) < b as $t),
                "le" | "ls" => test_each!(|a: u64, b: u64| a as $t <= b as $t),
                "gt" | "hi" => test_each!(|a: u64, b: u64| a as $t > b as $t),
                "ge" | "hs" => test_each!(|a: u64, b: u64| a as $t >= b as $t),
                _ => return None,
            }
        };
    }
    macro_rules! floats {
        ($value:expr) => {
            match name {
                "eq" => test_each!(|a: u64, b: u64| ($value)(a) == ($value)(b)),
                "ne" => test_each!(|a: u64, b: u64| ($value)(a) < ($value)(b) || ($value)(a) > ($value)(b)),
                "lt" => test_each!(|a: u64, b: u64| ($value)(a) < ($value)(b)),
                "le" => test_each!(|a: u64, b: u64| ($value)(a) <= ($value)(b)),
                "gt" => test_each!(|a: u64, b: u64| ($value)(a) > ($value)(b)),
                "ge" => test_each!(|a: u64, b: u64| ($value)(a) >= ($value)(b)),
                "equ" => test_each!(|a: u64, b: u64| !(($value)(a) < ($value)(b) || ($value)(a) > ($value)(b))),
                "neu" => test_each!(|a: u64, b: u64| ($value)(a) != ($value)(b)),
                "ltu" => test_each!(|a: u64, b: u64| !(($value)(a) >= ($value)(b))),
                "leu" => test_each!(|a: u64, b: u64| !(($value)(a) > ($value)(b))),
                "gtu" => test_each!(|a: u64, b: u64| !(($value)(a) <= ($value)(b))),
                "geu" => test_each!(|a: u64, b: u64| !(($value)(a) < ($value)(b))),
                "num" => test_each!(|a: u64, b: u64| ($value)(a) <= ($value)(b) || ($value)(a) > ($value)(b)),
                "nan" => test_each!(|a: u64, b: u64| !(($value)(a) <= ($value)(b) || ($value)(a) > ($value)(b))),
                _ => return None,
            }
        };
    }
    Some(match ty {
        Ty::U16 | Ty::B16 => ints!(u16),
        Ty::U32 | Ty::B32 => ints!(u32),
        Ty::U64 | Ty::B64 => ints!(u64),
        Ty::S16 => ints!(i16),
        Ty::S32 => ints!(i32),
        Ty::S64 => ints!(i64),
        Ty::F32 => floats!(|a: u64| f32::from_bits(a as u32)),
        Ty::F64 => floats!(f64::from_bits),
        Ty::F16 => floats!(|a: u64| F16.value(a & 0xffff)),
        Ty::BF16 => floats!(|a: u64| BF16.value(a & 0xffff)),
        _ => return None,
    })
}
