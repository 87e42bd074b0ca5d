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
mod linear_attention;
mod loops;
mod loss;
pub(super) mod microsoft;
mod ngrams;
mod normalization;
mod pooling;
mod quantization;
mod random;
mod recurrent;
mod reduction;
mod resample;
mod sampling;
pub(super) mod sequences;
mod signal;
mod sorting;
pub(super) mod table;
