//! The same blocks where warps multiply by matrix instructions: queries, keys and values lie in shared memory as the instructions take
//! them, and a warp has some rows of scores and of results in fragments, of which it combines the scores of each row and multiplies the weights
//! where they are.
//!
//! ```text
//! for each block of rows:
//!   queries of the block and the first keys to shared memory; results, maxima and sums of nothing
//!   for each 64 keys:
//!     values to shared memory, beside what follows
//!     each warp: scores of its rows, with what is computed from them element by element
//!                maximum so far of each row, weights, sum so far; results scaled
//!     the next keys to shared memory, beside what follows
//!     each warp: weights times values
//!   results out
//! ```
//!
//! Rows of operands that lie together in a tensor are copied beside the threads, 16 bytes at a time.
//!
//! Here results are no averages until the end: weights are `2^s e^(x - max)` for a fixed `s`. Where operands have the range of f32, `s` is so small that
//! sums of fewer than `2^24` values are within the range of what is averaged; of f16, whose sums f32 holds in any case, it is so
//! large that small weights have more bits.
//!
//! Where a graph rounds weights to 16 bits, it does so behind the whole softmax. Here a weight is rounded when its tile is done, before it is divided
//! by the sum: what that is off by is at most what rounding it in the end would be.

use tlc_ir::graph::Monoid;
use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::visit::walk;
use tlc_ir::kernel::{Access, AsyncCopy, Bind, Contract, ContractOperand, FoldRows, Memory, Op, Stmt, ValueId};
use tlc_ir::target::GPU_ACCESS_BYTES;
use tlc_ir::{DType, NodeId, NodeKind, ScalarOp};

use super::memories::Memories;
use super::{BLOCK, Blocks, LOOP, THREAD, TILE, constant};
use crate::access::{Index, is_source};
use crate::math::LOG2_E;
use crate::partition::{Lines, Matrices};
use tlc_ir::graph::infer::flat_index;

/// Rows of an operand, and where they go in shared memory.
pub(super) struct Rows {
    pub(super) memory: Memory,
    pub(super) lines: Lines,
    /// How many there are.
    pub(super) rows: i64,
    /// Elements of each.
    pub(super) width: i64,
    /// Elements that are written of each, the rest of them zero.
    pub(super) stretch: i64,
    /// How a loop over rows runs.
    pub(super) bind: Bind,
}

/// The element of an operand that belongs at a row and a column of shared memory.
pub(super) type Place<'p, 'a> = &'p dyn Fn(&Blocks<'a>, &IndexExpr, &IndexExpr) -> (NodeId, Index);
/// Whether there is such a row, where that is not known.
pub(super) type Known<'p, 'a> = &'p dyn Fn(&mut Blocks<'a>, &IndexExpr) -> Option<ValueId>;

/// Loops over a part of the rows that go to shared memory, several elements at a time.
struct PartOfRows {
    thread: VarId,
    round: VarId,
    /// The element of a piece.
    lane: VarId,
    row: IndexExpr,
    /// The first column of the piece.
    column: IndexExpr,
    /// How many variables there were before.
    before: (usize, usize),
}

/// Largest scores from which on any other is so far below that its weight is nothing.
const ONE_RATE_FROM: f64 = (1u64 << 28) as f64;

impl<'a> Blocks<'a> {
    /// What is before the loop over tiles of keys.
    pub(super) fn begin_by_warps(&mut self, m: &Matrices) {
        let (form, results) = (self.form, self.memories.results);
        let (most, sum, rate) = (self.memories.most, self.memories.sum, self.memories.rate);
        self.warp_loop(BLOCK, |this, _| {
            if this.held == DType::BF16 {
                this.set(m, rate, 1, LOG2_E);
            }
            this.set(m, results, m.features[1], 0.0);
            this.set(m, most, 1, f64::NEG_INFINITY);
            this.set(m, sum, 1, 0.0);
        });
        let rows = Rows {
            memory: self.memories.queries,
            lines: m.lines(form.rows, self.strides[0]),
            rows: form.rows,
            width: form.features[0],
            stretch: m.features[0],
            bind: self.rows_bind(form.scores, form.query),
        };
        let (first_row, all_rows) = (self.first_row.clone(), self.rows.clone());
        let place = |this: &Self, row: &IndexExpr, column: &IndexExpr| {
            let point = this.point(&(first_row.clone() + row.clone()), &IndexExpr::ZERO);
            this.operand(form.scores, form.query, &this.labels(form.scores, &point, column))
        };
        let known = |this: &mut Self, row: &IndexExpr| this.below(&(first_row.clone() + row.clone()), &all_rows);
        self.bring(BLOCK, &rows, &place, &known);
    }

