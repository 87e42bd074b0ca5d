//! What the compiler knows of the machines that it compiles for: a capability model.
//!
//! A [`Target`] is data. The runtime fills it from the machine it finds; passes read it and decide by it. No constant of a
//! machine lives anywhere else: caches, speeds and limits are fields here, and what the code generator has for the machine is
//! its [`Emitter`].

use std::sync::Arc;

mod emitter;
mod library;
mod multiprocessor;

pub use emitter::{AccessKind, BYTE_TABLE, Emitter, MatrixTile, Support, TileShape, Width};
pub use library::{HostProducts, LibraryGain, LibraryShare, ProductLibrary, Products, UnknownProducts};
pub use multiprocessor::{Limiter, Multiprocessor, Occupancy, half_full_blocks};

use crate::dtype::DType;

/// The most threads that a block of a GPU kernel can have: a rule of the kernel language, because every CUDA device has this
/// limit (CUDA C++ Programming Guide, "Compute Capabilities", since 2.0).
pub const MAX_BLOCK_THREADS: i64 = 1024;

/// Threads of a warp of a GPU: a rule of the kernel language, because every CUDA device has so many (the same table).
pub const WARP_THREADS: i64 = 32;

/// Neighbouring warps that multiply matrices together where a device has instructions for that, the first at a multiple of four (PTX ISA,
/// "Asynchronous Warpgroup Level Matrix Instructions").
pub const WARP_GROUP: i64 = 4;
/// Rows of such a product that each of them has.
pub const WARP_GROUP_ROWS: i64 = 16;

/// Bytes of shared memory that a kernel can declare with a fixed size on every CUDA device (the same table); more must be
/// asked of the driver.
pub const STATIC_SHARED_BYTES: i64 = 48 << 10;

/// Bytes of shared memory that a block of every device of compute capability 8.0 and later may be given if the driver is asked (the same
/// table, of 8.6, 8.9 and 12.0).
pub const LEAST_OPT_IN_SHARED_BYTES: i64 = 99 << 10;

/// Bytes of shared memory that a block of any of these devices may be given at most (the same table, of 9.0 and 10.0).
pub const MOST_OPT_IN_SHARED_BYTES: i64 = 227 << 10;

/// 64-bit values that a kernel can be given on every CUDA device: 4 KiB of parameters (the same table).
pub const MOST_PARAMETER_VALUES: usize = 512;

/// 64-bit values that a kernel can be given as one structure: 32,764 bytes of parameters, since CUDA 12.1 on devices of compute capability
/// 7.0 and later (CUDA C++ Programming Guide, "Execution Configuration"; PTX ISA, "Kernel Function Parameter Attributes").
pub const MOST_GROUP_VALUES: usize = 32_764 / 8;

/// The 64-bit values that a group of so many launches is given, whose buffers and symbols are `values` together: the numbers of its blocks
/// are two to a value.
pub const fn group_values(launches: usize, values: usize) -> usize {
    values + launches.div_ceil(2)
}

/// Blocks that a launch has at most along the first dimension of its grid on every CUDA device (the same table).
pub const MAX_GRID_BLOCKS: u64 = (1 << 31) - 1;

/// Bytes that a thread of a GPU moves at once at most (PTX ISA, "Vectors"): what kernels are given begins at a multiple of them.
pub const GPU_ACCESS_BYTES: i64 = 16;

/// Bytes that the threads of a block combine beside a row that they keep: two numbers of 8 bytes for each.
const COMBINED_BYTES: i64 = MAX_BLOCK_THREADS * 16;

/// A machine that kernels are compiled for.
#[derive(Clone, PartialEq, Debug)]
pub enum Target {
    /// The cores of a host.
    Cpu(Cpu),
    /// A device that runs blocks of threads.
    Gpu(Gpu),
}

/// Number of a code generator among those of a target.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct EmitterId(pub u32);

/// Bytes of a cache line of x86-64 processors, for which alone something is chosen by it.
pub const CACHE_LINE_BYTES: i64 = 64;

/// Bytes along the summed axis up to which the library of products adds one product after another to each element, as the
/// definition says. What is longer is summed in blocks.
pub const LIBRARY_BLOCK_BYTES: usize = 2048;

