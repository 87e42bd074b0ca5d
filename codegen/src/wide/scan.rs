//! Registers in one pass over the code, for kernels whose values all have room in them.
//!
//! A linear scan of lifetimes (Poletto and Sarkar, TOPLAS 1999; over SSA form: Wimmer and Franz, CGO 2010). Most kernels never have more
//! values at a time than there are registers; nothing has to be weighed against anything then, and what regalloc2 does for the others takes
//! several times as long. Where a value finds no register, or an instruction wants particular ones, the pass gives up and regalloc2 has the
//! whole kernel.
//!
//! Invariants:
//! - Each value has one register, from where it is defined to its last use in the order of the code. In a loop that it is used in and
//!   defined before, that is the end of the loop. Blocks of a loop are together, and a block is behind those that dominate it, so that
//!   wherever a value is needed is between the two.
//! - Nothing is copied but what an instruction updates while it is needed later, and what a jump gives to a block in another register.

use regalloc2::{
    Allocation, Edit, Function, Inst as Number, OperandConstraint, OperandKind, OperandPos, Output, PReg, ProgPoint,
    RegClass, VReg,
};
use smallvec::SmallVec;

use super::allocate::{Linear, registers};

/// No register yet.
const NOWHERE: u8 = u8::MAX;

/// No value, or no instruction.
const NONE: u32 = u32::MAX;

/// Instructions of a loop, the first and the last.
#[derive(Clone, Copy)]
struct Span {
    first: u32,
    last: u32,
}

/// When values are needed. An instruction reads at twice its number and writes at one more.
struct Lifetimes {
    /// By value: the last time.
    end: Vec<u32>,
    /// By value: the parameter that it is given to by a jump, the first one.
    given_to: Vec<u32>,
    /// By value: if it is a parameter of a loop, what the next iteration gets for it.
    next: Vec<u32>,
}

impl Lifetimes {
    /// `None` if a value is used in front of its definition.
    fn of(linear: &Linear<'_>) -> Option<Lifetimes> {
        let values = linear.num_vregs();
        let mut found = Lifetimes {
            end: vec![0; values],
            given_to: vec![NONE; values],
            next: vec![NONE; values],
        };
        let mut born = vec![NONE; values];
        // Outer loops first where two begin together.
        let mut loops: Vec<Span> = linear.back_jumps().map(|(first, last)| Span { first, last }).collect();
        loops.sort_unstable_by_key(|l| (l.first, u32::MAX - l.last));
        let mut loops = loops.into_iter().peekable();
        let mut around: SmallVec<[Span; 8]> = SmallVec::new();
        for label in linear.labels() {
            let (first, last) = linear.range(label);
            while around.last().is_some_and(|l| l.last < first) {
                around.pop();
            }
            while let Some(l) = loops.next_if(|l| l.first == first) {
                around.push(l);
            }
            for p in linear.block_params(label) {
                born[p.vreg()] = first;
                found.end[p.vreg()] = 2 * first;
            }
            for number in first..=last {
                for operand in linear.inst_operands(Number::new(number as usize)) {
                    let v = operand.vreg();
                    match operand.kind() {
                        OperandKind::Def => {
                            born[v.vreg()] = number;
                            found.end[v.vreg()] = 2 * number + 1;
                        }
                        OperandKind::Use => {
                            let late = u32::from(operand.pos() == OperandPos::Late);
                            let end = last_time(born[v.vreg()], 2 * number + late, &around)?;
                            found.end[v.vreg()] = found.end[v.vreg()].max(end);
                        }
                    }
                }
            }
            let Some((target, given)) = linear.jump(label) else {
                continue;
            };
            let goes_back = linear.range(target).0 <= first;
            for (param, v) in linear.block_params(target).iter().zip(given) {
                let end = last_time(born[v.vreg()], 2 * last, &around)?;
                found.end[v.vreg()] = found.end[v.vreg()].max(end);
                if found.given_to[v.vreg()] == NONE {
                    found.given_to[v.vreg()] = param.vreg() as u32;
                }
                if goes_back {
                    found.next[param.vreg()] = v.vreg() as u32;
                }
            }
        }
        Some(found)
    }
}

/// Until when a value must be kept that is used at a time inside of loops: where it was there before one of them, through all of its
/// iterations.
fn last_time(born: u32, time: u32, around: &[Span]) -> Option<u32> {
    if born == NONE {
        return None;
    }
    let outermost = around.iter().find(|l| l.first > born);
    Some(outermost.map_or(time, |l| 2 * l.last + 1))
}

