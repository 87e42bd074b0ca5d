//! Fragments of a warp, placed as the matrix instructions of 16 by 8 have their accumulators (PTX ISA, "Matrix Fragments for
//! mma.m16n8k16 with floating point type").
//!
//! A fragment becomes scratch of each thread, and `Each` of its elements a thread loop over those that the thread holds. Thread `t`
//! of the warp holds four elements of each tile of 16 rows and 8 columns: in the rows `t div 4` and `t div 4 + 8`, the columns
//! `2 * (t mod 4)` and the next one. Tiles go row by row. Two neighbours are the lanes of a loop where nothing is in the way, so
//! that what is stored together moves together. Of a fragment of one column a thread holds the elements of its rows, as the three others
//! of these rows do. A fold of rows is what each thread combines of its own, and then a collective of four.
//!
//! Fragments of other sizes, and those of blocks, stay: there is no text for them.

use std::borrow::Cow;

use rustc_hash::FxHashMap;
use smallvec::smallvec;
use tlc_ir::ScalarOp;
use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::fold::{NEIGHBOURS, ROW_LANES};
use tlc_ir::kernel::visit::{walk, walk_mut};
use tlc_ir::kernel::{Bind, Collective, CollectiveKind, FoldRows, Group, Kernel, Memory, Op, Scope, Stmt, ValueId};
use tlc_ir::target::WARP_THREADS;

use super::table::MATRIX_TILE;

/// Rows and columns of a tile.
const TILE: [i64; 2] = MATRIX_TILE;
/// Rows of a tile of which a thread holds elements.
const ROWS_HELD: i64 = TILE[0] * ROW_LANES / WARP_THREADS;

/// Elements of a tile that a thread holds.
pub(super) const HELD: i64 = TILE[0] * TILE[1] / WARP_THREADS;

/// How the fragments of warps lie.
type Shapes = FxHashMap<Memory, Shape>;

/// The tiles of a fragment: how many lie below each other, and side by side if it is of more than one column.
#[derive(Clone, Copy)]
struct Shape {
    down: i64,
    across: Option<i64>,
}

impl Shape {
    /// The shape of a fragment of so many rows and columns, if tiles fill it.
    fn of([rows, columns]: [i64; 2]) -> Option<Shape> {
        match columns {
            1 => (rows > 0 && rows % TILE[0] == 0).then_some(Shape {
                down: rows / TILE[0],
                across: None,
            }),
            _ => tiles_of([rows, columns]).map(|[down, across]| Shape {
                down,
                across: Some(across),
            }),
        }
    }

    /// Elements that a thread holds.
    fn held(self) -> i64 {
        self.down * self.across.map_or(ROWS_HELD, |across| across * HELD)
    }

    /// Which of a thread's elements is that of a tile's row and, where there is one, of a column: `lane` counts neighbours.
    fn element(self, [down, half]: [&IndexExpr; 2], column: Option<[&IndexExpr; 2]>) -> IndexExpr {
        let constant = IndexExpr::Const;
        match (self.across, column) {
            (Some(tiles), Some([across, lane])) => {
                let tile = down.clone() * constant(tiles) + across.clone();
                (tile * constant(ROWS_HELD) + half.clone()) * constant(NEIGHBOURS) + lane.clone()
            }
            _ => down.clone() * constant(ROWS_HELD) + half.clone(),
        }
    }
}

/// The kernel with its fragments as scratch of threads; itself if it has none.
pub fn with_fragments_placed(kernel: &Kernel) -> Cow<'_, Kernel> {
    let shapes = shapes(kernel);
    if shapes.is_empty() {
        return Cow::Borrowed(kernel);
    }
    let mut placed = kernel.clone();
    let body = std::mem::take(&mut placed.body);
    let body = block(&mut placed, &shapes, body);
    placed.body = body;
    for (memory, shape) in &shapes {
        if let Memory::Scratch(i) = memory {
            let s = &mut placed.scratch[*i as usize];
            s.scope = Scope::Thread;
            s.len = IndexExpr::Const(shape.held());
        }
    }
    Cow::Owned(placed)
}

