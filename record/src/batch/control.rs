//! Loops, host functions and regions over a batch.
//!
//! Invariants:
//! - A carried value has the batch's axis if it does at first or after some iteration.
//! - Where a count or a condition differs from example to example, the loop goes on as long as one example does. A mask says which do:
//!   the carried values of others stay as they are, and what they stack is zero, as what no iteration writes is.

use std::cell::RefCell;
use std::sync::Arc;

use tlc_ir::graph::{Body, HostFunction, Loop, Monoid, NodeId, NodeKind, Region, Rule};

use super::{Batch, Value};
use crate::dim::Dim;
use crate::graph::Tensor;
use crate::graph::scope::{Refusal, Step, refuse, refuse_expecting};
use crate::ops::region::{Derivative, Known, region};
use crate::ops::repeat::Iteration;

/// The number of results of a loop, call or region.
pub(super) fn results(kind: &NodeKind) -> usize {
    match kind {
        NodeKind::Loop(it) => it.results(),
        NodeKind::Call(function) => function.results(),
        NodeKind::Region(region) => region.body.0.outputs().len(),
        _ => 1,
    }
}

/// Which values of a loop differ from example to example.
struct Differing {
    /// By carried value.
    carried: Vec<bool>,
    /// By output of the body.
    outputs: Vec<bool>,
}

impl Batch {
    /// A host function of each example.
    pub(super) fn called(&self, function: &HostFunction, x: &Value) -> Step<Vec<Value>> {
        let of_all = match function {
            HostFunction::Sort {
                axis,
                count,
                descending,
            } => HostFunction::Sort {
                axis: axis + 1,
                count: count.clone(),
                descending: *descending,
            },
            HostFunction::NonZero { .. } | HostFunction::Unique { .. } | HostFunction::Suppress { .. } => {
                return refuse_expecting(
                    "each example would decide a size of its own",
                    "sizes that all examples share",
                );
            }
        };
        let results = of_all.results();
        let all = self.graph.tuple(NodeKind::Call(of_all), &[&x.tensor], results)?;
        Ok(all.into_iter().map(Value::batched).collect())
    }

    /// A region over a batch: its body is, and so is its derivative. The cotangent of an operand that all examples share is the sum of
    /// theirs.
    pub(super) fn region(&self, of_one: &Region, operands: &[Value]) -> Step<Vec<Value>> {
        let refused: RefCell<Option<Refusal>> = RefCell::new(None);
        let flags: Vec<bool> = operands.iter().map(|v| v.is_batched).collect();
        let values = |tensors: &[Tensor], flags: &[bool]| -> Vec<Value> {
            let value = |(t, f): (&Tensor, &bool)| Value {
                tensor: t.clone(),
                is_batched: *f,
            };
            tensors.iter().zip(flags).map(value).collect()
        };
        let inside = |x: &[Tensor]| Batch {
            graph: x[0].graph().clone(),
            ..self.clone()
        };
        // What is refused inside is said outside.
        let made = |x: &[Tensor], count: usize, made: Step<Vec<Tensor>>| match made {
            Ok(made) => made,
            Err(refusal) => {
                refused.borrow_mut().get_or_insert(refusal);
                vec![Tensor::poisoned(x[0].graph(), x[0].dtype()); count]
            }
        };
        let function = |x: &[Tensor]| {
            let (batch, body) = (inside(x), &of_one.body.0);
            let outputs: Vec<NodeId> = body.outputs().iter().map(|o| o.node).collect();
            let found = batch.body(body, &outputs, &of_one.symbols, &values(x, &flags));
            let whole = found.and_then(|all| all.iter().map(|v| batch.whole(v)).collect());
            made(x, outputs.len(), whole)
        };
        let custom = |body: &Body| {
            let body = Arc::clone(&body.0);
            let (values, flags, inside, made) = (&values, &flags, &inside, &made);
            move |known: &Known| {
                let x = &known.operands;
                let batch = inside(x);
                let mut given = values(x, flags);
                let others = known.results.iter().chain(&known.cotangents);
                given.extend(others.cloned().map(Value::batched));
                let outputs: Vec<NodeId> = body.outputs().iter().map(|o| o.node).collect();
                let floats = x.iter().zip(flags).filter(|(x, _)| x.dtype().is_float());
                let cotangent = |(v, (_, is_batched)): (&Value, (&Tensor, &bool))| {
                    let whole = batch.whole(v)?;
                    match is_batched {
                        true => Ok(whole),
                        false => whole.node(NodeKind::Reduce {
                            monoid: Monoid::Add,
                            axes: [0].into_iter().collect(),
                        }),
                    }
                };
                let found = batch.body(&body, &outputs, &of_one.symbols, &given);
                let found = found.and_then(|all| all.iter().zip(floats).map(cotangent).collect());
                made(x, outputs.len(), found)
            }
        };
        let derivative = match &of_one.rule {
            Rule::Opaque => Derivative::Opaque,
            Rule::Custom(body) => Derivative::Custom(custom(body)),
            Rule::Checkpoint => Derivative::Checkpoint,
        };
        let tensors: Vec<&Tensor> = operands.iter().map(|v| &v.tensor).collect();
        let results = region("vmap", &tensors, function, derivative);
        if let Some(refusal) = refused.into_inner() {
            return Err(refusal);
        }
        match results.iter().any(Tensor::is_poisoned) {
            true => refuse("a region that cannot be recorded over a batch"),
            false => Ok(results.into_iter().map(Value::batched).collect()),
        }
    }

