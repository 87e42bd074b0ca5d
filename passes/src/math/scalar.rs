//! [`Emit`] on single values: the evaluator behind the tests and the `ulp` example, and a counter of instructions.
//!
//! Type confusion is a mistake of an algorithm, not of its argument, so a mismatch is recorded and gives NaN
//! bits instead of a panic; tests check [`Scalar::mismatches`].

use super::{Double, Emit, Format, Function, Single, emit};

/// The type of a [`Value`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Type {
    F32,
    F64,
    I32,
    I64,
    Mask,
}

/// One scalar of any type.
#[derive(Clone, Copy, Debug)]
pub struct Value {
    ty: Type,
    bits: u64,
}

impl Value {
    /// The value as an f32 (its low 32 bits).
    #[inline(always)]
    pub fn as_f32(self) -> f32 {
        f32::from_bits(self.bits as u32)
    }

    /// The value as an f64.
    #[inline(always)]
    pub fn as_f64(self) -> f64 {
        f64::from_bits(self.bits)
    }
}

/// Evaluates as it is emitted. With `COUNT` it also counts operations, each as one vector instruction; constants,
/// bit casts and the branch itself of `if_any` are free, `min` and `max` are one, and `if_any` counts as the mask test
/// plus, where taken, its arm and a selection.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scalar<const COUNT: bool = false> {
    /// Operations executed so far (with `COUNT`).
    pub operations: u64,
    /// Divisions and square roots among them.
    pub divisions: u64,
    /// Operations whose operands were of the wrong type (with `COUNT`).
    pub mismatches: u64,
    /// Whether it has [`Emit::scale`].
    pub scales: bool,
}

impl<const COUNT: bool> Scalar<COUNT> {
    #[inline(always)]
    fn count(&mut self) {
        if COUNT {
            self.operations += 1;
        }
    }

    #[inline(always)]
    fn check(&mut self, right: bool) {
        if COUNT && !right {
            self.mismatches += 1;
        }
    }

    #[inline(always)]
    fn float(
        &mut self,
        operands: [Value; 3],
        single: impl Fn([f32; 3]) -> f32,
        double: impl Fn([f64; 3]) -> f64,
    ) -> Value {
        self.count();
        let ty = operands[0].ty;
        self.check(matches!(ty, Type::F32 | Type::F64) && operands.iter().all(|v| v.ty == ty));
        if ty == Type::F32 {
            Value {
                ty,
                bits: u64::from(single(operands.map(Value::as_f32)).to_bits()),
            }
        } else {
            Value {
                ty,
                bits: double(operands.map(Value::as_f64)).to_bits(),
            }
        }
    }

    #[inline(always)]
    fn compare(
        &mut self,
        a: Value,
        b: Value,
        single: impl Fn(f32, f32) -> bool,
        double: impl Fn(f64, f64) -> bool,
    ) -> Value {
        self.count();
        self.check(matches!(a.ty, Type::F32 | Type::F64) && a.ty == b.ty);
        let holds = if a.ty == Type::F32 {
            single(a.as_f32(), b.as_f32())
        } else {
            double(a.as_f64(), b.as_f64())
        };
        Value {
            ty: Type::Mask,
            bits: u64::from(holds),
        }
    }

    #[inline(always)]
    fn integer(&mut self, a: Value, b: Value, f: impl Fn(u64, u64) -> u64) -> Value {
        self.count();
        self.check(matches!(a.ty, Type::I32 | Type::I64) && a.ty == b.ty);
        let bits = f(a.bits, b.bits);
        Value {
            ty: a.ty,
            bits: if a.ty == Type::I32 { bits & 0xffff_ffff } else { bits },
        }
    }

    #[inline(always)]
    fn mask(&mut self, a: Value, b: Value, f: impl Fn(bool, bool) -> bool) -> Value {
        self.count();
        self.check(a.ty == Type::Mask && b.ty == Type::Mask);
        Value {
            ty: Type::Mask,
            bits: u64::from(f(a.bits != 0, b.bits != 0)),
        }
    }
}

impl<const COUNT: bool> Emit for Scalar<COUNT> {
    type V = Value;

