//! Graphs whose loops are written as derivatives need them.
//!
//! Constants that bodies of loops have of their own become values of the graph around, which the loops capture. A loop computes the
//! same either way. But what differentiates by a constant, or moves it, asks for one value of one graph: a constant of a body is none.
//! So whatever looks for the constants of a graph by which its results could differ takes them out first.
//!
//! Loops that only data ends get a bound, as many iterations as reverse mode is to have room for.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::{Body, ConstData, Graph, GraphError, Loop, NodeId, NodeKind, Operands, Origin};
use crate::index::IndexExpr;

/// The least elements of a constant that is taken out: fewer are numbers of the computation.
const LEAST: usize = 2;

/// Whether a node is data that stands in a body and could stand outside.
fn is_taken(kind: &NodeKind) -> bool {
    matches!(kind, NodeKind::Data(data) if data.0.dtype().is_float() && data.0.len() >= LEAST)
}

/// Whether the body of a loop has a constant to take out, or a loop whose body has one.
fn has_own(body: &Graph) -> bool {
    body.nodes().any(|(_, n)| is_taken(&n.kind) || has_own_inside(&n.kind))
}

fn has_own_inside(kind: &NodeKind) -> bool {
    matches!(kind, NodeKind::Loop(l) if has_own(&l.body.0))
}

/// A graph being made, with its data by the names that models have for them.
struct Taker {
    graph: Graph,
    named: FxHashMap<Arc<str>, Vec<NodeId>>,
}

impl Taker {
    /// Data of the graph: what stands there already under that name, with the same elements, is the same.
    fn data(&mut self, data: &ConstData, origin: Origin) -> Result<NodeId, GraphError> {
        let name = match origin.recorded() {
            Origin::Named(name) | Origin::Weights(name) => Some(Arc::clone(name)),
            _ => None,
        };
        let known = name.as_ref().and_then(|name| self.named.get(name));
        let equal = |id: &&NodeId| match &self.graph.node(**id).kind {
            NodeKind::Data(own) => {
                own == data
                    || own.0.dtype() == data.0.dtype()
                        && own.0.shape() == data.0.shape()
                        && own.0.bytes() == data.0.bytes()
            }
            _ => false,
        };
        if let Some(&id) = known.and_then(|ids| ids.iter().find(equal)) {
            return Ok(id);
        }
        let id = self.graph.add(NodeKind::Data(data.clone()), &[], origin)?;
        if let Some(name) = name {
            self.named.entry(name).or_default().push(id);
        }
        Ok(id)
    }

    /// The nodes of a graph, with the constants of the bodies of its loops; new nodes by old ones.
    fn nodes(&mut self, from: &Graph) -> Result<Vec<Option<NodeId>>, GraphError> {
        let mut map: Vec<Option<NodeId>> = Vec::with_capacity(from.len());
        for (id, node) in from.nodes() {
            let origin = match from.is_derived() {
                true => node.origin.clone(),
                false => node.origin.clone().named(|| from.name_of_value(id)),
            };
            let moved = node.operands.iter().filter_map(|o| map[o.index()]);
            let mut operands: Operands = moved.collect();
            let made = match &node.kind {
                NodeKind::Input { .. } => self.graph.adopt_input(from, id),
                NodeKind::Data(data) => self.data(data, origin)?,
                NodeKind::Loop(l) if has_own(&l.body.0) => {
                    let (body, constants) = without_constants(&l.body.0)?;
                    for (data, origin) in &constants {
                        operands.push(self.data(data, origin.clone())?);
                    }
                    let body = Body(Arc::new(body));
                    let new = Loop { body, ..(**l).clone() };
                    self.graph.add(NodeKind::Loop(Arc::new(new)), &operands, origin)?
                }
                kind => self.graph.add(kind.clone(), &operands, origin)?,
            };
            map.push(Some(made));
        }
        Ok(map)
    }
}

/// The graph with the constants of the bodies of its loops.
fn taken_out(from: &Graph) -> Result<Graph, GraphError> {
    let mut graph = Graph::new(from.name.clone());
    graph.adopt_symbols(from);
    graph.set_derived();
    let mut taker = Taker {
        graph,
        named: FxHashMap::default(),
    };
    let map = taker.nodes(from)?;
    let mut graph = taker.graph;
    for o in from.outputs() {
        if let Some(node) = map[o.node.index()] {
            graph.add_output(&o.name, node);
        }
    }
    graph.adopt_guards(from, &map);
    Ok(graph)
}

