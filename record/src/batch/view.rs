//! Views of a batch: the batch's axis stays in front.

use tlc_ir::IndexExpr;
use tlc_ir::graph::{Shape, View};

use super::Batch;
use crate::graph::Tensor;
use crate::graph::scope::Step;

impl Batch {
    /// A view of each example of `x`.
    pub(super) fn view(&self, view: &View, x: &Tensor) -> Step {
        let with = |first: IndexExpr, of_one: &Shape| -> Shape {
            let mut all = of_one.clone();
            all.insert(0, first);
            all
        };
        x.view(match view {
            View::Reshape(shape) => View::Reshape(with(self.size.clone(), shape)),
            View::Permute(permutation) => {
                let behind = permutation.iter().map(|p| p + 1);
                View::Permute(std::iter::once(0).chain(behind).collect())
            }
            View::Expand(shape) => {
                // New axes come behind the batch's.
                let new: Vec<usize> = (1..=shape.len() + 1 - x.rank()).collect();
                return x.with_ones(&new)?.expanded(&with(self.size.clone(), shape));
            }
            View::Pad {
                lo,
                hi,
                interior,
                value,
            } => View::Pad {
                lo: with(IndexExpr::ZERO, lo),
                hi: with(IndexExpr::ZERO, hi),
                interior: std::iter::once(0).chain(interior.iter().copied()).collect(),
                value: *value,
            },
            View::Slice { start, step, size } => View::Slice {
                start: with(IndexExpr::ZERO, start),
                step: std::iter::once(1).chain(step.iter().copied()).collect(),
                size: with(self.size.clone(), size),
            },
            View::Window {
                axis,
                size,
                stride,
                dilation,
            } => View::Window {
                axis: axis + 1,
                size: size.clone(),
                stride: *stride,
                dilation: *dilation,
            },
        })
    }
}
