//! What straight code computes twice is computed once where registers allow it. (Value numbering of basic blocks: Cocke, 1970; here for the copies
//! of unrolled loops, each of which widens the bytes anew that it takes its bits from.)
//!
//! Only kernels that take integers of few bits out of larger ones are looked at. Others repeat loads, which instructions take from memory at no cost:
//! keeping those was measured on 40 networks and gained nothing, and compiling took 2 to 8 % longer.
//!
//! Invariants:
//! - A load equals another only if nothing between them may write what they read. Parameters may overlap each other; scratch overlaps nothing.
//! - No value is kept where more vectors would then be alive at once than there are registers for: a load again costs less than to spill. Those
//!   alive are counted before anything is kept, so that the accumulators of a tile leave no room.

use rustc_hash::{FxHashMap, FxHashSet};
use tlc_ir::kernel::Memory;
use tlc_ir::{DType, ScalarOp};

use super::prune::rename;
use super::{Address, Flat, Item, Op, Region, Value};

/// Vectors that may be alive where there are 32 registers of them. That is more than there are, since constants and loads that instructions take from
/// memory count among them, and so few more that tiles of accumulators are still left as they are.
const MOST_OF_32: u32 = 36;
/// Vectors that may be alive where there are 16.
const MOST_OF_16: u32 = 16;
/// A value is not kept over more items of its region.
const FARTHEST: usize = 256;

/// Masks of elements of few bits are below this.
const FEW_BITS: i64 = 16;

/// Whether a vector of integers is masked to a few bits of each lane.
fn takes_few_bits(flat: &Flat<'_>) -> bool {
    flat.values.iter().any(|info| match &info.op {
        Op::Map(ScalarOp::And, args) if info.lanes > 1 && info.dtype == DType::I32 => args
            .iter()
            .any(|&a| flat.constant(a).is_some_and(|c| c.as_i64() < FEW_BITS)),
        _ => false,
    })
}

/// Leaves one of equal values of straight code.
pub(super) fn share(flat: &mut Flat<'_>, many_registers: bool) {
    if !takes_few_bits(flat) {
        return;
    }
    let same = (0..flat.values.len() as u32).map(Value).collect::<Vec<_>>();
    let mut s = Sharing {
        equal: same.clone(),
        to: same,
        most: if many_registers { MOST_OF_32 } else { MOST_OF_16 },
        any: false,
    };
    let mut found = Vec::new();
    s.search(flat, &flat.body, &mut found);
    if found.iter().all(Vec::is_empty) {
        return;
    }
    // Constants are in registers all along.
    let mut constants: FxHashSet<Value> = FxHashSet::default();
    for item in &flat.body {
        uses(flat, item, &mut |v| {
            if flat.is_placeless(v) && is_vector(flat, v) {
                constants.insert(v);
            }
        });
    }
    let mut body = std::mem::take(&mut flat.body);
    s.region(flat, &mut body, constants.len() as u32, &mut found.into_iter());
    if s.any {
        for info in &mut flat.values {
            info.op.operands_mut(&mut |v| *v = s.to[v.0 as usize]);
        }
        rename(&mut body, &s.to);
    }
    flat.body = body;
}

struct Sharing {
    /// The first of the values that equal each.
    equal: Vec<Value>,
    /// The value that each is taken from.
    to: Vec<Value>,
    most: u32,
    any: bool,
}

/// What equals an earlier value of its region, and which.
type Repeated = Vec<(Value, Value)>;

/// The first value of each kind, and how often what a load reads may have been written before.
type Known = FxHashMap<(Op, DType, u32, u32), Value>;

/// How often memory may have been written.
#[derive(Default)]
struct Writes {
    anywhere: u32,
    params: u32,
    scratch: FxHashMap<u32, u32>,
}

impl Writes {
    fn note(&mut self, written: &Address) {
        match written.memory {
            Memory::Param(_) => self.params += 1,
            Memory::Scratch(i) => *self.scratch.entry(i).or_default() += 1,
        }
    }

    /// Writes that may have changed what an operation reads.
    fn before(&self, op: &Op) -> u32 {
        match op {
            Op::Load { address, .. } => {
                let there = match address.memory {
                    Memory::Param(_) => self.params,
                    Memory::Scratch(i) => self.scratch.get(&i).copied().unwrap_or_default(),
                };
                self.anywhere + there
            }
            _ => 0,
        }
    }
}

/// Where a value of a region is defined, and where it is used last.
#[derive(Clone, Copy)]
struct Span {
    from: usize,
    to: usize,
}

impl Sharing {
    /// What is repeated in a region and those inside, outer ones first.
    fn search(&mut self, flat: &Flat<'_>, body: &Region, found: &mut Vec<Repeated>) {
        found.push(self.repeated(flat, body));
        for item in body {
            match item {
                Item::Loop(l) => self.search(flat, &l.body, found),
                Item::If(i) => {
                    self.search(flat, &i.then, found);
                    self.search(flat, &i.otherwise, found);
                }
                _ => {}
            }
        }
    }

