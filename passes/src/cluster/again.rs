//! Values that a kernel would compute again and again: whether that costs less than to store them once and to load them.
//!
//! A value that is inlined into what reads it is computed wherever it is read. An element that is read once costs the same either
//! way. But a contraction reads each element of an operand once for every index that the operand lacks, and so does what reads
//! it broadcast. Loops around the innermost one that a value varies with are what repeats it; what only changes in outer loops is
//! computed once in each of their iterations.
//!
//! Costs are counted in operations of one element, an addition being 1.

use tlc_ir::graph::{Semiring, View};
use tlc_ir::index::{IndexExpr, IndexNode, VarId};
use tlc_ir::target::Target;
use tlc_ir::{NodeId, NodeKind};

use super::{Clusterer, LoopSpace, Role};
use crate::access::{label_count, space};
use crate::direct::direct_image;
use crate::reason::FusionReason;
use crate::tile::{PRODUCT_SIDE, SMALLEST_PRODUCT_SIDE};

/// What a load of an element costs, and a store.
const ACCESS: i64 = 4;
/// What one more kernel costs, or its loop where it shares one.
const KERNEL: i64 = 2000;
/// Views that are followed from a value to what reads it.
const VIEWS: u32 = 8;

/// Both sides of the sum, over all elements, for sizes that are typical.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Again {
    /// Operations where it is computed wherever it is read.
    pub(super) computed: u64,
    /// Operations where it is computed once, stored, and loaded wherever it is read.
    pub(super) stored: u64,
}

