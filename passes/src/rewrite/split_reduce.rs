//! Splits long reductions into two stages, so that they can run on several threads.
//!
//! A reduction to few results over many elements becomes a reduction of fixed-size pieces and a reduction of the pieces.
//! The pieces depend on extents alone, never on the number of threads, so results do not either.

use smallvec::smallvec;
use tlc_ir::graph::{Axes, GraphError, Monoid, Shape, View};
use tlc_ir::index::IndexExpr;
use tlc_ir::{Graph, NodeId, NodeKind};

use super::Rebuilder;

/// Elements of one piece.
pub const PIECE: i64 = 16 * 1024;
/// With this many results or more there is enough to do in parallel already.
const ENOUGH_RESULTS: i64 = 16;

/// Splits reductions over constant trailing axes.
///
/// # Errors
/// Never for a verified graph.
pub fn run(graph: &Graph) -> Result<Graph, GraphError> {
    super::rebuild(graph, &mut |re, _, node, operands| {
        if let NodeKind::Reduce { monoid, axes } = &node.kind
            && let Some(new) = split(re, *monoid, axes, operands[0])?
        {
            return Ok(new);
        }
        re.add(node.kind.clone(), operands)
    })
}

fn split(re: &mut Rebuilder, monoid: Monoid, axes: &Axes, x: NodeId) -> Result<Option<NodeId>, GraphError> {
    let ty = re.graph.ty(x).clone();
    let kept = ty.rank() - axes.len();
    let trailing = axes.iter().enumerate().all(|(i, &a)| a as usize == kept + i);
    let product = |shape: &[IndexExpr]| IndexExpr::product(shape).as_const();
    let (Some(results), Some(n)) = (product(&ty.shape[..kept]), product(&ty.shape[kept..])) else {
        return Ok(None);
    };
    let supported = !monoid.is_arg() && ty.dtype.accumulator() == ty.dtype;
    if !trailing || !supported || results == 0 || results >= ENOUGH_RESULTS || n < 4 * PIECE {
        return Ok(None);
    }
    let lead: Shape = ty.shape[..kept].into();
    let with = |extra: &[i64]| -> Shape {
        lead.iter()
            .cloned()
            .chain(extra.iter().map(|&d| IndexExpr::Const(d)))
            .collect()
    };
    let axis = kept as u8;
    let flat = re.reshape(x, &with(&[n]))?;
    let (pieces, rest) = (n / PIECE, n % PIECE);
    let part = |re: &mut Rebuilder, start: i64, size: i64| -> Result<NodeId, GraphError> {
        let view = View::Slice {
            start: lead
                .iter()
                .map(|_| IndexExpr::ZERO)
                .chain([IndexExpr::Const(start)])
                .collect(),
            step: smallvec![1; kept + 1],
            size: with(&[size]),
        };
        re.add(NodeKind::View(view), &[flat])
    };
    let whole = if rest == 0 { flat } else { part(re, 0, pieces * PIECE)? };
    let blocks = re.reshape(whole, &with(&[pieces, PIECE]))?;
    let first = re.add(
        NodeKind::Reduce {
            monoid,
            axes: smallvec![axis + 1],
        },
        &[blocks],
    )?;
    let second = re.add(
        NodeKind::Reduce {
            monoid,
            axes: smallvec![axis],
        },
        &[first],
    )?;
    if rest == 0 {
        return Ok(Some(second));
    }
    let left = part(re, pieces * PIECE, rest)?;
    let left = re.add(
        NodeKind::Reduce {
            monoid,
            axes: smallvec![axis],
        },
        &[left],
    )?;
    re.add(NodeKind::Map(monoid.combine()), &[second, left]).map(Some)
}
