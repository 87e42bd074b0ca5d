//! Sums of products on a GPU whose emitter has matrix instructions for their operands.
//!
//! A block takes a tile of rows and columns, each of its warps a part of it as a fragment. Blocks of steps of both operands go through
//! shared memory as they are stored, each along whichever of its sides lies together in its tensor; rows there begin
//! 16 bytes further apart than they are long, so that eight of them lie in different banks. Where such a block is only copied, the
//! next one is under way while warps multiply.
//!
//! Products of f32 are left to threads unless they may be rounded to tf32, which warps do as they take elements from shared memory.
//!
//! The order of a sum is that of its steps, whatever the tile: it depends on the length and the dtype alone.

use tlc_ir::graph::Monoid;
use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::{Kernel, Memory, Op, Scope, Stmt, ValueId};
use tlc_ir::target::{GPU_ACCESS_BYTES, Gpu as Target, MatrixTile, Support, WARP_GROUP_ROWS, WARP_THREADS};
use tlc_ir::{DType, Precision, ScalarOp};

use super::contract::{factors, stored_factors};
use super::directives::nested;
use super::gpu::{Gpu, STEPS, room_for};
use super::pack::cone;
use super::pipeline::copy_of;
use super::product_tiles::{ProductLoops, ProductTiles};
use super::reason::Refused;
use super::{Schedule, ScheduleReason};
use crate::directive::{Directive, DirectiveRefusal, MOST_STAGES};
use crate::tile::{LARGE_PRODUCT_SIDE, PRODUCT_SIDE, SMALLEST_PRODUCT_SIDE};
use crate::tree;

/// Rows of a tile where it is not known that there are many.
const FEW_ROWS: i64 = 32;
/// Bytes of the steps of a sum that go through shared memory at a time, where it has as many: a row of them is what eight threads copy.
const STEP_BYTES: i64 = 128;
/// Elements of 4 bytes that lie between rows which a fragment is read across: four rows of eight elements are in all banks then.
const TURNED_GAP: i64 = 8;

/// Rows and columns of a tile whose warps have large parts, so that they read little of shared memory for what they multiply. On an H100 a product
/// of 4096 by 4096 by 4096 in bf16 takes 0.78 of the time of [`LARGE_PRODUCT_SIDE`]'s.
const HUGE_TILE: [i64; 2] = [128, 256];
/// Rows and columns of a warp's part of such a tile.
const HUGE_PART: i64 = 64;

/// Rows of a warp's part, at most: a thread has registers for the sums of so many rows of a large tile.
const MOST_PART_ROWS: i64 = PRODUCT_SIDE / 2;
/// A large tile is not for sides that leave more than this part of their tiles empty.
const MOST_EMPTY: i64 = 8;

/// Rows of tiles whose warps multiply in groups of four: of two groups and of one.
const GROUP_ROWS: [i64; 2] = [LARGE_PRODUCT_SIDE, PRODUCT_SIDE];
/// Pixels of their tiles of convolutions. Images have widths of 14, and half of it, times powers of two.
const PIXELS: [i64; 3] = [LARGE_PRODUCT_SIDE, 112, 96];
/// Such a tile may be empty by as much as makes its instructions as slow as those of single warps.
const MOST_EMPTY_OF_GROUPS: i64 = 3;

/// Where the length of a sum is not known, a block of zeros may be multiplied for so many blocks of it.
const MOST_ZEROS: i64 = 8;

/// How the warps of a block share a tile.
pub(super) struct Parts {
    /// Rows and columns of the tile.
    pub(super) tile: [i64; 2],
    /// Rows and columns of a warp's part.
    pub(super) part: [i64; 2],
    /// Steps of a sum that go through shared memory at a time.
    pub(super) steps: i64,
    pub(super) precision: Precision,
    /// Whether four warps multiply together.
    pub(super) in_groups: bool,
}

/// Steps of a sum of so many products that go through shared memory at a time.
pub(super) fn steps_of(length: i64, dtype: DType) -> i64 {
    let few = [STEPS, 2 * STEPS].into_iter().find(|s| length <= *s);
    few.unwrap_or(STEP_BYTES / dtype.bytes() as i64)
}

