//! One float element with its error bound, and how scalar operations carry it.
//!
//! `value` is the operation computed in f64 on the operands' values; `error` bounds how far a right implementation's element
//! may be from it; `magnitude` is the value with every subtraction turned into an addition of absolute values, which is what
//! the error of a reassociated sum is relative to.
//!
//! Derivation (Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed., SIAM 2002). With unit roundoff u, half the
//! smallest subnormal η, and an implementation's operands within `e` of ours:
//! - *standard model* (2.4 and, with underflow, 2.8): `fl(x op y) = (x op y)(1 + δ) + ε`, |δ| <= u, |ε| <= η. We charge
//!   `u(dtype) + u(f64)`, the second for our own rounding, and for f16 and bf16 also u(f32), because they may compute in f32;
//! - *propagation* is not linearized: `|ab − âb̂| <= |a|e_b + |b|e_a + e_a e_b`, `|a/b − â/b̂| <= (e_a + |a/b|e_b)/(|b| − e_b)`;
//!   monotone functions are evaluated at the ends of `[x − e, x + e]`; sine and cosine have the Lipschitz constant 1; maximum
//!   and minimum are 1-Lipschitz in the largest operand error; a select on an uncertain condition may be either branch;
//! - *discontinuities*: floor, round, sign and truncation are evaluated at both ends; a comparison, conversion to an integer
//!   or index that could turn out either way is uncertain, and so is what depends on it (`error` is infinite);
//! - *exact operands* (`error == 0`): IEEE strictness fixes the result of correctly rounded operations to the bit, so the
//!   result is computed in the dtype itself and stays exact. Comparisons, floors and branches on such values are certain;
//! - *functions* may be off by the ulps of [`ScalarOp::ulps`], an ulp being at most 2u|f|, and are exact on NaN, infinities and
//!   zeros where the result is 0, ±1, infinite or NaN;
//! - *overflow*: beyond (2 − 2^-p) 2^emax a result is infinite for certain; near it, uncertain.
//!
//! A zero whose sign is open (`max(-0, +0)`) has the error [`TINY`], so that a division by it is uncertain.

use crate::dtype::{DType, Scalar};
use crate::scalar::{Carry, ScalarOp};

use super::super::is_correctly_rounded;
use crate::precision::{DIVISORS, approximation_error, tf32_error, to_tf32};

/// The error of a zero whose sign is open.
pub(crate) const TINY: f64 = 5e-324;

/// Unit roundoff of f64.
pub(crate) const U64: f64 = 1.1102230246251565e-16;

/// A float element and how far a right implementation's may be from it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Approx {
    pub(crate) value: f64,
    pub(crate) magnitude: f64,
    pub(crate) error: f64,
}

impl Approx {
    pub(crate) fn exact(value: f64) -> Approx {
        Approx {
            value,
            magnitude: value.abs(),
            error: 0.0,
        }
    }

    pub(crate) fn uncertain(value: f64) -> Approx {
        Approx {
            value,
            magnitude: value.abs(),
            error: f64::INFINITY,
        }
    }

    pub(crate) fn is_exact(self) -> bool {
        self.error == 0.0
    }

    pub(crate) fn is_uncertain(self) -> bool {
        self.error == f64::INFINITY
    }

    /// The ends of the interval that holds the implementation's value.
    pub(crate) fn ends(self) -> (f64, f64) {
        if self.error == 0.0 {
            return (self.value, self.value);
        }
        (
            (self.value - self.error).next_down(),
            (self.value + self.error).next_up(),
        )
    }

    fn certain_sign(self) -> bool {
        self.value.abs() > self.error
    }
}

/// A number that may be rounded to tf32 so many times where it is multiplied.
pub(super) fn as_tf32(x: Approx, times: f64) -> Approx {
    let kept = f64::from(to_tf32(x.value as f32)) == x.value;
    if !x.value.is_finite() || x.is_uncertain() || x.is_exact() && kept {
        return x;
    }
    let size = x.magnitude.max(x.value.abs()) + x.error;
    let off = times * tf32_error(size) * (1.0 + 1e-3);
    if size + off >= overflow(DType::F32) * (1.0 - 1e-3) {
        return Approx::uncertain(x.value);
    }
    Approx {
        error: x.error + off,
        ..x
    }
}

