//! Dead code elimination: what no output needs is not rebuilt.

use tlc_ir::Graph;
use tlc_ir::graph::GraphError;

/// Removes dead nodes.
///
/// # Errors
/// Never for a verified graph.
pub fn run(graph: &Graph) -> Result<Graph, GraphError> {
    super::rebuild(graph, &mut |re, _, node, operands| re.add(node.kind.clone(), operands))
}
