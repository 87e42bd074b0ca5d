//! Matrix products on the pool.
//!
//! A product, or a stack of them, is cut into pieces: ranges of rows and columns of one entry of the stack. The summed axis
//! is never cut between pieces. On x86-64 a piece is computed by the micro-kernels of the crate `gemm` under our own loops
//! (`tiles`), which pack operands into scratch memory that the caller brings, so that a call allocates nothing; if the product is of some thousand
//! multiply-adds, by tiles in registers that need no panels (`small`), of which a piece is some entries of the stack; where both operands lie
//! along the sum, by lines that are turned in registers (`lines`) if one is a few vectors, and as dot products (`dots`) if one is a single
//! vector or both are few and long. Elsewhere the crate's own driver computes them, one thread of it per piece.
//!
//! Invariants:
//! - Every element of the result is summed in an order that depends on the dtype and the summed extent alone, and on whether the whole product is one of
//!   `dots` (an operand is one vector, or both lie along a long sum and are fewer than 16): blocks of the sum in turn, one chain of multiply-adds in each (of bf16, one chain of pairs). So results do
//!   not depend on how many rows and columns there are besides, on the cut, nor on the number of threads.
//! - A [`Cut`] and the run that follows it agree on the scratch bytes.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use tlc_ir::DType;

pub use crate::binding::product::{Operand, PackedLayout, StridedDim, WindowedAxis};
use crate::pool::{Pool, PoolPanic};

pub mod chain;
#[cfg(target_arch = "x86_64")]
mod dots;
#[cfg(target_arch = "x86_64")]
mod lines;
#[cfg(not(target_arch = "x86_64"))]
mod portable;
#[cfg(target_arch = "x86_64")]
mod small;
#[cfg(target_arch = "x86_64")]
mod tiles;
#[cfg(target_arch = "x86_64")]
mod unroll;

#[cfg(not(target_arch = "x86_64"))]
use portable as driver;
#[cfg(target_arch = "x86_64")]
use tiles as driver;

/// Below so many multiply-adds a product (with its whole stack) stays on the calling thread.
const MIN_PARALLEL_WORK: usize = 1 << 18;
/// Pieces of fewer multiply-adds than this are handed out together.
const MIN_PIECE_WORK: usize = 1 << 16;
/// Pieces that a thread should get at most.
const PIECES_PER_THREAD: usize = 8;
/// What a piece costs besides its arithmetic, in multiply-adds: taking it, and calls that do not fill a tile.
const PIECE_OVERHEAD: usize = 4 << 10;
/// What packing one element costs, in multiply-adds.
const PACK_COST: usize = 4;
/// What reading one element of an operand costs, in multiply-adds, if an operand is larger than [`FAR_BYTES`]. A piece reads its rows and its columns whole: 16
/// rows cut in two read all weights twice, which took as long on two threads as on one where a core reads 12 GB/s beyond its second cache (768 by
/// 2048, Emerald Rapids).
const READ_COST: usize = 4;
/// Bytes of an operand that comes from beyond second caches.
const FAR_BYTES: usize = 2 << 20;

/// Elements of a panel block: an operand whose elements across lie together in blocks of so many, a block for each step along
/// the sum and the steps one after the other, is multiplied where it lies. A multiple of what any micro-kernel takes; 0 where
/// the driver copies every operand.
pub const PANEL_ELEMENTS: u32 = if cfg!(target_arch = "x86_64") { 64 } else { 0 };

/// How the rows and columns of a matrix follow each other where several axes of a tensor are taken as one: the windows of a
/// convolution. Each has at least one dimension and at most [`MAX_DIMS`].
#[derive(Clone, Copy, Debug)]
pub struct Composite<'a> {
    /// Rows.
    pub rows: &'a [StridedDim],
    /// Columns.
    pub columns: &'a [StridedDim],
    /// The number of the first row among those that the dimensions count.
    pub first_row: usize,
    /// The number of the first column.
    pub first_column: usize,
    /// The axes that windows slide over, where these end: what a window has beyond is left out of sums.
    pub windowed: &'a [WindowedAxis],
}

