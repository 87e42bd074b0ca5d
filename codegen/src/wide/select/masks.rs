//! Masks: in mask registers, or as vectors whose lanes are all ones or all zeros.
//!
//! Invariants:
//! - In a mask register a lane is a bit; in a vector it is as wide as the elements that the mask is for. A mask that is asked for at
//!   another width is made of the one that is there.
//! - Lanes beyond those of the value may hold anything, in either form.

use iced_x86::Code;
use tlc_ir::DType;

use super::{Arg, Form, Inst, Op, Reg, Selector, Size, width};
use crate::error::{Result, invalid};
use crate::flat::Value;
use crate::wide::opcodes::{self, Codes};
use crate::wide::vex;

/// A mask in a register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Mask {
    pub reg: Reg,
    /// Bits of the register that a lane has: 1 in a mask register.
    pub bits: u32,
}

impl Mask {
    /// The form of the value that it is.
    pub(super) fn of_value(self) -> (Form, Reg) {
        (Form::Mask(self.bits), self.reg)
    }
}

/// What is done with two masks, lane by lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Logic {
    And,
    /// The second one where the first is false.
    AndNot,
    Or,
    Xor,
}

impl Selector<'_, '_> {
    pub(super) fn has_mask_registers(&self) -> bool {
        self.level.has_mask_registers()
    }

    /// Bits of a lane in a mask for elements of so many.
    fn bits_for(&self, bits: u32) -> u32 {
        if self.has_mask_registers() { 1 } else { bits }
    }

    /// Bits of a lane in a mask for no elements in particular: as many as 128 bits have for each, or as few as there are.
    pub(super) fn bits_of_lanes(&self, lanes: u32) -> u32 {
        self.bits_for((128 / lanes.max(1)).clamp(8, 64))
    }

    /// A mask that an instruction writes.
    fn made(&mut self, code: Code, args: &[Arg]) -> Mask {
        let reg = self.mask_op(code, args);
        Mask { reg, bits: 1 }
    }

    /// A mask that an instruction writes into a vector.
    fn lanes_made(&mut self, codes: Codes, lanes: u32, bits: u32, args: &[Mask]) -> Mask {
        let w = width(lanes, bits);
        let size = Size::VECTORS[w];
        let args: smallvec::SmallVec<[Arg; 2]> = args.iter().map(|m| Arg::Use(m.reg, size)).collect();
        let reg = self.vector_op(codes, w, &args);
        Mask { reg, bits }
    }

    /// A bool as a mask for elements of so many bits.
    pub(super) fn mask(&mut self, v: Value, bits: u32) -> Result<Mask> {
        let bits = self.bits_for(bits);
        let info = self.flat.info(v);
        let lanes = info.lanes;
        let constant = match self.flat.constant(v) {
            Some(c) => Some(c.as_bool()),
            None => (self.flat.is_placeless(v) && !matches!(info.op, Op::Symbol(_))).then_some(false),
        };
        if let Some(c) = constant {
            return Ok(self.uniform_mask(c, bits));
        }
        let forms = self.forms[v.0 as usize];
        if let Some(mask) = forms.mask(bits) {
            return Ok(mask);
        }
        let home = self.home(v);
        let made = match (forms.any_mask(self.level), forms.int) {
            (Some(mask), _) => self.at(home, |s| s.resized(mask, lanes, bits)),
            (None, Some(int)) => self.at(home, |s| match s.has_mask_registers() {
                true => s.made(Code::VEX_Kmovd_kr_r32, &[Arg::Use(int, Size::D)]),
                false => {
                    let reg = s.ones_of(int);
                    Mask { reg, bits }
                }
            }),
            (None, None) if self.zeros.is_late(v) => self.late_mask(v, bits)?,
            (None, None) => return invalid(format!("%{} is not defined", v.0)),
        };
        self.forms[v.0 as usize].set_mask(made);
        Ok(made)
    }

    /// Masks of both, at a width that one of them has already.
    pub(super) fn masks_alike(&mut self, a: Value, b: Value) -> Result<[Mask; 2]> {
        let there = |s: &Self, v: Value| s.forms[v.0 as usize].any_mask(s.level).map(|m| m.bits);
        let lanes = self.flat.info(a).lanes;
        let both = |bits: &u32| {
            self.forms[a.0 as usize].mask(*bits).is_some() && self.forms[b.0 as usize].mask(*bits).is_some()
        };
        let bits = [64, 32, 16, 8].into_iter().find(|bits| both(bits));
        let bits = bits.or(there(self, a)).or(there(self, b));
        let bits = bits.unwrap_or_else(|| self.bits_of_lanes(lanes));
        Ok([self.mask(a, bits)?, self.mask(b, bits)?])
    }

