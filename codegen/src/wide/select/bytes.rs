//! Products of bytes: [`ScalarOp::Dot4`].
//!
//! Where the processor has `vpdpbusd`, one instruction multiplies the bytes of two words and adds what they make to a third, which is what the
//! operation and the addition behind it mean; both are exact, so they are one wherever nothing else needs the product. Elsewhere bytes are
//! extended to 16 bits, those at even places apart from those at odd ones, and `vpmaddwd` adds up two products in each word. Never
//! `vpmaddubsw`, which saturates.

use rustc_hash::FxHashSet;
use tlc_ir::ScalarOp;

use super::{Arg, Reg, Selector, Size};
use crate::error::Result;
use crate::flat::{Flat, Item, Op, Value};
use crate::wide::opcodes;

/// The bytes at even places of a word.
const EVEN: u64 = 0x00ff_00ff;

/// The products that the addition behind them computes by itself.
pub(super) fn added_products(flat: &Flat<'_>, uses: &[u32]) -> FxHashSet<Value> {
    let mut found = FxHashSet::default();
    walk(flat, uses, &flat.body, &mut found);
    found
}

fn walk(flat: &Flat<'_>, uses: &[u32], body: &[Item], found: &mut FxHashSet<Value>) {
    let mut seen: FxHashSet<Value> = FxHashSet::default();
    for item in body {
        match item {
            Item::Let(v) => match flat.op(*v) {
                Op::Map(ScalarOp::Dot4, _) if uses[v.0 as usize] == 1 => {
                    seen.insert(*v);
                }
                Op::Map(ScalarOp::Add, args) => {
                    let alike = |a: &&Value| seen.contains(*a) && flat.info(**a).lanes == flat.info(*v).lanes;
                    found.extend(args.iter().find(alike));
                }
                _ => {}
            },
            Item::Loop(l) => walk(flat, uses, &l.body, found),
            Item::If(i) => {
                walk(flat, uses, &i.then, found);
                walk(flat, uses, &i.otherwise, found);
            }
            _ => {}
        }
    }
}

impl Selector<'_, '_> {
    /// The products of the bytes of two words, added to a third if there is one.
    pub(super) fn dot4(&mut self, w: usize, [a, b]: [Value; 2], sum: Option<Reg>) -> Result<Reg> {
        let size = Size::VECTORS[w];
        if self.dots {
            let sum = match sum {
                Some(sum) => sum,
                None => self.constant(0, 32),
            };
            let (a, b) = (self.vector(a)?, self.vector(b)?);
            return Ok(self.vector_update(opcodes::DOT_B, w, sum, &[Arg::Use(a, size), Arg::Use(b, size)]));
        }
        let (x, y) = (self.unsigned_halves(w, a)?, self.signed_halves(w, b)?);
        let [even, odd] = [0, 1].map(|i| {
            let args = [Arg::Use(x[i], size), Arg::Use(y[i], size)];
            self.vector_op(opcodes::MADD_WD, w, &args)
        });
        let add = |s: &mut Self, a, b| s.vector_op(opcodes::ADD_D, w, &[Arg::Use(a, size), Arg::Use(b, size)]);
        let both = add(self, even, odd);
        Ok(match sum {
            Some(sum) => add(self, sum, both),
            None => both,
        })
    }

    /// What [`ScalarOp::Add`] adds up, if one of its operands is a product that is left to it.
    pub(super) fn added_dot4(&mut self, w: usize, vals: &[Value]) -> Result<Option<Reg>> {
        let Some(at) = vals.iter().position(|v| self.added_products.contains(v)) else {
            return Ok(None);
        };
        let Op::Map(_, args) = self.flat.op(vals[at]) else {
            return Ok(None);
        };
        let sum = self.vector(vals[1 - at])?;
        self.dot4(w, [args[0], args[1]], Some(sum)).map(Some)
    }

    /// The bytes at even and at odd places, extended to 16 bits by zeros.
    fn unsigned_halves(&mut self, w: usize, v: Value) -> Result<[Reg; 2]> {
        if let Some(&made) = self.halves.get(&(v, false)) {
            return Ok(made);
        }
        let (size, mask, word) = (Size::VECTORS[w], self.constant(EVEN, 32), self.vector(v)?);
        let home = self.home(v);
        let made = self.at(home, |s| {
            let even = s.vector_op(opcodes::AND_D, w, &[Arg::Use(word, size), Arg::Use(mask, size)]);
            let odd = s.vector_op(opcodes::SRL_W, w, &[Arg::Use(word, size), Arg::Imm8(8)]);
            [even, odd]
        });
        self.halves.insert((v, false), made);
        Ok(made)
    }

    /// The bytes at even and at odd places, extended to 16 bits by their sign.
    fn signed_halves(&mut self, w: usize, v: Value) -> Result<[Reg; 2]> {
        if let Some(&made) = self.halves.get(&(v, true)) {
            return Ok(made);
        }
        let (size, word) = (Size::VECTORS[w], self.vector(v)?);
        let home = self.home(v);
        let made = self.at(home, |s| {
            let up = s.vector_op(opcodes::SLL_W, w, &[Arg::Use(word, size), Arg::Imm8(8)]);
            let even = s.vector_op(opcodes::SRA_W, w, &[Arg::Use(up, size), Arg::Imm8(8)]);
            let odd = s.vector_op(opcodes::SRA_W, w, &[Arg::Use(word, size), Arg::Imm8(8)]);
            [even, odd]
        });
        self.halves.insert((v, true), made);
        Ok(made)
    }
}