    #[inline(always)]
    fn f32(&mut self, x: f32) -> Value {
        Value {
            ty: Type::F32,
            bits: u64::from(x.to_bits()),
        }
    }
    #[inline(always)]
    fn f64(&mut self, x: f64) -> Value {
        Value {
            ty: Type::F64,
            bits: x.to_bits(),
        }
    }
    #[inline(always)]
    fn i32(&mut self, x: i32) -> Value {
        Value {
            ty: Type::I32,
            bits: u64::from(x as u32),
        }
    }
    #[inline(always)]
    fn i64(&mut self, x: i64) -> Value {
        Value {
            ty: Type::I64,
            bits: x as u64,
        }
    }
    #[inline(always)]
    fn add(&mut self, a: Value, b: Value) -> Value {
        self.float([a, b, b], |[a, b, _]| a + b, |[a, b, _]| a + b)
    }
    #[inline(always)]
    fn sub(&mut self, a: Value, b: Value) -> Value {
        self.float([a, b, b], |[a, b, _]| a - b, |[a, b, _]| a - b)
    }
    #[inline(always)]
    fn mul(&mut self, a: Value, b: Value) -> Value {
        self.float([a, b, b], |[a, b, _]| a * b, |[a, b, _]| a * b)
    }
    #[inline(always)]
    fn div(&mut self, a: Value, b: Value) -> Value {
        self.divisions += u64::from(COUNT);
        self.float([a, b, b], |[a, b, _]| a / b, |[a, b, _]| a / b)
    }
    #[inline(always)]
    fn fma(&mut self, a: Value, b: Value, c: Value) -> Value {
        self.float([a, b, c], |[a, b, c]| a.mul_add(b, c), |[a, b, c]| a.mul_add(b, c))
    }
    #[inline(always)]
    fn neg(&mut self, a: Value) -> Value {
        self.float([a; 3], |[a, ..]| -a, |[a, ..]| -a)
    }
    #[inline(always)]
    fn abs(&mut self, a: Value) -> Value {
        self.float([a; 3], |[a, ..]| a.abs(), |[a, ..]| a.abs())
    }
    #[inline(always)]
    fn sqrt(&mut self, a: Value) -> Value {
        self.divisions += u64::from(COUNT);
        self.float([a; 3], |[a, ..]| a.sqrt(), |[a, ..]| a.sqrt())
    }
    #[inline(always)]
    fn round_even(&mut self, a: Value) -> Value {
        self.float([a; 3], |[a, ..]| a.round_ties_even(), |[a, ..]| a.round_ties_even())
    }
    #[inline(always)]
    fn lt(&mut self, a: Value, b: Value) -> Value {
        self.compare(a, b, |a, b| a < b, |a, b| a < b)
    }
    #[inline(always)]
    fn le(&mut self, a: Value, b: Value) -> Value {
        self.compare(a, b, |a, b| a <= b, |a, b| a <= b)
    }
    #[inline(always)]
    fn eq(&mut self, a: Value, b: Value) -> Value {
        self.compare(a, b, |a, b| a == b, |a, b| a == b)
    }
    #[inline(always)]
    fn int_lt(&mut self, a: Value, b: Value) -> Value {
        self.count();
        self.check(matches!(a.ty, Type::I32 | Type::I64) && a.ty == b.ty);
        let holds = if a.ty == Type::I32 {
            (a.bits as i32) < b.bits as i32
        } else {
            (a.bits as i64) < b.bits as i64
        };
        Value {
            ty: Type::Mask,
            bits: u64::from(holds),
        }
    }
    #[inline(always)]
    fn int_eq(&mut self, a: Value, b: Value) -> Value {
        self.count();
        self.check(matches!(a.ty, Type::I32 | Type::I64) && a.ty == b.ty);
        Value {
            ty: Type::Mask,
            bits: u64::from(a.bits == b.bits),
        }
    }
    #[inline(always)]
    fn mask_and(&mut self, a: Value, b: Value) -> Value {
        self.mask(a, b, |a, b| a && b)
    }
    #[inline(always)]
    fn mask_or(&mut self, a: Value, b: Value) -> Value {
        self.mask(a, b, |a, b| a || b)
    }
    #[inline(always)]
    fn mask_and_not(&mut self, a: Value, b: Value) -> Value {
        self.mask(a, b, |a, b| a && !b)
    }
    #[inline(always)]
    fn select(&mut self, mask: Value, a: Value, b: Value) -> Value {
        self.count();
        self.check(mask.ty == Type::Mask && a.ty == b.ty);
        Value {
            ty: a.ty,
            bits: if mask.bits != 0 { a.bits } else { b.bits },
        }
    }
    #[inline(always)]
    fn bits_of_float(&mut self, a: Value) -> Value {
        self.check(matches!(a.ty, Type::F32 | Type::F64));
        Value {
            ty: if a.ty == Type::F32 { Type::I32 } else { Type::I64 },
            bits: a.bits,
        }
    }
    #[inline(always)]
    fn float_of_bits(&mut self, a: Value) -> Value {
        self.check(matches!(a.ty, Type::I32 | Type::I64));
        Value {
            ty: if a.ty == Type::I32 { Type::F32 } else { Type::F64 },
            bits: a.bits,
        }
    }
    #[inline(always)]
    fn int_add(&mut self, a: Value, b: Value) -> Value {
        self.integer(a, b, u64::wrapping_add)
    }
    #[inline(always)]
    fn int_sub(&mut self, a: Value, b: Value) -> Value {
        self.integer(a, b, u64::wrapping_sub)
    }
    #[inline(always)]
    fn int_and(&mut self, a: Value, b: Value) -> Value {
        self.integer(a, b, |a, b| a & b)
    }
    #[inline(always)]
    fn int_or(&mut self, a: Value, b: Value) -> Value {
        self.integer(a, b, |a, b| a | b)
    }
    #[inline(always)]
    fn int_xor(&mut self, a: Value, b: Value) -> Value {
        self.integer(a, b, |a, b| a ^ b)
    }
    #[inline(always)]
    fn shl(&mut self, a: Value, bits: u32) -> Value {
        self.integer(a, a, |a, _| a << bits)
    }
    #[inline(always)]
    fn shr(&mut self, a: Value, bits: u32) -> Value {
        self.integer(a, a, |a, _| a >> bits)
    }
    #[inline(always)]
    fn scales(&self) -> bool {
        self.scales
    }
    #[inline(always)]
    fn scale(&mut self, p: Value, n: Value) -> Value {
        self.check(p.ty == Type::F32);
        self.float([p, n, n], |[p, n, _]| tlc_ir::kernel::scale(p, n), |[p, ..]| p)
    }
    #[inline(always)]
    fn if_any(&mut self, mask: Value, then: impl FnOnce(&mut Self) -> Value, otherwise: Value) -> Value {
        self.count();
        if mask.bits != 0 {
            let value = then(self);
            self.count();
            self.check(value.ty == otherwise.ty);
            value
        } else {
            otherwise
        }
    }
    #[inline(always)]
    fn min(&mut self, a: Value, b: Value) -> Value {
        self.float(
            [a, b, b],
            |[a, b, _]| if a < b { a } else { b },
            |[a, b, _]| if a < b { a } else { b },
        )
    }
    #[inline(always)]
    fn max(&mut self, a: Value, b: Value) -> Value {
        self.float(
            [a, b, b],
            |[a, b, _]| if a > b { a } else { b },
            |[a, b, _]| if a > b { a } else { b },
        )
    }
}

