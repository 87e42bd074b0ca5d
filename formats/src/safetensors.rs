//! Safetensors: named tensors behind a JSON header.
//!
//! Invariants:
//! - [`Views::parse`] checks the whole header and copies no element: a [`View`] borrows from the bytes it was given, which
//!   may be a mapped file. Its bytes are C order and little-endian, may be unaligned, and bools may be other than 0 or 1;
//!   [`View::to_host`] mends all three.
//! - No two tensors have one name. They come in file order, and by name where zero-sized ones share a place.
//! - Element types without a [`DType`] (6-bit floats, complex) do not spoil a file: only reading *those* tensors is
//!   unsupported.
//! - 4-bit floats lie two to a byte in the file, low bits first, and one to a byte in what [`View::to_host`] gives. The
//!   other types of less than a byte have no name there: they are written as U8, one to a byte, and so are 4-bit floats,
//!   whose number might be odd. Who reads them says what they are ([`HostTensor::bitcast`]), or [`dtype_metadata`] does.
//!
//! Reference: <https://github.com/huggingface/safetensors>, whose crate parses and lays out the header.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::Write;

use ::safetensors::tensor::{Dtype, Metadata, TensorInfo};
use ::safetensors::{SafeTensorError, SafeTensors};
use serde::Deserializer;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use tlc_ir::dtype::DType;
use tlc_ir::tensor::HostTensor;

use crate::{Format, FormatError, layout};

/// The header's key for free-form text, which no tensor may have as its name.
const METADATA_KEY: &str = "__metadata__";

/// Bytes of the header's length field.
const LENGTH_BYTES: usize = 8;

/// Where the elements begin in files that are written: at a multiple of this, as vectors of processors like them.
const DATA_ALIGN: usize = 64;

/// A tensor that still lies in the file's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View<'v, 'a> {
    /// The tensor's name.
    pub name: &'v str,
    /// Element type.
    pub dtype: DType,
    /// Extents.
    pub shape: &'v [usize],
    /// Where the elements begin in the file.
    pub offset: usize,
    /// The elements: C order, little-endian, not necessarily aligned; of f4e2m1fn two to a byte.
    pub bytes: &'a [u8],
}

impl View<'_, '_> {
    /// Copies the elements out.
    ///
    /// # Errors
    /// [`FormatError::OutOfMemory`].
    pub fn to_host(&self) -> Result<HostTensor, FormatError> {
        let unpacked: Vec<u8>;
        let mut bytes = self.bytes;
        if self.dtype.value_bits() == 4 {
            unpacked = bytes.iter().flat_map(|b| [b & 0xf, b >> 4]).collect();
            bytes = &unpacked;
        }
        let mut tensor = HostTensor::from_bytes(self.dtype, self.shape, bytes)
            .map_err(|e| FormatError::tensor(Format::Safetensors, None, e))?;
        if cfg!(target_endian = "big") {
            layout::swap_bytes(tensor.bytes_mut(), self.dtype.bytes());
        }
        Ok(tensor)
    }
}

/// The tensors of a file, as views into its bytes.
pub struct Views<'a> {
    entries: Vec<(String, TensorInfo)>,
    metadata: BTreeMap<String, String>,
    data: &'a [u8],
    /// Bytes before `data`.
    data_offset: usize,
}

