//! CUDA C++ from a legal kernel scheduled for a GPU.
//!
//! The kernel is one `Block` loop; `Thread` loops lie inside it, not in each other. The translation is:
//!
//! | kernel | CUDA |
//! |---|---|
//! | `Block` loop | the grid: `blockIdx.x`; one block per iteration |
//! | `Thread` loop | `threadIdx.x`, under `if (threadIdx.x < extent)` where the block has more threads |
//! | `Warp` loop | `threadIdx.x / 32`; thread loops inside it are `threadIdx.x % 32` |
//! | collective of a warp | shuffles |
//! | contraction of swizzled scratch | `wgmma.mma_async` of four warps, and a wait for it |
//! | other contraction into a warp's fragment | `ldmatrix` and `mma.sync`; each thread holds elements as the instruction places them |
//! | `Each` element of such a fragment | the elements that a thread holds, in place of a thread loop |
//! | `CopyAsync`, `Commit`, `Wait` | `cp.async` of 4, 8 or 16 bytes, `cp.async.commit_group`, `cp.async.wait_group` or `wait_all` |
//! | a thread loop over `CopyAsync` that brings a rectangle of a matrix to swizzled scratch, on `sm_90a` | `cp.async.bulk.tensor` by one thread, whose bytes an `mbarrier` counts |
//! | outside thread loops | executed by every thread of the block alike; only register scratch may be written there |
//! | `Register` scratch, what loops carry | local variables of the thread |
//! | `Cache`, `Thread` scratch | local arrays of the thread |
//! | `Shared` scratch | `__shared__` arrays; where they are more than a kernel can declare, parts of one that the launch sizes |
//! | swizzled scratch | the same; every subscript is exchanged as the instructions of four warps have it |
//! | `Barrier` | `__syncthreads()`; never inside a thread loop or where only some threads come |
//! | `Unroll`, `Lanes` loops | copied out, by the lowered form ([`crate::flat`]) that the text is written from |
//!
//! Invariants:
//! - The text includes nothing and needs no headers: typedefs and the device functions it calls come first. f16 and bf16
//!   are unsigned shorts that named functions convert.
//! - It means what the kernel means bit by bit (NaN payloads aside) if it is compiled with `--fmad=false`.
//! - It is a function of the kernel alone: equal kernels give equal text.
//! - What cannot be translated is a [`CudaError`], never a panic.
//!
//! Launches in turn are one kernel of one block ([`emit_sequence`]), and independent ones one kernel of the blocks of all ([`emit_launch_group`]).
//!
//! Parameters are declared `__restrict__`: a launch must not bind a written buffer to a second parameter unless
//! [`CudaOptions::may_alias`] is set.

mod apart;
mod collective;
mod fragments;
mod groups;
mod index;
mod launch_group;
mod matrix;
mod quads;
mod scalar;
mod sequence;
mod table;
mod tile_copies;
mod tiles;
mod under_way;
mod uses;
mod words;
mod write;

use tlc_ir::dtype::DType;
use tlc_ir::index::{Bounds, IndexExpr};
use tlc_ir::kernel::{Access, Bind, Grid, Kernel, Memory, Scope, Scratch, Stmt};
use tlc_ir::scalar::ScalarOp;
use tlc_ir::target::{
    Emitter, GPU_ACCESS_BYTES, MAX_BLOCK_THREADS, MOST_OPT_IN_SHARED_BYTES, STATIC_SHARED_BYTES, half_full_blocks,
};

use groups::multiplies_in_groups;
use index::Width;
use scalar::memory_type;

use crate::error::CodegenError;
use crate::flat::{self, Capability, Flat};
use crate::generator::CodeGenerator;

pub use crate::flat::TiledMatrix;
pub use fragments::with_fragments_placed;
pub use launch_group::emit_launch_group;
pub use sequence::emit_sequence;
use table::GROUPS_ON;
pub use table::{emitter, emitter_for};
use tiles::BARRIERS;

/// Flags that the emitted text must be compiled with: every operation rounds as its name says, and none is left out.
pub const COMPILE_FLAGS: [&str; 4] = ["--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true"];

