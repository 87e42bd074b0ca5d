//! Rows behind products on a GPU: a block multiplies a tile that has all columns of its rows, puts the results into shared memory, and its warps compute what
//! waits for whole rows from there, as norms and softmax do. The results of the products are in no other memory, unless others need them.
//!
//! ```text
//! for m {                                 for tile block {
//!   for n { sum; row[n] = f(sum) }          a tile of sums, by warps or threads
//!   phases of the row                =>     tile[m, n] = f(sum)
//! }                                         barrier
//!                                           for turn { for warp { phases of row m }}
//!                                         }
//! ```
//! Columns and rows that the tile has beside those of the result are stored nowhere, so that no sum and no maximum meets them. A warp adds up a row in
//! an order that its length decides, whatever the tile.

use tlc_ir::index::VarId;
use tlc_ir::kernel::visit::{Effect, walk};
use tlc_ir::kernel::{Bind, Kernel, Memory, Scope, Stmt};
use tlc_ir::target::{GPU_ACCESS_BYTES, Gpu as Target, WARP_GROUP_ROWS, WARP_THREADS};
use tlc_ir::{DType, Precision};

use super::ScheduleReason;
use super::gpu::{Gpu, STEPS, pieces_of_rows};
use super::keep::{Room, keep_rows};
use super::product_tiles::{ProductLoops, ProductTiles};
use super::tensor_cores::{Parts, multiplies_in_groups, steps_of};
use crate::directive::{Directive, DirectiveRefusal};
use crate::tile::{LARGE_PRODUCT_SIDE, SMALLEST_PRODUCT_SIDE};
use crate::tree;

/// Elements of a tile up to which four warps share it; more have eight, each of which holds no more sums then.
const FEW_ELEMENTS: i64 = 4096;
/// Threads of a block without matrix instructions, if each has no more than so many rows then, and neighbouring columns of each: sums for which there are
/// registers in a multiprocessor that is half full of threads.
const THREADS: i64 = 256;
const MOST_ROWS: i64 = 4;
const COLUMNS: i64 = 4;
/// Bytes of a row that its phases keep, at most: 32 registers of each thread of a warp.
const KEPT_BYTES: i64 = 32 * 4 * WARP_THREADS;
/// Rows of a shared tile begin at an odd multiple of so many elements: then a warp's eight rows of two neighbours are in different banks.
const APART: i64 = 8;

impl Gpu {
    /// A block per tile of whole rows; rows go along the last parallel loop. Products are computed by matrix instructions so exactly, or by threads.
    pub(super) fn product_rows(
        &mut self,
        parallel: &[VarId],
        [rows, columns]: [i64; 2],
        matrices: Option<Precision>,
        gpu: &Target,
    ) -> Result<(), DirectiveRefusal> {
        let dtype = matrices.map(|p| self.has_operands(p, gpu)).transpose()?;
        let (&m, around) = parallel.split_last().ok_or(DirectiveRefusal::NoDivision)?;
        let scratch = row_of_results(&self.kernel, m).ok_or(DirectiveRefusal::NotASum(m))?;
        self.why = ScheduleReason::ProductRows { rows, columns };
        let [tile, row] = self.apply(Directive::Block { var: m, factor: rows })?[..] else {
            return Err(DirectiveRefusal::Factor(rows));
        };
        let length = self.kernel.scratch[scratch as usize].len.as_const();
        let pitch = pitch(length.unwrap_or(columns), dtype);
        let split = Directive::TileRows {
            var: row,
            scratch,
            rows,
            pitch,
        };
        let [row, behind] = self.apply(split)?[..] else {
            return Err(DirectiveRefusal::NotASum(row));
        };
        let scope = Scope::Shared;
        self.apply(Directive::Place { scratch, scope })?;
        // What phases of a row share is in registers.
        let most = KEPT_BYTES;
        let room = Room {
            operands: true,
            fits: &|_, bytes| match bytes <= most {
                true => Ok(()),
                false => Err(DirectiveRefusal::SharedBytes { bytes, most }),
            },
        };
        keep_rows(&mut self.kernel, &mut self.schedule, &[behind], &room);
        let [first] = self.loops_inside(row)[..] else {
            return Err(DirectiveRefusal::NotASum(row));
        };
        let mut loops = around.to_vec();
        loops.extend([tile, row]);
        loops.extend(self.chain(first));
        let loops = self.product_loops(&loops, around.len() + 1, false)?;
        let (tiles, threads, least) = match dtype.zip(matrices) {
            Some((dtype, precision)) => self.tile_by_warps(loops, [rows, columns], (dtype, precision), gpu)?,
            None => {
                let tiles = self.whole_rows(loops, [rows, columns], STEPS)?;
                let (part, threads) = thread_parts([rows, columns]);
                self.by_threads(&tiles, [rows, columns], part)?;
                (tiles, threads, 2)
            }
        };
        let most = GPU_ACCESS_BYTES / self.kernel.scratch[scratch as usize].dtype.bytes() as i64;
        self.read_once(behind, threads)?;
        self.rows_of_tile(behind, threads / WARP_THREADS, most)?;
        let block = tiles.block;
        self.why = ScheduleReason::Order;
        self.apply(Directive::OneThread { block })?;
        self.apply(Directive::Synchronize { block })?;
        self.pipeline(tiles.steps, least, gpu);
        self.reside(gpu)
    }

