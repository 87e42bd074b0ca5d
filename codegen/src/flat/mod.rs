//! The lowered form under every emitter: one legal, scheduled kernel as flat SSA in a tree of control.
//!
//! Invariants, which [`verify`](verify::verify) checks:
//! - Control is a tree of loops and ifs, without jumps. What changes in a loop is carried explicitly ([`Carry`]), what an if
//!   changes is merged explicitly ([`Merge`]); register scratch is gone. Inside, each value has one definition that dominates
//!   its uses.
//! - A value is a scalar or a vector of so many lanes ([`ValueInfo::lanes`]); what a vector cannot hold, or the emitter cannot do
//!   on all lanes at once, became a scalar for each lane. Unrolled loops are copied out. So emitters see straight code.
//! - Index arithmetic is on scalar i64 values, folded and shared, and stands in front of the outermost serial loop that it does
//!   not change in. Each has a range, by which an emitter may compute in fewer bits.
//! - An [`Address`] is in elements: only an emitter makes bytes. It is a uniform part, a varying part and a constant.
//! - Each value knows with which bound loops it varies ([`Varies`]), perhaps with more than it really does; one that varies
//!   with none is uniform. A barrier stands where all conditions and extents around it do not vary with warp or thread.
//! - Accesses that the emitter does not mask itself became ifs.
//!
//! What the emitter has is asked of its [`Capability`].

mod access;
mod accumulate;
mod build;
mod check;
mod counters;
mod index;
mod multiply;
mod print;
mod prune;
pub(crate) mod range;
mod registers;
mod repeated;
mod statements;
mod tiles;
mod turn;
mod verify;

use smallvec::SmallVec;
use tlc_ir::index::{IndexExpr, Interval};
use tlc_ir::kernel::{CollectiveKind, Memory};
use tlc_ir::target::{Emitter, Support, Width};
use tlc_ir::{DType, Kernel, Precision, Scalar, ScalarOp};

pub use build::flatten;
pub use counters::{CounterUse, counter_uses};
pub use tiles::MOST_GROUPS;
pub use verify::verify;

/// A value of a [`Flat`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Value(pub u32);

/// A set of bound loops.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Varies(u8);

impl Varies {
    /// No loop: uniform.
    pub const NOTHING: Varies = Varies(0);
    /// The loop over blocks.
    pub const BLOCK: Varies = Varies(1);
    /// Loops over warps.
    pub const WARP: Varies = Varies(2);
    /// Loops over threads.
    pub const THREAD: Varies = Varies(4);
    /// Loops over lanes: the value is a vector.
    pub const LANES: Varies = Varies(8);

    /// Loops that either set has.
    #[must_use]
    pub const fn and(self, other: Varies) -> Varies {
        Varies(self.0 | other.0)
    }

    /// The loops of the set that the other has not.
    #[must_use]
    pub const fn but(self, other: Varies) -> Varies {
        Varies(self.0 & !other.0)
    }

    /// Whether the set has none.
    pub const fn is_uniform(self) -> bool {
        self.0 == 0
    }

    /// Whether both sets have some loop.
    pub const fn meets(self, other: Varies) -> bool {
        self.0 & other.0 != 0
    }
}

/// An element of memory, or the first of several.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Address {
    /// Which memory.
    pub memory: Memory,
    /// The part of the element's number that is uniform.
    pub uniform: Option<Value>,
    /// The part that varies.
    pub varying: Option<Value>,
    /// The rest.
    pub constant: i64,
}

/// Which elements, counted from an address, the lanes of a vector access. Empty for the access of a scalar.
pub type Offsets = SmallVec<[u8; 16]>;

