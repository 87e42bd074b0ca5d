//! Which accesses are ordered: vector clocks over threads, kept small by how kernels synchronize.
//!
//! A barrier of a whole block orders everything before it, so a block has an epoch. Within an epoch, lanes of a warp know each
//! other's clocks (32 by 32 numbers, changed by warp instructions). What else a thread knows, through fences and single
//! accesses or barriers of some warps, is `Foreign` and mostly empty. Each word of memory remembers its last write and its last
//! readers: one lane, lanes of one warp, or many. A write after many readers counts as ordered if the writer has synchronized
//! by other means than barriers of the block, since who the readers were is not kept but in blocks with barriers in shared memory.
//!
//! What copies of whole tiles write has no thread's clock: it is known to who saw the phase of the barrier that they completed.

mod phases;
mod readers;

pub(crate) use phases::MOST_BARRIERS;

use std::collections::HashMap;

use crate::program::Scope;
use readers::Readers;

/// A thread's number among those of the launch: its block times 1024 plus its number in the block.
pub(crate) const THREADS: u32 = 1024;

const NOBODY: u32 = u32::MAX;

/// The clock of an asynchronous copy that nobody has waited for.
const IN_FLIGHT: u32 = u32::MAX;

/// Clocks from here on are phases of barriers in shared memory.
const OF_PHASES: u32 = 1 << 31;

/// Words of a page of the shadow.
const PAGE: usize = 256;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stamp {
    pub(crate) thread: u32,
    epoch: u32,
    clock: u32,
    /// The code and instruction, as the caller numbers them; [`NOBODY`] where there was no access.
    pub(crate) site: u32,
}

const NEVER: Stamp = Stamp {
    thread: 0,
    epoch: 0,
    clock: 0,
    site: NOBODY,
};

#[derive(Clone, Copy, Debug)]
struct Cell {
    write: Stamp,
    read: Stamp,
    /// The lanes of the reading warp.
    read_lanes: u32,
    /// How far single accesses may race with their like: `None` is an access that may not.
    strong_write: Option<Scope>,
    /// The least of the reads.
    strong_reads: Option<Scope>,
    /// Readers are of several warps; of several blocks.
    many: bool,
    blocks: bool,
    /// The list of readers of several warps, where it is kept.
    list: u32,
}

const EMPTY: Cell = Cell {
    write: NEVER,
    read: NEVER,
    read_lanes: 0,
    strong_write: None,
    strong_reads: None,
    many: false,
    blocks: false,
    list: 0,
};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Read,
    Write,
    /// Accesses that may race with their like of a block or of the device.
    StrongRead(Scope),
    StrongWrite(Scope),
    Atomic(Scope),
    /// The write of an asynchronous copy when it is issued, and when it was waited for.
    Issue,
    Arrival,
    /// The write of a copy that completes in a phase of a barrier.
    Landing(Phase),
}

/// A phase of a barrier in shared memory: the barrier's number in the block, and the phase's among the barrier's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Phase {
    pub(crate) barrier: u32,
    pub(crate) number: u32,
}

impl Kind {
    const fn scope(self) -> Option<Scope> {
        match self {
            Kind::StrongRead(scope) | Kind::StrongWrite(scope) | Kind::Atomic(scope) => Some(scope),
            Kind::Read | Kind::Write | Kind::Issue | Kind::Arrival | Kind::Landing(_) => None,
        }
    }
}

/// A cell for each word, or for each byte where a page has accesses to less than words.
#[derive(Debug)]
struct Page {
    cells: Vec<Cell>,
    by_byte: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Shadow {
    pages: Vec<Option<Box<Page>>>,
    readers: Readers,
}

impl Shadow {
    fn clear(&mut self) {
        for page in self.pages.iter_mut().flatten() {
            page.cells.fill(EMPTY);
        }
        self.readers.clear();
    }

