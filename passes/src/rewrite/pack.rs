//! Brings contractions into forms that the library multiplies well.
//!
//! An operand whose summed axes walk it with several strides, and which the library does not pack itself (see
//! [`Strides`](tlc_ir::plan::Strides)), is copied once in the order of the product. A result whose rows and columns are interleaved
//! is computed with each together, and permuted behind the product, where its users read it through the view.
//!
//! Weights of convolutions that kernels compute from their windows are copied in blocks of channels (`crate::direct`), without those that
//! meet nothing but padding (`taps.rs`).

use rustc_hash::FxHashMap;
use smallvec::{SmallVec, smallvec};
use tlc_ir::graph::{GraphError, Labels, Shape, View};
use tlc_ir::index::IndexExpr;
use tlc_ir::target::Emitter;
use tlc_ir::{Graph, Node, NodeId, NodeKind};

use super::channels_together::{Known, channels_last, copied_below_padding, padded_channels, padded_in_order};
use super::panels::{Budget, Fixed, Layouts, laid_out};
use super::sink_layout::add_canonical;
use super::taps::{Shortened, joined, shortened};
use super::{Context, Failure, Pass, Rebuilder, few_bits};
use crate::contraction::{is_library_of_words, operands_to_pack, result_order, weights_order};
use crate::direct::{WeightBlocks, has_overlaps, is_word_product, weight_blocks};
use crate::weight_gradient::weight_gradient;

/// Times as many bytes of weights are a block where rows are divided: rows of their own save more than it costs that the cache is the weights'.
const DIVIDED: i64 = 2;

/// Bytes from channel to channel of an image that share a set of the first-level cache, and multiples of them.
const ALIASED: i64 = 4096;
/// The least bytes of an image of which the second-level cache cannot hold what shares its sets.
const MANY_CHANNELS: i64 = 1 << 20;

/// Operands of products copied so that their summed axes lie together, or constant ones so that they are never copied again.
pub struct Pack;

impl Pass for Pack {
    fn name(&self) -> &'static str {
        "pack"
    }

    fn run(&self, graph: &Graph, context: &mut Context<'_>) -> Result<Graph, Failure> {
        let layouts = if context.inside_loop {
            Layouts::NONE
        } else {
            context.layouts
        };
        let block_bytes = (!context.inside_loop).then_some(context.weight_block_bytes);
        Ok(run(graph, layouts, context.tiles, block_bytes)?)
    }
}

