//! Operators of the domain `com.microsoft` that ONNX took over later, or has in a form that is little different.

use tlc_ir::{DType, HostTensor, Scalar};

use super::{arrange, convolution, create, sampling, sorting};
use crate::call::{Answer, Call, one};
use crate::refusal::{Outcome, invalid, unsupported};
use crate::value::Value;
use tlc_record::Tensor;
use tlc_record::keep;

/// The largest matrices that are inverted: what is recorded has a few nodes for each row.
const MAX_INVERSE: i64 = 64;

pub(super) fn pad(c: &mut Call<'_, '_, '_>) -> Answer {
    c.version = 13;
    arrange::pad(c)
}

pub(super) fn grid_sample(c: &mut Call<'_, '_, '_>) -> Answer {
    c.version = 16;
    sampling::grid_sample(c)
}

/// Without a step it is 1.
pub(super) fn range(c: &mut Call<'_, '_, '_>) -> Answer {
    if c.value(2).is_none() {
        let dtype = c.required(0)?.dtype();
        let step = Value::constant(&c.graph(), HostTensor::scalar(Scalar::from_f64(dtype, 1.0)));
        c.inputs.truncate(2);
        c.inputs.push(Some(step));
    }
    create::range(c)
}

/// A further axis of extent 1, which an operand says.
pub(super) fn expand_dims(c: &mut Call<'_, '_, '_>) -> Answer {
    let x = c.tensor(0)?;
    match c.input_ints(1)?.as_deref() {
        Some(&[axis]) => {
            let axis = c.axis(axis, x.rank() + 1)?;
            one(x.unsqueeze(axis as i64))
        }
        _ => invalid("an axis that is not one number; expected one"),
    }
}

/// What is there once, in the order in which it comes; which of those each element is, and how often each comes.
pub(super) fn unique(c: &mut Call<'_, '_, '_>) -> Answer {
    sorting::outside_of_bodies(c)?;
    let x = c.tensor(0)?;
    if x.rank() != 1 {
        return invalid(format!("rank {}; expected 1", x.rank()));
    }
    let found = x.unique(None, false);
    Ok([found.values, found.inverse, found.counts].map(Into::into).into())
}

/// A transposed convolution whose padding is an operand.
pub(super) fn conv_transpose(c: &mut Call<'_, '_, '_>) -> Answer {
    let (pads, bias) = (c.input_ints(2)?, c.optional(3)?);
    convolution::conv_transposed(c, bias, pads)
}

/// The distance of each row of a matrix from each of another.
pub(super) fn distances(c: &mut Call<'_, '_, '_>) -> Answer {
    let (a, b) = (c.tensor(0)?, c.tensor(1)?);
    if a.rank() != 2 || b.rank() != 2 {
        return invalid(format!(
            "operands of rank {} and {}; expected matrices",
            a.rank(),
            b.rank()
        ));
    }
    let root = match c.text("metric", "sqeuclidean")?.as_str() {
        "sqeuclidean" => false,
        "euclidean" => true,
        other => return unsupported(format!("the metric `{other}`; expected sqeuclidean or euclidean")),
    };
    let squares = |t: &Tensor| t.square().sum(keep(-1));
    let squares = squares(&a) + squares(&b).t() - 2.0 * a.matmul(&b.t());
    let squares = squares.maximum(0.0);
    one(if root { squares.sqrt() } else { squares })
}

/// A product of complex numbers, which the last axis has as pairs.
fn complex(c: &Call<'_, '_, '_>, conjugate: bool) -> Answer {
    let part = |at: usize, i: i64| -> Outcome<Tensor> {
        let t = c.tensor(at)?;
        match t.shape().last().and_then(tlc_record::dim::Dim::as_const) {
            Some(2) => Ok(t.select_index(-1, i)),
            _ => invalid(format!("operand {at} of {}; expected a last axis of 2", t.type_text())),
        }
    };
    let (a, b) = ([part(0, 0)?, part(0, 1)?], [part(1, 0)?, part(1, 1)?]);
    let imaginary = if conjugate { -&b[1] } else { b[1].clone() };
    let real = &a[0] * &b[0] - &a[1] * &imaginary;
    let imaginary = &a[0] * imaginary + &a[1] * &b[0];
    one(tlc_record::stack(&[&real, &imaginary], -1))
}

