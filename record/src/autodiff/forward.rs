//! Forward mode: from tangents of inputs to those of what is computed from them.
//!
//! Invariants:
//! - A tangent has the type of its value. One that is known to be zero is not recorded; those that a node's operands pass to its
//!   result are added in f32 if it is f16 or bf16, and rounded once.
//! - Only nodes between inputs and outputs get tangents. The table (`rule`) names every kind of node, and each line is the transpose of
//!   the line in reverse mode: `Σ cotangent * jvp(tangent) = Σ vjp(cotangent) * tangent`, at corners too.

use rustc_hash::FxHashMap;
use tlc_ir::graph::{Node, NodeId, NodeKind};

use super::node::{Differentiate, Linearized, sum, zeros};
use super::{combine, einsum, index, region, repeat, scalar};
use crate::graph::scope::{Step, making, refuse};
use crate::graph::{Graph, Tensor};

/// How regions are differentiated backwards, and the graph that all of it is about.
pub(super) struct Forward<'a> {
    graph: &'a Graph,
    backwards: Differentiate,
    /// By node: whether an output is computed from it.
    needed: Vec<bool>,
    /// By node: its tangent.
    tangents: Vec<Option<Tensor>>,
    /// Tangents of the results of nodes that have several.
    parts: FxHashMap<NodeId, Vec<Option<Tensor>>>,
}

/// The tangents of outputs along tangents of inputs; none where they are zero. The tangent of an input that is computed from another
/// one comes on top of what that passes to it.
pub(super) fn tangents(
    graph: &Graph,
    outputs: &[&Tensor],
    inputs: &[&Tensor],
    given: &[&Tensor],
    backwards: Differentiate,
) -> Step<Vec<Option<Tensor>>> {
    let ends = outputs.iter().filter_map(|t| t.id());
    let end = ends.clone().map(|id| id.index() + 1).max().unwrap_or(0);
    let mut needed = vec![false; end];
    ends.for_each(|id| needed[id.index()] = true);
    let mut own: FxHashMap<NodeId, Vec<Tensor>> = FxHashMap::default();
    for (x, t) in inputs.iter().zip(given) {
        if let Some(id) = x.id() {
            own.entry(id).or_default().push(t.expanded(x.extents())?);
        }
    }
    let start = own.keys().map(|id| id.index()).min().unwrap_or(end);
    graph.with_ir(|ir| {
        for i in (start..end).rev() {
            if needed[i] {
                let operands = &ir.node(NodeId(i as u32)).operands;
                operands.iter().for_each(|o| needed[o.index()] = true);
            }
        }
    });
    let mut forward = Forward {
        graph,
        backwards,
        needed,
        tangents: vec![None; end],
        parts: FxHashMap::default(),
    };
    for i in start..end {
        forward.through(NodeId(i as u32), own.remove(&NodeId(i as u32)).unwrap_or_default())?;
    }
    let tangent = |t: &&Tensor| t.id().and_then(|id| forward.tangents[id.index()].clone());
    Ok(outputs.iter().map(tangent).collect())
}

