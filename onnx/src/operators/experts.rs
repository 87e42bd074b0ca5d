//! Mixtures of experts of the domain `com.microsoft`: each token is given to a few of many small networks, which its router's scores choose.

use super::few_bits::{self, FewBits};
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
    /// The SiLU of a gate times a value: those of one product lie side by side or one behind the other, or the value is a product of its own.
    Gated(Layout),
}

#[derive(Clone, Copy, PartialEq)]
enum Layout {
    Apart,
    Interleaved,
    Halves,
}

impl Activation {
    fn of(c: &Call<'_, '_, '_>) -> Outcome<Activation> {
        Ok(match c.text("activation_type", "relu")?.as_str() {
            "relu" => Activation::Relu,
            "gelu" => Activation::Gelu,
            "silu" => Activation::Silu,
            "identity" => Activation::Identity,
            "swiglu" => Activation::Gated(match c.int("swiglu_fusion", 0)? {
                0 => Layout::Apart,
                1 => Layout::Interleaved,
                2 => Layout::Halves,
                n => return invalid(format!("swiglu_fusion {n}; expected 0 to 2")),
            }),
            other => {
                return unsupported(format!(
                    "the activation `{other}`; expected relu, gelu, silu, swiglu or identity"
                ));
            }
        })
    }

    /// The activation of `[experts, tokens, width]`, times the third product if there is one.
    fn apply(&self, c: &Call<'_, '_, '_>, x: &Tensor, third: Option<Tensor>) -> Outcome<Tensor> {
        let y = match self {
            Activation::Relu => x.relu(),
            Activation::Gelu => x.gelu(),
            Activation::Silu => x.silu(),
            Activation::Identity => x.clone(),
            Activation::Gated(layout) => return gated(c, x, third, *layout),
        };
        Ok(match third {
            Some(third) => y * third,
            None => y,
        })
    }
}

/// The SiLU of a gate times a value, both within limits.
fn gated(c: &Call<'_, '_, '_>, x: &Tensor, third: Option<Tensor>, layout: Layout) -> Outcome<Tensor> {
    let (mut gate, mut value) = match (layout, third) {
        (Layout::Apart, Some(third)) => (x.clone(), third),
        (Layout::Apart, None) => return invalid("swiglu_fusion 0 without a third product; expected one"),
        (_, Some(_)) => return invalid("a third product beside one of gates and values; expected swiglu_fusion of 0"),
        (_, None) => {
            let Some(width) = x.dim(2).as_const().filter(|n| n % 2 == 0) else {
                return invalid(format!("gates and values of {}; expected an even width", x.type_text()));
            };
            let part = |at: i64| match layout {
                Layout::Interleaved => x
                    .reshape([x.dim(0), x.dim(1), (width / 2).into(), 2.into()])
                    .select_index(3, at),
                _ => x.narrow(2, at * (width / 2), width / 2),
            };
            (part(0), part(1))
        }
    };
    if let Some(limit) = c.maybe_float("swiglu_limit")? {
        gate = gate.not_above(limit);
        value = value.hard_tanh(-limit, limit);
    }
    let (alpha, beta) = (c.float("activation_alpha", 1.0)?, c.float("activation_beta", 0.0)?);
    Ok(gate.scaled_silu(alpha) * (value + beta))
}

/// How much of each expert a token has, `[tokens, experts]`: 0 but for the few of the highest scores, which other numbers may stand for.
fn shares(c: &Call<'_, '_, '_>, scores: &Tensor, (mixing, normalized): (Option<&Tensor>, bool)) -> Outcome<Tensor> {
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
    // [tokens, k, experts]
    let chosen = which
        .unsqueeze(-1)
        .eq(scores.graph().iota([1, 1, experts], 2, which.dtype()));
    let most = match mixing {
        Some(mixing) if mixing.rank() == 2 => chosen.select(mixing.unsqueeze(1), 0.0).sum(2),
        Some(mixing) => return invalid(format!("router_weights of rank {}; expected 2", mixing.rank())),
        None => most,
    };
    let most = match normalized {
        true => &most / most.sum(keep(-1)),
        false => most,
    };
    Ok(chosen.select(most.unsqueeze(-1), 0.0).sum(1))
}

/// Weights of experts, `[experts, outputs, inputs]`, with where their bias is.
struct Product {
    weights: Tensor,
    bias: usize,
}

