//! Arithmetic, comparison, logic, bits and functions of one element.

use tlc_ir::DType;

use crate::call::{Answer, Call, one};
use crate::refusal::{Outcome, invalid, unsupported};
use crate::value::Value;
use tlc_record::Tensor;
use tlc_record::ops::storage::{Conversion, PowerRounding};

fn unary(c: &mut Call<'_, '_, '_>, f: impl FnOnce(&Tensor) -> Tensor) -> Answer {
    one(f(&c.tensor(0)?))
}

fn binary(c: &mut Call<'_, '_, '_>, f: impl FnOnce(&Tensor, &Tensor) -> Tensor) -> Answer {
    let (a, b) = (c.tensor(0)?, c.tensor(1)?);
    one(f(&a, &aligned(c, &a, b)?))
}

/// Before opset 7 the second operand is broadcast only where `broadcast` asks for it, and then from `axis` on.
fn aligned(c: &Call<'_, '_, '_>, a: &Tensor, b: Tensor) -> Outcome<Tensor> {
    let Some(axis) = c.maybe_int("axis")?.filter(|_| c.version < 7) else {
        return Ok(b);
    };
    let axis = c.axis(axis, a.rank())?;
    let behind = (a.rank() - axis).checked_sub(b.rank());
    let Some(behind) = behind else {
        return invalid(format!(
            "an operand of rank {} from axis {axis} of rank {}; expected it inside",
            b.rank(),
            a.rank()
        ));
    };
    let mut shape = b.shape();
    shape.extend((0..behind).map(|_| tlc_record::Dim::from(1)));
    Ok(b.reshape(shape))
}

/// The floats that a storage float's elements are; any other tensor as it is.
fn decoded(x: &Tensor) -> Tensor {
    match x.dtype().is_storage_float() {
        true => x.cast(DType::F32),
        false => x.clone(),
    }
}

macro_rules! functions {
    ($kind:ident: $($name:ident $f:expr;)*) => { $(
        pub(super) fn $name(c: &mut Call<'_, '_, '_>) -> Answer {
            $kind(c, $f)
        }
    )* };
}

functions! { unary:
    abs |x| x.abs();
    neg |x| x.negative();
    sign |x| x.sign();
    ceil |x| x.ceil();
    floor |x| x.floor();
    round |x| x.round();
    sqrt |x| x.sqrt();
    exp |x| x.exp();
    log |x| x.log();
    sin |x| x.sin();
    cos |x| x.cos();
    tan |x| x.tan();
    asin |x| x.asin();
    acos |x| x.acos();
    atan |x| x.atan();
    sinh |x| x.sinh();
    cosh |x| x.cosh();
    tanh |x| x.tanh();
    erf |x| x.erf();
    reciprocal |x| x.reciprocal();
    is_nan |x| decoded(x).is_nan();
    not |x| x.logical_not();
    bitwise_not |x| x.bit_not();
    asinh |x| x.asinh();
    acosh |x| x.acosh();
    atanh |x| x.atanh();
}

functions! { binary:
    add |a, b| a + b;
    sub |a, b| a - b;
    mul |a, b| a * b;
    equal |a, b| a.eq(b);
    less |a, b| a.lt(b);
    less_or_equal |a, b| a.le(b);
    greater |a, b| a.gt(b);
    greater_or_equal |a, b| a.ge(b);
    and |a, b| a.logical_and(b);
    or |a, b| a.logical_or(b);
    xor |a, b| a.logical_xor(b);
    bitwise_and |a, b| a.bit_and(b);
    bitwise_or |a, b| a.bit_or(b);
    bitwise_xor |a, b| a.bit_xor(b);
    // Integers round toward zero.
    div |a, b| if a.dtype().is_float() { a / b } else { a.trunc_divide(b) };
}

pub(super) fn identity(c: &mut Call<'_, '_, '_>) -> Answer {
    match c.required(0)? {
        sequence @ Value::Sequence(_) => one(sequence.clone()),
        Value::Tensor(..) | Value::Sizes(_) | Value::Ratio(_) => one(c.tensor(0)?),
    }
}

