//! Reductions and cumulative operations.
//!
//! Axes are `..` for all, one, or several, negative from the end; `keep(axes)` leaves them with extent 1. An empty axis
//! gives the identity (0, 1, false, true), which max, min, argmax and argmin do not have: they refuse an axis known to be
//! empty.

use tlc_ir::graph::Monoid;
use tlc_ir::{DType, IndexExpr, NodeKind, Scalar};

use crate::dim::{Axes, Dim, keep};
use crate::graph::Tensor;
use crate::graph::scope::{Step, op, refuse_expecting};

/// The dtype in which NumPy sums: bool and signed integers as i64, unsigned as u64, floats as themselves.
fn sum_dtype(dtype: DType) -> DType {
    match dtype {
        d if d.is_unsigned_int() => DType::U64,
        // A storage type stays, to be refused.
        d if d.is_float() || d.is_storage() => d,
        _ => DType::I64,
    }
}

impl Tensor {
    /// One node, and the kept axes put back.
    fn reduced(&self, monoid: Monoid, axes: &Axes) -> Step {
        let mut list = self.axes(axes)?;
        list.sort_unstable();
        if list.is_empty() && !monoid.is_arg() {
            return Ok(self.clone());
        }
        let needs_element = matches!(monoid, Monoid::Max | Monoid::Min | Monoid::ArgMax | Monoid::ArgMin);
        if needs_element && let Some(&axis) = list.iter().find(|&&a| self.extents()[a].is(0)) {
            return refuse_expecting(
                format!("axis {axis} is empty"),
                "at least one element, having no identity",
            );
        }
        self.combined(monoid, &list, axes.keeps())
    }

    /// One node over axes, ascending, of which there is at least one.
    fn combined(&self, monoid: Monoid, axes: &[usize], keeps: bool) -> Step {
        let reduced = self.node(NodeKind::Reduce {
            monoid,
            axes: axes.iter().map(|&a| a as u8).collect(),
        })?;
        if keeps { reduced.with_ones(axes) } else { Ok(reduced) }
    }

    /// What is subtracted before an exponential, kept: the maximum, and minus infinity where there is none, which is no error for who
    /// goes on to sum exponentials.
    fn peak(&self, axes: &Axes) -> Step {
        let mut list = self.axes(axes)?;
        list.sort_unstable();
        match list.is_empty() {
            true => Ok(self.clone()),
            false => self.combined(Monoid::Max, &list, true),
        }
    }

    /// Axes of extent 1 inserted so that they have these numbers, ascending, in the result.
    pub(crate) fn with_ones(&self, axes: &[usize]) -> Step {
        let mut shape = self.ty().shape.clone();
        for &a in axes {
            shape.insert(a.min(shape.len()), IndexExpr::ONE);
        }
        self.reshaped(&shape)
    }

    /// The number of elements that a reduction over these axes combines.
    pub(crate) fn count(&self, axes: &Axes) -> Step<IndexExpr> {
        let list = self.axes(axes)?;
        Ok(IndexExpr::product(list.iter().map(|&a| &self.extents()[a])))
    }

