//! Weights as they are multiplied, in a file beside the model.
//!
//! What the first call makes of weights, in another order or another type, is a value with a name ([`tlc_runtime::driver::KeptName`]). The file has
//! them under these names as safetensors of bytes; a later process maps it, and makes what it does not find.
//!
//! Invariant: a file that is not one of these is neither read nor written over.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tlc_formats::{Format, FormatError, safetensors};
use tlc_ir::tensor::BytesOwner;
use tlc_ir::{DType, HostTensor};
use tlc_runtime::driver::{KEPT_ALIGN, KeptBefore, KeptValue};
use tlc_runtime::mmap::{MapError, MappedFile};

use super::Executable;
use super::state_file::{StateFileError, written};

/// The key of the file's free-form text that says what it is, and its version.
const KIND: &str = "tlc.packed_weights";
const VERSION: &str = "1";

/// Weights that an earlier process packed, mapped from the file where it left them: see [`CompileOptions::packed_weights`](super::CompileOptions::packed_weights).
#[derive(Clone, Default)]
pub struct PackedWeights {
    values: Arc<KeptBefore>,
}

/// Of the weights that an executable keeps packed, how many bytes it found in a file and how many it packed itself.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PackedUse {
    /// Bytes that were found.
    pub found: u64,
    /// Bytes that the executable made.
    pub made: u64,
}

/// Why packed weights cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PackedWeightsError {
    /// The file cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// There is another file, which would be lost if it were written over.
    #[error("{}: no packed weights; expected a file that tlc wrote them to, or none", path.display())]
    Other {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be written as safetensors.
    #[error("{}: {source}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: FormatError,
    },
}

impl From<StateFileError> for PackedWeightsError {
    fn from(e: StateFileError) -> PackedWeightsError {
        let other = |path, source: String| PackedWeightsError::Io {
            path,
            source: io::Error::other(source),
        };
        match e {
            StateFileError::Io { path, source } => PackedWeightsError::Io { path, source },
            StateFileError::Format { path, source } => PackedWeightsError::Format { path, source },
            StateFileError::Other { path, differences } => other(path, differences),
            StateFileError::State { path, source } => other(path, source.to_string()),
        }
    }
}

impl std::fmt::Debug for PackedWeights {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PackedWeights({} values)", self.values.len())
    }
}

impl PackedWeights {
    /// Maps the file. Where there is none there are no weights yet; what it has of other models, other versions of tlc and other levels of
    /// instructions is not used. As with the weights of a model themselves, nobody looks at each byte: a file that was changed makes wrong results.
    ///
    /// # Errors
    /// A file that cannot be read, or is something else.
    pub fn open(path: impl AsRef<Path>) -> Result<PackedWeights, PackedWeightsError> {
        let path = path.as_ref();
        let other = || PackedWeightsError::Other { path: path.into() };
        let mapped = match MappedFile::open(path) {
            Ok(mapped) => mapped,
            Err(MapError::Open { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                return Ok(PackedWeights::default());
            }
            Err(MapError::NotAFile { .. }) => return Err(other()),
            Err(MapError::Open { source, .. } | MapError::Map { source, .. }) => {
                return Err(PackedWeightsError::Io {
                    path: path.into(),
                    source,
                });
            }
        };
        let mapped = Arc::new(mapped);
        let owner: BytesOwner = mapped.clone();
        let views = safetensors::Views::parse(&mapped).map_err(|_| other())?;
        if views.metadata().get(KIND).map(String::as_str) != Some(VERSION) {
            return Err(other());
        }
        let mut values = KeptBefore::default();
        for view in views.iter() {
            let view = view.map_err(|_| other())?;
            let bytes = view.bytes.len();
            if view.dtype != DType::U8 || bytes % KEPT_ALIGN != 0 || view.offset % KEPT_ALIGN != 0 {
                return Err(other());
            }
            let value = HostTensor::from_owner(DType::U8, &[bytes], &owner, view.offset).map_err(|_| other())?;
            values.insert(view.name.to_string(), value);
        }
        Ok(PackedWeights {
            values: Arc::new(values),
        })
    }

    /// Values in the file, which may be of other models.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The values by their names.
    pub(super) fn values(&self) -> Arc<KeptBefore> {
        Arc::clone(&self.values)
    }
}

impl Executable {
    /// How much of its packed weights it found in the file of [`CompileOptions::packed_weights`](super::CompileOptions::packed_weights). It looks when it runs for the first time,
    /// before which it has none; without that option it has none either.
    pub fn packed_use(&self) -> PackedUse {
        let mut sum = PackedUse::default();
        for value in self.general.inner.kept_values() {
            let bytes = value.bytes.bytes().len() as u64;
            *(if value.found { &mut sum.found } else { &mut sum.made }) += bytes;
        }
        sum
    }

    /// Writes the packed weights of the code for any sizes, found or made, for [`PackedWeights::open`]. Those of a mapped file that somebody has
    /// written to since they were packed are left out.
    ///
    /// # Errors
    /// What the writer says.
    pub fn write_packed_weights(&self, writer: &mut impl Write) -> Result<(), FormatError> {
        let mut values: Vec<KeptValue> = self.general.inner.certain_kept_values();
        // Equal weights have one name.
        values.sort_by_key(|v| v.name);
        values.dedup_by_key(|v| v.name);
        let names: Vec<String> = values.iter().map(|v| v.name.to_string()).collect();
        let all = names.iter().zip(&values).map(|(name, v)| (name.as_str(), &v.bytes));
        let metadata = BTreeMap::from([(KIND.to_string(), VERSION.to_string())]);
        safetensors::write(all, &metadata, writer)
    }

    /// As [`Executable::write_packed_weights`], to a file that appears whole or not at all, in place of one that [`PackedWeights::open`] reads.
    ///
    /// ```
    /// use tlc::{CompileOptions, DType, Graph, PackedWeights, inputs};
    ///
    /// # let folder = tempfile::tempdir()?;
    /// # let file = folder.path().join("model.packed");
    /// let g = Graph::new("layer");
    /// let x = g.input("x", DType::F32, [64, 256]);
    /// let w = g.constant(tlc::HostTensor::from_slice(&[256, 256], &vec![0.5f32; 256 * 256])?);
    /// g.output("y", &x.matmul(&w));
    ///
    /// let options = CompileOptions {
    ///     packed_weights: Some(PackedWeights::open(&file)?),
    ///     ..CompileOptions::default()
    /// };
    /// let layer = g.compile(&options)?;
    /// layer.run(&inputs![vec![1.0f32; 64 * 256]])?;
    /// layer.save_packed_weights(&file)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// A file there that is something else, or what the system says.
    pub fn save_packed_weights(&self, path: impl AsRef<Path>) -> Result<(), PackedWeightsError> {
        let path = path.as_ref();
        PackedWeights::open(path)?;
        let mut meanwhile = Ok(());
        let written = written(path, |file| {
            self.write_packed_weights(file)?;
            // Something else may have been put there while this took its time.
            meanwhile = PackedWeights::open(path).map(drop);
            match meanwhile {
                Ok(()) => Ok(()),
                Err(_) => Err(FormatError::Io {
                    format: Format::Safetensors,
                    source: io::ErrorKind::AlreadyExists.into(),
                }),
            }
        });
        meanwhile?;
        Ok(written?)
    }
}