    /// Shares what a region computes, with so many vectors alive that were there before.
    fn region(&mut self, flat: &Flat<'_>, body: &mut Region, around: u32, found: &mut dyn Iterator<Item = Repeated>) {
        let repeated = found.next().unwrap_or_default();
        let mut alive = Alive::of(flat, body, around);
        let (mut gone, mut last) = (FxHashSet::default(), FxHashMap::default());
        // Computations first: what only they need goes with them.
        for computed in [true, false] {
            for &(v, first) in &repeated {
                let is_computed = !matches!(flat.op(v), Op::Load { .. } | Op::Splat(_));
                if is_computed != computed {
                    continue;
                }
                let kept = *last.get(&first).unwrap_or(&first);
                if alive.extend(kept, v, self.most) {
                    self.to[v.0 as usize] = kept;
                    gone.insert(v);
                    self.any = true;
                } else {
                    last.insert(first, v);
                }
            }
        }
        let mut at = 0;
        body.retain_mut(|item| {
            let here = alive.at(at);
            at += 1;
            match item {
                Item::Let(v) => return !gone.contains(v),
                Item::Loop(l) => {
                    let carried = l.carried.iter().filter(|c| is_vector(flat, c.inside)).count();
                    self.region(flat, &mut l.body, here + carried as u32, found);
                }
                Item::If(i) => {
                    self.region(flat, &mut i.then, here, found);
                    self.region(flat, &mut i.otherwise, here, found);
                }
                _ => {}
            }
            true
        });
    }

    /// The vectors of a region that equal an earlier one, and which.
    fn repeated(&mut self, flat: &Flat<'_>, body: &Region) -> Repeated {
        let (mut known, mut writes) = (Known::default(), Writes::default());
        let mut found = Vec::new();
        for item in body {
            match item {
                Item::Let(v) if is_shared(flat.op(*v)) => {
                    let info = flat.info(*v);
                    let mut op = info.op.clone();
                    op.operands_mut(&mut |o| *o = self.equal[o.0 as usize]);
                    let before = writes.before(&op);
                    let first = *known.entry((op, info.dtype, info.lanes, before)).or_insert(*v);
                    if first != *v {
                        self.equal[v.0 as usize] = first;
                        if is_vector(flat, *v) {
                            found.push((*v, first));
                        }
                    }
                }
                Item::Let(_) | Item::Prefetch(_) => {}
                Item::Store { address, .. } => writes.note(address),
                _ => writes.anywhere += 1,
            }
        }
        found
    }
}

/// Whether equal values of the kind are one if their operands are, and memory did not change.
fn is_shared(op: &Op) -> bool {
    matches!(
        op,
        Op::Load { .. } | Op::Map(..) | Op::Convert(_) | Op::Bitcast(_) | Op::Splat(_) | Op::Scale(..)
    )
}

/// Whether a value is in a register of vectors.
fn is_vector(flat: &Flat<'_>, v: Value) -> bool {
    let info = flat.info(v);
    info.dtype != DType::Bool && (info.lanes > 1 || info.dtype.is_float())
}

/// How many vectors are alive in front of each item of a region.
struct Alive {
    counts: Vec<u32>,
    spans: FxHashMap<Value, Span>,
}

impl Alive {
    fn of(flat: &Flat<'_>, body: &Region, around: u32) -> Alive {
        let mut spans: FxHashMap<Value, Span> = FxHashMap::default();
        for (at, item) in body.iter().enumerate() {
            uses(flat, item, &mut |v| {
                if let Some(s) = spans.get_mut(&v) {
                    s.to = at;
                }
            });
            defines(item, &mut |v| {
                if is_vector(flat, v) {
                    spans.insert(v, Span { from: at, to: at });
                }
            });
        }
        let mut counts = vec![around; body.len() + 1];
        for s in spans.values() {
            counts[s.from + 1..=s.to].iter_mut().for_each(|n| *n += 1);
        }
        Alive { counts, spans }
    }

    fn at(&self, at: usize) -> u32 {
        self.counts[at]
    }

    /// Keeps a value for the uses of an equal one, if no more than so many vectors are alive then.
    fn extend(&mut self, kept: Value, repeated: Value, most: u32) -> bool {
        let (Some(&k), Some(&r)) = (self.spans.get(&kept), self.spans.get(&repeated)) else {
            return false;
        };
        // Where the repeated one is alive the kept one takes its place.
        let longer = k.to + 1..=r.from.max(k.to);
        if longer.clone().count() > FARTHEST || longer.clone().any(|i| self.counts[i] >= most) {
            return false;
        }
        longer.for_each(|i| self.counts[i] += 1);
        // Both were alive here.
        (r.from + 1..=r.to.min(k.to)).for_each(|i| self.counts[i] -= 1);
        self.spans.insert(
            kept,
            Span {
                from: k.from,
                to: k.to.max(r.to),
            },
        );
        true
    }
}

/// Calls `f` on what an item needs, what stands inside of it included.
fn uses(flat: &Flat<'_>, item: &Item, f: &mut dyn FnMut(Value)) {
    match item {
        Item::Let(v) => flat.op(*v).operands(f),
        Item::Store {
            address, value, mask, ..
        } => address.parts().chain([*value]).chain(*mask).for_each(f),
        Item::Loop(l) => {
            for c in &l.carried {
                f(c.initial);
                f(c.next);
            }
            l.body.iter().for_each(|i| uses(flat, i, f));
        }
        Item::If(i) => {
            f(i.cond);
            i.then.iter().chain(&i.otherwise).for_each(|i| uses(flat, i, f));
            for m in &i.merges {
                f(m.then);
                f(m.otherwise);
            }
        }
        // The rest needs no vectors.
        _ => {}
    }
}

/// Calls `f` on what is there behind an item.
fn defines(item: &Item, f: &mut dyn FnMut(Value)) {
    match item {
        Item::Let(v) => f(*v),
        Item::Loop(l) => l.carried.iter().for_each(|c| f(c.outcome)),
        Item::If(i) => i.merges.iter().for_each(|m| f(m.outcome)),
        _ => {}
    }
}
