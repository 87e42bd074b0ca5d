//! Sequences: which launches of a GPU one block does in turn, as one launch.
//!
//! Small launches that follow each other take longer to begin than to run. Where each has one block, or so few that one block does them
//! all in less time than it takes to begin a launch, nothing is lost if one multiprocessor does them: a barrier of the block orders what
//! they read and write. What a sequence touches lives until all of it is done, so that only launches come to one that move few bytes. A group
//! of launches (`grids`) is as one with the blocks of all: it stays a grid of its own where one block would take longer.
//!
//! Invariant: launches keep their order, and go past nothing but copies that touch no bytes in common with them that one of both writes.

use tlc_ir::index::{Bounds, IndexExpr, Interval, SymId, VarId};
use tlc_ir::kernel::Stmt;
use tlc_ir::plan::{DeviceId, Launch, Plan, SlotId, Step, Work};
use tlc_ir::target::{Gpu, MAX_BLOCK_THREADS, MOST_PARAMETER_VALUES};

use crate::groups::Touched;

/// The most launches of a sequence.
const MOST_LAUNCHES: usize = 64;
/// Bytes that a sequence of launches moves at most.
const MOST_BYTES: i64 = 1 << 20;
/// A launch that takes so many times as long as to begin one gains nothing worth mentioning.
const MOST_BEGINNINGS: f64 = 8.0;
/// Seconds from which on a block has what it loaded, computed with it and stored it, however little that is.
pub(crate) const BLOCK_SECONDS: f64 = 0.4e-6;
/// Threads of a block beside which each may have as many registers as the products of a warp ask for.
const THREADS_OF_PRODUCTS: i64 = 256;

/// A sequence that further launches may come to.
struct Open {
    /// Its number among the steps.
    at: usize,
    device: DeviceId,
    launches: usize,
    values: usize,
    bytes: i64,
    threads: i64,
    multiplies: bool,
    /// What the steps behind it touch.
    behind: Touched,
}

/// What of a launch, or of those of a group, decides whether one block may do it in turn with others.
struct Small {
    device: DeviceId,
    launches: usize,
    values: usize,
    bytes: i64,
    threads: i64,
    multiplies: bool,
}

/// The ranges of a plan's symbols.
pub(crate) struct Symbols<'p>(pub(crate) &'p Plan);

impl Bounds for Symbols<'_> {
    fn symbol(&self, sym: SymId) -> Interval {
        let known = self.0.symbols.get(sym.0 as usize);
        known.map_or(Interval::new(0, i64::MAX), |s| Interval::new(s.lo, s.hi))
    }

    fn extent(&self, _: VarId) -> Option<IndexExpr> {
        None
    }
}

impl Small {
    /// Of a step; none of one that is no launch, or a group of them, or one that gains from several multiprocessors or takes long.
    fn of(step: &Step, plan: &Plan, gpus: &[Option<&Gpu>]) -> Option<Small> {
        let (Step::Launch(_) | Step::Group(_)) = step else {
            return None;
        };
        let all = step.launches();
        let device = plan.slots[all.first()?.args.first()?.0 as usize].device;
        let gpu = (*gpus.get(device.0 as usize)?)?;
        let most = |e: &IndexExpr| e.interval(&Symbols(plan)).hi;
        let (mut blocks, mut bytes, mut flops) = (0i64, 0i64, 0i64);
        let mut small = Small {
            device,
            launches: all.len(),
            values: 0,
            bytes: 0,
            threads: 1,
            multiplies: false,
        };
        for l in all {
            let Work::Grid(grid) = &l.work else { return None };
            blocks = blocks.saturating_add(most(&grid.blocks).max(1));
            bytes = bytes.saturating_add(most(&l.bytes));
            flops = flops.saturating_add(most(&l.flops));
            // How many blocks it has is one more.
            small.values += 1 + l.args.len() + l.symbols.len();
            small.threads = small.threads.max(grid.threads);
            let kernel = &plan.kernels[l.kernel.0 as usize];
            small.multiplies |= kernel.statements().any(|s| matches!(s, Stmt::Contract(_)));
            // Swizzled memory has its place in a kernel of its own.
            if kernel.scratch.iter().any(|s| s.swizzled) {
                return None;
            }
        }
        small.bytes = bytes;
        let block = block_seconds(gpu, blocks, bytes, flops);
        let lost = (blocks - 1) as f64 * block;
        let is_small = bytes <= MOST_BYTES
            && small.threads <= MAX_BLOCK_THREADS
            && lost <= gpu.launch_seconds / 2.0
            && block * blocks as f64 <= MOST_BEGINNINGS * gpu.launch_seconds;
        is_small.then_some(small)
    }

