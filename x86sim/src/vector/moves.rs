//! Loads, stores, copies, and what broadcasts, gathers and scatters.

use iced_x86::{Code, Mnemonic as M, Register};

use crate::fault::{Access, Refusal};
use crate::machine::{Execution, Step, Stop, vector_number};
use crate::state::{Lane, Vector};

impl Execution<'_> {
    /// Executes such an instruction; says whether it is one.
    pub(super) fn moves(&mut self) -> Step<bool> {
        match self.inst.mnemonic() {
            M::Vmovdqu8 => self.copied(1)?,
            M::Vmovdqu16 => self.copied(2)?,
            M::Vmovups | M::Vmovdqu32 | M::Vmovdqu => self.copied(4)?,
            M::Vmovdqu64 => self.copied(8)?,
            M::Vmovaps => {
                self.aligned()?;
                self.copied(4)?;
            }
            M::Vmovss => self.scalar(Code::VEX_Vmovss_xmm_m32, Code::EVEX_Vmovss_xmm_k1z_m32, 4)?,
            M::Vmovsd => self.scalar(Code::VEX_Vmovsd_xmm_m64, Code::EVEX_Vmovsd_xmm_k1z_m64, 8)?,
            M::Vmovd => self.moved(4)?,
            M::Vmovq => self.moved(8)?,
            M::Vpbroadcastb => self.broadcast(1)?,
            M::Vpbroadcastw => self.broadcast(2)?,
            M::Vpbroadcastd => self.broadcast(4)?,
            M::Vpbroadcastq => self.broadcast(8)?,
            M::Vpmaskmovd => self.masked_by_signs(4)?,
            M::Vpmaskmovq => self.masked_by_signs(8)?,
            M::Vgatherdps => self.gather(4)?,
            M::Vgatherdpd => self.gather(8)?,
            M::Vscatterdps => self.scatter(4)?,
            M::Vscatterdpd => self.scatter(8)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The memory operand, if there is one, has to be aligned to its size.
    fn aligned(&mut self) -> Step<()> {
        for (operand, access) in [(0, Access::Write), (1, Access::Read)] {
            if self.is_memory(operand) {
                let (address, bytes) = (self.address()?, self.size(operand));
                if !address.is_multiple_of(bytes as u64) {
                    return Err(Stop::Access(access, address, bytes, Refusal::Unaligned(bytes as u64)));
                }
            }
        }
        Ok(())
    }

    fn copied(&mut self, lane_bytes: usize) -> Step<()> {
        let lanes = self.size(0) / lane_bytes;
        let from = self.lanes(1, lane_bytes, self.mask(lanes))?;
        self.finish(&from, lane_bytes, lanes)
    }

    /// The load of one element.
    fn scalar(&mut self, vex: Code, evex: Code, bytes: usize) -> Step<()> {
        // Between registers they are instructions of three operands, which are something else.
        if ![vex, evex].contains(&self.inst.code()) {
            return Err(Stop::Unknown);
        }
        let from = self.lanes(1, bytes, self.mask(1))?;
        self.finish(&from, bytes, 1)
    }

    /// A move of the first element from and to vectors, general registers and memory.
    fn moved(&mut self, bytes: usize) -> Step<()> {
        let is_vector = |s: &Self, operand| !s.is_memory(operand) && s.inst.op_register(operand).is_vector_register();
        let from = match is_vector(self, 1) {
            true => u64::get(&self.register(1)?, 0) & (u64::MAX >> (64 - 8 * bytes)),
            false => self.integer(1)?,
        };
        match is_vector(self, 0) {
            true => {
                let mut result = Vector::default();
                from.put(&mut result, 0);
                self.finish(&result, 16, 1)
            }
            false => self.put_integer(0, from),
        }
    }

    fn broadcast(&mut self, lane_bytes: usize) -> Step<()> {
        let lanes = self.size(0) / lane_bytes;
        let mask = self.mask(lanes);
        let element = match self.is_memory(1) {
            // Where no lane is asked for nothing is read.
            true if mask == 0 => 0,
            true => self.integer(1)?,
            false if self.inst.op_register(1).is_vector_register() => u64::get(&self.register(1)?, 0),
            false => self.integer(1)?,
        };
        let mut result = Vector::default();
        for i in 0..lanes {
            result.0[i * lane_bytes..(i + 1) * lane_bytes].copy_from_slice(&element.to_le_bytes()[..lane_bytes]);
        }
        self.finish(&result, lane_bytes, lanes)
    }

    /// Bits of the signs of lanes.
    fn sign_bits(v: &Vector, lane_bytes: usize, lanes: usize) -> u64 {
        (0..lanes).fold(0, |bits, i| bits | u64::from(v.0[(i + 1) * lane_bytes - 1] >> 7) << i)
    }

    /// A load or store of the lanes whose sign is set in the second operand; lanes that are not loaded become zero.
    fn masked_by_signs(&mut self, lane_bytes: usize) -> Step<()> {
        let lanes = self.size(1) / lane_bytes;
        let mask = Self::sign_bits(&self.register(1)?, lane_bytes, lanes);
        let address = self.address()?;
        match self.is_memory(0) {
            true => {
                let from = self.register(2)?;
                self.store_lanes(address, &from, (lane_bytes, lanes), mask)
            }
            false => {
                let from = self.lanes_at(address, lane_bytes, lanes, mask)?;
                self.finish(&from, lane_bytes, lanes)
            }
        }
    }

    /// Where a lane of a gather or scatter by 32-bit indices lies.
    fn lane_address(&self, index: &Vector, lane: usize) -> Step<u64> {
        let scaled = i64::from(i32::get(index, lane)).wrapping_mul(self.inst.memory_index_scale().into());
        Ok(self.base()?.wrapping_add_signed(scaled))
    }

    fn gather(&mut self, lane_bytes: usize) -> Step<()> {
        let lanes = self.size(0) / lane_bytes;
        let (to, by) = (
            vector_number(self.inst.op_register(0))?,
            vector_number(self.inst.memory_index())?,
        );
        let index = self.state.vectors[by];
        // By a mask register, or by a vector's signs; what says it is used up.
        let own = self.inst.op_count() == 3;
        let mask = match (own, self.inst.op_mask()) {
            (true, _) => Self::sign_bits(&self.register(2)?, lane_bytes, lanes),
            // There is no gather of all lanes.
            (false, Register::None) => return Err(Stop::Unknown),
            (false, _) => self.mask(lanes),
        };
        let same = own && {
            let signs = vector_number(self.inst.op_register(2))?;
            signs == to || signs == by
        };
        if to == by || same {
            return Err(Stop::Unknown);
        }
        let mut result = self.state.vectors[to];
        for i in (0..lanes).filter(|i| mask >> i & 1 != 0) {
            let address = self.lane_address(&index, i)?;
            self.load(address, &mut result.0[i * lane_bytes..(i + 1) * lane_bytes])?;
        }
        result.0[lanes * lane_bytes..].fill(0);
        self.state.vectors[to] = result;
        match own {
            true => self.state.vectors[vector_number(self.inst.op_register(2))?] = Vector::default(),
            false => self.state.masks[self.inst.op_mask().number()] = 0,
        }
        Ok(())
    }

    fn scatter(&mut self, lane_bytes: usize) -> Step<()> {
        let lanes = self.size(1) / lane_bytes;
        let from = self.register(1)?;
        let index = self.state.vectors[vector_number(self.inst.memory_index())?];
        if self.inst.op_mask() == Register::None {
            return Err(Stop::Unknown);
        }
        let mask = self.mask(lanes);
        // Of lanes with one address the last one stays.
        for i in (0..lanes).filter(|i| mask >> i & 1 != 0) {
            let address = self.lane_address(&index, i)?;
            self.store(address, &from.0[i * lane_bytes..(i + 1) * lane_bytes])?;
        }
        self.state.masks[self.inst.op_mask().number()] = 0;
        Ok(())
    }
}
