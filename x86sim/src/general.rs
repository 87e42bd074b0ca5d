//! Instructions on general registers, jumps and calls.

use iced_x86::Code;

use crate::machine::{Execution, Next, Step, Stop};
use crate::state::Flag::{self, Carry, Overflow, Parity, Sign, Zero};

impl Execution<'_> {
    /// Executes such an instruction; nothing, if it is none.
    pub(crate) fn general(&mut self) -> Step<Option<Next>> {
        match self.inst.code() {
            Code::Add_r64_rm64 => {
                let (a, b) = (self.integer(0)?, self.integer(1)?);
                let sum = a.wrapping_add(b);
                self.result(sum);
                self.put(Carry, sum < a);
                self.put(Overflow, (a ^ sum) & (b ^ sum) & HIGH != 0);
                self.put_integer(0, sum)?;
            }
            Code::Sub_rm64_imm32 => {
                let (a, b) = (self.integer(0)?, self.integer(1)?);
                self.subtract(a, b);
                self.put_integer(0, a.wrapping_sub(b))?;
            }
            Code::Cmp_r64_rm64 | Code::Cmp_rm64_imm32 => {
                let (a, b) = (self.integer(0)?, self.integer(1)?);
                self.subtract(a, b);
            }
            Code::Cmp_r32_rm32 => {
                let (a, b) = (self.integer(0)?, self.integer(1)?);
                // In the upper halves, where they have the flags of 32 bits.
                self.subtract(a << 32, b << 32);
                let low = a.wrapping_sub(b) as u8;
                self.put(Parity, low.count_ones().is_multiple_of(2));
            }
            Code::Neg_rm64 => {
                let a = self.integer(0)?;
                self.subtract(0, a);
                self.put_integer(0, a.wrapping_neg())?;
            }
            Code::Or_r64_rm64 => self.logic(|a, b| a | b, false)?,
            Code::And_r64_rm64 | Code::And_rm64_imm32 | Code::And_rm64_imm8 => self.logic(|a, b| a & b, false)?,
            Code::Xor_r64_rm64 | Code::Xor_rm64_imm32 => self.logic(|a, b| a ^ b, false)?,
            Code::Xor_r32_rm32 => self.logic(|a, b| a ^ b, true)?,
            Code::Test_rm64_r64 => {
                let both = self.integer(0)? & self.integer(1)?;
                self.logical(both);
            }
            Code::Test_rm32_r32 => {
                let both = self.integer(0)? & self.integer(1)?;
                self.logical(both);
                self.put(Sign, both >> 31 & 1 != 0);
            }
            Code::Shl_rm64_imm8 | Code::Shr_rm64_imm8 | Code::Sar_rm64_imm8 => self.shift()?,
            Code::Imul_r64_rm64 => self.multiply(0, 1)?,
            Code::Imul_r64_rm64_imm32 => self.multiply(1, 2)?,
            Code::Div_rm64 => self.divide()?,
            Code::Idiv_rm64 => self.divide_signed()?,
            Code::Cqo => self.state.general[2] = (self.state.general[0] as i64 >> 63) as u64,
            Code::Mov_r64_rm64
            | Code::Mov_rm64_r64
            | Code::Mov_r32_rm32
            | Code::Mov_rm32_r32
            | Code::Mov_rm16_r16
            | Code::Mov_rm8_r8
            | Code::Mov_r64_imm64
            | Code::Mov_rm64_imm32
            | Code::Movzx_r32_rm8
            | Code::Movzx_r32_rm16 => {
                let a = self.integer(1)?;
                self.put_integer(0, a)?;
            }
            Code::Movsx_r64_rm8 => {
                let a = self.integer(1)?;
                self.put_integer(0, a as i8 as u64)?;
            }
            Code::Movsx_r64_rm16 => {
                let a = self.integer(1)?;
                self.put_integer(0, a as i16 as u64)?;
            }
            Code::Movsxd_r64_rm32 => {
                let a = self.integer(1)?;
                self.put_integer(0, a as i32 as u64)?;
            }
            Code::Lea_r64_m => {
                let address = self.address()?;
                self.put_integer(0, address)?;
            }
            Code::Push_r64 => {
                let a = self.integer(0)?;
                let rsp = self.state.general[4].wrapping_sub(8);
                self.store(rsp, &a.to_le_bytes())?;
                self.state.general[4] = rsp;
            }
            Code::Pop_r64 => {
                let rsp = self.state.general[4];
                let mut bytes = [0; 8];
                self.load(rsp, &mut bytes)?;
                self.state.general[4] = rsp.wrapping_add(8);
                self.put_integer(0, u64::from_le_bytes(bytes))?;
            }
            // They change nothing that is seen here: an address that is fetched ahead is not checked by the processor either.
            Code::Prefetcht1_m8 | Code::Sfence => {}
            Code::Retnq => return Ok(Some(Next::Return)),
            Code::Call_rm64 => {
                let to = self.integer(0)?;
                return Ok(Some(Next::Call(to)));
            }
            Code::Jmp_rel32_64 => return Ok(Some(Next::To(self.inst.near_branch64()))),
            Code::Je_rel32_64
            | Code::Jne_rel32_64
            | Code::Jb_rel32_64
            | Code::Jae_rel32_64
            | Code::Jl_rel32_64
            | Code::Jge_rel32_64
            | Code::Jle_rel32_64
            | Code::Jg_rel32_64 => {
                return Ok(Some(match self.condition()? {
                    true => Next::To(self.inst.near_branch64()),
                    false => Next::Following,
                }));
            }
            Code::Sete_rm8 | Code::Setne_rm8 | Code::Setb_rm8 | Code::Setbe_rm8 | Code::Setl_rm8 | Code::Setle_rm8 => {
                let holds = self.condition()?;
                self.put_integer(0, holds.into())?;
            }
            Code::Cmove_r64_rm64
            | Code::Cmovne_r64_rm64
            | Code::Cmovs_r64_rm64
            | Code::Cmovl_r64_rm64
            | Code::Cmovg_r64_rm64 => {
                // Memory is read whether or not it is taken.
                let a = self.integer(1)?;
                if self.condition()? {
                    self.put_integer(0, a)?;
                }
            }
            _ => return Ok(None),
        }
        Ok(Some(Next::Following))
    }

    fn put(&mut self, flag: Flag, value: bool) {
        self.state.flags.put(flag, value);
    }

    fn flag(&self, flag: Flag) -> Step<bool> {
        self.state.flags.get(flag).ok_or(Stop::Flag(flag))
    }

    /// What the flags say of a result of 64 bits itself.
    fn result(&mut self, result: u64) {
        self.put(Zero, result == 0);
        self.put(Sign, result & HIGH != 0);
        self.put(Parity, (result as u8).count_ones().is_multiple_of(2));
    }

    fn logical(&mut self, result: u64) {
        self.result(result);
        self.put(Carry, false);
        self.put(Overflow, false);
    }

    fn logic(&mut self, of: impl Fn(u64, u64) -> u64, narrow: bool) -> Step<()> {
        let result = of(self.integer(0)?, self.integer(1)?);
        self.logical(result);
        if narrow {
            self.put(Sign, result >> 31 & 1 != 0);
        }
        self.put_integer(0, result)
    }

    fn subtract(&mut self, a: u64, b: u64) {
        let difference = a.wrapping_sub(b);
        self.result(difference);
        self.put(Carry, a < b);
        self.put(Overflow, (a ^ b) & (a ^ difference) & HIGH != 0);
    }

    fn shift(&mut self) -> Step<()> {
        let a = self.integer(0)?;
        let count = u32::from(self.imm8()) & 63;
        let code = self.inst.code();
        if count == 0 {
            return self.put_integer(0, a);
        }
        let (result, out) = match code {
            Code::Shl_rm64_imm8 => (a << count, a >> (64 - count) & 1),
            Code::Shr_rm64_imm8 => (a >> count, a >> (count - 1) & 1),
            _ => ((a as i64 >> count) as u64, (a as i64 >> (count - 1)) as u64 & 1),
        };
        self.result(result);
        self.put(Carry, out != 0);
        match (count, code) {
            (1, Code::Shl_rm64_imm8) => self.put(Overflow, (result & HIGH != 0) != (out != 0)),
            (1, Code::Shr_rm64_imm8) => self.put(Overflow, a & HIGH != 0),
            (1, _) => self.put(Overflow, false),
            _ => self.state.flags.forget(Overflow),
        }
        self.put_integer(0, result)
    }

    fn multiply(&mut self, left: u32, right: u32) -> Step<()> {
        let (a, b) = (self.integer(left)? as i64, self.integer(right)? as i64);
        let (product, overflows) = a.overflowing_mul(b);
        for undefined in [Zero, Sign, Parity] {
            self.state.flags.forget(undefined);
        }
        self.put(Carry, overflows);
        self.put(Overflow, overflows);
        self.put_integer(0, product as u64)
    }

    fn forget_flags(&mut self) {
        Flag::ALL.into_iter().for_each(|f| self.state.flags.forget(f));
    }

    fn divide(&mut self) -> Step<()> {
        let divisor = u128::from(self.integer(0)?);
        let dividend = u128::from(self.state.general[2]) << 64 | u128::from(self.state.general[0]);
        let quotient = dividend.checked_div(divisor).ok_or(Stop::Division)?;
        self.state.general[0] = u64::try_from(quotient).map_err(|_| Stop::Division)?;
        self.state.general[2] = (dividend % divisor) as u64;
        self.forget_flags();
        Ok(())
    }

    fn divide_signed(&mut self) -> Step<()> {
        let divisor = i128::from(self.integer(0)? as i64);
        let dividend = (u128::from(self.state.general[2]) << 64 | u128::from(self.state.general[0])) as i128;
        let quotient = dividend.checked_div(divisor).ok_or(Stop::Division)?;
        self.state.general[0] = i64::try_from(quotient).map_err(|_| Stop::Division)? as u64;
        self.state.general[2] = dividend.wrapping_rem(divisor) as u64;
        self.forget_flags();
        Ok(())
    }

    /// Whether the condition of a jump, a move or a set holds.
    fn condition(&self) -> Step<bool> {
        use iced_x86::ConditionCode as C;
        Ok(match self.inst.condition_code() {
            C::e => self.flag(Zero)?,
            C::ne => !self.flag(Zero)?,
            C::b => self.flag(Carry)?,
            C::ae => !self.flag(Carry)?,
            C::be => self.flag(Carry)? | self.flag(Zero)?,
            C::s => self.flag(Sign)?,
            C::l => self.flag(Sign)? != self.flag(Overflow)?,
            C::ge => self.flag(Sign)? == self.flag(Overflow)?,
            C::le => self.flag(Zero)? | (self.flag(Sign)? != self.flag(Overflow)?),
            C::g => !self.flag(Zero)? & (self.flag(Sign)? == self.flag(Overflow)?),
            _ => return Err(Stop::Unknown),
        })
    }
}

/// The highest bit.
const HIGH: u64 = 1 << 63;
