//! Loads and stores: where an address leads, what is checked, what is counted.

use super::step::lanes;
use super::{Block, LOCAL_WINDOW, Machine, PARAM_WINDOW, SHARED_WINDOW};
use crate::arith::{Lanes, extended, low};
use crate::counters::Traffic;
use crate::memory::{Refusal, load, store};
use crate::program::{Access, Order, Pc, Place, Scope};
use crate::race::{Kind, Stamp, THREADS};
use crate::report::FindingKind;
use crate::syntax::Space;

/// Where an instruction is, for what it reports.
#[derive(Clone, Copy)]
pub(super) struct Here {
    pub(super) at: usize,
    pub(super) frame: u32,
    pub(super) pc: Pc,
}

/// Memory that was found for an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Spot {
    Global(usize, usize),
    Shared(usize),
    Local(usize),
    Param(usize),
}

/// The space and the address in it that a generic address stands for.
pub(super) const fn resolve(space: Space, address: u64) -> (Space, u64) {
    match space {
        Space::Generic => match address >> 60 {
            1 => (Space::Shared, address - SHARED_WINDOW),
            2 => (Space::Local, address - LOCAL_WINDOW),
            3 => (Space::Param, address - PARAM_WINDOW),
            _ => (Space::Global, address),
        },
        // Addresses in shared memory have 32 bits.
        Space::Shared => (Space::Shared, address & 0xffff_ffff),
        _ => (space, address),
    }
}

pub(super) const fn addresses(base: &Lanes, offset: i64, lane: usize) -> u64 {
    base[lane].wrapping_add(offset as u64)
}

