//! L-BFGS: the inverse of the second derivatives, from the last few moves and what they changed in the gradient.
//!
//! Parameters that move together are one vector: inner products are sums over all of them. [`Lbfgs`] as an optimizer takes one step of
//! fixed length a call; [`Lbfgs::minimum`](super::Lbfgs::minimum), in `line_search`, is a whole minimization inside of one graph.
//!
//! Invariant: places for pairs that are not filled yet are not read.

use tlc_ir::DType;
use tlc_ir::graph::ScatterOp;

use super::rule::{At, Moved, Of, Rule, Slot};
use super::schedule::Schedule;
use super::settings::settings;
use crate::dim::Dim;
use crate::graph::scope::{Step, refuse};
use crate::graph::{Graph, Tensor};
use crate::ops::repeat::Iteration;

settings! {
    /// L-BFGS (Liu and Nocedal, "On the limited memory BFGS method for large scale optimization", 1989; Nocedal and Wright, "Numerical
    /// Optimization", 2006, algorithms 7.4 and 7.5).
    ///
    /// As an optimizer it takes a step of fixed length a call, as `torch.optim.LBFGS` with `max_iter=1` and without a line search: the first
    /// along the gradient, `lr * min(1, 1 / Σ|gradient|)` long in units of it. The parameters of one group of [`Groups`](super::Groups) move
    /// together; [`Optimizer::update`](super::Optimizer::update) moves one alone. [`Lbfgs::minimum`] minimizes with a line search.
    Lbfgs "lbfgs" {
        /// The length of a step in units of the direction.
        lr "lr" Positive: Schedule = Schedule::Constant(1.0);
        /// How many pairs of moves and changes of the gradient are kept.
        history "history" FromOne: usize = 100;
        /// Where no element of the gradient is larger, nothing moves.
        tolerance_grad "tol_grad" Positive: f64 = 1e-7;
        /// A direction along which the loss falls at a smaller rate is not taken.
        tolerance_change "tol_change" Positive: f64 = 1e-9;
    }
}

/// The least inner product of a move and the change of the gradient that makes them a pair.
const LEAST_CURVATURE: f64 = 1e-10;

/// The inner product of two lists of tensors, as one of two vectors: `f64[]`.
pub(super) fn dot(a: &[Tensor], b: &[Tensor]) -> Step {
    let mut total: Option<Tensor> = None;
    for (a, b) in a.iter().zip(b) {
        let product = (a * b).sum(..).to(DType::F64)?;
        total = Some(match total {
            Some(total) => total + product,
            None => product,
        });
    }
    total.map_or_else(|| refuse("no parameters"), Ok)
}

/// The sum of absolute values: `f64[]`.
pub(super) fn absolute_sum(all: &[Tensor]) -> Step {
    let mut total: Option<Tensor> = None;
    for t in all {
        let sum = t.abs().sum(..).to(DType::F64)?;
        total = Some(match total {
            Some(total) => total + sum,
            None => sum,
        });
    }
    total.map_or_else(|| refuse("no parameters"), Ok)
}

/// Whether the absolute value of an element is above a limit: `bool[]`.
pub(super) fn any_above(all: &[Tensor], limit: f64) -> Step {
    let mut any: Option<Tensor> = None;
    for t in all {
        let above = t.abs().gt(limit).any(..);
        any = Some(match any {
            Some(any) => any.logical_or(above),
            None => above,
        });
    }
    any.map_or_else(|| refuse("no parameters"), Ok)
}

/// A number, `f64[]`, times each tensor.
pub(super) fn scaled(all: &[Tensor], by: &Tensor) -> Step<Vec<Tensor>> {
    all.iter().map(|t| Ok(t * by.to(t.dtype())?)).collect()
}

/// One list where a condition (`bool[]`) holds, else the other.
pub(super) fn choose(condition: &Tensor, a: &[Tensor], b: &[Tensor]) -> Vec<Tensor> {
    a.iter().zip(b).map(|(a, b)| condition.select(a, b)).collect()
}

/// The pairs that are kept, in a ring: pair number `k`, from 0, is in place `k` modulo the number of places, so that a new one writes nothing but
/// its own place.
#[derive(Clone)]
pub(super) struct History {
    /// By parameter: how the gradient changed, `[history, ..]`.
    pub changes: Vec<Tensor>,
    /// By parameter: the moves, `[history, ..]`.
    pub moves: Vec<Tensor>,
    /// One over the inner product of each pair, `f64[history]`.
    pub curvatures: Tensor,
    /// What the inverse is before the pairs: a multiple of the identity, `f64[]`.
    pub scale: Tensor,
    /// How many pairs there were, those included that have lost their places: `f64[]`.
    pub pairs: Tensor,
}

