//! Keys that a mask hides from all rows of a block are left out, where the operands are such that they weigh nothing.
//!
//! A hidden key has the weight zero if its score is a number that is far from what hides it, and zero times its value is zero if that is a
//! number. So the first kernel looks at every element of queries, keys and values: whether each is a number of at most [`TAME`]. Where one is
//! not, the second kernel goes through all keys. Where the mask puts minus infinity in place of a hidden key's score, values alone are
//! looked at ([`Horizon::replaced`](crate::partition::Horizon)).
//!
//! ```text
//! for each point of the other axes and each of its parts, a block:
//!   whether an element of that part of what is looked at is not tame, to memory
//! then, for each block of rows:
//!   tiles of keys that all of the rows see
//!   tiles up to the last key that one of the rows sees, or all others
//! ```

use tlc_ir::index::IndexExpr;
use tlc_ir::kernel::{Access, Bind, Collective, CollectiveKind, Group, Memory, Stmt, ValueId};
use tlc_ir::target::{GPU_ACCESS_BYTES, WARP_THREADS};
use tlc_ir::{DType, NodeId, Scalar, ScalarOp};

use super::{BLOCK, Blocks, LOOP, THREAD, TILE, around, constant};
use crate::access::Index;
use crate::cluster::horizon::TAME;
use crate::partition::{Matrices, OfScore};
use tlc_ir::graph::Monoid;

/// Blocks that share the elements of a point of the other axes.
pub(super) const PARTS: i64 = 8;
/// Warps of such a block.
pub(super) const WARPS: i64 = 8;
/// Elements of 16 bits that a thread looks at together.
pub(super) const LANES: i64 = GPU_ACCESS_BYTES / 2;

/// An operand: how many rows it has, of how many elements, and which element is where.
type Operand<'o, 'a> = (
    IndexExpr,
    i64,
    &'o dyn Fn(&Blocks<'a>, &IndexExpr, &IndexExpr) -> (NodeId, Index),
);

impl<'a> Blocks<'a> {
    /// Finds the largest size of the elements of a part.
    pub(super) fn tame(&mut self, m: &Matrices) {
        let form = self.form;
        let (found, threads) = (self.memories.results, WARPS * WARP_THREADS);
        self.thread_loop(BLOCK, threads, |this, _| {
            this.loops([(LANES, Bind::Unroll)], |this, [n]| {
                let none = this.lo.constant(DType::F32.zero());
                this.store(found, n, none, None, LOOP);
            });
        });
        let query = |this: &Self, row: &IndexExpr, column: &IndexExpr| {
            let point = this.point(row, &IndexExpr::ZERO);
            this.operand(form.scores, form.query, &this.labels(form.scores, &point, column))
        };
        let key = |this: &Self, key: &IndexExpr, column: &IndexExpr| {
            let point = this.point(&IndexExpr::ZERO, key);
            this.operand(form.scores, 1 - form.query, &this.labels(form.scores, &point, column))
        };
        let value = |this: &Self, key: &IndexExpr, column: &IndexExpr| {
            let point = this.result_point(&IndexExpr::ZERO, column);
            this.operand(form.result, 1 - form.weights, &this.labels(form.result, &point, key))
        };
        let (rows, keys, [summed, width]) = (self.rows.clone(), self.keys.clone(), form.features);
        let operands: [Operand<'_, 'a>; 3] = [
            (rows, summed, &query),
            (keys.clone(), summed, &key),
            (keys, width, &value),
        ];
        let replaced = form.horizon.as_ref().is_some_and(|h| h.replaced);
        for operand in operands.into_iter().skip(if replaced { 2 } else { 0 }) {
            self.look_at(operand);
        }
        self.thread_loop(BLOCK, threads, |this, _| {
            let all = (1..LANES).fold(this.load(found, constant(0), THREAD), |all, n| {
                let next = this.load(found, constant(n), THREAD);
                this.map(ScalarOp::Max, &[all, next], THREAD)
            });
            this.store(found, constant(0), all, None, THREAD);
        });
        self.store_found(m);
    }

    /// The largest size of the elements of a part's rows of an operand, where it is larger than what was found before. One that is no number is
    /// the largest.
    fn look_at(&mut self, (count, width, place): Operand<'_, 'a>) {
        let found = self.memories.results;
        let threads = WARPS * WARP_THREADS;
        let lanes = if width % LANES == 0 { LANES } else { 1 };
        let pieces = width / lanes;
        let part = IndexExpr::modulo(&self.block.into(), &constant(PARTS));
        let in_part = count.ceil_div(PARTS);
        let rounds = (in_part.clone() * constant(pieces)).ceil_div(threads);
        let thread = self.lo.new_var(constant(threads), THREAD);
        let round = self.lo.new_var(rounds, LOOP);
        let lane = self.lo.new_var(constant(lanes), LOOP);
        let at = IndexExpr::from(round) * constant(threads) + thread.into();
        let row = IndexExpr::floor_div(&at, &constant(pieces)).simplify(&self.lo);
        let column = IndexExpr::modulo(&at, &constant(pieces)).simplify(&self.lo) * constant(lanes) + lane.into();
        let within = self.below(&row, &in_part);
        let row = part * in_part + row;
        let exists = self.below(&row, &count);
        let known = self.both(within, exists);
        let (node, index) = place(self, &row, &column);
        let value = self.lo.value_of(node, &index, known);
        let value = self.lo.convert(value, DType::F32);
        let size = self.map(ScalarOp::Abs, &[value], LOOP);
        let before = self.load(found, lane.into(), LOOP);
        let all = self.map(ScalarOp::Max, &[before, size], LOOP);
        self.store(found, lane.into(), all, None, LOOP);
        let bind = if lanes > 1 { Bind::Lanes } else { Bind::Unroll };
        let body = vec![around(lane, bind, self.take(LOOP))];
        self.lo.push(THREAD, around(round, Bind::Serial, body));
        let body = self.take(THREAD);
        self.lo.push(BLOCK, around(thread, Bind::Thread, body));
    }

