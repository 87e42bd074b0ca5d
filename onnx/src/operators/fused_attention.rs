//! Attention of the domain `com.microsoft`, as ONNX Runtime's optimizers write it in place of a model's products and softmax.

use tlc_ir::DType;

use super::attention::{apart, joined, number, shares, weighted};
use super::grouped_attention::placed;
use crate::call::{Answer, Call};
use crate::refusal::{Outcome, invalid, unsupported};
use crate::value::Value;
use tlc_record::Tensor;
use tlc_record::dim::Dim;

/// Where operands of attention are.
pub(super) struct Slots {
    /// Keys that are no padding.
    pub(super) padding: usize,
    /// What is added to the scores.
    pub(super) bias: Option<usize>,
    /// Keys, and values, that were there before.
    pub(super) past: usize,
}

/// How many keys come before those of the queries' time.
enum Past {
    /// All that there are but for those.
    Length(Dim),
    /// Of a buffer with room for more, `[1, 1, 1, 1]`.
    Within(Tensor),
}

/// What attention makes of queries, keys and values.
struct Attended {
    /// `[batch, length, heads * size]`.
    y: Tensor,
    /// The scores with all that is added to them.
    scores: Tensor,
}

/// The attribute that is a number of heads, which must be positive.
pub(super) fn heads(c: &Call<'_, '_, '_>, name: &str) -> Outcome<i64> {
    match c.int(name, 0)? {
        n @ 1..=0x7fff_ffff => Ok(n),
        n => invalid(format!("{name} is {n}; expected it from 1 to {}", i32::MAX)),
    }
}

/// Which keys are there, as it broadcasts to `[batch, heads, queries, keys]`. A mask is lengths `[batch]`; ends and then starts, `[2 * batch]`; or a number that is
/// positive for a key that is there, `[batch, keys]` or `[batch, queries, keys]`.
fn there(mask: &Tensor, scores: &Tensor, batch: &Dim) -> Outcome<Tensor> {
    let keys = scores.dim(3);
    let mask = mask.cast(DType::I64);
    match mask.rank() {
        1 => {
            let places = scores
                .graph()
                .iota([Dim::from(1), 1.into(), 1.into(), keys], 3, DType::I64);
            let shape = [batch.clone(), 1.into(), 1.into(), 1.into()];
            let twice = batch * 2;
            match mask.dim(0) {
                n if n == *batch => Ok(places.lt(mask.reshape(shape))),
                n if n == twice => {
                    let part = |from: Dim| mask.narrow(0, from, batch.clone()).reshape(shape.clone());
                    let behind = places.ge(part(batch.clone()));
                    Ok(places.lt(part(0.into())).logical_and(behind))
                }
                _ => unsupported("a mask of another length than the batch; expected one or two numbers for each of it"),
            }
        }
        2 => Ok(mask.gt(0).unsqueeze(1).unsqueeze(1)),
        3 => Ok(mask.gt(0).unsqueeze(1)),
        n => unsupported(format!("a mask of rank {n}; expected 1 to 3")),
    }
}

/// Queries, keys and values `[batch, heads, length, size]`.
fn attended(
    c: &Call<'_, '_, '_>,
    (q, k, v): (&Tensor, &Tensor, &Tensor),
    past: &Past,
    slots: &Slots,
) -> Outcome<Attended> {
    let dtype = q.dtype();
    let Some(size) = q.dim(3).as_const().filter(|&n| n > 0) else {
        return unsupported("heads of symbolic or no size; expected a number");
    };
    // 0 stands for the default, as in ONNX Runtime.
    let scale = c.maybe_float("scale")?.filter(|&s| s != 0.0);
    let scale = scale.unwrap_or(1.0 / (size as f64).sqrt());
    let mut scores = q.matmul_as(&k.swap_axes(2, 3), dtype.accumulator()) * scale;
    let wide = scores.dtype();
    if scores.is_poisoned() {
        let y = scores.clone();
        return Ok(Attended { y, scores });
    }
    let mut added = None;
    // A mask of one key for all of them moves all scores by the same, which ONNX Runtime leaves out.
    let alike = |mask: &Tensor| mask.rank() == 2 && mask.dim(1).as_const() == Some(1);
    if let Some(mask) = c.optional(slots.padding)?.filter(|mask| !alike(mask)) {
        let hidden = c.float("mask_filter_value", -10000.0)?;
        added = Some(there(&mask, &scores, &q.dim(0))?.select(0.0, hidden).cast(wide));
    }
    if let Some(bias) = slots.bias.map(|at| c.optional(at)).transpose()?.flatten() {
        if bias.rank() != 4 {
            return invalid(format!("a bias of rank {}; expected 4", bias.rank()));
        }
        let bias = bias.cast(wide);
        added = Some(match added {
            Some(mask) => mask + bias,
            None => bias,
        });
    }
    let (queries, keys) = (scores.dim(2), scores.dim(3));
    // All at once, as in ONNX Runtime: beside a score far below the others little is left of what is added first.
    if let Some(mut added) = added {
        if let (Past::Within(_), Some(room), Some(own)) = (past, keys.as_const(), added.dim(3).as_const())
            && (2..room).contains(&own)
        {
            // It ends where the keys do, and not where the buffer does.
            let mut each = vec![(0, 0); 4];
            each[3].1 = room - own;
            added = added.pad(&each, 0.0);
        }
        scores += added;
    }
    let graph = scores.graph();
    let key = graph.iota([Dim::from(1), keys], 1, DType::I64);
    let causal = c.flag("unidirectional", false)?;
    let query = match past {
        // The first key's place is that of the first query less what is past.
        Past::Length(past) if causal => Some(graph.iota([&queries + past, 1.into()], 0, DType::I64).narrow(
            0,
            past.clone(),
            queries,
        )),
        Past::Length(_) => None,
        Past::Within(before) if causal => Some(graph.iota([queries, 1.into()], 0, DType::I64) + before),
        // The last of them sees all that are there.
        Past::Within(before) => Some(before + number(&scores, &queries)? - 1),
    };
    if let Some(query) = query {
        // ONNX Runtime shows hidden scores as the least number, which has no share either.
        scores = key.le(query).select(&scores, f64::from(f32::MIN));
    }
    let y = joined(&weighted(&shares(&scores), v, dtype));
    Ok(Attended { y, scores })
}

