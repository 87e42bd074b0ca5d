//! Derivatives of loops: another loop, over the iterations in reverse; and tangents, in a loop that carries them beside the values.
//!
//! Invariants:
//! - The forward loop is recorded again with what goes around as stacked results: the values that each iteration began with. The
//!   reverse loop computes an iteration again from these and goes back through it.
//! - It runs as many iterations as the forward loop did. Where a count or a condition decides that, the forward loop stacks a 1
//!   for each iteration, and their sum says how many there were.
//! - What is carried backwards: the cotangents of what is carried forwards, and the sums of those of captures, in the accumulator
//!   of their dtype; but sums of products are computed behind the loop where that moves fewer bytes (see `products`).

mod products;

use std::sync::Arc;

use tlc_ir::graph::{Along, Body, Loop, NodeId, NodeKind};
use tlc_ir::{DType, IndexExpr, Scalar};

use self::products::{Around, Products};
use super::node::{Cotangents, Differentiate, zeros};
use crate::dim::Dim;
use crate::graph::scope::{Step, refuse_expecting};
use crate::graph::{Graph, Tensor};
use crate::ops::repeat::Iteration;
use crate::ops::shape::moved;

/// The largest trip count that counts as a bound of a loop that data ends. Each iteration is kept, and exporters write the largest number
/// there is where a condition alone ends a loop.
const MAX_KEPT: i64 = 1 << 28;

/// A loop whose results have cotangents.
struct Reverse<'a> {
    it: &'a Loop,
    graph: &'a Graph,
    operands: &'a [Tensor],
    trip: IndexExpr,
    /// The number of iterations, if it is not the trip count.
    count: Option<Tensor>,
}

