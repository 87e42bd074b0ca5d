//! Pooling: sliding windows, one reduction. Space is every axis behind batch and channels.

use tlc_ir::{DType, IndexExpr};

use crate::dim::Axes;
use crate::graph::Tensor;
use crate::graph::scope::{Step, op, refuse, refuse_expecting};

use super::conv::{PerAxis, dims};
use super::region::{Derivative, Known, region};

/// Window, stride, padding and dilation of a pooling: `Pool::new(2).padding(1)`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pool {
    size: PerAxis,
    stride: Option<PerAxis>,
    padding: PerAxis,
    dilation: PerAxis,
    exclude_padding: bool,
}

impl Pool {
    /// Windows of that size, next to each other, without padding.
    pub fn new(size: impl Into<PerAxis>) -> Pool {
        Pool {
            size: size.into(),
            stride: None,
            padding: 0.into(),
            dilation: 1.into(),
            exclude_padding: false,
        }
    }

    /// Distance between windows; the window's size if not set.
    pub fn stride(mut self, stride: impl Into<PerAxis>) -> Pool {
        self.stride = Some(stride.into());
        self
    }

    /// Padding on both sides: the lowest value for a maximum, zeros for an average.
    pub fn padding(mut self, padding: impl Into<PerAxis>) -> Pool {
        self.padding = padding.into();
        self
    }

    /// Distance between the elements of a window.
    pub fn dilation(mut self, dilation: impl Into<PerAxis>) -> Pool {
        self.dilation = dilation.into();
        self
    }

    /// An average divides by the number of elements that are not padding (PyTorch's `count_include_pad=False`).
    pub fn exclude_padding(mut self) -> Pool {
        self.exclude_padding = true;
        self
    }
}

/// The settings for `n` axes.
struct Settings {
    size: Vec<IndexExpr>,
    stride: Vec<usize>,
    padding: Vec<usize>,
    dilation: Vec<usize>,
}

impl Tensor {
    fn pooled(&self, n: usize, options: &Pool, fill: tlc_ir::Scalar) -> Step<(Tensor, Settings, Axes)> {
        let size = options.size.of("a window", n)?;
        let settings = Settings {
            stride: match &options.stride {
                Some(stride) => stride.of("stride", n)?,
                None => size.clone(),
            },
            padding: options.padding.of("padding", n)?,
            dilation: options.dilation.of("dilation", n)?,
            size: size.into_iter().map(IndexExpr::from).collect(),
        };
        let windows = settings.windows(self, self.rank() - n, fill)?;
        let axes: Vec<i64> = (1..=n as i64).map(|i| -i).collect();
        Ok((windows, settings, axes.into()))
    }

    fn space(&self) -> Step<usize> {
        match self.rank() {
            0..=2 => refuse_expecting(format!("rank {}", self.rank()), "[batch, channels, space..]"),
            r => Ok(r - 2),
        }
    }

    /// Maximum over windows of space; `self` is `[batch, channels, space..]`. The first of equal ones has the derivative.
    ///
    /// ```
    /// use tlc::{Graph, Pool};
    ///
    /// let g = Graph::default();
    /// let x = g.constant([[[1.0f32, 5.0, 2.0, 3.0]]]);
    /// assert_eq!(x.max_pool(&Pool::new(2)).eval()?.as_slice::<f32>()?, [5.0, 3.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// No axis of space, a window larger than the padded space.
    #[track_caller]
    pub fn max_pool(&self, options: &Pool) -> Tensor {
        op("max_pool", &[self], || {
            let n = self.space()?;
            let (windows, settings, _) = self.pooled(n, options, self.dtype().lowest())?;
            Ok(settings.first_max(&windows, self))
        })
    }

    /// Maximum over the last `n` axes; the derivative is that of the first of equal ones, as in PyTorch's pooling. `inside` records, in
    /// the graph that it is given, which elements of windows are no padding, over the last `2 n` axes: padding is as low as an element may
    /// be, and has no derivative where it comes first.
    #[doc(hidden)]
    #[track_caller]
    pub fn first_max(&self, n: usize, inside: Option<&dyn Fn(&crate::Graph) -> Tensor>) -> Tensor {
        let axes: Axes = (1..=n as i64).map(|i| -i).collect::<Vec<_>>().into();
        op("max_pool", &[self], || {
            if !self.dtype().is_float() {
                return Ok(self.max(&axes));
            }
            let derivative = |known: &Known| {
                let windows = &known.operands[0];
                let across = |t: &Tensor| (0..n).fold(t.clone(), |t, _| t.unsqueeze(-1));
                let (max, d) = (across(&known.results[0]), across(&known.cotangents[0]));
                let space = &windows.extents()[windows.rank() - n..];
                let count = space.iter().fold(IndexExpr::ONE, |all, d| all * d.clone());
                let number = windows
                    .graph()
                    .iota_1d(&count, DType::I64)
                    .and_then(|i| i.reshaped(space));
                let number = number.unwrap_or_else(|_| Tensor::poisoned(windows.graph(), DType::I64));
                let mut found = windows.eq(&max).logical_or(windows.is_nan().logical_and(max.is_nan()));
                if let Some(inside) = inside {
                    found = found.logical_and(inside(windows.graph()));
                }
                let first = across(&found.select(&number, i64::MAX).min(&axes));
                vec![number.eq(first).select(d, 0)]
            };
            let mut results = region(
                "max_pool",
                &[self],
                |x| vec![x[0].max(&axes)],
                Derivative::Custom(derivative),
            );
            results.pop().map_or_else(|| refuse("no maximum"), Ok)
        })
    }

