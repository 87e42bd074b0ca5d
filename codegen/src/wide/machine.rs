//! Machine code whose registers are not allocated yet.
//!
//! Invariants:
//! - Each [`Reg`] is written once: by an instruction, or as the parameter of a block. What an instruction updates in place is two
//!   registers, the one before and the one behind ([`Arg::Update`]), which get the same place.
//! - Blocks end in a jump, a branch or a return. What a block is entered with comes by jumps alone: both targets of a branch have no
//!   parameters and no other predecessor.
//! - Instructions may still be appended to a block that was left, in front of its end: what is computed there is seen from
//!   everywhere that the block dominates.

use iced_x86::Code;
use regalloc2::{Operand, OperandConstraint, OperandKind, OperandPos, PReg, PRegSet, RegClass, VReg};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::{Level, vex};
use crate::host::RuntimeFunction;

/// A register before allocation.
pub(super) type Reg = VReg;

/// What a register is named as in an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Size {
    /// The low byte of a general register.
    B,
    /// The low 16 bits of one.
    W,
    /// The low 32 bits of one.
    D,
    /// A general register.
    Q,
    /// 128 bits of a vector register.
    X,
    /// 256 bits of one.
    Y,
    /// 512 bits of one.
    Z,
    /// A mask register.
    K,
}

impl Size {
    /// The names of vectors by width.
    pub(super) const VECTORS: [Size; 3] = [Size::X, Size::Y, Size::Z];
}

/// Where a memory operand begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Base {
    /// An address in a register.
    Reg(Reg),
    /// So many bytes into the constants.
    Pool(u32),
}

/// A memory operand: `base + index * scale + displacement`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    pub base: Base,
    pub index: Option<(Reg, u8)>,
    pub displacement: i32,
}

impl Place {
    pub(super) fn at(base: Reg, displacement: i32) -> Place {
        Place {
            base: Base::Reg(base),
            index: None,
            displacement,
        }
    }
}

/// An operand of an instruction, in Intel's order.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Arg {
    /// A register that is read.
    Use(Reg, Size),
    /// A register that is written.
    Def(Reg, Size),
    /// A register that is read and written.
    Update {
        /// What it holds before.
        from: Reg,
        /// What it holds behind.
        to: Reg,
        /// Its name.
        size: Size,
    },
    /// The same register as operand 0, whatever it holds: as in `xor r, r`.
    Same(Size),
    /// Memory.
    Memory(Place),
    /// Memory of each lane: the index is a vector of that name, which the instruction must not write while it reads.
    Lanes(Place, Size),
    /// An immediate of 8 bits.
    Imm8(u8),
    /// An immediate of 32 bits, sign-extended to the operand's size.
    Imm32(i32),
    /// An immediate of 64 bits.
    Imm64(i64),
}

/// What an instruction is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// An instruction of the machine.
    Plain(Code),
    /// The address of a host function, written into a general register.
    Address(RuntimeFunction),
    /// A call of the address in a general register.
    Call,
    /// Defines what a function is entered with.
    Entry,
}

/// An instruction.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Inst {
    pub kind: Kind,
    pub args: SmallVec<[Arg; 4]>,
    /// The mask that lanes are written by, and whether the others become zero; else they stay.
    pub mask: Option<(Reg, bool)>,
    /// What the mask becomes, if the instruction uses it up.
    pub used_up: Option<Reg>,
    /// Registers that it reads and writes without naming them.
    pub fixed: SmallVec<[Operand; 3]>,
    /// Registers that it destroys.
    pub clobbers: PRegSet,
    /// The statement that it is of, by its number among [`Machine::statements`] from 1 on; 0 for none.
    pub statement: u32,
}

impl Inst {
    pub(super) fn new(code: Code, args: &[Arg]) -> Inst {
        Inst::of(Kind::Plain(code), args)
    }

    pub(super) fn of(kind: Kind, args: &[Arg]) -> Inst {
        Inst {
            kind,
            args: SmallVec::from_slice(args),
            mask: None,
            used_up: None,
            fixed: SmallVec::new(),
            clobbers: PRegSet::empty(),
            statement: 0,
        }
    }

    /// The instruction, which writes only lanes whose mask is set; the others become zero.
    pub(super) fn zeroing(mut self, mask: Reg) -> Inst {
        self.mask = Some((mask, true));
        self
    }

    /// The instruction, which writes only lanes whose mask is set.
    pub(super) fn masked(mut self, mask: Reg) -> Inst {
        self.mask = Some((mask, false));
        self
    }

    /// The position among its operands of a vector that it reads from the stack as well as from a register.
    ///
    /// With few registers constants of loops are there for the most part. With many nothing is.
    pub(super) fn spilled(&self, level: Level) -> Option<usize> {
        let Kind::Plain(code) = self.kind else { return None };
        if level != Level::Avx2 || !vex::takes_memory(code) {
            return None;
        }
        if self.args.iter().any(|a| matches!(a, Arg::Memory(_) | Arg::Lanes(..))) {
            return None;
        }
        let reads = |a: &Arg| matches!(a, Arg::Use(_, Size::X | Size::Y));
        self.args.iter().rposition(reads)
    }

    /// Whether it makes one value of constants alone, whenever it is executed.
    pub(super) fn is_constant(&self) -> bool {
        let of_nothing = |a: &Arg| match a {
            Arg::Memory(p) => matches!(p.base, Base::Pool(_)) && p.index.is_none(),
            Arg::Same(_) | Arg::Imm8(_) => true,
            _ => false,
        };
        let [Arg::Def(..), rest @ ..] = &self.args[..] else {
            return false;
        };
        let plain = matches!(self.kind, Kind::Plain(_)) && self.mask.is_none() && self.fixed.is_empty();
        plain && self.clobbers == PRegSet::empty() && rest.iter().all(of_nothing)
    }

