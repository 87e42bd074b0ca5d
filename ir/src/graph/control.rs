//! Nodes of several results: loops over a body graph, and functions that the runtime calls. Regions are such nodes as well:
//! [`super::region`].
//!
//! Invariants:
//! - Such a node has no value of its own ([`unit()`] is its type); [`NodeKind::Project`] picks one
//!   of its results, and nothing else uses it.
//! - A body is a closed graph: it sees nothing of the graph around it but its inputs and the values of its symbols, which
//!   are index expressions over the symbols around it.
//! - The inputs of a body are, in this order: the iteration's number (`i64[]`, from 0), the carried values, one element of
//!   each sliced operand, the captures. Its outputs: the condition (`bool[]`, if there is one), the carried values, one
//!   element of each stacked result.
//! - The operands of a loop are, in this order: the iteration count (`i64[]`, if `counted`), the first condition (`bool[]`,
//!   if `conditional`), the first carried values, the sliced operands, the captures. Its results: the last carried values,
//!   the stacked results.
//!
//! A loop runs its body at most `trip` times (if given), at most as often as the count operand says (nothing if that is
//! negative), and only as long as the condition holds: the first one decides whether the first iteration runs, each
//! iteration's result whether another follows. Carried values keep their type. What no iteration wrote of a stacked result
//! is zero.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use smallvec::SmallVec;

use super::region::{outside, type_outside};
use super::{Graph, NodeId, NodeKind, Symbol, TensorType};
use crate::dtype::DType;
use crate::index::{IndexExpr, IndexNode, SymId};

/// Loops and regions nest at most this deep.
pub const MAX_LOOP_DEPTH: usize = 16;

/// The type of a node that has several results instead of one: no element.
pub fn unit() -> TensorType {
    TensorType::new(DType::Bool, [0i64])
}

/// A loop's body, shared, compared by identity.
#[derive(Clone, Debug)]
pub struct Body(pub Arc<Graph>);

impl PartialEq for Body {
    fn eq(&self, other: &Body) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
impl Eq for Body {}
impl Hash for Body {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (Arc::as_ptr(&self.0) as usize).hash(state);
    }
}

/// How the iterations walk along an axis.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Along {
    /// The axis.
    pub axis: u8,
    /// From its end to its start.
    pub reverse: bool,
}

impl Along {
    /// The position of an iteration on an axis of that extent.
    pub fn position(self, iteration: usize, extent: usize) -> usize {
        match self.reverse {
            true => extent - 1 - iteration,
            false => iteration,
        }
    }
}

/// A body that runs again and again; see the module.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Loop {
    /// What an iteration computes.
    pub body: Body,
    /// The values of the body's symbols.
    pub symbols: Vec<IndexExpr>,
    /// The most iterations.
    pub trip: Option<IndexExpr>,
    /// Whether an operand says how many iterations there are.
    pub counted: bool,
    /// Whether a condition ends the loop.
    pub conditional: bool,
    /// Number of carried values.
    pub carried: usize,
    /// How the sliced operands are walked along.
    pub slices: SmallVec<[Along; 2]>,
    /// How the stacked results are.
    pub stacks: SmallVec<[Along; 2]>,
}

/// Ranges of operands, body inputs, body outputs and results by what they are.
impl Loop {
    /// Operands before the carried ones: the count and the condition.
    pub fn leading(&self) -> usize {
        usize::from(self.counted) + usize::from(self.conditional)
    }

    /// The operand that is the first condition.
    pub fn condition_operand(&self) -> Option<usize> {
        self.conditional.then_some(usize::from(self.counted))
    }

    /// The body's output that carried value 0 is.
    pub fn first_carried_output(&self) -> usize {
        usize::from(self.conditional)
    }

    /// Number of results.
    pub fn results(&self) -> usize {
        self.carried + self.stacks.len()
    }