/// Inserts the copies, of constants as `layouts` say. `emitter` is the code generator
/// that computes convolutions from their windows, for which their weights are laid out if `block_bytes` are known, the most of a block of
/// channels ([`tlc_ir::target::Cpu::weight_block_bytes`]).
///
/// # Errors
/// Never for a verified graph.
pub fn run(
    graph: &Graph,
    layouts: Layouts,
    emitter: Option<&Emitter>,
    block_bytes: Option<i64>,
) -> Result<Graph, GraphError> {
    let tiles = emitter.zip(block_bytes);
    let (fixed, mut budget) = (Fixed::constants(graph), Budget::default());
    let mut known = Known::of(graph);
    let (mut apart, mut ordered_images) = (FxHashMap::default(), FxHashMap::default());
    super::rebuild(graph, &mut |re, id, node, operands| {
        let NodeKind::Einsum { inputs, output, .. } = &node.kind else {
            return re.keep(node, operands);
        };
        if layouts.panel_elements > 0
            && !fixed.contains(id)
            && let Some(new) = few_bits::laid_out(re, graph, (id, node), operands, (&fixed, &mut budget))?
        {
            return Ok(new);
        }
        let turned = windows_to_copy(graph, id, node, layouts, &fixed);
        if turned.is_none()
            && let Some(new) = laid_out(re, graph, (id, node), operands, layouts, (&fixed, &mut budget))?
        {
            return Ok(new);
        }
        // What the library multiplies by the processor's matrix instructions no other kernel does as fast.
        let tiles = tiles.filter(|_| !is_library_of_words(graph, id, layouts.products));
        let parts = tiles.map_or_else(SmallVec::new, |_| shortened(graph, node));
        // Of several parts the one with most left of its windows.
        let left = parts.iter().map(Shortened::left).max().unwrap_or([1, 1]);
        let times = if parts.len() > 1 { DIVIDED } else { 1 };
        let order = (layouts.panel_elements > 0).then(|| weights_order(graph, id)).flatten();
        let near = tiles.filter(|_| !order.as_ref().is_some_and(|o| o.far));
        if let Some(blocks) = near.and_then(|(e, bytes)| weight_blocks(graph, id, e, bytes.saturating_mul(times), left))
            && !fixed.contains(id)
            && (turned.is_some() || !blocks.channels_last)
            && match fixed.contains(node.operands[blocks.operand]) {
                true => (0..parts.len().max(1)).all(|_| budget.take(graph, node.operands[blocks.operand])),
                false => blocks.many && blocks.fill == 0,
            }
        {
            let mut of_part = |re: &mut Rebuilder, mut operands: Vec<NodeId>| {
                let image = 1 - blocks.operand;
                operands[image] = match (padded_channels(graph, node, image, &known), blocks.many) {
                    (Some(channels), _) => padded_in_order(re, operands[image], channels)?,
                    (None, true) => {
                        let windows = in_own_order(re, operands[image], &mut ordered_images)?;
                        channels_apart(re, windows, &mut apart)?
                    }
                    (None, false) => side_by_side(re, operands[image])?,
                };
                direct(re, node, &operands, &blocks)
            };
            if parts.is_empty() {
                return of_part(re, operands.to_vec());
            }
            let mut sums: SmallVec<[NodeId; 1]> = SmallVec::new();
            for part in &parts {
                let operands = part.operands(re, operands)?;
                sums.push(of_part(re, operands)?);
            }
            return match parts[0].divided_axis() {
                Some(axis) if sums.len() > 1 => joined(re, &sums, axis),
                _ => Ok(sums[0]),
            };
        }
        if let Some((k, order)) = turned {
            let mut values = operands.to_vec();
            let back = inverse(&order);
            for kind in [
                NodeKind::View(View::Permute(order)),
                NodeKind::Copy,
                NodeKind::View(View::Permute(back)),
            ] {
                values[k] = re.add(kind, &[values[k]])?;
            }
            return match laid_out(re, graph, (id, node), &values, layouts, (&fixed, &mut budget))? {
                Some(new) => Ok(new),
                None => re.keep(node, &values),
            };
        }
        if let Some(order) = tiles.and_then(|_| channels_last(graph, id, &known)) {
            let (mut labels, mut values) = (inputs.to_vec(), operands.to_vec());
            let weights = order.weights;
            let axes = order.of_weights.iter();
            labels[weights] = axes.map(|&a| inputs[weights][usize::from(a)]).collect();
            let view = re.add(
                NodeKind::View(View::Permute(order.of_weights.clone())),
                &[values[weights]],
            )?;
            values[weights] = re.add(NodeKind::Copy, &[view])?;
            values[1 - weights] = padded_in_order(re, values[1 - weights], order.of_image)?;
            known.is_ordered(id, output, &order.result);
            return in_order(re, &node.kind, output, labels, &values, order.result);
        }
        // A kernel sums it from where its operands lie.
        if let Some(Ok(_)) = emitter.and_then(|e| weight_gradient(graph, id, e, 1)) {
            return re.keep(node, operands);
        }
        let mut own: SmallVec<[NodeId; 2]> = SmallVec::new();
        for (k, &operand) in operands.iter().enumerate() {
            let library = layouts.panel_elements > 0;
            own.push(
                match library.then(|| padded_channels(graph, node, k, &known)).flatten() {
                    Some(channels) => copied_below_padding(re, operand, channels)?,
                    None => in_own_order(re, operand, &mut ordered_images)?,
                },
            );
        }
        let operands = &own[..];
        let ordered = result_order(graph, id, layouts.products);
        let mut pack = operands_to_pack(graph, id, ordered.as_ref(), layouts.products);
        // A sum that is too long for a kernel, and would not be without what is padding: the library reads the image itself.
        if ordered.is_none()
            && pack.is_empty()
            && !fixed.contains(id)
            && let Some((e, bytes)) = tiles
            && let Some(order) = order
            && weight_blocks(graph, id, e, bytes, [1, order.elements]).is_some()
            && budget.take(graph, node.operands[order.operand])
        {
            pack.push((order.operand, order.axes));
        }
        if pack.is_empty() && ordered.is_none() {
            return re.keep(node, operands);
        }
        let (mut labels, mut values): (Vec<Labels>, Vec<_>) = (inputs.to_vec(), operands.to_vec());
        for (k, order) in pack {
            labels[k] = order.iter().map(|&a| inputs[k][a as usize]).collect();
            let view = re.add(NodeKind::View(View::Permute(order)), &[values[k]])?;
            values[k] = re.add(NodeKind::Copy, &[view])?;
        }
        match ordered {
            Some(ordered) => in_order(re, &node.kind, output, labels, &values, ordered),
            None => add_canonical(re, &node.kind, labels, output.clone(), &values),
        }
    })
}

