//! Clustering: which values share a kernel.
//!
//! Every value that something outside its own kernel may need is a *root*: outputs, reductions, contractions, scans,
//! scatters, operands of library calls, and values whose recomputation would cost more than storing them. Everything else
//! is inlined into the roots that use it. Roots start as singletons and merge along producer-consumer edges, then with
//! siblings. Legality and profit are separate questions; each answered edge leaves a [`FusionDecision`].
//!
//! Legality is decided on index expressions, not on patterns: a root is evaluated symbolically at fresh loop variables, and
//! what it demands of another root must be the very element that the merged loop is at. Axes that stand for each other in
//! every root of a cluster are its parallel axes; the others are *inner*, looped over once per reduction phase.
//!
//! Invariants: the cluster graph is acyclic; clusters come out in a topological order; a root belongs to one cluster; all
//! roots of a cluster are on one device.

mod again;
mod attention;
mod beside;
pub mod columns;
mod operations;
mod roots;
mod scans;
mod space;
mod updates;

use std::collections::BTreeSet;

pub use roots::{held_value, output_values};

pub use crate::partition::{Attention, Blocks, Cluster, ClusterKind, Clusters, LoopSpace, Role, Updates};

use again::Again;
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::{Graph, NodeId, NodeKind};

use crate::access::{Index, Variables, is_source, operand_indices, space, view_index};
use crate::contraction::MatrixProduct;
use crate::devices::{Placement, StateBinding};
use crate::direct::direct_image;
use crate::emitters::{Operations, choose, tiles};
use crate::made::{Made, made};
use crate::reason::{FusionDecision, FusionLedger, FusionReason, FusionStage, OwnStep};
use crate::weight_gradient::WeightGradient;

/// Legalized statements beyond which a kernel does not grow, before any loop is unrolled. Compile time is linear in a kernel's
/// size, so any size would do for that; but from some hundred statements on a kernel no longer fits the instruction cache, and
/// [`tlc_ir::kernel::MAX_STATEMENTS`] are more than the language allows. The distance between the two is room for what the
/// estimate does not see, and for vectors side by side and tails.
pub const MAX_KERNEL_STATEMENTS: u32 = 12_000;
/// Roots of one cluster, unless all run over one space and read each other only where they are.
const MAX_ROOTS: usize = 64;
/// Clusters visited when looking for a cycle.
const CYCLE_BUDGET: usize = 512;

/// A value that a root reads at one point of its space.
struct Demand {
    source: NodeId,
    index: Index,
}

/// What computing one element of a root takes, down to other roots and sources.
#[derive(Clone, Copy)]
struct ConeSize {
    /// Cost, an addition being 1.
    cost: u32,
    /// Statements after legalization.
    statements: u32,
}

struct Group {
    /// Ascending.
    roots: Vec<NodeId>,
    /// Legalized statements, each root computed once.
    statements: u32,
    /// What its kernel does for each element.
    operations: Operations,
    space: Option<LoopSpace>,
    /// True if every root has all of the space's axes, in their order, and no others.
    flat: bool,
    /// Those of its roots that some readers would compute again at too high a cost.
    costly: SmallVec<[NodeId; 2]>,
    /// Groups that it reads, as they were numbered when it was made.
    reads: Vec<usize>,
    step: Option<OwnStep>,
    merged_into: Option<usize>,
}

