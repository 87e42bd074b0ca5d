//! An x86-64 processor that is evaluated: code is decoded from its bytes and executed, every access checked.
//!
//! [`Machine::new`] takes [`Memory`], a list of regions, and code; [`Machine::call`] runs a function of it until it returns. It is for tests of the
//! compiler's own code, of all its levels on every machine, so it knows the instructions that the compiler writes, and no others. Invariants:
//! - Nothing here is unsafe, and no code makes it panic: an instruction, or a form of one, that is not known is a [`Fault`] that names it. None is
//!   passed over.
//! - An access touches what the processor's would, in one region that allows it; lanes that a mask leaves out are not touched. What is
//!   neither is a [`Fault`].
//! - Results are those of a processor in its default mode (rounding to the nearest, ties to even; subnormals are numbers; no exception is
//!   taken), bit for bit: which NaN it is, too. Nothing of it depends on the machine that it runs on.
//! - What an instruction leaves undefined of the flags is undefined here: to read it is a [`Fault`].
//!
//! The meaning is that of Intel's Software Developer's Manual, volume 2. `tests/instructions.rs` holds each instruction that the compiler writes to
//! the processor, where the machine has it.
#![forbid(unsafe_code)]

mod fault;
mod float;
mod general;
mod machine;
mod memory;
mod state;
mod vector;

/// The decoder, whose names instructions have.
pub use iced_x86;

pub use fault::{Access, Fault, Refusal};
pub use machine::{Code, Counts, HostFunction, Machine};
pub use memory::{Memory, Permission, Region};
pub use state::{Flag, Flags, State, Vector};
