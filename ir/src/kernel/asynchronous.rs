//! Copies to shared memory that run beside the threads that begin them.
//!
//! A copy belongs to a numbered group. Of each element it reads its source when it begins, and where its mask does not hold it
//! writes 0 and reads nothing. What it writes is there once the thread has waited for the group and all threads have passed a
//! barrier behind that: until then nothing may access it. A wait is for all copies of the group that began before it.
//!
//! It is as many elements as its variable has values, next to each other in both memories and 4, 8 or 16 bytes together: one
//! instruction where the addresses are aligned.

use super::{Memory, ValueId};
use crate::index::{IndexExpr, VarId};

/// Numbers of groups are below.
pub const COPY_GROUPS: u32 = 8;

/// See the [module](self).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct AsyncCopy {
    /// The number of its group.
    pub group: u32,
    /// Goes through the elements; belongs to the statement.
    pub var: VarId,
    /// Shared scratch.
    pub to: Memory,
    /// Element offset there.
    pub to_index: IndexExpr,
    /// A parameter that is only read.
    pub from: Memory,
    /// Element offset there.
    pub from_index: IndexExpr,
    /// Optional bool.
    pub mask: Option<ValueId>,
}
