//! Bytes of code whose registers are allocated.
//!
//! Invariants:
//! - The frame is `rbp`, then the registers that are given back, then places of values, aligned to a vector. A function that has no
//!   such places does not move the stack pointer.
//! - Every way out empties the upper halves of vector registers, which older instructions of callers would wait for.
//! - Blocks that hardly ever run stand behind the others, constants behind all code.

use std::cell::RefCell;

use iced_x86::{Code, Formatter, Instruction, IntelFormatter, MemoryOperand, OpKind, Register};
use regalloc2::{Allocation, Block as Label, Edit, Inst as Number, InstOrEdit, Output, PReg, RegClass};

use super::Level;
use super::allocate::Linear;
use super::assemble::{Assembler, refused};
use super::machine::{Arg, Base, Block, End, Inst, Kind, Machine, Place, Size, general};
use super::scan::MADE_AGAIN;
use super::vex;
use crate::code::{CodeReloc, CompiledCode, RelocKind};
use crate::error::Result;
use crate::host::RuntimeFunction;

/// Bytes that code and its constants begin at a multiple of.
const ALIGNMENT: usize = 64;

/// A place in the code that says how far something else is.
struct Fixup {
    /// Of the 4 bytes.
    at: usize,
    /// What they are counted from: the end of the instruction.
    from: usize,
    to: Target,
}

#[derive(Clone, Copy)]
enum Target {
    Block(Block),
    Pool(u32),
}

/// An instruction whose text is asked for.
struct Listed {
    /// Where it begins.
    at: usize,
    inst: Instruction,
    target: Option<Target>,
    /// The number of its statement, from 1 on; 0 if it is of none.
    statement: u32,
}

struct Emitter<'m> {
    machine: &'m Machine,
    out: Assembler,
    fixups: Vec<Fixup>,
    relocs: Vec<CodeReloc>,
    /// The instructions so far, if their text is asked for.
    listed: Option<Vec<Listed>>,
    /// The statement of the instruction that is written next.
    statement: u32,
    /// General registers that are given back.
    saved: Vec<usize>,
    /// The instructions that stand for places on the stack from [`MADE_AGAIN`] on.
    made_again: &'m [Number],
    frame_bytes: i32,
    aligned: bool,
}

/// A register by its number.
fn named(first: Register, number: usize) -> Register {
    first + number as u32
}

fn register(reg: PReg, size: Size) -> Register {
    let n = reg.hw_enc();
    match size {
        // Without a prefix 4 to 7 would be the high bytes of other registers.
        Size::B => match n {
            0..4 => named(Register::AL, n),
            4..8 => named(Register::SPL, n - 4),
            _ => named(Register::R8L, n - 8),
        },
        Size::W => named(Register::AX, n),
        Size::D => named(Register::EAX, n),
        Size::Q => named(Register::RAX, n),
        Size::X => named(Register::XMM0, n),
        Size::Y => named(Register::YMM0, n),
        Size::Z => named(Register::ZMM0, n),
        Size::K => named(Register::K0, n),
    }
}

/// An instruction on a register and a constant, which is still to be set. What iced-x86 makes such instructions with asks its table of all instructions
/// of what kind the constant is.
fn on_register(code: Code, r: Register) -> Instruction {
    let mut inst = Instruction::default();
    inst.set_code(code);
    inst.set_op0_kind(OpKind::Register);
    inst.set_op0_register(r);
    inst
}

