//! The simulated devices: their memory, what is known of it, and the errors that stay.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tlc_gpusim::{Device, Module};

use crate::description::Description;
use crate::history::{History, Stamp};
use crate::report::{Held, Log, event};
use crate::result::{
    CUDA_ERROR_DEVICE_UNAVAILABLE, CUDA_ERROR_ECC_UNCORRECTABLE, CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_INVALID_VALUE,
    CUDA_ERROR_OUT_OF_MEMORY, CUresult,
};
use crate::settings::Settings;

/// Where the memory of the first device begins: above every address that a program on the host has.
const FIRST: u64 = 1 << 56;

/// How far the memories of two devices are apart.
const APART: u64 = 1 << 52;

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
    pub(crate) variables: AtomicU64,
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

    pub(crate) fn fail(&self, failure: CUresult) {
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
    pub(crate) fn memory(&self) -> MutexGuard<'_, Device> {
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
    pub(crate) launches: AtomicU64,
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
    pub(crate) fn holding(&self, address: u64) -> Option<(u64, u64)> {
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
