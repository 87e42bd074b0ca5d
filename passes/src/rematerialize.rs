//! Rematerialization: values that are read again late are computed again, in place of being kept.
//!
//! It works on the steps of a plan, before launches are grouped and bytes are shared. A value that is live where the arena is
//! largest, but not read there, is dropped after its last reader before that place; the step that made it, and those that made
//! what it needs, run once more just before the next reader. They run the same kernels on the same operands, so every result keeps
//! its bits. A value that nobody reads before is not computed twice: its step moves.
//!
//! Which value goes is chosen greedily: the one that frees the most of what is live near the peak, summed over the steps, for the time
//! that computing it again takes. The trade of memory for time is that of Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016); choosing
//! by size over cost that of Kirisame et al., "Dynamic Tensor Rematerialization" (2021), here with every lifetime known. In a long plan several that do not
//! touch each other go at once, so that the search takes seconds where the plan has ten thousand steps.
//!
//! Invariants:
//! - An operand of a step that runs again has the value that it had the first time: nothing overwrites its bytes in between.
//! - Only kernels and library products run again, never what writes an output, a state, or what another step writes as well.
//! - What is chosen depends on the plan alone; the limit says where to stop.

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use tlc_ir::plan::{DeviceId, Plan, Slot, SlotId, Step, Storage};
use tlc_ir::{NodeId, Target};

use crate::launch::LaunchReport;
use crate::memory::pack;

/// What a launch costs besides its work, in nanoseconds.
const STEP_NS: f64 = 500.0;
/// The most steps that run again for one value.
const MAX_STEPS: usize = 48;
/// A plan is changed at so many places at once, for each of which it has so many steps.
const STEPS_PER_CHANGE: usize = 64;
/// What a search may look at: so many steps over which a value might be dropped, where a change itself counts as some. It ends searches
/// in plans of many thousands of steps, after some seconds.
const SEARCH_BUDGET: u64 = 1 << 32;

/// What was computed again so that a call needs less memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rematerialized {
    /// Bytes of the arena if nothing were computed again.
    pub kept_bytes: u64,
    /// What it is limited to.
    pub limit_bytes: u64,
    /// In the order in which it was chosen.
    pub again: Vec<Again>,
}

/// A value that is computed again, or later.
#[derive(Clone, Debug, PartialEq)]
pub struct Again {
    /// What is computed.
    pub label: String,
    /// Bytes that are free until then.
    pub bytes: u64,
    /// Steps that run once more for it; none if it is only computed later.
    pub steps: usize,
    /// The least time that they take, in nanoseconds.
    pub ns: f64,
}

/// The parts of a plan in the making that change together.
pub(crate) struct Draft<'p> {
    pub(crate) plan: &'p mut Plan,
    pub(crate) in_place: &'p mut Vec<Vec<(SlotId, SlotId)>>,
    /// By step, the reports of its launches.
    pub(crate) reports: &'p mut Vec<Vec<LaunchReport>>,
    pub(crate) values: &'p mut Vec<Option<NodeId>>,
    /// By step, what it costs.
    pub(crate) costs: Vec<Cost>,
}

/// What a step costs on the device whose arena is limited.
#[derive(Clone, Copy)]
pub(crate) struct Cost {
    /// The least time that it takes, in nanoseconds, if it may run again.
    ns: f64,
    /// Bytes of the arena of a loop's body.
    body_bytes: u64,
}

impl Cost {
    /// What the steps of a plan cost. `None` if sizes are not known.
    pub(crate) fn of(plan: &Plan, device: DeviceId, target: &Target) -> Option<Vec<Cost>> {
        let each = plan.steps.iter().map(|step| {
            let body_bytes = match step {
                Step::Loop(l) => pack(&l.body, &l.inner_symbols(&[])?)?.arena(device).bytes,
                _ => 0,
            };
            Some(Cost {
                ns: step_ns(plan, step, target)?,
                body_bytes,
            })
        });
        each.collect()
    }
}

/// The parts of a draft, as they were.
type Parts = (
    Plan,
    Vec<Vec<(SlotId, SlotId)>>,
    Vec<Vec<LaunchReport>>,
    Vec<Option<NodeId>>,
    Vec<Cost>,
);

