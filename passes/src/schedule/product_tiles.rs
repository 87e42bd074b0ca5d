//! Sums of products on a GPU, in tiles of rows and columns that blocks take, of which each thread adds up a part.

use tlc_ir::Precision;
use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::visit::{Effect, MemoryAccess};
use tlc_ir::kernel::{Bind, Kernel, Memory, Op, Scope, Stmt, ValueId};
use tlc_ir::target::Gpu as Target;

use super::ScheduleReason;
use super::contract::factors;
use super::gpu::{Gpu, STEPS};
use crate::directive::{Directive, DirectiveRefusal};
use crate::tile::{PRODUCT_SIDE, SMALLEST_PRODUCT_SIDE};
use crate::tree;

/// Threads along each side of a tile.
const PARTS: i64 = 16;
/// Channels of windows go inside of their elements if there are a multiple of so many.
const CHANNEL_STEPS: i64 = 32;
/// The most elements that windows of neighbours are apart.
const MOST_STRIDE: i64 = 4;
/// Elements of an operand that a thread brings to shared memory at once.
const FILLED: i64 = 4;

/// A nest of sums of products: rows, columns, the sum, and the parallel loops around.
pub(super) struct ProductLoops {
    pub(super) around: Vec<VarId>,
    pub(super) m: VarId,
    pub(super) n: VarId,
    pub(super) sum: VarId,
    /// Whether one of the operands is windows of an image whose channels lie together.
    pub(super) channels_last: bool,
}

/// Tiles of sums of products, a block each: a nest of steps, rows, columns and the steps of a block of them.
pub(super) struct ProductTiles {
    pub(super) block: VarId,
    pub(super) steps: VarId,
    pub(super) m: VarId,
    pub(super) n: VarId,
    pub(super) sum: VarId,
}

impl Gpu {
    /// A tile's side along a loop, if the loop is long enough for tiles.
    fn side(&self, var: VarId) -> Option<i64> {
        let extent = &self.kernel.extents[var.0 as usize];
        let most = extent.interval(&self.kernel).hi;
        // What is not known to be long may be short: large tiles would be mostly empty.
        let largest = if extent.as_const().is_some() {
            PRODUCT_SIDE
        } else {
            PRODUCT_SIDE / 2
        };
        let side = [PRODUCT_SIDE, PRODUCT_SIDE / 2, SMALLEST_PRODUCT_SIDE]
            .into_iter()
            .find(|s| *s <= most.min(largest));
        side.filter(|_| most >= SMALLEST_PRODUCT_SIDE)
    }

    /// The loops of sums of products, with the rows along one of the parallel loops and the columns along those inside it.
    /// Channels of windows may be added up innermost.
    pub(super) fn product_loops(
        &mut self,
        parallel: &[VarId],
        row: usize,
        channels_innermost: bool,
    ) -> Result<ProductLoops, DirectiveRefusal> {
        let (around, inside) = parallel.split_at(row);
        let [m, inside @ ..] = inside else {
            return Err(DirectiveRefusal::Factor(0));
        };
        let n = self.one_loop(inside)?;
        let [first] = self.loops_inside(n)[..] else {
            return Err(DirectiveRefusal::NotASum(n));
        };
        let mut summed = self.chain(first);
        let channels_last = channels_innermost && self.channels_innermost(&mut summed, [*m, n])?;
        let sum = self.one_loop(&summed)?;
        let around = around.to_vec();
        Ok(ProductLoops {
            around,
            m: *m,
            n,
            sum,
            channels_last,
        })
    }

