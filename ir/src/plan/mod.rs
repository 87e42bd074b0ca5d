//! The plan language: the program that the runtime executes.
//!
//! A plan is a list of steps over slots. Slots are named storage: the caller's inputs and outputs, constants, values that
//! live as long as the executable (made by the `init` steps), and temporaries that share one arena.
//!
//! Invariants, which the verifier checks without trusting the planner:
//! - A step reads only slots that hold a value by then: inputs, constants, or slots written by an earlier step.
//! - Two arena slots whose lifetimes overlap do not overlap in memory, unless one is the declared alias of the other and
//!   the step where one ends and the other begins may update in place.
//! - Sizes, ranges and symbol arguments are index expressions over the plan's symbols.

pub mod interp;
mod print;
pub mod verify;

use smallvec::SmallVec;

use crate::dtype::DType;
use crate::graph::{Guard, Shape, Symbol, TensorType};
use crate::index::IndexExpr;
use crate::kernel::Kernel;
use crate::tensor::HostTensor;

/// A slot of a [`Plan`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct SlotId(pub u32);

/// A kernel of a [`Plan`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct KernelId(pub u32);

/// Where a slot's bytes are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Storage {
    /// The caller's input at that position.
    Input(u32),
    /// The caller's output at that position.
    Output(u32),
    /// The plan's constant at that position.
    Constant(u32),
    /// Memory that lives as long as the executable, filled by the `init` steps.
    Persistent,
    /// Part of the arena; placed by the memory pass when sizes are known.
    Arena,
    /// The bytes of another slot, which dies where this one begins (or is a view of it).
    Alias(SlotId),
}

/// Named storage for one value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Slot {
    /// What it holds, for reports: an input's name, or the graph node.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Number of elements.
    pub len: IndexExpr,
    /// Where the bytes are.
    pub storage: Storage,
}

/// A declared input.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlanInput {
    /// Name.
    pub name: String,
    /// Declared type.
    pub ty: TensorType,
    /// Its slot, if anything reads it.
    pub slot: Option<SlotId>,
}

/// A declared output.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlanOutput {
    /// Name.
    pub name: String,
    /// Type.
    pub ty: TensorType,
    /// Its slot.
    pub slot: SlotId,
}

/// One execution of a kernel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Launch {
    /// The kernel.
    pub kernel: KernelId,
    /// Slots bound to its parameters, in order.
    pub args: Vec<SlotId>,
    /// Values of its symbols, in order.
    pub symbols: Vec<IndexExpr>,
    /// Parallel iterations that one chunk takes; at least 1.
    pub grain: u64,
    /// What it computes, for reports: `softmax.max+exp+sum`, graph nodes.
    pub label: String,
    /// Bytes read and written, each operand once.
    pub bytes: IndexExpr,
    /// Floating-point operations; a transcendental counts 20.
    pub flops: IndexExpr,
}

/// `dst[b, i, j] = Σ_k lhs[b, i, k] * rhs[b, k, j]`, by a library. Strides in elements. At most one operand is wound (see
/// [`Walk`]), and never the result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Gemm {
    /// f32 or f64.
    pub dtype: DType,
    /// Extents of the batch axes (possibly none).
    pub batch: Shape,
    /// Rows of the result.
    pub m: IndexExpr,
    /// Columns of the result.
    pub n: IndexExpr,
    /// Summed extent.
    pub k: IndexExpr,
    /// Left operand.
    pub lhs: GemmOperand,
    /// Right operand.
    pub rhs: GemmOperand,
    /// Result.
    pub dst: GemmOperand,
    /// What it computes, for reports.
    pub label: String,
}

/// A strided matrix (stack) in a slot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GemmOperand {
    /// Storage.
    pub slot: SlotId,
    /// Element offset of the first element.
    pub offset: IndexExpr,
    /// Stride of each batch axis.
    pub batch: Shape,
    /// How its rows follow each other.
    pub row: Walk,
    /// How its columns follow each other.
    pub column: Walk,
}

impl GemmOperand {
    /// Whether its rows or columns are several axes in one, as those of sliding windows are.
    pub fn is_wound(&self) -> bool {
        self.row.legs.len() > 1 || self.column.legs.len() > 1
    }
}

/// One axis of several that make up a [`Walk`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Leg {
    /// Elements.
    pub extent: IndexExpr,
    /// Stride.
    pub stride: IndexExpr,
}

