//! Scalar operations: their names, their typing and, first of all, their meaning.
//!
//! **Floats** follow IEEE 754 strictly: no contraction, no reassociation, no flushing of denormals. f16 and bf16 compute in
//! f32 and round once to the narrow type; for `+ - * / sqrt` that is the correctly rounded result. Transcendental
//! functions are accurate to the ulps of [`ScalarOp::ulps`], and exact on specials (NaN, infinities, zeros) as in
//! C99 Annex F.
//!
//! **Sums** (Reduce, Einsum and Scan with `add`) may reassociate, and the identity +0 may or may not take part: the sign of a
//! zero sum is open, and a sum of the one term −0 may be either zero. Nothing else about a sum of one term is open.
//! What an Einsum may regroup besides is stated at [`NodeKind::Einsum`](crate::graph::NodeKind::Einsum); so is the one case in which a rounding
//! of an operation on floats may be left out: the multiplication of bytes by a constant scale, where an Einsum sums up what it makes.
//!
//! | operation | meaning beyond the obvious |
//! |---|---|
//! | `max`, `min` | NaN in either operand gives NaN; −0 is below +0; for bool they are or, and |
//! | `sign` | −1, 0, 1; zero keeps its sign, NaN stays NaN |
//! | `round` | half to even |
//! | `add sub mul neg abs` on integers | wrap; `abs` of the lowest value is itself |
//! | `div` on integers | toward zero; `x / 0 = 0`; lowest / −1 wraps to lowest |
//! | `rem` | `x - y * (x div y)`, so `rem(x, 0) = x` on integers; sign of the dividend; on floats C's `fmod` |
//! | `mod` | floored: sign of the divisor; `mod(x, 0) = x` on integers, NaN on floats |
//! | `shl`, `shr` | a shift below 0 or at or above the width gives 0 (`shr` of a negative gives −1); `shr` is arithmetic on signed |
//! | `eq ne lt le` | `ne` is the negation of `eq`; anything ordered against NaN is false |
//! | `and or xor not` | logical on bool, bitwise on integers |
//! | `select(c, a, b)` | `a` where `c`, else `b`; the other operand's NaN does not leak |
//! | `acosh` | NaN below 1 |
//! | `atanh` | infinite at −1 and 1, NaN beyond |
//! | `fma(a, b, c)` | `a*b + c` with one rounding; on f16 and bf16 that is f32's, and the rounding to the narrow type follows |
//! | `dot4(a, b)` | the four bytes of `a`, unsigned, each times that of `b` at the same place, signed, and the products added up |
//! | `convert` to an integer | from float: truncate, saturate, NaN is 0; from integer: wrap |
//! | `convert` to a float | round to nearest, ties to even, once |
//! | `convert` to bool | `x != 0`, so NaN is true |
//! | `convert` to a storage type | floats round and saturate, integers as above ([`crate::dtype::narrow`]) |
//!
//! Of the storage types only `select` and `convert` know; every other operation refuses them.

use std::fmt;

use crate::dtype::{DType, Scalar};

macro_rules! ops {
    ($($variant:ident $name:literal $arity:tt $class:ident $cost:tt $form:ident $carry:ident $ulps:literal $doc:literal;)*) => {
        /// An elementwise operation on one to three scalars.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        pub enum ScalarOp { $(#[doc = $doc] $variant,)* }

        impl ScalarOp {
            /// Every operation, in declaration order.
            pub const ALL: &'static [ScalarOp] = &[$(ScalarOp::$variant,)*];
            /// The spelling in text forms.
            pub const fn name(self) -> &'static str { match self { $(ScalarOp::$variant => $name,)* } }
            /// Number of operands.
            pub const fn arity(self) -> usize { match self { $(ScalarOp::$variant => $arity,)* } }
            #[inline]
            const fn class(self) -> Class { match self { $(ScalarOp::$variant => Class::$class,)* } }
            /// What an element costs.
            pub const fn cost(self) -> Cost { match self { $(ScalarOp::$variant => Cost::$cost,)* } }
            /// What it is to emitters.
            #[inline]
            pub const fn form(self) -> Form { match self { $(ScalarOp::$variant => Form::$form,)* } }
            /// How an error of its operands moves its result.
            pub const fn carry(self) -> Carry { match self { $(ScalarOp::$variant => Carry::$carry,)* } }
            /// How many ulps a right result on floats may be off, of the type that it is computed in; 0 where the result is
            /// correctly rounded.
            pub const fn ulps(self) -> f64 { match self { $(ScalarOp::$variant => $ulps,)* } }
        }
    };
}

