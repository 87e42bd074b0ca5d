//! How operations are done on the simulated devices.

use std::sync::atomic::Ordering;

use tlc_gpusim::{FindingKind, Launch, Module, Report, SlotEvent};

use crate::history::Stamp;
use crate::machine::{Machine, lock};
use crate::product::Product;
use crate::report::{append, counters, event, finding};
use crate::result::{
    CUDA_ERROR_ASSERT, CUDA_ERROR_DEVICE_UNAVAILABLE, CUDA_ERROR_ECC_UNCORRECTABLE, CUDA_ERROR_ILLEGAL_ADDRESS,
    CUDA_ERROR_LAUNCH_FAILED, CUDA_ERROR_LAUNCH_TIMEOUT,
};
use crate::work::{End, SlotChange, Work};

/// Bytes that are copied at a time.
const PIECE: u64 = 1 << 20;

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
                | FindingKind::AsyncProduct
                | FindingKind::AsyncCopy
                | FindingKind::Phase
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
        let mut bias = Vec::new();
        if let Some(address) = product.bias {
            let length = product.rows * product.element.bytes();
            if self.enter(gpu, address, length, false, stamp).is_none() {
                return;
            }
            let memory = self.gpus[gpu].memory();
            let holes = match self.settings.checks {
                true => memory.unwritten(address, length).unwrap_or_default(),
                false => Vec::new(),
            };
            bias = vec![0; length as usize];
            // Looked at above.
            let _ = memory.read(address, &mut bias);
            drop(memory);
            if let Some(&(start, end)) = holes.first() {
                self.misused(gpu, stamp, start, end - start, "it adds bytes that nobody wrote");
            }
        }
        let [left, right, _] = &bytes;
        let results = product.compute([left, right, &bias]);
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
