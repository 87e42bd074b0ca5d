//! Loops in segments: what the derivative of a loop keeps of each iteration is kept of some, and computed again from there.
//!
//! A forward loop stacks what its iterations began with, and a backward loop reads that from the last to the first. Where no memory is
//! left for all of it, the forward loop becomes one over segments of `k` iterations, which keeps what each segment began with; and the
//! backward loop one over the same segments, each of which runs its `k` forward iterations again, keeping what each began with, and then
//! goes back through them. In place of `n` values of what goes around there are `n / k` and `k` (Chen, Xu, Zhang and Guestrin, "Training
//! deep nets with sublinear memory cost", 2016). `tlc_record::Repeat::checkpoint_every` has the same recorded by hand.
//!
//! Invariants:
//! - An iteration is given what it is given in the plain loop: its number, the values of the iteration before, its own slices. What goes
//!   around backwards goes around through segments, too, so sums are of the same terms in the same order.
//! - The segments are of one length. Iterations behind the last whole one are loops of their own, which keep what each began with (`rest`).
//! - Loops that a condition or a count ends are cut by what they have run (`decided`). Those whose bodies have symbols stay as they are: the pipeline
//!   puts numbers there as far as they are known ([`Graph::with_settled_bodies`]), as in a version for the sizes of a call.

mod decided;
mod rest;

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use tlc_ir::graph::{Along, Body, GraphError, Loop, MAX_RANK, Operands, Origin, Shape, View};
use tlc_ir::{DType, Graph, IndexExpr, NodeId, NodeKind, Scalar, ScalarOp, TensorType};

use crate::rewrite::{Rebuilder, rebuild};

/// A loop that was cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segmented {
    /// The value that it was.
    pub label: String,
    /// Its iterations.
    pub iterations: i64,
    /// Those of a segment.
    pub every: i64,
    /// Bytes that would be kept of all iterations.
    pub all_bytes: i64,
    /// Bytes that are kept of segments, and of the iterations of one.
    pub kept_bytes: i64,
}

/// A loop, the one that goes back through it, and how they are cut.
struct Pair {
    forward: NodeId,
    backward: NodeId,
    /// The stacks of the forward loop that the backward one alone reads, by their number: which carried value each iteration began with.
    begun: FxHashMap<usize, usize>,
    iterations: i64,
    every: i64,
}

impl Pair {
    fn segments(&self) -> i64 {
        self.iterations / self.every
    }
}

const FROM_START: Along = Along {
    axis: 0,
    reverse: false,
};
const FROM_END: Along = Along { axis: 0, reverse: true };

/// Cuts the loops of a graph whose derivatives keep what each iteration began with; says which.
///
/// # Errors
/// Never for a verified graph.
pub fn run(graph: &Graph) -> Result<(Graph, Vec<Segmented>), GraphError> {
    let (decided, mut reports) = decided::run(graph)?;
    let graph = if reports.is_empty() { graph } else { &decided };
    let mut pairs = pairs(graph, &FxHashSet::default());
    reports.extend(pairs.iter().map(|p| p.report(graph)));
    pairs.retain(|p| p.iterations % p.every != 0);
    if pairs.is_empty() {
        return Ok((whole(graph, &FxHashSet::default())?, reports));
    }
    let (apart, rests) = rest::apart(graph, &pairs)?;
    Ok((whole(&apart, &rests)?, reports))
}

/// Cuts loops of whole segments, all but those.
fn whole(graph: &Graph, but: &FxHashSet<NodeId>) -> Result<Graph, GraphError> {
    let mut pairs = pairs(graph, but);
    pairs.retain(|p| p.iterations % p.every == 0);
    let by_loop: FxHashMap<NodeId, &Pair> = pairs.iter().flat_map(|p| [(p.forward, p), (p.backward, p)]).collect();
    // What forward loops became, and their operands.
    let mut made: FxHashMap<NodeId, (NodeId, Vec<NodeId>)> = FxHashMap::default();
    let new = rebuild(graph, &mut |re, id, node, operands| {
        match &node.kind {
            NodeKind::Loop(l) => {
                if let Some(pair) = by_loop.get(&id) {
                    if pair.forward == id {
                        let new = pair.forwards(re, l, operands)?;
                        made.insert(id, (new, operands.to_vec()));
                        return Ok(new);
                    }
                    let NodeKind::Loop(forward) = &graph.node(pair.forward).kind else {
                        unreachable!("a pair is of loops");
                    };
                    let (of, with) = &made[&pair.forward];
                    return pair.backwards(re, (forward, *of, with), (l, operands));
                }
            }
            NodeKind::Project(result) => {
                let of = node.operands[0];
                if let (Some(pair), NodeKind::Loop(l)) = (by_loop.get(&of), &graph.node(of).kind) {
                    return pair.result(re, (of, l), operands[0], *result as usize, &node.ty.shape);
                }
            }
            _ => {}
        }
        re.keep(node, operands)
    })?;
    Ok(new)
}

