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

pub use format::{Double, Format, Single};

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

/// The functions that this module has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Function {
    /// e to the x.
    Exp,
    /// 2 to the x.
    Exp2,
    /// e to the x, less 1.
    Expm1,
    /// Natural logarithm.
    Log,
    /// Logarithm to base 2.
    Log2,
    /// Logarithm of 1 + x.
    Log1p,
    /// Sine of x radians.
    Sin,
    /// Cosine of x radians.
    Cos,
    /// Tangent of x radians.
    Tan,
    /// Inverse sine, in radians.
    Asin,
    /// Inverse cosine, in radians.
    Acos,
    /// Inverse tangent, in radians.
    Atan,
    /// `atan2(y, x)`: the angle of the point (x, y), in radians.
    Atan2,
    /// Hyperbolic sine.
    Sinh,
    /// Hyperbolic cosine.
    Cosh,
    /// Hyperbolic tangent.
    Tanh,
    /// Inverse hyperbolic sine.
    Asinh,
    /// Inverse hyperbolic cosine.
    Acosh,
    /// Inverse hyperbolic tangent.
    Atanh,
    /// Error function.
    Erf,
    /// `pow(x, y)`: x to the y.
    Pow,
    /// 1 / (1 + e^-x).
    Sigmoid,
    /// 1 / sqrt(x).
    Rsqrt,
}

impl Function {
    /// Every function, in the order of declaration.
    pub const ALL: [Self; 23] = {
        use Function::*;
        [
            Exp, Exp2, Expm1, Log, Log2, Log1p, Sin, Cos, Tan, Asin, Acos, Atan, Atan2, Sinh, Cosh, Tanh, Asinh, Acosh,
            Atanh, Erf, Pow, Sigmoid, Rsqrt,
        ]
    };

    /// The name in kernel text: `exp`, `log1p`, ...
    pub const fn name(self) -> &'static str {
        match self {
            Self::Exp => "exp",
            Self::Exp2 => "exp2",
            Self::Expm1 => "expm1",
            Self::Log => "log",
            Self::Log2 => "log2",
            Self::Log1p => "log1p",
            Self::Sin => "sin",
            Self::Cos => "cos",
            Self::Tan => "tan",
            Self::Asin => "asin",
            Self::Acos => "acos",
            Self::Atan => "atan",
            Self::Atan2 => "atan2",
            Self::Sinh => "sinh",
            Self::Cosh => "cosh",
            Self::Tanh => "tanh",
            Self::Asinh => "asinh",
            Self::Acosh => "acosh",
            Self::Atanh => "atanh",
            Self::Erf => "erf",
            Self::Pow => "pow",
            Self::Sigmoid => "sigmoid",
            Self::Rsqrt => "rsqrt",
        }
    }

    /// The number of operands: 2 for `atan2` and `pow`, else 1.
    pub const fn arity(self) -> usize {
        match self {
            Self::Atan2 | Self::Pow => 2,
            _ => 1,
        }
    }
}

/// Emits `function` of `args`, which are all of format `F`; `None` if the number of operands is wrong.
///
/// Every function exists in both formats. `emit::<Single, _>(function, e, args)` for f32, `Double` for f64.
#[inline(always)]
pub fn emit<F: Format, E: Emit>(function: Function, e: &mut E, args: &[E::V]) -> Option<E::V> {
    let value = match (function, args) {
        (Function::Exp, &[x]) => exponential::exp::<F, E>(e, x),
        (Function::Exp2, &[x]) => exponential::exp2::<F, E>(e, x),
        (Function::Expm1, &[x]) => exponential::expm1::<F, E>(e, x),
        (Function::Sigmoid, &[x]) => exponential::sigmoid::<F, E>(e, x),
        (Function::Log, &[x]) => logarithm::log::<F, E>(e, x),
        (Function::Log2, &[x]) => logarithm::log2::<F, E>(e, x),
        (Function::Log1p, &[x]) => logarithm::log1p::<F, E>(e, x),
        (Function::Sin, &[x]) => circular::sin::<F, E>(e, x),
        (Function::Cos, &[x]) => circular::cos::<F, E>(e, x),
        (Function::Tan, &[x]) => circular::tan::<F, E>(e, x),
        (Function::Asin, &[x]) => inverse::asin::<F, E>(e, x),
        (Function::Acos, &[x]) => inverse::acos::<F, E>(e, x),
        (Function::Atan, &[x]) => inverse::atan::<F, E>(e, x),
        (Function::Atan2, &[y, x]) => inverse::atan2::<F, E>(e, y, x),
        (Function::Sinh, &[x]) => hyperbolic::sinh::<F, E>(e, x),
        (Function::Cosh, &[x]) => hyperbolic::cosh::<F, E>(e, x),
        (Function::Tanh, &[x]) => hyperbolic::tanh::<F, E>(e, x),
        (Function::Asinh, &[x]) => inverse_hyperbolic::asinh::<F, E>(e, x),
        (Function::Acosh, &[x]) => inverse_hyperbolic::acosh::<F, E>(e, x),
        (Function::Atanh, &[x]) => inverse_hyperbolic::atanh::<F, E>(e, x),
        (Function::Erf, &[x]) => error_function::erf::<F, E>(e, x),
        (Function::Pow, &[x, y]) => power::pow::<F, E>(e, x, y),
        (Function::Rsqrt, &[x]) => {
            // Not the 12-bit estimate: 1 / sqrt(x) is within 1 ulp, and division is pipelined.
            let one = F::float(e, 1.0);
            let root = e.sqrt(x);
            e.div(one, root)
        }
        _ => return None,
    };
    Some(value)
}
