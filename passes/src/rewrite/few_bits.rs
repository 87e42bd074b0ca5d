//! Lays weights of few bits out for a product with a vector, of which a kernel then reads each as the bits that it is.
//!
//! A matrix that is dequantized is computed from integers of 8 bits or fewer, element by element, by a scale and perhaps a zero point for each
//! block, row or column. A product with one vector reads each of its elements once: what counts are the bytes of the integers, and a kernel
//! dequantizes them in registers. Two things keep it from doing that well:
//!
//! * Elements that share a byte lie beside each other, so that each lane of a vector would shift by another amount. A copy has those
//!   in a byte that are [`LANES`] apart: lanes then load neighbouring bytes, and shift by one amount.
//! * Columns of a matrix whose rows lie across the sum are far apart from row to row. The copy has them in blocks, and so have scales
//!   and zero points that change along the sum.
//!
//! The dequantization sees its operands through views of the copies, and knows nothing of them.

use smallvec::{SmallVec, smallvec};
use tlc_ir::graph::{GraphError, Shape, View};
use tlc_ir::index::IndexExpr;
use tlc_ir::{DType, Graph, Node, NodeId, NodeKind, Scalar, ScalarOp};

use super::Rebuilder;
use super::panels::{Budget, Fixed};
use crate::contraction::layouts::vector_of;

/// Elements whose bits neighbouring bytes of a copy begin with: lanes of the widest vectors.
const LANES: i64 = 16;
/// Columns of a block of a matrix in blocks of them, if its elements have a byte of their own.
const COLUMNS: i64 = 32;
/// The fewest rows, and columns, of a matrix that is laid out.
const FEWEST: i64 = 128;
/// Rows from which on a matrix whose rows lie across the sum is turned around: along the sum one scale is that of all lanes, so that a table of what its
/// elements are worth is computed for all of a block, in place of each element. What lanes sum up is added up at the end of each column, which is little
/// beside so many.
const TURNED_FROM: i64 = 512;
/// The fewest elements of a matrix that is laid out: what is smaller is kept dequantized (see `cluster::roots`), and stays in the caches.
const FEWEST_ELEMENTS: i64 = 1 << 18;
/// Operations between a product and the integers, at most.
const DEEPEST: u32 = 16;

/// The integers that a matrix is computed from.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Integers {
    node: NodeId,
    /// Whether their axes are those of the matrix the other way round.
    turned: bool,
}

/// The einsum `node` of a vector and a matrix of fixed integers of few bits, these laid out for it; `None` if it is none.
///
/// # Errors
/// Never for a verified graph.
pub(super) fn laid_out(
    re: &mut Rebuilder,
    graph: &Graph,
    (id, node): (NodeId, &Node),
    operands: &[NodeId],
    (fixed, budget): (&Fixed, &mut Budget),
) -> Result<Option<NodeId>, GraphError> {
    let NodeKind::Einsum { inputs, output, .. } = &node.kind else {
        return Ok(None);
    };
    let Some(vector) = vector_of(graph, id) else {
        return Ok(None);
    };
    let k = 1 - vector;
    let (Some(old), Some(new)) = (integers(graph, node.operands[k]), integers(&re.graph, operands[k])) else {
        return Ok(None);
    };
    let ty = graph.ty(old.node);
    let extents: Option<Vec<i64>> = ty.shape.iter().map(IndexExpr::as_const).collect();
    let Some(&[rows, columns]) = extents.as_deref() else {
        return Ok(None);
    };
    let labels = &inputs[k];
    let last = if old.turned { labels[0] } else { labels[1] };
    let summed = labels.iter().filter(|l| !output.contains(l)).count();
    if !fixed.contains(old.node)
        || !fixed.contains(node.operands[k])
        || labels[0] == labels[1]
        || summed != 1
        || rows.min(columns) < FEWEST
        || rows.saturating_mul(columns) <= FEWEST_ELEMENTS
    {
        return Ok(None);
    }
    let bits = i64::from(ty.dtype.value_bits());
    let across = output.contains(&last);
    let turns = across && bits < 8 && rows >= TURNED_FROM;
    let (rows, columns) = if turns { (columns, rows) } else { (rows, columns) };
    let layout = Layout {
        bits,
        signed: matches!(ty.dtype, DType::I8 | DType::I4 | DType::I2),
        dtype: ty.dtype,
        rows,
        columns,
        across: across && !turns,
        turns,
    };
    let copies = layout.per_byte() > 1 || (layout.across && columns % layout.block() == 0);
    if copies && !budget.take_bytes((rows as u64).saturating_mul(layout.padded() as u64) / layout.per_byte() as u64) {
        return Ok(None);
    }
    let wide = match copies {
        true => layout.wide(re, new.node)?,
        false => new.node,
    };
    let matrix = layout.rebuilt(re, operands[k], (new.node, wide))?;
    let mut values = operands.to_vec();
    values[k] = matrix;
    re.add(node.kind.clone(), &values).map(Some)
}

