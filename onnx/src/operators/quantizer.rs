//! Operators of the domain `com.microsoft` that ONNX Runtime's quantizer writes: on bytes with a scale and a zero point, whose values between bytes are f32 and
//! sums of products i32.

use tlc_ir::DType;

use super::fused_attention::{self, Slots};
use super::linear::centered;
use super::quantization::{self, quantized};
use super::table::Run;
use super::{activation, arrange, channels_last, convolution, fused, pooling, reduction};
use crate::call::{Answer, Call, one};
use crate::refusal::{Outcome, invalid};
use crate::value::Value;
use tlc_record::Tensor;

/// A number that is one for all elements.
pub(super) fn number(t: Tensor) -> Outcome<Tensor> {
    match t.rank() == 0 || t.elements().as_const() == Some(1) {
        true => Ok(t.reshape(())),
        false => invalid(format!(
            "a scale or zero point of {}; expected one number",
            t.type_text()
        )),
    }
}

/// Operand `at`, bytes, by the scale and the zero point behind it, in f32.
pub(super) fn dequantized(c: &Call<'_, '_, '_>, at: usize) -> Outcome<Tensor> {
    let zero = c.optional(at + 2)?.map(number).transpose()?;
    let x = centered(&c.tensor(at)?, zero, 0)?;
    Ok(x.cast(DType::F32) * number(c.tensor(at + 1)?)?.cast(DType::F32))
}

/// Bytes of that type of a value, by the scale that is operand `at` and the zero point behind it.
pub(super) fn requantized(c: &Call<'_, '_, '_>, y: &Tensor, at: usize, dtype: DType) -> Answer {
    let scale = number(c.tensor(at)?)?.cast(DType::F32);
    let zero = match c.optional(at + 1)? {
        Some(zero) => number(zero)?,
        None => c.graph().scalar(dtype.zero(), dtype),
    };
    one(quantized(&(y / scale), Some(zero)))
}

/// A float operator on bytes: they, a scale and a zero point, and those of the result.
pub(super) fn on_floats(c: &mut Call<'_, '_, '_>, run: Run) -> Answer {
    let dtype = c.tensor(0)?.dtype();
    let x = dequantized(c, 0)?;
    let y = c.with_inputs(vec![Some(x.into())], run)?;
    requantized(c, &y, 3, dtype)
}

pub(super) fn average_pool(c: &mut Call<'_, '_, '_>) -> Answer {
    // ONNX Runtime divides by the size of the window, as ONNX's operator did at first.
    on_floats(c, |c| channels_last::where_asked(c, |c| pooling::averaged(c, true)))
}

pub(super) fn global_average_pool(c: &mut Call<'_, '_, '_>) -> Answer {
    on_floats(c, |c| channels_last::where_asked(c, pooling::global_average_pool))
}

pub(super) fn leaky_relu(c: &mut Call<'_, '_, '_>) -> Answer {
    on_floats(c, activation::leaky_relu)
}

pub(super) fn sigmoid(c: &mut Call<'_, '_, '_>) -> Answer {
    on_floats(c, activation::sigmoid)
}

pub(super) fn softmax(c: &mut Call<'_, '_, '_>) -> Answer {
    // Of which of ONNX's operator sets it is.
    c.version = c.int("opset", 13)?;
    let dtype = c.tensor(0)?.dtype();
    let x = dequantized(c, 0)?;
    let y = c.with_inputs(vec![Some(x.into())], activation::softmax)?;
    // ONNX Runtime multiplies by the reciprocal of the scale without its fraction, and not by 255 where the scale is 1/255 in f32.
    let times = (1.0 / number(c.tensor(3)?)?.cast(DType::F32)).floor();
    let zero = match c.optional(4)? {
        Some(zero) => number(zero)?,
        None => c.graph().scalar(dtype.zero(), dtype),
    };
    one(quantized(&(y * times), Some(zero)))
}

pub(super) fn reduce_mean(c: &mut Call<'_, '_, '_>) -> Answer {
    // Axes are an attribute.
    c.version = 13;
    on_floats(c, reduction::mean)
}

