//! Overlap-add: windows put back where they lie, the adjoint of [`Tensor::window`].
//!
//! `sum[i]` is the sum of `windows[p, k]` over `p * stride + k * dilation = i`. What it is recorded as depends on what the
//! windows are:
//!
//! - Windows of a product, as in the derivative of a convolution with respect to its image and in a transposed convolution: an
//!   einsum one of whose operands alone has the place in the window (the weights), and another one alone the window's position (a
//!   cotangent or an image). The sum over both is a product again, of windows of the latter with the weights turned around, and
//!   the elements of the windows, as many times the image as a window has elements, are never computed. With a stride the weights are
//!   cut into blocks of it: with `k = j * stride + r` and `i = q * stride + r` it is
//!   `sum[q, r] = Σ_j weights[j * stride + r] * y[q - j]`, one product of windows whose `r` is one more label of the result. (This is how
//!   transposed convolutions are computed without zeros between the elements: Shi et al., "Is the deconvolution layer the same
//!   as a convolutional layer?", 2016.) Where the stride is short, and there are many results or the last block lacks weights, there is a product for each `r`,
//!   without zeros for what it lacks, and the results are interleaved. With a stride and a dilation, `y` gets zeros between its elements.
//! - Other windows of few elements: a sum of padded terms, one for each.
//! - Others: a scatter.
//!
//! The first form is a definition, chosen when the sum is recorded, and no rewrite: beyond the ends of `y` it multiplies weights by
//! zero, so that a weight that is infinite or NaN makes NaN of elements near the ends that its window does not cover. No rewrite may do
//! that; here the forward convolution's results of such a weight, which is in all its windows, are infinite or NaN anyway. Each axis
//! is summed by itself: behind the first, what is summed is a product again, seen through the views that put it in order, or several that are
//! interleaved, each of which is summed along the next axis.

use tlc_ir::graph::{Labels, MAX_INTERIOR, Node, NodeKind, Semiring, Shape, View};
use tlc_ir::{DType, IndexExpr};

use super::join::stack;
use super::linalg::contract_over;
use crate::dim::Dim;
use crate::graph::interleaved::{Apart, Interleaved};
use crate::graph::scope::{Step, op, refuse_expecting};
use crate::graph::{Graph, Tensor};

/// The most elements of a window that are added term by term; those of longer ones, and of windows whose sizes do not prove that they are
/// inside, are scattered. The former is a term an element, and each result is computed where it is.
const FEW: i64 = 8;

/// Multiply-adds that take as long as writing and reading an element of a window, where windows are added term by term, and where they are
/// scattered.
const STORED: [i64; 2] = [40, 200];

/// Multiply-adds of a product of windows for each of the product that it replaces, with which it pays however many of them make an element:
/// what it leaves out is memory, and in steps of their own.
const MORE: f64 = 1.5;

/// The longest stride whose places are summed by a product each if one for all of them has no zeros for weights.
const FEW_PHASES: i64 = 3;
/// The most products for places of strides, of all axes together.
const MOST_PHASES: usize = 16;

/// The fewest results of an element of the image, but for those of one channel, and the shortest sum of them, with which a product for each place of a stride takes
/// less time than one for all of them whose blocks lack no weights.
const PHASE_RESULTS: i64 = 16;
const PHASE_TERMS: i64 = 8;

