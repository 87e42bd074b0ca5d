//! Groups of launches of a GPU: which independent launches are one, whose grid has the blocks of all of them.
//!
//! Small launches that do not depend on each other leave multiprocessors idle, and each takes time to begin. As one they begin once, and
//! their blocks fill the device together. So those are grouped that take no longer than a few launches take to begin, of one kind: updates
//! of states, of which an optimizer has hundreds, and launches that write few bytes in the arena, for what a group writes is there from
//! when its first launch begins, and in none of the bytes that another of it reads.
//!
//! What runs as part of a group has a block of as many threads, and of as much shared memory, as the largest of it, and registers as the most
//! demanding. So only such launches are grouped that find room for half of the threads that a multiprocessor can hold, or for as many as when they
//! are launched alone, and that multiply no matrices, for sums of products are kept in as many registers as there are: all others are
//! compiled for half of the threads ([`half_full_blocks`](tlc_ir::target::half_full_blocks)). A launch of no more blocks than there are
//! multiprocessors has one for each of them either way.
//!
//! What the caller gives is copied to a device before the first step that reads it. Where a launch could come to a group but for such copies, they go
//! ahead of the group, as long as these bytes, which then live from there, are few.
//!
//! Invariant: steps change places only with steps that they touch no bytes in common with that one of them writes.

use rustc_hash::FxHashSet;
use tlc_ir::index::IndexExpr;
use tlc_ir::kernel::Stmt;
use tlc_ir::plan::{DeviceId, KernelId, Launch, Plan, SlotId, Step, Storage, Work};
use tlc_ir::target::{Gpu, MAX_GRID_BLOCKS, MOST_GROUP_VALUES, WARP_THREADS, group_values};

use crate::groups::{Regrouped, Touched, updates};
use crate::launch::LaunchReport;
use crate::sequences::Symbols;

/// A launch that takes so many times as long as to begin one gains nothing worth mentioning.
const MOST_BEGINNINGS: f64 = 8.0;
/// Bytes that the launches of a group write in the arena at most.
pub(crate) const MOST_WRITTEN_BYTES: i64 = 4 << 20;
/// Bytes that are copied ahead of a group at most.
const MOST_COPIED_BYTES: i64 = 4 << 20;
/// Distinct kernels of a group: they are compiled together, by one thread.
const MOST_KERNELS: usize = 16;
/// Groups that further launches may come to, of each kind: so many steps of chains beside each other are grouped level by level.
const OPEN: usize = 4;

/// What of a launch decides whether it may be one with others.
struct Candidate {
    device: DeviceId,
    kernel: KernelId,
    /// All that it writes is new values of states.
    updates: bool,
    blocks: i64,
    threads: i64,
    shared_bytes: i64,
    /// Addresses and symbols that it is given.
    values: usize,
    /// Bytes that it writes in the arena.
    written_bytes: i64,
}

impl Candidate {
    /// Of a step; none of one that is no launch of a GPU, or one that is better alone.
    fn of(step: &Step, plan: &Plan, gpus: &[Option<&Gpu>]) -> Option<Candidate> {
        let Step::Launch(l) = step else { return None };
        let Work::Grid(grid) = &l.work else { return None };
        let device = plan.slots[l.args.first()?.0 as usize].device;
        let gpu = (*gpus.get(device.0 as usize)?)?;
        let most = |e: &IndexExpr| e.interval(&Symbols(plan)).hi;
        let seconds = (most(&l.bytes) as f64 / gpu.bytes_per_second.max(1.0))
            .max(most(&l.flops) as f64 / gpu.f32_flops_per_second.max(1.0));
        let kernel = &plan.kernels[l.kernel.0 as usize];
        let asks_for_registers = kernel.residents > 0 || kernel.statements().any(|s| matches!(s, Stmt::Contract(_)));
        // Swizzled memory has its place in a kernel of its own.
        let alone = asks_for_registers || kernel.scratch.iter().any(|s| s.swizzled);
        let candidate = Candidate {
            device,
            kernel: l.kernel,
            updates: !plan.states.is_empty() && updates(step, plan),
            blocks: most(&grid.blocks).max(0),
            threads: grid.threads,
            shared_bytes: grid.shared_bytes,
            values: l.args.len() + l.symbols.len(),
            written_bytes: written_bytes(l, plan),
        };
        let fits = candidate.written_bytes <= MOST_WRITTEN_BYTES && candidate.blocks as u64 <= MAX_GRID_BLOCKS;
        (!alone && fits && seconds <= MOST_BEGINNINGS * gpu.launch_seconds).then_some(candidate)
    }
}

/// The most bytes that a launch writes in the arena.
pub(crate) fn written_bytes(l: &Launch, plan: &Plan) -> i64 {
    let params = &plan.kernels[l.kernel.0 as usize].params;
    let written = l.args.iter().zip(params);
    let written = written.filter(|(_, p)| p.access != tlc_ir::kernel::Access::Read);
    let in_arena = written.filter(|(s, _)| plan.slots[plan.root(**s).0 as usize].storage == Storage::Arena);
    in_arena.fold(0, |sum, (s, _)| {
        let slot = &plan.slots[s.0 as usize];
        let most = slot.len.interval(&Symbols(plan)).hi;
        sum.saturating_add(most.saturating_mul(slot.dtype.bytes() as i64))
    })
}