/// What a warp takes of a side: half of it, where that is not too short.
const fn part(side: i64) -> i64 {
    if side / 2 > SMALLEST_PRODUCT_SIDE {
        side / 2
    } else {
        SMALLEST_PRODUCT_SIDE
    }
}

/// That a nest of products does without matrix instructions.
pub(super) fn note_refusal(schedule: &mut Schedule, row: VarId, refusal: DirectiveRefusal) {
    let (rows, columns) = (PRODUCT_SIDE, PRODUCT_SIDE);
    schedule.refused.push(Refused {
        directive: Directive::SpreadWarps {
            block: row,
            rows,
            columns,
            down: part(rows),
            across: part(columns),
        },
        reason: ScheduleReason::MatrixInstructions {
            rows,
            columns,
            precision: Precision::Exact,
        },
        refusal,
    });
}

/// Whether something adds up products of two values.
pub(super) fn adds_products(kernel: &Kernel) -> bool {
    let product = |v: &ValueId| {
        kernel.statements().any(|s| match s {
            Stmt::Let {
                value,
                op: Op::Map(ScalarOp::Mul, factors),
            } => value == v && factors[0] != factors[1],
            _ => false,
        })
    };
    kernel.statements().any(|s| match s {
        Stmt::Accumulate {
            monoid: Monoid::Add,
            values,
            ..
        } => values.iter().all(product),
        _ => false,
    })
}

impl Gpu {
    /// A block per tile of sums of products, whose warps multiply by matrix instructions; rows and columns as for `products`.
    pub(super) fn tensor_products(
        &mut self,
        parallel: &[VarId],
        row: usize,
        precision: Precision,
        gpu: &Target,
    ) -> Result<(), DirectiveRefusal> {
        let dtype = self.has_operands(precision, gpu)?;
        let loops = self.product_loops(parallel, row, true)?;
        let tiles = |sides| self.full_tiles(&loops, sides);
        let length = self.kernel.extents[loops.sum.0 as usize].interval(&self.kernel).hi;
        // Shorter sums have shorter rows than swizzled memory.
        let grouped = match length > 2 * STEPS && multiplies_in_groups(dtype, precision, gpu) {
            true => self.group_tile(&loops, gpu),
            false => None,
        };
        let in_groups = grouped.is_some();
        let huge =
            !in_groups && dtype.bytes() == 2 && tiles(HUGE_TILE).is_some_and(|n| fills_rounds(n, gpu.multiprocessors));
        let large = !huge && !in_groups && tiles([LARGE_PRODUCT_SIDE; 2]).is_some_and(|n| n >= gpu.multiprocessors);
        let [rows, columns] = match (grouped, huge, large) {
            (Some(tile), ..) => tile,
            (None, true, _) => HUGE_TILE,
            (None, false, true) => [LARGE_PRODUCT_SIDE; 2],
            (None, false, false) => [
                self.warps_side(loops.m, FEW_ROWS)?,
                self.warps_side(loops.n, PRODUCT_SIDE)?,
            ],
        };
        let steps = steps_of(length, dtype);
        // Two blocks of steps of a large tile are as many bytes as those of a small one, so that one is copied while the other is used.
        let steps = if large {
            steps.min(STEP_BYTES / 2 / dtype.bytes() as i64)
        } else {
            steps
        };
        self.why = ScheduleReason::MatrixInstructions {
            rows,
            columns,
            precision,
        };
        let tiles = self.tiles(loops, [rows, columns], steps)?;
        let part = match huge {
            _ if in_groups => [WARP_GROUP_ROWS, columns],
            true => [HUGE_PART, HUGE_PART],
            false => [part(rows).min(MOST_PART_ROWS), part(columns)],
        };
        let parts = Parts {
            tile: [rows, columns],
            part,
            steps,
            precision,
            in_groups,
        };
        self.by_warps(&tiles, &parts, gpu)?;
        let block = tiles.block;
        self.why = ScheduleReason::Order;
        self.apply(Directive::OneThread { block })?;
        self.apply(Directive::Synchronize { block })?;
        // As many warps as two blocks of a large tile have, and more, for those that bring windows themselves.
        let blocks = match (huge, in_groups && rows == PRODUCT_SIDE) {
            (true, _) => 1,
            (false, true) => 3,
            (false, false) => 2,
        };
        self.pipeline(tiles.steps, blocks, gpu);
        self.reside(gpu)
    }