impl Tensor {
    /// Windows put back where they lie: the adjoint of [`Tensor::window`], to an axis of `extent` elements. The last axis runs through
    /// the window and goes; `axis` is the window's position, and becomes the axis that they lie on:
    /// `result[.., i, ..]` is the sum of `self[.., o, .., k]` over all `o * stride + k * dilation = i`. The windows of a product
    /// are added without being computed: a transposed convolution is this of a product of image and weights.
    ///
    /// ```
    /// use tlc::Graph;
    ///
    /// let g = Graph::default();
    /// let windows = g.constant([[1i32, 2], [10, 20], [100, 200]]);
    /// assert_eq!(windows.overlap_add(0, 4, 1, 1).eval()?.as_slice::<i32>()?, [1, 12, 120, 200]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Fewer than two axes, `axis` being the last one, a stride or dilation below 1, an extent that has another number of such windows,
    /// bools.
    #[track_caller]
    pub fn overlap_add(&self, axis: i64, extent: impl Into<Dim>, stride: usize, dilation: usize) -> Tensor {
        let extent = extent.into().0;
        op("overlap_add", &[self], || {
            self.at_least_rank(2)?;
            let axis = self.axis(axis)?;
            let last = self.rank() - 1;
            if axis == last {
                return refuse_expecting(
                    "the last axis, which runs through the window",
                    "the axis of the window's position",
                );
            }
            if self.dtype() == DType::Bool {
                return refuse_expecting("windows of bools", "numbers");
            }
            let step = |n: usize| {
                i64::try_from(n)
                    .ok()
                    .filter(|&n| (1..=i64::from(u32::MAX)).contains(&n))
            };
            let (Some(stride), Some(dilation)) = (step(stride), step(dilation)) else {
                return refuse_expecting(format!("a stride of {stride}, a dilation of {dilation}"), "1 or more");
            };
            // What this is the adjoint of checks the sizes.
            let mut shape = self.extents()[..last].to_vec();
            shape[axis] = extent.clone();
            let zeros = self.graph().filled(self.dtype().zero().into(), &shape, self.dtype())?;
            let windows = zeros.view(View::Window {
                axis: axis as u8,
                size: self.extents()[last].clone(),
                stride,
                dilation,
            })?;
            self.extent_is("the windows", axis, &windows.extents()[axis])?;
            match overlap_added(self, axis, &Line::new(extent, stride, dilation))? {
                Some(sum) => sum.to(self.dtype()),
                None => Ok(zeros),
            }
        })
    }
}

/// Where windows lie along an axis.
pub(crate) struct Line {
    /// Elements of the axis.
    pub(crate) extent: IndexExpr,
    /// Elements that somebody asks for, if others are cut off: only they count.
    pub(crate) asked: IndexExpr,
    /// Distance between windows.
    pub(crate) stride: i64,
    /// Distance between elements of a window.
    pub(crate) dilation: i64,
}

impl Line {
    pub(crate) fn new(extent: IndexExpr, stride: i64, dilation: i64) -> Line {
        Line {
            asked: extent.clone(),
            extent,
            stride,
            dilation,
        }
    }
}

/// The overlap-add of `d`, whose axis `axis` is the windows' position and whose last axis runs through them; none where there is no
/// window. It may be in a wider dtype.
pub(crate) fn overlap_added(d: &Tensor, axis: usize, line: &Line) -> Step<Option<Tensor>> {
    if d.extents()[axis].is(0) {
        return Ok(None);
    }
    // Sums along different axes commute: what is interleaved along others is summed part by part.
    let known = Interleaved::of(d).filter(|known| known.axes.iter().all(|a| a.axis != axis));
    let Interleaved { mut axes, parts } = known.unwrap_or_else(|| Interleaved::whole(d));
    let phases = match parts.len() * (line.stride as usize) <= MOST_PHASES {
        true => parts
            .iter()
            .map(|p| in_phases(p, axis, line))
            .collect::<Step<Option<Vec<_>>>>()?,
        false => None,
    };
    let parts: Vec<Tensor> = match phases {
        Some(phases) => {
            axes.push(Apart {
                axis,
                stride: line.stride,
                extent: line.extent.clone(),
            });
            phases.into_iter().flatten().collect()
        }
        None => parts.iter().map(|p| summed(p, axis, line)).collect::<Step<_>>()?,
    };
    Interleaved { axes, parts }.joined().map(Some)
}

/// The overlap-add of what is not interleaved, as one sum.
fn summed(d: &Tensor, axis: usize, line: &Line) -> Step {
    if let Some(sum) = of_product(d, axis, line)? {
        return Ok(sum);
    }
    match in_terms(d, axis, line)? {
        Some(sum) => Ok(sum),
        None => scattered(d, axis, line),
    }
}

impl Interleaved<Tensor> {
    /// What a tensor is interleaved of, if an overlap-add made it.
    fn of(d: &Tensor) -> Option<Interleaved<Tensor>> {
        let graph = d.graph();
        let Interleaved { axes, parts } = graph.interleaved(d.id()?)?;
        let parts = parts.into_iter().map(|id| graph.tensor(id)).collect::<Option<_>>()?;
        Some(Interleaved { axes, parts })
    }

    fn whole(d: &Tensor) -> Interleaved<Tensor> {
        Interleaved {
            axes: vec![],
            parts: vec![d.clone()],
        }
    }

