//! Moving through and rewriting statement trees.

use rustc_hash::FxHashMap;
use tlc_ir::index::{IndexExpr, IndexNode, VarId};
use tlc_ir::kernel::{Kernel, Op, Stmt, ValueId};

/// Calls `f` on every index expression of the statements.
pub fn for_each_index(body: &mut [Stmt], f: &mut dyn FnMut(&mut IndexExpr)) {
    for s in body {
        match s {
            Stmt::Let {
                op: Op::Index(e, _), ..
            }
            | Stmt::Let {
                op: Op::Load { index: e, .. },
                ..
            } => f(e),
            Stmt::Store { index, .. } => f(index),
            Stmt::Accumulate { state, .. } => state.iter_mut().for_each(|(_, e)| f(e)),
            Stmt::Loop { body, .. } | Stmt::If { body, .. } => for_each_index(body, f),
            Stmt::Let { .. } | Stmt::Clamp { .. } | Stmt::Barrier => {}
        }
    }
}

/// Replaces loop variables in the statements' index expressions (not in the extents of loops inside).
pub fn substitute(body: &mut [Stmt], f: &mut dyn FnMut(VarId) -> Option<IndexExpr>) {
    for_each_index(body, &mut |e| {
        if e.has_vars() {
            *e = e.replace_vars(f);
        }
    });
}

/// The variables that loops and clamps inside the statements define.
pub fn defined_vars(body: &[Stmt]) -> Vec<VarId> {
    let mut out = Vec::new();
    for s in body {
        match s {
            Stmt::Loop { var, body, .. } => {
                out.push(*var);
                out.extend(defined_vars(body));
            }
            Stmt::If { body, .. } => out.extend(defined_vars(body)),
            Stmt::Clamp { var, .. } => out.push(*var),
            _ => {}
        }
    }
    out
}

/// Replaces loop variables in the statements and in the extents of the loops inside, then simplifies under the kernel's
/// bounds.
pub fn substitute_in(kernel: &mut Kernel, body: &mut [Stmt], f: &mut dyn FnMut(VarId) -> Option<IndexExpr>) {
    for v in defined_vars(body) {
        let extent = kernel.extents[v.0 as usize].replace_vars(f);
        kernel.extents[v.0 as usize] = extent.simplify(kernel);
    }
    let bounds: &Kernel = kernel;
    for_each_index(body, &mut |e| {
        if e.has_vars() {
            *e = e.replace_vars(f).simplify(bounds);
        }
    });
}

/// A copy of the statements with values and loop variables of its own.
pub fn clone_fresh(kernel: &mut Kernel, body: &[Stmt]) -> Vec<Stmt> {
    let mut vars: FxHashMap<VarId, IndexExpr> = FxHashMap::default();
    let mut fresh: FxHashMap<VarId, VarId> = FxHashMap::default();
    for v in defined_vars(body) {
        let extent = kernel.extents[v.0 as usize].replace_vars(&mut |x| vars.get(&x).cloned());
        let new = kernel.new_var(extent);
        vars.insert(v, new.into());
        fresh.insert(v, new);
    }
    let mut values = FxHashMap::default();
    let mut copy = copy_stmts(kernel, body, &fresh, &mut values);
    substitute(&mut copy, &mut |v| vars.get(&v).cloned());
    copy
}

