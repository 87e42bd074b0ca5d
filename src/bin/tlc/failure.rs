//! What goes wrong, and how it is reported: exit codes, the first line that stands alone, the source line with its caret, and
//! the object that programs read.
//!
//! Invariants: a [`Failure`] holds at least one report unless everything has been said already; its code is the exit code
//! of the process; the first line of a report is `error: [PLACE: ]MESSAGE` and never contains a line end.

use std::io;

use serde_json::{Value, json};
use tlc::{BuildError, HostTensor};
use tlc_formats::{ErrorKind, FormatError};
use tlc_passes::pipeline::PassError;
use tlc_runtime::cpu::jit::JitError;
use tlc_runtime::driver::RunError;

/// Why the process ends as it does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Code {
    /// A check or a comparison failed.
    Failed = 1,
    /// The command line makes no sense.
    Usage = 2,
    /// An input is wrong.
    Invalid = 3,
    /// Sound, but not something tlc does.
    Unsupported = 4,
    /// Memory or disk does not suffice.
    Limit = 5,
    /// A bug in tlc.
    Bug = 70,
}

impl Code {
    /// What went wrong, as a word for programs.
    pub const fn kind(self) -> &'static str {
        match self {
            Code::Failed => "failed",
            Code::Usage => "usage",
            Code::Invalid => "invalid",
            Code::Unsupported => "unsupported",
            Code::Limit => "limit",
            Code::Bug => "bug",
        }
    }
}

/// One thing to tell.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// `FILE`, or `FILE:LINE:COL`.
    pub place: Option<String>,
    /// Line and column, counted from 1, if there is a place in a text.
    pub position: Option<(u32, u32)>,
    /// What is wrong; what was expected, what was found.
    pub message: String,
    /// The source line, and how many characters of it are meant.
    pub source: Option<(String, usize)>,
}

impl Report {
    /// The message with its place.
    pub fn line(&self) -> String {
        let place = self.place.as_deref().unwrap_or_default();
        match self.position {
            Some((line, column)) => format!("{place}:{line}:{column}: {}", self.message),
            None if place.is_empty() => self.message.clone(),
            None => format!("{place}: {}", self.message),
        }
    }
}

/// Why a command ends early.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The exit code; `None` if the reader of our output has gone, which is nobody's fault.
    pub code: Option<Code>,
    /// What to tell.
    pub reports: Vec<Report>,
    /// The reports are on standard error already.
    pub reported: bool,
    /// The result that programs get all the same, with the error in it.
    result: Option<Box<Value>>,
}

impl Failure {
    /// Several reports.
    pub fn of_reports(code: Code, reports: Vec<Report>) -> Failure {
        Failure {
            code: Some(code),
            reports,
            reported: false,
            result: None,
        }
    }

    /// The same, with a result for programs beside it.
    pub fn with_result(mut self, result: Value) -> Failure {
        self.result = Some(result.into());
        self
    }

    /// The same, its reports having been written to standard error one by one.
    pub fn already_reported(mut self) -> Failure {
        self.reported = true;
        self
    }

    /// What programs read of it: the result, if there is one, with the field `error`. `None` if everything has been said.
    pub fn json(&self) -> Option<Value> {
        let code = self.code?;
        if self.reports.is_empty() && self.result.is_none() {
            return None;
        }
        let report = |r: &Report| {
            let (line, column) = r.position.unzip();
            json!({ "place": r.place, "line": line, "column": column, "message": r.message })
        };
        let mut value = self.result.as_ref().map_or_else(|| json!({}), |r| (**r).clone());
        value["error"] = json!({
            "exit_code": code as u8,
            "kind": code.kind(),
            "message": self.reports.first().map(Report::line),
            "reports": self.reports.iter().map(report).collect::<Vec<_>>(),
        });
        Some(value)
    }

    /// One message without a place.
    pub fn new(code: Code, message: impl Into<String>) -> Failure {
        let report = Report {
            place: None,
            position: None,
            message: one_line(&message.into()),
            source: None,
        };
        Failure::of_reports(code, vec![report])
    }

    /// One message about a file.
    pub fn at(code: Code, file: &str, message: impl Into<String>) -> Failure {
        let mut failure = Failure::new(code, message);
        failure.reports[0].place = Some(one_line(file));
        failure
    }

    /// One message about a place in a text: the caret stands under `width` characters from `column` of `line`.
    pub fn in_text(code: Code, file: &str, text: &str, position: (u32, u32), width: usize, message: &str) -> Failure {
        let mut failure = Failure::at(code, file, message);
        failure.reports[0].position = Some(position);
        failure.reports[0].source = text
            .lines()
            .nth(position.0 as usize - 1)
            .map(|line| (line.to_string(), width.max(1)));
        failure
    }

    /// Everything has been said.
    pub fn silent(code: Code) -> Failure {
        Failure::of_reports(code, vec![])
    }

