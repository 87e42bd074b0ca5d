//! Rows: each innermost loop in lanes, with accumulators of its own for every lane and unrolled copy.

use tlc_ir::index::VarId;

use super::Scheduler;

impl Scheduler<'_> {
    pub(super) fn rows(&mut self, parallel: &[VarId]) {
        self.parallel(parallel);
        for nest in self.inner_nests() {
            let loops = self.fuse_clean(&nest);
            if let Some(&last) = loops.last() {
                self.vectorize(last);
            }
        }
    }
}
