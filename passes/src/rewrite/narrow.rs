//! Slices of a contraction's result that cut off what padding of an operand made: less padding.
//!
//! The derivative of a convolution by its image is a product of windows over a padded cotangent, from which the padding of the image is cut off
//! again. What is cut off is not computed, and the result lies where it is wanted. The elements that stay are the same sums of the same terms.

use rustc_hash::FxHashSet;
use smallvec::SmallVec;
use tlc_ir::graph::{GraphError, Shape, View};
use tlc_ir::{Graph, IndexExpr, NodeId, NodeKind};

use super::Rebuilder;
use super::sink_layout::add_canonical;

/// What a reshape reads.
pub fn reshaped(graph: &Graph, id: NodeId) -> Option<NodeId> {
    let node = graph.node(id);
    matches!(node.kind, NodeKind::View(View::Reshape(_))).then(|| node.operands[0])
}

/// Whether a node is padding, or a view through which padding is read: others of its users need what is cut off for one of them.
pub fn shows_padding(kind: &NodeKind) -> bool {
    matches!(kind, NodeKind::View(View::Pad { .. } | View::Window { .. }))
}

/// The slice of a contraction's result, or of that with other axes of one element, `size` elements of each axis from `start` on, with the axes that
/// padding fills left whole: the contraction of operands with less padding, sliced where that is not enough. `None` where no padding goes. `shared` are
/// views that others need as well: their padding is sliced.
///
/// # Errors
/// If a node of it has no type: a bug in this pass.
pub fn less_padding(
    re: &mut Rebuilder,
    contraction: NodeId,
    start: &[IndexExpr],
    size: &[IndexExpr],
    shared: &FxHashSet<NodeId>,
) -> Result<Option<NodeId>, GraphError> {
    let below = re.graph.node(contraction).clone();
    let (inputs, output) = match &below.kind {
        NodeKind::Einsum { inputs, output, .. } => (inputs, output),
        NodeKind::View(View::Reshape(_)) => {
            let inner = below.operands[0];
            let Some(axes) = same_but_for_ones(&re.graph.ty(inner).shape, &below.ty.shape) else {
                return Ok(None);
            };
            let of = |outer: &[IndexExpr], one: IndexExpr| -> Shape {
                axes.iter()
                    .map(|a| a.map_or_else(|| one.clone(), |a| outer[a].clone()))
                    .collect()
            };
            let (from, count) = (of(start, IndexExpr::ZERO), of(size, IndexExpr::ONE));
            return match less_padding(re, inner, &from, &count, shared)? {
                Some(narrow) => re.reshape(narrow, &Shape::from(size)).map(Some),
                None => Ok(None),
            };
        }
        _ => return Ok(None),
    };
    let mut operands = below.operands.to_vec();
    let (mut starts, mut changed): (Box<[IndexExpr]>, bool) = (start.into(), false);
    for (axis, &label) in output.iter().enumerate() {
        let Some(from) = start[axis].as_const() else {
            continue;
        };
        let mut places = inputs.iter().enumerate().flat_map(|(k, of)| {
            let axes = of.iter().enumerate().filter(|(_, l)| **l == label);
            axes.map(move |(a, _)| (k, a))
        });
        let (Some((k, of_operand)), None) = (places.next(), places.next()) else {
            continue;
        };
        if size[axis] == below.ty.shape[axis] || size[axis].as_const().is_some_and(|n| n < 1) {
            continue;
        }
        let cut = Cut {
            axis: of_operand,
            from,
            count: &size[axis],
            shared,
        };
        if let Some(narrow) = narrowed(re, operands[k], cut, false)? {
            operands[k] = narrow;
            starts[axis] = IndexExpr::ZERO;
            changed = true;
        }
    }
    if !changed {
        return Ok(None);
    }
    let new = add_canonical(re, &below.kind, inputs.to_vec(), output.clone(), &operands)?;
    if re.graph.ty(new).shape[..] == size[..] {
        return Ok(Some(new));
    }
    let step = size.iter().map(|_| 1).collect();
    let (start, size) = (starts, size.into());
    re.add(NodeKind::View(View::Slice { start, step, size }), &[new])
        .map(Some)
}

