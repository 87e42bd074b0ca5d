//! Normalizations.

use tlc_ir::DType;

use crate::call::{Answer, Call, one};
use crate::refusal::{Outcome, invalid, unsupported};
use crate::value::Value;
use tlc_record::Tensor;
use tlc_record::dim::Dim;
use tlc_record::keep;

/// A vector along axis 1.
pub(super) fn per_channel(v: &Tensor, rank: usize) -> Outcome<Tensor> {
    if v.rank() != 1 || rank < 2 {
        return invalid(format!(
            "a parameter of rank {} for a tensor of rank {rank}; expected a vector along axis 1",
            v.rank()
        ));
    }
    let mut shape = vec![Dim::from(1); rank];
    shape[1] = v.dim(0);
    Ok(v.reshape(shape))
}

pub(super) fn batch(c: &mut Call<'_, '_, '_>) -> Answer {
    let x = c.tensor(0)?;
    if x.rank() < 2 {
        return invalid(format!("rank {}; expected at least 2", x.rank()));
    }
    if c.version < 9 && c.int("spatial", 1)? == 0 {
        return unsupported("spatial=0; expected statistics per channel");
    }
    if c.version < 7 && !c.flag("is_test", false)? {
        return unsupported("training before opset 7; expected is_test=1");
    }
    let eps = c.float("epsilon", 1e-5)?;
    let training = c.version >= 14 && c.flag("training_mode", false)?;
    if !training {
        c.at_most_outputs(1)?;
    }
    let (dtype, wide, rank) = (x.dtype(), x.dtype().accumulator(), x.rank());
    let column = |i: usize| -> Outcome<Tensor> { per_channel(&c.tensor(i)?.cast(wide), rank) };
    let x = x.cast(wide);
    let (mean, var, results) = match training {
        false => (column(3)?, column(4)?, vec![]),
        true => {
            let axes: Vec<i64> = (0..rank as i64).filter(|&a| a != 1).collect();
            let (mean, var) = (x.mean(keep(axes.clone())), x.var(keep(axes), 0));
            let momentum = c.float("momentum", 0.9)?;
            let running = |old: usize, new: &Tensor| -> Outcome<Value> {
                let old = c.tensor(old)?;
                let new = new.reshape(old.shape());
                let kept = old.cast(wide) * momentum + new * (1.0 - momentum);
                Ok(kept.cast(old.dtype()).into())
            };
            let results = vec![running(3, &mean)?, running(4, &var)?];
            (mean, var, results)
        }
    };
    let y = (x - mean) * (var + eps).rsqrt() * column(1)? + column(2)?;
    let mut all = vec![Value::from(y.cast(dtype))];
    all.extend(results);
    Ok(all)
}

pub(super) fn instance(c: &mut Call<'_, '_, '_>) -> Answer {
    let x = c.tensor(0)?;
    let eps = c.float("epsilon", 1e-5)?;
    if x.rank() < 3 {
        return invalid(format!("rank {}; expected at least 3", x.rank()));
    }
    let (dtype, wide) = (x.dtype(), x.dtype().accumulator());
    let y = x.cast(wide).standardize((2..x.rank() as i64).collect::<Vec<_>>(), eps);
    let (scale, bias) = (
        per_channel(&c.tensor(1)?, x.rank())?,
        per_channel(&c.tensor(2)?, x.rank())?,
    );
    one((y * scale.cast(wide) + bias.cast(wide)).cast(dtype))
}

/// The axes from `axis` on.
fn tail(c: &Call<'_, '_, '_>, rank: usize) -> Outcome<Vec<i64>> {
    let axis = c.axis(c.int("axis", -1)?, rank)?;
    Ok((axis as i64..rank as i64).collect())
}

pub(super) fn layer(c: &mut Call<'_, '_, '_>) -> Answer {
    let x = c.tensor(0)?;
    let axes = tail(c, x.rank())?;
    let eps = c.float("epsilon", 1e-5)?;
    let (dtype, wide) = (x.dtype(), x.dtype().accumulator());
    let x = x.cast(wide);
    let mut y = x.standardize(axes.clone(), eps).cast(dtype) * c.tensor(1)?;
    if let Some(bias) = c.optional(2)? {
        y += bias;
    }
    if c.outputs < 2 {
        return one(y);
    }
    let mean = x.mean(keep(axes.clone()));
    let inverse = ((&x - &mean).square().mean(keep(axes)) + eps).rsqrt();
    // Statistics are of 32 bits whatever they are of: the schema has no f64 for them.
    let statistic = |t: Tensor| match wide {
        DType::F64 => t.cast(DType::F32),
        _ => t,
    };
    Ok(vec![y.into(), statistic(mean).into(), statistic(inverse).into()])
}

