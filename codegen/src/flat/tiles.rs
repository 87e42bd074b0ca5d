//! Copies of whole tiles: loops of threads over copies beside them that together bring a rectangle of a matrix to swizzled memory.
//!
//! Some GPUs have an engine that copies such a rectangle at the word of one thread. A loop is one of these copies if what each of its pieces reads and
//! writes says so: their places are computed one by one and compared with those of the rectangle, however the loop goes through them.
//!
//! Invariants:
//! - A rectangle goes to rows as wide as those of swizzled memory, one after another; what is wider is several of them side by side.
//! - A memory gets whole tiles from all that writes it, or none: what writes otherwise goes another way to the same memory.
//! - Of elements that lie outside of the matrix the engine makes zeros. Where a mask says which rows or columns there are, and these are those of the
//!   matrix, it is not needed; a mask that all pieces have in common becomes a row that there is not. Where the rows are those of one of several matrices
//!   that follow each other, the engine is told of all of them, and a tile has no rows of the next one.
//! - Rows, and how many matrices there are, may be symbols: where a kernel is launched the engine is told what they are. It takes no matrix without
//!   elements, so of those that may have none nothing is copied but under a test that there are some.
//! - A barrier of the block lies between the wait for a group and the beginning of the [`MOST_GROUPS`]th behind it.

use rustc_hash::FxHashMap;
use tlc_ir::index::{IndexExpr, IndexNode, VarId};
use tlc_ir::kernel::{Access, ValueId};
use tlc_ir::kernel::{AsyncCopy, Bind, Memory, Op as KernelOp, SWIZZLE_PERIOD_BYTES, SWIZZLED_ROW_BYTES, Scope, Stmt};
use tlc_ir::target::GPU_ACCESS_BYTES;
use tlc_ir::{DType, Kernel, ScalarOp};

use super::build::Builder;
use super::{Item, TileCopy, TiledMatrix};
use crate::error::Result;

/// Groups of copies that can be told apart: no more may be under way, or be waited for without a barrier behind the wait.
pub const MOST_GROUPS: u32 = 8;
/// The most rows of a tile (CUDA Driver API, "cuTensorMapEncodeTiled").
const MOST_ROWS: i64 = 256;
/// The most pieces that are looked at.
const MOST_PIECES: i64 = 1 << 13;
/// Coordinates are numbers of 32 bits.
const MOST_COORDINATE: i64 = i32::MAX as i64;
/// The most rows of a matrix, and the most matrices: coordinates of 32 bits say which.
const MOST_EXTENT: i64 = MOST_COORDINATE + 1;

/// A loop that is a copy of a whole tile.
#[derive(Debug)]
pub(super) struct WholeTile {
    to: Memory,
    /// The first element there.
    to_index: IndexExpr,
    matrix: TiledMatrix,
    /// Tiles side by side.
    stretches: i64,
    /// Which of several matrices it is of.
    number: Option<IndexExpr>,
    /// Where the first one begins in the matrix.
    row: IndexExpr,
    column: IndexExpr,
    /// What holds for all of it or for nothing: the first is below the second.
    tests: Vec<[IndexExpr; 2]>,
}

/// The loops of a kernel that are such copies, by their variables; none if not all waits can tell the groups apart.
pub(super) fn whole_tiles(kernel: &Kernel) -> FxHashMap<VarId, WholeTile> {
    let mut found = FxHashMap::default();
    if !kernel.scratch.iter().any(|s| s.swizzled) {
        return found;
    }
    let ops: FxHashMap<ValueId, &KernelOp> = kernel
        .statements()
        .filter_map(|s| match s {
            Stmt::Let { value, op } => Some((*value, op)),
            _ => None,
        })
        .collect();
    let mut of_threads = Vec::new();
    loops_of_threads(&kernel.body, &mut of_threads);
    for (var, body) in of_threads {
        if let Some(tile) = whole_tile(kernel, &ops, var, body) {
            found.insert(var, tile);
        }
    }
    let mut written = vec![0usize; kernel.scratch.len()];
    for a in kernel.statements().flat_map(Stmt::accesses) {
        if let Memory::Scratch(i) = a.memory
            && a.effect.writes()
        {
            written[i as usize] += 1;
        }
    }
    for tile in found.values() {
        if let Memory::Scratch(i) = tile.to {
            written[i as usize] -= 1;
        }
    }
    found.retain(|_, tile| matches!(tile.to, Memory::Scratch(i) if written[i as usize] == 0));
    let mut groups = Groups::default();
    groups.walk(&kernel.body);
    if groups.most > MOST_GROUPS {
        found.clear();
    }
    found
}

