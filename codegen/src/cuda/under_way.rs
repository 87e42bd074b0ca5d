//! What goes on beside the statements behind it.

use tlc_ir::kernel::Memory;

use crate::flat::{Address, Flat, Item, Op};

/// A product that may still be under way.
pub(super) struct UnderWay {
    /// What it adds to, and its operands.
    pub(super) memories: [Memory; 3],
    /// The text that waits for it.
    pub(super) end: String,
}

impl UnderWay {
    /// Whether an item must find it done.
    pub(super) fn is_needed_by(&self, item: &Item, flat: &Flat<'_>) -> bool {
        let touches = |a: &Address| self.memories.contains(&a.memory);
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
            _ => true,
        }
    }
}