    /// Gives the warps of a block parts of a tile of sums of products, which they multiply by matrix instructions.
    pub(super) fn by_warps(
        &mut self,
        tiles: &ProductTiles,
        parts: &Parts,
        gpu: &Target,
    ) -> Result<(), DirectiveRefusal> {
        let &Parts {
            tile: [rows, columns],
            part: [down, across],
            steps,
            precision,
            in_groups,
        } = parts;
        let multiplied = ScheduleReason::MatrixInstructions {
            rows,
            columns,
            precision,
        };
        self.why = multiplied;
        let vars = [tiles.m, tiles.n, tiles.sum];
        let (multiplied_values, accumulator) = self.multiplied(vars, precision)?;
        let operands = multiplied_values.map(|v| self.kernel.dtype(v));
        if gpu
            .emitter
            .contract(operands, accumulator, precision, [down, across, STEPS])
            != Support::Native
        {
            return Err(DirectiveRefusal::NoMatrixInstruction { operands, accumulator });
        }
        let bytes = operands[0].bytes() as i64;
        let [outer, inner, sum] = vars;
        if !self.kernel.extents[sum.0 as usize].is(steps) {
            let length = steps;
            self.apply(Directive::Lengthen {
                outer,
                inner,
                sum,
                length,
            })?;
        }
        self.why = ScheduleReason::SharedMemory;
        let (values, _) = self.multiplied(vars, precision)?;
        let mut filling = Vec::new();
        for (value, side, length) in [(values[0], outer, rows), (values[1], inner, columns)] {
            let turned = lies_along(&self.kernel, vars, value) == Some(side);
            let loops = self.apply(Directive::Pack {
                var: outer,
                value,
                scope: Scope::Shared,
                turned,
                padded: true,
            })?;
            let scratch = self.kernel.scratch.len() as u32 - 1;
            let row = if turned { length } else { steps };
            filling.push((self.one_loop(&loops)?, scratch, row, turned));
        }
        self.why = multiplied;
        self.apply(Directive::Contract {
            outer,
            inner,
            sum,
            rows,
            columns,
            block: STEPS,
            precision,
        })?;
        for (var, scratch, row, turned) in &mut filling {
            let (scratch, row) = (*scratch, *row);
            let access = GPU_ACCESS_BYTES / bytes;
            // What instructions for 16-bit elements turn as they load it is read one by one where elements have 32.
            let gap = if *turned && bytes == 4 { TURNED_GAP } else { access };
            self.why = ScheduleReason::Banks;
            self.apply(match in_groups {
                true => Directive::Swizzle { scratch, row },
                false => Directive::Apart { scratch, row, gap },
            })?;
            self.widen_copy(var, access);
        }
        self.why = ScheduleReason::BlocksAndThreads;
        let block = tiles.block;
        self.apply(Directive::SpreadWarps {
            block,
            rows,
            columns,
            down,
            across,
        })?;
        let threads = (rows / down) * (columns / across) * WARP_THREADS;
        for (var, ..) in filling {
            let around = var;
            self.apply(Directive::Distribute { around, var, threads })?;
        }
        Ok(())
    }

    /// The factors of the products as they are multiplied, and the dtype of their sum: to be exact, as they were before conversions that keep
    /// every value.
    fn multiplied(&self, vars: [VarId; 3], precision: Precision) -> Result<([ValueId; 2], DType), DirectiveRefusal> {
        let (stored, accumulator) = stored_factors(&self.kernel, vars)?;
        match precision {
            Precision::Exact => Ok((stored, accumulator)),
            _ => Ok((factors(&self.kernel, vars)?, accumulator)),
        }
    }

