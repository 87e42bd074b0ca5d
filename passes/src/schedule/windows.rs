//! Windows: lanes across the results of a row, each with a small window of its own that is copied out.
//!
//! The window of a pooling or of a depthwise convolution is a loop of a few iterations, too short for lanes, and its rows
//! do not lie together. Its results do: neighbouring ones go to neighbouring lanes, and what a lane reads in one iteration
//! of the window lies an equal distance from what the next lane reads.

use tlc_ir::DType;
use tlc_ir::graph::Monoid;
use tlc_ir::index::{IndexExpr, IndexNode, VarId};
use tlc_ir::kernel::visit::{Effect, MemoryAccess, walk};
use tlc_ir::kernel::{Bind, Memory, Op, Stmt};
use tlc_ir::scalar::Cost;
use tlc_ir::target::Emitter;

use super::slide::slides;
use super::{Directive, ScheduleReason, Scheduler};
use crate::directive::{MAX_UNROLL, MOST_SLIDING_PRODUCTS};
use crate::tree;
use crate::tuning::Tunable;

/// The most elements of a window that is copied out.
pub(super) const WINDOW: i64 = 49;
/// Images, planes or matrices from which there is enough to share without their rows.
pub(super) const MANY_IMAGES: i64 = 16;
/// Operations that the body may have when it is copied out.
const UNROLLED_OPS: i64 = 600;

/// Products of the rows that run together, about, and the rows that do all the same.
const PRODUCTS: i64 = 128;
const SHARING_ROWS: i64 = 4;

/// Rows that run together where sizes are not known: each has an address of its own, for the distance from one to the next is not known either, and
/// what is left over of them is taken by fewer and fewer.
const ROWS_OF_UNKNOWN_LENGTH: i64 = 4;

/// As many where one piece of code covers all rows, whose masks and addresses are found for each block of them: most images of networks are 7 rows high
/// times a power of two.
const COVERING_ROWS: i64 = 7;

/// Elements of windows that one piece of code covers though they are not padded.
const LARGE_WINDOW: i64 = 25;

/// Rows whose windows run together: each takes a register for its sum and one for what it loads, beside that of the weight
/// that they share.
fn rows_together(emitter: &Emitter) -> i64 {
    i64::from(emitter.vector_registers.saturating_sub(1) / 2).max(1)
}

/// As many where what is loaded is picked from two vectors, which takes four registers.
fn rows_together_strided(emitter: &Emitter) -> i64 {
    i64::from(emitter.vector_registers / 4).max(1)
}

/// Whether all that is accumulated is added up, or, with `largest`, is the largest of all.
fn only_sums(body: &[Stmt], largest: bool) -> bool {
    walk(body).all(|s| match s {
        Stmt::Let { .. } | Stmt::Store { .. } => true,
        Stmt::Accumulate { monoid, .. } => *monoid == Monoid::Add || (largest && *monoid == Monoid::Max),
        Stmt::Loop { .. } => true,
        _ => false,
    })
}

/// Whether some of what is loaded may be padding.
fn is_padded(body: &[Stmt]) -> bool {
    walk(body).flat_map(|s| s.accesses()).any(|a| a.is_conditional())
}

/// What the statements load.
fn loads(body: &[Stmt]) -> impl Iterator<Item = MemoryAccess<'_>> {
    walk(body)
        .flat_map(|s| s.accesses())
        .filter(|a| a.effect == Effect::Load)
}

/// Whether what neighbouring lanes load of some window does not lie side by side.
fn strides(body: &[Stmt], last: VarId) -> bool {
    let mut loads = loads(body);
    loads.any(|a| a.index.affine_in(last).is_none_or(|(c, _)| !c.is(0) && !c.is(1)))
}

