//! The policy for GPUs: which loops run over blocks, which over threads.
//!
//! | form | mapping |
//! |---|---|
//! | sums of products of a type that matrix instructions take | a block takes a tile, its warps parts of it: [`super::tensor_cores`] |
//! | other sums of products | a block takes a tile of rows and columns, a thread a part of it; both operands go through shared memory |
//! | elementwise | all loops fused; a block takes 256 pieces, a thread one: 16 bytes of each tensor where they are aligned, else an element |
//! | elementwise, of few long rows and numbers of theirs | a block takes a piece of a row, and reads the row's numbers once: [`super::beside_rows`] |
//! | elementwise, of a tensor that is walked across | a block takes a tile, which goes through shared memory: [`super::transposition`] |
//! | many rows, no longer than registers hold | a warp takes a row, whose threads share the inner loops and combine accumulators without a barrier: [`super::gpu_rows`] |
//! | other rows | a block takes a row; its threads share the inner loops; accumulators are combined in warps, then through shared memory |
//! | short rows | a part of a warp takes a row, as one does longer ones; of one element, or where that cannot be, a thread takes a row |
//! | columns | a block takes a tile of columns, a thread one column, or 16 bytes of each row; what of the rows is kept lies in shared memory: [`super::gpu_columns`] |
//! | rows behind products | a block takes a tile of whole rows of sums, and its warps what is computed of the rows: [`super::product_rows`] |
//! | tiles | as they were lowered |
//! | updates | a thread takes an index of the parallel loops; the indices of updates go through shared memory: [`super::share_loads`] |
//! | serial | a thread takes an index of the parallel loops |
//!
//! The result is a kernel as [`super::threads`] describes it, always: a form whose directives refuse falls back to one thread
//! per parallel index.

use tlc_ir::Precision;
use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::visit::{MemoryAccess, walk};
use tlc_ir::kernel::{Bind, Kernel, Memory, SHARED_ALIGNMENT, Scope, Scratch, Stmt, ValueId};
use tlc_ir::target::{GPU_ACCESS_BYTES, Gpu as Target, MAX_BLOCK_THREADS, WARP_THREADS};

use super::cascade;
use super::directives::apply;
use super::gpu_columns::{SHARING_THREADS, columns_shared, few_columns, pieces_of_columns, tile};
use super::gpu_rows::short_rows_by_parts;
use super::keep::{Room, keep_rows};
use super::tensor_cores::{adds_products, note_refusal};
use super::{Schedule, ScheduleReason, flops, fuse_clean, keeps_rows};
use crate::directive::{Directive, DirectiveRefusal};
use crate::legalize::legal_block;
use crate::lower::{Form, Nest};
use crate::tile::LARGE_PRODUCT_SIDE;
use crate::tree;

/// Threads of a block of independent elements.
pub(super) const THREADS: i64 = 256;
/// Elements from which on a device has enough to do if each thread takes several.
pub(super) const LARGE: i64 = 1 << 14;
/// Legalized statements of a thread beyond which it takes fewer elements at once: the text has them for each element.
const PIECE_STATEMENTS: u64 = 1500;
/// Threads of a block of serial work items.
const ITEM_THREADS: i64 = 128;
/// Steps of sums of products that go through shared memory at a time.
pub(super) const STEPS: i64 = 16;
/// Elements of a row up to which one thread takes all of it.
const SHORT_ROW: i64 = 32;
/// Blocks from which on a device has enough of them, however few threads each has.
const MANY_BLOCKS: i64 = 4096;
/// Turns of a thread that looks for the position of an extremum.
const ARG_TURNS: i64 = 4;
/// Of elements of the longest loop over a row, those of one that is little beside it.
const LITTLE: i64 = 256;
/// Rows from which short ones are worth a thread each.
const MANY_ROWS: i64 = 64;

