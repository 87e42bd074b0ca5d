//! sinh, cosh and tanh, all of `|x|` with the sign put back.

use super::exponential::{biased_magic, exp_scaled, half_range};
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

/// With `a = n ln 2 / 2 + r`, `s = 2^n` and `t = tanh(r)`: `tanh(a) = g / (g + 2 (1 - t))`, `g = (s - 1) + (s + 1) t`.
///
/// For `n = 0` the quotient is `2 t / 2`, so a small `a` passes through unrounded; elsewhere adding the rounded `g`
/// damps its error. It is damped least where `n = 1`, so `n` steps late: the magic sum counts quarters and is
/// cut, which leaves `r` in [-1/16, 7/16] ln 2 and gives `n = 0` all up to 0.303.
#[inline(always)]
pub(super) fn tanh<F: Format, E: Emit>(e: &mut E, x: E::V) -> E::V {
    // |x| without a constant of its own
    let sign = F::sign(e, x);
    let a = F::flip(e, x, sign);
    let flat = F::float(e, 0.5 * F::EXPM1_FLAT);
    let a = e.min(flat, a);
    let rate = F::float(e, 2.0 * F::LOG2_E[0]);
    let magic = F::float(e, quarters_magic::<F>());
    let sum = e.fma(a, rate, magic);
    let sum = e.bits_of_float(sum);
    let whole = F::int(e, -4);
    let sum = e.int_and(sum, whole);
    let s = e.shl(sum, F::SIGNIFICAND_BITS - 2);
    let s = e.float_of_bits(s);
    let sum = e.float_of_bits(sum);
    let n = e.sub(sum, magic);
    let r = if F::DOUBLE {
        let high = F::float(e, -0.5 * F::LN2[0]);
        let low = F::float(e, -0.5 * F::LN2[1]);
        let r = e.fma(n, high, a);
        e.fma(n, low, r)
    } else {
        // n is at most 28, and the error of r matters the less the larger n is: one part is enough.
        let step = F::float(e, -0.5 * (F::LN2[0] + F::LN2[1]));
        e.fma(n, step, a)
    };
    let z = e.mul(r, r);
    let p = F::polynomial(e, z, F::TANH, 1.0);
    let cube = e.mul(z, r);
    let t = e.fma(cube, p, r);
    let one = F::float(e, 1.0);
    let two = F::float(e, 2.0);
    let minus_two = F::float(e, -2.0);
    let less = e.sub(s, one);
    let more = e.add(s, one);
    let g = e.fma(more, t, less);
    let rest = e.fma(minus_two, t, two);
    let denominator = e.add(g, rest);
    let y = e.div(g, denominator);
    F::flip(e, y, sign)
}

/// The magic constant whose sums count quarters, with the exponent bias added so that a shift makes a power of two.
fn quarters_magic<F: Format>() -> f64 {
    0.25 * F::MAGIC + (F::ONE_BITS >> F::SIGNIFICAND_BITS) as f64
}