/// The cotangents of the operands, from those of the results.
pub(super) fn rule(
    it: &Loop,
    operands: &[Tensor],
    wanted: &[bool],
    parts: &[(u32, Tensor)],
    differentiate: Differentiate,
) -> Step<Cotangents> {
    let mut cotangents: Cotangents = vec![None; operands.len()];
    let Some(graph) = operands.first().map(Tensor::graph) else {
        return Ok(cotangents);
    };
    let is_bound = |trip: &&IndexExpr| !it.is_ended_by_data() || trip.as_const().is_none_or(|n| n <= MAX_KEPT);
    let Some(trip) = it.trip.as_ref().filter(is_bound).cloned() else {
        let problem = match it.trip.as_ref().and_then(IndexExpr::as_const) {
            None => "nothing bounds its iterations".into(),
            Some(n) => format!("nothing bounds its iterations but a trip count of {n}, too many to keep"),
        };
        let expected = "a trip count beside the condition, as `graph.repeat(max_iterations).while_(&condition)` has";
        return refuse_expecting(problem, expected);
    };
    let (carried, slices) = (it.carried, it.slices.len());
    let first = it.leading();
    let part = |k: usize| parts.iter().find(|(p, _)| *p as usize == k).map(|(_, d)| d.clone());
    let is_float = |k: &usize| operands[*k].dtype().is_float();
    // Operands by what gets a cotangent.
    let around: Vec<usize> = (first..first + carried).filter(is_float).collect();
    let sliced: Vec<usize> = (first + carried..first + carried + slices)
        .filter(|k| wanted[*k] && is_float(k))
        .collect();
    let captured: Vec<usize> = (first + carried + slices..operands.len())
        .filter(|k| wanted[*k] && is_float(k))
        // An iteration sees one tensor once, however often it is captured.
        .filter(|k| {
            operands[first + carried + slices..*k]
                .iter()
                .all(|t| t.id() != operands[*k].id())
        })
        .collect();

    let (begun, count) = forward_again(it, graph, operands)?;
    let reverse = Reverse {
        it,
        graph,
        operands,
        trip,
        count,
    };
    let mut repeat = graph.repeat(Dim(reverse.trip.clone()));
    if let Some(count) = &reverse.count {
        repeat = repeat.at_most(count);
    }
    for &k in &around {
        let x = &operands[k];
        let d = match part(k - first) {
            Some(d) => d,
            None => zeros(graph, x.extents(), x.dtype())?,
        };
        repeat = repeat.carry(&d);
    }
    for &k in &captured {
        let x = &operands[k];
        repeat = repeat.carry(&zeros(graph, x.extents(), x.dtype().accumulator())?);
    }
    // What an iteration reads, the last first: what it began with, its slices, the cotangents of what it stacked.
    let stacked: Vec<(usize, Tensor)> = (0..it.stacks.len())
        .filter_map(|s| Some((s, part(carried + s)?)))
        .collect();
    let forward = Along {
        axis: 0,
        reverse: false,
    };
    let begun = begun.iter().map(|t| (t, forward));
    let own = operands[first + carried..].iter().zip(it.slices.iter().copied());
    let results = stacked.iter().map(|(s, d)| (d, it.stacks[*s]));
    let mut backwards = Vec::new();
    for (t, along) in begun.chain(own).chain(results) {
        let (t, along) = reverse.backwards(t, along)?;
        // Where all iterations run, what is read from the end has the first forward iteration first.
        let is_forward = reverse.count.is_none() && along.reverse;
        backwards.push(is_forward.then(|| (t.clone(), usize::from(along.axis))));
        repeat = match along.reverse {
            true => repeat.slice_reversed(&t, along.axis.into()),
            false => repeat.slice(&t, along.axis.into()),
        };
    }

    let mut iteration = repeat.start();
    let inputs = reverse.inputs(&iteration)?;
    let outputs = iteration.graph().recorded_again(&it.body, &it.symbols, &inputs)?;
    let lead = it.first_carried_output();
    let next = around.iter().map(|k| &outputs[lead + k - first]);
    let elements = stacked.iter().map(|(s, _)| &outputs[lead + carried + s]);
    let of: Vec<&Tensor> = next.chain(elements).collect();
    let with = iteration.carried[..around.len()].iter();
    let with: Vec<&Tensor> = with.chain(&iteration.slices[carried + slices..]).collect();
    // The body's first input is the iteration's number.
    let by = around.iter().chain(&sliced).chain(&captured);
    let by: Vec<&Tensor> = by.map(|k| &inputs[1 + k - first]).collect();
    let mut found = differentiate(iteration.graph(), &of, &with, &by)?.into_iter();
    let mut next: Vec<Tensor> = found.by_ref().take(around.len()).collect();
    let mut stacked_here = Vec::new();
    for (&k, d) in sliced.iter().zip(found.by_ref().take(sliced.len()).collect::<Vec<_>>()) {
        let along = reverse.written(it.slices[k - first - carried]);
        match along.reverse {
            true => iteration.stack_reversed(&d, along.axis.into()),
            false => iteration.stack(&d, along.axis.into()),
        }
        stacked_here.push((d, along));
    }
    let gradients: Vec<Tensor> = found.collect();
    let dtypes = captured.iter().map(|&k| operands[k].dtype().accumulator()).collect();
    let around_it = Around {
        slices: &backwards,
        stacked: &stacked_here,
        reversed: reverse.count.is_none(),
        trip: &reverse.trip,
        iteration: &mut iteration,
    };
    let products = Products::of(around_it, &gradients, dtypes)?;
    let totals = &iteration.carried[around.len()..];
    for (k, total) in totals.iter().enumerate() {
        match &products.carried[k] {
            Some(d) => next.push(total + d.to(total.dtype())?),
            None => {
                repeat = repeat.without(around.len() + k);
                next.push(total.clone());
            }
        }
    }
    let results = repeat.finish(iteration, next);
    let mut results = results.iter();
    for (&k, d) in around.iter().zip(&mut results) {
        cotangents[k] = match wanted[k] {
            true => Some(d.to(operands[k].dtype())?),
            false => None,
        };
    }
    let sums: Vec<Option<&Tensor>> = products
        .carried
        .iter()
        .map(|c| c.as_ref().and_then(|_| results.next()))
        .collect();
    let stacks: Vec<Tensor> = results.cloned().collect();
    for (&k, d) in sliced.iter().zip(&stacks) {
        cotangents[k] = Some(reverse.placed(d, it.slices[k - first - carried])?);
    }
    for (of, (&k, carried)) in captured.iter().zip(sums).enumerate() {
        if stacks.iter().any(Tensor::is_poisoned) {
            // The graph knows why.
            cotangents[k] = Some(Tensor::poisoned(graph, operands[k].dtype()));
            continue;
        }
        let total = products.total(of, carried, &stacks)?;
        cotangents[k] = total.map(|t| t.to(operands[k].dtype())).transpose()?;
    }
    Ok(cotangents)
}

