//! Sampling a tensor at fractional coordinates that are data: grids, deformed windows.
//!
//! A sample is a weighted sum over its neighbours along each axis; each neighbour is one gather, so sampling fuses with
//! what makes the coordinates and with what uses the values. Gathers beyond the ends read zero, which is what padding with
//! zeros means.

use tlc_ir::{DType, IndexExpr};

use super::conv::Conv;
use super::linalg::contract;
use super::resample::Interpolation;
use crate::dim::{Dim, IntoShape};
use crate::graph::Tensor;
use crate::graph::scope::{Step, op, refuse_expecting};

/// What lies beyond the ends of a sampled axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outside {
    /// Zeros.
    Zeros,
    /// The last element.
    Border,
    /// The tensor turned around, again and again: at the middle of the last element where corners are aligned, else at its
    /// outer edge.
    Reflection,
}

/// One neighbour along one axis: its index, and its weight unless that is one.
#[derive(Clone)]
pub(super) struct Tap {
    index: Tensor,
    weight: Option<Tensor>,
}

/// The most neighbours that a sample may have.
const MAX_TAPS: usize = 64;

/// The sum over all combinations of one tap of each of `axes`; `fixed` axes are indexed as they are. Result axes: those of
/// the indices, then the rest in order.
pub(super) fn sum_of_taps(x: &Tensor, fixed: &[(i64, Tensor)], axes: &[i64], taps: &[Vec<Tap>], wide: DType) -> Step {
    let all: Vec<i64> = fixed.iter().map(|(a, _)| *a).chain(axes.iter().copied()).collect();
    let rest = x.rank() - all.len();
    let mut sum: Option<Tensor> = None;
    let combinations: usize = taps.iter().map(Vec::len).product();
    if combinations > MAX_TAPS {
        return refuse_expecting(
            format!("{combinations} neighbours of a sample"),
            format!("at most {MAX_TAPS}: fewer axes, or a simpler interpolation"),
        );
    }
    for combination in 0..combinations {
        let mut left = combination;
        let mut indices: Vec<&Tensor> = fixed.iter().map(|(_, t)| t).collect();
        let mut weight: Option<Tensor> = None;
        for choices in taps {
            let tap = &choices[left % choices.len()];
            left /= choices.len();
            indices.push(&tap.index);
            weight = match (weight, &tap.weight) {
                (Some(w), Some(own)) => Some(w * own),
                (w, own) => w.or_else(|| own.clone()),
            };
        }
        let mut part = x.gather(&all, &indices);
        if let Some(mut weight) = weight {
            for _ in 0..rest {
                weight = weight.unsqueeze(-1);
            }
            part = part.to(wide)? * weight;
        }
        sum = Some(match sum {
            Some(s) => s + part,
            None => part,
        });
    }
    Ok(sum.unwrap_or_else(|| x.clone()))
}

/// The floats that samples of that dtype are computed in.
pub(super) fn wide_of(dtype: DType) -> DType {
    match dtype {
        d if d.is_float() => d.accumulator(),
        DType::Bool | DType::I8 | DType::U8 | DType::I16 | DType::U16 => DType::F32,
        _ => DType::F64,
    }
}

/// Neighbours of `at` by an interpolation that has weights; `index` maps places beyond the ends.
pub(super) fn neighbours(
    at: &Tensor,
    how: Interpolation,
    wide: DType,
    index: impl Fn(Tensor) -> Step,
) -> Step<Vec<Tap>> {
    let (start, count) = match how {
        Interpolation::Nearest(rounding) => {
            let index = index(rounding.of(at))?.to(DType::I64)?;
            return Ok(vec![Tap { index, weight: None }]);
        }
        Interpolation::Linear => (0, 2),
        Interpolation::Cubic(_) => (-1, 4),
    };
    let floor = at.floor();
    let fraction = at - &floor;
    let mut taps = vec![];
    for k in start..start + count {
        // On an element, where the slope changes, the derivative is the slope after it: as that of PyTorch.
        let weight = match (how, k) {
            (Interpolation::Linear, 0) => 1.0 - &fraction,
            (Interpolation::Linear, _) => fraction.clone(),
            _ => how.weight(&(k as f64 - &fraction)),
        };
        taps.push(Tap {
            index: index(&floor + k as f64)?.to(DType::I64)?,
            weight: Some(weight.to(wide)?),
        });
    }
    Ok(taps)
}

