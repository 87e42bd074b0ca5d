//! Sums over iterations that go around, in place of products of what iterations stack.
//!
//! The gradient of a matrix that a loop captures is recorded as one product, behind the loop, of values that its iterations stack: time is an
//! axis that is summed. Where no memory is left for the stacks, each iteration multiplies its own values instead, and the sum of the products goes
//! around. What that needs is the sum, and what it saves are the stacks.
//!
//! Invariants:
//! - A contraction has no order of its terms, so this is one way to compute it; the sum that goes around has the type of its accumulator,
//!   and is rounded once.
//! - Iterations that do not run stack zeros, and add nothing. What a loop only slices is read by iterations that run, so it is a factor only of
//!   loops that run all of theirs.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use tlc_ir::graph::{Along, Body, GraphError, Labels, Loop, Operands, Origin, Semiring, TensorType};
use tlc_ir::{DType, Graph, NodeId, NodeKind, ScalarOp};

use crate::rewrite::{bodies, rebuild};

/// A sum that goes around.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CarriedSum {
    /// The product that it was.
    pub label: String,
    /// Bytes of what is not stacked for it any more; what several products shared counts for the first.
    pub stacked_bytes: i64,
    /// Bytes of the sum.
    pub sum_bytes: i64,
}

/// Takes products over what loops stack into the loops, where the sums are smaller; says which.
///
/// # Errors
/// Never for a verified graph.
pub fn run(graph: &Graph) -> Result<(Graph, Vec<CarriedSum>), GraphError> {
    let mut reports = Vec::new();
    let inside = bodies(graph, |e| e, &mut |body| {
        let (made, found) = run(body)?;
        reports.extend(found);
        Ok(made)
    })?;
    let graph = inside.as_ref().unwrap_or(graph);
    let products = products(graph);
    if products.is_empty() {
        return Ok((graph.clone(), reports));
    }
    let mut known = FxHashSet::default();
    reports.extend(products.iter().map(|p| p.report(graph, &mut known)));
    let mut by_loop: FxHashMap<NodeId, Vec<&Product>> = FxHashMap::default();
    for p in &products {
        by_loop.entry(p.of).or_default().push(p);
    }
    let plans: FxHashMap<NodeId, Around<'_>> = by_loop
        .into_iter()
        .map(|(of, sums)| (of, Around::new(graph, of, sums)))
        .collect();
    let made = rebuild(graph, &mut |re, id, node, operands| match &node.kind {
        NodeKind::Loop(l) if plans.contains_key(&id) => {
            let around = &plans[&id];
            let first = l.leading() + l.carried;
            let mut given = operands[..first].to_vec();
            for sum in &around.sums {
                given.push(re.splat(sum.accumulator.zero(), &graph.ty(sum.einsum).shape)?);
            }
            given.extend(&operands[first..]);
            re.add(NodeKind::Loop(Arc::new(around.again(l)?)), &given)
        }
        NodeKind::Project(k) if plans.contains_key(&node.operands[0]) => {
            let NodeKind::Loop(l) = &graph.node(node.operands[0]).kind else {
                unreachable!("they are of loops");
            };
            match plans[&node.operands[0]].result(l, *k as usize) {
                Some(k) => re.add(NodeKind::Project(k as u32), operands),
                // Only the products read it.
                None => Ok(operands[0]),
            }
        }
        NodeKind::Einsum { dtype, .. } => match products.iter().find(|p| p.einsum == id) {
            Some(product) => {
                let NodeKind::Loop(l) = &graph.node(product.of).kind else {
                    unreachable!("it is of a loop");
                };
                let place = plans[&product.of].sums.iter().position(|p| p.einsum == id);
                let number = l.carried + place.expect("it is one of them");
                // Each factor that is a stack became the loop.
                let sum = re.add(NodeKind::Project(number as u32), &[operands[product.stack_operand]])?;
                match *dtype == product.accumulator {
                    true => Ok(sum),
                    false => re.add(NodeKind::Convert(*dtype), &[sum]),
                }
            }
            None => re.keep(node, operands),
        },
        _ => re.keep(node, operands),
    })?;
    Ok((made, reports))
}