/// The body of a loop with further inputs in place of its constants, and these in the order of the inputs.
fn without_constants(body: &Graph) -> Result<(Graph, Vec<(ConstData, Origin)>), GraphError> {
    let from = taken_out(body)?;
    let mut graph = Graph::new(from.name.clone());
    graph.adopt_symbols(&from);
    graph.set_derived();
    let is_free = |name: &str| {
        let mut inputs = from.inputs().iter();
        !inputs.any(|&i| matches!(&from.node(i).kind, NodeKind::Input { name: n, .. } if n == name))
    };
    let mut names = (0..).map(|k| format!("constant{k}")).filter(|n| is_free(n));
    let mut constants = Vec::new();
    let mut map: Vec<Option<NodeId>> = vec![None; from.len()];
    // The inputs that there are come first, in their order, as the loop gives them.
    for &id in from.inputs() {
        map[id.index()] = Some(graph.adopt_input(&from, id));
    }
    for (id, node) in from.nodes() {
        if map[id.index()].is_some() {
            continue;
        }
        let operands: Operands = node.operands.iter().filter_map(|o| map[o.index()]).collect();
        let made = match &node.kind {
            NodeKind::Data(data) if is_taken(&node.kind) => {
                let name = names.next().expect("some number is free");
                constants.push((data.clone(), node.origin.clone()));
                graph.add_input(&name, node.ty.clone(), node.origin.clone())?
            }
            kind => graph.add(kind.clone(), &operands, node.origin.clone())?,
        };
        map[id.index()] = Some(made);
    }
    for o in from.outputs() {
        if let Some(node) = map[o.node.index()] {
            graph.add_output(&o.name, node);
        }
    }
    graph.adopt_guards(&from, &map);
    Ok((graph, constants))
}

/// The graph with at most so many iterations of each loop that data ends.
fn bounded(from: &Graph, iterations: i64) -> Result<Graph, GraphError> {
    let mut graph = Graph::new(from.name.clone());
    graph.adopt_symbols(from);
    graph.set_derived();
    let mut map: Vec<Option<NodeId>> = Vec::with_capacity(from.len());
    for (id, node) in from.nodes() {
        let origin = match from.is_derived() {
            true => node.origin.clone(),
            false => node.origin.clone().named(|| from.name_of_value(id)),
        };
        let operands: Operands = node.operands.iter().filter_map(|o| map[o.index()]).collect();
        let made = match &node.kind {
            NodeKind::Input { .. } => graph.adopt_input(from, id),
            NodeKind::Loop(l) => {
                let mut new = (**l).clone();
                new.body = Body(Arc::new(bounded(&l.body.0, iterations)?));
                let is_longer = |trip: &IndexExpr| trip.as_const().is_some_and(|n| n > iterations);
                // Slices and stacks are as long as the trip count, which is a bound of its own then.
                if l.is_ended_by_data()
                    && l.trip.as_ref().is_none_or(is_longer)
                    && l.slices.is_empty()
                    && l.stacks.is_empty()
                {
                    new.trip = Some(IndexExpr::from(iterations));
                }
                graph.add(NodeKind::Loop(Arc::new(new)), &operands, origin)?
            }
            kind => graph.add(kind.clone(), &operands, origin)?,
        };
        map.push(Some(made));
    }
    for o in from.outputs() {
        if let Some(node) = map[o.node.index()] {
            graph.add_output(&o.name, node);
        }
    }
    graph.adopt_guards(from, &map);
    Ok(graph)
}

impl Loop {
    /// Whether a count or a condition may end it before its trip count does.
    pub fn is_ended_by_data(&self) -> bool {
        self.counted || self.conditional
    }
}

impl Graph {
    /// The graph with each loop that a count or a condition ends, at any depth of loops, ended after `iterations` if not before, where
    /// its trip count is none or a larger number: so it has a derivative in reverse mode. It computes the same where no loop runs longer.
    ///
    /// # Errors
    /// A node that does not fit: a graph that was never verified.
    pub fn with_loops_ended_after(&self, iterations: u32) -> Result<Graph, GraphError> {
        bounded(self, iterations.into())
    }