/// How [`Tensor::grid_sample`] goes about it.
#[derive(Clone, Debug)]
pub struct GridSample {
    interpolation: Interpolation,
    outside: Outside,
    align_corners: bool,
}

impl GridSample {
    /// Zeros outside; -1 and 1 are the outer edges of the first and the last element.
    pub fn new(interpolation: Interpolation) -> GridSample {
        GridSample {
            interpolation,
            outside: Outside::Zeros,
            align_corners: false,
        }
    }

    /// What lies beyond the ends.
    pub fn outside(mut self, outside: Outside) -> GridSample {
        self.outside = outside;
        self
    }

    /// -1 and 1 are the middles of the first and the last element.
    pub fn align_corners(mut self) -> GridSample {
        self.align_corners = true;
        self
    }

    /// `x` turned around at the ends of an axis of `extent` elements until it lies within.
    fn reflected(&self, x: &Tensor, extent: &Tensor) -> Tensor {
        let (lo, hi) = match self.align_corners {
            true => (extent.zeros_like(), extent - 1.0),
            false => (extent.zeros_like() - 0.5, extent - 0.5),
        };
        let span = &hi - &lo;
        let period = &span * 2.0;
        let t = (x - &lo).remainder(&period);
        let back = &lo + &t.minimum(&period - &t);
        // An axis of one element, aligned at its corners, has no width to turn around in.
        let back = span.gt(0.0).select(back, &lo);
        x.ge(&lo).logical_and(x.le(&hi)).select(x, back)
    }

    fn taps(&self, at: &Tensor, extent: &Dim, wide: DType) -> Step<Vec<Tap>> {
        let n = at.graph().dim_value(extent, at.dtype())?;
        let mut at = match self.align_corners {
            true => (at + 1.0) / 2.0 * (&n - 1.0),
            false => ((at + 1.0) * &n - 1.0) / 2.0,
        };
        if let Interpolation::Nearest(rounding) = self.interpolation {
            at = rounding.of(&at);
        }
        let last = &n - 1.0;
        let within = |i: Tensor| i.maximum(0.0).minimum(&last);
        at = match (self.outside, self.interpolation) {
            // The curve goes on beyond the ends, through neighbours that are elements inside; PyTorch and ONNX Runtime agree on that.
            (_, Interpolation::Cubic(_)) | (Outside::Zeros, _) => at,
            (Outside::Border, _) => within(at),
            (Outside::Reflection, _) => self.reflected(&at, &n),
        };
        neighbours(&at, self.interpolation, wide, |i| {
            Ok(match self.outside {
                Outside::Zeros => i,
                Outside::Border => within(i),
                Outside::Reflection => within(self.reflected(&i, &n).trunc()),
            })
        })
    }
}

impl Tensor {
    /// Values at places given by data (Jaderberg et al., "Spatial transformer networks", arXiv:1506.02025): `self` is
    /// `[batch, channels, space..]`, `grid` `[batch, space'.., n]` with the coordinates of the `n` axes of space in reverse
    /// order, -1 to 1; the result is `[batch, channels, space'..]`. Integers are computed as floats and rounded toward zero.
    ///
    /// # Errors
    /// Ranks that differ, a last extent of `grid` that is not the number of axes of space, more than three axes of
    /// space with cubic interpolation.
    #[track_caller]
    pub fn grid_sample(&self, grid: &Tensor, options: &GridSample) -> Tensor {
        op("grid_sample", &[self, grid], || {
            self.at_least_rank(3)?;
            grid.exactly_rank("a grid", self.rank())?;
            if !grid.dtype().is_float() {
                return refuse_expecting(format!("a grid of {}", grid.dtype()), "floats");
            }
            let n = self.rank() - 2;
            grid.extent_is("the grid", self.rank() - 1, &n.into())?;
            grid.extent_is("the grid", 0, &self.extents()[0])?;
            let wide = wide_of(self.dtype());
            let grid = grid.to(grid.dtype().accumulator())?;
            let mut taps = vec![];
            for axis in 0..n {
                let at = grid.select_index(-1, (n - 1 - axis) as i64);
                taps.push(options.taps(&at, &self.dim(2 + axis as i64), wide)?);
            }
            let mut column = vec![IndexExpr::ONE; n + 1];
            column[0] = grid.extents()[0].clone();
            let batch = self.graph().iota_1d(&column[0], DType::I64)?.reshaped(&column)?;
            let axes: Vec<i64> = (2..2 + n as i64).collect();
            let y = sum_of_taps(self, &[(0, batch)], &axes, &taps, wide)?;
            Ok(y.move_axis(-1, 1).cast(self.dtype()))
        })
    }

