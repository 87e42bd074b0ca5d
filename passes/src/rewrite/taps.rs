//! Sums over windows without the elements of a window that are padding wherever it stands.
//!
//! A window with a dilation as wide as the image has but one element inside of it: the others are padding for every result, and what
//! they add is zero times a weight. They are left out, with the weights that they would be multiplied by and the padding that nothing
//! reads any longer.
//!
//! Where it is about as wide as that, most places of a window are such that some of its elements are padding. Rows of the result that have
//! the same elements inside are then a sum of their own, and their results are put together.
//!
//! Invariants:
//! - Only padding with zero is left out, and only where the weights that it meets are numbers: zero times an infinity is none. So they are
//!   constants, which are looked at here.
//! - At least one element of a window stays, so that the sum is of the same kind.
//! - It is done where a kernel adds up products one after another (`crate::direct`): leaving out zeros leaves the bits of such a sum as they
//!   are, and so those of a graph whose image has any size, unless all of the sum would be too long for a kernel.

use smallvec::{SmallVec, smallvec};
use tlc_ir::graph::{GraphError, Labels, Semiring, Shape, View};
use tlc_ir::index::IndexExpr;
use tlc_ir::{DType, Graph, HostTensor, Node, NodeId, NodeKind, Scalar, ScalarOp};

use super::Rebuilder;

/// The most sums that rows are divided among: each has weights and code of its own.
const MOST_PARTS: usize = 5;
/// The most places of a window that are looked at.
const MOST_PLACES: i64 = 1 << 12;
/// The fewest multiply-adds that division saves.
const FEWEST_SAVED: i64 = 1 << 20;
/// As many pay for weights of each part's own where division saves a sixth of all and not a third.
const FEWEST_SAVED_OF_MANY: i64 = 1 << 26;

/// A sliding window over an axis of the image.
#[derive(Clone, Copy)]
struct Window {
    axis: usize,
    /// The axis of the result that has its places.
    result_axis: Option<usize>,
    /// Extent of the image.
    extent: i64,
    size: i64,
    stride: i64,
    dilation: i64,
    /// Where it stands.
    places: i64,
    /// The axis of the weights that goes along it.
    weights_axis: usize,
    /// The elements of it that are inside of the image for some place.
    inside: [i64; 2],
}

impl Window {
    /// The elements that are inside of the image for some of the places, where so much padding is before it.
    fn inside(&self, before: i64, places: std::ops::Range<i64>) -> [i64; 2] {
        let meets = |t: &i64| {
            let first = t * self.dilation - before;
            // The first place whose element is not before the image.
            let skipped =
                (-first).max(0).div_euclid(self.stride) + i64::from((-first).max(0).rem_euclid(self.stride) > 0);
            let place = skipped.max(places.start);
            place < places.end && first + place * self.stride < self.extent
        };
        let from = (0..self.size).find(meets).unwrap_or(0);
        let to = (0..self.size).rev().find(meets).map_or(from + 1, |t| t + 1);
        [from, to]
    }
}

/// A sum over windows of which some elements are left out.
#[derive(Clone)]
pub(super) struct Shortened {
    /// Which operand the windows are, and which the weights.
    operands: [usize; 2],
    /// The padding before each axis of the image.
    before: Vec<i64>,
    windows: SmallVec<[Window; 3]>,
    /// Products that are added up for a result, with all elements of windows.
    length: i64,
}

/// The sums over windows that one is, without the elements that are padding for all results of each; none if none are left out.
pub(super) fn shortened(graph: &Graph, node: &Node) -> SmallVec<[Shortened; 1]> {
    let Some(all) = windows_of(graph, node) else {
        return SmallVec::new();
    };
    let numbers = |parts: &[Shortened]| {
        let weights = constant(graph, node.operands[all.operands[1]]);
        !parts.is_empty() && weights.is_some_and(|data| numbers_outside(data, parts))
    };
    let divided = all.divided(&node.ty.shape);
    if divided.len() > 1 && numbers(&divided) {
        return divided;
    }
    let less = all.windows.iter().any(|w| w.inside != [0, w.size]);
    let one: SmallVec<[Shortened; 1]> = if less { smallvec![all.clone()] } else { SmallVec::new() };
    match numbers(&one) {
        true => one,
        false => SmallVec::new(),
    }
}