/// The most dimensions of an axis.
pub const MAX_DIMS: usize = tlc_ir::plan::Strides::MAX_DIMS;

/// A stack of strided matrices. Strides in elements.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    /// The first element of the first matrix.
    pub start: *mut u8,
    /// Stride of each batch axis.
    pub batch: &'a [isize],
    /// Stride between rows.
    pub row: isize,
    /// Stride between columns.
    pub column: isize,
    /// In place of the two strides, where one does not do.
    pub composite: Option<Composite<'a>>,
}

impl Product<'_> {
    /// Lines of one entry.
    fn lines(&self, side: Side) -> usize {
        match side {
            Side::Rows => self.m,
            Side::Columns => self.n,
        }
    }
}

impl Matrix<'_> {
    /// A part of one matrix of the stack, whose first element is at `start` (that of the matrix itself, where it is composite).
    fn from(self, start: *mut u8, first_row: usize, first_column: usize) -> Self {
        Matrix {
            start,
            batch: &[],
            composite: self.composite.map(|w| Composite {
                first_row,
                first_column,
                ..w
            }),
            ..self
        }
    }
}

/// `dst[b, i, j] = Σ_k lhs[b, i, k] * rhs[b, k, j]`. At most one operand is composite, and never the result.
#[derive(Clone, Copy, Debug)]
pub struct Product<'a> {
    /// f32 or f64; i32, which are words of four bytes, and bf16 where the processor has instructions for them.
    pub dtype: DType,
    /// Extents of the batch axes, possibly none.
    pub batch: &'a [usize],
    /// Rows of the result.
    pub m: usize,
    /// Columns of the result.
    pub n: usize,
    /// Summed extent.
    pub k: usize,
    /// Left operand.
    pub lhs: Matrix<'a>,
    /// Right operand.
    pub rhs: Matrix<'a>,
    /// Result.
    pub dst: Matrix<'a>,
}

/// Which axis of a result is that of its lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// A line is a row.
    Rows,
    /// A line is a column.
    Columns,
}

/// Called as `(worker, entry, lines, next)` when these lines of an entry of the stack are complete. Lines of one piece are reported by
/// one worker, each time from the piece's first on, and `next` is what it left there before, at first 0.
pub type LinesDone<'a> = dyn Fn(usize, usize, Range<usize>, &mut u64) + Sync + 'a;

/// What is done with the lines of a result as soon as they are complete.
pub struct Follow<'a> {
    /// What a line is.
    pub side: Side,
    /// What is called.
    pub run: &'a LinesDone<'a>,
    /// For each entry and piece along the lines how many pieces across are done; zero before. [`Cut::counters`] of them.
    pub done: &'a [AtomicU32],
}

/// What a driver calls with the number of complete lines of a piece, and what the lines are.
type Progress<'a> = Option<(Side, &'a mut dyn FnMut(usize))>;

/// How a product is shared out between threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cut {
    /// Pieces along the rows of one entry.
    rows: usize,
    /// Pieces along its columns.
    columns: usize,
    /// Pieces that are handed out together; 0 where the calling thread computes all.
    grain: usize,
    /// How the product is computed.
    method: Method,
    /// Bytes of scratch memory that each worker needs, aligned to 64.
    pub scratch_bytes: usize,
}

impl Cut {
    /// True if only the calling thread works.
    pub fn is_serial(&self) -> bool {
        self.grain == 0
    }

    /// Pieces along the lines of one entry, and across them.
    fn pieces(&self, side: Side) -> (usize, usize) {
        match side {
            Side::Rows => (self.rows, self.columns),
            Side::Columns => (self.columns, self.rows),
        }
    }

    /// Counters that a [`Follow`] needs for so many entries.
    pub fn counters(&self, side: Side, entries: usize) -> usize {
        match self.pieces(side) {
            (_, 1) => 0,
            (along, _) => entries.saturating_mul(along),
        }
    }

