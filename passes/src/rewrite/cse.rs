//! Common subexpression elimination. Equal nodes merge in any rebuild; this pass also merges small constants with equal
//! bytes, and operands of commutative operations in either order.

use rustc_hash::FxHashMap;
use tlc_ir::graph::{ConstData, GraphError};
use tlc_ir::{DType, Graph, NodeId, NodeKind};

use super::{Context, Failure, Pass};

/// Constants up to this many bytes are compared by content.
const MAX_COMPARED_BYTES: usize = 4096;

/// Common subexpressions.
pub struct Cse;

impl Pass for Cse {
    fn name(&self) -> &'static str {
        "cse"
    }

    fn run(&self, graph: &Graph, _: &mut Context<'_>) -> Result<Graph, Failure> {
        Ok(run(graph)?)
    }
}

/// Merges equal computations.
///
/// # Errors
/// Never for a verified graph.
pub fn run(graph: &Graph) -> Result<Graph, GraphError> {
    let mut seen: FxHashMap<(DType, Vec<usize>, Vec<u8>), ConstData> = FxHashMap::default();
    super::rebuild(graph, &mut |re, _, node, operands| match &node.kind {
        NodeKind::Data(data) if data.0.bytes().len() <= MAX_COMPARED_BYTES => {
            let key = (data.0.dtype(), data.0.shape().to_vec(), data.0.bytes().to_vec());
            let first = seen.entry(key).or_insert_with(|| data.clone()).clone();
            re.add(NodeKind::Data(first), operands)
        }
        // One order for either: constants last, else the older first. Where the graph's ids fall does not matter then, and
        // equal layers give equal kernels.
        NodeKind::Map(op) if op.is_commutative() => {
            let key = |o: NodeId| (re.splat_value(o).is_some(), o);
            let (a, b) = (operands[0], operands[1]);
            let (first, second) = if key(a) <= key(b) { (a, b) } else { (b, a) };
            re.add(node.kind.clone(), &[first, second])
        }
        kind => re.add(kind.clone(), operands),
    })
}
