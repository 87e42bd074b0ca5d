//! Kernels decoded once into compact instructions: registers are numbers, operations are functions on 32 lanes, branches know
//! where their lanes meet again.
//!
//! Constants and special registers are registers too, filled when a frame is made, so that an operand is always one index.

mod alu;
mod alu_float;
mod collective;
mod decode;
mod flow;
mod memory;
mod modifiers;
mod phases;
mod special;
mod touched;
mod warpgroup;
mod watched;

pub(crate) use alu::in_class;

use std::collections::HashMap;

pub(crate) use decode::decode_module;

use crate::arith::convert::Convert;
use crate::arith::int::Permutation;
use crate::arith::small::Finish;
use crate::arith::{Compute, Test, Ty};
use crate::counters::Class;
use crate::syntax::{SourceLine, Space};

/// A register of a frame.
pub(crate) type Reg = u32;

/// A predicate of a frame: a bit a lane.
pub(crate) type Pred = u32;

/// An instruction's index in its function.
pub(crate) type Pc = u32;

/// Where lanes meet again only by leaving the function.
pub(crate) const NEVER: Pc = Pc::MAX;

/// A guard or a predicate operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Guard {
    pub(crate) pred: Pred,
    pub(crate) inverted: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Combine {
    And,
    Or,
    Xor,
}

/// How an access orders others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    Weak,
    /// Single accesses that may race: relaxed and volatile ones.
    Relaxed,
    Acquire,
    Release,
    AcquireRelease,
}

impl Order {
    pub(crate) const fn is_strong(self) -> bool {
        !matches!(self, Order::Weak)
    }

    pub(crate) const fn acquires(self) -> bool {
        matches!(self, Order::Acquire | Order::AcquireRelease)
    }

    pub(crate) const fn releases(self) -> bool {
        matches!(self, Order::Release | Order::AcquireRelease)
    }
}

/// Who sees the effect of an atomic operation or a fence in order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Scope {
    Block,
    Device,
}

/// Where a load or store goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub(crate) space: Space,
    pub(crate) base: Reg,
    pub(crate) offset: i64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Access {
    pub(crate) place: Place,
    /// Bytes of an element.
    pub(crate) bytes: u32,
    /// The registers of the elements; a store's sources, a load's results. `None` is a result that nobody wants.
    pub(crate) registers: Vec<Option<Reg>>,
    /// Bits of the register that a load extends the element's sign to; 0 if it has none.
    pub(crate) sign_to: u32,
    pub(crate) order: Order,
    pub(crate) scope: Scope,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AtomOp {
    And,
    Or,
    Xor,
    Exch,
    Cas,
    Add,
    Inc,
    Dec,
    Min,
    Max,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Atomic {
    pub(crate) place: Place,
    pub(crate) op: AtomOp,
    pub(crate) ty: Ty,
    /// The registers of the old values; a reduction has none.
    pub(crate) results: Vec<Option<Reg>>,
    /// The values, of elements one after another in memory.
    pub(crate) a: Vec<Reg>,
    /// What `cas` puts in place.
    pub(crate) b: Reg,
    pub(crate) order: Order,
    pub(crate) scope: Scope,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shuffle {
    Up,
    Down,
    Butterfly,
    Index,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Vote {
    All,
    Any,
    Uniform,
    Ballot,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Redux {
    Add,
    Min,
    Max,
    And,
    Or,
    Xor,
}

/// What a barrier of a block computes of its threads' predicates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BarrierKind {
    Sync,
    Arrive,
    /// Counts the predicate into a register.
    Count(Reg, Guard),
    /// Whether all or any have it.
    All(Pred, Guard),
    Any(Pred, Guard),
}

/// Elements of a matrix product.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MmaType {
    F16,
    BF16,
    TF32,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Mma {
    pub(crate) k: u32,
    pub(crate) ty: MmaType,
    /// Whether C and whether D are pairs of f16 in place of f32.
    pub(crate) half_c: bool,
    pub(crate) half_d: bool,
    pub(crate) d: Vec<Reg>,
    pub(crate) a: Vec<Reg>,
    pub(crate) b: Vec<Reg>,
    pub(crate) c: Vec<Reg>,
}

/// The left operand of an asynchronous product: in registers, or in shared memory as a descriptor says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Left {
    Registers(Vec<Reg>),
    Memory { descriptor: Reg, transposed: bool },
}

/// `wgmma.mma_async`: a product of 64 by k by n that four warps issue together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct AsyncProduct {
    pub(crate) n: u32,
    pub(crate) k: u32,
    pub(crate) ty: MmaType,
    pub(crate) d: Vec<Reg>,
    pub(crate) a: Left,
    pub(crate) b: Reg,
    pub(crate) b_transposed: bool,
    /// Whether the product is added to what D holds.
    pub(crate) adds: Guard,
    /// Whether the product is taken negative.
    pub(crate) negative: bool,
}

/// What four warps do together around asynchronous products.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Warpgroup {
    Fence,
    Commit,
    /// Waits until at most so many groups are under way.
    Wait(u32),
    Product(Box<AsyncProduct>),
}

/// What is done with a barrier in shared memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PhaseOp {
    /// It begins to be, and waits for so many arrivals.
    Init(Reg),
    /// It ends.
    Invalidate,
    /// The phase waits for so many bytes more.
    Expect(Reg),
    Arrive(Arrival),
    Wait(PhaseWait),
}

