//! Executing plans: a call binds sizes, finds memory for every slot on its device, and goes through the steps.
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

mod call;
mod code;
mod decided;
mod destination;
mod dlpack;
mod donate;
mod frame;
mod init;
mod kept;
mod memory_need;
mod packed;
mod placed;
mod profile;
mod record;
mod repeat;
mod resident;
mod sources;
mod state_memory;
mod states;
mod walk;
mod watch;

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tlc_ir::DType;
use tlc_ir::graph::Symbol;
use tlc_ir::plan::{KernelId, Layout, Plan};
use tlc_ir::target::EmitterId;

use crate::binding::steps::Binding;
use crate::binding::{Binder, Sizes};
use crate::cpu::device::Cpu;
use crate::cpu::jit::{Ahead, KernelFn};
use crate::cpu::product::Choice;
use crate::device::{Device, DeviceBuffer, KernelHandle, Queued, Scratch};
use crate::float_mode::DefaultMode;
use crate::memory::{AlignedBuffer, BufferPool, HUGE_PAGE_BYTES, PooledBuffer};
use crate::pool::Pool;

use walk::Finish;

pub use crate::binding::Packer;
pub use crate::error::RunError;
use call::{Begun, CallState, IdleStates, same_extents};
pub(crate) use code::Code;
pub use code::Emitters;
pub use destination::Destination;
pub use dlpack::{DlDataType, DlDevice, DlManagedTensor, DlTensor};
pub use donate::Argument;
pub(crate) use frame::Frame;
use kept::Kept;
pub use kept::{ALIGN as KEPT_ALIGN, KeptBefore, KeptName, KeptValue, kept_bytes_to_make};

pub use memory_need::{DeviceNeed, MemoryNeed};
pub use packed::PackedForms;
use profile::StepClock;
pub use profile::{LoopTime, StepTime};
pub use resident::{DeviceTensor, Download, ResidentInput};
pub use sources::{Description, Sources};
pub use state_memory::StateMemory;
pub use states::{StateBytes, StateView, Stopped};
pub(crate) use walk::Walk;
pub use watch::Watched;

/// Bindings kept per executable.
const MAX_BINDINGS: usize = 64;
/// Scratch memory of so many bytes for each worker asks for huge pages, whose bytes do not fight for sets of a cache.
const LARGE_SCRATCH_BYTES: u64 = 128 << 10;

/// Bytes of scratch that a call needs for all threads, where each worker needs so many.
fn scratch_of_call(worker_bytes: u64, threads: usize) -> usize {
    let all = worker_bytes.saturating_mul(threads as u64) as usize;
    match worker_bytes >= LARGE_SCRATCH_BYTES {
        true => all.max(HUGE_PAGE_BYTES),
        false => all,
    }
}

/// Bytes of scratch that an executable needs, where each worker needs so many: the `init` steps have scratch of their own
/// while they run.
pub(crate) fn scratch_of_all(plan: &Plan, worker_bytes: u64, threads: usize) -> u64 {
    let areas = if plan.init.is_empty() { 1 } else { 2 };
    areas * scratch_of_call(worker_bytes, threads) as u64
}

/// What builds with debug assertions fill memory with that holds no value yet: NaN in every float, -1 in every signed integer, and no
/// bool at all, so that a value which is read before it is written shows. Results and scratch before each call, a slot of the arena
/// where its life begins: before that step its bytes may be another's.
const UNWRITTEN: u8 = 0xff;

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

impl TensorView<'_> {
    /// No element, along one axis.
    pub const EMPTY: Self = TensorView {
        dtype: DType::U8,
        shape: &[0],
        data: &[],
    };
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

/// A plan under concrete symbol values, on this host.
type Bound = Binding<Choice>;

/// Called before (`true`) and after each step, with its number, where each slot's bytes are, and the sizes as far as they are
/// known.
type Observe<'a> = dyn FnMut(usize, bool, &[*mut u8], &Bound) + 'a;

/// Memory of a device that has at least so many bytes; what it holds is lost where it grows.
fn grown(buffer: &mut Option<DeviceBuffer>, device: &Arc<dyn Queued>, bytes: usize) -> Result<*mut u8, RunError> {
    match buffer {
        Some(known) if known.bytes() >= bytes => Ok(known.start()),
        _ => {
            // Given back first: there need not be room for both. Calls may have returned before the device was done with it.
            if buffer.is_some() {
                device.finish();
            }
            *buffer = None;
            Ok(buffer.insert(DeviceBuffer::new(device, bytes)?).start())
        }
    }
}

