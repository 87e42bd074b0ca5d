//! Loops in segments, for derivatives that keep what some iterations began with: see [`Repeat::checkpoint_every`](Repeat::checkpoint_every).
//!
//! A loop of `n` iterations, of which every `k`-th is kept, is recorded as a loop over its `n / k` whole segments, whose body is a loop
//! over the `k` iterations of one, and a loop over the `n mod k` iterations that are left. The derivative of a loop keeps what each
//! iteration began with, and computes an iteration again on the way back: of the outer loop that is what each segment began with, and of
//! the inner one, computed again, the iterations of one segment. So the derivative needs no rule of its own, and in place of
//! `n` carried values it keeps `n / k` of them and `k` more (Chen, Xu, Zhang and Guestrin, "Training deep nets with sublinear memory
//! cost", 2016).
//!
//! Invariants:
//! - An iteration is given what it is given in the plain loop: the number from the loop's start, the values of the iteration before, its
//!   own slices. So what it draws is the same, too.
//! - A count or condition that ends the loop inside a segment ends all of it.

use tlc_ir::graph::{Along, Loop, NodeKind, infer};
use tlc_ir::{DType, IndexExpr};

use super::{Iteration, Repeat};
use crate::dim::Dim;
use crate::graph::scope::{Step, refuse, refuse_expecting};
use crate::graph::{Graph, Tensor};
use crate::ops::join::concat;

/// A loop that is cut.
struct Cut<'a> {
    it: &'a Loop,
    graph: &'a Graph,
    operands: &'a [&'a Tensor],
    trip: IndexExpr,
    every: i64,
}

/// The results of a loop whose derivative keeps the carried values of every so many-th iteration.
pub(super) fn recorded(graph: &Graph, it: Loop, operands: &[&Tensor], every: usize) -> Step<Vec<Tensor>> {
    let results = it.results();
    let Some(trip) = it.trip.clone() else {
        return refuse_expecting(
            "checkpoints in a loop whose iterations nothing bounds",
            "a trip count beside its condition or count",
        );
    };
    let every = match i64::try_from(every) {
        Ok(0) => return refuse_expecting("checkpoint_every(0)", "a number of iterations from 1"),
        Ok(every) => every,
        Err(_) => i64::MAX,
    };
    // Each iteration is kept in any case, or they are one segment.
    if every == 1 || it.carried == 0 || trip.as_const().is_some_and(|n| n <= every) || every == i64::MAX {
        return graph.tuple(NodeKind::Loop(it.into()), operands, results);
    }
    if let Some(ids) = operands.iter().map(|t| t.id()).collect::<Option<Vec<_>>>() {
        // What does not fit is said of the loop that was written.
        let kind = NodeKind::Loop(it.clone().into());
        graph.with_ir(|ir| infer::results(ir, &kind, &ids, &mut Vec::new()))?;
    }
    let cut = Cut {
        it: &it,
        graph,
        operands,
        trip,
        every,
    };
    cut.recorded()
}

