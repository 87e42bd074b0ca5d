//! The two float formats: constants, tables and the few idioms every algorithm shares.

use super::Emit;
use super::coefficients as c;

/// A float format, with the tables of its polynomials (see `coefficients.rs` for their variables and errors).
pub trait Format {
    /// True for f64.
    const DOUBLE: bool;
    /// Bits of the stored significand: 23 or 52.
    const SIGNIFICAND_BITS: u32;
    /// Bits of the float: 32 or 64.
    const WIDTH: u32;
    /// The bits of 1.0.
    const ONE_BITS: i64;
    /// The smallest normal number.
    const SMALLEST_NORMAL: f64;
    /// 1.5 * 2^SIGNIFICAND_BITS: adding it rounds to an integer, which is then in the low bits.
    const MAGIC: f64;
    /// e^x overflows above it (by less than a factor of 2).
    const EXP_HIGH: f64;
    /// e^x rounds to zero below it.
    const EXP_LOW: f64;
    /// e^x is a normal number for every |x| up to here.
    const EXP_NORMAL: f64;
    /// 2^x is a normal number for every |x| up to here.
    const EXP2_NORMAL: f64;
    /// 2^x overflows from here on.
    const EXP2_HIGH: f64;
    /// 2^x rounds to zero below it.
    const EXP2_LOW: f64;
    /// e^x - 1 rounds to -1 below the negative of it, and tanh(x / 2) to 1 above it.
    const EXPM1_FLAT: f64;
    /// erf(x) rounds to 1 above it.
    const ERF_FLAT: f64;
    /// The centre of [`Self::ERFC_ROOT`].
    const ERFC_CENTRE: f64;
    /// Largest argument of the short reduction of sin, cos and tan.
    const SHORT_REDUCTION: f64;
    /// ln 2 in two parts, the first short.
    const LN2: &'static [f64];
    /// log2 e in two parts.
    const LOG2_E: &'static [f64];
    /// pi in three parts.
    const PI: &'static [f64];
    /// 1/3 in two parts.
    const THIRD: &'static [f64];
    /// See `coefficients.rs`.
    const EXP: &'static [f64];
    /// See `coefficients.rs`.
    const EXP2: &'static [f64];
    /// See `coefficients.rs`.
    const EXPM1: &'static [f64];
    /// See `coefficients.rs`.
    const ATANH: &'static [f64];
    /// See `coefficients.rs`; f64 has one term of the series taken out.
    const POW_LOG: &'static [f64];
    /// See `coefficients.rs`.
    const SIN: &'static [f64];
    /// See `coefficients.rs`.
    const TAN: &'static [f64];
    /// See `coefficients.rs`.
    const ATAN: &'static [f64];
    /// See `coefficients.rs`.
    const ASIN: &'static [f64];
    /// See `coefficients.rs`.
    const SINH: &'static [f64];
    /// See `coefficients.rs`.
    const TANH: &'static [f64];
    /// See `coefficients.rs`.
    const ERF: &'static [f64];
    /// See `coefficients.rs`.
    const ERFC_ROOT: &'static [f64];
    /// Digits of 1 / (2 pi), SIGNIFICAND_BITS + 1 bits each.
    const INVERSE_TWO_PI: &'static [u64];
    /// How many windows of those digits the exponents of the format need.
    const WINDOWS: usize;

    /// A constant of this format.
    #[inline(always)]
    fn float<E: Emit>(e: &mut E, x: f64) -> E::V {
        if Self::DOUBLE { e.f64(x) } else { e.f32(x as f32) }
    }

    /// An integer constant of this format's width.
    #[inline(always)]
    fn int<E: Emit>(e: &mut E, x: i64) -> E::V {
        if Self::DOUBLE { e.i64(x) } else { e.i32(x as i32) }
    }

    /// The bits of `x`, which is a value of this format, as an integer.
    #[inline(always)]
    fn bits_of(x: f64) -> i64 {
        if Self::DOUBLE {
            x.to_bits() as i64
        } else {
            i64::from((x as f32).to_bits() as i32)
        }
    }

    /// `sum c_k (scale z)^k` by Horner's rule, one fma a coefficient; `scale` is a power of two, or -1.
    #[inline(always)]
    fn polynomial<E: Emit>(e: &mut E, z: E::V, coefficients: &[f64], scale: f64) -> E::V {
        Self::polynomial_scaled(e, z, coefficients, scale, 1.0)
    }

    /// `factor` (a power of two) times [`Self::polynomial`].
    #[inline(always)]
    fn polynomial_scaled<E: Emit>(e: &mut E, z: E::V, coefficients: &[f64], scale: f64, factor: f64) -> E::V {
        let mut power = factor * scale.powi(coefficients.len() as i32 - 1);
        let mut sum = Self::float(e, coefficients.last().copied().unwrap_or(0.0) * power);
        for &coefficient in coefficients.iter().rev().skip(1) {
            power /= scale;
            let next = Self::float(e, coefficient * power);
            sum = e.fma(sum, z, next);
        }
        sum
    }