/// The code of a function, in the registers and places that `output` says. What `made_again` makes is made where it is read, as
/// [`Scanned`](super::scan::Scanned) says.
///
/// # Errors
/// If the encoder refuses an instruction, which is a bug of this emitter.
pub(super) fn encode(
    machine: &Machine,
    linear: &Linear<'_>,
    output: &Output,
    made_again: &[Number],
    listing: bool,
) -> Result<CompiledCode> {
    let mut used = [false; 16];
    let mut see = |a: &Allocation| {
        if let Some(r) = a.as_reg().filter(|r| r.class() == RegClass::Int) {
            used[r.hw_enc()] = true;
        }
    };
    output.allocs.iter().for_each(&mut see);
    for (_, Edit::Move { from, to }) in &output.edits {
        see(from);
        see(to);
    }
    let saved: Vec<usize> = general::SAVED.into_iter().filter(|n| used[*n]).collect();
    let mut e = Emitter {
        machine,
        out: Assembler::with_capacity(1024),
        fixups: Vec::new(),
        relocs: Vec::new(),
        listed: listing.then(Vec::new),
        statement: 0,
        saved,
        made_again,
        frame_bytes: (output.num_spillslots * 8).next_multiple_of(ALIGNMENT) as i32,
        aligned: output.num_spillslots > 0 || machine.calls,
    };
    e.prologue()?;
    let offsets = e.blocks(linear, output)?;
    e.finish(&offsets)
}

impl<'m> Emitter<'m> {
    /// Bytes written so far.
    fn at(&self) -> usize {
        self.out.bytes.len()
    }

    fn push(&mut self, inst: Instruction, target: Option<Target>) -> Result<()> {
        let begin = self.at();
        let places = self.out.push(&inst)?;
        if let Some(to) = target {
            let inside = match to {
                Target::Block(_) => places.immediate,
                Target::Pool(_) => places.displacement,
            };
            self.fixups.push(Fixup {
                at: begin + inside,
                from: self.at(),
                to,
            });
        }
        if let Some(listed) = &mut self.listed {
            listed.push(Listed {
                at: begin,
                inst,
                target,
                statement: self.statement,
            });
        }
        Ok(())
    }

    /// The form that an instruction is written in on this level.
    fn form(&self, code: Code) -> Result<Code> {
        match self.machine.level {
            Level::Avx512 => Ok(code),
            Level::Avx2 => vex::form(code).ok_or_else(|| refused(format!("{code:?} on AVX2"))),
        }
    }

    /// The copy of a whole vector, its load and its store, with the name of its register.
    fn vector_moves(&self) -> ([Code; 3], Size) {
        match self.machine.level {
            Level::Avx512 => (
                [
                    Code::EVEX_Vmovaps_zmm_k1z_zmmm512,
                    Code::EVEX_Vmovups_zmm_k1z_zmmm512,
                    Code::EVEX_Vmovups_zmmm512_k1z_zmm,
                ],
                Size::Z,
            ),
            Level::Avx2 => (
                [
                    Code::VEX_Vmovaps_ymm_ymmm256,
                    Code::VEX_Vmovups_ymm_ymmm256,
                    Code::VEX_Vmovups_ymmm256_ymm,
                ],
                Size::Y,
            ),
        }
    }

    fn with2(&mut self, code: Code, a: Register, b: Register) -> Result<()> {
        let inst = Instruction::with2(code, a, b).map_err(refused)?;
        self.push(inst, None)
    }

    fn prologue(&mut self) -> Result<()> {
        if self.saved.is_empty() && !self.aligned {
            return Ok(());
        }
        self.push(
            Instruction::with1(Code::Push_r64, Register::RBP).map_err(refused)?,
            None,
        )?;
        self.with2(Code::Mov_r64_rm64, Register::RBP, Register::RSP)?;
        for n in self.saved.clone() {
            let r = named(Register::RAX, n);
            self.push(Instruction::with1(Code::Push_r64, r).map_err(refused)?, None)?;
        }
        if self.aligned {
            let mut sub = on_register(Code::Sub_rm64_imm32, Register::RSP);
            sub.set_op1_kind(OpKind::Immediate32to64);
            sub.set_immediate32to64(i64::from(self.frame_bytes));
            self.push(sub, None)?;
            let mut and = on_register(Code::And_rm64_imm8, Register::RSP);
            and.set_op1_kind(OpKind::Immediate8to64);
            and.set_immediate8to64(-(ALIGNMENT as i64));
            self.push(and, None)?;
        }
        Ok(())
    }

