//! `tlc run`: a model on data, or a batch of cases.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use serde_json::{Value, json};
use tlc::verify::{Case, nan};
use tlc::{DeviceNeed, Executable, HostTensor, Input, MemoryNeed, Output};
use tlc_formats::{FormatError, npy};

use crate::args::ModelArgs;
use crate::batch;
use crate::data::{InputSpec, Source, Summary, file_names, input_spec, inputs};
use crate::failure::{Code, Failure};
use crate::session::{Model, Session, is_stdin};
use crate::staging::Outputs;
use crate::top;

/// Arguments.
#[derive(Args, Debug)]
pub struct Run {
    /// A .tlir or .onnx file, or - for text on standard input
    #[arg(required_unless_present = "batch")]
    model: Option<PathBuf>,
    /// The graph to take from a file that holds several [default: the first]
    #[arg(long, value_name = "NAME")]
    graph: Option<String>,
    /// An input, as in x=x.npy or x=all.npz:KEY, or made up: x=random, x=zeros, x=ones
    #[arg(long = "input", short = 'i', value_name = "NAME=SOURCE", value_parser = input_spec)]
    inputs: Vec<InputSpec>,
    /// Write DIR/NAME.npy for each output, instead of a summary of all
    #[arg(long, short = 'o', value_name = "DIR")]
    output_dir: Option<PathBuf>,
    /// Also print the N largest elements along the last axis of each output, with their positions
    #[arg(long, value_name = "N", conflicts_with = "batch")]
    top: Option<usize>,
    /// Name the first operation that makes a NaN; then the exit code is 1
    #[arg(long, conflicts_with = "batch")]
    check_nan: bool,
    /// Run many cases: JSON lines {"id","model","inputs":{name:source},"output_dir"}, one JSON line out for each; exit code 1 if one failed.
    /// With "grad":{"of":[..],"wrt":[..]} a case is the model as `tlc grad` makes it, with "freeze" and "prefix" as there
    #[arg(long, value_name = "MANIFEST", conflicts_with_all = ["model", "inputs", "output_dir", "graph"])]
    batch: Option<PathBuf>,
}

/// Runs a model and returns its outputs with the seconds that the run itself took.
pub fn run_model(
    session: &Session,
    model: &Model,
    specs: &[InputSpec],
    otherwise: Option<Source>,
) -> Result<(tlc::Outputs, f64), Failure> {
    let (tensors, executable, _) = prepared(session, model, specs, otherwise)?;
    timed(model, &tensors, &executable)
}

/// Reads or makes the inputs, and compiles the model.
fn prepared(
    session: &Session,
    model: &Model,
    specs: &[InputSpec],
    otherwise: Option<Source>,
) -> Result<(Vec<HostTensor>, Executable, MemoryNeed), Failure> {
    let tensors = inputs(session, &model.file, &model.graph, specs, otherwise)?;
    let executable = session.compile(model)?;
    let need = check_memory(session, &model.file, &executable, &tensors)?;
    Ok((tensors, executable, need))
}

fn timed(model: &Model, tensors: &[HostTensor], executable: &Executable) -> Result<(tlc::Outputs, f64), Failure> {
    let views: Vec<Input<'_>> = tensors.iter().map(Input::from).collect();
    let start = Instant::now();
    let outputs = executable.run(&views);
    let seconds = start.elapsed().as_secs_f64();
    if let Some(broken) = executable.broken() {
        return Err(crate::bug::saved(&model.file, &broken));
    }
    Ok((outputs.map_err(|e| Failure::run(&model.file, &e))?, seconds))
}

/// Writes an output as an npy file.
pub fn encode(output: &Output, mut writer: &mut dyn Write) -> io::Result<()> {
    npy::write_elements(output.dtype(), output.shape(), output.bytes(), &mut writer).map_err(|e| match e {
        FormatError::Io { source, .. } => source,
        other => io::Error::other(other.to_string()),
    })
}

/// A tensor as the runtime sees it.
#[cfg(test)]
pub fn view(tensor: &HostTensor) -> tlc::TensorView<'_> {
    tlc::TensorView {
        dtype: tensor.dtype(),
        shape: tensor.shape(),
        data: tensor.aligned_bytes(),
    }
}

/// What a run needs of memory; refuses one that does not fit.
pub fn check_memory(
    session: &Session,
    file: &str,
    executable: &Executable,
    tensors: &[HostTensor],
) -> Result<MemoryNeed, Failure> {
    let inputs: Vec<Input<'_>> = tensors.iter().map(Input::from).collect();
    let need = executable.memory(&inputs).map_err(|e| Failure::run(file, &e))?;
    session.need_memory(file, need.total().into(), "running it")?;
    need.devices.iter().try_for_each(|d| check_device(session, file, d))?;
    Ok(need)
}

/// Refuses what does not fit a device, or the limit that the user set.
fn check_device(session: &Session, file: &str, need: &DeviceNeed) -> Result<(), Failure> {
    let Some(room) = &need.room else { return Ok(()) };
    let text = tlc::explain::bytes_text;
    let (found, device) = (text(need.total()), &room.device);
    let expected = match session.global.max_memory {
        Some(limit) if need.total() > limit => format!("{}, as --max-memory says", text(limit)),
        // Nothing is allocated yet of what this counts.
        _ if need.missing > room.free => format!("{}, which are free of {}", text(room.free), text(room.total)),
        _ => return Ok(()),
    };
    let message = format!("running it needs too much memory of {device}; expected at most {expected}, found {found}");
    Err(Failure::at(Code::Limit, file, message))
}

