//! asinh, acosh and atanh, all by one log1p of what the function is the logarithm of, less 1.
//!
//! That keeps the digits where the result is small, and log1p damps the relative error of its argument. Where a square would
//! overflow, `2 a` is within an ulp of what the logarithm is taken of, and so is `ln a + ln 2` of the result, by the same log1p.

use super::logarithm::log1p;
use super::{Emit, Format};
use std::f64::consts::LN_2;

/// `log1p(t)`, or `ln(2 a)` where `a`, which is then far above 1, is so large that `t` is `2 a`.
#[inline(always)]
fn log1p_or_doubled<F: Format, E: Emit>(e: &mut E, a: E::V, t: E::V) -> E::V {
    // Above, neither 1 + a differs from a in the logarithm nor a + sqrt(a^2 + 1) from 2 a.
    let flat = F::float(e, f64::from(F::SIGNIFICAND_BITS + 3).exp2());
    let zero = F::float(e, 0.0);
    let ln_two = F::float(e, LN_2);
    let is_large = e.lt(flat, a);
    let t = e.select(is_large, a, t);
    let y = log1p::<F, E>(e, t);
    let more = e.select(is_large, ln_two, zero);
    e.add(y, more)
}

/// Of `a = |x|`: `log1p(a + a (a / (1 + sqrt(a^2 + 1))))`.
#[inline(always)]
pub(super) fn asinh<F: Format, E: Emit>(e: &mut E, x: E::V) -> E::V {
    let a = e.abs(x);
    let one = F::float(e, 1.0);
    let square = e.fma(a, a, one);
    let root = e.sqrt(square);
    let denominator = e.add(root, one);
    let ratio = e.div(a, denominator);
    let t = e.fma(a, ratio, a);
    let y = log1p_or_doubled::<F, E>(e, a, t);
    let sign = F::sign(e, x);
    F::flip(e, y, sign)
}

/// With `u = x - 1`: `log1p(u + sqrt(u^2 + 2 u))`; NaN below 1.
#[inline(always)]
pub(super) fn acosh<F: Format, E: Emit>(e: &mut E, x: E::V) -> E::V {
    let one = F::float(e, 1.0);
    let nan = F::float(e, f64::NAN);
    let u = e.sub(x, one);
    let double = e.add(u, u);
    let square = e.fma(u, u, double);
    let root = e.sqrt(square);
    let t = e.add(u, root);
    let y = log1p_or_doubled::<F, E>(e, x, t);
    let below = e.lt(x, one);
    e.select(below, nan, y)
}

/// Of `a = |x|`: `log1p(2 a / (1 - a)) / 2`, which is infinite at 1 and NaN above.
#[inline(always)]
pub(super) fn atanh<F: Format, E: Emit>(e: &mut E, x: E::V) -> E::V {
    let a = e.abs(x);
    let one = F::float(e, 1.0);
    let half = F::float(e, 0.5);
    let double = e.add(a, a);
    let rest = e.sub(one, a);
    let t = e.div(double, rest);
    let y = log1p::<F, E>(e, t);
    let y = e.mul(y, half);
    let sign = F::sign(e, x);
    F::flip(e, y, sign)
}
