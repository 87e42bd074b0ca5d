//! Keeping what several phases of a row compute: the first one stores it to scratch, the others load it.
//!
//! A row that is walked several times stays in the first caches (or in the shared memory of a GPU's block). What each phase
//! computes of it anew, a transcendental function above all, takes longer than to store it once and to load it. Lowering
//! computes it in each phase; here it is decided what is kept.

use rustc_hash::{FxHashMap, FxHashSet};
use tlc_ir::DType;
use tlc_ir::index::{IndexExpr, IndexNode, VarId};
use tlc_ir::kernel::visit::walk;
use tlc_ir::kernel::{Kernel, Memory, Op, Scope, Stmt, ValueId};

use super::again::{ELEMENT, MOST, is_function, own_cost};
use super::directives::{apply, enclosing_lanes, exists};
use super::phases::{Phase, alike, innermost, row, siblings, siblings_mut};
use super::{Refused, Schedule, ScheduleReason};
use crate::directive::{Directive, DirectiveRefusal};
use crate::tree;

/// Where a value is computed another time.
struct Again {
    /// The loops of the phase.
    vars: Vec<VarId>,
    /// What the value is there.
    value: ValueId,
}

/// The loops of the phase of the loop over `var`, and the phases behind it that compute one of its values alike.
fn again(kernel: &Kernel, var: VarId, value: ValueId) -> Result<(Vec<VarId>, Vec<Again>), DirectiveRefusal> {
    let (all, at) = siblings(&kernel.body, var).ok_or(DirectiveRefusal::NoLoop(var))?;
    let first = Phase::of(&all[at]).ok_or(DirectiveRefusal::NotNested(var, var))?;
    let here = |s: &Stmt| matches!(s, Stmt::Let { value: v, .. } if *v == value);
    if !first.body.iter().any(here) {
        return Err(DirectiveRefusal::NoValue(var, value));
    }
    let extents = first.extents(kernel);
    let mut found = Vec::new();
    for (k, s) in all.iter().enumerate().skip(at + 1) {
        let Some(later) = Phase::of(s).filter(|p| p.extents(kernel) == extents) else {
            continue;
        };
        let pairs = alike(kernel, &all[at..=k], &first, &later);
        let own = later.body.iter().filter_map(Stmt::defined_value);
        let same = own.filter(|v| pairs.get(v) == Some(&value));
        found.extend(same.map(|value| Again {
            vars: later.vars.clone(),
            value,
        }));
    }
    Ok((first.vars, found))
}

/// Keeps a value of the phase of the loop over `var` for the phases behind it.
pub(super) fn keep(kernel: &mut Kernel, var: VarId, value: ValueId) -> Result<Vec<VarId>, DirectiveRefusal> {
    exists(kernel, var)?;
    if let Some(Some(outer)) = enclosing_lanes(&kernel.body, var, None) {
        return Err(DirectiveRefusal::NotNested(outer, var));
    }
    let (vars, later) = again(kernel, var, value)?;
    if later.is_empty() {
        return Err(DirectiveRefusal::NotComputedAgain(value));
    }
    let (len, at) = row(kernel, &vars);
    if len.has_vars() {
        return Err(DirectiveRefusal::DependentExtent(vars[vars.len() - 1], var));
    }
    let memory = kernel.new_scratch(kernel.dtype(value), len, Scope::Cache);
    let mut body = std::mem::take(&mut kernel.body);
    if let Some((all, place)) = siblings_mut(&mut body, var) {
        if let Some(inside) = innermost(&mut all[place], &vars)
            && let Some(here) = inside.iter().position(|s| s.defined_value() == Some(value))
        {
            let (index, mask) = (at, None);
            inside.insert(
                here + 1,
                Stmt::Store {
                    memory,
                    index,
                    value,
                    mask,
                },
            );
        }
        for Again { vars, value } in later {
            let nest = all.iter_mut().find(|s| s.defined_vars().first() == vars.first());
            if let Some(inside) = nest.and_then(|s| innermost(s, &vars)) {
                let (index, mask) = (row(kernel, &vars).1, None);
                for s in inside.iter_mut() {
                    if let Stmt::Let { value: v, op } = s
                        && *v == value
                    {
                        let index = index.clone();
                        *op = Op::Load { memory, index, mask };
                    }
                }
                *inside = tree::without_unused(std::mem::take(inside));
            }
        }
    }
    kernel.body = body;
    Ok(Vec::new())
}

/// Where rows are kept.
pub(super) struct Room<'t> {
    /// Whether operands are kept as well: they lie apart in memory.
    pub(super) operands: bool,
    /// Whether rows of so many bytes in all, for each index of the parallel loops, fit where they are kept.
    pub(super) fits: &'t dyn Fn(&Kernel, i64) -> Result<(), DirectiveRefusal>,
}