    /// A loop over a batch.
    pub(super) fn repeated(&self, it: &Loop, operands: &[Value]) -> Step<Vec<Value>> {
        let (first, carried, slices) = (it.leading(), it.carried, it.slices.len());
        let own = &operands[first..];
        let count = it.counted.then(|| &operands[0]);
        let condition = it.condition_operand().map(|k| &operands[k]);
        let lead = it.first_carried_output();
        let mut differing = self.differing(it, own, false);
        let is_masked = count.iter().chain(&condition).any(|v| v.is_batched) || it.conditional && differing.outputs[0];
        if is_masked {
            differing = self.differing(it, own, true);
        }

        let graph = &self.graph;
        let mut repeat = match &it.trip {
            Some(trip) => graph.repeat(Dim(trip.clone())),
            None => graph.repeat_while_any(),
        };
        if let Some(count) = count.filter(|v| !v.is_batched) {
            repeat = repeat.at_most(&count.tensor);
        }
        let mut mask = None;
        if is_masked {
            let mut all = vec![];
            if let Some(count) = count.filter(|v| v.is_batched) {
                all.push(count.tensor.gt(0));
            }
            if let Some(condition) = condition {
                all.push(self.whole(condition)?);
            }
            let first = all.into_iter().reduce(|a, b| a.logical_and(&b));
            let Some(first) = first else {
                return refuse("a mask of nothing");
            };
            repeat = repeat.while_(&any(&first)?);
            mask = Some(first);
        } else if let Some(condition) = condition {
            repeat = repeat.while_(&condition.tensor);
        }
        for (x, differs) in own.iter().zip(&differing.carried) {
            repeat = repeat.carry(&if *differs { self.whole(x)? } else { x.tensor.clone() });
        }
        if let Some(mask) = &mask {
            repeat = repeat.carry(mask);
        }
        for (x, along) in own[carried..].iter().zip(&it.slices) {
            let axis = i64::from(along.axis) + i64::from(x.is_batched);
            repeat = match along.reverse {
                true => repeat.slice_reversed(&x.tensor, axis),
                false => repeat.slice(&x.tensor, axis),
            };
        }

        let mut iteration = repeat.start();
        let batch = Batch {
            graph: iteration.graph().clone(),
            ..self.clone()
        };
        let value = |tensor: &Tensor, is_batched: bool| Value {
            tensor: tensor.clone(),
            is_batched,
        };
        let mut inputs = vec![Value::shared(iteration.number.clone())];
        inputs.extend((iteration.carried.iter().zip(&differing.carried)).map(|(t, d)| value(t, *d)));
        inputs.extend((iteration.slices.iter().zip(&own[carried..])).map(|(t, x)| value(t, x.is_batched)));
        let captures = own[carried + slices..].iter();
        inputs.extend(captures.map(|x| value(&iteration.capture(&x.tensor), x.is_batched)));
        let outputs: Vec<NodeId> = it.body.0.outputs().iter().map(|o| o.node).collect();
        let made = batch.body(&it.body.0, &outputs, &it.symbols, &inputs)?;

        let mut results: Vec<Tensor> = vec![];
        for (v, differs) in made.iter().zip(&differing.outputs) {
            results.push(if *differs { batch.whole(v)? } else { v.tensor.clone() });
        }
        if mask.is_some() {
            let goes_on = iteration.carried[carried].clone();
            for (k, t) in results.iter_mut().enumerate().skip(lead) {
                let before = match k - lead < carried {
                    true => iteration.carried[k - lead].clone(),
                    false => t.zeros_like(),
                };
                *t = batch.chosen(&goes_on, t, &before)?;
            }
            let next = batch.goes_on(&iteration, goes_on, it, &results, count)?;
            iteration.go_on_if(&any(&next)?);
            results.insert(lead + carried, next);
        } else if it.conditional {
            iteration.go_on_if(&results[0]);
        }
        let around = carried + usize::from(mask.is_some());
        for ((t, along), differs) in
            (results[lead + around..].iter().zip(&it.stacks)).zip(&differing.outputs[lead + carried..])
        {
            let axis = i64::from(along.axis) + i64::from(*differs);
            match along.reverse {
                true => iteration.stack_reversed(t, axis),
                false => iteration.stack(t, axis),
            }
        }
        let next = results[lead..lead + around].to_vec();
        let mut found = repeat.finish(iteration, next);
        if mask.is_some() {
            found.remove(carried);
        }
        let found = found.into_iter().zip(&differing.outputs[lead..]);
        Ok(found.map(|(t, differs)| value(&t, *differs)).collect())
    }