/// `function` of f32 operands; `y` counts for the functions of two (`atan2(x, y)`, `pow(x, y)`).
#[inline(never)]
pub fn evaluate_f32(function: Function, x: f32, y: f32) -> f32 {
    evaluate::<Single, false>(function, |e| [e.f32(x), e.f32(y)]).0.as_f32()
}

/// `function` of f64 operands; as [`evaluate_f32`].
#[inline(never)]
pub fn evaluate_f64(function: Function, x: f64, y: f64) -> f64 {
    evaluate::<Double, false>(function, |e| [e.f64(x), e.f64(y)]).0.as_f64()
}

/// The evaluator after counting `function` of f32 operands.
#[inline(never)]
pub fn count_f32(function: Function, x: f32, y: f32) -> Scalar<true> {
    evaluate::<Single, true>(function, |e| [e.f32(x), e.f32(y)]).1
}

/// The evaluator after counting `function` of f64 operands.
#[inline(never)]
pub fn count_f64(function: Function, x: f64, y: f64) -> Scalar<true> {
    evaluate::<Double, true>(function, |e| [e.f64(x), e.f64(y)]).1
}

#[inline(always)]
fn evaluate<F: Format, const COUNT: bool>(
    function: Function,
    operands: impl FnOnce(&mut Scalar<COUNT>) -> [Value; 2],
) -> (Value, Scalar<COUNT>) {
    let mut e = Scalar::default();
    let operands = operands(&mut e);
    let value = emit::<F, _>(function, &mut e, operands.get(..function.arity()).unwrap_or(&operands));
    (value.unwrap_or(operands[0]), e)
}
