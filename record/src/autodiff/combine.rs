//! Derivatives of reductions and scans.

use tlc_ir::graph::{Axes, Monoid, NodeKind, ScatterOp};
use tlc_ir::{DType, IndexExpr};

use super::node::{At, Cotangents, Linearized, positions, repeated, zeros};
use super::region::same_by_parts;
use crate::graph::Tensor;
use crate::graph::scope::{Step, refuse};

/// The cotangent of what is reduced.
pub(super) fn reduce(monoid: Monoid, axes: &Axes, at: &At<'_>) -> Step<Cotangents> {
    let (x, d) = (&at.operands[0], at.cotangent);
    let list: Vec<usize> = axes.iter().map(|&a| a as usize).collect();
    match monoid {
        Monoid::Add => at.each(|_| repeated(d, &list, x.extents())),
        Monoid::Mul => at.each(|_| product(x, d, &list)),
        Monoid::Max | Monoid::Min => at.each(|_| {
            let chosen = is_chosen(x, &repeated(at.result, &list, x.extents())?)?;
            share(&chosen, d, axes, x)
        }),
        Monoid::And | Monoid::Or | Monoid::ArgMax | Monoid::ArgMin => Ok(at.zero()),
    }
}

/// Whether an element is its row's extremum; where that is NaN, whether the element is.
fn is_chosen(x: &Tensor, extremum: &Tensor) -> Step {
    Ok(x.eq(extremum).logical_or(x.is_nan()))
}

/// The cotangent of each row in equal parts to the chosen ones among its elements.
pub(super) fn share(chosen: &Tensor, d: &Tensor, axes: &Axes, x: &Tensor) -> Step {
    let wide = x.dtype().accumulator();
    let list: Vec<usize> = axes.iter().map(|&a| a as usize).collect();
    let count = chosen.to(wide)?.node(NodeKind::Reduce {
        monoid: Monoid::Add,
        axes: axes.clone(),
    })?;
    let part = repeated(&(d.to(wide)? / count), &list, x.extents())?;
    Ok(chosen.select(&part, 0.0))
}

/// The tangent of a reduction.
pub(super) fn reduce_tangent(monoid: Monoid, axes: &Axes, at: &Linearized<'_>) -> Step<Option<Tensor>> {
    let x = &at.operands[0];
    let wide = x.dtype().accumulator();
    let list: Vec<usize> = axes.iter().map(|&a| a as usize).collect();
    let total = |t: Tensor| {
        t.node(NodeKind::Reduce {
            monoid: Monoid::Add,
            axes: axes.clone(),
        })
    };
    match monoid {
        Monoid::Add => at.first(|t| total(t.clone())),
        Monoid::Mul => at.first(|t| total(t.to(wide)? * others(x, &list)?)),
        Monoid::Max | Monoid::Min => at.first(|t| {
            let chosen = is_chosen(x, &repeated(at.result, &list, x.extents())?)?;
            mean(&chosen, &t.to(wide)?, axes)
        }),
        Monoid::And | Monoid::Or | Monoid::ArgMax | Monoid::ArgMin => Ok(None),
    }
}

/// The mean of the chosen elements of each row; 0 of none.
pub(super) fn mean(chosen: &Tensor, t: &Tensor, axes: &Axes) -> Step {
    let total = |t: Tensor| {
        t.node(NodeKind::Reduce {
            monoid: Monoid::Add,
            axes: axes.clone(),
        })
    };
    let count = total(chosen.to(t.dtype())?)?;
    Ok(total(chosen.select(t, 0.0))? / count.maximum(1.0))
}

/// The cotangent of the factors of a product.
fn product(x: &Tensor, d: &Tensor, axes: &[usize]) -> Step {
    let wide = x.dtype().accumulator();
    Ok(repeated(&d.to(wide)?, axes, x.extents())? * others(x, axes)?)
}

