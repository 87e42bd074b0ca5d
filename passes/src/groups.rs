//! Groups of launches: which independent launches one fork-join of the host executes. Those of a GPU are in `grids`.
//!
//! Grouped launches are one step, so that what they read lives until all of them are done, and what they write from when the first of them
//! begins. So only such launches are grouped that nothing large is born in: small ones, those that write states alone (an optimizer has
//! many parameters), and those that make little of much, as the sums of squares of a norm of many tensors. Of the last kind each goes to
//! the first group that it may come to: the second stages of long sums stand between the first ones.
//!
//! Invariant: steps change places only with steps that they touch no bytes in common with that one of them writes.

use rustc_hash::FxHashMap;
use tlc_ir::plan::{Launch, Plan, SlotId, Step, Storage, Work};

use crate::launch::LaunchReport;

/// Launches that move at most so many bytes are small.
const SMALL_BYTES: i64 = 64 * 1024;
/// Bytes that a launch writes at most if it makes little of much.
const LITTLE_BYTES: i64 = 4 * 1024;
/// Groups that further launches may come to. Sums are in two stages, and something stands between.
const OPEN: usize = 4;

/// What kinds of launches a launch is, or all of a group are.
#[derive(Clone, Copy)]
struct Kinds {
    /// It moves few bytes.
    small: bool,
    /// All that it writes is new values of states: nothing in the arena then lives longer where it is grouped.
    updates: bool,
    /// It writes few bytes, and does not depend on sizes that are not known yet.
    reduces: bool,
}

impl Kinds {
    /// Of a step; none of one that is no launch on the host.
    fn of(step: &Step, plan: &Plan) -> Option<Kinds> {
        let Step::Launch(l) = step else { return None };
        if !matches!(l.work, Work::Chunks { .. }) {
            return None;
        }
        Some(Kinds {
            small: l.bytes.as_const().is_some_and(|b| b <= SMALL_BYTES),
            updates: !plan.states.is_empty() && updates(step, plan),
            reduces: l.symbols.is_empty() && written_bytes(l, plan).is_some_and(|b| b <= LITTLE_BYTES),
        })
    }

    fn both(self, other: Kinds) -> Kinds {
        Kinds {
            small: self.small && other.small,
            updates: self.updates && other.updates,
            reduces: self.reduces && other.reduces,
        }
    }

    fn any(self) -> bool {
        self.small || self.updates || self.reduces
    }
}

/// A step that further launches may come to.
struct Open {
    /// Its number.
    at: usize,
    kinds: Kinds,
    /// What it touches.
    touched: Touched,
    /// What the steps behind it touch.
    behind: Touched,
}

/// A step with the slots that it updates in place and the reports of its launches.
type Reported = (Step, Vec<(SlotId, SlotId)>, Vec<LaunchReport>);

/// The steps of a plan as launches join earlier ones, with what moves along with them.
pub(crate) struct Regrouped {
    pub(crate) steps: Vec<Step>,
    in_place: Vec<Vec<(SlotId, SlotId)>>,
    pub(crate) reports: Vec<Vec<LaunchReport>>,
}

impl Regrouped {
    /// None of the steps of a plan, and these one after another with what belongs to them.
    pub(crate) fn begin(
        plan: &mut Plan,
        in_place: &mut Vec<Vec<(SlotId, SlotId)>>,
        launches: &mut Vec<LaunchReport>,
    ) -> (Regrouped, Vec<Reported>) {
        let once: usize = plan.init.iter().map(|s| s.launches().len()).sum();
        let mut of_steps = launches.split_off(once).into_iter();
        let all = std::mem::take(&mut plan.steps)
            .into_iter()
            .zip(std::mem::take(in_place));
        let all: Vec<_> = all
            .map(|(step, pairs)| {
                let reports = of_steps.by_ref().take(step.launches().len()).collect();
                (step, pairs, reports)
            })
            .collect();
        let none = Regrouped {
            steps: Vec::with_capacity(all.len()),
            in_place: Vec::with_capacity(all.len()),
            reports: Vec::with_capacity(all.len()),
        };
        (none, all)
    }

    /// A step that joins none.
    pub(crate) fn push(&mut self, step: Step, in_place: Vec<(SlotId, SlotId)>, reports: Vec<LaunchReport>) {
        self.steps.push(step);
        self.in_place.push(in_place);
        self.reports.push(reports);
    }

    /// Has a step come before an earlier one, and what is between behind it.
    pub(crate) fn hoist(&mut self, from: usize, to: usize) {
        self.steps[to..=from].rotate_right(1);
        self.in_place[to..=from].rotate_right(1);
        self.reports[to..=from].rotate_right(1);
    }

    /// A launch that joins the launch, or the group, at `at`.
    pub(crate) fn join(
        &mut self,
        at: usize,
        launch: Launch,
        in_place: Vec<(SlotId, SlotId)>,
        reports: Vec<LaunchReport>,
    ) {
        match &mut self.steps[at] {
            Step::Group(all) => all.push(launch),
            previous => {
                if let Step::Launch(first) = previous {
                    *previous = Step::Group(vec![first.clone(), launch]);
                }
            }
        }
        self.in_place[at].extend(in_place);
        self.reports[at].extend(reports);
    }

