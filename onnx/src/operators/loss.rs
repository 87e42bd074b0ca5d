//! The two losses.

use tlc_ir::DType;

use crate::call::{Answer, Call, one};
use crate::refusal::{Outcome, invalid};
use tlc_record::Tensor;

/// The negative log likelihood of each target, reduced as the node says.
fn likelihood(c: &Call<'_, '_, '_>, logs: &Tensor) -> Outcome<Tensor> {
    let target = c.tensor(1)?;
    if logs.rank() < 2 || target.rank() + 1 != logs.rank() || !target.dtype().is_int() {
        return invalid(format!(
            "scores of rank {} with classes of {} and rank {}; expected [N, C, ..] with integers of [N, ..]",
            logs.rank(),
            target.dtype(),
            target.rank()
        ));
    }
    let target = target.cast(DType::I64);
    let wide = logs.dtype().accumulator();
    let own = |axis: i64| target.graph().iota(target.shape(), axis, DType::I64);
    let mut places: Vec<Tensor> = (0..target.rank() as i64).map(own).collect();
    places.insert(1, target.clone());
    let axes: Vec<i64> = (0..logs.rank() as i64).collect();
    // A class out of range, which is only allowed where it is ignored, reads zero.
    let picked = -logs.cast(wide).gather(&axes, &places.iter().collect::<Vec<_>>());
    let ignored = c.maybe_int("ignore_index")?;
    let mut weight = c.optional(2)?.map(|w| w.cast(wide).take_from_start(&target, 0));
    if let Some(ignored) = ignored {
        let kept = target.ne(ignored);
        let ones = weight.unwrap_or_else(|| picked.ones_like());
        weight = Some(kept.select(ones, 0.0));
    }
    let loss = match &weight {
        Some(w) => &picked * w,
        None => picked,
    };
    Ok(match c.text("reduction", "mean")?.as_str() {
        "none" => loss,
        "sum" => loss.sum(..),
        "mean" => match weight {
            Some(w) => loss.sum(..) / w.sum(..),
            None => loss.mean(..),
        },
        other => return invalid(format!("reduction `{other}`; expected none, sum or mean")),
    })
}

pub(super) fn negative_log_likelihood(c: &mut Call<'_, '_, '_>) -> Answer {
    let logs = c.tensor(0)?;
    one(likelihood(c, &logs)?.cast(logs.dtype()))
}

pub(super) fn softmax_cross_entropy(c: &mut Call<'_, '_, '_>) -> Answer {
    let scores = c.tensor(0)?;
    if scores.rank() < 2 {
        return invalid(format!("rank {}; expected at least 2", scores.rank()));
    }
    let logs = scores.log_softmax(1);
    let loss = likelihood(c, &logs)?;
    Ok(vec![loss.cast(scores.dtype()).into(), logs.into()])
}
