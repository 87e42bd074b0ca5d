//! The elementary functions of [`crate::math`], emitted as kernel statements.
//!
//! Where an operand is a constant (`0.9 ** n`, `x ** 2.5`), what the formula computes from constants alone is computed here, by the meaning of
//! its operations, which is what the kernel would compute: to the same bits.

use smallvec::{SmallVec, smallvec};
use tlc_ir::index::IndexExpr;
use tlc_ir::kernel::{Op, Scope, Stmt, ValueId};
use tlc_ir::{DType, Scalar, ScalarOp};

use super::Legalizer;
use crate::math::{self, Double, Emit, Function, Single};

/// Emits `function` on f32 or f64 operands; returns its value.
pub(super) fn function(l: &mut Legalizer<'_>, function: Function, dtype: DType, args: &[ValueId]) -> ValueId {
    // Where there is no emitter, it is counted what operands that are no constants take.
    l.folds = l.emitter.is_some() && args.iter().any(|a| l.constants.contains_key(a));
    l.has_folded |= l.folds;
    let value = match dtype {
        DType::F64 => math::emit::<Double, _>(function, l, args),
        _ => math::emit::<Single, _>(function, l, args),
    };
    l.folds = false;
    value.expect("the operation's arity is the function's")
}

/// Emits `e^x` of an f32 that is known to be in the range whose results are normal numbers.
pub(super) fn exp_in_range(l: &mut Legalizer<'_>, x: ValueId) -> ValueId {
    math::exp_in_range::<Single, _>(l, x)
}

/// Emits `2^x` of an f32 as [`Op::ShortExp2`] has it.
pub(super) fn short_exp2(l: &mut Legalizer<'_>, x: ValueId) -> ValueId {
    math::short_exp2::<Single, _>(l, x)
}

fn float_of(bits: DType) -> DType {
    if bits.bits() == 64 { DType::F64 } else { DType::F32 }
}

fn int_of(width: u32) -> DType {
    if width == 64 { DType::I64 } else { DType::I32 }
}

// Each is called from hundreds of places, which would otherwise hold a copy.
impl Legalizer<'_> {
    #[inline(never)]
    fn constant_value(&mut self, value: Scalar) -> ValueId {
        self.emit(Op::Const(value), value.dtype())
    }

    #[inline(never)]
    fn raw(&mut self, op: ScalarOp, args: &[ValueId]) -> ValueId {
        if let Some(folded) = self.folded(op, args) {
            return folded;
        }
        let dtypes: SmallVec<[DType; 3]> = args.iter().map(|&a| self.kernel.dtype(a)).collect();
        let dtype = op
            .result_dtype(&dtypes)
            .expect("the algorithms keep operand types equal");
        self.emit(Op::Map(op, args.into()), dtype)
    }

    /// The constant that a value is, if the formula has constants for operands.
    fn known(&self, v: ValueId) -> Option<Scalar> {
        self.constants.get(&v).filter(|_| self.folds).copied()
    }

    /// What an operation on constants comes to, or the operand that it gives whatever the others are. The sign of a NaN is the machine's to choose.
    fn folded(&mut self, op: ScalarOp, args: &[ValueId]) -> Option<ValueId> {
        if !self.folds {
            return None;
        }
        if let (ScalarOp::Select, Some(mask)) = (op, self.known(args[0])) {
            return Some(if mask.as_bool() { args[1] } else { args[2] });
        }
        if let (ScalarOp::And | ScalarOp::Or, &[a, b], DType::Bool) = (op, args, self.kernel.dtype(args[0])) {
            for (one, other) in [(a, b), (b, a)] {
                if let Some(known) = self.known(one) {
                    let decides = known.as_bool() == (op == ScalarOp::Or);
                    return Some(if decides { one } else { other });
                }
            }
        }
        let values: Option<SmallVec<[Scalar; 3]>> = args.iter().map(|a| self.known(*a)).collect();
        let value = op.eval(&values?);
        let is_nan = value.dtype().is_float() && value.as_f64().is_nan();
        (!is_nan).then(|| self.constant_value(value))
    }

    #[inline(never)]
    fn bitcast(&mut self, to: DType, a: ValueId) -> ValueId {
        match self.known(a) {
            Some(known) => self.constant_value(Scalar::from_bits(to, known.bits())),
            None => self.emit(Op::Bitcast(to, a), to),
        }
    }

    #[inline(never)]
    fn shift(&mut self, a: ValueId, bits: u32, op: ScalarOp) -> ValueId {
        let from = self.kernel.dtype(a);
        let unsigned = if from.bits() == 64 { DType::U64 } else { DType::U32 };
        if let Some(known) = self.known(a) {
            let of = |bits: u64| Scalar::from_bits(unsigned, bits);
            let moved = op.eval(&[of(known.bits()), of(bits as u64)]);
            return self.constant_value(Scalar::from_bits(from, moved.bits()));
        }
        let raw = self.emit(Op::Bitcast(unsigned, a), unsigned);
        let by = self.constant_value(Scalar::from_u64(unsigned, bits as u64));
        let moved = self.emit(Op::Map(op, smallvec![raw, by]), unsigned);
        self.emit(Op::Bitcast(from, moved), from)
    }
}

