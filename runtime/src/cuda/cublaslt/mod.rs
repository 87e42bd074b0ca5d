//! cuBLASLt, NVIDIA's library of matrix products, loaded where it is there.
//!
//! Invariants:
//! - Every entry point is looked up before the first call. A library that is absent, of another CUDA or not complete is an error that says so.
//! - Sums are added up by one block of threads in one order: algorithms that split them, or add up by atomic operations, are not asked for,
//!   and refused if they are offered. f32 is multiplied as f32, never as tf32.
//! - The library allocates nothing for a product: it works in memory that it is given.
//! - A shape for which it has no algorithm is multiplied by a kernel of tlc's own (`plain.rs`).
//!
//! Where it is looked for: the file, or the folder that has it, that `TLC_CUBLASLT` names; else the folders that `TLC_NVRTC` names, and the dynamic
//! linker's path. A simulated device has it only where `TLC_CUBLASLT` names the stand-in for it, and a real one never takes that.

mod library;
mod multiplication;
mod plain;
mod shape;
mod value;

pub(super) use library::Library;
pub(super) use multiplication::{Multiplication, Refused};
pub(super) use plain::PlainProduct;
pub(super) use shape::{Places, Shape};
