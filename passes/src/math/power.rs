//! rsqrt; pow: `2^(y log2 |x|)` with the logarithm and the product in two floats each, then the special cases.
//!
//! `log2 |x| = k + (2 / ln 2) atanh(s)`, `s = (m - 1) / (m + 1)`, `m` in [sqrt(1/2), sqrt 2). The error of the exponent
//! is that of the logarithm times up to 2^10 (f64) or 2^7 (f32), so the pair must carry 11 (8) bits more than the
//! result: f32 gets them with only `s` itself in two parts, f64 also needs the cubic term in two.

use super::exponential::exp2_extended;
use super::logarithm::split_any;
use super::{Emit, Format};

/// `1 / sqrt(x)`, within 1 ulp: not the 12-bit estimate, as division is pipelined.
#[inline(always)]
pub(super) fn rsqrt<F: Format, E: Emit>(e: &mut E, x: E::V) -> E::V {
    let one = F::float(e, 1.0);
    let root = e.sqrt(x);
    e.div(one, root)
}

/// The exact product of two floats, as its rounded value and its error.
#[inline(always)]
fn two_product<E: Emit>(e: &mut E, a: E::V, b: E::V) -> (E::V, E::V) {
    let high = e.mul(a, b);
    let minus = e.neg(high);
    (high, e.fma(a, b, minus))
}

/// `log2(a)` as high + low for positive finite `a`.
#[inline(always)]
fn log2_pair<F: Format, E: Emit>(e: &mut E, a: E::V) -> (E::V, E::V) {
    let (f, k) = split_any::<F, E>(e, a);
    // s + s_low = f / (2 + f); f is exact, 2 + f may lose bits.
    let one = F::float(e, 1.0);
    let two = F::float(e, 2.0);
    let d = e.add(f, two);
    let d_low = e.sub(d, two);
    let d_low = e.sub(f, d_low);
    let inverse = e.div(one, d);
    let s = e.mul(f, inverse);
    let minus_s = e.neg(s);
    let rest = e.fma(minus_s, d, f);
    let rest = e.fma(minus_s, d_low, rest);
    let s_low = e.mul(rest, inverse);

    let z = e.mul(s, s);
    let series = F::polynomial(e, z, F::POW_LOG, 1.0);
    let (tail, tail_low) = if F::DOUBLE {
        let minus_z = e.neg(z);
        let z_low = e.fma(s, s, minus_z);
        let twice = e.add(s_low, s_low);
        let z_low = e.fma(s, twice, z_low);
        let (cube, cube_low) = two_product(e, s, z);
        let cube_low = e.fma(s, z_low, cube_low);
        let cube_low = e.fma(z, s_low, cube_low);
        let third = F::float(e, F::THIRD[0]);
        let third_low = F::float(e, F::THIRD[1]);
        let (tail, tail_low) = two_product(e, cube, third);
        let tail_low = e.fma(cube, third_low, tail_low);
        let tail_low = e.fma(cube_low, third, tail_low);
        let fifth = e.mul(cube, z);
        let tail_low = e.fma(fifth, series, tail_low);
        (tail, e.add(tail_low, s_low))
    } else {
        let cube = e.mul(s, z);
        // The cubic term's share of s_low: its derivative is s^2.
        let tail_low = e.fma(z, s_low, s_low);
        (e.mul(cube, series), tail_low)
    };
    let high = e.add(s, tail);
    let low = e.sub(s, high);
    let low = e.add(low, tail);
    let low = e.add(low, tail_low);

    // times 2 / ln 2, plus k
    let factor = F::float(e, 2.0 * F::LOG2_E[0]);
    let factor_low = F::float(e, 2.0 * F::LOG2_E[1]);
    let (product, product_low) = two_product(e, high, factor);
    let product_low = e.fma(high, factor_low, product_low);
    let product_low = e.fma(low, factor, product_low);
    let total = e.add(k, product);
    let lost = e.sub(k, total);
    let lost = e.add(lost, product);
    let rest = e.add(lost, product_low);
    if !F::DOUBLE {
        return (total, rest);
    }
    // The quintic term is still in the low part; times a large y it would carry the exponent out of the range of the
    // polynomial of 2^r.
    let high = e.add(total, rest);
    let moved = e.sub(total, high);
    (high, e.add(moved, rest))
}

#[inline(always)]
pub(super) fn pow<F: Format, E: Emit>(e: &mut E, x: E::V, y: E::V) -> E::V {
    let zero = F::float(e, 0.0);
    let one = F::float(e, 1.0);
    let half = F::float(e, 0.5);
    let infinity = F::float(e, f64::INFINITY);
    let minus_infinity = F::float(e, f64::NEG_INFINITY);
    let nan = F::float(e, f64::NAN);
    let a = e.abs(x);
    let (high, low) = log2_pair::<F, E>(e, a);
    // log2 of infinity and NaN is itself, of 0 is -infinity.
    let finite = e.lt(a, infinity);
    let high = e.select(finite, high, a);
    let is_zero = e.eq(a, zero);
    let high = e.select(is_zero, minus_infinity, high);

    let (product, product_low) = two_product(e, y, high);
    let product_low = e.fma(y, low, product_low);
    // Far outside the exponent range, or not finite, the low part does not matter and may be NaN.
    let limit = 1.25 * F::EXP2_HIGH;
    let bound = F::float(e, limit);
    let minus_bound = F::float(e, -limit);
    let size = e.abs(product);
    let near = e.lt(size, bound);
    let product_low = e.select(near, product_low, zero);
    let product = e.min(bound, product);
    let product = e.max(minus_bound, product);
    let power = exp2_extended::<F, E>(e, product, product_low);

    // 1^y, (-1)^(+-inf) and x^0 are 1 whatever the other operand, even NaN.
    let unit = e.eq(a, one);
    let power = e.select(unit, one, power);
    // A negative x: the sign of an odd y; NaN for a y that is not an integer, unless x is 0 or infinite.
    let whole = e.round_even(y);
    let is_whole = e.eq(whole, y);
    let half_y = e.mul(y, half);
    let half_whole = e.round_even(half_y);
    let even = e.eq(half_whole, half_y);
    let odd = e.mask_and_not(is_whole, even);
    let sign = F::sign(e, x);
    let flipped = F::flip(e, power, sign);
    let power = e.select(odd, flipped, power);
    let negative = e.lt(x, zero);
    let negative = e.mask_and(negative, finite);
    let undefined = e.mask_and_not(negative, is_whole);
    let power = e.select(undefined, nan, power);
    // A NaN y with |x| = 1 was given 1 above; only x = 1 keeps it.
    let ordered = e.eq(y, y);
    let power = e.select(ordered, power, y);
    let x_is_one = e.eq(x, one);
    let y_is_zero = e.eq(y, zero);
    let always_one = e.mask_or(x_is_one, y_is_zero);
    e.select(always_one, one, power)
}
