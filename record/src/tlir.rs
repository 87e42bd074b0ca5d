//! Models as text: `.tlir` files, with their weights in a safetensors file beside them.
//!
//! Invariants:
//! - `model.tlir` has its weights in `model.safetensors` in the same folder, and names them `const opaque "NAME"`. No text
//!   names a file, and a link that leads out of the folder is refused.
//! - A text that was written with weights begins with the line `// weights ID`, and the weights' metadata say the same `ID`, which
//!   differs where any element does: so a text beside the weights of another one (an import that was killed between the two)
//!   is an error, and never computes with them. One that says its `ID` beside one that does not is an error too: nobody knows
//!   whether they belong together. Only where neither says one, a text takes any weights.
//! - [`parse`] of what [`print`](fn@print) made, with the weights that [`write_weights`] wrote, is the same graph: the same operations on the
//!   same bits under the same names, so that it compiles to the same results.
//! - Weights are mapped, and shared with the graph where they lie, unless their place in the file is not a multiple of
//!   their elements' size, or their bytes are not as a tensor has them (see [`HostTensor::from_owner`]).
//! - Element types without a name in safetensors (int4, uint4, int2, uint2, 4-bit floats) lie there as U8, one element a
//!   byte, and the file's metadata says what they are: `dtype.NAME` is `i4`.
//!
//! ```
//! let g = tlc::Graph::new("linear");
//! let x = g.input("x", tlc::DType::F32, [8]);
//! let w = g.data(&[0.5f32; 512], &[64, 8]);
//! g.output("y", &w.matmul(&x));
//!
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("linear.tlir");
//! let printed = tlc::tlir::print(&g.finish()?);
//! std::fs::write(&path, &printed.text)?;
//! tlc::tlir::write_weights(&printed, &mut std::fs::File::create(tlc::tlir::weights_path(&path))?)?;
//!
//! let module = tlc::tlir::parse(&std::fs::read(&path)?, Some(&path)).expect("a model");
//! assert_eq!(module.graphs[0].name, "linear");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tlc_formats::{FormatError, safetensors};
use tlc_ir::tensor::BytesOwner;
use tlc_ir::text::{Module, ParseError, PrintOptions, Printed, parse_bytes, print_graph};
use tlc_ir::{DType, Graph, HostTensor};
use tlc_runtime::mmap::{MapError, MappedFile};

/// Constants of at most this many elements stand in the text; larger ones beside it.
pub const INLINE_ELEMENTS: usize = 16;

/// Where the weights of a text are: beside it, under its name.
pub fn weights_path(text: &Path) -> PathBuf {
    text.with_extension("safetensors")
}

/// What the first line of a text begins with, if it says which weights it is for; their number follows.
const WEIGHTS: &str = "// weights ";
/// The weights' word for that number, in their metadata.
const ID: &str = "weights";

/// A graph as text, with the names of the model it came from, and the weights that the text only names. What no output needs
/// is left out.
pub fn print(graph: &Graph) -> Printed {
    let options = PrintOptions {
        inline_elements: INLINE_ELEMENTS,
        names: true,
    };
    let mut printed = match tlc_passes::rewrite::dce::run(graph) {
        Ok(live) => print_graph(&live, &options),
        // A graph that does not verify prints as it is.
        Err(_) => print_graph(graph, &options),
    };
    if !printed.externals.is_empty() {
        let id = content_id(printed.externals.iter().map(|(name, data)| (name.as_str(), data)));
        printed.text.insert_str(0, &format!("{WEIGHTS}{id}\n"));
    }
    printed
}

/// A number for named tensors, as text: other names, types, extents or elements have another one, as good as certainly.
pub fn content_id<'t>(tensors: impl IntoIterator<Item = (&'t str, &'t HostTensor)>) -> String {
    let mut hasher = rustc_hash::FxHasher::default();
    for (name, tensor) in tensors {
        (name, tensor.dtype(), tensor.shape()).hash(&mut hasher);
        hasher.write(tensor.bytes());
    }
    format!("{:016x}", hasher.finish())
}

