//! The operations, as methods of [`Tensor`](crate::Tensor) and [`Graph`](crate::Graph); grouped by what they do.
//!
//! An operation is a node, or a function over other operations ("composite"), written once here and nowhere else. The
//! language of nodes stays small, and passes fuse composites instead of recognizing them.

pub mod activation;
pub mod attention;
pub mod cache;
pub mod conv;
pub mod create;
pub mod elementwise;
pub mod fold;
pub mod index;
pub mod join;
pub mod key;
pub mod linalg;
pub mod loss;
pub mod norm;
pub mod overlap;
pub mod pool;
pub mod random;
pub mod reduce;
pub mod region;
pub mod repeat;
pub mod resample;
pub mod roi;
pub mod sample;
pub mod shape;
pub mod signal;
pub mod slice;
pub mod sort;
pub mod storage;
mod truncated;
