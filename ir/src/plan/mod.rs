//! The plan language: the program that the runtime executes.
//!
//! A plan is a list of steps over slots. Slots are named storage: the caller's inputs and outputs, constants, values that
//! live as long as the executable (made by the `init` steps), and temporaries that share one arena for each device.
//!
//! A plan is for one or several devices, the first of which is the host. Every slot is on one device, and so is what a step
//! touches; only a [`Step::Copy`] goes from one to another. Devices work at once: [`order`] says what happens before what.
//! Where the host must know a value, a step of its own reads it from a slot of its own: the trip count and the conditions of a
//! [`Step::Loop`], and the size that a [`Step::Call`] binds to a symbol.
//!
//! Invariants, which the verifier checks without trusting the planner:
//! - A step reads only slots that hold a value by then: inputs, constants, or slots written by an earlier step.
//! - Of two steps that touch the same bytes, one of them writing, one happens before the other.
//! - Parts of one slot make it up, each element once, and no step writes it but by its parts.
//! - Two arena slots whose lifetimes overlap do not overlap in memory, unless one is the declared alias of the other and
//!   the step where one ends and the other begins may update in place.
//! - A symbol that data decides (it has an upper bound) is known once a call has bound it; slots have room for the largest.
//! - Sizes, ranges and symbol arguments are index expressions over the plan's symbols.

mod bytes;
pub mod interp;
pub mod order;
pub mod recipe;
pub mod verify;
mod windowed;
mod work;

use std::fmt;

use smallvec::SmallVec;

use crate::dtype::DType;
use crate::graph::{Along, Guard, HostFunction, Shape, Symbol, TensorType};
use crate::index::{IndexExpr, IndexNode};
use crate::kernel::{Grid, Kernel};
use crate::target::GPU_ACCESS_BYTES;
use crate::tensor::HostTensor;

pub use order::{QueueId, Turn};
pub use windowed::{Windowed, WindowedAxis};

/// A device of a [`Plan`], by its number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct DeviceId(pub u32);

impl DeviceId {
    /// The host: the first device of every plan.
    pub const HOST: DeviceId = DeviceId(0);
}

/// What kind of machine a device is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DeviceKind {
    /// The cores of a host: runs launches in chunks, library products, loops and host functions.
    Host,
    /// Runs launches over a grid of blocks, and library products.
    Gpu,
}

impl DeviceKind {
    /// Its name in text.
    pub const fn name(self) -> &'static str {
        match self {
            DeviceKind::Host => "host",
            DeviceKind::Gpu => "gpu",
        }
    }
}

/// An expression with others in place of its symbols.
fn over(symbols: &[IndexExpr], e: &IndexExpr) -> IndexExpr {
    e.replace(&mut |n| match n {
        IndexNode::Sym(s) => symbols.get(s.0 as usize).cloned(),
        _ => None,
    })
}

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
    /// The caller's state at that position.
    State(u32),
    /// Memory that lives as long as the executable, filled by the `init` steps.
    Persistent,
    /// Part of the arena; placed by the memory pass when sizes are known.
    Arena,
    /// The bytes of another slot, which dies where this one begins (or is a view of it).
    Alias(SlotId),
    /// Part of the bytes of another slot, whose value is nothing but such parts: one of the operands of a concatenation, which is written
    /// where the concatenation has it. No step writes the other slot; it holds a value once all parts of it do.
    Part {
        /// The whole, of the same dtype.
        of: SlotId,
        /// The element of the whole where the part begins.
        at: IndexExpr,
    },
    /// Scratch memory of the threads that run a step, each of which holds the lines that it works on: the whole value is never there at
    /// once. It passes from a product to the kernel behind it and on to the product behind that ([`Epilogue::product`]).
    Lines,
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
    /// The device whose memory that is.
    pub device: DeviceId,
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

/// Memory of the caller that is bound for a call as inputs are, and that a call reads, updates in place, or both: the parameters of a
/// model that is trained, or the keys and values that a decoder keeps. Its elements are packed, the last axis innermost.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlanState {
    /// Name.
    pub name: String,
    /// Type.
    pub ty: TensorType,
    /// Its slot ([`Storage::State`]).
    pub slot: SlotId,
    /// Whether it holds a value when a call begins. One that does not is written before it is read.
    pub read: bool,
    /// The slot of the value that it has once a call is over, in its own bytes; `None` if it stays as it is.
    pub set: Option<SlotId>,
}

