//! What every command shares: options, the console, and the way from a file to a graph to an executable.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use tlc::compile::Machine;
pub use tlc::machine_model::{cache_directory, limits, limits_of, measured};
use tlc::{CompileOptions, DType, Device, Executable, PackedWeights, PackedWeightsError, Specialize};
use tlc_codegen::cuda::capability;
use tlc_formats::{FormatError, ReadOptions};
use tlc_ir::Graph;
use tlc_ir::graph::verify::verify;
use tlc_ir::target::Gpu;
use tlc_ir::text::{Module, ParseError};
use tlc_passes::Compiled;
use tlc_passes::devices::Devices;
use tlc_passes::pipeline::{Options, Pipeline};
use tlc_runtime::cuda::{self, PoolUse, Properties, arch_name};
use tlc_runtime::machine::total_memory_bytes;

use crate::args::{Global, ModelArgs};
use crate::console::Console;
use crate::data::InputSpec;
use crate::failure::{Code, Failure};
use crate::onnx::{self, Purpose, is_onnx};
use crate::specialize::specialize;
use crate::stages::Stages;
use crate::staging::Outputs;
use crate::tune::read_tuned;

/// Longer model texts are refused before they are read.
const MAX_MODEL_BYTES: u64 = 1 << 30;
/// Bytes of a model's text that are looked at before the rest is read.
const MODEL_HEAD_BYTES: u64 = 1 << 16;
/// Errors that are shown of one file, unless all are asked for.
const MAX_SHOWN: usize = 20;

/// One run of the program.
pub struct Session {
    /// Options of every command.
    pub global: Global,
    /// Where results and messages go.
    pub console: Console,
    /// What the variable `TLC` asks for.
    pub stages: Stages,
}

/// A graph, and the file it came from.
pub struct Model {
    /// The file's name, for messages.
    pub file: String,
    /// The graph, with the sizes of `--set` in it.
    pub graph: Graph,
}

/// The text of a file.
pub struct Source {
    /// The file's name, for messages.
    pub file: String,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// A GPU that need not be here, where kernels of our own multiply matrices, as on those that tlc runs.
pub fn any_gpu() -> Gpu {
    Gpu {
        products: None,
        ..Gpu::any(Arc::new(tlc_codegen::cuda::emitter()))
    }
}

/// What the driver says of a GPU, if it is here and not too old to run anything.
pub fn gpu_here(device: Device) -> Option<Properties> {
    let Device::Cuda(number) = device else {
        return None;
    };
    let mut all = cuda::devices().ok()?.into_iter();
    all.find(|p| p.ordinal == number && capability(&arch_name(p.capability)).is_ok())
}

/// A file's name for messages.
pub fn display(path: &Path) -> String {
    if is_stdin(path) {
        "<stdin>".into()
    } else {
        path.display().to_string()
    }
}

/// Maps the file of `--packed`.
fn read_packed(path: &Path) -> Result<PackedWeights, Failure> {
    if is_stdin(path) {
        let message = "--packed -: expected a file, such as ./-; weights are neither read from standard input nor written to standard output";
        return Err(Failure::new(Code::Usage, message));
    }
    let file = path.display().to_string();
    PackedWeights::open(path).map_err(|e| match e {
        PackedWeightsError::Io { source, .. } => Failure::reading(&file, &source),
        other => Failure::new(Code::Invalid, other.to_string()),
    })
}

/// True for `-`.
pub fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Opens a file, or standard input for `-`.
pub fn open(path: &Path) -> Result<Box<dyn Read>, Failure> {
    if is_stdin(path) {
        return Ok(Box::new(io::stdin().lock()));
    }
    let file = File::open(path).map_err(|e| Failure::reading(&display(path), &e))?;
    Ok(Box::new(file))
}

/// Reads a model's text.
pub fn read_model(path: &Path) -> Result<Source, Failure> {
    let file = display(path);
    if is_onnx(path) {
        let message = "an ONNX model has no text; expected a .tlir file";
        return Err(Failure::at(Code::Unsupported, &file, message));
    }
    let mut bytes = Vec::new();
    let mut from = open(path)?.take(MAX_MODEL_BYTES + 1);
    let head = from.by_ref().take(MODEL_HEAD_BYTES).read_to_end(&mut bytes);
    head.map_err(|e| Failure::reading(&file, &e))?;
    // What is no text at all may have no end, as a device.
    if let Some(at) = bytes.iter().position(|&b| b == 0) {
        let message = format!("byte {at} is 0; expected the text of a graph");
        return Err(Failure::at(Code::Invalid, &file, message));
    }
    let rest = from.read_to_end(&mut bytes);
    rest.map_err(|e| Failure::reading(&file, &e))?;
    if bytes.len() as u64 > MAX_MODEL_BYTES {
        let message = format!("more than {MAX_MODEL_BYTES} bytes; expected a smaller model text");
        return Err(Failure::at(Code::Limit, &file, message));
    }
    Ok(Source { file, bytes })
}

impl Source {
    /// Parses the text. Data that it only names is looked up in the safetensors file of the same name beside it.
    pub fn parse(&self, path: &Path) -> Result<Module, Vec<ParseError>> {
        tlc::tlir::parse(&self.bytes, (!is_stdin(path)).then_some(path))
    }