    fn epilogue(&mut self) -> Result<()> {
        self.push(Instruction::with(Code::VEX_Vzeroupper), None)?;
        if !self.saved.is_empty() || self.aligned {
            if self.aligned {
                let top = MemoryOperand::with_base_displ(Register::RBP, -8 * self.saved.len() as i64);
                let lea = Instruction::with2(Code::Lea_r64_m, Register::RSP, top).map_err(refused)?;
                self.push(lea, None)?;
            }
            for n in self.saved.clone().into_iter().rev() {
                let r = named(Register::RAX, n);
                self.push(Instruction::with1(Code::Pop_r64, r).map_err(refused)?, None)?;
            }
            self.push(Instruction::with1(Code::Pop_r64, Register::RBP).map_err(refused)?, None)?;
        }
        self.push(Instruction::with(Code::Retnq), None)
    }

    /// Writes all blocks; returns where each begins.
    fn blocks(&mut self, linear: &Linear<'m>, output: &Output) -> Result<Vec<usize>> {
        let rare = |label: &usize| self.machine.blocks[linear.blocks[*label].0 as usize].rare;
        let (last, first): (Vec<usize>, Vec<usize>) = (0..linear.blocks.len()).partition(rare);
        let order: Vec<usize> = first.into_iter().chain(last).collect();
        // Where nothing but a jump is left of a block, jumps to it go to its target.
        let mut onward: Vec<Option<Block>> = vec![None; self.machine.blocks.len()];
        for (label, block) in linear.blocks.iter().enumerate() {
            let data = &self.machine.blocks[block.0 as usize];
            if let End::Jump(to, _) = &data.end
                && data.insts.is_empty()
                && data.test.is_empty()
                && !output.block_insts_and_edits(linear, Label::new(label)).any(is_move)
            {
                onward[block.0 as usize] = Some(*to);
            }
        }
        let target = |mut b: Block| {
            // Each step goes forward in a tree of control, but for loops without a body, which never end anyway.
            for _ in 0..onward.len() {
                match onward[b.0 as usize] {
                    Some(next) => b = next,
                    None => break,
                }
            }
            b
        };
        let mut skipped = self.made_again.to_vec();
        skipped.sort_unstable();
        let mut offsets = vec![0; self.machine.blocks.len()];
        let visible: Vec<usize> = order
            .into_iter()
            .filter(|label| *label == 0 || onward[linear.blocks[*label].0 as usize].is_none())
            .collect();
        for (at, &label) in visible.iter().enumerate() {
            let block = linear.blocks[label];
            offsets[block.0 as usize] = self.at();
            let next = visible.get(at + 1).map(|l| linear.blocks[*l]);
            for step in output.block_insts_and_edits(linear, Label::new(label)) {
                match step {
                    InstOrEdit::Edit(Edit::Move { from, to }) => match (self.made(*from), self.made(*to)) {
                        (Some(number), _) => {
                            let inst = linear.inst(number).ok_or_else(|| refused("nothing made again"))?;
                            self.inst(inst, &[*to])?;
                        }
                        (None, Some(_)) => {}
                        (None, None) => self.move_(*from, *to)?,
                    },
                    InstOrEdit::Inst(number) if skipped.binary_search(&number).is_ok() => {}
                    InstOrEdit::Inst(number) => match linear.inst(number) {
                        Some(inst) => self.inst(inst, output.inst_allocs(number))?,
                        None => self.end(&self.machine.blocks[block.0 as usize].end, &target, next)?,
                    },
                }
            }
        }
        Ok(offsets)
    }

