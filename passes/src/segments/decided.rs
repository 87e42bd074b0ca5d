//! Loops that a count or a condition ends, in segments.
//!
//! How many iterations such a loop runs is known when it has run: the derivative counts them, goes back through as many, and reads what the
//! first of its iterations is given at the count less one. Cut, the forward loop is one over segments until the count is reached or the
//! condition fails, with what each segment began with kept; and the backward loop one over all segments that there can be, from the last
//! to the first, of which each runs again what of its iterations the forward loop ran, and goes back through those. A segment
//! in which none ran does nothing. What the backward loop stacks is put where the plain one has it.
//!
//! Invariants:
//! - The last segment may be shorter than the others, by the count, the condition or the trip count: no iteration runs that did not.
//! - On the way back no condition is asked again: the number of iterations says what it said.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use tlc_ir::graph::{Along, Body, GraphError, Loop, Monoid, Shape, View};
use tlc_ir::{DType, Graph, IndexExpr, NodeId, NodeKind, Scalar, ScalarOp, TensorType};

use super::{FROM_END, FROM_START, Outer, Segmented, Users, begun_stacks, fits, length, renumbered, users};
use crate::rewrite::{Rebuilder, rebuild};

/// A loop that data ends, the one that goes back through it, and how they are cut.
struct Pair {
    forward: NodeId,
    backward: NodeId,
    /// The stacks of the forward loop that the backward one alone reads, by their number: which carried value each iteration began with.
    begun: FxHashMap<usize, usize>,
    /// Which iteration of the forward loop the backward one goes back through, by the number of its own: the count less one and that.
    number: NodeId,
    iterations: i64,
    every: i64,
}

/// What forward loops became.
struct Made {
    new: NodeId,
    operands: Vec<NodeId>,
}

/// Cuts the loops of a graph that data ends; says which.
///
/// # Errors
/// Never for a verified graph.
pub(super) fn run(graph: &Graph) -> Result<(Graph, Vec<Segmented>), GraphError> {
    let pairs = pairs(graph);
    let reports = pairs.iter().map(|p| p.report(graph)).collect();
    let by_loop: FxHashMap<NodeId, &Pair> = pairs.iter().flat_map(|p| [(p.forward, p), (p.backward, p)]).collect();
    let mut made: FxHashMap<NodeId, Made> = FxHashMap::default();
    // What the numbers of forward iterations became.
    let mut numbers: FxHashMap<NodeId, NodeId> = pairs.iter().map(|p| (p.number, p.number)).collect();
    let new = rebuild(graph, &mut |re, id, node, operands| {
        match &node.kind {
            NodeKind::Loop(l) => {
                if let Some(pair) = by_loop.get(&id) {
                    if pair.forward == id {
                        let new = pair.forwards(re, l, operands)?;
                        let operands = operands.to_vec();
                        made.insert(id, Made { new, operands });
                        return Ok(new);
                    }
                    let NodeKind::Loop(forward) = &graph.node(pair.forward).kind else {
                        unreachable!("a pair is of loops");
                    };
                    let old = &graph.node(id).operands;
                    return pair.backwards(re, graph, (forward, &made[&pair.forward]), (l, old, operands));
                }
            }
            NodeKind::Project(result) => {
                let of = node.operands[0];
                if let (Some(pair), NodeKind::Loop(l)) = (by_loop.get(&of), &graph.node(of).kind) {
                    let number = numbers[&pair.number];
                    return pair.result(re, (of, l), (operands[0], number), *result as usize);
                }
            }
            // The backward loop does not ask for it.
            NodeKind::Gather { .. } if pairs.iter().any(|p| p.begun_by(graph, node.operands[0]).is_some()) => {
                return Ok(operands[0]);
            }
            _ => {}
        }
        let new = re.keep(node, operands)?;
        if let Some(number) = numbers.get_mut(&id) {
            *number = new;
        }
        Ok(new)
    })?;
    Ok((new, reports))
}

/// The most iterations of a loop that data ends and whose segments can be loops.
fn ended_by_data(graph: &Graph, l: &Loop, operands: &[NodeId]) -> Option<i64> {
    let iterations = l.trip.as_ref()?.as_const()?;
    let fixed = l.symbols.is_empty() && l.body.0.symbols().is_empty();
    ((l.counted || l.conditional) && fixed && fits(graph, l, operands, iterations)).then_some(iterations)
}

