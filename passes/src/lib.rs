//! Every decision of the compiler, each with its reason.
//!
//! A graph goes through graph-to-graph passes, is clustered into kernels, lowered to loop nests, scheduled, legalized, and
//! assembled into a plan. Nothing here generates code or touches memory.
#![forbid(unsafe_code)]

pub mod access;
pub mod cluster;
pub mod contraction;
pub mod einsum_path;
mod epilogue;
#[cfg(feature = "seeded-faults")]
pub mod faults;
pub mod legalize;
pub mod lower;
pub mod made;
pub mod math;
pub mod memory;
pub mod pipeline;
pub mod planner;
pub mod reason;
pub mod rewrite;
pub mod schedule;

pub use pipeline::{Compiled, Options, PassError, compile};
