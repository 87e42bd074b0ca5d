//! Rates per element from the squares of its gradients, without a mean of gradients.

use super::rule::{At, Moved, Of, Rule, Slot};
use super::schedule::Schedule;
use super::settings::settings;
use crate::graph::scope::Step;

settings! {
    /// Steps over the root of the sum of all squares (Duchi, Hazan and Singer, JMLR 12, 2011).
    Adagrad "adagrad" {
        /// The learning rate.
        lr "lr" Positive: Schedule = Schedule::Constant(1e-2);
        /// The rate is divided by `1 + (step - 1) * lr_decay`.
        lr_decay "lr_decay" Positive: f64 = 0.0;
        /// What is added to the divisor.
        eps "eps" Positive: f64 = 1e-10;
        /// The factor of the penalty on the squares of parameters.
        weight_decay "wd" Positive: f64 = 0.0;
        /// The sum of squares before step 1.
        initial "initial" Positive: f64 = 0.0;
    }
}

settings! {
    /// Steps over the root of a mean of squares, times the root of the mean of the squares of steps (Zeiler, arXiv:1212.5701).
    Adadelta "adadelta" {
        /// The learning rate.
        lr "lr" Positive: Schedule = Schedule::Constant(1.0);
        /// How slowly the means change.
        rho "rho" Fraction: f64 = 0.9;
        /// What is added to the means.
        eps "eps" Positive: f64 = 1e-6;
        /// The factor of the penalty on the squares of parameters.
        weight_decay "wd" Positive: f64 = 0.0;
    }
}

settings! {
    /// Steps over the root of a mean of squares (Tieleman and Hinton, "Lecture 6.5: rmsprop", 2012).
    RmsProp "rmsprop" {
        /// The learning rate.
        lr "lr" Positive: Schedule = Schedule::Constant(1e-2);
        /// How slowly the mean of squares changes.
        alpha "alpha" Fraction: f64 = 0.99;
        /// What is added to the divisor.
        eps "eps" Positive: f64 = 1e-8;
        /// The factor of the penalty on the squares of parameters.
        weight_decay "wd" Positive: f64 = 0.0;
        /// How much of the former direction is kept.
        momentum "momentum" Positive: f64 = 0.0;
        /// The square of the mean is taken off the mean of squares (Graves, arXiv:1308.0850).
        centered "centered" Any: bool = false;
    }
}

impl Rule for Adagrad {
    fn slots(&self, of: &Of) -> Vec<Slot> {
        vec![Slot {
            first: self.initial,
            ..of.slot("sum")
        }]
    }

    fn step(&self, at: &At) -> Step<Moved> {
        let g = at.penalized(self.weight_decay);
        let rate = at.scalar(&(at.rate(&self.lr) / (1.0 + (at.step - 1.0) * self.lr_decay)))?;
        let sum = &at.slots[0] + &g * &g;
        Ok((at.parameter - g * rate / (sum.sqrt() + self.eps), vec![sum]))
    }
}

impl Rule for Adadelta {
    fn slots(&self, of: &Of) -> Vec<Slot> {
        vec![of.slot("square"), of.slot("delta")]
    }

    fn step(&self, at: &At) -> Step<Moved> {
        let g = at.penalized(self.weight_decay);
        let rate = at.scalar(&at.rate(&self.lr))?;
        let square = at.mean_square(0, &g, self.rho);
        let delta = (&at.slots[1] + self.eps).sqrt() / (&square + self.eps).sqrt() * g;
        let deltas = at.mean_square(1, &delta, self.rho);
        Ok((at.parameter - delta * rate, vec![square, deltas]))
    }
}

impl Rule for RmsProp {
    fn slots(&self, of: &Of) -> Vec<Slot> {
        let mut slots = vec![of.slot("square")];
        if self.momentum != 0.0 {
            slots.push(of.slot("momentum"));
        }
        if self.centered {
            slots.push(of.slot("mean"));
        }
        slots
    }

    fn step(&self, at: &At) -> Step<Moved> {
        let g = at.penalized(self.weight_decay);
        let rate = at.scalar(&at.rate(&self.lr))?;
        let square = at.mean_square(0, &g, self.alpha);
        let mean = self.centered.then(|| at.mean(at.slots.len() - 1, &g, self.alpha));
        let spread = match &mean {
            // Rounding may leave less than nothing.
            Some(mean) => (&square - mean * mean).maximum(0.0),
            None => square.clone(),
        };
        let mut direction = g / (spread.sqrt() + self.eps);
        let mut slots = vec![square];
        if self.momentum != 0.0 {
            direction += &at.slots[1] * self.momentum;
            slots.push(direction.clone());
        }
        slots.extend(mean);
        Ok((at.parameter - direction * rate, slots))
    }
}