/// The loops that are cut.
fn pairs(graph: &Graph) -> Vec<Pair> {
    let users = users(graph);
    let mut pairs: Vec<Pair> = Vec::new();
    for (forward, node) in graph.nodes() {
        let NodeKind::Loop(l) = &node.kind else { continue };
        let Some(iterations) = ended_by_data(graph, l, &node.operands) else {
            continue;
        };
        let (Some(every), Some(count)) = (length(iterations), count(graph, &users, forward, l)) else {
            continue;
        };
        if let Some(pair) = pair(graph, &users, (forward, l), count, (iterations, every)) {
            let report = pair.report(graph);
            if report.kept_bytes < report.all_bytes {
                pairs.push(pair);
            }
        }
    }
    pairs
}

/// How many iterations a loop has run: the sum of ones, of which it stacks one in each.
fn count(graph: &Graph, users: &Users, of: NodeId, l: &Loop) -> Option<NodeId> {
    let body = &*l.body.0;
    let one = Scalar::from_i64(DType::I64, 1);
    let sum_of_ones = |project: &NodeId| {
        let NodeKind::Project(result) = graph.node(*project).kind else {
            return None;
        };
        let stack = (result as usize).checked_sub(l.carried)?;
        let element = body.outputs()[l.first_carried_output() + l.carried + stack].node;
        let is_one = body.ty(element).rank() == 0 && body.splat_value(element) == Some(one);
        let is_sum = |user: &NodeId| {
            let reduce = &graph.node(*user).kind;
            matches!(reduce, NodeKind::Reduce { monoid: Monoid::Add, axes } if axes[..] == [0])
        };
        let sum = users[project.index()].iter().copied().find(is_sum)?;
        is_one.then_some(sum)
    };
    users[of.index()].iter().find_map(sum_of_ones)
}

/// Whether a tensor is the count less one and the number of its element.
fn is_number(graph: &Graph, x: NodeId, count: NodeId, iterations: i64) -> bool {
    let sub = |x: NodeId| match graph.node(x).kind {
        NodeKind::Map(ScalarOp::Sub) => Some((graph.node(x).operands[0], graph.node(x).operands[1])),
        _ => None,
    };
    let Some((last, iota)) = sub(x) else { return false };
    let NodeKind::Iota { ty, axis: 0 } = &graph.node(iota).kind else {
        return false;
    };
    let NodeKind::View(View::Expand(_)) = &graph.node(last).kind else {
        return false;
    };
    let one = Scalar::from_i64(DType::I64, 1);
    let counts = ty.dtype == DType::I64 && ty.shape.len() == 1 && ty.shape[0].is(iterations);
    let last = sub(graph.node(last).operands[0]);
    counts && last.is_some_and(|(of, less)| of == count && graph.splat_value(less) == Some(one))
}

/// The pair of a loop whose derivative goes back through it, if one does.
fn pair(
    graph: &Graph,
    users: &Users,
    (forward, l): (NodeId, &Loop),
    count: NodeId,
    (iterations, every): (i64, i64),
) -> Option<Pair> {
    let mut begun = FxHashMap::default();
    // The backward loop, and the numbers that it reads by.
    let mut found: Option<(NodeId, NodeId)> = None;
    for (project, stack, around) in begun_stacks(graph, users, (forward, l)) {
        let [gather] = users[project.index()][..] else { continue };
        let NodeKind::Gather { axes } = &graph.node(gather).kind else {
            continue;
        };
        let number = graph.node(gather).operands[1];
        if axes[..] != [0] || graph.node(gather).operands[0] != project || !is_number(graph, number, count, iterations)
        {
            continue;
        }
        let Some(&user) = users[gather.index()].first() else {
            continue;
        };
        if goes_back(graph, user, gather, count, iterations)
            && users[gather.index()].iter().all(|u| *u == user)
            && *found.get_or_insert((user, number)) == (user, number)
        {
            begun.insert(stack, around);
        }
    }
    let (backward, number) = found.filter(|_| !begun.is_empty())?;
    Some(Pair {
        forward,
        backward,
        begun,
        number,
        iterations,
        every,
    })
}

