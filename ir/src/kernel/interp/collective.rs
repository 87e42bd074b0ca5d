//! Collectives, one combination after another.

use super::{KernelError, Machine, combine};
use crate::kernel::{Collective, CollectiveKind, Group};
use crate::target::WARP_THREADS;

impl Machine<'_> {
    pub(super) fn collective(&mut self, c: &Collective) -> Result<(), KernelError> {
        let index = self.index(&c.index, 0)?;
        let threads = c.group.threads();
        let first = match c.group {
            Group::Warp | Group::Part(_) => self.warp.unwrap_or(0) * WARP_THREADS,
            Group::Block(_) => 0,
        };
        (0..c.group.parts()).try_for_each(|part| self.collective_of(c, index, first + part * threads))
    }

    /// As one group does it, whose first thread that is.
    fn collective_of(&mut self, c: &Collective, index: i64, first: i64) -> Result<(), KernelError> {
        let threads = c.group.threads();
        let outer = self.thread;
        let mut elements = Vec::new();
        for t in 0..threads {
            self.thread = (first + t) as usize;
            elements.push(self.load(c.memory, index)?);
        }
        let (steps, all) = c.kind.steps(threads);
        if let CollectiveKind::Shift(monoid) = c.kind {
            elements.rotate_right(1);
            elements[0] = monoid.identity(elements[0].dtype());
        }
        if let Some(monoid) = c.kind.monoid() {
            for s in steps {
                let (left, right) = (elements[s.left as usize], elements[s.right as usize]);
                elements[s.to as usize] = combine(monoid, &[left], &[right])[0];
            }
        }
        if let Some(from) = all {
            let one = elements[from as usize];
            elements.fill(one);
        }
        for (t, element) in (0..threads).zip(elements) {
            self.thread = (first + t) as usize;
            self.store(c.memory, index, element)?;
        }
        self.thread = outer;
        Ok(())
    }
}
