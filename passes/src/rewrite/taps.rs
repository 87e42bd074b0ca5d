//! Sums over windows without the elements of a window that are padding wherever it stands.
//!
//! A window with a dilation as wide as the image has but one element inside of it: the others are padding for every result, and what
//! they add is zero times a weight. They are left out, with the weights that they would be multiplied by and the padding that nothing
//! reads any longer.
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
use tlc_ir::{DType, Graph, HostTensor, Node, NodeId, NodeKind};

use super::Rebuilder;

/// A sliding window over an axis of the image.
#[derive(Clone, Copy)]
struct Window {
    axis: usize,
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

/// A sum over windows of which some elements are left out.
pub(super) struct Shortened {
    /// Which operand the windows are, and which the weights.
    operands: [usize; 2],
    /// The padding before each axis of the image.
    before: Vec<i64>,
    windows: SmallVec<[Window; 3]>,
}

/// What a sum over windows is without the elements that are padding for all results, if it has some.
pub(super) fn shortened(graph: &Graph, node: &Node) -> Option<Shortened> {
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
    [[0, 1], [1, 0]].into_iter().find_map(|operands| {
        let s = windows(graph, node, operands, inputs, output)?;
        let less = s.windows.iter().any(|w| w.inside != [0, w.size]);
        let weights = constant(graph, node.operands[operands[1]]).filter(|_| less)?;
        numbers_outside(weights, &s.windows).then_some(s)
    })
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
        let meets = |t: &i64| {
            let first = t * dilation - before[axis];
            // The first place whose element is not before the image.
            let skipped = (-first).max(0).div_euclid(stride) + i64::from((-first).max(0).rem_euclid(stride) > 0);
            skipped < places && first + skipped * stride < extent
        };
        let from = (0..size).find(meets).unwrap_or(0);
        let to = (0..size).rev().find(meets).map_or(from + 1, |t| t + 1);
        found.push(Window {
            axis,
            size,
            stride,
            dilation,
            places,
            weights_axis: of_weights.iter().position(|l| *l == label)?,
            inside: [from, to],
        });
    }
    // As they are applied: the last that was met is the first.
    found.reverse();
    Some(Shortened {
        operands,
        before,
        windows: found,
    })
}

fn constant(graph: &Graph, weights: NodeId) -> Option<&HostTensor> {
    match &graph.node(weights).kind {
        NodeKind::Data(data) if matches!(data.0.dtype(), DType::F32 | DType::F64) => Some(&data.0),
        _ => None,
    }
}

/// Whether all weights that would be left out are numbers.
fn numbers_outside(weights: &HostTensor, windows: &[Window]) -> bool {
    let shape = weights.shape();
    let elements: usize = shape.iter().product();
    let left_out = |i: usize| {
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
    all || (0..elements).all(|i| weights.get(i).as_f64().is_finite() || !left_out(i))
}

/// Some elements of each axis of a value, from `start` on.
fn part(re: &mut Rebuilder, x: NodeId, start: Shape, size: Shape) -> Result<NodeId, GraphError> {
    if re.graph.ty(x).shape == size {
        return Ok(x);
    }
    let step = smallvec![1; size.len()];
    re.add(NodeKind::View(View::Slice { start, step, size }), &[x])
}

impl Shortened {
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
        let (value, mut lo, mut hi) = (*value, self.constants(&self.before), hi.clone());
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
            let interior = smallvec![0; lo.len()];
            x = re.add(
                NodeKind::View(View::Pad {
                    lo,
                    hi,
                    interior,
                    value,
                }),
                &[x],
            )?;
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