pub(super) fn rms(c: &mut Call<'_, '_, '_>) -> Answer {
    let x = c.tensor(0)?;
    let axes = tail(c, x.rank())?;
    let eps = c.float("epsilon", 1e-5)?;
    let (dtype, wide) = (x.dtype(), x.dtype().accumulator());
    let x = x.cast(wide);
    let y = &x * ((&x * &x).mean(keep(axes)) + eps).rsqrt();
    let scale = c.tensor(1)?;
    // Unlike those of other norms it may have another type than what is normalized; the result has its type.
    one((y.cast(dtype) * &scale).cast(scale.dtype()))
}

/// Each of `groups` groups of channels less its mean over its deviation, in the accumulator's type and with the groups apart, `[batch, groups, ..]`.
pub(super) fn group_standardized(x: &Tensor, groups: i64, eps: f64) -> Outcome<Tensor> {
    if x.rank() < 3 {
        return invalid(format!("rank {}; expected at least 3", x.rank()));
    }
    // Where they are a symbol, a guard says that the groups divide them.
    let channels = x.dim(1);
    if groups < 1 || channels.as_const().is_some_and(|n| n % groups != 0) {
        return invalid(format!(
            "channels that {groups} groups do not divide; expected a divisor"
        ));
    }
    let mut shape = x.shape();
    shape[1] = channels / groups;
    shape.insert(1, groups.into());
    let axes: Vec<i64> = (2..=x.rank() as i64).collect();
    let wide = x.cast(x.dtype().accumulator());
    Ok(wide.reshape(shape).standardize(axes, eps))
}

pub(super) fn group(c: &mut Call<'_, '_, '_>) -> Answer {
    let (x, scale, bias) = (c.tensor(0)?, c.tensor(1)?, c.tensor(2)?);
    let eps = c.float("epsilon", 1e-5)?;
    let (dtype, wide) = (x.dtype(), x.dtype().accumulator());
    let y = group_standardized(&x, c.int("num_groups", 0)?, eps)?;
    let fit = |v: &Tensor, like: &Tensor| per_channel(&v.cast(wide), like.rank());
    // Scale and bias are one a group before opset 21, one a channel from then on.
    one(match c.version < 21 {
        true => (&y * fit(&scale, &y)? + fit(&bias, &y)?).reshape(x.shape()).cast(dtype),
        false => (y.reshape(x.shape()) * fit(&scale, &x)? + fit(&bias, &x)?).cast(dtype),
    })
}

pub(super) fn lp(c: &mut Call<'_, '_, '_>) -> Answer {
    let x = c.tensor(0)?;
    let axis = c.axis(c.int("axis", -1)?, x.rank())? as i64;
    let (dtype, wide) = (x.dtype(), x.dtype().accumulator());
    let x = x.cast(wide);
    let norm = match c.int("p", 2)? {
        1 => x.abs().sum(keep(axis)),
        2 => x.norm(keep(axis)),
        p => return invalid(format!("p {p}; expected 1 or 2")),
    };
    // A vector of zeros stays one, and its derivative is 0: it is not divided by 0 where nobody looks either.
    let zero = norm.eq(0.0);
    one(zero.select(0.0, x / zero.select(1.0, &norm)).cast(dtype))
}

pub(super) fn mean_variance(c: &mut Call<'_, '_, '_>) -> Answer {
    let x = c.tensor(0)?;
    let axes = c.ints("axes")?.unwrap_or_else(|| vec![0, 2, 3]);
    let (dtype, wide) = (x.dtype(), x.dtype().accumulator());
    let x = x.cast(wide);
    let centered = &x - x.mean(keep(axes.clone()));
    let deviation = (&centered * &centered).mean(keep(axes)).sqrt();
    one((centered / (deviation + 1e-9)).cast(dtype))
}

/// Local response normalization over neighbouring channels.
pub(super) fn local_response(c: &mut Call<'_, '_, '_>) -> Answer {
    let x = c.tensor(0)?;
    let size = c.int("size", 0)?;
    if x.rank() < 2 || !(1..1 << 31).contains(&size) {
        return invalid(format!(
            "size {size} with rank {}; expected a positive size and rank 2 or more",
            x.rank()
        ));
    }
    if x.dim(1).as_const() == Some(0) {
        // There is nothing to normalize, nor a neighbour.
        return one(x);
    }
    let (alpha, beta, bias) = (c.float("alpha", 1e-4)?, c.float("beta", 0.75)?, c.float("bias", 1.0)?);
    let mut each = vec![(0, 0); x.rank()];
    each[1] = ((size - 1) / 2, size / 2);
    let (dtype, x) = (x.dtype(), x.cast(x.dtype().accumulator()));
    let squares = (&x * &x).pad(&each, x.dtype().zero()).window(1, size, 1, 1).sum(-1);
    one((&x / (squares * (alpha / size as f64) + bias).pow(beta)).cast(dtype))
}