    /// Sum. Bool and signed integers sum as i64, unsigned ones as u64; f16 and bf16 are carried in f32.
    ///
    /// ```
    /// use tlc::Graph;
    ///
    /// let g = Graph::default();
    /// let x = g.constant([[1.0f32, 2.0], [3.0, 4.0]]);
    /// assert_eq!(x.sum(0).eval()?.as_slice::<f32>()?, [4.0, 6.0]);
    /// assert_eq!(x.sum(..).eval()?.as_slice::<f32>()?, [10.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn sum(&self, axes: impl Into<Axes>) -> Tensor {
        let axes = axes.into();
        op("sum", &[self], || {
            self.to(sum_dtype(self.dtype()))?.reduced(Monoid::Add, &axes)
        })
    }

    /// Product; dtypes as [`Tensor::sum`].
    ///
    /// ```
    /// use tlc::Graph;
    ///
    /// let g = Graph::default();
    /// let x = g.constant([[1.0f32, 2.0], [3.0, 4.0]]);
    /// assert_eq!(x.prod(1).eval()?.as_slice::<f32>()?, [2.0, 12.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn prod(&self, axes: impl Into<Axes>) -> Tensor {
        let axes = axes.into();
        op("prod", &[self], || {
            self.to(sum_dtype(self.dtype()))?.reduced(Monoid::Mul, &axes)
        })
    }

    /// Maximum; NaN wins.
    ///
    /// ```
    /// use tlc::Graph;
    ///
    /// let g = Graph::default();
    /// let x = g.constant([[1.0f32, 2.0], [3.0, 4.0]]);
    /// assert_eq!(x.max(-1).eval()?.as_slice::<f32>()?, [2.0, 4.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn max(&self, axes: impl Into<Axes>) -> Tensor {
        let axes = axes.into();
        op("max", &[self], || self.reduced(Monoid::Max, &axes))
    }

    /// Minimum; NaN wins.
    ///
    /// ```
    /// use tlc::{Graph, keep};
    ///
    /// let g = Graph::default();
    /// let x = g.constant([[1.0f32, 2.0], [3.0, 4.0]]);
    /// assert_eq!(x.min(keep(0)).eval()?.as_slice::<f32>()?, [1.0, 2.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn min(&self, axes: impl Into<Axes>) -> Tensor {
        let axes = axes.into();
        op("min", &[self], || self.reduced(Monoid::Min, &axes))
    }

    /// Whether some element differs from zero. Bool.
    ///
    /// ```
    /// use tlc::Graph;
    ///
    /// let g = Graph::default();
    /// let x = g.constant([[true, false], [false, false]]);
    /// assert_eq!(x.any(1).eval()?.as_slice::<bool>()?, [true, false]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn any(&self, axes: impl Into<Axes>) -> Tensor {
        let axes = axes.into();
        op("any", &[self], || self.to(DType::Bool)?.reduced(Monoid::Or, &axes))
    }

    /// Whether every element differs from zero. Bool.
    ///
    /// ```
    /// use tlc::Graph;
    ///
    /// let g = Graph::default();
    /// let x = g.constant([[true, true], [true, false]]);
    /// assert_eq!(x.all(1).eval()?.as_slice::<bool>()?, [true, false]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn all(&self, axes: impl Into<Axes>) -> Tensor {
        let axes = axes.into();
        op("all", &[self], || self.to(DType::Bool)?.reduced(Monoid::And, &axes))
    }

    /// Index of the maximum along one axis, or `..` for the flat index: i64; the first wins, NaN wins.
    ///
    /// ```
    /// use tlc::Graph;
    ///
    /// let g = Graph::default();
    /// let x = g.constant([[1.0f32, 2.0], [3.0, 4.0]]);
    /// assert_eq!(x.argmax(1).eval()?.as_slice::<i64>()?, [1, 1]);
    /// assert_eq!(x.argmax(..).eval()?.as_slice::<i64>()?, [3]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn argmax(&self, axis: impl Into<Axes>) -> Tensor {
        let axis = axis.into();
        op("argmax", &[self], || self.arg(Monoid::ArgMax, &axis))
    }

    /// Index of the minimum along one axis, or `..` for the flat index: i64; the first wins, NaN wins.
    ///
    /// ```
    /// use tlc::Graph;
    ///
    /// let g = Graph::default();
    /// let x = g.constant([[1.0f32, 2.0], [3.0, 4.0]]);
    /// assert_eq!(x.argmin(0).eval()?.as_slice::<i64>()?, [0, 0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn argmin(&self, axis: impl Into<Axes>) -> Tensor {
        let axis = axis.into();
        op("argmin", &[self], || self.arg(Monoid::ArgMin, &axis))
    }

    fn arg(&self, monoid: Monoid, axes: &Axes) -> Step {
        if axes.is_all() {
            let flat = self.reshaped(&[self.ty().elements()])?;
            let index = flat.reduced(monoid, &Axes::from(0i64))?;
            let kept: Vec<usize> = if axes.keeps() {
                (0..self.rank()).collect()
            } else {
                vec![]
            };
            return index.with_ones(&kept);
        }
        match self.axes(axes)?.len() {
            1 => self.reduced(monoid, axes),
            n => refuse_expecting(format!("{n} axes"), "one axis, or `..`"),
        }
    }

    /// Mean; NaN over no element. Bool and integers convert to f32, f16 and bf16 compute in f32.
    ///
    /// ```
    /// use tlc::Graph;
    ///
    /// let g = Graph::default();
    /// let x = g.constant([[1.0f32, 2.0], [3.0, 4.0]]);
    /// assert_eq!(x.mean(0).eval()?.as_slice::<f32>()?, [2.0, 3.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn mean(&self, axes: impl Into<Axes>) -> Tensor {
        let axes = axes.into();
        op("mean", &[self], || self.in_wide_float(|x| x.mean_step(&axes, 0)))
    }

    /// Sum divided by the count less `correction`, at least 0.
    fn mean_step(&self, axes: &Axes, correction: i64) -> Step {
        let sum = self.reduced(Monoid::Add, axes)?;
        let left = self.count(axes)? - IndexExpr::Const(correction);
        let count = self.graph().simplify(&IndexExpr::max(&left, &IndexExpr::ZERO));
        Ok(sum / self.graph().dim_value(&Dim(count), self.dtype())?)
    }

    /// Variance: the mean squared distance from the mean, in two passes. `correction` is subtracted from the count: 0 for a
    /// population (NumPy's default), 1 for a sample (PyTorch's default). Dtypes as [`Tensor::mean`].
    ///
    /// ```
    /// use tlc::Graph;
    ///
    /// let g = Graph::default();
    /// let x = g.constant([[1.0f32, 2.0], [3.0, 4.0]]);
    /// assert_eq!(x.var(1, 0).eval()?.as_slice::<f32>()?, [0.25, 0.25]);
    /// assert_eq!(x.var(1, 1).eval()?.as_slice::<f32>()?, [0.5, 0.5]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn var(&self, axes: impl Into<Axes>, correction: i64) -> Tensor {
        let axes = axes.into();
        op("var", &[self], || self.in_wide_float(|x| x.var_step(&axes, correction)))
    }

    pub(crate) fn var_step(&self, axes: &Axes, correction: i64) -> Step {
        let centered = self - self.mean_step(&keep(axes), 0)?;
        centered.square().mean_step(axes, correction)
    }

    /// Standard deviation: the root of [`Tensor::var`].
    ///
    /// ```
    /// use tlc::Graph;
    ///
    /// let g = Graph::default();
    /// let x = g.constant([1.0f32, 5.0]);
    /// assert_eq!(x.std(0, 0).eval()?.as_slice::<f32>()?, [2.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn std(&self, axes: impl Into<Axes>, correction: i64) -> Tensor {
        let axes = axes.into();
        op("std", &[self], || {
            self.in_wide_float(|x| Ok(x.var_step(&axes, correction)?.sqrt()))
        })
    }

    /// `ln Σ e^x` without overflow; `-inf` where every element is, or where there is none. Dtypes as [`Tensor::mean`].
    ///
    /// ```
    /// use tlc::Graph;
    ///
    /// let g = Graph::default();
    /// let x = g.constant([1000.0f32, 1000.0]);
    /// assert_eq!(x.logsumexp(0).eval()?.as_scalar::<f32>()?, 1000.0 + 2f32.ln());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn logsumexp(&self, axes: impl Into<Axes>) -> Tensor {
        let axes = axes.into();
        op("logsumexp", &[self], || {
            self.in_wide_float(|x| {
                let max = x.peak(&axes)?;
                // An infinite maximum would make inf - inf; with 0 in its place the sum is 0, inf or NaN as it should be.
                let shift = max.is_finite().select(&max, 0.0);
                let sum = (x - &shift).exp().sum(&axes);
                let shift = shift.reshaped(sum.extents())?;
                Ok(sum.log() + shift)
            })
        })
    }

    /// Root of the sum of squares. Dtypes as [`Tensor::mean`]. The derivative where all elements are zero is 0.
    ///
    /// ```
    /// use tlc::Graph;
    ///
    /// let g = Graph::default();
    /// let x = g.constant([3.0f32, 4.0]);
    /// assert_eq!(x.norm(0).eval()?.as_slice::<f32>()?, [5.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn norm(&self, axes: impl Into<Axes>) -> Tensor {
        let axes = axes.into();
        op("norm", &[self], || {
            self.in_wide_float(|x| {
                // Zero is not the root of anything, or its infinite derivative would meet the 0 of the squares. Nor is it the sum, whose
                // second derivative is 2.
                let sum = x.square().sum(&axes);
                let zero = sum.eq(0);
                Ok(zero.select(0, zero.select(1, &sum).sqrt()))
            })
        })
    }

    /// How many elements differ from zero: i64.
    ///
    /// ```
    /// use tlc::Graph;
    ///
    /// let g = Graph::default();
    /// let x = g.constant([[0i32, 2], [3, 4]]);
    /// assert_eq!(x.count_nonzero(1).eval()?.as_slice::<i64>()?, [1, 2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn count_nonzero(&self, axes: impl Into<Axes>) -> Tensor {
        let axes = axes.into();
        op("count_nonzero", &[self], || Ok(self.to(DType::Bool)?.sum(&axes)))
    }

    /// Prefix combination along an axis: element `i` combines elements `0..=i`, or `0..i` if `exclusive`; from the end if
    /// `reverse`. Not argmax or argmin; bool takes and, or, max, min.
    #[track_caller]
    pub fn scan(&self, monoid: Monoid, axis: i64, exclusive: bool, reverse: bool) -> Tensor {
        op("scan", &[self], || self.scanned(monoid, axis, exclusive, reverse))
    }

    pub(crate) fn scanned(&self, monoid: Monoid, axis: i64, exclusive: bool, reverse: bool) -> Step {
        let axis = self.axis(axis)? as u8;
        self.node(NodeKind::Scan {
            monoid,
            axis,
            exclusive,
            reverse,
        })
    }

    /// Cumulative sum along an axis; dtypes as [`Tensor::sum`].
    ///
    /// ```
    /// use tlc::Graph;
    ///
    /// let g = Graph::default();
    /// let x = g.constant([1.0f32, 2.0, 3.0]);
    /// assert_eq!(x.cumsum(0).eval()?.as_slice::<f32>()?, [1.0, 3.0, 6.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn cumsum(&self, axis: i64) -> Tensor {
        op("cumsum", &[self], || {
            self.to(sum_dtype(self.dtype()))?
                .scanned(Monoid::Add, axis, false, false)
        })
    }

    /// Cumulative product along an axis; dtypes as [`Tensor::sum`].
    #[track_caller]
    pub fn cumprod(&self, axis: i64) -> Tensor {
        op("cumprod", &[self], || {
            self.to(sum_dtype(self.dtype()))?
                .scanned(Monoid::Mul, axis, false, false)
        })
    }

    /// Cumulative maximum along an axis; NaN wins.
    #[track_caller]
    pub fn cummax(&self, axis: i64) -> Tensor {
        op("cummax", &[self], || self.scanned(Monoid::Max, axis, false, false))
    }

    /// Cumulative minimum along an axis; NaN wins.
    #[track_caller]
    pub fn cummin(&self, axis: i64) -> Tensor {
        op("cummin", &[self], || self.scanned(Monoid::Min, axis, false, false))
    }

    /// `e^x / Σ e^x` along an axis; the maximum is subtracted first. A row of `-inf` alone gives NaN.
    ///
    /// The sum, which is at least 1, is inverted once a row: a division an element would round once less and take as long
    /// as half of the exponential.
    ///
    /// ```
    /// use tlc::Graph;
    ///
    /// let g = Graph::default();
    /// let x = g.constant([[0.0f32, 0.0], [5.0, f32::NEG_INFINITY]]);
    /// assert_eq!(x.softmax(-1).eval()?.as_slice::<f32>()?, [0.5, 0.5, 1.0, 0.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn softmax(&self, axis: i64) -> Tensor {
        op("softmax", &[self], || {
            self.in_wide_float(|x| {
                let e = (&x - x.peak(&Axes::from(axis))?).exp();
                Ok(&e * (1.0 / e.sum(keep(axis))))
            })
        })
    }

    /// `ln softmax(x)` along an axis, computed as `x - max - ln Σ e^(x - max)`.
    ///
    /// ```
    /// use tlc::Graph;
    ///
    /// let g = Graph::default();
    /// let x = g.constant([0.0f32, -1000.0]);
    /// assert_eq!(x.log_softmax(0).eval()?.as_slice::<f32>()?, [0.0, -1000.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn log_softmax(&self, axis: i64) -> Tensor {
        op("log_softmax", &[self], || {
            self.in_wide_float(|x| {
                let shifted = &x - x.peak(&Axes::from(axis))?;
                Ok(&shifted - shifted.exp().sum(keep(axis)).log())
            })
        })
    }
}

impl crate::graph::Graph {
    /// An extent as a rank-0 value. A symbolic one is the last element of an iota; once views are substituted it
    /// is just the extent, so it costs nothing.
    #[doc(hidden)]
    pub fn dim_value(&self, dim: &Dim, dtype: DType) -> Step {
        if let Some(v) = dim.as_const() {
            return self.node(NodeKind::Const(Scalar::from_i64(dtype, v)), &[]);
        }
        let count = self.iota_1d(&(dim.expr().clone() + IndexExpr::ONE), DType::I64)?;
        let last = count.view(tlc_ir::graph::View::Slice {
            start: [dim.expr().clone()].into_iter().collect(),
            step: [1].into_iter().collect(),
            size: [IndexExpr::ONE].into_iter().collect(),
        })?;
        last.reshaped(&[])?.to(dtype)
    }

    /// `[0, 1, .., n - 1]`.
    #[doc(hidden)]
    pub fn iota_1d(&self, n: &IndexExpr, dtype: DType) -> Step {
        let ty = tlc_ir::TensorType::new(dtype, [n.clone()]);
        self.node(NodeKind::Iota { ty, axis: 0 }, &[])
    }
}