/// Name of the memory that a block shares, where its size is the launch's to say. No other name begins like this.
const SHARED: &str = "block_shared";

/// What the text is for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CudaOptions {
    /// The real architecture: `sm_80`, `sm_90a`, `sm_100`.
    pub arch: String,
    /// Whether written buffers may also be bound to read parameters (in-place launches).
    pub may_alias: bool,
}

impl Default for CudaOptions {
    fn default() -> CudaOptions {
        CudaOptions {
            arch: "sm_90a".into(),
            may_alias: false,
        }
    }
}

/// A kernel as CUDA C++.
#[derive(Clone, PartialEq, Debug)]
pub struct CudaKernel {
    /// Name of the `extern "C"` function.
    pub name: String,
    /// The text.
    pub source: String,
    /// Blocks, over the kernel's symbols; a launch of none is no launch. Of a group of launches who launches it counts them.
    pub grid: IndexExpr,
    /// Threads of a block.
    pub block: u32,
    /// Bytes of shared memory, of both kinds.
    pub shared_bytes: u32,
    /// Bytes of them that a launch must ask for, and the driver before it: all of them, or none.
    pub dynamic_shared_bytes: u32,
    /// Matrices of which it copies tiles as a whole. Behind buffers and symbols it is told of each where it lies (CUDA Driver API, "cuTensorMapEncodeTiled"): its
    /// columns first, swizzled by 128 bytes, zeros outside.
    pub matrices: Vec<TiledMatrix>,
}

