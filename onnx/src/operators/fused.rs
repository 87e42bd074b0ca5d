//! Operators of the domain `com.microsoft` that ONNX Runtime's optimizers put in place of several of ONNX's own: activations, products, norms and
//! convolutions with what comes before or behind them, as its documentation of contributed operators says them.

use tlc_ir::DType;

use super::attention::{Turn, turned};
use super::{activation, convolution, linear};
use crate::call::{Answer, Call, one};
use crate::refusal::{Outcome, invalid, unsupported};
use crate::value::Value;
use tlc_record::Tensor;
use tlc_record::dim::Dim;
use tlc_record::keep;

pub(super) fn gelu(c: &mut Call<'_, '_, '_>) -> Answer {
    one(c.tensor(0)?.gelu())
}

/// The first operand, with the second added if it is given.
fn biased(c: &Call<'_, '_, '_>) -> Outcome<Tensor> {
    let x = c.tensor(0)?;
    Ok(match c.optional(1)? {
        Some(bias) => x + bias,
        None => x,
    })
}

pub(super) fn bias_gelu(c: &mut Call<'_, '_, '_>) -> Answer {
    c.required(1)?;
    one(biased(c)?.gelu())
}

pub(super) fn fast_gelu(c: &mut Call<'_, '_, '_>) -> Answer {
    one(biased(c)?.gelu_tanh())
}

pub(super) fn quick_gelu(c: &mut Call<'_, '_, '_>) -> Answer {
    let x = c.tensor(0)?;
    let dtype = x.dtype();
    let y = x.cast(dtype.accumulator()).scaled_silu(c.float("alpha", 1.702)?);
    one(y.cast(dtype))
}

/// A product of matrices, with a bias if it is given.
pub(super) fn gemm_fast_gelu(c: &mut Call<'_, '_, '_>) -> Answer {
    let y = c.tensor(0)?.matmul(&c.tensor(1)?);
    let y = match c.optional(2)? {
        Some(bias) => y + bias,
        None => y,
    };
    one(y.gelu_tanh())
}

/// The softmax of a sum, over all axes from `axis` on.
pub(super) fn bias_softmax(c: &mut Call<'_, '_, '_>) -> Answer {
    let sum = sum_of(c, &[0, 1])?;
    // Before opset 13, softmax is over all of them too.
    c.version = 11;
    let dtype = c.tensor(0)?.dtype();
    one(c.with_inputs(vec![Some(sum.into())], activation::softmax)?.cast(dtype))
}

/// A product of matrices, times `alpha`. A matrix may have its rows before all other axes (`transBatch`), and its last two axes exchanged (`trans`).
pub(super) fn matmul(c: &mut Call<'_, '_, '_>) -> Answer {
    let operand = |at: usize, trans: &str, batch: &str| -> Outcome<Tensor> {
        let t = c.tensor(at)?;
        if t.rank() < 2 {
            return Ok(t);
        }
        let t = match c.flag(batch, false)? {
            true => t.move_axis(0, -2),
            false => t,
        };
        Ok(if c.flag(trans, false)? { t.swap_axes(-2, -1) } else { t })
    };
    let (a, b) = (
        operand(0, "transA", "transBatchA")?,
        operand(1, "transB", "transBatchB")?,
    );
    one(match c.float("alpha", 1.0)? {
        1.0 => a.matmul(&b),
        // Of 16 bits the multiple is rounded once.
        alpha if a.dtype().is_float() => (a.matmul_as(&b, a.dtype().accumulator()) * alpha).cast(a.dtype()),
        alpha => a.matmul(&b) * alpha,
    })
}

/// The sum of operands, of which those that are not the first broadcast to it.
fn sum_of(c: &Call<'_, '_, '_>, operands: &[usize]) -> Outcome<Tensor> {
    let first = c.tensor(operands[0])?;
    let (dtype, rank) = (first.dtype(), first.rank());
    let mut sum = first.cast(dtype.accumulator());
    for &at in &operands[1..] {
        if let Some(t) = c.optional(at)? {
            if t.rank() > rank {
                return invalid(format!(
                    "operand {at} of rank {}; expected at most the {rank} of operand {}",
                    t.rank(),
                    operands[0]
                ));
            }
            sum += t.cast(dtype.accumulator());
        }
    }
    Ok(sum)
}