/// How a value is dropped.
#[derive(Clone, Copy, PartialEq)]
enum Operands {
    /// What its step needs is kept until then.
    Kept,
    /// What is large beside it is computed again as well.
    Small,
    /// All that can be is computed again as well.
    Again,
}

/// A change that was weighed.
struct Change {
    value: SlotId,
    /// Steps that run again, in order, and whether each moves in place of running twice.
    steps: Vec<(usize, bool)>,
    /// The step that they run before.
    before: usize,
    ns: f64,
    /// Bytes above the level that it saves, over all steps.
    saved: u64,
    /// From which steps to which other ones, not counted, how many bytes more are live; in order, up to `before`.
    spans: SmallVec<[(usize, usize, i64); 4]>,
}

/// What changes are weighed by.
struct Goal {
    /// The step where the most bytes are live.
    peak: usize,
    /// Bytes that may be live at every step.
    level: u64,
    /// From the first step with more to behind the last.
    above: (usize, usize),
}

/// Lifetimes on one device.
struct Lives {
    /// By slot, the steps that read it, in order.
    reads: Vec<SmallVec<[u32; 4]>>,
    /// By slot, the steps that write it, in order.
    writes: Vec<SmallVec<[u32; 2]>>,
    /// By slot, its bytes if it is in the arena of the device.
    bytes: Vec<u64>,
    /// By slot, the last step at which it takes bytes of its own.
    end: Vec<usize>,
    /// By step, the slots that it reads, then those that it writes.
    touched: Vec<[SmallVec<[SlotId; 4]>; 2]>,
    /// By step, whether it may run again.
    repeatable: Vec<bool>,
    /// By step, the bytes that are live.
    live: Vec<u64>,
    /// By step, the bytes that are live before it and are needed by it or later.
    across: Vec<u64>,
}

impl Lives {
    fn of(draft: &Draft<'_>, device: DeviceId) -> Option<Lives> {
        let plan = &*draft.plan;
        let (slots, steps) = (plan.slots.len(), plan.steps.len());
        let mut shared = vec![false; slots];
        let mut bytes = vec![0u64; slots];
        for (k, slot) in plan.slots.iter().enumerate() {
            match slot.storage {
                Storage::Alias(_) | Storage::Part { .. } => {
                    shared[k] = true;
                    shared[plan.root(SlotId(k as u32)).0 as usize] = true;
                }
                Storage::Arena if slot.device == device => bytes[k] = slot_bytes(slot)?,
                _ => {}
            }
        }
        let mut lives = Lives {
            reads: vec![SmallVec::new(); slots],
            writes: vec![SmallVec::new(); slots],
            end: vec![0; slots],
            touched: Vec::with_capacity(steps),
            repeatable: Vec::with_capacity(steps),
            live: vec![0; steps],
            across: vec![0; steps + 1],
            bytes,
        };
        for (at, step) in plan.steps.iter().enumerate() {
            let mut touched = [SmallVec::<[SlotId; 4]>::new(), SmallVec::new()];
            step.visit_slots(
                &mut |slot, writes| {
                    let root = plan.root(slot);
                    let list = &mut touched[usize::from(writes)];
                    if !list.contains(&root) {
                        list.push(root);
                        let of = root.0 as usize;
                        match writes {
                            true => lives.writes[of].push(at as u32),
                            false => lives.reads[of].push(at as u32),
                        }
                    }
                },
                &plan.kernels,
            );
            lives.touched.push(touched);
        }
        for (at, step) in plan.steps.iter().enumerate() {
            let [reads, writes] = &lives.touched[at];
            // A product's result, which the kernel behind it reads.
            let result = match step {
                Step::Gemm(g) => Some(plan.root(g.dst.slot)),
                _ => None,
            };
            // What passes from product to product has no bytes that count.
            let repeatable = matches!(step, Step::Launch(_) | Step::Gemm(_))
                && !matches!(step, Step::Gemm(g) if g.behind().is_some())
                && writes.iter().all(|&z| {
                    let of = z.0 as usize;
                    lives.bytes[of] > 0
                        && !shared[of]
                        && lives.writes[of].len() == 1
                        && (result == Some(z) || !reads.contains(&z))
                })
                && match step {
                    Step::Gemm(g) => result != Some(plan.root(g.lhs.slot)) && result != Some(plan.root(g.rhs.slot)),
                    _ => true,
                };
            lives.repeatable.push(repeatable);
        }
        lives.measure(draft);
        // The arenas of loops' bodies are live while the loops run.
        for (live, cost) in lives.live.iter_mut().zip(&draft.costs) {
            *live += cost.body_bytes;
        }
        Some(lives)
    }

