//! Attention with a state instead of scores, and the convolution with a state that goes with it.
//!
//! The state is a matrix for each head: keys by values. Over all steps at once, what each step reads is masked attention
//! without a softmax. Rules that correct what they write by what they read (the delta rule) write the solution of a unit
//! triangular system instead of the values (Yang et al., "Parallelizing linear transformers with the delta rule over
//! sequence length", arXiv:2406.06484).

use tlc_ir::DType;

use crate::call::{Answer, Call};
use crate::refusal::{Outcome, invalid, unsupported};
use tlc_record::Tensor;
use tlc_record::ops::conv::Conv;
use tlc_record::{einsum, keep};

/// The most steps of a rule that corrects: the work grows with their cube.
const MAX_STEPS: i64 = 2048;

/// Operands with an axis of heads: `[batch, heads, length, ..]`; queries have one more, for those that share a head.
struct Heads {
    query: Tensor,
    key: Tensor,
    value: Tensor,
    /// The logarithm of what is kept of the state, `[batch, heads, length, 1 or key's size]`.
    decay: Option<Tensor>,
    /// `[batch, heads or 1, length, 1]`.
    beta: Option<Tensor>,
    state: Tensor,
}

/// `[batch, length, heads * size]` as `[batch, heads, length, size]`, in the accumulator's dtype.
fn by_heads(x: &Tensor, heads: i64, what: &str) -> Outcome<Tensor> {
    if x.rank() != 3 || x.dim(2).as_const().is_none_or(|n| n % heads != 0) {
        return invalid(format!(
            "{what} of {}; expected rank 3 and a multiple of {heads} heads",
            x.type_text()
        ));
    }
    let shape = [x.dim(0), x.dim(1), heads.into(), x.dim(2) / heads];
    Ok(x.cast(x.dtype().accumulator()).reshape(shape).swap_axes(1, 2))
}

impl Heads {
    /// How much of what step `s` wrote is there at step `t`: `[batch, heads, t, s, 1 or key's size]`, nothing where `s` is
    /// later.
    fn kept(&self, sums: &Tensor) -> Tensor {
        let length = self.key.dim(2);
        let seen = self.key.graph().tril_mask(&length, &length, 0);
        seen.unsqueeze(-1)
            .select((sums.unsqueeze(3) - sums.unsqueeze(2)).exp(), 0.0)
    }

    /// All steps at once. Step `t` reads what each step up to it wrote, decayed since.
    fn closed(&self) -> (Tensor, Tensor) {
        let Heads { query, key, state, .. } = self;
        let length = query.dim(3);
        let graph = query.graph();
        let seen = graph.tril_mask(&length, &length, 0);
        let value = &self.written();
        let Some(decay) = &self.decay else {
            let scores = seen.select(einsum("bhgtd,bhsd->bhgts", &[query, key]), 0.0);
            let read = einsum("bhgts,bhsv->bhgtv", &[&scores, value]) + einsum("bhgtd,bhdv->bhgtv", &[query, state]);
            return (read, state + einsum("bhsd,bhsv->bhdv", &[key, value]));
        };
        let sums = decay.cumsum(2);
        let kept = self.kept(&sums);
        let scores = match decay.dim(3).as_const() {
            Some(1) => einsum("bhgtd,bhsd->bhgts", &[query, key]) * kept.squeeze(-1).unsqueeze(2),
            _ => (query.unsqueeze(4) * key.unsqueeze(2).unsqueeze(3) * kept.unsqueeze(2)).sum(-1),
        };
        let first = query * sums.exp().unsqueeze(2);
        let read = einsum("bhgts,bhsv->bhgtv", &[&scores, value]) + einsum("bhgtd,bhdv->bhgtv", &[&first, state]);
        let whole = decay.sum(keep(2));
        let late = key * (&whole - &sums).exp();
        let state = state * whole.squeeze(2).exp().unsqueeze(-1) + einsum("bhsd,bhsv->bhdv", &[&late, value]);
        (read, state)
    }

