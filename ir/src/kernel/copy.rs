//! Loop nests that only copy: what a loop bound as [`Bind::Copy`] or [`Bind::Stream`] has to be.

use super::{Kernel, Memory, Op, Scope, Stmt};
use crate::index::{IndexExpr, VarId};

/// A copy of a block: `to[to_at + r * to_pitch + c]` becomes `from[from_at + r * from_pitch + c]`, or, where it is
/// transposed, `from[from_at + c * from_pitch + r]`, for `r` in `0..rows` and `c` in `0..columns`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CopyNest {
    /// Rows of the block that is written.
    pub rows: IndexExpr,
    /// Elements of such a row.
    pub columns: IndexExpr,
    /// What is written.
    pub to: Memory,
    /// Its first element.
    pub to_at: IndexExpr,
    /// Elements from one row to the next.
    pub to_pitch: IndexExpr,
    /// What is read.
    pub from: Memory,
    /// Its first element.
    pub from_at: IndexExpr,
    /// Elements from one row of the block that is read to the next.
    pub from_pitch: IndexExpr,
    /// Whether rows are read from columns.
    pub transposed: bool,
}

impl CopyNest {
    /// The copy that a loop over `var` with this body does: a load and an unmasked store of what was loaded, in at most one
    /// loop more. `None` if the loop does anything else.
    pub fn of(kernel: &Kernel, var: VarId, body: &[Stmt]) -> Option<CopyNest> {
        let (row, column, body) = match body {
            [Stmt::Loop { var: inner, body, .. }] => (Some(var), *inner, &body[..]),
            _ => (None, var, body),
        };
        let [
            Stmt::Let {
                value: loaded,
                op:
                    Op::Load {
                        memory: from,
                        index: from_at,
                        mask: None,
                    },
            },
            Stmt::Store {
                memory: to,
                index: to_at,
                value,
                mask: None,
            },
        ] = body
        else {
            return None;
        };
        let in_registers = |m: &Memory| match m {
            Memory::Scratch(i) => kernel.scratch.get(*i as usize)?.scope.eq(&Scope::Register).then_some(()),
            Memory::Param(_) => None,
        };
        if loaded != value || from == to || [from, to].into_iter().any(|m| in_registers(m).is_some()) {
            return None;
        }
        let extent = |v: VarId| kernel.extents.get(v.0 as usize).cloned();
        let (rows, columns) = match row {
            Some(row) => (extent(row)?, extent(column)?),
            None => (IndexExpr::ONE, extent(column)?),
        };
        let strides = |e: &IndexExpr| -> Option<(IndexExpr, IndexExpr, IndexExpr)> {
            let (along, rest) = e.affine_in(column)?;
            let (across, rest) = match row {
                Some(row) => rest.affine_in(row)?,
                None => (IndexExpr::ZERO, rest),
            };
            let moves = |e: &IndexExpr| e.uses(column) || row.is_some_and(|row| e.uses(row));
            (!moves(&along) && !moves(&across) && !moves(&rest)).then_some((along, across, rest))
        };
        let (to_along, to_pitch, to_at) = strides(to_at)?;
        let (from_along, from_across, from_at) = strides(from_at)?;
        if !to_along.is(1) || row.is_some_and(|row| columns.uses(row)) {
            return None;
        }
        let (from_pitch, transposed) = match () {
            () if from_along.is(1) => (from_across, false),
            () if from_across.is(1) => (from_along, true),
            () => return None,
        };
        Some(CopyNest {
            rows,
            columns,
            to: *to,
            to_at,
            to_pitch,
            from: *from,
            from_at,
            from_pitch,
            transposed,
        })
    }
}
