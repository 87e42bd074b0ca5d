//! Which register each value is in: the code as allocators see it. `scan.rs` has most kernels, regalloc2 the others.

use std::sync::OnceLock;

use regalloc2::checker::Checker;
use regalloc2::{
    Algorithm, Block as Label, Ctx, Function, Inst as Number, InstRange, MachineEnv, Operand, Output, PReg, PRegSet,
    RegClass, RegallocOptions, VReg,
};
use smallvec::SmallVec;

use super::Level;
use super::machine::{Block, End, Inst, Kind, Machine, general};
use crate::error::{CodegenError, Result};

/// Instructions of a kernel whose tables are not kept for the next one.
const MANY_INSTRUCTIONS: usize = 1024;

/// Code in a line, block after block, each ended by an instruction of its own.
pub(super) struct Linear<'m> {
    machine: &'m Machine,
    /// By label: the block.
    pub blocks: Vec<Block>,
    /// By label: its instructions, the last of which is its end.
    ranges: Vec<(usize, usize)>,
    /// By number: the instruction; none for an end.
    insts: Vec<Option<&'m Inst>>,
    /// By block: its label.
    labels: Vec<Label>,
    successors: Vec<SmallVec<[Label; 2]>>,
    predecessors: Vec<SmallVec<[Label; 2]>>,
    operands: Vec<Operand>,
    /// By number: where its operands begin; their number behind.
    operands_at: Vec<u32>,
    /// Whether an instruction behind the entry reads, writes or destroys particular registers.
    wants_registers: bool,
}

impl<'m> Linear<'m> {
    pub(super) fn new(machine: &'m Machine) -> Linear<'m> {
        let count = machine.order.len();
        let mut labels = vec![Label::invalid(); machine.blocks.len()];
        for (at, b) in machine.order.iter().enumerate() {
            labels[b.0 as usize] = Label::new(at);
        }
        let mut linear = Linear {
            machine,
            blocks: machine.order.clone(),
            ranges: Vec::with_capacity(count),
            insts: Vec::new(),
            labels,
            successors: vec![SmallVec::new(); count],
            predecessors: vec![SmallVec::new(); count],
            operands: Vec::new(),
            operands_at: Vec::new(),
            wants_registers: false,
        };
        for (at, b) in machine.order.iter().enumerate() {
            let data = &machine.blocks[b.0 as usize];
            let begin = linear.insts.len();
            for inst in data.insts.iter().chain(&data.test) {
                linear.operands_at.push(linear.operands.len() as u32);
                inst.operands(machine.level, &mut linear.operands);
                let particular = !inst.fixed.is_empty() || inst.clobbers != PRegSet::empty();
                linear.wants_registers |= particular && inst.kind != Kind::Entry;
                linear.insts.push(Some(inst));
            }
            linear.operands_at.push(linear.operands.len() as u32);
            linear.insts.push(None);
            linear.ranges.push((begin, linear.insts.len()));
            let targets: &[Block] = match &data.end {
                End::Jump(to, _) => &[*to],
                End::Branch(_, to, otherwise) => &[*to, *otherwise],
                End::Return | End::Open => &[],
            };
            for to in targets {
                let to = linear.labels[to.0 as usize];
                linear.successors[at].push(to);
                linear.predecessors[to.index()].push(Label::new(at));
            }
        }
        linear.operands_at.push(linear.operands.len() as u32);
        linear
    }

    /// Whether the tables for it are larger than those for most others.
    pub(super) fn is_large(&self) -> bool {
        self.insts.len() > MANY_INSTRUCTIONS
    }

    pub(super) fn level(&self) -> Level {
        self.machine.level
    }

    /// Blocks in the order of the code.
    pub(super) fn labels(&self) -> impl Iterator<Item = Label> + use<> {
        (0..self.blocks.len()).map(Label::new)
    }

    /// The numbers of a block's first instruction and of its end.
    pub(super) fn range(&self, label: Label) -> (u32, u32) {
        let (begin, end) = self.ranges[label.index()];
        (begin as u32, end as u32 - 1)
    }

    /// Where a block jumps, and what it gives to the parameters there; `None` if it branches or returns.
    pub(super) fn jump(&self, label: Label) -> Option<(Label, &[VReg])> {
        match &self.block(label).end {
            End::Jump(to, given) => Some((self.labels[to.0 as usize], given)),
            End::Branch(..) | End::Return | End::Open => None,
        }
    }

    /// Loops: the numbers of their first and their last instruction.
    pub(super) fn back_jumps(&self) -> impl Iterator<Item = (u32, u32)> {
        self.labels().filter_map(|label| {
            let (to, _) = self.jump(label)?;
            (to.index() <= label.index()).then(|| (self.range(to).0, self.range(label).1))
        })
    }

    /// The operands of an instruction, and how many those before it have.
    pub(super) fn operands_of(&self, number: u32) -> (&[Operand], usize) {
        let at = number as usize;
        let (begin, end) = (self.operands_at[at] as usize, self.operands_at[at + 1] as usize);
        (&self.operands[begin..end], begin)
    }

    /// How many operands all instructions have, and by number how many those before it do.
    pub(super) fn operand_counts(&self) -> (usize, Vec<u32>) {
        (self.operands.len(), self.operands_at[..self.insts.len()].to_vec())
    }

    /// Whether an instruction behind the entry reads, writes or destroys particular registers.
    pub(super) fn wants_registers(&self) -> bool {
        self.wants_registers
    }

    fn block(&self, label: Label) -> &super::machine::BlockData {
        &self.machine.blocks[self.blocks[label.index()].0 as usize]
    }

    /// The block that a number is the end of, or its instruction.
    pub(super) fn inst(&self, number: Number) -> Option<&'m Inst> {
        self.insts[number.index()]
    }