    /// A tile of keys after the other: values come while scores are computed, and the next keys while weights are multiplied. What four warps multiply is
    /// there earlier: the next keys are asked for as soon as there are scores, the next values as soon as they are multiplied.
    pub(super) fn tiles_by_warps(&mut self, m: &Matrices) {
        self.leave_hidden_out(m);
        if m.groups {
            self.lo.push(BLOCK, Stmt::Commit);
        }
        self.bring_keys(BLOCK, m, &IndexExpr::ZERO);
        if m.groups {
            self.lo.push(BLOCK, Stmt::Commit);
            self.bring_values(BLOCK, m, &IndexExpr::ZERO);
            self.lo.push(BLOCK, Stmt::Commit);
            // From here on queries are there, keys and values on their way.
            self.lo.push(BLOCK, Stmt::Wait(2));
            self.barrier(BLOCK);
        }
        if !self.seen_tiles.is(0) {
            let tile = self.lo.new_var(self.seen_tiles.clone(), TILE);
            self.tile_by_warps(m, tile, tile.into(), true);
        }
        let behind = self.seen_tiles.clone() + self.tile.into();
        self.tile_by_warps(m, self.tile, behind, false);
        // Keys behind the last tile, or of no tile, are still under way.
        self.arrived(BLOCK);
    }

    /// A loop over tiles of keys, of which a row may see all or not; `tile` is the number of one.
    fn tile_by_warps(&mut self, m: &Matrices, var: VarId, tile: IndexExpr, seen: bool) {
        let first_key = tile * constant(m.keys);
        let next = first_key.clone() + constant(m.keys);
        let masked = (!seen).then_some(&first_key);
        if m.groups {
            self.oldest_arrived();
            self.warp_loop(TILE, |this, warp| this.scores_by_warps(m, &warp));
            self.barrier(TILE);
            self.bring_keys(TILE, m, &next);
            self.lo.push(TILE, Stmt::Commit);
            self.warp_loop(TILE, |this, warp| {
                this.mask_by_warps(m, &warp, masked);
                this.weights_by_warps(m);
            });
            self.oldest_arrived();
            self.warp_loop(TILE, |this, _| this.add_up_by_warps(m));
            self.barrier(TILE);
            self.bring_values(TILE, m, &next);
            self.lo.push(TILE, Stmt::Commit);
        } else {
            self.arrived(TILE);
            self.bring_values(TILE, m, &first_key);
            self.warp_loop(TILE, |this, warp| {
                this.scores_by_warps(m, &warp);
                this.mask_by_warps(m, &warp, masked);
                this.weights_by_warps(m);
            });
            self.arrived(TILE);
            self.bring_keys(TILE, m, &next);
            self.warp_loop(TILE, |this, _| this.add_up_by_warps(m));
        }
        let body = self.take(TILE);
        self.lo.push(BLOCK, super::around(var, Bind::Serial, body));
    }

    /// Brings a tile of keys to shared memory.
    fn bring_keys(&mut self, level: usize, m: &Matrices, first_key: &IndexExpr) {
        let (form, keys) = (self.form, self.seen.clone());
        let known = |this: &mut Self, row: &IndexExpr| this.below(&(first_key.clone() + row.clone()), &keys);
        let rows = Rows {
            memory: self.memories.tile,
            lines: m.lines(m.keys, self.strides[1]),
            rows: m.keys,
            width: form.features[0],
            stretch: m.features[0],
            bind: self.rows_bind(form.scores, 1 - form.query),
        };
        let place = |this: &Self, row: &IndexExpr, column: &IndexExpr| {
            let point = this.point(&IndexExpr::ZERO, &(first_key.clone() + row.clone()));
            this.operand(form.scores, 1 - form.query, &this.labels(form.scores, &point, column))
        };
        self.bring(level, &rows, &place, &known);
    }

