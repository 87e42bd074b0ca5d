//! Which queue each step is in, and what it waits for.
//!
//! A GPU has three queues: one of kernels and products, one of copies that bring bytes to it and one of those that take them away, so
//! that copies go on while kernels run. Where launches that do not depend on each other leave most of its multiprocessors idle, it has a
//! second one of kernels, and runs them beside each other. A step waits for the steps of other queues that it depends on: those that write
//! what it reads, and those that touch what it writes. What another wait or its own queue implies is left out.
//!
//! A launch goes to the second queue if it then ends earlier than behind those of the first one, each wait for another queue taken to cost
//! what a launch takes to begin, and stays there only if the launches that go there one behind another take longer than their waits. What fills
//! the device gains nothing beside others: it waits for the second queue, and that for it, so that only what small launches in a row write
//! lives longer. One of these writes so many bytes in the arena at most as a group of launches does.

use smallvec::SmallVec;
use tlc_ir::index::IndexExpr;
use tlc_ir::plan::order::{Clock, Order};
use tlc_ir::plan::{DeviceId, Launch, Plan, QueueId, SlotId, Step, Turn, Work};
use tlc_ir::target::Gpu;

use crate::grids::{MOST_WRITTEN_BYTES, written_bytes};
use crate::sequences::{BLOCK_SECONDS, Symbols};

/// How often launches are given to queues again, without what the waits cost more than it gained.
const ROUNDS: usize = 8;

/// Queues that every GPU has.
const EACH: u32 = 3;

/// The device of each queue of a plan for so many devices, of which none has a second queue of kernels.
pub(super) fn queues(devices: usize) -> Vec<DeviceId> {
    let gpus = (1..devices as u32).flat_map(|d| [DeviceId(d); EACH as usize]);
    std::iter::once(DeviceId::HOST).chain(gpus).collect()
}

/// The second queue of kernels of a GPU: those of all GPUs are behind the other queues.
fn second(plan: &Plan, device: DeviceId) -> QueueId {
    let gpus = plan.devices.len() as u32 - 1;
    QueueId(1 + EACH * gpus + device.0 - 1)
}

/// Gives a plan, and the bodies of its loops, a second queue of kernels for each GPU.
fn add_second_queues(plan: &mut Plan) {
    let devices = plan.devices.len();
    plan.queues = queues(devices);
    plan.queues.extend((1..devices as u32).map(DeviceId));
    for step in plan.init.iter_mut().chain(&mut plan.steps) {
        if let Step::Loop(l) = step {
            add_second_queues(&mut l.body);
        }
    }
}

/// The device whose kernels' queue a step is in, with the host's for its own; none of a copy between devices.
fn runner(plan: &Plan, step: &Step) -> Option<DeviceId> {
    let device = |slot: SlotId| plan.slots[slot.0 as usize].device;
    match step {
        Step::Copy { src, dst } => (device(*src) == device(*dst)).then(|| device(*dst)),
        Step::Loop(_) | Step::Call(_) => Some(DeviceId::HOST),
        Step::Launch(_) | Step::Group(_) | Step::Sequence(_) | Step::Gemm(_) => {
            let mut first = None;
            step.visit_slots(&mut |s, _| first = first.or(Some(device(s))), &plan.kernels);
            Some(first.unwrap_or(DeviceId::HOST))
        }
    }
}

/// The queue of a step, of kernels the first.
fn queue(plan: &Plan, step: &Step) -> QueueId {
    let device = |slot: SlotId| plan.slots[slot.0 as usize].device;
    let (device, kind) = match (runner(plan, step), step) {
        (Some(device), _) => (device, 0),
        (None, Step::Copy { src, dst }) => match (device(*src), device(*dst)) {
            (from, DeviceId::HOST) => (from, 2),
            (_, to) => (to, 1),
        },
        (None, _) => unreachable!("all but copies are one device's"),
    };
    match device {
        DeviceId::HOST => QueueId::HOST,
        device => QueueId(1 + EACH * (device.0 - 1) + kind),
    }
}

