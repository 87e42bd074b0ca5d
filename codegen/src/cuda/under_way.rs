//! What goes on beside the statements behind it.

use tlc_ir::kernel::Memory;

use crate::flat::{Address, Flat, Item, Op};

/// A product that may still be under way.
pub(super) struct UnderWay {
    /// What it adds to, and the left operand that threads hold.
    pub(super) memories: [Option<Memory>; 2],
    /// The text that waits for it.
    pub(super) end: String,
}

impl UnderWay {
    /// Whether an item must find it done.
    pub(super) fn is_needed_by(&self, item: &Item, flat: &Flat<'_>) -> bool {
        let touches = |a: &Address| self.memories.contains(&Some(a.memory));
        match item {
            Item::Let(v) => match flat.op(*v) {
                Op::Load { address, .. } => touches(address),
                _ => false,
            },
            Item::Store { address, .. } => touches(address),
            Item::Loop(l) => l.body.iter().any(|i| self.is_needed_by(i, flat)),
            Item::CopyAsync(_) | Item::Commit | Item::Wait(_) => false,
            _ => true,
        }
    }
}
