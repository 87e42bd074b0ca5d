//! Sorting, and picking elements in a number that data decides.

use tlc_ir::IndexExpr;
use tlc_ir::graph::{HostFunction, NodeKind};

use crate::dim::Dim;
use crate::graph::Tensor;
use crate::graph::scope::{Step, record};

/// Distinct elements or slices of a tensor: see [`Tensor::unique`].
#[derive(Clone, Debug)]
pub struct Unique {
    /// The distinct ones.
    pub values: Tensor,
    /// Where each stood first: `i64[count]`.
    pub first: Tensor,
    /// Which of them each element or slice is: `i64`, one for each.
    pub inverse: Tensor,
    /// How often each occurs: `i64[count]`.
    pub counts: Tensor,
}

impl Tensor {
    /// Where elements differ from zero, in C order: `i64[rank, count]`, a column for each. Data decides the count, which is a
    /// size of the graph like any other; buffers have room for the largest. The body of a loop or a region has no such sizes.
    ///
    /// ```
    /// use tlc::{CompileOptions, DType, Graph, inputs};
    ///
    /// let g = Graph::new("positive");
    /// let x = g.input("x", DType::F32, [5]);
    /// let places = x.gt(0.0).nonzero().select_index(0, 0);
    /// g.output("positive", &x.take(&places, 0));
    /// let positive = g.compile(&CompileOptions::default())?;
    /// for (data, expected) in [([1.0f32, -2.0, 3.0, 0.0, 5.0], &[1.0f32, 3.0, 5.0][..]), ([-1.0; 5], &[])] {
    ///     let found = positive.run(&inputs![&data])?;
    ///     assert_eq!(found[0].shape(), [expected.len()]);
    ///     assert_eq!(found[0].as_slice::<f32>()?, expected);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn nonzero(&self) -> Tensor {
        let body = || {
            self.graph().outside_of_bodies()?;
            let upper = IndexExpr::product(self.extents());
            let function = |count| HostFunction::NonZero { count };
            Ok(self.graph().counted(("nonzero", upper), function, &[self], 2)?[0].clone())
        };
        record(self.graph(), "nonzero", &[self], &[], body, |p| p)
    }

    /// The distinct elements, or the distinct slices along an axis: ascending, or in the order of their first occurrence.
    /// NaN equals NaN and is larger than every number; -0 equals 0, and the first of equal ones is taken. Data decides the
    /// count, see [`Tensor::nonzero`].
    #[track_caller]
    pub fn unique(&self, axis: Option<i64>, sorted: bool) -> Unique {
        let body = || {
            self.graph().outside_of_bodies()?;
            let axis = axis.map(|a| self.axis(a)).transpose()?;
            let upper = match axis {
                Some(axis) => self.extents()[axis].clone(),
                None => IndexExpr::product(self.extents()),
            };
            let axis = axis.map(|a| a as u8);
            let function = |count| HostFunction::Unique { axis, sorted, count };
            let all = self.graph().counted(("unique", upper), function, &[self], 5)?;
            Ok(Unique {
                values: all[0].clone(),
                first: all[1].clone(),
                inverse: all[2].clone(),
                counts: all[3].clone(),
            })
        };
        record(self.graph(), "unique", &[self], &[], body, |p| Unique {
            values: p.clone(),
            first: p.clone(),
            inverse: p.clone(),
            counts: p,
        })
    }

    /// Non-maximum suppression over boxes (self, `f32[batch, n, 4]`) by scores (`f32[batch, classes, n]`): in each class
    /// of each batch, boxes that score above `score` are taken from the highest score down, at most `most` of them, unless
    /// the intersection over the union with one taken before exceeds `overlap`. Returns `i64[count, 3]` of batch, class and
    /// box. Boxes are two opposite corners, y before x, or, if `center`, centers, widths and heights. Data decides the
    /// count, see [`Tensor::nonzero`].
    #[track_caller]
    pub fn suppress(&self, scores: &Tensor, most: &Tensor, overlap: &Tensor, score: &Tensor, center: bool) -> Tensor {
        let operands = [self, scores, most, overlap, score];
        let body = || {
            self.graph().outside_of_bodies()?;
            let upper = IndexExpr::product(scores.extents());
            let function = |count| HostFunction::Suppress { center, count };
            Ok(self.graph().counted(("selected", upper), function, &operands, 2)?[0].clone())
        };
        record(self.graph(), "suppress", &operands, &[], body, |p| p)
    }

    /// The `count` largest elements along an axis, the largest first, and their positions (i64); the smallest, the smallest
    /// first, if `largest` is false. Equal elements keep their order; NaN counts as larger than every number.
    ///
    /// ```
    /// use tlc::{CompileOptions, DType, Graph, inputs};
    ///
    /// let g = Graph::new("best");
    /// let x = g.input("x", DType::F32, [5]);
    /// let (values, places) = x.top_k(2, -1, true);
    /// g.output("values", &values);
    /// g.output("places", &places);
    /// let best = g.compile(&CompileOptions::default())?;
    /// let found = best.run(&inputs![&[1.0f32, 7.0, 3.0, 7.0, 0.0]])?;
    /// assert_eq!(found[0].as_slice::<f32>()?, [7.0, 7.0]);
    /// assert_eq!(found[1].as_slice::<i64>()?, [1, 3]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// More elements than the axis has.
    #[track_caller]
    pub fn top_k(&self, count: impl Into<Dim>, axis: i64, largest: bool) -> (Tensor, Tensor) {
        let count = count.into();
        self.sorting("top_k", Some(count), axis, largest)
    }

    /// The elements in ascending order along an axis, or in descending order. Equal elements keep their order; NaN counts
    /// as larger than every number.
    ///
    /// ```
    /// use tlc::Graph;
    ///
    /// let g = Graph::default();
    /// let x = g.constant([3.0f32, 1.0, 2.0]);
    /// assert_eq!(x.sort(0, false).eval()?.as_slice::<f32>()?, [1.0, 2.0, 3.0]);
    /// assert_eq!(x.sort(0, true).eval()?.as_slice::<f32>()?, [3.0, 2.0, 1.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn sort(&self, axis: i64, descending: bool) -> Tensor {
        self.sorting("sort", None, axis, descending).0
    }

    /// The positions (i64) that sort the elements along an axis: see [`Tensor::sort`].
    ///
    /// ```
    /// use tlc::Graph;
    ///
    /// let g = Graph::default();
    /// let x = g.constant([3.0f32, 1.0, 2.0]);
    /// assert_eq!(x.argsort(0, false).eval()?.as_slice::<i64>()?, [1, 2, 0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