pub(super) fn mixture(c: &mut Call<'_, '_, '_>) -> Answer {
    let product = |weights: usize, bias: usize| -> Outcome<Option<Product>> {
        Ok(c.optional(weights)?.map(|weights| Product { weights, bias }))
    };
    let products = [product(2, 3)?, product(4, 5)?, product(6, 7)?];
    mixed(c, products, (None, c.flag("normalize_routing_weights", false)?))
}

/// A mixture of experts whose weights are numbers of a few bits, in blocks along their inputs or in one.
pub(super) fn quantized_mixture(c: &mut Call<'_, '_, '_>) -> Answer {
    if let kind = c.text("quant_type", "int")?
        && kind != "int"
    {
        return unsupported(format!("quant_type {kind}; expected int"));
    }
    if let Some(at) = (15..21).find(|&at| c.value(at).is_some()) {
        return unsupported(format!("operand {at}; expected none from 15 on"));
    }
    let bits = c.int("expert_weight_bits", 4)?;
    let own = |name: &str| c.int(name, bits);
    let all = [
        own("fc1_expert_weight_bits")?,
        own("fc2_expert_weight_bits")?,
        own("fc3_expert_weight_bits")?,
    ];
    let mut products = [None, None, None];
    for (i, product) in products.iter_mut().enumerate() {
        let at = 2 + 3 * i;
        if c.value(at).is_some() {
            let slots = FewBits {
                weights: at,
                scales: at + 1,
                zeros: 11 + i,
            };
            *product = Some(Product {
                weights: few_bits::experts(c, &slots, all[i])?,
                bias: at + 2,
            });
        }
    }
    let weights = c.optional(14)?;
    // ONNX Runtime's CPU provider takes the softmax of the chosen scores alone, whether the node says so or not.
    let normalized = weights.is_none() || c.flag("normalize_routing_weights", false)?;
    mixed(c, products, (weights, normalized))
}

/// The experts' results, each times the share that a token has of it.
fn mixed(c: &Call<'_, '_, '_>, products: [Option<Product>; 3], (mixing, normalized): (Option<Tensor>, bool)) -> Answer {
    if c.flag("use_sparse_mixer", false)? {
        return unsupported("a sparse mixer; expected use_sparse_mixer of 0");
    }
    if c.flag("swiglu_limit_after_activation", false)? {
        return unsupported("a limit behind the activation; expected swiglu_limit_after_activation of 0");
    }
    let activation = Activation::of(c)?;
    let (x, scores) = (c.tensor(0)?, c.tensor(1)?);
    let [Some(first), Some(second), third] = products else {
        return invalid("experts without a first or a second product; expected both");
    };
    let rank_of = |product: &Product| product.weights.rank();
    if !(2..=3).contains(&x.rank())
        || [scores.rank(), rank_of(&first), rank_of(&second)] != [2, 3, 3]
        || third.as_ref().is_some_and(|third| rank_of(third) != 3)
    {
        return invalid(format!(
            "an input of rank {}, scores of rank {} and weights of rank {} and {}; expected 2 or 3, 2, and 3 of all weights",
            x.rank(),
            scores.rank(),
            rank_of(&first),
            rank_of(&second)
        ));
    }
    let (dtype, wide) = (x.dtype(), x.dtype().accumulator());
    let mixing = mixing.map(|t| t.cast(wide));
    let shares = shares(c, &scores.cast(wide), (mixing.as_ref(), normalized))?;
    let tokens = x.reshape([scores.dim(0), x.dim(-1)]);
    // Every expert is given every token: which of them few tokens need is known only when they come.
    let product = |x: &Tensor, by: &Product| -> Outcome<Tensor> {
        let x = match by.weights.dtype() == x.dtype() {
            true => x.clone(),
            false => x.cast(by.weights.dtype()),
        };
        let y = x.matmul_as(&by.weights.swap_axes(1, 2), wide);
        Ok(match c.optional(by.bias)? {
            Some(bias) if bias.rank() == 2 => y + bias.cast(wide).unsqueeze(1),
            Some(bias) => return invalid(format!("a bias of rank {}; expected 2", bias.rank())),
            None => y,
        })
    };
    let tokens = tokens.unsqueeze(0);
    let third = third.map(|third| product(&tokens, &third)).transpose()?;
    let inner = activation.apply(c, &product(&tokens, &first)?, third)?;
    let outer = product(&inner.cast(dtype), &second)?;
    let y = (outer * shares.t().unsqueeze(-1)).sum(0);
    let shape: Vec<Dim> = x.shape();
    one(y.cast(dtype).reshape(shape))
}
