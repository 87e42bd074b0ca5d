//! Conversions that AVX2 lacks: those of integers without a sign and of 64 bits.
//!
//! Invariant: one rounding, as in [`super::super::convert`].

use iced_x86::Code;
use tlc_ir::{DType, Scalar};

use super::super::arithmetic::predicate::{GREATER_OR_EQUAL, ORDERED};
use super::super::masks::Mask;
use super::{Arg, Reg, Selector, Size, by_float, width};
use crate::error::{Result, unsupported};
use crate::wide::opcodes;
use crate::wide::vex;

impl Selector<'_, '_> {
    /// A float in all lanes.
    fn float(&mut self, dtype: DType, x: f64) -> Reg {
        self.constant(Scalar::from_f64(dtype, x).bits(), dtype.bits())
    }

    /// A conversion between types of which none is a 16-bit float, if it is not an instruction.
    pub(in super::super) fn convert_lanes(
        &mut self,
        x: Reg,
        from: DType,
        to: DType,
        lanes: u32,
    ) -> Result<Option<Reg>> {
        use DType::*;
        use opcodes::*;
        let one = |made: Reg| Ok(Some(made));
        let w = width(lanes, from.bits().max(to.bits()));
        match (from, to) {
            (F32, F64) | (F64, F32) => Ok(None),
            (F32 | F64, I64 | U64) if lanes > 1 => unsupported(format!("{from} to {to} in lanes")),
            (F32 | F64, I64 | U64) => one(self.float_to_quad(x, from, to)),
            (F32 | F64, _) if to.bits() < 32 => {
                let whole = self.float_to_word(x, from, I32, lanes);
                let w = width(lanes, 32);
                let (least, most) = match to.is_signed_int() {
                    true => (-1i64 << (to.bits() - 1), (1 << (to.bits() - 1)) - 1),
                    false => (0, (1 << to.bits()) - 1),
                };
                let least = self.constant(least as u64, 32);
                let most = self.constant(most as u64, 32);
                let above = self.pair(MAXS_D, w, whole, least);
                let inside = self.pair(MINS_D, w, above, most);
                one(self.truncated(inside, w, 4, to.bytes()))
            }
            (F32 | F64, _) => one(self.float_to_word(x, from, to, lanes)),
            (U32, F32) => {
                // Both halves are exact, so that their sum is rounded once.
                let high = self.by_number(SRL_D, w, x, 16);
                let mask = self.constant(0xffff, 32);
                let low = self.pair(AND_D, w, x, mask);
                let high = self.widen(CONVERT_I32_F32, w, 0, high);
                let low = self.widen(CONVERT_I32_F32, w, 0, low);
                let unit = self.float(F32, 65536.0);
                let size = Size::VECTORS[w];
                one(self.vector_update(FMADD213_PS, w, high, &[Arg::Use(unit, size), Arg::Use(low, size)]))
            }
            (U32, F64) => {
                // As the low bits of 2^52, which is then taken away.
                let wide = self.widen(EXTEND_Z_DQ, w, 1, x);
                let large = self.float(F64, 2f64.powi(52));
                let sum = self.pair(OR_D, w, wide, large);
                one(self.pair(SUB_PD, w, sum, large))
            }
            (I64 | U64, F64) => one(self.quad_to_double(x, from, w)),
            (I64 | U64, F32) if lanes > 1 => one(self.quads_to_singles(x, from, w)),
            (I64 | U64, F32) => one(self.quad_to_single(x, from)),
            _ => Ok(None),
        }
    }

