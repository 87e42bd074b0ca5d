//! Sums of products of bytes as sums over words of four bytes each, for which machines have instructions ([`Semiring::AddDot4`]).
//!
//! Quantized models multiply bytes from which a zero point is subtracted: `Σ (x - zx) (w - zw)` over i32, of which `w` mostly never changes. Sums wrap, so they
//! may be taken apart in any way:
//!
//! ```text
//! Σ (x - zx) (w - zw)  =  Σ x' w'  -  zx' Σ (w - zw)  -  zw' Σ x'
//! ```
//!
//! where `x' = x + a` is unsigned and `w' = w - b` signed, each of `a` and `b` 0 or 128, and `zx' = zx + a`, `zw' = zw - b`. Adding or taking off 128 is
//! to change the highest bit of a byte. The first sum is over words; the second never changes (once per executable); the third is there only
//! where weights have a zero point.
//!
//! A word has bytes that lie a quarter of the sum apart, not neighbours: words that lie side by side are then made of bytes that lie side by side,
//! and whole vectors of them at once. Padding of an image is a zero point itself. What the quarters have too few elements for is zero in the
//! weights.
//!
//! Sums of which no words are made are those of floats, if these have all their values (`words/floats.rs`).
//!
//! In a loop's body weights are what it captures (`words/loops.rs`). Of two values that each call brings words are made, and laid out, in each call
//! (`words/stacks.rs`). The largest of windows over bytes is that of words too (`words/pools.rs`).

use smallvec::{SmallVec, smallvec};
use tlc_ir::graph::{GraphError, Labels, Monoid, Semiring, Shape, View};
use tlc_ir::index::IndexExpr;
use tlc_ir::target::{Emitter, HostProducts, Support, Width};
use tlc_ir::{DType, Graph, Node, NodeId, NodeKind, Scalar, ScalarOp};

use super::panels::Fixed;
use super::sink_layout::add_canonical;
use super::{Context, Failure, Pass, Rebuilder, all_ones};
use crate::contraction::WORD_PANEL;

mod bytes;
mod floats;
mod loops;
mod pools;
mod stacks;

pub(super) use bytes::is_zero_point;
use bytes::{Bytes, Zero, before_expansion, bytes, is_padded_first, is_padding, number, zero};
pub(super) use floats::over_floats;
use floats::over_floats_in_parts;

/// The fewest multiply-adds of a product of known size that words are made for.
const FEWEST_PRODUCTS: i64 = 4 << 10;
/// The shortest sum: of shorter ones, what is done to each result for zero points takes longer than the sum.
const SHORTEST_SUM: i64 = 16;
/// The fewest rows and columns of a product whose operands each call brings: of integers.
const FEWEST_LINES_OF_VALUES: i64 = 8;
/// The axis of an image's rows.
const ROWS: usize = 2;
/// Bytes of a word, and a word of ones.
const BYTES: i64 = 4;
const ONES: i64 = 0x0101_0101;

/// Products of bytes with weights that never change, over words.
pub struct Words;

impl Pass for Words {
    fn name(&self) -> &'static str {
        "words"
    }

    fn run(&self, graph: &Graph, context: &mut Context<'_>) -> Result<Graph, Failure> {
        let Some(emitter) = context.tiles else {
            return Ok(graph.clone());
        };
        let products = context.layouts.products;
        let graph = loops::run(graph, emitter, products)?;
        match word_emitter(context) {
            Some(emitter) => Ok(run(&graph, emitter, products)?),
            None => Ok(graph),
        }
    }
}

/// The emitter that multiplies words, if there is one and results of a first call are kept for others.
pub(super) fn word_emitter<'a>(context: &Context<'a>) -> Option<&'a Emitter> {
    context.tiles.filter(|e| !context.inside_loop && multiplies_words(e))
}

fn multiplies_words(e: &Emitter) -> bool {
    e.tile(DType::I32, 1).is_some() && e.map(ScalarOp::Dot4, DType::I32, Width::Lanes) == Support::Native
}

