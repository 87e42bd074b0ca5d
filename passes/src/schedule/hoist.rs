//! Moves what a loop does not change out of it.
//!
//! The code generator hoists arithmetic by itself but not loads, and so not what depends on them: a scalar operand, its
//! logarithm, a row's bias. A load moves only if it is proven inside its buffer whatever the loop's extent is, because the
//! loop may not run at all, or if the loop certainly runs; and only from parameters that the kernel never writes. A mask proves
//! nothing of a loop that does not run: it may be true where the buffer is empty.

use rustc_hash::FxHashSet;
use tlc_ir::index::{Bounds, IndexExpr, IndexNode, VarId};
use tlc_ir::kernel::{Access, Bind, Kernel, Memory, Op, Stmt, ValueId};

use super::tree::{defined_vars, for_each_operand};

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
                if matches!(bind, Bind::Parallel | Bind::Block | Bind::Thread) {
                    out.push(Stmt::Loop { var, bind, body });
                    continue;
                }
                let runs = kernel.extent(var).is_some_and(|n| n.interval(kernel).lo > 0);
                let mut vars: FxHashSet<VarId> = defined_vars(&body).into_iter().collect();
                vars.insert(var);
                let mut inside = FxHashSet::default();
                let mut kept = Vec::with_capacity(body.len());
                for s in body {
                    match s {
                        Stmt::Let { value, op } if invariant(kernel, &op, runs, &vars, &inside) => {
                            out.push(Stmt::Let { value, op });
                        }
                        s => {
                            defined_values(&s, &mut inside);
                            kept.push(s);
                        }
                    }
                }
                out.push(Stmt::Loop { var, bind, body: kept });
            }
            Stmt::If { cond, body } => out.push(Stmt::If {
                cond,
                body: walk(kernel, body),
            }),
            s => out.push(s),
        }
    }
    out
}

fn defined_values(s: &Stmt, out: &mut FxHashSet<ValueId>) {
    match s {
        Stmt::Let { value, .. } => drop(out.insert(*value)),
        Stmt::Loop { body, .. } | Stmt::If { body, .. } => body.iter().for_each(|s| defined_values(s, out)),
        _ => {}
    }
}

fn uses_any(e: &IndexExpr, vars: &FxHashSet<VarId>) -> bool {
    let mut found = false;
    e.visit_atoms(&mut |a| found |= matches!(a, IndexNode::Var(v) if vars.contains(v)));
    found
}

fn invariant(kernel: &Kernel, op: &Op, runs: bool, vars: &FxHashSet<VarId>, inside: &FxHashSet<ValueId>) -> bool {
    let mut free = true;
    let mut copy = op.clone();
    for_each_operand(&mut copy, &mut |v| free &= !inside.contains(v));
    free && match op {
        Op::Index(e, _) => !uses_any(e, vars),
        Op::Load {
            memory: Memory::Param(p),
            index,
            mask,
        } => {
            let param = &kernel.params[*p as usize];
            let proven = || index.proves_nonnegative(kernel) && index.proves_less(&param.len, kernel);
            param.access == Access::Read && !uses_any(index, vars) && (mask.is_some() && runs || proven())
        }
        Op::Load { .. } => false,
        Op::Const(_) | Op::Map(..) | Op::Convert(..) | Op::Bitcast(..) => true,
    }
}