/// A code generator of a CPU, with the speed of what it makes.
#[derive(Clone, PartialEq, Debug)]
pub struct CpuEmitter {
    /// What it has.
    pub table: Arc<Emitter>,
    /// Vector instructions of its width a second of one thread.
    pub vector_ops_per_second: f64,
}

impl CpuEmitter {
    /// One of a modest machine: 3 vector instructions a nanosecond.
    pub fn modest(table: Arc<Emitter>) -> CpuEmitter {
        CpuEmitter {
            table,
            vector_ops_per_second: 9e9,
        }
    }

    /// f32 operations a second of one thread in whole vectors.
    pub fn f32_ops_per_second(&self) -> f64 {
        self.vector_ops_per_second * self.table.lanes(DType::F32).max(1) as f64
    }
}

/// The cores of a host, their caches and speeds.
#[derive(Clone, PartialEq, Debug)]
pub struct Cpu {
    /// What generates code for it; at least one. The first one has every operation, and is preferred where no other is faster.
    pub emitters: Vec<CpuEmitter>,
    /// Neighbouring columns of a matrix that the library of products reads without copying where they lie together for each
    /// step along the sum; 0 if it copies in any case.
    pub panel_elements: u32,
    /// What the library of products multiplies beside f32 and f64.
    pub products: HostProducts,
    /// Threads of the pool.
    pub threads: usize,
    /// Bytes of one core's first-level data cache.
    pub l1_bytes: u64,
    /// Bytes of one core's second-level cache.
    pub l2_bytes: u64,
    /// Bytes of the last-level cache.
    pub l3_bytes: u64,
    /// Bytes a second that one thread moves, as {L2, L3, memory}.
    pub bytes_per_second: [f64; 3],
    /// f32 operations a second of one thread at the processor's full width (a fused multiply-add counts 2).
    pub f32_flops_per_second: f64,
    /// Whether a core loads two whole vectors in a cycle and itself fetches ahead what is read at a steady distance: a product with a vector then
    /// runs along the lines of its matrix at the speed of the caches, and instructions that ask for lines further down only cost.
    pub streams_lines: bool,
    /// Whether the last cache gives a core the weights of a tile of products as fast as it multiplies by them.
    pub feeds_tiles: bool,
    /// Whether a core reads a few rows that lie far apart at once, each line by line, as fast as one: its prefetchers follow each of them.
    pub follows_distant_rows: bool,
    /// Whether a core's prefetchers follow what is loaded with masks as they follow other loads.
    pub follows_masked_loads: bool,
    /// Bits of the vectors in which a core best moves what its second cache does not hold, where those are not the widest that it has.
    pub streamed_bits: Option<u32>,
}

/// A device that runs blocks of threads, each block with memory that its threads share.
#[derive(Clone, PartialEq, Debug)]
pub struct Gpu {
    /// What generates code for it.
    pub emitter: Arc<Emitter>,
    /// Bytes of shared memory that a block may use without asking the driver for more.
    pub shared_bytes: i64,
    /// Bytes of it that a block may use if the driver is asked; the rest of a multiprocessor then has few blocks, or none.
    pub opt_in_shared_bytes: i64,
    /// Multiprocessors: as many blocks run at the same time, at least.
    pub multiprocessors: i64,
    /// What each of them has for its blocks.
    pub multiprocessor: Multiprocessor,
    /// Bytes a second of its memory.
    pub bytes_per_second: f64,
    /// f32 operations a second (a fused multiply-add counts 2).
    pub f32_flops_per_second: f64,
    /// Operations a second of matrix instructions on 16-bit floats; on tf32 half as many.
    pub matrix_flops_per_second: f64,
    /// Seconds that a launch takes besides the work.
    pub launch_seconds: f64,
    /// The library that multiplies matrices there. Without one, kernels do.
    pub products: Option<ProductLibrary>,
}

impl Cpu {
    /// A modest machine, where nothing is known of the real one: 32 KiB, 1 MiB and 32 MiB of cache, 3 vector instructions a
    /// nanosecond.
    pub fn modest(emitter: Arc<Emitter>) -> Cpu {
        Cpu::with_emitters(vec![CpuEmitter::modest(emitter)])
    }

