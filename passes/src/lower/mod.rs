//! Lowering: one cluster to naive loop nests.
//!
//! The nests are serial and scalar: what is computed, once per iteration, in order. How they run fast is the schedule's
//! business. Values are evaluated on demand: asking for a node at an index emits what it needs at the outermost loop level
//! whose variables the index mentions, once per level.
//!
//! Shape of a loop cluster's nest:
//! ```text
//! for each parallel axis:
//!   row statements, and per phase:
//!     accumulators = identity
//!     for each inner axis: values; accumulate; store
//!   stores of row values
//! ```
//! A *phase* is a pass over the row: reductions that need another reduction's result wait for the next phase. Costly values
//! that two phases need are staged in scratch. In *column* form (the last parallel axis is the contiguous one) the inner
//! loops run outside a loop over a tile of columns, and accumulators are arrays. Where phases meet the same elements of a
//! tile (*column-local* clusters), what they load is staged as well, and what is the same in every row of a column is computed
//! once a column.

mod eval;
mod in_columns;
mod in_place;
mod indexed;

use rustc_hash::{FxHashMap, FxHashSet};
use tlc_ir::graph::{Monoid, Shape};
use tlc_ir::index::{Bounds, IndexExpr, IndexNode, Interval, SymId, VarId};
use tlc_ir::kernel::{Access, Bind, Kernel, Memory, Op, Param, Scope, Stmt, ValueId};
use tlc_ir::{DType, Graph, NodeId, NodeKind};

use crate::access::{Index, flat_index, operand_indices, space};
use crate::cluster::columns::{column_form, trailing_columns};
use crate::cluster::{Cluster, ClusterKind, LoopSpace, Role, is_source};
use crate::made::{Made, made};

/// Columns of one tile in column form.
const COLUMN_TILE: i64 = 256;

/// Roots of a cluster beyond which values are evaluated in the order of the graph instead of on demand.
const LONG_CLUSTER: usize = 16;

/// How a nest is built, which is what the schedule needs to know of it.
#[derive(Clone, PartialEq, Debug)]
pub enum Form {
    /// Parallel loops only.
    Elementwise,
    /// Rows: parallel loops around inner loops, which walk memory contiguously.
    Rows,
    /// Columns: inner loops around a loop over a tile of columns.
    Columns,
    /// A serial recurrence.
    Serial,
}

/// A naive loop nest.
#[derive(Clone, PartialEq, Debug)]
pub struct Nest {
    /// The kernel; its symbols are the graph's.
    pub kernel: Kernel,
    /// The node whose value each parameter holds.
    pub args: Vec<NodeId>,
    /// Loops over parallel axes, outermost first.
    pub parallel: Vec<VarId>,
    /// How it was built.
    pub form: Form,
    /// `(read, written)` parameter pairs that may be one buffer: each element is read only by the parallel iteration that
    /// overwrites it, before it does.
    pub in_place: Vec<(u32, u32)>,
    /// Floating-point operations, a transcendental counting 20.
    pub flops: IndexExpr,
}

/// Lowers a cluster to the nests that compute its stored roots, in order.
pub fn lower(graph: &Graph, cluster: &Cluster, is_root: &[bool]) -> Vec<Nest> {
    match &cluster.kind {
        ClusterKind::Loops(space) => vec![lower_loops(graph, cluster, space, is_root)],
        ClusterKind::Scan => vec![indexed::lower_scan(graph, cluster, is_root)],
        ClusterKind::Scatter(updates) => indexed::lower_scatter(graph, cluster, is_root, *updates),
        ClusterKind::Gemm(_) | ClusterKind::Loop | ClusterKind::Call => Vec::new(),
    }
}

/// As [`lower`], but computes again what several phases of a row need instead of keeping it in scratch.
pub fn lower_unstaged(graph: &Graph, cluster: &Cluster, is_root: &[bool]) -> Vec<Nest> {
    match &cluster.kind {
        ClusterKind::Loops(space) => vec![unstaged(graph, cluster, space, is_root).nest],
        _ => lower(graph, cluster, is_root),
    }
}

