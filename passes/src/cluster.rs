//! Clustering: which values share a kernel.
//!
//! Every value that something outside its own kernel may need is a *root*: outputs, reductions, contractions, scans,
//! scatters, operands of library calls, and values whose recomputation would cost more than storing them. Everything else
//! is inlined into the roots that use it. Roots start as singletons and merge along producer-consumer edges, then with
//! siblings. Legality and profit are separate questions; each decided edge leaves a [`FusionDecision`].
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
mod constants;
mod counted;
pub(crate) mod horizon;
mod interleaved;
mod joins;
mod merge;
mod operations;
mod product_rows;
mod roots;
mod scans;
mod space;
mod turned;
mod updates;

use std::collections::BTreeSet;

pub(crate) use roots::cost;
pub use roots::{held_value, output_values};

pub use crate::partition::{
    Attention, Blocks, Cluster, ClusterKind, Clusters, LoopSpace, Part, ProductRows, Role, ScanForm, Updates,
};

use again::Again;
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use tlc_ir::index::IndexExpr;
use tlc_ir::target::EmitterId;
use tlc_ir::{Graph, NodeId, NodeKind};

use crate::access::{Index, Variables, is_source, operand_indices, space};
use crate::contraction::MatrixProduct;
use crate::devices::{Placement, StateBinding};
use crate::emitters::{Operations, choose, tiles};
use crate::made::{Made, made};
use crate::reason::{FusionDecision, FusionLedger, FusionStage, OwnStep};
use crate::weight_gradient::WeightGradient;

/// Legalized statements beyond which a kernel does not grow, before any loop is unrolled. Compile time is linear in a kernel's
/// size, so any size would do for that; but from some hundred statements on a kernel no longer fits the instruction cache, and
/// [`tlc_ir::kernel::MAX_STATEMENTS`] are more than the language allows. The distance between the two is room for what the
/// estimate does not see, and for vectors side by side and tails.
pub const MAX_KERNEL_STATEMENTS: u32 = 12_000;
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
    /// Parts of concatenations that it is asked of which it is in.
    parts: u32,
    /// Whether bytes are looked up.
    looks_up: bool,
}

struct Group {
    /// Ascending.
    roots: Vec<NodeId>,
    /// Legalized statements, each root computed once.
    statements: u32,
    /// What its kernel does for each element.
    operations: Operations,
    /// What would make its kernel, once that was asked.
    emitter: Option<EmitterId>,
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
    /// Concatenations whose parts are stored where they have them.
    joins: FxHashMap<NodeId, Vec<Part>>,
    /// Roots that have the elements of several others in turn ([`interleaved`]).
    interleaved: FxHashSet<NodeId>,
    /// By node: what a root reads.
    demands: Vec<Vec<Demand>>,
    /// Values that are stored because some that read them would compute them again, at a higher cost.
    costly: FxHashMap<NodeId, Again>,
    /// By node: what computing an element of a root costs, and the statements it takes.
    cone_sizes: Vec<ConeSize>,
    groups: Vec<Group>,
    /// By symbol: the call that binds it.
    binders: Vec<Option<NodeId>>,
    /// By node: the group of a root.
    group_of: Vec<Option<usize>>,
    /// By node: itself, if no group has roots on both sides of the place before it, else a later node: the way to the next
    /// such place.
    next_cut: Vec<u32>,
    ledger: FusionLedger,
    /// By group: the last search for a circle that came by it.
    searched: Vec<u32>,
    /// Such searches.
    searches: u32,
    /// Fusions that may still be made.
    merges: usize,
    /// New values of states, and the inputs that are the old ones.
    updates: Vec<(NodeId, NodeId)>,
}

/// Elements that were met below a root: mostly few, which are compared one by one.
#[derive(Default)]
struct Seen {
    few: SmallVec<[(NodeId, Index); 8]>,
    many: FxHashSet<(NodeId, Index)>,
}

/// Elements that are compared one by one.
const FEW_SEEN: usize = 32;

impl Seen {
    /// Notes an element; false if it was there.
    fn insert(&mut self, node: NodeId, index: &Index) -> bool {
        if self.few.iter().any(|(n, i)| *n == node && i == index) {
            return false;
        }
        if self.few.len() < FEW_SEEN {
            self.few.push((node, index.clone()));
            return true;
        }
        self.many.insert((node, index.clone()))
    }
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
    let values = output_values(graph, placement.products());
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
        joins: FxHashMap::default(),
        interleaved: FxHashSet::default(),
        demands: std::iter::repeat_with(Vec::new).take(graph.len()).collect(),
        costly: FxHashMap::default(),
        cone_sizes: vec![
            ConeSize {
                cost: 1,
                statements: 1,
                parts: 0,
                looks_up: false,
            };
            graph.len()
        ],
        groups: Vec::new(),
        binders: graph.binders(),
        group_of: vec![None; graph.len()],
        next_cut: (0..=graph.len() as u32).collect(),
        ledger: FusionLedger::default(),
        searched: Vec::new(),
        searches: 0,
        merges,
    };
    c.mark_roots(once);
    c.grow();
    c.merge_siblings();
    let (mut clusters, demands) = c.finish();
    if merges == usize::MAX {
        attention::join(graph, placement, &mut clusters);
        product_rows::join(graph, placement, &demands, &mut clusters);
    }
    made(Made::Clusters {
        graph,
        clusters: &mut clusters,
    });
    clusters
}