impl<'a> Views<'a> {
    /// Reads and checks the header of a whole file.
    ///
    /// # Errors
    /// [`FormatError::Invalid`], or [`FormatError::Limit`] for a header over 100 MB.
    pub fn parse(bytes: &'a [u8]) -> Result<Views<'a>, FormatError> {
        let (header_len, header) = SafeTensors::read_metadata(bytes).map_err(|e| from_crate(e, bytes))?;
        let data_offset = LENGTH_BYTES + header_len;
        if let Some(name) = repeated(&bytes[LENGTH_BYTES..data_offset]) {
            return Err(FormatError::invalid(
                Format::Safetensors,
                None,
                "names that differ",
                format!("`{name}` twice"),
            ));
        }
        let mut entries: Vec<(String, TensorInfo)> = header
            .tensors()
            .into_iter()
            .map(|(name, info)| (name, info.clone()))
            .collect();
        entries.sort_by(|(a, x), (b, y)| x.data_offsets.cmp(&y.data_offsets).then_with(|| a.cmp(b)));
        Ok(Views {
            entries,
            metadata: header
                .metadata()
                .iter()
                .flatten()
                .map(|(k, v)| (k.clone(), v.clone()))
                .collect(),
            data: &bytes[data_offset..],
            data_offset,
        })
    }

    /// Number of tensors.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if there are no tensors.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Names of the tensors, in file order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|(name, _)| name.as_str())
    }

    /// The header's free-form text, by key.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// The tensor named `name`.
    ///
    /// # Errors
    /// [`FormatError::Missing`], or [`FormatError::Unsupported`] if its element type has no [`DType`].
    pub fn get(&self, name: &str) -> Result<View<'_, 'a>, FormatError> {
        match self.entries.iter().find(|(n, _)| n == name) {
            Some(entry) => self.view(entry),
            None => Err(FormatError::Missing {
                format: Format::Safetensors,
                name: name.to_string(),
                available: self.names().map(str::to_string).collect(),
            }),
        }
    }

    /// Every tensor, in file order.
    ///
    /// # Errors
    /// [`FormatError::Unsupported`] in place of a tensor whose element type has no [`DType`].
    pub fn iter(&self) -> impl Iterator<Item = Result<View<'_, 'a>, FormatError>> {
        self.entries.iter().map(|entry| self.view(entry))
    }

    fn view<'v>(&self, (name, info): &'v (String, TensorInfo)) -> Result<View<'v, 'a>, FormatError> {
        let (start, end) = info.data_offsets;
        let dtype = dtype_of(info.dtype).ok_or_else(|| {
            FormatError::unsupported(
                Format::Safetensors,
                (self.data_offset + start) as u64,
                format!("element type {} of tensor `{name}`", info.dtype),
            )
        })?;
        Ok(View {
            name,
            dtype,
            shape: &info.shape,
            offset: self.data_offset + start,
            bytes: &self.data[start..end],
        })
    }
}

/// Reads every tensor of a file, in file order.
///
/// # Errors
/// As [`Views::parse`]; [`FormatError::Unsupported`] if any element type has no [`DType`].
pub fn read(bytes: &[u8]) -> Result<Vec<(String, HostTensor)>, FormatError> {
    Views::parse(bytes)?
        .iter()
        .map(|view| {
            let view = view?;
            Ok((view.name.to_string(), view.to_host()?))
        })
        .collect()
}