    fn first(&self, slot: usize) -> Option<usize> {
        let firsts = [self.reads[slot].first(), self.writes[slot].first()];
        firsts.into_iter().flatten().min().map(|&at| at as usize)
    }

    fn last(&self, slot: usize) -> Option<usize> {
        let lasts = [self.reads[slot].last(), self.writes[slot].last()];
        lasts.into_iter().flatten().max().map(|&at| at as usize)
    }

    /// What is live at each step, where values take the bytes of those that die there.
    fn measure(&mut self, draft: &Draft<'_>) {
        for slot in 0..self.bytes.len() {
            self.end[slot] = self.last(slot).unwrap_or(0);
        }
        for (at, pairs) in draft.in_place.iter().enumerate() {
            let mut taken: SmallVec<[SlotId; 4]> = SmallVec::new();
            for &(read, written) in pairs {
                let (r, w) = (read.0 as usize, written.0 as usize);
                let fits = self.bytes[r] > 0
                    && self.bytes[r] == self.bytes[w]
                    && self.last(r) == Some(at)
                    && self.first(w) == Some(at);
                if fits && !taken.contains(&read) && !taken.contains(&written) {
                    taken.extend([read, written]);
                    self.end[r] = at.saturating_sub(1);
                }
            }
        }
        let steps = self.live.len();
        let (mut born, mut dead) = (vec![0u64; steps + 1], vec![0u64; steps + 2]);
        for slot in 0..self.bytes.len() {
            let Some(first) = self.first(slot).filter(|&first| first <= self.end[slot]) else {
                continue;
            };
            born[first] += self.bytes[slot];
            dead[self.end[slot] + 1] += self.bytes[slot];
        }
        let mut live = 0;
        for at in 0..steps {
            live -= dead[at];
            self.across[at] = live;
            live += born[at];
            self.live[at] = live;
        }
        self.across[steps] = live - dead[steps];
    }

    /// Whether a slot is written between two steps, neither of them counted.
    fn written_between(&self, slot: SlotId, after: usize, before: usize) -> bool {
        let writes = &self.writes[slot.0 as usize];
        writes.iter().any(|&w| (w as usize) > after && (w as usize) < before)
    }

    /// The next step from `at` that touches a slot.
    fn next(&self, slot: usize, at: usize) -> Option<usize> {
        let touches = self.reads[slot].iter().chain(&self.writes[slot]);
        touches.map(|&t| t as usize).filter(|&t| t >= at).min()
    }

    /// The last step before `at` that touches a slot.
    fn previous(&self, slot: usize, at: usize) -> Option<usize> {
        let touches = self.reads[slot].iter().chain(&self.writes[slot]);
        touches.map(|&t| t as usize).filter(|&t| t < at).max()
    }

