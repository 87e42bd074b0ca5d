//! Functions of one byte by a table of their 256 values.
//!
//! Quantized networks compute an activation in several steps, each of which is put into bytes: what follows from a byte and from numbers alone,
//! however many operations it takes, has no more than 256 values. Where that takes longer than to load one of them, they are computed once per
//! executable, by the same operations, and looked up.
//!
//! Bytes are picked from tables of bytes in a few cycles for a whole vector where a processor has instructions for it; what follows from such a byte further
//! is then computed from it, if that is little.

use rustc_hash::FxHashMap;
use tlc_ir::graph::{ConstData, GraphError, Labels, Shape, View};
use tlc_ir::index::IndexExpr;
use tlc_ir::target::{AccessKind, BYTE_TABLE};
use tlc_ir::{DType, Graph, HostTensor, NodeId, NodeKind, Scalar};

use super::byte_functions::{Source, is_byte, operations, sources};
use super::panels::Fixed;
use super::{Context, Failure, Pass, Rebuilder, rebuild};
use crate::cluster::cost;
use crate::direct::has_overlaps;

/// Values of a byte.
const VALUES: usize = BYTE_TABLE as usize;
/// What a function costs that takes longer than to pick bytes from registers, for which numbers are put in lanes and taken out of them.
const LEAST_COST_OF_BYTES: u32 = 12;
/// What a function costs behind a convolution that takes longer than to store its bytes, load them and look them up.
const LEAST_COST_OF_STORED: u32 = 40;
/// What a function costs that takes longer than loads of as many elements as a vector has lanes, which processors do one by one.
const LEAST_COST: u32 = 60;
/// Operations that a byte is computed by that are looked at.
const MOST_BEHIND: usize = 128;
/// The fewest elements that a table is made for.
const FEWEST_ELEMENTS: i64 = 1 << 10;

/// Functions of a byte that are looked up.
pub struct Tables;

impl Pass for Tables {
    fn name(&self) -> &'static str {
        "tables"
    }

    fn run(&self, graph: &Graph, context: &mut Context<'_>) -> Result<Graph, Failure> {
        match context.tiles {
            Some(e) if e.access(AccessKind::Indexed).is_vector() => Ok(run(graph, e.looks_bytes_up)?),
            _ => Ok(graph.clone()),
        }
    }
}

/// Looks up what follows from a byte and is costly; `of_bytes` says whether tables of bytes are looked up faster.
///
/// # Errors
/// Never for a verified graph.
pub fn run(graph: &Graph, of_bytes: bool) -> Result<Graph, GraphError> {
    let functions = functions(graph, of_bytes);
    if functions.is_empty() {
        return Ok(graph.clone());
    }
    // Bytes that tables are looked up by, in the new graph.
    let mut bytes: FxHashMap<NodeId, NodeId> = FxHashMap::default();
    rebuild(graph, &mut |re, id, node, operands| {
        let new = match functions.get(&id) {
            Some(f) => {
                let (of, mut byte) = (&f.of, f.of.shown(re, graph, &bytes)?);
                if f.is_stored {
                    byte = re.add(NodeKind::Copy, &[byte])?;
                }
                looked_up(re, graph, id, (of.byte, byte), of_bytes)?
            }
            None => re.keep(node, operands)?,
        };
        bytes.insert(id, new);
        Ok(new)
    })
}

/// A function that is looked up.
struct Function {
    of: Source,
    /// Whether its bytes are stored first, and what reads them looks them up.
    is_stored: bool,
}

