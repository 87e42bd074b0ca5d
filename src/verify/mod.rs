//! Is the compiled graph right? Comparison with the interpreter, the search for the decision that is wrong, and the search
//! for a smaller graph that shows it.
//!
//! A [`Case`] is a graph on data. [`verify()`] compiles and runs it, and compares every value that a step leaves in memory, and
//! every output, with the graph interpreter's: in f64, with the derived bound on how far a right implementation may be off.
//! Where something does not fit, [`guilty::find`] names the first wrong decision of the compiler: a pass and what it rewrote,
//! a fusion, a directive of a schedule, an alias, a placement; and [`reduce()`] finds a small case that fails alike.
//! [`gradients::gradients`] compares derivatives with finite differences.
//!
//! Invariants:
//! - What runs is what any call runs: the same plan, aliases, arena and threads. Values are looked at between the steps.
//! - A tolerance is never chosen. What may be anything (say, an overflow that a right implementation may or may not have) is
//!   counted as uncertain, not compared.
//! - A panic of the compiler is a finding, not the end. Machine code that crashes ends the process: who runs [`verify_telling`] in a
//!   process of its own knows where, and [`guilty::find_crash`] names the decision without running anything.

pub mod compare;
pub mod data;
mod edit;
pub mod gradients;
pub mod guilty;
mod kernels;
pub mod nan;
mod passes;
pub mod reduce;
mod values;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tlc_ir::interp::{self, InterpError, Mismatch, interpret_with_bounds};
use tlc_ir::{Graph, HostTensor, NodeId};
use tlc_runtime::cpu::jit::JitError;
use tlc_runtime::float_mode::DefaultMode;

use crate::RunError;
use crate::compile::{BuildError, CompileOptions, Executable, Input, Output, Outputs, compile_ir};

pub use gradients::{GradientError, Gradients};
pub use guilty::{Guilty, Stage};
pub use reduce::{Budget, reduce};

/// A graph on data.
#[derive(Clone, Debug)]
pub struct Case {
    /// The graph; it verifies.
    pub graph: Graph,
    /// Its inputs, in the order they are declared.
    pub inputs: Vec<HostTensor>,
    /// Values by name of symbols that are the extent of no input.
    pub symbols: Vec<(String, i64)>,
}

impl Case {
    /// How the interpreter is to run it.
    fn interpretation(&self, options: &CompileOptions) -> interp::Options {
        interp::Options {
            symbols: self.symbols.clone(),
            max_bytes: options.max_memory_bytes,
            precision: options.precision,
            ..interp::Options::default()
        }
    }

    /// How it is compiled: as `options` say, with the values of its symbols.
    fn compilation(&self, options: &CompileOptions) -> CompileOptions {
        CompileOptions {
            symbols: self.symbols.clone(),
            ..options.clone()
        }
    }
}

/// A value of the compiled graph.
#[derive(Clone, PartialEq, Debug)]
pub struct Place {
    /// The node, in the graph behind the passes.
    pub node: NodeId,
    /// What it does, and where it was recorded if that is known: `%3 exp at 4:3`.
    pub text: String,
    /// The step that wrote it, counted in the plan's steps; `None` for what is computed once per executable.
    pub step: Option<usize>,
}

/// Something that is wrong.
#[derive(Clone, PartialEq, Debug)]
pub enum Finding {
    /// The compiler or the runtime refused a sound graph.
    Refused(String),
    /// The compiler or the runtime panicked.
    Panicked(String),
    /// The process that compiled and ran it was ended by its own code: how, and where. Only the process that started it can know.
    Crashed(String),
    /// The plan or a kernel breaks a rule of its language, so that it was not run.
    Plan(String),
    /// A value that a step wrote is outside its bounds.
    Value(Place, Box<Mismatch>),
    /// A value was right when it was written, and is another one when that step reads it.
    Overwritten(Place, usize),
    /// Behind the passes the graph has another meaning: an output has another value than the graph that was given says.
    Meaning(String, Box<Mismatch>),
    /// An output is outside the bounds of the graph that was given.
    Output(String, Box<Mismatch>),
    /// A second run of the same executable on the same inputs gives other bits in that output.
    Again(String),
    /// Another number of threads gives other bits in that output.
    Threads(String),
    /// An input that was given away changes that output's bits.
    Donation {
        /// The input.
        input: String,
        /// The output.
        output: String,
    },
}

