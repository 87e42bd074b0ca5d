//! A model that is ready to run, whatever its inputs steer.
//!
//! Invariants: the model is imported and compiled once, or once for each value of the inputs on whose values its shapes
//! depend; at most [`MAX_IMPORTS`] of these are kept, the latest used.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tlc_ir::tensor::BytesOwner;
use tlc_ir::{DType, HostTensor};
use tlc_runtime::executable::RunError;
use tlc_runtime::mmap::{MapError, MappedFile};

use super::{ImportError, ImportOptions, InputValues, import_in_place};
use crate::compile::{BuildError, CompileOptions, Executable, Input, Output, compile_ir};

/// Compiled imports of one model that are kept.
const MAX_IMPORTS: usize = 8;
/// Elements of an input that steers shapes which are shown.
const SHOWN: usize = 16;

/// Why a model could not be read or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The file could not be opened.
    #[error(transparent)]
    Open(#[from] MapError),
    /// The model is wrong or not supported.
    #[error("{}: {error}", .file.display())]
    Import {
        /// The model's file.
        file: PathBuf,
        /// What is wrong.
        error: Box<ImportError>,
    },
    /// It could not be compiled.
    #[error("{}: {error}", .file.display())]
    Build {
        /// The model's file.
        file: PathBuf,
        /// What is wrong.
        error: Box<BuildError>,
    },
    /// The call failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// An input that the model does not have.
    #[error("no input `{name}`; expected {}", .expected.join(", "))]
    UnknownInput {
        /// The name given.
        name: String,
        /// The model's inputs.
        expected: Vec<String>,
    },
    /// An input of the model that the call lacks.
    #[error("input `{name}` is missing")]
    MissingInput {
        /// Its name.
        name: String,
    },
}

/// The model imported and compiled, for certain values of the inputs on whose values its shapes depend.
struct Import {
    fixed: Vec<(String, HostTensor)>,
    inputs: Vec<String>,
    executable: Executable,
}

impl Import {
    fn is_for(&self, inputs: &[(&str, &HostTensor)]) -> bool {
        self.fixed.iter().all(|(name, value)| {
            let given = inputs.iter().find(|(n, _)| n == name);
            given.is_some_and(|(_, t)| same(t, value))
        })
    }
}

fn same(a: &HostTensor, b: &HostTensor) -> bool {
    a.dtype() == b.dtype() && a.shape() == b.shape() && a.bytes() == b.bytes()
}

/// An ONNX model in a file, ready to run.
///
/// Symbolic extents are sizes of one compiled graph. Where shapes depend on the *values* of inputs (a `Reshape`'s target that is
/// an input of the model), the model is imported and compiled for each value that comes, and the latest are kept.
///
/// ```no_run
/// use tlc::onnx::Model;
/// use tlc::{CompileOptions, DType, HostTensor};
///
/// let model = Model::open("model.onnx", &CompileOptions::default())?;
/// let image = HostTensor::zeros(DType::F32, &[1, 3, 224, 224])?;
/// let scores = model.run(&[("image", &image)])?;
/// println!("{:?}", scores[0].shape());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Model {
    file: PathBuf,
    bytes: BytesOwner,
    options: CompileOptions,
    /// Latest used first.
    imports: Mutex<Vec<Arc<Import>>>,
}

impl Model {
    /// Opens a `.onnx` file, and imports and compiles it unless its shapes depend on values of inputs: then the first call
    /// does. The file must not change while the model lives.
    ///
    /// # Errors
    /// If the file cannot be opened, or the model is wrong, unsupported or cannot be compiled.
    pub fn open(file: impl AsRef<Path>, options: &CompileOptions) -> Result<Model, ModelError> {
        let file = file.as_ref().to_path_buf();
        let model = Model {
            bytes: Arc::new(MappedFile::open(&file)?),
            file,
            options: options.clone(),
            imports: Mutex::default(),
        };
        let asked = std::cell::Cell::new(false);
        let values = |_: &str, _: DType| {
            asked.set(true);
            None
        };
        match model.import(&values) {
            Err(ModelError::Import { .. }) if asked.get() => {}
            Err(e) => return Err(e),
            Ok(import) => model.keep(import),
        }
        Ok(model)
    }

