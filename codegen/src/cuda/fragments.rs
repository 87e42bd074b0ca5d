//! Fragments of a warp, placed as the matrix instructions of 16 by 8 have their accumulators (PTX ISA, "Matrix Fragments for
//! mma.m16n8k16 with floating point type").
//!
//! A fragment becomes scratch of each thread, and `Each` of its elements a thread loop over those that the thread holds. Thread `t`
//! of the warp holds four elements of each tile of 16 rows and 8 columns: in the rows `t div 4` and `t div 4 + 8`, the columns
//! `2 * (t mod 4)` and the next one. Tiles go row by row. Two neighbours are the lanes of a loop where nothing is in the way, so
//! that what is stored together moves together.
//!
//! Fragments of other sizes, and those of blocks, stay: there is no text for them.

use std::borrow::Cow;

use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::visit::walk_mut;
use tlc_ir::kernel::{Bind, Kernel, Memory, Op, Scope, Stmt, ValueId};
use tlc_ir::target::WARP_THREADS;

use super::table::MATRIX_TILE;

/// Rows and columns of a tile.
const TILE: [i64; 2] = MATRIX_TILE;
/// Neighbouring elements of a row that a thread holds.
const NEIGHBOURS: i64 = 2;
/// Threads of a warp that hold the elements of one row of a tile.
const ROW_THREADS: i64 = TILE[1] / NEIGHBOURS;

/// Elements of a tile that a thread holds.
pub(super) const HELD: i64 = TILE[0] * TILE[1] / WARP_THREADS;

/// The kernel with its fragments as scratch of threads; itself if it has none.
pub fn with_fragments_placed(kernel: &Kernel) -> Cow<'_, Kernel> {
    let of_warps = |s: u32| kernel.scratch[s as usize].scope == Scope::WarpFragment;
    if !(0..kernel.scratch.len() as u32).any(of_warps) {
        return Cow::Borrowed(kernel);
    }
    let mut placed = kernel.clone();
    let body = std::mem::take(&mut placed.body);
    let body = block(&mut placed, body);
    placed.body = body;
    let shape = |s: &Stmt| match s {
        Stmt::Contract(c) => Some((c.dst, c.tile(kernel)?)),
        Stmt::Each { vars, memory, .. } => {
            let extent = |v: &VarId| kernel.extents[v.0 as usize].as_const();
            Some((*memory, [extent(&vars[0])?, extent(&vars[1])?]))
        }
        _ => None,
    };
    let shapes: Vec<(Memory, [i64; 2])> = kernel.statements().filter_map(shape).collect();
    for (i, s) in placed.scratch.iter_mut().enumerate() {
        let tiles = shapes.iter().find(|f| f.0 == Memory::Scratch(i as u32));
        if let (Scope::WarpFragment, Some(tiles)) = (s.scope, tiles.and_then(|f| tiles_of(f.1))) {
            s.scope = Scope::Thread;
            s.len = IndexExpr::Const(tiles[0] * tiles[1] * HELD);
        }
    }
    Cow::Owned(placed)
}

/// How many tiles lie below each other and side by side in a fragment of such a size, if they fill it.
pub(super) fn tiles_of([rows, columns]: [i64; 2]) -> Option<[i64; 2]> {
    let whole = rows > 0 && columns > 0 && rows % TILE[0] == 0 && columns % TILE[1] == 0;
    whole.then_some([rows / TILE[0], columns / TILE[1]])
}

fn block(kernel: &mut Kernel, body: Vec<Stmt>) -> Vec<Stmt> {
    let mut out = Vec::with_capacity(body.len());
    for mut s in body {
        let known = |kernel: &Kernel, v: VarId| kernel.extents[v.0 as usize].as_const();
        match s {
            Stmt::Each { vars, memory, body } => {
                let size = known(kernel, vars[0]).zip(known(kernel, vars[1]));
                match size.and_then(|(m, n)| tiles_of([m, n])) {
                    Some(tiles) => out.push(each(kernel, vars, memory, body, tiles)),
                    None => out.push(Stmt::Each { vars, memory, body }),
                }
            }
            _ => {
                if let Some(inner) = s.body_mut() {
                    *inner = block(kernel, std::mem::take(inner));
                }
                out.push(s);
            }
        }
    }
    out
}

