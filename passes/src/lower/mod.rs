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
//! A *phase* is a pass over the row: reductions that need another reduction's result wait for the next phase. Each phase
//! computes what it needs; what is worth keeping from phase to phase is the schedule's business too. In *column* form the
//! last parallel axes, rather than the inner ones, walk memory contiguously; the nest is the same.

mod attention;
mod blocks;
mod eval;
mod in_place;
mod indexed;
mod inside;
mod memo;
mod product_rows;
mod scan_by_warps;
mod weight_gradient;

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use tlc_ir::graph::{Monoid, Semiring, Shape};
use tlc_ir::index::{Bounds, IndexExpr, IndexNode, Interval, SymId, VarId};
use tlc_ir::kernel::{Access, Bind, Kernel, Memory, Op, Param, Scope, Stmt, ValueId};
use tlc_ir::target::{Emitter, Support, Width};
use tlc_ir::{DType, Graph, NodeId, NodeKind, Precision, ScalarOp};

use crate::access::{Index, is_source, operand_indices, space};
use crate::cluster::columns::{column_form, trailing_columns};
use crate::cluster::{Cluster, ClusterKind, LoopSpace, Role, ScanForm};
use crate::contraction::layouts::{has_column_blocks, multiplies_vector};
use crate::made::{Made, made};
use memo::{Memo, Place};
use tlc_ir::graph::infer::flat_index;

/// Roots of a cluster beyond which values are evaluated in the order of the graph instead of on demand.
const LONG_CLUSTER: usize = 16;

/// How a nest is built, which is what the schedule needs to know of it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Form {
    /// Parallel loops only.
    Elementwise,
    /// Rows: parallel loops around inner loops, which walk memory contiguously.
    Rows,
    /// Columns: as rows, but the last parallel loops walk memory contiguously.
    Columns,
    /// A serial recurrence.
    Serial,
    /// Updates of a scatter, one behind the other. The innermost loop goes through the elements of one update.
    Updates,
    /// Rows, the first statement of which is sums of products, in tiles of so many rows and columns of a GPU's blocks. Rows go along the last parallel
    /// loop.
    ProductRows {
        /// Rows of a tile.
        rows: i64,
        /// Columns of a tile.
        columns: i64,
    },
    /// Tiles, written as they run: those that the threads of a GPU's blocks share, or a processor's of f32 in registers.
    Tiles,
}

impl Form {
    /// What reports call it.
    pub const fn name(self) -> &'static str {
        match self {
            Form::Elementwise => "elementwise",
            Form::Rows => "rows",
            Form::Columns => "columns",
            Form::Serial => "serial",
            Form::Updates => "updates",
            Form::ProductRows { .. } => "rows of products",
            Form::Tiles => "tiles",
        }
    }
}

/// What a parameter of a nest holds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Arg {
    /// The value of a node.
    Value(NodeId),
    /// What a nest of a cluster leaves for those behind it, by its number among these.
    Temporary(u32),
}

/// A naive loop nest.
#[derive(Clone, PartialEq, Debug)]
pub struct Nest {
    /// The kernel; its symbols are the graph's.
    pub kernel: Kernel,
    /// What each parameter holds.
    pub args: Vec<Arg>,
    /// Loops over parallel axes, outermost first.
    pub parallel: Vec<VarId>,
    /// How it was built.
    pub form: Form,
    /// `(read, written)` parameter pairs that may be one buffer: each element is read only by the parallel iteration that
    /// overwrites it, before it does.
    pub in_place: Vec<(u32, u32)>,
    /// Whether it does nothing but copy the first parameter to the second.
    pub copies: bool,
    /// In column form, how many of the parallel loops, the last ones, may be one axis of columns; else 0.
    pub columns: usize,
    /// In column form, whether phases meet the same elements of a column.
    pub column_local: bool,
    /// Whether a matrix is seen through a copy in blocks of columns.
    pub column_blocks: bool,
    /// Whether it multiplies a matrix with a vector.
    pub of_vector: bool,
    /// How exactly its products are to be computed.
    pub precision: Precision,
    /// Whether a loop runs it again and again, so that what it reads is in some cache from the iteration before.
    pub again: bool,
}

