//! Derivatives of the scalar operations.
//!
//! Invariants:
//! - Every operation has a line here: one that is missing does not compile.
//! - What takes more than one operation is computed in the accumulator of the dtype (f32 for f16 and bf16) and rounded once.
//! - A derivative that the result says is made of the result: `exp`, `tanh`, `sqrt`.
//! - Each cotangent is linear in that of the result, so that the rules serve forwards as well.
//!
//! Corners are as in PyTorch: `abs` and `sign` give 0 at 0, `max` and `min` split evenly between equal operands, `x ** 0` gives 0
//! everywhere, `atan2` gives 0 at the origin, `sqrt`, `log` and `1 / x` give an infinity at 0, and `rem` and `mod` those of the
//! quotient that they took off.

use tlc_ir::{DType, Scalar, ScalarOp};

use super::node::{At, Cotangents, Linearized, sum};
use crate::graph::Tensor;
use crate::graph::scope::Step;

/// Cotangents of the operands of `op`.
pub(super) fn rule(op: ScalarOp, at: &At<'_>) -> Step<Cotangents> {
    use std::f64::consts::{FRAC_2_SQRT_PI, LN_2};
    let wide = at.cotangent.dtype().accumulator();
    let g = at.cotangent;
    let x = |k: usize| at.operands[k].to(wide);
    let y = || at.result.to(wide);
    let d = || g.to(wide);
    match op {
        ScalarOp::Sign | ScalarOp::Floor | ScalarOp::Ceil | ScalarOp::Round | ScalarOp::Trunc => Ok(at.zero()),
        ScalarOp::Not | ScalarOp::And | ScalarOp::Or | ScalarOp::Xor | ScalarOp::Shl | ScalarOp::Shr => Ok(at.zero()),
        ScalarOp::Dot4 | ScalarOp::Eq | ScalarOp::Ne | ScalarOp::Lt | ScalarOp::Le => Ok(at.zero()),
        ScalarOp::Neg => at.each(|_| Ok(-g)),
        ScalarOp::Abs => at.each(|_| Ok(g * at.operands[0].sign())),
        ScalarOp::Sqrt => at.each(|_| Ok(d()? * 0.5 / y()?)),
        ScalarOp::Rsqrt => at.each(|_| Ok(d()? * -0.5 * y()? * y()? * y()?)),
        ScalarOp::Exp => at.each(|_| Ok(d()? * y()?)),
        ScalarOp::Exp2 => at.each(|_| Ok(d()? * LN_2 * y()?)),
        // Of its result it would lose all digits where that is near -1.
        ScalarOp::Expm1 => at.each(|_| Ok(d()? * x(0)?.exp())),
        ScalarOp::Log => at.each(|_| Ok(d()? / x(0)?)),
        ScalarOp::Log2 => at.each(|_| Ok(d()? / (x(0)? * LN_2))),
        ScalarOp::Log1p => at.each(|_| Ok(d()? / (x(0)? + 1.0))),
        ScalarOp::Sin => at.each(|_| Ok(d()? * x(0)?.cos())),
        ScalarOp::Cos => at.each(|_| Ok(d()? * -x(0)?.sin())),
        ScalarOp::Tan => at.each(|_| Ok(d()? * (y()?.square() + 1.0))),
        ScalarOp::Asin => at.each(|_| Ok(d()? * off_unit(&x(0)?).rsqrt())),
        ScalarOp::Acos => at.each(|_| Ok(-d()? * off_unit(&x(0)?).rsqrt())),
        ScalarOp::Atan => at.each(|_| Ok(d()? / (x(0)?.square() + 1.0))),
        ScalarOp::Sinh => at.each(|_| Ok(d()? * x(0)?.cosh())),
        ScalarOp::Cosh => at.each(|_| Ok(d()? * x(0)?.sinh())),
        ScalarOp::Tanh => at.each(|_| Ok(d()? * off_unit(&y()?))),
        ScalarOp::Asinh => at.each(|_| Ok(d()? * (x(0)?.square() + 1.0).rsqrt())),
        // Two roots: NaN below 1, where the function is.
        ScalarOp::Acosh => at.each(|_| Ok(d()? * (x(0)? - 1.0).rsqrt() * (x(0)? + 1.0).rsqrt())),
        ScalarOp::Atanh => at.each(|_| Ok(d()? / off_unit(&x(0)?))),
        ScalarOp::Erf => at.each(|_| Ok(d()? * FRAC_2_SQRT_PI * (-x(0)?.square()).exp())),
        ScalarOp::Add => at.each(|_| Ok(g.clone())),
        ScalarOp::Sub => at.each(|k| Ok(if k == 0 { g.clone() } else { -g })),
        ScalarOp::Mul => at.each(|k| Ok(g * &at.operands[1 - k])),
        ScalarOp::Div => at.each(|k| match k {
            0 => Ok(g / &at.operands[1]),
            _ => Ok(-d()? * (y()? / x(1)?)),
        }),
        ScalarOp::Rem | ScalarOp::Mod => at.each(|k| match k {
            0 => Ok(g.clone()),
            // The quotient that was taken off, from the remainder: that of the operands may round to the next integer.
            _ => Ok(-d()? * ((x(0)? - y()?) / x(1)?).round()),
        }),
        ScalarOp::Pow => at.some(|k| match k {
            0 => power(at, &x(0)?, &x(1)?, &d()?),
            _ => {
                let flat = x(0)?.eq(0.0).logical_and(x(1)?.ge(0.0));
                // Where that is so, the logarithm is one of 1: how this changes with `d` is no 0 * inf then.
                let log = flat.select(1.0, x(0)?).log();
                Ok(Some(flat.select(0.0, d()? * (y()? * log))))
            }
        }),
        ScalarOp::Atan2 => at.each(|k| {
            // The angle of no direction.
            let origin = x(0)?.eq(0.0).logical_and(x(1)?.eq(0.0));
            let square = origin.select(1.0, x(0)?.square() + x(1)?.square());
            let slope = match k {
                0 => d()? * (x(1)? / square),
                _ => -d()? * (x(0)? / square),
            };
            Ok(origin.select(0.0, slope))
        }),
        ScalarOp::Max => at.each(|k| Ok(extremum(g, &at.operands[k], &at.operands[1 - k]))),
        ScalarOp::Min => at.each(|k| Ok(extremum(g, &at.operands[1 - k], &at.operands[k]))),
        ScalarOp::Select => at.each(|k| {
            let zero = g.zeros_like();
            let (yes, no) = if k == 1 { (g, &zero) } else { (&zero, g) };
            Ok(at.operands[0].select(yes, no))
        }),
        ScalarOp::Fma => at.each(|k| match k {
            0 => Ok(g * &at.operands[1]),
            1 => Ok(g * &at.operands[0]),
            _ => Ok(g.clone()),
        }),
    }
}

