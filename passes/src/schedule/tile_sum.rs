//! Tiles of sums: two loops around a sum taken apart, with an accumulator for each of their iterations.
//!
//! ```text
//! for m { for n { a; for k { b }; c } }    becomes    for m { for n { a } }
//!                                                     for m { for n { for k { b } } }
//!                                                     for m { for n { c } }
//! ```
//! The loop nest in the middle is then perfect: its loops can be cut and change places, what they load can be packed, and a
//! contraction can take their place. An iteration's accumulator is set, added to and used in the same order as before, and
//! what the iterations store is stored in the same order too.

use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::visit::{Effect, walk, walk_mut};
use tlc_ir::kernel::{Bind, Kernel, Memory, Op, Scope, Stmt};

use super::across::scratch_outside;
use super::directives::{enclosing_lanes, loop_bind, nested, rewrite};
use super::phases::Phase;
use crate::directive::{DirectiveRefusal, MAX_UNROLL};
use crate::tree::{clone_fresh, defined_vars, substitute_in, without_unused};

/// The most elements of a tile.
const MOST_ELEMENTS: i64 = 1 << 16;

/// The number of elements of a tile, if there is such a tile.
pub(super) fn tile_elements([rows, columns]: [i64; 2]) -> Result<i64, DirectiveRefusal> {
    let elements = rows.checked_mul(columns).filter(|n| *n <= MOST_ELEMENTS);
    let elements = elements.filter(|_| rows >= 1 && columns >= 1);
    elements.ok_or(DirectiveRefusal::NoTile { rows, columns })
}

/// The element of a tile in a row and a column.
pub(super) fn element(columns: i64, row: &IndexExpr, column: &IndexExpr) -> IndexExpr {
    row.clone() * IndexExpr::Const(columns) + column.clone()
}

/// Nested loops around statements, outermost first.
pub(super) fn nest_of(vars: &[VarId], bind: Bind, body: Vec<Stmt>) -> Vec<Stmt> {
    let around = |body, &var: &VarId| vec![Stmt::Loop { var, bind, body }];
    vars.iter().rev().fold(body, around)
}

/// Whether a loop may have more iterations than that.
pub(super) fn no_longer(kernel: &Kernel, var: VarId, most: i64) -> Result<(), DirectiveRefusal> {
    match kernel.extents[var.0 as usize].interval(kernel).hi > most {
        true => Err(DirectiveRefusal::TooLong { var, most }),
        false => Ok(()),
    }
}

/// The statements of the two loops, taken apart.
struct Parts {
    /// Computations before the sum.
    before: Vec<Stmt>,
    /// What the accumulators are set to.
    set: Vec<Stmt>,
    /// The loops of the sum.
    loops: Vec<VarId>,
    /// What the innermost of them does.
    summed: Vec<Stmt>,
    behind: Vec<Stmt>,
    accumulators: Vec<u32>,
    /// Those of them that other loops have too, each for itself.
    shared: Vec<u32>,
}

/// Whether every use of a scratch's one element comes behind a store to it in the statements before or around the use: then loops
/// that use it pass nothing on in it.
fn is_set_first(body: &[Stmt], scratch: u32) -> bool {
    for s in body {
        let mut accesses = s.accesses().filter(|a| a.memory == Memory::Scratch(scratch)).peekable();
        if let Stmt::Store { mask: None, .. } = s
            && accesses.peek().is_some()
        {
            return true;
        }
        if accesses.peek().is_some() || !is_set_first(s.body(), scratch) {
            return false;
        }
    }
    true
}

fn is_computation(s: &Stmt) -> bool {
    matches!(s, Stmt::Let { .. } | Stmt::Clamp { .. })
}

fn stays_apart(s: &Stmt) -> bool {
    is_computation(s)
        || matches!(s, Stmt::Store { .. } | Stmt::Accumulate { .. } | Stmt::If { .. })
        || matches!(
            s,
            Stmt::Loop {
                bind: Bind::Serial | Bind::Unroll | Bind::Lanes,
                ..
            }
        )
}

/// The body of two loops over the rows and columns of a tile, which nothing has been decided about.
pub(super) fn tile_body(kernel: &Kernel, outer: VarId, inner: VarId) -> Result<&Vec<Stmt>, DirectiveRefusal> {
    let body = nested(kernel, outer, inner)?;
    for v in [outer, inner] {
        if loop_bind(&kernel.body, v) != Some(Bind::Serial) {
            return Err(DirectiveRefusal::Recurrence(v));
        }
    }
    match enclosing_lanes(&kernel.body, outer, None) {
        Some(Some(lanes)) => Err(DirectiveRefusal::NotNested(lanes, outer)),
        _ => Ok(body),
    }
}