pub(super) fn complex_mul(c: &mut Call<'_, '_, '_>) -> Answer {
    complex(c, false)
}

/// By the conjugate of the second operand.
pub(super) fn complex_mul_conj(c: &mut Call<'_, '_, '_>) -> Answer {
    complex(c, true)
}

/// Refuses transforms other than one-sided ones along the last axis.
fn of_signals(c: &Call<'_, '_, '_>) -> Outcome<()> {
    if c.int("signal_ndim", 1)? != 1 || !c.flag("onesided", true)? || c.flag("normalized", false)? {
        return unsupported(
            "a transform of several axes, or normalized, or of both sides; expected signal_ndim 1, normalized 0 and onesided 1",
        );
    }
    Ok(())
}

/// The Fourier transform of real signals along the last axis.
pub(super) fn rfft(c: &mut Call<'_, '_, '_>) -> Answer {
    of_signals(c)?;
    let x = c.tensor(0)?;
    if x.rank() == 0 {
        return invalid("rank 0; expected at least 1");
    }
    let parts = x.unsqueeze(-1);
    let axis = x.rank() as i64 - 1;
    one(match axis {
        0 => parts.unsqueeze(0).dft(1, x.dim(-1), false, true).squeeze(0),
        axis => parts.dft(axis, x.dim(-1), false, true),
    })
}

/// The way back, to signals of even length.
pub(super) fn irfft(c: &mut Call<'_, '_, '_>) -> Answer {
    of_signals(c)?;
    let x = c.tensor(0)?;
    if x.rank() < 2 {
        return invalid(format!("rank {}; expected at least 2", x.rank()));
    }
    let length = (x.dim(-2) - 1) * 2;
    let axis = x.rank() as i64 - 2;
    one(match axis {
        0 => x.unsqueeze(0).dft(1, length, true, true).squeeze(vec![0, -1]),
        axis => x.dft(axis, length, true, true).squeeze(-1),
    })
}

/// The inverse of matrices, by elimination with the largest pivot of each column.
pub(super) fn inverse(c: &mut Call<'_, '_, '_>) -> Answer {
    let x = c.tensor(0)?;
    if x.rank() < 2 || !x.dtype().is_float() {
        return invalid(format!("{}; expected matrices of floats", x.type_text()));
    }
    let n = match (x.dim(-2).as_const(), x.dim(-1).as_const()) {
        (Some(n), Some(m)) if n == m && n <= MAX_INVERSE => n,
        _ => {
            return unsupported(format!(
                "matrices of {}; expected square ones of known extent, at most {MAX_INVERSE}",
                x.type_text()
            ));
        }
    };
    let wide = x.dtype().accumulator();
    let graph = c.graph();
    let unit = graph.eye(n, n, 0, wide).broadcast_to(x.shape());
    let mut both = tlc_record::concat(&[&x.cast(wide), &unit], -1);
    let place = graph.iota([n, 1], 0, DType::I64);
    for k in 0..n {
        let sizes = place.ge(k).select(both.narrow(-1, k, 1).abs(), -1.0);
        let pivot = place.eq(sizes.argmax(keep(-2)));
        let row = pivot.select(&both, 0.0).sum(keep(-2));
        let exchanged = pivot.select(both.narrow(-2, k, 1), &both);
        let row = &row / row.narrow(-1, k, 1);
        let cleared = &exchanged - exchanged.narrow(-1, k, 1) * &row;
        both = place.eq(k).select(row, cleared);
    }
    one(both.narrow(-1, n, n).cast(x.dtype()))
}
