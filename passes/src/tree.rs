//! Moving through and rewriting statement trees.

use std::collections::hash_map::Entry;

use rustc_hash::FxHashMap;
use tlc_ir::index::{IndexExpr, IndexNode, VarId};
use tlc_ir::kernel::visit::{walk, walk_mut};
use tlc_ir::kernel::{Kernel, Memory, Stmt, ValueId};

/// The statement that replaces an element by a value, where the mask is true if there is one.
pub fn store(memory: Memory, index: IndexExpr, value: ValueId, mask: Option<ValueId>) -> Stmt {
    Stmt::Store {
        memory,
        index,
        value,
        mask,
    }
}

/// Replaces loop variables in the statements' index expressions (not in the extents of loops inside).
pub fn substitute(body: &mut [Stmt], f: &mut dyn FnMut(VarId) -> Option<IndexExpr>) {
    walk_mut(body, &mut |s| {
        for e in s.indices_mut().filter(|e| e.has_vars()) {
            *e = e.replace_vars(f);
        }
    });
}

/// The variables that loops and clamps inside the statements define.
pub fn defined_vars(body: &[Stmt]) -> Vec<VarId> {
    walk(body).flat_map(Stmt::defined_vars).copied().collect()
}

/// Replaces loop variables in the statements and in the extents of the loops inside, then simplifies under the kernel's
/// bounds.
pub fn substitute_in(kernel: &mut Kernel, body: &mut [Stmt], f: &mut dyn FnMut(VarId) -> Option<IndexExpr>) {
    substitute_in_extents(kernel, &defined_vars(body), f);
    let bounds: &Kernel = kernel;
    // What is loaded is often stored as well.
    let mut known: FxHashMap<IndexExpr, IndexExpr> = FxHashMap::default();
    walk_mut(body, &mut |s| {
        for e in s.indices_mut().filter(|e| e.has_vars()) {
            *e = match known.entry(e.clone()) {
                Entry::Occupied(new) => new.get().clone(),
                Entry::Vacant(new) => new.insert(e.replace_vars(f).simplify(bounds)).clone(),
            };
        }
    });
}

/// Replaces loop variables in the extents of loops, then simplifies these under the kernel's bounds.
pub fn substitute_in_extents(kernel: &mut Kernel, of: &[VarId], f: &mut dyn FnMut(VarId) -> Option<IndexExpr>) {
    for v in of {
        let extent = kernel.extents[v.0 as usize].replace_vars(f);
        kernel.extents[v.0 as usize] = extent.simplify(kernel);
    }
}

/// A copy of the statements with values and loop variables of its own.
pub fn clone_fresh(kernel: &mut Kernel, body: &[Stmt]) -> Vec<Stmt> {
    let mut vars: FxHashMap<VarId, VarId> = FxHashMap::default();
    let renamed = |vars: &FxHashMap<VarId, VarId>, v: VarId| vars.get(&v).map(|&new| new.into());
    for v in defined_vars(body) {
        let extent = kernel.extents[v.0 as usize].replace_vars(&mut |x| renamed(&vars, x));
        vars.insert(v, kernel.new_var(extent));
    }
    let mut values: FxHashMap<ValueId, ValueId> = FxHashMap::default();
    let mut copy = body.to_vec();
    walk_mut(&mut copy, &mut |s| {
        for v in s.operands_mut() {
            *v = *values.get(v).unwrap_or(v);
        }
        if let Some(v) = s.defined_value_mut() {
            let new = kernel.new_value(kernel.dtype(*v));
            values.insert(*v, new);
            *v = new;
        }
        for v in s.defined_vars_mut() {
            *v = vars[&*v];
        }
    });
    substitute(&mut copy, &mut |v| renamed(&vars, v));
    copy
}

/// The statements without definitions that no other of them uses.
pub fn without_unused(body: Vec<Stmt>) -> Vec<Stmt> {
    Used::default().of(body, false)
}