/// The number of iterations of a loop whose segments can be loops.
fn plain(graph: &Graph, l: &Loop, operands: &[NodeId]) -> Option<i64> {
    let iterations = l.trip.as_ref()?.as_const()?;
    let decided = l.counted || l.conditional || !l.symbols.is_empty() || !l.body.0.symbols().is_empty();
    (!decided && fits(graph, l, operands, iterations)).then_some(iterations)
}

/// Whether what so many iterations walk along may have an axis more, for the segments.
fn fits(graph: &Graph, l: &Loop, operands: &[NodeId], iterations: i64) -> bool {
    let sliced = &operands[l.leading() + l.carried..];
    let mut slices = l.slices.iter().zip(sliced);
    let fits = slices.all(|(along, x)| {
        let ty = graph.ty(*x);
        ty.shape[along.axis as usize].is(iterations) && ty.rank() < MAX_RANK
    });
    let elements = &l.body.0.outputs()[l.first_carried_output() + l.carried..];
    fits && elements.iter().all(|o| l.body.0.ty(o.node).rank() + 1 < MAX_RANK)
}

/// How long segments are of which the fewest values are kept: those that segments begin with, and those of one segment or of what is left behind
/// the last, which is less. Whole segments are simpler: others only if they keep a quarter less. Of equal ones the shortest take the least at once.
fn length(iterations: i64) -> Option<i64> {
    let kept = |k: i64| iterations / k + k;
    let root = iterations.max(0).isqrt();
    let whole = (2..=root).filter(|k| iterations % k == 0).min_by_key(|&k| kept(k));
    // Of any length the sum is least about the root.
    let near = (root / 2).max(2)..=(root + 2).min(iterations / 2);
    let any = near.min_by_key(|&k| (kept(k), iterations % k, k));
    let best = match (whole, any) {
        (Some(whole), Some(any)) if kept(any) * 4 < kept(whole) * 3 => any,
        (Some(whole), _) => whole,
        (None, any) => any?,
    };
    (kept(best) < iterations).then_some(best)
}

/// By node, who reads it: as often as it is an operand, and itself for each output that it is.
type Users = Vec<SmallVec<[NodeId; 2]>>;

fn users(graph: &Graph) -> Users {
    let mut users: Users = vec![SmallVec::new(); graph.len()];
    for (id, node) in graph.nodes() {
        node.operands.iter().for_each(|o| users[o.index()].push(id));
    }
    for o in graph.outputs() {
        // A user that is no loop.
        users[o.node.index()].push(o.node);
    }
    users
}

/// The loops that are cut, none of those in `but`.
fn pairs(graph: &Graph, but: &FxHashSet<NodeId>) -> Vec<Pair> {
    let users = users(graph);
    let mut pairs: Vec<Pair> = Vec::new();
    for (forward, node) in graph.nodes() {
        let NodeKind::Loop(l) = &node.kind else { continue };
        let taken = |id| pairs.iter().any(|p| p.forward == id || p.backward == id);
        let Some(iterations) = plain(graph, l, &node.operands).filter(|_| !taken(forward) && !but.contains(&forward))
        else {
            continue;
        };
        let Some(every) = length(iterations) else { continue };
        let (mut begun, mut backward) = (FxHashMap::default(), None);
        for (project, stack, around) in begun_stacks(graph, &users, (forward, l)) {
            let [user] = users[project.index()][..] else { continue };
            let NodeKind::Loop(r) = &graph.node(user).kind else {
                continue;
            };
            let operands = &graph.node(user).operands;
            let read = r.slices.iter().zip(&operands[r.leading() + r.carried..]);
            let times = operands.iter().filter(|o| **o == project).count();
            let backwards = read.filter(|(along, x)| **x == project && **along == FROM_END).count();
            let fits = times == backwards && plain(graph, r, operands) == Some(iterations) && !taken(user);
            if fits && *backward.get_or_insert(user) == user {
                begun.insert(stack, around);
            }
        }
        if let Some(backward) = backward {
            let pair = Pair {
                forward,
                backward,
                begun,
                iterations,
                every,
            };
            let report = pair.report(graph);
            if report.kept_bytes < report.all_bytes {
                pairs.push(pair);
            }
        }
    }
    pairs
}

