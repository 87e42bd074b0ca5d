//! Elements of any dtype, widened: floats to f64, signed integers to i64, bool and unsigned ones to u64.
//!
//! Widening loses nothing. Integers wrap to their dtype when they are stored ([`store`]) or, where an order depends on it,
//! earlier ([`Wide::wrap`]).

use half::{bf16, f16};

use crate::dtype::{DType, Scalar};
use crate::graph::Monoid;
use crate::scalar::ScalarOp;
use crate::tensor::{Element, HostTensor, TensorError};

/// Widened elements.
pub(super) enum Lanes {
    /// f16, bf16, f32, f64.
    Float(Vec<f64>),
    /// i8 to i64.
    Signed(Vec<i64>),
    /// bool, u8 to u64.
    Unsigned(Vec<u64>),
}

fn widen<T: Element, W>(t: &HostTensor, f: impl Fn(T) -> W) -> Vec<W> {
    t.as_slice::<T>().unwrap_or(&[]).iter().map(|&v| f(v)).collect()
}

/// The float elements of a tensor; empty for other dtypes.
pub(super) fn floats(t: &HostTensor) -> Vec<f64> {
    match t.dtype() {
        DType::F16 => widen(t, f16::to_f64),
        DType::BF16 => widen(t, bf16::to_f64),
        DType::F32 => widen(t, |v: f32| v as f64),
        _ => widen(t, |v: f64| v),
    }
}

/// The elements of a tensor, widened.
pub(super) fn lanes(t: &HostTensor) -> Lanes {
    match t.dtype() {
        DType::Bool => Lanes::Unsigned(t.bytes().iter().map(|&b| b as u64).collect()),
        DType::U8 => Lanes::Unsigned(widen(t, |v: u8| v as u64)),
        DType::U16 => Lanes::Unsigned(widen(t, |v: u16| v as u64)),
        DType::U32 => Lanes::Unsigned(widen(t, |v: u32| v as u64)),
        DType::U64 => Lanes::Unsigned(widen(t, |v: u64| v)),
        DType::I8 => Lanes::Signed(widen(t, |v: i8| v as i64)),
        DType::I16 => Lanes::Signed(widen(t, |v: i16| v as i64)),
        DType::I32 => Lanes::Signed(widen(t, |v: i32| v as i64)),
        DType::I64 => Lanes::Signed(widen(t, |v: i64| v)),
        DType::F16 | DType::BF16 | DType::F32 | DType::F64 => Lanes::Float(floats(t)),
        d if d.is_storage_float() => Lanes::Float((0..t.len()).map(|i| t.get(i).as_f64()).collect()),
        DType::I4 | DType::I2 => Lanes::Signed((0..t.len()).map(|i| t.get(i).as_i64()).collect()),
        _ => Lanes::Unsigned(t.bytes().iter().map(|&b| b as u64).collect()),
    }
}

/// Writes elements in order into a new tensor.
pub(super) struct Writer {
    tensor: HostTensor,
}

impl Writer {
    /// A tensor of zeros to write into.
    pub(super) fn new(dtype: DType, shape: &[usize]) -> Result<Writer, TensorError> {
        Ok(Writer {
            tensor: HostTensor::zeros(dtype, shape)?,
        })
    }

    /// Writes the bits that `next` returns for each flat index.
    pub(super) fn fill(mut self, next: impl FnMut(usize) -> u64) -> HostTensor {
        store_bits(&mut self.tensor, next);
        self.tensor
    }
}

fn store_bits(t: &mut HostTensor, mut next: impl FnMut(usize) -> u64) {
    let width = t.dtype().bytes();
    let bytes = t.bytes_mut();
    match width {
        1 => bytes.iter_mut().enumerate().for_each(|(i, b)| *b = next(i) as u8),
        2 => put::<u16>(bytes, |i| next(i) as u16),
        4 => put::<u32>(bytes, |i| next(i) as u32),
        _ => put::<u64>(bytes, next),
    }
}

fn put<T: bytemuck::Pod>(bytes: &mut [u8], mut next: impl FnMut(usize) -> T) {
    // The buffer of a host tensor is aligned to 8 bytes and as long as its elements.
    let elements: &mut [T] = bytemuck::cast_slice_mut(bytes);
    elements.iter_mut().enumerate().for_each(|(i, v)| *v = next(i));
}

/// A tensor of `dtype` from wide values, each rounded or wrapped to `through` and then converted.
pub(super) fn store<T: Wide>(
    through: DType,
    dtype: DType,
    shape: &[usize],
    values: &[T],
) -> Result<HostTensor, TensorError> {
    Ok(Writer::new(dtype, shape)?.fill(|i| values[i].scalar(through).convert(dtype).bits()))
}

