//! Scans along the last axis on a GPU: a warp for each row, whose threads take neighbours.
//!
//! ```text
//! for each row, a warp:
//!   carried: what nothing combines to
//!   for each so many pieces of 32 elements:
//!     elements of all of them to registers
//!     each piece: what the threads up to each thread have
//!     each piece: carried and that to the result; carried and all of the piece is carried on
//! ```
//!
//! Which elements are combined first depends on the length of a row alone, so that results are the same in every run.

use tlc_ir::graph::infer::flat_index;
use tlc_ir::graph::{Monoid, Shape};
use tlc_ir::index::IndexExpr;
use tlc_ir::kernel::{Access, Bind, Collective, CollectiveKind, Group, Memory, Op, Scope, Stmt, ValueId};
use tlc_ir::target::WARP_THREADS;
use tlc_ir::{DType, Graph, ScalarOp};

use super::{Form, Level, Lowerer, Nest, ScanKind};
use crate::access::Index;
use crate::cluster::Cluster;

/// Levels of statements: a block's, a warp's, those of a group of pieces, a thread's of one piece.
const BLOCK: usize = 0;
const WARP: usize = 1;
const GROUP: usize = 2;
const PIECE: usize = 3;

/// Warps of a block.
const WARPS: i64 = 8;
/// Pieces whose elements are loaded together, at most.
const MOST_PIECES: i64 = 8;

/// A scan whose axis is the last one.
struct Scan<'a> {
    lo: Lowerer<'a>,
    monoid: Monoid,
    /// Of what is carried.
    dtype: DType,
    /// Of the result.
    shape: Shape,
    /// Elements of a row, and rows.
    n: IndexExpr,
    rows: IndexExpr,
    row: IndexExpr,
    /// The first element of the row.
    first: Index,
    reverse: bool,
}

pub(super) fn lower_scan(graph: &Graph, cluster: &Cluster, is_root: &[bool]) -> Nest {
    let root = cluster.roots[0];
    let node = graph.node(root);
    let ScanKind {
        monoid,
        exclusive,
        reverse,
        ..
    } = ScanKind::of(graph, root);
    let mut lo = Lowerer::new(graph, &cluster.roots, is_root);
    lo.levels = (0..=PIECE).map(|_| Level::default()).collect();
    // Threads behind the end of a row, or of all rows, read nothing.
    lo.may_not_run = true;
    let shape = node.ty.shape.clone();
    let (n, around) = (shape[shape.len() - 1].clone(), shape[..shape.len() - 1].to_vec());
    let rows = IndexExpr::product(&around);
    let pieces = n.ceil_div(WARP_THREADS).as_const().unwrap_or(MOST_PIECES);
    let pieces = pieces.clamp(1, MOST_PIECES);
    let block = lo.new_var(rows.ceil_div(WARPS), BLOCK);
    let warp = lo.new_var(WARPS.into(), WARP);
    let group = lo.new_var(n.ceil_div(WARP_THREADS * pieces), GROUP);
    let row = IndexExpr::from(block) * WARPS.into() + warp.into();
    let mut first = Index::new();
    let mut rest = row.clone();
    for (k, extent) in around.iter().enumerate().rev() {
        // Where there is none, there are no rows either.
        let extent = match extent.interval(&lo).lo {
            1.. => extent.clone(),
            _ => IndexExpr::max(extent, &IndexExpr::ONE),
        };
        first.push(match k {
            0 => rest.clone(),
            _ => IndexExpr::modulo(&rest, &extent).simplify(&lo),
        });
        rest = IndexExpr::floor_div(&rest, &extent).simplify(&lo);
    }
    first.reverse();
    first.push(IndexExpr::ZERO);
    let dtype = node.ty.dtype.accumulator();
    let mut scan = Scan {
        lo,
        monoid,
        dtype,
        shape,
        n,
        rows,
        row,
        first,
        reverse,
    };
    let mut scratch = |len: i64| scan.lo.kernel.new_scratch(dtype, len.into(), Scope::Thread);
    let (part, whole, carried) = (scratch(pieces), scratch(pieces), scratch(1));
    let result = Memory::Param(scan.lo.param(root, Access::Write));
    let operand = node.operands[0];
    // Where exclusive, what is before the first element is nothing, and each thread's result is that of the next element.
    let behind = i64::from(exclusive);
    scan.threads(WARP, |scan, thread| {
        let nothing = scan.lo.constant(monoid.identity(dtype));
        scan.store(carried, IndexExpr::ZERO, nothing, None);
        if exclusive {
            let inside = scan.inside(&thread);
            let before = scan.lo.inside(&thread, &IndexExpr::ONE);
            let mask = scan.lo.and(inside, before);
            scan.store_result(result, &thread, nothing, Some(mask));
        }
    });
    scan.pieces(pieces, |scan, thread, piece| {
        let at = scan.position(group.into(), pieces, &piece, &thread);
        let inside = scan.inside(&at);
        let point = scan.point(&at);
        let value = scan.lo.value_of(operand, &point, inside);
        let mut value = scan.lo.convert(value, dtype);
        if let Some(inside) = inside {
            let nothing = scan.lo.constant(monoid.identity(dtype));
            value = scan.map(ScalarOp::Select, &[inside, value, nothing]);
        }
        scan.store(part, piece, value, None);
    });
    scan.together(part, pieces, CollectiveKind::Scan(monoid));
    scan.pieces(pieces, |scan, _, piece| {
        let all = scan.load(part, piece.clone());
        scan.store(whole, piece, all, None);
    });
    scan.together(whole, pieces, CollectiveKind::Broadcast(WARP_THREADS - 1));
    scan.pieces(pieces, |scan, thread, piece| {
        let at = scan.position(group.into(), pieces, &piece, &thread) + behind.into();
        let before = scan.load(carried, IndexExpr::ZERO);
        let own = scan.load(part, piece.clone());
        let own = scan.map(scan.monoid.combine(), &[before, own]);
        let inside = scan.inside(&at);
        scan.store_result(result, &at, own, inside);
        let all = scan.load(whole, piece);
        let all = scan.map(scan.monoid.combine(), &[before, all]);
        scan.store(carried, IndexExpr::ZERO, all, None);
    });
    let mut lo = scan.lo;
    let around = |var, bind, body| vec![Stmt::Loop { var, bind, body }];
    let groups = around(group, Bind::Serial, std::mem::take(&mut lo.levels[GROUP]).stmts);
    let mut warps = std::mem::take(&mut lo.levels[WARP]).stmts;
    warps.extend(groups);
    let mut blocks = std::mem::take(&mut lo.levels[BLOCK]).stmts;
    blocks.extend(around(warp, Bind::Warp, warps));
    lo.levels[BLOCK].stmts = around(block, Bind::Block, blocks);
    lo.finish(Vec::new(), Form::Tiles)
}