/// What a step takes of the GPU that runs it.
struct Share {
    device: DeviceId,
    /// Seconds that it takes, its beginning included.
    seconds: f64,
    /// Whether at least half of the multiprocessors have none of its blocks.
    leaves_room: bool,
    /// Bytes that it writes in the arena.
    written_bytes: i64,
}

impl Share {
    /// Of a step; none of one that is no GPU's, or of one whose launches stay apart.
    fn of(step: &Step, plan: &Plan, gpus: &[Option<&Gpu>]) -> Option<Share> {
        let device = runner(plan, step)?;
        let gpu = (*gpus.get(device.0 as usize)?)?;
        let most = |e: &IndexExpr| e.interval(&Symbols(plan)).hi.max(0);
        let sum = |of: &dyn Fn(&Launch) -> i64| step.launches().iter().map(of).fold(0, i64::saturating_add);
        let (bytes, flops) = match step {
            Step::Gemm(g) => {
                let [bytes, flops] = plan.product_work(g);
                (most(&bytes), most(&flops))
            }
            Step::Copy { src, .. } => {
                let slot = &plan.slots[src.0 as usize];
                let bytes = most(&slot.len).saturating_mul(slot.dtype.bytes() as i64);
                (bytes.saturating_mul(2), 0)
            }
            _ => (sum(&|l| most(&l.bytes)), sum(&|l| most(&l.flops))),
        };
        let blocks = match step {
            Step::Launch(_) | Step::Group(_) => sum(&|l| match &l.work {
                Work::Grid(grid) => most(&grid.blocks),
                _ => i64::MAX,
            }),
            // One block does them in turn.
            Step::Sequence(_) => 1,
            // How many they have is the library's or the driver's.
            _ => i64::MAX,
        };
        let machine = gpu.multiprocessors.max(1);
        let used = blocks.clamp(1, machine) as f64;
        let floor = gpu.floor_ns(bytes as u64, flops as u64, plan.step_multiplies(step)).0 * 1e-9;
        Some(Share {
            device,
            seconds: gpu.launch_seconds + (floor * machine as f64 / used).max(BLOCK_SECONDS),
            leaves_room: blocks <= machine / 2,
            written_bytes: sum(&|l| written_bytes(l, plan)),
        })
    }
}

/// When the steps of a plan would run.
struct Schedule {
    /// By step: which of the runs of the second queue it is in, if it is there.
    runs: Vec<Option<usize>>,
    /// By run: the seconds of its steps.
    seconds: Vec<f64>,
    /// Seconds until all is done.
    end: f64,
}

/// The times at which the steps that touched some bytes end: those of a GPU's first queue of kernels, those of its second, and others.
type Ends = [f64; 3];

/// The place among [`Ends`] of steps in no queue of kernels.
const ELSEWHERE: usize = 2;

/// What is known of the bytes of a slot when the next step is looked at.
#[derive(Clone, Copy, Default)]
struct Known {
    /// When those that write end, and when all do.
    ends: [Ends; 2],
    /// The last step of a second queue that writes, and the last one that touches them.
    beside: [Option<usize>; 2],
}

/// What has been given to a GPU.
#[derive(Clone, Copy, Default)]
struct Given {
    /// When each of its queues of kernels is done.
    free: [f64; 2],
    /// Bytes that launches have written since one filled the device.
    written_bytes: i64,
}

