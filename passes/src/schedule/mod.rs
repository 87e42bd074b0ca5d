//! Scheduling: how a naive nest is made to run fast on a target.
//!
//! The policy reads the nest and the target, and applies [`Directive`]s one after another; the applied list is the schedule,
//! kept for `explain` and replay. A directive that refuses is not an error: the reason is noted and the nest stays as it is.

mod columns;
pub mod directives;
mod elementwise;
mod gpu;
pub mod hoist;
mod lanes;
mod rows;
mod stage;
mod threads;
pub mod tree;
mod vectorize;

use std::fmt;

use tlc_ir::Target;
use tlc_ir::index::VarId;
use tlc_ir::kernel::{Bind, Kernel, Stmt};

pub use directives::{Directive, Refusal, apply};
pub use gpu::{MAX_SHARED_BYTES, schedule_gpu, shared_bytes};
pub use lanes::ScalarReason;

use crate::lower::{Form, Nest};

/// What was done to a nest.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Schedule {
    /// The directives, in order.
    pub directives: Vec<Directive>,
    /// Vector lanes of each innermost loop, or why it has none.
    pub inner: Vec<Result<u32, ScalarReason>>,
    /// The nests that became copies of blocks.
    pub copies: Vec<CopyReason>,
}

/// Where a copy of blocks goes, and why there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopyReason {
    /// The parameter that is written; none for scratch.
    pub param: Option<u32>,
    /// Whether it is written past the caches: it is larger than half of the last one.
    pub streams: bool,
    /// Bytes of the last cache.
    pub last_cache: u64,
}

impl fmt::Display for CopyReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.param, self.streams) {
            (None, _) => f.write_str("a tile of an operand is turned into scratch"),
            (Some(p), false) => write!(f, "parameter {p} is copied in tiles"),
            (Some(p), true) => write!(
                f,
                "parameter {p} is written past the caches: it has at least half of the last one's {} bytes",
                self.last_cache
            ),
        }
    }
}

struct Scheduler<'t> {
    kernel: Kernel,
    target: &'t Target,
    schedule: Schedule,
}

/// Schedules a nest for a CPU target.
pub fn schedule(nest: &Nest, target: &Target) -> (Kernel, Schedule) {
    let mut s = Scheduler {
        kernel: nest.kernel.clone(),
        target,
        schedule: Schedule::default(),
    };
    match nest.form {
        Form::Elementwise => s.elementwise(&nest.parallel),
        Form::Rows => s.rows(&nest.parallel),
        Form::Columns => s.columns(&nest.parallel),
        Form::Serial => {
            s.parallel(&nest.parallel);
            s.schedule.inner.push(Err(ScalarReason::Recurrence));
        }
    }
    hoist::hoist(&mut s.kernel);
    (s.kernel, s.schedule)
}

impl Scheduler<'_> {
    fn apply(&mut self, directive: Directive) -> Option<Vec<VarId>> {
        let made = apply(&mut self.kernel, &directive).ok()?;
        self.schedule.directives.push(directive);
        Some(made)
    }

    /// Fuses neighbouring loops, innermost first, where no division remains.
    fn fuse_clean(&mut self, loops: &[VarId]) -> Vec<VarId> {
        let mut left = loops.to_vec();
        let mut i = left.len();
        while i >= 2 {
            i -= 1;
            let (outer, inner) = (left[i - 1], left[i]);
            let before = tree::count_divisions(&self.kernel.body);
            let saved = self.kernel.clone();
            if let Ok(made) = apply(&mut self.kernel, &Directive::Fuse { outer, inner }) {
                if tree::count_divisions(&self.kernel.body) > before {
                    self.kernel = saved;
                } else {
                    self.schedule.directives.push(Directive::Fuse { outer, inner });
                    left.splice(i - 1..=i, made);
                }
            }
        }
        left
    }

    /// Makes one parallel loop of the given perfectly nested loops; divisions are paid once per iteration.
    fn parallel(&mut self, loops: &[VarId]) -> Option<VarId> {
        let mut left = self.fuse_clean(loops);
        while left.len() >= 2 {
            let (outer, inner) = (left[0], left[1]);
            match self.apply(Directive::Fuse { outer, inner }) {
                Some(made) => drop(left.splice(0..=1, made)),
                None => break,
            }
        }
        let first = *left.first()?;
        self.apply(Directive::Bind {
            var: first,
            bind: Bind::Parallel,
        });
        Some(first)
    }

    /// The perfect nests of serial loops below the outermost parallel loop (or at the top), outermost first each.
    fn inner_nests(&self) -> Vec<Vec<VarId>> {
        let body = match &self.kernel.body[..] {
            [
                Stmt::Loop {
                    bind: Bind::Parallel,
                    body,
                    ..
                },
            ] => body,
            _ => &self.kernel.body,
        };
        fn chain(body: &[Stmt], var: VarId) -> Vec<VarId> {
            let mut out = vec![var];
            if let [Stmt::Loop { var, body, .. }] = body {
                out.extend(chain(body, *var));
            }
            out
        }
        body.iter()
            .filter_map(|s| match s {
                Stmt::Loop { var, body, .. } => Some(chain(body, *var)),
                _ => None,
            })
            .collect()
    }
}
