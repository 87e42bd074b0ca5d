//! Sums of products of dequantized bytes as sums of integers.
//!
//! Quantized networks are often written with the float operators that they were before, between operators that make floats of bytes and bytes of
//! floats. A product then multiplies differences from zero points by scales, which do not change along the sum:
//!
//! ```text
//! Σ (x - zx) sx (w - zw) sw  =  sx sw Σ (x - zx) (w - zw)
//! ```
//! The second sum is one of integers, which is exact where the first rounds with every addition, and for which there are instructions
//! (`words.rs`).
//!
//! Invariants:
//! - Scales are constants, and numbers so far from the ends of f32's range that their products are no infinity and lose no digit: zero times an
//!   infinity stays what it is.
//! - Sums cannot leave the range of i32, whatever the bytes are.
//! - It is done where words are made of the bytes, or where sums are so short that floats add them up exactly, as those of each channel of an
//!   image alone, and nowhere else: other sums of integers take longer than those of floats.

use smallvec::{SmallVec, smallvec};
use tlc_ir::graph::{GraphError, Labels, Semiring, Shape, View};
use tlc_ir::index::IndexExpr;
use tlc_ir::target::{Emitter, HostProducts};
use tlc_ir::{DType, Graph, Node, NodeId, NodeKind, Scalar, ScalarOp, TensorType};

use super::panels::Fixed;
use super::words::{Multipliers, is_zero_point, over_floats, over_words, word_emitter};
use super::{Context, Failure, Pass, Rebuilder, all_ones};

/// The longest sum: of as many products of differences of bytes none leaves the range of i32.
const LONGEST_SUM: i64 = i32::MAX as i64 / (255 * 255);
/// The fewest rows and columns of a product whose operands each call brings: of fewer it takes as long to make words of them, and to add up what zero points
/// take off, as it takes to multiply floats (3,136 rows of 32 by 49 columns: 616 us for 545).
const FEWEST_LINES_OF_VALUES: i64 = 64;
/// The powers of two between which scales lie.
const SCALES: [f64; 2] = [1.0 / (1u64 << 60) as f64, (1u64 << 60) as f64];

/// Products of dequantized bytes: with weights that never change over words of bytes, and short ones over floats that are whole numbers.
pub struct Dequantized;

impl Pass for Dequantized {
    fn name(&self) -> &'static str {
        "dequantized"
    }

    fn run(&self, graph: &Graph, context: &mut Context<'_>) -> Result<Graph, Failure> {
        match word_emitter(context) {
            Some(emitter) => Ok(run(graph, emitter, context.layouts.products)?),
            None => Ok(graph.clone()),
        }
    }
}

/// Takes the scales out of the sums of which words are made for the emitter or the library, of `products`, and of those that floats add up exactly.
///
/// # Errors
/// Never for a verified graph.
pub fn run(graph: &Graph, emitter: &Emitter, products: HostProducts) -> Result<Graph, GraphError> {
    // It is the first pass: what has nothing of the kind is rebuilt, and named, once less.
    if !graph.nodes().any(|(_, n)| sides(graph, n, &n.operands).is_some()) {
        return Ok(graph.clone());
    }
    let fixed = Fixed::constants(graph);
    let by = Multipliers {
        emitter,
        products,
        fewest_lines: Some(FEWEST_LINES_OF_VALUES),
    };
    super::rebuild(graph, &mut |re, id, node, operands| {
        if !fixed.contains(id)
            && let Some(sides) = sides(&re.graph, node, operands)
            && let Some(new) = sum_of_integers(re, node, &sides, &fixed, by)?
        {
            return Ok(new);
        }
        re.keep(node, operands)
    })
}

/// An operand that was dequantized.
struct Side {
    /// Differences of bytes from zero points, in i32; or the bytes.
    value: NodeId,
    /// The views above, the highest first.
    views: SmallVec<[NodeId; 4]>,
    /// What the scale is broadcast from.
    scale: NodeId,
    /// Extents of the operand's axes along which the scale changes, and 1 of the others.
    along: Shape,
}

/// Both operands of a sum of products of f32, if they were dequantized and their scales do not change along the sum.
fn sides(graph: &Graph, node: &Node, operands: &[NodeId]) -> Option<[Side; 2]> {
    let NodeKind::Einsum {
        inputs,
        output,
        semiring: Semiring::AddMul,
        accumulator: DType::F32,
        dtype: DType::F32,
    } = &node.kind
    else {
        return None;
    };
    let (&[a, b], [of_a, of_b]) = (operands, &inputs[..]) else {
        return None;
    };
    // A label once in an operand, and not alone there where it is summed.
    let mut length = 1i64;
    for (operand, labels) in [(a, of_a), (b, of_b)] {
        for (axis, l) in labels.iter().enumerate() {
            let summed = !output.contains(l);
            if labels[..axis].contains(l) || (summed && !(of_a.contains(l) && of_b.contains(l))) {
                return None;
            }
            if operand == a && summed {
                length = length.saturating_mul(graph.ty(a).shape[axis].as_const()?);
            }
        }
    }
    if length > LONGEST_SUM {
        return None;
    }
    Some([side(graph, a, of_a, output)?, side(graph, b, of_b, output)?])
}

