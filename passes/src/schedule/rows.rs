//! Rows: each innermost loop in lanes, with accumulators of its own for every lane and unrolled copy; short rows with a row
//! in each lane.

use tlc_ir::DType;
use tlc_ir::graph::Monoid;
use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::visit::{Effect, walk};
use tlc_ir::kernel::{Bind, Memory, Op, Stmt};
use tlc_ir::scalar::Cost;
use tlc_ir::target::{AccessKind, Support, Width};

use super::lanes::{is_half, vector_form};
use super::vectorize::UNROLL;
use super::{Directive, ScalarReason, ScheduleReason, Scheduler};
use crate::tree;

/// The most elements of a row that runs in one lane.
pub(super) const SHORT_ROW: i64 = 16;
/// Short rows of one parallel iteration.
const ROW_BLOCK: i64 = 64;
/// Operations that the body of short rows may have once it is unrolled, an elementary function counting
/// [`FUNCTION_OPS`].
const UNROLLED_OPS: i64 = 2000;
/// Operations of an elementary function, about.
const FUNCTION_OPS: i64 = 25;
/// Rows of a product with a vector that are taken together, far apart.
const DISTANT_ROWS: i64 = 4;
/// Parts of rows that are added up, from which on each has code of its own.
const FEWEST_PARTS: usize = 2;
/// Vectors of which a search for the position of an extremum keeps only their extremum.
const BLOCK_VECTORS: i64 = 8;