/// Lowers a cluster to the nests that compute its stored roots, in order, its contractions so exactly. Where the code generator of a CPU,
/// if it is given, has multiply-adds that round once, contractions add up their products by them.
pub fn lower(
    graph: &Graph,
    cluster: &Cluster,
    is_root: &[bool],
    precision: Precision,
    emitter: Option<&Emitter>,
) -> Vec<Nest> {
    match &cluster.kind {
        ClusterKind::Loops(space) => {
            let mut nest = lower_loops(graph, cluster, space, is_root, emitter);
            if sums_are_contractions(graph, cluster) {
                nest.precision = precision;
            }
            vec![nest]
        }
        ClusterKind::Attention(form) => attention::lower(graph, cluster, form, is_root),
        ClusterKind::ProductRows(form) => vec![product_rows::lower(graph, cluster, form, is_root, precision)],
        ClusterKind::WeightGradient(form) => vec![weight_gradient::lower(graph, cluster, form, is_root)],
        ClusterKind::Scan(form) => match form {
            ScanForm::Serial => vec![indexed::lower_scan(graph, cluster, is_root)],
            ScanForm::Blocks(blocks) => blocks::lower_scan(graph, cluster, is_root, *blocks),
            ScanForm::Warps => scan_by_warps::lower_rows(graph, cluster, is_root),
            ScanForm::ByBlocks { chunk } => scan_by_warps::lower_by_blocks(graph, cluster, is_root, *chunk),
            ScanForm::Chunks(elements) => scan_by_warps::lower_chunks(graph, cluster, is_root, *elements),
        },
        ClusterKind::Scatter(updates) => indexed::lower_scatter(graph, cluster, is_root, *updates),
        ClusterKind::Gemm(_) | ClusterKind::Join(_) | ClusterKind::Loop | ClusterKind::Call => Vec::new(),
    }
}

/// As [`lower`], with the rows of products in a kernel of their own.
pub fn lower_rows_apart(graph: &Graph, cluster: &Cluster, is_root: &[bool], precision: Precision) -> Vec<Nest> {
    match &cluster.kind {
        ClusterKind::ProductRows(form) => product_rows::lower_apart(graph, cluster, form, is_root, precision),
        _ => Vec::new(),
    }
}

/// Whether whatever a cluster adds up is a contraction: the permission to round operands is not for sums of products that were recorded
/// as such.
fn sums_are_contractions(graph: &Graph, cluster: &Cluster) -> bool {
    let mut reduced = cluster.roots.iter().filter(|r| reduces(graph, **r).is_some());
    reduced.all(|&r| matches!(graph.node(r).kind, NodeKind::Einsum { .. }))
}

/// Statements and values that belong to one loop depth.
#[derive(Default)]
struct Level {
    stmts: Vec<Stmt>,
    memo: Memo,
    ops: FxHashMap<Op, ValueId>,
}

