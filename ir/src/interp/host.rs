//! Host functions.

use std::cmp::Ordering;
use std::collections::BTreeMap;

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
///
/// Each is its definition, word by word: what the runtime does instead is judged by it.
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
            let taken = Suppression {
                boxes,
                scores,
                center: *center,
                most: most.get(0).as_i64(),
                overlap: overlap.as_slice::<f32>()?[0],
                score: score.as_slice::<f32>()?[0],
            }
            .taken()?;
            let list = HostTensor::from_slice(&[taken.len(), 3], taken.as_flattened()).ok()?;
            Some(vec![list, number(taken.len())])
        }
    }
}

fn number(n: usize) -> HostTensor {
    HostTensor::scalar(Scalar::from_i64(DType::I64, n as i64))
}

/// A list of numbers.
fn list(numbers: impl ExactSizeIterator<Item = usize>) -> Result<HostTensor, TensorError> {
    let mut all = HostTensor::zeros(DType::I64, &[numbers.len()])?;
    for (k, n) in numbers.enumerate() {
        all.set(k, Scalar::from_i64(DType::I64, n as i64));
    }
    Ok(all)
}

/// Visits every position of a tensor of these extents, the last axis fastest.
fn each_position(shape: &[usize], f: &mut dyn FnMut(&[usize])) {
    let mut position = vec![0; shape.len()];
    if shape.contains(&0) {
        return;
    }
    loop {
        f(&position);
        // The last axis that is not at its end goes on, and those behind it begin again.
        let Some(axis) = (0..shape.len()).rev().find(|&a| position[a] + 1 < shape[a]) else {
            return;
        };
        position[axis] += 1;
        position[axis + 1..].fill(0);
    }
}

/// Where the element at a position stands.
fn offset(shape: &[usize], position: &[usize]) -> usize {
    shape.iter().zip(position).fold(0, |at, (extent, i)| at * extent + i)
}

/// An element as a number that is equal where elements are, and larger where they are: NaN, all of them equal, above all.
fn rank(x: Scalar) -> i128 {
    match x.dtype() {
        d if d.is_float() => {
            let v = x.as_f64();
            let magnitude = i128::from(v.abs().to_bits());
            match () {
                () if v.is_nan() => i128::MAX,
                () if v < 0.0 => -magnitude,
                () => magnitude,
            }
        }
        d if d.is_signed_int() => i128::from(x.as_i64()),
        _ => i128::from(x.bits()),
    }
}

/// The positions of the elements that differ from zero, a column for each.
fn nonzero(x: &HostTensor) -> Result<Vec<HostTensor>, TensorError> {
    let mut found: Vec<usize> = vec![];
    each_position(x.shape(), &mut |p| {
        if rank(x.get(offset(x.shape(), p))) != 0 {
            found.extend(p);
        }
    });
    let axes = x.shape().len();
    // Of rank 0 there are no positions to write, but there is one or none.
    let count = match axes {
        0 => usize::from(rank(x.get(0)) != 0),
        axes => found.len() / axes,
    };
    let mut places = HostTensor::zeros(DType::I64, &[axes, count])?;
    for (k, position) in found.chunks(axes.max(1)).enumerate() {
        for (axis, &i) in position.iter().enumerate() {
            places.set(axis * count + k, Scalar::from_i64(DType::I64, i as i64));
        }
    }
    Ok(vec![places, number(count)])
}

