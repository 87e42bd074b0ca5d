//! Tiles of a block of warps: each warp takes a part of every tile, which its threads hold together as a fragment.
//!
//! As in [`super::spread`], warp `w` takes the rows from `down * (w div n)` and the columns from `across * (w mod n)`. Which thread holds
//! which element of a part is not known: loops over elements become an `each`, which the one who holds an element runs.

use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::fold::NEIGHBOURS;
use tlc_ir::kernel::visit::{walk, walk_mut};
use tlc_ir::kernel::{Bind, Contract, Kernel, Memory, Scope, Stmt};
use tlc_ir::target::{MAX_BLOCK_THREADS, WARP_GROUP, WARP_GROUP_ROWS, WARP_THREADS};

use super::directives::rewrite;
use super::spread::{Shape, Site, guarded, masked_loads, replace_contract, room, sites};
use super::tile_sum::{element, tile_elements};
use crate::directive::DirectiveRefusal;
use crate::tree::{replace_loop, substitute_in};

fn shape(size: [i64; 2], part: [i64; 2]) -> Result<Shape, DirectiveRefusal> {
    tile_elements(size)?;
    tile_elements(part)?;
    if size[0] % part[0] != 0 || size[1] % part[1] != 0 {
        return Err(DirectiveRefusal::NoTile {
            rows: part[0],
            columns: part[1],
        });
    }
    let side_by_side = size[1] / part[1];
    let parts = size[0] / part[0] * side_by_side;
    match parts.checked_mul(WARP_THREADS) {
        Some(threads) if threads <= MAX_BLOCK_THREADS => Ok(Shape {
            size,
            part,
            side_by_side,
            parts,
        }),
        _ => Err(DirectiveRefusal::Threads(parts.saturating_mul(WARP_THREADS))),
    }
}

/// The parts of one statement.
struct Parts<'s> {
    shape: &'s Shape,
    tiles: &'s [u32],
    warp: VarId,
    /// Row and column in a part.
    part: [VarId; 2],
}

impl Parts<'_> {
    fn new<'s>(kernel: &mut Kernel, shape: &'s Shape, tiles: &'s [u32]) -> Parts<'s> {
        Parts {
            shape,
            tiles,
            warp: kernel.new_var(IndexExpr::Const(shape.parts)),
            part: shape.part.map(|n| kernel.new_var(IndexExpr::Const(n))),
        }
    }

    /// The statements where the variables are those of a part.
    fn put(&self, kernel: &mut Kernel, body: &mut [Stmt], vars: [VarId; 2]) {
        let own = element(self.shape.part[1], &self.part[0].into(), &self.part[1].into()).simplify(kernel);
        let [row, column] = self.shape.whole(self.warp, self.part);
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

    fn in_warp(&self, s: Stmt) -> Stmt {
        Stmt::Loop {
            var: self.warp,
            bind: Bind::Warp,
            body: vec![s],
        }
    }

    /// In place of loops over the elements of a tile.
    fn each(&self, kernel: &mut Kernel, vars: [VarId; 2], memory: Memory, mut body: Vec<Stmt>) -> Stmt {
        let extents = vars.map(|v| kernel.extents[v.0 as usize].clone());
        self.put(kernel, &mut body, vars);
        let whole = self.shape.whole(self.warp, self.part);
        for i in [1, 0] {
            if extents[i].is(self.shape.size[i]) {
                continue;
            }
            let room = || room(kernel, (self.shape.size[0], NEIGHBOURS), &whole, &body, &extents[i]);
            let mut end = extents[i].clone();
            if let Some(room) = (i == 1).then(room).flatten().filter(|room| *room != end) {
                body = masked_loads(kernel, &whole[i], &end, body);
                end = room;
            }
            body = guarded(kernel, &whole[i], &end, body);
        }
        let vars = self.part;
        self.in_warp(Stmt::Each { vars, memory, body })
    }

    /// In place of a contraction.
    fn contract(&self, kernel: &mut Kernel, c: Box<Contract>) -> Stmt {
        let vars = [c.m(), c.n()];
        let mut body = [Stmt::Contract(c)];
        self.put(kernel, &mut body, vars);
        let [mut s] = body;
        if let Stmt::Contract(c) = &mut s {
            (c.vars[0], c.vars[1]) = (self.part[0], self.part[1]);
        }
        self.in_warp(s)
    }
}

/// The one tile that statements touch.
fn tile_of(body: &[Stmt], tiles: &[u32]) -> Option<Memory> {
    let mut found = None;
    for a in walk(body).flat_map(|s| s.accesses()) {
        match a.memory {
            Memory::Scratch(i) if tiles.contains(&i) => {
                if found.is_some_and(|f| f != a.memory) {
                    return None;
                }
                found = Some(a.memory);
            }
            _ => {}
        }
    }
    found
}

/// Whether contractions of swizzled memory are done by four warps together: both operands are swizzled, and parts lie below each other, of which
/// each has the rows of one warp.
fn groups_fit(kernel: &Kernel, shape: &Shape, tiles: &[u32]) -> bool {
    let below = shape.side_by_side == 1 && shape.part[0] == WARP_GROUP_ROWS && shape.parts % WARP_GROUP == 0;
    kernel.statements().all(|s| match s {
        Stmt::Contract(c) if matches!(c.dst, Memory::Scratch(i) if tiles.contains(&i)) => {
            let swizzled = c.operands().map(|o| kernel.is_swizzled(o.memory));
            swizzled == [false; 2] || (swizzled == [true; 2] && below)
        }
        _ => true,
    })
}

/// Gives the warps of a block parts of its tiles; returns the warp loops.
pub(super) fn spread(
    kernel: &mut Kernel,
    block: VarId,
    size: [i64; 2],
    part: [i64; 2],
) -> Result<Vec<VarId>, DirectiveRefusal> {
    let shape = shape(size, part)?;
    let (tiles, sites) = sites(kernel, block, &shape)?;
    if !groups_fit(kernel, &shape, &tiles) {
        return Err(DirectiveRefusal::NoTile {
            rows: part[0],
            columns: part[1],
        });
    }
    let mut work = kernel.clone();
    let mut made = Vec::new();
    for site in sites {
        let parts = Parts::new(&mut work, &shape, &tiles);
        made.push(parts.warp);
        match site {
            Site::Loops(vars) => {
                let mut several = false;
                rewrite(&mut work, vars[0], &mut |kernel, _, mut body| {
                    let mut out = Vec::new();
                    replace_loop(&mut body, vars[1], &mut |_, elements| {
                        match tile_of(&elements, &tiles) {
                            Some(memory) => out.push(parts.each(kernel, vars, memory, elements)),
                            None => several = true,
                        }
                        Vec::new()
                    });
                    out
                });
                if several {
                    return Err(DirectiveRefusal::NoTile {
                        rows: size[0],
                        columns: size[1],
                    });
                }
            }
            Site::Contract(vars) => {
                let mut body = std::mem::take(&mut work.body);
                replace_contract(&mut body, vars, &mut |c| parts.contract(&mut work, c));
                work.body = body;
            }
        }
    }
    for &i in &tiles {
        let held = &mut work.scratch[i as usize];
        (held.len, held.scope) = (IndexExpr::Const(part[0] * part[1]), Scope::WarpFragment);
    }
    *kernel = work;
    Ok(made)
}