    /// The tensor, of which the graph knows what it is made of.
    fn joined(self) -> Step {
        if self.axes.is_empty() {
            return Ok(self.parts[0].clone());
        }
        let rank = self.parts[0].rank();
        let n = self.axes.len();
        let mut shape: Vec<IndexExpr> = self.axes.iter().map(|a| a.stride.into()).collect();
        shape.extend_from_slice(self.parts[0].extents());
        let together = stack(&self.parts.iter().collect::<Vec<_>>(), 0).reshaped(&shape)?;
        let mut order: Vec<usize> = Vec::new();
        let mut shape = self.parts[0].extents().to_vec();
        for (axis, extent) in shape.iter_mut().enumerate() {
            order.push(n + axis);
            if let Some(k) = self.axes.iter().position(|a| a.axis == axis) {
                order.push(k);
                *extent = extent.clone() * IndexExpr::Const(self.axes[k].stride);
            }
        }
        let flat = together.permuted(&order)?.reshaped(&shape)?;
        let mut size = flat.extents().to_vec();
        self.axes.iter().for_each(|a| size[a.axis] = a.extent.clone());
        let cut = match size == flat.extents() {
            true => flat,
            false => sliced(&flat, &vec![IndexExpr::ZERO; rank], &size)?,
        };
        let parts = self.parts.iter().map(Tensor::id).collect::<Option<_>>();
        if let (Some(id), Some(parts)) = (cut.id(), parts) {
            cut.graph().interleave(id, Interleaved { axes: self.axes, parts });
        }
        Ok(cut)
    }
}

/// `size` neighbours along each axis from `start` on.
fn sliced(t: &Tensor, start: &[IndexExpr], size: &[IndexExpr]) -> Step {
    t.view(View::Slice {
        start: start.into(),
        step: start.iter().map(|_| 1).collect(),
        size: size.into(),
    })
}

/// A part of a tensor, `size` elements of each axis from `start` on. Of one that an overlap-add interleaved, the elements that are asked for are
/// interleaved: what is cut off is not computed, nor is what is left taken from between it.
pub(crate) fn part(d: &Tensor, start: &[IndexExpr], size: &[IndexExpr]) -> Step {
    let graph = d.graph();
    let known = Interleaved::of(d).filter(|_| size.iter().all(|n| !n.is(0)));
    let Some(mut whole) = known else {
        return sliced(d, start, size);
    };
    let apart = whole.axes.len();
    let (mut of_part, mut elements) = (start.to_vec(), size.to_vec());
    // Along the axes that lie apart: where each part begins, in the order in which they then follow, and how many elements they have.
    let mut begins: Vec<Vec<(i64, i64)>> = vec![];
    for a in &mut whole.axes {
        let Some(from) = start[a.axis].as_const() else {
            return sliced(d, start, size);
        };
        a.extent = size[a.axis].clone();
        let count = graph.simplify(&a.extent.clone().ceil_div(a.stride));
        let begin: Vec<_> = (from..from + a.stride).map(|i| (i % a.stride, i / a.stride)).collect();
        let all = &whole.parts[0].extents()[a.axis];
        let left = all.clone() - count.clone() - IndexExpr::from((from + a.stride - 1) / a.stride);
        if graph.least(&left) < 0 {
            return sliced(d, start, size);
        }
        elements[a.axis] = count;
        begins.push(begin);
    }
    let mut parts = vec![];
    for number in 0..whole.parts.len() {
        // The remainders of a part's number, the last axis' being the one that changes first.
        let (mut rest, mut old, mut weight) = (number as i64, 0, 1);
        for k in (0..apart).rev() {
            let Apart { axis, stride, .. } = whole.axes[k];
            let (remainder, from) = begins[k][(rest % stride) as usize];
            of_part[axis] = from.into();
            old += remainder * weight;
            (rest, weight) = (rest / stride, weight * stride);
        }
        parts.push(sliced(&whole.parts[old as usize], &of_part, &elements)?);
    }
    whole.parts = parts;
    whole.joined()
}