    /// What it takes, and saves, to drop a value that is not touched at a step until it is next read.
    fn weigh(&self, value: SlotId, goal: &Goal, costs: &[Cost], operands: Operands) -> Option<Change> {
        let before = self.next(value.0 as usize, goal.peak)?;
        let &[maker] = &self.writes[value.0 as usize][..] else {
            return None;
        };
        // The steps that run again, the latest first, and the operands that live longer.
        let mut steps = vec![maker as usize];
        let mut longer: SmallVec<[SlotId; 8]> = SmallVec::new();
        let mut looked_at = 0;
        while let Some(&step) = steps.get(looked_at) {
            looked_at += 1;
            if !self.repeatable[step] || steps.len() > MAX_STEPS {
                return None;
            }
            let [reads, writes] = &self.touched[step];
            for &operand in reads.iter().filter(|r| !writes.contains(r)) {
                let of = operand.0 as usize;
                if self.written_between(operand, step, before) {
                    return None;
                }
                if self.bytes[of] == 0 || self.end[of] >= before || longer.contains(&operand) {
                    continue;
                }
                let made_by = match self.writes[of][..] {
                    [maker] if self.repeatable[maker as usize] => Some(maker as usize),
                    _ => None,
                };
                let again = match operands {
                    Operands::Kept => None,
                    Operands::Small if self.bytes[of] * 4 <= self.bytes[value.0 as usize] => None,
                    Operands::Small | Operands::Again => made_by,
                };
                match again {
                    Some(maker) if steps.contains(&maker) => {}
                    Some(maker) => steps.push(maker),
                    None => longer.push(operand),
                }
            }
        }
        steps.sort_unstable();
        longer.retain(|o| {
            self.writes[o.0 as usize]
                .iter()
                .all(|w| steps.binary_search(&(*w as usize)).is_err())
        });
        let change = self.priced(value, steps, before, &longer, goal, costs)?;
        (change.saved > 0).then_some(change)
    }

    /// The change with its price.
    fn priced(
        &self,
        value: SlotId,
        steps: Vec<usize>,
        before: usize,
        longer: &[SlotId],
        goal: &Goal,
        costs: &[Cost],
    ) -> Option<Change> {
        let level = goal.level;
        // From the latest: a step moves if nobody but steps that move reads what it makes before.
        let mut moves = vec![false; steps.len()];
        for k in (0..steps.len()).rev() {
            moves[k] = self.touched[steps[k]][1].iter().all(|z| {
                let early = self.reads[z.0 as usize]
                    .iter()
                    .map(|&r| r as usize)
                    .filter(|&r| r < before && r != steps[k]);
                early
                    .into_iter()
                    .all(|r| steps.binary_search(&r).is_ok_and(|reader| moves[reader]))
            });
        }
        let first = steps[0];
        // Where the bytes that are live at the steps from `first` to the one before change, and by how many.
        let mut changes: SmallVec<[(usize, i64); 16]> = SmallVec::new();
        let mut add = |from: usize, to: usize, bytes: i64| {
            // Closed at both ends, and perhaps empty.
            if from <= to {
                changes.extend([(from, bytes), (to + 1, -bytes)]);
            }
        };
        let mut base = self.across[before];
        // Bytes made by each of the steps, with the last of them that reads them.
        let mut made: Vec<(usize, usize, u64)> = Vec::new();
        for (k, (&step, &moves)) in steps.iter().zip(&moves).enumerate() {
            for z in &self.touched[step][1] {
                let of = z.0 as usize;
                let bytes = self.bytes[of];
                let lasts = self.next(of, before).is_some();
                let early = self.previous(of, before)?;
                let end = if lasts { before - 1 } else { early.min(self.end[of]) };
                if moves {
                    add(step, end, -(bytes as i64));
                } else if lasts {
                    add(early + 1, before - 1, -(bytes as i64));
                }
                if lasts && self.end[of] >= before {
                    base -= bytes;
                }
                let last = match lasts {
                    true => usize::MAX,
                    false => self.last_reader(z, &steps).unwrap_or(k),
                };
                made.push((k, last, bytes));
            }
        }
        let mut held: Vec<(usize, u64)> = Vec::new();
        for o in longer {
            let bytes = self.bytes[o.0 as usize];
            add((self.end[o.0 as usize] + 1).max(first), before - 1, bytes as i64);
            held.push((self.last_reader(o, &steps)?, bytes));
        }
        changes.sort_unstable_by_key(|&(at, _)| at);
        let mut spans: SmallVec<[(usize, usize, i64); 4]> = SmallVec::new();
        let (mut bytes, mut from) = (0, first);
        for &(at, change) in &changes {
            if bytes != 0 && from < at {
                spans.push((from, at, bytes));
            }
            (bytes, from) = (bytes + change, at);
        }
        let mut saved = 0i64;
        for &(from, to, bytes) in &spans {
            // Where fewer are live than the level, fewer still save nothing.
            let (from, to) = match bytes < 0 {
                true => (from.max(goal.above.0), to.min(goal.above.1)),
                false => (from, to),
            };
            for live in self.live.get(from..to).unwrap_or_default() {
                let now = live.saturating_add_signed(bytes);
                saved += live.saturating_sub(level) as i64 - now.saturating_sub(level) as i64;
            }
        }
        let mut ns = 0.0;
        for (k, (&step, &moves)) in steps.iter().zip(&moves).enumerate() {
            let of_made = made.iter().filter(|(from, to, _)| *from <= k && k <= *to);
            let of_held = held.iter().filter(|(to, _)| k <= *to);
            let live = base + of_made.map(|m| m.2).sum::<u64>() + of_held.map(|h| h.1).sum::<u64>();
            if live > self.live[goal.peak] {
                return None;
            }
            saved -= live.saturating_sub(level) as i64;
            if !moves {
                ns += costs[step].ns + STEP_NS;
            }
        }
        Some(Change {
            value,
            steps: steps.into_iter().zip(moves).collect(),
            before,
            ns,
            saved: u64::try_from(saved).ok()?,
            spans,
        })
    }