    /// Errors of the text, as a failure with at most `most` reports.
    pub fn failure(&self, errors: &[ParseError], most: usize) -> Failure {
        let text = String::from_utf8_lossy(&self.bytes);
        let mut all = Failure::of_reports(Code::Invalid, vec![]);
        for e in errors.iter().take(most) {
            let width = match (self.bytes.get(e.span.start..e.span.end), e.span.end > e.span.start) {
                (Some(part), true) => {
                    let part = String::from_utf8_lossy(part);
                    part.lines().next().map_or(1, |l| l.chars().count())
                }
                _ => 1,
            };
            let position = (e.position.line, e.position.column);
            let one = Failure::in_text(Code::Invalid, &self.file, &text, position, width, &e.message);
            all.reports.extend(one.reports);
        }
        if errors.len() > most {
            let message = format!("{} more errors; expected none", errors.len() - most);
            all.reports
                .extend(Failure::at(Code::Invalid, &self.file, message).reports);
        }
        all
    }
}

/// What a file without a graph may hold instead, which can be checked and formatted, but not compiled.
fn others_text(module: &Module) -> String {
    let counts = [("kernel", module.kernels.len()), ("plan", module.plans.len())];
    let held: Vec<String> = counts
        .iter()
        .filter(|c| c.1 > 0)
        .map(|(what, n)| format!("{n} {what}{}", if *n == 1 { "" } else { "s" }))
        .collect();
    match held.is_empty() {
        true => String::new(),
        false => format!(", but {}, which this command cannot compile", held.join(" and ")),
    }
}

impl Session {
    /// Reads the graph that a command works on.
    pub fn model(&self, args: &ModelArgs) -> Result<Model, Failure> {
        self.model_for(args, &[])
    }

    /// Reads the graph that a command runs on these inputs, on whose values its shapes may depend.
    pub fn model_for(&self, args: &ModelArgs, inputs: &[InputSpec]) -> Result<Model, Failure> {
        self.imported_model(args, inputs, Purpose::Values)
    }

    /// As [`Session::model_for`], of a model that may be wanted for its derivatives.
    pub fn imported_model(&self, args: &ModelArgs, inputs: &[InputSpec], purpose: Purpose) -> Result<Model, Failure> {
        let (file, graph) = match is_onnx(&args.model) {
            true => self.onnx_graph(args, inputs, purpose)?,
            false => {
                let (file, graph) = self.text_graph(args)?;
                let graph = specialize(&graph, &self.global.sets, &file)?;
                (file, graph)
            }
        };
        let errors = verify(&graph);
        if !errors.is_empty() {
            let reports = errors
                .iter()
                .flat_map(|e| Failure::at(Code::Invalid, &file, e.to_string()).reports);
            return Err(Failure::of_reports(Code::Invalid, reports.collect()));
        }
        Ok(Model { file, graph })
    }

