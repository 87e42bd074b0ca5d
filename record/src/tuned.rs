//! The file of what was measured: choices of schedules that are faster on a processor than those that the compiler calculates.
//!
//! It is JSON and ships with a model. An entry is of one kernel on one processor, at one level of instructions and so many threads; those of
//! other machines and other models may stand beside it, and do nothing.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use serde::{Deserialize, Serialize};
use tlc_passes::tuning::{KernelKey, KeyError, Pin, PinError, Pins};
use tlc_runtime::cpu::level;
use tlc_runtime::machine::MachineInfo;

/// The version of the file's form.
const SCHEMA: u32 = 1;
/// The most bytes of a file: those of some ten thousand kernels.
const MOST_BYTES: u64 = 16 << 20;

/// Choices that were measured, by kernel and processor: what [`tune`](crate::tune::tune) finds and
/// [`CompileOptions::tuned`](crate::CompileOptions::tuned) takes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tuned {
    kernels: Vec<TunedKernel>,
}

/// What was found of one kernel on one processor.
#[derive(Clone, Debug, PartialEq)]
pub struct TunedKernel {
    /// The processor, as `tlc info` names it.
    pub cpu: String,
    /// The widest instructions that kernels use there: `avx512`, `avx2` or `sse`.
    pub level: String,
    /// Threads that it was measured on.
    pub threads: usize,
    /// What the kernel is known by.
    pub kernel: KernelKey,
    /// What it computes, for readers.
    pub label: String,
    /// The choices. Those that are not named are as the compiler calculates them.
    pub choices: Vec<Pin>,
    /// Nanoseconds that it takes in a call with the choices that are calculated, and with these.
    pub ns: [f64; 2],
}

/// The form of an entry in the file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    cpu: String,
    level: String,
    threads: usize,
    kernel: String,
    label: String,
    choices: Vec<String>,
    calculated_ns: f64,
    tuned_ns: f64,
}

/// The form of the file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Form {
    tuned: u32,
    kernels: Vec<Entry>,
}

/// Why a file of choices cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TunedError {
    /// It cannot be read at all.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It is no JSON of this form.
    #[error("{0}; expected a file that `tlc tune` wrote")]
    Json(#[from] serde_json::Error),
    /// It has more bytes than any such file.
    #[error("more than {MOST_BYTES} bytes; expected a file that `tlc tune` wrote")]
    Long,
    /// It is of another version.
    #[error("the file has version {0} of its form; expected {SCHEMA}")]
    Version(u32),
    /// A kernel's key is none.
    #[error("kernel {number}: {error}")]
    Key {
        /// Its place in the file.
        number: usize,
        /// What is wrong.
        error: KeyError,
    },
    /// A choice is none.
    #[error("kernel {number}: {error}")]
    Choice {
        /// Its place in the file.
        number: usize,
        /// What is wrong.
        error: PinError,
    },
}

/// The processor and the level of this process, as files name them.
pub(crate) fn here() -> (String, &'static str) {
    (MachineInfo::detect_without_gpu().cpu.key(), level::of_kernels())
}

impl Tuned {
    /// Reads a file.
    ///
    /// # Errors
    /// [`TunedError`].
    pub fn read(path: impl AsRef<Path>) -> Result<Tuned, TunedError> {
        let mut text = String::new();
        File::open(path)?.take(MOST_BYTES + 1).read_to_string(&mut text)?;
        match text.len() as u64 > MOST_BYTES {
            true => Err(TunedError::Long),
            false => Tuned::from_json(&text),
        }
    }

    /// From the text of a file.
    ///
    /// # Errors
    /// [`TunedError`].
    pub fn from_json(text: &str) -> Result<Tuned, TunedError> {
        let form: Form = serde_json::from_str(text)?;
        if form.tuned != SCHEMA {
            return Err(TunedError::Version(form.tuned));
        }
        let kernel = |(number, e): (usize, Entry)| {
            let kernel = e.kernel.parse();
            let choices = e.choices.iter().map(|c| c.parse()).collect::<Result<_, _>>();
            Ok(TunedKernel {
                cpu: e.cpu,
                level: e.level,
                threads: e.threads,
                kernel: kernel.map_err(|error| TunedError::Key { number, error })?,
                label: e.label,
                choices: choices.map_err(|error| TunedError::Choice { number, error })?,
                ns: [e.calculated_ns, e.tuned_ns],
            })
        };
        let kernels = form.kernels.into_iter().enumerate().map(kernel);
        Ok(Tuned {
            kernels: kernels.collect::<Result<_, TunedError>>()?,
        })
    }

    /// The text of a file.
    #[must_use]
    pub fn to_json(&self) -> String {
        let entry = |k: &TunedKernel| Entry {
            cpu: k.cpu.clone(),
            level: k.level.clone(),
            threads: k.threads,
            kernel: k.kernel.to_string(),
            label: k.label.clone(),
            choices: k.choices.iter().map(Pin::to_string).collect(),
            calculated_ns: k.ns[0].round(),
            tuned_ns: k.ns[1].round(),
        };
        let form = Form {
            tuned: SCHEMA,
            kernels: self.kernels.iter().map(entry).collect(),
        };
        // Plain numbers, texts and lists: nothing in there can fail.
        let text = serde_json::to_string_pretty(&form).unwrap_or_default();
        text + "\n"
    }

    /// What was found, in the order in which it was.
    pub fn kernels(&self) -> &[TunedKernel] {
        &self.kernels
    }

    /// Adds what was found of a kernel, in place of what was known of it on that processor and level.
    pub fn insert(&mut self, found: TunedKernel) {
        self.forget(&found.cpu, &found.level, found.kernel);
        self.kernels.push(found);
    }

    /// Drops what is known of a kernel on a processor and level.
    pub fn forget(&mut self, cpu: &str, level: &str, kernel: KernelKey) {
        self.kernels
            .retain(|k| (&*k.cpu, &*k.level, k.kernel) != (cpu, level, kernel));
    }

    /// The choices for this processor at the level of this process.
    pub fn pins(&self) -> Pins {
        let (cpu, level) = here();
        let mut pins = Pins::default();
        for k in self.kernels.iter().filter(|k| (&*k.cpu, &*k.level) == (&*cpu, level)) {
            pins.set(k.kernel, k.choices.clone());
        }
        pins
    }
}
