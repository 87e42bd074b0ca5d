//! Rust's operators on tensors: each calls the method of the same meaning.
//!
//! They mean what they mean in NumPy and PyTorch, not what they mean on Rust integers: `/` of integers is true division
//! (in f32), `%` takes the sign of the divisor. [`Tensor::trunc_divide`] and [`Tensor::rem`] are Rust's own.
//!
//! On the right any scalar type will do. On the left only `f64`, `i64` and `bool`: were there two float types, the compiler
//! could not tell which one `2.0` is in `(2.0 - &x).exp()`.

use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Neg, Not, Rem, Shl, Shr, Sub};
use std::ops::{
    AddAssign, BitAndAssign, BitOrAssign, BitXorAssign, DivAssign, MulAssign, RemAssign, ShlAssign, ShrAssign,
    SubAssign,
};

use crate::graph::Tensor;
use crate::ops::elementwise as e;
use crate::promotion::Operand;

macro_rules! operators {
    ($($trait:ident $method:ident, $assign:ident $assign_method:ident, $f:path;)*) => { $(
        impl<T: Into<Operand>> $trait<T> for Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: T) -> Tensor {
                $f(self.into(), other.into())
            }
        }
        impl<T: Into<Operand>> $trait<T> for &Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: T) -> Tensor {
                $f(self.into(), other.into())
            }
        }
        impl<T: Into<Operand>> $assign<T> for Tensor {
            #[track_caller]
            fn $assign_method(&mut self, other: T) {
                *self = $f((&*self).into(), other.into());
            }
        }
        operators!(@scalars $trait $method $f: bool, i64, f64);
    )* };
    (@scalars $trait:ident $method:ident $f:path: $($t:ty),*) => { $(
        impl $trait<Tensor> for $t {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: Tensor) -> Tensor {
                $f(self.into(), other.into())
            }
        }
        impl $trait<&Tensor> for $t {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: &Tensor) -> Tensor {
                $f(self.into(), other.into())
            }
        }
    )* };
}

operators! {
    Add add, AddAssign add_assign, e::add;
    Sub sub, SubAssign sub_assign, e::sub;
    Mul mul, MulAssign mul_assign, e::mul;
    Div div, DivAssign div_assign, e::div;
    Rem rem, RemAssign rem_assign, e::remainder;
    BitAnd bitand, BitAndAssign bitand_assign, e::bit_and;
    BitOr bitor, BitOrAssign bitor_assign, e::bit_or;
    BitXor bitxor, BitXorAssign bitxor_assign, e::bit_xor;
    Shl shl, ShlAssign shl_assign, e::shl;
    Shr shr, ShrAssign shr_assign, e::shr;
}

macro_rules! prefix {
    ($($trait:ident $method:ident $call:ident;)*) => { $(
        impl $trait for Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self) -> Tensor {
                self.$call()
            }
        }
        impl $trait for &Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self) -> Tensor {
                self.$call()
            }
        }
    )* };
}

prefix! {
    Neg neg negative;
    Not not bit_not;
}
