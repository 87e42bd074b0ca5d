//! What a call would take: steps on their queues, memory, and the least time that the speeds of the devices allow. Nothing runs.
//!
//! Each step takes its floor, the larger of bytes / bandwidth and operations / peak, and begins when its queue is free, what it waits
//! for is done and the host has come to it; so copies overlap with kernels as far as the plan lets them.

use tlc_ir::Target;
use tlc_ir::plan::{Plan, QueueId, Step};
use tlc_passes::devices::Devices;
use tlc_runtime::binding::Sizes;
use tlc_runtime::error::RunError;
use tlc_runtime::null::{self, CountedStep, Counts, DeviceMemory};

pub use crate::explain::device_text;
use crate::explain::step_costs_of_call;

/// A step of a call, and when it would run.
#[derive(Clone, PartialEq, Debug)]
pub struct PredictedStep {
    /// Its place in the plan, and what it takes.
    pub counted: CountedStep,
    /// `kernel 3`, `library matmul`, `copy`.
    pub what: String,
    /// What it computes.
    pub label: String,
    /// Nanoseconds from the beginning of the call to its own.
    pub start_ns: f64,
    /// Nanoseconds that it takes.
    pub ns: f64,
}

/// What a call would take.
#[derive(Clone, PartialEq, Debug)]
pub struct Prediction {
    /// The steps, in the order of the plan.
    pub steps: Vec<PredictedStep>,
    /// What all of them take.
    pub counts: Counts,
    /// The memory on each device.
    pub memory: Vec<DeviceMemory>,
    /// Nanoseconds until the last step is done.
    pub ns: f64,
}

/// What a call of a plan for these devices would take.
///
/// # Errors
/// If a size overflows.
pub fn predict(plan: &Plan, sizes: &Sizes, devices: &Devices) -> Result<Prediction, RunError> {
    let (counts, counted) = null::call(plan, sizes)?;
    let threads = devices.host().threads;
    let known: Vec<Option<i64>> = sizes.symbols.iter().map(|&v| Some(v)).collect();
    let mut costs = step_costs_of_call(plan, devices, &known, &[]).into_iter().peekable();
    let mut free = vec![0f64; plan.queues.len()];
    let mut ends: Vec<f64> = Vec::with_capacity(counted.len());
    let mut steps = Vec::with_capacity(counted.len());
    let mut loops = 0;
    for counted in counted {
        let (mut bytes, mut flops, mut on_host) = (0, 0, 0.0);
        let (mut what, mut labels): (String, Vec<String>) = (String::new(), Vec::new());
        // Launches of a group cost one by one.
        while let Some((_, cost)) = costs.next_if(|(number, _)| *number == counted.step) {
            bytes += cost.bytes.unwrap_or(0);
            flops += cost.flops.unwrap_or(0);
            on_host += cost.predicted_ns.unwrap_or(0.0);
            what = match (&plan.steps[counted.step], labels.is_empty()) {
                (Step::Sequence(_), _) => "sequence".into(),
                (_, true) => cost.step,
                (_, false) => "group".into(),
            };
            labels.push(cost.label);
        }
        let ns = match &plan.steps[counted.step] {
            Step::Loop(l) => {
                let (iterations, _) = null::trips(l, &sizes.symbols)?;
                let inside = null::inside(l, sizes, loops)?;
                loops += 1;
                iterations as f64 * predict(&l.body, &inside, devices)?.ns
            }
            Step::Copy { src, .. } if counted.from != counted.device => {
                what = "transfer".into();
                labels = vec![plan.slots[src.0 as usize].name.clone()];
                let link = devices.link(counted.from, counted.device);
                let moved = counted.counts.transferred_bytes as f64;
                link.map_or(0.0, |l| (l.latency_seconds + moved / l.bytes_per_second) * 1e9)
            }
            _ => match devices.target(counted.device) {
                Target::Cpu(_) => on_host,
                Target::Gpu(gpu) => {
                    let matrices = plan.step_multiplies(&plan.steps[counted.step]);
                    let work = gpu.floor_ns(bytes, flops, matrices).0;
                    let started = counted.counts.launches.max(1) as f64;
                    work + started * gpu.launch_seconds * 1e9
                }
            },
        };
        let queue = counted.queue.0 as usize;
        let waits = counted.waits.iter().map(|&w| ends[w]);
        // The host comes to a step when its own steps before it are done.
        let start_ns = waits.fold(free[queue].max(free[QueueId::HOST.0 as usize]), f64::max);
        free[queue] = start_ns + ns;
        ends.push(start_ns + ns);
        steps.push(PredictedStep {
            counted,
            what,
            label: labels.join(", "),
            start_ns,
            ns,
        });
    }
    Ok(Prediction {
        steps,
        counts,
        memory: null::memory(plan, sizes, threads)?,
        ns: ends.into_iter().fold(0.0, f64::max),
    })
}
