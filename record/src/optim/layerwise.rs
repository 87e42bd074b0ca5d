//! Steps as long as their parameter is large.

use super::rule::{At, Moved, Of, Rule, Slot};
use super::schedule::Schedule;
use super::settings::settings;
use crate::graph::scope::Step;

settings! {
    /// Adam whose step, weight decay included, has the length of the parameter times the rate (You et al., arXiv:1904.00962). Where either is
    /// zero, the step is as it is.
    Lamb "lamb" {
        /// The learning rate.
        lr "lr" Positive: Schedule = Schedule::Constant(1e-3);
        /// How slowly the mean of gradients changes.
        beta1 "b1" Fraction: f64 = 0.9;
        /// How slowly the mean of their squares changes.
        beta2 "b2" Fraction: f64 = 0.999;
        /// What is added to the divisor.
        eps "eps" Positive: f64 = 1e-6;
        /// How much of the parameter is added to the step.
        weight_decay "wd" Positive: f64 = 0.0;
    }
}

impl Rule for Lamb {
    fn slots(&self, of: &Of) -> Vec<Slot> {
        vec![of.slot("mean"), of.slot("square")]
    }

    fn step(&self, at: &At) -> Step<Moved> {
        let (mean, square) = (
            at.mean(0, at.gradient, self.beta1),
            at.mean_square(1, at.gradient, self.beta2),
        );
        let (first, second) = (
            at.scalar(&at.correction(self.beta1))?,
            at.scalar(&at.correction(self.beta2))?,
        );
        let mut step = &mean / first / ((&square / second).sqrt() + self.eps);
        if self.weight_decay != 0.0 {
            step += at.parameter * self.weight_decay;
        }
        let (of_parameter, of_step) = (at.parameter.square().sum(..).sqrt(), step.square().sum(..).sqrt());
        let both = of_parameter.gt(0.0).logical_and(of_step.gt(0.0));
        let trust = both.select(of_parameter / of_step, 1.0);
        let rate = at.scalar(&at.rate(&self.lr))?;
        Ok((at.parameter - step * (rate * trust), vec![mean, square]))
    }
}