/// Schedules a nest for a GPU.
pub(super) fn schedule(nest: &Nest, gpu: &Target) -> (Kernel, Schedule) {
    let keeping = scheduled(nest, gpu, true);
    match gpu_room(shared_limit(nest, gpu), shared_of(&keeping.0)) {
        Ok(()) => keeping,
        Err(_) => scheduled(nest, gpu, false),
    }
}

/// Bytes that a block of a nest may share. For rows and tiles as they were lowered it is worth to ask the driver for more than a block may
/// have otherwise: what they keep there would be read again.
fn shared_limit(nest: &Nest, gpu: &Target) -> i64 {
    match nest.form {
        Form::Rows | Form::Tiles | Form::ProductRows { .. } => gpu.opt_in_shared_bytes.max(gpu.shared_bytes),
        Form::Elementwise | Form::Columns | Form::Serial | Form::Updates => gpu.shared_bytes,
    }
}

/// Bytes that a block of a kernel shares.
fn shared_of(kernel: &Kernel) -> i64 {
    kernel.grid().map_or(0, |grid| grid.shared_bytes)
}

/// Whether a block of a kernel that runs over blocks has the shared memory that it asks for.
pub(super) fn room_for(kernel: &Kernel, gpu: &Target) -> Result<(), DirectiveRefusal> {
    gpu_room(gpu.shared_bytes, shared_of(kernel))
}

