//! Constants whose elements share bytes: int4, uint4, int2, uint2 and 4-bit floats, which stay in memory as a model's file has
//! them, two or four to a byte.
//!
//! To the graph such a constant is a tensor of bytes, and what a byte holds is arithmetic on it: a shift by the element's place
//! in the byte, and a conversion that keeps the low bits. So the graph language, its interpreter and what is compiled know
//! nothing of packing, and a kernel that reads elements loads bytes. Folding unpacks the small ones, and what is made of not
//! much larger ones alone is computed once, as is what is laid out for products (see `cluster::roots`): for one row in as few bits as they have, for
//! more by the library in floats. Other large ones are unpacked by each call that reads them.

use tlc_formats::onnx::{InPlace, per_byte, unpacked};
use tlc_ir::graph::{NodeId, NodeKind, Origin};
use tlc_ir::tensor::TensorError;
use tlc_ir::{DType, Graph as IrGraph, HostTensor};

use super::refusal::Outcome;
use tlc_record::Graph;
use tlc_record::Tensor;
use tlc_record::tlir::INLINE_ELEMENTS;

/// The elements of a constant.
#[derive(Clone, Debug)]
pub(super) enum Elements {
    /// Each in bytes of its own.
    Whole(HostTensor),
    /// Several to a byte.
    Packed(Packed),
}

/// Elements of less than a byte.
#[derive(Clone, Debug)]
pub(super) struct Packed {
    /// Their bytes, low bits first. Where the elements of the last axis fill bytes, the axes are those of the elements; else
    /// there is one axis.
    bytes: HostTensor,
    dtype: DType,
    shape: Vec<usize>,
}

impl From<HostTensor> for Elements {
    fn from(data: HostTensor) -> Elements {
        Elements::Whole(data)
    }
}

impl Elements {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        match self {
            Elements::Whole(data) => data.len(),
            Elements::Packed(packed) => packed.shape.iter().product(),
        }
    }

    /// In a tensor of their own type, each in bytes of its own.
    pub(super) fn host(&self) -> Outcome<HostTensor> {
        match self {
            Elements::Whole(data) => Ok(data.clone()),
            Elements::Packed(packed) => packed.host(),
        }
    }

    /// As a constant of the graph.
    pub(super) fn tensor(&self, graph: &Graph) -> Tensor {
        match self {
            Elements::Whole(data) => graph.constant(data),
            Elements::Packed(packed) => packed.tensor(graph),
        }
    }
}

/// The extents of the bytes that hold elements of these extents.
fn byte_shape(dtype: DType, shape: &[usize]) -> Vec<usize> {
    let per_byte = per_byte(dtype);
    match shape {
        [around @ .., last] if last.is_multiple_of(per_byte) => [around, &[last / per_byte]].concat(),
        shape => vec![shape.iter().product::<usize>().div_ceil(per_byte)],
    }
}

/// Whether elements stay packed. Those that stand in a text do not, so that it shows them.
fn stays(dtype: DType, shape: &[usize]) -> bool {
    per_byte(dtype) > 1 && shape.iter().product::<usize>() > INLINE_ELEMENTS
}

/// The type and the extents under which elements that are used in place are held.
pub(super) fn held(of: &InPlace<'_>) -> (DType, Vec<usize>) {
    match per_byte(of.dtype) {
        1 => (of.dtype, of.shape.clone()),
        _ => (DType::U8, byte_shape(of.dtype, &of.shape)),
    }
}

/// Elements that are `held` so.
pub(super) fn elements(of: &InPlace<'_>, held: Result<HostTensor, TensorError>) -> Outcome<Elements> {
    let bytes = held?;
    let packed = Packed {
        bytes,
        dtype: of.dtype,
        shape: of.shape.clone(),
    };
    match per_byte(of.dtype) {
        1 => Ok(packed.bytes.into()),
        _ if stays(of.dtype, &of.shape) => Ok(Elements::Packed(packed)),
        _ => Ok(packed.host()?.into()),
    }
}

/// Elements that had to be read one by one.
pub(super) fn read(data: HostTensor) -> Outcome<Elements> {
    let (dtype, shape) = (data.dtype(), data.shape().to_vec());
    if !stays(dtype, &shape) {
        return Ok(data.into());
    }
    let bytes = tlc_formats::onnx::packed(&data);
    let bytes = HostTensor::from_bytes(DType::U8, &byte_shape(dtype, &shape), &bytes);
    Ok(Elements::Packed(Packed {
        bytes: bytes?,
        dtype,
        shape,
    }))
}