    /// Runs the model with its inputs by name, in any order. Outputs are in the model's order.
    ///
    /// # Errors
    /// If inputs do not fit, or the model cannot be imported or compiled for their values.
    pub fn run(&self, inputs: &[(&str, &HostTensor)]) -> Result<Vec<Output>, ModelError> {
        let import = self.for_values(inputs)?;
        if let Some((name, _)) = inputs.iter().find(|(n, _)| !import.inputs.iter().any(|i| i == n)) {
            return Err(ModelError::UnknownInput {
                name: (*name).to_string(),
                expected: import.inputs.clone(),
            });
        }
        let mut given: Vec<Input<'_>> = Vec::with_capacity(import.inputs.len());
        for name in &import.inputs {
            let Some((_, tensor)) = inputs.iter().find(|(n, _)| n == name) else {
                return Err(ModelError::MissingInput { name: name.clone() });
            };
            given.push((*tensor).into());
        }
        Ok(import.executable.run(&given)?)
    }

    /// How often the model is imported and compiled at present: once, or for each value kept of the inputs that steer its
    /// shapes.
    pub fn imports(&self) -> usize {
        self.kept().len()
    }

    /// What the compiler decided and why, of every import that is kept.
    pub fn explain(&self) -> String {
        let imports = self.kept().clone();
        let mut text = String::new();
        for import in imports {
            for (name, value) in &import.fixed {
                let value = values_text(value);
                text.push_str(&format!(
                    "shapes depend on the values of `{name}`; this is for {value}\n"
                ));
            }
            text.push_str(&import.executable.explain());
        }
        text
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Import>>> {
        self.imports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, import: Arc<Import>) {
        let mut kept = self.kept();
        kept.truncate(MAX_IMPORTS - 1);
        kept.insert(0, import);
    }

    fn for_values(&self, inputs: &[(&str, &HostTensor)]) -> Result<Arc<Import>, ModelError> {
        {
            let mut kept = self.kept();
            if let Some(at) = kept.iter().position(|i| i.is_for(inputs)) {
                kept[..=at].rotate_right(1);
                return Ok(Arc::clone(&kept[0]));
            }
        }
        let values = |name: &str, _: DType| {
            let (_, tensor) = inputs.iter().find(|(n, _)| *n == name)?;
            Some((*tensor).clone())
        };
        let import = self.import(&values)?;
        self.keep(Arc::clone(&import));
        Ok(import)
    }

    fn import(&self, values: InputValues<'_>) -> Result<Arc<Import>, ModelError> {
        let options = ImportOptions {
            folder: self.file.parent(),
            values: Some(values),
        };
        let imported = import_in_place(&self.bytes, &options).map_err(|error| ModelError::Import {
            file: self.file.clone(),
            error: Box::new(error),
        })?;
        let executable = compile_ir(&imported.graph, &self.options).map_err(|error| ModelError::Build {
            file: self.file.clone(),
            error: Box::new(error),
        })?;
        Ok(Arc::new(Import {
            fixed: imported.fixed,
            inputs: executable.plan().inputs.iter().map(|i| i.name.clone()).collect(),
            executable,
        }))
    }
}

/// The elements of a small integer tensor.
fn values_text(tensor: &HostTensor) -> String {
    let values = match tensor.as_slice::<i64>() {
        Some(v) => v.iter().take(SHOWN).map(i64::to_string).collect::<Vec<_>>(),
        None => match tensor.as_slice::<i32>() {
            Some(v) => v.iter().take(SHOWN).map(i32::to_string).collect(),
            None => return format!("those of one {} tensor", tensor.dtype()),
        },
    };
    let more = if tensor.len() > values.len() { ", ..." } else { "" };
    format!("[{}{more}]", values.join(", "))
}
