//! Tiles of columns: a loop over columns moves inside the loops over their rows.
//!
//! The naive nest of a sum along columns walks one column after the other, across memory. With the columns of a tile inside,
//! memory is walked along its rows, and the accumulators of the tile are an array:
//!
//! ```text
//! for c { a = 0; for r { a += x[r, c] }; y[c] = a }
//! ```
//! becomes
//! ```text
//! for tile { for c { a[c] = 0 }; for r { for c { a[c] += x[r, c] } }; for c { y[c] = a[c] } }
//! ```
//! Between loops over rows there is what is the same in all rows of a column. Where it is used in a later run of statements,
//! what is cheap is computed again, and what is dear is kept, an element a column.

use rustc_hash::{FxHashMap, FxHashSet};
use tlc_ir::index::{IndexExpr, IndexNode, VarId};
use tlc_ir::kernel::visit::walk;
use tlc_ir::kernel::{Bind, Kernel, Memory, Op, Scope, Stmt, ValueId};

use super::across::{loads_any, scratch_of, scratch_outside, widen};
use super::again::{MOST, own_cost};
use super::directives::{enclosing_lanes, exists, loop_bind, rewrite};
use super::inward::{is_lanes, set_whole, stores_apart};
use crate::directive::DirectiveRefusal;
use crate::tree::{defined_vars, substitute_in, without_unused};

/// The scratch of iterations that may run in any order, each of which sets it before all else.
fn own_scratch(kernel: &Kernel, var: VarId) -> Result<Vec<u32>, DirectiveRefusal> {
    let body = exists(kernel, var)?;
    let mut written = Vec::new();
    // What is in lanes is computed for one column only, and a loop over columns cannot be inside of them.
    if walk(body).any(is_lanes) {
        return Err(DirectiveRefusal::Recurrence(var));
    }
    stores_apart(kernel, body, var, &defined_vars(body), &mut written)?;
    if loads_any(body, &written) {
        return Err(DirectiveRefusal::Recurrence(var));
    }
    let (mut inner, mut outer) = (Vec::new(), Vec::new());
    scratch_of(body, &mut inner);
    scratch_outside(&kernel.body, var, &mut outer);
    let own = |i: &u32| {
        let s = &kernel.scratch[*i as usize];
        matches!(s.scope, Scope::Register | Scope::Cache)
            && !outer.contains(i)
            && set_whole(kernel, body, *i, &mut Vec::new())
    };
    match inner.iter().all(own) {
        true => Ok(inner),
        false => Err(DirectiveRefusal::Recurrence(var)),
    }
}

pub(super) fn tile_columns(kernel: &mut Kernel, var: VarId, width: i64) -> Result<Vec<VarId>, DirectiveRefusal> {
    if width < 1 {
        return Err(DirectiveRefusal::Factor(width));
    }
    let own = own_scratch(kernel, var)?;
    if !matches!(loop_bind(&kernel.body, var), Some(Bind::Serial)) {
        return Err(DirectiveRefusal::Recurrence(var));
    }
    if let Some(Some(outer)) = enclosing_lanes(&kernel.body, var, None) {
        return Err(DirectiveRefusal::NotNested(outer, var));
    }
    let (n, k) = (kernel.extents[var.0 as usize].clone(), IndexExpr::Const(width));
    let tile = kernel.new_var(n.ceil_div(width).simplify(kernel));
    let start = IndexExpr::from(tile) * k.clone();
    let columns = IndexExpr::min(&k, &(n - start.clone())).simplify(kernel);
    let crossing = Crossing::of(kernel, var, &own);
    for &i in &own {
        let s = &mut kernel.scratch[i as usize];
        (s.len, s.scope) = (s.len.clone() * k.clone(), Scope::Cache);
    }
    let mut made = vec![tile];
    rewrite(kernel, var, &mut |kernel, bind, body| {
        let mut pass = Tile {
            kernel,
            var,
            start: start.clone(),
            columns: columns.clone(),
            width: k.clone(),
            own: &own,
            crossing: &crossing,
            kept: FxHashMap::default(),
            made: Vec::new(),
        };
        let body = pass.block(body, false);
        made.append(&mut pass.made);
        vec![Stmt::Loop { var: tile, bind, body }]
    });
    Ok(made)
}

/// What the runs of statements of a column need of each other.
#[derive(Default)]
struct Crossing {
    /// What values that differ from column to column are.
    values: FxHashMap<ValueId, Op>,
    /// The values that clamps make variables of, where those differ from column to column.
    clamps: FxHashMap<VarId, ValueId>,
    /// Values that are kept from one run to another.
    kept: FxHashSet<ValueId>,
}