impl Packed {
    /// Each element in a byte of its own.
    pub(super) fn host(&self) -> Outcome<HostTensor> {
        Ok(unpacked(self.dtype, &self.shape, self.bytes.bytes())?)
    }

    /// The bytes as a constant of the graph, and the elements that they hold. Lanes shift by one amount: an element is picked
    /// among the bytes shifted for each place.
    fn tensor(&self, graph: &Graph) -> Tensor {
        let bytes = graph.constant(&self.bytes);
        // Only the bytes are weights.
        let before = graph.set_within(None);
        graph.set_within(match &before {
            Some(Origin::Weights(name)) => Some(Origin::Named(name.clone())),
            other => other.clone(),
        });
        let (per_byte, bits) = (per_byte(self.dtype), self.dtype.value_bits());
        // Repeated first: to repeat costs nothing, so that folding, which only sees few elements, sees all of them.
        let each = [self.bytes.shape(), &[per_byte]].concat();
        let bytes = bytes.unsqueeze(-1).expand(each.as_slice()).cast(DType::I32);
        let place = graph.iota(per_byte, 0, DType::I32);
        let shifted = |i: usize| match i {
            0 => bytes.clone(),
            i => &bytes >> (i as u32 * bits),
        };
        let mut all = shifted(per_byte - 1);
        for i in (0..per_byte - 1).rev() {
            all = place.eq(i as i64).select(shifted(i), all);
        }
        // A conversion of an integer to fewer bits keeps the low ones.
        let elements = match self.dtype {
            d if d.is_storage_float() => all.cast(DType::U4).bitcast(d),
            d => all.cast(d),
        };
        let count: usize = self.shape.iter().product();
        let room = self.bytes.len() * per_byte;
        let elements = match count == room {
            true => elements,
            false => elements.reshape(room).narrow(0, 0, count),
        };
        let elements = elements.reshape(self.shape.as_slice());
        graph.set_within(before);
        elements
    }

    /// The packed constant whose elements a node of the graph has, if they are computed as `tensor` records it.
    pub(super) fn of(graph: &IrGraph, root: NodeId) -> Option<Packed> {
        let ty = graph.ty(root);
        if per_byte(ty.dtype) == 1 || !matches!(graph.node(root).kind, NodeKind::View(_)) {
            return None;
        }
        let extent = |d: &tlc_ir::IndexExpr| d.as_const().and_then(|n| usize::try_from(n).ok());
        let shape: Vec<usize> = ty.shape.iter().map(extent).collect::<Option<_>>()?;
        let packed = Packed {
            bytes: bytes_below(graph, root)?,
            dtype: ty.dtype,
            shape,
        };
        if packed.bytes.shape() != byte_shape(packed.dtype, &packed.shape) {
            return None;
        }
        let expected = Graph::new("packed");
        let top = packed.tensor(&expected).id()?;
        expected.check().ok()?;
        expected.with_ir(|e| same(graph, root, e, top)).then_some(packed)
    }
}

/// The bytes at the bottom of a chain of first operands, or of second ones where something is picked.
fn bytes_below(graph: &IrGraph, mut id: NodeId) -> Option<HostTensor> {
    /// A chain has one node for each line of `Packed::tensor`.
    const MOST: usize = 16;
    for _ in 0..MOST {
        let node = graph.node(id);
        match &node.kind {
            NodeKind::Data(data) => return (data.0.dtype() == DType::U8).then(|| data.0.clone()),
            NodeKind::Map(tlc_ir::ScalarOp::Select) => id = node.operands[1],
            _ => id = *node.operands.first()?,
        }
    }
    None
}

/// Whether two nodes are computed by the same operations from the same data.
fn same(a: &IrGraph, id: NodeId, b: &IrGraph, other: NodeId) -> bool {
    let (x, y) = (a.node(id), b.node(other));
    let both = || x.operands.iter().zip(&y.operands);
    x.kind == y.kind && x.operands.len() == y.operands.len() && both().all(|(&p, &q)| same(a, p, b, q))
}
