//! What is computed once per executable: the values that no input reaches, and which of them are kept.

use tlc_ir::graph::View;
use tlc_ir::{NodeId, NodeKind};

use super::Clusterer;
use super::roots::{CHEAP_COST, cost, own_root};
use crate::access::is_source;
use crate::direct::direct_image;

/// A constant that is kept for as long as the executable lives may be this many times larger than the data it comes from,
const KEPT_GROWTH: u64 = 2;
/// or this many bytes large.
const KEPT_BYTES: u64 = 1 << 20;
/// Bytes of all that is laid out for library products and larger than that: dequantizing it in every call would take longer than the products.
const LAID_OUT_BYTES: u64 = 512 << 20;

/// What a constant value is made of.
#[derive(Clone, Copy, Default)]
struct Constant {
    /// Bytes of the data below.
    data_bytes: u64,
    /// Cost of one element, through everything below that is not kept.
    cost: u32,
    /// Whether elements change places on the way.
    moved: bool,
    /// Whether it may be kept.
    small: bool,
}

impl Clusterer<'_> {
    /// Finds the values that no input reaches, and makes roots of those that pay to be kept: where something that is computed
    /// at every call reads them.
    pub(super) fn mark_constants(&mut self) {
        let mut known = vec![Constant::default(); self.graph.len()];
        let mut laid_out = LAID_OUT_BYTES;
        for (id, node) in self.graph.nodes() {
            let i = id.index();
            // Sizes that depend on symbols differ from call to call, those that say where a slice begins too; outputs are written at each.
            let input = matches!(node.kind, NodeKind::Input { .. } | NodeKind::Project(_)) || node.kind.is_tuple();
            let per_call = input || self.is_output[i] || node.kind.has_open_sizes();
            let Some(bytes) = self.bytes(id).filter(|_| !per_call) else {
                continue;
            };
            // What shows the elements of a smaller value several times is read as that value, which is kept in its place.
            let bytes = self.bytes(self.shown(id)).unwrap_or(bytes);
            let mut c = Constant {
                data_bytes: if is_source(&node.kind) { bytes } else { 0 },
                cost: cost(&node.kind),
                moved: matches!(node.kind, NodeKind::View(View::Permute(_))),
                ..Constant::default()
            };
            for o in &node.operands {
                let below = known[o.index()];
                c.data_bytes = c.data_bytes.saturating_add(below.data_bytes);
                if !own_root(self.kind(*o)) {
                    c.cost = c.cost.saturating_add(below.cost);
                    c.moved |= below.moved;
                }
            }
            c.small = bytes <= KEPT_BYTES.max(c.data_bytes.saturating_mul(KEPT_GROWTH));
            if node.kind == NodeKind::Copy {
                // It is stored as it is, whatever it was made of.
                c.data_bytes = c.data_bytes.min(bytes);
            }
            if !c.small && node.kind == NodeKind::Copy && node.operands.iter().all(|o| self.once[o.index()]) {
                c.small = bytes <= laid_out;
                laid_out -= if c.small { bytes } else { 0 };
            }
            known[i] = c;
            // What several read is kept, unless it is too large, or an index so cheap that each computes it; integers that are unpacked or packed are
            // several's on the way to one value. A number that is read in many places is in no memory.
            let number = self.graph.splat_value(id).is_some();
            let of_one = || {
                let mut users = self.users[i].iter();
                let in_parts = users.all(|u| matches!(self.kind(*u), NodeKind::View(View::Slice { .. })));
                self.graph.ty(id).dtype.is_int() && (in_parts || self.meets_again(id))
            };
            let cheap = c.cost <= CHEAP_COST && self.graph.ty(id).dtype.is_int();
            let kept = c.small || cheap || self.users[i].len() <= 1 || number || of_one();
            self.once[i] = kept && node.operands.iter().all(|o| self.once[o.index()]);
        }
        for (id, _) in self.graph.nodes() {
            let (i, c) = (id.index(), known[id.index()]);
            // Weights are laid out in blocks already, which a direct convolution or a product with a vector reads through views.
            let read = |u: &NodeId| {
                let step = self.products.contains_key(u) || self.weight_gradients.contains_key(u);
                step || direct_image(self.graph, *u).is_some()
            };
            let per_call = |u: &NodeId| !self.once[u.index()] && !read(u);
            // Counters and generated numbers are worth keeping only if they are costly.
            let worth = match c.data_bytes {
                0 => c.cost > CHEAP_COST && !self.is_counted(id),
                _ => c.cost > 0 || c.moved,
            };
            let root = self.once[i] && c.small && worth && !self.copied(id) && self.users[i].iter().any(per_call);
            let kept = self.shown(id);
            self.is_root[kept.index()] |= root && !is_source(self.kind(kept));
        }
    }

    /// The value whose elements a value shows, some of them several times, or the value itself.
    fn shown(&self, id: NodeId) -> NodeId {
        let mut shown = id;
        while let NodeKind::View(View::Expand(_) | View::Reshape(_)) = self.kind(shown)
            && self.expands(shown)
        {
            shown = self.graph.node(shown).operands[0];
        }
        shown
    }

    /// Whether a value shows the elements of a copy in another order: what a pass has laid out is read where it lies.
    fn copied(&self, id: NodeId) -> bool {
        let mut at = id;
        while let NodeKind::View(view) = self.kind(at)
            && view.fill().is_none()
        {
            at = self.graph.node(at).operands[0];
        }
        at != id && *self.kind(at) == NodeKind::Copy
    }

    /// Whether a value is the elements of another, some of them several times, without any other change.
    fn expands(&self, id: NodeId) -> bool {
        match self.kind(id) {
            NodeKind::View(View::Expand(_)) => true,
            NodeKind::View(View::Reshape(_)) => !self.regroups(id) && self.expands(self.graph.node(id).operands[0]),
            _ => false,
        }
    }
}
