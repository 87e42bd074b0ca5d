//! Pooling over windows of space.

use tlc_ir::{DType, IndexExpr, Scalar};

use super::convolution::{Windows, positive};
use crate::call::{Answer, Call, one};
use crate::refusal::{OperatorRefusal, Outcome, invalid, unsupported};
use crate::value::Value;
use tlc_formats::ErrorKind;
use tlc_record::Tensor;
use tlc_record::dim::{Axes, Dim};
use tlc_record::keep;
use tlc_record::ops::conv::Conv;

struct Pooling {
    size: Vec<usize>,
    windows: Windows,
    /// Padding behind that only `ceil_mode` asks for; never counted.
    over: Vec<Dim>,
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
        let mut windows = Windows::of(c, x, &size)?;
        let mut over = vec![Dim::from(0); size.len()];
        if c.flag("ceil_mode", false)? && !c.text("auto_pad", "NOTSET")?.starts_with("SAME") {
            for (i, over) in over.iter_mut().enumerate() {
                let extent = x.dim(2 + i as i64);
                let stride = windows.stride[i] as i64;
                let reach = windows.dilation[i] * (size[i] - 1) + 1;
                let started = &extent + &windows.before[i];
                let padded = &started + &windows.behind[i];
                // The last window's number; one that would start in the padding behind is left out.
                let last = (&padded - reach).div_ceil(stride);
                let inside = (started - 1) / stride;
                let last = last.clone().min(inside.max(last - 1));
                let beyond = last * stride + reach - padded;
                // Padding of which a window that is left out would be made.
                let unused = (&beyond * -1).max(0).min(windows.behind[i].clone());
                let simplified = |d: Dim| Dim::from(x.graph().simplify(d.expr()));
                windows.behind[i] = simplified(&windows.behind[i] - &unused);
                *over = simplified(beyond.max(0));
            }
        }
        Ok(Pooling { size, windows, over })
    }

    /// The windows of the axes from `first` on, with or without what `ceil_mode` adds.
    fn windows(&self, x: &Tensor, first: usize, fill: Scalar) -> Outcome<Tensor> {
        let size: Vec<IndexExpr> = self.size.iter().map(|&s| s.into()).collect();
        let w = &self.windows;
        let behind: Vec<Dim> = w.behind.iter().zip(&self.over).map(|(a, b)| a + b).collect();
        x.windows(first, &size, (&w.stride, &w.dilation), (&w.before, &behind), fill)
            .map_err(|(message, _)| OperatorRefusal {
                kind: ErrorKind::Invalid,
                message,
            })
    }

    /// The result's shape where no window fits, so that it is empty. Where the first window is so much larger that not even
    /// none is the number of windows, it is left to be refused, as ONNX Runtime does.
    fn none(&self, x: &Tensor) -> Option<Vec<Dim>> {
        let w = &self.windows;
        let mut shape = x.shape()[..2].to_vec();
        let mut none = false;
        for (i, &size) in self.size.iter().enumerate() {
            let padded = x.dim(2 + i as i64) + &w.before[i] + &w.behind[i] + &self.over[i];
            let (stride, reach) = (w.stride[i] as i64, w.dilation[i] * (size - 1) + 1);
            let room = padded - reach;
            let count = (&room / stride + 1).max(0);
            if room.as_const().is_some_and(|room| room < 0) {
                // The quotient is rounded toward zero there: with one that is less than a stride, ONNX Runtime has a part of a window.
                if room
                    .as_const()
                    .is_some_and(|room| room > -stride || room <= -2 * stride)
                {
                    return None;
                }
                none = true;
            }
            shape.push(count);
        }
        none.then_some(shape)
    }

    /// Whether a window may have padding.
    fn pads(&self) -> bool {
        let sides = self.windows.before.iter().chain(&self.windows.behind).chain(&self.over);
        sides.into_iter().any(|d| d.as_const() != Some(0))
    }

    fn axes(&self) -> Axes {
        (1..=self.size.len() as i64).map(|i| -i).collect::<Vec<_>>().into()
    }
}