/// What a value is.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Op {
    /// A symbol of the kernel.
    Symbol(u32),
    /// The counter of a loop.
    Counter,
    /// What a loop carries, in its body.
    Carried,
    /// What a loop or an if leaves behind.
    Outcome,
    /// Anything: what registers hold before they are written.
    Undefined,
    /// A constant.
    Const(Scalar),
    /// `constant + Σ coefficient * term`, terms that change in outer loops first.
    Sum {
        /// Terms with their coefficients.
        terms: SmallVec<[(Value, i64); 2]>,
        /// The rest.
        constant: i64,
    },
    /// A product of indices.
    Product(SmallVec<[Value; 2]>),
    /// The floored quotient; a divisor below 1 counts as 1, since it can only occur where nothing runs.
    FloorDiv(Value, Value),
    /// The remainder to that.
    FloorMod(Value, Value),
    /// The smaller index.
    Smaller(Value, Value),
    /// The larger index.
    Larger(Value, Value),
    /// Data as an index: `max(0, min(data, last))`.
    Clamp {
        /// The data, an i64.
        data: Value,
        /// The largest index.
        last: Value,
    },
    /// In each lane the first lane's scalar and so many steps as lanes before, wrapped.
    Series {
        /// What the first lane holds.
        first: Value,
        /// From lane to lane.
        step: i64,
    },
    /// An element, or one for each lane; zero without a read where the mask is false.
    Load {
        /// Of lane 0, or the lowest one that lanes access.
        address: Address,
        /// Of the lanes.
        offsets: Offsets,
        /// A bool.
        mask: Option<Value>,
    },
    /// In each lane the element that lies so many behind the address; zero without a read where the mask is false.
    Gather {
        /// What lanes count from.
        address: Address,
        /// How far behind it the element of each lane lies, an i32.
        at: Value,
        /// A bool.
        mask: Option<Value>,
    },
    /// A scalar operation, on scalars or in each lane. Shifts take their amount, and `select` may take its condition, as a scalar
    /// for all lanes.
    Map(ScalarOp, SmallVec<[Value; 3]>),
    /// Whether either of two floats is NaN.
    Unordered(Value, Value),
    /// `x 2^floor(n)` of two f32, rounded once ([`tlc_ir::kernel::scale`]).
    Scale(Value, Value),
    /// A scalar operation on f32 by the device's own approximation ([`tlc_ir::kernel::Op::Approximate`]).
    Approximate(ScalarOp, SmallVec<[Value; 3]>),
    /// The value in another dtype.
    Convert(Value),
    /// The same bits in another dtype of that width. None of the two is bool, and no bits are dropped.
    Bitcast(Value),
    /// A scalar in all lanes.
    Splat(Value),
    /// A scalar for each lane.
    Pack(SmallVec<[Value; 4]>),
    /// The scalar of one lane.
    Lane(Value, u8),
    /// Some lanes of a wider vector, from that one on.
    Part(Value, u8),
    /// The first vector with another scalar in one lane.
    Insert(Value, Value, u8),
    /// Lanes of two vectors of 8 or 16 lanes of 32 bits, in another order.
    Interleave(Value, Value, Interleaving),
    /// Whether a mask is true in some lane.
    AnyLane(Value),
    /// Whether a mask is true in all lanes.
    AllLanes(Value),
    /// A u32 that has the truth of a mask's lane `i` in bit `i`.
    LaneBits(Value),
    /// A bool: whether a bit of a u32 is set.
    Bit(Value, u8),
}

/// Which lanes of two vectors of two or four parts of 128 bits come next to each other.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Interleaving {
    /// In each part the first two lanes of both vectors, in turn.
    FirstLanes,
    /// In each part the last two lanes of both vectors, in turn.
    LastLanes,
    /// In each part the first two lanes of the first vector, then those of the second.
    FirstPairs,
    /// In each part the last two lanes of the first vector, then those of the second.
    LastPairs,
    /// The parts of even number of the first vector, then those of the second.
    EvenParts,
    /// The parts of odd number of the first vector, then those of the second.
    OddParts,
}

impl Interleaving {
    /// The spelling in text.
    pub const fn name(self) -> &'static str {
        match self {
            Interleaving::FirstLanes => "first_lanes",
            Interleaving::LastLanes => "last_lanes",
            Interleaving::FirstPairs => "first_pairs",
            Interleaving::LastPairs => "last_pairs",
            Interleaving::EvenParts => "even_parts",
            Interleaving::OddParts => "odd_parts",
        }
    }
}

