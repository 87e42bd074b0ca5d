//! From a recorded graph to an executable.
//!
//! Invariants: one machine (pool, buffer pool, code generator) serves every executable of a thread count; an
//! [`Executable`] is `Send + Sync` and runs from many threads at once; inputs are given in the order they were declared.

mod specializations;

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use tlc_ir::graph::verify::{VerifyError, verify};
use tlc_ir::plan::Layout;
use tlc_ir::{DType, Element, Graph as IrGraph, HostTensor, Target};
use tlc_passes::pipeline::PassError;
use tlc_passes::{Compiled, Options, memory};
use tlc_runtime::executable::{Argument, LoopTime, MemoryNeed, OutputTensor, RunError, StepTime, TensorView, Watched};
use tlc_runtime::jit::{self, JitError};
use tlc_runtime::memory::BufferPool;
use tlc_runtime::pool::{Pool, default_threads};

use crate::error::Errors;
use crate::graph::Graph;
use specializations::{Picked, Specializations};

pub use specializations::{Specialization, Specialize, Verdict};

/// How to compile.
#[derive(Clone, Debug, Default)]
pub struct CompileOptions {
    /// Threads that kernels run on, the caller's included; all available cores if `None`.
    pub threads: Option<usize>,
    /// Optional passes, by name; the default pipeline if `None`.
    pub passes: Option<String>,
    /// The most bytes that an einsum intermediate may have.
    pub max_memory_bytes: Option<u64>,
    /// Values of symbols that no input's shape tells, by name. A name that the graph does not have is an error.
    pub symbols: Vec<(String, i64)>,
    /// When versions for fixed sizes are made of a graph whose sizes are symbols.
    pub specialize: Specialize,
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
    /// A pass failed.
    #[error(transparent)]
    Pass(#[from] PassError),
    /// Loading failed.
    #[error(transparent)]
    Load(#[from] RunError),
    /// The code generator does not know this machine.
    #[error(transparent)]
    Machine(#[from] JitError),
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
    target: Target,
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
                jit::host_isa()?;
                (BufferPool::new(), tlc_runtime::machine::target(jit::has_fma()))
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
    pub fn target(&self) -> &Target {
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
    target: Target,
}

/// What was decided and the code for it.
struct Version {
    inner: tlc_runtime::executable::Executable,
    compiled: Compiled,
}

/// How a graph is compiled: what [`CompileOptions`] mean on this machine.
struct Compiler {
    machine: Machine,
    options: Options,
    symbols: Vec<(String, i64)>,
}

impl Compiler {
    fn new(options: &CompileOptions) -> Result<Compiler, BuildError> {
        let machine = Machine::with_threads(options.threads)?;
        let pipeline = match &options.passes {
            Some(names) => names.parse()?,
            None => Default::default(),
        };
        let pass_options = Options {
            target: machine.target.clone(),
            pipeline,
            max_memory_bytes: options.max_memory_bytes,
        };
        Ok(Compiler {
            machine,
            options: pass_options,
            symbols: options.symbols.clone(),
        })
    }

    /// Everything but the code.
    fn decide(&self, graph: &IrGraph) -> Result<Compiled, BuildError> {
        Ok(tlc_passes::compile(graph, &self.options)?)
    }

    /// The code for what was decided, made by so many threads.
    fn load(&self, compiled: Compiled, compiling: usize) -> Result<Version, BuildError> {
        let plan = compiled.planned.plan.clone();
        #[cfg(feature = "seeded-faults")]
        let plan = {
            let mut plan = plan;
            tlc_passes::faults::before_load(&mut plan);
            plan
        };
        let inner = tlc_runtime::executable::Executable::compiled_on(
            compiling,
            plan,
            Arc::clone(&self.machine.threads),
            Arc::clone(&self.machine.buffers),
            memory::pack,
        )?
        .with_symbols(self.symbols.clone());
        Ok(Version { inner, compiled })
    }
}

/// An input of a call: borrowed where its layout allows, else a copy in C order.
pub enum Input<'a> {
    /// The caller's memory.
    Borrowed(TensorView<'a>),
    /// A copy.
    Owned(HostTensor),
    /// A result of an earlier call, given away: [`Executable::run_donating`] may compute an output in its buffer.
    Donated(Output),
}

impl Input<'_> {
    fn view(&self) -> TensorView<'_> {
        match self {
            Input::Borrowed(v) => *v,
            Input::Owned(t) => TensorView {
                dtype: t.dtype(),
                shape: t.shape(),
                data: t.aligned_bytes(),
            },
            Input::Donated(output) => output.tensor.view(),
        }
    }
}

impl From<Output> for Input<'_> {
    fn from(output: Output) -> Self {
        Input::Donated(output)
    }
}

impl<'a> From<TensorView<'a>> for Input<'a> {
    fn from(v: TensorView<'a>) -> Self {
        Input::Borrowed(v)
    }
}