/// Statements and values that belong to one loop depth.
#[derive(Default)]
struct Level {
    stmts: Vec<Stmt>,
    memo: FxHashMap<(NodeId, Index, Option<ValueId>), ValueId>,
    ops: FxHashMap<Op, ValueId>,
}

/// Evaluates nodes into statements. Level 0 holds what depends on parallel variables only, level 1 the rest.
struct Lowerer<'a> {
    graph: &'a Graph,
    is_root: &'a [bool],
    /// Roots that this kernel computes itself, ascending.
    own: &'a [NodeId],
    kernel: Kernel,
    args: Vec<NodeId>,
    param_of: FxHashMap<NodeId, u32>,
    levels: Vec<Level>,
    var_level: Vec<usize>,
    value_level: Vec<usize>,
    /// Results of own reductions: states in scratch, and where.
    reduced: FxHashMap<NodeId, ReducedValue>,
    /// Values to keep in scratch between phases, and those already there.
    stage: FxHashSet<NodeId>,
    staged: FxHashMap<(NodeId, Index), (Memory, IndexExpr)>,
    /// Which loop each costly value was evaluated in, to find what is worth staging.
    seen_in_loop: FxHashMap<(NodeId, Index), usize>,
    repeated: FxHashSet<NodeId>,
    current_loop: usize,
    /// Whether what level 1 holds may run not even once: the loops around it may be empty.
    may_not_run: bool,
    inner_offset: IndexExpr,
    /// Where the current iteration keeps staged values, and how many a row (or tile of columns) has.
    stage_offset: IndexExpr,
    stage_len: IndexExpr,
    /// Staged values that a later phase loads.
    loaded: FxHashSet<NodeId>,
    /// In column-local form: the inner loops of the current phase.
    rows_of_columns: Vec<VarId>,
    flops: IndexExpr,
    trips: Vec<IndexExpr>,
    /// Variables that stand for indices below padding: in range wherever the mask holds, as their extents say, and what
    /// they are. No statement mentions them.
    padded: Vec<(VarId, IndexExpr)>,
    /// Masks of what is below padding and nothing else: what they exclude is never used.
    padding: Vec<ValueId>,
}

#[derive(Clone)]
struct ReducedValue {
    memory: Memory,
    index: IndexExpr,
    dtype: DType,
}

impl Bounds for Lowerer<'_> {
    fn symbol(&self, sym: SymId) -> Interval {
        self.graph.symbol(sym)
    }
    fn extent(&self, var: VarId) -> Option<IndexExpr> {
        self.kernel.extent(var)
    }
}

impl<'a> Lowerer<'a> {
    fn new(graph: &'a Graph, own: &'a [NodeId], is_root: &'a [bool]) -> Self {
        Lowerer {
            graph,
            is_root,
            own,
            kernel: Kernel {
                symbols: graph.symbols().iter().map(|s| (s.lo, s.hi)).collect(),
                ..Kernel::default()
            },
            args: Vec::new(),
            param_of: FxHashMap::default(),
            levels: vec![Level::default(), Level::default()],
            var_level: Vec::new(),
            value_level: Vec::new(),
            reduced: FxHashMap::default(),
            stage: FxHashSet::default(),
            staged: FxHashMap::default(),
            seen_in_loop: FxHashMap::default(),
            repeated: FxHashSet::default(),
            current_loop: 0,
            may_not_run: false,
            inner_offset: IndexExpr::ZERO,
            stage_offset: IndexExpr::ZERO,
            stage_len: IndexExpr::ONE,
            loaded: FxHashSet::default(),
            rows_of_columns: Vec::new(),
            flops: IndexExpr::ZERO,
            trips: vec![IndexExpr::ONE, IndexExpr::ONE],
            padded: Vec::new(),
            padding: Vec::new(),
        }
    }

