//! What goes on beside the statements behind it.
//!
//! A product may go on past a barrier if it was begun in front of it: what its warps read is there before the barrier, and nothing overwrites it before the
//! next one. So a product behind a barrier that reads nothing but whole tiles, which are there once they were waited for, is begun
//! in front of it: then one is always under way while threads wait for each other.

use tlc_ir::kernel::{Memory, Scope};

use super::write::Writer;
use crate::flat::{Address, Flat, Item, LeftOperand, Loop, LoopKind, Multiply, Op, Region};

/// Products that may still be under way.
#[derive(Clone)]
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
fn reads_closed_memory(l: &Loop, flat: &Flat<'_>, closed: &dyn Fn(Memory) -> bool) -> bool {
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

impl Writer<'_, '_> {
    /// The number of items from a barrier on that are the barrier and a product which may be begun in front of it, and whether another barrier follows,
    /// which then is the same one.
    pub(super) fn begins_early(&self, items: &[Item]) -> Option<(usize, bool)> {
        let (Item::Barrier, behind) = items.split_first()? else {
            return None;
        };
        let is_index = |i: &&Item| matches!(i, Item::Let(v) if self.flat.op(*v).is_index());
        let indices = behind.iter().take_while(is_index).count();
        let Item::Loop(l) = behind.get(indices)? else {
            return None;
        };
        // Whole tiles are there once they were waited for; of what threads write themselves a barrier must lie behind.
        let closed =
            |m: Memory| self.tile_memories.contains(&m) || !self.open_writes && self.flat.kernel.is_swizzled(m);
        let barrier_behind = matches!(behind.get(indices + 1), Some(Item::Barrier));
        let early = self.tiles && reads_closed_memory(l, self.flat, &closed);
        early.then_some((indices + 2, barrier_behind))
    }

    /// Waits for the products that are under way, if an item must find them done.
    pub(super) fn end_group_for(&mut self, item: &Item) {
        let needs = self.under_way.as_ref().is_some_and(|p| p.is_needed_by(item, self.flat));
        if needs {
            self.end_group();
        }
    }

    /// Waits for the products that are under way.
    pub(super) fn end_group(&mut self) {
        if let Some(p) = self.under_way.take() {
            self.line(&p.end);
        }
    }

    /// Waits for the products that are under way, but for the latest.
    pub(super) fn end_earlier_groups(&mut self) {
        if let Some(p) = &mut self.under_way {
            // In a loop the one of the iteration before as well.
            p.earlier.clear();
            self.line("asm volatile(\"wgmma.wait_group.sync.aligned 1;\" ::: \"memory\");");
        }
    }
}