/// A loaded plan.
pub struct Executable {
    plan: Arc<Plan>,
    code: Code<KernelFn>,
    /// Different kernels, those of loops' bodies included.
    compiled_kernels: usize,
    host: Cpu,
    /// The devices beside the host, from number 1 on.
    others: Vec<Arc<dyn Queued>>,
    buffers: Arc<BufferPool>,
    packer: Packer,
    /// Values of symbols that no input's shape determines, by name.
    given: Vec<(String, i64)>,
    /// By symbol: whether nothing that is computed needs a value of it.
    idle: Vec<bool>,
    /// By step: whether it needs sizes that data decides.
    needs_sizes: Vec<bool>,
    /// The most bytes that a call may need of the host's memory, if there is a limit.
    memory_limit: Option<u64>,
    bindings: Mutex<VecDeque<Arc<Bound>>>,
    idle_states: IdleStates,
    /// What makes each kernel of the plan itself.
    emitters: Vec<EmitterId>,
    /// What the `init` steps computed, once the first call has run them.
    kept: OnceLock<Kept>,
    /// Where it looks for what an earlier process computed, if anywhere.
    kept_before: Option<Arc<KeptBefore>>,
    /// The constants that calls stream from a file.
    streamed: placed::Streamed,
    /// Held while they run.
    initializing: Mutex<()>,
    /// Held while a recording is made.
    recording: Mutex<()>,
    /// See [`Executable::last_step`].
    last_step: OnceLock<Arc<str>>,
}

impl Drop for Executable {
    /// Calls may have returned before devices were done with memory that goes now.
    fn drop(&mut self) {
        self.others.iter().for_each(|d| d.finish());
    }
}

/// Says of a device's error where it was found.
fn located_behind(error: RunError, place: &str) -> RunError {
    match error {
        RunError::Device { device, message } => RunError::Device {
            device,
            message: format!("{message}; {place}"),
        },
        other => other,
    }
}

/// Locks a mutex whose data stays valid whatever panicked while it was held.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How a plan is loaded.
pub struct Load {
    /// The threads that run what is the host's.
    pub threads: Arc<Pool>,
    /// How many threads compile; fewer than `threads` has leave the calls of other executables some.
    pub compiling: usize,
    /// Code of kernels for the host that was begun before, if any was.
    pub ahead: Option<Ahead>,
    /// Where outputs come from.
    pub buffers: Arc<BufferPool>,
    /// What places slots in arenas.
    pub packer: Packer,
    /// What makes each kernel.
    pub emitters: Emitters,
    /// The devices beside the host, as the plan numbers them from 1 on.
    pub devices: Vec<Arc<dyn Queued>>,
}

impl Executable {
    /// Compiles the kernels of a plan for the host alone, by the first emitter, and makes it ready to run.
    ///
    /// # Errors
    /// As [`Executable::load`].
    pub fn new(
        plan: impl Into<Arc<Plan>>,
        threads: Arc<Pool>,
        buffers: Arc<BufferPool>,
        packer: Packer,
    ) -> Result<Executable, RunError> {
        let load = Load {
            compiling: threads.threads(),
            threads,
            ahead: None,
            buffers,
            packer,
            emitters: Emitters::default(),
            devices: Vec::new(),
        };
        Executable::load(plan, load)
    }

    /// Compiles a plan's kernels and makes it ready to run.
    ///
    /// # Errors
    /// [`RunError::Compile`] if a kernel cannot be compiled, [`RunError::Devices`] if the plan is for other devices than there are.
    pub fn load(plan: impl Into<Arc<Plan>>, load: Load) -> Result<Executable, RunError> {
        Executable::load_shared(plan.into(), load)
    }

