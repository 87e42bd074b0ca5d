//! Moves what a loop does not change out of it.
//!
//! The code generator hoists arithmetic by itself but not loads, and so not what depends on them: a scalar operand, its
//! logarithm, a row's bias. A load moves only if it is proven inside its buffer whatever the loop's extent is, because the
//! loop may not run at all, or if the loop certainly runs; and only from parameters that the kernel never writes. A mask proves
//! nothing of a loop that does not run: it may be true where the buffer is empty.

use rustc_hash::FxHashSet;
use tlc_ir::index::{Bounds, IndexExpr, IndexNode, VarId};
use tlc_ir::kernel::{Access, Bind, Kernel, Memory, Op, Stmt, ValueId, visit};

use crate::tree::defined_vars;

/// The most loads that leave a loop: more than the registers of any processor.
const MOST_LOADS: usize = 32;

/// Hoists invariant values, innermost loops first, up to but never out of the parallel loop.
pub fn hoist(kernel: &mut Kernel) {
    let body = std::mem::take(&mut kernel.body);
    kernel.body = walk(kernel, body);
}

fn walk(kernel: &Kernel, body: Vec<Stmt>) -> Vec<Stmt> {
    let mut out = Vec::with_capacity(body.len());
    for s in body {
        match s {
            Stmt::Loop { var, bind, body } => {
                // A copy is one piece.
                if matches!(bind, Bind::Copy | Bind::Stream) {
                    out.push(Stmt::Loop { var, bind, body });
                    continue;
                }
                let body = walk(kernel, body);
                if matches!(bind, Bind::Parallel | Bind::Block | Bind::Warp | Bind::Thread) {
                    out.push(Stmt::Loop { var, bind, body });
                    continue;
                }
                let runs = kernel.extent(var).is_some_and(|n| n.interval(kernel).lo > 0);
                let mut vars: FxHashSet<VarId> = defined_vars(&body).into_iter().collect();
                vars.insert(var);
                // What there are no registers for would be loaded from the stack in place of where it is.
                let none = FxHashSet::default();
                let load = |s: &&Stmt| match s {
                    Stmt::Let { op, .. } => op.access().is_some() && invariant(kernel, op, runs, &vars, &none),
                    _ => false,
                };
                let loads = body.len() <= MOST_LOADS || body.iter().filter(load).count() <= MOST_LOADS;
                let mut inside = FxHashSet::default();
                let mut kept = Vec::with_capacity(body.len());
                for s in body {
                    match s {
                        Stmt::Let { value, op }
                            if (loads || !matches!(op, Op::Load { .. }))
                                && invariant(kernel, &op, runs, &vars, &inside) =>
                        {
                            out.push(Stmt::Let { value, op });
                        }
                        s => {
                            inside.extend(visit::walk(std::slice::from_ref(&s)).filter_map(Stmt::defined_value));
                            kept.push(s);
                        }
                    }
                }
                out.push(Stmt::Loop { var, bind, body: kept });
            }
            mut s => {
                if let Some(body) = s.body_mut() {
                    *body = walk(kernel, std::mem::take(body));
                }
                out.push(s);
            }
        }
    }
    out
}

fn uses_any(e: &IndexExpr, vars: &FxHashSet<VarId>) -> bool {
    let mut found = false;
    e.visit_atoms(&mut |a| found |= matches!(a, IndexNode::Var(v) if vars.contains(v)));
    found
}

fn invariant(kernel: &Kernel, op: &Op, runs: bool, vars: &FxHashSet<VarId>, inside: &FxHashSet<ValueId>) -> bool {
    if op.operands().iter().any(|v| inside.contains(v)) || op.index().is_some_and(|e| uses_any(e, vars)) {
        return false;
    }
    op.access().is_none_or(|a| {
        let Memory::Param(p) = a.memory else { return false };
        let param = &kernel.params[p as usize];
        let proven = || a.index.proves_nonnegative(kernel) && a.index.proves_less(&param.len, kernel);
        param.access == Access::Read && (a.mask.is_some() && runs || proven())
    })
}
