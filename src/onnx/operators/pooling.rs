//! Pooling over windows of space.

use tlc_ir::{DType, IndexExpr, Scalar};

use super::convolution::Windows;
use crate::dim::Axes;
use crate::keep;
use crate::onnx::call::{Answer, Call, one};
use crate::onnx::refusal::{Outcome, Refusal, invalid, unsupported};
use crate::tensor::Tensor;
use tlc_formats::ErrorKind;

struct Pooling {
    size: Vec<usize>,
    windows: Windows,
    /// Padding behind that only `ceil_mode` asks for; never counted.
    over: Vec<usize>,
}

impl Pooling {
    fn of(c: &Call<'_, '_, '_>, x: &Tensor) -> Outcome<Pooling> {
        let Some(declared) = c.ints("kernel_shape")? else {
            return invalid("no kernel_shape; expected it");
        };
        if x.rank() < 3 || declared.len() + 2 != x.rank() {
            return invalid(format!(
                "kernel_shape of {} axes for rank {}; expected two fewer",
                declared.len(),
                x.rank()
            ));
        }
        if let Some(v) = declared.iter().find(|&&v| !(1..1 << 31).contains(&v)) {
            return invalid(format!("kernel_shape of {v}; expected 1 or more"));
        }
        let size: Vec<usize> = declared.into_iter().map(|v| v as usize).collect();
        let windows = Windows::of(c, x, &size)?;
        let mut over = vec![0; size.len()];
        if c.flag("ceil_mode", false)? && !c.text("auto_pad", "NOTSET")?.starts_with("SAME") {
            for (i, over) in over.iter_mut().enumerate() {
                let Some(extent) = x.dim(2 + i as i64).as_const() else {
                    return unsupported("ceil_mode over an axis of symbolic extent; expected a number");
                };
                let (before, behind, stride) = (windows.before[i], windows.behind[i], windows.stride[i]);
                let reach = windows.dilation[i] * (size[i] - 1) + 1;
                let padded = extent as usize + before + behind;
                if padded < reach {
                    continue;
                }
                let mut count = (padded - reach).div_ceil(stride) + 1;
                // A window that would start in the padding behind is left out.
                if (count - 1) * stride >= extent as usize + before {
                    count -= 1;
                }
                *over = ((count - 1) * stride + reach).saturating_sub(padded);
            }
        }
        Ok(Pooling { size, windows, over })
    }

    /// The windows of the axes from `first` on, with or without what `ceil_mode` adds.
    fn windows(&self, x: &Tensor, first: usize, fill: Scalar) -> Outcome<Tensor> {
        let size: Vec<IndexExpr> = self.size.iter().map(|&s| s.into()).collect();
        let w = &self.windows;
        let behind: Vec<usize> = w.behind.iter().zip(&self.over).map(|(a, b)| a + b).collect();
        x.windows(first, &size, (&w.stride, &w.dilation), (&w.before, &behind), fill)
            .map_err(|(message, _)| Refusal {
                kind: ErrorKind::Invalid,
                message,
            })
    }

    fn axes(&self) -> Axes {
        (1..=self.size.len() as i64).map(|i| -i).collect::<Vec<_>>().into()
    }
}

pub(super) fn max_pool(c: &mut Call<'_, '_, '_>) -> Answer {
    c.at_most_outputs(1)?;
    let x = c.tensor(0)?;
    let pooling = Pooling::of(c, &x)?;
    one(pooling.windows(&x, 2, x.dtype().lowest())?.max(pooling.axes()))
}

pub(super) fn average_pool(c: &mut Call<'_, '_, '_>) -> Answer {
    let x = c.tensor(0)?;
    let dtype = x.dtype();
    let pooling = Pooling::of(c, &x)?;
    let wide = x.cast(dtype.accumulator());
    let sums = pooling.windows(&wide, 2, wide.dtype().zero())?.sum(pooling.axes());
    // How many elements of each window count: those of the tensor, or of its padding too.
    let space = &x.shape()[2..];
    let mut ones = x.graph().full(space.to_vec(), 1, DType::I64);
    let mut counted = Pooling {
        size: pooling.size.clone(),
        windows: Windows {
            stride: pooling.windows.stride.clone(),
            dilation: pooling.windows.dilation.clone(),
            before: pooling.windows.before.clone(),
            behind: pooling.windows.behind.clone(),
        },
        over: pooling.over.clone(),
    };
    if c.flag("count_include_pad", false)? {
        let pads: Vec<(usize, usize)> = counted
            .windows
            .before
            .iter()
            .copied()
            .zip(counted.windows.behind.iter().copied())
            .collect();
        ones = ones.pad(&pads, 1);
        counted.windows.before.fill(0);
        counted.windows.behind.fill(0);
    }
    let counts = counted.windows(&ones, 0, DType::I64.zero())?.sum(counted.axes());
    one((sums / counts.cast(dtype.accumulator())).cast(dtype))
}

pub(super) fn lp_pool(c: &mut Call<'_, '_, '_>) -> Answer {
    let x = c.tensor(0)?;
    let dtype = x.dtype();
    let pooling = Pooling::of(c, &x)?;
    let p = c.int("p", 2)?;
    let powers = power(&x.cast(dtype.accumulator()), p);
    let sums = pooling.windows(&powers, 2, powers.dtype().zero())?.sum(pooling.axes());
    one(root(&sums, p)?.cast(dtype))
}

fn power(x: &Tensor, p: i64) -> Tensor {
    x.abs().powi(p)
}

fn root(x: &Tensor, p: i64) -> Outcome<Tensor> {
    Ok(match p {
        1 => x.clone(),
        2 => x.sqrt(),
        p if p > 0 => x.pow(1.0 / p as f64),
        p => return invalid(format!("p {p}; expected a positive number")),
    })
}

fn global(c: &Call<'_, '_, '_>) -> Outcome<(Tensor, Axes)> {
    let x = c.tensor(0)?;
    if x.rank() < 3 {
        return invalid(format!("rank {}; expected at least 3", x.rank()));
    }
    let axes = keep((2..x.rank() as i64).collect::<Vec<_>>());
    Ok((x, axes))
}

pub(super) fn global_average_pool(c: &mut Call<'_, '_, '_>) -> Answer {
    let (x, axes) = global(c)?;
    one(x.mean(axes))
}

pub(super) fn global_max_pool(c: &mut Call<'_, '_, '_>) -> Answer {
    let (x, axes) = global(c)?;
    one(x.max(axes))
}

pub(super) fn global_lp_pool(c: &mut Call<'_, '_, '_>) -> Answer {
    let (x, axes) = global(c)?;
    let p = c.int("p", 2)?;
    let dtype = x.dtype();
    one(root(&power(&x.cast(dtype.accumulator()), p).sum(axes), p)?.cast(dtype))
}