    fn cells(&mut self, at: usize, bytes: u32) -> (&mut [Cell], &mut Readers) {
        let index = at / (PAGE * 4);
        if index >= self.pages.len() {
            self.pages.resize_with(index + 1, || None);
        }
        let page = self.pages[index].get_or_insert_with(|| {
            Box::new(Page {
                cells: vec![EMPTY; PAGE],
                by_byte: false,
            })
        });
        let within = at % (PAGE * 4);
        if !page.by_byte && (!at.is_multiple_of(4) || !bytes.is_multiple_of(4)) {
            page.cells = page.cells.iter().flat_map(|&c| [Cell { list: 0, ..c }; 4]).collect();
            page.by_byte = true;
        }
        let (first, count) = if page.by_byte {
            (within, bytes as usize)
        } else {
            (within / 4, (bytes as usize).div_ceil(4))
        };
        let end = (first + count).min(page.cells.len());
        (&mut page.cells[first..end], &mut self.readers)
    }
}

/// What a thread knows of threads outside of its warp.
#[derive(Clone, Debug, Default)]
struct Foreign {
    /// Of a block: everything before this epoch.
    blocks: HashMap<u32, u32>,
    /// Of a warp: everything up to these clocks.
    warps: HashMap<u32, [u32; 32]>,
    /// Of a block's barrier in shared memory: everything before this phase.
    phases: HashMap<(u32, u32), u32>,
}

impl Foreign {
    fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.warps.is_empty()
    }

    fn learn(&mut self, other: &Foreign) {
        for (&block, &epoch) in &other.blocks {
            let known = self.blocks.entry(block).or_insert(0);
            *known = epoch.max(*known);
        }
        for (&warp, clocks) in &other.warps {
            let known = self.warps.entry(warp).or_insert([0; 32]);
            for (k, &c) in known.iter_mut().zip(clocks) {
                *k = c.max(*k);
            }
        }
        for (&barrier, &phase) in &other.phases {
            let known = self.phases.entry(barrier).or_insert(0);
            *known = phase.max(*known);
        }
    }

    fn covers(&self, stamp: Stamp) -> bool {
        let before = self
            .blocks
            .get(&(stamp.thread / THREADS))
            .is_some_and(|&e| e > stamp.epoch);
        before
            || self
                .warps
                .get(&(stamp.thread / 32))
                .is_some_and(|c| c[(stamp.thread % 32) as usize] >= stamp.clock)
    }
}

/// What was handed on at a place that others may wait for.
#[derive(Debug, Default)]
struct Variable {
    /// To everyone on the device.
    wide: Foreign,
    /// To threads of the block that handed it on; among it is what is handed to everyone.
    near: HashMap<u32, Foreign>,
}

impl Variable {
    fn is_empty(&self) -> bool {
        self.wide.is_empty() && self.near.is_empty()
    }
}

/// What a thread hands on or saw: with everyone on the device, and with its block.
#[derive(Clone, Debug, Default)]
struct Passed {
    wide: Foreign,
    near: Foreign,
}

#[derive(Debug)]
struct WarpClocks {
    /// What each lane knows of each; of itself, its clock.
    known: Box<[[u32; 32]; 32]>,
    foreign: Vec<Foreign>,
    /// What a fence made ready to be handed on.
    released: Vec<Option<Box<Passed>>>,
    /// What single reads saw, for the next fence.
    seen: Vec<Passed>,
    has_foreign: bool,
    /// For each barrier in shared memory, the phase before which each lane knows of everything.
    phases: Vec<[u32; 32]>,
}

impl WarpClocks {
    fn new() -> WarpClocks {
        let mut known = Box::new([[0; 32]; 32]);
        for (lane, row) in known.iter_mut().enumerate() {
            row[lane] = 1;
        }
        WarpClocks {
            known,
            foreign: vec![Foreign::default(); 32],
            released: vec![None; 32],
            seen: vec![Passed::default(); 32],
            has_foreign: false,
            phases: Vec::new(),
        }
    }
}

/// The clocks of a block, and the shadow of its shared memory.
#[derive(Debug)]
pub(crate) struct BlockClocks {
    number: u32,
    epoch: u32,
    warps: Vec<WarpClocks>,
    shared: Shadow,
    shared_sync: HashMap<usize, Variable>,
    /// What each barrier in shared memory hands on.
    handed: Vec<phases::Handed>,
}

