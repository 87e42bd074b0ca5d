//! Attention and rotary embedding.

use tlc_ir::DType;

use crate::call::{Answer, Call, one};
use crate::refusal::{OperatorRefusal, Outcome, invalid, unsupported};
use crate::value::Value;
use tlc_formats::ErrorKind;
use tlc_record::Tensor;
use tlc_record::dim::Dim;
use tlc_record::keep;

/// Elements that one matrix instruction for 16-bit operands adds up.
const KEYS_OF_AN_INSTRUCTION: i64 = 16;

/// A size as data.
pub(super) fn number(x: &Tensor, d: &Dim) -> Outcome<Tensor> {
    x.graph()
        .dim_value(d, DType::I64)
        .map_err(|(message, _)| OperatorRefusal {
            kind: ErrorKind::Invalid,
            message,
        })
}

/// `[batch, length, heads * size]` as `[batch, heads, length, size]`.
pub(super) fn apart(x: &Tensor, heads: i64) -> Outcome<Tensor> {
    match x.rank() {
        4 => Ok(x.clone()),
        3 if heads > 0 => {
            let shape = [x.dim(0), x.dim(1), heads.into(), x.dim(2) / heads];
            Ok(x.reshape(shape).swap_axes(1, 2))
        }
        3 => invalid("an operand of rank 3 without a number of heads; expected q_num_heads and kv_num_heads"),
        n => invalid(format!("an operand of rank {n}; expected 3 or 4")),
    }
}

/// Key and value heads, each repeated for the query heads that share it.
pub(super) fn shared(x: &Tensor, heads: &Dim) -> Outcome<Tensor> {
    match (x.dim(1).as_const(), heads.as_const()) {
        (Some(own), Some(all)) if own > 0 && all % own == 0 => Ok(match all / own {
            1 => x.clone(),
            times => x.repeat(times, 1),
        }),
        (Some(own), Some(all)) => invalid(format!("{all} query heads for {own} of keys; expected a multiple")),
        _ => unsupported("a symbolic number of heads; expected a number"),
    }
}

/// Which keys a query sees, by position: causal order, windows, and the keys that are no padding.
fn visible(c: &Call<'_, '_, '_>, scores: &Tensor, past: &Dim) -> Outcome<Option<Tensor>> {
    let (left, right) = (c.int("left_window_size", -1)?, c.int("right_window_size", -1)?);
    if let Some(n) = [left, right].into_iter().find(|n| !(-1..1 << 40).contains(n)) {
        return invalid(format!("a window of {n}; expected -1 or a size"));
    }
    let valid = c.optional(6)?;
    let causal = c.flag("is_causal", false)?;
    let graph = scores.graph();
    let shape = scores.shape();
    if scores.is_poisoned() {
        return Ok(None);
    }
    let at = |axis: i64| {
        let mut own = vec![Dim::from(1); 4];
        own[axis as usize] = shape[axis as usize].clone();
        graph.iota(own, axis, DType::I64)
    };
    let (queries, keys) = (at(2), at(3));
    let mut seen: Option<Tensor> = None;
    let mut and = |t: Tensor| {
        seen = Some(match seen.take() {
            Some(s) => s.logical_and(t),
            None => t,
        });
    };
    let lengths = valid.map(|v| {
        let n = v.dim(0);
        v.cast(DType::I64).reshape([n, 1.into(), 1.into(), 1.into()])
    });
    let here = match &lengths {
        Some(n) => queries + (n - number(scores, &shape[2])?),
        None => queries + number(scores, past)?,
    };
    if let Some(n) = &lengths {
        and(keys.lt(n));
    }
    if causal || right >= 0 {
        let reach = if causal { 0 } else { right };
        and(keys.le(&here + reach));
    }
    if left >= 0 {
        and(keys.ge(&here - left));
    }
    Ok(seen)
}

