//! Constant folding: operations on constants are computed now, by the interpreter.
//!
//! Broadcast constants fold as one scalar whatever their shape, and data of rank 0 is a scalar. Constants with data fold through the graph interpreter up to
//! a size; larger ones, and loops and calls, are left to run once per executable (see `cluster::roots`). Views that repeat or scatter their
//! operand's elements stay views, which cost nothing and take no room.

use smallvec::SmallVec;
use tlc_ir::graph::{ConstData, GraphError, Origin, TensorType, View};
use tlc_ir::index::IndexExpr;
use tlc_ir::interp::{Options, interpret};
use tlc_ir::tensor::HostTensor;
use tlc_ir::{Graph, Node, NodeId, NodeKind, Scalar};

use super::{Context, Failure, Pass, Rebuilder};
use crate::access::space;

/// Elements of the results, the operands and the iteration space that the interpreter is asked to visit for one node: some
/// hundred microseconds.
const MAX_ELEMENTS: i64 = 4096;

/// Constant folding.
pub struct Fold;

impl Pass for Fold {
    fn name(&self) -> &'static str {
        "fold"
    }

    fn run(&self, graph: &Graph, _: &mut Context<'_>) -> Result<Graph, Failure> {
        Ok(run(graph)?)
    }

    fn rounds(&self) -> bool {
        true
    }
}

/// Folds constants.
///
/// # Errors
/// Never for a verified graph.
pub fn run(graph: &Graph) -> Result<Graph, GraphError> {
    let of_contractions = orders_of_contractions(graph);
    super::rebuild(graph, &mut |re, id, node, operands| {
        if let NodeKind::Data(data) = &node.kind
            && data.0.shape().is_empty()
        {
            return re.splat(data.0.get(0), &node.ty.shape);
        }
        if let Some((value, ty)) = folded(re, node, operands) {
            return re.splat(value, &ty.shape);
        }
        if of_contractions[id.index()] {
            return re.keep(node, operands);
        }
        match computed(graph, re, id, node, operands) {
            Some(data) => re.add(NodeKind::Data(ConstData(data)), &[]),
            None => re.keep(node, operands),
        }
    })
}

/// Which nodes are data in another order that contractions alone read: these take it as it lies, be it small or large.
fn orders_of_contractions(graph: &Graph) -> Vec<bool> {
    let mut others = graph.use_counts();
    let mut read = vec![false; graph.len()];
    let contractions = graph.nodes().filter(|(_, n)| matches!(n.kind, NodeKind::Einsum { .. }));
    for operand in contractions.flat_map(|(_, n)| &n.operands) {
        others[operand.index()] = others[operand.index()].saturating_sub(1);
        read[operand.index()] = true;
    }
    let reordered = graph.nodes().map(|(id, n)| {
        let permuted = matches!(n.kind, NodeKind::View(View::Permute(_)));
        permuted && read[id.index()] && others[id.index()] == 0
    });
    reordered.collect()
}

/// The one value of all elements, if the operands are broadcast constants.
fn folded(re: &Rebuilder, node: &Node, operands: &[NodeId]) -> Option<(Scalar, TensorType)> {
    if !matches!(
        node.kind,
        NodeKind::Map(_) | NodeKind::Convert(_) | NodeKind::Bitcast(_)
    ) {
        return None;
    }
    let values = operands.iter().map(|&o| re.splat_value(o));
    let values: SmallVec<[Scalar; 3]> = values.collect::<Option<_>>()?;
    let value = match &node.kind {
        NodeKind::Map(op) => op.eval(&values),
        NodeKind::Convert(to) => values[0].convert(*to),
        NodeKind::Bitcast(to) => Scalar::from_bits(*to, values[0].bits()),
        _ => return None,
    };
    Some((value, node.ty.clone()))
}

/// The node's elements, if its operands are data (or broadcast constants beside data) and few.
fn computed(graph: &Graph, re: &Rebuilder, id: NodeId, node: &Node, operands: &[NodeId]) -> Option<HostTensor> {
    let is_data = |o: &NodeId| matches!(re.graph.node(*o).kind, NodeKind::Data(_));
    let spreads = matches!(
        node.kind,
        NodeKind::View(View::Expand(_) | View::Window { .. } | View::Pad { .. })
    );
    if spreads || node.kind.is_tuple() || !operands.iter().any(is_data) {
        return None;
    }
    let few = |shape: &[IndexExpr]| IndexExpr::product(shape).as_const().is_some_and(|n| n <= MAX_ELEMENTS);
    if !few(&space(graph, id).extents) || !operands.iter().all(|&o| few(&re.graph.ty(o).shape)) {
        return None;
    }
    let mut small = Graph::new("fold");
    let mut values = Vec::new();
    for &o in operands {
        let value = match &re.graph.node(o).kind {
            NodeKind::Data(data) => small.add(NodeKind::Data(data.clone()), &[], Origin::Unknown).ok()?,
            _ => {
                let scalar = small
                    .add(NodeKind::Const(re.splat_value(o)?), &[], Origin::Unknown)
                    .ok()?;
                let expand = NodeKind::View(View::Expand(re.graph.ty(o).shape.clone()));
                small.add(expand, &[scalar], Origin::Unknown).ok()?
            }
        };
        values.push(value);
    }
    let result = small.add(node.kind.clone(), &values, Origin::Unknown).ok()?;
    small.add_output("value", result);
    interpret(&small, &[], &Options::default()).ok()?.pop()
}
