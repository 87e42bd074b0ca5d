//! Reductions of different values to a number each, which somebody puts together: a norm of many tensors, a check of all of them.
//!
//! What puts them together waits for all of them. A reduction that shared its kernel would run behind the others, on one thread, so that
//! each stays in a kernel of its own, and all of them run side by side ([`crate::groups::group_launches`]).

use tlc_ir::{NodeId, NodeKind};

use super::Clusterer;
use crate::access::space;
use crate::reason::FusionReason;

/// Elements that are reduced faster than another launch begins.
const FEW_ELEMENTS: i64 = 1024;
/// With so many others, reductions of any size run beside them.
const MANY: usize = 8;

impl Clusterer<'_> {
    /// Why a reduction in one of two groups stays apart from the other, which waits for other reductions.
    pub(super) fn waits_for_others(&self, a: usize, b: usize) -> Option<FusionReason> {
        [(a, b), (b, a)].into_iter().find_map(|(from, to)| {
            let reductions = self.groups[from].roots.iter();
            let reductions: Vec<(NodeId, i64)> = reductions
                .filter_map(|&r| Some((r, self.reduced_to_a_number(r)?)))
                .collect();
            let elements = reductions.iter().map(|(_, n)| *n).max()?;
            let enough = if elements > FEW_ELEMENTS { 2 } else { MANY };
            let mut others: Vec<NodeId> = Vec::new();
            for root in &self.groups[to].roots {
                for d in &self.demands[root.index()] {
                    let other = d.source;
                    let elsewhere = self.group_of[other.index()].is_some_and(|g| g != from && g != to);
                    if elsewhere
                        && !others.contains(&other)
                        && self.reduced_to_a_number(other).is_some()
                        && reductions.iter().all(|&(r, _)| self.reads_nothing_of(other, r))
                    {
                        others.push(other);
                        if others.len() >= enough {
                            return Some(FusionReason::OtherReductions { elements });
                        }
                    }
                }
            }
            None
        })
    }

    /// How many elements a reduction or contraction makes one number of.
    fn reduced_to_a_number(&self, root: NodeId) -> Option<i64> {
        if !matches!(self.kind(root), NodeKind::Reduce { .. } | NodeKind::Einsum { .. })
            || !self.graph.ty(root).elements().is(1)
        {
            return None;
        }
        let extents = space(self.graph, root).extents;
        Some(self.typical(&tlc_ir::index::IndexExpr::product(&extents)))
    }

    /// Whether two roots read no value in common, and none of the two the other.
    fn reads_nothing_of(&self, a: NodeId, b: NodeId) -> bool {
        let (a_reads, b_reads) = (&self.demands[a.index()], &self.demands[b.index()]);
        let of_both = |source: NodeId| source == b || b_reads.iter().any(|d| d.source == source);
        !a_reads.iter().any(|d| of_both(d.source)) && !b_reads.iter().any(|d| d.source == a)
    }
}
