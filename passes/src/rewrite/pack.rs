//! Packs operands of contractions that the library could multiply if their summed axes lay together.
//!
//! A convolution is an einsum over sliding windows, whose summed axes (channel, window row, window column) walk the image
//! with three strides. Copied once in the order of the product, they walk it with one. The copy costs a pass over the
//! windows; the product then runs at the library's speed.

use tlc_ir::graph::{GraphError, Labels, View};
use tlc_ir::{Graph, NodeKind};

use super::sink_layout::add_canonical;
use crate::contraction::operands_to_pack;

/// Inserts the copies.
///
/// # Errors
/// Never for a verified graph.
pub fn run(graph: &Graph) -> Result<Graph, GraphError> {
    super::rebuild(graph, &mut |re, id, node, operands| {
        let NodeKind::Einsum { inputs, output, .. } = &node.kind else {
            return re.add(node.kind.clone(), operands);
        };
        let pack = operands_to_pack(graph, id);
        if pack.is_empty() {
            return re.add(node.kind.clone(), operands);
        }
        let (mut labels, mut values): (Vec<Labels>, Vec<_>) = (inputs.to_vec(), operands.to_vec());
        for (k, order) in pack {
            labels[k] = order.iter().map(|&a| inputs[k][a as usize]).collect();
            let view = re.add(NodeKind::View(View::Permute(order)), &[values[k]])?;
            values[k] = re.add(NodeKind::Copy, &[view])?;
        }
        add_canonical(re, &node.kind, labels, output.clone(), &values)
    })
}
