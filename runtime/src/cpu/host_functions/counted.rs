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
    let found: Vec<usize> = match x.dtype() {
        DType::Bool => nonzero_bytes(x.bytes()),
        _ => (0..x.len()).filter(|&i| x.get(i).as_bool()).collect(),
    };
    let rank = x.shape().len();
    let mut places = vec![0i64; rank * found.len()];
    let mut stride = 1;
    for axis in (0..rank).rev() {
        let row = &mut places[axis * found.len()..][..found.len()];
        let extent = x.shape()[axis];
        match axis {
            0 => row
                .iter_mut()
                .zip(&found)
                .for_each(|(to, &at)| *to = (at / stride) as i64),
            _ => (row.iter_mut().zip(&found)).for_each(|(to, &at)| *to = (at / stride % extent) as i64),
        }
        stride *= extent;
    }
    let places = HostTensor::from_slice(&[rank, found.len()], &places)?;
    Ok(vec![places, number(found.len())])
}

/// The places of bytes that are not zero. Most masks have few of them, so eight zeros at once are passed over.
fn nonzero_bytes(bytes: &[u8]) -> Vec<usize> {
    let mut found = Vec::new();
    for (word, eight) in bytes.chunks(8).enumerate() {
        if eight.iter().fold(0, |any, &b| any | b) != 0 {
            let places = (eight.iter().enumerate()).filter(|(_, b)| **b != 0);
            found.extend(places.map(|(k, _)| word * 8 + k));
        }
    }
    found
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
        let boxes: Vec<Corners> = (corners[b * n * 4..][..n * 4].chunks_exact(4))
            .map(|c| Corners::of([c[0], c[1], c[2], c[3]], center))
            .collect();
        for c in 0..classes {
            let scores = &scores[(b * classes + c) * n..][..n];
            let mut left: Vec<usize> = (0..n).filter(|&i| scores[i] > limits.score).collect();
            left.sort_by_key(|&i| !key(DType::F32, scores[i].to_bits().into()));
            let mut own = Taken::default();
            for i in left {
                if own.number >= limits.most {
                    break;
                }
                if !own.suppresses(&boxes[i], limits.overlap) {
                    own.push(&boxes[i]);
                    taken.extend([b as i64, c as i64, i as i64]);
                }
            }
        }
    }
    Some(taken)
}

/// A box by its corners.
#[derive(Clone, Copy)]
struct Corners {
    left: f32,
    top: f32,
    right: f32,
    bottom: f32,
    area: f32,
}

impl Corners {
    /// Of two opposite corners, y before x, or of a center, a width and a height.
    fn of([p, q, r, s]: [f32; 4], center: bool) -> Corners {
        let [left, top, right, bottom] = match center {
            true => [p - r / 2.0, q - s / 2.0, p + r / 2.0, q + s / 2.0],
            false => [q.min(s), p.min(r), q.max(s), p.max(r)],
        };
        Corners {
            left,
            top,
            right,
            bottom,
            area: (right - left) * (bottom - top),
        }
    }
}

/// How many boxes are compared with one at once.
const LANES: usize = 16;

/// Boxes of one class that were taken: each of these for `LANES` of them, those that there are not yet without an area.
#[derive(Default)]
struct Taken {
    number: usize,
    blocks: Vec<[[f32; LANES]; 5]>,
}

impl Taken {
    fn push(&mut self, of: &Corners) {
        let lane = self.number % LANES;
        if lane == 0 {
            self.blocks.push([[0.0; LANES]; 5]);
        }
        if let Some(block) = self.blocks.last_mut() {
            for (to, value) in block.iter_mut().zip([of.left, of.top, of.right, of.bottom, of.area]) {
                to[lane] = value;
            }
        }
        self.number += 1;
    }

    /// Whether the intersection over the union of one of these with a box exceeds `limit`. With a box that has no area, or a corner that is
    /// NaN, it does not.
    fn suppresses(&self, of: &Corners, limit: f32) -> bool {
        if of.area <= 0.0 || of.area.is_nan() {
            return false;
        }
        // Unlike `f32::min` these are one instruction. A NaN among the corners makes the area NaN.
        let least = |a: f32, b: f32| if a < b { a } else { b };
        let most = |a: f32, b: f32| if a > b { a } else { b };
        self.blocks.iter().any(|[left, top, right, bottom, area]| {
            let width = |k: usize| least(right[k], of.right) - most(left[k], of.left);
            let height = |k: usize| least(bottom[k], of.bottom) - most(top[k], of.top);
            // Few boxes touch: in most blocks this is all.
            let touches = (0..LANES).fold(false, |any, k| any | (width(k) > 0.0) & (height(k) > 0.0));
            let exceeds = |k: usize| {
                let both = width(k) * height(k);
                both / (of.area + area[k] - both) > limit
            };
            touches && (0..LANES).any(|k| width(k) > 0.0 && height(k) > 0.0 && area[k] > 0.0 && exceeds(k))
        })
    }
}
