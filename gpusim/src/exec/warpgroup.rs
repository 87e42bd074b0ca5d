//! The asynchronous products of four warps.
//!
//! Each warp multiplies its sixteen rows by itself, when it issues the product; that all four do the same is checked beside it.
//! What is read of shared memory counts as read by the first lane, at once and again when the warp waits for it.

use std::collections::VecDeque;
use std::ops::Range;

use super::access::{Here, Spot};
use super::flight::{Issued, Role};
use super::matrix::{a_place, element, total};
use super::step::lanes;
use super::tile::Tile;
use super::warp::Frame;
use super::{Block, Machine};
use crate::arith::Lanes;
use crate::arith::rounding::{F32, Round, round};
use crate::program::{AsyncProduct, Left, MmaType, Pc, Reg, Warpgroup};
use crate::race::Kind;
use crate::report::FindingKind;
use crate::syntax::Space;

/// The lane that a warp's reads are noted for.
const READER: usize = 0;

/// The instructions that four warps execute together, as far as not all of them have.
#[derive(Debug, Default)]
pub(super) struct Together {
    /// Function and instruction.
    steps: VecDeque<(usize, Pc)>,
    /// How many came before.
    first: u64,
    /// How many each warp executed.
    counts: [u64; 4],
    /// The warps that have left the kernel.
    gone: [bool; 4],
    /// What is wrong was reported.
    is_broken: bool,
}

impl Together {
    /// A warp executes an instruction: what is wrong with that.
    fn step(&mut self, warp: usize, place: (usize, Pc)) -> Option<&'static str> {
        if self.is_broken {
            return None;
        }
        let at = (self.counts[warp] - self.first) as usize;
        self.counts[warp] += 1;
        let wrong = match self.steps.get(at) {
            Some(&other) => (other != place).then_some("another warp of the four executes another such instruction"),
            None => {
                self.steps.push_back(place);
                let gone = self.gone.contains(&true);
                gone.then_some("another warp of the four left the kernel without it")
            }
        };
        let least = self.counts.iter().min().copied().unwrap_or(0);
        while self.first < least {
            self.steps.pop_front();
            self.first += 1;
        }
        self.is_broken = wrong.is_some();
        wrong
    }

    /// A warp leaves the kernel: the instruction that others executed and it did not.
    fn leave(&mut self, warp: usize) -> Option<(usize, Pc)> {
        self.gone[warp] = true;
        let at = (self.counts[warp] - self.first) as usize;
        let missed = self.steps.get(at).copied().filter(|_| !self.is_broken);
        self.is_broken |= missed.is_some();
        missed
    }
}

