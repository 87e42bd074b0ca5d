//! Why kernels did not become code, and why a plan could not be loaded or run.

use tlc_codegen::CodegenError;
use tlc_codegen::cuda::CudaError;
use tlc_ir::DType;
use tlc_ir::plan::verify::PlanViolation;
use tlc_ir::target::{EmitterId, MAX_GRID_BLOCKS};
use tlc_ir::tensor::TensorError;

use crate::memory::AllocError;
use crate::pool::PoolPanic;

/// Why kernels did not become functions.
#[derive(Debug, thiserror::Error)]
pub enum JitError {
    /// This machine is not one that Cranelift generates code for.
    #[error("cannot generate code for this machine: {message}")]
    Host {
        /// Why.
        message: String,
    },
    /// A kernel did not compile.
    #[error("kernel {kernel}: {source}")]
    Kernel {
        /// Its position in the batch.
        kernel: usize,
        /// Why.
        source: CodegenError,
    },
    /// A kernel of an emitter that this machine does not have.
    #[error("kernel {kernel}: there is no emitter {}; this machine has {known}", .emitter.0)]
    Emitter {
        /// The kernel's position in the batch.
        kernel: usize,
        /// The emitter.
        emitter: EmitterId,
        /// How many there are.
        known: usize,
    },
    /// A level of the wide emitter that this machine does not have.
    #[error("the processor lacks {name}")]
    Level {
        /// Its name.
        name: &'static str,
    },
    /// A kernel has no CUDA form.
    #[error("kernel {kernel}: {source}")]
    Cuda {
        /// Its position in the batch.
        kernel: usize,
        /// Why.
        source: CudaError,
    },
    /// NVRTC did not make code of kernels.
    #[error("{message}")]
    Nvrtc {
        /// What it says.
        message: String,
    },
    /// Executable memory could not be had.
    #[error("cannot load code: {message}")]
    Load {
        /// Why.
        message: String,
    },
}

/// What a GPU needs and is not there.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unavailable {
    /// No driver.
    #[error("there is no CUDA driver: {tried}; expected NVIDIA's driver, or its file in TLC_CUDA_DRIVER")]
    Driver {
        /// What was tried, and why it failed.
        tried: String,
    },
    /// A driver that does not take what NVRTC makes.
    #[error("the CUDA driver is of version {found}; expected {expected} or newer (580 in the numbers of its packages)")]
    OldDriver {
        /// Its version.
        found: String,
        /// The oldest that is fit.
        expected: String,
    },
    /// A driver that lacks a function.
    #[error("the CUDA driver of version {version} has no `{name}`; expected NVIDIA's driver")]
    EntryPoint {
        /// The function.
        name: &'static str,
        /// The driver's version.
        version: String,
    },
    /// No device of that number.
    #[error("there is no device cuda:{ordinal}; {}", found_text(*.count))]
    Device {
        /// The number that was asked for.
        ordinal: u32,
        /// How many there are.
        count: u32,
    },
    /// A device that lacks instructions.
    #[error("{name} is of compute capability {found}; expected 8.0 or newer")]
    OldDevice {
        /// Its name.
        name: String,
        /// Its compute capability.
        found: String,
    },
    /// The driver refuses to start or to open a device.
    #[error("the CUDA driver fails: {message}")]
    Failed {
        /// What it says.
        message: String,
    },
    /// No library of matrix products.
    #[error(
        "there is no cuBLASLt: {message}; the Python package nvidia-cublas has it, or CUDA 13 itself; TLC_CUBLASLT names its file or folder"
    )]
    Products {
        /// What is missing.
        message: String,
    },
    /// No compiler.
    #[error(
        "{message}; the Python package nvidia-cuda-nvrtc has it, or CUDA 13 itself; TLC_NVRTC names its file or folder"
    )]
    Compiler {
        /// What is missing.
        message: String,
    },
    /// A variable of the environment asks for what there is not.
    #[error("{message}")]
    Setting {
        /// What it says, and what it may say.
        message: String,
    },
}

