//! Operators of the domain `com.microsoft` that ONNX Runtime's optimizer writes into models that make images from noise.

use super::channels_last::{first, last};
use super::normalization::{group_standardized, per_channel};
use crate::call::{Answer, Call, one};
use crate::refusal::{Outcome, invalid};
use crate::value::Value;
use tlc_record::Tensor;
use tlc_record::dim::Dim;

/// The norm of groups of channels, with its activation; channels lie behind the space unless the node says otherwise.
fn group_normed(c: &Call<'_, '_, '_>, x: &Tensor) -> Outcome<Tensor> {
    let behind = c.flag("channels_last", true)?;
    let apart = if behind { first(x)? } else { x.clone() };
    let wide = x.dtype().accumulator();
    let y = group_standardized(&apart, c.int("groups", 0)?, c.float("epsilon", 1e-5)?)?;
    let along = |at: usize| per_channel(&c.tensor(at)?.cast(wide), x.rank());
    let y = y.reshape(apart.shape()) * along(1)? + along(2)?;
    let y = match c.int("activation", 0)? {
        0 => y,
        1 => y.silu(),
        n => return invalid(format!("activation {n}; expected 0 or 1")),
    };
    let y = y.cast(x.dtype());
    Ok(if behind { last(&y) } else { y })
}

pub(super) fn group_norm(c: &mut Call<'_, '_, '_>) -> Answer {
    let x = c.tensor(0)?;
    one(group_normed(c, &x)?)
}

/// The norm of a sum, and that sum.
pub(super) fn skip_group_norm(c: &mut Call<'_, '_, '_>) -> Answer {
    let (x, skip) = (c.tensor(0)?, c.tensor(3)?);
    let behind = c.flag("channels_last", true)?;
    let rank = x.rank();
    if rank < 3 {
        return invalid(format!("rank {rank}; expected at least 3"));
    }
    // One number for each channel, or for each element.
    let channels = if behind { rank - 1 } else { 1 };
    let skip = match skip.rank() {
        2 => {
            let mut shape = vec![Dim::from(1); rank];
            (shape[0], shape[channels]) = (skip.dim(0), skip.dim(1));
            skip.reshape(shape)
        }
        n if n == rank => skip,
        n => return invalid(format!("a skip of rank {n}; expected 2 or {rank}")),
    };
    let wide = x.dtype().accumulator();
    let mut sum = x.cast(wide) + skip.cast(wide);
    if let Some(bias) = c.optional(4)? {
        if bias.rank() != 1 {
            return invalid(format!("a bias of rank {}; expected 1", bias.rank()));
        }
        let mut shape = vec![Dim::from(1); rank];
        shape[channels] = bias.dim(0);
        sum += bias.cast(wide).reshape(shape);
    }
    let sum = sum.cast(x.dtype());
    Ok(vec![group_normed(c, &sum)?.into(), Value::from(sum)])
}

/// An input with a bias, and what went around what made it.
pub(super) fn bias_add(c: &mut Call<'_, '_, '_>) -> Answer {
    one(c.tensor(0)? + c.tensor(1)? + c.tensor(2)?)
}

/// The first half of an input with a bias, by the GELU of the other.
pub(super) fn bias_split_gelu(c: &mut Call<'_, '_, '_>) -> Answer {
    let x = c.tensor(0)?;
    let Some(width) = x.shape().last().and_then(Dim::as_const).filter(|n| n % 2 == 0) else {
        return invalid(format!(
            "{}; expected an even number of elements in a row",
            x.type_text()
        ));
    };
    let x = x + c.tensor(1)?;
    let half = |from: i64| x.narrow(-1, from, width / 2);
    one(half(0) * half(width / 2).gelu())
}