/// A sum of bytes in 32 bits.
pub(super) fn reduce_sum(c: &mut Call<'_, '_, '_>) -> Answer {
    let x = c.tensor(0)?;
    let wide = match x.dtype() {
        DType::I8 => DType::I32,
        DType::U8 => DType::U32,
        other => return invalid(format!("a sum of {other}; expected i8 or u8")),
    };
    c.version = 11;
    one(c.with_inputs(vec![Some(x.cast(wide).into())], reduction::sum)?)
}

pub(super) fn conv(c: &mut Call<'_, '_, '_>) -> Answer {
    channels_last::where_asked(c, convolution::qlinear_conv)
}

/// Either of two by a condition, each with a scale and a zero point.
pub(super) fn select(c: &mut Call<'_, '_, '_>) -> Answer {
    let condition = c.tensor(0)?;
    if condition.dtype() != DType::Bool {
        return invalid(format!("a condition of {}; expected bool", condition.dtype()));
    }
    let y = condition.select(dequantized(c, 1)?, dequantized(c, 4)?);
    requantized(c, &y, 7, c.tensor(1)?.dtype())
}

/// A product of bytes less their zero points, in i32.
pub(super) fn mul_integer(c: &mut Call<'_, '_, '_>) -> Answer {
    let less = |at: usize| -> Outcome<Tensor> {
        let zero = c.optional(at + 1)?.map(number).transpose()?;
        centered(&c.tensor(at)?, zero, 0)
    };
    one(less(0)? * less(2)?)
}

/// A product of matrices of 16 bits, in i32 or, where neither has a sign, in u32.
pub(super) fn matmul_16(c: &mut Call<'_, '_, '_>) -> Answer {
    let (a, b) = (c.tensor(0)?, c.tensor(1)?);
    let wide = match (a.dtype(), b.dtype()) {
        (DType::I16, DType::I16) => DType::I32,
        (DType::U16, DType::U16) => DType::U32,
        (a, b) => return invalid(format!("a product of {a} and {b}; expected i16 or u16 of both")),
    };
    one(a.cast(wide).matmul(&b.cast(wide)))
}

/// A scale, or a zero point that is 0 unless it is given, as one f32.
fn parameter(c: &Call<'_, '_, '_>, at: usize) -> Outcome<Tensor> {
    match c.optional(at)? {
        Some(t) => Ok(number(t)?.cast(DType::F32)),
        None => Ok(c.graph().scalar(0.0, DType::F32)),
    }
}

/// A sum whose steps are rounded as ONNX Runtime rounds them: what does not depend on the bytes is added up first.
pub(super) fn add(c: &mut Call<'_, '_, '_>) -> Answer {
    let (a, b) = (c.tensor(0)?, c.tensor(3)?);
    let scale = |at: usize| -> Outcome<Tensor> { Ok(number(c.tensor(at)?)?.cast(DType::F32)) };
    let (of_a, of_b) = (scale(1)? / scale(6)?, scale(4)? / scale(6)?);
    let fixed = parameter(c, 7)? - (&of_a * parameter(c, 2)? + &of_b * parameter(c, 5)?);
    let y = a.cast(DType::F32) * of_a + (b.cast(DType::F32) * of_b + fixed);
    one(y.round().cast(a.dtype()))
}

/// As [`add`]: a product of integers, times one scale.
pub(super) fn mul(c: &mut Call<'_, '_, '_>) -> Answer {
    let less = |at: usize| -> Outcome<Tensor> {
        let zero = c.optional(at + 2)?.map(number).transpose()?;
        centered(&c.tensor(at)?, zero, 0)
    };
    let scale = |at: usize| -> Outcome<Tensor> { Ok(number(c.tensor(at)?)?.cast(DType::F32)) };
    let product = (less(0)? * less(3)?).cast(DType::F32);
    let y = product * (scale(1)? * scale(4)? / scale(6)?) + parameter(c, 7)?;
    one(y.round().cast(c.tensor(0)?.dtype()))
}

