//! The graph language: what is computed.
//!
//! Invariants:
//! - Nodes live in an append-only arena. A node's operands have smaller ids than the node, so cycles cannot exist and id
//!   order is a topological order; iteration is deterministic.
//! - Nodes are hash-consed: one kind over the same operands is one node. Inputs are distinguished by their position, random
//!   bits by their stream, large constants by the identity of their data.
//! - A [`NodeKind`] and its operand types determine the result type ([`infer`]); inference runs when a node is added, so an
//!   ill-typed graph cannot be built.
//! - Values have no layout. Views are nodes like any other; nothing is strided behind the reader's back.
//! - Extents that must agree and are not known to differ are assumed equal, which records a [`Guard`]; the runtime checks
//!   guards when it binds symbols.

mod combine;
pub mod control;
pub mod infer;
mod interned;
mod loops;
mod nodes;
mod origin;
pub mod region;
mod sizes;
mod specialize;
pub mod verify;
mod view;

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet, FxHasher};
use smallvec::SmallVec;

use crate::dtype::{DType, Scalar};
use crate::index::{Bounds, IndexExpr, IndexNode, Interval, SymId, VarId};
use crate::scalar::ScalarOp;
use crate::tensor::HostTensor;
use interned::Interned;
use nodes::Nodes;

pub use combine::{Monoid, ScatterOp, Semiring};
pub use control::{Along, Body, HostFunction, Loop};
pub use origin::{Derivation, Derived, NamedValue, Origin, ValueName};
pub use region::{Region, Rule};
pub use sizes::SizeRole;
pub use view::{MAX_INTERIOR, View, ViewIndex, ViewKind};
pub(crate) use view::{Movement, c_strides};

/// A node of a [`Graph`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct NodeId(pub u32);

impl NodeId {
    /// Position in the arena.
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.0)
    }
}

/// Extents of a tensor, outermost first.
pub type Shape = SmallVec<[IndexExpr; 4]>;

/// Operand lists.
pub type Operands = SmallVec<[NodeId; 3]>;

/// Axis numbers.
pub type Axes = SmallVec<[u8; 4]>;

/// Labels of one einsum term, one per axis.
pub type Labels = SmallVec<[u16; 4]>;

/// The most axes a tensor may have.
pub const MAX_RANK: usize = 64;

/// Element type and extents.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct TensorType {
    /// Element type.
    pub dtype: DType,
    /// Extents, outermost first.
    pub shape: Shape,
}

impl TensorType {
    /// A type from its parts.
    pub fn new(dtype: DType, shape: impl IntoIterator<Item = impl Into<IndexExpr>>) -> TensorType {
        TensorType {
            dtype,
            shape: shape.into_iter().map(Into::into).collect(),
        }
    }

    /// Number of axes.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Number of elements.
    pub fn elements(&self) -> IndexExpr {
        IndexExpr::product(&self.shape)
    }

    /// The extents, if all are constant.
    pub fn const_shape(&self) -> Option<Vec<usize>> {
        self.shape
            .iter()
            .map(|d| d.as_const().and_then(|d| usize::try_from(d).ok()))
            .collect()
    }
}

/// A named size with its declared range.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Symbol {
    /// Name, unique in its graph.
    pub name: String,
    /// Smallest value, at least 0.
    pub lo: i64,
    /// Largest value.
    pub hi: i64,
    /// For a symbol that data decides, which a call binds when it runs: an expression over the symbols before it that the
    /// value never exceeds. None for a symbol that the inputs' shapes, or the caller, decide.
    pub upper: Option<IndexExpr>,
}

/// The largest value a symbol has when nothing else is declared.
pub const DEFAULT_SYMBOL_MAX: i64 = 1 << 31;

/// A constant's data, compared and hashed by the identity of its buffer.
#[derive(Clone, Debug)]
pub struct ConstData(pub HostTensor);

impl PartialEq for ConstData {
    fn eq(&self, other: &ConstData) -> bool {
        self.0.same_data(&other.0) && self.0.shape() == other.0.shape() && self.0.dtype() == other.0.dtype()
    }
}
impl Eq for ConstData {}
impl Hash for ConstData {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.data_address().hash(state);
    }
}

