//! Iterations side by side around loops that stay loops: the innermost statements run for each of them.
//!
//! A window of a few results is a loop nest whose accumulators fill a few registers. Run together, the results of several
//! rows share what the window loads for all of them (a weight, spread over the lanes), and the loops over the window are paid
//! once:
//!
//! ```text
//! for v in n { a; for w { b }; c }      becomes      for v in n { a }; for w { for v in n { b } }; for v in n { c }
//! ```
//! Scratch of an iteration gets an element for each of them. What is the same in all iterations is computed once; what one
//! run of statements needs of an earlier one is computed again. A loop of lanes is a statement of a run, whose elements in scratch
//! stay side by side.

use rustc_hash::{FxHashMap, FxHashSet};
use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::visit::{Effect, walk, walk_mut};
use tlc_ir::kernel::{Access, Bind, Kernel, Memory, Op, Scope, Stmt, ValueId};

use super::across::{loads_any, mask_memory, scratch_of, scratch_outside, widen};
use super::directives::{enclosing_lanes, exists, loop_bind, rewrite};
use super::peel::with_own_scratch;
use super::phases::row;
use crate::directive::{DirectiveRefusal, MAX_UNROLL};
use crate::tree::{clone_fresh, defined_vars, substitute_in};

/// Whether the elements that one iteration of `var` stores to are none of those of another: the strides of all loops are
/// those of a row-major array, each wider than what the narrower ones span.
fn apart(kernel: &Kernel, index: &IndexExpr, var: VarId, inside: &[VarId]) -> bool {
    let row_major = |vars: &mut dyn Iterator<Item = VarId>| {
        let mut strides = Vec::new();
        let mut rest = index.clone();
        for v in vars.filter(|&v| index.uses(v)) {
            let Some((stride, others)) = rest.affine_in(v) else {
                return false;
            };
            // A loop that goes backwards meets the same elements.
            let backwards = (IndexExpr::ZERO - stride.clone()).simplify(kernel);
            let turned = !backwards.is(0) && backwards.proves_nonnegative(kernel);
            strides.push((if turned { backwards } else { stride }, v));
            rest = others;
        }
        // Strides that depend on sizes are those of the outer loops.
        strides.sort_by_key(|(stride, _)| stride.as_const().unwrap_or(i64::MAX));
        let mut span = IndexExpr::ZERO;
        for (stride, v) in &strides {
            let wider = stride.clone() - span.clone() - IndexExpr::ONE;
            if stride.uses(*v) || !wider.simplify(kernel).proves_nonnegative(kernel) {
                return false;
            }
            span = span + stride.clone() * (kernel.extents[v.0 as usize].clone() - IndexExpr::ONE);
        }
        strides.iter().any(|s| s.1 == var)
    };
    let own = || inside.iter().copied().chain([var]);
    if row_major(&mut own()) {
        return true;
    }
    // Pieces of a row are as apart as the row's elements are, which says more where the row's length is not known.
    let mut around = Vec::new();
    loops_around(&kernel.body, var, &mut around)
        && (1..=around.len()).any(|n| {
            let outer = &around[around.len() - n..];
            row_major(&mut own().chain(outer.iter().copied()))
        })
}

/// Adds the loops around one, outermost first, that its thread runs. Returns whether it is there.
fn loops_around(body: &[Stmt], var: VarId, around: &mut Vec<VarId>) -> bool {
    body.iter().any(|s| match s {
        Stmt::Loop { var: v, .. } if *v == var => true,
        Stmt::Loop { var: v, bind, body } => {
            let before = around.clone();
            match bind {
                Bind::Serial | Bind::Unroll => around.push(*v),
                _ => around.clear(),
            }
            let found = loops_around(body, var, around);
            if !found {
                *around = before;
            }
            found
        }
        s => loops_around(s.body(), var, around),
    })
}

