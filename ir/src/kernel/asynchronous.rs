//! Copies to shared memory that run beside the threads that begin them.
//!
//! The copies that a thread begins between two `commit`s are a group. Of each element a copy reads its source when it begins, and
//! where its mask does not hold it writes 0 and reads nothing. What it writes is there once the thread has waited for the group and
//! all threads have passed a barrier behind that: until then nothing may access it. `wait n` is for all groups but the latest `n`,
//! so that these go on while what came before is used; copies that no `commit` is behind are in no group, and nothing waits for them.
//!
//! It is as many elements as its variable has values, next to each other in both memories and 4, 8 or 16 bytes together: one
//! instruction where the addresses are aligned.

use super::{Memory, ValueId};
use crate::index::{IndexExpr, VarId};

/// The most groups that a wait may leave under way.
pub const MOST_PENDING_GROUPS: u32 = 7;

/// See the [module](self).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct AsyncCopy {
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