    fn end(&self, number: Number) -> Option<&End> {
        if self.insts[number.index()].is_some() {
            return None;
        }
        let at = self.ranges.partition_point(|r| r.1 <= number.index());
        Some(&self.machine.blocks[self.blocks[at].0 as usize].end)
    }
}

impl Function for Linear<'_> {
    fn num_insts(&self) -> usize {
        self.insts.len()
    }

    fn num_blocks(&self) -> usize {
        self.blocks.len()
    }

    fn entry_block(&self) -> Label {
        Label::new(0)
    }

    fn block_insns(&self, block: Label) -> InstRange {
        let (begin, end) = self.ranges[block.index()];
        InstRange::new(Number::new(begin), Number::new(end))
    }

    fn block_succs(&self, block: Label) -> &[Label] {
        &self.successors[block.index()]
    }

    fn block_preds(&self, block: Label) -> &[Label] {
        &self.predecessors[block.index()]
    }

    fn block_params(&self, block: Label) -> &[VReg] {
        &self.block(block).params
    }

    fn is_ret(&self, insn: Number) -> bool {
        matches!(self.end(insn), Some(End::Return))
    }

    fn is_branch(&self, insn: Number) -> bool {
        matches!(self.end(insn), Some(End::Jump(..) | End::Branch(..)))
    }

    fn branch_blockparams(&self, block: Label, _: Number, _: usize) -> &[VReg] {
        match &self.block(block).end {
            End::Jump(_, args) => args,
            _ => &[],
        }
    }

    fn inst_operands(&self, insn: Number) -> &[Operand] {
        self.operands_of(insn.index() as u32).0
    }

    fn inst_clobbers(&self, insn: Number) -> PRegSet {
        self.insts[insn.index()].map_or(PRegSet::empty(), |i| i.clobbers)
    }

    fn num_vregs(&self) -> usize {
        self.machine.registers as usize
    }

    fn spillslot_size(&self, class: RegClass) -> usize {
        match class {
            // In units of 8 bytes.
            RegClass::Float => self.machine.level.vector_bits() as usize / 64,
            RegClass::Int | RegClass::Vector => 1,
        }
    }
}

