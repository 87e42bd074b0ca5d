//! `GroupQueryAttention` of `com.microsoft`, as ONNX Runtime's tools for language models write attention over a cache.
//!
//! Each sequence of a batch has so many keys that were there before (`seqlens_k` says how many there are with the new ones), and the new keys and
//! values come directly behind them: of a cache with room for more, what is behind those stays.

use tlc_ir::DType;

use super::attention::{Turn, apart, joined, number, shared, shares, turned, weighted};
use super::fused_attention::heads;
use crate::call::{Answer, Call};
use crate::refusal::{Outcome, invalid, unsupported};
use crate::value::Value;
use tlc_record::Tensor;
use tlc_record::dim::Dim;
use tlc_record::keep;

/// Where operands are.
const KEY: usize = 1;
const PAST: [usize; 2] = [3, 4];
const LAST_KEYS: usize = 5;
const TOTAL: usize = 6;
const TABLES: [usize; 2] = [7, 8];
const PLACES: usize = 9;
const BIAS: usize = 10;
const SINK: usize = 11;
/// Scales by which each head of queries, and of keys, is normed.
const NORMS: [usize; 2] = [14, 15];

/// The sizes that the operator's operands have in common.
struct Sizes {
    heads: i64,
    /// Elements of a head.
    size: i64,
    /// New queries, and keys, of each sequence.
    new: Dim,
    /// Keys that there is room for.
    room: Dim,
}

/// Attention of grouped heads over a cache.
pub(super) fn grouped(c: &mut Call<'_, '_, '_>) -> Answer {
    for name in ["k_quant_type", "v_quant_type"] {
        if let kind = c.text(name, "NONE")?
            && kind != "NONE"
        {
            return unsupported(format!("{name} of {kind}; expected a cache that is not quantized"));
        }
    }
    if c.flag("sliding_window_cache", false)? {
        return unsupported("a cache of a window; expected sliding_window_cache of 0");
    }
    for (at, what) in [(12, "k_scale"), (13, "v_scale"), (16, "query_seqlens")] {
        if c.value(at).is_some() {
            return unsupported(format!("operand {at} ({what}); expected none"));
        }
    }
    let (heads, kept) = (heads(c, "num_heads")?, heads(c, "kv_num_heads")?);
    if heads % kept != 0 {
        return invalid(format!("{heads} query heads for {kept} of keys; expected a multiple"));
    }
    let x = c.tensor(0)?;
    if x.rank() != 3 {
        return invalid(format!("a query of rank {}; expected 3", x.rank()));
    }
    let packed = c.value(KEY).is_none();
    let of_all = if packed { heads + 2 * kept } else { heads };
    let size = match x.dim(2).as_const() {
        Some(n) if n > 0 && n % of_all == 0 => n / of_all,
        Some(n) => return invalid(format!("{n} elements of {of_all} heads; expected a multiple")),
        None => return unsupported("heads of symbolic size; expected a number"),
    };
    let [q, k, v] = match (packed, c.optional(KEY)?, c.optional(KEY + 1)?) {
        (true, None, None) => {
            let parts = x.split(&[heads * size, kept * size, kept * size], 2);
            [(0, heads), (1, kept), (2, kept)].map(|(at, heads)| apart(&parts[at], heads))
        }
        (false, Some(k), Some(v)) => [apart(&x, heads), apart(&k, kept), apart(&v, kept)],
        _ => return invalid("a key without a value, or the other way round; expected both, or all in the query"),
    };
    let (mut q, mut k, v) = (q?, k?, v?);
    let Some(total) = c.input_whole(TOTAL) else {
        return unsupported(
            "a total_sequence_length that data decides; expected a constant, or one that follows from shapes",
        );
    };
    let past = [c.optional(PAST[0])?, c.optional(PAST[1])?];
    let room = match &past {
        [Some(k), Some(v)] if k.rank() == 4 && v.rank() == 4 => match (k.dim(2).as_const(), total.as_const()) {
            // What comes with the keys is their number then, and not the cache's.
            (Some(0), _) => total.clone(),
            _ => total.max(k.dim(2)),
        },
        [None, None] => total.clone(),
        _ => return invalid("a past key without a past value, or of another rank than 4; expected both, of rank 4"),
    };
    let sizes = Sizes {
        heads,
        size,
        new: q.dim(2),
        room,
    };
    if q.is_poisoned() || k.is_poisoned() || v.is_poisoned() {
        return Ok(vec![q.clone().into(), k.into(), v.into()]);
    }
    let before = before(c, &sizes, &total)?;
    (q, k) = normed(c, (q, k))?;
    if c.flag("do_rotary", false)? {
        (q, k) = rotated(c, &sizes, (q, k), &before)?;
    }
    let k = placed(&k, past[0].as_ref(), &sizes.room, &before)?;
    let v = placed(&v, past[1].as_ref(), &sizes.room, &before)?;
    let (y, shown) = attended(c, &sizes, (&q, &k, &v), &before)?;
    // A cache has a type of its own.
    let cached =
        |present: Tensor, past: &Option<Tensor>| past.as_ref().map_or(present.clone(), |p| present.cast(p.dtype()));
    let mut results = vec![y.into(), cached(k, &past[0]).into(), cached(v, &past[1]).into()];
    results.extend(shown.map(Value::from));
    Ok(results)
}