/// A norm, and the statistics that it is by: the mean, and the reciprocal of the deviation or of the root of the mean square.
struct Normed {
    y: Tensor,
    mean: Tensor,
    inverse: Tensor,
}

/// `x` over the root of its mean square, or, where it is `centered`, less its mean over its deviation, along the axes from `axis` on; times
/// `gamma`, and `beta` added.
fn normed(x: &Tensor, centered: bool, axis: i64, eps: f64, (gamma, beta): (&Tensor, Option<&Tensor>)) -> Normed {
    let wide = x.dtype();
    let axes: Vec<i64> = (axis..x.rank() as i64).collect();
    let mean = x.mean(keep(axes.clone()));
    let from = if centered { x - &mean } else { x.clone() };
    let inverse = (from.square().mean(keep(axes.clone())) + eps).rsqrt();
    let y = match centered {
        true => x.standardize(axes, eps),
        false => x * &inverse,
    };
    let mut y = y * gamma.cast(wide);
    if let Some(beta) = beta {
        y += beta.cast(wide);
    }
    Normed { y, mean, inverse }
}

/// The norm of input, skip and bias added up, and that sum.
fn skip_norm(c: &Call<'_, '_, '_>, centered: bool, (beta, bias): (Option<usize>, usize)) -> Answer {
    let x = c.tensor(0)?;
    if x.rank() == 0 {
        return invalid("rank 0; expected at least 1");
    }
    let dtype = x.dtype();
    let sum = sum_of(c, &[0, 1, bias])?;
    let beta = beta.map(|at| c.optional(at)).transpose()?.flatten();
    let eps = c.float("epsilon", 1e-12)?;
    let n = normed(&sum, centered, x.rank() as i64 - 1, eps, (&c.tensor(2)?, beta.as_ref()));
    let y = n.y.cast(dtype);
    let statistic = |t: Tensor| Value::from(t.cast(DType::F32));
    Ok(vec![
        y.into(),
        statistic(n.mean),
        statistic(n.inverse),
        sum.cast(dtype).into(),
    ])
}

pub(super) fn skip_layer_norm(c: &mut Call<'_, '_, '_>) -> Answer {
    skip_norm(c, true, (Some(3), 4))
}

pub(super) fn skip_rms_norm(c: &mut Call<'_, '_, '_>) -> Answer {
    skip_norm(c, false, (None, 3))
}

/// The norm that opset 23 has as RMSNormalization, with the reciprocal of the root of the mean square.
pub(super) fn rms_norm(c: &mut Call<'_, '_, '_>) -> Answer {
    let x = c.tensor(0)?;
    let axis = c.axis(c.int("axis", -1)?, x.rank())? as i64;
    let scale = c.tensor(1)?;
    let wide = x.cast(x.dtype().accumulator());
    let n = normed(&wide, false, axis, c.float("epsilon", 1e-5)?, (&scale, None));
    Ok(vec![n.y.cast(scale.dtype()).into(), n.inverse.cast(DType::F32).into()])
}

