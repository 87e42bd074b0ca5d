//! Quantized numbers: conversions and products.

use tlc_ir::DType;

use super::linear::centered;
use crate::call::{Answer, Call, one};
use crate::refusal::{Outcome, invalid};
use crate::value::Value;
use tlc_record::Tensor;
use tlc_record::dim::Dim;
use tlc_record::ops::storage::Conversion;

/// A scale or zero point as it lies along `x`: one number, one along an axis, or one for each block of an axis.
fn along(p: &Tensor, x: &Tensor, axis: i64, block: i64) -> Outcome<Tensor> {
    if p.rank() == 0 || (p.rank() == 1 && p.dim(0).as_const() == Some(1)) {
        return Ok(p.reshape(()));
    }
    let axis = match tlc_record::dim::resolve_axis(axis, x.rank()) {
        Some(axis) => axis,
        None => {
            return invalid(format!(
                "axis {axis} of a tensor of rank {}; expected an axis of it",
                x.rank()
            ));
        }
    };
    if p.rank() == 1 && block == 0 {
        let mut shape = vec![Dim::from(1); x.rank()];
        shape[axis] = p.dim(0);
        return Ok(p.reshape(shape));
    }
    if block < 1 || p.rank() != x.rank() {
        return invalid(format!(
            "a scale of rank {} in blocks of {block}; expected the tensor's rank",
            p.rank()
        ));
    }
    let repeated = p.repeat(block, axis as i64);
    Ok(match repeated.dim(axis as i64) == x.dim(axis as i64) {
        true => repeated,
        false => repeated.narrow(axis as i64, 0, x.dim(axis as i64)),
    })
}

/// Shifted by a 4-bit float's zero point (that of the 8-bit ones is 0), and converted.
fn quantized_float(x: &Tensor, zero: Option<Tensor>, dtype: DType, how: Conversion) -> Tensor {
    match zero {
        Some(zero) if dtype == DType::F4E2M1FN => (x + zero.cast(x.dtype())).cast_with(dtype, how),
        _ => x.cast_with(dtype, how),
    }
}

/// Rounded half to even, shifted by the zero point, and saturated to its dtype (u8 without one).
pub(super) fn quantized(x: &Tensor, zero: Option<Tensor>) -> Tensor {
    let dtype = zero.as_ref().map_or(DType::U8, Tensor::dtype);
    if dtype.is_storage_float() {
        return quantized_float(x, zero, dtype, Conversion::default());
    }
    let mut y = x.round();
    if let Some(zero) = zero {
        y += zero.cast(x.dtype());
    }
    y.cast(dtype)
}

pub(super) fn quantize(c: &mut Call<'_, '_, '_>) -> Answer {
    let (x, scale) = (c.tensor(0)?, c.tensor(1)?);
    let (axis, block) = (c.int("axis", 1)?, c.int("block_size", 0)?);
    let zero = c.optional(2)?;
    let dtype = match (c.int("output_dtype", 0)?, &zero) {
        (0, Some(z)) => z.dtype(),
        (0, None) => DType::U8,
        (number, _) => tlc_formats::onnx::dtype(number)?,
    };
    let precision = match (c.int("precision", 0)?, scale.dtype()) {
        (0, d) if d.is_float() => d,
        (0, _) if x.dtype().is_float() => x.dtype(),
        (0, _) => DType::F32,
        (number, _) => tlc_formats::onnx::dtype(number)?,
    };
    if !precision.is_float() {
        return invalid(format!("a division in {precision}; expected a float type"));
    }
    let scaled = x.cast(precision) / along(&scale.cast(precision), &x, axis, block)?;
    let zero = zero.map(|z| along(&z, &x, axis, block)).transpose()?;
    if dtype.is_storage_float() {
        let how = Conversion {
            saturate: c.flag("saturate", true)?,
            ..Conversion::default()
        };
        return one(quantized_float(&scaled, zero, dtype, how));
    }
    if dtype.is_float() || dtype == DType::Bool {
        return invalid(format!(
            "a result of {dtype}; expected an integer or a float of 8 or 4 bits"
        ));
    }
    let zero = zero.unwrap_or_else(|| c.graph().scalar(dtype.zero(), dtype));
    // Shifted where no zero point is lost.
    let wide = if precision == DType::F64 { precision } else { DType::F32 };
    one(quantized(&scaled.cast(wide), Some(zero)))
}