/// A product of what a loop's iterations have.
struct Product {
    einsum: NodeId,
    of: NodeId,
    /// The values of the body.
    factors: Vec<NodeId>,
    /// Labels without time.
    inputs: Vec<Labels>,
    output: Labels,
    accumulator: DType,
    /// The operands that are stacked results of the loop.
    stacks: Vec<NodeId>,
    /// An operand that is one, which nothing else reads.
    stack_operand: usize,
}

impl Product {
    fn of(graph: &Graph, einsum: NodeId) -> Option<Product> {
        let node = graph.node(einsum);
        let NodeKind::Einsum {
            inputs,
            output,
            semiring: Semiring::AddMul,
            accumulator,
            ..
        } = &node.kind
        else {
            return None;
        };
        graph.ty(einsum).const_shape()?;
        let projected = |o: &NodeId| match graph.node(*o).kind {
            NodeKind::Project(k) => Some((graph.node(*o).operands[0], k as usize)),
            _ => None,
        };
        for (o, labels) in node.operands.iter().zip(inputs) {
            let Some((of, k)) = projected(o) else { continue };
            let NodeKind::Loop(l) = &graph.node(of).kind else {
                continue;
            };
            let Some(along) = k.checked_sub(l.carried).map(|s| l.stacks[s]) else {
                continue;
            };
            let time = labels[along.axis as usize];
            if output.contains(&time) || l.trip.as_ref().is_none_or(|n| n.as_const().is_none_or(|n| n < 2)) {
                continue;
            }
            let whole = !l.counted && !l.conditional;
            let body = &*l.body.0;
            let mut stacks = Vec::new();
            // What each factor is in an iteration.
            let factor = |(o, labels): (&NodeId, &Labels)| {
                let axis = labels.iter().position(|x| *x == time)?;
                let is_once = labels.iter().filter(|x| **x == time).count() == 1;
                let is_time = |a: &Along| is_once && usize::from(a.axis) == axis && a.reverse == along.reverse;
                match projected(o) {
                    Some((other, k)) if other == of && k >= l.carried && is_time(&l.stacks[k - l.carried]) => {
                        stacks.push(*o);
                        return Some(body.outputs()[l.first_carried_output() + k].node);
                    }
                    _ => {}
                }
                let sliced = &graph.node(of).operands[l.leading() + l.carried..];
                let mut slices = sliced.iter().zip(&l.slices);
                let k = slices.position(|(x, a)| whole && x == o && is_time(a))?;
                Some(body.inputs()[1 + l.carried + k])
            };
            let factors: Option<Vec<NodeId>> = node.operands.iter().zip(inputs).map(factor).collect();
            let Some(factors) = factors else { continue };
            let fixed = factors.iter().all(|f| body.ty(*f).const_shape().is_some());
            if !fixed || !accumulator.is_float() {
                continue;
            }
            let (inputs, output) = without(inputs, output, time);
            return Some(Product {
                einsum,
                of,
                factors,
                inputs,
                output,
                accumulator: *accumulator,
                stacks,
                stack_operand: usize::MAX,
            });
        }
        None
    }

    fn sum_bytes(&self, graph: &Graph) -> i64 {
        let elements = graph.ty(self.einsum).elements().as_const().unwrap_or(i64::MAX);
        elements.saturating_mul(self.accumulator.bytes() as i64)
    }

    fn report(&self, graph: &Graph, known: &mut FxHashSet<NodeId>) -> CarriedSum {
        let new = self.stacks.iter().filter(|s| known.insert(**s));
        CarriedSum {
            label: graph.value_name(self.einsum),
            stacked_bytes: new.map(|s| bytes(graph, *s)).fold(0, i64::saturating_add),
            sum_bytes: self.sum_bytes(graph),
        }
    }
}