fn parts(kernel: &Kernel, [outer, inner, sum]: [VarId; 3]) -> Result<Parts, DirectiveRefusal> {
    let body = tile_body(kernel, outer, inner)?;
    let is = |s: &Stmt| matches!(s, Stmt::Loop { var, .. } if *var == sum);
    let at = body
        .iter()
        .position(is)
        .ok_or(DirectiveRefusal::NotNested(inner, sum))?;
    let refused = || DirectiveRefusal::NotASum(sum);
    let phase = Phase::of(&body[at]).ok_or_else(refused)?;
    let mut accumulators = Vec::new();
    for s in phase.body.iter().filter(|s| !is_computation(s)) {
        let Stmt::Accumulate { state, .. } = s else {
            return Err(refused());
        };
        match &state[..] {
            [(Memory::Scratch(i), index)] if index.is(0) && !accumulators.contains(i) => accumulators.push(*i),
            _ => return Err(refused()),
        }
    }
    if accumulators.is_empty() {
        return Err(DirectiveRefusal::NoAccumulation(sum));
    }
    let (set, before): (Vec<Stmt>, Vec<Stmt>) = body[..at].iter().cloned().partition(|s| !is_computation(s));
    let mut outside = Vec::new();
    scratch_outside(&kernel.body, outer, &mut outside);
    let mut shared = Vec::new();
    for i in &accumulators {
        let own = |s: &&Stmt| matches!(s, Stmt::Store { memory: Memory::Scratch(m), index, mask: None, .. } if m == i && index.is(0));
        let one = kernel.scratch[*i as usize].len.is(1) && set.iter().filter(own).count() == 1;
        if !one {
            return Err(refused());
        }
        if outside.contains(i) {
            if !is_set_first(&kernel.body, *i) {
                return Err(refused());
            }
            shared.push(*i);
        }
    }
    if set.len() != accumulators.len() || !walk(&body[at + 1..]).all(stays_apart) {
        return Err(refused());
    }
    // What is written here is not what is computed from: that may now run before or behind what other iterations write.
    let accesses = || walk(body).flat_map(|s| s.accesses());
    let written: Vec<Memory> = accesses().filter(|a| a.effect.writes()).map(|a| a.memory).collect();
    let mut read = walk(&body[..=at]).flat_map(|s| s.accesses());
    if read.any(|a| a.effect == Effect::Load && written.contains(&a.memory)) {
        return Err(refused());
    }
    // The extents of the sum are known outside of it.
    let clamped = defined_vars(&before);
    for v in &phase.vars {
        if clamped.iter().any(|c| kernel.extents[v.0 as usize].uses(*c)) {
            return Err(refused());
        }
    }
    Ok(Parts {
        before,
        set,
        loops: phase.vars.clone(),
        summed: phase.body.to_vec(),
        behind: body[at + 1..].to_vec(),
        accumulators,
        shared,
    })
}

/// Whether what the accumulators are set to is the same in all iterations.
fn sets_constants(parts: &Parts) -> bool {
    let constant = |s: &Stmt| {
        s.operands().all(|v| {
            let here = parts.before.iter().find(|s| s.defined_value() == Some(v));
            matches!(here, None | Some(Stmt::Let { op: Op::Const(_), .. }))
        })
    };
    parts.set.iter().all(constant)
}

struct Tiles<'k> {
    kernel: &'k mut Kernel,
    vars: [VarId; 2],
    columns: i64,
    bind: Bind,
    accumulators: Vec<u32>,
    made: Vec<VarId>,
}

impl Tiles<'_> {
    /// Sends accesses of the accumulators to the tiles.
    fn widen(&self, body: &mut [Stmt]) {
        let at = element(self.columns, &self.vars[0].into(), &self.vars[1].into()).simplify(self.kernel);
        walk_mut(body, &mut |s| {
            for a in s.accesses_mut() {
                if matches!(a.memory, Memory::Scratch(i) if self.accumulators.contains(i)) {
                    *a.index = at.clone();
                }
            }
        });
    }

    /// The statements for all iterations of loops of their own, of those extents.
    fn copy(&mut self, body: &[Stmt], extents: [IndexExpr; 2]) -> Vec<Stmt> {
        let mut body = clone_fresh(self.kernel, body);
        let [row, column] = extents.map(|e| self.kernel.new_var(e));
        let [outer, inner] = self.vars;
        substitute_in(self.kernel, &mut body, &mut |v| match v {
            v if v == outer => Some(row.into()),
            v if v == inner => Some(column.into()),
            _ => None,
        });
        self.made.extend([row, column]);
        nest_of(&[row, column], self.bind, body)
    }
}