/// The tangent of the result of `op`. Element by element a derivative is its own transpose: each operand's part is what [`rule`] makes
/// of its tangent.
pub(super) fn tangent(op: ScalarOp, at: &Linearized<'_>) -> Step<Option<Tensor>> {
    let dtype = at.result.dtype();
    if op == ScalarOp::Select {
        return Ok(Some(at.operands[0].select(at.tangent(1)?, at.tangent(2)?)));
    }
    let mut parts = vec![];
    for (k, t) in at.tangents.iter().enumerate() {
        let Some(t) = t else { continue };
        // A power's derivative by its base says how it changes with an exponent that moves as well.
        let both = |j: usize| op == ScalarOp::Pow && at.tangents[j].is_some();
        let wanted: Vec<bool> = (0..at.operands.len()).map(|j| j == k || both(j)).collect();
        let mut of = rule(
            op,
            &At {
                kind: at.kind,
                operands: at.operands,
                wanted: &wanted,
                result: at.result,
                cotangent: t,
            },
        )?;
        parts.extend(of.swap_remove(k));
    }
    sum(&parts, dtype)
}

/// `1 - x²` without cancellation near 1 and -1.
fn off_unit(x: &Tensor) -> Tensor {
    (1.0 - x) * (x + 1.0)
}

/// The cotangent of a base: `d * e * x ** (e - 1)`, which is 0 where `e` is.
fn power(at: &At<'_>, x: &Tensor, e: &Tensor, d: &Tensor) -> Step<Option<Tensor>> {
    // By an exponent that is wanted too there is a derivative of this one.
    let known = (!at.wanted[1]).then(|| at.operands[1].known_number()).flatten();
    Ok(match known.map(Scalar::as_f64) {
        Some(0.0) => None,
        Some(1.0) => Some(d.clone()),
        Some(2.0) => Some(d * 2.0 * x),
        Some(3.0) => Some(d * 3.0 * x.square()),
        Some(e) => Some(d * e * x.pow(e - 1.0)),
        None => {
            // Where the factor `e` is 0, so is the slope, but not how it changes with `e`: only what would be 0 * inf is left out.
            let (least, most) = match x.dtype() {
                DType::F64 => (f64::MIN_POSITIVE, f64::MAX),
                _ => (f64::from(f32::MIN_POSITIVE), f64::from(f32::MAX)),
            };
            let size = x.abs();
            let tame = size.ge(least).logical_and(size.le(most));
            let flat = e.eq(0.0).logical_and(tame.logical_not());
            let slope = d * e * flat.select(1.0, x).pow(e - 1.0);
            Some(flat.select(0.0, slope))
        }
    })
}

/// The cotangent of `x` in `max(x, other)` and of `other` in `min(other, x)`: half of it where both are equal. Where either is
/// NaN, all of it goes to both.
fn extremum(d: &Tensor, x: &Tensor, other: &Tensor) -> Tensor {
    x.lt(other).select(0.0, x.eq(other).select(d * 0.5, d))
}
