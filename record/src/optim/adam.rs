//! Adam and what is made of it: steps over the root of a running mean of squares.

use super::rule::{At, Moved, Of, Rule, Slot};
use super::schedule::Schedule;
use super::settings::settings;
use crate::functions::pow;
use crate::graph::Tensor;
use crate::graph::scope::Step;

settings! {
    /// Adam (Kingma and Ba, arXiv:1412.6980).
    Adam "adam" {
        /// The learning rate.
        lr "lr" Positive: Schedule = Schedule::Constant(1e-3);
        /// How slowly the mean of gradients changes.
        beta1 "b1" Fraction: f64 = 0.9;
        /// How slowly the mean of their squares changes.
        beta2 "b2" Fraction: f64 = 0.999;
        /// What is added to the divisor.
        eps "eps" Positive: f64 = 1e-8;
        /// The factor of the penalty on the squares of parameters.
        weight_decay "wd" Positive: f64 = 0.0;
        /// The divisor is the largest so far (Reddi et al., arXiv:1904.09237).
        amsgrad "amsgrad" Any: bool = false;
    }
}

settings! {
    /// Adam whose weight decay shrinks parameters by `lr * weight_decay`, apart from the gradient (Loshchilov and Hutter, arXiv:1711.05101).
    AdamW "adamw" {
        /// The learning rate.
        lr "lr" Positive: Schedule = Schedule::Constant(1e-3);
        /// How slowly the mean of gradients changes.
        beta1 "b1" Fraction: f64 = 0.9;
        /// How slowly the mean of their squares changes.
        beta2 "b2" Fraction: f64 = 0.999;
        /// What is added to the divisor.
        eps "eps" Positive: f64 = 1e-8;
        /// By what part of the rate parameters shrink.
        weight_decay "wd" Positive: f64 = 1e-2;
        /// The divisor is the largest so far (Reddi et al., arXiv:1904.09237).
        amsgrad "amsgrad" Any: bool = false;
    }
}

settings! {
    /// Adam with the largest gradient, which fades, in place of the root of the mean of squares (Kingma and Ba, arXiv:1412.6980).
    Adamax "adamax" {
        /// The learning rate.
        lr "lr" Positive: Schedule = Schedule::Constant(2e-3);
        /// How slowly the mean of gradients changes.
        beta1 "b1" Fraction: f64 = 0.9;
        /// How slowly the largest one fades.
        beta2 "b2" Fraction: f64 = 0.999;
        /// What is added to the size of a gradient.
        eps "eps" Positive: f64 = 1e-8;
        /// The factor of the penalty on the squares of parameters.
        weight_decay "wd" Positive: f64 = 0.0;
    }
}

settings! {
    /// Adam with Nesterov's momentum (Dozat, "Incorporating Nesterov momentum into Adam", 2016).
    NAdam "nadam" {
        /// The learning rate.
        lr "lr" Positive: Schedule = Schedule::Constant(2e-3);
        /// How slowly the mean of gradients changes, in the end.
        beta1 "b1" Fraction: f64 = 0.9;
        /// How slowly the mean of their squares changes.
        beta2 "b2" Fraction: f64 = 0.999;
        /// What is added to the divisor.
        eps "eps" Positive: f64 = 1e-8;
        /// The factor of the penalty on the squares of parameters.
        weight_decay "wd" Positive: f64 = 0.0;
        /// How fast the momentum grows.
        momentum_decay "md" Positive: f64 = 4e-3;
        /// Weight decay as in [`AdamW`].
        decoupled "decoupled" Any: bool = false;
    }
}

settings! {
    /// Adam that goes without the divisor until there are squares enough (Liu et al., arXiv:1908.03265).
    RAdam "radam" {
        /// The learning rate.
        lr "lr" Positive: Schedule = Schedule::Constant(1e-3);
        /// How slowly the mean of gradients changes.
        beta1 "b1" Fraction: f64 = 0.9;
        /// How slowly the mean of their squares changes.
        beta2 "b2" Fraction: f64 = 0.999;
        /// What is added to the divisor.
        eps "eps" Positive: f64 = 1e-8;
        /// The factor of the penalty on the squares of parameters.
        weight_decay "wd" Positive: f64 = 0.0;
        /// Weight decay as in [`AdamW`].
        decoupled "decoupled" Any: bool = false;
    }
}