/// How the iterations of a launch are shared out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Work {
    /// In chunks to the threads of a host's pool.
    Chunks {
        /// Parallel iterations that one chunk takes; what is below 1 counts as 1. Fewer are not worth a thread of their own: a
        /// launch of one chunk, and a group of launches that together have no more iterations than one chunk, run on the calling
        /// thread.
        grain: IndexExpr,
    },
    /// To blocks of threads of a GPU, as the kernel's loops say; over the plan's symbols.
    Grid(Grid),
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
    /// How its iterations are shared out.
    pub work: Work,
    /// What it computes, for reports: `softmax.max+exp+sum`, graph nodes.
    pub label: String,
    /// Bytes read and written, each operand once.
    pub bytes: IndexExpr,
    /// Floating-point operations; a transcendental counts 20.
    pub flops: IndexExpr,
}

impl Launch {
    /// An expression over the kernel's symbols, over those of the plan.
    pub fn outer(&self, e: &IndexExpr) -> IndexExpr {
        over(&self.symbols, e)
    }
}

/// `dst[b, i, j] = Σ_k lhs[b, i, k] * rhs[b, k, j]`, by a library, and what runs on the result. Strides in elements. At most
/// one operand is composite (see [`Strides`]), and never the result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Gemm {
    /// f32 or f64; on a GPU also f16 or bf16, which are added up in f32 and rounded once, and on a host bf16 likewise. Elements of i32 are
    /// words of four bytes, unsigned ones on the left, whose products are [`crate::ScalarOp::Dot4`].
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
    /// Memory that the library of a GPU works in (u8). Its bytes mean nothing before or after the step.
    pub workspace: Option<SlotId>,
    /// What runs on the result, in the same step.
    pub epilogue: Option<Box<Epilogue>>,
    /// What it computes, for reports.
    pub label: String,
}

/// A kernel behind a matrix product: the step means the product and then the kernel. Because of what each iteration touches,
/// the kernel may run on part of the result as soon as that part is complete.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Epilogue {
    /// The kernel; it reads the product's result.
    pub launch: Launch,
    /// What its iterations touch of the result.
    pub lines: Lines,
    /// What it is to the library of products of a GPU, which may compute it with the product: then nobody writes the product's result,
    /// which nothing else reads, and its one line is the whole.
    pub library: Option<LibraryEpilogue>,
    /// A product of what the kernel leaves in the first product's bytes, which is its left operand, row by row: attention is such a
    /// step. It has no epilogue. The value between the products is in no memory as a whole ([`Storage::Lines`]).
    pub product: Option<Box<Gemm>>,
}

/// What a kernel behind a product computes, where libraries of products compute it too:
/// `result[i] = f(product[i] + bias[i mod n])` for a bias of `n` elements, without which nothing is added.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LibraryEpilogue {
    /// Which of the kernel's parameters is the bias.
    pub bias: Option<u32>,
    /// Whether `f` is `max(x, 0)`; else it is `x`.
    pub rectified: bool,
    /// Which parameter is the result.
    pub result: u32,
}

impl fmt::Display for LibraryEpilogue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.bias, self.rectified) {
            (Some(_), true) => "bias and relu",
            (Some(_), false) => "bias",
            (None, _) => "relu",
        })
    }
}

impl Epilogue {
    /// The most parameters of a kernel between two products: each worker has a table of their addresses.
    pub const MOST_ARGUMENTS: usize = 32;
}

/// How the parallel iterations of a kernel go along a buffer: those numbered from `g * iterations` to
/// `(g + 1) * iterations` touch no elements but those from `g * elements` to `(g + 1) * elements`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lines {
    /// Iterations of a line.
    pub iterations: IndexExpr,
    /// Elements of a line.
    pub elements: IndexExpr,
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
    pub row: Strides,
    /// How its columns follow each other.
    pub column: Strides,
    /// The axes that its windows slide over, where these end.
    pub windowed: Windowed,
}

impl GemmOperand {
    /// Whether its rows or columns are composite: several axes in one, as those of sliding windows are.
    pub fn is_composite(&self) -> bool {
        self.row.dims.len() > 1 || self.column.dims.len() > 1 || self.is_windowed()
    }
}

