//! What this machine can do, measured: the floor that every kernel's time is compared with.
//!
//! Invariants:
//!
//! - Every figure is a median over samples, not the best one: what a kernel can expect, not what it once got.
//! - Bytes are those the program reads and writes. That an ordinary store first fetches its line is the machine's
//!   business; it shows as a lower figure than with non-temporal stores.
//! - A row for `n` threads was measured with all `n` inside their loops at once: they meet before they start, and a
//!   sample in which they did not meet is thrown away.
//! - Footprints are totals over all arrays and threads. The first two cache levels belong to a core, so their rows hold
//!   as much per thread; the third level and memory are shared.
//! - The arrays lie in huge pages where the system grants them, as the runtime's own arena and outputs do.
//! - A sample during which the system gave the core to somebody else is repeated, a few times; the share that was
//!   disturbed all the same is kept ([`HwBench::disturbed_share`]), so that a reader knows what the figures are worth.
//! - What could not be measured is absent (a row) or zero (a figure), never invented.

mod clocks;
mod kernels;

use crate::machine::{Caches, MachineInfo};
use crate::memory::{AlignedBuffer, AllocError};
use crate::pool::{Pool, PoolPanic};
use clocks::{Timer, fault_ns, fork_join_ns, fork_join_shared_ns};
use kernels::{Access, BLOCK_BYTES, Kernels, MULTIPLIES_BESIDE, Xmm};
use serde::{Deserialize, Serialize};

/// The version of [`HwBench`]'s JSON form.
pub const SCHEMA: u32 = 2;

/// The largest [`HwBench::disturbed_share`] of a measurement that is worth keeping.
pub const MOST_DISTURBED: f64 = 0.05;

/// How much time a measurement takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Effort {
    /// Samples that each median is taken of.
    pub samples: usize,
    /// How long one sample runs, in nanoseconds (longer where one pass over the arrays takes longer).
    pub sample_ns: u64,
}

impl Effort {
    /// About half a second: tests, and a first guess.
    pub const QUICK: Effort = Effort {
        samples: 3,
        sample_ns: 500_000,
    };
    /// A few seconds: what `tlc hwbench` does.
    pub const NORMAL: Effort = Effort {
        samples: 15,
        sample_ns: 2_000_000,
    };
    /// Half a minute: for figures to publish.
    pub const THOROUGH: Effort = Effort {
        samples: 61,
        sample_ns: 4_000_000,
    };
}

/// Why a measurement, or reading one back, failed.
#[derive(Debug, thiserror::Error)]
pub enum HwBenchError {
    /// No memory for the arrays.
    #[error(transparent)]
    Memory(#[from] AllocError),
    /// A measuring loop panicked.
    #[error(transparent)]
    Panic(#[from] PoolPanic),
    /// The text is not a measurement.
    #[error("not a hardware measurement: {0}")]
    Json(#[from] serde_json::Error),
    /// The text is a measurement of another version.
    #[error("hardware measurement has schema {found}; expected {SCHEMA}: measure again")]
    Schema {
        /// The version found.
        found: u32,
    },
}

/// What a bandwidth row did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// Reads one array.
    Read,
    /// Reads one array and writes one.
    Copy,
    /// Reads two arrays and writes one.
    Triad,
}

/// Where a row's arrays fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Half of the first-level cache, per thread.
    L1,
    /// Half of the second-level cache, per thread.
    L2,
    /// Half of the third-level cache.
    L3,
    /// Four times the last-level cache (512 MiB and a quarter of the memory at most).
    Memory,
}

/// One measured bandwidth.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct BandwidthRow {
    /// What it did.
    pub operation: Operation,
    /// Where the arrays fit.
    pub level: Level,
    /// The size of all arrays of all threads together, in bytes.
    pub footprint_bytes: u64,
    /// How many threads worked.
    pub threads: usize,
    /// Whether it stored past the caches.
    pub non_temporal: bool,
    /// Bytes read and written per second, all threads together.
    pub bytes_per_second: f64,
}

