//! Bytes of one instruction after the other, by their rows (`rows.rs`).
//!
//! iced-x86's encoder builds a table of all instructions that there are when the first one of a process is made: some 4,800 boxes, which took a tenth
//! of the time that a small graph took to be compiled. It is left to instructions that have no row, and to builds with debug assertions, which
//! compare each instruction with what it writes.

use iced_x86::{Encoder, Instruction, OpKind, Register};

use super::rows::{Prefix, Role, Row, row};
use crate::error::{CodegenError, Result};

/// Where an instruction has what may be written later, counted from its first byte; 0 if it has no such part.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Places {
    pub displacement: usize,
    pub immediate: usize,
}

/// Code, an instruction behind the other.
#[derive(Default)]
pub(super) struct Assembler {
    pub bytes: Vec<u8>,
}

pub(super) fn refused(message: impl std::fmt::Display) -> CodegenError {
    CodegenError::Refused {
        by: "the x86 encoder",
        message: message.to_string(),
    }
}

impl Assembler {
    /// Code of about so many bytes.
    pub(super) fn with_capacity(bytes: usize) -> Assembler {
        Assembler {
            bytes: Vec::with_capacity(bytes),
        }
    }

    /// Appends an instruction. Distances are counted from its end, and code begins at 0.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(super) fn push(&mut self, inst: &Instruction) -> Result<Places> {
        let Some(row) = row(inst.code()) else {
            let (bytes, places) = by_iced(inst, self.bytes.len())?;
            self.bytes.extend_from_slice(&bytes);
            return Ok(places);
        };
        let begin = self.bytes.len();
        let places = Parts::of(row, inst)?.write(&mut self.bytes);
        if cfg!(debug_assertions) {
            let expected = by_iced(inst, begin)?;
            assert_eq!((self.bytes[begin..].to_vec(), places), expected, "{inst:?}");
        }
        Ok(places)
    }
}

/// What iced-x86 makes of an instruction that begins there.
fn by_iced(inst: &Instruction, begin: usize) -> Result<(Vec<u8>, Places)> {
    let mut encoder = Encoder::try_new(64).map_err(refused)?;
    encoder.encode(inst, begin as u64).map_err(refused)?;
    let offsets = encoder.get_constant_offsets();
    let places = Places {
        displacement: offsets.displacement_offset(),
        immediate: offsets.immediate_offset(),
    };
    Ok((encoder.take_buffer(), places))
}

/// Registers of a kind, first and last, with the number of the first.
const KINDS: [(Register, Register, u8); 9] = [
    (Register::RAX, Register::R15, 0),
    (Register::ZMM0, Register::ZMM31, 0),
    (Register::YMM0, Register::YMM31, 0),
    (Register::XMM0, Register::XMM31, 0),
    (Register::K0, Register::K7, 0),
    (Register::EAX, Register::R15D, 0),
    (Register::AL, Register::BL, 0),
    (Register::SPL, Register::R15L, 4),
    (Register::AX, Register::R15W, 0),
];

/// The number of a register among those of its kind; that of none is 0.
fn number(r: Register) -> u8 {
    let kind = KINDS.iter().find(|(first, last, _)| (*first..=*last).contains(&r));
    kind.map_or(0, |(first, _, number)| (r as u32 - *first as u32) as u8 + number)
}

/// What ModRM says beside its register.
#[derive(Clone, Copy)]
enum Rm {
    /// There is no ModRM.
    Absent,
    Register(u8),
    /// Counted from the end of the instruction.
    Pool(i64),
    Memory {
        base: u8,
        index: Option<u8>,
        scale: u8,
        displacement: Displacement,
    },
}

#[derive(Clone, Copy)]
enum Displacement {
    Absent,
    Byte(i8),
    Word(i32),
}

/// An immediate operand.
#[derive(Clone, Copy)]
enum Immediate {
    Absent,
    /// A register in the high bits, which is not written later.
    Register(u8),
    Byte(u8),
    Word(u32),
    Long(u64),
    /// The distance to a place in the code.
    To(u64),
}

