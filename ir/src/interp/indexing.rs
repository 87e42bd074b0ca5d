//! Gather and Scatter, over elements of any kind.
//!
//! An index is in range if it is at least 0 and below the extent: a negative one never counts from the end. Updates apply
//! one after the other, in C order of the updates.

use crate::dtype::DType;
use crate::graph::ScatterOp;
use crate::scalar::ScalarOp;
use crate::tensor::{HostTensor, TensorError};

use super::lanes::{Lanes, lanes};
use super::space::Indexed;

/// Index operands, read as positions.
pub(super) struct Indices {
    /// Per index operand: its elements; `None` where negative.
    columns: Vec<Vec<Option<u64>>>,
}

impl Indices {
    /// Reads integer tensors of one shape.
    pub(super) fn new(tensors: &[&HostTensor]) -> Indices {
        let read = |t: &&HostTensor| match lanes(t) {
            Lanes::Signed(v) => v.iter().map(|&i| u64::try_from(i).ok()).collect(),
            Lanes::Unsigned(v) => v.iter().map(|&i| Some(i)).collect(),
            Lanes::Float(v) => vec![None; v.len()],
        };
        Indices {
            columns: tensors.iter().map(read).collect(),
        }
    }

    /// Number of index positions.
    pub(super) fn len(&self) -> usize {
        self.columns.first().map_or(0, Vec::len)
    }

    /// The selected offset, or `None` if out of range.
    pub(super) fn offset(&self, indexed: &Indexed, position: usize) -> Option<usize> {
        indexed.offset(|k| self.columns[k][position])
    }
}

/// Reads `source` rows at the indices; `zero` where they are out of range.
pub(super) fn gather<T: Copy>(
    source: &[T],
    shape: &[usize],
    axes: &[u8],
    indices: &Indices,
    zero: T,
    target: &mut [T],
) {
    if target.is_empty() {
        return;
    }
    let indexed = Indexed::new(shape, axes);
    for (position, row) in target.chunks_exact_mut(indexed.rest.len()).enumerate() {
        match indices.offset(&indexed, position) {
            Some(at) => row.iter_mut().zip(&indexed.rest).for_each(|(t, r)| *t = source[at + r]),
            None => row.fill(zero),
        }
    }
}

/// Combines every update into `base`: `combine(offset in base, flat index of the update)`.
pub(super) fn scatter(
    shape: &[usize],
    axes: &[u8],
    indices: &Indices,
    updates: usize,
    mut combine: impl FnMut(usize, usize),
) {
    if updates == 0 {
        return;
    }
    let indexed = Indexed::new(shape, axes);
    for position in 0..indices.len() {
        if let Some(at) = indices.offset(&indexed, position) {
            for (k, r) in indexed.rest.iter().enumerate() {
                combine(at + r, position * indexed.rest.len() + k);
            }
        }
    }
}

/// Scatter of host tensors.
pub(super) fn scatter_tensor(
    op: ScatterOp,
    axes: &[u8],
    base: &HostTensor,
    updates: &HostTensor,
    indices: &Indices,
) -> Result<HostTensor, TensorError> {
    let mut out = base.clone();
    if updates.is_empty() {
        return Ok(out);
    }
    // A copy now, so that the elements below are written in place.
    out.bytes_mut();
    let shape = base.shape().to_vec();
    let combine = op.combine();
    if let (DType::F32, Some(ScalarOp::Add)) = (base.dtype(), combine)
        && let (Some(target), Some(source)) = (out.as_mut_slice::<f32>(), updates.as_slice::<f32>())
    {
        scatter(&shape, axes, indices, source.len(), |at, from| {
            target[at] += source[from]
        });
        return Ok(out);
    }
    scatter(&shape, axes, indices, updates.len(), |at, from| {
        let update = updates.get(from);
        let value = combine.map_or(update, |op| op.eval(&[out.get(at), update]));
        out.set(at, value);
    });
    Ok(out)
}