    fn new_var(&mut self, extent: IndexExpr, level: usize) -> VarId {
        self.var_level.push(level);
        self.kernel.new_var(extent)
    }

    fn new_value(&mut self, dtype: DType, level: usize) -> ValueId {
        self.value_level.push(level);
        self.kernel.new_value(dtype)
    }

    fn level_of(&self, e: &IndexExpr) -> usize {
        let mut level = 0;
        e.visit_atoms(&mut |a| {
            if let IndexNode::Var(v) = a {
                level = level.max(self.var_level[v.0 as usize]);
            }
        });
        level
    }

    /// Whether each of these loops has an iteration for all sizes.
    fn certainly_run(&self, vars: &[VarId]) -> bool {
        let runs = |v: &VarId| self.kernel.extents[v.0 as usize].interval(self).lo > 0;
        vars.iter().all(runs)
    }

    /// Whether an element certainly lies inside its memory, wherever the variables of its index have values.
    fn in_bounds(&self, memory: Memory, index: &IndexExpr) -> bool {
        index.proves_nonnegative(self) && index.proves_less(self.kernel.memory_len(memory), self)
    }

    /// The parameter that holds a node's value.
    fn param(&mut self, node: NodeId, access: Access) -> u32 {
        if let Some(&p) = self.param_of.get(&node) {
            let held = &mut self.kernel.params[p as usize].access;
            if *held != access {
                *held = Access::ReadWrite;
            }
            return p;
        }
        let ty = self.graph.ty(node);
        self.kernel.params.push(Param {
            dtype: ty.dtype,
            len: ty.elements(),
            access,
        });
        self.args.push(node);
        let p = self.args.len() as u32 - 1;
        self.param_of.insert(node, p);
        p
    }

    fn push(&mut self, level: usize, stmt: Stmt) {
        self.levels[level].stmts.push(stmt);
    }

    /// Emits an operation at a level, or finds it there or further out.
    fn emit(&mut self, op: Op, dtype: DType, level: usize) -> ValueId {
        let pure = match &op {
            Op::Load {
                memory: Memory::Scratch(_),
                ..
            } => false,
            Op::Load {
                memory: Memory::Param(p),
                ..
            } => self.kernel.params[*p as usize].access == Access::Read,
            _ => true,
        };
        if pure {
            for l in 0..=level {
                if let Some(&v) = self.levels[l].ops.get(&op) {
                    return v;
                }
            }
        }
        if let Op::Map(scalar, _) = &op
            && dtype.is_float()
        {
            self.flops = self.flops.clone() + self.trips[level].clone() * IndexExpr::Const(scalar.flops() as i64);
        }
        let value = self.new_value(dtype, level);
        if pure {
            self.levels[level].ops.insert(op.clone(), value);
        }
        self.push(level, Stmt::Let { value, op });
        value
    }

    fn constant(&mut self, value: tlc_ir::Scalar) -> ValueId {
        self.emit(Op::Const(value), value.dtype(), 0)
    }

    fn convert(&mut self, value: ValueId, to: DType) -> ValueId {
        if self.kernel.dtype(value) == to {
            return value;
        }
        let level = self.value_level[value.0 as usize];
        self.emit(Op::Convert(to, value), to, level)
    }

    fn bitcast(&mut self, value: ValueId, to: DType) -> ValueId {
        if self.kernel.dtype(value) == to {
            return value;
        }
        let level = self.value_level[value.0 as usize];
        self.emit(Op::Bitcast(to, value), to, level)
    }