/// How an operation is typed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    /// Integers and floats, same dtype in and out.
    Number,
    /// Floats only.
    Float,
    /// Any dtype, same in and out.
    Any,
    /// bool and integers.
    Bits,
    /// Integers only.
    Int,
    /// i32 only, as words of four bytes.
    Word,
    /// Any dtype in, bool out.
    Compare,
    /// bool, then two alike.
    Select,
}

/// What an operation costs: how dear it is to compute one again, and how much it counts in reports. The order is that of
/// dearness.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Cost {
    /// An instruction or a few that no machine is slow at.
    Cheap,
    /// A multiplication and an addition in one.
    Fused,
    /// A division, a root, or both: a few times as long as an addition.
    Division,
    /// A transcendental function: tens of instructions.
    Function,
}

/// Who makes an operation out of what a machine has, on f32 and f64; on integers and bool all are [`Form::Native`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Form {
    /// Each emitter, by an instruction, a few of them, or a call.
    Native,
    /// Legalization, by a formula of native operations: no emitter meets it there.
    Formula,
}

/// How an error of the operands moves the result of an operation on floats, as the interpreter with bounds derives it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Carry {
    /// By a rule of the operation's own, in `interp/bounds/approx.rs`.
    Own,
    /// One operand, in which it is monotone wherever it is a number: between its values at both ends.
    Monotone,
}