/// Makes words for the products of bytes that the emitter, or the library of `products`, multiplies so.
///
/// # Errors
/// Never for a verified graph.
pub fn run(graph: &Graph, emitter: &Emitter, products: HostProducts) -> Result<Graph, GraphError> {
    let by = Multipliers {
        emitter,
        products,
        fewest_lines: Some(FEWEST_LINES_OF_VALUES),
    };
    with_words(graph, &Fixed::constants(graph), by)
}

/// What multiplies words.
#[derive(Clone, Copy)]
pub(super) struct Multipliers<'e> {
    pub(super) emitter: &'e Emitter,
    pub(super) products: HostProducts,
    /// The fewest rows and columns of a product of values that each call brings, words of which are made and laid out in each. `None` where neither these
    /// are multiplied so nor stacks of matrices: nothing lays them out in a loop's body.
    pub(super) fewest_lines: Option<i64>,
}

fn is_sum_of_integers(graph: &Graph, node: &Node) -> bool {
    match node.kind {
        NodeKind::Einsum { accumulator, .. } => {
            accumulator == DType::I32 || graph.ty(node.operands[0]).dtype == DType::I32
        }
        _ => false,
    }
}

/// As [`run`], where `fixed` tells weights.
fn with_words(graph: &Graph, fixed: &Fixed, by: Multipliers<'_>) -> Result<Graph, GraphError> {
    let by_words = multiplies_words(by.emitter);
    super::rebuild_of(
        graph,
        &|n| is_sum_of_integers(graph, n) || pools::is_pool(graph, n),
        &mut |re, id, node, operands| {
            if pools::is_pool(graph, node) {
                return pools::in_words(re, node, operands, by.emitter);
            }
            if let NodeKind::Einsum { .. } = node.kind
                && by_words
                && !fixed.contains(id)
                && graph.ty(node.operands[0]).dtype == DType::I32
                && let Some(sum) = over_words(re, node, operands, fixed, by)?
            {
                return Ok(sum);
            }
            if !fixed.contains(id)
                && let Some(sum) = over_floats_in_parts(re, node, operands, by.emitter)?
            {
                return Ok(sum);
            }
            re.keep(node, operands)
        },
    )
}

/// A product of bytes, of operands in the new graph.
struct Product {
    image: Bytes,
    weights: Bytes,
    /// The weights less their zero points.
    weights_less: NodeId,
    /// The image's bytes less theirs.
    image_operand: NodeId,
    /// Labels of image and weights.
    labels: [Labels; 2],
    output: Labels,
    /// The axis of words: in the image's operand, in the weights', and of the image's bytes themselves.
    axes: [usize; 2],
    base_axis: Option<usize>,
    /// The weights' own label.
    columns: u16,
    /// Whether it is of windows along a signal.
    is_signal: bool,
    /// Whether it is of one matrix of weights, which are laid out once: not of a stack nor of values that each call brings.
    is_laid_out: bool,
    image_zero: Zero,
    weights_zero: Zero,
}

/// An einsum of i32 over words, if it is a product of bytes. Its operands in the old graph are the node's, for which `fixed` holds; those in
/// the new one are of i32.
pub(super) fn over_words(
    re: &mut Rebuilder,
    node: &Node,
    operands: &[NodeId],
    fixed: &Fixed,
    by: Multipliers<'_>,
) -> Result<Option<NodeId>, GraphError> {
    let Some(p) = product(&re.graph, node, operands, fixed, by.fewest_lines) else {
        return Ok(None);
    };
    let unit = p.unit(re, by.emitter.lanes(DType::I32), by.products);
    let p = p.of_bytes(re)?;
    match p.is_signal {
        false => p.add(re, &node.ty.shape, unit).map(Some),
        true => {
            let mut shape = node.ty.shape.clone();
            shape.insert(ROWS, IndexExpr::ONE);
            let sum = p.add(re, &shape, unit)?;
            re.reshape(sum, &node.ty.shape).map(Some)
        }
    }
}

