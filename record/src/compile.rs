//! From a recorded graph to an executable.
//!
//! Invariants: one machine (pool, buffer pool, code generator) serves every executable of a thread count; an
//! [`Executable`] is `Send + Sync` and runs from many threads at once; inputs are given in the order they were declared.

mod call;
mod device;
#[doc(hidden)]
pub mod input;
pub(crate) mod output;
mod packed_weights;
mod print;
mod resident;
mod specializations;
mod state;
mod state_file;

use std::panic::Location;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use tlc_ir::binding::idle_symbols;
use tlc_ir::graph::Origin;
use tlc_ir::graph::verify::{VerifyError, verify};
use tlc_ir::plan::verify::{Fault, check};
use tlc_ir::plan::{DeviceId, KernelId, Plan, PlanState};
use tlc_ir::target::{Cpu, EmitterId, Gpu, ProductLibrary, Products};
use tlc_ir::{Graph as IrGraph, IndexExpr, Kernel, NodeKind, Precision, TensorType};
use tlc_passes::contraction::has_products;
use tlc_passes::devices::{Devices, Link, Place, StateBinding};
use tlc_passes::pipeline::{Loops, PassError};
use tlc_passes::planner::Planned;
use tlc_passes::tuning::Pins;
use tlc_passes::{Compiled, Options, memory};
use tlc_runtime::binding::Binder;
use tlc_runtime::cpu::jit::{self, JitError};
use tlc_runtime::cuda;
use tlc_runtime::driver::{Emitters, Load, MemoryNeed, RunError};
use tlc_runtime::float_mode::DefaultMode;
use tlc_runtime::memory::BufferPool;
use tlc_runtime::null;
use tlc_runtime::pool::{Pool, default_threads};
use tlc_runtime::target::LEAST_LIBRARY_EXTENT;

use crate::error::{Error, Errors};
use crate::graph::Graph;
use crate::graph::states::Append;
use crate::tuned::Tuned;
use specializations::Specializations;

use resident::Resident;

pub use device::{Device, UnknownDevice};
pub use input::{Input, Named};
pub use output::{Output, OutputMut, Outputs, ReadError, WrongType};
pub use packed_weights::{PackedUse, PackedWeights, PackedWeightsError};
pub use resident::DeviceOutputs;
pub use specializations::{Specialization, Specialize, Verdict};
pub use state::{Entry, State};
pub use state_file::StateFileError;

/// How to compile.
#[derive(Clone, Debug, Default)]
pub struct CompileOptions {
    /// Threads that kernels run on, the caller's included; all available cores if `None`.
    pub threads: Option<usize>,
    /// Optional passes, by name; the default pipeline if `None`.
    pub passes: Option<String>,
    /// The most bytes that a call may need ([`Executable::memory`]), of the host's memory and of that of each device. Where keeping every
    /// value that is read again later would need more, values are computed again, or products over what iterations of a loop stack
    /// are sums that go around ([`tlc_passes::carried_sums`]), or loops whose derivatives keep what each iteration began with keep it of some
    /// ([`tlc_passes::segments`]), or all of it: what fits and takes the least time by prediction. What cannot be brought below the limit is
    /// [`RunError::MemoryLimit`]: as the graph is compiled, or, where sizes are symbols, before a call runs.
    pub max_memory_bytes: Option<u64>,
    /// Values by name of symbols that are the extent of no input. A name that the graph does not have is an error.
    pub symbols: Vec<(String, i64)>,
    /// When versions for fixed sizes are made of a graph whose sizes are symbols.
    pub specialize: Specialize,
    /// What computes the graph. What has no form there is computed by the host.
    pub device: Device,
    /// GPUs that compute it with that one, which must be a GPU as well: each a part of the nodes in the order of their recording, so that
    /// each holds about as many bytes of inputs and constants, and few bytes go from one to the next ([`tlc_passes::devices`]). What does
    /// not fit one GPU may fit several; they compute one after another.
    pub beside: Vec<Device>,
    /// How exactly f32 is computed with. [`Precision::Tf32`] lets a GPU multiply by matrix instructions, which take 10 of the mantissa's 23
    /// bits; [`Precision::Fast`] lets it approximate divisions and functions besides, also those of f16 and bf16. The host is always exact.
    pub precision: Precision,
    /// What computes matrix products of a GPU: kernels of tlc's own, or the library cuBLASLt, where that is found.
    pub products: Products,
    /// Choices of schedules that were measured to be faster on a processor than those that are calculated, as [`tune`](crate::tune::tune) finds them. They
    /// change no result.
    pub tuned: Option<Arc<Tuned>>,
    /// Weights that an earlier process packed for products: what the first call finds there it does not make again. The host alone has such
    /// weights. [`Executable::save_packed_weights`] writes them.
    pub packed_weights: Option<PackedWeights>,
}