    /// The graph with the constants of several floats that the bodies of its loops have, at any depth, as constants of its own which
    /// the loops capture; `None` if there are none. It computes the same. One that the graph has already, under the same name and
    /// with the same elements, is that one.
    ///
    /// # Errors
    /// A node that does not fit: a graph that was never verified.
    pub fn with_constants_captured(&self) -> Result<Option<Graph>, GraphError> {
        match self.nodes().any(|(_, n)| has_own_inside(&n.kind)) {
            true => taken_out(self).map(Some),
            false => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::verify::verify;
    use super::*;
    use crate::dtype::{DType, Scalar};
    use crate::interp::{Options, interpret};
    use crate::tensor::HostTensor;
    use crate::text::{no_data, parse_module};

    /// A loop in a loop: both read `W`, which the graph reads as well; the inner one has a constant that no model names.
    const NESTED: &str = r#"graph @f(%x: f32[2]) {
  %0 = const [2.0, 3.0] : f32[2] from "W"
  %1 = mul %x, %0 : f32[2]
  %2 = loop %1 {trip=3, carried=1} body @outer(%i: i64[], %carried0: f32[2]) {
    %0 = const [2.0, 3.0] : f32[2] from "W"
    %1 = const 0.5 : f32[]
    %2 = expand %1 : f32[2]
    %3 = loop %carried0 {trip=2, carried=1} body @inner(%i: i64[], %constant0: f32[2]) {
      %0 = const [2.0, 3.0] : f32[2] from "W"
      %1 = const [-1.0, 0.25] : f32[2]
      %2 = mul %constant0, %0 : f32[2]
      %3 = add %2, %1 : f32[2]
      return %3
    } : (f32[2])
    %4 = project %3 {result=0} : f32[2]
    %5 = sub %4, %0 : f32[2]
    %6 = mul %5, %2 : f32[2]
    return %6
  } : (f32[2])
  %3 = project %2 {result=0} : f32[2]
  return %3
}"#;

    fn graph(text: &str) -> Graph {
        let module = parse_module(text, &mut no_data).expect("a graph");
        module.graphs.into_iter().next().expect("one graph")
    }

    #[test]
    fn constants_of_bodies_become_captures_of_one_value() {
        let before = graph(NESTED);
        let after = before
            .with_constants_captured()
            .expect("it types")
            .expect("it has some");
        assert_eq!(verify(&after).first().map(ToString::to_string), None, "{after}");
        let data = |g: &Graph| g.nodes().filter(|(_, n)| matches!(n.kind, NodeKind::Data(_))).count();
        assert_eq!((data(&before), data(&after)), (1, 2), "{after}");
        assert!(!after.nodes().any(|(_, n)| has_own_inside(&n.kind)), "{after}");
        assert_eq!(
            after
                .with_constants_captured()
                .expect("it types")
                .map(|g| g.to_string()),
            None
        );
        let x = HostTensor::from_slice(&[2], &[1.5f32, -0.75]).expect("two");
        let run = |g: &Graph| interpret(g, std::slice::from_ref(&x), &Options::default()).expect("it runs");
        assert_eq!(run(&before)[0].bytes(), run(&after)[0].bytes());
    }

    /// Numbers stay where they are, and so do integers.
    #[test]
    fn a_loop_without_such_constants_stays_as_it_is() {
        let text = "graph @f(%x: i32[2]) {
  %0 = loop %x {trip=3, carried=1} body @b(%i: i64[], %v: i32[2]) {
    %0 = const [2, 3] : i32[2]
    %1 = mul %v, %0 : i32[2]
    return %1
  } : (i32[2])
  %1 = project %0 {result=0} : i32[2]
  return %1
}";
        assert!(graph(text).with_constants_captured().expect("it types").is_none());
    }

    /// Twice the carried value while it is below 100: three iterations from 20.
    #[test]
    fn a_loop_that_a_condition_ends_ends_after_so_many_iterations() {
        let text = |trip: &str| {
            format!(
                "graph @f(%x: f32[], %c: bool[]) {{
  %0 = loop %c, %x {{{trip}conditional, carried=1}} body @b(%i: i64[], %v: f32[]) {{
    %0 = add %v, %v : f32[]
    %1 = const 100.0 : f32[]
    %2 = lt %0, %1 : bool[]
    return %2, %0
  }} : (f32[])
  %1 = project %0 {{result=0}} : f32[]
  return %1
}}"
            )
        };
        let run = |g: &Graph| {
            let inputs = [Scalar::from_f64(DType::F32, 20.0), Scalar::from_bool(true)].map(HostTensor::scalar);
            interpret(g, &inputs, &Options::default()).expect("it runs")[0]
                .get(0)
                .as_f64()
        };
        for trip in ["", "trip=1000000000000, "] {
            let before = graph(&text(trip));
            for (most, expected) in [(1, 40.0), (2, 80.0), (3, 160.0), (9, 160.0)] {
                let after = before.with_loops_ended_after(most).expect("it types");
                assert_eq!(verify(&after).first().map(ToString::to_string), None, "{after}");
                assert_eq!(run(&after), expected, "{after}");
            }
        }
        let before = graph(&text("trip=2, "));
        assert_eq!(run(&before.with_loops_ended_after(9).expect("it types")), 80.0);
    }
}
