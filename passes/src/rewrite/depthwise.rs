//! Depthwise convolutions over images whose channels lie together.
//!
//! Where tokens are seen as an image, as between the layers of a vision transformer, the channels of a pixel are neighbours in memory. A loop along the
//! pixels of a channel would then read every element from a cache line of its own. With the channels of the result last, and of the weights, lanes go along
//! the channels, of which all that is read and stored are neighbours.

use smallvec::SmallVec;
use tlc_ir::graph::infer::flat_index;
use tlc_ir::graph::{Labels, Semiring};
use tlc_ir::index::VarId;
use tlc_ir::{Graph, NodeId, NodeKind};

use crate::access::{Index, Variables, is_long, is_source, repeats};
use crate::direct::has_overlaps;

/// The fewest channels that lanes go along.
const FEWEST_CHANNELS: i64 = 16;

/// How a depthwise convolution is computed.
pub(super) struct ChannelsLast {
    /// The order of its result's labels.
    pub(super) result: Labels,
    /// Which operand the weights are.
    pub(super) weights: usize,
    /// The order of their axes.
    pub(super) axes: SmallVec<[u8; 4]>,
}

/// The orders in which a depthwise convolution, or one of few channels a group, has the channels last, if those of its image lie together, and pixels do not.
pub(super) fn channels_last(graph: &Graph, id: NodeId) -> Option<ChannelsLast> {
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
    if extent(channels)?.as_const().is_none_or(|n| n < FEWEST_CHANNELS) || output.last() == Some(&channels) {
        return None;
    }
    let axis = of_image.iter().position(|&l| l == channels)?;
    if !walked_by(graph, image, axis)? {
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
        axes: last(of_weights).iter().map(place).collect::<Option<_>>()?,
    })
}

/// Whether neighbours along an axis are neighbours in the memory of the value that an operand is a view of, and those along no other axis are.
fn walked_by(graph: &Graph, operand: NodeId, axis: usize) -> Option<bool> {
    let shape = &graph.ty(operand).shape;
    let mut vars = Variables::new(graph);
    let mut index: Index = shape.iter().map(|d| vars.push(d.clone()).into()).collect();
    let mut at = operand;
    while let node = graph.node(at)
        && let NodeKind::View(view) = &node.kind
        && !is_source(&node.kind)
    {
        let below = node.operands[0];
        index = view
            .operand_index(&graph.ty(below).shape, &node.ty.shape, &index, &vars)
            .index;
        if is_long(&index) {
            return None;
        }
        at = below;
    }
    let flat = flat_index(&index, &graph.ty(at).shape).simplify(&vars);
    let is_one = |axis: usize| {
        let affine = flat.affine_in(VarId(axis as u32));
        affine.is_some_and(|(stride, _)| stride.is(1))
    };
    Some((0..shape.len()).all(|a| shape[a].is(1) || is_one(a) == (a == axis)))
}