    fn end(&mut self, end: &End, target: &dyn Fn(Block) -> Block, next: Option<Block>) -> Result<()> {
        match end {
            End::Jump(to, _) => self.jump(Code::Jmp_rel32_64, target(*to), next),
            End::Branch(code, to, otherwise) => {
                let (to, otherwise) = (target(*to), target(*otherwise));
                if Some(to) == next {
                    return self.jump(code.negate_condition_code(), otherwise, next);
                }
                self.jump(*code, to, None)?;
                self.jump(Code::Jmp_rel32_64, otherwise, next)
            }
            End::Return => self.epilogue(),
            End::Open => Err(refused("a block without an end")),
        }
    }

    fn jump(&mut self, code: Code, to: Block, next: Option<Block>) -> Result<()> {
        if Some(to) == next {
            return Ok(());
        }
        // The distance is written once all blocks have their places.
        let mut inst = Instruction::default();
        inst.set_code(code);
        inst.set_op0_kind(OpKind::NearBranch64);
        inst.set_near_branch64(self.at() as u64);
        self.push(inst, Some(Target::Block(to)))
    }

    /// The instruction that makes what is said to be in a place.
    fn made(&self, a: Allocation) -> Option<Number> {
        let slot = a.as_stack()?.index().checked_sub(MADE_AGAIN as usize)?;
        self.made_again.get(slot).copied()
    }

    fn slot(&self, a: Allocation) -> Option<MemoryOperand> {
        let slot = a.as_stack()?.index() as i64;
        Some(MemoryOperand::with_base_displ(Register::RSP, slot * 8))
    }

    fn move_(&mut self, from: Allocation, to: Allocation) -> Result<()> {
        if from == to {
            return Ok(());
        }
        let ([copy, load, store], vector) = self.vector_moves();
        let inst = match (from.as_reg(), to.as_reg()) {
            (Some(from), Some(to)) => {
                let (code, size) = match to.class() {
                    RegClass::Int => (Code::Mov_r64_rm64, Size::Q),
                    RegClass::Float => (copy, vector),
                    RegClass::Vector => (Code::VEX_Kmovq_kr_km64, Size::K),
                };
                Instruction::with2(code, register(to, size), register(from, size))
            }
            (None, Some(to)) => {
                let place = self.slot(from).ok_or_else(|| refused("a move from nowhere"))?;
                let (code, size) = match to.class() {
                    RegClass::Int => (Code::Mov_r64_rm64, Size::Q),
                    RegClass::Float => (load, vector),
                    RegClass::Vector => (Code::VEX_Kmovq_kr_km64, Size::K),
                };
                Instruction::with2(code, register(to, size), place)
            }
            (Some(from), None) => {
                let place = self.slot(to).ok_or_else(|| refused("a move to nowhere"))?;
                let (code, size) = match from.class() {
                    RegClass::Int => (Code::Mov_rm64_r64, Size::Q),
                    RegClass::Float => (store, vector),
                    RegClass::Vector => (Code::VEX_Kmovq_m64_kr, Size::K),
                };
                Instruction::with2(code, place, register(from, size))
            }
            (None, None) => return Err(refused("a move between two places on the stack")),
        };
        self.push(inst.map_err(refused)?, None)
    }

    fn inst(&mut self, inst: &Inst, allocs: &[Allocation]) -> Result<()> {
        self.statement = inst.statement;
        let written = self.inst_of_statement(inst, allocs);
        self.statement = 0;
        written
    }