/// What a node computes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum NodeKind {
    /// A run-time operand: its position among the graph's inputs, name and type.
    Input {
        /// Position among the inputs.
        index: u32,
        /// Name, unique among the inputs.
        name: String,
        /// Declared type.
        ty: TensorType,
    },
    /// A rank-0 constant.
    Const(Scalar),
    /// A constant with data.
    Data(ConstData),
    /// `result[i0, …] = i_axis`, wrapped or rounded to the dtype.
    Iota {
        /// Result type: integers or floats.
        ty: TensorType,
        /// The counted axis.
        axis: u8,
    },
    /// Random bits, u32: the first word of Threefry-2x32-20 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
    /// SC 2011) under the run-time key (operand: u64, rank 0; low word first) and the counter
    /// (flat C index, stream). At most 2^32 elements.
    Random {
        /// Result extents.
        shape: Shape,
        /// Distinguishes one recording from another.
        stream: u32,
    },
    /// An elementwise operation; operands have one shape.
    Map(ScalarOp),
    /// Conversion to another dtype.
    Convert(DType),
    /// The same stored bits as another dtype of equal width; to a type of fewer value bits, the low ones. A bool counts as
    /// the byte 0 or 1, and what becomes a bool is whether any bit is set. The bits of a NaN are open.
    Bitcast(DType),
    /// A contraction over labels: `result[out] = Σ over the other labels of Π operands[labels]`.
    ///
    /// Sums and products may be regrouped by the laws of the semiring, the distributive law included: the terms of a sum in
    /// any order, the factors of a product in any order, and part of a sum may be taken before the product with what does
    /// not depend on its labels, as NumPy does with `optimize` and opt_einsum always. Add-mul (also where integers wrap),
    /// or-and, and max-add and min-add on floats are regrouped so; max-mul, and max-add and min-add on integers, are not, for
    /// the distributive law does not hold of negative factors and of sums that wrap. Floats then are rounded at other
    /// places, and besides:
    ///
    /// - A partial result may overflow, or underflow, where the whole would not, and the other way round.
    /// - Add-mul: where an infinity takes part, the result is an infinity or NaN in any grouping, but which of the two may
    ///   depend on it: `Σ a_i b` of `a = [1, 0]` and `b = inf` is `inf + 0 * inf` or `1 * inf`.
    /// - Max-add is over numbers and −inf (min-add: +inf), which its laws hold of exactly. Where an operand holds the other
    ///   infinity as well, a result that is NaN term by term (`inf + −inf`) may be that other infinity:
    ///   `max(a_i + b_j)` of `a = [inf, 1]` and `b = [−inf, 1]`. A result that is finite term by term stays as it is.
    /// - A NaN in an operand is never lost to this.
    /// - Add-mul in f32 of two operands that are dequantized bytes: each is `x * s`, seen through views that fill in +0 at most,
    ///   where `x` is f32 converted from bytes in i32, or from their differences from a zero point in the range of their type,
    ///   and `s` is constant, of normal numbers between 2^-60 and 2^60 in magnitude, and the same along every summed label. If no
    ///   sum of products of such differences leaves the range of i32, the result may be `Σ x y` without any rounding, converted
    ///   to f32, times the product of both scales: three roundings. Those of `x * s` and of `y * t`, which the graph has below
    ///   the einsum, do not happen then: the result is nearer to what is meant, and it is not the sum of the rounded products.
    /// - Where operands are of bf16 and the accumulator is f32, operands, products and sums that are no normal numbers (below 2^-126) may be
    ///   taken as zero, which matrix instructions of processors do. Those of f32 and f64 never are.
    /// - A sum over an axis whose extent is the constant 0 is the identity of the sum. If the extent is a symbol that turns out
    ///   to be 0, an infinity or NaN in another operand may make NaN of it.
    Einsum {
        /// Labels of each operand, one per axis, canonical: numbered by first appearance.
        inputs: SmallVec<[Labels; 2]>,
        /// Labels of the result; each appears in an operand, none twice.
        output: Labels,
        /// What sum and product mean.
        semiring: Semiring,
        /// Operands convert to it before they multiply; the sum is carried in it.
        accumulator: DType,
        /// The result's dtype.
        dtype: DType,
    },
    /// Reduction over axes, which disappear. f16 and bf16 sums are carried in f32.
    Reduce {
        /// What is reduced.
        monoid: Monoid,
        /// Axes, ascending; exactly one for argmax and argmin.
        axes: Axes,
    },
    /// A change of coordinates.
    View(View),
    /// `result[b…, r…] = x[i]` where `i` takes `index_k[b…]` on axis `axes[k]` and the rest `r` on the other axes in
    /// order. Operands: x, then one index tensor per axis, all of one shape and an integer dtype. An index out of range
    /// reads zero.
    Gather {
        /// Indexed axes of x, distinct; `index_k` belongs to `axes[k]`.
        axes: Axes,
    },
    /// The inverse of gather: `result = base`, then `result[i] ⊕= updates[b…, r…]`. Operands: base, updates, then one index
    /// tensor per axis.
    Scatter {
        /// Indexed axes of base.
        axes: Axes,
        /// How updates combine.
        op: ScatterOp,
    },
    /// Prefix combination along an axis (not argmax or argmin).
    Scan {
        /// What is combined.
        monoid: Monoid,
        /// Along which axis.
        axis: u8,
        /// Element `i` combines the elements before `i` only; the first is the identity.
        exclusive: bool,
        /// From the end to the start.
        reverse: bool,
    },
    /// The operand again, in a buffer of its own.
    Copy,
    /// A body that runs again and again. Several results; see [`control`].
    Loop(Arc<Loop>),
    /// A function of the runtime. Several results; see [`control`].
    Call(HostFunction),
    /// A body with a derivative of its own. Several results; see [`region`].
    Region(Arc<Region>),
    /// That result of a loop, call or region.
    Project(u32),
}