    fn onnx_graph(&self, args: &ModelArgs, inputs: &[InputSpec], purpose: Purpose) -> Result<(String, Graph), Failure> {
        let file = display(&args.model);
        let sets = &self.global.sets;
        // Where sizes break an assumption of the graph for any sizes, or there is none for any, there may be a graph for them.
        let exact = |sizes: &[(String, i64)]| onnx::load(self, &args.model, inputs, sizes, purpose);
        let general = match onnx::load(self, &args.model, inputs, &[], purpose) {
            // Of what must be a number, a size may be one.
            Err(e) if sets.is_empty() && matches!(e.code, Some(Code::Unsupported)) => {
                let sizes = onnx::sizes_given(self, &args.model, inputs);
                if sizes.is_empty() {
                    return Err(e);
                }
                let graph = exact(&sizes)?;
                let sizes: Vec<String> = sizes.iter().map(|(name, n)| format!("{name}={n}")).collect();
                let sizes = sizes.join(", ");
                self.console.note(&format!(
                    "note: {file}: there is no graph for any sizes; this is for {sizes}"
                ));
                Ok(graph)
            }
            other => other,
        };
        let graph = match general.and_then(|graph| specialize(&graph, sets, &file)) {
            Ok(graph) => graph,
            Err(e) if sets.is_empty() => return Err(e),
            Err(e) if matches!(e.code, Some(Code::Unsupported)) => exact(sets)?,
            Err(e) if matches!(e.code, Some(Code::Invalid)) => exact(sets).or(Err(e))?,
            Err(e) => return Err(e),
        };
        let graph = match onnx::breaking(self, &graph, inputs)? {
            Some(sizes) => exact(&[sets.as_slice(), &sizes].concat()).unwrap_or(graph),
            None => graph,
        };
        match &args.graph {
            Some(name) if name.strip_prefix('@').unwrap_or(name) != graph.name => {
                let message = format!("no graph @{name}; expected @{}", graph.name);
                Err(Failure::at(Code::Usage, &file, message))
            }
            _ => Ok((file, graph)),
        }
    }

    fn text_graph(&self, args: &ModelArgs) -> Result<(String, Graph), Failure> {
        let source = read_model(&args.model)?;
        let module = source
            .parse(&args.model)
            .map_err(|errors| source.failure(&errors, MAX_SHOWN))?;
        let file = source.file;
        let others = others_text(&module);
        let names: Vec<String> = module.graphs.iter().map(|g| format!("@{}", g.name)).collect();
        let mut graphs = module.graphs.into_iter();
        let graph = match &args.graph {
            Some(name) => {
                let name = name.strip_prefix('@').unwrap_or(name);
                graphs.find(|g| g.name == name).ok_or_else(|| {
                    let expected = if names.is_empty() {
                        "a file that holds it".into()
                    } else {
                        names.join(", ")
                    };
                    Failure::at(Code::Usage, &file, format!("no graph @{name}; expected {expected}"))
                })?
            }
            None => graphs.next().ok_or_else(|| {
                Failure::at(
                    Code::Invalid,
                    &file,
                    format!("the file holds no graph{others}; expected `graph @name(…) {{…}}`"),
                )
            })?,
        };
        Ok((file, graph))
    }

    /// How to compile.
    pub fn compile_options(&self) -> Result<CompileOptions, Failure> {
        Ok(CompileOptions {
            threads: self.global.threads,
            passes: (self.stages.limit).map(|n| Pipeline::default().first(Some(n)).to_string()),
            max_memory_bytes: self.global.max_memory,
            device: self.device(),
            beside: self.global.beside.clone(),
            precision: self.global.precision,
            products: self.global.products,
            tuned: self.global.tuned.as_deref().map(read_tuned).transpose()?.map(Arc::new),
            packed_weights: self.global.packed.as_deref().map(read_packed).transpose()?,
            ..CompileOptions::default()
        })
    }

    /// What graph passes are run with: this machine, all its passes, and the memory limit of the command line.
    pub fn pass_options(&self) -> Result<Options, Failure> {
        let machine =
            Machine::with_threads(self.global.threads).map_err(|e| Failure::new(Code::Unsupported, e.to_string()))?;
        Ok(Options {
            max_memory_bytes: self.global.max_memory,
            precision: self.global.precision,
            ..Options::new(machine.target().clone())
        })
    }

    /// Compiles a model, and shows of it what `TLC` asks for.
    pub fn compile(&self, model: &Model) -> Result<Executable, Failure> {
        self.compile_with(model, Specialize::default())
    }

    /// As [`Session::compile`], with these versions for sizes that recur.
    pub fn compile_with(&self, model: &Model, specialize: Specialize) -> Result<Executable, Failure> {
        let options = CompileOptions {
            specialize,
            ..self.compile_options()?
        };
        self.compile_by(model, &options)
    }

