//! Which bytes a slot has: its own, those of another, or part of those of another.
//!
//! Aliases and parts lead to a root, which has bytes of its own. Two slots of one root have bytes in common unless they are parts of which it is
//! proven that one ends before the other begins.

use rustc_hash::FxHashMap;

use super::{Plan, SlotId, Storage};
use crate::graph::Symbol;
use crate::index::{Bounds, IndexExpr, Interval, SymId, VarId};
use crate::kernel::verify::nonnegative;

/// Symbols with their declared ranges.
pub(super) struct Ranges<'p>(pub(super) &'p [Symbol]);

impl Bounds for Ranges<'_> {
    fn symbol(&self, sym: SymId) -> Interval {
        self.0
            .get(sym.0 as usize)
            .map_or(Interval::new(0, i64::MAX), |s| Interval::new(s.lo, s.hi))
    }
    fn extent(&self, _: VarId) -> Option<IndexExpr> {
        None
    }
}

impl Plan {
    /// The slot whose bytes this one uses: itself unless it is an alias or a part.
    pub fn root(&self, slot: SlotId) -> SlotId {
        let mut at = slot;
        while let Storage::Alias(of) | Storage::Part { of, .. } = self.slots[at.0 as usize].storage {
            at = of;
        }
        at
    }

    /// The slot whose value an alias shows that no step writes: [`Plan::root`], but for parts, which are values of their own.
    pub fn viewed(&self, slot: SlotId) -> SlotId {
        let mut at = slot;
        while let Storage::Alias(of) = self.slots[at.0 as usize].storage {
            at = of;
        }
        at
    }

    /// The byte of its root where a slot begins; `None` for the first, unless the slot is a part or shares the bytes of one.
    pub fn begins(&self, slot: SlotId) -> Option<IndexExpr> {
        let (mut at, mut begin) = (slot, None);
        loop {
            match &self.slots[at.0 as usize].storage {
                Storage::Alias(of) => at = *of,
                Storage::Part { of, at: element } => {
                    at = *of;
                    let bytes = element.clone() * IndexExpr::from(self.slots[at.0 as usize].dtype.bytes());
                    begin = Some(begin.map_or(bytes.clone(), |b: IndexExpr| b + bytes));
                }
                _ => return begin,
            }
        }
    }

    /// Whether two slots have bytes in common, as far as can be proven that they have none: different parts of one whole do not.
    pub fn shares(&self, a: SlotId, b: SlotId) -> bool {
        if a == b {
            return true;
        }
        if self.root(a) != self.root(b) {
            return false;
        }
        let (Some(x), Some(y)) = (self.begins(a), self.begins(b)) else {
            return true;
        };
        let bytes = |s: SlotId| {
            let slot = &self.slots[s.0 as usize];
            slot.len.clone() * IndexExpr::from(slot.dtype.bytes())
        };
        let behind = |gap: IndexExpr| match gap.as_const() {
            Some(n) => n >= 0,
            None => nonnegative(&gap, &Ranges(&self.symbols)),
        };
        !behind(y.clone() - x.clone() - bytes(a)) && !behind(x - y - bytes(b))
    }

    /// Whether two slots begin at the same byte.
    pub fn same_place(&self, a: SlotId, b: SlotId) -> bool {
        let begin = |s: SlotId| self.begins(s).unwrap_or(IndexExpr::ZERO);
        a == b || (self.root(a) == self.root(b) && begin(a) == begin(b))
    }

    /// The parts that make up each slot that has any, in their order; those of slots that parts do not make up from one end to the other, each
    /// element once, are missing.
    pub fn parts(&self) -> FxHashMap<SlotId, Vec<SlotId>> {
        let mut found: FxHashMap<SlotId, Vec<SlotId>> = FxHashMap::default();
        for (slot, id) in self.slots.iter().zip(0..) {
            if let Storage::Part { of, .. } = slot.storage {
                found.entry(of).or_default().push(SlotId(id));
            }
        }
        found.retain(|of, parts| {
            let mut rest: FxHashMap<IndexExpr, Vec<SlotId>> = FxHashMap::default();
            for &p in parts.iter().rev() {
                if let Storage::Part { at, .. } = &self.slots[p.0 as usize].storage {
                    rest.entry(at.clone()).or_default().push(p);
                }
            }
            let (mut end, mut ordered) = (IndexExpr::ZERO, Vec::with_capacity(parts.len()));
            while let Some(of_place) = rest.get_mut(&end) {
                // What is empty comes before what begins at the same place.
                let empty = of_place.iter().position(|p| self.slots[p.0 as usize].len.is(0));
                let next = match empty {
                    Some(k) => Some(of_place.remove(k)),
                    None => of_place.pop(),
                };
                let Some(next) = next else { break };
                end = end + self.slots[next.0 as usize].len.clone();
                ordered.push(next);
            }
            let whole = ordered.len() == parts.len() && end == self.slots[of.0 as usize].len;
            *parts = ordered;
            whole
        });
        found
    }
}