    /// Gives the steps back.
    pub(crate) fn end(
        self,
        plan: &mut Plan,
        in_place: &mut Vec<Vec<(SlotId, SlotId)>>,
        launches: &mut Vec<LaunchReport>,
    ) {
        plan.steps = self.steps;
        *in_place = self.in_place;
        launches.extend(self.reports.into_iter().flatten());
    }
}

/// Joins independent launches of one kind into groups that one fork-join executes. `in_place` has a list for each step, and `launches` a
/// report for each launch of the plan, in order; both move along.
pub fn group_launches(plan: &mut Plan, in_place: &mut Vec<Vec<(SlotId, SlotId)>>, launches: &mut Vec<LaunchReport>) {
    let (mut made, all) = Regrouped::begin(plan, in_place, launches);
    // Ascending.
    let mut open: Vec<Open> = Vec::new();
    for (step, pairs, reports) in all {
        let kinds = Kinds::of(&step, plan);
        let found = kinds.and_then(|kinds| place(&open, kinds, made.steps.len(), &step, plan));
        let (Some(kinds), Some(found)) = (kinds, found) else {
            open.iter_mut().for_each(|o| o.behind.add(&step, plan));
            if let Some(kinds) = kinds.filter(|k| k.any()) {
                let mut touched = Touched::default();
                touched.add(&step, plan);
                // Only reductions come to other steps than the last one.
                open.retain(|o| o.kinds.reduces);
                if open.len() == OPEN {
                    open.remove(0);
                }
                open.push(Open {
                    at: made.steps.len(),
                    kinds,
                    touched,
                    behind: Touched::default(),
                });
            }
            made.push(step, pairs, reports);
            continue;
        };
        let (before, rest) = open.split_at_mut(found);
        before.iter_mut().for_each(|o| o.behind.add(&step, plan));
        let group = &mut rest[0];
        group.touched.add(&step, plan);
        group.kinds = group.kinds.both(kinds);
        let Step::Launch(launch) = step else {
            unreachable!("only launches have kinds")
        };
        made.join(group.at, launch, pairs, reports);
    }
    made.end(plan, in_place, launches);
}

/// The open step that a launch joins: the last one, or, if both make little of much, the first that it may come to.
fn place(open: &[Open], kinds: Kinds, steps: usize, step: &Step, plan: &Plan) -> Option<usize> {
    let mut found = None;
    for (number, o) in open.iter().enumerate().rev() {
        if !o.behind.leaves_alone(step, plan) {
            break;
        }
        let both = o.kinds.both(kinds);
        let may = both.reduces || (both.any() && o.at + 1 == steps);
        if may && o.touched.leaves_alone(step, plan) {
            found = Some(number);
        }
    }
    found
}

/// Whether all that a step writes is new values of states.
pub(crate) fn updates(step: &Step, plan: &Plan) -> bool {
    let mut all = true;
    step.visit_slots(
        &mut |s, writes| all &= !writes || matches!(plan.slots[plan.root(s).0 as usize].storage, Storage::State(_)),
        &plan.kernels,
    );
    all
}

/// The bytes that a launch writes, if they are known.
fn written_bytes(launch: &Launch, plan: &Plan) -> Option<i64> {
    let params = &plan.kernels[launch.kernel.0 as usize].params;
    let written = launch.args.iter().zip(params);
    let written = written.filter(|(_, p)| p.access != tlc_ir::kernel::Access::Read);
    written
        .map(|(s, _)| {
            let slot = &plan.slots[s.0 as usize];
            Some(
                slot.len
                    .as_const()?
                    .saturating_mul(slot.dtype.bits() as i64)
                    .saturating_add(7)
                    / 8,
            )
        })
        .try_fold(0i64, |sum, bytes| Some(sum.saturating_add(bytes?)))
}

/// The bytes that steps touch, by root, and whether one writes them; those of parts apart from each other.
#[derive(Default)]
pub(crate) struct Touched {
    whole: FxHashMap<SlotId, bool>,
    parts: FxHashMap<SlotId, Vec<(SlotId, bool)>>,
}

impl Touched {
    pub(crate) fn add(&mut self, step: &Step, plan: &Plan) {
        step.visit_slots(
            &mut |s, writes| {
                let root = plan.root(s);
                match plan.begins(s) {
                    None => *self.whole.entry(root).or_default() |= writes,
                    Some(_) => self.parts.entry(root).or_default().push((s, writes)),
                }
            },
            &plan.kernels,
        );
    }

    /// Whether a step touches none of these bytes that it or one of the others writes.
    pub(crate) fn leaves_alone(&self, step: &Step, plan: &Plan) -> bool {
        let mut free = true;
        step.visit_slots(
            &mut |s, writes| {
                let root = plan.root(s);
                free &= self.whole.get(&root).is_none_or(|written| !written && !writes);
                let mut parts = self.parts.get(&root).into_iter().flatten();
                free &= parts.all(|&(p, w)| !(w || writes) || !plan.shares(p, s));
            },
            &plan.kernels,
        );
        free
    }
}

/// Whether two steps touch no bytes in common that one of them writes.
pub(crate) fn independent(a: &Step, b: &Step, plan: &Plan) -> bool {
    let mut touched = Touched::default();
    touched.add(a, plan);
    touched.leaves_alone(b, plan)
}