/// As [`schedule`]; `keeps` says whether what phases of a row share may be kept.
fn scheduled(nest: &Nest, gpu: &Target, keeps: bool) -> (Kernel, Schedule) {
    let mut kernel = nest.kernel.clone();
    let mut made = Schedule::default();
    let short = nest.form == Form::Rows && short_rows(nest);
    if let Some(done) = short.then(|| short_rows_by_parts(nest)).flatten() {
        return done;
    }
    let limit = shared_limit(nest, gpu);
    let mut kept_bytes = 0;
    if keeps && keeps_rows(nest) {
        let fits = |kernel: &Kernel, row_bytes: i64| match (nest.form, short) {
            // A thread keeps a short row to itself.
            (Form::Rows, true) => Ok(()),
            (Form::Columns, _) => gpu_room(limit, columns_shared(nest, kernel, row_bytes, gpu)),
            _ => gpu_room(limit, rows_shared(nest, kernel, row_bytes, gpu)),
        };
        let room = Room {
            // A block's row is read once from global memory.
            operands: nest.column_local || nest.form == Form::Rows && !short,
            fits: &fits,
        };
        kept_bytes = keep_rows(&mut kernel, &mut made, &nest.parallel, &room);
    }
    made.flops = flops::flops(&kernel);
    let within = |limit: i64, f: &dyn Fn(&mut Gpu) -> Result<(), DirectiveRefusal>| {
        let mut g = Gpu {
            kernel: kernel.clone(),
            schedule: made.clone(),
            why: ScheduleReason::BlocksAndThreads,
        };
        f(&mut g)?;
        // Tiles of sizes that symbols decide may be larger than they look.
        gpu_room(limit, shared_of(&g.kernel))?;
        Ok((g.kernel, g.schedule))
    };
    let attempt = |f: &dyn Fn(&mut Gpu) -> Result<(), DirectiveRefusal>| within(limit, f);
    // Stages of copies may take more than a block has otherwise.
    let most = gpu.opt_in_shared_bytes.max(gpu.shared_bytes);
    let product = |f: &dyn Fn(&mut Gpu) -> Result<(), DirectiveRefusal>| within(most, f);
    let parallel = &nest.parallel[..];
    if let Form::ProductRows { rows, columns } = nest.form {
        let ways = [Some(Precision::Exact), Some(nest.precision), None];
        let mut made = ways
            .into_iter()
            .map(|how| product(&|g| g.product_rows(parallel, [rows, columns], how, gpu)));
        if let Some(done) = made.find_map(Result::ok) {
            return done;
        }
    }
    let mut too_short = None;
    if matches!(nest.form, Form::Rows | Form::Columns) && !short {
        for row in rows_of_tiles(&kernel, parallel) {
            let exactly = product(&|g| g.tensor_products(parallel, row, Precision::Exact, gpu));
            let done = match nest.precision {
                Precision::Exact => exactly,
                less => exactly.or_else(|_| product(&|g| g.tensor_products(parallel, row, less, gpu))),
            };
            let refusal = match done {
                Ok(done) => return done,
                Err(refusal) => refusal,
            };
            if let Ok((kernel, mut tiled)) = product(&|g| g.products(parallel, row, gpu)) {
                note_refusal(&mut tiled, parallel[row], refusal);
                return (kernel, tiled);
            }
            if matches!(refusal, DirectiveRefusal::TooShort(_)) && adds_products(&kernel) {
                too_short.get_or_insert((parallel[row], refusal));
            }
        }
    }
    let scheduled = match nest.form {
        Form::Elementwise => attempt(&|g| g.transposition(parallel, gpu))
            .or_else(|refused| {
                let mut made =
                    pieces_along(&kernel, parallel).map(|lanes| attempt(&|g| g.beside_rows(parallel, lanes, gpu)));
                made.find_map(Result::ok).ok_or(refused)
            })
            .or_else(|refused| {
                let mut made = pieces_along(&kernel, parallel).map(|lanes| attempt(&|g| g.pieces(parallel, lanes)));
                made.find_map(Result::ok).ok_or(refused)
            })
            .or_else(|_| attempt(&|g| g.items(parallel, THREADS).map(drop))),
        Form::Rows if short => attempt(&|g| g.items(parallel, ITEM_THREADS).map(drop)),
        Form::Rows => {
            let pieces = || pieces_of_rows(&kernel, parallel).chain([1]);
            let mut by_warps = pieces().map(|lanes| attempt(&|g| g.rows_by_warps(parallel, lanes)));
            let threads = match stays_on_chip(nest, gpu) {
                true => row_threads(kept_bytes, gpu),
                false => MAX_BLOCK_THREADS,
            };
            let mut by_blocks = pieces().map(|lanes| attempt(&|g| g.rows(parallel, lanes, threads)));
            let done = by_warps.find_map(Result::ok).or_else(|| by_blocks.find_map(Result::ok));
            done.ok_or(DirectiveRefusal::NoDivision)
        }
        Form::Columns => {
            let width = tile(nest, &kernel, kept_bytes, gpu);
            let narrow = few_columns(nest, &kernel, gpu).filter(|_| kept_bytes == 0);
            let shared = narrow.and_then(|width| {
                let lanes = pieces(&kernel).filter(|lanes| width % lanes == 0).chain([1]);
                let mut made = lanes.map(|lanes| attempt(&|g| g.columns(nest, width, lanes, Some(SHARING_THREADS))));
                made.find_map(Result::ok)
            });
            let apart = || {
                let lanes = pieces_of_columns(nest, &kernel, width).chain([1]);
                let mut made = lanes.map(|lanes| attempt(&|g| g.columns(nest, width, lanes, None)));
                made.find_map(Result::ok)
            };
            shared.or_else(apart).ok_or(DirectiveRefusal::NoDivision)
        }
        // Written for blocks as it was lowered.
        Form::Tiles => within(i64::MAX, &|g| g.reside(gpu)),
        Form::Updates => attempt(&|g| g.updates(parallel, ITEM_THREADS)),
        Form::Serial | Form::ProductRows { .. } => attempt(&|g| g.items(parallel, ITEM_THREADS).map(drop)),
    };
    let scheduled = scheduled.or_else(|_| attempt(&|g| g.items(parallel, ITEM_THREADS).map(drop)));
    let (kernel, mut made) = match scheduled {
        // A nest of tiles says itself in which order its sums are added up.
        Ok(done) if nest.form == Form::Tiles => done,
        Ok((kernel, schedule)) => in_blocks(kernel, schedule),
        Err(_) => (kernel.clone(), made.clone()),
    };
    if let Some((row, refusal)) = too_short {
        note_refusal(&mut made, row, refusal);
    }
    (kernel, made)
}

