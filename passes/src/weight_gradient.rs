//! Gradients of convolutions by their weights: sums over all positions of windows, which a kernel of the compiler's own computes.
//!
//! Such an einsum multiplies a gradient, which has the channels of the convolution's result, by windows of an image, and sums over
//! images and positions: what is left are channels by the elements of a window. As a product of a library the windows would be
//! packed a few elements at a time, each element of the image as often as it is in a window. Here nothing of the image is packed.
//! Channels of the gradient are in lanes, so its pixels are turned, a block of them at a time; the windows' elements are a tile's
//! rows, each one element of the image for all lanes, wherever it lies: strides, dilations and padding make no difference
//! (`lower/weight_gradient.rs`).
//!
//! Whether an einsum has this form depends on the extents of its result, on what lies together in memory and on the emitter, and
//! on no extent that is summed: results are the same bits whatever is known of the images' sizes.

use std::fmt;

use tlc_ir::graph::{Labels, Semiring};
use tlc_ir::index::IndexExpr;
use tlc_ir::target::Emitter;
use tlc_ir::{DType, Graph, NodeId, NodeKind};

use crate::access::{label_count, repeats};
use crate::contraction::{Strided, strided};
use crate::direct::{FEWEST_ACCUMULATORS, has_windows};

/// Bytes of the sums that one parallel iteration adds up: they stay in the second-level cache beside the pixels.
const MOST_SUM_BYTES: i64 = 1 << 16;
/// The fewest rows of sums of a parallel iteration: turning a gradient's pixels takes as long as multiplying them by about five
/// elements, and each iteration turns those of its channels.
const FEWEST_ROWS: i64 = 64;

/// An axis that both operands or one of them and the result have.
#[derive(Clone, PartialEq, Debug)]
pub struct Axis {
    /// How long it is.
    pub extent: IndexExpr,
    /// Distance of neighbours in the gradient; 0 if it lacks the axis.
    pub in_gradient: IndexExpr,
    /// The same in the image.
    pub in_image: IndexExpr,
    /// The same in the result.
    pub in_result: IndexExpr,
}

/// A gradient by weights, and how its sums are computed.
#[derive(Clone, PartialEq, Debug)]
pub struct WeightGradient {
    /// The stored value that is the gradient, or of which it is a part, and the place of its first element.
    pub gradient: (NodeId, IndexExpr),
    /// The same of the image.
    pub image: (NodeId, IndexExpr),
    /// Axes that all three have: groups.
    pub groups: Vec<Axis>,
    /// The gradient's channels.
    pub channels: Axis,
    /// Elements of a vector.
    pub lanes: i64,
    /// Channels of a tile, whole vectors, which cut them without a rest.
    pub columns: i64,
    /// The image's own axes: its channels, and those through a window. The last ones are those that a tile has more of than one
    /// position.
    pub elements: Vec<Axis>,
    /// How many of the last of these a tile has as a whole.
    pub whole: usize,
    /// Positions that a tile has of the one before them, which they cut without a rest.
    pub part: i64,
    /// Axes that are summed one position after another: images.
    pub outer: Vec<Axis>,
    /// Axes above the pixels, outermost first, whose positions follow each other without gaps in the gradient: lines and planes.
    pub lines: Vec<Axis>,
    /// Neighbouring pixels of the gradient.
    pub pixels: Axis,
    /// Tiles of a parallel iteration.
    pub tiles: i64,
}

impl WeightGradient {
    /// Pixels of a block, which are turned and then multiplied by all elements: the block stays in the first-level cache. Of
    /// lines that are shorter a block has several. Sums of blocks are added up one after another.
    pub const BLOCK: i64 = 128;

    /// Rows of a tile: elements of windows.
    pub fn rows(&self) -> i64 {
        let whole = &self.elements[self.elements.len() - self.whole..];
        whole.iter().filter_map(|a| a.extent.as_const()).product::<i64>() * self.part
    }

    /// Axes of which a tile has one position, or a part of the last.
    pub fn outside(&self) -> &[Axis] {
        &self.elements[..self.elements.len() - self.whole]
    }

    /// Tiles of a block of channels.
    pub fn all_tiles(&self) -> i64 {
        let all: i64 = self.outside().iter().filter_map(|a| a.extent.as_const()).product();
        all / self.part
    }
}

/// Why a sum over all positions of windows is left to the library or to plain loops.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WeightGradientRefusal {
    /// The emitter keeps no tiles of f32 in registers.
    NoTiles,
    /// It is not a sum of products of f32.
    Dtype,
    /// The gradient has no channels of its own, or several axes of them.
    Channels,
    /// The channels do not fill vectors.
    Lanes {
        /// Elements of a vector.
        lanes: i64,
    },
    /// The sizes of the result are not known.
    Sizes,
    /// So few sums for each element of a vector do not hide how long an addition takes.
    FewSums {
        /// Vectors of sums.
        vectors: i64,
    },
    /// Neighbouring positions do not lie side by side in the gradient.
    Apart,
    /// An operand is not walked by one stride for each axis.
    Strides,
}

