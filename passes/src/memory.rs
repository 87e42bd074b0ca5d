//! Memory planning: which slots share bytes, and where each lives in the arena.
//!
//! Aliases are chosen once per plan: a kernel that reads each element of a dying value only where it writes its own result
//! may write in place, and so may one that is done with a whole row before it writes that row (see `lower::in_place`).
//! Offsets are packed when sizes are known, at compile time or when symbols are bound, by [`pack`]:
//! the best of several first-fit orders, against the lower bound of simultaneously live bytes.
//!
//! The order of steps is the planner's, and where devices work at once a partial one ([`tlc_ir::plan::order`]). Lifetimes are closed
//! intervals of step numbers ([`Plan::lives`]), so a value that dies where another is born overlaps it unless they alias. Each
//! device has an arena of its own.

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::{SmallVec, smallvec};
use tlc_ir::plan::{Arena, BodyLayout, DeviceId, KernelId, Layout, Plan, Slot, SlotId, Step, Storage};

use crate::launch::LaunchReport;
use crate::made::{Made, made};
pub use crate::reason::{AliasDecision, AliasReason};

/// Alignment of slots in the arena, in bytes.
pub const ALIGNMENT: u64 = 64;

/// Has what computes the new value of a state write it to the state's own bytes, in place of a copy at the end of the call, where every
/// step that reads the old value comes before, or reads each element where the new one is written. `in_place` as for
/// [`choose_aliases`]; it loses the copies that go. `copies` are the kernels that do nothing but copy one slot to another: where a scatter's
/// base is the old value, its updates are all that is written. `launches` has a report for each launch of the plan, in order, and loses those of
/// launches that go.
pub fn update_states(
    plan: &mut Plan,
    in_place: &mut Vec<Vec<(SlotId, SlotId)>>,
    launches: &mut Vec<LaunchReport>,
    copies: &FxHashSet<KernelId>,
) -> Vec<AliasDecision> {
    let mut decisions = Vec::new();
    let uses = Uses::of(plan);
    let mut gone = vec![false; plan.steps.len()];
    let mut renamed: FxHashMap<SlotId, SlotId> = FxHashMap::default();
    for k in 0..plan.states.len() {
        let (state, Some(set)) = (plan.states[k].slot, plan.states[k].set) else {
            continue;
        };
        let Some(copy) = uses.delivery[set.0 as usize] else {
            continue;
        };
        let Step::Copy { src, .. } = plan.steps[copy] else {
            continue;
        };
        let begins = uses.writes_in_place(plan, in_place, state, src);
        if let Some(begins) = begins {
            plan.slots[src.0 as usize].storage = Storage::Alias(state);
            plan.states[k].set = Some(src);
            gone[copy] = true;
            if let Step::Launch(l) = &plan.steps[begins]
                && l.args[..] == [state, src]
                && copies.contains(&l.kernel)
            {
                gone[begins] = true;
                // Nothing writes all of the new value now: it is the old one, of which parts change.
                plan.states[k].set = Some(state);
                renamed.insert(src, state);
            }
        }
        decisions.push(AliasDecision {
            slot: src,
            of: state,
            reason: match begins {
                Some(_) => AliasReason::UpdatesState,
                None => AliasReason::StateCopied,
            },
        });
    }
    let once: usize = plan.init.iter().map(|s| s.launches().len()).sum();
    let of_steps = plan.steps.iter().zip(&gone);
    let of_launches = of_steps.flat_map(|(s, gone)| s.launches().iter().map(move |_| !gone));
    let kept: Vec<bool> = std::iter::repeat_n(true, once).chain(of_launches).collect();
    let mut kept = kept.into_iter();
    launches.retain(|_| kept.next().unwrap_or(true));
    let mut kept = gone.iter().map(|gone| !gone);
    plan.steps.retain(|_| kept.next().unwrap_or(true));
    let mut kept = gone.iter().map(|gone| !gone);
    in_place.retain(|_| kept.next().unwrap_or(true));
    if !renamed.is_empty() {
        let mut rename = |s: &mut SlotId| *s = renamed.get(s).copied().unwrap_or(*s);
        plan.steps.iter_mut().for_each(|s| s.rename_slots(&mut rename));
        for (read, written) in in_place.iter_mut().flatten() {
            rename(read);
            rename(written);
        }
    }
    decisions
}