/// What [`map`] gives where operations of f32, and of 16 bits computed in f32, may be approximated.
pub(super) fn approximate_map(op: ScalarOp, dtype: DType, args: &[Approx]) -> Approx {
    let x = map(op, dtype, args);
    if dtype == DType::F64 || x.is_uncertain() {
        return x;
    }
    if let (ScalarOp::Div, [_, divisor]) = (op, args) {
        let (low, high) = divisor.ends();
        let right = |d: f64| d == 0.0 || d.is_infinite() || DIVISORS.contains(&d.abs());
        if !(divisor.value.is_nan() || right(low) && right(high)) {
            return Approx::uncertain(x.value);
        }
    }
    let mut v = [0.0; 3];
    v.iter_mut().zip(args).for_each(|(slot, a)| *slot = a.value);
    let before = op.eval_f64(&v);
    let mut off = approximation_error(op, &v, before) * (1.0 + 1e-3);
    if off == 0.0 || !before.is_finite() {
        return x;
    }
    // What was exact is rounded all the same, and what lies near the middle between two numbers of 16 bits to either.
    if x.is_exact() || dtype != DType::F32 {
        off += 2.0 * unit_roundoff(dtype) * before.abs() + smallest(dtype);
    }
    let (limit, size) = (overflow(dtype), before.abs());
    if size - x.error - off >= limit {
        x
    } else if size + x.error + off >= limit {
        Approx::uncertain(x.value)
    } else {
        Approx {
            error: x.error + off,
            ..x
        }
    }
}

/// Exponent of the smallest normal number of f32, and of bf16.
pub(super) const NORMAL_EXPONENT: i32 = -126;

/// That number.
pub(super) const NORMAL: f64 = f32::MIN_POSITIVE as f64;

/// A number that may be taken as zero where it is multiplied, if it is no normal one.
pub(super) fn flushed(x: Approx) -> Approx {
    let least = x.value.abs() - x.error;
    if !x.value.is_finite() || x.is_uncertain() || least >= NORMAL || x.value == 0.0 && x.is_exact() {
        return x;
    }
    Approx {
        error: x.error + x.value.abs().min(NORMAL),
        ..x
    }
}

/// Unit roundoff of a float dtype: 2^-p with p significant bits.
pub(crate) fn unit_roundoff(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2f64.powi(-11),
        DType::BF16 => 2f64.powi(-8),
        DType::F32 => 2f64.powi(-24),
        _ => U64,
    }
}

/// Significant bits of a float dtype.
pub(crate) fn precision(dtype: DType) -> i32 {
    match dtype {
        DType::F16 => 11,
        DType::BF16 => 8,
        DType::F32 => 24,
        _ => 53,
    }
}

/// Exponent of the smallest subnormal.
pub(crate) fn smallest_exponent(dtype: DType) -> i32 {
    match dtype {
        DType::F16 => -24,
        DType::BF16 => -133,
        DType::F32 => -149,
        _ => -1074,
    }
}

/// The smallest subnormal.
pub(crate) fn smallest(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2f64.powi(-24),
        DType::BF16 => 2f64.powi(-126) * 2f64.powi(-7),
        DType::F32 => 2f64.powi(-126) * 2f64.powi(-23),
        _ => TINY,
    }
}

/// The least magnitude that rounds to infinity (for f64, the largest finite number).
pub(crate) fn overflow(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 65520.0,
        DType::BF16 => 2f64.powi(127) * (2.0 - 2f64.powi(-8)),
        DType::F32 => 2f64.powi(127) * (2.0 - 2f64.powi(-24)),
        _ => f64::MAX,
    }
}

/// A result of `value` whose unrounded form is within `before`, after rounding to `dtype` with `ulps` extra.
pub(crate) fn rounded(dtype: DType, value: f64, magnitude: f64, before: f64, ulps: f64) -> Approx {
    if before.is_nan() || before == f64::INFINITY {
        return Approx::uncertain(value);
    }
    if !value.is_finite() {
        return Approx::exact(value);
    }
    let computing = dtype.accumulator();
    let mut relative = unit_roundoff(dtype) + U64;
    if ulps > 0.0 {
        // Our own functions are within two ulps of f64.
        relative += 2.0 * ulps * unit_roundoff(computing) + 4.0 * U64;
    }
    let mut absolute = 0.5 * smallest(dtype) + ulps * smallest(computing);
    if computing != dtype {
        relative += unit_roundoff(computing);
        absolute += 0.5 * smallest(computing);
    }
    // The last factor covers the rounding of this very formula.
    let error = (before + relative * (value.abs() + before) + absolute) * (1.0 + 1e-9);
    limited(
        dtype,
        Approx {
            value,
            magnitude: magnitude.max(value.abs()),
            error,
        },
        before + 2.0 * ulps * unit_roundoff(computing) * value.abs(),
    )
}