/// What a run needs of memory, as a line for the host and each device.
fn memory_text(need: &MemoryNeed) -> String {
    let text = tlc::explain::bytes_text;
    let part = |name: &str, bytes: u64| match bytes {
        0 => String::new(),
        b => format!(", {name} {}", text(b)),
    };
    let mut lines = format!(
        "memory: at most {}{}{}{}{}\n",
        tlc::explain::bytes_text(need.total()),
        part("constants", need.constants + need.kept),
        part("between steps", need.arena),
        part("scratch", need.scratch),
        part("inputs and outputs", need.inputs + need.outputs),
    );
    for device in &need.devices {
        let (name, free) = match &device.room {
            Some(room) => (
                room.device.as_str(),
                format!("; {} of {} are free", text(room.free), text(room.total)),
            ),
            None => ("a device", String::new()),
        };
        lines += &format!(
            "memory of {name}: at most {}{}{}{free}\n",
            text(device.total()),
            part("constants", device.kept),
            part("inputs, outputs and between steps", device.total() - device.kept),
        );
    }
    lines
}

fn device_json(need: &DeviceNeed) -> Value {
    let room = need.room.as_ref();
    json!({
        "device": room.map(|r| &r.device),
        "total_bytes": need.total(),
        "kept_bytes": need.kept,
        "arena_bytes": need.arena,
        "free_bytes": room.map(|r| r.free),
        "device_bytes": room.map(|r| r.total),
    })
}

/// Writes each output to `dir`, all or none, and returns the files.
pub fn write_outputs(dir: &Path, outputs: &[Output]) -> Result<Vec<PathBuf>, Failure> {
    let mut staged = Outputs::new();
    staged.directory(dir)?;
    let names = file_names(outputs.iter().map(|o| o.name.as_str()));
    let files: Vec<PathBuf> = names.iter().map(|n| dir.join(n)).collect();
    for (output, file) in outputs.iter().zip(&files) {
        staged.file(file, &mut |w| encode(output, w))?;
    }
    staged.commit()?;
    Ok(files)
}

/// Names the first operation that makes a NaN, if one does.
fn check_nan(session: &Session, model: &Model, tensors: &[HostTensor], executable: &Executable) -> Result<(), Failure> {
    let case = Case {
        graph: model.graph.clone(),
        inputs: tensors.to_vec(),
        symbols: vec![],
    };
    let found = nan::check_nan(&case, executable).map_err(|e| Failure::run(&model.file, &e))?;
    for (name, count) in &found.inputs {
        session.console.note(&format!("note: input `{name}` holds {count} NaN"));
    }
    match found.first {
        None => Ok(()),
        Some(first) => {
            let message = format!("{first}; expected no NaN from operands without one");
            Err(Failure::at(Code::Failed, &model.file, message))
        }
    }
}

/// Runs the command.
pub fn run(session: &Session, args: &Run) -> Result<(), Failure> {
    if let Some(manifest) = &args.batch {
        return batch::run(session, manifest);
    }
    let Some(path) = &args.model else {
        return Err(Failure::new(
            Code::Usage,
            "no model; expected MODEL or --batch MANIFEST",
        ));
    };
    // `-` is standard output elsewhere, which takes one file and not a directory of them.
    if args.output_dir.as_deref().is_some_and(is_stdin) {
        let message = "--output-dir -: expected a directory, such as ./-; results are not written to standard output";
        return Err(Failure::new(Code::Usage, message));
    }
    let chosen = ModelArgs {
        model: path.clone(),
        graph: args.graph.clone(),
    };
    let model = session.model_for(&chosen, &args.inputs)?;
    let (tensors, executable, need) = prepared(session, &model, &args.inputs, None)?;
    if args.check_nan {
        check_nan(session, &model, &tensors, &executable)?;
    }
    if args.output_dir.is_none() && !session.console.json() {
        session.console.result(&memory_text(&need))?;
    }
    let (outputs, seconds) = timed(&model, &tensors, &executable)?;
    let files = match &args.output_dir {
        Some(dir) => write_outputs(dir, &outputs)?,
        None => vec![],
    };
    let summaries = outputs.iter().map(|o| Summary::of(&o.name, o.view()));
    if session.console.json() {
        let all: Vec<Value> = summaries
            .enumerate()
            .map(|(i, s)| {
                let mut value = s.json();
                value["file"] = json!(files.get(i).map(|f| f.to_string_lossy()));
                if let Some(n) = args.top {
                    value["top"] = top::json(outputs[i].view(), n);
                }
                value
            })
            .collect();
        session.console.json_result(&json!({
            "graph": model.graph.name,
            "kernel_level": tlc_runtime::cpu::level::name(),
            "memory": {
                "total_bytes": need.total(),
                "constants_bytes": need.constants,
                "kept_bytes": need.kept,
                "arena_bytes": need.arena,
                "scratch_bytes": need.scratch,
                "inputs_bytes": need.inputs,
                "outputs_bytes": need.outputs,
                "devices": need.devices.iter().map(device_json).collect::<Vec<_>>(),
            },
            "seconds": seconds,
            "outputs": all,
        }))?;
        return session.keep_packed(&executable);
    }
    if files.is_empty() || args.top.is_some() {
        let mut text = String::new();
        for (output, summary) in outputs.iter().zip(summaries) {
            if files.is_empty() {
                text += &summary.text();
            }
            if let Some(n) = args.top {
                text += &top::text(&output.name, output.view(), n);
            }
        }
        session.console.result(&text)?;
    }
    files
        .iter()
        .for_each(|f| session.console.note(&format!("wrote {}", f.display())));
    // Last: results do not wait for it, and are there if it fails.
    session.keep_packed(&executable)
}
