//! Floating-point numbers by their bits, as the processor computes with them in its default mode.
//!
//! What is no NaN is computed by the host, whose arithmetic is IEEE 754's; which NaN comes of one is said here, for hosts differ in it.

use crate::state::Lane;

/// A float's bits: u32 is f32, u64 is f64.
pub(crate) trait Real: Lane + Eq + std::fmt::LowerHex {
    /// The NaN of an operation without a meaning.
    const INDEFINITE: Self;
    fn is_nan(self) -> bool;
    /// Whether it is a NaN that signals.
    fn signals(self) -> bool;
    /// The NaN, made quiet.
    fn quiet(self) -> Self;
    /// Its value, which f64 holds exactly; that of a NaN means nothing.
    fn value(self) -> f64;
    /// The number that is nearest to a value.
    fn nearest(value: f64) -> Self;
    fn is_negative(self) -> bool;
    fn with_sign(self, negative: bool) -> Self;
    fn sum(self, other: Self) -> Self;
    fn difference(self, other: Self) -> Self;
    fn product(self, other: Self) -> Self;
    fn quotient(self, other: Self) -> Self;
    fn fused(self, times: Self, plus: Self) -> Self;
    fn root(self) -> Self;
}

macro_rules! real {
    ($bits:ty, $float:ty, $indefinite:literal, $quiet:literal, $exponent:literal) => {
        impl Real for $bits {
            const INDEFINITE: $bits = $indefinite;

            fn is_nan(self) -> bool {
                self & !(1 << (<$bits>::BITS - 1)) > $exponent
            }

            fn signals(self) -> bool {
                self.is_nan() && self & $quiet == 0
            }

            fn quiet(self) -> $bits {
                self | $quiet
            }

            fn value(self) -> f64 {
                <$float>::from_bits(self).into()
            }

            fn nearest(value: f64) -> $bits {
                (value as $float).to_bits()
            }

            fn is_negative(self) -> bool {
                self >> (<$bits>::BITS - 1) != 0
            }

            fn with_sign(self, negative: bool) -> $bits {
                let sign = 1 << (<$bits>::BITS - 1);
                if negative { self | sign } else { self & !sign }
            }

            fn sum(self, other: $bits) -> $bits {
                (<$float>::from_bits(self) + <$float>::from_bits(other)).to_bits()
            }

            fn difference(self, other: $bits) -> $bits {
                (<$float>::from_bits(self) - <$float>::from_bits(other)).to_bits()
            }

            fn product(self, other: $bits) -> $bits {
                (<$float>::from_bits(self) * <$float>::from_bits(other)).to_bits()
            }

            fn quotient(self, other: $bits) -> $bits {
                (<$float>::from_bits(self) / <$float>::from_bits(other)).to_bits()
            }

            fn fused(self, times: $bits, plus: $bits) -> $bits {
                let [x, y, z] = [self, times, plus].map(<$float>::from_bits);
                x.mul_add(y, z).to_bits()
            }

            fn root(self) -> $bits {
                <$float>::from_bits(self).sqrt().to_bits()
            }
        }
    };
}

real!(u32, f32, 0xffc0_0000, 0x0040_0000, 0x7f80_0000);
real!(
    u64,
    f64,
    0xfff8_0000_0000_0000,
    0x0008_0000_0000_0000,
    0x7ff0_0000_0000_0000
);

/// The result of an operation that was computed, with the NaN that an operation without a meaning gives.
fn meant<R: Real>(result: R) -> R {
    if result.is_nan() { R::INDEFINITE } else { result }
}

/// The NaN of operands, if there is one: the first.
fn given<R: Real>(operands: &[R]) -> Option<R> {
    operands.iter().find(|x| x.is_nan()).map(|x| x.quiet())
}

/// An operation of two operands.
pub(crate) fn arithmetic<R: Real>(a: R, b: R, of: impl Fn(R, R) -> R) -> R {
    given(&[a, b]).unwrap_or_else(|| meant(of(a, b)))
}

/// `a * b + c`, rounded once. Of NaNs it is the first in this order.
pub(crate) fn multiply_add<R: Real>(a: R, b: R, c: R) -> R {
    given(&[a, b, c]).unwrap_or_else(|| meant(a.fused(b, c)))
}