impl Op {
    /// Whether the value is there before anything runs, so that it has no place.
    fn is_placeless(&self) -> bool {
        self.is_constant() || matches!(self, Op::Symbol(_))
    }

    /// Whether an emitter makes the value out of nothing.
    fn is_constant(&self) -> bool {
        matches!(self, Op::Const(_) | Op::Undefined)
    }

    /// Whether the value is made by index arithmetic; what else is an i64 is data.
    pub fn is_index(&self) -> bool {
        match self {
            Op::Symbol(_)
            | Op::Counter
            | Op::Sum { .. }
            | Op::Product(_)
            | Op::FloorDiv(..)
            | Op::FloorMod(..)
            | Op::Smaller(..)
            | Op::Larger(..)
            | Op::Clamp { .. } => true,
            Op::Carried
            | Op::Outcome
            | Op::Undefined
            | Op::Const(_)
            | Op::Series { .. }
            | Op::Load { .. }
            | Op::Gather { .. }
            | Op::Map(..)
            | Op::Unordered(..)
            | Op::Scale(..)
            | Op::Approximate(..)
            | Op::Convert(_)
            | Op::Bitcast(_)
            | Op::Splat(_)
            | Op::Pack(_)
            | Op::Lane(..)
            | Op::Part(..)
            | Op::Insert(..)
            | Op::Interleave(..)
            | Op::AnyLane(_)
            | Op::AllLanes(_)
            | Op::LaneBits(_)
            | Op::Bit(..) => false,
        }
    }

    /// Calls `f` on every operand, addresses' parts included.
    pub fn operands(&self, mut f: impl FnMut(Value)) {
        match self {
            Op::Symbol(_) | Op::Counter | Op::Carried | Op::Outcome | Op::Undefined | Op::Const(_) => {}
            Op::Sum { terms, .. } => terms.iter().for_each(|t| f(t.0)),
            Op::Product(factors) => factors.iter().copied().for_each(f),
            Op::Map(_, args) | Op::Approximate(_, args) => args.iter().copied().for_each(f),
            Op::Pack(lanes) => lanes.iter().copied().for_each(f),
            Op::FloorDiv(a, b)
            | Op::FloorMod(a, b)
            | Op::Smaller(a, b)
            | Op::Larger(a, b)
            | Op::Unordered(a, b)
            | Op::Scale(a, b)
            | Op::Insert(a, b, _)
            | Op::Interleave(a, b, _)
            | Op::Clamp { data: a, last: b } => [*a, *b].into_iter().for_each(f),
            Op::Load { address, mask, .. } => address.parts().chain(*mask).for_each(f),
            Op::Gather { address, at, mask } => address.parts().chain([*at]).chain(*mask).for_each(f),
            Op::Series { first: a, .. }
            | Op::Convert(a)
            | Op::Bitcast(a)
            | Op::Splat(a)
            | Op::Lane(a, _)
            | Op::Part(a, _)
            | Op::AnyLane(a)
            | Op::AllLanes(a)
            | Op::LaneBits(a)
            | Op::Bit(a, _) => f(*a),
        }
    }

    /// Calls `f` on every operand, to rename it.
    fn operands_mut(&mut self, f: &mut dyn FnMut(&mut Value)) {
        match self {
            Op::Symbol(_) | Op::Counter | Op::Carried | Op::Outcome | Op::Undefined | Op::Const(_) => {}
            Op::Sum { terms, .. } => terms.iter_mut().for_each(|t| f(&mut t.0)),
            Op::Product(factors) => factors.iter_mut().for_each(f),
            Op::Map(_, args) | Op::Approximate(_, args) => args.iter_mut().for_each(f),
            Op::Pack(lanes) => lanes.iter_mut().for_each(f),
            Op::FloorDiv(a, b)
            | Op::FloorMod(a, b)
            | Op::Smaller(a, b)
            | Op::Larger(a, b)
            | Op::Unordered(a, b)
            | Op::Scale(a, b)
            | Op::Insert(a, b, _)
            | Op::Interleave(a, b, _)
            | Op::Clamp { data: a, last: b } => {
                f(a);
                f(b);
            }
            Op::Load { address, mask, .. } => {
                address.parts_mut().for_each(&mut *f);
                mask.iter_mut().for_each(f);
            }
            Op::Gather { address, at, mask } => {
                address.parts_mut().for_each(&mut *f);
                f(at);
                mask.iter_mut().for_each(f);
            }
            Op::Series { first: a, .. }
            | Op::Convert(a)
            | Op::Bitcast(a)
            | Op::Splat(a)
            | Op::Lane(a, _)
            | Op::Part(a, _)
            | Op::AnyLane(a)
            | Op::AllLanes(a)
            | Op::LaneBits(a)
            | Op::Bit(a, _) => f(a),
        }
    }
}