/// A rate on one thread, and on all threads together.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Rate {
    /// Per second, on one thread.
    pub one_thread: f64,
    /// Per second, on all of [`HwBench::threads`] together.
    pub all_threads: f64,
}

impl Rate {
    /// The rate on `threads` of `all` threads: in between, a straight line.
    #[must_use]
    pub fn at(&self, threads: usize, all: usize) -> f64 {
        blend(self.one_thread, self.all_threads, threads, all)
    }
}

/// The measured limits of this machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HwBench {
    /// The version of this form: [`SCHEMA`].
    pub schema: u32,
    /// The processor, as [`crate::machine::Cpu::key`] names it.
    pub cpu_model: String,
    /// Which loops were used: `avx512`, `avx2` or `portable`.
    pub kernels: String,
    /// The number of threads that "all threads" means.
    pub threads: usize,
    /// The caches that the footprints derive from.
    pub caches: Caches,
    /// The bandwidths.
    pub bandwidth: Vec<BandwidthRow>,
    /// Peak f32 multiply-add rate, in floating-point operations per second (two for each multiply-add).
    pub f32_flops_per_second: Rate,
    /// Peak f64 multiply-add rate, in floating-point operations per second.
    pub f64_flops_per_second: Rate,
    /// 128-bit vector arithmetic instructions per second (a quarter multiply, a quarter multiply-add, half add; four
    /// f32 each): the issue width at the lane width of the portable emitter.
    pub xmm_ops_per_second: Rate,
    /// 128-bit vector instructions per second when half of them are loads from the first-level cache.
    pub xmm_mixed_ops_per_second: Rate,
    /// 128-bit f32 multiply-adds per second, nothing else being issued.
    pub xmm_multiplies_per_second: Rate,
    /// 128-bit f32 divisions per second, nothing else being issued.
    pub xmm_divisions_per_second: Rate,
    /// 128-bit f32 divisions per second when each has sixteen multiply-adds beside it. What those alone
    /// do not take is what a division takes from the units that multiply: [`HwBench::division_in_multiplies`].
    pub xmm_divisions_beside_per_second: Rate,
    /// The cost of the first touch of a fresh 4 KiB page, in nanoseconds.
    pub page_fault_ns: f64,
    /// The cost of the first touch of a fresh 2 MiB range that asked for huge pages, in nanoseconds: one fault where
    /// the system grants them, up to 512 where it does not.
    pub huge_page_fault_ns: f64,
    /// An empty dispatch on all threads with warm workers, in nanoseconds; late workers are not waited for.
    pub fork_join_ns: f64,
    /// A dispatch in which every thread begins a chunk before any ends one, in nanoseconds: what it takes until the
    /// work really is shared. Zero on one thread, or if the threads never met.
    pub fork_join_shared_ns: f64,
    /// The share (0 to 1) of the samples behind the rates and bandwidths during which another program had one of our
    /// cores, although disturbed samples were retried. Far above 0, the machine was busy: measure again.
    pub disturbed_share: f64,
}

