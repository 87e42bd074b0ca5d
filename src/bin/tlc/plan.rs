//! `tlc plan`: what a call would take, without running it.

use std::fmt::Write;

use clap::Args;
use serde_json::{Value, json};
use tlc::explain::{bytes_text, counted, time_text};
use tlc::prediction::{PredictedStep, Prediction, device_text, predict};
use tlc::{Device, RunError};
use tlc_ir::Graph;
use tlc_ir::binding::idle_symbols;
use tlc_ir::plan::DeviceId;
use tlc_ir::target::Gpu;
use tlc_passes::memory::pack;
use tlc_runtime::binding::Binder;
use tlc_runtime::null::{Counts, DeviceMemory};

use crate::args::ModelArgs;
use crate::data::number_json;
use crate::failure::{Code, Failure};
use crate::session::{Session, any_gpu, gpu_here, limits};

/// Arguments.
#[derive(Args, Debug)]
pub struct Plan {
    #[command(flatten)]
    model: ModelArgs,
}

/// The values of a graph's symbols: what data decides is as large as it may get, everything else needs a size.
fn sizes(graph: &Graph, file: &str) -> Result<Vec<i64>, Failure> {
    let mut values = Vec::new();
    for (s, idle) in graph.symbols().iter().zip(idle_symbols(graph, &[])) {
        let most = s.upper.as_ref().and_then(|e| e.eval_symbols(&values));
        let value = most.or((s.lo == s.hi || idle).then_some(s.lo));
        values.push(value.ok_or_else(|| {
            let (name, lo) = (&s.name, s.lo.max(1));
            let message = format!("the size `{name}` is open; expected a value for it, as in --set {name}={lo}");
            Failure::at(Code::Usage, file, message)
        })?);
    }
    Ok(values)
}

/// Runs the command.
pub fn run(session: &Session, args: &Plan) -> Result<(), Failure> {
    let model = session.model(&args.model)?;
    let symbols = sizes(&model.graph, &model.file)?;
    let idle = idle_symbols(&model.graph, &[]);
    let gpus: Vec<Gpu> = match session.global.device.unwrap_or_default() {
        Device::Cpu => Vec::new(),
        // They need not be here.
        first => std::iter::once(first)
            .chain(session.global.beside.iter().copied())
            .map(|d| gpu_here(d).map_or_else(any_gpu, |p| tlc_runtime::target::gpu(&p)))
            .collect(),
    };
    let devices = session.devices(gpus)?;
    let compiled = session.plan_for(&model, devices.clone())?;
    let plan = &compiled.planned.plan;
    let binder = Binder {
        plan,
        given: &[],
        idle: &idle,
        packer: pack,
    };
    let sizes = binder.bind_sizes(&symbols).map_err(|e| Failure::run(&model.file, &e))?;
    let (host, measured) = limits(devices.host());
    let devices = devices.with_host(host);
    let predicted = predict(plan, &sizes, &devices).map_err(|e| Failure::run(&model.file, &e))?;
    let needs = predicted.memory.iter().map(DeviceMemory::total);
    let most = (0..).map(DeviceId).zip(needs).max_by_key(|(_, needed)| *needed);
    if let (Some(limit), Some((device, needed))) = (session.global.max_memory, most)
        && needed > limit
    {
        let device = (device != DeviceId::HOST).then(|| device_text(plan, device).to_string());
        let error = RunError::MemoryLimit { needed, limit, device };
        return Err(Failure::run(&model.file, &error));
    }
    if session.console.json() {
        return session.console.json_result(&for_programs(plan, &predicted));
    }
    session.console.result(&for_people(plan, &predicted))?;
    if !measured {
        session
            .console
            .note("note: times assume a modest machine; `tlc hwbench` measures this one");
    }
    Ok(())
}

fn for_people(plan: &tlc_ir::Plan, predicted: &Prediction) -> String {
    let mut out = String::new();
    let several = plan.devices.len() > 1;
    // Writing to a String cannot fail.
    let _ = write_steps(&mut out, plan, predicted, several);
    let _ = write_totals(&mut out, plan, predicted);
    out
}

