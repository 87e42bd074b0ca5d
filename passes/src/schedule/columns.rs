//! Columns: tiles of them, lanes across the columns of a tile, several rows added up in registers.

use tlc_ir::DType;
use tlc_ir::index::VarId;
use tlc_ir::kernel::visit::{Effect, walk};
use tlc_ir::kernel::{Bind, Kernel, Memory, Stmt};

use super::{Directive, ScheduleReason, Scheduler, moved_bytes};
use crate::lower::Nest;
use crate::tile::{accumulator_tile, resident_tile, whole_rows_tile};
use crate::tree;
use crate::tuning::Tunable;

/// Rows that a column reduction adds up before it touches the accumulators.
const COLUMN_ROWS: i64 = 8;
/// As many where they are far apart: each is then a stream of its own, which goes on where it ends with the row behind it.
const DISTANT_ROWS: i64 = 4;
/// How far apart they are. Measured on Zen 4, f32 from memory, every row as a whole: with 16 and more rows between them they come at 0.7 to 0.95 of the
/// rate of one stream, neighbours that are asked for at 0.5 to 0.8 of it. Eight rows at a time, asked for, were no faster than neighbours.
const APART: i64 = 32;

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
        let extent = |v: &VarId| self.kernel.extents[v.0 as usize].interval(&self.kernel).lo;
        let pieces = outer.iter().map(extent).fold(1i64, i64::saturating_mul);
        let moved = moved_bytes(&self.kernel).interval(&self.kernel).hi;
        let close = moved as u64 <= self.cpu.l3_bytes;
        let width = match self.kept_bytes {
            0 if self.cpu.follows_distant_rows && pieces >= 2 && columns.is_some() && close => {
                // Partial sums of pieces of a matrix, of which a thread has whole rows, as far as the second cache holds their sums.
                let threads = self.cpu.threads / usize::try_from(pieces).unwrap_or(1);
                whole_rows_tile(columns.unwrap_or(1), threads, self.cpu.l2_bytes / 4)
            }
            0 => accumulator_tile(columns, self.cpu.threads, self.cpu.l1_bytes),
            bytes => resident_tile(columns, bytes, self.cpu.resident_bytes()),
        };
        let lanes = self.emitter.lanes(DType::F32);
        let width = self.choose(Tunable::ColumnTile, width, |_| {
            // One vector alone would be added up another way.
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
            let inner = self.fuse_clean(inner);
            let lanes = match self.lanes(column) {
                Ok(lanes) => lanes,
                Err(reason) => {
                    self.schedule.inner.push(Err(reason));
                    continue;
                }
            };
            let Some(&row) = inner.last() else {
                self.vectorize(column);
                continue;
            };
            self.schedule.inner.push(Ok(lanes as u32));
            match self.takes_distant_rows(row, pieces) {
                true => self.distant_rows(row, column, lanes),
                false => self.neighbouring_rows(row, column, lanes),
            }
        }
    }

    /// Adds up rows that follow each other in registers, a few at a time.
    fn neighbouring_rows(&mut self, row: VarId, column: VarId, lanes: i64) {
        let together = self.rows_together(row);
        let in_registers = ScheduleReason::RowsInRegisters { rows: together };
        let Some(rows) = self.because(in_registers).apply(Directive::Split {
            var: row,
            factor: together,
        }) else {
            return;
        };
        if rows.len() == 1 {
            self.strip(column, lanes);
            return;
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

    /// Whether rows far apart are added up together: those of one matrix that is only read and that a cache holds: the last one, if a thread has
    /// whole rows (there are pieces of it), or else the second. It depends on extents alone, as the order of the sums does.
    fn takes_distant_rows(&self, row: VarId, pieces: i64) -> bool {
        let rows = self.kernel.extents[row.0 as usize].as_const();
        let (walked, writes) = self.walked(row);
        let mut matrices = walked.iter().filter(|w| w.1);
        let (Some((matrix, _)), None) = (matrices.next(), matrices.next()) else {
            return false;
        };
        let of = &self.kernel.params[*matrix as usize];
        let bytes = of.len.as_const().map(|n| n.saturating_mul(of.dtype.bytes() as i64));
        let cache = if pieces >= 2 {
            self.cpu.l3_bytes
        } else {
            self.cpu.l2_bytes
        };
        let close = bytes.is_some_and(|bytes| bytes as u64 <= cache);
        let suits = self.cpu.follows_distant_rows && self.kept_bytes == 0 && !writes && close;
        suits && rows.is_some_and(|n| n >= DISTANT_ROWS * APART)
    }

    /// Adds up rows so far apart in registers, a few at a time, and what they leave over as neighbours.
    fn distant_rows(&mut self, row: VarId, column: VarId, lanes: i64) {
        let (rows, apart) = (DISTANT_ROWS, APART);
        let reason = ScheduleReason::DistantRows { rows, apart };
        let split = |var, factor| Directive::Split { var, factor };
        let blocks = self.because(reason).apply(split(row, rows * apart));
        let Some([_, block, rest @ ..]) = blocks.as_deref() else {
            return self.neighbouring_rows(row, column, lanes);
        };
        let rest = rest.first().and_then(|&t| Some((t, only_loop(&self.kernel, t)?)));
        if let Some([together, near]) = self.apply(split(*block, apart)).as_deref() {
            let (outer, inner) = (*together, *near);
            match self.apply(Directive::Interchange { outer, inner }) {
                Some(_) => drop(self.rows_in_registers(outer, column, lanes, reason)),
                None => drop(self.strip(column, lanes)),
            }
        }
        if let Some((row, column)) = rest {
            self.neighbouring_rows(row, column, lanes);
        }
    }

    /// The parameters that a loop over rows walks, with whether it has more than one element of a row, and whether it writes any.
    fn walked(&self, row: VarId) -> (Vec<(u32, bool)>, bool) {
        let mut walked: Vec<(u32, bool)> = Vec::new();
        let mut writes = false;
        let column = only_loop(&self.kernel, row);
        let body = column.and_then(|c| tree::loop_body(&self.kernel.body, c));
        let accesses = body.into_iter().flatten().flat_map(|s| s.accesses());
        for a in accesses.filter(|a| a.effect != Effect::Accumulate) {
            if let Memory::Param(p) = a.memory {
                writes |= a.effect == Effect::Store;
                let along = column.is_some_and(|c| a.index.uses(c));
                match walked.iter_mut().find(|w| w.0 == p) {
                    Some(w) => w.1 |= along && a.index.uses(row),
                    None if a.index.uses(row) => walked.push((p, along)),
                    None => {}
                }
            }
        }
        (walked, writes)
    }

    /// Rows that are walked side by side. Rows a power of two apart share cache sets, so that of several tensors of which one
    /// is written there are fewer.
    fn rows_together(&self, row: VarId) -> i64 {
        let (walked, writes) = self.walked(row);
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
            if len.is_some_and(|n| n.saturating_mul(bytes) as u64 > close) {
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
        let whole = self.kernel.extents[column.0 as usize]
            .as_const()
            .is_some_and(|n| n <= lanes);
        let swap = |outer, inner| Directive::Interchange { outer, inner };
        let bind = |bind| Directive::Bind { var: rows, bind };
        if whole || self.because(reason).apply(swap(rows, column)).is_none() {
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
