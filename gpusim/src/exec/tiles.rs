//! Copies of tiles of tensors from device to shared memory.
//!
//! What is in device memory is read when a copy is issued. It arrives in pieces of 16 bytes, in an order and at times that the
//! seed says; when all of them have, the barrier counts the bytes. Where warps run as late as they may, copies do too.

use super::access::{Here, Spot, addresses, resolve};
use super::proxy::Proxy;
use super::schedule::{Dice, Schedule};
use super::step::lanes;
use super::{Block, Machine};
use crate::memory::Refusal;
use crate::program::{CopyTile, Pc, Place};
use crate::race::{Kind, Phase};
use crate::report::{FindingKind, Site};
use crate::syntax::Space;
use crate::tensor_map::{Swizzle, TENSOR_MAP_BYTES, TensorMap};

/// Bytes that arrive together.
const PIECE: usize = 16;

/// What a tile in shared memory must be at a multiple of.
const TILE_ALIGN: u64 = 128;

/// What a map must be at a multiple of.
const MAP_ALIGN: u32 = 64;

/// Instructions without progress after which copies that come as late as they may do come.
const LATE: u64 = 1000;

/// A tile that is on its way.
#[derive(Debug)]
pub(super) struct Tile {
    /// Where it goes in shared memory.
    to: usize,
    swizzle: Swizzle,
    data: Vec<u8>,
    /// The bytes that nobody wrote, if there are any.
    undefined: Vec<bool>,
    /// The pieces that have not arrived, the next one last.
    left: Vec<u32>,
    /// The barrier, and its phase when the copy was issued.
    barrier: usize,
    phase: u32,
    who: (u32, usize),
    code: usize,
    pc: Pc,
}

impl Tile {
    /// Where a piece goes.
    fn place(&self, piece: u32) -> usize {
        self.swizzle.place((self.to + piece as usize * PIECE) as u64) as usize
    }
}

/// A row of a tile in device memory, as far as it is in the tensor: its address, where in the tile it goes, its bytes.
type Row = (u64, usize, usize);

/// The rows of a tile at a place in a tensor.
fn rows(map: &TensorMap, at: &[i64]) -> Vec<Row> {
    let width = u64::from(map.element_bytes);
    let (first, size) = (at[0], map.sizes[0] as i64);
    let (start, end) = (first.clamp(0, size), (first + i64::from(map.tile[0])).clamp(0, size));
    let count: u64 = map.tile[1..].iter().map(|&n| u64::from(n)).product();
    let mut found = Vec::with_capacity(count as usize);
    for number in 0..count {
        let mut rest = number;
        let mut address = Some(map.address.wrapping_add(start as u64 * width));
        for (i, &stride) in map.strides.iter().enumerate() {
            let extent = u64::from(map.tile[i + 1]);
            let index = at[i + 1] + (rest % extent) as i64;
            rest /= extent;
            let is_inside = (0..map.sizes[i + 1] as i64).contains(&index);
            address = address
                .filter(|_| is_inside)
                .map(|a| a.wrapping_add(index as u64 * stride));
        }
        if let Some(address) = address.filter(|_| end > start) {
            let to = number * map.row_bytes() + (start - first) as u64 * width;
            found.push((address, to as usize, ((end - start) as u64 * width) as usize));
        }
    }
    found
}

/// Sectors that some rows touch.
fn sectors(rows: &[Row]) -> u64 {
    let mut touched: Vec<(u64, u64)> = rows
        .iter()
        .map(|&(address, _, bytes)| (address / 32, (address + bytes as u64 - 1) / 32))
        .collect();
    touched.sort_unstable();
    let (mut count, mut next) = (0, 0);
    for (first, last) in touched {
        let first = first.max(next);
        if last >= first {
            count += last - first + 1;
            next = last + 1;
        }
    }
    count
}

/// The parts of a range that lie between multiples of a number of bytes.
fn parts(at: u64, bytes: usize, multiple: u64) -> impl Iterator<Item = (u64, u32)> {
    let end = at + bytes as u64;
    let mut next = at;
    std::iter::from_fn(move || {
        let start = next;
        next = ((start / multiple + 1) * multiple).min(end);
        (start < end).then(|| (start, (next - start) as u32))
    })
}