/// The labels of the operands and the result of an einsum that adds up products of i32.
fn sum_of_integers(node: &Node) -> Option<(&[Labels], &Labels)> {
    match &node.kind {
        NodeKind::Einsum {
            inputs,
            output,
            semiring: Semiring::AddMul,
            accumulator: DType::I32,
            dtype: DType::I32,
        } => Some((inputs, output)),
        _ => None,
    }
}

/// The product of bytes that an einsum is, of operands in the new graph.
fn product(
    graph: &Graph,
    node: &Node,
    operands: &[NodeId],
    fixed: &Fixed,
    fewest_lines: Option<i64>,
) -> Option<Product> {
    let (inputs, output) = sum_of_integers(node)?;
    let [a, b] = operands[..] else { return None };
    let is_fixed = [0, 1].map(|k| fixed.contains(node.operands[k]));
    let weights = match is_fixed {
        [false, true] => 1,
        [true, false] => 0,
        [true, true] => return None,
        // Of two values the one whose lines are columns.
        [false, false] => usize::from(inputs.get(1)?.contains(output.last()?)),
    };
    let (x, w) = if weights == 1 { (a, b) } else { (b, a) };
    let (of_x, of_w) = (&inputs[1 - weights], &inputs[weights]);
    let repeats = |of: &Labels| of.iter().enumerate().any(|(i, l)| of[..i].contains(l));
    if repeats(of_x) || repeats(of_w) {
        return None;
    }
    // One label of the result is the weights' alone; those that both have are a stack's, all others the image's alone; the rest are summed.
    let mut own = of_w.iter().filter(|l| output.contains(l) && !of_x.contains(l));
    let (Some(&columns), None) = (own.next(), own.next()) else {
        return None;
    };
    let summed_in_both = |of: &Labels, other: &Labels| of.iter().all(|l| output.contains(l) || other.contains(l));
    if !summed_in_both(of_x, of_w) || !summed_in_both(of_w, of_x) {
        return None;
    }
    let is_stack = of_w.iter().any(|l| *l != columns && output.contains(l));
    let of_values = is_fixed == [false, false];
    if is_stack || of_values {
        let fewest = fewest_lines?;
        let rows = of_x.iter().zip(&graph.ty(x).shape);
        let rows = rows.filter(|(l, _)| output.contains(l) && !of_w.contains(l));
        let rows = rows.fold(IndexExpr::ONE, |n, (_, d)| n * d.clone()).as_const();
        let few = rows.is_some_and(|n| n < fewest) || columns_of(graph, w, of_w, columns)? < fewest;
        if of_values && few {
            return None;
        }
    }
    let (image, weights) = (bytes(graph, x)?, bytes(graph, w)?);
    let extent = |n: NodeId, axis: usize| graph.ty(n).shape[axis].as_const();
    let windows = image
        .views
        .iter()
        .any(|v| matches!(graph.node(*v).kind, NodeKind::View(View::Window { .. })));
    // The longest of the summed axes that words can be made along.
    let (length, axes, base_axis) = (of_w.iter().enumerate())
        .filter(|(_, l)| !output.contains(l))
        .filter_map(|(in_w, l)| {
            let in_x = of_x.iter().position(|x| x == l)?;
            let base = if windows {
                Some(below_windows(graph, &image, in_x)?)
            } else {
                None
            };
            Some((extent(w, in_w)?, [in_x, in_w], base))
        })
        .max_by_key(|(length, ..)| *length)?;
    // Tiles are of images with rows, as which signals are seen, or of pixels whose channels lie together.
    let is_signal = windows
        && output.len() == ROWS + 1
        && output[1] == columns
        && base_axis == Some(1)
        && graph.ty(image.value).rank() == ROWS + 1
        && of_x.get(ROWS) == output.last();
    let is_tiled = output.len() == ROWS + 2 && output[1] == columns || output.last() == Some(&columns);
    if windows && (!is_signal && !is_tiled || is_stack || of_values) {
        return None;
    }
    // One column would be a vector of columns.
    if length < 2 || columns_of(graph, w, of_w, columns) == Some(1) {
        return None;
    }
    // Both sides are cut into words alike, so an extent that only the weights know stays as it is.
    let known_in_both = |(in_x, l): (usize, &u16)| output.contains(l) || extent(x, in_x).is_some();
    if !of_x.iter().enumerate().all(known_in_both) {
        return None;
    }
    let elements = |shape: &Shape| IndexExpr::product(shape.iter()).as_const();
    let summed: i64 = (of_w.iter().enumerate())
        .filter(|(_, l)| !output.contains(l))
        .map(|(axis, _)| extent(w, axis))
        .try_fold(1i64, |n, d| n.checked_mul(d?))?;
    if summed < SHORTEST_SUM {
        return None;
    }
    if elements(&node.ty.shape).is_some_and(|n| n.saturating_mul(summed) < FEWEST_PRODUCTS) {
        return None;
    }
    let image_zero = zero(graph, &image);
    let weights_zero = zero(graph, &weights);
    let padded = image.views.iter().any(|v| is_padding(graph, *v));
    if weights.views.iter().any(|v| is_padding(graph, *v)) {
        return None;
    }
    let byte = |z: i64| Scalar::from_i64(graph.ty(image.value).dtype, z).as_i64() == z;
    match image_zero {
        Zero::Known(z) if !padded || byte(z) => {}
        Zero::Value(z) if all_ones(&graph.ty(before_expansion(graph, z)).shape) => {
            let fills = || windows && is_padded_first(graph, &image) && is_zero_point(graph, z, image.dtype);
            if padded && !fills() {
                return None;
            }
        }
        _ => return None,
    }
    if graph.ty(image.value).dtype == DType::I32 {
        return None;
    }
    let signed_weights = weights.dtype == DType::I8;
    match weights_zero {
        Zero::Known(z) if z == if signed_weights { 0 } else { 128 } => {}
        Zero::Known(_) => {}
        Zero::Value(z) => {
            // What goes along the columns alone, which no view has moved since.
            let below = &graph.ty(before_expansion(graph, z)).shape;
            let of_z = &of_w[of_w.len().checked_sub(below.len())?..];
            let along = of_z.iter().zip(below).all(|(l, d)| *l == columns || d.is(1));
            let is_one = all_ones(below);
            if !is_one && (is_stack || of_values || !weights.views.is_empty() || !along) {
                return None;
            }
        }
    }
    Some(Product {
        image,
        weights,
        weights_less: w,
        image_operand: x,
        labels: [of_x.clone(), of_w.clone()],
        output: output.clone(),
        axes,
        base_axis,
        columns,
        is_signal,
        is_laid_out: !is_stack && !of_values,
        image_zero,
        weights_zero,
    })
}

