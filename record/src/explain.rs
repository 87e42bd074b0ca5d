//! What the compiler decided, as text: clusters and why, refusals and why, kernels with bytes, flops and predicted time,
//! contraction orders, memory.

use std::fmt::Write;

use rustc_hash::FxHashMap;
use tlc_ir::graph::Origin;
use tlc_ir::index::{IndexExpr, IndexNode};
use tlc_ir::kernel::Grid;
use tlc_ir::plan::{Arena, DeviceId, KernelId, Launch, Layout, Plan, QueueId, Repeat, SlotId, Step, Work};
use tlc_ir::target::{Cpu, Gpu, Occupancy, STATIC_SHARED_BYTES};
use tlc_ir::{DType, Graph, NodeId, NodeKind, SymId, Target};
use tlc_passes::Compiled;
use tlc_passes::cluster::Clusters;
use tlc_passes::devices::Devices;
use tlc_passes::planner::{LaunchReport, Planned};
use tlc_passes::rematerialize::Rematerialized;
use tlc_passes::tuning::Choice;
use tlc_runtime::driver::LoopTime;

/// What one step costs, as predicted from the machine model.
#[derive(Clone, Debug, PartialEq)]
pub struct StepCost {
    /// What it computes.
    pub label: String,
    /// `kernel 3`, `matmul`, `copy`.
    pub step: String,
    /// Bytes moved, if no size is symbolic.
    pub bytes: Option<u64>,
    /// Floating-point operations (a transcendental counts 20), if no size is symbolic.
    pub flops: Option<u64>,
    /// Bytes moved, as a formula over the symbols.
    pub bytes_formula: String,
    /// Floating-point operations, as a formula over the symbols.
    pub flops_formula: String,
    /// Predicted nanoseconds on the device that does it, if no size is symbolic.
    pub predicted_ns: Option<f64>,
    /// What bounds it: `bytes`, `flops`, or the `link` between two devices.
    pub bound: &'static str,
    /// The device that does it, by its number in the plan; for a copy, where the bytes go.
    pub device: DeviceId,
    /// Of a kernel on a GPU: how many of its blocks a multiprocessor holds at once, whatever registers it takes.
    pub occupancy: Option<Occupancy>,
}

/// What a step is that takes time on a host.
type Floor = fn(&Cpu, u64, u64) -> (f64, &'static str);

/// Where a step is done, and its least time there.
#[derive(Clone, Copy)]
enum Place {
    /// On a device; the floor is a host's, the type what matrix instructions of a GPU multiply.
    On(DeviceId, Floor, Option<DType>),
    /// Bytes go from one device to another.
    Between(DeviceId, DeviceId),
}

/// Makes the costs of one plan's steps.
struct Costs<'a> {
    plan: &'a Plan,
    devices: &'a Devices,
    /// The plan's symbols, as far as they are known.
    sizes: Vec<Option<i64>>,
    /// What a call measured in the plan's loops; nothing is known of loops otherwise but their trip counts.
    loops: Option<&'a [LoopTime]>,
}

impl<'a> Costs<'a> {
    fn value(&self, e: &IndexExpr) -> Option<u64> {
        let known = |s: SymId| self.sizes.get(s.0 as usize).copied().flatten();
        let bound = e.replace(&mut |n| match n {
            IndexNode::Sym(s) => known(*s).map(IndexExpr::Const),
            _ => None,
        });
        bound.as_const().and_then(|v| u64::try_from(v).ok())
    }