    /// Calls `f` with the line where each piece of one entry begins, but for the first.
    pub fn edges(&self, p: &Product<'_>, side: Side, f: &mut dyn FnMut(usize)) {
        let unit = unit(p);
        let (extent, unit, units) = match side {
            Side::Rows => (p.m, unit.rows, unit.count(p.m, unit.rows)),
            Side::Columns => (p.n, unit.columns, unit.count(p.n, unit.columns)),
        };
        let (along, _) = self.pieces(side);
        (1..along).for_each(|k| f(edge(k, along, units, unit, extent)));
    }
}

/// The sides of the smallest part of a result that is worth computing alone. Cuts are at multiples of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Unit {
    rows: usize,
    columns: usize,
    /// False if what is left over beyond whole units must stay with the last of them.
    partial: bool,
}

impl Unit {
    /// Units along an extent.
    fn count(self, extent: usize, unit: usize) -> usize {
        match self.partial {
            true => extent.div_ceil(unit).max(1),
            false => (extent / unit).max(1),
        }
    }
}

/// Where piece `number` of `pieces` along an extent begins.
fn edge(number: usize, pieces: usize, units: usize, unit: usize, extent: usize) -> usize {
    if number == pieces {
        extent
    } else {
        (number * units / pieces * unit).min(extent)
    }
}

/// How a product is computed. Sums have the same bits whichever it is, but for those of [`Method::Dots`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Method {
    /// Each result by itself, in lanes along the sum.
    #[cfg(target_arch = "x86_64")]
    Dots(dots::Shape),
    /// By lines of a matrix that are turned in registers.
    #[cfg(target_arch = "x86_64")]
    Lines(dots::Shape),
    /// In registers alone.
    #[cfg(target_arch = "x86_64")]
    Small(small::Small),
    /// By micro-kernels and panels.
    #[default]
    Tiles,
}

/// How a product is computed.
fn method(p: &Product<'_>) -> Method {
    #[cfg(target_arch = "x86_64")]
    {
        let shape = dots::shape(p);
        match (shape, small::small(p)) {
            (Some(shape), _) if shape.is_dots(p) => return Method::Dots(shape),
            (_, Some(how)) => return Method::Small(how),
            (Some(shape), None) => return Method::Lines(shape),
            (None, None) => {}
        }
    }
    let _ = p;
    Method::Tiles
}

/// Whether a product is computed by micro-kernels, which copy panels.
fn by_tiles(p: &Product<'_>) -> bool {
    matches!(method(p), Method::Tiles)
}

/// Scratch that a part of a product needs, and any part of that.
fn scratch_bytes(p: &Product<'_>, part: &Product<'_>) -> usize {
    match method(p) {
        #[cfg(target_arch = "x86_64")]
        Method::Dots(_) => 0,
        #[cfg(target_arch = "x86_64")]
        Method::Lines(shape) => lines::scratch_bytes(part, shape),
        #[cfg(target_arch = "x86_64")]
        Method::Small(how) => small::scratch_bytes(part, how),
        Method::Tiles => driver::scratch_bytes(part),
    }
}

/// The unit of cuts.
fn unit(p: &Product<'_>) -> Unit {
    match method(p) {
        #[cfg(target_arch = "x86_64")]
        Method::Dots(shape) => dots::unit(p, shape),
        #[cfg(target_arch = "x86_64")]
        Method::Lines(shape) => lines::unit(p, shape),
        #[cfg(target_arch = "x86_64")]
        Method::Small(_) => Unit {
            rows: p.m.max(1),
            columns: p.n.max(1),
            partial: true,
        },
        Method::Tiles => driver::unit(p),
    }
}

/// Chooses the cut for a product. Looks at extents and strides only, not at the matrices.
pub fn cut(p: &Product<'_>, threads: usize) -> Cut {
    cheapest(p, threads, None).0
}