/// The scale and the zero point of the result come first, then each part with its own.
pub(super) fn concat(c: &mut Call<'_, '_, '_>) -> Answer {
    let n = c.inputs.len();
    if n < 5 || !(n - 2).is_multiple_of(3) {
        return invalid(format!(
            "{n} operands; expected a scale, a zero point, and three for each part"
        ));
    }
    let dtype = c.tensor(2)?.dtype();
    let parts = (2..n).step_by(3).map(|at| dequantized(c, at).map(|x| Some(x.into())));
    let parts = parts.collect::<Outcome<Vec<_>>>()?;
    let y = c.with_inputs(parts, arrange::concat)?;
    requantized(c, &y, 0, dtype)
}

/// A product of matrices of bytes with an i32 for each column; bytes again, or f32 if the result has no scale.
pub(super) fn gemm(c: &mut Call<'_, '_, '_>) -> Answer {
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

/// A product of bytes in f32, times a scale that is one number or one a column, and with a bias that is operand `bias`. Zero points are one number
/// of the first matrix, and one or one a column of the second.
pub(super) fn scaled_product(
    c: &Call<'_, '_, '_>,
    (a, a_zero): (&Tensor, Option<Tensor>),
    (b, b_zero): (&Tensor, Option<Tensor>),
    scale: &Tensor,
    bias: usize,
) -> Outcome<Tensor> {
    let a = centered(a, a_zero.map(number).transpose()?, 0)?;
    let y = a.matmul(&centered(b, b_zero, -1)?).cast(DType::F32) * scale;
    Ok(match c.optional(bias)? {
        Some(bias) => y + bias,
        None => y,
    })
}

/// A scale for each column, or for all.
pub(super) fn per_column(scale: Tensor) -> Tensor {
    match scale.elements().as_const() {
        Some(1) => scale.reshape(()),
        _ => scale,
    }
}

pub(super) fn matmul_to_float(c: &mut Call<'_, '_, '_>) -> Answer {
    let scale = number(c.tensor(2)?)? * per_column(c.tensor(3)?);
    let (a, b) = (c.tensor(0)?, c.tensor(1)?);
    let y = scaled_product(c, (&a, c.optional(4)?), (&b, c.optional(5)?), &scale, 6)?;
    one(y.cast(scale.dtype()))
}

/// A product whose first matrix is put into bytes by its range first.
pub(super) fn dynamic_matmul(c: &mut Call<'_, '_, '_>) -> Answer {
    let bytes = quantization::in_bytes(&c.tensor(0)?);
    let scale = bytes.scale * per_column(c.tensor(2)?);
    let b = c.tensor(1)?;
    one(scaled_product(
        c,
        (&bytes.y, Some(bytes.zero)),
        (&b, c.optional(3)?),
        &scale,
        4,
    )?)
}

/// Attention whose projections are a product of bytes.
pub(super) fn attention(c: &mut Call<'_, '_, '_>) -> Answer {
    let slots = Slots {
        padding: 5,
        bias: None,
        past: 8,
    };
    let (x, w) = fused_attention::projection(c)?;
    let scale = number(c.tensor(3)?)? * per_column(c.tensor(4)?);
    let all = scaled_product(c, (&x, c.optional(6)?), (&w, c.optional(7)?), &scale, 2)?;
    let results = fused_attention::of_projected(c, &all, w.dim(1), &slots)?;
    let in_type_of_scale = |r: Value| match r {
        Value::Tensor(t, origin) => Value::Tensor(t.cast(scale.dtype()), origin),
        other => other,
    };
    Ok(results.into_iter().map(in_type_of_scale).collect())
}

/// The norm of embeddings whose tables, and its scale and shift, are bytes: operands 2 to 6, each with a scale 6 places and a zero point 11 places further.
pub(super) fn embed_layer_norm(c: &mut Call<'_, '_, '_>) -> Answer {
    let value = |c: &Call<'_, '_, '_>, t: Tensor, at: usize| -> Outcome<Tensor> {
        let zero = c.optional(at + 11)?.map(number).transpose()?;
        let t = centered(&t, zero, 0)?.cast(DType::F32);
        Ok(t * number(c.tensor(at + 6)?)?.cast(DType::F32))
    };
    let mut results = fused::embedded(c, &value, (None, DType::F32))?;
    // The sum before the norm is no result.
    results.truncate(2);
    Ok(results)
}