/// How an operand was dequantized.
fn side(graph: &Graph, operand: NodeId, labels: &Labels, output: &Labels) -> Option<Side> {
    let (mut views, mut at) = (SmallVec::new(), operand);
    while let NodeKind::View(view) = &graph.node(at).kind {
        if view.fill().is_some_and(|fill| fill.bits() != 0) {
            return None;
        }
        views.push(at);
        at = graph.node(at).operands[0];
    }
    let node = graph.node(at);
    let NodeKind::Map(ScalarOp::Mul) = node.kind else {
        return None;
    };
    let &[a, b] = &node.operands[..] else { return None };
    let (value, scale) = match (differences(graph, a), differences(graph, b)) {
        (Some(value), None) => (value, b),
        (None, Some(value)) => (value, a),
        _ => return None,
    };
    let mut scale = scale;
    while let NodeKind::View(View::Expand(_)) = graph.node(scale).kind {
        scale = graph.node(scale).operands[0];
    }
    if !is_scale(graph, scale) {
        return None;
    }
    let (shape, rank) = (&graph.ty(scale).shape, graph.ty(at).rank());
    let mut along: Shape = smallvec![IndexExpr::ONE; rank.checked_sub(shape.len())?];
    along.extend(shape.iter().cloned());
    for &v in views.iter().rev() {
        along = through(graph, v, &along)?;
    }
    // Axes of the result, in its order.
    let places = (along.iter().zip(labels)).filter(|(d, _)| !d.is(1));
    let places = places.map(|(_, l)| output.iter().position(|o| o == l));
    let places: SmallVec<[usize; 4]> = places.collect::<Option<_>>()?;
    places.is_sorted().then_some(Side {
        value,
        views,
        scale,
        along,
    })
}

/// Of the axes of a view's result those along which a scale changes, given those of its operand; `None` if the scale cannot be seen
/// through the view.
fn through(graph: &Graph, view: NodeId, along: &Shape) -> Option<Shape> {
    let node = graph.node(view);
    let (NodeKind::View(kind), [below]) = (&node.kind, &node.operands[..]) else {
        return None;
    };
    let from = &graph.ty(*below).shape;
    // Whether an axis stays as it is if the scale changes along it.
    let keeps = |stays: &dyn Fn(usize) -> bool| (0..from.len()).all(|axis| along[axis].is(1) || stays(axis));
    match kind {
        View::Permute(axes) => Some(axes.iter().map(|&a| along[usize::from(a)].clone()).collect()),
        View::Expand(to) => {
            let mut all: Shape = smallvec![IndexExpr::ONE; to.len() - from.len()];
            all.extend(along.iter().cloned());
            Some(all)
        }
        View::Pad { lo, hi, interior, .. } => {
            keeps(&|axis| lo[axis].is(0) && hi[axis].is(0) && interior[axis] == 0).then(|| along.clone())
        }
        View::Window { axis, .. } => keeps(&|a| a != usize::from(*axis)).then(|| {
            let mut all = along.clone();
            all.push(IndexExpr::ONE);
            all
        }),
        View::Reshape(to) => regrouped(from, along, to),
        // What is the same everywhere is so in a part.
        _ => all_ones(along).then(|| smallvec![IndexExpr::ONE; node.ty.rank()]),
    }
}

/// As [`through`], of a reshape: axes that become one, or of one several, are all such along which the scale changes, or none.
fn regrouped(from: &Shape, along: &Shape, to: &Shape) -> Option<Shape> {
    let mut all: Shape = smallvec![IndexExpr::ONE; to.len()];
    if all_ones(along) {
        return Some(all);
    }
    let (mut i, mut j) = (0, 0);
    loop {
        while from.get(i).is_some_and(|d| d.is(1)) {
            i += 1;
        }
        while to.get(j).is_some_and(|d| d.is(1)) {
            j += 1;
        }
        let (Some(a), Some(b)) = (from.get(i), to.get(j)) else {
            return (i == from.len() && j == to.len()).then_some(all);
        };
        let (mut ends, mut equal) = ([i + 1, j + 1], a == b);
        if !equal {
            let mut sizes = [a.as_const()?, b.as_const()?];
            while sizes[0] != sizes[1] {
                let (side, of) = if sizes[0] < sizes[1] { (0, from) } else { (1, to) };
                sizes[side] = sizes[side].checked_mul(of.get(ends[side])?.as_const()?)?;
                ends[side] += 1;
            }
            equal = sizes[0] > 0;
        }
        let changes = |axis: usize| !from[axis].is(1) && !along[axis].is(1);
        let whole = (i..ends[0]).all(|axis| from[axis].is(1) || changes(axis));
        match (i..ends[0]).any(changes) {
            // Known extents, but for those of one axis that stays as it is.
            true if equal && whole && ends[0] == i + 1 && ends[1] == j + 1 => all[j] = along[i].clone(),
            true if equal && whole => all[j..ends[1]].clone_from_slice(&to[j..ends[1]]),
            true => return None,
            false => {}
        }
        [i, j] = ends;
    }
}

