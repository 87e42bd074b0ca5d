//! What AVX2 does another way than AVX-512: 64-bit integers, comparisons of integers, and lanes moved within a vector.
//!
//! Invariants:
//! - A mask is a vector, whose lanes are as wide as the elements that are compared.
//! - What the processor has on 128 bits alone is done on each half; halves are distinguished by their 16 bytes.

mod convert;
mod memory;

use iced_x86::Code;
use tlc_ir::{DType, ScalarOp};

use super::arithmetic::{AT_MOST, DIFFERS, EQUALS, by_bits, by_float, predicate};
use super::masks::Mask;
use super::{Arg, Reg, Selector, Size, width};
use crate::error::Result;
use crate::flat::Value;
use crate::wide::opcodes::{self, Codes};
use crate::wide::vex;

impl Selector<'_, '_> {
    /// An instruction on two vectors.
    fn pair(&mut self, codes: Codes, w: usize, a: Reg, b: Reg) -> Reg {
        let size = Size::VECTORS[w];
        self.vector_op(codes, w, &[Arg::Use(a, size), Arg::Use(b, size)])
    }

    /// An instruction on a vector and a constant number.
    fn by_number(&mut self, codes: Codes, w: usize, a: Reg, n: u8) -> Reg {
        self.vector_op(codes, w, &[Arg::Use(a, Size::VECTORS[w]), Arg::Imm8(n)])
    }

    /// `max` or `min` of floats of which none is known: NaN wins, and -0 is below +0.
    ///
    /// `vmaxps a, b` is `b` where either is NaN and where both are zeros, so both orders agree but there: of zeros the larger has the bits
    /// that both have, the smaller those of either, and all ones are a NaN.
    pub(super) fn extremum_of_both(&mut self, on: DType, max: bool, w: usize, a: Reg, b: Reg) -> Reg {
        use opcodes::*;
        let (codes, both) = match max {
            true => (by_float(on, MAX_PS, MAX_PD), AND_D),
            false => (by_float(on, MIN_PS, MIN_PD), OR_D),
        };
        let one = self.pair(codes, w, a, b);
        let other = self.pair(codes, w, b, a);
        let number = self.pair(both, w, one, other);
        let nan = self.compare(on, w, a, b, predicate::UNORDERED);
        self.pair(OR_D, w, number, nan.reg)
    }

    /// Where elements of so many bytes are equal.
    pub(super) fn equal_lanes(&mut self, bytes: usize, w: usize, a: Reg, b: Reg) -> Mask {
        let codes = [vex::EQUAL_B, vex::EQUAL_W, vex::EQUAL_D, vex::EQUAL_Q][bytes.trailing_zeros() as usize];
        let reg = self.pair(codes, w, a, b);
        let bits = 8 * bytes as u32;
        Mask { reg, bits }
    }

    /// A comparison of integers: the processor has that of equals and, with a sign, that of greater ones.
    pub(super) fn compare_lanes(&mut self, on: DType, w: usize, a: Reg, b: Reg, predicate: u8) -> Mask {
        let bits = on.bits();
        let lanes = (128u32 << w) / bits;
        let equals = predicate == EQUALS || predicate == DIFFERS;
        if equals {
            let equal = self.equal_lanes(on.bytes(), w, a, b);
            return if predicate == EQUALS {
                equal
            } else {
                self.negated(equal, lanes)
            };
        }
        if !on.is_signed_int() && bits < 64 {
            // The smaller of both is the first one, or the larger is not.
            let at_most = predicate == AT_MOST;
            let extremum = self.int_extremum(on, !at_most, w, a, b);
            let same = self.equal_lanes(on.bytes(), w, extremum, a);
            return if at_most { same } else { self.negated(same, lanes) };
        }
        let (mut a, mut b) = (a, b);
        if !on.is_signed_int() {
            let sign = self.constant(1 << 63, 64);
            a = self.pair(opcodes::XOR_D, w, a, sign);
            b = self.pair(opcodes::XOR_D, w, b, sign);
        }
        let codes = by_bits(on, [vex::GREATER_B, vex::GREATER_W, vex::GREATER_D, vex::GREATER_Q]);
        match predicate == AT_MOST {
            true => {
                let reg = self.pair(codes, w, a, b);
                self.negated(Mask { reg, bits }, lanes)
            }
            false => {
                let reg = self.pair(codes, w, b, a);
                Mask { reg, bits }
            }
        }
    }

    /// All ones in lanes of 64 bits that are below 0.
    fn below_zero(&mut self, w: usize, x: Reg) -> Reg {
        let zero = self.constant(0, 32);
        self.pair(vex::GREATER_Q, w, zero, x)
    }

