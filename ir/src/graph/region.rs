//! Regions: parts of a graph that have a derivative of their own.
//!
//! Invariants:
//! - A region computes what its body computes: [`Graph::inlined`] puts the body in its place and changes no value. Only the rule
//!   for its derivative is more than the body says.
//! - A body is a closed graph, as that of a loop is: it sees nothing of the graph around it but its inputs and the values of its
//!   symbols. Its inputs are the region's operands, its outputs the region's results.
//! - The body of a custom derivative has the same symbols. Its inputs are the operands, the results, and a cotangent for each
//!   result that is a float; its outputs the cotangents of those operands that are floats. Each in order.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::{Body, Graph, GraphError, Loop, Node, NodeId, NodeKind, Operands, Origin, TensorType};
use crate::index::{IndexExpr, IndexNode};

/// What the derivative of a region is.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Rule {
    /// Zero: the results count as constants.
    Opaque,
    /// What a body computes from operands, results and cotangents of the results.
    Custom(Body),
    /// That of the region's own body. What is inside the body is not kept for it: reverse mode computes the body again from the
    /// operands, in a loop of one iteration (see [`Loop::is_fence`]).
    Checkpoint,
}

impl Rule {
    /// The name in text forms.
    pub fn name(&self) -> &'static str {
        match self {
            Rule::Opaque => "opaque",
            Rule::Custom(_) => "custom",
            Rule::Checkpoint => "checkpoint",
        }
    }
}

/// A part of a graph with a derivative of its own; see the module.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Region {
    /// What it computes.
    pub body: Body,
    /// The values of the body's symbols.
    pub symbols: Vec<IndexExpr>,
    /// Its derivative.
    pub rule: Rule,
}

/// An expression over the symbols of a body, over those around it; `values` are what the body's symbols are there.
pub fn outside(values: &[IndexExpr], e: &IndexExpr) -> IndexExpr {
    e.replace(&mut |n| match n {
        IndexNode::Sym(s) => values.get(s.0 as usize).cloned(),
        _ => None,
    })
}

/// A type of a body, over the symbols around it.
pub(in crate::graph) fn type_outside(values: &[IndexExpr], ty: &TensorType) -> TensorType {
    TensorType {
        dtype: ty.dtype,
        shape: ty.shape.iter().map(|d| outside(values, d)).collect(),
    }
}

impl Region {
    /// The body, and that of a custom derivative.
    pub fn bodies(&self) -> impl Iterator<Item = &Body> {
        let derivative = match &self.rule {
            Rule::Opaque | Rule::Checkpoint => None,
            Rule::Custom(body) => Some(body),
        };
        std::iter::once(&self.body).chain(derivative)
    }

    /// An expression over the bodies' symbols, over those around the region.
    pub fn outer(&self, e: &IndexExpr) -> IndexExpr {
        outside(&self.symbols, e)
    }
}

impl Graph {
    /// How many loops and regions are inside each other.
    pub fn depth(&self) -> usize {
        // A body is complete before the node around it is, so this ends.
        let inner = self.nodes().map(|(_, n)| match &n.kind {
            NodeKind::Loop(l) => 1 + l.body.0.depth(),
            NodeKind::Region(r) => 1 + r.bodies().map(|b| b.0.depth()).max().unwrap_or(0),
            _ => 0,
        });
        inner.max().unwrap_or(0)
    }

    /// Whether there is a region in the graph or in the body of a loop.
    pub fn has_regions(&self) -> bool {
        self.may_have_regions && self.nodes().any(|(_, n)| has_regions(&n.kind))
    }