/// An activation by name, with its parameters in the order alpha, beta, gamma.
fn activated(y: Tensor, name: &str, parameters: &[f64]) -> Outcome<Tensor> {
    let needed = match name {
        "LeakyRelu" | "ThresholdedRelu" | "Elu" => 1,
        "Clip" | "HardSigmoid" | "Selu" => 2,
        _ => 0,
    };
    if parameters.len() < needed {
        return invalid(format!(
            "{} parameters of the activation {name}; expected {needed}",
            parameters.len()
        ));
    }
    let (dtype, y) = (y.dtype(), y.cast(y.dtype().accumulator()));
    let z = match (name, parameters) {
        ("", _) => y,
        ("Relu", _) => y.relu(),
        ("Sigmoid", _) => y.sigmoid(),
        ("Tanh", _) => y.tanh(),
        ("Softplus", _) => y.softplus(),
        ("Softsign", _) => y.softsign(),
        ("LeakyRelu", &[alpha, ..]) => y.gt(0).select(&y, alpha * &y),
        ("ThresholdedRelu", &[alpha, ..]) => y.gt(alpha).select(&y, 0),
        ("Elu", &[alpha, ..]) => y.elu(alpha),
        ("Clip", &[low, high, ..]) => y.hard_tanh(low, high),
        ("HardSigmoid", &[alpha, beta, ..]) => (alpha * y + beta).hard_tanh(0.0, 1.0),
        ("Selu", &[alpha, gamma, ..]) => gamma * y.gt(0).select(&y, alpha * y.gt(0).select(0, &y).expm1()),
        (other, _) => {
            return unsupported(format!(
                "the activation `{other}`; expected Relu, LeakyRelu, ThresholdedRelu, Elu, Selu, Clip, Sigmoid, HardSigmoid, Tanh, Softplus or Softsign"
            ));
        }
    };
    Ok(z.cast(dtype))
}

/// A convolution, what is added to it, and an activation.
pub(super) fn conv(c: &mut Call<'_, '_, '_>) -> Answer {
    let (x, w, bias) = (c.tensor(0)?, c.tensor(1)?, c.optional(2)?);
    let y = convolution::convolved(c, &x, &w, bias.as_ref())?;
    let y = match c.optional(3)? {
        Some(z) => y + z,
        None => y,
    };
    let parameters = c.floats("activation_params")?.unwrap_or_default();
    one(activated(y, &c.text("activation", "")?, &parameters)?)
}

/// ONNX's Gemm, and an activation.
pub(super) fn gemm(c: &mut Call<'_, '_, '_>) -> Answer {
    let name = c.text("activation", "")?;
    // Those that Selu has are alpha and gamma.
    let names = match name.as_str() {
        "Selu" => ["activation_alpha", "activation_gamma"],
        _ => ["activation_alpha", "activation_beta"],
    };
    let given = names
        .iter()
        .map(|name| c.maybe_float(name))
        .collect::<Outcome<Vec<_>>>()?;
    let parameters: Vec<f64> = given.into_iter().map_while(|p| p).collect();
    match &linear::gemm(c)?[..] {
        [y] => one(activated(y.tensor(&c.graph())?, &name, &parameters)?),
        _ => invalid("several results; expected one"),
    }
}

/// Rows of a table by their number.
fn rows(table: &Tensor, ids: &Tensor) -> Outcome<Tensor> {
    match table.rank() {
        2 => Ok(table.take_from_start(ids, 0)),
        n => invalid(format!("an embedding of rank {n}; expected 2")),
    }
}

