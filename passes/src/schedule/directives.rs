//! Applying schedule directives: transformations of a loop nest that keep its result.
//!
//! A directive names loops by variable, checks its own precondition and returns why it does not apply; it never applies
//! in part. New variables are numbered deterministically, so a list of directives is a schedule that can be replayed.

use rustc_hash::{FxHashMap, FxHashSet};
use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::visit::{Effect, walk, walk_mut};
use tlc_ir::kernel::{Bind, CopyNest, Kernel, Memory, Scope, Stmt};

use super::across::{scratch_of, scratch_outside};
use super::{accumulators, inward, stage, threads};
use crate::directive::{Directive, DirectiveRefusal, MAX_UNROLL};
use crate::made::{Made, made};
use crate::tree::{
    clone_fresh, count_divisions, defined_vars, divisions_of, loop_body, replace_loop, substitute_in,
    substitute_in_extents,
};

/// Applies a directive to a kernel; returns the variables of the loops it made.
///
/// # Errors
/// [`DirectiveRefusal`] if the precondition fails; the kernel is then unchanged.
pub fn apply(kernel: &mut Kernel, directive: &Directive) -> Result<Vec<VarId>, DirectiveRefusal> {
    shown(kernel, directive, |kernel| transform(kernel, directive))
}

/// Fuses two loops where the indices inside are divided no more often than before.
///
/// # Errors
/// As [`apply`]; [`DirectiveRefusal::Divides`] if they would be.
pub fn fuse_clean(kernel: &mut Kernel, outer: VarId, inner: VarId) -> Result<Vec<VarId>, DirectiveRefusal> {
    shown(kernel, &Directive::Fuse { outer, inner }, |kernel| {
        fuse(kernel, outer, inner, Fusing::Clean)
    })
}

/// Applies a directive as `transform` does, and shows what it made.
fn shown(
    kernel: &mut Kernel,
    directive: &Directive,
    transform: impl FnOnce(&mut Kernel) -> Result<Vec<VarId>, DirectiveRefusal>,
) -> Result<Vec<VarId>, DirectiveRefusal> {
    let scratch = kernel.scratch.len();
    let variables = transform(kernel)?;
    made(Made::Schedule {
        directive,
        variables: &variables,
        scratch,
        kernel,
    });
    Ok(variables)
}

