//! Where slots lie in the arena: judged for concrete sizes.

use std::collections::BTreeMap;

use super::{PlanPlace, PlanRule, PlanViolation};
use crate::plan::{Layout, Plan, SlotId, Step, Storage};

/// Checks a placement for concrete symbol values: no two live slots overlap.
pub fn verify_layout(plan: &Plan, layout: &Layout, symbols: &[i64]) -> Vec<PlanViolation> {
    let mut errors = Vec::new();
    let place = PlanPlace::Tables;
    let mut fail = |rule| errors.push(PlanViolation { place, rule });
    let spans = spans(plan);
    let mut placed: Vec<(usize, u64, u64, (usize, usize))> = Vec::new();
    for (i, slot) in plan.slots.iter().enumerate() {
        let Some(span) = spans[i].filter(|_| slot.storage == Storage::Arena) else {
            continue;
        };
        let id = SlotId(i as u32);
        let bytes = plan
            .most(&slot.len, symbols)
            .and_then(|n| n.checked_mul(slot.dtype.bytes() as u64));
        let at = layout.offsets.get(i).copied().flatten();
        let (Some(at), Some(bytes)) = (at, bytes) else {
            fail(PlanRule::Place(id));
            continue;
        };
        if at % 64 != 0 || at.checked_add(bytes).is_none_or(|end| end > layout.arena_bytes) {
            fail(PlanRule::Place(id));
        }
        placed.push((i, at, at.saturating_add(bytes), span));
    }
    overlaps(&placed, &mut fail);
    verify_bodies(plan, layout, symbols, &placed, &mut errors);
    errors
}

/// Slots that share bytes while both are alive, of slots with the bytes and the steps of each. As long as none do, those that are
/// alive lie one behind another, so that a slot which overlaps any overlaps a neighbour: all are compared in time n log n.
pub(super) fn overlaps(placed: &[(usize, u64, u64, (usize, usize))], fail: &mut dyn FnMut(PlanRule)) {
    let filled = || placed.iter().filter(|(_, from, to, _)| from < to);
    let mut by_birth: Vec<_> = filled().collect();
    by_birth.sort_by_key(|(.., lives)| lives.0);
    let mut by_death: Vec<_> = filled().collect();
    by_death.sort_by_key(|(.., lives)| lives.1);
    let mut dead = by_death.into_iter().peekable();
    // By the place where they begin, which only wrong layouts give to several.
    let mut alive: BTreeMap<(u64, usize), u64> = BTreeMap::new();
    for &(slot, from, to, (birth, _)) in by_birth {
        while let Some(&(slot, from, ..)) = dead.next_if(|(.., lives)| lives.1 < birth) {
            alive.remove(&(from, slot));
        }
        let before = alive.range(..(from, 0)).next_back().filter(|(_, end)| **end > from);
        let behind = alive.range((from, 0)..).next().filter(|((begin, _), _)| *begin < to);
        for (&(_, other), _) in before.into_iter().chain(behind) {
            let (a, b) = (slot.min(other), slot.max(other));
            fail(PlanRule::Overlap(SlotId(a as u32), SlotId(b as u32)));
        }
        alive.insert((from, slot), to);
    }
}

/// The bodies' arenas: each overlaps nothing that lives at its loop, and is right in itself.
fn verify_bodies(
    plan: &Plan,
    layout: &Layout,
    symbols: &[i64],
    placed: &[(usize, u64, u64, (usize, usize))],
    errors: &mut Vec<PlanViolation>,
) {
    let mut bodies = layout.bodies.iter();
    for (at, step) in plan.init.iter().chain(&plan.steps).enumerate() {
        let Step::Loop(l) = step else { continue };
        let place = PlanPlace::Step(at);
        let mut fail = |rule| errors.push(PlanViolation { place, rule });
        let (Some(body), Some(inner)) = (bodies.next(), l.inner_symbols(symbols)) else {
            fail(PlanRule::Loop("its body has no arena".into()));
            continue;
        };
        let end = body.offset.saturating_add(body.layout.arena_bytes);
        if body.offset % 64 != 0 || end > layout.arena_bytes {
            fail(PlanRule::Loop("its body's arena is not inside the arena".into()));
        }
        for &(slot, from, to, lives) in placed {
            // What is empty has a place as well, which may be anywhere.
            let filled = from < to && body.offset < end;
            if filled && lives.0 <= at && at <= lives.1 && body.offset < to && from < end {
                fail(PlanRule::Loop(format!(
                    "its body's arena overlaps {}",
                    SlotId(slot as u32)
                )));
            }
        }
        for violation in verify_layout(&l.body, &body.layout, &inner) {
            fail(PlanRule::Body(l.body.name.clone(), Box::new(violation)));
        }
    }
}

/// First and last step that touches the bytes of each root.
fn spans(plan: &Plan) -> Vec<Option<(usize, usize)>> {
    let mut out: Vec<Option<(usize, usize)>> = vec![None; plan.slots.len()];
    for (at, step) in plan.init.iter().chain(&plan.steps).enumerate() {
        step.visit_slots(
            &mut |slot, _| out[plan.root(slot).0 as usize].get_or_insert((at, at)).1 = at,
            &plan.kernels,
        );
    }
    out
}
