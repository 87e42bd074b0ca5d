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
//! - It is done where words are made of the bytes, and nowhere else: other sums of integers take longer than those of floats.

use smallvec::{SmallVec, smallvec};
use tlc_ir::graph::{GraphError, Labels, Semiring, Shape, View};
use tlc_ir::index::IndexExpr;
use tlc_ir::target::Emitter;
use tlc_ir::{DType, Graph, Node, NodeId, NodeKind, Scalar, ScalarOp, TensorType};

use super::panels::Fixed;
use super::words::{is_zero_point, over_words, word_emitter};
use super::{Context, Failure, Pass, Rebuilder, all_ones};

/// The longest sum: of as many products of differences of bytes none leaves the range of i32.
const LONGEST_SUM: i64 = i32::MAX as i64 / (255 * 255);
/// The powers of two between which scales lie.
const SCALES: [f64; 2] = [1.0 / (1u64 << 60) as f64, (1u64 << 60) as f64];

/// Products of dequantized bytes with weights that never change, over words of bytes.
pub struct Dequantized;

impl Pass for Dequantized {
    fn name(&self) -> &'static str {
        "dequantized"
    }

    fn run(&self, graph: &Graph, context: &mut Context<'_>) -> Result<Graph, Failure> {
        match word_emitter(context) {
            Some(emitter) => Ok(run(graph, emitter)?),
            None => Ok(graph.clone()),
        }
    }
}

/// Takes the scales out of the sums of which words are made for the emitter.
///
/// # Errors
/// Never for a verified graph.
pub fn run(graph: &Graph, emitter: &Emitter) -> Result<Graph, GraphError> {
    let fixed = Fixed::new(graph, &|_| false);
    super::rebuild(graph, &mut |re, id, node, operands| {
        if !fixed.contains(id)
            && let Some(sides) = sides(&re.graph, node, operands)
            && let Some(new) = sum_of_integers(re, node, &sides, &fixed, emitter)?
        {
            return Ok(new);
        }
        re.add(node.kind.clone(), operands)
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
    /// The label of the operand along which the scale changes, if it does.
    along: Option<u16>,
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
        for (axis, l) in labels.iter().enumerate().filter(|(_, l)| !output.contains(l)) {
            if labels[..axis].contains(l) || !(of_a.contains(l) && of_b.contains(l)) {
                return None;
            }
            if operand == a {
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
    let shape = &graph.ty(scale).shape;
    let mut long = shape.iter().enumerate().filter(|(_, d)| !d.is(1));
    let along = match (long.next(), long.next()) {
        (None, _) => None,
        // As the operand's axes lie, which no view has moved since.
        (Some((axis, _)), None) if views.is_empty() => {
            let l = labels[axis + labels.len().checked_sub(shape.len())?];
            Some(l).filter(|l| output.contains(l)).map(Some)?
        }
        _ => return None,
    };
    is_scale(graph, scale).then_some(Side {
        value,
        views,
        scale,
        along,
    })
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

/// The sum over integers, scaled; `None` if no words are made of it.
fn sum_of_integers(
    re: &mut Rebuilder,
    node: &Node,
    sides: &[Side; 2],
    fixed: &Fixed,
    emitter: &Emitter,
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
    let integers = Node {
        kind,
        operands: node.operands.clone(),
        ty: TensorType {
            dtype: DType::I32,
            ..node.ty.clone()
        },
        results: node.results.clone(),
        origin: node.origin.clone(),
    };
    let Some(sum) = over_words(re, &integers, &operands, fixed, emitter)? else {
        return Ok(None);
    };
    let sum = re.add(NodeKind::Convert(DType::F32), &[sum])?;
    let shape = node.ty.shape.clone();
    let broadcast = |re: &mut Rebuilder, side: &Side| {
        let mut from: Shape = smallvec![IndexExpr::ONE; shape.len()];
        if let Some(axis) = side.along.and_then(|l| output.iter().position(|o| *o == l)) {
            from[axis] = shape[axis].clone();
        }
        re.reshape(side.scale, &from)
    };
    let (a, b) = (broadcast(re, &sides[0])?, broadcast(re, &sides[1])?);
    let all = if all_ones(&re.graph.ty(a).shape) { b } else { a };
    let small = re.graph.ty(all).shape.clone();
    let same = re.graph.ty(a).shape == re.graph.ty(b).shape;
    let both = [&sides[0], &sides[1]].iter().all(|s| s.along.is_some());
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