/// What is to be said of the parts of concatenations.
pub fn joined(plan: &Plan) -> Vec<AliasDecision> {
    let copied: FxHashSet<SlotId> = plan
        .steps
        .iter()
        .filter_map(|s| match s {
            Step::Copy { dst, .. } => Some(*dst),
            _ => None,
        })
        .collect();
    let slots = plan.slots.iter().zip((0..).map(SlotId));
    slots
        .filter_map(|(s, slot)| {
            let Storage::Part { of, .. } = s.storage else {
                return None;
            };
            let reason = match copied.contains(&slot) {
                true => AliasReason::CopiedToWhole,
                false => AliasReason::PartOfWhole,
            };
            Some(AliasDecision { slot, of, reason })
        })
        .collect()
}

/// Which steps touch each slot, but for the copies that deliver new values to states.
struct Uses {
    /// The last step that reads or writes it.
    last: Vec<Option<usize>>,
    first_write: Vec<Option<usize>>,
    /// The copy that delivers a new value to it.
    delivery: Vec<Option<usize>>,
}

impl Uses {
    fn of(plan: &Plan) -> Uses {
        let none = vec![None; plan.slots.len()];
        let mut uses = Uses {
            last: none.clone(),
            first_write: none.clone(),
            delivery: none,
        };
        let set: FxHashSet<SlotId> = plan.states.iter().filter_map(|s| s.set).collect();
        for (at, step) in plan.steps.iter().enumerate() {
            if let Step::Copy { src, dst } = step
                && set.contains(dst)
            {
                uses.delivery[dst.0 as usize].get_or_insert(at);
                uses.last[src.0 as usize] = Some(at);
                continue;
            }
            step.visit_slots(
                &mut |s, writes| {
                    uses.last[s.0 as usize] = Some(at);
                    if writes {
                        uses.first_write[s.0 as usize].get_or_insert(at);
                    }
                },
                &plan.kernels,
            );
        }
        uses
    }

    /// The step that begins to write a value, if the value can be computed in the bytes of a state that nothing but its delivery writes.
    fn writes_in_place(
        &self,
        plan: &Plan,
        in_place: &[Vec<(SlotId, SlotId)>],
        state: SlotId,
        value: SlotId,
    ) -> Option<usize> {
        let (old, new) = (&plan.slots[state.0 as usize], &plan.slots[value.0 as usize]);
        if new.storage != Storage::Arena || old.device != new.device || old.len != new.len || old.dtype != new.dtype {
            return None;
        }
        let write = self.first_write[value.0 as usize]?;
        let fits = match self.last[state.0 as usize] {
            Some(read) if read == write => {
                let mut readers = 0;
                plan.steps[read].visit_slots(&mut |s, _| readers += u32::from(s == state), &plan.kernels);
                readers == 1 && in_place[read].contains(&(state, value))
            }
            read => read < Some(write),
        };
        fits.then_some(write)
    }
}