    /// The cost of a step at a place; `usual` bounds it where sizes are unknown.
    fn cost(
        &self,
        step: String,
        label: String,
        (bytes, flops): (&IndexExpr, &IndexExpr),
        (place, usual): (Place, &'static str),
    ) -> StepCost {
        let formula = |e: &IndexExpr| {
            let named = |s: SymId| self.plan.symbols.get(s.0 as usize).map(|s| s.name.clone());
            let name = |s: SymId| named(s).unwrap_or_else(|| format!("s{}", s.0));
            e.display(&name).to_string()
        };
        let (b, f) = (self.value(bytes), self.value(flops));
        let known = b.zip(f).map(|(b, f)| self.floor(place, b, f));
        StepCost {
            label,
            step,
            bytes: b,
            flops: f,
            bytes_formula: formula(bytes),
            flops_formula: formula(flops),
            predicted_ns: known.map(|k| k.0),
            bound: known.map_or(usual, |k| k.1),
            device: match place {
                Place::On(device, ..) | Place::Between(_, device) => device,
            },
            occupancy: None,
        }
    }

    fn floor(&self, place: Place, bytes: u64, flops: u64) -> (f64, &'static str) {
        match place {
            Place::On(device, host, matrices) => match self.devices.target(device) {
                Target::Cpu(cpu) => host(cpu, bytes, flops),
                Target::Gpu(gpu) => gpu.floor_ns(bytes, flops, matrices),
            },
            Place::Between(from, to) => {
                let link = self.devices.link(from, to);
                (link.map_or(0.0, |l| bytes as f64 / l.bytes_per_second * 1e9), "link")
            }
        }
    }

    /// The device that has a slot.
    fn device(&self, slot: Option<&SlotId>) -> DeviceId {
        slot.map_or(DeviceId::HOST, |s| self.plan.slots[s.0 as usize].device)
    }

    fn launch(&self, l: &Launch) -> StepCost {
        let step = format!("kernel {}", l.kernel.0);
        let matrices = self.plan.launch_multiplies(l);
        let place = Place::On(self.device(l.args.first()), Cpu::kernel_floor_ns, matrices);
        let occupancy = occupancy(self.plan, self.devices, l, None);
        StepCost {
            occupancy,
            ..self.cost(step, l.label.clone(), (&l.bytes, &l.flops), (place, "bytes"))
        }
    }

    fn of(&self, steps: &[Step]) -> Vec<(usize, StepCost)> {
        let mut out = Vec::new();
        for (number, step) in steps.iter().enumerate() {
            match step {
                Step::Launch(l) => out.push((number, self.launch(l))),
                Step::Group(all) | Step::Sequence(all) => out.extend(all.iter().map(|l| (number, self.launch(l)))),
                Step::Gemm(g) => {
                    let [bytes, flops] = self.plan.product_work(g);
                    let matrices = self.plan.step_multiplies(step);
                    let (step, label) = match &g.epilogue {
                        Some(e) if let Some(p) = &e.product => (
                            format!("library matmul + kernel {} + matmul", e.launch.kernel.0),
                            format!("{} then {} then {}", g.label, e.launch.label, p.label),
                        ),
                        None => ("library matmul".into(), g.label.clone()),
                        Some(e) if let Some(what) = &e.library => (
                            format!("library matmul with {what}"),
                            format!("{} then {}", g.label, e.launch.label),
                        ),
                        Some(e) => (
                            format!("library matmul + kernel {}", e.launch.kernel.0),
                            format!("{} then {}", g.label, e.launch.label),
                        ),
                    };
                    let host: Floor = match g.dtype {
                        DType::BF16 => Cpu::halves_floor_ns,
                        _ => Cpu::floor_ns,
                    };
                    let place = Place::On(self.device(Some(&g.dst.slot)), host, matrices);
                    out.push((number, self.cost(step, label, (&bytes, &flops), (place, "flops"))));
                }
                Step::Copy { src, dst, .. } => {
                    let slot = &self.plan.slots[src.0 as usize];
                    let (from, to) = (self.device(Some(src)), self.device(Some(dst)));
                    let bytes = slot.len.clone() * IndexExpr::from(slot.dtype.bytes());
                    let (step, place, bytes) = match from == to {
                        true => ("copy", Place::On(to, Cpu::floor_ns, None), bytes * IndexExpr::from(2)),
                        false => ("transfer", Place::Between(from, to), bytes),
                    };
                    let label = format!("{step} {}", slot.name);
                    let work = (&bytes, &IndexExpr::ZERO);
                    out.push((number, self.cost(step.into(), label, work, (place, "bytes"))));
                }
                Step::Loop(l) => out.push((number, self.repeat(number, l))),
                Step::Call(c) => {
                    let [bytes, flops] = self.plan.call_work(c);
                    let (step, label) = ("host call".into(), c.label.clone());
                    let on_host = Place::On(DeviceId::HOST, Cpu::kernel_floor_ns, None);
                    out.push((number, self.cost(step, label, (&bytes, &flops), (on_host, "flops"))));
                }
            }
        }
        out
    }

    /// The cost of a loop. The formulas say what all iterations cost that the trip count allows, or one where it does not say;
    /// the least time is that of the iterations that run, if their number is known before a call, or was counted in one.
    fn repeat(&self, number: usize, l: &Repeat) -> StepCost {
        let one = l.body.work();
        let times = l.trip.clone().unwrap_or(IndexExpr::ONE);
        let [bytes, flops] = one.map(|e| l.outer(&e) * times.clone());
        let step = format!("loop of {}", counted(l.body.steps.len(), "step"));
        let place = Place::On(DeviceId::HOST, Cpu::kernel_floor_ns, None);
        let mut cost = self.cost(step, l.label.clone(), (&bytes, &flops), (place, "bytes"));
        cost.predicted_ns = None;
        let Some(inside) = self.inside(number, l) else {
            return cost;
        };
        let sum = |part: fn(&StepCost) -> Option<u64>| -> Option<u64> {
            let each = inside.iter().map(|(_, c, times)| part(c)?.checked_mul(*times));
            each.sum()
        };
        // Each iteration by itself: what one moves may stay in a cache that all of them together would not fit in.
        let each = inside.iter().map(|(_, c, times)| Some(c.predicted_ns? * *times as f64));
        cost.predicted_ns = each.sum();
        let of = |bound: &str| -> f64 {
            let those = inside.iter().filter(|(_, c, _)| c.bound == bound);
            those
                .filter_map(|(_, c, times)| Some(c.predicted_ns? * *times as f64))
                .sum()
        };
        cost.bound = if of("flops") > of("bytes") { "flops" } else { "bytes" };
        (cost.bytes, cost.flops) = (sum(|c| c.bytes), sum(|c| c.flops));
        cost
    }

    fn inner_sizes(&self, l: &Repeat) -> Vec<Option<i64>> {
        let size = |e: &IndexExpr| self.value(e).and_then(|v| i64::try_from(v).ok());
        l.symbols.iter().map(size).collect()
    }

    /// The costs of a loop's steps, and how often each counts: `None` if nobody knows how many iterations run.
    fn inside(&self, number: usize, l: &Repeat) -> Option<Vec<InnerCost>> {
        let time = self.loops.and_then(|all| all.iter().find(|t| t.step == number));
        let all_run = l.count.is_none() && l.condition.is_none() && l.follows.is_none();
        let iterations = match (time, &l.trip) {
            (Some(time), _) => time.iterations,
            (None, Some(trip)) if all_run => self.value(trip)?,
            (None, _) => return None,
        };
        let body = Costs {
            plan: &l.body,
            devices: self.devices,
            sizes: self.inner_sizes(l),
            loops: time.map(|t| &t.loops[..]),
        };
        // What was counted in a loop inside was counted in all iterations together.
        let is_loop = |k: usize| matches!(l.body.steps[k], Step::Loop(_));
        let times = |k: usize| if time.is_some() && is_loop(k) { 1 } else { iterations };
        let costs = body.of(&l.body.steps).into_iter();
        Some(costs.map(|(k, cost)| (k, cost, times(k))).collect())
    }
}

/// The cost of every step; launches of a group count one by one under the number of their step.
pub fn step_costs(plan: &Plan, devices: &Devices) -> Vec<(usize, StepCost)> {
    costs_of(plan, &plan.steps, devices)
}

fn costs_of(plan: &Plan, steps: &[Step], devices: &Devices) -> Vec<(usize, StepCost)> {
    let costs = Costs {
        plan,
        devices,
        sizes: vec![],
        loops: None,
    };
    costs.of(steps)
}

/// The cost of every step of a call whose inputs say that the plan's symbols are `sizes`, and in whose loops so many iterations
/// ran. As [`step_costs`].
pub fn step_costs_of_call(
    plan: &Plan,
    devices: &Devices,
    sizes: &[Option<i64>],
    loops: &[LoopTime],
) -> Vec<(usize, StepCost)> {
    call_costs(plan, devices, sizes, loops).of(&plan.steps)
}

fn call_costs<'a>(plan: &'a Plan, devices: &'a Devices, sizes: &[Option<i64>], loops: &'a [LoopTime]) -> Costs<'a> {
    Costs {
        plan,
        devices,
        sizes: sizes.to_vec(),
        loops: Some(loops),
    }
}

