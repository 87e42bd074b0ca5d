//! Indexing by tensors, masks and diagonals.
//!
//! Index tensors are of any integer dtype and count from 0. In [`Tensor::take`] and [`Tensor::take_along_axis`] negative ones
//! count from the end of the axis, as in NumPy; everywhere else they are out of range. An index out of range that is known when
//! it is recorded is an error there. Where data decides, an index out of range reads zero and writes nothing: no result depends
//! on memory outside of the tensor.

use tlc_ir::graph::{NodeKind, ScatterOp};
use tlc_ir::{DType, HostTensor, IndexExpr, Scalar, ScalarOp, TensorType};

use crate::dim::Dim;
use crate::graph::Tensor;
use crate::graph::scope::{Step, op, refuse_expecting};
use crate::promotion::{Operand, broadcast, broadcast_shape, promote};

use super::linalg::contract;

impl Tensor {
    fn is_index(&self) -> Step<()> {
        if !self.dtype().is_int() {
            return refuse_expecting(format!("indices of {}", self.dtype()), "an integer dtype");
        }
        Ok(())
    }

    /// The elements at `indices` of an axis: the indices' axes take the axis' place (NumPy's `take`, PyTorch's
    /// `index_select`). Negative indices count from the end. An index out of range that only the data of a call decides reads
    /// zero.
    ///
    /// ```
    /// use tlc::Graph;
    ///
    /// let g = Graph::default();
    /// let x = g.constant([10i32, 20, 30]);
    /// let y = x.take(&g.constant([0i64, -1, 1]), 0);
    /// assert_eq!(y.eval()?.as_slice::<i32>()?, [10, 30, 20]);
    /// assert!(x.take(&g.constant([3i64]), 0).is_poisoned());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Constant indices that are out of range, where the extent is a number.
    #[track_caller]
    pub fn take(&self, indices: &Tensor, axis: i64) -> Tensor {
        op("take", &[self, indices], || {
            let axis = self.axis(axis)?;
            self.taken(&self.counted_from_start(indices, axis)?, axis)
        })
    }

    /// As [`Tensor::take`], of indices that count from 0.
    #[doc(hidden)]
    pub fn take_from_start(&self, indices: &Tensor, axis: i64) -> Tensor {
        op("take", &[self, indices], || {
            indices.is_index()?;
            self.taken(indices, self.axis(axis)?)
        })
    }

    fn taken(&self, indices: &Tensor, axis: usize) -> Step {
        let gathered = self.gathered(&[axis], &[indices])?;
        let n = indices.rank();
        // Result axes: the indices' first, then the rest in order; the first `axis` of the rest go before.
        let order: Vec<usize> = (n..n + axis).chain(0..n).chain(n + axis..gathered.rank()).collect();
        gathered.permuted(&order)
    }

    /// Indices of an axis, those that count from its end counted from its start.
    fn counted_from_start(&self, indices: &Tensor, axis: usize) -> Step {
        indices.is_index()?;
        let (extent, g) = (&self.extents()[axis], self.graph());
        let known = indices.id().and_then(|id| {
            g.with_ir(|ir| match &ir.node(id).kind {
                NodeKind::Const(value) => Some(HostTensor::scalar(*value)),
                NodeKind::Data(data) => Some(data.0.clone()),
                _ => None,
            })
        });
        let signed = indices.dtype().is_signed_int();
        if let Some(known) = known {
            let number = |value: Scalar| match signed {
                true => i128::from(value.as_i64()),
                false => i128::from(value.bits()),
            };
            let values = || (0..known.len()).map(|i| number(known.get(i)));
            if let Some(n) = extent.as_const() {
                let n = i128::from(n);
                if let Some(wrong) = values().find(|&v| v < -n || v >= n) {
                    let expected = match n {
                        0 => "no index".to_string(),
                        _ => format!("indices from {} to {}", -n, n - 1),
                    };
                    return refuse_expecting(format!("index {wrong} of axis {axis} of extent {n}"), expected);
                }
            }
            if values().all(|v| v >= 0) {
                return Ok(indices.clone());
            }
        }
        if !signed {
            return Ok(indices.clone());
        }
        // The extent need not fit in the dtype of the indices.
        let wide = indices.to(DType::I64)?;
        let n = g.dim_value(&Dim(extent.clone()), DType::I64)?;
        Ok(wide.lt(0).select(&wide + n, &wide))
    }