    fn inst_of_statement(&mut self, inst: &Inst, allocs: &[Allocation]) -> Result<()> {
        let spilled = inst.spilled(self.machine.level);
        let places = RefCell::new(allocs.iter());
        let next_place = || places.borrow_mut().next().copied();
        let mut next = || {
            next_place()
                .and_then(|a| a.as_reg())
                .ok_or_else(|| refused("an operand without a register"))
        };
        let code = match inst.kind {
            Kind::Entry => return Ok(()),
            Kind::Address(f) => return self.address(f, next()?),
            Kind::Call => {
                let callee = register(next()?, Size::Q);
                // Every vector is saved by now; what is called may have no use for wide ones.
                self.push(Instruction::with(Code::VEX_Vzeroupper), None)?;
                let call = Instruction::with1(Code::Call_rm64, callee).map_err(refused)?;
                return self.push(call, None);
            }
            Kind::Plain(code) => self.form(code)?,
        };
        let mut made = Instruction::default();
        made.set_code(code);
        let mut target = None;
        for (position, arg) in inst.args.iter().enumerate() {
            let at = position as u32;
            let set = |made: &mut Instruction, r: Register| {
                made.set_op_kind(at, OpKind::Register);
                made.set_op_register(at, r);
            };
            match arg {
                Arg::Use(_, size) if spilled == Some(position) => {
                    let place = next_place().ok_or_else(|| refused("an operand without a place"))?;
                    match (place.as_reg(), self.slot(place)) {
                        (Some(r), _) => set(&mut made, register(r, *size)),
                        (None, Some(place)) => {
                            made.set_op_kind(at, OpKind::Memory);
                            made.set_memory_base(place.base);
                            if place.displacement != 0 {
                                made.set_memory_displ_size(1);
                                made.set_memory_displacement64(place.displacement as u64);
                            }
                        }
                        (None, None) => return Err(refused("an operand without a place")),
                    }
                }
                Arg::Use(_, size) | Arg::Def(_, size) => set(&mut made, register(next()?, *size)),
                Arg::Update { size, .. } => {
                    next()?;
                    set(&mut made, register(next()?, *size));
                }
                Arg::Same(size) => {
                    let first = allocs.first().and_then(|a| a.as_reg());
                    let first = first.ok_or_else(|| refused("an operand without a register"))?;
                    set(&mut made, register(first, *size));
                }
                Arg::Memory(p) => {
                    made.set_op_kind(at, OpKind::Memory);
                    target = memory(&mut made, p, Size::Q, self.at(), &mut next)?;
                }
                Arg::Lanes(p, size) => {
                    made.set_op_kind(at, OpKind::Memory);
                    target = memory(&mut made, p, *size, self.at(), &mut next)?;
                }
                Arg::Imm8(v) => {
                    made.set_op_kind(at, OpKind::Immediate8);
                    made.set_immediate8(*v);
                }
                Arg::Imm32(v) => {
                    made.set_op_kind(at, OpKind::Immediate32to64);
                    made.set_immediate32to64(i64::from(*v));
                }
                Arg::Imm64(v) => {
                    made.set_op_kind(at, OpKind::Immediate64);
                    made.set_immediate64(*v as u64);
                }
            }
        }
        if let Some((_, zeroing)) = inst.mask {
            if !self.machine.level.has_mask_registers() {
                return Err(refused(format!("{code:?} under a mask")));
            }
            made.set_op_mask(register(next()?, Size::K));
            made.set_zeroing_masking(zeroing);
        }
        self.push(made, target)
    }

    fn address(&mut self, f: RuntimeFunction, to: PReg) -> Result<()> {
        let mut inst = on_register(Code::Mov_r64_imm64, register(to, Size::Q));
        inst.set_op1_kind(OpKind::Immediate64);
        self.push(inst, None)?;
        self.relocs.push(CodeReloc {
            offset: (self.at() - size_of::<u64>()) as u32,
            kind: RelocKind::Absolute8,
            target: f,
            addend: 0,
        });
        Ok(())
    }

