//! The kernel language: how one fused loop nest runs.
//!
//! A kernel is a tree of statements over memory (positional parameters and scratch), loop variables and scalar values.
//! Its meaning is that of the nest executed in program order by one thread with every loop serial (the kernel interpreter);
//! [`Bind`] tags only say how the same result may be reached faster.
//!
//! Invariants, which the verifier checks:
//! - Values are in SSA form: each [`ValueId`] has one defining `Let`, which dominates every use. Scalars are typed exactly:
//!   the operand dtypes of a `Map` fit its operation, with no implicit conversion.
//! - Each loop variable belongs to one statement (a `Loop`, a `Clamp`, a `Contract`, a `FoldRows`, an `Each` or a `CopyAsync`), runs through `0..extent`
//!   (`extents[var]`), and is used only inside. An extent may mention symbols and outer loop variables.
//! - Every access that is not masked is proven inside its memory for all variable ranges, or is under an `If` or a masked
//!   access. A masked access touches memory only where its mask is true.
//! - A `Parallel` loop is the outermost statement and the only one at its level; its iterations touch disjoint written
//!   memory and their own scratch, so they may run on any threads in any chunks. A kernel without one runs once.
//! - Inside a `Lanes` loop (constant extent, innermost but for `Unroll` and `If`) each value exists once per lane.
//!   `If` there runs its body when *any* lane's condition holds; stores inside are masked by the program, not by the `If`.
//! - `Register` scratch has a constant length and is only accessed at indices that become constants once `Unroll` loops are
//!   unrolled, plus at most one lane variable with coefficient 1 at an offset divisible by the lane count.
//! - A `Contract` is in no lanes loop. Its tile of scratch is a strided matrix of constant size; to register scratch its rows
//!   and columns count as unrolled. Its operands are other memory, and an operand's element is inside its memory wherever the
//!   operand's conditions hold.
//! - A `Copy` or `Stream` loop, with at most one loop inside, only copies elements between two memories that do not overlap
//!   ([`CopyNest`]).
//! - Scratch contents are undefined at the start of a parallel iteration.
//! - A GPU kernel is one `Block` loop, the whole body, whose iterations are independent as those of a `Parallel` loop are.
//!   `Thread` loops lie inside it, never in each other nor in an `If`, and have at most 1024 iterations, which touch disjoint
//!   written memory (or, in shared memory, are ordered by a `Barrier` between two thread loops; there is none inside one).
//!   Register and cache scratch that a thread loop writes is used in that loop only. What lies outside of thread loops is
//!   executed by every thread of the block alike, so it writes nothing but register scratch (in a block without thread
//!   loops, which is one thread, it may). The serial meaning is then the parallel one.
//! - A `Warp` loop lies in the block loop as thread loops do, and thread loops may lie in it, each of exactly 32 iterations: that
//!   of iteration `t` in warp `w` is thread `32*w + t` of the block. What is in a warp loop outside of thread loops is executed by
//!   each thread of the warp alike and writes nothing; no barrier is there, and no extent depends on the warp. Threads of
//!   one warp are not ordered either but by a barrier.
//! - Scratch of scope `Thread` has a constant length and is accessed in thread loops, and as a whole by a `Collective`, which is
//!   outside of them: that of a warp in a warp loop, that of a block outside.
//! - A `CopyAsync` is in a thread loop, a `Commit` and a `Wait` where a barrier may be. No access to what is copied to lies between
//!   the copy and a barrier behind a wait for its group.
//! - A fragment (scope `WarpFragment` or `BlockFragment`) has a constant length and one shape, a matrix row by row. It is the
//!   whole tile of a `Contract`, whose operands are then parameters, shared scratch or, on the left, a fragment; it is read and written by
//!   `Each`, whose body is as that of a thread loop, but without scratch of scope `Thread`; and its rows are combined by `FoldRows`. All
//!   are executed by all who hold it: in the warp loop, or in the block loop, outside of thread loops. No other access is. Of one
//!   column each element is held by all who hold elements of that row elsewhere, so an `Each` of it writes nothing but fragments.
//! - Symbols are positional: a launch supplies their values, under which no memory has a negative length and the kernel's conditions
//!   hold.
//!
//! Kernels are alpha-renamed and nameless inside, so equal ones compare equal and compile once.

pub mod asynchronous;
pub mod collective;
pub mod contract;
mod copy;
pub mod fold;
pub mod interp;
mod print;
pub mod verify;
pub mod visit;

