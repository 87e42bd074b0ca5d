//! Memory planning: which slots share bytes, and where each lives in the arena.
//!
//! Aliases are chosen once per plan: a kernel that reads each element of a dying value only where it writes its own result
//! may write in place, and so may one that is done with a whole row before it writes that row (see `lower::in_place`).
//! Offsets are packed when sizes are known, at compile time or when symbols are bound, by [`pack`]: a sweep over the steps,
//! then, where that misses the lower bound of simultaneously live bytes, the best of several first-fit orders.
//!
//! The order of steps is the planner's; lifetimes are closed intervals of step numbers, so a value that dies where another
//! is born overlaps it unless they alias.

use std::fmt;

use tlc_ir::plan::{Layout, Plan, SlotId, Step, Storage};

/// Alignment of slots in the arena, in bytes.
pub const ALIGNMENT: u64 = 64;
/// Slots up to which placements are sought by comparing every pair.
const MAX_COMPARED: usize = 4096;

/// One aliasing decision.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AliasDecision {
    /// The slot that is written.
    pub slot: SlotId,
    /// The slot whose bytes it takes, or would have.
    pub of: SlotId,
    /// What was decided, and why.
    pub reason: AliasReason,
}

/// Why a result is, or is not, written in place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AliasReason {
    /// The operand dies here and each element is read where it is written.
    InPlace,
    /// The operand moves into the output's buffer, which is free until then.
    IntoOutput,
    /// The operand is needed later.
    StillLive,
    /// The operand is an input that the caller may give away.
    IfGiven,
    /// The operand's bytes belong to the caller or are constant.
    NotOurs,
}

impl fmt::Display for AliasReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InPlace => "in place: the operand dies here",
            Self::IntoOutput => "computed in the output's buffer",
            Self::StillLive => "not in place: the operand is needed later",
            Self::IfGiven => "in place if the caller gives the operand away",
            Self::NotOurs => "not in place: the operand's bytes are the caller's",
        })
    }
}

/// First and last step that touches each slot, aliases counted with the slot whose bytes they use.
pub fn lifetimes(plan: &Plan) -> Vec<Option<(usize, usize)>> {
    let mut out: Vec<Option<(usize, usize)>> = vec![None; plan.slots.len()];
    for (at, step) in plan.steps.iter().enumerate() {
        step.visit_slots(
            &mut |slot, _| {
                let root = plan.root(slot).0 as usize;
                let span = out[root].get_or_insert((at, at));
                span.1 = at;
            },
            &plan.kernels,
        );
    }
    out
}