/// The order of axes that undoes another one.
pub(super) fn inverse(order: &[u8]) -> SmallVec<[u8; 4]> {
    let mut back: SmallVec<[u8; 4]> = smallvec![0; order.len()];
    order
        .iter()
        .enumerate()
        .for_each(|(i, &a)| back[usize::from(a)] = i as u8);
    back
}

/// An einsum whose axes are computed in another order, as it was.
fn in_order(
    re: &mut Rebuilder,
    kind: &NodeKind,
    output: &Labels,
    inputs: Vec<Labels>,
    operands: &[NodeId],
    order: Labels,
) -> Result<NodeId, GraphError> {
    if order == *output {
        return add_canonical(re, kind, inputs, order, operands);
    }
    let place = |l: &u16| order.iter().position(|x| x == l).expect("the same labels") as u8;
    let back = output.iter().map(place).collect();
    let sum = add_canonical(re, kind, inputs, order, operands)?;
    re.add(NodeKind::View(View::Permute(back)), &[sum])
}

/// The windows that a product with a fixed operand multiplies, where that has the last axis of the result, and which the library does not multiply as they lie,
/// with the axis order of a copy that it does.
fn windows_to_copy(
    graph: &Graph,
    id: NodeId,
    node: &Node,
    layouts: Layouts,
    fixed: &Fixed,
) -> Option<(usize, SmallVec<[u8; 4]>)> {
    let (NodeKind::Einsum { inputs, output, .. }, [_, _]) = (&node.kind, &node.operands[..]) else {
        return None;
    };
    let windows = (0..2).find(|&k| has_overlaps(graph, node.operands[k]))?;
    let others = inputs[1 - windows].contains(output.last()?) && fixed.contains(node.operands[1 - windows]);
    // In another order of its axes the library may multiply them as they lie.
    if !others || layouts.panel_elements == 0 || result_order(graph, id, layouts.products).is_some() {
        return None;
    }
    let copies = operands_to_pack(graph, id, None, layouts.products);
    copies.into_iter().find(|(k, _)| *k == windows)
}

/// Windows of one element that lie steps apart, of a copy of those elements alone: a kernel then uses whole cache lines of them.
fn side_by_side(re: &mut Rebuilder, windows: NodeId) -> Result<NodeId, GraphError> {
    let (mut image, mut axes) = (windows, Vec::new());
    while let NodeKind::View(View::Window { axis, size, stride, .. }) = &re.graph.node(image).kind
        && size.is(1)
    {
        let extent = re.graph.ty(image).shape[usize::from(*axis)].clone();
        axes.push((*axis, *stride, extent));
        image = re.graph.node(image).operands[0];
    }
    let mut size = re.graph.ty(image).shape.clone();
    if axes.iter().any(|a| usize::from(a.0) >= size.len()) || axes.iter().all(|a| a.1 == 1) {
        return Ok(windows);
    }
    let start = size.iter().map(|_| IndexExpr::ZERO).collect();
    let mut step: Box<[i64]> = size.iter().map(|_| 1).collect();
    for (axis, stride, extent) in &axes {
        let axis = usize::from(*axis);
        (step[axis], size[axis]) = (*stride, extent.clone());
    }
    let size = size.into_boxed_slice();
    let kept = re.add(NodeKind::View(View::Slice { start, step, size }), &[image])?;
    let copy = re.add(NodeKind::Copy, &[kept])?;
    axes.iter().rev().try_fold(copy, |at, &(axis, ..)| {
        let view = View::Window {
            axis,
            size: IndexExpr::ONE,
            stride: 1,
            dilation: 1,
        };
        re.add(NodeKind::View(view), &[at])
    })
}

