//! How exactly products and functions of f32 are to be computed.
//!
//! tf32 is what matrix instructions of GPUs take in place of f32: its sign and exponent, and the upper 10 of its 23 mantissa bits
//! (PTX ISA, "Alternate Floating Point Data Formats").

use std::fmt;
use std::str::FromStr;

use crate::scalar::ScalarOp;

/// Mantissa bits of an f32 that a tf32 lacks.
const DROPPED_BITS: u32 = 13;
/// The exponent of the smallest positive tf32: subnormal numbers have the mantissa's 10 bits below 2^-126.
const SMALLEST_EXPONENT: i32 = -136;

/// How exactly f32 is computed with: a permission, of which not every device makes use.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
#[non_exhaustive]
pub enum Precision {
    /// Operands are multiplied as they are.
    #[default]
    Exact,
    /// Operands of sums of products that are added up in f32 may be rounded to tf32 ([`to_tf32`]) before they are multiplied. Products
    /// are added up in f32 as ever. A product is then off by up to 2^-10 of its size.
    Tf32,
    /// As [`Precision::Tf32`], and quotients, square roots, exponentials, logarithms, `tanh` and `erf` of f32, which those of f16 and bf16
    /// are computed by, may be off by as much as [`approximation_error`] says. GPUs have instructions for that.
    Fast,
}

impl Precision {
    /// All of them.
    pub const ALL: [Precision; 3] = [Precision::Exact, Precision::Tf32, Precision::Fast];

    /// How exactly products are computed: the part of the permission that contractions in kernels state.
    pub const fn of_products(self) -> Precision {
        match self {
            Precision::Exact => Precision::Exact,
            Precision::Tf32 | Precision::Fast => Precision::Tf32,
        }
    }

    /// Whether functions may be approximated ([`approximation_error`]).
    pub const fn approximates(self) -> bool {
        matches!(self, Precision::Fast)
    }

    /// What text calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Precision::Exact => "exact",
            Precision::Tf32 => "tf32",
            Precision::Fast => "fast",
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A word that is no [`Precision`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("unknown precision `{0}`; expected exact, tf32 or fast")]
pub struct UnknownPrecision(String);

impl FromStr for Precision {
    type Err = UnknownPrecision;

    fn from_str(text: &str) -> Result<Precision, UnknownPrecision> {
        let found = Precision::ALL.into_iter().find(|p| p.name() == text);
        found.ok_or_else(|| UnknownPrecision(text.into()))
    }
}

/// The nearest tf32, of two that are as near the one further from zero (`cvt.rna.tf32.f32`). What is too large becomes infinite.
pub fn to_tf32(value: f32) -> f32 {
    if !value.is_finite() {
        return value;
    }
    let half = 1 << (DROPPED_BITS - 1);
    f32::from_bits((value.to_bits() + half) & !((1 << DROPPED_BITS) - 1))
}

/// How far an operation of f32 may be from its meaning under [`Precision::Fast`], of operands `args` (the first is looked at) and result `value`, in place of
/// a right rounding or the ulps of [`ScalarOp::ulps`]; zero for operations that are computed as ever. Results below the normal numbers may
/// be zero. Of quotients it holds for [`DIVISORS`].
///
/// The errors are those of PTX's `ex2.approx.ftz`, `lg2.approx`, `rcp.approx.ftz`, `sqrt.approx` and `rsqrt.approx` (PTX ISA 9.0, "Floating Point
/// Instructions"), and of a product before or behind them, which for an exponential grows with its operand.
pub fn approximation_error(op: ScalarOp, args: &[f64], value: f64) -> f64 {
    const UNIT: f64 = 1.0 / (1 << 22) as f64;
    let size = value.abs();
    let operand = args.first().map_or(0.0, |x| x.abs());
    match op {
        ScalarOp::Exp => size * UNIT * (2.0 + operand) + SMALLEST_NORMAL,
        ScalarOp::Exp2 => size * 2.0 * UNIT + SMALLEST_NORMAL,
        ScalarOp::Log | ScalarOp::Log2 => (size + 1.0) * 2.0 * UNIT,
        ScalarOp::Div | ScalarOp::Sqrt | ScalarOp::Rsqrt => size * 2.0 * UNIT + SMALLEST_NORMAL,
        ScalarOp::Tanh | ScalarOp::Erf => 8.0 * UNIT,
        _ => 0.0,
    }
}

/// Sizes of divisors that quotients by approximation are right of. Smaller ones may count as zero and larger ones as infinite.
pub const DIVISORS: std::ops::RangeInclusive<f64> = SMALLEST_NORMAL..=1.0 / SMALLEST_NORMAL;

/// The smallest normal f32.
const SMALLEST_NORMAL: f64 = f32::MIN_POSITIVE as f64;

/// How far [`to_tf32`] may move a number of at most that size.
pub(crate) fn tf32_error(size: f64) -> f64 {
    // Half of the distance between neighbours.
    let dropped = 2f64.powi(DROPPED_BITS as i32 - f32::MANTISSA_DIGITS as i32);
    (size * dropped).max(2f64.powi(SMALLEST_EXPONENT - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_to_tf32_is_to_the_nearest_and_away_from_zero_between_two() {
        let ulp = 2f32.powi(-10);
        for (from, to) in [
            (1.0, 1.0),
            (1.0 + ulp / 2.0, 1.0 + ulp),
            (-1.0 - ulp / 2.0, -1.0 - ulp),
            ((1.0 + ulp / 2.0f32).next_down(), 1.0),
            (1.0 + 1.5 * ulp, 1.0 + 2.0 * ulp),
            (-0.0, -0.0),
            (f32::MAX, f32::INFINITY),
            (f32::NEG_INFINITY, f32::NEG_INFINITY),
            (2f32.powi(-136), 2f32.powi(-136)),
            (2f32.powi(-137), 2f32.powi(-136)),
            (f32::from_bits(1), 0.0),
        ] {
            assert_eq!(to_tf32(from).to_bits(), f32::to_bits(to), "{from:e}");
        }
        assert!(to_tf32(f32::NAN).is_nan());
    }

    #[test]
    fn no_number_moves_further_than_is_stated() {
        let mut rng = crate::rng::Rng::new(7);
        for _ in 0..100_000 {
            let value = f32::from_bits(rng.bits() as u32);
            let rounded = to_tf32(value);
            if value.is_finite() && rounded.is_finite() {
                let off = (f64::from(value) - f64::from(rounded)).abs();
                assert!(
                    off <= tf32_error(f64::from(value.abs())),
                    "{value:e} became {rounded:e}"
                );
                assert_eq!(to_tf32(rounded).to_bits(), rounded.to_bits());
            }
        }
    }

    #[test]
    fn every_name_reads_as_it_is_written() {
        for precision in Precision::ALL {
            assert_eq!(precision.to_string().parse(), Ok(precision));
        }
        assert!("quick".parse::<Precision>().is_err());
    }
}