pub(super) fn prelu(c: &mut Call<'_, '_, '_>) -> Answer {
    let (x, mut slope) = (c.tensor(0)?, c.tensor(1)?);
    if c.version < 7 && slope.rank() == 1 && x.rank() >= 2 {
        // One slope for all, or one a channel.
        let mut shape = vec![tlc_record::Dim::from(1); x.rank() - 1];
        shape[0] = slope.dim(0);
        slope = slope.reshape(shape);
    }
    // At 0 it is the slope that counts, also for the derivative, as in ONNX Runtime and PyTorch.
    one(x.gt(0).select(&x, slope * &x))
}

pub(super) fn modulo(c: &mut Call<'_, '_, '_>) -> Answer {
    let fmod = c.flag("fmod", false)?;
    if !fmod && c.version < 28 && c.required(0)?.dtype().is_float() {
        return invalid("floats without fmod before opset 28; expected fmod=1 or integers");
    }
    binary(c, |a, b| if fmod { a.rem(b) } else { a.remainder(b) })
}

pub(super) fn bit_shift(c: &mut Call<'_, '_, '_>) -> Answer {
    let left = match c.text("direction", "")?.as_str() {
        "LEFT" => true,
        "RIGHT" => false,
        other => return invalid(format!("direction `{other}`; expected LEFT or RIGHT")),
    };
    binary(c, |a, b| if left { a.shl(b) } else { a.shr(b) })
}

pub(super) fn is_inf(c: &mut Call<'_, '_, '_>) -> Answer {
    let x = decoded(&c.tensor(0)?);
    one(
        match (c.flag("detect_negative", true)?, c.flag("detect_positive", true)?) {
            (true, true) => x.is_inf(),
            (true, false) => x.eq(f64::NEG_INFINITY),
            (false, true) => x.eq(f64::INFINITY),
            (false, false) => x.zeros_like().cast(DType::Bool),
        },
    )
}

pub(super) fn pow(c: &mut Call<'_, '_, '_>) -> Answer {
    let (base, exponent) = (c.tensor(0)?, c.tensor(1)?);
    let exponent = aligned(c, &base, exponent)?;
    let dtype = base.dtype();
    if dtype.is_float() {
        // A wider exponent must not lose digits before it is used.
        let wide = tlc_record::promote(dtype, exponent.dtype());
        return one(base.cast(wide).pow(exponent.cast(wide)).cast(dtype));
    }
    if exponent.dtype().is_float() {
        return one(base.cast(DType::F64).pow(exponent.cast(DType::F64)).cast(dtype));
    }
    // Squaring over the exponent's bits: exact, and wraps as products do. An exponent above 63 keeps its parity, which is
    // all that matters for -1, 0 and 1; for other bases that result has overflowed anyway.
    let e = exponent.cast(DType::I64);
    let magnitude = e.abs();
    let capped = magnitude.gt(63).select(magnitude.bit_and(1) + 62, &magnitude);
    let mut square = base.clone();
    let mut product = base.ones_like();
    for bit in 0..6 {
        let takes = capped.shr(bit).bit_and(1).ne(0);
        product = takes.select(&product * &square, &product);
        square = &square * &square;
    }
    // A negative exponent: 1 / b^|e| rounded toward zero.
    let inverse = product.ones_like().trunc_divide(&product);
    one(e.lt(0).select(inverse, product))
}

fn fold(c: &mut Call<'_, '_, '_>, f: impl Fn(&Tensor, &Tensor) -> Tensor) -> Answer {
    let all = c.tensors()?;
    let Some((first, rest)) = all.split_first() else {
        return invalid("no operands; expected at least one");
    };
    let mut result = first.clone();
    for t in rest {
        result = f(&result, t);
    }
    one(result)
}

