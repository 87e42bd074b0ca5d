//! Views: all that the compiler and the interpreters know of each, in one place.
//!
//! Invariants: what names the views names them all, without wildcards, so that a new one does not compile until it is complete.
//! The map of indices, by which kernels read, and the movement, by which the interpreters copy, say the same in two ways, and
//! neither uses the other: tests compare them. An index map is given one expression per result axis, each inside its extent, and
//! returns one per operand axis.

use smallvec::SmallVec;

use super::infer::{Refusal, Rule, element_product, flat_index, refuse, refuse_expecting};
use super::sizes::SizeRole::{self, Distance, Extent};
use super::{Axes, Condition, Graph, Shape, TensorType};
use crate::dtype::Scalar;
use crate::index::{Bounds, IndexExpr};

/// The most fill values between two elements: beyond it one element more is more than a tensor may have.
pub const MAX_INTERIOR: i64 = i32::MAX as i64;

/// A change of coordinates: each result element is one operand element (or, for `Pad`, a fill value).
///
/// What pads and slices carry is in boxes: three lists of extents in place would make every node of a graph half as large again.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum View {
    /// The same elements in C order under other extents.
    Reshape(Shape),
    /// Result axis `i` is operand axis `permutation[i]`.
    Permute(Axes),
    /// Broadcast: axes align at the right; an operand extent that is literally 1 repeats, a missing axis repeats.
    Expand(Shape),
    /// `lo[i]` fill values before and `hi[i]` behind axis `i`, and `interior[i]` between any two elements that are next to each
    /// other; none is negative. An axis of extent `d > 0` becomes one of `lo + d + (d - 1) * interior + hi`, an empty one
    /// of `lo + hi`. Interior padding is what undoes a slice with a step.
    Pad {
        /// Fill count before, per axis.
        lo: Box<[IndexExpr]>,
        /// Fill count behind, per axis.
        hi: Box<[IndexExpr]>,
        /// Fill count between neighbours, per axis, at most [`MAX_INTERIOR`].
        interior: Box<[i64]>,
        /// The fill value, of the operand's dtype.
        value: Scalar,
    },
    /// `result[i] = operand[start + i * step]` per axis; a step may be negative, never zero.
    Slice {
        /// First operand index, per axis.
        start: Box<[IndexExpr]>,
        /// Distance between taken elements, per axis.
        step: Box<[i64]>,
        /// Result extent, per axis.
        size: Box<[IndexExpr]>,
    },
    /// Sliding windows: axis `axis` becomes the window's position, and a new last axis runs through the window:
    /// `result[.., o, .., k] = operand[.., o * stride + k * dilation, ..]`. A window longer than the axis has no position there,
    /// whether that is known or depends on sizes: a graph means the same with its sizes put in.
    Window {
        /// The operand axis that is slid over.
        axis: u8,
        /// Elements in a window, at least 1.
        size: IndexExpr,
        /// Distance between windows, at least 1.
        stride: i64,
        /// Distance between elements of a window, at least 1.
        dilation: i64,
    },
}

/// The views, without what they carry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[allow(missing_docs, reason = "each is the view of its name")]
pub enum ViewKind {
    Reshape,
    Permute,
    Expand,
    Pad,
    Slice,
    Window,
}

impl ViewKind {
    /// Every view.
    pub const ALL: [ViewKind; 6] = [
        ViewKind::Reshape,
        ViewKind::Permute,
        ViewKind::Expand,
        ViewKind::Pad,
        ViewKind::Slice,
        ViewKind::Window,
    ];

    /// The mnemonic in text forms and messages.
    pub fn name(self) -> &'static str {
        match self {
            ViewKind::Reshape => "reshape",
            ViewKind::Permute => "permute",
            ViewKind::Expand => "expand",
            ViewKind::Pad => "pad",
            ViewKind::Slice => "slice",
            ViewKind::Window => "window",
        }
    }

    /// The view of that mnemonic.
    pub fn from_name(name: &str) -> Option<ViewKind> {
        ViewKind::ALL.into_iter().find(|v| v.name() == name)
    }
}

