//! Graph-to-graph passes: what a pass is, which there are, and the rebuilding that they share. [`crate::pipeline`] drives them.
//!
//! A pass rebuilds the graph out of place: it is shown each live node with its operands already in the new graph and
//! returns the new node. Dead nodes are never shown, and hash-consing merges what became equal, so every rebuild also
//! removes dead code and common subexpressions. Inputs, outputs and symbols keep their order and names.
//! The new graph shares what nodes are with the old one: up to the first node that changes whole nodes, behind it what is not their operands.

mod byte_functions;
pub mod canonicalize;
pub mod channels_last;
mod channels_together;
pub mod cse;
pub mod dce;
pub mod dequantized;
pub mod einsum_path;
mod few_bits;
pub mod fold;
pub mod hoist;
pub mod late_reshape;
pub mod long_rows;
pub mod narrow;
pub mod own_outputs;
pub mod pack;
pub mod panels;
pub mod quotients;
pub mod round_trips;
pub mod sink_layout;
pub mod split_reduce;
pub mod tables;
mod taps;
pub mod widen;
pub mod words;

use std::fmt;
use std::panic::RefUnwindSafe;
use std::sync::Arc;

use tlc_ir::graph::{Body, GraphError, Loop, Operands, Origin, Shape, View};
use tlc_ir::index::IndexExpr;
use tlc_ir::target::{Emitter, Gpu};
use tlc_ir::{Graph, Node, NodeId, NodeKind, Scalar};

use self::einsum_path::{EinsumPathError, PathDecision};
use self::panels::Layouts;

/// An optional graph-to-graph pass: any subset of passes in any order keeps every result. It has no state of its own.
pub trait Pass: Sync + RefUnwindSafe {
    /// The name on the command line, in tests and of the tracing span.
    fn name(&self) -> &'static str;

    /// The graph rewritten; bodies of its loops have been already.
    ///
    /// # Errors
    /// [`Failure`]: a bug in the pass, or a limit that nothing fits.
    fn run(&self, graph: &Graph, context: &mut Context<'_>) -> Result<Graph, Failure>;

    /// Whether the result may be rounded where the operands were not: values are computed in their dtype.
    fn rounds(&self) -> bool {
        false
    }
}

impl PartialEq for dyn Pass {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for dyn Pass {}

impl fmt::Debug for dyn Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Every optional pass, in the order in which they run by default. A new pass is a line here.
pub const PASSES: [&dyn Pass; 18] = [
    &dequantized::Dequantized,
    &canonicalize::Canonicalize,
    &fold::Fold,
    &late_reshape::LateReshape,
    &sink_layout::SinkLayout,
    &einsum_path::EinsumPath,
    &cse::Cse,
    &dce::Dce,
    &round_trips::RoundTrips,
    &words::Words,
    &quotients::Quotients,
    &tables::Tables,
    &widen::Widen,
    &long_rows::LongRows,
    &split_reduce::SplitReduce,
    &channels_last::ChannelsLast,
    &hoist::Hoist,
    &pack::Pack,
];

/// What a pass may know beside the graph, and what it reports.
pub struct Context<'a> {
    /// How the host, if it is one, reads constant operands of products.
    pub layouts: Layouts,
    /// The code generator that computes convolutions from their windows, if one of the target does.
    pub tiles: Option<&'a Emitter>,
    /// Bytes of the weights of a convolution's block of channels, at most ([`tlc_ir::target::Cpu::weight_block_bytes`]).
    pub weight_block_bytes: i64,
    /// Bytes that stay close to whoever computes a tile of columns ([`tlc_ir::Target::resident_bytes`]).
    pub resident_bytes: i64,
    /// Whether a device of many threads runs the graph, on which what few of them do one after the other takes long.
    pub many_threads: bool,
    /// The GPU that runs the graph, if one does.
    pub gpu: Option<&'a Gpu>,
    /// The most bytes that any einsum intermediate may have.
    pub max_memory_bytes: Option<u64>,
    /// Whether the graph is the body of a loop, which keeps nothing for later calls.
    pub inside_loop: bool,
    /// Contraction orders that were chosen.
    pub paths: &'a mut Vec<PathDecision>,
}

/// Why a pass failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Failure {
    /// It made a graph that does not type: a bug.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// No contraction order fits the memory limit.
    #[error(transparent)]
    EinsumPath(#[from] EinsumPathError),
}

/// A graph being rebuilt.
pub struct Rebuilder<'g> {
    /// The new graph.
    pub graph: Graph,
    /// Where the node being rewritten was recorded; new nodes inherit it.
    origin: Recorded<'g>,
    /// The node being rewritten, if what it is need not be found out again where it stays.
    same: Option<Same<'g>>,
}

