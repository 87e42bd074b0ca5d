//! sinh, cosh and tanh, all of `|x|` with the sign put back.

use super::exponential::exp_parts;
use super::{Emit, Format};

/// `e^a / 2` and `e^-a / 2`, for `a >= 0`; the first overflows only where cosh does.
#[inline(always)]
fn halves<F: Format, E: Emit>(e: &mut E, a: E::V) -> (E::V, E::V) {
    let high = F::float(e, F::EXP_HIGH + 1.0);
    let a = e.min(high, a);
    let (p, s) = exp_parts::<F, E>(e, a, 1.0);
    let half = F::float(e, 0.5);
    let quarter = F::float(e, 0.25);
    let half_scale = e.mul(s, half);
    let p = e.mul(p, s);
    let growing = e.mul(p, half_scale);
    (growing, e.div(quarter, growing))
}

#[inline(always)]
pub(super) fn cosh<F: Format, E: Emit>(e: &mut E, x: E::V) -> E::V {
    let a = e.abs(x);
    let (growing, falling) = halves::<F, E>(e, a);
    e.add(growing, falling)
}

#[inline(always)]
pub(super) fn sinh<F: Format, E: Emit>(e: &mut E, x: E::V) -> E::V {
    let a = e.abs(x);
    let (growing, falling) = halves::<F, E>(e, a);
    let large = e.sub(growing, falling);
    // x^2 of a large x overflows to infinity in the arm that is not taken; no exception is unmasked.
    let z = e.mul(a, a);
    let q = F::polynomial(e, z, F::SINH, 1.0);
    let cube = e.mul(z, a);
    let small = e.fma(cube, q, a);
    let one = F::float(e, 1.0);
    let is_small = e.lt(a, one);
    let y = e.select(is_small, small, large);
    let sign = F::sign(e, x);
    F::flip(e, y, sign)
}

/// With `g = -(e^(-2a) - 1) / 2`: `tanh(a) = g / (1 - g)`.
///
/// `a + n ln 2 / 2 = w'`, `w = (1 - e^(-2 w')) / 2`, `g = (1 - 2^n) / 2 + 2^n w`: no step cancels, and a small `a` passes
/// through unrounded.
#[inline(always)]
pub(super) fn tanh<F: Format, E: Emit>(e: &mut E, x: E::V) -> E::V {
    let a = e.abs(x);
    let flat = F::float(e, 0.5 * F::EXPM1_FLAT);
    let a = e.min(flat, a);
    let rate = F::float(e, -2.0 * F::LOG2_E[0]);
    let magic = F::float(e, F::MAGIC);
    let sum = e.fma(a, rate, magic);
    let n = e.sub(sum, magic);
    let high = F::float(e, 0.5 * F::LN2[0]);
    let low = F::float(e, 0.5 * F::LN2[1]);
    let r = e.fma(n, high, a);
    let r = e.fma(n, low, r);
    // (1 - e^(-2r)) / 2 = r - 2 r^2 q(-2r); the factor -2 is one more power of the scale.
    let mut q = F::float(e, 0.0);
    let mut power = (-2.0_f64).powi(F::EXPM1.len() as i32);
    for (position, &coefficient) in F::EXPM1.iter().rev().enumerate() {
        let next = F::float(e, coefficient * power);
        q = if position == 0 { next } else { e.fma(q, r, next) };
        power /= -2.0;
    }
    let square = e.mul(r, r);
    let w = e.fma(q, square, r);
    let bits = e.to_bits(sum);
    let exponent = e.shl(bits, F::SIGNIFICAND_BITS);
    let one_bits = F::int(e, F::ONE_BITS);
    let scale = e.int_add(exponent, one_bits);
    let scale = e.from_bits(scale);
    let half = F::float(e, 0.5);
    let minus_half = F::float(e, -0.5);
    let one = F::float(e, 1.0);
    let offset = e.fma(scale, minus_half, half);
    let g = e.fma(scale, w, offset);
    let denominator = e.sub(one, g);
    let y = e.div(g, denominator);
    let sign = F::sign(e, x);
    F::flip(e, y, sign)
}
