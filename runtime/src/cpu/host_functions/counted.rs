//! Functions whose results' size data decides: what [`HostFunction`]'s NonZero, Unique and Suppress say, on tensors of the host.
//!
//! Elements are compared by the keys that sorting has. The interpreter of graphs has other ways, by which these are judged.

use tlc_ir::graph::HostFunction;
use tlc_ir::tensor::TensorError;
use tlc_ir::{DType, HostTensor, Scalar};

use super::sort::key;

/// The results of such a function, the count last; `None` if the operands do not fit.
pub(crate) fn counted(function: &HostFunction, operands: &[HostTensor]) -> Option<Vec<HostTensor>> {
    match function {
        HostFunction::Sort { .. } => None,
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

/// Where elements differ from zero, in C order.
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
    let (outer, inner) = (
        shape[..axis].iter().product::<usize>(),
        shape[axis + 1..].iter().product::<usize>(),
    );
    let extent = shape[axis];
    // Element `e` of slice `i`.
    let size = outer * inner;
    let at = |i: usize, e: usize| (e / inner * extent + i) * inner + e % inner;
    let keys: Vec<u64> = (0..extent * size)
        .map(|k| key(x.dtype(), x.get(at(k / size, k % size)).bits()))
        .collect();
    let slice = |i: usize| &keys[i * size..][..size];
    let mut order: Vec<usize> = (0..extent).collect();
    order.sort_by_key(|&i| slice(i));
    // Slices that are equal, each group in the order of the axis.
    let mut groups: Vec<&[usize]> = order.chunk_by(|&a, &b| slice(a) == slice(b)).collect();
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
            values.set(to, x.get(at(group[0], e)));
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
            left.sort_by_key(|&i| !key(DType::F32, score(i).to_bits().into()));
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