    /// Whether there is one iteration, known when it is compiled. Nothing is computed less often by taking it out of such a loop: the
    /// loop keeps what is inside apart from what is around it. That is what a derivative computes again with, and not what the
    /// forward pass has computed: no pass puts the body in the loop's place or takes out of it what inputs reach.
    pub fn is_fence(&self) -> bool {
        self.trip.as_ref().is_some_and(|trip| trip.is(1))
    }

    /// An expression over the body's symbols, over those around the loop.
    pub fn outer(&self, e: &IndexExpr) -> IndexExpr {
        outside(&self.symbols, e)
    }

    /// A type of the body, over the symbols around the loop.
    pub fn outer_type(&self, ty: &TensorType) -> TensorType {
        type_outside(&self.symbols, ty)
    }
}

/// What a library does better than a loop nest.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum HostFunction {
    /// Operand: x. Results: the first `count` elements of x along `axis` once it is sorted, and their positions (i64).
    /// Equal elements keep their order; NaN is larger than every number, and -0 equals 0.
    Sort {
        /// Along which axis.
        axis: u8,
        /// How many elements are kept of each row.
        count: IndexExpr,
        /// The largest first.
        descending: bool,
    },
    /// Operand: x. Results: the places of the elements that differ from zero, in C order, as `i64[rank of x, count]`; the
    /// count.
    NonZero {
        /// How many there are.
        count: SymId,
    },
    /// Operand: x. Its distinct elements or, with an axis, its distinct slices along it, which compare element by element in
    /// C order. Results: those; where each stood first (`i64[count]`); which of them each element or slice is (`i64`, one
    /// for each); how often each occurs (`i64[count]`); the count. NaN equals NaN and is larger than every number; -0
    /// equals 0, and the first of equal ones is taken.
    Unique {
        /// Along which axis; all elements in C order if none.
        axis: Option<u8>,
        /// Ascending; else in the order of their first occurrence.
        sorted: bool,
        /// How many there are.
        count: SymId,
    },
    /// Non-maximum suppression. Operands: boxes `f32[batch, n, 4]`, scores `f32[batch, classes, n]`, the most boxes of a
    /// class (`i64[]`), an overlap and a score (`f32[]`). In each class of each batch, boxes whose score exceeds the given
    /// one are taken from the highest score down (of equal ones the first), unless the intersection over union with one
    /// taken before exceeds the overlap. Results: `i64[count, 3]` of batch, class and box in that order; the count.
    Suppress {
        /// Boxes are centers, widths and heights; else two opposite corners, y before x.
        center: bool,
        /// How many boxes are taken.
        count: SymId,
    },
}

impl Graph {
    /// By symbol: the call that binds it. Empty if data decides none.
    pub fn binders(&self) -> Vec<Option<NodeId>> {
        if self.symbols().iter().all(|s| s.upper.is_none()) {
            return Vec::new();
        }
        let mut all = vec![None; self.symbols().len()];
        for (id, node) in self.nodes() {
            if let NodeKind::Call(function) = &node.kind
                && let Some(symbol) = function.binds()
                && let Some(slot) = all.get_mut(symbol.0 as usize)
            {
                *slot = Some(id);
            }
        }
        all
    }

    /// Calls `f` on what must be computed before a node: its operands, and the calls that bind sizes which it mentions;
    /// `binders` are those of [`Graph::binders`].
    pub fn visit_needs(&self, id: NodeId, binders: &[Option<NodeId>], f: &mut dyn FnMut(NodeId)) {
        let node = self.node(id);
        node.operands.iter().for_each(|&o| f(o));
        if binders.is_empty() {
            return;
        }
        let mut see = |e: &IndexExpr| {
            e.visit_atoms(&mut |a| {
                if let IndexNode::Sym(s) = a
                    && let Some(Some(binder)) = binders.get(s.0 as usize)
                    && *binder != id
                {
                    f(*binder);
                }
            });
        };
        node.ty.shape.iter().for_each(&mut see);
        node.results.iter().flat_map(|t| &t.shape).for_each(&mut see);
        node.kind.visit_sizes(&mut see);
    }
}