    /// What each step writes: its value, or, where the rule corrects, `beta` times what the value differs from what is there
    /// already. The latter depends on what earlier steps wrote, so it solves `(1 + A) u = r` with `A` strictly lower
    /// triangular.
    fn written(&self) -> Tensor {
        let Some(beta) = &self.beta else {
            return self.value.clone();
        };
        let (key, graph) = (&self.key, self.key.graph());
        let steps = key.dim(2);
        let (first, mut system) = match &self.decay {
            None => (key.clone(), einsum("bhtd,bhsd->bhts", &[key, key])),
            Some(decay) => {
                let sums = decay.cumsum(2);
                let kept = self.kept(&sums);
                let products = match decay.dim(3).as_const() {
                    Some(1) => einsum("bhtd,bhsd->bhts", &[key, key]) * kept.squeeze(-1),
                    _ => (key.unsqueeze(3) * key.unsqueeze(2) * kept).sum(-1),
                };
                (key * sums.exp(), products)
            }
        };
        system = beta * system;
        let right = beta * (&self.value - einsum("bhtd,bhdv->bhtv", &[&first, &self.state]));
        // The inverse of blocks along the diagonal, twice as large in each turn: X' = X - X A X, where of A only what lies
        // below the diagonal between two neighbouring blocks counts.
        let (row, column) = (
            graph.iota([steps.clone(), 1.into()], 0, DType::I64),
            graph.iota([1.into(), steps.clone()], 1, DType::I64),
        );
        let mut inverse = graph
            .eye(&steps, &steps, 0, system.dtype())
            .broadcast_to(system.shape());
        let mut size = 1;
        while size < steps.as_const().unwrap_or(0) {
            let block = |t: &Tensor| t.floor_divide(size);
            let between = block(&row).eq(block(&column) + 1).logical_and((block(&row) % 2).eq(1));
            let part = between.select(&system, 0.0);
            inverse = &inverse - inverse.matmul(&part).matmul(&inverse);
            size *= 2;
        }
        inverse.matmul(&right)
    }
}

