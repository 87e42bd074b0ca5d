//! Gradients: every rule against central finite differences in f64, corners against written values, gradients of gradients,
//! random graphs, refusals, and what all of it costs.
#![forbid(unsafe_code)]

mod against;
mod batch_norm;
mod captures;
mod checkpoints;
mod composed;
mod constants;
mod convolutions;
mod corners;
mod forward;
mod jax;
mod limits;
mod loops;
mod losses;
mod narrow;
mod pytorch;
mod random;
mod regions;
mod rules;
mod scalars;
mod second;
mod zeros;
