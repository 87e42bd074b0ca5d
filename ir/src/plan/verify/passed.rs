//! Values that pass from one product to another within a step, and are in no memory as a whole.
//!
//! A thread that runs such a step has room for some rows of the value ([`Storage::Lines`]): the first product writes them, the kernel
//! behind it turns them into others in the same bytes, and the second product reads those. So nobody else may touch the value, the
//! kernel's lines must be its rows, and what the second product writes must lie apart from all that is still read for other rows.

use super::{Checker, PlanPlace, PlanRule};
use crate::index::IndexExpr;
use crate::kernel::Access;
use crate::plan::{DeviceId, Epilogue, Gemm, GemmOperand, SlotId, Step, Storage, Strides};

impl Gemm {
    /// Whether a product can be that behind the kernel behind this one, as far as sizes and strides say: the value between them is stored
    /// row after row, entry after entry, the kernel goes along its rows, and the second product takes its rows as they are. `iterations`
    /// are those of a row, `extent` all of the kernel's.
    pub fn passes_rows(&self, behind: &Gemm, [iterations, elements, extent]: [&IndexExpr; 3]) -> bool {
        let rows = IndexExpr::product(&self.batch) * self.m.clone();
        self.dtype == behind.dtype
            && self.batch == behind.batch
            && self.m == behind.m
            && self.n == behind.k
            && self.n == *elements
            && rows * iterations.clone() == *extent
            && self.fills(&self.dst)
            && self.fills(&behind.lhs)
    }

    /// Whether rows of the result's length lie one after the other.
    fn fills(&self, o: &GemmOperand) -> bool {
        let straight = |w: &Strides, extent: &IndexExpr, stride: &IndexExpr| match &w.dims[..] {
            [dim] => extent.is(1) || dim.stride == *stride,
            _ => false,
        };
        let mut wanted = self.m.clone() * self.n.clone();
        let mut in_order = o.offset.is(0)
            && o.batch.len() == self.batch.len()
            && straight(&o.row, &self.m, &self.n)
            && straight(&o.column, &self.n, &IndexExpr::ONE);
        for (extent, stride) in self.batch.iter().zip(&o.batch).rev() {
            in_order &= extent.is(1) || *stride == wanted;
            wanted = wanted * extent.clone();
        }
        in_order
    }
}

impl Checker<'_> {
    /// Each value in the memory of lines is one step's alone, which passes it on.
    pub(super) fn passed(&mut self) {
        let plan = self.plan;
        if plan.slots.iter().all(|s| s.storage != Storage::Lines) {
            return;
        }
        let lines = |this: &Self, slot: SlotId| plan.slots[this.root(slot).0 as usize].storage == Storage::Lines;
        let mut owner: Vec<Option<usize>> = vec![None; plan.slots.len()];
        for (number, step) in plan.init.iter().chain(&plan.steps).enumerate() {
            self.place = PlanPlace::Step(number);
            let mut wrong = Vec::new();
            let passes = match step {
                Step::Gemm(g) if g.behind().is_some() => Some(self.root(g.dst.slot)),
                _ => None,
            };
            step.visit_slots(
                &mut |slot, _| {
                    let root = self.root(slot);
                    if lines(self, slot)
                        && (passes != Some(root) || *owner[root.0 as usize].get_or_insert(number) != number)
                    {
                        wrong.push(slot);
                    }
                },
                &plan.kernels,
            );
            wrong.dedup();
            wrong.into_iter().for_each(|s| self.error(PlanRule::Passed(s)));
        }
        self.place = PlanPlace::Tables;
        let kept = plan.outputs.iter().map(|o| o.slot);
        let kept = kept.chain(plan.states.iter().filter_map(|s| s.set));
        for slot in kept.filter(|s| lines(self, *s)).collect::<Vec<_>>() {
            self.error(PlanRule::Passed(slot));
        }
    }

    /// The product behind the kernel behind a product takes what the kernel leaves, row by row, and writes where nothing is read.
    pub(super) fn behind(&mut self, g: &Gemm) {
        let (plan, Some(e)) = (self.plan, &g.epilogue) else {
            return;
        };
        let Some(p) = &e.product else { return };
        self.gemm(p);
        let result = self.root(g.dst.slot);
        let kernel = &plan.kernels[e.launch.kernel.0 as usize];
        let extent = e.launch.outer(&kernel.parallel_extent());
        let slot = &plan.slots[result.0 as usize];
        let written = |access: Access| access != Access::Read;
        let arguments = || e.launch.args.iter().zip(&kernel.params);
        let left = arguments().any(|(s, param)| *s == p.lhs.slot && written(param.access));
        let sizes = [&e.lines.iterations, &e.lines.elements, &extent];
        if p.epilogue.is_some()
            || e.launch.args.len() > Epilogue::MOST_ARGUMENTS
            || slot.storage != Storage::Lines
            || slot.device != DeviceId::HOST
            || self.root(p.lhs.slot) != result
            || !left
            || !g.passes_rows(p, sizes)
        {
            self.error(PlanRule::Passed(g.dst.slot));
        }
        // Other rows may still be read, or written, when the second product writes its own.
        let target = self.root(p.dst.slot);
        let operands = [g.lhs.slot, g.rhs.slot, g.dst.slot];
        for other in operands.into_iter().chain(e.launch.args.iter().copied()) {
            if self.root(other) == target {
                self.error(PlanRule::NotInPlace(other, p.dst.slot));
            }
        }
        for (other, param) in arguments() {
            if written(param.access) && self.root(*other) == self.root(p.rhs.slot) {
                self.error(PlanRule::NotInPlace(p.rhs.slot, *other));
            }
        }
    }
}