/// The loops of the threads of a block; not those of the threads of a warp.
fn loops_of_threads<'k>(body: &'k [Stmt], out: &mut Vec<(VarId, &'k [Stmt])>) {
    for s in body {
        match s {
            Stmt::Loop {
                var,
                bind: Bind::Thread,
                body,
            } => out.push((*var, body)),
            Stmt::Loop {
                bind: Bind::Block | Bind::Serial,
                body,
                ..
            }
            | Stmt::If { body, .. } => loops_of_threads(body, out),
            _ => {}
        }
    }
}

/// How many groups may not yet have a barrier behind the wait for them.
#[derive(Clone, Copy, Default, PartialEq)]
struct Groups {
    /// Those of which some thread may not know that they are done.
    open: u32,
    /// Those that threads have not waited for.
    under_way: u32,
    /// The most that there are anywhere.
    most: u32,
}

impl Groups {
    fn walk(&mut self, body: &[Stmt]) {
        for s in body {
            match s {
                Stmt::Commit => {
                    // So many are too many already.
                    self.open = (self.open + 1).min(MOST_GROUPS + 1);
                    self.under_way = (self.under_way + 1).min(MOST_GROUPS + 1);
                    self.most = self.most.max(self.open);
                }
                Stmt::Wait(pending) => self.under_way = self.under_way.min(*pending),
                Stmt::Barrier => self.open = self.under_way,
                Stmt::Loop { body, .. } | Stmt::If { body, .. } => loop {
                    let mut inside = *self;
                    inside.walk(body);
                    let joined = Groups {
                        open: self.open.max(inside.open),
                        under_way: self.under_way.max(inside.under_way),
                        most: self.most.max(inside.most),
                    };
                    if joined == *self {
                        break;
                    }
                    *self = joined;
                },
                _ => {}
            }
        }
    }
}

/// What varies from piece to piece of an index, and the rest of it.
struct Split {
    inner: Vec<(IndexExpr, i64)>,
    outer: IndexExpr,
}

impl Split {
    /// None if the two do not add up.
    fn of(e: &IndexExpr, inner: &[VarId]) -> Option<Split> {
        let (terms, constant) = e.linear();
        let mut split = Split {
            inner: Vec::new(),
            outer: IndexExpr::Const(constant),
        };
        for (term, times) in terms {
            let (mut within, mut without) = (false, false);
            term.visit_atoms(&mut |atom| match atom {
                IndexNode::Var(v) if inner.contains(v) => within = true,
                _ => without = true,
            });
            match (within, without) {
                (true, true) => return None,
                (true, false) => split.inner.push((term, times)),
                (false, _) => split.outer = split.outer + term * IndexExpr::Const(times),
            }
        }
        Some(split)
    }

    /// What varies, for given values of the variables.
    fn at(&self, vars: &dyn Fn(VarId) -> Option<i64>) -> Option<i64> {
        self.inner.iter().try_fold(0i64, |sum, (term, times)| {
            sum.checked_add(term.eval(&[], vars)?.checked_mul(*times)?)
        })
    }
}

/// The loops of a copy: their variables with the number of iterations, the one of the thread first, and the copy.
fn nest<'k>(kernel: &Kernel, var: VarId, body: &'k [Stmt]) -> Option<(Vec<(VarId, i64)>, &'k AsyncCopy)> {
    let extent = |v: VarId| kernel.extents[v.0 as usize].as_const();
    let mut loops = vec![(var, extent(var)?)];
    let mut body = body;
    loop {
        let (last, before) = body.split_last()?;
        if !before.iter().all(|s| matches!(s, Stmt::Let { .. })) {
            return None;
        }
        match last {
            Stmt::Loop {
                var,
                bind: Bind::Serial | Bind::Unroll,
                body: inside,
            } => {
                loops.push((*var, extent(*var)?));
                body = inside;
            }
            Stmt::CopyAsync(c) => return Some((loops, c)),
            _ => return None,
        }
    }
}

