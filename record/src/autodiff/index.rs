//! Derivatives of gathers, scatters and what picks elements.

use tlc_ir::graph::{Axes, HostFunction, Monoid, NodeKind, ScatterOp};
use tlc_ir::{DType, IndexExpr};

use super::node::{At, Cotangents, Linearized, summed_at, zeros};
use super::region::same_by_parts;
use crate::graph::Tensor;
use crate::graph::scope::{Step, refuse};

fn list(axes: &Axes) -> Vec<usize> {
    axes.iter().map(|&a| a as usize).collect()
}

/// The cotangent of what is gathered from: the scatter of that of the result.
pub(super) fn gather(axes: &Axes, at: &At<'_>) -> Step<Cotangents> {
    let indices: Vec<&Tensor> = at.operands[1..].iter().collect();
    at.each(|_| summed_at(&at.operands[0], at.cotangent, &list(axes), &indices))
}

/// The cotangents of what is scattered into, and of the updates.
pub(super) fn scatter(axes: &Axes, how: ScatterOp, at: &At<'_>) -> Step<Cotangents> {
    let (axes, d) = (list(axes), at.cotangent);
    let (base, updates) = (&at.operands[0], &at.operands[1]);
    let indices: Vec<&Tensor> = at.operands[2..].iter().collect();
    let wide = base.dtype().accumulator();
    let taken = |t: &Tensor| t.gathered(&axes, &indices);
    match how {
        ScatterOp::Set => at.each(|k| match k {
            0 => d.scattered(&zeros(at.graph(), updates.extents(), d.dtype())?, &axes, &indices, how),
            _ => {
                let wins = is_last(base, updates, &axes, &indices)?;
                Ok(wins.select(taken(d)?, 0.0))
            }
        }),
        ScatterOp::Add => at.each(|k| if k == 0 { Ok(d.clone()) } else { taken(d) }),
        ScatterOp::Mul => at.each(|k| {
            let (base, updates, d) = (base.to(wide)?, updates.to(wide)?, d.to(wide)?);
            if k == 0 {
                let ones = at.graph().filled(wide.one().into(), base.extents(), wide)?;
                return Ok(d * ones.scattered(&updates, &axes, &indices, how)?);
            }
            Ok(taken(&d)? * others(&base, &updates, &axes, &indices)?)
        }),
        ScatterOp::Max | ScatterOp::Min => {
            // In equal parts to what equals the extremum.
            let (kept, reaches, count) = chosen(base, updates, at.result, &axes, &indices)?;
            let part = d.to(wide)? / count;
            at.each(|k| match k {
                0 => Ok(kept.select(&part, 0.0)),
                _ => Ok(reaches.select(taken(&part)?, 0.0)),
            })
        }
    }
}

/// The tangent of a gather.
pub(super) fn gather_tangent(axes: &Axes, at: &Linearized<'_>) -> Step<Option<Tensor>> {
    let indices: Vec<&Tensor> = at.operands[1..].iter().collect();
    at.first(|t| t.gathered(&list(axes), &indices))
}

/// The tangent of a scatter.
pub(super) fn scatter_tangent(axes: &Axes, how: ScatterOp, at: &Linearized<'_>) -> Step<Option<Tensor>> {
    let axes = list(axes);
    let (base, updates) = (&at.operands[0], &at.operands[1]);
    let (t_base, t_updates) = (at.tangent(0)?, at.tangent(1)?);
    let indices: Vec<&Tensor> = at.operands[2..].iter().collect();
    let wide = base.dtype().accumulator();
    let summed = |base: Tensor, updates: Tensor| base.scattered(&updates, &axes, &indices, ScatterOp::Add);
    let tangent = match how {
        ScatterOp::Set => t_base.scattered(&t_updates, &axes, &indices, how),
        ScatterOp::Add => summed(t_base.to(wide)?, t_updates.to(wide)?),
        ScatterOp::Mul => {
            let (base, updates) = (base.to(wide)?, updates.to(wide)?);
            let ones = at.graph().filled(wide.one().into(), base.extents(), wide)?;
            let factors = ones.scattered(&updates, &axes, &indices, how)?;
            let others = others(&base, &updates, &axes, &indices)?;
            summed(t_base.to(wide)? * factors, t_updates.to(wide)? * others)
        }
        ScatterOp::Max | ScatterOp::Min => {
            let (kept, reaches, count) = chosen(base, updates, at.result, &axes, &indices)?;
            let sum = summed(
                kept.select(t_base.to(wide)?, 0.0),
                reaches.select(t_updates.to(wide)?, 0.0),
            )?;
            // Where the extremum is NaN nothing equals it.
            Ok(sum / count.maximum(1.0))
        }
    };
    tangent.map(Some)
}

