//! Two products with a kernel between them, some rows at a time: the rows of the first result are the left operand of the second.
//!
//! A worker computes a block of rows of the first product into scratch memory, has the kernel run on them there, and multiplies them on,
//! while they are in its second-level cache. The value between is in no memory as a whole. Blocks are of whole rows, so the kernel
//! needs no state from block to block.
//!
//! Invariants:
//! - Every element of either result is summed as it would be if its product were a step of its own, so results do not depend on blocks,
//!   nor on the number of threads.
//! - A [`Chain`] and the run that follows it agree on the scratch bytes.

use std::ops::Range;

use super::{
    Composite, Matrix, Operand, PackedLayout, Product, StridedDim, by_tiles, compute, copied, cut, method, pack,
    scratch_bytes, unit,
};
use crate::pool::{Pool, PoolPanic};

/// Blocks that each thread should get at least, so that none waits long for the last.
const BLOCKS_PER_THREAD: usize = 4;
/// Rows of a block that are worth reading the right operands for, however long they are.
const LEAST_ROWS: usize = 24;
/// Below so many multiply-adds of both products the calling thread computes all.
const MIN_PARALLEL_WORK: usize = super::MIN_PARALLEL_WORK;
/// Alignment of the parts of a worker's scratch memory, in bytes.
const ALIGNMENT: usize = 64;

/// How a chain is shared out between threads.
pub struct Chain {
    /// Rows of a block.
    rows: usize,
    /// Blocks of one entry of the stack.
    blocks: usize,
    /// Blocks that are handed out together: they share copies of the right operands.
    together: usize,
    /// Whether the calling thread computes all.
    alone: bool,
    /// Bytes of a row of the first result.
    row_bytes: usize,
    /// The copies that are made of the right operands of an entry, where blocks that are handed out together share them.
    copies: [Option<Panels>; 2],
    /// Where in a worker's scratch memory the rows begin, behind what a product needs.
    lines_at: usize,
    /// Bytes of scratch memory that each worker needs, aligned to 64; that of the kernel follows.
    pub scratch_bytes: usize,
}

/// A right operand of one entry, copied in panels that are multiplied where they lie.
struct Panels {
    layout: PackedLayout,
    /// Where it begins in a worker's scratch memory.
    at: usize,
    /// How the copy's rows follow each other.
    rows: [StridedDim; 1],
    /// How its columns do.
    columns: [StridedDim; 2],
}

impl Panels {
    /// The copy of a right operand, if blocks copy panels of it.
    fn of(p: &Product<'_>, rows: usize) -> Option<Panels> {
        let block = block(p, rows);
        if p.rhs.composite.is_some() || copied(&block, &cut(&block, 1)) != Some(Operand::Rhs) {
            return None;
        }
        let width = super::panel_width(p.dtype);
        let layout = PackedLayout {
            dtype: p.dtype,
            offset: 0,
            batch: Vec::new(),
            across: vec![StridedDim {
                extent: p.n,
                stride: p.rhs.column,
            }],
            depth: vec![StridedDim {
                extent: p.k,
                stride: p.rhs.row,
            }],
            width,
        };
        let panel = isize::try_from(layout.panel_elements()).ok()?;
        let (panels, extent) = (layout.panels(), p.k);
        Some(Panels {
            layout,
            at: 0,
            rows: [StridedDim {
                extent,
                stride: width as isize,
            }],
            columns: [
                StridedDim {
                    extent: panels,
                    stride: panel,
                },
                StridedDim {
                    extent: width,
                    stride: 1,
                },
            ],
        })
    }

    /// The copy as a right operand.
    fn matrix(&self, scratch: *mut u8) -> Matrix<'_> {
        Matrix {
            start: scratch.wrapping_add(self.at),
            batch: &[],
            row: self.rows[0].stride,
            column: 1,
            composite: Some(Composite {
                rows: &self.rows,
                columns: &self.columns,
                first_row: 0,
                first_column: 0,
                windowed: &[],
            }),
        }
    }
}