    /// The elements at integer coordinates: axis `axes[k]` is indexed by `indices[k]`. Result axes: those of the indices
    /// (broadcast to one shape), then the other axes in order.
    ///
    /// ```
    /// use tlc::Graph;
    ///
    /// let g = Graph::default();
    /// let x = g.constant([[1.0f32, 2.0], [3.0, 4.0]]);
    /// let at = g.constant([0i64, 1]);
    /// assert_eq!(x.gather(&[0, 1], &[&at, &at]).eval()?.as_slice::<f32>()?, [1.0, 4.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn gather(&self, axes: &[i64], indices: &[&Tensor]) -> Tensor {
        let mut operands = vec![self];
        operands.extend(indices);
        op("gather", &operands, || {
            let (axes, indices) = self.coordinates(axes, indices)?;
            self.gathered(&axes, &indices.iter().collect::<Vec<_>>())
        })
    }

    /// `self` with `updates` combined into the elements at integer coordinates; the inverse of [`Tensor::gather`]. Updates
    /// apply in C order of the indices. The updates broadcast to the gathered shape and take `self`'s dtype.
    #[track_caller]
    pub fn scatter(&self, axes: &[i64], indices: &[&Tensor], updates: &Tensor, how: ScatterOp) -> Tensor {
        let mut operands = vec![self, updates];
        operands.extend(indices);
        op("scatter", &operands, || {
            let (axes, indices) = self.coordinates(axes, indices)?;
            let mut shape = indices.first().map_or_else(Default::default, |t| t.ty().shape.clone());
            let rest = (0..self.rank()).filter(|a| !axes.contains(a));
            shape.extend(rest.map(|a| self.extents()[a].clone()));
            let updates = updates.to(self.dtype())?.expanded(&shape)?;
            self.scattered(&updates, &axes, &indices.iter().collect::<Vec<_>>(), how)
        })
    }

    fn coordinates(&self, axes: &[i64], indices: &[&Tensor]) -> Step<(Vec<usize>, Vec<Tensor>)> {
        if axes.len() != indices.len() || axes.is_empty() {
            let problem = format!("{} axes and {} index tensors", axes.len(), indices.len());
            return refuse_expecting(problem, "one index tensor per axis");
        }
        indices.iter().try_for_each(|t| t.is_index())?;
        let axes = self.axes(&axes.into())?;
        let indices: Vec<Tensor> = indices.iter().map(|&t| t.clone()).collect();
        Ok((axes, broadcast(self.graph(), &indices)?))
    }

    /// Index tensors of every axis for `indices` that runs along `axis`, and the other coordinates as they are.
    fn along(&self, indices: &Tensor, axis: i64) -> Step<(usize, Vec<Tensor>)> {
        indices.is_index()?;
        // The other axes' coordinates have the same type, which must count as far as they are long.
        let counts = |d: &IndexExpr| d.as_const().is_none_or(|n| n <= i64::from(i32::MAX));
        let indices = &match indices.dtype().bits() {
            ..32 => indices.to(DType::I32)?,
            32 if !self.extents().iter().all(counts) => indices.to(DType::I64)?,
            _ => indices.clone(),
        };
        let axis = self.axis(axis)?;
        indices.exactly_rank("indices", self.rank())?;
        let mut shape = self.ty().shape.clone();
        shape[axis] = indices.extents()[axis].clone();
        let indices = indices.expanded(&shape)?;
        let mut all = Vec::with_capacity(self.rank());
        for a in 0..self.rank() {
            if a == axis {
                all.push(indices.clone());
            } else {
                let ty = TensorType::new(indices.dtype(), shape.iter().cloned());
                all.push(self.graph().node(NodeKind::Iota { ty, axis: a as u8 }, &[])?);
            }
        }
        Ok((axis, all))
    }

    /// `result[i, j, k] = self[i, indices[i, j, k], k]` for axis 1 (NumPy's `take_along_axis`). The other extents of
    /// `indices` are those of `self`, or 1. Negative indices count from the end, and those out of range are as in
    /// [`Tensor::take`].
    ///
    /// ```
    /// use tlc::Graph;
    ///
    /// let g = Graph::default();
    /// let x = g.constant([[3i32, 1, 2], [6, 5, 4]]);
    /// let last = x.take_along_axis(&g.constant([[-1i64], [0]]), 1);
    /// assert_eq!(last.eval()?.as_slice::<i32>()?, [2, 6]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn take_along_axis(&self, indices: &Tensor, axis: i64) -> Tensor {
        op("take_along_axis", &[self, indices], || {
            let indices = self.counted_from_start(indices, self.axis(axis)?)?;
            Ok(self.take_along_axis_from_start(&indices, axis))
        })
    }

    /// As [`Tensor::take_along_axis`], of indices that count from 0.
    #[track_caller]
    pub(crate) fn take_along_axis_from_start(&self, indices: &Tensor, axis: i64) -> Tensor {
        op("take_along_axis", &[self, indices], || {
            let (_, all) = self.along(indices, axis)?;
            let axes: Vec<usize> = (0..self.rank()).collect();
            self.gathered(&axes, &all.iter().collect::<Vec<_>>())
        })
    }

    /// `result = self`, then `result[i, indices[i, j, k], k] ⊕= updates[i, j, k]` for axis 1: the inverse of
    /// [`Tensor::take_along_axis`]. Updates broadcast to the indices' shape and take `self`'s dtype.
    #[track_caller]
    pub fn scatter_along_axis(&self, indices: &Tensor, axis: i64, updates: &Tensor, how: ScatterOp) -> Tensor {
        op("scatter_along_axis", &[self, indices, updates], || {
            let (axis, all) = self.along(indices, axis)?;
            let updates = updates.to(self.dtype())?.expanded(all[axis].extents())?;
            let axes: Vec<usize> = (0..self.rank()).collect();
            self.scattered(&updates, &axes, &all.iter().collect::<Vec<_>>(), how)
        })
    }

    /// `updates` added to the rows of an axis: `result = self`, then `result[.., indices[b], ..] += updates[.., b, ..]`,
    /// where the indices' axes stand in place of the axis (PyTorch's `index_add`).
    ///
    /// ```
    /// use tlc::{DType, Graph};
    ///
    /// let g = Graph::default();
    /// let x = g.zeros([3], DType::F32);
    /// let y = x.scatter_add(0, &g.constant([2i64, 0, 2]), &g.constant([1.0f32, 2.0, 3.0]));
    /// assert_eq!(y.eval()?.as_slice::<f32>()?, [2.0, 0.0, 4.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn scatter_add(&self, axis: i64, indices: &Tensor, updates: &Tensor) -> Tensor {
        op("scatter_add", &[self, indices, updates], || {
            self.scatter_rows(axis, indices, updates, ScatterOp::Add)
        })
    }

    /// `updates` written over the rows of an axis; where an index repeats, the last update wins. Axes as
    /// [`Tensor::scatter_add`].
    #[track_caller]
    pub fn scatter_set(&self, axis: i64, indices: &Tensor, updates: &Tensor) -> Tensor {
        op("scatter_set", &[self, indices, updates], || {
            self.scatter_rows(axis, indices, updates, ScatterOp::Set)
        })
    }

    fn scatter_rows(&self, axis: i64, indices: &Tensor, updates: &Tensor, how: ScatterOp) -> Step {
        indices.is_index()?;
        let axis = self.axis(axis)?;
        let n = indices.rank();
        let mut shape = self.extents()[..axis].to_vec();
        shape.extend_from_slice(indices.extents());
        shape.extend_from_slice(&self.extents()[axis + 1..]);
        let updates = updates.to(self.dtype())?.expanded(&shape)?;
        let order: Vec<usize> = (axis..axis + n).chain(0..axis).chain(axis + n..shape.len()).collect();
        self.scattered(&updates.permuted(&order)?, &[axis], &[indices], how)
    }

    /// Rows of a table `[vocabulary, width]` at integer indices: `[indices.., width]`.
    ///
    /// ```
    /// use tlc::Graph;
    ///
    /// let g = Graph::default();
    /// let table = g.constant([[1.0f32, 2.0], [3.0, 4.0]]);
    /// assert_eq!(table.embedding(&g.constant([1i64])).eval()?.as_slice::<f32>()?, [3.0, 4.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn embedding(&self, indices: &Tensor) -> Tensor {
        op("embedding", &[self, indices], || {
            self.exactly_rank("a table", 2)?;
            indices.is_index()?;
            self.gathered(&[0], &[indices])
        })
    }

    /// A new last axis of extent `classes` with one at the index and zero elsewhere; all zero for an index out of range.
    ///
    /// ```
    /// use tlc::{DType, Graph};
    ///
    /// let g = Graph::default();
    /// let x = g.constant([2i64, 0]);
    /// assert_eq!(x.one_hot(3, DType::F32).eval()?.as_slice::<f32>()?, [0.0, 0.0, 1.0, 1.0, 0.0, 0.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn one_hot(&self, classes: impl Into<Dim>, dtype: DType) -> Tensor {
        let classes = classes.into().0;
        op("one_hot", &[self], || {
            self.is_index()?;
            let wide = self.to(promote(self.dtype(), DType::I32))?;
            let numbers = self.graph().iota_1d(&classes, wide.dtype())?;
            wide.unsqueeze(-1).eq(numbers).to(dtype)
        })
    }

    /// The elements on and below a diagonal of the last two axes, `offset` columns right of the main one; zero above.
    ///
    /// ```
    /// use tlc::Graph;
    ///
    /// let g = Graph::default();
    /// let x = g.constant([[1.0f32, 2.0], [3.0, 4.0]]);
    /// assert_eq!(x.tril(0).eval()?.as_slice::<f32>()?, [1.0, 0.0, 3.0, 4.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn tril(&self, offset: i64) -> Tensor {
        op("tril", &[self], || {
            let mask = self.band_mask(offset)?;
            Ok(mask.select(self, self.dtype().zero()))
        })
    }

    /// The elements on and above a diagonal of the last two axes, `offset` columns right of the main one; zero below.
    #[track_caller]
    pub fn triu(&self, offset: i64) -> Tensor {
        op("triu", &[self], || {
            let mask = self.band_mask(offset - 1)?;
            Ok(mask.select(self.dtype().zero(), self))
        })
    }

    fn band_mask(&self, offset: i64) -> Step {
        self.at_least_rank(2)?;
        self.graph()
            .band(&self.extents()[self.rank() - 2..], offset, ScalarOp::Le)
    }

    /// The diagonal of two axes, `offset` places along `axis2` from the main one, as a new last axis.
    #[track_caller]
    pub fn diagonal(&self, offset: i64, axis1: i64, axis2: i64) -> Tensor {
        op("diagonal", &[self], || {
            let (a, b) = (self.axis(axis1)?, self.axis(axis2)?);
            if a == b {
                return refuse_expecting(format!("axis {axis1} twice"), "two axes");
            }
            let clip = |d: IndexExpr| self.graph().simplify(&IndexExpr::max(&d, &IndexExpr::ZERO));
            let skip = |k: i64| IndexExpr::Const(k.max(0));
            let rows = clip(self.extents()[a].clone() - skip(-offset));
            let columns = clip(self.extents()[b].clone() - skip(offset));
            let n = Dim(self.graph().simplify(&IndexExpr::min(&rows, &columns)));
            let part = |start: i64| {
                let start = Dim(IndexExpr::Const(if n.expr().is(0) { 0 } else { start.max(0) }));
                crate::s(start.clone()..start + &n)
            };
            let square = self.sliced(&[(a, part(-offset)), (b, part(offset))])?;
            let mut labels: Vec<u16> = (0..self.rank() as u16).collect();
            labels[b] = labels[a];
            let mut output: Vec<u16> = (0..self.rank() as u16)
                .filter(|&l| ![a, b].contains(&(l as usize)))
                .collect();
            output.push(a as u16);
            contract(&[(&square, &labels)], &output, None)
        })
    }

    /// Matrices with the last axis on the main diagonal and zero elsewhere.
    #[track_caller]
    pub fn diag_embed(&self) -> Tensor {
        op("diag_embed", &[self], || {
            self.at_least_rank(1)?;
            let n = self.extents()[self.rank() - 1].clone();
            let eye = self.graph().band(&[n.clone(), n], 0, ScalarOp::Eq)?;
            Ok(eye.select(self.unsqueeze(-1), self.dtype().zero()))
        })
    }

    /// The sum of the main diagonal of the last two axes. Same dtype.
    #[track_caller]
    pub fn trace(&self) -> Tensor {
        op("trace", &[self], || {
            self.at_least_rank(2)?;
            Ok(self.diagonal(0, -2, -1).sum(-1))
        })
    }
}

