//! A factor of the loss under which gradients of f16 are neither zero nor infinite.

use std::str::FromStr;

use tlc_ir::DType;

use super::text::{UnknownOptimizer, parts};
use crate::graph::scope::{Step, refuse_expecting};
use crate::graph::{Graph, Tensor};

/// A factor of the loss that follows what gradients bear: it falls by `backoff` where one is no finite number, and grows by `growth` behind so
/// many steps without (Micikevicius et al., "Mixed precision training", arXiv:1710.03740; the defaults are those of `torch.amp.GradScaler`).
/// [`Groups::loss_scale`](super::Groups::loss_scale) uses it.
#[derive(Clone, Debug, PartialEq)]
pub struct LossScale {
    /// The factor before the first step.
    pub first: f64,
    /// What it grows by.
    pub growth: f64,
    /// What it falls by.
    pub backoff: f64,
    /// Behind how many good steps in a row it grows.
    pub interval: u64,
}

impl Default for LossScale {
    fn default() -> LossScale {
        LossScale {
            first: 65536.0,
            growth: 2.0,
            backoff: 0.5,
            interval: 2000,
        }
    }
}

impl std::fmt::Display for LossScale {
    /// Its four numbers.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{},{},{},{}", self.first, self.growth, self.backoff, self.interval)
    }
}

impl FromStr for LossScale {
    type Err = UnknownOptimizer;

    /// Up to four numbers, in the order of the fields: `65536,2,0.5,2000`.
    fn from_str(text: &str) -> Result<LossScale, UnknownOptimizer> {
        let unknown = || UnknownOptimizer(format!("the loss scale `{text}`, expected {}", LossScale::FITS));
        let mut it = LossScale::default();
        for (k, number) in parts(text, ',').into_iter().enumerate() {
            let value = || number.parse::<f64>().map_err(|_| unknown());
            match k {
                0 => it.first = value()?,
                1 => it.growth = value()?,
                2 => it.backoff = value()?,
                3 => it.interval = number.parse().map_err(|_| unknown())?,
                _ => return Err(unknown()),
            }
        }
        match it.is_sound() {
            true => Ok(it),
            false => Err(unknown()),
        }
    }
}

impl LossScale {
    const FITS: &'static str = "a first factor above 0, a growth of at least 1, a backoff above 0 and at most 1, and a number of steps of at least 1";

    fn is_sound(&self) -> bool {
        let first = (self.first as f32).is_finite() && self.first as f32 > 0.0;
        let growth = self.growth >= 1.0 && self.growth.is_finite();
        first && growth && self.backoff > 0.0 && self.backoff <= 1.0 && self.interval > 0
    }

    /// Refuses numbers that make no factor.
    pub(super) fn checked(&self) -> Step<&LossScale> {
        match self.is_sound() {
            true => Ok(self),
            false => refuse_expecting(format!("the loss scale {self}"), LossScale::FITS),
        }
    }

    /// The factor now (`f32[]`) and how many good steps there were since it changed (`u64[]`), states by the name of the optimizer.
    pub(super) fn states(graph: &Graph, optimizer: &str) -> [(String, Tensor); 2] {
        let value = format!("{optimizer}.loss_scale.value");
        let good = format!("{optimizer}.loss_scale.good_steps");
        let (factor, steps) = (graph.state(&value, DType::F32, ()), graph.state(&good, DType::U64, ()));
        [(value, factor), (good, steps)]
    }

    /// Sets the states behind a step whose gradients were finite numbers, or were not.
    pub(super) fn follow(&self, ok: &Tensor, optimizer: &str) -> Step<()> {
        let graph = ok.graph();
        let [(value, factor), (good, steps)] = LossScale::states(graph, optimizer);
        let steps = steps + 1;
        let grows = steps.ge(graph.scalar(self.interval, DType::U64));
        let grown = &factor * self.growth;
        // One that is infinite would never come back.
        let grown = grows.logical_and(grown.is_finite()).select(grown, &factor);
        let fallen = &factor * self.backoff;
        // Nor would one whose reciprocal is infinite.
        let fallen = fallen.ge(f64::from(f32::MIN_POSITIVE)).select(fallen, &factor);
        graph.set(&value, &ok.select(grown, fallen));
        let none = graph.scalar(0u64, DType::U64);
        graph.set(&good, &ok.logical_and(grows.logical_not()).select(steps, none));
        Ok(())
    }
}