impl Address {
    /// The parts that are values.
    pub fn parts(&self) -> impl Iterator<Item = Value> {
        self.uniform.into_iter().chain(self.varying)
    }

    fn parts_mut(&mut self) -> impl Iterator<Item = &mut Value> {
        self.uniform.iter_mut().chain(&mut self.varying)
    }
}

/// What is known of a value.
#[derive(Clone, PartialEq, Debug)]
pub struct ValueInfo {
    /// What it is.
    pub op: Op,
    /// Its type, or that of each lane.
    pub dtype: DType,
    /// Lanes of a vector; 1 for a scalar.
    pub lanes: u32,
    /// The bound loops that it may vary with.
    pub varies: Varies,
    /// Holds the value if it is an index.
    pub range: Interval,
    /// Control around its definition, and the region that it is in.
    level: u32,
    region: u32,
}

/// What runs one after another.
pub type Region = Vec<Item>;

/// One thing that runs.
#[derive(Clone, PartialEq, Debug)]
pub enum Item {
    /// Defines a value.
    Let(Value),
    /// Writes an element, or one for each lane, where the mask is true or absent.
    Store {
        /// Of lane 0, or the lowest one that lanes access.
        address: Address,
        /// Of the lanes.
        offsets: Offsets,
        /// What.
        value: Value,
        /// A bool.
        mask: Option<Value>,
    },
    /// Copies a block of memory.
    Copy(Box<BlockCopy>),
    /// Repeats.
    Loop(Box<Loop>),
    /// Chooses.
    If(Box<If>),
    /// Waits for all threads of a block.
    Barrier,
    /// What the threads of a warp compute together, or each so many of them.
    Collective {
        /// What is done.
        kind: CollectiveKind,
        /// How many threads.
        threads: i64,
        /// The element of each thread's copy.
        address: Address,
    },
    /// What the threads of a warp multiply together, by matrix instructions that the emitter has.
    Multiply(Box<Multiply>),
    /// Has the cache line of an element fetched, which need not exist.
    Prefetch(Address),
    /// Copies elements to shared memory beside the threads.
    CopyAsync(Box<AsyncCopy>),
    /// Copies a tile of a matrix to swizzled memory beside the threads, once for a block.
    CopyTile(Box<TileCopy>),
    /// The copies that each thread has begun since the last one are its next group.
    Commit,
    /// Waits until at most so many groups of each thread, the latest ones, are under way.
    Wait(u32),
}

/// A matrix in shared memory, one operand of a [`Multiply`].
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct MatrixOperand {
    /// The first element.
    pub first: Address,
    /// Elements from one row of the result to the next for the left operand, from one column to the next for the right one.
    pub across: i64,
    /// Elements from one step of the sum to the next.
    pub along: i64,
    /// A power of two that the number of the first element is a multiple of.
    pub multiple: i64,
    /// Where the matrix lies in swizzled memory: elements from one stretch of it that is as wide as such a row to the next one, along
    /// whichever of its sides lies together.
    pub swizzled: Option<i64>,
}

/// The left operand of a [`Multiply`].
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum LeftOperand {
    /// In shared memory.
    Shared(MatrixOperand),
    /// What the threads of the warp hold, placed as accumulators are.
    Held(Memory),
}

