//! Columns: tiles of them, lanes across the columns of a tile, several rows added up in registers.

use tlc_ir::DType;
use tlc_ir::index::VarId;
use tlc_ir::kernel::visit::{Effect, walk};
use tlc_ir::kernel::{Bind, Kernel, Memory, Stmt};
use tlc_ir::target::CACHE_LINE_BYTES;

use super::vectorize::UNROLL;
use super::windows::WINDOW;
use super::{Directive, ScheduleReason, Scheduler};
use crate::access::block_elements;
use crate::lower::Nest;
use crate::tile::{accumulator_tile, resident_tile};
use crate::tree;
use crate::tuning::Tunable;

/// Rows that a column reduction adds up before it touches the accumulators.
const COLUMN_ROWS: i64 = 8;
/// The most vectors whose elements share bytes: two bits each.
const VECTORS_OF_BYTES: i64 = 4;
/// Vectors of neighbours that are scanned together: an addition of each waits for the one before.
const SCAN_VECTORS: i64 = 4;

impl Scheduler<'_> {
    pub(super) fn columns(&mut self, nest: &Nest) {
        let (outer, axes) = nest.parallel.split_at(nest.parallel.len() - nest.columns);
        // Axes that some value walks differently stay apart.
        let axes = self.fuse_clean(axes);
        let mut outer: Vec<VarId> = outer.iter().chain(&axes).copied().collect();
        // Columns whose rows are summed go on in the axes before them, where all that is read does.
        if axes.len() == 1 && !nest.column_blocks {
            outer = self.fuse_clean(&outer);
        }
        let Some(column) = outer.pop() else {
            return self.rows(&nest.parallel);
        };
        let columns = self.kernel.extents[column.0 as usize].as_const();
        let width = match self.kept_bytes {
            0 if nest.column_blocks
                && let Some(block) = self.column_block(column) =>
            {
                block
            }
            0 => accumulator_tile(columns, self.cpu.threads, self.cpu.l1_bytes),
            bytes => resident_tile(columns, bytes, self.cpu.resident_bytes()),
        };
        let lanes = self.emitter.lanes(DType::F32);
        let (of_vector, nest_blocks) = (nest.of_vector, nest.column_blocks);
        let width = self.choose(Tunable::ColumnTile, width, |_| {
            // Of one vector alone each row is a line.
            let widths = [width / 4, width / 2, width * 2];
            widths
                .into_iter()
                .filter(move |w| *w >= 2 * lanes && columns.is_none_or(|n| *w <= n))
        });
        let tiles = Directive::TileColumns { var: column, width };
        let Some(made) = self.because(ScheduleReason::ColumnTile { columns: width }).apply(tiles) else {
            outer.push(column);
            return self.rows(&outer);
        };
        outer.push(made[0]);
        self.parallel(&outer);
        for nest in self.inner_nests() {
            let Some((&column, inner)) = nest.split_last() else {
                continue;
            };
            if nest_blocks && self.rows_turned(inner, column) {
                continue;
            }
            // Rows of a window as wide as its image would be one loop where sizes are known, and added up in other groups than where they are not.
            let elements = inner.iter().try_fold(1i64, |n, v| {
                n.checked_mul(self.kernel.extents[v.0 as usize].as_const()?)
            });
            let inner = match elements.is_some_and(|n| n <= WINDOW) {
                true => inner.to_vec(),
                false => self.fuse_clean(inner),
            };
            let lanes = match self.lanes(column) {
                Ok(lanes) => lanes,
                Err(reason) => {
                    self.schedule.inner.push(Err(reason));
                    if of_vector && let Some(&row) = inner.last() {
                        self.few_columns(row, column);
                    }
                    continue;
                }
            };
            let Some(&row) = inner.last() else {
                self.vectorize(column);
                continue;
            };
            self.schedule.inner.push(Ok(lanes as u32));
            // The rows of a small window are fewer.
            let few = self.kernel.extents[row.0 as usize].as_const().filter(|n| *n > 1);
            let together = self.rows_together(row).min(few.unwrap_or(i64::MAX));
            let in_registers = ScheduleReason::RowsInRegisters { rows: together };
            let Some(rows) = self.because(in_registers).apply(Directive::Split {
                var: row,
                factor: together,
            }) else {
                continue;
            };
            if rows.len() == 1 {
                self.strip(column, lanes);
                continue;
            }
            // The tail's column loop is a copy: find it before the main one changes.
            let tail_column = rows.get(2).and_then(|&t| only_loop(&self.kernel, t));
            let vectors = self.rows_in_registers(rows[1], column, lanes, in_registers);
            if let Some(vectors) = vectors {
                self.rows_ahead(rows[0], vectors);
                self.few_bits_apart(vectors);
            }
            if let Some(c) = tail_column {
                self.strip(c, lanes);
            }
        }
    }

    /// Scans along an axis that is not the last, which walk memory along the last one: neighbours each are a lane's. Returns whether it was done.
    pub(super) fn scans_side_by_side(&mut self, parallel: &[VarId]) -> bool {
        let lanes = self.emitter.lanes(DType::F32);
        let saved = (self.kernel.clone(), self.schedule.clone());
        let mut outer = self.fuse_clean(parallel);
        let done = outer.pop().filter(|&c| self.lies_side_by_side(c)).and_then(|column| {
            let columns = self.kernel.extents[column.0 as usize].as_const();
            if lanes < 2 || columns.is_some_and(|n| n < lanes) {
                return None;
            }
            let width = SCAN_VECTORS * lanes;
            let tiles = Directive::TileColumns { var: column, width };
            let made = self
                .because(ScheduleReason::ColumnTile { columns: width })
                .apply(tiles)?;
            outer.push(made[0]);
            self.parallel(&outer);
            for nest in self.inner_nests() {
                nest.last().into_iter().for_each(|&column| self.vectorize(column));
            }
            Some(())
        });
        if done.is_none() {
            (self.kernel, self.schedule) = saved;
        }
        done.is_some()
    }

    /// Whether all that is written to memory lies side by side along a loop, and all that is read at some distance.
    fn lies_side_by_side(&self, var: VarId) -> bool {
        let Some(body) = tree::loop_body(&self.kernel.body, var) else {
            return false;
        };
        let mut accesses = walk(body)
            .flat_map(|s| s.accesses())
            .filter(|a| matches!(a.memory, Memory::Param(_)));
        accesses.all(|a| (a.index.affine_in(var)).is_some_and(|(step, _)| step.is(1) || !a.effect.writes()))
    }

    /// Has the vectors of a tile in statements of their own where they hold the elements of one run of bytes: each shifts by an amount that is known.
    fn few_bits_apart(&mut self, vectors: VarId) {
        let of_bytes = self
            .kernel
            .params
            .iter()
            .any(|p| matches!(p.dtype, DType::U8 | DType::I8));
        let most = self.kernel.extents[vectors.0 as usize].as_const();
        if of_bytes && most.is_some_and(|n| (2..=VECTORS_OF_BYTES).contains(&n)) {
            self.apply(Directive::Bind {
                var: vectors,
                bind: Bind::Unroll,
            });
        }
    }

    /// Adds up fewer columns than a vector has lanes, in the order of those of vectors: a group of rows in a register for each column.
    fn few_columns(&mut self, row: VarId, column: VarId) {
        let together = self.rows_together(row);
        self.because(ScheduleReason::RowsInRegisters { rows: together });
        let split = Directive::Split {
            var: row,
            factor: together,
        };
        if let Some(&[_, rows, ..]) = self.apply(split).as_deref() {
            self.apply(Directive::Interchange {
                outer: rows,
                inner: column,
            });
            self.apply(Directive::Bind {
                var: rows,
                bind: Bind::Unroll,
            });
            self.apply(Directive::Privatize { var: rows, lanes: None });
        }
    }

    /// Adds up the columns of a matrix whose rows lay along the sum in the order in which [`rows`](Self::rows) adds up such a row, where the steps of the
    /// sum are apart for that ([`crate::contraction::layouts::vector_blocks`]): what a lane of a vector of the row adds up, one vector of those side by side after
    /// another, and the lanes by halves. Several lanes of the row are added up together. Returns whether it was done.
    fn rows_turned(&mut self, sums: &[VarId], column: VarId) -> bool {
        let Some(along) = self.along_turned_row(sums, column) else {
            return false;
        };
        let saved = (self.kernel.clone(), self.schedule.clone());
        let ([first, ..], inner) = (sums, &sums[along + 1..]) else {
            return false;
        };
        let vector = sums[along - 1];
        let bind = |var, bind| Directive::Bind { var, bind };
        self.because(ScheduleReason::RowsTurned);
        let done = (|| {
            self.apply(bind(column, Bind::Lanes))?;
            self.apply(Directive::Privatize {
                var: *first,
                lanes: Some(column),
            })?;
            for &var in &sums[..along - 1] {
                self.apply(Directive::Cascade { var, factor: 1 })?;
            }
            for &var in inner {
                self.apply(bind(var, Bind::Unroll))?;
                self.apply(Directive::RFactor { var, around: vector })?;
            }
            self.apply(Directive::Cascade { var: vector, factor: 1 })
        })();
        if done.is_none() {
            (self.kernel, self.schedule) = saved;
            return false;
        }
        self.cascades_of_row(sums[along]);
        self.schedule.inner.push(Ok(self.extent_of(column).unwrap_or(1) as u32));
        true
    }

    fn extent_of(&self, var: VarId) -> Option<i64> {
        self.kernel.extents[var.0 as usize].as_const()
    }

    /// Which of the loops of a sum goes along the row that a column was, if the others are the lanes of its vectors, and the vectors side by side: that
    /// over these is around it, lanes are inside or around both.
    fn along_turned_row(&self, sums: &[VarId], column: VarId) -> Option<usize> {
        let lanes = self.extent_of(column)?;
        let body = tree::loop_body(&self.kernel.body, column)?;
        let mut vectors = body
            .iter()
            .flat_map(|s| s.accesses())
            .filter(|a| a.effect == Effect::Load && !a.index.uses(column));
        let (vector, None) = (vectors.next()?, vectors.next()) else {
            return None;
        };
        let mut steps: Vec<(i64, i64, usize)> = Vec::new();
        for (at, &v) in sums.iter().enumerate() {
            steps.push((vector.index.affine_in(v)?.0.as_const()?, self.extent_of(v)?, at));
        }
        let first = steps.first()?.0;
        steps.sort_unstable();
        let [lane_steps @ .., side_by_side, along] = &steps[..] else {
            return None;
        };
        let mut reach = 1;
        let all_lanes = lane_steps.iter().all(|(step, n, _)| {
            let goes_on = *step == reach;
            reach = reach.saturating_mul(*n);
            goes_on
        });
        let as_rows = all_lanes
            && reach == lanes
            && (side_by_side.0, side_by_side.1) == (lanes, UNROLL)
            && along.0 == lanes * UNROLL
            && side_by_side.2 + 1 == along.2
            && first <= lanes;
        as_rows.then_some(along.2)
    }

    /// The columns of a block, where matrices are in blocks of these: a tile of them is read from one end to the other.
    fn column_block(&self, column: VarId) -> Option<i64> {
        let all = self.kernel.extents[column.0 as usize].as_const()?;
        let loads = walk(&self.kernel.body).flat_map(|s| s.accesses());
        let blocks = loads.filter_map(|a| block_elements(a.index, column));
        blocks.filter(|&n| n > 0 && all % n == 0).max()
    }

    /// Rows that are walked side by side. Rows a power of two apart share cache sets, so that of several tensors of which one
    /// is written there are fewer.
    fn rows_together(&self, row: VarId) -> i64 {
        let mut walked: Vec<u32> = Vec::new();
        let mut writes = false;
        let column = only_loop(&self.kernel, row).and_then(|c| tree::loop_body(&self.kernel.body, c));
        let accesses = column.into_iter().flatten().flat_map(|s| s.accesses());
        for a in accesses.filter(|a| a.effect != Effect::Accumulate) {
            if let Memory::Param(p) = a.memory {
                writes |= a.effect == Effect::Store;
                if a.index.uses(row) && !walked.contains(&p) {
                    walked.push(p);
                }
            }
        }
        if !writes {
            return COLUMN_ROWS;
        }
        (COLUMN_ROWS / (walked.len() as i64).max(1)).max(2)
    }

    /// Asks for the next rows of what the second cache does not hold beside other things while vectors of these are added up: a tile's rows lie apart, and
    /// from one to the next the machine does not see that it goes on.
    fn rows_ahead(&mut self, rows: VarId, vectors: VarId) {
        let Some(body) =
            tree::loop_body(&self.kernel.body, vectors).filter(|_| self.emitter.prefetches && !self.cpu.streams_lines)
        else {
            return;
        };
        let mut walked: Vec<(u32, i64)> = Vec::new();
        for a in walk(body)
            .flat_map(|s| s.accesses())
            .filter(|a| a.effect == Effect::Load)
        {
            if let Memory::Param(p) = a.memory
                && let Some((ahead, _)) = a.index.affine_in(rows)
                && let Some(ahead) = ahead.as_const().filter(|n| *n > 0)
                && a.index.uses(vectors)
                && !walked.contains(&(p, ahead))
            {
                walked.push((p, ahead));
            }
        }
        for (param, ahead) in walked {
            let memory = Memory::Param(param);
            let bytes = self.kernel.memory_dtype(memory).bytes() as i64;
            let len = self.kernel.memory_len(memory).as_const();
            // What the last cache has from the iteration before comes sooner than it is asked for.
            let close = match self.again {
                true => self.cpu.l3_bytes / 2,
                false => self.cpu.l2_bytes / 2,
            };
            // Rows of a line each lie behind each other: they are one stream.
            let apart = ahead.saturating_mul(bytes) > COLUMN_ROWS * CACHE_LINE_BYTES;
            if apart && len.is_some_and(|n| n.saturating_mul(bytes) as u64 > close) {
                self.because(ScheduleReason::RowsAhead).apply(Directive::Prefetch {
                    var: vectors,
                    by: rows,
                    param,
                    ahead,
                    shares: 1,
                });
            }
        }
    }

    /// Has several rows of a column added up in a register, in vectors of columns and in the columns left over alike. Returns the loop over
    /// vectors, if it was done.
    fn rows_in_registers(&mut self, rows: VarId, column: VarId, lanes: i64, reason: ScheduleReason) -> Option<VarId> {
        let swap = |outer, inner| Directive::Interchange { outer, inner };
        let bind = |bind| Directive::Bind { var: rows, bind };
        if self.because(reason).apply(swap(rows, column)).is_none() {
            self.strip(column, lanes);
            return None;
        }
        // Long bodies are not unrolled, nor split where they are: then vectors matter more.
        let made = match self.apply(bind(Bind::Unroll)) {
            Some(_) => self.strip(column, lanes),
            None => Vec::new(),
        };
        if made.is_empty() {
            self.apply(bind(Bind::Serial));
            self.apply(swap(column, rows));
            self.strip(column, lanes);
            return None;
        }
        let (lane, rest) = match made[..] {
            [_, lane] => (Some(lane), None),
            [_, lane, rest] => (Some(lane), only_loop(&self.kernel, rest)),
            _ => (None, None),
        };
        self.because(reason);
        for (rows, lanes) in [(Some(rows), lane), (rest, None)] {
            let Some(var) = rows else { continue };
            self.apply(Directive::Privatize { var, lanes });
        }
        lane.and(made.first().copied())
    }

    /// Splits a loop into vectors; returns the loop over them, that of lanes, and the one over what is left, as far as there are.
    fn strip(&mut self, var: VarId, lanes: i64) -> Vec<VarId> {
        self.because(ScheduleReason::Vectors { lanes });
        let made = self.apply(Directive::Split { var, factor: lanes }).unwrap_or_default();
        if let [_, lane, ..] = made[..] {
            self.apply(Directive::Bind {
                var: lane,
                bind: Bind::Lanes,
            });
        }
        made
    }
}

/// The loop that is a loop's only statement.
fn only_loop(kernel: &Kernel, var: VarId) -> Option<VarId> {
    match &tree::loop_body(&kernel.body, var)?[..] {
        [Stmt::Loop { var, .. }] => Some(*var),
        _ => None,
    }
}