/// Chooses aliases. `in_place[k]` lists, for step `k`, the `(read, written)` slot pairs that may be one buffer.
pub fn choose_aliases(plan: &mut Plan, in_place: &[Vec<(SlotId, SlotId)>]) -> Vec<AliasDecision> {
    let mut decisions = Vec::new();
    let order = plan.order();
    let whole = |s: &Slot| match s.storage {
        Storage::Part { of, .. } => Some(of),
        _ => None,
    };
    let wholes: FxHashSet<SlotId> = plan.slots.iter().filter_map(whole).collect();
    // The steps that touch each slot; those of what shares its bytes are added.
    let mut uses = vec![order.nothing(); plan.slots.len()];
    for (at, step) in plan.steps.iter().enumerate() {
        step.visit_slots(
            &mut |slot, _| {
                order.add(&mut uses[slot.0 as usize], at);
                // Who touches a part touches the whole.
                if plan.begins(slot).is_some() {
                    order.add(&mut uses[plan.root(slot).0 as usize], at);
                }
            },
            &plan.kernels,
        );
    }
    for (at, pairs) in in_place.iter().enumerate() {
        let mut taken: Vec<SlotId> = Vec::new();
        let mut done: Vec<SlotId> = Vec::new();
        // Kernels of many results have many pairs: counted again only where something changed.
        let mut counted: Option<FxHashMap<SlotId, u32>> = None;
        for &(read, written) in pairs {
            if done.contains(&written) || taken.contains(&read) {
                continue;
            }
            let root = plan.root(read);
            let same = plan.slots[root.0 as usize].len == plan.slots[written.0 as usize].len
                && plan.slots[root.0 as usize].dtype.bytes() == plan.slots[written.0 as usize].dtype.bytes();
            // Another launch of the group, or the product before, may read the operand while this one overwrites it.
            let readers = counted.get_or_insert_with(|| readers(plan, at));
            let readers = readers.get(&root).copied().unwrap_or_default();
            // Everything that shares the bytes must be past its last use.
            let live = !order.all_before(&uses[root.0 as usize], at);
            // What is part of a concatenation is nobody's to overwrite, and parts stay where the whole is that they were placed in.
            let is_joined = plan.begins(read).is_some() || wholes.contains(&root);
            let reason = match (
                &plan.slots[root.0 as usize].storage,
                &plan.slots[written.0 as usize].storage,
            ) {
                _ if !same || live || readers > 1 => AliasReason::StillLive,
                _ if is_joined => AliasReason::StillLive,
                (Storage::Arena, Storage::Arena) => AliasReason::InPlace,
                (Storage::Arena, Storage::Part { .. }) => AliasReason::IntoWhole,
                (Storage::Arena, Storage::Output(_)) => AliasReason::IntoOutput,
                _ => AliasReason::NotOurs,
            };
            match reason {
                AliasReason::InPlace => {
                    let added = uses[written.0 as usize].clone();
                    order.join(&mut uses[root.0 as usize], &added);
                    plan.slots[written.0 as usize].storage = Storage::Alias(root);
                }
                // The output's own last use is no earlier than this step.
                AliasReason::IntoOutput | AliasReason::IntoWhole => {
                    plan.slots[root.0 as usize].storage = Storage::Alias(written);
                }
                _ => {}
            }
            let moved = matches!(
                reason,
                AliasReason::InPlace | AliasReason::IntoOutput | AliasReason::IntoWhole
            );
            if moved {
                taken.push(read);
                done.push(written);
                counted = None;
            }
            decisions.push(AliasDecision {
                slot: written,
                of: read,
                reason,
            });
        }
    }
    decisions
}

/// How often a step reads the bytes of each slot.
fn readers(plan: &Plan, step: usize) -> FxHashMap<SlotId, u32> {
    let mut readers = FxHashMap::default();
    plan.steps[step].visit_slots(
        &mut |s, writes| {
            if !writes {
                *readers.entry(plan.root(s)).or_default() += 1;
            }
        },
        &plan.kernels,
    );
    readers
}

/// Which inputs a caller may give away: every `(input, output)` of which the output can be computed in the input's buffer,
/// outputs in order, an input of the output's name before the others. `in_place` as for [`choose_aliases`], which has run
/// before and whose decisions then say so.
pub fn choose_donations(
    plan: &Plan,
    in_place: &[Vec<(SlotId, SlotId)>],
    decisions: &mut [AliasDecision],
) -> Vec<(u32, u32)> {
    let spans = plan.lives();
    let mut out: Vec<(u32, u32)> = Vec::new();
    let mut known: FxHashSet<(u32, u32)> = FxHashSet::default();
    let mut decided: FxHashMap<(SlotId, SlotId), usize> = FxHashMap::default();
    for (k, d) in decisions.iter().enumerate() {
        decided.entry((d.slot, d.of)).or_insert(k);
    }
    for (at, pairs) in in_place.iter().enumerate() {
        let mut touched: Option<FxHashMap<SlotId, u32>> = None;
        for &(read, written) in pairs {
            let slots = (&plan.slots[read.0 as usize], &plan.slots[written.0 as usize]);
            let (Storage::Input(input), Storage::Output(output)) = (&slots.0.storage, &slots.1.storage) else {
                continue;
            };
            let same = slots.0.len == slots.1.len && slots.0.dtype.bytes() == slots.1.dtype.bytes();
            // Nothing needs the input later, and nothing has moved into the output's buffer before.
            let dies = spans[read.0 as usize].is_some_and(|s| s.1 == at);
            let begins = spans[written.0 as usize].is_some_and(|s| s.0 == at);
            let touched = touched.get_or_insert_with(|| {
                let mut touched = FxHashMap::default();
                plan.steps[at].visit_slots(
                    &mut |s, _| *touched.entry(plan.root(s)).or_default() += 1,
                    &plan.kernels,
                );
                touched
            });
            let readers = touched.get(&read).copied().unwrap_or_default();
            // A product writes its result before the kernel behind it reads anything.
            let overwritten = matches!(&plan.steps[at], Step::Gemm(g) if plan.root(g.dst.slot) == plan.root(written));
            if same && dies && begins && readers == 1 && !overwritten && known.insert((*input, *output)) {
                out.push((*input, *output));
                if let Some(&k) = decided.get(&(written, read)) {
                    decisions[k].reason = AliasReason::IfGiven;
                }
            }
        }
    }
    let named_alike = |i: u32, o: u32| plan.inputs[i as usize].name == plan.outputs[o as usize].name;
    out.sort_by_key(|&(i, o)| (o, !named_alike(i, o), i));
    out
}

