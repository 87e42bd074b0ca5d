//! Conversions.

use iced_x86::Mnemonic as M;

use crate::float::{Integer, Real, Rounding, half, narrowed, of_half, to_integer, widened};
use crate::machine::{Execution, Step, Stop};
use crate::state::Lane;

impl Execution<'_> {
    /// Executes a conversion; says whether it is one.
    pub(super) fn converts(&mut self) -> Step<bool> {
        match self.inst.mnemonic() {
            M::Vcvtps2pd => self.unary::<u32, u64>(widened)?,
            M::Vcvtpd2ps => self.unary::<u64, u32>(narrowed)?,
            M::Vcvtph2ps => self.unary::<u16, u32>(of_half)?,
            M::Vcvtps2ph => {
                let rounding = Rounding::of(self.imm8());
                self.unary::<u32, u16>(|a| half(a, rounding))?;
            }
            M::Vcvtdq2ps => self.unary::<i32, u32>(|a| (a as f32).to_bits())?,
            M::Vcvtdq2pd => self.unary::<i32, u64>(|a| f64::from(a).to_bits())?,
            M::Vcvtudq2ps => self.unary::<u32, u32>(|a| (a as f32).to_bits())?,
            M::Vcvtudq2pd => self.unary::<u32, u64>(|a| f64::from(a).to_bits())?,
            M::Vcvtqq2ps => self.unary::<i64, u32>(|a| (a as f32).to_bits())?,
            M::Vcvtqq2pd => self.unary::<i64, u64>(|a| (a as f64).to_bits())?,
            M::Vcvtuqq2ps => self.unary::<u64, u32>(|a| (a as f32).to_bits())?,
            M::Vcvtuqq2pd => self.unary::<u64, u64>(|a| (a as f64).to_bits())?,
            M::Vcvtps2dq => self.integers::<u32, i32>(Rounding::Nearest)?,
            M::Vcvtps2udq => self.integers::<u32, u32>(Rounding::Nearest)?,
            M::Vcvttps2dq => self.integers::<u32, i32>(Rounding::Zero)?,
            M::Vcvttps2udq => self.integers::<u32, u32>(Rounding::Zero)?,
            M::Vcvttps2qq => self.integers::<u32, i64>(Rounding::Zero)?,
            M::Vcvttps2uqq => self.integers::<u32, u64>(Rounding::Zero)?,
            M::Vcvttpd2dq => self.integers::<u64, i32>(Rounding::Zero)?,
            M::Vcvttpd2udq => self.integers::<u64, u32>(Rounding::Zero)?,
            M::Vcvttpd2qq => self.integers::<u64, i64>(Rounding::Zero)?,
            M::Vcvttpd2uqq => self.integers::<u64, u64>(Rounding::Zero)?,
            M::Vcvttss2si => self.integer_of::<u32>()?,
            M::Vcvttsd2si => self.integer_of::<u64>()?,
            M::Vcvtsi2ss => {
                let mut result = self.register(1)?;
                let from = match self.size(2) {
                    8 => self.integer(2)? as i64,
                    4 => self.integer(2)? as i32 as i64,
                    _ => return Err(Stop::Unknown),
                };
                (from as f32).to_bits().put(&mut result, 0);
                self.finish(&result, 16, 1)?;
            }
            M::Vpmovsxbw => self.unary::<i8, i16>(i16::from)?,
            M::Vpmovsxbd => self.unary::<i8, i32>(i32::from)?,
            M::Vpmovsxbq => self.unary::<i8, i64>(i64::from)?,
            M::Vpmovsxwd => self.unary::<i16, i32>(i32::from)?,
            M::Vpmovsxwq => self.unary::<i16, i64>(i64::from)?,
            M::Vpmovsxdq => self.unary::<i32, i64>(i64::from)?,
            M::Vpmovzxbw => self.unary::<u8, u16>(u16::from)?,
            M::Vpmovzxbd => self.unary::<u8, u32>(u32::from)?,
            M::Vpmovzxbq => self.unary::<u8, u64>(u64::from)?,
            M::Vpmovzxwd => self.unary::<u16, u32>(u32::from)?,
            M::Vpmovzxwq => self.unary::<u16, u64>(u64::from)?,
            M::Vpmovzxdq => self.unary::<u32, u64>(u64::from)?,
            M::Vpmovwb => self.unary::<u16, u8>(|a| a as u8)?,
            M::Vpmovdb => self.unary::<u32, u8>(|a| a as u8)?,
            M::Vpmovdw => self.unary::<u32, u16>(|a| a as u16)?,
            M::Vpmovqb => self.unary::<u64, u8>(|a| a as u8)?,
            M::Vpmovqw => self.unary::<u64, u16>(|a| a as u16)?,
            M::Vpmovqd => self.unary::<u64, u32>(|a| a as u32)?,
            M::Vpmovsdb => self.unary::<i32, i8>(|a| a.clamp(i8::MIN.into(), i8::MAX.into()) as i8)?,
            M::Vpmovsdw => self.unary::<i32, i16>(|a| a.clamp(i16::MIN.into(), i16::MAX.into()) as i16)?,
            M::Vpmovusdb => self.unary::<u32, u8>(|a| a.min(u8::MAX.into()) as u8)?,
            M::Vpmovusdw => self.unary::<u32, u16>(|a| a.min(u16::MAX.into()) as u16)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn integers<R: Real, I: Integer>(&mut self, rounding: Rounding) -> Step<()> {
        self.unary::<R, I>(|a| to_integer(a, rounding))
    }

    /// A general register of the first lane.
    fn integer_of<R: Real>(&mut self) -> Step<()> {
        let from = match self.is_memory(1) {
            true => {
                let address = self.address()?;
                self.lanes_at(address, R::BYTES, 1, 1)?
            }
            false => self.register(1)?,
        };
        let a = R::get(&from, 0);
        match self.size(0) {
            8 => self.put_integer(0, to_integer::<R, i64>(a, Rounding::Zero) as u64),
            4 => self.put_integer(0, to_integer::<R, i32>(a, Rounding::Zero) as u32 as u64),
            _ => Err(Stop::Unknown),
        }
    }
}