    /// As [`Cpu::modest`], with a choice of code generators. There is at least one, and the first has every operation.
    pub fn with_emitters(emitters: Vec<CpuEmitter>) -> Cpu {
        Cpu {
            emitters,
            panel_elements: 64,
            products: HostProducts::default(),
            threads: 1,
            l1_bytes: 32 << 10,
            l2_bytes: 1 << 20,
            l3_bytes: 32 << 20,
            bytes_per_second: [100e9, 40e9, 15e9],
            f32_flops_per_second: 200e9,
            streams_lines: false,
            feeds_tiles: false,
            follows_distant_rows: false,
            follows_masked_loads: true,
            streamed_bits: None,
        }
    }

    /// Bytes of the second-level cache that a kernel may count on: the other half belongs to what streams through it.
    pub fn resident_bytes(&self) -> i64 {
        i64::try_from(self.l2_bytes / 2).unwrap_or(i64::MAX)
    }

    /// Bytes of a convolution's weights that are read again for one row of pixels after another: what the second-level cache holds beside the
    /// image, or all of it where weights come in time from further away.
    pub fn weight_block_bytes(&self) -> i64 {
        match self.streams_lines {
            true => self.resident_bytes().saturating_mul(2),
            false => self.resident_bytes(),
        }
    }

    /// Where a product with a vector runs along the lines of its matrix at the speed of the caches: the most bytes of a matrix of which it runs
    /// across them all the same if the vector is long. `None` where across is the faster way for all.
    pub fn turned_bytes(&self) -> Option<u64> {
        self.streams_lines.then_some(self.l3_bytes / 2)
    }

    /// One of its code generators.
    ///
    /// # Panics
    /// If there is none of that number.
    pub fn emitter(&self, id: EmitterId) -> &CpuEmitter {
        &self.emitters[id.0 as usize]
    }

    /// The least time, in nanoseconds, that a thread needs to move `bytes` and compute `flops` at full width (a library's
    /// product), and which of the two it is: `bytes` or `flops`.
    pub fn floor_ns(&self, bytes: u64, flops: u64) -> (f64, &'static str) {
        self.floor_at(bytes, flops, self.f32_flops_per_second)
    }

    /// As [`Cpu::floor_ns`], for a product of bf16 that the library has.
    pub fn halves_floor_ns(&self, bytes: u64, flops: u64) -> (f64, &'static str) {
        self.floor_at(bytes, flops, self.f32_flops_per_second * self.products.halves_gain())
    }

    /// As [`Cpu::floor_ns`], for a kernel: its arithmetic runs at the lanes that the fastest emitter has, one operation an instruction.
    pub fn kernel_floor_ns(&self, bytes: u64, flops: u64) -> (f64, &'static str) {
        let rates = self.emitters.iter().map(CpuEmitter::f32_ops_per_second);
        self.floor_at(bytes, flops, rates.fold(1.0, f64::max))
    }

    fn floor_at(&self, bytes: u64, flops: u64, flops_per_second: f64) -> (f64, &'static str) {
        let bandwidth = match bytes {
            b if b <= self.l2_bytes => self.bytes_per_second[0],
            b if b <= self.l3_bytes => self.bytes_per_second[1],
            _ => self.bytes_per_second[2],
        };
        longer(bytes as f64 / bandwidth, flops as f64 / flops_per_second)
    }
}

/// The longer of two times in seconds, in nanoseconds, and which it is.
fn longer(moving: f64, computing: f64) -> (f64, &'static str) {
    match moving >= computing {
        true => (moving * 1e9, "bytes"),
        false => (computing * 1e9, "flops"),
    }
}