fn windows_of(graph: &Graph, node: &Node) -> Option<Shortened> {
    let NodeKind::Einsum {
        inputs,
        output,
        semiring: Semiring::AddMul,
        ..
    } = &node.kind
    else {
        return None;
    };
    let ([_, _], [_, _]) = (&inputs[..], &node.operands[..]) else {
        return None;
    };
    let of = |operands| windows(graph, node, operands, inputs, output);
    [[0, 1], [1, 0]].into_iter().find_map(of)
}

/// The windows that an operand is, if it is nothing but windows over a padded image and the other operand goes along them.
fn windows(graph: &Graph, node: &Node, operands: [usize; 2], inputs: &[Labels], output: &Labels) -> Option<Shortened> {
    let (of_image, of_weights) = (&inputs[operands[0]], &inputs[operands[1]]);
    let mut at = node.operands[operands[0]];
    let mut slid: SmallVec<[NodeId; 3]> = SmallVec::new();
    while let NodeKind::View(View::Window { .. }) = graph.node(at).kind {
        slid.push(at);
        at = graph.node(at).operands[0];
    }
    let NodeKind::View(View::Pad {
        lo, interior, value, ..
    }) = &graph.node(at).kind
    else {
        return None;
    };
    let rank = graph.ty(at).rank();
    let zero = value.bits() == value.dtype().zero().bits() && interior.iter().all(|p| *p == 0);
    if !zero || slid.is_empty() {
        return None;
    }
    let image = graph.node(at).operands[0];
    let before = lo.iter().map(IndexExpr::as_const).collect::<Option<Vec<i64>>>()?;
    let shape = &graph.ty(node.operands[operands[0]]).shape;
    let mut found: SmallVec<[Window; 3]> = SmallVec::new();
    for id in slid {
        let NodeKind::View(View::Window {
            axis,
            size,
            stride,
            dilation,
        }) = &graph.node(id).kind
        else {
            return None;
        };
        let (axis, size, stride, dilation) = (usize::from(*axis), size.as_const()?, *stride, *dilation);
        // The last axis runs through the window.
        let label = of_image[graph.ty(id).rank() - 1];
        let once = |of: &Labels| of.iter().filter(|l| **l == label).count() == 1;
        if axis >= rank || found.iter().any(|w| w.axis == axis) || output.contains(&label) {
            return None;
        }
        if !once(of_image) || !once(of_weights) {
            return None;
        }
        let (places, extent) = (shape[axis].as_const()?, graph.ty(image).shape[axis].as_const()?);
        let mut window = Window {
            axis,
            result_axis: output.iter().position(|l| *l == of_image[axis]),
            extent,
            size,
            stride,
            dilation,
            places,
            weights_axis: of_weights.iter().position(|l| *l == label)?,
            inside: [0, size],
        };
        window.inside = window.inside(before[axis], 0..places);
        found.push(window);
    }
    // As they are applied: the last that was met is the first.
    found.reverse();
    let weights = &graph.ty(node.operands[operands[1]]).shape;
    let summed = of_weights.iter().zip(weights).filter(|(l, _)| !output.contains(l));
    let length = summed.fold(1i64, |n, (_, d)| n.saturating_mul(d.as_const().unwrap_or(0)));
    Some(Shortened {
        operands,
        before,
        windows: found,
        length,
    })
}

fn constant(graph: &Graph, weights: NodeId) -> Option<&HostTensor> {
    match &graph.node(weights).kind {
        NodeKind::Data(data) if matches!(data.0.dtype(), DType::F32 | DType::F64) => Some(&data.0),
        _ => None,
    }
}

/// Whether all weights that would be left out are numbers.
fn numbers_outside(weights: &HostTensor, parts: &[Shortened]) -> bool {
    let shape = weights.shape();
    let elements: usize = shape.iter().product();
    let left_out = |i: usize, windows: &[Window]| {
        let mut inner = 1;
        for (axis, extent) in shape.iter().enumerate().rev() {
            let at = (i / inner % extent) as i64;
            let outside = |w: &Window| w.weights_axis == axis && !(w.inside[0]..w.inside[1]).contains(&at);
            if windows.iter().any(outside) {
                return true;
            }
            inner *= extent;
        }
        false
    };
    // All at once first: nearly always all of them are.
    let all = match (weights.as_slice::<f32>(), weights.as_slice::<f64>()) {
        (Some(all), _) => all.iter().all(|v| v.is_finite()),
        (_, Some(all)) => all.iter().all(|v| v.is_finite()),
        _ => false,
    };
    all || (0..elements).all(|i| weights.get(i).as_f64().is_finite() || !parts.iter().any(|p| left_out(i, &p.windows)))
}

