//! Which values are roots, and which are computed once per executable.

use rustc_hash::FxHashMap;
use smallvec::{SmallVec, smallvec};
use tlc_ir::graph::View;
use tlc_ir::index::{IndexExpr, IndexNode};
use tlc_ir::scalar::Cost;
use tlc_ir::target::{BYTE_TABLE, Emitter, Gpu, HostProducts, LibraryGain, LibraryShare, Support, Target, Width};
use tlc_ir::{DType, Graph, NodeId, NodeKind, ScalarOp};

use super::{Clusterer, ConeSize, attention};
use crate::access::{Index, Variables, is_long, is_source};
use crate::contraction::{self, MatrixProduct};
use crate::direct::direct_image;
use crate::directive::MOST_SLIDING;
use crate::emitters::{Operation, choose, tiles};
use crate::legalize::{convert_statements, map_statements};
use crate::library_epilogue::{self, Behind};
use crate::reason::{FusionDecision, FusionReason, FusionStage};
use crate::weight_gradient::{WeightGradient, weight_gradient};

/// The most elements of a window that steps by two over a padded image and reads it in place.
const MOST_STEPPING: i64 = 25;
/// Nodes of an inlined cone beyond which its top becomes a root, which bounds recursion over cones.
const MAX_CONE: u32 = 192;
/// Legalized statements of all operands of a node beyond which large ones become roots: cones are indivisible, so that a
/// kernel can only be kept below [`super::MAX_KERNEL_STATEMENTS`] if they are much smaller.
const MAX_CONE_STATEMENTS: u32 = 3_000;
/// Reshapes that an element goes through on its way up a cone, beyond which its top becomes a root even where the index
/// expressions stay short.
const MAX_REGROUPED: u32 = 8;
/// Cheap recomputation: at most this cost over at most one loaded value.
pub(super) const CHEAP_COST: u32 = 4;

/// Cost of one element of a node, an addition being 1: what a value costs each time it is computed again.
pub(crate) fn cost(kind: &NodeKind) -> u32 {
    match kind {
        NodeKind::Map(op) => match op.cost() {
            Cost::Cheap | Cost::Fused => 1,
            Cost::Division => 4,
            Cost::Function => 40,
        },
        NodeKind::Convert(_) => 1,
        NodeKind::Random { .. } => 100,
        NodeKind::Gather { .. } => 2,
        _ => 0,
    }
}

/// Statements that a node adds to a kernel once it is legalized, without those that compute its operands. Loads do not count: most
/// are of an element that the kernel has already.
fn statements(graph: &Graph, id: NodeId) -> u32 {
    // Comparing an index with the ends of its range.
    const INSIDE: u32 = 5;
    let node = graph.node(id);
    let on = |k: usize| graph.ty(node.operands[k]).dtype;
    match &node.kind {
        NodeKind::Map(op) => map_statements(*op, on(node.operands.len() - 1)),
        NodeKind::Convert(to) => convert_statements(on(0), *to),
        NodeKind::Bitcast(_) => 4,
        // Twenty rounds of five operations, with constants and keys.
        NodeKind::Random { .. } => 160,
        NodeKind::Gather { axes } | NodeKind::Scatter { axes, .. } => {
            (2 * INSIDE).saturating_mul(axes.len() as u32 + 1)
        }
        NodeKind::View(View::Pad { interior, .. }) => {
            let apart = interior.iter().filter(|p| **p > 0).count();
            INSIDE * (node.ty.rank() + apart + 1) as u32
        }
        // A kernel has each constant once.
        NodeKind::View(_) | NodeKind::Const(_) => 0,
        NodeKind::Reduce { .. } | NodeKind::Scan { .. } => 24,
        NodeKind::Einsum {
            semiring, accumulator, ..
        } => {
            let each =
                |k: usize| convert_statements(on(k), *accumulator) + map_statements(semiring.product(), *accumulator);
            (0..node.operands.len()).fold(24, |n, k| n.saturating_add(each(k)))
        }
        _ => 1,
    }
}

/// Operations that make a value of bytes again.
const MOST_BEHIND_BYTES: usize = 4;

/// What is known of the part of a cone that is computed inline.
#[derive(Clone, Copy, Default)]
struct Cone {
    /// Nodes, which bound recursion.
    nodes: u32,
    /// Cost of one element.
    cost: u32,
    /// Statements after legalization.
    statements: u32,
    /// Values loaded.
    loads: u32,
    /// Whether part of it has no vector form, so that the loop it is computed in has none.
    scalar: bool,
    /// Reshapes on the longest way down that do more than drop or add axes of one element.
    regrouped: u32,
    /// Choices between parts of concatenations.
    parts: u32,
    /// Whether bytes are looked up.
    looks_up: bool,
}