/// The fragments of warps that can be placed.
fn shapes(kernel: &Kernel) -> Shapes {
    let of_warps = |m: &Memory| match m {
        Memory::Param(_) => false,
        Memory::Scratch(s) => kernel.scratch[*s as usize].scope == Scope::WarpFragment,
    };
    let extent = |v: VarId| kernel.extents[v.0 as usize].as_const();
    let mut shapes = Shapes::default();
    let mut note = |memory: Memory, [rows, columns]: [Option<i64>; 2]| {
        if let (true, Some(rows), Some(columns)) = (of_warps(&memory), rows, columns)
            && let Some(shape) = Shape::of([rows, columns])
        {
            shapes.entry(memory).or_insert(shape);
        }
    };
    for s in kernel.statements() {
        match s {
            Stmt::Contract(c) => {
                note(c.dst, [c.m(), c.n()].map(extent));
                note(c.left.memory, [c.m(), c.k()].map(extent));
            }
            Stmt::FoldRows(f) => {
                note(f.from, f.vars.map(extent));
                note(f.to, [extent(f.vars[0]), Some(1)]);
            }
            Stmt::Each { vars, memory, .. } => note(*memory, vars.map(extent)),
            _ => {}
        }
    }
    shapes
}

/// How many tiles lie below each other and side by side in a fragment of such a size, if they fill it.
pub(super) fn tiles_of([rows, columns]: [i64; 2]) -> Option<[i64; 2]> {
    let whole = rows > 0 && columns > 0 && rows % TILE[0] == 0 && columns % TILE[1] == 0;
    whole.then_some([rows / TILE[0], columns / TILE[1]])
}

fn block(kernel: &mut Kernel, shapes: &Shapes, body: Vec<Stmt>) -> Vec<Stmt> {
    let mut out = Vec::with_capacity(body.len());
    for mut s in body {
        match s {
            Stmt::Each { vars, memory, body } => match shapes.get(&memory) {
                Some(shape) => out.push(each(kernel, shapes, vars, body, *shape)),
                None => out.push(Stmt::Each { vars, memory, body }),
            },
            Stmt::FoldRows(f) => match (shapes.get(&f.from), shapes.get(&f.to)) {
                (Some(from), Some(_)) => fold(kernel, &f, *from, &mut out),
                _ => out.push(Stmt::FoldRows(f)),
            },
            _ => {
                if let Some(inner) = s.body_mut() {
                    *inner = block(kernel, shapes, std::mem::take(inner));
                }
                out.push(s);
            }
        }
    }
    out
}

/// A thread loop over the elements that each thread holds.
fn each(kernel: &mut Kernel, shapes: &Shapes, [m, n]: [VarId; 2], body: Vec<Stmt>, shape: Shape) -> Stmt {
    let constant = IndexExpr::Const;
    let mut var = |extent: i64| kernel.new_var(constant(extent));
    let thread = var(WARP_THREADS);
    let [down, half] = [shape.down, ROWS_HELD].map(&mut var);
    let along = shape.across.map(|across| [across, NEIGHBOURS].map(&mut var));
    let of = |v: VarId| IndexExpr::from(v);
    let threads = constant(ROW_LANES);
    let row = of(down) * constant(TILE[0])
        + of(half) * constant(WARP_THREADS / ROW_LANES)
        + IndexExpr::floor_div(&of(thread), &threads);
    let column = along.map_or(IndexExpr::ZERO, |[across, lane]| {
        of(across) * constant(TILE[1]) + IndexExpr::modulo(&of(thread), &threads) * constant(NEIGHBOURS) + of(lane)
    });
    let rows = [&of(down), &of(half)];
    let columns = along.map(|a| a.map(of));
    let columns = columns.as_ref().map(|[across, lane]| [across, lane]);
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
        for a in s.accesses_mut() {
            if let Some(shape) = shapes.get(a.memory) {
                *a.index = shape.element(rows, columns);
            }
        }
        for e in s.indices_mut() {
            *e = put(e);
        }
    });
    let around = |body, var| {
        let bind = Bind::Unroll;
        vec![Stmt::Loop { var, bind, body }]
    };
    if let Some([across, lane]) = along {
        body = around(around(neighbours(body, lane), half), across);
    } else {
        body = around(body, half);
    }
    Stmt::Loop {
        var: thread,
        bind: Bind::Thread,
        body: around(body, down),
    }
}