/// The overlap-add of a product's windows as a sum for each place of a stride, if that is what they are and where it pays.
fn in_phases(d: &Tensor, axis: usize, line: &Line) -> Step<Option<Vec<Tensor>>> {
    let last = d.rank() - 1;
    let Some(size) = d.extents()[last].as_const() else {
        return Ok(None);
    };
    let even = size % line.stride == 0;
    if line.dilation != 1 || size <= line.stride || line.stride < 2 || even && line.stride > FEW_PHASES {
        return Ok(None);
    }
    let Some(seen) = Seen::below(d, [axis, last]) else {
        return Ok(None);
    };
    let Some(product) = Product::of(d.graph(), &seen) else {
        return Ok(None);
    };
    // What is infinite times a zero in place of a weight would be NaN where no window is.
    let results = product.results();
    // One channel has as many as a window has places along the other axis.
    let pays = (results >= PHASE_RESULTS || results <= size) && product.summed() >= PHASE_TERMS;
    if !pays && even {
        return Ok(None);
    }
    let Some(form) = product.form(&d.extents()[axis], size, line) else {
        return Ok(None);
    };
    let of_phase = |r: i64| {
        let blocks = product.of_phase(&form, r, (size - r + line.stride - 1) / line.stride)?;
        seen.again(blocks, &[form.positions.clone(), IndexExpr::ONE])?
            .without(&[last])
    };
    (0..line.stride).map(of_phase).collect::<Step<_>>().map(Some)
}

/// The extent of an axis with so many zeros between neighbours, as padding makes it.
pub(crate) fn spread(graph: &Graph, extent: &IndexExpr, between: i64) -> IndexExpr {
    let spread = extent.clone() * IndexExpr::Const(between + 1) - IndexExpr::Const(between);
    match between == 0 || graph.least(extent) >= 1 {
        true => spread,
        false => IndexExpr::max(&spread, &IndexExpr::ZERO),
    }
}

/// A term for each element of a window, if they are few and the sizes prove that they are inside.
fn in_terms(d: &Tensor, axis: usize, line: &Line) -> Step<Option<Tensor>> {
    let graph = d.graph();
    let last = d.rank() - 1;
    let windows = &d.extents()[axis];
    // With one window there is nothing between windows.
    let between = if windows.is(1) { 0 } else { line.stride - 1 };
    let behind = |k: i64| {
        let reach = IndexExpr::from(k.saturating_mul(line.dilation)) + spread(graph, windows, between);
        graph.simplify(&(line.extent.clone() - reach))
    };
    // The last element of a window leaves the least behind it.
    let few = d.extents()[last].as_const().filter(|&size| {
        let padded = size <= FEW && between <= MAX_INTERIOR;
        padded && graph.least(&behind(size - 1)) >= 0
    });
    let Some(size) = few else { return Ok(None) };
    let wide = d.to(d.dtype().accumulator())?;
    let mut sum: Option<Tensor> = None;
    for k in 0..size {
        let term = place_in_window(&wide, k)?;
        let (mut lo, mut hi) = (vec![IndexExpr::ZERO; last], vec![IndexExpr::ZERO; last]);
        let mut interior = vec![0; last];
        lo[axis] = (k * line.dilation).into();
        hi[axis] = behind(k);
        interior[axis] = between;
        let term = term.view(View::Pad {
            lo: lo.into(),
            hi: hi.into(),
            interior: interior.into(),
            value: wide.dtype().zero(),
        })?;
        sum = Some(match sum {
            Some(sum) => sum + term,
            None => term,
        });
    }
    Ok(sum)
}

/// Element `k` of each window.
fn place_in_window(d: &Tensor, k: i64) -> Step {
    let last = d.rank() - 1;
    let mut start = vec![IndexExpr::ZERO; last + 1];
    start[last] = k.into();
    let mut size = d.extents().to_vec();
    size[last] = IndexExpr::ONE;
    d.view(View::Slice {
        start: start.into(),
        step: (0..=last).map(|_| 1).collect(),
        size: size.into(),
    })?
    .without(&[last])
}

/// All elements added at their places.
fn scattered(d: &Tensor, axis: usize, line: &Line) -> Step {
    let graph = d.graph();
    let last = d.rank() - 1;
    let (windows, size) = (&d.extents()[axis], &d.extents()[last]);
    let along = |extent: &IndexExpr, step: i64, shape: &[IndexExpr]| -> Step {
        Ok(graph.iota_1d(extent, DType::I64)?.reshaped(shape)? * step)
    };
    let place = along(windows, line.stride, &[windows.clone(), IndexExpr::ONE])?
        + along(size, line.dilation, &[IndexExpr::ONE, size.clone()])?;
    let order: Vec<usize> = [axis, last]
        .into_iter()
        .chain((0..last).filter(|&a| a != axis))
        .collect();
    let wide = d.dtype().accumulator();
    let mut shape = d.extents()[..last].to_vec();
    shape[axis] = line.extent.clone();
    let zeros = graph.filled(wide.zero().into(), &shape, wide)?;
    zeros.scattered(
        &d.to(wide)?.permuted(&order)?,
        &[axis],
        &[&place],
        tlc_ir::graph::ScatterOp::Add,
    )
}

