//! The parts of the comparison program, for it and for the criterion benches beside it: workloads, measurement, reports.

pub mod count;
pub mod elementwise;
pub mod extras;
pub mod linear;
pub mod measure;
pub mod network;
pub mod plot;
pub mod reduce;
pub mod report;
pub mod targets;
pub mod workload;