/// As [`cut`], with what the busiest thread does then, in multiply-adds: if `whole` is given, among the cuts of no line of that side.
pub(super) fn cheapest(p: &Product<'_>, threads: usize, whole: Option<Side>) -> (Cut, usize) {
    let (most_rows, most_columns) = match whole {
        None => (usize::MAX, usize::MAX),
        Some(Side::Rows) => (usize::MAX, 1),
        Some(Side::Columns) => (1, usize::MAX),
    };
    let unit = unit(p);
    let method = method(p);
    let scratch_bytes = scratch_bytes(p, p);
    let entries = p.batch.iter().fold(1usize, |n, &d| n.saturating_mul(d));
    let work = p.m.saturating_mul(p.n).saturating_mul(p.k);
    let alone = Cut {
        rows: 1,
        columns: 1,
        grain: 0,
        method,
        scratch_bytes,
    };
    if threads <= 1 || work.saturating_mul(entries) < MIN_PARALLEL_WORK {
        return (alone, work.saturating_mul(entries));
    }
    let (row_units, column_units) = (unit.count(p.m, unit.rows), unit.count(p.n, unit.columns));
    let most = PIECES_PER_THREAD * threads;
    let far = p.m.max(p.n).saturating_mul(p.k).saturating_mul(p.dtype.bytes()) > FAR_BYTES;
    let mut best: Option<(usize, Cut)> = None;
    for columns in 1..=column_units.min(most).min(most_columns) {
        for rows in 1..=row_units.min(most / columns).min(most_rows) {
            let pieces = entries.saturating_mul(rows * columns);
            let tall = (row_units.div_ceil(rows) * unit.rows).min(p.m);
            let wide = (column_units.div_ceil(columns) * unit.columns).min(p.n);
            let packing = match method {
                Method::Tiles => driver::packed_elements(p, tall, wide).saturating_mul(PACK_COST),
                _ => 0,
            };
            let reading = match far {
                true => tall.saturating_add(wide).saturating_mul(p.k).saturating_mul(READ_COST),
                false => 0,
            };
            let piece = tall.saturating_mul(wide).saturating_mul(p.k).saturating_add(packing);
            let piece = piece.saturating_add(reading).saturating_add(PIECE_OVERHEAD);
            let grain = (MIN_PIECE_WORK / piece).max(1).min((pieces / (2 * threads)).max(1));
            let rounds = pieces.div_ceil(grain).div_ceil(threads) * grain;
            let mut cost = rounds.saturating_mul(piece);
            if pieces <= threads * grain {
                // Nothing is left to even out with when a thread comes late.
                cost += cost / 16;
            }
            let made = Cut {
                rows,
                columns,
                grain,
                method,
                scratch_bytes,
            };
            if best.is_none_or(|(least, _)| cost < least) {
                best = Some((cost, made));
            }
        }
    }
    let (cost, cut) = best.unwrap_or((work.saturating_mul(entries), alone));
    (cut, cost)
}

/// Whether the operand whose elements lie along a result's lines is laid out so that nothing is copied: what never changes is, and is in every
/// thread's cache.
pub(super) fn reads_panels(p: &Product<'_>) -> bool {
    by_tiles(p) && driver::packed_elements(p, 1, 1) == 0
}

/// The operand that every call copies panel by panel, if it copies one: given in panels ([`pack`]), it is read where it lies.
pub fn copied(p: &Product<'_>, cut: &Cut) -> Option<Operand> {
    let unit = unit(p);
    let piece = |extent: usize, unit_extent: usize, pieces: usize| {
        let units = unit.count(extent, unit_extent).div_ceil(pieces.max(1));
        units.saturating_mul(unit_extent).min(extent)
    };
    let (tall, wide) = (piece(p.m, unit.rows, cut.rows), piece(p.n, unit.columns, cut.columns));
    if !by_tiles(p) {
        return None;
    }
    driver::copied(p, tall, wide)
}

/// Elements across a panel of an operand that [`pack`] copied.
pub fn panel_width(dtype: DType) -> usize {
    driver::panel_width(dtype)
}