/// For each axis of the first shape the one of the second that has its elements, none for axes of one element, if the two differ in these alone.
fn same_but_for_ones(first: &[IndexExpr], second: &[IndexExpr]) -> Option<SmallVec<[Option<usize>; 8]>> {
    let mut others = second.iter().enumerate().filter(|(_, d)| !d.is(1));
    let mut axes: SmallVec<[Option<usize>; 8]> = SmallVec::new();
    for extent in first {
        axes.push(match extent.is(1) {
            true => None,
            false => Some(others.next().filter(|(_, d)| *d == extent)?.0),
        });
    }
    others.next().is_none().then_some(axes)
}

/// The part of an axis that is asked for.
#[derive(Clone, Copy)]
struct Cut<'a> {
    axis: usize,
    /// The first element.
    from: i64,
    /// How many.
    count: &'a IndexExpr,
    /// Nodes that have several users.
    shared: &'a FxHashSet<NodeId>,
}

/// Part of a value, by padding less of what is below, or, where `several` need that, by a slice; `None` where there is no padding or not
/// enough.
fn narrowed(re: &mut Rebuilder, node: NodeId, cut: Cut<'_>, several: bool) -> Result<Option<NodeId>, GraphError> {
    let Cut {
        axis,
        from,
        count,
        shared,
    } = cut;
    let several = several || shared.contains(&node);
    let this = re.graph.node(node).clone();
    let NodeKind::View(view) = this.kind.clone() else {
        return Ok(None);
    };
    let below = this.operands[0];
    let (view, of) = match view {
        View::Window {
            axis: position,
            size,
            stride,
            dilation,
        } => {
            let view = View::Window {
                axis: position,
                size: size.clone(),
                stride,
                dilation,
            };
            if axis != usize::from(position) {
                // The places in the window are all there.
                let of = match axis + 1 == this.ty.rank() {
                    true => None,
                    false => narrowed(re, below, cut, several)?,
                };
                (view, of)
            } else {
                let Some(size) = size.as_const() else { return Ok(None) };
                let within = (size - 1).saturating_mul(dilation) + 1 - stride;
                let reach = count.clone() * IndexExpr::Const(stride) + IndexExpr::Const(within);
                let cut = Cut {
                    from: from.saturating_mul(stride),
                    count: &reach.simplify(&re.graph),
                    ..cut
                };
                (view, narrowed(re, below, cut, several)?)
            }
        }
        // Others need the padding: it is there.
        View::Pad { .. } if several => {
            let mut start = vec![IndexExpr::ZERO; this.ty.rank()];
            let mut size = this.ty.shape.clone();
            (start[axis], size[axis]) = (from.into(), count.clone());
            let step = size.iter().map(|_| 1).collect();
            let (start, size) = (start.into(), size.into_boxed_slice());
            (View::Slice { start, step, size }, Some(node))
        }
        View::Pad {
            mut lo,
            mut hi,
            interior,
            value,
        } => {
            if lo[axis].is(0) && hi[axis].is(0) && interior[axis] == 0 {
                let of = narrowed(re, below, cut, several)?;
                (
                    View::Pad {
                        lo,
                        hi,
                        interior,
                        value,
                    },
                    of,
                )
            } else {
                let (Some(before), Some(behind)) = (lo[axis].as_const(), hi[axis].as_const()) else {
                    return Ok(None);
                };
                let off = this.ty.shape[axis].clone() - IndexExpr::Const(from) - count.clone();
                let Some(off) = off.simplify(&re.graph).as_const() else {
                    return Ok(None);
                };
                if from > before || off > behind || off < 0 {
                    return Ok(None);
                }
                (lo[axis], hi[axis]) = ((before - from).into(), (behind - off).into());
                (
                    View::Pad {
                        lo,
                        hi,
                        interior,
                        value,
                    },
                    Some(below),
                )
            }
        }
        View::Slice {
            mut start,
            step,
            mut size,
        } if step[axis] == 1 => {
            start[axis] = start[axis].clone() + IndexExpr::Const(from);
            size[axis] = count.clone();
            (View::Slice { start, step, size }, Some(below))
        }
        View::Permute(p) => {
            let axis = p[axis] as usize;
            let of = narrowed(re, below, Cut { axis, ..cut }, several)?;
            (View::Permute(p), of)
        }
        // Padding is looked for below these alone.
        _ => return Ok(None),
    };
    match of {
        Some(of) => re.add(NodeKind::View(view), &[of]).map(Some),
        None => Ok(None),
    }
}
