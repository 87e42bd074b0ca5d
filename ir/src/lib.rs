//! The languages of tlc and their meaning.
//!
//! `graph` says what is computed, `kernel` how one fused loop nest runs, `plan` what the runtime executes. Each has a
//! printer, a parser and a verifier; the interpreters give graph and kernel their meaning and are the oracle for
//! everything that compiles them. This crate knows no other crate of the workspace.
#![forbid(unsafe_code)]

pub mod binding;
pub mod dtype;
pub mod einsum;
pub mod fallible;
pub mod graph;
pub mod index;
pub mod interp;
pub mod kernel;
pub mod plan;
pub mod precision;
pub mod rng;
pub mod scalar;
pub mod target;
pub mod tensor;
#[cfg(feature = "testgen")]
pub mod testgen;
pub mod text;

pub use dtype::{DType, Scalar};
pub use graph::{Graph, Node, NodeId, NodeKind, TensorType};
pub use index::{IndexExpr, SymId, VarId};
pub use kernel::Kernel;
pub use plan::Plan;
pub use precision::Precision;
pub use scalar::ScalarOp;
pub use target::Target;
pub use tensor::{Element, HostTensor};
