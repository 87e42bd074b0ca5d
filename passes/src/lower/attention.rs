//! Attention in blocks: queries in shared memory, keys and values as they go by, and for each row the maximum and the sum so far.
//!
//! ```text
//! for each block of rows:
//!   queries of the block to shared memory; results, maxima and sums of nothing
//!   for each 32 keys:
//!     keys to shared memory
//!     scores of the tile, 4 by 2 of each thread, with what is computed from them element by element
//!     four lanes for each row: maximum so far, weights, sum so far; meanwhile values to shared memory
//!     results of the tile, 4 rows of each thread
//!   results out
//! ```
//!
//! Where matrix instructions take the operands, warps multiply both tiles: see [`warps`]. Of a single row the threads share the keys:
//! see [`row`]; blocks may share them too: see [`parts`].
//!
//! A row's weights are divided by the sum so far, and its result so far is scaled by what that sum has grown by, so that it is
//! an average of values all along: nothing overflows that would not overflow behind a whole softmax. Rows that have seen no key but
//! hidden ones (minus infinity) have no weight, and where all are hidden the result is not a number, as that of a softmax, or zero where
//! the graph says so.
//!
//! One thing differs from a whole softmax: a weight that is zero in the end, but of which no single tile made it zero, is that of a finite
//! number until then, so that an infinite value under it gives an infinity, and not NaN, which zero times infinity is.

mod memories;
mod parts;
mod row;
mod tame;
mod warps;

use smallvec::SmallVec;
use tlc_ir::graph::{Monoid, Shape};
use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::{Access, Bind, Collective, CollectiveKind, Group, Memory, Op, Stmt, ValueId};
use tlc_ir::target::WARP_THREADS;
use tlc_ir::{DType, Graph, NodeId, NodeKind, Scalar, ScalarOp};

use memories::Memories;

use super::{Form, Level, Lowerer, Nest};
use crate::access::{Index, is_source};
use crate::cluster::Cluster;
use crate::math::EXP_NORMAL;
use crate::partition::{Attention, AttentionForm, Lines};
use tlc_ir::graph::infer::flat_index;

/// Levels of statements: a block's, those of a tile of keys, a thread's, those of its loops.
const BLOCK: usize = 0;
const TILE: usize = 1;
const THREAD: usize = 2;
const LOOP: usize = 3;

/// Lanes that turn a row's scores into weights together, and rows of which a warp does so at once.
const ROW_LANES: i64 = 4;
const WARP_ROWS: i64 = WARP_THREADS / ROW_LANES;

/// Rows of an operand that is computed which a warp brings to shared memory at a time.
const COMPUTED_ROWS: i64 = 4;

/// What a nest computes of an attention.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// All of it.
    Whole,
    /// What a part of the keys has.
    Part,
    /// The result of all parts.
    Join,
    /// Whether queries, keys and values are tame, before a whole one that may leave hidden keys out.
    Tame,
}

/// Lowers an attention.
pub(super) fn lower(graph: &Graph, cluster: &Cluster, form: &Attention, is_root: &[bool]) -> Vec<Nest> {
    let stages: &[Stage] = match &form.form {
        AttentionForm::Row(row) if row.parts > 1 => &[Stage::Part, Stage::Join],
        AttentionForm::Warps(_) if form.horizon.is_some() => &[Stage::Tame, Stage::Whole],
        _ => &[Stage::Whole],
    };
    stages
        .iter()
        .map(|s| lower_stage(graph, cluster, form, is_root, *s))
        .collect()
}

fn lower_stage(graph: &Graph, cluster: &Cluster, form: &Attention, is_root: &[bool], stage: Stage) -> Nest {
    let mut lo = Lowerer::new(graph, &cluster.roots, is_root);
    lo.levels = (0..=LOOP).map(|_| Level::default()).collect();
    // Loops over keys may be empty, and what they read lies outside then.
    lo.may_not_run = true;
    let mut blocks = Blocks::new(lo, form, stage);
    match &form.form {
        AttentionForm::Threads => {
            blocks.begin();
            blocks.tiles();
            blocks.end();
        }
        AttentionForm::Row(row) => match stage {
            Stage::Join => blocks.join_parts(row),
            Stage::Whole | Stage::Part | Stage::Tame => blocks.row(row, stage),
        },
        AttentionForm::Warps(matrices) if stage == Stage::Tame => blocks.tame(matrices),
        AttentionForm::Warps(matrices) => {
            blocks.begin_by_warps(matrices);
            blocks.tiles_by_warps(matrices);
            blocks.end_by_warps(matrices);
        }
    }
    blocks.nest()
}

