//! An attention of one row, as of a decoder that has one query: the threads of a block share its keys.
//!
//! ```text
//! the query to shared memory; results, maximum and sum of nothing
//! for each 128 keys, or fewer where vectors are long:
//!   keys to shared memory
//!   a thread for each key: its score, with what is computed from it; meanwhile values to shared memory
//!   all threads: maximum so far, weights, sum so far
//!   a thread for each element of the result and some of the keys: what values add to it
//! what threads of other keys have, added up in their order
//! ```
//!
//! All sums are trees that depend on lengths alone. Keys and values go to shared memory as they are stored, 16 bytes at a time.

use tlc_ir::ScalarOp;
use tlc_ir::graph::Monoid;
use tlc_ir::index::IndexExpr;
use tlc_ir::kernel::{Access, Bind, Collective, CollectiveKind, Group, Memory, Stmt, ValueId};
use tlc_ir::target::{GPU_ACCESS_BYTES, WARP_THREADS};

use super::warps::Rows;
use super::{BLOCK, Blocks, LOOP, Stage, THREAD, TILE, around, constant};
use crate::partition::{Lines, SingleRow};

/// Distances between rows in shared memory, as [`Blocks`] has them: those of keys and of values begin in different banks.
pub(super) fn strides(row: &SingleRow, [summed, width]: [i64; 2]) -> [i64; 4] {
    let gap = GPU_ACCESS_BYTES / row.dtype.bytes() as i64;
    [summed, summed + gap, width + gap, row.keys]
}

/// Elements of a key that a thread loads together.
pub(super) fn together(row: &SingleRow, [summed, _]: [i64; 2]) -> i64 {
    let most = GPU_ACCESS_BYTES / row.dtype.bytes() as i64;
    let lengths = std::iter::successors(Some(most), |n| (*n > 1).then_some(n / 2));
    lengths.into_iter().find(|n| summed % n == 0).unwrap_or(1)
}

