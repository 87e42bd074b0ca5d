//! NumPy's `.npz`: a zip archive with one `.npy` member per array.
//!
//! Invariants:
//! - Members may be stored or deflated; anything else is unsupported. Only names that end in `.npy` count as arrays, and
//!   an array's name is the member's name without that ending, as in NumPy.
//! - A member must be exactly as long as its npy header says, and its checksum must hold. So decompression is bounded by
//!   the header, the header by the caller's limit, and memory by what has really been decompressed
//!   (as [`crate::npy::read_from`]): a zip bomb costs no more than the array it claims to be.
//! - Written archives carry the zip epoch (1980-01-01) as their time, so equal tensors give equal bytes.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::io::{Cursor, Read, Seek, Write};

use tlc_ir::tensor::HostTensor;
use zip::result::ZipError;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, DateTime, ZipArchive, ZipWriter};

use crate::{Format, FormatError, ReadOptions, npy};

const SUFFIX: &str = ".npy";

/// How members are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Compression {
    /// As they are, like `numpy.savez`.
    Stored,
    /// Deflated, like `numpy.savez_compressed`.
    Deflated,
}

/// An archive whose directory has been read.
pub struct Archive<'a> {
    zip: ZipArchive<Cursor<&'a [u8]>>,
    /// Names of the arrays in directory order, with their place in the directory.
    arrays: Vec<(String, usize)>,
}

impl<'a> Archive<'a> {
    /// Reads the directory of an archive.
    ///
    /// # Errors
    /// [`FormatError::Invalid`] if it is no zip archive or names a member twice; [`FormatError::Unsupported`] if it
    /// spans disks.
    pub fn open(bytes: &'a [u8]) -> Result<Archive<'a>, FormatError> {
        let zip = ZipArchive::new(Cursor::new(bytes)).map_err(from_zip)?;
        if zip.has_duplicate_names() {
            return Err(FormatError::invalid(
                Format::Npz,
                None,
                "each member once",
                "a member's name twice",
            ));
        }
        let names: Vec<String> = zip
            .file_names()
            .map(|name| name.map(Cow::into_owned))
            .collect::<Result<_, _>>()
            .map_err(from_zip)?;
        let arrays = names
            .into_iter()
            .enumerate()
            .filter_map(|(index, name)| Some((name.strip_suffix(SUFFIX)?.to_string(), index)))
            .collect();
        Ok(Archive { zip, arrays })
    }

    /// Names of the arrays, in the order of the archive's directory.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.arrays.iter().map(|(name, _)| name.as_str())
    }

    /// Reads the array named `key`, with or without the ending `.npy`.
    ///
    /// # Errors
    /// [`FormatError::Missing`], or [`FormatError::Member`] with what is wrong with the member.
    pub fn read(&mut self, key: &str, options: &ReadOptions) -> Result<HostTensor, FormatError> {
        let place = |wanted: &str| self.arrays.iter().find(|(name, _)| name == wanted);
        let found = place(key).or_else(|| place(key.strip_suffix(SUFFIX)?));
        let Some(&(_, index)) = found else {
            return Err(FormatError::Missing {
                format: Format::Npz,
                name: key.to_string(),
                available: self.names().map(str::to_string).collect(),
            });
        };
        self.read_at(index, options).map_err(|source| FormatError::Member {
            name: key.to_string(),
            source: Box::new(source),
        })
    }

    fn read_at(&mut self, index: usize, options: &ReadOptions) -> Result<HostTensor, FormatError> {
        let mut member = self.zip.by_index(index).map_err(from_zip)?;
        let method = member.compression();
        if !matches!(method, CompressionMethod::Stored | CompressionMethod::Deflated) {
            return Err(FormatError::unsupported(
                Format::Npz,
                None,
                format!("compression method {method}"),
            ));
        }
        let listed = member.size();
        let header = npy::read_header_from(&mut member, options).map_err(unpack_failed)?;
        let whole = header.data_offset as u64 + header.data_bytes() as u64;
        if listed != whole {
            return Err(FormatError::invalid(
                Format::Npz,
                None,
                format!("a member of {whole} bytes, as its npy header says"),
                format!("{listed} bytes in the archive's directory"),
            ));
        }
        let tensor = npy::read_elements_from(&mut member, &header).map_err(unpack_failed)?;
        // The checksum is compared when the reader sees the end.
        let more = member
            .read(&mut [0u8])
            .map_err(FormatError::io(Format::Npz))
            .map_err(unpack_failed)?;
        if more > 0 {
            return Err(FormatError::invalid(
                Format::Npz,
                whole,
                "the end of the member after the last element",
                "more bytes",
            ));
        }
        Ok(tensor)
    }
}