/// As [`tlc_ir::kernel::Contract`], into what the threads of a warp hold together.
#[derive(Clone, PartialEq, Debug)]
pub struct Multiply {
    /// The accumulators.
    pub dst: Memory,
    /// Rows, columns and steps of the sum.
    pub extents: [i64; 3],
    /// `left[m, k]`.
    pub left: LeftOperand,
    /// `right[k, n]`.
    pub right: MatrixOperand,
    /// How exactly they are multiplied.
    pub precision: Precision,
}

impl Multiply {
    /// The operands that lie in shared memory, the left one first.
    pub fn shared(&self) -> impl Iterator<Item = &MatrixOperand> {
        let left = match &self.left {
            LeftOperand::Shared(left) => Some(left),
            LeftOperand::Held(_) => None,
        };
        left.into_iter().chain([&self.right])
    }

    /// The operands that lie in shared memory, to change them.
    pub fn shared_mut(&mut self) -> impl Iterator<Item = &mut MatrixOperand> {
        let left = match &mut self.left {
            LeftOperand::Shared(left) => Some(left),
            LeftOperand::Held(_) => None,
        };
        left.into_iter().chain([&mut self.right])
    }
}

/// As [`tlc_ir::kernel::AsyncCopy`].
#[derive(Clone, PartialEq, Debug)]
pub struct AsyncCopy {
    /// How many elements lie together.
    pub elements: i64,
    /// The first one written.
    pub to: Address,
    /// The first one read.
    pub from: Address,
    /// A bool; where it does not hold, zeros are written and nothing is read.
    pub mask: Option<Value>,
}

/// Matrices in memory of which [tiles](TileCopy) are copied: a parameter, all of it, in rows one after another.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct TiledMatrix {
    /// Number of the parameter.
    pub param: u32,
    /// Type of its elements.
    pub dtype: DType,
    /// How many matrices follow each other, over the kernel's symbols. A tile is of one of them, and has nothing of the rows of the next.
    pub count: IndexExpr,
    /// Rows of each, over the kernel's symbols.
    pub rows: IndexExpr,
    /// Columns.
    pub columns: i64,
    /// Rows and columns of a tile; these are as many bytes as a row of swizzled memory.
    pub tile: [i64; 2],
}

impl TiledMatrix {
    /// Whether there are several, of which a [`TileCopy`] names one.
    pub fn is_one_of_several(&self) -> bool {
        !self.count.is(1)
    }
}

/// The copy of a tile of a matrix to as many rows of swizzled memory. Of elements outside of the matrix zeros are written.
#[derive(Clone, PartialEq, Debug)]
pub struct TileCopy {
    /// The first element written.
    pub to: Address,
    /// Which of [`Flat::matrices`].
    pub matrix: usize,
    /// Which of the matrices that follow each other there, an index; none where there is one.
    pub number: Option<Value>,
    /// The first row, an index.
    pub row: Value,
    /// The first column, an index.
    pub column: Value,
    /// A bool; where it does not hold, zeros are written and nothing is read.
    pub mask: Option<Value>,
}

impl TileCopy {
    /// The values that it uses.
    pub fn parts(&self) -> impl Iterator<Item = Value> {
        let place = self.number.into_iter().chain([self.row, self.column]);
        self.to.parts().chain(place).chain(self.mask)
    }
}

/// As [`tlc_ir::kernel::CopyNest`]; the sizes are indices in elements.
#[derive(Clone, PartialEq, Debug)]
pub struct BlockCopy {
    /// The first element written.
    pub to: Address,
    /// Elements from one row of it to the next.
    pub to_pitch: Value,
    /// The first element read.
    pub from: Address,
    /// Elements from one row of it to the next.
    pub from_pitch: Value,
    /// Rows that are written.
    pub rows: Value,
    /// Elements of such a row.
    pub columns: Value,
    /// Whether rows are read from columns.
    pub transposed: bool,
    /// Whether it writes past the caches.
    pub streaming: bool,
}