fn found_text(count: u32) -> String {
    match count {
        0 => "the driver finds none".into(),
        1 => "the driver finds one, cuda:0".into(),
        n => format!("the driver finds {n}, from cuda:0 to cuda:{}", n - 1),
    }
}

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
    /// A plan for another number of devices than there are.
    #[error("the plan is for {expected} devices beside the host, found {found}")]
    Devices {
        /// The plan's.
        expected: usize,
        /// There are.
        found: usize,
    },
    /// A device failed.
    #[error("{device}: {message}")]
    Device {
        /// Its name, as in `cuda:0 (NVIDIA H100)`.
        device: String,
        /// What happened.
        message: String,
    },
    /// The driver has no memory for what it needs itself.
    #[error("the driver of {device} has no memory left: {call}")]
    DriverMemory {
        /// The device, by the number that users give it and its name.
        device: String,
        /// What it was asked for.
        call: &'static str,
    },
    /// What a device needs is not there.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// A device has no memory left.
    #[error("{device} has no memory for {wanted} bytes more{}: {free} of {total} are free", needed_for(.what))]
    DeviceMemory {
        /// Its name.
        device: String,
        /// Bytes that were asked for.
        wanted: u64,
        /// Bytes that are free.
        free: u64,
        /// All there are.
        total: u64,
        /// What they are for: a step of the plan, or the value of the caller's.
        what: Option<String>,
    },
    /// What was compiled for the host alone is asked for results in the memory of a device.
    #[error("the graph was compiled for the processor alone; expected CompileOptions::device to name a GPU")]
    NoDevice,
    /// An input in the memory of a device, of a call that wants them in the host's.
    #[error("input `{name}` is in the memory of a device; expected a call of Executable::run_on_device")]
    OnDevice {
        /// The input.
        name: String,
    },
    /// A tensor of another library cannot be taken, or another library could not take one.
    #[error("{message}")]
    Exchange {
        /// Why.
        message: String,
    },
    /// The code for calls whose tensors stay in the memory of a device could not be made.
    #[error("{message}")]
    Resident {
        /// Why.
        message: String,
    },
    /// An input in the memory of another device.
    #[error("input `{name}` is in the memory of another device than the one that the graph was compiled for")]
    OtherDevice {
        /// The input.
        name: String,
    },
    /// A call needs more memory of a device than it has free. Nothing was allocated, and nothing has run.
    #[error(
        "{device} has too little memory: a call needs {peak} bytes there, {missing} more than are allocated{}; {free} of {total} are free",
        needed_for(.what)
    )]
    DeviceTooSmall {
        /// The device, by number and name.
        device: String,
        /// Bytes that the call needs at once.
        peak: u64,
        /// Those of them that are not allocated yet.
        missing: u64,
        /// Bytes that are free.
        free: u64,
        /// All there are.
        total: u64,
        /// The step of the plan at which most values are alive.
        what: Option<String>,
    },
    /// A call needs more memory than it may use.
    #[error("a call needs {needed} bytes of memory{}; expected at most {limit}", of_device(.device))]
    MemoryLimit {
        /// Bytes that it needs, as little as that can be.
        needed: u64,
        /// Bytes that it may use.
        limit: u64,
        /// Whose memory it is, by number and name, if not the host's.
        device: Option<String>,
    },
    /// Another number of states than the plan has.
    #[error("the graph has {expected} states, found {found}: a call with states is Executable::run_with")]
    StateCount {
        /// The plan's.
        expected: usize,
        /// Given.
        found: usize,
    },
    /// A state of another shape than the plan reads.
    #[error("state `{name}`: expected {expected}, found shape {found:?}")]
    StateShape {
        /// The state.
        name: String,
        /// Declared type, printed.
        expected: String,
        /// Given.
        found: Vec<usize>,
    },
    /// A state that is read and is not there.
    #[error("the state has no `{name}`; expected {expected}")]
    StateMissing {
        /// The state.
        name: String,
        /// Declared type, printed.
        expected: String,
    },
    /// A cache without room for what a call would append.
    #[error("the cache `{name}` has {length} of {capacity} elements, and {rows} more would be appended")]
    CacheFull {
        /// The cache.
        name: String,
        /// How many elements count.
        length: i64,
        /// How many there is room for.
        capacity: i64,
        /// How many the call has.
        rows: i64,
    },
    /// Values of a call that failed while it wrote them.
    #[error(
        "the state was left half written by a call that failed ({cause}); expected one that is loaded or made again"
    )]
    StateTorn {
        /// Why that call failed.
        cause: String,
    },
    /// A state that the plan sets, and that is lent to be read alone.
    #[error("state `{name}` is frozen, and would be set")]
    StateShared {
        /// The state.
        name: String,
    },
    /// A state of another dtype or shape, or whose bytes are not those, or not aligned to the elements.
    #[error("state `{name}`: expected aligned {expected}{shape:?}, found {dtype}{found:?} in {bytes} bytes")]
    State {
        /// The state.
        name: String,
        /// Declared dtype.
        expected: DType,
        /// Declared extents under the binding.
        shape: Vec<usize>,
        /// Given dtype.
        dtype: DType,
        /// Given extents.
        found: Vec<usize>,
        /// Given bytes.
        bytes: usize,
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
    /// A byte of an input, or of a state that is entered, is no element of its type.
    #[error("input `{name}`: element {at} of {dtype} is {found}, expected at most {most}")]
    InputValue {
        /// The input.
        name: String,
        /// Dtype.
        dtype: DType,
        /// Which element, in C order.
        at: usize,
        /// The byte.
        found: u8,
        /// The largest that is one.
        most: u8,
    },
    /// Elements without a shape that the declared type does not give one.
    #[error("input `{name}`: expected {expected}, whose extents do not follow from {found} elements")]
    InputElements {
        /// The input.
        name: String,
        /// Declared type, printed.
        expected: String,
        /// Elements given.
        found: usize,
    },
    /// A name that no input has.
    #[error("no input `{name}`; expected {}", .expected.join(", "))]
    UnknownInput {
        /// The name given.
        name: String,
        /// The inputs.
        expected: Vec<String>,
    },
    /// An input that was given twice.
    #[error("input `{name}` is given twice")]
    RepeatedInput {
        /// Its name.
        name: String,
    },
    /// An input that was not given.
    #[error("input `{name}` is missing")]
    MissingInput {
        /// Its name.
        name: String,
    },
    /// Memory for an output of another dtype.
    #[error("output `{name}`: expected memory for {expected}, found {found}")]
    OutputDtype {
        /// The output.
        name: String,
        /// The output's.
        expected: DType,
        /// Given.
        found: DType,
    },
    /// An array for an output of another shape.
    #[error("output `{name}`: expected an array of shape {expected:?}, found {found:?}")]
    OutputShape {
        /// The output.
        name: String,
        /// The output's.
        expected: Vec<usize>,
        /// Given.
        found: Vec<usize>,
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
    /// The arena was laid out wrongly, which is a bug in tlc: nothing ran.
    #[error("a bug in tlc: the arena's layout is not valid: {0}")]
    Layout(PlanViolation),
    /// A size that no input shape determines.
    #[error("size `{name}` follows from no input's shape")]
    SymbolUnbound {
        /// The symbol.
        name: String,
    },
    /// The graph assumed that sizes agree, and they do not.
    #[error("{}the graph needs {condition}, which the inputs' shapes do not satisfy", operation_text(.needed_by))]
    Guard {
        /// The operation that needs it, by its name and the place where it was recorded, as in `reshape %3 at 4:3`; empty if nobody
        /// knows.
        needed_by: String,
        /// The condition, printed with symbol names.
        condition: String,
    },
    /// A size that overflows.
    #[error("`{name}` has more elements than memory can hold")]
    Overflow {
        /// The slot.
        name: String,
    },
    /// A launch of more blocks than a device takes.
    #[error("kernel {kernel} needs a grid of {blocks} blocks, which is beyond the {MAX_GRID_BLOCKS} of any device")]
    Grid {
        /// The kernel, by its number in the plan.
        kernel: usize,
        /// How many.
        blocks: u64,
    },
    /// There is no memory left for a tensor of the host.
    #[error(transparent)]
    Tensor(#[from] TensorError),
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

fn needed_for(what: &Option<String>) -> String {
    what.as_ref().map_or(String::new(), |w| format!(", for {w}"))
}

impl RunError {
    /// Says of memory of a device that there is too little of what it is for, unless that is known.
    pub(crate) fn needed_for(mut self, is: impl FnOnce() -> String) -> RunError {
        if let RunError::DeviceMemory { what, .. } | RunError::DeviceTooSmall { what, .. } = &mut self {
            what.get_or_insert_with(is);
        }
        self
    }
}

fn of_device(device: &Option<String>) -> String {
    device.as_ref().map_or(String::new(), |d| format!(" of {d}"))
}

fn operation_text(needed_by: &str) -> String {
    match needed_by {
        "" => String::new(),
        operation => format!("{operation}: "),
    }
}