/// How the tangents of a body's outputs are found: from outputs, inputs and the tangents of these.
pub(super) type Linearize = fn(&Graph, &[&Tensor], &[&Tensor], &[&Tensor], Differentiate) -> Step<Vec<Option<Tensor>>>;

/// The tangents of the results, from those of the operands: the loop once more, with a tangent beside each carried value that moves.
/// Nothing is kept of an iteration, so that nothing need bound their number.
pub(super) fn tangent(
    it: &Loop,
    operands: &[Tensor],
    tangents: &[Option<Tensor>],
    backwards: Differentiate,
    linearize: Linearize,
) -> Step<Vec<Option<Tensor>>> {
    let Some(graph) = operands.first().map(Tensor::graph) else {
        return Ok(vec![None; it.results()]);
    };
    let (first, carried, slices) = (it.leading(), it.carried, it.slices.len());
    let own = &operands[first..];
    let (moves, outputs) = moving(it, &tangents[first..]);
    let lead = it.first_carried_output();
    let of_slices: Vec<usize> = (carried..carried + slices).filter(|&k| moves[k]).collect();
    let around: Vec<usize> = (0..carried).filter(|&k| moves[k]).collect();

    let mut repeat = match &it.trip {
        Some(trip) => graph.repeat(Dim(trip.clone())),
        None => graph.repeat_while_any(),
    };
    if it.counted {
        repeat = repeat.at_most(&operands[0]);
    }
    if let Some(k) = it.condition_operand() {
        repeat = repeat.while_(&operands[k]);
    }
    for x in &own[..carried] {
        repeat = repeat.carry(x);
    }
    for &k in &around {
        repeat = repeat.carry(&match &tangents[first + k] {
            Some(t) => t.clone(),
            None => zeros(graph, own[k].extents(), own[k].dtype())?,
        });
    }
    let values = own[carried..carried + slices].iter().zip(&it.slices);
    let beside = of_slices.iter().filter_map(|&k| {
        let t = tangents[first + k].as_ref()?;
        Some((t, &it.slices[k - carried]))
    });
    for (t, along) in values.chain(beside) {
        repeat = match along.reverse {
            true => repeat.slice_reversed(t, along.axis.into()),
            false => repeat.slice(t, along.axis.into()),
        };
    }

    let mut iteration = repeat.start();
    let mut inputs = vec![iteration.number.clone()];
    inputs.extend(iteration.carried[..carried].iter().cloned());
    inputs.extend(iteration.slices[..slices].iter().cloned());
    inputs.extend(own[carried + slices..].iter().map(|t| iteration.capture(t)));
    let made = iteration.graph().recorded_again(&it.body, &it.symbols, &inputs)?;
    // The body's first input is the iteration's number.
    let mut by: Vec<Tensor> = around.iter().chain(&of_slices).map(|k| inputs[1 + k].clone()).collect();
    let mut with: Vec<Tensor> = iteration.carried[carried..].to_vec();
    with.extend(iteration.slices[slices..].iter().cloned());
    for k in carried + slices..own.len() {
        let before = &own[carried + slices..k];
        // An iteration sees one tensor once, however often it is captured.
        if let Some(t) = &tangents[first + k]
            && before.iter().all(|x| x.id() != own[k].id())
        {
            by.push(inputs[1 + k].clone());
            with.push(iteration.capture(t));
        }
    }
    let of: Vec<usize> = (lead..made.len()).filter(|&k| outputs[k]).collect();
    let moved: Vec<&Tensor> = of.iter().map(|&k| &made[k]).collect();
    let (by, with): (Vec<&Tensor>, Vec<&Tensor>) = (by.iter().collect(), with.iter().collect());
    let found = linearize(iteration.graph(), &moved, &by, &with, backwards)?;
    let mut next: Vec<Tensor> = made[lead..lead + carried].to_vec();
    let mut stacks: Vec<(Tensor, Along)> = made[lead + carried..].iter().cloned().zip(it.stacks.clone()).collect();
    for (&k, t) in of.iter().zip(found) {
        let t = match t {
            Some(t) => t,
            None => zeros(iteration.graph(), made[k].extents(), made[k].dtype())?,
        };
        match k - lead < carried {
            true => next.push(t),
            false => stacks.push((t, it.stacks[k - lead - carried])),
        }
    }
    if it.conditional {
        iteration.go_on_if(&made[0]);
    }
    for (t, along) in stacks {
        match along.reverse {
            true => iteration.stack_reversed(&t, along.axis.into()),
            false => iteration.stack(&t, along.axis.into()),
        }
    }
    let results = repeat.finish(iteration, next);
    let mut all = vec![None; it.results()];
    let (of_carried, of_stacked): (Vec<usize>, Vec<usize>) = of.iter().map(|k| k - lead).partition(|&k| k < carried);
    let stacked = carried + of_carried.len() + it.stacks.len();
    for (k, t) in of_carried.iter().zip(&results[carried..]) {
        all[*k] = Some(t.clone());
    }
    for (k, t) in of_stacked.iter().zip(&results[stacked..]) {
        all[*k] = Some(t.clone());
    }
    Ok(all)
}