    /// Brings a tile of values to shared memory.
    fn bring_values(&mut self, level: usize, m: &Matrices, first_key: &IndexExpr) {
        let (form, keys) = (self.form, self.keys.clone());
        let known = |this: &mut Self, row: &IndexExpr| this.below(&(first_key.clone() + row.clone()), &keys);
        let rows = Rows {
            memory: self.memories.values,
            lines: m.lines(m.keys, self.strides[2]),
            rows: m.keys,
            width: form.features[1],
            stretch: m.features[1],
            bind: self.rows_bind(form.result, 1 - form.weights),
        };
        let place = |this: &Self, row: &IndexExpr, column: &IndexExpr| {
            let point = this.result_point(&IndexExpr::ZERO, column);
            let key = first_key.clone() + row.clone();
            this.operand(form.result, 1 - form.weights, &this.labels(form.result, &point, &key))
        };
        self.bring(level, &rows, &place, &known);
    }

    /// What is behind the loop over tiles of keys.
    pub(super) fn end_by_warps(&mut self, m: &Matrices) {
        let (form, results, scale, sum) = (self.form, self.memories.results, self.memories.scale, self.memories.sum);
        let ty = self.lo.graph.ty(form.result).clone();
        let memory = Memory::Param(self.lo.param(form.result, Access::Write));
        let columns = m.features[1];
        let width = constant(form.features[1]);
        // Pairs of neighbours, which a thread holds, are 4 bytes of a 16-bit type: rows become whole where queries were.
        let stage = self.memories.queries;
        let lines = m.lines(form.rows, self.strides[0]);
        let staged = ty.dtype == self.held && ty.dtype.bytes() == 2 && self.strides[0] >= m.features[1];
        self.warp_loop(BLOCK, |this, warp| {
            this.each(m, scale, 1, |this, [r, _]| {
                let all = this.load(sum, r.clone(), LOOP);
                let part = this.inverse(all, LOOP);
                let whole = this.whole(r.clone(), LOOP);
                let factor = this.map(ScalarOp::Mul, &[part, whole], LOOP);
                this.store(scale, r, factor, None, LOOP);
            });
            let down = warp * constant(m.rows);
            this.each(m, results, columns, |this, [r, feature]| {
                let row = down + r.clone();
                let factor = |this: &mut Self| this.load(scale, r.clone(), LOOP);
                let scaled = |this: &mut Self, factor| {
                    let value = this.load(results, r.clone() * constant(columns) + feature.clone(), LOOP);
                    let value = this.map(ScalarOp::Mul, &[value, factor], LOOP);
                    this.lo.convert(value, ty.dtype)
                };
                if staged {
                    let factor = factor(this);
                    let value = scaled(this, factor);
                    let at = lines.at(&row, &feature).simplify(&this.lo);
                    this.store(stage, at, value, None, LOOP);
                    return;
                }
                this.where_known(&row, |this| {
                    let inside = this.below(&feature, &width);
                    let factor = factor(this);
                    let value = scaled(this, factor);
                    let index = this.result_index(&row, &feature);
                    this.store(memory, index, value, inside, LOOP);
                });
            });
        });
        if staged {
            self.barrier(BLOCK);
            self.store_rows((stage, lines), memory);
        }
    }