/// So many rows of one entry.
fn block<'p>(p: &Product<'p>, rows: usize) -> Product<'p> {
    Product {
        batch: &[],
        m: rows,
        ..*p
    }
}

fn work(p: &Product<'_>) -> usize {
    p.m.saturating_mul(p.n).saturating_mul(p.k)
}

/// Chooses how a chain is computed. Looks at extents and strides only, not at the matrices.
pub fn chain(first: &Product<'_>, second: &Product<'_>, threads: usize) -> Chain {
    let entries = first.batch.iter().fold(1usize, |n, &d| n.saturating_mul(d));
    let row_bytes = first.n.saturating_mul(first.dtype.bytes());
    let unit = unit(first).rows.max(1);
    let alone = threads <= 1 || work(first).saturating_add(work(second)).saturating_mul(entries) < MIN_PARALLEL_WORK;
    // Half of the second-level cache holds the rows; the other half is for what they are multiplied with.
    let cache = crate::machine::second_level_bytes() as usize / 2;
    let mut most = (cache / row_bytes.max(1)).max(LEAST_ROWS);
    if !alone {
        let wanted = (BLOCKS_PER_THREAD * threads).div_ceil(entries.max(1));
        most = most.min(first.m.div_ceil(wanted).max(unit));
    }
    let blocks = first.m.div_ceil(most.max(1)).max(1);
    let rows = first.m.div_ceil(blocks).next_multiple_of(unit).min(first.m).max(1);
    let blocks = first.m.div_ceil(rows);
    let handed_out = match alone {
        true => 1,
        false => (2 * BLOCKS_PER_THREAD * threads).div_ceil(entries.max(1)),
    };
    let together = blocks.div_ceil(handed_out).max(1);
    let part = [block(first, rows), block(second, rows)];
    // What the whole product is decides how its parts are computed.
    let product = [first, second]
        .into_iter()
        .zip(&part)
        .map(|(p, part)| scratch_bytes(p, part));
    let lines_at = product.max().unwrap_or(0).next_multiple_of(ALIGNMENT);
    let mut end = lines_at + rows.saturating_mul(row_bytes).next_multiple_of(ALIGNMENT);
    let mut copies = [None, None];
    if together > 1 {
        for (copy, whole) in copies.iter_mut().zip([first, second]) {
            let made = Panels::of(whole, rows).filter(|c| by_tiles(whole) && c.layout.bytes() <= cache);
            *copy = made.map(|c| Panels { at: end, ..c });
            end += copy
                .as_ref()
                .map_or(0, |c| c.layout.bytes().next_multiple_of(ALIGNMENT));
        }
    }
    Chain {
        rows,
        blocks,
        together,
        alone,
        row_bytes,
        copies,
        lines_at,
        scratch_bytes: end,
    }
}

/// Called as `(worker, rows, start)` when these rows, counted over all entries, are complete: the first of them begins at `start`.
pub type RowsDone<'a> = dyn Fn(usize, Range<usize>, *mut u8) + Sync + 'a;

struct Shared<'a>([&'a Product<'a>; 2], *mut u8);
// SAFETY: blocks write disjoint parts of the second result and only read the other operands; each worker has scratch of its own.
unsafe impl Sync for Shared<'_> {}

