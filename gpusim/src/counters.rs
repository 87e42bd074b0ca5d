//! What a launch did, counted exactly.

use std::collections::{BTreeMap, HashMap};

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

/// What instructions of one line of the source did, or those of one line of PTX where no source is named.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct LineCounters {
    /// The source's name, if PTX names it.
    pub file: Option<String>,
    /// The line in it, or in the PTX text.
    pub line: u32,
    /// The words of the line, if the PTX text has its source behind it.
    pub text: Option<String>,
    /// Instructions that lanes executed.
    pub lane_instructions: u64,
    /// Sectors of 32 bytes of global memory that requests touched.
    pub sectors: u64,
    /// Cycles lost to bank conflicts.
    pub bank_conflicts: u64,
}

/// Counts of instructions, each by itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct Each {
    /// By function and number of the instruction: instructions of lanes, sectors, cycles lost.
    counts: HashMap<(usize, u32), [u64; 3]>,
    /// The instruction that runs, and what was counted before it: sectors, cycles lost.
    running: (usize, u32),
    before: [u64; 2],
}

impl Each {
    /// Another instruction begins, of so many lanes, after which so much was counted.
    pub(crate) fn begins(&mut self, at: (usize, u32), lanes: u32, now: [u64; 2]) {
        self.ends(now);
        self.running = at;
        self.counts.entry(at).or_default()[0] += u64::from(lanes);
    }

    /// The last instruction has ended.
    pub(crate) fn ends(&mut self, now: [u64; 2]) {
        if now != self.before {
            let count = self.counts.entry(self.running).or_default();
            count[1] += now[0] - self.before[0];
            count[2] += now[1] - self.before[1];
            self.before = now;
        }
    }

    /// The counts by lines, which `line_of` says of instructions, in the order of names and lines.
    pub(crate) fn by_lines(&self, line_of: impl Fn(usize, u32) -> LineCounters) -> Vec<LineCounters> {
        let mut lines: BTreeMap<LineCounters, [u64; 3]> = BTreeMap::new();
        for (&(code, pc), counts) in &self.counts {
            let sum = lines.entry(line_of(code, pc)).or_default();
            sum.iter_mut().zip(counts).for_each(|(s, c)| *s += c);
        }
        let counted = |(line, counts): (LineCounters, [u64; 3])| LineCounters {
            lane_instructions: counts[0],
            sectors: counts[1],
            bank_conflicts: counts[2],
            ..line
        };
        lines.into_iter().map(counted).collect()
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
    /// By line, if [`Options::lines`](crate::Options::lines) asked.
    pub lines: Vec<LineCounters>,
}

impl Counters {
    /// Sectors of global memory and cycles lost to bank conflicts so far.
    pub(crate) fn memory(&self) -> [u64; 2] {
        let sectors = self.global_loads.sectors + self.global_stores.sectors + self.global_atomics.sectors;
        [sectors, self.bank_conflicts]
    }

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
