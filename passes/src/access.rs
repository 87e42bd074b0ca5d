//! How one value's element reaches back to the values it is computed from: index maps of views, and the demands of a cone.
//!
//! Invariants: an index map is given one index expression per result axis, each inside its extent, and returns one per
//! operand axis. Only `pad` can lead to an index outside the operand, or one of an element that stands elsewhere; it also returns
//! the conditions under which the index is inside and the element stands there, and callers read nothing unless all hold.

use smallvec::SmallVec;
use tlc_ir::graph::{Labels, Shape};
use tlc_ir::index::{Bounds, IndexExpr, IndexNode, Interval, SymId, VarId};
use tlc_ir::{Graph, NodeId, NodeKind};

/// One index expression per axis.
pub type Index = SmallVec<[IndexExpr; 4]>;

/// Nodes of an index expression beyond which it is not followed further down: the value that it would lead to is written down.
/// The divisions of each reshape are divided again by those of the next, so that where nothing cancels an expression doubles with
/// every reshape.
pub const MAX_INDEX_SIZE: u32 = 128;

/// Whether an entry of an index has more than [`MAX_INDEX_SIZE`] nodes.
pub fn is_long(index: &[IndexExpr]) -> bool {
    index.iter().any(|i| i.size() > MAX_INDEX_SIZE)
}

/// Loop variables with their extents, over a graph's symbols.
pub struct Variables<'g> {
    graph: &'g Graph,
    extents: Vec<IndexExpr>,
}

impl<'g> Variables<'g> {
    /// No variables yet.
    pub fn new(graph: &'g Graph) -> Self {
        Variables {
            graph,
            extents: Vec::new(),
        }
    }

    /// A new variable.
    pub fn push(&mut self, extent: IndexExpr) -> VarId {
        self.extents.push(extent);
        VarId(self.extents.len() as u32 - 1)
    }
}

impl Bounds for Variables<'_> {
    fn symbol(&self, sym: SymId) -> Interval {
        self.graph.symbol(sym)
    }
    fn extent(&self, var: VarId) -> Option<IndexExpr> {
        self.extents.get(var.0 as usize).cloned()
    }
}

/// Elements of the blocks in which an index goes through a variable: it has the place in a block, the remainder of the variable.
pub fn block_elements(index: &IndexExpr, var: VarId) -> Option<i64> {
    let IndexExpr::Node(node) = index else { return None };
    let of = |e: &IndexExpr| block_elements(e, var);
    match &**node {
        IndexNode::Sym(_) | IndexNode::Var(_) => None,
        IndexNode::Sum { terms, .. } => terms.iter().find_map(|t| of(&t.0)),
        IndexNode::Product(factors) => factors.iter().find_map(of),
        IndexNode::Mod(a, b) if a.as_var() == Some(var) => b.as_const(),
        IndexNode::FloorDiv(a, b) | IndexNode::Mod(a, b) | IndexNode::Min(a, b) | IndexNode::Max(a, b) => {
            of(a).or_else(|| of(b))
        }
    }
}

/// True for nodes that hold a value without being computed.
pub fn is_source(kind: &NodeKind) -> bool {
    matches!(kind, NodeKind::Input { .. } | NodeKind::Data(_))
}

/// The index of an einsum operand, given the index of each label.
pub fn label_index(labels: &Labels, of_label: &[IndexExpr]) -> Index {
    labels.iter().map(|&l| of_label[l as usize].clone()).collect()
}

/// Number of labels of an einsum.
pub fn label_count(inputs: &[Labels]) -> usize {
    inputs.iter().flatten().map(|&l| l as usize + 1).max().unwrap_or(0)
}

/// Whether some label stands on several axes of an operand, which is then read along their diagonal.
pub fn repeats(labels: &Labels) -> bool {
    (0..labels.len()).any(|i| labels[..i].contains(&labels[i]))
}

/// The iteration space of a node: its result axes, then the axes it sums over.
pub struct Space {
    /// Extents of all axes.
    pub extents: Shape,
    /// How many of them index the result.
    pub result_rank: usize,
}

