//! Gathers and scatters of a batch: the number of the example is one more index, where indices differ.

use tlc_ir::DType;
use tlc_ir::graph::{Axes, NodeKind, ScatterOp, TensorType};

use super::{Batch, Value};
use crate::graph::Tensor;
use crate::graph::scope::Step;
use crate::ops::shape::moved;

/// The axes of each example, behind the batch's.
fn behind(axes: &Axes) -> Vec<usize> {
    axes.iter().map(|&a| usize::from(a) + 1).collect()
}

impl Batch {
    /// A gather of each example.
    pub(super) fn gather(&self, axes: &Axes, operands: &[Value]) -> Step {
        let (x, indices) = (&operands[0], &operands[1..]);
        if !indices.iter().any(|v| v.is_batched) {
            let index_rank = indices[0].rank();
            let indices: Vec<&Tensor> = indices.iter().map(|v| &v.tensor).collect();
            let found = x.tensor.gathered(&behind(axes), &indices)?;
            return found.permuted(&moved(found.rank(), index_rank, 0));
        }
        if x.is_batched {
            let (axes, indices) = self.numbered(axes, indices)?;
            return x.tensor.gathered(&axes, &indices.iter().collect::<Vec<_>>());
        }
        let indices: Vec<Tensor> = indices.iter().map(|v| self.whole(v)).collect::<Step<_>>()?;
        let axes: Vec<usize> = axes.iter().map(|&a| a.into()).collect();
        x.tensor.gathered(&axes, &indices.iter().collect::<Vec<_>>())
    }

    /// A scatter of each example.
    pub(super) fn scatter(&self, axes: &Axes, how: ScatterOp, operands: &[Value]) -> Step {
        let indices = &operands[2..];
        let (base, updates) = (self.whole(&operands[0])?, self.whole(&operands[1])?);
        if indices.iter().any(|v| v.is_batched) {
            let (axes, indices) = self.numbered(axes, indices)?;
            return base.scattered(&updates, &axes, &indices.iter().collect::<Vec<_>>(), how);
        }
        // The batch's axis is the first of those that no index takes.
        let updates = updates.permuted(&moved(updates.rank(), 0, indices[0].rank()))?;
        let indices: Vec<&Tensor> = indices.iter().map(|v| &v.tensor).collect();
        base.scattered(&updates, &behind(axes), &indices, how)
    }

    /// Indices over a batch, with the number of the example as the first; and the axes that they are of.
    fn numbered(&self, axes: &Axes, indices: &[Value]) -> Step<(Vec<usize>, Vec<Tensor>)> {
        let mut all: Vec<Tensor> = indices.iter().map(|v| self.whole(v)).collect::<Step<_>>()?;
        let ty = TensorType::new(DType::I64, all[0].extents().iter().cloned());
        all.insert(0, self.graph.node(NodeKind::Iota { ty, axis: 0 }, &[])?);
        let mut axes = behind(axes);
        axes.insert(0, 0);
        Ok((axes, all))
    }
}