/// Has each thread add up its long sums in blocks.
pub(super) fn in_blocks(kernel: Kernel, schedule: Schedule) -> (Kernel, Schedule) {
    let mut g = Gpu {
        kernel,
        schedule,
        why: ScheduleReason::BlocksAndThreads,
    };
    let apply = |g: &mut Gpu, directive, reason| {
        g.why = reason;
        g.apply(directive).ok()
    };
    cascade::cascades(&mut g, (false, &[]), |g| &g.kernel, apply);
    (g.kernel, g.schedule)
}

/// Which of the parallel loops tiles of products may have their rows of, in the order in which they are tried: the innermost of those that fill the most
/// of a tile.
fn rows_of_tiles(kernel: &Kernel, parallel: &[VarId]) -> Vec<usize> {
    let mut rows: Vec<usize> = (0..parallel.len().saturating_sub(1)).rev().collect();
    let length = |row: usize| kernel.extents[parallel[row].0 as usize].interval(kernel).hi;
    rows.sort_by_key(|&row| std::cmp::Reverse(length(row).min(LARGE_PRODUCT_SIDE)));
    rows
}

/// Elements that a thread may take at once, the most first: at most 16 bytes of the widest tensor.
pub(super) fn pieces(kernel: &Kernel) -> impl Iterator<Item = i64> {
    of_widest(kernel.params.iter().map(|p| p.dtype.bytes() as i64))
}

/// As [`pieces`], of the tensors that the last of the parallel loops goes along, if there are some: what is read once a row may be wider, as indices are.
fn pieces_along(kernel: &Kernel, parallel: &[VarId]) -> impl Iterator<Item = i64> {
    let accesses = kernel.statements().flat_map(|s| s.accesses());
    let bytes = accesses.filter_map(|a| match a.memory {
        Memory::Param(p) if parallel.last().is_some_and(|&v| a.index.uses(v)) => {
            Some(kernel.params[p as usize].dtype.bytes() as i64)
        }
        _ => None,
    });
    let widest = bytes.max();
    let all = kernel.params.iter().map(|p| p.dtype.bytes() as i64).max();
    of_widest(widest.or(all).into_iter())
}

/// As [`pieces`], of the tensors that loops inside the parallel ones go along: what is stored once a row may be wider.
pub(super) fn pieces_of_rows(kernel: &Kernel, parallel: &[VarId]) -> impl Iterator<Item = i64> {
    let row = parallel.last().and_then(|&v| tree::loop_body(&kernel.body, v));
    let loops = row.unwrap_or(&kernel.body).iter().flat_map(|s| walk(s.body()));
    let bytes = loops.flat_map(|s| s.accesses()).filter_map(|a| match a.memory {
        Memory::Param(p) => Some(kernel.params[p as usize].dtype.bytes() as i64),
        Memory::Scratch(_) => None,
    });
    of_widest(bytes)
}

/// Elements whose widest are at most 16 bytes, and halves of them, as long as there are several.
fn of_widest(bytes: impl Iterator<Item = i64>) -> impl Iterator<Item = i64> {
    let most = GPU_ACCESS_BYTES / bytes.max().unwrap_or(GPU_ACCESS_BYTES).max(1);
    std::iter::successors(Some(most), |n| Some(n / 2)).take_while(|n| *n > 1)
}

/// Whether a block may share so many bytes.
fn gpu_room(most: i64, bytes: i64) -> Result<(), DirectiveRefusal> {
    match bytes <= most {
        true => Ok(()),
        false => Err(DirectiveRefusal::SharedBytes { bytes, most }),
    }
}

/// Bytes of scratch of so many elements, as a block shares it.
pub(super) fn shared(scratch: &Scratch, elements: i64) -> i64 {
    let bytes = elements.saturating_mul(scratch.dtype.bytes() as i64);
    bytes.saturating_add(SHARED_ALIGNMENT)
}

