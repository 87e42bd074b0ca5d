//! asin, acos, atan and atan2.

use super::{Emit, Format};
use std::f64::consts::{FRAC_PI_2, PI};

/// `(s, c)` with `asin(|x|) = s + c`, or `pi/2 - 2 (s + c)` where the mask is true (`|x| > 1/2`, reduced by
/// `asin(x) = pi/2 - 2 asin(sqrt((1 - x) / 2))`). NaN above 1.
#[inline(always)]
fn asin_parts<F: Format, E: Emit>(e: &mut E, a: E::V) -> (E::V, E::V) {
    let half = F::float(e, 0.5);
    let minus_half = F::float(e, -0.5);
    let large = e.lt(half, a);
    let complement = e.fma(a, minus_half, half);
    let square = e.mul(a, a);
    let z = e.select(large, complement, square);
    let root = e.sqrt(z);
    let s = e.select(large, root, a);
    let p = F::polynomial(e, z, F::ASIN, 1.0);
    let cube = e.mul(z, s);
    (e.fma(cube, p, s), large)
}

/// pi/2 in two parts.
#[inline(always)]
fn right_angle<F: Format, E: Emit>(e: &mut E) -> (E::V, E::V) {
    (F::float(e, 0.5 * F::PI[0]), F::float(e, 0.5 * F::PI[1]))
}

#[inline(always)]
pub(super) fn asin<F: Format, E: Emit>(e: &mut E, x: E::V) -> E::V {
    let a = e.abs(x);
    let (p, large) = asin_parts::<F, E>(e, a);
    let (high, low) = right_angle::<F, E>(e);
    let minus_two = F::float(e, -2.0);
    let folded = e.fma(p, minus_two, low);
    let folded = e.add(folded, high);
    let y = e.select(large, folded, p);
    let sign = F::sign(e, x);
    F::flip(e, y, sign)
}

/// `pi/2 - asin(x)` in the middle, `2 p` on the right and `pi - 2 p` on the left.
#[inline(always)]
pub(super) fn acos<F: Format, E: Emit>(e: &mut E, x: E::V) -> E::V {
    let a = e.abs(x);
    let (p, large) = asin_parts::<F, E>(e, a);
    let sign = F::sign(e, x);
    let signed = F::flip(e, p, sign);
    let (high, low) = right_angle::<F, E>(e);
    let middle = e.sub(low, signed);
    let middle = e.add(middle, high);
    let zero = F::float(e, 0.0);
    let two = F::float(e, 2.0);
    let left = e.lt(x, zero);
    let half_turn = F::float(e, F::PI[0]);
    let base = e.select(left, half_turn, zero);
    let outer = e.fma(signed, two, base);
    e.select(large, outer, middle)
}

/// atan of `small / large` with `0 <= small <= large`.
#[inline(always)]
fn atan_ratio<F: Format, E: Emit>(e: &mut E, t: E::V) -> E::V {
    let z = e.mul(t, t);
    let p = F::polynomial(e, z, F::ATAN, 1.0);
    let cube = e.mul(z, t);
    e.fma(cube, p, t)
}

#[inline(always)]
pub(super) fn atan<F: Format, E: Emit>(e: &mut E, x: E::V) -> E::V {
    let a = e.abs(x);
    let one = F::float(e, 1.0);
    let numerator = e.min(one, a);
    let denominator = e.max(one, a);
    let t = e.div(numerator, denominator);
    let p = atan_ratio::<F, E>(e, t);
    let quarter = F::float(e, FRAC_PI_2);
    let folded = e.sub(quarter, p);
    let large = e.lt(one, a);
    let y = e.select(large, folded, p);
    let sign = F::sign(e, x);
    F::flip(e, y, sign)
}

/// By octant: the ratio of the smaller to the larger coordinate, then three reflections.
#[inline(always)]
pub(super) fn atan2<F: Format, E: Emit>(e: &mut E, y: E::V, x: E::V) -> E::V {
    let (across, up) = (e.abs(x), e.abs(y));
    let steep = e.lt(across, up);
    let small = e.select(steep, across, up);
    let large = e.select(steep, up, across);
    let zero = F::float(e, 0.0);
    let one = F::float(e, 1.0);
    let infinity = F::float(e, f64::INFINITY);
    let origin = e.eq(large, zero);
    let large = e.select(origin, one, large);
    let t = e.div(small, large);
    let diagonal = e.eq(small, infinity);
    let t = e.select(diagonal, one, t);
    let p = atan_ratio::<F, E>(e, t);
    let quarter = F::float(e, FRAC_PI_2);
    let half_turn = F::float(e, PI);
    let folded = e.sub(quarter, p);
    let p = e.select(steep, folded, p);
    // The sign of x, also of -0, by comparing its sign bit.
    let x_sign = F::sign(e, x);
    let zero_bits = F::int(e, 0);
    let right = e.int_eq(x_sign, zero_bits);
    let mirrored = e.sub(half_turn, p);
    let p = e.select(right, p, mirrored);
    let y_sign = F::sign(e, y);
    let angle = F::flip(e, p, y_sign);
    // The comparisons may have dropped a NaN.
    let both = e.add(across, up);
    let ordered = e.eq(both, both);
    e.select(ordered, angle, both)
}