impl History {
    fn places(&self) -> Dim {
        self.curvatures.dim(0)
    }

    /// With one more pair, in place of the oldest if all places are taken, where `ok` holds and its curvature is large enough.
    pub fn with(&self, change: &[Tensor], step: &[Tensor], ok: &Tensor) -> Step<History> {
        let graph = ok.graph();
        let curvature = dot(change, step)?;
        let scale = &curvature / dot(change, change)?;
        // Where squares are beyond what the dtype has, the pair would make every direction 0 or no number from there on.
        let sound = scale.is_finite().logical_and(scale.gt(0.0));
        let good = ok.logical_and(curvature.gt(LEAST_CURVATURE)).logical_and(sound);
        let places = graph.dim_value(&self.places(), DType::I64)?;
        // What is scattered out of range is dropped.
        let place = good.select(self.pairs.to(DType::I64)? % &places, places);
        let written = |all: &Tensor, new: &Tensor| all.scatter(&[0], &[&place], new, ScatterOp::Set);
        let each = |all: &[Tensor], new: &[Tensor]| all.iter().zip(new).map(|(a, n)| written(a, n)).collect();
        Ok(History {
            changes: each(&self.changes, change),
            moves: each(&self.moves, step),
            curvatures: written(&self.curvatures, &(1.0 / &curvature)),
            scale: good.select(scale, &self.scale),
            pairs: good.select(&self.pairs + 1.0, &self.pairs),
        })
    }

    /// Pair number `k`: by parameter the moves and the changes, and one over their inner product.
    fn pair(&self, i: &Iteration, k: &Tensor) -> Step<(Vec<Tensor>, Vec<Tensor>, Tensor)> {
        let place = k % k.graph().dim_value(&self.places(), DType::I64)?;
        let at = |t: &Tensor| i.capture(t).take_from_start(&place, 0);
        let each = |all: &[Tensor]| all.iter().map(at).collect();
        Ok((each(&self.moves), each(&self.changes), at(&self.curvatures)))
    }

    /// Down from a gradient: the recursion of algorithm 7.4, in two loops over the pairs.
    pub fn direction(&self, graph: &Graph, gradients: &[Tensor]) -> Step<Vec<Tensor>> {
        let pairs = self.pairs.to(DType::I64)?;
        let count = pairs.minimum(graph.dim_value(&self.places(), DType::I64)?);
        let down: Vec<Tensor> = gradients.iter().map(|g| -g).collect();
        let mut results = self.around(graph, &count, &down, |i| {
            let (moves, changes, curvature) = self.pair(i, &(i.capture(&pairs) - 1 - &i.number))?;
            let along = dot(&moves, &i.carried)? * curvature;
            let less = scaled(&changes, &along)?;
            i.stack(&along, 0);
            Ok(i.carried.iter().zip(less).map(|(q, l)| q - l).collect())
        })?;
        let Some(along) = results.pop() else {
            return refuse("no parameters");
        };
        self.around(graph, &count, &scaled(&results, &self.scale)?, |i| {
            let (pairs, count) = (i.capture(&pairs), i.capture(&count));
            let (moves, changes, curvature) = self.pair(i, &(pairs - &count + &i.number))?;
            let along = i.capture(&along).take_from_start(&(count - 1 - &i.number), 0);
            let more = scaled(&moves, &(along - dot(&changes, &i.carried)? * curvature))?;
            Ok(i.carried.iter().zip(more).map(|(r, m)| r + m).collect())
        })
    }

    /// A loop over so many pairs, whose body may refuse.
    fn around(
        &self,
        graph: &Graph,
        count: &Tensor,
        first: &[Tensor],
        body: impl FnOnce(&mut Iteration) -> Step<Vec<Tensor>>,
    ) -> Step<Vec<Tensor>> {
        let mut repeat = graph.repeat(self.places()).at_most(count);
        for t in first {
            repeat = repeat.carry(t);
        }
        let mut failure = None;
        let results = repeat.record(|i| {
            body(i).unwrap_or_else(|refusal| {
                failure = Some(refusal);
                i.carried.clone()
            })
        });
        failure.map_or(Ok(results), Err)
    }
}

