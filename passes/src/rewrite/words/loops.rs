//! Products of bytes in bodies of loops: weights are what a body captures, and `hoist` takes what is made of them out of it.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use tlc_ir::graph::{Body, GraphError, Loop, Operands};
use tlc_ir::target::{Emitter, HostProducts};
use tlc_ir::{DType, Graph, Node, NodeId, NodeKind, Scalar};

use super::{Multipliers, is_sum_of_integers, number, with_words};
use crate::rewrite::panels::Fixed;
use crate::rewrite::{hoist, rebuild_of};

/// As [`run`](super::run), in the bodies of the graph's loops.
///
/// # Errors
/// Never for a verified graph.
pub(super) fn run(graph: &Graph, emitter: &Emitter, products: HostProducts) -> Result<Graph, GraphError> {
    let constant = Fixed::constants(graph);
    let concerns = |n: &Node| match &n.kind {
        NodeKind::Loop(l) => l.body.0.nodes().any(|(_, n)| is_sum_of_integers(&l.body.0, n)),
        _ => false,
    };
    rebuild_of(graph, &concerns, &mut |re, _, node, operands| {
        let NodeKind::Loop(l) = &node.kind else {
            return re.keep(node, operands);
        };
        if !concerns(node) {
            return re.keep(node, operands);
        }
        let captures = hoist::captures(l, &node.operands);
        let inputs = &l.body.0.inputs()[hoist::first_capture(l)..];
        let numbers = inputs.iter().zip(captures).filter_map(|(&input, &o)| {
            let of_integers = matches!(graph.ty(o).dtype, DType::U8 | DType::I8 | DType::I32);
            Some((input, number(graph, o).filter(|_| of_integers)?))
        });
        let body = with_numbers(&l.body.0, &numbers.collect())?;
        let fixed = hoist::fixed(l, &hoist::stays(l, captures, &constant), &body);
        let by = Multipliers {
            emitter,
            products,
            fewest_lines: None,
        };
        let body = Body(Arc::new(with_words(&body, &fixed, by)?));
        re.add(NodeKind::Loop(Arc::new(Loop { body, ..(**l).clone() })), operands)
    })
}

/// A body in which inputs of integers, whose elements are all one number, are constants.
fn with_numbers(body: &Graph, numbers: &FxHashMap<NodeId, i64>) -> Result<Graph, GraphError> {
    let reads = |n: &Node| n.operands.iter().any(|o| numbers.contains_key(o));
    rebuild_of(body, &reads, &mut |re, _, node, operands| {
        let mut values = Operands::from_slice(operands);
        for (value, old) in values.iter_mut().zip(&node.operands) {
            if let Some(n) = numbers.get(old) {
                let ty = body.ty(*old);
                *value = re.splat(Scalar::from_i64(ty.dtype, *n), &ty.shape)?;
            }
        }
        re.keep(node, &values)
    })
}
