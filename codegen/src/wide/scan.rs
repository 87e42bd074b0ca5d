//! Registers by a few passes over the code.
//!
//! A linear scan of lifetimes (Poletto and Sarkar, TOPLAS 1999; over SSA form: Wimmer and Franz, CGO 2010). Most kernels never have more
//! values at a time than there are registers; nothing has to be weighed against anything then, and what regalloc2 does for the others takes
//! several times as long. Where a vector or a mask lives across a call, which leaves none where it was, the scan gives up and regalloc2 has the whole
//! kernel.
//!
//! Registers do run out: the addresses of all parameters live through the loops, and so do constants of exponentials and masks of edges. A pass
//! that finds none chooses a value that is used little in loops to live on the stack instead, a vector or a mask for as long as it is there, and
//! goes on as if it had been there, to see what else there is no room for. The next pass knows of all these from the start. A constant is not
//! written to the stack but made again where it is read. Where much of what loops do would be copies from and to the stack, regalloc2 has the kernel;
//! so it does where vectors do not fit and there are few of them, for then it would always be much.
//!
//! A division wants its operands in particular registers, and so does a call. No value that lives across it is ever in one of these, or in one that a
//! call may change.
//!
//! Invariants:
//! - Each value has one register, from where it is defined to its last use in the order of the code. In a loop that it is used in and
//!   defined before, that is the end of the loop. Blocks of a loop are together, and a block is behind those that dominate it, so that
//!   wherever a value is needed is between the two.
//! - A value that lives on the stack is written there where it is defined. A register that no other value is in may hold a copy of it, from
//!   where it was read or written to the end of the block, and of blocks that only this one branches to.
//! - What is made again is in no register where it is defined, and for regalloc2's checker on the stack: a place of its own, which code neither
//!   writes nor reads.
//! - Nothing else is copied but what an instruction updates while it is needed later, and what a jump gives to a block in another place.

use regalloc2::{
    Allocation, Edit, Function, Inst as Number, Operand, OperandConstraint, OperandKind, OperandPos, Output, PReg,
    ProgPoint, RegClass, SpillSlot, VReg,
};
use smallvec::SmallVec;

use super::Level;
use super::allocate::{Linear, registers};

/// No register yet.
const NOWHERE: u8 = u8::MAX;

/// No value, no instruction, or no place on the stack.
const NONE: u32 = u32::MAX;

/// Registers of a class by which values in them are known.
const MOST_REGISTERS: usize = 32;

/// The first place on the stack that is none: what is "read" there is made again by the instruction that made it first.
pub(super) const MADE_AGAIN: u32 = 1 << 20;

/// Passes over the code before regalloc2 has it.
const MOST_PASSES: usize = 8;

/// Instructions that want particular registers; of code with more of them each value would be compared with all.
const MOST_RESERVED: usize = 64;

/// One instruction of so many may be a read from the stack or a write to it. Of 60 kernels of networks below that, regalloc2 copied less in
/// five, a fifth less at most, and a third more in the middle; of those above it copied as much or less.
const MOST_COPIES: u64 = 4;

/// One instruction of so many may make a value again. Code of regalloc2 reads the same values from the stack more often.
const MOST_MADE: u64 = 4;

/// A use in a loop counts as so many outside of it, as a power of two.
const LOOP_BITS: usize = 3;

/// Nested loops by which uses are distinguished.
const MOST_LOOPS: usize = 6;

/// Instructions of a loop, the first and the last.
#[derive(Clone, Copy)]
struct Span {
    first: u32,
    last: u32,
}

/// General registers that an instruction reads or writes without a choice.
struct Reserved {
    number: u32,
    /// Those that it reads.
    read: u64,
    /// These, and those that have something else in them behind it.
    all: u64,
    /// Whether vectors and masks are lost.
    calls: bool,
    /// The values that it reads in them; each with its register, and whether something else is there behind it.
    reads: SmallVec<[(u32, u32, bool); 3]>,
}

