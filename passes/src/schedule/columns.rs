//! Columns: tiles of them, lanes across the columns of a tile, several rows added up in registers.

use tlc_ir::DType;
use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::visit::{Effect, walk};
use tlc_ir::kernel::{Bind, Kernel, Memory, Stmt};
use tlc_ir::target::CACHE_LINE_BYTES;

use super::{Directive, ScheduleReason, Scheduler};
use crate::access::block_elements;
use crate::lower::Nest;
use crate::tile::{accumulator_tile, resident_tile};
use crate::tree;
use crate::tuning::Tunable;

/// Rows that a column reduction adds up before it touches the accumulators.
const COLUMN_ROWS: i64 = 8;

impl Scheduler<'_> {
    pub(super) fn columns(&mut self, nest: &Nest) {
        let (outer, axes) = nest.parallel.split_at(nest.parallel.len() - nest.columns);
        // Axes that some value walks differently stay apart.
        let axes = self.fuse_clean(axes);
        let mut outer: Vec<VarId> = outer.iter().chain(&axes).copied().collect();
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
            let inner = self.fuse_clean(inner);
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
            let together = self.rows_together(row);
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
            }
            if let Some(c) = tail_column {
                self.strip(c, lanes);
            }
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
    /// sum are in that order ([`crate::contraction::vector_blocks`]): what a lane of a vector of the row adds up, one vector of those side by side after
    /// another, and the lanes by halves. Returns whether it was done.
    fn rows_turned(&mut self, sums: &[VarId], column: VarId) -> bool {
        let (Some((_, outer)), Ok(lanes)) = (sums.split_last(), self.lanes(column)) else {
            return false;
        };
        if outer.is_empty() || !self.steps_as_lanes(sums, column) {
            return false;
        }
        let saved = (self.kernel.clone(), self.schedule.clone(), self.cascaded);
        self.schedule.inner.push(Ok(lanes as u32));
        let done = (|| {
            let [vectors, lane] = self.strip(column, lanes)[..] else {
                return None;
            };
            for &var in outer {
                self.because(ScheduleReason::RowsTurned)
                    .apply(Directive::Cascade { var, factor: 1 })?;
            }
            self.alike = true;
            self.cascades();
            let of_block = walk(&self.kernel.body).find_map(|s| match s {
                Stmt::Loop { var, body, .. } => {
                    let around = matches!(&body[..], [Stmt::Loop { var, .. }] if *var == vectors);
                    around.then_some(*var)
                }
                _ => None,
            })?;
            self.because(ScheduleReason::RowsTurned).apply(Directive::Interchange {
                outer: of_block,
                inner: vectors,
            })?;
            self.apply(Directive::Privatize {
                var: of_block,
                lanes: Some(lane),
            })
        })();
        if done.is_none() {
            (self.kernel, self.schedule, self.cascaded) = saved;
        }
        done.is_some()
    }

    /// Whether a vector is walked by the loops of a sum as lanes of its vectors are numbered: each loop goes on by as many elements as those around it
    /// reach.
    fn steps_as_lanes(&self, sums: &[VarId], column: VarId) -> bool {
        let extent = |v: VarId| self.kernel.extents[v.0 as usize].as_const();
        let Some(body) = tree::loop_body(&self.kernel.body, column) else {
            return false;
        };
        let loads = body.iter().flat_map(|s| s.accesses());
        let of_vector = |index: &IndexExpr| {
            let mut reach = 1i64;
            sums.iter().all(|&v| {
                let step = index.affine_in(v).and_then(|(step, _)| step.as_const());
                let goes_on = step == Some(reach);
                reach = extent(v).and_then(|n| reach.checked_mul(n)).unwrap_or(0);
                goes_on
            })
        };
        let mut vectors = loads.filter(|a| a.effect == Effect::Load && !a.index.uses(column));
        vectors.next().is_some_and(|a| of_vector(a.index)) && vectors.all(|a| of_vector(a.index))
    }

    /// The columns of a block, where matrices are in blocks of these: a tile of them is read from one end to the other.
    fn column_block(&self, column: VarId) -> Option<i64> {
        let all = self.kernel.extents[column.0 as usize].as_const()?;
        let loads = walk(&self.kernel.body).flat_map(|s| s.accesses());
        let mut blocks = loads.filter_map(|a| block_elements(a.index, column));
        blocks.find(|&n| n > 0 && all % n == 0)
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