/// Whether a node is a loop of as many iterations that walks along a tensor, and has no other use for it.
fn goes_back(graph: &Graph, id: NodeId, x: NodeId, count: NodeId, iterations: i64) -> bool {
    let NodeKind::Loop(r) = &graph.node(id).kind else {
        return false;
    };
    let operands = &graph.node(id).operands;
    if ended_by_data(graph, r, operands) != Some(iterations) || r.conditional || operands[0] != count {
        return false;
    }
    let read = r.slices.iter().zip(&operands[r.leading() + r.carried..]);
    let walks = read.filter(|(along, o)| **o == x && **along == FROM_START).count();
    let times = operands.iter().filter(|o| **o == x).count();
    times == walks && r.stacks.iter().all(|along| *along == FROM_START)
}

impl Pair {
    /// Those that there can be, the last of which may be shorter.
    fn segments(&self) -> i64 {
        (self.iterations + self.every - 1) / self.every
    }

    /// The iterations of so many whole segments.
    fn room(&self) -> i64 {
        self.segments() * self.every
    }

    fn report(&self, graph: &Graph) -> Segmented {
        super::segmented(
            graph,
            self.forward,
            &self.begun,
            (self.iterations, self.segments(), self.every),
        )
    }

    /// The stack of the forward loop that a node of the graph is, if it is what iterations began with.
    fn begun_by(&self, graph: &Graph, x: NodeId) -> Option<usize> {
        let (NodeKind::Project(result), NodeKind::Loop(l)) = (&graph.node(x).kind, &graph.node(self.forward).kind)
        else {
            return None;
        };
        let stack = (*result as usize).checked_sub(l.carried)?;
        let is_begun = graph.node(x).operands[0] == self.forward && self.begun.contains_key(&stack);
        is_begun.then_some(stack)
    }

    /// A tensor that iterations walk along, by segments: zeros are where there is no iteration.
    fn in_blocks(&self, re: &mut Rebuilder<'_>, x: NodeId, along: Along) -> Result<NodeId, GraphError> {
        let (axis, missing) = (along.axis as usize, self.room() - self.iterations);
        let mut x = x;
        if missing > 0 {
            let dtype = re.graph.ty(x).dtype;
            let none: Shape = re.graph.ty(x).shape.iter().map(|_| IndexExpr::ZERO).collect();
            let mut some = none.clone();
            some[axis] = missing.into();
            x = match along.reverse {
                true => re.padded(x, some, none, dtype.zero())?,
                false => re.padded(x, none, some, dtype.zero())?,
            };
        }
        let mut shape = re.graph.ty(x).shape.clone();
        shape[axis] = self.segments().into();
        shape.insert(axis + 1, self.every.into());
        re.reshape(x, &shape)
    }

    /// The type of the part of a segment, of a tensor of which an iteration reads that one.
    fn block(&self, element: &TensorType, along: Along) -> TensorType {
        let mut ty = element.clone();
        ty.shape.insert(along.axis as usize, self.every.into());
        ty
    }

