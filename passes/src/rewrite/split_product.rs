//! Splits a product of a vector with a matrix whose columns lie together into pieces along the sum.
//!
//! Each piece is a run of whole rows of the matrix, which a thread reads from one end to the other; tiles of columns, one for each thread, would
//! be pieces of every row. The pieces depend on extents alone, never on the number of threads, so results do not either.
//!
//! Not where the last cache cannot hold the matrix: of one that is multiplied again and again it keeps more if tiles of columns go by (46 MB took 1.3
//! times as long in pieces).
//!
//! Measured on Zen 4, f32 from memory: two threads take 0.6 to 0.95 of the time that they take with half of each row, and where one thread reads few rows
//! far apart at once, as the schedule has it then, 0.7 to 0.95 of that for neighbouring rows.

use smallvec::smallvec;
use tlc_ir::graph::{GraphError, Labels, Monoid, Semiring, Shape};
use tlc_ir::index::IndexExpr;
use tlc_ir::{Graph, Node, NodeId, NodeKind};

use super::sink_layout::add_canonical;
use super::split_reduce::in_memory;
use super::{Context, Failure, Pass, Rebuilder};

/// The most pieces.
const MOST_PIECES: i64 = 8;
/// The fewest rows of one, where a sum has as many for two.
const FEWEST_ROWS: i64 = 256;
/// Elements of a matrix below which another launch costs more than is won.
const FEWEST_ELEMENTS: i64 = 1 << 18;
/// Columns below which the partial sums are no work for vectors.
const FEWEST_COLUMNS: i64 = 256;

/// Products of vectors in pieces.
pub struct SplitProduct;

impl Pass for SplitProduct {
    fn name(&self) -> &'static str {
        "split-product"
    }

    fn run(&self, graph: &Graph, context: &mut Context<'_>) -> Result<Graph, Failure> {
        // What a loop multiplies with again and again is in a cache.
        let most = context.pieces_bytes.filter(|_| !context.inside_loop);
        Ok(match most {
            Some(most) => run(graph, most)?,
            None => graph.clone(),
        })
    }
}

/// Splits products of vectors with large matrices, of so many bytes at most.
///
/// # Errors
/// Never for a verified graph.
pub fn run(graph: &Graph, most_bytes: u64) -> Result<Graph, GraphError> {
    super::rebuild(
        graph,
        &mut |re, id, node, operands| match product(graph, id, node, most_bytes) {
            Some(found) => pieces(re, graph, (id, node), operands, &found),
            None => re.keep(node, operands),
        },
    )
}

/// A product of a vector with a matrix, and what becomes of it.
struct Product {
    /// The summed label.
    summed: u16,
    pieces: i64,
    /// Rows of a piece.
    rows: i64,
}

/// The product that a node is, if it is one of a vector with a large matrix whose columns lie together.
fn product(graph: &Graph, id: NodeId, node: &Node, most_bytes: u64) -> Option<Product> {
    let NodeKind::Einsum {
        semiring: Semiring::AddMul,
        inputs,
        output,
        accumulator,
        dtype,
    } = &node.kind
    else {
        return None;
    };
    let [left, right] = node.operands[..] else { return None };
    let plain = graph.ty(id).dtype.is_float() && accumulator == dtype;
    if !plain || [left, right].iter().any(|&o| graph.ty(o).dtype != *dtype) {
        return None;
    }
    // The labels of an operand that are longer than one element.
    let long = |side: usize| -> Option<Vec<(u16, i64)>> {
        let shape = &graph.ty(node.operands[side]).shape;
        let axes = inputs[side].iter().zip(shape).filter(|(_, d)| !d.is(1));
        axes.map(|(&l, d)| Some((l, d.as_const()?))).collect()
    };
    let (left, right) = (long(0)?, long(1)?);
    let (vector, matrix, side) = match left.len() {
        1 => (left, right, 1),
        _ => (right, left, 0),
    };
    if !in_memory(graph, node.operands[side]) {
        return None;
    }
    let ([(k, n)], [(row, rows), (column, columns)]) = (&vector[..], &matrix[..]) else {
        return None;
    };
    let bytes = rows.saturating_mul(*columns).saturating_mul(dtype.bytes() as i64);
    if bytes as u64 > most_bytes {
        return None;
    }
    let sums_rows = k == row && n == rows && !output.contains(row) && output.contains(column) && row != column;
    if !sums_rows || *columns < FEWEST_COLUMNS || rows.saturating_mul(*columns) < FEWEST_ELEMENTS {
        return None;
    }
    let even = |p: &i64, least: i64| rows % p == 0 && rows / p >= least;
    let many = (2..=MOST_PIECES).rev().find(|p| even(p, FEWEST_ROWS));
    let pieces = many.or_else(|| (2..=MOST_PIECES).find(|p| even(p, FEWEST_ROWS / 2)))?;
    Some(Product {
        summed: *row,
        pieces,
        rows: rows / pieces,
    })
}

/// The product as a sum of its pieces.
fn pieces(
    re: &mut Rebuilder,
    graph: &Graph,
    (id, node): (NodeId, &Node),
    operands: &[NodeId],
    found: &Product,
) -> Result<NodeId, GraphError> {
    let NodeKind::Einsum { inputs, output, .. } = &node.kind else {
        return re.keep(node, operands);
    };
    let piece = 1 + inputs.iter().flatten().copied().max().unwrap_or(0);
    let (mut all, mut values): (Vec<Labels>, Vec<NodeId>) = (Vec::new(), Vec::new());
    for (labels, &operand) in inputs.iter().zip(operands) {
        let shape = re.graph.ty(operand).shape.clone();
        let cut = labels.iter().zip(&shape).flat_map(|(&l, d)| match l == found.summed {
            true => vec![
                (piece, IndexExpr::Const(found.pieces)),
                (l, IndexExpr::Const(found.rows)),
            ],
            false => vec![(l, d.clone())],
        });
        let (labels, shape): (Labels, Shape) = cut.unzip();
        all.push(labels);
        values.push(re.reshape(operand, &shape)?);
    }
    let out: Labels = [piece].into_iter().chain(output.iter().copied()).collect();
    let parts = add_canonical(re, &node.kind, all, out, &values)?;
    let sum = NodeKind::Reduce {
        monoid: Monoid::Add,
        axes: smallvec![0],
    };
    let sum = re.add(sum, &[parts])?;
    re.reshape(sum, &graph.ty(id).shape)
}