fn transform(kernel: &mut Kernel, directive: &Directive) -> Result<Vec<VarId>, DirectiveRefusal> {
    match directive {
        Directive::Split { var, factor } => split(kernel, *var, *factor),
        Directive::Block { var, factor } => block(kernel, *var, *factor),
        Directive::Fuse { outer, inner } => fuse(kernel, *outer, *inner, Fusing::Plain),
        Directive::FuseGuarded { outer, inner } => fuse(kernel, *outer, *inner, Fusing::Guarded),
        Directive::Interchange { outer, inner } => interchange(kernel, *outer, *inner),
        Directive::Bind { var, bind } => set_bind(kernel, *var, *bind),
        Directive::RFactor { var, around } => accumulators::rfactor(kernel, *var, *around),
        Directive::Privatize { var, lanes } => accumulators::privatize(kernel, *var, *lanes),
        Directive::Cascade { var, factor } => super::cascade::cascade(kernel, *var, *factor),
        Directive::Stage {
            outer,
            inner,
            rows,
            columns,
        } => stage::loads(kernel, [*outer, *inner], [*rows, *columns]),
        Directive::StageTurned {
            outer,
            inner,
            rows,
            columns,
        } => stage::turned(kernel, [*outer, *inner], [*rows, *columns]),
        Directive::Keep { var, value } => super::keep::keep(kernel, *var, *value),
        Directive::Over { var, scratch, place } => super::over::over(kernel, *var, *scratch, *place),
        Directive::TileColumns { var, width } => super::tile_columns::tile_columns(kernel, *var, *width),
        Directive::StageStores { var, param, length } => stage::stores(kernel, *var, *param, *length),
        Directive::StageRows { var, pitch } => stage::rows(kernel, *var, *pitch),
        Directive::Across { var, lanes, masked } => super::across::across(kernel, *var, *lanes, *masked),
        Directive::Pieces { var, factor, again } => inward::pieces(kernel, *var, *factor, *again),
        Directive::Inward { var } => inward::inward(kernel, *var, None),
        Directive::InwardMasked { var, lanes } => inward::inward(kernel, *var, Some(*lanes)),
        Directive::Cover { var, factor } => super::cover::cover(kernel, *var, *factor),
        Directive::Narrow {
            var,
            lanes,
            vectors,
            squares,
        } => super::narrow::narrow(kernel, *var, *lanes, *vectors, *squares),
        Directive::Peel { var, from, behind } => super::peel::peel(kernel, *var, *from, *behind),
        Directive::Cases { var } => super::cases::cases(kernel, *var),
        Directive::Prefetch {
            var,
            by,
            param,
            ahead,
            shares,
        } => super::prefetch::prefetch(kernel, *var, *by, *param, [*ahead, *shares]),
        Directive::PrefetchIteration { var, param, ahead } => super::prefetch::iteration(kernel, *var, *param, *ahead),
        Directive::Slide { var, held } => super::slide::slide(kernel, *var, *held),
        Directive::Enclose {} => Ok(threads::enclose(kernel)),
        Directive::Place { scratch, scope } => threads::place(kernel, *scratch, *scope),
        Directive::Distribute { around, var, threads } => threads::distribute(kernel, *around, *var, *threads),
        Directive::DistributeTile {
            outer,
            inner,
            rows,
            columns,
            lanes,
            threads,
        } => super::tile_threads::distribute_tile(kernel, [*outer, *inner], [*rows, *columns], *lanes, *threads),
        Directive::RowsByWarps { var, warps, threads } => {
            super::rows_by_warps::rows_by_warps(kernel, *var, (*warps, *threads))
        }
        Directive::TileRows {
            var,
            scratch,
            rows,
            pitch,
        } => super::tile_rows::tile_rows(kernel, *var, *scratch, [*rows, *pitch]),
        Directive::ShareLoads { thread, var, length } => {
            super::share_loads::share_loads(kernel, *thread, *var, *length)
        }
        Directive::ShareRows {
            thread,
            rows,
            lane,
            groups,
        } => super::share_rows::share_rows(kernel, [*thread, *rows], *lane, *groups),
        Directive::Own { scratch } => super::own::own(kernel, *scratch),
        Directive::OneThread { block } => threads::one_thread(kernel, *block),
        Directive::TileSum {
            outer,
            inner,
            sum,
            rows,
            columns,
            scope,
        } => super::tile_sum::tile_sum(kernel, [*outer, *inner, *sum], [*rows, *columns], *scope),
        Directive::Hold {
            outer,
            inner,
            sum,
            rows,
            columns,
        } => super::hold::hold(kernel, [*outer, *inner, *sum], [*rows, *columns]),
        Directive::Pack {
            var,
            value,
            scope,
            turned,
            padded,
        } => super::pack::pack(kernel, *var, *value, *scope, [*turned, *padded]),
        Directive::StageRegion { var, param, scope } => super::region::region(kernel, *var, *param, *scope),
        Directive::Contract {
            outer,
            inner,
            sum,
            rows,
            columns,
            block,
            precision,
        } => {
            let (vars, size) = ([*outer, *inner, *sum], [*rows, *columns]);
            super::contract::contract(kernel, vars, size, (*block, *precision))
        }
        Directive::Spread {
            block,
            rows,
            columns,
            down,
            across,
        } => super::spread::spread(kernel, *block, [*rows, *columns], [*down, *across]),
        Directive::Lengthen {
            outer,
            inner,
            sum,
            length,
        } => super::lengthen::lengthen(kernel, [*outer, *inner, *sum], *length),
        Directive::FillColumns {
            outer,
            inner,
            sum,
            rows,
            columns,
        } => super::lengthen::fill_columns(kernel, [*outer, *inner, *sum], [*rows, *columns]),
        Directive::Reside { blocks } => super::residents::reside(kernel, *blocks),
        Directive::Swizzle { scratch, row } => super::swizzle::swizzle(kernel, *scratch, *row),
        Directive::Apart { scratch, row, gap } => super::rows_apart::apart(kernel, *scratch, *row, *gap),
        Directive::Rotate { scratch, row, piece } => super::rows_apart::rotate(kernel, *scratch, *row, *piece),
        Directive::SpreadWarps {
            block,
            rows,
            columns,
            down,
            across,
        } => super::warps::spread(kernel, *block, [*rows, *columns], [*down, *across]),
        Directive::Pipeline { var, stages } => super::pipeline::pipeline(kernel, *var, *stages),
        Directive::Synchronize { block } => threads::synchronize(kernel, *block),
    }
}

