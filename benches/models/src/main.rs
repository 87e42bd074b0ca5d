//! Whole networks: tlc beside tract and ONNX Runtime, taking turns in one process.
//!
//! Every program loads the same file, and its answers are compared with the recorded ones before anything is timed; a
//! program that cannot load or run a network has no time. A program's time is the median of its turns. tlc's networks keep
//! their symbolic sizes unless `--fixed`; tract's get the sizes of the call, which it wants; ONNX Runtime does as it likes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser;
use tlc::onnx::{ImportOptions, import_in_place};
use tlc::{CompileOptions, DType, Executable, HostTensor, Input, OutputMut, compile_ir};
use tlc_formats::npz;
use tlc_ir::tensor::BytesOwner;
use tlc_runtime::mmap::MappedFile;
use tract_linalg::multithread::{Executor, set_default_executor};
use tract_onnx::prelude::{
    Datum, Framework, InferenceFact, InferenceModelExt, IntoRunnable, IntoTValue, TValue, Tensor, TypedRunnableModel,
};

type Failure = Box<dyn std::error::Error + Send + Sync>;
type Arrays = BTreeMap<String, HostTensor>;

/// Measures whole networks in tlc, tract and ONNX Runtime.
#[derive(Parser)]
struct Options {
    /// The folder that `python3 tests/models/make.py --full FOLDER` wrote.
    #[arg(long, default_value = "target/models-full")]
    models: PathBuf,
    /// ONNX Runtime's shared library; without it, the one that make.py installed.
    #[arg(long)]
    onnxruntime: Option<PathBuf>,
    /// Threads; one table for each number.
    #[arg(long, value_delimiter = ',', default_value = "1")]
    threads: Vec<usize>,
    /// Only networks whose name contains this.
    #[arg(long)]
    filter: Option<String>,
    /// Rounds of turns.
    #[arg(long, default_value_t = 11)]
    rounds: usize,
    /// Fix tlc's symbolic sizes at those of the call before compiling.
    #[arg(long)]
    fixed: bool,
    /// Programs, by name; all if left out.
    #[arg(long, value_delimiter = ',')]
    programs: Vec<String>,
    /// Measure memory in place of time: the most that a process has resident while it loads a network and runs it twice,
    /// beyond what it had before. A process for each program and network.
    #[arg(long)]
    memory: bool,
    /// Be such a process: load the one network of `--filter` and print its peak in KiB.
    #[arg(long, hide = true, value_name = "PROGRAM")]
    peak_of: Option<String>,
}

/// A recorded call of a network.
struct Call {
    inputs: Arrays,
    outputs: Arrays,
}

impl Call {
    fn read(path: &Path) -> Result<Call, Failure> {
        let bytes = std::fs::read(path)?;
        let mut archive = npz::Archive::open(&bytes)?;
        let names: Vec<String> = archive.names().map(Into::into).collect();
        let (mut inputs, mut outputs) = (Arrays::new(), Arrays::new());
        for key in names {
            let array = archive.read(&key, &Default::default())?;
            if let Some(name) = key.strip_prefix("in.0.") {
                inputs.insert(name.into(), array);
            } else if let Some(name) = key.strip_prefix("out.0.") {
                outputs.insert(name.into(), array);
            }
        }
        Ok(Call { inputs, outputs })
    }
}

/// A program with one network loaded.
trait Program {
    /// One call.
    fn run(&mut self) -> Result<(), Failure>;
    /// The outputs of one call, by name.
    fn answers(&mut self) -> Result<BTreeMap<String, Vec<f32>>, Failure>;
    /// Calls until nothing more is compiled for the sizes of the call.
    fn settle(&mut self) -> Result<(), Failure> {
        Ok(())
    }
}

/// Calls after which tlc has made and measured a version for sizes that recur, if it makes one.
const SETTLING_CALLS: usize = 40;
/// What settling may take where calls are long.
const SETTLING_TIME: Duration = Duration::from_secs(4);