/// Whose bytes a block is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Owner {
    /// A slot's.
    Slot(usize),
    /// The arena of a loop's body.
    Body(usize),
}

struct Block {
    owner: Owner,
    bytes: u64,
    first: usize,
    last: usize,
}

/// Bytes between slots where a device finds accesses beside them.
const RED_ZONE: u64 = 256;

/// Places arena slots for concrete symbol values. `None` if a size is negative or overflows.
pub fn pack(plan: &Plan, symbols: &[i64]) -> Option<Layout> {
    pack_with(plan, symbols, 0)
}

/// As [`pack`], with room behind each slot that belongs to none: for devices that check accesses.
pub fn pack_apart(plan: &Plan, symbols: &[i64]) -> Option<Layout> {
    pack_with(plan, symbols, RED_ZONE)
}

fn pack_with(plan: &Plan, symbols: &[i64], between: u64) -> Option<Layout> {
    let order = plan.order();
    let spans = plan.lives_in(&order);
    // By device.
    let mut blocks: Vec<Vec<Block>> = plan.devices.iter().map(|_| Vec::new()).collect();
    let mut naive = vec![0u64; plan.devices.len()];
    for (i, slot) in plan.slots.iter().enumerate() {
        if slot.storage != Storage::Arena {
            continue;
        }
        let elements = plan.most(&slot.len, symbols)?;
        let bytes = elements
            .checked_mul(slot.dtype.bytes() as u64)?
            .checked_add(between)?
            .checked_next_multiple_of(ALIGNMENT)?;
        let (first, last) = spans[i].unwrap_or((0, 0));
        let device = slot.device.0 as usize;
        naive[device] = naive[device].checked_add(bytes)?;
        blocks[device].push(Block {
            owner: Owner::Slot(i),
            bytes,
            first,
            last,
        });
    }
    let mut bodies = Vec::new();
    for (at, step) in plan.steps.iter().enumerate() {
        let Step::Loop(l) = step else { continue };
        let layout = pack_with(&l.body, &l.inner_symbols(symbols)?, between)?;
        let mut alone = order.nothing();
        order.add(&mut alone, at);
        for (device, (blocks, naive)) in blocks.iter_mut().zip(&mut naive).enumerate() {
            let inner = layout.arena(DeviceId(device as u32));
            *naive = naive.checked_add(inner.naive_bytes)?;
            blocks.push(Block {
                owner: Owner::Body(bodies.len()),
                bytes: inner.bytes.checked_next_multiple_of(ALIGNMENT)?,
                first: at,
                last: order.end(&alone),
            });
        }
        bodies.push(BodyLayout {
            offsets: smallvec![0; plan.devices.len()],
            layout,
        });
    }
    let mut layout = Layout {
        offsets: vec![None; plan.slots.len()],
        arenas: SmallVec::new(),
        bodies,
    };
    for (device, (blocks, naive_bytes)) in blocks.iter().zip(naive).enumerate() {
        let lower_bound_bytes = lower_bound(blocks, plan.steps.len());
        let (bytes, offsets) = place(blocks, plan.steps.len(), lower_bound_bytes);
        for (b, at) in blocks.iter().zip(offsets) {
            match b.owner {
                Owner::Slot(slot) => layout.offsets[slot] = Some(at),
                Owner::Body(body) => layout.bodies[body].offsets[device] = at,
            }
        }
        layout.arenas.push(Arena {
            bytes,
            lower_bound_bytes,
            naive_bytes,
        });
    }
    made(Made::Layout(&mut layout));
    Some(layout)
}

