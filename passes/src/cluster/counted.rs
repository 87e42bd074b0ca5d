//! Indices that are counted and cut off or mirrored at both ends, as those of padding with an image's own elements.

use smallvec::{SmallVec, smallvec};
use tlc_ir::target::Target;
use tlc_ir::{NodeId, NodeKind, ScalarOp};

use super::Clusterer;

/// Nodes that are looked at.
const MOST_LOOKED_AT: usize = 32;

impl Clusterer<'_> {
    /// Whether a value is a counter's wherever a condition on the counter holds, and something else at the ends: what is the counter's is no index
    /// from data for a loop that has the ends apart, and costs nothing. From memory each would be one.
    pub(super) fn is_counted(&self, id: NodeId) -> bool {
        let node = self.graph.node(id);
        if !matches!(node.kind, NodeKind::Map(ScalarOp::Select))
            || !node.ty.dtype.is_int()
            || !matches!(self.placement.target(id), Target::Cpu(_))
        {
            return false;
        }
        // What it is at the ends is computed for few elements.
        let mut open: SmallVec<[NodeId; 8]> = smallvec![node.operands[0], node.operands[1]];
        let mut counts = false;
        for _ in 0..MOST_LOOKED_AT {
            let Some(at) = open.pop() else { return counts };
            let node = self.graph.node(at);
            match &node.kind {
                NodeKind::Iota { .. } => counts = true,
                NodeKind::Const(_) => {}
                NodeKind::View(_)
                | NodeKind::Map(
                    ScalarOp::Add | ScalarOp::Sub | ScalarOp::And | ScalarOp::Le | ScalarOp::Lt | ScalarOp::Neg,
                ) => open.extend(node.operands.iter().copied()),
                _ => return false,
            }
        }
        false
    }
}