/// A view between a product and its windows.
struct Between {
    view: View,
    /// The axes, above the view, of the windows' position and of the place in them.
    axes: [usize; 2],
}

/// A product, seen through views that leave two of its axes as they are.
struct Seen {
    product: Node,
    /// The axes of the product.
    axes: [usize; 2],
    /// Outermost first.
    between: Vec<Between>,
}

impl Seen {
    /// The product below `d`, if nothing but such views are between. Their extents are not 1: which one of several axes of extent 1 it
    /// is, a reshape does not say.
    fn below(d: &Tensor, mut axes: [usize; 2]) -> Option<Seen> {
        if axes.iter().any(|&a| d.extents()[a].is(1)) {
            return None;
        }
        d.graph().with_ir(|ir| {
            let mut at = d.id()?;
            let mut between = vec![];
            loop {
                let node = ir.node(at);
                let view = match &node.kind {
                    NodeKind::Einsum { .. } => {
                        let product = node.clone();
                        return Some(Seen { product, axes, between });
                    }
                    NodeKind::View(view) => view,
                    _ => return None,
                };
                let [below] = node.operands[..] else { return None };
                let from = &ir.ty(below).shape;
                let of = |axis: usize| axis_below(view, axis, &node.ty.shape, from);
                let found = [of(axes[0])?, of(axes[1])?];
                between.push(Between {
                    view: view.clone(),
                    axes,
                });
                (axes, at) = (found, below);
            }
        })
    }

    /// The views again, of a tensor in which the two axes have other extents.
    fn again(&self, mut t: Tensor, extents: &[IndexExpr; 2]) -> Step {
        for Between { view, axes } in self.between.iter().rev() {
            let resized = |shape: &[IndexExpr]| {
                let mut shape = Shape::from(shape);
                axes.iter().zip(extents).for_each(|(&a, e)| shape[a] = e.clone());
                shape
            };
            t = t.view(match view {
                View::Reshape(shape) => View::Reshape(resized(shape)),
                View::Slice { start, step, size } => View::Slice {
                    start: start.clone(),
                    step: step.clone(),
                    size: resized(size).into_boxed_slice(),
                },
                other => other.clone(),
            })?;
        }
        Ok(t)
    }
}

/// The axis below a view that is its axis `axis`, element by element, whatever the extent.
fn axis_below(view: &View, axis: usize, to: &Shape, from: &Shape) -> Option<usize> {
    match view {
        View::Permute(p) => Some(p[axis] as usize),
        View::Reshape(_) => {
            // Nothing is before an axis behind an empty one.
            if to.iter().chain(from).any(|d| d.is(0)) {
                return None;
            }
            let before = IndexExpr::product(&to[..axis]);
            (0..from.len()).find(|&a| from[a] == to[axis] && IndexExpr::product(&from[..a]) == before)
        }
        View::Slice { start, step, size } => {
            (start[axis].is(0) && step[axis] == 1 && size[axis] == from[axis]).then_some(axis)
        }
        View::Pad {
            lo,
            hi,
            interior,
            value,
        } => {
            let untouched = lo[axis].is(0) && hi[axis].is(0) && interior[axis] == 0;
            (untouched && value.as_f64() == 0.0).then_some(axis)
        }
        // None of the others leaves an axis of these products as it is.
        _ => None,
    }
}

/// The overlap-add of a product's windows as a product of windows, if that is what they are and where it pays.
fn of_product(d: &Tensor, axis: usize, line: &Line) -> Step<Option<Tensor>> {
    let last = d.rank() - 1;
    let Some(seen) = Seen::below(d, [axis, last]) else {
        return Ok(None);
    };
    let Some(size) = d.extents()[last].as_const() else {
        return Ok(None);
    };
    let Some(product) = Product::of(d.graph(), &seen) else {
        return Ok(None);
    };
    if line.dilation == 1 && size <= line.stride {
        return side_by_side(d, axis, size, line).map(Some);
    }
    match product.form(&d.extents()[axis], size, line) {
        Some(form) => {
            let blocks = seen.again(product.of_windows(&form)?, &[form.positions.clone(), form.block.into()])?;
            joined(&blocks, axis, line).map(Some)
        }
        None => Ok(None),
    }
}