/// The image that windows slide over, and the views that they are, outermost first.
fn image_of(re: &Rebuilder, windows: NodeId) -> (NodeId, Vec<NodeKind>) {
    let (mut image, mut slid) = (windows, Vec::new());
    while let NodeKind::View(View::Window { .. }) = &re.graph.node(image).kind {
        slid.push(re.graph.node(image).kind.clone());
        image = re.graph.node(image).operands[0];
    }
    (image, slid)
}

/// Windows of [`image_of`] over another image.
fn slid_over(re: &mut Rebuilder, image: NodeId, slid: Vec<NodeKind>) -> Result<NodeId, GraphError> {
    slid.into_iter().rev().try_fold(image, |at, kind| re.add(kind, &[at]))
}

/// Windows of a padded image whose channels would lie a multiple of [`ALIASED`] apart, of one with another row of padding behind each channel.
///
/// A tile reads the same few lines of every channel. So far apart they share a set of the first-level cache, and a few sets of the second. With
/// 512 channels of 32 by 32 elements a convolution takes 1.25 times as long on Emerald Rapids. `apart` are images for which that was done.
fn channels_apart(
    re: &mut Rebuilder,
    windows: NodeId,
    apart: &mut FxHashMap<NodeId, NodeId>,
) -> Result<NodeId, GraphError> {
    let (image, slid) = image_of(re, windows);
    let (ty, padded) = (re.graph.ty(image), re.graph.node(image));
    let NodeKind::View(View::Pad {
        lo,
        hi,
        interior,
        value,
    }) = &padded.kind
    else {
        return Ok(windows);
    };
    let bytes = |of: &[IndexExpr]| {
        let element = ty.dtype.bytes() as i64;
        of.iter().try_fold(element, |n, e| n.checked_mul(e.as_const()?))
    };
    let (size, rank) = (ty.shape.clone(), ty.shape.len());
    let is_aliased = rank > 3
        && bytes(&size[rank - 2..]).is_some_and(|n| n > 0 && n % ALIASED == 0)
        && bytes(&size[rank - 3..]).is_some_and(|n| n >= MANY_CHANNELS);
    if !is_aliased {
        return Ok(windows);
    }
    let kept = match apart.get(&image) {
        Some(&kept) => kept,
        None => {
            let mut hi = hi.clone();
            hi[rank - 2] = hi[rank - 2].clone() + IndexExpr::ONE;
            let view = View::Pad {
                lo: lo.clone(),
                hi,
                interior: interior.clone(),
                value: *value,
            };
            let from = padded.operands[0];
            let higher = re.add(NodeKind::View(view), &[from])?;
            let start = size.iter().map(|_| IndexExpr::ZERO).collect();
            let step = size.iter().map(|_| 1).collect();
            let size = size.into_boxed_slice();
            let kept = re.add(NodeKind::View(View::Slice { start, step, size }), &[higher])?;
            apart.insert(image, kept);
            kept
        }
    };
    slid_over(re, kept, slid)
}

/// Windows of an image of which gathers have made another axis the first, as padding by reflection does, of a copy in the image's own order: what lies
/// side by side in it then does in the result as well. `copied` are images for which that was done.
fn in_own_order(
    re: &mut Rebuilder,
    windows: NodeId,
    copied: &mut FxHashMap<NodeId, NodeId>,
) -> Result<NodeId, GraphError> {
    let (image, slid) = image_of(re, windows);
    let node = re.graph.node(image);
    if slid.is_empty()
        || !matches!(node.kind, NodeKind::View(View::Permute(_)))
        || !matches!(re.graph.node(node.operands[0]).kind, NodeKind::Gather { .. })
    {
        return Ok(windows);
    }
    let copy = match copied.get(&image) {
        Some(&copy) => copy,
        None => {
            let copy = re.add(NodeKind::Copy, &[image])?;
            copied.insert(image, copy);
            copy
        }
    };
    slid_over(re, copy, slid)
}