impl NodeKind {
    /// True for nodes of several results, which only projections use.
    pub fn is_tuple(&self) -> bool {
        matches!(self, NodeKind::Loop(_) | NodeKind::Call(_) | NodeKind::Region(_))
    }

    /// The mnemonic in text forms and messages.
    pub fn name(&self) -> &'static str {
        match self {
            NodeKind::Input { .. } => "input",
            NodeKind::Const(_) | NodeKind::Data(_) => "const",
            NodeKind::Iota { .. } => "iota",
            NodeKind::Random { .. } => "random",
            NodeKind::Map(op) => op.name(),
            NodeKind::Convert(_) => "convert",
            NodeKind::Bitcast(_) => "bitcast",
            NodeKind::Einsum { .. } => "einsum",
            NodeKind::Reduce { .. } => "reduce",
            NodeKind::View(view) => view.kind().name(),
            NodeKind::Gather { .. } => "gather",
            NodeKind::Scatter { .. } => "scatter",
            NodeKind::Scan { .. } => "scan",
            NodeKind::Copy => "copy",
            NodeKind::Loop(_) => "loop",
            NodeKind::Call(_) => "call",
            NodeKind::Region(_) => "region",
            NodeKind::Project(_) => "project",
        }
    }
}

/// One node: a [`Definition`] over operands. What it is reads as fields of the node.
#[derive(Debug)]
pub struct Node {
    /// Operands, all with smaller ids.
    pub operands: Operands,
    /// Where it was recorded.
    pub origin: Origin,
    definition: Arc<Definition>,
}

/// What a node is, whatever the numbers of its operands and wherever it comes from: graphs that are made of each other share it.
#[derive(Clone, Debug)]
pub struct Definition {
    /// What is computed.
    pub kind: NodeKind,
    /// Result type, as [`infer`] says; [`control::unit`] for nodes of several results.
    pub ty: TensorType,
    /// Result types of a loop, call or region; empty for other nodes.
    pub results: Box<[TensorType]>,
    /// Of the kind.
    hash: u64,
}