pub use asynchronous::AsyncCopy;
pub use collective::{Collective, CollectiveKind, Group};
pub use contract::{Contract, ContractOperand, Range};
pub use copy::CopyNest;
pub use fold::FoldRows;
use smallvec::SmallVec;

use crate::dtype::{DType, Scalar};
use crate::graph::{Condition, Monoid};
use crate::index::{Bounds, IndexExpr, Interval, SymId, VarId};
use crate::scalar::ScalarOp;
use crate::target::WARP_THREADS;

/// The most statements that code generators take of a kernel, counted once its `Unroll` loops are copied out. Larger ones would
/// take long to compile, and exceed what a code generator can number. No verifier asks for it.
pub const MAX_STATEMENTS: u64 = 100_000;

/// A scalar (or, in a lanes loop, one per lane) of a [`Kernel`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ValueId(pub u32);

/// Addressable memory of a kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Memory {
    /// A buffer that the launch supplies.
    Param(u32),
    /// Private memory of one parallel iteration.
    Scratch(u32),
}

/// How a parameter is used.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Access {
    /// Only loaded. May be the same buffer as other read parameters.
    Read,
    /// Only stored (loads after the kernel's own stores are allowed).
    Write,
    /// Loaded and stored: updated in place.
    ReadWrite,
}

/// A buffer parameter. Elements are C-contiguous in the order the index expressions say.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Param {
    /// Element type.
    pub dtype: DType,
    /// Number of elements; over symbols only.
    pub len: IndexExpr,
    /// Use.
    pub access: Access,
}

/// Where scratch lives.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Scope {
    /// Machine registers (mutable variables).
    Register,
    /// A per-thread memory area meant to stay in the first cache levels.
    Cache,
    /// Memory shared by the threads of a GPU block.
    Shared,
    /// A matrix that the threads of a warp hold together, each warp its own; which thread holds which element is not known.
    WarpFragment,
    /// A matrix that the threads of a block hold together; which thread holds which element is not known.
    BlockFragment,
    /// A thread's own: each thread of a GPU block has a copy of that length, which lives as long as the block, through
    /// thread loops and barriers. Serially an array of `[threads, len]`, of which iteration `t` of a thread loop touches row `t`.
    Thread,
}

/// What a kernel needs of a GPU.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Grid {
    /// Blocks, over the symbols.
    pub blocks: IndexExpr,
    /// Threads of each block.
    pub threads: i64,
    /// Bytes that the threads of a block share.
    pub shared_bytes: i64,
}

/// Each shared scratch begins at a multiple of so many bytes, the widest load of a thread.
pub const SHARED_ALIGNMENT: i64 = 16;

/// Bytes of a row of swizzled scratch.
pub const SWIZZLED_ROW_BYTES: i64 = 128;
/// Bytes after which the exchanges of swizzled scratch repeat, and a multiple of which it begins at: eight rows.
pub const SWIZZLE_PERIOD_BYTES: i64 = 8 * SWIZZLED_ROW_BYTES;

/// Mutable memory private to one parallel iteration.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Scratch {
    /// Element type.
    pub dtype: DType,
    /// Number of elements; over symbols only.
    pub len: IndexExpr,
    /// Where it lives.
    pub scope: Scope,
    /// Whether it is shared memory whose rows of [`SWIZZLED_ROW_BYTES`] have their pieces of 16 bytes exchanged among themselves, so that the same piece
    /// of eight rows lies in different banks, as matrix instructions of four warps take it. Elements keep their numbers: where they
    /// are in the row is a matter of the code generator.
    pub swizzled: bool,
}

impl Scratch {
    /// The number of bytes at a multiple of which it begins, if it is shared.
    pub fn alignment(&self) -> i64 {
        match self.swizzled {
            true => SWIZZLE_PERIOD_BYTES,
            false => SHARED_ALIGNMENT,
        }
    }
}

/// How a loop's iterations are executed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Bind {
    /// One after another.
    Serial,
    /// Copied out at compile time; constant extent.
    Unroll,
    /// All at once, one per vector lane; constant extent.
    Lanes,
    /// In chunks on the threads of a pool.
    Parallel,
    /// One per GPU block; the outermost statement and the only one at its level.
    Block,
    /// One per GPU thread of a block, or of the warp around.
    Thread,
    /// One per warp of a GPU block: what is inside is executed by its 32 threads together.
    Warp,
    /// As one copy of a block of memory, straight or transposed.
    Copy,
    /// As `Copy`, writing past the caches: for what is too large to be found there again.
    Stream,
}