impl BlockClocks {
    pub(crate) fn new(number: u32, warps: u32) -> BlockClocks {
        BlockClocks {
            number,
            epoch: 1,
            warps: (0..warps).map(|_| WarpClocks::new()).collect(),
            shared: Shadow::default(),
            shared_sync: HashMap::new(),
            handed: Vec::new(),
        }
    }

    /// Makes the clocks of another block of them.
    pub(crate) fn restart(&mut self, number: u32) {
        self.number = number;
        self.epoch = 1;
        for warp in &mut self.warps {
            *warp = WarpClocks::new();
        }
        self.shared.clear();
        self.shared_sync.clear();
        self.handed.clear();
    }

    /// Lanes of a warp meet.
    pub(crate) fn warp_sync(&mut self, warp: u32, mask: u32) {
        let clocks = &mut self.warps[warp as usize];
        let mut merged = [0; 32];
        for lane in (0..32).filter(|l| mask >> l & 1 == 1) {
            for (m, &k) in merged.iter_mut().zip(&clocks.known[lane]) {
                *m = k.max(*m);
            }
        }
        for lane in (0..32).filter(|l| mask >> l & 1 == 1) {
            clocks.known[lane] = merged;
            clocks.known[lane][lane] += 1;
        }
        if clocks.has_foreign {
            let mut all = Foreign::default();
            for lane in (0..32).filter(|l| mask >> l & 1 == 1) {
                all.learn(&clocks.foreign[lane]);
            }
            for lane in (0..32).filter(|l| mask >> l & 1 == 1) {
                clocks.foreign[lane] = all.clone();
            }
        }
        self.share_phases(&[(warp, mask)]);
    }

    /// Lanes of warps meet at a barrier; `whole` if all of the block do.
    pub(crate) fn barrier(&mut self, arrived: &[(u32, u32)], whole: bool) {
        let base = self.number * (THREADS / 32);
        let mut all = Foreign::default();
        let with_foreign = self.warps.iter().any(|w| w.has_foreign);
        self.share_phases(arrived);
        if whole && !with_foreign {
            self.epoch += 1;
            return;
        }
        for &(warp, mask) in arrived {
            self.warp_sync(warp, mask);
            let clocks = &self.warps[warp as usize];
            let first = (mask.trailing_zeros() & 31) as usize;
            let mut known = clocks.known[first];
            // Every clock of the meeting itself is below what the lanes do next.
            for lane in (0..32).filter(|l| mask >> l & 1 == 1) {
                known[lane] = clocks.known[lane][lane] - 1;
            }
            all.learn(&clocks.foreign[first]);
            if !whole {
                all.learn(&Foreign {
                    warps: HashMap::from([(base + warp, known)]),
                    ..Foreign::default()
                });
            }
        }
        for &(warp, mask) in arrived {
            let clocks = &mut self.warps[warp as usize];
            clocks.has_foreign = true;
            for lane in (0..32).filter(|l| mask >> l & 1 == 1) {
                clocks.foreign[lane].learn(&all);
            }
        }
        if whole {
            self.epoch += 1;
            self.forget_own();
        }
    }

    /// A thread orders what it did before what it does next, for others of its block or of the device to see; and sees what it read
    /// by single accesses from them.
    pub(crate) fn fence(&mut self, warp: u32, lane: usize, scope: Scope) {
        let (number, epoch) = (self.number, self.epoch);
        let clocks = &mut self.warps[warp as usize];
        let mut seen = std::mem::take(&mut clocks.seen[lane].near);
        if scope == Scope::Device {
            seen.learn(&std::mem::take(&mut clocks.seen[lane].wide));
        }
        clocks.see_phases(number, lane, &mut seen);
        if !seen.is_empty() {
            clocks.foreign[lane].learn(&seen);
            clocks.has_foreign = true;
        }
        let known = clocks.all_known(number, epoch, warp, lane);
        let released = clocks.released[lane].get_or_insert_default();
        if scope == Scope::Device {
            released.wide = known.clone();
        }
        released.near = known;
        clocks.known[lane][lane] += 1;
    }

