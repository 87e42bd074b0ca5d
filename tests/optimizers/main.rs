//! Optimizers, schedules, clipping and averages against what PyTorch and NumPy computed (`tests/reference/optimizers.py`), their kernels,
//! their texts and what they refuse.
#![forbid(unsafe_code)]

mod against;
mod curve;
mod curves;
mod kernels;
mod lbfgs;
mod narrow;
mod reference;
mod refused;
