//! Map and Convert, element by element, as [`ScalarOp::eval`] and [`Scalar::convert`] say.
//!
//! The fast paths compute what the reference computes: f32 `+ - * /` directly is the correctly rounded result that the
//! reference reaches through f64, and every other float operation is `eval_f64` with the operation known.

use crate::dtype::{DType, Scalar};
use crate::scalar::ScalarOp;
use crate::tensor::{Element, HostTensor, TensorError};

use super::lanes::{Lanes, Writer, floats, lanes};

/// Applies an operation; the operands have one shape and fit it.
pub(super) fn map(op: ScalarOp, dtype: DType, operands: &[&HostTensor]) -> Result<HostTensor, TensorError> {
    let shape = operands[0].shape();
    let out = Writer::new(dtype, shape)?;
    let of = operands[operands.len() - 1].dtype();
    match (op, of) {
        (ScalarOp::Select, _) => return select(operands),
        (ScalarOp::Eq | ScalarOp::Ne | ScalarOp::Lt | ScalarOp::Le, d) if d.is_float() => {
            let (x, y) = (floats(operands[0]), floats(operands[1]));
            let run = |f: fn(f64, f64) -> bool| out.fill(|i| f(x[i], y[i]) as u64);
            return Ok(match op {
                ScalarOp::Eq => run(|x, y| x == y),
                ScalarOp::Ne => run(|x, y| x != y),
                ScalarOp::Lt => run(|x, y| x < y),
                _ => run(|x, y| x <= y),
            });
        }
        (ScalarOp::Fma, DType::F32) => {}
        (_, DType::F32) => {
            if let Some(done) = simple::<f32>(op, operands, shape)? {
                return Ok(done);
            }
            let v = padded(operands);
            return Ok(out.fill(|i| (op.eval_f64(&v.at(i)) as f32).to_bits() as u64));
        }
        (_, DType::F64) => {
            if let Some(done) = simple::<f64>(op, operands, shape)? {
                return Ok(done);
            }
            let v = padded(operands);
            return Ok(out.fill(|i| op.eval_f64(&v.at(i)).to_bits()));
        }
        (_, DType::F16 | DType::BF16) => {
            let v = padded(operands);
            return Ok(out.fill(|i| Scalar::from_f64(of, op.eval_f64(&v.at(i))).bits()));
        }
        (ScalarOp::Add | ScalarOp::Sub | ScalarOp::Mul, _) => return wrapping(op, operands, out),
        _ => {}
    }
    let mut args = [of.zero(); 3];
    Ok(out.fill(|i| {
        for (a, t) in args.iter_mut().zip(operands) {
            *a = t.get(i);
        }
        op.eval(&args[..operands.len()]).bits()
    }))
}

/// Integer operations whose low bits do not depend on the high ones.
fn wrapping(op: ScalarOp, operands: &[&HostTensor], out: Writer) -> Result<HostTensor, TensorError> {
    let bits = |t: &HostTensor| match lanes(t) {
        Lanes::Signed(v) => v.into_iter().map(|v| v as u64).collect(),
        Lanes::Unsigned(v) => v,
        Lanes::Float(_) => Vec::new(),
    };
    let (x, y): (Vec<u64>, Vec<u64>) = (bits(operands[0]), bits(operands[1]));
    Ok(match op {
        ScalarOp::Add => out.fill(|i| x[i].wrapping_add(y[i])),
        ScalarOp::Sub => out.fill(|i| x[i].wrapping_sub(y[i])),
        _ => out.fill(|i| x[i].wrapping_mul(y[i])),
    })
}

/// The four operations and negation on a float type that computes them itself.
fn simple<T>(op: ScalarOp, operands: &[&HostTensor], shape: &[usize]) -> Result<Option<HostTensor>, TensorError>
where
    T: Element
        + std::ops::Add<Output = T>
        + std::ops::Sub<Output = T>
        + std::ops::Mul<Output = T>
        + std::ops::Div<Output = T>,
{
    let f: fn(T, T) -> T = match op {
        ScalarOp::Add => |x, y| x + y,
        ScalarOp::Sub => |x, y| x - y,
        ScalarOp::Mul => |x, y| x * y,
        ScalarOp::Div => |x, y| x / y,
        _ => return Ok(None),
    };
    let (Some(x), Some(y)) = (operands[0].as_slice::<T>(), operands[1].as_slice::<T>()) else {
        return Ok(None);
    };
    let mut out = HostTensor::zeros(T::DTYPE, shape)?;
    if let Some(target) = out.as_mut_slice::<T>() {
        target
            .iter_mut()
            .zip(x.iter().zip(y))
            .for_each(|(t, (x, y))| *t = f(*x, *y));
    }
    Ok(Some(out))
}

struct Padded {
    operands: Vec<Vec<f64>>,
}

impl Padded {
    fn at(&self, i: usize) -> [f64; 3] {
        let mut v = [0.0; 3];
        for (slot, o) in v.iter_mut().zip(&self.operands) {
            *slot = o[i];
        }
        v
    }
}

fn padded(operands: &[&HostTensor]) -> Padded {
    Padded {
        operands: operands.iter().map(|t| floats(t)).collect(),
    }
}

fn select(operands: &[&HostTensor]) -> Result<HostTensor, TensorError> {
    let (c, a, b) = (operands[0].bytes(), operands[1].bytes(), operands[2].bytes());
    let mut out = HostTensor::zeros(operands[1].dtype(), operands[1].shape())?;
    let width = out.dtype().bytes();
    for (i, target) in out.bytes_mut().chunks_exact_mut(width).enumerate() {
        let source = if c[i] != 0 { a } else { b };
        target.copy_from_slice(&source[i * width..(i + 1) * width]);
    }
    Ok(out)
}

/// Converts every element.
pub(super) fn convert(t: &HostTensor, dtype: DType) -> Result<HostTensor, TensorError> {
    if t.dtype() == dtype {
        return Ok(t.clone());
    }
    let out = Writer::new(dtype, t.shape())?;
    Ok(match lanes(t) {
        Lanes::Float(v) if dtype == DType::F64 => out.fill(|i| v[i].to_bits()),
        Lanes::Float(v) if dtype == DType::F32 => out.fill(|i| (v[i] as f32).to_bits() as u64),
        Lanes::Float(v) => out.fill(|i| Scalar::from_f64(dtype, v[i]).bits()),
        Lanes::Signed(v) => out.fill(|i| Scalar::from_i64(dtype, v[i]).bits()),
        Lanes::Unsigned(v) => out.fill(|i| Scalar::from_u64(dtype, v[i]).bits()),
    })
}
