//! Sums of products of bytes of which no words are made, by f32. Short ones, those of each channel of an image alone among them, it adds up
//! exactly: it has all their values. Longer ones, as of two values that each call brings, are sums of such.

use smallvec::SmallVec;
use tlc_ir::graph::{GraphError, Labels, Semiring, View};
use tlc_ir::target::{AccessKind, Emitter};
use tlc_ir::{DType, Graph, Node, NodeId, NodeKind, Scalar, ScalarOp};

use super::{FEWEST_PRODUCTS, Zero, bytes, is_zero_point, map, part, splat, sum_of_integers, zero};
use crate::direct::has_overlaps;
use crate::rewrite::Rebuilder;
use crate::rewrite::widen::in_f32;

/// The longest sum of products of differences of bytes that f32 adds up without a rounding.
const LONGEST_SUM: i64 = (1 << 24) / (255 * 255);
/// The most parts that a longer one is cut into.
const MOST_PARTS: i64 = 32;

/// A sum of products of differences of bytes that f32 adds up exactly, at least in parts along one label.
struct SumOfFloats<'n> {
    inputs: &'n [Labels],
    output: &'n Labels,
    /// What is cut, how long it is, and the longest part.
    label: u16,
    extent: i64,
    longest: i64,
}

impl SumOfFloats<'_> {
    fn of<'n>(graph: &Graph, node: &'n Node, operands: &[NodeId]) -> Option<SumOfFloats<'n>> {
        let (inputs, output) = sum_of_integers(node)?;
        let is_difference = |o: &NodeId| {
            let of = bytes(graph, *o);
            of.is_some_and(|of| of.zero.is_none_or(|z| is_zero_point(graph, z, of.dtype)))
        };
        if operands.len() != 2 || !operands.iter().all(is_difference) {
            return None;
        }
        let mut summed: SmallVec<[(u16, i64); 4]> = SmallVec::new();
        for (labels, o) in inputs.iter().zip(operands) {
            for (l, d) in labels.iter().zip(&graph.ty(*o).shape) {
                if !output.contains(l) && !summed.iter().any(|(of, _)| of == l) {
                    summed.push((*l, d.as_const()?));
                }
            }
        }
        let length = summed.iter().try_fold(1i64, |n, (_, d)| n.checked_mul(*d))?;
        let results = node.ty.elements().as_const();
        if length < 2 || results.is_some_and(|n| n.saturating_mul(length) < FEWEST_PRODUCTS) {
            return None;
        }
        let (label, extent) = summed.into_iter().max_by_key(|(_, d)| *d)?;
        let longest = LONGEST_SUM / (length / extent);
        (longest > 0).then_some(SumOfFloats {
            inputs,
            output,
            label,
            extent,
            longest,
        })
    }

    /// The operands in f32.
    fn wide(re: &mut Rebuilder, operands: &[NodeId], emitter: &Emitter) -> Result<SmallVec<[NodeId; 2]>, GraphError> {
        let mut wide = SmallVec::new();
        for &o in operands {
            let stored = has_overlaps(&re.graph, o);
            wide.push(match strided_bytes(re, o, emitter)? {
                Some(image) => image,
                None => in_f32(re, o, stored, Some(emitter.lanes(DType::F32)))?,
            });
        }
        Ok(wide)
    }

    fn add(&self, re: &mut Rebuilder, wide: &[NodeId]) -> Result<NodeId, GraphError> {
        let kind = NodeKind::Einsum {
            inputs: self.inputs.iter().cloned().collect(),
            output: self.output.clone(),
            semiring: Semiring::AddMul,
            accumulator: DType::F32,
            dtype: DType::F32,
        };
        re.add(kind, wide)
    }
}