/// The bytes of an arena, and where each block is in it.
fn place(blocks: &[Block], steps: usize, lower: u64) -> (u64, Vec<u64>) {
    // The largest first; the longest-lived first; as they are born. Only the last takes no more than linear time whatever the
    // lifetimes, so the others may be given up.
    type Order = fn(&Block) -> (std::cmp::Reverse<u64>, usize, Owner);
    let orders: [Order; 2] = [
        |b| (std::cmp::Reverse(b.bytes), b.first, b.owner),
        |b| (std::cmp::Reverse((b.last - b.first) as u64), b.first, b.owner),
    ];
    let mut best: Option<(u64, Vec<u64>)> = None;
    let mut better = |found: Option<(u64, Vec<u64>)>| {
        if let Some(found) = found
            && best.as_ref().is_none_or(|(peak, _)| found.0 < *peak)
        {
            best = Some(found);
        }
        best.as_ref().is_some_and(|(peak, _)| *peak <= lower)
    };
    let sorted = |order: Order| {
        let mut by: Vec<usize> = (0..blocks.len()).collect();
        by.sort_by_key(|&i| order(&blocks[i]));
        by
    };
    let perfect = orders
        .iter()
        .any(|&order| better(first_fit(blocks, &sorted(order), steps)));
    if !perfect {
        better(Some(first_fit_by_birth(blocks, steps)));
    }
    best.unwrap_or_default()
}

fn lower_bound(blocks: &[Block], steps: usize) -> u64 {
    let mut change = vec![0i128; steps + 2];
    for b in blocks {
        change[b.first] += b.bytes as i128;
        change[b.last + 1] -= b.bytes as i128;
    }
    let (mut live, mut peak) = (0i128, 0i128);
    for c in change {
        live += c;
        peak = peak.max(live);
    }
    peak as u64
}

/// What [`first_fit`] may look at: so many blocks and steps, and so many more for each block.
const SEARCH_BUDGET: (usize, usize) = (1 << 22, 256);

/// Overlapping blocks from which on those before are gone through in the order of their offsets: fewer are sorted sooner.
const MANY: usize = 64;
/// That many times as many blocks are gone through in their order as would have to be sorted.
const SORTING: usize = 8;

/// Blocks that have a place, by lifetime.
struct Placed<'b> {
    blocks: &'b [Block],
    offsets: Vec<u64>,
    /// A tree over the steps: each block is in the fewest nodes that cover its lifetime, so those alive at a step are in the
    /// nodes above that step.
    alive: Vec<Vec<u32>>,
    /// By the step at which they are born.
    born: Vec<Vec<u32>>,
    /// How many are born by step, as a Fenwick tree.
    births: Vec<u32>,
    leaves: usize,
    /// All of them that have a place, by offset; none until that is asked for.
    ordered: Option<Ordered>,
    count: usize,
}