impl Finding {
    /// True if two findings are of one kind, whatever their places.
    pub fn is_like(&self, other: &Finding) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::Refused(message) => write!(f, "refused: {message}"),
            Finding::Panicked(message) => write!(f, "panicked: {message}"),
            Finding::Crashed(message) => write!(f, "crashed: {message}"),
            Finding::Plan(message) => f.write_str(message),
            Finding::Value(place, mismatch) => match place.step {
                Some(step) => write!(f, "step {step}: {}: {mismatch}", place.text),
                None => write!(f, "once per executable: {}: {mismatch}", place.text),
            },
            Finding::Overwritten(place, reader) => {
                write!(f, "{} is overwritten before step {reader} reads it", place.text)
            }
            Finding::Meaning(name, mismatch) => {
                write!(f, "output `{name}` means something else behind the passes: {mismatch}")
            }
            Finding::Output(name, mismatch) => write!(f, "output `{name}`: {mismatch}"),
            Finding::Again(name) => write!(f, "output `{name}` has other bits in a second run"),
            Finding::Threads(name) => write!(f, "output `{name}` has other bits on another number of threads"),
            Finding::Donation { input, output } => {
                write!(f, "output `{output}` has other bits when input `{input}` is given away")
            }
        }
    }
}

/// What a comparison found.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Report {
    /// Steps of the plan.
    pub steps: usize,
    /// Values that steps left in memory and that were compared, outputs among them.
    pub values: usize,
    /// Elements compared.
    pub elements: u64,
    /// Elements that may be anything.
    pub uncertain: u64,
    /// True if the outputs differ only as the order of a contraction licenses where infinities, NaN or empty sums meet.
    pub regrouped: bool,
    /// What is wrong, the earliest first; empty if all is right.
    pub findings: Vec<Finding>,
}

impl Report {
    fn of(finding: Finding) -> Report {
        Report {
            findings: vec![finding],
            ..Report::default()
        }
    }

    /// True if nothing is wrong.
    pub fn is_right(&self) -> bool {
        self.findings.is_empty()
    }
}

/// Why a case cannot be compared with its meaning.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// The interpreter cannot run it: its inputs do not fit, or it needs too much memory.
    #[error(transparent)]
    Interpreter(#[from] InterpError),
    /// The device that it is compiled for, the host or a GPU, is not there, has no memory for it, or failed. A GPU that failed computes
    /// nothing more in this process, so that no decision can be tried on it.
    #[error(transparent)]
    Device(RunError),
}

/// What ends a comparison before its end.
enum Stop {
    /// Something is wrong.
    Found(Finding),
    /// The case cannot be compared.
    Unable(VerifyError),
}

impl From<Finding> for Stop {
    fn from(finding: Finding) -> Stop {
        Stop::Found(finding)
    }
}

impl From<VerifyError> for Stop {
    fn from(error: VerifyError) -> Stop {
        Stop::Unable(error)
    }
}

impl From<InterpError> for Stop {
    fn from(error: InterpError) -> Stop {
        Stop::Unable(error.into())
    }
}

impl From<BuildError> for Stop {
    fn from(error: BuildError) -> Stop {
        match error {
            BuildError::Load(e) => e.into(),
            BuildError::Broken(broken) => Finding::Plan(broken.fault.to_string()).into(),
            other => Finding::Refused(other.to_string()).into(),
        }
    }
}

impl From<RunError> for Stop {
    /// A machine that lacks the memory or the device says nothing about the compiler.
    fn from(error: RunError) -> Stop {
        let of_machine = matches!(
            error,
            RunError::Unavailable(_)
                | RunError::Device { .. }
                | RunError::DeviceMemory { .. }
                | RunError::DriverMemory { .. }
                | RunError::DeviceTooSmall { .. }
                | RunError::MemoryLimit { .. }
                | RunError::OutOfMemory(_)
                | RunError::Compile(JitError::Load { .. })
        );
        match of_machine {
            true => Stop::Unable(VerifyError::Device(error)),
            false => Stop::Found(Finding::Refused(error.to_string())),
        }
    }
}