/// An operand index, with the half-open ranges that some of its entries must lie in (from padding).
pub struct ViewIndex {
    /// Shape into the operand.
    pub index: Shape,
    /// `(expression, extent)`: each expression must be in `0..extent`.
    pub conditions: Vec<(IndexExpr, IndexExpr)>,
}

/// A view with its numbers put in: where each element goes or comes from.
pub(crate) enum Movement {
    /// The same elements in the same order.
    Same,
    /// Result elements in C order read the operand at `start + Σ index * strides`.
    Read { start: i64, strides: Vec<i64> },
    /// Operand elements in C order are written at `start + Σ index * strides`; the rest is the fill value.
    Place { start: i64, strides: Vec<i64> },
}

impl View {
    /// Which view it is.
    pub fn kind(&self) -> ViewKind {
        match self {
            View::Reshape(_) => ViewKind::Reshape,
            View::Permute(_) => ViewKind::Permute,
            View::Expand(_) => ViewKind::Expand,
            View::Pad { .. } => ViewKind::Pad,
            View::Slice { .. } => ViewKind::Slice,
            View::Window { .. } => ViewKind::Window,
        }
    }

    /// The value of elements that are none of the operand's; none if all are.
    pub fn fill(&self) -> Option<Scalar> {
        match self {
            View::Pad { value, .. } => Some(*value),
            View::Reshape(_) | View::Permute(_) | View::Expand(_) | View::Slice { .. } | View::Window { .. } => None,
        }
    }

    /// The same view, with that value for elements that are none of the operand's.
    pub fn filled_with(&self, fill: Scalar) -> View {
        let mut view = self.clone();
        match &mut view {
            View::Pad { value, .. } => *value = fill,
            View::Reshape(_) | View::Permute(_) | View::Expand(_) | View::Slice { .. } | View::Window { .. } => {}
        }
        view
    }

    /// Calls `f` on every size that the view carries.
    pub(super) fn visit_sizes(&self, f: &mut dyn FnMut(&IndexExpr)) {
        match self {
            View::Reshape(shape) | View::Expand(shape) => shape.iter().for_each(f),
            View::Permute(_) => {}
            View::Pad { lo, hi, .. } => lo.iter().chain(hi).for_each(f),
            View::Slice { start, size, .. } => start.iter().chain(size).for_each(f),
            View::Window { size, .. } => f(size),
        }
    }

    /// Replaces every size that the view carries, in the order of [`View::visit_sizes`].
    pub(super) fn map_sizes(&mut self, f: &mut dyn FnMut(SizeRole, &IndexExpr) -> IndexExpr) {
        let mut each = |role: SizeRole, sizes: &mut [IndexExpr]| sizes.iter_mut().for_each(|e| *e = f(role, e));
        match self {
            View::Reshape(shape) | View::Expand(shape) => each(Extent, shape),
            View::Permute(_) => {}
            View::Pad { lo, hi, .. } => {
                each(Distance, lo);
                each(Distance, hi);
            }
            View::Slice { start, size, .. } => {
                each(Distance, start);
                each(Extent, size);
            }
            View::Window { size, .. } => *size = f(Extent, size),
        }
    }

    /// Whether the result is the operand, whose shape is `shape`.
    pub fn changes_nothing(&self, shape: &Shape) -> bool {
        match self {
            View::Reshape(to) | View::Expand(to) => to == shape,
            View::Permute(p) => p.iter().enumerate().all(|(i, &a)| a as usize == i),
            View::Pad { lo, hi, interior, .. } => {
                let nothing_between = |(p, d): (&i64, &IndexExpr)| *p == 0 || d.is(0) || d.is(1);
                lo.iter().chain(hi).all(|p| p.is(0)) && interior.iter().zip(shape).all(nothing_between)
            }
            View::Slice { start, step, size } => {
                start.iter().all(|s| s.is(0)) && step.iter().all(|&s| s == 1) && size[..] == shape[..]
            }
            View::Window { .. } => false,
        }
    }