/// The integers that a matrix is dequantized from, if it is computed of such element by element, and of nothing else but what is as large
/// through repetition.
fn integers(graph: &Graph, matrix: NodeId) -> Option<Integers> {
    let found = search(graph, matrix, false, DEEPEST)?;
    (found.node != matrix && graph.ty(matrix).dtype.is_float() && graph.ty(found.node).rank() == 2).then_some(found)
}

fn search(graph: &Graph, at: NodeId, turned: bool, depth: u32) -> Option<Integers> {
    let node = graph.node(at);
    let few_bits = matches!(node.ty.dtype, DType::I4 | DType::U4 | DType::I2 | DType::U2);
    let bytes = matches!(node.ty.dtype, DType::I8 | DType::U8) && matches!(node.kind, NodeKind::Data(_));
    if few_bits || bytes {
        return (!repeats(graph, at)).then_some(Integers { node: at, turned });
    }
    let depth = depth.checked_sub(1)?;
    match &node.kind {
        NodeKind::View(View::Permute(axes)) => search(graph, node.operands[0], turned ^ (axes[..] == [1, 0]), depth),
        NodeKind::Convert(_) | NodeKind::Map(ScalarOp::Mul | ScalarOp::Sub | ScalarOp::Add) => {
            let mut found = node.operands.iter().filter_map(|&o| search(graph, o, turned, depth));
            let one = found.next();
            one.filter(|_| found.next().is_none())
        }
        _ => None,
    }
}

/// Whether a value shows the elements of a smaller one several times, as zero points are.
fn repeats(graph: &Graph, mut at: NodeId) -> bool {
    loop {
        match graph.node(at).kind {
            NodeKind::View(View::Expand(_)) => return true,
            NodeKind::View(View::Reshape(_) | View::Slice { .. } | View::Permute(_)) => at = graph.node(at).operands[0],
            _ => return false,
        }
    }
}

/// Whether a value of i32 is converted from integers of a byte or less.
fn is_small(graph: &Graph, mut at: NodeId) -> bool {
    while let NodeKind::View(View::Expand(_) | View::Reshape(_) | View::Slice { .. }) = graph.node(at).kind {
        at = graph.node(at).operands[0];
    }
    let node = graph.node(at);
    match node.kind {
        NodeKind::Convert(_) => {
            let from = graph.ty(node.operands[0]).dtype;
            matches!(
                from,
                DType::I8 | DType::U8 | DType::I4 | DType::U4 | DType::I2 | DType::U2
            )
        }
        NodeKind::Const(value) => (-256..=256).contains(&(value.as_f64() as i64)),
        _ => false,
    }
}

/// How the integers of a matrix are laid out.
struct Layout {
    bits: i64,
    signed: bool,
    dtype: DType,
    rows: i64,
    columns: i64,
    /// Whether the sum goes from row to row.
    across: bool,
    /// Whether rows of the copy are columns of the matrix.
    turns: bool,
}

impl Layout {
    fn per_byte(&self) -> i64 {
        8 / self.bits
    }

    /// Elements of a row that lie together in a copy.
    fn block(&self) -> i64 {
        match self.per_byte() {
            1 => COLUMNS,
            n => LANES * n,
        }
    }

    /// Blocks of a row, the last of which may have elements that are none of the matrix.
    fn blocks(&self) -> i64 {
        (self.columns + self.block() - 1) / self.block()
    }

    fn padded(&self) -> i64 {
        self.blocks() * self.block()
    }

