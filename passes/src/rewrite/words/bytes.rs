//! Operands of products that were bytes: what they were converted from, the views above, and their zero points.

use smallvec::SmallVec;
use tlc_ir::graph::{GraphError, View};
use tlc_ir::index::IndexExpr;
use tlc_ir::{DType, Graph, NodeId, NodeKind, Scalar, ScalarOp};

use super::{map, splat};
use crate::rewrite::Rebuilder;
use crate::rewrite::byte_functions::is_byte;

/// Bytes of which an operand is made: converted to i32, less a zero point, and seen through views.
pub(super) struct Bytes {
    /// Of u8 or i8, or data of i32 that are all in the range of one of them once `shift` is added.
    pub(super) value: NodeId,
    /// That one.
    pub(super) dtype: DType,
    /// The zero point that was subtracted from data before they were folded, or one that makes bytes of them.
    pub(super) shift: i64,
    /// The views above, the lowest first.
    pub(super) views: SmallVec<[NodeId; 4]>,
    /// The zero point as it is subtracted, of the value's shape.
    pub(super) zero: Option<NodeId>,
    /// An axis of one element that the value has got since, which the views, of windows and padding alone, do not know of.
    pub(super) rows: Option<usize>,
}

/// A zero point.
#[derive(Clone, Copy)]
pub(super) enum Zero {
    Known(i64),
    /// A value of one element, or one that goes along some axes.
    Value(NodeId),
}

pub(super) fn bytes(graph: &Graph, operand: NodeId) -> Option<Bytes> {
    let (mut views, mut at) = (SmallVec::new(), operand);
    let is_byte = |n: NodeId| is_byte(graph.ty(n).dtype);
    loop {
        let node = graph.node(at);
        match &node.kind {
            NodeKind::View(view) if view.fill().is_none_or(|f| f.bits() == 0) => views.push(at),
            NodeKind::Convert(DType::I32) if is_byte(node.operands[0]) => {
                views.reverse();
                return Some(Bytes {
                    value: node.operands[0],
                    dtype: graph.ty(node.operands[0]).dtype,
                    shift: 0,
                    views,
                    zero: None,
                    rows: None,
                });
            }
            // Bytes that were converted, and perhaps less a zero point, when they were folded.
            NodeKind::Data(_) if node.ty.dtype == DType::I32 => {
                views.reverse();
                let (dtype, shift) = match folded_dtype(graph, at) {
                    Some(dtype) => (dtype, 0),
                    None => (DType::U8, folded_shift(graph, at)?),
                };
                return Some(Bytes {
                    value: at,
                    dtype,
                    shift,
                    views,
                    zero: None,
                    rows: None,
                });
            }
            NodeKind::Map(ScalarOp::Sub) => {
                let from = graph.node(node.operands[0]);
                let (value, dtype) = match from.kind {
                    NodeKind::Convert(DType::I32) if is_byte(from.operands[0]) => {
                        (from.operands[0], graph.ty(from.operands[0]).dtype)
                    }
                    _ => (node.operands[0], folded_dtype(graph, node.operands[0])?),
                };
                views.reverse();
                return Some(Bytes {
                    value,
                    dtype,
                    shift: 0,
                    views,
                    zero: Some(node.operands[1]),
                    rows: None,
                });
            }
            _ => return None,
        }
        at = node.operands[0];
    }
}

/// The type of bytes, signed if it may be, that has all elements of data of i32 in its range.
fn folded_dtype(graph: &Graph, node: NodeId) -> Option<DType> {
    let NodeKind::Data(data) = &graph.node(node).kind else {
        return None;
    };
    if graph.ty(node).dtype != DType::I32 {
        return None;
    }
    let count: usize = data.0.shape().iter().product();
    let fits = |dtype: &DType| (0..count).all(|i| data.0.get(i).convert(*dtype).as_i64() == data.0.get(i).as_i64());
    [DType::I8, DType::U8].into_iter().find(fits)
}

/// What makes unsigned bytes of data of i32, added to each, if they are so near one another: differences of bytes of one zero point are.
fn folded_shift(graph: &Graph, node: NodeId) -> Option<i64> {
    let NodeKind::Data(data) = &graph.node(node).kind else {
        return None;
    };
    let count: usize = data.0.shape().iter().product();
    let all = || (0..count).map(|i| data.0.get(i).as_i64());
    let (least, most) = (all().min()?, all().max()?);
    (least >= -255 && most <= 255 && most - least <= 255).then_some(-least)
}

/// The number that every element of a constant is.
pub(super) fn number(graph: &Graph, node: NodeId) -> Option<i64> {
    let n = graph.node(node);
    match &n.kind {
        NodeKind::Const(value) => Some(value.convert(DType::I32).as_i64()),
        NodeKind::Data(data) => {
            let count: usize = data.0.shape().iter().product();
            let first = data.0.get(0);
            let same = count > 0 && (1..count).all(|i| data.0.get(i) == first);
            same.then(|| first.convert(DType::I32).as_i64())
        }
        NodeKind::View(view) if view.fill().is_none() => number(graph, n.operands[0]),
        NodeKind::Convert(DType::I32) if graph.ty(n.operands[0]).dtype.is_int() => number(graph, n.operands[0]),
        _ => None,
    }
}