/// The mask as what is added to the scores; keys that it does not reach are hidden.
fn bias(mask: &Tensor, scores: &Tensor) -> Outcome<Tensor> {
    let wide = scores.dtype();
    let mut bias = match mask.dtype() {
        DType::Bool => mask.select(0.0, f64::NEG_INFINITY).cast(wide),
        d if d.is_float() => mask.cast(wide),
        d => return invalid(format!("a mask of {d}; expected bool or floats")),
    };
    // A mask may end before the keys do; one of extent 1 is for all of them.
    let (own, all) = (bias.dim(-1), scores.dim(-1));
    let short = match (own.as_const(), all.as_const()) {
        (Some(own), Some(all)) => own > 1 && own < all,
        (Some(own), None) => own > 1,
        (None, _) => false,
    };
    if short {
        let mut each = vec![(Dim::from(0), Dim::from(0)); bias.rank()];
        each[bias.rank() - 1].1 = (all - own).max(0);
        bias = bias.pad(&each, f64::NEG_INFINITY);
    }
    Ok(bias)
}

/// The softmax of scores along the last axis.
pub(super) fn shares(scores: &Tensor) -> Tensor {
    // A query that sees no key has a row of zeros.
    let highest = match scores.dim(-1).as_const() {
        Some(0) => scores.sum(keep(-1)),
        _ => scores.max(keep(-1)),
    };
    let highest = highest.eq(f64::NEG_INFINITY).select(0.0, highest);
    let powers = (scores - highest).exp();
    let total = powers.sum(keep(-1));
    &powers / total.eq(0.0).select(1.0, &total)
}

/// Values by their shares, in that dtype.
pub(super) fn weighted(shares: &Tensor, values: &Tensor, dtype: DType) -> Tensor {
    // The operator's function rounds the softmax before it multiplies, which matrix instructions need. A single query, or fewer keys than
    // one of them takes, gain nothing by it.
    let few = |axis: i64, less: i64| shares.dim(axis).as_const().is_some_and(|n| n < less);
    match few(-2, 2) || few(-1, KEYS_OF_AN_INSTRUCTION) {
        true => shares.matmul_as(values, dtype),
        false => shares.cast(dtype).matmul_as(values, dtype),
    }
}

/// `[batch, heads, length, size]` as `[batch, length, heads * size]`.
pub(super) fn joined(y: &Tensor) -> Tensor {
    let width = y.dim(1) * y.dim(3);
    let (batch, length) = (y.dim(0), y.dim(2));
    y.swap_axes(1, 2).reshape([batch, length, width])
}

pub(super) fn attention(c: &mut Call<'_, '_, '_>) -> Answer {
    let (q, k, v) = (c.tensor(0)?, c.tensor(1)?, c.tensor(2)?);
    let flat = q.rank() == 3;
    let dtype = q.dtype();
    let (q_heads, kv_heads) = (c.int("q_num_heads", 0)?, c.int("kv_num_heads", 0)?);
    let (q, k, v) = (apart(&q, q_heads)?, apart(&k, kv_heads)?, apart(&v, kv_heads)?);
    let (k, v, past) = match (c.optional(4)?, c.optional(5)?) {
        (Some(pk), Some(pv)) => (
            tlc_record::concat(&[&pk, &k], 2),
            tlc_record::concat(&[&pv, &v], 2),
            pk.dim(2),
        ),
        (None, None) => (k, v, Dim::from(0)),
        _ => return invalid("a past key without a past value, or the other way round; expected both"),
    };
    if c.value(4).is_some() && c.value(6).is_some() {
        return invalid("a past key with lengths of the keys; expected one of the two");
    }
    let Some(size) = q.dim(3).as_const().filter(|&n| n > 0) else {
        return unsupported("heads of symbolic or no size; expected a number");
    };
    let scale = c.maybe_float("scale")?.unwrap_or(1.0 / (size as f64).sqrt());
    let keys = shared(&k, &q.dim(1))?;
    let values = shared(&v, &q.dim(1))?;
    // Scores and softmax are as wide as what products are added up in, at least as wide as `softmax_precision` says but for f64. Products
    // have their operands as they are: those of 16 bits are exact in f32, and matrix instructions take them.
    let raw = q.matmul_as(&keys.swap_axes(2, 3), dtype.accumulator()) * scale;
    let cap = c.float("softcap", 0.0)?;
    let capped = match cap > 0.0 {
        true => cap * (&raw / cap).tanh(),
        false => raw.clone(),
    };
    let mut scores = capped.clone();
    if let Some(mask) = c.optional(3)? {
        scores += bias(&mask, &raw)?;
    }
    if let Some(seen) = visible(c, &raw, &past)? {
        scores = seen.select(&scores, f64::NEG_INFINITY);
    }
    let shares = shares(&scores);
    let y = weighted(&shares, &values, dtype);
    let y = if flat { joined(&y) } else { y };
    let shown = match c.int("qk_matmul_output_mode", 0)? {
        0 => raw,
        1 => capped,
        2 => scores,
        3 => shares,
        n => return invalid(format!("qk_matmul_output_mode {n}; expected 0 to 3")),
    };
    Ok(vec![y.into(), Value::from(k), v.into(), shown.cast(dtype).into()])
}

