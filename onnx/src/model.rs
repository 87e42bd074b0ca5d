//! A model that is ready to run, whatever its inputs steer.
//!
//! Invariants: the model is imported and compiled once, or once for each value of the inputs on whose values its shapes
//! depend. Where extents that the model names differently are assumed equal and a call's are not, the model is imported for the
//! shapes of that call, and so it is where there is no graph for any sizes. At most [`MAX_IMPORTS`] of all these are kept, the latest used.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustc_hash::FxHashSet;
use tlc_formats::ErrorKind;
use tlc_formats::onnx::Dimension;
use tlc_ir::binding::named_extents;
use tlc_ir::tensor::BytesOwner;
use tlc_ir::{DType, HostTensor};
use tlc_runtime::driver::RunError;
use tlc_runtime::mmap::{MapError, MappedFile, read_sparsely};

use super::{ImportError, ImportOptions, Imported, InputValues, import_in_place};
use tlc_record::compile::input;
use tlc_record::compile::{BuildError, CompileOptions, Executable, Input, Named, Outputs, compile_ir};

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
}

/// The model imported and compiled, for certain values of the inputs on whose values its shapes depend.
struct Import {
    fixed: Vec<(String, HostTensor)>,
    /// The shapes that it is for, if not for any.
    shapes: Option<Vec<Vec<usize>>>,
    executable: Executable,
}

impl Import {
    fn is_for<'a, I: AsRef<Input<'a>>>(&self, names: &[String], inputs: &[I]) -> bool {
        self.fixed.iter().all(|(name, value)| {
            let given = names.iter().zip(inputs).find(|(n, _)| *n == name);
            given.is_some_and(|(_, input)| input.as_ref().is_same(value))
        })
    }

    /// Whether it is for these shapes and no others.
    fn is_for_shapes<'a, I: AsRef<Input<'a>>>(&self, inputs: &[I]) -> bool {
        let shapes = self.shapes.iter().flatten().map(|shape| Some(shape.as_slice()));
        self.shapes.is_some() && shapes.eq(inputs.iter().map(|i| i.as_ref().shape()))
    }
}

/// An ONNX model in a file, ready to run.
///
/// Symbolic extents are sizes of one compiled graph. Where shapes depend on the *values* of inputs (a `Reshape`'s target that is
/// an input of the model), the model is imported and compiled for each value that comes, and the latest are kept. So it is for
/// shapes that broadcast where the compiled graph assumes equal extents, and for all shapes of a model that has no graph for any sizes.
///
/// ```no_run
/// use ndarray::{Array4, Ix2};
/// use tlc::onnx::Model;
/// use tlc::{CompileOptions, inputs};
///
/// let model = Model::open("model.onnx", &CompileOptions::default())?;
/// let image = Array4::<f32>::zeros((1, 3, 224, 224));
/// let outputs = model.run_named(&inputs!["image" => &image])?;
/// let scores = outputs["scores"].as_array::<f32, Ix2>()?;
/// println!("{}", scores.row(0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Model {
    file: PathBuf,
    bytes: BytesOwner,
    /// Names of the inputs, in the model's order.
    names: Vec<String>,
    options: CompileOptions,
    /// Latest used first.
    imports: Mutex<Vec<Arc<Import>>>,
}

impl Model {
    /// Opens a `.onnx` file, and imports and compiles it unless its shapes depend on values of inputs, or there is a graph for known sizes
    /// alone: then the first call does. The file must not change while the model lives.
    ///
    /// ```no_run
    /// use tlc::onnx::Model;
    /// use tlc::{CompileOptions, inputs};
    ///
    /// let model = Model::open("model.onnx", &CompileOptions::default())?;
    /// assert_eq!(model.inputs().collect::<Vec<_>>(), ["image"]);
    /// let outputs = model.run(&inputs![&[[0.0f32; 3]; 4]])?;
    /// println!("{}", outputs[0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// If the file cannot be opened, or the model is wrong, unsupported or cannot be compiled.
    pub fn open(file: impl AsRef<Path>, options: &CompileOptions) -> Result<Model, ModelError> {
        let file = file.as_ref().to_path_buf();
        let bytes = MappedFile::open(&file)?;
        let model = Model {
            names: input_names(bytes.as_ref()),
            bytes: Arc::new(bytes),
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
            Err(e) if is_unsupported(&e) => {
                let any = |rank: usize| vec![ANY_SIZE; rank];
                let sizes = sizes_of_inputs(model.bytes.as_ref().as_ref(), &|_, rank| Some(any(rank)));
                match model.imported(&values, &sizes) {
                    Err(known) if !asked.get() && (sizes.is_empty() || is_unsupported(&known)) => return Err(e),
                    _ => {}
                }
            }
            Err(e) => return Err(e),
            Ok(import) => model.keep(import),
        }
        Ok(model)
    }

