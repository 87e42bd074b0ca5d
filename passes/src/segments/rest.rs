//! Loops whose iterations are no whole number of segments: those behind the last whole one become loops of their own.
//!
//! A forward loop and the one that goes back through it become two of each: the forward iterations that whole segments hold, those that are
//! left, these backwards, and the others backwards. What the iterations that are left began with is kept, each of it: they are fewer than a
//! segment has, and gone when the segments behind them run again. An iteration is given what it was given before, its number too.

use rustc_hash::{FxHashMap, FxHashSet};
use tlc_ir::graph::{Along, GraphError, Loop, Shape, View};
use tlc_ir::{DType, Graph, IndexExpr, NodeId, NodeKind, Scalar, ScalarOp};

use super::{Pair, Part};
use crate::rewrite::{Rebuilder, rebuild};

/// What a loop became: the iterations of whole segments, and those that are left.
#[derive(Clone, Copy)]
struct Halves {
    whole: NodeId,
    rest: NodeId,
}

/// The graph with those iterations of the pairs apart, and the new forward loops that are not to be cut.
pub(super) fn apart(graph: &Graph, pairs: &[Pair]) -> Result<(Graph, FxHashSet<NodeId>), GraphError> {
    let by_loop: FxHashMap<NodeId, &Pair> = pairs.iter().flat_map(|p| [(p.forward, p), (p.backward, p)]).collect();
    let mut made: FxHashMap<NodeId, Halves> = FxHashMap::default();
    let mut rests = FxHashSet::default();
    let new = rebuild(graph, &mut |re, id, node, operands| {
        match &node.kind {
            NodeKind::Loop(l) => {
                if let Some(pair) = by_loop.get(&id) {
                    let halves = match pair.forward == id {
                        true => pair.forwards_apart(re, l, operands)?,
                        false => {
                            pair.backwards_apart(re, l, (&node.operands[..], operands), (graph, made[&pair.forward]))?
                        }
                    };
                    if pair.forward == id {
                        rests.insert(halves.rest);
                    }
                    made.insert(id, halves);
                    return Ok(halves.whole);
                }
            }
            NodeKind::Project(result) => {
                let of = node.operands[0];
                if let (Some(pair), NodeKind::Loop(l)) = (by_loop.get(&of), &graph.node(of).kind) {
                    return pair.result_of(re, (of, l), made[&of], *result);
                }
            }
            _ => {}
        }
        re.keep(node, operands)
    })?;
    Ok((new, rests))
}

impl Pair {
    /// The iterations of whole segments.
    fn whole(&self) -> i64 {
        self.segments() * self.every
    }

    fn left(&self) -> i64 {
        self.iterations - self.whole()
    }