impl Tensor {
    /// The first elements of each sequence in reverse order, the rest as they are: sequence `b` along `batch_axis` has
    /// `lengths[b]` elements along `time_axis`.
    ///
    /// # Errors
    /// One axis twice, lengths that are not one for each sequence.
    #[track_caller]
    pub fn reverse_sequence(&self, lengths: &Tensor, batch_axis: i64, time_axis: i64) -> Tensor {
        op("reverse_sequence", &[self, lengths], || {
            let (batch, time) = (self.axis(batch_axis)?, self.axis(time_axis)?);
            if batch == time {
                return refuse_expecting(format!("axis {batch} for both sequences and time"), "two axes");
            }
            lengths.exactly_rank("lengths", 1)?;
            lengths.extent_is("the lengths", 0, &self.extents()[batch])?;
            let mut shape = vec![IndexExpr::ONE; self.rank()];
            shape[batch] = self.extents()[batch].clone();
            let lengths = lengths.to(DType::I64)?.reshaped(&shape)?;
            shape[batch] = IndexExpr::ONE;
            shape[time] = self.extents()[time].clone();
            let at = self
                .graph()
                .iota_1d(&self.extents()[time], DType::I64)?
                .reshaped(&shape)?;
            let turned = at.lt(&lengths).select(&lengths - 1 - &at, &at);
            Ok(self.take_along_axis_from_start(&turned, time as i64))
        })
    }
}