/// Where a node was recorded.
enum Recorded<'g> {
    Known(Origin),
    /// As that node: nodes that are shared never ask for it, and counting who has it costs more than finding it.
    As(&'g Node),
}

/// A node that may stay what it is.
struct Same<'g> {
    graph: &'g Graph,
    id: NodeId,
    /// What its operands are in the new graph, where that does not have them under the numbers that they had.
    operands: Option<Operands>,
    /// Whether the new graph has the nodes before it, and no others: then it can be shared.
    shared: bool,
    /// Whether it has one result, whose type follows from what is the same in both graphs.
    typed: bool,
}

impl Same<'_> {
    fn operands(&self) -> &[NodeId] {
        match &self.operands {
            Some(new) => new,
            None => &self.graph.node(self.id).operands,
        }
    }
}

impl<'g> Rebuilder<'g> {
    /// Nothing yet but a name.
    fn new(name: &str) -> Rebuilder<'g> {
        Rebuilder {
            graph: Graph::new(name),
            origin: Recorded::Known(Origin::Unknown),
            same: None,
        }
    }

    /// Where the node being rewritten was recorded.
    fn origin(&self) -> Origin {
        match &self.origin {
            Recorded::Known(origin) => origin.clone(),
            Recorded::As(node) => node.origin.clone(),
        }
    }

    /// Has new nodes be recorded there.
    fn set_origin(&mut self, origin: Origin) {
        self.origin = Recorded::Known(origin);
    }

    /// Adds a node to the new graph.
    ///
    /// # Errors
    /// If the operands do not fit: a bug in the calling pass.
    pub fn add(&mut self, kind: NodeKind, operands: &[NodeId]) -> Result<NodeId, GraphError> {
        if let Some(same) = self
            .same
            .take_if(|s| *s.operands() == *operands && s.graph.node(s.id).kind == kind)
        {
            return self.same_again(&same, || kind);
        }
        self.graph.add(kind, operands, self.origin())
    }

    /// Adds the node being rewritten as it is, over its operands in the new graph. Where the new graph has all nodes before it, and no others, the
    /// node is shared, and nothing of it is copied or compared.
    ///
    /// # Errors
    /// As [`Rebuilder::add`].
    pub fn keep(&mut self, node: &Node, operands: &[NodeId]) -> Result<NodeId, GraphError> {
        let stays = |s: &mut Same<'_>| *s.operands() == *operands && std::ptr::eq(s.graph.node(s.id), node);
        match self.same.take_if(stays) {
            Some(same) => self.same_again(&same, || node.kind.clone()),
            None => self.add(node.kind.clone(), operands),
        }
    }

    /// Adds a node that stays what it is; `kind` is asked for its kind where it cannot be shared.
    fn same_again(&mut self, same: &Same<'_>, kind: impl FnOnce() -> NodeKind) -> Result<NodeId, GraphError> {
        if same.shared && self.graph.len() == same.id.index() {
            self.graph.share(same.graph, same.id);
            return Ok(same.id);
        }
        if let (true, Recorded::As(node)) = (same.typed, &self.origin) {
            return Ok(self.graph.add_defined(node, same.operands()));
        }
        let origin = self.origin();
        if same.typed {
            let ty = same.graph.ty(same.id).clone();
            return Ok(self.graph.add_typed(kind(), same.operands(), ty, origin));
        }
        self.graph.add(kind(), same.operands(), origin)
    }

    /// A view of a node, or the node itself where the view changes nothing.
    ///
    /// # Errors
    /// As [`Rebuilder::add`].
    pub fn reshape(&mut self, node: NodeId, shape: &Shape) -> Result<NodeId, GraphError> {
        if self.graph.ty(node).shape == *shape {
            return Ok(node);
        }
        self.add(NodeKind::View(View::Reshape(shape.clone())), &[node])
    }

    /// A value with so many elements before and behind those of each axis, all of them the same.
    ///
    /// # Errors
    /// As [`Rebuilder::add`].
    pub fn padded(&mut self, node: NodeId, lo: Shape, hi: Shape, value: Scalar) -> Result<NodeId, GraphError> {
        let interior = lo.iter().map(|_| 0).collect();
        let view = View::Pad {
            lo: lo.into_boxed_slice(),
            hi: hi.into_boxed_slice(),
            interior,
            value,
        };
        self.add(NodeKind::View(view), &[node])
    }

    /// A constant of the given shape.
    ///
    /// # Errors
    /// As [`Rebuilder::add`].
    pub fn splat(&mut self, value: Scalar, shape: &Shape) -> Result<NodeId, GraphError> {
        let scalar = self.add(NodeKind::Const(value), &[])?;
        if shape.is_empty() {
            return Ok(scalar);
        }
        self.add(NodeKind::View(View::Expand(shape.clone())), &[scalar])
    }

    /// The value that every element of a node has, if it is a constant through views.
    pub fn splat_value(&self, node: NodeId) -> Option<Scalar> {
        self.graph.splat_value(node)
    }
}