    /// The graph with the bodies of its regions in their place, in the bodies of loops as well; `None` if it has none.
    ///
    /// # Errors
    /// A node that does not fit: a region that was never verified.
    pub fn inlined(&self) -> Result<Option<Graph>, GraphError> {
        if !self.has_regions() {
            return Ok(None);
        }
        let mut graph = Graph::new(self.name.clone());
        graph.adopt_symbols(self);
        let mut into = Inliner {
            graph,
            loops: FxHashMap::default(),
        };
        let map = into.nodes(self, None, None)?;
        for o in self.outputs() {
            into.graph.add_output(&o.name, map[o.node.index()][0]);
        }
        let first: Vec<Option<NodeId>> = map.iter().map(|all| all.first().copied()).collect();
        into.graph.adopt_guards(self, &first);
        into.graph.set_derived();
        into.graph.settle();
        Ok(Some(into.graph))
    }
}

/// Whether a node is a region or a loop with one in its body.
pub(super) fn has_regions(kind: &NodeKind) -> bool {
    match kind {
        NodeKind::Region(_) => true,
        NodeKind::Loop(l) => l.body.0.has_regions(),
        _ => false,
    }
}

/// Nodes in the new graph; all results of what was a region.
type Made = Vec<smallvec::SmallVec<[NodeId; 1]>>;

/// A region whose body is being put in its place.
#[derive(Clone, Copy)]
struct Within<'a> {
    region: &'a Region,
    operands: &'a [NodeId],
    origin: &'a Origin,
}

/// What the operands of a node have become, of which each has one result.
fn moved(map: &Made, node: &Node) -> Operands {
    let mut operands = Operands::from_slice(&node.operands);
    operands.iter_mut().for_each(|o| *o = map[o.index()][0]);
    operands
}

/// Whether a node has one result and computes it, so that its type is the same wherever those of its operands are.
fn is_typed_by_operands(kind: &NodeKind) -> bool {
    !kind.is_tuple() && !matches!(kind, NodeKind::Input { .. } | NodeKind::Project(_))
}

struct Inliner {
    graph: Graph,
    /// Bodies of loops by address, which the bodies of this graph keep alive.
    loops: FxHashMap<usize, Body>,
}

impl Inliner {
    /// Adds the nodes of a graph; `within` is the region whose body that is, and `around` what its symbols are worth.
    fn nodes(
        &mut self,
        from: &Graph,
        within: Option<Within<'_>>,
        around: Option<&[IndexExpr]>,
    ) -> Result<Made, GraphError> {
        let mut map: Made = Vec::with_capacity(from.len());
        // Types without symbols are what they were, where nothing was assumed for them.
        let fits = |within: &Within<'_>| {
            let mut inputs = from.inputs().iter().zip(within.operands);
            inputs.all(|(&inside, &outside)| from.ty(inside) == self.graph.ty(outside))
        };
        let typed = from.symbols().is_empty() && from.guards().is_empty() && within.as_ref().is_none_or(fits);
        for (id, node) in from.nodes() {
            if let (true, Some(_)) = (typed, within)
                && node.origin != Origin::Unknown
                && is_typed_by_operands(&node.kind)
            {
                let operands = moved(&map, node);
                map.push([self.graph.add_defined(node, &operands)].into());
                continue;
            }
            if let (NodeKind::Input { .. }, None) = (&node.kind, within) {
                map.push([self.graph.adopt_input(from, id)].into());
                continue;
            }
            let origin = match (within, from.is_derived()) {
                (Some(within), _) if node.origin == Origin::Unknown => within.origin.clone(),
                (Some(_), _) | (None, true) => node.origin.clone(),
                (None, false) => node.origin.clone().named(|| from.name_of_value(id)),
            };
            let made = match (&node.kind, within) {
                (NodeKind::Input { index, .. }, Some(within)) => [within.operands[*index as usize]].into(),
                (NodeKind::Project(k), _) if matches!(from.node(node.operands[0]).kind, NodeKind::Region(_)) => {
                    [map[node.operands[0].index()][*k as usize]].into()
                }
                (kind, _) if typed && is_typed_by_operands(kind) => {
                    let operands = moved(&map, node);
                    [self.graph.add_defined_from(node, &operands, || origin)].into()
                }
                (kind, _) => {
                    let operands = moved(&map, node);
                    let kind = match around {
                        Some(values) => kind.map_sizes(&mut |_, e| outside(values, e)),
                        None => kind.clone(),
                    };
                    match kind {
                        NodeKind::Region(r) => {
                            let body = &*r.body.0;
                            let inner = Within {
                                region: &r,
                                operands: &operands,
                                origin: &origin,
                            };
                            let map = self.nodes(body, Some(inner), Some(&inner.region.symbols))?;
                            body.outputs().iter().map(|o| map[o.node.index()][0]).collect()
                        }
                        NodeKind::Loop(l) => [self.repeated(&l, &operands, origin)?].into(),
                        kind => [self.graph.add(kind, &operands, origin)?].into(),
                    }
                }
            };
            map.push(made);
        }
        Ok(map)
    }

    fn repeated(&mut self, l: &Arc<Loop>, operands: &[NodeId], origin: Origin) -> Result<NodeId, GraphError> {
        let address = Arc::as_ptr(&l.body.0) as usize;
        let body = match self.loops.get(&address) {
            Some(body) => body.clone(),
            None => match l.body.0.inlined()? {
                Some(body) => Body(Arc::new(body)),
                None => l.body.clone(),
            },
        };
        self.loops.insert(address, body.clone());
        let new = Loop { body, ..(**l).clone() };
        self.graph.add(NodeKind::Loop(Arc::new(new)), operands, origin)
    }
}