impl<'b> Placed<'b> {
    fn new(blocks: &'b [Block], steps: usize) -> Placed<'b> {
        let leaves = steps.max(1).next_power_of_two();
        Placed {
            blocks,
            offsets: vec![0; blocks.len()],
            alive: vec![Vec::new(); 2 * leaves],
            born: vec![Vec::new(); leaves],
            births: vec![0; leaves + 1],
            leaves,
            ordered: None,
            count: 0,
        }
    }

    fn insert(&mut self, number: usize, at: u64) {
        let b = &self.blocks[number];
        self.offsets[number] = at;
        self.count += 1;
        if let Some(ordered) = &mut self.ordered {
            ordered.insert(number as u32, self.blocks, &self.offsets);
        }
        self.born[b.first].push(number as u32);
        let mut node = b.first + 1;
        while node < self.births.len() {
            self.births[node] += 1;
            node += node & node.wrapping_neg();
        }
        let (mut from, mut to) = (b.first + self.leaves, b.last + self.leaves + 1);
        while from < to {
            if from & 1 == 1 {
                self.alive[from].push(number as u32);
                from += 1;
            }
            if to & 1 == 1 {
                to -= 1;
                self.alive[to].push(number as u32);
            }
            from /= 2;
            to /= 2;
        }
    }

    /// The blocks that are alive when one is born, in parts.
    fn alive(&self, b: &Block) -> impl Iterator<Item = &Vec<u32>> {
        let leaf = b.first + self.leaves;
        std::iter::successors(Some(leaf), |node| Some(node / 2).filter(|n| *n > 0)).map(|node| &self.alive[node])
    }

    /// How many lifetimes overlap that of a block.
    fn overlaps(&self, b: &Block) -> usize {
        let alive: usize = self.alive(b).map(Vec::len).sum();
        alive + self.born_until(b.last) - self.born_until(b.first)
    }

    /// How many are born at a step or before it.
    fn born_until(&self, step: usize) -> usize {
        let before = |node: &usize| Some(node & (node - 1)).filter(|node| *node > 0);
        let nodes = std::iter::successors(Some(step + 1), before);
        nodes.map(|node| self.births[node] as usize).sum()
    }

    /// How much there is to look at where a block overlaps so many.
    fn to_look_at(&self, b: &Block, overlaps: usize) -> usize {
        (b.last - b.first) + overlaps + self.leaves.trailing_zeros() as usize + 1
    }

    /// The lowest offset that is free for the whole lifetime of a block, which overlaps so many.
    fn lowest(&mut self, b: &Block, overlaps: usize, taken: &mut Vec<(u64, u64)>) -> u64 {
        if overlaps >= MANY && overlaps * SORTING >= self.count {
            return self.lowest_in_order(b);
        }
        let place = |n: &u32| {
            let n = *n as usize;
            (self.offsets[n], self.offsets[n] + self.blocks[n].bytes)
        };
        taken.clear();
        self.alive(b).for_each(|all| taken.extend(all.iter().map(place)));
        let born = &self.born[b.first + 1..=b.last];
        born.iter().for_each(|all| taken.extend(all.iter().map(place)));
        taken.sort_unstable();
        let mut at = 0u64;
        for &(begin, end) in &*taken {
            if begin >= at + b.bytes {
                break;
            }
            at = at.max(end);
        }
        at
    }

    /// As [`Placed::lowest`], by all blocks in the order of their offsets, of which most overlap.
    fn lowest_in_order(&mut self, b: &Block) -> u64 {
        let (blocks, offsets) = (self.blocks, &self.offsets);
        let ordered = self.ordered.get_or_insert_with(|| {
            let mut all: Vec<u32> = self.born.iter().flatten().copied().collect();
            all.sort_unstable_by_key(|&n| offsets[n as usize]);
            Ordered::of(&all, blocks, offsets)
        });
        let mut at = 0u64;
        for run in &ordered.runs {
            if run.begin >= at + b.bytes {
                break;
            }
            if run.first.end <= b.last && b.first <= run.last.start {
                // All overlap, and no gap between two of them is wide enough.
                if run.gap < b.bytes {
                    at = at.max(run.end);
                    continue;
                }
            } else if b.last < run.first.start || run.last.end < b.first {
                continue;
            }
            for &n in &run.numbers {
                let (begin, other) = (offsets[n as usize], &blocks[n as usize]);
                if begin >= at + b.bytes {
                    return at;
                }
                if other.first <= b.last && b.first <= other.last {
                    at = at.max(begin + other.bytes);
                }
            }
        }
        at
    }
}

/// Blocks of a run, at most: one more makes two runs of it.
const RUN: usize = 64;

/// Blocks in the order of their offsets, in runs of which is known what makes a look at each block needless.
struct Ordered {
    runs: Vec<Run>,
}

/// Blocks next to each other in the order of their offsets.
struct Run {
    numbers: Vec<u32>,
    /// The lowest offset.
    begin: u64,
    /// The end of that which reaches furthest.
    end: u64,
    /// The widest gap between one of them and all before it in the run.
    gap: u64,
    /// The first and the last step at which one is born, and at which one dies.
    first: std::ops::Range<usize>,
    last: std::ops::Range<usize>,
}

impl Run {
    fn of(numbers: &[u32], blocks: &[Block], offsets: &[u64]) -> Run {
        let (begin, b) = (offsets[numbers[0] as usize], &blocks[numbers[0] as usize]);
        let mut run = Run {
            numbers: numbers.to_vec(),
            begin,
            end: begin,
            gap: 0,
            first: b.first..b.first,
            last: b.last..b.last,
        };
        for &n in numbers {
            let (begin, b) = (offsets[n as usize], &blocks[n as usize]);
            run.gap = run.gap.max(begin.saturating_sub(run.end));
            run.end = run.end.max(begin + b.bytes);
            run.first = run.first.start.min(b.first)..run.first.end.max(b.first);
            run.last = run.last.start.min(b.last)..run.last.end.max(b.last);
        }
        run
    }
}

impl Ordered {
    fn of(numbers: &[u32], blocks: &[Block], offsets: &[u64]) -> Ordered {
        let runs = numbers.chunks(RUN / 2).map(|part| Run::of(part, blocks, offsets));
        Ordered { runs: runs.collect() }
    }