    /// Has the channels of windows added up inside of the windows' elements, where there are enough of them for the steps of a tile: all of these are
    /// of one element then, of which it is known once where it lies and whether it is inside of the image. Returns whether they lie together.
    fn channels_innermost(&mut self, summed: &mut [VarId], sides: [VarId; 2]) -> Result<bool, DirectiveRefusal> {
        let [channels, .., along] = summed[..] else {
            return Ok(false);
        };
        let many = self.kernel.extents[channels.0 as usize].as_const();
        if many.is_none_or(|n| n % CHANNEL_STEPS != 0) {
            return Ok(false);
        }
        let step = |index: &IndexExpr, v: VarId| index.affine_in(v).map(|(c, _)| c.as_const());
        let windows = |index: &IndexExpr| {
            // Pixels of rows that were joined are at no multiple of their number.
            let near = |v: VarId| match step(index, v) {
                None => index.uses(v),
                Some(n) => n.is_some_and(|n| (1..=MOST_STRIDE).contains(&n)),
            };
            step(index, along) == Some(Some(1)) && sides.into_iter().any(near)
        };
        let together = |index: &IndexExpr, v: VarId| step(index, v) == Some(Some(1));
        let loads = self.kernel.statements().flat_map(|s| s.accesses());
        let loads: Vec<&IndexExpr> = loads.filter(|a| a.effect == Effect::Load).map(|a| a.index).collect();
        // Channels that lie together are copied together.
        let channels_last =
            loads.iter().any(|index| together(index, channels)) && !loads.iter().any(|index| together(index, along));
        if !channels_last && !loads.iter().any(|index| windows(index)) {
            return Ok(false);
        }
        drop(loads);
        for &inner in &summed[1..] {
            self.apply(Directive::Interchange { outer: channels, inner })?;
        }
        summed.rotate_left(1);
        Ok(channels_last)
    }

    /// A block per tile of so many rows and columns, which goes through so many steps of the sums at a time.
    pub(super) fn tiles(
        &mut self,
        loops: ProductLoops,
        [rows, columns]: [i64; 2],
        steps: i64,
    ) -> Result<ProductTiles, DirectiveRefusal> {
        let ProductLoops { around, m, n, sum, .. } = loops;
        let down = self.apply(Directive::Block { var: m, factor: rows })?;
        let across = self.apply(Directive::Block {
            var: n,
            factor: columns,
        })?;
        let (outer, inner) = (down[1], across[0]);
        self.apply(Directive::Interchange { outer, inner })?;
        let (outer, inner) = (down[1], across[1]);
        let scope = Scope::Cache;
        let tiled = self.apply(Directive::TileSum {
            outer,
            inner,
            sum,
            rows,
            columns,
            scope,
        })?;
        let [.., m, n, sum, _, _] = tiled[..] else {
            return Err(DirectiveRefusal::NotASum(sum));
        };
        let mut blocks = around;
        blocks.extend([down[0], across[0]]);
        self.steps(blocks, [m, n, sum], steps)
    }

    /// Tiles that blocks take, whose sums go through so many steps at a time.
    pub(super) fn steps(
        &mut self,
        blocks: Vec<VarId>,
        [m, n, sum]: [VarId; 3],
        steps: i64,
    ) -> Result<ProductTiles, DirectiveRefusal> {
        let steps = self.apply(Directive::Block {
            var: sum,
            factor: steps,
        })?;
        for outer in [n, m] {
            let inner = steps[0];
            self.apply(Directive::Interchange { outer, inner })?;
        }
        let block = self.one_loop(&blocks)?;
        self.bind(block, Bind::Block)?;
        let (steps, sum) = (steps[0], steps[1]);
        Ok(ProductTiles {
            block,
            steps,
            m,
            n,
            sum,
        })
    }

    /// A block per tile of sums of products, of which each thread adds up a part.
    pub(super) fn products(&mut self, parallel: &[VarId], row: usize, gpu: &Target) -> Result<(), DirectiveRefusal> {
        let loops = self.product_loops(parallel, row, false)?;
        let side = |g: &Gpu, v: VarId| g.side(v).ok_or(DirectiveRefusal::NotASum(v));
        let (rows, columns) = (side(self, loops.m)?, side(self, loops.n)?);
        self.why = ScheduleReason::Products { rows, columns };
        let tiles = self.tiles(loops, [rows, columns], STEPS)?;
        let part = [rows / PARTS, columns / PARTS];
        self.by_threads(&tiles, [rows, columns], part)?;
        let block = tiles.block;
        self.why = ScheduleReason::Order;
        self.apply(Directive::OneThread { block })?;
        self.apply(Directive::Synchronize { block })?;
        self.pipeline(tiles.steps, 2, gpu);
        Ok(())
    }

