//! Host functions.

use std::cmp::Ordering;

use crate::dtype::{DType, Scalar};
use crate::graph::HostFunction;
use crate::tensor::{HostTensor, TensorError};

use super::repeat::around;
use super::{InterpError, Step};

/// The results of a host function.
pub(super) fn call(
    step: &Step<'_>,
    function: &HostFunction,
    operands: &[&HostTensor],
) -> Result<Vec<HostTensor>, InterpError> {
    match function {
        HostFunction::Sort { axis, descending, .. } => {
            let shape = super::extents(&step.node.results[0].shape, step.symbols);
            let shape = shape.ok_or_else(|| super::no_extent(step.id))?;
            let places = places(operands[0], *axis as usize, shape[*axis as usize], *descending);
            sorted(operands[0], &shape, *axis as usize, &places).map_err(|e| step.failed(e))
        }
    }
}

/// The results of a host function on tensors, its settings under symbol values; `None` if they do not fit.
pub(crate) fn host_results(
    function: &HostFunction,
    operands: &[HostTensor],
    symbols: &[i64],
) -> Option<Vec<HostTensor>> {
    match function {
        HostFunction::Sort {
            axis,
            count,
            descending,
        } => {
            let (x, axis) = (operands.first()?, *axis as usize);
            let count = usize::try_from(count.eval_symbols(symbols)?).ok()?;
            let mut shape = x.shape().to_vec();
            if count > *shape.get(axis)? {
                return None;
            }
            shape[axis] = count;
            sorted(x, &shape, axis, &places(x, axis, count, *descending)).ok()
        }
    }
}

/// Where the first `count` elements of each row stood before it was sorted; rows in C order of the other axes.
pub(super) fn places(x: &HostTensor, axis: usize, count: usize, descending: bool) -> Vec<Vec<usize>> {
    let (outer, inner) = around(x.shape(), axis);
    let extent = x.shape()[axis];
    let mut rows = Vec::with_capacity(outer * inner);
    for o in 0..outer {
        for i in 0..inner {
            let at = |k: usize| x.get((o * extent + k) * inner + i);
            let mut row: Vec<usize> = (0..extent).collect();
            // A stable sort: equal elements keep their order, whichever way the others go.
            row.sort_by(|&a, &b| match descending {
                true => order(at(b), at(a)),
                false => order(at(a), at(b)),
            });
            row.truncate(count);
            rows.push(row);
        }
    }
    rows
}

/// The elements at those places, and the places.
fn sorted(x: &HostTensor, shape: &[usize], axis: usize, places: &[Vec<usize>]) -> Result<Vec<HostTensor>, TensorError> {
    let inner = around(shape, axis).1;
    let mut values = HostTensor::zeros(x.dtype(), shape)?;
    let mut indices = HostTensor::zeros(DType::I64, shape)?;
    for (row, places) in places.iter().enumerate() {
        let (o, i) = (row / inner.max(1), row % inner.max(1));
        for (k, &place) in places.iter().enumerate() {
            let to = (o * shape[axis] + k) * inner + i;
            values.set(to, x.get((o * x.shape()[axis] + place) * inner + i));
            indices.set(to, Scalar::from_i64(DType::I64, place as i64));
        }
    }
    Ok(vec![values, indices])
}

/// How elements are sorted: NaN behind every number, the zeros equal.
pub(super) fn order(a: Scalar, b: Scalar) -> Ordering {
    let dtype = a.dtype();
    if dtype.is_float() {
        return order_floats(a.as_f64(), b.as_f64());
    }
    match dtype.is_signed_int() {
        true => a.as_i64().cmp(&b.as_i64()),
        false => a.bits().cmp(&b.bits()),
    }
}

/// As [`order`].
pub(super) fn order_floats(a: f64, b: f64) -> Ordering {
    a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}