    /// The integers as those of a copy: as they are, or in i32 if they share bytes.
    fn wide(&self, re: &mut Rebuilder, integers: NodeId) -> Result<NodeId, GraphError> {
        if self.per_byte() == 1 {
            return in_blocks(re, integers, self.block());
        }
        let (rows, blocks, per_byte) = (self.rows, self.blocks(), self.per_byte());
        let packed = self.packed(re, integers)?;
        let all = shape(&[rows, blocks, per_byte, LANES]);
        let one = re.reshape(packed, &shape(&[rows, blocks, 1, LANES]))?;
        let each = re.add(NodeKind::View(View::Expand(all.clone())), &[one])?;
        let each = re.add(NodeKind::Convert(DType::I32), &[each])?;
        let of = |x: i64| Scalar::from_i64(DType::I32, x);
        let place = NodeKind::Iota {
            ty: tlc_ir::TensorType {
                dtype: DType::I32,
                shape: shape(&[per_byte]),
            },
            axis: 0,
        };
        let place = re.add(place, &[])?;
        let bits = re.splat(of(self.bits), &shape(&[per_byte]))?;
        let below = re.add(NodeKind::Map(ScalarOp::Mul), &[place, bits])?;
        let along = |re: &mut Rebuilder, x: NodeId| {
            let x = re.reshape(x, &shape(&[per_byte, 1]))?;
            re.add(NodeKind::View(View::Expand(all.clone())), &[x])
        };
        let below = along(re, below)?;
        let low = re.add(NodeKind::Map(ScalarOp::Shr), &[each, below])?;
        let mask = re.splat(of((1 << self.bits) - 1), &all)?;
        let mut bare = re.add(NodeKind::Map(ScalarOp::And), &[low, mask])?;
        if self.signed {
            let least = re.splat(of(1 << (self.bits - 1)), &all)?;
            bare = re.add(NodeKind::Map(ScalarOp::Sub), &[bare, least])?;
        }
        let wide = re.reshape(bare, &shape(&[rows, self.padded()]))?;
        let wide = sliced(re, wide, &[0, 0], &[rows, self.columns])?;
        match self.turns {
            true => re.add(turned(), &[wide]),
            false => Ok(wide),
        }
    }

    /// The bytes of the copy, `[rows, blocks, LANES]`: bits of the elements of a block that are [`LANES`] apart, the first lowest.
    fn packed(&self, re: &mut Rebuilder, integers: NodeId) -> Result<NodeId, GraphError> {
        let (rows, blocks, per_byte) = (self.rows, self.blocks(), self.per_byte());
        let bits = match (self.signed, self.bits) {
            (false, _) => integers,
            (true, 4) => re.add(NodeKind::Bitcast(DType::U4), &[integers])?,
            (true, _) => re.add(NodeKind::Bitcast(DType::U2), &[integers])?,
        };
        let mut bits = re.add(NodeKind::Convert(DType::I32), &[bits])?;
        if self.signed {
            // The distance from the least integer, of which no sign is to be extended.
            let of_all = re.graph.ty(bits).shape.clone();
            let high = re.splat(Scalar::from_i64(DType::I32, 1 << (self.bits - 1)), &of_all)?;
            bits = re.add(NodeKind::Map(ScalarOp::Xor), &[bits, high])?;
        }
        if self.turns {
            // Bytes of their own are turned a tile at a time.
            let bytes = re.add(NodeKind::Convert(DType::U8), &[bits])?;
            let bytes = re.add(NodeKind::Copy, &[bytes])?;
            let bytes = re.add(turned(), &[bytes])?;
            let bytes = re.add(NodeKind::Copy, &[bytes])?;
            bits = re.add(NodeKind::Convert(DType::I32), &[bytes])?;
        }
        let more = self.padded() - self.columns;
        let bits = match more {
            0 => bits,
            _ => re.padded(bits, shape(&[0, 0]), shape(&[0, more]), DType::I32.zero())?,
        };
        let cut = re.reshape(bits, &shape(&[rows, blocks, per_byte, LANES]))?;
        let whole = shape(&[rows, blocks, LANES]);
        let mut all = None;
        for place in 0..per_byte {
            let part = sliced(re, cut, &[0, 0, place, 0], &[rows, blocks, 1, LANES])?;
            let part = re.reshape(part, &whole)?;
            let by = re.splat(Scalar::from_i64(DType::I32, self.bits * place), &whole)?;
            let part = match place {
                0 => part,
                _ => re.add(NodeKind::Map(ScalarOp::Shl), &[part, by])?,
            };
            all = Some(match all {
                None => part,
                Some(lower) => re.add(NodeKind::Map(ScalarOp::Or), &[lower, part])?,
            });
        }
        let bytes = re.add(NodeKind::Convert(DType::U8), &[all.unwrap_or(bits)])?;
        if !self.across {
            return re.add(NodeKind::Copy, &[bytes]);
        }
        let turned = || NodeKind::View(View::Permute(smallvec![1, 0, 2]));
        let blocks_first = re.add(turned(), &[bytes])?;
        let copy = re.add(NodeKind::Copy, &[blocks_first])?;
        re.add(turned(), &[copy])
    }