impl<'a> From<&'a HostTensor> for Input<'a> {
    fn from(t: &'a HostTensor) -> Self {
        Input::Borrowed(TensorView {
            dtype: t.dtype(),
            shape: t.shape(),
            data: t.aligned_bytes(),
        })
    }
}

impl<'a> From<&'a OutputTensor> for Input<'a> {
    fn from(t: &'a OutputTensor) -> Self {
        Input::Borrowed(t.view())
    }
}

impl<'a> From<&'a Output> for Input<'a> {
    fn from(t: &'a Output) -> Self {
        Input::Borrowed(t.tensor.view())
    }
}

impl<'a, T: Element, D: ndarray::Dimension> From<&'a ndarray::Array<T, D>> for Input<'a> {
    /// Borrowed if the array is in C order, copied otherwise.
    fn from(a: &'a ndarray::Array<T, D>) -> Self {
        match a.as_slice() {
            Some(data) => Input::Borrowed(TensorView {
                dtype: T::DTYPE,
                shape: a.shape(),
                data: bytemuck::cast_slice(data),
            }),
            None => {
                let data: Vec<T> = a.iter().copied().collect();
                Input::Owned(HostTensor::from_slice(a.shape(), &data).expect("as many elements as the array has"))
            }
        }
    }
}

/// A named result in pooled memory.
#[derive(Debug)]
pub struct Output {
    /// The output's name.
    pub name: String,
    tensor: OutputTensor,
}

impl Output {
    /// Element type.
    pub fn dtype(&self) -> DType {
        self.tensor.dtype
    }

    /// Extents.
    pub fn shape(&self) -> &[usize] {
        &self.tensor.shape
    }

    /// The elements, if `T` is the element type.
    pub fn as_slice<T: Element>(&self) -> Option<&[T]> {
        (T::DTYPE == self.tensor.dtype).then(|| bytemuck::cast_slice(self.tensor.bytes()))
    }

    /// A view as an `ndarray` array, if `T` is the element type.
    pub fn as_array<T: Element>(&self) -> Option<ndarray::ArrayViewD<'_, T>> {
        ndarray::ArrayViewD::from_shape(self.shape(), self.as_slice::<T>()?).ok()
    }

    /// The element bytes, native-endian.
    pub fn bytes(&self) -> &[u8] {
        self.tensor.bytes()
    }

    /// A copy as a host tensor.
    pub fn to_host(&self) -> HostTensor {
        HostTensor::from_bytes(self.dtype(), self.shape(), self.bytes()).expect("the buffer fits its shape")
    }
}

/// Compiles a graph of the graph language.
///
/// # Errors
/// [`BuildError`].
pub fn compile_ir(graph: &IrGraph, options: &CompileOptions) -> Result<Executable, BuildError> {
    let start = Instant::now();
    let compiler = Compiler::new(options)?;
    let errors = verify(graph);
    if !errors.is_empty() {
        return Err(BuildError::Invalid(errors));
    }
    check_symbols(graph, &options.symbols)?;
    let threads = compiler.machine.threads.threads();
    let general = compiler.load(compiler.decide(graph)?, threads)?;
    let target = compiler.machine.target.clone();
    let bound_by_inputs = graph.symbols().iter().any(|s| s.upper.is_none());
    let specializations =
        bound_by_inputs.then(|| Specializations::new(graph.clone(), compiler, options, start.elapsed()));
    Ok(Executable {
        general,
        specializations,
        target,
    })
}

impl Graph {
    /// Compiles what has been recorded.
    ///
    /// # Errors
    /// Every error of the recording, or why it could not be compiled.
    pub fn compile(&self, options: &CompileOptions) -> Result<Executable, BuildError> {
        compile_ir(&self.finish()?, options)
    }
}