/// A step that further launches may come to.
struct Open {
    /// Its number.
    at: usize,
    device: DeviceId,
    updates: bool,
    launches: usize,
    values: usize,
    blocks: i64,
    threads: i64,
    shared_bytes: i64,
    written_bytes: i64,
    /// Bytes that are copied ahead of it.
    copied_bytes: i64,
    kernels: FxHashSet<KernelId>,
    /// Threads and bytes of shared memory of the blocks of those launches that have more of them than there are multiprocessors, each once.
    filling: Vec<(i64, i64)>,
    /// What it touches.
    touched: Touched,
    /// What the steps behind it touch.
    behind: Touched,
}

impl Open {
    fn new(at: usize, of: &Candidate, step: &Step, plan: &Plan, gpu: &Gpu) -> Open {
        let mut open = Open {
            at,
            device: of.device,
            updates: of.updates,
            launches: 0,
            values: 0,
            blocks: 0,
            threads: 0,
            shared_bytes: 0,
            written_bytes: 0,
            copied_bytes: 0,
            kernels: FxHashSet::default(),
            filling: Vec::new(),
            touched: Touched::default(),
            behind: Touched::default(),
        };
        open.add(of, step, plan, gpu);
        open
    }

    fn add(&mut self, of: &Candidate, step: &Step, plan: &Plan, gpu: &Gpu) {
        self.launches += 1;
        self.values += of.values;
        self.blocks += of.blocks;
        self.threads = self.threads.max(of.threads);
        self.shared_bytes = self.shared_bytes.max(of.shared_bytes);
        self.written_bytes += of.written_bytes;
        self.kernels.insert(of.kernel);
        let block = (of.threads, of.shared_bytes);
        if of.blocks > gpu.multiprocessors && !self.filling.contains(&block) {
            self.filling.push(block);
        }
        self.touched.add(step, plan);
    }

    /// Whether a launch may come to it, which touches nothing in common with what is between them that one of both writes.
    fn takes(&self, of: &Candidate, step: &Step, plan: &Plan, gpu: &Gpu) -> bool {
        let kernels = self.kernels.len() + usize::from(!self.kernels.contains(&of.kernel));
        let values = group_values(self.launches + 1, self.values + of.values);
        self.device == of.device
            && self.updates == of.updates
            && kernels <= MOST_KERNELS
            && values <= MOST_GROUP_VALUES
            && self.blocks.saturating_add(of.blocks) as u64 <= MAX_GRID_BLOCKS
            && self.written_bytes.saturating_add(of.written_bytes) <= MOST_WRITTEN_BYTES
            && self.leaves_room(of, gpu)
            && self.touched.leaves_alone(step, plan)
    }

    /// Whether multiprocessors are as full of each launch's threads as they should be.
    fn leaves_room(&self, of: &Candidate, gpu: &Gpu) -> bool {
        let of_machine = &gpu.multiprocessor;
        let threads = self.threads.max(of.threads);
        let shared = self.shared_bytes.max(of.shared_bytes);
        let together = of_machine.occupancy(threads, shared, None).blocks;
        let fills = of.blocks > gpu.multiprocessors;
        let own = fills.then_some((of.threads, of.shared_bytes));
        self.filling.iter().copied().chain(own).all(|(threads, shared)| {
            let alone = of_machine.occupancy(threads, shared, None);
            let enough = alone.threads.min(alone.most_threads / 2);
            let warps = (threads + WARP_THREADS - 1) / WARP_THREADS;
            together * warps * WARP_THREADS >= enough
        })
    }
}

/// A copy of what the caller gives to a device, which may come earlier.
struct Early {
    /// Its number.
    at: usize,
    /// The slot that it writes, which no step before it touches.
    dst: SlotId,
    bytes: i64,
}

impl Early {
    fn of(step: &Step, at: usize, touched: &FxHashSet<SlotId>, plan: &Plan) -> Option<Early> {
        let Step::Copy { src, dst } = step else { return None };
        let [from, to] = [src, dst].map(|s| &plan.slots[s.0 as usize]);
        let may = matches!(from.storage, Storage::Input(_))
            && from.device == DeviceId::HOST
            && to.device != DeviceId::HOST
            && to.storage == Storage::Arena
            && !touched.contains(dst);
        let bytes = to
            .len
            .interval(&Symbols(plan))
            .hi
            .saturating_mul(to.dtype.bytes() as i64);
        may.then_some(Early { at, dst: *dst, bytes })
    }
}

/// The copies behind a step, by their places among all, that must come before it for a launch to come to it.
fn needed(early: &[Early], behind: usize, step: &Step, plan: &Plan) -> Vec<usize> {
    let mut touched: FxHashSet<SlotId> = FxHashSet::default();
    let mut touch = |s: SlotId, _| {
        touched.insert(plan.root(s));
    };
    step.visit_slots(&mut touch, &plan.kernels);
    let all = early.iter().enumerate();
    all.filter(|(_, e)| e.at > behind && touched.contains(&e.dst))
        .map(|(k, _)| k)
        .collect()
}