impl HwBench {
    /// Measures this machine on one thread and on all threads of `pool`, which should be otherwise idle, as should the
    /// machine. `progress` hears the share done (0 to 1) and what comes next.
    ///
    /// # Errors
    ///
    /// [`HwBenchError::Memory`] if the arrays cannot be allocated.
    pub fn measure(pool: &Pool, effort: Effort, progress: &mut dyn FnMut(f32, &str)) -> Result<Self, HwBenchError> {
        let machine = MachineInfo::detect_without_gpu();
        let kernels = Kernels::best();
        let mut bench = HwBench {
            schema: SCHEMA,
            cpu_model: machine.cpu.key(),
            kernels: kernels.name.to_owned(),
            threads: pool.threads(),
            caches: machine.caches,
            bandwidth: Vec::new(),
            f32_flops_per_second: Rate::default(),
            f64_flops_per_second: Rate::default(),
            xmm_ops_per_second: Rate::default(),
            xmm_mixed_ops_per_second: Rate::default(),
            xmm_multiplies_per_second: Rate::default(),
            xmm_divisions_per_second: Rate::default(),
            xmm_divisions_beside_per_second: Rate::default(),
            page_fault_ns: 0.0,
            huge_page_fault_ns: 0.0,
            fork_join_ns: 0.0,
            fork_join_shared_ns: 0.0,
            disturbed_share: 0.0,
        };
        let timer = Timer::new(pool, effort);
        let mut rate = |share: f32, what: &str, run: &(dyn Fn(u64) -> u64 + Sync)| {
            progress(share, what);
            timer.rates(run)
        };
        bench.f32_flops_per_second = rate(0.0, "f32 multiply-adds", &|rounds| kernels.fma_f32(rounds))?;
        bench.f64_flops_per_second = rate(0.015, "f64 multiply-adds", &|rounds| kernels.fma_f64(rounds))?;
        let xmm = |which| move |rounds| kernels.xmm(rounds, which);
        bench.xmm_ops_per_second = rate(0.03, "128-bit arithmetic", &xmm(Xmm::Arithmetic))?;
        bench.xmm_mixed_ops_per_second = rate(0.04, "128-bit loads", &xmm(Xmm::Mixed))?;
        bench.xmm_multiplies_per_second = rate(0.05, "128-bit multiply-adds", &xmm(Xmm::Multiply))?;
        bench.xmm_divisions_per_second = rate(0.06, "128-bit divisions", &xmm(Xmm::Divide))?;
        bench.xmm_divisions_beside_per_second = rate(0.07, "128-bit divisions", &xmm(Xmm::DivideBeside))?;
        progress(0.08, "fork-join");
        bench.fork_join_ns = fork_join_ns(pool)?;
        bench.fork_join_shared_ns = fork_join_shared_ns(pool)?;
        progress(0.1, "page faults");
        bench.page_fault_ns = fault_ns(effort, 4096, machine.page_bytes)?;
        bench.huge_page_fault_ns = fault_ns(effort, crate::memory::HUGE_PAGE_BYTES, machine.page_bytes)?;
        bench.measure_bandwidths(&timer, &kernels, machine.memory_bytes, progress)?;
        bench.disturbed_share = timer.disturbed_share();
        progress(1.0, "done");
        Ok(bench)
    }

    fn measure_bandwidths(
        &mut self,
        timer: &Timer<'_>,
        kernels: &Kernels,
        memory_bytes: Option<u64>,
        progress: &mut dyn FnMut(f32, &str),
    ) -> Result<(), HwBenchError> {
        let counts = if self.threads > 1 {
            vec![1, self.threads]
        } else {
            vec![1]
        };
        let memory_footprint = memory_footprint(&self.caches, memory_bytes);
        let last = self.caches.last_level_bytes();
        let largest = (self.caches.l1d.bytes.max(self.caches.l2.bytes) * self.threads as u64)
            .max(last)
            .max(memory_footprint);
        // Room for the skew between the arrays of each thread, below.
        let arena = Arena::new(usize::try_from(largest).unwrap_or(usize::MAX), self.threads)?;
        let mut levels = vec![
            (Level::L1, self.caches.l1d.bytes / 2),
            (Level::L2, self.caches.l2.bytes / 2),
        ];
        levels.extend(self.caches.l3.map(|l3| (Level::L3, l3.bytes / 2)));
        levels.push((Level::Memory, memory_footprint));
        let kinds = [
            (Operation::Read, false),
            (Operation::Copy, false),
            (Operation::Copy, true),
            (Operation::Triad, false),
            (Operation::Triad, true),
        ];
        let total = levels.len() * counts.len() * kinds.len();
        let mut done = 0;
        for &(level, level_bytes) in &levels {
            for &threads in &counts {
                for (operation, non_temporal) in kinds {
                    let stores = if non_temporal { " past the caches" } else { "" };
                    let text = format!("{operation:?}{stores} in {level:?} on {threads}").to_lowercase();
                    progress(0.12 + 0.88 * done as f32 / total as f32, &text);
                    done += 1;
                    if non_temporal && !kernels.has_non_temporal {
                        continue;
                    }
                    let share = if level <= Level::L2 {
                        level_bytes
                    } else {
                        level_bytes / threads as u64
                    };
                    let work = arena.split(operation, usize::try_from(share).unwrap_or(usize::MAX));
                    let bytes = work.bytes_per_pass();
                    let per_second = timer.rate(threads, &|thread, passes| {
                        // SAFETY: the arena has room for this many bytes and threads; `Timer` runs each thread number
                        // once at a time, and the parts of different threads are disjoint.
                        unsafe { work.run(kernels, non_temporal, thread, passes) };
                        passes * bytes
                    })?;
                    if let Some(bytes_per_second) = per_second {
                        let footprint_bytes = bytes * threads as u64;
                        let row = BandwidthRow {
                            operation,
                            level,
                            footprint_bytes,
                            threads,
                            non_temporal,
                            bytes_per_second,
                        };
                        self.bandwidth.push(row);
                    }
                }
            }
        }
        Ok(())
    }