/// The differences of bytes from zero points that a value of f32 is made of.
fn differences(graph: &Graph, value: NodeId) -> Option<NodeId> {
    let node = graph.node(value);
    let NodeKind::Convert(DType::F32) = node.kind else {
        return None;
    };
    let below = graph.node(node.operands[0]);
    let is_byte = |n: NodeId| matches!(graph.ty(n).dtype, DType::U8 | DType::I8);
    let of_byte = |n: NodeId| match graph.node(n).kind {
        NodeKind::Convert(DType::I32) => Some(graph.node(n).operands[0]).filter(|b| is_byte(*b)),
        _ => None,
    };
    let fits = match below.kind {
        NodeKind::Convert(DType::I32) => is_byte(below.operands[0]),
        NodeKind::Map(ScalarOp::Sub) => {
            let dtype = graph.ty(of_byte(below.operands[0])?).dtype;
            is_zero_point(graph, below.operands[1], dtype)
        }
        _ => false,
    };
    fits.then_some(node.operands[0])
}

/// Whether a value is a constant of numbers that may be multiplied by another such in any order.
fn is_scale(graph: &Graph, mut at: NodeId) -> bool {
    let fits = |v: Scalar| (SCALES[0]..=SCALES[1]).contains(&v.as_f64().abs());
    loop {
        let node = graph.node(at);
        match &node.kind {
            NodeKind::View(View::Reshape(_)) => at = node.operands[0],
            NodeKind::Const(value) => return fits(*value),
            NodeKind::Data(data) => {
                let count: usize = data.0.shape().iter().product();
                return (0..count).all(|i| fits(data.0.get(i)));
            }
            _ => return false,
        }
    }
}

/// The sum over integers, scaled; `None` if no words are made of it, nor do floats add it up exactly.
fn sum_of_integers(
    re: &mut Rebuilder,
    node: &Node,
    sides: &[Side; 2],
    fixed: &Fixed,
    by: Multipliers<'_>,
) -> Result<Option<NodeId>, GraphError> {
    let NodeKind::Einsum { inputs, output, .. } = &node.kind else {
        return Ok(None);
    };
    let zero = DType::I32.zero();
    let mut operands: SmallVec<[NodeId; 2]> = SmallVec::new();
    for side in sides {
        operands.push(side.views.iter().rev().try_fold(side.value, |at, &v| {
            let kind = match &re.graph.node(v).kind {
                NodeKind::View(view) => NodeKind::View(view.filled_with(zero)),
                other => other.clone(),
            };
            re.add(kind, &[at])
        })?);
    }
    let kind = NodeKind::Einsum {
        inputs: inputs.clone(),
        output: output.clone(),
        semiring: Semiring::AddMul,
        accumulator: DType::I32,
        dtype: DType::I32,
    };
    let ty = TensorType {
        dtype: DType::I32,
        ..node.ty.clone()
    };
    let integers = Node::new(kind, node.operands.clone(), ty, node.origin.clone());
    let sum = match over_words(re, &integers, &operands, fixed, by)? {
        Some(sum) => re.add(NodeKind::Convert(DType::F32), &[sum])?,
        None => match over_floats(re, &integers, &operands, by.emitter)? {
            Some(sum) => sum,
            None => return Ok(None),
        },
    };
    let shape = node.ty.shape.clone();
    let broadcast = |re: &mut Rebuilder, side: &Side, labels: &Labels| {
        let mut from: Shape = smallvec![IndexExpr::ONE; shape.len()];
        for (d, l) in side.along.iter().zip(labels) {
            if !d.is(1)
                && let Some(axis) = output.iter().position(|o| o == l)
            {
                from[axis] = d.clone();
            }
        }
        re.reshape(side.scale, &from)
    };
    let (a, b) = (
        broadcast(re, &sides[0], &inputs[0])?,
        broadcast(re, &sides[1], &inputs[1])?,
    );
    let all = if all_ones(&re.graph.ty(a).shape) { b } else { a };
    let small = re.graph.ty(all).shape.clone();
    let same = re.graph.ty(a).shape == re.graph.ty(b).shape;
    let both = sides.iter().all(|s| !all_ones(&s.along));
    let expanded = |re: &mut Rebuilder, x: NodeId, to: &Shape| match re.graph.ty(x).shape == *to {
        true => Ok(x),
        false => re.add(NodeKind::View(View::Expand(to.clone())), &[x]),
    };
    // Of one number and those along an axis there is a product for each of them; of two axes one for each result.
    let of = if both && !same { shape.clone() } else { small };
    let (a, b) = (expanded(re, a, &of)?, expanded(re, b, &of)?);
    let scale = re.add(NodeKind::Map(ScalarOp::Mul), &[a, b])?;
    let scale = expanded(re, scale, &shape)?;
    re.add(NodeKind::Map(ScalarOp::Mul), &[sum, scale]).map(Some)
}