/// The result of an einsum of i32 in f32, if it adds up so few products of bytes that each sum is a number of f32: for these there are tiles and
/// lanes where there are none for words, as of each channel of an image alone. Operands are those in the new graph.
pub(in crate::rewrite) fn over_floats(
    re: &mut Rebuilder,
    node: &Node,
    operands: &[NodeId],
    emitter: &Emitter,
) -> Result<Option<NodeId>, GraphError> {
    match SumOfFloats::of(&re.graph, node, operands).filter(|sum| sum.extent <= sum.longest) {
        Some(sum) => {
            let wide = SumOfFloats::wide(re, operands, emitter)?;
            sum.add(re, &wide).map(Some)
        }
        None => Ok(None),
    }
}

/// As [`over_floats`], in i32, and longer sums in parts, whose sums are added as integers.
pub(super) fn over_floats_in_parts(
    re: &mut Rebuilder,
    node: &Node,
    operands: &[NodeId],
    emitter: &Emitter,
) -> Result<Option<NodeId>, GraphError> {
    let Some(sum) = SumOfFloats::of(&re.graph, node, operands) else {
        return Ok(None);
    };
    let parts = (sum.extent + sum.longest - 1) / sum.longest;
    if parts > MOST_PARTS {
        return Ok(None);
    }
    let wide = SumOfFloats::wide(re, operands, emitter)?;
    let size = (sum.extent + parts - 1) / parts;
    let mut all: Option<NodeId> = None;
    for start in (0..sum.extent).step_by(size as usize) {
        let mut of = wide.clone();
        for (o, labels) in of.iter_mut().zip(sum.inputs) {
            if let Some(axis) = labels.iter().position(|l| *l == sum.label) {
                *o = part(re, *o, axis, start, size.min(sum.extent - start))?;
            }
        }
        let floats = sum.add(re, &of)?;
        let whole = re.add(NodeKind::Convert(DType::I32), &[floats])?;
        all = Some(match all {
            Some(before) => map(re, ScalarOp::Add, before, whole)?,
            None => whole,
        });
    }
    Ok(all)
}

/// An image that windows read with a stride along its rows: bytes that are padded where they are stored, and converted to f32 where windows
/// read them, which is a fourth of the memory. `None` of what is no such image, and where lanes do not load every other byte.
fn strided_bytes(re: &mut Rebuilder, operand: NodeId, emitter: &Emitter) -> Result<Option<NodeId>, GraphError> {
    let graph = &re.graph;
    let Some(of) = bytes(graph, operand).filter(|of| graph.ty(of.value).dtype == of.dtype) else {
        return Ok(None);
    };
    let Zero::Known(z) = zero(graph, &of) else {
        return Ok(None);
    };
    let view = |v: &NodeId| match &graph.node(*v).kind {
        NodeKind::View(view) => Some(view.clone()),
        _ => None,
    };
    let views: Vec<View> = of.views.iter().filter_map(view).collect();
    let row = graph.ty(of.value).rank().checked_sub(1);
    let every_other = |view: &View| match view {
        View::Window {
            axis, stride: 2, size, ..
        } => Some(usize::from(*axis)) == row && !size.is(1),
        _ => false,
    };
    if !emitter.access(AccessKind::Apart).is_vector() || !views.iter().any(every_other) {
        return Ok(None);
    }
    let windows = views.iter().position(|v| matches!(v, View::Window { .. }));
    let (below, above) = views.split_at(windows.unwrap_or(views.len()));
    let fill = Scalar::from_i64(of.dtype, z);
    let padded = (below.iter()).try_fold(of.value, |at, v| re.add(NodeKind::View(v.filled_with(fill)), &[at]))?;
    let stored = re.add(NodeKind::Copy, &[padded])?;
    let whole = re.add(NodeKind::Convert(DType::I32), &[stored])?;
    let difference = match z {
        0 => whole,
        z => {
            let shape = re.graph.ty(whole).shape.clone();
            let z = splat(re, z, &shape)?;
            map(re, ScalarOp::Sub, whole, z)?
        }
    };
    let wide = re.add(NodeKind::Convert(DType::F32), &[difference])?;
    let zero = DType::F32.zero();
    (above.iter())
        .try_fold(wide, |at, v| re.add(NodeKind::View(v.filled_with(zero)), &[at]))
        .map(Some)
}
