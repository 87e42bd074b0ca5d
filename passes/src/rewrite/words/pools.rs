//! The largest or the least of windows over bytes, every other one along a row: images are padded where they are stored, for lanes load every other byte
//! from memory alone, not where some may be padding.

use smallvec::SmallVec;
use tlc_ir::graph::{GraphError, Monoid, View};
use tlc_ir::target::{AccessKind, Emitter};
use tlc_ir::{Graph, Node, NodeId, NodeKind};

use crate::rewrite::Rebuilder;
use crate::rewrite::byte_functions::is_byte;

/// Whether a node takes the largest or the least of bytes.
pub(super) fn is_pool(graph: &Graph, node: &Node) -> bool {
    let extreme = matches!(
        node.kind,
        NodeKind::Reduce {
            monoid: Monoid::Max | Monoid::Min,
            ..
        }
    );
    extreme && is_byte(graph.ty(node.operands[0]).dtype)
}

/// Such a node over windows of a padded image that is stored; `None` of others, and for an emitter that has no use for it.
pub(super) fn over_stored(
    re: &mut Rebuilder,
    node: &Node,
    operands: &[NodeId],
    emitter: &Emitter,
) -> Result<Option<NodeId>, GraphError> {
    let graph = &re.graph;
    let dtype = graph.ty(operands[0]).dtype;
    if !emitter.access(AccessKind::Apart).is_vector() || emitter.masks_every_other(dtype) {
        return Ok(None);
    }
    // The windows, outermost first, and the image that they slide over.
    let (mut windows, mut image): (SmallVec<[NodeKind; 2]>, _) = (SmallVec::new(), operands[0]);
    while let NodeKind::View(View::Window { .. }) = &graph.node(image).kind {
        windows.push(graph.node(image).kind.clone());
        image = graph.node(image).operands[0];
    }
    let row = graph.ty(image).rank().checked_sub(1);
    let every_other = |view: &NodeKind| match view {
        NodeKind::View(View::Window {
            axis, stride: 2, size, ..
        }) => Some(usize::from(*axis)) == row && !size.is(1),
        _ => false,
    };
    let padded = matches!(graph.node(image).kind, NodeKind::View(View::Pad { .. }));
    if !padded || !windows.iter().any(every_other) {
        return Ok(None);
    }
    let stored = re.add(NodeKind::Copy, &[image])?;
    let seen = windows
        .into_iter()
        .rev()
        .try_fold(stored, |at, view| re.add(view, &[at]))?;
    re.add(node.kind.clone(), &[seen]).map(Some)
}
