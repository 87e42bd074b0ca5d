//! `tlc profile`: per step, its time, bytes, flops, what bounds it, its share, and what would help.

use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use tlc::explain::{bytes_text, count_text, counted, step_costs, time_text};
use tlc_ir::Target;
use tlc_ir::plan::{Plan, Step};
use tlc_passes::Compiled;

use crate::args::ModelArgs;
use crate::bench::seconds;
use crate::data::{InputSpec, input_spec, number_json};
use crate::failure::Failure;
use crate::session::{Session, limits};
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

/// One step, measured.
struct Row {
    what: String,
    label: String,
    bytes: Option<u64>,
    flops: Option<u64>,
    floor_ns: Option<f64>,
    bound: &'static str,
    ns: f64,
    advice: String,
}

/// Steps shorter than this are mostly dispatch, in nanoseconds.
const DISPATCH_NS: f64 = 1_000.0;

fn rows(plan: &Plan, compiled: &Compiled, target: &Target, times: &[f64]) -> Vec<Row> {
    let costs = step_costs(plan, target);
    let sum = |all: &mut dyn Iterator<Item = Option<u64>>| all.sum::<Option<u64>>();
    let of_step = |(number, step): (usize, &Step)| {
        let own: Vec<_> = costs.iter().filter(|(n, _)| *n == number).map(|(_, c)| c).collect();
        let floor_ns = own.iter().map(|c| c.predicted_ns).sum::<Option<f64>>();
        let flops_bound = own.iter().filter(|c| c.bound == "flops").count() * 2 > own.len();
        let mut row = Row {
            what: match own.as_slice() {
                [one] => one.step.clone(),
                all => format!("group of {}", all.len()),
            },
            label: own.iter().map(|c| c.label.as_str()).collect::<Vec<_>>().join(", "),
            bytes: sum(&mut own.iter().map(|c| c.bytes)),
            flops: sum(&mut own.iter().map(|c| c.flops)),
            floor_ns,
            bound: if flops_bound { "flops" } else { "bytes" },
            ns: times[number],
            advice: String::new(),
        };
        row.advice = advice(&row, step, compiled);
        row
    };
    plan.steps.iter().enumerate().map(of_step).collect()
}

/// What would make a step faster.
fn advice(row: &Row, step: &Step, compiled: &Compiled) -> String {
    let Some(floor) = row.floor_ns else {
        return "sizes are symbolic: --set NAME=N gives a limit".into();
    };
    let ratio = row.ns / floor.max(1.0);
    if row.ns < DISPATCH_NS {
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
        Step::Group(all) => all.iter().map(|l| l.kernel).collect(),
        Step::Gemm(_) => return "a library product of this shape: larger or better aligned sizes".into(),
        Step::Copy { .. } => return "a copy: write the result in place".into(),
        Step::Loop(_) => return "a loop: fewer or larger steps in its body (see `tlc explain`)".into(),
        Step::Call(_) => return "a function of the runtime".into(),
    };
    let launches = compiled.planned.launches.iter().filter(|l| kernels.contains(&l.kernel));
    let scalar = launches.flat_map(|l| &l.schedule.inner).find_map(|i| i.as_ref().err());
    match scalar {
        Some(reason) => format!("an inner loop runs one element at a time ({reason}): vectors would help"),
        None => "instructions, not bytes: wider vectors or cheaper functions would help".into(),
    }
}

/// Runs the command.
pub fn run(session: &Session, args: &Profile) -> Result<(), Failure> {
    let mut prepared = Prepared::new(session, &args.model, &args.inputs)?;
    let times = prepared.steps(Duration::from_secs_f64(args.time))?;
    let (target, measured) = limits(prepared.executable.target());
    let rows = rows(
        prepared.executable.plan(),
        prepared.executable.decisions(),
        &target,
        &times,
    );
    let total: f64 = rows.iter().map(|r| r.ns).sum();
    let share = |r: &Row| if total > 0.0 { r.ns / total } else { 0.0 };
    if session.console.json() {
        let steps: Vec<Value> = rows
            .iter()
            .enumerate()
            .map(|(i, r)| {
                json!({
                    "step": i,
                    "what": r.what,
                    "label": r.label,
                    "ns": number_json(r.ns),
                    "share": number_json(share(r)),
                    "bytes": r.bytes,
                    "flops": r.flops,
                    "floor_ns": r.floor_ns.map(number_json),
                    "bound": r.bound,
                    "advice": r.advice,
                })
            })
            .collect();
        return session.console.json_result(&json!({
            "graph": prepared.model.graph.name,
            "threads": target.threads,
            "total_ns": number_json(total),
            "measured_machine": measured,
            "steps": steps,
        }));
    }
    let mut text = format!(
        "@{}: {} in {}, {}\n\n",
        prepared.model.graph.name,
        time_text(total),
        counted(rows.len(), "step"),
        counted(target.threads, "thread")
    );
    let width = rows.iter().map(|r| r.what.len()).max().unwrap_or(0).max(15);
    text += &format!(
        "{:>4}  {:<width$} {:>10} {:>6} {:>10} {:>9} {:>10} {:>7}  {}\n",
        "step", "what", "time", "share", "bytes", "flops", "limit", "ratio", "bound by; computes; what would help"
    );
    for (i, r) in rows.iter().enumerate() {
        let known = |v: Option<u64>, f: fn(u64) -> String| v.map_or("?".into(), f);
        text += &format!(
            "{i:>4}  {:<width$} {:>10} {:>5.1}% {:>10} {:>9} {:>10} {:>7}  {}; {}; {}\n",
            r.what,
            time_text(r.ns),
            100.0 * share(r),
            known(r.bytes, bytes_text),
            known(r.flops, count_text),
            r.floor_ns.map_or("?".into(), time_text),
            r.floor_ns
                .filter(|f| *f > 0.0)
                .map_or("?".into(), |f| format!("{:.2}x", r.ns / f)),
            r.bound,
            r.label,
            r.advice
        );
    }
    session.console.result(&text)?;
    if !measured {
        session
            .console
            .note("note: limits assume a modest machine; `tlc hwbench` measures this one");
    }
    Ok(())
}
