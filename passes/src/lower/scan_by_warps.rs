//! Scans along the last axis on a GPU: a warp for each row, or for each so many elements of it, whose threads take neighbours.
//!
//! ```text
//! for each line, a warp:
//!   carried: what nothing combines to, or what is before the line
//!   for each so many pieces of a line:
//!     elements of all of them to registers, up to 16 bytes of each piece to a thread, and what these come to
//!     each piece: what the threads up to each thread have, and all of them
//!     each piece: carried and what is before each element to the result; carried and all of the piece is carried on
//! ```
//!
//! A line is a row where there are many. Where there are few, a row goes to the warps of a block, as much of it to each as its threads hold at once: what
//! each warp has comes to is in shared memory behind a barrier, and each begins with what those before it have. Of rows that are longer a line is a chunk, and
//! there are three nests: totals of chunks, a scan of the totals of each row, in their place, and the scans of chunks, each of which begins with what is before it.
//!
//! Which elements are combined first depends on the graph and on the length of a row alone, so that results are the same in every run.

use smallvec::SmallVec;
use tlc_ir::graph::infer::flat_index;
use tlc_ir::graph::{Monoid, Shape};
use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::visit::walk;
use tlc_ir::kernel::{Access, Bind, Collective, CollectiveKind, Group, Memory, Op, Scope, Stmt, ValueId};
use tlc_ir::target::{GPU_ACCESS_BYTES, WARP_THREADS};
use tlc_ir::{DType, Graph, NodeId, ScalarOp};

use super::{Form, Level, Lowerer, Nest, ScanKind};
use crate::access::Index;
use crate::cluster::Cluster;
use crate::legalize::legal_block;

/// Levels of statements: a block's, a warp's, those of a group of pieces, a thread's of one piece, those of one of its elements.
const BLOCK: usize = 0;
const WARP: usize = 1;
const GROUP: usize = 2;
const PIECE: usize = 3;
const LANE: usize = 4;

/// Warps of a block with a row each, and with a chunk each, of which there may be few.
const WARPS: i64 = 8;
const CHUNK_WARPS: i64 = 4;
/// Warps of a block that share a row.
const SHARING_WARPS: [i64; 3] = [8, 16, 32];
/// Pieces whose elements are loaded together, at most.
const MOST_PIECES: i64 = 8;
/// Elements that a thread has of a piece, at most: they are combined one after another.
const MOST_LANES: i64 = 8;
/// Elements that a thread holds at once, at most.
const MOST_HELD: i64 = 32;
/// Legalized statements that a thread has for these.
const STATEMENTS: u64 = 3000;

/// Rows have a multiple of so many chunks, the last of which may be empty, so that a thread loads as many totals at once.
const TOTALS: i64 = 4;

/// What nests share.
#[derive(Clone, Copy)]
struct Of<'a> {
    graph: &'a Graph,
    cluster: &'a Cluster,
    is_root: &'a [bool],
    kind: ScanKind,
}

/// What a nest goes through.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lines {
    /// Rows.
    Rows,
    /// Parts of rows, as many of each as its block has warps.
    Parts(i64),
    /// Chunks of rows, of so many elements.
    Chunks(i64),
    /// The totals of such chunks, a row's each.
    Totals(i64),
}

/// How much a thread takes at once.
#[derive(Clone, Copy)]
struct Share {
    /// Neighbours of a piece.
    lanes: i64,
    pieces: i64,
}

/// What a thread holds of a group of pieces.
#[derive(Clone, Copy)]
struct Held {
    /// The elements.
    part: Memory,
    /// By piece, what the elements of threads come to, and those of all threads.
    up_to: Memory,
    whole: Memory,
    /// What is before the piece.
    carried: Memory,
}