fn copy_stmts(
    kernel: &mut Kernel,
    body: &[Stmt],
    vars: &FxHashMap<VarId, VarId>,
    values: &mut FxHashMap<ValueId, ValueId>,
) -> Vec<Stmt> {
    let mut out = Vec::with_capacity(body.len());
    for s in body {
        let of = |values: &FxHashMap<ValueId, ValueId>, v: &ValueId| *values.get(v).unwrap_or(v);
        out.push(match s {
            Stmt::Let { value, op } => {
                let mut op = op.clone();
                for_each_operand(&mut op, &mut |v| *v = of(values, v));
                let new = kernel.new_value(kernel.dtype(*value));
                values.insert(*value, new);
                Stmt::Let { value: new, op }
            }
            Stmt::Store {
                memory,
                index,
                value,
                mask,
            } => Stmt::Store {
                memory: *memory,
                index: index.clone(),
                value: of(values, value),
                mask: mask.as_ref().map(|m| of(values, m)),
            },
            Stmt::Loop { var, bind, body } => Stmt::Loop {
                var: vars[var],
                bind: *bind,
                body: copy_stmts(kernel, body, vars, values),
            },
            Stmt::If { cond, body } => Stmt::If {
                cond: of(values, cond),
                body: copy_stmts(kernel, body, vars, values),
            },
            Stmt::Clamp { var, value } => Stmt::Clamp {
                var: vars[var],
                value: of(values, value),
            },
            Stmt::Accumulate {
                monoid,
                state,
                values: operands,
            } => Stmt::Accumulate {
                monoid: *monoid,
                state: state.clone(),
                values: operands.iter().map(|v| of(values, v)).collect(),
            },
            Stmt::Barrier => Stmt::Barrier,
        });
    }
    out
}

/// Calls `f` on every value that an operation uses.
pub fn for_each_operand(op: &mut Op, f: &mut dyn FnMut(&mut ValueId)) {
    match op {
        Op::Const(_) | Op::Index(..) => {}
        Op::Load { mask, .. } => mask.iter_mut().for_each(f),
        Op::Map(_, args) => args.iter_mut().for_each(f),
        Op::Convert(_, v) | Op::Bitcast(_, v) => f(v),
    }
}

/// Replaces the loop over `var` by the statements that `f` makes of its binding and body. Answers whether it was found.
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
            Stmt::Loop { body: inner, .. } | Stmt::If { body: inner, .. } => {
                let found = replace_loop(inner, var, f);
                if found {
                    return true;
                }
            }
            _ => {}
        }
    }
    false
}

/// The body of the loop over `var`.
pub fn loop_body(body: &[Stmt], var: VarId) -> Option<&Vec<Stmt>> {
    body.iter().find_map(|s| match s {
        Stmt::Loop { var: v, body, .. } if *v == var => Some(body),
        Stmt::Loop { body, .. } | Stmt::If { body, .. } => loop_body(body, var),
        _ => None,
    })
}

/// Divisions and modulos in all index expressions of the statements, of what changes from iteration to iteration: those of
/// sizes are computed once.
pub fn count_divisions(body: &[Stmt]) -> usize {
    fn changes(e: &IndexExpr) -> bool {
        let mut found = false;
        e.visit_atoms(&mut |a| found |= matches!(a, IndexNode::Var(_)));
        found
    }
    fn of(e: &IndexExpr) -> usize {
        let IndexExpr::Node(n) = e else { return 0 };
        match &**n {
            IndexNode::Sym(_) | IndexNode::Var(_) => 0,
            IndexNode::Sum { terms, .. } => terms.iter().map(|t| of(&t.0)).sum(),
            IndexNode::Product(f) => f.iter().map(of).sum(),
            IndexNode::FloorDiv(a, b) | IndexNode::Mod(a, b) => usize::from(changes(e)) + of(a) + of(b),
            IndexNode::Min(a, b) | IndexNode::Max(a, b) => of(a) + of(b),
        }
    }
    let mut total = 0;
    for s in body {
        total += match s {
            Stmt::Let {
                op: Op::Index(e, _), ..
            }
            | Stmt::Let {
                op: Op::Load { index: e, .. },
                ..
            } => of(e),
            Stmt::Store { index, .. } => of(index),
            Stmt::Accumulate { state, .. } => state.iter().map(|(_, e)| of(e)).sum(),
            Stmt::Loop { body, .. } | Stmt::If { body, .. } => count_divisions(body),
            _ => 0,
        };
    }
    total
}
