//! `tlc bench`: the median time of a model against the hardware's limit, and against an earlier one.

use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tlc::explain::{counted, time_text};
use tlc::{Device, Specialize};
use tlc_runtime::machine::MachineInfo;

use crate::args::ModelArgs;
use crate::console::with_schema;
use crate::data::{InputSpec, input_spec, number_json};
use crate::explain::assumed_note;
use crate::failure::{Code, Failure};
use crate::session::{Session, display, limits_of};
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
    /// Leave inputs and outputs in the memory of the GPU of --device, in place of copying them at each call
    #[arg(long)]
    resident: bool,
    /// Measure the code for any sizes, without the versions for sizes that recur which calls come to
    #[arg(long)]
    any_sizes: bool,
    /// Save the result
    #[arg(long, value_name = "FILE.json")]
    save: Option<PathBuf>,
    /// Compare with a saved result of the same graph, sizes, CPU, vector level, threads and GPU; slower by more than the tolerance is exit code 1
    #[arg(long, value_name = "FILE.json")]
    against: Option<PathBuf>,
    /// How much slower than --against is still no failure, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 10.0, value_parser = percent)]
    tolerance: f64,
}

/// Reads a positive number of seconds.
pub fn seconds(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|v| (0.0..=3600.0).contains(v));
    value.ok_or_else(|| "expected a number of seconds from 0 to 3600".into())
}

/// Reads a tolerance: with NaN or infinity nothing would ever be too slow.
fn percent(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|v| v.is_finite());
    value.ok_or_else(|| "expected a finite number of percent, as in 10".into())
}

/// What a saved result must have to be compared with.
#[derive(Serialize, Deserialize)]
struct Saved {
    schema: u32,
    #[serde(flatten)]
    of: Measured,
    median_ns: f64,
}

/// What was measured: times are comparable only where all of it is the same.
#[derive(Serialize, Deserialize, PartialEq, Eq)]
struct Measured {
    /// The graph's name.
    graph: String,
    /// A number for the graph's text, its sizes included.
    graph_id: String,
    cpu: String,
    /// The widest vectors that kernels used. Results of earlier versions do not say.
    #[serde(default)]
    kernel_level: Option<String>,
    threads: usize,
    /// The GPU that it ran on, if it did.
    #[serde(default)]
    gpu: Option<String>,
    /// Whether inputs and outputs stayed in its memory.
    #[serde(default)]
    resident: bool,
    /// Whether it is the code for any sizes, without versions for sizes that recur.
    #[serde(default)]
    any_sizes: bool,
}

impl Measured {
    fn new(prepared: &Prepared, threads: usize, gpu: Option<String>, args: &Bench) -> Measured {
        let graph = &prepared.model.graph;
        let mut hasher = rustc_hash::FxHasher::default();
        (graph.to_string(), &prepared.sizes).hash(&mut hasher);
        Measured {
            graph: graph.name.clone(),
            graph_id: format!("{:016x}", hasher.finish()),
            cpu: MachineInfo::detect_without_gpu().cpu.key(),
            kernel_level: Some(tlc_runtime::cpu::level::name().to_string()),
            threads,
            gpu,
            resident: args.resident,
            any_sizes: args.any_sizes,
        }
    }

