//! sin, cos and tan.
//!
//! sin and cos reduce by pi to `|r| <= pi/2` and use one polynomial, which costs less than two polynomials over
//! `pi/4` and a selection; the parity of the multiple is the sign. Up to `SHORT_REDUCTION` the reduction subtracts
//! `n pi` in three parts by fma (Cody and Waite); beyond it multiplies by a window of the digits of `1 / (2 pi)`
//! (Payne and Hanek), in floats: products are exact pairs, whole turns are dropped, and what is left is summed
//! with its rounding errors.

use super::{Emit, Format};

/// How to count in turns: `n` is `round(turns * per_turn - offset)`, and the angle left is
/// `2 pi (turns - (n + offset) / per_turn)`.
#[derive(Clone, Copy)]
struct Reduction {
    per_turn: f64,
    offset: f64,
    /// Added to the magic constant: 1 turns the parity over.
    parity: f64,
}

const SIN: Reduction = Reduction {
    per_turn: 2.0,
    offset: 0.0,
    parity: 0.0,
};
/// `cos((n + 1/2) pi + r) = -(-1)^n sin(r)`: the parity is turned over for the minus sign.
const COS: Reduction = Reduction {
    per_turn: 2.0,
    offset: 0.5,
    parity: 1.0,
};
const TAN: Reduction = Reduction {
    per_turn: 4.0,
    offset: 0.0,
    parity: 0.0,
};

/// The reduced angle and the magic sum whose lowest bit is the parity, for `0 <= a <= SHORT_REDUCTION`.
#[inline(always)]
fn reduce_short<F: Format, E: Emit>(e: &mut E, a: E::V, by: Reduction) -> (E::V, E::V) {
    let step = 2.0 / by.per_turn; // in units of pi
    let rate = F::float(e, std::f64::consts::FRAC_1_PI / step);
    let magic = F::float(e, F::MAGIC + by.parity);
    let (sum, n) = if by.offset == 0.0 {
        let sum = e.fma(a, rate, magic);
        (sum, e.sub(sum, magic))
    } else {
        let offset = F::float(e, by.offset);
        let minus = F::float(e, -by.offset);
        let scaled = e.fma(a, rate, minus);
        let sum = e.add(scaled, magic);
        let n = e.sub(sum, magic);
        (sum, e.add(n, offset))
    };
    let mut r = a;
    for part in F::PI {
        let part = F::float(e, -part * step);
        r = e.fma(n, part, r);
    }
    (r, sum)
}

/// `a + b` as the rounded sum and its rounding error (Knuth).
#[inline(always)]
fn two_sum<E: Emit>(e: &mut E, a: E::V, b: E::V) -> (E::V, E::V) {
    let sum = e.add(a, b);
    let b_kept = e.sub(sum, a);
    let a_kept = e.sub(sum, b_kept);
    let b_lost = e.sub(b, b_kept);
    let a_lost = e.sub(a, a_kept);
    (sum, e.add(a_lost, b_lost))
}

/// `a` less its nearest integer.
#[inline(always)]
fn fraction<E: Emit>(e: &mut E, a: E::V) -> E::V {
    let whole = e.round_even(a);
    e.sub(a, whole)
}

/// `value(j)` for the window `j` of each lane.
#[inline(always)]
fn by_window<F: Format, E: Emit>(e: &mut E, masks: &[Option<E::V>; 20], value: impl Fn(usize) -> f64) -> E::V {
    let mut chosen = F::float(e, value(0));
    for (j, mask) in masks.iter().enumerate() {
        if let Some(mask) = *mask {
            let candidate = F::float(e, value(j));
            chosen = e.select(mask, candidate, chosen);
        }
    }
    chosen
}