/// Turns what overflows into infinities and what may overflow into the uncertain.
pub(crate) fn limited(dtype: DType, x: Approx, before: f64) -> Approx {
    if dtype == DType::F64 {
        return if x.value.abs() + x.error > f64::MAX {
            Approx::uncertain(x.value)
        } else {
            x
        };
    }
    let (limit, size) = (overflow(dtype), x.value.abs());
    // What computed in f32 may have been rounded there before.
    let slack = before + size * 2.0 * unit_roundoff(DType::F32);
    if size - slack >= limit {
        Approx::exact(f64::INFINITY.copysign(x.value))
    } else if size + slack >= limit {
        Approx::uncertain(x.value)
    } else {
        x
    }
}

fn spread(x: f64, y: f64) -> f64 {
    if x == y || (x.is_nan() && y.is_nan()) {
        return 0.0;
    }
    let d = (x - y).abs();
    if d.is_nan() { f64::INFINITY } else { d }
}

/// How far a function may move between `at` and any of `points`; NaN at some only is a jump.
fn farthest(at: f64, points: &[f64]) -> f64 {
    points.iter().map(|&p| spread(at, p)).fold(0.0, f64::max)
}

fn times(x: f64, e: f64) -> f64 {
    if e == 0.0 { 0.0 } else { x * e }
}

/// A float operation with a float result.
pub(crate) fn map(op: ScalarOp, dtype: DType, args: &[Approx]) -> Approx {
    let mut v = [0.0; 3];
    v.iter_mut().zip(args).for_each(|(slot, a)| *slot = a.value);
    if args.iter().all(|a| a.is_exact()) && is_correctly_rounded(op, dtype) {
        return exact_map(op, dtype, args, &v);
    }
    let f = op.eval_f64(&v);
    match args {
        [x] => unary(op, dtype, *x, f),
        [x, y] => binary(op, dtype, *x, *y, f),
        [x, y, z] => {
            let product = product_error(*x, *y);
            rounded(
                dtype,
                f,
                x.magnitude * y.magnitude + z.magnitude,
                product + z.error,
                0.0,
            )
        }
        _ => Approx::uncertain(f),
    }
}

fn exact_map(op: ScalarOp, dtype: DType, args: &[Approx], v: &[f64; 3]) -> Approx {
    let scalars = [0, 1, 2].map(|i| Scalar::from_f64(dtype, v[i]));
    let value = op.eval(&scalars[..args.len()]).as_f64();
    let mut result = Approx::exact(value);
    match op {
        ScalarOp::Add | ScalarOp::Sub => result.magnitude = args[0].magnitude + args[1].magnitude,
        ScalarOp::Mul => result.magnitude = args[0].magnitude * args[1].magnitude,
        ScalarOp::Fma => result.magnitude = args[0].magnitude * args[1].magnitude + args[2].magnitude,
        ScalarOp::Neg | ScalarOp::Abs => result.magnitude = args[0].magnitude,
        ScalarOp::Max | ScalarOp::Min
            if v[0] == 0.0 && v[1] == 0.0 && v[0].is_sign_negative() != v[1].is_sign_negative() =>
        {
            result.error = TINY;
        }
        _ => {}
    }
    if result.magnitude.is_nan() {
        result.magnitude = value.abs();
    }
    result
}

