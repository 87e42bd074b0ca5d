//! Prefetches: what a loop will read a known distance from now, asked for while it computes.

use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::visit::{Effect, walk};
use tlc_ir::kernel::{Kernel, Memory, Stmt};
use tlc_ir::target::CACHE_LINE_BYTES;

use super::directives::rewrite;
use crate::directive::DirectiveRefusal;
use crate::tree::{defined_vars, loop_body};

/// Has each iteration of a loop ask for the lines, so many elements further on, of what it reads of a parameter: in the iterations of a loop
/// around it one of so many shares each. Returns no loop.
pub(super) fn prefetch(
    kernel: &mut Kernel,
    var: VarId,
    by: VarId,
    param: u32,
    [ahead, shares]: [i64; 2],
) -> Result<Vec<VarId>, DirectiveRefusal> {
    let around = loop_body(&kernel.body, by).ok_or(DirectiveRefusal::NoLoop(by))?;
    let body = loop_body(around, var).ok_or(DirectiveRefusal::NotNested(by, var))?;
    let refused = DirectiveRefusal::NoRun { var, param };
    if shares < 1 {
        return Err(DirectiveRefusal::Factor(shares));
    }
    let inside = defined_vars(body);
    let memory = Memory::Param(param);
    let mut run: Option<(i64, IndexExpr)> = None;
    for a in walk(body).flat_map(|s| s.accesses()).filter(|a| a.memory == memory) {
        let first = a
            .index
            .replace_vars(&mut |v| inside.contains(&v).then_some(IndexExpr::ZERO))
            .simplify(kernel);
        let length = first.affine_in(var).and_then(|(length, _)| length.as_const());
        let found = length
            .filter(|&n| n > 0 && a.effect == Effect::Load)
            .map(|n| (n, first));
        match (&run, found) {
            (None, Some(of)) => run = Some(of),
            (Some(known), Some(of)) if *known == of => {}
            _ => return Err(refused),
        }
    }
    let (length, first) = run.ok_or(refused)?;
    let line = CACHE_LINE_BYTES / kernel.memory_dtype(memory).bytes() as i64;
    let lines = (length + line - 1) / line;
    let each = (lines + shares - 1) / shares;
    let share = IndexExpr::from(by) * IndexExpr::Const(each * line);
    let ask = |k: i64| Stmt::Prefetch {
        memory,
        index: (first.clone() + share.clone() + IndexExpr::Const(ahead + k * line)).simplify(kernel),
    };
    let asked: Vec<Stmt> = (0..each).map(ask).collect();
    rewrite(kernel, var, &mut |_, bind, body| {
        let body = asked.iter().cloned().chain(body).collect();
        vec![Stmt::Loop { var, bind, body }]
    });
    Ok(Vec::new())
}