impl Bind {
    /// Every binding.
    pub const ALL: [Bind; 9] = [
        Bind::Serial,
        Bind::Unroll,
        Bind::Lanes,
        Bind::Parallel,
        Bind::Block,
        Bind::Thread,
        Bind::Warp,
        Bind::Copy,
        Bind::Stream,
    ];

    /// The spelling in text forms.
    pub const fn name(self) -> &'static str {
        match self {
            Bind::Serial => "serial",
            Bind::Unroll => "unroll",
            Bind::Lanes => "lanes",
            Bind::Parallel => "parallel",
            Bind::Block => "block",
            Bind::Thread => "thread",
            Bind::Warp => "warp",
            Bind::Copy => "copy",
            Bind::Stream => "stream",
        }
    }
}

/// The right-hand side of a `Let`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Op {
    /// A constant.
    Const(Scalar),
    /// The value of an index expression, wrapped or rounded to an integer or float dtype.
    Index(IndexExpr, DType),
    /// An element of memory. Where the mask is false the result is zero and nothing is read.
    Load {
        /// From where.
        memory: Memory,
        /// Element offset.
        index: IndexExpr,
        /// Optional bool.
        mask: Option<ValueId>,
    },
    /// A scalar operation, with the meaning of [`crate::scalar`].
    Map(ScalarOp, SmallVec<[ValueId; 3]>),
    /// Conversion, with the meaning of [`crate::scalar`].
    Convert(DType, ValueId),
    /// The same bits as another dtype of equal width.
    Bitcast(DType, ValueId),
    /// `2^x` of an f32 for what is rounded to 16 bits: with a relative error of up to `2^-18` ([`SHORT_ERROR`]), and zero where it is no normal
    /// number. Above `2^127` it may be infinite.
    ShortExp2(ValueId),
    /// `x 2^floor(n)` of two f32, `x` first, rounded once ([`scale`]). Only kernels for an emitter that says that it has it
    /// ([`crate::target::Emitter::scales`]) have any.
    Scale([ValueId; 2]),
    /// One of [`APPROXIMATED`] on f32 by the device's own approximation, which is off by as much as [`crate::precision::approximation_error`] says.
    /// Only kernels of graphs that are compiled with [`crate::Precision::Fast`] have any.
    Approximate(ScalarOp, SmallVec<[ValueId; 3]>),
}

/// The operations that [`Op::Approximate`] has.
pub const APPROXIMATED: [ScalarOp; 5] = [
    ScalarOp::Exp2,
    ScalarOp::Log2,
    ScalarOp::Div,
    ScalarOp::Sqrt,
    ScalarOp::Rsqrt,
];

/// What [`Op::ShortExp2`] may be off by, relative to its result.
pub const SHORT_ERROR: f64 = 1.0 / (1 << 18) as f64;

/// [`Op::Scale`]: `x 2^floor(n)`, rounded once, with the power of an infinite `n` infinite or zero, which it is of a quiet NaN too (as instructions
/// have it: Intel's manual, "VSCALEFPS").
pub fn scale(x: f32, n: f32) -> f32 {
    if !n.is_finite() {
        let power = if n == f32::NEG_INFINITY { 0.0 } else { n };
        return if x.is_nan() { power } else { x * power };
    }
    // Powers beyond these leave nothing, or infinity, of any f32; up to there the product of f64 is exact.
    const MOST: f32 = 400.0;
    (f64::from(x) * f64::from(n.floor().clamp(-MOST, MOST)).exp2()) as f32
}

/// [`Op::ShortExp2`] as the interpreter has it: rounded once, where it is a normal number.
pub fn short_exp2(x: f32) -> f32 {
    let power = f64::from(x).exp2() as f32;
    if power.is_subnormal() { 0.0 } else { power }
}

