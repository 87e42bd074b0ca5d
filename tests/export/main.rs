//! Graphs as ONNX models: what is exported and imported again computes the same.

mod networks;
mod nodes;
mod random;
mod reversed;
mod runtime;
mod same;