/// What is put together to an instruction.
struct Parts<'r> {
    row: &'r Row,
    reg: u8,
    v: u8,
    /// Of the opcode.
    low: u8,
    rm: Rm,
    immediate: Immediate,
    /// The mask of lanes, and whether the others become zero.
    mask: u8,
    zeroing: bool,
    /// Whether a byte register needs REX to be meant.
    rex: bool,
}

impl Parts<'_> {
    fn of<'r>(row: &'r Row, inst: &Instruction) -> Result<Parts<'r>> {
        let mut parts = Parts {
            row,
            reg: row.digit.unwrap_or(0),
            v: 0,
            low: 0,
            rm: match row.digit {
                // An instruction without operands whose last byte is ModRM.
                Some(_) if row.roles[0] == Role::Absent => Rm::Register(0),
                _ => Rm::Absent,
            },
            immediate: Immediate::Absent,
            mask: number(inst.op_mask()),
            zeroing: inst.zeroing_masking(),
            rex: false,
        };
        for (at, role) in (0..).zip(row.roles) {
            let is_register = role != Role::Absent && inst.op_kind(at) == OpKind::Register;
            let register = match is_register {
                true => inst.op_register(at),
                false => Register::None,
            };
            parts.rex |= (Register::SPL..=Register::DIL).contains(&register);
            let register = number(register);
            match role {
                Role::Absent => break,
                Role::Reg => parts.reg = register,
                Role::V => parts.v = register,
                Role::Low => parts.low = register,
                Role::Rm if is_register => parts.rm = Rm::Register(register),
                Role::Rm => parts.rm = memory(row, inst)?,
                Role::Is4 => parts.immediate = Immediate::Register(register),
                Role::Imm8 => parts.immediate = Immediate::Byte(inst.immediate8()),
                Role::Imm32 => parts.immediate = Immediate::Word(inst.immediate32()),
                Role::Imm64 => parts.immediate = Immediate::Long(inst.immediate64()),
                Role::Rel32 => parts.immediate = Immediate::To(inst.near_branch64()),
            }
        }
        Ok(parts)
    }

    fn write(&self, out: &mut Vec<u8>) -> Places {
        let begin = out.len();
        match self.row.prefix {
            Prefix::Legacy => self.legacy(out),
            Prefix::Vex => self.vex(out),
            Prefix::Evex => self.evex(out),
        }
        out.push(self.row.opcode | self.low & 7);
        self.modrm(out);
        let (displacement, immediate) = (self.displacement_bytes(), self.immediate_bytes());
        let behind = out.len() + displacement;
        let end = behind + immediate;
        let place = |at: usize, bytes: usize| if bytes > 0 { at - begin } else { 0 };
        let places = Places {
            displacement: place(out.len(), displacement),
            immediate: match self.immediate {
                Immediate::Register(_) => 0,
                _ => place(behind, immediate),
            },
        };
        let distance = |to: i64| ((to - end as i64) as i32).to_le_bytes();
        match self.rm {
            Rm::Pool(to) => out.extend_from_slice(&distance(to)),
            Rm::Memory { displacement, .. } => match displacement {
                Displacement::Absent => {}
                Displacement::Byte(d) => out.push(d as u8),
                Displacement::Word(d) => out.extend_from_slice(&d.to_le_bytes()),
            },
            Rm::Absent | Rm::Register(_) => {}
        }
        match self.immediate {
            Immediate::Absent => {}
            Immediate::Register(r) => out.push(r << 4),
            Immediate::Byte(v) => out.push(v),
            Immediate::Word(v) => out.extend_from_slice(&v.to_le_bytes()),
            Immediate::Long(v) => out.extend_from_slice(&v.to_le_bytes()),
            Immediate::To(to) => out.extend_from_slice(&distance(to as i64)),
        }
        places
    }

    fn displacement_bytes(&self) -> usize {
        match self.rm {
            Rm::Absent | Rm::Register(_) => 0,
            Rm::Pool(_) => 4,
            Rm::Memory { displacement, .. } => match displacement {
                Displacement::Absent => 0,
                Displacement::Byte(_) => 1,
                Displacement::Word(_) => 4,
            },
        }
    }

    fn immediate_bytes(&self) -> usize {
        match self.immediate {
            Immediate::Absent => 0,
            Immediate::Register(_) | Immediate::Byte(_) => 1,
            Immediate::Word(_) | Immediate::To(_) => 4,
            Immediate::Long(_) => 8,
        }
    }

    /// Bits 3 and 4 of what ModRM and what follows it name: B or the base's, X or the index's.
    fn high(&self) -> (u8, u8) {
        match self.rm {
            // Of a vector the fifth bit is in the place of the index's.
            Rm::Register(r) => (r >> 3 & 1, r >> 4 & 1),
            Rm::Memory { base, index, .. } => (base >> 3 & 1, index.unwrap_or(0) >> 3 & 1),
            Rm::Absent => (self.low >> 3 & 1, 0),
            Rm::Pool(_) => (0, 0),
        }
    }

    fn legacy(&self, out: &mut Vec<u8>) {
        if self.row.mandatory == 1 {
            out.push(0x66);
        }
        let (b, x) = self.high();
        let rex = u8::from(self.row.w) << 3 | (self.reg >> 3 & 1) << 2 | x << 1 | b;
        if rex != 0 || self.rex {
            out.push(0x40 | rex);
        }
        if self.row.map > 0 {
            out.push(0x0f);
        }
    }

    fn vex(&self, out: &mut Vec<u8>) {
        let (b, x) = self.high();
        let r = self.reg >> 3 & 1;
        let last = (!self.v & 15) << 3 | self.row.length << 2 | self.row.mandatory;
        if self.row.map == 1 && !self.row.w && b == 0 && x == 0 {
            out.extend_from_slice(&[0xc5, (r ^ 1) << 7 | last]);
            return;
        }
        let first = (r ^ 1) << 7 | (x ^ 1) << 6 | (b ^ 1) << 5 | self.row.map;
        out.extend_from_slice(&[0xc4, first, u8::from(self.row.w) << 7 | last]);
    }

    fn evex(&self, out: &mut Vec<u8>) {
        let (b, x) = self.high();
        // Of a vector of indices the fifth bit is in the place of the other operand's, which there is none of.
        let fifth = match self.rm {
            Rm::Memory { index: Some(i), .. } if i > 15 => 1,
            _ => self.v >> 4 & 1,
        };
        let (r, r5) = (self.reg >> 3 & 1, self.reg >> 4 & 1);
        let first = (r ^ 1) << 7 | (x ^ 1) << 6 | (b ^ 1) << 5 | (r5 ^ 1) << 4 | self.row.map;
        let second = u8::from(self.row.w) << 7 | (!self.v & 15) << 3 | 4 | self.row.mandatory;
        let third = u8::from(self.zeroing) << 7 | self.row.length << 5 | (fifth ^ 1) << 3 | self.mask;
        out.extend_from_slice(&[0x62, first, second, third]);
    }

    /// ModRM, and the index behind it.
    fn modrm(&self, out: &mut Vec<u8>) {
        let reg = (self.reg & 7) << 3;
        match self.rm {
            Rm::Absent => {}
            Rm::Register(r) => out.push(0xc0 | reg | r & 7),
            Rm::Pool(_) => out.push(reg | 5),
            Rm::Memory {
                base,
                index,
                scale,
                displacement,
            } => {
                let mode = match displacement {
                    Displacement::Absent => 0,
                    Displacement::Byte(_) => 0x40,
                    Displacement::Word(_) => 0x80,
                };
                // `rsp` and `r12` as a base are told by an index.
                if index.is_none() && base & 7 != 4 {
                    out.push(mode | reg | base & 7);
                    return;
                }
                out.push(mode | reg | 4);
                out.push(scale << 6 | (index.unwrap_or(4) & 7) << 3 | base & 7);
            }
        }
    }
}

