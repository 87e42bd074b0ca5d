//! Concatenations that are read along another axis than the one along which they lie.

use smallvec::{SmallVec, smallvec};
use tlc_ir::graph::View;
use tlc_ir::index::IndexExpr;
use tlc_ir::target::Target;
use tlc_ir::{NodeId, NodeKind};

use super::Clusterer;

/// Elements from which on a step that stores them pays.
const FEWEST_ELEMENTS: i64 = 2048;
/// Tensors that are interleaved in registers.
const MOST_INTERLEAVED: i64 = 16;
/// Values between the concatenation and what has it in another order.
const MOST_BETWEEN: usize = 16;

impl Clusterer<'_> {
    /// Whether a value is a concatenation of which something computed element by element has other elements side by side, as images whose channels are
    /// joined and then brought together: it is stored. Of which part an element is would be a test for each element there, and tiles of a transposition
    /// take no loads that depend on one.
    pub(super) fn is_turned_concatenation(&self, id: NodeId) -> bool {
        if !matches!(self.placement.target(id), Target::Cpu(_))
            || !self.is_concatenation(id)
            || self.typical(&self.graph.ty(id).elements()) < FEWEST_ELEMENTS
            || self.stacks_a_power_of_two(id)
        {
            return false;
        }
        let row = |at: NodeId| self.graph.ty(at).shape.last().cloned().unwrap_or(IndexExpr::ONE);
        let mut open: SmallVec<[NodeId; 8]> = smallvec![id];
        for _ in 0..MOST_BETWEEN {
            let Some(at) = open.pop() else { return false };
            if at != id && self.is_root[at.index()] {
                continue;
            }
            for &user in &self.users[at.index()] {
                match self.kind(user) {
                    NodeKind::View(View::Permute(axes)) => {
                        let rank = axes.len();
                        let turned = axes.last().is_some_and(|&a| usize::from(a) + 1 != rank);
                        if turned && !row(at).is(1) && !row(user).is(1) && !self.is_summed_across(user) {
                            return true;
                        }
                    }
                    NodeKind::View(View::Reshape(_)) if row(user) == row(at) => open.push(user),
                    NodeKind::Map(_) | NodeKind::Convert(_) if self.graph.ty(user).shape == self.graph.ty(at).shape => {
                        open.push(user);
                    }
                    _ => {}
                }
            }
        }
        false
    }

    /// Whether a value is made of few tensors along its first axis, so many that vectors divide by their number, as what is interleaved with a stride
    /// of two is: it is interleaved in registers where it is read.
    fn stacks_a_power_of_two(&self, id: NodeId) -> bool {
        let axis = self.padded_truth(self.graph.node(id).operands[0]).map(|(axis, _)| axis);
        let all = self.graph.ty(id).shape.first().and_then(IndexExpr::as_const);
        axis == Some(0) && all.is_some_and(|n| (1..=MOST_INTERLEAVED).contains(&n) && n.count_ones() == 1)
    }

    /// Whether all that reads a value sums it up along other axes than its last: the sums go along whatever lies side by side.
    fn is_summed_across(&self, id: NodeId) -> bool {
        let last = self.graph.ty(id).rank().saturating_sub(1);
        let across = |u: &NodeId| match self.kind(*u) {
            NodeKind::Reduce { axes, .. } => !axes.iter().any(|a| usize::from(*a) == last),
            _ => false,
        };
        self.users[id.index()].iter().all(across)
    }
}
