//! What is not needed goes: values without a use, what is carried for nothing, what is carried without changing.
//!
//! Invariant: loads may go, stores never do.

use rustc_hash::FxHashMap;

use super::{Address, Flat, Item, Op, Region, Value};

/// Removes what no store needs. `unchanged` names values that are carried without changing, and what they are.
pub(super) fn prune(flat: &mut Flat, unchanged: &[(Value, Value)]) {
    let mut body = std::mem::take(&mut flat.body);
    if !unchanged.is_empty() {
        let mut to: Vec<Value> = (0..flat.values.len() as u32).map(Value).collect();
        // Inner loops come first, and what is unchanged in them may be so in outer ones.
        for (inside, initial) in unchanged.iter().rev() {
            to[inside.0 as usize] = to[initial.0 as usize];
        }
        for info in &mut flat.values {
            info.op.operands_mut(&mut |v| *v = to[v.0 as usize]);
        }
        rename(&mut body, &to);
    }
    let mut needs = Needs {
        live: vec![false; flat.values.len()],
        waiting: Vec::new(),
        decided: FxHashMap::default(),
    };
    flat.scratch_at.iter().flatten().for_each(|v| needs.need(*v));
    needs.roots(&body);
    while let Some(v) = needs.waiting.pop() {
        match &flat.values[v.0 as usize].op {
            Op::Carried | Op::Outcome => {
                let by = needs.decided.get(&v).copied().unwrap_or_default();
                by.into_iter().flatten().for_each(|o| needs.need(o));
            }
            op => op.operands(|o| needs.need(o)),
        }
    }
    sweep(&mut body, &needs.live);
    flat.body = body;
}

/// Calls each value by what it is instead.
pub(super) fn rename(body: &mut Region, to: &[Value]) {
    let set = |v: &mut Value| *v = to[v.0 as usize];
    let place = |a: &mut Address| a.parts_mut().for_each(set);
    for item in body {
        match item {
            Item::Let(_) | Item::Barrier | Item::Commit | Item::Wait(_) => {}
            Item::Store {
                address, value, mask, ..
            } => {
                place(address);
                set(value);
                mask.iter_mut().for_each(set);
            }
            Item::Collective { address, .. } | Item::Prefetch(address) => place(address),
            Item::Multiply(m) => m.shared_mut().for_each(|o| place(&mut o.first)),
            Item::CopyAsync(c) => {
                place(&mut c.to);
                place(&mut c.from);
                c.mask.iter_mut().for_each(set);
            }
            Item::CopyTile(c) => {
                place(&mut c.to);
                c.number.iter_mut().for_each(set);
                set(&mut c.row);
                set(&mut c.column);
                c.mask.iter_mut().for_each(set);
            }
            Item::Copy(c) => {
                place(&mut c.to);
                place(&mut c.from);
                [&mut c.to_pitch, &mut c.from_pitch, &mut c.rows, &mut c.columns]
                    .into_iter()
                    .for_each(set);
            }
            Item::Loop(l) => {
                set(&mut l.extent);
                for c in &mut l.carried {
                    set(&mut c.initial);
                    set(&mut c.next);
                }
                rename(&mut l.body, to);
            }
            Item::If(i) => {
                set(&mut i.cond);
                for m in &mut i.merges {
                    set(&mut m.then);
                    set(&mut m.otherwise);
                }
                rename(&mut i.then, to);
                rename(&mut i.otherwise, to);
            }
        }
    }
}

struct Needs {
    live: Vec<bool>,
    waiting: Vec<Value>,
    /// What a value that control defines is decided by.
    decided: FxHashMap<Value, [Option<Value>; 3]>,
}

impl Needs {
    fn need(&mut self, v: Value) {
        if !std::mem::replace(&mut self.live[v.0 as usize], true) {
            self.waiting.push(v);
        }
    }

    /// Notes what control defines, and needs what has an effect.
    fn roots(&mut self, body: &Region) {
        for item in body {
            match item {
                Item::Let(_) | Item::Barrier | Item::Commit | Item::Wait(_) => {}
                Item::Store {
                    address, value, mask, ..
                } => address.parts().chain([*value]).chain(*mask).for_each(|v| self.need(v)),
                Item::Collective { address, .. } | Item::Prefetch(address) => {
                    address.parts().for_each(|v| self.need(v))
                }
                Item::Multiply(m) => {
                    let parts = m.shared().flat_map(|o| o.first.parts());
                    parts.for_each(|v| self.need(v));
                }
                Item::CopyAsync(c) => {
                    c.to.parts()
                        .chain(c.from.parts())
                        .chain(c.mask)
                        .for_each(|v| self.need(v))
                }
                Item::CopyTile(c) => c.parts().for_each(|v| self.need(v)),
                Item::Copy(c) => {
                    let sizes = [c.to_pitch, c.from_pitch, c.rows, c.columns];
                    c.to.parts()
                        .chain(c.from.parts())
                        .chain(sizes)
                        .for_each(|v| self.need(v));
                }
                Item::Loop(l) => {
                    self.need(l.extent);
                    self.need(l.counter);
                    for c in &l.carried {
                        for v in [c.inside, c.outcome] {
                            self.decided.insert(v, [Some(c.initial), Some(c.next), Some(c.inside)]);
                        }
                    }
                    self.roots(&l.body);
                }
                Item::If(i) => {
                    self.need(i.cond);
                    for m in &i.merges {
                        self.decided.insert(m.outcome, [Some(m.then), Some(m.otherwise), None]);
                    }
                    self.roots(&i.then);
                    self.roots(&i.otherwise);
                }
            }
        }
    }
}

fn sweep(body: &mut Region, live: &[bool]) {
    let lives = |v: Value| live[v.0 as usize];
    body.retain_mut(|item| match item {
        Item::Let(v) => lives(*v),
        Item::Store { .. } | Item::Copy(_) | Item::Barrier | Item::Collective { .. } => true,
        Item::Multiply(_)
        | Item::Prefetch(_)
        | Item::CopyAsync(_)
        | Item::CopyTile(_)
        | Item::Commit
        | Item::Wait(_) => true,
        Item::Loop(l) => {
            l.carried.retain(|c| lives(c.inside) || lives(c.outcome));
            sweep(&mut l.body, live);
            !l.body.is_empty() || !l.carried.is_empty()
        }
        Item::If(i) => {
            i.merges.retain(|m| lives(m.outcome));
            sweep(&mut i.then, live);
            sweep(&mut i.otherwise, live);
            !i.then.is_empty() || !i.otherwise.is_empty() || !i.merges.is_empty()
        }
    });
}