pub(super) fn max(c: &mut Call<'_, '_, '_>) -> Answer {
    fold(c, |a, b| a.maximum(b))
}

pub(super) fn min(c: &mut Call<'_, '_, '_>) -> Answer {
    fold(c, |a, b| a.minimum(b))
}

pub(super) fn sum(c: &mut Call<'_, '_, '_>) -> Answer {
    fold(c, |a, b| a + b)
}

pub(super) fn mean(c: &mut Call<'_, '_, '_>) -> Answer {
    let (n, dtype) = (c.inputs.len() as f64, c.tensor(0)?.dtype());
    if !dtype.is_float() {
        return invalid(format!("a mean of {dtype}; expected floats"));
    }
    // In at least f32, rounded once: a sum of narrow floats may overflow where their mean does not.
    let wide = |t: &Tensor| t.cast(dtype.accumulator());
    match &fold(c, |a, b| wide(a) + wide(b))?[0] {
        Value::Tensor(t, _) => one((t / n).cast(dtype)),
        Value::Sizes(_) | Value::Ratio(_) | Value::Sequence(_) => unsupported("a mean of integers"),
    }
}

pub(super) fn select(c: &mut Call<'_, '_, '_>) -> Answer {
    let (condition, a, b) = (c.tensor(0)?, c.tensor(1)?, c.tensor(2)?);
    one(condition.select(a, b))
}

pub(super) fn clip(c: &mut Call<'_, '_, '_>) -> Answer {
    let mut x = c.tensor(0)?;
    if c.version < 11 {
        if let Some(lo) = c.maybe_float("min")? {
            x = x.not_below(lo);
        }
        if let Some(hi) = c.maybe_float("max")? {
            x = x.not_above(hi);
        }
        return one(x);
    }
    if let Some(lo) = c.optional(1)? {
        x = x.not_below(lo);
    }
    if let Some(hi) = c.optional(2)? {
        x = x.not_above(hi);
    }
    one(x)
}

pub(super) fn cast(c: &mut Call<'_, '_, '_>) -> Answer {
    match c.dtype("to")? {
        Some(dtype) => one(converted(c, dtype)?),
        None => invalid("no attribute to; expected the element type"),
    }
}

pub(super) fn cast_like(c: &mut Call<'_, '_, '_>) -> Answer {
    let dtype = c.required(1)?.dtype();
    one(converted(c, dtype)?)
}

/// The first operand in that dtype, as the attributes of the two casts say.
fn converted(c: &Call<'_, '_, '_>, dtype: DType) -> Outcome<Tensor> {
    let how = Conversion {
        saturate: c.flag("saturate", true)?,
        rounding: match c.text("round_mode", "up")?.as_str() {
            "up" => PowerRounding::Up,
            "down" => PowerRounding::Down,
            "nearest" => PowerRounding::Nearest,
            other => return invalid(format!("round_mode `{other}`; expected up, down or nearest")),
        },
    };
    let x = c.tensor(0)?;
    let floats = x.dtype().is_any_float();
    // Out of the range of a type of less than a byte, where ONNX leaves it open, its reference drops the high bits.
    Ok(match dtype {
        DType::I4 | DType::U4 | DType::I2 | DType::U2 if floats => x.cast(DType::I32).cast(dtype),
        _ => x.cast_with(dtype, how),
    })
}

pub(super) fn bit_cast(c: &mut Call<'_, '_, '_>) -> Answer {
    let Some(dtype) = c.dtype("to")? else {
        return invalid("no attribute to; expected the element type");
    };
    let x = c.tensor(0)?;
    // A bool is a byte in memory and one bit of value: it passes for a byte here, as in the reference.
    let bits = |d: DType| if d == DType::Bool { 8 } else { d.value_bits() };
    if bits(x.dtype()) != bits(dtype) {
        return invalid(format!(
            "{} of {} bits as {dtype}; expected a type of as many",
            x.dtype(),
            bits(x.dtype())
        ));
    }
    one(x.bitcast(dtype))
}