/// Queries and keys, each head over the root of its mean square if scales for that are given.
fn normed(c: &Call<'_, '_, '_>, (q, k): (Tensor, Tensor)) -> Outcome<(Tensor, Tensor)> {
    let (Some(of_queries), Some(of_keys)) = (c.optional(NORMS[0])?, c.optional(NORMS[1])?) else {
        return match c.value(NORMS[0]).is_some() || c.value(NORMS[1]).is_some() {
            true => invalid("q_norm_weight without k_norm_weight, or the other way round; expected both"),
            false => Ok((q, k)),
        };
    };
    let both = c.float("qk_norm_epsilon", 1e-6)?;
    let each = |x: &Tensor, scale: Tensor, name: &str| -> Outcome<Tensor> {
        let eps = c.maybe_float(name)?.unwrap_or(both);
        let wide = x.cast(x.dtype().accumulator());
        let y = &wide * (wide.square().mean(keep(-1)) + eps).rsqrt() * scale.cast(wide.dtype());
        Ok(y.cast(x.dtype()))
    };
    Ok((
        each(&q, of_queries, "q_norm_epsilon")?,
        each(&k, of_keys, "k_norm_epsilon")?,
    ))
}

/// How many keys each sequence had before: `[batch, 1, 1, 1]`.
fn before(c: &Call<'_, '_, '_>, sizes: &Sizes, total: &Dim) -> Outcome<Tensor> {
    let last = c.tensor(LAST_KEYS)?.cast(DType::I64);
    let n = c.tensor(0)?.dim(0);
    let new = number(&last, &sizes.new)?;
    let later = last.reshape([n, 1.into(), 1.into(), 1.into()]) + 1 - &new;
    // A first prompt, whose sequences may be shorter than the longest, starts at 0.
    Ok(match *total == sizes.new {
        true => later.zeros_like(),
        false => {
            let first = number(&last, total)?.eq(&new);
            first.select(0, later).maximum(0)
        }
    })
}

/// Queries and keys `[batch, heads, new, size]`, turned by where they are in their sequence.
fn rotated(
    c: &Call<'_, '_, '_>,
    sizes: &Sizes,
    (q, k): (Tensor, Tensor),
    before: &Tensor,
) -> Outcome<(Tensor, Tensor)> {
    let (Some(cos), Some(sin)) = (c.optional(TABLES[0])?, c.optional(TABLES[1])?) else {
        return invalid("do_rotary without cos_cache and sin_cache; expected both");
    };
    let half = match (cos.rank(), sin.rank(), cos.dim(1).as_const()) {
        (2, 2, Some(half)) if (1..=sizes.size / 2).contains(&half) => half,
        (2, 2, None) => return unsupported("tables of symbolic width; expected a number"),
        _ => return invalid("tables for a rotary embedding; expected positions by at most half the size of a head"),
    };
    let places = match c.optional(PLACES)? {
        Some(places) if places.rank() == 2 => places.cast(DType::I64),
        Some(places) => return invalid(format!("positions of rank {}; expected 2", places.rank())),
        None => {
            let new = q.graph().iota([Dim::from(1), sizes.new.clone()], 1, DType::I64);
            before.reshape([before.dim(0), 1.into()]) + new
        }
    };
    let wide = q.dtype().accumulator();
    let angles = |t: &Tensor| t.cast(wide).take_from_start(&places, 0).unsqueeze(2);
    let turn = Turn {
        cos: angles(&cos),
        sin: angles(&sin),
        size: 2 * half,
        interleaved: c.flag("rotary_interleaved", false)?,
    };
    let each = |x: &Tensor| turned(&x.swap_axes(1, 2), &turn).map(|x| x.swap_axes(1, 2));
    Ok((each(&q)?, each(&k)?))
}

