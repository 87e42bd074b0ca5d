//! What every pass has to know of the shape of operations and statements: which values they use and define, which memory
//! they touch at which indices, and which statements are inside them.
//!
//! This file, the interpreter, the printer, the parser, the verifier's rules and the emitters spell out the variants of
//! [`Op`] and [`Stmt`]. Everything else calls these and matches only those variants that it treats in a way of its own, so
//! that a new operation or statement is seen by every traversal at once. The matches below have no wildcards: a new variant
//! does not compile until it is described.
//!
//! Shared and mutable forms visit the same things in the same order. They are iterators, which callers leave early with
//! `any`, `all` or `find`; none allocates, except [`walk`] below eight nested statements and statements of several accesses.

use std::slice;

use smallvec::SmallVec;

use super::{Kernel, Memory, Op, Range, Stmt, ValueId};
use crate::index::{IndexExpr, VarId};

/// What an access does with its element.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Effect {
    /// Reads it.
    Load,
    /// Replaces it.
    Store,
    /// Combines it with a value: reads and writes it.
    Accumulate,
}

impl Effect {
    /// Whether the element may change.
    pub const fn writes(self) -> bool {
        !matches!(self, Effect::Load)
    }
}

/// One access of a statement to memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryAccess<'k> {
    /// The memory.
    pub memory: Memory,
    /// The element.
    pub index: &'k IndexExpr,
    /// A bool without which nothing is touched.
    pub mask: Option<ValueId>,
    /// Conditions without which nothing is touched.
    pub ranges: &'k [Range],
    /// What happens to the element.
    pub effect: Effect,
}

impl MemoryAccess<'_> {
    /// Whether the access need not happen where its statement runs.
    pub fn is_conditional(&self) -> bool {
        self.mask.is_some() || !self.ranges.is_empty()
    }
}

/// As [`MemoryAccess`], to move an access elsewhere.
#[derive(Debug)]
pub struct MemoryAccessMut<'k> {
    /// The memory.
    pub memory: &'k mut Memory,
    /// The element.
    pub index: &'k mut IndexExpr,
    /// What happens to the element.
    pub effect: Effect,
}

impl Op {
    /// The values that the operation uses, a mask included.
    #[inline]
    pub fn operands(&self) -> &[ValueId] {
        match self {
            Op::Const(_) | Op::Index(..) => &[],
            Op::Load { mask, .. } => mask.as_slice(),
            Op::Map(_, args) | Op::Approximate(_, args) => args,
            Op::Scale(both) => both,
            Op::Convert(_, v) | Op::Bitcast(_, v) | Op::ShortExp2(v) => slice::from_ref(v),
        }
    }

    /// The values that the operation uses, to replace them.
    pub fn operands_mut(&mut self) -> &mut [ValueId] {
        match self {
            Op::Const(_) | Op::Index(..) => &mut [],
            Op::Load { mask, .. } => mask.as_mut_slice(),
            Op::Map(_, args) | Op::Approximate(_, args) => args,
            Op::Scale(both) => both,
            Op::Convert(_, v) | Op::Bitcast(_, v) | Op::ShortExp2(v) => slice::from_mut(v),
        }
    }

    /// The access of the operation, if it is one.
    pub fn access(&self) -> Option<MemoryAccess<'_>> {
        match self {
            Op::Load { memory, index, mask } => Some(MemoryAccess {
                memory: *memory,
                index,
                mask: *mask,
                ranges: &[],
                effect: Effect::Load,
            }),
            Op::Const(_)
            | Op::Index(..)
            | Op::Map(..)
            | Op::Convert(..)
            | Op::Bitcast(..)
            | Op::ShortExp2(_)
            | Op::Scale(_)
            | Op::Approximate(..) => None,
        }
    }

    fn access_mut(&mut self) -> Option<MemoryAccessMut<'_>> {
        match self {
            Op::Load { memory, index, .. } => Some(MemoryAccessMut {
                memory,
                index,
                effect: Effect::Load,
            }),
            Op::Const(_)
            | Op::Index(..)
            | Op::Map(..)
            | Op::Convert(..)
            | Op::Bitcast(..)
            | Op::ShortExp2(_)
            | Op::Scale(_)
            | Op::Approximate(..) => None,
        }
    }

    /// The index expression of the operation: the element of an access, or a value that is counted.
    pub fn index(&self) -> Option<&IndexExpr> {
        match self {
            Op::Index(e, _) | Op::Load { index: e, .. } => Some(e),
            Op::Const(_)
            | Op::Map(..)
            | Op::Convert(..)
            | Op::Bitcast(..)
            | Op::ShortExp2(_)
            | Op::Scale(_)
            | Op::Approximate(..) => None,
        }
    }

    fn index_mut(&mut self) -> Option<&mut IndexExpr> {
        match self {
            Op::Index(e, _) | Op::Load { index: e, .. } => Some(e),
            Op::Const(_)
            | Op::Map(..)
            | Op::Convert(..)
            | Op::Bitcast(..)
            | Op::ShortExp2(_)
            | Op::Scale(_)
            | Op::Approximate(..) => None,
        }
    }
}