/// The memory operand of an instruction.
fn memory(row: &Row, inst: &Instruction) -> Result<Rm> {
    if inst.memory_base() == Register::RIP {
        return Ok(Rm::Pool(inst.memory_displacement64() as i64));
    }
    if !(Register::RAX..=Register::R15).contains(&inst.memory_base()) {
        return Err(refused("an address without a base"));
    }
    let base = number(inst.memory_base());
    let index = match inst.memory_index() {
        Register::None => None,
        Register::RSP => return Err(refused("an index that no instruction can have")),
        r => Some(number(r)),
    };
    let displacement = inst.memory_displacement64() as i64;
    let wide = i32::try_from(displacement).map_err(|_| refused("a displacement of more than 2 GiB"))?;
    let times = i64::from(row.times);
    let short = i8::try_from(displacement / times)
        .ok()
        .filter(|_| displacement % times == 0);
    let displacement = match (inst.memory_displ_size(), short) {
        // `rbp` and `r13` as a base without a displacement would be none.
        (0, _) if base & 7 != 5 => Displacement::Absent,
        (0 | 1, Some(short)) => Displacement::Byte(short),
        _ => Displacement::Word(wide),
    };
    Ok(Rm::Memory {
        base,
        index,
        scale: inst.memory_index_scale().trailing_zeros() as u8,
        displacement,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use iced_x86::{Code, MemoryOperand};

    use super::*;
    use crate::wide::rows;

    /// A register of each number class that a name of an operand can mean.
    fn registers(part: &str) -> Vec<Register> {
        use Register as R;
        match part {
            "r8" => vec![R::AL, R::BL, R::SPL, R::DIL, R::R8L, R::R15L],
            "r16" => vec![R::AX, R::DI, R::R13W],
            "r32" => vec![R::EAX, R::EDI, R::R12D],
            "r64" => vec![R::RAX, R::RSP, R::RBP, R::RSI, R::R12, R::R15],
            "xmm" => vec![R::XMM0, R::XMM7, R::XMM9, R::XMM17, R::XMM31],
            "ymm" => vec![R::YMM0, R::YMM7, R::YMM9, R::YMM17, R::YMM31],
            "zmm" => vec![R::ZMM0, R::ZMM7, R::ZMM9, R::ZMM17, R::ZMM31],
            _ => vec![R::K0, R::K1, R::K7],
        }
    }

    fn places() -> Vec<MemoryOperand> {
        use Register as R;
        let displacements = [
            0, 1, -1, 4, 8, 16, 32, 64, 96, -128, 127, 128, 508, 2032, 8128, -8192, 8192, 70_000, -70_000,
        ];
        let mut out = Vec::new();
        for base in [R::RAX, R::RSP, R::RBP, R::RDI, R::R8, R::R12, R::R13] {
            out.push(MemoryOperand::with_base(base));
            for d in displacements {
                out.push(MemoryOperand::with_base_displ(base, d));
            }
            for index in [R::RCX, R::RBP, R::R9, R::R12] {
                for (scale, d) in [(1, 0), (2, 3), (4, 64), (8, -4096)] {
                    out.push(MemoryOperand::with_base_index_scale_displ_size(
                        base, index, scale, d, 1,
                    ));
                    out.push(MemoryOperand::with_base_index_scale(base, index, scale));
                }
            }
        }
        out.push(MemoryOperand::with_base_displ_size(R::RIP, 0x1234, 8));
        out
    }

    fn lanes() -> Vec<MemoryOperand> {
        use Register as R;
        let mut out = Vec::new();
        for base in [R::RBP, R::RSP, R::R13, R::RAX] {
            for index in ["xmm", "ymm", "zmm"].into_iter().flat_map(registers) {
                for (scale, d) in [(1, 0), (4, 4), (8, -512), (2, 1000)] {
                    out.push(MemoryOperand::with_base_index_scale_displ_size(
                        base, index, scale, d, 1,
                    ));
                }
            }
        }
        out
    }

    /// What each operand may be: registers of every kind, memory of every kind, immediates. iced-x86 refuses what does not fit.
    fn candidates(role: Role) -> Vec<Operand> {
        let kinds = ["r8", "r16", "r32", "r64", "xmm", "ymm", "zmm", "k"];
        let all = || kinds.into_iter().flat_map(registers).map(Operand::Register);
        match role {
            Role::Reg | Role::V | Role::Low | Role::Is4 => all().collect(),
            Role::Rm => all()
                .chain(places().into_iter().chain(lanes()).map(Operand::Memory))
                .collect(),
            Role::Imm8 => {
                let bytes = [0, 0x7f, 0x80, 0xff];
                bytes
                    .map(Operand::Byte)
                    .into_iter()
                    .chain(bytes.map(Operand::Extended))
                    .collect()
            }
            Role::Imm32 => [0, 1, -1, i32::MIN].map(Operand::Word).to_vec(),
            Role::Imm64 => [0, u64::MAX, 1 << 40].map(Operand::Long).to_vec(),
            Role::Rel32 => [0, 5, 70_000].map(Operand::To).to_vec(),
            Role::Absent => Vec::new(),
        }
    }

    #[derive(Clone, Copy)]
    enum Operand {
        Register(Register),
        Memory(MemoryOperand),
        Byte(u8),
        /// A byte whose sign goes on.
        Extended(u8),
        Word(i32),
        Long(u64),
        To(u64),
    }

    fn set(inst: &mut Instruction, at: u32, operand: Operand) {
        match operand {
            Operand::Register(r) => {
                inst.set_op_kind(at, OpKind::Register);
                inst.set_op_register(at, r);
            }
            Operand::Memory(m) => {
                inst.set_op_kind(at, OpKind::Memory);
                inst.set_memory_base(m.base);
                inst.set_memory_index(m.index);
                inst.set_memory_index_scale(m.scale);
                inst.set_memory_displ_size(m.displ_size);
                inst.set_memory_displacement64(m.displacement as u64);
            }
            Operand::Byte(v) => {
                inst.set_op_kind(at, OpKind::Immediate8);
                inst.set_immediate8(v);
            }
            Operand::Extended(v) => {
                inst.set_op_kind(at, OpKind::Immediate8to64);
                inst.set_immediate8to64(i64::from(v as i8));
            }
            Operand::Word(v) => {
                inst.set_op_kind(at, OpKind::Immediate32to64);
                inst.set_immediate32to64(i64::from(v));
            }
            Operand::Long(v) => {
                inst.set_op_kind(at, OpKind::Immediate64);
                inst.set_immediate64(v);
            }
            Operand::To(to) => {
                inst.set_op_kind(at, OpKind::NearBranch64);
                inst.set_near_branch64(to);
            }
        }
    }

    fn has_lanes(code: Code) -> bool {
        let name = format!("{code:?}");
        name.contains("gather") || name.contains("scatter")
    }

    /// Whether it is an instruction; if so it is written as iced-x86 does. Memory of lanes always has indices here.
    fn is_right(row: &Row, inst: &Instruction) -> bool {
        if has_lanes(inst.code()) && inst.memory_index() == Register::None {
            return false;
        }
        let Ok((expected, places)) = by_iced(inst, 0) else {
            return false;
        };
        let mut bytes = Vec::new();
        let found = Parts::of(row, inst).expect("iced-x86 takes it").write(&mut bytes);
        assert_eq!((bytes, found), (expected, places), "{inst:?}");
        true
    }

    /// An instruction that iced-x86 takes, found operand by operand: of each the first of its kind.
    fn first(code: Code, row: &Row) -> Option<Vec<Operand>> {
        let choices: Vec<Vec<Operand>> = row
            .roles
            .iter()
            .map(|r| candidates(*r))
            .filter(|c| !c.is_empty())
            .collect();
        // One of each kind is enough to find which kinds fit.
        let mut found = None;
        let mut at = vec![0; choices.len()];
        'all: loop {
            let operands: Vec<Operand> = at.iter().zip(&choices).map(|(&k, c)| c[k]).collect();
            if is_right(row, &instruction(code, &operands)) {
                found = Some(operands);
                break;
            }
            for (k, c) in at.iter_mut().zip(&choices) {
                *k = next_kind(c, *k);
                if *k < c.len() {
                    continue 'all;
                }
                *k = 0;
            }
            break;
        }
        found
    }

    /// The first operand of the next kind.
    fn next_kind(choices: &[Operand], at: usize) -> usize {
        let kind = |o: &Operand| match o {
            Operand::Register(r) if *r <= Register::R15L => 0,
            Operand::Register(r) => number_of_kind(*r),
            Operand::Memory(m) => 1000 + number_of_kind(m.index),
            Operand::Extended(_) => 2000,
            _ => 3000,
        };
        let of = kind(&choices[at]);
        (at..choices.len())
            .find(|&k| kind(&choices[k]) != of)
            .unwrap_or(choices.len())
    }

    fn number_of_kind(r: Register) -> u32 {
        r as u32 - u32::from(number(r))
    }

    fn instruction(code: Code, operands: &[Operand]) -> Instruction {
        let mut inst = Instruction::default();
        inst.set_code(code);
        for (at, operand) in (0..).zip(operands) {
            set(&mut inst, at, *operand);
        }
        // Those whose lanes are chosen by a mask have to have one.
        if has_lanes(code) {
            inst.set_op_mask(Register::K1);
        }
        inst
    }

    #[test]
    fn every_row_is_what_iced_writes() {
        for (code, row) in rows::all() {
            let begin = first(code, row).unwrap_or_else(|| panic!("{code:?} takes no operands"));
            let mut right = 0;
            for (at, role) in row.roles.iter().enumerate().take(begin.len()) {
                for other in candidates(*role) {
                    let mut operands = begin.clone();
                    operands[at] = other;
                    let inst = instruction(code, &operands);
                    right += usize::from(is_right(row, &inst));
                    // Masked, and with high registers in the other places.
                    for (mask, zeroing) in [(Register::K7, false), (Register::K3, true)] {
                        let mut masked = inst;
                        masked.set_op_mask(mask);
                        masked.set_zeroing_masking(zeroing);
                        is_right(row, &masked);
                    }
                    for (place, operand) in operands.iter_mut().enumerate().filter(|(place, _)| *place != at) {
                        if let Operand::Register(r) = operand {
                            let kind = number_of_kind(*r);
                            let of_kind = |o: &Operand| matches!(o, Operand::Register(r) if number_of_kind(*r) == kind);
                            let last = candidates(row.roles[place]).into_iter().rfind(of_kind);
                            *operand = last.unwrap_or(*operand);
                        }
                    }
                    is_right(row, &instruction(code, &operands));
                }
            }
            assert!(right > 0 || begin.is_empty(), "{code:?}");
            assert!(is_right(row, &instruction(code, &begin)), "{code:?}");
        }
    }

    /// No program that compiles kernels has iced-x86's table built.
    #[test]
    fn every_instruction_that_is_named_has_a_row() {
        let texts = [
            include_str!("opcodes.rs"),
            include_str!("vex.rs"),
            include_str!("encode.rs"),
            include_str!("machine.rs"),
            include_str!("scan.rs"),
            include_str!("select/arithmetic.rs"),
            include_str!("select/bytes.rs"),
            include_str!("select/control.rs"),
            include_str!("select/convert.rs"),
            include_str!("select/index.rs"),
            include_str!("select/lanes.rs"),
            include_str!("select/left.rs"),
            include_str!("select/masks.rs"),
            include_str!("select/memory.rs"),
            include_str!("select/mod.rs"),
            include_str!("select/avx2/convert.rs"),
            include_str!("select/avx2/memory.rs"),
            include_str!("select/avx2/mod.rs"),
        ];
        let words = texts
            .iter()
            .flat_map(|t| t.split(|c: char| !c.is_alphanumeric() && c != '_' && c != ':'));
        let words: BTreeSet<&str> = words.map(|w| w.trim_matches(':')).collect();
        // Names without operands are words as well.
        let is_named = |name: &str| {
            let named = words.contains(&format!("Code::{name}")[..]);
            named || name.contains('_') && words.contains(name)
        };
        let lacking: Vec<String> = Code::values()
            .filter(|code| *code != Code::INVALID)
            .map(|code| (code, format!("{code:?}")))
            .filter(|(code, name)| is_named(name) && row(*code).is_none())
            .map(|(_, name)| name)
            .collect();
        assert!(lacking.is_empty(), "{lacking:?} have no rows");
    }
}
