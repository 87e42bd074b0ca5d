//! Instructions on mask registers, and what makes integers of lanes' signs.

use iced_x86::Mnemonic as M;

use crate::machine::{Execution, Step};
use crate::state::{Flag, Lane};

impl Execution<'_> {
    /// Executes such an instruction; says whether it is one.
    pub(super) fn on_masks(&mut self) -> Step<bool> {
        match self.inst.mnemonic() {
            M::Kandq => self.mask_of(|a, b| a & b)?,
            M::Kandnq => self.mask_of(|a, b| !a & b)?,
            M::Korq => self.mask_of(|a, b| a | b)?,
            M::Kxnorq => self.mask_of(|a, b| !(a ^ b))?,
            M::Kxorq => self.mask_of(|a, b| a ^ b)?,
            M::Knotq => {
                let (to, from) = (self.mask_register(0)?, self.mask_register(1)?);
                self.state.masks[to] = !self.state.masks[from];
            }
            M::Kshiftrq => {
                let (to, from) = (self.mask_register(0)?, self.mask_register(1)?);
                let count = u32::from(self.imm8());
                self.state.masks[to] = self.state.masks[from].checked_shr(count).unwrap_or(0);
            }
            M::Kmovq => self.mask_moved(u64::MAX)?,
            M::Kmovd => self.mask_moved(u32::MAX.into())?,
            M::Kortestb => self.mask_tested(u8::MAX.into())?,
            M::Kortestw => self.mask_tested(u16::MAX.into())?,
            M::Kortestd => self.mask_tested(u32::MAX.into())?,
            M::Kortestq => self.mask_tested(u64::MAX)?,
            M::Vpmovmskb => self.signs::<i8>(|a| a < 0)?,
            M::Vmovmskps => self.signs::<i32>(|a| a < 0)?,
            M::Vmovmskpd => self.signs::<i64>(|a| a < 0)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn mask_of(&mut self, of: impl Fn(u64, u64) -> u64) -> Step<()> {
        let [to, a, b] = [self.mask_register(0)?, self.mask_register(1)?, self.mask_register(2)?];
        self.state.masks[to] = of(self.state.masks[a], self.state.masks[b]);
        Ok(())
    }

    /// A move between mask registers, general registers and memory of the width of `all`.
    fn mask_moved(&mut self, all: u64) -> Step<()> {
        let from = match !self.is_memory(1) && self.inst.op_register(1).is_k() {
            true => self.state.masks[self.mask_register(1)?],
            false => self.integer(1)?,
        } & all;
        match !self.is_memory(0) && self.inst.op_register(0).is_k() {
            true => {
                let to = self.mask_register(0)?;
                self.state.masks[to] = from;
                Ok(())
            }
            false => self.put_integer(0, from),
        }
    }

    fn mask_tested(&mut self, all: u64) -> Step<()> {
        let (a, b) = (self.mask_register(0)?, self.mask_register(1)?);
        let either = (self.state.masks[a] | self.state.masks[b]) & all;
        let flags = &mut self.state.flags;
        flags.put(Flag::Zero, either == 0);
        flags.put(Flag::Carry, either == all);
        for cleared in [Flag::Sign, Flag::Overflow, Flag::Parity] {
            flags.put(cleared, false);
        }
        Ok(())
    }

    fn signs<T: Lane>(&mut self, is_negative: impl Fn(T) -> bool) -> Step<()> {
        let lanes = self.size(1) / T::BYTES;
        let v = self.register(1)?;
        let bits = (0..lanes).fold(0, |bits, i| bits | u64::from(is_negative(T::get(&v, i))) << i);
        self.put_integer(0, bits)
    }
}
