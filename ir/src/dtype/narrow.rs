//! The storage types: floats of 8 and 4 bits and integers of 4 and 2 bits, which are kept and converted but not computed in.
//!
//! Invariants:
//! - An element is one byte in memory at run time; a type of fewer bits has its value in the low ones and zeros above.
//!   (Files pack several to a byte. What stays packed in memory is a constant of bytes, and arithmetic of the graph unpacks it.)
//! - Every value of a storage type is one of f32's, so decoding is exact and everything else goes by way of it.
//! - Conversion to a storage float rounds to nearest, ties to even, once, and *saturates*: an infinity or a number beyond
//!   the largest finite one becomes that one. NaN becomes the one NaN of positive sign, or zero where there is none.
//!   [`encode`] also has the other rule, by which what is too large becomes an infinity or, without one, NaN.
//! - f8e8m0fnu has neither sign nor zero: it is the exponent of a power of two. What converts to it is rounded to f32 first
//!   and then to the nearest power, ties to the larger; what is smaller than 2^-127, zero too, becomes that, and what is
//!   negative NaN.
//!
//! The 8-bit formats are those of Micikevicius et al., "FP8 formats for deep learning" (2022), and, where the name ends in
//! `fnuz` (finite, no negative zero), of Noune et al., "8-bit numerical formats for deep neural networks" (2022); f8e8m0fnu
//! and f4e2m1fn are those of the Open Compute Project's "Microscaling formats (MX)" 1.0 (2023).

use crate::dtype::DType;

/// A signed float format of at most 8 bits: sign, exponent and mantissa, from the top down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FloatFormat {
    /// Bits in all.
    pub bits: u32,
    /// Mantissa bits that are stored.
    pub mantissa: u32,
    /// What the stored exponent of 1.0 is.
    pub bias: i32,
    /// The largest finite number, without its sign.
    pub largest: u8,
    /// Positive infinity, if the format has infinities.
    pub infinity: Option<u8>,
    /// The NaN that conversions make, if the format has one.
    pub nan: Option<u8>,
    /// Whether a zero has a sign; if not, its place is the only NaN's.
    pub signed_zero: bool,
}

impl FloatFormat {
    /// The format of a storage float that has a sign.
    pub const fn of(dtype: DType) -> Option<FloatFormat> {
        let (bits, mantissa, bias, largest, infinity, nan, signed_zero) = match dtype {
            DType::F8E4M3FN => (8, 3, 7, 0x7e, None, Some(0x7f), true),
            DType::F8E4M3FNUZ => (8, 3, 8, 0x7f, None, Some(0x80), false),
            DType::F8E5M2 => (8, 2, 15, 0x7b, Some(0x7c), Some(0x7e), true),
            DType::F8E5M2FNUZ => (8, 2, 16, 0x7f, None, Some(0x80), false),
            DType::F4E2M1FN => (4, 1, 1, 0x7, None, None, true),
            _ => return None,
        };
        Some(FloatFormat {
            bits,
            mantissa,
            bias,
            largest,
            infinity,
            nan,
            signed_zero,
        })
    }

    /// The bit of the sign.
    pub const fn sign(&self) -> u8 {
        1 << (self.bits - 1)
    }

    fn decode(&self, bits: u8) -> f64 {
        let magnitude = bits & (self.sign() - 1);
        if !self.signed_zero && bits == self.sign() {
            return f64::NAN;
        }
        let value = if magnitude <= self.largest {
            let exponent = i32::from(magnitude >> self.mantissa);
            let fraction = i32::from(magnitude & ((1 << self.mantissa) - 1));
            let hidden = i32::from(exponent > 0) << self.mantissa;
            let unit = exponent.max(1) - self.bias - self.mantissa as i32;
            f64::from(hidden + fraction) * power_of_two(unit)
        } else if Some(magnitude) == self.infinity {
            f64::INFINITY
        } else {
            return f64::NAN;
        };
        if bits & self.sign() != 0 { -value } else { value }
    }

    fn encode(&self, value: f64, saturate: bool) -> u8 {
        if value.is_nan() {
            return self.nan.unwrap_or(0);
        }
        let first = 1 - self.bias;
        let size = value.abs();
        let exponent = (((size.to_bits() >> 52) as i32) - 1023).max(first);
        // Scaled by a power of two, so that neighbours of the format differ by 1: exact, and the rounding the only one.
        let units = (size * power_of_two(self.mantissa as i32 - exponent)).round_ties_even();
        let magnitude = f64::from((exponent - first) << self.mantissa) + units;
        let magnitude = if magnitude <= f64::from(self.largest) {
            magnitude as u8
        } else if saturate {
            self.largest
        } else {
            match (self.infinity, self.nan) {
                (Some(infinity), _) => infinity,
                (None, Some(nan)) => return nan,
                (None, None) => self.largest,
            }
        };
        let negative = value.is_sign_negative() && (magnitude != 0 || self.signed_zero);
        magnitude | if negative { self.sign() } else { 0 }
    }
}