/// A nest that is being made.
struct Scan<'a> {
    lo: Lowerer<'a>,
    root: NodeId,
    operand: NodeId,
    monoid: Monoid,
    axis: usize,
    exclusive: bool,
    reverse: bool,
    lines: Lines,
    share: Share,
    /// Of what is carried.
    dtype: DType,
    /// Of the result.
    shape: Shape,
    /// What a row has of what is scanned, and how many lines there are.
    n: IndexExpr,
    count: IndexExpr,
    block: VarId,
    warp: VarId,
    group: VarId,
    /// The line, its row, and the position in the row at which it begins.
    line: IndexExpr,
    row: IndexExpr,
    start: IndexExpr,
    /// The first element of the row.
    first: Index,
}

/// Lowers a scan of rows, a warp each.
pub(super) fn lower_rows(graph: &Graph, cluster: &Cluster, is_root: &[bool]) -> Vec<Nest> {
    let of = Of::new(graph, cluster, is_root);
    vec![of.shared_out(Lines::Rows, Scan::scan)]
}

/// Lowers a scan of rows, a block each; or of chunks of so many elements of them, where threads would have too much of a row at once.
pub(super) fn lower_by_blocks(graph: &Graph, cluster: &Cluster, is_root: &[bool], elements: i64) -> Vec<Nest> {
    match Of::new(graph, cluster, is_root).by_blocks() {
        Some(nest) => vec![nest],
        None => lower_chunks(graph, cluster, is_root, elements),
    }
}

/// Lowers a scan of chunks of rows, of so many elements.
pub(super) fn lower_chunks(graph: &Graph, cluster: &Cluster, is_root: &[bool], elements: i64) -> Vec<Nest> {
    let of = Of::new(graph, cluster, is_root);
    vec![
        of.shared_out(Lines::Chunks(elements), Scan::totals),
        of.shared_out(Lines::Totals(elements), Scan::scan),
        of.shared_out(Lines::Chunks(elements), Scan::scan),
    ]
}