/// Which of a loop's operands behind the leading ones have tangents in some iteration, and which outputs of its body. A carried value
/// has one if it begins with one, or if an iteration returns one.
fn moving(it: &Loop, tangents: &[Option<Tensor>]) -> (Vec<bool>, Vec<bool>) {
    let body = &it.body.0;
    let mut moves: Vec<bool> = tangents.iter().map(Option::is_some).collect();
    let lead = it.first_carried_output();
    loop {
        let mut nodes = vec![false; body.len()];
        for (id, node) in body.nodes() {
            nodes[id.index()] = match &node.kind {
                // The first is the iteration's number.
                NodeKind::Input { index, .. } => *index > 0 && moves[*index as usize - 1],
                kind => {
                    let passes = kind.is_tuple() || node.ty.dtype.is_float();
                    passes && node.operands.iter().any(|o| nodes[o.index()])
                }
            };
        }
        let outputs: Vec<bool> = body.outputs().iter().map(|o| nodes[o.node.index()]).collect();
        let next = |k: usize| moves[k] || outputs[lead + k];
        let around: Vec<bool> = (0..it.carried).map(next).collect();
        if around[..] == moves[..it.carried] {
            // What begins with a tangent has one at the end, of no iteration at least.
            let all = outputs.iter().enumerate();
            let outputs = all.map(|(k, o)| *o || (lead..lead + it.carried).contains(&k) && around[k - lead]);
            return (moves, outputs.collect());
        }
        moves[..it.carried].copy_from_slice(&around);
    }
}

