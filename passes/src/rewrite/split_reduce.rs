//! Splits long reductions into two stages, so that they can run on several threads and read memory in order.
//!
//! A reduction to few results over many elements becomes a reduction of fixed-size pieces and a reduction of the pieces.
//! The pieces depend on extents alone, never on the number of threads, so results do not either.
//!
//! - Trailing axes: pieces of [`PIECE`] elements, if there are few results.
//! - Leading axes: pieces of rows. Columns walked through all of a tall matrix touch a new page with every row, again for
//!   each tile of columns; a piece stays within what the address caches hold. Not where the result is spread over the same
//!   columns again, as in a softmax over the rows: there one kernel keeps a tile of columns. Where many pieces are left for a device of many
//!   threads, which has one for each column, these are reduced in pieces too.
//! - Axes before and behind those that are kept, as of the statistics of a batch's channels: first what lies together, then across it. One
//!   result after the other would walk through all of memory in short steps: on a Zen 4, two tensors of 32 by 16 by 1,024 elements are
//!   read at 23 GB/s so, and at 56 in order.
//! - The position of an extremum among all elements: the position in each piece, then the piece whose element is best.

use smallvec::smallvec;
use tlc_ir::graph::{Axes, GraphError, MAX_RANK, Monoid, Shape, View};
use tlc_ir::index::IndexExpr;
use tlc_ir::{DType, Graph, NodeId, NodeKind, Scalar, ScalarOp};

use super::{Context, Failure, Pass, Rebuilder};
use crate::tile::tallest_column;

/// Elements of one piece.
pub const PIECE: i64 = 16 * 1024;
/// With this many results or more there is enough to do in parallel already.
const ENOUGH_RESULTS: i64 = 16;
/// The fewest rows of a piece of leading axes.
const PIECE_ROWS: i64 = 128;
/// Partial results of columns that one of many threads adds up one after the other: as many as it asks for before it waits.
const SECOND_ROWS: i64 = 32;
/// From so many on another launch costs less.
const MANY_PIECES: i64 = 256;
/// Fewer elements than this stay close enough to the core that one pass over tall columns costs nothing more, and a second
/// launch would.
const TALL: i64 = 1 << 20;
/// Leading axes are split where a row is at most so many elements: beyond, a row is work enough for several threads, and
/// the partial results would not stay in cache.
const MOST_COLUMNS: i64 = 4096;
/// Elements that lie together and go to one result: with as many, each result reads memory in order.
const MOST_TOGETHER: i64 = 8 * 1024;
/// With fewer, what is left of a vector when it is reduced costs more than the way through memory.
const LEAST_TOGETHER: i64 = 16;
/// Fewer elements than this are in the second cache, whose lines come in any order.
const APART: i64 = 128 * 1024;
/// Users that are looked at for one that spreads a result over what was reduced.
const SEARCHED: usize = 32;

/// Long reductions in two stages.
pub struct SplitReduce;

impl Pass for SplitReduce {
    fn name(&self) -> &'static str {
        "split-reduce"
    }

    fn run(&self, graph: &Graph, context: &mut Context<'_>) -> Result<Graph, Failure> {
        Ok(run(graph, context.resident_bytes, context.many_threads)?)
    }
}

/// Splits reductions over constant trailing or leading axes.
///
/// # Errors
/// Never for a verified graph.
pub fn run(graph: &Graph, resident_bytes: i64, many_threads: bool) -> Result<Graph, GraphError> {
    let tallest = tallest_column(resident_bytes);
    let mut users: Option<Vec<Vec<NodeId>>> = None;
    super::rebuild(graph, &mut |re, id, node, operands| {
        let mut returns = || {
            let users = users.get_or_insert_with(|| {
                let mut of: Vec<Vec<NodeId>> = vec![Vec::new(); graph.len()];
                for (user, n) in graph.nodes() {
                    n.operands.iter().for_each(|o| of[o.index()].push(user));
                }
                of
            });
            returns(graph, users, id)
        };
        if let NodeKind::Reduce { monoid, axes } = &node.kind
            && let Some(new) = split(re, *monoid, axes, operands[0], (tallest, many_threads), &mut returns)?
        {
            return Ok(new);
        }
        re.keep(node, operands)
    })
}

/// Whether a reduction's result, perhaps after more arithmetic, is spread over what was reduced.
fn returns(graph: &Graph, users: &[Vec<NodeId>], id: NodeId) -> bool {
    let elements = |n: NodeId| IndexExpr::product(&graph.ty(n).shape);
    let all = elements(graph.node(id).operands[0]);
    let mut work = vec![id];
    let mut seen = Vec::new();
    while let Some(n) = work.pop() {
        if seen.len() == SEARCHED || seen.contains(&n) {
            continue;
        }
        seen.push(n);
        for &user in &users[n.index()] {
            match &graph.node(user).kind {
                NodeKind::View(View::Expand(_)) if elements(user) == all => return true,
                NodeKind::View(View::Reshape(_) | View::Expand(_))
                | NodeKind::Map(_)
                | NodeKind::Convert(_)
                | NodeKind::Bitcast(_) => {
                    work.push(user);
                }
                _ => {}
            }
        }
    }
    false
}