/// How many columns weights have, if it is known.
fn columns_of(graph: &Graph, weights: NodeId, labels: &Labels, columns: u16) -> Option<i64> {
    let axis = labels.iter().position(|l| *l == columns)?;
    graph.ty(weights).shape[axis].as_const()
}

/// The axis of an image that an axis of its windows is, where nothing but windows and padding, along other axes, is above the image.
fn below_windows(graph: &Graph, image: &Bytes, axis: usize) -> Option<usize> {
    if axis >= graph.ty(image.value).rank() {
        return None;
    }
    let apart = |v: &NodeId| match &graph.node(*v).kind {
        NodeKind::View(View::Window { axis: along, .. }) => usize::from(*along) != axis,
        NodeKind::View(View::Pad { lo, hi, interior, .. }) => lo[axis].is(0) && hi[axis].is(0) && interior[axis] == 0,
        _ => false,
    };
    image.views.iter().all(apart).then_some(axis)
}

/// A number of i32 in all elements.
fn splat(re: &mut Rebuilder, n: i64, shape: &Shape) -> Result<NodeId, GraphError> {
    re.splat(Scalar::from_i64(DType::I32, n), shape)
}

fn map(re: &mut Rebuilder, op: ScalarOp, a: NodeId, b: NodeId) -> Result<NodeId, GraphError> {
    re.add(NodeKind::Map(op), &[a, b])
}

