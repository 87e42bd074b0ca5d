//! Scalar operations on one element, with exactly the meaning of [`tlc_ir::scalar`].
//!
//! Invariant: no instruction traps, whatever the operands: divisors are made harmless first.

use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::{InstBuilder, Type, Value, types};
use smallvec::SmallVec;
use tlc_ir::{DType, ScalarOp};

use super::translate::Translator;
use crate::error::{Result, unsupported};
use crate::flat;
use crate::host::{RuntimeFunction, is_called};

impl Translator<'_, '_, '_> {
    /// `x 2^floor(n)` of f32 scalars, as [`tlc_ir::kernel::scale`] has it: the product of f64 is exact, and rounded once.
    pub(super) fn scale(&mut self, x: Value, n: Value) -> Value {
        const MOST: f64 = 400.0;
        let n = self.b.ins().fpromote(types::F64, n);
        let n = self.b.ins().floor(n);
        let number = |s: &mut Self, x: f64| s.b.ins().f64const(x);
        let (most, least) = (number(self, MOST), number(self, -MOST));
        let within = self.b.ins().fmin(n, most);
        let within = self.b.ins().fmax(within, least);
        let exponent = self.b.ins().fcvt_to_sint_sat(types::I64, within);
        let bias = self.b.ins().iconst(types::I64, 1023);
        let biased = self.b.ins().iadd(exponent, bias);
        let shift = self.b.ins().iconst(types::I64, 52);
        let bits = self.b.ins().ishl(biased, shift);
        let power = self.cast(types::F64, bits);
        let (above, below, none) = (
            number(self, f64::INFINITY),
            number(self, f64::NEG_INFINITY),
            number(self, 0.0),
        );
        let is_above = self.b.ins().fcmp(FloatCC::Equal, n, above);
        let is_below = self.b.ins().fcmp(FloatCC::Equal, n, below);
        let is_nan = self.b.ins().fcmp(FloatCC::Unordered, n, n);
        let power = self.b.ins().select(is_above, above, power);
        let power = self.b.ins().select(is_below, none, power);
        let power = self.b.ins().select(is_nan, n, power);
        let wide = self.b.ins().fpromote(types::F64, x);
        let product = self.b.ins().fmul(wide, power);
        let infinite = self.b.ins().bor(is_above, is_below);
        let nan = self.b.ins().fcmp(FloatCC::Unordered, x, x);
        let both = self.b.ins().band(infinite, nan);
        let result = self.b.ins().select(both, power, product);
        self.b.ins().fdemote(types::F32, result)
    }

    /// The operation on scalars, of which the last is of `dtype`.
    pub(super) fn scalar_op(&mut self, op: ScalarOp, dtype: DType, vals: &[flat::Value]) -> Result<Value> {
        let args: SmallVec<[Value; 3]> = vals.iter().map(|v| self.value(*v)).collect();
        let args = &args[..];
        if op == ScalarOp::Select {
            return Ok(self.b.ins().select(args[0], args[1], args[2]));
        }
        match dtype {
            DType::Bool => self.scalar_bool(op, args),
            DType::F32 | DType::F64 => self.scalar_float(op, dtype, vals, args),
            d if d.is_int() => self.scalar_int(op, d, vals, args),
            d => unsupported(format!("{op} on {d} (legalize to f32)")),
        }
    }

    fn scalar_bool(&mut self, op: ScalarOp, args: &[Value]) -> Result<Value> {
        use ScalarOp::*;
        let a = args[0];
        let b = args.get(1).copied().unwrap_or(a);
        Ok(match op {
            Not => self.b.ins().bxor_imm_u(a, 1),
            And | Min => self.b.ins().band(a, b),
            Or | Max => self.b.ins().bor(a, b),
            Xor | Ne => self.b.ins().bxor(a, b),
            Eq => self.b.ins().icmp(IntCC::Equal, a, b),
            Lt => self.b.ins().icmp(IntCC::UnsignedLessThan, a, b),
            Le => self.b.ins().icmp(IntCC::UnsignedLessThanOrEqual, a, b),
            _ => return unsupported(format!("{op} on bool")),
        })
    }

    fn scalar_float(&mut self, op: ScalarOp, dtype: DType, vals: &[flat::Value], args: &[Value]) -> Result<Value> {
        use ScalarOp::*;
        if is_called(op) {
            return self.call_host(RuntimeFunction::Map(op, dtype), args);
        }
        let a = args[0];
        let ty = self.type_of(a);
        let b = args.get(1).copied().unwrap_or(a);
        Ok(match op {
            Add => self.b.ins().fadd(a, b),
            Sub => self.b.ins().fsub(a, b),
            Mul => self.b.ins().fmul(a, b),
            Div => self.b.ins().fdiv(a, b),
            Max | Min => self.float_extremum(op, a, b, vals),
            Fma => self.b.ins().fma(a, b, args[2]),
            Eq => self.b.ins().fcmp(FloatCC::Equal, a, b),
            Ne => self.b.ins().fcmp(FloatCC::NotEqual, a, b),
            Lt => self.b.ins().fcmp(FloatCC::LessThan, a, b),
            Le => self.b.ins().fcmp(FloatCC::LessThanOrEqual, a, b),
            _ => match self.float_unary(op, ty, a) {
                Some(value) => value,
                None => return unsupported(format!("{op} on {dtype}")),
            },
        })
    }

    /// An operation on one float, or on each of a vector's; `None` where the machine has no such instruction.
    pub(super) fn float_unary(&mut self, op: ScalarOp, ty: Type, a: Value) -> Option<Value> {
        use ScalarOp::*;
        Some(match op {
            Neg => self.b.ins().fneg(a),
            Abs => self.b.ins().fabs(a),
            Floor => self.b.ins().floor(a),
            Ceil => self.b.ins().ceil(a),
            Round => self.b.ins().nearest(a),
            Trunc => self.b.ins().trunc(a),
            Sqrt => self.b.ins().sqrt(a),
            Rsqrt => {
                let one = self.float(ty, 1.0);
                let root = self.b.ins().sqrt(a);
                self.b.ins().fdiv(one, root)
            }
            Sign => {
                let (zero, one, minus) = (self.float(ty, 0.0), self.float(ty, 1.0), self.float(ty, -1.0));
                let below = self.b.ins().fcmp(FloatCC::LessThan, a, zero);
                let above = self.b.ins().fcmp(FloatCC::GreaterThan, a, zero);
                let r = self.select(below, minus, a);
                self.select(above, one, r)
            }
            _ => return None,
        })
    }

    fn scalar_int(&mut self, op: ScalarOp, dtype: DType, vals: &[flat::Value], args: &[Value]) -> Result<Value> {
        use ScalarOp::*;
        let signed = dtype.is_signed_int();
        let a = args[0];
        let b = args.get(1).copied().unwrap_or(a);
        let ty = self.type_of(a);
        let cc = |s, u| if signed { s } else { u };
        let less = cc(IntCC::SignedLessThan, IntCC::UnsignedLessThan);
        Ok(match op {
            Neg => self.b.ins().ineg(a),
            Not => self.b.ins().bnot(a),
            Abs if signed => self.b.ins().iabs(a),
            Abs => a,
            Sign => {
                let zero = self.int(ty, 0);
                let positive = self
                    .b
                    .ins()
                    .icmp(cc(IntCC::SignedGreaterThan, IntCC::NotEqual), a, zero);
                let one = self.int(ty, 1);
                let r = self.b.ins().select(positive, one, zero);
                if !signed {
                    return Ok(r);
                }
                let negative = self.b.ins().icmp(IntCC::SignedLessThan, a, zero);
                let minus = self.int(ty, -1);
                self.b.ins().select(negative, minus, r)
            }
            Add => self.b.ins().iadd(a, b),
            Sub => self.b.ins().isub(a, b),
            Mul => self.b.ins().imul(a, b),
            Div | Rem | Mod => self.divide(op, dtype, vals, a, b),
            Max => {
                let c = self.b.ins().icmp(less, b, a);
                self.b.ins().select(c, a, b)
            }
            Min => {
                let c = self.b.ins().icmp(less, a, b);
                self.b.ins().select(c, a, b)
            }
            And => self.b.ins().band(a, b),
            Or => self.b.ins().bor(a, b),
            Xor => self.b.ins().bxor(a, b),
            Dot4 => self.dot4(a, b),
            Shl | Shr => {
                let bits = dtype.bits() as i64;
                let limit = self.int(ty, bits);
                let inside = self.b.ins().icmp(IntCC::UnsignedLessThan, b, limit);
                if op == Shr && signed {
                    let most = self.int(ty, bits - 1);
                    let amount = self.b.ins().select(inside, b, most);
                    return Ok(self.b.ins().sshr(a, amount));
                }
                let shifted = if op == Shl {
                    self.b.ins().ishl(a, b)
                } else {
                    self.b.ins().ushr(a, b)
                };
                let zero = self.int(ty, 0);
                self.b.ins().select(inside, shifted, zero)
            }
            Eq => self.b.ins().icmp(IntCC::Equal, a, b),
            Ne => self.b.ins().icmp(IntCC::NotEqual, a, b),
            Lt => self.b.ins().icmp(less, a, b),
            Le => {
                let cc = cc(IntCC::SignedLessThanOrEqual, IntCC::UnsignedLessThanOrEqual);
                self.b.ins().icmp(cc, a, b)
            }
            _ => return unsupported(format!("{op} on {dtype}")),
        })
    }

    /// Division and remainders that do not trap.
    fn divide(&mut self, op: ScalarOp, dtype: DType, vals: &[flat::Value], a: Value, b: Value) -> Value {
        use ScalarOp::*;
        let ty = self.type_of(a);
        let signed = dtype.is_signed_int();
        let known = vals.get(1).and_then(|v| self.flat.constant(*v)).map(|c| c.as_i64());
        // A constant divisor other than 0 and -1 is harmless, and Cranelift turns it into a multiplication.
        let harmless = matches!(known, Some(k) if k != 0 && (k != -1 || !signed));
        let zero = self.int(ty, 0);
        let one = self.int(ty, 1);
        let is_zero = self.b.ins().icmp(IntCC::Equal, b, zero);
        let minus = self.int(ty, -1);
        let is_minus = self.b.ins().icmp(IntCC::Equal, b, minus);
        let divisor = match (harmless, signed) {
            (true, _) => b,
            (false, false) => self.b.ins().select(is_zero, one, b),
            (false, true) => {
                let bad = self.b.ins().bor(is_zero, is_minus);
                self.b.ins().select(bad, one, b)
            }
        };
        match op {
            Div => {
                let q = if signed {
                    self.b.ins().sdiv(a, divisor)
                } else {
                    self.b.ins().udiv(a, divisor)
                };
                if harmless {
                    return q;
                }
                let q = self.b.ins().select(is_zero, zero, q);
                if !signed {
                    return q;
                }
                let negated = self.b.ins().ineg(a);
                self.b.ins().select(is_minus, negated, q)
            }
            _ => {
                let r = if signed {
                    self.b.ins().srem(a, divisor)
                } else {
                    self.b.ins().urem(a, divisor)
                };
                let r = if harmless {
                    r
                } else {
                    self.b.ins().select(is_zero, a, r)
                };
                if op == Rem || !signed {
                    return r;
                }
                // Floored: where the remainder is not 0 and its sign is not the divisor's. With divisor 0 adding it
                // changes nothing.
                let more = self.b.ins().iadd(r, b);
                let signs = self.b.ins().bxor(r, b);
                let differ = self.b.ins().icmp(IntCC::SignedLessThan, signs, zero);
                let nonzero = self.b.ins().icmp(IntCC::NotEqual, r, zero);
                let adjust = self.b.ins().band(differ, nonzero);
                self.b.ins().select(adjust, more, r)
            }
        }
    }
}
