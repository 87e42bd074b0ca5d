//! The rules of plans, as what says which one is broken, and where.

use std::fmt;

use super::*;
use crate::target::{MAX_GRID_BLOCKS, MOST_GROUP_VALUES};

/// A broken rule of a plan, and where.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{place}{rule}")]
pub struct PlanViolation {
    /// Where.
    pub place: PlanPlace,
    /// What.
    pub rule: PlanRule,
}

/// Where in a plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PlanPlace {
    /// In the tables.
    Tables,
    /// At the declaration of a slot.
    Slot(SlotId),
    /// In a step; `init` steps count first.
    Step(usize),
}

impl fmt::Display for PlanPlace {
    /// Before a rule: rules name their slots themselves.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlanPlace::Step(s) => write!(f, "step {s}: "),
            PlanPlace::Tables | PlanPlace::Slot(_) => Ok(()),
        }
    }
}

/// What is wrong with a plan.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanRule {
    /// A slot, kernel, input, output, constant or symbol that the tables lack.
    #[error("there is no {0}")]
    Missing(String),
    /// Aliases that name each other.
    #[error("{0} is an alias of itself")]
    AliasCycle(SlotId),
    /// An alias that does not fit the bytes it takes.
    #[error("{0} is longer than {1}, whose bytes it takes")]
    AliasLength(SlotId, SlotId),
    /// A part that does not lie inside of its whole, or of a whole that parts do not make up, or whose memory is not the plan's to write.
    #[error("{0} and the other parts of {1} do not make it up, each element once, in the arena or an output")]
    Part(SlotId, SlotId),
    /// A write to a slot that parts make up.
    #[error("{0} is written, but is made up of parts")]
    Whole(SlotId),
    /// Not as many arguments as parameters.
    #[error("{} given, expected {expected}", counted(*.found, "argument"))]
    ArgumentCount {
        /// Parameters of the kernel.
        expected: usize,
        /// Arguments of the launch.
        found: usize,
    },
    /// The dimensions of a matrix's rows or columns do not make up their number, or are none or too many.
    #[error("the dimensions of {0} do not make up its rows and columns, or are not 1 to {max}", max = Strides::MAX_DIMS)]
    Dims(SlotId),
    /// A product with two composite operands, or a composite result.
    #[error("several dimensions in the result or in both operands, expected them in one operand at most")]
    Composite,
    /// Windows whose places and elements are not dimensions that walk their axis, or in a product that may have none.
    #[error("the windows of {0} are not over axes that its dimensions walk, or no operand's of floats on the host")]
    Windows(SlotId),
    /// An argument of another dtype.
    #[error("{slot} holds {found}, expected {expected}")]
    Dtype {
        /// The slot.
        slot: SlotId,
        /// What fits.
        expected: DType,
        /// What it holds.
        found: DType,
    },
    /// An argument of another length.
    #[error("{slot} has length {found}, expected {expected}")]
    Length {
        /// The slot.
        slot: SlotId,
        /// What fits.
        expected: String,
        /// What it has.
        found: String,
    },
    /// Symbol arguments that do not fit the kernel's ranges.
    #[error("symbol argument {position} does not fit {lo}..={hi}")]
    SymbolRange {
        /// Position.
        position: usize,
        /// Smallest value.
        lo: i64,
        /// Largest value.
        hi: i64,
    },
    /// An expression over loop variables where only symbols exist.
    #[error("an expression mentions i{}", .0.0)]
    Variable(VarId),
    /// A slot is read that holds nothing.
    #[error("{0} is read before it is written")]
    Unwritten(SlotId),
    /// A write to the caller's inputs or to constants.
    #[error("{0} is written, but is an input, a constant or a state that is not set")]
    ReadOnly(SlotId),
    /// An `init` step that touches a slot which does not live as long as the executable, or a call's step that writes one
    /// which does.
    #[error("{0} does not live as long as what the step computes is needed")]
    Once(SlotId),
    /// A value that outlives a call has a length that a call decides.
    #[error("{0} lives as long as the executable, but its length depends on symbols")]
    PersistentLength(SlotId),
    /// A slot of less than no elements.
    #[error("{0} has a negative length")]
    NegativeLength(SlotId),
    /// A value is overwritten while it is still needed.
    #[error("{0} is overwritten by {1}, but is read later")]
    AliasLive(SlotId, SlotId),
    /// A launch that is not shared out as its kernel's loops are.
    #[error("kernel {} does not run over the chunks or the grid that the launch says", .0.0)]
    Work(KernelId),
    /// Devices that do not begin with the host, or have another.
    #[error("the host must be the first device, and only it")]
    Devices,
    /// Queues that do not begin with the host's.
    #[error("queue 0 must be the host's")]
    FirstQueue,
    /// A constant that is on another device than the host.
    #[error("{0} is a constant; expected it on the host")]
    ConstantElsewhere(SlotId),
    /// A slot of one device in the bytes of another's.
    #[error("{0} and {1} share bytes on two devices")]
    AliasElsewhere(SlotId, SlotId),
    /// Another number of turns than of steps.
    #[error("{0} turns for {1} steps")]
    Turns(usize, usize),
    /// A wait for a step, by its number in the call, of one that comes no later: that of the second number.
    #[error("it waits for step {0} of the call; expected an earlier one than {1}")]
    LaterWait(u32, usize),
    /// A step in a queue of the first device that runs on the second.
    #[error("it is in a queue of device {found}; expected one of device {expected}", found = .0.0, expected = .1.0)]
    OtherQueue(DeviceId, DeviceId),
    /// A kernel over a grid on a host, or one without on a GPU.
    #[error("kernel {kernel} cannot run on a {device}", kernel = .0.0, device = .1.name())]
    KernelOn(KernelId, DeviceKind),
    /// A slot that is not on the device which a step runs on.
    #[error("{slot} is not on device {device}", slot = .0, device = .1.0)]
    OtherDevice(SlotId, DeviceId),
    /// Two steps that may run at once touch the same bytes, one of them writing.
    #[error("{0} may be touched while step {1} is at it, and one of them writes")]
    Unordered(SlotId, usize),
    /// A kernel that cannot run in place is asked to.
    #[error("{0} and {1} share bytes, but not each element is read before it is written")]
    NotInPlace(SlotId, SlotId),
    /// An input offered to an output that cannot take its bytes.
    #[error("output {1} cannot be computed in the bytes of input {0}")]
    Donation(u32, u32),
    /// Launches of one group that touch the same bytes, one of them writing.
    #[error("two launches of the group touch {0}, and one writes it")]
    GroupConflict(SlotId),
    /// Launches that are not one launch of a GPU: they have too many blocks together, or are given too many values.
    #[error("a group of {0} blocks, given {1} values; expected at most {most} blocks and {values} values", most = MAX_GRID_BLOCKS, values = MOST_GROUP_VALUES)]
    GroupSize(i64, usize),
    /// Launches that one block cannot do in turn: fewer than two, or of too many blocks.
    #[error("a sequence of {0} launches, up to {1} blocks together; expected at least 2 and at most {most}", most = MOST_SEQUENCE_BLOCKS)]
    Sequence(usize, i64),
    /// A kernel behind a product that does not go along its result as said.
    #[error("the epilogue does not go along the lines of {0} as it says")]
    Epilogue(SlotId),
    /// A kernel that is not what a library of products computes behind a product.
    #[error("the epilogue of {0} is not what it is to a library of products")]
    LibraryEpilogue(SlotId),
    /// A value that is to pass from product to product within a step, and does not, line by line.
    #[error("{0} is passed on within a step; expected it between two products, whole rows at a time, and nowhere else")]
    Passed(SlotId),
    /// A matrix product that leaves its slot.
    #[error("the product accesses {0} outside its length")]
    OutOfBounds(SlotId),
    /// A loop that does not fit its body.
    #[error("the loop: {0}")]
    Loop(String),
    /// A rule that a loop's body breaks.
    #[error("the body @{0}: {1}")]
    Body(String, Box<PlanViolation>),
    /// A host function that does not fit its operands.
    #[error("the call: {0}")]
    Call(String),
    /// Two slots that are live together overlap in the arena.
    #[error("{0} and {1} overlap in the arena")]
    Overlap(SlotId, SlotId),
    /// An arena slot without a place, or outside the arena, or not aligned.
    #[error("{0} has no aligned place inside the arena")]
    Place(SlotId),
}

/// `1 argument`, `2 arguments`.
pub(super) fn counted(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}
