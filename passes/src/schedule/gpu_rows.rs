//! The policy for rows on a GPU that a warp takes, or a part of one: what is kept of a row is in registers, and no thread waits at a barrier.

use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::visit::walk;
use tlc_ir::kernel::{Bind, Kernel, Memory, Scope, Stmt};
use tlc_ir::target::{MAX_BLOCK_THREADS, WARP_THREADS};

use super::gpu::{Gpu, in_blocks, pieces_of_rows};
use super::keep::{Room, keep_rows};
use super::{Schedule, ScheduleReason, flops};
use crate::directive::{Directive, DirectiveRefusal};
use crate::legalize::legal_block;
use crate::lower::Nest;
use crate::tree;

/// Rows of a block, a warp for each.
const WARPS: i64 = 4;
/// Rows from which on warps that take one each are enough for all of a device.
const MANY_ROWS: i64 = 1024;
/// Registers of a thread that may be full of what is kept of a row: with as many again for what is computed of it, a multiprocessor is half full
/// of threads.
const KEPT_REGISTERS: i64 = 32;
/// As [`KEPT_REGISTERS`], of a block of as many threads as there can be, which have no more registers than a multiprocessor for all of them.
const KEPT_REGISTERS_OF_MANY: i64 = 24;
/// Registers beside these that the elements of a turn may be in which not all threads have.
const BESIDE: i64 = 4;
/// Elements of a row that a thread takes at most.
const VALUES: i64 = 64;
/// Legalized statements of a thread that are copied out at most.
const STATEMENTS: u64 = 6000;

/// Rows that are too short for a warp, by parts of one.
pub(super) fn short_rows_by_parts(nest: &Nest) -> Option<(Kernel, Schedule)> {
    if !rows_lie_apart(&nest.kernel, &nest.parallel) {
        return None;
    }
    let mut kernel = nest.kernel.clone();
    let mut made = Schedule::default();
    let room = Room {
        operands: true,
        fits: &|_, _| Ok(()),
    };
    keep_rows(&mut kernel, &mut made, &nest.parallel, &room);
    made.flops = flops::flops(&kernel);
    let of = |lanes: i64| {
        let mut g = Gpu {
            kernel: kernel.clone(),
            schedule: made.clone(),
            why: ScheduleReason::BlocksAndThreads,
        };
        g.rows_by_parts(&nest.parallel, lanes).ok()?;
        Some(in_blocks(g.kernel, g.schedule))
    };
    pieces_of_rows(&kernel, &nest.parallel).chain([1]).find_map(of)
}

impl Gpu {
    /// A warp per row, of which each thread takes so many neighbouring elements at a time.
    pub(super) fn rows_by_warps(&mut self, parallel: &[VarId], lanes: i64) -> Result<(), DirectiveRefusal> {
        let row = self.one_loop(parallel)?;
        if self.kernel.extents[row.0 as usize].interval(&self.kernel).hi < MANY_ROWS {
            return Err(DirectiveRefusal::Factor(WARPS));
        }
        let nests = self.row_nests(row);
        let mut pieces = Vec::new();
        if lanes > 1 {
            pieces = self
                .row_pieces(&nests, (lanes, WARP_THREADS))?
                .into_iter()
                .map(|p| p.lane)
                .collect();
        }
        self.why = ScheduleReason::Vectors { lanes };
        for &lane in &pieces {
            self.bind(lane, Bind::Lanes)?;
        }
        self.why = ScheduleReason::RowsByWarps;
        self.share_rows(row, WARP_THREADS, pieces)
    }

    /// A part of a warp per row, whose threads take so many neighbouring elements each: as many as leave the fewest threads without any.
    pub(super) fn rows_by_parts(&mut self, parallel: &[VarId], lanes: i64) -> Result<(), DirectiveRefusal> {
        let row = self.one_loop(parallel)?;
        let nests = self.row_nests(row);
        let extent = |v: VarId| self.kernel.extents[v.0 as usize].interval(&self.kernel).hi;
        let longest = nests.iter().map(|n| extent(n.1)).max().unwrap_or(1);
        // Two threads at least, so that each has elements of its own.
        if longest < 2 * lanes || longest > lanes * WARP_THREADS {
            return Err(DirectiveRefusal::Factor(lanes));
        }
        let threads = ((longest + lanes - 1) / lanes)
            .cast_unsigned()
            .next_power_of_two()
            .cast_signed();
        let mut pieces = Vec::new();
        if lanes > 1 {
            let made = self.row_pieces(&nests, (lanes, 1))?;
            pieces.extend(made.into_iter().map(|p| p.lane));
        }
        self.why = ScheduleReason::Vectors { lanes };
        for &lane in &pieces {
            self.bind(lane, Bind::Lanes)?;
        }
        self.why = ScheduleReason::RowsByParts { threads };
        self.share_rows(row, threads, pieces)
    }

