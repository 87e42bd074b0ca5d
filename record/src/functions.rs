//! Every elementwise operation, reduction and activation as a free function: `exp(&x)` is `x.exp()`.

use tlc_ir::DType;

use crate::dim::Axes;
use crate::graph::Tensor;
use crate::promotion::Operand;

macro_rules! unary {
    ($($name:ident),* $(,)?) => { $(
        #[doc = concat!("[`Tensor::", stringify!($name), "`].")]
        #[track_caller]
        pub fn $name(x: &Tensor) -> Tensor {
            x.$name()
        }
    )* };
}

macro_rules! binary {
    ($($name:ident),* $(,)?) => { $(
        #[doc = concat!("[`Tensor::", stringify!($name), "`]; either operand may be a scalar.")]
        ///
        /// # Panics
        /// If both are scalars, which belong to no graph.
        #[track_caller]
        pub fn $name(a: impl Into<Operand>, b: impl Into<Operand>) -> Tensor {
            crate::ops::elementwise::$name(a.into(), b.into())
        }
    )* };
}

macro_rules! reduction {
    ($($name:ident),* $(,)?) => { $(
        #[doc = concat!("[`Tensor::", stringify!($name), "`].")]
        #[track_caller]
        pub fn $name(x: &Tensor, axes: impl Into<Axes>) -> Tensor {
            x.$name(axes)
        }
    )* };
}

macro_rules! along_axis {
    ($($name:ident),* $(,)?) => { $(
        #[doc = concat!("[`Tensor::", stringify!($name), "`].")]
        #[track_caller]
        pub fn $name(x: &Tensor, axis: i64) -> Tensor {
            x.$name(axis)
        }
    )* };
}

unary! {
    negative, abs, sign, bit_not, logical_not, floor, ceil, round, trunc, sqrt, rsqrt, exp, exp2, expm1, log, log2, log10,
    log1p, sin, cos, tan, asin, acos, atan, sinh, cosh, tanh, asinh, acosh, atanh, erf, reciprocal, square, is_nan, is_inf, is_finite, relu,
    gelu, gelu_tanh, sigmoid, silu, softplus, log_sigmoid, softsign, mish, hard_sigmoid, hard_swish, transpose, flatten,
    diag_embed, trace,
}

binary! {
    add, sub, mul, div, floor_divide, trunc_divide, rem, remainder, maximum, minimum, atan2, pow, bit_and, bit_or, bit_xor,
    shl, shr, logical_and, logical_or, logical_xor, eq, ne, lt, le, gt, ge,
}

reduction! {
    sum, prod, max, min, any, all, argmax, argmin, mean, logsumexp, norm, count_nonzero,
}

along_axis! {
    softmax, log_softmax, cumsum, cumprod, cummax, cummin,
}

/// [`Tensor::matmul`].
#[track_caller]
pub fn matmul(a: &Tensor, b: &Tensor) -> Tensor {
    a.matmul(b)
}

/// [`Tensor::dot`].
#[track_caller]
pub fn dot(a: &Tensor, b: &Tensor) -> Tensor {
    a.dot(b)
}

/// [`Tensor::outer`].
#[track_caller]
pub fn outer(a: &Tensor, b: &Tensor) -> Tensor {
    a.outer(b)
}

/// [`Tensor::clamp`].
#[track_caller]
pub fn clamp(x: &Tensor, lo: impl Into<Operand>, hi: impl Into<Operand>) -> Tensor {
    x.clamp(lo, hi)
}

/// [`Tensor::elu`].
#[track_caller]
pub fn elu(x: &Tensor, alpha: f64) -> Tensor {
    x.elu(alpha)
}

/// [`Tensor::leaky_relu`].
#[track_caller]
pub fn leaky_relu(x: &Tensor, slope: f64) -> Tensor {
    x.leaky_relu(slope)
}

/// [`Tensor::var`].
#[track_caller]
pub fn var(x: &Tensor, axes: impl Into<Axes>, correction: i64) -> Tensor {
    x.var(axes, correction)
}

/// [`Tensor::std`].
#[track_caller]
pub fn std(x: &Tensor, axes: impl Into<Axes>, correction: i64) -> Tensor {
    x.std(axes, correction)
}

/// [`Tensor::one_hot`].
#[track_caller]
pub fn one_hot(indices: &Tensor, classes: impl Into<crate::Dim>, dtype: DType) -> Tensor {
    indices.one_hot(classes, dtype)
}

/// [`Tensor::tril`].
#[track_caller]
pub fn tril(x: &Tensor, offset: i64) -> Tensor {
    x.tril(offset)
}

/// [`Tensor::triu`].
#[track_caller]
pub fn triu(x: &Tensor, offset: i64) -> Tensor {
    x.triu(offset)
}

pub use crate::ops::index::{meshgrid, where_};
pub use crate::ops::join::{concat, stack};
#[doc(hidden)]
pub use crate::ops::linalg::einsum_as;
pub use crate::ops::linalg::{einsum, einsum_over};
pub use crate::ops::shape::broadcast_tensors;
