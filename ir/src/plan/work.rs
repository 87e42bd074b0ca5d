//! What steps move and compute.
//!
//! Each operand counts once, as if nothing stayed in a cache between steps. Formulas are over the plan's symbols.

use super::{Gemm, HostCall, Launch, Plan, SlotId, Step};
use crate::dtype::DType;
use crate::index::IndexExpr;

impl Plan {
    /// Bytes and operations of a call; of a loop, those of all iterations that the trip count allows, or of one where it does not say.
    pub fn work(&self) -> [IndexExpr; 2] {
        let each = self.steps.iter().map(|step| self.step_work(step));
        each.fold([IndexExpr::ZERO, IndexExpr::ZERO], |sum, step| plus(sum, &step))
    }

    /// Bytes and operations of a step; as [`Plan::work`].
    pub fn step_work(&self, step: &Step) -> [IndexExpr; 2] {
        let of_launches = || {
            let each = step.launches().iter();
            each.fold([IndexExpr::ZERO, IndexExpr::ZERO], |sum, l| {
                plus(sum, &[l.bytes.clone(), l.flops.clone()])
            })
        };
        match step {
            Step::Launch(_) | Step::Group(_) | Step::Sequence(_) => of_launches(),
            Step::Gemm(g) => self.product_work(g),
            Step::Copy { src, .. } => [self.slot_bytes(*src) * IndexExpr::from(2), IndexExpr::ZERO],
            Step::Loop(l) => {
                let times = l.trip.clone().unwrap_or(IndexExpr::ONE);
                l.body.work().map(|e| l.outer(&e) * times.clone())
            }
            Step::Call(c) => self.call_work(c),
        }
    }

    /// The type that matrix instructions of a GPU multiply in a step; of several launches, in the first one.
    pub fn step_multiplies(&self, step: &Step) -> Option<DType> {
        match step {
            Step::Gemm(g) => matches!(g.dtype, DType::F16 | DType::BF16).then_some(g.dtype),
            step => self.launch_multiplies(step.launches().first()?),
        }
    }

    /// The type that matrix instructions of a GPU multiply in a launch.
    pub fn launch_multiplies(&self, launch: &Launch) -> Option<DType> {
        self.kernels.get(launch.kernel.0 as usize)?.multiplies()
    }

    /// Bytes and operations of a matrix product, with what runs behind it; that finds the product's result in cache, and a product behind
    /// that what the kernel leaves.
    pub fn product_work(&self, g: &Gemm) -> [IndexExpr; 2] {
        let batch = IndexExpr::product(&g.batch);
        let width = IndexExpr::from(g.dtype.bytes());
        let flops = batch.clone() * g.m.clone() * g.n.clone() * g.k.clone() * IndexExpr::Const(2);
        let operands = g.m.clone() * g.k.clone() + g.k.clone() * g.n.clone();
        let result = g.m.clone() * g.n.clone();
        match &g.epilogue {
            None => [batch * (operands + result) * width, flops],
            Some(e) => {
                let bytes = batch * operands * width + e.launch.bytes.clone() - self.slot_bytes(g.dst.slot);
                let both = [bytes, flops + e.launch.flops.clone()];
                match &e.product {
                    None => both,
                    Some(p) => {
                        let [bytes, flops] = plus(both, &self.product_work(p));
                        // Written by the kernel, and read by the product behind it.
                        [bytes - self.slot_bytes(p.lhs.slot) * IndexExpr::from(2), flops]
                    }
                }
            }
        }
    }

    /// Bytes and operations of a host function; a comparison counts one.
    pub fn call_work(&self, c: &HostCall) -> [IndexExpr; 2] {
        let moved = c.operands.iter().chain(&c.results).map(|s| self.slot_bytes(*s));
        let elements = c.operands.iter().map(|s| self.slots[s.0 as usize].len.clone());
        let elements = elements.fold(IndexExpr::ZERO, |a, b| a + b);
        // About the logarithm of a long row's length.
        let flops = elements * IndexExpr::Const(16);
        [moved.fold(IndexExpr::ZERO, |a, b| a + b), flops]
    }

    /// The bytes of a slot.
    fn slot_bytes(&self, slot: SlotId) -> IndexExpr {
        let slot = &self.slots[slot.0 as usize];
        slot.len.clone() * IndexExpr::from(slot.dtype.bytes())
    }
}

fn plus([bytes, flops]: [IndexExpr; 2], [more, further]: &[IndexExpr; 2]) -> [IndexExpr; 2] {
    [bytes + more.clone(), flops + further.clone()]
}