/// Goes through the steps and gives each launch to the queue where it ends first. Those that are `kept` stay in the first one.
fn schedule(plan: &Plan, shares: &[Option<Share>], gpus: &[Option<&Gpu>], kept: &[bool]) -> Schedule {
    let mut made = Schedule {
        runs: vec![None; plan.steps.len()],
        seconds: Vec::new(),
        end: 0.0,
    };
    let mut known = vec![Known::default(); plan.slots.len()];
    let mut given = vec![Given::default(); plan.devices.len()];
    // The host comes to a step when its own steps before are done.
    let mut host: f64 = 0.0;
    for (at, step) in plan.steps.iter().enumerate() {
        let (mut ends, mut beside): (Ends, Option<usize>) = ([host; 3], None);
        step.visit_slots(
            &mut |s, writes| {
                let of = &known[plan.root(s).0 as usize];
                let all = usize::from(writes);
                ends.iter_mut().zip(of.ends[all]).for_each(|(e, k)| *e = e.max(k));
                beside = beside.max(of.beside[all]);
            },
            &plan.kernels,
        );
        let latest = |wait: [f64; 3]| ends.iter().zip(wait).fold(0.0, |t: f64, (e, w)| t.max(e + w));
        let (end, kind) = match &shares[at] {
            None => {
                let end = latest([0.0; 3]);
                if runner(plan, step) == Some(DeviceId::HOST) {
                    host = host.max(end);
                }
                (end, ELSEWHERE)
            }
            Some(share) => {
                let device = share.device.0 as usize;
                let event = gpus[device].map_or(0.0, |gpu| gpu.launch_seconds);
                let Given { free, written_bytes } = &mut given[device];
                let wait = |from: usize| if ends[from] > host { event } else { 0.0 };
                let first = free[0].max(latest([0.0, wait(1), 0.0])) + share.seconds;
                let second = free[1].max(latest([wait(0), 0.0, 0.0])) + share.seconds;
                *written_bytes = written_bytes.saturating_add(share.written_bytes);
                let may = share.leaves_room && !kept[at] && *written_bytes <= MOST_WRITTEN_BYTES;
                // What continues there needs no further wait; others are waited for again.
                let goes_on = ends[1] > ends[0];
                let gains = second + if goes_on { 0.0 } else { event } < first;
                match (may && (gains || goes_on && second <= first), share.leaves_room) {
                    (true, _) => {
                        free[1] = second;
                        let run = beside.and_then(|s| made.runs[s]).unwrap_or(made.seconds.len());
                        if run == made.seconds.len() {
                            made.seconds.push(0.0);
                        }
                        made.seconds[run] += share.seconds;
                        made.runs[at] = Some(run);
                        (second, 1)
                    }
                    (false, true) => {
                        free[0] = first;
                        (first, 0)
                    }
                    (false, false) => {
                        let end = first.max(free[1] + share.seconds);
                        *free = [end; 2];
                        *written_bytes = 0;
                        (end, 0)
                    }
                }
            }
        };
        made.end = made.end.max(end);
        step.visit_slots(
            &mut |s, writes| {
                let of = &mut known[plan.root(s).0 as usize];
                for all in usize::from(!writes)..2 {
                    of.ends[all][kind] = of.ends[all][kind].max(end);
                    of.beside[all] = of.beside[all].max(Some(at).filter(|_| kind == 1));
                }
            },
            &plan.kernels,
        );
    }
    made
}

/// The steps that go to second queues of kernels.
fn beside(plan: &Plan, shares: &[Option<Share>], gpus: &[Option<&Gpu>]) -> Vec<bool> {
    let mut kept = vec![false; plan.steps.len()];
    if shares.iter().flatten().filter(|s| s.leaves_room).count() < 2 {
        return kept;
    }
    let alone = schedule(plan, shares, gpus, &vec![true; plan.steps.len()]).end;
    for _ in 0..ROUNDS {
        let made = schedule(plan, shares, gpus, &kept);
        let there: Vec<bool> = made.runs.iter().map(Option::is_some).collect();
        let event = |share: &Share| gpus[share.device.0 as usize].map_or(0.0, |gpu| gpu.launch_seconds);
        let mut waits = vec![0u32; made.seconds.len()];
        let mut each = vec![0.0; made.seconds.len()];
        for (at, turn) in turns(plan, shares, &there).iter().enumerate() {
            let Some(own) = &shares[at] else { continue };
            if let Some(run) = made.runs[at] {
                each[run] = event(own);
            }
            for &w in turn.waits.iter().filter(|&&w| shares[w as usize].is_some()) {
                if let Some(run) = made.runs[at].or(made.runs[w as usize]) {
                    waits[run] += 1;
                }
            }
        }
        // Where nothing else says so, calls begin and end with the first queue.
        let lost = |run: usize| made.seconds[run] <= f64::from(waits[run].max(2)) * each[run];
        let mut changed = false;
        for (kept, run) in kept.iter_mut().zip(&made.runs) {
            if run.is_some_and(lost) {
                (*kept, changed) = (true, true);
            }
        }
        if !changed {
            return match made.end < alone {
                true => there,
                false => vec![false; plan.steps.len()],
            };
        }
    }
    vec![false; plan.steps.len()]
}

