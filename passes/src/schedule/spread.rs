//! Tiles of a block of threads: each thread takes a part of every tile, which it keeps to itself.
//!
//! A tile that is one piece of cache scratch in a block loop belongs to nobody yet. Thread `t` takes the rows from `down * (t div
//! n)` and the columns from `across * (t mod n)`, where `n` parts lie side by side, in every loop over the elements of a tile and
//! every contraction into one. The loops are unrolled, so that a part can be held in registers.

use smallvec::smallvec;
use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::visit::{Effect, walk, walk_mut};
use tlc_ir::kernel::{Bind, Contract, Kernel, Memory, Op, Scope, Stmt};
use tlc_ir::target::MAX_BLOCK_THREADS;
use tlc_ir::{DType, ScalarOp};

use super::across::{scratch_of, scratch_outside};
use super::directives::{exists, loop_bind, rewrite};
use super::tile_sum::{element, nest_of, tile_elements};
use super::tile_threads::is_multiple;
use crate::directive::{DirectiveRefusal, MAX_UNROLL};
use crate::tree::{replace_loop, substitute_in};

/// The size of the tiles and of a thread's part.
pub(super) struct Shape {
    pub(super) size: [i64; 2],
    pub(super) part: [i64; 2],
    /// Parts side by side.
    pub(super) side_by_side: i64,
    /// All parts.
    pub(super) parts: i64,
}

impl Shape {
    fn of(size: [i64; 2], part: [i64; 2]) -> Result<Shape, DirectiveRefusal> {
        tile_elements(size)?;
        if tile_elements(part)? > 4 * MAX_UNROLL || size[0] % part[0] != 0 || size[1] % part[1] != 0 {
            return Err(DirectiveRefusal::NoTile {
                rows: part[0],
                columns: part[1],
            });
        }
        let side_by_side = size[1] / part[1];
        let parts = size[0] / part[0] * side_by_side;
        match parts <= MAX_BLOCK_THREADS {
            true => Ok(Shape {
                size,
                part,
                side_by_side,
                parts,
            }),
            false => Err(DirectiveRefusal::Threads(parts)),
        }
    }

    /// The row and column of the tile that an element of a part is, where the parts are numbered by a variable.
    pub(super) fn whole(&self, thread: VarId, [row, column]: [VarId; 2]) -> [IndexExpr; 2] {
        let (t, n) = (IndexExpr::from(thread), IndexExpr::Const(self.side_by_side));
        [
            IndexExpr::floor_div(&t, &n) * IndexExpr::Const(self.part[0]) + row.into(),
            IndexExpr::modulo(&t, &n) * IndexExpr::Const(self.part[1]) + column.into(),
        ]
    }
}

/// A statement of the block that goes through elements of tiles.
pub(super) enum Site {
    /// Two loops.
    Loops([VarId; 2]),
    /// The contraction over that row, column and step.
    Contract([VarId; 3]),
}

struct Search<'k> {
    kernel: &'k Kernel,
    shape: &'k Shape,
    tiles: &'k [u32],
    sites: Vec<Site>,
}

