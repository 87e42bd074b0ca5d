//! Parallel loops only: blocks of a flat loop, rows of a nest, and tiles of a transposition.

use rustc_hash::FxHashSet;
use tlc_ir::index::VarId;
use tlc_ir::kernel::visit::{Effect, walk};
use tlc_ir::kernel::{Access, Bind, CopyNest, Memory, Op, Stmt, ValueId};
use tlc_ir::target::Cpu;
use tlc_ir::{DType, ScalarOp};

use super::cases::beginnings;
use super::rows::SHORT_ROW;
use super::vectorize::UNROLL;
use super::windows::MANY_IMAGES;
use super::{Directive, ScalarReason, ScheduleReason, Scheduler, moved_bytes};
use crate::tree;
use crate::tuning::Tunable;

/// Elements of one parallel iteration of a flat loop.
const BLOCK: i64 = 4096;
/// Others that may be better.
const BLOCKS: [i64; 5] = [1024, 2048, 4096, 8192, 16384];
/// Bytes of results that are computed into scratch before they are written past the caches. Few enough that the loads of the
/// next piece start while the stores of this one drain: with 8 KiB a sum of two tensors takes 1.3 times as long.
const STREAMED_BYTES: i64 = 2 << 10;
/// Rows of fewer bytes are not worth a copy of their own.
const SHORTEST_STREAMED_ROW: i64 = 512;

/// Parts of a row, of which each has a loop of its own.
const MOST_PARTS: usize = 8;

/// Rows and columns of a transposition's tiles of elements of so many bytes: a tile fits the first-level cache, and rows on
/// both sides are several cache lines long.
fn tile(cpu: &Cpu, bytes: usize) -> (i64, i64) {
    // A power of two, so that tiles divide the extents that are common.
    let fits = cpu.l1_bytes.clamp(4 << 10, 1 << 20).next_power_of_two();
    let fits = if fits > cpu.l1_bytes { fits / 2 } else { fits };
    let elements = fits as i64 / bytes as i64;
    let rows = if bytes < 4 { 128 } else { 64 };
    (rows, (elements / rows).max(16))
}

