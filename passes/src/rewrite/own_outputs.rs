//! Gives each output a node of its own to be computed into: an output that is an input, a constant or another output is
//! copied. Bodies of loops likewise. Mandatory before clustering.

use rustc_hash::FxHashSet;
use tlc_ir::graph::GraphError;
use tlc_ir::{Graph, NodeKind};

/// Inserts the copies.
///
/// # Errors
/// Never for a verified graph.
pub fn run(graph: &Graph) -> Result<Graph, GraphError> {
    let inside = super::bodies(graph, |e| e, &mut run)?;
    let graph = inside.as_ref().unwrap_or(graph);
    let mut new = super::rebuild_of(graph, &|_| false, &mut |re, _, node, operands| re.keep(node, operands))?;
    let mut taken = FxHashSet::default();
    let outputs: Vec<_> = new.outputs().to_vec();
    let mut changed = Vec::new();
    for o in &outputs {
        let mut node = o.node;
        while taken.contains(&node) || matches!(new.node(node).kind, NodeKind::Input { .. } | NodeKind::Data(_)) {
            // A copy of a copy is a different node, so any number of outputs of one value get their own.
            let origin = new.node(node).origin.clone();
            node = new.add(NodeKind::Copy, &[node], origin)?;
        }
        taken.insert(node);
        changed.push(node);
    }
    new.set_output_nodes(&changed);
    Ok(new)
}