/// Chooses aliases. `in_place[k]` lists, for step `k`, the `(read, written)` slot pairs that may be one buffer.
pub fn choose_aliases(plan: &mut Plan, in_place: &[Vec<(SlotId, SlotId)>]) -> Vec<AliasDecision> {
    let mut decisions = Vec::new();
    // By root: the last step that touches its bytes, through itself or an alias.
    let mut last_use = vec![0usize; plan.slots.len()];
    for (at, step) in plan.steps.iter().enumerate() {
        step.visit_slots(&mut |slot, _| last_use[slot.0 as usize] = at, &plan.kernels);
    }
    for (at, pairs) in in_place.iter().enumerate() {
        let mut taken: Vec<SlotId> = Vec::new();
        let mut done: Vec<SlotId> = Vec::new();
        for &(read, written) in pairs {
            if done.contains(&written) || taken.contains(&read) {
                continue;
            }
            let root = plan.root(read);
            if root == plan.root(written) {
                continue;
            }
            let same = plan.slots[root.0 as usize].len == plan.slots[written.0 as usize].len
                && plan.slots[root.0 as usize].dtype.bytes() == plan.slots[written.0 as usize].dtype.bytes();
            // Another launch of the group may read the operand while this one overwrites it.
            let mut readers = 0;
            plan.steps[at].visit_slots(&mut |s, _| readers += (plan.root(s) == root) as u32, &plan.kernels);
            // Everything that shares the bytes must be past its last use.
            let live = last_use[root.0 as usize] > at;
            let reason = match (
                &plan.slots[root.0 as usize].storage,
                &plan.slots[written.0 as usize].storage,
            ) {
                _ if !same || live || readers > 1 => AliasReason::StillLive,
                (Storage::Arena, Storage::Arena) => AliasReason::InPlace,
                (Storage::Arena, Storage::Output(_)) => AliasReason::IntoOutput,
                _ => AliasReason::NotOurs,
            };
            match reason {
                AliasReason::InPlace => {
                    last_use[root.0 as usize] = last_use[root.0 as usize].max(last_use[written.0 as usize]);
                    plan.slots[written.0 as usize].storage = Storage::Alias(root);
                }
                // The output's own last use is no earlier than this step.
                AliasReason::IntoOutput => plan.slots[root.0 as usize].storage = Storage::Alias(written),
                _ => {}
            }
            if matches!(reason, AliasReason::InPlace | AliasReason::IntoOutput) {
                taken.push(read);
                done.push(written);
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

/// Which inputs a caller may give away: every `(input, output)` of which the output can be computed in the input's buffer,
/// outputs in order, an input of the output's name before the others. `in_place` as for [`choose_aliases`], which has run
/// before and whose decisions then say so.
pub fn choose_donations(
    plan: &Plan,
    in_place: &[Vec<(SlotId, SlotId)>],
    decisions: &mut [AliasDecision],
) -> Vec<(u32, u32)> {
    let spans = lifetimes(plan);
    let mut out: Vec<(u32, u32)> = Vec::new();
    for (at, pairs) in in_place.iter().enumerate() {
        for &(read, written) in pairs {
            let slots = (&plan.slots[read.0 as usize], &plan.slots[written.0 as usize]);
            let (Storage::Input(input), Storage::Output(output)) = (&slots.0.storage, &slots.1.storage) else {
                continue;
            };
            let same = slots.0.len == slots.1.len && slots.0.dtype.bytes() == slots.1.dtype.bytes();
            // Nothing needs the input later, and nothing has moved into the output's buffer before.
            let dies = spans[read.0 as usize].is_some_and(|s| s.1 == at);
            let begins = spans[written.0 as usize].is_some_and(|s| s.0 == at);
            let mut readers = 0;
            plan.steps[at].visit_slots(&mut |s, _| readers += (plan.root(s) == read) as u32, &plan.kernels);
            if same && dies && begins && readers == 1 && !out.contains(&(*input, *output)) {
                out.push((*input, *output));
                let decided = |d: &&mut AliasDecision| d.slot == written && d.of == read;
                if let Some(d) = decisions.iter_mut().find(decided) {
                    d.reason = AliasReason::IfGiven;
                }
            }
        }
    }
    let named_alike = |i: u32, o: u32| plan.inputs[i as usize].name == plan.outputs[o as usize].name;
    out.sort_by_key(|&(i, o)| (o, !named_alike(i, o), i));
    out
}

struct Block {
    slot: usize,
    bytes: u64,
    first: usize,
    last: usize,
}

/// Places arena slots for concrete symbol values. `None` if a size is negative or overflows.
pub fn pack(plan: &Plan, symbols: &[i64]) -> Option<Layout> {
    let spans = lifetimes(plan);
    let mut blocks = Vec::new();
    let mut naive = 0u64;
    for (i, slot) in plan.slots.iter().enumerate() {
        if slot.storage != Storage::Arena {
            continue;
        }
        let elements = u64::try_from(slot.len.eval_symbols(symbols)?).ok()?;
        let bytes = elements
            .checked_mul(slot.dtype.bytes() as u64)?
            .checked_next_multiple_of(ALIGNMENT)?;
        let (first, last) = spans[i].unwrap_or((0, 0));
        naive = naive.checked_add(bytes)?;
        blocks.push(Block {
            slot: i,
            bytes,
            first,
            last,
        });
    }
    let lower = lower_bound(&blocks, plan.steps.len());
    let mut best = sweep(&blocks);
    type Order = fn(&Block) -> (std::cmp::Reverse<u64>, usize, usize);
    let orders: [Order; 3] = [
        |b| (std::cmp::Reverse(b.bytes), b.first, b.slot),
        |b| (std::cmp::Reverse((b.last - b.first) as u64), b.first, b.slot),
        |b| (std::cmp::Reverse(0), b.first, b.slot),
    ];
    // Comparing every pair of blocks is for plans of a size where that costs little.
    let orders = if blocks.len() <= MAX_COMPARED { &orders[..] } else { &[] };
    for order in orders {
        if best.0 <= lower {
            break;
        }
        let mut by: Vec<usize> = (0..blocks.len()).collect();
        by.sort_by_key(|&i| order(&blocks[i]));
        let found = first_fit(&blocks, &by);
        if found.0 < best.0 {
            best = found;
        }
    }
    let (arena_bytes, offsets) = best;
    let mut layout = Layout {
        offsets: vec![None; plan.slots.len()],
        arena_bytes,
        lower_bound_bytes: lower,
        naive_bytes: naive,
    };
    for (b, at) in blocks.iter().zip(offsets) {
        layout.offsets[b.slot] = Some(at);
    }
    Some(layout)
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

/// Places blocks in order of birth, each in the smallest gap between the blocks alive then that holds it. Linear in the number
/// of blocks, times how many are alive together.
fn sweep(blocks: &[Block]) -> (u64, Vec<u64>) {
    let mut by_birth: Vec<usize> = (0..blocks.len()).collect();
    by_birth.sort_by_key(|&i| (blocks[i].first, std::cmp::Reverse(blocks[i].bytes), blocks[i].slot));
    let mut offsets = vec![0u64; blocks.len()];
    // Blocks alive, by offset.
    let mut alive: Vec<usize> = Vec::new();
    let mut peak = 0;
    for i in by_birth {
        let b = &blocks[i];
        alive.retain(|&p| blocks[p].last >= b.first);
        let mut end = 0u64;
        let mut gap: Option<(u64, u64)> = None;
        for &p in &alive {
            let free = offsets[p].saturating_sub(end);
            if free >= b.bytes && gap.is_none_or(|(size, _)| free < size) {
                gap = Some((free, end));
            }
            end = end.max(offsets[p] + blocks[p].bytes);
        }
        let at = gap.map_or(end, |(_, at)| at);
        offsets[i] = at;
        let position = alive.partition_point(|&p| offsets[p] <= at);
        alive.insert(position, i);
        peak = peak.max(at + b.bytes);
    }
    (peak, offsets)
}

/// Places blocks in the given order, each at the lowest offset that is free for its whole lifetime.
fn first_fit(blocks: &[Block], order: &[usize]) -> (u64, Vec<u64>) {
    let mut offsets = vec![0u64; blocks.len()];
    // Placed blocks by offset.
    let mut placed: Vec<usize> = Vec::new();
    let mut peak = 0;
    for &i in order {
        let b = &blocks[i];
        let mut at = 0u64;
        for &p in &placed {
            let other = &blocks[p];
            if other.last < b.first || other.first > b.last || other.bytes == 0 {
                continue;
            }
            if offsets[p] >= at + b.bytes {
                break;
            }
            at = at.max(offsets[p] + other.bytes);
        }
        offsets[i] = at;
        let position = placed.partition_point(|&p| offsets[p] < at);
        placed.insert(position, i);
        peak = peak.max(at + b.bytes);
    }
    (peak, offsets)
}

/// Joins runs of small independent launches into groups that one fork-join executes. `in_place` moves along.
pub fn group_launches(plan: &mut Plan, in_place: &mut Vec<Vec<(SlotId, SlotId)>>, small_bytes: i64) {
    let mut steps: Vec<Step> = Vec::with_capacity(plan.steps.len());
    let mut pairs: Vec<Vec<(SlotId, SlotId)>> = Vec::with_capacity(plan.steps.len());
    for (step, pair) in std::mem::take(&mut plan.steps)
        .into_iter()
        .zip(std::mem::take(in_place))
    {
        let small = |s: &Step| match s {
            Step::Launch(l) => l.bytes.as_const().is_some_and(|b| b <= small_bytes),
            Step::Group(_) => true,
            _ => false,
        };
        if let Some(previous) = steps.last_mut()
            && small(previous)
            && small(&step)
            && independent(previous, &step, plan)
        {
            let Step::Launch(launch) = step else {
                unreachable!("only launches are small here")
            };
            match previous {
                Step::Group(all) => all.push(launch),
                Step::Launch(first) => *previous = Step::Group(vec![first.clone(), launch]),
                _ => unreachable!("only launches are small"),
            }
            pairs.last_mut().expect("one per step").extend(pair);
            continue;
        }
        steps.push(step);
        pairs.push(pair);
    }
    plan.steps = steps;
    *in_place = pairs;
}

fn independent(a: &Step, b: &Step, plan: &Plan) -> bool {
    let mut touched: Vec<(SlotId, bool)> = Vec::new();
    a.visit_slots(&mut |s, w| touched.push((s, w)), &plan.kernels);
    let mut free = true;
    b.visit_slots(
        &mut |s, w| free &= !touched.iter().any(|&(other, writes)| other == s && (w || writes)),
        &plan.kernels,
    );
    free
}
