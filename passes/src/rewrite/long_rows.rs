//! Rows that stay nowhere near the threads of a GPU, in pieces that do: a softmax or a norm reads them twice.
//!
//! A sum that waits for another result of its own row, as that of the exponentials beside the largest element, or of the squares beside the mean,
//! needs the row a second time, and what is computed of the sum needs it a third time. A row in shared memory or registers is read once all
//! the same; of a longer one each time is a way through memory. So the row is cut into pieces of which a block keeps one. Each piece sums up beside a
//! result of its own, and what the pieces came to is put together (Milakov and Gimelshein, arXiv:1805.02867; Chan, Golub and LeVeque, "Updating
//! formulae and a pairwise algorithm for computing sample variances", 1979):
//!
//! - `Σ e^(x - b) = Σ over pieces of e^(m - b) · Σ e^(x - m)`, with `m` the largest element of the piece;
//! - `Σ (x - b)² = Σ over pieces of (Σ (x - m)² + n · (m - b)²)`, with `m` the mean of the piece and `n` its elements.
//!
//! Both hold for any `b`. Pieces of all rows are independent, so that few rows fill a device as well. One kernel whose blocks went over a row twice each
//! would read as much: the last cache is long past what its blocks read first, for those under way together have more rows than it holds. It would save
//! a launch, and have no more blocks than rows.
//!
//! Invariants:
//! - Where elements are none or infinite, results are those of the formula that was recorded: a piece whose largest element is infinite sums beside
//!   0, which gives 0 or infinity, and `e^(m - b)` says what that means.
//! - Pieces depend on extents and the device alone.

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::smallvec;
use tlc_ir::graph::{GraphError, MAX_RANK, Monoid, Shape, View};
use tlc_ir::index::IndexExpr;
use tlc_ir::target::{Gpu, Target};
use tlc_ir::{DType, Graph, NodeId, NodeKind, Scalar, ScalarOp};

use super::{Context, Failure, Pass, Rebuilder};
use crate::tile::are_few_rows;

/// Bytes of a piece at most: what the threads of a block hold in registers.
const PIECE_BYTES: i64 = 16 << 10;
/// Elements of a piece at least.
const LEAST_PIECE: i64 = 1024;
/// Pieces for each multiprocessor, if rows are long enough for so many. Each stores a sector for each number that it comes to.
const PIECES: i64 = 1;
/// Elements that a warp loads at once, 16 bytes a thread: a piece of so many, or a multiple, leaves no thread without.
const WARP_ELEMENTS: i64 = 128;
/// Bytes that memory moves at least: pieces that begin within so many share them with the one before, and so does each warp of theirs.
const SECTOR_BYTES: i64 = 32;
/// Nodes between a row's result and what is computed of the row beside it, at most.
const BETWEEN: usize = 24;
/// Nodes of what rows are computed of that are cut with them, at most.
const CUT: usize = 48;

/// Long rows in pieces, on a GPU.
pub struct LongRows;

impl Pass for LongRows {
    fn name(&self) -> &'static str {
        "long-rows"
    }

    fn run(&self, graph: &Graph, context: &mut Context<'_>) -> Result<Graph, Failure> {
        match context.gpu {
            Some(gpu) => Ok(run(graph, gpu)?),
            None => Ok(graph.clone()),
        }
    }
}

/// How a reduction of rows is put together of pieces.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// As it is.
    Plain,
    /// A sum of exponentials.
    Exponentials,
    /// A sum of squares.
    Squares,
}

/// Rows and their pieces.
struct Pieces {
    /// Elements of a row.
    length: i64,
    count: i64,
    size: i64,
}

/// Cuts long rows whose sums wait for other results of the row.
///
/// # Errors
/// Never for a verified graph.
pub fn run(graph: &Graph, gpu: &Gpu) -> Result<Graph, GraphError> {
    let mut parts: FxHashMap<NodeId, Part> = FxHashMap::default();
    for (id, node) in graph.nodes() {
        if let NodeKind::Reduce { .. } = node.kind
            && let Some((part, before)) = waits(graph, id)
            && pieces(graph, id, gpu).is_some()
        {
            parts.insert(id, part);
            for id in before {
                parts.entry(id).or_insert(Part::Plain);
            }
        }
    }
    if parts.is_empty() {
        return Ok(graph.clone());
    }
    super::rebuild(graph, &mut |re, id, node, operands| {
        let made = match (parts.get(&id), &node.kind) {
            (Some(&part), &NodeKind::Reduce { monoid, .. }) => match pieces(graph, id, gpu) {
                Some(p) => p.reduce(re, part, monoid, operands[0])?,
                None => None,
            },
            _ => None,
        };
        match made {
            Some(new) => Ok(new),
            None => re.keep(node, operands),
        }
    })
}