/// One axis of several that make up a [`Strides`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StridedDim {
    /// Elements.
    pub extent: IndexExpr,
    /// Stride.
    pub stride: IndexExpr,
}

/// How one axis of a matrix walks memory: with one stride, or, where several axes of a tensor are taken as one, with a
/// stride for each, outermost first. It has at least one dimension, and the product of the dimensions' extents is the axis's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Strides {
    /// The axes in one.
    pub dims: SmallVec<[StridedDim; 1]>,
}

impl Strides {
    /// The most dimensions of a walk.
    pub const MAX_DIMS: usize = 8;

    /// A walk of one stride.
    pub fn straight(extent: IndexExpr, stride: IndexExpr) -> Strides {
        Strides {
            dims: [StridedDim { extent, stride }].into_iter().collect(),
        }
    }
}

/// A value that goes around a loop. The three slots have one length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Carried {
    /// What the first iteration is given.
    pub first: SlotId,
    /// What the last iteration leaves.
    pub last: SlotId,
    /// Iterations write here and to `last` in turn.
    pub spare: SlotId,
}

/// A tensor that the iterations of a loop walk along.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Walk {
    /// The tensor.
    pub slot: SlotId,
    /// How.
    pub along: Along,
    /// Where one iteration's elements are copied from or to; without it they lie together in the tensor itself.
    pub element: Option<SlotId>,
}

impl Walk {
    /// Whether each iteration's elements, so many of a type, begin where a kernel of a GPU may be given them if they lie together.
    pub fn aligned(dtype: DType, elements: &IndexExpr) -> bool {
        let bytes = elements.clone() * IndexExpr::Const(dtype.bytes() as i64);
        IndexExpr::modulo(&bytes, &IndexExpr::Const(GPU_ACCESS_BYTES)).is(0)
    }
}

/// A loop over a plan of its own. The inputs and outputs of the body are those of the graph's body, see
/// [`crate::graph::control`], and behind them what the plan around it hands in besides, as captures; it has no `init` steps.
#[derive(Clone, PartialEq, Debug)]
pub struct Repeat {
    /// One iteration.
    pub body: Plan,
    /// The values of the body's symbols.
    pub symbols: Vec<IndexExpr>,
    /// The most iterations.
    pub trip: Option<IndexExpr>,
    /// Holds the number of iterations (i64).
    pub count: Option<SlotId>,
    /// Holds whether the first iteration runs (bool).
    pub condition: Option<SlotId>,
    /// Where an iteration finds its number (i64).
    pub number: SlotId,
    /// Where an iteration leaves whether another follows (bool).
    pub follows: Option<SlotId>,
    /// Values that go around.
    pub carried: Vec<Carried>,
    /// Operands of which each iteration sees one element.
    pub slices: Vec<Walk>,
    /// What each iteration sees alike.
    pub captures: Vec<SlotId>,
    /// Results of which each iteration writes one element.
    pub stacks: Vec<Walk>,
    /// What it computes, for reports.
    pub label: String,
}

impl Repeat {
    /// The slots that a body's input reads, but for the iteration number, which is input 0.
    pub fn operand(&self, input: usize) -> Option<SlotId> {
        let at = input.checked_sub(1)?;
        let slices = self.carried.len();
        let captures = slices + self.slices.len();
        match at {
            _ if at < slices => Some(self.carried[at].first),
            _ if at < captures => Some(self.slices[at - slices].slot),
            _ => self.captures.get(at - captures).copied(),
        }
    }

    /// An expression over the body's symbols, over those of the plan around it.
    pub fn outer(&self, e: &IndexExpr) -> IndexExpr {
        over(&self.symbols, e)
    }

    /// The body's symbols where those of the plan around it have these values.
    pub fn inner_symbols(&self, symbols: &[i64]) -> Option<Vec<i64>> {
        self.symbols.iter().map(|e| e.eval_symbols(symbols)).collect()
    }
}

/// A function of the runtime.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostCall {
    /// Which.
    pub function: HostFunction,
    /// Extents of the operands, in order.
    pub shapes: Vec<Shape>,
    /// Operands.
    pub operands: Vec<SlotId>,
    /// Results.
    pub results: Vec<SlotId>,
    /// Memory that it works in (u64); see [`HostFunction::workspace`].
    pub workspace: SlotId,
    /// What it computes, for reports.
    pub label: String,
}

