//! Adjoints of views: where an element was taken from, its cotangent is added.

use tlc_ir::graph::{Axes, MAX_INTERIOR, Monoid, NodeKind, Shape, View};
use tlc_ir::{DType, IndexExpr};

use super::node::{At, Cotangents, summed_at};
use crate::dim::Dim;
use crate::graph::scope::Step;
use crate::graph::{Graph, Tensor};

/// The most elements of a window whose cotangents are added element by element of the window; those of longer ones, and of
/// windows whose sizes do not prove that they are inside, are scattered. The former is a term an element, and each result is
/// computed where it is.
const FEW: i64 = 8;

/// The cotangent of the operand of `view`.
pub(super) fn rule(view: &View, at: &At<'_>) -> Step<Cotangents> {
    let (x, d) = (&at.operands[0], at.cotangent);
    match view {
        View::Reshape(_) => at.each(|_| d.reshaped(x.extents())),
        View::Permute(permutation) => at.each(|_| d.permuted(&inverse(permutation))),
        View::Expand(shape) => at.each(|_| expand(x, d, shape)),
        View::Pad { lo, interior, .. } => at.each(|_| {
            d.view(View::Slice {
                start: lo.clone(),
                step: interior.iter().map(|p| p + 1).collect(),
                size: x.ty().shape.clone(),
            })
        }),
        View::Slice { start, step, size } => at.some(|_| match size.iter().any(|s| s.is(0)) {
            true => Ok(None),
            false => slice(x, d, start, step).map(Some),
        }),
        View::Window {
            axis,
            size,
            stride,
            dilation,
        } => at.some(|_| window(x, d, *axis as usize, size, *stride, *dilation)),
    }
}

/// The permutation that undoes another.
fn inverse(permutation: &Axes) -> Vec<usize> {
    let mut back = vec![0; permutation.len()];
    for (i, &p) in permutation.iter().enumerate() {
        back[p as usize] = i;
    }
    back
}

/// The sum over what was repeated.
fn expand(x: &Tensor, d: &Tensor, shape: &Shape) -> Step {
    let lead = shape.len() - x.rank();
    let is_repeated = |axis: &usize| match axis.checked_sub(lead) {
        Some(own) => x.extents()[own].is(1) && !shape[*axis].is(1),
        None => true,
    };
    let axes: Axes = (0..shape.len()).filter(is_repeated).map(|a| a as u8).collect();
    let sum = match axes.is_empty() {
        true => d.clone(),
        false => d.node(NodeKind::Reduce {
            monoid: Monoid::Add,
            axes,
        })?,
    };
    sum.reshaped(x.extents())
}

/// Each element at its place among zeros: by padding where the sizes prove that there is no less than none of it, else by a
/// scatter along the axis.
fn slice(x: &Tensor, d: &Tensor, start: &Shape, step: &[i64]) -> Step {
    let graph = x.graph();
    let rank = x.rank();
    let none = || Shape::from_elem(IndexExpr::ZERO, rank);
    let (mut flip_start, mut flip_step) = (none(), vec![1; rank]);
    let (mut lo, mut hi, mut interior) = (none(), none(), vec![0; rank]);
    let mut scattered = vec![];
    for axis in 0..rank {
        let (from, extent) = (&d.extents()[axis], &x.extents()[axis]);
        let last = from.clone() - IndexExpr::ONE;
        let first = match step[axis] > 0 {
            true => start[axis].clone(),
            false => start[axis].clone() + last.clone() * IndexExpr::Const(step[axis]),
        };
        let between = step[axis].saturating_abs() - 1;
        let behind = graph.simplify(&(extent.clone() - first.clone() - spread(graph, from, between)));
        if between > MAX_INTERIOR || graph.least(&first) < 0 || graph.least(&behind) < 0 {
            scattered.push(axis);
            continue;
        }
        (lo[axis], hi[axis], interior[axis]) = (first, behind, between);
        if step[axis] < 0 && !from.is(1) {
            (flip_start[axis], flip_step[axis]) = (last, -1);
        }
    }
    let mut placed = d.clone();
    if flip_step.contains(&-1) {
        placed = placed.view(View::Slice {
            start: flip_start,
            step: flip_step.into(),
            size: d.ty().shape.clone(),
        })?;
    }
    if lo.iter().chain(&hi).any(|p| !p.is(0)) || interior.iter().any(|&p| p > 0) {
        placed = placed.view(View::Pad {
            lo,
            hi,
            interior: interior.into(),
            value: d.dtype().zero(),
        })?;
    }
    for axis in scattered {
        let place = graph.iota_1d(&placed.extents()[axis], DType::I64)? * step[axis];
        let place = place + graph.dim_value(&Dim(start[axis].clone()), DType::I64)?;
        let mut shape = placed.ty().shape.clone();
        shape[axis] = x.extents()[axis].clone();
        let like = super::node::zeros(graph, &shape, d.dtype())?;
        let order = crate::ops::shape::moved(rank, axis, 0);
        placed = summed_at(&like, &placed.permuted(&order)?, &[axis], &[&place])?;
    }
    Ok(placed)
}