    /// The reader of our output has gone.
    pub fn reader_gone() -> Failure {
        Failure {
            code: None,
            ..Failure::silent(Code::Failed)
        }
    }

    /// A file that could not be read.
    pub fn reading(file: &str, error: &io::Error) -> Failure {
        let code = if error.kind() == io::ErrorKind::OutOfMemory {
            Code::Limit
        } else {
            Code::Invalid
        };
        Failure::at(code, file, format!("cannot be read: {}", plain(error)))
    }

    /// A file or a stream that could not be written.
    pub fn writing(file: &str, error: &io::Error) -> Failure {
        use io::ErrorKind::*;
        let code = match error.kind() {
            StorageFull | QuotaExceeded | FileTooLarge | OutOfMemory => Code::Limit,
            _ => Code::Invalid,
        };
        Failure::at(code, file, format!("cannot be written: {}", plain(error)))
    }

    /// What a reader of tensor files said.
    pub fn format(file: &str, error: &FormatError) -> Failure {
        let code = match error.kind() {
            ErrorKind::Invalid | ErrorKind::Io => Code::Invalid,
            ErrorKind::Unsupported => Code::Unsupported,
            ErrorKind::Limit => Code::Limit,
        };
        Failure::at(code, file, error.to_string())
    }

    /// Why a model did not compile.
    pub fn build(file: &str, error: &BuildError) -> Failure {
        match error {
            BuildError::Pass(PassError::UnknownPass { .. }) => Failure::new(Code::Usage, error.to_string()),
            BuildError::UnknownSymbol { .. } => Failure::at(Code::Usage, file, error.to_string()),
            BuildError::Pass(PassError::EinsumPath(e)) => Failure::at(Code::Limit, file, e.to_string()),
            BuildError::Pass(e) => Failure::at(Code::Bug, file, e.to_string()),
            BuildError::Load(e) => Failure::run(file, e),
            BuildError::Machine(e) => Failure::compile(file, e),
            BuildError::Broken(broken) => crate::bug::saved(file, broken),
            BuildError::Invalid(all) => {
                let reports = all
                    .iter()
                    .flat_map(|e| Failure::at(Code::Invalid, file, e.to_string()).reports)
                    .collect();
                Failure::of_reports(Code::Invalid, reports)
            }
            other => Failure::at(Code::Invalid, file, other.to_string()),
        }
    }

    fn compile(file: &str, error: &JitError) -> Failure {
        let code = match error {
            JitError::Kernel {
                source: tlc_codegen::CodegenError::TooMany { .. },
                ..
            } => Code::Unsupported,
            JitError::Host { .. } => Code::Unsupported,
            JitError::Load { .. } => Code::Limit,
            _ => Code::Bug,
        };
        Failure::at(code, file, error.to_string())
    }

    /// Why a model did not run.
    pub fn run(file: &str, error: &RunError) -> Failure {
        match error {
            RunError::Overflow { .. }
            | RunError::Grid { .. }
            | RunError::OutOfMemory(_)
            | RunError::Tensor(_)
            | RunError::DeviceMemory { .. }
            | RunError::DriverMemory { .. }
            | RunError::DeviceTooSmall { .. } => Failure::at(Code::Limit, file, error.to_string()),
            RunError::MemoryLimit { needed, limit, device } => {
                let text = tlc::explain::bytes_text;
                let of = device.as_ref().map_or(String::new(), |d| format!(" of {d}"));
                let (limit, needed) = (text(*limit), text(*needed));
                let message = format!(
                    "running it needs too much memory{of}; expected at most {limit}, as --max-memory says, found {needed}"
                );
                Failure::at(Code::Limit, file, message)
            }
            RunError::Unavailable(e) => Failure::new(Code::Unsupported, e.to_string()),
            RunError::Device { .. } => Failure::at(Code::Failed, file, error.to_string()),
            RunError::Compile(e) => Failure::compile(file, e),
            RunError::Worker(_) | RunError::Layout(_) => Failure::at(Code::Bug, file, error.to_string()),
            other => Failure::at(Code::Invalid, file, other.to_string()),
        }
    }

    /// All messages, as one text.
    pub fn text(&self) -> String {
        self.reports.iter().map(Report::line).collect::<Vec<_>>().join("\n")
    }
}

/// The system's message without its error number.
fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    match text.find(" (os error") {
        Some(at) => text[..at].to_string(),
        None => text,
    }
}

/// A first line stands alone, so line ends and other control characters in it are escaped.
pub fn one_line(text: &str) -> String {
    if !text.contains(char::is_control) {
        return text.to_string();
    }
    text.chars()
        .map(|c| {
            if c.is_control() {
                c.escape_default().to_string()
            } else {
                c.to_string()
            }
        })
        .collect()
}

/// `f32[2, 3]`, for messages.
pub fn tensor_text(tensor: &HostTensor) -> String {
    let dims: Vec<String> = tensor.shape().iter().map(usize::to_string).collect();
    format!("{}[{}]", tensor.dtype(), dims.join(", "))
}
