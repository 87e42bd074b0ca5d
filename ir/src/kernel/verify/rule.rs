//! The rules of the kernel language that a kernel can break.

use super::Example;
use crate::dtype::DType;
use crate::index::VarId;
use crate::kernel::asynchronous::MOST_PENDING_GROUPS;
use crate::kernel::{Access, Bind, Memory, ValueId};
use crate::precision::Precision;
use crate::scalar::{ScalarOp, ScalarTypeError};

/// What is wrong with a kernel.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Rule {
    /// A value has a second definition.
    #[error("%{} is defined twice", .0.0)]
    Redefined(ValueId),
    /// A value is used where its definition does not reach.
    #[error("%{} is used where it is not defined", .0.0)]
    NotDefined(ValueId),
    /// A value, variable, memory or symbol that the kernel's tables lack.
    #[error("there is no {0}")]
    Missing(String),
    /// A value has another dtype than its operation gives or its use wants.
    #[error("%{} is {found}, expected {expected}", .value.0)]
    Dtype {
        /// The value.
        value: ValueId,
        /// The recorded dtype.
        found: DType,
        /// What fits.
        expected: String,
    },
    /// Operands do not fit an operation.
    #[error(transparent)]
    Operands(#[from] ScalarTypeError),
    /// A variable belongs to two statements.
    #[error("i{} belongs to two statements", .0.0)]
    VariableReused(VarId),
    /// A variable is used outside its statement.
    #[error("i{} is used outside its loop", .0.0)]
    VariableScope(VarId),
    /// A length mentions a loop variable.
    #[error("a length mentions i{}", .0.0)]
    LengthOverVariable(VarId),
    /// A parallel loop that is not the only outermost statement.
    #[error("parallel loop i{} is not the only outermost statement", .0.0)]
    ParallelPosition(VarId),
    /// A block loop that is not the only outermost statement.
    #[error("block loop i{} is not the only outermost statement", .0.0)]
    BlockPosition(VarId),
    /// A thread loop that is not in a block loop, or in another thread loop, or under a condition.
    #[error("thread loop i{} is not directly in the block loop: it is outside, in a thread loop, or under a condition", .0.0)]
    ThreadPosition(VarId),
    /// More threads than a block can have.
    #[error("thread loop i{} has up to {threads} iterations, expected at most 1024", .var.0)]
    ThreadCount {
        /// The thread loop.
        var: VarId,
        /// Its largest extent.
        threads: i64,
    },
    /// A barrier that not every thread of a block reaches.
    #[error("a barrier is in a thread loop or outside of the block loop; expected it between thread loops")]
    BarrierPosition,
    /// A store that every thread of a block executes.
    #[error("{0} is written outside of the thread loops, where only registers may be, and in warp loops nothing")]
    UniformWrite(Memory),
    /// Memory of one thread that is used outside of the thread loop that writes it.
    #[error("r{0} is each thread's own, but is used outside of the thread loop that writes it")]
    ThreadScratch(u32),
    /// Two threads of a block can touch one element that one of them writes, without a barrier between.
    #[error("two threads touch one element of {memory} without a barrier between them, {example}")]
    ThreadConflict {
        /// The memory.
        memory: Memory,
        /// Where the second of them is, or nothing where that is just not excluded.
        example: Example,
    },
    /// Lanes and copies need a constant count.
    #[error("the extent of {} loop i{} is not constant", .0.name(), .1.0)]
    ExtentNotConstant(Bind, VarId),
    /// A lanes loop holds something other than unrolled loops.
    #[error("loop i{} inside lanes loop i{}", .inner.0, .lanes.0)]
    InsideLanes {
        /// The lanes loop.
        lanes: VarId,
        /// The loop inside.
        inner: VarId,
    },
    /// A copy loop that does something else.
    #[error("{} loop i{} does not just copy", .0.name(), .1.0)]
    NotACopy(Bind, VarId),
    /// Several lanes write one element.
    #[error("lanes of i{} write one element of {memory}", .lanes.0)]
    LanesCollide {
        /// The lanes loop.
        lanes: VarId,
        /// What is written.
        memory: Memory,
    },
    /// Register scratch whose length is not constant.
    #[error("register scratch r{0} has no constant length")]
    RegisterLength(u32),
    /// A register index that does not become constant plus a lane or as many elements for each lane.
    #[error("register scratch r{scratch} is accessed at an index that unrolling does not make constant")]
    RegisterIndex {
        /// The scratch.
        scratch: u32,
    },
    /// A prefetch of scratch.
    #[error("a prefetch is of {0}, expected a parameter")]
    PrefetchMemory(Memory),
    /// A number of states or values that the monoid does not have.
    #[error("{monoid} accumulates {expected} values, found {found}")]
    States {
        /// Monoid name.
        monoid: &'static str,
        /// How many it has.
        expected: usize,
        /// How many there are.
        found: usize,
    },
    /// A use that the parameter's access mode excludes.
    #[error("p{param} is declared {} but {found}", .access.name())]
    ParamAccess {
        /// The parameter.
        param: u32,
        /// Its declared use.
        access: Access,
        /// What is done.
        found: &'static str,
    },
    /// A constant divisor that is not positive.
    #[error("a divisor is not positive")]
    Divisor,
    /// A warp loop that is not directly in the block loop.
    #[error("warp loop i{} is not directly in the block loop: it is outside, in a warp or thread loop, or under a condition", .0.0)]
    WarpPosition(VarId),
    /// A thread loop in a warp that is not one iteration a thread.
    #[error("thread loop i{} in a warp does not have exactly 32 iterations", .0.0)]
    WarpThreads(VarId),
    /// An extent in a warp loop that depends on the warp.
    #[error("the extent of i{} in a warp loop depends on the warp", .0.0)]
    WarpExtent(VarId),
    /// A clamped variable of a warp, which may differ among warps.
    #[error("i{} is clamped in a warp loop outside of thread loops", .0.0)]
    WarpClamp(VarId),
    /// Scratch of scope `Thread` whose length is not constant.
    #[error("r{0}, of which each thread has a copy, has no constant length")]
    ThreadLength(u32),
    /// Scratch of scope `Thread` that is used where no thread is known.
    #[error("r{0}, of which each thread has a copy, is used outside of the thread loops")]
    ThreadCopy(u32),
    /// A collective in a thread loop, or outside of the group that it is of.
    #[error("a collective is not directly in the {} loop that it is of", if *.warp { "warp" } else { "block" })]
    CollectivePosition {
        /// Whether it is of a warp.
        warp: bool,
    },
    /// A collective on something other than scratch of scope `Thread`.
    #[error("a collective is on {0}, expected scratch of which each thread has a copy")]
    CollectiveMemory(Memory),
    /// A collective of a part of a warp that is not one of several alike.
    #[error("a collective is of each {0} threads of a warp, expected a power of two up to 32")]
    CollectivePart(i64),
    /// A collective of no threads, of more than a block has, or from one that does not take part.
    #[error("a collective is of {threads} threads from thread {from}, expected 1 to 1024 threads and one of them")]
    CollectiveThreads {
        /// Threads of the group.
        threads: i64,
        /// Whose element is broadcast, or the first thread.
        from: i64,
    },
    /// A collective with a monoid of two states.
    #[error("a collective combines by {0}, which has two states")]
    CollectiveMonoid(&'static str),
    /// A contraction inside a lanes loop.
    #[error("a contraction is in lanes loop i{}", .0.0)]
    ContractInLanes(VarId),
    /// A tile of a size that is not constant or not positive.
    #[error("i{} goes along a side of a tile, whose length is not a positive constant", .0.0)]
    TileExtent(VarId),
    /// A contraction into something other than a thread's own scratch.
    #[error("a contraction is accumulated into {0}, expected register, cache or thread scratch or a fragment")]
    TileMemory(Memory),
    /// The tile of a contraction is not a matrix of different elements.
    #[error("the tile in {0} is not a strided matrix of different elements")]
    TileIndex(Memory),
    /// A contraction in a dtype that is none of accumulators.
    #[error("a contraction is accumulated in {0}, expected f32, f64, i32 or i64")]
    Accumulator(DType),
    /// An operand of a contraction that does not convert to the accumulator exactly.
    #[error("an operand of a contraction is {operand}, which does not convert to {accumulator} exactly")]
    ContractOperand {
        /// Dtype of the operand.
        operand: DType,
        /// Dtype that is accumulated in.
        accumulator: DType,
    },
    /// A contraction that reads what it accumulates into.
    #[error("{0} is both the tile and an operand of a contraction")]
    ContractAlias(Memory),
    /// An index of a contraction over the other operand's side of the tile.
    #[error("i{} does not belong to the operand of a contraction that is over it", .0.0)]
    ContractSide(VarId),
    /// A contraction whose blocks have no length.
    #[error("a contraction has blocks of {0} steps, expected at least 1")]
    BlockLength(i64),
    /// A contraction of other operands than f32, or into others, that is not to be exact.
    #[error("a contraction in {0} has operands and a tile of f32")]
    ContractPrecision(Precision),
    /// A contraction that states more than how it rounds its operands.
    #[error("a contraction is exact or in tf32, not {0}")]
    ProductPrecision(Precision),
    /// An approximation that there is none of, or of another number of operands.
    #[error("`{0}` of these operands has no approximation")]
    NotApproximated(ScalarOp),
    /// A contraction of words that are not of i32, or are added up in something else.
    #[error("words of bytes in another dtype, expected i32 for both operands and the tile")]
    ContractWords,
    /// A wait that leaves more groups of copies under way than one may.
    #[error("a wait leaves {0} groups under way, expected at most {MOST_PENDING_GROUPS}")]
    PendingGroups(u32),
    /// A copy beside the threads that is not from a parameter to shared scratch.
    #[error(
        "a copy beside the threads is from {from} to {to}, expected one from a read parameter to shared scratch of its dtype"
    )]
    CopyMemory {
        /// Where from.
        from: Memory,
        /// Where to.
        to: Memory,
    },
    /// A copy beside the threads of a size that no instruction has.
    #[error("a copy beside the threads is of {0} bytes, expected 4, 8 or 16")]
    CopyBytes(i64),
    /// A copy beside the threads of elements that are not next to each other.
    #[error("elements of a copy along i{} are not next to each other", .0.0)]
    CopyStride(VarId),
    /// A copy beside the threads that no thread begins.
    #[error("a copy beside the threads is not in a thread loop")]
    CopyPosition,
    /// A commit or a wait that not every thread of a block reaches.
    #[error("a commit or a wait is in a warp or thread loop or outside of the block loop")]
    WaitPosition,
    /// Memory that is accessed while a copy may write it.
    #[error(
        "{0} is accessed where a copy to it may be under way: behind it there is no wait for its group, or no barrier behind that"
    )]
    CopyPending(Memory),
    /// A fragment whose length is not constant.
    #[error("fragment r{0} has no constant length")]
    FragmentLength(u32),
    /// A tile of a fragment that is not the whole one in its one shape.
    #[error("a tile of fragment {0} is not all of it, row by row and in one shape everywhere")]
    FragmentTile(Memory),
    /// A contraction into a fragment of what one thread has, or of a fragment on the right.
    #[error(
        "a contraction into a fragment reads {0}, expected a parameter, shared scratch or, on the left, a whole fragment"
    )]
    FragmentOperand(Memory),
    /// Swizzled scratch that is not shared.
    #[error("scratch r{0} is swizzled, which only shared scratch can be")]
    Swizzled(u32),
    /// A contraction of swizzled scratch that four warps cannot do together.
    #[error("a contraction reads swizzled {memory}, {what}")]
    SwizzledOperand {
        /// What it reads.
        memory: Memory,
        /// What is missing.
        what: &'static str,
    },
    /// A fragment that is accessed other than as a whole or element by element by the owners.
    #[error("fragment r{0} is accessed other than as a whole or at the element or the row of an `each`")]
    FragmentAccess(u32),
    /// A contraction into a fragment, or an `each` of one, that those who hold it do not execute together.
    #[error("fragment {0} is used outside of the loop of those who hold it together, or in a thread loop")]
    FragmentPosition(Memory),
    /// What all who hold a row would write.
    #[error("an `each` of one column writes {0}, expected fragments: several threads hold each of its elements")]
    ColumnWrite(Memory),
    /// A fold of rows that threads do not share alike.
    #[error("the rows of {0} are folded, whose length is no multiple of 8")]
    FoldColumns(Memory),
    /// A fold into another dtype.
    #[error("elements of {from} are folded into {to}")]
    FoldDtype {
        /// Of the rows.
        from: DType,
        /// Of what they come to.
        to: DType,
    },
    /// An `each` or a fold of something else than a fragment.
    #[error("`each` or `fold` is of {0}, expected a fragment")]
    EachMemory(Memory),
    /// An access can leave its memory.
    #[error("{memory} is accessed outside its length {example}")]
    OutOfBounds {
        /// The memory.
        memory: Memory,
        /// Values for which it is, or none where that is just not excluded.
        example: Example,
    },
    /// Two parallel iterations can touch one element that one of them writes.
    #[error("parallel iterations share an element of p{param} {example}")]
    ParallelConflict {
        /// The parameter.
        param: u32,
        /// Values for which they do, or none where that is just not excluded.
        example: Example,
    },
}
