//! Steps that have the same length in every element.

use super::rule::{At, Moved, Of, Rule, Slot};
use super::schedule::Schedule;
use super::settings::settings;
use crate::graph::scope::Step;

settings! {
    /// Lion (Chen et al., arXiv:2302.06675): `p = p * (1 - lr * weight_decay) - lr * sign(beta1 * m + (1 - beta1) * g)`, then
    /// `m = beta2 * m + (1 - beta2) * g`.
    Lion "lion" {
        /// The learning rate.
        lr "lr" Positive: Schedule = Schedule::Constant(1e-4);
        /// How much of the former mean decides the direction.
        beta1 "b1" Fraction: f64 = 0.9;
        /// How slowly the mean of gradients changes.
        beta2 "b2" Fraction: f64 = 0.99;
        /// By what part of the rate parameters shrink.
        weight_decay "wd" Positive: f64 = 0.0;
    }
}

impl Rule for Lion {
    fn slots(&self, of: &Of) -> Vec<Slot> {
        vec![of.slot("mean")]
    }

    fn step(&self, at: &At) -> Step<Moved> {
        let rate = at.rate(&self.lr);
        let direction = (&at.slots[0] * self.beta1 + at.gradient * (1.0 - self.beta1)).sign();
        let mean = &at.slots[0] * self.beta2 + at.gradient * (1.0 - self.beta2);
        Ok((at.along(&rate, direction, self.weight_decay)?, vec![mean]))
    }
}