impl Stmt {
    /// The value that the statement defines.
    #[inline]
    pub fn defined_value(&self) -> Option<ValueId> {
        match self {
            Stmt::Let { value, .. } => Some(*value),
            Stmt::Store { .. }
            | Stmt::Loop { .. }
            | Stmt::If { .. }
            | Stmt::Clamp { .. }
            | Stmt::Accumulate { .. }
            | Stmt::Contract(_)
            | Stmt::Collective(_)
            | Stmt::FoldRows(_)
            | Stmt::Each { .. }
            | Stmt::CopyAsync(_)
            | Stmt::Prefetch { .. }
            | Stmt::Commit
            | Stmt::Wait(_)
            | Stmt::Barrier => None,
        }
    }

    /// The value that the statement defines, to rename it.
    pub fn defined_value_mut(&mut self) -> Option<&mut ValueId> {
        match self {
            Stmt::Let { value, .. } => Some(value),
            Stmt::Store { .. }
            | Stmt::Loop { .. }
            | Stmt::If { .. }
            | Stmt::Clamp { .. }
            | Stmt::Accumulate { .. }
            | Stmt::Contract(_)
            | Stmt::Collective(_)
            | Stmt::FoldRows(_)
            | Stmt::Each { .. }
            | Stmt::CopyAsync(_)
            | Stmt::Prefetch { .. }
            | Stmt::Commit
            | Stmt::Wait(_)
            | Stmt::Barrier => None,
        }
    }

    /// The loop variables that the statement defines: of a loop for its body, of a clamp for the rest of its block, of a
    /// contraction or copy for itself.
    pub fn defined_vars(&self) -> &[VarId] {
        match self {
            Stmt::Loop { var, .. } | Stmt::Clamp { var, .. } => slice::from_ref(var),
            Stmt::Contract(c) => &c.vars,
            Stmt::FoldRows(f) => &f.vars,
            Stmt::CopyAsync(c) => slice::from_ref(&c.var),
            Stmt::Each { vars, .. } => vars,
            Stmt::Let { .. }
            | Stmt::Store { .. }
            | Stmt::If { .. }
            | Stmt::Accumulate { .. }
            | Stmt::Collective(_)
            | Stmt::Prefetch { .. }
            | Stmt::Commit
            | Stmt::Wait(_)
            | Stmt::Barrier => &[],
        }
    }

    /// The loop variables that the statement defines, to rename them.
    pub fn defined_vars_mut(&mut self) -> &mut [VarId] {
        match self {
            Stmt::Loop { var, .. } | Stmt::Clamp { var, .. } => slice::from_mut(var),
            Stmt::Contract(c) => &mut c.vars,
            Stmt::FoldRows(f) => &mut f.vars,
            Stmt::CopyAsync(c) => slice::from_mut(&mut c.var),
            Stmt::Each { vars, .. } => vars,
            Stmt::Let { .. }
            | Stmt::Store { .. }
            | Stmt::If { .. }
            | Stmt::Accumulate { .. }
            | Stmt::Collective(_)
            | Stmt::Prefetch { .. }
            | Stmt::Commit
            | Stmt::Wait(_)
            | Stmt::Barrier => &mut [],
        }
    }