/// An operation with a number.
fn with_number(re: &mut Rebuilder, op: ScalarOp, a: NodeId, n: i64) -> Result<NodeId, GraphError> {
    let shape = re.graph.ty(a).shape.clone();
    let n = splat(re, n, &shape)?;
    map(re, op, a, n)
}

/// A sum of products of words.
fn over_i32() -> NodeKind {
    NodeKind::Einsum {
        inputs: SmallVec::new(),
        output: Labels::new(),
        semiring: Semiring::AddDot4,
        accumulator: DType::I32,
        dtype: DType::I32,
    }
}

/// How many columns are missing to a multiple of `unit`, where it is known how many there are.
fn missing(columns: &IndexExpr, unit: i64) -> i64 {
    columns.as_const().map_or(0, |n| (unit - n % unit) % unit)
}

/// What the bytes of words add up to along an axis, which has one element then, stored: bytes of an image are unsigned, those of weights signed.
fn added_up_words(re: &mut Rebuilder, words: NodeId, axis: usize, of_image: bool) -> Result<NodeId, GraphError> {
    let mut shape = re.graph.ty(words).shape.clone();
    let products = match of_image {
        true => bytes_of_words(re, words)?,
        false => {
            let ones = splat(re, ONES, &shape)?;
            map(re, ScalarOp::Dot4, ones, words)?
        }
    };
    let axes = [axis as u8].into_iter().collect();
    let monoid = Monoid::Add;
    let sums = re.add(NodeKind::Reduce { monoid, axes }, &[products])?;
    shape[axis] = IndexExpr::ONE;
    re.reshape(sums, &shape)
}

/// What the bytes of each word of an image add up to.
fn bytes_of_words(re: &mut Rebuilder, words: NodeId) -> Result<NodeId, GraphError> {
    let shape = re.graph.ty(words).shape.clone();
    let ones = splat(re, ONES, &shape)?;
    map(re, ScalarOp::Dot4, words, ones)
}

/// A value with so many zeros behind an axis.
fn lengthened(re: &mut Rebuilder, x: NodeId, axis: usize, by: i64) -> Result<NodeId, GraphError> {
    if by == 0 {
        return Ok(x);
    }
    let rank = re.graph.ty(x).rank();
    let mut hi: Shape = smallvec![IndexExpr::ZERO; rank];
    hi[axis] = IndexExpr::Const(by);
    let zero = re.graph.ty(x).dtype.zero();
    re.padded(x, smallvec![IndexExpr::ZERO; rank], hi, zero)
}

/// Elements of an axis from `start` on.
fn part(re: &mut Rebuilder, x: NodeId, axis: usize, start: i64, size: i64) -> Result<NodeId, GraphError> {
    let mut shape = re.graph.ty(x).shape.clone();
    if shape[axis].is(size) {
        return Ok(x);
    }
    let mut starts: Shape = smallvec![IndexExpr::ZERO; shape.len()];
    (starts[axis], shape[axis]) = (IndexExpr::Const(start), IndexExpr::Const(size));
    let view = View::Slice {
        start: starts.into_boxed_slice(),
        step: vec![1; shape.len()].into(),
        size: shape.into_boxed_slice(),
    };
    re.add(NodeKind::View(view), &[x])
}

