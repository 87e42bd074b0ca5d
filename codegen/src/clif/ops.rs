//! Scalar operations, on scalars and on lanes.

use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::{InstBuilder, Type, Value, types};
use smallvec::SmallVec;
use tlc_ir::kernel::ValueId;
use tlc_ir::{DType, ScalarOp};

use super::host::HostFunction;
use super::{Result, Translator, Val, clif_type, unsupported};

impl Translator<'_, '_> {
    /// A scalar operation on kernel values.
    pub(super) fn map(&mut self, op: ScalarOp, args: &[ValueId], dtype: DType) -> Result<Val> {
        let vals: SmallVec<[Val; 3]> = args.iter().map(|&a| self.value(a)).collect::<Result<_>>()?;
        let on = self.kernel.dtype(args[args.len() - 1]);
        if matches!(on, DType::F16 | DType::BF16) {
            return unsupported(format!("{op} on {on}"));
        }
        if vals.iter().all(|v| matches!(v, Val::Scalar(_))) {
            let scalars: SmallVec<[Value; 3]> = vals
                .iter()
                .map(|v| {
                    if let Val::Scalar(x) = v {
                        *x
                    } else {
                        unreachable!("checked")
                    }
                })
                .collect();
            return Ok(Val::Scalar(self.scalar_op(op, &scalars, on, args)?));
        }
        if on == DType::Bool {
            return self.mask_op(op, &vals);
        }
        if !vector_op(op, on) {
            return self.by_lane(op, &vals, args, on, dtype);
        }
        let vty = self.vector_type(on)?;
        if op == ScalarOp::Select {
            let mask = self.mask(vals[0], vty)?;
            let (a, b) = (self.vector(vals[1], on)?, self.vector(vals[2], on)?);
            return Ok(Val::Vector(self.choose(mask, a, b)));
        }
        if matches!(op, ScalarOp::Shl | ScalarOp::Shr) {
            let (Val::Vector(x), Val::Scalar(by)) = (vals[0], vals[1]) else {
                return self.by_lane(op, &vals, args, on, dtype);
            };
            let in_range = self.constants[args[1].0 as usize].is_some_and(|c| c.bits() < on.bits() as u64);
            if !in_range {
                return self.by_lane(op, &vals, args, on, dtype);
            }
            return Ok(Val::Vector(match op {
                ScalarOp::Shl => self.builder.ins().ishl(x, by),
                _ if on.is_signed_int() => self.builder.ins().sshr(x, by),
                _ => self.builder.ins().ushr(x, by),
            }));
        }
        let vectors: SmallVec<[Value; 3]> = vals.iter().map(|&v| self.vector(v, on)).collect::<Result<_>>()?;
        let v = if on.is_float() {
            self.float_op(op, &vectors, args, vty)?
        } else {
            self.int_op(op, &vectors, on, vty)?
        };
        Ok(Val::Vector(v))
    }

    /// One lane after another, for what has no vector form.
    fn by_lane(&mut self, op: ScalarOp, vals: &[Val], args: &[ValueId], on: DType, dtype: DType) -> Result<Val> {
        let (count, _) = self.lanes.expect("vectors exist in lanes only");
        let out = if dtype == DType::Bool {
            self.mask_type()?
        } else {
            self.vector_type(dtype)?
        };
        let zero = self.zero(out.lane_type());
        let mut vector = self.builder.ins().splat(out, zero);
        for l in 0..count {
            let mut scalars: SmallVec<[Value; 3]> = SmallVec::new();
            for (v, a) in vals.iter().zip(args) {
                scalars.push(match v {
                    Val::Scalar(x) => *x,
                    Val::Vector(x) => {
                        let dtype = self.kernel.dtype(*a);
                        self.lane_scalar(*x, l, dtype)
                    }
                });
            }
            let mut lane = self.scalar_op(op, &scalars, on, args)?;
            if dtype == DType::Bool {
                let wide = out.lane_type();
                lane = if wide.bits() > 8 {
                    self.builder.ins().uextend(wide, lane)
                } else {
                    lane
                };
                lane = self.builder.ins().ineg(lane);
            }
            vector = self.builder.ins().insertlane(vector, lane, l as u8);
        }
        Ok(Val::Vector(vector))
    }

