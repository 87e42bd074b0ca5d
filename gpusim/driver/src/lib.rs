//! A CUDA driver without a GPU: the C entry points of NVIDIA's driver over [`tlc_gpusim`].
//!
//! The library that this crate builds is, under the names `libcuda.so.1` and `libcuda.so`, a driver to any program that loads PTX.
//! `tests/gpu/with-simulator CMD...` builds it and runs a command with it.
//!
//! - Streams are threads, and do their operations some time after they were asked for. Operations of several devices and streams
//!   are done one kernel at a time for each device.
//! - Kernels are checked as [`tlc_gpusim`] does: memory, races, barriers. Operations are checked among each other: which bytes each
//!   accesses is known, and vector clocks over streams, events, edges of graphs and waits of the host say which are ordered. Two
//!   that are not, one of them writing, are a finding `unordered` that names both, in every run. What the host does with pinned
//!   memory on its own is not seen. Atomic operations count as writes.
//! - A finding is printed, and makes the context fail with `CUDA_ERROR_ILLEGAL_ADDRESS`, as it would be without luck.
//! - Memory takes as much of the host's as is used, by chunks of 64 KiB. Addresses are not used again, so that accesses after
//!   `cuMemFree` are found. Bytes that nobody wrote may not be used, nor copied to the host.
//! - Memory of another device is reached by who was given access: `cuCtxEnablePeerAccess` for what `cuMemAlloc` made, `cuMemPoolSetAccess`
//!   for what is of a pool. Without it `cuMemcpyPeerAsync` goes through the host, which the summary counts apart, and other copies between
//!   devices are refused.
//! - Programs that hand out parts of their allocations announce them: see [`tlcSimSlots`]. [`tlcSimReport`] says what was found.
//!
//! What the environment asks for:
//!
//! | variable | value |
//! |---|---|
//! | `TLC_SIM_DEVICE` | `h200` (if it is not set), `a100`, `laptop-4gib`, or a file like those in `devices/`; several by commas |
//! | `TLC_SIM_MEMORY` | bytes of memory of each device, in place of the description's |
//! | `CUDA_VISIBLE_DEVICES` | which of the devices there are, by numbers, as for a real driver |
//! | `TLC_SIM_PEERS` | `off`: no device can reach the memory of another, so that copies between them go through the host |
//! | `TLC_SIM_SEED` | other than 0: random delays of streams, random orders of graphs, the seed of random schedules, and other times at which the pieces of copied tiles arrive |
//! | `TLC_SIM_SCHEDULE` | the order of warps: `round-robin`, `random` or `adversarial` |
//! | `TLC_SIM_PATIENCE` | instructions of warps without progress after which a launch is a deadlock |
//! | `TLC_SIM_CHECKS` | `off`: nothing is checked but bounds, as a real device would |
//! | `TLC_SIM_ON_FINDING` | `continue`: findings are noted, and nothing fails |
//! | `TLC_SIM_FINDINGS` | a file that findings are appended to, a line of JSON each |
//! | `TLC_SIM_COUNTERS` | a file that the counters of launches are appended to, a line of JSON each, in which those of single lines of the source are, too |
//! | `TLC_SIM_REPORT` | a file that what [`tlcSimReport`] says is appended to when the process ends |
//! | `TLC_SIM_FAULT` | faults, by commas, each at its N-th occasion from 1: `alloc:N` no memory, `launch:N` a launch that fails (719), `illegal-address:N` (700), `ecc:N` (214), `device-lost:N` (46); `driver:12.4` a driver of that version |
//! | `TLC_SIM_LIB` | for `tests/gpu/with-simulator`: the built library |
//!
//! An error in a launch stays: everything returns it until the primary context is released, and that of memory (214) and of a lost
//! device (46) for ever.
//!
//! What is unlike a real device: kernels take 32 registers each, as occupancy counts them; times between events are those of the
//! simulator; no kernel reaches the memory of the host or of another device, for access to that serves copies alone; a binary is `CUDA_ERROR_NO_BINARY_FOR_GPU`.
#![allow(
    non_snake_case,
    non_camel_case_types,
    clippy::upper_case_acronyms,
    reason = "the names are those of NVIDIA's header"
)]

mod capture;
mod clock;
mod description;
mod driver;
mod entry;
mod history;
mod machine;
mod pool;
mod product;
mod report;
mod result;
mod run;
mod settings;
mod stream;
mod work;

pub use entry::*;
pub use result::*;