/// Whether a value is stored already, if in another shape.
fn in_memory(re: &Rebuilder, mut x: NodeId) -> bool {
    loop {
        let n = re.graph.node(x);
        match n.kind {
            NodeKind::View(View::Reshape(_)) => x = n.operands[0],
            _ => return crate::access::is_source(&n.kind),
        }
    }
}

fn constants(extents: &[i64]) -> Shape {
    extents.iter().map(|&d| IndexExpr::Const(d)).collect()
}

/// `size` elements from `start` on, along an axis.
fn part(re: &mut Rebuilder, x: NodeId, axis: usize, start: i64, size: i64) -> Result<NodeId, GraphError> {
    let mut shape = re.graph.ty(x).shape.clone();
    let mut starts: Shape = shape.iter().map(|_| IndexExpr::ZERO).collect();
    starts[axis] = IndexExpr::Const(start);
    shape[axis] = IndexExpr::Const(size);
    let view = View::Slice {
        start: starts.into_boxed_slice(),
        step: vec![1; shape.len()].into(),
        size: shape.into_boxed_slice(),
    };
    re.add(NodeKind::View(view), &[x])
}

fn reduce(re: &mut Rebuilder, monoid: Monoid, axis: usize, x: NodeId) -> Result<NodeId, GraphError> {
    re.add(
        NodeKind::Reduce {
            monoid,
            axes: smallvec![axis as u8],
        },
        &[x],
    )
}

fn split(
    re: &mut Rebuilder,
    monoid: Monoid,
    axes: &Axes,
    x: NodeId,
    (tallest, many_threads): (i64, bool),
    returns: &mut dyn FnMut() -> bool,
) -> Result<Option<NodeId>, GraphError> {
    let ty = re.graph.ty(x).clone();
    let kept = ty.rank() - axes.len();
    // Of the axes that are reduced pieces make two.
    if kept + 2 > MAX_RANK {
        return Ok(None);
    }
    let product = |shape: &[IndexExpr]| IndexExpr::product(shape).as_const();
    let trailing = axes.iter().enumerate().all(|(i, &a)| a as usize == kept + i);
    if trailing {
        let (Some(results), Some(n)) = (product(&ty.shape[..kept]), product(&ty.shape[kept..])) else {
            return Ok(None);
        };
        if results == 0 || results >= ENOUGH_RESULTS || n < 4 * PIECE {
            return Ok(None);
        }
        let shape: Shape = ty.shape[..kept].iter().cloned().chain([IndexExpr::Const(n)]).collect();
        if monoid.is_arg() {
            // The elements found are read once more, which is cheap only where they lie in memory.
            if kept > 0 || !in_memory(re, x) {
                return Ok(None);
            }
            let flat = re.reshape(x, &shape)?;
            return position(re, monoid, flat, n).map(Some);
        }
        if ty.dtype.accumulator() != ty.dtype {
            return Ok(None);
        }
        let flat = re.reshape(x, &shape)?;
        return pieces(re, monoid, flat, kept, n, PIECE, None).map(Some);
    }
    if let Some(new) = around(re, monoid, axes, x)? {
        return Ok(Some(new));
    }
    let leading = axes.iter().enumerate().all(|(i, &a)| a as usize == i);
    let (Some(n), Some(columns)) = (product(&ty.shape[..axes.len()]), product(&ty.shape[axes.len()..])) else {
        return Ok(None);
    };
    let supported = !monoid.is_arg() && ty.dtype.accumulator() == ty.dtype;
    if !leading || !supported || columns == 0 || columns > MOST_COLUMNS {
        return Ok(None);
    }
    let rows = PIECE_ROWS.max(PIECE / columns);
    if n < 4 * rows || n * columns < TALL || (n <= tallest && returns()) {
        return Ok(None);
    }
    let kept = &ty.shape[axes.len()..];
    let shape: Shape = [IndexExpr::Const(n)].into_iter().chain(kept.iter().cloned()).collect();
    let flat = re.reshape(x, &shape)?;
    pieces(re, monoid, flat, 0, n, rows, many_threads.then_some(SECOND_ROWS)).map(Some)
}

