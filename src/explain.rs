//! What the compiler decided, as text: clusters and why, refusals and why, kernels with bytes, flops and predicted time,
//! contraction orders, memory.

use std::fmt::Write;

use tlc_ir::index::IndexExpr;
use tlc_ir::plan::{Launch, Layout, Plan, Step};
use tlc_ir::{NodeKind, Target};
use tlc_passes::Compiled;
use tlc_passes::reason::FusionDecision;

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
    /// Predicted nanoseconds on one thread, if no size is symbolic.
    pub predicted_ns: Option<f64>,
    /// What bounds it: `bytes` or `flops`.
    pub bound: &'static str,
}

fn constant(e: &IndexExpr) -> Option<u64> {
    e.as_const().and_then(|v| u64::try_from(v).ok())
}

/// The least time, in nanoseconds, that a target needs to move `bytes` and compute `flops` at full width (a library's
/// product), and which of the two it is.
pub fn floor_ns(target: &Target, bytes: u64, flops: u64) -> (f64, &'static str) {
    floor_at(target, bytes, flops, target.f32_flops_per_second)
}

/// As [`floor_ns`], for a kernel: its arithmetic runs at the lanes that the emitter has, one operation an instruction.
pub fn kernel_floor_ns(target: &Target, bytes: u64, flops: u64) -> (f64, &'static str) {
    let lanes = f64::from(target.vector_bits / 32);
    floor_at(target, bytes, flops, target.vector_ops_per_second * lanes)
}

fn floor_at(target: &Target, bytes: u64, flops: u64, flops_per_second: f64) -> (f64, &'static str) {
    let bandwidth = match bytes {
        b if b <= target.l2_bytes => target.bytes_per_second[0],
        b if b <= target.l3_bytes => target.bytes_per_second[1],
        _ => target.bytes_per_second[2],
    };
    let moving = bytes as f64 / bandwidth * 1e9;
    let computing = flops as f64 / flops_per_second * 1e9;
    if moving >= computing {
        (moving, "bytes")
    } else {
        (computing, "flops")
    }
}

fn launch_cost(l: &Launch, target: &Target) -> StepCost {
    let (bytes, flops) = (constant(&l.bytes), constant(&l.flops));
    let floor = bytes.zip(flops).map(|(b, f)| kernel_floor_ns(target, b, f));
    StepCost {
        label: l.label.clone(),
        step: format!("kernel {}", l.kernel.0),
        bytes,
        flops,
        predicted_ns: floor.map(|f| f.0),
        bound: floor.map_or("bytes", |f| f.1),
    }
}

/// The cost of every step; launches of a group count one by one under the number of their step.
pub fn step_costs(plan: &Plan, target: &Target) -> Vec<(usize, StepCost)> {
    let mut out = Vec::new();
    for (number, step) in plan.steps.iter().enumerate() {
        match step {
            Step::Launch(l) => out.push((number, launch_cost(l, target))),
            Step::Group(all) => out.extend(all.iter().map(|l| (number, launch_cost(l, target)))),
            Step::Gemm(g) => {
                let batch = IndexExpr::product(&g.batch);
                let width = IndexExpr::from(g.dtype.bytes());
                let flops = batch.clone() * g.m.clone() * g.n.clone() * g.k.clone() * IndexExpr::Const(2);
                let area = g.m.clone() * g.k.clone() + g.k.clone() * g.n.clone() + g.m.clone() * g.n.clone();
                let (bytes, flops) = (constant(&(batch * area * width)), constant(&flops));
                let floor = bytes.zip(flops).map(|(b, f)| floor_ns(target, b, f));
                out.push((
                    number,
                    StepCost {
                        label: g.label.clone(),
                        step: "library matmul".into(),
                        bytes,
                        flops,
                        predicted_ns: floor.map(|f| f.0),
                        bound: floor.map_or("flops", |f| f.1),
                    },
                ));
            }
            Step::Copy { src, .. } => {
                let slot = &plan.slots[src.0 as usize];
                let bytes = constant(&slot.len).map(|n| 2 * n * slot.dtype.bytes() as u64);
                let floor = bytes.map(|b| floor_ns(target, b, 0));
                let label = format!("copy {}", slot.name);
                let cost = StepCost {
                    label,
                    step: "copy".into(),
                    bytes,
                    flops: Some(0),
                    predicted_ns: floor.map(|f| f.0),
                    bound: "bytes",
                };
                out.push((number, cost));
            }
        }
    }
    out
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

/// A time in nanoseconds for people: `1.25 us`.
pub fn time_text(ns: f64) -> String {
    match ns {
        n if n < 1e3 => format!("{n:.0} ns"),
        n if n < 1e6 => format!("{:.2} us", n / 1e3),
        n if n < 1e9 => format!("{:.2} ms", n / 1e6),
        n => format!("{:.2} s", n / 1e9),
    }
}

fn node_text(compiled: &Compiled, node: tlc_ir::NodeId) -> String {
    let n = compiled.graph.node(node);
    let name = match &n.kind {
        NodeKind::Reduce { monoid, .. } => format!("reduce {}", monoid.name()),
        kind => kind.name().to_string(),
    };
    format!("{node} {name} {}", compiled.graph.type_text(&n.ty))
}

/// The memory line: arena, lower bound, without sharing.
pub fn layout_text(layout: &Layout) -> String {
    format!(
        "arena {} (lower bound {}, without sharing {})",
        bytes_text(layout.arena_bytes),
        bytes_text(layout.lower_bound_bytes),
        bytes_text(layout.naive_bytes)
    )
}

/// Everything the compiler decided, for people.
pub fn explain(compiled: &Compiled, target: &Target) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write_report(&mut out, compiled, target);
    out
}

