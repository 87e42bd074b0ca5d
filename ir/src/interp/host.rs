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
        _ => {
            let operands: Vec<HostTensor> = operands.iter().map(|&t| t.clone()).collect();
            host_results(function, &operands, step.symbols).ok_or_else(|| InterpError::Invalid {
                node: step.id,
                problem: "operands that do not fit the function".into(),
            })
        }
    }
}

/// The results of a host function on tensors, its settings under symbol values; `None` if they do not fit.
pub fn host_results(function: &HostFunction, operands: &[HostTensor], symbols: &[i64]) -> Option<Vec<HostTensor>> {
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
        HostFunction::NonZero { .. } => nonzero(operands.first()?).ok(),
        HostFunction::Unique { axis, sorted, .. } => {
            let x = operands.first()?;
            match axis {
                Some(a) if usize::from(*a) >= x.shape().len() => None,
                _ => unique(x, axis.map(usize::from), *sorted).ok(),
            }
        }
        HostFunction::Suppress { center, .. } => {
            let [boxes, scores, most, overlap, score] = operands else {
                return None;
            };
            let limits = Limits {
                most: most.get(0).as_i64().max(0) as usize,
                overlap: overlap.as_slice::<f32>()?[0],
                score: score.as_slice::<f32>()?[0],
            };
            let taken = suppress(boxes, scores, *center, &limits)?;
            let list = HostTensor::from_slice(&[taken.len() / 3, 3], &taken).ok()?;
            Some(vec![list, number(taken.len() / 3)])
        }
    }
}

fn number(n: usize) -> HostTensor {
    HostTensor::scalar(Scalar::from_i64(DType::I64, n as i64))
}

/// Where elements differ from zero.
fn nonzero(x: &HostTensor) -> Result<Vec<HostTensor>, TensorError> {
    let found: Vec<usize> = (0..x.len()).filter(|&i| x.get(i).as_bool()).collect();
    let rank = x.shape().len();
    let mut places = HostTensor::zeros(DType::I64, &[rank, found.len()])?;
    for (k, &at) in found.iter().enumerate() {
        let mut rest = at;
        for axis in (0..rank).rev() {
            let index = (rest % x.shape()[axis]) as i64;
            rest /= x.shape()[axis];
            places.set(axis * found.len() + k, Scalar::from_i64(DType::I64, index));
        }
    }
    Ok(vec![places, number(found.len())])
}

/// Distinct elements or slices.
fn unique(x: &HostTensor, axis: Option<usize>, sorted: bool) -> Result<Vec<HostTensor>, TensorError> {
    let shape = match axis {
        Some(_) => x.shape().to_vec(),
        None => vec![x.len()],
    };
    let axis = axis.unwrap_or(0);
    let ((outer, inner), extent) = (around(&shape, axis), shape[axis]);
    // Element `e` of slice `i`.
    let size = outer * inner;
    let at = |i: usize, e: usize| x.get((e / inner.max(1) * extent + i) * inner + e % inner.max(1));
    let compare = |a: usize, b: usize| {
        let mut each = (0..size).map(|e| order(at(a, e), at(b, e)));
        each.find(|o| o.is_ne()).unwrap_or(Ordering::Equal)
    };
    let mut order: Vec<usize> = (0..extent).collect();
    order.sort_by(|&a, &b| compare(a, b));
    // Slices that are equal, each group in the order of the axis.
    let mut groups: Vec<&[usize]> = order.chunk_by(|&a, &b| compare(a, b).is_eq()).collect();
    if !sorted {
        groups.sort_by_key(|g| g[0]);
    }
    let mut kept = shape.clone();
    kept[axis] = groups.len();
    let mut values = HostTensor::zeros(x.dtype(), &kept)?;
    let lists = |n: usize| HostTensor::zeros(DType::I64, &[n]);
    let (mut first, mut inverse, mut counts) = (lists(groups.len())?, lists(extent)?, lists(groups.len())?);
    let index = |n: usize| Scalar::from_i64(DType::I64, n as i64);
    for (k, group) in groups.iter().enumerate() {
        for e in 0..size {
            let to = (e / inner * groups.len() + k) * inner + e % inner;
            values.set(to, at(group[0], e));
        }
        first.set(k, index(group[0]));
        counts.set(k, index(group.len()));
        group.iter().for_each(|&i| inverse.set(i, index(k)));
    }
    let count = number(groups.len());
    Ok(vec![values, first, inverse, counts, count])
}

/// What ends and thins a suppression.
struct Limits {
    most: usize,
    overlap: f32,
    score: f32,
}

/// Batch, class and box of each that is taken.
fn suppress(boxes: &HostTensor, scores: &HostTensor, center: bool, limits: &Limits) -> Option<Vec<i64>> {
    let &[batches, classes, n] = scores.shape() else {
        return None;
    };
    let (corners, scores) = (boxes.as_slice::<f32>()?, scores.as_slice::<f32>()?);
    if corners.len() != batches * n * 4 {
        return None;
    }
    let mut taken = Vec::new();
    for b in 0..batches {
        let corner = |i: usize| {
            let [p, q, r, s] = [0, 1, 2, 3].map(|k| corners[(b * n + i) * 4 + k]);
            match center {
                true => [p - r / 2.0, q - s / 2.0, p + r / 2.0, q + s / 2.0],
                false => [q.min(s), p.min(r), q.max(s), p.max(r)],
            }
        };
        for c in 0..classes {
            let score = |i: usize| scores[(b * classes + c) * n + i];
            let mut left: Vec<usize> = (0..n).filter(|&i| score(i) > limits.score).collect();
            left.sort_by(|&i, &j| order_floats(score(j).into(), score(i).into()));
            let mut own: Vec<usize> = Vec::new();
            for i in left {
                if own.len() >= limits.most {
                    break;
                }
                if !own.iter().any(|&j| overlaps(corner(i), corner(j), limits.overlap)) {
                    own.push(i);
                    taken.extend([b as i64, c as i64, i as i64]);
                }
            }
        }
    }
    Some(taken)
}

/// Whether the intersection over the union of two boxes (left, top, right, bottom) exceeds `limit`.
fn overlaps(a: [f32; 4], b: [f32; 4], limit: f32) -> bool {
    let area = |x: [f32; 4]| (x[2] - x[0]) * (x[3] - x[1]);
    let width = a[2].min(b[2]) - a[0].max(b[0]);
    let height = a[3].min(b[3]) - a[1].max(b[1]);
    if width <= 0.0 || height <= 0.0 || area(a) <= 0.0 || area(b) <= 0.0 {
        return false;
    }
    let both = width * height;
    both / (area(a) + area(b) - both) > limit
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