/// Operations among which the uses of a value may meet again.
const MAX_MEETING: usize = 16;

/// Sliding windows that overlap read an element many times: what costs more is computed once.
const WINDOW_COST: u32 = 1;
/// Where windows slide, an element is met by a row of each of them alone.
const SLIDING_COST: u32 = 4;
/// Where windows are at least so wide, padding is written once: else each of their reads tests whether it is inside.
const WIDE_WINDOW: i64 = 5;
/// Where windows of at least so many elements slide along what is stored in columns, these are copied into rows: one by one they are read as often.
const LEAST_TURNED_WINDOW: i64 = 3;

/// The size of sliding windows that overlap, which show elements of their operand more than once.
fn overlap(kind: &NodeKind) -> Option<i64> {
    match kind {
        NodeKind::View(View::Window { size, stride, .. }) => {
            let size = size.as_const().unwrap_or(i64::MAX);
            (size > *stride).then_some(size)
        }
        _ => None,
    }
}

/// Operations behind a product that are counted.
const MOST_BEHIND: usize = 64;

/// Operations on a product's result that are looked through for it.
const MOST_FINISHING: usize = 16;

/// What one more kernel of a call takes, in seconds.
pub(super) const SECONDS_OF_A_KERNEL: f64 = 2e-6;

impl Clusterer<'_> {
    /// The matrix form of an einsum that a library is given.
    fn library_product(&self, id: NodeId) -> Option<MatrixProduct> {
        let Target::Gpu(gpu) = self.placement.target(id) else {
            return contraction::matrix_product(self.graph, id, self.placement.products());
        };
        let library = gpu.products.as_ref()?;
        let product = contraction::stacked_product(self.graph, id, library)?;
        match library.share {
            LibraryShare::All => Some(product),
            LibraryShare::Plain { least_extent, gain } => {
                let large = |e: &IndexExpr| e.interval(self.graph).lo >= least_extent;
                let extents = [&product.m, &product.n, &product.k];
                let apart = self.fused_with_kernel(id, &product);
                let faster = || gain.is_some_and(|gain| self.gains(id, gain, &apart, gpu));
                (extents.into_iter().all(large) && (apart.is_empty() || faster())).then_some(product)
            }
        }
    }

    /// Whether a library gains more on a product than it takes to write, and read again, what a kernel would compute with it.
    fn gains(&self, id: NodeId, gain: LibraryGain, apart: &[NodeId], gpu: &Gpu) -> bool {
        let NodeKind::Einsum { inputs, .. } = self.kind(id) else {
            return false;
        };
        let mut extents: FxHashMap<u16, i64> = FxHashMap::default();
        let operands = &self.graph.node(id).operands;
        for (labels, operand) in inputs.iter().zip(operands) {
            for (label, extent) in labels.iter().zip(&self.graph.ty(*operand).shape) {
                let Some(extent) = extent.as_const() else { return false };
                extents.insert(*label, extent);
            }
        }
        let flops = 2.0 * extents.values().map(|n| *n as f64).product::<f64>();
        let seconds = |node: &NodeId| {
            let ty = self.graph.ty(*node);
            let elements: f64 = ty.shape.iter().filter_map(|e| e.as_const()).map(|n| n as f64).product();
            2.0 * elements * ty.dtype.bytes() as f64 / gpu.bytes_per_second + SECONDS_OF_A_KERNEL
        };
        // A product of narrow elements is one of wider ones that are converted from them.
        let stored = operands.iter().map(|&o| match self.kind(o) {
            NodeKind::Convert(_) => self.graph.ty(self.graph.node(o).operands[0]).dtype,
            _ => self.graph.ty(o).dtype,
        });
        let dtype = stored.max_by_key(|d| d.bytes()).unwrap_or(DType::F32);
        let behind = gain.seconds_behind(self.cost_behind(id));
        gain.seconds(dtype, flops) + behind > apart.iter().map(seconds).sum()
    }

    /// Operations that are computed of a product element by element, a function counting as many as it costs, as far as the first few say.
    fn cost_behind(&self, id: NodeId) -> f64 {
        let (mut work, mut seen) = (vec![id], vec![id]);
        let mut each = 0.0;
        while let Some(at) = work.pop() {
            for &user in &self.users[at.index()] {
                let follows = matches!(
                    self.kind(user),
                    NodeKind::Map(_) | NodeKind::Convert(_) | NodeKind::View(View::Reshape(_) | View::Permute(_))
                );
                if follows && seen.len() < MOST_BEHIND && !seen.contains(&user) {
                    seen.push(user);
                    work.push(user);
                    each += f64::from(cost(self.kind(user)));
                }
            }
        }
        let elements = self.graph.ty(id).shape.iter();
        elements.filter_map(|e| e.as_const()).map(|n| n as f64).product::<f64>() * each
    }

    /// What a kernel that multiplies would do beside the library: the operands that it would compute where it reads them, and the last value of
    /// what the library computes, if something follows on it.
    fn fused_with_kernel(&self, id: NodeId, product: &MatrixProduct) -> SmallVec<[NodeId; 3]> {
        let inlined = |kind: &NodeKind| {
            matches!(
                kind,
                NodeKind::Map(_)
                    | NodeKind::Convert(_)
                    | NodeKind::Gather { .. }
                    | NodeKind::View(_)
                    | NodeKind::Random { .. }
            )
        };
        let read = [product.lhs.base, product.rhs.base];
        let follows = |user: &NodeId| matches!(self.kind(*user), NodeKind::Map(_) | NodeKind::Convert(_));
        let last = self.library_last(id, product);
        let mut apart: SmallVec<[NodeId; 3]> = read.into_iter().filter(|base| inlined(self.kind(*base))).collect();
        apart.extend(self.users[last.index()].iter().any(follows).then_some(last));
        apart
    }

    /// The last of the values that a library can compute with a product, each of which is all that the one before is for.
    fn library_last(&self, id: NodeId, product: &MatrixProduct) -> NodeId {
        let (mut last, mut at) = (id, id);
        let ([row], [column]) = (&product.dst.row.dims[..], &product.dst.column.dims[..]) else {
            return last;
        };
        let strides = [&row.stride, &column.stride];
        while let [user] = self.users[at.index()][..] {
            let found = library_epilogue::behind(self.graph, user, id);
            let fits = |b: &Behind| {
                b.bias
                    .as_ref()
                    .is_none_or(|bias| bias.fits([&product.m, &product.n], strides))
            };
            match (self.kind(user), found) {
                // What a library's relu makes of NaN its manual does not say: it has that only where all products are to be its own.
                (_, Some(found)) if !found.rectified && fits(&found) => (last, at) = (user, user),
                (NodeKind::View(View::Reshape(_)), _) => at = user,
                _ => break,
            }
        }
        last
    }

    /// Makes roots of bytes of which little makes a value that several read: they are a fourth of its elements' size, and each reader makes it again. What
    /// is padded, as parts of concatenations are, may be stored where it is padded.
    fn mark_bytes(&mut self) {
        let cheap = |kind: &NodeKind| match kind {
            NodeKind::Map(op) => op.cost() < Cost::Division,
            NodeKind::Convert(_) => true,
            _ => false,
        };
        for (id, node) in self.graph.nodes() {
            let users = &self.users[id.index()];
            let pads = |u: &NodeId| matches!(self.kind(*u), NodeKind::View(View::Pad { .. }));
            if node.ty.dtype.bytes() < 4 || users.len() < 2 || users.iter().any(pads) {
                continue;
            }
            let mut at = id;
            for _ in 0..MOST_BEHIND_BYTES {
                if !cheap(self.kind(at)) {
                    break;
                }
                let operands = &self.graph.node(at).operands;
                let mut values = operands.iter().filter(|o| self.graph.splat_value(**o).is_none());
                let (Some(&below), None) = (values.next(), values.next()) else {
                    break;
                };
                at = below;
                if self.graph.ty(at).dtype.bytes() == 1 {
                    self.is_root[at.index()] |= matches!(self.kind(at), NodeKind::Convert(_));
                    break;
                }
            }
        }
    }

    pub(super) fn mark_roots(&mut self, once: bool) {
        // Library calls first: they decide which values must exist in memory.
        for (id, node) in self.graph.nodes() {
            if let Some(form) = self.weight_gradient(id) {
                for base in [form.gradient.0, form.image.0] {
                    self.is_root[base.index()] |= !is_source(self.kind(base));
                }
                self.weight_gradients.insert(id, form);
            } else if let NodeKind::Einsum { .. } = node.kind
                && let Some(product) = self.library_product(id)
            {
                for base in [product.lhs.base, product.rhs.base] {
                    self.is_root[base.index()] |= !is_source(self.kind(base));
                }
                self.products.insert(id, product);
            } else if let Some(image) = direct_image(self.graph, id) {
                // Padding is written once: each element of the image is read for many results.
                self.is_root[image.index()] |= !is_source(self.kind(image));
            }
            if let (NodeKind::Einsum { .. }, Target::Gpu(gpu)) = (&node.kind, self.placement.target(id)) {
                for value in attention::computed_once(self.graph, gpu, id) {
                    self.is_root[value.index()] = true;
                }
                for &o in &node.operands {
                    if let Some(value) = self.finishes_product(o) {
                        self.is_root[value.index()] = true;
                    }
                }
            }
            if node.kind.is_tuple() {
                for &o in &node.operands {
                    let value = held_value(self.graph, o);
                    self.is_root[value.index()] |= !is_source(self.kind(value));
                }
            }
            self.is_root[id.index()] |= self.is_turned_concatenation(id);
        }
        if once {
            self.mark_constants();
        }
        self.mark_joins();
        self.mark_bytes();
        let mut cones = vec![Cone::default(); self.graph.len()];
        for (id, node) in self.graph.nodes() {
            let i = id.index();
            if is_source(&node.kind) {
                cones[i].loads = 1;
                continue;
            }
            let own_cost = cost(&node.kind);
            let mut cone = Cone {
                nodes: 1,
                cost: own_cost,
                statements: statements(self.graph, id),
                loads: 0,
                scalar: self.has_no_vector_form(id),
                regrouped: 0,
                parts: u32::from(self.is_concatenation(id)),
                looks_up: self.looks_bytes_up(id),
            };
            for (k, o) in node.operands.iter().enumerate() {
                // A square loads once.
                if node.operands[..k].contains(o) {
                    continue;
                }
                let below = match self.is_root[o.index()] {
                    true => Cone {
                        loads: 1,
                        ..Cone::default()
                    },
                    false => cones[o.index()],
                };
                cone.nodes = cone.nodes.saturating_add(below.nodes);
                cone.cost = cone.cost.saturating_add(below.cost);
                cone.statements = cone.statements.saturating_add(below.statements);
                cone.loads = cone.loads.saturating_add(below.loads);
                cone.scalar |= below.scalar;
                cone.regrouped = cone.regrouped.max(below.regrouped);
                cone.parts = cone.parts.saturating_add(below.parts);
                cone.looks_up |= below.looks_up;
            }
            cone.regrouped += u32::from(self.regroups(id));
            let own = own_root(&node.kind);
            let free = matches!(
                node.kind,
                NodeKind::View(_) | NodeKind::Const(_) | NodeKind::Iota { .. }
            );
            let shared = self.users[i].len() > 1 && !free && !self.meets_again(id);
            let cheap = cone.cost <= CHEAP_COST && cone.loads <= 1;
            let padded = matches!(node.kind, NodeKind::View(View::Pad { .. }));
            let slid = |u: &NodeId| match overlap(self.kind(*u)) {
                Some(n) => {
                    let costs = cone.cost > WINDOW_COST || (padded && n >= WIDE_WINDOW);
                    costs && !(cone.cost <= SLIDING_COST && (self.shows_sliding(id) || self.converts_stored_bytes(id)))
                }
                None => false,
            };
            // Padding in an order of its own is stored in that, and not as windows see it.
            let ordered = |u: &NodeId| padded && matches!(self.kind(*u), NodeKind::View(View::Permute(_)));
            let again = !self.is_padding_in_order(id)
                && self.users[i]
                    .iter()
                    .any(|u| slid(u) || ordered(u) && self.users[u.index()].iter().any(slid));
            self.apart[i] = cone.scalar && self.users[i].iter().any(|&u| self.repeats_rows(u, id));
            let again = again || self.apart[i] || self.turns_rows_of_windows(id);
            // Computed once where it is read again and again, if that costs less.
            let sum = match own || free || cheap {
                true => None,
                false => self.again(id, cone.cost, cone.loads),
            };
            let costly = sum.filter(|s| s.computed > s.stored);
            let interleaved = self.is_interleaved_and_stored(id);
            if interleaved {
                self.interleaved.insert(id);
            }
            self.costly.extend(costly.map(|s| (id, s)));
            self.is_root[i] |= self.is_output[i]
                || own
                || (cone.cost > WINDOW_COST && (self.padded_behind_tile(id) || self.narrow_behind_tile(id)))
                || interleaved
                || costly.is_some()
                || (shared && !cheap && !self.is_counted(id))
                || again
                || cone.nodes > MAX_CONE
                || cone.statements > MAX_CONE_STATEMENTS / self.most_operands(id)
                || cone.regrouped > MAX_REGROUPED
                || (cone.regrouped > 1 && self.regroups(id) && self.reaches_far(id));
            cones[i] = cone;
            if self.is_root[i] {
                // A reduction or contraction itself counts one.
                let size = ConeSize {
                    cost: cone.cost.saturating_add(own as u32),
                    // It may be stored.
                    statements: cone.statements.saturating_add(1),
                    parts: cone.parts,
                    looks_up: cone.looks_up,
                };
                self.cone_sizes[id.index()] = size;
                continue;
            }
            let reason = match node.kind {
                NodeKind::Const(_) => continue,
                NodeKind::View(_) => FusionReason::Indices,
                _ if shared => FusionReason::Recompute { ops: cone.cost },
                _ => match sum {
                    Some(s) => FusionReason::CheaperAgain {
                        computed: s.computed,
                        stored: s.stored,
                    },
                    None => FusionReason::OnlyUse,
                },
            };
            for &consumer in &self.users[i] {
                self.ledger.record(FusionDecision {
                    stage: FusionStage::Inlining,
                    producer: id,
                    consumer,
                    reason: reason.clone(),
                });
            }
        }
    }

    /// How a kernel sums the gradient by weights that a value is; if it is one and none does, that is put down.
    fn weight_gradient(&mut self, id: NodeId) -> Option<WeightGradient> {
        let target = self.placement.target(id);
        let (Target::Cpu(cpu), Some(choice)) = (target, tiles(target)) else {
            return None;
        };
        let emitter = &cpu.emitter(choice.emitter).table;
        match weight_gradient(self.graph, id, emitter, cpu.threads)? {
            Ok(form) => Some(form),
            Err(refusal) => {
                for &producer in &self.graph.node(id).operands {
                    self.ledger.record(FusionDecision {
                        stage: FusionStage::Inlining,
                        producer,
                        consumer: id,
                        reason: FusionReason::NoWeightGradient(refusal),
                    });
                }
                None
            }
        }
    }

    /// Whether kernels leave out lanes of what they load and store, where the value is computed.
    fn masks_floats(&self, id: NodeId) -> bool {
        match self.placement.target(id) {
            Target::Cpu(cpu) => cpu.emitters.iter().any(|e| e.table.masks(DType::F32)),
            Target::Gpu(_) => false,
        }
    }

    /// Whether all that reads a padded image are sums of windows of known sizes that slide over it, whatever is padding left out by masks.
    fn slides(&self, pad: NodeId) -> bool {
        let image = self.graph.node(pad).operands[0];
        self.in_rows(image) && self.masks_floats(pad) && self.users[pad.index()].iter().all(|u| self.slides_from(*u, 1))
    }

    /// Whether a value is an image of which [`Self::slides`] holds, or some of the views through which its windows are read.
    fn shows_sliding(&self, id: NodeId) -> bool {
        match self.kind(id) {
            NodeKind::View(View::Pad { .. }) => self.slides(id),
            NodeKind::View(View::Window { .. } | View::Reshape(_)) => {
                let below = self.graph.node(id).operands[0];
                !self.is_root[below.index()] && self.shows_sliding(below)
            }
            _ => false,
        }
    }

    /// Whether a value is bytes that a copy stored, converted and less a zero point, or windows of them: these convert what they load, sooner
    /// than they load what is four times as wide.
    fn converts_stored_bytes(&self, id: NodeId) -> bool {
        let mut at = id;
        while let NodeKind::Convert(_) | NodeKind::Map(ScalarOp::Sub) | NodeKind::View(View::Window { .. }) =
            self.kind(at)
            && !(at != id && self.is_root[at.index()])
        {
            at = self.graph.node(at).operands[0];
        }
        *self.kind(at) == NodeKind::Copy && matches!(self.graph.ty(at).dtype, DType::I8 | DType::U8)
    }

    /// Whether a value is computed element by element of what is stored with its rows as they are: of what is stored in another order they
    /// do not lie together.
    fn in_rows(&self, id: NodeId) -> bool {
        let node = self.graph.node(id);
        self.is_root[id.index()]
            || is_source(&node.kind)
            || match node.kind {
                NodeKind::Const(_) => true,
                NodeKind::Map(_) | NodeKind::Convert(_) | NodeKind::View(View::Reshape(_) | View::Expand(_)) => {
                    node.operands.iter().all(|o| self.in_rows(*o))
                }
                _ => false,
            }
    }

    /// Whether a value is padding that is seen in another order.
    fn is_padding_in_order(&self, id: NodeId) -> bool {
        let permuted = matches!(self.kind(id), NodeKind::View(View::Permute(_)));
        let below = self.graph.node(id).operands.first();
        permuted && below.is_some_and(|&b| matches!(self.kind(b), NodeKind::View(View::Pad { .. })))
    }

    /// Whether a value has columns of what is stored as rows, which are padded and which windows slide along.
    fn turns_rows_of_windows(&self, id: NodeId) -> bool {
        let (NodeKind::View(View::Permute(axes)), true) = (self.kind(id), self.masks_floats(id)) else {
            return false;
        };
        let turned = axes.last().is_some_and(|&a| usize::from(a) + 1 != axes.len());
        let slid = |u: &NodeId| overlap(self.kind(*u)).is_some_and(|n| n >= LEAST_TURNED_WINDOW);
        let padded = |u: &NodeId| {
            let users = &self.users[u.index()];
            matches!(self.kind(*u), NodeKind::View(View::Pad { .. }))
                && !self.is_root[u.index()]
                && users.iter().any(slid)
        };
        let row = self.graph.ty(id).shape.last();
        turned && row.is_some_and(|n| !n.is(1)) && self.users[id.index()].iter().any(padded)
    }

    /// Whether a value of bytes is computed from a tile, and what is computed of it alone is padded for windows: it is stored, because what
    /// is computed of it is larger.
    fn narrow_behind_tile(&self, id: NodeId) -> bool {
        let dtype = self.graph.ty(id).dtype;
        if !matches!(dtype, DType::I8 | DType::U8) || !self.masks_floats(id) {
            return false;
        }
        let mut at = id;
        for _ in 0..MAX_MEETING {
            let [user] = self.users[at.index()][..] else {
                return false;
            };
            match self.kind(user) {
                NodeKind::Map(_) | NodeKind::Convert(_) | NodeKind::View(View::Reshape(_)) => at = user,
                NodeKind::View(View::Pad { .. }) => {
                    let mut readers = self.users[user.index()].iter();
                    let stored = |u: &NodeId| overlap(self.kind(*u)).is_some() || *self.kind(*u) == NodeKind::Copy;
                    return readers.all(stored) && self.behind_tile(id);
                }
                _ => return false,
            }
        }
        false
    }

    /// As [`Self::slides`], of a view of the image by windows along some of its axes, which show so many elements for each.
    fn slides_from(&self, at: NodeId, elements: i64) -> bool {
        let users = |elements| self.users[at.index()].iter().all(|u| self.slides_from(*u, elements));
        match self.kind(at) {
            NodeKind::View(View::Window {
                axis,
                size,
                stride: stride @ 1..=2,
                dilation: 1,
            }) if *stride == 1 || self.is_exact(at, *axis) => {
                let elements = size.as_const().and_then(|n| n.checked_mul(elements));
                let most = if *stride == 1 { MOST_SLIDING } else { MOST_STEPPING };
                elements.is_some_and(|n| n <= most && users(n))
            }
            NodeKind::View(View::Reshape(_) | View::Permute(_)) => users(elements),
            NodeKind::Einsum { .. } => {
                elements > 1 && !self.products.contains_key(&at) && direct_image(self.graph, at).is_none()
            }
            _ => false,
        }
    }

    /// Whether as many windows as the size of their image makes, whatever it is, are those along an axis: of small images of unknown size there may be
    /// none, whose number is then no less than 0, which schedules cannot tell from where windows lie.
    fn is_exact(&self, windows: NodeId, axis: u8) -> bool {
        let number = &self.graph.ty(windows).shape[usize::from(axis)];
        !matches!(number, IndexExpr::Node(n) if matches!(**n, IndexNode::Max(..)))
    }

    /// Whether a value is computed from a convolution's tile and then padded for windows that read it element by element: the tile's
    /// kernel stores it. Of small windows those leave out what lies outside, and what wide ones read is padded in a step of its own.
    fn padded_behind_tile(&self, id: NodeId) -> bool {
        let masks = self.masks_floats(id);
        let small = |u: &NodeId| {
            let inside = |n: i64| {
                masks || n >= WIDE_WINDOW || matches!(self.kind(*u), NodeKind::View(View::Window { stride: 1, .. }))
            };
            overlap(self.kind(*u)).is_some_and(inside)
        };
        let padded = |u: &NodeId| {
            let users = &self.users[u.index()];
            let pad = matches!(self.kind(*u), NodeKind::View(View::Pad { .. })) && !self.is_root[u.index()];
            pad && !users.is_empty() && users.iter().all(small)
        };
        if !self.users[id.index()].iter().any(padded) {
            return false;
        }
        // A concatenation is copied once as well, and its padding left out of what is copied.
        self.behind_tile(id) || masks && self.is_concatenation(id)
    }

    /// Whether a value is computed element by element from a tile's results.
    fn behind_tile(&self, id: NodeId) -> bool {
        let masks = self.masks_floats(id);
        let mut open: SmallVec<[NodeId; 8]> = smallvec![id];
        for _ in 0..MAX_MEETING {
            let Some(at) = open.pop() else { return false };
            if direct_image(self.graph, at).is_some() || (masks && self.products.contains_key(&at)) {
                return true;
            }
            if let NodeKind::Map(_) | NodeKind::Convert(_) | NodeKind::View(View::Reshape(_)) = self.kind(at) {
                open.extend(self.graph.node(at).operands.iter().copied());
            }
        }
        false
    }

    /// The most operands that a user of a value has, which share the room of a cone.
    fn most_operands(&self, id: NodeId) -> u32 {
        let operands = self.users[id.index()]
            .iter()
            .map(|&u| self.graph.node(u).operands.len());
        operands.max().unwrap_or(1).max(1) as u32
    }

    /// Whether a node is a reshape that divides indices.
    pub(super) fn regroups(&self, id: NodeId) -> bool {
        let node = self.graph.node(id);
        let NodeKind::View(View::Reshape(_)) = node.kind else {
            return false;
        };
        let axes = |id: NodeId| self.graph.ty(id).shape.iter().filter(|d| !d.is(1));
        !axes(id).eq(axes(node.operands[0]))
    }

    /// Whether an index [becomes long](is_long) on the way from an element of a value down its cone.
    fn reaches_far(&self, id: NodeId) -> bool {
        let mut vars = Variables::new(self.graph);
        let point: Index = self
            .graph
            .ty(id)
            .shape
            .iter()
            .map(|d| vars.push(d.clone()).into())
            .collect();
        let mut work = vec![(id, point)];
        let mut budget = MAX_CONE;
        while let Some((node, index)) = work.pop() {
            if is_long(&index) {
                return true;
            }
            let stored = node != id && self.is_root[node.index()];
            if budget > 0 && !stored && !is_source(self.kind(node)) {
                budget -= 1;
                self.step_down(node, &index, &mut vars, &mut work);
            }
        }
        false
    }

    /// The value that an operand shows, if it finishes another product: if it is computed element by element of that, which nothing else reads, and no
    /// wider. Computed where the product is stored it costs nothing, and whoever multiplies it copies it as it lies.
    fn finishes_product(&self, operand: NodeId) -> Option<NodeId> {
        let mut value = operand;
        while let NodeKind::View(_) = self.kind(value) {
            value = self.graph.node(value).operands[0];
        }
        let bytes = |id: NodeId| self.graph.ty(id).dtype.bytes();
        let (mut work, mut looked_at) = (vec![value], 0);
        while let Some(at) = work.pop() {
            looked_at += 1;
            match self.kind(at) {
                NodeKind::Einsum { .. } if at != value && bytes(value) <= bytes(at) => return Some(value),
                NodeKind::Map(_) | NodeKind::Convert(_) if looked_at <= MOST_FINISHING => {
                    let operands = self.graph.node(at).operands.iter();
                    work.extend(operands.filter(|o| self.users[o.index()].len() == 1 && !self.is_output[o.index()]));
                }
                _ => {}
            }
        }
        None
    }

    /// Whether everything that uses a value does so element by element and ends in one value, as `x` in `x * sigmoid(x)`: a
    /// kernel that computes an element of that needs the element of this once.
    pub(super) fn meets_again(&self, id: NodeId) -> bool {
        let elementwise = |n: NodeId| matches!(self.kind(n), NodeKind::Map(_) | NodeKind::Convert(_));
        if self.is_output[id.index()] {
            return false;
        }
        // Users come after what they use: the earliest of the open ones is where all may have met, if it is the only one.
        let mut open: SmallVec<[NodeId; 8]> = self.users[id.index()].iter().copied().collect();
        for _ in 0..MAX_MEETING {
            open.sort();
            open.dedup();
            let first = open.remove(0);
            if !elementwise(first) {
                return false;
            }
            if open.is_empty() {
                return true;
            }
            if self.is_output[first.index()] {
                return false;
            }
            open.extend(self.users[first.index()].iter().copied());
        }
        false
    }

    /// Whether a view shows rows of its operand again and again, so that what varies inside a row would be computed anew in
    /// each.
    fn repeats_rows(&self, view: NodeId, operand: NodeId) -> bool {
        let NodeKind::View(View::Expand(to)) = self.kind(view) else {
            return false;
        };
        let shape = &self.graph.ty(operand).shape;
        let missing = to.len() - shape.len();
        let varies = |k: usize| k >= missing && shape[k - missing] != IndexExpr::ONE;
        let repeated = (0..to.len()).find(|&k| !varies(k) && to[k] != IndexExpr::ONE);
        repeated.is_some_and(|first| (first..to.len()).any(varies))
    }

    /// Whether the elements of a row are computed one at a time, because the emitter has no vector form of the operation.
    /// Whether a value is a byte of a table of as many as a byte numbers, which a processor picks in lanes.
    fn looks_bytes_up(&self, id: NodeId) -> bool {
        let node = self.graph.node(id);
        let Target::Cpu(_) = self.placement.target(id) else {
            return false;
        };
        let of_bytes = matches!(node.ty.dtype, DType::U8 | DType::I8);
        of_bytes
            && matches!(node.kind, NodeKind::Gather { .. })
            && self.graph.ty(node.operands[0]).elements().is(BYTE_TABLE)
    }

    fn has_no_vector_form(&self, id: NodeId) -> bool {
        let node = self.graph.node(id);
        if node.ty.shape.last().is_none_or(|d| *d == IndexExpr::ONE) {
            return false;
        }
        let from = |k: usize| self.graph.ty(node.operands[k]).dtype;
        let operation = match node.kind {
            NodeKind::Convert(to) => Operation::Convert(from(0), to),
            NodeKind::Map(op) => Operation::Map(op, from(node.operands.len() - 1)),
            _ => return false,
        };
        let target = self.placement.target(id);
        let per_lane = |e: &Emitter| operation.support(e, Width::Lanes) == Support::PerLane;
        // Of nearly all operations every emitter has a vector form.
        if let Target::Cpu(cpu) = target
            && !cpu.emitters.iter().any(|e| per_lane(&e.table))
        {
            return false;
        }
        let emitter = choose(target, &[operation].into_iter().collect()).emitter;
        per_lane(target.emitter(emitter))
    }

    /// Bytes of a value whose size does not depend on symbols.
    pub(super) fn bytes(&self, id: NodeId) -> Option<u64> {
        let ty = self.graph.ty(id);
        let elements = u64::try_from(IndexExpr::product(&ty.shape).as_const()?).ok()?;
        elements.checked_mul(ty.dtype.bytes() as u64)
    }
}

