//! `tlc explain`: what the compiler decides and why.

use clap::Args;
use serde_json::{Value, json};
use tlc::explain::{StepCost, bytes_text, step_costs};
use tlc_ir::plan::{Layout, Plan};
use tlc_ir::target::Occupancy;
use tlc_passes::cluster::ClusterKind;
use tlc_passes::reason::FusionDecision;

use crate::args::ModelArgs;
use crate::data::number_json;
use crate::failure::Failure;
use crate::session::{Session, limits_of};

/// Arguments.
#[derive(Args, Debug)]
pub struct Explain {
    #[command(flatten)]
    model: ModelArgs,
}

/// How full a multiprocessor is of a kernel's blocks, for programs.
pub fn occupancy_json(o: &Occupancy) -> Value {
    json!({ "blocks": o.blocks, "threads": o.threads, "percent": o.percent(), "limiter": o.limiter.name() })
}

/// A step's predicted cost for programs.
pub fn cost_json(number: usize, cost: &StepCost) -> Value {
    json!({
        "step": number,
        "what": cost.step,
        "label": cost.label,
        "bytes": cost.bytes,
        "flops": cost.flops,
        "bytes_formula": cost.bytes_formula,
        "flops_formula": cost.flops_formula,
        "floor_ns": cost.predicted_ns.map(number_json),
        "bound": cost.bound,
        "device": cost.device.0,
        "occupancy": cost.occupancy.as_ref().map(occupancy_json),
    })
}

/// An arena for programs.
pub fn layout_json(layout: &Layout) -> Value {
    json!({
        "arena_bytes": layout.host().bytes,
        "lower_bound_bytes": layout.host().lower_bound_bytes,
        "without_sharing_bytes": layout.host().naive_bytes,
    })
}

/// What times or limits go by that nobody measured; `assume` says which they are, as in `times assume`.
pub fn assumed_note(plan: &Plan, assume: &str) -> String {
    match plan.devices.len() {
        1 => format!("note: {assume} a modest machine; `tlc hwbench` measures this one"),
        _ => format!("note: {assume} the clocks that the driver names, and a modest host"),
    }
}

/// Runs the command.
pub fn run(session: &Session, args: &Explain) -> Result<(), Failure> {
    let model = session.model(&args.model)?;
    let mut options = session.compile_options()?;
    // Choices are noted where some could be measured, if only of no kernel.
    options.tuned.get_or_insert_default();
    let executable = session.compile_by(&model, &options)?;
    let (devices, measured) = limits_of(executable.devices());
    let compiled = executable.decisions();
    if !session.console.json() {
        let mut text = tlc::explain::explain(compiled, &devices);
        text += &format!(
            "\nmachine code\n  {} in all\n",
            bytes_text(executable.code_bytes() as u64)
        );
        session.console.result(&text)?;
        if !measured {
            session.console.note(&assumed_note(executable.plan(), "times assume"));
        }
        return Ok(());
    }
    let plan = executable.plan();
    // A plan without symbols and inputs of unknown size has its layout already.
    let layout = compiled.planned.layout.clone().or_else(|| executable.layout(&[]).ok());
    let clusters: Vec<Value> = compiled
        .clusters
        .clusters
        .iter()
        .enumerate()
        .map(|(number, c)| {
            let kernels: Vec<u32> = compiled
                .planned
                .launches
                .iter()
                .filter(|l| l.cluster == number)
                .map(|l| l.kernel.0)
                .collect();
            json!({
                "cluster": number,
                "kind": kind_name(&c.kind),
                "roots": c.roots.iter().map(|r| compiled.graph.node(*r).kind.name()).collect::<Vec<_>>(),
                "stored": c.stored.len(),
                "kernels": kernels,
            })
        })
        .collect();
    let decisions: Vec<Value> = compiled
        .clusters
        .ledger
        .edges()
        .into_iter()
        .filter_map(|edge| {
            let (last, before) = edge.split_last()?;
            let entry = |d: &FusionDecision| {
                json!({
                    "stage": d.stage.name(),
                    "fused": d.reason.accepted(),
                    "reason": d.reason.to_string(),
                })
            };
            Some(json!({
                "producer": compiled.graph.value_name(last.producer),
                "consumer": compiled.graph.value_name(last.consumer),
                "stage": last.stage.name(),
                "fused": last.reason.accepted(),
                "reason": last.reason.to_string(),
                "before": before.iter().map(|d| entry(d)).collect::<Vec<_>>(),
            }))
        })
        .collect();
    let schedules: Vec<Value> = compiled
        .planned
        .launches
        .iter()
        .map(|l| {
            let applied = l.schedule.applied.iter();
            let refused = l.schedule.refused.iter();
            json!({
                "kernel": l.kernel.0,
                "form": l.form.name(),
                "emitter": { "name": l.emitter.name, "reason": l.emitter.reason.to_string() },
                "applied": applied
                    .map(|a| json!({ "directive": a.directive.to_string(), "reason": a.reason.to_string() }))
                    .collect::<Vec<_>>(),
                "refused": refused
                    .map(|r| json!({
                        "directive": r.directive.to_string(),
                        "reason": r.reason.to_string(),
                        "refusal": r.refusal.to_string(),
                    }))
                    .collect::<Vec<_>>(),
            })
        })
        .collect();
    let paths: Vec<Value> = compiled
        .paths
        .iter()
        .map(|p| {
            json!({
                "node": p.value,
                "naive_flops": number_json(p.path.naive_flops),
                "flops": number_json(p.path.flops),
                "largest_intermediate_elements": number_json(p.path.largest_intermediate),
            })
        })
        .collect();
    let name = |s: tlc_ir::plan::SlotId| plan.slots[s.0 as usize].name.as_str();
    let aliases: Vec<Value> = compiled
        .planned
        .aliases
        .iter()
        .map(|a| json!({ "slot": name(a.slot), "over": name(a.of), "reason": a.reason.to_string() }))
        .collect();
    session.console.json_result(&json!({
        "graph": compiled.graph.name,
        "nodes": compiled.graph.len(),
        "kernels": plan.kernels.len(),
        "code_bytes": executable.code_bytes(),
        "measured_machine": measured,
        "steps": step_costs(plan, &devices).iter().map(|(n, c)| cost_json(*n, c)).collect::<Vec<_>>(),
        "clusters": clusters,
        "decisions": decisions,
        "schedules": schedules,
        "contractions": paths,
        "memory": layout.as_ref().map(layout_json),
        "aliases": aliases,
    }))
}

fn kind_name(kind: &ClusterKind) -> &'static str {
    match kind {
        ClusterKind::Loops(_) => "loops",
        ClusterKind::Gemm(_) => "library matmul",
        ClusterKind::Attention(_) => "attention",
        ClusterKind::ProductRows(_) => "rows of a product",
        ClusterKind::WeightGradient(_) => "weight gradient",
        ClusterKind::Scan(_) => "scan",
        ClusterKind::Scatter(_) => "scatter",
        ClusterKind::Join(_) => "concatenation in place",
        ClusterKind::Loop => "loop",
        ClusterKind::Call => "call",
    }
}
