//! Adafactor: of a matrix of squares only the means of its rows and columns are kept.

use tlc_ir::DType;

use super::rule::{At, Moved, Of, Rule, Slot};
use super::schedule::Schedule;
use super::settings::settings;
use crate::dim::keep;
use crate::functions::pow;
use crate::graph::scope::Step;

settings! {
    /// Adafactor (Shazeer and Stern, arXiv:1804.04235). Of parameters with at least two axes it remembers means over the last axis and over
    /// the one before; of others a mean of squares as long as they are.
    Adafactor "adafactor" {
        /// The highest learning rate; that of step `t` is at most `1 / √t`, relative to the size of the parameter.
        lr "lr" Positive: Schedule = Schedule::Constant(1e-2);
        /// At step `t` the means take `t^beta2_decay` of the new squares.
        beta2_decay "b2_decay" Negative: f64 = -0.8;
        /// The least root of a mean of squares; that of 1 in the parameter's dtype, if not given.
        eps1 "eps1" Positive: Option<f64> = None;
        /// The least size of a parameter that its rate is relative to.
        eps2 "eps2" Positive: f64 = 1e-3;
        /// How large the root of the mean square of a step may be before it is shortened.
        clip "clip" FromOne: f64 = 1.0;
        /// By what part of the rate parameters shrink.
        weight_decay "wd" Positive: f64 = 0.0;
    }
}

/// The distance from 1 to the next number.
fn spacing(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::EPSILON,
        DType::F16 => (-10f64).exp2(),
        DType::BF16 => (-7f64).exp2(),
        _ => f64::from(f32::EPSILON),
    }
}

impl Rule for Adafactor {
    fn slots(&self, of: &Of) -> Vec<Slot> {
        let n = of.shape.len();
        if n < 2 {
            return vec![of.slot("square")];
        }
        let without = |name, axis: usize| {
            let mut slot = of.slot(name);
            slot.shape[axis] = 1.into();
            slot
        };
        vec![without("rows", n - 1), without("columns", n - 2)]
    }

    fn step(&self, at: &At) -> Step<Moved> {
        let (g, rate) = (at.gradient, at.rate(&self.lr));
        let least = self.eps1.unwrap_or(spacing(at.kept));
        let news = at.scalar(&pow(at.step, self.beta2_decay))?;
        let relative = at.scalar(&rate.minimum(at.step.rsqrt()))?;
        let size = at.parameter.square().mean(..).sqrt().maximum(self.eps2) * relative;
        let x = at.decayed(&rate, self.weight_decay)?;
        let towards = |k: usize, new: crate::graph::Tensor| {
            let old = &at.slots[k];
            old + (new - old) * &news
        };
        let (square, slots) = match at.parameter.rank() {
            0 | 1 => {
                let square = towards(0, g.square());
                (square.clone(), vec![square])
            }
            _ => {
                let (rows, columns) = (
                    towards(0, g.square().mean(keep(-1))),
                    towards(1, g.square().mean(keep(-2))),
                );
                let square = &rows * &columns / rows.mean(keep(-2)).maximum(least);
                (square, vec![rows, columns])
            }
        };
        let direction = square.maximum(least * least).rsqrt() * g;
        let length = (direction.square().mean(..).sqrt() / self.clip).maximum(1.0);
        Ok((x - direction * (size / length), slots))
    }
}
