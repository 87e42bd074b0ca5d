//! Bytes that are made floats and the same bytes again are left out, as quantized models have them around each operation that moves elements.
//!
//! A byte that follows from another one has been computed for each of its 256 values, and is the same.

use rustc_hash::FxHashMap;
use tlc_ir::graph::GraphError;
use tlc_ir::{Graph, Node, NodeId, NodeKind, Scalar};

use super::byte_functions::{Source, is_byte, operations, sources, value_for};
use super::{Context, Failure, Pass, rebuild};

/// The most operations of what is computed for every byte.
const MOST_OPERATIONS: usize = 16;

/// Bytes that are what they are made of.
pub struct RoundTrips;

impl Pass for RoundTrips {
    fn name(&self) -> &'static str {
        "round-trips"
    }

    fn run(&self, graph: &Graph, _: &mut Context<'_>) -> Result<Graph, Failure> {
        Ok(run(graph)?)
    }
}

/// Reads the bytes themselves where others are the same.
///
/// # Errors
/// Never for a verified graph.
pub fn run(graph: &Graph) -> Result<Graph, GraphError> {
    let to_bytes = |n: &Node| matches!(n.kind, NodeKind::Convert(to) if is_byte(to));
    if !graph.nodes().any(|(_, n)| to_bytes(n)) {
        return Ok(graph.clone());
    }
    let same: FxHashMap<NodeId, Source> = {
        let all = sources(graph, true);
        let found = graph.nodes().filter(|(_, n)| to_bytes(n)).filter_map(|(id, _)| {
            let of = all[id.index()].clone()?;
            is_same(graph, id, of.byte).then_some((id, of))
        });
        found.collect()
    };
    if same.is_empty() {
        return Ok(graph.clone());
    }
    let mut new: FxHashMap<NodeId, NodeId> = FxHashMap::default();
    rebuild(graph, &mut |re, id, node, operands| {
        let made = match same.get(&id) {
            Some(of) => of.shown(re, graph, &new)?,
            None => re.keep(node, operands)?,
        };
        new.insert(id, made);
        Ok(made)
    })
}

/// Whether a value is the byte that it follows from, through views, whatever that is.
fn is_same(graph: &Graph, id: NodeId, byte: NodeId) -> bool {
    let dtype = graph.ty(byte).dtype;
    if id == byte || graph.ty(id).dtype != dtype {
        return false;
    }
    let Some(of) = operations(graph, id, byte).filter(|of| of.len() <= MOST_OPERATIONS) else {
        return false;
    };
    let same = |bits| {
        let value = Scalar::from_bits(dtype, bits);
        value_for(graph, &of, byte, value) == Some(value)
    };
    // Most others differ at the ends.
    [0, 255].into_iter().all(same) && (1..255).all(same)
}
