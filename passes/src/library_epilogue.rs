//! What libraries of products compute behind a product themselves: a bias along the result's last axes is added, and what is below zero
//! becomes zero.
//!
//! Only what gives the same value as the kernel in its place: a library adds a bias to its sums before they are rounded to 16 bits, so that
//! products of f16 and bf16 have theirs added by a kernel; and which approximation of GELU it has, its manual does not say.

use tlc_ir::graph::View;
use tlc_ir::index::IndexExpr;
use tlc_ir::plan::Gemm;
use tlc_ir::{DType, Graph, NodeId, NodeKind, ScalarOp};

/// A value as what a library leaves of a product.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Behind {
    /// The bias, a value whose elements lie as they are added.
    pub(crate) bias: Option<Bias>,
    /// Whether what is below zero is made zero.
    pub(crate) rectified: bool,
}

/// What is added to a product's result.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Bias {
    /// Values that have its elements, in the same order.
    pub(crate) values: Vec<NodeId>,
    /// How many.
    pub(crate) len: IndexExpr,
}

impl Bias {
    /// Whether its elements are those of a product's rows or columns, whichever lie together in the result.
    pub(crate) fn fits(&self, [m, n]: [&IndexExpr; 2], [row, column]: [&IndexExpr; 2]) -> bool {
        column.is(1) && self.len == *n || row.is(1) && self.len == *m
    }

    /// As [`Bias::fits`], of a step.
    pub(crate) fn fits_step(&self, g: &Gemm) -> bool {
        match (&g.dst.row.dims[..], &g.dst.column.dims[..]) {
            ([row], [column]) => self.fits([&g.m, &g.n], [&row.stride, &column.stride]),
            _ => false,
        }
    }
}

/// What is below views that keep all elements in their order.
fn same_elements(graph: &Graph, mut id: NodeId) -> NodeId {
    while let NodeKind::View(View::Reshape(_)) = graph.node(id).kind {
        id = graph.node(id).operands[0];
    }
    id
}

/// The operands of an operation of two.
fn operands(graph: &Graph, id: NodeId, op: ScalarOp) -> Option<[NodeId; 2]> {
    let node = graph.node(id);
    match (&node.kind, &node.operands[..]) {
        (NodeKind::Map(found), &[a, b]) if *found == op => Some([a, b]),
        _ => None,
    }
}

/// Whether a value is +0 everywhere: the larger of a number and −0 may be −0.
fn is_zero(graph: &Graph, mut id: NodeId) -> bool {
    while let NodeKind::View(View::Reshape(_) | View::Expand(_)) = graph.node(id).kind {
        id = graph.node(id).operands[0];
    }
    matches!(graph.node(id).kind, NodeKind::Const(s) if s.dtype().is_float() && s.as_f64().to_bits() == 0)
}

/// A value that is shown again and again along the first axes of what it is added to.
fn bias(graph: &Graph, id: NodeId) -> Option<Bias> {
    let id = same_elements(graph, id);
    let node = graph.node(id);
    let NodeKind::View(View::Expand(to)) = &node.kind else {
        return None;
    };
    let mut value = node.operands[0];
    let shape = &graph.ty(value).shape;
    let leading = shape.iter().take_while(|d| d.is(1)).count();
    let own = &shape[leading..];
    if own.is_empty() || to.len() < own.len() || to[to.len() - own.len()..] != *own {
        return None;
    }
    let len = IndexExpr::product(own);
    let mut values = vec![value];
    while let NodeKind::View(View::Reshape(_)) = graph.node(value).kind {
        value = graph.node(value).operands[0];
        values.push(value);
    }
    Some(Bias { values, len })
}

/// What a value is of a product's result, if a library leaves it behind the product.
pub(crate) fn behind(graph: &Graph, value: NodeId, product: NodeId) -> Option<Behind> {
    let dtype = graph.ty(product).dtype;
    if !matches!(dtype, DType::F32 | DType::F16 | DType::BF16) || graph.ty(value).dtype != dtype {
        return None;
    }
    let value = same_elements(graph, value);
    let below = operands(graph, value, ScalarOp::Max).and_then(|[a, b]| match (is_zero(graph, a), is_zero(graph, b)) {
        (_, true) => Some(a),
        (true, _) => Some(b),
        _ => None,
    });
    let (rectified, value) = (below.is_some(), same_elements(graph, below.unwrap_or(value)));
    if value == product {
        return rectified.then_some(Behind { bias: None, rectified });
    }
    let [a, b] = operands(graph, value, ScalarOp::Add).filter(|_| dtype == DType::F32)?;
    let [of_a, of_b] = [a, b].map(|side| same_elements(graph, side));
    let added = match (of_a == product, of_b == product) {
        (true, false) => b,
        (false, true) => a,
        _ => return None,
    };
    Some(Behind {
        bias: Some(bias(graph, added)?),
        rectified,
    })
}