impl fmt::Display for WeightGradientRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoTiles => f.write_str("the emitter keeps no tiles of sums in registers"),
            Self::Dtype => f.write_str("it is not a sum of products of f32"),
            Self::Channels => f.write_str("the gradient has not one axis of channels"),
            Self::Lanes { lanes } => write!(f, "the gradient's channels do not fill vectors of {lanes}"),
            Self::Sizes => f.write_str("channels and windows are of unknown size"),
            Self::FewSums { vectors } => write!(f, "{vectors} vectors of sums are too few to keep a processor busy"),
            Self::Apart => f.write_str("neighbouring pixels of the gradient lie apart"),
            Self::Strides => f.write_str("an operand is not walked by one stride for each axis"),
        }
    }
}

/// Which operand the image is, if an einsum sums over all positions of windows of one operand.
fn image_side(graph: &Graph, id: NodeId) -> Option<usize> {
    let node = graph.node(id);
    let NodeKind::Einsum { inputs, output, .. } = &node.kind else {
        return None;
    };
    let [a, b] = node.operands[..] else { return None };
    let image = match (has_windows(graph, a), has_windows(graph, b)) {
        (true, false) => 0,
        (false, true) => 1,
        _ => return None,
    };
    // Weights, too, are multiplied by windows, whose elements they share; a gradient shares their positions, which are as many as it has.
    let (own, other) = (&inputs[image], &inputs[1 - image]);
    let through = own
        .iter()
        .rev()
        .take_while(|l| output.contains(l) && !other.contains(l));
    let summed = other.iter().any(|l| !output.contains(l));
    (through.count() > 0 && summed).then_some(image)
}

/// The gradient by weights that an einsum is; `None` if it is none by its structure, and otherwise perhaps why no kernel of this form
/// computes it. `threads` are those that are to have work.
pub fn weight_gradient(
    graph: &Graph,
    id: NodeId,
    emitter: &Emitter,
    threads: usize,
) -> Option<Result<WeightGradient, WeightGradientRefusal>> {
    let image = image_side(graph, id)?;
    Some(form(graph, id, image, emitter, threads as i64))
}