struct Tlc<'c> {
    executable: Executable,
    inputs: Vec<Input<'c>>,
    outputs: Vec<Vec<f32>>,
}

impl<'c> Tlc<'c> {
    fn load(path: &Path, call: &'c Call, threads: usize, fixed: bool) -> Result<Tlc<'c>, Failure> {
        let bytes: BytesOwner = Arc::new(MappedFile::open(path)?);
        let options = ImportOptions {
            folder: path.parent(),
            ..ImportOptions::default()
        };
        let mut graph = import_in_place(&bytes, &options)?.graph;
        if fixed {
            let name = |i: &tlc_ir::NodeId| match &graph.node(*i).kind {
                tlc_ir::NodeKind::Input { name, .. } => name.clone(),
                _ => unreachable!("inputs are input nodes"),
            };
            let given: Vec<&HostTensor> = graph.inputs().iter().map(|i| &call.inputs[&name(i)]).collect();
            let given: Vec<(DType, &[usize])> = given.iter().map(|t| (t.dtype(), t.shape())).collect();
            let sizes = tlc_ir::binding::bind_symbols(&graph, &given, &[]).map_err(|e| e.to_string())?;
            graph = graph.specialize(&sizes.into_iter().map(Some).collect::<Vec<_>>())?;
        }
        let options = CompileOptions {
            threads: Some(threads),
            ..CompileOptions::default()
        };
        let executable = compile_ir(&graph, &options)?;
        let declared = executable.plan().inputs.iter();
        let inputs: Vec<Input<'_>> = declared.map(|i| Input::from(&call.inputs[&i.name])).collect();
        let shapes = executable.output_shapes(&inputs)?;
        let outputs = shapes.iter().map(|s| vec![0.0; s.iter().product()]).collect();
        Ok(Tlc {
            executable,
            inputs,
            outputs,
        })
    }
}

impl Program for Tlc<'_> {
    fn run(&mut self) -> Result<(), Failure> {
        let mut into: Vec<OutputMut<'_>> = self.outputs.iter_mut().map(OutputMut::from).collect();
        Ok(self.executable.run_into(&self.inputs, &mut into)?)
    }

    fn answers(&mut self) -> Result<BTreeMap<String, Vec<f32>>, Failure> {
        self.run()?;
        let names = self.executable.plan().outputs.iter().map(|o| o.name.clone());
        Ok(names.zip(self.outputs.iter().cloned()).collect())
    }

    fn settle(&mut self) -> Result<(), Failure> {
        let start = Instant::now();
        let mut calls = 0;
        while calls < SETTLING_CALLS || start.elapsed() < SETTLING_TIME / 8 {
            self.run()?;
            self.executable.wait_for_specializations();
            calls += 1;
            if start.elapsed() > SETTLING_TIME {
                break;
            }
        }
        for version in self.executable.specializations() {
            eprintln!("{version}");
        }
        Ok(())
    }
}

struct Tract {
    model: Arc<TypedRunnableModel>,
    inputs: Vec<TValue>,
    outputs: Vec<String>,
}

impl Tract {
    fn load(path: &Path, call: &Call) -> Result<Tract, Failure> {
        let mut model = tract_onnx::onnx().model_for_path(path)?;
        let names: Vec<String> = model.input_outlets()?.iter().map(|o| model.node(o.node).name.clone()).collect();
        let mut inputs = vec![];
        for (i, name) in names.iter().enumerate() {
            let t = &call.inputs[name];
            let tensor = match t.dtype() {
                DType::F32 => Tensor::from_shape(t.shape(), t.as_slice::<f32>().ok_or("f32")?)?,
                DType::I64 => Tensor::from_shape(t.shape(), t.as_slice::<i64>().ok_or("i64")?)?,
                other => return Err(format!("an input of {other}").into()),
            };
            let datum = if t.dtype() == DType::F32 { f32::datum_type() } else { i64::datum_type() };
            model = model.with_input_fact(i, InferenceFact::dt_shape(datum, t.shape()))?;
            inputs.push(tensor.into_tvalue());
        }
        let outlets = model.output_outlets()?.to_vec();
        let name = |o: &tract_onnx::prelude::OutletId| {
            model.outlet_label(*o).map_or_else(|| model.node(o.node).name.clone(), Into::into)
        };
        let outputs = outlets.iter().map(name).collect();
        let model = model.into_optimized()?.into_runnable()?;
        Ok(Tract { model, inputs, outputs })
    }
}