/// Why a kernel has no CUDA form.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// Not a name of C.
    #[error("`{0}` is not a C identifier")]
    Name(String),
    /// Not an architecture that kernels are compiled for.
    #[error("unknown architecture `{0}`; expected sm_80 or newer")]
    Arch(String),
    /// The body is not one block loop.
    #[error("the kernel is not scheduled for a GPU: its body is not one block loop")]
    NoBlockLoop,
    /// A loop that a GPU has not, or has elsewhere.
    #[error("a {} loop cannot be {place}", bind.name())]
    Misplaced {
        /// How the loop runs.
        bind: Bind,
        /// Where it is.
        place: &'static str,
    },
    /// A statement that only threads may execute, executed by all of them.
    #[error("{0} outside of a thread loop would be executed by every thread")]
    EveryThread(&'static str),
    /// Scratch without a constant length.
    #[error("scratch {0} has no constant length")]
    ScratchLength(u32),
    /// Too many threads or too much shared memory.
    #[error("{what}: {found}, the limit is {limit}")]
    Limit {
        /// What.
        what: &'static str,
        /// How much is needed.
        found: i64,
        /// How much there is.
        limit: i64,
    },
    /// Something without a CUDA form.
    #[error("{0} has no CUDA form")]
    Unsupported(String),
    /// The kernel has no lowered form.
    #[error(transparent)]
    Kernel(#[from] CodegenError),
}

/// The CUDA emitter for one architecture. Functions are named as the generator says when they are emitted.
pub struct Generator {
    table: Emitter,
    options: CudaOptions,
    /// Name of the next kernel's function.
    pub name: String,
}

impl Generator {
    /// The emitter with these options, whose functions have that name.
    pub fn new(name: String, options: CudaOptions) -> Generator {
        Generator {
            table: emitter(),
            options,
            name,
        }
    }
}

impl CodeGenerator for Generator {
    type Code = CudaKernel;
    type Error = CudaError;

    fn table(&self) -> &Emitter {
        &self.table
    }

    fn emit(&mut self, kernel: &Kernel) -> Result<CudaKernel, CudaError> {
        emit(kernel, &self.name, &self.options)
    }
}

/// Translates a legal kernel.
///
/// # Errors
/// [`CudaError`], naming what does not translate.
pub fn emit(kernel: &Kernel, name: &str, options: &CudaOptions) -> Result<CudaKernel, CudaError> {
    if !is_identifier(name) {
        return Err(CudaError::Name(name.into()));
    }
    capability(&options.arch)?;
    let Grid {
        blocks,
        threads,
        shared_bytes,
    } = kernel.grid().ok_or(CudaError::NoBlockLoop)?;
    limit("threads of a block", threads, MAX_BLOCK_THREADS)?;
    limit("bytes of shared memory", shared_bytes, MOST_OPT_IN_SHARED_BYTES)?;
    if multiplies_in_groups(kernel) && options.arch != GROUPS_ON {
        let what = format!("a product of four warps on {}", options.arch);
        return Err(CudaError::Unsupported(what));
    }

    let kernel = &*with_fragments_placed(kernel);
    let mut flat = flatten(kernel, &options.arch)?;
    let mut shared_bytes = shared_bytes;
    if !flat.matrices.is_empty() {
        match shared_bytes + tiles::BARRIER_BYTES <= MOST_OPT_IN_SHARED_BYTES {
            true => shared_bytes += tiles::BARRIER_BYTES,
            false => flat = flatten(kernel, "")?,
        }
    }
    let dynamic = shared_bytes > STATIC_SHARED_BYTES;
    let code = write::Writer::new(&flat, threads, "blockIdx.x", false).kernel()?;

    let mut source = prelude(kernel, &code);
    if !flat.matrices.is_empty() {
        source.push_str(tiles::MATRIX_TYPE);
    }
    source.push_str(&code.helpers);
    source.push('\n');
    source.push_str(&signature(&flat, name, threads, options));
    source.push_str(" {\n");
    source.push_str(&symbols(kernel, &code));
    if dynamic {
        let alignment = kernel.scratch.iter().map(Scratch::alignment).max();
        source.push_str(&declared_by_launch(alignment.unwrap_or(GPU_ACCESS_BYTES)));
    }
    source.push_str(&scratch(kernel, dynamic)?);
    if !flat.matrices.is_empty() {
        let barriers = match dynamic {
            true => format!(
                "    unsigned long long* const {BARRIERS} = (unsigned long long*)({SHARED} + {});\n",
                shared_bytes - tiles::BARRIER_BYTES
            ),
            false => format!("    __shared__ unsigned long long {BARRIERS}[{}];\n", flat::MOST_GROUPS),
        };
        source.push_str(&barriers);
    }
    source.push_str(&code.text);
    source.push_str("}\n");
    Ok(CudaKernel {
        name: name.into(),
        source,
        grid: blocks,
        block: threads as u32,
        shared_bytes: shared_bytes as u32,
        dynamic_shared_bytes: if dynamic { shared_bytes as u32 } else { 0 },
        matrices: flat.matrices,
    })
}

/// The lowered form of a kernel as its text is written for an architecture; fragments have been [placed](with_fragments_placed).
///
/// # Errors
/// [`CodegenError`] if the kernel uses what this emitter lacks.
pub fn flatten<'k>(kernel: &'k Kernel, arch: &str) -> Result<Flat<'k>, CodegenError> {
    let threads = Threads {
        table: emitter(),
        copies_tiles: arch == GROUPS_ON,
    };
    flat::flatten(kernel, &threads)
}

/// A thread works on one element at a time; the table is all that it has, but for accesses of neighbouring elements.
struct Threads {
    table: Emitter,
    copies_tiles: bool,
}

impl Capability for Threads {
    fn table(&self) -> &Emitter {
        &self.table
    }

    fn copies_tiles(&self) -> bool {
        self.copies_tiles
    }

    fn loads_lanes(&self, dtype: DType, offsets: &[u8]) -> bool {
        moves_together(dtype, offsets)
    }

    fn stores_lanes(&self, dtype: DType, offsets: &[u8]) -> bool {
        moves_together(dtype, offsets)
    }

    fn aligns_lanes(&self) -> bool {
        true
    }

    fn maps_words(&self, op: ScalarOp, on: DType, lanes: u32) -> bool {
        words::maps(op, on, lanes)
    }

    fn converts_words(&self, from: DType, to: DType, lanes: u32) -> bool {
        words::converts(from, to) && (lanes as usize).is_multiple_of(words::BYTES)
    }