impl Graph {
    /// By symbol: whether a node mentions it, in its type or in what it does.
    pub fn used_symbols(&self) -> Vec<bool> {
        let mut used = vec![false; self.symbols().len()];
        let mut see = |e: &IndexExpr| {
            e.visit_atoms(&mut |a| {
                if let IndexNode::Sym(s) = a
                    && let Some(used) = used.get_mut(s.0 as usize)
                {
                    *used = true;
                }
            });
        };
        for (_, node) in self.nodes() {
            node.ty.shape.iter().for_each(&mut see);
            node.results.iter().flat_map(|t| &t.shape).for_each(&mut see);
            node.kind.visit_sizes(&mut see);
        }
        used
    }
}

/// Whether an expression mentions one of the symbols.
pub fn mentions(e: &IndexExpr, symbols: &[bool]) -> bool {
    let mut found = false;
    if symbols.contains(&true) {
        e.visit_atoms(&mut |a| {
            if let IndexNode::Sym(s) = a {
                found |= symbols.get(s.0 as usize).is_some_and(|&m| m);
            }
        });
    }
    found
}

/// True if data decides a symbol that the expression mentions.
pub fn mentions_data(symbols: &[Symbol], e: &IndexExpr) -> bool {
    let mut found = false;
    if symbols.iter().any(|s| s.upper.is_some()) {
        e.visit_atoms(&mut |a| {
            if let IndexNode::Sym(s) = a {
                found |= symbols.get(s.0 as usize).is_some_and(|s| s.upper.is_some());
            }
        });
    }
    found
}

/// The most rows that are sorted side by side.
const ROWS_SORTED_AT_ONCE: i64 = 8;

impl HostFunction {
    /// The spelling in text forms.
    pub const fn name(&self) -> &'static str {
        match self {
            HostFunction::Sort { .. } => "sort",
            HostFunction::NonZero { .. } => "nonzero",
            HostFunction::Unique { .. } => "unique",
            HostFunction::Suppress { .. } => "suppress",
        }
    }

    /// Number of operands.
    pub const fn arity(&self) -> usize {
        match self {
            HostFunction::Sort { .. } | HostFunction::NonZero { .. } | HostFunction::Unique { .. } => 1,
            HostFunction::Suppress { .. } => 5,
        }
    }

    /// The symbol that it binds. Its last result, `i64[]`, is the symbol's value.
    pub const fn binds(&self) -> Option<SymId> {
        match self {
            HostFunction::Sort { .. } => None,
            HostFunction::NonZero { count }
            | HostFunction::Unique { count, .. }
            | HostFunction::Suppress { count, .. } => Some(*count),
        }
    }

    /// Number of results.
    pub const fn results(&self) -> usize {
        match self {
            HostFunction::Sort { .. } | HostFunction::NonZero { .. } | HostFunction::Suppress { .. } => 2,
            HostFunction::Unique { .. } => 5,
        }
    }

    /// Elements (u64) of the memory that it works in, for operands of those extents.
    pub fn workspace(&self, shapes: &[&[IndexExpr]]) -> IndexExpr {
        match self {
            // A key and a position for each element of a row, and some rows at once.
            HostFunction::Sort { axis, .. } => {
                let Some((extent, shape)) = shapes.first().and_then(|s| Some((s.get(*axis as usize)?, s))) else {
                    return IndexExpr::ZERO;
                };
                let others = shape.iter().enumerate().filter(|(a, _)| *a != *axis as usize);
                // At least one: of no rows there is nothing to sort, and a row's room is asked for all the same.
                let most = IndexExpr::Const(ROWS_SORTED_AT_ONCE);
                let rows = others.fold(IndexExpr::ONE, |rows, (_, d)| {
                    IndexExpr::min(&(rows * d.clone()), &most)
                });
                extent.clone() * IndexExpr::Const(2) * IndexExpr::max(&rows, &IndexExpr::ONE)
            }
            _ => IndexExpr::ZERO,
        }
    }
}