/// The operand of a reduction along the last axis.
fn reduced(graph: &Graph, id: NodeId, of: Monoid) -> Option<NodeId> {
    let node = graph.node(id);
    let &[operand] = &node.operands[..] else { return None };
    let last = graph.ty(operand).rank().checked_sub(1)?;
    match &node.kind {
        NodeKind::Reduce { monoid, axes } if *monoid == of && axes[..] == [last as u8] => Some(operand),
        _ => None,
    }
}

/// What is subtracted from rows, one number from each: the rows, and the numbers, whose last axis has one element.
fn beside(graph: &Graph, difference: NodeId) -> Option<(NodeId, NodeId)> {
    let node = graph.node(difference);
    let (NodeKind::Map(ScalarOp::Sub), &[rows, number]) = (&node.kind, &node.operands[..]) else {
        return None;
    };
    let NodeKind::View(View::Expand(_)) = graph.node(number).kind else {
        return None;
    };
    let number = graph.node(number).operands[0];
    let one = graph.ty(number).shape.last().is_some_and(|d| d.is(1));
    one.then_some((rows, number))
}

/// What a sum adds up of the difference of rows and a number each: that difference.
fn summed(graph: &Graph, operand: NodeId) -> Option<(Part, NodeId)> {
    let node = graph.node(operand);
    match (&node.kind, &node.operands[..]) {
        (NodeKind::Map(ScalarOp::Exp), &[d]) => Some((Part::Exponentials, d)),
        (NodeKind::Map(ScalarOp::Mul), &[a, b]) if a == b => Some((Part::Squares, a)),
        _ => None,
    }
}

/// Whether a sum waits for other results of the same rows, and for which.
fn waits(graph: &Graph, id: NodeId) -> Option<(Part, Vec<NodeId>)> {
    let operand = reduced(graph, id, Monoid::Add)?;
    let dtype = graph.ty(operand).dtype;
    let (part, difference) = summed(graph, operand)?;
    let (rows, number) = beside(graph, difference)?;
    if dtype.accumulator() != dtype {
        return None;
    }
    let first = match part {
        Part::Squares => Monoid::Add,
        _ => Monoid::Max,
    };
    let (mut found, mut seen, mut work) = (Vec::new(), FxHashSet::default(), vec![number]);
    while let Some(n) = work.pop() {
        if !seen.insert(n) || seen.len() > BETWEEN {
            continue;
        }
        let node = graph.node(n);
        match &node.kind {
            _ if reduced(graph, n, first) == Some(rows) => found.push(n),
            // Of the squares' number nothing may hide that a sum is infinite.
            NodeKind::Map(ScalarOp::Mul | ScalarOp::Div) if part == Part::Squares => {
                work.extend(node.operands.iter());
            }
            NodeKind::Map(_) if part != Part::Squares => work.extend(node.operands.iter()),
            NodeKind::View(View::Reshape(_) | View::Expand(_)) => work.extend(node.operands.iter()),
            _ => {}
        }
    }
    (!found.is_empty()).then_some((part, found))
}

/// The pieces of the rows that a reduction is of, if they are long.
fn pieces(graph: &Graph, id: NodeId, gpu: &Gpu) -> Option<Pieces> {
    let ty = graph.ty(graph.node(id).operands[0]);
    let (length, kept) = ty.shape.split_last()?;
    let length = length.as_const()?;
    let rows = IndexExpr::product(kept).as_const();
    let bytes = ty.dtype.bytes() as i64;
    let stays = length.saturating_mul(bytes) <= Target::Gpu(gpu.clone()).row_bytes();
    let few = rows.is_some_and(|rows| are_few_rows(rows, length));
    if ty.rank() + 1 > MAX_RANK || rows == Some(0) || stays && !few || length > i64::from(i32::MAX) {
        return None;
    }
    let all = rows.unwrap_or(i64::MAX).saturating_mul(length);
    let most = (all / (PIECES * gpu.multiprocessors.max(1))).clamp(LEAST_PIECE, PIECE_BYTES / bytes);
    let even = |step: i64| {
        let mut sizes = (most / 2 / step.max(1)..=most / step).rev().map(|n| n * step);
        sizes.find(|size| *size > 0 && length % size == 0)
    };
    let size = even(WARP_ELEMENTS)
        .or_else(|| even(SECTOR_BYTES / bytes))
        .or_else(|| even(4))
        .or_else(|| even(1))
        .unwrap_or(most);
    let count = (length + size - 1) / size;
    Some(Pieces { length, count, size })
}

impl Pieces {
    fn is_whole(&self) -> bool {
        self.count * self.size == self.length
    }

