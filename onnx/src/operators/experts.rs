//! Mixtures of experts of the domain `com.microsoft`: each token is given to a few of many small networks, which its router's scores choose.

use crate::call::{Answer, Call, one};
use crate::refusal::{Outcome, invalid, unsupported};
use tlc_record::Tensor;
use tlc_record::dim::Dim;
use tlc_record::keep;

/// What an expert has between its products.
enum Activation {
    Relu,
    Gelu,
    Silu,
    Identity,
    /// The SiLU of a gate times a value; they lie side by side where they are of one product, or one behind the other.
    Gated {
        interleaved: bool,
    },
}

impl Activation {
    fn of(c: &Call<'_, '_, '_>) -> Outcome<Activation> {
        Ok(match c.text("activation_type", "relu")?.as_str() {
            "relu" => Activation::Relu,
            "gelu" => Activation::Gelu,
            "silu" => Activation::Silu,
            "identity" => Activation::Identity,
            "swiglu" => match c.int("swiglu_fusion", 0)? {
                1 => Activation::Gated { interleaved: true },
                2 => Activation::Gated { interleaved: false },
                n => return unsupported(format!("swiglu_fusion {n}; expected 1 or 2")),
            },
            other => {
                return unsupported(format!(
                    "the activation `{other}`; expected relu, gelu, silu, swiglu or identity"
                ));
            }
        })
    }

    /// The activation of `[experts, tokens, width]`.
    fn apply(&self, c: &Call<'_, '_, '_>, x: &Tensor) -> Outcome<Tensor> {
        Ok(match self {
            Activation::Relu => x.relu(),
            Activation::Gelu => x.gelu(),
            Activation::Silu => x.silu(),
            Activation::Identity => x.clone(),
            Activation::Gated { interleaved } => {
                let Some(width) = x.dim(2).as_const().filter(|n| n % 2 == 0) else {
                    return invalid(format!("gates and values of {}; expected an even width", x.type_text()));
                };
                let part = |at: i64| match interleaved {
                    true => x
                        .reshape([x.dim(0), x.dim(1), (width / 2).into(), 2.into()])
                        .select_index(3, at),
                    false => x.narrow(2, at * (width / 2), width / 2),
                };
                let (mut gate, mut value) = (part(0), part(1));
                if let Some(limit) = c.maybe_float("swiglu_limit")? {
                    gate = gate.not_above(limit);
                    value = value.hard_tanh(-limit, limit);
                }
                let (alpha, beta) = (c.float("activation_alpha", 1.0)?, c.float("activation_beta", 0.0)?);
                gate.scaled_silu(alpha) * (value + beta)
            }
        })
    }
}

/// How much of each expert a token has, `[tokens, experts]`: 0 but for the few of the highest scores.
fn shares(c: &Call<'_, '_, '_>, scores: &Tensor) -> Outcome<Tensor> {
    let count = c.int("k", 1)?;
    let Some(experts) = scores.dim(1).as_const() else {
        return unsupported("a symbolic number of experts; expected a number");
    };
    if !(1..=experts).contains(&count) {
        return invalid(format!("k of {count} for {experts} experts; expected 1 to {experts}"));
    }
    // Of equal ones ONNX Runtime takes the last.
    let all = scores.softmax(-1).flip(-1);
    let (most, which) = all.top_k(count, 1, true);
    let which = (experts - 1) - which;
    let most = match c.flag("normalize_routing_weights", false)? {
        true => &most / most.sum(keep(-1)),
        false => most,
    };
    // [tokens, k, experts]
    let chosen = which
        .unsqueeze(-1)
        .eq(scores.graph().iota([1, 1, experts], 2, which.dtype()));
    Ok(chosen.select(most.unsqueeze(-1), 0.0).sum(1))
}

pub(super) fn mixture(c: &mut Call<'_, '_, '_>) -> Answer {
    if c.flag("use_sparse_mixer", false)? {
        return unsupported("a sparse mixer; expected use_sparse_mixer of 0");
    }
    if c.value(6).is_some() || c.value(7).is_some() {
        return unsupported("a third product in operand 6; expected two");
    }
    if c.flag("swiglu_limit_after_activation", false)? {
        return unsupported("a limit behind the activation; expected swiglu_limit_after_activation of 0");
    }
    let activation = Activation::of(c)?;
    let (x, scores) = (c.tensor(0)?, c.tensor(1)?);
    let (first, second) = (c.tensor(2)?, c.tensor(4)?);
    if !(2..=3).contains(&x.rank()) || [scores.rank(), first.rank(), second.rank()] != [2, 3, 3] {
        return invalid(format!(
            "an input of rank {}, scores of rank {} and weights of rank {} and {}; expected 2 or 3, 2, 3 and 3",
            x.rank(),
            scores.rank(),
            first.rank(),
            second.rank()
        ));
    }
    let (dtype, wide) = (x.dtype(), x.dtype().accumulator());
    let shares = shares(c, &scores.cast(wide))?;
    let tokens = x.reshape([scores.dim(0), x.dim(-1)]);
    let biased = |y: Tensor, at: usize| -> Outcome<Tensor> {
        Ok(match c.optional(at)? {
            Some(bias) if bias.rank() == 2 => y + bias.cast(wide).unsqueeze(1),
            Some(bias) => return invalid(format!("a bias of rank {}; expected 2", bias.rank())),
            None => y,
        })
    };
    // Every expert is given every token: which of them few tokens need is known only when they come.
    let inner = tokens.unsqueeze(0).matmul_as(&first.swap_axes(1, 2), wide);
    let inner = activation.apply(c, &biased(inner, 3)?)?.cast(dtype);
    let outer = biased(inner.matmul_as(&second.swap_axes(1, 2), wide), 5)?;
    let y = (outer * shares.t().unsqueeze(-1)).sum(0);
    let shape: Vec<Dim> = x.shape();
    one(y.cast(dtype).reshape(shape))
}