/// The stacks of a loop of what each iteration began with: what takes one out of the loop's results, its number, and which carried value it has.
fn begun_stacks(graph: &Graph, users: &Users, (forward, l): (NodeId, &Loop)) -> Vec<(NodeId, usize, usize)> {
    let body = &*l.body.0;
    let stack_of = |&project: &NodeId| {
        let NodeKind::Project(result) = graph.node(project).kind else {
            return None;
        };
        let stack = (result as usize).checked_sub(l.carried)?;
        let output = body.outputs()[l.first_carried_output() + result as usize].node;
        // The body's first input is the iteration's number.
        let around = body.inputs()[1..=l.carried].iter().position(|i| *i == output)?;
        (l.stacks[stack] == FROM_START).then_some((project, stack, around))
    };
    users[forward.index()].iter().filter_map(stack_of).collect()
}

/// What cutting a forward loop comes to, of which those stacks are what iterations began with; by its iterations, its segments and the iterations
/// of one.
fn segmented(
    graph: &Graph,
    forward: NodeId,
    begun: &FxHashMap<usize, usize>,
    (iterations, segments, every): (i64, i64, i64),
) -> Segmented {
    let NodeKind::Loop(l) = &graph.node(forward).kind else {
        unreachable!("a pair is of loops");
    };
    let body = &*l.body.0;
    let bytes = |around: usize| {
        let ty = body.ty(body.inputs()[1 + around]);
        let elements = ty.elements().as_const().unwrap_or(i64::MAX);
        elements.saturating_mul(ty.dtype.bytes() as i64)
    };
    let sum = |all: &mut dyn Iterator<Item = usize>| all.map(bytes).fold(0, i64::saturating_add);
    let (begun, all) = (sum(&mut begun.values().copied()), sum(&mut (0..l.carried)));
    Segmented {
        label: graph.value_name(forward),
        iterations,
        every,
        all_bytes: begun.saturating_mul(iterations),
        kept_bytes: all.saturating_mul(segments).saturating_add(begun.saturating_mul(every)),
    }
}

impl Pair {
    fn report(&self, graph: &Graph) -> Segmented {
        segmented(
            graph,
            self.forward,
            &self.begun,
            (self.iterations, self.segments(), self.every),
        )
    }

    /// A tensor that iterations walk along, by segments.
    fn in_blocks(&self, re: &mut Rebuilder, x: NodeId, along: Along) -> Result<NodeId, GraphError> {
        let mut shape = re.graph.ty(x).shape.clone();
        shape[along.axis as usize] = self.segments().into();
        shape.insert(along.axis as usize + 1, self.every.into());
        re.reshape(x, &shape)
    }

    /// The type of the part of a segment, of a tensor of which an iteration reads that one.
    fn block(&self, element: &TensorType, along: Along) -> TensorType {
        let mut ty = element.clone();
        ty.shape.insert(along.axis as usize, self.every.into());
        ty
    }