/// The most threads of a block with a row of which so many bytes are kept. Where a multiprocessor has room for few such blocks, each
/// has more threads, so that as many bytes are on their way.
fn row_threads(row_bytes: i64, gpu: &Target) -> i64 {
    match row_bytes > gpu.shared_bytes {
        true => MAX_BLOCK_THREADS,
        false => THREADS,
    }
}

/// Whether rows may be short enough to be kept. Of others there are few for each multiprocessor, and each has all threads there can be, as where there is
/// room for few of them.
fn stays_on_chip(nest: &Nest, gpu: &Target) -> bool {
    let k = &nest.kernel;
    let row = nest.parallel.last().and_then(|&v| tree::loop_body(&k.body, v));
    let loops = walk(row.unwrap_or(&k.body)).flat_map(|s| s.defined_vars());
    let longest = loops.map(|v| k.extents[v.0 as usize].interval(k).lo).max().unwrap_or(0);
    longest.saturating_mul(4) <= gpu.opt_in_shared_bytes.max(gpu.shared_bytes)
}

/// Bytes that a block with a row shares: so many of the row, and accumulators, one for each thread.
fn rows_shared(nest: &Nest, kernel: &Kernel, row_bytes: i64, gpu: &Target) -> i64 {
    let threads = row_threads(row_bytes, gpu);
    let accumulators = nest.kernel.scratch.iter().map(|s| shared(s, threads));
    let kept = kernel.scratch.len() - nest.kernel.scratch.len() + 1;
    accumulators.fold(
        row_bytes.saturating_add(kept as i64 * SHARED_ALIGNMENT),
        i64::saturating_add,
    )
}

/// Whether rows are short and many enough for a thread each.
fn short_rows(nest: &Nest) -> bool {
    let k = &nest.kernel;
    let rows: IndexExpr = IndexExpr::product(nest.parallel.iter().map(|v| &k.extents[v.0 as usize]));
    let many = rows.interval(k).hi >= MANY_ROWS;
    let cache_is_small = k
        .scratch
        .iter()
        .all(|s| s.len.as_const().is_some_and(|n| n <= SHORT_ROW));
    let body = nest
        .parallel
        .last()
        .and_then(|&v| tree::loop_body(&k.body, v))
        .unwrap_or(&k.body);
    many && cache_is_small && body.iter().all(|s| trips(k, s).is_some_and(|n| n <= SHORT_ROW))
}

/// Innermost iterations of a statement, if constant.
fn trips(kernel: &Kernel, s: &Stmt) -> Option<i64> {
    match s {
        Stmt::Loop { var, body, .. } => {
            let n = kernel.extents[var.0 as usize].as_const()?;
            let inside = body.iter().try_fold(1i64, |m, s| Some(m.max(trips(kernel, s)?)))?;
            n.checked_mul(inside)
        }
        s => s.body().iter().try_fold(1i64, |m, s| Some(m.max(trips(kernel, s)?))),
    }
}

/// The values of plain statements in a loop that may differ from iteration to iteration. What is loaded from scratch may be of an iteration.
fn differing(body: &[Stmt], var: VarId) -> Vec<ValueId> {
    let mut found: Vec<ValueId> = Vec::new();
    for s in body {
        let from_scratch = s.accesses().any(|a| matches!(a.memory, Memory::Scratch(_)));
        if from_scratch || s.indices().any(|e| e.uses(var)) || s.operands().any(|v| found.contains(&v)) {
            found.extend(s.defined_value());
        }
    }
    found
}

pub(super) struct Gpu {
    pub(super) kernel: Kernel,
    pub(super) schedule: Schedule,
    /// Why the directives that come next are applied.
    pub(super) why: ScheduleReason,
}

/// The loops of a nest of a row whose innermost is split.
pub(super) struct RowPiece {
    pub(super) around: VarId,
    pub(super) piece: VarId,
    pub(super) lane: VarId,
}

impl Gpu {
    pub(super) fn apply(&mut self, directive: Directive) -> Result<Vec<VarId>, DirectiveRefusal> {
        let made = apply(&mut self.kernel, &directive)?;
        self.schedule.note(directive, self.why);
        Ok(made)
    }

