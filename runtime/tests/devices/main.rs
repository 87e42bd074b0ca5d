//! Plans on several devices and over states that live between calls, on simulated devices.

mod plans;
mod resident_states;
mod states;
