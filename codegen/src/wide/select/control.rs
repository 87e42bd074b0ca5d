//! Loops and ifs as blocks.
//!
//! Invariants:
//! - A loop tests at the bottom; a test for no iteration comes before it unless the extent is a positive constant.
//! - Both ways out of a branch are blocks of their own, so that whatever moves on the way has a place; one that stays empty is no code.

use iced_x86::Code;
use smallvec::SmallVec;

use super::index::Counter;
use super::{Arg, Block, End, Form, Inst, OwnConstants, Reg, Selector, Size, opcodes};
use crate::error::{Result, unsupported};
use crate::flat::{If, IfKind, Loop, LoopKind, Op, Region, Value};

type Regs = SmallVec<[Reg; 4]>;

impl Selector<'_, '_> {
    fn end(&mut self, end: End) {
        let here = self.here;
        self.code.data(here).end = end;
    }

    /// A new block, rare where the code around is.
    fn block(&mut self) -> Block {
        let rare = self.is_rare();
        self.code.block(rare)
    }

    /// Whether the code around hardly ever runs.
    fn is_rare(&self) -> bool {
        self.pieces.iter().any(|p| p.rare)
    }

    /// What follows in this region, from a block on that was just begun, has its own constants.
    pub(super) fn own_constants(&mut self, block: Block, rare: bool) {
        let known = Default::default();
        self.pieces.push(OwnConstants { block, known, rare });
    }

    /// Whether a loop carries so many vectors that few registers are left for others.
    fn fills_registers(&self, l: &Loop) -> bool {
        let vectors = l.carried.iter().filter(|c| self.flat.info(c.inside).lanes > 1);
        vectors.count() >= self.level.vector_registers() as usize / 2
    }

    /// A parameter of a block, which a value is from there on.
    fn parameter(&mut self, block: Block, v: Value) {
        let form = self.form_of(v);
        let reg = self.code.reg(form.class());
        self.code.data(block).params.push(reg);
        self.forms[v.0 as usize] = Default::default();
        self.at(block, |s| s.define(v, form, reg));
    }

    fn arguments(&mut self, values: impl Iterator<Item = Value>) -> Result<Regs> {
        values
            .map(|v| {
                let form = self.form_of(v);
                self.in_form(v, form)
            })
            .collect()
    }

    pub(super) fn loop_(&mut self, l: &Loop) -> Result<()> {
        let constant = match l.kind {
            LoopKind::Serial => self.flat.number(l.extent),
            LoopKind::Parallel => None,
            LoopKind::Block | LoopKind::Warp | LoopKind::Thread => {
                return unsupported(format!("{} loops", l.kind.name()));
            }
        };
        let runs = constant.is_some_and(|n| n > 0);
        let initial = self.arguments(l.carried.iter().map(|c| c.initial))?;
        let (begin, end) = match l.kind {
            LoopKind::Parallel => (Some(self.range.0), self.range.1),
            _ if runs => (None, self.range.1),
            _ => (None, self.int(l.extent)?),
        };
        let exit = self.block();
        if !runs {
            let test = match begin {
                Some(begin) => Inst::new(Code::Cmp_r64_rm64, &[Arg::Use(begin, Size::Q), Arg::Use(end, Size::Q)]),
                None => Inst::new(Code::Test_rm64_r64, &[Arg::Use(end, Size::Q), Arg::Use(end, Size::Q)]),
            };
            let (enter, skip) = (self.block(), self.block());
            let here = self.here;
            self.code.data(here).test.push(test);
            let code = if begin.is_some() {
                Code::Jl_rel32_64
            } else {
                Code::Jg_rel32_64
            };
            self.end(End::Branch(code, enter, skip));
            self.begin(skip);
            self.end(End::Jump(exit, initial.clone()));
            self.begin(enter);
        }
        let (unit, plain) = self
            .counter_uses
            .get(&l.counter)
            .copied()
            .unwrap_or_default()
            .counters();
        // What runs to where: the scaled counter first, as it also decides when to stop.
        let mut steps: SmallVec<[i64; 2]> = unit.into_iter().collect();
        if plain {
            steps.push(1);
        }
        let mut start = Regs::new();
        for step in &steps {
            start.push(match begin {
                Some(begin) => self.times(begin, *step),
                None => self.number(0),
            });
        }
        let first = steps.first().copied().unwrap_or(1);
        let bound = match constant.filter(|_| runs) {
            Some(n) => match n.checked_mul(first).and_then(|n| i32::try_from(n).ok()) {
                Some(n) => Err(n),
                None => Ok(self.number(n.wrapping_mul(first))),
            },
            None => Ok(self.times(end, first)),
        };
        start.extend_from_slice(&initial);
        let header = self.block();
        self.end(End::Jump(header, start));
        let mut params = Regs::new();
        for _ in &steps {
            let reg = self.int_reg();
            params.push(reg);
            self.code.data(header).params.push(reg);
        }
        self.begin(header);
        for c in &l.carried {
            self.parameter(header, c.inside);
        }
        let counter = Counter {
            plain: plain.then(|| params[params.len() - 1]),
            scaled: unit.map(|unit| (params[0], unit)),
            home: header,
        };
        self.counters.insert(l.counter, counter);
        let full = self.fills_registers(l);
        self.full += u32::from(full);
        self.region(&l.body)?;
        self.full -= u32::from(full);
        let next = self.arguments(l.carried.iter().map(|c| c.next))?;
        let mut back = Regs::new();
        for (reg, step) in params.iter().zip(&steps) {
            back.push(self.plus(*reg, *step));
        }
        let test = match bound {
            Ok(bound) => Inst::new(
                Code::Cmp_r64_rm64,
                &[Arg::Use(back[0], Size::Q), Arg::Use(bound, Size::Q)],
            ),
            Err(n) => Inst::new(Code::Cmp_rm64_imm32, &[Arg::Use(back[0], Size::Q), Arg::Imm32(n)]),
        };
        back.extend_from_slice(&next);
        let (again, leave) = (self.block(), self.block());
        let here = self.here;
        self.code.data(here).test.push(test);
        self.end(End::Branch(Code::Jl_rel32_64, again, leave));
        self.begin(again);
        self.end(End::Jump(header, back));
        self.begin(leave);
        self.end(End::Jump(exit, next));
        self.begin(exit);
        for c in &l.carried {
            self.parameter(exit, c.outcome);
        }
        // A loop around that is as full goes on with the same registers.
        if full && self.full == 0 {
            self.own_constants(exit, false);
            // Copies, so that the allocator spills what is used behind the loop there, and not where the loop computes it.
            let w = self.widest();
            for c in &l.carried {
                if self.form_of(c.outcome) != Form::Vector {
                    continue;
                }
                let from = self.vector(c.outcome)?;
                let copy = self.vector_op(opcodes::LOAD_D, w, &[Arg::Use(from, Size::VECTORS[w])]);
                self.forms[c.outcome.0 as usize].vector = Some(copy);
            }
        }
        Ok(())
    }