/// Registers that code may use: general ones but the stack's, all vectors, all masks but the first, which instructions cannot
/// be masked by.
fn environment(level: Level) -> &'static MachineEnv {
    static ENVIRONMENTS: [OnceLock<MachineEnv>; Level::ALL.len()] = [const { OnceLock::new() }; Level::ALL.len()];
    ENVIRONMENTS[level as usize].get_or_init(|| {
        let set = |regs: &mut dyn Iterator<Item = PReg>| regs.fold(PRegSet::empty(), PRegSet::with);
        let general = |numbers: &[usize]| set(&mut numbers.iter().map(|n| general::reg(*n)));
        MachineEnv {
            preferred_regs_by_class: [
                general(&[0, 1, 2, 6, 7, 8, 9, 10, 11]),
                set(&mut (0..level.vector_registers() as usize).map(|n| PReg::new(n, RegClass::Float))),
                set(&mut (1..8)
                    .filter(|_| level.has_mask_registers())
                    .map(|n| PReg::new(n, RegClass::Vector))),
            ],
            non_preferred_regs_by_class: [general(&general::SAVED), PRegSet::empty(), PRegSet::empty()],
            scratch_by_class: [None; 3],
            fixed_stack_slots: Vec::new(),
        }
    })
}

/// Registers of a class, a bit each.
#[derive(Clone, Copy)]
pub(super) struct Registers {
    /// Those that code may use.
    pub all: u64,
    /// Those of them that need not be given back.
    pub preferred: u64,
}

/// The registers that code may use, by class.
pub(super) fn registers(level: Level) -> &'static [Registers; 3] {
    static REGISTERS: [OnceLock<[Registers; 3]>; Level::ALL.len()] = [const { OnceLock::new() }; Level::ALL.len()];
    REGISTERS[level as usize].get_or_init(|| {
        let env = environment(level);
        let bits = |set: PRegSet| set.into_iter().fold(0, |bits, r| bits | 1 << r.hw_enc());
        [0, 1, 2].map(|class| {
            let preferred = bits(env.preferred_regs_by_class[class]);
            Registers {
                all: preferred | bits(env.non_preferred_regs_by_class[class]),
                preferred,
            }
        })
    })
}

/// What a call destroys, by the System V convention.
pub(super) fn destroyed_by_calls(level: Level) -> PRegSet {
    let env = environment(level);
    let [int, vector, mask] = env.preferred_regs_by_class;
    let mut all = int;
    all.union_from(vector);
    all.union_from(mask);
    all
}

/// Gives each register of the code a place. `context` is what regalloc2 keeps its tables in; nothing in them matters from one call to the
/// next but their memory.
///
/// # Errors
/// If regalloc2 refuses, which is a bug of the emitter.
pub(super) fn allocate<'c>(linear: &Linear<'_>, context: &'c mut Ctx) -> Result<&'c Output> {
    let options = RegallocOptions {
        verbose_log: false,
        validate_ssa: cfg!(debug_assertions),
        algorithm: Algorithm::Ion,
    };
    let environment = environment(linear.machine.level);
    regalloc2::run_with_ctx(linear, environment, &options, context).map_err(|e| CodegenError::Refused {
        by: "regalloc2",
        message: format!("{e:?}"),
    })
}

/// Follows every value through the code and has regalloc2's checker say where one is not in the register that an instruction reads.
///
/// # Errors
/// The first such instructions.
pub(super) fn check(linear: &Linear<'_>, output: &Output) -> Result<()> {
    let mut checker = Checker::new(linear, environment(linear.machine.level));
    checker.prepare(output);
    checker.run().map_err(|e| CodegenError::Refused {
        by: "the checker of registers",
        message: format!("{e:?}"),
    })
}