pub(super) fn max_pool(c: &mut Call<'_, '_, '_>) -> Answer {
    let x = c.tensor(0)?;
    let pooling = Pooling::of(c, &x)?;
    let columns = match c.int("storage_order", 0)? {
        0 => false,
        1 => true,
        n => return invalid(format!("storage_order {n}; expected 0 or 1")),
    };
    if let Some(shape) = pooling.none(&x) {
        let empty = |dtype: DType| Value::from(c.graph().zeros(shape.clone(), dtype));
        let mut results = vec![empty(x.dtype()), empty(DType::I64)];
        results.truncate(c.outputs.max(1));
        return Ok(results);
    }
    let windows = pooling.windows(&x, 2, x.dtype().lowest())?;
    let space = &x.shape()[2..];
    let inside = |graph: &tlc_record::Graph| {
        let all = graph.full(space.to_vec(), true, DType::Bool);
        // What fits around the tensor fits around this.
        pooling.windows(&all, 0, DType::Bool.zero()).unwrap_or(all)
    };
    let max = windows.first_max(
        pooling.size.len(),
        match pooling.pads() {
            true => Some(&inside),
            false => None,
        },
    );
    if c.outputs < 2 {
        return one(max);
    }
    let cut = |t: &Tensor, fill: Scalar| pooling.windows(t, 2, fill).map_err(|refusal| (refusal.message, None));
    let places = x.places_of(&windows, &max, &pooling.axes(), cut).map_err(refused)?;
    let places = if columns { column_major(&x, places)? } else { places };
    Ok(vec![max.into(), places.into()])
}

fn refused((message, _): (String, Option<String>)) -> OperatorRefusal {
    OperatorRefusal {
        kind: ErrorKind::Invalid,
        message,
    }
}

/// Places counted with the first axis of space running fastest, instead of the last.
fn column_major(x: &Tensor, places: Tensor) -> Outcome<Tensor> {
    let number = |d: &Dim| x.graph().dim_value(d, DType::I64).map_err(refused);
    let space = &x.shape()[2..];
    let all = number(&space.iter().fold(Dim::from(1), |n, d| n * d))?;
    let mut left = places.remainder(&all);
    let mut sum = places - &left;
    for (i, extent) in space.iter().enumerate().rev() {
        let extent = number(extent)?;
        let slower = number(&space[..i].iter().fold(Dim::from(1), |n, d| n * d))?;
        sum += left.remainder(&extent) * slower;
        left = left.floor_divide(&extent);
    }
    Ok(sum)
}

pub(super) fn max_unpool(c: &mut Call<'_, '_, '_>) -> Answer {
    let (x, places) = (c.tensor(0)?, c.tensor(1)?);
    let n = x.rank().saturating_sub(2);
    let Some(size) = c.ints("kernel_shape")?.filter(|k| k.len() == n && n > 0) else {
        return invalid(format!("no kernel_shape for {n} axes of space; expected one"));
    };
    let strides = positive(c.ints("strides")?, n, "strides", 1)?;
    let pads = positive(c.ints("pads")?, 2 * n, "pads", 0)?;
    if size.iter().any(|v| !(1..1 << 31).contains(v)) || !places.dtype().is_int() {
        return invalid(format!(
            "kernel_shape {size:?} with places of {}; expected positive numbers and integers",
            places.dtype()
        ));
    }
    let mut shape = x.shape();
    for (i, d) in shape[2..].iter_mut().enumerate() {
        *d = (&*d - 1) * strides[i] + size[i] - (pads[i] + pads[n + i]);
        if d.as_const().is_some_and(|v| v < 0) {
            return invalid(format!("pads {pads:?} that take more than there is; expected fewer"));
        }
    }
    let y = x.max_unpool(&places, shape.clone());
    // What a given shape has beyond is zero.
    let Some(wanted) = c.input_dims(2)? else {
        return one(y);
    };
    if wanted.len() != shape.len() {
        return invalid(format!(
            "output_shape of {} axes; expected {}",
            wanted.len(),
            shape.len()
        ));
    }
    let mut each = vec![];
    for (own, wanted) in shape.iter().zip(&wanted) {
        let more = wanted - own;
        if more.as_const().is_some_and(|v| v < 0) {
            return invalid("an output_shape smaller than what the pooling took; expected at least that");
        }
        each.push((Dim::from(0), more));
    }
    one(y.pad(&each, y.dtype().zero()))
}