/// Words of the bytes that lie a quarter of an axis apart; `flip` says whether the highest bit of each is changed.
fn words(re: &mut Rebuilder, x: NodeId, axis: usize, flip: bool) -> Result<NodeId, GraphError> {
    let Some(length) = re.graph.ty(x).shape[axis].as_const() else {
        return Ok(x);
    };
    let signed = re.graph.ty(x).dtype == DType::I8;
    let quarter = (length + BYTES - 1) / BYTES;
    let mut all: Option<NodeId> = None;
    for place in 0..BYTES {
        let size = quarter.min(length - place * quarter);
        if size <= 0 {
            break;
        }
        let of = part(re, x, axis, place * quarter, size)?;
        let mut word = re.add(NodeKind::Convert(DType::I32), &[of])?;
        if flip {
            // The bits above are those of a byte of the other sign.
            word = with_number(re, ScalarOp::Xor, word, 0x80)?;
        }
        if (signed || flip) && place < BYTES - 1 {
            word = with_number(re, ScalarOp::And, word, 0xff)?;
        }
        if place > 0 {
            word = with_number(re, ScalarOp::Shl, word, 8 * place)?;
        }
        word = lengthened(re, word, axis, quarter - size)?;
        all = Some(match all {
            Some(before) => map(re, ScalarOp::Or, before, word)?,
            None => word,
        });
    }
    let all = all.unwrap_or(x);
    re.add(NodeKind::Copy, &[all])
}

impl Product {
    /// The product with weights that are bytes, if they were folded to i32, and of a signal that is seen as an image of one row.
    fn of_bytes(mut self, re: &mut Rebuilder) -> Result<Product, GraphError> {
        if self.is_signal {
            let mut shape = re.graph.ty(self.image.value).shape.clone();
            shape.insert(ROWS, IndexExpr::ONE);
            self.image.value = re.reshape(self.image.value, &shape)?;
            self.image.rows = Some(ROWS);
            let all = self.labels.iter().flatten();
            let row = all.max().map_or(0, |l| l + 1);
            self.labels[0].insert(ROWS, row);
            self.output.insert(ROWS, row);
        }
        if re.graph.ty(self.weights.value).dtype == DType::I32 {
            let value = match self.weights.shift {
                0 => self.weights.value,
                shift => with_number(re, ScalarOp::Add, self.weights.value, shift)?,
            };
            self.weights.value = re.add(NodeKind::Convert(self.weights.dtype), &[value])?;
        }
        Ok(self)
    }

    /// What the columns are a multiple of: vectors where tiles in registers have them in lanes, and where the library has them, panels that are
    /// laid out once; windows it has beside each other in place of the columns.
    fn unit(&self, re: &Rebuilder, lanes: i64, products: HostProducts) -> i64 {
        let extents = |side: usize, own: bool| {
            let value = if side == 0 {
                self.image_operand
            } else {
                self.weights_less
            };
            let shape = &re.graph.ty(value).shape;
            let of = self.labels[side].iter().zip(shape);
            let is_own = |l: &u16| !self.labels[1 - side].contains(l);
            let of = of.filter(|(l, _)| is_own(l) == own && self.output.contains(l) == own);
            of.fold(IndexExpr::ONE, |n, (_, d)| n * d.clone()).as_const()
        };
        let (rows, columns) = (extents(0, true), extents(1, true));
        let words = extents(1, false).map(|n| (n + BYTES - 1) / BYTES);
        match products.takes_words(rows, columns, words) {
            // An emitter without vectors fills nothing.
            false => lanes.max(1),
            true if !self.is_laid_out || self.base_axis.is_some() || columns.is_none_or(|n| n < WORD_PANEL) => 1,
            true => WORD_PANEL,
        }
    }

    /// The einsum over words, less what the zero points add to it. Columns are filled up to a multiple of `unit`.
    fn add(&self, re: &mut Rebuilder, shape: &Shape, unit: i64) -> Result<NodeId, GraphError> {
        let is = |re: &Rebuilder, n: NodeId, d: DType| re.graph.ty(n).dtype == d;
        let (flip_image, flip_weights) = (
            is(re, self.image.value, DType::I8),
            is(re, self.weights.value, DType::U8),
        );
        let fill = match self.image_zero {
            Zero::Known(z) => z,
            Zero::Value(_) => 0,
        };
        let image_bytes = self.image.through_views(re, fill)?;
        let flips = [flip_image, flip_weights];
        if !self.is_laid_out {
            return self.sum_of_stack(re, image_bytes, flips, unit);
        }
        let (sum, made) = self.sum_of_words(re, image_bytes, flips, unit)?;
        let sum = self.less_image_zero(re, sum, flip_image, shape)?;
        self.less_weights_zero(re, sum, made, flips, shape)
    }

