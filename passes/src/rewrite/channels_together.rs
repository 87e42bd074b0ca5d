//! Convolutions over images whose channels lie together in memory, as where tokens are seen as an image.
//!
//! A loop along the pixels of a channel would read every element of such an image from a cache line of its own. So padding that is stored is stored in the image's
//! order, and a kernel multiplies it as it lies. Of depthwise convolutions the result's channels come last as well, and the weights': lanes go along the
//! channels, of which all that is read and stored are neighbours.

use smallvec::SmallVec;
use tlc_ir::graph::infer::flat_index;
use tlc_ir::graph::{GraphError, Labels, Semiring, View};
use tlc_ir::index::VarId;
use tlc_ir::{Graph, IndexExpr, Node, NodeId, NodeKind};

use super::Rebuilder;
use super::pack::inverse;
use crate::access::{Index, Variables, is_long, is_source, repeats};
use crate::direct::has_overlaps;

/// The fewest channels that lanes go along.
const FEWEST_CHANNELS: i64 = 16;

/// Values below one another that are looked at.
const MOST_BELOW: usize = 16;

/// How a depthwise convolution is computed.
pub(super) struct ChannelsLast {
    /// The order of its result's labels.
    pub(super) result: Labels,
    /// Which operand the weights are.
    pub(super) weights: usize,
    /// The order of their axes.
    pub(super) of_weights: SmallVec<[u8; 4]>,
    /// The axis of the other operand, the windows, that has the channels.
    pub(super) of_image: usize,
}

/// Views of a padded value, outermost first, of which one axis is followed down.
struct Padded {
    above: Vec<NodeKind>,
    pad: View,
    image: NodeId,
    /// The axis of the image.
    axis: usize,
}

impl Padded {
    fn below(graph: &Graph, operand: NodeId, mut axis: usize) -> Option<Padded> {
        let (mut at, mut above) = (operand, Vec::new());
        loop {
            let node = graph.node(at);
            let NodeKind::View(view) = &node.kind else { return None };
            let image = node.operands[0];
            if let View::Pad { .. } = view {
                let pad = view.clone();
                return Some(Padded {
                    above,
                    pad,
                    image,
                    axis,
                });
            }
            axis = axis_below(view, axis, &node.ty.shape, &graph.ty(image).shape)?;
            above.push(node.kind.clone());
            at = image;
        }
    }

    /// The views of another value.
    fn of(self, re: &mut Rebuilder, value: NodeId) -> Result<NodeId, GraphError> {
        self.above
            .into_iter()
            .rev()
            .try_fold(value, |at, kind| re.add(kind, &[at]))
    }
}

/// The axis of an operand of a sum over windows that has the channels of a padded image, if these are summed and lie together.
pub(super) fn padded_channels(graph: &Graph, node: &Node, operand: usize, uses: &[u32]) -> Option<usize> {
    let NodeKind::Einsum { inputs, output, .. } = &node.kind else {
        return None;
    };
    let windows = node.operands[operand];
    let axis = has_overlaps(graph, windows)
        .then(|| channels_together(graph, windows, uses))
        .flatten()?;
    (!output.contains(&inputs[operand][axis]) && Padded::below(graph, windows, axis).is_some()).then_some(axis)
}

/// Windows of an image that is padded with its channels, which are axis `channels` of the windows, last.
pub(super) fn padded_in_order(re: &mut Rebuilder, operand: NodeId, channels: usize) -> Result<NodeId, GraphError> {
    let Some(padded) = Padded::below(&re.graph, operand, channels) else {
        return Ok(operand);
    };
    let View::Pad {
        lo,
        hi,
        interior,
        value,
    } = &padded.pad
    else {
        return Ok(operand);
    };
    let axis = padded.axis;
    let order: SmallVec<[u8; 4]> = (0..lo.len())
        .filter(|&a| a != axis)
        .chain([axis])
        .map(|a| a as u8)
        .collect();
    let back = inverse(&order);
    let of = |all: &[IndexExpr]| order.iter().map(|&a| all[usize::from(a)].clone()).collect();
    let pad = View::Pad {
        lo: of(lo),
        hi: of(hi),
        interior: order.iter().map(|&a| interior[usize::from(a)]).collect(),
        value: *value,
    };
    let mut image = padded.image;
    for view in [View::Permute(order), pad, View::Permute(back)] {
        image = re.add(NodeKind::View(view), &[image])?;
    }
    padded.of(re, image)
}

/// Windows of a padded image whose channels, axis `channels` of the windows, lie together, of a copy of the image that has them apart: it is turned in tiles, which
/// padding would cut up.
pub(super) fn copied_below_padding(re: &mut Rebuilder, operand: NodeId, channels: usize) -> Result<NodeId, GraphError> {
    let Some(padded) = Padded::below(&re.graph, operand, channels) else {
        return Ok(operand);
    };
    let copy = re.add(NodeKind::Copy, &[padded.image])?;
    let image = re.add(NodeKind::View(padded.pad.clone()), &[copy])?;
    padded.of(re, image)
}

