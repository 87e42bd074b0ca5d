//! Columns on a GPU: a block takes a tile of them, a thread one column, or 16 bytes of each row. Where there are few, threads share the rows of a column.

use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::visit::Effect;
use tlc_ir::kernel::{Bind, Kernel, Memory, SHARED_ALIGNMENT, Stmt};
use tlc_ir::target::{Gpu as Target, MAX_BLOCK_THREADS, WARP_THREADS};

use super::again::{MOST, own_cost};
use super::gpu::{Gpu, LARGE, pieces, shared};
use super::{ScheduleReason, fuse_clean};
use crate::directive::{Directive, DirectiveRefusal};
use crate::lower::Nest;
use crate::tile::{block_accumulators, resident_tile};
use crate::tree;

/// Threads of a block that share the rows of its columns.
pub(super) const SHARING_THREADS: i64 = 512;
/// Columns of a block whose threads share rows, at most.
const WIDEST_SHARED: i64 = 256;
/// Bytes of a row that such a block reads at least, as long as the row is: memory hands out 32 at a time, and finds more of them together sooner.
const SHARED_ROW_BYTES: i64 = 64;
/// Such blocks for each multiprocessor, if there can be.
const SHARED_BLOCKS: i64 = 2;
/// Rows of each thread that shares them, at least.
const SHARED_ROWS: i64 = 4;

/// As [`pieces`], of columns, where there are enough of them for all of a device then, and a warp has some for each of its threads.
pub(super) fn pieces_of_columns(nest: &Nest, kernel: &Kernel, width: i64) -> impl Iterator<Item = i64> {
    let all = IndexExpr::product(nest.parallel.iter().map(|v| &kernel.extents[v.0 as usize]));
    let many = all.interval(kernel).lo >= LARGE;
    // Pairs of states stay in shared memory.
    let arg = |s: &Stmt| matches!(s, Stmt::Accumulate { monoid, .. } if monoid.is_arg());
    let pairs = kernel.statements().any(arg);
    pieces(kernel).filter(move |lanes| many && !pairs && width / lanes >= WARP_THREADS)
}

/// Columns of a tile of which so many bytes of each are kept.
pub(super) fn tile(nest: &Nest, kernel: &Kernel, kept_bytes: i64, gpu: &Target) -> i64 {
    let columns = &nest.parallel[nest.parallel.len() - nest.columns..];
    let mut extents = columns.iter().map(|v| kernel.extents[v.0 as usize].as_const());
    let all = extents.try_fold(1i64, |n, d| n.checked_mul(d?));
    match kept_bytes {
        0 => block_accumulators(all),
        bytes => resident_tile(all, bytes, gpu.shared_bytes),
    }
}

/// Columns of a tile whose rows threads share, where there are so few that a device with a thread for each would be idle: as many as leave
/// each multiprocessor some blocks, and at least 64 bytes of each row.
pub(super) fn few_columns(nest: &Nest, kernel: &Kernel, gpu: &Target) -> Option<i64> {
    let extent = |v: &VarId| kernel.extents[v.0 as usize].interval(kernel).hi;
    let all = nest.parallel.iter().fold(1i64, |n, v| n.saturating_mul(extent(v)));
    if all >= gpu.multiprocessors.saturating_mul(gpu.multiprocessor.threads) {
        return None;
    }
    let least = SHARED_ROW_BYTES / of_columns(kernel, &nest.parallel).max(1);
    let columns = nest.parallel.last().map_or(1, extent);
    let widths = std::iter::successors(Some(WIDEST_SHARED), |w| Some(w / 2)).take_while(|w| *w >= least);
    let blocks = |w: i64| (all / columns.max(1)).saturating_mul(columns.saturating_add(w - 1) / w);
    let enough = |w: &i64| blocks(*w) >= SHARED_BLOCKS * gpu.multiprocessors;
    widths.clone().find(enough).or(widths.last())
}

/// Bytes of the widest element that is read along the last of the parallel loops.
fn of_columns(kernel: &Kernel, parallel: &[VarId]) -> i64 {
    let along = |index: &IndexExpr| parallel.last().is_some_and(|v| index.uses(*v));
    let accesses = kernel.statements().flat_map(|s| s.accesses());
    let bytes = accesses.filter_map(|a| match a.memory {
        Memory::Param(p) if a.effect == Effect::Load && along(a.index) => Some(kernel.params[p as usize].dtype.bytes()),
        _ => None,
    });
    bytes.max().unwrap_or(1) as i64
}

