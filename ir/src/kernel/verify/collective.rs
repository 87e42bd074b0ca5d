//! Rules of collectives that do not depend on where they are.

use super::{Checker, Rule};
use crate::kernel::{Collective, CollectiveKind, Group, Memory, Scope};
use crate::target::{MAX_BLOCK_THREADS, WARP_THREADS};

impl Checker<'_> {
    pub(super) fn collective(&mut self, c: &Collective) {
        let threads = c.group.threads();
        let from = match c.kind {
            CollectiveKind::Broadcast(from) => from,
            CollectiveKind::Reduce(_) | CollectiveKind::Scan(_) | CollectiveKind::Shift(_) => 0,
        };
        if !(1..=MAX_BLOCK_THREADS).contains(&threads) || !(0..threads).contains(&from) {
            self.error(Rule::CollectiveThreads { threads, from });
        }
        if let Group::Part(threads) = c.group
            && !(1..=WARP_THREADS).contains(&threads) | (threads.count_ones() != 1)
        {
            self.error(Rule::CollectivePart(threads));
        }
        let copies = |m: Memory| match m {
            Memory::Param(_) => false,
            Memory::Scratch(s) => {
                let known = self.kernel.scratch.get(s as usize);
                known.is_none_or(|s| s.scope == Scope::Thread)
            }
        };
        if !copies(c.memory) {
            return self.error(Rule::CollectiveMemory(c.memory));
        }
        let Some(dtype) = self.access(c.memory, &c.index, true, true) else {
            return;
        };
        let Some(monoid) = c.kind.monoid() else { return };
        if monoid.is_arg() {
            return self.error(Rule::CollectiveMonoid(monoid.name()));
        }
        if let Err(e) = monoid.combine().result_dtype(&[dtype, dtype]) {
            self.error(e.into());
        }
    }
}
