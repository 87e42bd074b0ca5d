//! Conversions between dtypes, with exactly the meaning of [`tlc_ir::scalar`].
//!
//! Invariant: one rounding. Where the way through f32 would round twice, the scalar goes through f64 or the host.

use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::{InstBuilder, Type, Value, types};
use tlc_ir::DType;

use super::translate::Translator;
use super::values::{full, int_type, scalar_type};
use crate::error::Result;
use crate::host::RuntimeFunction;

impl Translator<'_, '_, '_> {
    /// One scalar.
    pub(super) fn convert_scalar(&mut self, from: DType, to: DType, x: Value) -> Result<Value> {
        use DType::*;
        let ty = scalar_type(to);
        Ok(match (from, to) {
            (F16 | BF16, Bool) => {
                let magnitude = self.b.ins().band_imm_u(x, 0x7fff);
                let zero = self.int(types::I16, 0);
                self.b.ins().icmp(IntCC::NotEqual, magnitude, zero)
            }
            (F32 | F64, Bool) => {
                let zero = self.float(scalar_type(from), 0.0);
                self.b.ins().fcmp(FloatCC::NotEqual, x, zero)
            }
            (_, Bool) => {
                let zero = self.int(scalar_type(from), 0);
                self.b.ins().icmp(IntCC::NotEqual, x, zero)
            }
            (F16 | BF16, _) => {
                let wide = self.b.ins().uextend(types::I32, x);
                let single = self.widen_half(from, wide);
                self.convert_scalar(F32, to, single)?
            }
            (F32, F32) => x,
            (F32, F64) => self.b.ins().fpromote(types::F64, x),
            (F64, F32) => self.b.ins().fdemote(types::F32, x),
            (F32, F16 | BF16) => {
                let bits = self.narrow_to_half(to, x);
                self.b.ins().ireduce(types::I16, bits)
            }
            (F64, F16 | BF16) | (I64, F16 | BF16) | (U64, F16 | BF16) => {
                let bits = self.call_host(RuntimeFunction::Convert(from, to), &[x])?;
                self.b.ins().ireduce(types::I16, bits)
            }
            (I32 | U32, F16 | BF16) => {
                let double = self.convert_scalar(from, F64, x)?;
                self.convert_scalar(F64, to, double)?
            }
            (_, F16 | BF16) => {
                let single = self.convert_scalar(from, F32, x)?;
                self.convert_scalar(F32, to, single)?
            }
            (F32 | F64, I32 | I64) => self.b.ins().fcvt_to_sint_sat(ty, x),
            (F32 | F64, U32 | U64) => self.b.ins().fcvt_to_uint_sat(ty, x),
            (F32 | F64, narrow) => {
                let wide = self.b.ins().fcvt_to_sint_sat(types::I32, x);
                let lowest = self.int(types::I32, narrow.lowest().as_i64());
                let highest = self.int(types::I32, narrow.highest().as_i64());
                let under = self.b.ins().icmp(IntCC::SignedLessThan, wide, lowest);
                let wide = self.b.ins().select(under, lowest, wide);
                let over = self.b.ins().icmp(IntCC::SignedGreaterThan, wide, highest);
                let wide = self.b.ins().select(over, highest, wide);
                self.b.ins().ireduce(ty, wide)
            }
            (_, F32 | F64) => {
                // Extended first: not every back end converts 8- and 16-bit integers.
                let wide_ty = if from.bits() < 64 && from != U32 {
                    types::I32
                } else {
                    types::I64
                };
                let wide = self.extend(from, x, wide_ty);
                if from == U64 {
                    self.b.ins().fcvt_from_uint(ty, wide)
                } else {
                    self.b.ins().fcvt_from_sint(ty, wide)
                }
            }
            _ => self.extend(from, x, ty),
        })
    }

    /// An integer or bool at another width.
    fn extend(&mut self, from: DType, x: Value, ty: Type) -> Value {
        let bits = self.type_of(x).bits();
        if ty.bits() < bits {
            self.b.ins().ireduce(ty, x)
        } else if ty.bits() == bits {
            x
        } else if from.is_signed_int() {
            self.b.ins().sextend(ty, x)
        } else {
            self.b.ins().uextend(ty, x)
        }
    }

    /// All lanes at once; both dtypes, and f32 if 16-bit floats take part, fit the lanes. `None` where it goes lane by lane.
    pub(super) fn convert_vector(&mut self, from: DType, to: DType, x: Value) -> Option<Value> {
        use DType::*;
        let signed = from.is_signed_int();
        Some(match (from, to) {
            (F16 | BF16, Bool) => {
                let magnitude = self.int(types::I16X8, 0x7fff);
                let x = self.b.ins().band(x, magnitude);
                self.nonzero_mask(x)
            }
            (F32 | F64, Bool) => {
                let zero = self.float(self.type_of(x), 0.0);
                let c = self.b.ins().fcmp(FloatCC::NotEqual, x, zero);
                self.as_mask(c)
            }
            (_, Bool) => self.nonzero_mask(x),
            (Bool, _) => {
                let ty = full(int_type(to.bits()));
                let mask = self.truncate(x, to.bits());
                let one = self.int(ty, to.one().bits() as i64);
                let v = self.b.ins().band(mask, one);
                self.cast(full(scalar_type(to)), v)
            }
            (F16 | BF16, F32) => {
                let wide = self.widen(x, 32, false);
                self.widen_half(from, wide)
            }
            (F16 | BF16, _) => {
                let single = self.convert_vector(from, F32, x)?;
                return self.convert_vector(F32, to, single);
            }
            (F32, F16 | BF16) => {
                let bits = self.narrow_to_half(to, x);
                self.truncate(bits, 16)
            }
            (I32 | U32 | I64 | U64 | F64, F16 | BF16) => return None,
            (_, F16 | BF16) => {
                let single = self.convert_vector(from, F32, x)?;
                return self.convert_vector(F32, to, single);
            }
            (F32, F64) => self.b.ins().fvpromote_low(x),
            (F64, F32) => self.b.ins().fvdemote(x),
            (F32, I32) => self.b.ins().fcvt_to_sint_sat(types::I32X4, x),
            (F32, U32) => self.b.ins().fcvt_to_uint_sat(types::I32X4, x),
            (F32, I8 | I16 | U8 | U16) => {
                let v = self.b.ins().fcvt_to_sint_sat(types::I32X4, x);
                match to {
                    I16 => self.b.ins().snarrow(v, v),
                    U16 => self.b.ins().unarrow(v, v),
                    _ => {
                        let v = self.b.ins().snarrow(v, v);
                        if to == I8 {
                            self.b.ins().snarrow(v, v)
                        } else {
                            self.b.ins().unarrow(v, v)
                        }
                    }
                }
            }
            (F32 | F64, _) => return None,
            (I64 | U64, F32 | F64) | (_, F64) => return None,
            (_, F32) => {
                let wide = self.widen(x, 32, signed);
                if from == U32 {
                    self.b.ins().fcvt_from_uint(types::F32X4, wide)
                } else {
                    self.b.ins().fcvt_from_sint(types::F32X4, wide)
                }
            }
            _ if to.bits() >= from.bits() => self.widen(x, to.bits(), signed),
            _ => self.truncate(x, to.bits()),
        })
    }

    fn nonzero_mask(&mut self, x: Value) -> Value {
        let zero = self.int(self.type_of(x), 0);
        let c = self.b.ins().icmp(IntCC::NotEqual, x, zero);
        self.as_mask(c)
    }

    /// The f32 of 16-bit float bits that are zero-extended to i32; scalar or vector.
    fn widen_half(&mut self, from: DType, bits: Value) -> Value {
        let ty = self.type_of(bits);
        let float = if ty.is_vector() { types::F32X4 } else { types::F32 };
        if from == DType::BF16 {
            let bits = self.b.ins().ishl_imm_u(bits, 16);
            return self.cast(float, bits);
        }
        // The exponent and mantissa shifted into place are the value times 2^-112, denormals included; infinity and NaN
        // then need the top exponent.
        let mask = self.int(ty, 0x7fff);
        let magnitude = self.b.ins().band(bits, mask);
        let magnitude = self.b.ins().ishl_imm_u(magnitude, 13);
        let small = self.cast(float, magnitude);
        let scale = self.float(float, 2f64.powi(112));
        let scaled = self.b.ins().fmul(small, scale);
        let scaled = self.cast(ty, scaled);
        let top = self.int(ty, 0x7f80_0000);
        let special = self.b.ins().bor(scaled, top);
        let largest = self.int(ty, (0x7c00 << 13) - 1);
        let is_special = self.b.ins().icmp(IntCC::SignedGreaterThan, magnitude, largest);
        let value = self.select(is_special, special, scaled);
        let sign = self.int(ty, 0x8000);
        let sign = self.b.ins().band(bits, sign);
        let sign = self.b.ins().ishl_imm_u(sign, 16);
        let value = self.b.ins().bor(value, sign);
        self.cast(float, value)
    }

    /// The bits of an f32 rounded to nearest-even to a 16-bit float, zero-extended to i32; scalar or vector.
    fn narrow_to_half(&mut self, to: DType, x: Value) -> Value {
        let ty = if self.type_of(x).is_vector() {
            types::I32X4
        } else {
            types::I32
        };
        let float = self.type_of(x);
        let all = self.cast(ty, x);
        let sign_bit = self.int(ty, 0x8000_0000);
        let sign = self.b.ins().band(all, sign_bit);
        let magnitude = self.b.ins().bxor(all, sign);
        let sign = self.b.ins().ushr_imm_u(sign, 16);
        let infinity = self.int(ty, 0x7f80_0000);
        let is_nan = self.b.ins().icmp(IntCC::SignedGreaterThan, magnitude, infinity);
        let one = self.int(ty, 1);
        let drop = if to == DType::BF16 { 16 } else { 13 };
        let odd = self.b.ins().ushr_imm_u(magnitude, drop);
        let odd = self.b.ins().band(odd, one);
        let bits = if to == DType::BF16 {
            let half = self.int(ty, 0x7fff);
            let rounded = self.b.ins().iadd(magnitude, half);
            let rounded = self.b.ins().iadd(rounded, odd);
            let rounded = self.b.ins().ushr_imm_u(rounded, 16);
            let nan = self.int(ty, 0x7fc0);
            self.select(is_nan, nan, rounded)
        } else {
            // F. Giesen, "float->half variants", float_to_half_fast3_rtne: normal numbers round in integers, denormals by
            // adding a float whose last bit is theirs.
            let bias = self.int(ty, ((15 - 127) << 23) + 0xfff);
            let normal = self.b.ins().iadd(magnitude, bias);
            let normal = self.b.ins().iadd(normal, odd);
            let normal = self.b.ins().ushr_imm_u(normal, 13);
            let magic_bits = ((127 - 15) + (23 - 10) + 1) << 23;
            let magic = self.float(float, f32::from_bits(magic_bits) as f64);
            let small = self.cast(float, magnitude);
            let shifted = self.b.ins().fadd(small, magic);
            let shifted = self.cast(ty, shifted);
            let magic = self.int(ty, magic_bits as i64);
            let denormal = self.b.ins().isub(shifted, magic);
            let first_normal = self.int(ty, 113 << 23);
            let is_denormal = self.b.ins().icmp(IntCC::SignedLessThan, magnitude, first_normal);
            let finite = self.select(is_denormal, denormal, normal);
            let too_large = self.int(ty, ((127 + 16) << 23) - 1);
            let overflows = self.b.ins().icmp(IntCC::SignedGreaterThan, magnitude, too_large);
            let inf = self.int(ty, 0x7c00);
            let finite = self.select(overflows, inf, finite);
            let nan = self.int(ty, 0x7e00);
            self.select(is_nan, nan, finite)
        };
        self.b.ins().bor(bits, sign)
    }
}