/// `mbarrier.arrive`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Arrival {
    /// The register of the phase that it arrives in.
    pub(crate) state: Option<Reg>,
    /// How many arrivals it is, if not one.
    pub(crate) count: Option<Reg>,
    /// The bytes that the phase waits for besides.
    pub(crate) bytes: Option<Reg>,
    pub(crate) releases: bool,
}

/// `mbarrier.test_wait` and `mbarrier.try_wait`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PhaseWait {
    pub(crate) done: Option<Pred>,
    /// What an arrival gave, or the phase's parity.
    pub(crate) of: Reg,
    pub(crate) by_parity: bool,
    /// Whether a thread may be held until the phase is complete.
    pub(crate) holds: bool,
    pub(crate) acquires: bool,
}

/// `cp.async.bulk.tensor`: a copy of a tile of a tensor to shared memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct CopyTile {
    pub(crate) to: Place,
    pub(crate) map: Place,
    /// Where the tile begins, the dimension that is dense in memory first.
    pub(crate) at: Vec<Reg>,
    /// The barrier that counts the bytes.
    pub(crate) barrier: Place,
}

/// The registers that asynchronous products use and an instruction touches.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Watched {
    pub(crate) reads: Vec<Reg>,
    pub(crate) writes: Vec<Reg>,
    /// To and from, where it only copies: where such instructions are the compiler decides, and assemblers make one register of both.
    pub(crate) copy: Option<(Reg, Reg)>,
}

/// Operations on a lane that depend on more than its operands.
#[derive(Clone, Debug)]
pub(crate) enum Lane {
    Convert(Convert, u32),
    /// Two f32 to a pair.
    ConvertPair(Convert),
    Lop3(u8),
    Permute(Permutation),
    Insert(u32),
    Dot {
        signed_a: bool,
        signed_b: bool,
        two: Option<bool>,
    },
    /// An f32 or f64 operation between flushing its operands and saturating its result.
    Single {
        f: Compute,
        ty: Ty,
        flush: bool,
        saturate: bool,
    },
    /// The same of 16-bit floats.
    Small {
        f: Compute,
        ty: Ty,
        finish: Finish,
    },
    /// `slct`: the first operand where the third is not negative.
    Choose {
        float: bool,
    },
    /// `bfind.shiftamt`
    Shift {
        f: Compute,
        bits: u32,
    },
}

