//! Lowering of scans in blocks: nests that run one behind the other on the result, which holds what they hand on.
//!
//! Invariants, where a block is of so many elements in the order of the scan, the last one perhaps shorter:
//! - First each block is scanned by itself. Several full blocks are followed in one loop, for each waits for itself only.
//! - A block's total lies in its last element, or in its first where scans are exclusive, for which that is the identity.
//! - Then the totals are scanned, one thread a row: the element that holds a total gets its final value.
//! - Then each of the other elements gets what came before its block, of which nothing is written any more.

use smallvec::smallvec;
use tlc_ir::graph::Monoid;
use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::{Access, Bind, Memory, Op, Scope, Stmt, ValueId};
use tlc_ir::{DType, Graph, NodeId};

use super::{Form, Lowerer, Nest, ScanKind};
use crate::access::Index;
use crate::cluster::{Blocks, Cluster};
use tlc_ir::graph::infer::flat_index;

/// A scan.
struct Scan<'a> {
    graph: &'a Graph,
    cluster: &'a Cluster,
    is_root: &'a [bool],
    root: NodeId,
    monoid: Monoid,
    axis: usize,
    exclusive: bool,
    reverse: bool,
    /// Of the result and of what is carried.
    dtype: DType,
    /// Elements along the axis.
    n: IndexExpr,
    /// Elements of a block.
    block: i64,
    /// Whether the loop over blocks is around those over the axes behind the scan's.
    neighbours: bool,
}

/// A nest that is being made, with loops over the other axes.
struct Rows<'a> {
    lo: Lowerer<'a>,
    parallel: Vec<VarId>,
    /// The element of the result at position 0.
    point: Index,
}

pub(super) fn lower_scan(graph: &Graph, cluster: &Cluster, is_root: &[bool], blocks: Blocks) -> Vec<Nest> {
    let root = cluster.roots[0];
    let node = graph.node(root);
    let ScanKind {
        monoid,
        axis,
        exclusive,
        reverse,
    } = ScanKind::of(graph, root);
    let scan = Scan {
        graph,
        cluster,
        is_root,
        root,
        monoid,
        axis,
        exclusive,
        reverse,
        dtype: node.ty.dtype,
        n: node.ty.shape[axis].clone(),
        block: blocks.elements,
        neighbours: blocks.neighbours,
    };
    let together = blocks.elements * blocks.chains;
    let groups = IndexExpr::floor_div(&scan.n, &IndexExpr::Const(together));
    let mut nests = Vec::new();
    let grouped = blocks.chains > 1;
    if grouped && !groups.is(0) {
        nests.push(scan.groups(&groups, blocks.chains));
    }
    let done = match grouped {
        true => groups * IndexExpr::Const(together),
        false => IndexExpr::ZERO,
    };
    if !(scan.n.clone() - done.clone()).is(0) {
        nests.push(scan.single(&done));
    }
    nests.push(scan.totals());
    nests.push(scan.rest());
    nests
}