/// The tile that a loop of threads copies, if it is one.
fn whole_tile(kernel: &Kernel, ops: &FxHashMap<ValueId, &KernelOp>, var: VarId, body: &[Stmt]) -> Option<WholeTile> {
    let (loops, copy) = nest(kernel, var, body)?;
    let (Memory::Param(param), Memory::Scratch(to)) = (copy.from, copy.to) else {
        return None;
    };
    let (from, to) = (&kernel.params[param as usize], &kernel.scratch[to as usize]);
    let bytes = to.dtype.bytes() as i64;
    let lanes = kernel.extents[copy.var.0 as usize].as_const()?;
    if !to.swizzled || to.scope != Scope::Shared || from.access != Access::Read || lanes * bytes != GPU_ACCESS_BYTES {
        return None;
    }
    let mut inner: Vec<VarId> = loops.iter().map(|l| l.0).collect();
    inner.push(copy.var);
    let places = [&copy.to_index, &copy.from_index].map(|e| Split::of(e, &inner));
    let [Some(to_split), Some(from_split)] = places else {
        return None;
    };
    let mut tests = Vec::new();
    if let Some(mask) = copy.mask {
        conditions(kernel, ops, mask, &mut tests)?;
    }
    let tests: Vec<(Split, IndexExpr)> = tests
        .into_iter()
        .map(|[at, limit]| (!inner.iter().any(|v| limit.uses(*v))).then_some((Split::of(&at, &inner)?, limit)))
        .collect::<Option<_>>()?;

    // Where each piece goes, where it comes from, and what of it is tested.
    let count = loops.iter().try_fold(1i64, |n, l| n.checked_mul(l.1))?;
    if !(2..=MOST_PIECES).contains(&count) {
        return None;
    }
    let mut pieces: Vec<Option<(i64, Vec<i64>)>> = vec![None; count as usize];
    for piece in 0..count {
        let mut rest = piece;
        let mut at: Vec<(VarId, i64)> = Vec::with_capacity(loops.len());
        for (v, n) in loops.iter().rev() {
            at.push((*v, rest % n));
            rest /= n;
        }
        let value = |v: VarId| match v == copy.var {
            true => Some(0),
            false => at.iter().find(|x| x.0 == v).map(|x| x.1),
        };
        let to = to_split.at(&value)?;
        let from = from_split.at(&value)?;
        let tested = tests.iter().map(|(s, _)| s.at(&value)).collect::<Option<Vec<i64>>>()?;
        let place = pieces.get_mut(usize::try_from(to / lanes).ok()?)?;
        if to % lanes != 0 || place.replace((from, tested)).is_some() {
            return None;
        }
    }
    let pieces: Vec<(i64, Vec<i64>)> = pieces.into_iter().collect::<Option<_>>()?;

    // Rows follow each other until one does not go on where the last one ended.
    let width = SWIZZLED_ROW_BYTES / bytes;
    let per_row = width / lanes;
    let lines = count / per_row;
    let start = pieces[0].0;
    let line = |n: i64| pieces[(n * per_row) as usize].0 - start;
    if count % per_row != 0 || lines < 2 {
        return None;
    }
    let columns = line(1);
    let height = (1..lines).find(|n| line(*n) != n * columns).unwrap_or(lines);
    let (rows_known, stretches) = (lines % height == 0, lines / height);
    if !rows_known || !(2..=MOST_ROWS).contains(&height) || columns < width * stretches {
        return None;
    }
    // The row and the column of a piece, from those of the first one on.
    let place = |piece: i64| {
        let (line, part) = (piece / per_row, piece % per_row);
        (line % height, line / height * width + part * lanes)
    };
    let in_place = pieces.iter().zip(0i64..).all(|((from, _), piece)| {
        let (row, column) = place(piece);
        *from == start + row * columns + column
    });
    let pitch_aligned = columns * bytes % GPU_ACCESS_BYTES == 0;
    if !in_place || !pitch_aligned || columns > MOST_COORDINATE {
        return None;
    }
    let rows = kernel
        .memory_len(copy.from)
        .divided_exactly(&IndexExpr::Const(columns))?;

    let (mut row, mut column) = (IndexExpr::ZERO, IndexExpr::ZERO);
    let (terms, constant) = (from_split.outer + IndexExpr::Const(start)).linear();
    for (term, times) in terms {
        match times % columns {
            0 => row = row + term * IndexExpr::Const(times / columns),
            _ => column = column + term * IndexExpr::Const(times),
        }
    }
    row = row + IndexExpr::Const(constant.div_euclid(columns));
    column = column + IndexExpr::Const(constant.rem_euclid(columns));

    let mut common = Vec::new();
    let mut columns_tested = false;
    // The row behind the last one of the matrix that the tile is of, among the rows of all.
    let mut end: Option<IndexExpr> = None;
    for (t, (split, limit)) in tests.iter().enumerate() {
        let first = pieces[0].1[t];
        let at = split.outer.clone() + IndexExpr::Const(first);
        let follows = |part: &dyn Fn(i64) -> i64| {
            pieces
                .iter()
                .zip(0i64..)
                .all(|((_, tested), piece)| tested[t] - first == part(piece))
        };
        // Whether the tested index is as far below the limit as the place in the matrix is from its end.
        let end_of = |place: &IndexExpr| (place.clone() + limit.clone() - at.clone()).simplify(kernel);
        let is_end = |e: &IndexExpr, extent: &IndexExpr| (e.clone() - extent.clone()).simplify(kernel).is(0);
        let most = pieces.iter().map(|p| p.1[t]).max().unwrap_or(0);
        let whole = |e: &IndexExpr| e.proves_multiple(height, kernel);
        if split.outer.interval(kernel).hi.saturating_add(most) < limit.interval(kernel).lo {
            // It holds everywhere.
        } else if follows(&|_| 0) {
            common.push([at, limit.clone()]);
        } else if follows(&|piece| place(piece).0) && is_end(&end_of(&row), &rows) {
            // The engine knows.
        } else if follows(&|piece| place(piece).0) && whole(&at) && whole(limit) {
            common.push([at, limit.clone()]);
        } else if follows(&|piece| place(piece).1) && is_end(&end_of(&column), &IndexExpr::Const(columns)) {
            columns_tested = true;
        } else if follows(&|piece| place(piece).0) {
            let here = end_of(&row);
            if end.as_ref().is_some_and(|e| !is_end(e, &here)) {
                return None;
            }
            end = Some(here);
        } else {
            return None;
        }
    }
    let (mut count, mut each, mut number) = (IndexExpr::ONE, rows.clone(), None);
    if let Some(end) = end {
        let of = Several::of(&end, &rows)?;
        row = (row - of.rows.clone() * of.number.clone()).simplify(kernel);
        (count, each, number) = (of.count, of.rows, Some(of.number));
    }
    for extent in [&count, &each] {
        let range = extent.interval(kernel);
        if extent.has_vars() || range.hi > MOST_EXTENT || range.hi < 1 {
            return None;
        }
        if range.lo < 1 {
            common.push([IndexExpr::ZERO, extent.clone()]);
        }
    }
    // A row beyond what coordinates can say is one below the first, where there is none either.
    let begins = row.interval(kernel);
    if begins.lo < 0 || begins.hi > MOST_COORDINATE + MOST_EXTENT - MOST_ROWS {
        return None;
    }
    let range = column.interval(kernel);
    let within = range.lo >= 0 && (columns_tested || range.hi <= columns - stretches * width);
    let period = SWIZZLE_PERIOD_BYTES / bytes;
    let to_index = to_split.outer;
    let apart = stretches == 1 || height * width % period == 0;
    if !within || range.hi > MOST_COORDINATE || !apart || !to_index.proves_multiple(period, kernel) {
        return None;
    }
    Some(WholeTile {
        to: copy.to,
        to_index,
        matrix: TiledMatrix {
            param,
            dtype: from.dtype,
            count,
            rows: each,
            columns,
            tile: [height, width],
        },
        stretches,
        number,
        row,
        column,
        tests: common,
    })
}