/// Takes a sum in two nested loops apart from what is around it; returns the loops that become of them.
pub(super) fn tile_sum(
    kernel: &mut Kernel,
    vars: [VarId; 3],
    size: [i64; 2],
    scope: Scope,
) -> Result<Vec<VarId>, DirectiveRefusal> {
    let mut parts = parts(kernel, vars)?;
    let elements = tile_elements(size)?;
    let [outer, inner, _] = vars;
    let extents = [outer, inner].map(|v| kernel.extents[v.0 as usize].clone());
    for (v, most) in [outer, inner].into_iter().zip(size) {
        no_longer(kernel, v, most)?;
    }
    let whole = extents.iter().zip(size).all(|(e, n)| e.is(n));
    let bind = match scope {
        Scope::Cache => Bind::Serial,
        Scope::Register if whole && elements <= 8 * MAX_UNROLL => Bind::Unroll,
        Scope::Register | Scope::Shared | Scope::WarpFragment | Scope::BlockFragment | Scope::Thread => {
            return Err(DirectiveRefusal::ScratchScope(scope));
        }
    };
    for i in std::mem::take(&mut parts.shared) {
        let dtype = kernel.scratch[i as usize].dtype;
        let Memory::Scratch(own) = kernel.new_scratch(dtype, IndexExpr::ONE, scope) else {
            continue;
        };
        for body in [&mut parts.set, &mut parts.summed, &mut parts.behind] {
            walk_mut(body, &mut |s| {
                for a in s.accesses_mut().filter(|a| *a.memory == Memory::Scratch(i)) {
                    *a.memory = Memory::Scratch(own);
                }
            });
        }
        let own_one = parts.accumulators.iter_mut().filter(|a| **a == i);
        own_one.for_each(|a| *a = own);
    }
    let accumulators = parts.accumulators.clone();
    for &i in &accumulators {
        let held = &mut kernel.scratch[i as usize];
        (held.len, held.scope) = (IndexExpr::Const(elements), scope);
    }
    let mut tiles = Tiles {
        kernel,
        vars: [outer, inner],
        columns: size[1],
        bind,
        accumulators,
        made: Vec::new(),
    };
    let full = size.map(IndexExpr::Const);
    let mut out = Vec::new();
    let mut set = parts.before.clone();
    set.extend(parts.set.iter().cloned());
    tiles.widen(&mut set);
    let set = without_unused(set);
    let constant = sets_constants(&parts);
    if !whole && !constant {
        // What iterations leave out of the tile is set all the same: a contraction adds to it.
        let mut zeros = Vec::new();
        for s in &parts.set {
            let mut s = s.clone();
            let Stmt::Store { memory, value, .. } = &mut s else {
                continue;
            };
            let zero = tiles.kernel.memory_dtype(*memory).zero();
            *value = tiles.kernel.new_value(zero.dtype());
            let op = Op::Const(zero);
            zeros.extend([Stmt::Let { value: *value, op }, s]);
        }
        tiles.widen(&mut zeros);
        out.extend(tiles.copy(&zeros, full.clone()));
    }
    out.extend(tiles.copy(&set, if constant { full } else { extents.clone() }));
    for &i in &parts.accumulators {
        let mut body = parts.before.clone();
        let other = |s: &&Stmt| {
            let mut states = s.accesses().filter(|a| a.effect.writes());
            !states.any(|a| a.memory != Memory::Scratch(i))
        };
        body.extend(parts.summed.iter().filter(other).cloned());
        tiles.widen(&mut body);
        let body = nest_of(&parts.loops, Bind::Serial, without_unused(body));
        let nest = tiles.copy(&body, extents.clone());
        let sums = nest
            .first()
            .and_then(|s| defined_vars(s.body()).get(1..).map(<[VarId]>::to_vec));
        tiles
            .made
            .extend(sums.unwrap_or_default().into_iter().take(parts.loops.len()));
        out.extend(nest);
    }
    let mut behind = parts.before;
    behind.extend(parts.behind);
    tiles.widen(&mut behind);
    let behind = nest_of(&[outer, inner], bind, without_unused(behind));
    let mut made = tiles.made;
    made.extend([outer, inner]);
    out.extend(behind);
    rewrite(kernel, outer, &mut |_, _, _| std::mem::take(&mut out));
    Ok(made)
}