    pub(super) fn if_(&mut self, i: &If) -> Result<()> {
        let otherwise = self.arguments(i.merges.iter().filter(|_| i.otherwise.is_empty()).map(|m| m.otherwise))?;
        let code = self.test(i.cond)?;
        let exit = self.block();
        let rare = i.kind == IfKind::Rare;
        let then = self.code.block(rare || self.is_rare());
        let other = self.block();
        self.end(End::Branch(code, then, other));
        self.begin(other);
        match i.otherwise.is_empty() {
            true => self.end(End::Jump(exit, otherwise)),
            false => self.branch(&i.otherwise, i.merges.iter().map(|m| m.otherwise), exit)?,
        }
        self.begin(then);
        let pieces = self.pieces.len();
        if rare {
            self.own_constants(then, true);
        }
        self.branch(&i.then, i.merges.iter().map(|m| m.then), exit)?;
        self.pieces.truncate(pieces);
        self.begin(exit);
        for m in &i.merges {
            self.parameter(exit, m.outcome);
        }
        Ok(())
    }

    fn branch(&mut self, body: &Region, values: impl Iterator<Item = Value>, exit: Block) -> Result<()> {
        self.region(body)?;
        let args = self.arguments(values)?;
        self.end(End::Jump(exit, args));
        Ok(())
    }

    /// Sets the flags at the end of the block by a condition; returns the jump that is taken where it holds.
    fn test(&mut self, cond: Value) -> Result<Code> {
        let lanes = |s: &Self, v: Value| s.flat.info(v).lanes;
        let here = self.here;
        // Flags of all lanes' masks at once, where the mask fills an instruction.
        let whole = |n: u32| match n {
            8 => Some(Code::VEX_Kortestb_kr_kr),
            16 => Some(Code::VEX_Kortestw_kr_kr),
            32 => Some(Code::VEX_Kortestd_kr_kr),
            64 => Some(Code::VEX_Kortestq_kr_kr),
            _ => None,
        };
        match self.flat.op(cond) {
            Op::AnyLane(m) | Op::AllLanes(m) if !self.has_mask_registers() => {
                let all = matches!(self.flat.op(cond), Op::AllLanes(_));
                let (bits, ones) = self.bits_of(*m)?;
                let bits = Arg::Use(bits, Size::Q);
                let (test, code) = match all {
                    true => {
                        let ones = Arg::Use(self.number(ones as i64), Size::Q);
                        (Inst::new(Code::Cmp_r64_rm64, &[bits, ones]), Code::Je_rel32_64)
                    }
                    false => (Inst::new(Code::Test_rm64_r64, &[bits, bits]), Code::Jne_rel32_64),
                };
                self.code.data(here).test.push(test);
                Ok(code)
            }
            Op::AnyLane(m) | Op::AllLanes(m) if whole(lanes(self, *m)).is_some() => {
                let code = whole(lanes(self, *m)).unwrap_or(Code::VEX_Kortestq_kr_kr);
                let k = Arg::Use(self.mask(*m, 1)?.reg, Size::K);
                self.code.data(here).test.push(Inst::new(code, &[k, k]));
                Ok(match self.flat.op(cond) {
                    Op::AnyLane(_) => Code::Jne_rel32_64,
                    // All ones set the carry.
                    _ => Code::Jb_rel32_64,
                })
            }
            _ => {
                let c = self.in_form(cond, Form::Int)?;
                let c = Arg::Use(c, Size::D);
                self.code.data(here).test.push(Inst::new(Code::Test_rm32_r32, &[c, c]));
                Ok(Code::Jne_rel32_64)
            }
        }
    }
}
