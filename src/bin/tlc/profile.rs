//! `tlc profile`: per step, those of loops' bodies included, its time, bytes, flops, what bounds it, its share, and what would
//! help.

use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use tlc::explain::{
    InnerCost, StepCost, bytes_text, count_text, counted, inner_costs_of_call, occupancy, step_costs_of_call, time_text,
};
use tlc::{LoopTime, Specialize};
use tlc_ir::plan::{DeviceId, KernelId, Plan, Step};
use tlc_ir::target::Occupancy;
use tlc_passes::devices::Devices;
use tlc_passes::planner::Planned;
use tlc_runtime::cuda::PoolUse;

use crate::args::ModelArgs;
use crate::bench::seconds;
use crate::data::{InputSpec, input_spec, number_json};
use crate::explain::{assumed_note, occupancy_json};
use crate::failure::Failure;
use crate::session::{Session, limits_of};
use crate::timing::Prepared;

/// Arguments.
#[derive(Args, Debug)]
pub struct Profile {
    #[command(flatten)]
    model: ModelArgs,
    /// An input, as in x=x.npy [default: random]
    #[arg(long = "input", short = 'i', value_name = "NAME=SOURCE", value_parser = input_spec)]
    inputs: Vec<InputSpec>,
    /// How long to measure, in seconds
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = seconds)]
    time: f64,
}

/// One step, measured: a step of the plan, or, in all iterations together, one of a loop's body.
struct Row {
    /// `3`, or `3.0` in the body of step 3.
    number: String,
    what: String,
    label: String,
    /// Whether the host does it.
    on_host: bool,
    bytes: Option<u64>,
    flops: Option<u64>,
    floor_ns: Option<f64>,
    bound: &'static str,
    ns: f64,
    advice: String,
    /// Of a kernel on a GPU: how full a multiprocessor is of its blocks, and the registers of a thread, if the driver says.
    occupancy: Option<(Occupancy, Option<u32>)>,
    /// The bytes of local memory of its threads, if the driver says.
    local_bytes: Option<u32>,
    /// The queue of its device that it is in, beside launches of the first one.
    queue: Option<u32>,
    /// Of a loop: how often its body ran.
    iterations: Option<u64>,
    inner: Vec<Row>,
}

/// Steps shorter than this are mostly dispatch, in nanoseconds: of the host, and of a device.
const DISPATCH_NS: [f64; 2] = [1_000.0, 5_000.0];

/// A multiprocessor with fewer threads than so many percent of the most may have too few to hide what they wait for.
const HALF_FULL: i64 = 50;

/// The steps of a plan, measured.
struct Rows<'a> {
    plan: &'a Plan,
    planned: &'a Planned,
    devices: &'a Devices,
    sizes: &'a [Option<i64>],
    loops: &'a [LoopTime],
    /// What stands before the steps' numbers.
    prefix: String,
    /// The registers of a thread of a kernel, where they are known.
    registers: &'a dyn Fn(KernelId) -> Option<u32>,
    /// The bytes of local memory of a thread, where they are known.
    local_bytes: &'a dyn Fn(KernelId) -> Option<u32>,
}

