//! Launches that are one step: groups and sequences.

use rustc_hash::FxHashMap;

use super::{Checker, PlanRule};
use crate::kernel::Access;
use crate::plan::bytes::Ranges;
use crate::plan::{Launch, MOST_SEQUENCE_BLOCKS, SlotId, Work};
use crate::target::{MAX_GRID_BLOCKS, MOST_GROUP_VALUES, group_values};

impl Checker<'_> {
    /// Launches of a group are independent, and those of a GPU not more than one launch can be.
    pub(super) fn group(&mut self, all: &[Launch]) {
        let plan = self.plan;
        let blocks = all.iter().map(|l| self.most_blocks(l));
        let blocks = blocks.fold(0i64, |sum, n| sum.saturating_add(n.unwrap_or(0)));
        let values = all.iter().map(|l| l.args.len() + l.symbols.len()).sum();
        let values = group_values(all.len(), values);
        let on_gpu = all.iter().any(|l| matches!(l.work, Work::Grid(_)));
        if on_gpu && (blocks as u64 > MAX_GRID_BLOCKS || values > MOST_GROUP_VALUES) {
            self.error(PlanRule::GroupSize(blocks, values));
        }
        // By bytes: whether an earlier launch wrote them, and whether a conflict was reported.
        let mut earlier: FxHashMap<SlotId, (bool, bool)> = FxHashMap::default();
        // Of parts, the slots that earlier launches touched of each root.
        let mut of_parts: FxHashMap<SlotId, Vec<(SlotId, bool)>> = FxHashMap::default();
        for l in all {
            let params = &plan.kernels[l.kernel.0 as usize].params;
            let mut own: Vec<(SlotId, bool)> = Vec::new();
            let mut parts: Vec<(SlotId, bool)> = Vec::new();
            for (slot, param) in l.args.iter().zip(params) {
                let writes = param.access != Access::Read;
                match plan.begins(*slot) {
                    None => own.push((self.root(*slot), writes)),
                    Some(_) => parts.push((*slot, writes)),
                }
            }
            let mut clashes = Vec::new();
            for &(slot, writes) in &parts {
                let root = self.root(slot);
                let other = |o: &&(SlotId, bool)| (writes || o.1) && self.shares(o.0, slot);
                let met = of_parts.get(&root).into_iter().flatten().any(|o| other(&o));
                let whole = earlier.get(&root).is_some_and(|before| before.0 || writes);
                clashes.extend((met || whole).then_some(slot));
            }
            for &(slot, writes) in &own {
                let met = of_parts.get(&slot).into_iter().flatten().any(|o| writes || o.1);
                clashes.extend(met.then_some(slot));
            }
            clashes.into_iter().for_each(|s| self.error(PlanRule::GroupConflict(s)));
            for (slot, writes) in parts {
                of_parts.entry(self.root(slot)).or_default().push((slot, writes));
            }
            // A launch may touch a slot as several arguments; that it writes counts.
            own.sort_by_key(|o| (o.0, !o.1));
            own.dedup_by_key(|o| o.0);
            for (slot, writes) in own {
                let Some(before) = earlier.get_mut(&slot) else {
                    earlier.insert(slot, (writes, false));
                    continue;
                };
                let clash = (before.0 || writes) && !before.1;
                *before = (before.0 || writes, before.1 || clash);
                if clash {
                    self.error(PlanRule::GroupConflict(slot));
                }
            }
        }
    }

    /// The most blocks of a launch of a GPU.
    fn most_blocks(&self, l: &Launch) -> Option<i64> {
        match &l.work {
            Work::Grid(g) => Some(g.blocks.interval(&Ranges(&self.plan.symbols)).hi.max(0)),
            Work::Chunks { .. } => None,
        }
    }

    /// One block does few blocks in turn, and of two values in the same bytes none is touched once the next is written. (Whether a launch
    /// may write where it reads is judged as of any other.)
    pub(super) fn sequence(&mut self, all: &[Launch], ever_written: &[bool]) {
        let plan = self.plan;
        let blocks = all.iter().map(|l| self.most_blocks(l).unwrap_or(i64::MAX));
        let blocks = blocks.fold(0i64, i64::saturating_add);
        if all.len() < 2 || blocks > MOST_SEQUENCE_BLOCKS {
            self.error(PlanRule::Sequence(all.len(), blocks));
        }
        // By bytes: the value that was written there last.
        let mut written: FxHashMap<SlotId, SlotId> = FxHashMap::default();
        for l in all {
            let params = &plan.kernels[l.kernel.0 as usize].params;
            let touched: Vec<(SlotId, SlotId, bool)> = l
                .args
                .iter()
                .zip(params)
                .map(|(&slot, param)| {
                    let root = self.root(slot);
                    let value = if ever_written[slot.0 as usize] { slot } else { root };
                    (root, value, param.access != Access::Read)
                })
                .collect();
            for (root, value, _) in &touched {
                if let Some(&last) = written.get(root).filter(|last| *last != value)
                    && !touched.contains(&(*root, *value, true))
                {
                    self.error(PlanRule::AliasLive(*value, last));
                }
            }
            written.extend(touched.iter().filter(|t| t.2).map(|t| (t.0, t.1)));
        }
    }
}
