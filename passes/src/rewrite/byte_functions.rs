//! Values that follow from one byte and from numbers: functions with no more than 256 values, whichever operations they take.
//!
//! Views that show the byte's elements elsewhere may stand anywhere between: a function of what is seen through them is what is seen through
//! them of the function.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use tlc_ir::graph::{GraphError, View};
use tlc_ir::{DType, Graph, NodeId, NodeKind, Scalar};

use super::Rebuilder;

/// Operations of a function that are looked at.
const MOST_NODES: usize = 256;

/// What a value follows from alone.
#[derive(Clone, PartialEq)]
pub(super) struct Source {
    /// A value of u8 or i8.
    pub byte: NodeId,
    /// The views that its elements are seen through, the lowest first.
    pub views: SmallVec<[NodeId; 2]>,
}

/// Whether a type has no more than 256 numbers.
pub(super) fn is_byte(dtype: DType) -> bool {
    matches!(dtype, DType::U8 | DType::I8)
}

/// Which values of a graph follow from a byte, by node: from the `nearest` one, or from one that follows from no other. Such a byte follows from itself.
pub(super) fn sources(graph: &Graph, nearest: bool) -> Vec<Option<Source>> {
    let is_byte = |id: NodeId| is_byte(graph.ty(id).dtype);
    let own = |byte: NodeId| Source {
        byte,
        views: SmallVec::new(),
    };
    let mut all: Vec<Option<Source>> = vec![None; graph.len()];
    for (id, node) in graph.nodes() {
        let of = match &node.kind {
            NodeKind::Map(_) | NodeKind::Convert(_) | NodeKind::Bitcast(_) => {
                let mut values = node.operands.iter().filter(|o| graph.splat_value(**o).is_none());
                let of = |o: &NodeId| match nearest && is_byte(*o) {
                    true => Some(own(*o)),
                    false => all[o.index()].clone(),
                };
                let first = values.next().and_then(of);
                first.filter(|s| values.all(|o| of(o).is_some_and(|t| same(graph, s, &t))))
            }
            NodeKind::View(view) if view.fill().is_none() && !matches!(view, View::Window { .. }) => {
                let below = node.operands[0];
                let mut below = match nearest && is_byte(below) {
                    true => None,
                    false => all[below.index()].clone(),
                };
                if let Some(s) = &mut below {
                    s.views.push(id);
                }
                below
            }
            _ => None,
        };
        all[id.index()] = of.or_else(|| is_byte(id).then(|| own(id)));
    }
    all
}

/// Whether two values have the same element of the same byte everywhere.
fn same(graph: &Graph, a: &Source, b: &Source) -> bool {
    let kinds = |s: &Source| {
        s.views
            .iter()
            .map(|v| &graph.node(*v).kind)
            .collect::<SmallVec<[_; 2]>>()
    };
    a == b || a.byte == b.byte && kinds(a) == kinds(b)
}

impl Source {
    /// What shows the byte's elements, in the graph being made, where `new` says what values have become.
    ///
    /// # Errors
    /// As [`Rebuilder::add`].
    pub fn shown(
        &self,
        re: &mut Rebuilder<'_>,
        graph: &Graph,
        new: &FxHashMap<NodeId, NodeId>,
    ) -> Result<NodeId, GraphError> {
        let input = || {
            let at = graph.inputs().iter().position(|&i| i == self.byte);
            at.map(|k| re.graph.inputs()[k])
        };
        let byte = new.get(&self.byte).copied().or_else(input);
        let byte = byte.expect("a byte comes before what follows from it");
        let mut views = self.views.iter().map(|v| graph.node(*v).kind.clone());
        views.try_fold(byte, |at, view| re.add(view, &[at]))
    }
}

/// What is computed from a byte to a value, that last, without numbers; `None` if it is too much to look at.
pub(super) fn operations(graph: &Graph, id: NodeId, byte: NodeId) -> Option<Vec<NodeId>> {
    let (mut seen, mut at) = (vec![id], 0);
    while at < seen.len() {
        if seen.len() > MOST_NODES {
            return None;
        }
        for &o in &graph.node(seen[at]).operands {
            if o != byte && graph.splat_value(o).is_none() && !seen.contains(&o) {
                seen.push(o);
            }
        }
        at += 1;
    }
    // Operands come before what is computed of them.
    seen.sort_unstable();
    Some(seen)
}

/// The value for one byte of [`operations`] that every machine rounds alike; `None` if others are among them.
pub(super) fn value_for(graph: &Graph, operations: &[NodeId], byte: NodeId, value: Scalar) -> Option<Scalar> {
    let mut values: SmallVec<[Scalar; 16]> = SmallVec::new();
    for &id in operations {
        let node = graph.node(id);
        let of = |o: &NodeId| match operations.binary_search(o) {
            _ if *o == byte => Some(value),
            Ok(at) => values.get(at).copied(),
            Err(_) => graph.splat_value(*o),
        };
        values.push(match &node.kind {
            NodeKind::View(_) => of(&node.operands[0])?,
            NodeKind::Convert(to) => of(&node.operands[0])?.convert(*to),
            NodeKind::Map(op) if op.ulps() == 0.0 => {
                let args: Option<SmallVec<[Scalar; 3]>> = node.operands.iter().map(of).collect();
                op.eval(&args?)
            }
            _ => return None,
        });
    }
    values.last().copied()
}