/// Additions with carry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Carry {
    pub(crate) kind: CarryKind,
    pub(crate) bits: u32,
    pub(crate) signed: bool,
    pub(crate) reads: bool,
    pub(crate) writes: bool,
    pub(crate) flag: Pred,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CarryKind {
    Add,
    Sub,
    MadLo,
    MadHi,
}

#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) function: usize,
    /// Byte ranges of the caller's parameter memory to the callee's: from, to, bytes.
    pub(crate) arguments: Vec<(u32, u32, u32)>,
    /// The way back: from the callee's, to the caller's, bytes.
    pub(crate) results: Vec<(u32, u32, u32)>,
}

#[derive(Clone, Debug)]
pub(crate) enum Op {
    Nop,
    Alu {
        f: Compute,
        d: Reg,
        a: Reg,
        b: Reg,
        c: Reg,
    },
    Lane {
        what: Box<Lane>,
        d: Reg,
        a: Reg,
        b: Reg,
        c: Reg,
    },
    Carry {
        what: Carry,
        d: Reg,
        a: Reg,
        b: Reg,
        c: Reg,
    },
    Move {
        d: Reg,
        a: Reg,
    },
    Pack {
        d: Reg,
        parts: Vec<Reg>,
        bits: u32,
    },
    Unpack {
        parts: Vec<Option<Reg>>,
        a: Reg,
        bits: u32,
    },
    Clock {
        d: Reg,
        bits: u32,
    },
    Set {
        f: Test,
        d: Option<Pred>,
        q: Option<Pred>,
        a: Reg,
        b: Reg,
        with: Option<(Combine, Guard)>,
    },
    /// `set`: the comparison as a number.
    SetNumber {
        f: Test,
        d: Reg,
        a: Reg,
        b: Reg,
        with: Option<(Combine, Guard)>,
        truth: u64,
    },
    Class {
        name: String,
        ty: Ty,
        d: Pred,
        a: Reg,
    },
    Select {
        d: Reg,
        a: Reg,
        b: Reg,
        by: Guard,
    },
    PredMove {
        d: Pred,
        a: Guard,
    },
    PredConst {
        d: Pred,
        value: bool,
    },
    PredLogic {
        d: Pred,
        how: Combine,
        a: Guard,
        b: Guard,
    },
    Load(Box<Access>),
    Store(Box<Access>),
    Atomic(Box<Atomic>),
    Fence(Scope),
    /// Makes what a thread wrote to shared memory visible to asynchronous products and copies.
    ProxyFence,
    /// Makes barriers in shared memory that a thread began visible to asynchronous copies.
    PhaseFence,
    Phase {
        place: Place,
        what: PhaseOp,
    },
    CopyTile(Box<CopyTile>),
    ToGeneric {
        d: Reg,
        a: Reg,
        space: Space,
    },
    FromGeneric {
        d: Reg,
        a: Reg,
        space: Space,
    },
    IsSpace {
        d: Pred,
        a: Reg,
        space: Space,
    },
    CopyAsync {
        to: Place,
        from: Place,
        bytes: u32,
        size: Option<Reg>,
        ignore: Option<Guard>,
    },
    CopyCommit,
    /// Waits until at most so many groups are pending; for all copies if there is no number.
    CopyWait(Option<u32>),
    LoadMatrix {
        d: Vec<Reg>,
        place: Place,
        transposed: bool,
    },
    StoreMatrix {
        a: Vec<Reg>,
        place: Place,
        transposed: bool,
    },
    MoveMatrix {
        d: Reg,
        a: Reg,
    },
    Mma(Box<Mma>),
    Warpgroup(Warpgroup),
    Branch {
        to: Pc,
        meet: Pc,
    },
    BranchTable {
        index: Reg,
        targets: Vec<Pc>,
        meet: Pc,
    },
    Call(Box<Call>),
    Return,
    Exit,
    Trap,
    Assertion,
    Barrier {
        id: Reg,
        threads: Option<Reg>,
        kind: BarrierKind,
        aligned: bool,
    },
    WarpBarrier {
        mask: Reg,
    },
    Shuffle {
        mode: Shuffle,
        d: Option<Reg>,
        p: Option<Pred>,
        a: Reg,
        b: Reg,
        c: Reg,
        mask: Reg,
    },
    Vote {
        mode: Vote,
        d: Option<Reg>,
        p: Option<Pred>,
        a: Guard,
        mask: Reg,
    },
    Match {
        all: bool,
        d: Reg,
        p: Option<Pred>,
        a: Reg,
        mask: Reg,
    },
    Redux {
        op: Redux,
        signed: bool,
        d: Reg,
        a: Reg,
        mask: Reg,
    },
    Elect {
        d: Option<Reg>,
        p: Pred,
        mask: Reg,
    },
    ActiveMask {
        d: Reg,
    },
}