/// How [`Crossing`] is found: a walk over the statements in their order.
struct Walk<'k> {
    kernel: &'k Kernel,
    var: VarId,
    own: &'k [u32],
    /// Where each scratch is written last.
    last_write: FxHashMap<Memory, usize>,
    at: usize,
    run: usize,
    run_of: FxHashMap<ValueId, usize>,
    run_of_clamp: FxHashMap<VarId, usize>,
    /// What it takes to compute a value again in another run; more than [`MOST`] if that is not possible.
    cost: FxHashMap<ValueId, u32>,
    crossing: Crossing,
}

impl Crossing {
    fn of(kernel: &Kernel, var: VarId, own: &[u32]) -> Crossing {
        let body = crate::tree::loop_body(&kernel.body, var).map_or(&[][..], |b| b);
        let mut last_write = FxHashMap::default();
        for (at, s) in walk(body).enumerate() {
            let written = s.accesses().filter(|a| a.effect.writes());
            last_write.extend(written.map(|a| (a.memory, at)));
        }
        let mut walk = Walk {
            kernel,
            var,
            own,
            last_write,
            at: 0,
            run: 0,
            run_of: FxHashMap::default(),
            run_of_clamp: FxHashMap::default(),
            cost: FxHashMap::default(),
            crossing: Crossing::default(),
        };
        walk.block(body);
        walk.crossing
    }

    /// Whether an operation differs from column to column.
    fn varies(&self, op: &Op, var: VarId, own: &[u32]) -> bool {
        op.access().is_some_and(|a| is_own(a.memory, own))
            || op.index().is_some_and(|e| e.uses(var) || !self.behind(e).is_empty())
            || op.operands().iter().any(|v| self.values.contains_key(v))
    }

    /// The variables of an index that come from data of the column.
    fn behind(&self, e: &IndexExpr) -> Vec<VarId> {
        let mut out = Vec::new();
        if !self.clamps.is_empty() {
            e.visit_atoms(&mut |a| {
                if let IndexNode::Var(v) = a {
                    out.extend(self.clamps.contains_key(v).then_some(*v));
                }
            });
        }
        out
    }
}

fn is_own(memory: Memory, own: &[u32]) -> bool {
    matches!(memory, Memory::Scratch(i) if own.contains(&i))
}

impl Walk<'_> {
    fn block(&mut self, body: &[Stmt]) {
        for s in body {
            let at = self.at;
            self.at += 1;
            s.operands().for_each(|v| self.used(v));
            for e in s.indices() {
                for var in self.crossing.behind(e) {
                    if self.run_of_clamp[&var] != self.run {
                        self.used(self.crossing.clamps[&var]);
                    }
                }
            }
            match s {
                Stmt::Let { value, op } if self.crossing.varies(op, self.var, self.own) => {
                    let below = op.operands().iter().filter_map(|v| self.cost.get(v));
                    let mut cost = below.fold(own_cost(self.kernel, op), |sum, c| sum.saturating_add(*c));
                    let indexed = op.index().is_some_and(|e| !self.crossing.behind(e).is_empty());
                    let changes = op.access().is_some_and(|a| {
                        is_own(a.memory, self.own) && self.last_write.get(&a.memory).is_some_and(|&w| w > at)
                    });
                    if indexed || changes {
                        cost = MOST + 1;
                    }
                    self.cost.insert(*value, cost);
                    self.run_of.insert(*value, self.run);
                    self.crossing.values.insert(*value, op.clone());
                }
                Stmt::Clamp { var, value } if self.crossing.values.contains_key(value) => {
                    self.run_of_clamp.insert(*var, self.run);
                    self.crossing.clamps.insert(*var, *value);
                }
                Stmt::Loop { body, .. } => {
                    self.run += 1;
                    self.block(body);
                    self.run += 1;
                }
                _ => {}
            }
        }
    }

    /// Notes a use of a value in the current run.
    fn used(&mut self, value: ValueId) {
        let elsewhere = self.run_of.get(&value).is_some_and(|&run| run != self.run);
        if elsewhere && self.cost[&value] > MOST {
            self.crossing.kept.insert(value);
        }
    }
}

/// The rewriting of a loop over columns.
struct Tile<'k> {
    kernel: &'k mut Kernel,
    var: VarId,
    /// The first column of the tile, and how many it has.
    start: IndexExpr,
    columns: IndexExpr,
    /// The most that it has.
    width: IndexExpr,
    own: &'k [u32],
    crossing: &'k Crossing,
    /// Where values are kept.
    kept: FxHashMap<ValueId, Memory>,
    made: Vec<VarId>,
}

/// What a run of statements has at hand.
#[derive(Default)]
struct Here {
    values: FxHashMap<ValueId, ValueId>,
    clamps: FxHashMap<VarId, VarId>,
    body: Vec<Stmt>,
}