settings! {
    /// Adam whose rates per element lie between bounds that close in on `final_lr` (Luo et al., arXiv:1902.09843): from
    /// `final_lr * (1 - 1 / (gamma * step + 1))` to `final_lr * (1 + 1 / (gamma * step))`.
    AdaBound "adabound" {
        /// The learning rate.
        lr "lr" Positive: Schedule = Schedule::Constant(1e-3);
        /// How slowly the mean of gradients changes.
        beta1 "b1" Fraction: f64 = 0.9;
        /// How slowly the mean of their squares changes.
        beta2 "b2" Fraction: f64 = 0.999;
        /// What is added to the divisor.
        eps "eps" Positive: f64 = 1e-8;
        /// The factor of the penalty on the squares of parameters.
        weight_decay "wd" Positive: f64 = 0.0;
        /// The rate in the end.
        final_lr "final" Positive: f64 = 0.1;
        /// How fast the bounds close in.
        gamma "gamma" Positive: f64 = 1e-3;
        /// The divisor is the largest so far.
        amsbound "amsbound" Any: bool = false;
    }
}

/// What Adam and AdamW share: means of the gradient and of its square, and the divisor.
fn moments(at: &At, g: &Tensor, betas: (f64, f64), largest: bool) -> (Tensor, Tensor, Vec<Tensor>) {
    let (mean, square) = (at.mean(0, g, betas.0), at.mean_square(1, g, betas.1));
    match largest {
        true => {
            let most = at.slots[2].maximum(&square);
            (mean.clone(), most.clone(), vec![mean, square, most])
        }
        false => (mean.clone(), square.clone(), vec![mean, square]),
    }
}

fn moment_slots(of: &Of, largest: bool) -> Vec<Slot> {
    let mut slots = vec![of.slot("mean"), of.slot("square")];
    if largest {
        slots.push(of.slot("max_square"));
    }
    slots
}

/// The direction along `mean` over the root of `square`, both corrected.
fn direction(at: &At, mean: &Tensor, square: &Tensor, betas: (f64, f64), eps: f64) -> Step {
    let first = at.scalar(&(1.0 / at.correction(betas.0)))?;
    let spread = at.scalar(&at.correction(betas.1).sqrt())?;
    Ok(mean * first / (square.sqrt() / spread + eps))
}

impl Rule for Adam {
    fn slots(&self, of: &Of) -> Vec<Slot> {
        moment_slots(of, self.amsgrad)
    }

    fn step(&self, at: &At) -> Step<Moved> {
        let (betas, rate) = ((self.beta1, self.beta2), at.rate(&self.lr));
        let (mean, square, slots) = moments(at, &at.penalized(self.weight_decay), betas, self.amsgrad);
        let direction = direction(at, &mean, &square, betas, self.eps)?;
        Ok((at.parameter - direction * at.scalar(&rate)?, slots))
    }
}

impl Rule for AdamW {
    fn slots(&self, of: &Of) -> Vec<Slot> {
        moment_slots(of, self.amsgrad)
    }

    fn step(&self, at: &At) -> Step<Moved> {
        let (betas, rate) = ((self.beta1, self.beta2), at.rate(&self.lr));
        let (mean, square, slots) = moments(at, at.gradient, betas, self.amsgrad);
        let direction = direction(at, &mean, &square, betas, self.eps)?;
        Ok((at.along(&rate, direction, self.weight_decay)?, slots))
    }
}

impl Rule for Adamax {
    fn slots(&self, of: &Of) -> Vec<Slot> {
        vec![of.slot("mean"), of.slot("largest")]
    }

    fn step(&self, at: &At) -> Step<Moved> {
        let g = at.penalized(self.weight_decay);
        let mean = at.mean(0, &g, self.beta1);
        let largest = (&at.slots[1] * self.beta2).maximum(g.abs() + self.eps);
        let rate = at.scalar(&(at.rate(&self.lr) / at.correction(self.beta1)))?;
        Ok((at.parameter - &mean / &largest * rate, vec![mean, largest]))
    }
}