    /// Logic on lane masks.
    fn mask_op(&mut self, op: ScalarOp, vals: &[Val]) -> Result<Val> {
        let like = vals.iter().find_map(|v| match v {
            Val::Vector(m) => Some(self.builder.func.dfg.value_type(*m)),
            Val::Scalar(_) => None,
        });
        let like = like.expect("one operand is a mask");
        let masks: SmallVec<[Value; 3]> = vals.iter().map(|&v| self.mask(v, like)).collect::<Result<_>>()?;
        let v = match (op, &masks[..]) {
            (ScalarOp::Not, &[a]) => self.builder.ins().bnot(a),
            (ScalarOp::And, &[a, b]) => self.builder.ins().band(a, b),
            (ScalarOp::Or, &[a, b]) => self.builder.ins().bor(a, b),
            (ScalarOp::Xor, &[a, b]) => self.builder.ins().bxor(a, b),
            _ => return unsupported(format!("{op} on masks")),
        };
        Ok(Val::Vector(v))
    }

    /// `mask ? a : b`, lane by lane.
    fn choose(&mut self, mask: Value, a: Value, b: Value) -> Value {
        let ty = self.builder.func.dfg.value_type(a);
        let mask = self.bits_as(ty, mask);
        self.builder.ins().bitselect(mask, a, b)
    }

    /// `cond ? a : b` for scalars (bool i8) or vectors (mask).
    fn pick(&mut self, cond: Value, a: Value, b: Value, ty: Type) -> Value {
        if ty.is_vector() {
            self.choose(cond, a, b)
        } else {
            self.builder.ins().select(cond, a, b)
        }
    }

    fn scalar_op(&mut self, op: ScalarOp, a: &[Value], on: DType, args: &[ValueId]) -> Result<Value> {
        let ty = clif_type(on);
        match op {
            ScalarOp::Select => Ok(self.builder.ins().select(a[0], a[1], a[2])),
            _ if on == DType::Bool => self.bool_op(op, a),
            _ if on.is_float() => self.float_op(op, a, args, ty),
            _ => self.int_op(op, a, on, ty),
        }
    }

    fn bool_op(&mut self, op: ScalarOp, a: &[Value]) -> Result<Value> {
        let ins = self.builder.ins();
        Ok(match op {
            ScalarOp::Not => ins.bxor_imm_s(a[0], 1),
            ScalarOp::And | ScalarOp::Min => ins.band(a[0], a[1]),
            ScalarOp::Or | ScalarOp::Max => ins.bor(a[0], a[1]),
            ScalarOp::Xor | ScalarOp::Ne => ins.bxor(a[0], a[1]),
            ScalarOp::Eq => ins.icmp(IntCC::Equal, a[0], a[1]),
            ScalarOp::Lt => ins.icmp(IntCC::UnsignedLessThan, a[0], a[1]),
            ScalarOp::Le => ins.icmp(IntCC::UnsignedLessThanOrEqual, a[0], a[1]),
            _ => return unsupported(format!("{op} on bool")),
        })
    }

    fn float_constant(&mut self, v: f64, ty: Type) -> Value {
        let lane = ty.lane_type();
        let scalar = if lane == types::F32 {
            self.builder.ins().f32const(v as f32)
        } else {
            self.builder.ins().f64const(v)
        };
        if ty.is_vector() {
            self.builder.ins().splat(ty, scalar)
        } else {
            scalar
        }
    }

