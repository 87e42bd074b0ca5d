//! `tlc tune`: measures candidates of the choices that schedules make, and keeps the faster ones in a file.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use tlc::explain::{counted, time_text};
use tlc::tune::{KernelTuning, TuneError, Tuning, tune};
use tlc::{Input, Tuned, TunedError};

use crate::args::ModelArgs;
use crate::bench::seconds;
use crate::data::{InputSpec, Source, input_spec, inputs, number_json};
use crate::failure::{Code, Failure};
use crate::run::check_memory;
use crate::session::{Session, display};
use crate::staging::write_file;

/// Arguments.
#[derive(Args, Debug)]
pub struct Tune {
    #[command(flatten)]
    model: ModelArgs,
    /// An input, as in x=x.npy [default: random]
    #[arg(long = "input", short = 'i', value_name = "NAME=SOURCE", value_parser = input_spec)]
    inputs: Vec<InputSpec>,
    /// How long to measure, in seconds
    #[arg(long, value_name = "S", default_value_t = 60.0, value_parser = seconds)]
    time: f64,
    /// Where to keep what is found. What the file knows of other kernels and other processors stays in it
    #[arg(long, short, value_name = "FILE.json")]
    output: PathBuf,
}

/// Reads a file of choices.
pub fn read_tuned(path: &Path) -> Result<Tuned, Failure> {
    let file = display(path);
    Tuned::read(path).map_err(|e| match e {
        TunedError::Io(e) => Failure::reading(&file, &e),
        other => Failure::at(Code::Invalid, &file, other.to_string()),
    })
}

/// Runs the command.
pub fn run(session: &Session, args: &Tune) -> Result<(), Failure> {
    // Better now than after a minute of measuring.
    let folder = args.output.parent().filter(|p| !p.as_os_str().is_empty());
    if let Some(Err(e)) = folder.map(std::fs::metadata) {
        return Err(Failure::writing(&display(&args.output), &e));
    }
    let mut options = session.compile_options()?;
    // What begins where an earlier run ended goes on from there.
    if args.output.is_file() {
        options.tuned = Some(Arc::new(read_tuned(&args.output)?));
    }
    let model = session.model_for(&args.model, &args.inputs)?;
    let given = inputs(session, &model.file, &model.graph, &args.inputs, Some(Source::Random))?;
    let executable = session.compile(&model)?;
    check_memory(session, &model.file, &executable, &given)?;
    drop(executable);
    let views: Vec<Input<'_>> = given.iter().map(Input::from).collect();
    let bar = session.console.progress(1000, "tuning");
    let time = Duration::from_secs_f64(args.time.max(1.0));
    let tuning = tune(&model.graph, &options, &views, time, &mut |part| {
        bar.set_position((part.min(1.0) * 1000.0) as u64);
    });
    bar.finish_and_clear();
    let tuning = tuning.map_err(|e| match e {
        TuneError::Build(e) => Failure::build(&model.file, &e),
        TuneError::Run(e) => Failure::run(&model.file, &e),
        TuneError::Memory(e) => Failure::at(Code::Limit, &model.file, e.to_string()),
        e @ TuneError::OtherBits { .. } => Failure::at(Code::Bug, &model.file, e.to_string()),
        other => Failure::at(Code::Unsupported, &model.file, other.to_string()),
    })?;
    write_file(&args.output, tuning.tuned.to_json().as_bytes())?;
    if session.console.json() {
        return session.console.json_result(&json_of(&tuning));
    }
    session.console.result(&table(&tuning))?;
    session.console.note(&format!("kept in {}", display(&args.output)));
    if !tuning.complete {
        let note = "note: not all candidates were tried; a longer --time, or the same command again, goes on";
        session.console.note(note);
    }
    Ok(())
}

fn json_of(tuning: &Tuning) -> Value {
    let kernel = |k: &KernelTuning| {
        json!({
            "kernel": k.kernel.to_string(),
            "label": k.label,
            "steps": k.steps,
            "calculated_ns": number_json(k.ns[0]),
            "tuned_ns": number_json(k.ns[1]),
            "choices": k.choices.iter().map(|c| c.to_string()).collect::<Vec<_>>(),
            "candidates": k.candidates,
        })
    };
    json!({
        "calculated_ns": number_json(tuning.call_ns[0]),
        "tuned_ns": number_json(tuning.call_ns[1]),
        "tried": tuning.tried,
        "complete": tuning.complete,
        "kernels": tuning.kernels.iter().map(kernel).collect::<Vec<_>>(),
    })
}

fn table(tuning: &Tuning) -> String {
    let better = tuning.kernels.iter().filter(|k| !k.choices.is_empty()).count();
    let mut out = format!(
        "{} tried for {}; {better} of these {} faster otherwise\n",
        counted(tuning.tried, "candidate"),
        counted(tuning.kernels.len(), "kernel"),
        if better == 1 { "is" } else { "are" },
    );
    let [before, after] = tuning.call_ns;
    out += &format!(
        "a call took {} and takes {} ({:.2})\n",
        time_text(before),
        time_text(after),
        after / before.max(1.0)
    );
    if better == 0 {
        return out;
    }
    out += "\n  calculated       tuned  ratio  kernel\n";
    for k in tuning.kernels.iter().filter(|k| !k.choices.is_empty()) {
        let choices: Vec<String> = k.choices.iter().map(|c| c.to_string()).collect();
        out += &format!(
            "{:>12}{:>12}   {:.2}  {} {}\n{:33}{}\n",
            time_text(k.ns[0]),
            time_text(k.ns[1]),
            k.ns[1] / k.ns[0].max(1.0),
            k.kernel,
            k.label,
            "",
            choices.join(" "),
        );
    }
    out
}