    /// Grids for [`Tensor::grid_sample`] from affine matrices: `self` is `[batch, n, n + 1]`, `size` the result's extents of
    /// space; the result is `[batch, size.., n]`. `align_corners` as in [`GridSample`].
    ///
    /// # Errors
    /// Another shape, a size of other than `n` axes.
    #[track_caller]
    pub fn affine_grid(&self, size: impl IntoShape, align_corners: bool) -> Tensor {
        let size = size.into_shape();
        op("affine_grid", &[self], || {
            self.exactly_rank("matrices", 3)?;
            let n = size.len();
            if n == 0 || self.dim(1).as_const() != Some(n as i64) || self.dim(2).as_const() != Some(n as i64 + 1) {
                return refuse_expecting(format!("{n} extents"), "one for each row of matrices [batch, n, n + 1]");
            }
            let graph = self.graph();
            let wide = self.dtype().accumulator();
            let theta = self.to(wide)?;
            let column = |k: usize| -> Step {
                let mut shape = vec![IndexExpr::ONE; n + 2];
                (shape[0], shape[n + 1]) = (self.extents()[0].clone(), n.into());
                theta.select_index(2, k as i64).reshaped(&shape)
            };
            let mut sum = column(n)?;
            for (axis, extent) in size.iter().enumerate() {
                let i = graph.iota_1d(extent, wide)?;
                let m = graph.dim_value(&Dim(extent.clone()), wide)?;
                let at = match align_corners {
                    true => m.gt(1.0).select(i * 2.0 / (&m - 1.0) - 1.0, 0.0),
                    false => (i * 2.0 + 1.0) / m - 1.0,
                };
                let mut shape = vec![IndexExpr::ONE; n + 2];
                shape[axis + 1] = extent.clone();
                sum += at.reshaped(&shape)? * column(n - 1 - axis)?;
            }
            sum.to(self.dtype())
        })
    }