#[cfg(test)]
mod tests {
    use super::super::verify::verify;
    use super::*;
    use crate::text::{no_data, parse_module};

    fn inlined(text: &str) -> Graph {
        let module = parse_module(text, &mut no_data).expect("a graph");
        let graph = module.graphs.into_iter().next().expect("one graph");
        graph.inlined().expect("it types").expect("it has regions")
    }

    /// Regions of fixed sizes, whose types are taken over, and of symbolic ones, whose types are found out again, leave the same graph: also where one is
    /// inside another, gives back an operand, and computes what the graph has.
    #[test]
    fn types_taken_over_are_those_that_are_found_out() {
        let text = |n: &str, range: &str, symbols: &str| {
            format!(
                "graph @g(%x: f32[{n}], %y: f32[{n}]){range} {{
  %0 = neg %x : f32[{n}]
  %1 = region opaque %x, %y{symbols} body @outer(%a: f32[{n}], %b: f32[{n}]){range} {{
    %0 = neg %a : f32[{n}]
    %1 = region opaque %0, %b{symbols} body @inner(%c: f32[{n}], %d: f32[{n}]){range} {{
      %0 = mul %c, %d : f32[{n}]
      %1 = reduce add %0 {{axes=[0]}} : f32[]
      %2 = expand %1 : f32[{n}]
      return %2, %d
    }} : (f32[{n}], f32[{n}])
    %2 = project %1 {{result=0}} : f32[{n}]
    %3 = project %1 {{result=1}} : f32[{n}]
    %4 = add %2, %3 : f32[{n}]
    return %4
  }} : (f32[{n}])
  %2 = project %1 {{result=0}} : f32[{n}]
  %3 = sub %2, %0 : f32[{n}]
  return %3
}}"
            )
        };
        let fixed = inlined(&text("4", "", ""));
        let symbolic = inlined(&text("n", " where n in 1..=8", " {symbols=[n]}"));
        assert!(verify(&fixed).is_empty() && verify(&symbolic).is_empty(), "{fixed}");
        let lines = |g: &Graph| -> Vec<String> { g.to_string().lines().skip(1).map(str::to_string).collect() };
        let replaced: Vec<String> = lines(&symbolic).iter().map(|l| l.replace("[n]", "[4]")).collect();
        assert_eq!(lines(&fixed), replaced);
        assert!(!fixed.has_regions() && fixed.len() == 8, "{fixed}");
    }
}