    /// Stores the rows of a block that are in shared memory, several neighbours at a time.
    fn store_rows(&mut self, (stage, lines): (Memory, Lines), memory: Memory) {
        let width = self.form.features[1];
        let threads = Self::threads(self.form);
        let lengths = std::iter::successors(Some(GPU_ACCESS_BYTES / self.held.bytes() as i64), |n| {
            (n > &1).then_some(n / 2)
        });
        let lanes = lengths.into_iter().find(|n| width % n == 0).unwrap_or(1);
        let chunks = width / lanes;
        let all = self.form.rows * chunks;
        self.thread_loop(BLOCK, threads, |this, thread| {
            this.loops([((all + threads - 1) / threads, Bind::Unroll)], |this, [n]| {
                let at = n * constant(threads) + thread.clone();
                let row = IndexExpr::floor_div(&at, &constant(chunks)).simplify(&this.lo);
                let column = IndexExpr::modulo(&at, &constant(chunks)).simplify(&this.lo) * constant(lanes);
                let copied = |this: &mut Self| {
                    let lane = this.lo.new_var(constant(lanes), LOOP);
                    let at = (lines.at(&row, &column) + lane.into()).simplify(&this.lo);
                    let column = column.clone() + lane.into();
                    let value = this.load(stage, at, LOOP);
                    let index = this.result_index(&row, &column);
                    this.store(memory, index, value, None, LOOP);
                    let body = this.take(LOOP);
                    this.lo.push(LOOP, super::around(lane, Bind::Lanes, body));
                };
                // The last round may have more threads than there is to store.
                let within = this.below(&at, &constant(all));
                let before = this.take(LOOP);
                this.where_known(&row, copied);
                let body = this.take(LOOP);
                this.lo.levels[LOOP].stmts = match within {
                    Some(cond) => before.into_iter().chain([Stmt::If { cond, body }]).collect(),
                    None => before.into_iter().chain(body).collect(),
                };
            });
        });
    }

    /// Where an element of the result lies.
    pub(super) fn result_index(&self, row: &IndexExpr, feature: &IndexExpr) -> IndexExpr {
        let point = self.result_point(&(self.first_row.clone() + row.clone()), feature);
        flat_index(&point, &self.lo.graph.ty(self.form.result).shape).simplify(&self.lo)
    }

    /// Statements that run if a row of the block is one that there is.
    fn where_known(&mut self, row: &IndexExpr, f: impl FnOnce(&mut Self)) {
        let all_rows = self.rows.clone();
        let known = self.below(&(self.first_row.clone() + row.clone()), &all_rows);
        let before = self.take(LOOP);
        f(self);
        let body = self.take(LOOP);
        self.lo.levels[LOOP].stmts = match known {
            Some(cond) => before.into_iter().chain([Stmt::If { cond, body }]).collect(),
            None => before.into_iter().chain(body).collect(),
        };
    }

    /// The scores of a warp's rows of a tile.
    fn scores_by_warps(&mut self, m: &Matrices, warp: &IndexExpr) {
        let (scores, queries, tile) = (self.memories.scores, self.memories.queries, self.memories.tile);
        let [query, key, ..] = self.strides;
        let lines = [m.lines(self.form.rows, query), m.lines(m.keys, key)];
        let columns = m.keys;
        let down = warp.clone() * constant(m.rows);
        self.set(m, scores, columns, 0.0);
        self.multiply(m, (scores, columns), m.features[0], |[r, c, k]| {
            let left = lines[0].at(&(down.clone() + r), &k);
            [(queries, left), (tile, lines[1].at(&c, &k))]
        });
    }

    /// What is computed from the scores of a tile element by element; of one without a first key every row sees all.
    fn mask_by_warps(&mut self, m: &Matrices, warp: &IndexExpr, first_key: Option<&IndexExpr>) {
        let (scores, columns) = (self.memories.scores, m.keys);
        let down = warp.clone() * constant(m.rows);
        self.each(m, scores, columns, |this, [r, c]| {
            let row = down + r.clone();
            let at = r * constant(columns) + c.clone();
            let score = this.load(scores, at.clone(), LOOP);
            let value = match first_key {
                Some(first_key) => this.masked(score, &row, &c, first_key),
                None => this.seen_score(score),
            };
            if value != score {
                this.store(scores, at, value, None, LOOP);
            }
        });
    }