    fn float_op(&mut self, op: ScalarOp, a: &[Value], args: &[ValueId], ty: Type) -> Result<Value> {
        use ScalarOp::*;
        let wide = ty.lane_type() == types::F64;
        Ok(match op {
            Neg => self.builder.ins().fneg(a[0]),
            Abs => self.builder.ins().fabs(a[0]),
            Floor => self.builder.ins().floor(a[0]),
            Ceil => self.builder.ins().ceil(a[0]),
            Round => self.builder.ins().nearest(a[0]),
            Trunc => self.builder.ins().trunc(a[0]),
            Sqrt => self.builder.ins().sqrt(a[0]),
            Sign => {
                let (zero, one, minus) = (
                    self.float_constant(0.0, ty),
                    self.float_constant(1.0, ty),
                    self.float_constant(-1.0, ty),
                );
                let below = self.builder.ins().fcmp(FloatCC::LessThan, a[0], zero);
                let above = self.builder.ins().fcmp(FloatCC::GreaterThan, a[0], zero);
                let rest = self.pick(below, minus, a[0], ty);
                self.pick(above, one, rest, ty)
            }
            Add => self.builder.ins().fadd(a[0], a[1]),
            Sub => self.builder.ins().fsub(a[0], a[1]),
            Mul => self.builder.ins().fmul(a[0], a[1]),
            Div => self.builder.ins().fdiv(a[0], a[1]),
            Max | Min => {
                // `x op y ? x : y` is y where either is NaN, one instruction on x86; so a NaN in y survives by itself, and a
                // first operand that is known to be a number needs no more.
                let (x, y, first_is_number) = if self.is_number(args[0]) {
                    (a[0], a[1], true)
                } else {
                    (a[1], a[0], self.is_number(args[1]))
                };
                // Written as "less than" so that Cranelift sees one minimum or maximum instruction.
                let (low, high) = if op == Max { (y, x) } else { (x, y) };
                let better = self.builder.ins().fcmp(FloatCC::LessThan, low, high);
                let picked = self.pick(better, x, y, ty);
                if first_is_number {
                    picked
                } else {
                    let nan = self.builder.ins().fcmp(FloatCC::Unordered, x, x);
                    self.pick(nan, x, picked, ty)
                }
            }
            Eq => self.builder.ins().fcmp(FloatCC::Equal, a[0], a[1]),
            Ne => self.builder.ins().fcmp(FloatCC::NotEqual, a[0], a[1]),
            Lt => self.builder.ins().fcmp(FloatCC::LessThan, a[0], a[1]),
            Le => self.builder.ins().fcmp(FloatCC::LessThanOrEqual, a[0], a[1]),
            Fma if self.has_fma => self.builder.ins().fma(a[0], a[1], a[2]),
            Fma if !ty.is_vector() => {
                let f = if wide {
                    HostFunction::FmaF64
                } else {
                    HostFunction::FmaF32
                };
                self.call_host(f, a)?
            }
            Rem if !ty.is_vector() => {
                let f = if wide {
                    HostFunction::RemF64
                } else {
                    HostFunction::RemF32
                };
                self.call_host(f, a)?
            }
            Mod if !ty.is_vector() => {
                let f = if wide {
                    HostFunction::ModF64
                } else {
                    HostFunction::ModF32
                };
                self.call_host(f, a)?
            }
            _ => return unsupported(format!("{op} on {ty}")),
        })
    }

    fn int_constant(&mut self, v: i64, ty: Type) -> Value {
        let lane = ty.lane_type();
        let masked = if lane.bits() == 64 {
            v
        } else {
            v & ((1i64 << lane.bits()) - 1)
        };
        let scalar = self.builder.ins().iconst(lane, masked);
        if ty.is_vector() {
            self.builder.ins().splat(ty, scalar)
        } else {
            scalar
        }
    }