struct Clusterer<'g> {
    graph: &'g Graph,
    placement: &'g Placement<'g>,
    users: Vec<SmallVec<[NodeId; 4]>>,
    is_output: Vec<bool>,
    is_root: Vec<bool>,
    /// True for values that every row of a consumer would compute again, one element at a time: they share no kernel with it.
    apart: Vec<bool>,
    /// True for values that no input reaches.
    once: Vec<bool>,
    products: FxHashMap<NodeId, MatrixProduct>,
    weight_gradients: FxHashMap<NodeId, WeightGradient>,
    demands: FxHashMap<NodeId, Vec<Demand>>,
    /// Values that are stored because some that read them would compute them again, at a higher cost.
    costly: FxHashMap<NodeId, Again>,
    /// By root: what computing an element of it costs, and the statements it takes.
    cone_sizes: FxHashMap<NodeId, ConeSize>,
    groups: Vec<Group>,
    /// By symbol: the call that binds it.
    binders: Vec<Option<NodeId>>,
    /// By node: the group of a root.
    group_of: Vec<Option<usize>>,
    /// By node: itself, if no group has roots on both sides of the place before it, else a later node: the way to the next
    /// such place.
    next_cut: Vec<u32>,
    ledger: FusionLedger,
    /// Fusions that may still be made.
    merges: usize,
    /// New values of states, and the inputs that are the old ones.
    updates: Vec<(NodeId, NodeId)>,
}

/// Groups that would overwrite what others still read.
#[derive(Default)]
struct Held {
    /// By such a group: how many others read the old value.
    readers: FxHashMap<usize, usize>,
    /// By group that reads old values: the groups that compute the new ones.
    updates: FxHashMap<usize, Vec<usize>>,
}

impl Held {
    /// Whether a group still waits for readers.
    fn by(&self, group: usize) -> bool {
        self.readers.get(&group).is_some_and(|&n| n > 0)
    }

    /// A group has run; returns those that wait for no reader any longer.
    fn released(&mut self, reader: usize) -> Vec<usize> {
        let mut free = self.updates.remove(&reader).unwrap_or_default();
        free.retain(|u| {
            let left = self.readers.entry(*u).or_default();
            *left = left.saturating_sub(1);
            *left == 0
        });
        free
    }
}

/// Groups a graph's values into clusters. The graph has no dead nodes, and each output is a node of its own. What computes the new value of
/// one of its states comes behind what reads the old one, where it can: then it may write where the old one is.
pub fn cluster(graph: &Graph, placement: &Placement<'_>, states: &[StateBinding]) -> Clusters {
    clusters(graph, placement, states, true, usize::MAX)
}

/// As [`cluster`], with no more than the first `merges` fusions of values that could have kernels of their own: what a search
/// for a wrong one varies.
pub fn cluster_at_most(graph: &Graph, placement: &Placement<'_>, merges: usize) -> Clusters {
    clusters(graph, placement, &[], true, merges)
}

/// As [`cluster`], for the body of a loop: nothing of it runs once per executable.
pub fn cluster_body(graph: &Graph, placement: &Placement<'_>) -> Clusters {
    clusters(graph, placement, &[], false, usize::MAX)
}

fn clusters(graph: &Graph, placement: &Placement<'_>, states: &[StateBinding], once: bool, merges: usize) -> Clusters {
    let mut users: Vec<SmallVec<[NodeId; 4]>> = vec![SmallVec::new(); graph.len()];
    for (id, node) in graph.nodes() {
        for o in &node.operands {
            if users[o.index()].last() != Some(&id) {
                users[o.index()].push(id);
            }
        }
    }
    let mut is_output = vec![false; graph.len()];
    let values = output_values(graph);
    values.iter().for_each(|o| is_output[o.index()] = true);
    let both = |s: &StateBinding| Some((values[s.output? as usize], graph.inputs()[s.input? as usize]));
    let mut c = Clusterer {
        updates: states.iter().filter_map(both).collect(),
        graph,
        placement,
        users,
        is_output,
        is_root: vec![false; graph.len()],
        apart: vec![false; graph.len()],
        once: vec![false; graph.len()],
        products: FxHashMap::default(),
        weight_gradients: FxHashMap::default(),
        demands: FxHashMap::default(),
        costly: FxHashMap::default(),
        cone_sizes: FxHashMap::default(),
        groups: Vec::new(),
        binders: graph.binders(),
        group_of: vec![None; graph.len()],
        next_cut: (0..=graph.len() as u32).collect(),
        ledger: FusionLedger::default(),
        merges,
    };
    c.mark_roots(once);
    c.grow();
    c.merge_siblings();
    let mut clusters = c.finish();
    if merges == usize::MAX {
        attention::join(graph, placement, &mut clusters);
    }
    made(Made::Clusters {
        graph,
        clusters: &mut clusters,
    });
    clusters
}