impl Rule for NAdam {
    fn slots(&self, of: &Of) -> Vec<Slot> {
        let product = Slot {
            name: "product",
            dtype: tlc_ir::DType::F64,
            shape: vec![],
            first: 1.0,
        };
        vec![of.slot("mean"), of.slot("square"), product]
    }

    fn step(&self, at: &At) -> Step<Moved> {
        let rate = at.rate(&self.lr);
        let (x, g) = match self.decoupled {
            true => (at.decayed(&rate, self.weight_decay)?, at.gradient.clone()),
            false => (at.parameter.clone(), at.penalized(self.weight_decay)),
        };
        // The momentum of a step.
        let momentum = |step: &Tensor| (1.0 - pow(0.96, step * self.momentum_decay) * 0.5) * self.beta1;
        let (now, next) = (momentum(at.step), momentum(&(at.step + 1.0)));
        let product = &at.slots[2] * &now;
        let (mean, square) = (at.mean(0, &g, self.beta1), at.mean_square(1, &g, self.beta2));
        let divisor = (&square / at.scalar(&at.correction(self.beta2))?).sqrt() + self.eps;
        let of_gradient = at.scalar(&(&rate * (1.0 - &now) / (1.0 - &product)))?;
        let of_mean = at.scalar(&(&rate * &next / (1.0 - &product * &next)))?;
        let x = x - (g * of_gradient + &mean * of_mean) / divisor;
        Ok((x, vec![mean, square, product]))
    }
}

impl Rule for RAdam {
    fn slots(&self, of: &Of) -> Vec<Slot> {
        moment_slots(of, false)
    }

    fn step(&self, at: &At) -> Step<Moved> {
        let rate = at.rate(&self.lr);
        let (x, g) = match self.decoupled {
            true => (at.decayed(&rate, self.weight_decay)?, at.gradient.clone()),
            false => (at.parameter.clone(), at.penalized(self.weight_decay)),
        };
        let (mean, square) = (at.mean(0, &g, self.beta1), at.mean_square(1, &g, self.beta2));
        let (first, second) = (at.correction(self.beta1), at.correction(self.beta2));
        // The length of the average that the mean of squares is like, in the end and now.
        let most = 2.0 / (1.0 - self.beta2) - 1.0;
        let length = most - at.step * 2.0 * pow(self.beta2, at.step) / &second;
        let of_length = most / ((most - 4.0) * (most - 2.0));
        let rectified = ((&length - 4.0) * (&length - 2.0) * of_length / &length).sqrt() * second.sqrt();
        let size = at.scalar(&(rate / first))?;
        let along = &mean * &size;
        let divided = &along / (square.sqrt() + self.eps) * at.scalar(&rectified)?;
        Ok((x - length.gt(5.0).select(divided, along), vec![mean, square]))
    }
}

impl Rule for AdaBound {
    fn slots(&self, of: &Of) -> Vec<Slot> {
        moment_slots(of, self.amsbound)
    }

    fn step(&self, at: &At) -> Step<Moved> {
        let (betas, rate) = ((self.beta1, self.beta2), at.rate(&self.lr));
        let (mean, square, slots) = moments(at, &at.penalized(self.weight_decay), betas, self.amsbound);
        // The bounds follow the schedule of the rate.
        let last = match self.lr {
            Schedule::Constant(_) => at.step.graph().scalar(self.final_lr, tlc_ir::DType::F64),
            _ => {
                let first = self.lr.at(&at.step.graph().scalar(1.0, tlc_ir::DType::F64));
                &rate * self.final_lr / first
            }
        };
        let size = at.scalar(&(rate * at.correction(betas.1).sqrt() / at.correction(betas.0)))?;
        let low = at.scalar(&(&last * (1.0 - 1.0 / (at.step * self.gamma + 1.0))))?;
        let high = at.scalar(&(last * (1.0 + 1.0 / (at.step * self.gamma))))?;
        let sizes = (size / (square.sqrt() + self.eps)).maximum(low).minimum(high);
        Ok((at.parameter - sizes * mean, slots))
    }
}
