//! Convolutions.

use tlc_ir::DType;

use super::linear::centered;
use super::quantization::quantized;
use crate::dim::Dim;
use crate::onnx::call::{Answer, Call, one};
use crate::onnx::refusal::{Outcome, invalid, unsupported};
use crate::ops::conv::Conv;
use crate::tensor::Tensor;

/// Strides, dilations and padding of windows over space.
pub(super) struct Windows {
    pub(super) stride: Vec<usize>,
    pub(super) dilation: Vec<usize>,
    pub(super) before: Vec<Dim>,
    pub(super) behind: Vec<Dim>,
}

/// `n` numbers, `least` or more; each is `least` if none are given.
pub(super) fn positive(list: Option<Vec<i64>>, n: usize, what: &str, least: i64) -> Outcome<Vec<usize>> {
    let list = list.unwrap_or_else(|| vec![least; n]);
    if list.len() != n {
        return invalid(format!("{what} for {} axes; expected {n}", list.len()));
    }
    match list.iter().find(|&&v| !(least..1 << 31).contains(&v)) {
        Some(v) => invalid(format!("{what} of {v}; expected {least} or more")),
        None => Ok(list.into_iter().map(|v| v as usize).collect()),
    }
}

impl Windows {
    /// The settings of the node for windows of that size over the space of `x`.
    pub(super) fn of(c: &Call<'_, '_, '_>, x: &Tensor, size: &[usize]) -> Outcome<Windows> {
        let n = size.len();
        let stride = positive(c.ints("strides")?, n, "strides", 1)?;
        let dilation = positive(c.ints("dilations")?, n, "dilations", 1)?;
        let (mut before, mut behind) = (vec![Dim::from(0); n], vec![Dim::from(0); n]);
        let auto = c.text("auto_pad", "NOTSET")?;
        match auto.as_str() {
            "NOTSET" | "" => {
                let pads = positive(c.ints("pads")?, 2 * n, "pads", 0)?;
                let pads: Vec<Dim> = pads.iter().map(Dim::from).collect();
                (before, behind) = (pads[..n].to_vec(), pads[n..].to_vec());
            }
            "VALID" => {}
            "SAME_UPPER" | "SAME_LOWER" => {
                for i in 0..n {
                    let reach = dilation[i] * (size[i] - 1) + 1;
                    let extent = x.dim(2 + i as i64);
                    let total = match stride[i] {
                        1 => Dim::from(reach - 1),
                        step => {
                            let last = extent.div_ceil(step as i64) - 1;
                            let total = (last * step + reach - &extent).max(0);
                            Dim::from(c.graph().simplify(total.expr()))
                        }
                    };
                    let small = &total / 2;
                    let large = total - &small;
                    (before[i], behind[i]) = if auto == "SAME_UPPER" {
                        (small, large)
                    } else {
                        (large, small)
                    };
                }
            }
            other => {
                return invalid(format!(
                    "auto_pad `{other}`; expected NOTSET, VALID, SAME_UPPER or SAME_LOWER"
                ));
            }
        }
        Ok(Windows {
            stride,
            dilation,
            before,
            behind,
        })
    }
}

impl Windows {
    /// Space with the padding around it.
    pub(super) fn padded(&self, x: &Tensor, fill: tlc_ir::Scalar) -> Tensor {
        let mut each = vec![(Dim::from(0), Dim::from(0)); 2];
        each.extend(self.before.iter().cloned().zip(self.behind.iter().cloned()));
        x.pad(&each, fill)
    }
}

/// The window of a weight: its extents behind the first two.
pub(super) fn kernel(c: &Call<'_, '_, '_>, x: &Tensor, w: &Tensor) -> Outcome<Vec<usize>> {
    if x.rank() < 3 || w.rank() != x.rank() {
        return invalid(format!(
            "an input of rank {} with a weight of rank {}; expected one rank, at least 3",
            x.rank(),
            w.rank()
        ));
    }
    let Some(shape) = w.const_shape() else {
        return unsupported("a weight of symbolic extents; expected numbers");
    };
    let size = shape[2..].to_vec();
    if size.contains(&0) {
        return invalid("an empty window; expected at least one element");
    }
    match c.ints("kernel_shape")? {
        Some(declared) if !declared.iter().copied().eq(size.iter().map(|&s| s as i64)) => {
            invalid(format!("kernel_shape {declared:?}; expected the weight's {size:?}"))
        }
        _ => Ok(size),
    }
}

