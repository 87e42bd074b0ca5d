//! Where the values of a kernel are used, which decides what has a name in the text.

use crate::flat::{Flat, Item, LoopKind, Region, Value};

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
            next: 1,
            regions: 0,
        };
        uses.walk(flat, &flat.body);
        uses
    }

    /// Whether an index needs a name: it is used more than once, or in a loop that it does not change in.
    pub(super) fn needs_name(&self, v: Value) -> bool {
        self.count[v.0 as usize] != 1 || self.elsewhere[v.0 as usize]
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

    fn walk(&mut self, flat: &Flat<'_>, body: &Region) -> u32 {
        self.regions += 1;
        let region = self.regions;
        for item in body {
            match item {
                Item::Let(v) => {
                    self.region[v.0 as usize] = region;
                    flat.op(*v).operands(|o| {
                        self.note(o, region);
                    });
                }
                Item::Store {
                    address, value, mask, ..
                } => {
                    for v in address.parts().chain([*value]).chain(*mask) {
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
                    let inside = self.walk(flat, &l.body);
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