    /// Turns scores into weights, and scales results by what the weights so far shrink by.
    fn weights_by_warps(&mut self, m: &Matrices) {
        let Memories {
            scores,
            weights,
            results,
            scale,
            most,
            sum,
            base: bases,
            rate: rates,
            ..
        } = self.memories;
        let columns = m.keys;
        let held = self.held;
        let shift = match held {
            DType::F16 => 15.0,
            _ => -24.0,
        };
        self.each(m, bases, 1, |this, [r, _]| {
            let before = this.load(most, r.clone(), LOOP);
            this.store(bases, r, before, None, LOOP);
        });
        self.fold(m, Monoid::Max, scores, columns, bases);
        self.each(m, bases, 1, |this, [r, _]| {
            let (before, now) = (this.load(most, r.clone(), LOOP), this.load(bases, r.clone(), LOOP));
            // Where nothing has been seen yet there is nothing to subtract.
            let (lowest, zero) = (this.number(f64::NEG_INFINITY), this.number(0.0));
            let unseen = this.map(ScalarOp::Eq, &[now, lowest], LOOP);
            let subtracted = this.map(ScalarOp::Select, &[unseen, zero, now], LOOP);
            let (shrunk, base) = match held {
                DType::BF16 => {
                    let [(_, before), (rate, now)] = [before, subtracted].map(|x| this.line(x, shift));
                    this.store(rates, r.clone(), rate, None, LOOP);
                    let shrunk = this.map(ScalarOp::Sub, &[now, before], LOOP);
                    (this.lo.emit(Op::ShortExp2(shrunk), DType::F32, LOOP), now)
                }
                _ => {
                    let shrunk = this.map(ScalarOp::Sub, &[before, subtracted], LOOP);
                    (this.short_exp(shrunk, 0.0), subtracted)
                }
            };
            // Zero, or not a number where the largest score is none or infinite: then the row is not a number, or nothing of it weighs anything.
            let whole = this.map(ScalarOp::Sub, &[subtracted, subtracted], LOOP);
            let base = match this.form.cleaned {
                true => this.map(ScalarOp::Add, &[base, whole], LOOP),
                false => base,
            };
            let shrunk = this.map(ScalarOp::Add, &[shrunk, whole], LOOP);
            let shrunk = this.cleaned(shrunk, shrunk, LOOP);
            let all = this.load(sum, r.clone(), LOOP);
            let all = this.map(ScalarOp::Mul, &[all, shrunk], LOOP);
            for (memory, value) in [(most, now), (bases, base), (scale, shrunk), (sum, all)] {
                this.store(memory, r.clone(), value, None, LOOP);
            }
        });
        self.each(m, scores, columns, |this, [r, c]| {
            let at = r.clone() * constant(columns) + c;
            let (score, base) = (this.load(scores, at.clone(), LOOP), this.load(bases, r.clone(), LOOP));
            let power = match held {
                DType::BF16 => {
                    let rate = this.load(rates, r, LOOP);
                    let power = this.map(ScalarOp::Fma, &[score, rate, base], LOOP);
                    this.lo.emit(Op::ShortExp2(power), DType::F32, LOOP)
                }
                _ => {
                    let power = this.map(ScalarOp::Sub, &[score, base], LOOP);
                    this.short_exp(power, shift)
                }
            };
            let power = this.cleaned(power, base, LOOP);
            this.store(scores, at.clone(), power, None, LOOP);
            if weights != scores {
                let weight = this.lo.convert(power, held);
                this.store(weights, at, weight, None, LOOP);
            }
        });
        self.fold(m, Monoid::Add, scores, columns, sum);
        let columns = m.features[1];
        self.each(m, results, columns, |this, [r, c]| {
            let at = r.clone() * constant(columns) + c;
            let (value, factor) = (this.load(results, at.clone(), LOOP), this.load(scale, r, LOOP));
            let value = this.map(ScalarOp::Mul, &[value, factor], LOOP);
            this.store(results, at, value, None, LOOP);
        });
    }

    /// The line `rate * x + offset` that weights of a row are two to the power of, where its largest score is this: one rounding for each, in place of two. What
    /// the offset is off by is a factor of all of the row's weights, of at most 2^16. Of larger scores two that differ do so by at least 16,
    /// so that all but the largest weigh nothing in so few bits: there the rate is one, and the offset exact.
    fn line(&mut self, most: ValueId, shift: f64) -> (ValueId, ValueId) {
        let size = self.map(ScalarOp::Abs, &[most], LOOP);
        let [limit, slow, rate, shift] = [ONE_RATE_FROM, 1.0, LOG2_E, shift].map(|x| self.number(x));
        let small = self.map(ScalarOp::Lt, &[size, limit], LOOP);
        let rate = self.map(ScalarOp::Select, &[small, rate, slow], LOOP);
        let down = self.map(ScalarOp::Neg, &[rate], LOOP);
        (rate, self.map(ScalarOp::Fma, &[most, down, shift], LOOP))
    }

