//! The sizes that nodes carry: one walk that reads them and one that replaces them.
//!
//! Invariants: both walks meet the same sizes in the same order, and both name every node kind and every view, so that a new
//! one does not compile until it says what its sizes are. A loop's body is closed and has sizes of its own: the walks meet
//! the values of its symbols, not what is inside.

use std::sync::Arc;

use super::{HostFunction, NodeKind};
use crate::index::{IndexExpr, IndexNode};

/// What a size says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SizeRole {
    /// How many there are: elements along an axis or in a window, iterations, or the value of a body's symbol.
    Extent,
    /// How far away: padding, and where a slice starts.
    Distance,
}

use SizeRole::Extent;

impl NodeKind {
    /// Calls `f` on every size that the kind carries.
    pub fn visit_sizes(&self, f: &mut dyn FnMut(&IndexExpr)) {
        match self {
            NodeKind::Input { ty, .. } | NodeKind::Iota { ty, .. } => ty.shape.iter().for_each(f),
            NodeKind::Random { shape, .. } => shape.iter().for_each(f),
            NodeKind::View(view) => view.visit_sizes(f),
            NodeKind::Loop(l) => l.symbols.iter().chain(&l.trip).for_each(f),
            NodeKind::Region(r) => r.symbols.iter().for_each(f),
            NodeKind::Call(function) => function.visit_sizes(f),
            NodeKind::Const(_)
            | NodeKind::Data(_)
            | NodeKind::Map(_)
            | NodeKind::Convert(_)
            | NodeKind::Bitcast(_)
            | NodeKind::Einsum { .. }
            | NodeKind::Reduce { .. }
            | NodeKind::Gather { .. }
            | NodeKind::Scatter { .. }
            | NodeKind::Scan { .. }
            | NodeKind::Copy
            | NodeKind::Project(_) => {}
        }
    }

    /// Whether a size that the kind carries is not a number: what it makes of the same operands may differ from call to call, even if its shape does not,
    /// as of a slice that begins somewhere else.
    pub fn has_open_sizes(&self) -> bool {
        let mut open = false;
        self.visit_sizes(&mut |size| open |= size.as_const().is_none());
        open
    }

    /// The kind with other sizes: `f` returns the new one of each.
    pub fn map_sizes(&self, f: &mut dyn FnMut(SizeRole, &IndexExpr) -> IndexExpr) -> NodeKind {
        let mut kind = self.clone();
        let mut each = |role: SizeRole, sizes: &mut [IndexExpr]| sizes.iter_mut().for_each(|e| *e = f(role, e));
        match &mut kind {
            NodeKind::Input { ty, .. } | NodeKind::Iota { ty, .. } => each(Extent, &mut ty.shape),
            NodeKind::Random { shape, .. } => each(Extent, shape),
            NodeKind::View(view) => view.map_sizes(f),
            NodeKind::Loop(l) => {
                let l = Arc::make_mut(l);
                each(Extent, &mut l.symbols);
                each(Extent, l.trip.as_mut_slice());
            }
            NodeKind::Region(r) => each(Extent, &mut Arc::make_mut(r).symbols),
            NodeKind::Call(function) => function.map_sizes(f),
            NodeKind::Const(_)
            | NodeKind::Data(_)
            | NodeKind::Map(_)
            | NodeKind::Convert(_)
            | NodeKind::Bitcast(_)
            | NodeKind::Einsum { .. }
            | NodeKind::Reduce { .. }
            | NodeKind::Gather { .. }
            | NodeKind::Scatter { .. }
            | NodeKind::Scan { .. }
            | NodeKind::Copy
            | NodeKind::Project(_) => {}
        }
        kind
    }
}

impl HostFunction {
    /// Calls `f` on every size, the symbol that the call binds included.
    pub fn visit_sizes(&self, f: &mut dyn FnMut(&IndexExpr)) {
        match self {
            HostFunction::Sort { count, .. } => f(count),
            HostFunction::NonZero { count }
            | HostFunction::Unique { count, .. }
            | HostFunction::Suppress { count, .. } => f(&(*count).into()),
        }
    }

    fn map_sizes(&mut self, f: &mut dyn FnMut(SizeRole, &IndexExpr) -> IndexExpr) {
        match self {
            HostFunction::Sort { count, .. } => *count = f(Extent, count),
            HostFunction::NonZero { count }
            | HostFunction::Unique { count, .. }
            | HostFunction::Suppress { count, .. } => {
                // What the call binds is still a symbol, under another number.
                if let IndexExpr::Node(n) = f(Extent, &IndexExpr::from(*count))
                    && let IndexNode::Sym(s) = *n
                {
                    *count = s;
                }
            }
        }
    }
}