/// Values that are looked up, each by a byte.
fn functions(graph: &Graph, of_bytes: bool) -> FxHashMap<NodeId, Function> {
    let mut found = FxHashMap::default();
    if !graph.nodes().any(|(_, n)| is_byte(n.ty.dtype)) {
        return found;
    }
    let (all, fixed) = (sources(graph, false), Fixed::constants(graph));
    let padded = if of_bytes { read_by_padding(graph) } else { Vec::new() };
    let in_windows = if of_bytes { read_in_windows(graph) } else { Vec::new() };
    let nearest = if of_bytes { sources(graph, true) } else { Vec::new() };
    // What others read than those that follow from the same byte.
    let mut is_read = vec![false; graph.len()];
    for (id, node) in graph.nodes() {
        for o in &node.operands {
            let byte = |n: NodeId| all[n.index()].as_ref().map(|s| s.byte);
            is_read[o.index()] |= byte(*o) != byte(id);
        }
    }
    graph.outputs().iter().for_each(|o| is_read[o.node.index()] = true);
    for (id, node) in graph.nodes() {
        let Some(source) = all[id.index()].as_ref().filter(|_| is_read[id.index()]) else {
            continue;
        };
        let many = node.ty.elements().as_const().is_none_or(|n| n >= FEWEST_ELEMENTS);
        let cost = |from: NodeId, to: NodeId| {
            let all = operations(graph, to, from).unwrap_or_default();
            all.iter().map(|n| cost(&graph.node(*n).kind)).sum::<u32>()
        };
        let least = if of_bytes { LEAST_COST_OF_BYTES } else { LEAST_COST };
        if source.byte == id || !many || kept_as(node.ty.dtype, of_bytes).is_none() || cost(source.byte, id) < least {
            continue;
        }
        let behind = follows_convolution(graph, source.byte, &fixed);
        let is_stored = behind && of_bytes && !is_turned(graph, source) && !padded[id.index()];
        if behind && (!of_bytes || is_stored && in_windows[id.index()]) {
            continue;
        }
        let least = if is_stored { LEAST_COST_OF_STORED } else { least };
        // The last byte on the way, if what follows from it is not worth a table.
        let last = match is_byte(node.ty.dtype) {
            true => Some(id),
            false => nearest.get(id.index()).and_then(|s| s.as_ref()).map(|s| s.byte),
        };
        let last = last.filter(|b| *b != source.byte && (*b == id || cost(*b, id) < LEAST_COST));
        let looked_up = match last.and_then(|b| all[b.index()].as_ref().map(|of| (b, of))) {
            Some((byte, of)) if cost(source.byte, byte) >= least => Some((byte, of)),
            _ if !is_stored && cost(source.byte, id) >= LEAST_COST => Some((id, source)),
            _ => None,
        };
        if let Some((value, of)) = looked_up {
            let of = of.clone();
            found.insert(value, Function { of, is_stored });
        }
    }
    found
}

/// Whether a byte is computed behind a convolution, whose kernels turn tiles of sums or slide along windows and look nothing up in lanes: behind any sum of
/// products that does not have columns of `fixed` weights side by side.
fn follows_convolution(graph: &Graph, byte: NodeId, fixed: &Fixed) -> bool {
    let (mut seen, mut at) = (vec![byte], 0);
    while let Some(&id) = seen.get(at) {
        let node = graph.node(id);
        match &node.kind {
            NodeKind::Einsum { inputs, output, .. } => {
                let last = |of: &Labels| output.last().is_some_and(|l| of.contains(l));
                let mut sides = inputs.iter().zip(&node.operands);
                if !sides.all(|(of, o)| !has_overlaps(graph, *o) && last(of) == fixed.contains(*o)) {
                    return true;
                }
            }
            NodeKind::Map(_) | NodeKind::Convert(_) | NodeKind::Bitcast(_) | NodeKind::View(_) => {
                let new = node.operands.iter().filter(|o| !seen.contains(o));
                let new: Vec<NodeId> = new.copied().collect();
                seen.extend(new);
            }
            _ => {}
        }
        at += 1;
        if seen.len() > MOST_BEHIND {
            return true;
        }
    }
    false
}

/// Whether the elements of a byte are seen in another order along the last axis: what follows from them is not computed where it is.
fn is_turned(graph: &Graph, of: &Source) -> bool {
    of.views.iter().any(|v| match &graph.node(*v).kind {
        NodeKind::View(View::Permute(order)) => order.last().is_some_and(|&a| usize::from(a) + 1 != order.len()),
        _ => false,
    })
}

/// Values that are read where they are padded alone, by node: what stores an image with its padding computes them, whatever made what they follow from.
fn read_by_padding(graph: &Graph) -> Vec<bool> {
    let mut padded = vec![true; graph.len()];
    let mut is_read = vec![false; graph.len()];
    graph.outputs().iter().for_each(|o| padded[o.node.index()] = false);
    // Users come behind what they read.
    for (id, node) in graph.nodes().collect::<Vec<_>>().into_iter().rev() {
        let pads = matches!(node.kind, NodeKind::View(View::Pad { .. }));
        let passes_on = matches!(
            node.kind,
            NodeKind::View(_) | NodeKind::Map(_) | NodeKind::Convert(_) | NodeKind::Bitcast(_)
        );
        let by_padding = pads || passes_on && padded[id.index()] && is_read[id.index()];
        for o in &node.operands {
            padded[o.index()] &= by_padding;
            is_read[o.index()] = true;
        }
    }
    padded
}

