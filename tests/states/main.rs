//! States of the recording library: what calls read and set, what is refused, files, and training on them.
#![forbid(unsafe_code)]

mod accumulate;
mod calls;
mod files;
mod judged;
mod many;
mod networks;
mod packed;
mod players;
mod precision;
mod random;
mod refused;
mod steps;
mod training;