    /// Halves of a 64-bit integer as the low bits of 2^52 and 2^84, whose sum without these is rounded once. (The way of LLVM's
    /// `lowerUINT_TO_FP_vec`, which is older than that.)
    fn quad_to_double(&mut self, x: Reg, from: DType, w: usize) -> Reg {
        use opcodes::*;
        // With a sign 2^63 is added to all, which flips the highest bit.
        let offset = if from == DType::I64 { 1u64 << 31 } else { 0 };
        let size = Size::VECTORS[w];
        let low_unit = self.constant(0x4330_0000_0000_0000, 64);
        let args = [Arg::Use(x, size), Arg::Use(low_unit, size), Arg::Imm8(0b1010_1010)];
        let low = self.vector_op(vex::BLEND_KNOWN_D, w, &args);
        let high = self.by_number(SRL_Q, w, x, 32);
        let high_unit = self.constant(0x4530_0000_0000_0000 | offset, 64);
        let high = self.pair(XOR_D, w, high, high_unit);
        // 2^84, 2^52 and what was added.
        let units = self.constant(0x4530_0000_0010_0000 | offset, 64);
        let rest = self.pair(SUB_PD, w, high, units);
        self.pair(ADD_PD, w, rest, low)
    }

    /// By way of f64, which holds what has no more than 53 bits. Of more, 53 are kept, the last of which is set where any behind it is: such a
    /// number lies on the same side of the middle between two of f32, so that it is rounded as the whole would be. (S. Boldo, G. Melquiond,
    /// "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd", 2008.)
    fn quads_to_singles(&mut self, x: Reg, from: DType, w: usize) -> Reg {
        use opcodes::*;
        let rest = self.constant(0x7ff, 64);
        let behind = self.pair(AND_D, w, x, rest);
        let carried = self.pair(ADD_Q, w, behind, rest);
        let sticky = self.pair(OR_D, w, x, carried);
        let odd = self.pair(vex::AND_NOT, w, rest, sticky);
        // Those below 2^53, and with a sign from -2^52 to 2^53 - 2^52 - 1, are exact as they are.
        let shifted = match from {
            DType::I64 => {
                let offset = self.constant(1 << 52, 64);
                self.pair(ADD_Q, w, x, offset)
            }
            _ => x,
        };
        let high = self.by_number(SRL_Q, w, shifted, 53);
        let zero = self.constant(0, 32);
        let small = self.equal_lanes(8, w, high, zero);
        let exact = self.blend(8, w, small, x, odd);
        let double = self.quad_to_double(exact, from, w);
        self.narrow(CONVERT_F64_F32, w, 1, double, None)
    }

    /// A scalar. What has no room for a sign is halved so that it rounds the same way, and doubled again.
    fn quad_to_single(&mut self, x: Reg, from: DType) -> Reg {
        let int = self.int_of_vector(x, from);
        let q = |r| Arg::Use(r, Size::Q);
        let mut number = int;
        if from == DType::U64 {
            let half = self.int_update(Code::Shr_rm64_imm8, int, &[Arg::Imm8(1)]);
            let last = self.int_update(Code::And_rm64_imm32, int, &[Arg::Imm32(1)]);
            let half = self.int_update(Code::Or_r64_rm64, half, &[q(last)]);
            self.push(super::super::Inst::new(Code::Test_rm64_r64, &[q(int), q(int)]));
            number = self.int_update(Code::Cmovs_r64_rm64, int, &[q(half)]);
        }
        let zero = self.constant(0, 32);
        let args = [Arg::Use(zero, Size::X), q(number)];
        let single = self.vector_as(Code::VEX_Vcvtsi2ss_xmm_xmm_rm64, Size::X, &args);
        if from == DType::I64 {
            return single;
        }
        let twice = self.pair(opcodes::ADD_PS, 0, single, single);
        let reg = self.below_zero(0, x);
        self.blend(4, 0, Mask { reg, bits: 32 }, twice, single)
    }