    /// The forward loop, over segments: its results are the carried values, what it stacks for others, and what segments began with.
    fn forwards(&self, re: &mut Rebuilder, l: &Arc<Loop>, operands: &[NodeId]) -> Result<NodeId, GraphError> {
        let body = &*l.body.0;
        let mut outer = Outer::new("segment");
        let carried = outer.inputs(body, 1..=l.carried)?;
        let mut inner = carried.clone();
        for (k, &along) in l.slices.iter().enumerate() {
            let ty = self.block(body.ty(body.inputs()[1 + l.carried + k]), along);
            inner.push(outer.input(ty)?);
        }
        inner.extend(outer.inputs(body, 1 + l.carried + l.slices.len()..=body.inputs().len() - 1)?);
        let kept: Vec<usize> = (0..l.stacks.len()).filter(|s| !self.begun.contains_key(s)).collect();
        let outputs = body.outputs();
        let own = (0..l.carried).chain(kept.iter().map(|s| l.carried + s));
        let own: Vec<NodeId> = own.map(|k| outputs[k].node).collect();
        let stacks: SmallVec<[Along; 2]> = kept.iter().map(|s| l.stacks[*s]).collect();
        let number = outer.number;
        let begins = outer.affine(number, self.every, 0)?;
        let again = Part {
            l,
            outputs: &own,
            stacks: stacks.clone(),
        };
        let ran = outer.repeat(&again, self.every, inner, begins)?;
        for k in 0..own.len() {
            let result = outer.project(ran, k)?;
            outer.graph.add_output("", result);
        }
        carried.iter().for_each(|c| outer.graph.add_output("", *c));
        let segments = Loop {
            body: Body(Arc::new(outer.graph)),
            symbols: Vec::new(),
            trip: Some(self.segments().into()),
            counted: false,
            conditional: false,
            carried: l.carried,
            slices: l.slices.clone(),
            stacks: stacks.into_iter().chain(vec![FROM_START; l.carried]).collect(),
        };
        let mut given = operands.to_vec();
        for (k, &along) in l.slices.iter().enumerate() {
            given[l.carried + k] = self.in_blocks(re, operands[l.carried + k], along)?;
        }
        re.add(NodeKind::Loop(Arc::new(segments)), &given)
    }

    /// The backward loop, over the same segments from the last to the first; `of` is what became of the forward loop, and `with` are its
    /// operands.
    fn backwards(
        &self,
        re: &mut Rebuilder,
        (f, of, with): (&Arc<Loop>, NodeId, &[NodeId]),
        (l, operands): (&Arc<Loop>, &[NodeId]),
    ) -> Result<NodeId, GraphError> {
        let (forward, body) = (&*f.body.0, &*l.body.0);
        let others = f.stacks.len() - self.begun.len();
        let mut outer = Outer::new("segment");
        let mut given: Vec<NodeId> = operands[..l.carried].to_vec();
        let carried = outer.inputs(body, 1..=l.carried)?;
        let mut slices: SmallVec<[Along; 2]> = SmallVec::new();
        // What the segment began with, and what its iterations read.
        let mut again = Vec::new();
        for k in 0..f.carried {
            again.push(outer.input(forward.ty(forward.inputs()[1 + k]).clone())?);
            given.push(re.add(NodeKind::Project((f.carried + others + k) as u32), &[of])?);
            slices.push(FROM_END);
        }
        for (k, &along) in f.slices.iter().enumerate() {
            let ty = self.block(forward.ty(forward.inputs()[1 + f.carried + k]), along);
            again.push(outer.input(ty)?);
            given.push(self.in_blocks(re, with[f.carried + k], along)?);
            slices.push(Along {
                reverse: !along.reverse,
                ..along
            });
        }
        // By slice of the backward loop: which stack of the iterations that run again, or its own part.
        let begun: Vec<usize> = {
            let mut all: Vec<usize> = self.begun.values().copied().collect();
            all.sort_unstable();
            all.dedup();
            all
        };
        let mut own: Vec<Result<NodeId, usize>> = Vec::new();
        for (k, &along) in l.slices.iter().enumerate() {
            let x = operands[l.carried + k];
            if let Some(around) = self.stack_of(re, f, of, x) {
                own.push(Err(begun.iter().position(|b| *b == around).expect("it is one of them")));
                continue;
            }
            let ty = self.block(body.ty(body.inputs()[1 + l.carried + k]), along);
            own.push(Ok(outer.input(ty)?));
            given.push(self.in_blocks(re, x, along)?);
            slices.push(along);
        }
        again.extend(outer.inputs(forward, 1 + f.carried + f.slices.len()..=forward.inputs().len() - 1)?);
        given.extend(&with[f.carried + f.slices.len()..]);
        let captures = outer.inputs(body, 1 + l.carried + l.slices.len()..=body.inputs().len() - 1)?;
        given.extend(&operands[l.carried + l.slices.len()..]);

        let number = outer.number;
        let begins = outer.affine(number, -self.every, self.iterations - self.every)?;
        let mut outputs: Vec<NodeId> = forward.outputs()[..f.carried].iter().map(|o| o.node).collect();
        outputs.extend(begun.iter().map(|b| forward.inputs()[1 + b]));
        let part = Part {
            l: f,
            outputs: &outputs,
            stacks: begun.iter().map(|_| FROM_START).collect(),
        };
        let ran = outer.repeat(&part, self.every, again, begins)?;
        let mut back = carried;
        for slice in own {
            back.push(match slice {
                Ok(own) => own,
                Err(stack) => outer.project(ran, f.carried + stack)?,
            });
        }
        back.extend(captures);
        let begins = outer.affine(number, self.every, 0)?;
        let outputs: Vec<NodeId> = body.outputs().iter().map(|o| o.node).collect();
        let part = Part {
            l,
            outputs: &outputs,
            stacks: l.stacks.clone(),
        };
        let ran = outer.repeat(&part, self.every, back, begins)?;
        for k in 0..l.results() {
            let result = outer.project(ran, k)?;
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
            stacks: l.stacks.clone(),
        };
        re.add(NodeKind::Loop(Arc::new(segments)), &given)
    }