pub(super) fn exists(kernel: &Kernel, var: VarId) -> Result<&Vec<Stmt>, DirectiveRefusal> {
    loop_body(&kernel.body, var).ok_or(DirectiveRefusal::NoLoop(var))
}

/// What a loop becomes, given its binding and body.
type Rewrite<'f> = dyn FnMut(&mut Kernel, Bind, Vec<Stmt>) -> Vec<Stmt> + 'f;

/// Runs `f` on the loop's binding and body, which it replaces.
pub(super) fn rewrite(kernel: &mut Kernel, var: VarId, f: &mut Rewrite<'_>) {
    let mut body = std::mem::take(&mut kernel.body);
    replace_loop(&mut body, var, &mut |bind, inner| f(kernel, bind, inner));
    kernel.body = body;
}

fn split(kernel: &mut Kernel, var: VarId, factor: i64) -> Result<Vec<VarId>, DirectiveRefusal> {
    exists(kernel, var)?;
    if factor < 1 {
        return Err(DirectiveRefusal::Factor(factor));
    }
    let n = kernel.extents[var.0 as usize].clone();
    let k = IndexExpr::Const(factor);
    let whole = IndexExpr::floor_div(&n, &k).simplify(kernel);
    let left = IndexExpr::modulo(&n, &k).simplify(kernel);
    let mut made = Vec::new();
    rewrite(kernel, var, &mut |kernel, bind, body| {
        let mut out = Vec::new();
        // Of a loop that never runs there is a rest of nothing: who splits finds a loop, as of one that is shorter than the factor.
        let tail_body = (!left.is(0) || whole.is(0)).then(|| {
            if whole.is(0) {
                body.clone()
            } else {
                clone_fresh(kernel, &body)
            }
        });
        if !whole.is(0) {
            let outer = kernel.new_var(whole.clone());
            let inner = kernel.new_var(k.clone());
            let mut main = body;
            let at = IndexExpr::from(outer) * k.clone() + inner.into();
            substitute_in(kernel, &mut main, &mut |v| (v == var).then(|| at.clone()));
            out.push(Stmt::Loop {
                var: outer,
                bind,
                body: vec![Stmt::Loop {
                    var: inner,
                    bind: Bind::Serial,
                    body: main,
                }],
            });
            made.extend([outer, inner]);
        }
        if let Some(mut tail) = tail_body {
            let t = kernel.new_var(left.clone());
            let at = whole.clone() * k.clone() + t.into();
            substitute_in(kernel, &mut tail, &mut |v| (v == var).then(|| at.clone()));
            out.push(Stmt::Loop {
                var: t,
                bind: Bind::Serial,
                body: tail,
            });
            made.push(t);
        }
        out
    });
    Ok(made)
}

pub(super) fn block(kernel: &mut Kernel, var: VarId, factor: i64) -> Result<Vec<VarId>, DirectiveRefusal> {
    exists(kernel, var)?;
    if factor < 1 {
        return Err(DirectiveRefusal::Factor(factor));
    }
    let n = kernel.extents[var.0 as usize].clone();
    let k = IndexExpr::Const(factor);
    let outer = kernel.new_var(n.ceil_div(factor).simplify(kernel));
    let start = IndexExpr::from(outer) * k.clone();
    let left = IndexExpr::min(&k, &(n - start.clone())).simplify(kernel);
    let inner = kernel.new_var(left);
    rewrite(kernel, var, &mut |kernel, bind, mut body| {
        let at = start.clone() + inner.into();
        substitute_in(kernel, &mut body, &mut |v| (v == var).then(|| at.clone()));
        vec![Stmt::Loop {
            var: outer,
            bind,
            body: vec![Stmt::Loop {
                var: inner,
                bind: Bind::Serial,
                body,
            }],
        }]
    });
    Ok(vec![outer, inner])
}

