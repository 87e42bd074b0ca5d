//! log, log2 and log1p.
//!
//! `x = 2^k m` with `m` in [sqrt(1/2), sqrt 2), `f = m - 1` exact. With `s = f / (2 + f)`, `log(1 + f) = 2 atanh(s)`, and the
//! form `f - (f^2/2 - s (f^2/2 + R(s^2)))` keeps `f` itself unrounded (the idea is that of FreeBSD msun's `e_log.c`).

use super::{Emit, Format};
use std::f64::consts::FRAC_1_SQRT_2;

/// `f - log(1 + f)` for `1 + f` in [sqrt(1/2), sqrt 2).
#[inline(always)]
fn deficit<F: Format, E: Emit>(e: &mut E, f: E::V) -> E::V {
    let minus_two = F::float(e, -2.0);
    let half = F::float(e, 0.5);
    // -s, so that the last step is an fma
    let denominator = e.sub(minus_two, f);
    let s = e.div(f, denominator);
    let z = e.mul(s, s);
    let r = F::polynomial(e, z, F::ATANH, 1.0);
    let half_f = e.mul(f, half);
    let square = e.mul(half_f, f);
    let inner = e.fma(r, z, square);
    e.fma(s, inner, square)
}

/// Splits a positive finite normal `x`: `m - 1` with `m` in [sqrt(1/2), sqrt 2), and the exponent in a magic sum
/// `2^SIGNIFICAND_BITS + bias + k`.
#[inline(always)]
fn split<F: Format, E: Emit>(e: &mut E, x: E::V) -> (E::V, E::V) {
    let root_half = F::bits_of(FRAC_1_SQRT_2);
    let offset = F::int(e, F::ONE_BITS - root_half);
    let bits = e.bits_of_float(x);
    let shifted = e.int_add(bits, offset);
    let field = F::int(e, (1_i64 << F::SIGNIFICAND_BITS) - 1);
    let fraction = e.int_and(shifted, field);
    let base = F::int(e, root_half);
    let m = e.int_add(fraction, base);
    let m = e.float_of_bits(m);
    let one = F::float(e, 1.0);
    let f = e.sub(m, one);
    let exponent = e.shr(shifted, F::SIGNIFICAND_BITS);
    let magic = F::int(e, F::bits_of(f64::from(F::SIGNIFICAND_BITS).exp2()));
    let sum = e.int_or(exponent, magic);
    (f, e.float_of_bits(sum))
}

/// What to take from the magic sum of [`split`] for the exponent of `x` itself.
fn bias<F: Format>() -> f64 {
    f64::from(F::SIGNIFICAND_BITS).exp2() + (F::ONE_BITS >> F::SIGNIFICAND_BITS) as f64
}

/// `(f, k)` of any positive finite `x`, subnormal ones included, with `k` a float.
#[inline(always)]
pub(super) fn split_any<F: Format, E: Emit>(e: &mut E, x: E::V) -> (E::V, E::V) {
    let normal = F::float(e, F::SMALLEST_NORMAL);
    let scale_bits = f64::from(F::SIGNIFICAND_BITS + 2);
    let scale = F::float(e, scale_bits.exp2());
    let subnormal = e.lt(x, normal);
    let scaled = e.mul(x, scale);
    let x = e.select(subnormal, scaled, x);
    let (f, sum) = split::<F, E>(e, x);
    let plain = F::float(e, bias::<F>());
    let raised = F::float(e, bias::<F>() + scale_bits);
    let taken = e.select(subnormal, raised, plain);
    (f, e.sub(sum, taken))
}

/// Puts the logarithm's specials around `y`: -inf at `zero_at`, NaN below, and `x` itself at infinity and NaN.
#[inline(always)]
fn specials<F: Format, E: Emit>(e: &mut E, x: E::V, y: E::V, zero_at: f64) -> E::V {
    let infinity = F::float(e, f64::INFINITY);
    let minus_infinity = F::float(e, f64::NEG_INFINITY);
    let nan = F::float(e, f64::NAN);
    let zero = F::float(e, zero_at);
    let finite = e.lt(x, infinity);
    let y = e.select(finite, y, x);
    let at_zero = e.eq(x, zero);
    let y = e.select(at_zero, minus_infinity, y);
    let below = e.lt(x, zero);
    e.select(below, nan, y)
}

/// `k ln 2 + f - deficit`.
#[inline(always)]
fn natural<F: Format, E: Emit>(e: &mut E, f: E::V, k: E::V) -> E::V {
    let deficit = deficit::<F, E>(e, f);
    let high = F::float(e, F::LN2[0]);
    let low = F::float(e, F::LN2[1]);
    let small = e.mul(k, low);
    let small = e.sub(small, deficit);
    let y = e.add(f, small);
    e.fma(k, high, y)
}

#[inline(always)]
pub(super) fn log<F: Format, E: Emit>(e: &mut E, x: E::V) -> E::V {
    let (f, k) = split_any::<F, E>(e, x);
    let y = natural::<F, E>(e, f, k);
    specials::<F, E>(e, x, y, 0.0)
}

#[inline(always)]
pub(super) fn log2<F: Format, E: Emit>(e: &mut E, x: E::V) -> E::V {
    let (f, k) = split_any::<F, E>(e, x);
    let deficit = deficit::<F, E>(e, f);
    let high = F::float(e, F::LOG2_E[0]);
    let low = F::float(e, F::LOG2_E[1]);
    let minus = F::float(e, -F::LOG2_E[0]);
    let small = e.mul(f, low);
    let small = e.fma(deficit, minus, small);
    let y = e.fma(f, high, small);
    let y = e.add(y, k);
    specials::<F, E>(e, x, y, 0.0)
}

/// `1 + x` only chooses the exponent `k`; the reduced argument is `2^-k x + (2^-k - 1)`, one rounding, no division.
#[inline(always)]
pub(super) fn log1p<F: Format, E: Emit>(e: &mut E, x: E::V) -> E::V {
    let one = F::float(e, 1.0);
    let root_half = F::bits_of(FRAC_1_SQRT_2);
    let offset = F::int(e, F::ONE_BITS - root_half);
    let u = e.add(x, one);
    let bits = e.bits_of_float(u);
    let shifted = e.int_add(bits, offset);
    let field = F::int(e, -(1_i64 << F::SIGNIFICAND_BITS));
    // (k + bias) in the exponent field; 2^-k is built four times as large, for k may be one above the largest exponent.
    let exponent = e.int_and(shifted, field);
    let mirror = F::int(e, F::ONE_BITS.wrapping_add(F::bits_of(4.0)));
    let scale = e.int_sub(mirror, exponent);
    let scale = e.float_of_bits(scale);
    let quarter = F::float(e, 0.25);
    let scale = e.mul(scale, quarter);
    let rest = e.sub(scale, one);
    let f = e.fma(x, scale, rest);
    let exponent = e.shr(exponent, F::SIGNIFICAND_BITS);
    let magic = F::int(e, F::bits_of(f64::from(F::SIGNIFICAND_BITS).exp2()));
    let sum = e.int_or(exponent, magic);
    let sum = e.float_of_bits(sum);
    let taken = F::float(e, bias::<F>());
    let k = e.sub(sum, taken);
    let y = natural::<F, E>(e, f, k);
    let zero = F::float(e, 0.0);
    let is_zero = e.eq(x, zero);
    let y = e.select(is_zero, x, y);
    specials::<F, E>(e, x, y, -1.0)
}
