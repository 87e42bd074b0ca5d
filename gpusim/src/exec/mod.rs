//! Running kernels: a launch, its blocks in turn, the warps of those that are resident.

mod access;
mod atomic;
mod barrier;
mod collective;
mod copy;
mod flight;
mod lane;
mod matrix;
mod phases;
mod private;
mod proxy;
mod schedule;
mod step;
mod tile;
mod tiles;
mod warp;
mod warpgroup;

use private::Private;
use proxy::Proxy;
use schedule::{Dice, Turns};
use warp::{Frame, NONE, Split, Wait, Warp};
use warpgroup::Together;

use crate::arith::Lanes;
use crate::counters::{Counters, Each, LineCounters};
use crate::memory::{Device, Footprint, MemoryError};
use crate::module::Module;
use crate::program::{Code, LaneMask, Program, Special};
use crate::race::{BlockClocks, Races};
use crate::report::{Finding, FindingKind, Report, Site};
use crate::syntax::Space;

pub use schedule::Schedule;

/// Generic addresses of shared memory begin here.
pub(crate) const SHARED_WINDOW: u64 = 1 << 60;
/// Generic addresses of local memory begin here.
pub(crate) const LOCAL_WINDOW: u64 = 2 << 60;
/// Generic addresses of a kernel's parameters begin here.
pub(crate) const PARAM_WINDOW: u64 = 3 << 60;

/// What makes the order of arrivals another than that of warps.
const TILES: u64 = 0x7469_6c65;

/// The most threads of a block.
const MOST_THREADS: u64 = 1024;

/// The most bytes of shared memory of a block: 227 KiB on an H100 or H200.
const MOST_SHARED: u64 = 227 * 1024;

/// An argument of a kernel, as bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Argument(pub Vec<u8>);

macro_rules! arguments {
    ($($t:ty),*) => {
        $(impl From<$t> for Argument {
            fn from(value: $t) -> Argument {
                Argument(value.to_le_bytes().to_vec())
            }
        })*
    };
}
arguments!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64);

/// How a launch runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// Checks of what was never written. Accesses out of bounds are always found.
    pub memcheck: bool,
    /// Checks of accesses without an order.
    pub racecheck: bool,
    /// Checks of barriers and masks.
    pub synccheck: bool,
    /// Counts of memory traffic; instructions are always counted.
    pub traffic: bool,
    /// Counts by lines of the source, for [`Counters::lines`](crate::Counters::lines).
    pub lines: bool,
    /// Which bytes of device memory the launch accesses, for [`Report::footprint`].
    pub footprint: bool,
    /// The order in which warps run.
    pub schedule: Schedule,
    /// The seed of random schedules.
    pub seed: u64,
    /// How many blocks are on the device at a time.
    pub resident_blocks: usize,
    /// After how many instructions of warps without progress (a store, a barrier, an exit) the launch is given up.
    pub patience: u64,
    /// After how many instructions of warps it is given up even if it makes progress.
    pub limit: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            memcheck: true,
            racecheck: true,
            synccheck: true,
            traffic: true,
            lines: false,
            footprint: false,
            schedule: Schedule::RoundRobin,
            seed: 0,
            resident_blocks: 8,
            patience: 20_000_000,
            limit: u64::MAX,
        }
    }
}

impl Options {
    /// Nothing checked that need not be, nothing counted but instructions.
    pub fn fast() -> Options {
        Options {
            memcheck: false,
            racecheck: false,
            synccheck: false,
            traffic: false,
            ..Options::default()
        }
    }
}

/// Why a launch does not begin.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The module has no such kernel.
    #[error("there is no kernel `{0}`")]
    NoKernel(String),
    /// The arguments do not fit.
    #[error("kernel `{kernel}` takes {expected}, not {found}")]
    Arguments {
        /// The kernel.
        kernel: String,
        /// What it takes.
        expected: String,
        /// What was given.
        found: String,
    },
    /// The grid or block has a size that no device runs.
    #[error("{0}")]
    Size(String),
    /// The module's variables find no room.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

/// The size and arguments of a launch.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Launch {
    /// Blocks in each direction.
    pub grid: [u32; 3],
    /// Threads of a block in each direction.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub shared_bytes: u32,
    /// What the kernel takes.
    pub arguments: Vec<Argument>,
}

impl Launch {
    /// A launch of so many blocks of so many threads.
    pub fn new(blocks: u32, threads: u32) -> Launch {
        Launch {
            grid: [blocks, 1, 1],
            block: [threads, 1, 1],
            shared_bytes: 0,
            arguments: Vec::new(),
        }
    }

