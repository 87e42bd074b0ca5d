//! The command line, by running the binary: results, messages, exit codes, and what is left behind.

mod batch;
mod contract;
mod errors;
mod export;
mod files;
mod grad;
mod grad_loops;
mod hostile;
mod import;
mod interrupted;
mod limits;
mod loops;
mod machine;
mod measure;
mod models;
mod numbering;
mod onnx;
mod packed;
mod plan;
#[allow(dead_code, reason = "shared with another test, which uses all of it")]
#[path = "../onnx/proto.rs"]
mod proto;
mod readme;
mod support;
mod verify;
