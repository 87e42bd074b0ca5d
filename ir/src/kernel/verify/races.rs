//! Disjointness of parallel iterations: no element of a parameter that one iteration writes is touched by another.
//!
//! Proof: written as a sum over *atoms* of the parallel variable (itself, its quotients and remainders by constants) and a
//! rest, an index determines the atoms if their strides form a mixed radix system above the span of the rest, or if one atom is
//! what a remainder of the index says; and the atoms determine the variable. All accesses to the parameter must agree in the atoms'
//! coefficients. What is not proven is enumerated where small.

use std::rc::Rc;

use rustc_hash::FxHashMap;

use crate::index::{IndexExpr, IndexNode, VarId};
use crate::kernel::verify::masked::without_masked_lanes;
use crate::kernel::verify::prove::{NODES, Tries, nonnegative_within, search};
use crate::kernel::verify::{Example, Place, Report, Rule, Violation};
use crate::kernel::visit::walk;
use crate::kernel::{Access, Bind, Kernel, Memory, Stmt};

/// One access in the text of a kernel.
#[derive(Clone, PartialEq)]
pub(super) struct Touch {
    pub(super) index: IndexExpr,
    /// Variables in scope, outermost first.
    pub(super) vars: Rc<[VarId]>,
    pub(super) writes: bool,
    /// Under an `If` or a mask: it need not happen.
    pub(super) conditional: bool,
}

/// Checks that parallel iterations write apart.
pub(super) fn parallel_writes(kernel: &Kernel, tries: &Tries, report: &mut Report) {
    let [
        Stmt::Loop {
            var,
            bind: bind @ (Bind::Parallel | Bind::Block),
            body,
        },
    ] = &kernel.body[..]
    else {
        return;
    };
    if kernel.extents[var.0 as usize].interval(kernel).hi <= 1 {
        return;
    }
    let kernel = &*without_masked_lanes(kernel);
    for p in 0..kernel.params.len() as u32 {
        if kernel.params[p as usize].access == Access::Read {
            continue;
        }
        let mut touches = Vec::new();
        collect(body, Memory::Param(p), &mut vec![*var], false, &mut touches);
        if !touches.iter().any(|t| t.writes) || separate(kernel, *var, &touches, NODES) {
            continue;
        }
        let (proven, mut example) = enumerate(kernel, tries, *var, &touches);
        if proven {
            continue;
        }
        if *bind == Bind::Block && example.is_some() {
            // Blocks are cut from longer loops: what is under a condition need not happen.
            touches.retain(|t| !t.conditional);
            example = enumerate(kernel, tries, *var, &touches).1;
        }
        let list = match example {
            Some(_) => &mut report.errors,
            None => &mut report.unproven,
        };
        list.push(Violation {
            place: Place(vec![0]),
            rule: Rule::ParallelConflict {
                param: p,
                example: example.unwrap_or_default(),
            },
        });
    }
}

/// The accesses of a block to a memory, in order. `vars` are those in scope.
pub(super) fn collect(body: &[Stmt], memory: Memory, vars: &mut Vec<VarId>, conditional: bool, out: &mut Vec<Touch>) {
    let depth = vars.len();
    let mut scope: Rc<[VarId]> = vars[..].into();
    for s in body {
        let whole: Rc<[VarId]> = match s.own_vars() {
            [] => scope.clone(),
            own => [&scope[..], own].concat().into(),
        };
        out.extend(s.accesses().filter(|a| a.memory == memory).map(|a| Touch {
            index: a.index.clone(),
            vars: whole.clone(),
            writes: a.effect.writes(),
            conditional: conditional || a.is_conditional(),
        }));
        match s {
            Stmt::Clamp { var, .. } => {
                vars.push(*var);
                scope = vars[..].into();
            }
            Stmt::Loop { var, body, .. } => {
                vars.push(*var);
                collect(body, memory, vars, conditional, out);
                vars.pop();
            }
            Stmt::Each { vars: own, body, .. } => {
                vars.extend(own);
                collect(body, memory, vars, conditional, out);
                vars.truncate(vars.len() - own.len());
            }
            s if !s.body().is_empty() => {
                let conditional = conditional || matches!(s, Stmt::If { .. });
                collect(s.body(), memory, vars, conditional, out);
            }
            _ => {}
        }
    }
    vars.truncate(depth);
}

/// The atoms of a variable in an index with their coefficients, and the rest; `None` if the variable occurs otherwise.
fn atoms(index: &IndexExpr, var: VarId) -> Option<(Vec<(IndexExpr, i64)>, IndexExpr)> {
    let (terms, constant) = index.linear();
    let mut found = Vec::new();
    let mut rest = IndexExpr::Const(constant);
    for (t, c) in terms {
        if !t.uses(var) {
            rest = rest + t * IndexExpr::Const(c);
        } else if is_atom(&t, var) {
            found.push((t, c));
        } else {
            return None;
        }
    }
    Some((found, rest))
}

