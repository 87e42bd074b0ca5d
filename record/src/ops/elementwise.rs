//! Elementwise arithmetic, comparison, logic, bits and functions.
//!
//! Two-operand functions are free functions over [`Operand`]s, because either side may be a scalar; operators and methods
//! call them. All promote and broadcast as [`crate::promotion`] says. Errors: shapes that do not broadcast, a dtype that the
//! operation is not defined on, an integer scalar that the tensor's dtype cannot hold.

use tlc_ir::{DType, NodeKind, ScalarOp};

use crate::graph::Tensor;
use crate::graph::scope::{Step, op, refuse_expecting};
use crate::promotion::{Operand, Weak, binary, common_dtype, elementwise, float_of, unify};

fn same(dtype: DType) -> DType {
    dtype
}

fn boolean(_: DType) -> DType {
    DType::Bool
}

/// Also where the bound is NaN, unless it is known not to be.
fn or_nan(beyond: Tensor, bound: &Operand) -> Tensor {
    match bound {
        Operand::Tensor(t) => match t.known_number().is_some_and(|v| !v.as_f64().is_nan()) {
            true => beyond,
            false => beyond.logical_or(t.is_nan()),
        },
        Operand::Scalar(_) | Operand::Weak(_) => beyond,
    }
}

/// `a + b`; on two bools, `or`.
#[track_caller]
pub(crate) fn add(a: Operand, b: Operand) -> Tensor {
    let bools = common_dtype(&[a.clone(), b.clone()]) == DType::Bool;
    binary("add", a, b, same, if bools { ScalarOp::Or } else { ScalarOp::Add })
}

/// `a * b`; on two bools, `and`.
#[track_caller]
pub(crate) fn mul(a: Operand, b: Operand) -> Tensor {
    let bools = common_dtype(&[a.clone(), b.clone()]) == DType::Bool;
    binary("mul", a, b, same, if bools { ScalarOp::And } else { ScalarOp::Mul })
}

/// Floor of the quotient.
#[track_caller]
pub(crate) fn floor_divide(a: Operand, b: Operand) -> Tensor {
    let operands = [a, b];
    elementwise("floor_divide", &operands, |graph| {
        let both = unify(graph, &operands, same)?;
        let (x, y) = (&both[0], &both[1]);
        if x.dtype().is_float() {
            return x.map2(ScalarOp::Div, y)?.map(ScalarOp::Floor);
        }
        let quotient = x.map2(ScalarOp::Div, y)?;
        if !x.dtype().is_signed_int() {
            return Ok(quotient);
        }
        // That was rounded toward zero, which is above the quotient where what is left over has not the sign of the divisor.
        let left = x.map2(ScalarOp::Rem, y)?;
        let above = (left.lt(0) & y.gt(0)) | (left.gt(0) & y.lt(0));
        above.select(&quotient - 1, &quotient).to(x.dtype())
    })
}

/// `a` to the power `b`.
#[track_caller]
pub(crate) fn pow(a: Operand, b: Operand) -> Tensor {
    if let (Operand::Tensor(base), Operand::Weak(Weak::Int(n))) = (&a, &b)
        && !base.dtype().is_float()
    {
        let n = i64::try_from(*n).unwrap_or(i64::MAX);
        return op("pow", &[base], || base.powi_step(n));
    }
    let operands = [a, b];
    elementwise("pow", &operands, |graph| {
        let dtype = common_dtype(&operands);
        if !dtype.is_float() {
            return refuse_expecting(
                format!("an exponent of {dtype} that is not constant"),
                "a constant integer exponent, or floats",
            );
        }
        let both = unify(graph, &operands, same)?;
        both[0].map2(ScalarOp::Pow, &both[1])
    })
}

macro_rules! binary_functions {
    ($($name:ident $text:literal $dtype:ident $op:ident $doc:literal;)*) => {
        $(
            #[doc = $doc]
            #[track_caller]
            pub(crate) fn $name(a: Operand, b: Operand) -> Tensor {
                binary($text, a, b, $dtype, ScalarOp::$op)
            }
        )*
    };
}

