//! Direct convolutions: sums over windows that a kernel computes from where the windows lie, and no matrix product by the library.
//!
//! Such an einsum multiplies windows of an image by weights. The weights are laid out in blocks of channels of the result, channels
//! last, so that neighbouring channels fill lanes: once if they never change, and else in every call, if windows have several elements.
//! A tile of neighbouring pixels by channels stays in registers for the whole sum (`schedule/direct.rs`). Whether a convolution is
//! direct is decided once, where its weights are laid out (`rewrite/pack.rs`); from then on it is its weights' layout that says so.
//!
//! The decision depends on the weights and the emitter alone, and on no size of the image: results are the same bits whatever is
//! known of these sizes. The exceptions are windows of one element over images of one pixel, which are matrix products, over large images, and over
//! those of unknown size where tiles are narrow, which are the library's as long as it sums in the same order, and sums so long that they are the library's but for the elements of a window that are padding for all results of an
//! image of known size: what is left of them is shorter, and added up in the order of a shorter sum. (Where sizes are unknown the library leaves out what is
//! padding of such sums if windows are dilated, and of sums that are not quite as long if they are dilated far, and adds up one element of all windows
//! after another: `contraction/windowed.rs`.)

use tlc_ir::graph::{Labels, Semiring, View};
use tlc_ir::index::IndexExpr;
use tlc_ir::target::{Emitter, LIBRARY_BLOCK_BYTES};
use tlc_ir::{DType, Graph, NodeId, NodeKind};

use crate::access::repeats;

/// The fewest accumulators of a tile: a multiply-add takes as many cycles as about this many of them take to start.
pub(crate) const FEWEST_ACCUMULATORS: i64 = 12;
/// As [`FEWEST_ACCUMULATORS`], of words: an addition of integers, which is all that an accumulator waits for, is done sooner.
const FEWEST_ACCUMULATORS_OF_WORDS: i64 = 8;
/// The most pixels of a tile. Images have widths of this, and half of it, times powers of two.
const MOST_PIXELS: i64 = 14;
/// The shortest sum of floats, that over a window of 3x3 of one channel: turning the tile and storing it takes as long as more products of each
/// result, but so does what the library does with windows.
const SHORTEST_SUM: i64 = 9;

/// The shortest sum of words, which nothing else multiplies by its instructions.
const SHORTEST_SUM_OF_WORDS: i64 = 4;
/// Of so many channels one may be zeros that fill a vector.
const MOST_FILL: i64 = 24;
/// The longest sum of words that takes less time than what is done with its result.
const SHORT_SUM_OF_WORDS: i64 = 8;

/// The longest sum of floats, one over windows of 3x3 of a colour image, that takes less time than to store its result. What is stored are the pixels of
/// one channel after another, and of channels that lie a multiple of 4 KiB apart, as those of most images do whose sides are powers of two, the
/// first-level cache holds few lines: each should be stored at once, by a tile of as many pixels as a vector has lanes. 128x128 pixels of 32 channels,
/// from 1: 326 us, and 79 so; 224x224 of 64, from 3: 1740 and 882 us (Zen 5).
const SHORT_SUM: i64 = 27;

/// The longest sum that the library adds up one product after another, as a tile does.
const LIBRARY_BLOCK: i64 = (LIBRARY_BLOCK_BYTES / DType::F32.bytes()) as i64;
/// The most pixels of an image whose windows of one element a kernel multiplies: the library has vectors of pixels, of which small
/// images fill few.
const MOST_PRODUCT_PIXELS: i64 = 400;

/// A sum over windows.
struct Windows<'g> {
    /// Which operand the weights are.
    weights: usize,
    inputs: &'g [Labels],
    output: &'g Labels,
    /// The axis of the result that has its channels.
    channels: usize,
    /// The label of groups, if there are several.
    groups: Option<u16>,
}

impl Windows<'_> {
    /// Whether the channels of a result lie together: a tile is stored as it is, and not turned.
    fn channels_last(&self) -> bool {
        self.channels + 1 == self.output.len()
    }

    /// Pixels of an image of the result, whose shape that is.
    fn pixels(&self, shape: &[IndexExpr]) -> IndexExpr {
        let first = 1 + usize::from(self.groups.is_some());
        let axes = shape.iter().enumerate().skip(first);
        IndexExpr::product(axes.filter(|(axis, _)| *axis != self.channels).map(|(_, d)| d))
    }
}