impl Search<'_> {
    fn touches(&self, body: &[Stmt]) -> bool {
        let mut used = Vec::new();
        scratch_of(body, &mut used);
        used.iter().any(|i| self.tiles.contains(i))
    }

    fn is_element(&self, [row, column]: [VarId; 2], index: &IndexExpr) -> bool {
        let at = element(self.shape.size[1], &row.into(), &column.into());
        at.simplify(self.kernel) == index.simplify(self.kernel)
    }

    fn extent(&self, v: VarId) -> &IndexExpr {
        &self.kernel.extents[v.0 as usize]
    }

    fn statements(&mut self, body: &[Stmt]) -> Result<(), DirectiveRefusal> {
        for s in body {
            let alone = std::slice::from_ref(s);
            if !self.touches(alone) {
                continue;
            }
            let refused = Err(DirectiveRefusal::NoTile {
                rows: self.shape.size[0],
                columns: self.shape.size[1],
            });
            match s {
                Stmt::Contract(c) => {
                    let [m, n] = [c.m(), c.n()];
                    let whole = c.tile(self.kernel) == Some(self.shape.size);
                    let reads = c.operands().iter().any(|o| self.is_tile(o.memory));
                    if !whole || reads || !self.is_element([m, n], &c.dst_index) {
                        return refused;
                    }
                    self.sites.push(Site::Contract(c.vars));
                }
                Stmt::Loop { var, bind, body } => match &body[..] {
                    [
                        Stmt::Loop {
                            var: inner,
                            bind: Bind::Serial | Bind::Unroll,
                            body: elements,
                        },
                    ] if self.all_elements([*var, *inner], elements) => {
                        let runs = matches!(bind, Bind::Serial | Bind::Unroll);
                        let fits = |v: VarId, most: i64| self.extent(v).interval(self.kernel).hi <= most;
                        let small = fits(*var, self.shape.size[0]) && fits(*inner, self.shape.size[1]);
                        if !runs
                            || !small
                            || self.extent(*inner).uses(*var)
                            || !self.stays_inside([*var, *inner], elements)
                        {
                            return refused;
                        }
                        self.sites.push(Site::Loops([*var, *inner]));
                    }
                    body if *bind == Bind::Serial => self.statements(body)?,
                    _ => return refused,
                },
                _ => return refused,
            }
        }
        Ok(())
    }

    fn is_tile(&self, memory: Memory) -> bool {
        matches!(memory, Memory::Scratch(i) if self.tiles.contains(&i))
    }

    /// Whether all accesses to tiles are to the element of the two loops.
    fn all_elements(&self, vars: [VarId; 2], body: &[Stmt]) -> bool {
        let mut accesses = walk(body).flat_map(|s| s.accesses()).filter(|a| self.is_tile(a.memory));
        accesses.all(|a| self.is_element(vars, a.index))
    }

    /// Whether a thread can execute the statements: it waits for nobody, scratch of its own is used nowhere else, and what it writes
    /// for others is another element in each iteration.
    fn stays_inside(&self, vars: [VarId; 2], body: &[Stmt]) -> bool {
        let alone = |s: &Stmt| {
            matches!(s, Stmt::Let { .. } | Stmt::Clamp { .. } | Stmt::Store { .. })
                || matches!(s, Stmt::Accumulate { .. } | Stmt::If { .. })
                || matches!(
                    s,
                    Stmt::Loop {
                        bind: Bind::Serial | Bind::Unroll | Bind::Lanes,
                        ..
                    }
                )
        };
        let (mut used, mut outside) = (Vec::new(), Vec::new());
        scratch_of(body, &mut used);
        scratch_outside(&self.kernel.body, vars[0], &mut outside);
        let own = |i: &u32| match self.kernel.scratch[*i as usize].scope {
            Scope::Register | Scope::Cache => self.tiles.contains(i) || !outside.contains(i),
            Scope::Shared | Scope::WarpFragment | Scope::BlockFragment | Scope::Thread => true,
        };
        let alone_in = |memory: Memory| match memory {
            Memory::Param(_) => false,
            Memory::Scratch(i) => self.kernel.scratch[i as usize].scope != Scope::Shared,
        };
        let apart = |index: &IndexExpr| vars.iter().all(|v| index.uses(*v) || self.extent(*v).is(1));
        let mut accesses = walk(body).flat_map(|s| s.accesses());
        let written = accesses.all(|a| match a.effect {
            Effect::Load => true,
            Effect::Store => alone_in(a.memory) || apart(a.index),
            Effect::Accumulate => alone_in(a.memory),
        });
        written && walk(body).all(alone) && used.iter().all(own)
    }
}

/// A run of statements under the condition that a variable's value is one of a shorter loop.
pub(super) fn guarded(kernel: &mut Kernel, at: &IndexExpr, extent: &IndexExpr, body: Vec<Stmt>) -> Vec<Stmt> {
    let [here, limit] = [at, extent].map(|e| {
        let value = kernel.new_value(DType::I64);
        let op = Op::Index(e.clone(), DType::I64);
        (value, Stmt::Let { value, op })
    });
    let cond = kernel.new_value(DType::Bool);
    let op = Op::Map(ScalarOp::Lt, smallvec![here.0, limit.0]);
    vec![here.1, limit.1, Stmt::Let { value: cond, op }, Stmt::If { cond, body }]
}