    /// The one view that is this one of what `inner` makes, if there is one whatever the operand.
    pub fn after(&self, inner: &View) -> Option<View> {
        match (self, inner) {
            (View::Reshape(shape), View::Reshape(_)) => Some(View::Reshape(shape.clone())),
            (View::Permute(p), View::Permute(q)) => Some(View::Permute(p.iter().map(|&i| q[i as usize]).collect())),
            (View::Expand(shape), View::Expand(_)) => Some(View::Expand(shape.clone())),
            (View::Reshape(_), _)
            | (View::Permute(_), _)
            | (View::Expand(_), _)
            | (View::Pad { .. } | View::Slice { .. } | View::Window { .. }, _) => None,
        }
    }

    /// The same view of each entry of a batch, whose axis of extent `size` is in front of the operand's own. An expansion to more
    /// axes takes an operand that has them, of extent 1, behind the batch's.
    pub fn batched(&self, size: &IndexExpr) -> View {
        fn with<T: FromIterator<IndexExpr>>(first: &IndexExpr, of_one: &[IndexExpr]) -> T {
            std::iter::once(first).chain(of_one).cloned().collect()
        }
        let kept = |first: i64, of_one: &[i64]| std::iter::once(first).chain(of_one.iter().copied()).collect();
        match self {
            View::Reshape(shape) => View::Reshape(with(size, shape)),
            View::Permute(permutation) => {
                View::Permute(std::iter::once(0).chain(permutation.iter().map(|p| p + 1)).collect())
            }
            View::Expand(shape) => View::Expand(with(size, shape)),
            View::Pad {
                lo,
                hi,
                interior,
                value,
            } => View::Pad {
                lo: with(&IndexExpr::ZERO, lo),
                hi: with(&IndexExpr::ZERO, hi),
                interior: kept(0, interior),
                value: *value,
            },
            View::Slice {
                start,
                step,
                size: taken,
            } => View::Slice {
                start: with(&IndexExpr::ZERO, start),
                step: kept(1, step),
                size: with(size, taken),
            },
            View::Window {
                axis,
                size,
                stride,
                dilation,
            } => View::Window {
                axis: axis + 1,
                size: size.clone(),
                stride: *stride,
                dilation: *dilation,
            },
        }
    }

