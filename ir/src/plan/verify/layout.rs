//! Where slots lie in the arenas: judged for concrete sizes, for each device by itself.

use std::collections::BTreeMap;

use super::{PlanPlace, PlanRule, PlanViolation};
use crate::plan::{DeviceId, Layout, Plan, SlotId, Step, Storage};

/// Checks a placement for concrete symbol values: no two live slots overlap.
pub fn verify_layout(plan: &Plan, layout: &Layout, symbols: &[i64]) -> Vec<PlanViolation> {
    let mut errors = Vec::new();
    let place = PlanPlace::Tables;
    let mut fail = |rule| errors.push(PlanViolation { place, rule });
    let lives = plan.lives();
    let mut placed: Vec<Vec<Placed>> = vec![Vec::new(); plan.devices.len()];
    for (i, slot) in plan.slots.iter().enumerate() {
        let Some(alive) = lives[i].filter(|_| slot.storage == Storage::Arena) else {
            continue;
        };
        let id = SlotId(i as u32);
        let Some(neighbours) = placed.get_mut(slot.device.0 as usize) else {
            fail(PlanRule::Place(id));
            continue;
        };
        let bytes = plan
            .most(&slot.len, symbols)
            .and_then(|n| n.checked_mul(slot.dtype.bytes() as u64));
        let at = layout.offsets.get(i).copied().flatten();
        let (Some(at), Some(bytes)) = (at, bytes) else {
            fail(PlanRule::Place(id));
            continue;
        };
        if at % 64 != 0
            || at
                .checked_add(bytes)
                .is_none_or(|end| end > layout.arena(slot.device).bytes)
        {
            fail(PlanRule::Place(id));
        }
        neighbours.push((i, at, at.saturating_add(bytes), alive));
    }
    placed.iter().for_each(|all| overlaps(all, &mut fail));
    verify_bodies(plan, layout, symbols, &placed, &mut errors);
    errors
}

/// A slot, from which byte to which of its arena, and from which step of the call to which it is alive.
pub(super) type Placed = (usize, u64, u64, (usize, usize));

/// Slots that share bytes while both are alive, of slots with the bytes and the steps of each. As long as none do, those that are
/// alive lie one behind another, so that a slot which overlaps any overlaps a neighbour: all are compared in time n log n.
pub(super) fn overlaps(placed: &[Placed], fail: &mut dyn FnMut(PlanRule)) {
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
    placed: &[Vec<Placed>],
    errors: &mut Vec<PlanViolation>,
) {
    let mut bodies = layout.bodies.iter();
    for (at, step) in plan.steps.iter().enumerate() {
        let Step::Loop(l) = step else { continue };
        let place = PlanPlace::Step(plan.init.len() + at);
        let mut fail = |rule| errors.push(PlanViolation { place, rule });
        let (Some(body), Some(inner)) = (bodies.next(), l.inner_symbols(symbols)) else {
            fail(PlanRule::Loop("its body has no arena".into()));
            continue;
        };
        for (device, placed) in (0..).map(DeviceId).zip(placed) {
            let offset = body.offset(device);
            let end = offset.saturating_add(body.layout.arena(device).bytes);
            if offset % 64 != 0 || end > layout.arena(device).bytes {
                fail(PlanRule::Loop("its body's arena is not inside the arena".into()));
            }
            for &(slot, from, to, alive) in placed {
                // What is empty has a place as well, which may be anywhere.
                let filled = from < to && offset < end;
                if filled && alive.0 <= at && at <= alive.1 && offset < to && from < end {
                    fail(PlanRule::Loop(format!(
                        "its body's arena overlaps {}",
                        SlotId(slot as u32)
                    )));
                }
            }
        }
        for violation in verify_layout(&l.body, &body.layout, &inner) {
            fail(PlanRule::Body(l.body.name.clone(), Box::new(violation)));
        }
    }
}
