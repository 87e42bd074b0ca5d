//! What every optimizer says of itself: what it remembers, and one step.

use tlc_ir::DType;

use super::schedule::Schedule;
use super::settings::Settings;
use crate::dim::Dim;
use crate::functions::pow;
use crate::graph::scope::Step;
use crate::graph::{Graph, Tensor};

/// Something that an optimizer remembers of a parameter from step to step.
#[derive(Clone, PartialEq, Debug)]
pub struct Slot {
    /// Its name among those of the parameter.
    pub name: &'static str,
    /// The element type: f32, or wider.
    pub dtype: DType,
    /// The extents: those of the parameter, but for what the method says.
    pub shape: Vec<Dim>,
    /// What all elements are before step 1.
    pub first: f64,
}

impl Slot {
    /// What it is before step 1.
    #[track_caller]
    pub fn first_value(&self, g: &Graph) -> Tensor {
        g.full(self.shape.clone(), self.first, self.dtype)
    }
}

/// The type of a parameter, as it is computed in.
pub(super) struct Of<'a> {
    pub dtype: DType,
    pub shape: &'a [Dim],
}

impl Of<'_> {
    /// A slot of the parameter's shape that begins with zeros.
    pub fn slot(&self, name: &'static str) -> Slot {
        Slot {
            name,
            dtype: self.dtype,
            shape: self.shape.to_vec(),
            first: 0.0,
        }
    }
}

/// One step of one parameter.
pub(super) struct At<'a> {
    /// The number of the step: `f64[]`, from 1.
    pub step: &'a Tensor,
    /// The parameter, in at least f32.
    pub parameter: &'a Tensor,
    /// Its gradient, of the same type.
    pub gradient: &'a Tensor,
    /// The slots, in the order in which [`Rule::slots`] names them.
    pub slots: &'a [Tensor],
    /// The dtype of the parameter as it is kept.
    pub kept: DType,
}

impl At<'_> {
    /// The rate of this step, `f64[]`.
    pub fn rate(&self, schedule: &Schedule) -> Tensor {
        schedule.at(self.step)
    }

    /// What is computed in f64 and without axes, beside elements.
    pub fn scalar(&self, x: &Tensor) -> Step {
        x.to(self.parameter.dtype())
    }

    /// `1 - beta^step`: by how much a mean that began with zero is too small.
    pub fn correction(&self, beta: f64) -> Tensor {
        1.0 - pow(beta, self.step)
    }

    /// The gradient of the loss with the penalty `decay / 2 * Σ parameter²`.
    pub fn penalized(&self, decay: f64) -> Tensor {
        match decay == 0.0 {
            true => self.gradient.clone(),
            false => self.gradient + self.parameter * decay,
        }
    }

    /// The parameter times `1 - rate * decay`.
    pub fn decayed(&self, rate: &Tensor, decay: f64) -> Step {
        match decay == 0.0 {
            true => Ok(self.parameter.clone()),
            false => Ok(self.parameter * self.scalar(&(1.0 - rate * decay))?),
        }
    }

    /// The parameter times `1 - rate * decay`, less `rate * direction`. The rate enters once, so that even an expensive schedule is computed in
    /// the update's kernel.
    pub fn along(&self, rate: &Tensor, direction: Tensor, decay: f64) -> Step {
        let direction = match decay == 0.0 {
            true => direction,
            false => direction + self.parameter * decay,
        };
        Ok(self.parameter - direction * self.scalar(rate)?)
    }

    /// The running mean of slot `k`, with `x`.
    pub fn mean(&self, k: usize, x: &Tensor, beta: f64) -> Tensor {
        let old = &self.slots[k];
        old + (x - old) * (1.0 - beta)
    }

    /// The running mean of slot `k` of squares, with the square of `x`.
    pub fn mean_square(&self, k: usize, x: &Tensor, beta: f64) -> Tensor {
        &self.slots[k] * beta + x * x * (1.0 - beta)
    }
}

/// A parameter and its slots behind a step.
pub(super) type Moved = (Tensor, Vec<Tensor>);

/// An optimizer.
pub(super) trait Rule: Settings {
    fn slots(&self, of: &Of) -> Vec<Slot>;
    fn step(&self, at: &At) -> Step<Moved>;

    /// Whether a step of one parameter depends on the others.
    fn moves_together(&self) -> bool {
        false
    }

    /// One step of several parameters. Where `ok` (`bool[]`) is given and does not hold, nothing is kept of it; slots for which [`Rule::keeps`] must
    /// then be as they were.
    fn together(&self, all: &[At], _ok: Option<&Tensor>) -> Step<Vec<Moved>> {
        all.iter().map(|at| self.step(at)).collect()
    }

    /// Whether the slot of that number stays as it was, to the bit, in a step that is not to be; else the one who steps chooses.
    fn keeps(&self, _slot: usize) -> bool {
        false
    }
}