/// Statements whose loads from parameters are done where a variable's value is one of a shorter loop.
pub(super) fn masked_loads(kernel: &mut Kernel, at: &IndexExpr, extent: &IndexExpr, mut body: Vec<Stmt>) -> Vec<Stmt> {
    let loads = |s: &Stmt| {
        matches!(
            s,
            Stmt::Let {
                op: Op::Load {
                    memory: Memory::Param(_),
                    ..
                },
                ..
            }
        )
    };
    if !body.iter().any(loads) {
        return body;
    }
    let mut out = guarded(kernel, at, extent, Vec::new());
    let Some(Stmt::If { cond, .. }) = out.pop() else {
        return body;
    };
    for s in &mut body {
        if let Stmt::Let {
            op:
                Op::Load {
                    memory: Memory::Param(_),
                    mask,
                    ..
                },
            ..
        } = s
        {
            *mask = Some(cond);
        }
    }
    out.append(&mut body);
    out
}

/// Where so many neighbours of a row of a constant length end, if all that is stored of an element, at a row and column, goes to as many shared rows which
/// have room for all of the neighbours: what is behind the end of a row then is stored too, and nobody reads it.
pub(super) fn room(
    kernel: &Kernel,
    (rows, neighbours): (i64, i64),
    [row, column]: &[IndexExpr; 2],
    body: &[Stmt],
    length: &IndexExpr,
) -> Option<IndexExpr> {
    let end = (length.as_const()? + neighbours - 1) / neighbours * neighbours;
    let has_room = |memory: &Memory, index: &IndexExpr| {
        let Memory::Scratch(i) = memory else { return false };
        let held = &kernel.scratch[*i as usize];
        let pitch = held.len.as_const().filter(|n| n % rows == 0).map(|n| n / rows);
        pitch.is_some_and(|pitch| {
            let at = element(pitch, row, column);
            held.scope == Scope::Shared && pitch >= end && at.simplify(kernel) == index.simplify(kernel)
        })
    };
    let all = body.iter().all(|s| match s {
        Stmt::Let { op, .. } => !matches!(op, Op::Load { mask: Some(_), .. }),
        Stmt::Store {
            memory,
            index,
            mask: None,
            ..
        } => has_room(memory, index),
        _ => false,
    });
    all.then_some(IndexExpr::Const(end))
}

struct Spread<'k> {
    shape: &'k Shape,
    tiles: &'k [u32],
    thread: VarId,
    part: [VarId; 2],
}

impl Spread<'_> {
    fn new<'k>(kernel: &mut Kernel, shape: &'k Shape, tiles: &'k [u32]) -> Spread<'k> {
        Spread {
            shape,
            tiles,
            thread: kernel.new_var(IndexExpr::Const(shape.parts)),
            part: shape.part.map(|n| kernel.new_var(IndexExpr::Const(n))),
        }
    }

    /// The statements where the variables are those of a thread's part.
    fn put(&self, kernel: &mut Kernel, body: &mut [Stmt], vars: [VarId; 2]) {
        let own = element(self.shape.part[1], &self.part[0].into(), &self.part[1].into());
        let [row, column] = self.shape.whole(self.thread, self.part);
        substitute_in(kernel, body, &mut |v| match v {
            v if v == vars[0] => Some(row.clone()),
            v if v == vars[1] => Some(column.clone()),
            _ => None,
        });
        walk_mut(body, &mut |s| {
            for a in s.accesses_mut() {
                if matches!(a.memory, Memory::Scratch(i) if self.tiles.contains(i)) {
                    *a.index = own.clone();
                }
            }
        });
    }

    /// A thread loop in place of loops over the elements of a tile.
    fn loops(&self, kernel: &mut Kernel, vars: [VarId; 2], mut body: Vec<Stmt>) -> Stmt {
        let extents = vars.map(|v| kernel.extents[v.0 as usize].clone());
        self.put(kernel, &mut body, vars);
        let whole = self.shape.whole(self.thread, self.part);
        for i in [1, 0] {
            let part = self.part[i];
            let nest = |body| nest_of(&[part], Bind::Unroll, body);
            if extents[i].is(self.shape.size[i]) {
                body = nest(body);
                continue;
            }
            // Where no part is cut off by the end of the tile, all of one is inside if the first is.
            let first = whole[i].replace_vars(&mut |v| (v == part).then_some(IndexExpr::ZERO));
            if is_multiple(&extents[i], self.shape.part[i]) {
                body = guarded(kernel, &first, &extents[i], nest(body));
                continue;
            }
            let room = || {
                room(
                    kernel,
                    (self.shape.size[0], self.shape.part[1]),
                    &whole,
                    &body,
                    &extents[i],
                )
            };
            body = match (i == 1).then(room).flatten() {
                Some(end) => {
                    let inside = masked_loads(kernel, &whole[i], &extents[i], body);
                    guarded(kernel, &first, &end, nest(inside))
                }
                None => {
                    let inside = guarded(kernel, &whole[i], &extents[i], body);
                    nest(inside)
                }
            };
        }
        Stmt::Loop {
            var: self.thread,
            bind: Bind::Thread,
            body,
        }
    }

    /// A thread loop in place of a contraction.
    fn contract(&self, kernel: &mut Kernel, c: Box<Contract>) -> Stmt {
        let vars = [c.m(), c.n()];
        let mut body = vec![Stmt::Contract(c)];
        self.put(kernel, &mut body, vars);
        if let [Stmt::Contract(c)] = &mut body[..] {
            (c.vars[0], c.vars[1]) = (self.part[0], self.part[1]);
        }
        Stmt::Loop {
            var: self.thread,
            bind: Bind::Thread,
            body,
        }
    }
}

