//! Sums over dilated windows of padded images of unknown size, which the library computes from the image, without the padding.
//!
//! Most elements of a window whose dilation is about as wide as the image are padding. Which are is not known before sizes are, so that the library
//! leaves them out: each operand's element that is beyond the image is none ([`WindowedAxis`]). What it leaves out is zero times a weight, so weights are
//! constants, and numbers. (Where sizes are known `rewrite/taps.rs` takes the sum apart instead.)
//!
//! The library takes the elements of a window one after another, each with all channels, as weights have to lie then: [`weights_order`] says how,
//! and a product is one of these if its weights lie so.

use smallvec::SmallVec;
use tlc_ir::graph::{Labels, Semiring, View};
use tlc_ir::index::IndexExpr;
use tlc_ir::plan::{StridedDim, Strides, Windowed, WindowedAxis};
use tlc_ir::{DType, Graph, NodeId, NodeKind};

use super::{Strided, strided};
use crate::access::repeats;

/// A sum over windows of a padded image.
pub(super) struct PaddedWindows {
    /// Which operand the windows are.
    pub(super) operand: usize,
    /// Labels of windows' elements, and then of channels: the order of the sum.
    pub(super) summed: SmallVec<[usize; 4]>,
    axes: Vec<Axis>,
    image: NodeId,
    /// The label of each axis of the image: that of places where windows slide over it.
    labels: Labels,
    before: Vec<IndexExpr>,
}

/// An axis that windows slide over.
struct Axis {
    axis: usize,
    /// Labels of places, and of elements of a window.
    place: usize,
    element: usize,
    stride: i64,
    dilation: i64,
}

/// The least dilation of windows whose elements lie far apart: an image is often no larger.
const FAR: i64 = 6;
/// The fewest products of a long sum over such windows.
const LONG: i64 = 1 << 13;

/// Which sums are looked for.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Of {
    /// Those whose weights may be laid out for the library.
    Any,
    /// Those whose weights are.
    LaidOut,
}

/// The windows of a sum over dilated windows of a padded image of which some size is not known.
pub(super) fn padded_windows(graph: &Graph, id: NodeId, of: Of) -> Option<PaddedWindows> {
    let node = graph.node(id);
    let NodeKind::Einsum {
        inputs,
        output,
        semiring: Semiring::AddMul,
        accumulator,
        dtype: dtype @ (DType::F32 | DType::F64),
    } = &node.kind
    else {
        return None;
    };
    let ([_, _], [a, b]) = (&inputs[..], &node.operands[..]) else {
        return None;
    };
    let plain = [*a, *b].iter().all(|&o| graph.ty(o).dtype == *dtype) && accumulator == dtype;
    if !plain || inputs.iter().any(repeats) {
        return None;
    }
    (0..2).find_map(|operand| of_operand(graph, id, (operand, of), inputs, output))
}

fn of_operand(
    graph: &Graph,
    id: NodeId,
    (operand, of): (usize, Of),
    inputs: &[Labels],
    output: &Labels,
) -> Option<PaddedWindows> {
    let (of_image, of_weights) = (&inputs[operand], &inputs[1 - operand]);
    let operands = &graph.node(id).operands;
    let mut at = operands[operand];
    let mut axes: Vec<Axis> = Vec::new();
    while let NodeKind::View(View::Window {
        axis, stride, dilation, ..
    }) = &graph.node(at).kind
    {
        // The last axis runs through the window.
        let element = usize::from(of_image[graph.ty(at).rank() - 1]);
        axes.push(Axis {
            axis: usize::from(*axis),
            place: usize::from(*of_image.get(usize::from(*axis))?),
            element,
            stride: *stride,
            dilation: *dilation,
        });
        at = graph.node(at).operands[0];
    }
    axes.reverse();
    let NodeKind::View(View::Pad {
        lo, interior, value, ..
    }) = &graph.node(at).kind
    else {
        return None;
    };
    let zero = value.bits() == value.dtype().zero().bits() && interior.iter().all(|p| *p == 0);
    let image = graph.node(at).operands[0];
    let shape = &graph.ty(image).shape;
    let windowed = |axis: usize| axes.iter().any(|a| a.axis == axis);
    // Only what windows slide over is padded.
    let mut others = (0..shape.len()).filter(|&k| !windowed(k));
    if !zero || others.any(|k| graph.ty(at).shape[k] != shape[k] || !lo[k].is(0)) {
        return None;
    }
    let has = |of: &Labels, l: usize| of.contains(&(l as u16));
    let fits = |(n, a): (usize, &Axis)| {
        let alone = axes[..n].iter().all(|b| b.axis != a.axis);
        let places = has(output, a.place) && !has(of_weights, a.place);
        alone && a.axis < shape.len() && places && has(of_weights, a.element) && !has(output, a.element)
    };
    let dilated = axes.iter().any(|a| a.dilation > 1);
    let unknown = axes
        .iter()
        .any(|a| shape.get(a.axis).is_some_and(|e| e.as_const().is_none()));
    if !dilated || !unknown || !axes.iter().enumerate().all(fits) {
        return None;
    }
    let elements: SmallVec<[usize; 4]> = axes.iter().map(|a| a.element).collect();
    let channels = of_image.iter().map(|&l| usize::from(l));
    let channels = channels.filter(|&l| !has(output, l) && !elements.contains(&l) && has(of_weights, l));
    let summed = elements.iter().copied().chain(channels).collect();
    let weights = operands[1 - operand];
    let laid_out = || {
        let copy = graph.node(weights);
        matches!(copy.kind, NodeKind::Copy)
            && matches!(graph.node(copy.operands[0]).kind, NodeKind::View(View::Permute(_)))
    };
    if of == Of::LaidOut && !laid_out() {
        return None;
    }
    numbers(graph, weights).then(|| PaddedWindows {
        operand,
        summed,
        axes,
        image,
        labels: of_image.iter().copied().take(shape.len()).collect(),
        before: lo.to_vec(),
    })
}

