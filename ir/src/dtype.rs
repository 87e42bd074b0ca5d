//! Element types and single values of them.
//!
//! Invariants:
//! - A [`DType`] has a fixed width in bits and one name, which is its spelling in every text form.
//! - Those from `F8E4M3FN` on are storage types ([`narrow`]): they are kept, moved, selected and converted, and
//!   arithmetic refuses them. [`DType::is_float`] and its like speak of the types that are computed in.
//! - A [`Scalar`] holds the value's exact bits, so equality and hashing are bitwise: two NaNs with the same payload are
//!   equal, and `0.0` differs from `-0.0`. That is what hash-consing and printing need.
//! - `bool` is stored as one byte, 0 or 1; any other byte read from outside is normalized on the way in.

pub mod narrow;

use std::fmt;
use std::str::FromStr;

use half::{bf16, f16};

/// The type of one element of a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum DType {
    /// Truth value, stored as one byte 0 or 1.
    Bool,
    /// Signed 8-bit integer, two's complement.
    I8,
    /// Signed 16-bit integer.
    I16,
    /// Signed 32-bit integer.
    I32,
    /// Signed 64-bit integer.
    I64,
    /// Unsigned 8-bit integer.
    U8,
    /// Unsigned 16-bit integer.
    U16,
    /// Unsigned 32-bit integer.
    U32,
    /// Unsigned 64-bit integer.
    U64,
    /// IEEE 754 binary16.
    F16,
    /// bfloat16: the upper half of an f32.
    BF16,
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary64.
    F64,
    /// Storage: a float of 4 exponent and 3 mantissa bits, no infinity, largest 448.
    F8E4M3FN,
    /// Storage: a float of 4 exponent and 3 mantissa bits, no infinity, no negative zero, largest 240.
    F8E4M3FNUZ,
    /// Storage: a float of 5 exponent and 2 mantissa bits, largest 57344; the upper byte of an f16.
    F8E5M2,
    /// Storage: a float of 5 exponent and 2 mantissa bits, no infinity, no negative zero, largest 57344.
    F8E5M2FNUZ,
    /// Storage: a power of two from 2^-127 to 2^127, or NaN; no sign, no zero.
    F8E8M0FNU,
    /// Storage: a float of 2 exponent bits and 1 mantissa bit, no infinity, no NaN, largest 6.
    F4E2M1FN,
    /// Storage: signed 4-bit integer.
    I4,
    /// Storage: unsigned 4-bit integer.
    U4,
    /// Storage: signed 2-bit integer.
    I2,
    /// Storage: unsigned 2-bit integer.
    U2,
}

impl DType {
    /// Every dtype, in declaration order.
    pub const ALL: [DType; 23] = [
        DType::Bool,
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::U8,
        DType::U16,
        DType::U32,
        DType::U64,
        DType::F16,
        DType::BF16,
        DType::F32,
        DType::F64,
        DType::F8E4M3FN,
        DType::F8E4M3FNUZ,
        DType::F8E5M2,
        DType::F8E5M2FNUZ,
        DType::F8E8M0FNU,
        DType::F4E2M1FN,
        DType::I4,
        DType::U4,
        DType::I2,
        DType::U2,
    ];