fn unary(op: ScalarOp, dtype: DType, x: Approx, f: f64) -> Approx {
    use ScalarOp::*;
    if x.is_uncertain() {
        return Approx::uncertain(f);
    }
    let g = |p: f64| op.eval_f64(&[p, 0.0, 0.0]);
    if x.value == 0.0 && x.error == TINY {
        let (minus, plus) = (g(-0.0), g(0.0));
        return if minus.to_bits() == plus.to_bits() {
            unary(op, dtype, Approx::exact(0.0), plus)
        } else if minus == 0.0 && plus == 0.0 {
            x
        } else {
            Approx::uncertain(f)
        };
    }
    let (lo, hi) = x.ends();
    match op {
        Neg | Abs => {
            return Approx {
                value: f,
                magnitude: x.magnitude,
                error: x.error,
            };
        }
        Floor | Ceil | Round | Trunc | Sign => {
            return match farthest(f, &[g(lo), g(hi)]) {
                f64::INFINITY => Approx::uncertain(f),
                error => Approx {
                    value: f,
                    magnitude: f.abs(),
                    error,
                },
            };
        }
        Sqrt => return rounded(dtype, f, f.abs(), farthest(f, &[g(lo), g(hi)]), 0.0),
        _ => {}
    }
    let special = x.is_exact() && (x.value == 0.0 || !x.value.is_finite());
    if special && (f == 0.0 || f.abs() == 1.0 || !f.is_finite()) {
        return Approx::exact(f);
    }
    let before = match op {
        Sin | Cos => x.error.min(2.0),
        Tan if x.is_exact() => 0.0,
        Tan => {
            let branch = |p: f64| (p / std::f64::consts::PI + 0.5).floor();
            if branch(lo) == branch(hi) && g(lo) <= g(hi) {
                farthest(f, &[g(lo), g(hi)])
            } else {
                f64::INFINITY
            }
        }
        Cosh if lo <= 0.0 && hi >= 0.0 => farthest(f, &[g(lo), g(hi), 1.0]),
        Cosh => farthest(f, &[g(lo), g(hi)]),
        _ => match op.carry() {
            Carry::Monotone => farthest(f, &[g(lo), g(hi)]),
            Carry::Own => f64::INFINITY,
        },
    };
    rounded(dtype, f, f.abs(), before, op.ulps())
}

/// The error of a product before it is rounded.
pub(crate) fn product_error(x: Approx, y: Approx) -> f64 {
    if (x.value.is_infinite() && x.is_exact() && y.certain_sign())
        || (y.value.is_infinite() && y.is_exact() && x.certain_sign())
    {
        return 0.0;
    }
    times(x.value.abs(), y.error) + times(y.value.abs(), x.error) + times(x.error, y.error)
}

fn quotient_error(x: Approx, y: Approx, f: f64) -> f64 {
    if y.value == 0.0 && y.is_exact() {
        return if x.certain_sign() { 0.0 } else { f64::INFINITY };
    }
    let room = y.value.abs() - y.error;
    if room <= 0.0 {
        return f64::INFINITY;
    }
    if x.value.is_infinite() && x.is_exact() && y.value.is_finite() {
        return 0.0;
    }
    (x.error + times(f.abs(), y.error)) / room
}

fn binary(op: ScalarOp, dtype: DType, x: Approx, y: Approx, f: f64) -> Approx {
    use ScalarOp::*;
    // A certain NaN wins every binary operation on floats but pow.
    if op != Pow && ((x.value.is_nan() && !x.is_uncertain()) || (y.value.is_nan() && !y.is_uncertain())) {
        return Approx::exact(f64::NAN);
    }
    if x.is_uncertain() || y.is_uncertain() {
        return Approx::uncertain(f);
    }
    match op {
        Add | Sub => rounded(dtype, f, x.magnitude + y.magnitude, x.error + y.error, 0.0),
        Mul => rounded(dtype, f, x.magnitude * y.magnitude, product_error(x, y), 0.0),
        Div => rounded(dtype, f, f.abs(), quotient_error(x, y, f), 0.0),
        Max | Min => extremum(x, y, f),
        Rem | Mod => {
            // If every quotient in reach has the same whole part q, the result is x − q y.
            let ((x0, x1), (y0, y1)) = (x.ends(), y.ends());
            let quotients = [x0 / y0, x0 / y1, x1 / y0, x1 / y1];
            let low = quotients
                .iter()
                .fold(f64::INFINITY, |m, q| m.min(q - q.abs() * 4.0 * U64));
            let high = quotients
                .iter()
                .fold(f64::NEG_INFINITY, |m, q| m.max(q + q.abs() * 4.0 * U64));
            let (low, high) = if op == Rem {
                (low.trunc(), high.trunc())
            } else {
                (low.floor(), high.floor())
            };
            let before = if low == high && low.is_finite() && y.certain_sign() {
                x.error + times(low.abs(), y.error)
            } else {
                f64::INFINITY
            };
            rounded(dtype, f, f.abs(), before, 0.0)
        }
        Pow => {
            let before = pow_error(x, y, f);
            let special = x.is_exact()
                && y.is_exact()
                && (f == 0.0 || f.abs() == 1.0 || !f.is_finite())
                && [x.value, y.value]
                    .iter()
                    .any(|v| *v == 0.0 || v.abs() == 1.0 || !v.is_finite());
            if special {
                Approx::exact(f)
            } else {
                rounded(dtype, f, f.abs(), before, op.ulps())
            }
        }
        Atan2 => {
            if f == 0.0 && x.is_exact() && y.is_exact() {
                return Approx::exact(f);
            }
            let crosses = x.error > 0.0 && x.value.abs() <= x.error && y.value - y.error <= 0.0;
            let (moved, radius) = (x.error.hypot(y.error), x.value.hypot(y.value));
            let before = if moved == 0.0 {
                0.0
            } else if crosses || moved >= radius {
                f64::INFINITY
            } else {
                // The angle seen from the origin: asin(moved / radius), and asin(t) <= t / sqrt(1 − t²).
                let t = moved / radius;
                t / (1.0 - t * t).sqrt()
            };
            rounded(dtype, f, f.abs(), before, op.ulps())
        }
        _ => Approx::uncertain(f),
    }
}