binary_functions! {
    sub "sub" same Sub "`a - b`.";
    div "div" float_of Div "`a / b`; integers divide as f32.";
    trunc_divide "trunc_divide" same Div "The quotient rounded toward zero; on floats, `a / b`.";
    rem "rem" same Rem "Remainder with the sign of the dividend.";
    remainder "remainder" same Mod "Remainder with the sign of the divisor.";
    maximum "maximum" same Max "The larger; NaN wins.";
    minimum "minimum" same Min "The smaller; NaN wins.";
    atan2 "atan2" float_of Atan2 "Angle of the point `(b, a)`.";
    bit_and "bit_and" same And "Bitwise and; logical on bool.";
    bit_or "bit_or" same Or "Bitwise or; logical on bool.";
    bit_xor "bit_xor" same Xor "Bitwise exclusive or; logical on bool.";
    shl "shl" same Shl "Shift left.";
    shr "shr" same Shr "Shift right; arithmetic on signed.";
    logical_and "logical_and" boolean And "Whether both differ from zero.";
    logical_or "logical_or" boolean Or "Whether one differs from zero.";
    logical_xor "logical_xor" boolean Xor "Whether exactly one differs from zero.";
    eq "eq" same Eq "Equal.";
    ne "ne" same Ne "Not equal.";
    lt "lt" same Lt "Less.";
    le "le" same Le "Less or equal.";
}

/// Greater.
#[track_caller]
pub(crate) fn gt(a: Operand, b: Operand) -> Tensor {
    let operands = [a, b];
    elementwise("gt", &operands, |graph| {
        let both = unify(graph, &operands, same)?;
        both[1].map2(ScalarOp::Lt, &both[0])
    })
}

/// Greater or equal.
#[track_caller]
pub(crate) fn ge(a: Operand, b: Operand) -> Tensor {
    let operands = [a, b];
    elementwise("ge", &operands, |graph| {
        let both = unify(graph, &operands, same)?;
        both[1].map2(ScalarOp::Le, &both[0])
    })
}

/// The text of an example.
macro_rules! example {
    ($code:literal) => {
        concat!(
            "\n```\nuse tlc::Graph;\n\nlet g = Graph::default();\n",
            $code,
            "\n# Ok::<(), Box<dyn std::error::Error>>(())\n```"
        )
    };
}