struct Blocks<'a> {
    lo: Lowerer<'a>,
    form: &'a Attention,
    dtype: DType,
    /// Dtype of operands in shared memory.
    held: DType,
    memories: Memories,
    /// Distances between rows in shared memory: queries, keys, values, weights.
    strides: [i64; 4],
    block: VarId,
    /// The point of the scores that the block is at, but for rows and keys.
    entry: Index,
    /// The first row of the block.
    first_row: IndexExpr,
    rows: IndexExpr,
    keys: IndexExpr,
    /// Keys that the block looks at: the first so many.
    seen: IndexExpr,
    /// Tiles of keys that all rows of the block see, of which nothing is masked.
    seen_tiles: IndexExpr,
    /// A tile of the others.
    tile: VarId,
    /// The first tile of the block.
    first_tile: IndexExpr,
    /// Rows of the scores, where each is a block's.
    row_count: IndexExpr,
    /// Points of the axes other than those of rows and keys, and the number of the block's.
    points: IndexExpr,
    number: IndexExpr,
}

/// An expression that is a constant.
fn constant(n: i64) -> IndexExpr {
    IndexExpr::Const(n)
}

/// A loop over a body.
fn around(var: VarId, bind: Bind, body: Vec<Stmt>) -> Stmt {
    Stmt::Loop { var, bind, body }
}