/// A wide number: what one dtype class computes in.
pub(super) trait Wide: Copy + PartialOrd {
    /// What a combination under way carries.
    type Carry: Copy;
    /// The identity.
    fn start(monoid: Monoid, dtype: DType) -> Self::Carry;
    /// Combines one more.
    fn push(carry: &mut Self::Carry, monoid: Monoid, value: Self);
    /// What has been combined.
    fn total(carry: Self::Carry) -> Self;
    /// The product of a semiring.
    fn product(self, op: ScalarOp, other: Self) -> Self;
    /// What the rounding of a product `x * y` lost, added to `earlier * y`, what the rounding of x lost; `None` if nothing
    /// (Ogita, Rump and Oishi, "Accurate sum and dot product", SIAM J. Sci. Comput. 26, 2005).
    fn lost(_x: Self, _y: Self, _product: Self, _earlier: Option<Self>) -> Option<Self> {
        None
    }
    /// The value as an integer dtype's wrapped one; floats stay.
    fn wrap(self, dtype: DType) -> Self;
    /// The value as an element.
    fn scalar(self, dtype: DType) -> Scalar;
    /// True for NaN.
    fn is_nan(self) -> bool {
        false
    }
}

impl Wide for f64 {
    /// Sum and Neumaier's compensation ("Rundungsfehleranalyse einiger Verfahren zur Summation endlicher Summen", ZAMM 54,
    /// 1974): the total's error is about one rounding, whatever the order.
    type Carry = (f64, f64);

    fn start(monoid: Monoid, dtype: DType) -> (f64, f64) {
        (monoid.identity(dtype).as_f64(), 0.0)
    }

    fn push(carry: &mut (f64, f64), monoid: Monoid, v: f64) {
        let (sum, lost) = carry;
        match monoid {
            Monoid::Add => {
                let t = *sum + v;
                *lost += if sum.abs() >= v.abs() {
                    (*sum - t) + v
                } else {
                    (v - t) + *sum
                };
                *sum = t;
            }
            Monoid::Mul => *sum *= v,
            Monoid::Max | Monoid::ArgMax => *sum = ScalarOp::Max.eval_f64(&[*sum, v, 0.0]),
            Monoid::Min | Monoid::ArgMin => *sum = ScalarOp::Min.eval_f64(&[*sum, v, 0.0]),
            Monoid::And | Monoid::Or => {}
        }
    }

    fn total((sum, lost): (f64, f64)) -> f64 {
        // Past an infinity the compensation is meaningless; adding a zero would lose the sign of a zero sum.
        if sum.is_finite() && lost != 0.0 {
            sum + lost
        } else {
            sum
        }
    }

    fn product(self, op: ScalarOp, other: f64) -> f64 {
        if op == ScalarOp::Mul {
            self * other
        } else {
            self + other
        }
    }

    fn lost(x: f64, y: f64, product: f64, earlier: Option<f64>) -> Option<f64> {
        let lost = x.mul_add(y, -product) + earlier.map_or(0.0, |e| e * y);
        (product.is_finite() && lost.is_finite() && lost != 0.0).then_some(lost)
    }

    fn wrap(self, _: DType) -> f64 {
        self
    }

    fn scalar(self, dtype: DType) -> Scalar {
        Scalar::from_f64(dtype, self)
    }

    fn is_nan(self) -> bool {
        f64::is_nan(self)
    }
}

macro_rules! wide_integer {
    ($t:ty, $from:ident) => {
        impl Wide for $t {
            type Carry = $t;

            fn start(monoid: Monoid, dtype: DType) -> $t {
                match dtype {
                    d if d.is_signed_int() => monoid.identity(d).as_i64() as $t,
                    d => monoid.identity(d).bits() as $t,
                }
            }

            fn push(carry: &mut $t, monoid: Monoid, v: $t) {
                *carry = match monoid {
                    Monoid::Add => carry.wrapping_add(v),
                    Monoid::Mul => carry.wrapping_mul(v),
                    Monoid::Max | Monoid::ArgMax => (*carry).max(v),
                    Monoid::Min | Monoid::ArgMin => (*carry).min(v),
                    Monoid::And => *carry & v,
                    Monoid::Or => *carry | v,
                };
            }

            fn total(carry: $t) -> $t {
                carry
            }

            fn product(self, op: ScalarOp, other: $t) -> $t {
                match op {
                    ScalarOp::Mul => self.wrapping_mul(other),
                    ScalarOp::And => self & other,
                    ScalarOp::Dot4 => crate::scalar::dot4(self as u32, other as u32) as $t,
                    _ => self.wrapping_add(other),
                }
            }

            fn wrap(self, dtype: DType) -> $t {
                let s = Scalar::from_bits(dtype, self as u64);
                if dtype.is_signed_int() {
                    s.as_i64() as $t
                } else {
                    s.bits() as $t
                }
            }

            fn scalar(self, dtype: DType) -> Scalar {
                Scalar::$from(dtype, self)
            }
        }
    };
}
wide_integer!(i64, from_i64);
wide_integer!(u64, from_u64);
