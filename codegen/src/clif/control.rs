//! Loops and ifs as blocks.
//!
//! Invariants:
//! - A loop tests at the bottom; a zero-trip test comes before it unless the extent is a positive constant.
//! - What is carried or merged is a block parameter.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{Block, BlockArg, InstBuilder, Value, types};
use smallvec::SmallVec;

use super::address::Counter;
use super::translate::Translator;
use crate::error::{Result, unsupported};
use crate::flat::{self, If, IfKind, Item, Loop, LoopKind, Op, Region};

type Args = SmallVec<[BlockArg; 4]>;

impl Translator<'_, '_, '_> {
    fn arguments(&mut self, values: impl Iterator<Item = flat::Value>) -> Args {
        values.map(|v| BlockArg::Value(self.value(v))).collect()
    }

    fn parameter(&mut self, block: Block, v: flat::Value) {
        let ty = self.type_for(v);
        self.made[v.0 as usize] = Some(self.b.append_block_param(block, ty));
    }

    /// Goes on in a block all of whose predecessors are known.
    fn enter(&mut self, block: Block) {
        self.b.seal_block(block);
        self.b.switch_to_block(block);
    }

    pub(super) fn loop_(&mut self, l: &Loop) -> Result<()> {
        let constant = match l.kind {
            LoopKind::Serial => self.flat.number(l.extent),
            LoopKind::Parallel => None,
            LoopKind::Block | LoopKind::Warp | LoopKind::Thread => {
                return unsupported(format!("{} loops", l.kind.name()));
            }
        };
        let (begin, end) = match l.kind {
            LoopKind::Parallel => self.range,
            _ => (self.int(types::I64, 0), self.value(l.extent)),
        };
        let (unit, plain) = self.uses.get(&l.counter).copied().unwrap_or_default().counters();
        // What runs from where to where: the scaled counter first, as it also decides when to stop.
        let mut counters: SmallVec<[(i64, Value, Value); 2]> = SmallVec::new();
        for step in unit.into_iter().chain(plain.then_some(1)) {
            let (from, to) = (self.by(begin, step), self.by(end, step));
            counters.push((step, from, to));
        }
        let (header, exit) = (self.b.create_block(), self.b.create_block());
        let initial = self.arguments(l.carried.iter().map(|c| c.initial));
        let start: Args = counters
            .iter()
            .map(|c| BlockArg::Value(c.1))
            .chain(initial.iter().copied())
            .collect();
        if constant.is_some() {
            self.b.ins().jump(header, &start);
        } else {
            let enter = self.b.ins().icmp(IntCC::SignedLessThan, begin, end);
            self.b.ins().brif(enter, header, &start, exit, &initial);
            l.carried.iter().for_each(|c| self.parameter(exit, c.outcome));
        }
        let params: SmallVec<[Value; 2]> = counters
            .iter()
            .map(|_| self.b.append_block_param(header, types::I64))
            .collect();
        l.carried.iter().for_each(|c| self.parameter(header, c.inside));
        self.b.switch_to_block(header);
        let kept = Counter {
            plain: plain.then(|| params[params.len() - 1]),
            scaled: unit.map(|unit| (params[0], unit)),
        };
        self.counters.insert(l.counter, kept);
        self.memo.push(Default::default());
        self.region(&l.body)?;
        let next = self.arguments(l.carried.iter().map(|c| c.next));
        self.memo.pop();
        let ahead: SmallVec<[Value; 2]> = counters
            .iter()
            .zip(&params)
            .map(|((step, ..), v)| self.b.ins().iadd_imm_s(*v, *step))
            .collect();
        let back: Args = ahead
            .iter()
            .map(|v| BlockArg::Value(*v))
            .chain(next.iter().copied())
            .collect();
        if let (Some(first), Some((_, _, end))) = (ahead.first(), counters.first()) {
            let again = self.b.ins().icmp(IntCC::SignedLessThan, *first, *end);
            let leave: &[BlockArg] = if constant.is_some() { &[] } else { &next };
            self.b.ins().brif(again, header, &back, exit, leave);
        }
        if constant.is_some() {
            // The exit is reached from the body alone.
            for (c, next) in l.carried.iter().zip(&next) {
                if let BlockArg::Value(next) = next {
                    self.made[c.outcome.0 as usize] = Some(*next);
                }
            }
        }
        self.b.seal_block(header);
        self.enter(exit);
        Ok(())
    }

    pub(super) fn if_(&mut self, i: &If) -> Result<()> {
        let cond = self.value(i.cond);
        if i.kind == IfKind::Guard {
            // An address that accesses behind share is made once, in front.
            self.bases(&i.then)?;
        }
        let (then, after) = (self.b.create_block(), self.b.create_block());
        if i.otherwise.is_empty() {
            let otherwise = self.arguments(i.merges.iter().map(|m| m.otherwise));
            self.b.ins().brif(cond, then, &[], after, &otherwise);
            self.enter(then);
            match i.kind {
                IfKind::Rare => self.rare(cond, i, after)?,
                IfKind::Plain | IfKind::Guard => self.branch(&i.then, i.merges.iter().map(|m| m.then), after)?,
            }
        } else {
            let slow = self.b.create_block();
            self.b.ins().brif(cond, then, &[], slow, &[]);
            self.enter(then);
            self.branch(&i.then, i.merges.iter().map(|m| m.then), after)?;
            self.enter(slow);
            self.branch(&i.otherwise, i.merges.iter().map(|m| m.otherwise), after)?;
        }
        i.merges.iter().for_each(|m| self.parameter(after, m.outcome));
        self.enter(after);
        Ok(())
    }

    fn branch(&mut self, body: &Region, values: impl Iterator<Item = flat::Value>, after: Block) -> Result<()> {
        self.memo.push(Default::default());
        self.region(body)?;
        let args = self.arguments(values);
        self.memo.pop();
        self.b.ins().jump(after, &args);
        Ok(())
    }

    fn bases(&mut self, body: &Region) -> Result<()> {
        for item in body {
            match item {
                Item::Let(v) => {
                    if let Op::Load { address, .. } = self.flat.op(*v) {
                        self.base(address)?;
                    }
                }
                Item::Store { address, .. } => {
                    self.base(address)?;
                }
                Item::Copy(_) | Item::Loop(_) | Item::If(_) | Item::Barrier | Item::Collective { .. } => {}
                Item::Multiply(_)
                | Item::Prefetch(_)
                | Item::CopyAsync(_)
                | Item::CopyTile(_)
                | Item::Commit
                | Item::Wait(_) => {}
            }
        }
        Ok(())
    }

    /// What legalization put aside for a few lanes, and `cond`, which is not 0 here, sends here seldom: laid out away
    /// from the hot code, and as a loop of one turn, for constants leave the innermost loop that they are in and would
    /// else take registers of the hot one.
    fn rare(&mut self, cond: Value, i: &If, after: Block) -> Result<()> {
        let then = self.b.current_block();
        let once = self.b.create_block();
        self.b.ins().jump(once, &[]);
        self.b.switch_to_block(once);
        self.memo.push(Default::default());
        self.region(&i.then)?;
        let args = self.arguments(i.merges.iter().map(|m| m.then));
        self.memo.pop();
        let again = self.b.ins().icmp_imm_s(IntCC::Equal, cond, 0);
        self.b.ins().brif(again, once, &[], after, &args);
        self.b.seal_block(once);
        then.into_iter().chain([once]).for_each(|b| self.b.set_cold_block(b));
        Ok(())
    }
}