    /// `2^shift e^x` of what is not positive, for weights of so many bits that matrix instructions take.
    fn short_exp(&mut self, x: ValueId, shift: f64) -> ValueId {
        let (rate, shift) = (self.number(LOG2_E), self.number(shift));
        let x = self.map(ScalarOp::Fma, &[x, rate, shift], LOOP);
        self.lo.emit(Op::ShortExp2(x), DType::F32, LOOP)
    }

    /// Adds weights times values of a tile to a warp's results.
    fn add_up_by_warps(&mut self, m: &Matrices) {
        let (results, weights, values) = (self.memories.results, self.memories.weights, self.memories.values);
        let lines = m.lines(m.keys, self.strides[2]);
        self.multiply(m, (results, m.features[1]), m.keys, |[r, c, k]| {
            let left = r * constant(m.keys) + k.clone();
            [(weights, left), (values, lines.at(&k, &c))]
        });
    }

    /// Sets all elements of a warp's fragment.
    fn set(&mut self, m: &Matrices, memory: Memory, columns: i64, value: f64) {
        self.each(m, memory, columns, |this, [r, c]| {
            let value = this.number(value);
            let at = if columns == 1 { r } else { r * constant(columns) + c };
            this.store(memory, at, value, None, LOOP);
        });
    }

    /// Statements for each element of a warp's fragment, which has so many columns; none if they store nothing.
    fn each(&mut self, m: &Matrices, memory: Memory, columns: i64, f: impl FnOnce(&mut Self, [IndexExpr; 2])) {
        let before = (self.lo.kernel.extents.len(), self.lo.var_level.len());
        let vars = [m.rows, columns].map(|n| self.lo.new_var(constant(n), LOOP));
        f(self, vars.map(IndexExpr::from));
        let mut body = self.take(THREAD);
        body.extend(self.take(LOOP));
        if !walk(&body).any(|s| matches!(s, Stmt::Store { .. })) {
            self.lo.kernel.extents.truncate(before.0);
            self.lo.var_level.truncate(before.1);
            return;
        }
        self.lo.push(TILE, Stmt::Each { vars, memory, body });
    }

    /// Combines each row of a fragment with what is there of it.
    fn fold(&mut self, m: &Matrices, monoid: Monoid, from: Memory, columns: i64, to: Memory) {
        let vars = [m.rows, columns].map(|n| self.lo.new_var(constant(n), LOOP));
        let [r, c] = vars.map(IndexExpr::from);
        let all = FoldRows {
            monoid,
            vars,
            to,
            to_index: r.clone(),
            from,
            from_index: r * constant(columns) + c,
        };
        self.lo.push(TILE, Stmt::FoldRows(Box::new(all)));
    }

    /// Adds products to a warp's part; `operands` says where both are at a row, a column and a step.
    fn multiply(
        &mut self,
        m: &Matrices,
        (dst, columns): (Memory, i64),
        steps: i64,
        operands: impl FnOnce([IndexExpr; 3]) -> [(Memory, IndexExpr); 2],
    ) {
        let vars = [m.rows, columns, steps].map(|n| self.lo.new_var(constant(n), LOOP));
        let [row, column, step] = vars.map(IndexExpr::from);
        let dst_index = row.clone() * constant(columns) + column.clone();
        let [left, right] = operands([row, column, step]).map(|(memory, index)| ContractOperand {
            memory,
            index: index.simplify(&self.lo),
            ranges: Default::default(),
        });
        let all = Contract {
            vars,
            dst,
            dst_index,
            left,
            right,
            k_block: Matrices::ROWS,
            precision: m.precision,
            words: false,
        };
        self.lo.push(TILE, Stmt::Contract(Box::new(all)));
    }

    /// What was copied to shared memory is there for all.
    pub(super) fn arrived(&mut self, level: usize) {
        self.lo.push(level, Stmt::Commit);
        self.lo.push(level, Stmt::Wait(0));
        self.barrier(level);
    }

    /// Waits for the older one of two groups of copies.
    fn oldest_arrived(&mut self) {
        self.lo.push(TILE, Stmt::Wait(1));
        self.barrier(TILE);
    }

