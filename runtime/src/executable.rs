//! Executing plans.
//!
//! Invariants:
//! - A call with a known binding (symbol values seen before) allocates nothing but outputs, and not those when the caller
//!   brings buffers. Everything else lives in call states that return to the executable.
//! - An [`Executable`] is `Send + Sync`; concurrent calls use different call states and share nothing mutable.
//! - Every buffer handed to a kernel has at least the bytes that the kernel's parameter declares under the binding: input
//!   shapes are checked against the declared types, guards are checked, output lengths are checked, and arena offsets come
//!   from a layout whose sizes were evaluated with overflow checks.
//! - The `init` steps run once, in the first call; what they leave is only read afterwards.
//! - Chunks of parallel loops depend on extents alone, so results do not depend on the number of threads.

mod donate;
mod init;
mod product;
mod watch;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use tlc_ir::DType;
use tlc_ir::graph::Condition;
use tlc_ir::index::{IndexExpr, IndexNode};
use tlc_ir::plan::{Layout, Plan, SlotId, Step, Storage};

use crate::gemm::multiply;
use crate::jit::{self, Args, JitError, JitOptions, KernelFn};
use crate::memory::{AlignedBuffer, AllocError, BufferPool, HUGE_PAGE_BYTES, PooledBuffer};
use crate::pool::{Pool, PoolPanic};
use product::BoundGemm;

pub use donate::Argument;
use init::Kept;
pub use watch::Watched;

/// Places a plan's arena slots for concrete symbol values; `None` if a size overflows. Supplied by the compiler, which owns
/// the decision.
pub type Packer = fn(&Plan, &[i64]) -> Option<Layout>;

/// Bindings kept per executable.
const MAX_BINDINGS: usize = 64;
/// Bytes of the worker scratch areas' alignment.
const SCRATCH_ALIGNMENT: u64 = 64;
/// Scratch memory of so many bytes for each worker asks for huge pages, whose bytes do not fight for sets of a cache.
const LARGE_SCRATCH_BYTES: u64 = 128 << 10;

/// Why a plan could not be loaded or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// Another number of inputs than the graph declares.
    #[error("the graph has {expected} inputs, found {found}")]
    InputCount {
        /// Declared.
        expected: usize,
        /// Given.
        found: usize,
    },
    /// Another number of outputs than the graph has.
    #[error("the graph has {expected} outputs, found {found} buffers")]
    OutputCount {
        /// The graph's.
        expected: usize,
        /// Given.
        found: usize,
    },
    /// An input of another dtype.
    #[error("input `{name}`: expected {expected}, found {found}")]
    InputDtype {
        /// The input.
        name: String,
        /// Declared.
        expected: DType,
        /// Given.
        found: DType,
    },
    /// An input of another shape.
    #[error("input `{name}`: expected {expected}, found shape {found:?}")]
    InputShape {
        /// The input.
        name: String,
        /// Declared type, printed.
        expected: String,
        /// Given.
        found: Vec<usize>,
    },
    /// The data of an input does not have the bytes its shape says, or is not aligned to its elements.
    #[error("input `{name}`: shape {shape:?} of {dtype} wants {expected} bytes aligned to {align}, found {found}")]
    InputBytes {
        /// The input.
        name: String,
        /// Given shape.
        shape: Vec<usize>,
        /// Dtype.
        dtype: DType,
        /// Bytes wanted.
        expected: usize,
        /// Alignment wanted, in bytes.
        align: usize,
        /// Bytes given.
        found: usize,
    },
    /// An output buffer of another size or alignment.
    #[error("output `{name}`: expected {expected} bytes aligned to {align}, found {found}")]
    OutputBytes {
        /// The output.
        name: String,
        /// Bytes wanted.
        expected: usize,
        /// Alignment wanted, in bytes.
        align: usize,
        /// Bytes given.
        found: usize,
    },
    /// A size outside its declared range.
    #[error("size `{name}` is {value}, declared {lo}..={hi}")]
    SymbolRange {
        /// The symbol.
        name: String,
        /// Its value.
        value: i64,
        /// Smallest allowed.
        lo: i64,
        /// Largest allowed.
        hi: i64,
    },
    /// A size that no input shape tells.
    #[error("size `{name}` follows from no input's shape")]
    SymbolUnbound {
        /// The symbol.
        name: String,
    },
    /// The graph assumed that sizes agree, and they do not.
    #[error("the graph needs {condition}, which the inputs' shapes do not satisfy")]
    Guard {
        /// The condition, printed with symbol names.
        condition: String,
    },
    /// A size that overflows.
    #[error("`{name}` has more elements than memory can hold")]
    Overflow {
        /// The slot.
        name: String,
    },
    /// The system has no memory left.
    #[error(transparent)]
    OutOfMemory(#[from] AllocError),
    /// A kernel could not be compiled.
    #[error(transparent)]
    Compile(#[from] JitError),
    /// A worker panicked.
    #[error(transparent)]
    Worker(#[from] PoolPanic),
}

/// A C-contiguous tensor in host memory, borrowed.
#[derive(Clone, Copy, Debug)]
pub struct TensorView<'a> {
    /// Element type.
    pub dtype: DType,
    /// Extents.
    pub shape: &'a [usize],
    /// Element bytes, native-endian, aligned to the element. Bools are 0 or 1; the bits above the value of a type of less
    /// than a byte are 0.
    pub data: &'a [u8],
}

/// A result in pooled memory, which returns to the pool when it is dropped.
#[derive(Debug)]
pub struct OutputTensor {
    /// Element type.
    pub dtype: DType,
    /// Extents.
    pub shape: Vec<usize>,
    /// Element bytes.
    pub data: PooledBuffer,
}

impl OutputTensor {
    /// The element bytes.
    pub fn bytes(&self) -> &[u8] {
        self.data.as_slice()
    }

    /// A borrowed view of the result, fit to be an input.
    pub fn view(&self) -> TensorView<'_> {
        TensorView {
            dtype: self.dtype,
            shape: &self.shape,
            data: self.data.as_slice(),
        }
    }
}