/// Computes a chain on the pool, as [`chain`] chose for it. `scratch` has `stride` bytes for each worker. Where the first result and
/// the second left operand begin is not looked at.
///
/// # Errors
/// [`PoolPanic`] if a worker panicked.
///
/// # Safety
/// The right operands, the first left one and the second result must be as for [`super::multiply`], the two products of the same rows,
/// entries and dtype, and the second's sum as long as the first's rows. `scratch` must be as there, with the chain's
/// [`Chain::scratch_bytes`]. `done` may write to the rows that it is given.
pub unsafe fn run(
    [first, second]: [&Product<'_>; 2],
    chain: &Chain,
    pool: &Pool,
    (scratch, stride): (*mut u8, usize),
    done: &RowsDone<'_>,
) -> Result<(), PoolPanic> {
    let entries: usize = first.batch.iter().product();
    let parts = chain.blocks.div_ceil(chain.together.max(1));
    let shared = Shared([first, second], scratch);
    let run = |worker: usize, begin: u64, end: u64| {
        let shared = &shared;
        for number in begin as usize..end as usize {
            let (entry, part) = (number / parts, number % parts);
            let blocks = part * chain.together..((part + 1) * chain.together).min(chain.blocks);
            let scratch = shared.1.wrapping_add(worker * stride);
            // SAFETY: the caller's promise; blocks are disjoint parts of the result, and the worker's scratch is its own.
            unsafe { several(shared.0, chain, (entry, blocks), (worker, scratch), done) };
        }
    };
    let all = (entries * parts) as u64;
    if chain.alone {
        run(0, 0, all);
        return Ok(());
    }
    pool.parallel_for(all, 1, &run)
}

/// Computes blocks of one entry.
///
/// # Safety
/// As for [`run`], with the scratch of one worker.
unsafe fn several(
    [first, second]: [&Product<'_>; 2],
    chain: &Chain,
    (entry, blocks): (usize, Range<usize>),
    (worker, scratch): (usize, *mut u8),
    done: &RowsDone<'_>,
) {
    let size = first.dtype.bytes() as isize;
    let starts = |m: &Matrix<'_>| {
        let (mut rest, mut sum) = (entry, 0);
        for (&extent, &stride) in first.batch.iter().zip(m.batch).rev() {
            sum += (rest % extent) as isize * stride;
            rest /= extent;
        }
        m.start.wrapping_offset(sum * size)
    };
    /// The rows of a matrix from one on; `start` is where the matrix begins.
    fn down<'m>(m: &Matrix<'m>, start: *mut u8, from: usize, size: isize) -> Matrix<'m> {
        match m.composite {
            Some(_) => m.from(start, from, 0),
            None => m.from(start.wrapping_offset(from as isize * m.row * size), 0, 0),
        }
    }
    let mut right = [first, second].map(|p| p.rhs.from(starts(&p.rhs), 0, 0));
    for (copy, right) in chain.copies.iter().zip(&mut right) {
        if let Some(copy) = copy {
            let made = copy.matrix(scratch);
            // SAFETY: the layout is that of the operand of an entry, and scratch has room for the copy.
            unsafe { pack(&copy.layout, 0..copy.layout.panels(), right.start, made.start) };
            *right = made;
        }
    }
    let methods = [method(first), method(second)];
    let lines = scratch.wrapping_add(chain.lines_at);
    let (left, target) = (starts(&first.lhs), starts(&second.dst));
    for block in blocks {
        let from = block * chain.rows;
        let rows = chain.rows.min(first.m - from);
        let scores = Product {
            m: rows,
            batch: &[],
            lhs: down(&first.lhs, left, from, size),
            rhs: right[0],
            dst: first.dst.from(lines, 0, 0),
            ..*first
        };
        if first.n > 0 {
            // SAFETY: a part of what the caller vouches for, to scratch that has room for it.
            unsafe { compute(methods[0], &scores, scratch, None) };
        }
        let row = entry * first.m + from;
        done(worker, row..row + rows, lines);
        let result = Product {
            m: rows,
            batch: &[],
            lhs: second.lhs.from(lines, 0, 0),
            rhs: right[1],
            dst: down(&second.dst, target, from, size),
            ..*second
        };
        if second.n > 0 {
            // SAFETY: as above, from scratch.
            unsafe { compute(methods[1], &result, scratch, None) };
        }
    }
}

impl Chain {
    /// Bytes of a row of the value between the products.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }
}