fn form(
    graph: &Graph,
    id: NodeId,
    image: usize,
    emitter: &Emitter,
    threads: i64,
) -> Result<WeightGradient, WeightGradientRefusal> {
    use WeightGradientRefusal as Refusal;
    let node = graph.node(id);
    let NodeKind::Einsum {
        inputs,
        output,
        semiring,
        accumulator,
        dtype,
    } = &node.kind
    else {
        return Err(Refusal::Dtype);
    };
    let all_f32 = node.operands.iter().all(|o| graph.ty(*o).dtype == DType::F32);
    if *semiring != Semiring::AddMul || [*accumulator, *dtype] != [DType::F32; 2] || !all_f32 {
        return Err(Refusal::Dtype);
    }
    if inputs.iter().any(repeats) {
        return Err(Refusal::Strides);
    }
    let lanes = emitter.tile(DType::F32, 1).ok_or(Refusal::NoTiles)?.lanes;
    let labels = label_count(inputs);
    let [of_gradient, of_image] = [&inputs[1 - image], &inputs[image]];
    let walk = |side: usize| strided(graph, node.operands[side], &inputs[side], labels).ok_or(Refusal::Strides);
    let (gradient, windows) = (walk(1 - image)?, walk(image)?);
    let in_result = tlc_ir::graph::infer::row_major_strides(&graph.ty(id).shape);
    let axis = |l: u16| {
        let of = |s: &Strided| s.strides[usize::from(l)].clone().unwrap_or(IndexExpr::ZERO);
        let extent = |side: usize| {
            let at = inputs[side].iter().position(|x| *x == l)?;
            Some(graph.ty(node.operands[side]).shape[at].clone())
        };
        let at = output.iter().position(|x| *x == l);
        Axis {
            extent: extent(0).or_else(|| extent(1)).unwrap_or(IndexExpr::ONE),
            in_gradient: of(&gradient),
            in_image: of(&windows),
            in_result: at.map_or(IndexExpr::ZERO, |at| in_result[at].clone()),
        }
    };
    let [mut groups, mut channels, mut elements] = [vec![], vec![], vec![]];
    for &l in output {
        match (of_gradient.contains(&l), of_image.contains(&l)) {
            (true, true) => groups.push(axis(l)),
            (true, false) => channels.push(axis(l)),
            _ => elements.push(axis(l)),
        }
    }
    // Summed axes that only one operand has are summed before.
    let summed: Vec<u16> = of_gradient.iter().copied().filter(|l| !output.contains(l)).collect();
    let alone = |of: &Labels, other: &Labels| of.iter().any(|l| !output.contains(l) && !other.contains(l));
    if alone(of_gradient, of_image) || alone(of_image, of_gradient) {
        return Err(Refusal::Strides);
    }
    let [channels] = &channels[..] else {
        return Err(Refusal::Channels);
    };
    let count = channels.extent.as_const().ok_or(Refusal::Sizes)?;
    let extents: Option<Vec<i64>> = elements
        .iter()
        .map(|a| a.extent.as_const().filter(|n| *n > 0))
        .collect();
    let extents = extents.ok_or(Refusal::Sizes)?;
    if count < 1 || count % lanes != 0 {
        return Err(Refusal::Lanes { lanes });
    }
    let tile = |vectors: i64| {
        let columns = vectors * lanes;
        let most = emitter.tile(DType::F32, columns).map_or(1, |t| t.rows);
        let rows = rows_of_tile(&extents, most);
        (rows.count * vectors, columns, rows)
    };
    // Two vectors of channels for each element of a window, if there are enough elements.
    let tiles = [2, 1].into_iter().filter(|v| count % (v * lanes) == 0).map(tile);
    let enough = |t: &(i64, i64, Rows)| t.0 >= FEWEST_SUMS;
    let all: Vec<(i64, i64, Rows)> = tiles.collect();
    let best = all
        .iter()
        .find(|t| t.0 >= FEWEST_ACCUMULATORS)
        .or_else(|| all.iter().find(|t| enough(t)));
    let &(_, columns, rows) = best.ok_or_else(|| Refusal::FewSums {
        vectors: all.iter().map(|t| t.0).max().unwrap_or(0),
    })?;
    if let Some(cut) = rows.cut {
        let axis = elements.remove(cut);
        elements.insert(elements.len() - rows.whole, axis);
    }
    let mut outer: Vec<Axis> = summed.into_iter().map(axis).collect();
    let at = outer.iter().rposition(|a| a.in_gradient.is(1)).ok_or(Refusal::Apart)?;
    let pixels = outer.remove(at);
    // However many axes of one position there are or are left out, the same pixels follow each other.
    let (mut lines, mut span) = (Vec::new(), pixels.extent.clone());
    while let Some(at) = outer.iter().rposition(|a| a.in_gradient == span) {
        let axis = outer.remove(at);
        span = span * axis.extent.clone();
        lines.insert(0, axis);
    }
    let mut made = WeightGradient {
        gradient: (gradient.base, gradient.offset),
        image: (windows.base, windows.offset),
        groups,
        channels: channels.clone(),
        lanes,
        columns,
        elements,
        whole: rows.whole,
        part: rows.part,
        outer,
        lines,
        pixels,
        tiles: 1,
    };
    made.tiles = tiles_of_iteration(&made, count, threads);
    Ok(made)
}

/// The fewest vectors of sums: an addition takes as many cycles as half of them take to start.
const FEWEST_SUMS: i64 = 8;

/// Elements of windows that a tile has as rows.
#[derive(Clone, Copy)]
struct Rows {
    /// How many of the last axes it has as a whole.
    whole: usize,
    /// Which of the axes before it has a part of.
    cut: Option<usize>,
    /// Positions of that axis, which they cut without a rest.
    part: i64,
    /// All of them.
    count: i64,
}

/// The rows of a tile that may have so many: as many of the last axes as fit, and the longest part of another one.
fn rows_of_tile(extents: &[i64], most: i64) -> Rows {
    let (mut whole, mut rows) = (0, 1);
    for &n in extents.iter().rev() {
        if rows * n > most {
            break;
        }
        rows *= n;
        whole += 1;
    }
    let longest = |n: i64| (1..=most / rows).rev().find(|d| n % d == 0).unwrap_or(1);
    let others = extents[..extents.len() - whole].iter().map(|&n| longest(n)).enumerate();
    // Of equal ones the last, whose elements lie closest.
    let cut = others.max_by_key(|(_, part)| *part);
    let part = cut.map_or(1, |(_, part)| part);
    Rows {
        whole,
        cut: cut.map(|(axis, _)| axis),
        part,
        count: rows * part,
    }
}

/// Tiles of a parallel iteration, so that all threads have work, where that is not too few for each.
fn tiles_of_iteration(made: &WeightGradient, channels: i64, threads: i64) -> i64 {
    let (all, rows) = (made.all_tiles(), made.rows());
    let blocks = channels / made.columns;
    let wanted = match threads {
        ..=1 => 1,
        n => (2 * n + blocks - 1) / blocks,
    };
    let least = (FEWEST_ROWS + rows - 1) / rows;
    let most = (MOST_SUM_BYTES / (rows * made.columns * DType::F32.bytes() as i64)).max(1);
    let each = ((all + wanted - 1) / wanted).max(least).min(most).min(all);
    // As even as possible.
    let iterations = (all + each - 1) / each;
    (all + iterations - 1) / iterations
}