    /// Closes level 1: its statements, wrapped in loops over `vars` (outermost first), with loop variables of their own. Loops
    /// of which one is known to be empty are left out: the others would be walked for nothing, however long they are.
    fn close_inner(&mut self, vars: &[VarId]) {
        let level = std::mem::take(&mut self.levels[1]);
        if vars.iter().any(|v| self.kernel.extents[v.0 as usize].is(0)) {
            return;
        }
        let mut body = level.stmts;
        let mut renamed = FxHashMap::default();
        for &v in vars {
            let extent = self.kernel.extents[v.0 as usize].clone();
            let fresh = self.new_var(extent, 1);
            renamed.insert(v, fresh);
        }
        crate::schedule::tree::substitute(&mut body, &mut |v| renamed.get(&v).map(|&f| f.into()));
        for v in vars.iter().rev() {
            body = vec![Stmt::Loop {
                var: renamed[v],
                bind: Bind::Serial,
                body,
            }];
        }
        self.levels[0].stmts.extend(body);
    }

    /// Stores a root's value at a point of its result space.
    fn store_root(&mut self, root: NodeId, point: &Index, value: ValueId, level: usize) {
        let memory = Memory::Param(self.param(root, Access::Write));
        let index = flat_index(point, &self.graph.ty(root).shape).simplify(self);
        self.push(
            level,
            Stmt::Store {
                memory,
                index,
                value,
                mask: None,
            },
        );
    }

    fn state_dtypes(&self, monoid: Monoid, dtype: DType, extent: &IndexExpr) -> (DType, Option<DType>) {
        let value = dtype.accumulator();
        if !monoid.is_arg() {
            return (value, None);
        }
        // A 32-bit counter stays in step with 32-bit lanes.
        let small = extent.interval(self.graph).hi <= i32::MAX as i64;
        (value, Some(if small { DType::I32 } else { DType::I64 }))
    }
}

/// Loops of one phase over one list of inner extents.
struct InnerLoop {
    phase: usize,
    extents: Shape,
    roots: Vec<usize>,
}

/// How a root is summed, and the dtype of what is: `None` for values of one term, which are no reductions.
fn reduces(graph: &Graph, root: NodeId) -> Option<(Monoid, DType)> {
    match &graph.node(root).kind {
        NodeKind::Reduce { monoid, axes } if !axes.is_empty() => {
            Some((*monoid, graph.ty(graph.node(root).operands[0]).dtype))
        }
        NodeKind::Einsum {
            semiring,
            accumulator,
            inputs,
            output,
            ..
        } if inputs.iter().flatten().any(|l| !output.contains(l)) => Some((semiring.sum(), *accumulator)),
        _ => None,
    }
}

/// A nest, and what was learnt from building it.
struct Built {
    nest: Nest,
    /// Values that two phases need and that are worth keeping.
    repeated: FxHashSet<NodeId>,
    /// Staged values that were loaded again.
    loaded: FxHashSet<NodeId>,
    /// Parallel axes that make one column axis.
    fused: usize,
}

fn lower_loops(graph: &Graph, cluster: &Cluster, space: &LoopSpace, is_root: &[bool]) -> Nest {
    let first = unstaged(graph, cluster, space, is_root);
    if first.repeated.is_empty() {
        return first.nest;
    }
    // Second time round, with the values that two passes need kept in scratch.
    let second = build_loops(graph, cluster, space, is_root, first.repeated.clone(), first.fused);
    if !space.is_column_local() || second.loaded == first.repeated {
        return second.nest;
    }
    // What was only needed to compute what is now kept is not needed again.
    build_loops(graph, cluster, space, is_root, second.loaded, first.fused).nest
}

/// A nest that keeps nothing between phases.
fn unstaged(graph: &Graph, cluster: &Cluster, space: &LoopSpace, is_root: &[bool]) -> Built {
    let build = |fused| build_loops(graph, cluster, space, is_root, FxHashSet::default(), fused);
    let fused = if space.is_column_local() {
        trailing_columns(space)
    } else {
        1
    };
    let built = build(fused);
    // Axes that some value walks differently stay apart.
    if fused > 1 && crate::schedule::tree::count_divisions(&built.nest.kernel.body) > 0 {
        return build(1);
    }
    built
}