pub(super) fn attention(c: &mut Call<'_, '_, '_>) -> Answer {
    let (q, k, v) = (c.tensor(0)?, c.tensor(1)?, c.tensor(2)?);
    let (past, decay, beta) = (c.optional(3)?, c.optional(4)?, c.optional(5)?);
    let (decays, corrects) = match c.text("update_rule", "gated_delta")?.as_str() {
        "linear" => (false, false),
        "gated" => (true, false),
        "delta" => (false, true),
        "gated_delta" => (true, true),
        other => {
            return invalid(format!(
                "update_rule `{other}`; expected linear, gated, delta or gated_delta"
            ));
        }
    };
    if decays != decay.is_some() || corrects != beta.is_some() {
        return invalid("decay or beta that the update_rule does not have, or lacks; expected what it has");
    }
    let (q_heads, heads) = (c.int("q_num_heads", 0)?, c.int("kv_num_heads", 0)?);
    if heads < 1 || q_heads < 1 || q_heads % heads != 0 {
        return invalid(format!(
            "{q_heads} query heads for {heads}; expected a positive multiple"
        ));
    }
    let query = by_heads(&q, q_heads, "a query")?;
    let (key, value) = (by_heads(&k, heads, "a key")?, by_heads(&v, heads, "a value")?);
    let wide = query.dtype();
    let (Some(size), batch, length) = (query.dim(3).as_const(), q.dim(0), q.dim(1)) else {
        return unsupported("heads of symbolic size; expected a number");
    };
    if size < 1 || key.dim(3).as_const() != Some(size) {
        return invalid("query and key that do not belong together; expected one size");
    }
    let scale = match c.float("scale", 0.0)? {
        0.0 => 1.0 / (size as f64).sqrt(),
        scale => scale,
    };
    let decay = match decay {
        None => None,
        Some(d) if d.rank() == 3 && d.dim(2).as_const() == Some(heads) => Some(by_heads(&d, heads, "a decay")?),
        Some(d) if d.rank() == 3 && d.dim(2).as_const() == Some(heads * size) => Some(by_heads(&d, heads, "a decay")?),
        Some(_) => {
            return invalid(format!(
                "a decay of another width; expected {heads} or {}",
                heads * size
            ));
        }
    };
    let beta = match beta {
        None => None,
        Some(b) => match (b.rank(), b.dim(2).as_const()) {
            (3, Some(n)) if n == heads || n == 1 => Some(by_heads(&b, n, "a beta")?),
            _ => return invalid(format!("a beta of another width; expected {heads} or 1")),
        },
    };
    let shape = [batch.clone(), heads.into(), size.into(), value.dim(3)];
    let (state, state_dtype) = match past {
        Some(p) if p.shape() == shape => (p.cast(wide), p.dtype()),
        Some(_) => return invalid("a past state of another shape; expected [batch, kv heads, key size, value size]"),
        None => (c.graph().zeros(shape.to_vec(), wide), q.dtype()),
    };
    // [batch, heads, those that share one, length, size]
    let grouped = [
        batch.clone(),
        heads.into(),
        (q_heads / heads).into(),
        length.clone(),
        size.into(),
    ];
    let all = Heads {
        query: query.reshape(grouped),
        key,
        value,
        decay: decay.map(|d| d.cast(wide)),
        beta: beta.map(|b| b.cast(wide)),
        state,
    };
    if corrects && length.as_const().is_none_or(|n| n > MAX_STEPS) {
        return unsupported(format!(
            "an update_rule with a correction over a length that is not a number up to {MAX_STEPS}"
        ));
    }
    let (read, state) = all.closed();
    let width = all.value.dim(3) * q_heads;
    let y = (read * scale)
        .reshape([batch.clone(), q_heads.into(), length.clone(), all.value.dim(3)])
        .swap_axes(1, 2)
        .reshape([batch, length, width]);
    Ok(vec![y.cast(q.dtype()).into(), state.cast(state_dtype).into()])
}

/// A convolution of each channel by itself over what came before: the state is the end of what was seen.
pub(super) fn causal_conv(c: &mut Call<'_, '_, '_>) -> Answer {
    let (x, w, bias, past) = (c.tensor(0)?, c.tensor(1)?, c.optional(2)?, c.optional(3)?);
    let activated = match c.text("activation", "none")?.as_str() {
        "none" => false,
        "silu" | "swish" => true,
        other => return invalid(format!("activation `{other}`; expected none, silu or swish")),
    };
    if x.rank() != 3 || w.rank() != 3 {
        return invalid(format!(
            "an input of rank {} with a weight of rank {}; expected 3 and 3",
            x.rank(),
            w.rank()
        ));
    }
    let (Some(channels), Some(size)) = (w.dim(0).as_const(), w.dim(2).as_const()) else {
        return unsupported("a weight of symbolic extents; expected numbers");
    };
    if size < 1 || channels < 1 || w.dim(1).as_const() != Some(1) {
        return invalid("a weight that is not [channels, 1, size]; expected that, none of them 0");
    }
    let before = size - 1;
    let padded = match &past {
        Some(p) if p.rank() == 3 && p.dim(2).as_const() == Some(before) => tlc_record::concat(&[p, &x], 2),
        Some(_) => return invalid(format!("a past state of another shape; expected {before} elements")),
        None => x.pad(&[(0, 0), (0, 0), (before, 0)], x.dtype().zero()),
    };
    let y = padded.conv(&w, bias.as_ref(), &Conv::new().groups(channels as usize));
    let y = if activated { y.silu() } else { y };
    let state = padded.narrow(2, padded.dim(2) - before, before);
    Ok(vec![y.cast(x.dtype()).into(), state.into()])
}