/// The table of scalar operations: calls the macro that it is given with a row for each.
///
/// A row is the operation, its name and number of operands; how it is typed; what it [costs](Cost); [who makes it](Form)
/// out of native operations; how [errors of operands](Carry) carry on, and how many ulps it may be off by itself; and what
/// it is.
#[macro_export]
macro_rules! scalar_rows {
    ($rows:ident) => {
        $rows! {
            Neg "neg" 1 Number Cheap Native Own 0.0 "−x; wraps on integers.";
            Abs "abs" 1 Number Cheap Native Own 0.0 "|x|.";
            Sign "sign" 1 Number Cheap Native Own 0.0 "−1, 0 or 1.";
            Not "not" 1 Bits Cheap Native Own 0.0 "Logical or bitwise complement.";
            Floor "floor" 1 Float Cheap Native Own 0.0 "Largest integer not above.";
            Ceil "ceil" 1 Float Cheap Native Own 0.0 "Smallest integer not below.";
            Round "round" 1 Float Cheap Native Own 0.0 "Nearest integer, half to even.";
            Trunc "trunc" 1 Float Cheap Native Own 0.0 "Integer part.";
            Sqrt "sqrt" 1 Float Division Native Own 0.0 "Square root, correctly rounded.";
            Rsqrt "rsqrt" 1 Float Division Formula Monotone 4.0 "1 / sqrt(x).";
            Exp "exp" 1 Float Function Formula Monotone 4.0 "e^x.";
            Exp2 "exp2" 1 Float Function Formula Monotone 4.0 "2^x.";
            Expm1 "expm1" 1 Float Function Formula Monotone 4.0 "e^x − 1.";
            Log "log" 1 Float Function Formula Monotone 4.0 "Natural logarithm.";
            Log2 "log2" 1 Float Function Formula Monotone 4.0 "Binary logarithm.";
            Log1p "log1p" 1 Float Function Formula Monotone 4.0 "ln(1 + x).";
            Sin "sin" 1 Float Function Formula Own 4.0 "Sine.";
            Cos "cos" 1 Float Function Formula Own 4.0 "Cosine.";
            Tan "tan" 1 Float Function Formula Own 4.0 "Tangent.";
            Asin "asin" 1 Float Function Formula Monotone 4.0 "Arc sine.";
            Acos "acos" 1 Float Function Formula Monotone 4.0 "Arc cosine.";
            Atan "atan" 1 Float Function Formula Monotone 4.0 "Arc tangent.";
            Sinh "sinh" 1 Float Function Formula Monotone 4.0 "Hyperbolic sine.";
            Cosh "cosh" 1 Float Function Formula Own 4.0 "Hyperbolic cosine.";
            Tanh "tanh" 1 Float Function Formula Monotone 4.0 "Hyperbolic tangent.";
            Asinh "asinh" 1 Float Function Formula Monotone 4.0 "Inverse hyperbolic sine.";
            Acosh "acosh" 1 Float Function Formula Monotone 4.0 "Inverse hyperbolic cosine.";
            Atanh "atanh" 1 Float Function Formula Monotone 4.0 "Inverse hyperbolic tangent.";
            Erf "erf" 1 Float Function Formula Monotone 4.0 "Error function.";
            Add "add" 2 Number Cheap Native Own 0.0 "x + y.";
            Sub "sub" 2 Number Cheap Native Own 0.0 "x − y.";
            Mul "mul" 2 Number Cheap Native Own 0.0 "x · y.";
            Div "div" 2 Number Division Native Own 0.0 "x / y.";
            Rem "rem" 2 Number Division Native Own 0.0 "Remainder with the sign of the dividend.";
            Mod "mod" 2 Number Division Native Own 0.0 "Remainder with the sign of the divisor.";
            Pow "pow" 2 Float Function Formula Own 4.0 "x^y.";
            Atan2 "atan2" 2 Float Function Formula Own 4.0 "Angle of the point (y, x): `atan2(y, x)`.";
            Max "max" 2 Any Cheap Native Own 0.0 "The larger; NaN wins.";
            Min "min" 2 Any Cheap Native Own 0.0 "The smaller; NaN wins.";
            And "and" 2 Bits Cheap Native Own 0.0 "Logical or bitwise and.";
            Or "or" 2 Bits Cheap Native Own 0.0 "Logical or bitwise or.";
            Xor "xor" 2 Bits Cheap Native Own 0.0 "Logical or bitwise exclusive or.";
            Shl "shl" 2 Int Cheap Native Own 0.0 "Shift left.";
            Shr "shr" 2 Int Cheap Native Own 0.0 "Shift right; arithmetic on signed.";
            Dot4 "dot4" 2 Word Cheap Native Own 0.0 "Sum of the products of four unsigned bytes with four signed ones.";
            Eq "eq" 2 Compare Cheap Native Own 0.0 "Equal.";
            Ne "ne" 2 Compare Cheap Native Own 0.0 "Not equal.";
            Lt "lt" 2 Compare Cheap Native Own 0.0 "Less.";
            Le "le" 2 Compare Cheap Native Own 0.0 "Less or equal.";
            Select "select" 3 Select Cheap Native Own 0.0 "`select(c, a, b)`.";
            Fma "fma" 3 Float Fused Native Own 0.0 "`a*b + c`, rounded once.";
        }
    };
}

scalar_rows!(ops);

impl fmt::Display for ScalarOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What to do with a storage type.
pub const STORAGE_ADVICE: &str = "convert it first";

/// Why operand dtypes do not fit an operation.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{op} takes {expected}, found {found}")]
pub struct ScalarTypeError {
    /// The operation.
    pub op: ScalarOp,
    /// What would fit.
    pub expected: &'static str,
    /// What was given.
    pub found: String,
}

impl ScalarOp {
    /// The operation of that name.
    pub fn from_name(name: &str) -> Option<ScalarOp> {
        ScalarOp::ALL.iter().copied().find(|op| op.name() == name)
    }

    /// Whether the operation is defined on operands of that dtype (of `select`, on its two values).
    #[inline]
    pub const fn takes(self, on: DType) -> bool {
        match self.class() {
            Class::Number => on.is_int() || on.is_float(),
            Class::Float => on.is_float(),
            Class::Any | Class::Compare => !on.is_storage(),
            Class::Bits => on.is_int() || matches!(on, DType::Bool),
            Class::Int => on.is_int(),
            Class::Word => matches!(on, DType::I32),
            Class::Select => true,
        }
    }

    /// True where swapping the two operands gives the same result.
    pub const fn is_commutative(self) -> bool {
        use ScalarOp::*;
        matches!(self, Add | Mul | Max | Min | And | Or | Xor | Eq | Ne)
    }

