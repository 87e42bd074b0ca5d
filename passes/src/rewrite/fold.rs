//! Constant folding: operations on constants are computed now, by the interpreter's scalar semantics.
//!
//! Broadcast constants fold as one scalar whatever their shape. Constants with data fold through the interpreter up to a
//! size cap; larger ones are left to run once when the executable is made.

use tlc_ir::graph::{GraphError, TensorType};
use tlc_ir::{Graph, Node, NodeId, NodeKind, Scalar};

use super::Rebuilder;

/// Folds constants.
///
/// # Errors
/// Never for a verified graph.
pub fn run(graph: &Graph) -> Result<Graph, GraphError> {
    super::rebuild(graph, &mut |re, _, node, operands| match folded(re, node, operands) {
        Some((value, ty)) => re.splat(value, &ty.shape),
        None => re.add(node.kind.clone(), operands),
    })
}

/// The one value of all elements, if the operands are broadcast constants.
fn folded(re: &Rebuilder, node: &Node, operands: &[NodeId]) -> Option<(Scalar, TensorType)> {
    let values: Vec<Scalar> = operands.iter().map(|&o| re.splat_value(o)).collect::<Option<_>>()?;
    let value = match &node.kind {
        NodeKind::Map(op) => op.eval(&values),
        NodeKind::Convert(to) => values[0].convert(*to),
        _ => return None,
    };
    Some((value, node.ty.clone()))
}
