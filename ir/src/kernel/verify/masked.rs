//! Lanes that masks leave out: what a loop in lanes, or an unrolled one, touches if each of its accesses says which iterations there are.
//!
//! A row that ends within a vector has a mask `lane < n` on everything that its last vector accesses. To the rows around it, that
//! vector is a loop of `n` iterations.

use std::borrow::Cow;

use rustc_hash::FxHashMap;

use crate::dtype::DType;
use crate::index::{IndexExpr, VarId};
use crate::kernel::visit::walk;
use crate::kernel::{Access, Bind, Kernel, Memory, Op, Stmt, ValueId};
use crate::scalar::ScalarOp;

/// The kernel with loops in lanes as long as the masks of their accesses say, of parameters that the kernel writes. Only what is
/// touched may be asked of it: the lanes that are gone compute values that nobody sees.
pub(super) fn without_masked_lanes(kernel: &Kernel) -> Cow<'_, Kernel> {
    let in_lanes = |s: &&Stmt| {
        matches!(
            s,
            Stmt::Loop {
                bind: Bind::Lanes | Bind::Unroll,
                ..
            }
        )
    };
    if !walk(&kernel.body).any(|s| in_lanes(&s) && has_masked_store(s)) {
        return Cow::Borrowed(kernel);
    }
    let known: FxHashMap<ValueId, &Op> = (kernel.statements())
        .filter_map(|s| match s {
            Stmt::Let { value, op } => Some((*value, op)),
            _ => None,
        })
        .collect();
    let mut shorter: Vec<(VarId, IndexExpr)> = Vec::new();
    for s in walk(&kernel.body).filter(in_lanes) {
        let Stmt::Loop { var, body, .. } = s else { continue };
        let mut ends = walk(body)
            .flat_map(|s| s.accesses())
            .filter(|a| matches!(a.memory, Memory::Param(p) if kernel.params[p as usize].access != Access::Read))
            .map(|a| a.mask.and_then(|m| end(kernel, &known, m, *var)));
        if let Some(Some(first)) = ends.next()
            && ends.all(|end| end.as_ref() == Some(&first))
        {
            shorter.push((*var, first));
        }
    }
    let mut out = kernel.clone();
    for (var, end) in shorter {
        out.extents[var.0 as usize] = end;
    }
    Cow::Owned(out)
}

fn has_masked_store(s: &Stmt) -> bool {
    walk(s.body()).any(|s| matches!(s, Stmt::Store { mask: Some(_), .. }))
}

/// A number that the variable is below wherever a mask is true, and that is no more than its extent.
fn end(kernel: &Kernel, known: &FxHashMap<ValueId, &Op>, mask: ValueId, var: VarId) -> Option<IndexExpr> {
    let number = |v: &ValueId| match known.get(v) {
        Some(Op::Index(e, DType::I32)) => {
            let range = e.interval(kernel);
            let whole = range.lo >= i64::from(i32::MIN) && range.hi <= i64::from(i32::MAX);
            whole.then_some(e)
        }
        Some(Op::Index(e, DType::I64)) => Some(e),
        _ => None,
    };
    match known.get(&mask)? {
        Op::Map(ScalarOp::And, args) => args.iter().find_map(|a| end(kernel, known, *a, var)),
        Op::Map(ScalarOp::Lt, args) => {
            let (at, end) = (number(&args[0])?, number(&args[1])?);
            let least = kernel.extents[var.0 as usize].interval(kernel).lo;
            let inside = end.interval(kernel);
            (at.as_var() == Some(var) && !end.uses(var) && inside.lo >= 0 && inside.hi <= least).then(|| end.clone())
        }
        _ => None,
    }
}
