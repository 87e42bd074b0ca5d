//! ONNX models as graphs, for every command that takes a model.

use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;

use tlc::onnx::{ImportError, ImportOptions, import_in_place, sizes_of_inputs};
use tlc::{DType, HostTensor};
use tlc_formats::ErrorKind;
use tlc_ir::Graph;
use tlc_ir::binding::{BindError, bind_symbols, named_extents};
use tlc_ir::tensor::BytesOwner;
use tlc_runtime::mmap::{MapError, MappedFile};

use crate::data::{InputSpec, declared, read_source};
use crate::failure::{Code, Failure};
use crate::session::{Session, display};

/// Whether a file is an ONNX model, by its name.
pub fn is_onnx(path: &Path) -> bool {
    path.extension().is_some_and(|e| e.eq_ignore_ascii_case("onnx"))
}

/// Larger inputs do not steer shapes, and are not read before the model is compiled.
const MAX_STEERING_BYTES: usize = 1 << 20;

/// What a graph is imported for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// To be run, or looked at.
    Values,
    /// Derivatives, for which loops need a bound.
    Derivatives,
}

/// Imports the model in a file, with the `sizes` in place of symbols. Where shapes depend on the values of inputs, those given in
/// `specs` are read.
pub fn load(
    session: &Session,
    path: &Path,
    specs: &[InputSpec],
    sizes: &[(String, i64)],
    purpose: Purpose,
) -> Result<Graph, Failure> {
    let file = display(path);
    let bytes = MappedFile::open(path).map_err(|e| match e {
        MapError::Open { source, .. } | MapError::Map { source, .. } => Failure::reading(&file, &source),
        MapError::NotAFile { .. } => Failure::at(
            Code::Invalid,
            &file,
            "cannot be read: not a file; expected an ONNX model",
        ),
    })?;
    let unreadable = RefCell::new(None);
    let values = |name: &str, dtype: DType| -> Option<HostTensor> {
        let (_, source) = specs.iter().find(|(n, _)| n == name)?;
        match read_source(session, source, name, Some(dtype))? {
            Ok(tensor) => (tensor.bytes().len() <= MAX_STEERING_BYTES).then_some(tensor),
            Err(failure) => {
                unreadable.borrow_mut().get_or_insert(failure);
                None
            }
        }
    };
    let options = ImportOptions {
        folder: path.parent(),
        values: Some(&values),
        sizes,
        trip_counts: purpose == Purpose::Derivatives,
    };
    let bytes: BytesOwner = Arc::new(bytes);
    // A file that cannot be read is why its input's value is not known.
    let imported = import_in_place(&bytes, &options)
        .map_err(|e| unreadable.borrow_mut().take().unwrap_or_else(|| failure(&file, &e)))?;
    if !imported.fixed.is_empty() {
        let names: Vec<String> = imported.fixed.iter().map(|(n, _)| format!("`{n}`")).collect();
        let text = format!(
            "note: {file}: {} the values of {}; the graph is for those given",
            match purpose {
                Purpose::Values => "shapes depend on",
                Purpose::Derivatives => "shapes or loops depend on",
            },
            names.join(", ")
        );
        session.console.note(&text);
    }
    Ok(imported.graph)
}

/// The sizes that the inputs given from files have for those that a model names.
pub fn sizes_given(session: &Session, path: &Path, specs: &[InputSpec]) -> Vec<(String, i64)> {
    let Ok(bytes) = MappedFile::open(path) else {
        return vec![];
    };
    sizes_of_inputs(&bytes, &|input, _| {
        let (name, source) = specs.iter().find(|(name, _)| name == input)?;
        let tensor = read_source(session, source, name, None)?.ok()?;
        Some(tensor.shape().to_vec())
    })
}

/// The sizes of a model's symbols that break an assumption of its graph, if the inputs given do: two extents that have to be equal
/// unless one is 1, which only an import for these sizes knows to broadcast.
pub fn breaking(session: &Session, graph: &Graph, specs: &[InputSpec]) -> Result<Option<Vec<(String, i64)>>, Failure> {
    if graph.guards().is_empty() {
        return Ok(None);
    }
    let declared = declared(graph);
    let mut shapes: Vec<Vec<usize>> = Vec::with_capacity(declared.len());
    for (name, ty) in &declared {
        let fixed = || ty.shape.iter().map(|e| usize::try_from(e.as_const()?).ok()).collect();
        let given = specs.iter().find(|(n, _)| n == name);
        let read = given.and_then(|(_, source)| read_source(session, source, name, Some(ty.dtype)));
        let shape: Option<Vec<usize>> = match read {
            Some(tensor) => Some(tensor?.shape().to_vec()),
            None => fixed(),
        };
        let Some(shape) = shape else { return Ok(None) };
        shapes.push(shape);
    }
    let types = declared.iter().zip(&shapes);
    let types: Vec<(DType, &[usize])> = types.map(|((_, ty), shape)| (ty.dtype, shape.as_slice())).collect();
    if !matches!(bind_symbols(graph, &types, &[]), Err(BindError::Guard { .. })) {
        return Ok(None);
    }
    let extents = declared.iter().map(|(_, ty)| ty.shape.as_slice());
    Ok(Some(named_extents(
        graph.symbols(),
        extents,
        shapes.iter().map(Vec::as_slice),
    )))
}

fn failure(file: &str, error: &ImportError) -> Failure {
    let code = match error.kind() {
        ErrorKind::Unsupported => Code::Unsupported,
        ErrorKind::Limit => Code::Limit,
        ErrorKind::Invalid | ErrorKind::Io => Code::Invalid,
    };
    Failure::at(code, file, error.to_string())
}
