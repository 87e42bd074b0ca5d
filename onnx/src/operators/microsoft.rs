//! Operators of the domain `com.microsoft` that ONNX Runtime's quantizer writes beside ONNX's own: operators on bytes with a scale and a zero point, as its
//! documentation of contributed operators says them. Values between bytes are f32; sums of products are i32.

use tlc_ir::DType;

use super::linear::centered;
use super::quantization::quantized;
use super::table::Run;
use super::{activation, arrange, pooling};
use crate::call::{Answer, Call, one};
use crate::refusal::{Outcome, invalid, unsupported};
use crate::signature::{MANY, Signature, row};
use tlc_record::Tensor;

/// The domain.
pub(crate) const DOMAIN: &str = "com.microsoft";

/// Its operators, sorted by name.
const OPERATORS: &[(Signature, Run)] = &[
    (
        row("QGemm", 1, (6, 9), (1, 1), "alpha=float transA=int transB=int"),
        gemm,
    ),
    (row("QLinearAdd", 1, (7, 8), (1, 1), ""), add),
    (
        row(
            "QLinearAveragePool",
            1,
            (4, 5),
            (1, 1),
            "auto_pad=text ceil_mode=int channels_last=int count_include_pad=int kernel_shape=ints! pads=ints strides=ints",
        ),
        average_pool,
    ),
    (row("QLinearConcat", 1, (3, MANY), (1, 1), "axis=int!"), concat),
    (
        row("QLinearGlobalAveragePool", 1, (5, 5), (1, 1), "channels_last=int"),
        global_average_pool,
    ),
    (row("QLinearLeakyRelu", 1, (4, 5), (1, 1), "alpha=float"), leaky_relu),
    (row("QLinearMul", 1, (7, 8), (1, 1), ""), mul),
    (row("QLinearSigmoid", 1, (4, 5), (1, 1), ""), sigmoid),
    (row("QLinearSoftmax", 1, (5, 5), (1, 1), "axis=int opset=int!"), softmax),
];

/// An operator of the domain.
///
/// # Errors
/// If there is none of that name here.
pub(crate) fn find(name: &str) -> Outcome<(&'static Signature, Run)> {
    match OPERATORS.iter().find(|(signature, _)| signature.name() == name) {
        Some((signature, run)) => Ok((signature, *run)),
        None => {
            let known: Vec<&str> = OPERATORS.iter().map(|(signature, _)| signature.name()).collect();
            unsupported(format!(
                "this operator of the domain `{DOMAIN}` is not supported; expected {}, or a function of the model",
                known.join(", ")
            ))
        }
    }
}

/// A number that is one for all elements.
fn number(t: Tensor) -> Outcome<Tensor> {
    match t.rank() == 0 || t.elements().as_const() == Some(1) {
        true => Ok(t.reshape(())),
        false => invalid(format!(
            "a scale or zero point of shape {:?}; expected one number",
            t.shape()
        )),
    }
}

/// Operand `at`, bytes, by the scale and the zero point behind it, in f32.
fn dequantized(c: &Call<'_, '_, '_>, at: usize) -> Outcome<Tensor> {
    let zero = c.optional(at + 2)?.map(number).transpose()?;
    let x = centered(&c.tensor(at)?, zero, 0)?;
    Ok(x.cast(DType::F32) * number(c.tensor(at + 1)?)?.cast(DType::F32))
}

/// Bytes of that type of a value, by the scale that is operand `at` and the zero point behind it.
fn requantized(c: &Call<'_, '_, '_>, y: &Tensor, at: usize, dtype: DType) -> Answer {
    let scale = number(c.tensor(at)?)?.cast(DType::F32);
    let zero = match c.optional(at + 1)? {
        Some(zero) => number(zero)?,
        None => c.graph().scalar(dtype.zero(), dtype),
    };
    one(quantized(&(y / scale), Some(zero)))
}

