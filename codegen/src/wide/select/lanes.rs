//! Lanes put together, taken apart and looked at as a whole.

use iced_x86::Code;
use tlc_ir::DType;

use super::masks::Logic;
use super::{Arg, Form, Inst, Reg, Selector, Size, width};
use crate::error::{Result, invalid};
use crate::flat::{Interleaving, Value};
use crate::wide::opcodes::{self, Codes};

impl Selector<'_, '_> {
    pub(super) fn splat(&mut self, a: Value, dtype: DType, lanes: u32) -> Result<(Form, Reg)> {
        use opcodes::*;
        if dtype == DType::Bool {
            let v = self.int(a)?;
            return Ok(self.spread_bool(v, self.bits_of_lanes(lanes)).of_value());
        }
        if let Some(c) = self.flat.constant(a) {
            return Ok((Form::Vector, self.constant(c.bits(), dtype.bits())));
        }
        if let Some(loaded) = self.loaded_splat(a, lanes)? {
            return Ok(loaded);
        }
        let w = width(lanes, dtype.bits());
        let forms = self.forms[a.0 as usize];
        if forms.vector.is_none() && (forms.int.is_some() || self.flat.op(a).is_index()) {
            let v = self.int(a)?;
            if !self.has_mask_registers() {
                let first = self.vector_as(Code::EVEX_Vmovq_xmm_rm64, Size::X, &[Arg::Use(v, Size::Q)]);
                let all = self.vector_op(broadcast(dtype), w, &[Arg::Use(first, Size::X)]);
                return Ok((Form::Vector, all));
            }
            let (codes, size) = match dtype.bytes() {
                1 => (BROADCAST_R_B, Size::D),
                2 => (BROADCAST_R_W, Size::D),
                4 => (BROADCAST_R_D, Size::D),
                _ => (BROADCAST_R_Q, Size::Q),
            };
            return Ok((Form::Vector, self.vector_op(codes, w, &[Arg::Use(v, size)])));
        }
        let v = self.vector(a)?;
        Ok((
            Form::Vector,
            self.vector_op(broadcast(dtype), w, &[Arg::Use(v, Size::X)]),
        ))
    }

    /// `first, first + step, ...`
    pub(super) fn series(&mut self, first: Value, step: i64, dtype: DType, lanes: u32) -> Result<Reg> {
        use opcodes::*;
        let (_, base) = self.splat(first, dtype, lanes)?;
        let bytes = dtype.bytes();
        let table: Vec<u8> = (0..i64::from(lanes))
            .flat_map(|lane| lane.wrapping_mul(step).to_le_bytes()[..bytes].to_vec())
            .collect();
        let steps = self.table(table);
        let w = width(lanes, dtype.bits());
        let size = Size::VECTORS[w];
        let codes = match bytes {
            1 => ADD_B,
            2 => ADD_W,
            4 => ADD_D,
            _ => ADD_Q,
        };
        Ok(self.vector_op(codes, w, &[Arg::Use(base, size), Arg::Use(steps, size)]))
    }

    /// That many lanes from a first one on, as the first lanes of a register; what the lanes behind them hold is not used.
    pub(super) fn lane(&mut self, a: Value, lane: u8, count: u32) -> Result<(Form, Reg)> {
        let info = self.flat.info(a);
        if info.dtype == DType::Bool {
            let there = self.forms[a.0 as usize].any_mask(self.level).map(|m| m.bits);
            let mask = self.mask(a, there.unwrap_or(self.bits_of_lanes(info.lanes)))?;
            return Ok(self.lane_of_mask(mask, lane, info.lanes).of_value());
        }
        let (bytes, lanes) = (info.dtype.bytes(), info.lanes);
        let v = self.vector(a)?;
        if lane == 0 {
            return Ok((Form::Vector, v));
        }
        let w = width(lanes, info.dtype.bits());
        let size = Size::VECTORS[w];
        if !self.has_mask_registers() {
            let part = self.bytes_from(v, w, usize::from(lane) * bytes, count as usize * bytes);
            return Ok((Form::Vector, part));
        }
        if bytes >= 4 {
            let codes = if bytes == 4 { opcodes::ALIGN_D } else { opcodes::ALIGN_Q };
            let args = [Arg::Use(v, size), Arg::Use(v, size), Arg::Imm8(lane)];
            return Ok((Form::Vector, self.vector_op(codes, w, &args)));
        }
        // The 32 bits that have it, then what is in front of it shifted out.
        let byte = usize::from(lane) * bytes;
        let args = [Arg::Use(v, size), Arg::Use(v, size), Arg::Imm8((byte / 4) as u8)];
        let word = match byte / 4 {
            0 => v,
            _ => self.vector_op(opcodes::ALIGN_D, w, &args),
        };
        Ok((
            Form::Vector,
            match byte % 4 {
                0 => word,
                inside => {
                    let args = [Arg::Use(word, Size::X), Arg::Imm8(8 * inside as u8)];
                    self.vector_op(opcodes::SRL_D, 0, &args)
                }
            },
        ))
    }

