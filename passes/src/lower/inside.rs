//! Indices from data that are inside of what they index whatever the data is: what a graph cuts off at both ends itself.
//!
//! Invariant: what is said to be inside is so for all sizes that the symbols' ranges allow, those of empty axes included.

use tlc_ir::graph::View;
use tlc_ir::index::IndexExpr;
use tlc_ir::{Graph, NodeId, NodeKind, ScalarOp};

/// Nodes that are followed from an index to where it is cut off.
const STEPS: u32 = 8;

/// Whether every element of an index is inside of `0..extent`.
pub(super) fn known_inside(graph: &Graph, index: NodeId, extent: &IndexExpr) -> bool {
    let mut at = index;
    for _ in 0..STEPS {
        let node = graph.node(at);
        if has_all(node.ty.dtype, graph, extent) {
            return true;
        }
        match &node.kind {
            NodeKind::View(View::Reshape(_) | View::Permute(_) | View::Expand(_) | View::Slice { .. }) => {
                at = node.operands[0];
            }
            // A number that is inside of what the narrower type holds stays what it is; `ends_inside` looks at the number.
            NodeKind::Convert(to) if to.is_int() && holds(*to, graph, extent) => at = node.operands[0],
            NodeKind::Map(ScalarOp::Min) => return ends_inside(graph, &node.operands, extent),
            _ => return false,
        }
    }
    false
}

/// Whether an axis has an element for every number of a type.
fn has_all(dtype: tlc_ir::DType, graph: &Graph, extent: &IndexExpr) -> bool {
    let unsigned = dtype.is_int() && !dtype.is_signed_int() && !dtype.is_storage() && dtype.bits() < 32;
    unsigned && extent.interval(graph).lo >= 1 << dtype.bits()
}

/// Whether a type of integers holds all indices of an axis.
fn holds(dtype: tlc_ir::DType, graph: &Graph, extent: &IndexExpr) -> bool {
    let bits = dtype.bits() - u32::from(dtype.is_signed_int());
    let most = extent.interval(graph).hi;
    !dtype.is_storage() && (bits >= 63 || most <= 1i64 << bits)
}

/// Whether one operand of a minimum is at least 0 and the other is a number from 0 to the last index.
fn ends_inside(graph: &Graph, operands: &[NodeId], extent: &IndexExpr) -> bool {
    let [a, b] = operands else { return false };
    [(a, b), (b, a)].into_iter().any(|(data, last)| {
        let Some(last) = number(graph, *last) else {
            return false;
        };
        let NodeKind::Map(ScalarOp::Max) = graph.node(*data).kind else {
            return false;
        };
        let starts = graph.node(*data).operands.iter().filter_map(|o| number(graph, *o));
        let from_start = starts.into_iter().any(|n| n.proves_nonnegative(graph));
        from_start && last.proves_nonnegative(graph) && last.proves_less(extent, graph)
    })
}

/// The number that all elements of a value of integers are.
fn number(graph: &Graph, value: NodeId) -> Option<IndexExpr> {
    let mut at = value;
    for _ in 0..STEPS {
        let node = graph.node(at);
        match &node.kind {
            NodeKind::Const(c) if c.dtype().is_int() => return Some(IndexExpr::Const(c.as_i64())),
            NodeKind::View(View::Reshape(_) | View::Expand(_)) => at = node.operands[0],
            // How a graph says what a size is: the last of so many numbers.
            NodeKind::View(View::Slice { start, size, .. }) => {
                let counts = match &graph.node(node.operands[0]).kind {
                    NodeKind::Iota { ty, axis: 0 } => ty.dtype == tlc_ir::DType::I64,
                    _ => false,
                };
                return match (counts, &start[..], &size[..]) {
                    (true, [start], [one]) if one.is(1) => Some(start.clone()),
                    _ => None,
                };
            }
            _ => return None,
        }
    }
    None
}