    /// How many 128-bit multiply-adds could start in the time that a division takes from them: 0 where a unit of its own
    /// divides. A property of a core, so it is taken from the quieter measurement, that on one thread.
    #[must_use]
    pub fn division_in_multiplies(&self) -> f64 {
        let multiplies = self.xmm_multiplies_per_second.one_thread;
        let beside = self.xmm_divisions_beside_per_second.one_thread;
        if beside > 0.0 {
            (multiplies / beside - MULTIPLIES_BESIDE as f64).max(0.0)
        } else {
            0.0
        }
    }

    /// Where `footprint_bytes` (all arrays, all threads) fit when `threads` share them evenly.
    #[must_use]
    pub fn level(&self, footprint_bytes: u64, threads: usize) -> Level {
        let each = footprint_bytes / threads.max(1) as u64;
        if each <= self.caches.l1d.bytes {
            Level::L1
        } else if each <= self.caches.l2.bytes {
            Level::L2
        } else if self.caches.l3.is_some_and(|l3| footprint_bytes <= l3.bytes) {
            Level::L3
        } else {
            Level::Memory
        }
    }

    /// The bandwidth to expect, in bytes per second, of a kernel whose arrays take `footprint_bytes` and that reads
    /// `reads` bytes for every `writes` bytes it writes (only the ratio counts), on `threads` threads.
    ///
    /// The level follows from the footprint. A mix between those measured is put together from them: pure reads beyond
    /// two reads a write, a share of copy and of triad between one and two; a kernel that writes more than it reads
    /// counts as a copy. Between one and all threads, a straight line. `None` if nothing of the kind was measured.
    #[must_use]
    pub fn bandwidth_bytes_per_second(
        &self,
        footprint_bytes: u64,
        reads: u64,
        writes: u64,
        threads: usize,
        non_temporal: bool,
    ) -> Option<f64> {
        let level = self.level(footprint_bytes, threads);
        let (reads, writes) = (reads as f64, writes as f64);
        let rate = |operation| self.row(operation, level, threads, non_temporal);
        if writes <= 0.0 {
            return rate(Operation::Read);
        }
        let ratio = reads / writes;
        // Times per written byte add up; a triad moves three bytes for each, a copy two.
        if ratio >= 2.0 {
            let seconds = 3.0 / rate(Operation::Triad)? + (ratio - 2.0) / rate(Operation::Read)?;
            Some((ratio + 1.0) / seconds)
        } else if ratio > 1.0 {
            let triad = ratio - 1.0;
            let seconds = triad * 3.0 / rate(Operation::Triad)? + (1.0 - triad) * 2.0 / rate(Operation::Copy)?;
            Some((ratio + 1.0) / seconds)
        } else {
            rate(Operation::Copy)
        }
    }

