//! Random numbers: draws in their place of a recording and by keys that are named, their distributions, and initial values.
#![forbid(unsafe_code)]

mod against;
mod distributions;
mod initial;
mod keys;
mod masks;
mod recorded;