impl Machine<'_> {
    /// The memory of an access of a lane; `None` if there is none, which is reported.
    pub(super) fn spot(
        &mut self,
        block: &mut Block,
        here: Here,
        lane: usize,
        (space, address): (Space, u64),
        bytes: u32,
        is_write: bool,
    ) -> Option<Spot> {
        let (space, address) = resolve(space, address);
        if !address.is_multiple_of(u64::from(bytes)) {
            let detail = format!("an access of {bytes} bytes must be at a multiple of them");
            self.wrong(
                block,
                here,
                lane,
                FindingKind::Misaligned,
                ((space, address), bytes),
                detail,
            );
            return None;
        }
        let warp = &mut block.warps[here.at];
        let (room, held) = match space {
            Space::Shared => (block.shared.data.len() as u64, block.shared.holds(address, bytes)),
            Space::Local => match warp.local.get(lane) {
                Some(local) => (local.data.len() as u64, local.holds(address, bytes)),
                None => (0, false),
            },
            Space::Param => {
                let frame = &warp.frames[here.frame as usize];
                let is_kernel = frame.code == self.kernel;
                let room = if is_kernel { self.params.len() } else { 0 };
                let own = frame.params.len() / 32;
                let end = address.saturating_add(u64::from(bytes));
                (own as u64, end <= own.max(room) as u64)
            }
            Space::Global | Space::Const | Space::Generic => {
                let found = self.device.find(address, u64::from(bytes), &mut warp.hint);
                match found {
                    Ok((index, at)) => {
                        if is_write && self.device.allocations[index].is_read_only {
                            let detail = String::new();
                            self.wrong(
                                block,
                                here,
                                lane,
                                FindingKind::ReadOnly,
                                ((Space::Const, address), bytes),
                                detail,
                            );
                            return None;
                        }
                        if self.options.footprint {
                            self.device.touch(index, at, bytes, is_write);
                        }
                        return Some(Spot::Global(index, at));
                    }
                    Err(refusal) => {
                        let kind = match refusal {
                            Refusal::Freed => FindingKind::UseAfterFree,
                            Refusal::Nowhere | Refusal::Slot => FindingKind::OutOfBounds,
                        };
                        let detail = self.device.neighbourhood(address);
                        self.wrong(block, here, lane, kind, ((Space::Global, address), bytes), detail);
                        return None;
                    }
                }
            }
        };
        if !held {
            let detail = format!("there are {room} bytes");
            self.wrong(
                block,
                here,
                lane,
                FindingKind::OutOfBounds,
                ((space, address), bytes),
                detail,
            );
            return None;
        }
        Some(match space {
            Space::Shared => Spot::Shared(address as usize),
            Space::Local => Spot::Local(address as usize),
            _ => Spot::Param(address as usize),
        })
    }

    pub(super) fn wrong(
        &mut self,
        block: &Block,
        here: Here,
        lane: usize,
        kind: FindingKind,
        (address, bytes): ((Space, u64), u32),
        detail: String,
    ) {
        let site = self.site_of(block, here.at, here.frame, here.pc, 1 << lane);
        self.found(kind, site, Some(address), bytes, detail);
    }

    /// The number under which a place in a kernel is remembered.
    pub(super) const fn site_number(code: usize, pc: Pc) -> u32 {
        ((code as u32) << 20 | pc & 0xf_ffff) & 0x7fff_ffff
    }

    /// The same of where a lane is.
    pub(super) fn number_of(&self, block: &Block, here: Here) -> u32 {
        let frame = &block.warps[here.at].frames[here.frame as usize];
        Self::site_number(frame.code, here.pc)
    }

    /// Reports an access that has no order with an earlier one.
    pub(super) fn check_race(
        &mut self,
        block: &mut Block,
        here: Here,
        lane: usize,
        spot: Spot,
        bytes: u32,
        kind: Kind,
    ) {
        let Some(races) = &mut self.races else { return };
        let warp = &block.warps[here.at];
        let site = Self::site_number(warp.frames[here.frame as usize].code, here.pc);
        let who = (warp.index, lane);
        let Some(clocks) = &mut block.clocks else { return };
        let conflict = match spot {
            Spot::Shared(at) => clocks.shared(at, bytes, who, kind, site),
            Spot::Global(index, at) => races.global(clocks, (index, at), bytes, who, kind, site),
            Spot::Local(_) | Spot::Param(_) => None,
        };
        if let Some(other) = conflict {
            self.race(block, here, lane, spot, bytes, other);
        }
    }

    pub(super) fn race(&mut self, block: &Block, here: Here, lane: usize, spot: Spot, bytes: u32, other: Stamp) {
        let address = match spot {
            Spot::Global(index, at) => (Space::Global, self.device.allocations[index].base + at as u64),
            Spot::Shared(at) => (Space::Shared, at as u64),
            Spot::Local(at) | Spot::Param(at) => (Space::Local, at as u64),
        };
        let site = self.site_of(block, here.at, here.frame, here.pc, 1 << lane);
        let number = other.thread / THREADS;
        let [gx, gy, _] = self.launch.grid;
        let id = [number % gx, number / gx % gy, number / gx / gy];
        let thread = self.thread_id(other.thread % THREADS / 32, other.thread % 32);
        let other = self.site((other.site >> 20) as usize, other.site & 0xf_ffff, id, thread);
        let detail = "nothing orders two accesses, at least one of which writes".to_string();
        self.found_with(FindingKind::Race, site, Some(address), bytes, detail, Some(other));
    }

    /// Takes part in what fences order, where an access is a single one.
    pub(super) fn strong(
        &mut self,
        block: &mut Block,
        here: Here,
        lane: usize,
        spot: Spot,
        (order, scope): (Order, Scope),
        kind: Kind,
    ) {
        let Some(races) = &mut self.races else { return };
        let warp = block.warps[here.at].index;
        if let Some(proxy) = &mut block.proxy
            && order != Order::Relaxed
        {
            proxy.publish(warp * 32 + lane as u32);
        }
        let Some(clocks) = &mut block.clocks else { return };
        if order.releases() {
            clocks.fence(warp, lane, scope);
        }
        match spot {
            Spot::Shared(at) => clocks.hand_on_shared(at, (warp, lane), kind),
            Spot::Global(index, at) => races.hand_on(clocks, (index, at), (warp, lane), kind),
            Spot::Local(_) | Spot::Param(_) => {}
        }
        if order.acquires() {
            clocks.fence(warp, lane, scope);
        }
    }

    /// Reads some bytes, and whether all of them were written.
    pub(super) fn read(&self, block: &Block, here: Here, lane: usize, spot: Spot, bytes: u32) -> (u64, bool) {
        let check = self.options.memcheck;
        match spot {
            Spot::Global(index, at) => {
                let (value, written) = self.device.allocations[index].load(at, bytes);
                (value, !check || written)
            }
            Spot::Shared(at) => {
                let shared = &block.shared;
                (shared.read(at, bytes), !check || shared.written.all(at, bytes as usize))
            }
            Spot::Local(at) => {
                let local = &block.warps[here.at].local[lane];
                (local.read(at, bytes), !check || local.written.all(at, bytes as usize))
            }
            Spot::Param(at) => {
                let frame = &block.warps[here.at].frames[here.frame as usize];
                if frame.code == self.kernel && at + bytes as usize <= self.params.len() {
                    return (load(&self.params, at, bytes), true);
                }
                let own = frame.params.len() / 32;
                if at + bytes as usize > own {
                    return (0, true);
                }
                (load(&frame.params, lane * own + at, bytes), true)
            }
        }
    }

    pub(super) fn write(&mut self, block: &mut Block, here: Here, lane: usize, spot: Spot, bytes: u32, value: u64) {
        match spot {
            Spot::Global(index, at) => {
                let marks = self.options.memcheck;
                self.device.allocations[index].store(at, bytes, value, marks);
            }
            Spot::Shared(at) => {
                block.shared.write(at, bytes, value);
                self.note_write(block, here.at, lane, at, bytes);
            }
            Spot::Local(at) => block.warps[here.at].local[lane].write(at, bytes, value),
            Spot::Param(at) => {
                let frame = &mut block.warps[here.at].frames[here.frame as usize];
                let own = frame.params.len() / 32;
                if at + bytes as usize <= own {
                    store(&mut frame.params, lane * own + at, bytes, value);
                }
            }
        }
    }

    pub(super) fn load(&mut self, block: &mut Block, at: usize, frame: u32, pc: Pc, access: &Access, active: u32) {
        let here = Here { at, frame, pc };
        let Place { space, base, offset } = access.place;
        let bases = *block.warps[at].frames[frame as usize].reg(base);
        let total = access.bytes * access.registers.len() as u32;
        let kind = if access.order.is_strong() {
            self.polled = self.steps;
            Kind::StrongRead(access.scope)
        } else {
            Kind::Read
        };
        let mut results = [[0; 32]; 8];
        let mut undefined = [0; 8];
        let mut request = Request::default();
        for lane in lanes(active) {
            let address = addresses(&bases, offset, lane);
            let Some(spot) = self.spot(block, here, lane, (space, address), total, false) else {
                continue;
            };
            request.note(lane, spot, address, total);
            if self.races.is_some() {
                if access.order.is_strong() {
                    self.strong(block, here, lane, spot, (access.order, access.scope), kind);
                }
                self.check_race(block, here, lane, spot, total, kind);
            }
            for i in 0..access.registers.len() {
                let (value, defined) = self.read(
                    block,
                    here,
                    lane,
                    shifted(spot, i * access.bytes as usize),
                    access.bytes,
                );
                results[i][lane] = if access.sign_to > 0 {
                    low(extended(value, access.bytes * 8) as u64, access.sign_to)
                } else {
                    value
                };
                if !defined {
                    undefined[i] |= 1 << lane;
                }
            }
        }
        let state = &mut block.warps[at];
        let mut alone = 0;
        for (i, register) in access.registers.iter().enumerate() {
            let Some(register) = *register else { continue };
            let frame = &mut state.frames[frame as usize];
            frame.put(register, active, &results[i]);
            if self.options.memcheck {
                let to = &mut frame.undefined[register as usize];
                *to &= !active;
                if access.registers.len() > 1 {
                    *to |= undefined[i];
                    state.suspicious |= undefined[i] != 0;
                } else {
                    alone = undefined[i];
                }
            }
        }
        // A vector may hold what its reader does not want; a single value is wanted.
        if alone != 0 {
            let lane = alone.trailing_zeros() as usize;
            let address = resolve(space, addresses(&bases, offset, lane));
            let detail = match address {
                (Space::Global, at) => format!("nobody wrote these bytes, {}", self.device.neighbourhood(at)),
                _ => "nobody wrote these bytes".to_string(),
            };
            self.wrong(block, here, lane, FindingKind::Unwritten, (address, total), detail);
        }
        self.count(&mut request, false);
    }

    pub(super) fn store(&mut self, block: &mut Block, at: usize, frame: u32, pc: Pc, access: &Access, active: u32) {
        let here = Here { at, frame, pc };
        let Place { space, base, offset } = access.place;
        let bases = *block.warps[at].frames[frame as usize].reg(base);
        let total = access.bytes * access.registers.len() as u32;
        let kind = if access.order.is_strong() {
            Kind::StrongWrite(access.scope)
        } else {
            Kind::Write
        };
        let mut request = Request::default();
        for lane in lanes(active) {
            let address = addresses(&bases, offset, lane);
            let Some(spot) = self.spot(block, here, lane, (space, address), total, true) else {
                continue;
            };
            request.note(lane, spot, address, total);
            if self.races.is_some() {
                if access.order.is_strong() {
                    self.strong(block, here, lane, spot, (access.order, access.scope), kind);
                }
                self.check_race(block, here, lane, spot, total, kind);
            }
            for (i, register) in access.registers.iter().enumerate() {
                let Some(register) = *register else { continue };
                let value = block.warps[at].frames[frame as usize].reg(register)[lane];
                let value = low(value, access.bytes * 8);
                self.write(
                    block,
                    here,
                    lane,
                    shifted(spot, i * access.bytes as usize),
                    access.bytes,
                    value,
                );
            }
        }
        if active != 0 {
            self.progress = self.steps;
        }
        self.count(&mut request, true);
    }

    /// Adds a request to the counters.
    pub(super) fn count(&mut self, request: &mut Request, is_store: bool) {
        if !self.options.traffic {
            return;
        }
        let traffic = if is_store {
            &mut self.counters.global_stores
        } else {
            &mut self.counters.global_loads
        };
        request.count_global(traffic);
        if request.shared_lanes > 0 {
            let bytes = u64::from(request.shared_bytes) * u64::from(request.shared_lanes);
            self.counters.shared_requests += 1;
            self.counters.bank_conflicts += request.conflicts();
            let sum = if is_store {
                &mut self.counters.shared_store_bytes
            } else {
                &mut self.counters.shared_load_bytes
            };
            *sum += bytes;
        }
        self.counters.local_bytes += request.local_bytes;
    }
}

