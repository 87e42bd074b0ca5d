//! Instructions on vectors and masks.
//!
//! Invariant: a vector that is written is written whole: what lies beyond the instruction's width becomes zero, and of what a mask
//! leaves out the lanes stay or become zero, as the instruction says.

mod convert;
mod masks;
mod moves;
mod permute;

use iced_x86::{Mnemonic, Register};

use crate::float::{Real, arithmetic, compares, maximum, minimum, multiply_add, range, rounded, scaled, square_root};
use crate::machine::{Execution, Step, Stop, vector_number};
use crate::state::{Lane, Vector};

impl Execution<'_> {
    /// Executes such an instruction.
    pub(crate) fn vector(&mut self) -> Step<()> {
        use Mnemonic as M;
        let imm = match self.inst.op_count() {
            0 => 0,
            n if self.inst.op_kind(n - 1) == iced_x86::OpKind::Immediate8 => self.imm8(),
            _ => 0,
        };
        match self.inst.mnemonic() {
            M::Vaddps => self.binary::<u32>(|a, b| arithmetic(a, b, Real::sum)),
            M::Vaddpd => self.binary::<u64>(|a, b| arithmetic(a, b, Real::sum)),
            M::Vsubps => self.binary::<u32>(|a, b| arithmetic(a, b, Real::difference)),
            M::Vsubpd => self.binary::<u64>(|a, b| arithmetic(a, b, Real::difference)),
            M::Vmulps => self.binary::<u32>(|a, b| arithmetic(a, b, Real::product)),
            M::Vmulpd => self.binary::<u64>(|a, b| arithmetic(a, b, Real::product)),
            M::Vdivps => self.binary::<u32>(|a, b| arithmetic(a, b, Real::quotient)),
            M::Vdivpd => self.binary::<u64>(|a, b| arithmetic(a, b, Real::quotient)),
            M::Vmaxps => self.binary::<u32>(maximum),
            M::Vmaxpd => self.binary::<u64>(maximum),
            M::Vminps => self.binary::<u32>(minimum),
            M::Vminpd => self.binary::<u64>(minimum),
            M::Vsqrtps => self.unary::<u32, u32>(square_root),
            M::Vsqrtpd => self.unary::<u64, u64>(square_root),
            M::Vrndscaleps => self.unary::<u32, u32>(|a| rounded(a, imm)),
            M::Vrndscalepd => self.unary::<u64, u64>(|a| rounded(a, imm)),
            M::Vroundps => self.unary::<u32, u32>(|a| rounded(a, imm & 15)),
            M::Vroundpd => self.unary::<u64, u64>(|a| rounded(a, imm & 15)),
            M::Vrangeps => self.binary::<u32>(|a, b| range(a, b, imm)),
            M::Vrangepd => self.binary::<u64>(|a, b| range(a, b, imm)),
            M::Vscalefps => self.binary::<u32>(scaled),
            M::Vfmadd213ps => self.ternary::<u32>(|d, a, b| multiply_add(a, d, b)),
            M::Vfmadd213pd => self.ternary::<u64>(|d, a, b| multiply_add(a, d, b)),
            M::Vfmadd231ps => self.ternary::<u32>(|d, a, b| multiply_add(a, b, d)),
            M::Vfmadd231pd => self.ternary::<u64>(|d, a, b| multiply_add(a, b, d)),
            M::Vcmpps => self.compare::<u32>(|a, b| compares(a, b, imm)),
            M::Vcmppd => self.compare::<u64>(|a, b| compares(a, b, imm)),
            M::Vpaddb => self.binary::<u8>(u8::wrapping_add),
            M::Vpaddw => self.binary::<u16>(u16::wrapping_add),
            M::Vpaddd => self.binary::<u32>(u32::wrapping_add),
            M::Vpaddq => self.binary::<u64>(u64::wrapping_add),
            M::Vpsubb => self.binary::<u8>(u8::wrapping_sub),
            M::Vpsubw => self.binary::<u16>(u16::wrapping_sub),
            M::Vpsubd => self.binary::<u32>(u32::wrapping_sub),
            M::Vpsubq => self.binary::<u64>(u64::wrapping_sub),
            M::Vpmullw => self.binary::<u16>(u16::wrapping_mul),
            M::Vpmulld => self.binary::<u32>(u32::wrapping_mul),
            M::Vpmullq => self.binary::<u64>(u64::wrapping_mul),
            M::Vpmuludq => self.binary::<u64>(|a, b| (a & 0xffff_ffff) * (b & 0xffff_ffff)),
            M::Vpabsb => self.unary::<i8, i8>(i8::wrapping_abs),
            M::Vpabsw => self.unary::<i16, i16>(i16::wrapping_abs),
            M::Vpabsd => self.unary::<i32, i32>(i32::wrapping_abs),
            M::Vpabsq => self.unary::<i64, i64>(i64::wrapping_abs),
            M::Vpmaxsb => self.binary::<i8>(i8::max),
            M::Vpmaxsw => self.binary::<i16>(i16::max),
            M::Vpmaxsd => self.binary::<i32>(i32::max),
            M::Vpmaxsq => self.binary::<i64>(i64::max),
            M::Vpmaxub => self.binary::<u8>(u8::max),
            M::Vpmaxuw => self.binary::<u16>(u16::max),
            M::Vpmaxud => self.binary::<u32>(u32::max),
            M::Vpmaxuq => self.binary::<u64>(u64::max),
            M::Vpminsb => self.binary::<i8>(i8::min),
            M::Vpminsw => self.binary::<i16>(i16::min),
            M::Vpminsd => self.binary::<i32>(i32::min),
            M::Vpminsq => self.binary::<i64>(i64::min),
            M::Vpminub => self.binary::<u8>(u8::min),
            M::Vpminuw => self.binary::<u16>(u16::min),
            M::Vpminud => self.binary::<u32>(u32::min),
            M::Vpminuq => self.binary::<u64>(u64::min),
            M::Vpand | M::Vpandd => self.binary::<u32>(|a, b| a & b),
            M::Vpandq => self.binary::<u64>(|a, b| a & b),
            M::Vpandn => self.binary::<u64>(|a, b| !a & b),
            M::Vpor | M::Vpord => self.binary::<u32>(|a, b| a | b),
            M::Vpxor | M::Vpxord => self.binary::<u32>(|a, b| a ^ b),
            M::Vpxorq => self.binary::<u64>(|a, b| a ^ b),
            M::Vpmaddwd => self.binary::<u32>(pairs),
            M::Vpdpbusd => self.ternary::<u32>(|d, a, b| d.wrapping_add(fours(a, b))),
            M::Vpsllw => self.unary::<u16, u16>(|a| a.checked_shl(imm.into()).unwrap_or(0)),
            M::Vpslld => self.unary::<u32, u32>(|a| a.checked_shl(imm.into()).unwrap_or(0)),
            M::Vpsllq => self.unary::<u64, u64>(|a| a.checked_shl(imm.into()).unwrap_or(0)),
            M::Vpsrlw => self.unary::<u16, u16>(|a| a.checked_shr(imm.into()).unwrap_or(0)),
            M::Vpsrld => self.unary::<u32, u32>(|a| a.checked_shr(imm.into()).unwrap_or(0)),
            M::Vpsrlq => self.unary::<u64, u64>(|a| a.checked_shr(imm.into()).unwrap_or(0)),
            M::Vpsraw => self.unary::<i16, i16>(|a| a >> imm.min(15)),
            M::Vpsrad => self.unary::<i32, i32>(|a| a >> imm.min(31)),
            M::Vpsraq => self.unary::<i64, i64>(|a| a >> imm.min(63)),
            M::Vpsllvw => self.binary::<u16>(|a, n| a.checked_shl(n.into()).unwrap_or(0)),
            M::Vpsllvd => self.binary::<u32>(|a, n| a.checked_shl(n).unwrap_or(0)),
            M::Vpsllvq => self.binary::<u64>(|a, n| if n > 63 { 0 } else { a << n }),
            M::Vpsrlvw => self.binary::<u16>(|a, n| a.checked_shr(n.into()).unwrap_or(0)),
            M::Vpsrlvd => self.binary::<u32>(|a, n| a.checked_shr(n).unwrap_or(0)),
            M::Vpsrlvq => self.binary::<u64>(|a, n| if n > 63 { 0 } else { a >> n }),
            M::Vpsravw => self.binary::<u16>(|a, n| (a as i16 >> n.min(15)) as u16),
            M::Vpsravd => self.binary::<u32>(|a, n| (a as i32 >> n.min(31)) as u32),
            M::Vpsravq => self.binary::<u64>(|a, n| (a as i64 >> n.min(63)) as u64),
            M::Vpcmpeqb => self.compare::<u8>(|a, b| a == b),
            M::Vpcmpeqw => self.compare::<u16>(|a, b| a == b),
            M::Vpcmpeqd => self.compare::<u32>(|a, b| a == b),
            M::Vpcmpeqq => self.compare::<u64>(|a, b| a == b),
            M::Vpcmpgtb => self.compare::<i8>(|a, b| a > b),
            M::Vpcmpgtw => self.compare::<i16>(|a, b| a > b),
            M::Vpcmpgtd => self.compare::<i32>(|a, b| a > b),
            M::Vpcmpgtq => self.compare::<i64>(|a, b| a > b),
            M::Vpcmpb => self.compare::<i8>(|a, b| ordered(a, b, imm)),
            M::Vpcmpw => self.compare::<i16>(|a, b| ordered(a, b, imm)),
            M::Vpcmpd => self.compare::<i32>(|a, b| ordered(a, b, imm)),
            M::Vpcmpq => self.compare::<i64>(|a, b| ordered(a, b, imm)),
            M::Vpcmpub => self.compare::<u8>(|a, b| ordered(a, b, imm)),
            M::Vpcmpuw => self.compare::<u16>(|a, b| ordered(a, b, imm)),
            M::Vpcmpud => self.compare::<u32>(|a, b| ordered(a, b, imm)),
            M::Vpcmpuq => self.compare::<u64>(|a, b| ordered(a, b, imm)),
            M::Vptestmb => self.compare::<u8>(|a, b| a & b != 0),
            M::Vptestmw => self.compare::<u16>(|a, b| a & b != 0),
            M::Vptestmd => self.compare::<u32>(|a, b| a & b != 0),
            M::Vptestmq => self.compare::<u64>(|a, b| a & b != 0),
            M::Vzeroupper => {
                self.state.vectors[..16].iter_mut().for_each(|v| v.0[16..].fill(0));
                Ok(())
            }
            _ => {
                let known = self.converts()? || self.moves()? || self.permutes()? || self.on_masks()?;
                if known { Ok(()) } else { Err(Stop::Unknown) }
            }
        }
    }

    /// Bytes of an operand.
    fn size(&self, operand: u32) -> usize {
        match self.is_memory(operand) {
            true => self.inst.memory_size().size(),
            false => self.inst.op_register(operand).size(),
        }
    }

    /// The mask of an instruction with so many lanes; all, where it has none.
    fn mask(&self, lanes: usize) -> u64 {
        let all = u64::MAX >> (64 - lanes);
        match self.inst.op_mask() {
            Register::None => all,
            k => self.state.masks[k.number()] & all,
        }
    }

    /// The lanes of memory that are read: those of the mask, but for instructions that read all of it whatever the mask (type E4NF of the
    /// manual's exceptions; permutations, which do so too, read [`Execution::whole`] operands).
    fn read_mask(&self, lanes: usize) -> u64 {
        match self.inst.mnemonic() {
            Mnemonic::Vpmaddwd => u64::MAX,
            _ => self.mask(lanes),
        }
    }

    /// A vector of a register or memory, of which lanes without a bit in the mask are not read.
    fn lanes(&mut self, operand: u32, lane_bytes: usize, mask: u64) -> Step<Vector> {
        if !self.is_memory(operand) {
            return self.register(operand);
        }
        let lanes = self.size(operand) / lane_bytes;
        let address = self.address()?;
        self.lanes_at(address, lane_bytes, lanes, mask)
    }

    fn lanes_at(&mut self, address: u64, lane_bytes: usize, lanes: usize, mask: u64) -> Step<Vector> {
        let mut v = Vector::default();
        let all = u64::MAX >> (64 - lanes);
        if mask & all == all {
            self.load(address, &mut v.0[..lanes * lane_bytes])?;
            return Ok(v);
        }
        for i in (0..lanes).filter(|i| mask >> i & 1 != 0) {
            let at = i * lane_bytes;
            self.load(address.wrapping_add(at as u64), &mut v.0[at..at + lane_bytes])?;
        }
        Ok(v)
    }

    /// Writes a result of so many lanes to the first operand, under the instruction's mask.
    fn finish(&mut self, result: &Vector, lane_bytes: usize, lanes: usize) -> Step<()> {
        let mask = self.mask(lanes);
        if self.is_memory(0) {
            let address = self.address()?;
            return self.store_lanes(address, result, (lane_bytes, lanes), mask);
        }
        let number = vector_number(self.inst.op_register(0))?;
        let mut to = self.state.vectors[number];
        for i in 0..lanes {
            let lane = i * lane_bytes..(i + 1) * lane_bytes;
            match mask >> i & 1 != 0 {
                true => to.0[lane.clone()].copy_from_slice(&result.0[lane]),
                false if self.inst.zeroing_masking() => to.0[lane].fill(0),
                false => {}
            }
        }
        to.0[lanes * lane_bytes..].fill(0);
        self.state.vectors[number] = to;
        Ok(())
    }

    fn store_lanes(&mut self, address: u64, v: &Vector, (bytes, lanes): (usize, usize), mask: u64) -> Step<()> {
        let all = u64::MAX >> (64 - lanes);
        if mask & all == all {
            return self.store(address, &v.0[..lanes * bytes]);
        }
        for i in (0..lanes).filter(|i| mask >> i & 1 != 0) {
            let at = i * bytes;
            self.store(address.wrapping_add(at as u64), &v.0[at..at + bytes])?;
        }
        Ok(())
    }

    /// Each lane by itself, of one operand; where the widths of lanes differ, as many as both have.
    fn unary<S: Lane, D: Lane>(&mut self, of: impl Fn(S) -> D) -> Step<()> {
        let lanes = (self.size(0) / D::BYTES).min(self.size(1) / S::BYTES);
        let mask = self.mask(lanes);
        let from = self.lanes(1, S::BYTES, mask)?;
        let mut result = Vector::default();
        for i in 0..lanes {
            of(S::get(&from, i)).put(&mut result, i);
        }
        self.finish(&result, D::BYTES, lanes)
    }

    /// Each lane by itself, of two operands.
    fn binary<T: Lane>(&mut self, of: impl Fn(T, T) -> T) -> Step<()> {
        let lanes = self.size(0) / T::BYTES;
        let (a, b) = (self.register(1)?, self.lanes(2, T::BYTES, self.read_mask(lanes))?);
        let mut result = Vector::default();
        for i in 0..lanes {
            of(T::get(&a, i), T::get(&b, i)).put(&mut result, i);
        }
        self.finish(&result, T::BYTES, lanes)
    }

    /// Each lane by itself, of the first operand, which is written too, and two others.
    fn ternary<T: Lane>(&mut self, of: impl Fn(T, T, T) -> T) -> Step<()> {
        let lanes = self.size(0) / T::BYTES;
        let (d, a) = (self.register(0)?, self.register(1)?);
        let b = self.lanes(2, T::BYTES, self.mask(lanes))?;
        let mut result = Vector::default();
        for i in 0..lanes {
            of(T::get(&d, i), T::get(&a, i), T::get(&b, i)).put(&mut result, i);
        }
        self.finish(&result, T::BYTES, lanes)
    }

    /// Whether each lane of two operands holds: bits of a mask register, of which those that the instruction's mask leaves out are zero, or
    /// lanes of ones.
    fn compare<T: Lane>(&mut self, of: impl Fn(T, T) -> bool) -> Step<()> {
        let lanes = self.size(1) / T::BYTES;
        let mask = self.mask(lanes);
        let (a, b) = (self.register(1)?, self.lanes(2, T::BYTES, mask)?);
        let bits = (0..lanes).fold(0, |bits, i| bits | u64::from(of(T::get(&a, i), T::get(&b, i))) << i);
        if self.inst.op_register(0).is_k() {
            let to = self.mask_register(0)?;
            self.state.masks[to] = bits & mask;
            return Ok(());
        }
        let mut result = Vector::default();
        for i in (0..lanes).filter(|i| bits >> i & 1 != 0) {
            result.0[i * T::BYTES..(i + 1) * T::BYTES].fill(0xff);
        }
        self.finish(&result, T::BYTES, lanes)
    }
}

/// A predicate of `vpcmp`.
fn ordered<T: Ord>(a: T, b: T, predicate: u8) -> bool {
    match predicate & 7 {
        0 => a == b,
        1 => a < b,
        2 => a <= b,
        3 => false,
        4 => a != b,
        5 => a >= b,
        6 => a > b,
        _ => true,
    }
}

/// Products of 16-bit integers, added up by two.
fn pairs(a: u32, b: u32) -> u32 {
    let product = |shift: u32| i32::from((a >> shift) as i16) * i32::from((b >> shift) as i16);
    product(0).wrapping_add(product(16)) as u32
}

/// Products of bytes without sign and bytes with one, added up by four.
fn fours(a: u32, b: u32) -> u32 {
    let (a, b) = (a.to_le_bytes(), b.to_le_bytes().map(|b| b as i8));
    (0..4).map(|i| i32::from(a[i]) * i32::from(b[i])).sum::<i32>() as u32
}