    /// Convolution whose windows are deformed by data (Dai et al., "Deformable convolutional networks", arXiv:1703.06211;
    /// with a mask, Zhu et al., arXiv:1811.11168): operands as [`Tensor::conv`], `offset` is `[batch, groups' * window * n,
    /// space'..]` (for each element of the window, `n` distances), `mask` `[batch, groups' * window, space'..]`; channels
    /// fall into `offset_groups` groups that share offsets.
    ///
    /// # Errors
    /// Shapes that do not belong together, a window or channels of symbolic extent.
    #[track_caller]
    pub fn deform_conv(
        &self,
        weight: &Tensor,
        offset: &Tensor,
        mask: Option<&Tensor>,
        bias: Option<&Tensor>,
        offset_groups: usize,
        options: &Conv,
    ) -> Tensor {
        let mut operands = vec![self, weight, offset];
        operands.extend(mask);
        operands.extend(bias);
        op("deform_conv", &operands, || {
            self.at_least_rank(3)?;
            let n = self.rank() - 2;
            weight.exactly_rank("a weight", n + 2)?;
            offset.exactly_rank("an offset", n + 2)?;
            let settings = options.settings(n)?;
            let mut window = vec![];
            for axis in 0..n {
                window.push(weight.const_extent(2 + axis)?);
            }
            let points: usize = window.iter().product();
            let (outputs, inner) = (weight.const_extent(0)?, weight.const_extent(1)?);
            let channels = self.const_extent(1)?;
            let groups = settings.groups;
            if groups == 0 || outputs % groups != 0 || inner * groups != channels {
                return refuse_expecting(
                    format!("{outputs} outputs of {inner} channels in {groups} groups"),
                    format!("groups that divide the outputs and the {channels} channels"),
                );
            }
            if offset_groups == 0 || channels % offset_groups != 0 || points == 0 {
                return refuse_expecting(
                    format!("{offset_groups} groups of offsets"),
                    format!("a divisor of {channels}"),
                );
            }
            offset.extent_is("the offset", 1, &(offset_groups * points * n).into())?;
            offset.extent_is("the offset", 0, &self.extents()[0])?;
            let space = &offset.extents()[2..];
            for (axis, &extent) in window.iter().enumerate() {
                let reach = settings.dilation[axis] * (extent - 1) + 1;
                let padded = self.dim(2 + axis as i64) + settings.before[axis] + settings.behind[axis];
                let places = (padded - reach) / settings.stride[axis] as i64 + 1;
                offset.extent_is("the offset", 2 + axis, places.expr())?;
            }
            let graph = self.graph();
            let wide = wide_of(self.dtype());
            // [batch, offset groups, window's elements, (distances,) space'..]
            let lead = |more: &[usize]| {
                let mut shape = vec![self.extents()[0].clone(), offset_groups.into(), points.into()];
                shape.extend(more.iter().map(|&m| IndexExpr::from(m)));
                shape.extend_from_slice(space);
                shape
            };
            let distances = offset.to(offset.dtype().accumulator())?.reshaped(&lead(&[n]))?;
            let float = distances.dtype();
            let mut taps = vec![];
            for (axis, &extent) in window.iter().enumerate() {
                let rank = 3 + n;
                let along = |at: usize, extent: &IndexExpr| -> Step {
                    let mut shape = vec![IndexExpr::ONE; rank];
                    shape[at] = extent.clone();
                    graph.iota_1d(extent, float)?.reshaped(&shape)
                };
                // Which element of the window along this axis: the flat number, divided and reduced.
                let behind: usize = window[axis + 1..].iter().product();
                let element = (along(2, &points.into())? / behind as f64).floor() % extent as f64;
                let start =
                    along(3 + axis, &space[axis])? * settings.stride[axis] as f64 - settings.before[axis] as f64;
                let at = start + element * settings.dilation[axis] as f64 + distances.select_index(3, axis as i64);
                taps.push(neighbours(&at, Interpolation::Linear, wide, Ok)?);
            }
            let share = channels / offset_groups;
            let mut split = vec![self.extents()[0].clone(), offset_groups.into(), share.into()];
            split.extend_from_slice(&self.extents()[2..]);
            let fixed = |axis: usize| -> Step<(i64, Tensor)> {
                let mut shape = vec![IndexExpr::ONE; 3 + n];
                shape[axis] = split[axis].clone();
                let index = graph.iota_1d(&split[axis], DType::I64)?.reshaped(&shape)?;
                Ok((axis as i64, index))
            };
            let axes: Vec<i64> = (3..3 + n as i64).collect();
            // [batch, offset groups, points, space'.., share]
            let mut values = sum_of_taps(&self.reshaped(&split)?, &[fixed(0)?, fixed(1)?], &axes, &taps, wide)?;
            if let Some(mask) = mask {
                mask.exactly_rank("a mask", n + 2)?;
                mask.extent_is("the mask", 1, &(offset_groups * points).into())?;
                values *= mask.to(wide)?.reshaped(&lead(&[]))?.unsqueeze(-1);
            }
            // [batch, groups, inner, points, space'..]
            let mut shape = vec![self.extents()[0].clone(), groups.into(), inner.into(), points.into()];
            shape.extend_from_slice(space);
            let columns = values.move_axis(-1, 2).reshaped(&shape)?;
            let w = weight
                .to(wide)?
                .reshaped(&[groups, outputs / groups, inner, points].map(IndexExpr::from))?;
            let place: Vec<u16> = (0..n).map(|i| 5 + i as u16).collect();
            let y = contract(
                &[
                    (&columns, &[&[0u16, 1, 2, 3], &place[..]].concat()),
                    (&w, &[1, 4, 2, 3]),
                ],
                &[&[0u16, 1, 4], &place[..]].concat(),
                Some(wide),
            )?;
            let mut result = vec![self.extents()[0].clone(), outputs.into()];
            result.extend_from_slice(space);
            let mut y = y.reshaped(&result)?;
            if let Some(bias) = bias {
                y = &y + bias.to(wide)?.per_channel("a bias", &y)?;
            }
            y.to(self.dtype())
        })
    }
}