/// The most blocks that the launches of a [`Step::Sequence`] have together: one block does them all.
pub const MOST_SEQUENCE_BLOCKS: i64 = 4096;

/// One step.
#[derive(Clone, PartialEq, Debug)]
pub enum Step {
    /// Runs a kernel.
    Launch(Launch),
    /// Runs several kernels that touch nothing in common that one of them writes: in one fork-join of a host, or as one launch of a GPU,
    /// whose grid has the blocks of all of them. It means the launches, one after another in any order.
    Group(Vec<Launch>),
    /// Runs several kernels of a GPU in turn, as one launch of one block: each sees all that those before it wrote, and the block does
    /// the blocks of each one after another. It means the launches, one after another.
    Sequence(Vec<Launch>),
    /// A matrix product by the library.
    Gemm(Box<Gemm>),
    /// Copies all elements of one slot to another of the same length and dtype: between two devices, over the link between them, or to part of a
    /// concatenation.
    Copy {
        /// From.
        src: SlotId,
        /// To.
        dst: SlotId,
    },
    /// Runs a plan again and again.
    Loop(Box<Repeat>),
    /// Calls a function of the runtime.
    Call(Box<HostCall>),
}

/// An executable program.
#[derive(Clone, PartialEq, Debug)]
pub struct Plan {
    /// The graph's name.
    pub name: String,
    /// The devices, the host first.
    pub devices: Vec<DeviceKind>,
    /// The device of each queue; the first is the host's.
    pub queues: Vec<DeviceId>,
    /// Symbols, in the order of the graph.
    pub symbols: Vec<Symbol>,
    /// What must hold of them.
    pub guards: Vec<Guard>,
    /// Declared inputs.
    pub inputs: Vec<PlanInput>,
    /// Declared outputs.
    pub outputs: Vec<PlanOutput>,
    /// Declared states.
    pub states: Vec<PlanState>,
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
    /// When each of `steps` runs; empty if all of them are the host's, one after another.
    pub turns: Vec<Turn>,
    /// `(input, output)` pairs that may be one buffer: the input is last read where the output is first written, by a
    /// kernel that may run in place. What a caller may give away; in a call each input and each output is in at most one
    /// pair, the first that applies.
    pub donations: Vec<(u32, u32)>,
}

impl Default for Plan {
    /// No steps, for the host alone.
    fn default() -> Plan {
        Plan {
            name: String::new(),
            devices: vec![DeviceKind::Host],
            queues: vec![DeviceId::HOST],
            symbols: Vec::new(),
            guards: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            states: Vec::new(),
            constants: Vec::new(),
            slots: Vec::new(),
            kernels: Vec::new(),
            init: Vec::new(),
            steps: Vec::new(),
            turns: Vec::new(),
            donations: Vec::new(),
        }
    }
}

/// Arena placement for concrete symbol values.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Layout {
    /// Byte offset of each slot that is in the arena of its device, by slot number; `None` for the others.
    pub offsets: Vec<Option<u64>>,
    /// The arena of each device, by its number; one that is missing is empty.
    pub arenas: SmallVec<[Arena; 1]>,
    /// The arenas of the bodies of loops, in the order of the steps.
    pub bodies: Vec<BodyLayout>,
}

/// The size of an arena.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Arena {
    /// Bytes of the arena.
    pub bytes: u64,
    /// The least any placement could need: the largest sum of live bytes at a step.
    pub lower_bound_bytes: u64,
    /// Bytes without any sharing.
    pub naive_bytes: u64,
}

impl Layout {
    /// The arena on a device.
    pub fn arena(&self, device: DeviceId) -> Arena {
        self.arenas.get(device.0 as usize).copied().unwrap_or_default()
    }

    /// The arena on the host.
    pub fn host(&self) -> Arena {
        self.arena(DeviceId::HOST)
    }
}

/// Where the arenas of a loop's body are, and what is in them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BodyLayout {
    /// The byte offset of each in the arena around it, by device.
    pub offsets: SmallVec<[u64; 1]>,
    /// The slots in them.
    pub layout: Layout,
}

impl BodyLayout {
    /// Where the body's arena begins in the arena around it, on a device.
    pub fn offset(&self, device: DeviceId) -> u64 {
        self.offsets.get(device.0 as usize).copied().unwrap_or(0)
    }
}

