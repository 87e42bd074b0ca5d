//! The operators, by family. Each is a function from a [`Call`](super::call::Call) to its results, written over tensors.

mod activation;
mod arrange;
mod attention;
mod control;
mod convolution;
mod create;
mod elementwise;
mod indexing;
mod linear;
mod loss;
mod normalization;
mod pooling;
mod quantization;
mod reduction;
mod resample;
pub(super) mod table;
