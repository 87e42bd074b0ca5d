//! ONNX models as graphs, and graphs as ONNX models ([`export`](fn@export)).
//!
//! Invariants:
//! - An operator is a function over [`Tensor`](tlc_record::Tensor)s in the file of its family under `operators/`;
//!   `operators/table.rs` lists what there is, by name and opset. Nothing of ONNX reaches the graph language.
//! - What is not in the table, and every setting that an operator's function does not know, is refused by name. Nothing is
//!   computed approximately because it is not supported. An attribute or operand that ONNX does not give an operator at its opset is
//!   refused before its function sees it (`signature.rs`).
//! - Small integer tensors that only steer shapes are carried as index expressions (see `sizes.rs`), so that a shape
//!   computed in the model becomes an expression over the graph's symbols.
//! - No model makes the import panic, and none makes it allocate more than its own nodes and tensors justify.
//!
//! Semantics are those of the ONNX operator documents (onnx.ai/onnx/operators), versions 6 to 28 of the default domain. Of `com.microsoft` there are the operators
//! that ONNX Runtime's quantizer and optimizers write (`operators/microsoft.rs`), as its documentation of contributed operators says them.

mod assumptions;
mod call;
mod export;
mod external;
mod fold;
mod import;
mod model;
mod operators;
mod order;
mod packed;
mod refusal;
mod scope;
mod signature;
mod sizes;
mod value;

use std::path::Path;
use std::sync::Arc;

use tlc_formats::ErrorKind;
use tlc_ir::tensor::BytesOwner;
use tlc_ir::{DType, Graph as IrGraph, HostTensor};

pub use export::ExportError;
pub use model::{Model, ModelError, sizes_of_inputs};
pub use signature::Signature;
/// A model that is ready to be written.
pub use tlc_formats::onnx::write::Model as Exported;

/// The newest version of the default operator set that is read.
pub const MAX_OPSET: i64 = 28;
/// The oldest version of the default operator set that is read. Most operators are supported from opset 6 or 7 on.
pub const MIN_OPSET: i64 = 1;

/// Returns the value of the input of that name and declared element type, if it is known.
pub type InputValues<'a> = &'a dyn Fn(&str, DType) -> Option<HostTensor>;

/// What an import may be given beyond the model's bytes.
#[derive(Clone, Copy, Default)]
pub struct ImportOptions<'a> {
    /// The folder of the model, where external data may lie; without it external data is refused.
    pub folder: Option<&'a Path>,
    /// Values of inputs by name. Asked only for inputs on whose values shapes depend: the graph is then one for those
    /// values, and [`Imported::fixed`] lists them.
    pub values: Option<InputValues<'a>>,
    /// Sizes by the names that symbols have in the graph: what is listed is that number and no symbol. So extents that are 1
    /// broadcast as ONNX says, where a graph for any sizes has to assume that they are equal to others.
    pub sizes: &'a [(String, i64)],
    /// Trip counts of loops that an input decides are among what its value is asked for, so that the loops have a bound, which derivatives
    /// by reverse mode need. Those of which no value is given stay as they are.
    pub trip_counts: bool,
}

/// A model as a graph.
#[derive(Debug)]
pub struct Imported {
    /// The graph: the model's inputs that have no initializer, and its outputs, under their names. What bodies of loops read of
    /// initializers is a constant of theirs; [`IrGraph::with_constants_captured`] makes one constant of the graph of it, by which can be
    /// differentiated.
    pub graph: IrGraph,
    /// Inputs on whose values the graph's shapes depend, and those values: the graph is right for no others.
    pub fixed: Vec<(String, HostTensor)>,
}

/// Why a model could not be imported. Prints as one line: where, what, and what was expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}{message}")]
pub struct ImportError {
    kind: ErrorKind,
    place: String,
    message: String,
}

impl ImportError {
    /// Whether the model is wrong, unsupported, or too large.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// What is wrong, without where.
    pub fn message(&self) -> &str {
        &self.message
    }
}

/// Imports the model in the bytes of a `.onnx` file.
///
/// # Errors
/// [`ImportError`], which names the node or the value: a file that is no ONNX model, breaks a rule of it, or uses what is
/// not supported.
pub fn import(bytes: &[u8], options: &ImportOptions<'_>) -> Result<Imported, ImportError> {
    import::import(bytes, None, options)
}

/// As [`import`], sharing the elements of constants with `bytes` and with mappings of the files that hold external data,
/// for as long as the graph, or what is compiled from it, is in use. Only what is not aligned to the size of its elements is
/// copied, and only where code reads it that needs that: kernels read elements wherever they lie. So a model of gigabytes is ready in milliseconds, and its pages are read when they are first used.
///
/// The bytes must stay as they are: where they are a mapped file that another program changes, results change with it.
///
/// ```
/// use std::sync::Arc;
/// use tlc::onnx::{ImportOptions, import_in_place};
/// use tlc_ir::tensor::BytesOwner;
///
/// # let bytes: Vec<u8> = vec![];
/// let bytes: BytesOwner = Arc::new(bytes); // or Arc::new(tlc_runtime::mmap::MappedFile::open(path)?)
/// let imported = import_in_place(&bytes, &ImportOptions::default());
/// # assert!(imported.is_err());
/// ```
///
/// # Errors
/// As [`import`].
pub fn import_in_place(bytes: &BytesOwner, options: &ImportOptions<'_>) -> Result<Imported, ImportError> {
    import::import((**bytes).as_ref(), Some(Arc::clone(bytes)), options)
}

/// A graph as an ONNX model, of opset 21 or the first that has what it needs. [`Exported`] writes its bytes.
///
/// Inputs and outputs keep their names, sizes are dimensions of the symbols' names, and constants are called as their origin
/// says. The ranges of symbols are not written, and neither are guards: ONNX has no form for them.
///
/// # Errors
/// [`ExportError`], which names the node that ONNX cannot say, and why.
pub fn export(graph: &IrGraph) -> Result<Exported, ExportError> {
    export::export(graph)
}

/// The operands, results and attributes that a supported operator has at an opset.
pub fn signature(operator: &str, opset: i64) -> Option<&'static Signature> {
    let known = |o: &&operators::table::Operator| o.name == operator && (o.first..=o.last).contains(&opset);
    let known = operators::table::OPERATORS.iter().find(known)?;
    Signature::find(known.name, opset)
}

/// The operators that are supported: name, first opset, last opset.
pub fn supported() -> impl Iterator<Item = (&'static str, i64, i64)> {
    operators::table::OPERATORS
        .iter()
        .map(|o| (o.name, o.first, o.last.min(MAX_OPSET)))
}