impl Rows<'_> {
    /// `times` are nanoseconds of each step.
    fn all(&self, times: &[f64], costs: &[InnerCost]) -> Vec<Row> {
        let steps = self.plan.steps.iter().enumerate();
        steps
            .map(|(number, step)| self.row(number, step, times[number], costs))
            .collect()
    }

    fn row(&self, number: usize, step: &Step, ns: f64, costs: &[InnerCost]) -> Row {
        let own: Vec<_> = costs.iter().filter(|c| c.0 == number).map(|c| (&c.1, c.2)).collect();
        let sum = |part: fn(&StepCost) -> Option<u64>| -> Option<u64> {
            own.iter().map(|(c, times)| part(c)?.checked_mul(*times)).sum()
        };
        let most = |bound: &str| own.iter().filter(|(c, _)| c.bound == bound).count() * 2 > own.len();
        let mut row = Row {
            number: format!("{}{number}", self.prefix),
            what: match own.as_slice() {
                [(one, _)] => one.step.clone(),
                all if matches!(step, Step::Sequence(_)) => format!("sequence of {}", all.len()),
                all => format!("group of {}", all.len()),
            },
            label: own.iter().map(|(c, _)| c.label.as_str()).collect::<Vec<_>>().join(", "),
            on_host: own.iter().all(|(c, _)| c.device == DeviceId::HOST),
            bytes: sum(|c| c.bytes),
            flops: sum(|c| c.flops),
            floor_ns: own.iter().map(|(c, times)| Some(c.predicted_ns? * *times as f64)).sum(),
            bound: ["flops", "link"].into_iter().find(|b| most(b)).unwrap_or("bytes"),
            ns,
            advice: String::new(),
            occupancy: None,
            local_bytes: None,
            queue: self.plan.beside(number).map(|q| q.0),
            iterations: None,
            inner: vec![],
        };
        if let Step::Launch(l) = step {
            let registers = (self.registers)(l.kernel);
            row.occupancy = occupancy(self.plan, self.devices, l, registers).map(|o| (o, registers));
            row.local_bytes = (self.local_bytes)(l.kernel);
        }
        row.advice = advice(&row, step, self.planned);
        if let Step::Loop(l) = step {
            self.go_inside(&mut row, number, &l.body);
        }
        row
    }

    /// Measures the steps of a loop's body.
    fn go_inside(&self, row: &mut Row, number: usize, body: &Plan) {
        let is_loop = |s: &&Step| matches!(s, Step::Loop(_));
        let before = self.plan.init.iter().chain(&self.plan.steps[..number]).filter(is_loop);
        let time = self.loops.iter().find(|t| t.step == number);
        let planned = self.planned.bodies.get(before.count());
        let costs = inner_costs_of_call(self.plan, self.devices, self.sizes, self.loops, number);
        let (Some(time), Some(planned), Some((costs, sizes))) = (time, planned, costs) else {
            return;
        };
        row.iterations = Some(time.iterations);
        let inside = Rows {
            plan: body,
            planned: &planned.planned,
            devices: self.devices,
            sizes: &sizes,
            loops: &time.loops,
            prefix: format!("{}.", row.number),
            // They are known of the plan's own kernels.
            registers: &|_| None,
            local_bytes: &|_| None,
        };
        let times: Vec<f64> = time.steps.iter().map(|ns| *ns as f64).collect();
        row.inner = inside.all(&times, &costs);
    }
}

/// All rows in the order in which they are printed, those of a loop's body behind the loop.
fn listed<'r>(rows: &'r [Row], out: &mut Vec<&'r Row>) {
    for row in rows {
        out.push(row);
        listed(&row.inner, out);
    }
}

/// What would make a step faster.
fn advice(row: &Row, step: &Step, planned: &Planned) -> String {
    let Some(floor) = row.floor_ns else {
        return "data decides sizes: no limit is known".into();
    };
    let ratio = row.ns / floor.max(1.0);
    if ratio < 1.0 && floor > 0.0 {
        return "faster than its limit: the model of this machine is wrong here".into();
    }
    if row.bound == "link" {
        return "between the host and a device: what stays on one side is not moved".into();
    }
    if row.ns < DISPATCH_NS[usize::from(!row.on_host)] {
        return "too short to matter by itself: larger inputs or fewer steps".into();
    }
    if ratio < 1.5 {
        return match row.bound {
            "bytes" => "at the limit of memory: only moving fewer bytes helps (fusion, a narrower dtype)".into(),
            _ => "at the limit of arithmetic: only fewer operations help".into(),
        };
    }
    let kernels: Vec<_> = match step {
        Step::Launch(l) => vec![l.kernel],
        Step::Group(all) | Step::Sequence(all) => all.iter().map(|l| l.kernel).collect(),
        Step::Gemm(_) => return "a library product of this shape: larger or better aligned sizes".into(),
        Step::Copy { .. } => return "a copy: write the result in place".into(),
        Step::Loop(_) => return "a loop: what its body's steps need, or fewer and larger ones".into(),
        Step::Call(_) => return "a function of the runtime".into(),
    };
    if !row.on_host {
        let full = row.occupancy.filter(|(o, _)| o.percent() < HALF_FULL);
        let limiter = full.map_or(String::new(), |(o, _)| format!(" (now limited by {})", o.limiter));
        return format!(
            "neither memory nor arithmetic: more blocks at once{limiter}, wider accesses or fewer instructions would help"
        );
    }
    let launches = planned.launches.iter().filter(|l| kernels.contains(&l.kernel));
    let scalar = launches.flat_map(|l| &l.schedule.inner).find_map(|i| i.as_ref().err());
    match scalar {
        Some(reason) => format!("an inner loop runs one element at a time ({reason}): vectors would help"),
        None => "instructions, not bytes: wider vectors or cheaper functions would help".into(),
    }
}