    /// The spelling in text forms: `bool`, `i8`, …, `f64`.
    pub const fn name(self) -> &'static str {
        match self {
            DType::Bool => "bool",
            DType::I8 => "i8",
            DType::I16 => "i16",
            DType::I32 => "i32",
            DType::I64 => "i64",
            DType::U8 => "u8",
            DType::U16 => "u16",
            DType::U32 => "u32",
            DType::U64 => "u64",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::F8E4M3FN => "f8e4m3fn",
            DType::F8E4M3FNUZ => "f8e4m3fnuz",
            DType::F8E5M2 => "f8e5m2",
            DType::F8E5M2FNUZ => "f8e5m2fnuz",
            DType::F8E8M0FNU => "f8e8m0fnu",
            DType::F4E2M1FN => "f4e2m1fn",
            DType::I4 => "i4",
            DType::U4 => "u4",
            DType::I2 => "i2",
            DType::U2 => "u2",
        }
    }

    /// Width of one stored element in bits. A storage type of less than a byte has a byte of its own for each element.
    pub const fn bits(self) -> u32 {
        match self {
            DType::Bool | DType::I8 | DType::U8 => 8,
            DType::I16 | DType::U16 | DType::F16 | DType::BF16 => 16,
            DType::I32 | DType::U32 | DType::F32 => 32,
            DType::I64 | DType::U64 | DType::F64 => 64,
            _ => 8,
        }
    }

    /// Bits of a stored element that carry its value: fewer than [`DType::bits`] for the types of less than a byte.
    pub const fn value_bits(self) -> u32 {
        match self {
            DType::Bool => 1,
            DType::F4E2M1FN | DType::I4 | DType::U4 => 4,
            DType::I2 | DType::U2 => 2,
            other => other.bits(),
        }
    }

    /// Width of one stored element in bytes.
    pub const fn bytes(self) -> usize {
        self.bits() as usize / 8
    }

    /// True for f16, bf16, f32 and f64.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F16 | DType::BF16 | DType::F32 | DType::F64)
    }

    /// True for i8 to i64 and u8 to u64; false for bool.
    #[inline]
    pub const fn is_int(self) -> bool {
        self.is_signed_int() || self.is_unsigned_int()
    }

    /// True for the types that are kept and converted but not computed in.
    #[inline]
    pub const fn is_storage(self) -> bool {
        self.is_storage_float() || matches!(self, DType::I4 | DType::U4 | DType::I2 | DType::U2)
    }

    /// True for the floats of 8 and 4 bits.
    pub const fn is_storage_float(self) -> bool {
        use DType::*;
        matches!(self, F8E4M3FN | F8E4M3FNUZ | F8E5M2 | F8E5M2FNUZ | F8E8M0FNU | F4E2M1FN)
    }

    /// True for i8 to i64.
    pub const fn is_signed_int(self) -> bool {
        matches!(self, DType::I8 | DType::I16 | DType::I32 | DType::I64)
    }

    /// True for the floats that are computed in and those that are stored only.
    pub const fn is_any_float(self) -> bool {
        self.is_float() || self.is_storage_float()
    }

    /// True for the integers of two's complement, storage types included.
    pub(crate) const fn has_sign(self) -> bool {
        self.is_signed_int() || matches!(self, DType::I4 | DType::I2)
    }

    /// True for u8 to u64.
    pub const fn is_unsigned_int(self) -> bool {
        matches!(self, DType::U8 | DType::U16 | DType::U32 | DType::U64)
    }

    /// The dtype in which sums and products of this one are carried: f32 for f16 and bf16, itself otherwise.
    pub const fn accumulator(self) -> DType {
        match self {
            DType::F16 | DType::BF16 => DType::F32,
            other => other,
        }
    }

    /// Zero of this dtype (`false` for bool, `0.0` for floats).
    pub const fn zero(self) -> Scalar {
        Scalar { dtype: self, bits: 0 }
    }

    /// One of this dtype (`true` for bool).
    pub fn one(self) -> Scalar {
        Scalar::from_f64(self, 1.0)
    }

    /// The lowest value: `-inf` for floats, the minimum for integers, `false` for bool. Identity of a maximum.
    pub fn lowest(self) -> Scalar {
        match self {
            d if d.is_float() => Scalar::from_f64(d, f64::NEG_INFINITY),
            d if d.is_storage_float() => Scalar::from_f64(d, if d == DType::F8E8M0FNU { 0.0 } else { f64::MIN }),
            d if d.has_sign() => Scalar::from_i64(d, i64::MIN >> (64 - d.value_bits())),
            d => d.zero(),
        }
    }

    /// The highest value: `inf` for floats, the maximum for integers, `true` for bool. Identity of a minimum.
    pub fn highest(self) -> Scalar {
        match self {
            DType::Bool => self.one(),
            d if d.is_float() => Scalar::from_f64(d, f64::INFINITY),
            d if d.is_storage_float() => Scalar::from_f64(d, f64::INFINITY),
            d if d.has_sign() => Scalar::from_i64(d, i64::MAX >> (64 - d.value_bits())),
            d => Scalar {
                dtype: d,
                bits: u64::MAX >> (64 - d.value_bits()),
            },
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for DType {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        DType::ALL
            .into_iter()
            .find(|d| d.name() == s)
            .ok_or_else(|| format!("unknown dtype `{s}`"))
    }
}

/// One value with its dtype, held as exact bits (zero-extended to 64).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Scalar {
    dtype: DType,
    bits: u64,
}

