//! GPUs of NVIDIA: the driver, devices and their memory, kernels that NVRTC compiled.
//!
//! Nothing of it is needed to build tlc or to run what the host computes. The driver and NVRTC are loaded when a device is first asked
//! for, and each thing that may be missing is an [`Unavailable`](crate::error::Unavailable) that says what would help.
//!
//! Invariants:
//! - Every entry point of the driver that is used is in the table of `library.rs`, and looked up before the first call.
//! - The driver, NVRTC and a device's primary context stay until the process ends; all else ends with the executable it is for.
//! - A device that failed in a way that stays says so from then on, and is not asked again.
//!
//! The table is our own. The crate `cudarc` has one too, but panics where a library or an entry point is missing, which here is an
//! error like others; a test compares our signatures with its bindings.

mod cache;
mod compile;
mod context;
mod cublaslt;
mod device;
mod graph;
mod graph_launch;
mod library;
mod matrix_rates;
mod measure;
mod peers;
mod pool;
mod tensor_maps;

pub use cache::{Cached, Entries};
pub use compile::{Form, arch_name, arch_of};
pub use context::{Context, Properties, devices, open};
pub use device::{queued, shared, wait_for};
pub use graph_launch::{GraphLaunch, graph_launch};
pub use matrix_rates::{MatrixRates, matrix_rates};
pub use measure::{Transfers, transfers};
pub use pool::PoolUse;