    /// The same truth in every lane.
    pub(super) fn uniform_mask(&mut self, truth: bool, bits: u32) -> Mask {
        let bits = self.bits_for(bits);
        let reg = match (self.has_mask_registers(), truth) {
            (true, true) => self.mask_constant(u64::MAX),
            (true, false) => self.mask_constant(0),
            (false, true) => self.constant(u64::MAX, 32),
            (false, false) => self.constant(0, 32),
        };
        Mask { reg, bits }
    }

    /// The mask whose bits say which lanes.
    fn known_mask(&mut self, truth: u64, lanes: u32, bits: u32) -> Mask {
        let bits = self.bits_for(bits);
        if self.has_mask_registers() {
            let reg = self.mask_constant(truth);
            return Mask { reg, bits };
        }
        let all = (16u32 << width(lanes, bits)) * 8 / bits;
        let bytes = (0..all.min(64)).flat_map(|lane| {
            let byte = if truth >> lane & 1 == 1 { 0xff } else { 0 };
            std::iter::repeat_n(byte, bits as usize / 8)
        });
        let bytes = bytes.collect();
        let reg = self.table(bytes);
        Mask { reg, bits }
    }

    /// The mask of the first lanes, of so many.
    pub(super) fn first_lanes(&mut self, count: u32, lanes: u32, bits: u32) -> Mask {
        self.known_mask(u64::MAX >> (64 - count.clamp(1, 64)), lanes, bits)
    }

    /// The mask of one lane.
    pub(super) fn one_lane(&mut self, lane: u8, lanes: u32, bits: u32) -> Mask {
        self.known_mask(1 << lane, lanes, bits)
    }

    /// Ones in the first 64 bits of a vector where a bool in a general register is true.
    fn ones_of(&mut self, v: Reg) -> Reg {
        let all = self.int_update(Code::Neg_rm64, v, &[]);
        self.vector_as(Code::EVEX_Vmovq_xmm_rm64, Size::X, &[Arg::Use(all, Size::Q)])
    }

    /// A bool in a general register, in all lanes of a mask.
    pub(super) fn spread_bool(&mut self, v: Reg, bits: u32) -> Mask {
        if self.has_mask_registers() {
            let all = self.int_update(Code::Neg_rm64, v, &[]);
            return self.made(Code::VEX_Kmovq_kr_r64, &[Arg::Use(all, Size::Q)]);
        }
        let first = self.ones_of(v);
        let w = self.widest();
        let reg = self.vector_op(opcodes::BROADCAST_Q, w, &[Arg::Use(first, Size::X)]);
        Mask { reg, bits }
    }

    /// The truth of the first lane as 0 or 1.
    pub(super) fn bool_of(&mut self, mask: Mask) -> Reg {
        let low = match self.has_mask_registers() {
            true => self.int_op(Code::VEX_Kmovd_r32_kr, Size::D, &[Arg::Use(mask.reg, Size::K)]),
            false => self.int_op(Code::EVEX_Vmovd_rm32_xmm, Size::D, &[Arg::Use(mask.reg, Size::X)]),
        };
        self.int_update(Code::And_rm64_imm32, low, &[Arg::Imm32(1)])
    }

    pub(super) fn logic(&mut self, what: Logic, a: Mask, b: Mask, lanes: u32) -> Mask {
        if self.has_mask_registers() {
            let code = match what {
                Logic::And => Code::VEX_Kandq_kr_kr_kr,
                Logic::AndNot => Code::VEX_Kandnq_kr_kr_kr,
                Logic::Or => Code::VEX_Korq_kr_kr_kr,
                Logic::Xor => Code::VEX_Kxorq_kr_kr_kr,
            };
            return self.made(code, &[Arg::Use(a.reg, Size::K), Arg::Use(b.reg, Size::K)]);
        }
        let codes = match what {
            Logic::And => opcodes::AND_D,
            Logic::AndNot => vex::AND_NOT,
            Logic::Or => opcodes::OR_D,
            Logic::Xor => opcodes::XOR_D,
        };
        self.lanes_made(codes, lanes, a.bits, &[a, b])
    }