impl Scheduler<'_> {
    /// Runs the last parallel loop in lanes with the windows inside copied out. Returns whether it was done.
    pub(super) fn windows(&mut self, parallel: &[VarId]) -> bool {
        let [outer @ .., before, last] = parallel else {
            return false;
        };
        if self.vector_bits == 0 {
            return false;
        }
        // A row of known length that is shorter than a vector fills a part of one.
        let known = self.kernel.extents[last.0 as usize].as_const();
        let whole = self.emitter.lanes(DType::F32);
        // Where lanes may be left out of an access, the edges of an image and what whole vectors leave over are vectors too.
        let masked = self.masks_windows(*last);
        let within = match known {
            Some(_) => self.lanes_within(*last, whole).unwrap_or(whole),
            None => whole,
        };
        let lanes = match known {
            Some(n) if masked && n >= self.narrowest_lanes(whole) => self.lanes_around(n, whole),
            _ => within,
        };
        let fits = |s: &Self| {
            let body = tree::loop_body(&s.kernel.body, *last)?;
            // A row whose length is not known is taken to be one of an image: it is rarely shorter than a vector.
            let row = s.kernel.extents[last.0 as usize].interval(&s.kernel);
            let least = if masked { s.narrowest_lanes(whole) } else { lanes };
            let enough = row.lo >= least || (row.lo < row.hi && row.hi >= least);
            let apart = s.walks_apart(body, *before, *last);
            let operations = s.window_ops(body, 1)?;
            (lanes >= 2 && enough && apart && s.fits_lanes(body, *last, true)).then_some(operations)
        };
        let Some(operations) = fits(self) else {
            return false;
        };
        // A mask makes one vector of a short row, where else it is pieces that overlap.
        let short = known.filter(|n| masked && *n <= lanes && lanes > within).map(|_| lanes);
        if self.windows_together(outer, *before, *last, (within, short), masked) {
            return true;
        }
        if operations > UNROLLED_OPS {
            return false;
        }
        let saved = (self.kernel.clone(), self.schedule.clone());
        // Rows at the edge of an image apart from the others, if images are many enough to share among threads.
        let many = self.least_images(outer) >= MANY_IMAGES;
        let rows = if many { self.peeled(*before).0 } else { vec![*before] };
        // In one range with images, an unknown number of rows would be divided by for each row.
        let alone = rows.len() > 1 || many && self.kernel.extents[before.0 as usize].as_const().is_none();
        let mut done = false;
        for row in rows {
            let Some([Stmt::Loop { var, .. }]) = tree::loop_body(&self.kernel.body, row).map(|b| &b[..]) else {
                break;
            };
            let var = *var;
            let middle = if masked { var } else { self.peeled(var).1 };
            done |= self.results_in_lanes(middle, lanes, masked);
        }
        if !done {
            (self.kernel, self.schedule) = saved;
            return false;
        }
        self.schedule.inner.push(Ok(lanes as u32));
        let mut shared = outer.to_vec();
        if !alone {
            shared.push(*before);
        }
        self.parallel(&shared);
        true
    }

    /// How many images loops go through at least; a batch of unknown size is taken to have one.
    pub(super) fn least_images(&self, loops: &[VarId]) -> i64 {
        let least = |v: &VarId| {
            let extent = &self.kernel.extents[v.0 as usize];
            // Of a batch of images that are one range with their channels, the channels are known.
            let known = match extent {
                IndexExpr::Node(n) => match &**n {
                    IndexNode::Sum { terms, constant: 0, .. } => terms.iter().map(|t| t.1).min().unwrap_or(1),
                    _ => 1,
                },
                IndexExpr::Const(_) => 1,
            };
            extent.interval(&self.kernel).lo.max(known).max(1)
        };
        loops.iter().map(least).fold(1, i64::saturating_mul)
    }

    /// Whether the emitter accesses some lanes of what the windows of a row load and store as it does all of them.
    pub(super) fn masks_windows(&self, last: VarId) -> bool {
        let all = |body: &Vec<Stmt>| {
            walk(body).flat_map(|s| s.accesses()).all(|a| {
                let step = |n: i64| a.index.affine_in(last).is_some_and(|(c, _)| c.is(n));
                let dtype = self.kernel.memory_dtype(a.memory);
                match a.memory {
                    Memory::Param(_) if step(0) => true,
                    Memory::Param(_) if step(2) => a.effect == Effect::Load && self.emitter.masks_every_other(dtype),
                    Memory::Param(_) => step(1) && self.emitter.masks(dtype),
                    Memory::Scratch(_) => true,
                }
            })
        };
        tree::loop_body(&self.kernel.body, last).is_some_and(all)
    }

    /// The fewest lanes, down to the narrowest, that a row of so many results fits, or all.
    fn lanes_around(&self, results: i64, whole: i64) -> i64 {
        let narrowest = self.narrowest_lanes(whole);
        let doubled = std::iter::successors(Some(narrowest), |n| (n * 2 <= whole).then_some(n * 2));
        doubled.into_iter().find(|n| *n >= results).unwrap_or(whole)
    }

    /// Sums of windows: several rows and a vector of results in each at once, whose accumulators stay in registers while the windows slide
    /// over the image. A row is vectors of so many lanes, or one with a mask. Returns whether it was done.
    fn windows_together(
        &mut self,
        outer: &[VarId],
        before: VarId,
        last: VarId,
        lanes: (i64, Option<i64>),
        masks: bool,
    ) -> bool {
        let Some(body) = tree::loop_body(&self.kernel.body, last) else {
            return false;
        };
        let known = |v: VarId| self.kernel.extents[v.0 as usize].as_const().is_some();
        let known = known(before) && known(last);
        let unknown = masks && !known;
        let padded = is_padded(body);
        let strided = strides(body, last);
        let products = self.elements_of_window(body).unwrap_or(1);
        // Without padding whole vectors have no masks elsewhere, which only costs more than they save where windows are large or step by step.
        let covers = unknown && (padded || strided || products >= LARGE_WINDOW);
        let sums = body.iter().any(|s| matches!(s, Stmt::Loop { .. })) && only_sums(body, covers);
        let most = match strided {
            true => rows_together_strided(self.emitter),
            false => rows_together(self.emitter),
        };
        // All products are copied out: rows that share an element save less and less, and code takes time to make.
        let copied = (PRODUCTS / products)
            .max(SHARING_ROWS)
            .min(MOST_SLIDING_PRODUCTS / products);
        let most = most.min(copied.max(2));
        let most = if known { most } else { most.min(ROWS_OF_UNKNOWN_LENGTH) };
        // What whole vectors leave over of a row of unknown length is left out as padding is.
        let in_masks = padded || unknown;
        // One register is the image's, one the mask's where masks are vectors.
        let registers = i64::from(self.emitter.vector_registers) - 2;
        let many = self.least_images(outer) >= MANY_IMAGES;
        // Where loads of elements that lie apart take no mask, those that are padding are left out one by one.
        let sums = sums && (masks || !(padded && strided));
        let Some(model) = self.rows_at_once(before, most, many).filter(|_| sums) else {
            return false;
        };
        let rows = self.choose(Tunable::WindowRows, model, |s| s.rows_that_divide(before, most));
        let saved = (self.kernel.clone(), self.schedule.clone());
        if covers {
            let most = match strided {
                true => rows_together_strided(self.emitter),
                false => rows_together(self.emitter),
            };
            let rows = most.min(COVERING_ROWS).min(MOST_SLIDING_PRODUCTS / products).max(2);
            let held = rows + products <= registers;
            if self.rows_that_cover(outer, before, last, (rows, held)).is_some() {
                return true;
            }
            (self.kernel, self.schedule) = saved.clone();
        }
        let (whole, masked) = lanes;
        // Rows of padded images and of unknown length have masks of their own.
        let masked = masked.filter(|_| !in_masks);
        masked.into_iter().map(Some).chain([None]).any(|masked| {
            let lanes = (whole, masked);
            let held = rows + products <= registers;
            let done = match in_masks {
                true => self.rows_of_masked_windows(outer, before, (rows, held)),
                false => self.rows_of_windows(outer, before, last, (rows, held), lanes),
            };
            let done = done.is_some();
            if !done {
                (self.kernel, self.schedule) = saved.clone();
            }
            done
        })
    }

    /// Rows whose windows run together: as many as divide them, else the most, where there are images enough to share without
    /// their rows.
    fn rows_at_once(&self, before: VarId, most: i64, many: bool) -> Option<i64> {
        let rows = &self.kernel.extents[before.0 as usize];
        let even = rows.as_const().and_then(|n| {
            let least = n.min(most / 2 + 1);
            (least.max(2)..=most).rev().find(|r| n % r == 0)
        });
        // Else as few blocks as there can be, of about as many rows each.
        let about_even = || match rows.as_const() {
            Some(n) => {
                let blocks = ((n + most - 1) / most).max(1);
                (n + blocks - 1) / blocks
            }
            None => most,
        };
        even.or_else(|| (many && rows.interval(&self.kernel).hi > most).then(about_even))
    }

    /// Rows that may run together, at most so many: those that divide a known number of them. One by one, large windows would be added up otherwise.
    fn rows_that_divide(&self, before: VarId, most: i64) -> impl Iterator<Item = i64> + use<> {
        let rows = self.kernel.extents[before.0 as usize].as_const().unwrap_or(0);
        (2..=most).filter(move |r| rows % r == 0 && rows > 0)
    }

    fn rows_of_windows(
        &mut self,
        outer: &[VarId],
        before: VarId,
        last: VarId,
        (rows, held): (i64, bool),
        (lanes, masked): (i64, Option<i64>),
    ) -> Option<()> {
        self.because(ScheduleReason::WindowsTogether { rows });
        let mut shared = outer.to_vec();
        let mut parts = vec![last];
        let mut together = before;
        if !self.kernel.extents[before.0 as usize].is(rows) {
            let made = self.apply(Directive::Pieces {
                var: before,
                factor: rows,
                again: false,
            })?;
            together = made[1];
            match made.get(2) {
                Some(&rest) => {
                    match tree::loop_body(&self.kernel.body, rest).map(|b| &b[..]) {
                        Some([Stmt::Loop { var, .. }]) => parts.push(*var),
                        _ => return None,
                    }
                    let left = self.kernel.extents[rest.0 as usize].as_const();
                    if left.is_some_and(|n| n > 1) {
                        self.apply(Directive::Inward { var: rest })?;
                    }
                }
                None => shared.push(made[0]),
            }
        }
        self.apply(Directive::Inward { var: together })?;
        self.because(ScheduleReason::ResultsInLanes {
            lanes: masked.unwrap_or(lanes),
        });
        for var in parts {
            if let Some(lanes) = masked {
                for var in self.apply(Directive::InwardMasked { var, lanes })? {
                    let bind = Bind::Lanes;
                    self.apply(Directive::Bind { var, bind })?;
                }
                continue;
            }
            let factor = lanes;
            let whole = self.kernel.extents[var.0 as usize].interval(&self.kernel).lo >= lanes;
            let again = whole
                .then(|| {
                    self.apply(Directive::Pieces {
                        var,
                        factor,
                        again: true,
                    })
                })
                .flatten();
            let made = match &again {
                Some(made) => made.clone(),
                None => self.apply(Directive::Pieces {
                    var,
                    factor,
                    again: false,
                })?,
            };
            let vectors = if again.is_some() { &made[1..] } else { &made[1..2] };
            for &var in vectors {
                for var in self.apply(Directive::Inward { var })? {
                    let bind = Bind::Lanes;
                    self.apply(Directive::Bind { var, bind })?;
                }
            }
        }
        self.windows_slide(held);
        self.schedule.inner.push(Ok(masked.unwrap_or(lanes) as u32));
        self.parallel(&shared);
        Some(())
    }

    /// As [`Self::rows_of_windows`], of an image that is padded or of unknown size: masks leave out what lies outside, and what whole vectors leave over
    /// of a row, which only pays where windows slide.
    fn rows_of_masked_windows(&mut self, outer: &[VarId], before: VarId, (rows, held): (i64, bool)) -> Option<()> {
        let lanes = self.emitter.lanes(DType::F32);
        let mut shared = outer.to_vec();
        // Rows, the results of each, and whether the rows are computed together.
        let mut blocks = Vec::new();
        let (mut left, mut factor) = (Some(before), rows);
        while let Some(var) = left.take() {
            let extent = &self.kernel.extents[var.0 as usize];
            // Of an unknown number a half of as many may be left over, and so on.
            let most = extent.interval(&self.kernel).hi.min(factor);
            let whole = extent.as_const().is_some_and(|n| n == rows || var != before);
            if whole || most < 2 {
                blocks.push((var, self.only_loop(var)?, whole));
                break;
            }
            self.because(ScheduleReason::WindowsTogether { rows });
            let made = self.apply(Directive::Pieces {
                var,
                factor: most,
                again: false,
            })?;
            if let [all, _] = made[..]
                && var == before
            {
                shared.push(all);
            }
            blocks.push((made[1], self.only_loop(made[1])?, true));
            left = made.get(2).copied();
            factor = most / 2;
        }
        let mut nests = 0;
        for (rows_inside, results, together) in blocks {
            if together {
                self.because(ScheduleReason::WindowsTogether { rows });
                self.apply(Directive::Inward { var: rows_inside })?;
            }
            let length = self.kernel.extents[results.0 as usize].clone();
            let mut vectors = Vec::new();
            let mut rest = Some(results);
            self.because(ScheduleReason::ResultsInLanes { lanes });
            if length.interval(&self.kernel).hi >= lanes {
                let (var, factor, again) = (results, lanes, false);
                let made = self.apply(Directive::Pieces { var, factor, again })?;
                vectors.push(Directive::Inward { var: made[1] });
                rest = made.get(2).copied();
            }
            if let Some(var) = rest {
                // Copies of registers are of whole vectors, beside which processors run narrower ones on fewer ports.
                let n = self.kernel.extents[var.0 as usize].as_const();
                let lanes = match n {
                    Some(n) if !held => self.lanes_around(n, lanes),
                    _ => lanes,
                };
                vectors.push(Directive::InwardMasked { var, lanes });
            }
            if together {
                nests += vectors.len();
            }
            for directive in vectors {
                for var in self.apply(directive)? {
                    let bind = Bind::Lanes;
                    self.apply(Directive::Bind { var, bind })?;
                }
            }
            if !together {
                self.copy_out_windows(rows_inside);
            }
        }
        if self.windows_slide(held) < nests {
            return None;
        }
        self.schedule.inner.push(Ok(lanes as u32));
        self.parallel(&shared);
        Some(())
    }

    /// As [`Self::rows_of_masked_windows`], of an image of unknown size, with one piece of code for all of its rows and vectors.
    fn rows_that_cover(
        &mut self,
        outer: &[VarId],
        before: VarId,
        last: VarId,
        (rows, held): (i64, bool),
    ) -> Option<()> {
        let lanes = self.emitter.lanes(DType::F32);
        self.because(ScheduleReason::WindowsTogether { rows });
        self.apply(Directive::Cover {
            var: before,
            factor: rows,
        })?;
        self.because(ScheduleReason::ResultsInLanes { lanes });
        let (var, factor) = (last, lanes);
        let made = self.apply(Directive::Cover { var, factor })?;
        for &var in &made[1..] {
            let bind = Bind::Lanes;
            self.apply(Directive::Bind { var, bind })?;
        }
        if self.windows_slide(held) == 0 {
            return None;
        }
        self.masks_ahead(made[0]);
        self.schedule.inner.push(Ok(lanes as u32));
        self.parallel(outer);
        Some(())
    }

    /// Copies out the loops over the windows of a row's results.
    fn copy_out_windows(&mut self, row: VarId) {
        let body = tree::loop_body(&self.kernel.body, row).map_or(&[][..], |b| &b[..]);
        let short = |s: &Stmt| match s {
            Stmt::Loop {
                var,
                bind: Bind::Serial,
                ..
            } => {
                let n = self.kernel.extents[var.0 as usize].as_const();
                n.is_some_and(|n| n <= WINDOW).then_some(*var)
            }
            _ => None,
        };
        let windows: Vec<VarId> = walk(body).filter_map(short).collect();
        self.because(ScheduleReason::Window);
        for var in windows {
            let bind = Bind::Unroll;
            self.apply(Directive::Bind { var, bind });
        }
    }

    /// Has windows of several rows slide over the image. Returns how many nests do.
    fn windows_slide(&mut self, held: bool) -> usize {
        let loops = self.kernel.statements().filter_map(|s| match s {
            Stmt::Loop { var, .. } => Some(*var),
            _ => None,
        });
        let windows: Vec<VarId> = loops.filter(|v| slides(&self.kernel, *v)).collect();
        self.because(ScheduleReason::Slide);
        let slid = windows
            .into_iter()
            .filter(|var| self.apply(Directive::Slide { var: *var, held }).is_some());
        slid.count()
    }

    /// Elements of the window of each result.
    fn elements_of_window(&self, body: &[Stmt]) -> Option<i64> {
        let of = |s: &Stmt| match s {
            Stmt::Loop { var, body, .. } => {
                let n = self.kernel.extents[var.0 as usize].as_const()?;
                n.checked_mul(self.elements_of_window(body)?)
            }
            _ => None,
        };
        Some(body.iter().find_map(of).unwrap_or(1))
    }

    /// Copies out the windows of a loop over results, which goes to lanes. Returns whether it was done.
    fn results_in_lanes(&mut self, results: VarId, lanes: i64, masked: bool) -> bool {
        // The rows of a window and their elements in one loop: what is combined in it is combined together.
        let nests: Vec<VarId> = tree::loop_body(&self.kernel.body, results)
            .map_or(&[][..], |b| &b[..])
            .iter()
            .filter_map(|s| match s {
                Stmt::Loop { var, .. } => Some(*var),
                _ => None,
            })
            .collect();
        self.because(ScheduleReason::Window);
        for mut var in nests {
            while let Some([Stmt::Loop { var: inner, .. }]) = tree::loop_body(&self.kernel.body, var).map(|b| &b[..]) {
                let (outer, inner) = (var, *inner);
                match self.apply(Directive::Fuse { outer, inner }) {
                    Some(made) => var = made[0],
                    None => break,
                }
            }
        }
        self.because(ScheduleReason::ResultsInLanes { lanes });
        if masked {
            let var = results;
            let Some(made) = self.apply(Directive::Across { var, lanes, masked }) else {
                return false;
            };
            // The first and the last of whole vectors are at the edges.
            if let [vectors, _, ..] = made[..] {
                let parts = self.peeled(vectors).0;
                parts.into_iter().for_each(|part| self.unroll_short(part));
            }
            return true;
        }
        // What whole vectors leave over is one more of them, which computes some results again.
        let ragged = self.kernel.extents[results.0 as usize]
            .as_const()
            .is_some_and(|n| n > lanes && n % lanes != 0);
        if ragged
            && let Some(made) = self.apply(Directive::Pieces {
                var: results,
                factor: lanes,
                again: true,
            })
        {
            let vectors = &made[1..];
            let across = |s: &mut Self, var| s.apply(Directive::Across { var, lanes, masked }).is_some();
            let done = vectors.iter().all(|&var| across(self, var));
            self.unroll_short(made[0]);
            return done;
        }
        let var = results;
        let made = self.apply(Directive::Across { var, lanes, masked });
        if let Some(made) = &made {
            self.unroll_short(made[0]);
            if let Some(&rest) = made.get(2) {
                self.copy_out_rest(rest, lanes);
            }
        }
        made.is_some()
    }

    /// Copies out what whole vectors leave over of a row with its windows: as a loop, whose elements are found by division,
    /// it takes longer than all the vectors of a short row.
    fn copy_out_rest(&mut self, rest: VarId, lanes: i64) {
        let Some(body) = tree::loop_body(&self.kernel.body, rest) else {
            return;
        };
        let few = self.window_ops(body, 1).is_some_and(|ops| ops * lanes <= UNROLLED_OPS);
        if !few {
            return;
        }
        let windows: Vec<VarId> = body
            .iter()
            .filter_map(|s| match s {
                Stmt::Loop { var, .. } => Some(*var),
                _ => None,
            })
            .collect();
        // Of a row of unknown length an unknown number is left over.
        let known = self.kernel.extents[rest.0 as usize].as_const().map(|_| rest);
        self.because(ScheduleReason::Rest);
        for var in windows.into_iter().chain(known) {
            let bind = Bind::Unroll;
            self.apply(Directive::Bind { var, bind });
        }
    }

    /// Whether some load does not walk on from the end of a row of results to the next: the loops are no flat range.
    fn walks_apart(&self, body: &[Stmt], before: VarId, last: VarId) -> bool {
        let extent = &self.kernel.extents[last.0 as usize];
        // At the edge of an image the row ends, even if the next one follows in memory.
        loads(body).any(|a| {
            a.mask.is_some()
                || match (a.index.affine_in(before), a.index.affine_in(last)) {
                    (Some((b, _)), Some((l, _))) => b != l * extent.clone(),
                    _ => true,
                }
        })
    }

    /// Operations of the statements when their loops are copied out; `None` if a loop is not short.
    fn window_ops(&self, body: &[Stmt], copies: i64) -> Option<i64> {
        let mut total = 0;
        for s in body {
            total += match s {
                Stmt::Let { op: Op::Map(op, _), .. } if op.cost() == Cost::Function => 25 * copies,
                Stmt::Loop { var, body, .. } => {
                    let n = self.kernel.extents[var.0 as usize].as_const()?;
                    if !(1..=WINDOW.min(MAX_UNROLL)).contains(&(n * copies)) {
                        return None;
                    }
                    self.window_ops(body, copies * n)?
                }
                _ => copies,
            };
        }
        Some(total)
    }
}