    /// An operation on integers of 64 bits that the level lacks, of others.
    pub(super) fn map_quads(&mut self, op: ScalarOp, on: DType, w: usize, args: &[Reg]) -> Option<Reg> {
        use opcodes::*;
        if self.has_mask_registers() || on.bits() < 64 {
            return None;
        }
        match op {
            ScalarOp::Mul => {
                // The low half is the product of the low halves, and in the high one the sum of those with one high half.
                let (a, b) = (args[0], args[1]);
                let low = self.pair(vex::MULTIPLY_LOW_D, w, a, b);
                let high_a = self.by_number(SRL_Q, w, a, 32);
                let high_b = self.by_number(SRL_Q, w, b, 32);
                let one = self.pair(vex::MULTIPLY_LOW_D, w, high_a, b);
                let other = self.pair(vex::MULTIPLY_LOW_D, w, a, high_b);
                let sum = self.pair(ADD_Q, w, one, other);
                let high = self.by_number(SLL_Q, w, sum, 32);
                Some(self.pair(ADD_Q, w, low, high))
            }
            ScalarOp::Abs if on.is_signed_int() => {
                let sign = self.below_zero(w, args[0]);
                let flipped = self.pair(XOR_D, w, args[0], sign);
                Some(self.pair(SUB_Q, w, flipped, sign))
            }
            _ => None,
        }
    }

    /// A shift to the right of 64 bits with a sign: with the bits of negative numbers turned it is one without.
    pub(super) fn shift_quads(&mut self, on: DType, lanes: u32, x: Reg, amount: Value) -> Result<Reg> {
        use opcodes::*;
        let w = width(lanes, 64);
        let sign = self.below_zero(w, x);
        let flipped = self.pair(XOR_D, w, x, sign);
        let shifted = match self.flat.constant(amount).map(|a| a.bits()) {
            Some(n) if n < 64 => self.by_number(SRL_Q, w, flipped, n as u8),
            Some(_) => return Ok(sign),
            None => {
                let amount = match (lanes, self.flat.info(amount).lanes) {
                    (2.., 1) => self.splat(amount, on, lanes)?.1,
                    _ => self.vector(amount)?,
                };
                self.pair(SRLV_Q, w, flipped, amount)
            }
        };
        Ok(self.pair(XOR_D, w, shifted, sign))
    }

    /// The upper 128 bits.
    pub(super) fn upper_half(&mut self, x: Reg) -> Reg {
        self.vector_as(
            Code::VEX_Vextracti128_xmmm128_ymm_imm8,
            Size::X,
            &[Arg::Use(x, Size::Y), Arg::Imm8(1)],
        )
    }

    /// So many bytes of a vector from one on, 16 at most.
    pub(super) fn bytes_from(&mut self, x: Reg, w: usize, from: usize, count: usize) -> Reg {
        let (mut x, mut from) = (x, from);
        if w == 1 && from < 16 && from + count > 16 {
            let high = self.upper_half(x);
            let args = [Arg::Use(high, Size::X), Arg::Use(x, Size::X), Arg::Imm8(from as u8)];
            return self.vector_as(Code::VEX_Vpalignr_xmm_xmm_xmmm128_imm8, Size::X, &args);
        }
        if from >= 16 {
            x = self.upper_half(x);
            from -= 16;
        }
        match from {
            0 => x,
            _ => self.vector_as(
                Code::VEX_Vpsrldq_xmm_xmm_imm8,
                Size::X,
                &[Arg::Use(x, Size::X), Arg::Imm8(from as u8)],
            ),
        }
    }

    /// A vector of so many lanes with one of another.
    pub(super) fn lane_from(&mut self, a: Reg, b: Reg, lane: u8, bytes: usize, lanes: u32) -> Reg {
        let w = width(lanes, 8 * bytes as u32);
        let size = Size::VECTORS[w];
        let words = match bytes {
            4 => 1 << lane,
            8 => 3 << (2 * lane),
            _ => {
                let chosen = self.one_lane(lane, lanes, 8 * bytes as u32);
                return self.blend(bytes, w, chosen, b, a);
            }
        };
        let args = [Arg::Use(a, size), Arg::Use(b, size), Arg::Imm8(words)];
        self.vector_op(vex::BLEND_KNOWN_D, w, &args)
    }

    /// Bytes of each half moved within it, by a table of 16; zero where it has the high bit set.
    fn shuffled(&mut self, w: usize, x: Reg, half: [u8; 16]) -> Reg {
        let table = self.table(half.repeat(1 << w));
        self.pair(vex::SHUFFLE_B, w, x, table)
    }

    /// The low bytes of elements, one behind the other.
    pub(super) fn truncated(&mut self, x: Reg, w: usize, from: usize, to: usize) -> Reg {
        let mut half = [0x80; 16];
        let kept = (0..16).filter(|byte| byte % from < to);
        for (place, byte) in half.iter_mut().zip(kept) {
            *place = byte as u8;
        }
        let low = self.shuffled(w, x, half);
        if w == 0 {
            return low;
        }
        let codes = match 16 / from * to {
            // Quarters 0 and 2.
            8 => {
                let args = [Arg::Use(low, Size::Y), Arg::Imm8(0b1000)];
                return self.vector_as(Code::VEX_Vpermq_ymm_ymmm256_imm8, Size::Y, &args);
            }
            4 => opcodes::UNPACK_D,
            _ => opcodes::UNPACK_W,
        };
        let high = self.upper_half(low);
        self.pair(codes, 0, low, high)
    }
}