    /// The forward loop, over segments. Its results are the carried values, whether another iteration follows if a condition decides that, what it
    /// stacks for others, and what segments began with.
    fn forwards(&self, re: &mut Rebuilder<'_>, l: &Arc<Loop>, operands: &[NodeId]) -> Result<NodeId, GraphError> {
        let (body, lead) = (&*l.body.0, l.leading());
        let condition = l.condition_operand();
        let mut outer = Outer::new("segment");
        let carried = outer.inputs(body, 1..=l.carried)?;
        let goes_on = match condition {
            Some(_) => Some(outer.input(TensorType::new(DType::Bool, Shape::default()))?),
            None => None,
        };
        let mut inner = carried.clone();
        inner.extend(goes_on);
        for (k, &along) in l.slices.iter().enumerate() {
            let ty = self.block(body.ty(body.inputs()[1 + l.carried + k]), along);
            inner.push(outer.input(ty)?);
        }
        inner.extend(outer.inputs(body, 1 + l.carried + l.slices.len()..=body.inputs().len() - 1)?);
        let count = match l.counted {
            true => Some(outer.input(TensorType::new(DType::I64, Shape::default()))?),
            false => None,
        };

        let number = outer.number;
        let begins = outer.affine(number, self.every, 0)?;
        // How many iterations are left, where that may be less than a segment.
        let mut left = match count {
            Some(count) => Some(outer.map(ScalarOp::Sub, &[count, begins])?),
            None => None,
        };
        if self.room() > self.iterations {
            let of_trip = outer.affine(number, -self.every, self.iterations)?;
            left = Some(match left {
                Some(left) => outer.map(ScalarOp::Min, &[left, of_trip])?,
                None => of_trip,
            });
        }
        inner.push(begins);
        let leading: Vec<NodeId> = left.into_iter().chain(goes_on).collect();
        inner.splice(0..0, leading);

        let kept: Vec<usize> = (0..l.stacks.len()).filter(|s| !self.begun.contains_key(s)).collect();
        let first = l.first_carried_output();
        let output = |k: usize| body.outputs()[k].node;
        // A condition is an output that goes around as well.
        let own = (0..first).chain(first..first + l.carried).chain(0..first);
        let own: Vec<NodeId> = { own.chain(kept.iter().map(|s| first + l.carried + s)) }
            .map(output)
            .collect();
        let stacks: SmallVec<[Along; 2]> = kept.iter().map(|s| l.stacks[*s]).collect();
        let around = l.carried + first;
        let iterations = Loop {
            body: Body(Arc::new(renumbered(body, &own, goes_on.map(|_| l.carried))?)),
            symbols: Vec::new(),
            trip: Some(self.every.into()),
            counted: left.is_some(),
            conditional: l.conditional,
            carried: around,
            slices: l.slices.clone(),
            stacks: stacks.clone(),
        };
        let ran = outer.add(NodeKind::Loop(Arc::new(iterations)), &inner)?;

        let mut follows = match goes_on {
            Some(_) => Some(outer.project(ran, l.carried)?),
            None => None,
        };
        if let Some(count) = count {
            let next = outer.affine(number, self.every, self.every)?;
            let has_more = outer.map(ScalarOp::Lt, &[next, count])?;
            follows = Some(match follows {
                Some(follows) => outer.map(ScalarOp::And, &[follows, has_more])?,
                None => has_more,
            });
        }
        outer.graph.add_output("", follows.expect("data ends the loop"));
        for k in 0..around + kept.len() {
            let result = outer.project(ran, k)?;
            outer.graph.add_output("", result);
        }
        carried.iter().for_each(|c| outer.graph.add_output("", *c));
        let segments = Loop {
            body: Body(Arc::new(outer.graph)),
            symbols: Vec::new(),
            trip: Some(self.segments().into()),
            counted: false,
            conditional: true,
            carried: around,
            slices: l.slices.clone(),
            stacks: stacks.into_iter().chain(vec![FROM_START; l.carried]).collect(),
        };
        let begins_with = match condition {
            Some(k) => operands[k],
            None => re.add(NodeKind::Const(Scalar::from_bool(true)), &[])?,
        };
        let own = &operands[lead..];
        let mut given = vec![begins_with];
        given.extend(&own[..l.carried]);
        given.extend(condition.map(|k| operands[k]));
        for (k, &along) in l.slices.iter().enumerate() {
            given.push(self.in_blocks(re, own[l.carried + k], along)?);
        }
        given.extend(&own[l.carried + l.slices.len()..]);
        given.extend(l.counted.then(|| operands[0]));
        re.add(NodeKind::Loop(Arc::new(segments)), &given)
    }