/// Maximum or minimum of two certain numbers.
pub(crate) fn extremum(x: Approx, y: Approx, f: f64) -> Approx {
    let (winner, loser) = if x.value == f { (x, y) } else { (y, x) };
    let apart = spread(winner.value, loser.value);
    let error = if apart > winner.error + loser.error {
        winner.error
    } else {
        winner.error.max(loser.error)
    };
    let open_zero = x.value == 0.0 && y.value == 0.0 && x.value.is_sign_negative() != y.value.is_sign_negative();
    Approx {
        value: f,
        magnitude: f.abs(),
        error: if open_zero { error.max(TINY) } else { error },
    }
}

fn pow_error(x: Approx, y: Approx, f: f64) -> f64 {
    if x.is_exact() && y.is_exact() {
        return 0.0;
    }
    let g = |a: f64, b: f64| ScalarOp::Pow.eval_f64(&[a, b, 0.0]);
    let ((x0, x1), (y0, y1)) = (x.ends(), y.ends());
    if x0 <= 0.0 && !y.is_exact() {
        // NaN for certain if the base is negative and no integer is in the exponent's reach.
        if x1 < 0.0 && x0.is_finite() && y0.floor() == y1.floor() && y0.floor() != y0 {
            return 0.0;
        }
        return f64::INFINITY;
    }
    let corners = farthest(f, &[g(x0, y0), g(x0, y1), g(x1, y0), g(x1, y1)]);
    if x0 > 0.0 || x1 < 0.0 {
        return corners;
    }
    // The base may be zero: a pole below, the extremum of an even power above.
    if y.value < 0.0 {
        f64::INFINITY
    } else {
        corners.max(farthest(f, &[g(0.0, y.value)]))
    }
}

/// Whether a comparison of two floats is certain.
pub(crate) fn comparison_is_certain(x: Approx, y: Approx) -> bool {
    if x.is_uncertain() || y.is_uncertain() {
        return false;
    }
    if x.value.is_nan() || y.value.is_nan() || (x.is_exact() && y.is_exact()) {
        return true;
    }
    if (x.is_exact() || x.error == TINY) && (y.is_exact() || y.error == TINY) {
        // A zero of open sign still compares as zero.
        return true;
    }
    let apart = spread(x.value, y.value);
    apart > (x.error + y.error) * (1.0 + 1e-9) + (x.value.abs() + y.value.abs()) * 2.0 * U64
}

/// A float converted to another float dtype.
pub(crate) fn convert(x: Approx, from: DType, to: DType) -> Approx {
    if x.is_uncertain() || from == to {
        return x;
    }
    let widens = to == DType::F64 || (to == DType::F32 && from != DType::F64);
    if widens {
        return x;
    }
    if x.is_exact() {
        let value = Scalar::from_f64(to, x.value).as_f64();
        return Approx {
            value,
            magnitude: if value.is_finite() { x.magnitude } else { value.abs() },
            error: 0.0,
        };
    }
    // Through f32 or directly: `rounded` charges both.
    rounded(to, x.value, x.magnitude, x.error, 0.0)
}