impl Clone for Node {
    fn clone(&self) -> Node {
        Node {
            operands: Operands::from_slice(&self.operands),
            origin: self.origin.clone(),
            definition: Arc::clone(&self.definition),
        }
    }
}

impl Node {
    /// A node of one result.
    pub fn new(kind: NodeKind, operands: Operands, ty: TensorType, origin: Origin) -> Node {
        let hash = hash_of_kind(&kind);
        Node::of(kind, hash, operands, ty, origin)
    }

    fn of(kind: NodeKind, hash: u64, operands: Operands, ty: TensorType, origin: Origin) -> Node {
        let definition = Definition {
            kind,
            ty,
            results: Box::default(),
            hash,
        };
        Node {
            operands,
            origin,
            definition: Arc::new(definition),
        }
    }

    /// What nodes of equal kinds have in common, and few others.
    #[inline]
    pub fn hash_of_kind(&self) -> u64 {
        self.definition.hash
    }
}

impl Deref for Node {
    type Target = Definition;

    #[inline]
    fn deref(&self) -> &Definition {
        &self.definition
    }
}

/// What a [`Guard`] demands of the symbols' values.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Condition {
    /// Both sides are the same number.
    Equal(IndexExpr, IndexExpr),
    /// The expression is at least 0.
    NonNegative(IndexExpr),
}

impl Condition {
    /// Whether it holds; `None` where an expression has no value.
    pub fn holds(&self, symbols: &[i64]) -> Option<bool> {
        Some(match self {
            Condition::Equal(a, b) => a.eval_symbols(symbols)? == b.eval_symbols(symbols)?,
            Condition::NonNegative(e) => e.eval_symbols(symbols)? >= 0,
        })
    }

    /// The condition with other expressions for the symbols; `None` where one has none.
    pub fn over(&self, symbol: &dyn Fn(SymId) -> Option<IndexExpr>) -> Option<Condition> {
        let mut known = true;
        let mut put = |e: &IndexExpr| {
            e.replace(&mut |n| match n {
                IndexNode::Sym(s) => {
                    let instead = symbol(*s);
                    known &= instead.is_some();
                    instead
                }
                _ => None,
            })
        };
        let condition = match self {
            Condition::Equal(a, b) => Condition::Equal(put(a), put(b)),
            Condition::NonNegative(e) => Condition::NonNegative(put(e)),
        };
        known.then_some(condition)
    }
}

/// An assumption about symbols, checked when they are bound.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Guard {
    /// What must hold.
    pub condition: Condition,
    /// The node that needs it.
    pub node: NodeId,
    /// The operation that needs it, by its name and the place where it was recorded, for messages: `reshape %3 at 4:3`. Empty if
    /// nobody knows.
    pub needed_by: Arc<str>,
}

/// A named result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Output {
    /// Name, unique among the outputs.
    pub name: String,
    /// The value.
    pub node: NodeId,
}

/// Why a node could not be added: which operation, where, on what, what is wrong and what would fit.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{op}{}: {problem}{}", operands_text(.operands), expected_text(.expected))]
pub struct GraphError {
    /// The operation.
    pub op: String,
    /// Operand types, printed.
    pub operands: Vec<String>,
    /// What is wrong.
    pub problem: String,
    /// What would fit, if that can be said.
    pub expected: Option<String>,
    /// Where it was recorded.
    pub origin: Origin,
}

fn operands_text(operands: &[String]) -> String {
    if operands.is_empty() {
        String::new()
    } else {
        format!(" of {}", operands.join(" and "))
    }
}

fn expected_text(expected: &Option<String>) -> String {
    expected.as_ref().map_or(String::new(), |e| format!("; expected {e}"))
}