    /// To 32 bits: truncated and saturated; NaN is 0.
    fn float_to_word(&mut self, x: Reg, from: DType, to: DType, lanes: u32) -> Reg {
        use DType::*;
        use opcodes::*;
        let w = width(lanes, from.bits());
        let zero = self.constant(0, 32);
        match (from, to) {
            (F32, I32) => {
                // What is too large becomes the lowest number, whose bits turned are the highest.
                let made = self.widen(CONVERT_F32_I32, w, 0, x);
                let limit = self.float(F32, 2f64.powi(31));
                let above = self.compare(F32, w, x, limit, GREATER_OR_EQUAL);
                let capped = self.pair(XOR_D, w, made, above.reg);
                let number = self.compare(F32, w, x, x, ORDERED);
                self.select_or_zero(4, w, number, capped)
            }
            (F32, _) => {
                // From 2^31 on without that, which is a bit of the result.
                let x = self.pair(MAX_PS, w, x, zero);
                let (half, whole) = (self.float(F32, 2f64.powi(31)), self.float(F32, 2f64.powi(32)));
                let large = self.compare(F32, w, x, half, GREATER_OR_EQUAL);
                let taken = self.select_or_zero(4, w, large, half);
                let rest = self.pair(SUB_PS, w, x, taken);
                let made = self.widen(CONVERT_F32_I32, w, 0, rest);
                let sign = self.constant(1 << 31, 32);
                let bit = self.select_or_zero(4, w, large, sign);
                let made = self.pair(XOR_D, w, made, bit);
                let above = self.compare(F32, w, x, whole, GREATER_OR_EQUAL);
                self.pair(OR_D, w, made, above.reg)
            }
            (_, I32) => {
                let number = self.compare(F64, w, x, x, ORDERED);
                let x = self.select_or_zero(8, w, number, x);
                let most = self.float(F64, f64::from(i32::MAX));
                let x = self.pair(MIN_PD, w, x, most);
                self.narrow(CONVERT_F64_I32, w, 1, x, None)
            }
            _ => {
                // As the low bits of 2^52.
                let x = self.pair(MAX_PD, w, x, zero);
                let most = self.float(F64, f64::from(u32::MAX));
                let x = self.pair(MIN_PD, w, x, most);
                let whole = self.by_number(RNDSCALE_PD, w, x, super::super::arithmetic::TRUNCATE);
                let large = self.float(F64, 2f64.powi(52));
                let sum = self.pair(ADD_PD, w, whole, large);
                self.truncated(sum, w, 8, 4)
            }
        }
    }

    /// A scalar to 64 bits: truncated and saturated; NaN is 0.
    fn float_to_quad(&mut self, x: Reg, from: DType, to: DType) -> Reg {
        use opcodes::*;
        let converted = |s: &mut Self, x: Reg| {
            let code = match from {
                DType::F32 => Code::VEX_Vcvttss2si_r64_xmmm32,
                _ => Code::VEX_Vcvttsd2si_r64_xmmm64,
            };
            let int = s.int_op(code, Size::Q, &[Arg::Use(x, Size::X)]);
            s.vector_as(Code::EVEX_Vmovq_xmm_rm64, Size::X, &[Arg::Use(int, Size::Q)])
        };
        let half = self.float(from, 2f64.powi(63));
        if to == DType::I64 {
            let made = converted(self, x);
            let above = self.compare(from, 0, x, half, GREATER_OR_EQUAL);
            let above = self.resized(above, 1, 64);
            let capped = self.pair(XOR_D, 0, made, above.reg);
            let number = self.compare(from, 0, x, x, ORDERED);
            let number = self.resized(number, 1, 64);
            return self.select_or_zero(8, 0, number, capped);
        }
        let zero = self.constant(0, 32);
        let x = self.pair(by_float(from, MAX_PS, MAX_PD), 0, x, zero);
        let large = self.compare(from, 0, x, half, GREATER_OR_EQUAL);
        let taken = self.select_or_zero(from.bytes(), 0, large, half);
        let rest = self.pair(by_float(from, SUB_PS, SUB_PD), 0, x, taken);
        let made = converted(self, rest);
        let large = self.resized(large, 1, 64);
        let sign = self.constant(1 << 63, 64);
        let bit = self.select_or_zero(8, 0, large, sign);
        let made = self.pair(XOR_D, 0, made, bit);
        let whole = self.float(from, 2f64.powi(64));
        let above = self.compare(from, 0, x, whole, GREATER_OR_EQUAL);
        let above = self.resized(above, 1, 64);
        self.pair(OR_D, 0, made, above.reg)
    }
}
