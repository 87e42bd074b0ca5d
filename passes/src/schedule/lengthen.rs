//! Sums of products made longer by zeros, so that matrix instructions find whole blocks of steps.

use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::{Bind, Kernel, Stmt};

use super::contract::stored_factors;
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
    rewrite(kernel, sum, &mut |_, bind, _| {
        vec![Stmt::Loop {
            var: sum,
            bind,
            body: std::mem::take(&mut loaded),
        }]
    });
    Ok(Vec::new())
}