    /// Gives rows to so many threads each, of which each has what of it alone touches in registers.
    fn share_rows(&mut self, row: VarId, threads: i64, pieces: Vec<VarId>) -> Result<(), DirectiveRefusal> {
        let (var, warps) = (row, WARPS);
        self.apply(Directive::RowsByWarps { var, warps, threads })?;
        self.keep_in_registers(None)?;
        self.accumulate_apart(pieces)
    }

    /// Gives each of the lanes of loops an accumulator of its own, where they accumulate.
    pub(super) fn accumulate_apart(&mut self, lanes: Vec<VarId>) -> Result<(), DirectiveRefusal> {
        for lane in lanes {
            if self.accumulates(lane) {
                self.why = ScheduleReason::Accumulators;
                let around = self.outermost_of_thread(lane);
                self.apply(Directive::RFactor { var: lane, around })?;
            }
        }
        Ok(())
    }

    /// Has each thread hold what of cache scratch it alone touches in registers, and its turns copied out, in all of a kernel or in a loop.
    pub(super) fn keep_in_registers(&mut self, inside: Option<VarId>) -> Result<(), DirectiveRefusal> {
        for scratch in self.cache_scratch() {
            self.hold(scratch, KEPT_REGISTERS, inside)?;
        }
        for var in turns(body_of(&self.kernel, inside), false) {
            self.copy_out(var)?;
        }
        Ok(())
    }

    /// Has each thread of a block with a row hold what of cache scratch it alone touches in registers, where there are enough.
    pub(super) fn hold_what_fits(&mut self, threads: i64) {
        let most = match threads < MAX_BLOCK_THREADS {
            true => KEPT_REGISTERS,
            false => KEPT_REGISTERS_OF_MANY,
        };
        for scratch in self.cache_scratch() {
            let before = (self.kernel.clone(), self.schedule.clone());
            if self.hold(scratch, most, None).is_err() {
                (self.kernel, self.schedule) = before;
            }
        }
    }

    fn cache_scratch(&self) -> Vec<u32> {
        let all = self.kernel.scratch.iter().enumerate();
        let cache = all.filter(|(_, s)| s.scope == Scope::Cache);
        cache.map(|(i, _)| i as u32).collect()
    }

    /// Has each thread hold its elements of a scratch in registers, if all that it holds in a kernel, or in a loop, does not take more than so many.
    fn hold(&mut self, scratch: u32, most: i64, inside: Option<VarId>) -> Result<(), DirectiveRefusal> {
        self.why = ScheduleReason::Registers;
        self.apply(Directive::Own { scratch })?;
        let body = body_of(&self.kernel, inside);
        let held = registers_held(&self.kernel, body);
        // Where the last turn is not whole, what it leaves takes as many registers as it computes.
        let beside = masked_lanes(body, &self.kernel);
        if held > most || held + beside > most + BESIDE {
            return Err(DirectiveRefusal::ScratchScope(Scope::Thread));
        }
        for var in turns(&self.kernel.body, false) {
            let body = tree::loop_body(&self.kernel.body, var).map_or(&[][..], |b| &b[..]);
            if touches(body, scratch) {
                self.copy_out(var)?;
            }
        }
        Ok(())
    }

    /// Has the turns of a thread copied out, if there are few.
    fn copy_out(&mut self, var: VarId) -> Result<(), DirectiveRefusal> {
        let body = tree::loop_body(&self.kernel.body, var).map_or(&[][..], |b| &b[..]);
        let turns = self.kernel.extents[var.0 as usize].as_const();
        let values = copies(&self.kernel, body)
            .zip(turns)
            .map(|(each, n)| each.saturating_mul(n));
        let statements = |n: i64| legal_block(&self.kernel, body).saturating_mul(n.cast_unsigned());
        match values.is_some_and(|n| n <= VALUES && statements(n) <= STATEMENTS) {
            true => self.bind(var, Bind::Unroll),
            false => Err(DirectiveRefusal::NotConstant(var)),
        }
    }
}

