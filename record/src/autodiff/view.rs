//! Adjoints of views: where an element was taken from, its cotangent is added.

use tlc_ir::graph::{Axes, MAX_INTERIOR, Monoid, NodeKind, Shape, View};
use tlc_ir::{DType, IndexExpr};

use super::node::{At, Cotangents, summed_at};
use crate::dim::Dim;
use crate::graph::Tensor;
use crate::graph::scope::Step;
use crate::ops::overlap::{Line, overlap_added, part, spread};

/// The cotangent of the operand of `view`.
pub(super) fn rule(view: &View, at: &At<'_>) -> Step<Cotangents> {
    let (x, d) = (&at.operands[0], at.cotangent);
    match view {
        View::Reshape(_) => at.each(|_| d.reshaped(x.extents())),
        View::Permute(permutation) => at.each(|_| d.permuted(&inverse(permutation))),
        View::Expand(shape) => at.each(|_| expand(x, d, shape)),
        View::Pad { lo, interior, .. } if interior.iter().all(|&n| n == 0) => at.each(|_| part(d, lo, x.extents())),
        View::Pad { lo, interior, .. } => at.each(|_| {
            d.view(View::Slice {
                start: lo.clone(),
                step: interior.iter().map(|p| p + 1).collect(),
                size: x.extents().into(),
            })
        }),
        View::Slice { start, step, size } => at.some(|_| match size.iter().any(|s| s.is(0)) {
            true => Ok(None),
            false => slice(x, d, start, step).map(Some),
        }),
        View::Window {
            axis, stride, dilation, ..
        } => at.some(|_| window(x, d, *axis as usize, *stride, *dilation)),
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
    let most = |e: &IndexExpr| x.graph().with_ir(|ir| e.interval(ir)).hi;
    let is_repeated = |axis: &usize| match axis.checked_sub(lead) {
        Some(own) => {
            let (from, to) = (&x.extents()[own], &shape[*axis]);
            from != to && most(from) <= 1 && !to.is(1)
        }
        None => true,
    };
    let axes: Axes = (0..shape.len()).filter(is_repeated).map(|a| a as u8).collect();
    // There may be no element to repeat, as in the first row of a batch of none.
    let may_be_none = |own: &usize| is_repeated(&(own + lead)) && !x.extents()[*own].is(1);
    let mut ones: Shape = x.extents().iter().cloned().collect();
    let mut cut = false;
    for own in (0..x.rank()).filter(may_be_none) {
        (ones[own], cut) = (IndexExpr::ONE, true);
    }
    let sum = match axes.is_empty() {
        true => d.clone(),
        false => d.node(NodeKind::Reduce {
            monoid: Monoid::Add,
            axes,
        })?,
    };
    let sum = sum.reshaped(&ones)?;
    match cut {
        false => Ok(sum),
        true => sum.view(View::Slice {
            start: vec![IndexExpr::ZERO; x.rank()].into_boxed_slice(),
            step: vec![1; x.rank()].into_boxed_slice(),
            size: x.extents().to_vec().into_boxed_slice(),
        }),
    }
}

/// Each element at its place among zeros: by padding where the sizes prove that there is no less than none of it, else by a
/// scatter along the axis.
fn slice(x: &Tensor, d: &Tensor, start: &[IndexExpr], step: &[i64]) -> Step {
    let graph = x.graph();
    let rank = x.rank();
    let none = || vec![IndexExpr::ZERO; rank];
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
            start: flip_start.into(),
            step: flip_step.into(),
            size: d.extents().into(),
        })?;
    }
    if lo.iter().chain(&hi).any(|p| !p.is(0)) || interior.iter().any(|&p| p > 0) {
        placed = placed.view(View::Pad {
            lo: lo.into(),
            hi: hi.into(),
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

/// The overlap-add of windows. What padding cuts off again does not count.
fn window(x: &Tensor, d: &Tensor, axis: usize, stride: i64, dilation: i64) -> Step<Option<Tensor>> {
    let mut line = Line::new(x.extents()[axis].clone(), stride, dilation);
    line.asked = x.graph().with_ir(|ir| unpadded(ir, x, axis)).unwrap_or(line.asked);
    overlap_added(d, axis, &line)
}

/// The extent of an axis of `x` before it was padded.
fn unpadded(ir: &tlc_ir::Graph, x: &Tensor, axis: usize) -> Option<IndexExpr> {
    let mut at = x.id()?;
    loop {
        let node = ir.node(at);
        let below = *node.operands.first()?;
        match &node.kind {
            // Windows over axes before leave this one where it is.
            NodeKind::View(View::Window { axis: other, .. }) if usize::from(*other) != axis => at = below,
            NodeKind::View(View::Pad { .. }) => return ir.ty(below).shape.get(axis).cloned(),
            _ => return None,
        }
    }
}
