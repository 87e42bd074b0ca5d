//! An attention of one row whose keys several blocks share, where a block for each row would leave most of a device idle.
//!
//! ```text
//! for each row and each part of its keys, a block:
//!   what a block of the whole row does, of these keys alone
//!   the average of values, the maximum and the sum of powers to memory
//! then, for each row, a block:
//!   a thread for each element of the result: the maximum of all parts, and their averages by what each has of the sum
//! ```
//!
//! Which keys are in which part, and the order that parts are added up in, depend on lengths alone.

use tlc_ir::ScalarOp;
use tlc_ir::index::IndexExpr;
use tlc_ir::kernel::{Access, Bind, Memory};

use super::{BLOCK, Blocks, LOOP, THREAD, constant};
use crate::partition::SingleRow;

/// Numbers that a part has beside its average: the maximum and the sum.
const BESIDE: i64 = 2;

impl Blocks<'_> {
    /// What parts leave, and the element from which on that of a part is.
    fn left(&mut self, row: &SingleRow, access: Access, part: IndexExpr) -> (Memory, IndexExpr) {
        let each = self.form.features[1] + BESIDE;
        let len = self.row_count.clone() * constant(row.parts * each);
        let memory = Memory::Param(self.lo.temporary(0, self.dtype, len, access));
        (memory, part * constant(each))
    }

    /// What is behind a part's loop over tiles of keys.
    pub(super) fn end_part(&mut self, row: &SingleRow) {
        let (most, sum, parts) = (self.memories.most, self.memories.sum, self.memories.parts);
        let width = self.form.features[1];
        let (memory, first) = self.left(row, Access::Write, self.block.into());
        let results = self.memories.results;
        self.thread_loop(BLOCK, row.groups * width, |this, thread| {
            let value = this.load(results, constant(0), THREAD);
            this.store(parts, thread, value, None, THREAD);
        });
        self.barrier(BLOCK);
        let at = first.clone();
        self.thread_loop(BLOCK, width, |this, thread| {
            let all = this.of_all_groups(row, &thread);
            this.store(memory, at + thread, all, None, THREAD);
        });
        self.thread_loop(BLOCK, row.threads, |this, thread| {
            let leads = this.is_first(&thread, THREAD);
            for (n, held) in [(0, most), (1, sum)] {
                let value = this.load(held, constant(0), THREAD);
                this.store(memory, first.clone() + constant(width + n), value, Some(leads), THREAD);
            }
        });
    }

    /// Puts the parts of each row together.
    pub(super) fn join_parts(&mut self, row: &SingleRow) {
        let width = self.form.features[1];
        let ty = self.lo.graph.ty(self.form.result).clone();
        let first = IndexExpr::from(self.block) * constant(row.parts);
        let (memory, first) = self.left(row, Access::Read, first);
        let to = Memory::Param(self.lo.param(self.form.result, Access::Write));
        let each = constant(width + BESIDE);
        let (most, sum, results) = (self.memories.most, self.memories.sum, self.memories.results);
        let zeroth = constant(0);
        self.thread_loop(BLOCK, width, |this, thread| {
            let (lowest, zero) = (this.number(f64::NEG_INFINITY), this.number(0.0));
            this.store(most, zeroth.clone(), lowest, None, THREAD);
            this.store(sum, zeroth.clone(), zero, None, THREAD);
            this.store(results, zeroth.clone(), zero, None, THREAD);
            let of_part = |p: IndexExpr, n: IndexExpr| first.clone() + p * each.clone() + n;
            this.loops([(row.parts, Bind::Serial)], |this, [p]| {
                let part = this.load(memory, of_part(p, constant(width)), LOOP);
                let before = this.load(most, zeroth.clone(), LOOP);
                let now = this.map(ScalarOp::Max, &[before, part], LOOP);
                this.store(most, zeroth.clone(), now, None, LOOP);
            });
            // Where nothing was seen there is nothing to subtract.
            let all = this.load(most, zeroth.clone(), THREAD);
            let unseen = this.map(ScalarOp::Eq, &[all, lowest], THREAD);
            let base = this.map(ScalarOp::Select, &[unseen, zero, all], THREAD);
            this.loops([(row.parts, Bind::Serial)], |this, [p]| {
                let part = this.load(memory, of_part(p.clone(), constant(width)), LOOP);
                let share = this.map(ScalarOp::Sub, &[part, base], LOOP);
                let share = this.map(ScalarOp::Exp, &[share], LOOP);
                let share = this.cleaned(share, base, LOOP);
                let own = this.load(memory, of_part(p.clone(), constant(width + 1)), LOOP);
                let share = this.map(ScalarOp::Mul, &[share, own], LOOP);
                let held = this.load(sum, zeroth.clone(), LOOP);
                let held = this.map(ScalarOp::Add, &[held, share], LOOP);
                this.store(sum, zeroth.clone(), held, None, LOOP);
                let average = this.load(memory, of_part(p, thread.clone()), LOOP);
                this.multiply_add(share, average, (results, zeroth.clone()));
            });
            let all = this.load(sum, zeroth.clone(), THREAD);
            let inverse = this.inverse(all, THREAD);
            let whole = this.whole(zeroth.clone(), THREAD);
            let value = this.load(results, zeroth.clone(), THREAD);
            let value = this.map(ScalarOp::Mul, &[value, inverse], THREAD);
            let value = this.map(ScalarOp::Mul, &[value, whole], THREAD);
            let value = this.lo.convert(value, ty.dtype);
            let index = this.result_index(&IndexExpr::ZERO, &thread);
            this.store(to, index, value, None, THREAD);
        });
    }
}