/// How one axis of a matrix walks memory: with one stride, or, where several axes of a tensor are taken as one, with a
/// stride for each, outermost first. It has at least one leg, and the product of the legs' extents is the axis's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Walk {
    /// The axes in one.
    pub legs: SmallVec<[Leg; 1]>,
}

impl Walk {
    /// The most legs of a walk.
    pub const MAX_LEGS: usize = 8;

    /// A walk of one stride.
    pub fn straight(extent: IndexExpr, stride: IndexExpr) -> Walk {
        Walk {
            legs: [Leg { extent, stride }].into_iter().collect(),
        }
    }
}

/// One step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Runs a kernel.
    Launch(Launch),
    /// Runs several independent kernels in one fork-join.
    Group(Vec<Launch>),
    /// A matrix product by the library.
    Gemm(Box<Gemm>),
    /// Copies all elements of one slot to another of the same length and dtype.
    Copy {
        /// From.
        src: SlotId,
        /// To.
        dst: SlotId,
    },
}

/// An executable program.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Plan {
    /// The graph's name.
    pub name: String,
    /// Symbols, in the order of the graph.
    pub symbols: Vec<Symbol>,
    /// What must hold of them.
    pub guards: Vec<Guard>,
    /// Declared inputs.
    pub inputs: Vec<PlanInput>,
    /// Declared outputs.
    pub outputs: Vec<PlanOutput>,
    /// Constants.
    pub constants: Vec<HostTensor>,
    /// Storage.
    pub slots: Vec<Slot>,
    /// Distinct kernels.
    pub kernels: Vec<Kernel>,
    /// Runs once per executable.
    pub init: Vec<Step>,
    /// Runs at every call.
    pub steps: Vec<Step>,
    /// `(input, output)` pairs that may be one buffer: the input is last read where the output is first written, by a
    /// kernel that may run in place. What a caller may give away; in a call each input and each output is in at most one
    /// pair, the first that applies.
    pub donations: Vec<(u32, u32)>,
}

/// Arena placement for concrete symbol values.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Layout {
    /// Byte offset of each slot that is in the arena, by slot number; `None` for the others.
    pub offsets: Vec<Option<u64>>,
    /// Bytes of the arena.
    pub arena_bytes: u64,
    /// The least any placement could need: the largest sum of live bytes at a step.
    pub lower_bound_bytes: u64,
    /// Bytes without any sharing.
    pub naive_bytes: u64,
}

impl Step {
    /// Calls `f(slot, writes)` for every slot the step touches.
    pub fn visit_slots(&self, f: &mut dyn FnMut(SlotId, bool), kernels: &[Kernel]) {
        let mut launch = |l: &Launch| {
            for (slot, param) in l.args.iter().zip(&kernels[l.kernel.0 as usize].params) {
                if param.access != crate::kernel::Access::Write {
                    f(*slot, false);
                }
                if param.access != crate::kernel::Access::Read {
                    f(*slot, true);
                }
            }
        };
        match self {
            Step::Launch(l) => launch(l),
            Step::Group(all) => all.iter().for_each(launch),
            Step::Gemm(g) => {
                f(g.lhs.slot, false);
                f(g.rhs.slot, false);
                f(g.dst.slot, true);
            }
            Step::Copy { src, dst } => {
                f(*src, false);
                f(*dst, true);
            }
        }
    }
}

impl Plan {
    /// Bytes that live as long as the executable: what the `init` steps leave for the steps of a call to read.
    pub fn persistent_bytes(&self) -> u64 {
        let mut read = vec![false; self.slots.len()];
        for step in &self.steps {
            step.visit_slots(&mut |s, _| read[self.root(s).0 as usize] = true, &self.kernels);
        }
        let kept = self
            .slots
            .iter()
            .zip(read)
            .filter(|(s, read)| *read && s.storage == Storage::Persistent);
        kept.map(|(s, _)| s.len.as_const().unwrap_or(0).max(0) as u64 * s.dtype.bytes() as u64)
            .sum()
    }

    /// The slot whose bytes this one uses: itself unless it is an alias.
    pub fn root(&self, slot: SlotId) -> SlotId {
        let mut at = slot;
        while let Storage::Alias(of) = self.slots[at.0 as usize].storage {
            at = of;
        }
        at
    }
}