/// Whether weights are a constant, in whatever order, and numbers: zero times an infinity is none.
fn numbers(graph: &Graph, weights: NodeId) -> bool {
    let mut at = weights;
    while let NodeKind::Copy | NodeKind::View(View::Permute(_) | View::Reshape(_)) = graph.node(at).kind {
        at = graph.node(at).operands[0];
    }
    let NodeKind::Data(data) = &graph.node(at).kind else {
        return false;
    };
    match (data.0.as_slice::<f32>(), data.0.as_slice::<f64>()) {
        (Some(all), _) => all.iter().all(|v| v.is_finite()),
        (_, Some(all)) => all.iter().all(|v| v.is_finite()),
        _ => false,
    }
}

/// How the weights of a sum over dilated windows of a padded image of unknown size lie for the library.
pub struct WeightsOrder {
    /// Which operand they are.
    pub operand: usize,
    /// Their axes in that order: those that are summed behind the others.
    pub axes: SmallVec<[u8; 4]>,
    /// Elements of a window.
    pub elements: i64,
    /// Whether these lie so far apart that most may be padding, of so many channels that the library computes less sooner than a kernel computes all from a
    /// padded image.
    pub far: bool,
}

/// The order of the weights of such a sum, where they are in another one.
pub fn weights_order(graph: &Graph, id: NodeId) -> Option<WeightsOrder> {
    let NodeKind::Einsum { inputs, .. } = &graph.node(id).kind else {
        return None;
    };
    let windows = padded_windows(graph, id, Of::Any)?;
    let weights = 1 - windows.operand;
    let labels = &inputs[weights];
    let own = labels
        .iter()
        .map(|&l| usize::from(l))
        .filter(|l| !windows.summed.contains(l));
    let place = |l: usize| labels.iter().position(|&x| usize::from(x) == l).map(|p| p as u8);
    let order: SmallVec<[u8; 4]> = own
        .chain(windows.summed.iter().copied())
        .map(place)
        .collect::<Option<_>>()?;
    let shape = &graph.ty(graph.node(id).operands[weights]).shape;
    let elements = windows
        .axes
        .iter()
        .map(|a| labels.iter().position(|&l| usize::from(l) == a.element));
    let elements = elements.map(|at| shape[at?].as_const());
    let elements = elements.into_iter().try_fold(1i64, |n, e| n.checked_mul(e?))?;
    let summed = windows
        .summed
        .iter()
        .map(|&l| labels.iter().position(|&x| usize::from(x) == l));
    let length = summed
        .map(|at| shape[at?].as_const())
        .try_fold(1i64, |n, d| n.checked_mul(d?));
    (!order.is_sorted()).then_some(WeightsOrder {
        operand: weights,
        axes: order,
        elements,
        far: windows.axes.iter().any(|a| a.dilation >= FAR) && length.is_some_and(|n| n >= LONG),
    })
}

impl PaddedWindows {
    /// How labels walk the image, from its first element on.
    pub(super) fn strided(&self, graph: &Graph, count: usize) -> Option<Strided> {
        let mut s = strided(graph, self.image, &self.labels, count)?;
        for a in &self.axes {
            let step = s.strides[a.place].clone()?;
            s.strides[a.element] = Some(step.clone() * IndexExpr::Const(a.dilation));
            s.strides[a.place] = Some(step * IndexExpr::Const(a.stride));
        }
        Some(s)
    }

    /// How labels walk the operand, each with a dimension of its own.
    pub(super) fn walk(&self, s: &Strided, of: &[usize], extents: &[IndexExpr]) -> Option<Strides> {
        let dim = |&l: &usize| {
            Some(StridedDim {
                extent: extents[l].clone(),
                stride: s.strides[l].clone()?,
            })
        };
        let dims: SmallVec<[StridedDim; 1]> = of.iter().map(dim).collect::<Option<_>>()?;
        (!dims.is_empty() && dims.len() <= Strides::MAX_DIMS).then_some(Strides { dims })
    }

    /// The axes that windows slide over, where these labels are across the sum.
    pub(super) fn windowed(&self, graph: &Graph, across: &[usize], count: usize) -> Option<Windowed> {
        let s = strided(graph, self.image, &self.labels, count)?;
        let axis = |a: &Axis| {
            Some(WindowedAxis {
                place: across.iter().position(|&l| l == a.place)?,
                stride: a.stride,
                dilation: a.dilation,
                before: self.before[a.axis].clone(),
                extent: graph.ty(self.image).shape[a.axis].clone(),
                step: s.strides[a.place].clone()?,
            })
        };
        self.axes.iter().map(axis).collect()
    }
}
