//! A lazy tensor-graph compiler: record, optimize, fuse, compile, run and explain.
//!
//! A [`Graph`] records what is called on its [`Tensor`]s; nothing is computed until it is compiled.
//!
//! ```
//! use tlc::{DType, Graph, keep};
//!
//! let g = Graph::new("row_softmax");
//! let rows = g.symbol("rows", 1..=4096);
//! let x = g.input("x", DType::F32, (&rows, 1024));
//! let e = (&x - x.max(keep(-1))).exp();
//! g.output("y", &(&e / e.sum(keep(-1))));
//! let graph = g.finish()?;
//! assert_eq!(graph.outputs().len(), 1);
//! # Ok::<(), tlc::Errors>(())
//! ```
//!
//! Operators take tensors and Rust scalars on either side, by value or by reference; `/` and `%` mean what they mean in
//! NumPy (see [`operators`]). Dtypes promote and shapes broadcast as [`promotion`] says.
//!
//! A wrong shape never panics. The operation is refused, its result is poisoned, and the graph keeps the error with the line
//! that recorded it:
//!
//! ```
//! use tlc::{DType, Graph};
//!
//! let g = Graph::new("wrong");
//! let (a, b) = (g.input("a", DType::F32, [2, 3]), g.input("b", DType::F32, [4, 5]));
//! let c = a.matmul(&b).relu() + 1.0;
//! assert!(c.is_poisoned());
//! let errors = g.finish().unwrap_err().to_string();
//! assert!(errors.ends_with(
//!     "matmul of f32[2, 3] and f32[4, 5]: inner extents 3 and 4 differ; expected f32[3, 5] on the right"
//! ));
//! ```
#![forbid(unsafe_code)]

pub mod compile;
pub mod dim;
pub mod error;
pub mod eval;
pub mod explain;
pub mod functions;
pub mod graph;
pub mod machine_model;
pub mod onnx;
pub mod operators;
pub mod ops;
pub mod promotion;
mod scope;
pub mod tensor;
pub mod tlir;
pub mod verify;

pub use compile::{
    Broken, BuildError, CompileOptions, Executable, Input, Output, Specialization, Specialize, Verdict, compile_ir,
};
pub use dim::{Axes, Dim, IntoShape, keep};
pub use error::{Error, Errors};
pub use eval::EvalError;
pub use functions::{broadcast_tensors, concat, einsum, einsum_over, matmul, meshgrid, stack, where_};
pub use graph::Graph;
pub use ops::attention::Attention;
pub use ops::conv::{Conv, PerAxis};
pub use ops::create::{Datum, IntoHost};
pub use ops::pool::Pool;
pub use ops::regions::RoiAlign;
pub use ops::repeat::{Iteration, Repeat};
pub use ops::resample::{Coordinates, Interpolation, Resample, Rounding};
pub use ops::sample::{GridSample, Outside};
pub use ops::slice::{IntoSlices, Slice, s};
pub use ops::sort::Unique;
pub use ops::storage::{Conversion, PowerRounding};
pub use promotion::{Operand, Weak, promote};
pub use tensor::Tensor;
pub use tlc_ir::graph::{Monoid, ScatterOp, Semiring};
pub use tlc_ir::{DType, HostTensor, Scalar};
