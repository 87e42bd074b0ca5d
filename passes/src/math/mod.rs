//! Elementary functions as straight-line code over lanes, written once and emitted anywhere.
//!
//! Invariants:
//! - Every algorithm is generic over [`Emit`] and [`Format`] (f32 or f64). The evaluator that the tests run
//!   ([`scalar::Scalar`]) and the kernel builder see the same calls, so what was measured is what is emitted.
//! - No loop, no table lookup, no branch on data, and only operations that a 4x32 or 2x64 vector unit has; exponents
//!   travel between integers and floats by adding a magic constant, never by conversion. The one exception to
//!   "no branch" is [`Emit::if_any`]: sin, cos and tan use it for arguments too large for the short reduction, the
//!   logarithms for arguments that are no positive normal numbers, exp and exp2 for those whose results are none or of
//!   which that is not known from their magnitude. Arguments that a healthy program has often, such as the -inf of a mask
//!   under exp, must not make such a path much dearer than the straight one: it goes on from what that has computed.
//! - What limits these functions on a CPU is not the number of instructions but multiplications: of the four vector pipes of
//!   today's cores two multiply (and blend, and divide), all four do integer work. So exponents are built in integers,
//!   and a selection is worth avoiding. Next come registers: a constant more than there are registers is a load a vector.
//! - Specials follow C99 annex F: NaN gives NaN, infinities and the sign of zero are exact, subnormal arguments and
//!   results are right (nothing is flushed; the target must run with denormals enabled).
//! - [`Emit::fma`] rounds once. The bounds of `ACCURACY.md` hold only then; with a product rounded on its own the
//!   argument reductions lose up to all digits, so a target without FMA must emulate it or call a library instead.
//! - Comparisons are false on NaN, and `min(a, b)` is `a < b ? a : b`: the second operand survives a NaN. The order of
//!   operands in clamps relies on it.
//!
//! Coefficients are our own minimax fits: `derive_coefficients.py` writes `coefficients.rs`.

mod circular;
mod coefficients;
mod error_function;
mod exponential;
mod format;
mod hyperbolic;
mod inverse;
mod inverse_hyperbolic;
mod logarithm;
mod power;
pub mod scalar;

use tlc_ir::ScalarOp;
use tlc_ir::scalar::Form;

pub(crate) use exponential::{exp_in_range, short_exp2};
pub use format::{Double, Format, Single};

/// The exponential of an f32 of no larger magnitude is a normal number.
pub(crate) const EXP_NORMAL: f64 = <Single as Format>::EXP_NORMAL;
/// See `coefficients.rs`.
pub(crate) const LOG2_E: f64 = coefficients::F32_LOG2_E[0];

#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

/// What an elementary function is written in: the operations of one vector instruction each.
///
/// A value is a float, an integer or a mask; the algorithms keep operand types equal (`f32` with `i32`, `f64` with
/// `i64`), so an implementation may take an operation's type from either operand. Integers wrap.
pub trait Emit {
    /// A scalar or a vector of lanes, of any of the types.
    type V: Copy;

    /// The f32 constant `x` in every lane.
    fn f32(&mut self, x: f32) -> Self::V;
    /// The f64 constant `x` in every lane.
    fn f64(&mut self, x: f64) -> Self::V;
    /// The 32-bit integer constant `x` in every lane.
    fn i32(&mut self, x: i32) -> Self::V;
    /// The 64-bit integer constant `x` in every lane.
    fn i64(&mut self, x: i64) -> Self::V;