impl<'a> Scan<'a> {
    fn rows(&self) -> Rows<'a> {
        let mut lo = Lowerer::new(self.graph, &self.cluster.roots, self.is_root);
        let mut parallel = Vec::new();
        let mut point = Index::new();
        for (a, extent) in self.graph.ty(self.root).shape.iter().enumerate() {
            if a == self.axis {
                point.push(IndexExpr::ZERO);
            } else {
                let v = lo.new_var(extent.clone(), 0);
                parallel.push(v);
                point.push(v.into());
            }
        }
        Rows { lo, parallel, point }
    }

    /// Puts the loop over blocks among the parallel ones.
    fn over_blocks(&self, rows: &mut Rows<'_>, block: VarId) {
        let at = match self.neighbours {
            true => self.axis,
            false => rows.parallel.len(),
        };
        rows.parallel.insert(at, block);
    }

    /// The point at a position in the order of the scan.
    fn point(&self, rows: &Rows<'_>, at: IndexExpr) -> Index {
        let mut point = rows.point.clone();
        point[self.axis] = match self.reverse {
            true => self.n.clone() - IndexExpr::ONE - at,
            false => at,
        };
        point
    }

    /// The result's element at a position.
    fn element(&self, rows: &mut Rows<'_>, at: IndexExpr, access: Access) -> (Memory, IndexExpr) {
        let memory = Memory::Param(rows.lo.param(self.root, access));
        let index = flat_index(&self.point(rows, at), &self.graph.ty(self.root).shape);
        (memory, index.simplify(&rows.lo))
    }

    fn store(&self, rows: &mut Rows<'_>, at: IndexExpr, value: ValueId, access: Access, level: usize) {
        let (memory, index) = self.element(rows, at, access);
        let mask = None;
        let store = Stmt::Store {
            memory,
            index,
            value,
            mask,
        };
        rows.lo.push(level, store);
    }

    fn load(&self, rows: &mut Rows<'_>, at: IndexExpr, level: usize) -> ValueId {
        let (memory, index) = self.element(rows, at, Access::ReadWrite);
        let mask = None;
        rows.lo.emit(Op::Load { memory, index, mask }, self.dtype, level)
    }

    fn load_state(&self, rows: &mut Rows<'_>, state: Memory, index: IndexExpr, level: usize) -> ValueId {
        let (memory, mask) = (state, None);
        rows.lo.emit(Op::Load { memory, index, mask }, self.dtype, level)
    }

    /// Running values, as many as there are chains, of which none has begun.
    fn states(&self, rows: &mut Rows<'_>, chains: i64) -> Memory {
        let state = rows
            .lo
            .kernel
            .new_scratch(self.dtype, IndexExpr::Const(chains), Scope::Register);
        let value = rows.lo.constant(self.monoid.identity(self.dtype));
        for c in 0..chains {
            let store = Stmt::Store {
                memory: state,
                index: IndexExpr::Const(c),
                value,
                mask: None,
            };
            rows.lo.push(0, store);
        }
        state
    }

    fn accumulate(&self, state: Memory, index: IndexExpr, value: ValueId) -> Stmt {
        Stmt::Accumulate {
            monoid: self.monoid,
            state: smallvec![(state, index)],
            values: smallvec![value],
        }
    }

    /// One step of a chain: the element at a position of the innermost loops.
    fn step(&self, rows: &mut Rows<'_>, at: IndexExpr, state: Memory, chain: IndexExpr) {
        let operand = self.graph.node(self.root).operands[0];
        let point = self.point(rows, at.clone());
        let value = rows.lo.value_of(operand, &point, None);
        let accumulate = self.accumulate(state, chain.clone(), value);
        if !self.exclusive {
            rows.lo.push(1, accumulate.clone());
        }
        let running = self.load_state(rows, state, chain, 1);
        self.store(rows, at, running, Access::Write, 1);
        if self.exclusive {
            rows.lo.push(1, accumulate);
        }
    }

    /// Full blocks, several at a time.
    fn groups(&self, groups: &IndexExpr, chains: i64) -> Nest {
        let mut rows = self.rows();
        let group = rows.lo.new_var(groups.clone(), 0);
        self.over_blocks(&mut rows, group);
        let state = self.states(&mut rows, chains);
        let along = rows.lo.new_var(IndexExpr::Const(self.block), 1);
        let chain = rows.lo.new_var(IndexExpr::Const(chains), 1);
        let first = |chain: IndexExpr| {
            (IndexExpr::from(group) * IndexExpr::Const(chains) + chain) * IndexExpr::Const(self.block)
        };
        rows.lo.may_not_run = false;
        self.step(&mut rows, first(chain.into()) + along.into(), state, chain.into());
        rows.lo.close_inner(&[along, chain]);
        // Registers have no other index than a number.
        if let Some(Stmt::Loop { body, .. }) = rows.lo.levels[0].stmts.last_mut()
            && let [Stmt::Loop { bind, .. }] = &mut body[..]
        {
            *bind = Bind::Unroll;
        }
        if self.exclusive {
            for c in 0..chains {
                let total = self.load_state(&mut rows, state, IndexExpr::Const(c), 0);
                self.store(&mut rows, first(IndexExpr::Const(c)), total, Access::Write, 0);
            }
        }
        rows.lo.finish(rows.parallel, Form::Serial)
    }

    /// The blocks from a position on, one at a time.
    fn single(&self, done: &IndexExpr) -> Nest {
        let mut rows = self.rows();
        let left = (self.n.clone() - done.clone()).simplify(&rows.lo);
        let block = rows.lo.new_var(left.ceil_div(self.block).simplify(&rows.lo), 0);
        self.over_blocks(&mut rows, block);
        let state = self.states(&mut rows, 1);
        let start = IndexExpr::from(block) * IndexExpr::Const(self.block);
        let len = IndexExpr::min(&IndexExpr::Const(self.block), &(left - start.clone()));
        let along = rows.lo.new_var(len.simplify(&rows.lo), 1);
        let first = done.clone() + start;
        rows.lo.may_not_run = !rows.lo.certainly_run(&[along]);
        self.step(&mut rows, first.clone() + along.into(), state, IndexExpr::ZERO);
        rows.lo.close_inner(&[along]);
        if self.exclusive {
            let total = self.load_state(&mut rows, state, IndexExpr::ZERO, 0);
            self.store(&mut rows, first, total, Access::Write, 0);
        }
        rows.lo.finish(rows.parallel, Form::Serial)
    }

    /// The scan of the totals: of full blocks, whose last elements hold them, or of all, whose first ones do.
    fn totals(&self) -> Nest {
        let mut rows = self.rows();
        let state = self.states(&mut rows, 1);
        let size = IndexExpr::Const(self.block);
        let count = match self.exclusive {
            true => self.n.ceil_div(self.block),
            false => IndexExpr::floor_div(&self.n, &size),
        };
        let block = rows.lo.new_var(count.simplify(&rows.lo), 1);
        let start = IndexExpr::from(block) * size;
        let at = match self.exclusive {
            true => start,
            false => start + IndexExpr::Const(self.block - 1),
        };
        rows.lo.may_not_run = !rows.lo.certainly_run(&[block]);
        let total = self.load(&mut rows, at.clone(), 1);
        let accumulate = self.accumulate(state, IndexExpr::ZERO, total);
        if !self.exclusive {
            rows.lo.push(1, accumulate.clone());
        }
        let running = self.load_state(&mut rows, state, IndexExpr::ZERO, 1);
        self.store(&mut rows, at, running, Access::ReadWrite, 1);
        if self.exclusive {
            rows.lo.push(1, accumulate);
        }
        rows.lo.close_inner(&[block]);
        rows.lo.finish(rows.parallel, Form::Serial)
    }

    /// What came before a block is added to its other elements. An iteration has the element that holds it and those up to the next.
    fn rest(&self) -> Nest {
        let mut rows = self.rows();
        let blocks = self.n.ceil_div(self.block);
        // Where the last elements hold totals, the first block is done.
        let (count, holder) = match self.exclusive {
            true => (blocks, 0),
            false => (
                IndexExpr::max(&IndexExpr::ZERO, &(blocks - IndexExpr::ONE)),
                self.block - 1,
            ),
        };
        let block = rows.lo.new_var(count.simplify(&rows.lo), 0);
        self.over_blocks(&mut rows, block);
        let at = IndexExpr::from(block) * IndexExpr::Const(self.block) + IndexExpr::Const(holder);
        if self.neighbours {
            return self.rest_apart(rows, &at);
        }
        let left = self.n.clone() - IndexExpr::ONE - at.clone();
        let len = IndexExpr::min(&IndexExpr::Const(self.block - 1), &left);
        let along = rows.lo.new_var(len.simplify(&rows.lo), 1);
        rows.lo.may_not_run = true;
        let before = self.load(&mut rows, at.clone(), 0);
        let to = at + IndexExpr::ONE + along.into();
        let inside = self.load(&mut rows, to.clone(), 1);
        let op = Op::Map(self.monoid.combine(), smallvec![before, inside]);
        let sum = rows.lo.emit(op, self.dtype, 1);
        self.store(&mut rows, to, sum, Access::ReadWrite, 1);
        rows.lo.close_inner(&[along]);
        rows.lo.finish(rows.parallel, Form::Rows)
    }

    /// As [`Scan::rest`], an iteration for each element behind the one at `at`, which holds what came before.
    fn rest_apart(&self, mut rows: Rows<'_>, at: &IndexExpr) -> Nest {
        let along = rows.lo.new_var(IndexExpr::Const(self.block - 1), 0);
        rows.parallel.insert(self.axis + 1, along);
        let to = at.clone() + IndexExpr::ONE + along.into();
        let whole = to.proves_less(&self.n, &rows.lo);
        let mask = (!whole).then(|| rows.lo.inside(&to, &self.n));
        let before = self.load(&mut rows, at.clone(), 0);
        let (memory, index) = self.element(&mut rows, to, Access::ReadWrite);
        let element = index.clone();
        let inside = rows.lo.emit(Op::Load { memory, index, mask }, self.dtype, 0);
        let op = Op::Map(self.monoid.combine(), smallvec![before, inside]);
        let value = rows.lo.emit(op, self.dtype, 0);
        let index = element;
        let store = Stmt::Store {
            memory,
            index,
            value,
            mask,
        };
        rows.lo.push(0, store);
        rows.lo.finish(rows.parallel, Form::Elementwise)
    }
}