/// Whether iterations of `var` store to elements of their own, and do nothing else that another could notice.
pub(super) fn stores_apart(
    kernel: &Kernel,
    body: &[Stmt],
    var: VarId,
    inside: &[VarId],
    written: &mut Vec<Memory>,
) -> Result<(), DirectiveRefusal> {
    for s in body {
        match s {
            Stmt::Let { .. } | Stmt::Clamp { .. } => {}
            // Under a mask it is one of these elements, or none.
            Stmt::Store {
                memory: memory @ Memory::Param(_),
                index,
                ..
            } => {
                if !apart(kernel, index, var, inside) {
                    return Err(DirectiveRefusal::Recurrence(var));
                }
                written.push(*memory);
            }
            Stmt::Store {
                memory: Memory::Scratch(_),
                mask: None,
                ..
            } => {}
            Stmt::Accumulate { state, .. } if state.iter().all(|s| matches!(s.0, Memory::Scratch(_))) => {}
            Stmt::Loop {
                var: v,
                bind: Bind::Serial | Bind::Unroll | Bind::Lanes,
                body,
            } => {
                if kernel.extents[v.0 as usize].uses(var) {
                    return Err(DirectiveRefusal::DependentExtent(*v, var));
                }
                stores_apart(kernel, body, var, inside, written)?;
            }
            _ => return Err(DirectiveRefusal::Recurrence(var)),
        }
    }
    Ok(())
}

/// Whether the first statements that use a scratch store to all of it; `around` are the loops that the statements are in.
pub(super) fn set_whole(kernel: &Kernel, body: &[Stmt], scratch: u32, around: &mut Vec<VarId>) -> bool {
    match body.iter().find(|s| uses(s, scratch)) {
        Some(Stmt::Store { mask: None, index, .. }) => {
            let len = &kernel.scratch[scratch as usize].len;
            let run = |vars: &[VarId]| {
                vars.iter()
                    .all(|v| kernel.extents[v.0 as usize].interval(kernel).lo >= 1)
            };
            let whole = |at: usize| {
                let (elements, place) = row(kernel, &around[at..]);
                elements == *len && place.simplify(kernel) == index.simplify(kernel) && run(&around[..at])
            };
            (len.is(1) && run(around)) || (0..around.len()).any(whole)
        }
        Some(Stmt::Loop { var, body, .. }) => {
            around.push(*var);
            let set = set_whole(kernel, body, scratch, around);
            around.pop();
            set
        }
        _ => false,
    }
}

pub(super) fn uses(s: &Stmt, scratch: u32) -> bool {
    let mut used = Vec::new();
    scratch_of(std::slice::from_ref(s), &mut used);
    used.contains(&scratch)
}

/// As [`set_whole`], or by each iteration of a loop, which may not run at all, outside of which the statements do not use it.
pub(super) fn set_where_used(kernel: &Kernel, body: &[Stmt], scratch: u32) -> bool {
    let mut using = body.iter().filter(|s| uses(s, scratch));
    let alone = match (using.next(), using.next()) {
        (Some(Stmt::Loop { body, .. }), None) => set_where_used(kernel, body, scratch),
        _ => false,
    };
    alone || set_whole(kernel, body, scratch, &mut Vec::new())
}

/// The scratch of iterations that may run in any order, side by side, or twice: registers that each sets before all else,
/// while what it stores is its own and never loaded.
pub(super) fn own_scratch(kernel: &Kernel, var: VarId) -> Result<Vec<u32>, DirectiveRefusal> {
    let body = exists(kernel, var)?;
    if !matches!(loop_bind(&kernel.body, var), Some(Bind::Serial)) {
        return Err(DirectiveRefusal::Recurrence(var));
    }
    if let Some(Some(outer)) = enclosing_lanes(&kernel.body, var, None) {
        return Err(DirectiveRefusal::NotNested(outer, var));
    }
    let mut written = Vec::new();
    stores_apart(kernel, body, var, &defined_vars(body), &mut written)?;
    if loads_any(body, &written) || walk(body).any(|s| matches!(s, Stmt::Clamp { .. })) {
        return Err(DirectiveRefusal::Recurrence(var));
    }
    let (mut inner, mut outer) = (Vec::new(), Vec::new());
    scratch_of(body, &mut inner);
    scratch_outside(&kernel.body, var, &mut outer);
    let own = |i: &u32| {
        let s = &kernel.scratch[*i as usize];
        s.scope == Scope::Register && !outer.contains(i) && set_where_used(kernel, body, *i)
    };
    match inner.iter().all(own) {
        true => Ok(inner),
        false => Err(DirectiveRefusal::Recurrence(var)),
    }
}