    /// A tile whose warps multiply, how many threads those have, and how many such blocks a multiprocessor should have room for.
    fn tile_by_warps(
        &mut self,
        loops: ProductLoops,
        [rows, columns]: [i64; 2],
        (dtype, precision): (DType, Precision),
        gpu: &Target,
    ) -> Result<(ProductTiles, i64, i64), DirectiveRefusal> {
        let length = self.kernel.extents[loops.sum.0 as usize].interval(&self.kernel).hi;
        let in_groups = columns == LARGE_PRODUCT_SIDE
            && rows % (4 * WARP_GROUP_ROWS) == 0
            && length > 2 * STEPS
            && multiplies_in_groups(dtype, precision, gpu);
        let part = match in_groups {
            true => [WARP_GROUP_ROWS, columns],
            false => warp_part([rows, columns]),
        };
        let steps = steps_of(length, dtype);
        let tiles = self.whole_rows(loops, [rows, columns], steps)?;
        let parts = Parts {
            tile: [rows, columns],
            part,
            steps,
            precision,
            in_groups,
        };
        self.by_warps(&tiles, &parts, gpu)?;
        let threads = (rows / part[0]) * (columns / part[1]) * WARP_THREADS;
        Ok((tiles, threads, if rows * columns > FEW_ELEMENTS { 1 } else { 2 }))
    }

    /// A block per tile of all columns, in which the sums are taken apart from what is before and behind them.
    fn whole_rows(
        &mut self,
        loops: ProductLoops,
        [rows, columns]: [i64; 2],
        steps: i64,
    ) -> Result<ProductTiles, DirectiveRefusal> {
        let ProductLoops { around, m, n, sum, .. } = loops;
        let tiled = self.apply(Directive::TileSum {
            outer: m,
            inner: n,
            sum,
            rows,
            columns,
            scope: Scope::Cache,
        })?;
        let [.., m, n, sum, _, _] = tiled[..] else {
            return Err(DirectiveRefusal::NotASum(sum));
        };
        let tiles = self.steps(around, [m, n, sum], steps)?;
        // Operands have whole columns in shared memory, whose pieces are aligned.
        if !self.kernel.extents[tiles.n.0 as usize].is(columns) {
            self.apply(Directive::FillColumns {
                outer: tiles.m,
                inner: tiles.n,
                sum: tiles.sum,
                rows,
                columns,
            })?;
        }
        Ok(tiles)
    }

    /// What all rows of a tile read, as the weights of a norm, goes to shared memory once a block.
    fn read_once(&mut self, rows: VarId, threads: i64) -> Result<(), DirectiveRefusal> {
        self.why = ScheduleReason::SharedMemory;
        for param in read_by_all(&self.kernel, rows) {
            let (var, scope) = (rows, Scope::Shared);
            let Ok(made) = self.apply(Directive::StageRegion { var, param, scope }) else {
                continue;
            };
            if let (Some(&around), Some(&var)) = (made.first(), made.last()) {
                self.apply(Directive::Distribute { around, var, threads })?;
            }
        }
        Ok(())
    }