    pub(super) fn bind(&mut self, var: VarId, bind: Bind) -> Result<(), DirectiveRefusal> {
        self.apply(Directive::Bind { var, bind }).map(drop)
    }

    /// One loop of the perfectly nested ones: the whole body in a loop of one iteration if there are none.
    pub(super) fn one_loop(&mut self, loops: &[VarId]) -> Result<VarId, DirectiveRefusal> {
        let Some((&last, outer)) = loops.split_last() else {
            return Ok(self.apply(Directive::Enclose {})?[0]);
        };
        let mut inner = last;
        for &outer in outer.iter().rev() {
            let made = self
                .apply(Directive::Fuse { outer, inner })
                .or_else(|_| self.apply(Directive::FuseGuarded { outer, inner }))?;
            inner = made[0];
        }
        Ok(inner)
    }

    /// As [`Gpu::one_loop`]; loops that are one walk through all that they touch are joined first, so that nothing divides by their extents.
    fn one_walk(&mut self, loops: &[VarId]) -> Result<VarId, DirectiveRefusal> {
        let walks = fuse_clean(&mut self.kernel, &mut self.schedule, loops);
        self.one_loop(&walks)
    }

    /// A thread per iteration of the parallel loops; returns the loops over blocks and threads.
    pub(super) fn items(&mut self, parallel: &[VarId], threads: i64) -> Result<[VarId; 2], DirectiveRefusal> {
        let all = self.one_walk(parallel)?;
        let made = self.apply(Directive::Block {
            var: all,
            factor: threads,
        })?;
        self.bind(made[0], Bind::Block)?;
        self.bind(made[1], Bind::Thread)?;
        Ok([made[0], made[1]])
    }

    /// A thread per so many neighbouring iterations of the parallel loops, all of which move together wherever they lie together.
    fn pieces(&mut self, parallel: &[VarId], lanes: i64) -> Result<(), DirectiveRefusal> {
        let all = self.one_walk(parallel)?;
        let extent = &self.kernel.extents[all.0 as usize];
        if extent.interval(&self.kernel).hi < LARGE {
            return Err(DirectiveRefusal::Neighbours(lanes));
        }
        let whole = IndexExpr::modulo(extent, &IndexExpr::Const(lanes)).is(0);
        let split = |g: &mut Gpu, var| {
            g.why = ScheduleReason::Vectors { lanes };
            let made = g.apply(Directive::Split { var, factor: lanes })?;
            match made[..] {
                [piece, lane, ..] if g.moves_together(lane, lanes) => {
                    g.bind(lane, Bind::Lanes)?;
                    g.why = ScheduleReason::BlocksAndThreads;
                    Ok((piece, made.get(2).copied()))
                }
                _ => Err(DirectiveRefusal::Neighbours(lanes)),
            }
        };
        // What is left over would be outside of the blocks, so that it is only cut off where there is some.
        let (block, thread, rest) = if whole {
            let var = split(self, all)?.0;
            let made = self.apply(Directive::Block { var, factor: THREADS })?;
            (made[0], made[1], None)
        } else {
            let factor = THREADS * lanes;
            let made = self.apply(Directive::Block { var: all, factor })?;
            let (piece, rest) = split(self, made[1])?;
            (made[0], piece, rest)
        };
        self.bind(block, Bind::Block)?;
        self.bind(thread, Bind::Thread)?;
        self.why = ScheduleReason::Rest;
        rest.map_or(Ok(()), |var| self.bind(var, Bind::Thread))
    }

    /// Whether there are accumulations in a loop.
    pub(super) fn accumulates(&self, var: VarId) -> bool {
        let body = tree::loop_body(&self.kernel.body, var).map_or(&[][..], |b| &b[..]);
        body.iter().any(|s| matches!(s, Stmt::Accumulate { .. }))
    }