    /// The result's shape over an operand of type `t`; what is assumed of symbols goes to `rule`.
    pub(super) fn infer(&self, t: &TensorType, rule: &mut Rule<'_>) -> Result<Shape, Refusal> {
        let rank_is = |n: usize| {
            if n == t.rank() {
                Ok(())
            } else {
                refuse_expecting(format!("{n} entries"), format!("one per axis, {}", t.rank()))
            }
        };
        match self {
            View::Reshape(shape) => {
                let (from, to) = (element_product(&t.shape)?, element_product(shape)?);
                if !rule.agree(&from, &to) {
                    let problem = format!("{} elements into {}", rule.text(&from), rule.graph.shape_text(shape));
                    return refuse_expecting(problem, "as many elements");
                }
                Ok(shape.clone())
            }
            View::Permute(permutation) => {
                rank_is(permutation.len())?;
                let mut seen = vec![false; t.rank()];
                for &p in permutation {
                    match seen.get_mut(p as usize) {
                        Some(s) if !*s => *s = true,
                        _ => return refuse_expecting(format!("axes {permutation:?}"), "each axis once"),
                    }
                }
                Ok(permutation.iter().map(|&p| t.shape[p as usize].clone()).collect())
            }
            View::Expand(shape) => {
                if shape.len() < t.rank() {
                    return refuse_expecting(
                        format!("rank {} to rank {}", t.rank(), shape.len()),
                        "at least as many axes",
                    );
                }
                let lead = shape.len() - t.rank();
                for (axis, d) in t.shape.iter().enumerate() {
                    let to = &shape[lead + axis];
                    if !d.is(1) && !rule.agree(d, to) {
                        let problem = format!("extent {} of axis {axis} to {}", rule.text(d), rule.text(to));
                        return refuse_expecting(problem, "1 or an equal extent");
                    }
                }
                Ok(shape.clone())
            }
            View::Pad {
                lo,
                hi,
                interior,
                value,
            } => {
                rank_is(lo.len())?;
                rank_is(hi.len())?;
                rank_is(interior.len())?;
                if value.dtype() != t.dtype {
                    return refuse_expecting(format!("fill of {}", value.dtype()), format!("{}", t.dtype));
                }
                for p in lo.iter().chain(hi) {
                    if p.interval(rule.graph).lo < 0 {
                        return refuse_expecting(format!("padding {}", rule.text(p)), "no negative padding");
                    }
                }
                if let Some(bad) = interior.iter().find(|p| !(0..=MAX_INTERIOR).contains(*p)) {
                    let fits = format!("0 to {MAX_INTERIOR} between two elements");
                    return refuse_expecting(format!("interior padding {bad}"), fits);
                }
                let spread = t.shape.iter().zip(interior).map(|(d, p)| spread(rule.graph, d, *p));
                Ok(spread
                    .zip(lo.iter().zip(hi))
                    .map(|(d, (l, h))| l.clone() + d + h.clone())
                    .collect())
            }
            View::Slice { start, step, size } => {
                rank_is(start.len())?;
                rank_is(step.len())?;
                rank_is(size.len())?;
                for axis in 0..t.rank() {
                    slice_axis(rule, axis, &t.shape[axis], &start[axis], step[axis], &size[axis])?;
                }
                Ok(size[..].into())
            }
            View::Window {
                axis,
                size,
                stride,
                dilation,
            } => {
                let Some(d) = t.shape.get(*axis as usize) else {
                    return refuse(format!("axis {axis} of a tensor of rank {}", t.rank()));
                };
                if *stride < 1 || *dilation < 1 || size.interval(rule.graph).lo < 1 {
                    let problem = format!("size {}, stride {stride}, dilation {dilation}", rule.text(size));
                    return refuse_expecting(problem, "all at least 1");
                }
                let span = (size.clone() - IndexExpr::ONE) * IndexExpr::Const(*dilation);
                let room = d.clone() - span - IndexExpr::ONE;
                let positions = IndexExpr::floor_div(&room, &IndexExpr::Const(*stride)) + IndexExpr::ONE;
                let mut shape = t.shape.clone();
                shape[*axis as usize] = IndexExpr::max(&positions, &IndexExpr::ZERO).simplify(rule.graph);
                shape.push(size.clone());
                Ok(shape)
            }
        }
    }

    /// The operand index that a result element is taken from. `from` is the operand's shape, `to` the result's.
    pub fn operand_index(
        &self,
        from: &[IndexExpr],
        to: &[IndexExpr],
        index: &[IndexExpr],
        bounds: &dyn Bounds,
    ) -> ViewIndex {
        let mut conditions = Vec::new();
        let index = match self {
            View::Reshape(_) => reshape_index(from, to, index, bounds),
            View::Permute(permutation) => {
                let mut out: Shape = SmallVec::from_elem(IndexExpr::ZERO, from.len());
                for (i, &p) in permutation.iter().enumerate() {
                    out[p as usize] = index[i].clone();
                }
                out
            }
            View::Expand(_) => {
                let lead = to.len() - from.len();
                from.iter()
                    .zip(&index[lead..])
                    .map(|(d, i)| if d.is(1) { IndexExpr::ZERO } else { i.clone() })
                    .collect()
            }
            View::Pad { lo, interior, .. } => {
                let mut out = Shape::new();
                for (((i, l), d), between) in index.iter().zip(lo).zip(from).zip(interior) {
                    let mut at = i.clone() - l.clone();
                    if *between > 0 {
                        let apart = IndexExpr::Const(between + 1);
                        let off = IndexExpr::modulo(&at, &apart).simplify(bounds);
                        if !off.is(0) {
                            conditions.push((off, IndexExpr::ONE));
                        }
                        at = IndexExpr::floor_div(&at, &apart).simplify(bounds);
                    }
                    if !(at.proves_nonnegative(bounds) && at.proves_less(d, bounds)) {
                        conditions.push((at.clone(), d.clone()));
                    }
                    out.push(at);
                }
                out
            }
            View::Slice { start, step, .. } => index
                .iter()
                .zip(start.iter().zip(step))
                .map(|(i, (s, k))| s.clone() + i.clone() * IndexExpr::Const(*k))
                .collect(),
            View::Window {
                axis, stride, dilation, ..
            } => {
                let mut out: Shape = index[..from.len()].into();
                let at = *axis as usize;
                out[at] = out[at].clone() * IndexExpr::Const(*stride)
                    + index[from.len()].clone() * IndexExpr::Const(*dilation);
                out
            }
        };
        ViewIndex { index, conditions }
    }