/// Why a graph could not be compiled.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The recording has errors.
    #[error(transparent)]
    Recording(#[from] Errors),
    /// The graph breaks a rule of the language (a bug in whatever made it).
    #[error("the graph is not valid: {}", .0.iter().map(|e| e.to_string()).collect::<Vec<_>>().join("; "))]
    Invalid(Vec<VerifyError>),
    /// [`CompileOptions::symbols`] names a size that the graph does not have.
    #[error("no size is called `{name}`; expected {}", known_text(.known))]
    UnknownSymbol {
        /// The name.
        name: String,
        /// The names of the graph's sizes.
        known: Vec<String>,
    },
    /// [`CompileOptions::beside`] names no other GPU, or [`CompileOptions::device`] is none.
    #[error("{device} cannot share the work with {with}; expected different GPUs")]
    Beside {
        /// What it names.
        device: Device,
        /// What the work was to be shared with.
        with: Device,
    },
    /// A pass failed.
    #[error(transparent)]
    Pass(#[from] PassError),
    /// Loading failed.
    #[error(transparent)]
    Load(#[from] RunError),
    /// The code generator does not know this machine.
    #[error(transparent)]
    Machine(#[from] JitError),
    /// What was compiled breaks a rule of its language, so that it may not run: a bug in tlc.
    #[error("a bug in tlc: {}", .0.fault)]
    Broken(Box<Broken>),
}

/// A graph that was compiled wrongly, as the verifiers of plans and kernels found.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Broken {
    /// What is wrong with what was made of it.
    pub fault: Fault,
    /// The graph that was to be compiled.
    pub graph: IrGraph,
    /// Whether it was compiled for a GPU.
    pub for_gpu: bool,
}

fn known_text(known: &[String]) -> String {
    match known {
        [] => "none: every size is fixed".into(),
        names => names.join(", "),
    }
}

/// An error if a value is given for a size that the graph does not have.
fn check_symbols(graph: &IrGraph, given: &[(String, i64)]) -> Result<(), BuildError> {
    match given.iter().find(|(name, _)| graph.find_symbol(name).is_none()) {
        None => Ok(()),
        Some((name, _)) => Err(BuildError::UnknownSymbol {
            name: name.clone(),
            known: graph.symbols().iter().map(|s| s.name.clone()).collect(),
        }),
    }
}

/// Threads, memory and code generator, shared by executables.
#[derive(Clone)]
pub struct Machine {
    threads: Arc<Pool>,
    buffers: Arc<BufferPool>,
    target: Cpu,
}

impl Machine {
    /// The machine with that many threads (all available cores if `None`). One is made per thread count and kept.
    ///
    /// # Errors
    /// If the code generator does not support this CPU.
    pub fn with_threads(threads: Option<usize>) -> Result<Machine, BuildError> {
        static MACHINES: OnceLock<Mutex<Vec<(usize, Machine)>>> = OnceLock::new();
        let threads = threads.unwrap_or_else(default_threads).max(1);
        let mut known = MACHINES
            .get_or_init(Mutex::default)
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some((_, m)) = known.iter().find(|(t, _)| *t == threads) {
            return Ok(m.clone());
        }
        let shared = known.first().map(|(_, m)| m.clone());
        let (buffers, mut target) = match shared {
            Some(m) => (m.buffers, m.target),
            None => {
                let emitters = jit::emitters()?;
                (BufferPool::new(), tlc_runtime::target::cpu(emitters, threads))
            }
        };
        target.threads = threads;
        let machine = Machine {
            threads: Arc::new(Pool::new(threads)),
            buffers,
            target,
        };
        known.push((threads, machine.clone()));
        Ok(machine)
    }

    /// What the compiler knows of the machine.
    pub fn target(&self) -> &Cpu {
        &self.target
    }

    /// The thread pool.
    pub fn threads(&self) -> &Arc<Pool> {
        &self.threads
    }
}

/// A compiled graph.
pub struct Executable {
    general: Version,
    /// Versions for fixed sizes; absent if no input's size is a symbol.
    specializations: Option<Arc<Specializations>>,
    /// For tensors that stay on a GPU; absent on the processor.
    resident: Option<Resident>,
    /// Values of symbols that the options gave.
    symbols: Vec<(String, i64)>,
    devices: Devices,
    /// What caches must have room for.
    appends: Vec<Append>,
    /// Inputs and states by which something was differentiated that does not depend on them.
    unreached: Vec<String>,
}

/// What was decided, and the code that was begun meanwhile.
type Decided = (Compiled, Option<jit::Ahead>);

/// What was decided and the code for it.
struct Version {
    inner: tlc_runtime::driver::Executable,
    compiled: Compiled,
}

/// How a graph is compiled: what [`CompileOptions`] mean on this machine.
#[derive(Clone)]
struct Compiler {
    machine: Machine,
    /// The devices beside the host, as plans number them from 1 on.
    gpus: Vec<Arc<cuda::Context>>,
    options: Options,
    symbols: Vec<(String, i64)>,
    packed: Option<PackedWeights>,
}

impl Compiler {
    fn new(graph: &IrGraph, options: &CompileOptions) -> Result<Compiler, BuildError> {
        let machine = Machine::with_threads(options.threads)?;
        let gpus = opened(options)?;
        let targets = gpus.iter().map(|context| {
            Ok(Gpu {
                products: product_library(graph, context, options.products)?,
                ..tlc_runtime::target::gpu(context.properties())
            })
        });
        let targets: Vec<Gpu> = targets.collect::<Result<_, RunError>>()?;
        let devices = joined(Devices::new(machine.target.clone(), targets));
        Ok(Compiler {
            options: pass_options(devices, options)?,
            machine,
            gpus,
            symbols: options.symbols.clone(),
            packed: options.packed_weights.clone(),
        })
    }

    /// What was decided about a graph, and the code for it. Where a call would need more memory than it may, values are computed again.
    fn version(&self, graph: &IrGraph, (compiled, ahead): Decided, compiling: usize) -> Result<Version, BuildError> {
        let version = self.load(graph, compiled, ahead, compiling)?;
        let Some(limit) = self.options.max_memory_bytes else {
            return Ok(version);
        };
        let plan = version.inner.plan();
        let decided_by_inputs = |d: &IndexExpr| d.as_const().is_none();
        if plan.sources().any(|(_, ty)| ty.shape.iter().any(decided_by_inputs)) {
            return Ok(version);
        }
        // Where data decides sizes there is as much room as they may need.
        if version.inner.fixed_memory()?.within(limit).is_ok() {
            return Ok(version);
        }
        let fitting = Fitting {
            limit,
            graph,
            options: &self.options,
            load: &|compiled| self.load(graph, compiled, None, compiling),
            needs: &|version: &Version| Ok(needs(&version.inner.fixed_memory()?).collect()),
            decided: |version| version.compiled,
        };
        let version = fitting.of(version)?;
        version.inner.fixed_memory()?.within(limit)?;
        Ok(version)
    }

    /// Everything but the code, which so many threads begin with meanwhile, the caller's included.
    fn decide(&self, graph: &IrGraph, compiling: usize) -> Result<Decided, BuildError> {
        let ahead = jit::Ahead::new(compiling);
        let announce = |kernel: &Kernel, device: DeviceId, emitter: EmitterId| {
            if let (Some(ahead), DeviceId::HOST) = (&ahead, device) {
                ahead.begin(kernel, emitter);
            }
        };
        let compiled = tlc_passes::compile_announcing(graph, &self.options, &announce)?;
        Ok((compiled, ahead))
    }

    /// The code for what was decided about a graph, made by so many threads. Every plan and kernel that is to run passes here,
    /// and none that its verifier refuses gets further.
    fn load(
        &self,
        graph: &IrGraph,
        compiled: Compiled,
        ahead: Option<jit::Ahead>,
        compiling: usize,
    ) -> Result<Version, BuildError> {
        let mut plan = Arc::clone(&compiled.planned.plan);
        checked(graph, &plan)?;
        tlc_passes::made::before_load(&mut plan);
        let load = Load {
            threads: Arc::clone(&self.machine.threads),
            compiling,
            ahead,
            buffers: Arc::clone(&self.machine.buffers),
            packer: match self.gpus.iter().any(|g| g.checks_slots()) {
                true => memory::pack_apart,
                false => memory::pack,
            },
            emitters: emitters(&compiled.planned),
            devices: cuda::queued(&self.gpus),
        };
        let inner = tlc_runtime::driver::Executable::load(plan, load)?;
        let inner = inner
            .with_symbols(self.symbols.clone())
            .with_idle_symbols(idle_symbols(graph, &self.symbols))
            .with_memory_limit(self.options.max_memory_bytes);
        let inner = match &self.packed {
            Some(packed) => inner.with_kept_before(packed.values()),
            None => inner,
        };
        Ok(Version { inner, compiled })
    }
}

/// What makes each kernel of a plan and of its loops' bodies.
fn emitters(planned: &Planned) -> Emitters {
    Emitters {
        kernels: planned.emitters.clone(),
        bodies: planned.bodies.iter().map(|body| emitters(&body.planned)).collect(),
    }
}

/// Has the verifiers judge a plan and its kernels. What they refuse is an error, and in builds with debug assertions a panic.
fn checked(graph: &IrGraph, plan: &Plan) -> Result<(), BuildError> {
    let _span = tracing::info_span!("pass", name = "verify").entered();
    let Err(fault) = check(plan) else {
        return Ok(());
    };
    assert!(
        !cfg!(debug_assertions) || tlc_passes::made::is_changed(),
        "{fault}\n{graph}{plan}"
    );
    Err(BuildError::Broken(Box::new(Broken {
        fault: *fault,
        graph: graph.clone(),
        for_gpu: plan.devices.len() > 1,
    })))
}

/// What the compiler decides about a graph for a machine that need not be this one, such as one with GPUs: its clusters, kernels and
/// plan, checked as those that run are. No code is made. What has a form on the GPU is computed there; several share it, as by
/// [`CompileOptions::beside`].
///
/// # Errors
/// [`BuildError`].
pub fn plan_ir(graph: &IrGraph, devices: impl Into<Devices>, options: &CompileOptions) -> Result<Compiled, BuildError> {
    let _mode = DefaultMode::enter();
    let errors = verify(graph);
    if !errors.is_empty() {
        return Err(BuildError::Invalid(errors));
    }
    check_symbols(graph, &options.symbols)?;
    let options = pass_options(devices, options)?;
    let mut compiled = tlc_passes::compile(graph, &options)?;
    // Sizes that calls give are not known, and those that data decides are as large as they may get.
    let known = compiled.planned.plan.symbols.iter().all(|s| s.upper.is_some());
    if let (Some(limit), true) = (options.max_memory_bytes, known) {
        compiled = within(limit, graph, &options, compiled)?;
    }
    checked(graph, &compiled.planned.plan)?;
    Ok(compiled)
}

/// What is decided about a graph so that each device needs no more than so many bytes, as far as that is possible, as in
/// `Compiler::version`; `compiled` is what is decided without a limit.
fn within(limit: u64, graph: &IrGraph, options: &Options, compiled: Compiled) -> Result<Compiled, BuildError> {
    let threads = options.devices.host().threads;
    let fitting = Fitting {
        limit,
        graph,
        options,
        load: &Ok,
        needs: &|compiled: &Compiled| {
            let plan = &compiled.planned.plan;
            let binder = Binder {
                plan,
                given: &[],
                idle: &[],
                packer: memory::pack,
            };
            let extent = |e: &IndexExpr| e.as_const().and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
            let shapes = plan.sources().map(|(_, ty)| ty.shape.iter().map(extent).collect());
            let needs = null::memory(plan, &binder.bind(shapes.collect())?, threads)?;
            Ok(needs.iter().map(|need| (need.total(), need.arena)).collect())
        },
        decided: |compiled| compiled,
    };
    fitting.of(compiled)
}

/// Bytes by device: all that a call needs, and its arena alone.
type Needs = Vec<(u64, u64)>;

/// How a graph is compiled again so that each device needs no more than so many bytes.
struct Fitting<'a, V> {
    limit: u64,
    graph: &'a IrGraph,
    /// Those of compiling it without a limit.
    options: &'a Options,
    /// What can be asked for what it needs of memory. Of two of them there may be no room beside each other.
    load: &'a dyn Fn(Compiled) -> Result<V, BuildError>,
    /// What it needs.
    needs: &'a dyn Fn(&V) -> Result<Needs, BuildError>,
    /// What was decided, without the rest.
    decided: fn(V) -> Compiled,
}

impl<V> Fitting<'_, V> {
    /// Of the ways to need less memory, what takes the least time by prediction of those that fit; if none does, what needs the least. `free` is what
    /// is made without a limit, which nothing here is faster than.
    fn of(&self, free: V) -> Result<V, BuildError> {
        let need = (self.needs)(&free)?;
        if self.excess(&need) == 0 {
            return Ok(free);
        }
        let free = (self.decided)(free);
        let has_loops = free
            .graph
            .nodes()
            .any(|(_, node)| matches!(node.kind, NodeKind::Loop(_)));
        drop(free);
        // The best so far: what it takes, and by how much it is too large.
        let mut best = (self.load)(self.again(self.options, need)?)?;
        let mut excess = self.excess(&(self.needs)(&best)?);
        if !has_loops {
            return Ok(best);
        }
        // What loops keep is in none of the values that can be computed again.
        let mut changed = (0, 0);
        for loops in [Loops::CarrySums, Loops::Segments] {
            let options = Options {
                loops,
                ..self.options.clone()
            };
            let cut = tlc_passes::compile(self.graph, &options)?;
            let changes = (cut.carried_sums.len(), cut.segmented.len());
            if std::mem::replace(&mut changed, changes) == changes {
                continue;
            }
            let known = (self.decided)(best);
            let best_ns = self.predicted_ns(&known);
            let no_faster = |other: &Compiled| excess == 0 && self.predicted_ns(other) >= best_ns;
            // With values computed again beside that it would take longer still.
            if no_faster(&cut) {
                best = (self.load)(known)?;
                continue;
            }
            let cut = (self.load)(cut)?;
            let need = (self.needs)(&cut)?;
            if self.excess(&need) == 0 {
                // The next level is this one, and more.
                return Ok(cut);
            }
            drop(cut);
            let both = self.again(&options, need)?;
            if no_faster(&both) {
                best = (self.load)(known)?;
                continue;
            }
            let both = (self.load)(both)?;
            match self.excess(&(self.needs)(&both)?) {
                more if more > excess => {
                    drop(both);
                    best = (self.load)(known)?;
                }
                other => {
                    excess = other;
                    best = both;
                }
            }
        }
        Ok(best)
    }

    /// What is decided where the arenas are as small as the rest of what calls need, by device, leaves room for.
    fn again(&self, options: &Options, needs: Needs) -> Result<Compiled, BuildError> {
        let options = Options {
            arena_limits: arena_limits(self.limit, needs.into_iter()),
            ..options.clone()
        };
        Ok(tlc_passes::compile(self.graph, &options)?)
    }

    /// By how many bytes what the neediest device needs is above the limit.
    fn excess(&self, needs: &[(u64, u64)]) -> u64 {
        let most = needs.iter().map(|need| need.0).max();
        most.unwrap_or(0).saturating_sub(self.limit)
    }

    /// The least time of a call. Where nobody knows how often a loop runs, it is no part of it: such loops are in all that is compared, and what cutting
    /// them costs is not known, so that they are cut only where nothing else fits.
    fn predicted_ns(&self, compiled: &Compiled) -> f64 {
        let devices = crate::machine_model::assumed_of(&self.options.devices);
        let costs = crate::explain::step_costs(&compiled.planned.plan, &devices);
        costs.iter().filter_map(|(_, cost)| cost.predicted_ns).sum()
    }
}
/// What a limit of all that a device needs leaves for its arena, of all and of the arena now, by device.
fn arena_limits(limit: u64, needs: impl Iterator<Item = (u64, u64)>) -> Vec<u64> {
    needs.map(|(all, arena)| limit.saturating_sub(all - arena)).collect()
}