    fn is_ordered(&self, stamp: Stamp, warp: u32, lane: usize) -> bool {
        if stamp.clock >= OF_PHASES {
            return stamp.clock != IN_FLIGHT && self.knows_phase(stamp, warp, lane);
        }
        let block = stamp.thread / THREADS;
        let clocks = &self.warps[warp as usize];
        if block == self.number {
            if stamp.epoch < self.epoch {
                return true;
            }
            if stamp.thread % THREADS / 32 == warp {
                let other = (stamp.thread % 32) as usize;
                if other == lane || clocks.known[lane][other] >= stamp.clock {
                    return true;
                }
            }
        }
        clocks.has_foreign && clocks.foreign[lane].covers(stamp)
    }

    fn reads_are_ordered(&self, cell: &Cell, readers: &Readers, warp: u32, lane: usize) -> bool {
        let block = cell.read.thread / THREADS;
        if cell.list != 0 && !cell.blocks {
            return readers.of(cell.list).all(|stamp| self.is_ordered(stamp, warp, lane));
        }
        if cell.many || cell.blocks {
            let clocks = &self.warps[warp as usize];
            let synchronized = clocks.has_foreign && !clocks.foreign[lane].is_empty();
            return synchronized || !cell.blocks && block == self.number && cell.read.epoch < self.epoch;
        }
        let base = cell.read.thread / 32 * 32;
        (0..32).filter(|l| cell.read_lanes >> l & 1 == 1).all(|l| {
            self.is_ordered(
                Stamp {
                    thread: base + l,
                    ..cell.read
                },
                warp,
                lane,
            )
        })
    }

    fn touch(
        &self,
        cell: &mut Cell,
        readers: &mut Readers,
        (warp, lane): (u32, usize),
        kind: Kind,
        site: u32,
    ) -> Option<Stamp> {
        let thread = self.number * THREADS + warp * 32 + lane as u32;
        let clock = match kind {
            Kind::Issue => IN_FLIGHT,
            Kind::Landing(phase) => phase.clock(),
            _ => self.warps[warp as usize].known[lane][lane],
        };
        let stamp = Stamp {
            thread,
            epoch: self.epoch,
            clock,
            site,
        };
        if matches!(kind, Kind::Arrival | Kind::Landing(_)) {
            cell.write = stamp;
            return None;
        }
        let scope = kind.scope();
        // Single accesses race with their like only where each is of a scope that the other's thread is in.
        let among = |other: Option<Scope>, is_near: bool| match (scope, other) {
            (Some(Scope::Device), Some(Scope::Device)) => true,
            (Some(_), Some(_)) => is_near,
            (None, _) | (_, None) => false,
        };
        let is_near = |stamp: Stamp| stamp.thread / THREADS == self.number;
        let after_write = cell.write.site == NOBODY
            || among(cell.strong_write, is_near(cell.write))
            || self.is_ordered(cell.write, warp, lane);
        let mut conflict = if after_write { None } else { Some(cell.write) };
        let reading = matches!(kind, Kind::Read | Kind::StrongRead(_));
        if reading {
            let mine = cell.read.site == NOBODY
                || cell.read.thread == thread && !cell.many
                || !(cell.many || cell.blocks) && self.reads_are_ordered(cell, readers, warp, lane)
                || cell.many
                    && !cell.blocks
                    && cell.read.epoch < self.epoch
                    && cell.read.thread / THREADS == self.number;
            if mine {
                readers.remove(cell.list);
                cell.list = 0;
                cell.read = stamp;
                cell.read_lanes = 1 << lane;
                cell.strong_reads = scope;
                cell.many = false;
                cell.blocks = false;
            } else {
                cell.strong_reads = cell.strong_reads.min(scope);
                self.keep_reader(cell, readers, stamp);
                if cell.read.thread / THREADS != self.number {
                    cell.blocks = true;
                } else if cell.read.thread / 32 != thread / 32 {
                    cell.many = true;
                    cell.read.epoch = cell.read.epoch.max(self.epoch);
                } else {
                    cell.read_lanes |= 1 << lane;
                    cell.read.epoch = cell.read.epoch.max(self.epoch);
                    cell.read.clock = cell.read.clock.max(clock);
                }
            }
            return conflict;
        }
        let after_reads = cell.read.site == NOBODY
            || among(cell.strong_reads, is_near(cell.read) && !cell.blocks)
            || self.reads_are_ordered(cell, readers, warp, lane);
        if !after_reads {
            conflict = conflict.or(Some(cell.read));
        }
        readers.remove(cell.list);
        *cell = Cell {
            write: stamp,
            strong_write: scope,
            ..EMPTY
        };
        conflict
    }