    fn int_op(&mut self, op: ScalarOp, a: &[Value], on: DType, ty: Type) -> Result<Value> {
        use ScalarOp::*;
        let signed = on.is_signed_int();
        let cc = |s, u| if signed { s } else { u };
        let less = cc(IntCC::SignedLessThan, IntCC::UnsignedLessThan);
        Ok(match op {
            Neg => self.builder.ins().ineg(a[0]),
            Not => self.builder.ins().bnot(a[0]),
            Abs if !signed => a[0],
            Abs => {
                let zero = self.int_constant(0, ty);
                let below = self.builder.ins().icmp(IntCC::SignedLessThan, a[0], zero);
                let negated = self.builder.ins().ineg(a[0]);
                self.pick(below, negated, a[0], ty)
            }
            Sign => {
                let (zero, one, minus) = (
                    self.int_constant(0, ty),
                    self.int_constant(1, ty),
                    self.int_constant(-1, ty),
                );
                let none = self.builder.ins().icmp(IntCC::Equal, a[0], zero);
                let other = if signed {
                    let below = self.builder.ins().icmp(IntCC::SignedLessThan, a[0], zero);
                    self.pick(below, minus, one, ty)
                } else {
                    one
                };
                self.pick(none, zero, other, ty)
            }
            Add => self.builder.ins().iadd(a[0], a[1]),
            Sub => self.builder.ins().isub(a[0], a[1]),
            Mul => self.builder.ins().imul(a[0], a[1]),
            And => self.builder.ins().band(a[0], a[1]),
            Or => self.builder.ins().bor(a[0], a[1]),
            Xor => self.builder.ins().bxor(a[0], a[1]),
            Max | Min => {
                let (small, large) = if op == Max { (a[1], a[0]) } else { (a[0], a[1]) };
                let first = self.builder.ins().icmp(less, small, large);
                self.pick(first, a[0], a[1], ty)
            }
            Eq => self.builder.ins().icmp(IntCC::Equal, a[0], a[1]),
            Ne => self.builder.ins().icmp(IntCC::NotEqual, a[0], a[1]),
            Lt => self.builder.ins().icmp(less, a[0], a[1]),
            Le => {
                let code = cc(IntCC::SignedLessThanOrEqual, IntCC::UnsignedLessThanOrEqual);
                self.builder.ins().icmp(code, a[0], a[1])
            }
            Shl | Shr if !ty.is_vector() => {
                let bits = on.bits() as i64;
                let limit = self.int_constant(bits, ty);
                // An unsigned comparison also catches negative amounts.
                let in_range = self.builder.ins().icmp(IntCC::UnsignedLessThan, a[1], limit);
                let zero = self.int_constant(0, ty);
                let by = self.builder.ins().select(in_range, a[1], zero);
                let (shifted, beyond) = match op {
                    Shl => (self.builder.ins().ishl(a[0], by), zero),
                    _ if signed => (
                        self.builder.ins().sshr(a[0], by),
                        self.builder.ins().sshr_imm_s(a[0], bits - 1),
                    ),
                    _ => (self.builder.ins().ushr(a[0], by), zero),
                };
                self.builder.ins().select(in_range, shifted, beyond)
            }
            Div | Rem | Mod if !ty.is_vector() => self.divide_ints(op, a[0], a[1], signed, ty),
            _ => return unsupported(format!("{op} on {on} lanes")),
        })
    }

    /// Integer division without traps: a divisor of 0 or −1 is replaced and its result selected.
    fn divide_ints(&mut self, op: ScalarOp, x: Value, y: Value, signed: bool, ty: Type) -> Value {
        let (zero, one) = (self.int_constant(0, ty), self.int_constant(1, ty));
        let by_zero = self.builder.ins().icmp(IntCC::Equal, y, zero);
        let mut safe = self.builder.ins().select(by_zero, one, y);
        let mut by_minus_one = None;
        if signed {
            let minus = self.int_constant(-1, ty);
            let is = self.builder.ins().icmp(IntCC::Equal, y, minus);
            safe = self.builder.ins().select(is, one, safe);
            by_minus_one = Some(is);
        }
        let (mut result, when_zero) = match op {
            ScalarOp::Div => {
                let q = if signed {
                    self.builder.ins().sdiv(x, safe)
                } else {
                    self.builder.ins().udiv(x, safe)
                };
                (q, zero)
            }
            _ => {
                let r = if signed {
                    self.builder.ins().srem(x, safe)
                } else {
                    self.builder.ins().urem(x, safe)
                };
                (r, x)
            }
        };
        if op == ScalarOp::Mod && signed {
            // A remainder whose sign differs from the divisor's is one divisor short.
            let differs = self.builder.ins().bxor(result, safe);
            let opposite = self.builder.ins().icmp(IntCC::SignedLessThan, differs, zero);
            let some = self.builder.ins().icmp(IntCC::NotEqual, result, zero);
            let fix = self.builder.ins().band(opposite, some);
            let moved = self.builder.ins().iadd(result, safe);
            result = self.builder.ins().select(fix, moved, result);
        }
        if let Some(minus) = by_minus_one {
            let special = if op == ScalarOp::Div {
                self.builder.ins().ineg(x)
            } else {
                zero
            };
            result = self.builder.ins().select(minus, special, result);
        }
        self.builder.ins().select(by_zero, when_zero, result)
    }
}

/// Whether Cranelift lowers the operation on 128-bit vectors of the dtype on every target.
fn vector_op(op: ScalarOp, on: DType) -> bool {
    use ScalarOp::*;
    let unsigned_wide = on == DType::U64;
    match op {
        Rem | Mod => false,
        Div => on.is_float(),
        Mul => on.is_float() || matches!(on.bits(), 16 | 32),
        Shl | Shr => on.bits() >= 16 && !(op == Shr && on == DType::I64),
        Max | Min | Lt | Le => !unsigned_wide,
        _ => true,
    }
}