impl Blocks<'_> {
    /// All of the block.
    pub(super) fn row(&mut self, row: &SingleRow, stage: Stage) {
        self.begin_row(row);
        self.row_tiles(row);
        match stage {
            Stage::Part => self.end_part(row),
            Stage::Whole | Stage::Join | Stage::Tame => self.end_row(row),
        }
    }

    fn begin_row(&mut self, row: &SingleRow) {
        let (form, dtype) = (self.form, self.dtype);
        let (queries, results, most, sum) = (
            self.memories.queries,
            self.memories.results,
            self.memories.most,
            self.memories.sum,
        );
        let [features, _] = form.features;
        self.thread_loop(BLOCK, row.threads, |this, thread| {
            let (lowest, zero) = (this.number(f64::NEG_INFINITY), this.number(0.0));
            this.store(results, constant(0), zero, None, THREAD);
            this.store(most, constant(0), lowest, None, THREAD);
            this.store(sum, constant(0), zero, None, THREAD);
            let rounds = (features + row.threads - 1) / row.threads;
            this.loops([(rounds, Bind::Unroll)], |this, [n]| {
                let column = n * constant(row.threads) + thread.clone();
                let point = this.point(&IndexExpr::ZERO, &IndexExpr::ZERO);
                let labels = this.labels(form.scores, &point, &column);
                let (node, index) = this.operand(form.scores, form.query, &labels);
                let inside = this.below(&column, &constant(features));
                let value = this.lo.value_of(node, &index, inside);
                let value = this.lo.convert(value, dtype);
                this.store(queries, column, value, inside, LOOP);
            });
        });
        self.barrier(BLOCK);
    }

    fn row_tiles(&mut self, row: &SingleRow) {
        let form = self.form;
        let first_key = (self.first_tile.clone() + self.tile.into()) * constant(row.keys);
        let keys = self.keys.clone();
        let known = |this: &mut Self, k: &IndexExpr| this.below(&(first_key.clone() + k.clone()), &keys);
        let rows = |this: &Self, product, side, stride: i64, width: i64| Rows {
            memory: this.memories.tile,
            lines: Lines::apart(stride),
            rows: row.keys,
            width,
            stretch: width,
            bind: this.rows_bind(product, side),
        };
        let [_, key, value, ..] = self.strides;
        let of_keys = rows(self, form.scores, 1 - form.query, key, form.features[0]);
        let place = |this: &Self, k: &IndexExpr, column: &IndexExpr| {
            let point = this.point(&IndexExpr::ZERO, &(first_key.clone() + k.clone()));
            this.operand(form.scores, 1 - form.query, &this.labels(form.scores, &point, column))
        };
        self.bring(TILE, &of_keys, &place, &known);
        self.arrived(TILE);
        self.row_scores(row, &first_key);
        self.barrier(TILE);
        let of_values = rows(self, form.result, 1 - form.weights, value, form.features[1]);
        let place = |this: &Self, k: &IndexExpr, column: &IndexExpr| {
            let point = this.result_point(&IndexExpr::ZERO, column);
            let at = first_key.clone() + k.clone();
            this.operand(form.result, 1 - form.weights, &this.labels(form.result, &point, &at))
        };
        self.bring(TILE, &of_values, &place, &known);
        self.row_softmax(row);
        self.arrived(TILE);
        self.row_results(row);
        self.barrier(TILE);
        let body = self.take(TILE);
        let tile = self.tile;
        self.lo.push(BLOCK, around(tile, Bind::Serial, body));
    }

    /// A thread's score, of which there are fewer than threads where keys are.
    fn row_scores(&mut self, row: &SingleRow, first_key: &IndexExpr) {
        let (queries, tile, sums, lane) = (
            self.memories.queries,
            self.memories.tile,
            self.memories.scores,
            self.memories.lane,
        );
        let [_, key, ..] = self.strides;
        let lanes = together(row, self.form.features);
        let steps = self.form.features[0] / lanes;
        self.thread_loop(TILE, row.threads, |this, _| {
            let lowest = this.number(f64::NEG_INFINITY);
            for n in 0..2 {
                this.store(lane, constant(n), lowest, None, THREAD);
            }
        });
        self.thread_loop(TILE, row.keys, |this, thread| {
            this.loops([(lanes, Bind::Unroll)], |this, [n]| {
                let zero = this.number(0.0);
                this.store(sums, n, zero, None, LOOP);
            });
            let extents = [(steps, Bind::Serial), (lanes, Bind::Lanes)];
            this.loops(extents, |this, [k, n]| {
                let column = k * constant(lanes) + n.clone();
                let left = this.load(queries, column.clone(), LOOP);
                let right = this.load(tile, thread.clone() * constant(key) + column, LOOP);
                let right = this.lo.convert(right, this.dtype);
                this.multiply_add(left, right, (sums, n));
            });
            let parts = (0..lanes).map(|n| this.load(sums, constant(n), THREAD)).collect();
            let score = this.combined(ScalarOp::Add, parts);
            // One statement for what follows, so that it is where the score is.
            this.loops([(1, Bind::Unroll)], |this, _| {
                let value = this.masked(score, &IndexExpr::ZERO, &thread, first_key);
                for n in 0..2 {
                    this.store(lane, constant(n), value, None, LOOP);
                }
            });
        });
    }

    fn row_softmax(&mut self, row: &SingleRow) {
        let (weights, scale, sum, lane) = (
            self.memories.weights,
            self.memories.scale,
            self.memories.sum,
            self.memories.lane,
        );
        let [first, second] = [constant(0), constant(1)];
        let graph = self.lo.graph;
        let rounded = graph.ty(graph.node(self.form.result).operands[self.form.weights]).dtype;
        let width = row.groups * self.form.features[1];
        let (maxima, sums) = (constant(width), constant(width + row.threads / WARP_THREADS));
        self.combine_warps(Monoid::Max, &maxima);
        self.thread_loop(TILE, row.threads, |this, _| {
            let tile = this.of_all_warps(row, ScalarOp::Max, &maxima);
            let (base, shrunk) = this.grown(tile, first.clone());
            let score = this.load(lane, second.clone(), THREAD);
            let power = this.map(ScalarOp::Sub, &[score, base], THREAD);
            let power = this.map(ScalarOp::Exp, &[power], THREAD);
            let power = this.cleaned(power, base, THREAD);
            let held = this.load(sum, first.clone(), THREAD);
            let held = this.map(ScalarOp::Mul, &[held, shrunk], THREAD);
            this.store(sum, first.clone(), held, None, THREAD);
            for n in [&first, &second] {
                this.store(lane, n.clone(), power, None, THREAD);
            }
        });
        self.combine_warps(Monoid::Add, &sums);
        self.thread_loop(TILE, row.threads, |this, thread| {
            let held = this.load(sum, first.clone(), THREAD);
            let tile = this.of_all_warps(row, ScalarOp::Add, &sums);
            let all = this.map(ScalarOp::Add, &[held, tile], THREAD);
            let part = this.inverse(all, THREAD);
            let power = this.load(lane, second.clone(), THREAD);
            let weight = this.map(ScalarOp::Mul, &[power, part], THREAD);
            let weight = this.lo.convert(weight, rounded);
            let weight = this.lo.convert(weight, this.dtype);
            let inside = this.below(&thread, &constant(row.keys));
            this.store(weights, thread, weight, inside, THREAD);
            let kept = this.map(ScalarOp::Mul, &[held, part], THREAD);
            this.store(scale, first.clone(), kept, None, THREAD);
            this.store(sum, first, all, None, THREAD);
        });
    }

    /// What each warp's lanes have, combined, to shared memory from an element on.
    fn combine_warps(&mut self, monoid: Monoid, place: &IndexExpr) {
        let (lane, parts) = (self.memories.lane, self.memories.parts);
        self.warp_loop(TILE, |this, warp| {
            let all = Collective {
                kind: CollectiveKind::Reduce(monoid),
                group: Group::Warp,
                memory: lane,
                index: IndexExpr::ZERO,
            };
            this.lo.push(TILE, Stmt::Collective(Box::new(all)));
            this.thread_loop(TILE, WARP_THREADS, |this, t| {
                let leads = this.is_first(&t, THREAD);
                let value = this.load(lane, IndexExpr::ZERO, THREAD);
                this.store(parts, place.clone() + warp, value, Some(leads), THREAD);
            });
        });
        self.barrier(TILE);
    }

    /// What the warps of a block have there, combined in their order.
    fn of_all_warps(&mut self, row: &SingleRow, op: ScalarOp, place: &IndexExpr) -> ValueId {
        let parts = self.memories.parts;
        let mut all = self.load(parts, place.clone(), THREAD);
        for n in 1..row.threads / WARP_THREADS {
            let next = self.load(parts, place.clone() + constant(n), THREAD);
            all = self.map(op, &[all, next], THREAD);
        }
        all
    }

    /// Scales a thread's element of the result and adds what its keys have.
    fn row_results(&mut self, row: &SingleRow) {
        let (results, weights, tile, scale) = (
            self.memories.results,
            self.memories.weights,
            self.memories.tile,
            self.memories.scale,
        );
        let [_, _, value, ..] = self.strides;
        let width = self.form.features[1];
        self.thread_loop(TILE, row.groups * width, |this, thread| {
            let (group, column) = (
                IndexExpr::floor_div(&thread, &constant(width)),
                IndexExpr::modulo(&thread, &constant(width)),
            );
            let factor = this.load(scale, constant(0), THREAD);
            let before = this.load(results, constant(0), THREAD);
            let before = this.map(ScalarOp::Mul, &[before, factor], THREAD);
            this.store(results, constant(0), before, None, THREAD);
            this.loops([(row.keys / row.groups, Bind::Serial)], |this, [j]| {
                let key = j * constant(row.groups) + group.clone();
                let left = this.load(weights, key.clone(), LOOP);
                let right = this.load(tile, key * constant(value) + column.clone(), LOOP);
                let right = this.lo.convert(right, this.dtype);
                this.multiply_add(left, right, (results, constant(0)));
            });
        });
    }

    /// What the groups of threads have of an element of the result, added up in their order.
    pub(super) fn of_all_groups(&mut self, row: &SingleRow, element: &IndexExpr) -> ValueId {
        let parts = self.memories.parts;
        let width = self.form.features[1];
        let part = |this: &mut Self, n: i64| this.load(parts, constant(n * width) + element.clone(), THREAD);
        let mut all = part(self, 0);
        for n in 1..row.groups {
            let next = part(self, n);
            all = self.map(ScalarOp::Add, &[all, next], THREAD);
        }
        all
    }

    fn end_row(&mut self, row: &SingleRow) {
        let (results, parts) = (self.memories.results, self.memories.parts);
        let width = self.form.features[1];
        let ty = self.lo.graph.ty(self.form.result).clone();
        let memory = Memory::Param(self.lo.param(self.form.result, Access::Write));
        self.thread_loop(BLOCK, row.groups * width, |this, thread| {
            let whole = this.whole(constant(0), THREAD);
            let value = this.load(results, constant(0), THREAD);
            let value = this.map(ScalarOp::Mul, &[value, whole], THREAD);
            this.store(parts, thread, value, None, THREAD);
        });
        self.barrier(BLOCK);
        self.thread_loop(BLOCK, width, |this, thread| {
            let all = this.of_all_groups(row, &thread);
            let value = this.lo.convert(all, ty.dtype);
            let index = this.result_index(&IndexExpr::ZERO, &thread);
            this.store(memory, index, value, None, THREAD);
        });
    }
}