struct Scan<'l, 'm> {
    linear: &'l Linear<'m>,
    lifetimes: Lifetimes,
    /// By value: its register.
    place: Vec<u8>,
    /// By parameter: a register that something given to it is in.
    wish: Vec<u8>,
    /// By class: registers that nothing is in.
    free: [u64; 3],
    /// By class: those of them that the next iteration of a loop wants a value in.
    wanted: [u64; 3],
    output: Output,
}

/// The registers for all values; `None` if they do not suffice, or if an instruction wants particular ones.
pub(super) fn scan(linear: &Linear<'_>) -> Option<Output> {
    if linear.wants_registers() {
        return None;
    }
    let values = linear.num_vregs();
    let lifetimes = Lifetimes::of(linear)?;
    let (operands, offsets) = linear.operand_counts();
    let scan = Scan {
        linear,
        lifetimes,
        place: vec![NOWHERE; values],
        wish: vec![NOWHERE; values],
        free: registers(linear.level()).map(|r| r.all),
        wanted: [0; 3],
        output: Output {
            allocs: vec![Allocation::none(); operands],
            inst_alloc_offsets: offsets,
            ..Output::default()
        },
    };
    scan.run()
}

impl Scan<'_, '_> {
    fn run(mut self) -> Option<Output> {
        // By instruction the values that end there, as lists.
        let mut ending = vec![NONE; self.linear.num_insts()];
        let mut behind = vec![NONE; self.place.len()];
        for (v, end) in self.lifetimes.end.iter().enumerate() {
            let first = &mut ending[*end as usize / 2];
            behind[v] = std::mem::replace(first, v as u32);
        }
        let mut classes = vec![RegClass::Int; self.place.len()];
        // Jumps that give something, with the registers that are free there.
        let mut jumps = Vec::new();
        for label in self.linear.labels() {
            let (first, last) = self.linear.range(label);
            for p in self.linear.block_params(label) {
                classes[p.vreg()] = p.class();
                self.parameter(*p, label)?;
            }
            for number in first..=last {
                let kept = self.updates(number)?;
                if number == last && self.linear.jump(label).is_some_and(|(_, given)| !given.is_empty()) {
                    jumps.push((label, self.free));
                }
                for late in [false, true] {
                    let mut v = ending[number as usize];
                    while v != NONE {
                        let ends_late = self.lifetimes.end[v as usize] % 2 == 1;
                        // A value that nothing uses is not there yet.
                        if ends_late == late && self.place[v as usize] != NOWHERE && !kept.contains(&v) {
                            self.release(v, classes[v as usize]);
                        }
                        v = behind[v as usize];
                    }
                    if !late {
                        self.results(number, &mut classes)?;
                    }
                }
            }
        }
        for (label, free) in jumps {
            self.give(label, free)?;
        }
        self.output.edits.sort_by_key(|(at, _)| *at);
        Some(self.output)
    }

    /// The reads of an instruction, and what it updates; returns values whose registers its results have taken over.
    fn updates(&mut self, number: u32) -> Option<SmallVec<[u32; 2]>> {
        let mut kept = SmallVec::new();
        let (operands, at) = self.linear.operands_of(number);
        for (k, operand) in operands.iter().enumerate() {
            if operand.kind() == OperandKind::Use {
                self.output.allocs[at + k] = self.allocation(operand.vreg())?;
            }
        }
        for operand in operands {
            let OperandConstraint::Reuse(updated) = operand.constraint() else {
                continue;
            };
            let (from, to) = (operands[updated].vreg(), operand.vreg());
            let old = from.vreg() as u32;
            if self.lifetimes.end[from.vreg()] == 2 * number && !kept.contains(&old) {
                kept.push(old);
                self.put(to, self.place[from.vreg()]);
            } else {
                self.take(to)?;
                let before = self.allocation(from)?;
                let copy = self.allocation(to)?;
                self.output.allocs[at + updated] = copy;
                let edit = Edit::Move { from: before, to: copy };
                let point = ProgPoint::before(Number::new(number as usize));
                self.output.edits.push((point, edit));
            }
        }
        Some(kept)
    }

    /// The results of an instruction.
    fn results(&mut self, number: u32, classes: &mut [RegClass]) -> Option<()> {
        let (operands, at) = self.linear.operands_of(number);
        for (k, operand) in operands.iter().enumerate() {
            if operand.kind() == OperandKind::Use {
                continue;
            }
            let v = operand.vreg();
            classes[v.vreg()] = v.class();
            match operand.constraint() {
                OperandConstraint::Reuse(_) => {}
                OperandConstraint::FixedReg(reg) => {
                    let free = self.free[v.class() as usize] >> reg.hw_enc() & 1 == 1;
                    free.then(|| self.put(v, reg.hw_enc() as u8))?;
                }
                _ => self.take(v)?,
            }
            self.output.allocs[at + k] = self.allocation(v)?;
        }
        Some(())
    }