    /// The outermost loop around a loop that lies inside the thread loop around it.
    pub(super) fn outermost_of_thread(&self, var: VarId) -> VarId {
        let threads = self.kernel.statements().filter_map(|s| match s {
            Stmt::Loop {
                bind: Bind::Thread,
                body,
                ..
            } => Some(body),
            _ => None,
        });
        let around = |s: &Stmt| match s {
            Stmt::Loop { var: v, body, .. } if *v == var || tree::loop_body(body, var).is_some() => Some(*v),
            _ => None,
        };
        threads.flatten().find_map(around).unwrap_or(var)
    }

    /// Whether the iterations of a loop touch the same element of a memory, or aligned ones side by side, always.
    pub(super) fn moves_together(&self, lane: VarId, lanes: i64) -> bool {
        self.move_together(lane, lanes, |_| true)
    }

    /// As [`Gpu::moves_together`], of some of the accesses.
    pub(super) fn move_together(&self, lane: VarId, lanes: i64, of: impl Fn(&MemoryAccess<'_>) -> bool) -> bool {
        let body = tree::loop_body(&self.kernel.body, lane).map_or(&[][..], |b| &b[..]);
        let apart = differing(body, lane);
        let plain = |s: &Stmt| match s {
            Stmt::Let { .. } | Stmt::Store { .. } | Stmt::Accumulate { .. } => true,
            Stmt::Clamp { value, .. } => !apart.contains(value),
            _ => false,
        };
        let first = |index: &IndexExpr| index.replace_vars(&mut |v| (v == lane).then_some(IndexExpr::ZERO));
        let accesses = body.iter().flat_map(|s| s.accesses());
        body.iter().all(plain)
            && legal_block(&self.kernel, body).saturating_mul(lanes as u64) <= PIECE_STATEMENTS
            && accesses.into_iter().filter(of).all(|a| {
                let aligned = || IndexExpr::modulo(&first(a.index), &IndexExpr::Const(lanes)).is(0);
                let side_by_side = || a.index.affine_in(lane).is_some_and(|(c, _)| c.is(1));
                let all_or_none = || a.mask.is_none_or(|mask| !apart.contains(&mask));
                !a.index.uses(lane) || all_or_none() && side_by_side() && aligned()
            })
    }

    /// Statements directly inside the block loop.
    pub(super) fn loops_inside(&self, block: VarId) -> Vec<VarId> {
        let body = tree::loop_body(&self.kernel.body, block).map_or(&[][..], |b| &b[..]);
        body.iter()
            .filter_map(|s| match s {
                Stmt::Loop { var, .. } => Some(*var),
                _ => None,
            })
            .collect()
    }

    /// The loops from one on that are perfectly nested.
    pub(super) fn chain(&self, first: VarId) -> Vec<VarId> {
        let mut out = vec![first];
        let mut at = first;
        while let Some([Stmt::Loop { var, .. }]) = tree::loop_body(&self.kernel.body, at).map(|b| &b[..]) {
            out.push(*var);
            at = *var;
        }
        out
    }

    /// Moves cache scratch into shared memory.
    pub(super) fn share_cache(&mut self) -> Result<(), DirectiveRefusal> {
        self.why = ScheduleReason::SharedMemory;
        for i in 0..self.kernel.scratch.len() {
            if self.kernel.scratch[i].scope == Scope::Cache {
                self.apply(Directive::Place {
                    scratch: i as u32,
                    scope: Scope::Shared,
                })?;
            }
        }
        Ok(())
    }

    /// Turns that a thread of a block with a row takes at least. Positions of extrema are dear to combine, so of many rows fewer threads
    /// have more elements each.
    fn turns(&self, row: VarId) -> i64 {
        let rows = self.kernel.extents[row.0 as usize].interval(&self.kernel).lo;
        let arg = |s: &Stmt| matches!(s, Stmt::Accumulate { monoid, .. } if monoid.is_arg());
        match rows >= MANY_BLOCKS && self.kernel.statements().any(arg) {
            true => ARG_TURNS,
            false => 1,
        }
    }

    /// The nests of loops of a row, each its outermost and its innermost loop.
    pub(super) fn row_nests(&mut self, row: VarId) -> Vec<(VarId, VarId)> {
        let mut nests = Vec::new();
        for first in self.loops_inside(row) {
            let mut chain = self.chain(first);
            // Fuse from the inside while it is free of doubt; divisions are cheap next to memory.
            while let [.., outer, inner] = chain[..] {
                match self.apply(Directive::Fuse { outer, inner }) {
                    Ok(made) => drop(chain.splice(chain.len() - 2.., made)),
                    Err(_) => break,
                }
            }
            nests.push((chain[0], chain[chain.len() - 1]));
        }
        nests
    }

    /// Splits the innermost loops of the nests of a row, so that a thread takes so many neighbours at once. Refused where
    /// that many threads would not all have some.
    pub(super) fn row_pieces(
        &mut self,
        nests: &[(VarId, VarId)],
        (lanes, threads): (i64, i64),
    ) -> Result<Vec<RowPiece>, DirectiveRefusal> {
        let mut made = Vec::new();
        for &(around, var) in nests {
            if self.kernel.extents[var.0 as usize].interval(&self.kernel).hi < lanes * threads {
                return Err(DirectiveRefusal::Neighbours(lanes));
            }
            self.why = ScheduleReason::Vectors { lanes };
            let split = Directive::Split { var, factor: lanes };
            let [piece, lane] = self.apply(split)?[..] else {
                return Err(DirectiveRefusal::Neighbours(lanes));
            };
            if !self.moves_together(lane, lanes) {
                return Err(DirectiveRefusal::Neighbours(lanes));
            }
            let around = if around == var { piece } else { around };
            made.push(RowPiece { around, piece, lane });
        }
        Ok(made)
    }

    /// A block per row, with so many threads at most, each of which takes so many neighbouring elements at a time.
    fn rows(&mut self, parallel: &[VarId], lanes: i64, most_threads: i64) -> Result<(), DirectiveRefusal> {
        let row = self.one_loop(parallel)?;
        self.bind(row, Bind::Block)?;
        let mut nests = self.row_nests(row);
        let mut pieces = Vec::new();
        if lanes > 1 {
            // What pieces of a long row have come to is little, and an element at a time is soon enough.
            let extent = |var: VarId| self.kernel.extents[var.0 as usize].interval(&self.kernel).hi;
            let longest = nests.iter().map(|n| extent(n.1)).max().unwrap_or(0);
            let little = |n: &(VarId, VarId)| extent(n.1) < lanes * WARP_THREADS && extent(n.1) < longest / LITTLE;
            let (few, long): (Vec<_>, Vec<_>) = nests.into_iter().partition(little);
            let made = self.row_pieces(&long, (lanes, WARP_THREADS))?;
            nests = made.iter().map(|p| (p.around, p.piece)).chain(few).collect();
            pieces = made.into_iter().map(|p| p.lane).collect();
        }
        let longest = nests
            .iter()
            .map(|n| self.kernel.extents[n.1.0 as usize].interval(&self.kernel).hi)
            .max()
            .unwrap_or(1);
        let turns = self.turns(row);
        // Of a length that is not known the end is as far away as numbers go.
        let share = (longest.clamp(1, most_threads * turns) + turns - 1) / turns;
        let threads = (share as u64).next_power_of_two().max(32) as i64;
        self.why = ScheduleReason::BlocksAndThreads;
        for (around, var) in nests {
            self.apply(Directive::Distribute { around, var, threads })?;
        }
        for lane in pieces {
            self.why = ScheduleReason::Vectors { lanes };
            self.bind(lane, Bind::Lanes)?;
            if self.accumulates(lane) {
                self.why = ScheduleReason::Accumulators;
                let around = self.outermost_of_thread(lane);
                self.apply(Directive::RFactor { var: lane, around })?;
            }
        }
        self.hold_what_fits(threads);
        self.share_cache()?;
        self.why = ScheduleReason::Order;
        self.apply(Directive::OneThread { block: row })?;
        self.apply(Directive::Synchronize { block: row }).map(drop)
    }
}