    /// Operations that count as one floating-point operation in reports: 20 for a transcendental, 2 for `fma`, 1 otherwise.
    pub const fn flops(self) -> u64 {
        match self.cost() {
            Cost::Cheap | Cost::Division => 1,
            Cost::Fused => 2,
            Cost::Function => 20,
        }
    }

    /// The result dtype for operand dtypes.
    ///
    /// # Errors
    /// [`ScalarTypeError`] if the operands do not fit.
    pub fn result_dtype(self, operands: &[DType]) -> Result<DType, ScalarTypeError> {
        let fail = |expected| {
            let found = operands.iter().map(|d| d.name()).collect::<Vec<_>>().join(", ");
            Err(ScalarTypeError {
                op: self,
                expected,
                found,
            })
        };
        if operands.len() != self.arity() {
            return fail(match self.arity() {
                1 => "one operand",
                2 => "two operands",
                _ => "three operands",
            });
        }
        let values = if self.class() == Class::Select {
            &operands[1..]
        } else {
            operands
        };
        let d = values[0];
        if values.iter().any(|&other| other != d) {
            return fail("operands of one dtype");
        }
        if d.is_storage() && self.class() != Class::Select {
            return fail("a dtype that is computed in (convert the storage type first)");
        }
        match self.class() {
            Class::Number if d == DType::Bool => fail("integers or floats"),
            Class::Float if !d.is_float() => fail("floats"),
            Class::Bits if d.is_float() => fail("bool or integers"),
            Class::Int if !d.is_int() => fail("integers"),
            Class::Word if d != DType::I32 => fail("words of i32"),
            Class::Select if operands[0] != DType::Bool => fail("a bool condition"),
            Class::Compare => Ok(DType::Bool),
            _ => Ok(d),
        }
    }

    /// The value of the operation: the reference for every emitter.
    ///
    /// # Panics
    /// If the operands do not fit (see [`ScalarOp::result_dtype`]).
    pub fn eval(self, args: &[Scalar]) -> Scalar {
        let dtype = args[args.len() - 1].dtype();
        match self {
            ScalarOp::Select => return if args[0].as_bool() { args[1] } else { args[2] },
            ScalarOp::Eq => return Scalar::from_bool(compare(args[0], args[1]) == Some(std::cmp::Ordering::Equal)),
            ScalarOp::Ne => return Scalar::from_bool(compare(args[0], args[1]) != Some(std::cmp::Ordering::Equal)),
            ScalarOp::Lt => return Scalar::from_bool(compare(args[0], args[1]) == Some(std::cmp::Ordering::Less)),
            ScalarOp::Le => return Scalar::from_bool(compare(args[0], args[1]).is_some_and(|o| o.is_le())),
            _ => {}
        }
        match dtype {
            DType::Bool => Scalar::from_bool(self.eval_bool(args)),
            DType::F64 => Scalar::from_f64(dtype, self.eval_f64(&floats(args))),
            DType::F32 | DType::F16 | DType::BF16 if self == ScalarOp::Fma => {
                // Exact: every value of the narrow types is one of f32's.
                let f = |i: usize| args[i].as_f64() as f32;
                Scalar::from_f64(dtype, fused_f32(f(0), f(1), f(2)).into())
            }
            d if d.is_float() => Scalar::from_f64(d, self.eval_f64(&floats(args))),
            d if d.is_signed_int() => {
                let y = args.get(1).map_or(0, |s| s.as_i64());
                Scalar::from_i64(d, self.eval_signed(args[0].as_i64(), y, d.bits()))
            }
            d => Scalar::from_bits(
                d,
                self.eval_unsigned(args[0].bits(), args.get(1).map_or(0, |s| s.bits()), d.bits()),
            ),
        }
    }

    fn eval_bool(self, args: &[Scalar]) -> bool {
        let x = args[0].as_bool();
        let y = args.get(1).is_some_and(|s| s.as_bool());
        match self {
            ScalarOp::Not => !x,
            ScalarOp::And | ScalarOp::Min => x & y,
            ScalarOp::Or | ScalarOp::Max => x | y,
            ScalarOp::Xor => x ^ y,
            op => unreachable!("{op} on bool"),
        }
    }