fn bytes(graph: &Graph, id: NodeId) -> i64 {
    let ty = graph.ty(id);
    let elements = ty.elements().as_const().unwrap_or(i64::MAX);
    elements.saturating_mul(ty.dtype.bytes() as i64)
}

/// The labels of a contraction without one that is summed, numbered anew in the order in which they are met.
fn without(inputs: &[Labels], output: &Labels, time: u16) -> (Vec<Labels>, Labels) {
    let mut met: Vec<u16> = Vec::new();
    let mut number = |l: &u16| {
        let known = met.iter().position(|m| m == l);
        known.unwrap_or_else(|| {
            met.push(*l);
            met.len() - 1
        }) as u16
    };
    let inputs = inputs
        .iter()
        .map(|labels| labels.iter().filter(|l| **l != time).map(&mut number).collect())
        .collect();
    (inputs, output.iter().map(&mut number).collect())
}

/// The products that go around: those without which fewer bytes are kept.
fn products(graph: &Graph) -> Vec<Product> {
    let mut users: Vec<SmallVec<[NodeId; 2]>> = vec![SmallVec::new(); graph.len()];
    let mut live = vec![false; graph.len()];
    for o in graph.outputs() {
        live[o.node.index()] = true;
        // A user that is no product.
        users[o.node.index()].push(o.node);
    }
    for i in (0..graph.len()).rev() {
        let id = NodeId(i as u32);
        if live[i] {
            for o in &graph.node(id).operands {
                live[o.index()] = true;
                users[o.index()].push(id);
            }
        }
    }
    let all = graph.nodes().filter(|(id, _)| live[id.index()]);
    let mut all: Vec<Product> = all.filter_map(|(id, _)| Product::of(graph, id)).collect();
    let taken: FxHashSet<NodeId> = all.iter().map(|p| p.einsum).collect();
    // Of what is read elsewhere too, the stack stays.
    let goes = |s: &NodeId| users[s.index()].iter().all(|u| taken.contains(u));
    let goes: FxHashSet<NodeId> = all.iter().flat_map(|p| &p.stacks).copied().filter(goes).collect();
    let stacked = goes.iter().map(|s| bytes(graph, *s)).fold(0, i64::saturating_add);
    let sums = all.iter().map(|p| p.sum_bytes(graph)).fold(0, i64::saturating_add);
    if sums >= stacked {
        return Vec::new();
    }
    for p in &mut all {
        let operands = &graph.node(p.einsum).operands;
        p.stack_operand = operands.iter().position(|o| goes.contains(o)).unwrap_or(usize::MAX);
        p.stacks.retain(|s| goes.contains(s));
    }
    all.retain(|p| p.stack_operand != usize::MAX);
    all
}

/// A loop, and the sums that go around in it.
struct Around<'a> {
    sums: Vec<&'a Product>,
    /// By stack of the loop: whether it stays.
    stays: Vec<bool>,
}