/// The loop with the values that its iterations began with as further stacked results; and the number of iterations, if that is
/// not the trip count.
fn forward_again(it: &Loop, graph: &Graph, operands: &[Tensor]) -> Step<(Vec<Tensor>, Option<Tensor>)> {
    let decided = it.counted || it.conditional;
    if it.carried == 0 && !decided {
        return Ok((vec![], None));
    }
    let mut body = (*it.body.0).clone();
    let mut stacks = it.stacks.clone();
    let mut stack = |body: &mut tlc_ir::Graph, id: NodeId| {
        body.add_output("", id);
        stacks.push(Along {
            axis: 0,
            reverse: false,
        });
    };
    let begun: Vec<NodeId> = body.inputs()[1..=it.carried].to_vec();
    begun.iter().for_each(|id| stack(&mut body, *id));
    if decided {
        let one = NodeKind::Const(Scalar::from_i64(DType::I64, 1));
        let one = body.add(one, &[], Default::default());
        stack(&mut body, one.map_err(|e| (e.problem, e.expected))?);
    }
    let again = Loop {
        body: Body(Arc::new(body)),
        stacks,
        ..it.clone()
    };
    let results = again.results();
    let operands: Vec<&Tensor> = operands.iter().collect();
    let mut all = graph.tuple(NodeKind::Loop(Arc::new(again)), &operands, results)?;
    let count = match decided {
        true => all.pop().map(|ones| ones.sum(..)),
        false => None,
    };
    Ok((all.split_off(it.results()), count))
}

impl Reverse<'_> {
    /// `t`, whose axis the forward loop walks along, and how the reverse one does.
    fn backwards(&self, t: &Tensor, along: Along) -> Step<(Tensor, Along)> {
        let Some(count) = &self.count else {
            let reverse = !along.reverse;
            return Ok((t.clone(), Along { reverse, ..along }));
        };
        // Iteration j is that of number count - 1 - j. What is beyond those that ran is not read.
        let j = self.graph.iota_1d(&self.trip, DType::I64)?;
        let number = count - 1 - j;
        let t = t.gathered(&[along.axis.into()], &[&self.position(&number, along)?])?;
        Ok((
            t,
            Along {
                axis: 0,
                reverse: false,
            },
        ))
    }

    /// Where the iteration of that number is along an axis.
    fn position(&self, number: &Tensor, along: Along) -> Step {
        match along.reverse {
            true => Ok(self.graph.dim_value(&Dim(self.trip.clone()), DType::I64)? - 1 - number),
            false => Ok(number.clone()),
        }
    }

    /// How the cotangents of slices that the forward loop reads along an axis are stacked.
    fn written(&self, along: Along) -> Along {
        match self.count {
            None => Along {
                reverse: !along.reverse,
                ..along
            },
            Some(_) => Along {
                axis: 0,
                reverse: false,
            },
        }
    }

    /// What was stacked so, along the axis that the forward loop reads.
    fn placed(&self, t: &Tensor, along: Along) -> Step {
        let Some(count) = &self.count else {
            return Ok(t.clone());
        };
        let place = self.graph.iota_1d(&self.trip, DType::I64)?;
        // A place is its own mirror: what is at the position of a number has that position as its number.
        let number = self.position(&place, along)?;
        // Of places that no iteration read, none stacked anything: before the first there is nothing, behind the last is zero.
        let t = t.gathered(&[0], &[&(count - 1 - number)])?;
        t.permuted(&moved(t.rank(), 0, along.axis.into()))
    }

    /// The inputs of the forward body in an iteration of the reverse loop.
    fn inputs(&self, iteration: &Iteration) -> Step<Vec<Tensor>> {
        let inner = iteration.graph();
        let last = match &self.count {
            Some(count) => iteration.capture(count),
            None => inner.dim_value(&Dim(self.trip.clone()), DType::I64)?,
        };
        let mut inputs = vec![last - 1 - &iteration.number];
        let own = self.it.carried + self.it.slices.len();
        inputs.extend(iteration.slices[..own].iter().cloned());
        let captures = &self.operands[self.it.leading() + own..];
        inputs.extend(captures.iter().map(|t| iteration.capture(t)));
        Ok(inputs)
    }
}