impl Scalar {
    /// A value from its stored bits; bits above the dtype's width are dropped, a bool becomes 0 or 1.
    pub const fn from_bits(dtype: DType, bits: u64) -> Scalar {
        let bits = match dtype {
            DType::Bool => (bits & 0xff != 0) as u64,
            _ => bits & (u64::MAX >> (64 - dtype.value_bits())),
        };
        Scalar { dtype, bits }
    }

    /// `value` rounded to nearest-even for floats (saturated for storage floats); for integers truncated toward zero and
    /// saturated, NaN gives 0 (Rust's `as`); for bool, whether it differs from zero (NaN is true).
    pub fn from_f64(dtype: DType, value: f64) -> Scalar {
        let bits = match dtype {
            DType::Bool => (value != 0.0) as u64,
            DType::I8 => value as i8 as u8 as u64,
            DType::I16 => value as i16 as u16 as u64,
            DType::I32 => value as i32 as u32 as u64,
            DType::I64 => value as i64 as u64,
            DType::U8 => value as u8 as u64,
            DType::U16 => value as u16 as u64,
            DType::U32 => value as u32 as u64,
            DType::U64 => value as u64,
            DType::F16 => f16_from_f64(value).to_bits() as u64,
            DType::BF16 => bf16_from_f64(value).to_bits() as u64,
            DType::F32 => (value as f32).to_bits() as u64,
            DType::F64 => value.to_bits(),
            DType::I4 => (value as i64).clamp(-8, 7) as u64 & 0xf,
            DType::I2 => (value as i64).clamp(-2, 1) as u64 & 0x3,
            DType::U4 => (value as u64).min(0xf),
            DType::U2 => (value as u64).min(0x3),
            storage => narrow::encode(storage, value, true) as u64,
        };
        Scalar { dtype, bits }
    }

    /// `value` wrapped to an integer dtype's width, rounded to nearest-even for floats, `!= 0` for bool.
    pub fn from_i64(dtype: DType, value: i64) -> Scalar {
        match dtype {
            DType::F64 => Scalar::from_f64(dtype, value as f64),
            DType::F32 => Scalar {
                dtype,
                bits: (value as f32).to_bits() as u64,
            },
            // One rounding only: i64 -> f64 may round, so go through a sticky bit for the 16-bit floats.
            DType::F16 | DType::BF16 => Scalar::from_f64(dtype, sticky_f64(value.unsigned_abs(), value < 0)),
            // By way of f32, as its conversions are stated.
            DType::F8E8M0FNU => Scalar::from_f64(dtype, f64::from(value as f32)),
            d if d.is_storage_float() => Scalar::from_f64(dtype, value as f64),
            DType::Bool => Scalar {
                dtype,
                bits: (value != 0) as u64,
            },
            _ => Scalar::from_bits(dtype, value as u64),
        }
    }

    /// `value` wrapped to an integer dtype's width, rounded to nearest-even for floats, `!= 0` for bool.
    pub fn from_u64(dtype: DType, value: u64) -> Scalar {
        match dtype {
            DType::F64 => Scalar::from_f64(dtype, value as f64),
            DType::F32 => Scalar {
                dtype,
                bits: (value as f32).to_bits() as u64,
            },
            DType::F16 | DType::BF16 => Scalar::from_f64(dtype, sticky_f64(value, false)),
            DType::F8E8M0FNU => Scalar::from_f64(dtype, f64::from(value as f32)),
            d if d.is_storage_float() => Scalar::from_f64(dtype, value as f64),
            DType::Bool => Scalar {
                dtype,
                bits: (value != 0) as u64,
            },
            _ => Scalar::from_bits(dtype, value),
        }
    }