/// A graph under construction or complete.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    /// Name, as in `graph @name`.
    pub name: String,
    symbols: Vec<Symbol>,
    nodes: Nodes,
    inputs: Vec<NodeId>,
    outputs: Vec<Output>,
    guards: Vec<Guard>,
    derived: bool,
    // False where no node is a region or has one in its body: most graphs are asked that before each pass.
    may_have_regions: bool,
    // Of the first nodes; the others come to it when a node is added that could be equal to one of them.
    interned: Interned,
    // Looked up, never iterated.
    symbol_ids: FxHashMap<String, SymId>,
    // Of the first inputs; the others come to it when one is declared whose name could be taken.
    input_names: FxHashSet<String>,
    named_inputs: usize,
}

impl Graph {
    /// An empty graph.
    pub fn new(name: impl Into<String>) -> Graph {
        Graph {
            name: name.into(),
            ..Graph::default()
        }
    }

    /// Makes room for that many more nodes.
    pub fn reserve(&mut self, nodes: usize) {
        self.nodes.own().reserve(nodes);
    }

    /// Symbols, indexed by [`SymId`].
    pub fn symbols(&self) -> &[Symbol] {
        &self.symbols
    }

    /// The symbol of that name.
    pub fn find_symbol(&self, name: &str) -> Option<SymId> {
        self.symbol_ids.get(name).copied()
    }

    /// Declares a symbol, or narrows the range of one that exists to the intersection. An empty intersection leaves
    /// `lo > hi`, which the verifier reports.
    pub fn add_symbol(&mut self, name: &str, lo: i64, hi: i64) -> SymId {
        if let Some(id) = self.find_symbol(name) {
            let s = &mut self.symbols[id.0 as usize];
            s.lo = s.lo.max(lo);
            s.hi = s.hi.min(hi);
            return id;
        }
        self.symbols.push(Symbol {
            name: name.to_string(),
            lo,
            hi,
            upper: None,
        });
        let id = SymId(self.symbols.len() as u32 - 1);
        self.symbol_ids.insert(name.to_string(), id);
        id
    }

    /// Declares a symbol that a call binds, of at most `upper`. A name that is taken gets a number.
    pub fn add_data_symbol(&mut self, name: &str, upper: IndexExpr) -> SymId {
        let mut free = name.to_string();
        for n in 1.. {
            if self.find_symbol(&free).is_none() {
                break;
            }
            free = format!("{name}{n}");
        }
        let hi = upper.interval(self).hi.max(0);
        let id = self.add_symbol(&free, 0, hi);
        self.symbols[id.0 as usize].upper = Some(upper);
        id
    }

    /// Declares the symbols of another graph, in their order.
    pub fn adopt_symbols(&mut self, from: &Graph) {
        for s in from.symbols() {
            let id = self.add_symbol(&s.name, s.lo, s.hi);
            self.symbols[id.0 as usize].upper = s.upper.clone();
        }
    }

    /// True if data decides a symbol that the expression mentions.
    pub fn is_data_bound(&self, e: &IndexExpr) -> bool {
        control::mentions_data(&self.symbols, e)
    }

    /// All nodes in topological order.
    #[inline]
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = (NodeId, &Node)> {
        self.nodes.iter().enumerate().map(|(i, n)| (NodeId(i as u32), n))
    }