    /// The backward loop, over the same segments from the last to the first. Of its operands there are those of the graph before and those now.
    fn backwards(
        &self,
        re: &mut Rebuilder<'_>,
        graph: &Graph,
        (f, forward): (&Arc<Loop>, &Made),
        (l, old, operands): (&Arc<Loop>, &[NodeId], &[NodeId]),
    ) -> Result<NodeId, GraphError> {
        let (of, body) = (&*f.body.0, &*l.body.0);
        let with = &forward.operands[f.leading()..];
        // The count is the first operand.
        let (own, old) = (&operands[1..], &old[1..]);
        let before = f.first_carried_output() + f.carried + f.stacks.len() - self.begun.len();
        let mut outer = Outer::new("segment");
        let mut given: Vec<NodeId> = own[..l.carried].to_vec();
        let mut back = outer.inputs(body, 1..=l.carried)?;
        let mut slices: SmallVec<[Along; 2]> = SmallVec::new();
        let mut again = Vec::new();
        for k in 0..f.carried {
            again.push(outer.input(of.ty(of.inputs()[1 + k]).clone())?);
            given.push(re.add(NodeKind::Project((before + k) as u32), &[forward.new])?);
            slices.push(FROM_END);
        }
        for (k, &along) in f.slices.iter().enumerate() {
            let ty = self.block(of.ty(of.inputs()[1 + f.carried + k]), along);
            again.push(outer.input(ty)?);
            given.push(self.in_blocks(re, with[f.carried + k], along)?);
            slices.push(Along {
                reverse: !along.reverse,
                ..along
            });
        }
        again.extend(outer.inputs(of, 1 + f.carried + f.slices.len()..=of.inputs().len() - 1)?);
        given.extend(&with[f.carried + f.slices.len()..]);
        let count = outer.input(TensorType::new(DType::I64, Shape::default()))?;
        given.push(operands[0]);

        // The first iteration of the segment, how many of it ran, and the first backward iteration that goes through it.
        let number = outer.number;
        let begins = outer.affine(number, -self.every, self.room() - self.every)?;
        let left = outer.map(ScalarOp::Sub, &[count, begins])?;
        let (every, none) = (outer.constant(self.every)?, outer.constant(0)?);
        let ran = outer.map(ScalarOp::Min, &[left, every])?;
        let ran = outer.map(ScalarOp::Max, &[ran, none])?;
        let first = outer.map(ScalarOp::Sub, &[left, ran])?;
        // In the segment, which iteration a backward one goes through: those that did not run have negative numbers.
        let last = outer.affine(ran, 1, -1)?;
        let last = outer.spread(last, self.every)?;
        let ty = TensorType::new(DType::I64, [IndexExpr::Const(self.every)]);
        let counted = outer.add(NodeKind::Iota { ty, axis: 0 }, &[])?;
        let mirrored = outer.map(ScalarOp::Sub, &[last, counted])?;

        let begun: Vec<usize> = {
            let mut all: Vec<usize> = self.begun.values().copied().collect();
            all.sort_unstable();
            all.dedup();
            all
        };
        let carried = f.first_carried_output();
        let mut outputs: Vec<NodeId> = (0..f.carried).map(|k| of.outputs()[carried + k].node).collect();
        outputs.extend(begun.iter().map(|b| of.inputs()[1 + b]));
        let iterations = Loop {
            body: Body(Arc::new(renumbered(of, &outputs, None)?)),
            symbols: Vec::new(),
            trip: Some(self.every.into()),
            counted: true,
            conditional: false,
            carried: f.carried,
            slices: f.slices.clone(),
            stacks: begun.iter().map(|_| FROM_START).collect(),
        };
        again.insert(0, ran);
        again.push(begins);
        let again = outer.add(NodeKind::Loop(Arc::new(iterations)), &again)?;

        for (k, &along) in l.slices.iter().enumerate() {
            let x = old[l.carried + k];
            let gathered = match &graph.node(x).kind {
                NodeKind::Gather { axes } if axes.len() == 1 && graph.node(x).operands[1] == self.number => {
                    Some(axes[0])
                }
                _ => None,
            };
            let stack = gathered.and_then(|_| self.begun_by(graph, graph.node(x).operands[0]));
            if let Some(stack) = stack {
                let place = begun
                    .iter()
                    .position(|b| *b == self.begun[&stack])
                    .expect("it is one of them");
                let kept = outer.project(again, f.carried + place)?;
                back.push(outer.gather(kept, 0, mirrored)?);
                continue;
            }
            let new = own[l.carried + k];
            let (whole, axis, index) = match gathered {
                // By the numbers of forward iterations.
                Some(axis) => {
                    let begins = outer.spread(begins, self.every)?;
                    let numbers = outer.map(ScalarOp::Add, &[begins, mirrored])?;
                    (re.graph.node(new).operands[0], axis, numbers)
                }
                // By those of backward ones.
                None => {
                    let (from, step) = match along.reverse {
                        true => (outer.affine(first, -1, self.iterations - 1)?, ScalarOp::Sub),
                        false => (first, ScalarOp::Add),
                    };
                    let from = outer.spread(from, self.every)?;
                    (new, along.axis, outer.map(step, &[from, counted])?)
                }
            };
            let captured = outer.input(re.graph.ty(whole).clone())?;
            given.push(whole);
            back.push(outer.gather(captured, axis, index)?);
        }
        back.extend(outer.inputs(body, 1 + l.carried + l.slices.len()..=body.inputs().len() - 1)?);
        given.extend(&own[l.carried + l.slices.len()..]);
        back.insert(0, ran);
        back.push(first);
        let outputs: Vec<NodeId> = body.outputs().iter().map(|o| o.node).collect();
        let iterations = Loop {
            body: Body(Arc::new(renumbered(body, &outputs, None)?)),
            symbols: Vec::new(),
            trip: Some(self.every.into()),
            counted: true,
            conditional: false,
            carried: l.carried,
            slices: l.slices.iter().map(|_| FROM_START).collect(),
            stacks: l.stacks.clone(),
        };
        let back = outer.add(NodeKind::Loop(Arc::new(iterations)), &back)?;
        for k in 0..l.results() {
            let mut result = outer.project(back, k)?;
            if k >= l.carried {
                // In the order of forward iterations, with zeros for those that did not run.
                result = outer.gather(result, 0, mirrored)?;
            }
            outer.graph.add_output("", result);
        }
        let segments = Loop {
            body: Body(Arc::new(outer.graph)),
            symbols: Vec::new(),
            trip: Some(self.segments().into()),
            counted: false,
            conditional: false,
            carried: l.carried,
            slices,
            stacks: l.stacks.iter().map(|_| FROM_END).collect(),
        };
        re.add(NodeKind::Loop(Arc::new(segments)), &given)
    }