/// All that a call needs of each device, and its arena alone.
fn needs(need: &MemoryNeed) -> impl Iterator<Item = (u64, u64)> {
    let devices = need.devices.iter().map(|d| (d.total(), d.arena));
    std::iter::once((need.total(), need.arena)).chain(devices)
}

/// What passes are run with.
/// The library of products that a device has for a graph. It is not loaded for one that has no products for it.
fn product_library(
    graph: &IrGraph,
    context: &cuda::Context,
    products: Products,
) -> Result<Option<ProductLibrary>, RunError> {
    let least = match products {
        Products::Auto => LEAST_LIBRARY_EXTENT.pow(3),
        _ => 0,
    };
    match has_products(graph, least) {
        true => Ok(tlc_runtime::target::product_library(context, products)?),
        false => Ok(None),
    }
}

/// The GPUs that compute a graph.
fn opened(options: &CompileOptions) -> Result<Vec<Arc<cuda::Context>>, BuildError> {
    let all: Vec<Device> = [options.device]
        .into_iter()
        .chain(options.beside.iter().copied())
        .collect();
    if let Some(at) =
        (1..all.len()).find(|&k| all[k] == Device::Cpu || all[..k].contains(&all[k]) || all[0] == Device::Cpu)
    {
        return Err(BuildError::Beside {
            device: all[at],
            with: all[0],
        });
    }
    let gpus = all.into_iter().filter_map(|device| match device {
        Device::Cpu => None,
        Device::Cuda(ordinal) => Some(cuda::open(ordinal).map_err(|e| RunError::from(e).into())),
    });
    gpus.collect()
}