/// The line that says which weights a text is for, if it has one among the comments that it begins with.
pub fn weights_line(text: &[u8]) -> Option<&str> {
    let lines = text
        .split(|&b| b == b'\n')
        .map(|line| str::from_utf8(line).unwrap_or_default());
    let mut comments = lines.take_while(|line| line.trim().is_empty() || line.trim_start().starts_with("//"));
    comments.find(|line| line.starts_with(WEIGHTS)).map(str::trim_end)
}

/// The number of the weights that a text is for, if it says so.
fn weights_of(text: &[u8]) -> Option<&str> {
    weights_line(text)?.strip_prefix(WEIGHTS).map(str::trim)
}

/// Writes the weights of a text.
///
/// # Errors
/// [`FormatError::Io`].
pub fn write_weights(printed: &Printed, writer: &mut impl Write) -> Result<(), FormatError> {
    let all = || printed.externals.iter().map(|(name, data)| (name.as_str(), data));
    let mut metadata = safetensors::dtype_metadata(all());
    metadata.extend(weights_of(printed.text.as_bytes()).map(|id| (ID.into(), id.into())));
    safetensors::write(all(), &metadata, writer)
}

/// Reads a text. Data that it only names is looked up in the weights beside `path`; a text that comes from no file has none.
///
/// # Errors
/// Every error of the text; weights that are missing, broken or other than the text says are errors at the constants that
/// need them, only the first of them if it is the whole file that cannot be read.
pub fn parse(text: &[u8], path: Option<&Path>) -> Result<Module, Vec<ParseError>> {
    let mut beside: Option<Result<Weights, String>> = None;
    let mut resolver = |name: &str, dtype: DType, shape: &[usize]| {
        let open = || match path {
            Some(path) => Weights::beside(path)?.belonging_to(text),
            None => Err("the text comes from no file, beside which its weights could be".into()),
        };
        let weights = beside.get_or_insert_with(open).as_mut().map_err(|e| e.clone())?;
        weights.tensor(name, dtype, shape)
    };
    let parsed = parse_bytes(text, &mut resolver);
    let unreadable = matches!(beside, Some(Err(_)));
    parsed.map_err(|mut errors| {
        let mut told = false;
        errors.retain(|e| !unreadable || !e.lacks_data() || !std::mem::replace(&mut told, true));
        errors
    })
}

/// The tensors of a mapped safetensors file.
pub struct Weights {
    /// The file's name, for messages.
    file: String,
    /// The number that a text has which is for these weights, if they say it.
    id: Option<String>,
    bytes: BytesOwner,
    tensors: HashMap<String, Result<Entry, String>>,
    /// Tensors that were resolved, so that a second request returns the same data.
    made: HashMap<(String, DType), HostTensor>,
}

/// Where a tensor is in the file.
struct Entry {
    dtype: DType,
    /// What the metadata says that its bytes are.
    meant: Option<String>,
    shape: Vec<usize>,
    offset: usize,
    /// Elements of less than a byte that share bytes.
    packed: bool,
}

impl Weights {
    /// The weights beside the text at `path`.
    ///
    /// # Errors
    /// One line: the file is missing, leads out of the folder, or is no safetensors file.
    pub fn beside(path: &Path) -> Result<Weights, String> {
        let beside = weights_path(path);
        let file = shown(&beside);
        let unreadable = |e: std::io::Error| {
            let text = e.to_string();
            format!(
                "{file} cannot be read: {}",
                text.split(" (os error").next().unwrap_or_default()
            )
        };
        // A link may lead out of the folder: what counts is where the file really is.
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let root = folder.canonicalize().map_err(unreadable)?;
        let real = beside.canonicalize().map_err(unreadable)?;
        if !real.starts_with(root) {
            return Err(format!(
                "{file} leads out of the text's folder; expected a file inside it"
            ));
        }
        Weights::open(&real, file)
    }