pub(super) fn dequantize(c: &mut Call<'_, '_, '_>) -> Answer {
    let (x, scale) = (c.tensor(0)?, c.tensor(1)?);
    let (axis, block) = (c.int("axis", 1)?, c.int("block_size", 0)?);
    let dtype = match c.int("output_dtype", 0)? {
        0 => scale.dtype(),
        number => tlc_formats::onnx::dtype(number)?,
    };
    if !dtype.is_float() {
        return invalid(format!("a result of {dtype}; expected f16, bf16, f32 or f64"));
    }
    let zero = c.optional(2)?;
    one(dequantized(&x, &scale, zero.as_ref(), (axis, block), dtype)?)
}

/// `(x - zero) * scale`, where scale and zero point lie along `x` as [`along`] says.
pub(super) fn dequantized(
    x: &Tensor,
    scale: &Tensor,
    zero: Option<&Tensor>,
    (axis, block): (i64, i64),
    dtype: DType,
) -> Outcome<Tensor> {
    let wide = dtype.accumulator();
    // Differences are exact: of storage types in f32, of small integers in i32, of the others in i64.
    let exact = match x.dtype() {
        d if d.is_float() || zero.is_some_and(|z| z.dtype().is_float()) => wide,
        d if d.is_storage() => DType::F32,
        d if d.bits() <= 16 => DType::I32,
        _ => DType::I64,
    };
    let mut y = x.cast(exact);
    if let Some(zero) = zero {
        y = &y - along(zero, x, axis, block)?.cast(exact);
    }
    Ok((y.cast(wide) * along(&scale.cast(wide), x, axis, block)?).cast(dtype))
}

/// Numbers of u8 with the scale and the zero point that they are by.
pub(super) struct InBytes {
    pub(super) y: Tensor,
    pub(super) scale: Tensor,
    pub(super) zero: Tensor,
}

/// By a scale and a zero point from the range of the data, which always holds 0.
pub(super) fn in_bytes(x: &Tensor) -> InBytes {
    let (hi, lo) = (x.max(..).maximum(0), x.min(..).minimum(0));
    let scale = (&hi - &lo) / 255.0;
    // Of zeros alone it is 1, as in ONNX Runtime.
    let scale = scale.eq(0.0).select(1.0, &scale);
    let zero = (-&lo / &scale).round().clamp(0.0, 255.0).cast(DType::U8);
    let y = quantized(&(x / &scale), Some(zero.clone()));
    InBytes { y, scale, zero }
}

pub(super) fn dynamic(c: &mut Call<'_, '_, '_>) -> Answer {
    let InBytes { y, scale, zero } = in_bytes(&c.tensor(0)?);
    Ok(vec![y.into(), Value::from(scale), zero.into()])
}

pub(super) fn qlinear_matmul(c: &mut Call<'_, '_, '_>) -> Answer {
    let a = centered(&c.tensor(0)?, Some(c.tensor(2)?), -2)?;
    let b = centered(&c.tensor(3)?, Some(c.tensor(5)?), -1)?;
    let sums = a.matmul(&b);
    let column = |t: Tensor| match t.rank() == 1 && t.dim(0).as_const() != Some(1) {
        true => t.unsqueeze(-1),
        false if t.rank() <= 1 => t.reshape(()),
        false => t,
    };
    let row = |t: Tensor| {
        if t.rank() == 1 && t.dim(0).as_const() == Some(1) {
            t.reshape(())
        } else {
            t
        }
    };
    let f = |t: Tensor| t.cast(DType::F32);
    let scale = column(f(c.tensor(1)?)) * row(f(c.tensor(4)?)) / column(f(c.tensor(6)?));
    one(quantized(&(sums.cast(DType::F32) * scale), Some(column(c.tensor(7)?))))
}