/// The sum over windows that an einsum is, whose result has images, groups if there are several, channels, rows and columns, or images, pixels along one axis
/// or two, and channels.
fn windows(graph: &Graph, id: NodeId) -> Option<Windows<'_>> {
    let node = graph.node(id);
    let NodeKind::Einsum {
        inputs,
        output,
        semiring: semiring @ (Semiring::AddMul | Semiring::AddDot4),
        accumulator,
        dtype,
    } = &node.kind
    else {
        return None;
    };
    let [a, b] = node.operands[..] else { return None };
    let multiplied = multiplied(*semiring);
    let other = |d: &DType| *d != multiplied;
    if !matches!(output.len(), 3..=5)
        || [graph.ty(a).dtype, graph.ty(b).dtype, *accumulator, *dtype]
            .iter()
            .any(other)
    {
        return None;
    }
    let weights = match (has_windows(graph, a), has_windows(graph, b)) {
        (true, false) => 1,
        (false, true) => 0,
        _ => return None,
    };
    let (of_weights, of_image) = (&inputs[weights], &inputs[1 - weights]);
    if repeats(of_weights) || repeats(of_image) {
        return None;
    }
    // What both operands have are groups.
    let of_result = |channels: usize, groups: bool| {
        output.iter().enumerate().all(|(i, l)| match i == channels {
            true => of_weights.contains(l) && !of_image.contains(l),
            false => of_image.contains(l) && of_weights.contains(l) == (i == 1 && groups),
        })
    };
    let last = output.len() - 1;
    let (channels, groups) = match output.len() {
        4 if of_result(1, false) => (1, None),
        5 if of_result(2, true) => (2, Some(output[1])),
        3 | 4 if of_result(last, false) && has_overlaps(graph, node.operands[1 - weights]) => (last, None),
        _ => return None,
    };
    let summed = |own: &Labels, other: &Labels| own.iter().all(|l| output.contains(l) || other.contains(l));
    (summed(of_weights, of_image) && summed(of_image, of_weights)).then_some(Windows {
        weights,
        inputs,
        output,
        channels,
        groups,
    })
}

/// The dtype of which tiles are that sum up so: words where they are bytes', and else floats.
fn multiplied(semiring: Semiring) -> DType {
    match semiring {
        Semiring::AddDot4 => DType::I32,
        _ => DType::F32,
    }
}

/// A product of words with a matrix of weights, or each of a stack with its own.
struct WordProduct {
    /// The label of the weights' columns.
    columns: u16,
    /// The one that is summed.
    summed: u16,
    /// That of a stack.
    stack: Option<u16>,
    /// How many axes the weights have.
    rank: usize,
}

/// The product of words with a matrix, the second operand, or with a stack of matrices along the first axis of the result, that an einsum is.
fn word_product(graph: &Graph, id: NodeId) -> Option<WordProduct> {
    let node = graph.node(id);
    let NodeKind::Einsum {
        inputs,
        output,
        semiring: Semiring::AddDot4,
        ..
    } = &node.kind
    else {
        return None;
    };
    let [image, weights] = &inputs[..] else { return None };
    if node.operands.iter().any(|o| has_windows(graph, *o)) || repeats(image) {
        return None;
    }
    let (matrix, stack) = match weights[..] {
        [stack, ref matrix @ ..] if matrix.len() == 2 => (matrix, Some(stack)),
        ref matrix => (matrix, None),
    };
    let (columns, summed) = match *matrix {
        [k, n] if !output.contains(&k) => (n, k),
        [n, k] if !output.contains(&k) => (n, k),
        _ => return None,
    };
    // The columns are the last axis: neighbours in lanes are stored as neighbours.
    let fits = output.last() == Some(&columns) && !image.contains(&columns) && image.contains(&summed);
    let stacked = stack.is_none_or(|l| output.first() == Some(&l) && image.contains(&l));
    (fits && stacked).then_some(WordProduct {
        columns,
        summed,
        stack,
        rank: weights.len(),
    })
}

/// Whether an einsum is a product of words with a matrix, the second operand.
pub(crate) fn is_word_product(graph: &Graph, id: NodeId) -> bool {
    word_product(graph, id).is_some()
}