fn write_steps(out: &mut String, plan: &tlc_ir::Plan, predicted: &Prediction, several: bool) -> std::fmt::Result {
    writeln!(out, "steps")?;
    let place = |s: &PredictedStep| match s.counted.from == s.counted.device {
        true => device_text(plan, s.counted.device),
        false => format!(
            "{} to {}",
            device_text(plan, s.counted.from),
            device_text(plan, s.counted.device)
        ),
    };
    for s in &predicted.steps {
        let (start, time) = (time_text(s.start_ns), time_text(s.ns));
        write!(out, "  {:>4}", s.counted.step)?;
        if several {
            write!(out, "  {:<13}", place(s))?;
        }
        write!(out, "  at {start:>9}  {time:>9}  {}: {}", s.what, s.label)?;
        if plan.beside(s.counted.step).is_some() {
            write!(out, ", in queue {}", s.counted.queue.0)?;
        }
        if several && !s.counted.waits.is_empty() {
            let waits: Vec<String> = s.counted.waits.iter().map(usize::to_string).collect();
            write!(out, ", after {}", waits.join(", "))?;
        }
        writeln!(out)?;
    }
    Ok(())
}

fn write_totals(out: &mut String, plan: &tlc_ir::Plan, predicted: &Prediction) -> std::fmt::Result {
    let c = &predicted.counts;
    writeln!(out, "\na call")?;
    let about = if c.exact {
        ""
    } else {
        ", if loops run as often as they can, or once where that is open"
    };
    writeln!(out, "  predicted time  at least {}{about}", time_text(predicted.ns))?;
    let number = |n: u64, what: &str| counted(n as usize, what);
    let mut parts = vec![number(c.launches, "launch").replace("launchs", "launches")];
    let others = [
        (c.blocks, "block"),
        (c.products, "library product"),
        (c.calls, "host call"),
        (c.iterations, "loop iteration"),
    ];
    parts.extend(
        others
            .into_iter()
            .filter(|(n, _)| *n > 0)
            .map(|(n, what)| number(n, what)),
    );
    writeln!(out, "  work            {}", parts.join(", "))?;
    for (n, bytes, what) in [
        (c.copies, c.copied_bytes, "copied"),
        (c.transfers, c.transferred_bytes, "transferred"),
    ] {
        if n > 0 {
            writeln!(out, "  {what:<14}  {} in {}", bytes_text(bytes), number(n, "step"))?;
        }
    }
    writeln!(out, "\nmemory")?;
    for (device, m) in (0..).map(DeviceId).zip(&predicted.memory) {
        let parts = parts_of(m).into_iter().filter(|(_, bytes)| *bytes > 0);
        let parts: Vec<String> = parts
            .map(|(name, bytes)| format!("{name} {}", bytes_text(bytes)))
            .collect();
        let device = device_text(plan, device);
        match parts.is_empty() {
            true => writeln!(out, "  {device:<6} none")?,
            false => writeln!(out, "  {device:<6} {} = {}", parts.join(" + "), bytes_text(m.total()))?,
        }
    }
    Ok(())
}

fn parts_of(m: &DeviceMemory) -> [(&'static str, u64); 7] {
    [
        ("inputs", m.inputs),
        ("states", m.states),
        ("outputs", m.outputs),
        ("constants", m.constants),
        ("kept", m.kept),
        ("arena", m.arena),
        ("scratch", m.scratch),
    ]
}

fn counts_json(c: &Counts) -> Value {
    json!({
        "launches": c.launches,
        "blocks": c.blocks,
        "products": c.products,
        "host_calls": c.calls,
        "iterations": c.iterations,
        "copies": c.copies,
        "copied_bytes": c.copied_bytes,
        "transfers": c.transfers,
        "transferred_bytes": c.transferred_bytes,
        "waits": c.waits,
        "exact": c.exact,
    })
}

fn for_programs(plan: &tlc_ir::Plan, predicted: &Prediction) -> Value {
    let step = |s: &PredictedStep| {
        json!({
            "step": s.counted.step,
            "what": s.what,
            "label": s.label,
            "device": device_text(plan, s.counted.device),
            "from": device_text(plan, s.counted.from),
            "queue": s.counted.queue.0,
            "waits": s.counted.waits,
            "start_ns": number_json(s.start_ns),
            "ns": number_json(s.ns),
            "counts": counts_json(&s.counted.counts),
        })
    };
    let memory = |(device, m): (DeviceId, &DeviceMemory)| {
        let parts = parts_of(m)
            .into_iter()
            .map(|(name, bytes)| (format!("{name}_bytes"), json!(bytes)));
        let mut all: serde_json::Map<String, Value> = parts.collect();
        all.insert("device".into(), json!(device_text(plan, device)));
        all.insert("bytes".into(), json!(m.total()));
        Value::Object(all)
    };
    json!({
        "predicted_ns": number_json(predicted.ns),
        "counts": counts_json(&predicted.counts),
        "memory": (0..).map(DeviceId).zip(&predicted.memory).map(memory).collect::<Vec<_>>(),
        "steps": predicted.steps.iter().map(step).collect::<Vec<_>>(),
    })
}