/// Devices whose GPUs are joined to each other, for the driver copies from one to another.
fn joined(devices: Devices) -> Devices {
    let gpus: Vec<DeviceId> = (1..devices.count() as u32).map(DeviceId).collect();
    let pairs = gpus.iter().flat_map(|&from| gpus.iter().map(move |&to| (from, to)));
    let pairs = pairs.filter(|(from, to)| from != to);
    pairs.fold(devices, |devices, (from, to)| devices.with_link(Link::pcie(from, to)))
}

fn pass_options(devices: impl Into<Devices>, options: &CompileOptions) -> Result<Options, BuildError> {
    let devices = devices.into();
    let base = Options::new(devices.clone());
    Ok(Options {
        place: match devices.count() {
            0..=2 => base.place,
            _ => Place::Divided,
        },
        pipeline: match &options.passes {
            Some(names) => names.parse()?,
            None => Default::default(),
        },
        max_memory_bytes: options.max_memory_bytes,
        precision: options.precision,
        pins: options.tuned.as_deref().map(|tuned| Arc::new(tuned.pins())),
        ..base
    })
}

/// Compiles a graph of the graph language.
///
/// # Errors
/// [`BuildError`].
pub fn compile_ir(graph: &IrGraph, options: &CompileOptions) -> Result<Executable, BuildError> {
    compile_with_states(graph, Vec::new(), options)
}