    /// As [`Session::compile`], by these options.
    pub fn compile_by(&self, model: &Model, options: &CompileOptions) -> Result<Executable, Failure> {
        if self.stages.wants_passes() {
            let pipeline = match &options.passes {
                Some(names) => names
                    .parse()
                    .map_err(|e: tlc_passes::PassError| Failure::new(Code::Usage, e.to_string()))?,
                None => Pipeline::default(),
            };
            let options = Options {
                pipeline,
                ..self.pass_options()?
            };
            self.stages.run_passes(&self.console, model, &options)?;
        }
        let executable = tlc::compile_ir(&model.graph, options).map_err(|e| Failure::build(&model.file, &e))?;
        self.stages.show_compiled(&self.console, executable.decisions())?;
        Ok(executable)
    }

    /// Writes the weights that an executable has packed to the file of `--packed`, if some of them were not there.
    pub fn keep_packed(&self, executable: &Executable) -> Result<(), Failure> {
        let Some(path) = &self.global.packed else { return Ok(()) };
        let packed = executable.packed_use();
        if packed.made == 0 {
            return Ok(());
        }
        let mut outputs = Outputs::new();
        outputs.file(path, &mut |mut w| {
            executable.write_packed_weights(&mut w).map_err(|e| match e {
                FormatError::Io { source, .. } => source,
                other => io::Error::other(other.to_string()),
            })
        })?;
        // Something else may have been put there meanwhile.
        read_packed(path)?;
        outputs.commit()?;
        let bytes = tlc::explain::bytes_text(packed.found + packed.made);
        self.console
            .note(&format!("wrote {}: {bytes} of packed weights", path.display()));
        Ok(())
    }

    /// Where models run.
    pub fn device(&self) -> Device {
        self.global.device.unwrap_or_default()
    }

    /// Says of a device that is simulated that its times mean nothing.
    pub fn note_simulated(&self) {
        let Some(Device::Cuda(number)) = self.global.device else {
            return;
        };
        if cuda::open(number).is_ok_and(|c| c.properties().simulated) {
            self.console.note(&format!(
                "note: cuda:{number} is simulated: its times say nothing of a real device"
            ));
        }
    }

    /// What there is of the memory of each GPU that is chosen, and what it is called.
    pub fn pool_uses(&self) -> Vec<(String, PoolUse)> {
        let chosen = self.global.device.iter().chain(&self.global.beside);
        let uses = chosen.filter_map(|device| {
            let Device::Cuda(number) = device else { return None };
            let context = cuda::open(*number).ok()?;
            Some((context.properties().title(), context.pool_use().ok()?))
        });
        uses.collect()
    }

    /// The name of the GPU that is chosen, if one is.
    pub fn gpu_name(&self) -> Option<String> {
        let Some(Device::Cuda(number)) = self.global.device else {
            return None;
        };
        cuda::open(number).ok().map(|c| c.properties().name.clone())
    }

    /// This machine, with GPUs that it need not have.
    pub fn devices(&self, gpus: impl IntoIterator<Item = Gpu>) -> Result<Devices, Failure> {
        let machine =
            Machine::with_threads(self.global.threads).map_err(|e| Failure::new(Code::Unsupported, e.to_string()))?;
        Ok(Devices::new(machine.target().clone(), gpus))
    }

    /// What is decided about a model for devices that this machine need not have.
    pub fn plan_for(&self, model: &Model, devices: Devices) -> Result<Compiled, Failure> {
        let compiled = tlc::plan_ir(&model.graph, devices, &self.compile_options()?)
            .map_err(|e| Failure::build(&model.file, &e))?;
        self.stages.show_compiled(&self.console, &compiled)?;
        Ok(compiled)
    }

    /// The most memory to use, in bytes.
    pub fn memory_limit(&self) -> u64 {
        self.global.max_memory.or_else(total_memory_bytes).unwrap_or(u64::MAX)
    }

    /// Refuses what needs more memory than there is.
    pub fn need_memory(&self, file: &str, bytes: u128, what: &str) -> Result<(), Failure> {
        let limit = self.memory_limit();
        if bytes <= limit.into() {
            return Ok(());
        }
        let needed = u64::try_from(bytes).map_or("over 16 EiB".into(), tlc::explain::bytes_text);
        let message = format!(
            "{what} needs too much memory; expected at most {}, found {needed}",
            tlc::explain::bytes_text(limit)
        );
        Err(Failure::at(Code::Limit, file, message))
    }

    /// How tensor files are read.
    pub fn read_options(&self, hint: Option<DType>) -> ReadOptions {
        ReadOptions {
            limit_bytes: self.memory_limit(),
            hint,
        }
    }
}