    /// The matrix computed from the integers in `wide`, which may be of another type, and from what else it was computed of, laid out like them.
    fn rebuilt(
        &self,
        re: &mut Rebuilder,
        at: NodeId,
        (integers, wide): (NodeId, NodeId),
    ) -> Result<NodeId, GraphError> {
        let here = |re: &Rebuilder, o: NodeId| o == integers || search(&re.graph, o, false, DEEPEST).is_some();
        let node = re.graph.node(at).clone();
        if at == integers {
            return match wide == integers || self.per_byte() == 1 {
                true => Ok(wide),
                false => re.add(NodeKind::Convert(self.dtype), &[wide]),
            };
        }
        match node.kind {
            NodeKind::Convert(DType::I32) if node.operands[0] == integers && self.per_byte() > 1 => return Ok(wide),
            // Differences of such integers are exact as floats too, of which a zero point that stays the same is converted once.
            NodeKind::Convert(DType::F32) => {
                let below = re.graph.node(node.operands[0]).clone();
                if let (NodeKind::Map(ScalarOp::Sub), &[x, zero]) = (&below.kind, &below.operands[..])
                    && below.ty.dtype == DType::I32
                    && here(re, x)
                    && is_small(&re.graph, zero)
                {
                    let x = self.rebuilt(re, x, (integers, wide))?;
                    let zero = self.parameter(re, zero)?;
                    let both = [x, zero].map(|v| re.add(NodeKind::Convert(DType::F32), &[v]));
                    let [x, zero] = both;
                    return re.add(NodeKind::Map(ScalarOp::Sub), &[x?, zero?]);
                }
                if node.operands[0] == integers {
                    return re.add(node.kind.clone(), &[wide]);
                }
            }
            NodeKind::Convert(_) if node.operands[0] == integers => return re.add(node.kind.clone(), &[wide]),
            _ => {}
        }
        let mut operands: SmallVec<[NodeId; 2]> = SmallVec::new();
        for &o in &node.operands {
            operands.push(match here(re, o) {
                true => self.rebuilt(re, o, (integers, wide))?,
                false => self.parameter(re, o)?,
            });
        }
        re.add(node.kind.clone(), &operands)
    }

    /// A scale or a zero point as it is repeated, of what it is repeated from laid out.
    fn parameter(&self, re: &mut Rebuilder, at: NodeId) -> Result<NodeId, GraphError> {
        let node = re.graph.node(at).clone();
        // What shares bytes is unpacked by views and conversions of its own, below those that repeat it.
        let of_bytes = !node.ty.dtype.is_storage() || repeats(&re.graph, at);
        match node.kind {
            NodeKind::Convert(_) | NodeKind::View(View::Expand(_) | View::Reshape(_) | View::Slice { .. })
                if of_bytes =>
            {
                let below = self.parameter(re, node.operands[0])?;
                return re.add(node.kind.clone(), &[below]);
            }
            NodeKind::Const(_) => return Ok(at),
            _ => {}
        }
        let extents: Option<Vec<i64>> = node.ty.shape.iter().map(IndexExpr::as_const).collect();
        match extents.as_deref() {
            Some(&[n, columns]) if self.across && n > 1 && columns == self.columns && columns % self.block() == 0 => {
                in_blocks(re, at, self.block())
            }
            Some(&[n, columns]) if self.turns && n > 1 && columns == self.rows => {
                let rows_first = re.add(turned(), &[at])?;
                let copy = re.add(NodeKind::Copy, &[rows_first])?;
                re.add(turned(), &[copy])
            }
            // Computed once.
            Some(_) if !matches!(node.kind, NodeKind::Data(_)) => re.add(NodeKind::Copy, &[at]),
            _ => Ok(at),
        }
    }
}

/// A matrix the other way round.
fn turned() -> NodeKind {
    NodeKind::View(View::Permute(smallvec![1, 0]))
}

/// A matrix seen through a copy of it in blocks of so many columns.
fn in_blocks(re: &mut Rebuilder, matrix: NodeId, block: i64) -> Result<NodeId, GraphError> {
    let whole = re.graph.ty(matrix).shape.clone();
    let block = IndexExpr::Const(block);
    let cut: Shape = smallvec![whole[0].clone(), IndexExpr::floor_div(&whole[1], &block), block];
    let cut = re.reshape(matrix, &cut)?;
    let turned = || NodeKind::View(View::Permute(smallvec![1, 0, 2]));
    let blocks_first = re.add(turned(), &[cut])?;
    let copy = re.add(NodeKind::Copy, &[blocks_first])?;
    let seen = re.add(turned(), &[copy])?;
    re.reshape(seen, &whole)
}

fn shape(extents: &[i64]) -> Shape {
    extents.iter().map(|&n| n.into()).collect()
}

/// `size` elements of each axis from `start` on.
fn sliced(re: &mut Rebuilder, value: NodeId, start: &[i64], size: &[i64]) -> Result<NodeId, GraphError> {
    if re.graph.ty(value).shape == shape(size) {
        return Ok(value);
    }
    let view = View::Slice {
        start: shape(start).into_boxed_slice(),
        step: start.iter().map(|_| 1).collect(),
        size: shape(size).into_boxed_slice(),
    };
    re.add(NodeKind::View(view), &[value])
}