    fn open(&self, at: usize) -> Open {
        Open {
            at,
            device: self.device,
            launches: self.launches,
            values: self.values,
            bytes: self.bytes,
            threads: self.threads,
            multiplies: self.multiplies,
            behind: Touched::default(),
        }
    }
}

/// What one of so many blocks takes on a multiprocessor that it has for itself.
fn block_seconds(gpu: &Gpu, blocks: i64, bytes: i64, flops: i64) -> f64 {
    let each = blocks.max(1) as f64;
    let own = |per_second: f64| per_second / gpu.multiprocessors.max(1) as f64;
    let moved = bytes as f64 / each / own(gpu.bytes_per_second).max(1.0);
    let computed = flops as f64 / each / own(gpu.f32_flops_per_second).max(1.0);
    BLOCK_SECONDS + moved.max(computed)
}

impl Open {
    /// Whether a launch may come to it.
    fn takes(&self, small: &Small, step: &Step, plan: &Plan) -> bool {
        let threads = self.threads.max(small.threads);
        self.device == small.device
            && self.launches + small.launches <= MOST_LAUNCHES
            && self.values + small.values <= MOST_PARAMETER_VALUES
            && self.bytes.saturating_add(small.bytes) <= MOST_BYTES
            && (threads <= THREADS_OF_PRODUCTS || !(self.multiplies || small.multiplies))
            && self.behind.leaves_alone(step, plan)
    }

    fn add(&mut self, small: &Small) {
        self.launches += small.launches;
        self.values += small.values;
        self.bytes += small.bytes;
        self.threads = self.threads.max(small.threads);
        self.multiplies |= small.multiplies;
    }
}

/// Joins launches that one block may do in turn. `gpus` says by device what it is; none where launches stay apart. `in_place` has a list
/// for each step, and moves along.
pub fn join_launches(plan: &mut Plan, in_place: &mut Vec<Vec<(SlotId, SlotId)>>, gpus: &[Option<&Gpu>]) {
    if gpus.iter().all(Option::is_none) {
        return;
    }
    let mut steps: Vec<Step> = Vec::with_capacity(plan.steps.len());
    let mut pairs: Vec<Vec<(SlotId, SlotId)>> = Vec::with_capacity(plan.steps.len());
    let mut open: Option<Open> = None;
    let all = std::mem::take(&mut plan.steps).into_iter();
    for (step, pair) in all.zip(std::mem::take(in_place)) {
        let small = Small::of(&step, plan, gpus);
        if let (Some(o), Some(small)) = (&mut open, &small)
            && o.takes(small, &step, plan)
        {
            o.add(small);
            pairs[o.at].extend(pair);
            join(&mut steps[o.at], step);
            continue;
        }
        match (&step, &mut open, small) {
            (_, _, Some(small)) => open = Some(small.open(steps.len())),
            (Step::Copy { .. }, Some(o), None) => o.behind.add(&step, plan),
            _ => open = None,
        }
        steps.push(step);
        pairs.push(pair);
    }
    for (step, pairs) in steps.iter().zip(&mut pairs) {
        if let Step::Sequence(all) = step {
            pairs.retain(|&(read, written)| stays_in_place(all, read, written, plan));
        }
    }
    plan.steps = steps;
    *in_place = pairs;
}

/// Puts a launch, or the launches of a group, behind those of a step.
fn join(step: &mut Step, next: Step) {
    let mut all = match std::mem::replace(step, Step::Sequence(Vec::new())) {
        Step::Sequence(all) | Step::Group(all) => all,
        Step::Launch(first) => vec![first],
        other => {
            *step = other;
            unreachable!("only launches and groups of them are small")
        }
    };
    match next {
        Step::Launch(next) => all.push(next),
        Step::Group(next) => all.extend(next),
        _ => unreachable!("only launches and groups of them are small"),
    }
    *step = Step::Sequence(all);
}

/// Whether a launch that could write where it reads still can: no other touches what it reads, and none before it what it writes.
fn stays_in_place(all: &[Launch], read: SlotId, written: SlotId, plan: &Plan) -> bool {
    let touches = |l: &Launch, slot: SlotId| l.args.iter().any(|s| plan.root(*s) == plan.root(slot));
    let mut readers = (0..all.len()).filter(|&k| touches(&all[k], read));
    let (Some(own), None) = (readers.next(), readers.next()) else {
        return false;
    };
    !all[..own].iter().any(|l| touches(l, written))
}