    /// The carried value of the forward loop that a slice of the backward one is what iterations began with. In the new graph that stands
    /// for what segments began with.
    fn stack_of(&self, re: &Rebuilder, f: &Loop, of: NodeId, x: NodeId) -> Option<usize> {
        let node = re.graph.node(x);
        let others = f.stacks.len() - self.begun.len();
        match node.kind {
            NodeKind::Project(k) if node.operands[0] == of => (k as usize).checked_sub(f.carried + others),
            _ => None,
        }
    }

    /// A result of one of the loops, from what the loop became.
    fn result(
        &self,
        re: &mut Rebuilder,
        (of, l): (NodeId, &Loop),
        new: NodeId,
        result: usize,
        shape: &Shape,
    ) -> Result<NodeId, GraphError> {
        let project = |re: &mut Rebuilder, k: usize| re.add(NodeKind::Project(k as u32), &[new]);
        let Some(stack) = result.checked_sub(l.carried) else {
            return project(re, result);
        };
        if of == self.forward {
            let before = (0..stack).filter(|s| !self.begun.contains_key(s)).count();
            if let Some(around) = self.begun.get(&stack) {
                let others = l.stacks.len() - self.begun.len();
                return project(re, l.carried + others + around);
            }
            let blocks = project(re, l.carried + before)?;
            return re.reshape(blocks, shape);
        }
        let blocks = project(re, result)?;
        re.reshape(blocks, shape)
    }
}

/// Some of what a loop does in an iteration.
struct Part<'a> {
    l: &'a Loop,
    /// Of its body: what goes around, and what is stacked.
    outputs: &'a [NodeId],
    stacks: SmallVec<[Along; 2]>,
}

impl Part<'_> {
    /// The body of this part, with one more capture: the number of the first iteration.
    fn renumbered(&self) -> Result<Body, GraphError> {
        Ok(Body(Arc::new(renumbered(&self.l.body.0, self.outputs, None)?)))
    }
}

/// The body of a loop over segments, in the making.
struct Outer {
    graph: Graph,
    number: NodeId,
}

impl Outer {
    fn new(name: &str) -> Outer {
        let mut graph = Graph::new(name.to_string());
        graph.set_derived();
        let ty = TensorType::new(DType::I64, Shape::default());
        let number = graph.add_input("i", ty, Origin::Unknown).expect("the first input");
        Outer { graph, number }
    }

    fn input(&mut self, ty: TensorType) -> Result<NodeId, GraphError> {
        let name = format!("x{}", self.graph.inputs().len());
        self.graph.add_input(&name, ty, Origin::Unknown)
    }

    /// Inputs as some of another body's.
    fn inputs(&mut self, like: &Graph, which: std::ops::RangeInclusive<usize>) -> Result<Vec<NodeId>, GraphError> {
        which.map(|k| self.input(like.ty(like.inputs()[k]).clone())).collect()
    }

    fn add(&mut self, kind: NodeKind, operands: &[NodeId]) -> Result<NodeId, GraphError> {
        self.graph.add(kind, operands, Origin::Unknown)
    }

    fn project(&mut self, of: NodeId, result: usize) -> Result<NodeId, GraphError> {
        self.add(NodeKind::Project(result as u32), &[of])
    }

    fn constant(&mut self, n: i64) -> Result<NodeId, GraphError> {
        self.add(NodeKind::Const(Scalar::from_i64(DType::I64, n)), &[])
    }

