//! What was evaluated already: the value of a node at an index, under a mask.
//!
//! A value is asked for at each level of loops in turn, and most are found at none: the key is hashed once for all of them, and copied only
//! where a value is kept.

use std::hash::{Hash, Hasher};

use rustc_hash::{FxHashMap, FxHasher};
use smallvec::SmallVec;
use tlc_ir::NodeId;
use tlc_ir::index::{IndexExpr, IndexNode};
use tlc_ir::kernel::ValueId;

use crate::access::Index;

/// A node at an index, under a mask.
#[derive(Clone, Copy)]
pub(super) struct Place<'i> {
    node: NodeId,
    index: &'i [IndexExpr],
    mask: Option<ValueId>,
    hash: u64,
}

impl<'i> Place<'i> {
    pub(super) fn new(node: NodeId, index: &'i [IndexExpr], mask: Option<ValueId>) -> Place<'i> {
        let mut hasher = FxHasher::default();
        (node, mask).hash(&mut hasher);
        index.iter().for_each(|e| outline(e).hash(&mut hasher));
        Place {
            node,
            index,
            mask,
            hash: hasher.finish(),
        }
    }
}

/// What equal expressions have in common, without a look at what they are made of.
fn outline(e: &IndexExpr) -> (u8, u64) {
    let Some(node) = e.as_node() else {
        return (0, e.as_const().unwrap_or(0) as u64);
    };
    match node {
        IndexNode::Sym(s) => (1, u64::from(s.0)),
        IndexNode::Var(v) => (2, u64::from(v.0)),
        IndexNode::Sum { constant, size, .. } => (3, (*constant as u64) ^ u64::from(*size) << 32),
        IndexNode::Product(factors) => (4, factors.len() as u64),
        IndexNode::FloorDiv(..) => (5, 0),
        IndexNode::Mod(..) => (6, 0),
        IndexNode::Min(..) => (7, 0),
        IndexNode::Max(..) => (8, 0),
    }
}

struct Known {
    node: NodeId,
    index: Index,
    mask: Option<ValueId>,
    value: ValueId,
    /// The one before of the same hash.
    before: Option<u32>,
}

/// The values of one level of loops.
#[derive(Default)]
pub(super) struct Memo {
    /// By hash: the last one.
    last: FxHashMap<u64, u32>,
    all: Vec<Known>,
}

impl Memo {
    pub(super) fn get(&self, place: Place<'_>) -> Option<ValueId> {
        let mut at = self.last.get(&place.hash).copied();
        while let Some(number) = at {
            let known = &self.all[number as usize];
            if known.node == place.node && known.mask == place.mask && known.index[..] == *place.index {
                return Some(known.value);
            }
            at = known.before;
        }
        None
    }

    /// Keeps a value, in place of one that was there.
    pub(super) fn insert(&mut self, (node, index, mask): (NodeId, Index, Option<ValueId>), value: ValueId) {
        self.keep(Place::new(node, &index, mask), value);
    }

    /// As [`Memo::insert`].
    pub(super) fn keep(&mut self, place: Place<'_>, value: ValueId) {
        let before = self.last.insert(place.hash, self.all.len() as u32);
        self.all.push(Known {
            node: place.node,
            index: SmallVec::from(place.index),
            mask: place.mask,
            value,
            before,
        });
    }
}