fn write_report(out: &mut String, compiled: &Compiled, target: &Target) -> std::fmt::Result {
    let planned = &compiled.planned;
    let plan = &planned.plan;
    writeln!(
        out,
        "graph @{}: {} nodes, {} clusters, {} kernels, {} steps",
        compiled.graph.name,
        compiled.graph.len(),
        compiled.clusters.clusters.len(),
        plan.kernels.len(),
        plan.steps.len()
    )?;
    for p in &compiled.paths {
        writeln!(out, "\ncontraction order of {}:", p.node)?;
        for line in p.path.to_string().lines() {
            writeln!(out, "  {line}")?;
        }
    }
    writeln!(out, "\nsteps")?;
    for (number, cost) in step_costs(plan, target) {
        let bytes = cost.bytes.map_or("?".into(), bytes_text);
        let flops = cost.flops.map_or("?".into(), count_text);
        let time = cost.predicted_ns.map_or("?".into(), time_text);
        writeln!(
            out,
            "  {number:>3}  {:<14} {:<40} {bytes:>10} {flops:>9} flops  at least {time} (bound by {})",
            cost.step, cost.label, cost.bound
        )?;
    }
    writeln!(out, "\nclusters")?;
    for (number, c) in compiled.clusters.clusters.iter().enumerate() {
        let how = match &c.kind {
            tlc_passes::cluster::ClusterKind::Loops(space) => {
                format!("one loop nest over {}", compiled.graph.shape_text(&space.parallel))
            }
            tlc_passes::cluster::ClusterKind::Gemm(_) => "a matrix product by the library".into(),
            tlc_passes::cluster::ClusterKind::Scan => "a serial scan".into(),
            tlc_passes::cluster::ClusterKind::Scatter => "a copy and serial updates".into(),
        };
        writeln!(out, "  cluster {number}: {how}")?;
        for &r in &c.roots {
            let kept = if c.stored.contains(&r) {
                "stored"
            } else {
                "stays in the kernel"
            };
            writeln!(out, "    {}: {kept}", node_text(compiled, r))?;
        }
        for l in planned.launches.iter().filter(|l| l.cluster == number) {
            let inner: Vec<String> = l
                .schedule
                .inner
                .iter()
                .map(|i| match i {
                    Ok(lanes) => format!("{lanes} lanes"),
                    Err(reason) => format!("scalar ({reason})"),
                })
                .collect();
            writeln!(
                out,
                "    kernel {}: {:?} form, {} directives, inner loops: {}",
                l.kernel.0,
                l.form,
                l.schedule.directives.len(),
                if inner.is_empty() {
                    "none".into()
                } else {
                    inner.join(", ")
                }
            )?;
            for copy in &l.schedule.copies {
                writeln!(out, "      {copy}")?;
            }
        }
    }
    writeln!(out, "\nfusion decisions")?;
    for FusionDecision {
        producer,
        consumer,
        reason,
    } in &compiled.clusters.decisions
    {
        let verdict = if reason.accepted() { "fused  " } else { "refused" };
        writeln!(out, "  {verdict} {producer} -> {consumer}: {reason}")?;
    }
    writeln!(out, "\nmemory")?;
    match &planned.layout {
        Some(layout) => writeln!(out, "  {}", layout_text(layout))?,
        None => writeln!(out, "  sizes are symbolic: the arena is laid out when they are bound")?,
    }
    for a in &planned.aliases {
        let name = |s: tlc_ir::plan::SlotId| &plan.slots[s.0 as usize].name;
        writeln!(out, "  {} over {}: {}", name(a.slot), name(a.of), a.reason)?;
    }
    Ok(())
}