/// Replaces the contraction over these variables by what `f` makes of it.
pub(super) fn replace_contract(body: &mut [Stmt], vars: [VarId; 3], f: &mut dyn FnMut(Box<Contract>) -> Stmt) {
    for s in body {
        match s {
            Stmt::Contract(c) if c.vars == vars => *s = f(c.clone()),
            s => {
                if let Some(inside) = s.body_mut() {
                    replace_contract(inside, vars, f);
                }
            }
        }
    }
}

/// The tiles of a block loop, and the statements that go through their elements.
pub(super) fn sites(kernel: &Kernel, block: VarId, shape: &Shape) -> Result<(Vec<u32>, Vec<Site>), DirectiveRefusal> {
    let body = exists(kernel, block)?;
    if loop_bind(&kernel.body, block) != Some(Bind::Block) {
        return Err(DirectiveRefusal::NotInBlock(block));
    }
    let size = shape.size;
    let elements = IndexExpr::Const(tile_elements(size)?);
    let mut tiles = Vec::new();
    scratch_of(body, &mut tiles);
    tiles.retain(|i| {
        let s = &kernel.scratch[*i as usize];
        s.scope == Scope::Cache && s.len == elements
    });
    let mut search = Search {
        kernel,
        shape,
        tiles: &tiles,
        sites: Vec::new(),
    };
    search.statements(body)?;
    let sites = search.sites;
    match tiles.is_empty() {
        true => Err(DirectiveRefusal::NoTile {
            rows: size[0],
            columns: size[1],
        }),
        false => Ok((tiles, sites)),
    }
}

/// Gives the threads of a block parts of its tiles; returns the thread loops.
pub(super) fn spread(
    kernel: &mut Kernel,
    block: VarId,
    size: [i64; 2],
    part: [i64; 2],
) -> Result<Vec<VarId>, DirectiveRefusal> {
    let shape = Shape::of(size, part)?;
    let (tiles, sites) = sites(kernel, block, &shape)?;
    let mut made = Vec::new();
    for site in sites {
        let spread = Spread::new(kernel, &shape, &tiles);
        made.push(spread.thread);
        match site {
            Site::Loops(vars) => rewrite(kernel, vars[0], &mut |kernel, _, mut body| {
                let mut out = Vec::new();
                replace_loop(&mut body, vars[1], &mut |_, elements| {
                    out.push(spread.loops(kernel, vars, elements));
                    Vec::new()
                });
                out
            }),
            Site::Contract(vars) => {
                let mut body = std::mem::take(&mut kernel.body);
                replace_contract(&mut body, vars, &mut |c| spread.contract(kernel, c));
                kernel.body = body;
            }
        }
    }
    for &i in &tiles {
        let held = &mut kernel.scratch[i as usize];
        (held.len, held.scope) = (IndexExpr::Const(part[0] * part[1]), Scope::Thread);
    }
    Ok(made)
}
