//! Why directives do not apply.

use tlc_ir::DType;
use tlc_ir::index::VarId;
use tlc_ir::kernel::{Scope, ValueId};

use super::{MAX_UNROLL, MOST_STAGES};

/// Why a directive does not apply.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DirectiveRefusal {
    /// No loop has that variable.
    #[error("there is no loop i{}", .0.0)]
    NoLoop(VarId),
    /// No such scratch.
    #[error("there is no scratch {0}")]
    NoScratch(u32),
    /// The two loops are not perfectly nested.
    #[error("loops i{} and i{} are not perfectly nested", .0.0, .1.0)]
    NotNested(VarId, VarId),
    /// An extent depends on the other loop.
    #[error("the extent of i{} depends on i{}", .0.0, .1.0)]
    DependentExtent(VarId, VarId),
    /// The order of iterations matters.
    #[error("iterations of i{} depend on each other", .0.0)]
    Recurrence(VarId),
    /// Vector lanes and registers need a constant extent.
    #[error("the extent of i{} is not a constant up to {}", .0.0, MAX_UNROLL)]
    NotConstant(VarId),
    /// A condition changes between iterations, and lanes would run for all of them what it holds for in one.
    #[error("a condition changes in i{}, and what it leaves out is not masked", .0.0)]
    Conditional(VarId),
    /// No condition changes between a loop's iterations, or so many do that their cases are too much code.
    #[error("no conditions change in i{}, or too many", .0.0)]
    NoCases(VarId),
    /// The iterations of a loop do not read elements of a parameter side by side.
    #[error("iterations of i{} do not read elements of parameter {param} side by side, or not only", .var.0)]
    NoRun {
        /// The loop.
        var: VarId,
        /// The parameter.
        param: u32,
    },
    /// Dividing by an extent that may be zero.
    #[error("the extent of i{} may be zero", .0.0)]
    MayBeEmpty(VarId),
    /// Indices would be divided that were not.
    #[error("i{} and i{} as one would be divided", .0.0, .1.0)]
    Divides(VarId, VarId),
    /// Registers are indexed by unrolled loops and lanes only.
    #[error("loop i{} is neither unrolled nor in lanes, so that registers cannot be indexed by it", .0.0)]
    NotInRegisters(VarId),
    /// A factor below 1.
    #[error("factor {0} is below 1")]
    Factor(i64),
    /// Threads do not move so many neighbours at once: a loop is shorter, or what it touches does not lie along it.
    #[error(
        "there are no {0} neighbours for each thread: a loop is too short, or what it touches does not lie together along it"
    )]
    Neighbours(i64),
    /// Nothing that was tried for such a nest fits it.
    #[error("no division of its loops among blocks and threads fits")]
    NoDivision,
    /// No multiprocessor holds so many blocks, or the kernel has none.
    #[error("a multiprocessor cannot hold {0} blocks of it")]
    Residents(i64),
    /// A parameter is not stored once per iteration, side by side.
    #[error("parameter {param} is not stored side by side in i{}, or not only", .var.0)]
    NotSideBySide {
        /// The loop.
        var: VarId,
        /// The parameter.
        param: u32,
    },
    /// The innermost loop of a nest does not define that value.
    #[error("the loops from i{} on do not compute {}", .0.0, .1)]
    NoValue(VarId, ValueId),
    /// No phase behind computes that value too.
    #[error("no loop behind computes {0} again")]
    NotComputedAgain(ValueId),
    /// Rows are too long for the memory that a GPU block shares.
    #[error("a block would share {bytes} bytes, more than {most}")]
    SharedBytes {
        /// Bytes that it would share.
        bytes: i64,
        /// Bytes that it has.
        most: i64,
    },
    /// No store there walks across rows, or it is not the only one.
    #[error("no single store walks across rows in i{}", .0.0)]
    NoStridedStore(VarId),
    /// No load there walks across rows.
    #[error("no load walks across rows in i{}", .0.0)]
    NoStridedLoad(VarId),
    /// Nothing is accumulated there.
    #[error("nothing is accumulated in i{}", .0.0)]
    NoAccumulation(VarId),
    /// The kernel would be too large.
    #[error("the kernel would have {statements} statements")]
    Statements {
        /// Statements that it would have, legalized and unrolled.
        statements: u64,
    },
    /// The loop does more than to copy.
    #[error("loop i{} does not just copy", .0.0)]
    NotACopy(VarId),
    /// More threads than a GPU block has, or no power of two.
    #[error("a block cannot have {0} threads there")]
    Threads(i64),
    /// The statements around and in a loop cannot be taken apart.
    #[error("loop i{} does not just add up between what can be run apart from it", .0.0)]
    NotASum(VarId),
    /// A loop does not add up products of two operands.
    #[error("loop i{} does not just add up products of what differs in i{} or in i{}, but not in both", .sum.0, .outer.0, .inner.0)]
    NotAProduct {
        /// The loop.
        sum: VarId,
        /// The loop over rows.
        outer: VarId,
        /// The loop over columns.
        inner: VarId,
    },
    /// An operand of a product is computed, not an element of memory.
    #[error("{0} is not an element of memory: it has to be packed first")]
    NotPacked(ValueId),
    /// A contraction cannot accumulate in that dtype.
    #[error("a contraction does not accumulate in {0}")]
    Accumulator(DType),
    /// What a loop reads of a parameter is no box of known size.
    #[error("what i{} reads of parameter {param} is no box that can be copied before it", .var.0)]
    NoRegion {
        /// The loop.
        var: VarId,
        /// The parameter.
        param: u32,
    },
    /// A loop is longer than what is made of it.
    #[error("loop i{} may have more than {most} iterations", .var.0)]
    TooLong {
        /// The loop.
        var: VarId,
        /// The most that it may have.
        most: i64,
    },
    /// Sizes that no tile has, or that are not the tile's.
    #[error("there is no tile of {rows} by {columns} elements there")]
    NoTile {
        /// Rows.
        rows: i64,
        /// Columns.
        columns: i64,
    },
    /// Some elements of a tile would be read before they are set.
    #[error("not all of the tile is set before i{}", .0.0)]
    NotSet(VarId),
    /// Scratch of that kind cannot hold it there.
    #[error("{} scratch cannot hold that there", .0.name())]
    ScratchScope(Scope),
    /// Nothing is known to be inside its memory if a loop around is empty.
    #[error("{0} may be outside of its memory where a loop is empty")]
    MayBeOutside(ValueId),
    /// No matrix instruction multiplies such operands.
    #[error("there is no matrix instruction for {} and {} that adds up {accumulator}", .operands[0], .operands[1])]
    NoMatrixInstruction {
        /// Dtypes of the operands as they are stored.
        operands: [DType; 2],
        /// Dtype of the sums.
        accumulator: DType,
    },
    /// A side is shorter than a tile of matrix instructions.
    #[error("loop i{} is too short for matrix instructions", .0.0)]
    TooShort(VarId),
    /// Rows that do not fill a scratch, or a scratch that does not lie in memory.
    #[error("scratch {0} does not consist of such rows")]
    NoRows(u32),
    /// Nothing of what a loop fills shared memory with can be copied beside the threads.
    #[error("loop i{} does not copy to shared memory, wait, use it and wait", .0.0)]
    NothingToCopy(VarId),
    /// A loop that has too few iterations to fill shared memory that far ahead.
    #[error("loop i{} is not known to have the {least} iterations that are worth {stages} stages", .var.0)]
    FewIterations {
        /// The loop.
        var: VarId,
        /// How many copies of the memory there would be.
        stages: i64,
        /// Iterations that it must have.
        least: i64,
    },
    /// A number of stages that there is no pipeline of.
    #[error("{0} stages, expected 2 to {MOST_STAGES}")]
    Stages(i64),
    /// So much shared memory leaves a multiprocessor a single block, whose threads all wait at its barriers.
    #[error("with {bytes} bytes of shared memory a multiprocessor has {blocks} of its blocks, expected at least 2")]
    FewBlocks {
        /// Bytes that a block would share.
        bytes: i64,
        /// Blocks that a multiprocessor would have.
        blocks: i64,
    },
    /// What one scratch holds is read where the other holds something already, or they do not hold the same number of elements.
    #[error("scratch {scratch} cannot lie where scratch {place} is, which is read where both hold something")]
    ReadLater {
        /// The one that would lie elsewhere.
        scratch: u32,
        /// Where it would.
        place: u32,
    },
    /// Threads touch elements of scratch that others touch too, or in no pattern that is known.
    #[error("threads of a block share elements of scratch {0}")]
    SharedElements(u32),
    /// A thread loop lies in another, or outside the block loop.
    #[error("thread loop i{} is not directly inside a block", .0.0)]
    NotInBlock(VarId),
}
