//! Reshapes of products behind what is computed of them element by element, for devices whose kernels compute that where they multiply.
//!
//! A layer that multiplies all tokens of all sequences as rows of one matrix reshapes its result, and what follows is computed in another shape than
//! the product has. A kernel's loops are those of one shape. So
//!
//! ```text
//! %1 = einsum %x, %w {ab,bc->ac} : f32[4096, 64]
//! %2 = reshape %1 : f32[8, 512, 64]
//! %3 = tanh %2 : f32[8, 512, 64]
//! ```
//! becomes a reshape of `tanh %1`, and what reshapes that again reads it as it is.
//!
//! Invariant: each value is computed of the same elements by the same operations, in another shape at most.

use rustc_hash::FxHashSet;
use smallvec::SmallVec;
use tlc_ir::graph::{GraphError, Shape, View};
use tlc_ir::{Graph, Node, NodeId, NodeKind};

use super::{Context, Failure, Pass, Rebuilder};

/// Reshapes of products behind element-by-element operations.
pub struct LateReshape;

impl Pass for LateReshape {
    fn name(&self) -> &'static str {
        "late-reshape"
    }

    fn run(&self, graph: &Graph, context: &mut Context<'_>) -> Result<Graph, Failure> {
        match context.gpu {
            Some(_) => Ok(run(graph)?),
            None => Ok(graph.clone()),
        }
    }
}

/// Moves reshapes of products behind what is computed of them.
///
/// # Errors
/// Never for a verified graph.
pub fn run(graph: &Graph) -> Result<Graph, GraphError> {
    // Of the new graph: products, and what is computed of them in their shape.
    let mut products: FxHashSet<NodeId> = FxHashSet::default();
    super::rebuild(graph, &mut |re, _, node, operands| match &node.kind {
        NodeKind::Einsum { .. } => {
            let new = re.keep(node, operands)?;
            products.insert(new);
            Ok(new)
        }
        NodeKind::Map(_) | NodeKind::Convert(_) => match before_reshape(re, node, operands, &products)? {
            Some(computed) => {
                products.insert(computed);
                re.reshape(computed, &node.ty.shape)
            }
            None => {
                let new = re.keep(node, operands)?;
                if operands.iter().any(|o| products.contains(o)) {
                    products.insert(new);
                }
                Ok(new)
            }
        },
        NodeKind::View(View::Reshape(_)) => match reshaped(re, operands[0]) {
            Some(base) if re.graph.ty(base).shape == node.ty.shape => Ok(base),
            Some(base) => re.reshape(base, &node.ty.shape),
            None => re.keep(node, operands),
        },
        _ => re.keep(node, operands),
    })
}

/// What a value is a reshape of, if it is one.
fn reshaped(re: &Rebuilder, value: NodeId) -> Option<NodeId> {
    let node = re.graph.node(value);
    matches!(node.kind, NodeKind::View(View::Reshape(_))).then(|| node.operands[0])
}

/// What a node computes, in the shape that a product has whose reshape it reads; `None` if it reads none, or something else that has no such shape.
fn before_reshape(
    re: &mut Rebuilder,
    node: &Node,
    operands: &[NodeId],
    products: &FxHashSet<NodeId>,
) -> Result<Option<NodeId>, GraphError> {
    let product = operands.iter().filter_map(|&o| reshaped(re, o));
    let Some(product) = product.into_iter().find(|base| products.contains(base)) else {
        return Ok(None);
    };
    let shape = re.graph.ty(product).shape.clone();
    let mut own: SmallVec<[NodeId; 3]> = SmallVec::new();
    for &operand in operands {
        let Some(value) = in_shape(re, operand, &shape)? else {
            return Ok(None);
        };
        own.push(value);
    }
    re.add(node.kind.clone(), &own).map(Some)
}

/// The elements of a value in another shape, in the same order, if that is what it is a reshape of, or a view of what it repeats.
fn in_shape(re: &mut Rebuilder, value: NodeId, shape: &Shape) -> Result<Option<NodeId>, GraphError> {
    if let Some(base) = reshaped(re, value).filter(|base| re.graph.ty(*base).shape == *shape) {
        return Ok(Some(base));
    }
    if let Some(number) = re.splat_value(value) {
        return re.splat(number, shape).map(Some);
    }
    // A row that is repeated, as a bias is: the last axis is the same in both shapes.
    let node = re.graph.node(value);
    let last = node.ty.shape.last().cloned();
    let row = match (&node.kind, &node.operands[..]) {
        (NodeKind::View(View::Expand(_)), &[row]) if last.is_some() && last.as_ref() == shape.last() => row,
        _ => return Ok(None),
    };
    match &re.graph.ty(row).shape[..] {
        [n] if Some(n) == shape.last() => {
            let expand = NodeKind::View(View::Expand(shape.clone()));
            re.add(expand, &[row]).map(Some)
        }
        _ => Ok(None),
    }
}
