//! Images of convolutions copied with their channels last, for devices whose matrix instructions multiply windows of them.
//!
//! Windows of an image whose rows of pixels lie together begin at any element, so that threads bring them to shared memory one element at a time. Of an
//! image whose channels lie together an element of a window is a row of channels: 16 aligned bytes are copied at once, beside what threads compute. So
//! are weights whose summed channels are their last axis, of which whole rows of an output channel then are one matrix.
//!
//! Invariants:
//! - Values and the order of axes are the same: what is read of the copies is a view that has the axes where they were.
//! - It is done where a kernel multiplies tiles of 16-bit elements by matrix instructions, and where there are enough of them for all of the device: a
//!   small convolution takes less time than the copies.

use smallvec::SmallVec;
use tlc_ir::graph::{GraphError, Labels, Semiring, Shape, View};
use tlc_ir::index::IndexExpr;
use tlc_ir::target::{Gpu, Support};
use tlc_ir::{DType, Graph, Node, NodeId, NodeKind, Precision};

use super::{Context, Failure, Pass, Rebuilder};
use crate::access::{label_count, repeats};
use crate::direct::has_overlaps;
use crate::tile::{LARGE_PRODUCT_SIDE, PRODUCT_SIDE, SMALLEST_PRODUCT_SIDE};

/// Channels are a multiple of so many: the steps of a tile are of one element of the windows then, or of whole ones.
const CHANNEL_STEPS: i64 = 32;

/// Images and weights of large convolutions with their channels last.
pub struct ChannelsLast;

impl Pass for ChannelsLast {
    fn name(&self) -> &'static str {
        "channels-last"
    }

    fn run(&self, graph: &Graph, context: &mut Context<'_>) -> Result<Graph, Failure> {
        match context.gpu {
            Some(gpu) => Ok(run(graph, gpu)?),
            None => Ok(graph.clone()),
        }
    }
}

/// Copies what large convolutions multiply.
///
/// # Errors
/// Never for a verified graph.
pub fn run(graph: &Graph, gpu: &Gpu) -> Result<Graph, GraphError> {
    super::rebuild(graph, &mut |re, _, node, operands| {
        let Some(found) = convolution(graph, node, gpu) else {
            return re.keep(node, operands);
        };
        let mut values: SmallVec<[NodeId; 2]> = operands.iter().copied().collect();
        values[found.image] = below_windows(re, operands[found.image], found.image_axis)?;
        let weights = 1 - found.image;
        values[weights] = axis_last(re, operands[weights], found.weights_axis)?;
        re.add(node.kind.clone(), &values)
    })
}

/// A convolution: which operand its image is, and the axes of its channels.
struct Convolution {
    image: usize,
    image_axis: usize,
    weights_axis: usize,
}

/// The convolution that a node is, if tiles of it are multiplied by matrix instructions and fill a device.
fn convolution(graph: &Graph, node: &Node, gpu: &Gpu) -> Option<Convolution> {
    let NodeKind::Einsum {
        inputs,
        output,
        semiring: Semiring::AddMul,
        accumulator: DType::F32,
        ..
    } = &node.kind
    else {
        return None;
    };
    let [a, b] = node.operands[..] else { return None };
    let dtype = graph.ty(a).dtype;
    let side = SMALLEST_PRODUCT_SIDE;
    let multiplied = gpu
        .emitter
        .contract([dtype; 2], DType::F32, Precision::Exact, [side; 3]);
    if graph.ty(b).dtype != dtype || dtype.bytes() != 2 || multiplied != Support::Native {
        return None;
    }
    let shows = |operand: NodeId| has_overlaps(graph, operand) || skips(graph, operand);
    let image = match (shows(a), shows(b)) {
        (true, false) => 0,
        (false, true) => 1,
        _ => return None,
    };
    let (of_image, of_weights) = (&inputs[image], &inputs[1 - image]);
    if repeats(of_image) || repeats(of_weights) {
        return None;
    }
    let (base, slid) = shown(graph, node.operands[image]);
    let summed = |axis: &usize| {
        let label = of_image[*axis];
        let many = graph.ty(base).shape[*axis].as_const();
        let in_steps = many.is_some_and(|n| n % CHANNEL_STEPS == 0);
        in_steps && !slid.contains(axis) && !output.contains(&label) && of_weights.contains(&label)
    };
    let image_axis = (0..graph.ty(base).rank()).find(summed)?;
    let weights_axis = of_weights.iter().position(|l| *l == of_image[image_axis])?;
    let fills = fills_device(graph, node, [of_weights, of_image], gpu);
    fills.then_some(Convolution {
        image,
        image_axis,
        weights_axis,
    })
}