/// A step of a loop's body: its number there, its cost in one iteration (or, of a loop inside, in all), and how often that
/// counts in a call.
pub type InnerCost = (usize, StepCost, u64);

/// The costs of the steps of the loop that is step `number` of the plan, as [`step_costs_of_call`] counts them, and the sizes of
/// its body's symbols. `None` if that step is no loop, or nobody knows how many iterations run.
pub fn inner_costs_of_call(
    plan: &Plan,
    devices: &Devices,
    sizes: &[Option<i64>],
    loops: &[LoopTime],
    number: usize,
) -> Option<(Vec<InnerCost>, Vec<Option<i64>>)> {
    let Step::Loop(l) = plan.steps.get(number)? else {
        return None;
    };
    let costs = call_costs(plan, devices, sizes, loops);
    Some((costs.inside(number, l)?, costs.inner_sizes(l)))
}

/// A size in bytes for people: `1.5 MiB`.
pub fn bytes_text(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{bytes} B")
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

/// A count for people: `1.2 M`.
pub fn count_text(n: u64) -> String {
    match n {
        0..=9_999 => n.to_string(),
        10_000..=999_999 => format!("{:.1} k", n as f64 / 1e3),
        1_000_000..=999_999_999 => format!("{:.1} M", n as f64 / 1e6),
        _ => format!("{:.1} G", n as f64 / 1e9),
    }
}

/// A number of things for people: `1 step`, `2 steps`.
pub fn counted(n: usize, thing: &str) -> String {
    format!("{n} {thing}{}", if n == 1 { "" } else { "s" })
}

/// A time in nanoseconds for people: `1.25 us`.
pub fn time_text(ns: f64) -> String {
    match ns {
        n if n < 1e3 => format!("{n:.0} ns"),
        n if n < 1e6 => format!("{:.2} us", n / 1e3),
        n if n < 1e9 => format!("{:.2} ms", n / 1e6),
        n => format!("{:.2} s", n / 1e9),
    }
}

/// A value, what computes it, and the name of that in the model that it came from: `%3 reduce add 'layer.1/ReduceSum'`. Values
/// have the names of the text that was read (see [`Graph::value_name`]).
pub fn operation_text(graph: &Graph, node: NodeId) -> String {
    format!("{} {}", graph.value_name(node), unnamed_text(graph, node))
}

/// What a node does, with its name in the model that it came from.
fn unnamed_text(graph: &Graph, node: NodeId) -> String {
    let n = graph.node(node);
    let mut text = match &n.kind {
        NodeKind::Call(function) => function.name().to_string(),
        NodeKind::Reduce { monoid, .. } => format!("reduce {}", monoid.name()),
        kind => kind.name().to_string(),
    };
    if let Origin::Named(_) | Origin::Derived(_) = n.origin.recorded() {
        text += &n.origin.clause();
    }
    text
}

/// As [`operation_text`], with the type of the result.
pub fn node_text(graph: &Graph, node: NodeId) -> String {
    let types = graph.results_text(graph.node(node));
    format!("{} {types}", operation_text(graph, node))
}

/// The memory line of the host: arena, lower bound, without sharing.
pub fn layout_text(layout: &Layout) -> String {
    arena_text(&layout.host())
}

fn arena_text(arena: &Arena) -> String {
    format!(
        "arena {} (lower bound {}, without sharing {})",
        bytes_text(arena.bytes),
        bytes_text(arena.lower_bound_bytes),
        bytes_text(arena.naive_bytes)
    )
}

/// What people call a device: `host`, `gpu 1`.
pub fn device_text(plan: &Plan, device: DeviceId) -> String {
    match device {
        DeviceId::HOST => "host".into(),
        device => format!("{} {}", plan.devices[device.0 as usize].name(), device.0),
    }
}

/// Which launches of a GPU are one or run beside others, and why.
fn write_joined(out: &mut String, plan: &Plan, devices: &Devices) -> std::fmt::Result {
    let begin = |launches: &[Launch]| {
        let slot = launches.first().and_then(|l| l.args.first());
        let device = slot.map_or(DeviceId::HOST, |s| plan.slots[s.0 as usize].device);
        match devices.target(device) {
            Target::Gpu(gpu) => Some(time_text(gpu.launch_seconds * 1e9)),
            Target::Cpu(_) => None,
        }
    };
    let steps = || plan.steps.iter().enumerate();
    let groups = steps().filter_map(|(number, step)| match step {
        Step::Group(all) => begin(all).map(|begin| (number, all, begin)),
        _ => None,
    });
    for (k, (number, all, begin)) in groups.enumerate() {
        if k == 0 {
            writeln!(out, "\ngroups")?;
        }
        let mut kernels: Vec<_> = all.iter().map(|l| l.kernel).collect();
        kernels.sort_unstable();
        kernels.dedup();
        let s = if kernels.len() == 1 { "" } else { "s" };
        writeln!(
            out,
            "  step {number}: one grid has the blocks of {} launches of {} kernel{s}, which do not depend on each other: they begin once, which takes \
             {begin}, and fill the device together",
            all.len(),
            kernels.len(),
        )?;
    }
    let sequences = steps().filter_map(|(number, step)| match step {
        Step::Sequence(all) => begin(all).map(|begin| (number, all, begin)),
        _ => None,
    });
    for (k, (number, all, begin)) in sequences.enumerate() {
        if k == 0 {
            writeln!(out, "\nsequences")?;
        }
        writeln!(
            out,
            "  step {number}: one block does {} launches in turn, none of which gains more from other multiprocessors than beginning a launch \
             takes ({begin})",
            all.len(),
        )?;
    }
    let mut queues: Vec<(QueueId, Vec<String>)> = Vec::new();
    for number in 0..plan.steps.len() {
        let Some(queue) = plan.beside(number) else { continue };
        match queues.iter_mut().find(|q| q.0 == queue) {
            Some(known) => known.1.push(number.to_string()),
            None => queues.push((queue, vec![number.to_string()])),
        }
    }
    for (k, (queue, steps)) in queues.into_iter().enumerate() {
        if k == 0 {
            writeln!(out, "\nqueues")?;
        }
        let s = if steps.len() == 1 { "" } else { "s" };
        writeln!(
            out,
            "  {}: queue {} has step{s} {}, beside launches that they do not depend on: both leave at least half of the multiprocessors idle",
            device_text(plan, plan.queue_device(queue)),
            queue.0,
            steps.join(", "),
        )?;
    }
    Ok(())
}

/// What is known of the devices beside the host.
fn write_devices(out: &mut String, plan: &Plan, devices: &Devices) -> std::fmt::Result {
    for device in (1..plan.devices.len() as u32).map(DeviceId) {
        if let Target::Gpu(gpu) = devices.target(device) {
            writeln!(
                out,
                "{}: {:.1} GB/s, {:.1} f32 TFLOP/s, {:.0} by matrix instructions on 16 bits, {} a launch; a kernel's block shares at most {}, {} if the driver is asked",
                device_text(plan, device),
                gpu.bytes_per_second / 1e9,
                gpu.f32_flops_per_second / 1e12,
                gpu.matrix_flops_per_second / 1e12,
                time_text(gpu.launch_seconds * 1e9),
                bytes_text(gpu.shared_bytes as u64),
                bytes_text(gpu.opt_in_shared_bytes as u64),
            )?;
            if gpu.products.is_some() {
                writeln!(
                    out,
                    "{}: a product that is the library's and that it has no algorithm for, as its sizes show, is computed by a kernel of one thread a result",
                    device_text(plan, device)
                )?;
            }
        }
    }
    Ok(())
}

/// How many blocks of a kernel a multiprocessor of its GPU holds at once, whose threads have so many registers, where that is known;
/// `None` for what a host runs.
pub fn occupancy(plan: &Plan, devices: &Devices, l: &Launch, registers: Option<u32>) -> Option<Occupancy> {
    let (Work::Grid(grid), Some(slot)) = (&l.work, l.args.first()) else {
        return None;
    };
    match devices.target(plan.slots.get(slot.0 as usize)?.device) {
        Target::Gpu(gpu) => {
            let registers = registers.map(i64::from);
            Some(gpu.multiprocessor.occupancy(grid.threads, grid.shared_bytes, registers))
        }
        Target::Cpu(_) => None,
    }
}

/// How a kernel's iterations go to the blocks and threads of a GPU, and what a thread moves.
fn grid_text(plan: &Plan, l: &Launch, grid: &Grid) -> String {
    let name = |s: SymId| {
        plan.symbols
            .get(s.0 as usize)
            .map_or(format!("s{}", s.0), |s| s.name.clone())
    };
    let blocks = match grid.blocks.as_const() {
        Some(n) => counted(n.max(0) as usize, "block"),
        None => format!("{} blocks", grid.blocks.display(&name)),
    };
    let shared = match grid.shared_bytes {
        0 => String::new(),
        bytes if bytes > STATIC_SHARED_BYTES => {
            format!(", {} shared, for which the driver is asked", bytes_text(bytes as u64))
        }
        bytes => format!(", {} shared", bytes_text(bytes as u64)),
    };
    let threads = grid
        .blocks
        .as_const()
        .map(|b| b.saturating_mul(grid.threads))
        .filter(|n| *n > 0);
    let each = threads
        .zip(l.bytes.as_const())
        .map_or(String::new(), |(threads, bytes)| {
            format!(", {:.1} bytes a thread", bytes as f64 / threads as f64)
        });
    format!("{blocks} of {} threads{shared}{each}", grid.threads)
}

/// Everything the compiler decided, for people.
pub fn explain(compiled: &Compiled, devices: &Devices) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write_report(&mut out, compiled, devices);
    out
}