    /// The loop variables that the statement's own accesses go through: the statement touches the elements for all their
    /// values.
    pub fn own_vars(&self) -> &[VarId] {
        match self {
            Stmt::Contract(c) => &c.vars,
            Stmt::FoldRows(f) => &f.vars,
            Stmt::CopyAsync(c) => slice::from_ref(&c.var),
            Stmt::Let { .. }
            | Stmt::Store { .. }
            | Stmt::Loop { .. }
            | Stmt::If { .. }
            | Stmt::Clamp { .. }
            | Stmt::Accumulate { .. }
            | Stmt::Collective(_)
            | Stmt::Each { .. }
            | Stmt::Prefetch { .. }
            | Stmt::Commit
            | Stmt::Wait(_)
            | Stmt::Barrier => &[],
        }
    }

    /// The values that the statement itself uses, masks and conditions included; not those that statements inside it use.
    pub fn operands(&self) -> impl Iterator<Item = ValueId> {
        let (first, second): (&[ValueId], &[ValueId]) = match self {
            Stmt::Let { op, .. } => (op.operands(), &[]),
            Stmt::Store { value, mask, .. } => (slice::from_ref(value), mask.as_slice()),
            Stmt::If { cond, .. } => (slice::from_ref(cond), &[]),
            Stmt::Clamp { value, .. } => (slice::from_ref(value), &[]),
            Stmt::CopyAsync(c) => (c.mask.as_slice(), &[]),
            Stmt::Accumulate { values, .. } => (values, &[]),
            Stmt::Loop { .. }
            | Stmt::Contract(_)
            | Stmt::Collective(_)
            | Stmt::FoldRows(_)
            | Stmt::Each { .. }
            | Stmt::Prefetch { .. }
            | Stmt::Commit
            | Stmt::Wait(_)
            | Stmt::Barrier => (&[], &[]),
        };
        first.iter().chain(second).copied()
    }

    /// The values that the statement itself uses, to replace them.
    pub fn operands_mut(&mut self) -> impl Iterator<Item = &mut ValueId> {
        let (first, second): (&mut [ValueId], &mut [ValueId]) = match self {
            Stmt::Let { op, .. } => (op.operands_mut(), &mut []),
            Stmt::Store { value, mask, .. } => (slice::from_mut(value), mask.as_mut_slice()),
            Stmt::If { cond, .. } => (slice::from_mut(cond), &mut []),
            Stmt::Clamp { value, .. } => (slice::from_mut(value), &mut []),
            Stmt::CopyAsync(c) => (c.mask.as_mut_slice(), &mut []),
            Stmt::Accumulate { values, .. } => (values, &mut []),
            Stmt::Loop { .. }
            | Stmt::Contract(_)
            | Stmt::Collective(_)
            | Stmt::FoldRows(_)
            | Stmt::Each { .. }
            | Stmt::Prefetch { .. }
            | Stmt::Commit
            | Stmt::Wait(_)
            | Stmt::Barrier => (&mut [], &mut []),
        };
        first.iter_mut().chain(second)
    }

