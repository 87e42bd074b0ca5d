//! Files in and out: tensors as `.npy`, `.npz` and `.safetensors`; models as `.onnx`.
//!
//! Invariants:
//! - This crate sees bytes (`&[u8]`, `impl Read`, `impl Write`). It opens, maps and names no file.
//! - Nothing a file says is believed before it is checked: no input makes a reader panic, and no reader allocates more
//!   than the bytes that are really there justify (see [`npy::read_from`] for streams and [`npz`] for compressed members).
//! - A tensor that comes out keeps [`HostTensor`](tlc_ir::tensor::HostTensor)'s invariants: C order, native byte order,
//!   bools 0 or 1.
//! - Output is deterministic: the same tensors under the same names give the same bytes, whatever the time or the hash
//!   seed.
#![forbid(unsafe_code)]

mod error;
mod layout;
pub mod npy;
pub mod npz;
pub mod onnx;
pub mod safetensors;

pub use error::{ErrorKind, Format, FormatError};

/// What a reader may be given beyond the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadOptions {
    /// The most element bytes one tensor may have; more is [`FormatError::Limit`], before anything is allocated.
    pub limit_bytes: u64,
    /// What to make of elements that a file can only describe as raw bytes (`V2` and `V1` in npy). With
    /// `Some(DType::BF16)` two of them are a little-endian bf16, with a storage type one is an element of that, as
    /// `ml_dtypes` writes them; otherwise they are unsupported.
    pub hint: Option<tlc_ir::dtype::DType>,
}

impl Default for ReadOptions {
    /// No limit, no hint.
    fn default() -> ReadOptions {
        ReadOptions {
            limit_bytes: u64::MAX,
            hint: None,
        }
    }
}