    /// [`Tensor::max_pool`], and where in `self`, flattened in C order, each maximum stands: the first place of equal ones.
    ///
    /// # Errors
    /// As [`Tensor::max_pool`].
    #[track_caller]
    pub fn max_pool_with_places(&self, options: &Pool) -> (Tensor, Tensor) {
        let body = || {
            let n = self.space()?;
            let (windows, settings, axes) = self.pooled(n, options, self.dtype().lowest())?;
            let max = settings.first_max(&windows, self);
            let places = self.places_of(&windows, &max, &axes, |x, fill| settings.windows(x, 2, fill))?;
            Ok((max, places))
        };
        crate::graph::scope::record(self.graph(), "max_pool_with_places", &[self], &[], body, |p| {
            (p.clone(), p)
        })
    }

    /// The first place, in `self` flattened in C order, that holds the value of each window's extremum. `cut` makes windows
    /// as those that `windows` are.
    #[doc(hidden)]
    pub fn places_of(
        &self,
        windows: &Tensor,
        extremum: &Tensor,
        axes: &Axes,
        cut: impl Fn(&Tensor, tlc_ir::Scalar) -> Step,
    ) -> Step {
        let numbers = self.graph().iota_1d(&self.ty().elements(), DType::I64)?;
        let numbers = numbers.reshaped(self.extents())?;
        // Padding has a number that no element has, so it is never first.
        let beyond = tlc_ir::Scalar::from_i64(DType::I64, i64::MAX);
        let numbers = cut(&numbers, beyond)?;
        let mut value = extremum.clone();
        for _ in 0..windows.rank() - extremum.rank() {
            value = value.unsqueeze(-1);
        }
        let mut found = windows.eq(&value);
        if self.dtype().is_float() {
            found = found.logical_or(windows.is_nan().logical_and(value.is_nan()));
        }
        Ok(found.select(numbers, beyond).min(axes))
    }

    /// The inverse of [`Tensor::max_pool_with_places`]: zeros of `shape` with each element at its place, counted in C order.
    ///
    /// # Errors
    /// Places of another shape.
    #[track_caller]
    pub fn max_unpool(&self, places: &Tensor, shape: impl crate::dim::IntoShape) -> Tensor {
        let shape = shape.into_shape();
        op("max_unpool", &[self, places], || {
            places.exactly_rank("places", self.rank())?;
            let zeros = self.graph().filled(self.dtype().zero().into(), &shape, self.dtype())?;
            let flat = zeros.flatten().scatter_set(0, &places.flatten(), &self.flatten());
            flat.reshaped(&shape)
        })
    }

    /// Average over windows of space; `self` is `[batch, channels, space..]`. Dtypes as [`Tensor::mean`].
    ///
    /// ```
    /// use tlc::{Graph, Pool};
    ///
    /// let g = Graph::default();
    /// let x = g.constant([[[1.0f32, 5.0, 2.0, 4.0]]]);
    /// assert_eq!(x.avg_pool(&Pool::new(2)).eval()?.as_slice::<f32>()?, [3.0, 3.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// No axis of space, a window larger than the padded space.
    #[track_caller]
    pub fn avg_pool(&self, options: &Pool) -> Tensor {
        op("avg_pool", &[self], || {
            let n = self.space()?;
            self.in_wide_float(|x| {
                let (windows, settings, axes) = x.pooled(n, options, x.dtype().zero())?;
                if !options.exclude_padding || settings.padding.iter().all(|&p| p == 0) {
                    return Ok(windows.mean(axes));
                }
                let ones = x.graph().filled(1.into(), &x.extents()[2..], DType::I64)?;
                let counts = settings.windows(&ones, 0, DType::I64.zero())?.sum(&axes);
                Ok(windows.sum(axes) / counts.to(x.dtype())?)
            })
        })
    }

    /// Mean over all axes of space, kept with extent 1; `self` is `[batch, channels, space..]`.
    #[track_caller]
    pub fn global_avg_pool(&self) -> Tensor {
        op("global_avg_pool", &[self], || {
            let axes: Vec<i64> = (0..self.space()? as i64).map(|i| i + 2).collect();
            Ok(self.mean(crate::keep(axes)))
        })
    }
}

impl Settings {
    /// The maximum over windows of `x`, see [`Tensor::first_max`].
    fn first_max(&self, windows: &Tensor, x: &Tensor) -> Tensor {
        let space = &x.extents()[x.rank() - self.size.len()..];
        let inside = |graph: &crate::Graph| {
            let mask = || {
                let all = graph.filled(true.into(), space, DType::Bool)?;
                self.windows(&all, 0, DType::Bool.zero())
            };
            crate::graph::scope::record(graph, "max_pool", &[], &[], mask, |p| p)
        };
        match self.padding.iter().any(|&p| p > 0) {
            true => windows.first_max(self.size.len(), Some(&inside)),
            false => windows.first_max(self.size.len(), None),
        }
    }

    fn windows(&self, x: &Tensor, first: usize, fill: tlc_ir::Scalar) -> Step {
        let padding = dims(&self.padding);
        let padding = (&padding[..], &padding[..]);
        x.windows(first, &self.size, (&self.stride, &self.dilation), padding, fill)
    }
}