impl Machine<'_> {
    pub(super) fn warpgroup(&mut self, block: &mut Block, here: Here, what: &Warpgroup, active: u32) {
        if active == 0 {
            return;
        }
        if self.options.synccheck {
            self.check_warps(block, here, active);
        }
        let index = block.warps[here.at].index;
        if let Some(clocks) = &mut block.clocks {
            clocks.warp_sync(index, active);
        }
        let flight = &mut block.warps[here.at].flight;
        match what {
            Warpgroup::Fence => flight.fenced = self.steps,
            Warpgroup::Commit => flight.committed += 1,
            Warpgroup::Wait(pending) => {
                flight.done = flight.done.max(flight.committed.saturating_sub(*pending));
                self.complete_products(block, here.at);
                if let Some(clocks) = &mut block.clocks {
                    clocks.warp_sync(index, active);
                }
            }
            Warpgroup::Product(product) => self.issue_product(block, here, product, active),
        }
        self.progress = self.steps;
    }

    /// Whether four whole warps execute the same.
    fn check_warps(&mut self, block: &mut Block, here: Here, active: u32) {
        let warp = &block.warps[here.at];
        let (index, code) = (warp.index as usize, warp.frames[here.frame as usize].code);
        let (kind, detail) = if (index / 4 + 1) * 128 > self.threads as usize {
            let detail = format!("it takes four whole warps, and the block has {} threads", self.threads);
            (FindingKind::AsyncProduct, detail)
        } else if active != u32::MAX {
            let detail = format!("lanes {:#010x} of the warp are elsewhere", !active);
            (FindingKind::WarpMask, detail)
        } else if let Some(wrong) = block.together[index / 4].step(index % 4, (code, here.pc)) {
            (FindingKind::AsyncProduct, wrong.to_string())
        } else {
            return;
        };
        let site = self.site_of(block, here.at, here.frame, here.pc, active);
        self.found(kind, site, None, 0, detail);
    }

    /// A warp leaves the kernel: nothing of it may be under way, and it has done what the other three did.
    pub(super) fn leave_warpgroup(&mut self, block: &mut Block, at: usize) {
        if !self.options.synccheck {
            return;
        }
        let index = block.warps[at].index;
        let issued = block.warps[at].flight.issued.first().map(|i| i.here);
        if let Some((frame, pc)) = issued {
            let site = self.site_of(block, at, frame, pc, 1);
            let detail = "the kernel ends and nobody has waited for it".to_string();
            self.found(FindingKind::AsyncProduct, site, None, 0, detail);
        }
        let missed = block.together[index as usize / 4].leave(index as usize % 4);
        if let Some((code, pc)) = missed {
            let site = self.site(code, pc, block.id, self.thread_id(index, 0));
            let detail = "a warp leaves the kernel without it, which others of its four executed".to_string();
            self.found(FindingKind::AsyncProduct, site, None, 0, detail);
        }
    }

    /// Ends the products of the groups that were waited for: until now nobody may have written what they read.
    fn complete_products(&mut self, block: &mut Block, at: usize) {
        let done = block.warps[at].flight.done;
        let issued = std::mem::take(&mut block.warps[at].flight.issued);
        let (over, left): (Vec<_>, Vec<_>) = issued.into_iter().partition(|i| i.group <= done);
        block.warps[at].flight.issued = left;
        if self.races.is_none() {
            return;
        }
        for Issued { here, time, tiles, .. } in over {
            let (frame, pc) = here;
            let here = Here { at, frame, pc };
            for (tile, first, end) in tiles {
                for unit in tile.units(first..end) {
                    if block.shared.holds(unit.address, 16) {
                        self.end_read(block, here, unit.address, time);
                    }
                }
            }
        }
    }

    fn end_read(&mut self, block: &mut Block, here: Here, address: u64, issued: u64) {
        let at = address as usize;
        self.check_race(block, here, READER, Spot::Shared(at), 16, Kind::Read);
        let changed = block.proxy.as_ref().and_then(|p| p.changed(at, 16, issued));
        if let Some(thread) = changed {
            let detail = format!("thread {thread} of the block wrote this before the warp waited for the product");
            let place = ((Space::Shared, address), 16);
            self.wrong(block, here, READER, FindingKind::Race, place, detail);
        }
    }

    fn issue_product(&mut self, block: &mut Block, here: Here, product: &AsyncProduct, active: u32) {
        if block.warps[here.at].flight.fenced == 0 && self.options.synccheck {
            let site = self.site_of(block, here.at, here.frame, here.pc, active);
            let detail = "there was no `wgmma.fence` before it".to_string();
            self.found(FindingKind::AsyncProduct, site, None, 0, detail);
        }
        let rows = block.warps[here.at].index as usize % 4 * 16;
        let k = product.k as usize;
        let mut tiles = Vec::new();
        let left = match &product.a {
            Left::Registers(registers) => {
                self.use_registers(block, here, registers, Role::Operand);
                let frame = &block.warps[here.at].frames[here.frame as usize];
                let values: Vec<&Lanes> = registers.iter().map(|&r| frame.reg(r)).collect();
                Some(from_registers(product.ty, &values, k))
            }
            Left::Memory { descriptor, transposed } => {
                let tile = self.tile(block, here, *descriptor, *transposed, (k, active));
                tiles.extend(tile.map(|t| (t, rows, rows + 16)));
                tile.map(|t| self.operand(block, here, t, rows..rows + 16, product))
            }
        };
        let n = product.n as usize;
        let tile = self.tile(block, here, product.b, product.b_transposed, (k, active));
        tiles.extend(tile.map(|t| (t, 0, n)));
        let right = tile.map(|t| self.operand(block, here, t, 0..n, product));
        self.use_registers(block, here, &product.d, Role::Accumulator(product.n));
        let adds = block.warps[here.at].frames[here.frame as usize].holds(product.adds) & active;
        if adds != 0 && adds != active {
            self.differs(block, here, "predicate");
        }
        let warp = &mut block.warps[here.at];
        warp.flight.issued.push(Issued {
            group: warp.flight.committed + 1,
            here: (here.frame, here.pc),
            time: self.steps,
            tiles,
        });
        if let (Some(left), Some(right)) = (left, right) {
            multiply(
                &mut warp.frames[here.frame as usize],
                product,
                (&left, &right),
                adds != 0,
                active,
            );
        }
    }
}

