//! Convolutions over one to three (or more) axes of space: padding, sliding windows, one einsum.

use tlc_ir::IndexExpr;

use crate::dim::Dim;
use crate::graph::Tensor;
use crate::graph::scope::{Step, op, refuse_expecting};
use crate::promotion::promote;

use super::linalg::contract;

/// A setting per axis of space: one number for all, or one for each.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PerAxis(Vec<usize>);

impl From<usize> for PerAxis {
    fn from(all: usize) -> PerAxis {
        PerAxis(vec![all])
    }
}

impl<const N: usize> From<[usize; N]> for PerAxis {
    fn from(each: [usize; N]) -> PerAxis {
        PerAxis(each.to_vec())
    }
}

impl From<&[usize]> for PerAxis {
    fn from(each: &[usize]) -> PerAxis {
        PerAxis(each.to_vec())
    }
}

impl From<Vec<usize>> for PerAxis {
    fn from(each: Vec<usize>) -> PerAxis {
        PerAxis(each)
    }
}

impl PerAxis {
    /// The setting of each of `n` axes.
    pub(crate) fn of(&self, what: &str, n: usize) -> Step<Vec<usize>> {
        match self.0.len() {
            1 => Ok(vec![self.0[0]; n]),
            m if m == n => Ok(self.0.clone()),
            m => refuse_expecting(format!("{what} of {m} axes"), format!("1 or {n} numbers")),
        }
    }
}

/// Stride, padding, dilation and groups of a convolution: `Conv::new().stride(2).padding([1, 0])`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Conv {
    stride: PerAxis,
    before: PerAxis,
    behind: PerAxis,
    dilation: PerAxis,
    groups: usize,
}

impl Default for Conv {
    fn default() -> Conv {
        Conv::new()
    }
}

impl Conv {
    /// Stride 1, no padding, dilation 1, one group.
    pub fn new() -> Conv {
        Conv {
            stride: 1.into(),
            before: 0.into(),
            behind: 0.into(),
            dilation: 1.into(),
            groups: 1,
        }
    }

    /// Distance between the places where the kernel is applied.
    pub fn stride(mut self, stride: impl Into<PerAxis>) -> Conv {
        self.stride = stride.into();
        self
    }

    /// Zeros on both sides.
    pub fn padding(mut self, padding: impl Into<PerAxis>) -> Conv {
        self.before = padding.into();
        self.behind = self.before.clone();
        self
    }

    /// Zeros before and behind, where they differ.
    pub fn padding_sides(mut self, before: impl Into<PerAxis>, behind: impl Into<PerAxis>) -> Conv {
        self.before = before.into();
        self.behind = behind.into();
        self
    }

    /// Distance between the elements that meet neighbours of the kernel.
    pub fn dilation(mut self, dilation: impl Into<PerAxis>) -> Conv {
        self.dilation = dilation.into();
        self
    }

    /// Channels fall into so many groups that do not mix.
    pub fn groups(mut self, groups: usize) -> Conv {
        self.groups = groups;
        self
    }
}

/// The settings of a convolution for each axis of space.
pub(crate) struct Settings {
    pub(crate) stride: Vec<usize>,
    pub(crate) dilation: Vec<usize>,
    pub(crate) before: Vec<usize>,
    pub(crate) behind: Vec<usize>,
    pub(crate) groups: usize,
}

impl Conv {
    pub(crate) fn settings(&self, n: usize) -> Step<Settings> {
        let settings = Settings {
            stride: self.stride.of("stride", n)?,
            dilation: self.dilation.of("dilation", n)?,
            before: self.before.of("padding", n)?,
            behind: self.behind.of("padding", n)?,
            groups: self.groups,
        };
        if settings.stride.contains(&0) || settings.dilation.contains(&0) {
            return refuse_expecting("a stride or dilation of 0", "1 or more");
        }
        Ok(settings)
    }
}

pub(super) fn dims(list: &[usize]) -> Vec<Dim> {
    list.iter().map(Dim::from).collect()
}

impl Tensor {
    /// The axes from `first` on padded by `fill` and windowed: the windows' axes come last, in order.
    #[doc(hidden)]
    pub fn windows(
        &self,
        first: usize,
        sizes: &[IndexExpr],
        (stride, dilation): (&[usize], &[usize]),
        (before, behind): (&[Dim], &[Dim]),
        fill: tlc_ir::Scalar,
    ) -> Step {
        let side = |list: &[Dim]| {
            let mut all = vec![IndexExpr::ZERO; first];
            all.extend(list.iter().map(|n| n.expr().clone()));
            all
        };
        let mut x = self.padded(&side(before), &side(behind), fill)?;
        for (i, size) in sizes.iter().enumerate() {
            x = x.window((first + i) as i64, size.clone(), stride[i], dilation[i]);
        }
        Ok(x)
    }

    /// Convolution (cross-correlation, as in PyTorch) over as many axes of space as `weight` has: `self` is `[batch,
    /// channels, space..]`, `weight` `[outputs, channels / groups, kernel..]`, `bias` `[outputs]`; the result is `[batch,
    /// outputs, space'..]` with `space' = (space + padding - dilation * (kernel - 1) - 1) / stride + 1`.
    ///
    /// # Errors
    /// Ranks that differ, channels that do not fit the weight and groups, a kernel larger than the padded space.
    #[track_caller]
    pub fn conv(&self, weight: &Tensor, bias: Option<&Tensor>, options: &Conv) -> Tensor {
        self.conv_named("conv", None, weight, bias, options)
    }