/// Names of the arrays in an archive, in the order of its directory.
///
/// # Errors
/// As [`Archive::open`].
pub fn names(bytes: &[u8]) -> Result<Vec<String>, FormatError> {
    Ok(Archive::open(bytes)?.arrays.into_iter().map(|(name, _)| name).collect())
}

/// Reads the array named `key`. For several arrays of one archive, open an [`Archive`] once.
///
/// # Errors
/// As [`Archive::open`] and [`Archive::read`].
pub fn read(bytes: &[u8], key: &str) -> Result<HostTensor, FormatError> {
    read_with(bytes, key, &ReadOptions::default())
}

/// [`read`] with options.
///
/// # Errors
/// As [`read`].
pub fn read_with(bytes: &[u8], key: &str, options: &ReadOptions) -> Result<HostTensor, FormatError> {
    Archive::open(bytes)?.read(key, options)
}

/// Writes an archive of named arrays.
///
/// # Errors
/// [`FormatError::Name`] for an empty or repeated name, [`FormatError::Io`].
pub fn write<'t>(
    arrays: impl IntoIterator<Item = (&'t str, &'t HostTensor)>,
    compression: Compression,
    writer: &mut (impl Write + Seek),
) -> Result<(), FormatError> {
    let method = match compression {
        Compression::Stored => CompressionMethod::Stored,
        Compression::Deflated => CompressionMethod::Deflated,
    };
    let mut zip = ZipWriter::new(writer);
    let mut written = BTreeSet::new();
    for (name, tensor) in arrays {
        let reject = |reason| FormatError::Name {
            format: Format::Npz,
            name: name.to_string(),
            reason,
        };
        if name.is_empty() {
            return Err(reject("the name is empty"));
        }
        if name.len() > u16::MAX as usize - SUFFIX.len() {
            return Err(reject("the name is longer than zip allows"));
        }
        if !written.insert(name) {
            return Err(reject("the name is there already"));
        }
        let options = SimpleFileOptions::default()
            .compression_method(method)
            .last_modified_time(DateTime::default())
            .unix_permissions(0o644)
            // Deflate can grow what it cannot shrink, by less than a thousandth.
            .large_file(npy::encoded_len(tensor) as u64 > u32::MAX as u64 / 1024 * 1023);
        zip.start_file(format!("{name}{SUFFIX}"), options).map_err(from_zip)?;
        npy::write(tensor, &mut zip)?;
    }
    zip.finish().map_err(from_zip)?;
    Ok(())
}

/// An archive is read from memory, so a reader that fails has met broken bytes.
fn unpack_failed(error: FormatError) -> FormatError {
    match error {
        FormatError::Io { source, .. } => {
            FormatError::invalid(Format::Npz, None, "a member that unpacks", source.to_string())
        }
        other => other,
    }
}

fn from_zip(error: ZipError) -> FormatError {
    match error {
        ZipError::Io(source) if source.kind() == std::io::ErrorKind::UnexpectedEof => {
            FormatError::invalid(Format::Npz, None, "a whole zip archive", source.to_string())
        }
        ZipError::Io(source) => FormatError::Io {
            format: Format::Npz,
            source,
        },
        ZipError::UnsupportedArchive(what) => FormatError::unsupported(Format::Npz, None, what),
        ZipError::CompressionMethodNotSupported(id) => {
            FormatError::unsupported(Format::Npz, None, format!("compression method {id}"))
        }
        other => FormatError::invalid(Format::Npz, None, "a zip archive", other.to_string()),
    }
}
