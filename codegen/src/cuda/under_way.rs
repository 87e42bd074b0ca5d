//! What goes on beside the statements behind it.
//!
//! A product may go on past a barrier if it was begun in front of it: what its warps read is there before the barrier, and nothing overwrites it before the
//! next one. So a product behind a barrier that reads nothing but whole tiles, which are there once they were waited for, and what
//! threads wrote in front of an earlier barrier, is begun in front of it: then one is always under way while threads wait for each other.

use tlc_ir::kernel::{Memory, Scope};

use crate::flat::{Address, Flat, Item, LeftOperand, Loop, LoopKind, Multiply, Op, Region};

/// Products that may still be under way.
pub(super) struct UnderWay {
    /// What the latest adds to, and its operands.
    pub(super) latest: [Memory; 3],
    /// Those of products before it.
    pub(super) earlier: Vec<Memory>,
    /// The text that waits for all.
    pub(super) end: String,
}

impl UnderWay {
    /// Whether an item must find them done.
    pub(super) fn is_needed_by(&self, item: &Item, flat: &Flat<'_>) -> bool {
        let touches = |a: &Address| self.latest.contains(&a.memory) || self.earlier.contains(&a.memory);
        match item {
            Item::Let(v) => match flat.op(*v) {
                Op::Load { address, .. } => touches(address),
                _ => false,
            },
            Item::Store { address, .. } => touches(address),
            Item::Loop(l) => l.body.iter().any(|i| self.is_needed_by(i, flat)),
            Item::CopyAsync(c) => touches(&c.to),
            Item::CopyTile(c) => touches(&c.to),
            Item::Commit | Item::Wait(_) => false,
            // They add to the same sums one after the other.
            Item::Multiply(m) => m.dst != self.latest[0] || !self.earlier.is_empty() || !in_groups(m),
            _ => true,
        }
    }
}

/// Whether four warps do a product whose operands are all in shared memory, so that the threads may go on with its sums.
fn in_groups(m: &Multiply) -> bool {
    m.right.swizzled.is_some() && matches!(m.left, LeftOperand::Shared(_))
}

/// Whether the warps of a loop do one product, of memory that is closed to others' writes, and nothing else that others could see or that depends on
/// what they do.
pub(super) fn reads_closed_memory(l: &Loop, flat: &Flat<'_>, closed: &dyn Fn(Memory) -> bool) -> bool {
    fn products(body: &[Item], flat: &Flat<'_>, closed: &dyn Fn(Memory) -> bool) -> Option<usize> {
        let own = |a: &Address| matches!(a.memory, Memory::Scratch(i) if flat.kernel.scratch[i as usize].scope == Scope::Thread);
        body.iter().try_fold(0, |n, item| match item {
            Item::Let(v) => match flat.op(*v) {
                Op::Load { address, .. } => own(address).then_some(n),
                _ => Some(n),
            },
            Item::Store { address, .. } => own(address).then_some(n),
            Item::Loop(l) => Some(n + products(&l.body, flat, closed)?),
            Item::Multiply(m) => {
                let whole = m.right.swizzled.is_some() && m.shared().all(|o| closed(o.first.memory));
                whole.then_some(n + 1)
            }
            _ => None,
        })
    }
    l.kind == LoopKind::Warp && products(&l.body, flat, closed) == Some(1)
}

/// The memories that tiles are copied to.
pub(super) fn tile_memories(region: &Region, out: &mut Vec<Memory>) {
    for item in region {
        match item {
            Item::CopyTile(c) if !out.contains(&c.to.memory) => out.push(c.to.memory),
            Item::Loop(l) => tile_memories(&l.body, out),
            Item::If(i) => tile_memories(&i.then, out),
            _ => {}
        }
    }
}