/// 2^n, exact, for n within f64's normal range.
fn power_of_two(n: i32) -> f64 {
    f64::from_bits(((n + 1023) as u64) << 52)
}

/// The number that a storage float's bits are.
pub(crate) fn decode(dtype: DType, bits: u8) -> f64 {
    match (FloatFormat::of(dtype), bits) {
        (Some(format), _) => format.decode(bits),
        (None, 0xff) => f64::NAN,
        (None, exponent) => power_of_two(i32::from(exponent) - 127),
    }
}

/// The bits of the storage float nearest to `value`. What is too large becomes the largest finite number or, unless it
/// saturates, an infinity or NaN; so does what f8e8m0fnu has nothing small enough for.
pub fn encode(dtype: DType, value: f64, saturate: bool) -> u8 {
    match FloatFormat::of(dtype) {
        Some(format) => format.encode(value, saturate),
        None => encode_power(value as f32, saturate),
    }
}

/// The biased exponent of the nearest power of two, ties to the larger.
fn encode_power(value: f32, saturate: bool) -> u8 {
    const NAN: u8 = 0xff;
    const SMALLEST: u32 = 0x0040_0000;
    let bits = value.to_bits();
    if value.is_nan() || value < 0.0 {
        return NAN;
    }
    let magnitude = bits & 0x7fff_ffff;
    if magnitude < SMALLEST {
        return if saturate { 0 } else { NAN };
    }
    // Below 2^-126 an f32 is denormal: half way from 2^-127 up is one and a half times its bits, not half a step more.
    let half = if magnitude < 0x0080_0000 {
        0x0020_0000
    } else {
        0x0040_0000
    };
    let exponent = ((magnitude + half) >> 23) as u8;
    exponent.min(if saturate { NAN - 1 } else { NAN })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Scalar;

    fn floats() -> impl Iterator<Item = DType> {
        DType::ALL.into_iter().filter(|d| d.is_storage_float())
    }

    #[test]
    fn every_value_converts_to_itself_through_each_wider_type() {
        for dtype in DType::ALL.into_iter().filter(|d| d.is_storage()) {
            for bits in 0..1u64 << dtype.value_bits() {
                let value = Scalar::from_bits(dtype, bits);
                for through in [DType::F32, DType::F64] {
                    let back = value.convert(through).convert(dtype);
                    let infinite = value.as_f64().is_infinite();
                    assert!(
                        back == value || (value.is_nan() && back.is_nan()) || infinite,
                        "{dtype} {bits:#x} through {through}: {back}"
                    );
                }
            }
        }
    }

    #[test]
    fn rounding_is_to_the_nearer_neighbour_and_to_even_between() {
        for dtype in floats().filter(|&d| d != DType::F8E8M0FNU) {
            let format = FloatFormat::of(dtype).unwrap();
            for low in 0..format.largest {
                let (a, b) = (format.decode(low), format.decode(low + 1));
                let middle = (a + b) / 2.0;
                let even = if low % 2 == 0 { low } else { low + 1 };
                assert_eq!(encode(dtype, middle, true), even, "{dtype} between {a} and {b}");
                assert_eq!(encode(dtype, middle.next_down(), true), low);
                assert_eq!(encode(dtype, middle.next_up(), true), low + 1);
            }
        }
    }

    #[test]
    fn what_is_too_large_saturates_or_becomes_what_the_format_has() {
        for (dtype, beyond) in [
            (DType::F8E4M3FN, 0x7f),
            (DType::F8E4M3FNUZ, 0x80),
            (DType::F8E5M2, 0x7c),
            (DType::F8E5M2FNUZ, 0x80),
            (DType::F4E2M1FN, 0x7),
            (DType::F8E8M0FNU, 0xff),
        ] {
            for large in [f64::INFINITY, 1e39, f64::MAX] {
                assert_eq!(encode(dtype, large, false), beyond, "{dtype}");
                assert_eq!(Scalar::from_f64(dtype, large), dtype.highest(), "{dtype}");
            }
        }
        assert_eq!(encode(DType::F8E4M3FN, 464.0, false), 0x7e);
        assert_eq!(encode(DType::F8E4M3FN, 464.1, false), 0x7f);
    }

    #[test]
    fn powers_of_two_round_ties_up_and_have_no_zero() {
        let e = |v: f64| encode(DType::F8E8M0FNU, v, true);
        assert_eq!([e(1.0), e(1.49), e(1.5), e(3.0)], [127, 127, 128, 129]);
        assert_eq!([e(0.0), e(-0.0), e(1e-40), e(f64::NAN), e(-1.0)], [0, 0, 0, 255, 255]);
        let smallest = 2f64.powi(-127);
        assert_eq!([e(smallest), e(smallest * 1.49), e(smallest * 1.5)], [0, 0, 1]);
        assert_eq!(encode(DType::F8E8M0FNU, 0.0, false), 255);
    }
}