/// What is broadcast to a value, and its shape's axes counted from the last.
pub(super) fn before_expansion(graph: &Graph, mut node: NodeId) -> NodeId {
    while let NodeKind::View(View::Expand(_)) = graph.node(node).kind {
        node = graph.node(node).operands[0];
    }
    node
}

/// Whether an image is padded before there are windows of it, where it is.
pub(super) fn is_padded_first(graph: &Graph, image: &Bytes) -> bool {
    let is_window = |v: &NodeId| matches!(graph.node(*v).kind, NodeKind::View(View::Window { .. }));
    let first = image.views.iter().position(is_window).unwrap_or(image.views.len());
    !image.views[first..].iter().any(|v| is_padding(graph, *v))
}

pub(super) fn zero(graph: &Graph, bytes: &Bytes) -> Zero {
    match bytes.zero {
        None => Zero::Known(bytes.shift),
        Some(z) => number(graph, z).map_or(Zero::Value(z), Zero::Known),
    }
}

pub(super) fn is_padding(graph: &Graph, view: NodeId) -> bool {
    matches!(graph.node(view).kind, NodeKind::View(View::Pad { .. }))
}

/// Whether all elements of a value of i32 are in the range of a type of bytes.
pub(in crate::rewrite) fn is_zero_point(graph: &Graph, mut at: NodeId, dtype: DType) -> bool {
    loop {
        let node = graph.node(at);
        match &node.kind {
            NodeKind::View(view) if view.fill().is_none() => at = node.operands[0],
            NodeKind::Convert(DType::I32) => return graph.ty(node.operands[0]).dtype == dtype,
            NodeKind::Const(value) => return in_range(*value, dtype),
            NodeKind::Data(data) => {
                let count: usize = data.0.shape().iter().product();
                return (0..count).all(|i| in_range(data.0.get(i), dtype));
            }
            _ => return false,
        }
    }
}

fn in_range(value: Scalar, dtype: DType) -> bool {
    value.convert(dtype).as_i64() == value.as_i64()
}

/// Windows or padding of a value that has another axis there, which they leave alone.
fn beside_axis(view: View, at: usize) -> View {
    fn with<T: Clone>(all: &[T], at: usize, one: T) -> Box<[T]> {
        let (before, behind) = all.split_at(at.min(all.len()));
        [before, &[one], behind].concat().into()
    }
    match view {
        View::Window {
            axis,
            size,
            stride,
            dilation,
        } => View::Window {
            axis: axis + u8::from(usize::from(axis) >= at),
            size,
            stride,
            dilation,
        },
        View::Pad {
            lo,
            hi,
            interior,
            value,
        } => View::Pad {
            lo: with(&lo, at, IndexExpr::ZERO),
            hi: with(&hi, at, IndexExpr::ZERO),
            interior: with(&interior, at, 0),
            value,
        },
        other => other,
    }
}

impl Bytes {
    /// The bytes through all views; what these fill in is the zero point.
    pub(super) fn through_views(&self, re: &mut Rebuilder, fill: i64) -> Result<NodeId, GraphError> {
        let dtype = re.graph.ty(self.value).dtype;
        self.above(re, self.value, Scalar::from_i64(dtype, fill))
    }

    /// The views over another value.
    pub(super) fn above(&self, re: &mut Rebuilder, value: NodeId, fill: Scalar) -> Result<NodeId, GraphError> {
        self.views.iter().try_fold(value, |at, &v| {
            let kind = match &re.graph.node(v).kind {
                NodeKind::View(view) => NodeKind::View(match self.rows {
                    Some(axis) => beside_axis(view.filled_with(fill), axis),
                    None => view.filled_with(fill),
                }),
                other => other.clone(),
            };
            re.add(kind, &[at])
        })
    }

    /// As [`Self::above`], of an i32 that is filled with a number which each call computes: the views below the windows fill in nothing, and
    /// what they fill in of a mask is where the number goes.
    pub(super) fn above_filled(&self, re: &mut Rebuilder, value: NodeId, fill: NodeId) -> Result<NodeId, GraphError> {
        let views = |views: &[NodeId]| Bytes {
            views: views.iter().copied().collect(),
            ..*self
        };
        let is_padded = |v: &NodeId| is_padding(&re.graph, *v);
        let Some(last) = self.views.iter().rposition(is_padded) else {
            return self.above(re, value, DType::I32.zero());
        };
        let (below, above) = (views(&self.views[..=last]), views(&self.views[last + 1..]));
        let inside = re.graph.ty(value).shape.clone();
        let inside = splat(re, 0, &inside)?;
        let padding = below.above(re, inside, Scalar::from_i64(DType::I32, -1))?;
        let value = below.above(re, value, DType::I32.zero())?;
        let shape = re.graph.ty(value).shape.clone();
        let fill = re.add(NodeKind::View(View::Expand(shape)), &[fill])?;
        let fill = map(re, ScalarOp::And, padding, fill)?;
        let whole = map(re, ScalarOp::Or, value, fill)?;
        let stored = re.add(NodeKind::Copy, &[whole])?;
        above.above(re, stored, DType::I32.zero())
    }
}
