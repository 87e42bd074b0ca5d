//! The interface as its users see it: what goes in, what comes out, and what errors say.

mod allocations;
mod calls;
mod float_mode;
mod packed_weights;
mod print;
mod recorded;
