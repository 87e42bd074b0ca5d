//! Buffers that serve twice: kernels that run in place, and inputs that are given away.

use super::{Checker, PlanRule};
use crate::index::IndexExpr;
use crate::kernel::{Bind, CopyNest, Kernel, Memory, Op, Stmt};
use crate::plan::{SlotId, Step};

impl Checker<'_> {
    /// A donated input has the output's size and is read for the last time before the output begins, or where it begins,
    /// by a kernel that may run in place.
    pub(super) fn donations(&mut self) {
        for &(input, output) in &self.plan.donations {
            if !self.may_donate(input, output) {
                self.error(PlanRule::Donation(input, output));
            }
        }
    }

    fn may_donate(&self, input: u32, output: u32) -> bool {
        let plan = self.plan;
        let given = plan.inputs.get(input as usize).and_then(|i| i.slot);
        let (Some(given), Some(taker)) = (given, plan.outputs.get(output as usize).map(|o| o.slot)) else {
            return false;
        };
        let (a, b) = (&plan.slots[given.0 as usize], &plan.slots[taker.0 as usize]);
        let (mut last, mut first) = (None, None);
        for (at, step) in plan.steps.iter().enumerate() {
            let mut touch = |s: SlotId, _| {
                if plan.root(s) == given {
                    last = Some(at);
                }
                if plan.root(s) == plan.root(taker) {
                    first.get_or_insert(at);
                }
            };
            step.visit_slots(&mut touch, &plan.kernels);
        }
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
/// element is read before it is overwritten, as long as no element is written twice. The store may go to scratch first,
/// from where a later copy brings it there.
pub(super) fn runs_in_place(kernel: &Kernel, read: u32, written: u32) -> bool {
    let mut found = Touches::default();
    found.walk(kernel, &kernel.body, [read, written], &mut Vec::new());
    found.loads.iter().all(|load| {
        let stored = found.stores.iter().any(|s| s.index == load.index && follows(s, load));
        stored || found.staged.iter().any(|s| found.copied_where_read(load, s))
    })
}

/// Whether `b` comes behind `a` in each iteration of the loops around `a`.
fn follows(b: &Touch<'_>, a: &Touch<'_>) -> bool {
    let depth = a.block.len() - 1;
    b.block.len() > depth && b.block[..depth] == a.block[..depth] && b.block[depth] > a.block[depth]
}

/// An access, and where: statement numbers from the body inwards.
struct Touch<'k> {
    block: Vec<usize>,
    memory: Memory,
    index: &'k IndexExpr,
}

#[derive(Default)]
struct Touches<'k> {
    /// Of the operand.
    loads: Vec<Touch<'k>>,
    /// Of the result.
    stores: Vec<Touch<'k>>,
    /// Stores to scratch.
    staged: Vec<Touch<'k>>,
    /// Copies of one row from scratch to the result, and where they are.
    copies: Vec<(Vec<usize>, CopyNest)>,
}

impl<'k> Touches<'k> {
    fn walk(&mut self, kernel: &Kernel, body: &'k [Stmt], params: [u32; 2], at: &mut Vec<usize>) {
        let [read, written] = params.map(Memory::Param);
        for (i, s) in body.iter().enumerate() {
            at.push(i);
            let touch = |memory, index| Touch {
                block: at.clone(),
                memory,
                index,
            };
            match s {
                Stmt::Let {
                    op: Op::Load { memory, index, .. },
                    ..
                } if *memory == read => self.loads.push(touch(*memory, index)),
                Stmt::Store { memory, index, .. } if *memory == written => self.stores.push(touch(*memory, index)),
                Stmt::Store {
                    memory,
                    index,
                    mask: None,
                    ..
                } if matches!(memory, Memory::Scratch(_)) => self.staged.push(touch(*memory, index)),
                Stmt::Accumulate { state, .. } => {
                    // Accumulating into the result reads what the operand may have left there.
                    for (memory, index) in state {
                        if *memory == written {
                            self.loads.push(touch(*memory, index));
                        }
                    }
                }
                Stmt::Loop { var, bind, body } => {
                    if matches!(bind, Bind::Copy | Bind::Stream)
                        && let Some(nest) = CopyNest::of(kernel, *var, body)
                        && nest.to == written
                        && nest.rows.is(1)
                        && !nest.transposed
                    {
                        self.copies.push((at.clone(), nest));
                    }
                    self.walk(kernel, body, params, at);
                }
                Stmt::If { body, .. } => self.walk(kernel, body, params, at),
                _ => {}
            }
            at.pop();
        }
    }

    /// Whether the store to scratch follows the load, and a copy behind both brings it where the load was.
    fn copied_where_read(&self, load: &Touch<'_>, staged: &Touch<'_>) -> bool {
        follows(staged, load)
            && self.copies.iter().any(|(at, nest)| {
                let depth = at.len() - 1;
                let inside = |block: &[usize]| block.len() > depth && block[..depth] == at[..depth];
                nest.from == staged.memory
                    && inside(&load.block)
                    && load.block[depth] < at[depth]
                    && inside(&staged.block)
                    && staged.block[depth] < at[depth]
                    && staged.index.clone() - nest.from_at.clone() + nest.to_at.clone() == *load.index
            })
    }
}