    /// The shape of rows, without their last axis, with so many axes of pieces in its place.
    fn shape(kept: &[IndexExpr], behind: &[i64]) -> Shape {
        let behind = behind.iter().map(|&d| IndexExpr::Const(d));
        kept.iter().cloned().chain(behind).collect()
    }

    /// A reduction of rows, put together of its pieces; `None` if it is no such one in the new graph.
    fn reduce(
        &self,
        re: &mut Rebuilder<'_>,
        part: Part,
        monoid: Monoid,
        operand: NodeId,
    ) -> Result<Option<NodeId>, GraphError> {
        let ty = re.graph.ty(operand).clone();
        let kept = &ty.shape[..ty.rank() - 1];
        let axis = kept.len() as u8;
        let along = |re: &mut Rebuilder<'_>, monoid: Monoid, axis: u8, x: NodeId| {
            let axes = smallvec![axis];
            re.add(NodeKind::Reduce { monoid, axes }, &[x])
        };
        let map = |re: &mut Rebuilder<'_>, op: ScalarOp, operands: &[NodeId]| re.add(NodeKind::Map(op), operands);
        let (mut cut, all) = (Cut::new(self), Self::shape(kept, &[self.count, self.size]));
        // One number for each piece, to all of its elements.
        let spread = |re: &mut Rebuilder<'_>, number: NodeId| {
            let column = re.reshape(number, &Self::shape(kept, &[self.count, 1]))?;
            re.add(NodeKind::View(View::Expand(all.clone())), &[column])
        };
        if part == Part::Plain {
            let fill = identity(monoid, ty.dtype);
            let x = cut.filled(re, operand, fill)?;
            let of_pieces = along(re, monoid, axis + 1, x)?;
            return along(re, monoid, axis, of_pieces).map(Some);
        }
        let found = summed(&re.graph, operand).and_then(|(_, d)| beside(&re.graph, d));
        let Some((rows, number)) = found else {
            return Ok(None);
        };
        let each = Self::shape(kept, &[self.count]);
        let number = re.add(NodeKind::View(View::Expand(each.clone())), &[number])?;
        let total = if part == Part::Exponentials {
            let x = cut.filled(re, rows, identity(Monoid::Max, ty.dtype))?;
            let largest = along(re, Monoid::Max, axis + 1, x)?;
            let size = map(re, ScalarOp::Abs, &[largest])?;
            let infinity = re.splat(Scalar::from_f64(ty.dtype, f64::INFINITY), &each)?;
            let is_infinite = map(re, ScalarOp::Eq, &[size, infinity])?;
            let zero = re.splat(ty.dtype.zero(), &each)?;
            let finite = map(re, ScalarOp::Select, &[is_infinite, zero, largest])?;
            let finite = spread(re, finite)?;
            let below = map(re, ScalarOp::Sub, &[x, finite])?;
            let weights = map(re, ScalarOp::Exp, &[below])?;
            let sum = along(re, Monoid::Add, axis + 1, weights)?;
            let off = map(re, ScalarOp::Sub, &[largest, number])?;
            let scale = map(re, ScalarOp::Exp, &[off])?;
            map(re, ScalarOp::Mul, &[sum, scale])?
        } else {
            let x = cut.filled(re, rows, ty.dtype.zero())?;
            let sum = along(re, Monoid::Add, axis + 1, x)?;
            let elements = self.elements(re, ty.dtype, &each)?;
            let mean = map(re, ScalarOp::Div, &[sum, elements])?;
            let of_all = spread(re, mean)?;
            let off = map(re, ScalarOp::Sub, &[x, of_all])?;
            let off = self.or_zero(re, off, ty.dtype.zero())?;
            let squares = map(re, ScalarOp::Mul, &[off, off])?;
            let squares = along(re, Monoid::Add, axis + 1, squares)?;
            let off = map(re, ScalarOp::Sub, &[mean, number])?;
            let square = map(re, ScalarOp::Mul, &[off, off])?;
            let moved = map(re, ScalarOp::Mul, &[square, elements])?;
            map(re, ScalarOp::Add, &[squares, moved])?
        };
        along(re, Monoid::Add, axis, total).map(Some)
    }

    /// The elements of each piece that are some of the row.
    fn elements(&self, re: &mut Rebuilder<'_>, dtype: DType, each: &Shape) -> Result<NodeId, GraphError> {
        if self.is_whole() {
            return re.splat(Scalar::from_f64(dtype, self.size as f64), each);
        }
        let pieces: Shape = smallvec![IndexExpr::Const(self.count)];
        let ty = tlc_ir::TensorType::new(DType::I32, pieces.iter().cloned());
        let number = re.add(NodeKind::Iota { ty, axis: 0 }, &[])?;
        let [size, length] = [self.size, self.length].map(|n| Scalar::from_i64(DType::I32, n));
        let (size, length) = (re.splat(size, &pieces)?, re.splat(length, &pieces)?);
        let before = re.add(NodeKind::Map(ScalarOp::Mul), &[number, size])?;
        let left = re.add(NodeKind::Map(ScalarOp::Sub), &[length, before])?;
        let count = re.add(NodeKind::Map(ScalarOp::Min), &[left, size])?;
        let count = re.add(NodeKind::Convert(dtype), &[count])?;
        re.add(NodeKind::View(View::Expand(each.clone())), &[count])
    }

    /// What is in pieces, with such elements in place of those that are none of the row's.
    fn or_zero(&self, re: &mut Rebuilder<'_>, x: NodeId, fill: Scalar) -> Result<NodeId, GraphError> {
        if self.is_whole() {
            return Ok(x);
        }
        let all = re.graph.ty(x).shape.clone();
        let padded: Shape = smallvec![IndexExpr::Const(self.count * self.size)];
        let ty = tlc_ir::TensorType::new(DType::I32, padded.iter().cloned());
        let number = re.add(NodeKind::Iota { ty, axis: 0 }, &[])?;
        let length = re.splat(Scalar::from_i64(DType::I32, self.length), &padded)?;
        let inside = re.add(NodeKind::Map(ScalarOp::Lt), &[number, length])?;
        let inside = re.reshape(inside, &Self::shape(&[], &[self.count, self.size]))?;
        let inside = re.add(NodeKind::View(View::Expand(all.clone())), &[inside])?;
        let fill = re.splat(fill, &all)?;
        re.add(NodeKind::Map(ScalarOp::Select), &[inside, x, fill])
    }
}