/// What windows show, and the axes of it that they slide along or that are padded.
fn shown(graph: &Graph, operand: NodeId) -> (NodeId, SmallVec<[usize; 4]>) {
    let (mut base, mut slid) = (operand, SmallVec::new());
    loop {
        match &graph.node(base).kind {
            NodeKind::View(View::Window { axis, .. }) => slid.push(usize::from(*axis)),
            NodeKind::View(View::Pad { lo, hi, interior, .. }) => {
                let padded = |k: &usize| !lo[*k].is(0) || !hi[*k].is(0) || interior[*k] != 0;
                slid.extend((0..lo.len()).filter(padded));
            }
            _ => return (base, slid),
        }
        base = graph.node(base).operands[0];
    }
}

/// Whether windows of one element skip what lies between them.
fn skips(graph: &Graph, mut operand: NodeId) -> bool {
    while let NodeKind::View(view @ (View::Window { .. } | View::Pad { .. })) = &graph.node(operand).kind {
        if is_skipping(view) {
            return true;
        }
        operand = graph.node(operand).operands[0];
    }
    false
}

/// Whether a view is windows of one element that skip what lies between them.
fn is_skipping(view: &View) -> bool {
    matches!(view, View::Window { size, stride, .. } if size.is(1) && *stride > 1)
}

/// Whether there are tiles of rows and columns of a product for most multiprocessors of a device, as far as sizes are known: a tile takes as long on
/// one as on all.
fn fills_device(graph: &Graph, node: &Node, [rows, columns]: [&Labels; 2], gpu: &Gpu) -> bool {
    let NodeKind::Einsum { inputs, output, .. } = &node.kind else {
        return false;
    };
    let mut extents = vec![1i64; label_count(inputs)];
    for (labels, operand) in inputs.iter().zip(&node.operands) {
        for (label, extent) in labels.iter().zip(&graph.ty(*operand).shape) {
            extents[usize::from(*label)] = extent.interval(graph).lo.max(1);
        }
    }
    let side = |own: &Labels, other: &Labels| {
        let alone = output.iter().filter(|l| own.contains(l) && !other.contains(l));
        alone.fold(1i64, |n, l| n.saturating_mul(extents[usize::from(*l)]))
    };
    let groups = output.iter().filter(|l| rows.contains(l) && columns.contains(l));
    let groups = groups.fold(1i64, |n, l| n.saturating_mul(extents[usize::from(*l)]));
    let (rows, columns) = (side(rows, columns), side(columns, rows));
    let tiles = (rows / PRODUCT_SIDE).saturating_mul(columns / LARGE_PRODUCT_SIDE);
    tiles.saturating_mul(groups).saturating_mul(2) >= gpu.multiprocessors
}

/// The windows of a copy of what they show that has an axis last; of windows that skip elements, a copy of those that they show.
fn below_windows(re: &mut Rebuilder, operand: NodeId, axis: usize) -> Result<NodeId, GraphError> {
    let node = re.graph.node(operand);
    match &node.kind {
        kind @ NodeKind::View(view @ (View::Window { .. } | View::Pad { .. })) if !is_skipping(view) => {
            let (kind, below) = (kind.clone(), node.operands[0]);
            let below = below_windows(re, below, axis)?;
            re.add(kind, &[below])
        }
        _ => axis_last(re, operand, axis),
    }
}

/// A value with its axes as they were, of a copy that has one of them last; itself if it lies so already.
fn axis_last(re: &mut Rebuilder, value: NodeId, axis: usize) -> Result<NodeId, GraphError> {
    let shape = re.graph.ty(value).shape.clone();
    if lies_last(re, value, axis) {
        return Ok(value);
    }
    // The axes behind it as one, so that the copy is a transposition of matrices.
    let (before, behind) = (&shape[..axis], &shape[axis + 1..]);
    let joined: Shape = before
        .iter()
        .cloned()
        .chain([shape[axis].clone(), IndexExpr::product(behind)])
        .collect();
    let last = joined.len() as u8 - 1;
    let swapped: SmallVec<[u8; 4]> = (0..last - 1).chain([last, last - 1]).collect();
    let matrices = re.reshape(value, &joined)?;
    let view = re.add(NodeKind::View(View::Permute(swapped)), &[matrices])?;
    let copy = re.add(NodeKind::Copy, &[view])?;
    let apart: Shape = before.iter().chain(behind).chain([&shape[axis]]).cloned().collect();
    let copy = re.reshape(copy, &apart)?;
    let (at, rank) = (axis as u8, shape.len() as u8);
    let back = (0..at).chain([rank - 1]).chain(at..rank - 1).collect();
    re.add(NodeKind::View(View::Permute(back)), &[copy])
}

/// Whether neighbours along an axis of a value lie together: it is the last of what is stored.
fn lies_last(re: &Rebuilder, value: NodeId, axis: usize) -> bool {
    let node = re.graph.node(value);
    match &node.kind {
        NodeKind::View(View::Permute(axes)) => lies_last(re, node.operands[0], usize::from(axes[axis])),
        _ => axis + 1 == node.ty.rank(),
    }
}
