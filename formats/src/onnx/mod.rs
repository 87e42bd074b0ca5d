//! ONNX models, read in place.
//!
//! Invariants:
//! - A message is a slice of the file: reading a model allocates nothing, whatever the file says, and the bytes of tensors
//!   are not touched before [`Tensor::to_host`] copies them into a tensor of their own.
//! - [`Model::parse`] and [`Tensor::parse`] check the whole message tree once (see `schema.rs`). The messages that they
//!   return are then well formed, and their accessors cannot fail.
//! - Field numbers, names and meanings are those of ONNX's `onnx.proto` (github.com/onnx/onnx).

mod error;
mod message;
mod schema;
mod tensor;
mod wire;
pub mod write;

pub use error::OnnxError;
pub use message::{
    Attribute, AttributeKind, Dimension, Entry, Function, Graph, Model, Node, OperatorSet, SparseTensor, TensorType,
    Type, ValueInfo,
};
pub use tensor::{External, InPlace, Tensor, dtype, dtype_name, packed, per_byte, unpacked};
