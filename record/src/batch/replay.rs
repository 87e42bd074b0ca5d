//! Nodes recorded again over a batch: those of a body, and those of the graph itself behind one of its values.

use rustc_hash::FxHashMap;
use tlc_ir::graph::{Node, NodeId, NodeKind, region};
use tlc_ir::{Graph as IrGraph, IndexExpr};

use super::{Batch, Value};
use crate::graph::scope::{Step, making, refuse_expecting};
use crate::graph::{Graph, Tensor};

/// By node: whether an output is computed from it.
fn needed(ir: &IrGraph, outputs: &[NodeId]) -> Vec<bool> {
    let mut needed = vec![false; ir.len()];
    outputs.iter().for_each(|id| needed[id.index()] = true);
    for i in (0..ir.len()).rev() {
        if needed[i] {
            let operands = &ir.node(NodeId(i as u32)).operands;
            operands.iter().for_each(|o| needed[o.index()] = true);
        }
    }
    needed
}

impl Batch {
    /// The outputs of a body over a batch. `symbols` are what its symbols are here.
    pub(super) fn body(
        &self,
        body: &IrGraph,
        outputs: &[NodeId],
        symbols: &[IndexExpr],
        inputs: &[Value],
    ) -> Step<Vec<Value>> {
        let needed = needed(body, outputs);
        let mut made: Vec<Vec<Value>> = Vec::with_capacity(body.len());
        for (id, node) in body.nodes() {
            let values = match &node.kind {
                _ if !needed[id.index()] => vec![],
                NodeKind::Input { index, .. } => match inputs.get(*index as usize) {
                    Some(value) => vec![value.clone()],
                    None => return refuse_expecting("a body of more inputs", "those that are given"),
                },
                NodeKind::Project(k) => vec![made[node.operands[0].index()][*k as usize].clone()],
                kind => {
                    let kind = kind.map_sizes(&mut |_, e| region::outside(symbols, e));
                    let operands = |o: &NodeId| made[o.index()][0].clone();
                    let operands: Vec<Value> = node.operands.iter().map(operands).collect();
                    self.mapped(node, &kind, &operands, || body.operation_at(id))?
                }
            };
            made.push(values);
        }
        Ok(outputs.iter().map(|o| made[o.index()][0].clone()).collect())
    }

    /// A node over a batch, from where it was recorded.
    fn mapped(
        &self,
        node: &Node,
        kind: &NodeKind,
        operands: &[Value],
        operation: impl FnOnce() -> String,
    ) -> Step<Vec<Value>> {
        let origin = match operands.iter().any(|v| v.is_batched) {
            true => node.origin.derived("batch", kind.name()),
            false => node.origin.clone(),
        };
        let made = making(origin, || self.node(kind, operands));
        made.map_err(|(problem, expected)| (format!("a batch of {}: {problem}", operation()), expected))
    }
}

/// What is computed from `seed`, a value of the graph, for each of a batch of other values in its place. What does not depend on it
/// is there already.
pub(crate) fn over_batch(graph: &Graph, seed: &Tensor, batch: &Tensor, outputs: &[Tensor]) -> Step<Vec<Tensor>> {
    let over = Batch {
        graph: graph.clone(),
        size: batch.extents()[0].clone(),
        shared_draws: true,
    };
    let ids: Option<Vec<NodeId>> = outputs.iter().map(Tensor::id).collect();
    let (Some(ids), Some(seed)) = (ids, seed.id()) else {
        return Ok(outputs.iter().map(|t| Tensor::poisoned(graph, t.dtype())).collect());
    };
    let needed = graph.with_ir(|ir| needed(ir, &ids));
    let mut made: FxHashMap<NodeId, Vec<Value>> = FxHashMap::default();
    made.insert(seed, vec![Value::batched(batch.clone())]);
    for (i, is_needed) in needed.into_iter().enumerate().skip(seed.index() + 1) {
        let id = NodeId(i as u32);
        let node = graph.with_ir(|ir| {
            let node = ir.node(id);
            let depends = is_needed && node.operands.iter().any(|o| made.contains_key(o));
            depends.then(|| node.clone())
        });
        let Some(node) = node else { continue };
        let values = match &node.kind {
            NodeKind::Project(k) => vec![made[&node.operands[0]][*k as usize].clone()],
            kind => {
                let operand = |o: &NodeId| match made.get(o) {
                    Some(values) => values[0].clone(),
                    None => {
                        let ty = graph.with_ir(|ir| ir.ty(*o).clone());
                        Value::shared(Tensor::new(graph.clone(), *o, ty))
                    }
                };
                let operands: Vec<Value> = node.operands.iter().map(operand).collect();
                over.mapped(&node, kind, &operands, || graph.with_ir(|ir| ir.operation_at(id)))?
            }
        };
        made.insert(id, values);
    }
    let result = |(id, t): (&NodeId, &Tensor)| match made.get(id) {
        Some(values) => over.whole(&values[0]),
        None => over.whole(&Value::shared(t.clone())),
    };
    ids.iter().zip(outputs).map(result).collect()
}