fn convolved(c: &Call<'_, '_, '_>, x: &Tensor, w: &Tensor, bias: Option<&Tensor>) -> Outcome<Tensor> {
    let size = kernel(c, x, w)?;
    let windows = Windows::of(c, x, &size)?;
    let groups = c.int("group", 1)?;
    let options = Conv::new()
        .stride(windows.stride.clone())
        .dilation(windows.dilation.clone())
        .groups(usize::try_from(groups).unwrap_or(0));
    Ok(windows.padded(x, x.dtype().zero()).conv(w, bias, &options))
}

pub(super) fn conv(c: &mut Call<'_, '_, '_>) -> Answer {
    let (x, w, bias) = (c.tensor(0)?, c.tensor(1)?, c.optional(2)?);
    one(convolved(c, &x, &w, bias.as_ref())?)
}

pub(super) fn conv_integer(c: &mut Call<'_, '_, '_>) -> Answer {
    let x = centered(&c.tensor(0)?, c.optional(2)?, 0)?;
    let w = channels(&c.tensor(1)?, c.optional(3)?)?;
    one(convolved(c, &x, &w, None)?)
}

/// A weight less its zero point, one number or one a channel, in i32.
fn channels(w: &Tensor, zero: Option<Tensor>) -> Outcome<Tensor> {
    let w = w.cast(DType::I32);
    Ok(match zero {
        Some(z) if z.rank() == 1 && z.dim(0).as_const() != Some(1) => {
            w.clone() - per_channel(&z, w.rank(), 0).cast(DType::I32)
        }
        Some(z) => w - z.reshape(()).cast(DType::I32),
        None => w,
    })
}

/// A vector along one axis of a tensor of that rank.
fn per_channel(v: &Tensor, rank: usize, axis: usize) -> Tensor {
    let mut shape = vec![Dim::from(1); rank];
    shape[axis] = v.dim(0);
    v.reshape(shape)
}

pub(super) fn qlinear_conv(c: &mut Call<'_, '_, '_>) -> Answer {
    let x = centered(&c.tensor(0)?, Some(c.tensor(2)?), 0)?;
    let w = channels(&c.tensor(3)?, Some(c.tensor(5)?))?;
    let bias = c.optional(8)?;
    let sums = convolved(c, &x, &w, bias.as_ref())?;
    let (x_scale, w_scale, y_scale) = (c.tensor(1)?, c.tensor(4)?, c.tensor(6)?);
    let w_scale = match w_scale.rank() == 1 && w_scale.dim(0).as_const() != Some(1) {
        true => per_channel(&w_scale, sums.rank(), 1),
        false => w_scale.reshape(()),
    };
    let scale = x_scale.reshape(()) * w_scale / y_scale.reshape(());
    one(quantized(
        &(sums.cast(DType::F32) * scale),
        Some(c.tensor(7)?.reshape(())),
    ))
}