impl<'a> Blocks<'a> {
    fn new(mut lo: Lowerer<'a>, form: &'a Attention, stage: Stage) -> Blocks<'a> {
        let graph = lo.graph;
        let dtype = graph.ty(form.masked).dtype;
        let shape: Shape = graph.ty(form.scores).shape.clone();
        let keys = shape[shape.len() - 1].clone();
        let rows = form.row_axis.map_or(IndexExpr::ONE, |axis| shape[axis].clone());
        let row_blocks = match stage {
            Stage::Tame => constant(tame::PARTS),
            Stage::Whole | Stage::Part | Stage::Join => rows.ceil_div(form.rows),
        };
        let outer = (0..shape.len() - 1).filter(|a| Some(*a) != form.row_axis);
        let outer: Vec<usize> = outer.collect();
        let parts = match (&form.form, stage) {
            (AttentionForm::Row(row), Stage::Part) => row.parts,
            _ => 1,
        };
        let points = IndexExpr::product(outer.iter().map(|&a| &shape[a]));
        let row_count = points.clone() * row_blocks.clone();
        let block = lo.new_var(row_count.clone() * constant(parts), BLOCK);
        let mut rest: IndexExpr = block.into();
        let part = IndexExpr::modulo(&rest, &constant(parts)).simplify(&lo);
        rest = IndexExpr::floor_div(&rest, &constant(parts)).simplify(&lo);
        // Where there are none, no block divides by their number.
        let divisor = |n: &IndexExpr| if n.is(0) { IndexExpr::ONE } else { n.clone() };
        // Blocks of rows are innermost: neighbours read the same keys.
        let mut entry: Index = SmallVec::from_elem(IndexExpr::ZERO, shape.len());
        let mut row_block = IndexExpr::modulo(&rest, &divisor(&row_blocks)).simplify(&lo);
        if form.horizon.is_some() {
            // Those that see most keys take longest, and come first.
            row_block = row_blocks.clone() - constant(1) - row_block;
        }
        let first_row = (row_block * constant(form.rows)).simplify(&lo);
        rest = IndexExpr::floor_div(&rest, &divisor(&row_blocks)).simplify(&lo);
        let number = rest.clone();
        for (k, &axis) in outer.iter().enumerate().rev() {
            entry[axis] = match k {
                0 => rest.clone(),
                _ => IndexExpr::modulo(&rest, &divisor(&shape[axis])).simplify(&lo),
            };
            rest = IndexExpr::floor_div(&rest, &divisor(&shape[axis])).simplify(&lo);
        }
        let tiles = keys.ceil_div(form.keys()).ceil_div(parts);
        let tile = lo.new_var(tiles.clone(), TILE);
        let first_tile = (part * tiles).simplify(&lo);
        let (strides, held) = match &form.form {
            AttentionForm::Warps(matrices) => {
                let [query, key, value] = matrices.strides();
                ([query, key, value, 0], matrices.dtype)
            }
            AttentionForm::Row(row) => (row::strides(row, form.features), row.dtype),
            AttentionForm::Threads => (Attention::strides(form.features), dtype),
        };
        let memories = Memories::new(&mut lo, form, (dtype, held), strides, stage);
        Blocks {
            lo,
            form,
            dtype,
            held,
            memories,
            strides,
            block,
            entry,
            first_row,
            rows,
            seen: keys.clone(),
            seen_tiles: IndexExpr::ZERO,
            keys,
            tile,
            first_tile,
            row_count,
            points,
            number,
        }
    }

    fn threads(form: &Attention) -> i64 {
        match &form.form {
            AttentionForm::Warps(m) => form.rows / m.rows * WARP_THREADS,
            AttentionForm::Row(row) => row.threads,
            AttentionForm::Threads => form.rows / Attention::PART_ROWS * Attention::PART_THREADS,
        }
    }

    fn warps(form: &Attention) -> i64 {
        Self::threads(form) / WARP_THREADS
    }

    /// Columns of a thread's part of the scores.
    fn score_columns() -> i64 {
        Attention::KEYS / Attention::PART_THREADS
    }

    /// Columns of a thread's part of the results.
    fn result_columns(&self) -> i64 {
        self.strides[2] / Attention::PART_THREADS
    }

    /// The statements of a level, which is then empty.
    fn take(&mut self, level: usize) -> Vec<Stmt> {
        std::mem::take(&mut self.lo.levels[level]).stmts
    }

    /// A loop of the threads of a block, or of a warp, at a level.
    fn thread_loop(&mut self, level: usize, threads: i64, f: impl FnOnce(&mut Self, IndexExpr)) {
        let var = self.lo.new_var(constant(threads), THREAD);
        f(self, var.into());
        let body = self.take(THREAD);
        self.lo.push(level, around(var, Bind::Thread, body));
    }

    /// Loops of a thread, one in the other, outermost first.
    fn loops<const N: usize>(&mut self, extents: [(i64, Bind); N], f: impl FnOnce(&mut Self, [IndexExpr; N])) {
        let vars = extents.map(|(extent, _)| self.lo.new_var(constant(extent), LOOP));
        f(self, vars.map(IndexExpr::from));
        let mut body = self.take(LOOP);
        for (var, (_, bind)) in vars.into_iter().zip(extents).rev() {
            body = vec![around(var, bind, body)];
        }
        self.lo.levels[THREAD].stmts.extend(body);
    }

    fn load(&mut self, memory: Memory, index: IndexExpr, level: usize) -> ValueId {
        let dtype = self.lo.kernel.memory_dtype(memory);
        let mask = None;
        self.lo.emit(Op::Load { memory, index, mask }, dtype, level)
    }

    fn store(&mut self, memory: Memory, index: IndexExpr, value: ValueId, mask: Option<ValueId>, level: usize) {
        self.lo.push(
            level,
            Stmt::Store {
                memory,
                index,
                value,
                mask,
            },
        );
    }

    fn barrier(&mut self, level: usize) {
        self.lo.push(level, Stmt::Barrier);
    }

    /// An operation at a level, so that it is computed where its operands are loaded.
    fn map(&mut self, op: ScalarOp, args: &[ValueId], level: usize) -> ValueId {
        let dtypes: SmallVec<[DType; 3]> = args.iter().map(|&a| self.lo.kernel.dtype(a)).collect();
        let dtype = op.result_dtype(&dtypes).unwrap_or(self.dtype);
        self.lo.emit(Op::Map(op, args.into()), dtype, level)
    }

    fn number(&mut self, value: f64) -> ValueId {
        self.lo.constant(Scalar::from_f64(self.dtype, value))
    }

    /// Whether an index is below an extent, where that is not known.
    fn below(&mut self, index: &IndexExpr, extent: &IndexExpr) -> Option<ValueId> {
        (!index.proves_less(extent, &self.lo)).then(|| self.lo.inside(index, extent))
    }

    fn both(&mut self, a: Option<ValueId>, b: Option<ValueId>) -> Option<ValueId> {
        match b {
            Some(b) => Some(self.lo.and(a, b)),
            None => a,
        }
    }

    /// The operand of a contraction and its index where the contraction's labels have these values.
    fn operand(&self, product: NodeId, side: usize, of_label: &dyn Fn(u16) -> IndexExpr) -> (NodeId, Index) {
        let node = self.lo.graph.node(product);
        let NodeKind::Einsum { inputs, .. } = &node.kind else {
            return (product, Index::new());
        };
        (node.operands[side], inputs[side].iter().map(|&l| of_label(l)).collect())
    }

    /// The values of a contraction's labels at a point of its result, where what it sums is at an index.
    fn labels(&self, product: NodeId, point: &Index, summed: &IndexExpr) -> impl Fn(u16) -> IndexExpr + use<> {
        let output = match &self.lo.graph.node(product).kind {
            NodeKind::Einsum { output, .. } => output.clone(),
            _ => SmallVec::new(),
        };
        let (point, summed) = (point.clone(), summed.clone());
        move |label| match output.iter().position(|&l| l == label) {
            Some(axis) => point[axis].clone(),
            None => summed.clone(),
        }
    }

    /// The point of the scores at a row and a key.
    fn point(&self, row: &IndexExpr, key: &IndexExpr) -> Index {
        let mut point = self.entry.clone();
        let last = point.len() - 1;
        if let Some(axis) = self.form.row_axis {
            point[axis] = row.clone();
        }
        point[last] = key.clone();
        point
    }

    /// The point of the result at a row and a feature.
    fn result_point(&self, row: &IndexExpr, feature: &IndexExpr) -> Index {
        let scores = self.point(row, &IndexExpr::ZERO);
        let NodeKind::Einsum { inputs, output, .. } = &self.lo.graph.node(self.form.result).kind else {
            return Index::new();
        };
        let weights = &inputs[self.form.weights];
        let axis = |l: &u16| match weights.iter().position(|w| w == l) {
            Some(axis) => scores[axis].clone(),
            None => feature.clone(),
        };
        output.iter().map(axis).collect()
    }

    /// How the loop over the rows of an operand runs: several loads are in flight where nothing but loads is copied out.
    fn rows_bind(&self, product: NodeId, side: usize) -> Bind {
        let graph = self.lo.graph;
        let mut at = graph.node(product).operands[side];
        while let NodeKind::View(view) = &graph.node(at).kind
            && view.fill().is_none()
            && !self.lo.is_root[at.index()]
        {
            at = graph.node(at).operands[0];
        }
        match is_source(&graph.node(at).kind) || self.lo.is_root[at.index()] {
            true => Bind::Unroll,
            false => Bind::Serial,
        }
    }

    /// Brings rows of an operand to shared memory, so many of so many elements, each to a stretch of `stretch` elements of which the
    /// rest is zero. A warp takes a row at a time. Runs inside a loop of the block's threads.
    fn fill(
        &mut self,
        thread: &IndexExpr,
        (memory, lines, rows_bind): (Memory, Lines, Bind),
        [rows, width, stretch]: [i64; 3],
        element: impl Fn(&mut Self, &IndexExpr, &IndexExpr) -> ((NodeId, Index), Option<ValueId>),
    ) {
        let warps = Self::warps(self.form);
        let (warp, lane) = (
            IndexExpr::floor_div(thread, &constant(WARP_THREADS)),
            IndexExpr::modulo(thread, &constant(WARP_THREADS)),
        );
        let columns = (stretch + WARP_THREADS - 1) / WARP_THREADS;
        // Of what is computed the loads of several rows are in flight.
        let each = rows / warps;
        let several = rows_bind == Bind::Serial && each % COMPUTED_ROWS == 0 && columns <= COMPUTED_ROWS;
        let together = if several { COMPUTED_ROWS } else { 1 };
        let extents = [
            (each / together, rows_bind),
            (together, Bind::Unroll),
            (columns, Bind::Unroll),
        ];
        let dtype = self.held;
        self.loops(extents, |this, [n, r, c]| {
            let row = warp + (n * constant(together) + r) * constant(warps);
            let column = lane + c * constant(WARP_THREADS);
            let ((node, index), known) = element(this, &row, &column);
            let inside = this.below(&column, &constant(width));
            let read = this.both(known, inside);
            let value = this.lo.value_of(node, &index, read);
            // To what the contraction computes in; wider types hold its values.
            let mut value = this.lo.convert(value, dtype);
            if let Some(read) = read {
                let zero = this.lo.constant(dtype.zero());
                value = this.map(ScalarOp::Select, &[read, value, zero], LOOP);
            }
            let written = this.below(&column, &constant(stretch));
            let at = lines.at(&row, &column).simplify(&this.lo);
            this.store(memory, at, value, written, LOOP);
        });
    }

    /// What is before the loop over tiles of keys.
    fn begin(&mut self) {
        let (form, threads) = (self.form, Self::threads(self.form));
        let (queries, results) = (self.memories.queries, self.memories.results);
        let part = Attention::PART_ROWS * self.result_columns();
        let [features, _] = form.features;
        let (first_row, all_rows) = (self.first_row.clone(), self.rows.clone());
        let (stride, bind) = (self.strides[0], self.rows_bind(form.scores, form.query));
        self.thread_loop(BLOCK, threads, |this, thread| {
            this.loops([(part, Bind::Unroll)], |this, [n]| {
                let zero = this.number(0.0);
                this.store(results, n, zero, None, LOOP);
            });
            this.fill(
                &thread,
                (queries, Lines::apart(stride), bind),
                [form.rows, features, features],
                |this, row, column| {
                    let row = first_row.clone() + row.clone();
                    let labels = this.labels(form.scores, &this.point(&row, &IndexExpr::ZERO), column);
                    let known = this.below(&row, &all_rows);
                    (this.operand(form.scores, form.query, &labels), known)
                },
            );
        });
        self.begin_rows();
        self.barrier(BLOCK);
    }

    /// Maxima and sums of nothing.
    fn begin_rows(&mut self) {
        let (form, most, sum) = (self.form, self.memories.most, self.memories.sum);
        self.warp_loop(BLOCK, |this, _| {
            this.thread_loop(TILE, WARP_THREADS, |this, _| {
                this.loops(
                    [(form.rows / Self::warps(form) / WARP_ROWS, Bind::Unroll)],
                    |this, [n]| {
                        let (lowest, zero) = (this.number(f64::NEG_INFINITY), this.number(0.0));
                        this.store(most, n.clone(), lowest, None, LOOP);
                        this.store(sum, n, zero, None, LOOP);
                    },
                );
            });
        });
    }

    /// A loop over the warps of a block at a level; its body's statements are those of the level of tiles.
    fn warp_loop(&mut self, level: usize, f: impl FnOnce(&mut Self, IndexExpr)) {
        let var = self.lo.new_var(constant(Self::warps(self.form)), TILE);
        let before = std::mem::take(&mut self.lo.levels[TILE]);
        f(self, var.into());
        let body = std::mem::replace(&mut self.lo.levels[TILE], before).stmts;
        self.lo.push(level, around(var, Bind::Warp, body));
    }

    fn tiles(&mut self) {
        let (form, threads) = (self.form, Self::threads(self.form));
        let first_key = IndexExpr::from(self.tile) * constant(Attention::KEYS);
        let [features, width] = form.features;
        let (tile, strides, keys) = (self.memories.tile, self.strides, self.keys.clone());
        let binds = [
            self.rows_bind(form.scores, 1 - form.query),
            self.rows_bind(form.result, 1 - form.weights),
        ];
        let at = first_key.clone();
        self.thread_loop(TILE, threads, |this, thread| {
            this.fill(
                &thread,
                (tile, Lines::apart(strides[1]), binds[0]),
                [Attention::KEYS, features, features],
                |this, row, column| {
                    let key = at.clone() + row.clone();
                    let labels = this.labels(form.scores, &this.point(&IndexExpr::ZERO, &key), column);
                    let known = this.below(&key, &keys);
                    (this.operand(form.scores, 1 - form.query, &labels), known)
                },
            );
        });
        self.barrier(TILE);
        self.thread_loop(TILE, threads, |this, thread| this.scores(&thread, &first_key));
        self.barrier(TILE);
        self.warp_loop(TILE, |this, warp| this.softmax(&warp));
        let (at, keys) = (first_key, self.keys.clone());
        self.thread_loop(TILE, threads, |this, thread| {
            this.fill(
                &thread,
                (tile, Lines::apart(strides[2]), binds[1]),
                [Attention::KEYS, width, strides[2]],
                |this, row, column| {
                    let key = at.clone() + row.clone();
                    let point = this.result_point(&IndexExpr::ZERO, column);
                    let labels = this.labels(form.result, &point, &key);
                    let known = this.below(&key, &keys);
                    (this.operand(form.result, 1 - form.weights, &labels), known)
                },
            );
        });
        self.barrier(TILE);
        self.thread_loop(TILE, threads, Self::add_up);
        self.barrier(TILE);
        let body = self.take(TILE);
        let tile = self.tile;
        self.lo.push(BLOCK, around(tile, Bind::Serial, body));
    }

    /// The first of a thread's rows of a tile, and the first of its columns.
    fn part(thread: &IndexExpr) -> (IndexExpr, IndexExpr) {
        let across = constant(Attention::PART_THREADS);
        let row = IndexExpr::floor_div(thread, &across) * constant(Attention::PART_ROWS);
        (row, IndexExpr::modulo(thread, &across))
    }

    /// A thread's scores of a tile, and what is computed from them, to shared memory.
    fn scores(&mut self, thread: &IndexExpr, first_key: &IndexExpr) {
        let Memories {
            queries,
            tile,
            scores,
            weights,
            ..
        } = self.memories;
        let (form, [query, key, _, weight]) = (self.form, self.strides);
        let (rows, columns) = (Attention::PART_ROWS, Self::score_columns());
        let (down, across) = Self::part(thread);
        let next = constant(Attention::PART_THREADS);
        self.loops([(rows * columns, Bind::Unroll)], |this, [n]| {
            let zero = this.number(0.0);
            this.store(scores, n, zero, None, LOOP);
        });
        let steps = form.features[0];
        let extents = [(steps, Bind::Serial), (rows, Bind::Unroll), (columns, Bind::Unroll)];
        self.loops(extents, |this, [k, r, c]| {
            let left = (down.clone() + r.clone()) * constant(query) + k.clone();
            let right = (across.clone() + c.clone() * next.clone()) * constant(key) + k;
            let (left, right) = (this.load(queries, left, LOOP), this.load(tile, right, LOOP));
            this.multiply_add(left, right, (scores, r * constant(columns) + c));
        });
        self.loops([(rows, Bind::Unroll), (columns, Bind::Unroll)], |this, [r, c]| {
            let (row, column) = (down + r.clone(), across + c.clone() * next);
            let score = this.load(scores, r * constant(columns) + c, LOOP);
            let value = this.masked(score, &row, &column, first_key);
            this.store(weights, row * constant(weight) + column, value, None, LOOP);
        });
    }

    /// What the softmax is taken of, where the sum of the first contraction is a score at a row and a column of a tile.
    fn masked(&mut self, score: ValueId, row: &IndexExpr, column: &IndexExpr, first_key: &IndexExpr) -> ValueId {
        let (i, j) = (self.first_row.clone() + row.clone(), first_key.clone() + column.clone());
        let (all_rows, all_keys) = (self.rows.clone(), self.keys.clone());
        let (rows_known, keys_known) = (self.below(&i, &all_rows), self.below(&j, &all_keys));
        let mask = self.both(rows_known, keys_known);
        let score = self.lo.convert(score, self.lo.graph.ty(self.form.scores).dtype);
        let point = self.point(&i, &j);
        for mask in [None, mask] {
            let key = (self.form.scores, point.clone(), mask);
            self.lo.levels[LOOP].memo.insert(key, score);
        }
        let value = self.lo.value_of(self.form.masked, &point, mask);
        // Behind the last key nothing is seen.
        match keys_known {
            Some(known) => {
                let lowest = self.number(f64::NEG_INFINITY);
                self.map(ScalarOp::Select, &[known, value, lowest], LOOP)
            }
            None => value,
        }
    }

    /// Adds a product to an element of a thread's own.
    fn multiply_add(&mut self, left: ValueId, right: ValueId, (memory, index): (Memory, IndexExpr)) {
        let sum = self.load(memory, index.clone(), LOOP);
        let sum = self.map(ScalarOp::Fma, &[left, right, sum], LOOP);
        self.store(memory, index, sum, None, LOOP);
    }

    /// Turns the scores of a warp's rows into weights, four lanes for each row, of which a warp has eight at once.
    fn softmax(&mut self, warp: &IndexExpr) {
        let warp_rows = self.form.rows / Self::warps(self.form);
        let Memories {
            weights,
            scale,
            sum,
            lane,
            ..
        } = self.memories;
        let [.., stride] = self.strides;
        let own = self.form.keys() / ROW_LANES;
        let combined = constant(own);
        let each = self.lo.new_var(constant(warp_rows / WARP_ROWS), TILE);
        let first_row = warp.clone() * constant(warp_rows) + IndexExpr::from(each) * constant(WARP_ROWS);
        let outside = std::mem::take(&mut self.lo.levels[TILE]);
        let collective = |this: &mut Self, monoid| {
            let all = Collective {
                kind: CollectiveKind::Reduce(monoid),
                group: Group::Part(ROW_LANES),
                memory: lane,
                index: combined.clone(),
            };
            this.lo.push(TILE, Stmt::Collective(Box::new(all)));
        };
        let row_of = |t: &IndexExpr| first_row.clone() + IndexExpr::floor_div(t, &constant(ROW_LANES));
        self.thread_loop(TILE, WARP_THREADS, |this, t| {
            let row = row_of(&t) * constant(stride);
            this.own_keys(&t, |this, key, n| {
                let score = this.load(weights, row + key, LOOP);
                this.store(lane, n, score, None, LOOP);
            });
            let scores = (0..own).map(|n| this.load(lane, constant(n), THREAD)).collect();
            let most = this.combined(ScalarOp::Max, scores);
            this.store(lane, combined.clone(), most, None, THREAD);
        });
        collective(self, Monoid::Max);
        self.thread_loop(TILE, WARP_THREADS, |this, _| {
            let tile = this.load(lane, combined.clone(), THREAD);
            let (base, shrunk) = this.grown(tile, each.into());
            let mut powers = Vec::new();
            for n in 0..own {
                let score = this.load(lane, constant(n), THREAD);
                let power = this.map(ScalarOp::Sub, &[score, base], THREAD);
                let power = this.power(power);
                let power = this.cleaned(power, base, THREAD);
                this.store(lane, constant(n), power, None, THREAD);
                powers.push(power);
            }
            let held = this.load(sum, each.into(), THREAD);
            let held = this.map(ScalarOp::Mul, &[held, shrunk], THREAD);
            this.store(sum, each.into(), held, None, THREAD);
            let all = this.combined(ScalarOp::Add, powers);
            this.store(lane, combined.clone(), all, None, THREAD);
        });
        collective(self, Monoid::Add);
        self.thread_loop(TILE, WARP_THREADS, |this, t| {
            let held = this.load(sum, each.into(), THREAD);
            let tile = this.load(lane, combined.clone(), THREAD);
            let all = this.map(ScalarOp::Add, &[held, tile], THREAD);
            let part = this.inverse(all, THREAD);
            let row = row_of(&t);
            this.own_keys(&t, |this, key, n| {
                let power = this.load(lane, n, LOOP);
                let weight = this.map(ScalarOp::Mul, &[power, part], LOOP);
                this.store(weights, row.clone() * constant(stride) + key, weight, None, LOOP);
            });
            let kept = this.map(ScalarOp::Mul, &[held, part], THREAD);
            let leads = this.leads(&t, THREAD);
            this.store(scale, row, kept, Some(leads), THREAD);
            this.store(sum, each.into(), all, None, THREAD);
        });
        let body = std::mem::replace(&mut self.lo.levels[TILE], outside).stmts;
        self.lo.push(TILE, around(each, Bind::Unroll, body));
    }

    /// Statements for each key of a tile that a lane of a row has, and its number among them: neighbours are of neighbouring lanes, so that no two
    /// lanes of a warp wait for each other.
    fn own_keys(&mut self, lane: &IndexExpr, f: impl FnOnce(&mut Self, IndexExpr, IndexExpr)) {
        let own = self.form.keys() / ROW_LANES;
        let lane = IndexExpr::modulo(lane, &constant(ROW_LANES));
        self.loops([(own, Bind::Unroll)], |this, [n]| {
            f(this, n.clone() * constant(ROW_LANES) + lane, n);
        });
    }

    /// Whether a lane is the first of its row.
    fn leads(&mut self, lane: &IndexExpr, level: usize) -> ValueId {
        self.is_first(&IndexExpr::modulo(lane, &constant(ROW_LANES)), level)
    }

    /// Whether a number is 0.
    fn is_first(&mut self, number: &IndexExpr, level: usize) -> ValueId {
        let number = self.lo.index_value(number, DType::I32);
        let none = self.lo.constant(DType::I32.zero());
        self.map(ScalarOp::Eq, &[number, none], level)
    }

    /// Values combined in pairs, and so on.
    fn combined(&mut self, op: ScalarOp, mut values: Vec<ValueId>) -> ValueId {
        while values.len() > 1 {
            let half = values.split_off(values.len() / 2);
            let pairs: Vec<_> = values.into_iter().zip(half).collect();
            values = pairs.into_iter().map(|(a, b)| self.map(op, &[a, b], THREAD)).collect();
        }
        values[0]
    }

    /// Notes the largest score of a tile; returns what to subtract from its scores, and what the sum so far shrinks by.
    fn grown(&mut self, tile: ValueId, row: IndexExpr) -> (ValueId, ValueId) {
        let most = self.memories.most;
        let before = self.load(most, row.clone(), THREAD);
        let now = self.map(ScalarOp::Max, &[before, tile], THREAD);
        // Where nothing has been seen yet there is nothing to subtract.
        let (lowest, zero) = (self.number(f64::NEG_INFINITY), self.number(0.0));
        let unseen = self.map(ScalarOp::Eq, &[now, lowest], THREAD);
        let base = self.map(ScalarOp::Select, &[unseen, zero, now], THREAD);
        let shrunk = self.map(ScalarOp::Sub, &[before, base], THREAD);
        let shrunk = self.power(shrunk);
        let shrunk = self.cleaned(shrunk, base, THREAD);
        self.store(most, row, now, None, THREAD);
        (base, shrunk)
    }

    /// A power of what is left of a score when a base is subtracted. Where the graph says that weights which are not numbers are zero, it is zero
    /// beside a base that is none or infinite, beside which no weight is a number: the row is then as one that has seen nothing.
    pub(super) fn cleaned(&mut self, power: ValueId, base: ValueId, level: usize) -> ValueId {
        if !self.form.cleaned {
            return power;
        }
        let (endless, zero) = (self.number(f64::INFINITY), self.number(0.0));
        let size = self.map(ScalarOp::Abs, &[base], level);
        let finite = self.map(ScalarOp::Lt, &[size, endless], level);
        self.map(ScalarOp::Select, &[finite, power, zero], level)
    }

    /// `e^x` of what is not positive. Where weights are rounded to 16 bits, what is no normal number is zero: the sum, of which the largest power is 1,
    /// is the same, and the rounded weight too, but that bf16 has numbers below 2^-126. It needs no branch.
    fn power(&mut self, x: ValueId) -> ValueId {
        if self.held.bytes() != 2 || self.dtype != DType::F32 {
            return self.map(ScalarOp::Exp, &[x], THREAD);
        }
        let (lowest, zero) = (self.number(-EXP_NORMAL), self.number(0.0));
        let within = self.map(ScalarOp::Max, &[x, lowest], THREAD);
        let within = self.map(ScalarOp::Min, &[within, zero], THREAD);
        let power = self.map(ScalarOp::Exp, &[within], THREAD);
        let below = self.map(ScalarOp::Lt, &[x, lowest], THREAD);
        self.map(ScalarOp::Select, &[below, zero, power], THREAD)
    }

    /// One divided by a sum of powers, or zero of no power.
    fn inverse(&mut self, all: ValueId, level: usize) -> ValueId {
        let (zero, one) = (self.number(0.0), self.number(1.0));
        let unseen = self.map(ScalarOp::Eq, &[all, zero], level);
        let part = self.map(ScalarOp::Div, &[one, all], level);
        self.map(ScalarOp::Select, &[unseen, zero, part], level)
    }

    /// Scales a thread's results and adds those of a tile.
    fn add_up(&mut self, thread: IndexExpr) {
        self.scale(&thread);
        let Memories {
            tile, weights, results, ..
        } = self.memories;
        let [_, _, value, weight] = self.strides;
        let (rows, columns) = (Attention::PART_ROWS, self.result_columns());
        let (down, across) = Self::part(&thread);
        let extents = [
            (Attention::KEYS, Bind::Serial),
            (rows, Bind::Unroll),
            (columns, Bind::Unroll),
        ];
        self.loops(extents, |this, [j, r, c]| {
            let left = (down + r.clone()) * constant(weight) + j.clone();
            let right = j * constant(value) + across + c.clone() * constant(Attention::PART_THREADS);
            let (left, right) = (this.load(weights, left, LOOP), this.load(tile, right, LOOP));
            this.multiply_add(left, right, (results, r * constant(columns) + c));
        });
    }

    /// Scales a thread's results by what is said for each row.
    fn scale(&mut self, thread: &IndexExpr) {
        let Memories { scale, results, .. } = self.memories;
        let (rows, columns) = (Attention::PART_ROWS, self.result_columns());
        let (down, _) = Self::part(thread);
        self.loops([(rows, Bind::Unroll), (columns, Bind::Unroll)], |this, [r, c]| {
            let factor = this.load(scale, down + r.clone(), LOOP);
            let at = r * constant(columns) + c;
            let value = this.load(results, at.clone(), LOOP);
            let value = this.map(ScalarOp::Mul, &[value, factor], LOOP);
            this.store(results, at, value, None, LOOP);
        });
    }

    /// What a row is scaled by in the end, whose sum is there: one, or not a number where no key was seen. Of no keys at all the sum is zero.
    fn whole(&mut self, row: IndexExpr, level: usize) -> ValueId {
        let all = self.load(self.memories.sum, row, level);
        let mut whole = self.map(ScalarOp::Div, &[all, all], level);
        if self.form.guarded {
            let (zero, one) = (self.number(0.0), self.number(1.0));
            let unseen = self.map(ScalarOp::Eq, &[all, zero], level);
            whole = self.map(ScalarOp::Select, &[unseen, one, whole], level);
        }
        if self.keys.interval(&self.lo).lo >= 1 {
            return whole;
        }
        let count = self.lo.index_value(&self.keys.clone(), DType::I64);
        let (none, one) = (self.lo.constant(DType::I64.zero()), self.number(1.0));
        let empty = self.map(ScalarOp::Eq, &[count, none], level);
        self.map(ScalarOp::Select, &[empty, one, whole], level)
    }

    /// What rows are scaled by in the end.
    fn end_rows(&mut self) {
        let form = self.form;
        let warp_rows = form.rows / Self::warps(form);
        let scale = self.memories.scale;
        self.warp_loop(BLOCK, |this, warp| {
            this.thread_loop(TILE, WARP_THREADS, |this, t| {
                this.loops([(warp_rows / WARP_ROWS, Bind::Unroll)], |this, [n]| {
                    let whole = this.whole(n.clone(), LOOP);
                    let leads = this.leads(&t, LOOP);
                    let row = n * constant(WARP_ROWS) + IndexExpr::floor_div(&t, &constant(ROW_LANES));
                    this.store(scale, warp * constant(warp_rows) + row, whole, Some(leads), LOOP);
                });
            });
        });
        self.barrier(BLOCK);
    }

    /// What is behind the loop over tiles of keys.
    fn end(&mut self) {
        self.end_rows();
        let (form, threads) = (self.form, Self::threads(self.form));
        let results = self.memories.results;
        let graph = self.lo.graph;
        let result = form.result;
        let ty = graph.ty(result).clone();
        let memory = Memory::Param(self.lo.param(result, Access::Write));
        let (first_row, all_rows) = (self.first_row.clone(), self.rows.clone());
        let (rows, columns) = (Attention::PART_ROWS, self.result_columns());
        let width = constant(form.features[1]);
        self.thread_loop(BLOCK, threads, |this, thread| {
            this.scale(&thread);
            let (down, across) = Self::part(&thread);
            this.loops([(rows, Bind::Unroll), (columns, Bind::Unroll)], |this, [r, c]| {
                let row = first_row + down + r.clone();
                let feature = across + c.clone() * constant(Attention::PART_THREADS);
                let (rows_known, inside) = (this.below(&row, &all_rows), this.below(&feature, &width));
                let mask = this.both(rows_known, inside);
                let value = this.load(results, r * constant(columns) + c, LOOP);
                let value = this.lo.convert(value, ty.dtype);
                let point = this.result_point(&row, &feature);
                let index = flat_index(&point, &ty.shape).simplify(&this.lo);
                this.store(memory, index, value, mask, LOOP);
            });
        });
    }

    fn nest(mut self) -> Nest {
        let body = self.take(BLOCK);
        let block = self.block;
        self.lo.levels[BLOCK].stmts = vec![around(block, Bind::Block, body)];
        self.lo.finish(Vec::new(), Form::Tiles)
    }
}
