//! Elements of few long rows on a GPU, computed beside numbers of their rows, as what a softmax divides by: a block takes a piece of one row, and reads the
//! row's numbers once.
//!
//! ```text
//! for row { for k { y[row, k] = f(x[row, k], m[row]) } }
//!     =>
//! for row, piece block {
//!   one thread { shared = m[row] }
//!   barrier
//!   for thread { for turn { 16 bytes of y = f(16 bytes of x, shared) } }
//! }
//! ```
//! A thread that has 16 bytes of its row reads 4 bytes beside them, of which a warp has one sector for each row's number and 16 of the row.

use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::visit::Effect;
use tlc_ir::kernel::{Access, Bind, Memory, Scope};
use tlc_ir::target::Gpu as Target;

use super::ScheduleReason;
use super::gpu::{Gpu, THREADS};
use crate::directive::{Directive, DirectiveRefusal};

/// Elements of a row from which on a block has a piece of one.
const LONG_ROW: i64 = 1 << 13;
/// Turns that a thread takes at most, and at least for the numbers of rows to be shared.
const TURNS: [i64; 3] = [8, 4, 2];

impl Gpu {
    /// A block per piece of a row, whose threads have several neighbours at a time and share the numbers of the row.
    pub(super) fn beside_rows(&mut self, parallel: &[VarId], lanes: i64, gpu: &Target) -> Result<(), DirectiveRefusal> {
        let Some((&last, around)) = parallel.split_last() else {
            return Err(DirectiveRefusal::NoDivision);
        };
        let length = |v: VarId| self.kernel.extents[v.0 as usize].as_const();
        let rows = around
            .iter()
            .map(|&v| length(v))
            .try_fold(1i64, |n, d| n.checked_mul(d?));
        let rows = rows.unwrap_or(0);
        let vectors = length(last)
            .filter(|n| *n >= LONG_ROW && n % lanes == 0)
            .map_or(0, |n| n / lanes);
        let numbers = self.numbers_of_rows(around, last);
        let blocks = |turns: &i64| rows.saturating_mul(vectors / (turns * THREADS)) >= gpu.multiprocessors;
        let Some(turns) = TURNS.into_iter().find(blocks).filter(|_| !numbers.is_empty()) else {
            return Err(DirectiveRefusal::NoDivision);
        };
        self.why = ScheduleReason::Vectors { lanes };
        let [piece, lane] = self.apply(Directive::Split {
            var: last,
            factor: lanes,
        })?[..] else {
            return Err(DirectiveRefusal::Neighbours(lanes));
        };
        if !self.moves_together(lane, lanes) {
            return Err(DirectiveRefusal::Neighbours(lanes));
        }
        self.why = ScheduleReason::BlocksAndThreads;
        let factor = even(vectors, turns * THREADS);
        let [outer, inner] = self.apply(Directive::Block { var: piece, factor })?[..] else {
            return Err(DirectiveRefusal::Factor(factor));
        };
        let blocks: Vec<VarId> = around.iter().copied().chain([outer]).collect();
        let block = self.one_loop(&blocks)?;
        self.bind(block, Bind::Block)?;
        self.why = ScheduleReason::SharedMemory;
        for param in numbers {
            let (var, scope) = (inner, Scope::Shared);
            let made = self.apply(Directive::StageRegion { var, param, scope })?;
            if let (Some(&around), Some(&var)) = (made.first(), made.last()) {
                self.apply(Directive::Distribute {
                    around,
                    var,
                    threads: 1,
                })?;
            }
        }
        self.why = ScheduleReason::BlocksAndThreads;
        self.apply(Directive::Distribute {
            around: inner,
            var: inner,
            threads: THREADS,
        })?;
        self.why = ScheduleReason::Vectors { lanes };
        self.bind(lane, Bind::Lanes)?;
        self.why = ScheduleReason::Order;
        self.apply(Directive::Synchronize { block }).map(drop)
    }

    /// The parameters of which only elements are read that belong to whole rows.
    fn numbers_of_rows(&self, around: &[VarId], last: VarId) -> Vec<u32> {
        let of_row = |index: &IndexExpr| !index.uses(last) && around.iter().any(|v| index.uses(*v));
        let is_number = |p: &u32| {
            let accesses = self.kernel.statements().flat_map(|s| s.accesses());
            let mut own = accesses.filter(|a| a.memory == Memory::Param(*p)).peekable();
            own.peek().is_some() && own.all(|a| a.effect == Effect::Load && a.mask.is_none() && of_row(a.index))
        };
        let params = 0..self.kernel.params.len() as u32;
        let read = params.filter(|p| self.kernel.params[*p as usize].access == Access::Read);
        read.filter(is_number).collect()
    }
}

/// The largest part of so many that they are a multiple of, if it is not much less than the most that a part may be, an even number if there is
/// one, so that each begins where a sector does; else the most.
fn even(all: i64, most: i64) -> i64 {
    let whole = |part: &i64| all % part == 0;
    let parts = || (most * 3 / 4..=most).rev();
    let even = parts().find(|part| part % 2 == 0 && whole(part));
    even.or_else(|| parts().find(whole)).unwrap_or(most)
}
