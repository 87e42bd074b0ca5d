//! Work of streams: what an operation is, and how it is done on the simulated devices.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use tlc_gpusim::{Device, FindingKind, Launch, Module, Report, SlotEvent};

use crate::clock::Clock;
use crate::description::Description;
use crate::history::{Access, History};
use crate::product::Product;
use crate::report::{Held, Log, append, counters, event, finding};
use crate::result::{
    CUDA_ERROR_ASSERT, CUDA_ERROR_DEVICE_UNAVAILABLE, CUDA_ERROR_ECC_UNCORRECTABLE, CUDA_ERROR_ILLEGAL_ADDRESS,
    CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_LAUNCH_FAILED, CUDA_ERROR_LAUNCH_TIMEOUT, CUDA_ERROR_OUT_OF_MEMORY, CUresult,
};
use crate::settings::Settings;

/// Where the memory of the first device begins: above every address that a program on the host has.
const FIRST: u64 = 1 << 56;

/// How far the memories of two devices are apart.
const APART: u64 = 1 << 52;

/// Bytes that are copied at a time.
const PIECE: u64 = 1 << 20;

/// Takes a lock. What a panic left behind is still whole: every change under a lock is made by code that does not panic midway.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The room between two allocations, and what their addresses are multiples of.
const RED_ZONE: u64 = 256;

/// What is allocated on a device. It is kept apart from the device's memory, which is held while a kernel runs: who asks for work
/// or memory must not wait for that.
#[derive(Debug)]
struct Ledger {
    /// Bytes by address.
    live: BTreeMap<u64, u64>,
    used: u64,
    next: u64,
    /// What the device's memory does not know yet.
    new: Vec<(u64, u64)>,
}

impl Ledger {
    /// The allocation that holds an address.
    fn holding(&self, address: u64) -> Option<(u64, u64)> {
        let (&base, &bytes) = self.live.range(..=address).next_back()?;
        (address - base < bytes).then_some((base, bytes))
    }
}

/// A simulated device.
#[derive(Debug)]
pub(crate) struct Gpu {
    pub(crate) description: Description,
    memory: Mutex<Device>,
    ledger: Mutex<Ledger>,
    /// Bytes of the variables of modules.
    variables: AtomicU64,
    /// The error that everything on the device returns from now on; 0 is none.
    failure: AtomicU32,
    /// The most bytes that were allocated at a time.
    pub(crate) peak: AtomicU64,
    /// Bytes that pools keep although nothing uses them.
    pub(crate) cached: AtomicU64,
}

impl Gpu {
    /// The error that stays.
    pub(crate) fn failure(&self) -> Result<(), CUresult> {
        match self.failure.load(Ordering::SeqCst) {
            0 => Ok(()),
            failure => Err(failure),
        }
    }

    fn fail(&self, failure: CUresult) {
        // The first error stays.
        let _ = self
            .failure
            .compare_exchange(0, failure, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// A new context has no error, unless the device itself is broken.
    pub(crate) fn recover(&self) {
        let failure = self.failure.load(Ordering::SeqCst);
        if !matches!(failure, CUDA_ERROR_ECC_UNCORRECTABLE | CUDA_ERROR_DEVICE_UNAVAILABLE) {
            self.failure.store(0, Ordering::SeqCst);
        }
    }

    /// The device's memory, with all that is allocated. No kernel runs while it is held.
    fn memory(&self) -> MutexGuard<'_, Device> {
        let mut memory = lock(&self.memory);
        for (address, bytes) in std::mem::take(&mut lock(&self.ledger).new) {
            let placed = memory.allocate_at(address, bytes);
            debug_assert!(placed.is_ok(), "{placed:?}");
        }
        memory
    }

    /// Bytes that are allocated.
    fn used(&self) -> u64 {
        lock(&self.ledger).used + self.variables.load(Ordering::SeqCst)
    }

    /// Bytes that are neither allocated nor kept by a pool.
    pub(crate) fn free_bytes(&self) -> u64 {
        let held = self.used() + self.cached.load(Ordering::SeqCst);
        self.description.memory.saturating_sub(held)
    }

    /// Gives the memory of a module's variables back.
    pub(crate) fn unload(&self, module: &Module) {
        let mut memory = self.memory();
        memory.unload(module);
        self.variables.store(memory.used(), Ordering::SeqCst);
    }

    /// The addresses of all that is allocated.
    pub(crate) fn live(&self) -> Vec<u64> {
        lock(&self.ledger).live.keys().copied().collect()
    }
}

/// The simulated devices with what is known of them.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) settings: Settings,
    pub(crate) gpus: Vec<Gpu>,
    pub(crate) history: Mutex<History>,
    pub(crate) log: Mutex<Log>,
    /// Operations that are not done yet.
    pub(crate) pending: AtomicU64,
    allocations: AtomicU64,
    launches: AtomicU64,
}