/// As [`without_unused`], in loops and branches too.
pub fn without_unused_inside(body: Vec<Stmt>) -> Vec<Stmt> {
    Used::default().of(body, true)
}

/// What statements behind use, by number.
#[derive(Default)]
struct Used {
    values: Vec<bool>,
    vars: Vec<bool>,
}

impl Used {
    fn of(&mut self, body: Vec<Stmt>, inside: bool) -> Vec<Stmt> {
        let mut out = Vec::with_capacity(body.len());
        for mut s in body.into_iter().rev() {
            let used = match &s {
                Stmt::Clamp { var, .. } => is_marked(&self.vars, var.0),
                s => s.defined_value().is_none_or(|v| is_marked(&self.values, v.0)),
            };
            if !used {
                continue;
            }
            match s.body_mut() {
                // What is defined in there is used in there alone.
                Some(body) if inside => {
                    *body = self.of(std::mem::take(body), inside);
                    self.note(&s);
                }
                _ => walk(std::slice::from_ref(&s)).for_each(|s| self.note(s)),
            }
            out.push(s);
        }
        out.reverse();
        out
    }

    fn note(&mut self, s: &Stmt) {
        s.operands().for_each(|v| mark(&mut self.values, v.0));
        for e in s.indices() {
            e.visit_atoms(&mut |a| {
                if let IndexNode::Var(v) = a {
                    mark(&mut self.vars, v.0);
                }
            });
        }
    }
}

fn is_marked(marks: &[bool], number: u32) -> bool {
    marks.get(number as usize) == Some(&true)
}

fn mark(marks: &mut Vec<bool>, number: u32) {
    let number = number as usize;
    if marks.len() <= number {
        marks.resize(number + 1, false);
    }
    marks[number] = true;
}

/// Replaces the loop over `var` by the statements that `f` makes of its binding and body. Returns whether it was found.
pub fn replace_loop(
    body: &mut Vec<Stmt>,
    var: VarId,
    f: &mut dyn FnMut(tlc_ir::kernel::Bind, Vec<Stmt>) -> Vec<Stmt>,
) -> bool {
    for i in 0..body.len() {
        match &mut body[i] {
            Stmt::Loop {
                var: v,
                bind,
                body: inner,
            } if *v == var => {
                let new = f(*bind, std::mem::take(inner));
                body.splice(i..=i, new);
                return true;
            }
            s => {
                if s.body_mut().is_some_and(|inner| replace_loop(inner, var, f)) {
                    return true;
                }
            }
        }
    }
    false
}

/// The body of the loop over `var`.
pub fn loop_body(body: &[Stmt], var: VarId) -> Option<&Vec<Stmt>> {
    body.iter().find_map(|s| match s {
        Stmt::Loop { var: v, body, .. } if *v == var => Some(body),
        s => match s.body() {
            [] => None,
            inside => loop_body(inside, var),
        },
    })
}

/// Divisions and modulos in all index expressions of the statements, of what changes from iteration to iteration: those of
/// sizes are computed once.
pub fn count_divisions(body: &[Stmt]) -> usize {
    walk(body).flat_map(|s| s.indices()).map(divisions_of).sum()
}

/// As [`count_divisions`], of one expression.
pub fn divisions_of(e: &IndexExpr) -> usize {
    let of = divisions_of;
    let IndexExpr::Node(n) = e else { return 0 };
    match &**n {
        IndexNode::Sym(_) | IndexNode::Var(_) => 0,
        IndexNode::Sum { terms, .. } => terms.iter().map(|t| of(&t.0)).sum(),
        IndexNode::Product(f) => f.iter().map(of).sum(),
        IndexNode::FloorDiv(a, b) | IndexNode::Mod(a, b) => usize::from(e.has_vars()) + of(a) + of(b),
        IndexNode::Min(a, b) | IndexNode::Max(a, b) => of(a) + of(b),
    }
}