/// By update of a product: the product of the other factors at its place. How that changes where factors are zero is said by the
/// products of pairs, of which there are many: only derivatives of derivatives ask for them.
fn others(base: &Tensor, updates: &Tensor, axes: &[usize], indices: &[&Tensor]) -> Step {
    let fast =
        |given: &[Tensor]| others_by_division(&given[0], &given[1], axes, &given[2..].iter().collect::<Vec<_>>());
    let exact = |given: &[Tensor]| others_by_pairs(&given[0], &given[1], axes, &given[2..].iter().collect::<Vec<_>>());
    let operands: Vec<&Tensor> = [base, updates].into_iter().chain(indices.iter().copied()).collect();
    same_by_parts("scatter_mul", &operands, fast, exact)
}

/// [`others`]: for each update, which updates go to the same place, and the product of these.
fn others_by_pairs(base: &Tensor, updates: &Tensor, axes: &[usize], indices: &[&Tensor]) -> Step {
    let graph = base.graph();
    let batch = indices[0].extents();
    let count = IndexExpr::product(batch);
    let (one, rest) = (IndexExpr::ONE, &updates.extents()[batch.len()..]);
    let pairs = |t: &Tensor| -> Step<(Tensor, Tensor)> {
        let (rows, columns) = ([count.clone(), one.clone()], [one.clone(), count.clone()]);
        Ok((t.reshaped(&rows)?, t.reshaped(&columns)?))
    };
    let (row, column) = pairs(&graph.iota_1d(&count, DType::I64)?)?;
    let mut beside = row.ne(&column);
    for index in indices {
        let (row, column) = pairs(index)?;
        beside = beside.logical_and(row.eq(&column));
    }
    let mut shape = vec![count.clone(), count.clone()];
    shape.resize(2 + rest.len(), one.clone());
    let beside = beside.reshaped(&shape)?;
    let factors = updates.reshaped(&[&[one, count], rest].concat())?;
    let product = beside.select(&factors, 1.0).node(NodeKind::Reduce {
        monoid: Monoid::Mul,
        axes: [1].into_iter().collect(),
    })?;
    Ok(product.reshaped(updates.extents())? * base.gathered(axes, indices)?)
}

/// [`others`], without dividing by zero: the product of those that are not zero, and how many are.
fn others_by_division(base: &Tensor, updates: &Tensor, axes: &[usize], indices: &[&Tensor]) -> Step {
    let (no_base, no_update) = (base.eq(0.0), updates.eq(0.0));
    let factors = no_base.select(1.0, base);
    let factors = factors.scattered(&no_update.select(1.0, updates), axes, indices, ScatterOp::Mul)?;
    let count = no_base.to(DType::I64)?;
    let count = count.scattered(&no_update.to(DType::I64)?, axes, indices, ScatterOp::Add)?;
    let (factors, count) = (factors.gathered(axes, indices)?, count.gathered(axes, indices)?);
    let alone = count.eq(1).select(&factors, 0.0);
    let beside = count.eq(0).select(&factors / updates, 0.0);
    Ok(no_update.select(alone, beside))
}