    /// Refuses a saved result of something else than this.
    fn check(&self, saved: &Measured, file: &str) -> Result<(), Failure> {
        let of = |m: &Measured| {
            let threads = counted(m.threads, "thread");
            let level = m.kernel_level.as_deref().unwrap_or("an unknown level");
            let stay = if m.resident { ", whose inputs stay there," } else { "" };
            let code = if m.any_sizes { "the code for any sizes of " } else { "" };
            match &m.gpu {
                Some(gpu) => format!(
                    "{code}@{} on {gpu}{stay} beside {} at {level} with {threads}",
                    m.graph, m.cpu
                ),
                None => format!("{code}@{} on {} at {level} with {threads}", m.graph, m.cpu),
            }
        };
        let known = |m: &Measured| {
            let machine = (
                m.cpu.clone(),
                m.kernel_level.clone(),
                m.threads,
                m.gpu.clone(),
                m.resident,
                m.any_sizes,
            );
            (m.graph.clone(), machine)
        };
        let message = match known(self) == known(saved) {
            true if self.graph_id == saved.graph_id => return Ok(()),
            true => format!("a result of another graph @{}, or of other sizes of it", saved.graph),
            false => format!("a result of {}", of(saved)),
        };
        let message = format!("{message}; expected one of this graph, {}", of(self));
        Err(Failure::at(Code::Usage, file, message))
    }
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
    let device = session.device();
    if args.resident && device == Device::Cpu {
        let message = "--resident is of a GPU; expected --device cuda as well";
        return Err(Failure::new(Code::Usage, message));
    }
    let specialize = match args.any_sizes {
        true => Specialize::Never,
        false => Specialize::default(),
    };
    let mut prepared = Prepared::new(session, &args.model, &args.inputs, specialize)?;
    let (devices, measured) = limits_of(prepared.executable.devices());
    let of = Measured::new(&prepared, devices.host().threads, session.gpu_name(), args);
    if let (Some(saved), Some(path)) = (&saved, &args.against) {
        of.check(&saved.of, &display(path))?;
    }
    let time = Duration::from_secs_f64(args.time);
    let mut samples = match args.resident {
        true => prepared.resident_samples(device, time)?,
        false => prepared.samples(time)?,
    };
    let middle = median(&mut samples);
    let (lo, hi) = (samples[0], samples[samples.len() - 1]);
    let floor = prepared.floor_ns(&devices, args.resident)?;
    let versions: Vec<String> = prepared
        .executable
        .specializations()
        .iter()
        .map(|v| v.to_string())
        .collect();
    let ratio = saved.as_ref().map(|s| middle / s.median_ns);
    let mut result = json!({
        "graph": of.graph,
        "graph_id": of.graph_id,
        "cpu": of.cpu,
        "kernel_level": of.kernel_level,
        "threads": of.threads,
        "gpu": of.gpu,
        "resident": of.resident,
        "any_sizes": of.any_sizes,
        "median_ns": number_json(middle),
        "min_ns": number_json(lo),
        "max_ns": number_json(hi),
        "samples": samples.len(),
        "floor_ns": floor.map(number_json),
        // A limit that is beaten is none: the model of the machine is wrong.
        "model_wrong": floor.is_some_and(|f| f > middle),
        "measured_machine": measured,
        "compile_ns": prepared.compile.as_nanos() as u64,
        "versions": versions,
    });
    if let Some(path) = &args.save {
        let text = serde_json::to_string_pretty(&with_schema(&result)).unwrap_or_default();
        write_file(path, (text + "\n").as_bytes())?;
    }
    if let (Some(saved), Some(ratio)) = (&saved, ratio) {
        result["against_ns"] = number_json(saved.median_ns);
        result["ratio"] = number_json(ratio);
    }
    if !session.console.json() {
        let text = human(
            &result,
            middle,
            floor,
            ratio,
            samples.len(),
            (lo, hi),
            devices.host().threads,
        );
        session.console.result(&text)?;
        let beaten = floor.is_some_and(|f| f > middle);
        session.note_simulated();
        if !measured {
            session
                .console
                .note(&assumed_note(prepared.executable.plan(), "the limit assumes"));
        } else if beaten {
            let note = "note: the model of this machine is wrong, as where it was measured while other programs ran; `tlc hwbench` measures it again";
            session.console.note(note);
        }
    }
    match ratio {
        Some(ratio) if ratio > 1.0 + args.tolerance / 100.0 => {
            let message = format!(
                "{ratio:.2}x the saved time; expected at most {:.2}x",
                1.0 + args.tolerance / 100.0
            );
            Err(Failure::at(Code::Failed, &prepared.model.file, message).with_result(result))
        }
        _ if session.console.json() => session.console.json_result(&result),
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
    for version in result["versions"].as_array().into_iter().flatten() {
        text += &format!("a version for {}\n", version.as_str().unwrap_or_default());
    }
    text += &match floor {
        Some(floor) if floor > middle => format!("limit {}: beaten, so the limit is wrong\n", time_text(floor)),
        Some(floor) if floor > 0.0 => format!("limit {}: {:.2}x the limit\n", time_text(floor), middle / floor),
        Some(_) => "limit 0 ns: nothing to compute\n".into(),
        None => "limit unknown: data decides sizes\n".into(),
    };
    if let Some(ratio) = ratio {
        let word = if ratio <= 1.0 { "faster" } else { "slower" };
        let factor = if ratio <= 1.0 { 1.0 / ratio } else { ratio };
        text += &format!("against the saved time: {factor:.2}x {word}\n");
    }
    text
}
