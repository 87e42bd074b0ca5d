//! Overlapping blocks put back where they were taken from.

use tlc_ir::graph::ScatterOp;
use tlc_ir::{DType, IndexExpr};

use super::conv::Conv;
use crate::dim::{Dim, IntoShape};
use crate::graph::Tensor;
use crate::graph::scope::{op, refuse_expecting};

impl Tensor {
    /// The sum of blocks at their places in an image (PyTorch's `fold`, MATLAB's `col2im`): `self` is `[batch, channels *
    /// block, places]`, blocks and places in C order; `stride`, `dilation` and `padding` of `options` say where windows of
    /// that size lie, as for [`Tensor::conv`]. The result is `[batch, channels, image..]`.
    ///
    /// # Errors
    /// Another rank, blocks that do not divide the channels, a number of places that the settings do not give.
    #[track_caller]
    pub fn fold(&self, image: impl IntoShape, block: &[usize], options: &Conv) -> Tensor {
        let image = image.into_shape();
        op("fold", &[self], || {
            self.exactly_rank("blocks", 3)?;
            let n = block.len();
            if n == 0 || image.len() != n || block.contains(&0) {
                return refuse_expecting(
                    format!("blocks of {n} axes for an image of {}", image.len()),
                    "as many, none of extent 0",
                );
            }
            let settings = options.settings(n)?;
            let elements: usize = block.iter().product();
            let rows = self.const_extent(1)?;
            if rows % elements != 0 {
                return refuse_expecting(format!("{rows} rows of blocks of {elements}"), "a multiple");
            }
            let mut places = vec![];
            for axis in 0..n {
                let reach = settings.dilation[axis] * (block[axis] - 1) + 1;
                let padded = Dim(image[axis].clone()) + settings.before[axis] + settings.behind[axis];
                if padded.as_const().is_some_and(|p| p < reach as i64) {
                    return refuse_expecting(format!("a block that reaches over {reach} elements"), "a larger image");
                }
                places.push(((padded - reach) / settings.stride[axis] as i64 + 1).0);
            }
            self.extent_is("the operand", 2, &IndexExpr::product(&places))?;
            let channels = IndexExpr::from(rows / elements);
            let batch = self.extents()[0].clone();
            let mut apart = vec![batch.clone(), channels.clone()];
            apart.extend(block.iter().map(|&b| IndexExpr::from(b)));
            apart.extend(places.iter().cloned());
            // What is scattered: the indices' axes (block, places), then the rest.
            let order: Vec<usize> = (2..2 + 2 * n).chain([0, 1]).collect();
            let updates = self.reshaped(&apart)?.permuted(&order)?;
            let graph = self.graph();
            let mut indices = vec![];
            for axis in 0..n {
                let along = |at: usize, extent: &IndexExpr| {
                    let mut shape = vec![IndexExpr::ONE; 2 * n];
                    shape[at] = extent.clone();
                    graph.iota_1d(extent, DType::I64)?.reshaped(&shape)
                };
                let element = along(axis, &block[axis].into())? * settings.dilation[axis];
                let start = along(n + axis, &places[axis])? * settings.stride[axis];
                indices.push(start + element - settings.before[axis]);
            }
            let mut shape = vec![batch, channels];
            shape.extend(image.iter().cloned());
            let zeros = graph.filled(self.dtype().zero().into(), &shape, self.dtype())?;
            let axes: Vec<i64> = (2..2 + n as i64).collect();
            Ok(zeros.scatter(&axes, &indices.iter().collect::<Vec<_>>(), &updates, ScatterOp::Add))
        })
    }
}
