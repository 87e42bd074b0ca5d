//! What values are interleaved of, as far as the recording knows.

use tlc_ir::{IndexExpr, NodeId};

use super::Graph;

/// An axis whose elements lie in several tensors: those whose numbers have one remainder by the stride in one of them.
#[derive(Clone)]
pub(crate) struct Apart {
    pub(crate) axis: usize,
    pub(crate) stride: i64,
    /// Elements of the axis once they are together; those of the parts may be a few more.
    pub(crate) extent: IndexExpr,
}

/// Tensors of equal shapes that make up one, a part for each combination of remainders, those along the last axis of `axes` next to each other.
#[derive(Clone)]
pub(crate) struct Interleaved<T> {
    pub(crate) axes: Vec<Apart>,
    pub(crate) parts: Vec<T>,
}

impl Graph {
    /// The nodes that a value is interleaved of, if an overlap-add made it.
    pub(crate) fn interleaved(&self, id: NodeId) -> Option<Interleaved<NodeId>> {
        self.lock().interleaved.get(&id).cloned()
    }

    /// Keeps what a value is interleaved of.
    pub(crate) fn interleave(&self, id: NodeId, of: Interleaved<NodeId>) {
        self.lock().interleaved.insert(id, of);
    }
}