/// The new node of a live one, given its new operands.
pub type Rewrite<'f> = dyn FnMut(&mut Rebuilder<'_>, NodeId, &Node, &[NodeId]) -> Result<NodeId, GraphError> + 'f;

/// Rebuilds `graph`: `f` is shown each live node and its new operands, and returns the new node.
///
/// # Errors
/// What `f` or the builder refuses: a bug in the pass.
pub fn rebuild(graph: &Graph, f: &mut Rewrite<'_>) -> Result<Graph, GraphError> {
    let live = live(graph);
    let mut re = Rebuilder::new(&graph.name);
    re.graph.adopt_symbols(graph);
    re.graph.set_derived();
    let mut map: Vec<Option<NodeId>> = vec![None; graph.len()];
    // Types that rest on assumptions are found out again, with these, and so are those from before all ranges of symbols were known. The values
    // of a graph that was given have no names yet.
    let settled = graph.is_derived() || graph.symbols().is_empty();
    let typed = settled && graph.guards().is_empty();
    let mut shared = typed && graph.is_derived();
    if !shared {
        re.graph.reserve(live.iter().filter(|&&l| l).count());
    }
    for (id, node) in graph.nodes() {
        // The first pass writes down what the values of the graph that was given are called.
        re.origin = match graph.is_derived() {
            true => Recorded::As(node),
            false => Recorded::Known(node.origin.clone().named(|| graph.name_of_value(id))),
        };
        if let NodeKind::Input { name, ty, .. } = &node.kind {
            map[id.index()] = Some(match shared {
                true => {
                    re.graph.share(graph, id);
                    id
                }
                false if typed && graph.is_derived() => re.graph.adopt_input(graph, id),
                false => re.graph.add_input(name, ty.clone(), node.origin.clone())?,
            });
        } else if live[id.index()] {
            let renumbered: Operands;
            let operands = match shared {
                true => &node.operands,
                false => {
                    let new = |o: &NodeId| map[o.index()].expect("operands come before users");
                    renumbered = node.operands.iter().map(new).collect();
                    &renumbered
                }
            };
            let alike = |(&new, &old): (&NodeId, &NodeId)| {
                let (new, old) = (re.graph.ty(new), graph.ty(old));
                std::ptr::eq(new, old) || new == old
            };
            let of_one_result = !node.kind.is_tuple() && !matches!(node.kind, NodeKind::Project(_));
            let typed = typed && of_one_result && (shared || operands.iter().zip(&node.operands).all(alike));
            re.same = (shared || typed).then(|| Same {
                graph,
                id,
                operands: (!shared).then(|| Operands::from_slice(operands)),
                shared,
                typed,
            });
            let new = f(&mut re, id, node, operands)?;
            let stayed = re.same.take().is_none();
            map[id.index()] = Some(new);
            shared &= stayed && new == id && re.graph.len() == id.index() + 1;
        } else {
            shared = false;
        }
    }
    for o in graph.outputs() {
        re.graph
            .add_output(&o.name, map[o.node.index()].expect("outputs are live"));
    }
    re.graph.adopt_guards(graph, &map);
    re.graph.settle();
    Ok(re.graph)
}

/// As [`rebuild`], for a pass that keeps all nodes but those that `concerns` holds of: where there are none, and nothing is left out either, the
/// graph is what it was.
///
/// # Errors
/// As [`rebuild`].
pub fn rebuild_of(graph: &Graph, concerns: &dyn Fn(&Node) -> bool, f: &mut Rewrite<'_>) -> Result<Graph, GraphError> {
    // As it has them from the pass before, so that types and names are not found out again.
    let is_settled = graph.is_derived() && graph.guards().is_empty();
    let stays = || {
        let live = live(graph);
        let mut nodes = graph.nodes();
        nodes.all(|(id, n)| (live[id.index()] || matches!(n.kind, NodeKind::Input { .. })) && !concerns(n))
    };
    match is_settled && stays() {
        true => Ok(graph.clone()),
        false => rebuild(graph, f),
    }
}

/// By node: whether an output needs it.
fn live(graph: &Graph) -> Vec<bool> {
    let mut live = vec![false; graph.len()];
    graph.outputs().iter().for_each(|o| live[o.node.index()] = true);
    let binders = graph.binders();
    for i in (0..graph.len()).rev() {
        if live[i] {
            graph.visit_needs(NodeId(i as u32), &binders, &mut |o| live[o.index()] = true);
        }
    }
    live
}