/// The input and the weights of attention with its projections: `[batch, length, width]`, and those of queries, keys and values side by side.
pub(super) fn projection(c: &Call<'_, '_, '_>) -> Outcome<(Tensor, Tensor)> {
    if c.flag("do_rotary", false)? {
        return unsupported("a rotary embedding within attention; expected do_rotary of 0");
    }
    if c.flag("past_present_share_buffer", false)? {
        return unsupported("a past and present in one buffer; expected past_present_share_buffer of 0");
    }
    let (x, w) = (c.tensor(0)?, c.tensor(1)?);
    if x.rank() != 3 || w.rank() != 2 {
        return invalid(format!(
            "an input of rank {} with weights of rank {}; expected 3 and 2",
            x.rank(),
            w.rank()
        ));
    }
    Ok((x, w))
}

/// Attention with its projections.
pub(super) fn attention(c: &mut Call<'_, '_, '_>) -> Answer {
    if c.value(6).is_some() {
        return unsupported("a past and present in one buffer; expected past_present_share_buffer of 0");
    }
    let (x, w) = projection(c)?;
    let all = match c.optional(2)? {
        Some(bias) => x.matmul(&w) + bias,
        None => x.matmul(&w),
    };
    let slots = Slots {
        padding: 3,
        bias: Some(5),
        past: 4,
    };
    of_projected(c, &all, w.dim(1), &slots)
}

/// Attention of queries, keys and values that lie side by side, in so many columns.
pub(super) fn of_projected(c: &Call<'_, '_, '_>, all: &Tensor, columns: Dim, slots: &Slots) -> Answer {
    let heads = heads(c, "num_heads")?;
    let sizes = match (c.ints("qkv_hidden_sizes")?, columns.as_const()) {
        (Some(sizes), _) if sizes.len() == 3 => sizes,
        (Some(sizes), _) if !sizes.is_empty() => {
            return invalid(format!("qkv_hidden_sizes of {} numbers; expected 3", sizes.len()));
        }
        (_, Some(n)) if n % 3 == 0 => vec![n / 3; 3],
        (_, Some(n)) => {
            return invalid(format!(
                "weights of {n} columns; expected a multiple of 3, or qkv_hidden_sizes"
            ));
        }
        (_, None) => return unsupported("weights of symbolic width; expected a number, or qkv_hidden_sizes"),
    };
    if let Some(n) = sizes.iter().find(|&&n| n < 1 || n % heads != 0) {
        return invalid(format!("a hidden size of {n}; expected a multiple of {heads} heads"));
    }
    if sizes[0] != sizes[1] {
        return invalid(format!(
            "{} elements of queries and {} of keys; expected one number",
            sizes[0], sizes[1]
        ));
    }
    if sizes[2] != sizes[0] && (c.outputs > 1 || c.value(slots.past).is_some()) {
        return invalid(format!(
            "a past or present of {} elements of keys and {} of values; expected one number",
            sizes[0], sizes[2]
        ));
    }
    let parts = all.split(&sizes, 2);
    let [q, k, v] = &parts[..] else {
        return invalid("weights of another width than qkv_hidden_sizes; expected their sum");
    };
    let (q, mut k, mut v) = (apart(q, heads)?, apart(k, heads)?, apart(v, heads)?);
    let mut length = Dim::from(0);
    if let Some(past) = c.optional(slots.past)? {
        if past.rank() != 5 {
            return invalid(format!("a past of rank {}; expected 5", past.rank()));
        }
        length = past.dim(3);
        k = tlc_record::concat(&[&past.select_index(0, 0), &k], 2);
        v = tlc_record::concat(&[&past.select_index(0, 1), &v], 2);
    }
    let y = attended(c, (&q, &k, &v), &Past::Length(length), slots)?.y;
    let mut results = vec![Value::from(y)];
    if c.outputs > 1 {
        results.push(tlc_record::stack(&[&k, &v], 0).into());
    }
    Ok(results)
}