    /// The names of the inputs, in the order in which [`Model::run`] takes them.
    pub fn inputs(&self) -> impl ExactSizeIterator<Item = &str> + Clone {
        self.names.iter().map(String::as_str)
    }

    /// Runs the model with its inputs in the model's order; outputs are in the model's order, too.
    ///
    /// # Errors
    /// If inputs do not fit, or the model cannot be imported or compiled for their values.
    pub fn run(&self, inputs: &[Input<'_>]) -> Result<Outputs, ModelError> {
        self.run_all(inputs)
    }

    /// As [`Model::run`], with inputs by name, in any order.
    ///
    /// # Errors
    /// As [`Model::run`]; a name that the model does not have, one given twice, an input that is missing.
    pub fn run_named(&self, inputs: &[Named<'_, '_>]) -> Result<Outputs, ModelError> {
        self.run_all(&input::in_order(self.inputs(), inputs)?)
    }

    fn run_all<'a, I: AsRef<Input<'a>>>(&self, inputs: &[I]) -> Result<Outputs, ModelError> {
        if inputs.len() != self.names.len() {
            let (expected, found) = (self.names.len(), inputs.len());
            return Err(RunError::InputCount { expected, found }.into());
        }
        let import = self.for_values(inputs)?;
        match import.executable.run_all(inputs) {
            // Another import can say what is 1 and broadcasts. Where that is no model, the assumption is what is wrong.
            Err(broken @ RunError::Guard { .. }) if import.shapes.is_none() => match self.for_shapes(&import, inputs) {
                Some(exact) => Ok(exact.executable.run_all(inputs)?),
                None => Err(broken.into()),
            },
            result => Ok(result?),
        }
    }

    /// The model for the shapes of a call, if it can be imported and compiled for them.
    fn for_shapes<'a, I: AsRef<Input<'a>>>(&self, general: &Import, inputs: &[I]) -> Option<Arc<Import>> {
        let shapes = shapes_of(inputs)?;
        let plan = general.executable.plan();
        let declared = plan.inputs.iter().map(|i| i.ty.shape.as_slice());
        let sizes = named_extents(&plan.symbols, declared, shapes.iter().map(Vec::as_slice));
        let import = self.import_for(&self.given(inputs), &sizes, Some(shapes)).ok()?;
        self.keep(Arc::clone(&import));
        Some(import)
    }

    /// The values of a call's inputs, by name.
    fn given<'s, 'a, I: AsRef<Input<'a>>>(
        &'s self,
        inputs: &'s [I],
    ) -> impl Fn(&str, DType) -> Option<HostTensor> + 's {
        move |name, _| {
            let (_, input) = self.names.iter().zip(inputs).find(|(n, _)| *n == name)?;
            input.as_ref().to_host().ok()
        }
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

    fn for_values<'a, I: AsRef<Input<'a>>>(&self, inputs: &[I]) -> Result<Arc<Import>, ModelError> {
        {
            let mut kept = self.kept();
            let exact = kept
                .iter()
                .position(|i| i.is_for_shapes(inputs) && i.is_for(&self.names, inputs));
            let general = || {
                kept.iter()
                    .position(|i| i.shapes.is_none() && i.is_for(&self.names, inputs))
            };
            if let Some(at) = exact.or_else(general) {
                kept[..=at].rotate_right(1);
                return Ok(Arc::clone(&kept[0]));
            }
        }
        let given = self.given(inputs);
        let import = match self.import(&given) {
            Err(e) if is_unsupported(&e) => {
                let Some(shapes) = shapes_of(inputs) else { return Err(e) };
                let of = |name: &str, _| {
                    let (_, shape) = self.names.iter().zip(&shapes).find(|(n, _)| *n == name)?;
                    Some(shape.clone())
                };
                let sizes = sizes_of_inputs(self.bytes.as_ref().as_ref(), &of);
                if sizes.is_empty() {
                    return Err(e);
                }
                self.import_for(&given, &sizes, Some(shapes))?
            }
            import => import?,
        };
        self.keep(Arc::clone(&import));
        Ok(import)
    }

