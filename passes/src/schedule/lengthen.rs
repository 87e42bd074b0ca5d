//! Sums of products made longer by zeros, so that matrix instructions find whole blocks of steps; and tiles of them made wider, so that they find whole
//! columns.

use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::visit::Effect;
use tlc_ir::kernel::{Bind, Kernel, Memory, Stmt};

use super::contract::{is_matrix, stored_factors};
use super::directives::{loop_bind, nested, rewrite};
use super::pack::{cone, masked};
use super::tile_sum::no_longer;
use crate::directive::DirectiveRefusal;

/// Gives the innermost of three loops so many iterations; returns no loop.
pub(super) fn lengthen(kernel: &mut Kernel, vars: [VarId; 3], length: i64) -> Result<Vec<VarId>, DirectiveRefusal> {
    let [outer, inner, sum] = vars;
    nested(kernel, outer, inner)?;
    if loop_bind(&kernel.body, sum) != Some(Bind::Serial) {
        return Err(DirectiveRefusal::Recurrence(sum));
    }
    no_longer(kernel, sum, length)?;
    let (factors, _) = stored_factors(kernel, vars)?;
    let body = nested(kernel, inner, sum)?;
    // Elements that each iteration has of its own lie side by side, where longer rows have no room.
    let own = |s: &Stmt| s.accesses().any(|a| a.effect.writes() && a.index.uses(sum));
    if body.iter().any(own) {
        return Err(DirectiveRefusal::NotASum(sum));
    }
    let extent = kernel.extents[sum.0 as usize].clone();
    let cones = factors.map(|v| cone(body, v).0);
    let (mut loaded, mut rest): (Vec<Stmt>, Vec<Stmt>) = (Vec::new(), Vec::new());
    for s in body {
        match cones.iter().any(|c| c.contains(s)) {
            true => loaded.push(s.clone()),
            false => rest.push(s.clone()),
        }
    }
    let padded = masked(kernel, &mut loaded, &[(sum.into(), extent)], factors);
    for v in rest.iter_mut().flat_map(Stmt::operands_mut) {
        if let Some(i) = factors.iter().position(|f| f == v) {
            *v = padded[i];
        }
    }
    kernel.extents[sum.0 as usize] = IndexExpr::Const(length);
    loaded.append(&mut rest);
    put_into(kernel, sum, loaded);
    Ok(Vec::new())
}

/// Has a loop run other statements.
fn put_into(kernel: &mut Kernel, var: VarId, mut statements: Vec<Stmt>) {
    rewrite(kernel, var, &mut |_, bind, _| {
        let body = std::mem::take(&mut statements);
        vec![Stmt::Loop { var, bind, body }]
    });
}

/// Gives the middle one of three loops that add to a tile so many iterations, in which its own factor is zero; returns no loop.
pub(super) fn fill_columns(
    kernel: &mut Kernel,
    vars: [VarId; 3],
    [rows, columns]: [i64; 2],
) -> Result<Vec<VarId>, DirectiveRefusal> {
    let [outer, inner, sum] = vars;
    let body = nested(kernel, inner, sum)?;
    let refused = DirectiveRefusal::NoTile { rows, columns };
    nested(kernel, outer, inner)?;
    if loop_bind(&kernel.body, inner) != Some(Bind::Serial) {
        return Err(DirectiveRefusal::Recurrence(inner));
    }
    no_longer(kernel, outer, rows)?;
    no_longer(kernel, inner, columns)?;
    let ([left, right], _) = stored_factors(kernel, vars)?;
    let (own, _) = cone(body, right);
    // The others do not move with the columns, and what is added to has elements for all of them.
    let mut wider = kernel.clone();
    wider.extents[inner.0 as usize] = IndexExpr::Const(columns);
    let has_all = |memory: Memory, index: &IndexExpr| {
        let inside = index.proves_nonnegative(&wider) && index.proves_less(wider.memory_len(memory), &wider);
        matches!(memory, Memory::Scratch(_)) && inside && is_matrix(index, [outer, inner], [rows, columns])
    };
    let fits = body.iter().filter(|s| !own.contains(s)).all(|s| {
        let mut accesses = s.accesses();
        accesses.all(|a| match a.effect {
            Effect::Load => !a.index.uses(inner),
            Effect::Accumulate => has_all(a.memory, a.index),
            Effect::Store => false,
        })
    });
    if !fits
        || cone(body, left)
            .0
            .iter()
            .any(|s| own.contains(s) && s.accesses().next().is_some())
    {
        return Err(refused);
    }
    let (mut loaded, mut rest): (Vec<Stmt>, Vec<Stmt>) = body.iter().cloned().partition(|s| own.contains(s));
    let extent = kernel.extents[inner.0 as usize].clone();
    let [padded] = masked(kernel, &mut loaded, &[(inner.into(), extent)], [right]);
    for v in rest.iter_mut().flat_map(Stmt::operands_mut).filter(|v| **v == right) {
        *v = padded;
    }
    *kernel.extents.get_mut(inner.0 as usize).ok_or(refused)? = IndexExpr::Const(columns);
    loaded.append(&mut rest);
    put_into(kernel, sum, loaded);
    Ok(Vec::new())
}