pub(super) fn nested(kernel: &Kernel, outer: VarId, inner: VarId) -> Result<&Vec<Stmt>, DirectiveRefusal> {
    match &exists(kernel, outer)?[..] {
        [Stmt::Loop { var, body, .. }] if *var == inner => {
            if kernel.extents[inner.0 as usize].uses(outer) {
                return Err(DirectiveRefusal::DependentExtent(inner, outer));
            }
            Ok(body)
        }
        _ => Err(DirectiveRefusal::NotNested(outer, inner)),
    }
}

/// How two loops become one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fusing {
    /// Whatever comes of it.
    Plain,
    /// With a divisor of at least 1 where the inner loop may be empty.
    Guarded,
    /// If no division comes of it.
    Clean,
}

fn fuse(kernel: &mut Kernel, outer: VarId, inner: VarId, how: Fusing) -> Result<Vec<VarId>, DirectiveRefusal> {
    let inside = nested(kernel, outer, inner)?;
    let ei = kernel.extents[inner.0 as usize].clone();
    // Where the inner loop is known to be empty nothing runs, and nothing divides by zero all the same.
    let divisor = if how == Fusing::Guarded || ei.is(0) {
        IndexExpr::max(&ei, &IndexExpr::ONE)
    } else {
        ei.clone()
    };
    let may_be_empty = how == Fusing::Plain && divisor.interval(kernel).lo < 1;
    let most = match how == Fusing::Clean || may_be_empty {
        true => count_divisions(inside),
        false => usize::MAX,
    };
    let (own, total) = (
        defined_vars(inside),
        kernel.extents[outer.0 as usize].clone() * ei.clone(),
    );
    let before = kernel.extents.clone();
    let var = kernel.new_var(total);
    let (q, r) = (
        IndexExpr::floor_div(&var.into(), &divisor),
        IndexExpr::modulo(&var.into(), &divisor),
    );
    let mut instead = |v: VarId| match v {
        v if v == outer => Some(q.clone()),
        v if v == inner => Some(r.clone()),
        _ => None,
    };
    // What goes through both along one line needs no quotient, whatever the divisor.
    let flat = |e: &IndexExpr| e.flattened(outer, inner, &ei, var);
    for v in &own {
        let extent = flat(&kernel.extents[v.0 as usize]);
        kernel.extents[v.0 as usize] = extent;
    }
    substitute_in_extents(kernel, &own, &mut instead);
    let Some(indices) = fused_indices(kernel, outer, most, &mut |e| match flat(e) {
        e if e.has_vars() => e.replace_vars(&mut instead).simplify(kernel),
        e => e,
    }) else {
        kernel.extents = before;
        return Err(match how {
            Fusing::Clean => DirectiveRefusal::Divides(outer, inner),
            Fusing::Plain | Fusing::Guarded => DirectiveRefusal::MayBeEmpty(inner),
        });
    };
    let mut indices = indices.into_iter();
    rewrite(kernel, outer, &mut |_, bind, body| {
        let Some(Stmt::Loop { body: mut inside, .. }) = body.into_iter().next() else {
            unreachable!("checked above")
        };
        walk_mut(&mut inside, &mut |s| {
            let moved = s.indices_mut().filter(|e| e.has_vars());
            moved.zip(&mut indices).for_each(|(e, new)| *e = new);
        });
        vec![Stmt::Loop {
            var,
            bind,
            body: inside,
        }]
    });
    Ok(vec![var])
}

/// What the indices with loop variables become inside of a loop and the one in it, in the order of the statements; `None` as soon as they are
/// divided more often than that. Most loops of which no divisions should come cannot be fused so: the first indices say it, and nothing was
/// copied for them.
fn fused_indices(
    kernel: &Kernel,
    outer: VarId,
    most: usize,
    new: &mut dyn FnMut(&IndexExpr) -> IndexExpr,
) -> Option<Vec<IndexExpr>> {
    let mut known: FxHashMap<&IndexExpr, IndexExpr> = FxHashMap::default();
    let (mut all, mut divisions) = (Vec::new(), 0);
    for e in walk(loop_body(&kernel.body, outer)?).flat_map(|s| s.indices()) {
        if !e.has_vars() {
            continue;
        }
        // What is loaded is often stored as well.
        let e = known.entry(e).or_insert_with(|| new(e)).clone();
        if most < usize::MAX {
            divisions += divisions_of(&e);
        }
        if divisions > most {
            return None;
        }
        all.push(e);
    }
    Some(all)
}