/// A spot some bytes on.
pub(super) const fn shifted(spot: Spot, by: usize) -> Spot {
    match spot {
        Spot::Global(index, at) => Spot::Global(index, at + by),
        Spot::Shared(at) => Spot::Shared(at + by),
        Spot::Local(at) => Spot::Local(at + by),
        Spot::Param(at) => Spot::Param(at + by),
    }
}

/// The accesses of one instruction of a warp to memory.
#[derive(Debug, Default)]
pub(super) struct Request {
    /// First and last sector of each lane's access to global memory.
    sectors: [(u64, u64); 32],
    global_lanes: u32,
    global_bytes: u32,
    /// Lane and address in shared memory of each access to it.
    shared: [(u8, u32); 32],
    shared_lanes: u32,
    shared_bytes: u32,
    local_bytes: u64,
}

impl Request {
    pub(super) fn note(&mut self, lane: usize, spot: Spot, address: u64, bytes: u32) {
        match spot {
            Spot::Global(..) => {
                let last = (address + u64::from(bytes) - 1) / 32;
                self.sectors[self.global_lanes as usize] = (address / 32, last);
                self.global_lanes += 1;
                self.global_bytes = bytes;
            }
            Spot::Shared(at) => {
                self.shared[self.shared_lanes as usize] = (lane as u8, at as u32);
                self.shared_lanes += 1;
                self.shared_bytes = bytes;
            }
            Spot::Local(_) => self.local_bytes += u64::from(bytes),
            Spot::Param(_) => {}
        }
    }