/// How a loop runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LoopKind {
    /// One iteration after another.
    Serial,
    /// The iterations of the launch, of which a call gets a part.
    Parallel,
    /// One per block.
    Block,
    /// One per warp of a block.
    Warp,
    /// One per thread.
    Thread,
}

impl LoopKind {
    /// The spelling in text.
    pub const fn name(self) -> &'static str {
        match self {
            LoopKind::Serial => "serial",
            LoopKind::Parallel => "parallel",
            LoopKind::Block => "block",
            LoopKind::Warp => "warp",
            LoopKind::Thread => "thread",
        }
    }
}

/// A loop; only a serial one carries anything.
#[derive(Clone, PartialEq, Debug)]
pub struct Loop {
    /// How it runs.
    pub kind: LoopKind,
    /// Runs through `0..extent`.
    pub counter: Value,
    /// How often it runs.
    pub extent: Value,
    /// What changes from one iteration to the next.
    pub carried: Vec<Carry>,
    /// What is repeated.
    pub body: Region,
}

/// A value that changes in a loop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Carry {
    /// Before the first iteration.
    pub initial: Value,
    /// In an iteration.
    pub inside: Value,
    /// Behind an iteration.
    pub next: Value,
    /// Behind the loop.
    pub outcome: Value,
}

/// Why an if is there, which says how to lay it out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IfKind {
    /// The kernel has it.
    Plain,
    /// The kernel puts aside what few lanes need.
    Rare,
    /// It guards an access.
    Guard,
}

/// A choice.
#[derive(Clone, PartialEq, Debug)]
pub struct If {
    /// Why it is there.
    pub kind: IfKind,
    /// A scalar bool.
    pub cond: Value,
    /// What runs where it holds.
    pub then: Region,
    /// What runs where it does not.
    pub otherwise: Region,
    /// What differs behind it.
    pub merges: Vec<Merge>,
}

/// A value that an if decides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Merge {
    /// Where the condition holds.
    pub then: Value,
    /// Where it does not.
    pub otherwise: Value,
    /// Behind the if.
    pub outcome: Value,
}

/// A kernel in the lowered form.
#[derive(Clone, PartialEq, Debug)]
pub struct Flat<'k> {
    /// What it was made of; memories and symbols are its.
    pub kernel: &'k Kernel,
    /// Every value.
    pub values: Vec<ValueInfo>,
    /// Where each cache scratch begins in the thread's scratch area, in bytes, for that is how its owner measures it.
    pub scratch_at: Vec<Option<Value>>,
    /// The matrices of which tiles are copied.
    pub matrices: Vec<TiledMatrix>,
    /// What runs.
    pub body: Region,
}

impl Flat<'_> {
    /// What is known of a value.
    pub fn info(&self, v: Value) -> &ValueInfo {
        &self.values[v.0 as usize]
    }

    /// What a value is.
    pub fn op(&self, v: Value) -> &Op {
        &self.info(v).op
    }

    /// The type of a value or of its lanes.
    pub fn dtype(&self, v: Value) -> DType {
        self.info(v).dtype
    }

    /// The bits of numbers that scalars are, if all of them are constants and none a truth value.
    pub fn numbers(&self, scalars: &[Value]) -> Option<Vec<u64>> {
        let bits = |v: &Value| match self.op(*v) {
            Op::Const(c) if c.dtype() != DType::Bool => Some(c.bits()),
            _ => None,
        };
        scalars.iter().map(bits).collect()
    }

    /// The constant that a value is, in all lanes if it has some.
    pub fn constant(&self, v: Value) -> Option<Scalar> {
        match self.op(v) {
            Op::Const(c) => Some(*c),
            Op::Splat(s) => self.constant(*s),
            _ => None,
        }
    }

    /// The integer that an index is.
    pub fn number(&self, v: Value) -> Option<i64> {
        match self.op(v) {
            Op::Const(c) => Some(c.as_i64()),
            _ => None,
        }
    }

    /// Whether a value is known before anything runs, so that no item defines it.
    pub fn is_placeless(&self, v: Value) -> bool {
        match self.op(v) {
            Op::Splat(s) => self.op(*s).is_constant(),
            op => op.is_placeless(),
        }
    }

    /// The terms of an address, outer loops first within each part; sums of terms are taken apart.
    pub fn terms(&self, address: &Address) -> SmallVec<[(Value, i64); 4]> {
        let mut out = SmallVec::new();
        address.parts().for_each(|v| self.terms_of(v, &mut out));
        out
    }

    fn terms_of(&self, v: Value, out: &mut SmallVec<[(Value, i64); 4]>) {
        match self.op(v) {
            Op::Sum { terms, constant: 0 } => {
                for (t, k) in terms {
                    match (k, self.op(*t)) {
                        (1, Op::Sum { .. }) => self.terms_of(*t, out),
                        _ => out.push((*t, *k)),
                    }
                }
            }
            _ => out.push((v, 1)),
        }
    }
}