/// The sizes of the sliding windows that an operand is made of.
fn window_sizes(graph: &Graph, operand: NodeId) -> impl Iterator<Item = &IndexExpr> {
    let below = move |at: &NodeId| match &graph.node(*at).kind {
        NodeKind::View(_) => graph.node(*at).operands.first().copied(),
        _ => None,
    };
    std::iter::successors(Some(operand), below).filter_map(|at| match &graph.node(at).kind {
        NodeKind::View(View::Window { size, .. }) => Some(size),
        _ => None,
    })
}

/// Whether an operand is made of sliding windows, of one element or more.
pub(crate) fn has_windows(graph: &Graph, operand: NodeId) -> bool {
    window_sizes(graph, operand).next().is_some()
}

/// Whether an operand is made of sliding windows that have elements in common.
pub(crate) fn has_overlaps(graph: &Graph, operand: NodeId) -> bool {
    window_sizes(graph, operand).any(|size| !size.is(1))
}

/// The fewest accumulators of a tile of a dtype.
pub(crate) fn fewest_accumulators(dtype: DType) -> i64 {
    match dtype {
        DType::I32 => FEWEST_ACCUMULATORS_OF_WORDS,
        _ => FEWEST_ACCUMULATORS,
    }
}

/// Pixels and channels of the tiles that an emitter keeps in registers for so many channels, which they cut without a rest; those of
/// most channels first.
pub fn tiles(emitter: &Emitter, dtype: DType, channels: i64) -> impl Iterator<Item = [i64; 2]> {
    let lanes = emitter.tile(dtype, 1).map(|t| t.lanes);
    let fewest = fewest_accumulators(dtype);
    let of = move |(vectors, lanes): (i64, i64)| {
        let columns = vectors * lanes;
        // Of one vector, as many as a vector of them has.
        let most = if vectors == 1 {
            MOST_PIXELS.max(lanes)
        } else {
            MOST_PIXELS
        };
        let rows = emitter.tile(dtype, columns)?.rows.min(most);
        (channels % columns == 0 && rows * vectors >= fewest).then_some([rows, columns])
    };
    [2, 1].into_iter().zip(lanes.into_iter().cycle()).filter_map(of)
}

/// How the weights of a convolution are laid out for a kernel to compute it directly.
pub struct WeightBlocks {
    /// Which operand they are.
    pub operand: usize,
    /// The label of the result's channels, which is cut into blocks.
    pub channels: u16,
    /// Channels of a block.
    pub block: i64,
    /// Channels of zeros behind the others, so that blocks have no rest.
    pub fill: i64,
    /// Whether a window has several elements: weights that change from call to call are then laid out in each.
    pub many: bool,
    /// The label of groups, whose weights lie apart.
    pub groups: Option<u16>,
    /// Whether it is a sum over windows whose channels lie together in the result.
    pub channels_last: bool,
    /// The labels between the number of the block and the place in it: those summed, in the order of the loops over them
    /// ([`space`](crate::access::space)).
    pub summed: Labels,
}