/// The extent of an axis with so many zeros between neighbours, as padding makes it.
fn spread(graph: &Graph, extent: &IndexExpr, between: i64) -> IndexExpr {
    let spread = extent.clone() * IndexExpr::Const(between + 1) - IndexExpr::Const(between);
    match between == 0 || graph.least(extent) >= 1 {
        true => spread,
        false => IndexExpr::max(&spread, &IndexExpr::ZERO),
    }
}

/// The overlap-add of windows.
fn window(x: &Tensor, d: &Tensor, axis: usize, size: &IndexExpr, stride: i64, dilation: i64) -> Step<Option<Tensor>> {
    let graph = x.graph();
    let rank = x.rank();
    let (extent, windows) = (&x.extents()[axis], &d.extents()[axis]);
    if windows.is(0) {
        return Ok(None);
    }
    // With one window there is nothing between windows.
    let between = if windows.is(1) { 0 } else { stride - 1 };
    let behind = |k: i64| {
        let reach = IndexExpr::from(k.saturating_mul(dilation)) + spread(graph, windows, between);
        graph.simplify(&(extent.clone() - reach))
    };
    // The last element of a window leaves the least behind it.
    let few = size.as_const().filter(|&size| {
        let padded = size <= FEW && between <= MAX_INTERIOR;
        padded && graph.least(&behind(size - 1)) >= 0
    });
    let Some(size) = few else {
        let along = |extent: &IndexExpr, step: i64, shape: &[IndexExpr]| -> Step {
            Ok(graph.iota_1d(extent, DType::I64)?.reshaped(shape)? * step)
        };
        let place = along(windows, stride, &[windows.clone(), IndexExpr::ONE])?
            + along(size, dilation, &[IndexExpr::ONE, size.clone()])?;
        let order: Vec<usize> = [axis, rank]
            .into_iter()
            .chain((0..rank).filter(|&a| a != axis))
            .collect();
        return summed_at(x, &d.permuted(&order)?, &[axis], &[&place]).map(Some);
    };
    let wide = d.to(x.dtype().accumulator())?;
    let mut sum: Option<Tensor> = None;
    for k in 0..size {
        let term = placed(graph, &wide, rank, k)?;
        let (mut lo, mut hi) = (vec![IndexExpr::ZERO; rank], vec![IndexExpr::ZERO; rank]);
        let mut interior = vec![0; rank];
        lo[axis] = (k * dilation).into();
        hi[axis] = behind(k);
        interior[axis] = between;
        let term = term.view(View::Pad {
            lo: lo.into(),
            hi: hi.into(),
            interior: interior.into(),
            value: wide.dtype().zero(),
        })?;
        sum = Some(match sum {
            Some(sum) => sum + term,
            None => term,
        });
    }
    Ok(sum)
}

/// Element `k` of each window.
fn placed(graph: &Graph, d: &Tensor, rank: usize, k: i64) -> Step {
    let mut start = Shape::from_elem(IndexExpr::ZERO, rank + 1);
    start[rank] = k.into();
    let mut size = d.ty().shape.clone();
    size[rank] = IndexExpr::ONE;
    let view = View::Slice {
        start,
        step: (0..=rank).map(|_| 1).collect(),
        size,
    };
    graph.node(NodeKind::View(view), &[d])?.without(&[rank])
}