impl Tile<'_> {
    fn block(&mut self, body: Vec<Stmt>, innermost: bool) -> Vec<Stmt> {
        let (mut out, mut run) = (Vec::new(), Vec::new());
        for s in body {
            match s {
                // What is the same in all columns does not come between the loop over rows and the one over columns.
                s if innermost => run.push(s),
                Stmt::Loop { var, bind, body } => {
                    self.close(std::mem::take(&mut run), &mut out);
                    let innermost = !body.iter().any(|s| matches!(s, Stmt::Loop { .. }));
                    let body = self.block(body, innermost);
                    out.push(Stmt::Loop { var, bind, body });
                }
                Stmt::Let { value, .. } if !self.crossing.values.contains_key(&value) => out.push(s),
                Stmt::Clamp { var, .. } if !self.crossing.clamps.contains_key(&var) => out.push(s),
                s => run.push(s),
            }
        }
        self.close(run, &mut out);
        out
    }

    /// Writes a run of statements as a loop over the columns, with what it needs of earlier ones.
    fn close(&mut self, run: Vec<Stmt>, out: &mut Vec<Stmt>) {
        let column = self.kernel.new_var(self.columns.clone());
        let mut here = Here::default();
        for s in &run {
            here.values.extend(s.defined_value().map(|v| (v, v)));
            if let Stmt::Clamp { var, .. } = s {
                here.clamps.insert(*var, *var);
            }
        }
        for mut s in run {
            let defined = s.defined_value();
            self.bring(&mut s, column, &mut here);
            here.body.push(s);
            if let Some(value) = defined.filter(|v| self.crossing.kept.contains(v)) {
                let dtype = self.kernel.dtype(value);
                let memory = self.kernel.new_scratch(dtype, self.width.clone(), Scope::Cache);
                self.kept.insert(value, memory);
                let (index, mask) = (column.into(), None);
                here.body.push(Stmt::Store {
                    memory,
                    index,
                    value,
                    mask,
                });
            }
        }
        let mut body = without_unused(here.body);
        if body.is_empty() {
            return;
        }
        let wide: Vec<(Memory, Memory)> = self
            .own
            .iter()
            .map(|&i| (Memory::Scratch(i), Memory::Scratch(i)))
            .collect();
        widen(&mut body, &wide, &|e| e.clone() * self.width.clone() + column.into());
        let at = self.start.clone() + column.into();
        let var = self.var;
        substitute_in(self.kernel, &mut body, &mut |v| (v == var).then(|| at.clone()));
        self.made.push(column);
        out.push(Stmt::Loop {
            var: column,
            bind: Bind::Serial,
            body,
        });
    }

    /// Makes a statement use what is at hand in its run, where what it uses is of an earlier one.
    fn bring(&mut self, s: &mut Stmt, column: VarId, here: &mut Here) {
        for v in s.operands_mut() {
            *v = self.brought(*v, column, here);
        }
        for e in s.indices_mut() {
            *e = self.brought_index(e, column, here);
        }
    }

    /// A value of an earlier run in the one that is being written. What is not kept is made of few others.
    fn brought(&mut self, value: ValueId, column: VarId, here: &mut Here) -> ValueId {
        if let Some(&v) = here.values.get(&value) {
            return v;
        }
        let Some(op) = self.crossing.values.get(&value) else {
            return value;
        };
        let mut op = op.clone();
        if let Some(&memory) = self.kept.get(&value) {
            let (index, mask) = (column.into(), None);
            op = Op::Load { memory, index, mask };
        } else {
            for v in op.operands_mut() {
                *v = self.brought(*v, column, here);
            }
        }
        let new = self.kernel.new_value(self.kernel.dtype(value));
        here.values.insert(value, new);
        here.body.push(Stmt::Let { value: new, op });
        new
    }

    /// An index that uses clamped data of an earlier run.
    fn brought_index(&mut self, e: &IndexExpr, column: VarId, here: &mut Here) -> IndexExpr {
        let mut renamed: FxHashMap<VarId, VarId> = FxHashMap::default();
        for var in self.crossing.behind(e) {
            let new = match here.clamps.get(&var) {
                Some(&v) => v,
                None => {
                    let value = self.brought(self.crossing.clamps[&var], column, here);
                    let new = self.kernel.new_var(self.kernel.extents[var.0 as usize].clone());
                    here.clamps.insert(var, new);
                    here.body.push(Stmt::Clamp { var: new, value });
                    new
                }
            };
            renamed.insert(var, new);
        }
        match renamed.is_empty() {
            true => e.clone(),
            false => e.replace_vars(&mut |v| renamed.get(&v).map(|&v| v.into())),
        }
    }
}