    /// Which examples go on after an iteration, of those that went on until then.
    fn goes_on(
        &self,
        iteration: &Iteration,
        until_then: Tensor,
        it: &Loop,
        results: &[Tensor],
        count: Option<&Value>,
    ) -> Step {
        let mut next = until_then;
        if it.conditional {
            next = next.logical_and(&results[0]);
        }
        if let Some(count) = count.filter(|v| v.is_batched) {
            let done = &iteration.number + 1;
            next = next.logical_and(done.lt(iteration.capture(&count.tensor)));
        }
        next.expanded(std::slice::from_ref(&self.size))
    }

    /// `new` for those examples that the mask names, `old` for the others.
    fn chosen(&self, mask: &Tensor, new: &Tensor, old: &Tensor) -> Step {
        let behind: Vec<usize> = (1..new.rank()).collect();
        let mask = mask.with_ones(&behind)?.expanded(new.extents())?;
        self.graph
            .node(NodeKind::Map(tlc_ir::ScalarOp::Select), &[&mask, new, old])
    }

    /// Which values of a loop differ from example to example: what may, of what is computed from what does. With a mask all that is
    /// carried and stacked does.
    fn differing(&self, it: &Loop, own: &[Value], masked: bool) -> Differing {
        let body = &it.body.0;
        let lead = it.first_carried_output();
        let mut inputs: Vec<bool> = own.iter().map(|v| v.is_batched).collect();
        if masked {
            inputs[..it.carried].fill(true);
        }
        loop {
            let mut nodes = vec![false; body.len()];
            for (id, node) in body.nodes() {
                nodes[id.index()] = match &node.kind {
                    // The first is the iteration's number.
                    NodeKind::Input { index, .. } => *index > 0 && inputs[*index as usize - 1],
                    kind => self.draws_apart(kind) || node.operands.iter().any(|o| nodes[o.index()]),
                };
            }
            let mut outputs: Vec<bool> = body.outputs().iter().map(|o| masked || nodes[o.node.index()]).collect();
            let around: Vec<bool> = (0..it.carried).map(|k| inputs[k] || outputs[lead + k]).collect();
            if around[..] == inputs[..it.carried] {
                outputs[lead..lead + it.carried].copy_from_slice(&around);
                return Differing {
                    carried: around,
                    outputs,
                };
            }
            inputs[..it.carried].copy_from_slice(&around);
        }
    }
}

/// Whether any element holds.
fn any(mask: &Tensor) -> Step {
    mask.node(NodeKind::Reduce {
        monoid: Monoid::Or,
        axes: [0].into_iter().collect(),
    })
}
