//! How `init` steps make a value that lives as long as an executable, apart from the plan that they are part of.
//!
//! Two plans may keep the same value: a graph for any sizes and its version for some, or one plan in two processes. They have it under other
//! numbers and other names; their recipes are equal.

use std::collections::BTreeSet;

use rustc_hash::{FxHashMap, FxHashSet};

use super::{KernelId, Launch, Plan, Slot, SlotId, Step, Storage, Work};
use crate::kernel::Access;

/// What a kept value is made by, and of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Recipe {
    /// The steps as the text of a plan of their own, with numbers for names, that keeps the value in its slot 0. Equal texts make equal bytes of
    /// equal constants, if their kernels run by the same instructions.
    pub text: String,
    /// The plan's constants that it reads, by their numbers there, in the order in which the text numbers them.
    pub constants: Vec<u32>,
    /// The plan's kernels that it runs, likewise.
    pub kernels: Vec<KernelId>,
}

/// What is done at once: an `init` step by its number, or of a [`Step::Group`] one launch by its number in it.
pub type Piece = (usize, Option<usize>);

/// The `init` steps of a plan, by what they write.
pub struct Init<'p> {
    plan: &'p Plan,
    /// What writes a slot that is no alias.
    writers: FxHashMap<SlotId, Vec<Piece>>,
}

impl<'p> Init<'p> {
    /// Those of a plan.
    pub fn of(plan: &'p Plan) -> Init<'p> {
        let mut init = Init {
            plan,
            writers: FxHashMap::default(),
        };
        for (number, step) in plan.init.iter().enumerate() {
            let pieces: Vec<Piece> = match step {
                Step::Group(all) => (0..all.len()).map(|n| (number, Some(n))).collect(),
                _ => vec![(number, None)],
            };
            for piece in pieces {
                let mut written = Vec::new();
                init.visit(piece, &mut |root, writes| written.extend(writes.then_some(root)));
                for root in written {
                    init.writers.entry(root).or_default().push(piece);
                }
            }
        }
        init
    }

    /// Calls `f(slot, writes)` for every slot that a piece touches; for one that is an alias, with what it is an alias of.
    pub fn visit(&self, (step, launch): Piece, f: &mut dyn FnMut(SlotId, bool)) {
        let (plan, step) = (self.plan, &self.plan.init[step]);
        match (step, launch) {
            (Step::Group(all), Some(n)) => {
                let l = &all[n];
                for (slot, param) in l.args.iter().zip(&plan.kernels[l.kernel.0 as usize].params) {
                    f(plan.root(*slot), param.access != Access::Read);
                }
            }
            _ => step.visit_slots(&mut |s, writes| f(plan.root(s), writes), &plan.kernels),
        }
    }

    /// What these values come from, in the order in which it is done. Nothing is done for slots that are `given`.
    pub fn pieces_of(&self, values: &[SlotId], given: &dyn Fn(SlotId) -> bool) -> BTreeSet<Piece> {
        let mut pieces = BTreeSet::new();
        let mut seen: FxHashSet<SlotId> = values.iter().map(|v| self.plan.root(*v)).collect();
        let mut left: Vec<SlotId> = seen.iter().copied().collect();
        while let Some(root) = left.pop() {
            for &piece in self.writers.get(&root).into_iter().flatten() {
                if pieces.insert(piece) {
                    self.visit(piece, &mut |root, _| {
                        if !given(root) && seen.insert(root) {
                            left.push(root);
                        }
                    });
                }
            }
        }
        pieces
    }

    /// How a persistent slot is filled. `None` if nothing fills it, if a loop has a part in it, or memory that is a caller's. Which machines the
    /// plan's devices are the recipe does not say.
    pub fn recipe(&self, slot: SlotId) -> Option<Recipe> {
        let plan = self.plan;
        let step = |(number, launch): Piece| match (&plan.init[number], launch) {
            // What stands beside it in one plan need not do so in another.
            (Step::Group(all), Some(n)) => Step::Launch(all[n].clone()),
            (step, _) => step.clone(),
        };
        let mut steps: Vec<Step> = self.pieces_of(&[slot], &|_| false).into_iter().map(step).collect();
        let mut alone = Plan::default();
        let (mut constants, mut kernels) = (Vec::new(), Vec::new());
        let mut slots: FxHashMap<SlotId, SlotId> = FxHashMap::default();
        let mut fits = !steps.is_empty();
        // In the order of their first use, which is the same wherever the steps are; what a slot is an alias of comes before it.
        let mut number = |slot: SlotId| {
            let mut chain = vec![slot];
            while let Storage::Alias(of) | Storage::Part { of, .. } =
                plan.slots[chain[chain.len() - 1].0 as usize].storage
            {
                chain.push(of);
            }
            for &old in chain.iter().rev() {
                if slots.contains_key(&old) {
                    continue;
                }
                let Slot {
                    dtype,
                    len,
                    storage,
                    device,
                    ..
                } = &plan.slots[old.0 as usize];
                let storage = match storage {
                    Storage::Alias(of) => Storage::Alias(slots[of]),
                    // What steps make once per executable is in no whole.
                    Storage::Part { .. } => {
                        fits = false;
                        Storage::Arena
                    }
                    Storage::Constant(k) => {
                        constants.push(*k);
                        Storage::Constant(constants.len() as u32 - 1)
                    }
                    Storage::Persistent | Storage::Arena | Storage::Lines => storage.clone(),
                    Storage::Input(_) | Storage::Output(_) | Storage::State(_) => {
                        fits = false;
                        Storage::Arena
                    }
                };
                slots.insert(old, SlotId(alone.slots.len() as u32));
                alone.slots.push(Slot {
                    name: String::new(),
                    dtype: *dtype,
                    len: len.clone(),
                    storage,
                    device: *device,
                });
            }
            slots[&slot]
        };
        number(plan.root(slot));
        for step in &mut steps {
            step.rename_slots(&mut |s| *s = number(*s));
        }
        let mut launch = |l: &mut Launch| {
            let old = l.kernel;
            let known = kernels.iter().position(|k| *k == old);
            l.kernel = KernelId(known.unwrap_or_else(|| {
                kernels.push(old);
                kernels.len() - 1
            }) as u32);
            l.label.clear();
            // How the work is shared out, and what is known of it, changes no bytes.
            (l.bytes, l.flops) = (0.into(), 0.into());
            if let Work::Chunks { grain } = &mut l.work {
                *grain = 1.into();
            }
        };
        for step in &mut steps {
            match step {
                Step::Launch(l) => launch(l),
                Step::Group(all) | Step::Sequence(all) => all.iter_mut().for_each(&mut launch),
                Step::Gemm(g) => {
                    g.label.clear();
                    if let Some(e) = &mut g.epilogue {
                        launch(&mut e.launch);
                        if let Some(p) = &mut e.product {
                            p.label.clear();
                        }
                    }
                }
                Step::Copy { .. } => {}
                Step::Call(c) => c.label.clear(),
                Step::Loop(_) => fits = false,
            }
        }
        alone.devices.clone_from(&plan.devices);
        alone.init = steps;
        alone.kernels = kernels.iter().map(|k| plan.kernels[k.0 as usize].clone()).collect();
        fits.then(|| Recipe {
            text: alone.to_string(),
            constants,
            kernels,
        })
    }
}