/// Values of which some are read through windows or by a product, where nothing stores them before, by node.
fn read_in_windows(graph: &Graph) -> Vec<bool> {
    let mut found = vec![false; graph.len()];
    for (id, node) in graph.nodes().collect::<Vec<_>>().into_iter().rev() {
        let passes_on = match &node.kind {
            NodeKind::View(View::Window { .. }) | NodeKind::Einsum { .. } => true,
            NodeKind::View(View::Pad { .. }) => false,
            NodeKind::View(_) | NodeKind::Map(_) | NodeKind::Convert(_) | NodeKind::Bitcast(_) => found[id.index()],
            _ => false,
        };
        for o in &node.operands {
            found[o.index()] |= passes_on;
        }
    }
    found
}

/// What a table has values of a dtype as, which vectors load one by one, but for bytes where they pick those.
fn kept_as(dtype: DType, of_bytes: bool) -> Option<DType> {
    match dtype {
        _ if of_bytes && is_byte(dtype) => Some(dtype),
        DType::U8 | DType::I8 | DType::U16 | DType::I16 | DType::I32 => Some(DType::I32),
        DType::F32 => Some(DType::F32),
        _ => None,
    }
}

/// A value looked up by a byte, beside which stands what shows the byte to it in the new graph.
fn looked_up(
    re: &mut Rebuilder<'_>,
    graph: &Graph,
    id: NodeId,
    (byte, new): (NodeId, NodeId),
    of_bytes: bool,
) -> Result<NodeId, GraphError> {
    let dtype = graph.ty(byte).dtype;
    let mut all = HostTensor::zeros(dtype, &[VALUES]).expect("a few bytes");
    for i in 0..VALUES {
        all.set(i, Scalar::from_bits(dtype, i as u64));
    }
    let all = re.add(NodeKind::Data(ConstData(all)), &[])?;
    let mut values: FxHashMap<NodeId, NodeId> = [(byte, all)].into_iter().collect();
    let table = value_of(re, graph, id, &mut values)?;
    let of = graph.ty(id).dtype;
    let kept = kept_as(of, of_bytes).expect("tables have such values");
    let table = converted(re, table, kept)?;
    let table = re.add(NodeKind::Copy, &[table])?;
    let index = match dtype {
        DType::I8 => re.add(NodeKind::Bitcast(DType::U8), &[new])?,
        _ => new,
    };
    let index = converted(re, index, DType::I32)?;
    let axes = [0].into_iter().collect();
    let value = re.add(NodeKind::Gather { axes }, &[table, index])?;
    converted(re, value, of)
}

fn converted(re: &mut Rebuilder<'_>, value: NodeId, to: DType) -> Result<NodeId, GraphError> {
    match re.graph.ty(value).dtype == to {
        true => Ok(value),
        false => re.add(NodeKind::Convert(to), &[value]),
    }
}

/// What a value is for each of the bytes that `values` begins with.
fn value_of(
    re: &mut Rebuilder<'_>,
    graph: &Graph,
    id: NodeId,
    values: &mut FxHashMap<NodeId, NodeId>,
) -> Result<NodeId, GraphError> {
    if let Some(&known) = values.get(&id) {
        return Ok(known);
    }
    let node = graph.node(id);
    let value = match (graph.splat_value(id), &node.kind) {
        (Some(number), _) => re.splat(number, &Shape::from_iter([IndexExpr::Const(VALUES as i64)]))?,
        (None, NodeKind::View(_)) => value_of(re, graph, node.operands[0], values)?,
        (None, _) => {
            let operands = node.operands.iter().map(|&o| value_of(re, graph, o, values));
            let operands = operands.collect::<Result<Vec<_>, _>>()?;
            re.add(node.kind.clone(), &operands)?
        }
    };
    values.insert(id, value);
    Ok(value)
}