    /// Whether the largest that threads have found is tame, to memory.
    fn store_found(&mut self, m: &Matrices) {
        let (found, parts) = (self.memories.results, self.memories.parts);
        let warp = self.lo.new_var(constant(WARPS), TILE);
        self.lo.push(
            TILE,
            Stmt::Collective(Box::new(Collective {
                kind: CollectiveKind::Reduce(Monoid::Max),
                group: Group::Warp,
                memory: found,
                index: IndexExpr::ZERO,
            })),
        );
        self.thread_loop(TILE, WARP_THREADS, |this, lane| {
            let leads = this.is_first(&lane, THREAD);
            let value = this.load(found, IndexExpr::ZERO, THREAD);
            this.store(parts, warp.into(), value, Some(leads), THREAD);
        });
        let body = self.take(TILE);
        self.lo.push(BLOCK, around(warp, Bind::Warp, body));
        self.barrier(BLOCK);
        let memory = self.wild(Access::Write);
        let block = IndexExpr::from(self.block);
        self.thread_loop(BLOCK, WARPS * WARP_THREADS, |this, thread| {
            let all = (1..WARPS).fold(this.load(parts, constant(0), THREAD), |all, n| {
                let next = this.load(parts, constant(n), THREAD);
                this.map(ScalarOp::Max, &[all, next], THREAD)
            });
            // All numbers of f16 are tame. What is none is not below anything.
            let most = match m.dtype {
                DType::F16 => f64::from(f32::MAX),
                _ => TAME,
            };
            let most = this.lo.constant(Scalar::from_f64(DType::F32, most));
            let tame = this.map(ScalarOp::Le, &[all, most], THREAD);
            let [none, one] = [0, 1].map(|n| this.lo.constant(Scalar::from_i64(DType::I32, n)));
            let wild = this.map(ScalarOp::Select, &[tame, none, one], THREAD);
            let leads = this.is_first(&thread, THREAD);
            this.store(memory, block, wild, Some(leads), THREAD);
        });
    }

    /// By point of the other axes and part: 1 where an element is not tame, otherwise 0.
    fn wild(&mut self, access: Access) -> Memory {
        let len = self.points.clone() * constant(PARTS);
        Memory::Param(self.lo.temporary(0, DType::I32, len, access))
    }

    /// Has the block go through tiles of keys up to the last one that one of its rows sees, unless something is not tame.
    pub(super) fn leave_hidden_out(&mut self, m: &Matrices) {
        let Some(horizon) = &self.form.horizon else { return };
        let behind = self.first_row.clone() + constant(self.form.rows) + horizon.last.clone();
        let needed = behind.ceil_div(m.keys);
        let (memory, first) = (self.wild(Access::Read), self.number.clone() * constant(PARTS));
        let found = |this: &mut Self, part: i64| {
            let at = (first.clone() + constant(part)).simplify(&this.lo);
            this.load(memory, at, BLOCK)
        };
        let all = (1..PARTS).fold(found(self, 0), |all, part| {
            let next = found(self, part);
            self.map(ScalarOp::Max, &[all, next], BLOCK)
        });
        let wild = self.lo.new_var(constant(2), BLOCK);
        self.lo.push(BLOCK, Stmt::Clamp { var: wild, value: all });
        let tiles = self.lo.kernel.extents[self.tile.0 as usize].clone();
        let looked_at = IndexExpr::min(&tiles, &(needed + IndexExpr::from(wild) * tiles.clone())).simplify(&self.lo);
        self.seen = IndexExpr::min(&self.keys, &(looked_at.clone() * constant(m.keys))).simplify(&self.lo);
        // The first row sees fewest.
        let by_all = IndexExpr::min(
            &(self.first_row.clone() + horizon.last.clone() + constant(1)),
            &self.keys,
        );
        self.seen_tiles = IndexExpr::floor_div(&by_all, &constant(m.keys)).simplify(&self.lo);
        self.lo.kernel.extents[self.tile.0 as usize] = (looked_at - self.seen_tiles.clone()).simplify(&self.lo);
    }

    /// What the softmax is taken of where a row sees a key of that score.
    pub(super) fn seen_score(&mut self, score: ValueId) -> ValueId {
        let steps = self.form.horizon.as_ref().map_or(&[][..], |h| &h.seen);
        let score = self.lo.convert(score, self.lo.graph.ty(self.form.scores).dtype);
        steps.iter().fold(score, |x, step| match step {
            OfScore::Convert(to) => self.lo.convert(x, *to),
            OfScore::Map(op, by) => {
                let by = self.lo.constant(*by);
                self.map(*op, &[x, by], LOOP)
            }
        })
    }
}
