//! How the counters of loops are used: as numbers, or as parts of addresses, which want them multiplied.

use rustc_hash::FxHashMap;

use super::{Address, Flat, Item, Op, Region, Value};

/// How a counter is used.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct CounterUse {
    /// Greatest common divisor of the constant byte strides; 0 if there is none.
    stride: i64,
    /// Whether some stride is not 1, 2, 4 or 8 bytes.
    wide: bool,
    /// Whether the counter itself is needed.
    plain: bool,
}

impl CounterUse {
    /// The multiple of the counter to keep, and whether to keep the counter.
    pub fn counters(self) -> (Option<i64>, bool) {
        if self.stride == 0 || (!self.wide && self.plain) {
            (None, true)
        } else {
            (Some(self.stride), self.plain)
        }
    }
}

/// The uses of every counter that has some.
pub fn counter_uses(flat: &Flat<'_>) -> FxHashMap<Value, CounterUse> {
    let mut found = Found {
        flat,
        uses: FxHashMap::default(),
        counted: vec![false; flat.values.len()],
    };
    flat.scratch_at.iter().flatten().for_each(|v| found.plain(*v));
    found.region(&flat.body);
    found.uses
}

struct Found<'f, 'k> {
    flat: &'f Flat<'k>,
    uses: FxHashMap<Value, CounterUse>,
    /// Sums whose counters are known to be needed as themselves.
    counted: Vec<bool>,
}

impl Found<'_, '_> {
    /// A use as itself.
    fn plain(&mut self, v: Value) {
        match self.flat.op(v) {
            Op::Counter => self.uses.entry(v).or_default().plain = true,
            Op::Sum { terms, .. } if !std::mem::replace(&mut self.counted[v.0 as usize], true) => {
                terms.iter().for_each(|t| self.plain(t.0));
            }
            _ => {}
        }
    }

    /// A use in an address.
    fn access(&mut self, a: &Address) {
        let bytes = self.flat.kernel.memory_dtype(a.memory).bytes() as i64;
        for (v, k) in self.flat.terms(a) {
            if !matches!(self.flat.op(v), Op::Counter) {
                self.plain(v);
                continue;
            }
            let stride = k.saturating_mul(bytes).saturating_abs();
            let u = self.uses.entry(v).or_default();
            u.stride = gcd(u.stride, stride);
            u.wide |= !matches!(stride, 1 | 2 | 4 | 8);
        }
    }

    fn region(&mut self, body: &Region) {
        for item in body {
            match item {
                Item::Let(v) => match self.flat.op(*v) {
                    // Needed only as what its users need.
                    Op::Sum { .. } => {}
                    Op::Load { address, .. } | Op::Gather { address, .. } => self.access(address),
                    op => op.operands(|o| self.plain(o)),
                },
                Item::Store { address, value, .. } => {
                    self.access(address);
                    self.plain(*value);
                }
                Item::Copy(c) => {
                    self.access(&c.to);
                    self.access(&c.from);
                    [c.to_pitch, c.from_pitch, c.rows, c.columns]
                        .into_iter()
                        .for_each(|v| self.plain(v));
                }
                Item::Loop(l) => {
                    self.plain(l.extent);
                    for c in &l.carried {
                        self.plain(c.initial);
                        self.plain(c.next);
                    }
                    self.region(&l.body);
                }
                Item::If(i) => {
                    for m in &i.merges {
                        self.plain(m.then);
                        self.plain(m.otherwise);
                    }
                    self.region(&i.then);
                    self.region(&i.otherwise);
                }
                Item::Collective { address, .. } | Item::Prefetch(address) => self.access(address),
                Item::Multiply(m) => m.shared().for_each(|o| self.access(&o.first)),
                Item::CopyAsync(c) => {
                    self.access(&c.to);
                    self.access(&c.from);
                }
                Item::CopyTile(c) => {
                    self.access(&c.to);
                    c.number.into_iter().for_each(|v| self.plain(v));
                    self.plain(c.row);
                    self.plain(c.column);
                }
                Item::Barrier | Item::Commit | Item::Wait(_) => {}
            }
        }
    }
}

fn gcd(a: i64, b: i64) -> i64 {
    let (mut a, mut b) = (a, b);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