    /// Remembers one more reader of a word, where barriers in shared memory may order what comes behind them all.
    fn keep_reader(&self, cell: &mut Cell, readers: &mut Readers, stamp: Stamp) {
        let is_near = cell.read.thread / THREADS == self.number && !cell.blocks;
        if self.handed.is_empty() || !is_near {
            return;
        }
        if cell.list == 0 {
            let is_first = !cell.many && cell.read.thread / 32 != stamp.thread / 32;
            if !is_first {
                return;
            }
            readers.add(&mut cell.list, cell.read, cell.read_lanes);
        }
        readers.add(&mut cell.list, stamp, 1 << (stamp.thread % 32));
    }

    /// An access to shared memory: the access that it races with, if any.
    pub(crate) fn shared(&mut self, at: usize, bytes: u32, who: (u32, usize), kind: Kind, site: u32) -> Option<Stamp> {
        let mut shadow = std::mem::take(&mut self.shared);
        let conflict = self.walk(&mut shadow, at, bytes, who, kind, site);
        self.shared = shadow;
        conflict
    }

    fn walk(
        &self,
        shadow: &mut Shadow,
        at: usize,
        bytes: u32,
        who: (u32, usize),
        kind: Kind,
        site: u32,
    ) -> Option<Stamp> {
        let mut conflict = None;
        let (cells, readers) = shadow.cells(at, bytes);
        for cell in cells {
            conflict = conflict.or(self.touch(cell, readers, who, kind, site));
        }
        conflict
    }

    /// A single access to a place that others may wait for: hands on what a fence released, and sees what others did.
    fn hand_on(&mut self, variable: &mut Variable, (warp, lane): (u32, usize), kind: Kind) {
        let clocks = &mut self.warps[warp as usize];
        let is_wide = kind.scope() == Some(Scope::Device);
        if matches!(kind, Kind::Atomic(_) | Kind::StrongRead(_)) && !variable.is_empty() {
            let seen = &mut clocks.seen[lane];
            if is_wide {
                seen.wide.learn(&variable.wide);
            }
            if let Some(near) = variable.near.get(&self.number) {
                seen.near.learn(near);
            }
        }
        if matches!(kind, Kind::Atomic(_) | Kind::StrongWrite(_))
            && let Some(released) = &clocks.released[lane]
        {
            if is_wide {
                variable.wide.learn(&released.wide);
            }
            variable.near.entry(self.number).or_default().learn(&released.near);
        }
    }

    /// The same of a place in shared memory.
    pub(crate) fn hand_on_shared(&mut self, at: usize, who: (u32, usize), kind: Kind) {
        let mut variable = self.shared_sync.remove(&at).unwrap_or_default();
        self.hand_on(&mut variable, who, kind);
        if !variable.is_empty() {
            self.shared_sync.insert(at, variable);
        }
    }
}

/// The shadow of device memory during a launch.
#[derive(Debug, Default)]
pub(crate) struct Races {
    shadows: HashMap<usize, Shadow>,
    sync: HashMap<(usize, usize), Variable>,
}

impl Races {
    /// An access to device memory: the access that it races with, if any.
    pub(crate) fn global(
        &mut self,
        block: &BlockClocks,
        (allocation, at): (usize, usize),
        bytes: u32,
        who: (u32, usize),
        kind: Kind,
        site: u32,
    ) -> Option<Stamp> {
        let shadow = self.shadows.entry(allocation).or_default();
        block.walk(shadow, at, bytes, who, kind, site)
    }

    /// See [`BlockClocks::hand_on_shared`].
    pub(crate) fn hand_on(&mut self, block: &mut BlockClocks, place: (usize, usize), who: (u32, usize), kind: Kind) {
        let mut variable = self.sync.remove(&place).unwrap_or_default();
        block.hand_on(&mut variable, who, kind);
        if !variable.is_empty() {
            self.sync.insert(place, variable);
        }
    }
}