/// The transposed convolution: zeros between the elements of space, and a convolution with the weight turned around.
pub(super) fn conv_transpose(c: &mut Call<'_, '_, '_>) -> Answer {
    let (x, w, bias) = (c.tensor(0)?, c.tensor(1)?, c.optional(2)?);
    let size = kernel(c, &x, &w)?;
    let n = size.len();
    let (Some(w_shape), groups) = (w.const_shape(), c.int("group", 1)?) else {
        return unsupported("a weight of symbolic extents; expected numbers");
    };
    let groups = usize::try_from(groups).ok().filter(|&g| g > 0 && w_shape[0] % g == 0);
    let Some(groups) = groups else {
        return invalid(format!("{} channels in groups that do not divide them", w_shape[0]));
    };
    let stride = positive(c.ints("strides")?, n, "strides", 1)?;
    let dilation = positive(c.ints("dilations")?, n, "dilations", 1)?;
    let more = positive(c.ints("output_padding")?, n, "output_padding", 0)?;
    let reach: Vec<i64> = (0..n).map(|i| (dilation[i] * (size[i] - 1)) as i64).collect();
    let auto = c.text("auto_pad", "NOTSET")?;
    let full = |i: usize| -> Outcome<i64> {
        match x.dim(2 + i as i64).as_const() {
            Some(e) => Ok(stride[i] as i64 * (e - 1) + more[i] as i64 + reach[i] + 1),
            None => unsupported("an axis of symbolic extent with output_shape or SAME padding; expected pads"),
        }
    };
    let (mut before, mut behind) = (vec![0i64; n], vec![0i64; n]);
    let wanted = match (c.ints("output_shape")?, auto.as_str()) {
        (Some(shape), _) if shape.len() >= n => Some(shape[shape.len() - n..].to_vec()),
        (Some(shape), _) => return invalid(format!("output_shape of {} axes; expected {n}", shape.len())),
        (None, "SAME_UPPER" | "SAME_LOWER") => {
            let extents = (0..n).map(|i| x.dim(2 + i as i64).as_const().map(|e| e * stride[i] as i64));
            match extents.collect::<Option<Vec<i64>>>() {
                Some(all) => Some(all),
                None => return unsupported(format!("{auto} over an axis of symbolic extent; expected pads")),
            }
        }
        (None, "NOTSET" | "VALID" | "") => None,
        (None, other) => {
            return invalid(format!(
                "auto_pad `{other}`; expected NOTSET, VALID, SAME_UPPER or SAME_LOWER"
            ));
        }
    };
    match wanted {
        Some(wanted) => {
            for i in 0..n {
                let total = full(i)? - wanted[i];
                let half = total.div_euclid(2);
                (before[i], behind[i]) = match auto == "SAME_UPPER" {
                    true => (half, total - half),
                    false => (total - half, half),
                };
            }
        }
        None => {
            let pads = positive(c.ints("pads")?, 2 * n, "pads", 0)?;
            before = pads[..n].iter().map(|&p| p as i64).collect();
            behind = pads[n..].iter().map(|&p| p as i64).collect();
        }
    }
    // Zeros between the elements.
    let mut spread = x.clone();
    for (i, &step) in stride.iter().enumerate().filter(|(_, s)| **s > 1) {
        let axis = 2 + i;
        let extent = spread.dim(axis as i64);
        let mut each = vec![(Dim::from(0), Dim::from(0)); spread.rank() + 1];
        each[axis + 1].1 = (step as i64 - 1).into();
        let mut joined = spread.shape();
        joined[axis] = &extent * step as i64;
        let apart = spread
            .unsqueeze(axis as i64 + 1)
            .pad(&each, spread.dtype().zero())
            .reshape(joined);
        spread = apart.narrow(axis as i64, 0, (extent - 1) * step as i64 + 1);
    }
    // What the window reaches beyond the ends, less the padding that is taken away.
    for i in 0..n {
        let (lo, hi) = (reach[i] - before[i], reach[i] - behind[i] + more[i] as i64);
        let axis = 2 + i;
        let cut = |v: i64| v.min(0).saturating_neg();
        if lo < 0 || hi < 0 {
            let end = spread.dim(axis as i64) - cut(hi);
            spread = spread.slice_axis(axis as i64, Dim::from(cut(lo))..end);
        }
        let mut each = vec![(0, 0); spread.rank()];
        each[axis] = (lo.max(0), hi.max(0));
        spread = spread.pad(&each, spread.dtype().zero());
    }
    // [in, out / groups, ..] to [out, in / groups, ..], turned around.
    let (inner, outer) = (w_shape[0] / groups, w_shape[1]);
    let mut apart = vec![groups, inner, outer];
    apart.extend(&size);
    let mut joined = vec![groups * outer, inner];
    joined.extend(&size);
    let space: Vec<i64> = (2..2 + n as i64).collect();
    let turned = w.reshape(apart).swap_axes(1, 2).reshape(joined).flip(space);
    let options = Conv::new().dilation(dilation).groups(groups);
    one(spread.conv(&turned, bias.as_ref(), &options))
}