/// Reduces axes before and behind those that are kept: those behind first.
fn around(re: &mut Rebuilder, monoid: Monoid, axes: &Axes, x: NodeId) -> Result<Option<NodeId>, GraphError> {
    let ty = re.graph.ty(x);
    let kept = ty.rank() - axes.len();
    let before = (0..).zip(axes).take_while(|(at, a)| *at == **a).count();
    let behind = &axes[before..];
    let last = behind.iter().enumerate().all(|(i, &a)| a as usize == before + kept + i);
    let supported = !monoid.is_arg() && ty.dtype.accumulator() == ty.dtype;
    if before == 0 || behind.is_empty() || !last || !supported {
        return Ok(None);
    }
    let together = IndexExpr::product(&ty.shape[before + kept..]).as_const();
    let few = IndexExpr::product(&ty.shape).as_const().is_some_and(|n| n < APART);
    if few || together.is_none_or(|n| !(LEAST_TOGETHER..=MOST_TOGETHER).contains(&n)) {
        return Ok(None);
    }
    let axes = [axes[..before].into(), behind.into()];
    let [across, behind] = axes.map(|axes| NodeKind::Reduce { monoid, axes });
    let parts = re.add(behind, &[x])?;
    re.add(across, &[parts]).map(Some)
}

/// Reduces axis `axis` of `n` elements in pieces of `size`; what is left over is combined last. Of many pieces, pieces of `second` are reduced first, if
/// that is something.
fn pieces(
    re: &mut Rebuilder,
    monoid: Monoid,
    x: NodeId,
    axis: usize,
    n: i64,
    size: i64,
    second: Option<i64>,
) -> Result<NodeId, GraphError> {
    let (count, rest) = (n / size, n % size);
    let whole = if rest == 0 {
        x
    } else {
        part(re, x, axis, 0, count * size)?
    };
    let mut shape = re.graph.ty(x).shape.clone();
    shape[axis] = IndexExpr::Const(count);
    shape.insert(axis + 1, IndexExpr::Const(size));
    let blocks = re.reshape(whole, &shape)?;
    let first = reduce(re, monoid, axis + 1, blocks)?;
    let second = match second {
        Some(size) if count >= MANY_PIECES => pieces(re, monoid, first, axis, count, size, second)?,
        _ => reduce(re, monoid, axis, first)?,
    };
    if rest == 0 {
        return Ok(second);
    }
    let left = part(re, x, axis, count * size, rest)?;
    let left = reduce(re, monoid, axis, left)?;
    re.add(NodeKind::Map(monoid.combine()), &[second, left])
}

/// The position of the extremum of a flat tensor of `n` elements.
fn position(re: &mut Rebuilder, monoid: Monoid, x: NodeId, n: i64) -> Result<NodeId, GraphError> {
    let (count, rest) = (n / PIECE, n % PIECE);
    let element = |re: &mut Rebuilder, x: NodeId, at: NodeId| re.add(NodeKind::Gather { axes: smallvec![0] }, &[x, at]);
    let whole = if rest == 0 {
        x
    } else {
        part(re, x, 0, 0, count * PIECE)?
    };
    let blocks = re.reshape(whole, &constants(&[count, PIECE]))?;
    // Where the extremum of each piece is, counted from the beginning, and what it is.
    let inside = reduce(re, monoid, 1, blocks)?;
    let ty = tlc_ir::graph::TensorType {
        dtype: DType::I64,
        shape: constants(&[count]),
    };
    let number = re.add(NodeKind::Iota { ty, axis: 0 }, &[])?;
    let size = re.splat(Scalar::from_i64(DType::I64, PIECE), &constants(&[count]))?;
    let start = re.add(NodeKind::Map(ScalarOp::Mul), &[number, size])?;
    let at = re.add(NodeKind::Map(ScalarOp::Add), &[start, inside])?;
    let best = element(re, x, at)?;
    // The first piece whose extremum is best.
    let winner = reduce(re, monoid, 0, best)?;
    let found = element(re, at, winner)?;
    if rest == 0 {
        return Ok(found);
    }
    let left = part(re, x, 0, count * PIECE, rest)?;
    let behind = reduce(re, monoid, 0, left)?;
    let skipped = re.add(NodeKind::Const(Scalar::from_i64(DType::I64, count * PIECE)), &[])?;
    let behind = re.add(NodeKind::Map(ScalarOp::Add), &[skipped, behind])?;
    let (a, b) = (element(re, x, found)?, element(re, x, behind)?);
    // The rest wins if it is better, or NaN where the pieces have none.
    let (low, high) = if monoid == Monoid::ArgMax { (b, a) } else { (a, b) };
    let at_most = re.add(NodeKind::Map(ScalarOp::Le), &[low, high])?;
    let better = re.add(NodeKind::Map(ScalarOp::Not), &[at_most])?;
    let number = re.add(NodeKind::Map(ScalarOp::Eq), &[a, a])?;
    let wins = re.add(NodeKind::Map(ScalarOp::And), &[better, number])?;
    re.add(NodeKind::Map(ScalarOp::Select), &[wins, behind, found])
}