    /// With dynamic shared memory.
    #[must_use]
    pub const fn shared(mut self, bytes: u32) -> Launch {
        self.shared_bytes = bytes;
        self
    }

    /// With one more argument.
    #[must_use]
    pub fn arg(mut self, argument: impl Into<Argument>) -> Launch {
        self.arguments.push(argument.into());
        self
    }
}

impl Device {
    /// Runs a kernel to its end.
    ///
    /// What is wrong with how the kernel behaves is in the report; an error means that it did not begin.
    ///
    /// # Errors
    /// Any [`LaunchError`].
    pub fn launch(
        &mut self,
        module: &Module,
        kernel: &str,
        launch: &Launch,
        options: &Options,
    ) -> Result<Report, LaunchError> {
        let program = &module.program;
        let index = program
            .names
            .get(kernel)
            .copied()
            .filter(|&i| program.codes[i].is_kernel);
        let Some(index) = index else {
            return Err(LaunchError::NoKernel(kernel.to_string()));
        };
        let code = &program.codes[index];
        let params = arguments(code, launch)?;
        check_size(code, launch)?;
        let globals = self.load(module)?;
        let threads = launch.block.iter().product::<u32>();
        self.bind_slots(&params);
        let mut machine = Machine {
            device: self,
            program,
            kernel: index,
            launch,
            options,
            params,
            globals,
            threads,
            warps_per_block: threads.div_ceil(32),
            has_products: program.has_products(),
            copies_tiles: program.copies_tiles(),
            findings: Vec::new(),
            counters: Counters::default(),
            each: options.lines.then(Each::default),
            races: options.racecheck.then(Races::default),
            turns: Turns::new(options.schedule, options.seed),
            dice: Dice::new(options.seed ^ TILES),
            steps: 0,
            progress: 0,
            polled: 0,
            clock: 0,
        };
        let finished = machine.run();
        if let Some(mut each) = machine.each.take() {
            each.ends(machine.counters.memory());
            machine.counters.lines = each.by_lines(|code, pc| machine.line(code, pc));
        }
        let (findings, counters) = (machine.findings, machine.counters);
        let footprint = if options.footprint {
            self.footprint()
        } else {
            Footprint::default()
        };
        Ok(Report {
            kernel: kernel.to_string(),
            findings,
            counters,
            footprint,
            finished,
        })
    }

    /// Places the variables of a module, once a device.
    fn load(&mut self, module: &Module) -> Result<Vec<u64>, MemoryError> {
        if let Some(addresses) = self.modules.get(&module.id) {
            return Ok(addresses.clone());
        }
        let globals = &module.program.globals;
        let mut addresses = Vec::with_capacity(globals.len());
        for global in globals {
            addresses.push(self.allocate(global.bytes)?);
        }
        for (global, &address) in globals.iter().zip(&addresses) {
            let mut data = global.initial.clone();
            data.resize(global.bytes as usize, 0);
            for &(at, to) in &global.addresses {
                if let Some(bytes) = data.get_mut(at as usize..at as usize + 8) {
                    let offset = u64::from_le_bytes(bytes.try_into().unwrap_or_default());
                    bytes.copy_from_slice(&addresses[to].wrapping_add(offset).to_le_bytes());
                }
            }
            self.write(address, &data)?;
            let at = self.allocations.partition_point(|a| a.base < address);
            self.allocations[at].is_read_only = global.read_only;
        }
        self.modules.insert(module.id, addresses.clone());
        Ok(addresses)
    }

    /// The address of a variable of a module.
    ///
    /// # Errors
    /// [`MemoryError::OutOfMemory`] if the module was not used before and finds no room.
    pub fn variable(&mut self, module: &Module, name: &str) -> Result<Option<u64>, MemoryError> {
        let addresses = self.load(module)?;
        let at = module.program.globals.iter().position(|g| g.name == name);
        Ok(at.map(|i| addresses[i]))
    }
}