impl Step {
    /// Calls `f(slot, writes)` for every slot the step touches.
    pub fn visit_slots(&self, f: &mut dyn FnMut(SlotId, bool), kernels: &[Kernel]) {
        let launch = |l: &Launch, f: &mut dyn FnMut(SlotId, bool)| {
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
            Step::Launch(l) => launch(l, f),
            Step::Group(all) | Step::Sequence(all) => all.iter().for_each(|l| launch(l, f)),
            Step::Gemm(g) => {
                f(g.lhs.slot, false);
                f(g.rhs.slot, false);
                f(g.dst.slot, true);
                g.workspace.iter().for_each(|s| f(*s, true));
                if let Some(e) = &g.epilogue {
                    launch(&e.launch, f);
                    if let Some(p) = &e.product {
                        f(p.lhs.slot, false);
                        f(p.rhs.slot, false);
                        f(p.dst.slot, true);
                    }
                }
            }
            Step::Copy { src, dst } => {
                f(*src, false);
                f(*dst, true);
            }
            Step::Loop(l) => {
                let read = [l.count, l.condition].into_iter().flatten();
                let read = read.chain(l.carried.iter().map(|c| c.first));
                let read = read
                    .chain(l.slices.iter().map(|w| w.slot))
                    .chain(l.captures.iter().copied());
                read.for_each(|s| f(s, false));
                let written = [Some(l.number), l.follows].into_iter().flatten();
                let written = written.chain(l.carried.iter().flat_map(|c| [c.last, c.spare]));
                let written = written.chain(l.slices.iter().filter_map(|w| w.element));
                let written = written.chain(l.stacks.iter().flat_map(|w| [Some(w.slot), w.element]).flatten());
                written.for_each(|s| f(s, true));
            }
            Step::Call(c) => {
                c.operands.iter().for_each(|s| f(*s, false));
                c.results.iter().chain([&c.workspace]).for_each(|s| f(*s, true));
            }
        }
    }

    /// Has the step use other slots: `f` changes each that it touches.
    pub fn rename_slots(&mut self, f: &mut dyn FnMut(&mut SlotId)) {
        match self {
            Step::Launch(l) => l.args.iter_mut().for_each(f),
            Step::Group(all) | Step::Sequence(all) => all.iter_mut().flat_map(|l| &mut l.args).for_each(f),
            Step::Gemm(g) => {
                let g = &mut **g;
                let operands = [&mut g.lhs.slot, &mut g.rhs.slot, &mut g.dst.slot];
                operands.into_iter().chain(&mut g.workspace).for_each(&mut *f);
                if let Some(e) = &mut g.epilogue {
                    e.launch.args.iter_mut().for_each(&mut *f);
                    if let Some(p) = &mut e.product {
                        let operands = [&mut p.lhs.slot, &mut p.rhs.slot, &mut p.dst.slot];
                        operands.into_iter().for_each(&mut *f);
                    }
                }
            }
            Step::Copy { src, dst } => [src, dst].into_iter().for_each(f),
            Step::Loop(l) => {
                let l = &mut **l;
                f(&mut l.number);
                [&mut l.count, &mut l.condition, &mut l.follows]
                    .into_iter()
                    .flatten()
                    .for_each(&mut *f);
                for c in &mut l.carried {
                    [&mut c.first, &mut c.last, &mut c.spare].into_iter().for_each(&mut *f);
                }
                for w in l.slices.iter_mut().chain(&mut l.stacks) {
                    f(&mut w.slot);
                    w.element.iter_mut().for_each(&mut *f);
                }
                l.captures.iter_mut().for_each(f);
            }
            Step::Call(c) => {
                let c = &mut **c;
                let all = c.operands.iter_mut().chain(&mut c.results);
                all.chain([&mut c.workspace]).for_each(f);
            }
        }
    }
}

impl Step {
    /// The kernels that it runs, in order; those of a loop's body are the body's.
    pub fn launches(&self) -> &[Launch] {
        match self {
            Step::Launch(l) => std::slice::from_ref(l),
            Step::Group(all) | Step::Sequence(all) => all,
            Step::Gemm(g) => g.epilogue.as_ref().map_or(&[], |e| std::slice::from_ref(&e.launch)),
            Step::Copy { .. } | Step::Loop(_) | Step::Call(_) => &[],
        }
    }
}