/// New keys, or values, `[batch, heads, new, size]` behind the `before` that were there, in a buffer with `room`; what is behind them stays as it was.
pub(super) fn placed(new: &Tensor, past: Option<&Tensor>, room: &Dim, before: &Tensor) -> Outcome<Tensor> {
    let shape = [new.dim(0), new.dim(1), room.clone(), new.dim(3)];
    let at = new
        .graph()
        .iota([Dim::from(1), 1.into(), room.clone(), 1.into()], 2, DType::I64)
        - before;
    let count = number(new, &new.dim(2))?;
    let is_new = at.ge(0).logical_and(at.lt(&count));
    let from = at.minimum(count - 1).maximum(0);
    let placed = new.take_along_axis(&from.expand(shape), 2);
    Ok(match past {
        Some(past) => {
            let more = (room - past.dim(2)).max(0);
            let none = (Dim::from(0), Dim::from(0));
            let padded = past.pad(&[none.clone(), none.clone(), (0.into(), more), none], 0.0);
            is_new.select(placed, padded)
        }
        None => is_new.select(placed, 0.0),
    })
}

/// What queries see of the keys that are not behind them, `[batch, new, heads * size]`, and the scores or shares if they are a result.
fn attended(
    c: &Call<'_, '_, '_>,
    sizes: &Sizes,
    (q, k, v): (&Tensor, &Tensor, &Tensor),
    before: &Tensor,
) -> Outcome<(Tensor, Option<Tensor>)> {
    let dtype = q.dtype();
    let all = Dim::from(sizes.heads);
    let (k, v) = (shared(k, &all)?, shared(v, &all)?);
    let scale = c.maybe_float("scale")?.filter(|&s| s != 0.0);
    let scale = scale.unwrap_or(1.0 / (sizes.size as f64).sqrt());
    let mut scores = q.matmul_as(&k.swap_axes(2, 3), dtype.accumulator()) * scale;
    let wide = scores.dtype();
    let cap = c.float("softcap", 0.0)?;
    if cap > 0.0 {
        scores = (scores / cap).tanh() * cap;
    }
    if let Some(bias) = c.optional(BIAS)? {
        if bias.rank() != 4 {
            return invalid(format!("a bias of rank {}; expected 4", bias.rank()));
        }
        scores += bias.cast(wide);
    }
    let graph = q.graph();
    let query = graph.iota([Dim::from(1), 1.into(), sizes.new.clone(), 1.into()], 2, DType::I64) + before;
    let key = graph.iota([Dim::from(1), 1.into(), 1.into(), sizes.room.clone()], 3, DType::I64);
    let mut seen = match c.flag("causal", true)? {
        true => key.le(&query),
        // All that are there.
        false => key.lt(before + number(q, &sizes.new)?),
    };
    let window = c.int("local_window_size", -1)?;
    if window >= 0 {
        seen = seen.logical_and(key.gt(&query - window));
    }
    scores = seen.select(&scores, f64::NEG_INFINITY);
    let sink = match (c.optional(SINK)?, c.flag("smooth_softmax", false)?) {
        (Some(sink), _) => Some(sink.cast(wide).reshape([Dim::from(1), all, 1.into(), 1.into()])),
        (None, true) => Some(graph.full([1, 1, 1, 1], 0.0, wide)),
        (None, false) => None,
    };
    let parts = match sink {
        None => shares(&scores),
        // A further key without a value.
        Some(sink) => {
            let highest = scores.max(keep(-1)).maximum(&sink);
            let powers = (&scores - &highest).exp();
            let total = powers.sum(keep(-1)) + (sink - highest).exp();
            powers / total
        }
    };
    let shown = match c.int("qk_output", 0)? {
        0 => None,
        // Keys that are not seen are shown as zeros.
        1 => Some(seen.select(scores, 0.0)),
        2 => Some(parts.clone()),
        n => return invalid(format!("qk_output {n}; expected 0 to 2")),
    };
    Ok((joined(&weighted(&parts, &v, dtype)), shown.map(|t| t.cast(dtype))))
}
