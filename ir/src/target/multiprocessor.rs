//! How many blocks of a kernel a multiprocessor of a GPU holds at once, and what keeps it from more.
//!
//! The counting is that of the CUDA Occupancy Calculator for devices of compute capability 8.0 and later: registers go to warps, in
//! units and from one of four parts of the register file; shared memory goes to blocks.

use std::fmt;

use super::WARP_THREADS;

/// Registers go to warps in multiples of so many.
const REGISTER_UNIT: i64 = 256;
/// Parts of a multiprocessor, each with its registers and warps of its own.
const PARTS: i64 = 4;
/// Shared memory goes to blocks in multiples of so many bytes.
const SHARED_UNIT: i64 = 128;

/// Threads that a multiprocessor is to have registers for at least: half of what one of compute capability 8.0 holds, 64 each.
const HALF_FULL: i64 = 1024;

/// The fewest blocks of so many threads that fill half of a multiprocessor, which their registers are to leave room for.
pub fn half_full_blocks(threads: i64) -> i64 {
    let warps = (threads + WARP_THREADS - 1) / WARP_THREADS;
    (HALF_FULL / WARP_THREADS + warps - 1) / warps.max(1)
}

/// What a multiprocessor has for the blocks that it runs at the same time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Multiprocessor {
    /// Bytes of shared memory.
    pub shared_bytes: i64,
    /// Bytes of it that the system takes for each block.
    pub reserved_bytes: i64,
    /// Registers of 32 bits.
    pub registers: i64,
    /// Threads.
    pub threads: i64,
    /// Blocks.
    pub blocks: i64,
}

/// What keeps a multiprocessor from more blocks of a kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limiter {
    /// The most blocks that it holds.
    Blocks,
    /// The most threads that it holds.
    Threads,
    /// Its registers.
    Registers,
    /// Its shared memory.
    SharedMemory,
}

impl Limiter {
    /// Its name in machine-readable output.
    pub fn name(self) -> &'static str {
        match self {
            Limiter::Blocks => "blocks",
            Limiter::Threads => "threads",
            Limiter::Registers => "registers",
            Limiter::SharedMemory => "shared_memory",
        }
    }
}

impl fmt::Display for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Limiter::Blocks => "the number of blocks",
            Limiter::Threads => "the number of threads",
            Limiter::Registers => "registers",
            Limiter::SharedMemory => "shared memory",
        })
    }
}

/// How full a multiprocessor is of a kernel's blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Occupancy {
    /// Blocks that it holds at once; 0 if not even one fits.
    pub blocks: i64,
    /// Threads of these blocks, in whole warps.
    pub threads: i64,
    /// Threads that it could hold.
    pub most_threads: i64,
    /// Why there are no more. Where several keep it from more, the first of threads, shared memory, registers and blocks.
    pub limiter: Limiter,
}

impl Occupancy {
    /// Threads held, of those that could be, in percent, rounded down.
    pub fn percent(&self) -> i64 {
        100 * self.threads / self.most_threads.max(1)
    }
}

impl fmt::Display for Occupancy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let blocks = if self.blocks == 1 { "block" } else { "blocks" };
        let percent = self.percent();
        write!(
            f,
            "{} {blocks} at once on a multiprocessor, {percent}% of its threads, limited by {}",
            self.blocks, self.limiter
        )
    }
}

impl Multiprocessor {
    /// Those of a compute capability (CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"); of one that is not
    /// known, what each of 8.0 and later has.
    pub fn of(capability: (i32, i32)) -> Multiprocessor {
        let (shared_kib, threads, blocks) = match capability {
            (8, 0) => (164, 2048, 32),
            (8, 7) => (164, 1536, 16),
            (8, 9) | (12, _) => (100, 1536, 24),
            (9, _) | (10, _) => (228, 2048, 32),
            (11, _) => (228, 1536, 24),
            _ => (100, 1536, 16),
        };
        Multiprocessor {
            shared_bytes: shared_kib << 10,
            reserved_bytes: 1 << 10,
            registers: 64 << 10,
            threads,
            blocks,
        }
    }

    /// How many blocks of so many threads and bytes of shared memory it holds, whose threads have so many registers each, where that is
    /// known.
    pub fn occupancy(&self, threads: i64, shared_bytes: i64, registers: Option<i64>) -> Occupancy {
        let up = |n: i64, unit: i64| n.max(0).saturating_add(unit - 1) / unit * unit;
        let warps = up(threads.max(1), WARP_THREADS) / WARP_THREADS;
        let by_threads = self.threads / WARP_THREADS / warps;
        let shared = up(shared_bytes, SHARED_UNIT).saturating_add(self.reserved_bytes);
        let by_shared = self.shared_bytes / shared.max(1);
        let mut limits = vec![(by_threads, Limiter::Threads), (by_shared, Limiter::SharedMemory)];
        if let Some(registers) = registers.filter(|n| *n > 0) {
            let of_warp = up(registers.saturating_mul(WARP_THREADS), REGISTER_UNIT);
            let held = self.registers / PARTS / of_warp * PARTS;
            limits.push((held / warps, Limiter::Registers));
        }
        limits.push((self.blocks, Limiter::Blocks));
        let (mut blocks, mut limiter) = limits[0];
        for (n, by) in limits.into_iter().skip(1) {
            if n < blocks {
                (blocks, limiter) = (n, by);
            }
        }
        Occupancy {
            blocks,
            threads: blocks * warps * WARP_THREADS,
            most_threads: self.threads,
            limiter,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Figures of the CUDA Occupancy Calculator.
    #[test]
    fn blocks_are_counted_as_the_occupancy_calculator_counts_them() {
        let a100 = Multiprocessor::of((8, 0));
        let h100 = Multiprocessor::of((9, 0));
        let of = |m: Multiprocessor, threads, shared, registers| {
            let o = m.occupancy(threads, shared, registers);
            (o.blocks, o.percent(), o.limiter)
        };
        assert_eq!(of(a100, 256, 0, None), (8, 100, Limiter::Threads));
        assert_eq!(of(a100, 256, 0, Some(32)), (8, 100, Limiter::Threads));
        assert_eq!(of(a100, 256, 0, Some(33)), (6, 75, Limiter::Registers));
        assert_eq!(of(a100, 256, 0, Some(64)), (4, 50, Limiter::Registers));
        assert_eq!(of(a100, 256, 0, Some(255)), (1, 12, Limiter::Registers));
        assert_eq!(of(a100, 32, 0, Some(16)), (32, 50, Limiter::Blocks));
        assert_eq!(of(a100, 128, 48 << 10, Some(64)), (3, 18, Limiter::SharedMemory));
        assert_eq!(of(h100, 128, 48 << 10, Some(64)), (4, 25, Limiter::SharedMemory));
        assert_eq!(of(h100, 1024, 227 << 10, None), (1, 50, Limiter::SharedMemory));
        assert_eq!(of(h100, 33, 0, None), (32, 100, Limiter::Threads));
        let half: Vec<i64> = [32, 33, 256, 1024].into_iter().map(half_full_blocks).collect();
        assert_eq!(half, [32, 16, 4, 1]);
        // What no multiprocessor holds, and sizes that no kernel has.
        assert_eq!(of(h100, 1024, 228 << 10, None).0, 0);
        assert_eq!(of(h100, 1024, 0, Some(65)).0, 0);
        assert_eq!(of(h100, 0, i64::MAX, Some(i64::MAX)).0, 0);
    }
}