/// The instructions behind the entry that want particular registers; `None` if one wants a vector so, or if there are too many.
fn reserved(linear: &Linear<'_>) -> Option<Vec<Reserved>> {
    if !linear.wants_registers() {
        return Some(Vec::new());
    }
    let mut all = Vec::new();
    for number in 1..linear.num_insts() as u32 {
        let lost = linear.inst_clobbers(Number::new(number as usize));
        let calls = !lost.is_empty(RegClass::Int);
        let (operands, _) = linear.operands_of(number);
        let fixed = |o: &Operand| match o.constraint() {
            OperandConstraint::FixedReg(r) => Some((r, o.kind())),
            _ => None,
        };
        let found = || {
            operands
                .iter()
                .filter_map(|o| fixed(o).map(|(r, kind)| (o.vreg(), r, kind)))
        };
        if found().next().is_none() && !calls {
            continue;
        }
        let updates = operands
            .iter()
            .any(|o| matches!(o.constraint(), OperandConstraint::Reuse(_)));
        if all.len() == MOST_RESERVED || updates || found().any(|(_, r, _)| r.class() != RegClass::Int) {
            return None;
        }
        let written = |r: PReg| lost.contains(r) || found().any(|(_, to, kind)| to == r && kind == OperandKind::Def);
        let set = |set: u64, r: PReg| set | 1 << r.hw_enc();
        let reads = found()
            .filter(|(.., kind)| *kind == OperandKind::Use)
            .map(|(_, r, _)| r);
        let changed = lost.into_iter().filter(|r| r.class() == RegClass::Int);
        let wanted = found().map(|(_, r, _)| r).chain(changed).fold(0, set);
        // What is read late is read while results are written.
        let is_late = (operands.iter()).any(|o| o.kind() == OperandKind::Use && o.pos() == OperandPos::Late);
        all.push(Reserved {
            number,
            read: if is_late { wanted } else { reads.fold(0, set) },
            all: wanted,
            calls,
            reads: found()
                .filter(|(.., kind)| *kind == OperandKind::Use)
                .map(|(v, r, _)| (v.vreg() as u32, r.hw_enc() as u32, written(r)))
                .collect(),
        });
    }
    Some(all)
}

/// When values are needed. An instruction reads at twice its number and writes at one more.
struct Lifetimes {
    /// By value: when it is there first. Parameters of a block are when it begins.
    begin: Vec<u32>,
    /// By value: the last time.
    end: Vec<u32>,
    /// By value: the parameter that it is given to by a jump, the first one.
    given_to: Vec<u32>,
    /// By value: if it is a parameter of a loop, what the next iteration gets for it.
    next: Vec<u32>,
    /// By value: how often it is written and read, with guesses for the iterations of loops.
    uses: Vec<u32>,
    /// By instruction: how often it is executed, by the same guesses.
    executed: Vec<u32>,
}

