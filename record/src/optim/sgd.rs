//! Gradient descent.

use super::rule::{At, Moved, Of, Rule, Slot};
use super::schedule::Schedule;
use super::settings::settings;
use crate::graph::scope::Step;

settings! {
    /// Stochastic gradient descent with momentum (Sutskever et al., ICML 2013), as in PyTorch: `b = momentum * b + (1 - dampening) * g`, but
    /// `b = g` at step 1, then `p -= lr * b`; `lr * (g + momentum * b)` with Nesterov's momentum.
    Sgd "sgd" {
        /// The learning rate.
        lr "lr" Positive: Schedule = Schedule::Constant(1e-3);
        /// How much of the former direction is kept.
        momentum "momentum" Positive: f64 = 0.0;
        /// How much of the gradient does not enter the direction.
        dampening "dampening" Any: f64 = 0.0;
        /// The factor of the penalty on the squares of parameters.
        weight_decay "wd" Positive: f64 = 0.0;
        /// Nesterov's momentum.
        nesterov "nesterov" Any: bool = false;
    }
}

impl Rule for Sgd {
    fn slots(&self, of: &Of) -> Vec<Slot> {
        match self.momentum == 0.0 {
            true => vec![],
            false => vec![of.slot("momentum")],
        }
    }

    fn step(&self, at: &At) -> Step<Moved> {
        let g = at.penalized(self.weight_decay);
        let rate = at.scalar(&at.rate(&self.lr))?;
        if self.momentum == 0.0 {
            return Ok((at.parameter - g * rate, vec![]));
        }
        let mut buffer = &at.slots[0] * self.momentum + &g * (1.0 - self.dampening);
        if self.dampening != 0.0 {
            buffer = at.step.le(1.0).select(&g, &buffer);
        }
        let direction = match self.nesterov {
            true => g + &buffer * self.momentum,
            false => buffer.clone(),
        };
        Ok((at.parameter - direction * rate, vec![buffer]))
    }
}