/// What changes nothing of what a monoid combines.
fn identity(monoid: Monoid, dtype: DType) -> Scalar {
    match monoid {
        Monoid::Max => Scalar::from_f64(dtype, f64::NEG_INFINITY),
        _ => dtype.zero(),
    }
}

/// Values being cut into pieces along their last axis: what they are computed of is cut, so that a kernel computes a piece of what it loads.
struct Cut<'p> {
    pieces: &'p Pieces,
    known: FxHashMap<NodeId, NodeId>,
    left: usize,
}

impl<'p> Cut<'p> {
    fn new(pieces: &'p Pieces) -> Cut<'p> {
        Cut {
            pieces,
            known: FxHashMap::default(),
            left: CUT,
        }
    }

    /// The pieces of a value, with such elements in place of those that are none of the row's.
    fn filled(&mut self, re: &mut Rebuilder<'_>, node: NodeId, fill: Scalar) -> Result<NodeId, GraphError> {
        let x = self.of(re, node)?;
        self.pieces.or_zero(re, x, fill)
    }

    fn of(&mut self, re: &mut Rebuilder<'_>, node: NodeId) -> Result<NodeId, GraphError> {
        if let Some(&known) = self.known.get(&node) {
            return Ok(known);
        }
        let made = self.made(re, node)?;
        self.known.insert(node, made);
        Ok(made)
    }

    fn made(&mut self, re: &mut Rebuilder<'_>, node: NodeId) -> Result<NodeId, GraphError> {
        let n = re.graph.node(node).clone();
        let kept = &n.ty.shape[..n.ty.rank() - 1];
        let behind = [self.pieces.count, self.pieces.size];
        if let Some(left) = self.left.checked_sub(1) {
            self.left = left;
            match &n.kind {
                NodeKind::Map(_) | NodeKind::Convert(_) => {
                    let operands: Result<Vec<NodeId>, GraphError> =
                        n.operands.iter().map(|&o| self.of(re, o)).collect();
                    return re.add(n.kind.clone(), &operands?);
                }
                NodeKind::View(View::Expand(_)) => {
                    let (from, to) = (n.operands[0], Pieces::shape(kept, &behind));
                    let shape = re.graph.ty(from).shape.clone();
                    let from = match shape.split_last() {
                        None => from,
                        Some((last, before)) if last.is(1) => re.reshape(from, &Pieces::shape(before, &[1, 1]))?,
                        Some(_) => self.of(re, from)?,
                    };
                    return re.add(NodeKind::View(View::Expand(to)), &[from]);
                }
                _ => {}
            }
        }
        let mut x = node;
        if !self.pieces.is_whole() {
            let none: Shape = n.ty.shape.iter().map(|_| IndexExpr::ZERO).collect();
            let mut more = none.clone();
            more[kept.len()] = IndexExpr::Const(self.pieces.count * self.pieces.size - self.pieces.length);
            x = re.padded(node, none, more, n.ty.dtype.zero())?;
        }
        re.reshape(x, &Pieces::shape(kept, &behind))
    }
}
