//! What moves lanes to other places, and picks lanes of one vector or another.

use iced_x86::Mnemonic as M;

use crate::machine::{Execution, Step};
use crate::state::{Lane, Vector};

impl Execution<'_> {
    /// Executes such an instruction; says whether it is one.
    pub(super) fn permutes(&mut self) -> Step<bool> {
        match self.inst.mnemonic() {
            M::Vpermt2b => self.of_two::<u8>(usize::from)?,
            M::Vpermt2w => self.of_two::<u16>(usize::from)?,
            M::Vpermt2d => self.of_two::<u32>(|i| i as usize)?,
            M::Vpermt2q => self.of_two::<u64>(|i| i as usize)?,
            M::Vpermd | M::Vpermps => {
                let lanes = (self.size(0) / 4) as u32;
                self.picked::<u32>(2, |s, i| {
                    let index = s.register(1)?;
                    Ok((u32::get(&index, i) % lanes) as usize)
                })?;
            }
            M::Vpermq => self.picked::<u64>(1, |s, i| Ok(usize::from(s.imm8() >> (2 * i) & 3)))?,
            M::Valignd => self.aligned_lanes::<u32>()?,
            M::Valignq => self.aligned_lanes::<u64>()?,
            M::Vpunpcklbw => self.interleaved::<u8>(false)?,
            M::Vpunpcklwd => self.interleaved::<u16>(false)?,
            M::Vpunpckldq => self.interleaved::<u32>(false)?,
            M::Vpunpcklqdq => self.interleaved::<u64>(false)?,
            M::Vpunpckhdq => self.interleaved::<u32>(true)?,
            M::Vpunpckhqdq => self.interleaved::<u64>(true)?,
            M::Vpacksswb => self.packed::<i16, i8>(|a| a.clamp(i8::MIN.into(), i8::MAX.into()) as i8)?,
            M::Vpackssdw => self.packed::<i32, i16>(|a| a.clamp(i16::MIN.into(), i16::MAX.into()) as i16)?,
            M::Vpshufb => self.bytes_picked()?,
            M::Vpalignr => self.bytes_aligned()?,
            M::Vpsrldq => {
                let from = self.register(1)?;
                let by = usize::from(self.imm8());
                let mut result = Vector::default();
                for i in 0..16usize.saturating_sub(by) {
                    result.0[i] = from.0[i + by];
                }
                self.finish(&result, 16, 1)?;
            }
            M::Vpblendmb => self.blended_by_mask(1)?,
            M::Vpblendmw => self.blended_by_mask(2)?,
            M::Vpblendmd => self.blended_by_mask(4)?,
            M::Vpblendmq => self.blended_by_mask(8)?,
            M::Vpblendd => {
                let imm = self.imm8();
                self.blended(4, |_, i| Ok(imm >> i & 1 != 0))?;
            }
            M::Vblendvps => self.blended_by_signs(4)?,
            M::Vblendvpd => self.blended_by_signs(8)?,
            M::Vpblendvb => self.blended_by_signs(1)?,
            M::Vperm2i128 => {
                let imm = self.imm8();
                let (a, b) = (self.register(1)?, self.whole(2)?);
                let mut result = Vector::default();
                for i in 0..2 {
                    let control = imm >> (4 * i);
                    let from = if control & 2 == 0 { &a } else { &b };
                    if control & 8 == 0 {
                        u128::get(from, usize::from(control & 1)).put(&mut result, i);
                    }
                }
                self.finish(&result, 16, 2)?;
            }
            M::Vshuff32x4 => {
                let (imm, parts) = (self.imm8(), self.size(0) / 16);
                let (a, b) = (self.register(1)?, self.whole(2)?);
                let bits = parts.trailing_zeros();
                let mut result = Vector::default();
                for i in 0..parts {
                    let from = if i < parts / 2 { &a } else { &b };
                    let part = usize::from(imm) >> (bits * i as u32) & (parts - 1);
                    u128::get(from, part).put(&mut result, i);
                }
                self.finish(&result, 4, 4 * parts)?;
            }
            M::Vinserti128 => self.inserted(16, 16)?,
            M::Vinserti32x4 => self.inserted(16, 4)?,
            M::Vinserti64x4 => self.inserted(32, 8)?,
            M::Vextracti128 => {
                let from = u128::get(&self.register(1)?, usize::from(self.imm8() & 1));
                let mut result = Vector::default();
                from.put(&mut result, 0);
                self.finish(&result, 16, 1)?;
            }
            M::Vpextrb => {
                let element = u8::get(&self.register(1)?, usize::from(self.imm8() & 15));
                self.put_integer(0, element.into())?;
            }
            M::Vpextrw => {
                let element = u16::get(&self.register(1)?, usize::from(self.imm8() & 7));
                self.put_integer(0, element.into())?;
            }
            M::Vpinsrb => {
                let (mut result, element) = (self.register(1)?, self.integer(2)?);
                (element as u8).put(&mut result, usize::from(self.imm8() & 15));
                self.finish(&result, 16, 1)?;
            }
            M::Vpinsrw => {
                let (mut result, element) = (self.register(1)?, self.integer(2)?);
                (element as u16).put(&mut result, usize::from(self.imm8() & 7));
                self.finish(&result, 16, 1)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// A vector of a register or memory, all of it, whatever the mask.
    fn whole(&mut self, operand: u32) -> Step<Vector> {
        let bytes = self.size(operand);
        self.lanes(operand, bytes, 1)
    }

    /// Lanes of the first and third operand, by indices in the second.
    fn of_two<T: Lane>(&mut self, number: impl Fn(T) -> usize) -> Step<()> {
        let lanes = self.size(0) / T::BYTES;
        let (a, index, b) = (self.register(0)?, self.register(1)?, self.whole(2)?);
        let mut result = Vector::default();
        for i in 0..lanes {
            let at = number(T::get(&index, i)) & (2 * lanes - 1);
            let from = if at < lanes { &a } else { &b };
            T::get(from, at % lanes).put(&mut result, i);
        }
        self.finish(&result, T::BYTES, lanes)
    }

    fn picked<T: Lane>(&mut self, operand: u32, at: impl Fn(&Self, usize) -> Step<usize>) -> Step<()> {
        let lanes = self.size(0) / T::BYTES;
        let from = self.whole(operand)?;
        let mut result = Vector::default();
        for i in 0..lanes {
            T::get(&from, at(self, i)?).put(&mut result, i);
        }
        self.finish(&result, T::BYTES, lanes)
    }

    /// The lanes of the third and, above them, of the second operand, moved down.
    fn aligned_lanes<T: Lane>(&mut self) -> Step<()> {
        let lanes = self.size(0) / T::BYTES;
        let by = usize::from(self.imm8()) & (lanes - 1);
        let (high, low) = (self.register(1)?, self.whole(2)?);
        let mut result = Vector::default();
        for i in 0..lanes {
            let at = i + by;
            let from = if at < lanes { &low } else { &high };
            T::get(from, at % lanes).put(&mut result, i);
        }
        self.finish(&result, T::BYTES, lanes)
    }

    /// The low or high halves of each 128 bits of two vectors, by turns.
    fn interleaved<T: Lane>(&mut self, high: bool) -> Step<()> {
        let lanes = self.size(0) / T::BYTES;
        let within = 16 / T::BYTES;
        let (a, b) = (self.register(1)?, self.whole(2)?);
        let mut result = Vector::default();
        for i in 0..lanes {
            let (part, place) = (i / within, i % within);
            let at = part * within + place / 2 + if high { within / 2 } else { 0 };
            let from = if place.is_multiple_of(2) { &a } else { &b };
            T::get(from, at).put(&mut result, i);
        }
        self.finish(&result, T::BYTES, lanes)
    }

    /// Each 128 bits: the lanes of the one and then of the other, half as wide.
    fn packed<S: Lane, D: Lane>(&mut self, of: impl Fn(S) -> D) -> Step<()> {
        let lanes = self.size(0) / D::BYTES;
        let within = 16 / D::BYTES;
        let (a, b) = (self.register(1)?, self.whole(2)?);
        let mut result = Vector::default();
        for i in 0..lanes {
            let (part, place) = (i / within, i % within);
            let from = if place < within / 2 { &a } else { &b };
            of(S::get(from, part * (within / 2) + place % (within / 2))).put(&mut result, i);
        }
        self.finish(&result, D::BYTES, lanes)
    }

    fn bytes_picked(&mut self) -> Step<()> {
        let bytes = self.size(0);
        let (from, index) = (self.register(1)?, self.whole(2)?);
        let mut result = Vector::default();
        for i in (0..bytes).filter(|i| index.0[*i] & 0x80 == 0) {
            result.0[i] = from.0[i / 16 * 16 + usize::from(index.0[i] & 15)];
        }
        self.finish(&result, 1, bytes)
    }

    fn bytes_aligned(&mut self) -> Step<()> {
        let bytes = self.size(0);
        let by = usize::from(self.imm8());
        let (high, low) = (self.register(1)?, self.whole(2)?);
        let mut result = Vector::default();
        for i in 0..bytes {
            let at = i % 16 + by;
            result.0[i] = match at {
                0..16 => low.0[i / 16 * 16 + at],
                16..32 => high.0[i / 16 * 16 + at - 16],
                _ => 0,
            };
        }
        self.finish(&result, 1, bytes)
    }

    /// Lanes of the third operand where it is said, else of the second.
    fn blended(&mut self, lane_bytes: usize, third: impl Fn(&Self, usize) -> Step<bool>) -> Step<()> {
        let lanes = self.size(0) / lane_bytes;
        let (a, b) = (self.register(1)?, self.whole(2)?);
        let mut result = a;
        for i in 0..lanes {
            if third(self, i)? {
                let lane = i * lane_bytes..(i + 1) * lane_bytes;
                result.0[lane.clone()].copy_from_slice(&b.0[lane]);
            }
        }
        self.finish(&result, lane_bytes, lanes)
    }

    fn blended_by_signs(&mut self, lane_bytes: usize) -> Step<()> {
        let signs = self.register(3)?;
        self.blended(lane_bytes, |_, i| Ok(signs.0[(i + 1) * lane_bytes - 1] & 0x80 != 0))
    }

    /// Lanes that the mask leaves out are the second operand's, or zero: of the first nothing stays.
    fn blended_by_mask(&mut self, lane_bytes: usize) -> Step<()> {
        let lanes = self.size(0) / lane_bytes;
        let mask = self.mask(lanes);
        let (a, b) = (self.register(1)?, self.lanes(2, lane_bytes, mask)?);
        let to = crate::machine::vector_number(self.inst.op_register(0))?;
        let mut result = Vector::default();
        for i in 0..lanes {
            let lane = i * lane_bytes..(i + 1) * lane_bytes;
            match mask >> i & 1 != 0 {
                true => result.0[lane.clone()].copy_from_slice(&b.0[lane]),
                false if self.inst.zeroing_masking() => {}
                false => result.0[lane.clone()].copy_from_slice(&a.0[lane]),
            }
        }
        self.state.vectors[to] = result;
        Ok(())
    }

    /// The second operand, with a part replaced by the third.
    fn inserted(&mut self, part_bytes: usize, lane_bytes: usize) -> Step<()> {
        let bytes = self.size(0);
        let (mut result, part) = (self.register(1)?, self.whole(2)?);
        let at = usize::from(self.imm8()) % (bytes / part_bytes) * part_bytes;
        result.0[at..at + part_bytes].copy_from_slice(&part.0[..part_bytes]);
        self.finish(&result, lane_bytes, bytes / lane_bytes)
    }
}