    fn allocation(&self, v: VReg) -> Option<Allocation> {
        let place = self.place[v.vreg()];
        (place != NOWHERE).then(|| Allocation::reg(PReg::new(place as usize, v.class())))
    }

    fn is_free(&self, class: RegClass, register: u8) -> bool {
        register != NOWHERE && self.free[class as usize] >> register & 1 == 1
    }

    /// Puts a value in a register.
    fn put(&mut self, v: VReg, register: u8) {
        let class = v.class() as usize;
        self.place[v.vreg()] = register;
        self.free[class] &= !(1 << register);
        self.wanted[class] &= !(1 << register);
        let to = self.lifetimes.given_to[v.vreg()];
        if to == NONE {
            return;
        }
        let to = to as usize;
        if self.wish[to] == NOWHERE {
            self.wish[to] = register;
        }
        if self.lifetimes.next[to] == v.vreg() as u32 && self.place[to] != NOWHERE {
            self.wanted[class] &= !(1 << self.place[to]);
        }
    }

    /// Puts a value in a register that is free: the one of the parameter that it is given to, or the first that no loop wants.
    fn take(&mut self, v: VReg) -> Option<()> {
        let class = v.class() as usize;
        let mut to = v.vreg();
        for _ in 0..4 {
            let next = self.lifetimes.given_to[to];
            if next == NONE {
                break;
            }
            to = next as usize;
            for register in [self.place[to], self.wish[to]] {
                if self.is_free(v.class(), register) {
                    self.put(v, register);
                    return Some(());
                }
            }
        }
        let (free, wanted) = (self.free[class], self.wanted[class]);
        let preferred = registers(self.linear.level())[class].preferred;
        let sets = [free & preferred & !wanted, free & !wanted, free];
        let set = sets.into_iter().find(|s| *s != 0)?;
        self.put(v, set.trailing_zeros() as u8);
        Some(())
    }

    /// A parameter of a block: in the register of something that it is given, if that is free there.
    fn parameter(&mut self, p: VReg, label: regalloc2::Block) -> Option<()> {
        let at = self.linear.block_params(label).iter().position(|other| *other == p)?;
        let mut registers: SmallVec<[u8; 4]> = SmallVec::new();
        registers.push(self.wish[p.vreg()]);
        for from in self.linear.block_preds(label) {
            if let Some((_, given)) = self.linear.jump(*from) {
                registers.push(self.place[given.get(at)?.vreg()]);
            }
        }
        match registers.into_iter().find(|r| self.is_free(p.class(), *r)) {
            Some(register) => self.put(p, register),
            None => self.take(p)?,
        }
        Some(())
    }

    /// What is behind a value's last use.
    fn release(&mut self, v: u32, class: RegClass) {
        let (v, class) = (v as usize, class as usize);
        let bit = 1 << self.place[v];
        self.free[class] |= bit;
        let next = self.lifetimes.next[v];
        if next != NONE && self.place[next as usize] == NOWHERE {
            self.wanted[class] |= bit;
        }
    }

    /// The copies in front of a jump, all at once: none is overwritten that another still needs.
    fn give(&mut self, label: regalloc2::Block, free: [u64; 3]) -> Option<()> {
        let (target, given) = self.linear.jump(label)?;
        let mut left: SmallVec<[(PReg, PReg); 8]> = SmallVec::new();
        let mut free = free;
        for (param, v) in self.linear.block_params(target).iter().zip(given) {
            let (from, to) = (self.allocation(*v)?.as_reg()?, self.allocation(*param)?.as_reg()?);
            free[to.class() as usize] &= !(1 << to.hw_enc());
            if from != to {
                left.push((from, to));
            }
        }
        let point = ProgPoint::before(Number::new(self.linear.range(label).1 as usize));
        let mut copy = |from: PReg, to: PReg| {
            let (from, to) = (Allocation::reg(from), Allocation::reg(to));
            self.output.edits.push((point, Edit::Move { from, to }));
        };
        while !left.is_empty() {
            let ready = left.iter().position(|(_, to)| left.iter().all(|(from, _)| from != to));
            if let Some(ready) = ready {
                let (from, to) = left.swap_remove(ready);
                copy(from, to);
                continue;
            }
            // A circle: one of it waits in a register that is free.
            let from = left[0].0;
            let set = free[from.class() as usize];
            let other = PReg::new((set != 0).then(|| set.trailing_zeros() as usize)?, from.class());
            copy(from, other);
            left.iter_mut().filter(|m| m.0 == from).for_each(|m| m.0 = other);
        }
        Some(())
    }
}