/// As [`compile_ir`], with these choices in place of those of [`CompileOptions::tuned`].
pub(crate) fn compile_pinned(
    graph: &IrGraph,
    options: &CompileOptions,
    pins: Arc<Pins>,
) -> Result<Executable, BuildError> {
    let mut compiler = Compiler::new(graph, options)?;
    compiler.options.pins = Some(pins);
    compile_by(compiler, graph, options)
}

/// As [`compile_ir`], for a graph some of whose inputs and outputs are states.
fn compile_with_states(
    graph: &IrGraph,
    states: Vec<StateBinding>,
    options: &CompileOptions,
) -> Result<Executable, BuildError> {
    let mut compiler = Compiler::new(graph, options)?;
    compiler.options.states = states;
    compile_by(compiler, graph, options)
}

fn compile_by(compiler: Compiler, graph: &IrGraph, options: &CompileOptions) -> Result<Executable, BuildError> {
    let start = Instant::now();
    let _mode = DefaultMode::enter();
    let stateless = compiler.options.states.is_empty();
    let errors = verify(graph);
    if !errors.is_empty() {
        return Err(BuildError::Invalid(errors));
    }
    check_symbols(graph, &options.symbols)?;
    let threads = compiler.machine.threads.threads();
    let general = compiler.version(graph, compiler.decide(graph, threads)?, threads)?;
    let devices = compiler.options.devices.clone();
    let resident = (!compiler.gpus.is_empty() && stateless).then(|| Resident::new(&compiler, graph));
    let bound_by_inputs = graph.symbols().iter().any(|s| s.upper.is_none());
    let specializations =
        bound_by_inputs.then(|| Specializations::new(graph.clone(), compiler, options, start.elapsed()));
    Ok(Executable {
        general,
        specializations,
        resident,
        symbols: options.symbols.clone(),
        devices,
        appends: Vec::new(),
        unreached: Vec::new(),
    })
}