    /// The last of some steps, by its place among them, that reads a slot.
    fn last_reader(&self, slot: &SlotId, steps: &[usize]) -> Option<usize> {
        (0..steps.len())
            .rev()
            .find(|&k| self.touched[steps[k]][0].contains(slot))
    }
}

fn slot_bytes(slot: &Slot) -> Option<u64> {
    let elements = u64::try_from(slot.len.as_const()?).ok()?;
    elements
        .checked_mul(slot.dtype.bytes() as u64)?
        .checked_next_multiple_of(crate::memory::ALIGNMENT)
}

/// The least time of a step that may run again, in nanoseconds. `None` if sizes are not known.
fn step_ns(plan: &Plan, step: &Step, target: &Target) -> Option<f64> {
    if !matches!(step, Step::Launch(_) | Step::Gemm(_)) {
        return Some(0.0);
    }
    let [bytes, flops] = plan
        .step_work(step)
        .map(|e| e.as_const().and_then(|n| u64::try_from(n).ok()));
    let (bytes, flops) = (bytes?, flops?);
    Some(match (target, step) {
        (Target::Gpu(gpu), _) => gpu.floor_ns(bytes, flops, plan.step_multiplies(step)).0,
        (Target::Cpu(cpu), Step::Gemm(_)) => cpu.floor_ns(bytes, flops).0,
        (Target::Cpu(cpu), _) => cpu.kernel_floor_ns(bytes, flops).0,
    })
}