    fn load_shared(plan: Arc<Plan>, load: Load) -> Result<Executable, RunError> {
        if plan.devices.len() != 1 + load.devices.len() {
            return Err(RunError::Devices {
                expected: plan.devices.len().saturating_sub(1),
                found: load.devices.len(),
            });
        }
        let host = Cpu::new(load.threads).with_code(load.ahead);
        let devices = (&host, &load.devices[..]);
        let (code, compiled_kernels) = Code::load(&plan, &load.emitters, devices, load.compiling)?;
        let streamed = placed::Streamed::of(&plan);
        let needs_sizes = plan.steps.iter().map(|s| decided::needs_sizes(&plan, s)).collect();
        let executable = Executable {
            plan,
            code,
            compiled_kernels,
            host,
            others: load.devices,
            buffers: load.buffers,
            packer: load.packer,
            given: Vec::new(),
            idle: Vec::new(),
            needs_sizes,
            memory_limit: None,
            bindings: Mutex::new(VecDeque::with_capacity(MAX_BINDINGS)),
            idle_states: IdleStates::default(),
            emitters: load.emitters.kernels,
            kept: OnceLock::new(),
            kept_before: None,
            streamed,
            initializing: Mutex::new(()),
            recording: Mutex::new(()),
            last_step: OnceLock::new(),
        };
        Ok(executable)
    }

    /// Gives values to symbols that no input's shape determines, by name. A value for one that an input determines must agree with it.
    pub fn with_symbols(mut self, given: Vec<(String, i64)>) -> Executable {
        self.given = given;
        self
    }

    /// Says by symbol whether nothing that is computed needs a value of it, so that calls need not have one;
    /// [`idle_symbols`](tlc_ir::binding::idle_symbols) of the graph.
    pub fn with_idle_symbols(mut self, idle: Vec<bool>) -> Executable {
        self.idle = idle;
        self
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The registers that a thread of a kernel of the plan takes, if the kernel runs on a GPU whose driver says.
    pub fn kernel_registers(&self, kernel: KernelId) -> Option<u32> {
        self.on_gpu(kernel)
            .and_then(|(device, handle)| device.registers(handle))
    }

    /// The bytes of local memory that a thread of a kernel of the plan has, where what registers had no room for is, if the kernel runs on a GPU
    /// whose driver says.
    pub fn kernel_local_bytes(&self, kernel: KernelId) -> Option<u32> {
        self.on_gpu(kernel)
            .and_then(|(device, handle)| device.local_bytes(handle))
    }

    /// The device that has a kernel, and what it calls it.
    fn on_gpu(&self, kernel: KernelId) -> Option<(&dyn Queued, KernelHandle)> {
        let kernel = kernel.0 as usize;
        (1..).zip(&self.others).find_map(|(number, device)| {
            let (apart, in_place) = self.code.of_other(number);
            let handle = [apart, in_place].iter().find_map(|t| *t.get(kernel)?)?;
            Some((&**device, handle))
        })
    }

    /// The thread pool.
    pub fn threads(&self) -> &Arc<Pool> {
        self.host.threads()
    }

    /// The pool that outputs come from.
    pub fn buffers(&self) -> &Arc<BufferPool> {
        &self.buffers
    }

    /// Machine code size of all kernels of the host, in bytes.
    pub fn code_bytes(&self) -> usize {
        self.code.kernels().into_iter().map(KernelFn::size_bytes).sum()
    }

    /// How many kernels were compiled: equal ones count once, and those of loops' bodies count.
    pub fn compiled_kernels(&self) -> usize {
        self.compiled_kernels
    }

    /// What the shapes of the plan's [`sources`](Plan::sources) say of its symbols, by position; `None` where data decides. Guards are
    /// not checked.
    ///
    /// # Errors
    /// If the shapes do not fit what is declared.
    pub fn sizes(&self, shapes: &[Vec<usize>]) -> Result<Vec<Option<i64>>, RunError> {
        if shapes.len() != self.plan.sources().count() {
            return Err(self.binder().source_count(shapes.len()));
        }
        let values = self.binder().symbols(shapes)?;
        let known = |(s, v): (&Symbol, i64)| s.upper.is_none().then_some(v);
        Ok(self.plan.symbols.iter().zip(values).map(known).collect())
    }

    /// Checks that inputs, and states that are read, fit the plan, its guards included; known shapes are known to.
    ///
    /// # Errors
    /// If they do not.
    pub fn check<'s>(&self, sources: impl Into<Sources<'s>>) -> Result<(), RunError> {
        self.bound(sources.into().iter()).map(drop)
    }