/// The scratch that each iteration of the nested loops sets before all else, as does whatever else uses it.
pub(super) fn own_scratch(kernel: &Kernel, outer: VarId, body: &[Stmt]) -> Vec<Memory> {
    let (mut used, mut outside) = (Vec::new(), Vec::new());
    scratch_of(body, &mut used);
    scratch_outside(&kernel.body, outer, &mut outside);
    // Loops that hold nothing else set nothing where they are empty, and use nothing either.
    let mut body = body;
    while let [Stmt::Loop { body: inside, .. }] = body {
        body = inside;
    }
    let own = |i: &u32| {
        let scope = kernel.scratch[*i as usize].scope;
        let alone = !outside.contains(i) || set_elsewhere(kernel, &kernel.body, outer, *i);
        matches!(scope, Scope::Register | Scope::Cache) && alone && inward::set_whole(kernel, body, *i, &mut Vec::new())
    };
    used.into_iter().filter(own).map(Memory::Scratch).collect()
}

/// Whether statements outside of a loop that use a scratch set it before: nothing of the loop's is left in it for them, as for what whole tiles
/// leave over of a row.
fn set_elsewhere(kernel: &Kernel, body: &[Stmt], outer: VarId, scratch: u32) -> bool {
    body.iter().all(|s| match s {
        Stmt::Loop { var, .. } if *var == outer => true,
        _ if !inward::uses(s, scratch) => true,
        Stmt::Loop { body, .. } if loop_body(body, outer).is_some() => set_elsewhere(kernel, body, outer, scratch),
        Stmt::Loop { body, .. } => inward::set_where_used(kernel, body, scratch),
        _ => false,
    })
}

/// True if the statements carry something from one iteration to the next that is not an accumulation, in memory other than `own`.
pub(super) fn carries_state(body: &[Stmt], own: &[Memory]) -> bool {
    let accesses = || {
        walk(body)
            .flat_map(|s| s.accesses())
            .filter(|a| !own.contains(&a.memory))
    };
    // Accumulations commute with each other, but not with loads of the running value.
    let loads: Vec<Memory> = accesses().filter(|a| !a.effect.writes()).map(|a| a.memory).collect();
    accesses().any(|a| a.effect.writes() && loads.contains(&a.memory))
}

/// True if iterations over `var` may store to one element of memory other than `own`, so that the last one counts.
pub(super) fn overwrites(kernel: &Kernel, body: &[Stmt], var: VarId, own: &[Memory]) -> bool {
    let one = kernel.extents[var.0 as usize].is(1);
    let mut accesses = walk(body)
        .flat_map(|s| s.accesses())
        .filter(|a| !own.contains(&a.memory));
    accesses.any(|a| a.effect == Effect::Store && !one && !a.index.uses(var))
}

/// True if one argmax or argmin state meets iterations of both loops: it must meet them in the order they count.
fn counts_through(body: &[Stmt], outer: VarId, inner: VarId) -> bool {
    walk(body).any(|s| match s {
        Stmt::Accumulate { monoid, state, .. } => {
            // A state index that is linear in one of the loops leaves each state to one iteration of it.
            let splits = |at: &IndexExpr, v: VarId| {
                at.affine_in(v)
                    .is_some_and(|(c, _)| c.as_const().is_some_and(|c| c != 0))
            };
            monoid.is_arg() && !state.iter().all(|(_, at)| splits(at, outer) != splits(at, inner))
        }
        _ => false,
    })
}

