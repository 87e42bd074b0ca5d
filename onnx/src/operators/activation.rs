//! Activations, and the softmax family.

use crate::call::{Answer, Call, one};
use crate::refusal::invalid;
use tlc_record::Tensor;
use tlc_record::keep;

/// Runs `f` in at least f32 and rounds once.
fn wide(c: &Call<'_, '_, '_>, f: impl FnOnce(Tensor) -> Tensor) -> Answer {
    let x = c.tensor(0)?;
    let dtype = x.dtype();
    one(f(x.cast(dtype.accumulator())).cast(dtype))
}

pub(super) fn relu(c: &mut Call<'_, '_, '_>) -> Answer {
    one(c.tensor(0)?.relu())
}

pub(super) fn leaky_relu(c: &mut Call<'_, '_, '_>) -> Answer {
    let slope = c.float("alpha", 0.01)?;
    wide(c, |x| x.gt(0).select(&x, slope * &x))
}

pub(super) fn thresholded_relu(c: &mut Call<'_, '_, '_>) -> Answer {
    let alpha = c.float("alpha", 1.0)?;
    wide(c, |x| x.gt(alpha).select(&x, 0))
}

pub(super) fn sigmoid(c: &mut Call<'_, '_, '_>) -> Answer {
    one(c.tensor(0)?.sigmoid())
}

pub(super) fn hard_sigmoid(c: &mut Call<'_, '_, '_>) -> Answer {
    let (alpha, beta) = (c.float("alpha", 0.2)?, c.float("beta", 0.5)?);
    wide(c, |x| (alpha * x + beta).hard_tanh(0.0, 1.0))
}

pub(super) fn hard_swish(c: &mut Call<'_, '_, '_>) -> Answer {
    one(c.tensor(0)?.hard_swish())
}

pub(super) fn swish(c: &mut Call<'_, '_, '_>) -> Answer {
    let alpha = c.float("alpha", 1.0)?;
    wide(c, |x| x.scaled_silu(alpha))
}

pub(super) fn swiglu(c: &mut Call<'_, '_, '_>) -> Answer {
    let (alpha, value) = (c.float("alpha", 1.0)?, c.tensor(1)?);
    if value.shape() != c.required(0)?.shape() {
        return invalid("gate and value of different shapes; expected one shape");
    }
    let dtype = value.dtype();
    wide(c, |x| x.scaled_silu(alpha) * value.cast(dtype.accumulator()))
}

pub(super) fn elu(c: &mut Call<'_, '_, '_>) -> Answer {
    one(c.tensor(0)?.elu(c.float("alpha", 1.0)?))
}

pub(super) fn celu(c: &mut Call<'_, '_, '_>) -> Answer {
    let alpha = c.float("alpha", 1.0)?;
    if alpha == 0.0 {
        return invalid("alpha 0; expected another number");
    }
    // The exponential is of what is not positive alone: where it is infinite, it would have no derivative.
    wide(c, |x| {
        let positive = x.gt(0);
        positive.select(&x, alpha * (positive.select(0, &x) / alpha).expm1())
    })
}

pub(super) fn selu(c: &mut Call<'_, '_, '_>) -> Answer {
    let (alpha, gamma) = (c.float("alpha", 1.673_263_2)?, c.float("gamma", 1.050_701)?);
    wide(c, |x| gamma * x.gt(0).select(&x, alpha * x.gt(0).select(0, &x).expm1()))
}

pub(super) fn gelu(c: &mut Call<'_, '_, '_>) -> Answer {
    match c.text("approximate", "none")?.as_str() {
        "none" => one(c.tensor(0)?.gelu()),
        "tanh" => one(c.tensor(0)?.gelu_tanh()),
        other => invalid(format!("approximate `{other}`; expected none or tanh")),
    }
}

pub(super) fn mish(c: &mut Call<'_, '_, '_>) -> Answer {
    one(c.tensor(0)?.mish())
}

pub(super) fn softplus(c: &mut Call<'_, '_, '_>) -> Answer {
    one(c.tensor(0)?.softplus())
}

pub(super) fn softsign(c: &mut Call<'_, '_, '_>) -> Answer {
    one(c.tensor(0)?.softsign())
}

pub(super) fn shrink(c: &mut Call<'_, '_, '_>) -> Answer {
    let (lambd, bias) = (c.float("lambd", 0.5)?, c.float("bias", 0.0)?);
    let x = c.tensor(0)?;
    let dtype = x.dtype();
    let x = if dtype.is_float() {
        x
    } else {
        x.cast(tlc_ir::DType::F64)
    };
    one(x
        .lt(-lambd)
        .select(&x + bias, x.gt(lambd).select(&x - bias, 0.0))
        .cast(dtype))
}

/// Before opset 13 all axes from `axis` on are one.
fn along(c: &mut Call<'_, '_, '_>, f: impl Fn(&Tensor, i64) -> Tensor) -> Answer {
    let x = c.tensor(0)?;
    // Of no elements there is no maximum, and nothing to compute.
    let whole = |x: &Tensor, axis: i64| match x.dim(axis).as_const() {
        Some(0) => x.clone(),
        _ => f(x, axis),
    };
    if c.version >= 13 {
        let axis = c.axis(c.int("axis", -1)?, x.rank())?;
        return one(whole(&x, axis as i64));
    }
    let axis = c.int("axis", 1)?;
    let axis = if axis == x.rank() as i64 {
        x.rank()
    } else {
        c.axis(axis, x.rank())?
    };
    let flat = super::arrange::flattened(&x, axis);
    one(whole(&flat, 1).reshape(x.shape()))
}

pub(super) fn softmax(c: &mut Call<'_, '_, '_>) -> Answer {
    along(c, |x, axis| x.softmax(axis))
}

pub(super) fn log_softmax(c: &mut Call<'_, '_, '_>) -> Answer {
    along(c, |x, axis| x.log_softmax(axis))
}

pub(super) fn hardmax(c: &mut Call<'_, '_, '_>) -> Answer {
    along(c, |x, axis| {
        let places = x.graph().iota(x.shape(), axis, tlc_ir::DType::I64);
        places.eq(x.argmax(keep(axis))).cast(x.dtype())
    })
}