impl Scheduler<'_> {
    pub(super) fn rows(&mut self, parallel: &[VarId]) {
        if self.windows(parallel) {
            return;
        }
        self.alike = true;
        if self.distant_products(parallel) {
            return;
        }
        self.sums_by_part(parallel);
        let row = self.parallel(parallel);
        let short = row.is_some_and(|row| self.are_short(row));
        if let Some(row) = row
            && short
            && self.short_rows(row)
        {
            return;
        }
        for nest in self.inner_nests() {
            let loops = self.fuse_clean(&nest);
            if let Some(&last) = loops.last() {
                // Too few of them for lanes, but added up as they would be there.
                if short && self.adds(last) {
                    self.schedule.inner.push(Err(ScalarReason::Short));
                    self.because(ScheduleReason::Rest).apply(Directive::Bind {
                        var: last,
                        bind: Bind::Unroll,
                    });
                    continue;
                }
                match self.narrowed(last) {
                    Some(v) if self.only_stores(v) => self.row_of_results(&loops, v),
                    Some(v) if v == last && self.adds(v) => self.row_of_addends(&loops, v),
                    Some(v) => self.vectorize(v),
                    None => {}
                }
            }
        }
        if let Some(row) = row {
            self.next_row_ahead(row);
        }
    }

    /// Products of a matrix with a vector that takes half of the first cache: a few rows at once, which share what they load of it, far enough
    /// apart to be streams of their own. Each sum is as it would be alone. Returns whether it was done.
    fn distant_products(&mut self, parallel: &[VarId]) -> bool {
        let [row] = parallel[..] else { return false };
        let Some((inner, apart)) = self.distant_product(row) else {
            return false;
        };
        let saved = (self.kernel.clone(), self.schedule.clone(), self.cascaded);
        let rows = DISTANT_ROWS;
        let split = |var, factor| Directive::Split { var, factor };
        self.because(ScheduleReason::DistantRows { rows, apart });
        let done = (|| {
            let blocks = self.apply(split(row, rows * apart))?;
            let of_block = self.apply(split(blocks[1], apart))?;
            let (outer, inner_rows) = (of_block[0], of_block[1]);
            let inner_first = Directive::Interchange {
                outer,
                inner: inner_rows,
            };
            self.apply(inner_first)?;
            self.parallel(&blocks[..1])?;
            self.vectorize(inner);
            // What long sums are cut into is said by one row's loop.
            self.cascades();
            self.because(ScheduleReason::DistantRows { rows, apart })
                .apply(Directive::Inward { var: outer })
        })();
        if done.is_none() {
            (self.kernel, self.schedule, self.cascaded) = saved;
        }
        done.is_some()
    }

    /// The loop along a row of a matrix that is multiplied with a long vector, and how far apart rows are to be taken together.
    fn distant_product(&self, row: VarId) -> Option<(VarId, i64)> {
        // Each row has sums of its own beside the others'.
        let registers = i64::from(self.emitter.vector_registers);
        if !self.cpu.follows_distant_rows || registers < 2 * DISTANT_ROWS * UNROLL {
            return None;
        }
        let rows = self.kernel.extents[row.0 as usize].as_const()?;
        let body = tree::loop_body(&self.kernel.body, row)?;
        let mut loops = body.iter().filter_map(|s| match s {
            Stmt::Loop { var, body, .. } => Some((*var, body)),
            _ => None,
        });
        let ((inner, terms), None) = (loops.next()?, loops.next()) else {
            return None;
        };
        let adds = |s: &Stmt| {
            matches!(s, Stmt::Let { .. })
                || matches!(
                    s,
                    Stmt::Accumulate {
                        monoid: Monoid::Add,
                        ..
                    }
                )
        };
        let n = self.kernel.extents[inner.0 as usize].as_const()?;
        let (mut vector, mut matrix) = (0, 0);
        for a in terms
            .iter()
            .flat_map(|s| s.accesses())
            .filter(|a| a.effect == Effect::Load)
        {
            let bytes = n.saturating_mul(self.kernel.memory_dtype(a.memory).bytes() as i64);
            match (a.index.uses(inner), a.index.uses(row)) {
                (true, true) => matrix += bytes.saturating_mul(rows),
                (true, false) => vector += bytes,
                (false, _) => {}
            }
        }
        let [l1, l2] = [self.cpu.l1_bytes / 2, self.cpu.l2_bytes].map(|b| b as i64);
        if !terms.iter().all(adds) || vector < l1 || matrix <= l2 {
            return None;
        }
        let least = 2 * self.cpu.threads.max(1) as i64;
        let even = |d: &i64| rows % (DISTANT_ROWS * d) == 0 && rows / (DISTANT_ROWS * d) >= least;
        [16, 8, 4].into_iter().find(even).map(|d| (inner, d))
    }

    /// Where a row is gone through more than once, only the first time waits for memory: the next row is asked for while this one is gone
    /// through the second time. (A softmax over 1024 elements written by hand takes 0.7 times as long on a Xeon of the fifth generation.)
    fn next_row_ahead(&mut self, row: VarId) {
        if !self.emitter.prefetches || self.cpu.streams_lines {
            return;
        }
        let Some(body) = tree::loop_body(&self.kernel.body, row) else {
            return;
        };
        // For each parameter, its elements from row to row and the loops that go through most of them.
        let mut passes: Vec<(u32, i64, Vec<VarId>)> = Vec::new();
        for s in body {
            let Stmt::Loop { var, body: inner, .. } = s else {
                continue;
            };
            let loads = walk(inner)
                .flat_map(|s| s.accesses())
                .filter(|a| a.effect == Effect::Load);
            for a in loads {
                let Memory::Param(param) = a.memory else { continue };
                let step = |v: VarId| a.index.affine_in(v).and_then(|(step, _)| step.as_const());
                let (Some(ahead), Some(each), Some(n)) =
                    (step(row), step(*var), self.kernel.extents[var.0 as usize].as_const())
                else {
                    continue;
                };
                // A row's elements lie together, and no other row's between them.
                let walked = each.saturating_mul(n);
                if each <= 0 || walked > ahead || walked < ahead / 2 {
                    continue;
                }
                match passes.iter_mut().find(|p| (p.0, p.1) == (param, ahead)) {
                    Some((.., loops)) if loops.contains(var) => {}
                    Some((.., loops)) => loops.push(*var),
                    None => passes.push((param, ahead, vec![*var])),
                }
            }
        }
        for (param, ahead, loops) in passes {
            let memory = Memory::Param(param);
            let bytes = self.kernel.memory_dtype(memory).bytes() as i64;
            let far = self.kernel.memory_len(memory).as_const();
            let far = far.is_some_and(|n| n.saturating_mul(bytes) as u64 > self.cpu.l2_bytes / 2);
            let close = ahead > 0 && ahead.saturating_mul(bytes) as u64 <= self.cpu.l1_bytes / 2;
            if let [_, var, ..] = loops[..]
                && far
                && close
            {
                self.because(ScheduleReason::RowsAhead).apply(Directive::Prefetch {
                    var,
                    by: row,
                    param,
                    ahead,
                    shares: 1,
                });
            }
        }
    }

    /// Whether a loop computes results that do not depend on each other.
    fn only_stores(&self, var: VarId) -> bool {
        let plain = |s: &Stmt| matches!(s, Stmt::Let { .. } | Stmt::Clamp { .. } | Stmt::Store { .. });
        tree::loop_body(&self.kernel.body, var).is_some_and(|b| b.iter().all(plain))
    }

    /// Sums of what is joined of several parts, one behind the other along the parallel loop, in a case for each part.
    fn sums_by_part(&mut self, parallel: &[VarId]) {
        let Some(&last) = parallel.last() else { return };
        if self.pads() && !self.are_short(last) {
            self.in_cases_of(last, FEWEST_PARTS);
        }
    }

    /// Vectorizes addends, what is padding at the ends of rows apart from the others.
    fn row_of_addends(&mut self, loops: &[VarId], last: VarId) {
        let long = match self.lanes(last) {
            Ok(lanes) => self.kernel.extents[last.0 as usize].interval(&self.kernel).hi >= 2 * lanes,
            // Of an index from data there may be no lanes yet.
            Err(_) => true,
        };
        let peeled = match long {
            true => self.peeled(last),
            false => (vec![last], last),
        };
        self.edges_apart(peeled, |s, part| s.vectorize_nest(loops, part));
    }

    /// Vectorizes results, those at the edges of an image apart from the others.
    fn row_of_results(&mut self, loops: &[VarId], last: VarId) {
        let rows = match loops {
            [.., row, inner] if *inner == last => {
                let inside = |s: &Self, row: VarId| match tree::loop_body(&s.kernel.body, row).map(|b| &b[..]) {
                    Some([Stmt::Loop { var, .. }]) => Some(*var),
                    _ => None,
                };
                let rows = self.peeled(*row).0;
                rows.into_iter().filter_map(|row| inside(self, row)).collect()
            }
            _ => vec![last],
        };
        for row in rows {
            self.row_of_image(row);
        }
    }

    /// Whether rows are so short, and so simple, that each of many of them takes a lane.
    pub(super) fn are_short(&self, row: VarId) -> bool {
        tree::loop_body(&self.kernel.body, row).is_some_and(|body| {
            self.emitter.lanes(DType::F32) >= 2
                && self.fits_lanes(body, row, false)
                && self.unrolled_ops(body, 1).is_some_and(|n| n <= UNROLLED_OPS)
        })
    }

    /// Whether a loop adds up floating-point numbers.
    fn adds(&self, var: VarId) -> bool {
        let of_floats = |s: &Stmt| match s {
            Stmt::Accumulate {
                monoid: Monoid::Add,
                state,
                ..
            } => state.iter().any(|(m, _)| self.kernel.memory_dtype(*m).is_float()),
            _ => false,
        };
        tree::loop_body(&self.kernel.body, var).is_some_and(|b| b.iter().any(of_floats))
    }

    /// Short rows: blocks of them in parallel, a row in each lane. Returns whether it was done.
    pub(super) fn short_rows(&mut self, row: VarId) -> bool {
        let lanes = self.emitter.lanes(DType::F32);
        let rows = &self.kernel.extents[row.0 as usize];
        if rows.interval(&self.kernel).hi < ROW_BLOCK {
            return false;
        }
        // Where blocks of equal size exist, no block has rows left over.
        let even = rows.as_const().and_then(|n| {
            let smaller = (lanes * 4..=ROW_BLOCK).rev().step_by(lanes as usize);
            smaller.into_iter().find(|factor| n % factor == 0)
        });
        let saved = (self.kernel.clone(), self.schedule.applied.len());
        let blocks = match even {
            Some(factor) => Directive::Split { var: row, factor },
            None => Directive::Block {
                var: row,
                factor: ROW_BLOCK,
            },
        };
        let made = self
            .because(ScheduleReason::RowsInLanes { rows: lanes })
            .apply(blocks)
            .unwrap_or_default();
        if let [_, inner] = made[..] {
            let pitch = ROW_BLOCK;
            // Also where lanes can read and write elements that lie apart: a gather or scatter takes a step for each of its elements,
            // where a copy in another order moves whole vectors.
            let staged = self.apply(Directive::StageRows { var: inner, pitch });
            if self
                .apply(Directive::Across {
                    var: inner,
                    lanes,
                    masked: false,
                })
                .is_some()
            {
                for var in staged.unwrap_or_default() {
                    self.apply(Directive::Bind { var, bind: Bind::Copy });
                }
                self.schedule.inner.push(Ok(lanes as u32));
                return true;
            }
        }
        self.kernel = saved.0;
        self.schedule.applied.truncate(saved.1);
        false
    }

    /// Whether all values of a row have lanes of 32 bits, and all indices an equal distance from row to row. Where it loads side by side
    /// or with a mask (`masks`), lanes may also be of 16-bit floats that instructions convert, and results bytes.
    pub(super) fn fits_lanes(&self, body: &[Stmt], row: VarId, masks: bool) -> bool {
        let converts = |d: DType| {
            let native = |from, to| self.emitter.convert(from, to, Width::Lanes) == Support::Native;
            is_half(d) && native(d, DType::F32) && native(DType::F32, d)
        };
        let fits = |d: DType| matches!(d, DType::F32 | DType::I32 | DType::U32 | DType::Bool) || masks && converts(d);
        // What is loaded and stored side by side may be bytes, and every other one may be loaded.
        let narrow = |d: DType| masks && matches!(d, DType::U8 | DType::I8);
        let side_by_side = |e: &IndexExpr| e.affine_in(row).is_some_and(|(step, _)| step.is(1));
        let every_other = |e: &IndexExpr| {
            let apart = self.emitter.access(AccessKind::Apart).is_vector();
            apart && e.affine_in(row).is_some_and(|(step, _)| step.is(2))
        };
        body.iter().all(|s| match s {
            Stmt::Let { value, op } => {
                let linear = op.index().is_none_or(|e| e.affine_in(row).is_some());
                let on = self.kernel.dtype(*value);
                (fits(on) || narrow(on))
                    && linear
                    && match op {
                        Op::Map(op, args) => {
                            let on = self.kernel.dtype(args[args.len() - 1]);
                            fits(on) && vector_form(self.emitter, *op, on)
                        }
                        Op::Load { memory, mask, index } => {
                            let dtype = self.kernel.memory_dtype(*memory);
                            let near = |e| side_by_side(e) || mask.is_none() && every_other(e);
                            (masks || mask.is_none()) && (fits(dtype) || narrow(dtype) && near(index))
                        }
                        Op::Convert(_, from) => {
                            let from = self.kernel.dtype(*from);
                            let native = self.emitter.convert(from, on, Width::Lanes) == Support::Native;
                            let float = |d: DType| is_half(d) || d == DType::F32;
                            let number = |d: DType| narrow(d) || matches!(d, DType::F32 | DType::I32);
                            native && (float(from) && float(on) || number(from) && number(on))
                        }
                        Op::Const(_) | Op::Index(..) => true,
                        _ => false,
                    }
            }
            Stmt::Store {
                memory, index, mask, ..
            } => {
                let dtype = self.kernel.memory_dtype(*memory);
                let linear = index.affine_in(row).is_some();
                mask.is_none() && linear && (fits(dtype) || narrow(dtype) && side_by_side(index))
            }
            Stmt::Accumulate { monoid, state, .. } => {
                !monoid.is_arg()
                    && state.iter().all(|(m, _)| {
                        let dtype = self.kernel.memory_dtype(*m);
                        fits(dtype) && vector_form(self.emitter, monoid.combine(), dtype)
                    })
            }
            Stmt::Loop { body, .. } => self.fits_lanes(body, row, masks),
            _ => false,
        })
    }

    /// Operations of the statements when their loops are unrolled; `None` if a loop is not short.
    fn unrolled_ops(&self, body: &[Stmt], copies: i64) -> Option<i64> {
        let mut total = 0;
        for s in body {
            total += match s {
                Stmt::Let { op: Op::Map(op, _), .. } if op.cost() == Cost::Function => FUNCTION_OPS * copies,
                Stmt::Loop { var, body, .. } => {
                    let n = self.kernel.extents[var.0 as usize].as_const()?;
                    if n * copies > SHORT_ROW {
                        return None;
                    }
                    self.unrolled_ops(body, copies * n)?
                }
                _ => copies,
            };
        }
        Some(total)
    }

    /// Narrows a search for the position of an extremum; returns the loops that are left to vectorize.
    fn narrowed(&mut self, var: VarId) -> Option<VarId> {
        let searches = tree::loop_body(&self.kernel.body, var).is_some_and(|b| {
            let cheap = |s: &Stmt| match s {
                Stmt::Let { op: Op::Map(op, _), .. } => op.cost() < Cost::Division,
                Stmt::Let { .. } => true,
                Stmt::Accumulate { monoid, .. } => matches!(monoid, Monoid::ArgMax | Monoid::ArgMin),
                _ => false,
            };
            b.iter().all(cheap)
        });
        let enough =
            |s: &Self, lanes: i64| s.kernel.extents[var.0 as usize].interval(&s.kernel).lo >= 2 * lanes * BLOCK_VECTORS;
        let Ok(lanes) = self.lanes(var) else {
            return Some(var);
        };
        if !searches || !enough(self, lanes) {
            return Some(var);
        }
        let (elements, squares) = (lanes * BLOCK_VECTORS, self.emitter.has_fma);
        match self
            .because(ScheduleReason::BestBlock { elements })
            .apply(Directive::Narrow {
                var,
                lanes,
                vectors: BLOCK_VECTORS,
                squares,
            }) {
            Some(made) => {
                self.schedule.inner.push(Ok(lanes as u32));
                made.get(1).copied()
            }
            None => Some(var),
        }
    }
}