    /// Gives the rows of a tile to the warps of the block, as many neighbouring elements at a time to a thread as can be, but no more than so many.
    fn rows_of_tile(&mut self, rows: VarId, warps: i64, most: i64) -> Result<(), DirectiveRefusal> {
        let before = (self.kernel.clone(), self.schedule.clone());
        let mut done = Err(DirectiveRefusal::NoDivision);
        let loops = [rows];
        let pieces = pieces_of_rows(&before.0, &loops).filter(|lanes| *lanes <= most);
        for lanes in pieces.chain([1]) {
            (self.kernel, self.schedule) = before.clone();
            done = self.rows_of_tile_by(rows, lanes, warps);
            if done.is_ok() {
                break;
            }
        }
        done
    }

    fn rows_of_tile_by(&mut self, rows: VarId, lanes: i64, warps: i64) -> Result<(), DirectiveRefusal> {
        let nests = self.row_nests(rows);
        let mut pieces = Vec::new();
        if lanes > 1 {
            let made = self.row_pieces(&nests, (lanes, WARP_THREADS))?;
            pieces.extend(made.into_iter().map(|p| p.lane));
        }
        self.why = ScheduleReason::Vectors { lanes };
        for &lane in &pieces {
            self.bind(lane, Bind::Lanes)?;
        }
        self.why = ScheduleReason::RowsByWarps;
        let (var, threads) = (rows, WARP_THREADS);
        let [turn, _] = self.apply(Directive::RowsByWarps { var, warps, threads })?[..] else {
            return Err(DirectiveRefusal::Factor(warps));
        };
        self.keep_in_registers(Some(turn))?;
        self.accumulate_apart(pieces)
    }
}

/// The scratch that the first statement of a row fills.
fn row_of_results(kernel: &Kernel, row: VarId) -> Option<u32> {
    let first = tree::loop_body(&kernel.body, row)?.first()?;
    let Stmt::Loop { .. } = first else { return None };
    let accesses = walk(std::slice::from_ref(first)).flat_map(|s| s.accesses());
    accesses
        .filter(|a| a.effect == Effect::Store)
        .find_map(|a| match a.memory {
            Memory::Scratch(i) if kernel.scratch[i as usize].scope == Scope::Cache => Some(i),
            _ => None,
        })
}

/// The parameters that iterations of a loop only read, and all the same elements of.
fn read_by_all(kernel: &Kernel, rows: VarId) -> Vec<u32> {
    let body = tree::loop_body(&kernel.body, rows).map_or(&[][..], |b| &b[..]);
    let inside = tree::defined_vars(body);
    let alike = |p: &u32| {
        let mut accesses = walk(body)
            .flat_map(|s| s.accesses())
            .filter(|a| a.memory == Memory::Param(*p))
            .peekable();
        accesses.peek().is_some()
            && accesses.all(|a| {
                let moves = inside.iter().any(|v| a.index.uses(*v));
                a.effect == Effect::Load && moves && !a.index.uses(rows)
            })
    };
    (0..kernel.params.len() as u32).filter(alike).collect()
}

/// Elements from one row of a shared tile to the next. Threads without matrix instructions store 16 bytes along a row, eight of them 32 elements.
fn pitch(length: i64, matrices: Option<DType>) -> i64 {
    let pieces = |n: i64| (length + n - 1) / n;
    match matrices {
        Some(_) => (pieces(APART) | 1) * APART,
        None => (pieces(COLUMNS) * COLUMNS).max(SMALLEST_PRODUCT_SIDE),
    }
}

/// Rows and columns of a warp's part of a tile.
fn warp_part([rows, columns]: [i64; 2]) -> [i64; 2] {
    let down = SMALLEST_PRODUCT_SIDE * if rows > 2 * SMALLEST_PRODUCT_SIDE { 2 } else { 1 };
    let warps = if rows * columns > FEW_ELEMENTS { 8 } else { 4 };
    let across = columns * (rows / down) / warps;
    [down, across.clamp(SMALLEST_PRODUCT_SIDE, columns)]
}

/// Rows and columns of a thread's part of a tile, and how many threads there are.
fn thread_parts([rows, columns]: [i64; 2]) -> ([i64; 2], i64) {
    let side_by_side = columns / COLUMNS;
    let below = (THREADS / side_by_side).max(rows / MOST_ROWS).min(rows);
    ([rows / below, COLUMNS], side_by_side * below)
}