    /// Arena placement for the shapes of the plan's [`sources`](Plan::sources).
    ///
    /// # Errors
    /// If the shapes do not fit the declared inputs.
    pub fn layout<'s>(&self, sources: impl Into<Sources<'s>>) -> Result<Layout, RunError> {
        Ok(self.bound(sources.into().iter())?.sizes.layout.clone())
    }

    /// Output shapes for inputs, and states that are read, of the given shapes.
    ///
    /// # Errors
    /// If the shapes do not fit the declared inputs.
    pub fn output_shapes<'s>(&self, sources: impl Into<Sources<'s>>) -> Result<Vec<Vec<usize>>, RunError> {
        Ok(self.bound(sources.into().iter())?.sizes.output_shapes.clone())
    }

    /// Runs the plan; outputs come from the buffer pool.
    ///
    /// # Errors
    /// If the inputs do not fit, memory runs out, or a worker panics.
    pub fn run(&self, inputs: &[TensorView<'_>]) -> Result<Vec<OutputTensor>, RunError> {
        self.run_observed(inputs, None, &mut |_, _, _, _| {})
    }

    fn run_observed(
        &self,
        inputs: &[TensorView<'_>],
        fill: Option<u8>,
        observe: &mut Observe<'_>,
    ) -> Result<Vec<OutputTensor>, RunError> {
        let begun = self.begin(inputs.iter().map(Description::from))?;
        self.call(begun, |binding, state| {
            let mut outputs = self.take_outputs(binding)?;
            self.size(binding, state, &|_| false)?;
            if let Some(fill) = fill {
                outputs.iter_mut().for_each(|o| o.data.as_mut_slice().fill(fill));
                state.arena.as_mut_slice().fill(fill);
                state.scratch.as_mut_slice().fill(fill);
                let arenas = self.others.iter().zip(state.arenas.iter().flatten());
                // Others know which bytes nobody wrote.
                for (device, arena) in arenas.filter(|a| !a.0.checks_slots()) {
                    // SAFETY: no step runs, and the arena is this call's.
                    unsafe { device.fill(0, arena.start(), fill, arena.bytes())? };
                    device.settle(0)?;
                }
            }
            for (o, out) in self.plan.outputs.iter().zip(&mut outputs) {
                state.frame.slots[o.slot.0 as usize] = out.data.as_mut_ptr();
            }
            let address = |k: usize| inputs[k].data.as_ptr().cast_mut();
            state.step_by_step = fill.is_some();
            let last = self.execute(binding, state, &address, observe)?;
            self.cut(&mut outputs, last.as_deref());
            Ok(outputs)
        })
    }

    /// As [`Executable::run_into`], and returns the outputs' shapes, which data may decide: a buffer then has room for the
    /// largest, and what the shape does not reach holds anything.
    ///
    /// # Errors
    /// As [`Executable::run_into`].
    pub fn run_into_shaped(
        &self,
        inputs: &[TensorView<'_>],
        outputs: &mut [impl Destination],
    ) -> Result<Vec<Vec<usize>>, RunError> {
        let last = self.run_timed(inputs, outputs, None)?;
        match last {
            Some(last) => Ok(last.sizes.output_shapes.clone()),
            None => self.output_shapes(inputs),
        }
    }

    /// Runs the plan into the caller's buffers, in the order of the outputs. Allocates nothing once the input shapes have
    /// been seen. A buffer of an output whose size data decides has room for the largest; see
    /// [`Executable::run_into_shaped`].
    ///
    /// # Errors
    /// If inputs or buffers do not fit, memory runs out, or a worker panics.
    pub fn run_into(&self, inputs: &[TensorView<'_>], outputs: &mut [impl Destination]) -> Result<(), RunError> {
        self.run_timed(inputs, outputs, None).map(drop)
    }

    fn run_timed(
        &self,
        inputs: &[TensorView<'_>],
        outputs: &mut [impl Destination],
        clock: Option<&mut StepClock<'_>>,
    ) -> Result<Option<Arc<Bound>>, RunError> {
        let begun = self.begin(inputs.iter().map(Description::from))?;
        self.call(begun, |binding, state| {
            self.check_outputs(binding, outputs)?;
            self.size(binding, state, &|_| false)?;
            for (o, out) in self.plan.outputs.iter().zip(outputs.iter_mut()) {
                state.frame.slots[o.slot.0 as usize] = out.bytes_mut().as_mut_ptr();
            }
            let address = |k: usize| inputs[k].data.as_ptr().cast_mut();
            self.execute_timed((binding, state), &address, clock, &mut |_, _, _, _| {})
        })
    }

    /// As [`Executable::execute`], step by step and with their times if there is a clock.
    fn execute_timed(
        &self,
        (binding, state): (&Bound, &mut CallState),
        input: &dyn Fn(usize) -> *mut u8,
        clock: Option<&mut StepClock<'_>>,
        observe: &mut Observe<'_>,
    ) -> Result<Option<Arc<Bound>>, RunError> {
        let Some(clock) = clock else {
            return self.execute(binding, state, input, observe);
        };
        state.frame.measure(true);
        state.step_by_step = true;
        let last = self.execute(binding, state, input, &mut |step, begins, slots, bound| {
            clock.step(step, begins);
            observe(step, begins, slots, bound);
        });
        clock.ended(state.frame.loop_times(binding), &state.frame.device_ns);
        state.frame.measure(false);
        last
    }

    /// What goes through the steps of a binding, with the scratch memory of a call.
    #[inline]
    fn walk<'a>(&'a self, binding: &'a Bound, scratch: &mut AlignedBuffer) -> Walk<'a, Cpu> {
        Walk {
            plan: &self.plan,
            code: &self.code,
            binding,
            host: &self.host,
            others: &self.others,
            scratch: Scratch {
                start: scratch.as_mut_ptr(),
                bytes: binding.scratch_bytes,
            },
        }
    }

    /// Runs the steps. `input` says where each input's bytes are; the state already knows where the outputs go.
    fn execute(
        &self,
        binding: &Bound,
        state: &mut CallState,
        input: &dyn Fn(usize) -> *mut u8,
        observe: &mut Observe<'_>,
    ) -> Result<Option<Arc<Bound>>, RunError> {
        let _mode = DefaultMode::enter();
        let kept = self.kept(binding)?;
        self.streamed.called();
        if let Some(staging) = self.staged(binding, state) {
            return self.execute_recorded(binding, state, staging, input, (kept, observe));
        }
        let finish = Finish(&self.others);
        let walk = self.walk(binding, &mut state.scratch);
        walk.place(&mut state.frame, input, &|slot| kept.address(slot));
        let mut later: Option<Arc<Bound>> = None;
        // What calls decided since sizes were last evaluated: most steps need none of it, and evaluating takes longer than a small step.
        let mut decided: Vec<(usize, i64)> = Vec::new();
        for number in 0..binding.steps.len() {
            if !decided.is_empty() && self.needs_sizes[number] {
                let now = later.as_deref().unwrap_or(binding);
                later = Some(self.decided((binding, now), &decided, state)?);
                decided.clear();
            }
            let now = later.as_deref().unwrap_or(binding);
            observe(number, true, &state.frame.slots, now);
            let bound = self.walk(now, &mut state.scratch).step(number, &mut state.frame)?;
            if state.step_by_step {
                self.wait_for_step(binding, now, number, state)?;
            }
            decided.extend(bound);
            if !decided.is_empty() && (state.step_by_step || number + 1 == binding.steps.len()) {
                later = Some(self.decided((binding, now), &decided, state)?);
                decided.clear();
            }
            observe(number, false, &state.frame.slots, later.as_deref().unwrap_or(binding));
        }
        self.end(walk, (binding, state.goes_on), finish)?;
        if !self.others.is_empty() {
            binding.warm.store(true, Ordering::Relaxed);
            later.iter().for_each(|b| b.warm.store(true, Ordering::Relaxed));
        }
        Ok(later)
    }

    /// Has the host wait at the end of a call, unless devices go on behind it.
    #[inline]
    fn end(&self, walk: Walk<'_, Cpu>, (binding, goes_on): (&Bound, bool), finish: Finish<'_>) -> Result<(), RunError> {
        match goes_on {
            true => std::mem::forget(finish),
            false => {
                walk.end_of_call(&binding.queues)?;
                drop(finish);
            }
        }
        Ok(())
    }

    /// Has the host wait for all that devices were given in calls.
    ///
    /// # Errors
    /// If something of that failed.
    pub fn synchronize(&self) -> Result<(), RunError> {
        let queues = self.plan.queues.iter();
        for (number, device) in (1..).zip(&self.others) {
            let own = queues.clone().filter(|q| q.0 == number).count() as u32;
            let settled = (0..own).try_for_each(|q| device.settle(q));
            settled.map_err(|e| located_behind(e, self.last_step()))?;
        }
        Ok(())
    }

    /// The last step of the plan, for errors that show behind a call.
    fn last_step(&self) -> &Arc<str> {
        self.last_step.get_or_init(|| {
            let number = self.plan.steps.len().saturating_sub(1);
            format!("found at step {number}, {}", walk::step_label(&self.plan, number)).into()
        })
    }

    /// What follows a step where the host waits for each.
    #[cold]
    #[inline(never)]
    fn wait_for_step(&self, first: &Bound, now: &Bound, number: usize, state: &mut CallState) -> Result<(), RunError> {
        let walk = self.walk(now, &mut state.scratch);
        let waited = walk.settle(&first.queues);
        let taken = waited.and_then(|()| walk.took(number, &mut state.frame));
        taken.map_err(|e| walk.located(number, e))
    }

    /// Bytes of scratch that a call needs.
    fn scratch_of(&self, binding: &Bound) -> usize {
        scratch_of_call(binding.scratch_bytes, self.threads().threads())
    }

    /// Checks number, dtypes, bytes and alignment of inputs, and of states that are read.
    fn check_sources<'s>(&self, given: impl Iterator<Item = Description<'s>> + Clone) -> Result<(), RunError> {
        let found = given.clone().count();
        if found != self.plan.sources().count() {
            return Err(self.binder().source_count(found));
        }
        for (k, ((name, ty), given)) in self.plan.sources().zip(given).enumerate() {
            let (align, is_input) = (given.dtype.bytes(), k < self.plan.inputs.len());
            let expected = tlc_ir::tensor::element_count(given.shape).and_then(|n| n.checked_mul(align));
            let aligned = given.bytes == 0 || given.address.is_multiple_of(align);
            let fits = expected == Some(given.bytes) && aligned;
            let dtype_fits = ty.dtype == given.dtype;
            let name = || name.to_string();
            match (is_input, dtype_fits, fits) {
                (_, true, true) => {}
                (true, false, _) => {
                    return Err(RunError::InputDtype {
                        name: name(),
                        expected: ty.dtype,
                        found: given.dtype,
                    });
                }
                (true, true, false) => {
                    return Err(RunError::InputBytes {
                        name: name(),
                        shape: given.shape.to_vec(),
                        dtype: given.dtype,
                        expected: expected.unwrap_or(usize::MAX),
                        align,
                        found: given.bytes,
                    });
                }
                (false, ..) => {
                    return Err(RunError::State {
                        name: name(),
                        expected: ty.dtype,
                        shape: given.shape.to_vec(),
                        dtype: given.dtype,
                        found: given.shape.to_vec(),
                        bytes: given.bytes,
                    });
                }
            }
        }
        Ok(())
    }

    /// The binding for these inputs, of a plan that has no states.
    fn binding<'s>(&self, inputs: impl Iterator<Item = Description<'s>> + Clone) -> Result<Arc<Bound>, RunError> {
        match self.plan.states.is_empty() {
            true => self.bound(inputs),
            false => Err(self.state_count(0)),
        }
    }

    /// The binding for these inputs, and states that are read: a known one, or a new one.
    fn bound<'s>(&self, sources: impl Iterator<Item = Description<'s>> + Clone) -> Result<Arc<Bound>, RunError> {
        self.check_sources(sources.clone())?;
        let matches = |b: &Bound| {
            b.sizes
                .shapes
                .iter()
                .zip(sources.clone())
                .all(|(s, i)| same_extents(s, i.shape))
        };
        {
            let mut known = lock(&self.bindings);
            if let Some(at) = known.iter().position(|b| matches(b)) {
                if at > 0 {
                    known.swap(0, at);
                }
                return Ok(Arc::clone(&known[0]));
            }
        }
        let new = Arc::new(self.bind(sources)?);
        let mut known = lock(&self.bindings);
        if known.len() >= MAX_BINDINGS {
            known.pop_back();
        }
        known.push_front(Arc::clone(&new));
        Ok(new)
    }

    fn bind<'s>(&self, sources: impl Iterator<Item = Description<'s>>) -> Result<Bound, RunError> {
        let _span = tracing::info_span!("bind", plan = %self.plan.name).entered();
        let shapes: Vec<Vec<usize>> = sources.map(|i| i.shape.to_vec()).collect();
        self.bind_sizes(self.binder().bind(shapes)?)
    }

    fn bind_sizes(&self, sizes: Sizes) -> Result<Bound, RunError> {
        let mut binding = Binding::new(&self.plan, sizes, &|p| self.host.prepare(p))?;
        if let Some(limit) = self.memory_limit {
            self.limit_packed(&mut binding, limit)?;
        }
        Ok(binding)
    }

    fn binder(&self) -> Binder<'_> {
        Binder {
            plan: &self.plan,
            given: &self.given,
            idle: &self.idle,
            packer: self.packer,
        }
    }
}