/// A float operator on bytes: they, a scale and a zero point, and those of the result.
fn on_floats(c: &mut Call<'_, '_, '_>, run: Run) -> Answer {
    if c.flag("channels_last", false)? {
        return unsupported("channels behind the space; expected channels_last of 0");
    }
    let dtype = c.tensor(0)?.dtype();
    let x = dequantized(c, 0)?;
    let all = std::mem::replace(&mut c.inputs, vec![Some(x.into())]);
    let y = run(c);
    c.inputs = all;
    match &y?[..] {
        [y] => requantized(c, &y.tensor(&c.graph())?, 3, dtype),
        _ => invalid("several results; expected one"),
    }
}

fn average_pool(c: &mut Call<'_, '_, '_>) -> Answer {
    on_floats(c, pooling::average_pool)
}

fn global_average_pool(c: &mut Call<'_, '_, '_>) -> Answer {
    on_floats(c, pooling::global_average_pool)
}

fn leaky_relu(c: &mut Call<'_, '_, '_>) -> Answer {
    on_floats(c, activation::leaky_relu)
}

fn sigmoid(c: &mut Call<'_, '_, '_>) -> Answer {
    on_floats(c, activation::sigmoid)
}

fn softmax(c: &mut Call<'_, '_, '_>) -> Answer {
    // Of which of ONNX's operator sets it is.
    c.version = c.int("opset", 13)?;
    on_floats(c, activation::softmax)
}

fn add(c: &mut Call<'_, '_, '_>) -> Answer {
    let y = dequantized(c, 0)? + dequantized(c, 3)?;
    requantized(c, &y, 6, c.tensor(0)?.dtype())
}

fn mul(c: &mut Call<'_, '_, '_>) -> Answer {
    let y = dequantized(c, 0)? * dequantized(c, 3)?;
    requantized(c, &y, 6, c.tensor(0)?.dtype())
}

/// The scale and the zero point of the result come first, then each part with its own.
fn concat(c: &mut Call<'_, '_, '_>) -> Answer {
    let n = c.inputs.len();
    if n < 5 || !(n - 2).is_multiple_of(3) {
        return invalid(format!(
            "{n} operands; expected a scale, a zero point, and three for each part"
        ));
    }
    let dtype = c.tensor(2)?.dtype();
    let parts = (2..n).step_by(3).map(|at| dequantized(c, at).map(|x| Some(x.into())));
    let parts = parts.collect::<Outcome<Vec<_>>>()?;
    let all = std::mem::replace(&mut c.inputs, parts);
    let y = arrange::concat(c);
    c.inputs = all;
    match &y?[..] {
        [y] => requantized(c, &y.tensor(&c.graph())?, 0, dtype),
        _ => invalid("several results; expected one"),
    }
}

/// A product of matrices of bytes with an i32 for each column; bytes again, or f32 if the result has no scale.
fn gemm(c: &mut Call<'_, '_, '_>) -> Answer {
    let (a, b) = (c.tensor(0)?, c.tensor(3)?);
    if a.rank() != 2 || b.rank() != 2 {
        return invalid(format!(
            "operands of rank {} and {}; expected matrices",
            a.rank(),
            b.rank()
        ));
    }
    let turned = |t: Tensor, by: bool| if by { t.t() } else { t };
    let dtype = a.dtype();
    let a = turned(centered(&a, Some(number(c.tensor(2)?)?), 0)?, c.flag("transA", false)?);
    // A scale and a zero point of the second matrix may be one for each column of the product.
    let b = turned(b, c.flag("transB", false)?);
    let b = centered(&b, Some(c.tensor(5)?), -1)?;
    let mut sums = a.matmul(&b);
    if let Some(bias) = c.optional(6)? {
        sums += bias.cast(DType::I32);
    }
    let scale = number(c.tensor(1)?)?.cast(DType::F32) * c.tensor(4)?.cast(DType::F32) * c.float("alpha", 1.0)?;
    let y = sums.cast(DType::F32) * scale;
    match c.value(7).is_some() {
        true => requantized(c, &y, 7, dtype),
        false => one(y),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted() {
        assert!(OPERATORS.windows(2).all(|w| w[0].0.name() < w[1].0.name()));
    }
}
