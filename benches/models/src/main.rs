//! Whole networks: tlc beside tract and ONNX Runtime, taking turns in one process.
//!
//! Each network is loaded by every program from the same file, and every answer is compared with the recorded one before
//! anything is timed. A program's time is the median of its turns; tlc's networks keep their symbolic sizes, tract's get
//! the sizes of the call (it wants them), ONNX Runtime does as it likes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Parser;
use tlc::onnx::{ImportOptions, import};
use tlc::{CompileOptions, DType, HostTensor, compile_ir};
use tlc_formats::npz;
use tlc_runtime::executable::TensorView;
use tlc_runtime::mmap::MappedFile;
use tract_onnx::prelude::{Framework, InferenceFact, InferenceModelExt, IntoRunnable, TValue, Tensor, tvec};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Measures whole networks in tlc, tract and ONNX Runtime.
#[derive(Parser)]
struct Options {
    /// The folder that `python3 tests/models/make.py --full FOLDER` wrote.
    #[arg(long, default_value = "target/models-full")]
    models: PathBuf,
    /// ONNX Runtime's shared library.
    #[arg(long)]
    onnxruntime: Option<PathBuf>,
    /// Threads, one table for each.
    #[arg(long, value_delimiter = ',', default_value = "1")]
    threads: Vec<usize>,
    /// Only networks whose name contains this.
    #[arg(long)]
    filter: Option<String>,
    /// Rounds of turns.
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// Fix symbolic sizes at those of the call before compiling.
    #[arg(long)]
    fixed: bool,
}

/// A network's recorded call.
struct Recorded {
    inputs: BTreeMap<String, HostTensor>,
    outputs: BTreeMap<String, HostTensor>,
}

/// One program with one network loaded: runs the call, and answers its outputs when asked.
struct Program<'p> {
    name: &'static str,
    /// From the file to ready.
    load: Duration,
    run: Box<dyn FnMut() -> Result<(), Failure> + 'p>,
    answers: Box<dyn FnMut() -> Result<BTreeMap<String, Vec<f32>>, Failure> + 'p>,
}

fn recorded(path: &Path) -> Result<Recorded, Failure> {
    let bytes = std::fs::read(path)?;
    let mut archive = npz::Archive::open(&bytes)?;
    let names: Vec<String> = archive.names().map(Into::into).collect();
    let mut call = Recorded { inputs: BTreeMap::new(), outputs: BTreeMap::new() };
    for key in names {
        let array = archive.read(&key, &Default::default())?;
        if let Some(name) = key.strip_prefix("in.0.") {
            call.inputs.insert(name.into(), array);
        } else if let Some(name) = key.strip_prefix("out.0.") {
            call.outputs.insert(name.into(), array);
        }
    }
    Ok(call)
}

fn view(t: &HostTensor) -> TensorView<'_> {
    TensorView { dtype: t.dtype(), shape: t.shape(), data: t.bytes() }
}

fn with_tlc<'p>(path: &Path, call: &'p Recorded, threads: usize, fixed: bool) -> Result<Program<'p>, Failure> {
    let start = Instant::now();
    let bytes = MappedFile::open(path)?;
    let mut imported = import(&bytes, &ImportOptions { folder: path.parent(), values: None })?;
    if fixed {
        let mut symbols = vec![];
        for input in imported.graph.inputs() {
            if let tlc_ir_kind(name, shape) = input {
                let _ = (name, shape, &mut symbols);
            }
        }
        imported.graph = todo_fixed(imported.graph, symbols);
    }
    let options = CompileOptions { threads: Some(threads), ..CompileOptions::default() };
    let executable = std::rc::Rc::new(compile_ir(&imported.graph, &options)?);
    let load = start.elapsed();
    let inputs: Vec<TensorView<'p>> = executable.plan().inputs.iter().map(|i| view(&call.inputs[&i.name])).collect();
    let names: Vec<String> = executable.plan().outputs.iter().map(|o| o.name.clone()).collect();
    let mut buffers: Vec<Vec<f32>> =
        executable.output_shapes(&inputs)?.iter().map(|s| vec![0.0; s.iter().product()]).collect();
    let _ = (&mut buffers, names);
    todo!()
}
fn main() {}