fn build_loops(
    graph: &Graph,
    cluster: &Cluster,
    loop_space: &LoopSpace,
    is_root: &[bool],
    stage: FxHashSet<NodeId>,
    fused: usize,
) -> Built {
    let mut lo = Lowerer::new(graph, &cluster.roots, is_root);
    lo.stage = stage;
    let columns = column_form(graph, cluster, loop_space);
    let local = columns && loop_space.is_column_local();
    let rank = loop_space.parallel.len();
    // Parallel variables. In column form the last axes become a tile number and a column inside the tile.
    let outer = if columns { rank - fused } else { rank };
    let mut parallel_vars = Vec::new();
    let mut parallel_index: Index = Index::new();
    let mut column: Option<(VarId, IndexExpr)> = None;
    for extent in &loop_space.parallel[..outer] {
        let v = lo.new_var(extent.clone(), 0);
        parallel_vars.push(v);
        parallel_index.push(v.into());
    }
    if columns {
        let axes: Shape = loop_space.parallel[outer..].iter().cloned().collect();
        let extent = IndexExpr::product(&axes);
        let width = match extent.as_const() {
            _ if local && !lo.stage.is_empty() => lo.local_tile(&axes, loop_space, cluster),
            // A tile of an empty axis is one column wide, so that nothing divides by zero.
            Some(n) if n <= 2 * COLUMN_TILE => n.max(1),
            _ => COLUMN_TILE,
        };
        let tiles = extent.ceil_div(width);
        let tile = lo.new_var(tiles, 0);
        let start = IndexExpr::from(tile) * IndexExpr::Const(width);
        let left = IndexExpr::min(&IndexExpr::Const(width), &(extent.clone() - start.clone())).simplify(&lo);
        let v = lo.new_var(left, 1);
        parallel_vars.push(tile);
        let mut rest = start + v.into();
        let mut index = Index::new();
        for d in axes[1..].iter().rev() {
            if d.is(0) {
                // There is no element, and nothing divides by zero.
                index.push(IndexExpr::ZERO);
                continue;
            }
            index.push(IndexExpr::modulo(&rest, d).simplify(&lo));
            rest = IndexExpr::floor_div(&rest, d).simplify(&lo);
        }
        index.push(rest);
        parallel_index.extend(index.into_iter().rev());
        column = Some((v, IndexExpr::Const(width)));
    }
    let rows = IndexExpr::product(&loop_space.parallel);
    lo.trips[0] = rows.clone();
    // Phases.
    let mut phase: FxHashMap<NodeId, usize> = FxHashMap::default();
    let mut loops: Vec<InnerLoop> = Vec::new();
    let mut row_roots: Vec<(usize, usize)> = Vec::new();
    let spaces: Vec<_> = cluster.roots.iter().map(|&r| space(graph, r)).collect();
    let inner_of: Vec<Shape> = (spaces.iter().zip(&loop_space.roles))
        .map(|(space, roles)| {
            let axes = space.extents.iter().zip(roles);
            let inner = axes.filter(|(_, role)| matches!(role, Role::Inner(_)));
            inner.map(|(extent, _)| extent.clone()).collect()
        })
        .collect();
    for (k, &root) in cluster.roots.iter().enumerate() {
        let ph = lo
            .own_sources(root)
            .into_iter()
            .map(|s| phase[&s] + reduces(graph, s).is_some() as usize)
            .max()
            .unwrap_or(0);
        phase.insert(root, ph);
        let inner = inner_of[k].clone();
        let stored = cluster.stored.binary_search(&root).is_ok();
        if inner.is_empty() && column.is_none() && reduces(graph, root).is_none() {
            if stored {
                row_roots.push((ph, k));
            }
            continue;
        }
        if !stored && reduces(graph, root).is_none() {
            continue;
        }
        match loops.iter_mut().find(|l| l.phase == ph && l.extents == inner) {
            Some(l) => l.roots.push(k),
            None => loops.push(InnerLoop {
                phase: ph,
                extents: inner,
                roots: vec![k],
            }),
        }
    }
    loops.sort_by_key(|l| l.phase);
    row_roots.sort();
    let mut inner_vars: FxHashMap<Shape, Vec<VarId>> = FxHashMap::default();
    let mut rows_done = 0;
    let point_of = |k: usize, inner: &[IndexExpr]| -> Index {
        loop_space.roles[k]
            .iter()
            .map(|r| match r {
                Role::Parallel(p) => parallel_index[*p].clone(),
                Role::Inner(i) => inner[*i].clone(),
                Role::Unit => IndexExpr::ZERO,
            })
            .collect()
    };
    // Values of long chains are evaluated from the oldest, so that no evaluation reaches far down.
    let long = cluster.roots.len() > LONG_CLUSTER;
    // Only loops of the root's own extents: over others its elements would be read out of range.
    let at_point = |k: usize, extents: &[IndexExpr], inner: &[IndexExpr]| -> Option<Index> {
        (inner_of[k][..] == *extents).then(|| point_of(k, inner))
    };
    for (number, l) in loops.iter().enumerate() {
        while rows_done < row_roots.len() && row_roots[rows_done].0 <= l.phase {
            lo.current_loop = 0;
            if long {
                lo.evaluate_sources(row_roots[rows_done].1, &|k| at_point(k, &[], &[]));
            }
            lo.row_root(
                cluster.roots[row_roots[rows_done].1],
                &point_of(row_roots[rows_done].1, &[]),
            );
            rows_done += 1;
        }
        let vars = match inner_vars.get(&l.extents) {
            Some(v) => v.clone(),
            None => {
                let v: Vec<VarId> = l.extents.iter().map(|d| lo.new_var(d.clone(), 1)).collect();
                inner_vars.insert(l.extents.clone(), v.clone());
                v
            }
        };
        let inner: Index = vars.iter().map(|&v| v.into()).collect();
        lo.current_loop = number + 1;
        lo.inner_offset = flat_index(&inner, &l.extents);
        let inner_len = IndexExpr::product(&l.extents);
        lo.trips[1] = rows.clone() * inner_len.clone();
        (lo.stage_offset, lo.stage_len) = (lo.inner_offset.clone(), inner_len);
        if let Some((v, width)) = column.as_ref().filter(|_| local) {
            lo.stage_offset = lo.stage_offset.clone() * width.clone() + (*v).into();
            lo.stage_len = lo.stage_len.clone() * width.clone();
            lo.rows_of_columns = vars.clone();
        }
        let sources = |k: usize| at_point(k, &l.extents, &inner).or_else(|| at_point(k, &[], &[]));
        let first: Option<&dyn Fn(usize) -> Option<Index>> = match long && (local || column.is_none()) {
            true => Some(&sources),
            false => None,
        };
        lo.phase_loop(cluster, l, &vars, &inner, &column, &point_of, first);
    }
    for &(_, k) in &row_roots[rows_done..] {
        lo.current_loop = 0;
        if long {
            lo.evaluate_sources(k, &|k| at_point(k, &[], &[]));
        }
        lo.row_root(cluster.roots[k], &point_of(k, &[]));
    }
    let (mut repeated, loaded) = (std::mem::take(&mut lo.repeated), std::mem::take(&mut lo.loaded));
    if columns && !local {
        repeated.clear();
    }
    let form = match (&column, loops.is_empty()) {
        (Some(_), _) => Form::Columns,
        (None, true) => Form::Elementwise,
        (None, false) => Form::Rows,
    };
    Built {
        nest: lo.finish(parallel_vars, form),
        repeated,
        loaded,
        fused,
    }
}