    /// The accesses of the statement itself. One that goes through [`Self::own_vars`] touches the elements for all of them.
    pub fn accesses(&self) -> impl Iterator<Item = MemoryAccess<'_>> {
        let one = |access| (Some(access), Vec::new());
        // Nearly all have one at most, for which nothing is allocated.
        let (first, others) = match self {
            Stmt::Let { op, .. } => (op.access(), Vec::new()),
            Stmt::Store {
                memory, index, mask, ..
            } => one(MemoryAccess {
                memory: *memory,
                index,
                mask: *mask,
                ranges: &[],
                effect: Effect::Store,
            }),
            Stmt::Accumulate { state, .. } => {
                let mut all = state.iter().map(|(memory, index)| MemoryAccess {
                    memory: *memory,
                    index,
                    mask: None,
                    ranges: &[],
                    effect: Effect::Accumulate,
                });
                (all.next(), all.collect())
            }
            Stmt::Contract(c) => (None, c.accesses().into()),
            Stmt::FoldRows(f) => (None, f.accesses().into()),
            Stmt::CopyAsync(c) => (
                Some(MemoryAccess {
                    memory: c.from,
                    index: &c.from_index,
                    mask: c.mask,
                    ranges: &[],
                    effect: Effect::Load,
                }),
                vec![MemoryAccess {
                    memory: c.to,
                    index: &c.to_index,
                    mask: None,
                    ranges: &[],
                    effect: Effect::Store,
                }],
            ),
            Stmt::Collective(c) => one(MemoryAccess {
                memory: c.memory,
                index: &c.index,
                mask: None,
                ranges: &[],
                effect: Effect::Accumulate,
            }),
            Stmt::Loop { .. }
            | Stmt::If { .. }
            | Stmt::Clamp { .. }
            | Stmt::Each { .. }
            | Stmt::Prefetch { .. }
            | Stmt::Commit
            | Stmt::Wait(_)
            | Stmt::Barrier => (None, Vec::new()),
        };
        first.into_iter().chain(others)
    }

    /// The accesses of the statement itself, to move them elsewhere; with that a prefetch asks for, which is none.
    pub fn accesses_mut(&mut self) -> impl Iterator<Item = MemoryAccessMut<'_>> {
        let one = |access| (Some(access), Vec::new());
        let (first, others) = match self {
            Stmt::Let { op, .. } => (op.access_mut(), Vec::new()),
            Stmt::Store { memory, index, .. } => one(MemoryAccessMut {
                memory,
                index,
                effect: Effect::Store,
            }),
            Stmt::Accumulate { state, .. } => {
                let mut all = state.iter_mut().map(|(memory, index)| MemoryAccessMut {
                    memory,
                    index,
                    effect: Effect::Accumulate,
                });
                (all.next(), all.collect())
            }
            Stmt::Contract(c) => (None, c.accesses_mut().into()),
            Stmt::FoldRows(f) => (None, f.accesses_mut().into()),
            Stmt::CopyAsync(c) => {
                let c = &mut **c;
                let from = MemoryAccessMut {
                    memory: &mut c.from,
                    index: &mut c.from_index,
                    effect: Effect::Load,
                };
                let to = MemoryAccessMut {
                    memory: &mut c.to,
                    index: &mut c.to_index,
                    effect: Effect::Store,
                };
                (Some(from), vec![to])
            }
            Stmt::Prefetch { memory, index } => one(MemoryAccessMut {
                memory,
                index,
                effect: Effect::Load,
            }),
            Stmt::Collective(c) => one(MemoryAccessMut {
                memory: &mut c.memory,
                index: &mut c.index,
                effect: Effect::Accumulate,
            }),
            Stmt::Loop { .. }
            | Stmt::If { .. }
            | Stmt::Clamp { .. }
            | Stmt::Each { .. }
            | Stmt::Commit
            | Stmt::Wait(_)
            | Stmt::Barrier => (None, Vec::new()),
        };
        first.into_iter().chain(others)
    }

    /// The index expressions of the statement itself: of its accesses and their conditions, or of a value that is counted.
    /// The extent of a variable is the kernel's.
    pub fn indices(&self) -> impl Iterator<Item = &IndexExpr> {
        let (first, others) = match self {
            Stmt::Let { op, .. } => (op.index(), Vec::new()),
            Stmt::Store { index, .. } | Stmt::Prefetch { index, .. } => (Some(index), Vec::new()),
            Stmt::Accumulate { state, .. } => {
                let mut all = state.iter().map(|(_, index)| index);
                (all.next(), all.collect())
            }
            Stmt::Contract(c) => (None, c.indices().collect()),
            Stmt::FoldRows(f) => (Some(&f.from_index), vec![&f.to_index]),
            Stmt::CopyAsync(c) => (Some(&c.from_index), vec![&c.to_index]),
            Stmt::Collective(c) => (Some(&c.index), Vec::new()),
            Stmt::Loop { .. }
            | Stmt::If { .. }
            | Stmt::Clamp { .. }
            | Stmt::Each { .. }
            | Stmt::Commit
            | Stmt::Wait(_)
            | Stmt::Barrier => (None, Vec::new()),
        };
        first.into_iter().chain(others)
    }

    /// The index expressions of the statement itself, to replace them.
    pub fn indices_mut(&mut self) -> impl Iterator<Item = &mut IndexExpr> {
        let (first, others) = match self {
            Stmt::Let { op, .. } => (op.index_mut(), Vec::new()),
            Stmt::Store { index, .. } | Stmt::Prefetch { index, .. } => (Some(index), Vec::new()),
            Stmt::Accumulate { state, .. } => {
                let mut all = state.iter_mut().map(|(_, index)| index);
                (all.next(), all.collect())
            }
            Stmt::Contract(c) => (None, c.indices_mut().collect()),
            Stmt::FoldRows(f) => {
                let f = &mut **f;
                (Some(&mut f.from_index), vec![&mut f.to_index])
            }
            Stmt::CopyAsync(c) => {
                let c = &mut **c;
                (Some(&mut c.from_index), vec![&mut c.to_index])
            }
            Stmt::Collective(c) => (Some(&mut c.index), Vec::new()),
            Stmt::Loop { .. }
            | Stmt::If { .. }
            | Stmt::Clamp { .. }
            | Stmt::Each { .. }
            | Stmt::Commit
            | Stmt::Wait(_)
            | Stmt::Barrier => (None, Vec::new()),
        };
        first.into_iter().chain(others)
    }

    /// The statements directly inside; empty for a statement that holds none.
    #[inline]
    pub fn body(&self) -> &[Stmt] {
        match self {
            Stmt::Loop { body, .. } | Stmt::If { body, .. } | Stmt::Each { body, .. } => body,
            Stmt::Let { .. }
            | Stmt::Store { .. }
            | Stmt::Clamp { .. }
            | Stmt::Accumulate { .. }
            | Stmt::Contract(_)
            | Stmt::Collective(_)
            | Stmt::FoldRows(_)
            | Stmt::CopyAsync(_)
            | Stmt::Prefetch { .. }
            | Stmt::Commit
            | Stmt::Wait(_)
            | Stmt::Barrier => &[],
        }
    }

    /// The statements directly inside, to change them; `None` for a statement that cannot hold any.
    pub fn body_mut(&mut self) -> Option<&mut Vec<Stmt>> {
        match self {
            Stmt::Loop { body, .. } | Stmt::If { body, .. } | Stmt::Each { body, .. } => Some(body),
            Stmt::Let { .. }
            | Stmt::Store { .. }
            | Stmt::Clamp { .. }
            | Stmt::Accumulate { .. }
            | Stmt::Contract(_)
            | Stmt::Collective(_)
            | Stmt::FoldRows(_)
            | Stmt::CopyAsync(_)
            | Stmt::Prefetch { .. }
            | Stmt::Commit
            | Stmt::Wait(_)
            | Stmt::Barrier => None,
        }
    }
}