/// Windows that do not overlap, with what is between them.
fn side_by_side(d: &Tensor, axis: usize, size: i64, line: &Line) -> Step {
    let last = d.rank() - 1;
    let mut hi = vec![IndexExpr::ZERO; last + 1];
    hi[last] = (line.stride - size).into();
    let blocks = d.padded(&vec![IndexExpr::ZERO; last + 1], &hi, d.dtype().zero())?;
    // An image may go on behind the last window, by less than a window.
    let reach = blocks.extents()[axis].clone() * IndexExpr::Const(line.stride);
    let graph = d.graph();
    let missing = graph.simplify(&(line.extent.clone() - reach));
    if graph.least(&(IndexExpr::ZERO - missing.clone())) >= 0 {
        return joined(&blocks, axis, line);
    }
    let mut hi = vec![IndexExpr::ZERO; last + 1];
    hi[axis] = IndexExpr::ONE;
    let blocks = blocks.padded(&vec![IndexExpr::ZERO; last + 1], &hi, d.dtype().zero())?;
    joined(&blocks, axis, line)
}

/// Blocks one behind the other, their elements along the last axis, as the axis of their positions, less what is beyond its end.
fn joined(blocks: &Tensor, axis: usize, line: &Line) -> Step {
    let last = blocks.rank() - 1;
    let mut order: Vec<usize> = (0..last).collect();
    order.insert(axis + 1, last);
    let block = &blocks.extents()[last];
    let mut shape = blocks.extents()[..last].to_vec();
    shape[axis] = shape[axis].clone() * block.clone();
    // Blocks of one element are in order.
    let flat = match block.is(1) {
        true => blocks.reshaped(&shape)?,
        false => blocks.permuted(&order)?.reshaped(&shape)?,
    };
    if flat.extents()[axis] == line.extent {
        return Ok(flat);
    }
    let mut size = flat.extents().to_vec();
    size[axis] = line.extent.clone();
    sliced(&flat, &vec![IndexExpr::ZERO; last], &size)
}

/// A sum of products, one of whose operands alone has the place in the window, and another one alone the windows' position.
#[derive(Clone)]
struct Product {
    operands: Vec<Tensor>,
    inputs: Vec<Labels>,
    output: Labels,
    accumulator: DType,
    dtype: DType,
    /// The operand with the place in the window, and its axis.
    weights: (usize, usize),
    /// The operand with the windows' position, and its axis.
    image: (usize, usize),
    /// The label of the place in the window.
    place: u16,
}

/// How a product of windows is made.
struct Form {
    /// Elements of a window of the image, its dilation, and the zeros between elements of the image.
    window: i64,
    dilation: i64,
    between: i64,
    /// Elements of the weights that are neighbours in the sum: the stride, if no zeros stand for it.
    block: i64,
    /// Blocks of the sum.
    positions: IndexExpr,
    /// Zeros before and behind the image.
    lo: i64,
    hi: IndexExpr,
}

impl Form {
    /// The image with zeros around it and between its elements along an axis. They go below windows over other axes, where they are as
    /// many as the image needs and not as many as its windows do.
    fn padded(&self, image: &Tensor, axis: usize) -> Step {
        let over_others = image.graph().with_ir(|ir| {
            let node = ir.node(image.id()?);
            match &node.kind {
                NodeKind::View(view @ View::Window { axis: other, .. })
                    if usize::from(*other) != axis && axis + 1 < image.rank() =>
                {
                    Some((view.clone(), node.operands[0]))
                }
                NodeKind::View(view @ View::Slice { .. }) => {
                    let same = axis_below(view, axis, &node.ty.shape, &ir.ty(node.operands[0]).shape);
                    same.map(|_| (view.clone(), node.operands[0]))
                }
                _ => None,
            }
        });
        if let Some((view, below)) = over_others
            && let Some(below) = image.graph().tensor(below)
        {
            let padded = self.padded(&below, axis)?;
            let extent = padded.extents()[axis].clone();
            return padded.view(match view {
                View::Slice { start, step, mut size } => {
                    size[axis] = extent;
                    View::Slice { start, step, size }
                }
                other => other,
            });
        }
        if self.lo == 0 && self.hi.is(0) && self.between == 0 {
            return Ok(image.clone());
        }
        let (mut lo, mut hi) = (vec![IndexExpr::ZERO; image.rank()], vec![IndexExpr::ZERO; image.rank()]);
        let mut interior = vec![0; image.rank()];
        (lo[axis], hi[axis], interior[axis]) = (self.lo.into(), self.hi.clone(), self.between);
        image.view(View::Pad {
            lo: lo.into(),
            hi: hi.into(),
            interior: interior.into(),
            value: image.dtype().zero(),
        })
    }
}