impl<'a> Of<'a> {
    fn new(graph: &'a Graph, cluster: &'a Cluster, is_root: &'a [bool]) -> Of<'a> {
        Of {
            graph,
            cluster,
            is_root,
            kind: ScanKind::of(graph, cluster.roots[0]),
        }
    }

    /// A nest whose blocks have a row each, all of which their threads hold at once, if they can.
    fn by_blocks(self) -> Option<Nest> {
        let root = self.cluster.roots[0];
        let extent = &self.graph.ty(root).shape[self.kind.axis];
        let length = extent.interval(self.graph).hi;
        let widest = (GPU_ACCESS_BYTES / self.graph.ty(root).dtype.bytes().max(1) as i64).clamp(1, MOST_LANES);
        let neighbours = std::iter::successors(Some(widest), |n| Some(n / 2)).take_while(|n| *n >= 1);
        let whole = |lanes: &i64| IndexExpr::modulo(extent, &(*lanes).into()).is(0);
        neighbours.filter(whole).find_map(|lanes| {
            let held = MOST_PIECES.min(MOST_HELD / lanes);
            let (warps, pieces) = SHARING_WARPS.into_iter().find_map(|warps| {
                let together = warps * WARP_THREADS * lanes;
                let pieces = length.max(1).saturating_add(together - 1) / together;
                (pieces <= held).then_some((warps, pieces))
            })?;
            let made = Scan::new(self, Lines::Parts(warps), Share { lanes, pieces }).scan_by_block(warps);
            let fits = statements_of_threads(&made) <= STATEMENTS;
            (fits && (lanes == 1 || moves_together(&made, lanes))).then_some(made)
        })
    }

    /// A nest whose threads take as much at once as there may be.
    fn shared_out(self, lines: Lines, nest: impl Fn(Scan<'a>) -> Nest) -> Nest {
        let root = self.cluster.roots[0];
        let extent = &self.graph.ty(root).shape[self.kind.axis];
        let length = match lines {
            Lines::Rows | Lines::Parts(_) => extent.as_const(),
            Lines::Chunks(elements) => Some(elements),
            Lines::Totals(elements) => chunks_of(extent, elements).as_const(),
        };
        let dtype = self.graph.ty(root).dtype;
        let (bytes, most) = match lines {
            Lines::Totals(_) => (dtype.accumulator().bytes(), TOTALS),
            Lines::Rows | Lines::Parts(_) | Lines::Chunks(_) => (dtype.bytes(), MOST_LANES),
        };
        let mut lanes = (GPU_ACCESS_BYTES / bytes.max(1) as i64).clamp(1, most);
        // Each thread has some, and rows begin where accesses may.
        let whole = |lanes: i64| match lines {
            Lines::Totals(_) => true,
            Lines::Rows | Lines::Parts(_) | Lines::Chunks(_) => IndexExpr::modulo(extent, &lanes.into()).is(0),
        };
        let fills = |lanes: i64| length.is_none_or(|n| n >= lanes * WARP_THREADS);
        while lanes > 1 && !(whole(lanes) && fills(lanes)) {
            lanes /= 2;
        }
        loop {
            let all = length.map_or(MOST_PIECES, |n| (n + lanes * WARP_THREADS - 1) / (lanes * WARP_THREADS));
            let mut pieces = all.clamp(1, MOST_PIECES.min(MOST_HELD / lanes));
            loop {
                let made = nest(Scan::new(self, lines, Share { lanes, pieces }));
                let fits = pieces == 1 || statements_of_threads(&made) <= STATEMENTS;
                if fits && (lanes == 1 || moves_together(&made, lanes)) {
                    return made;
                }
                if fits {
                    break;
                }
                pieces /= 2;
            }
            lanes = 1;
        }
    }
}

/// Chunks of so many elements that a row has.
fn chunks_of(row: &IndexExpr, elements: i64) -> IndexExpr {
    row.ceil_div(elements * TOTALS) * TOTALS.into()
}

/// Legalized statements of the longest loop over threads.
fn statements_of_threads(nest: &Nest) -> u64 {
    let of = |s: &Stmt| match s {
        Stmt::Loop {
            bind: Bind::Thread,
            body,
            ..
        } => legal_block(&nest.kernel, body),
        _ => 0,
    };
    nest.kernel.statements().map(of).max().unwrap_or(0)
}

/// Whether the elements of parameters that lanes touch are one, or aligned ones side by side.
fn moves_together(nest: &Nest, lanes: i64) -> bool {
    let of_lane = |s: &Stmt| {
        let Stmt::Loop {
            var,
            bind: Bind::Lanes,
            body,
        } = s
        else {
            return true;
        };
        let first = |index: &IndexExpr| index.replace_vars(&mut |v| (v == *var).then_some(IndexExpr::ZERO));
        let plain = walk(body).all(|s| matches!(s, Stmt::Let { .. } | Stmt::Store { .. }));
        let mut accesses = body.iter().flat_map(|s| s.accesses());
        plain
            && accesses.all(|a| {
                let side_by_side = || a.index.affine_in(*var).is_some_and(|(c, _)| c.is(1));
                let aligned = || IndexExpr::modulo(&first(a.index), &lanes.into()).is(0);
                !matches!(a.memory, Memory::Param(_)) || !a.index.uses(*var) || side_by_side() && aligned()
            })
    };
    nest.kernel.statements().all(of_lane)
}

impl<'a> Scan<'a> {
    fn new(of: Of<'a>, lines: Lines, share: Share) -> Scan<'a> {
        let root = of.cluster.roots[0];
        let node = of.graph.node(root);
        let ScanKind {
            monoid,
            axis,
            exclusive,
            reverse,
        } = of.kind;
        let mut lo = Lowerer::new(of.graph, &of.cluster.roots, of.is_root);
        // What is masked is read as far inside as there is a level.
        let innermost = if share.lanes > 1 { LANE } else { PIECE };
        lo.levels = (0..=innermost).map(|_| Level::default()).collect();
        // Threads behind the end of a row, or of all rows, read nothing.
        lo.may_not_run = true;
        let shape = node.ty.shape.clone();
        let others: Vec<usize> = (0..shape.len()).filter(|&a| a != axis).collect();
        let rows = IndexExpr::product(others.iter().map(|&a| &shape[a]));
        let chunks = |elements: i64| chunks_of(&shape[axis], elements).simplify(&lo);
        // What is divided by where there are no rows is not 0 either.
        let positive = |lo: &Lowerer<'_>, e: &IndexExpr| match e.interval(lo).lo {
            1.. => e.clone(),
            _ => IndexExpr::max(e, &IndexExpr::ONE),
        };
        let (n, length, count) = match lines {
            Lines::Rows => (shape[axis].clone(), shape[axis].clone(), rows.clone()),
            Lines::Parts(_) => (shape[axis].clone(), IndexExpr::ONE, rows.clone()),
            Lines::Chunks(elements) => (shape[axis].clone(), elements.into(), rows.clone() * chunks(elements)),
            Lines::Totals(elements) => (chunks(elements), chunks(elements), rows.clone()),
        };
        let warps = match lines {
            Lines::Rows => WARPS,
            Lines::Parts(warps) => warps,
            Lines::Chunks(_) | Lines::Totals(_) => CHUNK_WARPS,
        };
        let together = WARP_THREADS * share.lanes * share.pieces;
        let one_row = rows.is(1);
        let chunks = match lines {
            Lines::Chunks(elements) => Some((positive(&lo, &chunks(elements)), elements)),
            Lines::Rows | Lines::Parts(_) | Lines::Totals(_) => None,
        };
        let in_parts = matches!(lines, Lines::Parts(_));
        let blocks = if in_parts { count.clone() } else { count.ceil_div(warps) };
        let block = lo.new_var(blocks, BLOCK);
        let warp = lo.new_var(warps.into(), WARP);
        let group = lo.new_var(length.ceil_div(together).simplify(&lo), GROUP);
        let line = match in_parts {
            true => block.into(),
            false => IndexExpr::from(block) * warps.into() + warp.into(),
        };
        let (row, start) = match chunks {
            None if in_parts => (line.clone(), IndexExpr::from(warp) * together.into()),
            None => (line.clone(), IndexExpr::ZERO),
            Some((_, elements)) if one_row => (IndexExpr::ZERO, line.clone() * elements.into()),
            Some((of_row, elements)) => (
                IndexExpr::floor_div(&line, &of_row).simplify(&lo),
                IndexExpr::modulo(&line, &of_row).simplify(&lo) * elements.into(),
            ),
        };
        let mut first: Index = SmallVec::from_elem(IndexExpr::ZERO, shape.len());
        let mut rest = row.clone();
        for (k, &a) in others.iter().enumerate().rev() {
            let extent = positive(&lo, &shape[a]);
            first[a] = match k {
                0 => rest.clone(),
                _ => IndexExpr::modulo(&rest, &extent).simplify(&lo),
            };
            rest = IndexExpr::floor_div(&rest, &extent).simplify(&lo);
        }
        let (exclusive, reverse) = match lines {
            Lines::Totals(_) => (true, false),
            Lines::Rows | Lines::Parts(_) | Lines::Chunks(_) => (exclusive, reverse),
        };
        Scan {
            lo,
            root,
            operand: node.operands[0],
            monoid,
            axis,
            exclusive,
            reverse,
            lines,
            share,
            dtype: node.ty.dtype.accumulator(),
            shape,
            n,
            count,
            block,
            warp,
            group,
            line,
            row,
            start,
            first,
        }
    }

    /// The totals of lines, an element each.
    fn totals(mut self) -> Nest {
        let Share { lanes, pieces } = self.share;
        let (part, sum) = (self.registers(pieces * lanes), self.registers(1));
        self.threads(WARP, |scan, _| {
            let nothing = scan.nothing();
            scan.store(sum, IndexExpr::ZERO, nothing, None);
        });
        self.pieces(|scan, thread, piece| {
            scan.read(part, &thread, &piece);
            let mut all = scan.load(sum, IndexExpr::ZERO);
            for lane in 0..lanes {
                let value = scan.load(part, piece.clone() * lanes.into() + lane.into());
                all = scan.combine(all, value);
            }
            scan.store(sum, IndexExpr::ZERO, all, None);
        });
        self.close_groups();
        self.together(WARP, sum, 1, CollectiveKind::Reduce(self.monoid));
        let left = self.left(Access::Write);
        self.threads(WARP, |scan, thread| {
            let one = scan.lo.inside(&thread, &IndexExpr::ONE);
            let exists = scan.exists().map_or(one, |exists| scan.lo.and(Some(exists), one));
            let all = scan.load(sum, IndexExpr::ZERO);
            scan.store(left, scan.line.clone(), all, Some(exists));
        });
        self.finish()
    }

    /// The scans of lines.
    fn scan(mut self) -> Nest {
        let held = self.held();
        let result = match self.lines {
            Lines::Totals(_) => self.left(Access::ReadWrite),
            Lines::Rows | Lines::Parts(_) | Lines::Chunks(_) => Memory::Param(self.lo.param(self.root, Access::Write)),
        };
        let left = match self.lines {
            Lines::Chunks(_) => Some(self.left(Access::Read)),
            Lines::Rows | Lines::Parts(_) | Lines::Totals(_) => None,
        };
        self.threads(WARP, |scan, _| {
            let before = match left {
                None => scan.nothing(),
                Some(memory) => {
                    let (index, mask) = (scan.line.clone(), scan.exists());
                    scan.lo.emit(Op::Load { memory, index, mask }, scan.dtype, PIECE)
                }
            };
            scan.store(held.carried, IndexExpr::ZERO, before, None);
        });
        self.combine_pieces(held);
        self.write_pieces(held, result);
        self.close_groups();
        self.finish()
    }

    /// The scans of rows, each by so many warps of a block.
    fn scan_by_block(mut self, warps: i64) -> Nest {
        let held = self.held();
        let result = Memory::Param(self.lo.param(self.root, Access::Write));
        let totals = self.lo.kernel.new_scratch(self.dtype, warps.into(), Scope::Shared);
        self.combine_pieces(held);
        self.group_of_warp();
        let pieces = self.share.pieces;
        self.threads(WARP, |scan, thread| {
            let mut all = scan.load(held.whole, IndexExpr::ZERO);
            for piece in 1..pieces {
                let value = scan.load(held.whole, piece.into());
                all = scan.combine(all, value);
            }
            let one = scan.lo.inside(&thread, &IndexExpr::ONE);
            scan.store(totals, scan.warp.into(), all, Some(one));
        });
        self.close_warps(warps);
        self.lo.push(BLOCK, Stmt::Barrier);
        // What the warps before have come to, one for each thread, in the order of a tree.
        self.threads(WARP, |scan, thread| {
            let before = scan.lo.inside(&thread, &scan.warp.into());
            let (memory, index, mask) = (totals, thread, Some(before));
            let value = scan.lo.emit(Op::Load { memory, index, mask }, scan.dtype, PIECE);
            let nothing = scan.nothing();
            let value = scan.lo.map(ScalarOp::Select, &[before, value, nothing]);
            scan.store(held.carried, IndexExpr::ZERO, value, None);
        });
        self.together(WARP, held.carried, 1, CollectiveKind::Reduce(self.monoid));
        self.write_pieces(held, result);
        self.group_of_warp();
        self.finish()
    }

    /// What a thread holds.
    fn held(&mut self) -> Held {
        let Share { lanes, pieces } = self.share;
        Held {
            part: self.registers(pieces * lanes),
            up_to: self.registers(pieces),
            whole: self.registers(pieces),
            carried: self.registers(1),
        }
    }

    /// The elements of a group of pieces to registers, and of each piece what the threads before a thread, or up to it, and all of them have.
    fn combine_pieces(&mut self, held: Held) {
        let Share { lanes, pieces } = self.share;
        self.pieces(|scan, thread, piece| {
            scan.read(held.part, &thread, &piece);
            let mut all = scan.load(held.part, scan.place(&piece, 0));
            for k in 1..lanes {
                let place = scan.place(&piece, k);
                let value = scan.load(held.part, place.clone());
                all = scan.combine(all, value);
                scan.store(held.part, place, all, None);
            }
            scan.store(held.up_to, piece, all, None);
        });
        self.together(GROUP, held.up_to, pieces, CollectiveKind::Scan(self.monoid));
        self.pieces(|scan, _, piece| {
            let all = scan.load(held.up_to, piece.clone());
            scan.store(held.whole, piece, all, None);
        });
        self.together(GROUP, held.whole, pieces, CollectiveKind::Broadcast(WARP_THREADS - 1));
        if self.shifted() {
            self.together(GROUP, held.up_to, pieces, CollectiveKind::Shift(self.monoid));
        }
    }

    /// Whether a thread begins with what the one before it ends with: but where it has one element, and that counts.
    fn shifted(&self) -> bool {
        self.share.lanes > 1 || self.exclusive
    }

    /// The results of a group of pieces, of which the first one begins with what is carried.
    fn write_pieces(&mut self, held: Held, result: Memory) {
        let (lanes, shifted) = (self.share.lanes, self.shifted());
        self.pieces(|scan, thread, piece| {
            let before = scan.load(held.carried, IndexExpr::ZERO);
            let own = scan.load(held.up_to, piece.clone());
            let all = scan.combine(before, own);
            let behind = usize::from(scan.exclusive);
            let mut results: Vec<ValueId> = vec![all];
            if shifted {
                for k in 0..lanes {
                    let value = scan.load(held.part, scan.place(&piece, k));
                    results.push(scan.combine(all, value));
                }
                results.drain(..1 - behind);
            }
            for (k, &value) in (0..lanes).zip(&results) {
                scan.store(held.part, scan.place(&piece, k), value, None);
            }
            scan.write(held.part, result, &thread, &piece);
            let all = scan.load(held.whole, piece);
            let all = scan.combine(before, all);
            scan.store(held.carried, IndexExpr::ZERO, all, None);
        });
    }

    /// Puts a group of pieces, the only one of a warp, behind what the warp does before it.
    fn group_of_warp(&mut self) {
        let body = std::mem::take(&mut self.lo.levels[GROUP]).stmts;
        body.into_iter().for_each(|s| self.lo.push(WARP, s));
    }

    /// Puts what warps did into their loop, and goes on in another one, of parts of the same row.
    fn close_warps(&mut self, warps: i64) {
        let (before, bind) = (self.warp, Bind::Warp);
        let body = std::mem::take(&mut self.lo.levels[WARP]).stmts;
        self.lo.push(
            BLOCK,
            Stmt::Loop {
                var: before,
                bind,
                body,
            },
        );
        self.warp = self.lo.new_var(warps.into(), WARP);
        let warp = self.warp;
        self.start = self.start.replace_vars(&mut |v| (v == before).then(|| warp.into()));
    }

    fn finish(self) -> Nest {
        let mut lo = self.lo;
        let around = |var, bind, body| vec![Stmt::Loop { var, bind, body }];
        let warps = std::mem::take(&mut lo.levels[WARP]).stmts;
        let mut blocks = std::mem::take(&mut lo.levels[BLOCK]).stmts;
        blocks.extend(around(self.warp, Bind::Warp, warps));
        lo.levels[BLOCK].stmts = around(self.block, Bind::Block, blocks);
        lo.finish(Vec::new(), Form::Tiles)
    }

    /// Numbers that each thread has to itself.
    fn registers(&mut self, len: i64) -> Memory {
        self.lo.kernel.new_scratch(self.dtype, len.into(), Scope::Thread)
    }

    /// What the first nest leaves: the totals of chunks, row by row.
    fn left(&mut self, access: Access) -> Memory {
        let len = match self.lines {
            Lines::Rows | Lines::Parts(_) | Lines::Chunks(_) => self.count.clone(),
            Lines::Totals(_) => self.count.clone() * self.n.clone(),
        };
        Memory::Param(self.lo.temporary(0, self.dtype, len, access))
    }

    /// A loop over the threads of a warp at a level.
    fn threads(&mut self, level: usize, f: impl FnOnce(&mut Self, IndexExpr)) {
        let var = self.lo.new_var(WARP_THREADS.into(), PIECE);
        f(self, var.into());
        let body = std::mem::take(&mut self.lo.levels[PIECE]).stmts;
        let bind = Bind::Thread;
        self.lo.push(level, Stmt::Loop { var, bind, body });
    }

    /// Loops over the threads of a warp and, in each, over the pieces of a group.
    fn pieces(&mut self, f: impl FnOnce(&mut Self, IndexExpr, IndexExpr)) {
        let pieces = self.share.pieces;
        self.threads(GROUP, |scan, thread| {
            let var = scan.lo.new_var(pieces.into(), PIECE);
            f(scan, thread, var.into());
            let body = std::mem::take(&mut scan.lo.levels[PIECE]).stmts;
            let bind = Bind::Unroll;
            scan.lo.push(PIECE, Stmt::Loop { var, bind, body });
        });
    }

    /// A loop over the elements that a thread has of a piece, in the order in which memory has them; `f` gets the number of each.
    fn each_lane(&mut self, f: impl FnOnce(&mut Self, IndexExpr)) {
        let lanes = self.share.lanes;
        if lanes == 1 {
            return f(self, IndexExpr::ZERO);
        }
        let var = self.lo.new_var(lanes.into(), LANE);
        f(self, var.into());
        let body = std::mem::take(&mut self.lo.levels[LANE]).stmts;
        let bind = Bind::Lanes;
        self.lo.push(PIECE, Stmt::Loop { var, bind, body });
    }

    /// Puts the loop over groups of pieces behind what a warp does before them.
    fn close_groups(&mut self) {
        let (var, bind) = (self.group, Bind::Serial);
        let body = std::mem::take(&mut self.lo.levels[GROUP]).stmts;
        self.lo.push(WARP, Stmt::Loop { var, bind, body });
    }

    /// What the threads of a warp do together with each element of scratch.
    fn together(&mut self, level: usize, memory: Memory, count: i64, kind: CollectiveKind) {
        for n in 0..count {
            let (group, index) = (Group::Warp, IndexExpr::Const(n));
            let all = Collective {
                kind,
                group,
                memory,
                index,
            };
            self.lo.push(level, Stmt::Collective(Box::new(all)));
        }
    }

    /// The elements of a thread's piece to scratch, and what combines to nothing for those that there are not.
    fn read(&mut self, to: Memory, thread: &IndexExpr, piece: &IndexExpr) {
        let lanes = self.share.lanes;
        let inside = self.inside(thread, piece);
        self.each_lane(|scan, lane| {
            let at = scan.position(thread, piece, &lane);
            let value = match scan.lines {
                Lines::Totals(_) => {
                    let (memory, index, mask) = (scan.left_here(), scan.total(&at), inside);
                    let level = scan.lo.level_of(&index).max(PIECE);
                    scan.lo.emit(Op::Load { memory, index, mask }, scan.dtype, level)
                }
                Lines::Rows | Lines::Parts(_) | Lines::Chunks(_) => {
                    let point = scan.point(&at);
                    let value = scan.lo.value_of(scan.operand, &point, inside);
                    scan.lo.convert(value, scan.dtype)
                }
            };
            let value = match inside {
                Some(inside) => {
                    let nothing = scan.nothing();
                    scan.lo.map(ScalarOp::Select, &[inside, value, nothing])
                }
                None => value,
            };
            let place = piece.clone() * lanes.into() + lane;
            scan.store(to, place, value, None);
        });
    }

    /// The elements of a thread's piece from scratch to the result.
    fn write(&mut self, from: Memory, result: Memory, thread: &IndexExpr, piece: &IndexExpr) {
        let lanes = self.share.lanes;
        let inside = self.inside(thread, piece);
        self.each_lane(|scan, lane| {
            let at = scan.position(thread, piece, &lane);
            let value = scan.load(from, piece.clone() * lanes.into() + lane);
            let value = scan.lo.convert(value, scan.lo.kernel.memory_dtype(result));
            let index = match scan.lines {
                Lines::Totals(_) => scan.total(&at),
                Lines::Rows | Lines::Parts(_) | Lines::Chunks(_) => {
                    flat_index(&scan.point(&at), &scan.shape).simplify(&scan.lo)
                }
            };
            scan.store(result, index, value, inside);
        });
    }

    /// The first position, in the order of the scan, of a thread's piece.
    fn piece_start(&self, thread: &IndexExpr, piece: &IndexExpr) -> IndexExpr {
        let pieces = match self.lines {
            Lines::Parts(_) => piece.clone(),
            _ => IndexExpr::from(self.group) * self.share.pieces.into() + piece.clone(),
        };
        let threads = pieces * WARP_THREADS.into() + thread.clone();
        self.start.clone() + threads * self.share.lanes.into()
    }

    /// The position of an element of a thread's piece, by its number in the order of memory.
    fn position(&self, thread: &IndexExpr, piece: &IndexExpr, lane: &IndexExpr) -> IndexExpr {
        let start = self.piece_start(thread, piece);
        match self.reverse {
            true => start + (self.share.lanes - 1).into() - lane.clone(),
            false => start + lane.clone(),
        }
    }

    /// Where scratch has the element of a piece that is the `k`-th in the order of the scan.
    fn place(&self, piece: &IndexExpr, k: i64) -> IndexExpr {
        let lanes = self.share.lanes;
        let lane = if self.reverse { lanes - 1 - k } else { k };
        piece.clone() * lanes.into() + lane.into()
    }

    /// The point at a position of the row.
    fn point(&self, at: &IndexExpr) -> Index {
        let mut point = self.first.clone();
        point[self.axis] = match self.reverse {
            true => self.n.clone() - IndexExpr::ONE - at.clone(),
            false => at.clone(),
        };
        point
    }

    /// Where the total at a position of the row is.
    fn total(&self, at: &IndexExpr) -> IndexExpr {
        (self.row.clone() * self.n.clone() + at.clone()).simplify(&self.lo)
    }

    /// The totals, which the nest has as its only parameter.
    fn left_here(&self) -> Memory {
        Memory::Param(0)
    }

    /// Whether there is such a line, where that is not known.
    fn exists(&mut self) -> Option<ValueId> {
        let known = self.line.proves_less(&self.count, &self.lo);
        (!known).then(|| self.lo.inside(&self.line.clone(), &self.count.clone()))
    }

    /// Whether there are the elements of a thread's piece, where that is not known: there are all of them, or none.
    fn inside(&mut self, thread: &IndexExpr, piece: &IndexExpr) -> Option<ValueId> {
        let exists = self.exists();
        let at = self.piece_start(thread, piece);
        if at.proves_less(&self.n, &self.lo) {
            return exists;
        }
        let inside = self.lo.inside(&at, &self.n.clone());
        Some(self.lo.and(exists, inside))
    }

    fn nothing(&mut self) -> ValueId {
        self.lo.constant(self.monoid.identity(self.dtype))
    }

    fn combine(&mut self, before: ValueId, value: ValueId) -> ValueId {
        let (op, dtype) = (self.monoid.combine(), self.dtype);
        self.lo
            .emit(Op::Map(op, [before, value].into_iter().collect()), dtype, PIECE)
    }

    fn load(&mut self, memory: Memory, index: IndexExpr) -> ValueId {
        let level = self.lo.level_of(&index).max(PIECE);
        let (dtype, mask) = (self.lo.kernel.memory_dtype(memory), None);
        self.lo.emit(Op::Load { memory, index, mask }, dtype, level)
    }

    fn store(&mut self, memory: Memory, index: IndexExpr, value: ValueId, mask: Option<ValueId>) {
        let level = self.lo.level_of(&index).max(PIECE);
        let store = Stmt::Store {
            memory,
            index,
            value,
            mask,
        };
        self.lo.push(level, store);
    }
}