    /// A bool.
    pub const fn from_bool(value: bool) -> Scalar {
        Scalar {
            dtype: DType::Bool,
            bits: value as u64,
        }
    }

    /// The dtype of the value.
    pub const fn dtype(self) -> DType {
        self.dtype
    }

    /// The stored bits, zero-extended.
    pub const fn bits(self) -> u64 {
        self.bits
    }

    /// The value as f64: exact for every dtype but i64 and u64 beyond 2^53, which round to nearest-even.
    pub fn as_f64(self) -> f64 {
        match self.dtype {
            DType::F16 => f16::from_bits(self.bits as u16).to_f64(),
            DType::BF16 => bf16::from_bits(self.bits as u16).to_f64(),
            DType::F32 => f32::from_bits(self.bits as u32) as f64,
            DType::F64 => f64::from_bits(self.bits),
            d if d.is_storage_float() => narrow::decode(d, self.bits as u8),
            d if d.has_sign() => self.as_i64() as f64,
            _ => self.bits as f64,
        }
    }

    /// The value as i64: integers sign- or zero-extended (u64 wraps), floats truncated and saturated (NaN is 0).
    pub fn as_i64(self) -> i64 {
        match self.dtype {
            d if d.is_any_float() => self.as_f64() as i64,
            d if d.has_sign() => {
                let shift = 64 - d.value_bits();
                ((self.bits << shift) as i64) >> shift
            }
            _ => self.bits as i64,
        }
    }

    /// Whether the value differs from zero (NaN does).
    pub fn as_bool(self) -> bool {
        match self.dtype {
            d if d.is_any_float() => self.as_f64() != 0.0,
            _ => self.bits != 0,
        }
    }

    /// The value converted with the semantics of the graph's `convert` (see [`crate::scalar`]).
    pub fn convert(self, to: DType) -> Scalar {
        match self.dtype {
            d if d == to => self,
            d if d.is_any_float() => Scalar::from_f64(to, self.as_f64()),
            d if d.has_sign() => Scalar::from_i64(to, self.as_i64()),
            _ => Scalar::from_u64(to, self.bits),
        }
    }

    /// True if the value is a NaN.
    pub fn is_nan(self) -> bool {
        self.as_f64().is_nan()
    }
}

impl fmt::Display for Scalar {
    /// Digits that parse back to the same bits; a NaN other than the canonical one prints as `nan:0x…`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.dtype {
            DType::Bool => write!(f, "{}", self.bits != 0),
            d if d.is_any_float() => {
                let v = self.as_f64();
                if v.is_nan() {
                    if *self == Scalar::from_f64(d, f64::NAN) {
                        f.write_str("nan")
                    } else {
                        write!(f, "nan:{:#x}", self.bits)
                    }
                } else if v.is_infinite() {
                    f.write_str(if v > 0.0 { "inf" } else { "-inf" })
                } else if d == DType::F32 {
                    write!(f, "{:?}", f32::from_bits(self.bits as u32))
                } else {
                    write!(f, "{v:?}")
                }
            }
            d if d.has_sign() => write!(f, "{}", self.as_i64()),
            _ => write!(f, "{}", self.bits),
        }
    }
}

/// f64 to f16 with a single rounding to nearest-even. (`f16::from_f64` drops the low 32 bits of the significand before it
/// rounds, or goes through f32, so it sees ties where there are none.)
fn f16_from_f64(value: f64) -> f16 {
    f16::from_f32(odd_f32(value))
}

/// f64 to bf16 with a single rounding to nearest-even (going through f32 would round twice).
fn bf16_from_f64(value: f64) -> bf16 {
    bf16::from_f32(odd_f32(value))
}