impl Gpu {
    /// What every device of compute capability 8.0 and later has; at the speeds of an A100 with 40 GB (NVIDIA A100 Tensor Core GPU
    /// data sheet), three microseconds a launch.
    pub fn any(emitter: Arc<Emitter>) -> Gpu {
        Gpu {
            emitter,
            shared_bytes: STATIC_SHARED_BYTES,
            opt_in_shared_bytes: LEAST_OPT_IN_SHARED_BYTES,
            multiprocessors: 108,
            multiprocessor: Multiprocessor::of((0, 0)),
            bytes_per_second: 1.555e12,
            f32_flops_per_second: 19.5e12,
            matrix_flops_per_second: 312e12,
            launch_seconds: 3e-6,
            products: Some(ProductLibrary {
                share: LibraryShare::All,
                narrow: false,
                workspace_bytes: 4 << 10,
            }),
        }
    }

    /// Bytes of shared memory that a block of a device of that compute capability may be given if the driver is asked (CUDA C++
    /// Programming Guide, "Compute Capabilities"); of one that is not known, what all have.
    pub fn opt_in_of(capability: (i32, i32)) -> i64 {
        match capability {
            (8, 0 | 7) => 163 << 10,
            (9..=11, _) => MOST_OPT_IN_SHARED_BYTES,
            _ => LEAST_OPT_IN_SHARED_BYTES,
        }
    }

    /// The least time, in nanoseconds, to move `bytes` and compute `flops`, besides the launch, by matrix instructions on that type if there
    /// are some; and which of the two it is: `bytes` or `flops`.
    pub fn floor_ns(&self, bytes: u64, flops: u64, matrices: Option<DType>) -> (f64, &'static str) {
        let computing = flops as f64 / self.flops_per_second(matrices);
        longer(bytes as f64 / self.bytes_per_second, computing)
    }

    /// Operations a second, by matrix instructions on that type if there are some.
    fn flops_per_second(&self, matrices: Option<DType>) -> f64 {
        match matrices {
            Some(DType::F16 | DType::BF16) => self.matrix_flops_per_second,
            Some(DType::F32) => self.matrix_flops_per_second / 2.0,
            _ => self.f32_flops_per_second,
        }
    }
}

impl Target {
    /// One of its code generators. A GPU has one.
    ///
    /// # Panics
    /// If there is none of that number.
    pub fn emitter(&self, id: EmitterId) -> &Arc<Emitter> {
        match self {
            Target::Cpu(cpu) => &cpu.emitter(id).table,
            Target::Gpu(gpu) => &gpu.emitter,
        }
    }

    /// Bytes that stay close to whoever computes a row or a tile of columns: half of a core's second-level cache, or the
    /// shared memory of a block.
    pub fn resident_bytes(&self) -> i64 {
        match self {
            Target::Cpu(cpu) => cpu.resident_bytes(),
            Target::Gpu(gpu) => gpu.shared_bytes,
        }
    }
}

impl Target {
    /// Bytes of a row that stay close to whoever computes it, phase after phase: half of a core's second-level cache, or what a block of
    /// a GPU may share, less what its threads combine.
    pub fn row_bytes(&self) -> i64 {
        match self {
            Target::Cpu(cpu) => cpu.resident_bytes(),
            Target::Gpu(gpu) => gpu.shared_bytes.max(gpu.opt_in_shared_bytes - COMBINED_BYTES),
        }
    }
}

impl From<Cpu> for Target {
    fn from(cpu: Cpu) -> Target {
        Target::Cpu(cpu)
    }
}

impl From<Gpu> for Target {
    fn from(gpu: Gpu) -> Target {
        Target::Gpu(gpu)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_of_bf16_are_as_fast_as_their_instructions() {
        let emitter = Emitter::new(
            "none",
            128,
            16,
            true,
            |_, _, _| Support::Native,
            |_, _, _| Support::Native,
        );
        let mut cpu = Cpu::modest(Arc::new(emitter));
        let floors = |cpu: &Cpu| [cpu.halves_floor_ns(1, 1 << 30).0, cpu.floor_ns(1, 1 << 30).0];
        let [halves, singles] = floors(&cpu);
        assert_eq!(halves, singles, "without instructions for them they are f32's");
        for (vectors, gain) in [(true, 2.0), (false, 16.0)] {
            cpu.products = HostProducts {
                halves: true,
                vectors,
                ..HostProducts::default()
            };
            assert_eq!(floors(&cpu), [singles / gain, singles]);
        }
        assert_eq!(cpu.halves_floor_ns(1 << 30, 1).1, "bytes");
    }
}