fn write_report(out: &mut String, compiled: &Compiled, devices: &Devices) -> std::fmt::Result {
    write_size(out, &compiled.graph, &compiled.clusters, &compiled.planned.plan)?;
    write_devices(out, &compiled.planned.plan, devices)?;
    for cut in &compiled.cuts {
        writeln!(
            out,
            "{} computes what is from {} on: the devices before it hold {} of inputs and constants, and {} go from one to the other",
            device_text(&compiled.planned.plan, cut.to),
            compiled.graph.value_name(cut.before),
            bytes_text(cut.held_bytes),
            bytes_text(cut.crossing_bytes)
        )?;
    }
    for p in &compiled.paths {
        writeln!(out, "\ncontraction order of {}:", p.value)?;
        for line in p.path.to_string().lines() {
            writeln!(out, "  {line}")?;
        }
    }
    for s in &compiled.carried_sums {
        writeln!(
            out,
            "product {} in the iterations of its loop, for the memory limit: a sum of {} goes around, and {} are not stacked",
            s.label,
            bytes_text(s.sum_bytes as u64),
            bytes_text(s.stacked_bytes as u64)
        )?;
    }
    for s in &compiled.segmented {
        writeln!(
            out,
            "loop {} in segments of {} of its {} iterations, for the memory limit: {} kept in place of {}, and each iteration runs once more on \
             the way back",
            s.label,
            s.every,
            s.iterations,
            bytes_text(s.kept_bytes as u64),
            bytes_text(s.all_bytes as u64)
        )?;
    }
    write_plan(out, &compiled.graph, &compiled.clusters, &compiled.planned, devices)
}