/// Joins independent launches of a GPU into groups. `gpus` says by device what it is; none where launches stay apart. `in_place` has a list
/// for each step, and `launches` a report for each launch of the plan, in order; both move along.
pub(crate) fn group_launches(
    plan: &mut Plan,
    in_place: &mut Vec<Vec<(SlotId, SlotId)>>,
    launches: &mut Vec<LaunchReport>,
    gpus: &[Option<&Gpu>],
) {
    if gpus.iter().all(Option::is_none) {
        return;
    }
    let (mut made, all) = Regrouped::begin(plan, in_place, launches);
    // Ascending.
    let mut open: Vec<Open> = Vec::new();
    // In the order of the steps.
    let mut early: Vec<Early> = Vec::new();
    let mut touched: FxHashSet<SlotId> = FxHashSet::default();
    for (step, pairs, reports) in all {
        let copy = Early::of(&step, made.steps.len(), &touched, plan);
        let mut touch = |s: SlotId, _| {
            touched.insert(plan.root(s));
        };
        step.visit_slots(&mut touch, &plan.kernels);
        if let Some(copy) = copy {
            early.push(copy);
            made.push(step, pairs, reports);
            continue;
        }
        let candidate = Candidate::of(&step, plan, gpus);
        let gpu = candidate.as_ref().and_then(|c| gpus[c.device.0 as usize]);
        let found = candidate.as_ref().zip(gpu);
        let found = found.and_then(|(c, gpu)| place((&open, &early), c, &step, plan, gpu));
        let joined = found.unwrap_or(open.len());
        open[..joined].iter_mut().for_each(|o| o.behind.add(&step, plan));
        let (Some(number), Some(candidate), Some(gpu)) = (found, &candidate, gpu) else {
            if let Some((candidate, gpu)) = candidate.as_ref().zip(gpu) {
                let of_kind = |o: &Open| o.updates == candidate.updates;
                if open.iter().filter(|o| of_kind(o)).count() == OPEN
                    && let Some(oldest) = open.iter().position(of_kind)
                {
                    open.remove(oldest);
                }
                open.push(Open::new(made.steps.len(), candidate, &step, plan, gpu));
            } else if matches!(step, Step::Loop(_) | Step::Call(_)) {
                // Sizes may be known from here on that were not before.
                open.clear();
            }
            made.push(step, pairs, reports);
            continue;
        };
        for k in needed(&early, open[number].at, &step, plan) {
            let (to, from) = (open[number].at, early[k].at);
            made.hoist(from, to);
            // What was between is one further behind.
            let between = |at: usize| usize::from((to..from).contains(&at));
            open.iter_mut().for_each(|o| o.at += between(o.at));
            early.iter_mut().for_each(|e| e.at += between(e.at));
            early[k].at = to;
            open[number].copied_bytes += early[k].bytes;
        }
        early.sort_by_key(|e| e.at);
        let group = &mut open[number];
        group.add(candidate, &step, plan, gpu);
        let Step::Launch(launch) = step else {
            unreachable!("only launches are candidates")
        };
        made.join(group.at, launch, pairs, reports);
    }
    for (step, reports) in made.steps.iter_mut().zip(&mut made.reports) {
        if let Step::Group(all) = step
            && all.iter().any(|l| matches!(l.work, Work::Grid(_)))
        {
            by_kernel(all, reports);
        }
    }
    made.end(plan, in_place, launches);
}

/// The first open step that a launch may come to.
fn place(
    (open, early): (&[Open], &[Early]),
    candidate: &Candidate,
    step: &Step,
    plan: &Plan,
    gpu: &Gpu,
) -> Option<usize> {
    let mut found = None;
    for (number, o) in open.iter().enumerate().rev() {
        if !o.behind.leaves_alone(step, plan) {
            break;
        }
        let copied = needed(early, o.at, step, plan);
        let copied = copied
            .iter()
            .fold(o.copied_bytes, |n, &k| n.saturating_add(early[k].bytes));
        if o.takes(candidate, step, plan, gpu) && copied <= MOST_COPIED_BYTES {
            found = Some(number);
        }
    }
    found
}

/// Has launches of one kernel follow each other, the kernels in the order in which they appear first, and so the reports of them, where
/// there are some.
fn by_kernel(all: &mut Vec<Launch>, reports: &mut Vec<LaunchReport>) {
    let mut kernels: Vec<KernelId> = Vec::new();
    for l in all.iter() {
        if !kernels.contains(&l.kernel) {
            kernels.push(l.kernel);
        }
    }
    let rank = |l: &Launch| kernels.iter().position(|k| *k == l.kernel);
    let mut order: Vec<usize> = (0..all.len()).collect();
    order.sort_by_key(|&n| rank(&all[n]));
    if reports.len() == all.len() {
        *reports = order.iter().map(|&n| reports[n].clone()).collect();
    }
    *all = order.iter().map(|&n| all[n].clone()).collect();
}