#[derive(Clone, Debug)]
pub(crate) struct Instr {
    pub(crate) op: Op,
    pub(crate) guard: Option<Guard>,
    pub(crate) class: Class,
    pub(crate) line: u32,
    pub(crate) source: SourceLine,
    /// The registers that it computes with, for the check of undefined values.
    pub(crate) reads: Vec<Reg>,
    /// The registers that it only copies.
    pub(crate) copies: Vec<Reg>,
    /// The registers that it writes.
    pub(crate) writes: Vec<Reg>,
    /// What it has to do with asynchronous products, if anything.
    pub(crate) watched: Option<Box<Watched>>,
}

/// What a register holds from the start.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Special {
    Constant(u64),
    Thread(usize),
    BlockSize(usize),
    Block(usize),
    GridSize(usize),
    LaneId,
    WarpId,
    WarpCount,
    Zero,
    SmCount,
    LaneMask(LaneMask),
    DynamicSharedBytes,
    TotalSharedBytes,
    /// An address within dynamic shared memory.
    DynamicShared(i64),
    /// An address within the frame's local memory.
    Local(i64),
    /// The address of a variable of the module, plus something.
    Global(usize, i64),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum LaneMask {
    Equal,
    LessEqual,
    Less,
    GreaterEqual,
    Greater,
}

/// A parameter of a kernel or function.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Param {
    pub(crate) offset: u32,
    pub(crate) bytes: u32,
}

/// A function that can be run.
#[derive(Clone, Debug)]
pub(crate) struct Code {
    pub(crate) name: String,
    pub(crate) is_kernel: bool,
    pub(crate) instrs: Vec<Instr>,
    pub(crate) registers: usize,
    pub(crate) specials: Vec<(Reg, Special)>,
    pub(crate) predicates: usize,
    pub(crate) params: Vec<Param>,
    /// Bytes of parameters of all kinds of a frame.
    pub(crate) param_bytes: u32,
    pub(crate) local_bytes: u32,
    /// Bytes of static shared memory of a kernel.
    pub(crate) shared_bytes: u32,
    /// Whether it has asynchronous products.
    pub(crate) has_products: bool,
    /// Whether it copies tiles of tensors.
    pub(crate) copies_tiles: bool,
}

/// A variable of the module in device memory.
#[derive(Clone, Debug)]
pub(crate) struct Global {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    pub(crate) initial: Vec<u8>,
    pub(crate) addresses: Vec<(u64, usize)>,
    pub(crate) read_only: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) codes: Vec<Code>,
    pub(crate) names: HashMap<String, usize>,
    pub(crate) globals: Vec<Global>,
    pub(crate) files: HashMap<u32, String>,
    pub(crate) sources: HashMap<String, Vec<String>>,
}

impl Program {
    /// Whether any function has asynchronous products.
    pub(crate) fn has_products(&self) -> bool {
        self.codes.iter().any(|c| c.has_products)
    }

    /// Whether any function copies tiles of tensors.
    pub(crate) fn copies_tiles(&self) -> bool {
        self.codes.iter().any(|c| c.copies_tiles)
    }
}