/// A square root.
pub(crate) fn square_root<R: Real>(a: R) -> R {
    given(&[a]).unwrap_or_else(|| meant(a.root()))
}

/// The greater of two; the second if they are not ordered, or zeros. It is not made quiet.
pub(crate) fn maximum<R: Real>(a: R, b: R) -> R {
    match !a.is_nan() && !b.is_nan() && a.value() > b.value() {
        true => a,
        false => b,
    }
}

/// The lesser of two, as [`maximum`].
pub(crate) fn minimum<R: Real>(a: R, b: R) -> R {
    match !a.is_nan() && !b.is_nan() && a.value() < b.value() {
        true => a,
        false => b,
    }
}

/// How to round to an integer, or to fewer bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rounding {
    Nearest,
    Down,
    Up,
    Zero,
}

impl Rounding {
    /// What the low bits of an immediate say; with the third one it is the mode of the processor, which is the default here.
    pub(crate) fn of(imm: u8) -> Rounding {
        match imm & 7 {
            1 => Rounding::Down,
            2 => Rounding::Up,
            3 => Rounding::Zero,
            _ => Rounding::Nearest,
        }
    }

    fn integer(self, x: f64) -> f64 {
        match self {
            Rounding::Nearest => x.round_ties_even(),
            Rounding::Down => x.floor(),
            Rounding::Up => x.ceil(),
            Rounding::Zero => x.trunc(),
        }
    }
}

/// `vrndscale`, and `vround` where the high bits are 0: rounds to a multiple of 2 to minus the immediate's high bits.
pub(crate) fn rounded<R: Real>(a: R, imm: u8) -> R {
    if a.is_nan() {
        return a.quiet();
    }
    let places = i32::from(imm >> 4);
    let x = a.value();
    // Larger ones are such multiples already, and would not be if they overflowed.
    if x.abs() >= 2f64.powi(52) {
        return a;
    }
    R::nearest(Rounding::of(imm).integer(x * 2f64.powi(places)) * 2f64.powi(-places)).with_sign(a.is_negative())
}

/// `vrange`: the lesser or greater of two numbers or of their magnitudes, with a sign that the immediate says.
pub(crate) fn range<R: Real>(a: R, b: R, imm: u8) -> R {
    if a.signals() {
        return a.quiet();
    }
    if b.signals() {
        return b.quiet();
    }
    let chosen = match (a.is_nan(), b.is_nan()) {
        (true, false) => b,
        (_, true) => a,
        (false, false) => {
            let (x, y) = (a.value(), b.value());
            let order = match imm & 2 {
                0 => x.total_cmp(&y),
                // Of equal magnitudes the negative one is the lesser.
                _ => x.abs().total_cmp(&y.abs()).then(x.total_cmp(&y)),
            };
            match (imm & 1 == 0) == order.is_le() {
                true => a,
                false => b,
            }
        }
    };
    match imm >> 2 & 3 {
        // The sign of the first operand, be it a NaN.
        0 => chosen.with_sign(a.is_negative()),
        1 => chosen,
        2 => chosen.with_sign(false),
        _ => chosen.with_sign(true),
    }
}

/// `vscalef` of f32: `a` times 2 to the floor of `b`.
pub(crate) fn scaled(a: u32, b: u32) -> u32 {
    if a.is_nan() {
        return match b {
            _ if a.signals() || b.is_nan() => a.quiet(),
            0x7f80_0000 => b,
            0xff80_0000 => 0,
            _ => a,
        };
    }
    if b.is_nan() {
        return b.quiet();
    }
    let (x, y) = (a.value(), b.value());
    match (x, y) {
        _ if x.is_infinite() && y == f64::NEG_INFINITY => u32::INDEFINITE,
        _ if x == 0.0 && y == f64::INFINITY => u32::INDEFINITE,
        _ if x == 0.0 || x.is_infinite() => a,
        _ => {
            // Exact in f64 between these bounds, beyond which it is infinite or zero anyway.
            let power = y.floor().clamp(-400.0, 400.0) as i32;
            u32::nearest(x * 2f64.powi(power))
        }
    }
}