    /// The einsum over words of a matrix of weights that stay, and the words of the image, those below its windows if there are any.
    fn sum_of_words(
        &self,
        re: &mut Rebuilder,
        image_bytes: NodeId,
        [flip_image, flip_weights]: [bool; 2],
        unit: i64,
    ) -> Result<(NodeId, NodeId), GraphError> {
        let (image, made) = match self.base_axis {
            Some(axis) => {
                let made = words(re, self.image.value, axis, flip_image)?;
                (self.above_zeros(re, made, ONES, flip_image)?, made)
            }
            None => {
                let made = words(re, image_bytes, self.axes[0], flip_image)?;
                (made, made)
            }
        };
        let weights = self.weights.through_views(re, 0)?;
        let weights = words(re, weights, self.axes[1], flip_weights)?;
        // Whole vectors or panels of columns.
        let at = |of: &Labels| of.iter().position(|l| *l == self.columns).unwrap_or(0);
        let in_weights = at(&self.labels[1]);
        let columns = re.graph.ty(weights).shape[in_weights].clone();
        let missing = missing(&columns, unit);
        let mut weights = lengthened(re, weights, in_weights, missing)?;
        if missing > 0 {
            weights = re.add(NodeKind::Copy, &[weights])?;
        }
        let labels = self.labels.to_vec();
        let sum = add_canonical(re, &over_i32(), labels, self.output.clone(), &[image, weights])?;
        let sum = match columns.as_const() {
            Some(n) if missing > 0 => part(re, sum, at(&self.output), 0, n)?,
            _ => sum,
        };
        Ok((sum, made))
    }

    /// The image's views over what is made of its bytes, where a byte counts so many times: padding is that of the zero point, as of unsigned bytes.
    fn above_zeros(&self, re: &mut Rebuilder, value: NodeId, times: i64, flip: bool) -> Result<NodeId, GraphError> {
        match self.image_zero {
            Zero::Known(z) => {
                let fill = (z + if flip { 128 } else { 0 }) * times;
                self.image
                    .above(re, value, Scalar::from_i64(DType::I32, i64::from(fill as i32)))
            }
            Zero::Value(z) => {
                let z = self.zero_of_image(re, z, flip)?;
                let fill = with_number(re, ScalarOp::Mul, z, times)?;
                self.image.above_filled(re, value, fill)
            }
        }
    }

    /// A zero point of the image that each call computes, of rank 0, as that of unsigned bytes.
    fn zero_of_image(&self, re: &mut Rebuilder, z: NodeId, flip: bool) -> Result<NodeId, GraphError> {
        let z = before_expansion(&re.graph, z);
        let z = re.reshape(z, &Shape::new())?;
        match flip {
            false => Ok(z),
            true => with_number(re, ScalarOp::Add, z, 128),
        }
    }

    /// A sum less the image's zero point times what the weights of each column add up to.
    fn less_image_zero(
        &self,
        re: &mut Rebuilder,
        sum: NodeId,
        flip: bool,
        shape: &Shape,
    ) -> Result<NodeId, GraphError> {
        let more = if flip { 128 } else { 0 };
        if matches!(self.image_zero, Zero::Known(z) if z + more == 0) {
            return Ok(sum);
        }
        let of_columns = self.added_up(re, self.weights_less, 1)?;
        let each = match self.image_zero {
            Zero::Known(z) => with_number(re, ScalarOp::Mul, of_columns, z + more)?,
            Zero::Value(z) => {
                let z = self.zero_of_image(re, z, flip)?;
                let to = re.graph.ty(of_columns).shape.clone();
                let z = re.add(NodeKind::View(View::Expand(to)), &[z])?;
                map(re, ScalarOp::Mul, of_columns, z)?
            }
        };
        let all = self.spread(re, each, 1, shape)?;
        map(re, ScalarOp::Sub, sum, all)
    }