/// Whether a result may take the place of what is loaded, which is then gone once it is stored.
pub(super) fn replaceable(kernel: &Kernel, memory: Memory) -> bool {
    let Memory::Param(read) = memory else { return false };
    let read = &kernel.params[read as usize];
    let written = kernel.params.iter().filter(|p| p.access != Access::Read);
    written
        .into_iter()
        .any(|w| w.len == read.len && w.dtype.bytes() == read.dtype.bytes())
}

fn loads_replaceable(kernel: &Kernel, body: &[Stmt]) -> bool {
    let mut accesses = walk(body).flat_map(|s| s.accesses());
    accesses.any(|a| a.effect == Effect::Load && replaceable(kernel, a.memory))
}

/// Splits a loop, each part with scratch of its own. What is left over is a loop as after a split, or, with `again`, a whole
/// piece that ends where the loop ends: what it shares with the one before is computed twice.
pub(super) fn pieces(
    kernel: &mut Kernel,
    var: VarId,
    factor: i64,
    again: bool,
) -> Result<Vec<VarId>, DirectiveRefusal> {
    let own = own_scratch(kernel, var)?;
    if factor < 2 {
        return Err(DirectiveRefusal::Factor(factor));
    }
    if again && loads_replaceable(kernel, exists(kernel, var)?) {
        return Err(DirectiveRefusal::Recurrence(var));
    }
    let n = kernel.extents[var.0 as usize].clone();
    let k = IndexExpr::Const(factor);
    let range = n.interval(kernel);
    if range.hi < factor || (again && range.lo < factor) {
        return Err(DirectiveRefusal::Factor(factor));
    }
    let whole = IndexExpr::floor_div(&n, &k).simplify(kernel);
    let left = IndexExpr::modulo(&n, &k).simplify(kernel);
    let mut made = Vec::new();
    rewrite(kernel, var, &mut |kernel, bind, body| {
        let (o, i) = (kernel.new_var(whole.clone()), kernel.new_var(k.clone()));
        made.extend([o, i]);
        let mut out = vec![Stmt::Loop {
            var: o,
            bind,
            body: vec![Stmt::Loop {
                var: i,
                bind: Bind::Serial,
                body: body.clone(),
            }],
        }];
        let main = IndexExpr::from(o) * k.clone() + i.into();
        if !left.is(0) {
            let mut rest = clone_fresh(kernel, &body);
            with_own_scratch(kernel, &mut rest, &own);
            let (extent, start) = match again {
                true => (k.clone(), n.clone() - k.clone()),
                false => (left.clone(), whole.clone() * k.clone()),
            };
            let t = kernel.new_var(extent);
            made.push(t);
            let at = start + t.into();
            substitute_in(kernel, &mut rest, &mut |v| (v == var).then(|| at.clone()));
            let mut rest = vec![Stmt::Loop {
                var: t,
                bind: Bind::Serial,
                body: rest,
            }];
            if again && left.as_const().is_none() {
                // Once if anything is left over, and else never.
                let once = kernel.new_var(IndexExpr::min(&IndexExpr::ONE, &left));
                rest = vec![Stmt::Loop {
                    var: once,
                    bind: Bind::Serial,
                    body: rest,
                }];
            }
            out.extend(rest);
        }
        substitute_in(kernel, &mut out[..1], &mut |v| (v == var).then(|| main.clone()));
        out
    });
    Ok(made)
}

