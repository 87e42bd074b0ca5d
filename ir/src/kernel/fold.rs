//! The elements of each row of a fragment, combined.
//!
//! The statement means `to[m] = to[m] ⊕ x` for each row `m`, where `x` is what the elements `from[m, n]` of the row come to in this order:
//!
//! ```text
//! for lane in 0..4
//!   x[lane] = from[m, 2*lane]
//!   for each other column n with (n mod 8) div 2 = lane, ascending
//!     x[lane] = x[lane] ⊕ from[m, n]
//! x = (x[0] ⊕ x[2]) ⊕ (x[1] ⊕ x[3])
//! ```
//!
//! It is the order of four threads that hold a row as the accumulators of matrix instructions of 16 by 8 do, of whose elements pairs of
//! neighbours belong to a thread. The columns are a multiple of 8.

use super::visit::{Effect, MemoryAccess, MemoryAccessMut};
use super::{Kernel, Memory};
use crate::graph::Monoid;
use crate::index::{IndexExpr, VarId};

/// Threads that hold a row.
pub const ROW_LANES: i64 = 4;
/// Neighbours of a row that a thread holds together.
pub const NEIGHBOURS: i64 = 2;

/// See the [module](self).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct FoldRows {
    /// How elements are combined: no argmax or argmin.
    pub monoid: Monoid,
    /// The row and the column, which belong to the statement; extents are positive constants.
    pub vars: [VarId; 2],
    /// A fragment of one column.
    pub to: Memory,
    /// Its element of a row.
    pub to_index: IndexExpr,
    /// A fragment of as many rows.
    pub from: Memory,
    /// Its element of a row and a column.
    pub from_index: IndexExpr,
}

impl FoldRows {
    /// The columns that a thread of each row combines, in their order.
    pub fn columns(lane: i64, columns: i64) -> impl Iterator<Item = i64> {
        let of_tile = move |tile: i64| (0..NEIGHBOURS).map(move |n| tile + lane * NEIGHBOURS + n);
        (0..columns)
            .step_by((ROW_LANES * NEIGHBOURS) as usize)
            .flat_map(of_tile)
    }

    /// Rows and columns; `None` where they are not constant.
    pub fn shape(&self, kernel: &Kernel) -> Option<[i64; 2]> {
        let [m, n] = self.vars.map(|v| kernel.extents.get(v.0 as usize)?.as_const());
        Some([m?, n?])
    }

    /// What the statement accesses.
    pub(super) fn accesses(&self) -> [MemoryAccess<'_>; 2] {
        let access = |memory, index, effect| MemoryAccess {
            memory,
            index,
            mask: None,
            ranges: &[],
            effect,
        };
        [
            access(self.from, &self.from_index, Effect::Load),
            access(self.to, &self.to_index, Effect::Accumulate),
        ]
    }

    /// What the statement accesses, to move it elsewhere.
    pub(super) fn accesses_mut(&mut self) -> [MemoryAccessMut<'_>; 2] {
        let from = MemoryAccessMut {
            memory: &mut self.from,
            index: &mut self.from_index,
            effect: Effect::Load,
        };
        let to = MemoryAccessMut {
            memory: &mut self.to,
            index: &mut self.to_index,
            effect: Effect::Accumulate,
        };
        [from, to]
    }
}
