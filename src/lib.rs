//! A lazy tensor-graph compiler: record, optimize, fuse, compile, run and explain.
//!
//! A [`Graph`] records what is called on its [`Tensor`]s. [`Graph::compile`] optimizes the whole graph, fuses it into few loops and
//! compiles those to machine code in milliseconds. The [`Executable`] runs on arrays, slices and scalars:
//!
//! ```
//! use ndarray::{Ix2, array};
//! use tlc::{CompileOptions, DType, Graph, inputs, keep};
//!
//! // Record: nothing is computed yet.
//! let g = Graph::new("row_softmax");
//! let rows = g.symbol("rows", 1..=4096);
//! let x = g.input("x", DType::F32, (&rows, 3));
//! let e = (&x - x.max(keep(-1))).exp();
//! g.output("y", &(&e / e.sum(keep(-1))));
//!
//! // Compile: one kernel, for any number of rows.
//! let softmax = g.compile(&CompileOptions::default())?;
//! assert_eq!(softmax.plan().kernels.len(), 1);
//!
//! // Run: inputs by position or by name, results by name or by position.
//! let x = array![[0.0f32, 0.0, 0.0], [f32::NEG_INFINITY, 1.0, 1.0]];
//! let outputs = softmax.run(&inputs![&x])?;
//! let y = outputs["y"].as_array::<f32, Ix2>()?;
//! assert_eq!(y.row(1), array![0.0, 0.5, 0.5]);
//!
//! // Print: as NumPy does.
//! println!("{}", outputs["y"]);
//! # assert_eq!(
//! #     outputs["y"].to_string(),
//! #     "y: f32[2, 3]\n[[0.33333334 0.33333334 0.33333334]\n [0.         0.5        0.5       ]]"
//! # );
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! prints
//!
//! ```text
//! y: f32[2, 3]
//! [[0.33333334 0.33333334 0.33333334]
//!  [0.         0.5        0.5       ]]
//! ```
//!
//! # Where to go from here
//!
//! | | |
//! |---|---|
//! | [Recording](guide::recording) | tensors, operators, errors, values at once |
//! | [Shapes and symbols](guide::shapes) | sizes that a call gives, slices, sizes that data decides |
//! | [Running and memory](guide::running) | inputs, results, memory of your own, threads |
//! | [Loops](guide::loops) | recurrences, conditions, captures |
//! | [Gradients](guide::gradients) | derivatives of what is recorded, of any order, backwards and forwards; functions over batches; what corners have |
//! | [States and training](guide::states) | values that stay between calls, caches, optimizers, files |
//! | [Random numbers](guide::random) | draws that can be repeated, keys, initial values of parameters |
//! | [Einsum](guide::einsum) | contractions and their order |
//! | [Explain and verify](guide::explaining) | what the compiler decided, and whether it was right |
//! | [ONNX](guide::onnx) | models in files |
//!
//! The operations are methods of [`Tensor`]; [`functions`] has them as functions, [`ops`] by subject.
//!
//! # Features
//!
//! `cli`, on by default, builds the command `tlc`. A program that uses the library turns it off: `default-features = false`.
#![forbid(unsafe_code)]

pub mod guide;
pub mod verify;

pub use tlc_ir::graph::{Monoid, ScatterOp, Semiring};
pub use tlc_ir::target::Products;
pub use tlc_ir::tensor::TensorError;
pub use tlc_ir::{DType, Element, HostTensor, Precision, Scalar};
pub use tlc_onnx as onnx;
pub use tlc_record::{
    Attention, Axes, Broken, BuildError, Cache, CompileOptions, Conv, Conversion, Coordinates, CrossEntropy, Ctc,
    Datum, Device, DeviceOutputs, Dim, Entry, Error, Errors, EvalError, Executable, Graph, GridSample, Input,
    Interpolation, IntoShape, IntoSlices, Iteration, Key, Known, Operand, Output, OutputMut, Outputs, Outside,
    PackedUse, PackedWeights, PackedWeightsError, PerAxis, Pool, PowerRounding, ReadError, Reduction, Repeat, Resample,
    RoiAlign, Rounding, Slice, Specialization, Specialize, State, StateFileError, Tensor, Tuned, TunedError,
    TunedKernel, Unique, UnknownDevice, Verdict, Vmap, Weak, WrongType, broadcast_tensors, checkpoint, compile_ir,
    concat, custom_vjp, einsum, einsum_over, grad, hessian, hvp, inputs, jacobian, jvp, keep, matmul, meshgrid,
    named_scope, outputs, plan_ir, promote, s, stack, value_and_grad, vjp, vmap, where_,
};
pub use tlc_record::{
    autodiff, batch, compile, dim, error, eval, explain, functions, graph, init, machine_model, operators, ops, optim,
    prediction, promotion, tlir, tune,
};
pub use tlc_runtime::cuda::PoolUse;
pub use tlc_runtime::driver::{
    DeviceNeed, DeviceTensor, DlDataType, DlDevice, DlManagedTensor, DlTensor, Download, LoopTime, MemoryNeed,
    RunError, StepTime, TensorView, Watched,
};
pub use tlc_runtime::mmap::MappedFile;
pub use tlc_runtime::pool::default_threads;

/// Files of numbers: `.npy`, `.npz`, safetensors, and the messages of ONNX.
pub use tlc_formats as formats;
/// The languages and their meaning: graphs, kernels, plans, their texts, verifiers and interpreters.
pub use tlc_ir as ir;
/// What decides: [`Executable::decisions`] is in its terms.
pub use tlc_passes as passes;
/// What loads, runs and measures.
pub use tlc_runtime as runtime;
