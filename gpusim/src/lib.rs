//! A GPU that is simulated: PTX is read, decoded once, and executed lane by lane in warps of 32, every access checked.
//!
//! [`Module::parse`] reads what NVRTC makes, [`Device`] holds memory, [`Device::launch`] runs a kernel and gives a [`Report`] of
//! what is wrong and what was counted. Invariants:
//! - Nothing here is unsafe, and no text and no kernel makes it panic: what is not known is an error that names the line.
//! - The same launch with the same options gives the same report and the same bits.
//! - Floating results are those of IEEE 754 with one rounding; approximations are computed in f64 and rounded once, which is
//!   within every error that the PTX manual documents.
//!
//! The parser is our own. Of the crates that read PTX, `ptx-parser` 0.1 and `ptoxide` 0.1 know a fraction of the instructions and
//! rest for years, and `ptx-syntax` 0.5 carries `.version 9.0` but is 126,000 lines with a command line among its dependencies.
//!
//! What orders accesses, for the check of races: barriers of the block, `bar.warp.sync` and other instructions of a warp with their
//! masks, a fence before and after a single (relaxed, volatile or atomic) access with its scope, and waits for asynchronous
//! copies. Lanes of one warp are unordered without such an instruction. What has the scope of a block orders nothing for others, and
//! single accesses race with those of other blocks unless both have a wider one; wider ones all order for the whole device.
//!
//! Asynchronous products of four warps (`wgmma`) multiply when they are issued. What they need is checked beside it: that nobody
//! touches their registers or overwrites what they read before a wait for them, that registers and shared memory which others
//! wrote are fenced, and that the four warps do the same.
//!
//! Copies of whole tiles (`cp.async.bulk.tensor`) arrive in pieces and in an order that the seed says, through the same way to
//! memory; who saw the phase of the barrier (`mbarrier`) that counts their bytes is ordered behind them, and nobody else.
//!
//! How fast it is, `cargo run --release -p tlc-gpusim --example speed` prints.
#![forbid(unsafe_code)]

mod arith;
mod counters;
mod exec;
mod memory;
mod module;
mod program;
mod race;
mod report;
mod syntax;
mod tensor_map;

pub use counters::{Class, Counters, LineCounters, Traffic};
pub use exec::{Argument, Launch, LaunchError, Options, Schedule};
pub use memory::{Device, Footprint, MemoryError, SlotEvent};
pub use module::{Kernel, Module};
pub use report::{Finding, FindingKind, Report, Site};
pub use syntax::{PtxError, SourceLine, Space};
pub use tensor_map::{Swizzle, TENSOR_MAP_BYTES, TensorMap, TensorMapError};