    /// Every register that it reads and writes, in the order in which the encoder asks for their places.
    pub(super) fn operands(&self, level: Level, out: &mut Vec<Operand>) {
        let spilled = self.spilled(level);
        let place = |p: &Place, out: &mut Vec<Operand>| {
            if let Base::Reg(r) = p.base {
                out.push(Operand::reg_use(r));
            }
            if let Some((r, _)) = p.index {
                out.push(Operand::reg_use(r));
            }
        };
        let first = out.len();
        for (at, arg) in self.args.iter().enumerate() {
            match arg {
                Arg::Use(r, _) if spilled == Some(at) => {
                    let (any, use_) = (OperandConstraint::Any, OperandKind::Use);
                    out.push(Operand::new(*r, any, use_, OperandPos::Early));
                }
                Arg::Use(r, _) => out.push(Operand::reg_use(*r)),
                Arg::Def(r, _) => out.push(Operand::reg_def(*r)),
                Arg::Update { from, to, .. } => {
                    let at = out.len() - first;
                    out.push(Operand::reg_use(*from));
                    out.push(Operand::reg_reuse_def(*to, at));
                }
                Arg::Memory(p) => place(p, out),
                Arg::Lanes(p, _) => {
                    if let Base::Reg(r) = p.base {
                        out.push(Operand::reg_use(r));
                    }
                    if let Some((r, _)) = p.index {
                        out.push(Operand::reg_use_at_end(r));
                    }
                }
                Arg::Same(_) | Arg::Imm8(_) | Arg::Imm32(_) | Arg::Imm64(_) => {}
            }
        }
        if let Some((mask, _)) = self.mask {
            let at = out.len() - first;
            out.push(Operand::reg_use(mask));
            if let Some(behind) = self.used_up {
                out.push(Operand::reg_reuse_def(behind, at));
            }
        }
        out.extend_from_slice(&self.fixed);
    }
}

/// A number of a block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(super) struct Block(pub u32);

/// How a block ends.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum End {
    /// It is not finished.
    Open,
    /// Goes on with a block, which gets these parameters.
    Jump(Block, SmallVec<[Reg; 4]>),
    /// Goes on with the first block if the flags say so, else with the second.
    Branch(Code, Block, Block),
    /// Leaves the function.
    Return,
}

/// What runs one after another.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct BlockData {
    pub insts: Vec<Inst>,
    /// What sets the flags that the end looks at; behind all instructions.
    pub test: SmallVec<[Inst; 2]>,
    pub end: End,
    pub params: SmallVec<[Reg; 4]>,
    /// Whether it hardly ever runs, so that it belongs behind the others.
    pub rare: bool,
}

/// The code of a function.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Machine {
    /// What it is for.
    pub level: Level,
    pub blocks: Vec<BlockData>,
    /// Blocks in the order in which they were begun.
    pub order: Vec<Block>,
    /// Constants in memory.
    pub pool: Vec<u8>,
    pooled: FxHashMap<Vec<u8>, u32>,
    pub registers: u32,
    /// Whether it calls anything.
    pub calls: bool,
    /// The text of the statements whose instructions there are, if it is asked for.
    pub statements: Vec<String>,
}

impl Machine {
    /// No code yet.
    pub(super) fn new(level: Level) -> Machine {
        Machine {
            level,
            blocks: Vec::new(),
            order: Vec::new(),
            pool: Vec::new(),
            pooled: FxHashMap::default(),
            registers: 0,
            calls: false,
            statements: Vec::new(),
        }
    }

    /// A block that is not begun yet.
    pub(super) fn block(&mut self, rare: bool) -> Block {
        self.blocks.push(BlockData {
            insts: Vec::new(),
            test: SmallVec::new(),
            end: End::Open,
            params: SmallVec::new(),
            rare,
        });
        Block(self.blocks.len() as u32 - 1)
    }

    pub(super) fn data(&mut self, b: Block) -> &mut BlockData {
        &mut self.blocks[b.0 as usize]
    }

    /// A fresh register.
    pub(super) fn reg(&mut self, class: RegClass) -> Reg {
        self.registers += 1;
        VReg::new(self.registers as usize - 1, class)
    }

    /// Where such bytes are among the constants, aligned to their number, which is a power of two.
    pub(super) fn constant(&mut self, bytes: Vec<u8>) -> u32 {
        if let Some(at) = self.pooled.get(&bytes) {
            return *at;
        }
        let at = self.pool.len().next_multiple_of(bytes.len());
        self.pool.resize(at, 0);
        self.pool.extend_from_slice(&bytes);
        self.pooled.insert(bytes, at as u32);
        at as u32
    }
}

/// General registers by their number in instructions.
pub(super) mod general {
    use super::{PReg, RegClass};

    pub(in crate::wide) const fn reg(number: usize) -> PReg {
        PReg::new(number, RegClass::Int)
    }
    pub(in crate::wide) const RAX: PReg = reg(0);
    pub(in crate::wide) const RCX: PReg = reg(1);
    pub(in crate::wide) const RDX: PReg = reg(2);
    pub(in crate::wide) const RSI: PReg = reg(6);
    pub(in crate::wide) const RDI: PReg = reg(7);
    pub(in crate::wide) const R8: PReg = reg(8);
    pub(in crate::wide) const R9: PReg = reg(9);
    /// Registers that a function gives back as it found them, `rbp` apart.
    pub(in crate::wide) const SAVED: [usize; 5] = [3, 12, 13, 14, 15];
}