/// A statement.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Stmt {
    /// Defines a value.
    Let {
        /// The defined value.
        value: ValueId,
        /// Its computation.
        op: Op,
    },
    /// Writes an element where the mask (a bool) is true or absent.
    Store {
        /// Where to.
        memory: Memory,
        /// Element offset.
        index: IndexExpr,
        /// What; of the memory's dtype.
        value: ValueId,
        /// Optional bool.
        mask: Option<ValueId>,
    },
    /// Repeats the body for `var` in `0..extents[var]`.
    Loop {
        /// The loop variable.
        var: VarId,
        /// How iterations run.
        bind: Bind,
        /// What is repeated.
        body: Vec<Stmt>,
    },
    /// Runs the body if the condition (a bool; in a lanes loop that of any lane) holds.
    If {
        /// The condition.
        cond: ValueId,
        /// Runs if it holds.
        body: Vec<Stmt>,
    },
    /// Makes a data-dependent index usable in index expressions: for the rest of the enclosing block,
    /// `var = max(0, min(value, extents[var] - 1))`. `value` is an i64 or an i32.
    Clamp {
        /// The defined variable.
        var: VarId,
        /// The data.
        value: ValueId,
    },
    /// `state[at] = state[at] ⊕ value`. argmax and argmin have two states and two values: the element and its index (an
    /// integer); ties keep the lower index, a NaN beats any number. An f32 or f64 sum may have two values for its one state: their product
    /// is added without being rounded first, as [`ScalarOp::Fma`] does.
    Accumulate {
        /// What is combined.
        monoid: Monoid,
        /// The accumulators, in scratch or (for scatter) parameters.
        state: SmallVec<[(Memory, IndexExpr); 2]>,
        /// What is combined into them.
        values: SmallVec<[ValueId; 2]>,
    },
    /// `dst[m, n] += sum over k of left[m, k] * right[k, n]`; see [`contract`] for what that means exactly.
    Contract(Box<Contract>),
    /// Combines an element of each thread of a warp or a block; see [`collective`] for what that means exactly.
    Collective(Box<Collective>),
    /// Combines the elements of each row of a fragment; see [`fold`] for what that means exactly.
    FoldRows(Box<FoldRows>),
    /// Runs the body for each element of a fragment, by the thread that holds it: for each value of the two variables, row by
    /// row. The body may load and store the fragment's element `columns * rows' variable + columns' variable`, those of fragments of
    /// the same shape at the same place, and load those of fragments of one column at the same row.
    Each {
        /// The row and the column; extents are positive constants.
        vars: [VarId; 2],
        /// The fragment.
        memory: Memory,
        /// What is done with each element.
        body: Vec<Stmt>,
    },
    /// Copies elements to shared memory beside the threads; see [`asynchronous`].
    CopyAsync(Box<AsyncCopy>),
    /// An element will be read soon: its cache line may be fetched meanwhile. It means nothing, reads nothing, and the element need not
    /// exist.
    Prefetch {
        /// Where.
        memory: Memory,
        /// Element offset.
        index: IndexExpr,
    },
    /// The copies that each thread has begun since the last `Commit` are its next group; there may be none.
    Commit,
    /// Waits until at most so many groups of each thread, the latest ones, are under way.
    Wait(u32),
    /// Waits for all threads of a GPU block.
    Barrier,
}

/// One fused loop nest.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Kernel {
    /// Buffer parameters.
    pub params: Vec<Param>,
    /// Range of each symbol.
    pub symbols: Vec<(i64, i64)>,
    /// Scratch.
    pub scratch: Vec<Scratch>,
    /// Exclusive upper bound of each loop variable.
    pub extents: Vec<IndexExpr>,
    /// Dtype of each value.
    pub values: Vec<DType>,
    /// The statements.
    pub body: Vec<Stmt>,
    /// What else is known of the symbols' values, which launches keep. Kernels of a plan have none: there the plan's guards say it,
    /// and equal kernels are one whatever is around them.
    pub requires: Vec<Condition>,
    /// Blocks of which a multiprocessor should have the registers at the same time, so that some compute while others wait; 0 where the
    /// code generator decides.
    pub residents: u32,
}

impl Kernel {
    /// A new loop variable.
    pub fn new_var(&mut self, extent: IndexExpr) -> VarId {
        self.extents.push(extent);
        VarId(self.extents.len() as u32 - 1)
    }

    /// A new value.
    pub fn new_value(&mut self, dtype: DType) -> ValueId {
        self.values.push(dtype);
        ValueId(self.values.len() as u32 - 1)
    }

    /// A new scratch memory.
    pub fn new_scratch(&mut self, dtype: DType, len: IndexExpr, scope: Scope) -> Memory {
        let swizzled = false;
        self.scratch.push(Scratch {
            dtype,
            len,
            scope,
            swizzled,
        });
        Memory::Scratch(self.scratch.len() as u32 - 1)
    }

    /// Dtype of a value.
    pub fn dtype(&self, value: ValueId) -> DType {
        self.values[value.0 as usize]
    }

    /// Dtype of a memory's elements.
    pub fn memory_dtype(&self, memory: Memory) -> DType {
        match memory {
            Memory::Param(i) => self.params[i as usize].dtype,
            Memory::Scratch(i) => self.scratch[i as usize].dtype,
        }
    }

