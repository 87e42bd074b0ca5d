//! Views of a batch: the batch's axis stays in front.

use tlc_ir::graph::View;

use super::Batch;
use crate::graph::Tensor;
use crate::graph::scope::Step;

impl Batch {
    /// A view of each example of `x`.
    pub(super) fn view(&self, view: &View, x: &Tensor) -> Step {
        let batched = view.batched(&self.size);
        let View::Expand(shape) = &batched else {
            return x.view(batched);
        };
        // New axes come behind the batch's.
        let new: Vec<usize> = (1..=shape.len() - x.rank()).collect();
        x.with_ones(&new)?.expanded(shape)
    }
}