fn is_atom(t: &IndexExpr, var: VarId) -> bool {
    if t.as_var() == Some(var) {
        return true;
    }
    let IndexExpr::Node(n) = t else { return false };
    match &**n {
        IndexNode::FloorDiv(x, k) | IndexNode::Mod(x, k) => k.as_const().is_some_and(|k| k > 0) && is_atom(x, var),
        _ => false,
    }
}

/// True if the values of the atoms give the value of `what`.
fn determined(what: &IndexExpr, atoms: &[(IndexExpr, i64)], kernel: &Kernel) -> bool {
    let range = what.interval(kernel);
    if range.lo == range.hi || atoms.iter().any(|a| a.0 == *what) {
        return true;
    }
    atoms.iter().any(|(a, _)| {
        let IndexExpr::Node(n) = a else { return false };
        let (IndexNode::Mod(x, k) | IndexNode::FloorDiv(x, k)) = &**n else {
            return false;
        };
        let mut divisors = vec![k.clone()];
        // Chained quotients: (v / 4) / 8 is written v / 32.
        if let (IndexExpr::Node(inner), Some(k)) = (x, k.as_const())
            && let IndexNode::FloorDiv(_, j) = &**inner
            && let Some(j) = j.as_const()
        {
            divisors.push(IndexExpr::Const(j));
            divisors.push(IndexExpr::Const(j.saturating_mul(k)));
        }
        divisors.iter().any(|k| {
            let (q, r) = (IndexExpr::floor_div(what, k), IndexExpr::modulo(what, k));
            q.size() > 0 && q != *what && r != *what && atoms.iter().any(|a| a.0 == r) && determined(&q, atoms, kernel)
        })
    })
}

/// True if different values of the parallel variable certainly touch different elements. `nodes` of expressions are looked at
/// for each proof, at most.
pub(super) fn separate(kernel: &Kernel, var: VarId, touches: &[Touch], nodes: usize) -> bool {
    let mut shared: Option<Vec<(IndexExpr, i64)>> = None;
    let mut rests = Vec::new();
    for t in touches {
        match atoms(&t.index, var) {
            Some((found, rest)) => {
                if found.is_empty() || shared.as_ref().is_some_and(|s| *s != found) {
                    return false;
                }
                shared = Some(found);
                rests.push(rest);
            }
            None => return separate_symbolic(kernel, var, touches, nodes),
        }
    }
    let Some(shared) = shared else { return true };
    // The span of the rests, as one interval.
    let (mut lo, mut hi) = (i64::MAX, i64::MIN);
    for r in &rests {
        let i = r.interval(kernel);
        (lo, hi) = (lo.min(i.lo), hi.max(i.hi));
    }
    let mut radix: Vec<(i128, i128)> = shared
        .iter()
        .map(|(t, c)| {
            let i = t.interval(kernel);
            ((*c as i128).abs(), i.hi as i128 - i.lo as i128)
        })
        .collect();
    radix.sort();
    let mut span = hi as i128 - lo as i128;
    let ordered = radix.iter().all(|&(stride, range)| {
        let fits = stride > span;
        span += stride * range;
        fits
    });
    let symbolic = || separate_symbolic(kernel, var, touches, nodes);
    let apart = ordered || interleaved(kernel, &shared, &rests) || by_remainder(kernel, &shared, &rests);
    (apart && determined(&var.into(), &shared, kernel)) || symbolic()
}

/// Whether the remainder of every index by one number says which value the only atom has. With a stride `s` and values `0..n` of the atom
/// that number is `s * n`: what is a multiple of it in the rests may be anything (a row that data chose), if what is not has a span
/// below `s` (an element of the block that the atom chose).
fn by_remainder(kernel: &Kernel, atoms: &[(IndexExpr, i64)], rests: &[IndexExpr]) -> bool {
    let [(atom, stride)] = atoms else { return false };
    let range = atom.interval(kernel);
    let values = i128::from(range.hi) - i128::from(range.lo) + 1;
    let stride = i128::from(*stride).abs();
    let Ok(modulus) = i64::try_from(stride.saturating_mul(values)) else {
        return false;
    };
    if modulus == 0 {
        return false;
    }
    let (mut lo, mut hi) = (i64::MAX, i64::MIN);
    for rest in rests {
        let (terms, constant) = rest.linear();
        let inside = terms.into_iter().filter(|(_, c)| c % modulus != 0);
        let inside = inside.fold(IndexExpr::Const(constant), |e, (t, c)| e + t * IndexExpr::Const(c));
        let span = inside.interval(kernel);
        (lo, hi) = (lo.min(span.lo), hi.max(span.hi));
    }
    i128::from(hi) - i128::from(lo) < stride
}