/// Applies [`Directive::Keep`] where phases in the innermost of the parallel loops compute alike what is dear. Returns the bytes
/// that are kept of each row.
pub(super) fn keep_rows(kernel: &mut Kernel, schedule: &mut Schedule, parallel: &[VarId], room: &Room<'_>) -> i64 {
    let inside = |kernel: &Kernel| -> Vec<VarId> {
        let body = parallel.last().and_then(|&v| tree::loop_body(&kernel.body, v));
        let own = body.unwrap_or(&kernel.body).iter();
        own.filter(|s| Phase::of(s).is_some())
            .filter_map(|s| s.defined_vars().first().copied())
            .collect()
    };
    let phases = inside(kernel);
    let mut bytes = 0i64;
    for (number, &later) in phases.iter().enumerate().skip(1) {
        for (first, value, reason) in wanted(kernel, &phases[..number], later, room.operands) {
            let directive = Directive::Keep { var: first, value };
            let row_bytes = siblings(&kernel.body, first)
                .and_then(|(all, at)| Phase::of(&all[at]))
                .map(|p| row(kernel, &p.vars).0.interval(kernel).hi)
                .unwrap_or(0)
                .saturating_mul(kernel.dtype(value).bytes() as i64);
            let kept = (room.fits)(kernel, bytes.saturating_add(row_bytes));
            match kept.and_then(|()| apply(kernel, &directive)) {
                Ok(_) => {
                    bytes = bytes.saturating_add(row_bytes);
                    schedule.note(directive, reason);
                }
                // A value that two later phases want is kept for both at once.
                Err(DirectiveRefusal::NotComputedAgain(_)) => {}
                Err(_) if let Some((work, over)) = kept_over(kernel, first, value, &|k| (room.fits)(k, bytes)) => {
                    *kernel = work;
                    schedule.note(directive, reason);
                    schedule.note(over, ScheduleReason::InPlace);
                }
                Err(refusal) => schedule.refused.push(Refused {
                    directive,
                    reason,
                    refusal,
                }),
            }
        }
    }
    bytes
}

/// A kernel in which a value is kept where a row was that its phase is the last to read, if there is one, it fits and that is so; and what was done then.
fn kept_over(
    kernel: &Kernel,
    var: VarId,
    value: ValueId,
    fits: &dyn Fn(&Kernel) -> Result<(), DirectiveRefusal>,
) -> Option<(Kernel, Directive)> {
    let mut work = kernel.clone();
    apply(&mut work, &Directive::Keep { var, value }).ok()?;
    let scratch = work.scratch.len() as u32 - 1;
    let mut all = (0..scratch).map(|place| Directive::Over { var, scratch, place });
    let over = all.find(|d| apply(&mut work, d).is_ok())?;
    fits(&work).ok().map(|()| (work, over))
}

/// What the phase `later` should load of what earlier phases compute: in which phase, which value, and why.
fn wanted(kernel: &Kernel, earlier: &[VarId], later: VarId, operands: bool) -> Vec<(VarId, ValueId, ScheduleReason)> {
    let phase_of = |var: VarId| {
        let (all, at) = siblings(&kernel.body, var)?;
        Phase::of(&all[at]).map(|phase| (all, at, phase))
    };
    let Some((all, place, phase)) = phase_of(later) else {
        return Vec::new();
    };
    let extents = phase.extents(kernel);
    let mut common: FxHashMap<ValueId, (VarId, ValueId)> = FxHashMap::default();
    for &var in earlier {
        if let Some((_, at, first)) = phase_of(var)
            && first.extents(kernel) == extents
        {
            for (value, counterpart) in alike(kernel, &all[at..=place], &first, &phase) {
                common.entry(value).or_insert((var, counterpart));
            }
        }
    }
    if common.is_empty() {
        return Vec::new();
    }
    let cone = Cone::of(kernel, &phase, &common);
    // What is common to the phases and used by what is not.
    let mut frontier: Vec<ValueId> = Vec::new();
    for s in phase.body {
        if !s.defined_value().is_some_and(|v| common.contains_key(&v)) {
            let used = walk(std::slice::from_ref(s)).flat_map(|s| {
                let by_index = s.indices().flat_map(|e| cone.behind_clamps(e));
                s.operands().chain(by_index.collect::<Vec<_>>()).collect::<Vec<_>>()
            });
            frontier.extend(used.filter(|v| common.contains_key(v)));
        }
    }
    let mut seen = FxHashSet::default();
    frontier.retain(|v| cone.varying.contains(v) && seen.insert(*v));
    // Either what is used, or the functions that it is made of: whichever is less to keep.
    let (mut used, mut functions): (Vec<ValueId>, Vec<ValueId>) = (Vec::new(), Vec::new());
    for &v in &frontier {
        let below = cone.functions(v);
        let cheap = cone.cost[&v] <= MOST;
        match (below.is_empty(), cheap) {
            (true, true) => {}
            (_, false) => {
                used.push(v);
                functions.push(v);
            }
            (false, true) => {
                // Bools are narrower, but lanes have to make them of what they are kept as.
                match kernel.dtype(v) == DType::Bool {
                    true => used.extend(&below),
                    false => used.push(v),
                }
                functions.extend(below);
            }
        }
    }
    let distinct = |mut all: Vec<ValueId>| {
        let mut seen = FxHashSet::default();
        all.retain(|v| seen.insert(*v));
        all
    };
    let (used, functions) = (distinct(used), distinct(functions));
    let bytes = |all: &[ValueId]| -> usize { all.iter().map(|&v| kernel.dtype(v).bytes()).sum() };
    let dear = if bytes(&functions) < bytes(&used) {
        functions
    } else {
        used
    };
    let mut chosen: Vec<(ValueId, ScheduleReason)> = Vec::new();
    chosen.extend(dear.iter().map(|&v| (v, ScheduleReason::ComputedOnce)));
    if operands {
        for &v in frontier.iter().filter(|v| !dear.contains(v)) {
            for load in cone.loads(v, &dear) {
                if !chosen.iter().any(|c| c.0 == load) {
                    chosen.push((load, ScheduleReason::LoadedOnce));
                }
            }
        }
    }
    let place = |v: ValueId| phase.body.iter().position(|s| s.defined_value() == Some(v));
    chosen.sort_by_key(|c| place(c.0));
    chosen
        .into_iter()
        .map(|(v, reason)| (common[&v].0, common[&v].1, reason))
        .collect()
}

