//! Functions of f32 by a device's own approximations, where a graph is compiled with [`tlc_ir::Precision::Fast`].
//!
//! Errors are those of [`tlc_ir::precision::approximation_error`], which the interpreter's bounds count with. NaN and infinities stay what they are.

use smallvec::{SmallVec, smallvec};
use tlc_ir::kernel::{Op, ValueId};
use tlc_ir::{DType, Scalar, ScalarOp};

use super::Legalizer;
use crate::math::LOG2_E;

/// `erf(x) = 1 - (a1 t + ... + a5 t^5) e^(-x^2)` with `t = 1 / (1 + p x)`, for `x >= 0`, off by up to 1.5e-7: Abramowitz and Stegun, "Handbook of
/// Mathematical Functions", 7.1.26. The last coefficient first.
const ERF: [f64; 5] = [1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592];
/// `p` of that formula.
const ERF_P: f64 = 0.3275911;

impl Legalizer<'_> {
    /// Emits an operation on f32 by approximations; `None` if it has none.
    pub(super) fn approximated(&mut self, op: ScalarOp, args: &[ValueId]) -> Option<ValueId> {
        let x = *args.first()?;
        Some(match op {
            ScalarOp::Exp2 | ScalarOp::Log2 | ScalarOp::Div | ScalarOp::Sqrt | ScalarOp::Rsqrt => {
                self.approximate(op, args.into())
            }
            ScalarOp::Exp => self.power_of_e(x, 1.0),
            ScalarOp::Log => {
                let log2 = self.approximate(ScalarOp::Log2, smallvec![x]);
                self.scaled(log2, std::f64::consts::LN_2)
            }
            // 1 - 2 / (1 + e^2x)
            ScalarOp::Tanh => {
                let power = self.power_of_e(x, 2.0);
                let (one, minus_two) = (self.number(1.0), self.number(-2.0));
                let more = self.on_f32(ScalarOp::Add, &[power, one]);
                let part = self.approximate(ScalarOp::Div, smallvec![one, more]);
                self.on_f32(ScalarOp::Fma, &[part, minus_two, one])
            }
            ScalarOp::Erf => self.erf(x),
            _ => return None,
        })
    }

    fn erf(&mut self, x: ValueId) -> ValueId {
        let size = self.on_f32(ScalarOp::Abs, &[x]);
        let (one, p) = (self.number(1.0), self.number(ERF_P));
        let divisor = self.on_f32(ScalarOp::Fma, &[p, size, one]);
        let t = self.approximate(ScalarOp::Div, smallvec![one, divisor]);
        let mut sum = self.number(ERF[0]);
        for coefficient in &ERF[1..] {
            let coefficient = self.number(*coefficient);
            sum = self.on_f32(ScalarOp::Fma, &[sum, t, coefficient]);
        }
        let sum = self.on_f32(ScalarOp::Mul, &[sum, t]);
        let square = self.on_f32(ScalarOp::Mul, &[size, size]);
        let falling = self.power_of_e(square, -1.0);
        let minus = self.on_f32(ScalarOp::Neg, &[sum]);
        let result = self.on_f32(ScalarOp::Fma, &[minus, falling, one]);
        // The sign of x, put where that of a number of 0 and more is.
        let bits = [x, result].map(|v| self.emit(Op::Bitcast(DType::U32, v), DType::U32));
        let sign = self.emit(Op::Const(Scalar::from_u64(DType::U32, 1 << 31)), DType::U32);
        let sign = self.emit(Op::Map(ScalarOp::And, smallvec![bits[0], sign]), DType::U32);
        let signed = self.emit(Op::Map(ScalarOp::Xor, smallvec![bits[1], sign]), DType::U32);
        self.emit(Op::Bitcast(DType::F32, signed), DType::F32)
    }

    /// `e^(times x)`.
    fn power_of_e(&mut self, x: ValueId, times: f64) -> ValueId {
        let power = self.scaled(x, times * LOG2_E);
        self.approximate(ScalarOp::Exp2, smallvec![power])
    }

    fn scaled(&mut self, x: ValueId, by: f64) -> ValueId {
        let by = self.number(by);
        self.on_f32(ScalarOp::Mul, &[x, by])
    }

    fn approximate(&mut self, op: ScalarOp, args: SmallVec<[ValueId; 3]>) -> ValueId {
        self.emit(Op::Approximate(op, args), DType::F32)
    }

    fn number(&mut self, value: f64) -> ValueId {
        self.emit(Op::Const(Scalar::from_f64(DType::F32, value)), DType::F32)
    }

    fn on_f32(&mut self, op: ScalarOp, args: &[ValueId]) -> ValueId {
        self.emit(Op::Map(op, args.into()), DType::F32)
    }
}