    /// Puts constants behind the code and writes all distances.
    fn finish(mut self, offsets: &[usize]) -> Result<CompiledCode> {
        let mut bytes = std::mem::take(&mut self.out.bytes);
        let code_end = bytes.len();
        let pool = code_end.next_multiple_of(ALIGNMENT);
        // `int3`, which no way leads to.
        bytes.resize(pool, 0xcc);
        bytes.extend_from_slice(&self.machine.pool);
        let place = |to: Target| match to {
            Target::Block(b) => offsets[b.0 as usize],
            Target::Pool(at) => pool + at as usize,
        };
        for f in &self.fixups {
            let distance = place(f.to) as i64 - f.from as i64;
            let distance = i32::try_from(distance).map_err(|_| refused("code of more than 2 GiB"))?;
            bytes[f.at..f.at + 4].copy_from_slice(&distance.to_le_bytes());
        }
        let text = self.listed.take().map(|mut listed| {
            for Listed { inst, target, .. } in &mut listed {
                match *target {
                    Some(to @ Target::Block(_)) => inst.set_near_branch64(place(to) as u64),
                    Some(to @ Target::Pool(_)) => inst.set_memory_displacement64(place(to) as u64),
                    None => {}
                }
            }
            print(&listed, &self.machine.statements, &bytes[pool..], code_end, pool)
        });
        Ok(CompiledCode {
            bytes,
            alignment: ALIGNMENT as u64,
            relocs: self.relocs,
            listing: None,
            disasm: text,
        })
    }
}

fn is_move(step: InstOrEdit<'_>) -> bool {
    matches!(step, InstOrEdit::Edit(Edit::Move { from, to }) if from != to)
}

/// Sets the memory operand of an instruction, whose address registers come next.
fn memory(
    made: &mut Instruction,
    place: &Place,
    index: Size,
    here: usize,
    next: &mut dyn FnMut() -> Result<PReg>,
) -> Result<Option<Target>> {
    let target = match place.base {
        Base::Reg(_) => {
            made.set_memory_base(register(next()?, Size::Q));
            None
        }
        Base::Pool(at) => {
            made.set_memory_base(Register::RIP);
            Some(Target::Pool(at + place.displacement as u32))
        }
    };
    if let Some((_, scale)) = place.index {
        made.set_memory_index(register(next()?, index));
        made.set_memory_index_scale(u32::from(scale));
    }
    match target {
        // The distance is written once the constants have their place.
        Some(_) => {
            made.set_memory_displ_size(8);
            made.set_memory_displacement64(here as u64);
        }
        None if place.displacement != 0 => {
            made.set_memory_displ_size(1);
            made.set_memory_displacement64(i64::from(place.displacement) as u64);
        }
        None => {}
    }
    Ok(target)
}

/// Where statements begin in the text of code.
const STATEMENT_COLUMN: usize = 64;

/// The text of code, an instruction a line, each statement beside the first instruction of its own, and of the constants behind it.
fn print(listed: &[Listed], statements: &[String], pool: &[u8], code_end: usize, pool_at: usize) -> String {
    let mut formatter = IntelFormatter::new();
    formatter.options_mut().set_rip_relative_addresses(false);
    formatter.options_mut().set_space_after_operand_separator(true);
    formatter.options_mut().set_branch_leading_zeros(false);
    formatter.options_mut().set_hex_prefix("0x");
    formatter.options_mut().set_hex_suffix("");
    let mut text = String::new();
    let mut last = 0;
    for Listed {
        at, inst, statement, ..
    } in listed
    {
        let mut line = String::new();
        formatter.format(inst, &mut line);
        let line = format!("{at:>6x}: {line}");
        // What is of none, as copies between registers, is taken to be of the statement before it.
        let begins = *statement != 0 && std::mem::replace(&mut last, *statement) != *statement;
        match statements.get((*statement as usize).wrapping_sub(1)).filter(|_| begins) {
            Some(of) => text.push_str(&format!("{line:<STATEMENT_COLUMN$}; {of}\n")),
            None => text.push_str(&format!("{line}\n")),
        }
    }
    text.push_str(&format!("; {code_end} bytes of code\n"));
    for (at, bytes) in pool.chunks(16).enumerate() {
        let words: Vec<String> = bytes
            .chunks(4)
            .map(|w| w.iter().rev().map(|b| format!("{b:02x}")).collect())
            .collect();
        text.push_str(&format!("{:>6x}: {}\n", pool_at + 16 * at, words.join(" ")));
    }
    text
}