/// The node whose elements each output has. An output that only reshapes the result of a step of its own is that result: the
/// step writes the output's buffer, and no kernel copies it. `products` are those of the host's library.
pub fn output_values(graph: &Graph, products: HostProducts) -> Vec<NodeId> {
    let mut taken: Vec<NodeId> = graph.outputs().iter().map(|o| o.node).collect();
    for k in 0..taken.len() {
        let mut at = taken[k];
        while let NodeKind::View(View::Reshape(_)) = graph.node(at).kind {
            at = graph.node(at).operands[0];
        }
        let step = match graph.node(at).kind {
            NodeKind::Einsum { .. } => contraction::matrix_product(graph, at, products).is_some(),
            NodeKind::Scan { .. } | NodeKind::Scatter { .. } | NodeKind::Project(_) => true,
            _ => false,
        };
        if step && !taken.contains(&at) {
            taken[k] = at;
        }
    }
    taken
}

/// The value in whose memory a loop or call finds an operand: one that is only reshaped has its elements where they are, and no kernel
/// copies it.
pub fn held_value(graph: &Graph, operand: NodeId) -> NodeId {
    let mut at = operand;
    while let NodeKind::View(View::Reshape(_)) = graph.node(at).kind
        // By their expressions: of extents that are only promised to be equal, a plan cannot tell how long the memory is.
        && graph.ty(at).elements() == graph.ty(graph.node(at).operands[0]).elements()
    {
        at = graph.node(at).operands[0];
    }
    at
}

/// Kinds that are a root wherever they are.
pub(super) fn own_root(kind: &NodeKind) -> bool {
    matches!(
        kind,
        NodeKind::Reduce { .. }
            | NodeKind::Einsum { .. }
            | NodeKind::Scan { .. }
            | NodeKind::Scatter { .. }
            | NodeKind::Copy
            | NodeKind::Loop(_)
            | NodeKind::Call(_)
            | NodeKind::Region(_)
            | NodeKind::Project(_)
    )
}