impl Machine<'_> {
    pub(super) fn copy_tile(&mut self, block: &mut Block, here: Here, copy: &CopyTile, active: u32) {
        for lane in lanes(active) {
            self.issue_tile(block, here, copy, lane);
        }
        if active != 0 {
            self.progress = self.steps;
        }
    }

    fn misused_copy(&mut self, block: &Block, here: Here, lane: usize, detail: &str) {
        let site = self.site_of(block, here.at, here.frame, here.pc, 1 << lane);
        self.found(FindingKind::AsyncCopy, site, None, 0, detail.to_string());
    }

    fn issue_tile(&mut self, block: &mut Block, here: Here, copy: &CopyTile, lane: usize) {
        let Some(map) = self.tensor_map(block, here, lane, copy.map) else {
            return;
        };
        if map.sizes.len() != copy.at.len() {
            let detail = format!(
                "a place of {} dimensions in a tensor of {}",
                copy.at.len(),
                map.sizes.len()
            );
            return self.misused_copy(block, here, lane, &detail);
        }
        if map
            .swizzle
            .span()
            .is_some_and(|span| u64::from(span) != map.row_bytes())
        {
            let detail = "a tile whose rows are shorter than what is permuted is not simulated";
            return self.misused_copy(block, here, lane, detail);
        }
        let Some(slot) = self.barrier_of_tile(block, here, lane, copy.barrier) else {
            return;
        };
        let bytes = map.tile_bytes();
        let Some(to) = self.target_of_tile(block, here, lane, copy.to, bytes) else {
            // The barrier counts what nobody brings: what else is wrong then is not this.
            return self.count_bytes(block, slot, bytes);
        };
        let frame = &block.warps[here.at].frames[here.frame as usize];
        let at: Vec<i64> = copy
            .at
            .iter()
            .map(|&r| i64::from(frame.reg(r)[lane] as u32 as i32))
            .collect();
        let rows = rows(&map, &at);
        let (data, undefined) = self.read_rows(block, here, lane, &rows, bytes as usize);
        self.count_tile(&rows);
        let mut left: Vec<u32> = (0..(bytes as usize / PIECE) as u32).collect();
        self.dice.shuffle(&mut left);
        let warp = &block.warps[here.at];
        let code = warp.frames[here.frame as usize].code;
        let who = (warp.index, lane);
        let phase = block.phases[slot].phase;
        block.phases[slot].copy = Some((phase, self.site_of(block, here.at, here.frame, here.pc, 1 << lane)));
        block.tiles.push(Tile {
            to,
            swizzle: map.swizzle,
            data,
            undefined,
            left,
            barrier: slot,
            phase,
            who,
            code,
            pc: here.pc,
        });
    }

    /// The map that a lane names; what is none is reported.
    fn tensor_map(&mut self, block: &mut Block, here: Here, lane: usize, place: Place) -> Option<TensorMap> {
        let base = *block.warps[here.at].frames[here.frame as usize].reg(place.base);
        let (space, address) = resolve(place.space, addresses(&base, place.offset, lane));
        let mut bytes = [0; TENSOR_MAP_BYTES];
        match space {
            Space::Param => {
                let place = ((space, address), TENSOR_MAP_BYTES as u32);
                if !address.is_multiple_of(u64::from(MAP_ALIGN)) {
                    let detail = format!("a map must be at a multiple of {MAP_ALIGN} bytes");
                    self.wrong(block, here, lane, FindingKind::Misaligned, place, detail);
                }
                let start = usize::try_from(address).unwrap_or(usize::MAX);
                let end = start.saturating_add(TENSOR_MAP_BYTES);
                let Some(found) = self.params.get(start..end) else {
                    let detail = format!("there are {} bytes of parameters", self.params.len());
                    self.wrong(block, here, lane, FindingKind::OutOfBounds, place, detail);
                    return None;
                };
                bytes.copy_from_slice(found);
            }
            Space::Global | Space::Const | Space::Generic => {
                for half in [0, u64::from(MAP_ALIGN)] {
                    let place = (space, address + half);
                    let spot = self.spot(block, here, lane, place, MAP_ALIGN, false)?;
                    self.check_race(block, here, lane, spot, MAP_ALIGN, Kind::Read);
                }
                // It was found above.
                let _ = self.device.read(address, &mut bytes);
            }
            Space::Shared | Space::Local => {
                self.misused_copy(block, here, lane, "a map is a parameter, or in device memory");
                return None;
            }
        }
        match TensorMap::decode(&bytes) {
            Ok(map) => Some(map),
            Err(detail) => {
                self.misused_copy(block, here, lane, detail);
                None
            }
        }
    }

    /// The barrier that counts the bytes of a copy.
    fn barrier_of_tile(&mut self, block: &mut Block, here: Here, lane: usize, place: Place) -> Option<usize> {
        let address = self.barrier_address(block, here, lane, place)?;
        let slot = self.live_barrier(block, here, lane, address, true)?;
        self.check_phase_known(block, here, lane, slot);
        if !block.phases[slot].is_fenced && self.options.synccheck {
            let detail = "who initialized its barrier did not fence that (`fence.mbarrier_init`, `fence.proxy.async`)";
            self.misused_copy(block, here, lane, detail);
        }
        Some(slot)
    }

    /// Where in shared memory a copy goes; nobody else may use that now.
    fn target_of_tile(
        &mut self,
        block: &mut Block,
        here: Here,
        lane: usize,
        place: Place,
        bytes: u64,
    ) -> Option<usize> {
        let base = *block.warps[here.at].frames[here.frame as usize].reg(place.base);
        let (space, address) = resolve(place.space, addresses(&base, place.offset, lane));
        let all = u32::try_from(bytes).unwrap_or(u32::MAX);
        let whole = ((space, address), all);
        if !address.is_multiple_of(TILE_ALIGN) {
            let detail = format!("a tile must be at a multiple of {TILE_ALIGN} bytes");
            self.wrong(block, here, lane, FindingKind::Misaligned, whole, detail);
            return None;
        }
        if !block.shared.holds(address, all) {
            let detail = format!("there are {} bytes", block.shared.data.len());
            self.wrong(block, here, lane, FindingKind::OutOfBounds, whole, detail);
            return None;
        }
        let warp = block.warps[here.at].index;
        let unseen = |p: &Proxy| p.unseen(address as usize, bytes as usize, warp);
        if let Some(thread) = block.proxy.as_ref().and_then(unseen) {
            let detail = format!(
                "thread {thread} of the block wrote there and did not fence it (`fence.proxy.async`) before it met the warp"
            );
            self.wrong(block, here, lane, FindingKind::AsyncCopy, whole, detail);
        }
        for (at, bytes) in parts(address, bytes as usize, TILE_ALIGN) {
            self.check_race(block, here, lane, Spot::Shared(at as usize), bytes, Kind::Issue);
        }
        Some(address as usize)
    }

    /// What the rows of a tile hold and zeros around them; and which bytes nobody wrote, if there are any.
    fn read_rows(
        &mut self,
        block: &mut Block,
        here: Here,
        lane: usize,
        rows: &[Row],
        bytes: usize,
    ) -> (Vec<u8>, Vec<bool>) {
        let mut data = vec![0; bytes];
        let mut undefined = Vec::new();
        for &(address, to, bytes) in rows {
            let mut mark = |start: usize, len: usize| {
                undefined.resize(data.len(), false);
                undefined[start..start + len].fill(true);
            };
            let Some((index, at)) = self.row(block, here, lane, address, bytes) else {
                mark(to, bytes);
                continue;
            };
            for (part, bytes) in parts(address, bytes, PIECE as u64) {
                let at = at + (part - address) as usize;
                if self.options.footprint {
                    self.device.touch(index, at, bytes, false);
                }
                self.check_race(block, here, lane, Spot::Global(index, at), bytes, Kind::Read);
            }
            if self.options.memcheck {
                let holes = self.device.unwritten(address, bytes as u64).unwrap_or_default();
                for (start, end) in holes {
                    mark(to + (start - address) as usize, (end - start) as usize);
                }
            }
            // It was found above.
            let _ = self.device.read(address, &mut data[to..to + bytes]);
        }
        (data, undefined)
    }

    /// The memory of a row; `None` if it is none that may be accessed, which is reported.
    fn row(
        &mut self,
        block: &mut Block,
        here: Here,
        lane: usize,
        address: u64,
        bytes: usize,
    ) -> Option<(usize, usize)> {
        let hint = &mut block.warps[here.at].hint;
        match self.device.find(address, bytes as u64, hint) {
            Ok(found) => Some(found),
            Err(refusal) => {
                let kind = match refusal {
                    Refusal::Freed => FindingKind::UseAfterFree,
                    Refusal::Nowhere | Refusal::Slot => FindingKind::OutOfBounds,
                };
                let detail = self.device.neighbourhood(address);
                let place = ((Space::Global, address), bytes as u32);
                self.wrong(block, here, lane, kind, place, detail);
                None
            }
        }
    }

    fn count_tile(&mut self, rows: &[Row]) {
        self.counters.tile_copies += 1;
        if self.options.traffic && !rows.is_empty() {
            let loads = &mut self.counters.global_loads;
            loads.requests += 1;
            loads.sectors += sectors(rows);
            loads.bytes += rows.iter().map(|r| r.2 as u64).sum::<u64>();
        }
    }

    /// Lets pieces of tiles arrive now and then.
    pub(super) fn land_some(&mut self, block: &mut Block) {
        if block.tiles.is_empty() {
            return;
        }
        let is_late = self.options.schedule == Schedule::Adversarial;
        let comes = match is_late {
            true => self.steps - self.progress > LATE,
            false => self.dice.below(4) == 0,
        };
        if comes {
            self.land(block);
        }
    }

    /// Lets pieces of some tile arrive; whether there was one.
    pub(super) fn land(&mut self, block: &mut Block) -> bool {
        if block.tiles.is_empty() {
            return false;
        }
        let index = self.dice.below(block.tiles.len());
        let mut tile = block.tiles.swap_remove(index);
        let all = tile.left.len();
        let now = match self.dice.below(2) {
            0 => all,
            _ => 1 + self.dice.below(all),
        };
        let time = self.steps;
        for _ in 0..now {
            let Some(piece) = tile.left.pop() else { break };
            let (from, to) = (piece as usize * PIECE, tile.place(piece));
            for (i, &byte) in tile.data[from..from + PIECE].iter().enumerate() {
                block.shared.write(to + i, 1, u64::from(byte));
            }
            if !tile.undefined.is_empty() {
                for i in (0..PIECE).filter(|i| tile.undefined[from + i]) {
                    block.shared.written.unset(to + i, 1);
                }
            }
            if let Some(proxy) = &mut block.proxy {
                proxy.landed(to, PIECE, tile.who.0 * 32 + tile.who.1 as u32, time);
            }
        }
        self.progress = self.steps;
        if tile.left.is_empty() {
            self.complete_tile(block, &tile);
        } else {
            block.tiles.push(tile);
        }
        true
    }

    fn site_of_tile(&self, block: &Block, tile: &Tile) -> Site {
        let thread = self.thread_id(tile.who.0, tile.who.1 as u32);
        self.site(tile.code, tile.pc, block.id, thread)
    }

    fn complete_tile(&mut self, block: &mut Block, tile: &Tile) {
        let number = block.phases[tile.barrier].phase;
        let phase = Phase {
            barrier: tile.barrier as u32,
            number,
        };
        let site = Self::site_number(tile.code, tile.pc);
        if let Some(clocks) = &mut block.clocks {
            for (at, bytes) in parts(tile.to as u64, tile.data.len(), TILE_ALIGN) {
                // Whom it may meet was looked at when it was issued.
                clocks.shared(at as usize, bytes, tile.who, Kind::Landing(phase), site);
            }
        }
        if number != tile.phase && self.options.synccheck {
            let detail = format!(
                "phase {} of the barrier was complete before the bytes of this copy had come",
                tile.phase
            );
            let place = (Space::Shared, block.phases[tile.barrier].at as u64);
            let site = self.site_of_tile(block, tile);
            self.found(FindingKind::Phase, site, Some(place), 8, detail);
        }
        self.count_bytes(block, tile.barrier, tile.data.len() as u64);
    }

    /// The last thread of a block leaves the kernel: nothing may be on its way that nobody has waited for.
    pub(super) fn leave_tiles(&mut self, block: &mut Block) {
        block.tiles.clear();
        if !self.options.synccheck {
            return;
        }
        for index in 0..block.phases.len() {
            let barrier = &block.phases[index];
            let unseen = barrier.copy.as_ref().filter(|(phase, _)| *phase >= barrier.seen);
            if let Some((_, site)) = unseen.cloned() {
                let detail = "the kernel ends and nobody has waited for it".to_string();
                self.found(FindingKind::AsyncCopy, site, None, 0, detail);
            }
        }
    }
}

impl Dice {
    /// Puts a list into any order.
    fn shuffle(&mut self, list: &mut [u32]) {
        for i in (1..list.len()).rev() {
            list.swap(i, self.below(i + 1));
        }
    }
}