    /// The better of [`HwBench::bandwidth_bytes_per_second`] with ordinary and with non-temporal stores, and whether
    /// those were non-temporal.
    #[must_use]
    pub fn best_bandwidth(&self, footprint_bytes: u64, reads: u64, writes: u64, threads: usize) -> Option<(f64, bool)> {
        let rate = |nt| {
            Some((
                self.bandwidth_bytes_per_second(footprint_bytes, reads, writes, threads, nt)?,
                nt,
            ))
        };
        match (rate(false), rate(true)) {
            (Some(ordinary), Some(streamed)) if streamed.0 > ordinary.0 && writes > 0 => Some(streamed),
            (None, streamed) => streamed,
            (ordinary, _) => ordinary,
        }
    }

    fn row(&self, operation: Operation, level: Level, threads: usize, non_temporal: bool) -> Option<f64> {
        let streamed = non_temporal && operation != Operation::Read;
        let at = |threads| {
            self.bandwidth
                .iter()
                .find(|row| {
                    (row.operation, row.level, row.threads, row.non_temporal) == (operation, level, threads, streamed)
                })
                .map(|row| row.bytes_per_second)
        };
        let one = at(1)?;
        Some(blend(one, at(self.threads).unwrap_or(one), threads, self.threads))
    }

    /// Whether so many samples were disturbed that the figures say little of the machine: limits that a program then runs
    /// faster than.
    #[must_use]
    pub fn is_disturbed(&self) -> bool {
        self.disturbed_share > MOST_DISTURBED
    }

    /// Speeds, all the larger the better, in an order that depends on what was measured alone.
    fn speeds(&mut self) -> Vec<&mut f64> {
        let rates = [
            &mut self.f32_flops_per_second,
            &mut self.f64_flops_per_second,
            &mut self.xmm_ops_per_second,
            &mut self.xmm_mixed_ops_per_second,
            &mut self.xmm_multiplies_per_second,
            &mut self.xmm_divisions_per_second,
            &mut self.xmm_divisions_beside_per_second,
        ];
        let rates = rates.into_iter().flat_map(|r| [&mut r.one_thread, &mut r.all_threads]);
        let rows = self.bandwidth.iter_mut().map(|row| &mut row.bytes_per_second);
        rates.chain(rows).collect()
    }

    /// Takes the better of each figure of two measurements of one machine: what disturbs one, also where no clock shows it
    /// (another program's use of memory, or a lower frequency), only makes figures worse. Returns the largest factor by
    /// which a speed differed between the two, infinite if they did not measure the same things.
    pub fn combine(&mut self, mut other: HwBench) -> f64 {
        let same_rows = self.bandwidth.len() == other.bandwidth.len()
            && self.bandwidth.iter().zip(&other.bandwidth).all(|(a, b)| {
                (a.operation, a.level, a.threads, a.non_temporal) == (b.operation, b.level, b.threads, b.non_temporal)
            });
        if !same_rows || self.cpu_model != other.cpu_model || self.threads != other.threads {
            return f64::INFINITY;
        }
        let mut factor = 1.0f64;
        for (a, b) in self.speeds().into_iter().zip(other.speeds()) {
            let (less, more) = (a.min(*b), a.max(*b));
            if more > 0.0 {
                factor = factor.max(more / less);
            }
            *a = more;
        }
        let times = [
            (&mut self.page_fault_ns, other.page_fault_ns),
            (&mut self.huge_page_fault_ns, other.huge_page_fault_ns),
            (&mut self.fork_join_ns, other.fork_join_ns),
            (&mut self.fork_join_shared_ns, other.fork_join_shared_ns),
        ];
        for (a, b) in times {
            // Zero is what could not be measured.
            *a = if *a > 0.0 && b > 0.0 { a.min(b) } else { a.max(b) };
        }
        self.disturbed_share = self.disturbed_share.min(other.disturbed_share);
        factor
    }

    /// Whether this was measured on the processor of `machine`.
    #[must_use]
    pub fn is_of(&self, machine: &MachineInfo) -> bool {
        self.cpu_model == machine.cpu.key()
    }