/// A product of words with a fixed matrix, which is laid out in blocks of columns for the emitter; any other node as it is.
pub(super) fn words_in_blocks(
    re: &mut Rebuilder,
    graph: &Graph,
    (id, node): (NodeId, &Node),
    operands: &[NodeId],
    (emitter, block_bytes): (&Emitter, i64),
    (fixed, budget): (&Fixed, &mut Budget),
) -> Result<NodeId, GraphError> {
    if is_word_product(graph, id)
        && !fixed.contains(id)
        && let Some(blocks) = weight_blocks(graph, id, emitter, block_bytes, [1, 1])
        && fixed.contains(node.operands[blocks.operand])
        && budget.take(graph, node.operands[blocks.operand])
    {
        return direct(re, node, operands, &blocks);
    }
    re.keep(node, operands)
}

/// A convolution with its weights in blocks.
fn direct(re: &mut Rebuilder, node: &Node, operands: &[NodeId], blocks: &WeightBlocks) -> Result<NodeId, GraphError> {
    let NodeKind::Einsum { inputs, output, .. } = &node.kind else {
        return re.keep(node, operands);
    };
    let size = IndexExpr::Const(blocks.block);
    let k = blocks.operand;
    let labels = &inputs[k];
    let weights = filled(re, operands[k], labels, blocks)?;
    let shape = re.graph.ty(weights).shape.clone();
    // The axes of the operand with that of the channels as two, the number of the block and the place in it.
    let mut cut = Shape::new();
    let (mut number, mut places) = (0, Vec::new());
    for (&l, d) in labels.iter().zip(&shape) {
        if l == blocks.channels {
            number = cut.len() as u8;
            cut.push(IndexExpr::floor_div(d, &size));
        }
        places.push((l, cut.len() as u8));
        cut.push(if l == blocks.channels { size.clone() } else { d.clone() });
    }
    let axis = |l: &u16| {
        places
            .iter()
            .find(|p| p.0 == *l)
            .map(|p| p.1)
            .expect("a label of the weights")
    };
    let behind = blocks.summed.iter().chain([&blocks.channels]).map(axis);
    let groups = blocks.groups.iter().map(axis);
    let order: SmallVec<[u8; 4]> = groups.chain([number]).chain(behind).collect();
    let back = inverse(&order);
    let value = re.reshape(weights, &cut)?;
    let value = re.add(NodeKind::View(View::Permute(order)), &[value])?;
    let value = re.add(NodeKind::Copy, &[value])?;
    // They are read through views, so that the sum stays the one that its users know.
    let value = re.add(NodeKind::View(View::Permute(back)), &[value])?;
    let mut values = operands.to_vec();
    values[k] = re.reshape(value, &shape)?;
    let sum = re.add(node.kind.clone(), &values)?;
    if blocks.fill == 0 {
        return Ok(sum);
    }
    let mut size = re.graph.ty(sum).shape.clone();
    if let Some(axis) = output.iter().position(|l| *l == blocks.channels) {
        size[axis] = size[axis].clone() - IndexExpr::Const(blocks.fill);
    }
    let (start, step) = (
        size.iter().map(|_| IndexExpr::ZERO).collect(),
        size.iter().map(|_| 1).collect(),
    );
    let size = size.into_boxed_slice();
    re.add(NodeKind::View(View::Slice { start, step, size }), &[sum])
}

/// Weights with the zeros behind their channels that blocks are filled with.
fn filled(re: &mut Rebuilder, weights: NodeId, labels: &Labels, blocks: &WeightBlocks) -> Result<NodeId, GraphError> {
    if blocks.fill == 0 {
        return Ok(weights);
    }
    let lo: Shape = labels.iter().map(|_| IndexExpr::ZERO).collect();
    let more = |l: &u16| if *l == blocks.channels { blocks.fill } else { 0 };
    let hi: Shape = labels.iter().map(|l| IndexExpr::Const(more(l))).collect();
    let zero = re.graph.ty(weights).dtype.zero();
    re.padded(weights, lo, hi, zero)
}
