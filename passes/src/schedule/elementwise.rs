//! Parallel loops only: blocks of a flat loop, rows of a nest, and tiles of a transposition.

use tlc_ir::index::VarId;
use tlc_ir::kernel::{Bind, Op, Stmt};

use super::{Directive, ScalarReason, ScheduleReason, Scheduler};

/// Elements of one parallel iteration of a flat loop.
const BLOCK: i64 = 4096;
/// Edge of a transposition tile, in elements.
const TILE: i64 = 32;

impl Scheduler<'_> {
    pub(super) fn elementwise(&mut self, parallel: &[VarId]) {
        let loops = self.fuse_clean(parallel);
        let Some(&last) = loops.last() else {
            self.schedule.inner.push(Err(ScalarReason::Short));
            return;
        };
        if let Some(&across) = loops.iter().rev().skip(1).find(|&&v| self.prefers(v, last)) {
            return self.transposition(&loops, across, last);
        }
        if loops.len() > 1 {
            self.parallel(&loops[..loops.len() - 1]);
            self.vectorize(last);
            return;
        }
        let n = &self.kernel.extents[last.0 as usize];
        let small = n.as_const().is_some_and(|n| n < 2 * BLOCK);
        if small {
            self.vectorize(last);
            return;
        }
        // Blocks cover the whole range: the last one is cut short, so that there is one parallel loop and no tail.
        let divides = n.as_const().is_some_and(|n| n % BLOCK == 0);
        let (var, factor) = (last, BLOCK);
        let blocks = if divides {
            Directive::Split { var, factor }
        } else {
            Directive::Block { var, factor }
        };
        self.because(ScheduleReason::Pieces { elements: BLOCK });
        if let Some(made) = self.apply(blocks) {
            self.apply(Directive::Bind {
                var: made[0],
                bind: Bind::Parallel,
            });
            self.vectorize(made[1]);
        }
    }

    /// Whether loads walk memory along `a` but not along `b`.
    fn prefers(&self, a: VarId, b: VarId) -> bool {
        let mut strided = false;
        self.kernel.visit(&mut |s| {
            if let Stmt::Let {
                op: Op::Load { index, .. },
                ..
            } = s
            {
                let unit = |v: VarId| index.affine_in(v).is_some_and(|(c, _)| c.is(1));
                strided |= unit(a) && index.uses(b) && !unit(b);
            }
        });
        strided
    }

    /// Tiles two loops so that both the walk along one axis and the walk along the other stay in cache.
    fn transposition(&mut self, loops: &[VarId], across: VarId, last: VarId) {
        let at = loops.iter().position(|&v| v == across).unwrap_or(0);
        self.because(ScheduleReason::Tiles { edge: TILE });
        // Bring `across` next to the innermost loop.
        for k in at..loops.len() - 2 {
            if self
                .apply(Directive::Interchange {
                    outer: across,
                    inner: loops[k + 1],
                })
                .is_none()
            {
                return self.vectorize(last);
            }
        }
        let mut outer: Vec<VarId> = loops.iter().copied().filter(|&v| v != across && v != last).collect();
        let Some(rows) = self.apply(Directive::Block {
            var: across,
            factor: TILE,
        }) else {
            return self.vectorize(last);
        };
        outer.push(rows[0]);
        if let Some(columns) = self.apply(Directive::Block {
            var: last,
            factor: TILE,
        }) && self
            .apply(Directive::Interchange {
                outer: rows[1],
                inner: columns[0],
            })
            .is_some()
        {
            outer.push(columns[0]);
            self.parallel(&outer);
            let staged = self
                .because(ScheduleReason::Tiles { edge: TILE })
                .apply(Directive::Stage {
                    outer: rows[1],
                    inner: columns[1],
                    tile: TILE,
                });
            for pair in staged.unwrap_or_default().chunks_exact(2) {
                self.vectorize(pair[1]);
            }
            self.vectorize(columns[1]);
        } else {
            self.parallel(&outer);
        }
    }
}