impl Executable {
    /// Runs with inputs in the order they were declared; outputs are in pooled memory.
    ///
    /// # Errors
    /// If inputs do not fit, memory runs out, or a worker panics.
    pub fn run(&self, inputs: &[Input<'_>]) -> Result<Vec<Output>, RunError> {
        let views: Vec<TensorView<'_>> = inputs.iter().map(Input::view).collect();
        let outputs = self.with_version(&views, |version| version.inner.run(&views))?;
        Ok(self.named(outputs))
    }

    /// The version that runs a call, or the code for any sizes.
    fn pick(&self, inputs: &[TensorView<'_>]) -> Result<Picked, RunError> {
        match &self.specializations {
            Some(s) => s.pick(&self.general, inputs),
            None => Ok(Picked::GENERAL),
        }
    }

    /// Calls what runs these inputs, and counts the call.
    fn with_version<T>(
        &self,
        inputs: &[TensorView<'_>],
        call: impl FnOnce(&Version) -> Result<T, RunError>,
    ) -> Result<T, RunError> {
        let picked = self.pick(inputs)?;
        self.run_picked(&picked, call)
    }

    fn run_picked<T>(
        &self,
        picked: &Picked,
        call: impl FnOnce(&Version) -> Result<T, RunError>,
    ) -> Result<T, RunError> {
        let result = call(picked.version.as_deref().unwrap_or(&self.general))?;
        if let Some(s) = &self.specializations {
            s.ran(&self.general, picked);
        }
        Ok(result)
    }

    fn named(&self, outputs: Vec<OutputTensor>) -> Vec<Output> {
        let names = self.general.inner.plan().outputs.iter().map(|o| o.name.clone());
        names
            .zip(outputs)
            .map(|(name, tensor)| Output { name, tensor })
            .collect()
    }

    /// As [`Executable::run`], taking the inputs. An [`Output`] of an earlier call among them is given away: where the input
    /// is last read where an output of its size is written, that output is computed in its buffer (see
    /// [`tlc_ir::Plan::donations`]), and otherwise the buffer returns to the pool.
    ///
    /// ```
    /// use tlc::{CompileOptions, DType, Graph, HostTensor};
    ///
    /// let g = Graph::new("decay");
    /// let x = g.input("x", DType::F32, [4]);
    /// g.output("y", &(&x * 0.5));
    /// let decay = g.compile(&CompileOptions::default())?;
    /// let start = HostTensor::from_slice(&[4], &[8.0f32, 4.0, 2.0, 1.0])?;
    /// let mut state = decay.run(&[(&start).into()])?.remove(0);
    /// for _ in 0..2 {
    ///     state = decay.run_donating(vec![state.into()])?.remove(0);
    /// }
    /// assert_eq!(state.as_slice::<f32>(), Some(&[1.0, 0.5, 0.25, 0.125][..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Executable::run`]; what was given away is gone all the same.
    pub fn run_donating(&self, inputs: Vec<Input<'_>>) -> Result<Vec<Output>, RunError> {
        let picked = {
            let views: Vec<TensorView<'_>> = inputs.iter().map(Input::view).collect();
            self.pick(&views)?
        };
        let mut copies = Vec::new();
        let places: Vec<Result<Argument<'_>, usize>> = inputs
            .into_iter()
            .map(|input| match input {
                Input::Borrowed(view) => Ok(Argument::Borrowed(view)),
                Input::Donated(output) => Ok(Argument::Donated(output.tensor)),
                Input::Owned(tensor) => {
                    copies.push(tensor);
                    Err(copies.len() - 1)
                }
            })
            .collect();
        let arguments = places
            .into_iter()
            .map(|p| {
                p.unwrap_or_else(|k| {
                    let t = &copies[k];
                    let (dtype, shape, data) = (t.dtype(), t.shape(), t.aligned_bytes());
                    Argument::Borrowed(TensorView { dtype, shape, data })
                })
            })
            .collect();
        let outputs = self.run_picked(&picked, |version| version.inner.run_donating(arguments))?;
        Ok(self.named(outputs))
    }

    /// Runs into the caller's buffers; allocates nothing once the input shapes have been seen.
    ///
    /// # Errors
    /// If inputs or buffers do not fit, memory runs out, or a worker panics.
    pub fn run_into(&self, inputs: &[TensorView<'_>], outputs: &mut [&mut [u8]]) -> Result<(), RunError> {
        self.with_version(inputs, |version| version.inner.run_into(inputs, outputs))
    }

    /// As [`Executable::run`] with the code for any sizes, and calls `watch` before and after each step of the call.
    ///
    /// # Errors
    /// As [`Executable::run`].
    pub fn run_watched(
        &self,
        inputs: &[Input<'_>],
        watch: &mut dyn FnMut(&Watched<'_>),
    ) -> Result<Vec<Output>, RunError> {
        let views: Vec<TensorView<'_>> = inputs.iter().map(Input::view).collect();
        Ok(self.named(self.general.inner.run_watched(&views, watch)?))
    }

    /// As [`Executable::run_into`], and answers the outputs' shapes: where data decides a size, a buffer has room for the
    /// largest (see [`Executable::output_shapes`]), and what lies beyond the actual size is anything.
    ///
    /// # Errors
    /// As [`Executable::run_into`].
    pub fn run_into_shaped(
        &self,
        inputs: &[TensorView<'_>],
        outputs: &mut [&mut [u8]],
    ) -> Result<Vec<Vec<usize>>, RunError> {
        self.with_version(inputs, |version| version.inner.run_into_shaped(inputs, outputs))
    }

    /// As [`Executable::run_into`] with the code for any sizes, and appends the time of each step to `times`. Returns what was
    /// measured in loops.
    ///
    /// # Errors
    /// As [`Executable::run_into`].
    pub fn run_profiled(
        &self,
        inputs: &[TensorView<'_>],
        outputs: &mut [&mut [u8]],
        times: &mut Vec<StepTime>,
    ) -> Result<Vec<LoopTime>, RunError> {
        self.general.inner.run_profiled(inputs, outputs, times)
    }

    /// Output shapes for the given inputs, the largest where data decides.
    ///
    /// # Errors
    /// If the inputs do not fit.
    pub fn output_shapes(&self, inputs: &[TensorView<'_>]) -> Result<Vec<Vec<usize>>, RunError> {
        let picked = self.pick(inputs)?;
        let version = picked.version.as_deref().unwrap_or(&self.general);
        version.inner.output_shapes(inputs)
    }

    /// What the given inputs' shapes say of the plan's symbols, by position; `None` where data decides.
    ///
    /// # Errors
    /// If the inputs do not fit.
    pub fn sizes(&self, inputs: &[TensorView<'_>]) -> Result<Vec<Option<i64>>, RunError> {
        let shapes: Vec<Vec<usize>> = inputs.iter().map(|i| i.shape.to_vec()).collect();
        self.general.inner.sizes(&shapes)
    }

    /// The memory that a call with the given inputs needs, before it runs.
    ///
    /// # Errors
    /// If the inputs do not fit.
    pub fn memory(&self, inputs: &[TensorView<'_>]) -> Result<MemoryNeed, RunError> {
        let picked = self.pick(inputs)?;
        picked.version.as_deref().unwrap_or(&self.general).inner.memory(inputs)
    }

    /// Arena placement for the given inputs.
    ///
    /// # Errors
    /// If the inputs do not fit.
    pub fn layout(&self, inputs: &[TensorView<'_>]) -> Result<Layout, RunError> {
        self.general.inner.layout(inputs)
    }

    /// The plan that runs for any sizes.
    pub fn plan(&self) -> &tlc_ir::Plan {
        self.general.inner.plan()
    }

    /// Everything that compilation decided.
    pub fn decisions(&self) -> &Compiled {
        &self.general.compiled
    }

    /// What the compiler knew of the machine.
    pub fn target(&self) -> &Target {
        &self.target
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

    /// Versions for fixed sizes that were made so far, in order, and what became of them. See [`Specialize`].
    ///
    /// ```
    /// use tlc::{CompileOptions, DType, Graph, HostTensor, Specialize};
    ///
    /// let g = Graph::new("mean");
    /// let n = g.symbol("n", 1..=1024);
    /// let x = g.input("x", DType::F32, (&n, 4));
    /// g.output("y", &x.mean(1));
    /// let options = CompileOptions { specialize: Specialize::After(2), ..CompileOptions::default() };
    /// let mean = g.compile(&options)?;
    /// let x = HostTensor::zeros(DType::F32, &[8, 4])?;
    /// for _ in 0..2 {
    ///     mean.run(&[(&x).into()])?;
    /// }
    /// mean.wait_for_specializations();
    /// assert_eq!(mean.specializations()[0].sizes, "n=8");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn specializations(&self) -> Vec<Specialization> {
        self.specializations.as_ref().map(|s| s.reports()).unwrap_or_default()
    }

    /// Waits until no version for fixed sizes is being made.
    pub fn wait_for_specializations(&self) {
        if let Some(s) = &self.specializations {
            s.wait();
        }
    }

    /// What the compiler decided and why, for people. Times are predicted from what `tlc hwbench` measured on this machine,
    /// if it did; the text says which model it was.
    pub fn explain(&self) -> String {
        let (target, measured) = crate::machine_model::limits(&self.target);
        let model = match measured {
            true => "times: from what `tlc hwbench` measured on this machine",
            false => "times: for a modest machine; `tlc hwbench` measures this one",
        };
        let mut text = crate::explain::explain(&self.general.compiled, &target);
        let versions = self.specializations();
        if !versions.is_empty() {
            text.push_str("\nversions for fixed sizes\n");
            versions.iter().for_each(|v| text.push_str(&format!("  {v}\n")));
        }
        format!("{text}{model}\n")
    }
}