fn json_of(row: &Row, total: f64) -> Value {
    json!({
        "step": row.number,
        "on_host": row.on_host,
        "what": row.what,
        "label": row.label,
        "ns": number_json(row.ns),
        "share": number_json(share(row, total)),
        "bytes": row.bytes,
        "flops": row.flops,
        "floor_ns": row.floor_ns.map(number_json),
        "model_wrong": row.floor_ns.is_some_and(|f| f > row.ns),
        "bound": row.bound,
        "advice": row.advice,
        "occupancy": row.occupancy.as_ref().map(|(o, _)| occupancy_json(o)),
        "registers": row.occupancy.and_then(|(_, registers)| registers),
        "local_bytes": row.local_bytes,
        "queue": row.queue,
        "iterations": row.iterations,
        "inner": row.inner.iter().map(|r| json_of(r, total)).collect::<Vec<_>>(),
    })
}

/// What there is of a device's memory, and how often it was asked for.
fn pool_text(p: &PoolUse) -> String {
    let pool = match p.pooled {
        true => format!(
            " of a pool that holds {}, at most {}",
            bytes_text(p.reserved),
            bytes_text(p.reserved_peak)
        ),
        false => String::new(),
    };
    format!(
        "{} allocated{pool}; {} spare; asked for {}, used again {}",
        bytes_text(p.allocated),
        bytes_text(p.spare),
        times_text(p.fresh),
        times_text(p.reused)
    )
}

fn times_text(count: u64) -> String {
    counted(usize::try_from(count).unwrap_or(usize::MAX), "time")
}

fn pool_json(device: &str, p: &PoolUse) -> Value {
    json!({
        "device": device,
        "pooled": p.pooled,
        "allocated_bytes": p.allocated,
        "allocated_peak_bytes": p.allocated_peak,
        "spare_bytes": p.spare,
        "reserved_bytes": p.reserved,
        "reserved_peak_bytes": p.reserved_peak,
        "fresh": p.fresh,
        "reused": p.reused,
    })
}

/// How full a multiprocessor is of a kernel's blocks.
fn occupancy_text(row: &Row) -> String {
    match row.occupancy {
        None => String::new(),
        Some((o, Some(registers))) => {
            let spilled = match row.local_bytes {
                Some(bytes) if bytes > 0 => {
                    format!(" and {bytes} bytes of local memory, for what registers had no room for,")
                }
                _ => String::new(),
            };
            format!("; {registers} registers{spilled} a thread, {o}")
        }
        Some((o, None)) => format!("; at most {o}"),
    }
}

/// Time over limit. A limit that is beaten is none.
fn ratio_text(row: &Row) -> String {
    match row.floor_ns.filter(|f| *f > 0.0) {
        None => "?".into(),
        Some(floor) if floor > row.ns => "beaten".into(),
        Some(floor) => format!("{:.2}x", row.ns / floor),
    }
}

/// The share of a call's time.
fn share(row: &Row, total: f64) -> f64 {
    if total > 0.0 { row.ns / total } else { 0.0 }
}

