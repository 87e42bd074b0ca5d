//! exp, exp2, expm1 and the logistic function.
//!
//! `e^x = 2^n e^r` with `n` from the magic-constant rounding, whose low bits hold it. Where the result is a normal number,
//! `n` is added to the exponent of `e^r`, as integers. Where it may be subnormal or overflow, `2^n` does not exist as a
//! float, so it is applied as two factors: the first product is exact and normal, and only the second rounds, so
//! gradual underflow costs no second rounding, unless the machine has one operation for it ([`Emit::scale`]). exp and exp2 leave that to a rare path; the others, whose magic constants
//! carry the exponent bias so that shifting the sum left gives a power of two at once, know their ranges.

use super::coefficients::F32_EXP2_SHORT;
use super::{Emit, Format};

/// The magic constant for `n` whose exponent field holds `n - half_ranges * h`.
pub(super) fn biased_magic<F: Format>(half_ranges: f64) -> f64 {
    F::MAGIC + (F::ONE_BITS >> F::SIGNIFICAND_BITS) as f64 - half_ranges * half_range::<F>()
}

/// Half the exponent range: 64 or 512.
pub(super) fn half_range<F: Format>() -> f64 {
    0.5 * F::EXP2_HIGH
}

/// The power of two in the exponent field of a biased magic sum.
#[inline(always)]
pub(super) fn power_of_two<F: Format, E: Emit>(e: &mut E, sum: E::V) -> E::V {
    let bits = e.bits_of_float(sum);
    let exponent = e.shl(bits, F::SIGNIFICAND_BITS);
    e.float_of_bits(exponent)
}

/// The magic constant for [`scaled_by_halves`]: twice the exponent bias in its low bits.
fn halving_magic<F: Format>() -> f64 {
    F::MAGIC + 2.0 * exponent_bias::<F>()
}

fn exponent_bias<F: Format>() -> f64 {
    (F::ONE_BITS >> F::SIGNIFICAND_BITS) as f64
}

/// `2^n p` for `p` near 1 and `n`, of at most 1.25 times the exponent range, in a magic sum that carries twice the
/// exponent bias.
///
/// Halving the biased exponent gives two powers of two that are normal floats and whose product is `2^n`, also where
/// `2^n` itself overflows or is subnormal. The first product is exact; the second rounds once.
#[inline(always)]
fn scaled_by_halves<F: Format, E: Emit>(e: &mut E, p: E::V, sum: E::V) -> E::V {
    let bits = e.bits_of_float(sum);
    let exponents = F::int(e, -(1_i64 << F::SIGNIFICAND_BITS));
    let half = e.shl(bits, F::SIGNIFICAND_BITS - 1);
    let half = e.int_and(half, exponents);
    let whole = e.shl(bits, F::SIGNIFICAND_BITS);
    let rest = e.int_sub(whole, half);
    let first = e.float_of_bits(half);
    let second = e.float_of_bits(rest);
    let p = e.mul(p, first);
    e.mul(p, second)
}

/// `e^r` with the magic sum and the `n` in it, where `sign a = n ln 2 + r`; `sign` is 1 or -1.
#[inline(always)]
fn reduced_exp<F: Format, E: Emit>(e: &mut E, a: E::V, sign: f64, magic: E::V) -> (E::V, E::V, E::V) {
    let rate = F::float(e, sign * F::LOG2_E[0]);
    let sum = e.fma(a, rate, magic);
    let n = e.sub(sum, magic);
    // r is sign times the reduced argument: a - sign n ln 2
    let high = F::float(e, -sign * F::LN2[0]);
    let low = F::float(e, -sign * F::LN2[1]);
    let r = e.fma(n, high, a);
    let r = e.fma(n, low, r);
    let q = F::polynomial(e, r, F::EXP, sign);
    let first = F::float(e, sign);
    let q = e.fma(q, r, first);
    let one = F::float(e, 1.0);
    (e.fma(q, r, one), sum, n)
}

/// `e^(sign a)` without its second scale, for `EXP_LOW <= sign a <= EXP_HIGH + 1`; `sign` is 1 or -1.
#[inline(always)]
pub(super) fn exp_scaled<F: Format, E: Emit>(e: &mut E, a: E::V, sign: f64, magic: E::V) -> E::V {
    let (p, sum, _) = reduced_exp::<F, E>(e, a, sign, magic);
    let scale = power_of_two::<F, E>(e, sum);
    e.mul(p, scale)
}

/// `e^x` for `EXP_LOW <= x <= EXP_HIGH` or NaN, where one operation [`scales`].
#[inline(always)]
fn exp_by_scale<F: Format, E: Emit>(e: &mut E, x: E::V) -> E::V {
    let magic = F::float(e, F::MAGIC);
    let (p, _, n) = reduced_exp::<F, E>(e, x, 1.0, magic);
    e.scale(p, n)
}