    /// A type in the kernel that matrix instructions take.
    pub(super) fn has_operands(&self, precision: Precision, gpu: &Target) -> Result<DType, DirectiveRefusal> {
        let side = SMALLEST_PRODUCT_SIDE;
        let extents = [side, side, STEPS];
        let native = |d: &&DType| gpu.emitter.contract([**d; 2], DType::F32, precision, extents) == Support::Native;
        if let Some(dtype) = self.kernel.values.iter().find(native) {
            return Ok(*dtype);
        }
        let sums = self.kernel.statements().find_map(|s| match s {
            Stmt::Accumulate { state, .. } => state.first().map(|s| self.kernel.memory_dtype(s.0)),
            _ => None,
        });
        let accumulator = sums.unwrap_or(DType::F32);
        Err(DirectiveRefusal::NoMatrixInstruction {
            operands: [accumulator; 2],
            accumulator,
        })
    }

    /// Rows and columns of a tile that warps multiply in groups of four, if there are enough of them for all of a device, or may be where calls say how
    /// many there are.
    fn group_tile(&self, loops: &ProductLoops, gpu: &Target) -> Option<[i64; 2]> {
        let certain = self.certain_group_tile(loops, gpu);
        certain.or_else(|| self.group_tile_of_unknown(loops, gpu))
    }

    /// Such a tile where not all lengths are known. Large tiles are for what fills a device with one tile of each unknown side. Where there may be less, small ones:
    /// few of them bring as many bytes at a time as those that single warps multiply, and many bring less in all.
    fn group_tile_of_unknown(&self, loops: &ProductLoops, gpu: &Target) -> Option<[i64; 2]> {
        let around = loops.around.iter().map(|&v| (v, 1));
        let extent = |v: VarId| &self.kernel.extents[v.0 as usize];
        let unknown = |v: VarId| extent(v).as_const().is_none();
        let any = around.clone().any(|(v, _)| unknown(v)) || unknown(loops.m) || unknown(loops.n);
        if !any || !self.rows_are_aligned(loops) {
            return None;
        }
        let fits = |(v, side): (VarId, i64)| match extent(v).as_const() {
            Some(length) => length >= side && (-length).rem_euclid(side) <= length / MOST_EMPTY_OF_GROUPS,
            None => extent(v).interval(&self.kernel).hi >= side,
        };
        let sides = |[rows, columns]: [i64; 2]| [(loops.m, rows), (loops.n, columns)];
        let tiles = |tile: [i64; 2], of_unknown: &dyn Fn(VarId) -> i64| {
            let lengths = around.clone().chain(sides(tile));
            let counts = lengths.map(|(v, side)| {
                let length = extent(v).as_const().unwrap_or_else(|| of_unknown(v));
                length / side + i64::from(length % side != 0)
            });
            counts.fold(1i64, i64::saturating_mul)
        };
        let most = |v: VarId| extent(v).interval(&self.kernel).hi;
        let (large, small) = ([LARGE_PRODUCT_SIDE; 2], [PRODUCT_SIDE, LARGE_PRODUCT_SIDE]);
        if sides(large).into_iter().all(fits) && tiles(large, &|_| 1) >= gpu.multiprocessors {
            return Some(large);
        }
        (sides(small).into_iter().all(fits) && tiles(small, &most) >= gpu.multiprocessors).then_some(small)
    }

    /// Whether rows of both operands lie at multiples of what is copied together, whatever the lengths that are not known.
    fn rows_are_aligned(&self, loops: &ProductLoops) -> bool {
        let vars = [loops.m, loops.n, loops.sum];
        let loads = self.kernel.statements().filter_map(|s| match s {
            Stmt::Let {
                op: Op::Load { memory, index, .. },
                ..
            } if index.uses(loops.sum) => Some((*memory, index)),
            _ => None,
        });
        let mut loads = loads.peekable();
        let mut aligned = loads.peek().is_some();
        for (memory, index) in loads {
            let elements = GPU_ACCESS_BYTES / self.kernel.memory_dtype(memory).bytes() as i64;
            let steps = vars.map(|v| index.affine_in(v).and_then(|(step, _)| step.as_const()));
            let others = steps.iter().all(|s| s.is_some_and(|s| s == 1 || s % elements == 0));
            // Along what lies together there must be a multiple of what is copied.
            let along = vars.iter().zip(&steps).find(|(_, s)| **s == Some(1)).map(|(v, _)| *v);
            let whole =
                along.is_some_and(|v| self.kernel.extents[v.0 as usize].proves_multiple(elements, &self.kernel));
            aligned &= others && whole;
        }
        aligned
    }