/// The statements and all that are inside them in program order, each before what is inside it.
pub fn walk(body: &[Stmt]) -> Walk<'_> {
    Walk {
        next: body.iter(),
        open: SmallVec::new(),
    }
}

/// See [`walk`].
pub struct Walk<'k> {
    /// What is left of the block that the next statement is in.
    next: slice::Iter<'k, Stmt>,
    /// What is left of each block around that one, outermost first.
    open: SmallVec<[slice::Iter<'k, Stmt>; 8]>,
}

impl<'k> Iterator for Walk<'k> {
    type Item = &'k Stmt;

    #[inline]
    fn next(&mut self) -> Option<&'k Stmt> {
        loop {
            if let Some(s) = self.next.next() {
                let inside = s.body();
                if !inside.is_empty() {
                    self.open.push(std::mem::replace(&mut self.next, inside.iter()));
                }
                return Some(s);
            }
            self.next = self.open.pop()?;
        }
    }

    fn fold<B, F: FnMut(B, &'k Stmt) -> B>(self, init: B, mut f: F) -> B {
        let mut folded = each(self.next, init, &mut f);
        for block in self.open.into_iter().rev() {
            folded = each(block, folded, &mut f);
        }
        folded
    }
}

/// Folds statements and all that are inside them, in program order.
fn each<'k, B>(block: slice::Iter<'k, Stmt>, init: B, f: &mut impl FnMut(B, &'k Stmt) -> B) -> B {
    block.fold(init, |folded, s| {
        let folded = f(folded, s);
        match s.body() {
            [] => folded,
            inside => each(inside.iter(), folded, f),
        }
    })
}

/// Calls `f` on the statements and all that are inside them in program order, each before what is inside it (which `f` may
/// have changed).
pub fn walk_mut(body: &mut [Stmt], f: &mut impl FnMut(&mut Stmt)) {
    for s in body {
        f(s);
        if let Some(inside) = s.body_mut() {
            walk_mut(inside, f);
        }
    }
}