pub(super) fn rotary(c: &mut Call<'_, '_, '_>) -> Answer {
    let x = c.tensor(0)?;
    let flat = x.rank() == 3;
    // [batch, length, heads, size]
    let apart = match flat {
        true => apart(&x, c.int("num_heads", 0)?)?.swap_axes(1, 2),
        false if x.rank() == 4 => x.swap_axes(1, 2),
        false => return invalid(format!("rank {}; expected 3 or 4", x.rank())),
    };
    let wide = x.dtype().accumulator();
    let angles = |i: usize| -> Outcome<Tensor> {
        let cache = c.tensor(i)?.cast(wide);
        let cache = match c.optional(3)? {
            Some(places) => cache.take_from_start(&places, 0),
            None => cache,
        };
        match cache.rank() {
            3 => Ok(cache.unsqueeze(2)),
            n => invalid(format!("a cache of rank {n}; expected 3, or 2 with position_ids")),
        }
    };
    let turn = Turn {
        cos: angles(1)?,
        sin: angles(2)?,
        size: c.int("rotary_embedding_dim", 0)?,
        interleaved: c.flag("interleaved", false)?,
    };
    let whole = turned(&apart, &turn)?;
    one(match flat {
        true => whole.reshape(x.shape()),
        false => whole.swap_axes(1, 2),
    })
}

/// How the elements of a head turn, in pairs.
pub(super) struct Turn {
    /// `[batch or 1, length, 1, size / 2]`.
    pub(super) cos: Tensor,
    /// As `cos`.
    pub(super) sin: Tensor,
    /// How many elements of a head turn; 0 is all.
    pub(super) size: i64,
    /// Whether the two of a pair lie side by side, and not one half behind the other.
    pub(super) interleaved: bool,
}

/// Heads `[batch, length, heads, size]`, turned.
pub(super) fn turned(apart: &Tensor, turn: &Turn) -> Outcome<Tensor> {
    let Turn {
        cos, sin, interleaved, ..
    } = turn;
    let Some(size) = apart.dim(3).as_const() else {
        return unsupported("heads of symbolic size; expected a number");
    };
    let turned = match turn.size {
        0 => size,
        n => n,
    };
    if turned % 2 != 0 || !(0..=size).contains(&turned) {
        return invalid(format!(
            "rotary_embedding_dim {turned}; expected an even number up to {size}"
        ));
    }
    let dtype = apart.dtype();
    let part = apart.narrow(-1, 0, turned).cast(dtype.accumulator());
    if part.is_poisoned() {
        return Ok(part);
    }
    let shape = part.shape();
    let mut pairs = shape[..3].to_vec();
    // The two halves that turn together lie side by side or one behind the other.
    let axis = if *interleaved { 4 } else { 3 };
    match interleaved {
        true => pairs.extend([Dim::from(turned / 2), 2.into()]),
        false => pairs.extend([Dim::from(2), (turned / 2).into()]),
    }
    let both = part.reshape(pairs);
    let (a, b) = (both.select_index(axis, 0), both.select_index(axis, 1));
    let (real, imaginary) = (cos * &a - sin * &b, sin * &a + cos * &b);
    let rotated = tlc_record::stack(&[&real, &imaginary], axis).reshape(shape).cast(dtype);
    Ok(match turned == size {
        true => rotated,
        false => tlc_record::concat(&[&rotated, &apart.narrow(-1, turned, size - turned)], -1),
    })
}