impl Cut<'_> {
    fn recorded(&self) -> Step<Vec<Tensor>> {
        let (it, lead) = (self.it, self.it.leading());
        let (carried, others) = self.operands[lead..].split_at(it.carried);
        let mut values: Vec<Tensor> = carried.iter().map(|t| (*t).clone()).collect();
        // Whether another iteration follows goes around with them.
        values.extend(it.condition_operand().map(|k| self.operands[k].clone()));
        let whole = IndexExpr::floor_div(&self.trip, &IndexExpr::Const(self.every));
        let done = whole.clone() * IndexExpr::Const(self.every);
        let rest = self.trip.clone() - done.clone();
        let slices: Vec<Tensor> = { others.iter().zip(&it.slices) }
            .map(|(x, along)| {
                // An extent that is only promised to be the trip count.
                let mut shape = x.ty().shape.clone();
                shape[along.axis as usize] = self.trip.clone();
                x.expanded(&shape)
            })
            .collect::<Step<_>>()?;
        let captures = &others[slices.len()..];
        let (next, first) = self.whole(&whole, &values, &slices, captures)?;
        let mut results = next;
        let mut stacks = first;
        if !rest.is(0) {
            let (next, last) = self.rest(&done, &rest, &results, &slices, captures)?;
            results = next;
            stacks = { stacks.iter().zip(&last).zip(&it.stacks) }
                .map(|((first, last), along)| match along.reverse {
                    true => concat(&[last, first], along.axis.into()),
                    false => concat(&[first, last], along.axis.into()),
                })
                .collect();
        }
        results.truncate(it.carried);
        results.extend(stacks);
        Ok(results)
    }

    /// The part of a sliced tensor that so many iterations read from that one on.
    fn part(&self, x: &Tensor, along: Along, from: &IndexExpr, count: &IndexExpr) -> Tensor {
        let start = match along.reverse {
            true => self.trip.clone() - from.clone() - count.clone(),
            false => from.clone(),
        };
        x.narrow(along.axis.into(), Dim(start), Dim(count.clone()))
    }

    /// The loop over the whole segments: what goes around at their end, and what they stack.
    fn whole(
        &self,
        whole: &IndexExpr,
        values: &[Tensor],
        slices: &[Tensor],
        captures: &[&Tensor],
    ) -> Step<(Vec<Tensor>, Vec<Tensor>)> {
        let (it, graph, every) = (self.it, self.graph, IndexExpr::Const(self.every));
        let iterations = whole.clone() * every.clone();
        let mut segments = graph.repeat(Dim(whole.clone()));
        if it.counted {
            // Rounded up: the last one ends by itself.
            let count = self.operands[0].maximum(0);
            segments = segments.at_most(&(count.floor_divide(self.every) + (&count % self.every).minimum(1)));
        }
        if let Some(k) = it.condition_operand() {
            segments = segments.while_(self.operands[k]);
        }
        for value in values {
            segments = segments.carry(value);
        }
        for (x, &along) in slices.iter().zip(&it.slices) {
            let x = self.part(x, along, &IndexExpr::ZERO, &iterations);
            let mut shape = x.ty().shape.clone();
            shape[along.axis as usize] = whole.clone();
            shape.insert(along.axis as usize + 1, every.clone());
            segments = sliced(segments, &x.reshaped(&shape)?, along);
        }
        let mut segment = segments.start();
        let inner = segment.graph().clone();
        let begun = &segment.number * self.every;
        let mut repeat = inner.repeat(Dim(every.clone()));
        if it.counted {
            repeat = repeat.at_most(&(segment.capture(self.operands[0]) - &begun));
        }
        if it.conditional {
            repeat = repeat.while_(&segment.carried[it.carried]);
        }
        for value in &segment.carried {
            repeat = repeat.carry(value);
        }
        for (x, &along) in segment.slices.iter().zip(&it.slices) {
            repeat = sliced(repeat, x, along);
        }
        let captures: Vec<Tensor> = captures.iter().map(|x| segment.capture(x)).collect();
        let mut results = self.iterations(repeat, &begun, &captures)?;
        let stacks = results.split_off(values.len());
        for (t, &along) in stacks.iter().zip(&it.stacks) {
            stack(&mut segment, t, along);
        }
        if let Some(follows) = results.get(it.carried) {
            segment.go_on_if(follows);
        }
        let mut results = known(segments.finish(segment, results))?;
        let stacks = results.split_off(values.len());
        let joined = |(t, along): (Tensor, &Along)| {
            let mut shape = t.ty().shape.clone();
            shape.remove(along.axis as usize + 1);
            shape[along.axis as usize] = iterations.clone();
            t.reshaped(&shape)
        };
        let stacks = stacks.into_iter().zip(&it.stacks).map(joined).collect::<Step<_>>()?;
        Ok((results, stacks))
    }

    /// The loop over the iterations behind the whole segments, of which `done` are gone: as [`Cut::whole`].
    fn rest(
        &self,
        done: &IndexExpr,
        rest: &IndexExpr,
        values: &[Tensor],
        slices: &[Tensor],
        captures: &[&Tensor],
    ) -> Step<(Vec<Tensor>, Vec<Tensor>)> {
        let (it, graph) = (self.it, self.graph);
        let begun = graph.dim_value(&Dim(done.clone()), DType::I64)?;
        let mut repeat = graph.repeat(Dim(rest.clone()));
        if it.counted {
            repeat = repeat.at_most(&(self.operands[0] - &begun));
        }
        if it.conditional {
            repeat = repeat.while_(&values[it.carried]);
        }
        for value in values {
            repeat = repeat.carry(value);
        }
        for (x, &along) in slices.iter().zip(&it.slices) {
            repeat = sliced(repeat, &self.part(x, along, done, rest), along);
        }
        let captures: Vec<Tensor> = captures.iter().map(|x| (*x).clone()).collect();
        let mut results = self.iterations(repeat, &begun, &captures)?;
        let stacks = results.split_off(values.len());
        Ok((results, stacks))
    }

    /// The loop that a `repeat` with all but captures makes of the body: the iterations from number `begun` on.
    fn iterations(&self, repeat: Repeat, begun: &Tensor, captures: &[Tensor]) -> Step<Vec<Tensor>> {
        let it = self.it;
        let mut iteration = repeat.start();
        let mut inputs = vec![&iteration.number + iteration.capture(begun)];
        inputs.extend(iteration.carried[..it.carried].iter().cloned());
        inputs.extend(iteration.slices.iter().cloned());
        inputs.extend(captures.iter().map(|t| iteration.capture(t)));
        let outputs = iteration.graph().recorded_again(&it.body, &it.symbols, &inputs)?;
        let lead = it.first_carried_output();
        let mut next = outputs[lead..lead + it.carried].to_vec();
        if it.conditional {
            iteration.go_on_if(&outputs[0]);
            next.push(outputs[0].clone());
        }
        for (t, &along) in outputs[lead + it.carried..].iter().zip(&it.stacks) {
            stack(&mut iteration, t, along);
        }
        known(repeat.finish(iteration, next))
    }
}

/// What was recorded, unless it was refused: the reason is known then.
fn known(results: Vec<Tensor>) -> Step<Vec<Tensor>> {
    match results.iter().any(Tensor::is_poisoned) {
        true => refuse("a segment that cannot be recorded"),
        false => Ok(results),
    }
}

fn sliced(repeat: Repeat, x: &Tensor, along: Along) -> Repeat {
    match along.reverse {
        true => repeat.slice_reversed(x, along.axis.into()),
        false => repeat.slice(x, along.axis.into()),
    }
}

fn stack(iteration: &mut Iteration, t: &Tensor, along: Along) {
    match along.reverse {
        true => iteration.stack_reversed(t, along.axis.into()),
        false => iteration.stack(t, along.axis.into()),
    }
}