/// Evaluates nodes into statements. Level 0 holds what depends on parallel variables only, level 1 the rest.
struct Lowerer<'a> {
    graph: &'a Graph,
    is_root: &'a [bool],
    /// Roots that this kernel computes itself, ascending.
    own: &'a [NodeId],
    kernel: Kernel,
    args: Vec<Arg>,
    param_of: FxHashMap<NodeId, u32>,
    levels: Vec<Level>,
    var_level: Vec<usize>,
    value_level: Vec<usize>,
    /// Types whose products contractions add up by multiply-adds.
    multiply_adds: SmallVec<[DType; 2]>,
    /// Results of own reductions: states in scratch, and where.
    reduced: FxHashMap<NodeId, ReducedValue>,
    /// Whether what level 1 holds may run not even once: the loops around it may be empty.
    may_not_run: bool,
    inner_offset: IndexExpr,
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
            multiply_adds: SmallVec::new(),
            reduced: FxHashMap::default(),
            may_not_run: false,
            inner_offset: IndexExpr::ZERO,
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
        self.args.push(Arg::Value(node));
        let p = self.args.len() as u32 - 1;
        self.param_of.insert(node, p);
        p
    }

    /// A parameter for what a nest leaves for others, once in a nest.
    fn temporary(&mut self, number: u32, dtype: DType, len: IndexExpr, access: Access) -> u32 {
        self.kernel.params.push(Param { dtype, len, access });
        self.args.push(Arg::Temporary(number));
        self.args.len() as u32 - 1
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
        crate::tree::substitute(&mut body, &mut |v| renamed.get(&v).map(|&f| f.into()));
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

/// What a scan combines, and how.
#[derive(Clone, Copy)]
struct ScanKind {
    monoid: Monoid,
    axis: usize,
    exclusive: bool,
    reverse: bool,
}

impl ScanKind {
    /// Of the root of a scan's cluster.
    fn of(graph: &Graph, root: NodeId) -> ScanKind {
        let NodeKind::Scan {
            monoid,
            axis,
            exclusive,
            reverse,
        } = graph.node(root).kind
        else {
            unreachable!("a scan cluster")
        };
        ScanKind {
            monoid,
            axis: usize::from(axis),
            exclusive,
            reverse,
        }
    }
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

fn lower_loops(
    graph: &Graph,
    cluster: &Cluster,
    loop_space: &LoopSpace,
    is_root: &[bool],
    emitter: Option<&Emitter>,
) -> Nest {
    let mut lo = Lowerer::new(graph, &cluster.roots, is_root);
    if let Some(emitter) = emitter.filter(|e| !e.has_blocks) {
        let native = |dtype, width| emitter.map(ScalarOp::Fma, dtype, width) == Support::Native;
        let both = |d: &DType| native(*d, Width::Lanes) && native(*d, Width::Scalar);
        lo.multiply_adds = [DType::F32, DType::F64].into_iter().filter(both).collect();
    }
    let parallel: Vec<VarId> = loop_space.parallel.iter().map(|d| lo.new_var(d.clone(), 0)).collect();
    let parallel_index: Index = parallel.iter().map(|&v| v.into()).collect();
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
        if inner.is_empty() && reduces(graph, root).is_none() {
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
    for l in &loops {
        while rows_done < row_roots.len() && row_roots[rows_done].0 <= l.phase {
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
        lo.inner_offset = flat_index(&inner, &l.extents);
        let sources = |k: usize| at_point(k, &l.extents, &inner).or_else(|| at_point(k, &[], &[]));
        let first: Option<&dyn Fn(usize) -> Option<Index>> = match long {
            true => Some(&sources),
            false => None,
        };
        lo.phase_loop(cluster, l, &vars, &inner, &point_of, first);
    }
    for &(_, k) in &row_roots[rows_done..] {
        if long {
            lo.evaluate_sources(k, &|k| at_point(k, &[], &[]));
        }
        lo.row_root(cluster.roots[k], &point_of(k, &[]));
    }
    let form = match (column_form(graph, cluster, loop_space, is_root), loops.is_empty()) {
        (true, _) => Form::Columns,
        (false, true) => Form::Elementwise,
        (false, false) => Form::Rows,
    };
    let mut nest = lo.finish(parallel, form);
    nest.column_blocks = cluster.roots.iter().any(|&r| has_column_blocks(graph, r));
    nest.of_vector = cluster.roots.iter().any(|&r| multiplies_vector(graph, r));
    if form == Form::Columns {
        nest.column_local = loop_space.is_column_local();
        nest.columns = match nest.column_local {
            true => trailing_columns(loop_space),
            false => 1,
        };
    }
    nest
}

impl Lowerer<'_> {
    /// Own roots that `root` reads, directly or through inlined nodes.
    fn own_sources(&self, root: NodeId) -> Vec<NodeId> {
        // Without others there is nothing to find.
        if let [only] = self.own[..]
            && only == root
        {
            return Vec::new();
        }
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
                let place = Place::new(source, &at, None);
                if !self.levels.iter().any(|l| l.memo.get(place).is_some()) && seen.insert(s) {
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
        let value = self.value_of(root, point, None);
        self.store_root(root, point, value, 0);
    }

    /// One pass over a row. With `sources`, what the roots read is evaluated first, at the points that it returns.
    fn phase_loop(
        &mut self,
        cluster: &Cluster,
        l: &InnerLoop,
        vars: &[VarId],
        inner: &Index,
        point_of: &dyn Fn(usize, &[IndexExpr]) -> Index,
        sources: Option<&dyn Fn(usize) -> Option<Index>>,
    ) {
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
                let memory = self.kernel.new_scratch(dtype, IndexExpr::ONE, Scope::Register);
                let value = self.constant(identity);
                self.push(
                    0,
                    Stmt::Store {
                        memory,
                        index: IndexExpr::ZERO,
                        value,
                        mask: None,
                    },
                );
                of_root.push((memory, IndexExpr::ZERO));
            }
            states.push((k, monoid, value_dtype, index_dtype, of_root));
        }
        self.may_not_run = !self.certainly_run(vars);
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
            let mut values = match self.factors(root, &point, *value_dtype) {
                Some(factors) => factors.into(),
                None => smallvec::smallvec![self.summand(root, &point, *value_dtype, None)],
            };
            if let Some(d) = index_dtype {
                let at = self.inner_offset.clone();
                let level = self.level_of(&at);
                values.push(self.emit(Op::Index(at, *d), *d, level));
            }
            self.push(
                1,
                Stmt::Accumulate {
                    monoid: *monoid,
                    state: of_root.iter().cloned().collect(),
                    values,
                },
            );
        }
        self.close_inner(vars);
        self.may_not_run = false;
        for (k, _, _, index_dtype, of_root) in states {
            let root = cluster.roots[k];
            let (memory, index) = of_root[index_dtype.is_some() as usize].clone();
            let dtype = self.kernel.memory_dtype(memory);
            self.reduced.insert(root, ReducedValue { memory, index, dtype });
            if cluster.stored.contains(&root) {
                let point = point_of(k, inner);
                let point: Index = point[..self.graph.ty(root).rank()].into();
                let value = self.value_of(root, &point, None);
                self.store_root(root, &point, value, 0);
            }
        }
    }

    /// What is multiplied at a point of a contraction of two operands, if the products are added up by multiply-adds.
    fn factors(&mut self, root: NodeId, point: &Index, dtype: DType) -> Option<[ValueId; 2]> {
        let node = self.graph.node(root);
        let NodeKind::Einsum {
            semiring: Semiring::AddMul,
            ..
        } = node.kind
        else {
            return None;
        };
        if node.operands.len() != 2 || !self.multiply_adds.contains(&dtype) {
            return None;
        }
        let operands: [_; 2] = operand_indices(self.graph, root, point).try_into().ok()?;
        Some(operands.map(|(operand, index)| self.summed(root, operand, &index, dtype, None)))
    }

    /// An operand's element as a reduction or contraction takes it, in the accumulator's dtype.
    fn summed(&mut self, root: NodeId, operand: NodeId, index: &Index, dtype: DType, mask: Option<ValueId>) -> ValueId {
        let value = self.value_of(operand, index, mask);
        // First to the declared accumulator, which may round or overflow, then to what carries it.
        let value = match &self.graph.node(root).kind {
            NodeKind::Einsum { accumulator, .. } => self.convert(value, *accumulator),
            _ => value,
        };
        self.convert(value, dtype)
    }

    /// The value that a reduction or contraction sums at a point of its space, in the accumulator's dtype.
    fn summand(&mut self, root: NodeId, point: &Index, dtype: DType, mask: Option<ValueId>) -> ValueId {
        let product = match &self.graph.node(root).kind {
            NodeKind::Einsum { semiring, .. } => Some(semiring.product()),
            _ => None,
        };
        let mut result: Option<ValueId> = None;
        for (operand, index) in operand_indices(self.graph, root, point) {
            let value = self.summed(root, operand, &index, dtype, mask);
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
            Form::Serial | Form::Updates | Form::ProductRows { .. } | Form::Tiles => Vec::new(),
        };
        Nest {
            copies: in_place::is_copy(&self.kernel),
            kernel: self.kernel,
            args: self.args,
            parallel,
            form,
            in_place,
            columns: 0,
            column_local: false,
            column_blocks: false,
            of_vector: false,
            precision: Precision::Exact,
            again: false,
        }
    }
}
