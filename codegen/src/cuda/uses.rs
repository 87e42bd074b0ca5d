//! Where the values of a kernel are used, which decides what has a name in the text.

use rustc_hash::FxHashSet;
use tlc_ir::kernel::Memory;

use super::index::in_groups;
use crate::flat::{Address, Flat, Item, LoopKind, Op, Region, Value};

/// Bytes from which on elements that are accessed together are addressed as a group.
const LEAST_GROUP: u32 = 8;

/// The uses of each value.
pub(super) struct Uses {
    /// How many there are.
    count: Vec<u32>,
    /// The region of its definition.
    region: Vec<u32>,
    /// Whether a region other than that of its definition has one.
    elsewhere: Vec<bool>,
    /// The number of the last, in the order of the text.
    last: Vec<u32>,
    /// For what an if or a loop decides: the number of its use of what it was before.
    before: Vec<u32>,
    /// How often the serial loop of a counter runs.
    extents: Vec<Option<Value>>,
    /// The addresses that are written in groups of the elements that are accessed together.
    grouped: FxHashSet<Address>,
    /// Whether a value is of such an address, which is written by what the value is of.
    taken_apart: Vec<bool>,
    /// Serial loops around what is walked.
    serial: u32,
    next: u32,
    regions: u32,
}

impl Uses {
    pub(super) fn of(flat: &Flat<'_>) -> Uses {
        let n = flat.values.len();
        let mut uses = Uses {
            count: vec![0; n],
            region: vec![0; n],
            elsewhere: vec![false; n],
            last: vec![0; n],
            before: vec![0; n],
            extents: vec![None; n],
            grouped: FxHashSet::default(),
            taken_apart: vec![false; n],
            serial: 0,
            next: 1,
            regions: 0,
        };
        uses.walk(flat, &flat.body);
        uses
    }

    /// Whether an index needs a name: it is used more than once, or in a loop that it does not change in.
    pub(super) fn needs_name(&self, v: Value) -> bool {
        let i = v.0 as usize;
        match self.count[i] {
            0 => !self.taken_apart[i],
            1 => self.elsewhere[i],
            _ => true,
        }
    }

    /// Whether an access of several elements says in the text which group of so many it is of: outside of serial loops, where what an address is of
    /// is computed once anyway.
    pub(super) fn goes_by_groups(&self, a: &Address) -> bool {
        self.grouped.contains(a)
    }

    /// Whether what an if or a loop decides may take the place of what it was before: that is not used from there on.
    pub(super) fn takes_over(&self, before: Value, outcome: Value) -> bool {
        self.last[before.0 as usize] == self.before[outcome.0 as usize]
    }

    /// How often the serial loop of a counter runs.
    pub(super) fn extent(&self, counter: Value) -> Option<Value> {
        self.extents[counter.0 as usize]
    }

    fn note(&mut self, v: Value, region: u32) -> u32 {
        let i = v.0 as usize;
        self.count[i] += 1;
        self.elsewhere[i] |= self.region[i] != region;
        self.last[i] = self.next;
        self.next += 1;
        self.last[i]
    }

    /// Notes what the address of so many elements is of.
    fn note_address(&mut self, flat: &Flat<'_>, a: &Address, lanes: u32, region: u32) {
        // Threads may do smaller stores together.
        let bytes = flat.kernel.memory_dtype(a.memory).bytes() as u32 * lanes;
        let alone = matches!(a.memory, Memory::Param(_)) && lanes > 1 && bytes >= LEAST_GROUP;
        match in_groups(flat, a, i64::from(lanes)).filter(|_| alone && self.serial == 0) {
            Some((terms, _)) => {
                for v in a.parts() {
                    self.taken_apart[v.0 as usize] = true;
                }
                for (v, _) in terms {
                    self.note(v, region);
                }
                self.grouped.insert(*a);
            }
            None => {
                for v in a.parts() {
                    self.note(v, region);
                }
            }
        }
    }

    fn walk(&mut self, flat: &Flat<'_>, body: &Region) -> u32 {
        self.regions += 1;
        let region = self.regions;
        for item in body {
            match item {
                Item::Let(v) => {
                    self.region[v.0 as usize] = region;
                    match flat.op(*v) {
                        Op::Load { address, mask, .. } => {
                            self.note_address(flat, address, flat.info(*v).lanes, region);
                            if let Some(mask) = *mask {
                                self.note(mask, region);
                            }
                        }
                        op => op.operands(|o| {
                            self.note(o, region);
                        }),
                    }
                }
                Item::Store {
                    address, value, mask, ..
                } => {
                    self.note_address(flat, address, flat.info(*value).lanes, region);
                    for v in [*value].into_iter().chain(*mask) {
                        self.note(v, region);
                    }
                }
                Item::Collective { address, .. } | Item::Prefetch(address) => {
                    for v in address.parts() {
                        self.note(v, region);
                    }
                }
                Item::Multiply(m) => {
                    for v in m.shared().flat_map(|o| o.first.parts()) {
                        self.note(v, region);
                    }
                }
                Item::CopyAsync(c) => {
                    for v in c.to.parts().chain(c.from.parts()).chain(c.mask) {
                        self.note(v, region);
                    }
                }
                Item::CopyTile(c) => {
                    for v in c.parts() {
                        self.note(v, region);
                    }
                }
                Item::Copy(_) | Item::Barrier | Item::Commit | Item::Wait(_) => {}
                Item::Loop(l) => {
                    self.note(l.extent, region);
                    if l.kind == LoopKind::Serial {
                        self.extents[l.counter.0 as usize] = Some(l.extent);
                    }
                    for c in &l.carried {
                        self.before[c.outcome.0 as usize] = self.note(c.initial, region);
                    }
                    let serial = u32::from(l.kind == LoopKind::Serial);
                    self.serial += serial;
                    let inside = self.walk(flat, &l.body);
                    self.serial -= serial;
                    for c in &l.carried {
                        self.note(c.next, inside);
                    }
                }
                Item::If(i) => {
                    self.note(i.cond, region);
                    let then = self.walk(flat, &i.then);
                    let otherwise = self.walk(flat, &i.otherwise);
                    for m in &i.merges {
                        self.note(m.then, then);
                    }
                    for m in &i.merges {
                        self.before[m.outcome.0 as usize] = self.note(m.otherwise, otherwise);
                    }
                }
            }
        }
        region
    }
}