impl Clusterer<'_> {
    /// The two costs of a value that is read several times, if it is; `cost` and `loads` are those of its cone.
    pub(super) fn again(&self, id: NodeId, cost: u32, loads: u32) -> Option<Again> {
        let times = self.repetitions(id, VIEWS);
        if times <= 1 {
            return None;
        }
        let elements = self.typical(&self.graph.ty(id).elements()).max(1);
        let once = i64::from(cost).saturating_add(i64::from(loads).saturating_mul(ACCESS));
        let computed = once.saturating_mul(times).saturating_mul(elements);
        let each = once.saturating_add(ACCESS).saturating_add(times.saturating_mul(ACCESS));
        let stored = each.saturating_mul(elements).saturating_add(KERNEL);
        Some(Again {
            computed: computed as u64,
            stored: stored as u64,
        })
    }

    /// How often what reads a value, through views, computes each element of it.
    fn repetitions(&self, id: NodeId, views: u32) -> i64 {
        let of = |&u: &NodeId| match self.kind(u) {
            NodeKind::View(_) if views > 0 => self.repeats_of(u, id).saturating_mul(self.repetitions(u, views - 1)),
            _ => self.repeats_of(u, id),
        };
        self.users[id.index()].iter().map(of).max().unwrap_or(1)
    }

    /// How often a node computes each element of an operand.
    fn repeats_of(&self, user: NodeId, operand: NodeId) -> i64 {
        // The product of the extents that do not vary with the operand, outside of the last that does.
        let outside = |varies: &[bool], extents: &[IndexExpr]| -> i64 {
            let last = varies.iter().rposition(|v| *v).unwrap_or(0);
            let repeated = (0..last).filter(|&k| !varies[k]);
            repeated.fold(1i64, |n, k| n.saturating_mul(self.typical(&extents[k]).max(1)))
        };
        let node = self.graph.node(user);
        match &node.kind {
            NodeKind::View(View::Expand(to)) => {
                let from = &self.graph.ty(operand).shape;
                let lead = to.len() - from.len();
                let varies: Vec<bool> = (0..to.len()).map(|k| k >= lead && !from[k - lead].is(1)).collect();
                outside(&varies, to)
            }
            // Those of products and direct convolutions are stored.
            NodeKind::Einsum { inputs, output, .. }
                if !self.products.contains_key(&user)
                    && !self.weight_gradients.contains_key(&user)
                    && direct_image(self.graph, user).is_none() =>
            {
                let s = space(self.graph, user);
                let summed = (0..label_count(inputs) as u16).filter(|l| !output.contains(l));
                let labels: Vec<u16> = output.iter().copied().chain(summed).collect();
                let of = inputs.iter().zip(&node.operands).filter(|(_, o)| **o == operand);
                let times = of.map(|(own, _)| {
                    let varies = labels.iter().zip(&s.extents).map(|(l, d)| own.contains(l) && !d.is(1));
                    outside(&varies.collect::<Vec<bool>>(), &s.extents)
                });
                let times = times.max().unwrap_or(1);
                times.saturating_add(self.results_of_a_tile(user) - 1) / self.results_of_a_tile(user)
            }
            NodeKind::Gather { .. } if node.operands[0] == operand => {
                let (all, of) = (node.ty.elements(), self.graph.ty(operand).elements());
                (self.typical(&all) / self.typical(&of).max(1)).max(1)
            }
            _ => 1,
        }
    }

    /// For how many results along a side of a contraction a kernel computes an element of an operand once.
    fn results_of_a_tile(&self, user: NodeId) -> i64 {
        let node = self.graph.node(user);
        let NodeKind::Einsum {
            inputs,
            output,
            semiring: Semiring::AddMul,
            ..
        } = &node.kind
        else {
            return 1;
        };
        let (Target::Gpu(_), [left, right]) = (self.placement.target(user), &inputs[..]) else {
            return 1;
        };
        // A GPU's blocks take tiles where both sides are long enough for them.
        let extents = space(self.graph, user).extents;
        let side = |own: &[u16], other: &[u16]| {
            let labels = output.iter().zip(&extents);
            let alone = labels.filter(|(l, _)| own.contains(l) && !other.contains(l));
            alone.fold(1i64, |n, (_, d)| n.saturating_mul(self.typical(d)))
        };
        match side(left, right).min(side(right, left)) {
            SMALLEST_PRODUCT_SIDE.. => PRODUCT_SIDE,
            _ => 1,
        }
    }

    /// Whether a value is a sum of products that a GPU's blocks compute in tiles, because both sides and the sum are long enough.
    pub(super) fn is_multiplied_in_tiles(&self, id: NodeId) -> bool {
        if self.results_of_a_tile(id) == 1 {
            return false;
        }
        let all = space(self.graph, id);
        let summed = &all.extents[all.result_rank..];
        self.typical(&IndexExpr::product(summed)) >= SMALLEST_PRODUCT_SIDE
    }

    /// Why two groups do not share a kernel of these roots (over that space, if they have one): a root of one would compute elements
    /// of the other's again and again, which costs more than to store and to load them.
    pub(super) fn stored_instead(
        &self,
        [a, b]: [usize; 2],
        roots: &[NodeId],
        merged: Option<&LoopSpace>,
    ) -> Option<FusionReason> {
        let reduces = |r: &NodeId| {
            let s = space(self.graph, *r);
            s.extents.len() > s.result_rank
        };
        let sums = || roots.iter().any(reduces);
        [(a, b), (b, a)].into_iter().find_map(|(from, to)| {
            self.groups[from].costly.iter().find_map(|&value| {
                let again = self.costly.get(&value)?;
                // What has parallel axes alone is computed once for each point of them. That is no reason to run what only reads it
                // column by column, though: few threads could share the columns.
                let at = roots.binary_search(&value).ok()?;
                let once = merged.is_some_and(|m| !m.roles[at].iter().any(|r| matches!(r, Role::Inner(_))));
                if once && sums() {
                    return None;
                }
                let readers = &self.groups[to].roots;
                let newer = &readers[readers.partition_point(|&r| r < value)..];
                let repeated = newer.iter().any(|&r| self.reads_again(r, value));
                repeated.then_some(FusionReason::CheaperStored {
                    computed: again.computed,
                    stored: again.stored,
                })
            })
        })
    }

    /// Whether a root reads elements of a value in several iterations of a loop outside of one that they vary with.
    fn reads_again(&self, root: NodeId, value: NodeId) -> bool {
        let extents = space(self.graph, root).extents;
        self.demands[root.index()]
            .iter()
            .filter(|d| d.source == value)
            .any(|d| {
                // What data chooses it chooses any number of times.
                let mut by_data = false;
                for i in &d.index {
                    i.visit_atoms(&mut |a| by_data |= matches!(a, IndexNode::Var(v) if v.0 as usize >= extents.len()));
                }
                if by_data {
                    return true;
                }
                let varies = |k: usize| d.index.iter().any(|i| i.uses(VarId(k as u32)));
                let varies: Vec<bool> = (0..extents.len()).map(varies).collect();
                let last = varies.iter().rposition(|v| *v).unwrap_or(0);
                (0..last).any(|k| !varies[k] && !extents[k].is(1))
            })
    }
}