/// Writes named tensors with free-form text. The widest elements come first, so that every tensor is aligned, then names
/// in order: the bytes do not depend on the order of `tensors`.
///
/// # Errors
/// [`FormatError::Name`] for a repeated or reserved name, [`FormatError::Io`].
pub fn write<'t>(
    tensors: impl IntoIterator<Item = (&'t str, &'t HostTensor)>,
    metadata: &BTreeMap<String, String>,
    writer: &mut impl Write,
) -> Result<(), FormatError> {
    let mut tensors: Vec<(&str, &HostTensor)> = tensors.into_iter().collect();
    let mut seen = BTreeSet::new();
    for &(name, _) in &tensors {
        let reason = match name {
            METADATA_KEY => "the name is reserved",
            _ if !seen.insert(name) => "the name is there already",
            _ => continue,
        };
        return Err(FormatError::Name {
            format: Format::Safetensors,
            name: name.to_string(),
            reason,
        });
    }
    tensors.sort_by_key(|&(name, tensor)| (std::cmp::Reverse(tensor.dtype().bytes()), name));

    let mut end = 0;
    let infos = tensors.iter().map(|&(name, tensor)| {
        let start = end;
        end += tensor.bytes().len();
        let info = TensorInfo {
            dtype: crate_dtype(tensor.dtype()),
            shape: tensor.shape().to_vec(),
            data_offsets: (start, end),
        };
        (name.to_string(), info)
    });
    let layout = Metadata::new(None, infos.collect()).map_err(|e| from_crate(e, &[]))?;
    let json = |e: serde_json::Error| from_crate(SafeTensorError::JsonError(e), &[]);

    // The crate prints free-form text in hash order; written here, it is in key order.
    let mut header = serde_json::to_string(&layout).map_err(json)?;
    if !metadata.is_empty() {
        let text = serde_json::to_string(metadata).map_err(json)?;
        let comma = if tensors.is_empty() { "" } else { "," };
        header.insert_str(1, &format!("\"{METADATA_KEY}\":{text}{comma}"));
    }
    let padded = (LENGTH_BYTES + header.len()).next_multiple_of(DATA_ALIGN) - LENGTH_BYTES;
    header.extend(std::iter::repeat_n(' ', padded - header.len()));

    let io = || FormatError::io(Format::Safetensors);
    writer.write_all(&(padded as u64).to_le_bytes()).map_err(io())?;
    writer.write_all(header.as_bytes()).map_err(io())?;
    tensors
        .iter()
        .try_for_each(|(_, tensor)| layout::write_little_endian(tensor.dtype().bytes(), tensor.bytes(), writer))
        .map_err(io())
}

/// Free-form text that says what those tensors are that lie in the file as U8 because it has no name for their type: under
/// `dtype.NAME`, the type's name in this project (`i4`).
pub fn dtype_metadata<'t>(tensors: impl IntoIterator<Item = (&'t str, &'t HostTensor)>) -> BTreeMap<String, String> {
    let unnamed = |d: DType| d != DType::U8 && crate_dtype(d) == Dtype::U8;
    let entry = |(name, t): (&str, &HostTensor)| (format!("dtype.{name}"), t.dtype().name().to_string());
    tensors
        .into_iter()
        .filter(|(_, t)| unnamed(t.dtype()))
        .map(entry)
        .collect()
}

/// A name that a header has twice, which the format forbids; the crate takes the last tensor of a name.
fn repeated(header: &[u8]) -> Option<String> {
    struct Names;

    impl<'h> Visitor<'h> for Names {
        type Value = Option<String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a header")
        }

        fn visit_map<A: MapAccess<'h>>(self, mut header: A) -> Result<Option<String>, A::Error> {
            let (mut seen, mut repeated) = (BTreeSet::new(), None);
            while let Some((name, IgnoredAny)) = header.next_entry::<String, IgnoredAny>()? {
                if !seen.contains(&name) {
                    seen.insert(name);
                } else {
                    repeated.get_or_insert(name);
                }
            }
            Ok(repeated)
        }
    }

    // A header that is none was refused.
    let names = serde_json::Deserializer::from_slice(header).deserialize_map(Names);
    names.ok().flatten()
}

fn dtype_of(dtype: Dtype) -> Option<DType> {
    Some(match dtype {
        Dtype::BOOL => DType::Bool,
        Dtype::I8 => DType::I8,
        Dtype::I16 => DType::I16,
        Dtype::I32 => DType::I32,
        Dtype::I64 => DType::I64,
        Dtype::U8 => DType::U8,
        Dtype::U16 => DType::U16,
        Dtype::U32 => DType::U32,
        Dtype::U64 => DType::U64,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::BF16,
        Dtype::F32 => DType::F32,
        Dtype::F64 => DType::F64,
        Dtype::F8_E4M3 => DType::F8E4M3FN,
        Dtype::F8_E4M3FNUZ => DType::F8E4M3FNUZ,
        Dtype::F8_E5M2 => DType::F8E5M2,
        Dtype::F8_E5M2FNUZ => DType::F8E5M2FNUZ,
        Dtype::F8_E8M0 => DType::F8E8M0FNU,
        Dtype::F4 => DType::F4E2M1FN,
        _ => return None,
    })
}