impl Scheduler<'_> {
    pub(super) fn elementwise(&mut self, parallel: &[VarId]) {
        self.vector_bits = self.streaming_bits();
        let loops = self.fuse_clean(parallel);
        let Some(&last) = loops.last() else {
            self.schedule.inner.push(Err(ScalarReason::Short));
            return;
        };
        if let Some(&across) = loops.iter().rev().skip(1).find(|&&v| self.prefers(v, last)) {
            return self.transposition(&loops, across, last);
        }
        if self.rows_of_parts(&loops) {
            return;
        }
        let streamed = self.streamed(last);
        if loops.len() > 1 {
            let mut outer = loops[..loops.len() - 1].to_vec();
            let mut inner = last;
            if let Some((_, length)) = streamed.first()
                && self.kernel.extents[last.0 as usize].interval(&self.kernel).hi > *length
                && let Some(made) = self.apply(Directive::Block {
                    var: last,
                    factor: *length,
                })
            {
                outer.push(made[0]);
                inner = made[1];
            }
            let rows = match streamed.is_empty() {
                true => self.rows_by_part(&mut outer, inner),
                false => vec![inner],
            };
            self.parallel(&outer);
            self.stream(inner, &streamed);
            for row in rows {
                match streamed.is_empty() {
                    true => self.row_of_image(row),
                    false => self.vectorize_row(row),
                }
            }
            return;
        }
        let n = &self.kernel.extents[last.0 as usize];
        let small = n.as_const().is_some_and(|n| n < 2 * BLOCK);
        if small {
            self.vectorize(last);
            return;
        }
        // Blocks cover the whole range: the last one is cut short, so that there is one parallel loop and no tail.
        let (var, factor) = match streamed.first() {
            Some(&(_, length)) => (last, length),
            None => (last, self.choose(Tunable::BlockElements, BLOCK, |_| BLOCKS)),
        };
        let n = &self.kernel.extents[var.0 as usize];
        let divides = n.as_const().is_some_and(|n| n % factor == 0);
        let blocks = if divides {
            Directive::Split { var, factor }
        } else {
            Directive::Block { var, factor }
        };
        self.because(ScheduleReason::Pieces { elements: factor });
        if let Some(made) = self.apply(blocks) {
            self.apply(Directive::Bind {
                var: made[0],
                bind: Bind::Parallel,
            });
            self.stream(made[1], &streamed);
            self.vectorize(made[1]);
        }
    }

    /// Short rows whose elements are computed each in its own way, as a stack of coordinates: a row in each lane, so that no lane computes what another
    /// one has. Returns whether it was done.
    fn rows_of_parts(&mut self, loops: &[VarId]) -> bool {
        let [outer @ .., last] = loops else { return false };
        let n = self.kernel.extents[last.0 as usize].as_const();
        let Some(n) = n.filter(|n| (2..=SHORT_ROW).contains(n) && !outer.is_empty() && self.differs_along(*last, *n))
        else {
            return false;
        };
        let saved = (self.kernel.clone(), self.schedule.clone());
        let done = (|| {
            let mut rest = *last;
            self.because(ScheduleReason::RowsInLanes {
                rows: self.emitter.lanes(DType::F32),
            });
            for _ in 1..n {
                let made = self.apply(Directive::Peel {
                    var: rest,
                    from: 1,
                    behind: 0,
                })?;
                rest = *made.last()?;
            }
            let row = self.parallel(outer)?;
            (self.are_short(row) && self.short_rows(row)).then_some(())
        })();
        if done.is_none() {
            (self.kernel, self.schedule) = saved;
        }
        done.is_some()
    }

    /// Whether elements of a row are chosen by their number, each of what takes a few operations.
    fn differs_along(&self, var: VarId, elements: i64) -> bool {
        let Some(body) = tree::loop_body(&self.kernel.body, var) else {
            return false;
        };
        let (mut choices, mut operations) = (0, 0);
        for s in walk(body) {
            match s {
                Stmt::Let {
                    op: Op::Map(ScalarOp::Select, _),
                    ..
                } => choices += 1,
                Stmt::Let { value, op: Op::Map(..) } if self.kernel.dtype(*value).is_float() => operations += 1,
                _ => {}
            }
        }
        choices > 0 && operations >= elements
    }

    /// Bits of the vectors of the kernel: those in which the machine streams best, if moving is nearly all that the kernel does and the second
    /// cache does not hold what it moves. Never of one that accumulates, whose order is a matter of the emitter and the extents of the sum alone.
    fn streaming_bits(&mut self) -> u32 {
        let widest = self.emitter.vector_bits;
        let moved = moved_bytes(&self.kernel).interval(&self.kernel).lo;
        let accumulates = self.kernel.statements().any(|s| matches!(s, Stmt::Accumulate { .. }));
        let beyond = u64::try_from(moved).is_ok_and(|bytes| bytes > self.cpu.l2_bytes);
        if accumulates || !beyond {
            return widest;
        }
        let streamed = self
            .cpu
            .streamed_bits
            .filter(|bits| *bits < widest && self.only_moves(moved));
        let bits = streamed.unwrap_or(widest);
        self.choose(Tunable::VectorBits, bits.into(), |_| {
            [widest / 2, widest].map(i64::from)
        }) as u32
    }

    /// Whether a kernel that moves so many bytes computes so little that it does in vectors of half the width, in half of the time.
    fn only_moves(&self, bytes: i64) -> bool {
        let flops = self.schedule.flops.interval(&self.kernel).hi;
        let conversions = self.kernel.params.iter().any(|p| p.dtype.bytes() < 4);
        let [bytes, flops] = [bytes, flops.saturating_mul(4)].map(|n| u64::try_from(n).unwrap_or(u64::MAX));
        !conversions && self.cpu.kernel_floor_ns(bytes, flops).1 == "bytes"
    }

    /// Rows that are computed otherwise than others apart from them: in loops of their own or, where images are few or the ranges of rows long,
    /// in a case of their own. Returns the innermost loops that there are then.
    fn rows_by_part(&mut self, outer: &mut Vec<VarId>, inner: VarId) -> Vec<VarId> {
        let apart = self.rows_apart(outer, inner);
        let whole = apart[..] == [inner];
        let cases = outer.last().filter(|_| whole).and_then(|&v| self.in_cases(v));
        if let [images @ .., row] = &outer[..]
            && whole
            && cases.is_none()
            && self.kernel.extents[row.0 as usize].as_const().is_none()
            && self.least_images(images) >= MANY_IMAGES
            && self.pads()
        {
            // In one range with images, an unknown number of rows would be divided by for each row. (Other kernels may stand behind a product
            // for each of its rows, and their range is one of all rows.)
            outer.pop();
        }
        cases.unwrap_or(apart)
    }

    /// Whether some of what the kernel loads is left out by where it is, as padding is.
    pub(super) fn pads(&self) -> bool {
        let mut accesses = self.kernel.statements().flat_map(|s| s.accesses());
        accesses.any(|a| a.effect == Effect::Load && a.is_conditional())
    }

    /// Whether all that is loaded along a row is left out where it is padding of the row: then it is known to be of the row whatever lanes there are,
    /// and a kernel that stands behind a product for each of its rows still does.
    fn pads_along(&self, row: VarId) -> bool {
        let Some(body) = tree::loop_body(&self.kernel.body, row) else {
            return false;
        };
        let mut along: FxHashSet<ValueId> = FxHashSet::default();
        for s in walk(body) {
            if s.indices().any(|e| e.uses(row)) || s.operands().any(|v| along.contains(&v)) {
                along.extend(s.defined_value());
            }
        }
        let accesses = walk(body).flat_map(|s| s.accesses());
        let mut loads = accesses
            .filter(|a| a.effect == Effect::Load && a.index.uses(row))
            .peekable();
        loads.peek().is_some() && loads.all(|a| a.mask.is_some_and(|m| along.contains(&m)))
    }

    /// Rows at the edge of an image apart from the others, if images are many enough to share among threads without their
    /// rows. Returns the innermost loops that there are then.
    fn rows_apart(&mut self, outer: &mut Vec<VarId>, inner: VarId) -> Vec<VarId> {
        let whole = vec![inner];
        let [images @ .., row] = &outer[..] else {
            return whole;
        };
        if self.least_images(images) < MANY_IMAGES {
            return whole;
        }
        let rows = self.peeled(*row).0;
        if rows.len() == 1 {
            return whole;
        }
        outer.pop();
        let inside = |row: &VarId| match tree::loop_body(&self.kernel.body, *row).map(|b| &b[..]) {
            Some([Stmt::Loop { var, .. }]) => Some(*var),
            _ => None,
        };
        rows.iter().filter_map(inside).collect()
    }

    /// Vectorizes a row, its parts and what is conditional at its ends apart.
    pub(super) fn row_of_image(&mut self, row: VarId) {
        if self.row_that_is_covered(row) {
            return;
        }
        for part in self.parts_of_row(row) {
            let peeled = self.peeled(part);
            self.edges_apart(peeled, |s, part| s.vectorize_row(part));
        }
    }

    /// Loops of their own for the parts that a row is joined of, if each has whole vectors: what others need is not computed, and nothing beside a
    /// part is loaded under a mask, which takes as long as a hundred loads where memory there is not present.
    fn parts_of_row(&mut self, row: VarId) -> Vec<VarId> {
        let whole = vec![row];
        let Some(n) = self.kernel.extents[row.0 as usize].as_const() else {
            return whole;
        };
        let lanes = self.emitter.lanes(DType::F32);
        let body = tree::loop_body(&self.kernel.body, row).map_or(&[][..], |b| &b[..]);
        if n < 2 * lanes || self.accumulates(row) || !self.pads() {
            return whole;
        }
        let mut ends = beginnings(&self.kernel, body, row, n);
        ends.push(n);
        let mut from = 0;
        let long = ends.iter().all(|&end| end - std::mem::replace(&mut from, end) >= lanes);
        if !long || !(2..=MOST_PARTS).contains(&ends.len()) {
            return whole;
        }
        let (mut parts, mut rest, mut from) = (Vec::new(), row, 0);
        self.because(ScheduleReason::Cases);
        for &end in &ends[..ends.len() - 1] {
            let made = self.apply(Directive::Peel {
                var: rest,
                from: end - std::mem::replace(&mut from, end),
                behind: 0,
            });
            let Some([first, behind]) = made.as_deref() else { break };
            parts.push(*first);
            rest = *behind;
        }
        parts.push(rest);
        parts
    }

    /// Vectorizes the parts of a row that was peeled, but for short edges: their few elements are no row.
    pub(super) fn edges_apart(&mut self, (parts, middle): (Vec<VarId>, VarId), vectorize: impl Fn(&mut Self, VarId)) {
        for part in parts {
            let few = self.kernel.extents[part.0 as usize]
                .as_const()
                .is_some_and(|n| n <= UNROLL);
            match few && part != middle {
                true => self.unroll_short(part),
                false => vectorize(self, part),
            }
        }
    }

    /// Computes a row of unknown length that has padding in vectors with masks, whose lanes load what is no padding: the rows of most images are short,
    /// and loops over their edges, their vectors and what these leave over would take longer than a few masks. Returns whether it was done.
    fn row_that_is_covered(&mut self, row: VarId) -> bool {
        let unknown = self.kernel.extents[row.0 as usize].as_const().is_none();
        let Ok(lanes) = self.lanes(row) else { return false };
        if !unknown || lanes < 2 || self.accumulates(row) || !self.masks_windows(row) || !self.pads_along(row) {
            return false;
        }
        self.because(ScheduleReason::Vectors { lanes });
        let (var, factor) = (row, lanes);
        let Some(made) = self.apply(Directive::Cover { var, factor }) else {
            return false;
        };
        for &var in &made[1..] {
            let bind = Bind::Lanes;
            self.apply(Directive::Bind { var, bind });
        }
        self.masks_ahead(made[0]);
        self.schedule.inner.push(Ok(lanes as u32));
        true
    }

    /// Whole vectors only, the last one overlapping, where that is possible; else as [`Self::vectorize`].
    fn vectorize_row(&mut self, row: VarId) {
        let extent = self.kernel.extents[row.0 as usize].as_const();
        let lanes = self.lanes(row);
        let (Ok(lanes), Some(n)) = (lanes, extent) else {
            // What whole vectors leave over of an image's rows is one with a mask: they are rarely long. (A product is only passed on in rows whose
            // every element is known to be written.)
            let masked = extent.is_none() && self.pads() && !self.accumulates(row) && self.masks_windows(row);
            return self.vectorize_with_rest(row, masked);
        };
        let (var, factor, again) = (row, lanes, true);
        if n % lanes == 0 || n < lanes {
            return self.vectorize(row);
        }
        self.because(ScheduleReason::Vectors { lanes });
        let Some(made) = self.apply(Directive::Pieces { var, factor, again }) else {
            return self.vectorize(row);
        };
        self.schedule.inner.push(Ok(lanes as u32));
        for &var in &made[1..] {
            let bind = Bind::Lanes;
            self.apply(Directive::Bind { var, bind });
        }
        let mut rest = Some(made[0]);
        let factor = self.side_by_side();
        if n >= lanes * factor && factor > 1 {
            self.because(ScheduleReason::SideBySide { vectors: factor });
            let var = made[0];
            let split = self.apply(Directive::Split { var, factor }).unwrap_or_default();
            if let Some(&var) = split.get(1) {
                let bind = Bind::Unroll;
                self.apply(Directive::Bind { var, bind });
            }
            rest = split.get(2).copied();
        }
        rest.into_iter().for_each(|v| self.unroll_short(v));
    }

    /// The parameters that the loop over `last` writes side by side and that will not be found in the caches again, with
    /// the elements of each to compute before they are written past the caches.
    fn streamed(&self, last: VarId) -> Vec<(u32, i64)> {
        let mut found: Vec<(u32, i64)> = Vec::new();
        if self.lanes(last).is_err() {
            return found;
        }
        let mut widest = 1;
        let accesses = self.kernel.statements().flat_map(|s| s.accesses());
        for a in accesses.filter(|a| a.effect == Effect::Store && !a.is_conditional()) {
            if let Memory::Param(p) = a.memory
                && a.index.affine_in(last).is_some_and(|(c, _)| c.is(1))
                && self.passes_caches(p)
            {
                let bytes = self.kernel.memory_dtype(a.memory).bytes() as i64;
                let row = self.kernel.extents[last.0 as usize].interval(&self.kernel).lo;
                if row.saturating_mul(bytes) >= SHORTEST_STREAMED_ROW {
                    widest = widest.max(bytes);
                    found.push((p, 0));
                }
            }
        }
        found.iter_mut().for_each(|f| f.1 = STREAMED_BYTES / widest);
        found
    }

    /// Whether a result is so large that the last cache does not hold it, whatever the symbols are: of one that fits, the next reader finds
    /// much there. What is updated in place is there when it is written.
    fn passes_caches(&self, param: u32) -> bool {
        let p = &self.kernel.params[param as usize];
        let least = p.len.interval(&self.kernel).lo;
        let bytes = least.saturating_mul(p.dtype.bytes() as i64);
        p.access == Access::Write && bytes >= 0 && bytes as u64 > self.cpu.l3_bytes.max(1 << 18)
    }

    fn past_caches(&mut self) {
        let last_cache = self.cpu.l3_bytes;
        self.because(ScheduleReason::PastCaches { last_cache });
    }

    fn stream(&mut self, var: VarId, streamed: &[(u32, i64)]) {
        for &(param, length) in streamed {
            self.past_caches();
            let staged = self.apply(Directive::StageStores { var, param, length });
            for var in staged.unwrap_or_default() {
                self.copy(var, Some(param));
            }
        }
    }

    /// Makes one copy of a loop nest that only copies, past the caches if the parameter that it writes is large.
    fn copy(&mut self, var: VarId, param: Option<u32>) -> bool {
        let streams = param.is_some_and(|p| self.passes_caches(p));
        if streams {
            self.past_caches();
        }
        let bind = if streams { Bind::Stream } else { Bind::Copy };
        self.apply(Directive::Bind { var, bind }).is_some()
    }

    /// Whether loads walk memory along `a` but not along `b`.
    fn prefers(&self, a: VarId, b: VarId) -> bool {
        let accesses = self.kernel.statements().flat_map(|s| s.accesses());
        accesses.filter(|access| access.effect == Effect::Load).any(|access| {
            let unit = |v: VarId| access.index.affine_in(v).is_some_and(|(c, _)| c.is(1));
            unit(a) && access.index.uses(b) && !unit(b)
        })
    }

    /// Has tiles of a transposition whose result goes past the caches follow each other along what is loaded, so that rows of it are read
    /// from end to end as the hardware expects: whole lines of the result are written in any order alike.
    fn along_loads(&mut self, outer: &mut [VarId]) {
        let streams = (0..self.kernel.params.len() as u32).any(|p| self.passes_caches(p));
        let [.., row, column] = outer else { return };
        let swap = Directive::Interchange {
            outer: *row,
            inner: *column,
        };
        let why = self.why;
        if streams && self.because(ScheduleReason::AlongLoads).apply(swap).is_some() {
            std::mem::swap(row, column);
        }
        self.why = why;
    }

    /// Computes a tile along what is loaded and stores it turned, where lanes cannot go along what is stored, as where that is padded: each lane has a
    /// row of its own there, whose ends none of the others meets. Returns whether it was done.
    fn along_the_loaded(&mut self, [row, column]: [VarId; 2], [rows, columns]: [i64; 2]) -> bool {
        if self.lanes(column).is_ok() {
            return false;
        }
        let saved = (self.kernel.clone(), self.schedule.clone());
        let done = (|| {
            self.apply(Directive::Interchange {
                outer: row,
                inner: column,
            })?;
            let copies = self.apply(Directive::StageTurned {
                outer: column,
                inner: row,
                rows: columns,
                columns: rows,
            })?;
            self.lanes(row).ok()?;
            Some(copies)
        })();
        match done {
            Some(copies) => {
                for var in copies {
                    self.copy(var, None);
                }
                self.vectorize(row);
                true
            }
            None => {
                (self.kernel, self.schedule) = saved;
                false
            }
        }
    }

    /// Tiles two loops so that both the walk along one axis and the walk along the other stay in cache.
    fn transposition(&mut self, loops: &[VarId], across: VarId, last: VarId) {
        if !self.transposition_of_parts(loops, across, last) {
            self.in_tiles(loops, across, last, true);
        }
    }

    /// Where the outermost loop goes through parts that were joined, a transposition of each: nothing is loaded on a condition then, and tiles are
    /// turned in registers. Returns whether it was done.
    fn transposition_of_parts(&mut self, loops: &[VarId], across: VarId, last: VarId) -> bool {
        let [first, inside @ ..] = loops else { return false };
        let place = |v: VarId| inside.iter().position(|&w| w == v);
        let (Some(across), Some(last)) = (place(across), place(last)) else {
            return false;
        };
        let enough = |n: i64| n >= self.cpu.threads.max(1) as i64;
        if !self.pads() || !self.kernel.extents[first.0 as usize].as_const().is_some_and(enough) {
            return false;
        }
        let saved = (self.kernel.clone(), self.schedule.clone());
        let nests = self.in_cases_of(*first, 2).map(|made| {
            let nest = |v: VarId| tree::loop_body(&self.kernel.body, v).map(|body| super::perfect_nest(body, v));
            made.into_iter().filter_map(nest).collect::<Vec<_>>()
        });
        match nests {
            Some(nests) if !self.pads() && nests.iter().all(|n| n.len() == inside.len()) => {
                self.parallel(&[*first]);
                for nest in nests {
                    self.in_tiles(&nest, nest[across], nest[last], false);
                }
                true
            }
            _ => {
                (self.kernel, self.schedule) = saved;
                false
            }
        }
    }

    /// As [`Self::transposition`], of one nest of loops, whose tiles threads share if `shared`.
    fn in_tiles(&mut self, loops: &[VarId], across: VarId, last: VarId, shared: bool) {
        let at = loops.iter().position(|&v| v == across).unwrap_or(0);
        let widest = self.kernel.params.iter().map(|p| p.dtype.bytes()).max();
        let (rows, columns) = tile(self.cpu, widest.unwrap_or(4));
        let elements = rows * columns;
        let rows = self.choose(Tunable::TransposedRows, rows, |_| [16, 32, 64, 128, 256]);
        let columns = (elements / rows).max(16);
        let tiles = ScheduleReason::Tiles { rows, columns };
        self.because(tiles);
        // Bring `across` next to the innermost loop.
        for k in at..loops.len() - 2 {
            if self
                .apply(Directive::Interchange {
                    outer: across,
                    inner: loops[k + 1],
                })
                .is_none()
            {
                return self.vectorize(last);
            }
        }
        let mut outer: Vec<VarId> = loops.iter().copied().filter(|&v| v != across && v != last).collect();
        let Some(row) = self.apply(Directive::Block {
            var: across,
            factor: rows,
        }) else {
            return self.vectorize(last);
        };
        outer.push(row[0]);
        if let Some(column) = self.apply(Directive::Block {
            var: last,
            factor: columns,
        }) && self
            .apply(Directive::Interchange {
                outer: row[1],
                inner: column[0],
            })
            .is_some()
        {
            outer.push(column[0]);
            self.along_loads(&mut outer);
            if shared {
                self.parallel(&outer);
            }
            let nest = tree::loop_body(&self.kernel.body, row[1]);
            let nest = nest.and_then(|body| CopyNest::of(&self.kernel, row[1], body));
            if let Some(CopyNest {
                to: Memory::Param(p), ..
            }) = nest
                && self.because(tiles).copy(row[1], Some(p))
            {
                return;
            }
            let staged = self.because(tiles).apply(Directive::Stage {
                outer: row[1],
                inner: column[1],
                rows,
                columns,
            });
            if staged.is_none() && self.along_the_loaded([row[1], column[1]], [rows, columns]) {
                return;
            }
            for var in staged.unwrap_or_default() {
                self.copy(var, None);
            }
            let streamed: Vec<(u32, i64)> = self.streamed(column[1]).into_iter().map(|s| (s.0, columns)).collect();
            self.stream(column[1], &streamed);
            self.vectorize(column[1]);
        } else if shared {
            self.parallel(&outer);
        }
    }
}