/// The extents of `history` tensors of a shape.
pub(super) fn stacked(history: usize, shape: &[Dim]) -> Vec<Dim> {
    std::iter::once(history.into()).chain(shape.iter().cloned()).collect()
}

/// How long the first step is, in units of the gradient: at most 1, and a sum of absolute values of at most 1.
pub(super) fn first_length(gradients: &[Tensor]) -> Step {
    Ok((1.0 / absolute_sum(gradients)?).minimum(1.0))
}

// In the order of the slots.
const LAST_GRADIENT: usize = 0;
const LAST_MOVE: usize = 1;
const CHANGES: usize = 2;
const MOVES: usize = 3;
const CURVATURES: usize = 4;
const SCALE: usize = 5;
const PAIRS: usize = 6;
const TAKEN: usize = 7;

impl Rule for Lbfgs {
    fn slots(&self, of: &Of) -> Vec<Slot> {
        let pairs = |name| Slot {
            shape: stacked(self.history, of.shape),
            ..of.slot(name)
        };
        // The same for all parameters that move together.
        let shared = |name, shape: &[Dim], first: f64| Slot {
            name,
            dtype: DType::F64,
            shape: shape.to_vec(),
            first,
        };
        vec![
            of.slot("last_gradient"),
            of.slot("last_move"),
            pairs("changes"),
            pairs("moves"),
            shared("curvatures", &[self.history.into()], 0.0),
            shared("scale", &[], 1.0),
            shared("pairs", &[], 0.0),
            shared("taken", &[], 0.0),
        ]
    }

    fn step(&self, at: &At) -> Step<Moved> {
        let mut all = self.together(std::slice::from_ref(at), None)?;
        all.pop().map_or_else(|| refuse("no parameters"), Ok)
    }

    fn moves_together(&self) -> bool {
        true
    }

    // A choice between old and new would read and write all pairs, where a new one writes its place.
    fn keeps(&self, slot: usize) -> bool {
        matches!(slot, CHANGES | MOVES | CURVATURES)
    }

    fn together(&self, all: &[At], ok: Option<&Tensor>) -> Step<Vec<Moved>> {
        let Some(first) = all.first() else {
            return Ok(vec![]);
        };
        let slot = |k: usize| -> Vec<Tensor> { all.iter().map(|at| at.slots[k].clone()).collect() };
        let gradients: Vec<Tensor> = all.iter().map(|at| at.gradient.clone()).collect();
        let mut moving = any_above(&gradients, self.tolerance_grad)?;
        if let Some(ok) = ok {
            moving = moving.logical_and(ok);
        }
        let before = History {
            changes: slot(CHANGES),
            moves: slot(MOVES),
            curvatures: first.slots[CURVATURES].clone(),
            scale: first.slots[SCALE].clone(),
            pairs: first.slots[PAIRS].clone(),
        };
        // The move before the first is zero, which makes no pair.
        let change: Vec<Tensor> = all.iter().map(|at| at.gradient - &at.slots[LAST_GRADIENT]).collect();
        let history = before.with(&change, &slot(LAST_MOVE), &moving)?;
        let direction = history.direction(first.parameter.graph(), &gradients)?;
        let (taken, rate) = (&first.slots[TAKEN], first.rate(&self.lr));
        let length = taken.gt(0.0).select(&rate, &rate * first_length(&gradients)?);
        let falling = dot(&gradients, &direction)?.le(-self.tolerance_change);
        let steps = scaled(&direction, &length)?;
        let go = moving.logical_and(falling);
        let taken = moving.select(taken + 1.0, taken);
        let moved = |(k, at): (usize, &At)| {
            // What was not taken is no move.
            let step = go.select(&steps[k], steps[k].zeros_like());
            let slots = vec![
                moving.select(at.gradient, &at.slots[LAST_GRADIENT]),
                moving.select(step, &at.slots[LAST_MOVE]),
                history.changes[k].clone(),
                history.moves[k].clone(),
                history.curvatures.clone(),
                history.scale.clone(),
                history.pairs.clone(),
                taken.clone(),
            ];
            (go.select(at.parameter + &steps[k], at.parameter), slots)
        };
        Ok(all.iter().enumerate().map(moved).collect())
    }
}