/// Copies panels of an operand, by their numbers in the whole stack, each to its place in the copy, which begins at `to`.
///
/// # Safety
/// The matrices must lie in memory at `from` that is valid for reads and not written meanwhile, and `to` be valid for writes of
/// [`PackedLayout::bytes`], aligned to the element; nobody else may touch these panels of it.
pub unsafe fn pack(layout: &PackedLayout, panels: Range<usize>, from: *const u8, to: *mut u8) {
    let size = layout.dtype.bytes();
    let of_a_matrix = layout.panels();
    for panel in panels {
        let (mut matrix, number) = (panel / of_a_matrix, panel % of_a_matrix);
        let mut offset = layout.offset;
        for &(extent, stride) in layout.batch.iter().rev() {
            offset += (matrix % extent) as isize * stride;
            matrix /= extent;
        }
        let first = number * layout.width;
        let across = layout.width.min(layout.elements_across() - first);
        let from = from.wrapping_offset(offset * size as isize);
        let to = to.wrapping_add(panel * layout.panel_elements() * size);
        // SAFETY: the caller's promise; the panel is one of the copy's.
        unsafe { driver::pack(layout, (first, across), from, to) };
    }
}

struct Shared<'a>(&'a Product<'a>, *mut u8);
// SAFETY: pieces write disjoint parts of the result and only read the operands; each worker has scratch of its own.
unsafe impl Sync for Shared<'_> {}

/// Computes a product on the pool, cut as [`cut`] said for it, and calls `follow` for its lines. `scratch` has `stride` bytes for
/// each worker.
///
/// # Errors
/// [`PoolPanic`] if a worker panicked.
///
/// # Safety
/// The matrices must lie in memory that is valid for reads (operands) and writes (result), the result must overlap neither
/// operand, and no two elements of the result may share an address. `scratch` must be valid for `stride` bytes times the
/// pool's threads, aligned to 64 and used by nobody else, and `stride` at least the cut's [`Cut::scratch_bytes`].
pub unsafe fn multiply(
    p: &Product<'_>,
    cut: &Cut,
    pool: &Pool,
    scratch: *mut u8,
    stride: usize,
    follow: Option<&Follow<'_>>,
) -> Result<(), PoolPanic> {
    let entries: usize = p.batch.iter().product();
    let pieces = entries * cut.rows * cut.columns;
    if p.m == 0 || p.n == 0 {
        return Ok(());
    }
    let shared = Shared(p, scratch);
    let run = |worker: usize, begin: u64, end: u64| {
        let shared = &shared;
        #[cfg(target_arch = "x86_64")]
        if let Method::Small(how) = cut.method {
            let entries = begin as usize..end as usize;
            // SAFETY: pieces are whole entries of the caller's stack, and the worker's scratch is its own.
            unsafe { small::run(shared.0, how, entries.clone(), shared.1.add(worker * stride)) };
            if let Some(f) = follow {
                entries.for_each(|entry| (f.run)(worker, entry, 0..shared.0.lines(f.side), &mut 0));
            }
            return;
        }
        for number in begin as usize..end as usize {
            // SAFETY: pieces are disjoint parts of the caller's product, and the worker's scratch is its own.
            unsafe { piece(shared.0, cut, number, (worker, shared.1.add(worker * stride)), follow) };
        }
    };
    if cut.grain == 0 {
        run(0, 0, pieces as u64);
        return Ok(());
    }
    pool.parallel_for(pieces as u64, cut.grain as u64, &run)
}

