//! Conversions between dtypes, on scalars and on lanes.

use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::{InstBuilder, Value, types};
use tlc_ir::DType;

use super::host::HostFunction;
use super::{Result, Translator, Val, clif_type};

impl Translator<'_, '_> {
    /// `v` of dtype `from` as dtype `to`.
    pub(super) fn convert(&mut self, v: Val, from: DType, to: DType) -> Result<Val> {
        if from == to {
            return Ok(v);
        }
        match v {
            Val::Scalar(x) => Ok(Val::Scalar(self.convert_scalar(x, from, to)?)),
            Val::Vector(x) => self.convert_vector(x, from, to),
        }
    }

    fn convert_vector(&mut self, x: Value, from: DType, to: DType) -> Result<Val> {
        let same_width_ints = from.is_int() && to.is_int() && from.bits() == to.bits();
        if same_width_ints {
            return Ok(Val::Vector(x));
        }
        let (count, _) = self.lanes.expect("vectors exist in lanes only");
        let v = match (from, to) {
            (DType::Bool, _) if to.bits() as i64 * count == 128 && !matches!(to, DType::F16 | DType::BF16) => {
                // A mask and the bits of one.
                let one = self.constant(to.one());
                let vty = self.vector_type(to)?;
                let ones = self.builder.ins().splat(vty, one);
                let mask = self.mask(Val::Vector(x), vty)?;
                let mask = self.bits_as(vty, mask);
                self.builder.ins().band(mask, ones)
            }
            (_, DType::Bool) if !matches!(from, DType::F16 | DType::BF16) => {
                let ty = self.builder.func.dfg.value_type(x);
                let zero = self.zero(ty.lane_type());
                let zeros = self.builder.ins().splat(ty, zero);
                if from.is_float() {
                    self.builder.ins().fcmp(FloatCC::NotEqual, x, zeros)
                } else {
                    self.builder.ins().icmp(IntCC::NotEqual, x, zeros)
                }
            }
            (DType::I32, DType::F32) => self.builder.ins().fcvt_from_sint(types::F32X4, x),
            (DType::F32, DType::I32) => self.builder.ins().fcvt_to_sint_sat(types::I32X4, x),
            _ => {
                let vty = if to == DType::Bool {
                    self.mask_type()?
                } else {
                    self.vector_type(to)?
                };
                let zero = self.zero(vty.lane_type());
                let mut vector = self.builder.ins().splat(vty, zero);
                for l in 0..count {
                    let lane = self.lane_scalar(x, l, from);
                    let mut new = self.convert_scalar(lane, from, to)?;
                    if to == DType::Bool {
                        let wide = vty.lane_type();
                        new = if wide.bits() > 8 {
                            self.builder.ins().uextend(wide, new)
                        } else {
                            new
                        };
                        new = self.builder.ins().ineg(new);
                    }
                    vector = self.builder.ins().insertlane(vector, new, l as u8);
                }
                vector
            }
        };
        Ok(Val::Vector(v))
    }

    fn convert_scalar(&mut self, x: Value, from: DType, to: DType) -> Result<Value> {
        if from == to {
            return Ok(x);
        }
        // The 16-bit floats go through f32 (exactly) on the way out; on the way in each source rounds once.
        match (from, to) {
            (DType::F16, _) => {
                let wide = self.builder.ins().uextend(types::I32, x);
                let single = self.call_host(HostFunction::F16ToF32, &[wide])?;
                return self.convert_scalar(single, DType::F32, to);
            }
            (DType::BF16, _) => {
                let wide = self.builder.ins().uextend(types::I32, x);
                let high = self.builder.ins().ishl_imm_s(wide, 16);
                let single = self.bits_as(types::F32, high);
                return self.convert_scalar(single, DType::F32, to);
            }
            (_, DType::F16 | DType::BF16) => {
                let half = to == DType::F16;
                let (function, operand) = match from {
                    DType::F32 | DType::F64 => {
                        let double = self.convert_scalar(x, from, DType::F64)?;
                        (
                            if half {
                                HostFunction::F64ToF16
                            } else {
                                HostFunction::F64ToBF16
                            },
                            double,
                        )
                    }
                    DType::U64 => (
                        if half {
                            HostFunction::U64ToF16
                        } else {
                            HostFunction::U64ToBF16
                        },
                        x,
                    ),
                    _ => {
                        let long = self.convert_scalar(x, from, DType::I64)?;
                        (
                            if half {
                                HostFunction::I64ToF16
                            } else {
                                HostFunction::I64ToBF16
                            },
                            long,
                        )
                    }
                };
                let bits = self.call_host(function, &[operand])?;
                return Ok(self.builder.ins().ireduce(types::I16, bits));
            }
            _ => {}
        }
        let ty = clif_type(to);
        Ok(match (from, to) {
            (_, DType::Bool) => {
                let zero = self.zero(clif_type(from));
                if from.is_float() {
                    self.builder.ins().fcmp(FloatCC::NotEqual, x, zero)
                } else {
                    self.builder.ins().icmp(IntCC::NotEqual, x, zero)
                }
            }
            (DType::F32, DType::F64) => self.builder.ins().fpromote(types::F64, x),
            (DType::F64, DType::F32) => self.builder.ins().fdemote(types::F32, x),
            (_, d) if from.is_float() => {
                // Saturating conversions exist for 32 and 64 bits; narrower targets saturate from 32.
                let wide = if d.bits() < 32 { types::I32 } else { ty };
                if d.bits() >= 32 {
                    if d.is_signed_int() {
                        self.builder.ins().fcvt_to_sint_sat(wide, x)
                    } else {
                        self.builder.ins().fcvt_to_uint_sat(wide, x)
                    }
                } else {
                    let v = self.builder.ins().fcvt_to_sint_sat(types::I32, x);
                    let (lo, hi) = (d.lowest().as_i64(), d.highest().as_i64());
                    let (lo, hi) = (
                        self.builder.ins().iconst(types::I32, lo),
                        self.builder.ins().iconst(types::I32, hi),
                    );
                    let low = self.builder.ins().smax(v, lo);
                    let clamped = self.builder.ins().smin(low, hi);
                    self.builder.ins().ireduce(ty, clamped)
                }
            }
            (_, d) if d.is_float() => {
                let narrow = clif_type(from).bits() < 32;
                let signed = from.is_signed_int();
                let wide = match (narrow, signed) {
                    (false, _) => x,
                    (true, true) => self.builder.ins().sextend(types::I32, x),
                    (true, false) => self.builder.ins().uextend(types::I32, x),
                };
                if signed {
                    self.builder.ins().fcvt_from_sint(ty, wide)
                } else {
                    self.builder.ins().fcvt_from_uint(ty, wide)
                }
            }
            _ => {
                let source = clif_type(from);
                if source.bits() > ty.bits() {
                    self.builder.ins().ireduce(ty, x)
                } else if source.bits() == ty.bits() {
                    x
                } else if from.is_signed_int() {
                    self.builder.ins().sextend(ty, x)
                } else {
                    self.builder.ins().uextend(ty, x)
                }
            }
        })
    }
}