    /// Gives the threads of a block parts of a tile of sums of products, whose operands they share.
    pub(super) fn by_threads(
        &mut self,
        tiles: &ProductTiles,
        [rows, columns]: [i64; 2],
        [down, across]: [i64; 2],
    ) -> Result<(), DirectiveRefusal> {
        let &ProductTiles { block, m, n, sum, .. } = tiles;
        self.why = ScheduleReason::SharedMemory;
        let mut filling = Vec::new();
        for (side, value) in factors(&self.kernel, [m, n, sum])?.into_iter().enumerate() {
            let loops = self.apply(Directive::Pack {
                var: m,
                value,
                scope: Scope::Shared,
                turned: side == 1,
                padded: true,
            })?;
            filling.push(self.one_loop(&loops)?);
        }
        self.why = ScheduleReason::Products { rows, columns };
        self.apply(Directive::Contract {
            outer: m,
            inner: n,
            sum,
            rows,
            columns,
            block: STEPS,
            precision: Precision::Exact,
        })?;
        for var in &mut filling {
            self.widen(var, FILLED);
        }
        self.why = ScheduleReason::BlocksAndThreads;
        self.apply(Directive::Spread {
            block,
            rows,
            columns,
            down,
            across,
        })?;
        self.store_together(across);
        self.why = ScheduleReason::BlocksAndThreads;
        let threads = rows / down * (columns / across);
        for var in filling {
            let around = var;
            self.apply(Directive::Distribute { around, var, threads })?;
        }
        Ok(())
    }

    /// Splits a loop so that so many of its iterations are one access of a vector, if they can be; it then is the loop over vectors.
    fn widen(&mut self, var: &mut VarId, lanes: i64) {
        self.widen_where(var, lanes, |g, lane| g.moves_together(lane, lanes));
    }

    /// As [`Gpu::widen`], where iterations go together as `together` says of the loop over them. Returns whether they do.
    pub(super) fn widen_where(&mut self, var: &mut VarId, lanes: i64, together: impl Fn(&Gpu, VarId) -> bool) -> bool {
        let before = (self.kernel.clone(), self.schedule.clone());
        self.why = ScheduleReason::Vectors { lanes };
        let split = Directive::Split {
            var: *var,
            factor: lanes,
        };
        let split = self.apply(split).unwrap_or_default();
        if let [vectors, lane] = split[..]
            && together(self, lane)
            && self.bind(lane, Bind::Lanes).is_ok()
        {
            *var = vectors;
            return true;
        }
        (self.kernel, self.schedule) = before;
        false
    }

    /// Stores the neighbouring results of a thread together, where they lie so.
    fn store_together(&mut self, lanes: i64) {
        let shared = |i: u32| self.kernel.scratch[i as usize].scope == Scope::Shared;
        let to_others = |s: &Stmt| match s {
            Stmt::Store { memory, .. } => match memory {
                Memory::Param(_) => true,
                Memory::Scratch(i) => shared(*i),
            },
            _ => false,
        };
        let inner = self.kernel.statements().filter_map(|s| match s {
            Stmt::Loop {
                var,
                bind: Bind::Unroll,
                body,
            } if body.iter().any(to_others) => Some(*var),
            _ => None,
        });
        for var in inner.collect::<Vec<_>>() {
            let apart = loaded_apart(&self.kernel, var);
            let together = |a: &MemoryAccess<'_>| a.mask.is_none_or(|mask| !apart.contains(&mask));
            if lanes > 1 && self.kernel.extents[var.0 as usize].is(lanes) && self.move_together(var, lanes, together) {
                self.why = ScheduleReason::Vectors { lanes };
                // Where it is refused the results are stored one by one.
                let _ = self.bind(var, Bind::Lanes);
            }
        }
    }
}

/// The masks of a loop's body that may differ from iteration to iteration: what is loaded by them is loaded one by one.
fn loaded_apart(kernel: &Kernel, var: VarId) -> Vec<ValueId> {
    let body = tree::loop_body(&kernel.body, var).map_or(&[][..], |b| &b[..]);
    let mut apart = Vec::new();
    for s in body {
        if let Stmt::Let { value, op } = s
            && (matches!(op, Op::Index(e, _) if e.uses(var)) || op.operands().iter().any(|v| apart.contains(v)))
        {
            apart.push(*value);
        }
    }
    let loads = body
        .iter()
        .flat_map(|s| s.accesses())
        .filter(|a| a.effect == Effect::Load);
    let masks: Vec<ValueId> = loads.filter_map(|a| a.mask).collect();
    apart.retain(|v| masks.contains(v));
    apart
}
