//! Operators of the domain `com.microsoft` on batches without their padding: the elements of all sequences one behind the other, as ONNX Runtime's tool for
//! models of text packs them. `token_offset`, `[batch, length]`, says where each was: first those that are kept, and then the padding.

use tlc_ir::DType;

use super::fused_attention::{Slots, multi_head, of_projected};
use super::sorting::outside_of_bodies;
use crate::call::{Answer, Call, one};
use crate::refusal::{Outcome, invalid};
use crate::value::Value;
use tlc_record::Tensor;
use tlc_record::dim::Dim;

/// What is no padding of `[batch, length, width]`, by how many elements each sequence has; where all were; how many come before each sequence; and how
/// many the longest has.
pub(super) fn remove(c: &mut Call<'_, '_, '_>) -> Answer {
    outside_of_bodies(c)?;
    let (x, lengths) = (c.tensor(0)?, c.tensor(1)?);
    if x.rank() != 3 || lengths.rank() != 1 {
        return invalid(format!(
            "an input of rank {} with lengths of rank {}; expected 3 and 1",
            x.rank(),
            lengths.rank()
        ));
    }
    let graph = c.graph();
    let (batch, length) = (x.dim(0), x.dim(1));
    let place = graph.iota([Dim::from(1), length.clone()], 1, lengths.dtype());
    let there = place.lt(lengths.reshape([batch.clone(), 1.into()]));
    let there = there.reshape(&batch * &length);
    let kept = there.nonzero().select_index(0, 0);
    let packed = x.reshape([&batch * &length, x.dim(2)]).take_from_start(&kept, 0);
    // Both parts stay in order.
    let offsets = there.logical_not().cast(DType::I32).argsort(0, false);
    let none = graph.zeros([1], lengths.dtype());
    let before = tlc_record::concat(&[&none, &lengths.cumsum(0)], 0);
    let longest = lengths.max(tlc_record::keep(0));
    Ok(vec![
        packed.into(),
        offsets.cast(DType::I32).reshape([batch, length]).into(),
        before.cast(DType::I32).into(),
        Value::from(longest.cast(DType::I32)),
    ])
}

/// Packed elements `[count, ..]` where they were, `[batch, length, ..]`, with zeros for the padding.
fn restored(x: &Tensor, offsets: &Tensor) -> Outcome<Tensor> {
    if x.rank() < 2 || offsets.rank() != 2 {
        return invalid(format!(
            "packed elements of rank {} with offsets of rank {}; expected at least 2, and 2",
            x.rank(),
            offsets.rank()
        ));
    }
    let count = super::attention::number(x, &x.dim(0))?;
    // Which of the packed elements each place has.
    let from = offsets.reshape(offsets.elements()).argsort(0, false).cast(DType::I64);
    let mut column = vec![Dim::from(1); x.rank()];
    column[0] = from.dim(0);
    let is_kept = from.lt(&count).reshape(column);
    let taken = x.take_from_start(&from.minimum(count - 1).maximum(0), 0);
    let mut shape = offsets.shape();
    shape.extend(x.shape()[1..].iter().cloned());
    Ok(is_kept.select(taken, 0.0).reshape(shape))
}

pub(super) fn restore(c: &mut Call<'_, '_, '_>) -> Answer {
    one(restored(&c.tensor(0)?, &c.tensor(1)?)?)
}

/// How many elements each sequence has, from how many come before each.
fn lengths(before: &Tensor) -> Outcome<Tensor> {
    if before.rank() != 1 {
        return invalid(format!("cumulated lengths of rank {}; expected 1", before.rank()));
    }
    let batch = before.dim(0) - 1;
    Ok(before.narrow(0, 1, batch.clone()) - before.narrow(0, 0, batch))
}

/// `[batch, length, width]` packed as `x` is.
fn packed(y: &Tensor, x: &Tensor, offsets: &Tensor) -> Tensor {
    let flat = y.reshape([y.dim(0) * y.dim(1), y.dim(2)]);
    let kept = offsets.reshape(offsets.elements()).narrow(0, 0, x.dim(0));
    flat.take_from_start(&kept, 0)
}

/// Attention with its projections, over packed sequences.
pub(super) fn attention(c: &mut Call<'_, '_, '_>) -> Answer {
    let (x, w, offsets) = (c.tensor(0)?, c.tensor(1)?, c.tensor(3)?);
    if x.rank() != 2 || w.rank() != 2 {
        return invalid(format!(
            "an input of rank {} with weights of rank {}; expected 2 and 2",
            x.rank(),
            w.rank()
        ));
    }
    let all = restored(&(x.matmul(&w) + c.tensor(2)?), &offsets)?;
    let columns = w.dim(1);
    let inputs = vec![Some(lengths(&c.tensor(4)?)?.into()), c.value(5).cloned()];
    let slots = Slots {
        padding: 0,
        bias: Some(1),
        past: 2,
    };
    let y = c.with_inputs(inputs, |c| of_projected(c, &all, columns, &slots))?;
    one(packed(&y, &x, &offsets))
}

/// Attention of queries, keys and values that are projected before it, over packed sequences.
pub(super) fn multi_head_attention(c: &mut Call<'_, '_, '_>) -> Answer {
    let (x, offsets) = (c.tensor(0)?, c.tensor(4)?);
    let apart = |at: usize| -> Outcome<Option<Value>> {
        let t = c.optional(at)?.map(|t| restored(&t, &offsets)).transpose()?;
        Ok(t.map(Value::from))
    };
    let mut inputs = vec![apart(0)?, apart(1)?, apart(2)?, c.value(3).cloned()];
    inputs.extend([Some(lengths(&c.tensor(5)?)?.into()), c.value(6).cloned()]);
    match &c.all_with_inputs(inputs, multi_head)?[..] {
        [y, ..] => one(packed(&y.tensor(&c.graph())?, &x, &offsets)),
        [] => invalid("no result; expected one"),
    }
}