    /// A sum less the weights' zero point times what the bytes of each row add up to, which is added up over the words that were made and stored.
    fn less_weights_zero(
        &self,
        re: &mut Rebuilder,
        sum: NodeId,
        made: NodeId,
        [flip_image, flip_weights]: [bool; 2],
        shape: &Shape,
    ) -> Result<NodeId, GraphError> {
        let less = if flip_weights { 128 } else { 0 };
        if matches!(self.weights_zero, Zero::Known(z) if z == less) {
            return Ok(sum);
        }
        let of_rows = match self.base_axis {
            None => {
                let bytes = bytes_of_words(re, made)?;
                self.added_up(re, bytes, 0)?
            }
            // Channels first: their sums are what the windows then are of.
            Some(axis) => {
                let channels = re.graph.ty(self.image.value).shape[axis].as_const().unwrap_or(0);
                let sums = added_up_words(re, made, axis, true)?;
                let sums = re.add(NodeKind::Copy, &[sums])?;
                let bytes = self.above_zeros(re, sums, channels, flip_image)?;
                self.added_up(re, bytes, 0)?
            }
        };
        let of_rows = re.add(NodeKind::Copy, &[of_rows])?;
        let rows = self.spread(re, of_rows, 0, shape)?;
        let zeros = match self.weights_zero {
            Zero::Known(z) => splat(re, z - less, shape)?,
            Zero::Value(z) => {
                let z = before_expansion(&re.graph, z);
                let count = re.graph.ty(z).elements();
                let one = count.is(1);
                let z = re.reshape(z, &if one { Shape::new() } else { smallvec![count] })?;
                let z = with_number(re, ScalarOp::Sub, z, less)?;
                match one {
                    true => re.add(NodeKind::View(View::Expand(shape.clone())), &[z])?,
                    false => self.spread(re, z, 1, shape)?,
                }
            }
        };
        let all = map(re, ScalarOp::Mul, rows, zeros)?;
        map(re, ScalarOp::Sub, sum, all)
    }

    /// An operand summed over the labels that the result lacks.
    fn added_up(&self, re: &mut Rebuilder, operand: NodeId, side: usize) -> Result<NodeId, GraphError> {
        let axes = (self.labels[side].iter().enumerate())
            .filter(|(_, l)| !self.output.contains(l))
            .map(|(axis, _)| axis as u8)
            .collect();
        let monoid = Monoid::Add;
        re.add(NodeKind::Reduce { monoid, axes }, &[operand])
    }

    /// What [`Self::added_up`] left of an operand, at each place of the result.
    fn spread(&self, re: &mut Rebuilder, value: NodeId, side: usize, shape: &Shape) -> Result<NodeId, GraphError> {
        let left: Labels = (self.labels[side].iter().copied())
            .filter(|l| self.output.contains(l))
            .collect();
        let place = |l: &u16| self.output.iter().position(|o| o == l).unwrap_or(0);
        let mut order: SmallVec<[u8; 4]> = (0..left.len() as u8).collect();
        order.sort_by_key(|&i| place(&left[usize::from(i)]));
        let value = match order.is_sorted() {
            true => value,
            false => re.add(NodeKind::View(View::Permute(order)), &[value])?,
        };
        let own = |(l, d): (&u16, &IndexExpr)| match left.contains(l) {
            true => d.clone(),
            false => IndexExpr::ONE,
        };
        let with_ones: Shape = self.output.iter().zip(shape).map(own).collect();
        let value = re.reshape(value, &with_ones)?;
        match with_ones == *shape {
            true => Ok(value),
            false => re.add(NodeKind::View(View::Expand(shape.clone())), &[value]),
        }
    }
}
