//! Tensors that are read along one axis and written along another on a GPU: tiles go through shared memory, so that threads side by side touch elements side
//! by side on both ways.

use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::visit::Effect;
use tlc_ir::kernel::{Bind, Memory, Scope};
use tlc_ir::target::{GPU_ACCESS_BYTES, Gpu as Target};

use super::gpu::{Gpu, THREADS};
use super::tile_threads::is_multiple;
use super::{ScheduleReason, fuse_clean};
use crate::directive::{Directive, DirectiveRefusal};

/// Rows and columns from which on a tile is worth it that is read along the ones and written along the others.
const TRANSPOSED_SIDE: i64 = 32;
/// Pieces of a row of such a tile that threads side by side move, one each: at 16 bytes a row of banks.
const TRANSPOSED_PIECES: i64 = 8;
/// Pieces that a thread moves of such a tile one after another, at most: what it computes of its number serves all of them.
const TRANSPOSED_TURNS: i64 = 4;
/// Of the elements of an axis, those that the last tile may have beyond its end for longer tiles to be worth it.
const TRANSPOSED_WASTE: i64 = 8;
/// Bytes of a row of banks of shared memory that are in one bank.
const BANK_BYTES: i64 = 4;

/// Threads of a block with tiles of a side that are read along one axis and written along another.
fn transposed_threads(side: i64) -> i64 {
    THREADS.min(side * TRANSPOSED_PIECES)
}

impl Gpu {
    /// A block per tile of rows and columns, where some tensors lie along the columns and others along the rows: these go through
    /// shared memory, so that threads side by side touch elements side by side on both ways.
    ///
    /// A row of results in a tile is eight pieces of as many elements as a thread moves at once, and a column one to four times as long. Where a thread computes a whole piece it reads a column of shared memory
    /// in as many rows, and those beside it the same column further down: pieces of rows lie rotated, so that these are in different banks. Where it computes single
    /// elements, for rows of results do not begin where 16 bytes do, rows lie a bank apart.
    pub(super) fn transposition(&mut self, parallel: &[VarId], gpu: &Target) -> Result<(), DirectiveRefusal> {
        let loops = fuse_clean(&mut self.kernel, &mut self.schedule, parallel);
        let Some((&last, outer)) = loops.split_last() else {
            return Err(DirectiveRefusal::NoDivision);
        };
        let length = |v: VarId| self.kernel.extents[v.0 as usize].interval(&self.kernel).hi;
        let long = |v: VarId| length(v) >= TRANSPOSED_SIDE;
        let mut across = outer.iter().rev().map(|&v| (v, self.walked_across(v, last)));
        let Some((row, turned)) = across.find(|(v, params)| long(*v) && long(last) && !params.is_empty()) else {
            return Err(DirectiveRefusal::NoDivision);
        };
        let piece = self.transposed_piece(length(row).min(length(last)), last);
        let columns = TRANSPOSED_PIECES * piece;
        let rows = columns * self.tiles_at_once(outer, (row, last), columns, gpu);
        let sides = [rows, columns];
        self.why = ScheduleReason::Tiles { rows, columns };
        let at = outer.iter().position(|&v| v == row).unwrap_or(0);
        for &inner in &outer[at + 1..] {
            self.apply(Directive::Interchange { outer: row, inner })?;
        }
        let rows = self.apply(Directive::Block {
            var: row,
            factor: sides[0],
        })?;
        let columns = self.apply(Directive::Block {
            var: last,
            factor: sides[1],
        })?;
        let (outer_row, inner) = (rows[1], columns[0]);
        self.apply(Directive::Interchange {
            outer: outer_row,
            inner,
        })?;
        let mut blocks: Vec<VarId> = outer.iter().copied().filter(|&v| v != row).collect();
        blocks.extend([rows[0], columns[0]]);
        let block = self.one_loop(&blocks)?;
        self.bind(block, Bind::Block)?;
        self.why = ScheduleReason::SharedMemory;
        let (mut copies, mut tiles) = (Vec::new(), Vec::new());
        for param in turned {
            let scratch = self.kernel.scratch.len() as u32;
            let made = self.apply(Directive::StageRegion {
                var: rows[1],
                param,
                scope: Scope::Shared,
            })?;
            let &[first, last] = &made[..] else {
                return Err(DirectiveRefusal::NoDivision);
            };
            copies.push((first, last));
            tiles.push(scratch);
        }
        for nest in copies {
            self.pieces_of_tile(nest, [sides[1], sides[0]], piece)?;
        }
        let together = self.pieces_of_tile((rows[1], columns[1]), sides, piece)?;
        self.why = ScheduleReason::SharedMemory;
        for scratch in tiles {
            let row = sides[0];
            let bytes = self.kernel.scratch[scratch as usize].dtype.bytes() as i64;
            let gap = (BANK_BYTES / bytes).max(1);
            self.apply(match together {
                true => Directive::Rotate { scratch, row, piece },
                false => Directive::Apart { scratch, row, gap },
            })?;
        }
        self.why = ScheduleReason::Order;
        self.apply(Directive::Synchronize { block }).map(drop)
    }