/// A thread loop over the elements that each thread holds.
fn each(kernel: &mut Kernel, [m, n]: [VarId; 2], memory: Memory, body: Vec<Stmt>, tiles: [i64; 2]) -> Stmt {
    let constant = IndexExpr::Const;
    let mut var = |extent: i64| kernel.new_var(constant(extent));
    let thread = var(WARP_THREADS);
    let [down, across] = tiles.map(&mut var);
    let [half, lane] = [HELD / NEIGHBOURS, NEIGHBOURS].map(&mut var);
    let of = |v: VarId| IndexExpr::from(v);
    let threads = constant(ROW_THREADS);
    let row = of(down) * constant(TILE[0])
        + of(half) * constant(WARP_THREADS / ROW_THREADS)
        + IndexExpr::floor_div(&of(thread), &threads);
    let column =
        of(across) * constant(TILE[1]) + IndexExpr::modulo(&of(thread), &threads) * constant(NEIGHBOURS) + of(lane);
    let tile = of(down) * constant(tiles[1]) + of(across);
    let held = (tile * constant(HELD / NEIGHBOURS) + of(half)) * constant(NEIGHBOURS) + of(lane);
    let put = |e: &IndexExpr| {
        e.replace_vars(&mut |v| match v {
            v if v == m => Some(row.clone()),
            v if v == n => Some(column.clone()),
            _ => None,
        })
    };
    let mut body = body;
    walk_mut(&mut body, &mut |s| {
        for v in s.defined_vars() {
            let extent = &mut kernel.extents[v.0 as usize];
            *extent = put(extent);
        }
        for a in s.accesses_mut().filter(|a| *a.memory == memory) {
            *a.index = held.clone();
        }
        for e in s.indices_mut() {
            *e = put(e);
        }
    });
    let body = neighbours(body, lane);
    let around = |body, var| {
        vec![Stmt::Loop {
            var,
            bind: Bind::Unroll,
            body,
        }]
    };
    Stmt::Loop {
        var: thread,
        bind: Bind::Thread,
        body: [half, across, down].into_iter().fold(body, around),
    }
}

/// The loop over neighbours around statements, inside the conditions that are the same for all of them.
fn neighbours(mut body: Vec<Stmt>, lane: VarId) -> Vec<Stmt> {
    let simple = |s: &Stmt| matches!(s, Stmt::Let { .. } | Stmt::Store { .. } | Stmt::Accumulate { .. });
    let bind = match body.iter().all(simple) {
        true => Bind::Lanes,
        false => Bind::Unroll,
    };
    if let [before @ .., Stmt::If { cond, body: inner }] = &mut body[..]
        && before.iter().all(|s| matches!(s, Stmt::Let { .. }))
        && !varies(before, *cond, lane)
        && !inner.iter().any(|s| s.operands().any(|v| varies(before, v, lane)))
    {
        let apart = before.iter().any(|s| s.indices().any(|e| e.uses(lane)));
        if !apart {
            *inner = neighbours(std::mem::take(inner), lane);
            return body;
        }
    }
    vec![Stmt::Loop { var: lane, bind, body }]
}

/// Whether a value that the statements define differs in a loop.
fn varies(body: &[Stmt], value: ValueId, var: VarId) -> bool {
    let defined = body.iter().find(|s| s.defined_value() == Some(value));
    defined.is_some_and(|s| {
        let loads = matches!(
            s,
            Stmt::Let {
                op: Op::Load { .. },
                ..
            }
        );
        loads || s.indices().any(|e| e.uses(var)) || s.operands().any(|v| varies(body, v, var))
    })
}
