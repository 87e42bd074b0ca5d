//! exp, exp2, expm1 and the logistic function.
//!
//! `e^x = 2^n e^r` with `n` from the magic-constant rounding. Where a result may be subnormal or close to overflow,
//! `2^n` does not exist as a float, so the scale is applied as two factors; the first product is always exact and
//! normal, and only the second rounds, so gradual underflow costs no second rounding.

use super::{Emit, Format};

/// `e^(sign a)` as `(p, s)` with the value `p s s`, for `EXP_LOW <= sign a <= EXP_HIGH + 1`; `sign` is 1 or -1.
///
/// Reducing by 2 ln 2 instead of ln 2 makes `n` even, so that both factors are the same `s`: one more coefficient
/// saves the three instructions that split an odd `n`.
#[inline(always)]
pub(super) fn exp_parts<F: Format, E: Emit>(e: &mut E, a: E::V, sign: f64) -> (E::V, E::V) {
    let rate = F::float(e, sign * 0.5 * F::LOG2_E[0]);
    let magic = F::float(e, F::MAGIC);
    let sum = e.fma(a, rate, magic);
    let n = e.sub(sum, magic);
    // r = sign (a sign - 2 n ln 2)
    let high = F::float(e, -sign * 2.0 * F::LN2[0]);
    let low = F::float(e, -sign * 2.0 * F::LN2[1]);
    let r = e.fma(n, high, a);
    let r = e.fma(n, low, r);
    let q = F::polynomial(e, r, F::EXP, sign);
    let first = F::float(e, sign);
    let q = e.fma(q, r, first);
    let one = F::float(e, 1.0);
    let p = e.fma(q, r, one);
    let bits = e.to_bits(sum);
    let exponent = e.shl(bits, F::SIGNIFICAND_BITS);
    let one_bits = F::int(e, F::ONE_BITS);
    let scale = e.int_add(exponent, one_bits);
    (p, e.from_bits(scale))
}

#[inline(always)]
pub(super) fn exp<F: Format, E: Emit>(e: &mut E, x: E::V) -> E::V {
    let high = F::float(e, F::EXP_HIGH);
    let low = F::float(e, F::EXP_LOW);
    let x = e.min(high, x);
    let x = e.max(low, x);
    let (p, s) = exp_parts::<F, E>(e, x, 1.0);
    let p = e.mul(p, s);
    e.mul(p, s)
}

/// `2^(x + low)` for `|x|` not above twice the exponent range; `low` is a small correction.
///
/// `|r| <= 1/2`, so that integers have `r = 0` and are exact.
#[inline(always)]
pub(super) fn exp2_extended<F: Format, E: Emit>(e: &mut E, x: E::V, low: Option<E::V>) -> E::V {
    let (sum, n) = F::round_magic(e, x);
    let mut r = e.sub(x, n);
    if let Some(low) = low {
        r = e.add(r, low);
    }
    let q = F::polynomial(e, r, F::EXP2, 1.0);
    let one = F::float(e, 1.0);
    let p = e.fma(q, r, one);
    // n = floor(n / 2) + (n - floor(n / 2)), each in the exponent field
    let bits = e.to_bits(sum);
    let whole = e.shl(bits, F::SIGNIFICAND_BITS);
    let half = e.shl(bits, F::SIGNIFICAND_BITS - 1);
    let field = F::int(e, -(1_i64 << F::SIGNIFICAND_BITS));
    let half = e.int_and(half, field);
    let rest = e.int_sub(whole, half);
    let one_bits = F::int(e, F::ONE_BITS);
    let half = e.int_add(half, one_bits);
    let rest = e.int_add(rest, one_bits);
    let half = e.from_bits(half);
    let rest = e.from_bits(rest);
    let p = e.mul(p, half);
    e.mul(p, rest)
}

#[inline(always)]
pub(super) fn exp2<F: Format, E: Emit>(e: &mut E, x: E::V) -> E::V {
    let high = F::float(e, F::EXP2_HIGH);
    let low = F::float(e, F::EXP2_LOW);
    let x = e.min(high, x);
    let x = e.max(low, x);
    exp2_extended::<F, E>(e, x, None)
}

/// `2^n (e^r - 1) + (2^n - 1)`, halved so that n = 1024 (or 128) has a scale; n = 0 is taken apart because halving a
/// subnormal would round.
#[inline(always)]
pub(super) fn expm1<F: Format, E: Emit>(e: &mut E, x: E::V) -> E::V {
    let high = F::float(e, F::EXP_HIGH);
    let low = F::float(e, -F::EXPM1_FLAT);
    let x = e.min(high, x);
    let clamped = e.max(low, x);
    let rate = F::float(e, F::LOG2_E[0]);
    let magic = F::float(e, F::MAGIC);
    let sum = e.fma(clamped, rate, magic);
    let n = e.sub(sum, magic);
    let high = F::float(e, -F::LN2[0]);
    let low = F::float(e, -F::LN2[1]);
    let r = e.fma(n, high, clamped);
    let r = e.fma(n, low, r);
    let q = F::polynomial(e, r, F::EXPM1, 1.0);
    let square = e.mul(r, r);
    let p = e.fma(q, square, r);
    let bits = e.to_bits(sum);
    let exponent = e.shl(bits, F::SIGNIFICAND_BITS);
    let half_bits = F::int(e, F::bits_of(0.5));
    let scale = e.int_add(exponent, half_bits);
    let scale = e.from_bits(scale);
    let half = F::float(e, 0.5);
    let offset = e.sub(scale, half);
    let y = e.fma(scale, p, offset);
    let y = e.add(y, y);
    let zero = F::float(e, 0.0);
    let unscaled = e.eq(n, zero);
    let y = e.select(unscaled, p, y);
    let is_zero = e.eq(x, zero);
    e.select(is_zero, x, y)
}

/// With `u = e^-|x|`: `1 / (1 + u)` or `u / (1 + u)`. Nothing overflows, and the left tail underflows gradually.
#[inline(always)]
pub(super) fn sigmoid<F: Format, E: Emit>(e: &mut E, x: E::V) -> E::V {
    let a = e.abs(x);
    let high = F::float(e, -F::EXP_LOW);
    let a = e.min(high, a);
    let (p, s) = exp_parts::<F, E>(e, a, -1.0);
    let p = e.mul(p, s);
    let u = e.mul(p, s);
    let one = F::float(e, 1.0);
    let zero = F::float(e, 0.0);
    let denominator = e.add(u, one);
    let negative = e.lt(x, zero);
    let numerator = e.select(negative, u, one);
    e.div(numerator, denominator)
}