    fn certain_group_tile(&self, loops: &ProductLoops, gpu: &Target) -> Option<[i64; 2]> {
        let full = |sides: [i64; 2]| {
            let tiles = self.tiles_of(loops, sides, MOST_EMPTY_OF_GROUPS)?;
            (tiles >= gpu.multiprocessors).then_some((sides, tiles))
        };
        if loops.channels_last {
            let sides = GROUP_ROWS.into_iter().flat_map(|m| PIXELS.map(|n| [m, n]));
            // The first of those that leave least of them empty.
            let all = sides.filter_map(full);
            return all.min_by_key(|([m, n], tiles)| tiles * m * n).map(|(sides, _)| sides);
        }
        match self.full_tiles(loops, [LARGE_PRODUCT_SIDE; 2]) {
            Some(tiles) => (tiles >= gpu.multiprocessors).then_some([LARGE_PRODUCT_SIDE; 2]),
            None => full([PRODUCT_SIDE, LARGE_PRODUCT_SIDE]).map(|(sides, _)| sides),
        }
    }

    /// How many tiles of so many rows and columns there are, if they are full.
    fn full_tiles(&self, loops: &ProductLoops, sides: [i64; 2]) -> Option<i64> {
        self.tiles_of(loops, sides, MOST_EMPTY)
    }

    /// As [`Self::full_tiles`], where no more than one part of so many may be empty.
    fn tiles_of(&self, loops: &ProductLoops, [rows, columns]: [i64; 2], most_empty: i64) -> Option<i64> {
        let extent = |v: VarId| self.kernel.extents[v.0 as usize].as_const();
        let tiles = |v: VarId, side: i64| {
            let length = extent(v)?;
            let tiles = (length + side - 1) / side;
            let empty = tiles.checked_mul(side)? - length;
            (length >= side && empty <= length / most_empty).then_some(tiles)
        };
        let (down, across) = (tiles(loops.m, rows)?, tiles(loops.n, columns)?);
        // Of a loop of unknown length there is one iteration for certain, or nothing to do.
        let around = loops.around.iter().map(|&v| extent(v).unwrap_or(1));
        Some(around.fold(down.saturating_mul(across), i64::saturating_mul))
    }

    /// A tile's side along a loop: as long as there is something to multiply for it.
    fn warps_side(&self, var: VarId, unknown: i64) -> Result<i64, DirectiveRefusal> {
        let extent = &self.kernel.extents[var.0 as usize];
        let most = extent.interval(&self.kernel).hi;
        let largest = if extent.as_const().is_some() {
            PRODUCT_SIDE
        } else {
            unknown
        };
        let sides = [PRODUCT_SIDE, PRODUCT_SIDE / 2, SMALLEST_PRODUCT_SIDE];
        let side = sides.into_iter().find(|s| *s <= most.min(largest));
        side.ok_or(DirectiveRefusal::TooShort(var))
    }

    /// Splits a loop so that as many of its iterations as possible are one access or one copy; it then is the loop over these.
    fn widen_copy(&mut self, var: &mut VarId, most: i64) {
        for lanes in std::iter::successors(Some(most), |n| Some(n / 2)).take_while(|n| *n > 1) {
            let together = |g: &Gpu, lane: VarId| {
                let body = tree::loop_body(&g.kernel.body, lane).map_or(&[][..], |b| &b[..]);
                g.moves_together(lane, lanes) || copy_of(&g.kernel, lane, body).is_some()
            };
            if self.widen_where(var, lanes, together) {
                return;
            }
        }
    }