impl Scan<'_> {
    /// A loop over the threads of a warp at a level.
    fn threads(&mut self, level: usize, f: impl FnOnce(&mut Self, IndexExpr)) {
        let var = self.lo.new_var(WARP_THREADS.into(), PIECE);
        f(self, var.into());
        let body = std::mem::take(&mut self.lo.levels[PIECE]).stmts;
        let bind = Bind::Thread;
        self.lo.push(level, Stmt::Loop { var, bind, body });
    }

    /// Loops over the threads of a warp and, in each, over the pieces of a group.
    fn pieces(&mut self, pieces: i64, f: impl FnOnce(&mut Self, IndexExpr, IndexExpr)) {
        self.threads(GROUP, |scan, thread| {
            let var = scan.lo.new_var(pieces.into(), PIECE);
            f(scan, thread, var.into());
            let body = std::mem::take(&mut scan.lo.levels[PIECE]).stmts;
            let bind = Bind::Unroll;
            scan.lo.push(PIECE, Stmt::Loop { var, bind, body });
        });
    }

    /// What the threads of a warp do together with each element of scratch.
    fn together(&mut self, memory: Memory, count: i64, kind: CollectiveKind) {
        for n in 0..count {
            let (group, index) = (Group::Warp, IndexExpr::Const(n));
            let all = Collective {
                kind,
                group,
                memory,
                index,
            };
            self.lo.push(GROUP, Stmt::Collective(Box::new(all)));
        }
    }

    /// The position in a row, in the order of the scan, of a thread's element.
    fn position(&self, group: IndexExpr, pieces: i64, piece: &IndexExpr, thread: &IndexExpr) -> IndexExpr {
        (group * pieces.into() + piece.clone()) * WARP_THREADS.into() + thread.clone()
    }

    /// The point at a position.
    fn point(&self, at: &IndexExpr) -> Index {
        let mut point = self.first.clone();
        let last = point.len() - 1;
        point[last] = match self.reverse {
            true => self.n.clone() - IndexExpr::ONE - at.clone(),
            false => at.clone(),
        };
        point
    }

    /// Whether there is a position of the row, where that is not known.
    fn inside(&mut self, at: &IndexExpr) -> Option<ValueId> {
        let mut all = None;
        for (e, limit) in [(self.row.clone(), self.rows.clone()), (at.clone(), self.n.clone())] {
            if !e.proves_less(&limit, &self.lo) {
                let inside = self.lo.inside(&e, &limit);
                all = Some(self.lo.and(all, inside));
            }
        }
        all
    }

    fn load(&mut self, memory: Memory, index: IndexExpr) -> ValueId {
        let (dtype, mask) = (self.dtype, None);
        self.lo.emit(Op::Load { memory, index, mask }, dtype, PIECE)
    }

    fn map(&mut self, op: ScalarOp, args: &[ValueId]) -> ValueId {
        let dtype = self.dtype;
        self.lo.emit(Op::Map(op, args.into()), dtype, PIECE)
    }

    fn store(&mut self, memory: Memory, index: IndexExpr, value: ValueId, mask: Option<ValueId>) {
        let store = Stmt::Store {
            memory,
            index,
            value,
            mask,
        };
        self.lo.push(PIECE, store);
    }

    fn store_result(&mut self, memory: Memory, at: &IndexExpr, value: ValueId, mask: Option<ValueId>) {
        let value = self.lo.convert(value, self.lo.kernel.memory_dtype(memory));
        let index = flat_index(&self.point(at), &self.shape).simplify(&self.lo);
        self.store(memory, index, value, mask);
    }
}