    /// [`Tensor::conv`] over one axis: `self` is `[batch, channels, length]`.
    #[track_caller]
    pub fn conv1d(&self, weight: &Tensor, bias: Option<&Tensor>, options: &Conv) -> Tensor {
        self.conv_named("conv1d", Some(1), weight, bias, options)
    }

    /// [`Tensor::conv`] over two axes: `self` is `[batch, channels, height, width]`.
    ///
    /// ```
    /// use tlc::{Conv, DType, Graph};
    ///
    /// let g = Graph::default();
    /// let x = g.ones([1, 1, 3, 3], DType::F32);
    /// let w = g.ones([1, 1, 3, 3], DType::F32);
    /// let y = x.conv2d(&w, None, &Conv::new().padding(1));
    /// assert_eq!(y.eval()?.as_slice::<f32>()?, [4.0, 6.0, 4.0, 6.0, 9.0, 6.0, 4.0, 6.0, 4.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn conv2d(&self, weight: &Tensor, bias: Option<&Tensor>, options: &Conv) -> Tensor {
        self.conv_named("conv2d", Some(2), weight, bias, options)
    }

    /// [`Tensor::conv`] over three axes: `self` is `[batch, channels, depth, height, width]`.
    #[track_caller]
    pub fn conv3d(&self, weight: &Tensor, bias: Option<&Tensor>, options: &Conv) -> Tensor {
        self.conv_named("conv3d", Some(3), weight, bias, options)
    }

    #[track_caller]
    fn conv_named(
        &self,
        name: &str,
        space: Option<usize>,
        weight: &Tensor,
        bias: Option<&Tensor>,
        options: &Conv,
    ) -> Tensor {
        let mut operands = vec![self, weight];
        operands.extend(bias);
        op(name, &operands, || {
            let n = space.unwrap_or(weight.rank().saturating_sub(2));
            self.exactly_rank("an input", n + 2)?;
            weight.exactly_rank("a weight", n + 2)?;
            let groups = options.groups;
            let (outputs, channels) = (weight.extents()[0].clone(), weight.extents()[1].clone());
            if groups == 0 || outputs.as_const().is_some_and(|n| n % groups as i64 != 0) {
                let outputs = self.graph().dim_text(&outputs);
                return refuse_expecting(format!("{outputs} outputs in {groups} groups"), "a divisor");
            }
            let in_groups = IndexExpr::from(groups);
            self.extent_is("the input", 1, &(channels.clone() * in_groups.clone()))?;
            let stride = options.stride.of("stride", n)?;
            let dilation = options.dilation.of("dilation", n)?;
            let (before, behind) = (options.before.of("padding", n)?, options.behind.of("padding", n)?);
            let kernel = &weight.extents()[2..];
            let padding = (&dims(&before)[..], &dims(&behind)[..]);
            let windows = self.windows(2, kernel, (&stride, &dilation), padding, self.dtype().zero())?;
            if windows.is_poisoned() {
                return Ok(windows);
            }
            // Groups: g; channels of a group: c; outputs of a group: f; batch: b; space: from 4; kernel: behind that.
            const B: u16 = 0;
            const G: u16 = 1;
            const C: u16 = 2;
            const F: u16 = 3;
            let place = |i: usize| 4 + i as u16;
            let (space, kernel_labels): (Vec<u16>, Vec<u16>) =
                ((0..n).map(place).collect(), (n..2 * n).map(place).collect());
            let mut result = vec![windows.extents()[0].clone(), outputs.clone()];
            result.extend_from_slice(&windows.extents()[2..2 + n]);
            let dtype = promote(self.dtype(), weight.dtype());
            // A sum is rounded once, behind the bias.
            let sum = (bias.is_some() && dtype.is_float()).then(|| dtype.accumulator());
            let y = if groups == 1 {
                let x_labels = [&[B, C], &space[..], &kernel_labels].concat();
                let w_labels = [&[F, C], &kernel_labels[..]].concat();
                contract(
                    &[(&windows, &x_labels), (weight, &w_labels)],
                    &[&[B, F], &space[..]].concat(),
                    sum,
                )?
            } else {
                let grouped = |t: &Tensor, axis: usize, inner: IndexExpr| {
                    let mut shape = t.extents().to_vec();
                    shape[axis] = inner;
                    shape.insert(axis, in_groups.clone());
                    t.reshaped(&shape)
                };
                let x = grouped(&windows, 1, channels)?;
                let w = grouped(weight, 0, IndexExpr::floor_div(&outputs, &in_groups))?;
                let x_labels = [&[B, G, C], &space[..], &kernel_labels].concat();
                let w_labels = [&[G, F, C], &kernel_labels[..]].concat();
                contract(
                    &[(&x, &x_labels), (&w, &w_labels)],
                    &[&[B, G, F], &space[..]].concat(),
                    sum,
                )?
            };
            let y = y.reshaped(&result)?;
            match bias {
                None => Ok(y),
                Some(b) => {
                    let column = b.per_channel("a bias", &y)?;
                    (y + column).to(promote(dtype, b.dtype()))
                }
            }
        })
    }
}
