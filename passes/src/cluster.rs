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
//! Invariants: the cluster graph is acyclic; clusters come out in a topological order; a root belongs to one cluster.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use tlc_ir::graph::{Shape, View};
use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::{DType, Graph, NodeId, NodeKind, Target};

use crate::access::{Index, Variables, operand_indices, space, view_index};
use crate::contraction::{self, MatrixProduct};
use crate::reason::{FusionDecision, FusionReason};

/// Scalar operations beyond which kernels do not grow.
pub const MAX_KERNEL_OPS: u32 = 2048;
/// Size of an inlined cone beyond which its top becomes a root, which bounds recursion over cones.
const MAX_CONE: u32 = 192;
/// Cheap recomputation: at most so many operations over at most one loaded value.
const CHEAP_OPS: u32 = 3;
/// Roots of one cluster.
const MAX_ROOTS: usize = 64;
/// Clusters visited when looking for a cycle.
const CYCLE_BUDGET: usize = 512;

/// What an axis of a root is in its cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// The cluster's parallel axis of that number.
    Parallel(usize),
    /// The root's own inner axis of that number.
    Inner(usize),
    /// An axis of one element: always at 0, so no loop.
    Unit,
}

/// The parallel axes of a loop cluster, and how each root's axes map to them.
#[derive(Clone, PartialEq, Debug)]
pub struct LoopSpace {
    /// Extents of the parallel axes, outermost first.
    pub parallel: Shape,
    /// Per root (in the order of [`Cluster::roots`]): the role of each axis of its space.
    pub roles: Vec<Vec<Role>>,
}

/// How a cluster runs.
#[derive(Clone, PartialEq, Debug)]
pub enum ClusterKind {
    /// One fused loop nest.
    Loops(LoopSpace),
    /// A matrix product by the library.
    Gemm(Box<MatrixProduct>),
    /// A serial loop along an axis.
    Scan,
    /// A copy of the base and a serial loop over the updates.
    Scatter,
}

/// Values that are computed together.
#[derive(Clone, PartialEq, Debug)]
pub struct Cluster {
    /// Roots, ascending.
    pub roots: Vec<NodeId>,
    /// The roots that something outside needs.
    pub stored: Vec<NodeId>,
    /// How it runs.
    pub kind: ClusterKind,
}

/// The result of clustering.
#[derive(Clone, Debug, Default)]
pub struct Clusters {
    /// Clusters in execution order.
    pub clusters: Vec<Cluster>,
    /// Every decision, in the order made.
    pub decisions: Vec<FusionDecision>,
    /// True for each node that is a root.
    pub is_root: Vec<bool>,
}

/// A value that a root reads at one point of its space.
struct Demand {
    source: NodeId,
    index: Index,
}

struct Group {
    roots: Vec<NodeId>,
    ops: u32,
    space: Option<LoopSpace>,
    step: Option<&'static str>,
    alive: bool,
}

struct Clusterer<'g> {
    graph: &'g Graph,
    target: &'g Target,
    users: Vec<SmallVec<[NodeId; 4]>>,
    is_output: Vec<bool>,
    is_root: Vec<bool>,
    products: FxHashMap<NodeId, MatrixProduct>,
    demands: FxHashMap<NodeId, Vec<Demand>>,
    cone_ops: FxHashMap<NodeId, u32>,
    groups: Vec<Group>,
    group_of: FxHashMap<NodeId, usize>,
    decisions: Vec<FusionDecision>,
}

/// Groups a graph's values into clusters. The graph has no dead nodes, and each output is a node of its own.
pub fn cluster(graph: &Graph, target: &Target) -> Clusters {
    let mut users: Vec<SmallVec<[NodeId; 4]>> = vec![SmallVec::new(); graph.len()];
    for (id, node) in graph.nodes() {
        for o in &node.operands {
            if users[o.index()].last() != Some(&id) {
                users[o.index()].push(id);
            }
        }
    }
    let mut is_output = vec![false; graph.len()];
    graph.outputs().iter().for_each(|o| is_output[o.node.index()] = true);
    let mut c = Clusterer {
        graph,
        target,
        users,
        is_output,
        is_root: vec![false; graph.len()],
        products: FxHashMap::default(),
        demands: FxHashMap::default(),
        cone_ops: FxHashMap::default(),
        groups: Vec::new(),
        group_of: FxHashMap::default(),
        decisions: Vec::new(),
    };
    c.mark_roots();
    c.grow();
    c.merge_siblings();
    c.finish()
}

