//! Every decision of the compiler, each with its reason.
//!
//! A graph goes through graph-to-graph passes, is clustered into kernels, lowered to loop nests, scheduled, legalized, and
//! assembled into a plan. Nothing here generates code or touches memory.
#![forbid(unsafe_code)]

pub mod access;
pub mod carried_sums;
mod chain;
pub mod cluster;
pub mod contraction;
pub mod devices;
mod direct;
pub mod directive;
pub mod einsum_path;
pub mod emitters;
mod epilogue;
#[cfg(feature = "seeded-faults")]
pub mod faults;
mod grids;
pub mod groups;
mod launch;
pub mod legalize;
mod library_epilogue;
pub mod lower;
pub mod made;
pub mod math;
pub mod memory;
pub mod partition;
pub mod pipeline;
pub mod planner;
pub mod reason;
pub mod rematerialize;
pub mod rewrite;
pub mod schedule;
pub mod segments;
mod sequences;
mod tile;
pub mod tree;
pub mod tuning;
pub mod weight_gradient;

pub use pipeline::{Announce, Compiled, Options, PassError, compile, compile_announcing};

/// Seeds the fault that the variable `TLC_SEEDED_FAULT` names on this thread, where faults can be seeded.
///
/// # Panics
/// If faults can be seeded and there is none of that name.
#[inline]
pub fn seed_fault_from_environment() {
    #[cfg(feature = "seeded-faults")]
    faults::seed_from_environment();
}
