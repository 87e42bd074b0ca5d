//! Loops: the body graph once for each iteration. Regions: theirs once.

use crate::dtype::DType;
use crate::graph::{Loop, NodeKind, Region};
use crate::tensor::{HostTensor, TensorError};
use crate::{Scalar, graph::Graph};

use super::{Budget, Domain, InterpError, Schedule, Step, extents, no_extent};

/// The results of a loop.
pub(super) fn run<D: Domain>(
    domain: &D,
    step: &Step<'_>,
    l: &Loop,
    operands: &[&D::Value],
    budget: &mut Budget,
) -> Result<Vec<D::Value>, InterpError> {
    let invalid = |problem: &str| InterpError::Invalid {
        node: step.id,
        problem: problem.into(),
    };
    let symbols: Option<Vec<i64>> = l.symbols.iter().map(|e| e.eval_symbols(step.symbols)).collect();
    let symbols = symbols.ok_or_else(|| invalid("a symbol of the body has no value"))?;
    let trip = match &l.trip {
        Some(trip) => Some(
            trip.eval_symbols(step.symbols)
                .and_then(|t| usize::try_from(t).ok())
                .ok_or_else(|| invalid("the trip count has no value"))?,
        ),
        None => None,
    };
    let body = Schedule::new(&l.body.0, &symbols)?;
    let mut certain = true;
    let mut look = |value: &D::Value| {
        let (number, sure) = domain.number(value);
        certain &= sure;
        number
    };
    let mut limit = trip.unwrap_or(usize::MAX);
    if l.counted {
        limit = limit.min(look(operands[0]).max(0) as usize);
    }
    let mut goes_on = l.condition_operand().is_none_or(|k| look(operands[k]) != 0);
    let lead = l.leading();
    let mut carried: Vec<D::Value> = operands[lead..lead + l.carried].iter().map(|v| (*v).clone()).collect();
    let sliced = &operands[lead + l.carried..lead + l.carried + l.slices.len()];
    let captures = &operands[lead + l.carried + l.slices.len()..];
    let mut stacks: Vec<Vec<Option<D::Value>>> = vec![vec![None; trip.unwrap_or(0)]; l.stacks.len()];
    let cost = (nodes(&l.body.0) as u64).max(1);
    let mut iteration = 0usize;
    while goes_on && iteration < limit {
        budget.steps = budget.steps.saturating_add(cost);
        if budget.steps > budget.max_steps {
            return Err(InterpError::Steps {
                node: step.id,
                limit: budget.max_steps,
            });
        }
        let number = HostTensor::scalar(Scalar::from_i64(DType::I64, iteration as i64));
        let mut inputs = vec![domain.leaf(&number)];
        inputs.append(&mut carried);
        for (value, along) in sliced.iter().zip(&l.slices) {
            // A loop with slices has a trip count, which is their extent.
            let at = along.position(iteration, trip.unwrap_or(0));
            let element = domain.element(value, along.axis as usize, at);
            inputs.push(element.map_err(|e| step.failed(e))?);
        }
        inputs.extend(captures.iter().map(|v| (*v).clone()));
        let mut outputs = body.run(domain, inputs, budget, &mut |_, _| None)?.into_iter();
        if l.conditional {
            let condition = outputs.next().ok_or_else(|| invalid("a body without its condition"))?;
            goes_on = look(&condition) != 0;
        }
        carried = outputs.by_ref().take(l.carried).collect();
        for ((value, along), stack) in outputs.zip(&l.stacks).zip(&mut stacks) {
            stack[along.position(iteration, trip.unwrap_or(0))] = Some(value);
        }
        iteration += 1;
    }
    let mut results = carried;
    for (k, (parts, along)) in stacks.iter().zip(&l.stacks).enumerate() {
        let ty = &step.node.results[l.carried + k];
        let shape = extents(&ty.shape, step.symbols).ok_or_else(|| no_extent(step.id))?;
        let whole = domain.stack(ty.dtype, &shape, along.axis as usize, parts);
        results.push(whole.map_err(|e| step.failed(e))?);
    }
    if !certain {
        results = results.into_iter().map(|v| domain.doubt(v)).collect();
    }
    Ok(results)
}

/// The results of a region.
pub(super) fn region<D: Domain>(
    domain: &D,
    step: &Step<'_>,
    r: &Region,
    operands: &[&D::Value],
    budget: &mut Budget,
) -> Result<Vec<D::Value>, InterpError> {
    let symbols: Option<Vec<i64>> = r.symbols.iter().map(|e| e.eval_symbols(step.symbols)).collect();
    let symbols = symbols.ok_or_else(|| InterpError::Invalid {
        node: step.id,
        problem: "a symbol of the body has no value".into(),
    })?;
    let inputs = operands.iter().map(|v| (*v).clone()).collect();
    Schedule::new(&r.body.0, &symbols)?.run(domain, inputs, budget, &mut |_, _| None)
}

/// Nodes that one pass over a graph computes, apart from those of loops inside.
fn nodes(graph: &Graph) -> usize {
    let inputs = |kind: &NodeKind| matches!(kind, NodeKind::Input { .. });
    graph.nodes().filter(|(_, n)| !inputs(&n.kind)).count()
}

/// Extents before and behind an axis, multiplied.
pub(super) fn around(shape: &[usize], axis: usize) -> (usize, usize) {
    (shape[..axis].iter().product(), shape[axis + 1..].iter().product())
}

/// The elements at one position of an axis; `width` counts what an element takes in `from`.
pub(super) fn element_of<T: Clone>(from: &[T], shape: &[usize], axis: usize, at: usize, width: usize) -> Vec<T> {
    let (outer, inner) = around(shape, axis);
    let run = inner * width;
    let mut out = Vec::with_capacity(outer * run);
    for o in 0..outer {
        let start = (o * shape[axis] + at) * run;
        out.extend_from_slice(&from[start..start + run]);
    }
    out
}

/// The inverse: elements of the parts side by side along an axis, `fill` where there is none.
pub(super) fn stacked<T: Clone>(parts: &[Option<&[T]>], shape: &[usize], axis: usize, width: usize, fill: T) -> Vec<T> {
    let (outer, inner) = around(shape, axis);
    let run = inner * width;
    let mut out = vec![fill; outer * shape[axis] * run];
    for (at, part) in parts.iter().enumerate() {
        for (o, from) in part
            .iter()
            .flat_map(|p| p.chunks_exact(run.max(1)))
            .enumerate()
            .take(outer)
        {
            let start = (o * shape[axis] + at) * run;
            out[start..start + run].clone_from_slice(from);
        }
    }
    out
}

/// `shape` without an axis.
pub(super) fn without(shape: &[usize], axis: usize) -> Vec<usize> {
    let mut shape = shape.to_vec();
    shape.remove(axis);
    shape
}

pub(crate) fn element_of_tensor(value: &HostTensor, axis: usize, at: usize) -> Result<HostTensor, TensorError> {
    let bytes = element_of(value.bytes(), value.shape(), axis, at, value.dtype().bytes());
    HostTensor::from_bytes(value.dtype(), &without(value.shape(), axis), &bytes)
}

pub(crate) fn stack_tensors(
    dtype: DType,
    shape: &[usize],
    axis: usize,
    parts: &[Option<&HostTensor>],
) -> Result<HostTensor, TensorError> {
    let parts: Vec<Option<&[u8]>> = parts.iter().map(|p| p.map(HostTensor::bytes)).collect();
    HostTensor::from_bytes(dtype, shape, &stacked(&parts, shape, axis, dtype.bytes(), 0u8))
}
