//! What instructions compute, 32 lanes at once, each value in the low bits of a `u64` with zeros above.
//!
//! Functions here are chosen once, when a kernel is decoded, so that running an instruction is one call through a pointer
//! and a loop that the compiler can unroll. None of them panics on any bits.

pub(crate) mod convert;
pub(crate) mod float;
pub(crate) mod int;
pub(crate) mod rounding;
pub(crate) mod select;
pub(crate) mod small;

/// A value of each lane of a warp.
pub(crate) type Lanes = [u64; 32];

/// Up to three operands to a result, for all lanes.
pub(crate) type Compute = fn(&Lanes, &Lanes, &Lanes, &mut Lanes);

/// A comparison: a bit a lane.
pub(crate) type Test = fn(&Lanes, &Lanes) -> u32;

/// A closure on one lane as a [`Compute`].
macro_rules! each {
    ($f:expr) => {{
        fn run(
            a: &$crate::arith::Lanes,
            b: &$crate::arith::Lanes,
            c: &$crate::arith::Lanes,
            d: &mut $crate::arith::Lanes,
        ) {
            for i in 0..32 {
                d[i] = ($f)(a[i], b[i], c[i]);
            }
        }
        run as $crate::arith::Compute
    }};
}
pub(crate) use each;

/// A closure on one lane as a [`Test`].
macro_rules! test_each {
    ($f:expr) => {{
        fn run(a: &$crate::arith::Lanes, b: &$crate::arith::Lanes) -> u32 {
            let mut bits = 0;
            for i in 0..32 {
                bits |= u32::from(($f)(a[i], b[i])) << i;
            }
            bits
        }
        run as $crate::arith::Test
    }};
}
pub(crate) use test_each;

/// The type that an instruction names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ty {
    Pred,
    B8,
    B16,
    B32,
    B64,
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    U16x2,
    S16x2,
    F16,
    BF16,
    F16x2,
    BF16x2,
    TF32,
    F32,
    F64,
    E4M3,
    E5M2,
}

impl Ty {
    pub(crate) fn parse(name: &str) -> Option<Ty> {
        Some(match name {
            "pred" => Ty::Pred,
            "b8" => Ty::B8,
            "b16" => Ty::B16,
            "b32" => Ty::B32,
            "b64" => Ty::B64,
            "u8" => Ty::U8,
            "u16" => Ty::U16,
            "u32" => Ty::U32,
            "u64" => Ty::U64,
            "s8" => Ty::S8,
            "s16" => Ty::S16,
            "s32" => Ty::S32,
            "s64" => Ty::S64,
            "u16x2" => Ty::U16x2,
            "s16x2" => Ty::S16x2,
            "f16" => Ty::F16,
            "bf16" => Ty::BF16,
            "f16x2" => Ty::F16x2,
            "bf16x2" => Ty::BF16x2,
            "tf32" => Ty::TF32,
            "f32" => Ty::F32,
            "f64" => Ty::F64,
            "e4m3" => Ty::E4M3,
            "e5m2" => Ty::E5M2,
            _ => return None,
        })
    }

    /// How many bits it has; 1 for a predicate.
    pub(crate) const fn bits(self) -> u32 {
        match self {
            Ty::Pred => 1,
            Ty::B8 | Ty::U8 | Ty::S8 | Ty::E4M3 | Ty::E5M2 => 8,
            Ty::B16 | Ty::U16 | Ty::S16 | Ty::F16 | Ty::BF16 => 16,
            Ty::B32 | Ty::U32 | Ty::S32 | Ty::U16x2 | Ty::S16x2 => 32,
            Ty::F16x2 | Ty::BF16x2 | Ty::TF32 | Ty::F32 => 32,
            Ty::B64 | Ty::U64 | Ty::S64 | Ty::F64 => 64,
        }
    }

    pub(crate) const fn is_signed(self) -> bool {
        matches!(self, Ty::S8 | Ty::S16 | Ty::S32 | Ty::S64 | Ty::S16x2)
    }

    pub(crate) const fn is_float(self) -> bool {
        matches!(
            self,
            Ty::F16 | Ty::BF16 | Ty::F16x2 | Ty::BF16x2 | Ty::TF32 | Ty::F32 | Ty::F64 | Ty::E4M3 | Ty::E5M2
        )
    }
}

/// The low bits of a value.
pub(crate) const fn low(value: u64, bits: u32) -> u64 {
    if bits >= 64 { value } else { value & ((1 << bits) - 1) }
}

/// The low bits of a value, the highest of them repeated above.
pub(crate) const fn extended(value: u64, bits: u32) -> i64 {
    if bits == 0 || bits >= 64 {
        return value as i64;
    }
    ((value << (64 - bits)) as i64) >> (64 - bits)
}