    /// Where a mask is false.
    pub(super) fn negated(&mut self, a: Mask, lanes: u32) -> Mask {
        if self.has_mask_registers() {
            return self.made(Code::VEX_Knotq_kr_kr, &[Arg::Use(a.reg, Size::K)]);
        }
        let all = self.uniform_mask(true, a.bits);
        self.logic(Logic::Xor, a, all, lanes)
    }

    /// `a` where a mask is true, else `b`, of elements of so many bytes.
    pub(super) fn blend(&mut self, bytes: usize, w: usize, mask: Mask, a: Reg, b: Reg) -> Reg {
        let (to, size) = (self.vector_reg(), Size::VECTORS[w]);
        let mut args = [Arg::Def(to, size), Arg::Use(b, size), Arg::Use(a, size)].to_vec();
        if self.has_mask_registers() {
            let codes = super::memory::moves(bytes).blend;
            self.push(Inst::new(codes[w], &args).masked(mask.reg));
            return to;
        }
        debug_assert_eq!(mask.bits as usize, 8 * bytes);
        let codes = match bytes {
            4 => vex::CHOOSE_PS,
            8 => vex::CHOOSE_PD,
            _ => vex::CHOOSE_B,
        };
        args.push(Arg::Use(mask.reg, size));
        self.push(Inst::new(codes[w], &args));
        to
    }

    /// A vector where a mask is true, else zeros.
    pub(super) fn select_or_zero(&mut self, bytes: usize, w: usize, mask: Mask, v: Reg) -> Reg {
        let size = Size::VECTORS[w];
        if self.has_mask_registers() {
            let to = self.vector_reg();
            let load = super::memory::moves(bytes).load;
            let inst = Inst::new(load[w], &[Arg::Def(to, size), Arg::Use(v, size)]);
            self.push(inst.zeroing(mask.reg));
            return to;
        }
        debug_assert_eq!(mask.bits as usize, 8 * bytes);
        self.vector_op(opcodes::AND_D, w, &[Arg::Use(mask.reg, size), Arg::Use(v, size)])
    }

    /// A comparison of floats, by a predicate of `vcmpps`.
    pub(super) fn compare(&mut self, dtype: DType, w: usize, a: Reg, b: Reg, predicate: u8) -> Mask {
        let size = Size::VECTORS[w];
        let args = [Arg::Use(a, size), Arg::Use(b, size), Arg::Imm8(predicate)];
        if self.has_mask_registers() {
            let codes = super::arithmetic::by_float(dtype, opcodes::CMP_PS, opcodes::CMP_PD);
            return self.made(codes[w], &args);
        }
        let codes = super::arithmetic::by_float(dtype, vex::COMPARE_PS, vex::COMPARE_PD);
        let reg = self.vector_op(codes, w, &args);
        let bits = dtype.bits();
        Mask { reg, bits }
    }

    /// Where elements of so many bytes have some bit of others.
    pub(super) fn common_bits(&mut self, bytes: usize, w: usize, a: Reg, b: Reg) -> Mask {
        use opcodes::*;
        let size = Size::VECTORS[w];
        let args = [Arg::Use(a, size), Arg::Use(b, size)];
        let at = bytes.trailing_zeros() as usize;
        if self.has_mask_registers() {
            let codes = [TEST_B, TEST_W, TEST_D, TEST_Q][at];
            return self.made(codes[w], &args);
        }
        let common = match a == b {
            true => a,
            false => self.vector_op(AND_D, w, &args),
        };
        let zero = self.constant(0, 32);
        let none = self.equal_lanes(bytes, w, common, zero);
        let lanes = (16u32 << w) / bytes as u32;
        self.negated(none, lanes)
    }

    /// The truth of a lane as the first of a mask.
    pub(super) fn lane_of_mask(&mut self, mask: Mask, lane: u8, lanes: u32) -> Mask {
        if lane == 0 {
            return mask;
        }
        if self.has_mask_registers() {
            let args = [Arg::Use(mask.reg, Size::K), Arg::Imm8(lane)];
            return self.made(Code::VEX_Kshiftrq_kr_kr_imm8, &args);
        }
        let bytes = mask.bits as usize / 8;
        let w = width(lanes, mask.bits);
        let reg = self.bytes_from(mask.reg, w, usize::from(lane) * bytes, bytes);
        Mask { reg, ..mask }
    }

