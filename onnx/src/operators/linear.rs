//! Matrix products and contractions.

use tlc_ir::DType;

use crate::call::{Answer, Call, one};
use crate::refusal::{Outcome, invalid};
use tlc_record::Tensor;

pub(super) fn matmul(c: &mut Call<'_, '_, '_>) -> Answer {
    let (a, b) = (c.tensor(0)?, c.tensor(1)?);
    one(a.matmul(&b))
}

pub(super) fn gemm(c: &mut Call<'_, '_, '_>) -> Answer {
    let (mut a, mut b) = (c.tensor(0)?, c.tensor(1)?);
    if a.rank() != 2 || b.rank() != 2 {
        return invalid(format!(
            "operands of rank {} and {}; expected matrices",
            a.rank(),
            b.rank()
        ));
    }
    if c.flag("transA", false)? {
        a = a.t();
    }
    if c.flag("transB", false)? {
        b = b.t();
    }
    let (alpha, beta) = (c.float("alpha", 1.0)?, c.float("beta", 1.0)?);
    let scaled = |t: Tensor, by: f64| match by {
        1.0 => t,
        by if t.dtype().is_float() => t * by,
        by => (t.cast(DType::F64) * by).cast(t.dtype()),
    };
    let bias = c.optional(2)?;
    let dtype = a.dtype();
    // Of 16 bits the whole is rounded once.
    let wide = match dtype.is_float() && (alpha != 1.0 || bias.is_some()) {
        true => dtype.accumulator(),
        false => dtype,
    };
    let product = scaled(a.matmul_as(&b, wide), alpha);
    one(match bias {
        Some(bias) => (product + scaled(bias.cast(wide), beta)).cast(dtype),
        None => product.cast(dtype),
    })
}

pub(super) fn einsum(c: &mut Call<'_, '_, '_>) -> Answer {
    let equation = c.text("equation", "")?;
    let all = c.tensors()?;
    if all.is_empty() {
        return invalid("no operands; expected at least one");
    }
    let equation: String = equation.chars().filter(|c| !c.is_whitespace()).collect();
    // Recorded expressions take any character as a label; ONNX has letters alone.
    if let Some(c) = equation.chars().find(|&c| !c.is_alphabetic() && !",.->".contains(c)) {
        return invalid(format!("{c:?} in the equation; expected letters, `...`, `,` and `->`"));
    }
    one(tlc_record::einsum(&equation, &all.iter().collect::<Vec<_>>()))
}

/// `x - zero_point` in i32 (8-bit floats: in f32), where the zero point is one number or one a row (`axis`).
pub(super) fn centered(x: &Tensor, zero: Option<Tensor>, axis: i64) -> Outcome<Tensor> {
    let wide = match x.dtype().is_storage_float() {
        true => DType::F32,
        false => DType::I32,
    };
    let x32 = x.cast(wide);
    let Some(zero) = zero else {
        return Ok(x32);
    };
    let zero = zero.cast(wide);
    Ok(match zero.rank() {
        0 => x32 - zero,
        1 if zero.dim(0).as_const() == Some(1) => x32 - zero.reshape(()),
        1 if axis == -2 && x.rank() >= 2 => x32 - zero.unsqueeze(-1),
        _ => x32 - zero,
    })
}

pub(super) fn matmul_integer(c: &mut Call<'_, '_, '_>) -> Answer {
    let a = centered(&c.tensor(0)?, c.optional(2)?, -2)?;
    let b = centered(&c.tensor(1)?, c.optional(3)?, -1)?;
    one(a.matmul(&b))
}
