//! Which register each value is in: the code as regalloc2 sees it.

use std::sync::OnceLock;

use regalloc2::{
    Algorithm, Block as Label, Ctx, Function, Inst as Number, InstRange, MachineEnv, Operand, Output, PReg, PRegSet,
    RegClass, RegallocOptions, VReg,
};

use super::Level;
use super::machine::{Block, End, Inst, Machine, general};
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
    successors: Vec<Vec<Label>>,
    predecessors: Vec<Vec<Label>>,
    operands: Vec<Operand>,
    /// By number: where its operands begin.
    operands_at: Vec<usize>,
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
            successors: vec![Vec::new(); count],
            predecessors: vec![Vec::new(); count],
            operands: Vec::new(),
            operands_at: Vec::new(),
        };
        for (at, b) in machine.order.iter().enumerate() {
            let data = &machine.blocks[b.0 as usize];
            let begin = linear.insts.len();
            for inst in data.insts.iter().chain(&data.test) {
                linear.operands_at.push(linear.operands.len());
                inst.operands(machine.level, &mut linear.operands);
                linear.insts.push(Some(inst));
            }
            linear.operands_at.push(linear.operands.len());
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
        linear.operands_at.push(linear.operands.len());
        linear
    }

    /// Whether the tables for it are larger than those for most others.
    pub(super) fn is_large(&self) -> bool {
        self.insts.len() > MANY_INSTRUCTIONS
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
        &self.operands[self.operands_at[insn.index()]..self.operands_at[insn.index() + 1]]
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