impl Clusterer<'_> {
    fn cone_size(&self, root: NodeId) -> ConeSize {
        self.cone_sizes[root.index()]
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
        let mut seen = Seen::default();
        let mut work: Vec<(NodeId, Index)> = Vec::new();
        self.step_down(root, &point, &mut vars, &mut work);
        while let Some((node, index)) = work.pop() {
            if !seen.insert(node, &index) {
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
                work.push((n.operands[0], view.operand_index(from, &n.ty.shape, index, vars).index));
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
            NodeKind::Reduce { .. } | NodeKind::Einsum { .. } => work.extend(operand_indices(self.graph, node, index)),
            _ => work.extend(n.operands.iter().map(|&o| (o, index.clone()))),
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
                continue;
            }
            let step = match self.kind(root) {
                NodeKind::Loop(_) => Some(OwnStep::Loop),
                NodeKind::Call(_) => Some(OwnStep::Call),
                NodeKind::Einsum { .. } if self.products.contains_key(&root) => Some(OwnStep::MatrixProduct),
                NodeKind::Einsum { .. } if self.weight_gradients.contains_key(&root) => Some(OwnStep::WeightGradient),
                NodeKind::Map(_) if self.joins.contains_key(&root) => Some(OwnStep::Join),
                NodeKind::Scan { .. } => Some(OwnStep::Scan),
                NodeKind::Scatter { .. } => Some(OwnStep::Scatter),
                _ => None,
            };
            let whole = |operands: &[NodeId]| {
                let demand = |&source| Demand {
                    source,
                    index: Index::new(),
                };
                operands.iter().map(demand).collect::<Vec<Demand>>()
            };
            // Steps of their own still need their sources for ordering and the cycle check.
            let demands = match step {
                None => self.demands_of(root),
                Some(OwnStep::MatrixProduct) => {
                    let p = &self.products[&root];
                    whole(&[p.lhs.base, p.rhs.base])
                }
                Some(OwnStep::WeightGradient) => {
                    let w = &self.weight_gradients[&root];
                    whole(&[w.gradient.0, w.image.0])
                }
                Some(OwnStep::Join) => {
                    let values: Vec<NodeId> = self.joins[&root].iter().map(|p| p.value).collect();
                    whole(&values)
                }
                Some(OwnStep::Loop | OwnStep::Call | OwnStep::Scan | OwnStep::Scatter) => self.reachable_sources(root),
            };
            let group = self.groups.len();
            self.groups.push(Group {
                roots: vec![root],
                statements: self.cone_size(root).statements,
                operations: self.operations_of(root),
                emitter: None,
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
            self.demands[root.index()] = demands;
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

    fn group(&self, root: NodeId) -> usize {
        self.group_of[root.index()].expect("a root that was seen has a group")
    }

    /// The group that a group has become part of.
    fn resolve(&self, mut group: usize) -> usize {
        while let Some(into) = self.groups[group].merged_into {
            group = into;
        }
        group
    }

    fn finish(mut self) -> (Clusters, Vec<Vec<Demand>>) {
        let demanded = self.demanded_outside();
        // Order: ready clusters by how many calls one after the other decide sizes before them, so that sizes are evaluated as few times;
        // then by their oldest root, updates of states that others still read behind all of them.
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
        let place = |c: &Self, held: &Held, g: usize, calls: u32| (calls, held.by(g), c.groups[g].roots[0], g);
        let mut ready: BTreeSet<(u32, bool, NodeId, usize)> = alive
            .iter()
            .filter(|g| waiting[g] == 0)
            .map(|&g| place(&self, &held, g, 0))
            .collect();
        // By group: how many calls decide sizes before it.
        let mut calls: Vec<u32> = vec![0; self.groups.len()];
        let mut clusters = Vec::with_capacity(alive.len());
        while let Some((before, _, first, g)) = ready.pop_first() {
            let decides = self.binders.contains(&Some(first));
            for u in users.remove(&g).unwrap_or_default() {
                calls[u] = calls[u].max(before + u32::from(decides));
                let left = waiting.get_mut(&u).expect("every alive group is counted");
                *left -= 1;
                if *left == 0 {
                    ready.insert(place(&self, &held, u, calls[u]));
                }
            }
            for u in held.released(g) {
                // One that has run has given its roots away.
                if let Some(&first) = self.groups[u].roots.first()
                    && ready.remove(&(calls[u], true, first, u))
                {
                    ready.insert((calls[u], false, first, u));
                }
            }
            clusters.push(self.cluster_of(g, &demanded));
        }
        debug_assert_eq!(clusters.len(), alive.len(), "the cluster graph is acyclic");
        // What runs once per executable runs before everything else.
        clusters.sort_by_key(|c: &Cluster| !c.once);
        let clusters = Clusters {
            clusters,
            ledger: std::mem::take(&mut self.ledger),
            is_root: std::mem::take(&mut self.is_root),
        };
        (clusters, self.demands)
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
        for (demands, from) in self.demands.iter().zip(&self.group_of) {
            let &Some(from) = from else {
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
        for (demands, group) in self.demands.iter().zip(&self.group_of) {
            for d in demands {
                demanded[d.source.index()] |= self.group_of[d.source.index()] != *group;
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
            _ if self.joins.contains_key(&roots[0]) => {
                ClusterKind::Join(self.joins.remove(&roots[0]).expect("checked"))
            }
            NodeKind::Scan { .. } => ClusterKind::Scan(scans::form(self.graph, roots[0], target)),
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