impl Product {
    fn of(graph: &Graph, seen: &Seen) -> Option<Product> {
        let NodeKind::Einsum {
            inputs,
            output,
            semiring: Semiring::AddMul,
            accumulator,
            dtype,
        } = &seen.product.kind
        else {
            return None;
        };
        let [position, place] = seen.axes.map(|a| output[a]);
        // The one axis of the one operand that has it.
        let only = |label: u16| {
            let axes = inputs.iter().enumerate();
            let mut axes = axes.flat_map(|(k, of)| of.iter().enumerate().map(move |(a, l)| (k, a, *l)));
            let mut found = axes.by_ref().filter(|(_, _, l)| *l == label);
            let (k, a, _) = found.next()?;
            found.next().is_none().then_some((k, a))
        };
        let (weights, image) = (only(place)?, only(position)?);
        if weights.0 == image.0 || !accumulator.is_float() {
            return None;
        }
        Some(Product {
            operands: seen
                .product
                .operands
                .iter()
                .map(|&o| graph.tensor(o))
                .collect::<Option<_>>()?,
            inputs: inputs.to_vec(),
            output: output.clone(),
            accumulator: *accumulator,
            dtype: *dtype,
            weights,
            image,
            place,
        })
    }

    /// The form in which the sum is a product of windows, where there is one and it pays.
    fn form(&self, windows: &IndexExpr, size: i64, line: &Line) -> Option<Form> {
        let graph = self.operands[0].graph();
        let mut form = Form {
            window: size,
            dilation: line.dilation,
            between: 0,
            block: 1,
            positions: line.extent.clone(),
            lo: size.checked_sub(1)?.checked_mul(line.dilation)?,
            hi: IndexExpr::ZERO,
        };
        if line.stride > 1 && line.dilation == 1 {
            form.block = line.stride;
            form.window = (size + line.stride - 1) / line.stride;
            form.positions = line.extent.clone().ceil_div(line.stride);
            form.lo = form.window - 1;
        } else if line.stride > MAX_INTERIOR {
            return None;
        } else {
            form.between = line.stride - 1;
        }
        form.positions = graph.simplify(&form.positions);
        form.hi = graph.simplify(&(form.positions.clone() - spread(graph, windows, form.between)));
        if graph.least(&form.hi) < 0 || graph.least(&form.positions) < 1 {
            return None;
        }
        self.pays(windows, size, line, &form).then_some(form)
    }

    /// Whether the multiply-adds that are more than those of the product cost less than storing its elements.
    fn pays(&self, windows: &IndexExpr, size: i64, line: &Line, form: &Form) -> bool {
        let summed = self.summed();
        // What is symbolic is large: the image then is about as large as the windows reach.
        let places = match (line.asked.as_const(), windows.as_const()) {
            (Some(asked), Some(windows)) => asked as f64 / windows as f64,
            _ => line.stride as f64,
        };
        let more = places * form.window as f64 / size as f64;
        let stored = STORED[usize::from(size > FEW)];
        more <= MORE || (more - 1.0) * summed as f64 <= stored as f64
    }

