//! Sizes that data decides, once calls of a run have said what they are.

use std::sync::Arc;

use tlc_ir::binding::condition_waits;
use tlc_ir::graph::control::mentions_data;
use tlc_ir::graph::{Condition, Guard};
use tlc_ir::index::IndexExpr;
use tlc_ir::plan::{HostCall, Launch, Plan, Step};

use super::{Bound, CallState, Executable, MAX_BINDINGS, RunError, lock};
use crate::binding::{Sizes, is_open, overflow};
use crate::memory::AlignedBuffer;

/// Whether a step needs sizes that data decides: any of a launch or of what it touches. Without them it is the same under every binding.
pub(super) fn needs_sizes(plan: &Plan, step: &Step) -> bool {
    if plan.symbols.iter().all(|s| s.upper.is_none()) {
        return false;
    }
    let mentions = |e: &IndexExpr| mentions_data(&plan.symbols, e);
    let launch = |l: &Launch| l.symbols.iter().any(mentions);
    let mut of_slots = false;
    // What a call binds is not known before it has run.
    let own = |c: &HostCall| c.function.binds().is_some();
    let (operands, sizes) = match step {
        Step::Launch(l) => (None, launch(l)),
        Step::Group(all) | Step::Sequence(all) => (None, all.iter().any(launch)),
        Step::Call(c) if own(c) => (Some(&c.operands), c.shapes.iter().flatten().any(mentions)),
        Step::Copy { .. } => (None, false),
        Step::Call(_) | Step::Gemm(_) | Step::Loop(_) => return true,
    };
    step.visit_slots(
        &mut |slot, _| {
            if operands.is_none_or(|all| all.contains(&slot)) {
                let begins = plan.begins(slot);
                of_slots |= mentions(&plan.slots[slot.0 as usize].len) || begins.as_ref().is_some_and(mentions);
            }
        },
        &plan.kernels,
    );
    sizes || of_slots
}

impl Executable {
    /// The binding for the steps behind those that said what symbols are, and room for what they need.
    #[cold]
    #[inline(never)]
    pub(super) fn decided(
        &self,
        (first, now): (&Bound, &Bound),
        values: &[(usize, i64)],
        state: &mut CallState,
    ) -> Result<Arc<Bound>, RunError> {
        let next = self.rebound(first, now, values)?;
        let scratch = self.scratch_of(&next);
        if state.scratch.len() < scratch {
            state.scratch = AlignedBuffer::zeroed(scratch)?;
        }
        if next.packed != now.packed {
            state.frame.packed.clear();
        }
        // Products may be cut otherwise now, and the next call's are those of its own binding.
        state.sized = false;
        state.frame.fit(&next, self.plan.devices.len());
        Ok(next)
    }

    /// The binding once calls have said what symbols are. The layout stays: it has room for the largest values.
    fn rebound(&self, first: &Bound, now: &Bound, values: &[(usize, i64)]) -> Result<Arc<Bound>, RunError> {
        let (mut symbols, mut decided) = (now.sizes.symbols.clone(), now.sizes.decided.clone());
        for &(symbol, value) in values {
            symbols[symbol] = value;
            decided[symbol] = true;
        }
        let is = |b: &Bound| b.sizes.symbols == symbols && b.sizes.decided == decided;
        {
            let mut known = lock(&first.rebound);
            if let Some(at) = known.iter().position(|b| is(b)) {
                known.swap(0, at);
                return Ok(Arc::clone(&known[0]));
            }
        }
        let open = |e: &IndexExpr| is_open(&self.plan, e, &decided);
        let ready = |g: &&Guard| {
            condition_waits(&self.plan.symbols, &g.condition)
                && match &g.condition {
                    Condition::Equal(a, b) => !open(a) && !open(b),
                    Condition::NonNegative(e) => !open(e),
                }
        };
        for g in self.plan.guards.iter().filter(ready) {
            self.binder().check_guard(g, &symbols)?;
        }
        let (shapes, layout) = (first.sizes.shapes.clone(), first.sizes.layout.clone());
        let sizes = Sizes::of(&self.plan, &symbols, shapes, layout, &decided)?;
        let mut new = self.bind_sizes(sizes)?;
        // What is staged lies where the first binding says: there is room for the largest.
        new.segments = first.segments.clone();
        if !new.fits_in(first) {
            return Err(overflow(&self.plan.name));
        }
        let new = Arc::new(new);
        let mut known = lock(&first.rebound);
        if known.len() >= MAX_BINDINGS {
            known.pop_back();
        }
        known.push_front(Arc::clone(&new));
        Ok(new)
    }
}