impl Machine {
    pub(crate) fn new(settings: Settings) -> Machine {
        let gpu = |(index, description): (usize, &Description)| Gpu {
            description: description.clone(),
            // Variables of modules are in the upper half.
            memory: Mutex::new(Device::at(FIRST + index as u64 * APART + APART / 2, description.memory)),
            ledger: Mutex::new(Ledger {
                live: BTreeMap::new(),
                used: 0,
                next: FIRST + index as u64 * APART,
                new: Vec::new(),
            }),
            variables: AtomicU64::new(0),
            failure: AtomicU32::new(0),
            peak: AtomicU64::new(0),
            cached: AtomicU64::new(0),
        };
        Machine {
            gpus: settings.devices.iter().enumerate().map(gpu).collect(),
            settings,
            history: Mutex::default(),
            log: Mutex::default(),
            pending: AtomicU64::new(0),
            allocations: AtomicU64::new(0),
            launches: AtomicU64::new(0),
        }
    }

    /// The device whose memory an address is of.
    pub(crate) fn owner(&self, address: u64) -> Option<usize> {
        let index = usize::try_from(address.checked_sub(FIRST)? / APART).ok()?;
        (index < self.gpus.len()).then_some(index)
    }

    /// Memory of a device.
    pub(crate) fn allocate(&self, gpu: usize, bytes: u64) -> Result<u64, CUresult> {
        let number = self.allocations.fetch_add(1, Ordering::SeqCst) + 1;
        if self.settings.faults.allocation == Some(number) {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        let gpu = &self.gpus[gpu];
        let variables = gpu.variables.load(Ordering::SeqCst);
        let mut ledger = lock(&gpu.ledger);
        if bytes > gpu.description.memory.saturating_sub(ledger.used + variables) {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        let address = ledger.next;
        ledger.next = (address + bytes + RED_ZONE).next_multiple_of(RED_ZONE);
        ledger.live.insert(address, bytes);
        ledger.new.push((address, bytes));
        ledger.used += bytes;
        gpu.peak.fetch_max(ledger.used + variables, Ordering::SeqCst);
        Ok(address)
    }

    /// Gives memory back: how many bytes. Who accessed it is remembered, for what comes too late; its address is not used again.
    pub(crate) fn free(&self, gpu: usize, address: u64) -> Result<u64, CUresult> {
        let gpu = &self.gpus[gpu];
        let bytes = {
            let mut ledger = lock(&gpu.ledger);
            let bytes = ledger.live.remove(&address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
            ledger.used -= bytes;
            bytes
        };
        gpu.memory().free(address).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
        Ok(bytes)
    }

    /// The allocation that holds an address: where it begins, and its bytes.
    fn holding(&self, address: u64) -> Option<(u64, u64)> {
        lock(&self.gpus[self.owner(address)?].ledger).holding(address)
    }

    /// Whether an allocation begins at an address.
    pub(crate) fn is_start(&self, address: u64) -> bool {
        self.holding(address).is_some_and(|(base, _)| base == address)
    }

    /// Whether a range is in one live allocation of a device.
    pub(crate) fn holds(&self, address: u64, bytes: u64) -> bool {
        let held = self.holding(address);
        held.is_some_and(|(base, size)| bytes <= size - (address - base))
    }

    /// Notes an access of an operation; what is not ordered is a finding.
    pub(crate) fn touch(&self, gpu: usize, stamp: &Stamp, ranges: &[(u64, u64)], is_write: bool) {
        if !self.settings.checks {
            return;
        }
        let conflict = lock(&self.history).access(ranges, is_write, &stamp.access, &stamp.clock);
        let Some(conflict) = conflict else { return };
        let did = |is_write: bool| if is_write { "writes" } else { "reads" };
        let (label, other) = (&stamp.access.label, &conflict.other);
        let detail = format!(
            "{label} {} {} bytes at {:#x} that {other} {}, and nothing orders the two",
            did(is_write),
            conflict.bytes,
            conflict.address,
            did(conflict.other_writes)
        );
        let place = (conflict.address, conflict.bytes);
        let json = event("unordered", label, Some(other), place, &detail);
        self.found(gpu, "unordered", &detail, json, CUDA_ERROR_ILLEGAL_ADDRESS);
    }

    /// Notes something wrong, and makes the device's context fail where findings do.
    pub(crate) fn found(&self, gpu: usize, kind: &'static str, words: &str, json: String, failure: CUresult) {
        let file = self.settings.findings_file.as_deref();
        lock(&self.log).found(kind, &format!("{kind}: {words}"), json, file);
        if self.settings.findings_fail {
            self.gpus[gpu].fail(failure);
        }
    }

    /// Makes everything on a device return an error from now on.
    pub(crate) fn fail(&self, gpu: usize, failure: CUresult) {
        self.gpus[gpu].fail(failure);
    }

    /// What the devices hold.
    pub(crate) fn held(&self) -> Held {
        Held {
            device_bytes: self.gpus.iter().map(Gpu::used).sum(),
            device_peak: self.gpus.iter().map(|g| g.peak.load(Ordering::SeqCst)).sum(),
            ..Held::default()
        }
    }
}

/// Where a copy begins or ends.
#[derive(Clone, Debug)]
pub(crate) enum End {
    Device(u64),
    /// Memory of the host, as an address; whether it is pinned.
    Host(u64, bool),
    /// Bytes that were taken from the host when the copy was asked for.
    Taken(Arc<[u8]>),
}

/// What happens to a slot.
#[derive(Clone, Debug)]
pub(crate) struct SlotChange {
    pub(crate) event: SlotEvent,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) name: Arc<str>,
}

/// Memory that is given back in the order of a stream: how much of it the pool keeps is the pool's.
pub(crate) trait Returned: std::fmt::Debug + Send + Sync {
    fn returned(&self, gpu: &Gpu, bytes: u64);
}

/// What an operation does.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    Launch {
        /// The handle of the function that was launched.
        function: u64,
        module: Arc<Module>,
        kernel: Arc<str>,
        launch: Launch,
    },
    Copy {
        from: End,
        to: End,
        bytes: u64,
    },
    Fill {
        address: u64,
        pattern: Vec<u8>,
        count: u64,
    },
    /// A library's product of matrices.
    Product(Arc<Product>),
    Slots(Arc<[SlotChange]>),
    Free {
        address: u64,
        pool: Option<Arc<dyn Returned>>,
    },
    /// Memory was allocated: who uses it must be after that.
    Claim {
        address: u64,
        bytes: u64,
    },
    /// Nothing: an event, or a wait.
    Mark,
    /// Operations in an order that their edges allow.
    Graph(Vec<(Work, Stamp)>),
}