    /// `a + b` on floats, rounded to nearest even, as are all float operations.
    fn add(&mut self, a: Self::V, b: Self::V) -> Self::V;
    /// `a - b` on floats.
    fn sub(&mut self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b` on floats.
    fn mul(&mut self, a: Self::V, b: Self::V) -> Self::V;
    /// `a / b` on floats.
    fn div(&mut self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c` on floats, rounded once.
    fn fma(&mut self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// Flips the sign bit of a float.
    fn neg(&mut self, a: Self::V) -> Self::V;
    /// Clears the sign bit of a float.
    fn abs(&mut self, a: Self::V) -> Self::V;
    /// Square root of a float.
    fn sqrt(&mut self, a: Self::V) -> Self::V;
    /// The nearest integer as a float, ties to even; infinities and NaN unchanged.
    fn round_even(&mut self, a: Self::V) -> Self::V;

    /// `a < b` on floats; false on NaN.
    fn lt(&mut self, a: Self::V, b: Self::V) -> Self::V;
    /// `a <= b` on floats; false on NaN.
    fn le(&mut self, a: Self::V, b: Self::V) -> Self::V;
    /// `a == b` on floats (false on NaN).
    fn eq(&mut self, a: Self::V, b: Self::V) -> Self::V;
    /// `a < b` on integers as signed.
    fn int_lt(&mut self, a: Self::V, b: Self::V) -> Self::V;
    /// `a == b` on integers.
    fn int_eq(&mut self, a: Self::V, b: Self::V) -> Self::V;
    /// Both masks.
    fn mask_and(&mut self, a: Self::V, b: Self::V) -> Self::V;
    /// Either mask.
    fn mask_or(&mut self, a: Self::V, b: Self::V) -> Self::V;
    /// The mask `a` without the lanes of `b`.
    fn mask_and_not(&mut self, a: Self::V, b: Self::V) -> Self::V;
    /// Lane by lane, `a` where `mask` is true and `b` elsewhere; floats or integers.
    fn select(&mut self, mask: Self::V, a: Self::V, b: Self::V) -> Self::V;

    /// The bits of a float as the integer of the same width.
    fn bits_of_float(&mut self, a: Self::V) -> Self::V;
    /// The float with the bits of an integer.
    fn float_of_bits(&mut self, a: Self::V) -> Self::V;
    /// Wrapping `a + b` on integers.
    fn int_add(&mut self, a: Self::V, b: Self::V) -> Self::V;
    /// Wrapping `a - b` on integers.
    fn int_sub(&mut self, a: Self::V, b: Self::V) -> Self::V;
    /// Bitwise and of integers.
    fn int_and(&mut self, a: Self::V, b: Self::V) -> Self::V;
    /// Bitwise or of integers.
    fn int_or(&mut self, a: Self::V, b: Self::V) -> Self::V;
    /// Bitwise exclusive or of integers.
    fn int_xor(&mut self, a: Self::V, b: Self::V) -> Self::V;
    /// Left shift of integers by a constant smaller than the width.
    fn shl(&mut self, a: Self::V, bits: u32) -> Self::V;
    /// Logical right shift of integers by a constant smaller than the width.
    fn shr(&mut self, a: Self::V, bits: u32) -> Self::V;

    /// Whether there is [`Emit::scale`].
    fn scales(&self) -> bool {
        false
    }
    /// `p 2^n` of f32, for a whole `n`, rounded once; only asked for where [`Emit::scales`] says so.
    fn scale(&mut self, p: Self::V, _n: Self::V) -> Self::V {
        p
    }

    /// `select(mask, then, otherwise)`, where `then` runs only if the mask is true in any lane.
    fn if_any(&mut self, mask: Self::V, then: impl FnOnce(&mut Self) -> Self::V, otherwise: Self::V) -> Self::V;

    /// `a < b ? a : b` on floats: `b` where either is NaN (x86 `minps`).
    fn min(&mut self, a: Self::V, b: Self::V) -> Self::V {
        let less = self.lt(a, b);
        self.select(less, a, b)
    }
    /// `a > b ? a : b` on floats: `b` where either is NaN (x86 `maxps`).
    fn max(&mut self, a: Self::V, b: Self::V) -> Self::V {
        let less = self.lt(b, a);
        self.select(less, a, b)
    }
}

macro_rules! functions {
    (
        operations { $($op:ident ($($x:ident),*) $module:ident::$formula:ident, $doc:literal;)* }
        others { $($other:ident $name:literal ($($y:ident),*) $other_module:ident::$other_formula:ident, $other_doc:literal;)* }
    ) => {
        /// The functions that this module has.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Function {
            $(#[doc = $doc] $op,)*
            $(#[doc = $other_doc] $other,)*
        }

        impl Function {
            /// Every function, in the order of declaration.
            pub const ALL: [Self; [$(Self::$op,)* $(Self::$other,)*].len()] = [$(Self::$op,)* $(Self::$other,)*];

            /// The name in kernel text: `exp`, `log1p`, ...
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$op => ScalarOp::$op.name(),)*
                    $(Self::$other => $name,)*
                }
            }

            /// The number of operands: 2 for `atan2` and `pow`, else 1.
            pub const fn arity(self) -> usize {
                match self {
                    $(Self::$op => ScalarOp::$op.arity(),)*
                    $(Self::$other => [$(stringify!($y)),*].len(),)*
                }
            }

            /// The formula of a scalar operation; `None` where emitters have the operation.
            pub const fn of(op: ScalarOp) -> Option<Self> {
                match op {
                    $(ScalarOp::$op => Some(Self::$op),)*
                    _ => None,
                }
            }
        }

        /// Emits `function` of `args`, which are all of format `F`; `None` if the number of operands is wrong.
        ///
        /// Every function exists in both formats. `emit::<Single, _>(function, e, args)` for f32, `Double` for f64.
        #[inline(always)]
        pub fn emit<F: Format, E: Emit>(function: Function, e: &mut E, args: &[E::V]) -> Option<E::V> {
            match (function, args) {
                $((Function::$op, &[$($x),*]) => Some($module::$formula::<F, E>(e, $($x),*)),)*
                $((Function::$other, &[$($y),*]) => Some($other_module::$other_formula::<F, E>(e, $($y),*)),)*
                _ => None,
            }
        }
    };
}