fn interchange(kernel: &mut Kernel, outer: VarId, inner: VarId) -> Result<Vec<VarId>, DirectiveRefusal> {
    let body = nested(kernel, outer, inner)?;
    let own = own_scratch(kernel, outer, body);
    let reorders = carries_state(body, &own) || [outer, inner].iter().any(|&v| overwrites(kernel, body, v, &own));
    if reorders || counts_through(body, outer, inner) {
        return Err(DirectiveRefusal::Recurrence(outer));
    }
    rewrite(kernel, outer, &mut |_, outer_bind, body| {
        let Some(Stmt::Loop { bind, body: inside, .. }) = body.into_iter().next() else {
            unreachable!("checked above")
        };
        vec![Stmt::Loop {
            var: inner,
            bind,
            body: vec![Stmt::Loop {
                var: outer,
                bind: outer_bind,
                body: inside,
            }],
        }]
    });
    Ok(vec![inner, outer])
}

fn set_bind(kernel: &mut Kernel, var: VarId, new: Bind) -> Result<Vec<VarId>, DirectiveRefusal> {
    exists(kernel, var)?;
    let copies = || CopyNest::of(kernel, var, exists(kernel, var).ok()?);
    if matches!(new, Bind::Copy | Bind::Stream) && copies().is_none() {
        return Err(DirectiveRefusal::NotACopy(var));
    }
    let constant = kernel.extents[var.0 as usize]
        .as_const()
        .is_some_and(|n| (0..=MAX_UNROLL).contains(&n));
    if matches!(new, Bind::Lanes | Bind::Unroll) && !constant {
        return Err(DirectiveRefusal::NotConstant(var));
    }
    if new == Bind::Lanes && runs_apart(kernel, var) {
        return Err(DirectiveRefusal::Conditional(var));
    }
    if matches!(new, Bind::Parallel | Bind::Block)
        && !matches!(&kernel.body[..], [Stmt::Loop { var: v, .. }] if *v == var)
    {
        return Err(DirectiveRefusal::NotNested(var, var));
    }
    if new == Bind::Thread {
        threads::may_bind(kernel, var)?;
    }
    rewrite(kernel, var, &mut |_, _, body| vec![Stmt::Loop { var, bind: new, body }]);
    Ok(vec![var])
}

/// Whether a condition that changes between the iterations of a loop decides whether something is stored or accumulated. In lanes the body of an
/// `if` runs for all of them where the condition holds for any, and only what has a mask of its own is left out.
fn runs_apart(kernel: &Kernel, var: VarId) -> bool {
    let Some(body) = loop_body(&kernel.body, var) else {
        return false;
    };
    let (mut vars, mut values, mut memories) = (vec![var], FxHashSet::default(), FxHashSet::default());
    let of_vars = |e: &IndexExpr, vars: &[VarId]| vars.iter().any(|v| e.uses(*v));
    for s in walk(body) {
        match s {
            Stmt::Let { value, op } => {
                let differs = op.operands().iter().any(|v| values.contains(v))
                    || op.index().is_some_and(|e| of_vars(e, &vars))
                    || op.access().is_some_and(|a| memories.contains(&a.memory));
                if differs {
                    values.insert(*value);
                }
            }
            Stmt::Clamp { var, value } if values.contains(value) => vars.push(*var),
            Stmt::Loop { var, .. } if of_vars(&kernel.extents[var.0 as usize], &vars) => vars.push(*var),
            Stmt::If { cond, body } if values.contains(cond) => {
                let bare = |s: &Stmt| matches!(s, Stmt::Store { mask: None, .. } | Stmt::Accumulate { .. });
                if walk(body).any(bare) {
                    return true;
                }
            }
            _ => {}
        }
        let written = s.accesses().filter(|a| a.effect != Effect::Load);
        memories.extend(written.map(|a| a.memory));
    }
    false
}

pub(super) fn loop_bind(body: &[Stmt], var: VarId) -> Option<Bind> {
    walk(body).find_map(|s| match s {
        Stmt::Loop { var: v, bind, .. } if *v == var => Some(*bind),
        _ => None,
    })
}

/// The lanes loop around the loop over `var`, if that is found.
pub(super) fn enclosing_lanes(body: &[Stmt], var: VarId, lanes: Option<VarId>) -> Option<Option<VarId>> {
    body.iter().find_map(|s| match s {
        Stmt::Loop { var: v, .. } if *v == var => Some(lanes),
        Stmt::Loop {
            var: v,
            bind: Bind::Lanes,
            body,
        } => enclosing_lanes(body, var, Some(*v)),
        s => enclosing_lanes(s.body(), var, lanes),
    })
}
