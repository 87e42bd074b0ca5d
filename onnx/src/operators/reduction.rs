//! Reductions and prefixes along axes.

use tlc_ir::DType;
use tlc_ir::graph::Monoid;

use crate::call::{Answer, Call, one};
use crate::refusal::invalid;
use tlc_record::Tensor;
use tlc_record::dim::{Axes, Dim};
use tlc_record::keep;

/// What is reduced over which axes. `since` is the opset from which the axes are an operand.
fn reduced(c: &mut Call<'_, '_, '_>, since: i64, f: impl FnOnce(&Tensor, Axes) -> Tensor) -> Answer {
    reduced_over(c, since, |x, axes, _| f(x, axes))
}

/// The same with a function that is also given the axes' numbers.
fn reduced_over(c: &mut Call<'_, '_, '_>, since: i64, f: impl FnOnce(&Tensor, Axes, &[i64]) -> Tensor) -> Answer {
    let x = c.tensor(0)?;
    let axes = c.axes(1, since)?.unwrap_or_default();
    let keeps = c.flag("keepdims", true)?;
    let dtype = x.dtype();
    if axes.is_empty() && c.flag("noop_with_empty_axes", false)? {
        return one(f(&x, Axes::from(Vec::<i64>::new()), &[]).cast(dtype));
    }
    let mut list = vec![];
    for a in axes {
        list.push(c.axis(a, x.rank())? as i64);
    }
    if list.is_empty() {
        list = (0..x.rank() as i64).collect();
    }
    let axes = if keeps {
        keep(list.clone())
    } else {
        Axes::from(list.clone())
    };
    one(f(&x, axes, &list).cast(dtype))
}

/// In at least f32, rounded once.
fn wide(x: &Tensor) -> Tensor {
    x.cast(x.dtype().accumulator())
}

fn is_empty(x: &Tensor) -> bool {
    x.shape().iter().any(|d| d.as_const() == Some(0))
}

pub(super) fn sum(c: &mut Call<'_, '_, '_>) -> Answer {
    reduced(c, 13, |x, axes| x.sum(axes))
}

pub(super) fn mean(c: &mut Call<'_, '_, '_>) -> Answer {
    reduced(c, 18, |x, axes| match x.dtype().is_float() {
        true => x.mean(axes),
        false => x.cast(DType::F64).mean(axes),
    })
}

pub(super) fn prod(c: &mut Call<'_, '_, '_>) -> Answer {
    reduced(c, 18, |x, axes| x.prod(axes))
}

pub(super) fn max(c: &mut Call<'_, '_, '_>) -> Answer {
    reduced_over(c, 18, |x, axes, list| match is_empty_along(x, list) {
        // The maximum of nothing is the lowest value, which is what padding with it gives.
        true => padded(x, list, x.dtype().lowest()).max(axes),
        false if x.dtype() == DType::Bool => x.any(axes),
        false => x.max(axes),
    })
}

pub(super) fn min(c: &mut Call<'_, '_, '_>) -> Answer {
    reduced_over(c, 18, |x, axes, list| match is_empty_along(x, list) {
        true => padded(x, list, x.dtype().highest()).min(axes),
        false if x.dtype() == DType::Bool => x.all(axes),
        false => x.min(axes),
    })
}

fn is_empty_along(x: &Tensor, axes: &[i64]) -> bool {
    axes.iter().any(|&a| x.dim(a).as_const() == Some(0))
}

/// Those of the axes that are empty with one element of that value.
fn padded(x: &Tensor, axes: &[i64], fill: tlc_ir::Scalar) -> Tensor {
    let more = |(i, d): (usize, &Dim)| match d.as_const() {
        Some(0) if axes.contains(&(i as i64)) => (0, 1),
        _ => (0, 0),
    };
    x.pad(&x.shape().iter().enumerate().map(more).collect::<Vec<_>>(), fill)
}

pub(super) fn l1(c: &mut Call<'_, '_, '_>) -> Answer {
    reduced(c, 18, |x, axes| x.abs().sum(axes))
}

pub(super) fn l2(c: &mut Call<'_, '_, '_>) -> Answer {
    reduced(c, 18, |x, axes| {
        let x = if x.dtype().is_float() {
            wide(x)
        } else {
            x.cast(DType::F64)
        };
        x.norm(axes)
    })
}

pub(super) fn sum_square(c: &mut Call<'_, '_, '_>) -> Answer {
    reduced(c, 18, |x, axes| {
        let x = wide(x);
        (&x * &x).sum(axes)
    })
}

pub(super) fn log_sum(c: &mut Call<'_, '_, '_>) -> Answer {
    reduced(c, 18, |x, axes| wide(x).sum(axes).log())
}

pub(super) fn log_sum_exp(c: &mut Call<'_, '_, '_>) -> Answer {
    reduced(c, 18, |x, axes| match is_empty(x) {
        true => wide(x).exp().sum(axes).log(),
        false => x.logsumexp(axes),
    })
}

fn arg(c: &mut Call<'_, '_, '_>, f: impl Fn(&Tensor, Axes) -> Tensor) -> Answer {
    let x = c.tensor(0)?;
    let axis = c.axis(c.int("axis", 0)?, x.rank())? as i64;
    let keeps = c.flag("keepdims", true)?;
    let axes = if keeps { keep(axis) } else { Axes::from(axis) };
    if !c.flag("select_last_index", false)? {
        return one(f(&x, axes));
    }
    let last = c.graph().dim_value(&(x.dim(axis) - 1), DType::I64);
    match last {
        Ok(last) => one(last - f(&x.flip(axis), axes)),
        Err((problem, _)) => invalid(problem),
    }
}

pub(super) fn argmax(c: &mut Call<'_, '_, '_>) -> Answer {
    arg(c, |x, axes| x.argmax(axes))
}

pub(super) fn argmin(c: &mut Call<'_, '_, '_>) -> Answer {
    arg(c, |x, axes| x.argmin(axes))
}

fn prefix(c: &mut Call<'_, '_, '_>, monoid: Monoid) -> Answer {
    let x = c.tensor(0)?;
    let axis = match c.input_ints(1)?.as_deref() {
        Some(&[axis]) => c.axis(axis, x.rank())? as i64,
        _ => return invalid("no axis; expected one number"),
    };
    one(x.scan(monoid, axis, c.flag("exclusive", false)?, c.flag("reverse", false)?))
}

pub(super) fn cumsum(c: &mut Call<'_, '_, '_>) -> Answer {
    prefix(c, Monoid::Add)
}

pub(super) fn cumprod(c: &mut Call<'_, '_, '_>) -> Answer {
    prefix(c, Monoid::Mul)
}