/// A type over a plan's symbols.
fn type_text(plan: &Plan, ty: &TensorType) -> String {
    let extent = |e: &IndexExpr| e.display(&|s| plan.symbols[s.0 as usize].name.clone()).to_string();
    let extents: Vec<String> = ty.shape.iter().map(extent).collect();
    format!("{}[{}]", ty.dtype, extents.join(", "))
}

impl Graph {
    /// Compiles what has been recorded.
    ///
    /// # Errors
    /// Every error of the recording, no output, or why it could not be compiled.
    #[track_caller]
    pub fn compile(&self, options: &CompileOptions) -> Result<Executable, BuildError> {
        let graph = self.finish()?;
        let states = self.state_bindings();
        if graph.outputs().is_empty() {
            return Err(Errors::new(vec![Error {
                op: "compile".into(),
                operands: vec![],
                problem: "the graph has no outputs".into(),
                expected: Some("at least one, see Graph::output".into()),
                origin: Origin::Source(Location::caller()),
            }])
            .into());
        }
        let executable = compile_with_states(&graph, states, options)?;
        Ok(Executable {
            appends: self.all_appends(),
            unreached: self.all_unreached(),
            ..executable
        })
    }
}

impl std::fmt::Debug for Executable {
    /// In one line: its name, the types of its inputs and outputs, and how many kernels it has.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let plan = self.plan();
        let ty = |ty: &TensorType| type_text(plan, ty);
        let inputs: Vec<String> = plan
            .inputs
            .iter()
            .map(|i| format!("{}: {}", i.name, ty(&i.ty)))
            .collect();
        let outputs: Vec<String> = plan
            .outputs
            .iter()
            .map(|o| format!("{}: {}", o.name, ty(&o.ty)))
            .collect();
        write!(
            f,
            "Executable({}: ({}) -> ({}), ",
            plan.name,
            inputs.join(", "),
            outputs.join(", ")
        )?;
        match self.compiled_kernels() {
            1 => write!(f, "1 kernel)"),
            n => write!(f, "{n} kernels)"),
        }
    }
}