/// What values that phases have in common are made of.
struct Cone<'k> {
    ops: FxHashMap<ValueId, &'k Op>,
    /// What it takes to compute each again where the functions below are at hand.
    cost: FxHashMap<ValueId, u32>,
    /// The values that clamps make indices of.
    clamps: FxHashMap<VarId, ValueId>,
    /// Values that differ from iteration to iteration.
    varying: FxHashSet<ValueId>,
}

impl<'k> Cone<'k> {
    fn of(kernel: &'k Kernel, phase: &Phase<'k>, common: &FxHashMap<ValueId, (VarId, ValueId)>) -> Cone<'k> {
        let mut cone = Cone {
            ops: FxHashMap::default(),
            cost: FxHashMap::default(),
            clamps: FxHashMap::default(),
            varying: FxHashSet::default(),
        };
        for s in phase.body {
            match s {
                Stmt::Clamp { var, value } => drop(cone.clamps.insert(*var, *value)),
                Stmt::Let { value, op } if common.contains_key(value) => {
                    let moves = op.index().is_some_and(|e| phase.vars.iter().any(|&v| e.uses(v)));
                    let below = cone.operands(op);
                    if moves || below.iter().any(|v| cone.varying.contains(v)) {
                        cone.varying.insert(*value);
                    }
                    let of = |v: &ValueId| cone.cost.get(v).copied().unwrap_or(0);
                    let cost = match is_function(op) {
                        true => ELEMENT,
                        false => below
                            .iter()
                            .fold(own_cost(kernel, op), |sum, v| sum.saturating_add(of(v))),
                    };
                    cone.cost.insert(*value, cost);
                    cone.ops.insert(*value, op);
                }
                _ => {}
            }
        }
        cone
    }

    /// The values that clamps make the variables of an index of.
    fn behind_clamps(&self, e: &IndexExpr) -> Vec<ValueId> {
        let mut out = Vec::new();
        if !self.clamps.is_empty() {
            e.visit_atoms(&mut |a| {
                if let IndexNode::Var(v) = a {
                    out.extend(self.clamps.get(v));
                }
            });
        }
        out
    }

    fn operands(&self, op: &Op) -> Vec<ValueId> {
        let mut out = op.operands().to_vec();
        out.extend(op.index().into_iter().flat_map(|e| self.behind_clamps(e)));
        out
    }

    /// The values below one, itself included, down to those at which `stop` holds, which are returned.
    fn below(&self, value: ValueId, stop: &dyn Fn(ValueId, &Op) -> bool) -> Vec<ValueId> {
        let (mut out, mut seen, mut work) = (Vec::new(), FxHashSet::default(), vec![value]);
        while let Some(v) = work.pop() {
            if let Some(op) = self.ops.get(&v).filter(|_| self.varying.contains(&v) && seen.insert(v)) {
                match stop(v, op) {
                    true => out.push(v),
                    false => work.extend(self.operands(op)),
                }
            }
        }
        out
    }

    /// The functions that a value is made of, itself included.
    fn functions(&self, value: ValueId) -> Vec<ValueId> {
        self.below(value, &|_, op| is_function(op))
    }

    /// The elements of operands that a value is made of, where `kept` is at hand.
    fn loads(&self, value: ValueId, kept: &[ValueId]) -> Vec<ValueId> {
        let plain = |op: &Op| {
            matches!(
                op,
                Op::Load {
                    memory: Memory::Param(_),
                    mask: None,
                    ..
                }
            )
        };
        let mut found = self.below(value, &|v, op| kept.contains(&v) || plain(op));
        found.retain(|v| !kept.contains(v));
        found
    }
}