/// The iteration space of a node.
pub fn space(graph: &Graph, node: NodeId) -> Space {
    let n = graph.node(node);
    let mut extents = n.ty.shape.clone();
    let result_rank = extents.len();
    match &n.kind {
        NodeKind::Reduce { axes, .. } => {
            let operand = graph.ty(n.operands[0]);
            extents.extend(axes.iter().map(|&a| operand.shape[a as usize].clone()));
        }
        NodeKind::Einsum { inputs, output, .. } => {
            let mut of_label = vec![None; label_count(inputs)];
            for (labels, &operand) in inputs.iter().zip(&n.operands) {
                for (&l, d) in labels.iter().zip(&graph.ty(operand).shape) {
                    of_label[l as usize].get_or_insert_with(|| d.clone());
                }
            }
            let summed = |l: &usize| !output.contains(&(*l as u16));
            extents.extend((0..of_label.len()).filter(summed).filter_map(|l| of_label[l].clone()));
        }
        _ => {}
    }
    Space { extents, result_rank }
}

/// The operands a node reads at one point of its [`space`], with the index of each. Not for views, gathers and scatters,
/// whose operands need more than that.
pub fn operand_indices(graph: &Graph, node: NodeId, point: &[IndexExpr]) -> Vec<(NodeId, Index)> {
    let n = graph.node(node);
    match &n.kind {
        NodeKind::Reduce { axes, .. } => {
            let rank = graph.ty(n.operands[0]).rank();
            let (mut kept, mut summed) = (point.iter(), point[n.ty.rank()..].iter());
            let index = (0..rank)
                .map(|a| {
                    if axes.contains(&(a as u8)) {
                        summed.next()
                    } else {
                        kept.next()
                    }
                })
                .map(|i| i.cloned().unwrap_or(IndexExpr::ZERO))
                .collect();
            vec![(n.operands[0], index)]
        }
        NodeKind::Einsum { inputs, output, .. } => {
            let mut of_label = vec![IndexExpr::ZERO; label_count(inputs)];
            for (l, i) in output.iter().zip(point) {
                of_label[*l as usize] = i.clone();
            }
            let mut summed = point[output.len()..].iter();
            for (l, slot) in of_label.iter_mut().enumerate() {
                if !output.contains(&(l as u16)) {
                    *slot = summed.next().cloned().unwrap_or(IndexExpr::ZERO);
                }
            }
            inputs
                .iter()
                .zip(&n.operands)
                .map(|(labels, &o)| (o, label_index(labels, &of_label)))
                .collect()
        }
        _ => n.operands.iter().map(|&o| (o, point.into())).collect(),
    }
}

/// Every element of a source, or of a value stored elsewhere, that a root reads at a point of its space. Nodes below the
/// root are followed down to inputs and data, and to what is `elsewhere`; gathers and random bits are not followed, and neither is an
/// index that [is long](is_long).
pub fn loads_below(
    graph: &Graph,
    root: NodeId,
    point: &[IndexExpr],
    vars: &mut Variables<'_>,
    elsewhere: &dyn Fn(NodeId) -> bool,
) -> Vec<(NodeId, Index)> {
    let mut out = Vec::new();
    let mut work = operand_indices(graph, root, point);
    let mut budget = 256;
    while let Some((node, index)) = work.pop() {
        budget -= 1;
        let n = graph.node(node);
        match &n.kind {
            _ if budget <= 0 => break,
            _ if is_long(&index) => {}
            _ if elsewhere(node) => out.push((node, index)),
            NodeKind::View(view) => {
                let from = &graph.ty(n.operands[0]).shape;
                work.push((n.operands[0], view.operand_index(from, &n.ty.shape, &index, vars).index));
            }
            NodeKind::Map(_) | NodeKind::Convert(_) | NodeKind::Bitcast(_) | NodeKind::Copy => {
                work.extend(operand_indices(graph, node, &index))
            }
            NodeKind::Const(_) | NodeKind::Iota { .. } | NodeKind::Random { .. } | NodeKind::Gather { .. } => {}
            _ => out.push((node, index)),
        }
    }
    out
}
