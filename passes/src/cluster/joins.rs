//! Concatenations that no step computes: their parts are stored where the whole has them.
//!
//! A concatenation is a tree of selects over padded parts (`record/src/ops/join.rs`). Fused into what reads it it costs nothing. Where it has
//! to be in memory, its parts would be stored by the kernels that compute them and then be copied; where nothing but axes of one element come
//! before the joined one, a part is a range of the whole, and is computed there.
//!
//! Invariant: what is joined reads, in order, all elements of its parts and nothing else.

use smallvec::SmallVec;
use tlc_ir::graph::View;
use tlc_ir::index::IndexExpr;
use tlc_ir::kernel::verify::nonnegative;
use tlc_ir::target::Target;
use tlc_ir::{NodeId, NodeKind, ScalarOp};

use super::roots::{held_value, own_root};
use super::{Clusterer, FxHashMap};
use crate::access::is_source;
use crate::partition::Part;

/// Elements of a whole, if they are known, from which on a step for each part pays: smaller ones are copied sooner, and often computed where they
/// are chosen.
const FEWEST_ELEMENTS: i64 = 512;
/// Parts of a concatenation that are looked at.
const MOST_PARTS: usize = 256;
/// Parts of a concatenation from which on it pays to have a step for each, whatever they are computed from: a kernel of the concatenation would ask of
/// each element which of them it is in.
const MANY_PARTS: usize = 16;
/// Elements of such a concatenation, below which it takes no longer to ask than to begin so many steps.
const ELEMENTS_OF_MANY: i64 = 8192;
/// Elements of a part from which on it takes longer to ask of each which part it is of than to begin a step for them.
const LARGE_PART: i64 = 8192;
/// Values between a part and the reduction or contraction that it is computed from.
const MOST_BEHIND: usize = 64;
/// Views between a concatenation and what reads its elements.
const MOST_VIEWS: usize = 8;

/// Has parts that make up a concatenation which is joined already be that one: what each layer of a dense block reads begins with all
/// that the layer before reads.
fn nest(
    parts: &mut Vec<Part>,
    leaves: &[NodeId],
    beginning: &FxHashMap<NodeId, Vec<(NodeId, Vec<NodeId>)>>,
    free: &dyn Fn(NodeId) -> bool,
) {
    let mut nested = Vec::with_capacity(parts.len());
    let mut at = 0;
    while at < parts.len() {
        let wholes = beginning.get(&leaves[at]).into_iter().flatten();
        let found = wholes.filter(|(id, all)| leaves[at..].starts_with(all) && free(*id));
        let longest = found.max_by_key(|(_, all)| all.len());
        let mut part = parts[at].clone();
        if let Some((id, _)) = longest {
            part.value = *id;
        }
        nested.push(part);
        at += longest.map_or(1, |(_, all)| all.len());
    }
    *parts = nested;
}

