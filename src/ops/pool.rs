//! Pooling: sliding windows, one reduction. Space is every axis behind batch and channels.

use tlc_ir::{DType, IndexExpr};

use crate::dim::Axes;
use crate::scope::{Step, op, refuse_expecting};
use crate::tensor::Tensor;

use super::conv::PerAxis;

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

    /// Maximum over windows of space; `self` is `[batch, channels, space..]`.
    ///
    /// Errors: no axis of space, a window larger than the padded space.
    #[track_caller]
    pub fn max_pool(&self, options: &Pool) -> Tensor {
        op("max_pool", &[self], || {
            let (windows, _, axes) = self.pooled(self.space()?, options, self.dtype().lowest())?;
            Ok(windows.max(axes))
        })
    }

    /// Average over windows of space; `self` is `[batch, channels, space..]`. Dtypes as [`Tensor::mean`].
    ///
    /// Errors: no axis of space, a window larger than the padded space.
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
    fn windows(&self, x: &Tensor, first: usize, fill: tlc_ir::Scalar) -> Step {
        let padding = (&self.padding[..], &self.padding[..]);
        x.windows(first, &self.size, (&self.stride, &self.dilation), padding, fill)
    }
}
