//! Values that must be known while a model is imported: computed by the graph interpreter from constants, and from inputs
//! whose values the caller gives.

use std::collections::BTreeSet;

use rustc_hash::FxHashMap;
use tlc_ir::binding::BindError;
use tlc_ir::graph::{NodeId, NodeKind};
use tlc_ir::interp::{InterpError, Options, interpret};
use tlc_ir::{DType, Graph as IrGraph, HostTensor, Node};

use super::refusal::{Outcome, invalid, unsupported};
use tlc_record::Tensor;

/// The most bytes that such a computation may hold.
const MAX_BYTES: u64 = 64 << 20;

/// The most nodes that loops in it may compute.
const MAX_STEPS: u64 = 1 << 20;

/// The most products that it may add up: some seconds of the interpreter's. A network is computed when it runs, and not to learn a size of it.
const MAX_PRODUCTS: i64 = 1 << 30;

/// The tensor's elements. `given` returns the value of an input of that name and element type.
pub(super) fn elements(
    tensor: &Tensor,
    what: &str,
    given: &mut dyn FnMut(&str, DType) -> Option<HostTensor>,
) -> Outcome<HostTensor> {
    let Some(root) = tensor.id() else {
        return invalid(format!("{what} was refused"));
    };
    let part = tensor.graph().with_ir(|ir| part(ir, root));
    let (part, names) = match part {
        Ok(part) => part,
        Err(e) => return invalid(e.to_string()),
    };
    let mut inputs = Vec::with_capacity(names.len());
    for (name, dtype) in &names {
        match given(name, *dtype) {
            Some(value) => inputs.push(value),
            None if tensor.graph().is_body() => {
                return unsupported(format!(
                    "{what} is computed from what a body is given; expected a constant"
                ));
            }
            None => {
                return unsupported(format!(
                    "{what} depends on the value of the input `{name}`; expected a constant, or that input from a file"
                ));
            }
        }
    }
    let products = products(&part);
    if products > MAX_PRODUCTS {
        return unsupported(format!(
            "{what} is to be known before the run, and takes {products} products; expected a constant, or at most {MAX_PRODUCTS}"
        ));
    }
    let options = Options {
        max_bytes: Some(MAX_BYTES),
        max_steps: Some(MAX_STEPS),
        ..Options::default()
    };
    match interpret(&part, &inputs, &options) {
        Ok(mut values) if values.len() == 1 => Ok(values.remove(0)),
        Ok(_) => invalid(format!("{what} has no value")),
        Err(InterpError::Bind(BindError::Unbound { symbol })) => unsupported(format!(
            "{what} depends on the size `{symbol}`, which each call decides; expected a constant"
        )),
        Err(e) => unsupported(format!("{what} is not known before the run: {e}; expected a constant")),
    }
}

/// The most products that a graph adds up, those over sizes that nothing is known of apart.
fn products(graph: &IrGraph) -> i64 {
    let of = |node: &Node| {
        let NodeKind::Einsum { inputs, .. } = &node.kind else {
            return 0;
        };
        let mut extents: FxHashMap<u16, i64> = FxHashMap::default();
        for (labels, operand) in inputs.iter().zip(&node.operands) {
            for (label, extent) in labels.iter().zip(&graph.ty(*operand).shape) {
                let most = extent.interval(graph).hi;
                extents.insert(*label, if most < i64::from(u32::MAX) { most } else { 1 });
            }
        }
        extents.values().fold(1, |n: i64, e| n.saturating_mul(*e))
    };
    graph.nodes().fold(0, |n: i64, (_, node)| n.saturating_add(of(node)))
}

/// Whether values that come with each call decide the tensor: it needs more of the inputs than the few integers that models are given sizes by.
pub(super) fn is_decided_by_data(tensor: &Tensor) -> bool {
    let Some(root) = tensor.id() else {
        return false;
    };
    let part = tensor.graph().with_ir(|ir| part(ir, root));
    part.is_ok_and(|(part, _)| {
        let mut types = part.inputs().iter().map(|&i| part.ty(i));
        types.any(|ty| !ty.dtype.is_int() || ty.rank() > 1)
    })
}

/// The part of a graph that one node needs, and the inputs in it with their element types.
fn part(from: &IrGraph, root: NodeId) -> Result<(IrGraph, Vec<(String, DType)>), tlc_ir::graph::GraphError> {
    let mut needed = BTreeSet::from([root.0]);
    let mut open = vec![root];
    let binders = from.binders();
    while let Some(id) = open.pop() {
        from.visit_needs(id, &binders, &mut |operand| {
            if needed.insert(operand.0) {
                open.push(operand);
            }
        });
    }
    let mut to = IrGraph::new("known");
    to.adopt_symbols(from);
    let mut names = vec![];
    let mut moved: FxHashMap<u32, NodeId> = FxHashMap::default();
    for id in needed {
        let node = from.node(NodeId(id));
        let operands: Vec<NodeId> = node.operands.iter().map(|o| moved[&o.0]).collect();
        let added = match &node.kind {
            NodeKind::Input { name, ty, .. } => {
                names.push((name.clone(), ty.dtype));
                to.add_input(name, ty.clone(), node.origin.clone())?
            }
            kind => to.add(kind.clone(), &operands, node.origin.clone())?,
        };
        moved.insert(id, added);
    }
    to.add_output("value", moved[&root.0]);
    Ok((to, names))
}