    /// A result of one of the loops, from what the loop became, and from the numbers of forward iterations.
    fn result(
        &self,
        re: &mut Rebuilder<'_>,
        (of, l): (NodeId, &Loop),
        (new, number): (NodeId, NodeId),
        result: usize,
    ) -> Result<NodeId, GraphError> {
        let Some(stack) = result.checked_sub(l.carried) else {
            return re.add(NodeKind::Project(result as u32), &[new]);
        };
        let place = match (of == self.forward, self.begun.get(&stack)) {
            (false, _) => result,
            // The backward loop has asked for it.
            (true, Some(around)) => l.first_carried_output() + l.carried + l.stacks.len() - self.begun.len() + around,
            (true, None) => {
                let before = (0..stack).filter(|s| !self.begun.contains_key(s)).count();
                l.first_carried_output() + l.carried + before
            }
        };
        let blocks = re.add(NodeKind::Project(place as u32), &[new])?;
        if of == self.forward && self.begun.contains_key(&stack) {
            return Ok(blocks);
        }
        let along = l.stacks[stack];
        let axis = along.axis as usize;
        let mut shape = re.graph.ty(blocks).shape.clone();
        shape.remove(axis + 1);
        shape[axis] = self.room().into();
        let all = re.reshape(blocks, &shape)?;
        if of != self.forward {
            let axes = [along.axis].into_iter().collect();
            return re.add(NodeKind::Gather { axes }, &[all, number]);
        }
        let missing = self.room() - self.iterations;
        if missing == 0 {
            return Ok(all);
        }
        let mut start: Box<[IndexExpr]> = shape.iter().map(|_| IndexExpr::ZERO).collect();
        if along.reverse {
            start[axis] = missing.into();
        }
        shape[axis] = self.iterations.into();
        let step = shape.iter().map(|_| 1).collect();
        let size = shape.into_iter().collect();
        re.add(NodeKind::View(View::Slice { start, step, size }), &[all])
    }
}