/// The floats that elements of operand `at` stand for.
pub(super) type Dequantize<'f> = &'f dyn Fn(&Call<'_, '_, '_>, Tensor, usize) -> Outcome<Tensor>;

/// The layer norm of a word's, its position's and its segment's embeddings added up; how many words the mask has; and that sum. Tables, scale and shift
/// are operands 2 to 6, whose elements are what `value` says; the operand `places` has positions, if it is given. The result is of that type.
pub(super) fn embedded(
    c: &mut Call<'_, '_, '_>,
    value: Dequantize<'_>,
    (places, dtype): (Option<usize>, DType),
) -> Answer {
    let ids = c.tensor(0)?;
    if ids.rank() != 2 {
        return invalid(format!("words of rank {}; expected batch and length", ids.rank()));
    }
    let words = rows(&c.tensor(2)?, &ids)?;
    let table = c.tensor(3)?;
    if table.rank() != 2 {
        return invalid(format!("an embedding of rank {}; expected 2", table.rank()));
    }
    let places = match places.map(|at| c.optional(at)).transpose()?.flatten() {
        Some(ids) => rows(&table, &ids)?,
        None => table.narrow(0, 0, ids.dim(1)),
    };
    let mut sum = value(c, words, 2)? + value(c, places, 3)?;
    match (c.optional(1)?, c.optional(4)?) {
        (Some(ids), Some(table)) => sum += value(c, rows(&table, &ids)?, 4)?,
        (None, None) => {}
        _ => return invalid("segments without their embedding, or the other way round; expected both"),
    }
    let eps = c.float("epsilon", 1e-12)?;
    let (gamma, beta) = (value(c, c.tensor(5)?, 5)?, value(c, c.tensor(6)?, 6)?);
    let n = normed(&sum, true, 2, eps, (&gamma, Some(&beta)));
    let counts = match c.optional(7)? {
        Some(mask) => mask.eq(1).cast(DType::I32).sum(1).cast(DType::I32),
        None => c.graph().full([ids.dim(0)], 0, DType::I32),
    };
    Ok(vec![n.y.cast(dtype).into(), counts.into(), sum.cast(dtype).into()])
}

pub(super) fn embed_layer_norm(c: &mut Call<'_, '_, '_>) -> Answer {
    let dtype = c.tensor(2)?.dtype();
    let wide = |_: &Call<'_, '_, '_>, t: Tensor, _| Ok(t.cast(dtype.accumulator()));
    embedded(c, &wide, (Some(8), dtype))
}

/// Rotary embedding by tables of cosines and sines for each position, `[positions, size / 2]`.
pub(super) fn rotary(c: &mut Call<'_, '_, '_>) -> Answer {
    let (x, ids) = (c.tensor(0)?, c.tensor(1)?);
    let (cos, sin) = (c.tensor(2)?, c.tensor(3)?);
    if c.float("scale", 1.0)? != 1.0 {
        return unsupported("a scale of rotary embedding; expected 1");
    }
    if c.flag("is_packed_batching", false)? {
        return unsupported("batches packed into one; expected is_packed_batching of 0");
    }
    if cos.rank() != 2 || sin.rank() != 2 {
        return invalid(format!(
            "tables of rank {} and {}; expected positions and half the size",
            cos.rank(),
            sin.rank()
        ));
    }
    let Some(half) = cos.dim(1).as_const().filter(|&n| n > 0) else {
        return unsupported("tables of symbolic or no width; expected a number");
    };
    let partial = c.int("rotary_embedding_dim", 0)?;
    let heads = c.int("num_heads", 0)?;
    if partial > 0 && heads < 1 {
        return invalid("rotary_embedding_dim without num_heads; expected both");
    }
    // [batch, length, heads, size]
    let apart = match x.rank() {
        4 => x.swap_axes(1, 2),
        3 if heads > 0 => x.reshape([x.dim(0), x.dim(1), heads.into(), x.dim(2) / heads]),
        3 => x.reshape([x.dim(0), x.dim(1), x.dim(2) / (2 * half), (2 * half).into()]),
        n => return invalid(format!("rank {n}; expected 3 or 4")),
    };
    let places = match ids.rank() {
        2 => ids,
        1 if ids.dim(0).as_const() == Some(1) => {
            let length = [Dim::from(1), apart.dim(1)];
            c.graph().iota(length, 1, ids.dtype()) + ids
        }
        _ => {
            return invalid(format!(
                "positions of rank {}; expected batch and length, or the first position alone",
                ids.rank()
            ));
        }
    };
    let wide = x.dtype().accumulator();
    let angles = |t: &Tensor| t.cast(wide).take_from_start(&places, 0).unsqueeze(2);
    let turn = Turn {
        cos: angles(&cos),
        sin: angles(&sin),
        size: partial,
        interleaved: c.flag("interleaved", false)?,
    };
    let y = turned(&apart, &turn)?;
    one(match x.rank() {
        4 => y.swap_axes(1, 2),
        _ => y.reshape(x.shape()),
    })
}