/// As [`reduce_short`], for any `a > SHORT_REDUCTION`; infinity gives NaN.
#[inline(always)]
fn reduce_long<F: Format, E: Emit>(e: &mut E, a: E::V, by: Reduction) -> (E::V, E::V) {
    let width = F::SIGNIFICAND_BITS as i32 + 1;
    // Window j starts at digit j, the first that can leave a fraction of a turn when the unit in the last place of `a`
    // is at least 2^(width j); `a` is scaled by 2^(-width j) and the digits by 2^(width j).
    let masks: [Option<E::V>; 20] = std::array::from_fn(|j| {
        (1..F::WINDOWS).contains(&j).then(|| {
            let threshold = F::float(e, f64::from(width * (j as i32 + 1) - 1).exp2());
            e.le(threshold, a)
        })
    });
    let scale = by_window::<F, E>(e, &masks, |j| f64::from(-width * j as i32).exp2());
    let digits: [E::V; 5] = std::array::from_fn(|i| {
        by_window::<F, E>(e, &masks, |j| {
            F::INVERSE_TWO_PI.get(i + j).copied().unwrap_or(0) as f64 * f64::from(-width * (i as i32 + 1)).exp2()
        })
    });
    let a = e.mul(a, scale);
    // Exact products high + low; high[i] and low[i - 1] are of one size, about 2^(width (1 - i)) at most.
    let products: [(E::V, E::V); 5] = std::array::from_fn(|i| {
        let high = e.mul(a, digits[i]);
        let minus = e.neg(high);
        (high, e.fma(a, digits[i], minus))
    });
    let [(h0, l0), (h1, l1), (h2, l2), (h3, l3), (h4, _)] = products;
    let h0 = fraction(e, h0);
    let l0 = fraction(e, l0);
    let (turns, r0) = two_sum(e, h0, l0);
    let turns = fraction(e, turns);
    let h1 = fraction(e, h1);
    let (turns, r1) = two_sum(e, turns, h1);
    let (turns, r2) = two_sum(e, turns, l1);
    let (turns, r3) = two_sum(e, turns, h2);
    let turns = fraction(e, turns);
    // Count, and take the count out before the small terms are added: what is left may be as small as they are.
    let per_turn = F::float(e, by.per_turn);
    let minus = F::float(e, -by.offset);
    let scaled = e.fma(turns, per_turn, minus);
    let magic = F::float(e, F::MAGIC + by.parity);
    let sum = e.add(scaled, magic);
    let n = e.sub(sum, magic);
    let n = if by.offset == 0.0 {
        n
    } else {
        let offset = F::float(e, by.offset);
        e.add(n, offset)
    };
    // Exact where the difference is small (Sterbenz); elsewhere its rounding is one of a result near its extremum.
    let part = F::float(e, -1.0 / by.per_turn);
    let mut rest = e.fma(n, part, turns);
    let mut low = e.add(l3, h4);
    for term in [r0, r1, r2, r3, l2, h3] {
        let (sum, lost) = two_sum(e, rest, term);
        rest = sum;
        low = e.add(low, lost);
    }
    // 2 pi (rest + low), both factors in two parts.
    let high = e.add(rest, low);
    let lost = e.sub(rest, high);
    let lost = e.add(lost, low);
    let two_pi = F::float(e, 2.0 * F::PI[0]);
    let two_pi_low = F::float(e, 2.0 * F::PI[1]);
    let r = e.mul(lost, two_pi);
    let r = e.fma(high, two_pi_low, r);
    (e.fma(high, two_pi, r), sum)
}

/// `r` with its sign flipped where the lowest bit of the magic sum is set.
#[inline(always)]
fn signed_by_parity<F: Format, E: Emit>(e: &mut E, (r, sum): (E::V, E::V)) -> E::V {
    let bits = e.bits_of_float(sum);
    let sign = e.shl(bits, F::WIDTH - 1);
    F::flip(e, r, sign)
}

#[inline(always)]
fn is_long<F: Format, E: Emit>(e: &mut E, a: E::V) -> E::V {
    let limit = F::float(e, F::SHORT_REDUCTION);
    e.lt(limit, a)
}

/// sin of an angle in [-pi/2, pi/2].
#[inline(always)]
fn sin_reduced<F: Format, E: Emit>(e: &mut E, r: E::V) -> E::V {
    let z = e.mul(r, r);
    let p = F::polynomial(e, z, F::SIN, 1.0);
    let cube = e.mul(z, p);
    e.fma(cube, r, r)
}

#[inline(always)]
fn reduced<F: Format, E: Emit>(e: &mut E, a: E::V, by: Reduction) -> E::V {
    let short = reduce_short::<F, E>(e, a, by);
    let short = signed_by_parity::<F, E>(e, short);
    let long = is_long::<F, E>(e, a);
    e.if_any(
        long,
        |e| {
            let pair = reduce_long::<F, E>(e, a, by);
            signed_by_parity::<F, E>(e, pair)
        },
        short,
    )
}

#[inline(always)]
pub(super) fn sin<F: Format, E: Emit>(e: &mut E, x: E::V) -> E::V {
    let a = e.abs(x);
    let r = reduced::<F, E>(e, a, SIN);
    let y = sin_reduced::<F, E>(e, r);
    let sign = F::sign(e, x);
    F::flip(e, y, sign)
}

#[inline(always)]
pub(super) fn cos<F: Format, E: Emit>(e: &mut E, x: E::V) -> E::V {
    let a = e.abs(x);
    let r = reduced::<F, E>(e, a, COS);
    sin_reduced::<F, E>(e, r)
}

/// tan of the reduced angle, or minus its reciprocal when the number of right angles is odd.
#[inline(always)]
fn tan_reduced<F: Format, E: Emit>(e: &mut E, (r, sum): (E::V, E::V)) -> E::V {
    let z = e.mul(r, r);
    let p = F::polynomial(e, z, F::TAN, 1.0);
    let cube = e.mul(z, r);
    let t = e.fma(cube, p, r);
    let bits = e.bits_of_float(sum);
    let one_bit = F::int(e, 1);
    let lowest = e.int_and(bits, one_bit);
    let odd = e.int_eq(lowest, one_bit);
    let one = F::float(e, 1.0);
    let minus_one = F::float(e, -1.0);
    let numerator = e.select(odd, minus_one, t);
    let denominator = e.select(odd, t, one);
    e.div(numerator, denominator)
}

#[inline(always)]
pub(super) fn tan<F: Format, E: Emit>(e: &mut E, x: E::V) -> E::V {
    let a = e.abs(x);
    let short = reduce_short::<F, E>(e, a, TAN);
    let short = tan_reduced::<F, E>(e, short);
    let long = is_long::<F, E>(e, a);
    let y = e.if_any(
        long,
        |e| {
            let pair = reduce_long::<F, E>(e, a, TAN);
            tan_reduced::<F, E>(e, pair)
        },
        short,
    );
    let sign = F::sign(e, x);
    F::flip(e, y, sign)
}
