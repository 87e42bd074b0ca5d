//! Rematerialization: values that are read again late are computed again, in place of being kept.
//!
//! It works on the steps of a plan, before launches are grouped and bytes are shared. A value that is live where the arena is
//! largest, but not read there, is dropped after its last reader before that place; the step that made it, and those that made
//! what it needs, run once more just before the next reader. They run the same kernels on the same operands, so every result keeps
//! its bits. A value that nobody reads before is not computed twice: its step moves.
//!
//! Which value goes is chosen greedily: the one that frees the most of what is live near the peak, summed over the steps, for the time
//! that computing it again takes. The trade of memory for time is that of Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016); choosing
//! by size over cost that of Kirisame et al., "Dynamic Tensor Rematerialization" (2021), here with every lifetime known.
//!
//! Invariants:
//! - An operand of a step that runs again has the value that it had the first time: nothing overwrites its bytes in between.
//! - Only kernels and library products run again, never what writes an output, a state, or what another step writes as well.
//! - What is chosen depends on the plan alone; the limit says where to stop.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use tlc_ir::plan::{DeviceId, Plan, Slot, SlotId, Step, Storage};
use tlc_ir::{NodeId, Target};

use crate::launch::LaunchReport;
use crate::memory::pack;

/// What a launch costs besides its work, in nanoseconds.
const STEP_NS: f64 = 500.0;
/// The most steps that run again for one value.
const MAX_STEPS: usize = 48;

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
}

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
    ns: Vec<f64>,
    /// By step, the bytes that are live.
    live: Vec<u64>,
    /// By step, the bytes that are live before it and are needed by it or later.
    across: Vec<u64>,
}