impl Lifetimes {
    /// `None` if a value is used in front of its definition.
    fn of(linear: &Linear<'_>) -> Option<Lifetimes> {
        let values = linear.num_vregs();
        let mut found = Lifetimes {
            begin: vec![0; values],
            end: vec![0; values],
            given_to: vec![NONE; values],
            next: vec![NONE; values],
            uses: vec![0; values],
            executed: vec![0; linear.num_insts()],
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
            let often = 1 << (LOOP_BITS * around.len().min(MOST_LOOPS));
            let used = |uses: &mut [u32], v: VReg| uses[v.vreg()] = uses[v.vreg()].saturating_add(often);
            for p in linear.block_params(label) {
                used(&mut found.uses, *p);
                born[p.vreg()] = first;
                found.begin[p.vreg()] = 2 * first;
                found.end[p.vreg()] = 2 * first;
            }
            for number in first..=last {
                found.executed[number as usize] = often;
                for operand in linear.inst_operands(Number::new(number as usize)) {
                    let v = operand.vreg();
                    used(&mut found.uses, v);
                    match operand.kind() {
                        OperandKind::Def => {
                            born[v.vreg()] = number;
                            found.begin[v.vreg()] = 2 * number + 1;
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
                used(&mut found.uses, *v);
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

/// Whether a vector or a mask lives across a call.
fn is_lost(linear: &Linear<'_>, lifetimes: &Lifetimes, reserved: &[Reserved]) -> bool {
    let calls: SmallVec<[u32; 8]> = reserved.iter().filter(|r| r.calls).map(|r| 2 * r.number).collect();
    if calls.is_empty() {
        return false;
    }
    let across = |v: VReg| {
        let (begin, end) = (lifetimes.begin[v.vreg()], lifetimes.end[v.vreg()]);
        v.class() != RegClass::Int && calls.iter().any(|call| begin <= *call && end > *call)
    };
    linear.labels().any(|label| {
        let (first, last) = linear.range(label);
        let mut defined = (first..=last).flat_map(|number| linear.inst_operands(Number::new(number as usize)));
        linear.block_params(label).iter().any(|p| across(*p)) || defined.any(|o| across(o.vreg()))
    })
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
    reserved: Vec<Reserved>,
    /// Those of the instruction that is being looked at.
    barred: u64,
    /// By value: its register. Of a value on the stack: the one that holds a copy.
    place: Vec<u8>,
    /// By value: its place on the stack, if it is there.
    slot: Vec<u32>,
    slots: u32,
    /// The instructions that make values again, by place from [`MADE_AGAIN`] on.
    made_again: Vec<Number>,
    /// By class and register: the value that is in it.
    holder: [[u32; MOST_REGISTERS]; 3],
    /// By class and register that no value is in: the value on the stack that it has a copy of.
    copied: [[u32; MOST_REGISTERS]; 3],
    /// By class: registers that have copies.
    copies: [u64; 3],
    /// By class and register: the instruction that used the copy in it last.
    copied_for: [[u32; MOST_REGISTERS]; 3],
    /// By class: registers with the values and with the copies that the instruction names.
    named: [u64; 3],
    named_copies: [u64; 3],
    /// Whether a value had to go to the stack in this pass, which then has to be done again.
    again: bool,
    /// By parameter: a register that something given to it is in.
    wish: Vec<u8>,
    /// By class: registers that nothing is in.
    free: [u64; 3],
    /// By class: those of them that the next iteration of a loop wants a value in.
    wanted: [u64; 3],
    output: Output,
}

/// Where each value is.
pub(super) struct Scanned {
    pub output: Output,
    /// Instructions whose result is nowhere until it is made again: a copy from a place on the stack from [`MADE_AGAIN`] on is the instruction of
    /// that number here, and what is copied there needs no copy.
    pub made_again: Vec<Number>,
}

/// The registers for all values; `None` if too much of what is executed would be copies from and to the stack, or if a vector or a mask lives
/// across a call.
pub(super) fn scan(linear: &Linear<'_>) -> Option<Scanned> {
    let reserved = reserved(linear)?;
    let lifetimes = Lifetimes::of(linear)?;
    if is_lost(linear, &lifetimes, &reserved) {
        return None;
    }
    let values = linear.num_vregs();
    let (operands, offsets) = linear.operand_counts();
    let mut scan = Scan {
        linear,
        lifetimes,
        reserved,
        barred: 0,
        place: vec![NOWHERE; values],
        slot: vec![NONE; values],
        slots: 0,
        made_again: Vec::new(),
        holder: [[NONE; MOST_REGISTERS]; 3],
        copied: [[NONE; MOST_REGISTERS]; 3],
        copies: [0; 3],
        copied_for: [[0; MOST_REGISTERS]; 3],
        named: [0; 3],
        named_copies: [0; 3],
        again: false,
        wish: vec![NOWHERE; values],
        free: registers(linear.level()).map(|r| r.all),
        wanted: [0; 3],
        output: Output {
            allocs: vec![Allocation::none(); operands],
            inst_alloc_offsets: offsets,
            ..Output::default()
        },
    };
    // By instruction the values that end there, as lists.
    let mut ending = vec![NONE; linear.num_insts()];
    let mut behind = vec![NONE; values];
    for (v, end) in scan.lifetimes.end.iter().enumerate() {
        let first = &mut ending[*end as usize / 2];
        behind[v] = std::mem::replace(first, v as u32);
    }
    for _ in 0..MOST_PASSES {
        scan.pass(&ending, &behind)?;
        if !scan.again {
            if scan.copies_much() {
                return None;
            }
            scan.output.num_spillslots = scan.slots as usize;
            scan.output.edits.sort_by_key(|(at, _)| *at);
            return Some(Scanned {
                output: scan.output,
                made_again: scan.made_again,
            });
        }
        scan.restart();
    }
    None
}

impl Scan<'_, '_> {
    /// Whether a large part of what is executed is copies from and to the stack, or makes values again: regalloc2 has a value in a register in one
    /// loop and on the stack in another.
    fn copies_much(&self) -> bool {
        let executed = |number: usize| u64::from(self.lifetimes.executed[number]);
        let is_made = |slot: SpillSlot| slot.index() >= MADE_AGAIN as usize;
        let (mut copied, mut made) = (0, 0);
        for (at, Edit::Move { from, to }) in &self.output.edits {
            match (from.as_stack(), to.as_stack()) {
                (Some(slot), _) if is_made(slot) => made += executed(at.inst().index()),
                (_, Some(slot)) if is_made(slot) => {}
                (None, None) => {}
                _ => copied += executed(at.inst().index()),
            }
        }
        let all: u64 = (0..self.lifetimes.executed.len()).map(executed).sum();
        copied.saturating_mul(MOST_COPIES) > all || made.saturating_mul(MOST_MADE) > all
    }

    /// Forgets all but which values are on the stack.
    fn restart(&mut self) {
        self.place.fill(NOWHERE);
        self.wish.fill(NOWHERE);
        self.holder = [[NONE; MOST_REGISTERS]; 3];
        self.copied = [[NONE; MOST_REGISTERS]; 3];
        self.copies = [0; 3];
        self.again = false;
        self.free = registers(self.linear.level()).map(|r| r.all);
        self.wanted = [0; 3];
        self.output.edits.clear();
    }

    /// Registers that a value may not be in, because an instruction wants something else in them while it lives.
    fn forbidden(&self, v: VReg) -> u64 {
        if self.reserved.is_empty() || v.class() != RegClass::Int {
            return 0;
        }
        let own = v.vreg();
        let (begin, end) = (self.lifetimes.begin[own], self.lifetimes.end[own]);
        let after = self.reserved.partition_point(|r| 2 * r.number < begin);
        let inside = self.reserved[after..].iter().take_while(|r| 2 * r.number <= end);
        inside.fold(0, |set, r| {
            // What is read in a register may be in it before, if it is not needed once something else is there.
            let stays = |(v, _, written): &&(u32, u32, bool)| *v as usize == own && !(*written && end > 2 * r.number);
            let kept = r.reads.iter().filter(stays).fold(0, |kept, (_, at, _)| kept | 1 << at);
            // What is not needed any more may be in a register that something else gets.
            let taken = if end == 2 * r.number { r.read } else { r.all };
            set | taken & !kept
        })
    }

    fn pass(&mut self, ending: &[u32], behind: &[u32]) -> Option<()> {
        let mut classes = vec![RegClass::Int; self.place.len()];
        // Jumps that give something, with the registers that are free there.
        let mut jumps = Vec::new();
        let mut before = None;
        for label in self.linear.labels() {
            let (first, last) = self.linear.range(label);
            // A jump may have changed copies.
            let branched =
                before.is_some_and(|b| self.linear.jump(b).is_none() && self.linear.block_preds(label) == [b]);
            if !branched {
                (0..3).for_each(|class| self.forget_copies(class, u64::MAX));
            }
            before = Some(label);
            (self.named, self.named_copies) = ([0; 3], [0; 3]);
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
        if !self.again {
            for (label, free) in jumps {
                self.give(label, free)?;
            }
        }
        Some(())
    }

    /// The reads of an instruction, and what it updates; returns values whose registers its results have taken over.
    fn updates(&mut self, number: u32) -> Option<SmallVec<[u32; 2]>> {
        (self.named, self.named_copies) = ([0; 3], [0; 3]);
        let mut kept = SmallVec::new();
        let (operands, at) = self.linear.operands_of(number);
        let wanting = self.reserved.binary_search_by_key(&number, |r| r.number);
        self.barred = wanting.map_or(0, |k| self.reserved[k].read);
        self.forget_copies(0, self.barred);
        let is_updated = |k: usize| {
            let reuses = |o: &Operand| matches!(o.constraint(), OperandConstraint::Reuse(from) if from == k);
            operands.iter().any(reuses)
        };
        for (k, operand) in operands.iter().enumerate() {
            // What is updated is read from the stack into the register of the result.
            let read = operand.kind() == OperandKind::Use;
            if let (true, OperandConstraint::FixedReg(register)) = (read, operand.constraint()) {
                let v = operand.vreg();
                let from = self.in_register(v).or_else(|| self.allocation(v))?;
                let to = Allocation::reg(register);
                // What is in one of these registers is what is read there.
                if from != to {
                    self.copy(ProgPoint::before(Number::new(number as usize)), from, to);
                }
                self.output.allocs[at + k] = to;
                continue;
            }
            if !read || self.is_on_stack(operand.vreg()) && is_updated(k) {
                continue;
            }
            self.output.allocs[at + k] = self.read(operand.vreg(), number)?;
        }
        for operand in operands {
            let OperandConstraint::Reuse(updated) = operand.constraint() else {
                continue;
            };
            let (from, to) = (operands[updated].vreg(), operand.vreg());
            let old = from.vreg() as u32;
            let ends = self.lifetimes.end[from.vreg()] == 2 * number && !kept.contains(&old);
            let may_stay = || self.forbidden(to) >> self.place[from.vreg()] & 1 == 0;
            if ends && !self.is_on_stack(from) && !self.is_on_stack(to) && may_stay() {
                kept.push(old);
                self.put(to, self.place[from.vreg()]);
            } else {
                let copied = self.in_register(from).filter(|_| from.class() != RegClass::Int);
                let before = copied.or_else(|| self.allocation(from))?;
                self.write(to, number)?;
                let copy = self.in_register(to)?;
                self.output.allocs[at + updated] = copy;
                if before != copy {
                    self.copy(ProgPoint::before(Number::new(number as usize)), before, copy);
                }
            }
        }
        Some(kept)
    }

    /// The results of an instruction.
    fn results(&mut self, number: u32, classes: &mut [RegClass]) -> Option<()> {
        let (operands, at) = self.linear.operands_of(number);
        // What one result has to be in is no place for another, and what a call changes none for a copy.
        if let Ok(k) = self.reserved.binary_search_by_key(&number, |r| r.number) {
            self.barred = self.reserved[k].all;
            self.forget_copies(0, self.barred);
            if self.reserved[k].calls {
                (1..3).for_each(|class| self.forget_copies(class, u64::MAX));
            }
        }
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
                    free.then_some(())?;
                    let moves = self.forbidden(v) >> reg.hw_enc() & 1 == 1;
                    if moves && !self.is_on_stack(v) {
                        self.take(v)?;
                        let to = self.allocation(v)?;
                        self.output.allocs[at + k] = Allocation::reg(reg);
                        self.copy(ProgPoint::after(Number::new(number as usize)), Allocation::reg(reg), to);
                        continue;
                    }
                    match self.is_on_stack(v) {
                        true => self.put_copy(v, reg.hw_enc() as u8, number),
                        false => self.put(v, reg.hw_enc() as u8),
                    }
                }
                _ => self.write(v, number)?,
            }
            let register = self.in_register(v)?;
            self.output.allocs[at + k] = register;
            let slot = self.slot[v.vreg()];
            if slot == NONE {
                continue;
            }
            let to = self.allocation(v)?;
            self.copy(ProgPoint::after(Number::new(number as usize)), register, to);
            if slot >= MADE_AGAIN {
                // It is made where it is read, not here.
                self.forget_copy(v.class() as usize, self.place[v.vreg()] as usize);
            }
        }
        Some(())
    }

    fn copy(&mut self, at: ProgPoint, from: Allocation, to: Allocation) {
        self.output.edits.push((at, Edit::Move { from, to }));
    }

    fn is_on_stack(&self, v: VReg) -> bool {
        self.slot[v.vreg()] != NONE
    }

    /// The register that has a value, or a copy of it.
    fn in_register(&self, v: VReg) -> Option<Allocation> {
        let place = self.place[v.vreg()];
        (place != NOWHERE).then(|| Allocation::reg(PReg::new(place as usize, v.class())))
    }

    /// Where a value always is.
    fn allocation(&self, v: VReg) -> Option<Allocation> {
        match self.slot[v.vreg()] {
            NONE => self.in_register(v),
            slot => Some(Allocation::stack(SpillSlot::new(slot as usize))),
        }
    }

    /// A register that has a value which an instruction reads.
    fn read(&mut self, v: VReg, number: u32) -> Option<Allocation> {
        if self.is_on_stack(v) && self.place[v.vreg()] == NOWHERE {
            let slot = self.allocation(v)?;
            self.write(v, number)?;
            let register = self.in_register(v)?;
            self.copy(ProgPoint::before(Number::new(number as usize)), slot, register);
            return Some(register);
        }
        let (class, place) = (v.class() as usize, self.place[v.vreg()]);
        if self.is_on_stack(v) {
            self.named_copies[class] |= 1 << place;
            self.copied_for[class][place as usize] = number;
        } else if place != NOWHERE {
            self.named[class] |= 1 << place;
        }
        self.in_register(v)
    }

    /// Finds a register for a value that an instruction writes, or that is read from the stack for it.
    fn write(&mut self, v: VReg, number: u32) -> Option<()> {
        if !self.is_on_stack(v) {
            self.take(v)?;
        }
        // Where no register was found for it, it may be on the stack by now.
        while self.is_on_stack(v) && self.place[v.vreg()] == NOWHERE {
            let class = v.class() as usize;
            let free = self.unnamed(v.class());
            let empty = free & !self.copies[class];
            let preferred = registers(self.linear.level())[class].preferred;
            let sets = [empty & preferred, empty];
            let first = sets.into_iter().find(|s| *s != 0).map(|s| s.trailing_zeros());
            let oldest = || {
                (0..MOST_REGISTERS as u32)
                    .filter(|r| free >> r & 1 == 1)
                    .min_by_key(|r| self.copied_for[class][*r as usize])
            };
            match first.or_else(oldest) {
                Some(register) => self.put_copy(v, register as u8, number),
                None => self.spill_one(v.class(), None)?,
            }
        }
        Some(())
    }

    /// Registers of a class that no value is in, and no copy that the instruction names.
    fn unnamed(&self, class: RegClass) -> u64 {
        let barred = match class {
            RegClass::Int => self.barred,
            RegClass::Float | RegClass::Vector => 0,
        };
        self.free[class as usize] & !self.named_copies[class as usize] & !barred
    }

    /// Whether a value can be put in a register.
    fn is_free(&self, v: VReg, register: u8) -> bool {
        register != NOWHERE && (self.unnamed(v.class()) & !self.forbidden(v)) >> register & 1 == 1
    }

    fn forget_copy(&mut self, class: usize, register: usize) {
        let v = std::mem::replace(&mut self.copied[class][register], NONE);
        self.copies[class] &= !(1 << register);
        if v != NONE {
            self.place[v as usize] = NOWHERE;
        }
    }

    /// Forgets the copies in some registers of a class.
    fn forget_copies(&mut self, class: usize, set: u64) {
        let mut left = self.copies[class] & set;
        while left != 0 {
            self.forget_copy(class, left.trailing_zeros() as usize);
            left &= left - 1;
        }
    }

    /// Has a register hold a copy of a value on the stack.
    fn put_copy(&mut self, v: VReg, register: u8, number: u32) {
        let (class, r) = (v.class() as usize, register as usize);
        self.forget_copy(class, r);
        self.copied[class][r] = v.vreg() as u32;
        self.copies[class] |= 1 << register;
        self.copied_for[class][r] = number;
        self.named_copies[class] |= 1 << register;
        self.place[v.vreg()] = register;
    }

    /// Puts a value on the stack for the rest of this pass and for the next one: of those in registers of a class which the instruction does not
    /// name, and another one that is about to get one, the general one used least, or the vector or mask used least for as long as it is there.
    fn spill_one(&mut self, of: RegClass, other: Option<VReg>) -> Option<()> {
        // With few registers half of the code would be reads and writes, which regalloc2 chooses with more care.
        if of != RegClass::Int && self.linear.level() == Level::Avx2 {
            return None;
        }
        let class = of as usize;
        let useless = match of {
            RegClass::Int => self.barred | other.map_or(0, |v| self.forbidden(v)),
            RegClass::Float | RegClass::Vector => 0,
        };
        let held = (0..MOST_REGISTERS)
            .filter(|r| (self.named[class] | useless) >> r & 1 == 0)
            .map(|r| self.holder[class][r]);
        let all = held.chain(other.map(|v| v.vreg() as u32)).filter(|v| *v != NONE);
        let (uses, begin, end) = (&self.lifetimes.uses, &self.lifetimes.begin, &self.lifetimes.end);
        let least = |v: &u32| {
            let v = *v as usize;
            let cost = match of {
                RegClass::Int => u64::from(uses[v]),
                RegClass::Float | RegClass::Vector => (u64::from(uses[v]) << 32) / u64::from(end[v] - begin[v] + 1),
            };
            (cost, u32::MAX - end[v])
        };
        let v = all.min_by_key(least)? as usize;
        self.slot[v] = match self.maker(v).filter(|_| of != RegClass::Int) {
            Some(number) => {
                self.made_again.push(number);
                MADE_AGAIN + self.made_again.len() as u32 - 1
            }
            None => {
                let size = self.linear.spillslot_size(of) as u32;
                let slot = self.slots.next_multiple_of(size);
                self.slots = slot + size;
                slot
            }
        };
        self.again = true;
        let register = std::mem::replace(&mut self.place[v], NOWHERE);
        if register != NOWHERE {
            self.free[class] |= 1 << register;
            self.holder[class][register as usize] = NONE;
        }
        Some(())
    }

    /// The instruction that makes a value of nothing that is in registers, so that it is made again as cheaply as it is read from the stack.
    fn maker(&self, v: usize) -> Option<Number> {
        // What begins with a block is a parameter.
        if self.lifetimes.begin[v].is_multiple_of(2) {
            return None;
        }
        let number = Number::new(self.lifetimes.begin[v] as usize / 2);
        let made = self.linear.inst(number)?.is_constant();
        (made && self.linear.inst_operands(number).len() == 1).then_some(number)
    }

    /// Puts a value in a register.
    fn put(&mut self, v: VReg, register: u8) {
        let class = v.class() as usize;
        self.forget_copy(class, register as usize);
        self.holder[class][register as usize] = v.vreg() as u32;
        self.named[class] |= 1 << register;
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

    /// Puts a value in a register that is free: the one of the parameter that it is given to, or the first that no loop wants. If there is
    /// none, a value goes to the stack, which may be this one.
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
                if self.is_free(v, register) {
                    self.put(v, register);
                    return Some(());
                }
            }
        }
        let preferred = registers(self.linear.level())[class].preferred;
        let forbidden = self.forbidden(v);
        while !self.is_on_stack(v) {
            let (free, wanted) = (self.unnamed(v.class()) & !forbidden, self.wanted[class]);
            let empty = free & !self.copies[class];
            let sets = [empty & preferred & !wanted, empty & !wanted, free & !wanted, free];
            if let Some(set) = sets.into_iter().find(|s| *s != 0) {
                self.put(v, set.trailing_zeros() as u8);
                break;
            }
            self.spill_one(v.class(), Some(v))?;
        }
        Some(())
    }

    /// A parameter of a block: in the register of something that it is given, if that is free there.
    fn parameter(&mut self, p: VReg, label: regalloc2::Block) -> Option<()> {
        if self.is_on_stack(p) {
            return Some(());
        }
        let at = self.linear.block_params(label).iter().position(|other| *other == p)?;
        let mut registers: SmallVec<[u8; 4]> = SmallVec::new();
        registers.push(self.wish[p.vreg()]);
        for from in self.linear.block_preds(label) {
            if let Some((_, given)) = self.linear.jump(*from) {
                registers.push(self.place[given.get(at)?.vreg()]);
            }
        }
        match registers.into_iter().find(|r| self.is_free(p, *r)) {
            Some(register) => self.put(p, register),
            None => self.take(p)?,
        }
        Some(())
    }

    /// What is behind a value's last use.
    fn release(&mut self, v: u32, class: RegClass) {
        let (v, register) = (v as usize, self.place[v as usize]);
        if self.slot[v] != NONE {
            self.forget_copy(class as usize, register as usize);
            return;
        }
        let bit = 1 << register;
        self.free[class as usize] |= bit;
        self.holder[class as usize][register as usize] = NONE;
        let next = self.lifetimes.next[v];
        if next != NONE && self.place[next as usize] == NOWHERE {
            self.wanted[class as usize] |= bit;
        }
    }

    /// The copies in front of a jump, all at once: none is overwritten that another still needs.
    fn give(&mut self, label: regalloc2::Block, free: [u64; 3]) -> Option<()> {
        let (target, given) = self.linear.jump(label)?;
        let mut left: SmallVec<[(Allocation, Allocation, RegClass); 8]> = SmallVec::new();
        let mut free = free;
        for (param, v) in self.linear.block_params(target).iter().zip(given) {
            let (from, to) = (self.allocation(*v)?, self.allocation(*param)?);
            if let Some(to) = to.as_reg() {
                free[to.class() as usize] &= !(1 << to.hw_enc());
            }
            if from != to {
                left.push((from, to, v.class()));
            }
        }
        let point = ProgPoint::before(Number::new(self.linear.range(label).1 as usize));
        // A register that nothing is in.
        let spare = |free: &[u64; 3], class: RegClass| {
            let set = free[class as usize];
            (set != 0).then(|| Allocation::reg(PReg::new(set.trailing_zeros() as usize, class)))
        };
        while !left.is_empty() {
            let ready = left
                .iter()
                .position(|(_, to, _)| left.iter().all(|(from, ..)| from != to));
            if let Some(ready) = ready {
                let (from, to, class) = left.swap_remove(ready);
                // No instruction copies from the stack to the stack.
                let through = (from.is_stack() && to.is_stack()).then_some(class);
                match through {
                    Some(class) => {
                        let other = spare(&free, class)?;
                        self.copy(point, from, other);
                        self.copy(point, other, to);
                    }
                    None => self.copy(point, from, to),
                }
                continue;
            }
            // A circle: one of it waits in a register that is free.
            let (from, _, class) = left[0];
            let other = spare(&free, class)?;
            self.copy(point, from, other);
            free[class as usize] &= !(1 << other.as_reg()?.hw_enc());
            left.iter_mut().filter(|m| m.0 == from).for_each(|m| m.0 = other);
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use tlc_ir::text::{no_data, parse_module};

    use super::super::{Extensions, Level, allocate, flatten_with, select};
    use super::scan;

    /// A kernel that turns rows, of which all but whole vectors of one loop are copied by calls; `lasting` is computed in front of the calls and read
    /// behind them.
    fn turns(lasting: bool) -> String {
        let (front, behind) = match lasting {
            true => ("%7: f32 = load p0[0]", "%3: f32 = add %2, %7"),
            false => ("", "%3: f32 = add %2, %0"),
        };
        format!(
            "kernel (p0: f32[1024] read, p1: f32[1024] write) {{
  scratch r0: f32[1024] cache
  scratch r1: f32[1024] cache
  for i0 in 0..1 parallel {{
    {front}
    for i1 in 0..16 copy {{
      for i2 in 0..64 serial {{
        %1: f32 = load p0[16*i2 + i1]
        store r0[64*i1 + i2], %1
      }}
    }}
    %0: f32 = const 0.0
    for i3 in 0..64 serial {{
      for i4 in 0..16 lanes {{
        %2: f32 = load r0[16*i3 + i4]
        {behind}
        %4: f32 = const 2.5
        %5: f32 = mul %3, %4
        store r1[16*i3 + i4], %5
      }}
    }}
    for i5 in 0..64 copy {{
      for i6 in 0..16 serial {{
        %6: f32 = load r1[i5 + 64*i6]
        store p1[16*i5 + i6], %6
      }}
    }}
  }}
}}
"
        )
    }

    /// Constants are made behind the calls that would change them; what else lives across one is for regalloc2.
    #[test]
    fn calls_leave_the_scan_what_does_not_live_across_them() {
        let level = Level::Avx512;
        for lasting in [false, true] {
            let text = turns(lasting);
            let mut module = parse_module(&text, &mut no_data).unwrap_or_else(|e| panic!("{}\n{text}", e[0]));
            let (_, kernel) = module.kernels.remove(0);
            let flat = flatten_with(&kernel, level, Extensions::default()).unwrap_or_else(|e| panic!("{e}\n{text}"));
            let machine = select::select(&flat, level, false, false).unwrap_or_else(|e| panic!("{e}"));
            let linear = allocate::Linear::new(&machine);
            assert!(linear.wants_registers(), "rows are copied by calls");
            let scanned = scan(&linear);
            assert_eq!(scanned.is_none(), lasting);
            if let Some(scanned) = scanned {
                allocate::check(&linear, &scanned.output).unwrap_or_else(|e| panic!("{e}"));
            }
        }
    }
}