/// Some elements of each axis of a value, from `start` on.
fn part(re: &mut Rebuilder, x: NodeId, start: Shape, size: Shape) -> Result<NodeId, GraphError> {
    if re.graph.ty(x).shape == size {
        return Ok(x);
    }
    let step = vec![1; size.len()].into();
    let (start, size) = (start.into_boxed_slice(), size.into_boxed_slice());
    re.add(NodeKind::View(View::Slice { start, step, size }), &[x])
}

/// Values of equal extents but for an axis, along which they lie one behind the other.
pub(super) fn joined(re: &mut Rebuilder, parts: &[NodeId], axis: usize) -> Result<NodeId, GraphError> {
    let (&first, others) = parts.split_first().expect("one part at least");
    let shape_of = |re: &Rebuilder, of: NodeId| re.graph.ty(of).shape.clone();
    let mut shape = shape_of(re, first);
    for &part in others {
        shape[axis] = shape[axis].clone() + shape_of(re, part)[axis].clone();
    }
    let (mut so_far, mut end) = (first, shape_of(re, first)[axis].clone());
    let all = shape[axis].clone();
    let spread = |re: &mut Rebuilder, x: NodeId, before: IndexExpr, behind: IndexExpr, value| {
        let zero: Shape = smallvec![IndexExpr::ZERO; shape.len()];
        let (mut lo, mut hi) = (zero.clone(), zero);
        (lo[axis], hi[axis]) = (before, behind);
        re.padded(x, lo, hi, value)
    };
    let zero = re.graph.ty(first).dtype.zero();
    let behind = all.clone() - end.clone();
    so_far = spread(re, so_far, IndexExpr::ZERO, behind, zero)?;
    for &part in others {
        let next = end.clone() + shape_of(re, part)[axis].clone();
        let part = spread(re, part, end.clone(), all.clone() - next.clone(), zero)?;
        let mut column: Shape = smallvec![IndexExpr::ONE; shape.len()];
        column[axis] = end.clone();
        let before = re.splat(Scalar::from_bool(true), &column)?;
        let before = spread(re, before, IndexExpr::ZERO, all.clone() - end, Scalar::from_bool(false))?;
        let before = re.add(NodeKind::View(View::Expand(shape.clone())), &[before])?;
        so_far = re.add(NodeKind::Map(ScalarOp::Select), &[before, so_far, part])?;
        end = next;
    }
    // Which part a row is of is asked here and nowhere else.
    re.add(NodeKind::Copy, &[so_far])
}

impl Shortened {
    /// The axis of the result along which [`shortened`] divides it.
    pub(super) fn divided_axis(&self) -> Option<usize> {
        self.windows.first()?.result_axis
    }

    /// Sums for the ranges of the first windows' places that have the same elements inside, if together they multiply much less.
    fn divided(&self, result: &[IndexExpr]) -> SmallVec<[Shortened; 1]> {
        let Some(&rows) = self.windows.first() else {
            return SmallVec::new();
        };
        let before = self.before[rows.axis];
        let inside = |p: i64| rows.inside(before, p..p + 1);
        let mut ranges: SmallVec<[std::ops::Range<i64>; MOST_PARTS]> = SmallVec::new();
        for p in 0..rows.places.min(MOST_PLACES) {
            let full = ranges.len() == MOST_PARTS;
            match ranges.last_mut() {
                Some(last) if inside(last.start) == inside(p) => last.end = p + 1,
                _ if full => return SmallVec::new(),
                _ => ranges.push(p..p + 1),
            }
        }
        let elements = |[from, to]: [i64; 2]| to - from;
        let left: i64 = ranges
            .iter()
            .map(|r| (r.end - r.start) * elements(inside(r.start)))
            .sum();
        let all = rows.places.saturating_mul(elements(rows.inside));
        // Of all other elements of windows and weights, and of all other results, as many products.
        let others = |axes: &mut dyn Iterator<Item = i64>| axes.fold(1i64, |n, d| n.saturating_mul(d));
        let results = result.iter().enumerate().filter(|(k, _)| Some(*k) != rows.result_axis);
        let results = others(&mut results.map(|(_, d)| d.as_const().unwrap_or(0)));
        let saved = (all - left)
            .saturating_mul(results)
            .saturating_mul(self.length / rows.size);
        if ranges.len() < 2
            || ranges.last().is_none_or(|r| r.end != rows.places)
            || 6 * left > 5 * all
            || saved < FEWEST_SAVED
            || (3 * left > 2 * all && saved < FEWEST_SAVED_OF_MANY)
        {
            return SmallVec::new();
        }
        let part = |r: std::ops::Range<i64>| {
            let mut s = self.clone();
            s.windows[0].inside = inside(r.start);
            s.windows[0].places = r.end - r.start;
            s.before[rows.axis] = before - r.start * rows.stride;
            s
        };
        ranges.into_iter().map(part).collect()
    }