macro_rules! binary_methods {
    ($($name:ident $doc:literal $([$example:literal])?;)*) => {
        /// Two-operand elementwise methods. The other operand is a tensor or a scalar.
        impl Tensor {
            $(
                #[doc = $doc]
                $(#[doc = example!($example)])?
                #[track_caller]
                pub fn $name(&self, other: impl Into<Operand>) -> Tensor {
                    $name(self.into(), other.into())
                }
            )*
        }
    };
}

binary_methods! {
    add "`self + other`; on two bools, `or`."
        ["let x = g.constant([1i32, 2]);\nassert_eq!(x.add(10).eval()?.as_slice::<i32>()?, [11, 12]);"];
    sub "`self - other`. Not for bool."
        ["let x = g.constant([1i32, 2]);\nassert_eq!(x.sub(1).eval()?.as_slice::<i32>()?, [0, 1]);"];
    mul "`self * other`; on two bools, `and`."
        ["let x = g.constant([1.5f32, 2.0]);\nassert_eq!(x.mul(&x).eval()?.as_slice::<f32>()?, [2.25, 4.0]);"];
    div "True division: integers divide as f32."
        ["let x = g.constant([1i32, 3]);\nassert_eq!(x.div(2).eval()?.as_slice::<f32>()?, [0.5, 1.5]);"];
    floor_divide "Floor of the quotient; on integers `x / 0 = 0`.";
    trunc_divide "The quotient rounded toward zero (Rust's `/` on integers; `x / 0 = 0`); on floats, `self / other`.";
    rem "Remainder with the sign of the dividend (Rust's `%`, C's `fmod`).";
    remainder "Remainder with the sign of the divisor (Python's `%`); `x` itself where an integer divisor is 0."
        ["let x = g.constant([-1i32, 7]);\nassert_eq!(x.remainder(3).eval()?.as_slice::<i32>()?, [2, 1]);"];
    maximum "The larger; NaN in either gives NaN."
        ["let x = g.constant([1.0f32, f32::NAN]);\nlet y = x.maximum(2.0).eval()?;\nlet y = y.as_slice::<f32>()?;\nassert!(y[0] == 2.0 && y[1].is_nan());"];
    minimum "The smaller; NaN in either gives NaN.";
    atan2 "The angle of the point (`other`, `self`), in -π to π.";
    pow "`self` to the power `other`. Bool and integer tensors take a constant integer exponent, 0 or more (repeated multiplication, wrapping)."
        ["let x = g.constant([2i32, -3]);\nassert_eq!(x.pow(3).eval()?.as_slice::<i32>()?, [8, -27]);"];
    bit_and "Bitwise and on integers, logical on bool.";
    bit_or "Bitwise or on integers, logical on bool.";
    bit_xor "Bitwise exclusive or on integers, logical on bool.";
    shl "Shift left; 0 where the count is negative or not below the width.";
    shr "Shift right, arithmetic on signed integers; 0 (or -1) where the count is negative or not below the width.";
    logical_and "Whether both differ from zero. Bool.";
    logical_or "Whether one differs from zero. Bool.";
    logical_xor "Whether exactly one differs from zero. Bool.";
    eq "Whether equal. Bool; false against NaN."
        ["let x = g.constant([1.0f32, f32::NAN]);\nassert_eq!(x.eq(&x).eval()?.as_slice::<bool>()?, [true, false]);"];
    ne "Whether not equal. Bool; true against NaN.";
    lt "Whether less. Bool; false against NaN."
        ["let x = g.constant([1i32, 5]);\nassert_eq!(x.lt(3).eval()?.as_slice::<bool>()?, [true, false]);"];
    le "Whether less or equal. Bool; false against NaN.";
    gt "Whether greater. Bool; false against NaN."
        ["let x = g.constant([1i32, 5]);\nassert_eq!(x.gt(3).eval()?.as_slice::<bool>()?, [false, true]);"];
    ge "Whether greater or equal. Bool; false against NaN.";
}

macro_rules! float_functions {
    ($($name:ident $op:ident $doc:literal $([$example:literal])?;)*) => {
        /// Functions of one float; bool and integer tensors convert to f32.
        impl Tensor {
            $(
                #[doc = $doc]
                $(#[doc = example!($example)])?
                #[track_caller]
                pub fn $name(&self) -> Tensor {
                    op(stringify!($name), &[self], || self.floats()?.map(ScalarOp::$op))
                }
            )*
        }
    };
}

float_functions! {
    sqrt Sqrt "Square root."
        ["let x = g.constant([4.0f32, 2.25]);\nassert_eq!(x.sqrt().eval()?.as_slice::<f32>()?, [2.0, 1.5]);"];
    rsqrt Rsqrt "`1 / sqrt(x)`.";
    exp Exp "`e^x`."
        ["let x = g.constant([0.0f32, f32::NEG_INFINITY]);\nassert_eq!(x.exp().eval()?.as_slice::<f32>()?, [1.0, 0.0]);"];
    exp2 Exp2 "`2^x`.";
    expm1 Expm1 "`e^x - 1`, exact near 0.";
    log Log "Natural logarithm."
        ["let x = g.constant([1.0f32, 0.0]);\nassert_eq!(x.log().eval()?.as_slice::<f32>()?, [0.0, f32::NEG_INFINITY]);"];
    log2 Log2 "Binary logarithm.";
    log1p Log1p "`ln(1 + x)`, exact near 0.";
    sin Sin "Sine.";
    cos Cos "Cosine.";
    tan Tan "Tangent.";
    asin Asin "Arc sine.";
    acos Acos "Arc cosine.";
    atan Atan "Arc tangent.";
    sinh Sinh "Hyperbolic sine.";
    cosh Cosh "Hyperbolic cosine.";
    tanh Tanh "Hyperbolic tangent."
        ["let x = g.constant([0.0f32, f32::INFINITY]);\nassert_eq!(x.tanh().eval()?.as_slice::<f32>()?, [0.0, 1.0]);"];
    asinh Asinh "Inverse hyperbolic sine.";
    acosh Acosh "Inverse hyperbolic cosine; NaN below 1.";
    atanh Atanh "Inverse hyperbolic tangent; NaN beyond -1 and 1.";
    erf Erf "Error function.";
}

macro_rules! rounding_functions {
    ($($name:ident $op:ident $doc:literal;)*) => {
        /// Rounding to whole numbers; bool and integer tensors stay as they are.
        impl Tensor {
            $(
                #[doc = $doc]
                #[track_caller]
                pub fn $name(&self) -> Tensor {
                    op(stringify!($name), &[self], || match self.dtype().is_float() || self.dtype().is_storage() {
                        true => self.map(ScalarOp::$op),
                        false => Ok(self.clone()),
                    })
                }
            )*
        }
    };
}

rounding_functions! {
    floor Floor "Largest whole number not above.";
    ceil Ceil "Smallest whole number not below.";
    round Round "Nearest whole number, half to even.";
    trunc Trunc "Integer part.";
}

/// One-operand elementwise methods.
impl Tensor {
    /// The tensor as floats: itself, or f32.
    pub(crate) fn floats(&self) -> Step {
        self.to(float_of(self.dtype()))
    }

    /// The tensor in another dtype, converted as [`tlc_ir::scalar`] states: floats to integers truncate and saturate, NaN is
    /// 0; integers wrap; anything to bool is `!= 0`; to a storage float rounds to nearest and saturates
    /// ([`Tensor::cast_with`] says otherwise).
    ///
    /// ```
    /// use tlc::{DType, Graph};
    ///
    /// let g = Graph::default();
    /// let x = g.constant([1.7f32, -1.7, f32::NAN]);
    /// assert_eq!(x.cast(DType::I32).eval()?.as_slice::<i32>()?, [1, -1, 0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn cast(&self, dtype: DType) -> Tensor {
        op("cast", &[self], || self.to(dtype))
    }

    /// `-x`, wrapping on integers. Not for bool. Also the operator `-`.
    #[track_caller]
    pub fn negative(&self) -> Tensor {
        op("neg", &[self], || self.map(ScalarOp::Neg))
    }

    /// `|x|`; the lowest integer is its own.
    ///
    /// ```
    /// use tlc::Graph;
    ///
    /// let g = Graph::default();
    /// let x = g.constant([-1i32, 2]);
    /// assert_eq!(x.abs().eval()?.as_slice::<i32>()?, [1, 2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn abs(&self) -> Tensor {
        op("abs", &[self], || self.map(ScalarOp::Abs))
    }

    /// -1, 0 or 1; zero keeps its sign and NaN stays NaN.
    #[track_caller]
    pub fn sign(&self) -> Tensor {
        op("sign", &[self], || self.map(ScalarOp::Sign))
    }

    /// Bitwise complement on integers, logical on bool. Also the operator `!`.
    #[track_caller]
    pub fn bit_not(&self) -> Tensor {
        op("not", &[self], || self.map(ScalarOp::Not))
    }

    /// Whether zero. Bool.
    #[track_caller]
    pub fn logical_not(&self) -> Tensor {
        op("logical_not", &[self], || self.to(DType::Bool)?.map(ScalarOp::Not))
    }

    /// `1 / x`.
    #[track_caller]
    pub fn reciprocal(&self) -> Tensor {
        op("reciprocal", &[self], || Ok(1.0 / self))
    }

    /// `x * x`.
    ///
    /// ```
    /// use tlc::Graph;
    ///
    /// let g = Graph::default();
    /// let x = g.constant([-3i32]);
    /// assert_eq!(x.square().eval()?.as_slice::<i32>()?, [9]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn square(&self) -> Tensor {
        op("square", &[self], || Ok(self * self))
    }

    /// Decimal logarithm, as `ln(x) / ln(10)`.
    #[track_caller]
    pub fn log10(&self) -> Tensor {
        op("log10", &[self], || Ok(self.log() / std::f64::consts::LN_10))
    }

    /// The `n`-th power by repeated squaring; a negative `n` takes the reciprocal and is for floats only.
    #[track_caller]
    pub fn powi(&self, n: i64) -> Tensor {
        op("powi", &[self], || self.powi_step(n))
    }

    fn powi_step(&self, n: i64) -> Step {
        if n < 0 && !self.dtype().is_float() {
            return refuse_expecting(
                format!("exponent {n} of {}", self.dtype()),
                "an exponent of 0 or more, or floats",
            );
        }
        if n == 0 {
            return Ok(self.ones_like());
        }
        // Rounded once, and a power that the type has no number for may have a reciprocal.
        if self.dtype() != self.dtype().accumulator() && self.dtype().is_float() {
            return self.to(self.dtype().accumulator())?.powi_step(n)?.to(self.dtype());
        }
        let (mut left, mut square) = (n.unsigned_abs(), self.clone());
        let mut product: Option<Tensor> = None;
        while left > 0 {
            if left & 1 == 1 {
                product = Some(match product {
                    Some(p) => p * &square,
                    None => square.clone(),
                });
            }
            left >>= 1;
            if left > 0 {
                square = &square * &square;
            }
        }
        let product = product.unwrap_or(square);
        Ok(if n < 0 { product.reciprocal() } else { product })
    }

    /// Whether NaN. Bool; false on integers.
    ///
    /// ```
    /// use tlc::Graph;
    ///
    /// let g = Graph::default();
    /// let x = g.constant([1.0f32, f32::NAN]);
    /// assert_eq!(x.is_nan().eval()?.as_slice::<bool>()?, [false, true]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn is_nan(&self) -> Tensor {
        op("is_nan", &[self], || self.map2(ScalarOp::Ne, self))
    }

    /// Whether an infinity. Bool; false on integers.
    #[track_caller]
    pub fn is_inf(&self) -> Tensor {
        op("is_inf", &[self], || Ok(self.floats()?.abs().eq(f64::INFINITY)))
    }

    /// Whether neither NaN nor an infinity. Bool; true on integers.
    #[track_caller]
    pub fn is_finite(&self) -> Tensor {
        op("is_finite", &[self], || {
            match self.dtype().is_float() || self.dtype().is_storage() {
                true => Ok(self.abs().lt(f64::INFINITY)),
                false => Ok(self.ones_like().cast(DType::Bool)),
            }
        })
    }

    /// `x` limited to `lo..=hi`: `min(max(x, lo), hi)`; NaN stays NaN. The derivative by `x` is 1 at the bounds, where PyTorch 2.15 has
    /// 0 for bounds that are numbers, and a half for tensors; see [`Tensor::hard_tanh`] for 0.
    ///
    /// ```
    /// use tlc::Graph;
    ///
    /// let g = Graph::default();
    /// let x = g.constant([-5.0f32, 0.5, 5.0]);
    /// assert_eq!(x.clamp(0.0, 1.0).eval()?.as_slice::<f32>()?, [0.0, 0.5, 1.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn clamp(&self, lo: impl Into<Operand>, hi: impl Into<Operand>) -> Tensor {
        let (lo, hi) = (lo.into(), hi.into());
        op("clamp", &[self], || Ok(self.not_below(lo).not_above(hi)))
    }

    /// As [`Tensor::clamp`] between two numbers, with a derivative of 0 at them.
    ///
    /// ```
    /// use tlc::{Graph, grad};
    ///
    /// let g = Graph::default();
    /// let x = g.constant([-2.0f32, 1.0, 0.5]);
    /// let dx = &grad(&x.hard_tanh(-1.0, 1.0).sum(..), &[&x])[0];
    /// assert_eq!(dx.eval()?.as_slice::<f32>()?, [0.0, 0.0, 1.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn hard_tanh(&self, lo: f64, hi: f64) -> Tensor {
        op("hard_tanh", &[self], || {
            let x = self.floats()?;
            let x = x.le(lo).select(lo, &x);
            Ok(x.ge(hi).select(hi, &x))
        })
    }

    /// The larger, whose derivative by `self` is 1 where they are equal; NaN in either gives NaN.
    #[doc(hidden)]
    #[track_caller]
    pub fn not_below(&self, lo: impl Into<Operand>) -> Tensor {
        let lo = lo.into();
        op("clamp", &[self], || match self.may_select(&lo) {
            true => Ok(or_nan(self.lt(lo.clone()), &lo).select(lo, self)),
            false => Ok(self.maximum(lo)),
        })
    }

    /// The smaller, whose derivative by `self` is 1 where they are equal; NaN in either gives NaN.
    #[doc(hidden)]
    #[track_caller]
    pub fn not_above(&self, hi: impl Into<Operand>) -> Tensor {
        let hi = hi.into();
        op("clamp", &[self], || match self.may_select(&hi) {
            true => Ok(or_nan(self.gt(hi.clone()), &hi).select(hi, self)),
            false => Ok(self.minimum(hi)),
        })
    }

    /// Whether a bound may be a selection: integers have no derivative, and a number that is no number is no bound.
    fn may_select(&self, bound: &Operand) -> bool {
        let float = bound.dtype().is_none_or(DType::is_float);
        let number = match bound {
            Operand::Tensor(_) => true,
            Operand::Scalar(s) => !s.as_f64().is_nan(),
            Operand::Weak(w) => w.of(DType::F64).is_ok_and(|s| !s.as_f64().is_nan()),
        };
        self.dtype().is_float() && float && number
    }

    /// `a` where `self` is true, else `b`. `self` converts to bool; all three broadcast to one shape.
    ///
    /// ```
    /// use tlc::Graph;
    ///
    /// let g = Graph::default();
    /// let mask = g.constant([true, false]);
    /// let x = g.constant([1.0f32, 2.0]);
    /// assert_eq!(mask.select(&x, 0.0).eval()?.as_slice::<f32>()?, [1.0, 0.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn select(&self, a: impl Into<Operand>, b: impl Into<Operand>) -> Tensor {
        self.select_of([self.into(), a.into(), b.into()])
    }

    /// [`Tensor::select`], of which there is a copy for each two types of operands, without these.
    #[track_caller]
    fn select_of(&self, operands: [Operand; 3]) -> Tensor {
        elementwise("select", &operands, |graph| {
            let dtype = match operands[1..].iter().any(|o| o.dtype().is_some()) {
                true => common_dtype(&operands[1..]),
                // Two scalars: what a bool tensor beside them would give.
                false => common_dtype(&[
                    Operand::from(tlc_ir::Scalar::from_bool(false)),
                    operands[1].clone(),
                    operands[2].clone(),
                ]),
            };
            let values = unify(graph, &operands[1..], |_| dtype)?;
            let condition = self.to(DType::Bool)?;
            let all = crate::promotion::broadcast(graph, &[condition, values[0].clone(), values[1].clone()])?;
            graph.node(NodeKind::Map(ScalarOp::Select), &[&all[0], &all[1], &all[2]])
        })
    }

    /// `value` where `mask` is true, else `self`.
    ///
    /// ```
    /// use tlc::Graph;
    ///
    /// let g = Graph::default();
    /// let x = g.constant([1.0f32, 2.0]);
    /// assert_eq!(x.masked_fill(&x.gt(1.0), -1.0).eval()?.as_slice::<f32>()?, [1.0, -1.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn masked_fill(&self, mask: &Tensor, value: impl Into<Operand>) -> Tensor {
        let value = value.into();
        op("masked_fill", &[self, mask], || Ok(mask.select(value, self)))
    }

    /// `self * b + c` with one rounding. Floats.
    #[track_caller]
    pub fn fma(&self, b: impl Into<Operand>, c: impl Into<Operand>) -> Tensor {
        let operands = [self.into(), b.into(), c.into()];
        elementwise("fma", &operands, |graph| {
            let all = unify(graph, &operands, float_of)?;
            graph.node(NodeKind::Map(ScalarOp::Fma), &[&all[0], &all[1], &all[2]])
        })
    }
}