/// The axis below a view that is its axis `axis`, element by element.
fn axis_below(view: &View, axis: usize, to: &[IndexExpr], from: &[IndexExpr]) -> Option<usize> {
    match view {
        View::Window { axis: slid, .. } => (axis != usize::from(*slid) && axis + 1 < to.len()).then_some(axis),
        View::Permute(p) => Some(usize::from(p[axis])),
        View::Reshape(_) => {
            let before = IndexExpr::product(&to[..axis]);
            (0..from.len()).find(|&a| from[a] == to[axis] && IndexExpr::product(&from[..a]) == before)
        }
        View::Slice { .. } => Some(axis),
        _ => None,
    }
}

/// The orders in which a depthwise convolution has the channels last, if those of its image lie together.
pub(super) fn channels_last(graph: &Graph, id: NodeId, uses: &[u32]) -> Option<ChannelsLast> {
    let node = graph.node(id);
    let NodeKind::Einsum {
        inputs,
        output,
        semiring: Semiring::AddMul,
        ..
    } = &node.kind
    else {
        return None;
    };
    let [a, b] = node.operands[..] else { return None };
    let weights = match (has_overlaps(graph, a), has_overlaps(graph, b)) {
        (true, false) => 1,
        (false, true) => 0,
        _ => return None,
    };
    let (of_image, of_weights) = (&inputs[1 - weights], &inputs[weights]);
    if repeats(of_image) || repeats(of_weights) {
        return None;
    }
    let image = node.operands[1 - weights];
    let shape = &graph.ty(image).shape;
    // All that is summed are places in a window.
    let extent = |l: u16| of_image.iter().position(|&x| x == l).map(|axis| &shape[axis]);
    let long = |l: &&u16| extent(**l).is_some_and(|d| !d.is(1));
    let mut shared = output.iter().filter(|l| of_weights.contains(l)).filter(long);
    let (Some(&channels), None) = (shared.next(), shared.next()) else {
        return None;
    };
    if extent(channels)?.as_const().is_none_or(|n| n < FEWEST_CHANNELS) {
        return None;
    }
    let axis = of_image.iter().position(|&l| l == channels)?;
    if channels_together(graph, image, uses)? != axis {
        return None;
    }
    let last = |labels: &Labels| -> Labels {
        let others = labels.iter().filter(|&&l| l != channels);
        others.chain([&channels]).copied().collect()
    };
    let place = |l: &u16| of_weights.iter().position(|x| x == l).map(|axis| axis as u8);
    Some(ChannelsLast {
        result: last(output),
        weights,
        of_weights: last(of_weights).iter().map(place).collect::<Option<_>>()?,
        of_image: axis,
    })
}

/// The one axis of an operand of windows along which neighbours are neighbours in memory, of the value that it is a view of, or, where that is computed for it
/// alone, element by element, of what that reads.
fn channels_together(graph: &Graph, operand: NodeId, uses: &[u32]) -> Option<usize> {
    let shape = &graph.ty(operand).shape;
    let mut vars = Variables::new(graph);
    let mut index: Index = shape.iter().map(|d| vars.push(d.clone()).into()).collect();
    let mut at = operand;
    for _ in 0..MOST_BELOW {
        at = below_views(graph, at, uses, &mut index, &vars)?;
        let flat = flat_index(&index, &graph.ty(at).shape).simplify(&vars);
        let mut axes = (0..shape.len()).filter(|&axis| {
            let affine = flat.affine_in(VarId(axis as u32));
            !shape[axis].is(1) && affine.is_some_and(|(stride, _)| stride.is(1)) && !is_place(graph, operand, axis)
        });
        if let (Some(axis), None) = (axes.next(), axes.next()) {
            return Some(axis);
        }
        let node = graph.node(at);
        if !matches!(node.kind, NodeKind::Map(_)) || uses[at.index()] > 1 {
            return None;
        }
        let broadcast = |o: NodeId| matches!(graph.node(o).kind, NodeKind::Const(_) | NodeKind::View(View::Expand(_)));
        at = node.operands.iter().copied().find(|&o| !broadcast(o))?;
    }
    None
}

/// Whether an axis of windows is that of the places in one.
fn is_place(graph: &Graph, windows: NodeId, mut axis: usize) -> bool {
    let mut at = windows;
    while let node = graph.node(at)
        && let NodeKind::View(view) = &node.kind
    {
        let below = node.operands[0];
        match axis_below(view, axis, &node.ty.shape, &graph.ty(below).shape) {
            Some(found) => axis = found,
            None => return matches!(view, View::Window { .. }),
        }
        at = below;
    }
    false
}

/// What an operand is a view of, at the same elements. A view that others see as well may be stored as it is, as a part of a concatenation is.
fn below_views(
    graph: &Graph,
    operand: NodeId,
    uses: &[u32],
    index: &mut Index,
    vars: &Variables<'_>,
) -> Option<NodeId> {
    let mut at = operand;
    while let node = graph.node(at)
        && let NodeKind::View(view) = &node.kind
        && !is_source(&node.kind)
        && (at == operand || uses[at.index()] <= 1)
    {
        let below = node.operands[0];
        *index = view
            .operand_index(&graph.ty(below).shape, &node.ty.shape, index, vars)
            .index;
        if is_long(index) {
            return None;
        }
        at = below;
    }
    Some(at)
}
