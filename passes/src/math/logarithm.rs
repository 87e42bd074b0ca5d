//! log, log2 and log1p.
//!
//! `x = 2^k m` with `m` in [sqrt(1/2), sqrt 2), `f = m - 1` exact. With `s = f / (2 + f)`, `log(1 + f) = 2 atanh(s)`, and the
//! form `f - (f^2/2 - s (f^2/2 + R(s^2)))` keeps `f` itself unrounded (the idea is that of FreeBSD msun's `e_log.c`).

use super::{Emit, Format};
use std::f64::consts::FRAC_1_SQRT_2;

/// `f - log(1 + f)` for `1 + f` in [sqrt(1/2), sqrt 2), as `a`, `b` and `c` of `a + b c`, where `a = f^2 / 2` is by far the
/// most.
#[inline(always)]
fn deficit<F: Format, E: Emit>(e: &mut E, f: E::V) -> (E::V, E::V, E::V) {
    let minus_two = F::float(e, -2.0);
    let half = F::float(e, 0.5);
    // -s, so that nothing is subtracted
    let denominator = e.sub(minus_two, f);
    let s = e.div(f, denominator);
    let z = e.mul(s, s);
    let r = F::polynomial(e, z, F::ATANH, 1.0);
    let half_f = e.mul(f, half);
    let square = e.mul(half_f, f);
    let inner = e.fma(r, z, square);
    (square, s, inner)
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

/// `(f, k)` of a positive finite normal `x`, with `k` a float.
#[inline(always)]
fn split_normal<F: Format, E: Emit>(e: &mut E, x: E::V) -> (E::V, E::V) {
    let (f, sum) = split::<F, E>(e, x);
    let taken = F::float(e, bias::<F>());
    (f, e.sub(sum, taken))
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

/// Where `x` is no positive finite normal number: one wrapping addition puts those first among the integers.
#[inline(always)]
fn is_special<F: Format, E: Emit>(e: &mut E, x: E::V) -> E::V {
    let bits = e.bits_of_float(x);
    let normal = F::bits_of(F::SMALLEST_NORMAL);
    let lowest = if F::DOUBLE { i64::MIN } else { i64::from(i32::MIN) };
    let by = F::int(e, lowest.wrapping_sub(normal));
    let ordered = e.int_add(bits, by);
    let last = F::int(e, lowest + (F::bits_of(f64::INFINITY) - normal - 1));
    e.int_lt(last, ordered)
}

/// `k ln 2 + f - deficit`.
#[inline(always)]
fn natural<F: Format, E: Emit>(e: &mut E, f: E::V, k: E::V) -> E::V {
    let (square, s, inner) = deficit::<F, E>(e, f);
    let deficit = e.fma(s, inner, square);
    let low = F::float(e, F::LN2[1]);
    let small = e.mul(k, low);
    let small = e.sub(small, deficit);
    natural_sum::<F, E>(e, f, k, small)
}

/// `k ln 2 + f + small`, where `small` has the low part of `ln 2`.
#[inline(always)]
fn natural_sum<F: Format, E: Emit>(e: &mut E, f: E::V, k: E::V, small: E::V) -> E::V {
    let high = F::float(e, F::LN2[0]);
    let y = e.add(f, small);
    e.fma(k, high, y)
}

/// `log2(1 + f) + k`.
#[inline(always)]
fn binary<F: Format, E: Emit>(e: &mut E, f: E::V, k: E::V) -> E::V {
    let (square, s, inner) = deficit::<F, E>(e, f);
    let rest = e.mul(s, inner);
    let high = F::float(e, F::LOG2_E[0]);
    let low = F::float(e, F::LOG2_E[1]);
    let minus = F::float(e, -F::LOG2_E[0]);
    let small = e.mul(f, low);
    let small = e.fma(rest, minus, small);
    let small = e.fma(square, minus, small);
    let y = e.fma(f, high, small);
    e.add(y, k)
}

/// `of(f, k)` with the specials behind one branch.
#[inline(always)]
fn logarithm<F: Format, E: Emit>(e: &mut E, x: E::V, of: impl Fn(&mut E, E::V, E::V) -> E::V) -> E::V {
    let (f, k) = split_normal::<F, E>(e, x);
    let y = of(e, f, k);
    let special = is_special::<F, E>(e, x);
    e.if_any(
        special,
        |e| {
            // Negative numbers and zeros, which data has more often, do not compute twice.
            let zero = F::float(e, 0.0);
            let normal = F::float(e, F::SMALLEST_NORMAL);
            let positive = e.lt(zero, x);
            let small = e.lt(x, normal);
            let subnormal = e.mask_and(positive, small);
            let scaled = |e: &mut E| {
                let (f, k) = split_any::<F, E>(e, x);
                of(e, f, k)
            };
            let y = e.if_any(subnormal, scaled, y);
            specials::<F, E>(e, x, y, 0.0)
        },
        y,
    )
}

#[inline(always)]
pub(super) fn log<F: Format, E: Emit>(e: &mut E, x: E::V) -> E::V {
    logarithm::<F, E>(e, x, natural::<F, E>)
}

#[inline(always)]
pub(super) fn log2<F: Format, E: Emit>(e: &mut E, x: E::V) -> E::V {
    logarithm::<F, E>(e, x, binary::<F, E>)
}

/// `1 + x` only chooses the exponent `k`; the reduced argument is `f = 2^-k x + (2^-k - 1)`, and what its rounding lost
/// over `1 + f` is added to the small part of the sum (with `1 - f` for the reciprocal).
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
    let kept = e.sub(rest, f);
    let lost = e.fma(x, scale, kept);
    let reciprocal = e.sub(one, f);
    let (square, s, inner) = deficit::<F, E>(e, f);
    let deficit = e.fma(s, inner, square);
    let low = F::float(e, F::LN2[1]);
    let small = e.mul(k, low);
    let small = e.fma(lost, reciprocal, small);
    let small = e.sub(small, deficit);
    let y = natural_sum::<F, E>(e, f, k, small);
    let zero = F::float(e, 0.0);
    let is_zero = e.eq(x, zero);
    let y = e.select(is_zero, x, y);
    let special = is_special::<F, E>(e, u);
    e.if_any(special, |e| specials::<F, E>(e, x, y, -1.0), y)
}