/// The turn of each step, if those that are `beside` go to the second queue of kernels of their device.
fn turns(plan: &Plan, shares: &[Option<Share>], beside: &[bool]) -> Vec<Turn> {
    let mut order = Order::new(0, 1 + (EACH as usize + 1) * (plan.devices.len() - 1), &[]);
    // By the slot whose bytes they touch: the steps that write, and all.
    let mut accesses: Vec<[Clock; 2]> = vec![[order.nothing(), order.nothing()]; plan.slots.len()];
    // By device: the last step that filled it, and the last one of its second queue.
    let mut last: Vec<[Option<usize>; 2]> = vec![[None; 2]; plan.devices.len()];
    let mut turns = Vec::with_capacity(plan.steps.len());
    for (at, step) in plan.steps.iter().enumerate() {
        let mut touched = Vec::new();
        step.visit_slots(&mut |s, w| touched.push((plan.root(s).0 as usize, w)), &plan.kernels);
        let mut needed = order.nothing();
        for &(root, writes) in &touched {
            order.join(&mut needed, &accesses[root][usize::from(writes)]);
        }
        let mut queue = queue(plan, step);
        match &shares[at] {
            Some(share) => {
                let [filled, there] = &mut last[share.device.0 as usize];
                match (beside[at], share.leaves_room) {
                    (true, _) => {
                        queue = second(plan, share.device);
                        filled.iter().for_each(|&s| order.add(&mut needed, s));
                        *there = Some(at);
                    }
                    (false, true) => {}
                    (false, false) => {
                        there.iter().for_each(|&s| order.add(&mut needed, s));
                        (*filled, *there) = (Some(at), None);
                    }
                }
            }
            // All queues wait for a loop.
            None if matches!(step, Step::Loop(_)) => {
                let there = last.iter_mut().filter_map(|of| of[1].take());
                there.for_each(|s| order.add(&mut needed, s));
            }
            None => {}
        }
        let waits: SmallVec<[u32; 2]> = order.waits(queue, &needed);
        let turn = Turn { queue, waits };
        order.push(&turn);
        turns.push(turn);
        for (root, writes) in touched {
            order.add(&mut accesses[root][1], at);
            if writes {
                order.add(&mut accesses[root][0], at);
            }
        }
    }
    turns
}

/// Gives each step of a call its turn. A plan for the host alone needs none. `gpus` says by device what it is; none where launches stay one
/// behind another.
pub(super) fn take_turns(plan: &mut Plan, gpus: &[Option<&Gpu>]) {
    if plan.devices.len() == 1 {
        return;
    }
    let shares: Vec<Option<Share>> = plan.steps.iter().map(|s| Share::of(s, plan, gpus)).collect();
    let beside = beside(plan, &shares, gpus);
    let turns = turns(plan, &shares, &beside);
    let mut inside = plan.init.iter().chain(&plan.steps);
    let fewer = plan.queues.len();
    let wider = inside.any(|s| matches!(s, Step::Loop(l) if l.body.queues.len() > fewer));
    if wider || beside.contains(&true) {
        add_second_queues(plan);
    }
    // As text is read: what says nothing is not there.
    if turns.iter().any(|t| *t != Turn::default()) {
        plan.turns = turns;
    }
}