/// Whether what threads with a row each would touch at the same time of tensors lies apart, and what threads that share rows would touch side by
/// side. Windows that overlap, and rows across which memory goes, are for a thread each.
pub(super) fn rows_lie_apart(kernel: &Kernel, parallel: &[VarId]) -> bool {
    let Some((row, body)) = parallel
        .last()
        .and_then(|&v| Some((v, tree::loop_body(&kernel.body, v)?)))
    else {
        return false;
    };
    let of_loops = || {
        body.iter()
            .filter(|s| matches!(s, Stmt::Loop { .. }))
            .flat_map(|s| walk(std::slice::from_ref(s)))
    };
    let inside: Vec<VarId> = of_loops().flat_map(|s| s.defined_vars()).copied().collect();
    let step = |index: &IndexExpr, v: VarId| index.affine_in(v).map(|(c, _)| c);
    let mut accesses = of_loops().flat_map(|s| s.accesses());
    accesses.all(|a| {
        let mut along = inside.iter().filter(|v| a.index.uses(**v)).peekable();
        if !matches!(a.memory, Memory::Param(_)) || along.peek().is_none() {
            return true;
        }
        let Some(&along) = along.find(|v| step(a.index, **v).is_some_and(|c| c.is(1))) else {
            return false;
        };
        let length = kernel.extents[along.0 as usize].interval(kernel).hi;
        let apart = |c: IndexExpr| c.as_const().is_none_or(|c| c >= length);
        !a.index.uses(row) || step(a.index, row).is_some_and(apart)
    })
}

/// How often the innermost statements are executed, if the loops around them are of constant length.
fn copies(kernel: &Kernel, body: &[Stmt]) -> Option<i64> {
    body.iter().try_fold(1i64, |most, s| {
        let each = copies(kernel, s.body())?;
        let n = match s {
            Stmt::Loop { var, .. } => kernel.extents[var.0 as usize].as_const()?,
            _ => 1,
        };
        Some(most.max(each.saturating_mul(n)))
    })
}

/// Lanes of loops that a condition on the number of a turn is around; 1 if these are none, and none without such a condition.
fn masked_lanes(body: &[Stmt], kernel: &Kernel) -> i64 {
    let of = |s: &Stmt| match s {
        Stmt::If { body, .. } => copies(kernel, body).unwrap_or(1),
        _ => 0,
    };
    walk(body).map(of).max().unwrap_or(0)
}

/// Whether statements touch a scratch.
fn touches(body: &[Stmt], scratch: u32) -> bool {
    let mut accesses = walk(body).flat_map(|s| s.accesses());
    accesses.any(|a| a.memory == Memory::Scratch(scratch))
}

/// The serial loops of threads, the outermost of each nest.
fn turns(body: &[Stmt], in_thread: bool) -> Vec<VarId> {
    let mut out = Vec::new();
    for s in body {
        match s {
            Stmt::Loop {
                var,
                bind: Bind::Serial,
                body,
            } if in_thread => {
                out.push(*var);
                out.extend(turns(body, true));
            }
            Stmt::Loop { bind, body, .. } => out.extend(turns(body, in_thread || *bind == Bind::Thread)),
            s => out.extend(turns(s.body(), in_thread)),
        }
    }
    out
}

/// The body of a loop, or of the kernel.
fn body_of(kernel: &Kernel, inside: Option<VarId>) -> &[Stmt] {
    let found = inside.and_then(|v| tree::loop_body(&kernel.body, v));
    found.unwrap_or(&kernel.body)
}

/// Registers that hold scratch of a thread's own at once: from the part of these statements that sets it to the last one that uses it.
fn registers_held(kernel: &Kernel, body: &[Stmt]) -> i64 {
    let mut parts: Vec<&[Stmt]> = Vec::new();
    for s in walk(body) {
        if let Stmt::Loop {
            bind: Bind::Thread,
            body,
            ..
        } = s
        {
            parts.extend(body.iter().map(std::slice::from_ref));
        }
    }
    let mut live = vec![0i64; parts.len() + 1];
    for (i, s) in kernel.scratch.iter().enumerate() {
        let Some(len) = s.len.as_const().filter(|n| s.scope == Scope::Thread && *n > 1) else {
            continue;
        };
        let places: Vec<usize> = (0..parts.len()).filter(|&p| touches(parts[p], i as u32)).collect();
        if let (Some(&first), Some(&last)) = (places.first(), places.last()) {
            let registers = len * (s.dtype.bytes() as i64).div_euclid(4).max(1);
            // Where one takes the place of another, element by element, both need the room of one.
            live[first + 1..=last].iter_mut().for_each(|n| *n += registers);
        }
    }
    live.into_iter().max().unwrap_or(0)
}
