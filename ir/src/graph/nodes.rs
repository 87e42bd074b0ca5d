//! The nodes of a graph: its own while it is made, later shared with graphs that begin with the same ones.

use std::ops::Deref;
use std::sync::Arc;

use super::Node;

/// Nodes in their order. A pass that changes nothing leaves a graph of the very nodes that it was given, none of which is touched for that.
#[derive(Clone, Debug)]
pub(super) enum Nodes {
    /// Those of a graph that is being made.
    Own(Vec<Node>),
    /// The first so many of what is there; no more is ever added.
    Shared(Arc<Vec<Node>>, usize),
}

impl Default for Nodes {
    fn default() -> Nodes {
        Nodes::Own(Vec::new())
    }
}

impl Deref for Nodes {
    type Target = [Node];

    #[inline]
    fn deref(&self) -> &[Node] {
        match self {
            Nodes::Own(nodes) => nodes,
            Nodes::Shared(nodes, count) => &nodes[..*count],
        }
    }
}

impl Nodes {
    /// The nodes as a list that can change: from here on nobody shares it.
    pub(super) fn own(&mut self) -> &mut Vec<Node> {
        if let Nodes::Shared(nodes, count) = self {
            let mut own = Vec::with_capacity(nodes.len());
            own.extend_from_slice(&nodes[..*count]);
            *self = Nodes::Own(own);
        }
        match self {
            Nodes::Own(nodes) => nodes,
            Nodes::Shared(..) => unreachable!("it was made its own"),
        }
    }

    /// How many nodes there are room for, or will likely be.
    pub(super) fn capacity(&self) -> usize {
        match self {
            Nodes::Own(nodes) => nodes.capacity(),
            Nodes::Shared(nodes, _) => nodes.len(),
        }
    }

    /// Lets other graphs share the nodes.
    pub(super) fn settle(&mut self) {
        if let Nodes::Own(nodes) = self {
            let count = nodes.len();
            *self = Nodes::Shared(Arc::new(std::mem::take(nodes)), count);
        }
    }

    /// Takes on the next node of another list, of which it has all nodes before that one and no others.
    pub(super) fn share(&mut self, from: &Nodes) {
        let next = self.len();
        match (&mut *self, from) {
            (Nodes::Shared(own, count), Nodes::Shared(all, known)) if Arc::ptr_eq(own, all) && *count < *known => {
                *count += 1;
            }
            (Nodes::Own(own), Nodes::Shared(all, _)) if own.is_empty() => *self = Nodes::Shared(Arc::clone(all), 1),
            _ => self.own().push(from[next].clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Graph, NodeKind, Origin, TensorType};
    use crate::dtype::DType;
    use crate::scalar::ScalarOp;

    /// `-|x|` of an input, as a graph that others share.
    fn settled() -> Graph {
        let mut g = Graph::new("g");
        let ty = TensorType::new(DType::F32, [4]);
        let x = g.add_input("x", ty, Origin::Unknown).expect("it types");
        let y = g.add(NodeKind::Map(ScalarOp::Abs), &[x], Origin::Unknown);
        g.add(NodeKind::Map(ScalarOp::Neg), &[y.expect("it types")], Origin::Unknown)
            .expect("it types");
        g.settle();
        g
    }

    #[test]
    fn a_graph_that_shares_nodes_and_goes_on_leaves_the_other_as_it_was() {
        let from = settled();
        let before = from.to_string();
        let mut to = Graph::new("g");
        for (id, _) in from.nodes().take(2) {
            to.share(&from, id);
        }
        assert_eq!((to.len(), to.inputs()), (2, from.inputs()));
        let (x, y) = (to.inputs()[0], super::super::NodeId(1));
        // Equal to one that is shared, and equal to one that the other graph alone has.
        let again = to.add(NodeKind::Map(ScalarOp::Abs), &[x], Origin::Unknown);
        assert_eq!(again, Ok(y));
        let more = to
            .add(NodeKind::Map(ScalarOp::Exp), &[y], Origin::Unknown)
            .expect("it types");
        assert_eq!((more.index(), to.len(), from.len()), (2, 3, 3));
        assert_eq!(to.node(more).kind, NodeKind::Map(ScalarOp::Exp));
        assert_eq!(from.to_string(), before);
        let ty = TensorType::new(DType::F32, [4]);
        assert!(to.add_input("x", ty, Origin::Unknown).is_err(), "the name is taken");
    }

    /// A recording goes on behind its snapshot, and so can the snapshot: both know the nodes and the names of inputs that they share.
    #[test]
    fn a_snapshot_and_its_graph_go_on_apart() {
        let mut one = settled();
        let mut other = one.snapshot();
        assert_eq!((other.to_string(), other.inputs()), (one.to_string(), one.inputs()));
        let (x, y) = (one.inputs()[0], super::super::NodeId(1));
        let add = |g: &mut Graph, op, of| g.add(NodeKind::Map(op), &[of], Origin::Unknown).expect("it types");
        for g in [&mut one, &mut other] {
            assert_eq!((add(g, ScalarOp::Abs, x), g.len()), (y, 3));
            let ty = TensorType::new(DType::F32, [4]);
            assert!(g.add_input("x", ty, Origin::Unknown).is_err(), "the name is taken");
        }
        let (a, b) = (add(&mut one, ScalarOp::Exp, y), add(&mut other, ScalarOp::Sqrt, y));
        assert_eq!((a, one.len(), other.len()), (b, 4, 4));
        assert_eq!(one.node(a).kind, NodeKind::Map(ScalarOp::Exp));
        assert_eq!(other.node(b).kind, NodeKind::Map(ScalarOp::Sqrt));
    }

    /// A settled graph can still be changed, and so can a copy of it, apart from each other.
    #[test]
    fn copies_of_a_settled_graph_change_apart() {
        let mut one = settled();
        let mut other = one.clone();
        let last = super::super::NodeId(2);
        let add = |g: &mut Graph, op| g.add(NodeKind::Map(op), &[last], Origin::Unknown).expect("it types");
        let (a, b) = (add(&mut one, ScalarOp::Exp), add(&mut other, ScalarOp::Sqrt));
        assert_eq!(a, b);
        assert_eq!(one.node(a).kind, NodeKind::Map(ScalarOp::Exp));
        assert_eq!(other.node(b).kind, NodeKind::Map(ScalarOp::Sqrt));
        assert_eq!(add(&mut one, ScalarOp::Exp), a);
    }
}