/// Whether the atoms and the terms of the rests are digits of one mixed radix system, in which every index is then written in one
/// way: the atoms may stand between the others.
fn interleaved(kernel: &Kernel, atoms: &[(IndexExpr, i64)], rests: &[IndexExpr]) -> bool {
    // By stride: the largest digit.
    let mut digits: Vec<(i128, i128)> = Vec::new();
    let mut base = None;
    for rest in rests {
        let (terms, constant) = rest.linear();
        let mut own: Vec<i128> = Vec::new();
        let mut start = i128::from(constant);
        for (t, c) in atoms.iter().chain(&terms) {
            let (range, c) = (t.interval(kernel), i128::from(*c));
            let (lo, hi) = (i128::from(range.lo), i128::from(range.hi));
            let stride = c.abs();
            // Two terms of one stride are no digits.
            if stride == 0 || own.contains(&stride) {
                return false;
            }
            // Digits count from the end of the range that makes the sum smallest.
            start += if c > 0 { c * lo } else { c * hi };
            own.push(stride);
            match digits.iter_mut().find(|d| d.0 == stride) {
                Some(digit) => digit.1 = digit.1.max(hi - lo),
                None => digits.push((stride, hi - lo)),
            }
        }
        if *base.get_or_insert(start) != start {
            return false;
        }
    }
    digits.sort();
    let mut below = 0i128;
    digits.iter().all(|&(stride, largest)| {
        let fits = stride > below;
        below = below.saturating_add(stride.saturating_mul(largest));
        fits
    })
}

/// The terms of an index that no variable occurs in, and the others with the constant.
pub(super) fn parts(index: &IndexExpr) -> (IndexExpr, IndexExpr) {
    let (terms, constant) = index.linear();
    let mut parts = (IndexExpr::ZERO, IndexExpr::Const(constant));
    for (term, k) in terms {
        let part = if term.has_vars() { &mut parts.1 } else { &mut parts.0 };
        *part = part.clone() + term * IndexExpr::Const(k);
    }
    parts
}

/// The stride of a variable in an index, and the rest, which may mention the variable as well: where a block is cut short it does.
fn stride_of(index: &IndexExpr, var: VarId) -> Option<(IndexExpr, IndexExpr)> {
    index.affine_in(var).or_else(|| {
        let (terms, _) = index.linear();
        let (_, k) = terms.iter().find(|(t, _)| t.as_var() == Some(var))?;
        let stride = IndexExpr::Const(*k);
        Some((stride.clone(), index.clone() - stride * var.into()))
    })
}

/// `index = stride * var + rest` with a stride, maybe symbolic, that the rest stays below. What does not vary at all may be any
/// offset, if all accesses share it.
fn separate_symbolic(kernel: &Kernel, var: VarId, touches: &[Touch], nodes: usize) -> bool {
    let split: Option<Vec<(IndexExpr, IndexExpr)>> = touches.iter().map(|t| stride_of(&t.index, var)).collect();
    let Some(split) = split else { return false };
    let stride = split[0].0.clone();
    if stride.interval(kernel).lo < 0 || split.iter().any(|s| s.0 != stride) {
        return false;
    }
    // What is loaded is often stored as well, and without symbols nothing is fixed: each rest is looked at once.
    let mut known: FxHashMap<IndexExpr, bool> = FxHashMap::default();
    let mut below = |moving: &IndexExpr| {
        if let Some(&is_below) = known.get(moving) {
            return is_below;
        }
        let room = stride.clone() - moving.clone() - IndexExpr::ONE;
        let is_below = nonnegative_within(moving, kernel, nodes) && nonnegative_within(&room, kernel, nodes);
        known.insert(moving.clone(), is_below);
        is_below
    };
    let fixed = parts(&split[0].1).0;
    split.iter().all(|s| below(&s.1))
        || split.iter().all(|s| {
            let (base, moving) = parts(&s.1);
            base == fixed && below(&moving)
        })
}

/// Visits iterations where there are few, and looks for two that meet.
fn enumerate(kernel: &Kernel, tries: &Tries, var: VarId, touches: &[Touch]) -> (bool, Option<Example>) {
    // Element to (iteration, one of its accesses writes, another iteration was seen).
    let mut owners: FxHashMap<(Vec<i64>, i64), (i64, bool)> = FxHashMap::default();
    let mut complete = true;
    for writing in [true, false] {
        for t in touches.iter().filter(|t| t.writes == writing) {
            // Values from data are not known to occur: clamped indices prove nothing and refute nothing.
            let from_data = t.vars.iter().any(|v| is_clamped(&kernel.body, *v));
            if from_data && t.vars.iter().any(|v| is_clamped(&kernel.body, *v) && t.index.uses(*v)) {
                complete = false;
                continue;
            }
            let (seen_all, example) = search(kernel, tries, &t.vars, &mut |symbols, vars| {
                let at = t.index.eval(symbols, vars)?;
                let me = vars(var)?;
                let owner = owners.entry((symbols.to_vec(), at)).or_insert((me, t.writes));
                Some(owner.0 == me || (!owner.1 && !t.writes))
            });
            if example.is_some() {
                return (false, example);
            }
            complete &= seen_all;
        }
    }
    (complete, None)
}

/// Variables whose values come from data.
pub(super) fn clamped(body: &[Stmt]) -> Vec<VarId> {
    let mut out = Vec::new();
    for s in body {
        match s {
            Stmt::Clamp { var, .. } => out.push(*var),
            s => out.extend(clamped(s.body())),
        }
    }
    out
}

pub(super) fn is_clamped(body: &[Stmt], var: VarId) -> bool {
    walk(body).any(|s| matches!(s, Stmt::Clamp { var: v, .. } if *v == var))
}
