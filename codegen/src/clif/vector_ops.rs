//! Scalar operations on all lanes at once.
//!
//! Invariant: only operations that every Cranelift back end with 128-bit vectors lowers. `None` means lane by lane.

use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::{InstBuilder, Type, Value, types};
use tlc_ir::{DType, ScalarOp};

use super::translate::Translator;
use super::values::{full, int_type};
use crate::flat;
use crate::host::is_called;

impl Translator<'_, '_, '_> {
    /// The operation as vector code, if there is any.
    pub(super) fn vector_op(&mut self, op: ScalarOp, dtype: DType, vals: &[flat::Value]) -> Option<Value> {
        let ty = self.vector_type(dtype);
        match dtype {
            _ if op == ScalarOp::Select => Some(self.vector_select(dtype, ty, vals)),
            DType::Bool => self.vector_bool(op, vals),
            DType::F32 | DType::F64 => self.vector_float(op, ty, vals),
            d if d.is_int() => self.vector_int(op, d, ty, vals),
            _ => None,
        }
    }

    fn vector_select(&mut self, dtype: DType, ty: Type, vals: &[flat::Value]) -> Value {
        let a = self.value(vals[1]);
        let b = self.value(vals[2]);
        let mask = self.value(vals[0]);
        if self.flat.info(vals[0]).lanes == 1 {
            return self.b.ins().select(mask, a, b);
        }
        let mask = self.truncate(mask, ty.lane_bits());
        // All ones where the mask is: the mask itself joins the other side.
        let ones = u64::MAX >> (64 - dtype.bits());
        if ty.lane_bits() == dtype.bits() && self.flat.constant(vals[1]).is_some_and(|c| c.bits() == ones) {
            let bits = self.cast(self.type_of(mask), b);
            let joined = self.b.ins().bor(bits, mask);
            return self.cast(ty, joined);
        }
        self.select(mask, a, b)
    }

    fn vector_bool(&mut self, op: ScalarOp, vals: &[flat::Value]) -> Option<Value> {
        let a = self.value(vals[0]);
        if op == ScalarOp::Not {
            return Some(self.b.ins().bnot(a));
        }
        let b = self.value(*vals.get(1)?);
        Some(match op {
            ScalarOp::And | ScalarOp::Min => self.b.ins().band(a, b),
            ScalarOp::Or | ScalarOp::Max => self.b.ins().bor(a, b),
            ScalarOp::Xor | ScalarOp::Ne => self.b.ins().bxor(a, b),
            ScalarOp::Eq => {
                let differ = self.b.ins().bxor(a, b);
                self.b.ins().bnot(differ)
            }
            ScalarOp::Lt => self.b.ins().band_not(b, a),
            ScalarOp::Le => {
                let not = self.b.ins().bnot(a);
                self.b.ins().bor(not, b)
            }
            _ => return None,
        })
    }

    /// Widens the result of a comparison to a mask.
    pub(super) fn as_mask(&mut self, compared: Value) -> Value {
        let width = self.lane_bits();
        self.widen(compared, width, true)
    }

    /// `-a` or `|a|` with the mask as a constant, which leaves the loop; Cranelift would make it anew each time.
    fn sign_change(&mut self, op: ScalarOp, ty: Type, a: Value) -> Value {
        let bits = ty.lane_bits();
        let int = full(int_type(bits));
        let sign = i64::MIN >> (64 - bits);
        let a = self.cast(int, a);
        let changed = if op == ScalarOp::Neg {
            let sign = self.int(int, sign);
            self.b.ins().bxor(a, sign)
        } else {
            let rest = self.int(int, !sign);
            self.b.ins().band(a, rest)
        };
        self.cast(ty, changed)
    }

    fn vector_float(&mut self, op: ScalarOp, ty: Type, vals: &[flat::Value]) -> Option<Value> {
        use ScalarOp::*;
        if is_called(op) {
            return None;
        }
        let a = self.value(vals[0]);
        if op.arity() == 1 {
            return match op {
                Neg | Abs if self.x64 => Some(self.sign_change(op, ty, a)),
                _ => self.float_unary(op, ty, a),
            };
        }
        let b = self.value(vals[1]);
        let cc = match op {
            Add => return Some(self.b.ins().fadd(a, b)),
            Sub => return Some(self.b.ins().fsub(a, b)),
            Mul => return Some(self.b.ins().fmul(a, b)),
            Div => return Some(self.b.ins().fdiv(a, b)),
            Max | Min => return Some(self.float_extremum(op, a, b, vals)),
            Fma => {
                let c = self.value(vals[2]);
                return Some(self.b.ins().fma(a, b, c));
            }
            Eq => FloatCC::Equal,
            Ne => FloatCC::NotEqual,
            Lt => FloatCC::LessThan,
            Le => FloatCC::LessThanOrEqual,
            _ => return None,
        };
        let compared = self.b.ins().fcmp(cc, a, b);
        Some(self.as_mask(compared))
    }

    /// `max` or `min` of floats, scalar or vector: NaN wins, and -0 is below +0.
    ///
    /// `a > b ? a : b` is one instruction on x86 and gives `b` where either is NaN, and where both are zeros. So a NaN in `a` is
    /// missed, unless `a` is known to be a number, which is why a constant goes first. Both orders differ only in zeros and NaN.
    pub(super) fn float_extremum(&mut self, op: ScalarOp, a: Value, b: Value, vals: &[flat::Value]) -> Value {
        let number = |v: flat::Value| self.flat.constant(v).filter(|c| !c.is_nan());
        let ty = self.type_of(a);
        let max = op == ScalarOp::Max;
        let known = number(vals[0]).map(|c| (c, a, b));
        if let Some((c, a, b)) = known.or_else(|| number(vals[1]).map(|c| (c, b, a))) {
            let c = c.as_f64();
            if max && ty.is_vector() && c == 0.0 && c.is_sign_positive() {
                // What is above, or NaN, and +0 elsewhere.
                let above = self.b.ins().fcmp(FloatCC::UnorderedOrGreaterThan, b, a);
                let bits = self.cast(self.type_of(above), b);
                let bits = self.b.ins().band(bits, above);
                return self.cast(ty, bits);
            }
            let picked = self.first_beyond(max, a, b);
            // The result is no less than +0, or no more than -0, but for the sign of a zero in `b`.
            return match c == 0.0 && c.is_sign_positive() == max {
                true if max => self.sign_bits(ScalarOp::Abs, ty, picked),
                true => {
                    let above = self.sign_bits(ScalarOp::Abs, ty, picked);
                    self.sign_bits(ScalarOp::Neg, ty, above)
                }
                false => picked,
            };
        }
        let (ab, ba) = (self.first_beyond(max, a, b), self.first_beyond(max, b, a));
        let nan = self.b.ins().fcmp(FloatCC::Unordered, a, b);
        if !ty.is_vector() {
            // Of equal bits but for zeros, where either is a number.
            let both = match max {
                true => self.b.ins().band(ab, ba),
                false => self.b.ins().bor(ab, ba),
            };
            let either = self.b.ins().fadd(a, b);
            return self.b.ins().select(nan, either, both);
        }
        let (ab, ba) = (self.cast(self.type_of(nan), ab), self.cast(self.type_of(nan), ba));
        let both = match max {
            true => self.b.ins().band(ab, ba),
            false => self.b.ins().bor(ab, ba),
        };
        // All ones is a NaN: one `or` instead of a blend.
        let bits = self.b.ins().bor(both, nan);
        self.cast(ty, bits)
    }

    /// The one of two that lies further out, the second where they are equal or either is NaN.
    fn first_beyond(&mut self, max: bool, a: Value, b: Value) -> Value {
        let (x, y) = if max { (b, a) } else { (a, b) };
        let ordered = self.b.ins().fcmp(FloatCC::LessThan, x, y);
        self.select(ordered, a, b)
    }

    /// A number's magnitude, or its negative.
    fn sign_bits(&mut self, op: ScalarOp, ty: Type, x: Value) -> Value {
        if self.x64 && ty.is_vector() {
            return self.sign_change(op, ty, x);
        }
        match op {
            ScalarOp::Abs => self.b.ins().fabs(x),
            _ => self.b.ins().fneg(x),
        }
    }

    /// The sum of the products of the bytes of words, scalar or vector: each byte is shifted to the end of its word.
    pub(super) fn dot4(&mut self, a: Value, b: Value) -> Value {
        let products = [0i64, 8, 16, 24].map(|at| {
            let x = self.b.ins().ishl_imm_u(a, 24 - at);
            let x = self.b.ins().ushr_imm_u(x, 24);
            let y = self.b.ins().ishl_imm_u(b, 24 - at);
            let y = self.b.ins().sshr_imm_u(y, 24);
            self.b.ins().imul(x, y)
        });
        let [p, q, r, s] = products;
        let (low, high) = (self.b.ins().iadd(p, q), self.b.ins().iadd(r, s));
        self.b.ins().iadd(low, high)
    }

    fn vector_int(&mut self, op: ScalarOp, dtype: DType, ty: Type, vals: &[flat::Value]) -> Option<Value> {
        use ScalarOp::*;
        let signed = dtype.is_signed_int();
        if matches!(op, Shl | Shr) {
            let c = self.flat.constant(vals[1])?;
            let amount = if signed {
                c.as_i64()
            } else {
                i64::try_from(c.bits()).unwrap_or(-1)
            };
            let x = self.value(vals[0]);
            let inside = (0..dtype.bits() as i64).contains(&amount);
            return Some(match (op, inside, signed) {
                (Shl, true, _) => self.b.ins().ishl_imm_u(x, amount),
                (Shr, true, false) => self.b.ins().ushr_imm_u(x, amount),
                (Shr, true, true) => self.b.ins().sshr_imm_u(x, amount),
                (Shr, false, true) => self.b.ins().sshr_imm_u(x, dtype.bits() as i64 - 1),
                _ => self.int(ty, 0),
            });
        }
        if matches!(op, Div | Rem | Mod) {
            return None;
        }
        let a = self.value(vals[0]);
        if op.arity() == 1 {
            return Some(match op {
                Neg => self.b.ins().ineg(a),
                Not => self.b.ins().bnot(a),
                Abs if signed => self.b.ins().iabs(a),
                Abs => a,
                Sign => {
                    let zero = self.int(ty, 0);
                    if signed {
                        let below = self.b.ins().icmp(IntCC::SignedLessThan, a, zero);
                        let above = self.b.ins().icmp(IntCC::SignedGreaterThan, a, zero);
                        self.b.ins().isub(below, above)
                    } else {
                        let is_zero = self.b.ins().icmp(IntCC::Equal, a, zero);
                        let one = self.int(ty, 1);
                        self.b.ins().iadd(is_zero, one)
                    }
                }
                _ => return None,
            });
        }
        let b = self.value(vals[1]);
        Some(match op {
            Add => self.b.ins().iadd(a, b),
            Sub => self.b.ins().isub(a, b),
            Mul if ty == types::I8X16 => {
                let (al, bl) = (self.b.ins().uwiden_low(a), self.b.ins().uwiden_low(b));
                let (ah, bh) = (self.b.ins().uwiden_high(a), self.b.ins().uwiden_high(b));
                let (low, high) = (self.b.ins().imul(al, bl), self.b.ins().imul(ah, bh));
                let byte = self.int(types::I16X8, 0xff);
                let (low, high) = (self.b.ins().band(low, byte), self.b.ins().band(high, byte));
                self.b.ins().unarrow(low, high)
            }
            Mul => self.b.ins().imul(a, b),
            And => self.b.ins().band(a, b),
            Or => self.b.ins().bor(a, b),
            Xor => self.b.ins().bxor(a, b),
            Dot4 => self.dot4(a, b),
            Max | Min if ty == types::I64X2 => {
                let (x, y) = if op == Max { (b, a) } else { (a, b) };
                let less = self.vector_less(x, y, signed, ty);
                self.select(less, a, b)
            }
            Max if signed => self.b.ins().smax(a, b),
            Max => self.b.ins().umax(a, b),
            Min if signed => self.b.ins().smin(a, b),
            Min => self.b.ins().umin(a, b),
            Eq => {
                let c = self.b.ins().icmp(IntCC::Equal, a, b);
                self.as_mask(c)
            }
            Ne => {
                let c = self.b.ins().icmp(IntCC::NotEqual, a, b);
                self.as_mask(c)
            }
            Lt => {
                let c = self.vector_less(a, b, signed, ty);
                self.as_mask(c)
            }
            Le => {
                let c = self.vector_less(b, a, signed, ty);
                let c = self.b.ins().bnot(c);
                self.as_mask(c)
            }
            _ => return None,
        })
    }

    fn vector_less(&mut self, a: Value, b: Value, signed: bool, ty: Type) -> Value {
        if signed {
            return self.b.ins().icmp(IntCC::SignedLessThan, a, b);
        }
        // Unsigned order is signed order with the top bit flipped; not every back end compares unsigned 64-bit lanes.
        let top = self.int(ty, (1u64 << (ty.lane_bits() - 1)) as i64);
        let (a, b) = (self.b.ins().bxor(a, top), self.b.ins().bxor(b, top));
        self.b.ins().icmp(IntCC::SignedLessThan, a, b)
    }
}