/// Whether `2^n p` is one operation, whatever comes of it. No path is rare then, and results have the same bits: either way they round once.
#[inline(always)]
fn scales<F: Format, E: Emit>(e: &E) -> bool {
    !F::DOUBLE && e.scales()
}

/// `x` between two numbers, or NaN.
#[inline(always)]
fn within<F: Format, E: Emit>(e: &mut E, x: E::V, low: f64, high: f64) -> E::V {
    let (low, high) = (F::float(e, low), F::float(e, high));
    let x = e.min(high, x);
    e.max(low, x)
}

/// `2^n p` where that is a normal number: `n`, in the low bits of a plain magic sum, joins the exponent of `p`.
#[inline(always)]
fn scaled_in_range<F: Format, E: Emit>(e: &mut E, p: E::V, sum: E::V) -> E::V {
    let bits = e.bits_of_float(sum);
    let exponent = e.shl(bits, F::SIGNIFICAND_BITS);
    let bits = e.bits_of_float(p);
    let scaled = e.int_add(bits, exponent);
    e.float_of_bits(scaled)
}

/// `2^n p` for any plain magic sum: infinite where `n` is above the exponent range, zero where it is far below, NaN
/// where the sum is; subnormal results round once. Needs few constants, for they take registers from the loop around.
#[inline(always)]
fn scaled_anywhere<F: Format, E: Emit>(e: &mut E, p: E::V, sum: E::V) -> E::V {
    let high = F::float(e, F::MAGIC + F::EXP2_HIGH + 1.0);
    let low = F::float(e, F::MAGIC + F::EXP2_LOW - 1.0);
    let within = e.min(high, sum);
    let within = e.max(low, within);
    // Beyond, where `p` may be anything, it is 0 below and large above: the mask of a softmax gives many such zeros, and
    // a product that underflows takes a processor a hundred cycles. A NaN is bitwise equal to itself.
    let (bits, whole) = (e.bits_of_float(sum), e.bits_of_float(within));
    let kept = e.int_eq(bits, whole);
    let above = e.sub(within, low);
    let p = e.select(kept, p, above);
    // 2^n as two factors that are normal numbers: the first product is exact, and only the second rounds.
    let half = e.shr(whole, 1);
    let half = e.shl(half, F::SIGNIFICAND_BITS);
    let whole = e.shl(whole, F::SIGNIFICAND_BITS);
    let rest = e.int_sub(whole, half);
    let one = F::int(e, F::ONE_BITS);
    let first = e.int_add(one, half);
    let first = e.float_of_bits(first);
    let second = e.int_add(one, rest);
    let second = e.float_of_bits(second);
    let p = e.mul(p, first);
    e.mul(p, second)
}

/// Where `|x| > limit`, or `x` is NaN.
#[inline(always)]
fn is_beyond<F: Format, E: Emit>(e: &mut E, x: E::V, limit: f64) -> E::V {
    let all = F::int(e, if F::DOUBLE { i64::MAX } else { i64::from(i32::MAX) });
    let limit = F::int(e, F::bits_of(limit));
    let bits = e.bits_of_float(x);
    let magnitude = e.int_and(bits, all);
    e.int_lt(limit, magnitude)
}

/// Results that are normal numbers for all arguments of that magnitude take one integer addition to scale; any other
/// argument in a vector sends it through [`scaled_anywhere`] besides.
#[inline(always)]
pub(super) fn exp<F: Format, E: Emit>(e: &mut E, x: E::V) -> E::V {
    if scales::<F, E>(e) {
        let x = within::<F, E>(e, x, F::EXP_LOW, F::EXP_HIGH);
        return exp_by_scale::<F, E>(e, x);
    }
    let rate = F::float(e, F::LOG2_E[0]);
    let magic = F::float(e, F::MAGIC);
    let sum = e.fma(x, rate, magic);
    let n = e.sub(sum, magic);
    let high = F::float(e, -F::LN2[0]);
    let low = F::float(e, -F::LN2[1]);
    let r = e.fma(n, high, x);
    let r = e.fma(n, low, r);
    let q = F::polynomial(e, r, F::EXP, 1.0);
    let one = F::float(e, 1.0);
    let q = e.fma(q, r, one);
    let p = e.fma(q, r, one);
    let y = scaled_in_range::<F, E>(e, p, sum);
    let beyond = is_beyond::<F, E>(e, x, F::EXP_NORMAL);
    e.if_any(beyond, |e| scaled_anywhere::<F, E>(e, p, sum), y)
}

/// As [`exp`], to the same bits, of arguments for which the result is a normal number, or of NaN: no branch, so that several go side by side.
#[inline(always)]
pub(crate) fn exp_in_range<F: Format, E: Emit>(e: &mut E, x: E::V) -> E::V {
    if scales::<F, E>(e) {
        return exp_by_scale::<F, E>(e, x);
    }
    let magic = F::float(e, biased_magic::<F>(0.0));
    exp_scaled::<F, E>(e, x, 1.0, magic)
}

