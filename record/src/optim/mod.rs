//! Optimizers: what becomes of a parameter and of what is remembered about it, given its gradient.
//!
//! An [`Optimizer`] is a pure function over tensors. [`Optimizer::slots`] says what it remembers of a parameter, [`Optimizer::update`] records
//! the new parameter and the new slots; where they are kept is the program's affair. What is recorded is elementwise where the
//! method is, so that the update of a parameter with all its slots is one kernel.
//!
//! Invariants:
//! - Steps count from 1. What depends on the step alone (rates, corrections of the first steps) is computed in f64.
//! - Parameters of f16 and bf16 are updated in f32, with slots in f32, and rounded once. f64 stays f64. With [`Groups::masters`] the
//!   f32 values themselves go from step to step.
//! - Where PyTorch has an optimizer of the name, the settings are its settings, and so are their defaults; f64 results agree to rounding.
//!   `tests/optimizers` holds each to what PyTorch computed.
//!
//! [`Groups`] gives parameters other settings by their names; [`Schedule`] is a rate that depends on the step; [`clip`] limits gradients and
//! [`average`] keeps means of parameters. [`LossScale`] keeps gradients of f16 from being too small, [`accumulate`] takes a batch part by part,
//! and [`Lbfgs::minimum`] is a whole minimization in one graph.

mod accumulate;
mod adafactor;
mod adagrad;
mod adam;
pub mod average;
pub mod clip;
mod groups;
mod layerwise;
mod lbfgs;
mod line_search;
mod loss_scale;
mod muon;
mod optimizer;
mod rule;
mod schedule;
mod settings;
mod sgd;
mod sign;
mod states;
mod text;

pub use accumulate::{Part, accumulate};
pub use adafactor::Adafactor;
pub use adagrad::{Adadelta, Adagrad, RmsProp};
pub use adam::{AdaBound, Adam, AdamW, Adamax, NAdam, RAdam};
pub use groups::Groups;
pub use layerwise::Lamb;
pub use lbfgs::Lbfgs;
pub use line_search::Minimum;
pub use loss_scale::LossScale;
pub use muon::Muon;
pub use optimizer::Optimizer;
pub use rule::Slot;
pub use schedule::Schedule;
pub use sgd::Sgd;
pub use sign::Lion;
pub use states::{Gradients, STEPS};
pub use text::UnknownOptimizer;