/// Computes one piece, with the number and scratch of a worker.
///
/// # Safety
/// As for [`multiply`], with the scratch of one worker.
unsafe fn piece(
    p: &Product<'_>,
    cut: &Cut,
    number: usize,
    (worker, scratch): (usize, *mut u8),
    follow: Option<&Follow<'_>>,
) {
    let (number, column) = (number / cut.columns, number % cut.columns);
    let (entry, row) = (number / cut.rows, number % cut.rows);
    let (mut rows, mut columns) = ((0, p.m), (0, p.n));
    if cut.rows > 1 || cut.columns > 1 {
        let unit = unit(p);
        let units = unit.count(p.m, unit.rows);
        rows = (
            edge(row, cut.rows, units, unit.rows, p.m),
            edge(row + 1, cut.rows, units, unit.rows, p.m),
        );
        let units = unit.count(p.n, unit.columns);
        columns = (
            edge(column, cut.columns, units, unit.columns, p.n),
            edge(column + 1, cut.columns, units, unit.columns, p.n),
        );
    }
    let at = |m: &Matrix<'_>, row: usize, column: usize| {
        let (mut rest, mut sum) = (entry, 0);
        if m.composite.is_none() {
            sum = row as isize * m.row + column as isize * m.column;
        }
        for (&extent, &stride) in p.batch.iter().zip(m.batch).rev() {
            sum += (rest % extent) as isize * stride;
            rest /= extent;
        }
        m.start.wrapping_offset(sum * p.dtype.bytes() as isize)
    };
    let part = Product {
        batch: &[],
        m: rows.1 - rows.0,
        n: columns.1 - columns.0,
        lhs: p.lhs.from(at(&p.lhs, rows.0, 0), rows.0, 0),
        rhs: p.rhs.from(at(&p.rhs, 0, columns.0), 0, columns.0),
        dst: p.dst.from(at(&p.dst, rows.0, columns.0), rows.0, columns.0),
        ..*p
    };
    // What is reported of the lines: as the piece gets on with them, or once the last piece across is done.
    let reported = follow.map(|f| {
        let (lines, along) = match f.side {
            Side::Rows => (rows.0..rows.1, row),
            Side::Columns => (columns.0..columns.1, column),
        };
        let (pieces, across) = cut.pieces(f.side);
        (f, lines, entry * pieces + along, across)
    });
    let mut next = 0;
    let mut on = reported
        .as_ref()
        .filter(|t| t.3 == 1)
        .map(|(f, lines, ..)| |count: usize| (f.run)(worker, entry, lines.start..lines.start + count, &mut next));
    let progress: Progress<'_> = match (&reported, &mut on) {
        (Some((f, ..)), Some(on)) => Some((f.side, on)),
        _ => None,
    };
    // SAFETY: a part of what the caller vouches for.
    unsafe { compute(cut.method, &part, scratch, progress) };
    if let Some((f, lines, counter, across)) = reported
        && across > 1
    {
        // What the others wrote is seen by who comes last.
        let before = f.done[counter].fetch_add(1, Ordering::AcqRel);
        if before as usize + 1 == across {
            (f.run)(worker, entry, lines, &mut 0);
        }
    }
}

/// Computes a part of a product by the method of the whole: a piece of one row must be summed as its neighbours are.
///
/// # Safety
/// As for [`multiply`], with the scratch of one worker.
unsafe fn compute(method: Method, part: &Product<'_>, scratch: *mut u8, progress: Progress<'_>) {
    // SAFETY: a part of what the caller vouches for.
    unsafe {
        match method {
            #[cfg(target_arch = "x86_64")]
            Method::Dots(shape) => dots::run(part, shape),
            #[cfg(target_arch = "x86_64")]
            Method::Lines(shape) => lines::run(part, shape, scratch),
            #[cfg(target_arch = "x86_64")]
            Method::Small(how) => small::run(part, how, 0..1, scratch),
            Method::Tiles => return driver::run(part, scratch, progress),
        }
    }
    if let Some((side, f)) = progress {
        f(part.lines(side));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Threads share the weights of few rows, and not the rows: each would read all weights.
    #[test]
    fn few_rows_are_cut_along_their_weights() {
        let matrix = |row: isize, column: isize| Matrix {
            start: std::ptr::null_mut(),
            batch: &[],
            row,
            column,
            composite: None,
        };
        for (m, k, n) in [(16, 768, 2048), (4, 768, 2048), (16, 2048, 768), (32, 512, 4096)] {
            for threads in [2, 4] {
                let product = Product {
                    dtype: DType::F32,
                    m,
                    n,
                    k,
                    lhs: matrix(k as isize, 1),
                    rhs: matrix(n as isize, 1),
                    dst: matrix(n as isize, 1),
                    batch: &[],
                };
                let cut = cut(&product, threads);
                assert_eq!(cut.rows, 1, "{m} x {k} x {n}, {threads} threads");
                assert!(
                    cut.columns >= threads,
                    "{m} x {k} x {n}, {threads} threads: {}",
                    cut.columns
                );
            }
        }
    }
}