    /// Gives the elements of a tile to threads, so many neighbours at a time, if they lie side by side in all parameters, or else one. Says whether they do.
    fn pieces_of_tile(
        &mut self,
        (outer, inner): (VarId, VarId),
        [rows, columns]: [i64; 2],
        piece: i64,
    ) -> Result<bool, DirectiveRefusal> {
        let before = (self.kernel.clone(), self.schedule.clone());
        self.why = ScheduleReason::Vectors { lanes: piece };
        let tile = |lanes| Directive::DistributeTile {
            outer,
            inner,
            rows,
            columns,
            lanes,
            threads: transposed_threads(TRANSPOSED_PIECES * piece),
        };
        if let Ok(made) = self.apply(tile(piece))
            && let [_, lane] = made[..]
            && self.params_move_together(lane, piece)
            && self.bind(lane, Bind::Lanes).is_ok()
        {
            return Ok(true);
        }
        (self.kernel, self.schedule) = before;
        self.why = ScheduleReason::BlocksAndThreads;
        self.apply(tile(1)).map(|_| false)
    }

    /// How many square tiles of a side, one below the other, are a block's: as many as leave each multiprocessor a block, and hardly more elements in the last
    /// block than there are.
    fn tiles_at_once(&self, outer: &[VarId], (row, last): (VarId, VarId), side: i64, gpu: &Target) -> i64 {
        let length = |v: VarId| self.kernel.extents[v.0 as usize].as_const();
        let around = outer.iter().filter(|v| **v != row);
        let around = around.map(|&v| length(v)).try_fold(1i64, |n, d| n.checked_mul(d?));
        let (Some(around), Some(rows), Some(columns)) = (around, length(row), length(last)) else {
            return 1;
        };
        let parts = |n: i64, side: i64| (n + side - 1) / side;
        let most = TRANSPOSED_TURNS * transposed_threads(side) / (side * TRANSPOSED_PIECES);
        let tiles = std::iter::successors(Some(most), |n| Some(n / 2)).take_while(|n| *n > 1);
        let mut worth = tiles.filter(|n| {
            let blocks = parts(rows, n * side)
                .saturating_mul(parts(columns, side))
                .saturating_mul(around);
            let beyond = parts(rows, n * side) * n * side - rows;
            blocks >= gpu.multiprocessors && beyond <= rows / TRANSPOSED_WASTE
        });
        worth.next().unwrap_or(1)
    }

    /// Elements that a thread moves at once between global memory and a tile of so many rows or columns at most: 16 bytes of the widest, or half of that and less
    /// where tiles would be larger than what there is, or rows of results would not begin where pieces do.
    fn transposed_piece(&self, length: i64, last: VarId) -> i64 {
        let widest = self.kernel.params.iter().map(|p| p.dtype.bytes()).max();
        let most = GPU_ACCESS_BYTES / widest.unwrap_or(1) as i64;
        let shorter = || {
            std::iter::successors(Some(most), |n| {
                (n / 2 >= TRANSPOSED_SIDE / TRANSPOSED_PIECES).then_some(n / 2)
            })
        };
        let fits = |n: &i64| TRANSPOSED_PIECES * n <= length;
        let whole = |n: &i64| is_multiple(&self.kernel.extents[last.0 as usize], *n);
        let fitting = shorter().find(|n| fits(n) && whole(n)).or_else(|| shorter().find(fits));
        fitting.or(shorter().last()).unwrap_or(most)
    }

    /// Whether elements of parameters move together that so many iterations of a loop touch, wherever those of scratch are.
    fn params_move_together(&self, lane: VarId, lanes: i64) -> bool {
        self.move_together(lane, lanes, |a| matches!(a.memory, Memory::Param(_)))
    }

    /// The parameters that are only read along `v` and not along `last`.
    fn walked_across(&self, v: VarId, last: VarId) -> Vec<u32> {
        let unit = |index: &IndexExpr, v: VarId| index.affine_in(v).is_some_and(|(c, _)| c.is(1));
        let loads = self.kernel.statements().flat_map(|s| s.accesses());
        let mut found: Vec<u32> = loads
            .filter(|a| a.effect == Effect::Load && unit(a.index, v) && a.index.uses(last) && !unit(a.index, last))
            .filter_map(|a| match a.memory {
                Memory::Param(p) => Some(p),
                Memory::Scratch(_) => None,
            })
            .collect();
        found.sort_unstable();
        found.dedup();
        found
    }
}