impl Program for Tract {
    fn run(&mut self) -> Result<(), Failure> {
        std::hint::black_box(self.model.run(self.inputs.iter().cloned().collect())?);
        Ok(())
    }

    fn answers(&mut self) -> Result<BTreeMap<String, Vec<f32>>, Failure> {
        let values = self.model.run(self.inputs.iter().cloned().collect())?;
        let mut answers = BTreeMap::new();
        for (name, value) in self.outputs.iter().zip(values.iter()) {
            let array = value.to_plain_array_view::<f32>()?;
            answers.insert(name.clone(), array.iter().copied().collect());
        }
        Ok(answers)
    }
}

struct OnnxRuntime {
    session: ort::session::Session,
    inputs: Vec<(String, ort::value::DynValue)>,
}

impl OnnxRuntime {
    fn load(
        path: &Path,
        call: &Call,
        threads: usize,
        environment: Option<&ort::environment::Environment>,
    ) -> Result<OnnxRuntime, Failure> {
        let environment = environment.ok_or("no library")?;
        let mut builder = ort::session::Session::builder(environment)?
            .with_intra_threads(threads)
            .map_err(|e| e.to_string())?;
        let session = builder.commit_from_file(path)?;
        let mut inputs = vec![];
        for (name, t) in &call.inputs {
            let shape: Vec<i64> = t.shape().iter().map(|&d| d as i64).collect();
            let value = match t.dtype() {
                DType::F32 => {
                    let data = t.as_slice::<f32>().ok_or("f32")?.to_vec();
                    ort::value::Tensor::from_array((shape, data))?.into_dyn()
                }
                DType::I64 => {
                    let data = t.as_slice::<i64>().ok_or("i64")?.to_vec();
                    ort::value::Tensor::from_array((shape, data))?.into_dyn()
                }
                other => return Err(format!("an input of {other}").into()),
            };
            inputs.push((name.clone(), value));
        }
        Ok(OnnxRuntime { session, inputs })
    }
}

impl Program for OnnxRuntime {
    fn run(&mut self) -> Result<(), Failure> {
        let inputs: Vec<(&str, &ort::value::DynValue)> = self.inputs.iter().map(|(n, v)| (n.as_str(), v)).collect();
        std::hint::black_box(self.session.run(inputs)?);
        Ok(())
    }

    fn answers(&mut self) -> Result<BTreeMap<String, Vec<f32>>, Failure> {
        let inputs: Vec<(&str, &ort::value::DynValue)> = self.inputs.iter().map(|(n, v)| (n.as_str(), v)).collect();
        let outputs = self.session.run(inputs)?;
        let mut answers = BTreeMap::new();
        for (name, value) in outputs.iter() {
            answers.insert(name.to_string(), value.try_extract_tensor::<f32>()?.1.to_vec());
        }
        Ok(answers)
    }
}

/// The largest difference from the recorded answers, relative to the largest value of each output.
fn error(expected: &Arrays, found: &BTreeMap<String, Vec<f32>>) -> Result<f64, Failure> {
    let mut worst = 0f64;
    for (name, expected) in expected {
        let found = found.get(name).ok_or_else(|| format!("no output {name}"))?;
        let expected = expected.as_slice::<f32>().ok_or("f32")?;
        if found.len() != expected.len() {
            return Err(format!("output {name} has {} elements, expected {}", found.len(), expected.len()).into());
        }
        let largest = expected.iter().fold(0f64, |m, &v| m.max(v.abs().into()));
        for (&a, &b) in found.iter().zip(expected) {
            let off = f64::from(a - b).abs() / largest;
            worst = if off.is_nan() { f64::INFINITY } else { worst.max(off) };
        }
    }
    Ok(worst)
}