    /// The sum for the place `r` of each block: a product of windows of so many elements, over the image with the zeros of the form.
    fn of_phase(&self, form: &Form, r: i64, window: i64) -> Step {
        let (k, axis) = self.weights;
        let rank = self.operands[k].rank();
        let (mut start, mut step) = (vec![IndexExpr::ZERO; rank], vec![1; rank]);
        let mut size = self.operands[k].extents().to_vec();
        (start[axis], step[axis], size[axis]) = (r.into(), form.block, window.into());
        let mut phase = self.clone();
        phase.operands[k] = self.operands[k].view(View::Slice {
            start: start.into(),
            step: step.into(),
            size: size.into(),
        })?;
        // What only longer windows reach is before the others.
        let (k, axis) = self.image;
        let padded = form.padded(&self.operands[k], axis)?;
        phase.operands[k] = match form.window - window {
            0 => padded,
            before => {
                let mut start = vec![IndexExpr::ZERO; padded.rank()];
                let mut size = padded.extents().to_vec();
                start[axis] = before.into();
                size[axis] = size[axis].clone() - start[axis].clone();
                sliced(&padded, &start, &size)?
            }
        };
        phase.of_windows(&Form {
            window,
            block: 1,
            lo: 0,
            hi: IndexExpr::ZERO,
            positions: form.positions.clone(),
            ..*form
        })
    }

    /// Results that each element of the image counts in, for each place in a window, as far as is known.
    fn results(&self) -> i64 {
        let (weights, _) = self.weights;
        let shape = self.operands[weights].extents();
        let of_weights = self.inputs[weights].iter().zip(shape);
        let (image, _) = self.image;
        let other = |l: &u16| *l != self.place && self.output.contains(l) && !self.inputs[image].contains(l);
        of_weights
            .filter(|(l, _)| other(l))
            .fold(1i64, |n, (_, d)| n.saturating_mul(d.as_const().unwrap_or(1)))
    }

    /// Terms of each element.
    fn summed(&self) -> i64 {
        let mut labels: Vec<(u16, i64)> = vec![];
        for (t, of) in self.operands.iter().zip(&self.inputs) {
            for (&l, d) in of.iter().zip(t.extents()) {
                if !self.output.contains(&l) && !labels.iter().any(|(known, _)| *known == l) {
                    labels.push((l, d.as_const().unwrap_or(i64::MAX)));
                }
            }
        }
        labels.iter().fold(1i64, |n, (_, d)| n.saturating_mul(*d))
    }

    /// The product of windows: in place of the windows' position the number of the block, and in that of the place in the window the place in
    /// the block.
    fn of_windows(&self, form: &Form) -> Step {
        let labels = self.inputs.iter().flatten().max().map_or(0, |l| l + 1);
        let (mut operands, mut inputs) = (self.operands.clone(), self.inputs.clone());
        // The weights, turned around block by block.
        let (k, axis) = self.weights;
        let rank = operands[k].rank();
        let none = || vec![IndexExpr::ZERO; rank];
        let mut weights = operands[k].clone();
        if form.block > 1 {
            let mut hi = none();
            let size = weights.extents()[axis].clone();
            hi[axis] = IndexExpr::from(form.window * form.block) - size;
            weights = weights.padded(&none(), &hi, weights.dtype().zero())?;
            let mut shape = weights.extents().to_vec();
            shape[axis] = form.window.into();
            shape.insert(axis + 1, form.block.into());
            weights = weights.reshaped(&shape)?;
            inputs[k].insert(axis + 1, labels);
        }
        if form.window > 1 {
            let rank = weights.rank();
            let (mut start, mut step) = (vec![IndexExpr::ZERO; rank], vec![1; rank]);
            (start[axis], step[axis]) = ((form.window - 1).into(), -1);
            weights = weights.view(View::Slice {
                start: start.into(),
                step: step.into(),
                size: weights.extents().into(),
            })?;
        }
        operands[k] = weights;
        // The image's windows.
        let (k, axis) = self.image;
        let padded = form.padded(&operands[k], axis)?;
        operands[k] = padded.view(View::Window {
            axis: axis as u8,
            size: form.window.into(),
            stride: 1,
            dilation: form.dilation,
        })?;
        inputs[k].push(self.place);
        let at = |label: u16| self.output.iter().position(|&l| l == label);
        let (mut output, mut shape) = (self.output.clone(), vec![]);
        let of_place = at(self.place).unwrap_or(0);
        match form.block {
            1 => {
                output.remove(of_place);
            }
            _ => output[of_place] = labels,
        }
        let terms: Vec<(&Tensor, &[u16])> = operands.iter().zip(&inputs).map(|(t, l)| (t, &l[..])).collect();
        let sum = contract_over(Semiring::AddMul, &terms, &output, self.accumulator, self.dtype)?;
        if form.block > 1 {
            return Ok(sum);
        }
        shape.extend_from_slice(sum.extents());
        shape.insert(of_place, IndexExpr::ONE);
        sum.reshaped(&shape)
    }
}