/// Who an operation is, and what is known to be before it.
#[derive(Clone, Debug)]
pub(crate) struct Stamp {
    pub(crate) access: Access,
    pub(crate) clock: Clock,
}

/// An operation that others wait for.
#[derive(Debug, Default)]
pub(crate) struct Ticket {
    is_done: Mutex<bool>,
    changed: Condvar,
    at: OnceLock<Instant>,
}

impl Ticket {
    pub(crate) fn is_done(&self) -> bool {
        *lock(&self.is_done)
    }

    pub(crate) fn wait(&self) {
        let mut done = lock(&self.is_done);
        while !*done {
            done = self.changed.wait(done).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(crate) fn finish(&self) {
        self.at.get_or_init(Instant::now);
        *lock(&self.is_done) = true;
        self.changed.notify_all();
    }

    /// When it was done.
    pub(crate) fn at(&self) -> Option<Instant> {
        self.at.get().copied()
    }
}

impl Machine {
    /// Does an operation on a device; nothing if the device has failed.
    pub(crate) fn run(&self, gpu: usize, work: &Work, stamp: &Stamp) {
        // An error that stays does not keep memory.
        if self.gpus[gpu].failure().is_err() && !matches!(work, Work::Free { .. }) {
            return;
        }
        match work {
            Work::Launch {
                module, kernel, launch, ..
            } => self.launch(gpu, module, kernel, launch, stamp),
            Work::Copy { from, to, bytes } => self.copy(gpu, from, to, *bytes, stamp),
            Work::Fill {
                address,
                pattern,
                count,
            } => self.fill(gpu, *address, pattern, *count, stamp),
            Work::Product(product) => self.product(gpu, product, stamp),
            Work::Slots(changes) => self.slots(gpu, changes, stamp),
            Work::Free { address, pool } => {
                let Some(owner) = self.owner(*address) else { return };
                if let Some((base, bytes)) = self.holding(*address) {
                    self.touch(gpu, stamp, &[(base, base + bytes)], true);
                }
                match self.free(owner, *address) {
                    Ok(bytes) => {
                        if let Some(pool) = pool {
                            pool.returned(&self.gpus[owner], bytes);
                        }
                    }
                    Err(_) => self.misused(gpu, stamp, *address, 0, "it frees what is not allocated"),
                }
            }
            Work::Claim { address, bytes } => self.touch(gpu, stamp, &[(*address, address + bytes)], true),
            Work::Mark => {}
            Work::Graph(steps) => {
                for (work, stamp) in steps {
                    self.run(gpu, work, stamp);
                }
            }
        }
    }

    /// Counts a launch; whether the device fails at it, as it was asked to.
    fn fails_at_launch(&self, gpu: usize) -> bool {
        let number = self.launches.fetch_add(1, Ordering::SeqCst) + 1;
        let faults = &self.settings.faults;
        let now = |at: Option<u64>| at == Some(number);
        let fault = [
            (faults.launch, CUDA_ERROR_LAUNCH_FAILED),
            (faults.illegal_address, CUDA_ERROR_ILLEGAL_ADDRESS),
            (faults.ecc, CUDA_ERROR_ECC_UNCORRECTABLE),
            (faults.device_lost, CUDA_ERROR_DEVICE_UNAVAILABLE),
        ]
        .into_iter()
        .find(|(at, _)| now(*at));
        if let Some((_, failure)) = fault {
            self.fail(gpu, failure);
        }
        fault.is_some()
    }

    fn launch(&self, gpu: usize, module: &Module, kernel: &str, launch: &Launch, stamp: &Stamp) {
        if self.fails_at_launch(gpu) {
            return;
        }
        let launched = {
            let device = &self.gpus[gpu];
            let mut memory = device.memory();
            let launched = memory.launch(module, kernel, launch, &self.settings.options);
            device.variables.store(memory.used(), Ordering::SeqCst);
            launched
        };
        let report = match launched {
            Ok(report) => report,
            Err(error) => {
                // Sizes and arguments were looked at before; what is left is no memory for the module's variables.
                eprintln!("tlc-gpusim: {}: {error}", stamp.access.label);
                return self.fail(gpu, CUDA_ERROR_LAUNCH_FAILED);
            }
        };
        lock(&self.log).launched(&report.counters);
        if let Some(file) = self.settings.counters_file.as_deref() {
            let label = &stamp.access.label;
            let line = counters(kernel, label, launch.grid, launch.block, &report.counters);
            append(Some(file), &line);
        }
        self.report(gpu, &report, stamp);
        self.touch(gpu, stamp, &report.footprint.reads, false);
        self.touch(gpu, stamp, &report.footprint.writes, true);
    }

    fn report(&self, gpu: usize, report: &Report, stamp: &Stamp) {
        for found in &report.findings {
            let failure = match found.kind {
                FindingKind::Assertion => CUDA_ERROR_ASSERT,
                FindingKind::Trap => CUDA_ERROR_LAUNCH_FAILED,
                FindingKind::Deadlock => CUDA_ERROR_LAUNCH_TIMEOUT,
                FindingKind::OutOfBounds
                | FindingKind::UseAfterFree
                | FindingKind::Misaligned
                | FindingKind::ReadOnly
                | FindingKind::Unwritten
                | FindingKind::Race
                | FindingKind::DivergentBarrier
                | FindingKind::WarpMask => CUDA_ERROR_ILLEGAL_ADDRESS,
            };
            let label = &stamp.access.label;
            let json = finding(found, label);
            self.found(gpu, found.kind.text(), &format!("{label}: {found}"), json, failure);
            if !self.settings.checks {
                // What a real device would find too.
                self.fail(gpu, failure);
            }
        }
    }

    fn misused(&self, gpu: usize, stamp: &Stamp, address: u64, bytes: u64, detail: &str) {
        let label = &stamp.access.label;
        let words = format!("{label}: {detail} at {address:#x}");
        let json = event("memory", label, None, (address, bytes), detail);
        self.found(gpu, "memory", &words, json, CUDA_ERROR_ILLEGAL_ADDRESS);
    }

    /// Looks whether an operation may access a range of device memory, and notes that it does.
    fn enter(&self, gpu: usize, address: u64, bytes: u64, is_write: bool, stamp: &Stamp) -> Option<usize> {
        let owner = self.owner(address).filter(|_| self.holds(address, bytes));
        let Some(owner) = owner else {
            self.misused(gpu, stamp, address, bytes, "it accesses what is not allocated");
            return None;
        };
        if self.settings.checks {
            let outside = self.gpus[owner].memory().outside_of_slots(address, bytes);
            if let Some(outside) = outside {
                let detail = format!("it accesses {outside}");
                self.misused(gpu, stamp, address, bytes, &detail);
            }
        }
        self.touch(gpu, stamp, &[(address, address + bytes)], is_write);
        Some(owner)
    }

    fn product(&self, gpu: usize, product: &Product, stamp: &Stamp) {
        if self.fails_at_launch(gpu) {
            return;
        }
        let mut bytes: [Vec<u8>; 3] = Default::default();
        let (workspace, room) = product.workspace;
        if room > 0 && self.enter(gpu, workspace, room, true, stamp).is_none() {
            return;
        }
        for (number, (matrix, extents)) in product.matrices().into_iter().enumerate() {
            let is_result = number == 2;
            // Looked at when it was asked for.
            let Some(ranges) = product.ranges(&matrix, extents) else {
                return;
            };
            for &(start, end) in &ranges {
                if self.enter(gpu, start, end - start, is_result, stamp).is_none() {
                    return;
                }
                let memory = self.gpus[gpu].memory();
                let holes = match self.settings.checks && !is_result {
                    true => memory.unwritten(start, end - start).unwrap_or_default(),
                    false => Vec::new(),
                };
                drop(memory);
                if let Some(&(start, end)) = holes.first() {
                    self.misused(gpu, stamp, start, end - start, "it multiplies bytes that nobody wrote");
                }
            }
            let end = ranges.iter().map(|r| r.1).max().unwrap_or(matrix.address);
            bytes[number] = vec![0; (end - matrix.address) as usize];
            // The ranges were looked at above, here and below; what lies between them has no meaning.
            let _ = self.gpus[gpu].memory().read(matrix.address, &mut bytes[number]);
        }
        let [left, right, _] = &bytes;
        let results = product.compute(left, right);
        let width = product.element.bytes();
        let result = &product.result;
        let mut memory = self.gpus[gpu].memory();
        let mut elements = results.chunks_exact(width as usize);
        for b in 0..product.batch {
            for column in 0..product.columns {
                for row in 0..product.rows {
                    let number = b * result.stack + column * result.across + row * result.down;
                    let Some(element) = elements.next() else { return };
                    let _ = memory.write(result.address + number * width, element);
                }
            }
        }
    }

    fn fill(&self, gpu: usize, address: u64, pattern: &[u8], count: u64, stamp: &Stamp) {
        let bytes = pattern.len() as u64 * count;
        let Some(owner) = self.enter(gpu, address, bytes, true, stamp) else {
            return;
        };
        let piece = pattern.repeat((bytes.min(PIECE) as usize).div_ceil(pattern.len().max(1)));
        let mut memory = self.gpus[owner].memory();
        let mut at = 0;
        while at < bytes {
            let now = (bytes - at).min(piece.len() as u64);
            // It was looked at above.
            let _ = memory.write(address + at, &piece[..now as usize]);
            at += now;
        }
    }

    fn copy(&self, gpu: usize, from: &End, to: &End, bytes: u64, stamp: &Stamp) {
        if bytes == 0 {
            return;
        }
        let source = match from {
            End::Device(address) => self.enter(gpu, *address, bytes, false, stamp),
            End::Host(address, is_pinned) => {
                if *is_pinned {
                    self.touch(gpu, stamp, &[(*address, address + bytes)], false);
                }
                Some(usize::MAX)
            }
            End::Taken(_) => Some(usize::MAX),
        };
        let target = match to {
            End::Device(address) => self.enter(gpu, *address, bytes, true, stamp),
            End::Host(address, is_pinned) => {
                if *is_pinned {
                    self.touch(gpu, stamp, &[(*address, address + bytes)], true);
                }
                Some(usize::MAX)
            }
            End::Taken(_) => None,
        };
        let (Some(source), Some(target)) = (source, target) else {
            return;
        };
        match (from, to) {
            (End::Host(..) | End::Taken(_), End::Device(_)) => lock(&self.log).copied(false, bytes),
            (End::Device(_), End::Host(..)) => lock(&self.log).copied(true, bytes),
            _ => {}
        }
        // The source of a copy within one allocation may overlap its target: the manual leaves that undefined.
        let mut piece = vec![0; bytes.min(PIECE) as usize];
        let mut unwritten = None;
        let mut at = 0;
        while at < bytes {
            let now = (bytes - at).min(PIECE) as usize;
            let piece = &mut piece[..now];
            let mut holes = Vec::new();
            match from {
                End::Device(address) => {
                    let memory = self.gpus[source].memory();
                    // The range was looked at above, here and below.
                    let _ = memory.read(address + at, piece);
                    if self.settings.checks {
                        holes = memory.unwritten(address + at, now as u64).unwrap_or_default();
                    }
                    holes.iter_mut().for_each(|(start, end)| {
                        *start -= address;
                        *end -= address;
                    });
                }
                End::Host(address, _) => {
                    let start = (address + at) as usize as *const u8;
                    // SAFETY: who asked for the copy owns the range of the host until the copy is done, which the driver's manual
                    // demands; `piece` is our own and has `now` bytes.
                    unsafe { std::ptr::copy_nonoverlapping(start, piece.as_mut_ptr(), now) };
                }
                End::Taken(taken) => piece.copy_from_slice(&taken[at as usize..at as usize + now]),
            }
            match to {
                End::Device(address) => {
                    let mut memory = self.gpus[target].memory();
                    let _ = memory.write(address + at, piece);
                    for (start, end) in holes {
                        let _ = memory.forget(address + start, end - start);
                    }
                }
                End::Host(address, _) => {
                    let start = (address + at) as usize as *mut u8;
                    // SAFETY: as above, for writing.
                    unsafe { std::ptr::copy_nonoverlapping(piece.as_ptr(), start, now) };
                    unwritten = unwritten.or(holes.first().copied());
                }
                End::Taken(_) => {}
            }
            at += now as u64;
        }
        if let (Some((start, end)), End::Device(address)) = (unwritten, from) {
            let detail = "it copies bytes to the host that nobody wrote";
            self.misused(gpu, stamp, address + start, end - start, detail);
        }
    }

    fn slots(&self, gpu: usize, changes: &[SlotChange], stamp: &Stamp) {
        if !self.settings.checks {
            return;
        }
        for change in changes {
            let Some(owner) = self.owner(change.address) else {
                self.misused(
                    gpu,
                    stamp,
                    change.address,
                    change.bytes,
                    "a slot is in no device's memory",
                );
                continue;
            };
            let range = (change.address, change.address + change.bytes);
            // To begin or end is an access to all of it: whoever uses it must be ordered with that.
            let is_write = change.event != SlotEvent::Adoption;
            self.touch(gpu, stamp, &[range], is_write);
            let done = self.gpus[owner]
                .memory()
                .slot(change.event, change.address, change.bytes, &change.name);
            if let Err(error) = done {
                let detail = format!("slot `{}`: {error}", change.name);
                self.misused(gpu, stamp, change.address, change.bytes, &detail);
            }
        }
    }
}