/// By factor of a product: the product of the others, those before times those behind, so that a factor may be zero. In the
/// accumulator of the dtype.
fn others(x: &Tensor, axes: &[usize]) -> Step {
    let wide = x.dtype().accumulator();
    let kept = (0..x.rank()).filter(|a| !axes.contains(a));
    let order: Vec<usize> = kept.clone().chain(axes.iter().copied()).collect();
    let behind = x.to(wide)?.permuted(&order)?;
    let mut shape: Vec<IndexExpr> = kept.map(|a| x.extents()[a].clone()).collect();
    shape.push(IndexExpr::product(axes.iter().map(|&a| &x.extents()[a])));
    let row = behind.reshaped(&shape)?;
    let axis = (shape.len() - 1) as i64;
    let others = row.scanned(Monoid::Mul, axis, true, false)? * row.scanned(Monoid::Mul, axis, true, true)?;
    let mut back = vec![0; order.len()];
    order.iter().enumerate().for_each(|(i, &a)| back[a] = i);
    others.reshaped(behind.extents())?.permuted(&back)
}

/// The cotangent of what is scanned.
pub(super) fn scan(monoid: Monoid, axis: usize, exclusive: bool, reverse: bool, at: &At<'_>) -> Step<Cotangents> {
    let (x, d) = (&at.operands[0], at.cotangent);
    let wide = x.dtype().accumulator();
    // An element is part of what the scan comes to behind it.
    let behind = |t: Tensor| t.scanned(Monoid::Add, axis as i64, exclusive, !reverse);
    match monoid {
        Monoid::Add => at.each(|_| behind(d.to(wide)?)),
        Monoid::Mul => at.each(|_| products(&x.to(wide)?, &d.to(wide)?, axis, exclusive, reverse)),
        Monoid::Max | Monoid::Min => at.each(|_| extrema(monoid, x, d, axis, exclusive, reverse)),
        Monoid::And | Monoid::Or | Monoid::ArgMax | Monoid::ArgMin => Ok(at.zero()),
    }
}

/// The tangent of a scan.
pub(super) fn scan_tangent(
    monoid: Monoid,
    axis: usize,
    exclusive: bool,
    reverse: bool,
    at: &Linearized<'_>,
) -> Step<Option<Tensor>> {
    let x = &at.operands[0];
    let wide = x.dtype().accumulator();
    let running = |t: Tensor, monoid: Monoid| t.scanned(monoid, axis as i64, exclusive, reverse);
    match monoid {
        Monoid::Add => at.first(|t| running(t.to(wide)?, Monoid::Add)),
        Monoid::Mul => at.first(|t| {
            let fast = |given: &[Tensor]| {
                let (x, t) = (&given[0], &given[1]);
                let (is_zero, is_first) = zeros_of(x, axis, reverse)?;
                // See `products`, whose transpose this is.
                let all = is_zero.select(0.0, t) / is_zero.select(1.0, x);
                let all = running(all, Monoid::Add)? * running(x.clone(), Monoid::Mul)?;
                let around = running(is_first.select(t, 0.0), Monoid::Add)?;
                Ok(all + around * running(is_first.select(1.0, x), Monoid::Mul)?)
            };
            let exact = |given: &[Tensor]| {
                let [_, tangent] = one_by_one(&given[0], Some(&given[1]), axis, exclusive, reverse)?;
                Ok(tangent)
            };
            same_by_parts("cumprod", &[&x.to(wide)?, &t.to(wide)?], fast, exact)
        }),
        Monoid::Max | Monoid::Min => at.first(|t| {
            let places = places(monoid, x, axis, exclusive, reverse)?;
            Ok(t.take_along_axis_from_start(&places, axis as i64))
        }),
        Monoid::And | Monoid::Or | Monoid::ArgMax | Monoid::ArgMin => Ok(None),
    }
}

/// Which elements are zero, and which of them the first that a scan comes to in its row.
fn zeros_of(x: &Tensor, axis: usize, reverse: bool) -> Step<(Tensor, Tensor)> {
    let is_zero = x.eq(0.0);
    let earlier = is_zero.scanned(Monoid::Or, axis as i64, true, reverse)?;
    let is_first = is_zero.logical_and(earlier.logical_not());
    Ok((is_zero, is_first))
}