impl Executable {
    /// The states that it reads and sets, with their types, in the order in which the graph names them first.
    pub fn states(&self) -> &[PlanState] {
        &self.plan().states
    }

    /// The plan that runs for any sizes.
    pub fn plan(&self) -> &Plan {
        self.general.inner.plan()
    }

    /// Everything that compilation decided.
    pub fn decisions(&self) -> &Compiled {
        &self.general.compiled
    }

    /// The registers that a thread of a kernel of the plan takes, if the kernel runs on a GPU whose driver says.
    pub fn kernel_registers(&self, kernel: KernelId) -> Option<u32> {
        self.general.inner.kernel_registers(kernel)
    }

    /// The bytes of local memory that a thread of a kernel of the plan has, where what registers had no room for is, if the kernel runs on a GPU
    /// whose driver says.
    pub fn kernel_local_bytes(&self, kernel: KernelId) -> Option<u32> {
        self.general.inner.kernel_local_bytes(kernel)
    }

    /// What the compiler knew of the machine.
    pub fn target(&self) -> &Cpu {
        self.devices.host()
    }

    /// What it knew of the machine and the devices beside it.
    pub fn devices(&self) -> &Devices {
        &self.devices
    }

    /// Machine code size in bytes.
    pub fn code_bytes(&self) -> usize {
        self.general.inner.code_bytes()
    }