impl Machine<'_> {
    fn differs(&mut self, block: &Block, here: Here, what: &str) {
        let site = self.site_of(block, here.at, here.frame, here.pc, 1);
        let detail = format!("lanes of the warp have a different {what}");
        self.found(FindingKind::AsyncProduct, site, None, 0, detail);
    }

    /// The matrix of a descriptor; `None` if it cannot be one, which is reported.
    fn tile(
        &mut self,
        block: &Block,
        here: Here,
        of: Reg,
        transposed: bool,
        (k, active): (usize, u32),
    ) -> Option<Tile> {
        let values = *block.warps[here.at].frames[here.frame as usize].reg(of);
        let descriptor = values[active.trailing_zeros() as usize & 31];
        if lanes(active).any(|lane| values[lane] != descriptor) {
            self.differs(block, here, "descriptor");
        }
        let tile = match Tile::parse(descriptor, transposed, k) {
            Ok(tile) => tile,
            Err(detail) => {
                let site = self.site_of(block, here.at, here.frame, here.pc, active);
                self.found(FindingKind::AsyncProduct, site, None, 0, detail);
                return None;
            }
        };
        if let Some((address, multiple)) = tile.misaligned() {
            let detail = format!("a matrix whose rows are permuted must be at a multiple of {multiple} bytes");
            let place = ((Space::Shared, address), multiple);
            self.wrong(block, here, READER, FindingKind::Misaligned, place, detail);
        }
        Some(tile)
    }

    /// Reads some rows of a matrix, one after the other.
    fn operand(
        &mut self,
        block: &mut Block,
        here: Here,
        tile: Tile,
        rows: Range<usize>,
        of: &AsyncProduct,
    ) -> Vec<f64> {
        let k = of.k as usize;
        let mut result = vec![0.0; rows.len() * k];
        for unit in tile.units(rows.clone()) {
            let place = (Space::Shared, unit.address);
            let Some(Spot::Shared(at)) = self.spot(block, here, READER, place, 16, false) else {
                continue;
            };
            self.check_read(block, here, at);
            let words = [block.shared.read(at, 8), block.shared.read(at + 8, 8)];
            let bits = if of.ty == MmaType::TF32 { 32 } else { 16 };
            for (i, (row, column)) in tile.elements(unit).enumerate() {
                let at = i * bits;
                result[(row - rows.start) * k + column] = element(of.ty, words[at / 64] >> (at % 64));
            }
        }
        result
    }

    /// Checks a read of sixteen bytes when a product is issued.
    fn check_read(&mut self, block: &mut Block, here: Here, at: usize) {
        self.check_race(block, here, READER, Spot::Shared(at), 16, Kind::Read);
        let place = ((Space::Shared, at as u64), 16);
        if self.options.memcheck && !block.shared.written.all(at, 16) {
            let detail = "nobody wrote these bytes".to_string();
            self.wrong(block, here, READER, FindingKind::Unwritten, place, detail);
        }
        let index = block.warps[here.at].index;
        if let Some(thread) = block.proxy.as_ref().and_then(|p| p.unseen(at, 16, index)) {
            let detail = format!(
                "thread {thread} of the block wrote this and did not fence it (`fence.proxy.async`) before it met the warp"
            );
            self.wrong(block, here, READER, FindingKind::AsyncProduct, place, detail);
        }
    }
}

/// A warp's rows of A, one after the other, as they lie in registers.
fn from_registers(ty: MmaType, registers: &[&Lanes], k: usize) -> Vec<f64> {
    let per = if ty == MmaType::TF32 { 1 } else { 2 };
    let mut result = vec![0.0; 16 * k];
    for lane in 0..32 {
        for i in 0..registers.len() * per {
            let (row, column) = a_place(ty, lane, i);
            result[row * k + column] = element(ty, registers[i / per][lane] >> (16 * (i % per)));
        }
    }
    result
}

/// Puts a warp's rows of a product into its registers: four for each eight columns.
fn multiply(frame: &mut Frame, product: &AsyncProduct, (left, right): (&[f64], &[f64]), adds: bool, active: u32) {
    let k = product.k as usize;
    let negated: Vec<f64>;
    let left = if product.negative {
        negated = left.iter().map(|v| -v).collect();
        &negated
    } else {
        left
    };
    for (i, &register) in product.d.iter().enumerate() {
        let before = *frame.reg(register);
        let result = std::array::from_fn(|lane| {
            let row = lane / 4 + i / 2 % 2 * 8;
            let column = i / 4 * 8 + lane % 4 * 2 + i % 2;
            let start = if adds {
                f64::from(f32::from_bits(before[lane] as u32))
            } else {
                0.0
            };
            let (sum, rest) = total(start, &left[row * k..][..k], &right[column * k..][..k]);
            round(sum, rest, F32, Round::Even)
        });
        frame.put(register, active, &result);
    }
}