    /// Brings rows of an operand to shared memory: by copies where they lie together, else element by element.
    pub(super) fn bring(&mut self, level: usize, rows: &Rows, place: Place<'_, 'a>, known: Known<'_, 'a>) {
        let bytes = self.held.bytes() as i64;
        let lengths = std::iter::successors(Some(GPU_ACCESS_BYTES / bytes), |n| Some(n / 2));
        let lengths = lengths.take_while(|n| *n > 0 && n * bytes >= 4);
        let mut lengths = lengths.into_iter();
        if lengths.clone().any(|lanes| self.copy(level, lanes, rows, place, known))
            || lengths.any(|lanes| self.compute(level, lanes, rows, place, known))
        {
            return;
        }
        let to = (rows.memory, rows.lines, rows.bind);
        self.thread_loop(level, Self::threads(self.form), |this, thread| {
            this.fill(
                &thread,
                to,
                [rows.rows, rows.width, rows.stretch],
                |this, row, column| (place(this, row, column), known(this, row)),
            );
        });
    }

    /// Computes so many elements of rows at a time, if what they are computed of lies together and is aligned.
    fn compute(&mut self, level: usize, lanes: i64, rows: &Rows, place: Place<'_, 'a>, known: Known<'_, 'a>) -> bool {
        let threads = Self::threads(self.form);
        let chunks = rows.stretch / lanes;
        if rows.stretch != rows.width || rows.width % lanes != 0 || (rows.rows * chunks) % threads != 0 {
            return false;
        }
        let part = self.part_of_rows([0, threads, rows.rows * chunks / threads], chunks, lanes);
        let (lane, row) = (part.lane, part.row.clone());
        let column = part.column.clone() + lane.into();
        let (node, index) = place(self, &row, &column);
        let from = self.computed_from(node, &index);
        if !from.is_some_and(|(node, index)| self.lies_together(node, &index, (lane, lanes))) {
            self.forget(&part);
            return false;
        }
        let known = known(self, &row);
        let value = self.lo.value_of(node, &index, known);
        let mut value = self.lo.convert(value, self.held);
        if let Some(known) = known {
            let zero = self.lo.constant(self.held.zero());
            value = self.map(ScalarOp::Select, &[known, value, zero], LOOP);
        }
        let to = (rows.lines.at(&row, &part.column) + lane.into()).simplify(&self.lo);
        self.store(rows.memory, to, value, None, LOOP);
        let body = vec![super::around(lane, Bind::Lanes, self.take(LOOP))];
        self.around_rows(level, &part, body);
        true
    }

    /// The one value in memory that an element is computed from, beside numbers, and which element of it.
    fn computed_from(&self, mut node: NodeId, index: &Index) -> Option<(NodeId, Index)> {
        let mut index = index.clone();
        loop {
            if let Some(found) = self.source(node, index.clone()) {
                return Some(found);
            }
            let graph = self.lo.graph;
            let n = graph.node(node);
            match &n.kind {
                NodeKind::View(view) if view.fill().is_none() => {
                    let from = &graph.ty(n.operands[0]).shape;
                    index = view.operand_index(from, &n.ty.shape, &index, &self.lo).index;
                    node = n.operands[0];
                }
                NodeKind::Map(_) | NodeKind::Convert(_) => {
                    let mut read = n.operands.iter().filter(|o| graph.splat_value(**o).is_none());
                    let (Some(&only), None) = (read.next(), read.next()) else {
                        return None;
                    };
                    node = only;
                }
                _ => return None,
            }
        }
    }

    /// Whether so many elements of a value, one for each iteration of a loop, are neighbours of which the first is at a multiple of them.
    fn lies_together(&self, node: NodeId, index: &Index, (lane, lanes): (VarId, i64)) -> bool {
        let index = flat_index(index, &self.lo.graph.ty(node).shape).simplify(&self.lo);
        let first = index.replace_vars(&mut |v| (v == lane).then_some(IndexExpr::ZERO));
        let aligned = IndexExpr::modulo(&first, &constant(lanes)).simplify(&self.lo).is(0);
        aligned && index.affine_in(lane).is_some_and(|(step, _)| step.is(1))
    }