/// The graph with other bodies in its loops: `f` is shown each body once and returns the new one. `None` if there are no
/// loops.
///
/// # Errors
/// What `f` refuses; what the builder refuses, through `wrap`: a bug in the pass.
pub fn bodies<E>(
    graph: &Graph,
    wrap: impl Fn(GraphError) -> E,
    f: &mut dyn FnMut(&Graph) -> Result<Graph, E>,
) -> Result<Option<Graph>, E> {
    // Few, and in the order of the graph.
    let mut made: Vec<(Body, Body)> = Vec::new();
    for (_, node) in graph.nodes() {
        if let NodeKind::Loop(l) = &node.kind
            && !made.iter().any(|(old, _)| *old == l.body)
        {
            made.push((l.body.clone(), Body(Arc::new(f(&l.body.0)?))));
        }
    }
    if made.is_empty() {
        return Ok(None);
    }
    let new = rebuild(graph, &mut |re, _, node, operands| match &node.kind {
        NodeKind::Loop(l) => {
            let new = made.iter().find(|(old, _)| *old == l.body);
            let l = Loop {
                body: new.map_or_else(|| l.body.clone(), |(_, new)| new.clone()),
                ..(**l).clone()
            };
            re.add(NodeKind::Loop(Arc::new(l)), operands)
        }
        _ => re.keep(node, operands),
    });
    new.map(Some).map_err(wrap)
}

/// True for the constant shapes whose extents are all 1.
pub fn all_ones(shape: &[IndexExpr]) -> bool {
    shape.iter().all(|d| d.is(1))
}

#[cfg(test)]
mod tests {
    use tlc_ir::graph::verify::verify;
    use tlc_ir::text::{no_data, parse_module};
    use tlc_ir::{DType, ScalarOp};

    use super::*;

    fn parsed() -> Graph {
        let text = "graph @g(%x: f32[4], %y: f32[4]) {
  %0 = neg %x : f32[4]
  %1 = abs %x : f32[4]
  %2 = add %0, %y : f32[4]
  %3 = add %1, %y : f32[4]
  %4 = exp %y : f32[4]
  %5 = mul %2, %3 : f32[4]
  return %5
}";
        let module = parse_module(text, &mut no_data).expect("a graph");
        module.graphs.into_iter().next().expect("one graph")
    }

    /// The first rebuild leaves out what is dead and names values; the next has nothing to do.
    #[test]
    fn a_rebuild_that_changes_nothing_shares_all_nodes() {
        let first = dce::run(&parsed()).expect("it types");
        let second = dce::run(&first).expect("it types");
        assert_eq!(first.to_string(), second.to_string());
        assert_eq!(first.len(), second.len());
        assert!(
            first
                .nodes()
                .all(|(id, node)| std::ptr::eq(&node.kind, &second.node(id).kind))
        );
        assert_eq!(first.inputs(), second.inputs());
    }

    /// What is before a change is shared, and so is what nodes behind it are; these merge with what they have become equal to, shared nodes included.
    #[test]
    fn nodes_behind_a_change_are_typed_and_merge() {
        let before = dce::run(&parsed()).expect("it types");
        let after = rebuild(&before, &mut |re, _, node, operands| match &node.kind {
            NodeKind::Map(ScalarOp::Abs) => re.add(NodeKind::Map(ScalarOp::Neg), operands),
            _ => re.keep(node, operands),
        });
        let after = after.expect("it types");
        assert!(verify(&after).is_empty());
        let expected = "  %0 = neg %x : f32[4]
  %1 = add %0, %y : f32[4]
  %2 = mul %1, %1 : f32[4]
  return %2";
        assert!(after.to_string().contains(expected), "{after}");
        let shared = |old: u32, new: u32| std::ptr::eq(&before.node(NodeId(old)).kind, &after.node(NodeId(new)).kind);
        assert!(shared(0, 0) && shared(1, 1) && shared(2, 2) && !shared(3, 3));
        assert!(shared(4, 3) && shared(6, 4));
    }

    /// A node that something else takes the place of, at its number and of another type.
    #[test]
    fn what_follows_another_node_of_the_same_number_is_typed_anew() {
        let text = "graph @g(%x: f32[4]) {
  %0 = convert %x : f64[4]
  %1 = neg %0 : f64[4]
  return %1
}";
        let module = parse_module(text, &mut no_data).expect("a graph");
        let before = dce::run(&module.graphs[0]).expect("it types");
        let after = rebuild(&before, &mut |re, _, node, operands| match &node.kind {
            NodeKind::Convert(_) => re.add(NodeKind::Convert(DType::F16), operands),
            _ => re.keep(node, operands),
        });
        let after = after.expect("it types");
        assert!(verify(&after).is_empty());
        assert_eq!(after.ty(after.outputs()[0].node).dtype, DType::F16);
    }
}