/// The time of one step of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepTime {
    /// Position in the plan's steps.
    pub step: usize,
    /// Nanoseconds.
    pub ns: u64,
}

/// Called before (`true`) and after each step, with its number and where each slot's bytes are.
type Observe<'a> = dyn FnMut(usize, bool, &[*mut u8]) + 'a;

/// One step under a binding: everything evaluated.
enum BoundStep {
    Launches(Vec<BoundLaunch>),
    Gemm(Box<BoundGemm>),
    Copy { src: usize, dst: usize, bytes: usize },
}

struct BoundLaunch {
    kernel: usize,
    /// Where its buffers start in the call state's pointer table.
    first_arg: usize,
    args: Vec<usize>,
    symbols: Vec<i64>,
    extent: u64,
    grain: u64,
}

/// A plan under concrete symbol values.
struct Binding {
    shapes: Vec<Vec<usize>>,
    /// Bytes of every slot.
    slot_bytes: Vec<u64>,
    /// Root slot of every slot.
    root: Vec<usize>,
    output_shapes: Vec<Vec<usize>>,
    layout: Layout,
    scratch_bytes: u64,
    arg_count: usize,
    init: Vec<BoundStep>,
    steps: Vec<BoundStep>,
}

/// What one call needs besides its inputs and outputs.
struct CallState {
    arena: AlignedBuffer,
    scratch: AlignedBuffer,
    slots: Vec<*mut u8>,
    args: Vec<*mut u8>,
}

// SAFETY: the pointers are rewritten at the start of each call, by the thread that owns the state for that call.
unsafe impl Send for CallState {}

/// A loaded plan.
pub struct Executable {
    plan: Plan,
    kernels: Vec<KernelFn>,
    threads: Arc<Pool>,
    buffers: Arc<BufferPool>,
    packer: Packer,
    /// Values of symbols that no input's shape tells, by name.
    given: Vec<(String, i64)>,
    bindings: Mutex<VecDeque<Arc<Binding>>>,
    states: Mutex<Vec<CallState>>,
    /// What the `init` steps computed, once the first call has run them.
    kept: OnceLock<Kept>,
    /// Held while they run.
    initializing: Mutex<()>,
}

