//! Common subexpression elimination. Equal nodes merge in any rebuild; this pass also merges small constants with equal
//! bytes, operands of commutative operations in either order, and loops that do the same and differ in how much of it they return:
//! the derivative of a loop asks for what its iterations began with.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use tlc_ir::graph::{ConstData, GraphError, Loop, Operands};
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
    let wider = wider_loops(graph);
    let mut seen: FxHashMap<(DType, Vec<usize>, Vec<u8>), ConstData> = FxHashMap::default();
    super::rebuild(graph, &mut |re, id, node, operands| match &node.kind {
        // In place of one that returns less; the two are one node then.
        NodeKind::Loop(l) => {
            let l = wider.get(&id).unwrap_or(l);
            re.add(NodeKind::Loop(Arc::clone(l)), operands)
        }
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
            re.keep(node, &[first, second])
        }
        _ => re.keep(node, operands),
    })
}

/// Loops that another one computes, with further results behind theirs: that one.
fn wider_loops(graph: &Graph) -> FxHashMap<NodeId, Arc<Loop>> {
    let mut alike: FxHashMap<&Operands, Vec<(NodeId, &Arc<Loop>)>> = FxHashMap::default();
    for (id, node) in graph.nodes() {
        if let NodeKind::Loop(l) = &node.kind {
            alike.entry(&node.operands).or_default().push((id, l));
        }
    }
    let mut wider = FxHashMap::default();
    for all in alike.into_values().filter(|all| all.len() > 1) {
        for (id, narrow) in &all {
            let more = all
                .iter()
                .map(|(_, l)| *l)
                .filter(|l| l.stacks.len() > narrow.stacks.len());
            if let Some(wide) = more.filter(|l| is_part(narrow, l)).max_by_key(|l| l.stacks.len()) {
                wider.insert(*id, Arc::clone(wide));
            }
        }
    }
    wider
}

/// Whether the results of a loop are the first ones of another over the same operands.
fn is_part(narrow: &Loop, wide: &Loop) -> bool {
    let (inner, outer) = (&narrow.body.0, &wide.body.0);
    let returned = inner.outputs().iter().zip(outer.outputs());
    wide.stacks.starts_with(&narrow.stacks)
        && runs_alike(narrow, wide)
        && inner.outputs().len() <= outer.outputs().len()
        && { returned }.all(|(a, b)| a.node == b.node)
        && inner.symbols() == outer.symbols()
        && begins_with(outer, inner)
}

/// Whether two loops over the same operands run as often, over the same slices.
fn runs_alike(a: &Loop, b: &Loop) -> bool {
    let how = |l: &Loop| (l.counted, l.conditional, l.carried);
    how(a) == how(b) && a.symbols == b.symbols && a.trip == b.trip && a.slices == b.slices
}

/// Whether the first nodes of a graph are those of another.
fn begins_with(graph: &Graph, start: &Graph) -> bool {
    let same = |((_, a), (_, b)): ((_, &tlc_ir::Node), (_, &tlc_ir::Node))| {
        a.operands == b.operands
            && match (&a.kind, &b.kind) {
                // Bodies are compared by identity, and those in bodies were rewritten one by one.
                (NodeKind::Loop(a), NodeKind::Loop(b)) => a.stacks == b.stacks && is_part(a, b),
                (a, b) => a == b,
            }
    };
    graph.len() >= start.len() && graph.nodes().zip(start.nodes()).all(same)
}