    /// Kernels compiled so far: those of the code for any sizes, and those of every version for fixed sizes.
    pub fn compiled_kernels(&self) -> usize {
        let special: usize = self.specializations().iter().map(|s| s.kernels).sum();
        self.general.inner.compiled_kernels() + special
    }

    /// Whether some size is a symbol that calls bind.
    pub fn has_symbolic_sizes(&self) -> bool {
        self.specializations.is_some()
    }

    /// Versions for fixed sizes that were made so far, in order, and what became of them. See [`Specialize`].
    ///
    /// ```
    /// use tlc::{CompileOptions, DType, Graph, Specialize, inputs};
    ///
    /// let g = Graph::new("mean");
    /// let n = g.symbol("n", 1..=1024);
    /// let x = g.input("x", DType::F32, (&n, 4));
    /// g.output("y", &x.mean(1));
    /// let options = CompileOptions { specialize: Specialize::After(2), ..CompileOptions::default() };
    /// let mean = g.compile(&options)?;
    /// for _ in 0..2 {
    ///     mean.run(&inputs![&[0.0f32; 32]])?;
    /// }
    /// mean.wait_for_specializations();
    /// assert_eq!(mean.specializations()[0].sizes, "n=8");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn specializations(&self) -> Vec<Specialization> {
        self.specializations.as_ref().map(|s| s.reports()).unwrap_or_default()
    }

    /// The first version for fixed sizes that the verifiers found to be compiled wrongly, which is a bug in tlc: compiling the graph for
    /// these sizes would have been the error [`BuildError::Broken`]. It is not used, and calls go on without it.
    pub fn broken(&self) -> Option<Arc<Broken>> {
        self.specializations.as_ref()?.broken()
    }

    /// Waits until no version for fixed sizes is being made.
    pub fn wait_for_specializations(&self) {
        if let Some(s) = &self.specializations {
            s.wait();
        }
    }

    /// Copies constants that calls read from a mapped file end to end to huge pages now, where the system has them and memory for it; calls have it done in the
    /// background after the first few. Results are the same, and what is resident stays the same, for the file's pages are given back.
    pub fn place_constants(&self) {
        self.general.inner.place_constants();
    }

    /// What the compiler decided and why, for people. Times are predicted from what `tlc hwbench` measured on this machine,
    /// if it did; the text says which model it was.
    pub fn explain(&self) -> String {
        let (devices, measured) = crate::machine_model::limits_of(&self.devices);
        let model = match measured {
            true => "times: from what `tlc hwbench` measured on this machine",
            false => "times: for a modest machine; `tlc hwbench` measures this one",
        };
        let mut text = crate::explain::explain(&self.general.compiled, &devices);
        for name in &self.unreached {
            text.push_str(&format!(
                "nothing that is differentiated depends on `{name}`: its gradient is zeros\n"
            ));
        }
        // What cannot be bound here is not an error of explaining.
        for (state, bytes) in self.general.inner.packed_if_frozen().unwrap_or_default() {
            let (name, bytes) = (&self.plan().states[state].name, crate::explain::bytes_text(bytes));
            text.push_str(&format!("packed for products once if it is frozen: {name}, {bytes}\n"));
        }
        let versions = self.specializations();
        if !versions.is_empty() {
            text.push_str("\nversions for fixed sizes\n");
            versions.iter().for_each(|v| text.push_str(&format!("  {v}\n")));
        }
        format!("{text}{model}\n")
    }
}