    pub(super) fn pack(&mut self, parts: &[Value], dtype: DType, lanes: u32) -> Result<(Form, Reg)> {
        if dtype == DType::Bool {
            let mask = match self.loaded_bools(parts)? {
                Some(mask) => mask,
                None => self.pack_bools(parts)?,
            };
            return Ok(mask.of_value());
        }
        if let Some(numbers) = self.flat.numbers(parts) {
            let bytes = |n: u64| n.to_le_bytes()[..dtype.bytes()].to_vec();
            return Ok((Form::Vector, self.table(numbers.into_iter().flat_map(bytes).collect())));
        }
        let each: Vec<Reg> = parts.iter().map(|p| self.vector(*p)).collect::<Result<_>>()?;
        Ok((Form::Vector, self.packed(each, dtype.bytes(), lanes)?))
    }

    /// The first elements of vectors, of so many bytes, as one.
    pub(super) fn packed(&mut self, each: Vec<Reg>, bytes: usize, lanes: u32) -> Result<Reg> {
        use opcodes::*;
        let (mut level, mut bytes) = (each, bytes);
        // Two neighbours become one element of twice the size, up to 128 bits.
        while level.len() > 1 && bytes < 16 {
            let codes = match bytes {
                1 => UNPACK_B,
                2 => UNPACK_W,
                4 => UNPACK_D,
                _ => UNPACK_Q,
            };
            let mut next = Vec::with_capacity(level.len().div_ceil(2));
            for pair in level.chunks(2) {
                next.push(match pair {
                    [a, b] => self.vector_op(codes, 0, &[Arg::Use(*a, Size::X), Arg::Use(*b, Size::X)]),
                    other => other[0],
                });
            }
            level = next;
            bytes *= 2;
        }
        let mut size = Size::X;
        while level.len() > 1 {
            let (code, wider) = match size {
                Size::X => (Code::EVEX_Vinserti32x4_ymm_k1z_ymm_xmmm128_imm8, Size::Y),
                _ => (Code::EVEX_Vinserti64x4_zmm_k1z_zmm_ymmm256_imm8, Size::Z),
            };
            let mut next = Vec::with_capacity(level.len() / 2);
            for pair in level.chunks(2) {
                let [a, b] = pair else {
                    return invalid(format!("a vector of {lanes} lanes"));
                };
                next.push(self.vector_as(code, wider, &[Arg::Use(*a, wider), Arg::Use(*b, size), Arg::Imm8(1)]));
            }
            level = next;
            size = wider;
        }
        Ok(level[0])
    }

