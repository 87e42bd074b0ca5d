//! Convolutions over images whose channels lie together in memory, as where tokens are seen as an image.
//!
//! A loop along the pixels of a channel would read every element of such an image from a cache line of its own. So padding that is stored is stored in the image's
//! order, and a kernel multiplies it as it lies. Of depthwise convolutions the result's channels come last as well, and the weights': lanes go along the
//! channels, of which all that is read and stored are neighbours.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use tlc_ir::graph::infer::flat_index;
use tlc_ir::graph::{GraphError, Labels, Semiring, Shape, View};
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

/// What is known of the values of a graph.
pub(super) struct Known {
    /// What uses each, and once more for each output that it is.
    users: Vec<SmallVec<[NodeId; 4]>>,
    /// The order of the axes in which some are computed.
    ordered: FxHashMap<NodeId, SmallVec<[u8; 4]>>,
}

impl Known {
    /// What is known of a graph before anything is computed in another order.
    pub(super) fn of(graph: &Graph) -> Known {
        let mut users = vec![SmallVec::new(); graph.len()];
        for (id, node) in graph.nodes() {
            node.operands.iter().for_each(|o| users[o.index()].push(id));
        }
        for output in graph.outputs() {
            users[output.node.index()].push(output.node);
        }
        let ordered = FxHashMap::default();
        Known { users, ordered }
    }

    /// Notes in which order the axes of a result are computed.
    pub(super) fn is_ordered(&mut self, id: NodeId, output: &Labels, result: &Labels) {
        let axis = |l: &u16| output.iter().position(|x| x == l).map(|axis| axis as u8);
        if let Some(order) = result.iter().map(axis).collect() {
            self.ordered.insert(id, order);
        }
    }

    /// Whether nothing uses a value but one other, or those.
    fn is_for(&self, at: NodeId, those: &[NodeId]) -> bool {
        let users = &self.users[at.index()];
        users.len() <= 1 || users.iter().all(|u| those.contains(u))
    }

    /// Where an element lies in the memory of a value.
    fn flat(&self, graph: &Graph, at: NodeId, index: &Index) -> IndexExpr {
        let shape = &graph.ty(at).shape;
        let Some(order) = self.ordered.get(&at) else {
            return flat_index(index, shape);
        };
        let axes = || order.iter().map(|&a| usize::from(a));
        let index: Index = axes().map(|a| index[a].clone()).collect();
        flat_index(&index, &axes().map(|a| shape[a].clone()).collect::<Shape>())
    }
}

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
pub(super) fn padded_channels(graph: &Graph, node: &Node, operand: usize, known: &Known) -> Option<usize> {
    let NodeKind::Einsum { inputs, output, .. } = &node.kind else {
        return None;
    };
    let windows = node.operands[operand];
    let axis = has_overlaps(graph, windows)
        .then(|| channels_together(graph, windows, known))
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
pub(super) fn channels_last(graph: &Graph, id: NodeId, known: &Known) -> Option<ChannelsLast> {
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
    if channels_together(graph, image, known)? != axis {
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
fn channels_together(graph: &Graph, operand: NodeId, known: &Known) -> Option<usize> {
    let shape = &graph.ty(operand).shape;
    let mut vars = Variables::new(graph);
    let mut index: Index = shape.iter().map(|d| vars.push(d.clone()).into()).collect();
    let mut at = operand;
    // What is computed element by element, and is not for it alone if others use it than what is computed of it.
    let mut computed: SmallVec<[NodeId; 16]> = SmallVec::new();
    for _ in 0..MOST_BELOW {
        at = below_views(graph, at, (known, &computed), &mut index, &vars)?;
        if known.is_for(at, &computed)
            && let Some(image) = gathered_from(graph, at, &mut index, &mut vars)
        {
            at = image;
            continue;
        }
        let flat = known.flat(graph, at, &index).simplify(&vars);
        let mut axes = (0..shape.len()).filter(|&axis| {
            let affine = flat.affine_in(VarId(axis as u32));
            !shape[axis].is(1) && affine.is_some_and(|(stride, _)| stride.is(1)) && !is_place(graph, operand, axis)
        });
        if let (Some(axis), None) = (axes.next(), axes.next()) {
            return Some(axis);
        }
        let node = graph.node(at);
        if !matches!(node.kind, NodeKind::Map(_)) || !known.is_for(at, &computed) {
            return None;
        }
        computed.push(at);
        // What is repeated, as the numbers of a norm are, has no order of its own.
        let whole = |o: &NodeId| {
            let mut below = *o;
            while let NodeKind::View(_) = graph.node(below).kind {
                below = graph.node(below).operands[0];
            }
            graph.ty(below).elements() == node.ty.elements()
        };
        let mut operands = node.operands.iter().copied().filter(whole);
        // Of several the one that is computed last: the others may be what that is computed of.
        at = operands.by_ref().max()?;
    }
    None
}

/// What a gather finds its elements in, as where an image is padded with its own: computed for one value alone, it has no order of its own either.
fn gathered_from(graph: &Graph, at: NodeId, index: &mut Index, vars: &mut Variables<'_>) -> Option<NodeId> {
    let node = graph.node(at);
    let NodeKind::Gather { axes } = &node.kind else {
        return None;
    };
    let image = node.operands[0];
    let shape = &graph.ty(image).shape;
    let others: Index = index[index.len() + axes.len() - shape.len()..].into();
    let mut others = others.into_iter();
    let place = |(axis, extent): (usize, &IndexExpr)| match axes.contains(&(axis as u8)) {
        true => vars.push(extent.clone()).into(),
        false => others.next().unwrap_or(IndexExpr::ZERO),
    };
    *index = shape.iter().enumerate().map(place).collect();
    Some(image)
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
    (known, computed): (&Known, &[NodeId]),
    index: &mut Index,
    vars: &Variables<'_>,
) -> Option<NodeId> {
    let mut at = operand;
    while let node = graph.node(at)
        && let NodeKind::View(view) = &node.kind
        && !is_source(&node.kind)
        && (at == operand || known.is_for(at, computed))
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