/// Bytes that a block with a tile of columns shares, where so many of each are kept: those, accumulators, and what is the same
/// in all rows of a column.
pub(super) fn columns_shared(nest: &Nest, kernel: &Kernel, kept_bytes: i64, gpu: &Target) -> i64 {
    let width = tile(nest, kernel, kept_bytes, gpu);
    let accumulators = nest.kernel.scratch.iter().map(|s| shared(s, width));
    let body = nest
        .parallel
        .last()
        .and_then(|&v| tree::loop_body(&nest.kernel.body, v));
    let dear = body.into_iter().flatten().filter(|s| match s {
        Stmt::Let { op, .. } => own_cost(&nest.kernel, op) > MOST,
        _ => false,
    });
    let once = dear.count() as i64 * (width * 8 + SHARED_ALIGNMENT);
    let kept = (kernel.scratch.len() - nest.kernel.scratch.len() + 1) as i64 * SHARED_ALIGNMENT;
    let rows = kept_bytes.saturating_mul(width).saturating_add(once + kept);
    accumulators.fold(rows, i64::saturating_add)
}

impl Gpu {
    /// Groups of threads that share rows: as many as there are threads and rows for.
    fn groups(&self, column: VarId, rows: VarId, threads: i64) -> i64 {
        let most = |v: VarId| self.kernel.extents[v.0 as usize].interval(&self.kernel).hi.max(1);
        let groups = (threads / most(column)).min(most(rows) / SHARED_ROWS);
        1 << groups.max(1).ilog2()
    }

    /// A thread per so many neighbouring columns of a tile, or several that share their rows, up to so many in all.
    pub(super) fn columns(
        &mut self,
        nest: &Nest,
        width: i64,
        lanes: i64,
        sharing: Option<i64>,
    ) -> Result<(), DirectiveRefusal> {
        let (outer, axes) = nest.parallel.split_at(nest.parallel.len() - nest.columns);
        let axes = fuse_clean(&mut self.kernel, &mut self.schedule, axes);
        let mut parallel: Vec<VarId> = outer.iter().chain(&axes).copied().collect();
        let var = parallel.pop().ok_or(DirectiveRefusal::NoDivision)?;
        self.why = ScheduleReason::ColumnTile { columns: width };
        let made = self.apply(Directive::TileColumns { var, width })?;
        self.why = ScheduleReason::BlocksAndThreads;
        parallel.push(made[0]);
        let tile = self.one_loop(&parallel)?;
        self.bind(tile, Bind::Block)?;
        self.share_cache()?;
        self.why = ScheduleReason::BlocksAndThreads;
        for first in self.loops_inside(tile) {
            let chain = self.chain(first);
            let Some((&column, outer)) = chain.split_last() else {
                continue;
            };
            let mut column = column;
            let mut lane = None;
            if lanes > 1 {
                if !self.widen_where(&mut column, lanes, |g, lane| g.moves_together(lane, lanes)) {
                    return Err(DirectiveRefusal::Neighbours(lanes));
                }
                lane = self.chain(column).get(1).copied();
                self.why = ScheduleReason::BlocksAndThreads;
            }
            if self.kernel.extents[column.0 as usize].interval(&self.kernel).hi > MAX_BLOCK_THREADS {
                return Err(DirectiveRefusal::Threads(MAX_BLOCK_THREADS));
            }
            let mut outer = outer.to_vec();
            while let [.., around, inner] = outer[..] {
                let fused = Directive::Fuse { outer: around, inner };
                match sharing.map(|_| self.apply(fused)) {
                    Some(Ok(made)) => drop(outer.splice(outer.len() - 2.., made)),
                    _ => break,
                }
            }
            for &outer in outer.iter().rev() {
                self.apply(Directive::Interchange { outer, inner: column })?;
            }
            self.bind(column, Bind::Thread)?;
            if let (Some(threads), Some(&rows)) = (sharing, outer.first()) {
                let groups = self.groups(column, rows, threads);
                self.why = ScheduleReason::SharedRows { groups };
                self.apply(Directive::ShareRows {
                    thread: column,
                    rows,
                    lane,
                    groups,
                })?;
                self.why = ScheduleReason::BlocksAndThreads;
            } else if let Some(&rows) = outer.first() {
                // Refused for pairs of states, which then stay in shared memory.
                let _ = self.apply(Directive::Privatize { var: rows, lanes: lane });
            }
        }
        self.why = ScheduleReason::Order;
        self.apply(Directive::OneThread { block: tile })?;
        self.apply(Directive::Synchronize { block: tile }).map(drop)
    }
}