/// A program's measurements of one network.
struct Row {
    load: Duration,
    error: f64,
    /// One for each turn: the mean of its calls.
    turns: Vec<f64>,
}

impl Row {
    fn median(&self) -> f64 {
        let mut sorted = self.turns.clone();
        sorted.sort_by(f64::total_cmp);
        sorted[sorted.len() / 2]
    }
}

/// Programs take turns of at least this.
const TURN: Duration = Duration::from_millis(40);

fn turn(program: &mut dyn Program) -> Result<f64, Failure> {
    program.run()?;
    let start = Instant::now();
    let mut calls = 0u32;
    while calls == 0 || start.elapsed() < TURN {
        program.run()?;
        calls += 1;
    }
    Ok(start.elapsed().as_secs_f64() / f64::from(calls))
}

fn load<'c>(
    program: &str,
    path: &Path,
    call: &'c Call,
    options: &Options,
    threads: usize,
    environment: Option<&ort::environment::Environment>,
) -> Result<Box<dyn Program + 'c>, Failure> {
    Ok(match program {
        "tlc" => Box::new(Tlc::load(path, call, threads, options.fixed)?),
        "tract" => Box::new(Tract::load(path, call)?),
        _ => Box::new(OnnxRuntime::load(path, call, threads, environment)?),
    })
}

/// A line of `/proc/self/status`, in KiB.
fn status(name: &str) -> Result<u64, Failure> {
    let text = std::fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'));
    let number = line.and_then(|l| l.split_whitespace().next()).ok_or(name)?;
    Ok(number.parse()?)
}

/// The peak of a process for one program and network, in KiB.
fn peak(
    program: &str,
    path: &Path,
    options: &Options,
    environment: Option<&ort::environment::Environment>,
) -> Result<u64, Failure> {
    let threads = options.threads.first().copied().unwrap_or(1);
    let call = Call::read(&path.with_extension("npz"))?;
    let before = status("VmRSS")?;
    let mut program = load(program, path, &call, options, threads, environment)?;
    program.run()?;
    program.run()?;
    Ok(status("VmHWM")?.saturating_sub(before))
}

/// Starts a process for each program and network, and prints a table of their peaks.
fn memory_table(files: &[PathBuf], options: &Options) -> Result<(), Failure> {
    println!("\n| network | tlc | tract | ONNX Runtime | tlc / ORT |");
    println!("|---|---|---|---|---|");
    for file in files {
        let name = file.file_stem().unwrap_or_default().to_string_lossy();
        let mut row = vec![];
        for program in PROGRAMS {
            let mut command = std::process::Command::new(std::env::current_exe()?);
            command.args(["--peak-of", program, "--filter", &format!("/{name}.onnx")]);
            command.arg("--models").arg(&options.models);
            command.args(["--threads", &options.threads.first().copied().unwrap_or(1).to_string()]);
            if let Some(library) = &options.onnxruntime {
                command.arg("--onnxruntime").arg(library);
            }
            let output = command.output()?;
            let kib = String::from_utf8_lossy(&output.stdout).trim().parse::<f64>().ok();
            row.push(kib.map(|k| k / 1024.0));
        }
        let shown = |m: Option<f64>| m.map_or("-".into(), |m| format!("{m:.1} MiB"));
        let ratio = row[0].zip(row[2]).map_or("-".into(), |(a, b)| format!("{:.2}", a / b));
        println!("| {name} | {} | {} | {} | {ratio} |", shown(row[0]), shown(row[1]), shown(row[2]));
    }
    Ok(())
}

const PROGRAMS: [&str; 3] = ["tlc", "tract", "onnxruntime"];