    /// As JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        // Plain numbers, texts and lists: nothing in there can fail.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// From [`HwBench::to_json`]'s text.
    ///
    /// # Errors
    ///
    /// [`HwBenchError::Schema`] for another version, [`HwBenchError::Json`] for anything else that does not fit.
    pub fn from_json(text: &str) -> Result<Self, HwBenchError> {
        #[derive(Deserialize)]
        struct Version {
            schema: u32,
        }
        let Version { schema } = serde_json::from_str(text)?;
        if schema != SCHEMA {
            return Err(HwBenchError::Schema { found: schema });
        }
        Ok(serde_json::from_str(text)?)
    }
}

/// A straight line from `one` at 1 thread to `every` at `all`.
fn blend(one: f64, every: f64, threads: usize, all: usize) -> f64 {
    if threads <= 1 || all <= 1 {
        return one;
    }
    one + (every - one) * (threads.min(all) - 1) as f64 / (all - 1) as f64
}

/// Four times the last-level cache (at least 64 MiB), 512 MiB and a quarter of the memory at most.
fn memory_footprint(caches: &Caches, memory_bytes: Option<u64>) -> u64 {
    let most = memory_bytes.map_or(512 << 20, |bytes| (bytes / 4).min(512 << 20));
    (4 * caches.last_level_bytes()).max(64 << 20).min(most)
}

// ---- arrays --------------------------------------------------------------------------------------------------------

/// Between the arrays of one thread, so that equal indices do not share the low address bits that caches and store
/// buffers go by.
const SKEW_BYTES: usize = 17 * 64;

/// The memory that all rows share.
struct Arena {
    buffer: AlignedBuffer,
    threads: usize,
}

impl Arena {
    fn new(bytes: usize, threads: usize) -> Result<Self, AllocError> {
        let slack = threads * (4 * SKEW_BYTES + 4 * BLOCK_BYTES);
        let mut buffer = AlignedBuffer::zeroed(bytes.saturating_add(slack))?;
        // Fresh pages would fault within the first sample (or all be the one zero page). As f32: an ordinary number,
        // neither zero nor denormal.
        buffer.as_mut_slice().fill(0x3f);
        Ok(Arena { buffer, threads })
    }

    /// Arrays for `operation` that take about `bytes_per_thread`.
    fn split(&self, operation: Operation, bytes_per_thread: usize) -> Work<'_> {
        let (access, arrays) = match operation {
            Operation::Read => (Access::Read, 1),
            Operation::Copy => (Access::Copy, 2),
            Operation::Triad => (Access::Triad, 3),
        };
        let array_bytes = (bytes_per_thread / arrays / BLOCK_BYTES).max(1) * BLOCK_BYTES;
        let stride_bytes = arrays * (array_bytes + SKEW_BYTES);
        Work {
            arena: self,
            access,
            arrays,
            array_bytes,
            stride_bytes,
        }
    }
}

/// One row's arrays.
struct Work<'a> {
    arena: &'a Arena,
    access: Access,
    arrays: usize,
    array_bytes: usize,
    stride_bytes: usize,
}

impl Work<'_> {
    /// Bytes that one thread reads and writes in one pass.
    fn bytes_per_pass(&self) -> u64 {
        (self.arrays * self.array_bytes) as u64
    }

    /// # Safety
    ///
    /// No two calls may run with the same `thread` at once.
    unsafe fn run(&self, kernels: &Kernels, non_temporal: bool, thread: usize, passes: u64) {
        assert!(thread < self.arena.threads && (thread + 1) * self.stride_bytes <= self.arena.buffer.len());
        let base = self.arena.buffer.as_ptr().cast_mut();
        let arrays = std::array::from_fn(|i| {
            let array = if i < self.arrays { i } else { 0 };
            // SAFETY: within the buffer, as just checked.
            unsafe {
                base.add(thread * self.stride_bytes + array * (self.array_bytes + SKEW_BYTES))
                    .cast()
            }
        });
        // SAFETY: the arrays lie within the thread's own stride, are disjoint, and multiples of 64 bytes apart. The
        // buffer is only ever accessed through such pointers while the arena is shared.
        unsafe { kernels.pass(self.access, non_temporal, arrays, self.array_bytes / 4, passes) };
    }
}

#[cfg(test)]
mod tests;
