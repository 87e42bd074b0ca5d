//! Values that have the elements of several others in turn, as the images that transposed convolutions with a stride leave have.

use smallvec::{SmallVec, smallvec};
use tlc_ir::graph::View;
use tlc_ir::target::Target;
use tlc_ir::{NodeId, NodeKind};

use super::Clusterer;

/// Values between the concatenation and what is computed of it.
const MOST_BETWEEN: usize = 16;

impl Clusterer<'_> {
    /// Whether a value is computed element by element of a concatenation whose parts it has in turn, and used by something else than the next such value:
    /// it is stored. Which part has an element and whether it is padding are no tests for one loop, which would make it one element at a time, and
    /// no sum asks it of each element.
    pub(super) fn is_interleaved_and_stored(&self, id: NodeId) -> bool {
        let goes_on = |u: &NodeId| {
            matches!(
                self.kind(*u),
                NodeKind::Map(_)
                    | NodeKind::Convert(_)
                    | NodeKind::View(View::Reshape(_) | View::Slice { .. } | View::Permute(_))
            )
        };
        let users = &self.users[id.index()];
        if !matches!(self.placement.target(id), Target::Cpu(_))
            || users.len() == 1 && goes_on(&users[0])
            || users.is_empty()
        {
            return false;
        }
        let mut open: SmallVec<[NodeId; 8]> = smallvec![id];
        for _ in 0..MOST_BETWEEN {
            let Some(at) = open.pop() else { return false };
            if at != id && self.is_root[at.index()] {
                continue;
            }
            match self.kind(at) {
                NodeKind::Map(_) | NodeKind::Convert(_) | NodeKind::View(View::Slice { .. } | View::Expand(_)) => {
                    open.extend(self.graph.node(at).operands.iter().copied());
                }
                NodeKind::View(View::Reshape(_)) => {
                    let below = self.graph.node(at).operands[0];
                    match self.kind(below) {
                        NodeKind::View(View::Permute(_)) if self.regroups(at) => {
                            let mut from = self.graph.node(below).operands[0];
                            while let NodeKind::View(View::Reshape(_)) = self.kind(from) {
                                from = self.graph.node(from).operands[0];
                            }
                            if self.is_concatenation(from) {
                                return true;
                            }
                        }
                        _ => open.push(below),
                    }
                }
                _ => {}
            }
        }
        false
    }
}