    pub(super) fn pack_bools(&mut self, parts: &[Value]) -> Result<Mask> {
        let lanes = parts.len() as u32;
        if !self.has_mask_registers() {
            let bits = self.bits_of_lanes(lanes);
            let ints: Vec<Reg> = parts.iter().map(|p| self.int(*p)).collect::<Result<_>>()?;
            let each = (ints.into_iter())
                .map(|i| self.vector_as(Code::EVEX_Vmovq_xmm_rm64, Size::X, &[Arg::Use(i, Size::Q)]))
                .collect();
            let ones = self.packed(each, bits as usize / 8, lanes)?;
            // 1 becomes all ones.
            let zero = self.constant(0, 32);
            let w = width(lanes, bits);
            let codes =
                [opcodes::SUB_B, opcodes::SUB_W, opcodes::SUB_D, opcodes::SUB_Q][(bits / 8).trailing_zeros() as usize];
            let size = Size::VECTORS[w];
            let reg = self.vector_op(codes, w, &[Arg::Use(zero, size), Arg::Use(ones, size)]);
            return Ok(Mask { reg, bits });
        }
        let mut bits = self.int(parts[0])?;
        for (lane, p) in parts.iter().enumerate().skip(1) {
            let one = self.int(*p)?;
            let placed = self.int_update(Code::Shl_rm64_imm8, one, &[Arg::Imm8(lane as u8)]);
            bits = self.int_update(Code::Or_r64_rm64, bits, &[Arg::Use(placed, Size::Q)]);
        }
        Ok(self.made(Code::VEX_Kmovq_kr_r64, &[Arg::Use(bits, Size::Q)]))
    }

    /// The lanes of a mask as bits, and all of them set; what is beyond them is 0.
    pub(super) fn bits_of(&mut self, m: Value) -> Result<(Reg, u64)> {
        let lanes = self.flat.info(m).lanes;
        let all = u64::MAX >> (64 - lanes.clamp(1, 64));
        let there = self.forms[m.0 as usize].any_mask(self.level).map(|m| m.bits);
        let wanted = match there {
            Some(16) | None => self.bits_of_lanes(lanes).min(8),
            Some(bits) => bits,
        };
        let mask = self.mask(m, wanted)?;
        let (bits, exact) = match mask.bits {
            1 => {
                let k = [Arg::Use(mask.reg, Size::K)];
                (self.int_op(Code::VEX_Kmovq_r64_kr, Size::Q, &k), lanes >= 64)
            }
            bits => {
                let codes = match bits {
                    8 => vex::SIGNS_B,
                    32 => vex::SIGNS_PS,
                    _ => vex::SIGNS_PD,
                };
                let w = width(lanes, bits);
                let from = [Arg::Use(mask.reg, Size::VECTORS[w])];
                (self.int_op(codes[w], Size::D, &from), lanes * bits >= 128)
            }
        };
        if exact {
            return Ok((bits, all));
        }
        let first = self.number(all as i64);
        let args = [Arg::Use(first, Size::Q)];
        Ok((self.int_update(Code::And_r64_rm64, bits, &args), all))
    }

    /// The same truth in lanes of another width.
    pub(super) fn resized(&mut self, mask: Mask, lanes: u32, bits: u32) -> Mask {
        use opcodes::*;
        let mut mask = mask;
        if mask.bits < bits {
            let codes = match (mask.bits, bits) {
                (8, 16) => EXTEND_S_BW,
                (8, 32) => EXTEND_S_BD,
                (8, _) => EXTEND_S_BQ,
                (16, 32) => EXTEND_S_WD,
                (16, _) => EXTEND_S_WQ,
                (_, _) => EXTEND_S_DQ,
            };
            let w = width(lanes, bits);
            let reg = self.vector_op(codes, w, &[Arg::Use(mask.reg, Size::X)]);
            return Mask { reg, bits };
        }
        while mask.bits > bits {
            // Halves of ones are ones, so that two of 32 bits packed are one of 64 become 32.
            let codes = if mask.bits > 16 { vex::PACK_DW } else { vex::PACK_WB };
            let high = match width(lanes, mask.bits) {
                0 => mask.reg,
                _ => self.upper_half(mask.reg),
            };
            let reg = self.vector_op(codes, 0, &[Arg::Use(mask.reg, Size::X), Arg::Use(high, Size::X)]);
            mask = Mask {
                reg,
                bits: mask.bits / 2,
            };
        }
        mask
    }
}