fn crate_dtype(dtype: DType) -> Dtype {
    match dtype {
        DType::Bool => Dtype::BOOL,
        DType::I8 => Dtype::I8,
        DType::I16 => Dtype::I16,
        DType::I32 => Dtype::I32,
        DType::I64 => Dtype::I64,
        DType::U8 => Dtype::U8,
        DType::U16 => Dtype::U16,
        DType::U32 => Dtype::U32,
        DType::U64 => Dtype::U64,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::F32 => Dtype::F32,
        DType::F64 => Dtype::F64,
        DType::F8E4M3FN => Dtype::F8_E4M3,
        DType::F8E4M3FNUZ => Dtype::F8_E4M3FNUZ,
        DType::F8E5M2 => Dtype::F8_E5M2,
        DType::F8E5M2FNUZ => Dtype::F8_E5M2FNUZ,
        DType::F8E8M0FNU => Dtype::F8_E8M0,
        DType::F4E2M1FN | DType::I4 | DType::U4 | DType::I2 | DType::U2 => Dtype::U8,
    }
}

/// The crate's errors in our terms; `bytes` is the file that was read, empty when writing.
fn from_crate(error: SafeTensorError, bytes: &[u8]) -> FormatError {
    let invalid = |offset: Option<u64>, expected: &str, found: String| {
        FormatError::invalid(Format::Safetensors, offset, expected, found)
    };
    let first = LENGTH_BYTES as u64;
    let declared = bytes.first_chunk().map_or(0, |&n| u64::from_le_bytes(n));
    match error {
        SafeTensorError::HeaderTooSmall => invalid(
            Some(0),
            "8 bytes of header length",
            format!("a file of {} bytes", bytes.len()),
        ),
        SafeTensorError::HeaderTooLarge => FormatError::Limit {
            format: Format::Safetensors,
            what: "header length in bytes",
            requested: declared,
            limit: 100_000_000,
        },
        SafeTensorError::InvalidHeaderLength => invalid(
            Some(0),
            "a header that ends inside the file",
            format!("a header of {declared} bytes in a file of {}", bytes.len()),
        ),
        SafeTensorError::InvalidHeader(utf8) => invalid(
            Some(first + utf8.valid_up_to() as u64),
            "a header in UTF-8",
            "other bytes".to_string(),
        ),
        SafeTensorError::InvalidHeaderDeserialization(json) | SafeTensorError::JsonError(json) => {
            // Columns count from 1; headers are one line unless someone wrote them by hand.
            let offset = (json.line() == 1 && json.column() > 0).then(|| first + json.column() as u64 - 1);
            invalid(offset, "a JSON header that describes tensors", json.to_string())
        }
        SafeTensorError::InvalidOffset(name) => invalid(
            None,
            "tensors that follow each other without gap or overlap",
            format!("tensor `{name}` elsewhere"),
        ),
        SafeTensorError::TensorInvalidInfo => invalid(
            None,
            "offsets that fit each tensor's shape and element type",
            "a tensor whose offsets do not".to_string(),
        ),
        SafeTensorError::MetadataIncompleteBuffer => invalid(
            None,
            "tensors that cover the file to its end",
            format!(
                "a file of {} bytes that they do not cover, or that they overrun",
                bytes.len()
            ),
        ),
        SafeTensorError::ValidationOverflow => invalid(
            None,
            "shapes whose elements fit in the address space",
            "a larger one".to_string(),
        ),
        SafeTensorError::IoError(source) => FormatError::Io {
            format: Format::Safetensors,
            source,
        },
        other => invalid(None, "a safetensors file", other.to_string()),
    }
}