/// The distinct elements, or the distinct slices along an axis, which are lists of elements: for each the first that it is
/// equal to, and all of them.
fn unique(x: &HostTensor, axis: Option<usize>, sorted: bool) -> Result<Vec<HostTensor>, TensorError> {
    let (shape, axis) = match axis {
        Some(axis) => (x.shape().to_vec(), axis),
        None => (vec![x.len()], 0),
    };
    let mut of_slice = shape.clone();
    of_slice.remove(axis);
    let element = |slice: usize, inside: &[usize]| {
        let mut position = inside.to_vec();
        position.insert(axis, slice);
        x.get(offset(&shape, &position))
    };
    let mut slices: BTreeMap<Vec<i128>, Vec<usize>> = BTreeMap::new();
    for slice in 0..shape[axis] {
        let mut ranks = vec![];
        each_position(&of_slice, &mut |inside| ranks.push(rank(element(slice, inside))));
        slices.entry(ranks).or_default().push(slice);
    }
    let mut distinct: Vec<Vec<usize>> = slices.into_values().collect();
    if !sorted {
        distinct.sort();
    }
    let mut kept = shape.clone();
    kept[axis] = distinct.len();
    let mut values = HostTensor::zeros(x.dtype(), &kept)?;
    each_position(&kept, &mut |position| {
        let mut inside = position.to_vec();
        let which = inside.remove(axis);
        values.set(offset(&kept, position), element(distinct[which][0], &inside));
    });
    let mut inverse = vec![0; shape[axis]];
    for (k, all) in distinct.iter().enumerate() {
        all.iter().for_each(|&slice| inverse[slice] = k);
    }
    Ok(vec![
        values,
        list(distinct.iter().map(|all| all[0]))?,
        list(inverse.into_iter())?,
        list(distinct.iter().map(Vec::len))?,
        number(distinct.len()),
    ])
}

/// Non-maximum suppression, as ONNX describes it.
struct Suppression<'t> {
    boxes: &'t HostTensor,
    scores: &'t HostTensor,
    center: bool,
    most: i64,
    overlap: f32,
    score: f32,
}

/// Lower and upper corner.
type Corners = [[f32; 2]; 2];

impl Suppression<'_> {
    /// Batch, class and box of each that is taken: from each class of each batch the best of those left, as long as there are
    /// some and fewer than the most are taken, unless it overlaps one taken before too much.
    fn taken(&self) -> Option<Vec<[i64; 3]>> {
        let (&[batches, classes, n], &[b, m, 4]) = (self.scores.shape(), self.boxes.shape()) else {
            return None;
        };
        if (b, m) != (batches, n) {
            return None;
        }
        let scores = self.scores.as_slice::<f32>()?;
        let mut all = vec![];
        for (batch, class) in (0..batches).flat_map(|b| (0..classes).map(move |c| (b, c))) {
            let score = |i: usize| scores[(batch * classes + class) * n + i];
            let mut left: Vec<usize> = (0..n).filter(|&i| score(i) > self.score).collect();
            let mut taken: Vec<usize> = vec![];
            while !left.is_empty() && (taken.len() as i64) < self.most {
                // Of equal ones the first.
                let best = (1..left.len()).fold(0, |best, k| match score(left[k]) > score(left[best]) {
                    true => k,
                    false => best,
                });
                let best = left.remove(best);
                let own = self.corners(batch * n + best)?;
                let mut others = taken.iter().filter_map(|&t| self.corners(batch * n + t));
                if !others.any(|other| self.too_close(own, other)) {
                    taken.push(best);
                }
            }
            all.extend(taken.iter().map(|&i| [batch as i64, class as i64, i as i64]));
        }
        Some(all)
    }

    fn corners(&self, which: usize) -> Option<Corners> {
        let numbers = &self.boxes.as_slice::<f32>()?[which * 4..][..4];
        let [p, q, r, s] = <[f32; 4]>::try_from(numbers).ok()?;
        Some(match self.center {
            true => [[p - r / 2.0, q - s / 2.0], [p + r / 2.0, q + s / 2.0]],
            false => [[p.min(r), q.min(s)], [p.max(r), q.max(s)]],
        })
    }

    /// Whether the intersection over the union exceeds the limit.
    fn too_close(&self, a: Corners, b: Corners) -> bool {
        let area = |[low, high]: Corners| (high[0] - low[0]) * (high[1] - low[1]);
        let low = [0, 1].map(|k| a[0][k].max(b[0][k]));
        let high = [0, 1].map(|k| a[1][k].min(b[1][k]));
        let meet = high[0] > low[0] && high[1] > low[1];
        if !meet || area(a) <= 0.0 || area(b) <= 0.0 {
            return false;
        }
        let shared = area([low, high]);
        shared / (area(a) + area(b) - shared) > self.overlap
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
        let (a, b) = (a.as_f64(), b.as_f64());
        return a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()));
    }
    match dtype.is_signed_int() {
        true => a.as_i64().cmp(&b.as_i64()),
        false => a.bits().cmp(&b.bits()),
    }
}