impl Emit for Legalizer<'_> {
    type V = ValueId;

    fn f32(&mut self, x: f32) -> ValueId {
        self.constant_value(Scalar::from_bits(DType::F32, x.to_bits() as u64))
    }
    fn f64(&mut self, x: f64) -> ValueId {
        self.constant_value(Scalar::from_bits(DType::F64, x.to_bits()))
    }
    fn i32(&mut self, x: i32) -> ValueId {
        self.constant_value(Scalar::from_i64(DType::I32, x as i64))
    }
    fn i64(&mut self, x: i64) -> ValueId {
        self.constant_value(Scalar::from_i64(DType::I64, x))
    }
    fn add(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.raw(ScalarOp::Add, &[a, b])
    }
    fn sub(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.raw(ScalarOp::Sub, &[a, b])
    }
    fn mul(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.raw(ScalarOp::Mul, &[a, b])
    }
    fn div(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.raw(ScalarOp::Div, &[a, b])
    }
    fn fma(&mut self, a: ValueId, b: ValueId, c: ValueId) -> ValueId {
        self.raw(ScalarOp::Fma, &[a, b, c])
    }
    fn neg(&mut self, a: ValueId) -> ValueId {
        self.raw(ScalarOp::Neg, &[a])
    }
    fn abs(&mut self, a: ValueId) -> ValueId {
        self.raw(ScalarOp::Abs, &[a])
    }
    fn sqrt(&mut self, a: ValueId) -> ValueId {
        self.raw(ScalarOp::Sqrt, &[a])
    }
    fn round_even(&mut self, a: ValueId) -> ValueId {
        self.raw(ScalarOp::Round, &[a])
    }
    fn lt(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.raw(ScalarOp::Lt, &[a, b])
    }
    fn le(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.raw(ScalarOp::Le, &[a, b])
    }
    fn eq(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.raw(ScalarOp::Eq, &[a, b])
    }
    fn int_lt(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.raw(ScalarOp::Lt, &[a, b])
    }
    fn int_eq(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.raw(ScalarOp::Eq, &[a, b])
    }
    fn mask_and(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.raw(ScalarOp::And, &[a, b])
    }
    fn mask_or(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.raw(ScalarOp::Or, &[a, b])
    }
    fn mask_and_not(&mut self, a: ValueId, b: ValueId) -> ValueId {
        let not = self.raw(ScalarOp::Not, &[b]);
        self.raw(ScalarOp::And, &[a, not])
    }
    fn select(&mut self, mask: ValueId, a: ValueId, b: ValueId) -> ValueId {
        self.raw(ScalarOp::Select, &[mask, a, b])
    }
    fn bits_of_float(&mut self, a: ValueId) -> ValueId {
        let to = int_of(self.kernel.dtype(a).bits());
        self.bitcast(to, a)
    }
    fn float_of_bits(&mut self, a: ValueId) -> ValueId {
        let to = float_of(self.kernel.dtype(a));
        self.bitcast(to, a)
    }
    fn int_add(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.raw(ScalarOp::Add, &[a, b])
    }
    fn int_sub(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.raw(ScalarOp::Sub, &[a, b])
    }
    fn int_and(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.raw(ScalarOp::And, &[a, b])
    }
    fn int_or(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.raw(ScalarOp::Or, &[a, b])
    }
    fn int_xor(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.raw(ScalarOp::Xor, &[a, b])
    }
    fn shl(&mut self, a: ValueId, bits: u32) -> ValueId {
        self.shift(a, bits, ScalarOp::Shl)
    }
    fn shr(&mut self, a: ValueId, bits: u32) -> ValueId {
        self.shift(a, bits, ScalarOp::Shr)
    }

    fn scales(&self) -> bool {
        self.emitter.is_some_and(|e| e.scales)
    }
    fn scale(&mut self, p: ValueId, n: ValueId) -> ValueId {
        if let (Some(p), Some(n)) = (self.known(p), self.known(n)) {
            let [p, n] = [p, n].map(|x| f32::from_bits(x.bits() as u32));
            return self.f32(tlc_ir::kernel::scale(p, n));
        }
        self.emit(Op::Scale([p, n]), DType::F32)
    }
    /// The result travels in a register that holds `otherwise` unless the body replaces lanes of it.
    fn if_any(&mut self, mask: ValueId, then: impl FnOnce(&mut Self) -> ValueId, otherwise: ValueId) -> ValueId {
        if let Some(known) = self.known(mask) {
            return if known.as_bool() { then(self) } else { otherwise };
        }
        let dtype = self.kernel.dtype(otherwise);
        let (len, at) = match self.lanes {
            Some(l) => (l.count, IndexExpr::from(l.var)),
            None => (1, IndexExpr::ZERO),
        };
        let memory = self.kernel.new_scratch(dtype, IndexExpr::Const(len), Scope::Register);
        self.out.push(Stmt::Store {
            memory,
            index: at.clone(),
            value: otherwise,
            mask: None,
        });
        let outer = std::mem::take(&mut self.out);
        let value = then(self);
        let picked = Emit::select(self, mask, value, otherwise);
        self.out.push(Stmt::Store {
            memory,
            index: at.clone(),
            value: picked,
            mask: None,
        });
        let body = std::mem::replace(&mut self.out, outer);
        self.out.push(Stmt::If { cond: mask, body });
        self.emit(
            Op::Load {
                memory,
                index: at,
                mask: None,
            },
            dtype,
        )
    }
}