impl Kernel {
    /// Every statement in program order, outer before inner.
    pub fn statements(&self) -> Walk<'_> {
        walk(&self.body)
    }

    /// Every index expression: extents, lengths of memory, and those of the statements.
    pub fn indices(&self) -> impl Iterator<Item = &IndexExpr> {
        let lengths = self.params.iter().map(|p| &p.len);
        let lengths = lengths.chain(self.scratch.iter().map(|s| &s.len));
        let sizes = self.extents.iter().chain(lengths);
        sizes.chain(self.statements().flat_map(|s| s.indices()))
    }

    /// Calls `f` on every index expression in the order of [`Self::indices`].
    pub fn for_each_index_mut(&mut self, f: &mut impl FnMut(&mut IndexExpr)) {
        self.extents.iter_mut().for_each(&mut *f);
        self.params.iter_mut().for_each(|p| f(&mut p.len));
        self.scratch.iter_mut().for_each(|s| f(&mut s.len));
        walk_mut(&mut self.body, &mut |s| s.indices_mut().for_each(&mut *f));
    }
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;
    use crate::dtype::DType;
    use crate::graph::Monoid;
    use crate::kernel::{Access, Bind, Contract, ContractOperand, Param, Scope};
    use crate::scalar::ScalarOp;

    fn v(n: u32) -> ValueId {
        ValueId(n)
    }

    fn at(n: i64) -> IndexExpr {
        IndexExpr::Const(n)
    }

    /// A statement of each kind and an operation of each kind, with distinct values, variables and indices, one block in
    /// another; and what each uses, touches and holds, written out by hand.
    fn all() -> Vec<Stmt> {
        let (p, s) = (Memory::Param(3), Memory::Scratch(4));
        let define = |value, op| Stmt::Let { value: v(value), op };
        let load = Op::Load {
            memory: p,
            index: at(12),
            mask: Some(v(101)),
        };
        let inner = vec![
            define(3, Op::Map(ScalarOp::Fma, smallvec![v(102), v(103), v(104)])),
            Stmt::If {
                cond: v(105),
                body: vec![
                    define(4, Op::Convert(DType::F32, v(106))),
                    define(5, Op::Bitcast(DType::I32, v(107))),
                ],
            },
            Stmt::Accumulate {
                monoid: Monoid::ArgMax,
                state: smallvec![(s, at(13)), (p, at(14))],
                values: smallvec![v(108), v(109)],
            },
        ];
        vec![
            define(0, Op::Const(DType::F32.one())),
            define(1, Op::Index(at(11), DType::I64)),
            define(2, load),
            Stmt::Loop {
                var: VarId(0),
                bind: Bind::Serial,
                body: inner,
            },
            Stmt::Clamp {
                var: VarId(1),
                value: v(110),
            },
            Stmt::Store {
                memory: s,
                index: at(15),
                value: v(111),
                mask: Some(v(112)),
            },
            Stmt::Contract(Box::new(Contract {
                vars: [VarId(2), VarId(3), VarId(4)],
                dst: s,
                dst_index: at(20),
                left: ContractOperand {
                    memory: p,
                    index: at(16),
                    ranges: smallvec![Range {
                        index: at(17),
                        limit: at(18)
                    }],
                },
                right: ContractOperand {
                    memory: p,
                    index: at(19),
                    ranges: smallvec![],
                },
                k_block: 1,
                precision: crate::Precision::Exact,
                words: false,
            })),
            Stmt::Barrier,
        ]
    }

    #[test]
    fn a_walk_meets_everything_once_in_program_order() {
        let body = all();
        let values: Vec<u32> = walk(&body).filter_map(|s| s.defined_value()).map(|v| v.0).collect();
        assert_eq!(values, [0, 1, 2, 3, 4, 5]);
        let vars: Vec<u32> = walk(&body).flat_map(|s| s.defined_vars()).map(|v| v.0).collect();
        assert_eq!(vars, [0, 1, 2, 3, 4]);
        let used: Vec<u32> = walk(&body).flat_map(|s| s.operands()).map(|v| v.0).collect();
        assert_eq!(used, Vec::from_iter(101..=112));
        let indices: Vec<i64> = walk(&body)
            .flat_map(|s| s.indices())
            .filter_map(|e| e.as_const())
            .collect();
        assert_eq!(indices, Vec::from_iter(11..=20));
        let accesses: Vec<(Effect, i64, bool)> = walk(&body)
            .flat_map(|s| s.accesses())
            .map(|a| (a.effect, a.index.as_const().unwrap(), a.is_conditional()))
            .collect();
        let expected = [
            (Effect::Load, 12, true),
            (Effect::Accumulate, 13, false),
            (Effect::Accumulate, 14, false),
            (Effect::Store, 15, true),
            (Effect::Load, 16, true),
            (Effect::Load, 19, false),
            (Effect::Accumulate, 20, false),
        ];
        assert_eq!(accesses, expected);
        assert!(walk(&body).any(|s| matches!(s, Stmt::Barrier)));
        assert_eq!(walk(&body).count(), 13);
    }

    #[test]
    fn what_is_visited_mutably_is_what_is_visited_shared() {
        let (before, mut body) = (all(), all());
        walk_mut(&mut body, &mut |s| {
            s.operands_mut().for_each(|v| v.0 += 1000);
            s.indices_mut().for_each(|e| *e = e.clone() + at(1000));
            s.defined_value_mut().into_iter().for_each(|v| v.0 += 1000);
            s.defined_vars_mut().iter_mut().for_each(|v| v.0 += 1000);
        });
        let numbers = |body: &[Stmt]| -> Vec<u32> {
            let of = |s: &Stmt| {
                let own = s.defined_value().map(|v| v.0).into_iter();
                let own = own
                    .chain(s.defined_vars().iter().map(|v| v.0))
                    .chain(s.operands().map(|v| v.0));
                own.chain(s.indices().filter_map(|e| e.as_const()).map(|k| k as u32))
                    .collect::<Vec<_>>()
            };
            walk(body).flat_map(of).collect()
        };
        let moved: Vec<u32> = numbers(&before).iter().map(|n| n + 1000).collect();
        assert_eq!(numbers(&body), moved);
        walk_mut(&mut body, &mut |s| {
            for a in s.accesses_mut() {
                *a.memory = Memory::Param(if a.effect.writes() { 1 } else { 0 });
                *a.index = at(7);
            }
        });
        let accesses = walk(&body).flat_map(|s| s.accesses());
        let moved: Vec<(Memory, i64)> = accesses.map(|a| (a.memory, a.index.as_const().unwrap())).collect();
        assert_eq!(moved[0], (Memory::Param(0), 7));
        assert_eq!(moved[1..4], [(Memory::Param(1), 7); 3]);
        assert_eq!(moved[4..6], [(Memory::Param(0), 7); 2]);
        assert_eq!(moved[6..], [(Memory::Param(1), 7)]);
    }

    #[test]
    fn a_kernel_has_the_indices_of_its_sizes_and_statements() {
        let mut k = Kernel {
            body: all(),
            extents: vec![at(1), at(2)],
            ..Kernel::default()
        };
        k.new_scratch(DType::F32, at(4), Scope::Cache);
        let (len, dtype, access) = (at(3), DType::F32, Access::Read);
        k.params.push(Param { dtype, len, access });
        let numbers = |k: &Kernel| -> Vec<i64> { k.indices().filter_map(|e| e.as_const()).collect() };
        assert_eq!(numbers(&k)[..9], [1, 2, 3, 4, 11, 12, 13, 14, 15]);
        assert_eq!(numbers(&k)[9..], [16, 17, 18, 19, 20]);
        k.for_each_index_mut(&mut |e| *e = e.clone() + at(100));
        assert_eq!(numbers(&k)[..9], [101, 102, 103, 104, 111, 112, 113, 114, 115]);
        assert_eq!(numbers(&k)[9..], [116, 117, 118, 119, 120]);
    }

    #[test]
    fn a_walk_goes_deeper_than_it_has_room_for() {
        let mut body = vec![Stmt::Barrier];
        for n in 0..40 {
            body = vec![Stmt::Loop {
                var: VarId(n),
                bind: Bind::Serial,
                body,
            }];
        }
        let vars: Vec<u32> = walk(&body).flat_map(|s| s.defined_vars()).map(|v| v.0).collect();
        assert_eq!(vars, Vec::from_iter((0..40).rev()));
        assert!(matches!(walk(&body).last(), Some(Stmt::Barrier)));
    }
}