    /// The sign bit of `x`, as an integer.
    #[inline(always)]
    fn sign<E: Emit>(e: &mut E, x: E::V) -> E::V {
        let bits = e.bits_of_float(x);
        let mask = Self::int(e, if Self::DOUBLE { i64::MIN } else { i64::from(i32::MIN) });
        e.int_and(bits, mask)
    }

    /// `x` with its sign flipped where `sign` (from [`Self::sign`]) is set.
    #[inline(always)]
    fn flip<E: Emit>(e: &mut E, x: E::V, sign: E::V) -> E::V {
        let bits = e.bits_of_float(x);
        let flipped = e.int_xor(bits, sign);
        e.float_of_bits(flipped)
    }
}

/// f32 with i32.
#[derive(Clone, Copy, Debug)]
pub struct Single;

/// f64 with i64.
#[derive(Clone, Copy, Debug)]
pub struct Double;

impl Format for Single {
    const DOUBLE: bool = false;
    const SIGNIFICAND_BITS: u32 = 23;
    const WIDTH: u32 = 32;
    const ONE_BITS: i64 = 0x3f80_0000;
    const SMALLEST_NORMAL: f64 = f32::MIN_POSITIVE as f64;
    const MAGIC: f64 = 12_582_912.0;
    const EXP_HIGH: f64 = 89.0;
    const EXP_LOW: f64 = -104.5;
    const EXP_NORMAL: f64 = 87.0;
    const EXP2_NORMAL: f64 = 126.0;
    const EXP2_HIGH: f64 = 128.0;
    const EXP2_LOW: f64 = -151.0;
    const EXPM1_FLAT: f64 = 20.0;
    const ERF_FLAT: f64 = 4.0;
    const ERFC_CENTRE: f64 = 2.5;
    const SHORT_REDUCTION: f64 = 65_536.0;
    const LN2: &'static [f64] = c::F32_LN2;
    const LOG2_E: &'static [f64] = c::F32_LOG2_E;
    const PI: &'static [f64] = c::F32_PI;
    const THIRD: &'static [f64] = c::F32_THIRD;
    const EXP: &'static [f64] = c::F32_EXP;
    const EXP2: &'static [f64] = c::F32_EXP2;
    const EXPM1: &'static [f64] = c::F32_EXPM1;
    const ATANH: &'static [f64] = c::F32_ATANH;
    const POW_LOG: &'static [f64] = c::F32_POW_LOG;
    const SIN: &'static [f64] = c::F32_SIN;
    const TAN: &'static [f64] = c::F32_TAN;
    const ATAN: &'static [f64] = c::F32_ATAN;
    const ASIN: &'static [f64] = c::F32_ASIN;
    const SINH: &'static [f64] = c::F32_SINH;
    const TANH: &'static [f64] = c::F32_TANH;
    const ERF: &'static [f64] = c::F32_ERF;
    const ERFC_ROOT: &'static [f64] = c::F32_ERFC_ROOT;
    const INVERSE_TWO_PI: &'static [u64] = c::F32_INVERSE_TWO_PI;
    const WINDOWS: usize = 5;
}

impl Format for Double {
    const DOUBLE: bool = true;
    const SIGNIFICAND_BITS: u32 = 52;
    const WIDTH: u32 = 64;
    const ONE_BITS: i64 = 0x3ff0_0000_0000_0000;
    const SMALLEST_NORMAL: f64 = f64::MIN_POSITIVE;
    const MAGIC: f64 = 6_755_399_441_055_744.0;
    const EXP_HIGH: f64 = 710.0;
    const EXP_LOW: f64 = -746.0;
    const EXP_NORMAL: f64 = 708.0;
    const EXP2_NORMAL: f64 = 1022.0;
    const EXP2_HIGH: f64 = 1024.0;
    const EXP2_LOW: f64 = -1076.0;
    const EXPM1_FLAT: f64 = 40.0;
    const ERF_FLAT: f64 = 6.0;
    const ERFC_CENTRE: f64 = 3.0;
    const SHORT_REDUCTION: f64 = 1_048_576.0;
    const LN2: &'static [f64] = c::F64_LN2;
    const LOG2_E: &'static [f64] = c::F64_LOG2_E;
    const PI: &'static [f64] = c::F64_PI;
    const THIRD: &'static [f64] = c::F64_THIRD;
    const EXP: &'static [f64] = c::F64_EXP;
    const EXP2: &'static [f64] = c::F64_EXP2;
    const EXPM1: &'static [f64] = c::F64_EXPM1;
    const ATANH: &'static [f64] = c::F64_ATANH;
    const POW_LOG: &'static [f64] = c::F64_POW_LOG;
    const SIN: &'static [f64] = c::F64_SIN;
    const TAN: &'static [f64] = c::F64_TAN;
    const ATAN: &'static [f64] = c::F64_ATAN;
    const ASIN: &'static [f64] = c::F64_ASIN;
    const SINH: &'static [f64] = c::F64_SINH;
    const TANH: &'static [f64] = c::F64_TANH;
    const ERF: &'static [f64] = c::F64_ERF;
    const ERFC_ROOT: &'static [f64] = c::F64_ERFC_ROOT;
    const INVERSE_TWO_PI: &'static [u64] = c::F64_INVERSE_TWO_PI;
    const WINDOWS: usize = 19;
}
