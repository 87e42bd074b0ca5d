//! Accesses of some lanes, and of elements that lie apart.
//!
//! Invariant: as in [`super::super::memory`], no byte is touched but those of the elements that an access is for: lanes are masked
//! where they have 32 or 64 bits, and others are not accessed under a mask at all.

use iced_x86::Code;

use super::super::masks::Mask;
use super::{Arg, Reg, Selector, Size};
use crate::error::{Result, unsupported};
use crate::wide::machine::Place;
use crate::wide::opcodes;
use crate::wide::vex;

impl Selector<'_, '_> {
    /// Two bytes as the first of a vector.
    pub(in super::super) fn load_two_bytes(&mut self, place: Place) -> Reg {
        let zero = self.constant(0, 32);
        let args = [Arg::Use(zero, Size::X), Arg::Memory(place), Arg::Imm8(0)];
        self.vector_as(Code::VEX_Vpinsrw_xmm_xmm_r32m16_imm8, Size::X, &args)
    }

    /// Neighbouring elements where a mask is true, else zeros.
    pub(in super::super) fn load_masked(&mut self, bytes: usize, w: usize, place: Place, mask: Mask) -> Result<Reg> {
        let codes = match bytes {
            4 => vex::MASKED_LOAD_D,
            8 => vex::MASKED_LOAD_Q,
            _ => return unsupported(format!("a masked load of elements of {bytes} bytes")),
        };
        let args = [Arg::Use(mask.reg, Size::VECTORS[w]), Arg::Memory(place)];
        Ok(self.vector_op(codes, w, &args))
    }

    /// Writes neighbouring elements where a mask is true.
    pub(in super::super) fn store_masked(
        &mut self,
        bytes: usize,
        w: usize,
        place: Place,
        v: Reg,
        mask: Mask,
    ) -> Result<()> {
        let codes = match bytes {
            4 => vex::MASKED_STORE_D,
            8 => vex::MASKED_STORE_Q,
            _ => return unsupported(format!("a masked store of elements of {bytes} bytes")),
        };
        let size = Size::VECTORS[w];
        let args = [Arg::Memory(place), Arg::Use(mask.reg, size), Arg::Use(v, size)];
        self.push(super::super::Inst::new(codes[w], &args));
        Ok(())
    }

    /// Elements that lie anywhere, where a mask is true, else zeros; the mask is used up.
    pub(in super::super) fn gather_lanes(
        &mut self,
        bytes: usize,
        w: usize,
        each: Place,
        index: Size,
        mask: Mask,
    ) -> Reg {
        let codes = if bytes == 4 { vex::GATHERED_D } else { vex::GATHERED_Q };
        let zero = self.constant(0, 32);
        let size = Size::VECTORS[w];
        let (to, used_up) = (self.vector_reg(), self.vector_reg());
        let from = Arg::Update { from: zero, to, size };
        let under = Arg::Update {
            from: mask.reg,
            to: used_up,
            size,
        };
        self.push(super::super::Inst::new(
            codes[w],
            &[from, Arg::Lanes(each, index), under],
        ));
        to
    }

    /// The elements of so many bytes that a list numbers, first those of one vector and then those of another.
    pub(in super::super) fn picked(&mut self, bytes: usize, w: usize, low: Reg, high: Reg, elements: &[usize]) -> Reg {
        let per = (16usize << w) / bytes;
        let split = elements.iter().any(|e| *e >= per);
        if w == 0 {
            let table = |from: usize| {
                let mut half = [0x80; 16];
                for (lane, e) in elements.iter().enumerate() {
                    if (from..from + per).contains(e) {
                        for byte in 0..bytes {
                            half[lane * bytes + byte] = ((e - from) * bytes + byte) as u8;
                        }
                    }
                }
                half
            };
            let first = self.shuffled(0, low, table(0));
            if !split {
                return first;
            }
            let second = self.shuffled(0, high, table(per));
            return self.pair(opcodes::OR_D, 0, first, second);
        }
        if bytes < 4 {
            // In reverse: within each half, and then the halves.
            let mut half = [0; 16];
            for (at, byte) in half.iter_mut().enumerate() {
                *byte = (16 - bytes - at / bytes * bytes + at % bytes) as u8;
            }
            let turned = self.shuffled(1, low, half);
            let args = [Arg::Use(turned, Size::Y), Arg::Imm8(0b0100_1110)];
            return self.vector_as(Code::VEX_Vpermq_ymm_ymmm256_imm8, Size::Y, &args);
        }
        // By 32 bits.
        let words = bytes / 4;
        let of_word = |word: usize| {
            let element = elements.get(word / words).copied().unwrap_or(0);
            (element >= per, (element % per) * words + word % words)
        };
        let index: Vec<u8> = (0..8).flat_map(|word| (of_word(word).1 as u32).to_le_bytes()).collect();
        let index = self.table(index);
        let permuted = |s: &mut Self, x: Reg| {
            let args = [Arg::Use(index, Size::Y), Arg::Use(x, Size::Y)];
            s.vector_as(Code::VEX_Vpermd_ymm_ymm_ymmm256, Size::Y, &args)
        };
        let first = permuted(self, low);
        if !split {
            return first;
        }
        let second = permuted(self, high);
        let chosen = (0..8).fold(0, |all, word| all | u8::from(of_word(word).0) << word);
        let args = [Arg::Use(first, Size::Y), Arg::Use(second, Size::Y), Arg::Imm8(chosen)];
        self.vector_op(vex::BLEND_KNOWN_D, 1, &args)
    }
}