/// A tile's matrix, one of several.
struct Several {
    count: IndexExpr,
    /// Of each.
    rows: IndexExpr,
    number: IndexExpr,
}

impl Several {
    /// From the row behind the matrix's last one, among the rows of all, and how many these are.
    fn of(end: &IndexExpr, all: &IndexExpr) -> Option<Several> {
        let (terms, constant) = end.linear();
        let fixed = terms.into_iter().filter(|(term, _)| !term.has_vars());
        let rows = fixed.fold(IndexExpr::Const(constant), |sum, (term, times)| {
            sum + term * IndexExpr::Const(times)
        });
        Some(Several {
            count: all.divided_exactly(&rows)?,
            number: (end.clone() - rows.clone()).divided_exactly(&rows)?,
            rows,
        })
    }
}

/// What a mask asks, all of which must hold: the first of each is below the second.
fn conditions(
    kernel: &Kernel,
    ops: &FxHashMap<ValueId, &KernelOp>,
    mask: ValueId,
    out: &mut Vec<[IndexExpr; 2]>,
) -> Option<()> {
    match ops.get(&mask)? {
        KernelOp::Const(c) if c.as_bool() => Some(()),
        KernelOp::Map(ScalarOp::And, of) => of.iter().try_for_each(|v| conditions(kernel, ops, *v, out)),
        KernelOp::Map(ScalarOp::Lt, of) => {
            let number = |v: &ValueId| match ops.get(v)? {
                KernelOp::Index(e, to) => {
                    let range = e.interval(kernel);
                    let fits = *to == DType::I64 || *to == DType::I32 && i32::try_from(range.lo).is_ok();
                    (fits && (*to == DType::I64 || i32::try_from(range.hi).is_ok())).then(|| e.clone())
                }
                KernelOp::Const(c) => Some(IndexExpr::Const(c.as_i64())),
                _ => None,
            };
            let (at, limit) = (number(&of[0])?, number(&of[1])?);
            match limit.as_node() {
                Some(IndexNode::Min(a, b)) => out.extend([[at.clone(), a.clone()], [at, b.clone()]]),
                _ => out.push([at, limit]),
            }
            Some(())
        }
        _ => None,
    }
}