impl Clusterer<'_> {
    /// Finds the concatenations whose parts are stored where they have them, and has parts and wholes be roots. Those that a step of its own reads
    /// are roots already.
    pub(super) fn mark_joins(&mut self) {
        let mut placed: FxHashMap<NodeId, NodeId> = FxHashMap::default();
        // By the first value that they have: concatenations that are joined, with all that they have.
        let mut beginning: FxHashMap<NodeId, Vec<(NodeId, Vec<NodeId>)>> = FxHashMap::default();
        for (id, node) in self.graph.nodes() {
            if !matches!(node.kind, NodeKind::Map(ScalarOp::Select)) || self.once[id.index()] {
                continue;
            }
            let is_stored = self.is_stored(id);
            if !is_stored && !self.is_table(id) {
                continue;
            }
            let Target::Cpu(_) = self.placement.target(id) else {
                continue;
            };
            let elements = self.graph.ty(id).elements().as_const();
            if elements.is_some_and(|n| n < FEWEST_ELEMENTS) {
                continue;
            }
            // Where a part begins must be known before it is computed: a size that data decides is known too late.
            if self.graph.ty(id).shape.iter().any(|d| self.graph.is_data_bound(d)) {
                continue;
            }
            let Some(mut parts) = self.parts(id) else { continue };
            self.flatten(&mut parts);
            let leaves: Vec<NodeId> = parts.iter().map(|p| p.value).collect();
            let free = |whole: NodeId| !placed.contains_key(&whole);
            nest(&mut parts, &leaves, &beginning, &free);
            let device = self.placement.device(id);
            let in_place = |p: &Part| {
                let i = p.value.index();
                !is_source(self.kind(p.value))
                    && !self.once[i]
                    && !self.is_output[i]
                    && self.placement.device(p.value) == device
                    && !placed.contains_key(&p.value)
            };
            let mut own: SmallVec<[NodeId; 8]> = SmallVec::new();
            // Those that a kernel of the concatenation alone would have read or computed, which take a step each: how many, and how many
            // elements more they have than the others. Unknown extents count nothing. What a large part saves is worth a step more.
            let (mut steps, mut saved, mut more) = (0, 1, 0i64);
            for part in &parts {
                let elements = self.graph.ty(part.value).elements().as_const().unwrap_or(0);
                let placed = in_place(part) && !own.contains(&part.value);
                if placed {
                    own.push(part.value);
                }
                let stored = self.is_root[part.value.index()] || self.is_summed_up(part.value);
                if placed && (stored || elements >= LARGE_PART) {
                    more -= elements;
                    saved += usize::from(!stored);
                } else {
                    steps += 1;
                    more += elements;
                }
            }
            let few = parts.len() < MANY_PARTS || self.typical(&self.graph.ty(id).elements()) < ELEMENTS_OF_MANY;
            if few && !is_stored {
                continue;
            }
            if own.is_empty() || few && (steps > saved || more > 0) {
                continue;
            }
            for part in &mut parts {
                part.copied = placed.contains_key(&part.value) || !own.contains(&part.value);
                if !part.copied {
                    placed.insert(part.value, id);
                }
                self.is_root[part.value.index()] |= !is_source(self.kind(part.value));
            }
            self.is_root[id.index()] = true;
            beginning.entry(leaves[0]).or_default().push((id, leaves));
            self.joins.insert(id, parts);
        }
    }

    /// Has parts that are concatenations themselves, and not in memory for what else reads them, be their parts.
    fn flatten(&self, parts: &mut Vec<Part>) {
        let mut at = 0;
        while at < parts.len() && parts.len() <= MOST_PARTS {
            let value = parts[at].value;
            let inner = match self.kind(value) {
                NodeKind::Map(ScalarOp::Select) if !self.is_root[value.index()] => self.parts(value),
                _ => None,
            };
            let Some(inner) = inner else {
                at += 1;
                continue;
            };
            let begin = parts[at].at.clone();
            let moved = inner.into_iter().map(|p| Part {
                at: begin.clone() + p.at,
                ..p
            });
            parts.splice(at..=at, moved);
        }
    }

    /// Whether a concatenation is in memory whether or not its parts are, and is not only computed on, element by element.
    fn is_stored(&self, id: NodeId) -> bool {
        self.is_root[id.index()]
            || self.is_output[id.index()]
            || self.users[id.index()]
                .iter()
                .any(|u| self.sums_up_views(*u, MOST_VIEWS))
    }

    /// Whether elements of a value are gathered.
    fn is_table(&self, id: NodeId) -> bool {
        let gathers = |user: &NodeId| {
            let node = self.graph.node(*user);
            matches!(node.kind, NodeKind::Gather { .. }) && node.operands.first() == Some(&id)
        };
        self.users[id.index()].iter().any(gathers)
    }

    /// Whether a value is a reduction, a contraction or another step of its own, or is seen by one through views of its elements where they lie.
    fn sums_up_views(&self, user: NodeId, left: usize) -> bool {
        match self.kind(user) {
            NodeKind::Einsum { .. } => true,
            // What is pooled goes from one element to the second after it: asking of each which part it is of takes longer.
            NodeKind::View(View::Window { size, stride, .. }) => {
                *stride > 1
                    || size.as_const().is_none_or(|n| n > *stride)
                    || (left > 0
                        && self.users[user.index()]
                            .iter()
                            .any(|u| self.sums_up_views(*u, left - 1)))
            }
            NodeKind::View(View::Reshape(_) | View::Permute(_)) => {
                left > 0
                    && self.users[user.index()]
                        .iter()
                        .any(|u| self.sums_up_views(*u, left - 1))
            }
            _ => false,
        }
    }

    /// Whether a value is computed, element by element, of what a reduction, a contraction or another step of its own leaves.
    fn is_summed_up(&self, value: NodeId) -> bool {
        let mut work: SmallVec<[NodeId; 8]> = SmallVec::from_slice(&[value]);
        let mut left = MOST_BEHIND;
        while let Some(at) = work.pop() {
            left -= 1;
            if own_root(self.kind(at)) {
                return true;
            }
            if left == 0 {
                return false;
            }
            match self.kind(at) {
                NodeKind::Map(_) | NodeKind::Convert(_) | NodeKind::View(View::Reshape(_)) => {
                    let operands = self.graph.node(at).operands.iter();
                    work.extend(operands.copied().filter(|o| !self.once[o.index()]).take(left));
                }
                _ => {}
            }
        }
        false
    }

    /// Whether a value is a concatenation, whether or not its parts are ranges of it.
    pub(super) fn is_concatenation(&self, id: NodeId) -> bool {
        let node = self.graph.node(id);
        matches!(node.kind, NodeKind::Map(ScalarOp::Select)) && self.padded_truth(node.operands[0]).is_some()
    }

    /// The parts of a concatenation, in the order of their elements; none if it is something else, or its parts are no ranges of it.
    fn parts(&self, id: NodeId) -> Option<Vec<Part>> {
        let shape = &self.graph.ty(id).shape;
        let node = self.graph.node(id);
        let mask = self.padded_truth(node.operands[0])?;
        let axis = mask.0;
        if shape[..axis].iter().any(|d| !d.is(1)) {
            return None;
        }
        let inner = IndexExpr::product(&shape[axis + 1..]);
        let mut found = Vec::new();
        self.collect(id, axis, (IndexExpr::ZERO, shape[axis].clone()), &mut found)?;
        // Whether parts lie apart is proven of every plan: what nobody can tell of sizes is copied.
        let mut lengths = found.windows(2).map(|two| two[1].1.clone() - two[0].1.clone());
        if !lengths.all(|n| nonnegative(&(n * inner.clone()), self.graph)) {
            return None;
        }
        let parts = found.into_iter().map(|(value, at)| Part {
            value,
            at: at * inner.clone(),
            copied: false,
        });
        Some(parts.collect())
    }

    /// Adds what an operand of a concatenation has from one position of the joined axis to another.
    fn collect(
        &self,
        id: NodeId,
        axis: usize,
        (from, to): (IndexExpr, IndexExpr),
        found: &mut Vec<(NodeId, IndexExpr)>,
    ) -> Option<()> {
        let node = self.graph.node(id);
        match &node.kind {
            NodeKind::Map(ScalarOp::Select) if found.len() < MOST_PARTS => {
                let (along, middle) = self.padded_truth(node.operands[0])?;
                if along != axis {
                    return None;
                }
                self.collect(node.operands[1], axis, (from, middle.clone()), found)?;
                self.collect(node.operands[2], axis, (middle, to), found)
            }
            NodeKind::View(View::Pad { lo, hi, interior, .. }) => {
                let part = node.operands[0];
                let extents = &self.graph.ty(part).shape;
                let beside = (0..lo.len())
                    .filter(|a| *a != axis)
                    .any(|a| !lo[a].is(0) || !hi[a].is(0));
                let fits = lo[axis] == from && lo[axis].clone() + extents[axis].clone() == to;
                if beside || !fits || interior.iter().any(|n| *n != 0) {
                    return None;
                }
                found.push((held_value(self.graph, part), from));
                Some(())
            }
            _ => None,
        }
    }

    /// Of a mask that is true before a position of an axis: the axis and the position.
    pub(super) fn padded_truth(&self, mask: NodeId) -> Option<(usize, IndexExpr)> {
        let mut at = mask;
        while let NodeKind::View(View::Expand(_)) = self.kind(at) {
            at = self.graph.node(at).operands[0];
        }
        let node = self.graph.node(at);
        let NodeKind::View(View::Pad {
            lo,
            hi,
            interior,
            value,
        }) = &node.kind
        else {
            return None;
        };
        let inside = self.graph.splat_value(node.operands[0])?;
        let rank = self.graph.ty(mask).rank();
        let mut padded = (0..lo.len()).filter(|a| !hi[*a].is(0));
        let (Some(axis), None) = (padded.next(), padded.next()) else {
            return None;
        };
        let plain = rank == lo.len() && lo.iter().all(|l| l.is(0)) && interior.iter().all(|n| *n == 0);
        let truth = inside.as_f64() != 0.0 && value.as_f64() == 0.0;
        (plain && truth).then(|| (axis, self.graph.ty(node.operands[0]).shape[axis].clone()))
    }
}