fn arguments(code: &Code, launch: &Launch) -> Result<Vec<u8>, LaunchError> {
    let wrong = |expected: String, found: String| LaunchError::Arguments {
        kernel: code.name.clone(),
        expected,
        found,
    };
    if code.params.len() != launch.arguments.len() {
        return Err(wrong(
            format!("{} arguments", code.params.len()),
            format!("{}", launch.arguments.len()),
        ));
    }
    let end = code.params.iter().map(|p| p.offset + p.bytes).max().unwrap_or(0);
    let mut bytes = vec![0; end as usize];
    for (i, (param, Argument(data))) in code.params.iter().zip(&launch.arguments).enumerate() {
        if data.len() != param.bytes as usize {
            return Err(wrong(
                format!("{} bytes as argument {i}", param.bytes),
                format!("{}", data.len()),
            ));
        }
        bytes[param.offset as usize..][..data.len()].copy_from_slice(data);
    }
    Ok(bytes)
}

fn check_size(code: &Code, launch: &Launch) -> Result<(), LaunchError> {
    let product = |sizes: [u32; 3]| sizes.iter().map(|&n| u64::from(n)).product::<u64>();
    let [_, gy, gz] = launch.grid;
    let threads = launch.block.iter().map(|&n| u128::from(n)).product::<u128>();
    if threads == 0 || threads > u128::from(MOST_THREADS) || launch.block[2] > 64 {
        return Err(LaunchError::Size(format!(
            "a block of {:?} threads is none",
            launch.block
        )));
    }
    let limits = launch.grid[0] > i32::MAX as u32 || gy > 65_535 || gz > 65_535;
    if launch.grid.contains(&0) || limits {
        return Err(LaunchError::Size(format!("a grid of {:?} blocks is none", launch.grid)));
    }
    if product(launch.grid) > u64::from(u32::MAX) / MOST_THREADS {
        return Err(LaunchError::Size(
            "more than 4 million blocks are not simulated".to_string(),
        ));
    }
    let shared = u64::from(code.shared_bytes) + u64::from(launch.shared_bytes);
    if shared > MOST_SHARED {
        return Err(LaunchError::Size(format!(
            "a block has at most {MOST_SHARED} bytes of shared memory, not {shared}"
        )));
    }
    Ok(())
}

/// A block that is on the device.
struct Block {
    /// Its number in the grid.
    number: u32,
    id: [u32; 3],
    shared: Private,
    warps: Vec<Warp>,
    barriers: Vec<barrier::Barrier>,
    turn: usize,
    clocks: Option<BlockClocks>,
    /// Barriers in shared memory that began, and tiles on their way there.
    phases: Vec<phases::PhaseBarrier>,
    tiles: Vec<tiles::Tile>,
    /// What asynchronous products and copies see of shared memory; of kernels that have them, where it is checked.
    proxy: Option<Proxy>,
    /// What each four warps did together; the same.
    together: Vec<Together>,
}

impl Block {
    fn is_done(&self) -> bool {
        self.warps.iter().all(|w| w.alive == 0)
    }
}

/// A launch that runs.
struct Machine<'a> {
    device: &'a mut Device,
    program: &'a Program,
    kernel: usize,
    launch: &'a Launch,
    options: &'a Options,
    params: Vec<u8>,
    globals: Vec<u64>,
    threads: u32,
    warps_per_block: u32,
    /// Whether any function has asynchronous products.
    has_products: bool,
    /// Whether any copies tiles.
    copies_tiles: bool,
    findings: Vec<Finding>,
    counters: Counters,
    each: Option<Each>,
    races: Option<Races>,
    turns: Turns,
    /// When which pieces of tiles arrive.
    dice: Dice,
    /// Instructions of warps so far.
    steps: u64,
    /// The step of the last progress.
    progress: u64,
    /// The step of the last access that can tell what other threads did meanwhile.
    polled: u64,
    clock: u64,
}

