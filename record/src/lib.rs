//! The recording API: a [`Graph`] records what is called on its [`Tensor`]s, compiles it and runs it. Programs use it through the
//! crate `tlc`, whose documentation begins there.
#![forbid(unsafe_code)]

pub mod autodiff;
pub mod batch;
pub mod compile;
mod datum;
pub mod dim;
pub mod error;
pub mod eval;
pub mod explain;
pub mod functions;
pub mod graph;
pub mod init;
pub mod machine_model;
pub mod operators;
pub mod ops;
pub mod optim;
pub mod prediction;
pub mod promotion;
pub mod streams;
pub mod tlir;
pub mod tune;
mod tuned;

pub use autodiff::{grad, hessian, hvp, jacobian, jvp, value_and_grad, vjp};
pub use batch::{Vmap, vmap};
pub use compile::{
    Broken, BuildError, CompileOptions, Device, DeviceOutputs, Entry, Executable, Input, Output, OutputMut, Outputs,
    PackedUse, PackedWeights, PackedWeightsError, ReadError, Specialization, Specialize, State, StateFileError,
    UnknownDevice, Verdict, WrongType, compile_ir, plan_ir,
};
pub use datum::Datum;
pub use dim::{Axes, Dim, IntoShape, keep};
pub use error::{Error, Errors};
pub use eval::EvalError;
#[doc(hidden)]
pub use functions::einsum_as;
pub use functions::{broadcast_tensors, concat, einsum, einsum_over, matmul, meshgrid, stack, where_};
pub use graph::{Graph, Tensor};
pub use ops::attention::Attention;
pub use ops::cache::Cache;
pub use ops::conv::{Conv, PerAxis};
pub use ops::key::Key;
pub use ops::loss::{CrossEntropy, Ctc, Reduction};
pub use ops::pool::Pool;
pub use ops::region::{Known, checkpoint, custom_vjp};
pub use ops::repeat::{Iteration, Repeat};
pub use ops::resample::{Coordinates, Interpolation, Resample, Rounding};
pub use ops::roi::RoiAlign;
pub use ops::sample::{GridSample, Outside};
pub use ops::slice::{IntoSlices, Slice, s};
pub use ops::sort::Unique;
pub use ops::storage::{Conversion, PowerRounding};
pub use promotion::{Operand, Weak, promote};
pub use streams::named_scope;
pub use tuned::{Tuned, TunedError, TunedKernel};