/// What each thread combines of its rows, what the threads of a row combine, and that with what was there.
fn fold(kernel: &mut Kernel, f: &FoldRows, shape: Shape, out: &mut Vec<Stmt>) {
    let constant = IndexExpr::Const;
    let rows = shape.down * ROWS_HELD;
    let part = kernel.new_scratch(kernel.memory_dtype(f.to), constant(rows), Scope::Thread);
    let load = |kernel: &mut Kernel, memory: Memory, at: IndexExpr, body: &mut Vec<Stmt>| {
        let value = kernel.new_value(kernel.memory_dtype(memory));
        let (index, mask) = (at, None);
        let op = Op::Load { memory, index, mask };
        body.push(Stmt::Let { value, op });
        value
    };
    let combine = |kernel: &mut Kernel, pair: [ValueId; 2], body: &mut Vec<Stmt>| {
        let value = kernel.new_value(kernel.dtype(pair[0]));
        let op = Op::Map(f.monoid.combine(), smallvec![pair[0], pair[1]]);
        body.push(Stmt::Let { value, op });
        value
    };
    let store = |memory: Memory, at: i64, value: ValueId| Stmt::Store {
        memory,
        index: constant(at),
        value,
        mask: None,
    };
    let threads = |kernel: &mut Kernel, body: Vec<Stmt>| Stmt::Loop {
        var: kernel.new_var(constant(WARP_THREADS)),
        bind: Bind::Thread,
        body,
    };
    let mut own = Vec::new();
    for row in 0..rows {
        let (down, half) = (constant(row / ROWS_HELD), constant(row % ROWS_HELD));
        let mut all = None;
        for across in 0..shape.across.unwrap_or(0) {
            for lane in 0..NEIGHBOURS {
                let at = shape.element([&down, &half], Some([&constant(across), &constant(lane)]));
                let element = load(kernel, f.from, at, &mut own);
                all = Some(match all {
                    None => element,
                    Some(all) => combine(kernel, [all, element], &mut own),
                });
            }
        }
        own.extend(all.map(|all| store(part, row, all)));
    }
    out.push(threads(kernel, own));
    for row in 0..rows {
        out.push(Stmt::Collective(Box::new(Collective {
            kind: CollectiveKind::Reduce(f.monoid),
            group: Group::Part(ROW_LANES),
            memory: part,
            index: constant(row),
        })));
    }
    let mut whole = Vec::new();
    for row in 0..rows {
        let pair = [f.to, part].map(|m| load(kernel, m, constant(row), &mut whole));
        let all = combine(kernel, pair, &mut whole);
        whole.push(store(f.to, row, all));
    }
    out.push(threads(kernel, whole));
}

/// The loop over neighbours around statements, inside the conditions that are the same for all of them.
fn neighbours(mut body: Vec<Stmt>, lane: VarId) -> Vec<Stmt> {
    ask_of_first(&mut body, lane);
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

/// Where all neighbours are below an even end if the first is, has the condition that statements end with ask for that one alone.
fn ask_of_first(body: &mut [Stmt], lane: VarId) {
    let [before @ .., Stmt::If { cond, body: inner }] = body else {
        return;
    };
    let defined = |value: ValueId| before.iter().position(|s| s.defined_value() == Some(value));
    let op = |place: Option<usize>| match place.map(|p| &before[p]) {
        Some(Stmt::Let { op, .. }) => Some(op),
        _ => None,
    };
    let Some(Op::Map(ScalarOp::Lt, operands)) = op(defined(*cond)) else {
        return;
    };
    let [below, limit] = [operands[0], operands[1]];
    let (Some(Op::Index(at, _)), Some(Op::Index(end, _))) = (op(defined(below)), op(defined(limit))) else {
        return;
    };
    let even = |e: &IndexExpr| IndexExpr::modulo(e, &IndexExpr::Const(NEIGHBOURS)).is(0);
    let first = at.replace_vars(&mut |v| (v == lane).then_some(IndexExpr::ZERO));
    let side_by_side = at.affine_in(lane).is_some_and(|(c, _)| c.is(1));
    let uses = |s: &&Stmt| s.operands().any(|v| v == below);
    let alone = before.iter().chain(walk(inner)).filter(uses).count() == 1;
    if !(side_by_side && even(&first) && even(end) && alone) {
        return;
    }
    if let Some(Stmt::Let {
        op: Op::Index(at, _), ..
    }) = defined(below).and_then(|p| before.get_mut(p))
    {
        *at = first;
    }
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
