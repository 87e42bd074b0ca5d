//! Rows of scratch further apart than they are long (each access moves by a gap for every row before it), and rows that lie rotated.

use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::visit::{walk, walk_mut};
use tlc_ir::kernel::{Bind, Kernel, Memory, Scope, Stmt};

use crate::directive::DirectiveRefusal;

/// Puts a gap of so many elements behind each row of a scratch; returns no loop.
pub(super) fn apart(kernel: &mut Kernel, scratch: u32, row: i64, gap: i64) -> Result<Vec<VarId>, DirectiveRefusal> {
    let refused = DirectiveRefusal::NoRows(scratch);
    let held = kernel.scratch.get(scratch as usize).ok_or(refused.clone())?;
    if !matches!(held.scope, Scope::Cache | Scope::Shared) || held.swizzled || row < 1 || gap < 0 {
        return Err(refused);
    }
    let memory = Memory::Scratch(scratch);
    if has_rows_of_its_own(kernel, memory) {
        return Err(refused);
    }
    let rows = held.len.as_const().filter(|n| n % row == 0).map(|n| n / row);
    let len = rows.and_then(|n| n.checked_mul(row.checked_add(gap)?)).ok_or(refused)?;
    let mut body = std::mem::take(&mut kernel.body);
    walk_mut(&mut body, &mut |s| {
        for a in s.accesses_mut().filter(|a| *a.memory == memory) {
            let before = IndexExpr::floor_div(a.index, &IndexExpr::Const(row)).simplify(kernel);
            let moved = a.index.clone() + before * IndexExpr::Const(gap);
            *a.index = moved.simplify(kernel);
        }
    });
    kernel.body = body;
    kernel.scratch[scratch as usize].len = IndexExpr::Const(len);
    Ok(Vec::new())
}

/// Rotates the pieces of each row of a scratch, by one more every `piece` rows; returns no loop.
pub(super) fn rotate(kernel: &mut Kernel, scratch: u32, row: i64, piece: i64) -> Result<Vec<VarId>, DirectiveRefusal> {
    let refused = DirectiveRefusal::NoRows(scratch);
    let held = kernel.scratch.get(scratch as usize).ok_or(refused.clone())?;
    let pieces = row.checked_div(piece).filter(|n| *n > 0 && row % piece == 0);
    let pieces = pieces.ok_or(refused.clone())?;
    if !matches!(held.scope, Scope::Cache | Scope::Shared) || held.swizzled {
        return Err(refused);
    }
    let memory = Memory::Scratch(scratch);
    let whole = held.len.as_const().is_some_and(|n| n % row == 0);
    if !whole || has_rows_of_its_own(kernel, memory) {
        return Err(refused);
    }
    let [row, piece, pieces] = [row, piece, pieces].map(IndexExpr::Const);
    let mut body = std::mem::take(&mut kernel.body);
    walk_mut(&mut body, &mut |s| {
        for a in s.accesses_mut().filter(|a| *a.memory == memory) {
            let number = IndexExpr::floor_div(a.index, &row).simplify(kernel);
            let column = IndexExpr::modulo(a.index, &row).simplify(kernel);
            let turns = IndexExpr::floor_div(&number, &piece) + IndexExpr::floor_div(&column, &piece);
            let place = IndexExpr::modulo(&turns.simplify(kernel), &pieces) * piece.clone();
            let moved = number * row.clone() + place + IndexExpr::modulo(&column, &piece);
            *a.index = moved.simplify(kernel);
        }
    });
    kernel.body = body;
    Ok(Vec::new())
}

/// Whether rows of a memory cannot be moved: it is the tile of a contraction, or is copied to as one block or beside the threads.
pub(super) fn has_rows_of_its_own(kernel: &Kernel, memory: Memory) -> bool {
    kernel.statements().any(|s| match s {
        Stmt::Contract(c) => c.dst == memory,
        Stmt::CopyAsync(c) => c.to == memory,
        Stmt::Loop {
            bind: Bind::Copy | Bind::Stream,
            body,
            ..
        } => walk(body).flat_map(|s| s.accesses()).any(|a| a.memory == memory),
        _ => false,
    })
}