    fn insert(&mut self, number: u32, blocks: &[Block], offsets: &[u64]) {
        let at = offsets[number as usize];
        // The last run that begins no later, or the first.
        let place = self.runs.partition_point(|run| run.begin <= at).saturating_sub(1);
        let Some(run) = self.runs.get_mut(place) else {
            self.runs.push(Run::of(&[number], blocks, offsets));
            return;
        };
        let behind = run.numbers.partition_point(|&p| offsets[p as usize] <= at);
        run.numbers.insert(behind, number);
        let numbers = std::mem::take(&mut run.numbers);
        let parts = match numbers.len() > RUN {
            true => numbers.split_at(RUN / 2),
            false => (&numbers[..], &numbers[..0]),
        };
        *run = Run::of(parts.0, blocks, offsets);
        if !parts.1.is_empty() {
            self.runs.insert(place + 1, Run::of(parts.1, blocks, offsets));
        }
    }
}

/// Places blocks in the given order, each at the lowest offset that is free for its whole lifetime. `None` if that takes too
/// long.
fn first_fit(blocks: &[Block], order: &[usize], steps: usize) -> Option<(u64, Vec<u64>)> {
    let mut placed = Placed::new(blocks, steps);
    let mut budget = SEARCH_BUDGET.0 + SEARCH_BUDGET.1 * blocks.len();
    let mut peak = 0;
    let mut taken: Vec<(u64, u64)> = Vec::new();
    for &i in order {
        let b = &blocks[i];
        if b.bytes == 0 {
            continue;
        }
        let overlaps = placed.overlaps(b);
        budget = budget.checked_sub(placed.to_look_at(b, overlaps))?;
        let at = placed.lowest(b, overlaps, &mut taken);
        placed.insert(i, at);
        peak = peak.max(at + b.bytes);
    }
    Some((peak, placed.offsets))
}

/// Places blocks as they are born, each at the lowest offset that is free then.
fn first_fit_by_birth(blocks: &[Block], steps: usize) -> (u64, Vec<u64>) {
    let mut born: Vec<Vec<usize>> = vec![Vec::new(); steps.max(1)];
    let mut dead: Vec<Vec<usize>> = vec![Vec::new(); steps.max(1) + 1];
    for (i, b) in blocks.iter().enumerate().filter(|(_, b)| b.bytes > 0) {
        born[b.first].push(i);
        dead[b.last + 1].push(i);
    }
    let mut offsets = vec![0u64; blocks.len()];
    let mut peak = 0;
    // Free ranges by where they begin, with where they end; no two touch.
    let mut free = std::collections::BTreeMap::from([(0u64, u64::MAX)]);
    for (born, dead) in born.iter().zip(&dead) {
        for &i in dead {
            let (mut begin, mut end) = (offsets[i], offsets[i] + blocks[i].bytes);
            if let Some((&before, &touches)) = free.range(..begin).next_back()
                && touches == begin
            {
                begin = before;
            }
            if let Some(after) = free.remove(&end) {
                end = after;
            }
            free.insert(begin, end);
        }
        for &i in born {
            let bytes = blocks[i].bytes;
            let found = free.iter().find(|&(begin, end)| end - begin >= bytes);
            let (&begin, &end) = found.expect("the last range has no end");
            free.remove(&begin);
            if begin + bytes < end {
                free.insert(begin + bytes, end);
            }
            offsets[i] = begin;
            peak = peak.max(begin + bytes);
        }
    }
    (peak, offsets)
}

#[cfg(test)]
mod tests;