/// True for nodes that hold a value without being computed.
pub fn is_source(kind: &NodeKind) -> bool {
    matches!(kind, NodeKind::Input { .. } | NodeKind::Data(_))
}

impl Clusterer<'_> {
    fn kind(&self, id: NodeId) -> &NodeKind {
        &self.graph.node(id).kind
    }

    fn mark_roots(&mut self) {
        // Library calls first: they decide which values must exist in memory.
        for (id, node) in self.graph.nodes() {
            if let NodeKind::Einsum { .. } = node.kind
                && let Some(product) = contraction::matrix_product(self.graph, id)
            {
                for base in [product.lhs.base, product.rhs.base] {
                    self.is_root[base.index()] |= !is_source(self.kind(base));
                }
                self.products.insert(id, product);
            }
        }
        let mut cone = vec![0u32; self.graph.len()];
        let mut loads = vec![0u32; self.graph.len()];
        for (id, node) in self.graph.nodes() {
            let i = id.index();
            if is_source(&node.kind) {
                loads[i] = 1;
                continue;
            }
            let cost = match &node.kind {
                NodeKind::Map(op) if op.is_transcendental() => 10,
                NodeKind::Map(_) | NodeKind::Convert(_) => 1,
                NodeKind::Random { .. } => 100,
                NodeKind::Gather { .. } => 2,
                _ => 0,
            };
            let below = |v: &[u32], leaf: u32| -> u32 {
                let each = node
                    .operands
                    .iter()
                    .map(|o| if self.is_root[o.index()] { leaf } else { v[o.index()] });
                each.fold(0u32, |a, b| a.saturating_add(b))
            };
            // Views count one toward the size of the cone (recursion) but nothing toward its cost.
            let size = below(&cone, 0).saturating_add(cost.max(1));
            let read = below(&loads, 1);
            let own = matches!(
                node.kind,
                NodeKind::Reduce { .. }
                    | NodeKind::Einsum { .. }
                    | NodeKind::Scan { .. }
                    | NodeKind::Scatter { .. }
                    | NodeKind::Copy
            );
            let free = matches!(
                node.kind,
                NodeKind::View(_) | NodeKind::Const(_) | NodeKind::Iota { .. }
            );
            let shared = self.users[i].len() > 1 && !free;
            let cheap = size <= CHEAP_OPS && read <= 1 && cost < 10;
            if shared && cheap && !self.is_output[i] && !own {
                self.decisions.push(FusionDecision {
                    producer: id,
                    consumer: self.users[i][0],
                    reason: FusionReason::Recompute { ops: size },
                });
            }
            let root = self.is_root[i] || self.is_output[i] || own || (shared && !cheap) || size > MAX_CONE;
            self.is_root[i] = root;
            cone[i] = size;
            loads[i] = read;
            if root {
                self.cone_ops.insert(id, size);
            }
        }
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
            let step = match self.kind(root) {
                NodeKind::Einsum { .. } if self.products.contains_key(&root) => Some("matrix product"),
                NodeKind::Scan { .. } => Some("scan"),
                NodeKind::Scatter { .. } => Some("scatter"),
                _ => None,
            };
            // Steps of their own still need their sources for ordering and the cycle check.
            let demands = match step {
                None => self.demands_of(root),
                Some("matrix product") => {
                    let p = &self.products[&root];
                    [p.lhs.base, p.rhs.base]
                        .map(|source| Demand {
                            source,
                            index: Index::new(),
                        })
                        .into()
                }
                Some(_) => self.reachable_sources(root),
            };
            let group = self.groups.len();
            self.groups.push(Group {
                roots: vec![root],
                ops: self.cone_ops.get(&root).copied().unwrap_or(1),
                space: None,
                step,
                alive: true,
            });
            self.group_of.insert(root, group);
            let mut producers: Vec<NodeId> = Vec::new();
            for d in &demands {
                if self.is_root[d.source.index()] && !producers.contains(&d.source) {
                    producers.push(d.source);
                }
            }
            self.demands.insert(root, demands);
            if step.is_none() {
                self.groups[group].space = self.loop_space(&[root]).ok();
            }
            // Nearest producers first: they are the likeliest to be still in flight.
            producers.sort_by(|a, b| b.cmp(a));
            for producer in producers {
                let (from, into) = (self.group_of[&producer], self.group_of[&root]);
                if from == into {
                    continue;
                }
                let reason = self.try_merge(from, into, false);
                self.decisions.push(FusionDecision {
                    producer,
                    consumer: root,
                    reason,
                });
            }
        }
    }

    fn reachable_sources(&self, root: NodeId) -> Vec<Demand> {
        let mut out = Vec::new();
        let mut seen = vec![];
        let mut work: Vec<NodeId> = self.graph.node(root).operands.to_vec();
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

    /// Merges two groups if that is legal and pays; answers why or why not.
    fn try_merge(&mut self, a: usize, b: usize, siblings: bool) -> FusionReason {
        for g in [a, b] {
            if let Some(step) = self.groups[g].step {
                return FusionReason::OwnStep { step };
            }
        }
        let ops = self.groups[a].ops.saturating_add(self.groups[b].ops);
        if ops > MAX_KERNEL_OPS || self.groups[a].roots.len() + self.groups[b].roots.len() > MAX_ROOTS {
            return FusionReason::KernelSize { ops };
        }
        let mut roots = [&self.groups[a].roots[..], &self.groups[b].roots[..]].concat();
        roots.sort();
        let space = match self.loop_space(&roots) {
            Ok(space) => space,
            Err(reason) => return reason,
        };
        if let Some(reason) = self.unprofitable(&roots, &space) {
            return reason;
        }
        match self.would_cycle(a, b) {
            Some(true) => return FusionReason::Cycle,
            None => return FusionReason::SearchBudget,
            Some(false) => {}
        }
        let inner = space.roles.iter().flatten().any(|r| matches!(r, Role::Inner(_)));
        let reason = if siblings {
            FusionReason::Siblings
        } else if inner {
            FusionReason::RowLocal {
                rows: self.graph.dim_text(&IndexExpr::product(&space.parallel)),
            }
        } else {
            FusionReason::SameSpace
        };
        for &r in &self.groups[b].roots {
            self.group_of.insert(r, a);
        }
        self.groups[b].alive = false;
        self.groups[a].roots = roots;
        self.groups[a].ops = ops;
        self.groups[a].space = Some(space);
        reason
    }

    /// The parallel axes of a set of roots, or why they cannot share a loop.
    fn loop_space(&self, roots: &[NodeId]) -> Result<LoopSpace, FusionReason> {
        let spaces: Vec<_> = roots.iter().map(|&r| space(self.graph, r)).collect();
        let mut first = Vec::with_capacity(roots.len());
        let mut total = 0usize;
        for s in &spaces {
            first.push(total);
            total += s.extents.len();
        }
        let mut parent: Vec<usize> = (0..total).collect();
        fn find(parent: &mut [usize], mut x: usize) -> usize {
            while parent[x] != x {
                parent[x] = parent[parent[x]];
                x = parent[x];
            }
            x
        }
        let mut serial = vec![false; total];
        let mut touched = vec![false; roots.len()];
        let position = |id: NodeId| roots.binary_search(&id).ok();
        for (k, s) in spaces.iter().enumerate() {
            for flag in &mut serial[first[k] + s.result_rank..first[k] + s.extents.len()] {
                *flag = true;
            }
        }
        for (k, &consumer) in roots.iter().enumerate() {
            for d in &self.demands[&consumer] {
                let Some(p) = position(d.source).filter(|&p| p != k) else {
                    continue;
                };
                touched[k] = true;
                touched[p] = true;
                let mut used: SmallVec<[VarId; 4]> = SmallVec::new();
                for (axis, i) in d.index.iter().enumerate() {
                    let at = first[p] + axis;
                    let var = i
                        .as_var()
                        .filter(|v| (v.0 as usize) < spaces[k].extents.len() && !used.contains(v));
                    match var {
                        Some(v) if spaces[k].extents[v.0 as usize] == spaces[p].extents[axis] => {
                            used.push(v);
                            let (x, y) = (find(&mut parent, at), find(&mut parent, first[k] + v.0 as usize));
                            parent[x.max(y)] = x.min(y);
                        }
                        _ if spaces[p].extents[axis].is(1) => {}
                        _ => serial[at] = true,
                    }
                }
            }
        }
        // Roots that exchange nothing line up by position of their result axes.
        let anchor = (0..roots.len())
            .min_by_key(|&k| (spaces[k].result_rank, k))
            .unwrap_or(0);
        for k in 0..roots.len() {
            if k != anchor && !(touched[k] && touched[anchor]) {
                for axis in 0..spaces[anchor].result_rank.min(spaces[k].result_rank) {
                    if spaces[anchor].extents[axis] == spaces[k].extents[axis] {
                        let (x, y) = (
                            find(&mut parent, first[anchor] + axis),
                            find(&mut parent, first[k] + axis),
                        );
                        parent[x.max(y)] = x.min(y);
                    }
                }
            }
        }
        let class: Vec<usize> = (0..total).map(|x| find(&mut parent, x)).collect();
        let mut serial_class = vec![false; total];
        (0..total)
            .filter(|&x| serial[x])
            .for_each(|x| serial_class[class[x]] = true);
        let mut parallel_classes = Vec::new();
        let mut parallel = Shape::new();
        for axis in 0..spaces[anchor].result_rank {
            if spaces[anchor].extents[axis].is(1) {
                continue;
            }
            let c = class[first[anchor] + axis];
            let in_all = (0..roots.len()).all(|k| {
                (0..spaces[k].extents.len())
                    .filter(|a| class[first[k] + a] == c)
                    .count()
                    == 1
            });
            if in_all && !serial_class[c] {
                parallel_classes.push(c);
                parallel.push(spaces[anchor].extents[axis].clone());
            }
        }
        let mut roles = Vec::with_capacity(roots.len());
        for (k, s) in spaces.iter().enumerate() {
            let mut inner = 0;
            let mut last_parallel = None;
            let mut row = Vec::with_capacity(s.extents.len());
            for axis in 0..s.extents.len() {
                if s.extents[axis].is(1) {
                    row.push(Role::Unit);
                    continue;
                }
                match parallel_classes.iter().position(|&c| c == class[first[k] + axis]) {
                    Some(p) => {
                        // A root that stores rows must store them whole: inner axes are its last.
                        if inner > 0 || last_parallel.is_some_and(|l| l > p) {
                            return Err(FusionReason::StridedRows);
                        }
                        last_parallel = Some(p);
                        row.push(Role::Parallel(p));
                    }
                    None => {
                        row.push(Role::Inner(inner));
                        inner += 1;
                    }
                }
            }
            // A reduction's result must be complete at one point of the parallel space.
            let reduces = s.extents.len() > s.result_rank;
            if reduces && row[..s.result_rank].iter().any(|r| matches!(r, Role::Inner(_))) {
                return Err(FusionReason::OtherIndices);
            }
            roles.push(row);
        }
        // What is read inside the cluster must be the element of this very iteration.
        for (k, &consumer) in roots.iter().enumerate() {
            for d in &self.demands[&consumer] {
                let Some(p) = position(d.source).filter(|&p| p != k) else {
                    continue;
                };
                for (axis, i) in d.index.iter().enumerate() {
                    if let Role::Parallel(number) = roles[p][axis] {
                        let same = i
                            .as_var()
                            .is_some_and(|v| roles[k].get(v.0 as usize) == Some(&Role::Parallel(number)));
                        if !same && !spaces[p].extents[axis].is(1) {
                            return Err(FusionReason::OtherIndices);
                        }
                    }
                }
            }
        }
        Ok(LoopSpace { parallel, roles })
    }

    fn unprofitable(&self, roots: &[NodeId], merged: &LoopSpace) -> Option<FusionReason> {
        let rows = IndexExpr::product(&merged.parallel).as_const();
        let row = roots.iter().zip(&merged.roles).filter_map(|(&r, roles)| {
            let s = space(self.graph, r);
            let inner = roles
                .iter()
                .zip(&s.extents)
                .filter(|(role, _)| matches!(role, Role::Inner(_)));
            inner.fold(IndexExpr::ONE, |n, (_, d)| n * d.clone()).as_const()
        });
        let row = row.max().unwrap_or(1);
        if let Some(rows) = rows
            && rows < 8
            && row > 1 << 14
            && rows.saturating_mul(row) > 1 << 16
        {
            return Some(FusionReason::FewRows { rows, row });
        }
        // Half of the second-level cache must hold the row in f32.
        (row.saturating_mul(4) > self.target.l2_bytes as i64 / 2).then_some(FusionReason::LongRows { row })
    }

    fn sources(&self, group: usize) -> impl Iterator<Item = usize> + '_ {
        self.groups[group].roots.iter().flat_map(|r| {
            self.demands[r]
                .iter()
                .filter_map(|d| self.group_of.get(&d.source).copied())
        })
    }

    /// Whether a path leads from one group to the other through a third. `None` if the search was cut short.
    fn would_cycle(&self, a: usize, b: usize) -> Option<bool> {
        // Ids bound the search: a group whose newest root is older than the oldest of the target cannot depend on it.
        let oldest = |g: usize| self.groups[g].roots[0];
        let newest = |g: usize| *self.groups[g].roots.last().expect("groups are not empty");
        for (start, goal) in [(a, b), (b, a)] {
            let mut seen: Vec<usize> = Vec::new();
            let mut work: Vec<usize> = self.sources(start).filter(|&g| g != start && g != goal).collect();
            while let Some(g) = work.pop() {
                if seen.contains(&g) || newest(g) < oldest(goal) {
                    continue;
                }
                if seen.len() >= CYCLE_BUDGET {
                    return None;
                }
                seen.push(g);
                for next in self.sources(g) {
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
            if self.groups[self.group_of[&root]].step.is_some() {
                continue;
            }
            let mut sources: Vec<NodeId> = self.demands[&root].iter().map(|d| d.source).collect();
            sources.sort();
            sources.dedup();
            for source in sources {
                // Only the latest few readers of a value are tried, which keeps this linear.
                let readers = by_source.entry(source).or_default().clone();
                for other in readers.iter().rev().take(4) {
                    let (a, b) = (self.group_of[other], self.group_of[&root]);
                    if a == b || !self.similar(*other, root) {
                        continue;
                    }
                    let reason = self.try_merge(a.min(b), a.max(b), true);
                    self.decisions.push(FusionDecision {
                        producer: *other,
                        consumer: root,
                        reason,
                    });
                }
                by_source.entry(source).or_default().push(root);
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
        // Order: ready clusters by their oldest root.
        let alive: Vec<usize> = (0..self.groups.len()).filter(|&g| self.groups[g].alive).collect();
        let mut waiting: FxHashMap<usize, usize> = FxHashMap::default();
        let mut users: FxHashMap<usize, Vec<usize>> = FxHashMap::default();
        for &g in &alive {
            let mut sources: Vec<usize> = self.sources(g).filter(|&s| s != g).collect();
            sources.sort();
            sources.dedup();
            waiting.insert(g, sources.len());
            sources.into_iter().for_each(|s| users.entry(s).or_default().push(g));
        }
        let mut ready: std::collections::BTreeSet<(NodeId, usize)> = alive
            .iter()
            .filter(|g| waiting[g] == 0)
            .map(|&g| (self.groups[g].roots[0], g))
            .collect();
        let mut clusters = Vec::with_capacity(alive.len());
        while let Some((_, g)) = ready.pop_first() {
            for u in users.remove(&g).unwrap_or_default() {
                let left = waiting.get_mut(&u).expect("every alive group is counted");
                *left -= 1;
                if *left == 0 {
                    ready.insert((self.groups[u].roots[0], u));
                }
            }
            clusters.push(self.cluster_of(g));
        }
        debug_assert_eq!(clusters.len(), alive.len(), "the cluster graph is acyclic");
        Clusters {
            clusters,
            decisions: std::mem::take(&mut self.decisions),
            is_root: std::mem::take(&mut self.is_root),
        }
    }

    fn cluster_of(&mut self, g: usize) -> Cluster {
        let roots = std::mem::take(&mut self.groups[g].roots);
        let stored = roots
            .iter()
            .copied()
            .filter(|&r| self.is_output[r.index()] || self.needed_outside(r, g))
            .collect();
        let kind = match self.kind(roots[0]) {
            _ if self.products.contains_key(&roots[0]) => {
                ClusterKind::Gemm(Box::new(self.products.remove(&roots[0]).expect("checked")))
            }
            NodeKind::Scan { .. } => ClusterKind::Scan,
            NodeKind::Scatter { .. } => ClusterKind::Scatter,
            _ => ClusterKind::Loops(self.groups[g].space.take().expect("loop clusters have a space")),
        };
        Cluster { roots, stored, kind }
    }

    /// True if a root of another group demands `root`. Inlined users count through the roots they feed.
    fn needed_outside(&self, root: NodeId, group: usize) -> bool {
        let mut work: Vec<NodeId> = self.users[root.index()].to_vec();
        let mut seen: Vec<NodeId> = Vec::new();
        while let Some(n) = work.pop() {
            if self.is_root[n.index()] {
                if self.group_of[&n] != group {
                    return true;
                }
            } else if !seen.contains(&n) {
                seen.push(n);
                work.extend(self.users[n.index()].iter());
            }
        }
        false
    }
}

/// Whether a dtype's values can be multiplied by the library.
pub fn library_dtype(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F64)
}

/// True for views that only move elements (all but `pad`).
pub fn moves_only(view: &View) -> bool {
    !matches!(view, View::Pad { .. })
}