impl Gemm {
    /// Whether that is the product's result and no operand: what the epilogue reads once the product has written it. So is what the
    /// epilogue leaves for the product behind it.
    pub(super) fn makes(&self, slot: SlotId) -> bool {
        let passed = self.behind().is_some_and(|p| p.lhs.slot == slot);
        (self.dst.slot == slot || passed) && self.lhs.slot != slot && self.rhs.slot != slot
    }

    /// The product behind the kernel behind this one, in the same step.
    pub fn behind(&self) -> Option<&Gemm> {
        self.epilogue.as_ref()?.product.as_deref()
    }
}

impl Plan {
    /// What a call's shapes are read from: name and type of each input, then of each state that is read.
    pub fn sources(&self) -> impl Iterator<Item = (&str, &TensorType)> + Clone {
        let inputs = self.inputs.iter().map(|i| (i.name.as_str(), &i.ty));
        let read = self.states.iter().filter(|s| s.read);
        inputs.chain(read.map(|s| (s.name.as_str(), &s.ty)))
    }

    /// Every launch, in order; those of loops' bodies are the bodies'.
    pub fn launches(&self) -> Vec<&Launch> {
        self.init.iter().chain(&self.steps).flat_map(Step::launches).collect()
    }

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

    /// The most that a size may be: its value under the symbols, where those that data decides take any value up to the one
    /// given here. `None` if it overflows or is negative.
    pub fn most(&self, size: &IndexExpr, symbols: &[i64]) -> Option<u64> {
        crate::binding::most_under(&self.symbols, size, symbols).and_then(|n| u64::try_from(n).ok())
    }

    /// As [`Step::visit_slots`], for who sees memory only before and after a step: leaves out the result of a product as the
    /// kernel behind it reads it, and as it is written where that kernel's results take its bytes. What passes from one product to another
    /// within a step is in no memory before or after it, and what a launch of a sequence reads of an earlier one is not there before.
    pub fn visit_slots_around(&self, step: &Step, f: &mut dyn FnMut(SlotId, bool)) {
        if let Step::Sequence(all) = step {
            let mut made: Vec<SlotId> = Vec::new();
            for l in all {
                let touched = l.args.iter().zip(&self.kernels[l.kernel.0 as usize].params);
                for (&slot, param) in touched.clone() {
                    if param.access != crate::kernel::Access::Write && !made.contains(&slot) {
                        f(slot, false);
                    }
                }
                for (&slot, _) in touched.filter(|t| t.1.access != crate::kernel::Access::Read) {
                    f(slot, true);
                    made.push(slot);
                }
            }
            return;
        }
        let Step::Gemm(g) = step else {
            return step.visit_slots(f, &self.kernels);
        };
        let result = self.root(g.dst.slot);
        let mut taken = false;
        step.visit_slots(
            &mut |s, writes| taken |= writes && s != g.dst.slot && self.shares(s, g.dst.slot),
            &self.kernels,
        );
        let passed = g.behind().is_some();
        let inside = |s: SlotId, writes: bool| match passed {
            true => self.root(s) == result,
            false => s == g.dst.slot && (!writes || taken),
        };
        step.visit_slots(
            &mut |s, writes| {
                if !inside(s, writes) {
                    f(s, writes);
                }
            },
            &self.kernels,
        );
    }

    /// Whether a step reads a slot only once it has written it itself: a product's result that the kernel behind it reads, or what passes
    /// from launch to launch of a sequence. `views` says of a slot which one holds its value.
    pub(super) fn makes(&self, step: &Step, slot: SlotId, views: &dyn Fn(SlotId) -> SlotId) -> bool {
        match step {
            Step::Gemm(g) => g.makes(slot),
            Step::Sequence(all) => {
                let first = all.iter().find_map(|l| {
                    let of = |access| {
                        let mut args = l.args.iter().zip(&self.kernels[l.kernel.0 as usize].params);
                        args.any(|(s, p)| views(*s) == views(slot) && p.access != access)
                    };
                    let (reads, writes) = (of(crate::kernel::Access::Write), of(crate::kernel::Access::Read));
                    (reads || writes).then_some(!reads)
                });
                first == Some(true)
            }
            _ => false,
        }
    }
}
