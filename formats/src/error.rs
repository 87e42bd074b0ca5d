//! The crate's one error type.
//!
//! Invariants: the variant says whose fault it is ([`FormatError::kind`]): broken bytes, sound bytes that this crate does
//! not take, the reader or writer underneath, or a limit. Offsets count from the first byte of the file, or of the member
//! inside an archive.

use std::fmt;
use std::io;

use tlc_ir::tensor::TensorError;

/// A file format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// One array, NumPy's `.npy`.
    Npy,
    /// A zip archive of `.npy` members.
    Npz,
    /// Named tensors behind a JSON header.
    Safetensors,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Format::Npy => "npy",
            Format::Npz => "npz",
            Format::Safetensors => "safetensors",
        })
    }
}

/// The coarse reason of a [`FormatError`], for exit codes and retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The bytes, or the names asked for, are wrong.
    Invalid,
    /// The bytes are sound but hold something that has no [`DType`](tlc_ir::dtype::DType) or that we do not decode.
    Unsupported,
    /// The reader or writer underneath failed.
    Io,
    /// A caller's limit or the machine's memory.
    Limit,
}

/// Why a tensor file could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// The bytes break the format's rules.
    #[error("invalid {format}{}: expected {expected}, found {found}", At(*offset))]
    Invalid {
        /// The format whose rule is broken.
        format: Format,
        /// Where, if one place can be named.
        offset: Option<u64>,
        /// What the rule asks for.
        expected: String,
        /// What is there.
        found: String,
    },
    /// Sound bytes that this crate does not take.
    #[error("unsupported {format}{}: {what}", At(*offset))]
    Unsupported {
        /// The format that was read or written.
        format: Format,
        /// Where, if one place can be named.
        offset: Option<u64>,
        /// The feature.
        what: String,
    },
    /// The reader or writer underneath failed.
    #[error("{format}: {source}")]
    Io {
        /// The format that was read or written.
        format: Format,
        /// The failure.
        #[source]
        source: io::Error,
    },
    /// Something is larger than the caller, or this crate, allows.
    #[error("{format}: {what} of {requested} is over the limit of {limit}")]
    Limit {
        /// The format that was read.
        format: Format,
        /// The quantity, with its unit.
        what: &'static str,
        /// How much the file asks for.
        requested: u64,
        /// How much is allowed.
        limit: u64,
    },
    /// The allocator refused.
    #[error("{format}: out of memory: {bytes} bytes")]
    OutOfMemory {
        /// The format that was read.
        format: Format,
        /// Bytes asked for.
        bytes: usize,
    },
    /// No tensor has the name asked for.
    #[error("{format}: no tensor named `{name}`; there {}", Available(available))]
    Missing {
        /// The format that was read.
        format: Format,
        /// The name asked for.
        name: String,
        /// The names there are, in file order.
        available: Vec<String>,
    },
    /// A name that cannot be written.
    #[error("{format}: cannot write a tensor named `{name}`: {reason}")]
    Name {
        /// The format being written.
        format: Format,
        /// The name.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// An error inside one member of an archive.
    #[error("npz member `{name}`: {source}")]
    Member {
        /// The member's name in the archive.
        name: String,
        /// What is wrong with it; its offsets count from the member's first uncompressed byte.
        #[source]
        source: Box<FormatError>,
    },
}

impl FormatError {
    /// The coarse reason.
    pub fn kind(&self) -> ErrorKind {
        match self {
            FormatError::Invalid { .. } | FormatError::Missing { .. } | FormatError::Name { .. } => ErrorKind::Invalid,
            FormatError::Unsupported { .. } => ErrorKind::Unsupported,
            FormatError::Io { .. } => ErrorKind::Io,
            FormatError::Limit { .. } | FormatError::OutOfMemory { .. } => ErrorKind::Limit,
            FormatError::Member { source, .. } => source.kind(),
        }
    }

    pub(crate) fn invalid(
        format: Format,
        offset: impl Into<Option<u64>>,
        expected: impl Into<String>,
        found: impl Into<String>,
    ) -> FormatError {
        FormatError::Invalid {
            format,
            offset: offset.into(),
            expected: expected.into(),
            found: found.into(),
        }
    }

    pub(crate) fn unsupported(format: Format, offset: impl Into<Option<u64>>, what: impl Into<String>) -> FormatError {
        FormatError::Unsupported {
            format,
            offset: offset.into(),
            what: what.into(),
        }
    }

    pub(crate) fn io(format: Format) -> impl FnOnce(io::Error) -> FormatError {
        move |source| FormatError::Io { format, source }
    }

    /// A tensor that could not be made for a shape found at `offset`.
    pub(crate) fn tensor(format: Format, offset: impl Into<Option<u64>>, error: TensorError) -> FormatError {
        match error {
            TensorError::OutOfMemory { bytes } => FormatError::OutOfMemory { format, bytes },
            TensorError::TooLarge { dtype, shape } => FormatError::invalid(
                format,
                offset,
                "a shape whose elements fit in the address space",
                format!("{shape:?} of {dtype}"),
            ),
            TensorError::Length { expected, found, .. } => FormatError::invalid(
                format,
                offset,
                format!("{expected} bytes of elements"),
                format!("{found} bytes"),
            ),
        }
    }
}

struct At(Option<u64>);

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(offset) => write!(f, " at byte {offset}"),
            None => Ok(()),
        }
    }
}

struct Available<'a>(&'a [String]);

impl fmt::Display for Available<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 8;
        let quoted: Vec<String> = self.0.iter().take(SHOWN).map(|n| format!("`{n}`")).collect();
        match self.0.len() {
            0 => f.write_str("are none"),
            1 => write!(f, "is {}", quoted[0]),
            n if n <= SHOWN => write!(f, "are {}", quoted.join(", ")),
            n => write!(f, "are {} and {} more", quoted.join(", "), n - SHOWN),
        }
    }
}
