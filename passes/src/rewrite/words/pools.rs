//! The largest or the least of windows over bytes, in i32: kernels whose lanes are neighbouring results keep 32 bits for each, of whatever they load.
//!
//! Images are padded where they are stored if windows read every other element along a row: lanes load every other byte from memory alone, not where
//! some may be padding.

use smallvec::SmallVec;
use tlc_ir::graph::{GraphError, Monoid, View};
use tlc_ir::target::{AccessKind, Emitter};
use tlc_ir::{DType, Graph, Node, NodeId, NodeKind};

use crate::direct::has_overlaps;
use crate::rewrite::Rebuilder;
use crate::rewrite::byte_functions::is_byte;

/// Whether a node takes the largest or the least of windows over bytes.
pub(super) fn is_pool(graph: &Graph, node: &Node) -> bool {
    let extreme = matches!(
        node.kind,
        NodeKind::Reduce {
            monoid: Monoid::Max | Monoid::Min,
            ..
        }
    );
    extreme && is_byte(graph.ty(node.operands[0]).dtype) && has_overlaps(graph, node.operands[0])
}

/// Such a node in i32.
pub(super) fn in_words(
    re: &mut Rebuilder,
    node: &Node,
    operands: &[NodeId],
    emitter: &Emitter,
) -> Result<NodeId, GraphError> {
    let graph = &re.graph;
    // The windows, outermost first, and the image that they slide over.
    let (mut windows, mut image): (SmallVec<[NodeKind; 2]>, _) = (SmallVec::new(), operands[0]);
    while let NodeKind::View(View::Window { .. }) = &graph.node(image).kind {
        windows.push(graph.node(image).kind.clone());
        image = graph.node(image).operands[0];
    }
    let dtype = graph.ty(image).dtype;
    let row = graph.ty(image).rank().checked_sub(1);
    let every_other = windows.iter().any(|view| match view {
        NodeKind::View(View::Window {
            axis, stride: 2, size, ..
        }) => Some(usize::from(*axis)) == row && !size.is(1),
        _ => false,
    });
    let loads_every_other = emitter.access(AccessKind::Apart).is_vector();
    let padding = match &graph.node(image).kind {
        NodeKind::View(view @ View::Pad { value, .. }) => Some((view.clone(), *value)),
        _ => None,
    };
    let wide = match padding {
        None => re.add(NodeKind::Convert(DType::I32), &[image])?,
        Some(_) if every_other && loads_every_other => {
            let stored = re.add(NodeKind::Copy, &[image])?;
            re.add(NodeKind::Convert(DType::I32), &[stored])?
        }
        Some((view, value)) => {
            let below = re.graph.node(image).operands[0];
            let wide = re.add(NodeKind::Convert(DType::I32), &[below])?;
            let view = view.filled_with(value.convert(DType::I32));
            re.add(NodeKind::View(view), &[wide])?
        }
    };
    let seen = windows
        .into_iter()
        .rev()
        .try_fold(wide, |at, view| re.add(view, &[at]))?;
    let whole = re.add(node.kind.clone(), &[seen])?;
    re.add(NodeKind::Convert(dtype), &[whole])
}