/// Locks a mutex whose data stays valid whatever panicked while it was held.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Executable {
    /// Compiles a plan's kernels and makes it ready to run.
    ///
    /// # Errors
    /// [`RunError::Compile`] if a kernel cannot be compiled.
    pub fn new(
        plan: Plan,
        threads: Arc<Pool>,
        buffers: Arc<BufferPool>,
        packer: Packer,
    ) -> Result<Executable, RunError> {
        let _span = tracing::info_span!("compile", kernels = plan.kernels.len()).entered();
        let batch: Vec<_> = plan.kernels.iter().collect();
        let options = JitOptions {
            threads: threads.threads(),
            ..JitOptions::default()
        };
        let compiled = jit::compile(&batch, &options)?;
        let kernels = compiled.into_iter().map(|c| c.function).collect();
        let executable = Executable {
            plan,
            kernels,
            threads,
            buffers,
            packer,
            given: Vec::new(),
            bindings: Mutex::new(VecDeque::with_capacity(MAX_BINDINGS)),
            states: Mutex::new(Vec::new()),
            kept: OnceLock::new(),
            initializing: Mutex::new(()),
        };
        Ok(executable)
    }

    /// Gives values to symbols that no input's shape tells, by name. A value for one that an input tells must agree with it.
    pub fn with_symbols(mut self, given: Vec<(String, i64)>) -> Executable {
        self.given = given;
        self
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The thread pool.
    pub fn threads(&self) -> &Arc<Pool> {
        &self.threads
    }

    /// Machine code size of all kernels, in bytes.
    pub fn code_bytes(&self) -> usize {
        self.kernels.iter().map(|k| k.size_bytes()).sum()
    }

    /// Arena placement for the given input shapes.
    ///
    /// # Errors
    /// If the shapes do not fit the declared inputs.
    pub fn layout(&self, inputs: &[TensorView<'_>]) -> Result<Layout, RunError> {
        Ok(self.binding(inputs)?.layout.clone())
    }

    /// Output shapes for the given inputs.
    ///
    /// # Errors
    /// If the shapes do not fit the declared inputs.
    pub fn output_shapes(&self, inputs: &[TensorView<'_>]) -> Result<Vec<Vec<usize>>, RunError> {
        Ok(self.binding(inputs)?.output_shapes.clone())
    }

    /// Runs the plan; outputs come from the buffer pool.
    ///
    /// # Errors
    /// If the inputs do not fit, memory runs out, or a worker panics.
    pub fn run(&self, inputs: &[TensorView<'_>]) -> Result<Vec<OutputTensor>, RunError> {
        let binding = self.binding(inputs)?;
        self.run_observed(&binding, inputs, None, &mut |_, _, _| {})
    }

    fn run_observed(
        &self,
        binding: &Binding,
        inputs: &[TensorView<'_>],
        fill: Option<u8>,
        observe: &mut Observe<'_>,
    ) -> Result<Vec<OutputTensor>, RunError> {
        let mut outputs = Vec::with_capacity(self.plan.outputs.len());
        for (o, shape) in self.plan.outputs.iter().zip(&binding.output_shapes) {
            let bytes = binding.slot_bytes[o.slot.0 as usize] as usize;
            outputs.push(OutputTensor {
                dtype: o.ty.dtype,
                shape: shape.clone(),
                data: self.buffers.take(bytes)?,
            });
        }
        self.with_state(binding, |state| {
            if let Some(fill) = fill {
                outputs.iter_mut().for_each(|o| o.data.as_mut_slice().fill(fill));
                state.arena.as_mut_slice().fill(fill);
                state.scratch.as_mut_slice().fill(fill);
            }
            for (o, out) in self.plan.outputs.iter().zip(&mut outputs) {
                state.slots[o.slot.0 as usize] = out.data.as_mut_ptr();
            }
            let address = |k: usize| inputs[k].data.as_ptr().cast_mut();
            self.execute(binding, state, &address, observe)
        })?;
        Ok(outputs)
    }

    /// Runs the plan into the caller's buffers, in the order of the outputs. Allocates nothing once the input shapes have
    /// been seen.
    ///
    /// # Errors
    /// If inputs or buffers do not fit, memory runs out, or a worker panics.
    pub fn run_into(&self, inputs: &[TensorView<'_>], outputs: &mut [&mut [u8]]) -> Result<(), RunError> {
        self.run_timed(inputs, outputs, &mut |_, _, _| {})
    }

    /// As [`Executable::run_into`], and appends the time of each step to `times`.
    ///
    /// # Errors
    /// As [`Executable::run_into`].
    pub fn run_profiled(
        &self,
        inputs: &[TensorView<'_>],
        outputs: &mut [&mut [u8]],
        times: &mut Vec<StepTime>,
    ) -> Result<(), RunError> {
        let mut last = Instant::now();
        self.run_timed(inputs, outputs, &mut |step, begins, _| {
            let now = Instant::now();
            if begins {
                last = now;
            } else {
                times.push(StepTime {
                    step,
                    ns: now.duration_since(last).as_nanos() as u64,
                });
            }
        })
    }

    fn run_timed(
        &self,
        inputs: &[TensorView<'_>],
        outputs: &mut [&mut [u8]],
        observe: &mut Observe<'_>,
    ) -> Result<(), RunError> {
        let binding = self.binding(inputs)?;
        if outputs.len() != self.plan.outputs.len() {
            return Err(RunError::OutputCount {
                expected: self.plan.outputs.len(),
                found: outputs.len(),
            });
        }
        for (o, out) in self.plan.outputs.iter().zip(outputs.iter()) {
            let expected = binding.slot_bytes[o.slot.0 as usize] as usize;
            let align = o.ty.dtype.bytes();
            if out.len() != expected || (expected > 0 && out.as_ptr().addr() % align != 0) {
                return Err(RunError::OutputBytes {
                    name: o.name.clone(),
                    expected,
                    align,
                    found: out.len(),
                });
            }
        }
        self.with_state(&binding, |state| {
            for (o, out) in self.plan.outputs.iter().zip(outputs.iter_mut()) {
                state.slots[o.slot.0 as usize] = out.as_mut_ptr();
            }
            let address = |k: usize| inputs[k].data.as_ptr().cast_mut();
            self.execute(&binding, state, &address, observe)
        })
    }

    /// Takes a call state that fits the binding, runs `f` with it, and puts it back.
    fn with_state(
        &self,
        binding: &Binding,
        f: impl FnOnce(&mut CallState) -> Result<(), RunError>,
    ) -> Result<(), RunError> {
        let mut scratch = binding.scratch_bytes.saturating_mul(self.threads.threads() as u64) as usize;
        if binding.scratch_bytes >= LARGE_SCRATCH_BYTES {
            scratch = scratch.max(HUGE_PAGE_BYTES);
        }
        let arena = binding.layout.arena_bytes as usize;
        let taken = lock(&self.states).pop();
        let mut state = match taken {
            Some(state) => state,
            None => CallState {
                arena: AlignedBuffer::zeroed(0)?,
                scratch: AlignedBuffer::zeroed(0)?,
                slots: Vec::new(),
                args: Vec::new(),
            },
        };
        // The arena only grows.
        if state.arena.len() < arena {
            state.arena = AlignedBuffer::zeroed(arena)?;
        }
        if state.scratch.len() < scratch {
            state.scratch = AlignedBuffer::zeroed(scratch)?;
        }
        state.slots.resize(self.plan.slots.len(), std::ptr::null_mut());
        state.args.resize(binding.arg_count, std::ptr::null_mut());
        let result = f(&mut state);
        lock(&self.states).push(state);
        result
    }

    /// Runs the steps. `input` tells where each input's bytes are; the state already knows where the outputs go.
    fn execute(
        &self,
        binding: &Binding,
        state: &mut CallState,
        input: &dyn Fn(usize) -> *mut u8,
        observe: &mut Observe<'_>,
    ) -> Result<(), RunError> {
        let kept = self.kept(binding)?;
        let arena = state.arena.as_mut_ptr();
        for (i, slot) in self.plan.slots.iter().enumerate() {
            match &slot.storage {
                Storage::Input(k) => state.slots[i] = input(*k as usize),
                Storage::Constant(k) => {
                    state.slots[i] = self.plan.constants[*k as usize].bytes().as_ptr().cast_mut();
                }
                Storage::Arena => {
                    let at = binding.layout.offsets[i].unwrap_or(0) as usize;
                    // SAFETY: the layout places every arena slot inside `arena_bytes`, which the arena has.
                    state.slots[i] = unsafe { arena.add(at) };
                }
                Storage::Persistent => state.slots[i] = kept.address(i),
                Storage::Output(_) | Storage::Alias(_) => {}
            }
        }
        for (i, &root) in binding.root.iter().enumerate() {
            if root != i {
                state.slots[i] = state.slots[root];
            }
        }
        for (number, step) in binding.steps.iter().enumerate() {
            observe(number, true, &state.slots);
            self.step(step, binding, state)?;
            observe(number, false, &state.slots);
        }
        Ok(())
    }

    /// Runs one step on the slots of a call state.
    fn step(&self, step: &BoundStep, binding: &Binding, state: &mut CallState) -> Result<(), RunError> {
        match step {
            BoundStep::Launches(launches) => {
                for l in launches {
                    for (k, &slot) in l.args.iter().enumerate() {
                        state.args[l.first_arg + k] = state.slots[slot];
                    }
                }
                let scratch = state.scratch.as_mut_ptr();
                self.launch(launches, &state.args, scratch, binding.scratch_bytes)
            }
            BoundStep::Gemm(g) => {
                let product = g.product(&state.slots);
                let scratch = state.scratch.as_mut_ptr();
                // SAFETY: the three matrices lie inside their slots by construction of the matrix form, the result overlaps
                // neither operand, and every worker has `scratch_bytes` of scratch, which the binding made enough for the
                // cut.
                unsafe {
                    multiply(
                        &product,
                        g.cut(),
                        &self.threads,
                        scratch,
                        binding.scratch_bytes as usize,
                    )?
                };
                Ok(())
            }
            BoundStep::Copy { src, dst, bytes } => {
                // SAFETY: both slots hold `bytes` bytes under this binding, and are different buffers.
                unsafe { std::ptr::copy_nonoverlapping(state.slots[*src], state.slots[*dst], *bytes) };
                Ok(())
            }
        }
    }

    fn launch(
        &self,
        launches: &[BoundLaunch],
        args: &[*mut u8],
        scratch: *mut u8,
        scratch_bytes: u64,
    ) -> Result<(), RunError> {
        struct Shared<'a> {
            args: &'a [*mut u8],
            scratch: *mut u8,
        }
        // SAFETY: workers only read the pointers; what they point to is split between them by the kernels' invariant that
        // parallel iterations write disjoint memory, and each worker has a scratch area of its own.
        unsafe impl Sync for Shared<'_> {}
        let shared = Shared { args, scratch };
        let run = |l: &BoundLaunch, worker: usize, begin: u64, end: u64| {
            let shared = &shared;
            let args = Args {
                buffers: shared.args[l.first_arg..].as_ptr(),
                symbols: l.symbols.as_ptr(),
                // SAFETY: the scratch area has `scratch_bytes` for each of the pool's workers.
                scratch: unsafe { shared.scratch.add(worker * scratch_bytes as usize) },
            };
            // SAFETY: the binding evaluated every parameter's length and gave each a buffer of at least that size, and
            // `begin..end` lies in the kernel's parallel range.
            unsafe { self.kernels[l.kernel].call(&args, begin as i64, end as i64) };
        };
        match launches {
            [one] if one.extent <= one.grain || self.threads.threads() == 1 => {
                if one.extent > 0 {
                    run(one, 0, 0, one.extent);
                }
            }
            [one] => self
                .threads
                .parallel_ranges(one.extent, one.grain, &|w, b, e| run(one, w, b, e))?,
            many => {
                self.threads.parallel_for(many.len() as u64, 1, &|w, b, e| {
                    for l in &many[b as usize..e as usize] {
                        if l.extent > 0 {
                            run(l, w, 0, l.extent);
                        }
                    }
                })?;
            }
        }
        Ok(())
    }

    /// The binding for these inputs: a known one, or a new one.
    fn binding(&self, inputs: &[TensorView<'_>]) -> Result<Arc<Binding>, RunError> {
        if inputs.len() != self.plan.inputs.len() {
            return Err(RunError::InputCount {
                expected: self.plan.inputs.len(),
                found: inputs.len(),
            });
        }
        for (declared, given) in self.plan.inputs.iter().zip(inputs) {
            if declared.ty.dtype != given.dtype {
                let (expected, found) = (declared.ty.dtype, given.dtype);
                return Err(RunError::InputDtype {
                    name: declared.name.clone(),
                    expected,
                    found,
                });
            }
            let expected = tlc_ir::tensor::element_count(given.shape).and_then(|n| n.checked_mul(given.dtype.bytes()));
            let align = given.dtype.bytes();
            let aligned = given.data.is_empty() || given.data.as_ptr().addr() % align == 0;
            if expected != Some(given.data.len()) || !aligned {
                return Err(RunError::InputBytes {
                    name: declared.name.clone(),
                    shape: given.shape.to_vec(),
                    dtype: given.dtype,
                    expected: expected.unwrap_or(usize::MAX),
                    align,
                    found: given.data.len(),
                });
            }
        }
        let matches = |b: &Binding| b.shapes.iter().zip(inputs).all(|(s, i)| s == i.shape);
        {
            let mut known = lock(&self.bindings);
            if let Some(at) = known.iter().position(|b| matches(b)) {
                if at > 0 {
                    known.swap(0, at);
                }
                return Ok(Arc::clone(&known[0]));
            }
        }
        let new = Arc::new(self.bind(inputs)?);
        let mut known = lock(&self.bindings);
        if known.len() >= MAX_BINDINGS {
            known.pop_back();
        }
        known.push_front(Arc::clone(&new));
        Ok(new)
    }

    fn text(&self, e: &IndexExpr) -> String {
        e.display(&|s| self.plan.symbols[s.0 as usize].name.clone()).to_string()
    }

    /// Symbol values from the inputs' shapes, every declared extent and guard checked.
    fn solve_symbols(&self, inputs: &[TensorView<'_>]) -> Result<Vec<i64>, RunError> {
        let mut values: Vec<Option<i64>> = vec![None; self.plan.symbols.len()];
        let shape_error = |k: usize| {
            let declared = &self.plan.inputs[k];
            let dims: Vec<String> = declared.ty.shape.iter().map(|d| self.text(d)).collect();
            RunError::InputShape {
                name: declared.name.clone(),
                expected: format!("{}[{}]", declared.ty.dtype, dims.join(", ")),
                found: inputs[k].shape.to_vec(),
            }
        };
        for (k, (declared, given)) in self.plan.inputs.iter().zip(inputs).enumerate() {
            if declared.ty.shape.len() != given.shape.len() {
                return Err(shape_error(k));
            }
            for (d, &n) in declared.ty.shape.iter().zip(given.shape) {
                if let IndexExpr::Node(node) = d
                    && let IndexNode::Sym(s) = **node
                {
                    values[s.0 as usize].get_or_insert(n as i64);
                }
            }
        }
        for (name, value) in &self.given {
            if let Some(at) = self.plan.symbols.iter().position(|s| s.name == *name) {
                let known = *values[at].get_or_insert(*value);
                if known != *value {
                    let condition = format!("{name} = {value} (an input's shape says {known})");
                    return Err(RunError::Guard { condition });
                }
            }
        }
        let mut symbols = Vec::with_capacity(values.len());
        for (s, value) in self.plan.symbols.iter().zip(values) {
            let value = match value {
                Some(v) => v,
                None if s.lo == s.hi => s.lo,
                None => return Err(RunError::SymbolUnbound { name: s.name.clone() }),
            };
            if value < s.lo || value > s.hi {
                return Err(RunError::SymbolRange {
                    name: s.name.clone(),
                    value,
                    lo: s.lo,
                    hi: s.hi,
                });
            }
            symbols.push(value);
        }
        for (k, (declared, given)) in self.plan.inputs.iter().zip(inputs).enumerate() {
            for (d, &n) in declared.ty.shape.iter().zip(given.shape) {
                if d.eval_symbols(&symbols) != i64::try_from(n).ok() {
                    return Err(shape_error(k));
                }
            }
        }
        for g in &self.plan.guards {
            let (holds, condition) = match &g.condition {
                Condition::Equal(a, b) => {
                    let (x, y) = (a.eval_symbols(&symbols), b.eval_symbols(&symbols));
                    (x.is_some() && x == y, format!("{} = {}", self.text(a), self.text(b)))
                }
                Condition::NonNegative(e) => (
                    e.eval_symbols(&symbols).is_some_and(|v| v >= 0),
                    format!("{} >= 0", self.text(e)),
                ),
            };
            if !holds {
                return Err(RunError::Guard { condition });
            }
        }
        Ok(symbols)
    }

    fn bind(&self, inputs: &[TensorView<'_>]) -> Result<Binding, RunError> {
        let _span = tracing::info_span!("bind", plan = %self.plan.name).entered();
        let symbols = self.solve_symbols(inputs)?;
        let plan = &self.plan;
        let overflow = |name: &str| RunError::Overflow { name: name.to_string() };
        let eval = |e: &IndexExpr, name: &str| e.eval_symbols(&symbols).ok_or_else(|| overflow(name));
        let mut slot_bytes = Vec::with_capacity(plan.slots.len());
        for s in &plan.slots {
            let n = u64::try_from(eval(&s.len, &s.name)?).map_err(|_| overflow(&s.name))?;
            let bytes = n
                .checked_mul(s.dtype.bytes() as u64)
                .filter(|&b| b <= isize::MAX as u64);
            slot_bytes.push(bytes.ok_or_else(|| overflow(&s.name))?);
        }
        let layout = (self.packer)(plan, &symbols).ok_or_else(|| overflow(&plan.name))?;
        let root = (0..plan.slots.len())
            .map(|i| plan.root(SlotId(i as u32)).0 as usize)
            .collect();
        let mut output_shapes = Vec::with_capacity(plan.outputs.len());
        for o in &plan.outputs {
            let dims: Result<Vec<usize>, RunError> =
                o.ty.shape
                    .iter()
                    .map(|d| usize::try_from(eval(d, &o.name)?).map_err(|_| overflow(&o.name)))
                    .collect();
            output_shapes.push(dims?);
        }
        let mut arg_count = 0;
        let mut scratch_bytes = 0u64;
        let mut steps = Vec::with_capacity(plan.init.len() + plan.steps.len());
        for step in plan.init.iter().chain(&plan.steps) {
            let launches = match step {
                Step::Launch(l) => std::slice::from_ref(l),
                Step::Group(all) => &all[..],
                Step::Gemm(g) => {
                    let bound = BoundGemm::bind(g, self.threads.threads(), &eval)?;
                    let scratch = (bound.cut().scratch_bytes as u64).next_multiple_of(SCRATCH_ALIGNMENT);
                    scratch_bytes = scratch_bytes.max(scratch);
                    steps.push(BoundStep::Gemm(Box::new(bound)));
                    continue;
                }
                Step::Copy { src, dst } => {
                    let (src, dst) = (src.0 as usize, dst.0 as usize);
                    steps.push(BoundStep::Copy {
                        src,
                        dst,
                        bytes: slot_bytes[dst].min(slot_bytes[src]) as usize,
                    });
                    continue;
                }
            };
            let mut bound = Vec::with_capacity(launches.len());
            for l in launches {
                let kernel = &plan.kernels[l.kernel.0 as usize];
                let values: Vec<i64> = l.symbols.iter().map(|e| eval(e, &l.label)).collect::<Result<_, _>>()?;
                let local = |e: &IndexExpr| e.eval_symbols(&values).ok_or_else(|| overflow(&l.label));
                for (param, slot) in kernel.params.iter().zip(&l.args) {
                    // What the kernel believes its buffers hold is what they hold.
                    let wants = local(&param.len)?.max(0) as u64 * param.dtype.bytes() as u64;
                    if wants > slot_bytes[slot.0 as usize] {
                        return Err(overflow(&l.label));
                    }
                }
                let extent = local(&kernel.parallel_extent())?.max(0) as u64;
                let scratch = local(&kernel.cache_scratch_bytes())?.max(0) as u64;
                scratch_bytes = scratch_bytes.max(scratch.next_multiple_of(SCRATCH_ALIGNMENT));
                bound.push(BoundLaunch {
                    kernel: l.kernel.0 as usize,
                    first_arg: arg_count,
                    args: l.args.iter().map(|s| s.0 as usize).collect(),
                    symbols: values,
                    extent,
                    grain: l.grain.max(1),
                });
                arg_count += l.args.len();
            }
            steps.push(BoundStep::Launches(bound));
        }
        let shapes = inputs.iter().map(|i| i.shape.to_vec()).collect();
        let rest = steps.split_off(plan.init.len());
        let (init, steps) = (steps, rest);
        Ok(Binding {
            shapes,
            slot_bytes,
            root,
            output_shapes,
            layout,
            scratch_bytes,
            arg_count,
            init,
            steps,
        })
    }
}