/// Whether a value takes loops of its own to compute.
fn sums_up(kind: &NodeKind) -> bool {
    matches!(
        kind,
        NodeKind::Reduce { .. } | NodeKind::Einsum { .. } | NodeKind::Scan { .. } | NodeKind::Scatter { .. }
    )
}

impl Clusterer<'_> {
    fn cone_size(&self, root: NodeId) -> ConeSize {
        let one = ConeSize { cost: 1, statements: 1 };
        self.cone_sizes.get(&root).copied().unwrap_or(one)
    }

    fn kind(&self, id: NodeId) -> &NodeKind {
        &self.graph.node(id).kind
    }

    /// Every element that `root` reads at a point of its space, in terms of variables `0..axes`.
    fn demands_of(&self, root: NodeId) -> Vec<Demand> {
        let space = space(self.graph, root);
        let mut vars = Variables::new(self.graph);
        let point: Index = space.extents.iter().map(|d| vars.push(d.clone()).into()).collect();
        let mut out = Vec::new();
        let mut seen: FxHashMap<(NodeId, Index), ()> = FxHashMap::default();
        let mut work: Vec<(NodeId, Index)> = Vec::new();
        self.step_down(root, &point, &mut vars, &mut work);
        while let Some((node, index)) = work.pop() {
            if seen.insert((node, index.clone()), ()).is_some() {
                continue;
            }
            if self.is_root[node.index()] || is_source(self.kind(node)) {
                out.push(Demand { source: node, index });
            } else {
                self.step_down(node, &index, &mut vars, &mut work);
            }
        }
        out
    }

    /// Pushes what `node` at `index` reads directly.
    fn step_down(&self, node: NodeId, index: &Index, vars: &mut Variables<'_>, work: &mut Vec<(NodeId, Index)>) {
        let n = self.graph.node(node);
        match &n.kind {
            NodeKind::View(view) => {
                let from = &self.graph.ty(n.operands[0]).shape;
                work.push((n.operands[0], view_index(view, from, &n.ty.shape, index, vars).index));
            }
            NodeKind::Gather { axes } => {
                let x = self.graph.ty(n.operands[0]);
                let batch = index.len() - (x.rank() - axes.len());
                let at: Index = index[..batch].into();
                let mut rest = index[batch..].iter();
                // Data decides the indexed axes: an opaque variable stands for them, which aligns with nothing.
                let inner: Index = (0..x.rank())
                    .map(|a| {
                        if axes.contains(&(a as u8)) {
                            vars.push(x.shape[a].clone()).into()
                        } else {
                            rest.next().cloned().unwrap_or(IndexExpr::ZERO)
                        }
                    })
                    .collect();
                work.push((n.operands[0], inner));
                n.operands[1..].iter().for_each(|&o| work.push((o, at.clone())));
            }
            NodeKind::Random { .. } => work.push((n.operands[0], Index::new())),
            _ => work.extend(operand_indices(self.graph, node, index)),
        }
    }

    fn grow(&mut self) {
        let roots: Vec<NodeId> = self
            .graph
            .nodes()
            .map(|(id, _)| id)
            .filter(|id| self.is_root[id.index()])
            .collect();
        for root in roots {
            if let NodeKind::Project(_) = self.kind(root) {
                // A result belongs to the step that computes it.
                let group = self.group(self.graph.node(root).operands[0]);
                self.groups[group].roots.push(root);
                self.group_of[root.index()] = Some(group);
                self.demands.insert(root, Vec::new());
                continue;
            }
            let step = match self.kind(root) {
                NodeKind::Loop(_) => Some(OwnStep::Loop),
                NodeKind::Call(_) => Some(OwnStep::Call),
                NodeKind::Einsum { .. } if self.products.contains_key(&root) => Some(OwnStep::MatrixProduct),
                NodeKind::Einsum { .. } if self.weight_gradients.contains_key(&root) => Some(OwnStep::WeightGradient),
                NodeKind::Scan { .. } => Some(OwnStep::Scan),
                NodeKind::Scatter { .. } => Some(OwnStep::Scatter),
                _ => None,
            };
            let whole = |operands: [NodeId; 2]| {
                let demand = |source| Demand {
                    source,
                    index: Index::new(),
                };
                operands.map(demand).into()
            };
            // Steps of their own still need their sources for ordering and the cycle check.
            let demands = match step {
                None => self.demands_of(root),
                Some(OwnStep::MatrixProduct) => {
                    let p = &self.products[&root];
                    whole([p.lhs.base, p.rhs.base])
                }
                Some(OwnStep::WeightGradient) => {
                    let w = &self.weight_gradients[&root];
                    whole([w.gradient.0, w.image.0])
                }
                Some(OwnStep::Loop | OwnStep::Call | OwnStep::Scan | OwnStep::Scatter) => self.reachable_sources(root),
            };
            let group = self.groups.len();
            self.groups.push(Group {
                roots: vec![root],
                statements: self.cone_size(root).statements,
                operations: self.operations_of(root),
                space: None,
                flat: false,
                costly: self.costly.contains_key(&root).then_some(root).into_iter().collect(),
                reads: Vec::new(),
                step,
                merged_into: None,
            });
            self.group_of[root.index()] = Some(group);
            let mut producers: Vec<NodeId> = Vec::new();
            for d in &demands {
                if self.is_root[d.source.index()] && !producers.contains(&d.source) {
                    producers.push(d.source);
                }
            }
            let mut reads: Vec<usize> = producers.iter().map(|&p| self.group(p)).collect();
            reads.extend(self.binders_below(root).into_iter().map(|b| self.group(b)));
            self.groups[group].reads = reads;
            self.demands.insert(root, demands);
            if step.is_none() {
                let found = self.loop_space(&[root]).ok();
                self.groups[group].flat = found.as_ref().is_some_and(|s| self.is_flat(&[root], s));
                self.groups[group].space = found;
            }
            // Nearest producers first: they are the likeliest to be still in flight.
            producers.sort_by(|a, b| b.cmp(a));
            for producer in producers {
                let (from, into) = (self.group(producer), self.group(root));
                if from == into {
                    continue;
                }
                let reason = self.try_merge(from, into, false);
                self.ledger.record(FusionDecision {
                    stage: FusionStage::Merging,
                    producer,
                    consumer: root,
                    reason,
                });
            }
        }
    }

    /// The calls that bind sizes which the computation of a root mentions: they run before it.
    fn binders_below(&self, root: NodeId) -> Vec<NodeId> {
        let mut out = Vec::new();
        if self.binders.is_empty() {
            return out;
        }
        let mut seen: FxHashSet<NodeId> = FxHashSet::default();
        let mut work = vec![root];
        while let Some(n) = work.pop() {
            if (n != root && (self.is_root[n.index()] || is_source(self.kind(n)))) || !seen.insert(n) {
                // A root has its own; its sizes are those that its readers mention too.
                let mut size = |id: NodeId| self.graph.visit_needs(id, &self.binders, &mut |b| out.push(b));
                size(n);
                continue;
            }
            self.graph.visit_needs(n, &self.binders, &mut |b| out.push(b));
            work.extend(self.graph.node(n).operands.iter());
        }
        // Of what was met, only calls are binders.
        out.retain(|b| *b != root && self.binders.contains(&Some(*b)));
        out.sort();
        out.dedup();
        out
    }

    fn reachable_sources(&self, root: NodeId) -> Vec<Demand> {
        let mut out = Vec::new();
        let mut seen = vec![];
        let mut work: Vec<NodeId> = self.graph.node(root).operands.to_vec();
        if self.kind(root).is_tuple() {
            work.iter_mut().for_each(|o| *o = held_value(self.graph, *o));
        }
        while let Some(n) = work.pop() {
            if seen.contains(&n) {
                continue;
            }
            seen.push(n);
            if self.is_root[n.index()] || is_source(self.kind(n)) {
                out.push(Demand {
                    source: n,
                    index: Index::new(),
                });
            } else {
                work.extend(self.graph.node(n).operands.iter());
            }
        }
        out
    }

    /// Merges two groups if that is legal and pays; returns why or why not.
    fn try_merge(&mut self, a: usize, b: usize, siblings: bool) -> FusionReason {
        for g in [a, b] {
            if let Some(step) = self.groups[g].step {
                return FusionReason::OwnStep { step };
            }
        }
        if self.is_once(a) != self.is_once(b) {
            return FusionReason::Once;
        }
        let device = |g: usize| self.placement.device(self.groups[g].roots[0]);
        if device(a) != device(b) {
            return FusionReason::OtherDevice;
        }
        let apart = |g: usize| self.groups[g].roots.iter().any(|r| self.apart[r.index()]);
        if apart(a) || apart(b) {
            return FusionReason::ScalarInEveryRow;
        }
        let tiles = |g: usize| {
            self.groups[g]
                .roots
                .iter()
                .any(|r| direct_image(self.graph, *r).is_some())
        };
        let sums = |g: usize| self.groups[g].roots.iter().any(|r| sums_up(self.kind(*r)));
        if [(a, b), (b, a)]
            .into_iter()
            .any(|(one, other)| tiles(one) && sums(other))
        {
            return FusionReason::OwnTile;
        }
        if let Some(reason) = self.waits_for_others(a, b) {
            return reason;
        }
        let statements = self.groups[a].statements.saturating_add(self.groups[b].statements);
        if statements > MAX_KERNEL_STATEMENTS {
            return FusionReason::KernelSize { statements };
        }
        let (space, flat) = if let Some(space) = self.flat_space(a, b) {
            (space, true)
        } else {
            if self.groups[a].roots.len() + self.groups[b].roots.len() > MAX_ROOTS {
                return FusionReason::KernelSize { statements };
            }
            let mut roots = [&self.groups[a].roots[..], &self.groups[b].roots[..]].concat();
            roots.sort();
            let mut shared = self.loop_space(&roots);
            made(Made::Space {
                alone: [a, b].map(|g| self.groups[g].space.as_ref()),
                roots: [a, b].map(|g| &self.groups[g].roots[..]),
                shared: &mut shared,
            });
            if let Some(reason) = self.stored_instead([a, b], &roots, shared.as_ref().ok()) {
                return reason;
            }
            let space = match shared {
                Ok(space) => space,
                Err(reason) => return reason,
            };
            if let Some(reason) = self.unprofitable(&roots, &space) {
                return reason;
            }
            let flat = self.is_flat(&roots, &space);
            (space, flat)
        };
        if let Some(reason) = self.loses_emitter(a, b) {
            return reason;
        }
        match self.would_cycle(a, b) {
            Some(true) => return FusionReason::Cycle,
            None => return FusionReason::SearchBudget,
            Some(false) => {}
        }
        let Some(left) = self.merges.checked_sub(1) else {
            return FusionReason::Limit;
        };
        self.merges = left;
        let inner = space.roles.iter().flatten().any(|r| matches!(r, Role::Inner(_)));
        let reason = if siblings {
            FusionReason::Siblings
        } else if space.is_column_local() {
            FusionReason::ColumnLocal {
                columns: self.graph.dim_text(&IndexExpr::product(&space.parallel)),
            }
        } else if inner {
            FusionReason::RowLocal {
                rows: self.graph.dim_text(&IndexExpr::product(&space.parallel)),
            }
        } else {
            FusionReason::SameSpace
        };
        // The smaller joins the larger.
        let (into, from) = match self.groups[a].roots.len() < self.groups[b].roots.len() {
            true => (b, a),
            false => (a, b),
        };
        let moved = std::mem::take(&mut self.groups[from].roots);
        moved.iter().for_each(|r| self.group_of[r.index()] = Some(into));
        self.groups[from].merged_into = Some(into);
        let reads = [
            std::mem::take(&mut self.groups[from].reads),
            std::mem::take(&mut self.groups[into].reads),
        ];
        let mut reads: Vec<usize> = reads
            .iter()
            .flatten()
            .map(|&g| self.resolve(g))
            .filter(|&g| g != into)
            .collect();
        reads.sort();
        reads.dedup();
        let costly = std::mem::take(&mut self.groups[from].costly);
        let operations = self.groups[into].operations.with(&self.groups[from].operations);
        let group = &mut self.groups[into];
        group.costly.extend(costly);
        group.roots.extend(moved);
        group.roots.sort();
        group.statements = statements;
        group.operations = operations;
        group.space = Some(space);
        group.flat = flat;
        group.reads = reads;
        let (first, last) = (group.roots[0].index(), group.roots[group.roots.len() - 1].index());
        let mut at = self.cut_after(first);
        while at <= last {
            self.next_cut[at] = at as u32 + 1;
            at = self.cut_after(first);
        }
        reason
    }

    /// The first node after `node` with no group around the place before it: nothing up to there depends on what follows.
    fn cut_after(&mut self, node: usize) -> usize {
        let mut at = node + 1;
        while self.next_cut[at] as usize != at {
            // Halves the way for the next time.
            let next = self.next_cut[at] as usize;
            self.next_cut[at] = self.next_cut[next];
            at = next;
        }
        at
    }

    fn group(&self, root: NodeId) -> usize {
        self.group_of[root.index()].expect("a root that was seen has a group")
    }

    /// True if every root's axes are the parallel axes, one by one; those of one element need no loop.
    fn is_flat(&self, roots: &[NodeId], space: &LoopSpace) -> bool {
        let first = &space.roles[0];
        let in_order = first.iter().filter(|r| **r != Role::Unit).enumerate();
        in_order.into_iter().all(|(n, r)| *r == Role::Parallel(n))
            && roots.iter().all(|&r| self.graph.ty(r).rank() == first.len())
            && space.roles.iter().all(|r| r == first)
    }

    fn is_once(&self, group: usize) -> bool {
        self.once[self.groups[group].roots[0].index()]
    }

    /// The space of two groups that run over the same axes and read each other only at the very element that the loop is at.
    /// Looks only at what lies between the two, so that a chain of any length is put together in linear time.
    fn flat_space(&self, a: usize, b: usize) -> Option<LoopSpace> {
        let (x, y) = (&self.groups[a], &self.groups[b]);
        if !x.flat || !y.flat {
            return None;
        }
        let (root, other) = (x.roots[0], y.roots[0]);
        let shape = &self.graph.ty(root).shape;
        if *shape != self.graph.ty(other).shape {
            return None;
        }
        let here = |d: &Demand| {
            let at = d.index.iter().enumerate();
            at.zip(shape)
                .all(|((axis, i), extent)| extent.is(1) || i.as_var() == Some(VarId(axis as u32)))
        };
        let newer = |of: &Group, than: NodeId| of.roots[of.roots.partition_point(|&r| r < than)..].to_vec();
        for (reader, read, number) in [(x, y, b), (y, x, a)] {
            for r in newer(reader, read.roots[0]) {
                let mut inside = self.demands[&r]
                    .iter()
                    .filter(|d| self.group_of[d.source.index()] == Some(number));
                if !inside.all(here) {
                    return None;
                }
            }
        }
        // One role list for all: they are alike.
        x.space.clone()
    }

    /// The group that a group has become part of.
    fn resolve(&self, mut group: usize) -> usize {
        while let Some(into) = self.groups[group].merged_into {
            group = into;
        }
        group
    }

    /// Whether a path leads from one group to the other through a third. `None` if the search was cut short.
    fn would_cycle(&mut self, a: usize, b: usize) -> Option<bool> {
        for (start, goal) in [(a, b), (b, a)] {
            // Ids bound the search: what a group depends on is older than its newest root, unless a group on the way has
            // newer roots as well. So no way leads from one side of a cut to the newer one.
            let oldest = self.groups[goal].roots[0];
            let mut seen: FxHashSet<usize> = FxHashSet::default();
            let direct = self.groups[start].reads.iter().map(|&g| self.resolve(g));
            let mut work: Vec<usize> = direct.filter(|&g| g != start && g != goal).collect();
            while let Some(g) = work.pop() {
                let Some(&newest) = self.groups[g].roots.last() else {
                    continue;
                };
                if self.cut_after(newest.index()) <= oldest.index() || !seen.insert(g) {
                    continue;
                }
                if seen.len() > CYCLE_BUDGET {
                    return None;
                }
                for next in self.groups[g].reads.iter().map(|&g| self.resolve(g)) {
                    if next == goal || next == start {
                        return Some(true);
                    }
                    work.push(next);
                }
            }
        }
        Some(false)
    }

    /// Merges groups that read the same values over the same space without exchanging any.
    fn merge_siblings(&mut self) {
        let mut by_source: FxHashMap<NodeId, SmallVec<[NodeId; 4]>> = FxHashMap::default();
        let roots: Vec<NodeId> = self
            .graph
            .nodes()
            .map(|(id, _)| id)
            .filter(|id| self.is_root[id.index()])
            .collect();
        for &root in &roots {
            if self.groups[self.group(root)].step.is_some() {
                continue;
            }
            let mut sources: Vec<NodeId> = self.demands[&root].iter().map(|d| d.source).collect();
            sources.sort();
            sources.dedup();
            for source in sources {
                // Only the latest few readers of a value are tried, which keeps this linear.
                let readers = by_source.entry(source).or_default();
                let latest: SmallVec<[NodeId; 4]> = readers.iter().rev().take(4).copied().collect();
                readers.push(root);
                for other in latest {
                    let (a, b) = (self.group(other), self.group(root));
                    if a == b || !self.similar(other, root) {
                        continue;
                    }
                    let reason = self.try_merge(a.min(b), a.max(b), true);
                    self.ledger.record(FusionDecision {
                        stage: FusionStage::Siblings,
                        producer: other,
                        consumer: root,
                        reason,
                    });
                }
            }
        }
    }

    /// True if two roots iterate the same extents in the same way.
    fn similar(&self, a: NodeId, b: NodeId) -> bool {
        let (x, y) = (space(self.graph, a), space(self.graph, b));
        let axes = |id: NodeId| match self.kind(id) {
            NodeKind::Reduce { axes, .. } => axes.to_vec(),
            _ => Vec::new(),
        };
        x.extents == y.extents && x.result_rank == y.result_rank && axes(a) == axes(b)
    }

    fn finish(mut self) -> Clusters {
        let demanded = self.demanded_outside();
        // Order: ready clusters by their oldest root, updates of states that others still read behind all of them.
        let alive: Vec<usize> = (0..self.groups.len())
            .filter(|&g| self.groups[g].merged_into.is_none())
            .collect();
        let mut waiting: FxHashMap<usize, usize> = FxHashMap::default();
        let mut users: FxHashMap<usize, Vec<usize>> = FxHashMap::default();
        for &g in &alive {
            let mut sources: Vec<usize> = self.groups[g].reads.iter().map(|&s| self.resolve(s)).collect();
            sources.retain(|&s| s != g);
            sources.sort();
            sources.dedup();
            waiting.insert(g, sources.len());
            sources.into_iter().for_each(|s| users.entry(s).or_default().push(g));
        }
        let mut held = self.held();
        let place = |c: &Self, held: &Held, g: usize| (held.by(g), c.groups[g].roots[0], g);
        let mut ready: BTreeSet<(bool, NodeId, usize)> = alive
            .iter()
            .filter(|g| waiting[g] == 0)
            .map(|&g| place(&self, &held, g))
            .collect();
        let mut clusters = Vec::with_capacity(alive.len());
        while let Some((_, _, g)) = ready.pop_first() {
            for u in users.remove(&g).unwrap_or_default() {
                let left = waiting.get_mut(&u).expect("every alive group is counted");
                *left -= 1;
                if *left == 0 {
                    ready.insert(place(&self, &held, u));
                }
            }
            for u in held.released(g) {
                // One that has run has given its roots away.
                if let Some(&first) = self.groups[u].roots.first()
                    && ready.remove(&(true, first, u))
                {
                    ready.insert((false, first, u));
                }
            }
            clusters.push(self.cluster_of(g, &demanded));
        }
        debug_assert_eq!(clusters.len(), alive.len(), "the cluster graph is acyclic");
        // What runs once per executable runs before everything else.
        clusters.sort_by_key(|c: &Cluster| !c.once);
        Clusters {
            clusters,
            ledger: std::mem::take(&mut self.ledger),
            is_root: std::mem::take(&mut self.is_root),
        }
    }

    /// Which groups compute the new value of a state that other groups read.
    fn held(&self) -> Held {
        let mut held = Held::default();
        let mut updates: FxHashMap<NodeId, usize> = FxHashMap::default();
        for (value, input) in &self.updates {
            if let Some(group) = self.group_of[value.index()] {
                updates.insert(*input, group);
            }
        }
        if updates.is_empty() {
            return held;
        }
        let mut pairs: Vec<(usize, usize)> = Vec::new();
        for (reader, demands) in &self.demands {
            let Some(from) = self.group_of[reader.index()] else {
                continue;
            };
            let updated = demands.iter().filter_map(|d| updates.get(&d.source).copied());
            pairs.extend(updated.filter(|&u| u != from).map(|u| (from, u)));
        }
        pairs.sort_unstable();
        pairs.dedup();
        for (reader, update) in pairs {
            *held.readers.entry(update).or_default() += 1;
            held.updates.entry(reader).or_default().push(update);
        }
        held
    }

    /// By node: whether a root of another group reads it. What a group demands is all that counts, not the users of a value: a
    /// matrix product reads the value below a view, past the view, and so does a loop.
    fn demanded_outside(&self) -> Vec<bool> {
        let mut demanded = vec![false; self.graph.len()];
        for (reader, demands) in &self.demands {
            let group = self.group_of[reader.index()];
            for d in demands {
                demanded[d.source.index()] |= self.group_of[d.source.index()] != group;
            }
        }
        demanded
    }

    fn cluster_of(&mut self, g: usize, demanded: &[bool]) -> Cluster {
        let once = self.is_once(g);
        let roots = std::mem::take(&mut self.groups[g].roots);
        let stored = roots
            .iter()
            .copied()
            .filter(|&r| self.is_output[r.index()] || demanded[r.index()])
            .collect();
        let target = self.placement.target(roots[0]);
        let kind = match self.kind(roots[0]) {
            _ if self.products.contains_key(&roots[0]) => {
                ClusterKind::Gemm(Box::new(self.products.remove(&roots[0]).expect("checked")))
            }
            _ if self.weight_gradients.contains_key(&roots[0]) => {
                let form = self.weight_gradients.remove(&roots[0]).expect("checked");
                ClusterKind::WeightGradient(Box::new(form))
            }
            NodeKind::Scan { .. } => ClusterKind::Scan(scans::blocks(self.graph, roots[0], target)),
            NodeKind::Scatter { .. } => ClusterKind::Scatter(updates::updates(self.graph, roots[0], target)),
            NodeKind::Loop(_) => ClusterKind::Loop,
            NodeKind::Call(_) => ClusterKind::Call,
            _ => {
                let mut space = self.groups[g].space.take().expect("loop clusters have a space");
                if self.groups[g].flat {
                    let roles = space.roles[0].clone();
                    space.roles.resize(roots.len(), roles);
                }
                ClusterKind::Loops(space)
            }
        };
        let emitter = match &kind {
            ClusterKind::WeightGradient(_) => tiles(target),
            _ => None,
        };
        Cluster {
            roots,
            stored,
            kind,
            emitter: emitter.unwrap_or_else(|| choose(target, &self.groups[g].operations)),
            once,
        }
    }
}