/// Runs the command.
pub fn run(session: &Session, args: &Profile) -> Result<(), Failure> {
    let mut prepared = Prepared::new(session, &args.model, &args.inputs, Specialize::Never)?;
    let times = prepared.steps(Duration::from_secs_f64(args.time))?;
    let (devices, measured) = limits_of(prepared.executable.devices());
    let plan = prepared.executable.plan();
    let costs = step_costs_of_call(plan, &devices, &prepared.sizes, &times.loops);
    let costs: Vec<InnerCost> = costs.into_iter().map(|(number, cost)| (number, cost, 1)).collect();
    let rows = Rows {
        plan,
        planned: &prepared.executable.decisions().planned,
        devices: &devices,
        sizes: &prepared.sizes,
        loops: &times.loops,
        prefix: String::new(),
        registers: &|kernel| prepared.executable.kernel_registers(kernel),
        local_bytes: &|kernel| prepared.executable.kernel_local_bytes(kernel),
    };
    let rows = rows.all(&times.steps, &costs);
    let total: f64 = rows.iter().map(|r| r.ns).sum();
    if session.console.json() {
        return session.console.json_result(&json!({
            "graph": prepared.model.graph.name,
            "threads": devices.host().threads,
            "total_ns": number_json(total),
            "measured_machine": measured,
            "pools": session.pool_uses().iter().map(|(device, p)| pool_json(device, p)).collect::<Vec<_>>(),
            "steps": rows.iter().map(|r| json_of(r, total)).collect::<Vec<_>>(),
        }));
    }
    let mut text = format!(
        "@{}: {} in {}, {}\n\n",
        prepared.model.graph.name,
        time_text(total),
        counted(rows.len(), "step"),
        counted(devices.host().threads, "thread")
    );
    let mut all = Vec::new();
    listed(&rows, &mut all);
    let width = all.iter().map(|r| r.what.len()).max().unwrap_or(0).max(15);
    let number = all.iter().map(|r| r.number.len()).max().unwrap_or(0).max(4);
    text += &format!(
        "{:>number$}  {:<width$} {:>10} {:>6} {:>10} {:>9} {:>10} {:>7}  {}\n",
        "step", "what", "time", "share", "bytes", "flops", "limit", "ratio", "bound by; computes; what would help"
    );
    for r in all {
        let known = |v: Option<u64>, f: fn(u64) -> String| v.map_or("?".into(), f);
        let iterations = r.iterations.map_or(String::new(), |n| {
            format!("{} of ", counted(usize::try_from(n).unwrap_or(usize::MAX), "iteration"))
        });
        text += &format!(
            "{:>number$}  {:<width$} {:>10} {:>5.1}% {:>10} {:>9} {:>10} {:>7}  {}; {iterations}{}; {}{}{}\n",
            r.number,
            r.what,
            time_text(r.ns),
            100.0 * share(r, total),
            known(r.bytes, bytes_text),
            known(r.flops, count_text),
            r.floor_ns.map_or("?".into(), time_text),
            ratio_text(r),
            r.bound,
            r.label,
            r.advice,
            occupancy_text(r),
            r.queue.map_or(String::new(), |q| format!("; in queue {q}"))
        );
    }
    for (device, pool) in session.pool_uses() {
        text += &format!("\nmemory of {device}: {}\n", pool_text(&pool));
    }
    session.console.result(&text)?;
    let mut all = Vec::new();
    listed(&rows, &mut all);
    let beaten = all.iter().filter(|r| r.floor_ns.is_some_and(|f| f > r.ns)).count();
    session.note_simulated();
    if !measured {
        session.console.note(&assumed_note(plan, "limits assume"));
    } else if beaten > 0 {
        let note = format!(
            "note: {} beaten: the model of this machine is wrong there, as where it was measured while other programs ran; `tlc hwbench` measures it again",
            counted(beaten, "limit")
        );
        session.console.note(&note);
    }
    Ok(())
}