fn measure(
    path: &Path,
    options: &Options,
    threads: usize,
    environment: Option<&ort::environment::Environment>,
) -> Result<Vec<Result<Row, Failure>>, Failure> {
    let call = Call::read(&path.with_extension("npz"))?;
    let mut programs: Vec<Result<(Box<dyn Program + '_>, Row), Failure>> = vec![];
    for name in PROGRAMS {
        if !options.programs.is_empty() && !options.programs.iter().any(|p| p == name) {
            programs.push(Err("left out".into()));
            continue;
        }
        let start = Instant::now();
        let ready = load(name, path, &call, options, threads, environment).and_then(|mut program| {
            let load = start.elapsed();
            let error = error(&call.outputs, &program.answers()?)?;
            let turns = vec![];
            Ok((program, Row { load, error, turns }))
        });
        programs.push(ready);
    }
    for (program, _) in programs.iter_mut().flatten() {
        program.settle()?;
    }
    for _ in 0..options.rounds {
        for (program, row) in programs.iter_mut().flatten() {
            row.turns.push(turn(program.as_mut())?);
        }
    }
    Ok(programs.into_iter().map(|p| p.map(|(_, row)| row)).collect())
}

fn milliseconds(seconds: f64) -> String {
    format!("{:.3} ms", seconds * 1e3)
}

fn main() -> Result<(), Failure> {
    let options = Options::parse();
    let library = options.onnxruntime.clone().or_else(|| {
        let found = std::fs::read_dir("target/models-venv/lib").ok()?.flatten().find_map(|python| {
            let folder = python.path().join("site-packages/onnxruntime/capi");
            let mut files = std::fs::read_dir(folder).ok()?.flatten().map(|f| f.path());
            files.find(|f| f.file_name().is_some_and(|n| n.to_string_lossy().starts_with("libonnxruntime.so")))
        });
        found
    });
    let environment = match library {
        Some(library) => Some(ort::init_from(&library)?.build()?),
        None => {
            eprintln!("no libonnxruntime.so in target/models-venv; expected one there, or --onnxruntime FILE");
            None
        }
    };
    let mut files: Vec<PathBuf> = std::fs::read_dir(&options.models)?
        .flatten()
        .map(|f| f.path())
        .filter(|p| p.extension().is_some_and(|e| e == "onnx"))
        .filter(|p| options.filter.as_ref().is_none_or(|f| p.to_string_lossy().contains(f.as_str())))
        .collect();
    files.sort();
    if let (Some(program), [file]) = (&options.peak_of, &files[..]) {
        println!("{}", peak(program, file, &options, environment.as_ref())?);
        return Ok(());
    }
    if options.memory {
        return memory_table(&files, &options);
    }
    for &threads in &options.threads {
        set_default_executor(match threads {
            1 => Executor::SingleThread,
            n => Executor::multithread(n),
        });
        println!("\n### {threads} thread(s)\n");
        println!("| network | tlc | tract | ONNX Runtime | tlc / tract | tlc / ORT | load: tlc, tract, ORT | error: tlc, tract |");
        println!("|---|---|---|---|---|---|---|---|");
        for file in &files {
            let name = file.file_stem().unwrap_or_default().to_string_lossy();
            let rows = measure(file, &options, threads, environment.as_ref())?;
            let time = |i: usize| rows[i].as_ref().ok().map(Row::median);
            let shown = |i: usize| match &rows[i] {
                Ok(row) => milliseconds(row.median()),
                Err(e) => e.to_string().lines().next().unwrap_or_default().chars().take(60).collect(),
            };
            let ratio = |i: usize| match (time(0), time(i)) {
                (Some(a), Some(b)) => format!("{:.2}", a / b),
                _ => "-".into(),
            };
            let load = |i: usize| rows[i].as_ref().map_or("-".into(), |r| milliseconds(r.load.as_secs_f64()));
            let error = |i: usize| rows[i].as_ref().map_or("-".into(), |r| format!("{:.0e}", r.error));
            println!(
                "| {name} | {} | {} | {} | {} | {} | {}, {}, {} | {}, {} |",
                shown(0),
                shown(1),
                shown(2),
                ratio(1),
                ratio(2),
                load(0),
                load(1),
                load(2),
                error(0),
                error(1)
            );
        }
    }
    Ok(())
}
