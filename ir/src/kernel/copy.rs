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
            Memory::Scratch(i) => kernel
                .scratch
                .get(*i as usize)?
                .scope
                .eq(&Scope::Register)
                .then_some(()),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::kernel::{Access, Bind, Param};

    /// `for i0 in 4 { for i1 in 6 { p1[to] = p0[from] } }`.
    fn nest(
        to: impl Fn(IndexExpr, IndexExpr) -> IndexExpr,
        from: impl Fn(IndexExpr, IndexExpr) -> IndexExpr,
    ) -> Kernel {
        let mut k = Kernel::default();
        for access in [Access::Read, Access::Write] {
            k.params.push(Param {
                dtype: DType::F32,
                len: 100.into(),
                access,
            });
        }
        let (i, j) = (k.new_var(4.into()), k.new_var(6.into()));
        let value = k.new_value(DType::F32);
        let body = vec![
            Stmt::Let {
                value,
                op: Op::Load {
                    memory: Memory::Param(0),
                    index: from(i.into(), j.into()),
                    mask: None,
                },
            },
            Stmt::Store {
                memory: Memory::Param(1),
                index: to(i.into(), j.into()),
                value,
                mask: None,
            },
        ];
        k.body = vec![Stmt::Loop {
            var: i,
            bind: Bind::Copy,
            body: vec![Stmt::Loop {
                var: j,
                bind: Bind::Serial,
                body,
            }],
        }];
        k
    }

    fn found(k: &Kernel) -> Option<CopyNest> {
        match &k.body[..] {
            [Stmt::Loop { var, body, .. }] => CopyNest::of(k, *var, body),
            _ => None,
        }
    }

    fn c(k: i64) -> IndexExpr {
        IndexExpr::Const(k)
    }

    #[test]
    fn straight_and_transposed_copies_are_told_apart() {
        let straight = found(&nest(|i, j| i * c(6) + j, |i, j| i * c(8) + j + c(3))).unwrap();
        assert!(!straight.transposed);
        assert_eq!(straight.from_at, c(3));
        assert_eq!((straight.to_pitch, straight.from_pitch), (c(6), c(8)));
        let turned = found(&nest(|i, j| i * c(6) + j, |i, j| j * c(4) + i)).unwrap();
        assert!(turned.transposed);
        assert_eq!((turned.rows, turned.columns, turned.from_pitch), (c(4), c(6), c(4)));
    }

    #[test]
    fn what_is_no_copy_of_blocks_is_refused() {
        // Elements written apart, read apart both ways, or from a place that is no linear function.
        assert_eq!(found(&nest(|i, j| i * c(12) + j * c(2), |i, j| i * c(6) + j)), None);
        assert_eq!(found(&nest(|i, j| i * c(6) + j, |i, j| i * c(2) + j * c(8))), None);
        let half = |j: IndexExpr| IndexExpr::floor_div(&j, &c(2));
        assert_eq!(found(&nest(|i, j| i * c(6) + j, |i, j| i * c(6) + half(j))), None);
        // A row that is broadcast is read with pitch 0; an element that is, is no block.
        assert!(found(&nest(|i, j| i * c(6) + j, |_, j| j)).is_some());
        assert_eq!(found(&nest(|i, j| i * c(6) + j, |_, _| c(0))), None);
    }

    #[test]
    fn a_copy_within_one_memory_or_of_a_ragged_block_is_refused() {
        let mut k = nest(|i, j| i * c(6) + j, |i, j| i * c(6) + j);
        k.extents[1] = IndexExpr::from(VarId(0)) + c(1);
        assert_eq!(found(&k), None);
        let mut k = nest(|i, j| i * c(6) + j, |i, j| i * c(6) + j);
        if let Stmt::Loop { body, .. } = &mut k.body[0]
            && let Stmt::Loop { body, .. } = &mut body[0]
            && let Stmt::Store { memory, .. } = &mut body[1]
        {
            *memory = Memory::Param(0);
        }
        assert_eq!(found(&k), None);
    }
}