    /// Copies rows beside the threads, so many elements at a time, if they lie together and are aligned.
    fn copy(&mut self, level: usize, lanes: i64, rows: &Rows, place: Place<'_, 'a>, known: Known<'_, 'a>) -> bool {
        if rows.width % lanes != 0 {
            return false;
        }
        let chunks = rows.stretch / lanes;
        let (all, threads) = (rows.rows * chunks, Self::threads(self.form));
        // Whole rounds of the threads, then what is left.
        let parts = [(0, threads, all / threads), (all / threads * threads, all % threads, 1)];
        for (first, threads, rounds) in parts {
            if threads == 0 || rounds == 0 {
                continue;
            }
            let part = self.part_of_rows([first, threads, rounds], chunks, lanes);
            let (lane, row, column) = (part.lane, part.row.clone(), part.column.clone());
            let (node, index) = place(self, &row, &(column.clone() + lane.into()));
            let found = self.source(node, index).filter(|(node, index)| {
                self.lo.graph.ty(*node).dtype == self.held && self.lies_together(*node, index, (lane, lanes))
            });
            let Some((node, index)) = found else {
                // The first part has the same rows as the second.
                self.forget(&part);
                return false;
            };
            let from = Memory::Param(self.lo.param(node, Access::Read));
            let from_index = flat_index(&index, &self.lo.graph.ty(node).shape).simplify(&self.lo);
            let known = known(self, &row);
            let inside = self.below(&column, &constant(rows.width));
            let mask = self.both(known, inside);
            let to_index = rows.lines.at(&row, &column) + lane.into();
            let copy = AsyncCopy {
                var: lane,
                to: rows.memory,
                to_index: to_index.simplify(&self.lo),
                from,
                from_index,
                mask,
            };
            self.lo.push(LOOP, Stmt::CopyAsync(Box::new(copy)));
            let body = self.take(LOOP);
            self.around_rows(level, &part, body);
        }
        true
    }

    /// Loops of threads over so many rounds of them from a first piece of rows on, where a row has so many pieces of so many elements.
    fn part_of_rows(&mut self, [first, threads, rounds]: [i64; 3], chunks: i64, lanes: i64) -> PartOfRows {
        let before = (self.lo.kernel.extents.len(), self.lo.var_level.len());
        let thread = self.lo.new_var(constant(threads), THREAD);
        let round = self.lo.new_var(constant(rounds), LOOP);
        let lane = self.lo.new_var(constant(lanes), LOOP);
        let at = constant(first) + IndexExpr::from(round) * constant(threads) + thread.into();
        PartOfRows {
            thread,
            round,
            lane,
            row: IndexExpr::floor_div(&at, &constant(chunks)).simplify(&self.lo),
            column: IndexExpr::modulo(&at, &constant(chunks)).simplify(&self.lo) * constant(lanes),
            before,
        }
    }

    /// Takes the loops of a part back.
    fn forget(&mut self, part: &PartOfRows) {
        self.lo.kernel.extents.truncate(part.before.0);
        self.lo.var_level.truncate(part.before.1);
    }

    /// Puts the loops of a part around statements.
    fn around_rows(&mut self, level: usize, part: &PartOfRows, body: Vec<Stmt>) {
        self.lo.push(THREAD, super::around(part.round, Bind::Unroll, body));
        let body = self.take(THREAD);
        self.lo.push(level, super::around(part.thread, Bind::Thread, body));
    }

    /// The value in memory that an element of an operand is one of, and which.
    fn source(&self, mut node: NodeId, mut index: Index) -> Option<(NodeId, Index)> {
        let graph = self.lo.graph;
        loop {
            let n = graph.node(node);
            let outside = self.lo.is_root[node.index()] && self.lo.own.binary_search(&node).is_err();
            if is_source(&n.kind) || outside {
                return Some((node, index));
            }
            match &n.kind {
                NodeKind::View(view) if view.fill().is_none() => {
                    let from = &graph.ty(n.operands[0]).shape;
                    index = view.operand_index(from, &n.ty.shape, &index, &self.lo).index;
                    node = n.operands[0];
                }
                _ => return None,
            }
        }
    }
}