/// Part `at` of heads that lie side by side, `[batch, length, heads, parts, size]`, as `[batch, heads, length, size]`.
fn unpacked(x: &Tensor, at: i64) -> Tensor {
    x.select_index(3, at).swap_axes(1, 2)
}

/// As [`multi_head`], of one query for each sequence, with the operands in another order.
pub(super) fn masked_multi_head(c: &mut Call<'_, '_, '_>) -> Answer {
    if c.flag("output_qk", false)? {
        return unsupported("a result of scores; expected output_qk of 0");
    }
    if c.value(1).is_none() {
        return unsupported("packed queries, keys and values; expected a key and a value");
    }
    let beams = c.input_whole(8).and_then(|n| n.as_const());
    if c.value(9).is_some() && beams != Some(1) {
        return unsupported("several beams in operand 9 (cache_indirection); expected none, or a beam_width of 1");
    }
    let inputs = [0, 1, 2, 10, 3, 4, 5, 6, 7].map(|at| c.value(at).cloned());
    c.all_with_inputs(inputs.into(), multi_head)
}

/// Attention of queries, keys and values that are projected before it, but for their bias.
pub(super) fn multi_head(c: &mut Call<'_, '_, '_>) -> Answer {
    if c.value(9).is_some() {
        return unsupported("several beams in operand 9 (cache_indirection); expected none");
    }
    let heads = heads(c, "num_heads")?;
    let (q, k, v) = (c.tensor(0)?, c.optional(1)?, c.optional(2)?);
    let biased = |t: Tensor, at: usize| -> Outcome<Tensor> {
        let Some(bias) = c.optional(3)? else {
            return apart(&t, heads);
        };
        // The values' width may be another than that of the two before them.
        let from = q.dim(2) * at as i64;
        apart(&(&t + bias.narrow(0, from, t.dim(2))), heads)
    };
    let (q, mut k, mut v) = match (q.rank(), k, v) {
        (5, None, None) if c.value(3).is_none() => (unpacked(&q, 0), unpacked(&q, 1), unpacked(&q, 2)),
        (3, Some(k), None) if k.rank() == 5 && c.value(3).is_none() => {
            (apart(&q, heads)?, unpacked(&k, 0), unpacked(&k, 1))
        }
        (3, Some(k), Some(v)) if k.rank() == 3 && v.rank() == 3 => {
            (biased(q.clone(), 0)?, biased(k, 1)?, biased(v, 2)?)
        }
        // Keys and values of another sequence, which had their bias when they were computed.
        (3, Some(k), Some(v)) if k.rank() == 4 && v.rank() == 4 => (biased(q.clone(), 0)?, k, v),
        (5, ..) => return unsupported("packed queries, keys and values with a bias; expected none"),
        (rank, k, v) => {
            let rank_of = |t: Option<Tensor>| t.map_or("none".into(), |t| format!("one of rank {}", t.rank()));
            return invalid(format!(
                "a query of rank {rank}, for a key {} and for a value {}; expected 3 of rank 3, 4 for key and value, or packed ones of rank 5",
                rank_of(k),
                rank_of(v)
            ));
        }
    };
    let mut length = Past::Length(0.into());
    match (c.optional(6)?, c.optional(7)?) {
        (Some(past_key), Some(past_value)) if past_key.rank() != 4 || past_value.rank() != 4 => {
            return invalid(format!(
                "a past of rank {} and {}; expected 4",
                past_key.rank(),
                past_value.rank()
            ));
        }
        (Some(past_key), Some(past_value)) if c.value(8).is_some() => {
            let before = c.tensor(8)?.cast(DType::I64).reshape([1, 1, 1, 1]);
            if k.is_poisoned() || v.is_poisoned() {
                return Ok(vec![k.clone().into(), k.into(), v.into()]);
            }
            let room = past_key.dim(2);
            k = placed(&k, Some(&past_key), &room, &before)?;
            v = placed(&v, Some(&past_value), &room, &before)?;
            length = Past::Within(before);
        }
        (Some(past_key), Some(past_value)) => {
            length = Past::Length(past_key.dim(2));
            k = tlc_record::concat(&[&past_key, &k], 2);
            v = tlc_record::concat(&[&past_value, &v], 2);
        }
        (None, None) if c.value(8).is_some() => {
            return invalid("a past_sequence_length without a past; expected both");
        }
        (None, None) => {}
        _ => return invalid("a past key without a past value, or the other way round; expected both"),
    }
    let slots = Slots {
        padding: 4,
        bias: Some(5),
        past: 6,
    };
    let Attended { y, scores } = attended(c, (&q, &k, &v), &length, &slots)?;
    let dtype = y.dtype();
    Ok(vec![y.into(), k.into(), v.into(), scores.cast(dtype).into()])
}