    /// The operation on f64 operands; unused operands are 0. Bit and integer operations are not floats' and give NaN.
    pub fn eval_f64(self, v: &[f64; 3]) -> f64 {
        use ScalarOp::*;
        let [x, y, z] = *v;
        match self {
            Neg => -x,
            Abs => x.abs(),
            Sign => {
                if x > 0.0 {
                    1.0
                } else if x < 0.0 {
                    -1.0
                } else {
                    x
                }
            }
            Floor => x.floor(),
            Ceil => x.ceil(),
            Round => x.round_ties_even(),
            Trunc => x.trunc(),
            Sqrt => x.sqrt(),
            Rsqrt => 1.0 / x.sqrt(),
            Exp => libm::exp(x),
            Exp2 => libm::exp2(x),
            Expm1 => libm::expm1(x),
            Log => libm::log(x),
            Log2 => libm::log2(x),
            Log1p => libm::log1p(x),
            Sin => libm::sin(x),
            Cos => libm::cos(x),
            Tan => libm::tan(x),
            Asin => libm::asin(x),
            Acos => libm::acos(x),
            Atan => libm::atan(x),
            Sinh => libm::sinh(x),
            Cosh => libm::cosh(x),
            Tanh => libm::tanh(x),
            Asinh => libm::asinh(x),
            // The library takes some numbers below -1 for valid ones.
            Acosh if x < 1.0 => f64::NAN,
            Acosh => libm::acosh(x),
            Atanh => libm::atanh(x),
            Erf => libm::erf(x),
            Add => x + y,
            Sub => x - y,
            Mul => x * y,
            Div => x / y,
            Rem => x % y,
            Mod => {
                let r = x % y;
                if r == 0.0 {
                    r.copysign(y)
                } else if (r < 0.0) != (y < 0.0) {
                    r + y
                } else {
                    r
                }
            }
            Pow => libm::pow(x, y),
            Atan2 => libm::atan2(x, y),
            Max | Min if x.is_nan() || y.is_nan() => f64::NAN,
            Max if x == y => f64::from_bits(x.to_bits() & y.to_bits()),
            Max => x.max(y),
            Min if x == y => f64::from_bits(x.to_bits() | y.to_bits()),
            Min => x.min(y),
            Fma => x.mul_add(y, z),
            Not | And | Or | Xor | Shl | Shr | Dot4 | Eq | Ne | Lt | Le | Select => f64::NAN,
        }
    }

    fn eval_signed(self, x: i64, y: i64, bits: u32) -> i64 {
        use ScalarOp::*;
        match self {
            Neg => x.wrapping_neg(),
            Abs => x.wrapping_abs(),
            Sign => x.signum(),
            Not => !x,
            Add => x.wrapping_add(y),
            Sub => x.wrapping_sub(y),
            Mul => x.wrapping_mul(y),
            Div if y == 0 => 0,
            Div => x.wrapping_div(y),
            Rem | Mod if y == 0 => x,
            Rem => x.wrapping_rem(y),
            Mod => {
                let r = x.wrapping_rem(y);
                if r != 0 && (r < 0) != (y < 0) { r + y } else { r }
            }
            Max => x.max(y),
            Min => x.min(y),
            And => x & y,
            Or => x | y,
            Xor => x ^ y,
            Shl if !(0..bits as i64).contains(&y) => 0,
            Shl => x << y,
            Shr if !(0..bits as i64).contains(&y) => x >> 63,
            Shr => x >> y,
            Dot4 => dot4(x as u32, y as u32).into(),
            op => unreachable!("{op} on a signed integer"),
        }
    }

    fn eval_unsigned(self, x: u64, y: u64, bits: u32) -> u64 {
        use ScalarOp::*;
        match self {
            Neg => x.wrapping_neg(),
            Abs => x,
            Sign => (x != 0) as u64,
            Not => !x,
            Add => x.wrapping_add(y),
            Sub => x.wrapping_sub(y),
            Mul => x.wrapping_mul(y),
            Div => x.checked_div(y).unwrap_or(0),
            Rem | Mod => x.checked_rem(y).unwrap_or(x),
            Max => x.max(y),
            Min => x.min(y),
            And => x & y,
            Or => x | y,
            Xor => x ^ y,
            Shl | Shr if y >= bits as u64 => 0,
            Shl => x << y,
            Shr => x >> y,
            op => unreachable!("{op} on an unsigned integer"),
        }
    }
}