    fn map(&mut self, op: ScalarOp, operands: &[NodeId]) -> Result<NodeId, GraphError> {
        self.add(NodeKind::Map(op), operands)
    }

    /// `x * times + plus`.
    fn affine(&mut self, x: NodeId, times: i64, plus: i64) -> Result<NodeId, GraphError> {
        let times = self.constant(times)?;
        let product = self.map(ScalarOp::Mul, &[x, times])?;
        let plus = self.constant(plus)?;
        self.map(ScalarOp::Add, &[product, plus])
    }

    /// A scalar, so many times.
    fn spread(&mut self, x: NodeId, times: i64) -> Result<NodeId, GraphError> {
        let shape = [IndexExpr::Const(times)].into_iter().collect();
        self.add(NodeKind::View(View::Expand(shape)), &[x])
    }

    /// What a tensor has at those places of an axis, which becomes the first.
    fn gather(&mut self, x: NodeId, axis: u8, places: NodeId) -> Result<NodeId, GraphError> {
        let axes = [axis].into_iter().collect();
        self.add(NodeKind::Gather { axes }, &[x, places])
    }

    /// So many iterations of a part of a loop, the first of which has that number; `operands` are the carried values, slices and captures.
    fn repeat(
        &mut self,
        part: &Part<'_>,
        times: i64,
        mut operands: Vec<NodeId>,
        first: NodeId,
    ) -> Result<NodeId, GraphError> {
        operands.push(first);
        let inner = Loop {
            body: part.renumbered()?,
            symbols: Vec::new(),
            trip: Some(times.into()),
            counted: false,
            conditional: false,
            carried: part.l.carried,
            slices: part.l.slices.clone(),
            stacks: part.stacks.clone(),
        };
        self.add(NodeKind::Loop(Arc::new(inner)), &operands)
    }
}

/// A body with these outputs and one more capture: the number of the first iteration. Behind so many carried values there may be one more, which
/// the body ignores: whether another iteration follows.
fn renumbered(body: &Graph, outputs: &[NodeId], goes_on: Option<usize>) -> Result<Graph, GraphError> {
    let mut live = vec![false; body.len()];
    outputs.iter().for_each(|o| live[o.index()] = true);
    for i in (0..body.len()).rev() {
        if live[i] {
            let operands = &body.node(NodeId(i as u32)).operands;
            operands.iter().for_each(|o| live[o.index()] = true);
        }
    }
    let mut graph = Graph::new(body.name.clone());
    graph.set_derived();
    let mut map: Vec<Option<NodeId>> = vec![None; body.len()];
    let unused = |name: &str| {
        let has = |name: &str| {
            let mut inputs = body.inputs().iter().map(|i| &body.node(*i).kind);
            inputs.any(|kind| matches!(kind, NodeKind::Input { name: own, .. } if own == name))
        };
        let mut name = String::from(name);
        while has(&name) {
            name.push('_');
        }
        name
    };
    for (k, &id) in body.inputs().iter().enumerate() {
        let NodeKind::Input { name, ty, .. } = &body.node(id).kind else {
            unreachable!("an input");
        };
        map[id.index()] = Some(graph.add_input(name, ty.clone(), body.node(id).origin.clone())?);
        // The first is the iteration's number.
        if goes_on == Some(k) {
            let ty = TensorType::new(DType::Bool, Shape::default());
            graph.add_input(&unused("goes_on"), ty, Origin::Unknown)?;
        }
    }
    let ty = TensorType::new(DType::I64, Shape::default());
    let first = graph.add_input(&unused("first"), ty, Origin::Unknown)?;
    let number = body.inputs()[0];
    if let Some(own) = map[number.index()].filter(|_| live[number.index()]) {
        map[number.index()] = Some(graph.add(NodeKind::Map(ScalarOp::Add), &[own, first], Origin::Unknown)?);
    }
    for (id, node) in body.nodes() {
        if !live[id.index()] || matches!(node.kind, NodeKind::Input { .. }) {
            continue;
        }
        let operands = node
            .operands
            .iter()
            .map(|o| map[o.index()].expect("operands come before users"));
        let operands: Operands = operands.collect();
        map[id.index()] = Some(graph.add(node.kind.clone(), &operands, node.origin.clone())?);
    }
    for o in outputs {
        graph.add_output("", map[o.index()].expect("outputs are live"));
    }
    graph.adopt_guards(body, &map);
    Ok(graph)
}