    fn forwards_apart(&self, re: &mut Rebuilder<'_>, l: &Loop, operands: &[NodeId]) -> Result<Halves, GraphError> {
        let (whole, left) = (self.whole(), self.left());
        let slices = |re: &mut Rebuilder<'_>, from: i64, count: i64| -> Result<Vec<NodeId>, GraphError> {
            let of_one = |(x, along): (&NodeId, &Along)| self.part(re, *x, *along, from, count);
            operands[l.carried..].iter().zip(&l.slices).map(of_one).collect()
        };
        let captures = &operands[l.carried + l.slices.len()..];
        let mut given = operands[..l.carried].to_vec();
        given.extend(slices(re, 0, whole)?);
        given.extend(captures);
        let first = iterations(re, l, whole, given, None)?;
        let mut given = projected(re, first, l.carried)?;
        given.extend(slices(re, whole, left)?);
        given.extend(captures);
        let rest = iterations(re, l, left, given, Some(whole))?;
        Ok(Halves { whole: first, rest })
    }

    /// `operands` are those of the loop before and now; `with` is the graph, and what became of the forward loop.
    fn backwards_apart(
        &self,
        re: &mut Rebuilder<'_>,
        l: &Loop,
        (old, operands): (&[NodeId], &[NodeId]),
        (graph, forward): (&Graph, Halves),
    ) -> Result<Halves, GraphError> {
        let (whole, left) = (self.whole(), self.left());
        let slices = |re: &mut Rebuilder<'_>, of: NodeId, from: i64, count: i64| -> Result<Vec<NodeId>, GraphError> {
            let mut all = Vec::new();
            for (k, along) in l.slices.iter().enumerate() {
                let before = graph.node(old[l.carried + k]);
                all.push(match before.kind {
                    // What iterations began with is that of either half.
                    NodeKind::Project(stack) if before.operands[0] == self.forward && self.is_begun(graph, stack) => {
                        re.add(NodeKind::Project(stack), &[of])?
                    }
                    _ => self.part(re, operands[l.carried + k], *along, from, count)?,
                });
            }
            Ok(all)
        };
        let captures = &operands[l.carried + l.slices.len()..];
        let mut given = operands[..l.carried].to_vec();
        given.extend(slices(re, forward.rest, 0, left)?);
        given.extend(captures);
        let rest = iterations(re, l, left, given, None)?;
        let mut given = projected(re, rest, l.carried)?;
        given.extend(slices(re, forward.whole, left, whole)?);
        given.extend(captures);
        let last = iterations(re, l, whole, given, Some(left))?;
        Ok(Halves { whole: last, rest })
    }

    fn is_begun(&self, graph: &Graph, result: u32) -> bool {
        let NodeKind::Loop(l) = &graph.node(self.forward).kind else {
            return false;
        };
        let stack = (result as usize).checked_sub(l.carried);
        stack.is_some_and(|s| self.begun.contains_key(&s))
    }

    /// What so many iterations from that one on read of a tensor.
    fn part(
        &self,
        re: &mut Rebuilder<'_>,
        x: NodeId,
        along: Along,
        from: i64,
        count: i64,
    ) -> Result<NodeId, GraphError> {
        let mut size = re.graph.ty(x).shape.clone();
        let mut start: Box<[IndexExpr]> = size.iter().map(|_| IndexExpr::ZERO).collect();
        let axis = along.axis as usize;
        start[axis] = match along.reverse {
            true => self.iterations - from - count,
            false => from,
        }
        .into();
        size[axis] = count.into();
        let step = size.iter().map(|_| 1).collect();
        let size = size.into_iter().collect();
        re.add(NodeKind::View(View::Slice { start, step, size }), &[x])
    }

    /// A result of a loop, from what the loop became.
    fn result_of(
        &self,
        re: &mut Rebuilder<'_>,
        (of, l): (NodeId, &Loop),
        halves: Halves,
        result: u32,
    ) -> Result<NodeId, GraphError> {
        let is_forward = of == self.forward;
        // The half that runs first, and the other one.
        let (first, last) = match is_forward {
            true => (halves.whole, halves.rest),
            false => (halves.rest, halves.whole),
        };
        let Some(stack) = (result as usize).checked_sub(l.carried) else {
            return re.add(NodeKind::Project(result), &[last]);
        };
        let first = re.add(NodeKind::Project(result), &[first])?;
        if is_forward && self.begun.contains_key(&stack) {
            // The backward loops have asked for it.
            return Ok(first);
        }
        let last = re.add(NodeKind::Project(result), &[last])?;
        let along = l.stacks[stack];
        match along.reverse {
            true => joined(re, last, first, along.axis as usize),
            false => joined(re, first, last, along.axis as usize),
        }
    }
}

/// What goes around at the end of a loop.
fn projected(re: &mut Rebuilder<'_>, of: NodeId, carried: usize) -> Result<Vec<NodeId>, GraphError> {
    let project = |k| re.add(NodeKind::Project(k as u32), &[of]);
    (0..carried).map(project).collect()
}

/// So many iterations of a loop, the first of which has that number.
fn iterations(
    re: &mut Rebuilder<'_>,
    l: &Loop,
    count: i64,
    mut operands: Vec<NodeId>,
    first: Option<i64>,
) -> Result<NodeId, GraphError> {
    let mut again = Loop {
        trip: Some(count.into()),
        ..l.clone()
    };
    if let Some(first) = first {
        let outputs: Vec<NodeId> = l.body.0.outputs().iter().map(|o| o.node).collect();
        let part = Part {
            l,
            outputs: &outputs,
            stacks: l.stacks.clone(),
        };
        again.body = part.renumbered()?;
        operands.push(re.add(NodeKind::Const(Scalar::from_i64(DType::I64, first)), &[])?);
    }
    re.add(NodeKind::Loop(again.into()), &operands)
}

/// One tensor behind the other, as `concat` records it.
fn joined(re: &mut Rebuilder<'_>, a: NodeId, b: NodeId, axis: usize) -> Result<NodeId, GraphError> {
    let (mut shape, dtype) = (re.graph.ty(a).shape.clone(), re.graph.ty(a).dtype);
    let (before, behind) = (shape[axis].clone(), re.graph.ty(b).shape[axis].clone());
    let none = || shape.iter().map(|_| IndexExpr::ZERO).collect::<Shape>();
    let (mut lo, mut hi) = (none(), none());
    lo[axis] = before.clone();
    hi[axis] = behind.clone();
    let left = re.padded(a, none(), hi.clone(), dtype.zero())?;
    let right = re.padded(b, lo, none(), dtype.zero())?;
    let mut column: Shape = shape.iter().map(|_| IndexExpr::ONE).collect();
    column[axis] = before.clone();
    let truth = re.splat(Scalar::from_bool(true), &column)?;
    let in_left = re.padded(truth, none(), hi, Scalar::from_bool(false))?;
    shape[axis] = before + behind;
    let in_left = re.add(NodeKind::View(View::Expand(shape)), &[in_left])?;
    re.add(NodeKind::Map(ScalarOp::Select), &[in_left, left, right])
}