/// `a` where `condition` is true, else `b`; see [`Tensor::select`].
///
/// ```
/// use tlc::{Graph, where_};
///
/// let g = Graph::default();
/// let mask = g.constant([true, false]);
/// assert_eq!(where_(&mask, 1.0f32, 2.0f32).eval()?.as_slice::<f32>()?, [1.0, 2.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[track_caller]
pub fn where_(condition: &Tensor, a: impl Into<Operand>, b: impl Into<Operand>) -> Tensor {
    condition.select(a, b)
}

/// The coordinates of a grid: for vectors of `n_0, n_1, ..` elements, tensors of shape `[n_0, n_1, ..]` of which tensor `k`
/// varies along axis `k` (NumPy's `meshgrid` with `indexing="ij"`). An empty list gives an empty one.
#[track_caller]
pub fn meshgrid(vectors: &[&Tensor]) -> Vec<Tensor> {
    let Some(first) = vectors.first() else {
        return vec![];
    };
    let body = || {
        let n = vectors.len();
        let mut columns = Vec::with_capacity(n);
        for (k, v) in vectors.iter().enumerate() {
            v.exactly_rank("an operand", 1)?;
            let mut shape = vec![IndexExpr::ONE; n];
            shape[k] = v.extents()[0].clone();
            columns.push(v.reshaped(&shape)?);
        }
        let shapes: Vec<&[IndexExpr]> = columns.iter().map(|t| t.extents()).collect();
        let shape = broadcast_shape(first.graph(), &shapes)?;
        columns.iter().map(|t| t.expanded(&shape)).collect()
    };
    crate::graph::scope::record(first.graph(), "meshgrid", vectors, &[], body, |p| {
        vec![p; vectors.len()]
    })
}