pub(super) fn col2im(c: &mut Call<'_, '_, '_>) -> Answer {
    let x = c.tensor(0)?;
    let (Some(image), Some(block)) = (c.input_dims(1)?, c.input_ints(2)?) else {
        return invalid("no image_shape or no block_shape; expected both");
    };
    let n = block.len();
    if x.rank() == 3 && x.dim(1).as_const().is_none() {
        return unsupported("channels of symbolic extent; expected a number");
    }
    if n == 0 || image.len() != n || block.iter().any(|b| !(1..1 << 20).contains(b)) {
        return invalid(format!(
            "block_shape {block:?} for an image of {} axes; expected as many positive numbers",
            image.len()
        ));
    }
    if let Some(d) = image
        .iter()
        .filter_map(Dim::as_const)
        .find(|d| !(0..1 << 31).contains(d))
    {
        return invalid(format!("an image extent of {d}; expected 0 or more"));
    }
    let pads = positive(c.ints("pads")?, 2 * n, "pads", 0)?;
    let options = Conv::new()
        .stride(positive(c.ints("strides")?, n, "strides", 1)?)
        .dilation(positive(c.ints("dilations")?, n, "dilations", 1)?)
        .padding_sides(&pads[..n], &pads[n..]);
    let block: Vec<usize> = block.into_iter().map(|b| b as usize).collect();
    one(x.fold(image, &block, &options))
}

pub(super) fn average_pool(c: &mut Call<'_, '_, '_>) -> Answer {
    averaged(c, false)
}

/// Means of windows. With `whole` one that `ceil_mode` adds, and that counts padding, counts what lies beyond the padding too.
pub(super) fn averaged(c: &mut Call<'_, '_, '_>, whole: bool) -> Answer {
    let x = c.tensor(0)?;
    let dtype = x.dtype();
    let pooling = Pooling::of(c, &x)?;
    if let Some(shape) = pooling.none(&x) {
        return one(c.graph().zeros(shape, dtype));
    }
    let wide = x.cast(dtype.accumulator());
    let sums = pooling.windows(&wide, 2, wide.dtype().zero())?.sum(pooling.axes());
    let all = pooling.size.iter().fold(1f64, |n, &s| n * s as f64);
    let include_pad = c.flag("count_include_pad", false)?;
    let none = |pads: &[Dim]| pads.iter().all(|d| d.as_const() == Some(0));
    let padded = !none(&pooling.windows.before) || !none(&pooling.windows.behind);
    if (include_pad && whole) || (none(&pooling.over) && (include_pad || !padded)) {
        return one((sums / all).cast(dtype));
    }
    // How many elements of each window count: those of the tensor, or of its padding too. A float counts so far exactly.
    let counter = if all <= (1 << 24) as f64 {
        dtype.accumulator()
    } else {
        DType::I64
    };
    let space = &x.shape()[2..];
    let mut ones = x.graph().full(space.to_vec(), 1, counter);
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
    if include_pad {
        let (before, behind) = (counted.windows.before.iter(), counted.windows.behind.iter());
        let pads: Vec<(Dim, Dim)> = before.cloned().zip(behind.cloned()).collect();
        ones = ones.pad(&pads, 1);
        counted.windows.before.fill(0.into());
        counted.windows.behind.fill(0.into());
    }
    let counts = counted.windows(&ones, 0, counter.zero())?.sum(counted.axes());
    one((sums / counts.cast(dtype.accumulator())).cast(dtype))
}

pub(super) fn lp_pool(c: &mut Call<'_, '_, '_>) -> Answer {
    let x = c.tensor(0)?;
    let dtype = x.dtype();
    let pooling = Pooling::of(c, &x)?;
    if let Some(shape) = pooling.none(&x) {
        return one(c.graph().zeros(shape, dtype));
    }
    let p = c.int("p", 2)?;
    let powers = power(&x.cast(dtype.accumulator()), p);
    let sums = pooling.windows(&powers, 2, powers.dtype().zero())?.sum(pooling.axes());
    one(root(&sums, p)?.cast(dtype))
}

fn power(x: &Tensor, p: i64) -> Tensor {
    x.abs().powi(p)
}

/// The root of a sum of powers. Its derivative is infinite at 0, where that of a norm is 0: there it is taken of another number.
fn root(x: &Tensor, p: i64) -> Outcome<Tensor> {
    let zero = x.eq(0);
    let some = zero.select(1, x);
    Ok(match p {
        1 => x.clone(),
        2 => zero.select(x, some.sqrt()),
        p if p > 0 => zero.select(x, some.pow(1.0 / p as f64)),
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
    let (x, _) = global(c)?;
    let space = x.rank() - 2;
    one((0..space).fold(x.first_max(space, None), |y, _| y.unsqueeze(-1)))
}

pub(super) fn global_lp_pool(c: &mut Call<'_, '_, '_>) -> Answer {
    let (x, axes) = global(c)?;
    let p = c.int("p", 2)?;
    let dtype = x.dtype();
    one(root(&power(&x.cast(dtype.accumulator()), p).sum(axes), p)?.cast(dtype))
}
