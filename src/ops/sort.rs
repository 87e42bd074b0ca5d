//! Sorting.

use tlc_ir::graph::{HostFunction, NodeKind};

use crate::dim::Dim;
use crate::scope::{Step, record};
use crate::tensor::Tensor;

impl Tensor {
    /// The `count` largest elements along an axis, the largest first, and their positions (i64); the smallest, the smallest
    /// first, if `largest` is false. Equal elements keep their order; NaN counts as larger than every number.
    ///
    /// ```
    /// use tlc::{CompileOptions, DType, Graph, HostTensor};
    ///
    /// let g = Graph::new("best");
    /// let x = g.input("x", DType::F32, [5]);
    /// let (values, places) = x.top_k(2, -1, true);
    /// g.output("values", &values);
    /// g.output("places", &places);
    /// let x = HostTensor::from_slice(&[5], &[1.0f32, 7.0, 3.0, 7.0, 0.0])?;
    /// let found = g.compile(&CompileOptions::default())?.run(&[(&x).into()])?;
    /// assert_eq!(found[0].as_slice::<f32>(), Some(&[7.0, 7.0][..]));
    /// assert_eq!(found[1].as_slice::<i64>(), Some(&[1, 3][..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Errors: more elements than the axis has.
    #[track_caller]
    pub fn top_k(&self, count: impl Into<Dim>, axis: i64, largest: bool) -> (Tensor, Tensor) {
        let count = count.into();
        self.sorting("top_k", Some(count), axis, largest)
    }

    /// The elements in ascending order along an axis, or in descending order. Equal elements keep their order; NaN counts
    /// as larger than every number.
    #[track_caller]
    pub fn sort(&self, axis: i64, descending: bool) -> Tensor {
        self.sorting("sort", None, axis, descending).0
    }

    /// The positions (i64) that sort the elements along an axis: see [`Tensor::sort`].
    #[track_caller]
    pub fn argsort(&self, axis: i64, descending: bool) -> Tensor {
        self.sorting("argsort", None, axis, descending).1
    }

    #[track_caller]
    fn sorting(&self, name: &str, count: Option<Dim>, axis: i64, descending: bool) -> (Tensor, Tensor) {
        let body = || -> Step<(Tensor, Tensor)> {
            let axis = self.axis(axis)?;
            let count = count.map_or_else(|| self.extents()[axis].clone(), |c| c.expr().clone());
            let kind = NodeKind::Call(HostFunction::Sort {
                axis: axis as u8,
                count,
                descending,
            });
            let both = self.graph().tuple(kind, &[self], 2)?;
            Ok((both[0].clone(), both[1].clone()))
        };
        record(self.graph(), name, &[self], &[], body, |p| (p.clone(), p))
    }
}