impl<'a> Around<'a> {
    fn new(graph: &Graph, of: NodeId, sums: Vec<&'a Product>) -> Around<'a> {
        let NodeKind::Loop(l) = &graph.node(of).kind else {
            unreachable!("it is a loop");
        };
        let mut stays = vec![true; l.stacks.len()];
        for stack in sums.iter().flat_map(|p| &p.stacks) {
            if let NodeKind::Project(k) = graph.node(*stack).kind {
                stays[k as usize - l.carried] = false;
            }
        }
        Around { sums, stays }
    }

    /// The number that a result of the loop has now, if there is still one.
    fn result(&self, l: &Loop, k: usize) -> Option<usize> {
        let Some(stack) = k.checked_sub(l.carried) else {
            return Some(k);
        };
        let before = self.stays[..stack].iter().filter(|s| **s).count();
        self.stays[stack].then_some(l.carried + self.sums.len() + before)
    }

    /// The loop with the sums behind what goes around.
    fn again(&self, l: &Loop) -> Result<Loop, GraphError> {
        let old = &*l.body.0;
        let mut body = Graph::new(old.name.clone());
        body.adopt_symbols(old);
        body.set_derived();
        let mut map: Vec<Option<NodeId>> = vec![None; old.len()];
        let mut totals = Vec::new();
        for (k, &id) in old.inputs().iter().enumerate() {
            if k == 1 + l.carried {
                self.totals(old, &mut body, &mut totals)?;
            }
            let NodeKind::Input { name, ty, .. } = &old.node(id).kind else {
                unreachable!("an input");
            };
            map[id.index()] = Some(body.add_input(name, ty.clone(), old.node(id).origin.clone())?);
        }
        if totals.is_empty() {
            self.totals(old, &mut body, &mut totals)?;
        }
        for (id, node) in old.nodes() {
            if map[id.index()].is_some() {
                continue;
            }
            let new = |o: &NodeId| map[o.index()].expect("operands come before users");
            let operands: Operands = node.operands.iter().map(new).collect();
            let origin = match old.is_derived() {
                true => node.origin.clone(),
                false => node.origin.clone().named(|| old.name_of_value(id)),
            };
            map[id.index()] = Some(body.add(node.kind.clone(), &operands, origin)?);
        }
        let new = |id: NodeId| map[id.index()].expect("every node is there");
        let mut next = Vec::new();
        for (sum, total) in self.sums.iter().zip(totals) {
            let factors: Operands = sum.factors.iter().map(|f| new(*f)).collect();
            let kind = NodeKind::Einsum {
                inputs: sum.inputs.iter().cloned().collect(),
                output: sum.output.clone(),
                semiring: Semiring::AddMul,
                accumulator: sum.accumulator,
                dtype: sum.accumulator,
            };
            let product = body.add(kind, &factors, Origin::Unknown)?;
            next.push(body.add(NodeKind::Map(ScalarOp::Add), &[total, product], Origin::Unknown)?);
        }
        let (before, stacks) = old.outputs().split_at(l.first_carried_output() + l.carried);
        before.iter().for_each(|o| body.add_output("", new(o.node)));
        next.iter().for_each(|id| body.add_output("", *id));
        for (o, _) in stacks.iter().zip(&self.stays).filter(|(_, stays)| **stays) {
            body.add_output("", new(o.node));
        }
        body.adopt_guards(old, &map);
        let stacks = l.stacks.iter().zip(&self.stays);
        Ok(Loop {
            body: Body(Arc::new(body)),
            carried: l.carried + self.sums.len(),
            stacks: stacks.filter(|(_, stays)| **stays).map(|(s, _)| *s).collect(),
            ..l.clone()
        })
    }

    /// The inputs that are the sums so far.
    fn totals(&self, old: &Graph, body: &mut Graph, totals: &mut Vec<NodeId>) -> Result<(), GraphError> {
        for (k, sum) in self.sums.iter().enumerate() {
            let extent = |label: &u16| {
                let axes = sum
                    .inputs
                    .iter()
                    .zip(&sum.factors)
                    .flat_map(|(labels, f)| labels.iter().zip(&old.ty(*f).shape));
                let found = axes.filter(|(l, _)| *l == label).map(|(_, d)| d.clone()).next();
                found.expect("a label of the result is one of a factor")
            };
            let ty = TensorType::new(sum.accumulator, sum.output.iter().map(extent));
            let mut name = format!("sum{k}");
            while old
                .inputs()
                .iter()
                .any(|i| matches!(&old.node(*i).kind, NodeKind::Input { name: n, .. } if *n == name))
            {
                name.push('_');
            }
            totals.push(body.add_input(&name, ty, Origin::Unknown)?);
        }
        Ok(())
    }
}
