//! Rows of a tile: what computes the elements of each row, taken apart from what is computed of the row then.
//!
//! ```text
//! for m {                           for m { for n { kept[pitch * m + n] = a } }
//!   for n { kept[n] = a }     =>    for m { b(kept[pitch * m ..]) }
//!   b(kept)
//! }
//! ```
//! The first loop is then a nest of products like any other, whose results go to a tile that the threads of a block share.

use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::visit::{Effect, walk, walk_mut};
use tlc_ir::kernel::{Bind, Kernel, Memory, Scope, Stmt};

use super::directives::{exists, loop_bind, rewrite};
use super::tile_sum::tile_elements;
use crate::directive::DirectiveRefusal;
use crate::tree::substitute_in;

/// Memory that statements write, and all that they touch.
fn touched(body: &[Stmt]) -> (Vec<Memory>, Vec<Memory>) {
    let accesses = || walk(body).flat_map(|s| s.accesses());
    let written = accesses().filter(|a| a.effect.writes()).map(|a| a.memory);
    (written.collect(), accesses().map(|a| a.memory).collect())
}

/// Takes the first statement of a loop over so many rows at most, which fills a scratch of a row, apart from what is behind it; rows of the scratch begin
/// so many elements apart then. Returns the two loops.
pub(super) fn tile_rows(
    kernel: &mut Kernel,
    var: VarId,
    scratch: u32,
    [rows, pitch]: [i64; 2],
) -> Result<Vec<VarId>, DirectiveRefusal> {
    let elements = tile_elements([rows, pitch])?;
    let held = kernel.scratch.get(scratch as usize);
    let held = held.ok_or(DirectiveRefusal::NoScratch(scratch))?;
    let fits = held.len.as_const().is_some_and(|n| n <= pitch);
    if held.scope != Scope::Cache || !fits {
        return Err(DirectiveRefusal::ScratchScope(held.scope));
    }
    super::tile_sum::no_longer(kernel, var, rows)?;
    let body = exists(kernel, var)?;
    let refused = Err(DirectiveRefusal::Recurrence(var));
    let Some((first, behind)) = body.split_first().filter(|(first, behind)| {
        matches!(first, Stmt::Loop { .. }) && !behind.is_empty() && loop_bind(&kernel.body, var) == Some(Bind::Serial)
    }) else {
        return refused;
    };
    let kept = Memory::Scratch(scratch);
    let first = std::slice::from_ref(first);
    let of_kept = |body, wanted: Effect| {
        let mut accesses = walk(body).flat_map(|s| s.accesses()).filter(|a| a.memory == kept);
        accesses.all(|a| a.effect == wanted)
    };
    let everywhere = kernel.statements().flat_map(|s| s.accesses());
    let inside = walk(body).flat_map(|s| s.accesses());
    let count = |accesses: &mut dyn Iterator<Item = Memory>| accesses.filter(|m| *m == kept).count();
    let alone = count(&mut everywhere.map(|a| a.memory)) == count(&mut inside.map(|a| a.memory));
    let ((written, read), (later, needed)) = (touched(first), touched(behind));
    let apart = |written: &[Memory], touched: &[Memory]| written.iter().all(|m| *m == kept || !touched.contains(m));
    // What no iteration of the first statement sets is that of another row.
    let set = super::inward::set_whole(kernel, first, scratch, &mut Vec::new());
    if !alone
        || !set
        || !of_kept(first, Effect::Store)
        || !of_kept(behind, Effect::Load)
        || !apart(&written, &needed)
        || !apart(&later, &read)
    {
        return refused;
    }
    let second = kernel.new_var(kernel.extents[var.0 as usize].clone());
    rewrite(kernel, var, &mut |kernel, bind, mut body| {
        let mut behind = body.split_off(1);
        substitute_in(kernel, &mut behind, &mut |v| (v == var).then(|| second.into()));
        let at = |body: &mut [Stmt], row: VarId, kernel: &Kernel| {
            walk_mut(body, &mut |s| {
                for a in s.accesses_mut().filter(|a| *a.memory == kept) {
                    let element = IndexExpr::from(row) * IndexExpr::Const(pitch) + a.index.clone();
                    *a.index = element.simplify(kernel);
                }
            });
        };
        at(&mut body, var, kernel);
        at(&mut behind, second, kernel);
        let around = |(var, body)| Stmt::Loop { var, bind, body };
        [(var, body), (second, behind)].map(around).into()
    });
    kernel.scratch[scratch as usize].len = IndexExpr::Const(elements);
    Ok(vec![var, second])
}
