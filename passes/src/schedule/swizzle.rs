//! Rows of shared scratch that become rows of swizzled memory, as four warps that multiply together read them.

use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::visit::{walk, walk_mut};
use tlc_ir::kernel::{Bind, Kernel, Memory, SWIZZLE_PERIOD_BYTES, SWIZZLED_ROW_BYTES, Scope, Stmt};

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
    // What warps hold already is multiplied as it lies, and what is copied together has its place.
    let memory = Memory::Scratch(scratch);
    let fragment = |m: Memory| match m {
        Memory::Param(_) => false,
        Memory::Scratch(i) => kernel.scratch[i as usize].scope == Scope::WarpFragment,
    };
    let fixed = kernel.statements().any(|s| match s {
        Stmt::Contract(c) => c.dst == memory || fragment(c.dst),
        Stmt::CopyAsync(c) => c.to == memory,
        Stmt::Loop {
            bind: Bind::Copy | Bind::Stream,
            body,
            ..
        } => walk(body).flat_map(|s| s.accesses()).any(|a| a.memory == memory),
        _ => false,
    });
    if fixed {
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
