//! Moves what a loop does not change out of it.
//!
//! The code generator hoists arithmetic by itself but not loads, and so not what depends on them: a scalar operand, its
//! logarithm, a row's bias. A load moves only if it is proven inside its buffer whatever the loop's extent is, because the
//! loop may not run at all, or if the loop certainly runs; and only from parameters that the kernel never writes. A mask proves
//! nothing of a loop that does not run: it may be true where the buffer is empty.

use tlc_ir::index::{Bounds, IndexExpr, IndexNode};
use tlc_ir::kernel::{Access, Bind, Kernel, Memory, Op, Stmt, ValueId};

use crate::tree::defined_vars;

/// The most loads that leave a loop: more than the registers of any processor.
const MOST_LOADS: usize = 32;

/// Hoists invariant values, innermost loops first, up to but never out of the parallel loop.
pub fn hoist(kernel: &mut Kernel) {
    let body = std::mem::take(&mut kernel.body);
    let mut of_loop = Marks {
        values: vec![false; kernel.values.len()],
        vars: vec![false; kernel.extents.len()],
    };
    kernel.body = walk(kernel, body, &mut of_loop);
}

/// What changes from iteration to iteration of the loop that is looked at; nothing between loops.
struct Marks {
    /// By value: whether it stays in the loop.
    values: Vec<bool>,
    /// By variable: whether it is that of the loop or of one inside.
    vars: Vec<bool>,
}

fn walk(kernel: &Kernel, body: Vec<Stmt>, of_loop: &mut Marks) -> Vec<Stmt> {
    let mut out = Vec::with_capacity(body.len());
    for s in body {
        match s {
            Stmt::Loop { var, bind, body } => {
                // A copy is one piece.
                if matches!(bind, Bind::Copy | Bind::Stream) {
                    out.push(Stmt::Loop { var, bind, body });
                    continue;
                }
                let body = walk(kernel, body, of_loop);
                if matches!(bind, Bind::Parallel | Bind::Block | Bind::Warp | Bind::Thread) {
                    out.push(Stmt::Loop { var, bind, body });
                    continue;
                }
                let runs = kernel.extent(var).is_some_and(|n| n.interval(kernel).lo > 0);
                let mut vars = defined_vars(&body);
                vars.push(var);
                vars.iter().for_each(|v| of_loop.vars[v.0 as usize] = true);
                // What there are no registers for would be loaded from the stack in place of where it is.
                let load = |s: &&Stmt| match s {
                    Stmt::Let { op, .. } => op.access().is_some() && invariant(kernel, op, runs, of_loop),
                    _ => false,
                };
                let loads = body.len() <= MOST_LOADS || body.iter().filter(load).count() <= MOST_LOADS;
                let mut inside: Vec<ValueId> = Vec::with_capacity(body.len());
                let mut kept = Vec::with_capacity(body.len());
                for s in body {
                    match s {
                        Stmt::Let { value, op }
                            if (loads || !matches!(op, Op::Load { .. })) && invariant(kernel, &op, runs, of_loop) =>
                        {
                            out.push(Stmt::Let { value, op });
                        }
                        s => {
                            let first = inside.len();
                            values_in(&s, &mut inside);
                            inside[first..].iter().for_each(|v| of_loop.values[v.0 as usize] = true);
                            kept.push(s);
                        }
                    }
                }
                vars.iter().for_each(|v| of_loop.vars[v.0 as usize] = false);
                inside.iter().for_each(|v| of_loop.values[v.0 as usize] = false);
                out.push(Stmt::Loop { var, bind, body: kept });
            }
            mut s => {
                if let Some(body) = s.body_mut() {
                    *body = walk(kernel, std::mem::take(body), of_loop);
                }
                out.push(s);
            }
        }
    }
    out
}

/// Adds the values that a statement and those inside it define.
fn values_in(s: &Stmt, all: &mut Vec<ValueId>) {
    all.extend(s.defined_value());
    s.body().iter().for_each(|s| values_in(s, all));
}

fn uses_any(e: &IndexExpr, vars: &[bool]) -> bool {
    let mut found = false;
    e.visit_atoms(&mut |a| found |= matches!(a, IndexNode::Var(v) if vars[v.0 as usize]));
    found
}

fn invariant(kernel: &Kernel, op: &Op, runs: bool, of_loop: &Marks) -> bool {
    let changes = |v: &ValueId| of_loop.values[v.0 as usize];
    if op.operands().iter().any(changes) || op.index().is_some_and(|e| uses_any(e, &of_loop.vars)) {
        return false;
    }
    op.access().is_none_or(|a| {
        let Memory::Param(p) = a.memory else { return false };
        let param = &kernel.params[p as usize];
        let proven = || a.index.proves_nonnegative(kernel) && a.index.proves_less(&param.len, kernel);
        param.access == Access::Read && (a.mask.is_some() && runs || proven())
    })
}