impl Forward<'_> {
    /// From the tangents of a node's operands to that of its result, to which its own ones are added.
    fn through(&mut self, id: NodeId, own: Vec<Tensor>) -> Step<()> {
        if !self.needed[id.index()] {
            return Ok(());
        }
        let has = |o: &NodeId| self.tangents[o.index()].is_some() || self.parts.contains_key(o);
        let node = self.graph.with_ir(|ir| {
            let node = ir.node(id);
            let passes = node.kind.is_tuple() || node.ty.dtype.is_float();
            (passes && node.operands.iter().any(has)).then(|| node.clone())
        });
        let mut all = own;
        if let Some(node) = node {
            let origin = node.origin.derived("tangent", node.kind.name());
            let found = making(origin, || self.passed(id, &node)).map_err(|(problem, expected)| {
                let operation = self.graph.with_ir(|ir| ir.operation_at(id));
                (format!("the derivative of {operation}: {problem}"), expected)
            })?;
            all.extend(found);
        }
        if let Some(first) = all.first() {
            let dtype = first.dtype();
            self.tangents[id.index()] = sum(&all, dtype)?;
        }
        Ok(())
    }

    /// The tangent that a node passes on, of its type.
    fn passed(&mut self, id: NodeId, node: &Node) -> Step<Option<Tensor>> {
        let graph = self.graph;
        let tensor = |id: NodeId| Tensor::new(graph.clone(), id, graph.with_ir(|ir| ir.ty(id).clone()));
        if let NodeKind::Project(k) = node.kind {
            let parts = self.parts.get(&node.operands[0]);
            return Ok(parts.and_then(|p| p[k as usize].clone()));
        }
        let result = tensor(id);
        let operands: Vec<Tensor> = node.operands.iter().map(|&o| tensor(o)).collect();
        let tangents: Vec<Option<Tensor>> = (node.operands.iter())
            .map(|o| self.tangents[o.index()].clone())
            .collect();
        let results = |count: usize| -> Step<Vec<Tensor>> {
            (0..count as u32)
                .map(|k| graph.node(NodeKind::Project(k), &[&result]))
                .collect()
        };
        let count = node.results.len();
        let parts = match &node.kind {
            NodeKind::Loop(it) => repeat::tangent(it, &operands, &tangents, self.backwards, self::tangents)?,
            NodeKind::Region(region) => {
                let results = results(count)?;
                region::tangent(region, &results, &operands, &tangents, self.backwards, self::tangents)?
            }
            NodeKind::Call(function) => {
                let mut parts = vec![None; count];
                parts[0] = index::call_tangent(function, &result, &operands, tangents[0].as_ref())?;
                parts
            }
            kind => {
                let t = rule(&Linearized {
                    kind,
                    operands: &operands,
                    tangents: &tangents,
                    result: &result,
                })?;
                return t.map(|t| t.to(result.dtype())?.expanded(result.extents())).transpose();
            }
        };
        if parts.iter().any(Option::is_some) {
            self.parts.insert(id, parts);
        }
        Ok(None)
    }
}

/// The table: what becomes of the tangents of a node's operands, of which there is one. The result is a float.
fn rule(at: &Linearized<'_>) -> Step<Option<Tensor>> {
    match at.kind {
        NodeKind::Input { .. } | NodeKind::Const(_) | NodeKind::Data(_) | NodeKind::Iota { .. } => Ok(None),
        NodeKind::Random { .. } => Ok(None),
        NodeKind::Map(op) => scalar::tangent(*op, at),
        NodeKind::Convert(_) => at.first(|t| Ok(t.clone())),
        NodeKind::Bitcast(dtype) if *dtype == at.operands[0].dtype() => at.first(|t| Ok(t.clone())),
        NodeKind::Bitcast(_) => refuse("bits of one dtype read as another have none"),
        NodeKind::Einsum {
            inputs,
            output,
            semiring,
            accumulator,
            dtype: _,
        } => einsum::tangent(inputs, output, *semiring, *accumulator, at),
        NodeKind::Reduce { monoid, axes } => combine::reduce_tangent(*monoid, axes, at),
        // Fill values have no tangent.
        NodeKind::View(view) => at.first(|t| t.view(view.filled_with(t.dtype().zero()))),
        NodeKind::Gather { axes } => index::gather_tangent(axes, at),
        NodeKind::Scatter { axes, op } => index::scatter_tangent(axes, *op, at),
        NodeKind::Scan {
            monoid,
            axis,
            exclusive,
            reverse,
        } => combine::scan_tangent(*monoid, *axis as usize, *exclusive, *reverse, at),
        NodeKind::Copy => at.first(|t| Ok(t.clone())),
        NodeKind::Loop(_) | NodeKind::Call(_) | NodeKind::Region(_) | NodeKind::Project(_) => {
            refuse("a node of several results")
        }
    }
}

/// As [`tangents`], zeros included.
pub(super) fn all_tangents(
    graph: &Graph,
    outputs: &[&Tensor],
    inputs: &[&Tensor],
    given: &[&Tensor],
    backwards: Differentiate,
) -> Step<Vec<Tensor>> {
    let found = tangents(graph, outputs, inputs, given, backwards)?;
    let filled = |(t, y): (Option<Tensor>, &&Tensor)| match t {
        Some(t) => Ok(t),
        None => zeros(graph, y.extents(), y.dtype()),
    };
    found.into_iter().zip(outputs).map(filled).collect()
}
