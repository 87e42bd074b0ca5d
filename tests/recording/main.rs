//! The recording API: what it records, what it refuses and what the recorded graphs compute.
#![forbid(unsafe_code)]

mod eval;
mod numerics;
mod recording;
mod sampling;
