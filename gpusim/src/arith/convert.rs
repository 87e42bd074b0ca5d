//! `cvt`: every conversion between numbers, with its rounding.

use super::rounding::{BF16, E4M3, E5M2, F16, F32, Format, Round, TF32, round};
use super::{Ty, extended, low};

/// A conversion, decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Convert {
    pub(crate) to: Ty,
    pub(crate) from: Ty,
    pub(crate) mode: Round,
    /// Rounds to an integer though the result is a float: `.rni` and its kin.
    pub(crate) integral: bool,
    pub(crate) saturate: bool,
    pub(crate) finite: bool,
    pub(crate) relu: bool,
    pub(crate) flush: bool,
}

const fn format_of(ty: Ty) -> Option<Format> {
    Some(match ty {
        Ty::F32 => F32,
        Ty::F16 => F16,
        Ty::BF16 => BF16,
        Ty::TF32 => TF32,
        Ty::E4M3 => E4M3,
        Ty::E5M2 => E5M2,
        _ => return None,
    })
}

/// A value without a fraction, rounded in a direction.
fn integral(value: f64, mode: Round) -> f64 {
    match mode {
        Round::Even => value.round_ties_even(),
        Round::Away => value.round(),
        Round::Zero => value.trunc(),
        Round::Down => value.floor(),
        Round::Up => value.ceil(),
    }
}

fn float_value(bits: u64, from: Ty) -> f64 {
    match from {
        Ty::F64 => f64::from_bits(bits),
        Ty::F32 => f64::from(f32::from_bits(bits as u32)),
        _ => format_of(from).map_or(0.0, |format| format.value(low(bits, from.bits()))),
    }
}

impl Convert {
    /// The result's bits, extended to a register of some width if it has a sign.
    pub(crate) fn apply(&self, bits: u64, register: u32) -> u64 {
        let mut bits = low(bits, self.from.bits());
        if self.flush && self.from == Ty::F32 {
            bits = super::float::flushed(bits);
        }
        match (self.from.is_float(), self.to.is_float()) {
            (false, false) => self.int_to_int(bits, register),
            (false, true) => self.int_to_float(bits),
            (true, false) => self.float_to_int(bits, register),
            (true, true) => self.float_to_float(bits),
        }
    }

    fn fit(&self, value: i128, register: u32) -> u64 {
        let bits = low(value as u64, self.to.bits());
        if self.to.is_signed() {
            low(extended(bits, self.to.bits()) as u64, register)
        } else {
            bits
        }
    }

    fn range(&self) -> (i128, i128) {
        let bits = self.to.bits();
        if self.to.is_signed() {
            (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
        } else {
            (0, (1 << bits) - 1)
        }
    }

    fn int_value(&self, bits: u64) -> i128 {
        if self.from.is_signed() {
            i128::from(extended(bits, self.from.bits()))
        } else {
            i128::from(bits)
        }
    }

    fn int_to_int(&self, bits: u64, register: u32) -> u64 {
        let mut value = self.int_value(bits);
        if self.saturate {
            let (least, most) = self.range();
            value = value.clamp(least, most);
        }
        self.fit(value, register)
    }

    fn int_to_float(&self, bits: u64) -> u64 {
        let value = self.int_value(bits);
        // The upper and the lower half are exact, so their sum is off by less than half a unit, on a known side.
        let high = ((value >> 32) as f64) * 4_294_967_296.0;
        let low_half = (value & 0xffff_ffff) as f64;
        let (near, rest) = super::rounding::two_sum(high, low_half);
        let result = match self.to {
            Ty::F64 => super::rounding::directed(near, rest, self.mode).to_bits(),
            _ => format_of(self.to).map_or(0, |format| round(near, rest, format, self.mode)),
        };
        if self.saturate {
            super::float::saturated(result, self.to)
        } else {
            result
        }
    }

    fn float_to_int(&self, bits: u64, register: u32) -> u64 {
        let value = float_value(bits, self.from);
        let (least, most) = self.range();
        if value.is_nan() {
            // What devices give: 0 for 32 bits and less from f32 and narrower, the highest bit for 64.
            let nan = if self.to.bits() == 64 || self.from == Ty::F64 {
                1 << (self.to.bits() - 1)
            } else {
                0
            };
            return self.fit(nan, register);
        }
        let rounded = integral(value, self.mode);
        // Conversions to integers always saturate.
        let whole = if rounded >= most as f64 {
            most
        } else if rounded <= least as f64 {
            least
        } else {
            rounded as i128
        };
        self.fit(whole, register)
    }

    fn float_to_float(&self, bits: u64) -> u64 {
        let mut value = float_value(bits, self.from);
        if self.integral {
            let whole = integral(value, self.mode);
            value = if whole == 0.0 { 0_f64.copysign(value) } else { whole };
        }
        if self.relu && value <= 0.0 {
            value = 0.0;
        }
        if self.saturate {
            value = if value.is_nan() || value <= 0.0 {
                0.0
            } else {
                value.min(1.0)
            };
        }
        let mut result = match self.to {
            Ty::F64 if value.is_nan() => 0x7ff8_0000_0000_0000,
            Ty::F64 => value.to_bits(),
            Ty::TF32 => round(value, 0.0, TF32, self.mode) << 13,
            _ => {
                let format = format_of(self.to).unwrap_or(F32);
                let result = round(value, 0.0, format, self.mode);
                let too_large = result & !(1 << (format.bits() - 1)) > format.largest() && !value.is_nan();
                if self.finite && too_large {
                    result & 1 << (format.bits() - 1) | format.largest()
                } else {
                    result
                }
            }
        };
        if self.flush && self.to == Ty::F32 {
            result = super::float::flushed(result);
        }
        result
    }
}