impl Lowerer<'_> {
    /// Own roots that `root` reads, directly or through inlined nodes.
    fn own_sources(&self, root: NodeId) -> Vec<NodeId> {
        let mut out = Vec::new();
        let mut seen = FxHashSet::default();
        let mut work: Vec<NodeId> = self.graph.node(root).operands.to_vec();
        while let Some(n) = work.pop() {
            if !seen.insert(n) || is_source(&self.graph.node(n).kind) {
                continue;
            }
            if self.own.binary_search(&n).is_ok() {
                out.push(n);
            } else if !self.is_root[n.index()] {
                work.extend(self.graph.node(n).operands.iter());
            }
        }
        out
    }

    /// Evaluates the own roots that root `k` needs, oldest first, at the points that `point` knows.
    fn evaluate_sources(&mut self, k: usize, point: &dyn Fn(usize) -> Option<Index>) {
        let mut seen = FxHashSet::default();
        let mut work = vec![k];
        while let Some(k) = work.pop() {
            for source in self.own_sources(self.own[k]) {
                let Ok(s) = self.own.binary_search(&source) else {
                    continue;
                };
                let Some(at) = point(s).filter(|_| !self.reduced.contains_key(&source)) else {
                    continue;
                };
                let key = (source, at, None);
                if !self.levels.iter().any(|l| l.memo.contains_key(&key)) && seen.insert(s) {
                    work.push(s);
                }
            }
        }
        let mut needed: Vec<usize> = seen.into_iter().collect();
        needed.sort();
        for s in needed {
            if let Some(at) = point(s) {
                self.value_of(self.own[s], &at, None);
            }
        }
    }

    /// Evaluates and stores a root that has one element per row.
    fn row_root(&mut self, root: NodeId, point: &Index) {
        self.current_loop = 0;
        let value = self.value_of(root, point, None);
        self.store_root(root, point, value, 0);
    }

    /// One pass over a row (or, in column form, over all rows of a tile of columns). With `sources`, what the roots read is
    /// evaluated first, at the points that it answers.
    #[expect(
        clippy::too_many_arguments,
        reason = "the pass, its loops, and where values are in them"
    )]
    fn phase_loop(
        &mut self,
        cluster: &Cluster,
        l: &InnerLoop,
        vars: &[VarId],
        inner: &Index,
        column: &Option<(VarId, IndexExpr)>,
        point_of: &dyn Fn(usize, &[IndexExpr]) -> Index,
        sources: Option<&dyn Fn(usize) -> Option<Index>>,
    ) {
        // Loops around the body: in column form the inner axes run outside the columns, so that memory is walked along
        // rows; the accumulators are then arrays over the columns of the tile.
        let mut around: Vec<VarId> = vars.to_vec();
        let (state_len, state_index, scope) = match column {
            Some((v, width)) => {
                around.push(*v);
                (width.clone(), IndexExpr::from(*v), Scope::Cache)
            }
            None => (IndexExpr::ONE, IndexExpr::ZERO, Scope::Register),
        };
        let mut states = Vec::new();
        for &k in &l.roots {
            let root = cluster.roots[k];
            let Some((monoid, dtype)) = reduces(self.graph, root) else {
                continue;
            };
            let extent = IndexExpr::product(&l.extents);
            let (value_dtype, index_dtype) = self.state_dtypes(monoid, dtype, &extent);
            let mut of_root = Vec::new();
            for (dtype, identity) in
                std::iter::once((value_dtype, monoid.identity(value_dtype))).chain(index_dtype.map(|d| (d, d.zero())))
            {
                let memory = self.kernel.new_scratch(dtype, state_len.clone(), scope);
                let level = if column.is_some() { 1 } else { 0 };
                let value = self.constant(identity);
                self.push(
                    level,
                    Stmt::Store {
                        memory,
                        index: state_index.clone(),
                        value,
                        mask: None,
                    },
                );
                of_root.push((memory, state_index.clone()));
            }
            states.push((k, monoid, value_dtype, index_dtype, of_root));
        }
        if let Some((v, _)) = column
            && !states.is_empty()
        {
            self.close_inner(&[*v]);
        }
        self.may_not_run = !self.certainly_run(&around);
        // Behind the loop that sets the accumulators: what is evaluated belongs into the loop over the rows.
        if let Some(sources) = sources {
            l.roots.iter().for_each(|&k| self.evaluate_sources(k, sources));
        }
        for &k in &l.roots {
            let root = cluster.roots[k];
            let point = point_of(k, inner);
            let Some((_, monoid, value_dtype, index_dtype, of_root)) = states.iter().find(|s| s.0 == k) else {
                let value = self.value_of(root, &point, None);
                self.store_root(root, &point, value, 1);
                continue;
            };
            let mut values = smallvec::SmallVec::new();
            values.push(self.summand(root, &point, *value_dtype, None));
            if let Some(d) = index_dtype {
                let at = self.inner_offset.clone();
                let level = self.level_of(&at);
                values.push(self.emit(Op::Index(at, *d), *d, level));
            }
            self.flops = self.flops.clone() + self.trips[1].clone();
            self.push(
                1,
                Stmt::Accumulate {
                    monoid: *monoid,
                    state: of_root.iter().cloned().collect(),
                    values,
                },
            );
        }
        if let Some((v, width)) = column {
            self.once_a_column(*v, width);
        }
        self.close_inner(&around);
        self.may_not_run = false;
        for (k, _, _, index_dtype, of_root) in states {
            let root = cluster.roots[k];
            let (memory, index) = of_root[index_dtype.is_some() as usize].clone();
            let dtype = self.kernel.memory_dtype(memory);
            self.reduced.insert(root, ReducedValue { memory, index, dtype });
            if cluster.stored.contains(&root) {
                let point = point_of(k, inner);
                let point: Index = point[..self.graph.ty(root).rank()].into();
                let level = if column.is_some() { 1 } else { 0 };
                let value = self.value_of(root, &point, None);
                self.store_root(root, &point, value, level);
                if let Some((v, _)) = column {
                    self.close_inner(&[*v]);
                }
            }
        }
    }

    /// The value that a reduction or contraction sums at a point of its space, in the accumulator's dtype.
    fn summand(&mut self, root: NodeId, point: &Index, dtype: DType, mask: Option<ValueId>) -> ValueId {
        let product = match &self.graph.node(root).kind {
            NodeKind::Einsum { semiring, .. } => Some(semiring.product()),
            _ => None,
        };
        let mut result: Option<ValueId> = None;
        for (operand, index) in operand_indices(self.graph, root, point) {
            let value = self.value_of(operand, &index, mask);
            // First to the declared accumulator, which may round or overflow, then to what carries it.
            let value = match &self.graph.node(root).kind {
                NodeKind::Einsum { accumulator, .. } => self.convert(value, *accumulator),
                _ => value,
            };
            let value = self.convert(value, dtype);
            result = Some(match (result, product) {
                (Some(left), Some(op)) => {
                    let level = self.value_level[left.0 as usize].max(self.value_level[value.0 as usize]);
                    self.emit(Op::Map(op, [left, value].into_iter().collect()), dtype, level)
                }
                _ => value,
            });
        }
        result.expect("reductions and contractions have operands")
    }

    fn finish(mut self, parallel: Vec<VarId>, form: Form) -> Nest {
        let mut body = std::mem::take(&mut self.levels[0].stmts);
        for &v in parallel.iter().rev() {
            body = vec![Stmt::Loop {
                var: v,
                bind: Bind::Serial,
                body,
            }];
        }
        self.kernel.body = body;
        made(Made::Nest(&mut self.kernel));
        let in_place = match form {
            Form::Elementwise | Form::Rows | Form::Columns => in_place::pairs(&self.kernel, &parallel),
            Form::Serial => Vec::new(),
        };
        Nest {
            kernel: self.kernel,
            args: self.args,
            parallel,
            form,
            in_place,
            flops: self.flops,
        }
    }
}