/// Moves a loop inside the loops of its body. Returns the loops that it becomes, which are unrolled, as registers want it.
///
/// With `lanes`, which are as many as its iterations or more, they have one for each: of those that are too many, a mask keeps memory away. How many
/// iterations there are need not be known then; where there are none, nothing is run.
pub(super) fn inward(kernel: &mut Kernel, var: VarId, lanes: Option<i64>) -> Result<Vec<VarId>, DirectiveRefusal> {
    let own = own_scratch(kernel, var)?;
    let extent = kernel.extents[var.0 as usize].clone();
    let range = extent.interval(kernel);
    let (known, iterations) = (extent.as_const().is_some(), range.hi);
    if !(1..=MAX_UNROLL).contains(&iterations) || range.lo < 0 || !known && lanes.is_none() {
        return Err(DirectiveRefusal::NotConstant(var));
    }
    let n = lanes.unwrap_or(iterations);
    if !(iterations..=MAX_UNROLL).contains(&n) {
        return Err(DirectiveRefusal::Factor(n));
    }
    let mut work = kernel.clone();
    let wide = side_by_side(&mut work, var, &own, n)?;
    let mut made = Ok(Vec::new());
    rewrite(&mut work, var, &mut |kernel, _, mut body| {
        if n > iterations || !known {
            kernel.extents[var.0 as usize] = IndexExpr::Const(n);
            let registers: Vec<Memory> = own.iter().map(|&i| Memory::Scratch(i)).collect();
            let has = mask_memory(kernel, &mut body, (var, &extent), &registers);
            body.splice(0..0, has);
        }
        let out = match runs(kernel, body, (var, n), (&own, &wide)) {
            Ok((out, loops)) => {
                made = Ok(loops);
                out
            }
            Err(refusal) => {
                made = Err(refusal);
                Vec::new()
            }
        };
        if range.lo > 0 {
            return out;
        }
        let once = kernel.new_var(IndexExpr::min(&IndexExpr::ONE, &extent));
        vec![Stmt::Loop {
            var: once,
            bind: Bind::Serial,
            body: out,
        }]
    });
    let made = made?;
    *kernel = work;
    Ok(made)
}

/// Scratch with an element of these for each of `n` iterations of `var`, beside each of them.
pub(super) fn side_by_side(
    kernel: &mut Kernel,
    var: VarId,
    own: &[u32],
    n: i64,
) -> Result<Vec<(Memory, Memory)>, DirectiveRefusal> {
    let small = |kernel: &Kernel, i: u32| {
        let len = kernel.scratch[i as usize].len.as_const();
        len.is_some_and(|len| len * n <= 4 * MAX_UNROLL)
    };
    if !own.iter().all(|&i| small(kernel, i)) {
        return Err(DirectiveRefusal::Recurrence(var));
    }
    let mut made = own.iter().map(|&i| {
        let s = kernel.scratch[i as usize].clone();
        let len = s.len * IndexExpr::Const(n);
        (Memory::Scratch(i), kernel.new_scratch(s.dtype, len, s.scope))
    });
    Ok(made.by_ref().collect())
}

/// The body of a loop of `n` iterations with the loop inside those of the body, and the loops that it became. What the iterations have of
/// their own lies as [`side_by_side`] says.
pub(super) fn runs(
    kernel: &mut Kernel,
    body: Vec<Stmt>,
    (var, n): (VarId, i64),
    (own, wide): (&[u32], &[(Memory, Memory)]),
) -> Result<(Vec<Stmt>, Vec<VarId>), DirectiveRefusal> {
    let in_lanes = walk(&body).any(is_lanes);
    let mut pass = Inward {
        kernel,
        var,
        n,
        own,
        wide,
        in_lanes,
        varying: FxHashSet::default(),
        defined: FxHashMap::default(),
        made: Vec::new(),
    };
    let out = pass.block(body)?;
    Ok((out, pass.made))
}

/// Whether a statement is a loop of lanes.
pub(super) fn is_lanes(s: &Stmt) -> bool {
    matches!(s, Stmt::Loop { bind: Bind::Lanes, .. })
}

struct Inward<'k> {
    kernel: &'k mut Kernel,
    var: VarId,
    n: i64,
    own: &'k [u32],
    wide: &'k [(Memory, Memory)],
    /// Whether there are loops of lanes.
    in_lanes: bool,
    /// Values that differ from iteration to iteration, and what they are.
    varying: FxHashSet<ValueId>,
    defined: FxHashMap<ValueId, Op>,
    made: Vec<VarId>,
}