    pub(super) fn count_global(&mut self, traffic: &mut Traffic) {
        if self.global_lanes == 0 {
            return;
        }
        let touched = &mut self.sectors[..self.global_lanes as usize];
        if !touched.is_sorted() {
            touched.sort_unstable();
        }
        let mut sectors = 0;
        let mut next = 0;
        for &(first, last) in touched.iter() {
            let first = first.max(next);
            if last >= first {
                sectors += last - first + 1;
                next = last + 1;
            }
        }
        traffic.requests += 1;
        traffic.sectors += sectors;
        traffic.bytes += u64::from(self.global_bytes) * u64::from(self.global_lanes);
    }

    /// Cycles beyond those that the bytes need: in each, a bank gives one word.
    fn conflicts(&self) -> u64 {
        let lanes = &self.shared[..self.shared_lanes as usize];
        // Accesses of 8 and 16 bytes take half and a quarter of a warp at a time: lanes that are neighbours, of which those that do not take part
        // leave no place to others.
        let group = match self.shared_bytes {
            0..=4 => 32,
            5..=8 => 16,
            _ => 8,
        };
        let mut extra = 0;
        for part in lanes.chunk_by(|a, b| a.0 / group == b.0 / group) {
            let mut words: Vec<u32> = part
                .iter()
                .flat_map(|&(_, at)| (at / 4)..(at + self.shared_bytes).div_ceil(4))
                .collect();
            if !words.is_sorted() {
                words.sort_unstable();
            }
            words.dedup();
            let mut banks = [0_u64; 32];
            for word in words {
                banks[(word % 32) as usize] += 1;
            }
            extra += banks.iter().max().map_or(0, |&most| most.saturating_sub(1));
        }
        extra
    }
}