functions! {
    operations {
        Exp (x) exponential::exp, "e to the x.";
        Exp2 (x) exponential::exp2, "2 to the x.";
        Expm1 (x) exponential::expm1, "e to the x, less 1.";
        Log (x) logarithm::log, "Natural logarithm.";
        Log2 (x) logarithm::log2, "Logarithm to base 2.";
        Log1p (x) logarithm::log1p, "Logarithm of 1 + x.";
        Sin (x) circular::sin, "Sine of x radians.";
        Cos (x) circular::cos, "Cosine of x radians.";
        Tan (x) circular::tan, "Tangent of x radians.";
        Asin (x) inverse::asin, "Inverse sine, in radians.";
        Acos (x) inverse::acos, "Inverse cosine, in radians.";
        Atan (x) inverse::atan, "Inverse tangent, in radians.";
        Atan2 (y, x) inverse::atan2, "`atan2(y, x)`: the angle of the point (x, y), in radians.";
        Sinh (x) hyperbolic::sinh, "Hyperbolic sine.";
        Cosh (x) hyperbolic::cosh, "Hyperbolic cosine.";
        Tanh (x) hyperbolic::tanh, "Hyperbolic tangent.";
        Asinh (x) inverse_hyperbolic::asinh, "Inverse hyperbolic sine.";
        Acosh (x) inverse_hyperbolic::acosh, "Inverse hyperbolic cosine.";
        Atanh (x) inverse_hyperbolic::atanh, "Inverse hyperbolic tangent.";
        Erf (x) error_function::erf, "Error function.";
        Pow (x, y) power::pow, "`pow(x, y)`: x to the y.";
        Rsqrt (x) power::rsqrt, "1 / sqrt(x).";
    }
    others {
        Sigmoid "sigmoid" (x) exponential::sigmoid, "1 / (1 + e^-x).";
    }
}

// Each operation whose row says that it is a formula has one here.
const _: () = {
    let mut i = 0;
    while i < ScalarOp::ALL.len() {
        let formula = matches!(ScalarOp::ALL[i].form(), Form::Formula);
        assert!(Function::of(ScalarOp::ALL[i]).is_some() == formula);
        i += 1;
    }
};