    /// Has the next blocks of steps copied while one is multiplied: as many of them as the sum is worth and a block of threads has the
    /// memory for.
    ///
    /// A multiprocessor must have room for so many blocks then.
    pub(super) fn pipeline(&mut self, var: VarId, blocks: i64, gpu: &Target) {
        let before = (self.kernel.clone(), self.schedule.clone());
        let mut refused = Vec::new();
        for stages in (2..=MOST_STAGES).rev() {
            let reason = ScheduleReason::Beside { stages };
            self.why = reason;
            let directive = Directive::Pipeline { var, stages };
            let done = worth(&self.kernel, var, stages)
                .and_then(|()| self.apply(directive.clone()))
                .and_then(|_| room_for_stages(&self.kernel, stages, blocks, gpu));
            let Err(refusal) = done else { break };
            (self.kernel, self.schedule) = before.clone();
            // That there is nothing to copy is so for any number of stages.
            if matches!(refusal, DirectiveRefusal::NothingToCopy(_)) {
                refused.clear();
            }
            let no_copies = refused.iter().any(|r: &Refused| r.refusal == refusal);
            if !no_copies {
                refused.push(Refused {
                    directive,
                    reason,
                    refusal,
                });
            }
        }
        self.schedule.refused.extend(refused);
    }
}

/// Whether four warps multiply together in that type.
pub(super) fn multiplies_in_groups(dtype: DType, precision: Precision, gpu: &Target) -> bool {
    gpu.emitter.contracts_in_groups(&MatrixTile {
        operands: [dtype; 2],
        accumulator: DType::F32,
        precision,
        extents: [WARP_GROUP_ROWS, LARGE_PRODUCT_SIDE, STEPS],
    })
}

/// Whether few of so many multiprocessors, each of which takes one tile at a time, have none in the last round.
fn fills_rounds(tiles: i64, multiprocessors: i64) -> bool {
    let rounds = (tiles + multiprocessors - 1) / multiprocessors.max(1);
    tiles.saturating_mul(MOST_EMPTY) >= rounds.saturating_mul(multiprocessors * (MOST_EMPTY - 1))
}

/// Whether a loop is long enough for so many stages. Where its length is known, what is left behind whole rounds of the stages is written
/// out; where it is not, blocks of zeros are multiplied there, which must be few beside the others.
fn worth(kernel: &Kernel, var: VarId, stages: i64) -> Result<(), DirectiveRefusal> {
    if stages == 2 {
        return Ok(());
    }
    let count = &kernel.extents[var.0 as usize];
    let least = match count.as_const() {
        Some(_) => 2 * stages,
        None => MOST_ZEROS * (stages - 1),
    };
    match count.interval(kernel).lo >= least {
        true => Ok(()),
        false => Err(DirectiveRefusal::FewIterations { var, stages, least }),
    }
}

/// Whether blocks have the shared memory of so many stages. Two of what every device has are taken as they are; for more a multiprocessor
/// must still have so many blocks: two, so that the threads of one multiply while those of the other wait, or one whose tile is so large that
/// its own warps do. As much memory in more stages always has more bytes under way: all stages of a block but one.
fn room_for_stages(kernel: &Kernel, stages: i64, least: i64, gpu: &Target) -> Result<(), DirectiveRefusal> {
    if stages == 2 && room_for(kernel, gpu).is_ok() {
        return Ok(());
    }
    let Some(grid) = kernel.grid() else { return Ok(()) };
    let (bytes, most) = (grid.shared_bytes, gpu.opt_in_shared_bytes.max(gpu.shared_bytes));
    if bytes > most {
        return Err(DirectiveRefusal::SharedBytes { bytes, most });
    }
    let blocks = gpu.multiprocessor.occupancy(grid.threads, bytes, None).blocks;
    match blocks >= least {
        true => Ok(()),
        false => Err(DirectiveRefusal::FewBlocks { bytes, blocks }),
    }
}

/// The one of three nested loops that an operand lies together along in its tensor.
fn lies_along(kernel: &Kernel, [outer, inner, sum]: [VarId; 3], value: ValueId) -> Option<VarId> {
    let body = nested(kernel, inner, sum).ok()?;
    let (cone, _) = cone(body, value);
    let loads = cone.iter().filter_map(|s| match s {
        Stmt::Let {
            op:
                Op::Load {
                    memory: Memory::Param(_),
                    index,
                    ..
                },
            ..
        } => Some(index),
        _ => None,
    });
    let unit = |index: &IndexExpr, v: VarId| index.affine_in(v).is_some_and(|(c, _)| c.is(1));
    let mut along = loads.filter(|index| index.uses(sum) && (index.uses(outer) || index.uses(inner)));
    along.find_map(|index| [sum, outer, inner].into_iter().find(|v| unit(index, *v)))
}