    /// Number of nodes.
    #[inline]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// True if there is no node.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// A node.
    ///
    /// # Panics
    /// If the id is another graph's and out of range.
    #[inline]
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }

    /// A node's result type.
    #[inline]
    pub fn ty(&self, id: NodeId) -> &TensorType {
        &self.nodes[id.index()].ty
    }

    /// Inputs in order of declaration.
    pub fn inputs(&self) -> &[NodeId] {
        &self.inputs
    }

    /// Outputs in order.
    pub fn outputs(&self) -> &[Output] {
        &self.outputs
    }

    /// Assumptions made so far.
    pub fn guards(&self) -> &[Guard] {
        &self.guards
    }

    /// Names a result. An empty name becomes `output_<position>`.
    pub fn add_output(&mut self, name: &str, node: NodeId) {
        let name = if name.is_empty() {
            format!("output_{}", self.outputs.len())
        } else {
            name.to_string()
        };
        self.outputs.push(Output { name, node });
    }

    /// Points the outputs, in order, at other nodes.
    ///
    /// # Panics
    /// If there are not as many nodes as outputs.
    pub fn set_output_nodes(&mut self, nodes: &[NodeId]) {
        assert_eq!(nodes.len(), self.outputs.len(), "one node per output");
        self.outputs.iter_mut().zip(nodes).for_each(|(o, &n)| o.node = n);
    }

    /// Takes over the guards of the graph that this one was rebuilt from, in their order: what was promised of symbols stays promised,
    /// even where the node that needed it is gone, and of what a call breaks it is told what was recorded first. `map` gives the new node of
    /// each old one.
    pub fn adopt_guards(&mut self, from: &Graph, map: &[Option<NodeId>]) {
        let own = std::mem::take(&mut self.guards);
        for g in &from.guards {
            let node = map.get(g.node.index()).copied().flatten().unwrap_or(NodeId(0));
            self.assume(g.condition.clone(), node, &g.needed_by);
        }
        for g in own {
            self.assume(g.condition, g.node, &g.needed_by);
        }
    }

    /// Takes on a guard, unless its condition is one of another.
    fn assume(&mut self, condition: Condition, node: NodeId, needed_by: &Arc<str>) {
        if self.guards.iter().all(|own| own.condition != condition) {
            self.guards.push(Guard {
                condition,
                node,
                needed_by: Arc::clone(needed_by),
            });
        }
    }

    /// Declares an input.
    ///
    /// # Errors
    /// If the type is not one a tensor can have, or the name is taken.
    pub fn add_input(&mut self, name: &str, ty: TensorType, origin: Origin) -> Result<NodeId, GraphError> {
        while let Some(input) = self.inputs.get(self.named_inputs) {
            if let NodeKind::Input { name, .. } = &self.nodes[input.index()].kind {
                self.input_names.insert(name.clone());
            }
            self.named_inputs += 1;
        }
        if self.input_names.contains(name) {
            return Err(GraphError {
                op: "input".into(),
                operands: vec![],
                problem: format!("the name `{name}` is taken by another input"),
                expected: None,
                origin,
            });
        }
        let kind = NodeKind::Input {
            index: self.inputs.len() as u32,
            name: name.to_string(),
            ty,
        };
        let id = self.add(kind, &[], origin)?;
        self.inputs.push(id);
        Ok(id)
    }

    /// Declares the next input of a graph that this one is made of, which declares all of its inputs in their order.
    pub fn adopt_input(&mut self, from: &Graph, id: NodeId) -> NodeId {
        debug_assert_eq!(from.inputs.get(self.inputs.len()), Some(&id));
        let new = self.next_id();
        self.inputs.push(new);
        self.nodes.own().push(from.nodes[id.index()].clone());
        new
    }

    /// Adds a node, or finds the equal one that exists.
    ///
    /// # Errors
    /// [`GraphError`] if the operands do not fit the kind.
    pub fn add(&mut self, kind: NodeKind, operands: &[NodeId], origin: Origin) -> Result<NodeId, GraphError> {
        let of_kind = hash_of_kind(&kind);
        let hash = hash(of_kind, operands);
        if let Some(id) = self.equal(hash, &kind, operands) {
            return Ok(id);
        }
        let mut conditions = Vec::new();
        let ty = infer::infer(self, &kind, operands, &mut conditions).map_err(|(problem, expected)| GraphError {
            op: kind.name().to_string(),
            operands: operands
                .iter()
                .filter(|o| o.index() < self.len())
                .map(|&o| self.type_text(self.ty(o)))
                .collect(),
            problem,
            expected,
            origin: origin.clone(),
        })?;
        let results = match kind.is_tuple() {
            true => infer::results(self, &kind, operands, &mut Vec::new()).unwrap_or_default(),
            false => Vec::new(),
        };
        let id = self.next_id();
        if !conditions.is_empty() {
            let needed_by: Arc<str> = self.placed(&kind, id, &origin).into();
            for condition in conditions {
                self.assume(condition, id, &needed_by);
            }
        }
        let mut node = Node::of(kind, of_kind, Operands::from_slice(operands), ty, origin);
        if !results.is_empty() {
            Arc::make_mut(&mut node.definition).results = results.into();
        }
        Ok(self.push_listed(hash, node))
    }

    /// Adds a node of one result whose type is known, or finds the equal one that exists. For passes: a node of this kind over operands of these
    /// types was typed in the graph that they rebuild, and nothing was assumed there.
    pub fn add_typed(&mut self, kind: NodeKind, operands: &[NodeId], ty: TensorType, origin: Origin) -> NodeId {
        let of_kind = hash_of_kind(&kind);
        let hash = hash(of_kind, operands);
        if let Some(id) = self.equal(hash, &kind, operands) {
            return id;
        }
        self.push_listed(
            hash,
            Node::of(kind, of_kind, Operands::from_slice(operands), ty, origin),
        )
    }

    /// Adds a node that is defined as one of another graph and comes from where that does, or finds the equal one that exists. For passes, as
    /// [`Graph::add_typed`].
    pub fn add_defined(&mut self, as_is: &Node, operands: &[NodeId]) -> NodeId {
        self.add_defined_from(as_is, operands, || as_is.origin.clone())
    }

    /// As [`Graph::add_defined`], from elsewhere.
    pub fn add_defined_from(&mut self, as_is: &Node, operands: &[NodeId], origin: impl FnOnce() -> Origin) -> NodeId {
        let hash = hash(as_is.hash, operands);
        if let Some(id) = self.equal(hash, &as_is.kind, operands) {
            return id;
        }
        let node = Node {
            operands: Operands::from_slice(operands),
            origin: origin(),
            definition: Arc::clone(&as_is.definition),
        };
        self.push_listed(hash, node)
    }

    /// Shares the next node of a graph of which this one has all nodes before it, and no others. That graph has no two equal nodes.
    pub fn share(&mut self, from: &Graph, id: NodeId) {
        debug_assert_eq!(id, self.next_id());
        // The inputs that it has are those of the other graph.
        if from.inputs.get(self.inputs.len()) == Some(&id) {
            self.inputs.push(id);
        }
        self.may_have_regions |= from.may_have_regions;
        self.nodes.share(&from.nodes);
    }

    /// Says that the graph is complete: graphs that are made of it share its nodes.
    pub fn settle(&mut self) {
        self.nodes.settle();
    }

    /// The graph as it is now. Both share its nodes until more are added to one of them, and what finds equal nodes and names of inputs is made anew
    /// for a copy that goes on.
    pub fn snapshot(&mut self) -> Graph {
        self.settle();
        Graph {
            name: self.name.clone(),
            symbols: self.symbols.clone(),
            nodes: self.nodes.clone(),
            inputs: self.inputs.clone(),
            outputs: self.outputs.clone(),
            guards: self.guards.clone(),
            derived: self.derived,
            may_have_regions: self.may_have_regions,
            interned: Interned::default(),
            symbol_ids: self.symbol_ids.clone(),
            input_names: FxHashSet::default(),
            named_inputs: 0,
        }
    }

    fn next_id(&self) -> NodeId {
        NodeId(self.nodes.len() as u32)
    }

    /// The node that is equal to one which is about to be added.
    fn equal(&mut self, hash_of_new: u64, kind: &NodeKind, operands: &[NodeId]) -> Option<NodeId> {
        if self.interned.len() < self.nodes.len() {
            self.interned.reserve(self.nodes.capacity());
            for n in &self.nodes[self.interned.len()..] {
                self.interned.push(hash(n.hash, &n.operands), last(&n.operands));
            }
        }
        self.interned.find(hash_of_new, last(operands), |id| {
            let n = &self.nodes[id.index()];
            n.operands[..] == *operands && (std::ptr::eq(&n.kind, kind) || n.kind == *kind)
        })
    }

    /// Appends a node that no other is equal to, all of which were asked.
    fn push_listed(&mut self, hash: u64, node: Node) -> NodeId {
        let id = self.next_id();
        self.may_have_regions |= region::has_regions(&node.kind);
        self.interned.push(hash, last(&node.operands));
        self.nodes.own().push(node);
        id
    }

    /// The value that every element of a node has, if it is a constant through views other than `pad`.
    pub fn splat_value(&self, mut node: NodeId) -> Option<Scalar> {
        loop {
            let n = self.node(node);
            match &n.kind {
                NodeKind::Const(value) => return Some(*value),
                NodeKind::View(view) if view.fill().is_none() => node = n.operands[0],
                _ => return None,
            }
        }
    }

    /// True if passes made this graph of another, whose text it is that names values.
    pub fn is_derived(&self) -> bool {
        self.derived
    }

    /// Says that this graph is made of another, and that its nodes' origins name values of that one.
    pub fn set_derived(&mut self) {
        self.derived = true;
    }

    /// Appends a node without inference, whether or not there is an equal one: for tests of the verifier and readers of foreign data, which
    /// verify afterwards.
    pub fn push_unchecked(&mut self, node: Node) -> NodeId {
        let id = self.next_id();
        if let NodeKind::Input { .. } = &node.kind {
            self.inputs.push(id);
        }
        self.may_have_regions |= region::has_regions(&node.kind);
        self.nodes.own().push(node);
        id
    }

    /// A symbol's name, or `s<n>` for one that the graph lacks.
    pub fn symbol_name(&self, sym: SymId) -> String {
        self.symbols
            .get(sym.0 as usize)
            .map_or_else(|| format!("s{}", sym.0), |s| s.name.clone())
    }

    /// An extent, printed with symbol names.
    pub fn dim_text(&self, dim: &IndexExpr) -> String {
        dim.display(&|s| self.symbol_name(s)).to_string()
    }

    /// Extents, printed: `[b, 4]`.
    pub fn shape_text(&self, shape: &[IndexExpr]) -> String {
        format!(
            "[{}]",
            shape.iter().map(|d| self.dim_text(d)).collect::<Vec<_>>().join(", ")
        )
    }

    /// A type, printed: `f32[b, 4]`.
    pub fn type_text(&self, ty: &TensorType) -> String {
        format!("{}{}", ty.dtype, self.shape_text(&ty.shape))
    }

    /// Result types, printed: `(f32[4], i64[])` for a loop, call or region, `f32[4]` for other nodes.
    pub fn results_text(&self, node: &Node) -> String {
        if !node.kind.is_tuple() {
            return self.type_text(&node.ty);
        }
        let all: Vec<String> = node.results.iter().map(|t| self.type_text(t)).collect();
        format!("({})", all.join(", "))
    }

    /// How often each node is used: by operands of other nodes and as an output.
    pub fn use_counts(&self) -> Vec<u32> {
        let mut counts = vec![0u32; self.nodes.len()];
        for n in self.nodes.iter() {
            n.operands.iter().for_each(|o| counts[o.index()] += 1);
        }
        self.outputs.iter().for_each(|o| counts[o.node.index()] += 1);
        counts
    }
}

/// What nodes of equal kinds have in common.
fn hash_of_kind(kind: &NodeKind) -> u64 {
    let mut hasher = FxHasher::default();
    kind.hash(&mut hasher);
    hasher.finish()
}

/// What equal nodes have in common.
fn hash(of_kind: u64, operands: &[NodeId]) -> u64 {
    let mut hasher = FxHasher::default();
    of_kind.hash(&mut hasher);
    operands.hash(&mut hasher);
    hasher.finish()
}

/// Where equal nodes are looked for first: near the last of their operands, if they have any.
fn last(operands: &[NodeId]) -> Option<NodeId> {
    operands.iter().copied().max()
}

impl Bounds for Graph {
    fn symbol(&self, sym: SymId) -> Interval {
        self.symbols
            .get(sym.0 as usize)
            .map_or(Interval::new(0, i64::MAX), |s| Interval::new(s.lo, s.hi))
    }
    fn extent(&self, _: VarId) -> Option<IndexExpr> {
        None
    }
}