/// What an emitter has beyond its table, which says what kernels are scheduled for.
pub trait Capability {
    /// Its table.
    fn table(&self) -> &Emitter;

    /// Bits of a vector on the machine at hand; 0 where every lane is a scalar.
    fn vector_bits(&self) -> u32 {
        self.table().vector_bits
    }

    /// Whether an operation is done on all lanes at once. `known` says whether the last operand is a constant.
    fn maps_lanes(&self, op: ScalarOp, on: DType, known: bool) -> bool {
        let shift = matches!(op, ScalarOp::Shl | ScalarOp::Shr);
        self.table().map(op, on, Width::Lanes) == Support::Native && (known || !shift)
    }

    /// Whether one access loads such elements of that type into lanes.
    fn loads_lanes(&self, dtype: DType, offsets: &[u8]) -> bool;

    /// Whether one access stores lanes to such elements of that type.
    fn stores_lanes(&self, dtype: DType, offsets: &[u8]) -> bool;

    /// Whether one access loads elements of that type into lanes whose numbers are in lanes of 32 bits.
    fn gathers_lanes(&self, _: DType) -> bool {
        false
    }

    /// Whether lanes load bytes that data numbers from a table of [`BYTE_TABLE`](tlc_ir::target::BYTE_TABLE) by one operation.
    fn looks_bytes_up(&self) -> bool {
        false
    }

    /// Whether such an access begins at a multiple of as many elements. Memories begin at one.
    fn aligns_lanes(&self) -> bool {
        false
    }

    /// Whether a part of a vector's lanes is taken at once.
    fn takes_parts(&self) -> bool {
        false
    }

    /// Whether it stores the first lanes of a vector sooner by stores of parts than by one under a mask.
    fn stores_parts(&self) -> bool {
        false
    }

    /// Whether it interleaves vectors of so many lanes of that type.
    fn interleaves(&self, _: DType, _: u32) -> bool {
        false
    }

    /// Whether accesses of lanes of that type take a mask that differs among them.
    fn masks_lanes(&self, _: DType) -> bool {
        false
    }

    /// Whether loads of every other element of that type take a mask that differs among lanes.
    fn masks_every_other(&self, _: DType) -> bool {
        false
    }

    /// Whether masks have registers of their own, so that keeping one takes no vector's.
    fn mask_registers(&self) -> bool {
        false
    }

    /// Whether an operation on so many integers that move together is done on words of them, though lanes are scalars otherwise.
    fn maps_words(&self, _op: ScalarOp, _on: DType, _lanes: u32) -> bool {
        false
    }

    /// Whether a conversion of so many integers or bools that move together is done on words of them.
    fn converts_words(&self, _from: DType, _to: DType, _lanes: u32) -> bool {
        false
    }

    /// Whether accesses of a scalar take a mask.
    fn masks_scalars(&self) -> bool;

    /// Whether it copies [tiles](TileCopy) to swizzled memory as a whole.
    fn copies_tiles(&self) -> bool {
        false
    }

    /// Whether it copies blocks of memory as a whole.
    fn copies_blocks(&self) -> bool;
}