    /// Where elements go, over an operand of `shape` with a result of `result`; `None` if an expression has no value.
    pub(crate) fn movement(
        &self,
        shape: &[usize],
        result: &[usize],
        eval: &dyn Fn(&IndexExpr) -> Option<i64>,
    ) -> Option<Movement> {
        let strides = c_strides(shape);
        Some(match self {
            View::Reshape(_) => Movement::Same,
            View::Permute(permutation) => Movement::Read {
                start: 0,
                strides: permutation.iter().map(|&p| strides[p as usize]).collect(),
            },
            View::Expand(_) => {
                let lead = result.len() - shape.len();
                let stride = |i: usize| {
                    let repeats = i < lead || (shape[i - lead] == 1 && result[i] != 1);
                    if repeats { 0 } else { strides[i - lead] }
                };
                Movement::Read {
                    start: 0,
                    strides: (0..result.len()).map(stride).collect(),
                }
            }
            View::Pad { lo, interior, .. } => {
                let into = c_strides(result);
                let mut start = 0i64;
                for (l, s) in lo.iter().zip(&into) {
                    start = start.wrapping_add(eval(l)?.wrapping_mul(*s));
                }
                Movement::Place {
                    start,
                    strides: into.iter().zip(interior).map(|(s, p)| s.wrapping_mul(p + 1)).collect(),
                }
            }
            View::Slice { start, step, .. } => {
                let mut first = 0i64;
                for (i, s) in start.iter().zip(&strides) {
                    first = first.wrapping_add(eval(i)?.wrapping_mul(*s));
                }
                Movement::Read {
                    start: first,
                    strides: strides.iter().zip(step).map(|(s, k)| s.wrapping_mul(*k)).collect(),
                }
            }
            View::Window {
                axis, stride, dilation, ..
            } => {
                let along = strides[*axis as usize];
                let mut all = strides;
                all[*axis as usize] = along.wrapping_mul(*stride);
                all.push(along.wrapping_mul(*dilation));
                Movement::Read { start: 0, strides: all }
            }
        })
    }
}

/// The extent of an axis with so many elements between neighbours: `d + (d - 1) * interior`, and 0 of an empty one.
fn spread(graph: &Graph, d: &IndexExpr, interior: i64) -> IndexExpr {
    if interior == 0 {
        return d.clone();
    }
    let spread = d.clone() * IndexExpr::Const(interior + 1) - IndexExpr::Const(interior);
    match d.interval(graph).lo >= 1 {
        true => spread,
        false => IndexExpr::max(&spread, &IndexExpr::ZERO).simplify(graph),
    }
}