    /// Number of elements of a memory.
    pub fn memory_len(&self, memory: Memory) -> &IndexExpr {
        match memory {
            Memory::Param(i) => &self.params[i as usize].len,
            Memory::Scratch(i) => &self.scratch[i as usize].len,
        }
    }

    /// The extent of the parallel loop, or 1 if there is none: the launch range.
    pub fn parallel_extent(&self) -> IndexExpr {
        match &self.body[..] {
            [
                Stmt::Loop {
                    var,
                    bind: Bind::Parallel,
                    ..
                },
            ] => self.extents[var.0 as usize].clone(),
            _ => IndexExpr::ONE,
        }
    }

    /// The type that the kernel's warps multiply by matrix instructions, if they do.
    pub fn multiplies(&self) -> Option<DType> {
        let held = |m: Memory| match m {
            Memory::Param(_) => false,
            Memory::Scratch(i) => self.scratch[i as usize].scope == Scope::WarpFragment,
        };
        self.statements().find_map(|s| match s {
            Stmt::Contract(c) if held(c.dst) => Some(self.memory_dtype(c.right.memory)),
            _ => None,
        })
    }

    /// The blocks of threads that a kernel for a GPU takes; `None` if its body is not one loop over blocks, or nothing bounds what
    /// a block needs.
    pub fn grid(&self) -> Option<Grid> {
        let [
            Stmt::Loop {
                var, bind: Bind::Block, ..
            },
        ] = &self.body[..]
        else {
            return None;
        };
        let mut threads = 1;
        for s in self.statements() {
            if let Stmt::Loop { var, bind, .. } = s {
                let most = self.extents[var.0 as usize].interval(self).hi;
                threads = threads.max(match bind {
                    Bind::Thread => most,
                    Bind::Warp => most.saturating_mul(WARP_THREADS),
                    _ => 1,
                });
            }
        }
        let (_, shared_bytes) = self.shared_offsets()?;
        Some(Grid {
            blocks: self.extents[var.0 as usize].clone(),
            threads,
            shared_bytes,
        })
    }

    /// The byte at which each shared scratch begins (meaningless for other scratch), and where the last one ends; `None` if nothing
    /// bounds them.
    pub fn shared_offsets(&self) -> Option<(Vec<i64>, i64)> {
        let mut end = 0i64;
        let round = |n: i64, to: i64| Some(n.checked_add(to - 1)? / to * to);
        let mut offsets = Vec::with_capacity(self.scratch.len());
        for s in &self.scratch {
            if s.scope != Scope::Shared {
                offsets.push(end);
                continue;
            }
            let at = round(end, s.alignment())?;
            let bytes = s.len.interval(self).hi.max(0).checked_mul(s.dtype.bytes() as i64)?;
            end = at.checked_add(round(bytes, SHARED_ALIGNMENT)?)?;
            offsets.push(at);
        }
        Some((offsets, end))
    }

    /// Whether a memory is swizzled scratch.
    pub fn is_swizzled(&self, memory: Memory) -> bool {
        match memory {
            Memory::Param(_) => false,
            Memory::Scratch(i) => self.scratch.get(i as usize).is_some_and(|s| s.swizzled),
        }
    }

    /// Bytes of cache scratch that one thread needs: each area rounded up to 64 bytes, in order of declaration.
    pub fn cache_scratch_bytes(&self) -> IndexExpr {
        self.scratch_offsets().1
    }

    /// Byte offset of each scratch in the thread's scratch area (meaningless for register scratch), and the total.
    pub fn scratch_offsets(&self) -> (Vec<IndexExpr>, IndexExpr) {
        let mut at = IndexExpr::ZERO;
        let mut offsets = Vec::with_capacity(self.scratch.len());
        for s in &self.scratch {
            offsets.push(at.clone());
            if s.scope == Scope::Cache {
                let bytes = s.len.clone() * IndexExpr::from(s.dtype.bytes());
                at = at + bytes.ceil_div(64) * IndexExpr::Const(64);
            }
        }
        (offsets, at)
    }
}

impl Bounds for Kernel {
    fn symbol(&self, sym: SymId) -> Interval {
        self.symbols
            .get(sym.0 as usize)
            .map_or(Interval::new(0, i64::MAX), |&(lo, hi)| Interval::new(lo, hi))
    }
    fn extent(&self, var: VarId) -> Option<IndexExpr> {
        self.extents.get(var.0 as usize).cloned()
    }
}