    fn masks_scalars(&self) -> bool {
        true
    }

    fn copies_blocks(&self) -> bool {
        false
    }
}

/// Whether one instruction moves such elements: 2 to 16 bytes that lie together, a power of two (PTX ISA, "Vectors").
fn moves_together(dtype: DType, offsets: &[u8]) -> bool {
    let bytes = offsets.len() * dtype.bytes();
    let together = offsets.iter().enumerate().all(|(i, o)| i == usize::from(*o));
    together && bytes.is_power_of_two() && (2..=GPU_ACCESS_BYTES as usize).contains(&bytes)
}

/// A C identifier made of a label: other characters become `_`.
pub fn identifier(label: &str) -> String {
    let mut out: String = label
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
        .collect();
    if out.is_empty() || out.starts_with(|c: char| c.is_ascii_digit()) {
        out.insert(0, 'k');
    }
    out
}

fn is_identifier(name: &str) -> bool {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    !name.is_empty() && name.chars().all(word) && !name.starts_with(|c: char| c.is_ascii_digit())
}

/// The compute capability, major and minor, of an architecture: `sm_NN`, `sm_NNa` or `sm_NNf` with a number of at least 80.
///
/// # Errors
/// If it is none of these.
pub fn capability(arch: &str) -> Result<(i32, i32), CudaError> {
    let number = arch
        .strip_prefix("sm_")
        .map(|n| n.strip_suffix(['a', 'f']).unwrap_or(n))
        .filter(|n| n.chars().all(|c| c.is_ascii_digit()))
        .and_then(|n| n.parse::<i32>().ok());
    match number {
        Some(n @ 80..=999) => Ok((n / 10, n % 10)),
        _ => Err(CudaError::Arch(arch.into())),
    }
}

fn limit(what: &'static str, found: i64, limit: i64) -> Result<(), CudaError> {
    if found > limit {
        return Err(CudaError::Limit { what, found, limit });
    }
    Ok(())
}

/// The constant length of scratch, or what bounds it.
fn scratch_len(kernel: &Kernel, number: usize) -> Result<i64, CudaError> {
    let hi = kernel.scratch[number].len.interval(kernel).hi;
    if hi > 1 << 24 {
        return Err(CudaError::ScratchLength(number as u32));
    }
    Ok(hi.max(1))
}

/// Typedefs that the text uses.
fn prelude(kernel: &Kernel, code: &write::Code) -> String {
    let mut out = String::new();
    let c_name = |d: DType| match d {
        DType::Bool => None,
        DType::I8 => Some("signed char"),
        DType::I16 => Some("short"),
        DType::I32 => Some("int"),
        DType::I64 => Some("long long"),
        DType::U8 => Some("unsigned char"),
        DType::U16 | DType::F16 | DType::BF16 => Some("unsigned short"),
        DType::U32 => Some("unsigned int"),
        DType::U64 => Some("unsigned long long"),
        DType::F32 => Some("float"),
        DType::F64 => Some("double"),
        _ => Some("unsigned char"),
    };
    let stored = |d: DType| {
        let params = kernel.params.iter().map(|p| p.dtype);
        params
            .chain(kernel.scratch.iter().map(|s| s.dtype))
            .any(|x| memory_type(x) == d.name())
    };
    for d in DType::ALL {
        if let Some(c) = c_name(d)
            && (stored(d) || uses_word(&code.text, d.name()) || uses_word(&code.helpers, d.name()))
        {
            out.push_str(&format!("typedef {c} {d};\n"));
        }
    }
    out
}

/// Whether a name occurs as a word of its own.
fn uses_word(text: &str, name: &str) -> bool {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.match_indices(name)
        .any(|(at, _)| !text[..at].ends_with(word) && !text[at + name.len()..].starts_with(word))
}

/// Elements in a thread's own registers beside which it can do with those that a multiprocessor half full of threads has.
const FEW_HELD: i64 = 48;