/// The first and last taken index must lie in the axis, unless nothing is taken.
fn slice_axis(
    rule: &mut Rule<'_>,
    axis: usize,
    extent: &IndexExpr,
    start: &IndexExpr,
    step: i64,
    size: &IndexExpr,
) -> Result<(), Refusal> {
    if step == 0 || step == i64::MIN {
        return refuse_expecting(format!("step {step} on axis {axis}"), "a step other than 0");
    }
    let last = start.clone() + (size.clone() - IndexExpr::ONE) * IndexExpr::Const(step);
    let (low, high) = if step > 0 { (start, &last) } else { (&last, start) };
    let room = extent.clone() - high.clone() - IndexExpr::ONE;
    for margin in [low, &room] {
        // Nothing is taken when the size is 0, and then the ends do not matter.
        let demand = IndexExpr::max(margin, &(IndexExpr::ZERO - size.clone()));
        if demand.interval(rule.graph).hi < 0 {
            let text = |d| rule.graph.dim_text(d);
            let (start, size, extent) = (text(start), text(size), text(extent));
            let problem = format!("axis {axis}: start {start}, step {step}, size {size} leaves the extent {extent}");
            return refuse_expecting(problem, "every taken index inside the axis");
        }
        if !demand.proves_nonnegative(rule.graph) && !margin.proves_nonnegative(rule.graph) {
            rule.conditions.push(Condition::NonNegative(demand));
        }
    }
    Ok(())
}

/// Maps an index through a reshape, axis group by axis group: groups of axes with equal products map among themselves, so
/// division appears only where axes really split or merge.
fn reshape_index(from: &[IndexExpr], to: &[IndexExpr], index: &[IndexExpr], bounds: &dyn Bounds) -> Shape {
    let mut out: Shape = SmallVec::from_elem(IndexExpr::ZERO, from.len());
    let real = |shape: &[IndexExpr]| -> Vec<usize> { (0..shape.len()).filter(|&i| !shape[i].is(1)).collect() };
    let (source, target) = (real(from), real(to));
    let (mut i, mut j) = (0, 0);
    while i < source.len() {
        let (first_i, first_j) = (i, j);
        let mut have = from[source[i]].clone();
        let mut want = if j < target.len() {
            to[target[j]].clone()
        } else {
            IndexExpr::ONE
        };
        i += 1;
        j = (j + 1).min(target.len());
        while have != want {
            let grow_target = match (have.as_const(), want.as_const()) {
                (Some(h), Some(w)) => w < h,
                // A symbolic product: grow the side that the other is a multiple of, or else take all that is left.
                _ => {
                    let fits = |big: &IndexExpr, small: &IndexExpr| small.is(1) || IndexExpr::modulo(big, small).is(0);
                    if fits(&have, &want) {
                        true
                    } else if fits(&want, &have) {
                        false
                    } else {
                        i = source.len();
                        j = target.len();
                        break;
                    }
                }
            };
            if grow_target && j < target.len() {
                want = want * to[target[j]].clone();
                j += 1;
            } else if !grow_target && i < source.len() {
                have = have * from[source[i]].clone();
                i += 1;
            } else {
                i = source.len();
                j = target.len();
                break;
            }
        }
        let (group_from, group_to) = (&source[first_i..i], &target[first_j..j]);
        if let ([one], [other]) = (group_from, group_to) {
            out[*one] = index[*other].clone();
            continue;
        }
        let extents: Vec<IndexExpr> = group_to.iter().map(|&t| to[t].clone()).collect();
        let entries: Vec<IndexExpr> = group_to.iter().map(|&t| index[t].clone()).collect();
        let mut rest = flat_index(&entries, &extents);
        for (k, &axis) in group_from.iter().enumerate().rev() {
            if k == 0 {
                out[axis] = rest.clone();
            } else if from[axis].is(0) {
                // There is no element, and nothing divides by zero.
                out[axis] = IndexExpr::ZERO;
            } else {
                out[axis] = IndexExpr::modulo(&rest, &from[axis]).simplify(bounds);
                rest = IndexExpr::floor_div(&rest, &from[axis]).simplify(bounds);
            }
        }
    }
    out
}

/// Element strides of a C-contiguous shape.
pub(crate) fn c_strides(shape: &[usize]) -> Vec<i64> {
    let mut strides = vec![1i64; shape.len()];
    for i in (0..shape.len().saturating_sub(1)).rev() {
        strides[i] = strides[i + 1].wrapping_mul(shape[i + 1] as i64);
    }
    strides
}