/// Which elements and which updates are the extremum at their place; how many they are, by place, in the accumulator.
fn chosen(
    base: &Tensor,
    updates: &Tensor,
    result: &Tensor,
    axes: &[usize],
    indices: &[&Tensor],
) -> Step<(Tensor, Tensor, Tensor)> {
    let wide = base.dtype().accumulator();
    let kept = base.eq(result);
    let reaches = updates.eq(result.gathered(axes, indices)?);
    let count = kept.to(wide)?;
    let count = count.scattered(&reaches.to(wide)?, axes, indices, ScatterOp::Add)?;
    Ok((kept, reaches, count))
}

/// By update: whether no later one goes to the same place.
fn is_last(base: &Tensor, updates: &Tensor, axes: &[usize], indices: &[&Tensor]) -> Step {
    let graph = base.graph();
    let batch = indices[0].extents();
    let number = graph.iota_1d(&IndexExpr::product(batch), DType::I64)?.reshaped(batch)?;
    let places: Vec<IndexExpr> = axes.iter().map(|&a| base.extents()[a].clone()).collect();
    let all: Vec<usize> = (0..axes.len()).collect();
    let last = zeros(graph, &places, DType::I64)?.scattered(&number, &all, indices, ScatterOp::Set)?;
    let wins = last.gathered(&all, indices)?.eq(&number);
    let mut shape = wins.ty().shape.clone();
    shape.resize(updates.rank(), IndexExpr::ONE);
    wins.reshaped(&shape)?.expanded(updates.extents())
}

/// The cotangent of the operand of a host function, from those of its results.
pub(super) fn call(function: &HostFunction, call: &Tensor, operands: &[Tensor], parts: &[(u32, Tensor)]) -> Step {
    let x = &operands[0];
    let graph = x.graph();
    let result = |k: u32| graph.node(NodeKind::Project(k), &[call]);
    // Only the first results are floats.
    let Some((_, d)) = parts.iter().find(|(k, _)| *k == 0) else {
        return refuse("its cotangent is of no result that has one");
    };
    match function {
        HostFunction::Sort { axis, .. } => {
            let wide = x.dtype().accumulator();
            let none = zeros(graph, x.extents(), wide)?;
            let axis = i64::from(*axis);
            Ok(none.scatter_along_axis(&result(1)?, axis, &d.to(wide)?, ScatterOp::Add))
        }
        HostFunction::Unique { axis: None, .. } => {
            let flat = x.reshaped(&[x.ty().elements()])?;
            summed_at(&flat, d, &[0], &[&result(1)?])?.reshaped(x.extents())
        }
        HostFunction::Unique { axis: Some(axis), .. } => {
            let axis = usize::from(*axis);
            let order = crate::ops::shape::moved(x.rank(), axis, 0);
            summed_at(x, &d.permuted(&order)?, &[axis], &[&result(1)?])
        }
        HostFunction::NonZero { .. } | HostFunction::Suppress { .. } => refuse("its results are places"),
    }
}

/// The tangents of the results of a host function: of its first operand's elements where they went.
pub(super) fn call_tangent(
    function: &HostFunction,
    call: &Tensor,
    operands: &[Tensor],
    tangent: Option<&Tensor>,
) -> Step<Option<Tensor>> {
    let Some(t) = tangent else { return Ok(None) };
    let places = || call.graph().node(NodeKind::Project(1), &[call]);
    match function {
        HostFunction::Sort { axis, .. } => Ok(Some(t.take_along_axis_from_start(&places()?, i64::from(*axis)))),
        HostFunction::Unique { axis: None, .. } => {
            let flat = t.reshaped(&[operands[0].ty().elements()])?;
            flat.gathered(&[0], &[&places()?]).map(Some)
        }
        HostFunction::Unique { axis: Some(axis), .. } => {
            let axis = usize::from(*axis);
            let rows = t.gathered(&[axis], &[&places()?])?;
            rows.permuted(&crate::ops::shape::moved(t.rank(), 0, axis)).map(Some)
        }
        HostFunction::NonZero { .. } | HostFunction::Suppress { .. } => Ok(None),
    }
}
