//! The plan verifier: every violation of the invariants of [`crate::plan`], worked out from the steps alone.
//!
//! Invariants:
//! - Nothing is taken from the planner but the plan: lifetimes are computed here, in-place launches are judged by the
//!   kernel's own loads and stores.
//! - [`verify`] holds for all symbol values; what it can neither prove nor refute it lists as unproven. [`verify_layout`]
//!   checks an arena placement for concrete ones.
//! - A slot that is an alias and that no step writes is a *view*: it holds a value when what it shows does. One that parts make up
//!   holds a value when all of them do.

mod control;
mod devices;
mod epilogue;
mod in_place;
mod joined;
mod layout;
mod passed;
mod rules;
mod whole;
mod windowed;

use rustc_hash::FxHashMap;

use crate::dtype::DType;
use crate::graph::control::mentions_data;
use crate::index::{IndexExpr, IndexNode, VarId};
use crate::kernel::Access;
use crate::kernel::verify::nonnegative;
use crate::plan::bytes::Ranges;
use crate::plan::{
    DeviceId, DeviceKind, Gemm, GemmOperand, KernelId, Launch, Lines, MOST_SEQUENCE_BLOCKS, Plan, SlotId, Step,
    Storage, Strides, Work,
};
pub use epilogue::lines;
pub use in_place::{InPlace, runs_in_place};
pub use layout::verify_layout;
pub use rules::{PlanPlace, PlanRule, PlanViolation};
pub use whole::{Fault, check, check_kernels, check_thoroughly, has_conditions};

/// What the verifier found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PlanReport {
    /// What is wrong.
    pub errors: Vec<PlanViolation>,
    /// What may be right but was not proven for all values of the symbols.
    pub unproven: Vec<PlanViolation>,
}

/// Checks every invariant that does not depend on where the arena's slots are.
pub fn verify(plan: &Plan) -> PlanReport {
    let mut c = Checker {
        plan,
        report: PlanReport::default(),
        place: PlanPlace::Tables,
        roots: Vec::new(),
        parts: FxHashMap::default(),
        lines: FxHashMap::default(),
        in_place: FxHashMap::default(),
        looked_at: FxHashMap::default(),
    };
    if c.tables() && c.device_tables() {
        c.wholes();
        c.devices();
        c.ordered();
        c.flow();
        c.lifetimes();
        c.donations();
    }
    c.report
}

struct Checker<'p> {
    plan: &'p Plan,
    report: PlanReport,
    place: PlanPlace,
    /// The slot whose bytes each slot has, once aliases are known to end.
    roots: Vec<SlotId>,
    /// The parts of each slot that is made up of some.
    parts: FxHashMap<SlotId, Vec<SlotId>>,
    /// What [`lines`] says of a kernel and the parameters of a result: equal layers launch the same kernels.
    lines: FxHashMap<(KernelId, Vec<u32>), Option<Lines>>,
    /// What [`runs_in_place`] says of a kernel and two of its parameters.
    in_place: FxHashMap<(KernelId, u32, u32), bool>,
    /// What that is known by: a kernel is looked at once for all of its pairs.
    looked_at: FxHashMap<KernelId, InPlace<'p>>,
}