/// [`ScalarOp::Dot4`]: what four unsigned bytes and four signed ones make.
pub(crate) fn dot4(a: u32, b: u32) -> i32 {
    let bytes = a.to_le_bytes().into_iter().zip(b.to_le_bytes());
    bytes.map(|(x, y)| i32::from(x) * i32::from(y as i8)).sum()
}

fn floats(args: &[Scalar]) -> [f64; 3] {
    let mut v = [0.0; 3];
    for (slot, s) in v.iter_mut().zip(args) {
        *slot = s.as_f64();
    }
    v
}

/// The order of two values of one dtype; `None` if either is NaN.
pub fn compare(a: Scalar, b: Scalar) -> Option<std::cmp::Ordering> {
    match a.dtype() {
        d if d.is_float() => a.as_f64().partial_cmp(&b.as_f64()),
        d if d.is_signed_int() => Some(a.as_i64().cmp(&b.as_i64())),
        _ => Some(a.bits().cmp(&b.bits())),
    }
}

/// `x * y + z`, rounded once, as `f32::mul_add`. Where that instruction may be absent, the standard library asks the processor whether there is one before
/// its first use, which takes a tenth of a compilation's millisecond in a virtual machine.
///
/// The product is exact in f64. The sum is rounded to odd there: of two numbers beside an inexact one, the one with an odd last bit is taken, which no rounding to
/// f32, subnormal or not, confuses with a number in the middle of two (Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums", 2008).
pub fn fused_f32(x: f32, y: f32, z: f32) -> f32 {
    let (product, z) = (f64::from(x) * f64::from(y), f64::from(z));
    let sum = product + z;
    // What the sum lost (Knuth's two-sum).
    let of_z = sum - product;
    let lost = (product - (sum - of_z)) + (z - of_z);
    let is_even = sum.to_bits() & 1 == 0;
    match sum.is_finite() && lost != 0.0 && is_even {
        true if (lost > 0.0) == (sum > 0.0) => f64::from_bits(sum.to_bits() + 1) as f32,
        true => f64::from_bits(sum.to_bits() - 1) as f32,
        false => sum as f32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn i8s(v: i64) -> Scalar {
        Scalar::from_i64(DType::I8, v)
    }

    /// Of any bits, of edges, of sums that cancel or lie in the middle of two numbers, and of products so small that they only say which way.
    #[test]
    fn fused_products_are_rounded_once() {
        let mut rng = crate::rng::Rng::new(0xf0a);
        let edges = [
            0,
            1,
            2,
            3,
            0x007f_ffff,
            0x0080_0000,
            0x0080_0001,
            0x3f7f_ffff,
            0x3f80_0000,
            0x3f80_0001,
            0x4b80_0000,
            0x7f7f_ffff,
            0x7f80_0000,
            0x7fc0_0000,
        ];
        let number = |rng: &mut crate::rng::Rng, near: u32| {
            let sign = (rng.below(2) as u32) << 31;
            let bits = match rng.below(4) {
                0 => rng.pick(&edges),
                1 => rng.bits() as u32 >> 1,
                // Few bits, so that products are exact in f32 and sums in the middle are many.
                2 => (rng.below(60) as u32 + 98) << 23 | (rng.below(8) as u32) << 20 | rng.below(2) as u32,
                _ => near.wrapping_add(rng.below(5) as u32).wrapping_sub(2) & 0x7fff_ffff,
            };
            f32::from_bits(sign | bits)
        };
        for _ in 0..400_000 {
            let (x, y) = (number(&mut rng, 1), number(&mut rng, 0x3f80_0000));
            let z = number(&mut rng, (x * y).to_bits());
            let (found, expected) = (fused_f32(x, y, z), x.mul_add(y, z));
            let same = found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
            assert!(same, "{x:e} * {y:e} + {z:e}: {found:e}, expected {expected:e}");
        }
    }

    #[test]
    fn integer_edges_are_as_stated() {
        let e = |op: ScalarOp, x, y| op.eval(&[i8s(x), i8s(y)]).as_i64();
        assert_eq!(e(ScalarOp::Div, -128, -1), -128);
        assert_eq!(e(ScalarOp::Div, 5, 0), 0);
        assert_eq!(e(ScalarOp::Rem, 5, 0), 5);
        assert_eq!(e(ScalarOp::Rem, -7, 3), -1);
        assert_eq!(e(ScalarOp::Mod, -7, 3), 2);
        assert_eq!(e(ScalarOp::Mod, 7, -3), -2);
        assert_eq!(e(ScalarOp::Shl, 1, 8), 0);
        assert_eq!(e(ScalarOp::Shr, -1, 100), -1);
        assert_eq!(e(ScalarOp::Add, 127, 1), -128);
        assert_eq!(ScalarOp::Abs.eval(&[i8s(-128)]).as_i64(), -128);
        let word = |bytes: [u8; 4]| Scalar::from_i64(DType::I32, i32::from_le_bytes(bytes).into());
        let dot = |a, b| ScalarOp::Dot4.eval(&[word(a), word(b)]).as_i64();
        assert_eq!(dot([255; 4], [0x80; 4]), -4 * 255 * 128);
        assert_eq!(
            dot([255, 1, 2, 128], [127, 0xff, 3, 0x80]),
            255 * 127 - 1 + 6 - 128 * 128
        );
        let u = |v| Scalar::from_u64(DType::U8, v);
        assert_eq!(ScalarOp::Sub.eval(&[u(0), u(1)]).bits(), 255);
        assert_eq!(ScalarOp::Neg.eval(&[u(1)]).bits(), 255);
    }

    #[test]
    fn nan_wins_in_max_and_min_and_loses_in_comparisons() {
        let f = |v| Scalar::from_f64(DType::F32, v);
        assert!(ScalarOp::Max.eval(&[f(1.0), f(f64::NAN)]).is_nan());
        assert!(ScalarOp::Min.eval(&[f(f64::NAN), f(1.0)]).is_nan());
        assert!(!ScalarOp::Le.eval(&[f(f64::NAN), f(1.0)]).as_bool());
        assert!(ScalarOp::Ne.eval(&[f(f64::NAN), f(f64::NAN)]).as_bool());
    }

    #[test]
    fn rows_agree_with_themselves() {
        for &op in ScalarOp::ALL {
            assert_eq!(ScalarOp::from_name(op.name()), Some(op));
            // A formula, a function's price and an error come with functions of floats alone.
            let formula = op.form() == Form::Formula;
            assert_eq!(formula, op.ulps() > 0.0, "{op}");
            assert!(formula || op.cost() != Cost::Function, "{op}");
            assert!(!formula || op.class() == Class::Float, "{op}");
            assert!(op.carry() == Carry::Own || op.arity() == 1, "{op}");
        }
    }

    /// Where a row says so, a larger operand gives no smaller (or no larger) result, over the whole range.
    #[test]
    fn monotone_operations_are() {
        let points = (-600..=600).map(|i: i32| f64::from(i.signum()) * 1.02f64.powi(i.abs() - 400));
        let points: Vec<f64> = points.collect();
        for &op in ScalarOp::ALL.iter().filter(|op| op.carry() == Carry::Monotone) {
            let results = points.iter().map(|&x| op.eval_f64(&[x, 0.0, 0.0]));
            let numbers: Vec<f64> = results.filter(|r| !r.is_nan()).collect();
            assert!(numbers.len() > 100, "{op}");
            // But for the rounding of the library.
            let close = |w: &[f64]| (w[0] - w[1]).abs() <= 1e-14 * w[0].abs().min(w[1].abs());
            let rises = numbers.windows(2).all(|w| w[0] <= w[1] || close(w));
            let falls = numbers.windows(2).all(|w| w[0] >= w[1] || close(w));
            assert!(rises || falls, "{op}");
        }
    }

    #[test]
    fn every_operation_evaluates_on_every_dtype_it_accepts() {
        for &op in ScalarOp::ALL {
            for d in DType::ALL {
                let mut types = vec![d; op.arity()];
                if op == ScalarOp::Select {
                    types[0] = DType::Bool;
                }
                if let Ok(result) = op.result_dtype(&types) {
                    let args: Vec<Scalar> = types.iter().map(|t| t.one()).collect();
                    assert_eq!(op.eval(&args).dtype(), result, "{op} on {d}");
                }
            }
        }
    }
}
