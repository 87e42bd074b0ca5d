//! Loops and their counters.
//!
//! Invariants:
//! - A loop tests at the bottom; a zero-trip test comes before it unless the extent is a positive constant.
//! - A counter is kept in the form that its body uses: as the greatest common byte stride of the accesses, as itself, or
//!   both. So an access in the innermost loop is `[base + counter * {1, 2, 4, 8} + constant]` on x86.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{BlockArg, InstBuilder, Value, types};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use tlc_ir::index::IndexNode;
use tlc_ir::kernel::{Memory, Op, Scope, Stmt};
use tlc_ir::{IndexExpr, Kernel, VarId};

use super::index::VarState;
use super::translate::Translator;
use crate::error::Result;

/// How the body of a loop uses its variable.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(super) struct LoopUse {
    /// Greatest common divisor of the constant byte strides; 0 if there is none.
    stride: i64,
    /// Whether some stride is not 1, 2, 4 or 8 bytes.
    wide: bool,
    /// Whether the variable itself is needed.
    plain: bool,
}

impl LoopUse {
    /// The multiple of the variable to keep, and whether to keep the variable.
    fn counters(self) -> (Option<i64>, bool) {
        if self.stride == 0 || (!self.wide && self.plain) {
            (None, true)
        } else {
            (Some(self.stride), self.plain)
        }
    }
}

/// The use of every variable.
pub(super) fn loop_uses(kernel: &Kernel) -> Vec<LoopUse> {
    let mut uses = vec![LoopUse::default(); kernel.extents.len()];
    fn plain(uses: &mut [LoopUse], e: &IndexExpr) {
        e.visit_atoms(&mut |n| {
            if let IndexNode::Var(v) = n {
                uses[v.0 as usize].plain = true;
            }
        });
    }
    fn access(kernel: &Kernel, uses: &mut [LoopUse], memory: Memory, index: &IndexExpr) {
        if let Memory::Scratch(i) = memory
            && kernel.scratch[i as usize].scope == Scope::Register
        {
            return;
        }
        let bytes = kernel.memory_dtype(memory).bytes() as i64;
        for (term, k) in index.linear().0 {
            match term.as_var() {
                Some(v) => {
                    let stride = k.saturating_mul(bytes).saturating_abs();
                    let u = &mut uses[v.0 as usize];
                    u.stride = gcd(u.stride, stride);
                    u.wide |= !matches!(stride, 1 | 2 | 4 | 8);
                }
                None => plain(uses, &term),
            }
        }
    }
    for e in &kernel.extents {
        plain(&mut uses, e);
    }
    for s in kernel.statements() {
        if let Stmt::Let {
            op: Op::Index(e, _), ..
        } = s
        {
            plain(&mut uses, e);
        }
        for a in s.accesses() {
            access(kernel, &mut uses, a.memory, a.index);
        }
    }
    uses
}

fn gcd(a: i64, b: i64) -> i64 {
    let (mut a, mut b) = (a, b);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

impl<'k> Translator<'k, '_> {
    /// A serial loop, or the parallel one over `range`.
    pub(super) fn counted_loop(&mut self, var: VarId, range: Option<(Value, Value)>, body: &'k [Stmt]) -> Result<()> {
        let extent = &self.kernel.extents[var.0 as usize];
        let constant = match range {
            None => self.constant(extent)?,
            Some(_) => None,
        };
        match constant {
            Some(n) if n <= 0 => return Ok(()),
            Some(1) => {
                self.vars[var.0 as usize] = VarState::Const(0);
                return self.block(body, false);
            }
            _ => {}
        }
        let (begin, end) = match range {
            Some(range) => range,
            None => (self.int(types::I64, 0), self.eval(extent)?),
        };
        let (unit, plain) = self.uses[var.0 as usize].counters();
        // What runs from where to where: the scaled counter first, as it also decides when to stop.
        let mut counters: SmallVec<[(i64, Value, Value); 2]> = SmallVec::new();
        for step in unit.into_iter().chain(plain.then_some(1)) {
            let (from, to) = (self.scaled(begin, step), self.scaled(end, step));
            counters.push((step, from, to));
        }
        let (header, exit) = (self.b.create_block(), self.b.create_block());
        let start: SmallVec<[BlockArg; 2]> = counters.iter().map(|c| BlockArg::Value(c.1)).collect();
        if constant.is_some() {
            self.b.ins().jump(header, &start);
        } else {
            let enter = self.b.ins().icmp(IntCC::SignedLessThan, begin, end);
            self.b.ins().brif(enter, header, &start, exit, &[]);
        }
        let params: SmallVec<[Value; 2]> = counters
            .iter()
            .map(|_| self.b.append_block_param(header, types::I64))
            .collect();
        self.b.switch_to_block(header);
        self.depth += 1;
        self.vars[var.0 as usize] = VarState::Counter {
            plain: plain.then(|| params[params.len() - 1]),
            scaled: unit.map(|unit| (params[0], unit)),
            depth: self.depth,
        };
        self.memo.push(FxHashMap::default());
        self.block(body, false)?;
        self.memo.pop();
        self.depth -= 1;
        let next: SmallVec<[BlockArg; 2]> = counters
            .iter()
            .zip(&params)
            .map(|((step, ..), v)| BlockArg::Value(self.b.ins().iadd_imm_s(*v, *step)))
            .collect();
        if let (Some(BlockArg::Value(first)), Some((_, _, end))) = (next.first(), counters.first()) {
            let again = self.b.ins().icmp(IntCC::SignedLessThan, *first, *end);
            self.b.ins().brif(again, header, &next, exit, &[]);
        }
        self.b.seal_block(header);
        self.enter(exit);
        Ok(())
    }

    fn scaled(&mut self, v: Value, k: i64) -> Value {
        if k == 1 { v } else { self.b.ins().imul_imm_s(v, k) }
    }
}
