//! sinh, cosh and tanh, all of `|x|` with the sign put back.

use super::exponential::{biased_magic, exp_scaled, half_range, power_of_two};
use super::{Emit, Format};

/// `e^a / 2` and `e^-a / 2`, for `a >= 0`; the first overflows only where cosh does.
#[inline(always)]
fn halves<F: Format, E: Emit>(e: &mut E, a: E::V) -> (E::V, E::V) {
    let high = F::float(e, F::EXP_HIGH + 1.0);
    let a = e.min(high, a);
    let magic = F::float(e, biased_magic::<F>(1.0));
    let p = exp_scaled::<F, E>(e, a, 1.0, magic);
    let scale = F::float(e, 0.5 * half_range::<F>().exp2());
    let quarter = F::float(e, 0.25);
    let growing = e.mul(p, scale);
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

/// With `g = (e^(2a) - 1) / 2`: `tanh(a) = g / (g + 1)`, which damps the error of `g` where `g` is large.
///
/// With `r = a - n ln 2 / 2` and `w = (e^(2r) - 1) / 2`, `g = 2^n w + (2^n - 1) / 2`: no step cancels, and a small `a`
/// passes through unrounded.
#[inline(always)]
pub(super) fn tanh<F: Format, E: Emit>(e: &mut E, x: E::V) -> E::V {
    let a = e.abs(x);
    let flat = F::float(e, 0.5 * F::EXPM1_FLAT);
    let a = e.min(flat, a);
    let rate = F::float(e, 2.0 * F::LOG2_E[0]);
    let magic = F::float(e, biased_magic::<F>(0.0));
    let sum = e.fma(a, rate, magic);
    let n = e.sub(sum, magic);
    let high = F::float(e, -0.5 * F::LN2[0]);
    let low = F::float(e, -0.5 * F::LN2[1]);
    let r = e.fma(n, high, a);
    let r = e.fma(n, low, r);
    // w = r + r^2 2 q(2r); scaling the square by 2 would cost a multiplication, so the coefficients carry it.
    let q = F::polynomial_scaled(e, r, F::EXPM1, 2.0, 2.0);
    let square = e.mul(r, r);
    let w = e.fma(q, square, r);
    let scale = power_of_two::<F, E>(e, sum);
    let half = F::float(e, 0.5);
    let minus_half = F::float(e, -0.5);
    let one = F::float(e, 1.0);
    let offset = e.fma(scale, half, minus_half);
    let g = e.fma(scale, w, offset);
    let denominator = e.add(g, one);
    let quotient = e.div(g, denominator);
    // Below, the rounding of the denominator would show: g / (1 + g) = g - g (g / (1 + g)).
    let minus = e.neg(g);
    let corrected = e.fma(minus, quotient, g);
    let is_small = e.lt(g, half);
    let y = e.select(is_small, corrected, quotient);
    let sign = F::sign(e, x);
    F::flip(e, y, sign)
}