/// Whether a predicate of `vcmpps` holds.
pub(crate) fn compares<R: Real>(a: R, b: R, predicate: u8) -> bool {
    let unordered = a.is_nan() || b.is_nan();
    let (x, y) = (a.value(), b.value());
    // Bit 4 changes only which NaNs signal.
    match predicate & 15 {
        0 => !unordered && x == y,
        1 => !unordered && x < y,
        2 => !unordered && x <= y,
        3 => unordered,
        4 => unordered || x != y,
        5 => unordered || x >= y,
        6 => unordered || x > y,
        7 => !unordered,
        8 => unordered || x == y,
        9 => unordered || x < y,
        10 => unordered || x <= y,
        11 => false,
        12 => !unordered && x != y,
        13 => !unordered && x >= y,
        14 => !unordered && x > y,
        _ => true,
    }
}

/// An f32 as an f64.
pub(crate) fn widened(a: u32) -> u64 {
    match a.is_nan() {
        true => u64::from(a >> 31) << 63 | 0x7ff8_0000_0000_0000 | u64::from(a & 0x003f_ffff) << 29,
        false => a.value().to_bits(),
    }
}

/// An f64 as an f32.
pub(crate) fn narrowed(a: u64) -> u32 {
    match a.is_nan() {
        true => (a >> 63 << 31) as u32 | 0x7fc0_0000 | (a >> 29) as u32 & 0x003f_ffff,
        false => u32::nearest(a.value()),
    }
}

/// An f16 as an f32.
pub(crate) fn of_half(a: u16) -> u32 {
    let (sign, exponent, fraction) = (u32::from(a) >> 15 << 31, a >> 10 & 31, u32::from(a & 0x3ff));
    match exponent {
        0 => sign | (fraction as f32 * 2f32.powi(-24)).to_bits(),
        31 if fraction == 0 => sign | 0x7f80_0000,
        31 => sign | 0x7fc0_0000 | fraction << 13,
        _ => sign | (u32::from(exponent) + 112) << 23 | fraction << 13,
    }
}

/// An f32 as an f16.
pub(crate) fn half(a: u32, rounding: Rounding) -> u16 {
    let sign = (a >> 31 << 15) as u16;
    if a.is_nan() {
        return sign | 0x7e00 | (a >> 13) as u16 & 0x1ff;
    }
    let x = a.value().abs();
    if x.is_infinite() {
        return sign | 0x7c00;
    }
    // Away from zero is up for positive numbers and down for negative ones.
    let rounding = match (rounding, sign != 0) {
        (Rounding::Down, true) => Rounding::Up,
        (Rounding::Up, true) | (Rounding::Down, false) => Rounding::Zero,
        (other, _) => other,
    };
    // Units of the last place; f32's own exponent is that of a number that is not subnormal.
    let exponent = ((a >> 23 & 0xff) as i32 - 127).max(-14);
    let mut units = rounding.integer(x * 2f64.powi(10 - exponent));
    let mut exponent = exponent;
    if units >= 2048.0 {
        (units, exponent) = (units / 2.0, exponent + 1);
    }
    if exponent > 15 {
        return sign | if rounding == Rounding::Zero { 0x7bff } else { 0x7c00 };
    }
    // Of a subnormal number the leading bit is missing, and the exponent's field is one less.
    sign | ((((exponent + 14) as u16) << 10) + units as u16)
}

/// An integer that floats are converted to: out of range it is the one that says so.
pub(crate) trait Integer: Lane {
    fn of(x: f64) -> Self;
}

macro_rules! integer {
    ($($t:ty: $range:expr, $indefinite:expr;)*) => {$(
        impl Integer for $t {
            /// Of an integral value, or a NaN.
            fn of(x: f64) -> $t {
                match $range.contains(&x) {
                    true => x as $t,
                    false => $indefinite,
                }
            }
        }
    )*};
}

integer! {
    i32: (-2147483648.0..2147483648.0), i32::MIN;
    u32: (0.0..4294967296.0), u32::MAX;
    i64: (-9223372036854775808.0..9223372036854775808.0), i64::MIN;
    u64: (0.0..18446744073709551616.0), u64::MAX;
}

/// A float as an integer, rounded.
pub(crate) fn to_integer<R: Real, I: Integer>(a: R, rounding: Rounding) -> I {
    match a.is_nan() {
        true => I::of(f64::NAN),
        false => I::of(rounding.integer(a.value())),
    }
}