impl Builder<'_, '_> {
    /// The copies of a tile and of those beside it.
    pub(super) fn copy_tile(&mut self, tile: &WholeTile) -> Result<()> {
        let matrix = match self.matrices.iter().position(|m| *m == tile.matrix) {
            Some(known) => known,
            None => {
                self.matrices.push(tile.matrix.clone());
                self.matrices.len() - 1
            }
        };
        let mut mask = None;
        for [at, limit] in &tile.tests {
            let sides = [self.index_value(at, DType::I64)?, self.index_value(limit, DType::I64)?];
            let below = self.map(ScalarOp::Lt, DType::I64, &sides)?;
            let all = match mask {
                Some(before) => self.map(ScalarOp::And, DType::Bool, &[before, below])?,
                None => below,
            };
            mask = Some(all);
        }
        let mask = mask.map(|m| self.scalar(&m, 0));
        let number = tile.number.as_ref().map(|n| self.eval(n)).transpose()?;
        let row = self.eval(&tile.row)?;
        let [height, width] = tile.matrix.tile;
        for stretch in 0..tile.stretches {
            let beside = |e: &IndexExpr, by: i64| e.clone() + IndexExpr::Const(stretch * by);
            let column = self.eval(&beside(&tile.column, width))?;
            let to = self.element(tile.to, &beside(&tile.to_index, height * width))?;
            self.push(Item::CopyTile(Box::new(TileCopy {
                to,
                matrix,
                number,
                row,
                column,
                mask,
            })));
        }
        Ok(())
    }
}
