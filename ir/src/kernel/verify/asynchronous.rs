//! Rules of copies beside the threads.
//!
//! That nothing accesses what is under way is decided by memory, not by element: of each shared scratch it is known how many commits lie
//! behind the latest copy to it that was not waited for, and whether one was waited for that no barrier lies behind. Where ways meet, the
//! fewest commits count. Loops are walked until nothing is added, so what one iteration begins, the next one finds.

use super::{Checker, Place, Rule, Violation};
use crate::kernel::asynchronous::MOST_PENDING_GROUPS;
use crate::kernel::{Access, AsyncCopy, Kernel, Memory, Scope, Stmt};

impl Checker<'_> {
    pub(super) fn pending_groups(&mut self, pending: u32) {
        if pending > MOST_PENDING_GROUPS {
            self.error(Rule::PendingGroups(pending));
        }
    }

    pub(super) fn copy_async(&mut self, c: &AsyncCopy) {
        if let Some(mask) = c.mask {
            self.expect(mask, crate::dtype::DType::Bool);
        }
        if !self.open_var(c.var) {
            return;
        }
        let from = self.access(c.from, &c.from_index, true, false);
        let to = self.access(c.to, &c.to_index, false, true);
        self.close_var(c.var);
        let (Some(from), Some(to)) = (from, to) else { return };
        let reads = match c.from {
            Memory::Param(p) => self.kernel.params[p as usize].access == Access::Read,
            Memory::Scratch(_) => false,
        };
        let shared = match c.to {
            Memory::Param(_) => false,
            Memory::Scratch(s) => self.kernel.scratch[s as usize].scope == Scope::Shared,
        };
        if !reads || !shared || from != to {
            self.error(Rule::CopyMemory { from: c.from, to: c.to });
        }
        let count = self.kernel.extents[c.var.0 as usize].as_const().unwrap_or(0);
        let bytes = count.saturating_mul(to.bytes() as i64);
        if !matches!(bytes, 4 | 8 | 16) {
            self.error(Rule::CopyBytes(bytes));
        }
        for index in [&c.from_index, &c.to_index] {
            if count != 1 && !index.affine_in(c.var).is_some_and(|(stride, _)| stride.is(1)) {
                self.error(Rule::CopyStride(c.var));
            }
        }
    }
}

/// What may be under way to a shared scratch.
#[derive(Clone, Copy, Default, PartialEq)]
struct Pending {
    /// How many commits lie behind the latest copy: as many as there may be groups under way, its own included. None if all were
    /// waited for.
    commits: Option<u32>,
    /// Copies were waited for, but no barrier followed.
    waited: bool,
}

/// Checks that nothing accesses what a copy may be writing.
pub(super) fn pending(kernel: &Kernel, errors: &mut Vec<Violation>) {
    if !kernel.statements().any(|s| matches!(s, Stmt::CopyAsync(_))) {
        return;
    }
    let mut walk = Walk {
        kernel,
        place: Place::default(),
        found: Vec::new(),
    };
    let mut state = vec![Pending::default(); kernel.scratch.len()];
    walk.block(&kernel.body, &mut state);
    errors.extend(walk.found);
}

struct Walk<'k> {
    kernel: &'k Kernel,
    place: Place,
    found: Vec<Violation>,
}

impl Walk<'_> {
    fn block(&mut self, body: &[Stmt], state: &mut Vec<Pending>) {
        for (i, s) in body.iter().enumerate() {
            self.place.0.push(i as u32);
            self.statement(s, state);
            self.place.0.pop();
        }
    }

    fn statement(&mut self, s: &Stmt, state: &mut Vec<Pending>) {
        match s {
            Stmt::CopyAsync(c) => {
                if let Memory::Scratch(to) = c.to {
                    state[to as usize].commits = Some(0);
                }
            }
            Stmt::Commit => {
                // A wait is for all groups but the last few: more need not be distinguished.
                for commits in state.iter_mut().filter_map(|p| p.commits.as_mut()) {
                    *commits = (*commits + 1).min(MOST_PENDING_GROUPS + 1);
                }
            }
            Stmt::Wait(pending) => {
                for p in state.iter_mut().filter(|p| p.commits.is_some_and(|n| n > *pending)) {
                    p.commits = None;
                    p.waited = true;
                }
            }
            Stmt::Barrier => state.iter_mut().for_each(|p| p.waited = false),
            Stmt::Loop { body, .. } | Stmt::Each { body, .. } => {
                // What the iterations before may have left: commits only become fewer, so it ends.
                let before = self.found.len();
                let mut entry = state.clone();
                loop {
                    self.found.truncate(before);
                    let mut exit = entry.clone();
                    self.block(body, &mut exit);
                    let joined = joined(&entry, &exit);
                    if joined == entry {
                        break *state = match s {
                            Stmt::Loop { var, .. } if self.runs(*var) => exit,
                            _ => joined,
                        };
                    }
                    entry = joined;
                }
            }
            Stmt::If { body, .. } => {
                let mut inside = state.clone();
                self.block(body, &mut inside);
                *state = joined(state, &inside);
            }
            Stmt::Let { .. }
            | Stmt::Store { .. }
            | Stmt::Clamp { .. }
            | Stmt::Accumulate { .. }
            | Stmt::Contract(_)
            | Stmt::Prefetch { .. }
            | Stmt::Collective(_)
            | Stmt::FoldRows(_) => {
                for a in s.accesses() {
                    if let Memory::Scratch(m) = a.memory
                        && state[m as usize] != Pending::default()
                    {
                        self.found.push(Violation {
                            place: self.place.clone(),
                            rule: Rule::CopyPending(a.memory),
                        });
                    }
                }
            }
        }
    }

    /// Whether a loop has an iteration.
    fn runs(&self, var: crate::index::VarId) -> bool {
        self.kernel.extents[var.0 as usize].interval(self.kernel).lo >= 1
    }
}

/// What may be under way on either of two ways.
fn joined(a: &[Pending], b: &[Pending]) -> Vec<Pending> {
    let both = |(a, b): (&Pending, &Pending)| Pending {
        commits: match (a.commits, b.commits) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        },
        waited: a.waited || b.waited,
    };
    a.iter().zip(b).map(both).collect()
}