    fn import(&self, values: InputValues<'_>) -> Result<Arc<Import>, ModelError> {
        self.import_for(values, &[], None)
    }

    fn imported(&self, values: InputValues<'_>, sizes: &[(String, i64)]) -> Result<Imported, ModelError> {
        let options = ImportOptions {
            folder: self.file.parent(),
            values: Some(values),
            sizes,
            ..ImportOptions::default()
        };
        import_in_place(&self.bytes, &options).map_err(|error| ModelError::Import {
            file: self.file.clone(),
            error: Box::new(error),
        })
    }

    fn import_for(
        &self,
        values: InputValues<'_>,
        sizes: &[(String, i64)],
        shapes: Option<Vec<Vec<usize>>>,
    ) -> Result<Arc<Import>, ModelError> {
        let imported = self.imported(values, sizes)?;
        let executable = compile_ir(&imported.graph, &self.options).map_err(|error| ModelError::Build {
            file: self.file.clone(),
            error: Box::new(error),
        })?;
        Ok(Arc::new(Import {
            fixed: imported.fixed,
            shapes,
            executable,
        }))
    }
}

/// The most names of sizes for which a model is tried with known ones: each is looked for wherever a shape has it.
const MOST_SIZES: usize = 1000;

/// A size that stands for any, to see whether there is a graph for known ones.
const ANY_SIZE: usize = 64;

/// The shapes of a call's inputs, if all have one.
fn shapes_of<'a, I: AsRef<Input<'a>>>(inputs: &[I]) -> Option<Vec<Vec<usize>>> {
    inputs.iter().map(|i| Some(i.as_ref().shape()?.to_vec())).collect()
}

fn is_unsupported(error: &ModelError) -> bool {
    matches!(error, ModelError::Import { error, .. } if error.kind() == ErrorKind::Unsupported)
}

/// The sizes that a model, the bytes of a `.onnx` file, names in the shapes of its inputs, as [`ImportOptions::sizes`] takes them. `shape` gives the
/// shape of the input of a name and a rank, if it is known; where inputs disagree the first one counts. None of what is no model, and of one
/// with more than a thousand of them.
pub fn sizes_of_inputs(bytes: &[u8], shape: &dyn Fn(&str, usize) -> Option<Vec<usize>>) -> Vec<(String, i64)> {
    let _sparse = read_sparsely(bytes);
    let parsed = tlc_formats::onnx::Model::parse(bytes).ok();
    let (mut sizes, mut seen) = (vec![], FxHashSet::default());
    for input in parsed.and_then(|m| m.graph()).iter().flat_map(|g| g.inputs()) {
        let Some(declared) = input.ty().and_then(|ty| ty.tensor()?.shape()) else {
            continue;
        };
        let Some(shape) = shape(input.name(), declared.clone().count()) else {
            continue;
        };
        for (size, &extent) in declared.zip(&shape) {
            if let (Dimension::Named(name), Ok(extent)) = (size, i64::try_from(extent))
                && seen.insert(name)
            {
                sizes.push((name.to_string(), extent));
            }
        }
    }
    if sizes.len() <= MOST_SIZES { sizes } else { vec![] }
}

/// The inputs that a call gives: those that have no default. None for what is no model, which the import refuses.
fn input_names(bytes: &[u8]) -> Vec<String> {
    let _sparse = read_sparsely(bytes);
    let model = tlc_formats::onnx::Model::parse(bytes).ok();
    let Some(graph) = model.and_then(|m| m.graph()) else {
        return vec![];
    };
    let defaults: FxHashSet<&str> = graph.initializers().map(|t| t.name()).collect();
    let names = graph.inputs().map(|i| i.name()).filter(|n| !defaults.contains(n));
    names.map(str::to_string).collect()
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