/// The parameters of a function: buffers, then symbols.
fn parameters(kernel: &Kernel, may_alias: bool) -> Vec<String> {
    let restrict = if may_alias { "" } else { " __restrict__" };
    let buffers = kernel.params.iter().enumerate().map(|(i, p)| {
        let constant = if p.access == Access::Read { "const " } else { "" };
        format!("{constant}{}*{restrict} p{i}", memory_type(p.dtype))
    });
    let symbols = (0..kernel.symbols.len()).map(|i| format!("long long s{i}"));
    buffers.chain(symbols).collect()
}

/// Where products are summed.
fn sums(kernel: &Kernel) -> impl Iterator<Item = Memory> {
    kernel.statements().filter_map(|s| match s {
        Stmt::Contract(c) => Some(c.dst),
        _ => None,
    })
}

fn signature(flat: &Flat<'_>, name: &str, block: i64, options: &CudaOptions) -> String {
    let kernel = flat.kernel;
    let mut params = parameters(kernel, options.may_alias);
    params.extend(tiles::parameters(flat));
    let (open, close) = if params.len() > 3 { ("\n    ", "\n") } else { ("", "") };
    let separator = if params.len() > 3 { ",\n    " } else { ", " };
    // Left to itself, the assembler spills to keep registers at 32 around calls. Products keep their sums in as many as there are.
    let mut sums = sums(kernel);
    let first = sums.next();
    let products = first.is_some();
    // Those of an attention also wait for each other between its two products, so that others should have something to do.
    let waits = sums.any(|other| Some(other) != first) && kernel.statements().any(|s| matches!(s, Stmt::Collective(_)));
    let own = kernel.scratch.iter().filter(|s| s.scope == Scope::Thread);
    let held: Option<i64> = own.map(|s| s.len.as_const()).sum();
    let blocks = match products {
        _ if kernel.residents > 0 => i64::from(kernel.residents),
        true if waits && held.is_some_and(|held| held <= FEW_HELD) => half_full_blocks(block),
        true => 1,
        false => half_full_blocks(block),
    };
    format!(
        "extern \"C\" __global__ void __launch_bounds__({block}, {blocks}) {name}({open}{}{close})",
        params.join(separator)
    )
}

/// Narrow copies of the symbols that fit 32 bits.
fn symbols(kernel: &Kernel, code: &write::Code) -> String {
    let mut out = String::new();
    for i in 0..kernel.symbols.len() {
        let range = kernel.symbol(tlc_ir::index::SymId(i as u32));
        if Width::of(range) == Width::Narrow && uses_word(&code.text, &format!("n{i}")) {
            out.push_str(&format!("    const int n{i} = (int)s{i};\n"));
        }
    }
    out
}

/// Memory that a block shares, of the size that the launch says, from a multiple of so many bytes on.
fn declared_by_launch(alignment: i64) -> String {
    format!("    extern __shared__ __align__({alignment}) unsigned char {SHARED}[];\n")
}

/// Scratch memory. `dynamic` says whether what a block shares is all in one piece: its parts then are where [`Kernel::grid`] counts
/// them.
fn scratch(kernel: &Kernel, dynamic: bool) -> Result<String, CudaError> {
    let mut out = String::new();
    let offsets = kernel.shared_offsets().map(|(offsets, _)| offsets).unwrap_or_default();
    for (i, s) in kernel.scratch.iter().enumerate() {
        let t = memory_type(s.dtype);
        let name = write::memory_name(kernel, Memory::Scratch(i as u32));
        let len = scratch_len(kernel, i)?;
        let line = match s.scope {
            Scope::Shared if dynamic => {
                let from = offsets.get(i).copied().unwrap_or(0);
                format!("    {t}* const {name} = ({t}*)({SHARED} + {from});\n")
            }
            Scope::Shared => format!("    __shared__ __align__({}) {t} {name}[{len}];\n", s.alignment()),
            // Their elements are values.
            Scope::Register => continue,
            _ => format!("    __align__({GPU_ACCESS_BYTES}) {t} {name}[{len}];\n"),
        };
        out.push_str(&line);
    }
    Ok(out)
}