impl Machine<'_> {
    /// Runs all blocks; whether they came to their end.
    fn run(&mut self) -> bool {
        let blocks = self.launch.grid.iter().product::<u32>();
        let mut next = 0;
        let mut resident: Vec<Block> = Vec::new();
        let mut spare: Vec<Block> = Vec::new();
        loop {
            while next < blocks && resident.len() < self.options.resident_blocks.max(1) {
                let block = self.start(next, spare.pop());
                resident.push(block);
                next += 1;
            }
            if resident.is_empty() {
                return true;
            }
            let mut moved = false;
            for block in &mut resident {
                moved |= self.turn(block);
            }
            let mut at = 0;
            while at < resident.len() {
                if resident[at].is_done() {
                    spare.push(resident.swap_remove(at));
                    moved = true;
                } else {
                    at += 1;
                }
            }
            if !moved && !resident.iter_mut().any(|b| b.warps.iter_mut().any(Warp::release_join)) {
                self.deadlock(&resident, "every thread waits for another");
                return false;
            }
            if self.steps > self.options.limit {
                self.deadlock(&resident, "the launch takes more instructions than it was given");
                return false;
            }
            if self.steps - self.progress > self.options.patience {
                self.deadlock(&resident, "no thread makes progress");
                return false;
            }
        }
    }

    fn start(&mut self, number: u32, spare: Option<Block>) -> Block {
        let [gx, gy, _] = self.launch.grid;
        let id = [number % gx, number / gx % gy, number / gx / gy];
        let code = &self.program.codes[self.kernel];
        let mut block = spare.unwrap_or_else(|| Block {
            number,
            id,
            shared: Private::new(code.shared_bytes as usize + self.launch.shared_bytes as usize),
            warps: Vec::new(),
            barriers: barrier::all(),
            turn: 0,
            clocks: None,
            phases: Vec::new(),
            tiles: Vec::new(),
            proxy: None,
            together: Vec::new(),
        });
        block.number = number;
        block.id = id;
        if !block.warps.is_empty() {
            block.shared.clear();
            block.barriers = barrier::all();
            block.phases.clear();
            block.tiles.clear();
        }
        let mut old = std::mem::take(&mut block.warps).into_iter();
        for index in 0..self.warps_per_block {
            let frame = old.next().and_then(|w| w.frames.into_iter().next());
            let lanes = (self.threads - index * 32).min(32);
            let mask = if lanes == 32 { u32::MAX } else { (1 << lanes) - 1 };
            let frame = self.frame(self.kernel, id, index, 0, frame);
            block.warps.push(Warp {
                index,
                alive: mask,
                splits: vec![Split {
                    mask,
                    pc: 0,
                    frame: 0,
                    join: NONE,
                    wait: Wait::Ready,
                }],
                joins: Vec::new(),
                frames: vec![frame],
                free_frames: Vec::new(),
                local: vec![Private::default(); if code.local_bytes > 0 { 32 } else { 0 }],
                suspicious: false,
                hint: 0,
                copies: Vec::new(),
                groups: [0; 32],
                flight: Default::default(),
                held: None,
                is_impatient: false,
                turn: 0,
            });
            if code.local_bytes > 0 {
                let bytes = code.local_bytes as usize;
                block.warps[index as usize]
                    .local
                    .iter_mut()
                    .for_each(|l| l.reserve(bytes));
            }
        }
        match &mut block.clocks {
            Some(clocks) => clocks.restart(number),
            None if self.races.is_some() => block.clocks = Some(BlockClocks::new(number, self.warps_per_block)),
            None => {}
        }
        if self.has_products || self.copies_tiles {
            let bytes = block.shared.data.len();
            block.proxy = self
                .options
                .racecheck
                .then(|| Proxy::new(bytes, self.warps_per_block * 32));
        }
        if self.has_products {
            block.together.clear();
            let groups = self.warps_per_block.div_ceil(4) as usize;
            block.together.resize_with(groups, Together::default);
        }
        block
    }

    /// A frame of a function, its special registers filled; `old` is one of the same function to be used again.
    fn frame(&self, code_index: usize, block: [u32; 3], warp: u32, local_base: u32, old: Option<Frame>) -> Frame {
        let code = &self.program.codes[code_index];
        let mut frame = old.filter(|f| f.code == code_index).unwrap_or_else(|| Frame {
            code: code_index,
            regs: vec![[0; 32]; code.registers],
            preds: vec![0; code.predicates],
            undefined: vec![0; code.registers],
            params: vec![0; code.param_bytes as usize * 32],
            local_base,
            watch: Vec::new(),
        });
        frame.watch.clear();
        frame.preds.fill(0);
        frame.undefined.fill(0);
        frame.local_base = local_base;
        for &(register, special) in &code.specials {
            let lanes: &mut Lanes = &mut frame.regs[register as usize];
            for (lane, value) in lanes.iter_mut().enumerate() {
                *value = self.special(special, block, warp, lane as u32, local_base);
            }
        }
        frame
    }

    fn special(&self, special: Special, block: [u32; 3], warp: u32, lane: u32, local: u32) -> u64 {
        let launch = self.launch;
        let kernel = &self.program.codes[self.kernel];
        let value = match special {
            Special::Constant(value) => return value,
            Special::Thread(axis) => self.thread_id(warp, lane)[axis],
            Special::BlockSize(axis) => launch.block[axis],
            Special::Block(axis) => block[axis],
            Special::GridSize(axis) => launch.grid[axis],
            Special::LaneId => lane,
            Special::WarpId => warp,
            Special::WarpCount => self.warps_per_block,
            Special::Zero => 0,
            Special::SmCount => 1,
            Special::LaneMask(kind) => {
                let below = (1_u32 << lane) - 1;
                let equal = 1 << lane;
                match kind {
                    LaneMask::Equal => equal,
                    LaneMask::LessEqual => below | equal,
                    LaneMask::Less => below,
                    LaneMask::GreaterEqual => !below,
                    LaneMask::Greater => !(below | equal),
                }
            }
            Special::DynamicSharedBytes => launch.shared_bytes,
            Special::TotalSharedBytes => kernel.shared_bytes + launch.shared_bytes,
            Special::DynamicShared(at) => return u64::from(kernel.shared_bytes).wrapping_add(at as u64),
            Special::Local(at) => return u64::from(local).wrapping_add(at as u64),
            Special::Global(index, at) => return self.globals[index].wrapping_add(at as u64),
        };
        u64::from(value)
    }

    fn thread_id(&self, warp: u32, lane: u32) -> [u32; 3] {
        let [x, y, _] = self.launch.block;
        let linear = warp * 32 + lane;
        [linear % x, linear / x % y, linear / x / y]
    }

    /// The line of an instruction, with nothing counted.
    fn line(&self, code: usize, pc: u32) -> LineCounters {
        let site = self.site(code, pc, [0; 3], [0; 3]);
        let named = site.source.line > 0;
        LineCounters {
            line: if named { site.source.line } else { site.line },
            file: site.file.filter(|_| named),
            text: site.text,
            ..LineCounters::default()
        }
    }

    /// Where a lane is.
    fn site(&self, code: usize, pc: u32, block: [u32; 3], thread: [u32; 3]) -> Site {
        let code = &self.program.codes[code];
        let instr = code.instrs.get(pc as usize);
        let source = instr.map_or_else(Default::default, |i| i.source);
        let file = self.program.files.get(&source.file).cloned();
        let lines = file.as_ref().and_then(|f| self.program.sources.get(f));
        let text = lines.and_then(|l| l.get((source.line as usize).checked_sub(1)?));
        Site {
            function: code.name.clone(),
            line: instr.map_or(0, |i| i.line),
            source,
            text: text.map(|t| t.trim().into()),
            file,
            block,
            thread,
        }
    }

    /// Notes something wrong; the same at one instruction is counted.
    fn found(&mut self, kind: FindingKind, site: Site, address: Option<(Space, u64)>, bytes: u32, detail: String) {
        self.found_with(kind, site, address, bytes, detail, None);
    }

    fn found_with(
        &mut self,
        kind: FindingKind,
        site: Site,
        address: Option<(Space, u64)>,
        bytes: u32,
        detail: String,
        other: Option<Site>,
    ) {
        let same = |f: &&mut Finding| {
            f.kind == kind
                && f.site.line == site.line
                && f.site.function == site.function
                && f.other.as_ref().map(|o| o.line) == other.as_ref().map(|o| o.line)
        };
        if let Some(old) = self.findings.iter_mut().find(same) {
            old.count += 1;
            return;
        }
        let kernel = self.program.codes[self.kernel].name.clone();
        self.findings.push(Finding {
            kind,
            kernel,
            site,
            address,
            bytes,
            other,
            detail,
            count: 1,
        });
    }

    fn deadlock(&mut self, resident: &[Block], why: &str) {
        for block in resident {
            for warp in &block.warps {
                let Some(split) = warp.splits.first() else { continue };
                let lane = split.mask.trailing_zeros();
                let code = warp.frames[split.frame as usize].code;
                let site = self.site(code, split.pc, block.id, self.thread_id(warp.index, lane));
                let waits = match (split.wait, warp.held.and_then(|slot| block.phases.get(slot))) {
                    (Wait::Ready | Wait::Phase(_), Some(barrier)) => format!("waits, for {}", barrier.missing()),
                    (Wait::Ready, None) => "runs".to_string(),
                    (Wait::Warp, _) => "waits for lanes of its warp".to_string(),
                    (Wait::Barrier(_), _) => "waits at a barrier".to_string(),
                    (Wait::Phase(_), None) => "waits for a phase of a barrier".to_string(),
                };
                self.found(FindingKind::Deadlock, site, None, 0, format!("{why}; this one {waits}"));
            }
        }
    }
}