    pub(super) fn insert(&mut self, a: Value, x: Value, lane: u8, dtype: DType, lanes: u32) -> Result<(Form, Reg)> {
        if dtype == DType::Bool {
            let there = self.forms[a.0 as usize].any_mask(self.level).map(|m| m.bits);
            let (a, x) = (self.mask(a, there.unwrap_or(self.bits_of_lanes(lanes)))?, self.int(x)?);
            let x = self.spread_bool(x, a.bits);
            let chosen = self.one_lane(lane, lanes, a.bits);
            let one = self.logic(Logic::And, chosen, x, lanes);
            let others = self.logic(Logic::AndNot, chosen, a, lanes);
            return Ok(self.logic(Logic::Or, one, others, lanes).of_value());
        }
        let (a, x) = (self.vector(a)?, self.vector(x)?);
        let w = width(lanes, dtype.bits());
        let size = Size::VECTORS[w];
        if !self.has_mask_registers() {
            let all = self.vector_op(broadcast(dtype), w, &[Arg::Use(x, Size::X)]);
            return Ok((Form::Vector, self.lane_from(a, all, lane, dtype.bytes(), lanes)));
        }
        let chosen = self.one_lane(lane, lanes, dtype.bits());
        let to = self.vector_reg();
        let inst = Inst::new(
            broadcast(dtype)[w],
            &[Arg::Update { from: a, to, size }, Arg::Use(x, Size::X)],
        );
        self.push(inst.masked(chosen.reg));
        Ok((Form::Vector, to))
    }

    /// Lanes of two vectors in another order, of as many bits as the level has.
    pub(super) fn interleave(&mut self, a: Value, b: Value, how: Interleaving) -> Result<Reg> {
        use opcodes::*;
        let w = width(self.flat.info(a).lanes, 32);
        let size = Size::VECTORS[w];
        let (a, b) = (self.vector(a)?, self.vector(b)?);
        let args = [Arg::Use(a, size), Arg::Use(b, size)];
        let codes = match how {
            Interleaving::FirstLanes => UNPACK_D,
            Interleaving::LastLanes => UNPACK_HIGH_D,
            Interleaving::FirstPairs => UNPACK_Q,
            Interleaving::LastPairs => UNPACK_HIGH_Q,
            Interleaving::EvenParts | Interleaving::OddParts => {
                let even = how == Interleaving::EvenParts;
                // Of four parts two bits choose each, 0 and 2 or 1 and 3, of the first vector and then of the second; of two parts
                // each half of the number chooses one of four.
                let (code, parts) = match (w, even) {
                    (2, true) => (Code::EVEX_Vshuff32x4_zmm_k1z_zmm_zmmm512b32_imm8, 0x88),
                    (2, false) => (Code::EVEX_Vshuff32x4_zmm_k1z_zmm_zmmm512b32_imm8, 0xdd),
                    (_, true) => (Code::VEX_Vperm2i128_ymm_ymm_ymmm256_imm8, 0x20),
                    (_, false) => (Code::VEX_Vperm2i128_ymm_ymm_ymmm256_imm8, 0x31),
                };
                return Ok(self.vector_as(code, size, &[args[0], args[1], Arg::Imm8(parts)]));
            }
        };
        Ok(self.vector_op(codes, w, &args))
    }

    /// Whether any lane of a mask is true, or all are.
    pub(super) fn lanes_test(&mut self, m: Value, all: bool) -> Result<Reg> {
        let (bits, ones) = self.bits_of(m)?;
        let against = self.number(if all { ones as i64 } else { 0 });
        self.push(Inst::new(
            Code::Cmp_r64_rm64,
            &[Arg::Use(bits, Size::Q), Arg::Use(against, Size::Q)],
        ));
        Ok(self.flag(if all { Code::Sete_rm8 } else { Code::Setne_rm8 }))
    }

    pub(super) fn lane_bits(&mut self, m: Value) -> Result<Reg> {
        Ok(self.bits_of(m)?.0)
    }

    pub(super) fn bit(&mut self, bits: Value, bit: u8) -> Result<Reg> {
        let bits = self.int(bits)?;
        let shifted = match bit {
            0 => bits,
            _ => self.int_update(Code::Shr_rm64_imm8, bits, &[Arg::Imm8(bit)]),
        };
        Ok(self.int_update(Code::And_rm64_imm32, shifted, &[Arg::Imm32(1)]))
    }
}

/// The instruction that has the first lane in all.
pub(super) fn broadcast(dtype: DType) -> Codes {
    use opcodes::*;
    match dtype.bytes().trailing_zeros() {
        0 => BROADCAST_B,
        1 => BROADCAST_W,
        2 => BROADCAST_D,
        _ => BROADCAST_Q,
    }
}