/// The cotangents of factors of running products. Each is part of the products behind it, which divided by it are the products
/// of the others. The first zero of a row ends them: behind it nothing counts, and for itself the products are taken with 1
/// in its place. What is selected says nothing of how the products change where there are zeros, so their own derivatives are those
/// of a loop.
fn products(x: &Tensor, d: &Tensor, axis: usize, exclusive: bool, reverse: bool) -> Step {
    let fast = |given: &[Tensor]| {
        let (x, d) = (&given[0], &given[1]);
        let (is_zero, is_first) = zeros_of(x, axis, reverse)?;
        let axis = axis as i64;
        let running = |t: &Tensor| t.scanned(Monoid::Mul, axis, exclusive, reverse);
        let behind = |t: Tensor| t.scanned(Monoid::Add, axis, exclusive, !reverse);
        let around = behind(d * running(&is_first.select(1.0, x))?)?;
        let all = behind(d * running(x)?)?;
        Ok(is_first.select(&around, all / is_zero.select(1.0, x)))
    };
    let exact = |given: &[Tensor]| {
        let (x, d) = (&given[0], &given[1]);
        let [y, _] = one_by_one(x, None, axis, exclusive, reverse)?;
        match super::derivatives(x.graph(), &[&y], &[d], &[x])?.pop() {
            Some(found) => Ok(found),
            None => refuse("no cotangent"),
        }
    };
    same_by_parts("cumprod", &[x, d], fast, exact)
}

/// Running products, multiplied one factor after the other, and their tangents along `t` (zeros without one).
fn one_by_one(x: &Tensor, t: Option<&Tensor>, axis: usize, exclusive: bool, reverse: bool) -> Step<[Tensor; 2]> {
    let graph = x.graph();
    let mut shape = x.extents().to_vec();
    let trip = shape.remove(axis);
    let along = axis as i64;
    let one = graph.filled(x.dtype().one().into(), &shape, x.dtype())?;
    let mut repeat = graph.repeat(crate::dim::Dim(trip)).carry(&one);
    if t.is_some() {
        repeat = repeat.carry(&zeros(graph, &shape, x.dtype())?);
    }
    for of in [x].into_iter().chain(t) {
        repeat = match reverse {
            false => repeat.slice(of, along),
            true => repeat.slice_reversed(of, along),
        };
    }
    let carried = 1 + usize::from(t.is_some());
    let mut results = repeat.record(|i| {
        let mut next = vec![&i.carried[0] * &i.slices[0]];
        if t.is_some() {
            next.push(&i.carried[1] * &i.slices[0] + &i.carried[0] * &i.slices[1]);
        }
        let kept = if exclusive { i.carried.clone() } else { next.clone() };
        for t in &kept {
            match reverse {
                false => i.stack(t, along),
                true => i.stack_reversed(t, along),
            }
        }
        next
    });
    let mut stacked = results.drain(carried..);
    match (stacked.next(), stacked.next()) {
        (Some(y), Some(tangent)) => Ok([y, tangent]),
        (Some(y), None) => Ok([y, zeros(graph, x.extents(), x.dtype())?]),
        _ => refuse("a loop without results"),
    }
}

/// The cotangents of what running extrema are taken of: each goes to the first element that was the extremum.
fn extrema(monoid: Monoid, x: &Tensor, d: &Tensor, axis: usize, exclusive: bool, reverse: bool) -> Step {
    let wide = x.dtype().accumulator();
    let place = places(monoid, x, axis, exclusive, reverse)?;
    let none = zeros(x.graph(), x.extents(), wide)?;
    Ok(none.scatter_along_axis(&place, axis as i64, &d.to(wide)?, ScatterOp::Add))
}

/// By running extremum: the place of the first element that it is. Of none, which is what an exclusive scan begins with, no place at
/// all, so that it is neither read nor written.
fn places(monoid: Monoid, x: &Tensor, axis: usize, exclusive: bool, reverse: bool) -> Step {
    let graph = x.graph();
    let before = x.scanned(monoid, axis as i64, true, reverse)?;
    let better = match monoid {
        Monoid::Min => x.lt(&before),
        _ => before.lt(x),
    };
    let better = better.logical_or(x.is_nan().logical_and(before.is_nan().logical_not()));
    let place = positions(x, axis)?;
    // The place of the last one that was better than all before it.
    let (latest, start) = match reverse {
        false => (Monoid::Max, graph.dim_value(&0.into(), DType::I64)?),
        true => {
            let end = x.extents()[axis].clone() - IndexExpr::ONE;
            (Monoid::Min, graph.dim_value(&crate::dim::Dim(end), DType::I64)?)
        }
    };
    let place = better.select(&place, start);
    place.scanned(latest, axis as i64, exclusive, reverse)
}