/// The layout of a convolution's weights, if a kernel of that emitter is to compute it directly.
///
/// The block that one kernel reads again and again has at most `block_bytes`. Of all elements of a window so many are `left` as are not
/// padding for all results (`[left, all]`).
pub fn weight_blocks(
    graph: &Graph,
    id: NodeId,
    emitter: &Emitter,
    block_bytes: i64,
    [left, all]: [i64; 2],
) -> Option<WeightBlocks> {
    if let Some(p) = word_product(graph, id) {
        let columns = graph.ty(id).shape.last()?.as_const()?;
        let [_, block] = tiles(emitter, DType::I32, columns).next()?;
        return Some(WeightBlocks {
            operand: 1,
            channels: p.columns,
            block,
            fill: 0,
            many: true,
            groups: p.stack,
            channels_last: false,
            summed: [p.summed].into_iter().collect(),
        });
    }
    let w = windows(graph, id)?;
    let dtype = graph.ty(id).dtype;
    let words = dtype == DType::I32;
    let (of_weights, of_image) = (&w.inputs[w.weights], &w.inputs[1 - w.weights]);
    let (channels, groups) = (w.output[w.channels], w.groups);
    let shape = &graph.ty(graph.node(id).operands[w.weights]).shape;
    let summed = of_weights.iter().zip(shape).filter(|(l, _)| !w.output.contains(l));
    let length = summed
        .into_iter()
        .try_fold(1i64, |n, (_, d)| n.checked_mul(d.as_const()?))?;
    let row_bytes = (length / all * left).saturating_mul(dtype.bytes() as i64);
    // One element of the image for each product: the library multiplies large images as fast, to the same bits where it has one block.
    let elements = window_sizes(graph, graph.node(id).operands[1 - w.weights]).all(|size| size.is(1));
    let of_result = &graph.ty(id).shape;
    let pixels = w.pixels(of_result).as_const();
    let large = pixels.is_some_and(|n| n > MOST_PRODUCT_PIXELS);
    // Images of one pixel, whatever their number, are the rows of a matrix.
    if !words && elements && groups.is_none() && pixels == Some(1) {
        return None;
    }
    let shortest = if words { SHORTEST_SUM_OF_WORDS } else { SHORTEST_SUM };
    let fits = |[_, block]: &[i64; 2]| length >= shortest && row_bytes.saturating_mul(*block) <= block_bytes;
    let all_channels = of_result[w.channels].as_const()?;
    let fill = match !words && groups.is_none() {
        true => channels_to_fill(emitter, all_channels),
        false => 0,
    };
    let mut tiles = tiles(emitter, dtype, all_channels + fill).filter(fits);
    let [_, mut block] = tiles.next()?;
    // What is behind a short sum goes along the pixels, of which a tile of one vector of channels has a whole vector.
    let short = match words {
        true => length <= SHORT_SUM_OF_WORDS,
        false => length <= SHORT_SUM && emitter.lanes(dtype) >= MOST_PIXELS && !w.channels_last(),
    };
    if short {
        block = tiles.next().map_or(block, |[_, narrow]| narrow);
    }
    // An image of unknown size may end in tiles of few pixels, which of one vector each keep few additions under way. Where registers hold
    // more pixels of one vector than of two, that is a poor tile to begin with.
    let lanes = emitter.lanes(dtype);
    let narrow = block == lanes && emitter.tile(dtype, 2 * lanes)?.rows < MOST_PIXELS;
    if !words && elements && length <= LIBRARY_BLOCK && (large || pixels.is_none() && narrow) {
        return None;
    }
    let mut summed: Labels = (of_image.iter().copied())
        .filter(|l| of_weights.contains(l) && !w.output.contains(l))
        .collect();
    summed.sort_unstable();
    Some(WeightBlocks {
        operand: w.weights,
        channels,
        block,
        fill,
        many: !elements,
        groups,
        channels_last: w.channels_last(),
        summed,
    })
}

/// Channels that so many lack to fill vectors, where that are few beside them; tiles of two vectors first.
fn channels_to_fill(emitter: &Emitter, channels: i64) -> i64 {
    let lanes = emitter.lanes(DType::F32);
    if lanes < 2 || channels % lanes == 0 {
        return 0;
    }
    let lacking = [2 * lanes, lanes].map(|n| (channels + n - 1) / n * n - channels);
    lacking.into_iter().find(|n| n * MOST_FILL <= channels).unwrap_or(0)
}

/// The image whose windows a direct convolution multiplies; `None` if the einsum is none.
pub fn direct_image(graph: &Graph, id: NodeId) -> Option<NodeId> {
    let product = word_product(graph, id);
    let of_words = product.is_some();
    let (of_weights, rank) = match product {
        Some(p) => (1, p.rank),
        None => windows(graph, id).map(|w| (w.weights, w.inputs[w.weights].len()))?,
    };
    let operands = &graph.node(id).operands;
    let below = |at: NodeId| graph.node(at).operands.first().copied();
    let weights = graph.node(operands[of_weights]);
    let NodeKind::View(View::Reshape(_)) = weights.kind else {
        return None;
    };
    let order = weights.operands[0];
    let copy = below(order).filter(|_| matches!(graph.node(order).kind, NodeKind::View(View::Permute(_))))?;
    let ranks = graph.ty(copy).shape.len() == rank + 1;
    // What a loop's body multiplies was copied outside.
    let stored = match graph.node(copy).kind {
        NodeKind::Copy => true,
        NodeKind::Input { .. } => of_words,
        _ => false,
    };
    if !ranks || !stored {
        return None;
    }
    let mut at = operands[1 - of_weights];
    while let NodeKind::View(view) = &graph.node(at).kind
        && view.fill().is_none()
    {
        at = graph.node(at).operands[0];
    }
    Some(at)
}