impl Lives {
    fn of(draft: &Draft<'_>, device: DeviceId, target: &Target) -> Option<Lives> {
        let plan = &*draft.plan;
        let (slots, steps) = (plan.slots.len(), plan.steps.len());
        let mut shared = vec![false; slots];
        let mut bytes = vec![0u64; slots];
        for (k, slot) in plan.slots.iter().enumerate() {
            match slot.storage {
                Storage::Alias(_) => {
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
            ns: Vec::with_capacity(steps),
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
            lives.ns.push(step_ns(plan, step, target)?);
        }
        for (at, step) in plan.steps.iter().enumerate() {
            let [reads, writes] = &lives.touched[at];
            // A product's result, which the kernel behind it reads.
            let result = match step {
                Step::Gemm(g) => Some(plan.root(g.dst.slot)),
                _ => None,
            };
            let repeatable = matches!(step, Step::Launch(_) | Step::Gemm(_))
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
        lives.add_bodies(plan, device)?;
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

    /// The arenas of loops' bodies are live while the loops run.
    fn add_bodies(&mut self, plan: &Plan, device: DeviceId) -> Option<()> {
        for (at, step) in plan.steps.iter().enumerate() {
            if let Step::Loop(l) = step {
                self.live[at] += pack(&l.body, &l.inner_symbols(&[])?)?.arena(device).bytes;
            }
        }
        Some(())
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
    fn weigh(&self, value: SlotId, peak: usize, level: u64, operands: Operands) -> Option<Change> {
        let before = self.next(value.0 as usize, peak)?;
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
        let change = self.priced(value, steps, before, &longer, peak, level)?;
        (change.saved > 0).then_some(change)
    }

    /// The change with its price.
    fn priced(
        &self,
        value: SlotId,
        steps: Vec<usize>,
        before: usize,
        longer: &[SlotId],
        peak: usize,
        level: u64,
    ) -> Option<Change> {
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
        // What changes of the bytes that are live at the steps from `first` to the one before.
        let mut delta = vec![0i64; before - first + 1];
        let mut add = |from: usize, to: usize, bytes: i64| {
            // Closed at both ends, and perhaps empty.
            if from <= to {
                delta[from - first] += bytes;
                delta[to + 1 - first] -= bytes;
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
        let mut saved = 0i64;
        let mut change = 0i64;
        for (live, d) in self.live[first..before].iter().zip(&delta) {
            change += d;
            let now = (*live as i64 + change).max(0) as u64;
            saved += live.saturating_sub(level) as i64 - now.saturating_sub(level) as i64;
        }
        let mut ns = 0.0;
        for (k, (&step, &moves)) in steps.iter().zip(&moves).enumerate() {
            let of_made = made.iter().filter(|(from, to, _)| *from <= k && k <= *to);
            let of_held = held.iter().filter(|(to, _)| k <= *to);
            let live = base + of_made.map(|m| m.2).sum::<u64>() + of_held.map(|h| h.1).sum::<u64>();
            if live > self.live[peak] {
                return None;
            }
            saved -= live.saturating_sub(level) as i64;
            if !moves {
                ns += self.ns[step] + STEP_NS;
            }
        }
        Some(Change {
            value,
            steps: steps.into_iter().zip(moves).collect(),
            before,
            ns,
            saved: u64::try_from(saved).ok()?,
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
        (Target::Gpu(gpu), _) => gpu.floor_ns(bytes, flops).0,
        (Target::Cpu(cpu), Step::Gemm(_)) => cpu.floor_ns(bytes, flops).0,
        (Target::Cpu(cpu), _) => cpu.kernel_floor_ns(bytes, flops).0,
    })
}

impl Draft<'_> {
    /// Changes the plan until `fits` says that the arena of a device is small enough, or nothing that could be tried makes it smaller; it
    /// is asked where the bytes that are live are at most `limit` at every step. Returns what was computed again.
    ///
    /// What is chosen does not depend on the limit, which says only where to stop: a limit of what an impossible one came to is met.
    pub(crate) fn lower(
        &mut self,
        device: DeviceId,
        target: &Target,
        limit: u64,
        fits: &dyn Fn(&Draft<'_>) -> bool,
    ) -> Vec<Again> {
        let mut again = Vec::new();
        let mut given_up = vec![false; self.plan.slots.len()];
        let most_changes = self.plan.steps.len() * 8;
        while let Some(lives) = Lives::of(self, device, target)
            && let Some((peak, &most)) = lives.live.iter().enumerate().rev().max_by_key(|(_, live)| **live)
        {
            if most <= limit && fits(self) || again.len() >= most_changes {
                break;
            }
            let at_most = |level: u64| self.best(&lives, peak, level, &given_up);
            let Some(best) = at_most(most - most / 16).or_else(|| at_most(most.saturating_sub(1))) else {
                break;
            };
            let value = best.value.0 as usize;
            again.push(Again {
                label: self.label(&best),
                bytes: lives.bytes[value],
                steps: best.steps.iter().filter(|(_, moves)| !moves).count(),
                ns: best.ns,
            });
            self.apply(&best);
            // Each is dropped once: what is made of it has another name.
            given_up[value] = true;
            given_up.resize(self.plan.slots.len(), false);
        }
        again
    }

    /// The change that frees the most of what is live above a level for the time that it takes.
    fn best(&self, lives: &Lives, peak: usize, level: u64, given_up: &[bool]) -> Option<Change> {
        let candidates = (0..self.plan.slots.len()).filter(|&slot| {
            lives.bytes[slot] > 0
                && lives.end[slot] > peak
                && !given_up[slot]
                && lives.first(slot).is_some_and(|first| first < peak)
                && lives.next(slot, peak) != Some(peak)
        });
        let ways = |slot: usize| {
            let each = [Operands::Kept, Operands::Small, Operands::Again];
            each.map(|operands| lives.weigh(SlotId(slot as u32), peak, level, operands))
        };
        let changes = candidates.flat_map(ways).flatten();
        changes.max_by(|a, b| rate(a).total_cmp(&rate(b)))
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

    fn apply(&mut self, change: &Change) {
        let mut renamed: FxHashMap<SlotId, SlotId> = FxHashMap::default();
        for &(step, moves) in &change.steps {
            if moves {
                continue;
            }
            let mut written: SmallVec<[SlotId; 4]> = SmallVec::new();
            let step = &self.plan.steps[step];
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
        let mut rename = |s: &mut SlotId| *s = renamed.get(s).copied().unwrap_or(*s);
        let mut inserted = Vec::with_capacity(change.steps.len());
        for &(at, _) in &change.steps {
            let mut step = self.plan.steps[at].clone();
            step.rename_slots(&mut rename);
            let mut pairs = self.in_place[at].clone();
            for (read, written) in &mut pairs {
                rename(read);
                rename(written);
            }
            inserted.push((step, pairs, self.reports[at].clone()));
        }
        for step in &mut self.plan.steps[change.before..] {
            step.rename_slots(&mut rename);
        }
        for (read, written) in self.in_place[change.before..].iter_mut().flatten() {
            rename(read);
            rename(written);
        }
        for (k, (step, pairs, reports)) in inserted.into_iter().enumerate() {
            let at = change.before + k;
            self.plan.steps.insert(at, step);
            self.in_place.insert(at, pairs);
            self.reports.insert(at, reports);
        }
        for &(at, _) in change.steps.iter().rev().filter(|(_, moves)| *moves) {
            self.plan.steps.remove(at);
            self.in_place.remove(at);
            self.reports.remove(at);
        }
    }
}

/// Bytes saved for the time that it takes.
fn rate(change: &Change) -> f64 {
    change.saved as f64 / (change.ns + 1.0)
}