    /// How many elements of a window are left, of how many.
    pub(super) fn left(&self) -> [i64; 2] {
        self.windows.iter().fold([1, 1], |[left, all], w| {
            [left * (w.inside[1] - w.inside[0]), all * w.size]
        })
    }

    /// The operands of what is left, of those in the new graph.
    pub(super) fn operands(&self, re: &mut Rebuilder, operands: &[NodeId]) -> Result<Vec<NodeId>, GraphError> {
        let [windows, weights] = self.operands;
        // The image in the new graph, which the windows' views lie over there.
        let mut image = operands[windows];
        for _ in 0..=self.windows.len() {
            image = re.graph.node(image).operands[0];
        }
        let mut shape = re.graph.ty(image).shape.clone();
        let mut start: Shape = smallvec![IndexExpr::ZERO; shape.len()];
        let NodeKind::View(View::Pad { hi, value, .. }) = &self.padding(re, operands[windows]).kind else {
            return Ok(operands.to_vec());
        };
        let (value, mut lo, mut hi) = (*value, self.constants(&self.before), Shape::from(&hi[..]));
        for w in &self.windows {
            let extent = shape[w.axis].as_const().unwrap_or(0);
            // What the elements that stay touch, counted from the first of the image.
            let from = w.inside[0] * w.dilation - self.before[w.axis];
            let to = (w.inside[1] - 1) * w.dilation + w.stride * (w.places - 1) + 1 - self.before[w.axis];
            let (first, last) = (from.clamp(0, extent), to.clamp(0, extent));
            // Where nothing of the image is met the one element that stays is padding.
            let last = last.max(first);
            start[w.axis] = IndexExpr::Const(first);
            shape[w.axis] = IndexExpr::Const(last - first);
            lo[w.axis] = IndexExpr::Const((first - from).min(to - from).max(0));
            hi[w.axis] = IndexExpr::Const((to - from) - (last - first) - (first - from).min(to - from).max(0));
        }
        let mut x = part(re, image, start, shape)?;
        if lo.iter().chain(&hi).any(|p| !p.is(0)) {
            x = re.padded(x, lo, hi, value)?;
        }
        for w in &self.windows {
            let view = View::Window {
                axis: w.axis as u8,
                size: IndexExpr::Const(w.inside[1] - w.inside[0]),
                stride: w.stride,
                dilation: w.dilation,
            };
            x = re.add(NodeKind::View(view), &[x])?;
        }
        let mut size = re.graph.ty(operands[weights]).shape.clone();
        let mut start: Shape = smallvec![IndexExpr::ZERO; size.len()];
        for w in &self.windows {
            start[w.weights_axis] = IndexExpr::Const(w.inside[0]);
            size[w.weights_axis] = IndexExpr::Const(w.inside[1] - w.inside[0]);
        }
        let mut values = operands.to_vec();
        values[weights] = part(re, operands[weights], start, size)?;
        values[windows] = x;
        Ok(values)
    }

    /// The padding below the windows.
    fn padding<'r>(&self, re: &'r Rebuilder, windows: NodeId) -> &'r Node {
        let mut at = windows;
        for _ in &self.windows {
            at = re.graph.node(at).operands[0];
        }
        re.graph.node(at)
    }

    fn constants(&self, of: &[i64]) -> Shape {
        of.iter().map(|n| IndexExpr::Const(*n)).collect()
    }
}
