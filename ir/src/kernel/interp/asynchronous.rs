//! Copies beside the threads: they are done at once, and hidden until they are waited for.

use super::{KernelError, Machine};
use crate::kernel::{AsyncCopy, Memory};

impl Machine<'_> {
    pub(super) fn copy_async(&mut self, c: &AsyncCopy) -> Result<(), KernelError> {
        let count = self.index(&self.kernel.extents[c.var.0 as usize], 0)?;
        for i in 0..count {
            self.set(c.var, i);
            let element = if self.holds(c.mask, 0) {
                let from = self.index(&c.from_index, 0)?;
                self.load(c.from, from)?
            } else {
                self.kernel.memory_dtype(c.from).zero()
            };
            let to = self.index(&c.to_index, 0)?;
            self.store(c.to, to, element)?;
            let at = self.locate(c.to, to)?;
            if let Memory::Scratch(s) = c.to {
                self.pending.insert((s, at), self.committed);
            }
        }
        Ok(())
    }

    /// Shows what copies wrote, but for those of the latest groups and of none.
    pub(super) fn wait(&mut self, pending: u32) {
        let first_hidden = self.committed.saturating_sub(u64::from(pending));
        self.pending.retain(|_, group| *group >= first_hidden);
    }
}
