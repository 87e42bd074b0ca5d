//! Derivatives of gathers, scatters and what picks elements.

use tlc_ir::graph::{Axes, HostFunction, NodeKind, ScatterOp};
use tlc_ir::{DType, IndexExpr};

use super::node::{At, Cotangents, summed_at, zeros};
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
            // The product of the other factors, without dividing by zero: the product of those that are not zero, and how
            // many are.
            let (no_base, no_update) = (base.eq(0.0), updates.eq(0.0));
            let factors = no_base.select(1.0, &base);
            let factors = factors.scattered(&no_update.select(1.0, &updates), &axes, &indices, how)?;
            let count = no_base.to(DType::I64)?;
            let count = count.scattered(&no_update.to(DType::I64)?, &axes, &indices, ScatterOp::Add)?;
            let (factors, count) = (taken(&factors)?, taken(&count)?);
            let alone = count.eq(1).select(&factors, 0.0);
            let beside = count.eq(0).select(&factors / &updates, 0.0);
            Ok(taken(&d)? * no_update.select(alone, beside))
        }),
        ScatterOp::Max | ScatterOp::Min => {
            // In equal parts to what equals the extremum.
            let kept = base.eq(at.result);
            let reaches = updates.eq(taken(at.result)?);
            let count = kept.to(wide)?;
            let count = count.scattered(&reaches.to(wide)?, &axes, &indices, ScatterOp::Add)?;
            let part = d.to(wide)? / count;
            at.each(|k| match k {
                0 => Ok(kept.select(&part, 0.0)),
                _ => Ok(reaches.select(taken(&part)?, 0.0)),
            })
        }
    }
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