/// The text of a panic.
pub(crate) fn panic_text(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().cloned();
    text.or_else(|| payload.downcast_ref::<&str>().map(|s| s.to_string()))
        .unwrap_or_else(|| "a panic without a message".into())
}

/// Runs `f`; a panic is a finding.
fn guarded<T>(f: impl FnOnce() -> Result<T, Finding>) -> Result<T, Finding> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| Err(Finding::Panicked(panic_text(&*panic))))
}

fn compiled(case: &Case, options: &CompileOptions) -> Result<Executable, Stop> {
    Ok(guarded(|| Ok(compile_ir(&case.graph, &case.compilation(options))))??)
}

fn ran(executable: &Executable, case: &Case) -> Result<Outputs, Stop> {
    let inputs: Vec<Input<'_>> = case.inputs.iter().map(Into::into).collect();
    Ok(guarded(|| Ok(executable.run(&inputs)))??)
}

/// The first output whose bits differ.
fn first_other(a: &[Output], b: &[Output]) -> Option<String> {
    a.iter()
        .zip(b)
        .find(|(a, b)| !same_bits(a, b))
        .map(|(a, _)| a.name.clone())
}

/// Equal bytes, or both NaN: which NaN is nobody's promise.
fn same_bits(a: &Output, b: &Output) -> bool {
    a.bytes() == b.bytes() || {
        let (a, b) = (a.to_host(), b.to_host());
        a.len() == b.len() && (0..a.len()).all(|i| a.get(i) == b.get(i) || (a.get(i).is_nan() && b.get(i).is_nan()))
    }
}

/// Compiles and runs a case, and compares what it computes with its meaning.
///
/// # Errors
/// [`VerifyError`] if the interpreter cannot run it, or the device is not fit to; what the compiler or the runtime does wrong is a finding.
pub fn verify(case: &Case, options: &CompileOptions) -> Result<Report, VerifyError> {
    verify_telling(case, options, &mut |_| ())
}

/// As [`verify()`], and reports what is about to happen before it does: `step 3, kernel 1 (exp), which writes %5 exp`. Where the
/// process ends there, that is where it crashed.
///
/// # Errors
/// As for [`verify()`].
pub fn verify_telling(
    case: &Case,
    options: &CompileOptions,
    tell: &mut dyn FnMut(&str),
) -> Result<Report, VerifyError> {
    let _mode = DefaultMode::enter();
    match compared(case, options, tell) {
        Ok(report) => Ok(report),
        Err(Stop::Found(finding)) => Ok(Report::of(finding)),
        Err(Stop::Unable(error)) => Err(error),
    }
}

fn compared(case: &Case, options: &CompileOptions, tell: &mut dyn FnMut(&str)) -> Result<Report, Stop> {
    tell("the interpreter");
    let expected = interpret_with_bounds(&case.graph, &case.inputs, &case.interpretation(options))?;
    tell("the compiler");
    let executable = compiled(case, options)?;
    let (mut report, outputs) = values::compare_values(case, &executable, options, tell)?;
    let rewritten = &executable.decisions().graph;
    let changed = passes::changed_meaning(case, options, rewritten);
    report.findings.extend(changed);
    for (output, bounded) in outputs.iter().zip(&expected) {
        if let Err(mismatch) = interp::compare(&output.to_host(), bounded) {
            report
                .findings
                .push(Finding::Output(output.name.clone(), mismatch.into()));
        }
    }
    let only_meaning = |f: &Finding| matches!(f, Finding::Output(..) | Finding::Meaning(..));
    if !report.is_right() && report.findings.iter().all(only_meaning) && passes::only_regrouped(case, options)? {
        report.findings.clear();
        report.regrouped = true;
    }
    if report.is_right() {
        let finding = values::compare_calls(case, &executable, &outputs, options, tell)?;
        report.findings.extend(finding);
    }
    Ok(report)
}
