//! Convolutions.

use tlc_ir::DType;

use super::linear::centered;
use super::quantization::quantized;
use crate::call::{Answer, Call, one};
use crate::refusal::{Outcome, invalid, unsupported};
use tlc_record::Tensor;
use tlc_record::dim::Dim;
use tlc_record::ops::conv::Conv;

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
                    let (small, large) = (&total / 2, total.div_ceil(2));
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

/// The window of a weight: its extents behind the first two, which are numbers or else what `kernel_shape` says. Returned with the
/// weight of those extents.
pub(super) fn kernel(c: &Call<'_, '_, '_>, x: &Tensor, w: &Tensor) -> Outcome<(Vec<usize>, Tensor)> {
    if x.rank() < 3 || w.rank() != x.rank() {
        return invalid(format!(
            "an input of rank {} with a weight of rank {}; expected one rank, at least 3",
            x.rank(),
            w.rank()
        ));
    }
    let mut shape = w.shape();
    let own: Vec<Option<i64>> = shape[2..].iter().map(Dim::as_const).collect();
    let declared = c.ints("kernel_shape")?;
    if let Some(declared) = &declared {
        let differs = |(own, declared): (&Option<i64>, &i64)| own.is_some_and(|n| n != *declared);
        if declared.len() != own.len() || own.iter().zip(declared).any(differs) {
            let own: Vec<String> = own.iter().map(|n| n.map_or("?".into(), |n| n.to_string())).collect();
            let own = own.join(", ");
            return invalid(format!("kernel_shape {declared:?}; expected the weight's [{own}]"));
        }
    }
    let Some(size) = declared.or_else(|| own.iter().copied().collect()) else {
        return unsupported("a weight whose window has symbolic extents; expected numbers, or kernel_shape");
    };
    if let Some(n) = size.iter().find(|n| !(1..1 << 31).contains(*n)) {
        return invalid(format!("a window of {n} elements along an axis; expected at least one"));
    }
    // A guard says that the weight has them.
    shape.truncate(2);
    shape.extend(size.iter().map(|&n| Dim::from(n)));
    let w = match own.contains(&None) {
        true => w.broadcast_to(shape),
        false => w.clone(),
    };
    Ok((size.into_iter().map(|n| n as usize).collect(), w))
}

