//! Rows of shared scratch that become rows of swizzled memory, as four warps that multiply together read them.

use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::visit::walk_mut;
use tlc_ir::kernel::{Kernel, Memory, SWIZZLE_PERIOD_BYTES, SWIZZLED_ROW_BYTES, Scope, Stmt};

use super::rows_apart::has_rows_of_its_own;
use crate::directive::DirectiveRefusal;

/// Swizzles a scratch whose rows are so long; returns no loop. Rows that are several of swizzled memory are cut into stretches, all rows of one
/// before those of the next.
pub(super) fn swizzle(kernel: &mut Kernel, scratch: u32, row: i64) -> Result<Vec<VarId>, DirectiveRefusal> {
    let refused = DirectiveRefusal::NoRows(scratch);
    let held = kernel.scratch.get(scratch as usize).ok_or(refused.clone())?;
    let bytes = held.dtype.bytes() as i64;
    let swizzled = SWIZZLED_ROW_BYTES / bytes;
    let whole = row > 0 && row % swizzled == 0;
    let rows = held.len.as_const().filter(|n| whole && n % row == 0).map(|n| n / row);
    let periods = rows.is_some_and(|rows| rows * SWIZZLED_ROW_BYTES % SWIZZLE_PERIOD_BYTES == 0);
    let Some(rows) = rows.filter(|_| periods && held.scope == Scope::Shared && !held.swizzled) else {
        return Err(refused);
    };
    let memory = Memory::Scratch(scratch);
    // What warps hold already is multiplied as its operands lie.
    let held = kernel.statements().any(|s| match s {
        Stmt::Contract(c) => {
            matches!(c.dst, Memory::Scratch(i) if kernel.scratch[i as usize].scope == Scope::WarpFragment)
        }
        _ => false,
    });
    if held || has_rows_of_its_own(kernel, memory) {
        return Err(refused);
    }
    if row > swizzled {
        let [row, swizzled, stretch] = [row, swizzled, rows * swizzled].map(IndexExpr::Const);
        let mut body = std::mem::take(&mut kernel.body);
        walk_mut(&mut body, &mut |s| {
            for a in s.accesses_mut().filter(|a| *a.memory == memory) {
                let column = IndexExpr::modulo(a.index, &row).simplify(kernel);
                let before = IndexExpr::floor_div(a.index, &row).simplify(kernel) * swizzled.clone();
                let in_stretch = IndexExpr::modulo(&column, &swizzled).simplify(kernel);
                let stretches = IndexExpr::floor_div(&column, &swizzled).simplify(kernel) * stretch.clone();
                *a.index = (stretches + before + in_stretch).simplify(kernel);
            }
        });
        kernel.body = body;
    }
    kernel.scratch[scratch as usize].swizzled = true;
    Ok(Vec::new())
}
