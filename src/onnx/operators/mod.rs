//! The operators, by family. Each is a function from a [`Call`](super::call::Call) to its results, written over tensors.

mod activation;
mod arrange;
mod control;
mod convolution;
mod create;
mod elementwise;
mod indexing;
mod linear;
mod normalization;
mod pooling;
mod quantization;
mod reduction;
pub(super) mod table;