    fn open(path: &Path, file: String) -> Result<Weights, String> {
        let mapped = MappedFile::open(path).map_err(|e| match e {
            MapError::NotAFile { .. } => format!("{file} is not a file"),
            MapError::Open { source, .. } | MapError::Map { source, .. } => {
                format!("{file} cannot be read: {source}")
            }
        })?;
        let views = safetensors::Views::parse(&mapped).map_err(|e| format!("{file}: {e}"))?;
        let mut tensors = HashMap::with_capacity(views.len());
        for name in views.names() {
            let entry = match views.get(name) {
                Ok(view) => Ok(Entry {
                    dtype: view.dtype,
                    meant: views.metadata().get(&format!("dtype.{name}")).cloned(),
                    shape: view.shape.to_vec(),
                    offset: view.offset,
                    packed: view.dtype.value_bits() == 4,
                }),
                Err(e) => Err(format!("{file}: {e}")),
            };
            tensors.insert(name.to_string(), entry);
        }
        let id = views.metadata().get(ID).cloned();
        Ok(Weights {
            file,
            id,
            bytes: Arc::new(mapped),
            tensors,
            made: HashMap::new(),
        })
    }

    /// The weights, unless they or the text say that the two do not belong together.
    fn belonging_to(self, text: &[u8]) -> Result<Weights, String> {
        let file = &self.file;
        match (weights_of(text), &self.id) {
            (Some(expected), Some(found)) if expected == found => Ok(self),
            (None, None) => Ok(self),
            (Some(expected), Some(found)) => Err(format!(
                "{file} has the weights of another text ({found}, this one's are {expected}), as after an import that was cut off; \
                 import the model again"
            )),
            (Some(expected), None) => Err(format!(
                "{file} does not say which text its weights are for, and this one's are {expected}; import the model again, or \
                 remove the text's line `{WEIGHTS}{expected}` to take any"
            )),
            (None, Some(found)) => Err(format!(
                "{file} has the weights of the text that begins with `{WEIGHTS}{found}`, and this one lacks that line; import the \
                 model again"
            )),
        }
    }

    /// The names of the tensors, in order.
    pub fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.tensors.keys().map(String::as_str).collect();
        names.sort_unstable();
        names
    }

    /// The tensor of that name, element type and shape: the file's own bytes where they can be shared.
    ///
    /// # Errors
    /// One line: there is none of that name, or it is another one.
    pub fn tensor(&mut self, name: &str, dtype: DType, shape: &[usize]) -> Result<HostTensor, String> {
        let key = (name.to_string(), dtype);
        if let Some(made) = self.made.get(&key).filter(|t| t.shape() == shape) {
            return Ok(made.clone());
        }
        let entry = match self.tensors.get(name) {
            Some(Ok(entry)) => entry,
            Some(Err(reason)) => return Err(reason.clone()),
            None => return Err(format!("{} has no tensor of that name", self.file)),
        };
        // What has no name in safetensors lies there as bytes.
        let narrow = entry.dtype == DType::U8 && dtype.is_storage() && dtype.value_bits() < 8;
        let meant = entry.meant.as_deref().unwrap_or(dtype.name());
        let same = if narrow {
            meant == dtype.name()
        } else {
            entry.dtype == dtype
        };
        if !same || entry.shape != shape {
            let stored = if narrow { meant } else { entry.dtype.name() };
            return Err(format!("it is {stored}{:?} in {}", entry.shape, self.file));
        }
        let broken = |e: &dyn std::fmt::Display| format!("{}: {e}", self.file);
        let tensor = if entry.packed || cfg!(target_endian = "big") {
            let views = safetensors::Views::parse((*self.bytes).as_ref()).map_err(|e| broken(&e))?;
            let view = views.get(name).map_err(|e| broken(&e))?;
            let host = view.to_host().map_err(|e| broken(&e))?;
            if narrow {
                host.bitcast(dtype).map_err(|e| broken(&e))?
            } else {
                host
            }
        } else {
            HostTensor::from_owner(dtype, shape, &self.bytes, entry.offset).map_err(|e| broken(&e))?
        };
        self.made.insert(key, tensor.clone());
        Ok(tensor)
    }
}

/// A file's name without its folder.
fn shown(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str());
    name.to_string_lossy().into_owned()
}
