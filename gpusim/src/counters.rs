//! What a launch did, counted exactly.

/// A class of instructions.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Class {
    /// Integer arithmetic and bits.
    Integer,
    /// Arithmetic of f16, bf16 and pairs of them.
    Half,
    /// Arithmetic of f32.
    Single,
    /// Arithmetic of f64.
    Double,
    /// Approximations: `ex2`, `rcp`, `sin` and their kin.
    Special,
    /// Conversions.
    Convert,
    /// Comparisons, selections, predicates.
    Compare,
    /// Moves.
    Move,
    /// Loads of any space.
    Load,
    /// Stores of any space.
    Store,
    /// Atomic operations.
    Atomic,
    /// Asynchronous copies and their groups.
    Copy,
    /// Matrix products and loads of their operands.
    Matrix,
    /// Shuffles, votes and what else goes across a warp.
    Warp,
    /// Barriers and fences.
    Barrier,
    /// Branches, calls, returns.
    Control,
}

/// How many classes there are.
pub(crate) const CLASSES: usize = Class::Control as usize + 1;

/// Accesses to global memory of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Traffic {
    /// Requests: instructions of a warp that accessed global memory.
    pub requests: u64,
    /// Sectors of 32 bytes that those requests touched, each counted once a request.
    pub sectors: u64,
    /// Bytes that lanes asked for.
    pub bytes: u64,
}

impl Traffic {
    /// Sectors over the fewest that could hold the bytes: 1 where accesses are dense and aligned.
    pub fn sector_ratio(&self) -> f64 {
        if self.bytes == 0 {
            1.0
        } else {
            self.sectors as f64 * 32.0 / self.bytes as f64
        }
    }
}

/// Counts of a launch.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    pub(crate) warp: [u64; CLASSES],
    pub(crate) lanes: [u64; CLASSES],
    /// Loads from global memory, asynchronous copies included.
    pub global_loads: Traffic,
    /// Stores to global memory.
    pub global_stores: Traffic,
    /// Atomic operations on global memory.
    pub global_atomics: Traffic,
    /// Bytes that lanes loaded from shared memory.
    pub shared_load_bytes: u64,
    /// Bytes that lanes stored to shared memory.
    pub shared_store_bytes: u64,
    /// Requests to shared memory.
    pub shared_requests: u64,
    /// Cycles that requests to shared memory take beyond those that their bytes need, because lanes meet in a bank.
    pub bank_conflicts: u64,
    /// Bytes that lanes loaded from and stored to local memory.
    pub local_bytes: u64,
    /// Branches that a warp took with any lane.
    pub branches: u64,
    /// Those of them at which lanes parted.
    pub divergent_branches: u64,
    /// Barriers that a block passed.
    pub barriers: u64,
    /// Copies of tiles that threads asked for; what they read is among `global_loads`, a request each.
    pub tile_copies: u64,
    /// Phases of barriers in shared memory that were completed.
    pub phases: u64,
}

impl Counters {
    /// Instructions that lanes executed, of all classes.
    pub fn lane_instructions(&self) -> u64 {
        self.lanes.iter().sum()
    }

    /// Instructions of a class that warps executed.
    pub const fn warps_of(&self, class: Class) -> u64 {
        self.warp[class as usize]
    }

    /// Instructions of a class that lanes executed.
    pub const fn lanes_of(&self, class: Class) -> u64 {
        self.lanes[class as usize]
    }

    /// The part of branches at which the lanes stayed together; 1 if there are none.
    pub fn branch_efficiency(&self) -> f64 {
        if self.branches == 0 {
            1.0
        } else {
            1.0 - self.divergent_branches as f64 / self.branches as f64
        }
    }
}