/// f64 to f32, rounded to odd: if the conversion was inexact, the last bit is set, so that a second rounding to a narrower
/// float cannot see a false tie (Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums", 2008).
fn odd_f32(value: f64) -> f32 {
    let single = value as f32;
    if single.is_nan() || single.is_infinite() || single as f64 == value {
        return single;
    }
    let bits = single.to_bits();
    let toward_zero = if (single as f64).abs() > value.abs() {
        bits - 1
    } else {
        bits
    };
    f32::from_bits(toward_zero | 1)
}

/// An integer as an f64 whose last bit is set if bits were lost, so that a later rounding to a narrower float is right.
fn sticky_f64(magnitude: u64, negative: bool) -> f64 {
    let kept = if magnitude >> 53 == 0 {
        magnitude
    } else {
        let shift = 64 - magnitude.leading_zeros() - 53;
        let low = magnitude & ((1u64 << shift) - 1);
        ((magnitude >> shift) | (low != 0) as u64) << shift
    };
    let value = kept as f64;
    if negative { -value } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn storage_floats_are_those_that_have_a_format() {
        for d in DType::ALL {
            let has_format = d == DType::F8E8M0FNU || narrow::FloatFormat::of(d).is_some();
            assert_eq!(d.is_storage_float(), has_format, "{d}");
        }
    }

    #[test]
    fn names_parse_back() {
        for d in DType::ALL {
            assert_eq!(d.name().parse::<DType>().unwrap(), d);
        }
    }

    #[test]
    fn extremes_are_the_types_own() {
        assert_eq!(DType::I8.lowest().as_i64(), -128);
        assert_eq!(DType::I64.lowest().as_i64(), i64::MIN);
        assert_eq!(DType::U16.highest().bits(), 65535);
        assert_eq!(DType::U64.highest().bits(), u64::MAX);
        assert_eq!(DType::I32.highest().as_i64(), i32::MAX as i64);
    }

    #[test]
    fn f64_to_bf16_rounds_once() {
        // 1 + 2^-8 is a tie between 1 and 1 + 2^-7; anything above it must round up, even if f32 cannot see it.
        let above_tie = 1.0 + 2f64.powi(-8) + 2f64.powi(-40);
        assert_eq!(Scalar::from_f64(DType::BF16, above_tie).as_f64(), 1.0 + 2f64.powi(-7));
        assert_eq!(Scalar::from_f64(DType::BF16, 1.0 + 2f64.powi(-8)).as_f64(), 1.0);
    }

    #[test]
    fn f64_to_f16_rounds_once() {
        let above_tie = 1.0 + 2f64.powi(-11) + 2f64.powi(-40);
        assert_eq!(Scalar::from_f64(DType::F16, above_tie).as_f64(), 1.0 + 2f64.powi(-10));
        assert_eq!(Scalar::from_f64(DType::F16, 1.0 + 2f64.powi(-11)).as_f64(), 1.0);
        assert_eq!(
            Scalar::from_f64(DType::F16, 2f64.powi(-25) * 1.0001).as_f64(),
            2f64.powi(-24)
        );
        assert_eq!(Scalar::from_f64(DType::F16, 2f64.powi(-25)).as_f64(), 0.0);
        assert_eq!(Scalar::from_f64(DType::F16, 65520.0).as_f64(), f64::INFINITY);
        assert_eq!(Scalar::from_f64(DType::F16, 65519.99).as_f64(), 65504.0);
    }

    #[test]
    fn conversions_saturate_truncate_and_wrap_as_stated() {
        assert_eq!(Scalar::from_f64(DType::F32, 300.7).convert(DType::I8).as_i64(), 127);
        assert_eq!(Scalar::from_f64(DType::F32, f64::NAN).convert(DType::I32).as_i64(), 0);
        assert_eq!(Scalar::from_i64(DType::I32, 300).convert(DType::U8).as_i64(), 44);
        assert_eq!(Scalar::from_i64(DType::I32, -1).convert(DType::U64).bits(), u64::MAX);
        assert!(Scalar::from_f64(DType::F32, 0.5).convert(DType::Bool).as_bool());
    }
}
