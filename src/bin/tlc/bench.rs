//! `tlc bench`: the median time of a model against the hardware's limit, and against an earlier one.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tlc::explain::{counted, time_text};
use tlc_runtime::machine::MachineInfo;

use crate::args::ModelArgs;
use crate::console::with_schema;
use crate::data::{InputSpec, input_spec, number_json};
use crate::failure::{Code, Failure};
use crate::session::{Session, display, limits};
use crate::staging::write_file;
use crate::timing::{Prepared, median};

/// Arguments.
#[derive(Args, Debug)]
pub struct Bench {
    #[command(flatten)]
    model: ModelArgs,
    /// An input, as in x=x.npy [default: random]
    #[arg(long = "input", short = 'i', value_name = "NAME=SOURCE", value_parser = input_spec)]
    inputs: Vec<InputSpec>,
    /// How long to measure, in seconds
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = seconds)]
    time: f64,
    /// Save the result
    #[arg(long, value_name = "FILE.json")]
    save: Option<PathBuf>,
    /// Compare with a saved result; slower by more than the tolerance is exit code 1
    #[arg(long, value_name = "FILE.json")]
    against: Option<PathBuf>,
    /// How much slower than --against is still no failure, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 10.0)]
    tolerance: f64,
}

/// Reads a positive number of seconds.
pub fn seconds(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|v| (0.0..=3600.0).contains(v));
    value.ok_or_else(|| "expected a number of seconds from 0 to 3600".into())
}

/// What a saved result must have to be compared with.
#[derive(Serialize, Deserialize)]
struct Saved {
    schema: u32,
    graph: String,
    cpu: String,
    threads: usize,
    median_ns: f64,
}

fn read_saved(path: &Path) -> Result<Saved, Failure> {
    let file = display(path);
    let bytes = std::fs::read(path).map_err(|e| Failure::reading(&file, &e))?;
    let saved: Saved = serde_json::from_slice(&bytes).map_err(|e| {
        Failure::at(
            Code::Invalid,
            &file,
            format!("not a saved benchmark: {e}; expected what --save writes"),
        )
    })?;
    if saved.schema != 1 || saved.median_ns.is_nan() || saved.median_ns <= 0.0 {
        let message = format!("expected a saved benchmark of schema 1, found schema {}", saved.schema);
        return Err(Failure::at(Code::Invalid, &file, message));
    }
    Ok(saved)
}

/// Runs the command.
pub fn run(session: &Session, args: &Bench) -> Result<(), Failure> {
    // A comparison that cannot be made should not be waited for.
    let saved = args.against.as_deref().map(read_saved).transpose()?;
    let mut prepared = Prepared::new(session, &args.model, &args.inputs)?;
    let mut samples = prepared.samples(Duration::from_secs_f64(args.time))?;
    let middle = median(&mut samples);
    let (lo, hi) = (samples[0], samples[samples.len() - 1]);
    let (target, measured) = limits(prepared.executable.target());
    let floor = prepared.floor_ns(&target);
    let cpu = MachineInfo::detect_without_gpu().cpu.key();
    let graph = prepared.model.graph.name.clone();
    let ratio = saved.as_ref().map(|s| middle / s.median_ns);
    let mut result = json!({
        "graph": graph,
        "cpu": cpu,
        "threads": target.threads,
        "median_ns": number_json(middle),
        "min_ns": number_json(lo),
        "max_ns": number_json(hi),
        "samples": samples.len(),
        "floor_ns": floor.map(number_json),
        "measured_machine": measured,
        "compile_ns": prepared.compile.as_nanos() as u64,
    });
    if let Some(path) = &args.save {
        let text = serde_json::to_string_pretty(&with_schema(&result)).unwrap_or_default();
        write_file(path, (text + "\n").as_bytes())?;
    }
    if let (Some(saved), Some(ratio)) = (&saved, ratio) {
        if saved.cpu != cpu || saved.threads != target.threads || saved.graph != graph {
            session.console.note(&format!(
                "note: the saved result is of @{} on {} with {} threads, this one of @{graph} on {cpu} with {}",
                saved.graph, saved.cpu, saved.threads, target.threads
            ));
        }
        result["against_ns"] = number_json(saved.median_ns);
        result["ratio"] = number_json(ratio);
    }
    if session.console.json() {
        session.console.json_result(&result)?;
    } else {
        let text = human(&result, middle, floor, ratio, samples.len(), (lo, hi), target.threads);
        session.console.result(&text)?;
        if !measured {
            session
                .console
                .note("note: the limit assumes a modest machine; `tlc hwbench` measures this one");
        }
    }
    match ratio {
        Some(ratio) if ratio > 1.0 + args.tolerance / 100.0 => {
            let message = format!(
                "{ratio:.2}x the saved time; expected at most {:.2}x",
                1.0 + args.tolerance / 100.0
            );
            Err(Failure::at(Code::Failed, &prepared.model.file, message))
        }
        _ => Ok(()),
    }
}

fn human(
    result: &Value,
    middle: f64,
    floor: Option<f64>,
    ratio: Option<f64>,
    samples: usize,
    (lo, hi): (f64, f64),
    threads: usize,
) -> String {
    let name = result["graph"].as_str().unwrap_or_default();
    let mut text = format!(
        "@{name}: median {} of {samples} samples ({} to {}), {}\n",
        time_text(middle),
        time_text(lo),
        time_text(hi),
        counted(threads, "thread")
    );
    text += &match floor {
        Some(floor) if floor > 0.0 => format!("limit {}: {:.2}x the limit\n", time_text(floor), middle / floor),
        Some(_) => "limit 0 ns: nothing to compute\n".into(),
        None => "limit unknown: sizes are symbolic; --set NAME=N fixes them\n".into(),
    };
    if let Some(ratio) = ratio {
        let word = if ratio <= 1.0 { "faster" } else { "slower" };
        let factor = if ratio <= 1.0 { 1.0 / ratio } else { ratio };
        text += &format!("against the saved time: {factor:.2}x {word}\n");
    }
    text
}