impl Draft<'_> {
    /// Changes the plan until `arena` says that the arena of a device is as small as the limit; it is asked where the bytes that are live
    /// are at most so many at every step. If no plan that it comes to is, the plan is the one of the smallest arena. Returns what was
    /// computed again.
    ///
    /// What is chosen does not depend on the limit, which says only where to stop: a limit of what an impossible one came to is met.
    pub(crate) fn lower(&mut self, device: DeviceId, limit: u64, arena: &dyn Fn(&Draft<'_>) -> u64) -> Vec<Again> {
        let kept = self.parts();
        let mut again = Vec::new();
        let fits = &mut |draft: &Draft<'_>, most: u64, _: &[Again]| most <= limit && arena(draft) <= limit;
        if self.search(device, &mut again, fits) {
            return again;
        }
        // Once more, with a look at every plan on the way.
        self.restore(kept.clone());
        let mut least = (arena(self), kept, Vec::new());
        again.clear();
        let never = &mut |draft: &Draft<'_>, most: u64, again: &[Again]| {
            let bytes = if most < least.0 { arena(draft) } else { u64::MAX };
            if bytes < least.0 {
                least = (bytes, draft.parts(), again.to_vec());
            }
            false
        };
        self.search(device, &mut again, never);
        self.restore(least.1);
        least.2
    }

    fn parts(&self) -> Parts {
        (
            self.plan.clone(),
            self.in_place.clone(),
            self.reports.clone(),
            self.values.clone(),
            self.costs.clone(),
        )
    }

    fn restore(&mut self, parts: Parts) {
        (*self.plan, *self.in_place, *self.reports, *self.values, self.costs) = parts;
    }

    /// Changes the plan until `done` says so, which is given the most bytes that are live at a step and what was computed again; false if
    /// nothing is left to be changed, or too much was tried.
    fn search(
        &mut self,
        device: DeviceId,
        again: &mut Vec<Again>,
        done: &mut dyn FnMut(&Draft<'_>, u64, &[Again]) -> bool,
    ) -> bool {
        let mut given_up = vec![false; self.plan.slots.len()];
        let most_changes = self.plan.steps.len() * 8;
        let mut budget = SEARCH_BUDGET;
        while let Some(lives) = Lives::of(self, device)
            && let Some((peak, &most)) = lives.live.iter().enumerate().rev().max_by_key(|(_, live)| **live)
        {
            if done(self, most, again) {
                return true;
            }
            if again.len() >= most_changes {
                return false;
            }
            let mut at_most = |level: u64| {
                let is_above = |live: &u64| *live > level;
                let first = lives.live.iter().position(is_above).unwrap_or(peak);
                let last = lives.live.iter().rposition(is_above).unwrap_or(peak);
                let goal = Goal {
                    peak,
                    level,
                    above: (first, last + 1),
                };
                self.best(&lives, &goal, &given_up, &mut budget)
            };
            let mut best = at_most(most - most / 16);
            if best.is_empty() {
                best = at_most(most.saturating_sub(1));
            }
            if best.is_empty() {
                return false;
            }
            for change in &best {
                let value = change.value.0 as usize;
                again.push(Again {
                    label: self.label(change),
                    bytes: lives.bytes[value],
                    steps: change.steps.iter().filter(|(_, moves)| !moves).count(),
                    ns: change.ns,
                });
                // Each is dropped once: what is made of it has another name.
                given_up[value] = true;
            }
            self.apply(best);
            given_up.resize(self.plan.slots.len(), false);
        }
        false
    }

    /// The change that frees the most of what is live above a level for the time that it takes. In a long plan with others that have
    /// nothing to do with it, as far as they are needed to reach the level; in the order in which they free less.
    fn best(&self, lives: &Lives, goal: &Goal, given_up: &[bool], budget: &mut u64) -> Vec<Change> {
        let candidates = (0..self.plan.slots.len()).filter(|&slot| {
            lives.bytes[slot] > 0
                && lives.end[slot] > goal.peak
                && !given_up[slot]
                && lives.first(slot).is_some_and(|first| first < goal.peak)
                && lives.next(slot, goal.peak) != Some(goal.peak)
        });
        let mut all: Vec<Change> = Vec::new();
        for slot in candidates {
            for operands in [Operands::Kept, Operands::Small, Operands::Again] {
                if *budget == 0 {
                    return Vec::new();
                }
                let change = lives.weigh(SlotId(slot as u32), goal, &self.costs, operands);
                // What it looked at.
                let steps = change.iter().flat_map(|c| &c.spans).map(|(from, to, _)| to - from);
                *budget = budget.saturating_sub(64 + steps.sum::<usize>() as u64);
                all.extend(change);
            }
        }
        all.sort_by(|a, b| rate(b).total_cmp(&rate(a)));
        let most = (self.plan.steps.len() / STEPS_PER_CHANGE).max(1);
        let mut live = lives.live.clone();
        let mut peak = goal.peak;
        let mut chosen: Vec<Change> = Vec::new();
        // Slots that the chosen ones read, and those that they write.
        let mut touched = [FxHashSet::default(), FxHashSet::default()];
        while chosen.len() < most && (chosen.is_empty() || live[peak] > goal.level) {
            let apart = |change: &Change| {
                change.steps.iter().all(|(step, _)| {
                    let [reads, writes] = &lives.touched[*step];
                    reads.iter().all(|r| !touched[1].contains(r))
                        && writes.iter().all(|w| touched.iter().all(|t| !t.contains(w)))
                })
            };
            let lowers = |c: &Change| c.spans.iter().any(|s| s.0 <= peak && peak < s.1 && s.2 < 0);
            let Some(next) = all.iter().position(|c| chosen.is_empty() || lowers(c) && apart(c)) else {
                break;
            };
            let change = all.remove(next);
            for (step, _) in &change.steps {
                let [reads, writes] = &lives.touched[*step];
                touched[0].extend(reads.iter().copied());
                touched[1].extend(writes.iter().copied());
            }
            for &(from, to, bytes) in &change.spans {
                let spanned = live.get_mut(from..to).unwrap_or_default();
                spanned.iter_mut().for_each(|l| *l = l.saturating_add_signed(bytes));
            }
            chosen.push(change);
            let highest = live.iter().enumerate().rev().max_by_key(|(_, live)| **live);
            peak = highest.map_or(peak, |(at, _)| at);
        }
        chosen
    }

    fn label(&self, change: &Change) -> String {
        let makes = |(step, _): &&(usize, bool)| {
            let mut makes = false;
            let step = &self.plan.steps[*step];
            step.visit_slots(
                &mut |s, writes| makes |= writes && s == change.value,
                &self.plan.kernels,
            );
            makes
        };
        let step = change.steps.iter().find(makes).map(|(step, _)| &self.plan.steps[*step]);
        match step {
            Some(Step::Launch(l)) => l.label.clone(),
            Some(Step::Gemm(g)) => match &g.epilogue {
                Some(e) => format!("{} then {}", g.label, e.launch.label),
                None => g.label.clone(),
            },
            _ => self.plan.slots[change.value.0 as usize].name.clone(),
        }
    }

    /// Makes changes of which none touches what another one has run again.
    fn apply(&mut self, mut changes: Vec<Change>) {
        changes.sort_by_key(|c| c.before);
        let steps = std::mem::take(&mut self.plan.steps).into_iter();
        let rest = std::mem::take(self.in_place)
            .into_iter()
            .zip(std::mem::take(self.reports))
            .zip(std::mem::take(&mut self.costs));
        let mut entries: Vec<_> = steps.zip(rest).map(Some).collect();
        // What runs again, and where steps that move are no longer.
        let again: Vec<Vec<_>> = (changes.iter())
            .map(|c| c.steps.iter().map(|&(at, _)| entries[at].clone()).collect())
            .collect();
        for &(at, _) in changes.iter().flat_map(|c| &c.steps).filter(|(_, moves)| *moves) {
            entries[at] = None;
        }
        let mut renamed: FxHashMap<SlotId, SlotId> = FxHashMap::default();
        let mut again = changes.iter().zip(again).peekable();
        for (at, entry) in entries.into_iter().enumerate() {
            let mut here: SmallVec<[_; 1]> = SmallVec::new();
            while let Some((change, entries)) = again.next_if(|(c, _)| c.before == at) {
                for (entry, &(_, moves)) in entries.iter().flatten().zip(&change.steps) {
                    if !moves {
                        self.rename_results(&entry.0, &mut renamed);
                    }
                }
                here.extend(entries);
            }
            here.push(entry);
            for (mut step, ((mut pairs, reports), cost)) in here.into_iter().flatten() {
                let mut rename = |s: &mut SlotId| *s = renamed.get(s).copied().unwrap_or(*s);
                step.rename_slots(&mut rename);
                for (read, written) in &mut pairs {
                    rename(read);
                    rename(written);
                }
                self.plan.steps.push(step);
                self.in_place.push(pairs);
                self.reports.push(reports);
                self.costs.push(cost);
            }
        }
    }

    /// New slots for what a step writes that runs again.
    fn rename_results(&mut self, step: &Step, renamed: &mut FxHashMap<SlotId, SlotId>) {
        let mut written: SmallVec<[SlotId; 4]> = SmallVec::new();
        step.visit_slots(&mut |s, writes| written.extend(writes.then_some(s)), &self.plan.kernels);
        for slot in written {
            let of = slot.0 as usize;
            let new = SlotId(self.plan.slots.len() as u32);
            if *renamed.entry(slot).or_insert(new) == new {
                self.plan.slots.push(self.plan.slots[of].clone());
                self.values.push(self.values[of]);
            }
        }
    }
}

/// Bytes saved for the time that it takes.
fn rate(change: &Change) -> f64 {
    change.saved as f64 / (change.ns + 1.0)
}