/// `2^x` with a relative error of up to `2^-18`; zero below `2^-126.5`, infinite from `2^127.5` on.
#[inline(always)]
pub(crate) fn short_exp2<F: Format, E: Emit>(e: &mut E, x: E::V) -> E::V {
    let (high, low) = (F::float(e, F::EXP2_HIGH), F::float(e, 1.0 - F::EXP2_HIGH));
    let within = e.min(high, x);
    let within = e.max(low, within);
    // The power of two is zero where its exponent field is, and infinite where that is full.
    let magic = F::float(e, biased_magic::<F>(0.0));
    let sum = e.add(within, magic);
    let n = e.sub(sum, magic);
    let r = e.sub(within, n);
    let q = F::polynomial(e, r, F32_EXP2_SHORT, 1.0);
    let one = F::float(e, 1.0);
    let p = e.fma(q, r, one);
    let scale = power_of_two::<F, E>(e, sum);
    e.mul(p, scale)
}

/// `2^(x + low)` for `|x|` up to 1.25 times the exponent range; `low` is a small correction.
///
/// `|r| <= 1/2`, so that integers have `r = 0` and are exact.
#[inline(always)]
pub(super) fn exp2_extended<F: Format, E: Emit>(e: &mut E, x: E::V, low: E::V) -> E::V {
    let magic = F::float(e, halving_magic::<F>());
    let sum = e.add(x, magic);
    let n = e.sub(sum, magic);
    let r = e.sub(x, n);
    let r = e.add(r, low);
    let q = F::polynomial(e, r, F::EXP2, 1.0);
    let one = F::float(e, 1.0);
    let p = e.fma(q, r, one);
    scaled_by_halves::<F, E>(e, p, sum)
}

/// As [`exp`]; `|r| <= 1/2`, so that integers have `r = 0` and are exact.
#[inline(always)]
pub(super) fn exp2<F: Format, E: Emit>(e: &mut E, x: E::V) -> E::V {
    let scales = scales::<F, E>(e);
    let x = if scales {
        within::<F, E>(e, x, F::EXP2_LOW, F::EXP2_HIGH)
    } else {
        x
    };
    let magic = F::float(e, F::MAGIC);
    let sum = e.add(x, magic);
    let n = e.sub(sum, magic);
    let r = e.sub(x, n);
    let q = F::polynomial(e, r, F::EXP2, 1.0);
    let one = F::float(e, 1.0);
    let p = e.fma(q, r, one);
    if scales {
        return e.scale(p, n);
    }
    let y = scaled_in_range::<F, E>(e, p, sum);
    let beyond = is_beyond::<F, E>(e, x, F::EXP2_NORMAL);
    e.if_any(beyond, |e| scaled_anywhere::<F, E>(e, p, sum), y)
}

/// `2^n (e^r - 1) + (2^n - 1)`, halved so that n = 1024 (or 128) has a scale; n = 0 is taken apart because halving a
/// subnormal would round.
///
/// `r` comes in two parts and joins the constant first, exactly where the two cancel (n = 1).
#[inline(always)]
pub(super) fn expm1<F: Format, E: Emit>(e: &mut E, x: E::V) -> E::V {
    let high = F::float(e, F::EXP_HIGH);
    let low = F::float(e, -F::EXPM1_FLAT);
    let x = e.min(high, x);
    let clamped = e.max(low, x);
    let rate = F::float(e, F::LOG2_E[0]);
    let magic = F::float(e, biased_magic::<F>(0.0) - 1.0);
    let sum = e.fma(clamped, rate, magic);
    let n = e.sub(sum, magic);
    let high = F::float(e, -F::LN2[0]);
    let low = F::float(e, -F::LN2[1]);
    let whole = e.fma(n, high, clamped);
    let r = e.fma(n, low, whole);
    let kept = e.sub(whole, r);
    let r_low = e.fma(n, low, kept);
    let q = F::polynomial(e, r, F::EXPM1, 1.0);
    let square = e.mul(r, r);
    let bend = e.fma(q, square, r_low);
    let scale = power_of_two::<F, E>(e, sum); // 2^(n - 1)
    let half = F::float(e, 0.5);
    let offset = e.sub(scale, half);
    let line = e.fma(scale, r, offset);
    let y = e.fma(scale, bend, line);
    let y = e.add(y, y);
    let zero = F::float(e, 0.0);
    let unscaled = e.eq(n, zero);
    let p = e.add(bend, r);
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
    let magic = F::float(e, biased_magic::<F>(-1.0));
    let p = exp_scaled::<F, E>(e, a, -1.0, magic);
    let scale = F::float(e, (-half_range::<F>()).exp2());
    let u = e.mul(p, scale);
    let one = F::float(e, 1.0);
    let zero = F::float(e, 0.0);
    let denominator = e.add(u, one);
    let negative = e.lt(x, zero);
    let numerator = e.select(negative, u, one);
    e.div(numerator, denominator)
}
