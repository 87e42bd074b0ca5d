//! Buffers that serve twice: kernels that run in place, and inputs that are given away.

use super::{Checker, PlanRule};
use crate::index::IndexExpr;
use crate::kernel::{Kernel, Memory, Op, Stmt};
use crate::plan::{SlotId, Step};

impl Checker<'_> {
    /// A donated input has the output's size and is read for the last time before the output begins, or where it begins,
    /// by a kernel that may run in place.
    pub(super) fn donations(&mut self) {
        let plan = self.plan;
        // First and last step that touches the bytes of each root.
        let mut touches: Vec<Option<(usize, usize)>> = vec![None; plan.slots.len()];
        for (at, step) in plan.steps.iter().enumerate() {
            let mut touch = |s: SlotId, _| touches[self.root(s).0 as usize].get_or_insert((at, at)).1 = at;
            step.visit_slots(&mut touch, &plan.kernels);
        }
        for &(input, output) in &plan.donations {
            if !self.may_donate(input, output, &touches) {
                self.error(PlanRule::Donation(input, output));
            }
        }
    }

    fn may_donate(&self, input: u32, output: u32, touches: &[Option<(usize, usize)>]) -> bool {
        let plan = self.plan;
        let given = plan.inputs.get(input as usize).and_then(|i| i.slot);
        let (Some(given), Some(taker)) = (given, plan.outputs.get(output as usize).map(|o| o.slot)) else {
            return false;
        };
        let (a, b) = (&plan.slots[given.0 as usize], &plan.slots[taker.0 as usize]);
        let last = touches[given.0 as usize].map(|t| t.1);
        let first = touches[self.root(taker).0 as usize].map(|t| t.0);
        let in_order = match (last, first) {
            (Some(last), Some(first)) if last == first => {
                let launches = match &plan.steps[last] {
                    Step::Launch(l) => std::slice::from_ref(l),
                    Step::Group(all) => all,
                    _ => return false,
                };
                let mut readers = launches.iter().filter(|l| l.args.contains(&given));
                readers.next().is_some_and(|l| {
                    let at = |slot| l.args.iter().position(|&s| s == slot).map(|p| p as u32);
                    let pair = at(given).zip(at(taker));
                    pair.is_some_and(|(r, w)| runs_in_place(&plan.kernels[l.kernel.0 as usize], r, w))
                }) && readers.next().is_none()
            }
            (last, first) => last < first,
        };
        a.len == b.len && a.dtype.bytes() == b.dtype.bytes() && in_order
    }
}

/// True if every load of `read` is followed, in its own iteration, by a store of `written` at the same index: then each
/// element is read before it is overwritten, as long as no element is written twice.
pub(super) fn runs_in_place(kernel: &Kernel, read: u32, written: u32) -> bool {
    struct Touch<'k> {
        block: Vec<usize>,
        index: &'k IndexExpr,
    }
    fn walk<'k>(body: &'k [Stmt], read: u32, written: u32, at: &mut Vec<usize>, out: &mut [Vec<Touch<'k>>; 2]) {
        for (i, s) in body.iter().enumerate() {
            at.push(i);
            let mut touch = |kind: usize, index: &'k IndexExpr| {
                out[kind].push(Touch {
                    block: at.clone(),
                    index,
                })
            };
            match s {
                Stmt::Let {
                    op: Op::Load { memory, index, .. },
                    ..
                } if *memory == Memory::Param(read) => touch(0, index),
                Stmt::Store { memory, index, .. } if *memory == Memory::Param(written) => touch(1, index),
                Stmt::Accumulate { state, .. } => {
                    // Accumulating into the result reads what the operand may have left there.
                    for (memory, index) in state {
                        if *memory == Memory::Param(written) {
                            touch(0, index);
                        }
                    }
                }
                Stmt::Loop { body, .. } | Stmt::If { body, .. } => walk(body, read, written, at, out),
                _ => {}
            }
            at.pop();
        }
    }
    let mut found = [Vec::new(), Vec::new()];
    walk(&kernel.body, read, written, &mut Vec::new(), &mut found);
    let [loads, stores] = found;
    loads.iter().all(|l| {
        stores.iter().any(|s| {
            let depth = l.block.len() - 1;
            s.index == l.index
                && s.block.len() > depth
                && s.block[..depth] == l.block[..depth]
                && s.block[depth] > l.block[depth]
        })
    })
}
