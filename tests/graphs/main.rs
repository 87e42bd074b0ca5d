//! Whole graphs from recording to a run: loops, sizes that are symbols or that data decides, constants, limits of memory, networks.

mod constants;
mod data_bound;
mod data_bound_random;
mod loop_segments;
mod loops;
mod machine_model;
mod models;
mod rematerialize;
mod runtime_laws;
mod specializations;
mod text_models;