pub(super) fn convolved(c: &Call<'_, '_, '_>, x: &Tensor, w: &Tensor, bias: Option<&Tensor>) -> Outcome<Tensor> {
    let (size, w) = kernel(c, x, w)?;
    let windows = Windows::of(c, x, &size)?;
    let groups = c.int("group", 1)?;
    let options = Conv::new()
        .stride(windows.stride.clone())
        .dilation(windows.dilation.clone())
        .groups(usize::try_from(groups).unwrap_or(0));
    Ok(windows.padded(x, x.dtype().zero()).conv(&w, bias, &options))
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
    // What was refused before is of rank 0.
    if let Some(d) = shape.get_mut(axis) {
        *d = v.dim(0);
    }
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

/// What each element of the image makes of the weights, and where that lies added up: `[batch, outputs, space..]`, with all that the windows
/// reach; of 16 bits in f32. How the sum is computed is decided by [`Tensor::overlap_add`].
fn transposed(x: &Tensor, w: &Tensor, groups: usize, size: &[usize], windows: (&[usize], &[usize])) -> Tensor {
    let (inner, outer) = (w.dim(0) / groups, w.dim(1));
    let n = size.len();
    let (space, window) = (&"uvwxyz"[..n], &"ijklmn"[..n]);
    let space_of_x = x.shape()[2..].to_vec();
    let mut grouped: Vec<Dim> = vec![x.dim(0), groups.into(), inner.clone()];
    grouped.extend(space_of_x.iter().cloned());
    let mut weight = vec![Dim::from(groups), inner, outer.clone()];
    weight.extend(size.iter().map(Dim::from));
    let equation = format!("gco{window},bgc{space}->bgo{space}{window}");
    let dtype = match x.dtype().is_float() {
        true => x.dtype().accumulator(),
        false => x.dtype(),
    };
    let y = tlc_record::einsum_as(&equation, &[&w.reshape(weight), &x.reshape(grouped)], dtype);
    let mut joined: Vec<Dim> = vec![x.dim(0), outer * groups];
    joined.extend(space_of_x.iter().cloned());
    joined.extend(size.iter().map(Dim::from));
    let mut y = y.reshape(joined);
    let (stride, dilation) = windows;
    for i in (0..n).rev() {
        let reach = dilation[i] * (size[i] - 1) + 1;
        let extent = (&space_of_x[i] - 1) * stride[i] + reach;
        y = y.overlap_add(2 + i as i64, extent, stride[i], dilation[i]);
    }
    y
}

pub(super) fn conv_transpose(c: &mut Call<'_, '_, '_>) -> Answer {
    let (bias, pads) = (c.optional(2)?, c.ints("pads")?);
    conv_transposed(c, bias, pads)
}

/// A transposed convolution with that bias and padding.
pub(super) fn conv_transposed(c: &Call<'_, '_, '_>, bias: Option<Tensor>, pads: Option<Vec<i64>>) -> Answer {
    let (x, w) = (c.tensor(0)?, c.tensor(1)?);
    let (size, w) = kernel(c, &x, &w)?;
    let n = size.len();
    let groups = c.int("group", 1)?;
    let divides = |g: i64| g > 0 && w.dim(0).as_const().is_none_or(|n| n % g == 0);
    let Some(groups) = usize::try_from(groups).ok().filter(|&g| divides(g as i64)) else {
        let channels = w.dim(0).as_const().map_or("the".into(), |n| n.to_string());
        return invalid(format!("{channels} channels in {groups} groups; expected a divisor"));
    };
    let stride = positive(c.ints("strides")?, n, "strides", 1)?;
    let dilation = positive(c.ints("dilations")?, n, "dilations", 1)?;
    let more = positive(c.ints("output_padding")?, n, "output_padding", 0)?;
    let reach: Vec<i64> = (0..n).map(|i| (dilation[i] * (size[i] - 1)) as i64).collect();
    let auto = c.text("auto_pad", "NOTSET")?;
    let (mut before, mut behind) = (vec![Dim::from(0); n], vec![Dim::from(0); n]);
    // What is taken away of the whole result along each axis, where the node says what is left.
    let taken: Option<Vec<Dim>> = match (c.ints("output_shape")?, auto.as_str()) {
        (Some(shape), _) if shape.len() >= n => {
            let wanted = &shape[shape.len() - n..];
            if let Some(v) = wanted.iter().find(|v| !(0..1 << 40).contains(*v)) {
                return invalid(format!("an output_shape of {v}; expected 0 or more"));
            }
            let full = |i: usize| (x.dim(2 + i as i64) - 1) * stride[i] + more[i] + reach[i] + 1;
            Some((0..n).map(|i| full(i) - wanted[i]).collect())
        }
        (Some(shape), _) => return invalid(format!("output_shape of {} axes; expected {n}", shape.len())),
        // What is left is the extent times the stride.
        (None, "SAME_UPPER" | "SAME_LOWER") => {
            let taken = |i: usize| Dim::from(more[i] as i64 + reach[i] + 1 - stride[i] as i64);
            Some((0..n).map(taken).collect())
        }
        (None, "NOTSET" | "VALID" | "") => None,
        (None, other) => {
            return invalid(format!(
                "auto_pad `{other}`; expected NOTSET, VALID, SAME_UPPER or SAME_LOWER"
            ));
        }
    };
    match taken {
        Some(taken) => {
            for (i, total) in taken.into_iter().enumerate() {
                let half = &total / 2;
                (before[i], behind[i]) = match auto.as_str() {
                    "SAME_UPPER" => (half.clone(), total - half),
                    "SAME_LOWER" => (total - &half, half),
                    // What is more than the whole is added behind.
                    _ => {
                        let most = total.max(0);
                        let first = &most - &most / 2;
                        (first.clone(), total - first)
                    }
                };
            }
        }
        None => {
            let pads = positive(pads, 2 * n, "pads", 0)?;
            let pads: Vec<Dim> = pads.iter().map(Dim::from).collect();
            (before, behind) = (pads[..n].to_vec(), pads[n..].to_vec());
        }
    }
    if let Some(axis) = (2..2 + n).find(|&a| x.dim(a as i64).as_const() == Some(0)) {
        return invalid(format!("axis {axis} is empty; expected at least one element"));
    }
    if n > 6 {
        return unsupported(format!("{n} axes of space; expected at most 6"));
    }
    let mut y = transposed(&x, &w, groups, &size, (&stride, &dilation));
    // What is added behind, less what is taken away on both sides.
    let simple = |d: Dim| Dim::from(x.graph().simplify(d.expr()));
    for i in 0..n {
        if y.is_poisoned() {
            break;
        }
        let axis = 2 + i;
        let ends = [Dim::from(0) - &before[i], Dim::from(more[i] as i64) - &behind[i]];
        let cut = ends.clone().map(|d| simple((Dim::from(0) - d).max(0)));
        let beyond = ends.map(|d| simple(d.max(0)));
        if cut.iter().any(|d| d.as_const() != Some(0)) {
            let left = simple(y.dim(axis as i64) - &cut[0] - &cut[1]);
            if let Some(n @ ..0) = left.as_const() {
                return invalid(format!(
                    "pads that leave {n} elements along axis {axis}; expected at least 0"
                ));
            }
            y = y.narrow(axis as i64, cut[0].clone(), left);
        }
        let mut each = vec![(Dim::from(0), Dim::from(0)); y.rank()];
        let [lo, hi] = beyond;
        each[axis] = (lo, hi);
        y = y.pad(&each, y.dtype().zero());
    }
    let mut along_channels = vec![Dim::from(1); n + 1];
    along_channels[0] = w.dim(1) * groups;
    let y = match bias {
        Some(bias) => y + bias.reshape(along_channels),
        None => y,
    };
    one(y.cast(x.dtype()))
}