impl Checker<'_> {
    /// As [`runs_in_place`], once for each kernel and pair.
    fn runs_in_place(&mut self, kernel: KernelId, read: u32, written: u32) -> bool {
        let kernels = &self.plan.kernels;
        let looked_at = self.looked_at.entry(kernel);
        let known = self.in_place.entry((kernel, read, written));
        *known.or_insert_with(|| {
            let kernel = looked_at.or_insert_with(|| InPlace::of(&kernels[kernel.0 as usize]));
            kernel.runs(read, written)
        })
    }

    fn error(&mut self, rule: PlanRule) {
        self.report.errors.push(PlanViolation {
            place: self.place,
            rule,
        });
    }

    /// Notes that a number is not what it should be, as far as is known: zero, or not negative. That is refuted if it is
    /// constant, or has the wrong sign for all values of the symbols.
    fn doubt(&mut self, e: &IndexExpr, rule: PlanRule) {
        let range = e.interval(&Ranges(&self.plan.symbols));
        self.doubt_if(e.as_const().is_some() || range.hi < 0 || range.lo > 0, rule);
    }

    fn doubt_if(&mut self, refuted: bool, rule: PlanRule) {
        let list = match refuted {
            true => &mut self.report.errors,
            false => &mut self.report.unproven,
        };
        list.push(PlanViolation {
            place: self.place,
            rule,
        });
    }

    fn symbolic(&mut self, e: &IndexExpr) {
        let mut found = Vec::new();
        e.visit_atoms(&mut |a| match a {
            IndexNode::Var(v) => found.push(PlanRule::Variable(*v)),
            IndexNode::Sym(s) if s.0 as usize >= self.plan.symbols.len() => {
                found.push(PlanRule::Missing(format!("symbol {}", s.0)));
            }
            _ => {}
        });
        found.into_iter().for_each(|r| self.error(r));
    }

    fn exists(&mut self, slot: SlotId) {
        if slot.0 as usize >= self.plan.slots.len() {
            self.error(PlanRule::Missing(format!("slot {slot}")));
        }
    }

    /// Checks ids and expressions; returns whether all ids exist, so that the rest may index by them.
    fn tables(&mut self) -> bool {
        let plan = self.plan;
        let before = self.report.errors.len();
        for (i, slot) in plan.slots.iter().enumerate() {
            self.place = PlanPlace::Slot(SlotId(i as u32));
            self.symbolic(&slot.len);
            if slot.len.as_const().is_some_and(|n| n < 0) {
                self.error(PlanRule::NegativeLength(SlotId(i as u32)));
            }
            let (known, what) = match &slot.storage {
                Storage::Input(k) => ((*k as usize) < plan.inputs.len(), "input"),
                Storage::Output(k) => ((*k as usize) < plan.outputs.len(), "output"),
                Storage::Constant(k) => ((*k as usize) < plan.constants.len(), "constant"),
                Storage::State(k) => ((*k as usize) < plan.states.len(), "state"),
                Storage::Alias(of) => ((of.0 as usize) < plan.slots.len(), "slot"),
                Storage::Part { of, at } => {
                    self.symbolic(at);
                    ((of.0 as usize) < plan.slots.len(), "slot")
                }
                _ => (true, ""),
            };
            if !known {
                self.error(PlanRule::Missing(format!("{what} that ${i} names")));
                continue;
            }
            if slot.storage == Storage::Persistent && slot.len.as_const().is_none() {
                self.error(PlanRule::PersistentLength(SlotId(i as u32)));
            }
        }
        self.place = PlanPlace::Tables;
        self.aliases();
        plan.inputs.iter().filter_map(|i| i.slot).for_each(|s| self.exists(s));
        plan.outputs.iter().for_each(|o| self.exists(o.slot));
        for s in &plan.states {
            [Some(s.slot), s.set].into_iter().flatten().for_each(|s| self.exists(s));
        }
        for (number, step) in plan.init.iter().chain(&plan.steps).enumerate() {
            self.place = PlanPlace::Step(number);
            match step {
                Step::Launch(l) => self.launch_ids(l),
                Step::Group(all) | Step::Sequence(all) => all.iter().for_each(|l| self.launch_ids(l)),
                Step::Gemm(g) => {
                    [&g.lhs, &g.rhs, &g.dst].iter().for_each(|o| self.exists(o.slot));
                    g.workspace.iter().for_each(|s| self.exists(*s));
                    g.epilogue.iter().for_each(|e| self.launch_ids(&e.launch));
                    let behind = g.behind().into_iter().flat_map(|p| [&p.lhs, &p.rhs, &p.dst]);
                    behind.for_each(|o| self.exists(o.slot));
                }
                Step::Copy { src, dst } => [src, dst].iter().for_each(|s| self.exists(**s)),
                Step::Loop(_) | Step::Call(_) => {
                    let mut touched = Vec::new();
                    step.visit_slots(&mut |s, _| touched.push(s), &plan.kernels);
                    touched.into_iter().for_each(|s| self.exists(s));
                    self.control_expressions(step);
                }
            }
        }
        self.place = PlanPlace::Tables;
        self.report.errors.len() == before
    }

    /// Finds the root of each slot, and the aliases that have none.
    fn aliases(&mut self) {
        let slots = &self.plan.slots;
        let mut roots: Vec<Option<SlotId>> = vec![None; slots.len()];
        // Slots from which aliases lead in a circle, or nowhere.
        let mut circular = vec![false; slots.len()];
        let mut met: Vec<usize> = vec![usize::MAX; slots.len()];
        for i in 0..slots.len() {
            let mut path = Vec::new();
            let mut at = SlotId(i as u32);
            let end = loop {
                let n = at.0 as usize;
                let Some(slot) = slots.get(n) else { break None };
                if roots[n].is_some() || circular[n] || met[n] == i {
                    break roots[n];
                }
                met[n] = i;
                path.push(n);
                match slot.storage {
                    Storage::Alias(of) | Storage::Part { of, .. } => at = of,
                    _ => break Some(at),
                }
            };
            for n in path {
                roots[n] = end;
                circular[n] = end.is_none();
            }
        }
        for (i, root) in roots.iter().enumerate() {
            let known = match slots[i].storage {
                Storage::Alias(of) | Storage::Part { of, .. } => (of.0 as usize) < slots.len(),
                _ => true,
            };
            if root.is_none() && known {
                let id = SlotId(i as u32);
                self.place = PlanPlace::Slot(id);
                self.error(PlanRule::AliasCycle(id));
            }
        }
        self.place = PlanPlace::Tables;
        self.roots = roots
            .into_iter()
            .zip(0..)
            .map(|(r, i)| r.unwrap_or(SlotId(i)))
            .collect();
    }

    fn root(&self, slot: SlotId) -> SlotId {
        self.roots[slot.0 as usize]
    }

    /// As [`Plan::shares`].
    fn shares(&self, a: SlotId, b: SlotId) -> bool {
        self.root(a) == self.root(b) && (self.parts.is_empty() || self.plan.shares(a, b))
    }

    /// Parts lie inside of slots of their dtype, and make up those from one end to the other.
    fn wholes(&mut self) {
        let plan = self.plan;
        let whole = plan.parts();
        let bounds = Ranges(&plan.symbols);
        for (slot, id) in plan.slots.iter().zip((0..).map(SlotId)) {
            let Storage::Part { of, at } = &slot.storage else {
                continue;
            };
            self.place = PlanPlace::Slot(id);
            let around = &plan.slots[of.0 as usize];
            if slot.dtype != around.dtype {
                self.error(PlanRule::Dtype {
                    slot: id,
                    expected: around.dtype,
                    found: slot.dtype,
                });
            }
            let decided = mentions_data(&plan.symbols, at);
            // An alias shows what another slot holds, or is overwritten with it: neither is made up of parts.
            let placed = matches!(
                around.storage,
                Storage::Arena | Storage::Output(_) | Storage::Part { .. }
            );
            if decided || !whole.contains_key(of) || !placed {
                self.error(PlanRule::Part(id, *of));
            }
            let behind = around.len.clone() - at.clone() - slot.len.clone();
            for fact in [at.clone(), behind] {
                if !nonnegative(&fact, &bounds) {
                    self.doubt(&fact, PlanRule::Part(id, *of));
                }
            }
        }
        self.place = PlanPlace::Tables;
        self.parts = whole;
    }

    /// Whether a value is there: one that was written, or all parts of one that they make up.
    fn held(&self, value: SlotId, holds: &[bool]) -> bool {
        holds[value.0 as usize]
            || self
                .parts
                .get(&value)
                .is_some_and(|all| all.iter().all(|p| self.held(*p, holds)))
    }

    fn launch_ids(&mut self, l: &Launch) {
        l.args.iter().for_each(|s| self.exists(*s));
        l.symbols.iter().for_each(|e| self.symbolic(e));
        if l.kernel.0 as usize >= self.plan.kernels.len() {
            self.error(PlanRule::Missing(format!("kernel {}", l.kernel.0)));
        }
    }

    /// Reads after writes, argument types, conflicts inside a step.
    fn flow(&mut self) {
        let plan = self.plan;
        let mut ever_written = vec![false; plan.slots.len()];
        for step in plan.init.iter().chain(&plan.steps) {
            step.visit_slots(&mut |s, w| ever_written[s.0 as usize] |= w, &plan.kernels);
        }
        let mut holds: Vec<bool> = plan
            .slots
            .iter()
            .map(|s| match s.storage {
                Storage::Input(_) | Storage::Constant(_) => true,
                Storage::State(k) => plan.states[k as usize].read,
                _ => false,
            })
            .collect();
        self.stored();
        self.passed();
        for (number, step) in plan.init.iter().chain(&plan.steps).enumerate() {
            self.place = PlanPlace::Step(number);
            let mut touched = Vec::new();
            step.visit_slots(&mut |s, w| touched.push((s, w)), &plan.kernels);
            for &(slot, writes) in &touched {
                let root = self.root(slot);
                // A view holds what it shows.
                let shown = |s: SlotId| if ever_written[s.0 as usize] { s } else { plan.viewed(s) };
                if !writes && !self.held(shown(slot), &holds) && !plan.makes(step, slot, &shown) {
                    self.error(PlanRule::Unwritten(slot));
                }
                if writes && self.parts.contains_key(&slot) {
                    self.error(PlanRule::Whole(slot));
                }
                let storage = &plan.slots[root.0 as usize].storage;
                let fixed = match storage {
                    Storage::Input(_) | Storage::Constant(_) => true,
                    Storage::State(k) => plan.states[*k as usize].set.is_none(),
                    _ => false,
                };
                if writes && fixed {
                    self.error(PlanRule::ReadOnly(slot));
                }
                let lives = match storage {
                    Storage::Persistent => number < plan.init.len() || !writes,
                    Storage::Constant(_) => true,
                    _ => number >= plan.init.len(),
                };
                if !lives {
                    self.error(PlanRule::Once(slot));
                }
            }
            match step {
                Step::Launch(l) => self.launch(l),
                Step::Group(all) => {
                    all.iter().for_each(|l| self.launch(l));
                    self.group(all);
                }
                Step::Sequence(all) => {
                    all.iter().for_each(|l| self.launch(l));
                    self.sequence(all, &ever_written);
                }
                Step::Gemm(g) => {
                    self.gemm(g);
                    self.epilogue(g);
                    self.behind(g);
                }
                Step::Copy { src, dst } => {
                    let from = &plan.slots[src.0 as usize];
                    self.argument(*dst, from.dtype, &from.len.clone());
                    if self.shares(*src, *dst) {
                        self.error(PlanRule::NotInPlace(*src, *dst));
                    }
                }
                Step::Loop(l) => {
                    if number < plan.init.len() {
                        self.error(PlanRule::Loop("it is an init step".into()));
                    }
                    self.repeat(l);
                    self.apart(step);
                }
                Step::Call(c) => {
                    self.host_call(c);
                    self.apart(step);
                }
            }
            touched
                .iter()
                .filter(|t| t.1)
                .for_each(|t| holds[t.0.0 as usize] = true);
        }
        self.place = PlanPlace::Tables;
        for o in &plan.outputs {
            let value = if ever_written[o.slot.0 as usize] {
                o.slot
            } else {
                plan.viewed(o.slot)
            };
            if !self.held(value, &holds) {
                self.error(PlanRule::Unwritten(o.slot));
            }
            self.argument(o.slot, o.ty.dtype, &o.ty.elements());
        }
        self.states(&holds);
    }

    /// Each state has a slot of its own of its size, and what it is set to is in its bytes when a call ends. `holds` says by slot
    /// whether a value is there then.
    fn states(&mut self, holds: &[bool]) {
        let plan = self.plan;
        for (k, s) in plan.states.iter().enumerate() {
            if plan.slots[s.slot.0 as usize].storage != Storage::State(k as u32) {
                self.error(PlanRule::Missing(format!("state {k} in {}", s.slot)));
            }
            for slot in [Some(s.slot), s.set].into_iter().flatten() {
                self.argument(slot, s.ty.dtype, &s.ty.elements());
            }
            if !s.read && s.set.is_none() {
                self.error(PlanRule::Missing(format!(
                    "use of state {k}: it is neither read nor set"
                )));
            }
            if let Some(set) = s.set {
                if !holds[set.0 as usize] {
                    self.error(PlanRule::Unwritten(set));
                }
                if self.root(set) != s.slot {
                    self.error(PlanRule::NotInPlace(set, s.slot));
                }
            }
        }
        let named = |k: u32, id: SlotId| plan.states[k as usize].slot == id;
        for (i, slot) in plan.slots.iter().enumerate() {
            let id = SlotId(i as u32);
            if let Storage::State(k) = slot.storage
                && !named(k, id)
            {
                self.error(PlanRule::Missing(format!(
                    "state {k} in {id}, but in {}",
                    plan.states[k as usize].slot
                )));
            }
        }
    }

    /// Slots of inputs and constants are as large as what they hold.
    fn stored(&mut self) {
        let plan = self.plan;
        for (i, slot) in plan.slots.iter().enumerate() {
            let id = SlotId(i as u32);
            self.place = PlanPlace::Slot(id);
            match &slot.storage {
                Storage::Input(k) => {
                    let ty = &plan.inputs[*k as usize].ty;
                    self.argument(id, ty.dtype, &ty.elements());
                }
                Storage::Constant(k) => {
                    let data = &plan.constants[*k as usize];
                    self.argument(id, data.dtype(), &IndexExpr::from(data.len()));
                }
                _ => {}
            }
        }
        self.place = PlanPlace::Tables;
    }

    fn argument(&mut self, slot: SlotId, dtype: DType, len: &IndexExpr) {
        let held = &self.plan.slots[slot.0 as usize];
        if held.dtype != dtype {
            self.error(PlanRule::Dtype {
                slot,
                expected: dtype,
                found: held.dtype,
            });
        }
        if held.len != *len {
            let rule = PlanRule::Length {
                slot,
                expected: self.plan.dim(len),
                found: self.plan.dim(&held.len),
            };
            self.doubt(&(held.len.clone() - len.clone()), rule);
        }
    }

    fn launch(&mut self, l: &Launch) {
        let plan = self.plan;
        let kernel = &plan.kernels[l.kernel.0 as usize];
        for (expected, found) in [
            (kernel.params.len(), l.args.len()),
            (kernel.symbols.len(), l.symbols.len()),
        ] {
            if expected != found {
                return self.error(PlanRule::ArgumentCount { expected, found });
            }
        }
        for (position, (e, &(lo, hi))) in l.symbols.iter().zip(&kernel.symbols).enumerate() {
            let range = e.interval(&Ranges(&plan.symbols));
            if range.lo < lo || range.hi > hi {
                let none_fits = range.lo > hi || range.hi < lo;
                self.doubt_if(none_fits, PlanRule::SymbolRange { position, lo, hi });
            }
        }
        let grid = kernel.grid();
        let shared_out = match (&l.work, &grid) {
            (Work::Chunks { .. }, None) => true,
            (Work::Grid(found), Some(grid)) => {
                let is = (l.outer(&grid.blocks), grid.threads, grid.shared_bytes);
                (found.blocks.clone(), found.threads, found.shared_bytes) == is
            }
            _ => false,
        };
        if !shared_out {
            self.error(PlanRule::Work(l.kernel));
        }
        for (slot, p) in l.args.iter().zip(&kernel.params) {
            self.argument(*slot, p.dtype, &l.outer(&p.len));
        }
        for (i, a) in l.args.iter().enumerate() {
            for (j, b) in l.args.iter().enumerate().skip(i + 1) {
                let (x, y) = (kernel.params[i].access, kernel.params[j].access);
                if !self.shares(*a, *b) || (x == Access::Read && y == Access::Read) {
                    continue;
                }
                let in_place = match (x, y) {
                    _ if !plan.same_place(*a, *b) => false,
                    (Access::Read, Access::Write) => self.runs_in_place(l.kernel, i as u32, j as u32),
                    (Access::Write, Access::Read) => self.runs_in_place(l.kernel, j as u32, i as u32),
                    _ => false,
                };
                if !in_place {
                    self.error(PlanRule::NotInPlace(*a, *b));
                }
            }
        }
    }

    fn gemm(&mut self, g: &Gemm) {
        let plan = self.plan;
        let extents = |o: &GemmOperand| -> [IndexExpr; 2] {
            if o.slot == g.dst.slot {
                [g.m.clone(), g.n.clone()]
            } else if std::ptr::eq(o, &g.lhs) {
                [g.m.clone(), g.k.clone()]
            } else {
                [g.k.clone(), g.n.clone()]
            }
        };
        for operand in [&g.lhs, &g.rhs, &g.dst] {
            let slot = &plan.slots[operand.slot.0 as usize];
            if slot.dtype != g.dtype {
                self.error(PlanRule::Dtype {
                    slot: operand.slot,
                    expected: g.dtype,
                    found: slot.dtype,
                });
            }
            if operand.batch.len() != g.batch.len() {
                self.error(PlanRule::ArgumentCount {
                    expected: g.batch.len(),
                    found: operand.batch.len(),
                });
                continue;
            }
            let [rows, columns] = extents(operand);
            for (walk, whole) in [(&operand.row, &rows), (&operand.column, &columns)] {
                let product = walk.dims.iter().fold(IndexExpr::ONE, |n, l| n * l.extent.clone());
                if product != *whole || walk.dims.is_empty() || walk.dims.len() > Strides::MAX_DIMS {
                    self.error(PlanRule::Dims(operand.slot));
                }
            }
            self.windowed(g, operand);
            let accessed = windowed::accessed(g, operand);
            let axes = operand.batch.iter().zip(&g.batch);
            let axes = axes.chain(accessed.iter().map(|(stride, extent)| (stride, extent)));
            let (mut low, mut high) = (operand.offset.clone(), operand.offset.clone());
            let bounds = Ranges(&plan.symbols);
            let mut empty = false;
            for (stride, extent) in axes {
                empty |= extent.is(0);
                let far = stride.clone() * (extent.clone() - IndexExpr::ONE);
                match stride.interval(&bounds) {
                    i if i.lo >= 0 => high = high + far,
                    _ => low = low + far,
                }
            }
            let above = slot.len.clone() - high - IndexExpr::ONE;
            for fact in [low, above] {
                if !empty && !nonnegative(&fact, &bounds) {
                    self.doubt(&fact, PlanRule::OutOfBounds(operand.slot));
                }
            }
        }
        let composite = [&g.lhs, &g.rhs, &g.dst].into_iter().filter(|o| o.is_composite());
        if g.dst.is_composite() || composite.count() > 1 {
            self.error(PlanRule::Composite);
        }
        for operand in [&g.lhs, &g.rhs] {
            if self.shares(operand.slot, g.dst.slot) {
                self.error(PlanRule::NotInPlace(operand.slot, g.dst.slot));
            }
        }
        let Some(workspace) = g.workspace else { return };
        let found = plan.slots[workspace.0 as usize].dtype;
        if found != DType::U8 {
            self.error(PlanRule::Dtype {
                slot: workspace,
                expected: DType::U8,
                found,
            });
        }
        for operand in [&g.lhs, &g.rhs, &g.dst] {
            if self.shares(operand.slot, workspace) {
                self.error(PlanRule::NotInPlace(operand.slot, workspace));
            }
        }
    }

    /// Values that share bytes follow each other: none is read once the next is written.
    fn lifetimes(&mut self) {
        let plan = self.plan;
        let mut first_write = vec![None; plan.slots.len()];
        let mut last_read = vec![None; plan.slots.len()];
        for (at, step) in plan.init.iter().chain(&plan.steps).enumerate() {
            step.visit_slots(
                &mut |slot, writes| match writes {
                    true => drop(first_write[slot.0 as usize].get_or_insert(at)),
                    false => last_read[slot.0 as usize] = Some(at),
                },
                &plan.kernels,
            );
        }
        let end = plan.init.len() + plan.steps.len();
        let kept = plan
            .outputs
            .iter()
            .map(|o| o.slot)
            .chain(plan.states.iter().filter_map(|s| s.set));
        kept.for_each(|slot| last_read[slot.0 as usize] = Some(end));
        // Who reads the whole reads its parts.
        for i in 0..plan.slots.len() {
            let mut at = SlotId(i as u32);
            if !matches!(plan.slots[i].storage, Storage::Part { .. }) {
                continue;
            }
            while let Storage::Alias(of) | Storage::Part { of, .. } = plan.slots[at.0 as usize].storage {
                last_read[i] = last_read[i].max(last_read[of.0 as usize]);
                at = of;
            }
        }
        self.results_behind(&last_read);
        let bounds = Ranges(&plan.symbols);
        // First writes to the bytes of each root, in order.
        let mut writes: FxHashMap<SlotId, Vec<(usize, SlotId)>> = FxHashMap::default();
        for (i, at) in first_write.iter().enumerate() {
            let slot = SlotId(i as u32);
            at.iter()
                .for_each(|at| writes.entry(self.root(slot)).or_default().push((*at, slot)));
        }
        writes.values_mut().for_each(|w| w.sort());
        for i in 0..plan.slots.len() {
            self.place = PlanPlace::Slot(SlotId(i as u32));
            let (a, root) = (SlotId(i as u32), self.root(SlotId(i as u32)));
            let slot = &plan.slots[i];
            if a != root {
                let bytes = |s: SlotId| {
                    let slot = &plan.slots[s.0 as usize];
                    slot.len.clone() * IndexExpr::from(slot.dtype.bytes())
                };
                let spare = bytes(root) - bytes(a);
                if !nonnegative(&spare, &bounds) {
                    self.doubt(&spare, PlanRule::AliasLength(a, root));
                }
            }
            // `a` is overwritten when another value of these bytes is first written after `a` was.
            let born = first_write[i].or(match slot.storage {
                Storage::Alias(_) => first_write[plan.viewed(a).0 as usize],
                Storage::Part { .. } => None,
                _ => Some(0),
            });
            // What is made up of parts is as old as they are, and each of them is looked at.
            if self.parts.contains_key(&plan.viewed(a)) && first_write[i].is_none() {
                continue;
            }
            let (Some(born), Some(read), Some(writes)) = (born, last_read[i], writes.get(&root)) else {
                continue;
            };
            // What a state holds when a call begins is older than any step.
            let older = matches!(slot.storage, Storage::State(_)) && first_write[i].is_none();
            let next = match older {
                true => 0,
                false => writes.partition_point(|w| w.0 <= born),
            };
            let other = writes[next.min(writes.len())..].iter().find(|w| self.shares(w.1, a));
            if let Some(&(overwritten, b)) = other
                && read > overwritten
            {
                self.place = PlanPlace::Step(overwritten);
                self.error(PlanRule::AliasLive(a, b));
            }
        }
        self.place = PlanPlace::Tables;
    }
}

#[cfg(test)]
mod tests;