fn write_size(out: &mut String, graph: &Graph, clusters: &Clusters, plan: &Plan) -> std::fmt::Result {
    writeln!(
        out,
        "graph @{}: {}, {}, {}, {}",
        graph.name,
        counted(graph.len(), "node"),
        counted(clusters.clusters.len(), "cluster"),
        counted(plan.kernels.len(), "kernel"),
        counted(plan.steps.len(), "step")
    )
}

/// What there is of each cluster and kernel in a plan, looked up once for all of them.
struct Whereabouts<'p> {
    /// The device of each matrix product, by the value that it makes.
    products: FxHashMap<NodeId, DeviceId>,
    /// What was decided about the kernels of each cluster.
    reports: Vec<Vec<&'p LaunchReport>>,
    /// The first launch of each kernel.
    launches: FxHashMap<KernelId, &'p Launch>,
}

impl<'p> Whereabouts<'p> {
    fn of(planned: &'p Planned, clusters: &Clusters) -> Whereabouts<'p> {
        let plan = &planned.plan;
        let mut found = Whereabouts {
            products: FxHashMap::default(),
            reports: vec![Vec::new(); clusters.clusters.len()],
            launches: FxHashMap::default(),
        };
        for step in plan.init.iter().chain(&plan.steps) {
            if let Step::Gemm(g) = step {
                let slot = g.dst.slot.0 as usize;
                if let Some(value) = planned.values[slot] {
                    found.products.entry(value).or_insert(plan.slots[slot].device);
                }
            }
            for launch in step.launches() {
                found.launches.entry(launch.kernel).or_insert(launch);
            }
        }
        for report in &planned.launches {
            if let Some(of) = found.reports.get_mut(report.cluster) {
                of.push(report);
            }
        }
        found
    }
}

/// Steps, clusters, decisions and memory of a graph or of the body of a loop.
fn write_plan(
    out: &mut String,
    graph: &Graph,
    clusters: &Clusters,
    planned: &Planned,
    devices: &Devices,
) -> std::fmt::Result {
    let plan = &planned.plan;
    let whereabouts = Whereabouts::of(planned, clusters);
    for (title, steps) in [("once, in the first call", &plan.init), ("steps", &plan.steps)] {
        if title != "steps" && steps.is_empty() {
            continue;
        }
        writeln!(out, "\n{title}")?;
        let costs = costs_of(plan, steps, devices);
        let width = costs.iter().map(|(_, c)| c.step.len()).max().unwrap_or(0).max(14);
        for (number, cost) in costs {
            let bytes = cost
                .bytes
                .map_or_else(|| format!("{} B", cost.bytes_formula), bytes_text);
            let flops = cost.flops.map_or_else(|| cost.flops_formula.clone(), count_text);
            write!(
                out,
                "  {number:>3}  {:<width$} {:<40} {bytes:>10} {flops:>9} flops",
                cost.step, cost.label
            )?;
            match cost.predicted_ns {
                Some(ns) => writeln!(out, "  at least {} (bound by {})", time_text(ns), cost.bound)?,
                None => writeln!(out)?,
            }
        }
    }
    writeln!(out, "\nclusters")?;
    for (number, c) in clusters.clusters.iter().enumerate() {
        let multiplied = match graph.ty(c.roots[0]).dtype {
            DType::I32 => " of words of four bytes",
            DType::BF16 => " of bf16, added up in f32",
            _ => "",
        };
        let how = match &c.kind {
            tlc_passes::cluster::ClusterKind::Loops(space) => {
                format!("one loop nest over {}", graph.shape_text(&space.parallel))
            }
            tlc_passes::cluster::ClusterKind::Gemm(p) if p.lhs.is_composite() || p.rhs.is_composite() => {
                let composite = if p.lhs.is_composite() { &p.lhs } else { &p.rhs };
                match graph.node(composite.base).kind {
                    NodeKind::Copy => {
                        format!("a matrix product by the library{multiplied}, over blocks laid out for it")
                    }
                    _ => format!(
                        "a matrix product by the library{multiplied}, which packs one operand's windows as it goes"
                    ),
                }
            }
            tlc_passes::cluster::ClusterKind::Gemm(_) => {
                let device = whereabouts.products.get(&c.roots[0]);
                match devices.target(device.copied().unwrap_or(DeviceId::HOST)) {
                    Target::Gpu(Gpu {
                        products: Some(library),
                        ..
                    }) => {
                        format!("a matrix product by the library ({})", library.share)
                    }
                    _ => format!("a matrix product by the library{multiplied}"),
                }
            }
            tlc_passes::cluster::ClusterKind::Attention(a) => {
                format!(
                    "an attention, in blocks of {} rows, {} keys at a time",
                    a.rows,
                    a.keys()
                )
            }
            tlc_passes::cluster::ClusterKind::ProductRows(p) => format!(
                "a product and what waits for whole rows of it, in tiles of {} by {}",
                p.tile[0], p.tile[1]
            ),
            tlc_passes::cluster::ClusterKind::WeightGradient(w) => format!(
                "a convolution's gradient by its weights, in tiles of {} channels by {} elements of windows, {} tiles at a time",
                w.columns,
                w.rows(),
                w.tiles
            ),
            tlc_passes::cluster::ClusterKind::Scan(form) => form.text(),
            tlc_passes::cluster::ClusterKind::Scatter(updates) => format!("a copy and {}", updates.text()),
            tlc_passes::cluster::ClusterKind::Join(parts) => {
                let copied = parts.iter().filter(|p| p.copied).count();
                match copied {
                    0 => format!("a concatenation of {} parts, all computed in place", parts.len()),
                    _ => format!("a concatenation of {} parts, {copied} of them copied", parts.len()),
                }
            }
            tlc_passes::cluster::ClusterKind::Loop => "a loop over a plan of its own".into(),
            tlc_passes::cluster::ClusterKind::Call => "a function of the runtime".into(),
        };
        let when = if c.once { ", once per executable" } else { "" };
        writeln!(out, "  cluster {number}: {how}{when}")?;
        for &r in &c.roots {
            let kept = if c.stored.contains(&r) {
                "stored"
            } else {
                "stays in the kernel"
            };
            writeln!(out, "    {}: {kept}", node_text(graph, r))?;
        }
        for l in &whereabouts.reports[number] {
            let launch = whereabouts.launches.get(&l.kernel).copied();
            write_schedule(out, plan, devices, l, launch)?;
        }
    }
    writeln!(out, "\nfusion decisions")?;
    for edge in clusters.ledger.edges() {
        let Some((last, before)) = edge.split_last() else {
            continue;
        };
        let verdict = if last.reason.accepted() { "fused  " } else { "refused" };
        let (producer, consumer) = (
            operation_text(graph, last.producer),
            operation_text(graph, last.consumer),
        );
        writeln!(out, "  {verdict} {producer} -> {consumer}: {}", last.reason)?;
        for d in before.iter().filter(|d| d.reason != last.reason) {
            let verdict = if d.reason.accepted() { "fused" } else { "refused" };
            writeln!(out, "            before, {verdict} by {}: {}", d.stage.name(), d.reason)?;
        }
    }
    write_joined(out, plan, devices)?;
    writeln!(out, "\nmemory")?;
    match &planned.layout {
        Some(layout) if plan.devices.len() == 1 => writeln!(out, "  {}", layout_text(layout))?,
        Some(layout) => {
            for device in (0..plan.devices.len() as u32).map(DeviceId) {
                writeln!(
                    out,
                    "  {}: {}",
                    device_text(plan, device),
                    arena_text(&layout.arena(device))
                )?;
            }
        }
        None => writeln!(out, "  sizes are symbolic: the arena is laid out when they are bound")?,
    }
    for (device, made) in &planned.rematerialized {
        write_rematerialized(out, plan, *device, made)?;
    }
    let kept = plan.persistent_bytes();
    if kept > 0 {
        writeln!(out, "  kept as long as the executable: {}", bytes_text(kept))?;
    }
    for a in &planned.aliases {
        let name = |s: SlotId| &plan.slots[s.0 as usize].name;
        writeln!(out, "  {} over {}: {}", name(a.slot), name(a.of), a.reason)?;
    }
    for body in &planned.bodies {
        writeln!(
            out,
            "\nbody of {} in @{}, once for each iteration",
            graph.value_name(body.node),
            graph.name
        )?;
        write_size(out, &body.graph, &body.clusters, &body.planned.plan)?;
        write_plan(out, &body.graph, &body.clusters, &body.planned, devices)?;
    }
    Ok(())
}

/// What is computed again so that an arena is as small as it must be.
fn write_rematerialized(out: &mut String, plan: &Plan, device: DeviceId, made: &Rematerialized) -> std::fmt::Result {
    let whose = match plan.devices.len() {
        1 => String::new(),
        _ => format!("{}: ", device_text(plan, device)),
    };
    let twice = made.again.iter().filter(|a| a.steps > 0);
    let steps: usize = twice.map(|a| a.steps).sum();
    writeln!(
        out,
        "  {whose}{} with every value kept, limited to {}: {} again, at least {} more",
        bytes_text(made.kept_bytes),
        bytes_text(made.limit_bytes),
        match steps {
            1 => "1 step runs".into(),
            n => format!("{n} steps run"),
        },
        time_text(made.again.iter().map(|a| a.ns).sum())
    )?;
    for a in &made.again {
        let cost = match a.steps {
            0 => "computed later".into(),
            1 => format!("computed again, at least {}", time_text(a.ns)),
            n => format!("computed again in {n} steps, at least {}", time_text(a.ns)),
        };
        writeln!(out, "    {}, {}: {cost}", a.label, bytes_text(a.bytes))?;
    }
    Ok(())
}

/// How a kernel runs: the directives, those of one reason on a line, and what became of its innermost loops.
fn write_schedule(
    out: &mut String,
    plan: &Plan,
    devices: &Devices,
    l: &LaunchReport,
    launch: Option<&Launch>,
) -> std::fmt::Result {
    let form = l.form.name();
    writeln!(out, "    kernel {}: {form} form", l.kernel.0)?;
    writeln!(out, "      emitter {}: {}", l.emitter.name, l.emitter.reason)?;
    if let Some((launch, Work::Grid(grid))) = launch.map(|s| (s, &s.work)) {
        writeln!(out, "      {}", grid_text(plan, launch, grid))?;
        if let Some(occupancy) = occupancy(plan, devices, launch, None) {
            writeln!(
                out,
                "      at most {occupancy}, as far as is known before machine code takes registers"
            )?;
        }
    }
    let schedule = &l.schedule;
    for run in schedule.applied.chunk_by(|a, b| a.reason == b.reason) {
        let done: Vec<String> = run.iter().map(|a| a.directive.to_string()).collect();
        writeln!(out, "      {}: {}", run[0].reason, done.join(", "))?;
    }
    for r in &schedule.refused {
        writeln!(out, "      refused ({}): {}: {}", r.reason, r.directive, r.refusal)?;
    }
    let inner: Vec<String> = schedule
        .inner
        .iter()
        .map(|i| match i {
            Ok(lanes) => format!("{lanes} lanes"),
            Err(reason) => format!("scalar ({reason})"),
        })
        .collect();
    if !inner.is_empty() {
        writeln!(out, "      innermost loops: {}", inner.join(", "))?;
    }
    if let (Some(key), false) = (l.key, schedule.choices.is_empty()) {
        let choices: Vec<String> = schedule.choices.iter().map(Choice::to_string).collect();
        writeln!(out, "      choices ({key}): {}", choices.join(", "))?;
    }
    Ok(())
}