impl Inward<'_> {
    fn varies(&self, op: &Op) -> bool {
        let own = |m: Memory| matches!(m, Memory::Scratch(i) if self.own.contains(&i));
        op.access().is_some_and(|a| own(a.memory))
            || op.index().is_some_and(|e| e.uses(self.var))
            || op.operands().iter().any(|v| self.varying.contains(v))
    }

    fn block(&mut self, body: Vec<Stmt>) -> Result<Vec<Stmt>, DirectiveRefusal> {
        let (mut out, mut run) = (Vec::new(), Vec::new());
        for s in body {
            match s {
                Stmt::Let { value, op } if self.varies(&op) => {
                    self.varying.insert(value);
                    self.defined.insert(value, op.clone());
                    run.push(Stmt::Let { value, op });
                }
                s @ Stmt::Let { .. } => out.push(s),
                s if is_lanes(&s) => run.push(s),
                Stmt::Loop { var, bind, body } => {
                    self.close(std::mem::take(&mut run), &mut out)?;
                    let body = self.block(body)?;
                    out.push(Stmt::Loop { var, bind, body });
                }
                s => run.push(s),
            }
        }
        self.close(run, &mut out)?;
        Ok(out)
    }

    /// Writes a run of statements as a loop, with what it needs of earlier ones.
    fn close(&mut self, run: Vec<Stmt>, out: &mut Vec<Stmt>) -> Result<(), DirectiveRefusal> {
        if run.iter().all(|s| matches!(s, Stmt::Let { .. })) {
            return Ok(());
        }
        let mut here: FxHashMap<ValueId, ValueId> = FxHashMap::default();
        let mut body = Vec::with_capacity(run.len());
        for mut s in run {
            self.bring(&mut s, &mut here, &mut body)?;
            body.push(s);
        }
        let l = self.kernel.new_var(IndexExpr::Const(self.n));
        self.made.push(l);
        let var = self.var;
        substitute_in(self.kernel, &mut body, &mut |v| (v == var).then(|| l.into()));
        match self.in_lanes {
            true => self.copies(&mut body, l),
            false => {
                let k = IndexExpr::Const(self.n);
                widen(&mut body, self.wide, &|e| e.clone() * k.clone() + l.into());
            }
        }
        out.push(Stmt::Loop {
            var: l,
            bind: Bind::Unroll,
            body,
        });
        Ok(())
    }

    /// Has a statement of a run use values of the run.
    fn bring(
        &mut self,
        s: &mut Stmt,
        here: &mut FxHashMap<ValueId, ValueId>,
        body: &mut Vec<Stmt>,
    ) -> Result<(), DirectiveRefusal> {
        let plain = matches!(s, Stmt::Let { .. } | Stmt::Store { .. } | Stmt::Accumulate { .. });
        if !plain && !is_lanes(s) {
            return Err(DirectiveRefusal::Recurrence(self.var));
        }
        for v in s.operands_mut() {
            *v = self.brought(*v, here, body)?;
        }
        here.extend(s.defined_value().map(|v| (v, v)));
        let inside = s.body_mut().into_iter().flatten();
        inside.into_iter().try_for_each(|s| self.bring(s, here, body))
    }

    /// Gives iteration `at` a copy of each scratch behind those of the iterations before.
    fn copies(&self, body: &mut [Stmt], at: VarId) {
        walk_mut(body, &mut |s| {
            for a in s.accesses_mut() {
                let Memory::Scratch(old) = *a.memory else { continue };
                if let Some((_, new)) = self.wide.iter().find(|w| w.0 == *a.memory) {
                    let len = self.kernel.scratch[old as usize].len.clone();
                    (*a.memory, *a.index) = (*new, len * at.into() + a.index.clone());
                }
            }
        });
    }

    /// The value in the run that is being written.
    fn brought(
        &mut self,
        value: ValueId,
        here: &mut FxHashMap<ValueId, ValueId>,
        body: &mut Vec<Stmt>,
    ) -> Result<ValueId, DirectiveRefusal> {
        if let Some(&v) = here.get(&value) {
            return Ok(v);
        }
        let Some(mut op) = self.defined.get(&value).cloned() else {
            return Ok(value);
        };
        // An accumulator has changed since, and so may have what a result takes the place of.
        if let Some(a) = op.access()
            && (matches!(a.memory, Memory::Scratch(_)) || replaceable(self.kernel, a.memory))
        {
            return Err(DirectiveRefusal::Recurrence(self.var));
        }
        for v in op.operands_mut() {
            *v = self.brought(*v, here, body)?;
        }
        let new = self.kernel.new_value(self.kernel.dtype(value));
        here.insert(value, new);
        body.push(Stmt::Let { value: new, op });
        Ok(new)
    }
}
