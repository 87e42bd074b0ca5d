//! Muon: momentum made orthogonal.

use super::rule::{At, Moved, Of, Rule, Slot};
use super::schedule::Schedule;
use super::settings::settings;
use crate::graph::Tensor;
use crate::graph::scope::{Step, refuse_expecting};

settings! {
    /// Muon (Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024), for matrices: [`Groups`](super::Groups) gives other
    /// parameters another optimizer. A parameter with more axes counts as the matrix of its first axis by the others.
    Muon "muon" {
        /// The learning rate.
        lr "lr" Positive: Schedule = Schedule::Constant(1e-3);
        /// How much of the former direction is kept.
        momentum "momentum" Fraction: f64 = 0.95;
        /// Nesterov's momentum.
        nesterov "nesterov" Any: bool = true;
        /// By what part of the rate parameters shrink.
        weight_decay "wd" Positive: f64 = 0.1;
        /// Iterations towards an orthogonal matrix.
        iterations "steps" FromOne: usize = 5;
        /// The least length that a direction is divided by.
        eps "eps" Positive: f64 = 1e-7;
        /// The rate is multiplied with `0.2 * √max(rows, columns)`, for steps as long as those of AdamW, in place of `√max(1, rows / columns)`.
        match_adamw "match_adamw" Any: bool = false;
    }
}

/// About the nearest orthogonal matrix: an iteration after Newton and Schulz whose polynomial drives singular values to about 1. PyTorch
/// does this in bf16; here it is done in the precision of the update.
fn orthogonal(x: &Tensor, iterations: usize, eps: f64, tall: bool) -> Tensor {
    const A: f64 = 3.4445;
    const B: f64 = -4.7750;
    const C: f64 = 2.0315;
    let mut x = if tall { x.transpose() } else { x.clone() };
    x = &x / x.square().sum(..).sqrt().maximum(eps);
    for _ in 0..iterations {
        let gram = x.matmul(&x.transpose());
        let update = &gram * B + gram.matmul(&gram) * C;
        x = &x * A + update.matmul(&x);
    }
    if tall { x.transpose() } else { x }
}

impl Rule for Muon {
    fn slots(&self, of: &Of) -> Vec<Slot> {
        vec![of.slot("momentum")]
    }

    fn step(&self, at: &At) -> Step<Moved> {
        let Some(shape) = at.parameter.const_shape().filter(|s| s.len() >= 2) else {
            return refuse_expecting(
                "Muon is for matrices whose extents are numbers",
                "another optimizer for this parameter: groups have one for names",
            );
        };
        let (rows, columns) = (shape[0], shape[1..].iter().product::<usize>());
        let rate = at.rate(&self.lr);
        let momentum = at.mean(0, at.gradient, self.momentum);
        let direction = match self.nesterov {
            true => at.gradient + (&momentum - at.gradient) * self.momentum,
            false => momentum.clone(),
        };
        let matrix = direction.reshape([rows, columns]);
        let step = orthogonal(&matrix, self.iterations, self.eps, rows > columns).reshape(at.parameter.shape());
        let factor = match self.match_adamw {
            true => 0.2 * (rows.max(columns) as f64).sqrt(),
            false => (rows as f64 / columns.max(1) as f64).max(1.0).sqrt(),
        };
        let x = at.decayed(&rate, self.weight_decay)?;
        Ok((x - step * at.scalar(&(rate * factor))?, vec![momentum]))
    }
}
