//! Signals: Fourier transforms, windows of time, mel scales.

use tlc_ir::{DType, HostTensor};

use crate::call::{Answer, Call, one};
use crate::refusal::{Outcome, invalid, unsupported};
use crate::value::Value;
use tlc_record::Graph;
use tlc_record::Tensor;
use tlc_record::dim::Dim;

/// The one number in operand `i`, if it is given.
fn number(c: &mut Call<'_, '_, '_>, i: usize, what: &str) -> Outcome<Option<Dim>> {
    match c.input_dims(i)?.as_deref() {
        None => Ok(None),
        Some([n]) => match n.as_const() {
            Some(v) if !(1..1 << 31).contains(&v) => invalid(format!("{what} {v}; expected a positive number")),
            _ => Ok(Some(n.clone())),
        },
        Some(other) => invalid(format!("{what} of {} numbers; expected one", other.len())),
    }
}

/// Whether a signal is real or complex is known.
fn parts_are_known(x: &Tensor) -> Outcome<()> {
    match x.dim(-1).as_const() {
        Some(_) => Ok(()),
        None => unsupported("a last axis of symbolic extent; expected one (real) or two (complex)"),
    }
}

pub(super) fn dft(c: &mut Call<'_, '_, '_>) -> Answer {
    let x = c.tensor(0)?;
    let axis = match c.version < 20 {
        true => c.int("axis", 1)?,
        false => match c.input_ints(2)?.as_deref() {
            None => -2,
            Some(&[axis]) => axis,
            Some(other) => return invalid(format!("{} axes; expected one", other.len())),
        },
    };
    let axis = c.axis(axis, x.rank())?;
    let (inverse, onesided) = (c.flag("inverse", false)?, c.flag("onesided", false)?);
    let length = match number(c, 1, "dft_length")? {
        Some(length) => length,
        None if inverse && onesided => (x.dim(axis as i64) - 1) * 2,
        None => x.dim(axis as i64),
    };
    parts_are_known(&x)?;
    one(x.dft(axis as i64, length, inverse, onesided))
}

pub(super) fn stft(c: &mut Call<'_, '_, '_>) -> Answer {
    let x = c.tensor(0)?;
    let window = c.optional(2)?;
    let step = match c.input_ints(1)?.as_deref() {
        Some(&[step]) if (1..1 << 31).contains(&step) => step as usize,
        other => return invalid(format!("frame_step {other:?}; expected a positive number")),
    };
    let length = match (number(c, 3, "frame_length")?, &window) {
        (Some(length), _) => length,
        (None, Some(window)) => window.dim(0),
        (None, None) => x.dim(1),
    };
    // An f32 signal may come without its last axis.
    let x = if x.rank() == 2 { x.unsqueeze(-1) } else { x };
    parts_are_known(&x)?;
    one(x.stft(step, length, window.as_ref(), c.flag("onesided", true)?))
}

fn windowed(c: &mut Call<'_, '_, '_>, f: impl Fn(&Graph, Dim, bool, DType) -> Tensor) -> Answer {
    let size = match c.input_dims(0)?.as_deref() {
        Some([n]) if n.as_const().is_none_or(|n| (0..1 << 31).contains(&n)) => n.clone(),
        _ => return invalid("a size that is not one number, 0 or more; expected one"),
    };
    let dtype = c.dtype("output_datatype")?.unwrap_or(DType::F32);
    let periodic = c.flag("periodic", true)?;
    let wide = if dtype.is_float() { dtype } else { DType::F64 };
    one(f(&c.graph(), size, periodic, wide).cast(dtype))
}

pub(super) fn hann(c: &mut Call<'_, '_, '_>) -> Answer {
    windowed(c, |g, n, periodic, dtype| g.hann_window(n, periodic, dtype))
}

pub(super) fn hamming(c: &mut Call<'_, '_, '_>) -> Answer {
    windowed(c, |g, n, periodic, dtype| g.hamming_window(n, periodic, dtype))
}

pub(super) fn blackman(c: &mut Call<'_, '_, '_>) -> Answer {
    windowed(c, |g, n, periodic, dtype| g.blackman_window(n, periodic, dtype))
}

/// The most elements of a mel matrix.
const MAX_MATRIX: i64 = 1 << 24;

/// Triangles over the frequencies of a transform, evenly spaced on the mel scale `2595 log10(1 + f / 700)`.
pub(super) fn mel_weights(c: &mut Call<'_, '_, '_>) -> Answer {
    let mut whole = |i: usize, what: &str| -> Outcome<i64> {
        match c.input_ints(i)?.as_deref() {
            Some(&[n]) if (1..1 << 31).contains(&n) => Ok(n),
            other => invalid(format!("{what} {other:?}; expected a positive number")),
        }
    };
    let bands = whole(0, "num_mel_bins")?;
    let length = whole(1, "dft_length")?;
    let rate = whole(2, "sample_rate")?;
    let mut edge = |i: usize| -> Outcome<f64> {
        match c.input_floats(i)?.as_deref() {
            Some(&[f]) if f.is_finite() && f >= 0.0 => Ok(f),
            other => invalid(format!("an edge of {other:?}; expected a frequency, 0 or more")),
        }
    };
    let (low, high) = (edge(3)?, edge(4)?);
    let bins = length / 2 + 1;
    if bins.saturating_mul(bands) > MAX_MATRIX {
        return invalid(format!("{bins} by {bands} weights; expected fewer"));
    }
    let mel = |f: f64| 2595.0 * (f / 700.0).ln_1p() / std::f64::consts::LN_10;
    let hertz = |m: f64| 700.0 * (m / 2595.0 * std::f64::consts::LN_10).exp_m1();
    let step = (mel(high) - mel(low)) / (bands + 2) as f64;
    let bin = |i: i64| ((length + 1) as f64 * hertz(i as f64 * step + mel(low)) / rate as f64).floor() as i64;
    let mut weights = vec![0.0; (bins * bands) as usize];
    for band in 0..bands {
        let (left, middle, right) = (bin(band), bin(band + 1), bin(band + 2));
        if left < 0 || right > bins || middle >= bins {
            return invalid(format!(
                "a band that reaches frequency {right} of {bins}; expected edges below half the sample rate"
            ));
        }
        let mut set = |j: i64, w: f64| weights[(j * bands + band) as usize] = w;
        if middle == left {
            set(middle, 1.0);
        } else {
            (left..=middle).for_each(|j| set(j, (j - left) as f64 / (middle - left) as f64));
        }
        (middle..right).for_each(|j| set(j, (right - j) as f64 / (right - middle) as f64));
    }
    let dtype = c.dtype("output_datatype")?.unwrap_or(DType::F32);
    let data = HostTensor::from_slice(&[bins as usize, bands as usize], &weights);
    let data = data.or_else(|e| invalid(e.to_string()))?;
    Ok(vec![Value::from(c.graph().constant(data).cast(dtype))])
}

pub(super) fn det(c: &mut Call<'_, '_, '_>) -> Answer {
    let x = c.tensor(0)?;
    if x.rank() >= 2 && [-2, -1].iter().any(|&a| x.dim(a).as_const().is_none()) {
        return unsupported("matrices of symbolic extent; expected numbers");
    }
    one(x.det())
}
