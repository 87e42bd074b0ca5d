//! Atomic operations and fences.

use super::access::{Here, Request, addresses, shifted};
use super::lane::sum;
use super::step::lanes;
use super::{Block, Machine};
use crate::arith::{extended, low};
use crate::program::{AtomOp, Atomic, Pc, Scope};
use crate::race::Kind;
use crate::report::FindingKind;

/// The value that an atomic operation leaves.
fn combined(atomic: &Atomic, old: u64, a: u64, b: u64) -> u64 {
    let bits = atomic.ty.bits();
    let less = |x: u64, y: u64| {
        if atomic.ty.is_signed() {
            extended(x, bits) < extended(y, bits)
        } else {
            x < y
        }
    };
    match atomic.op {
        AtomOp::And => old & a,
        AtomOp::Or => old | a,
        AtomOp::Xor => old ^ a,
        AtomOp::Exch => a,
        AtomOp::Cas => {
            if old == a {
                b
            } else {
                old
            }
        }
        AtomOp::Add => sum(old, a, atomic.ty),
        AtomOp::Inc => {
            if old >= a {
                0
            } else {
                old + 1
            }
        }
        AtomOp::Dec => {
            if old == 0 || old > a {
                a
            } else {
                old - 1
            }
        }
        AtomOp::Min => {
            if less(a, old) {
                a
            } else {
                old
            }
        }
        AtomOp::Max => {
            if less(old, a) {
                a
            } else {
                old
            }
        }
    }
}

impl Machine<'_> {
    pub(super) fn atomic(&mut self, block: &mut Block, at: usize, frame: u32, pc: Pc, atomic: &Atomic, active: u32) {
        let here = Here { at, frame, pc };
        self.polled = self.steps;
        let bits = atomic.ty.bits();
        let bytes = bits / 8;
        let count = atomic.a.len();
        let total = bytes * count as u32;
        let state = &block.warps[at].frames[frame as usize];
        let (bases, b) = (*state.reg(atomic.place.base), *state.reg(atomic.b));
        let mut results = [[0; 32]; 8];
        let mut request = Request::default();
        for lane in lanes(active) {
            let address = addresses(&bases, atomic.place.offset, lane);
            let Some(spot) = self.spot(block, here, lane, (atomic.place.space, address), total, true) else {
                continue;
            };
            request.note(lane, spot, address, total);
            if self.races.is_some() {
                let kind = Kind::Atomic(atomic.scope);
                self.strong(block, here, lane, spot, (atomic.order, atomic.scope), kind);
                self.check_race(block, here, lane, spot, total, kind);
            }
            let mut undefined = false;
            for (i, (&a, result)) in atomic.a.iter().zip(&mut results).enumerate() {
                let spot = shifted(spot, i * bytes as usize);
                let a = block.warps[at].frames[frame as usize].reg(a)[lane];
                let (old, defined) = self.read(block, here, lane, spot, bytes);
                undefined |= !defined;
                result[lane] = old;
                let new = low(combined(atomic, old, low(a, bits), low(b[lane], bits)), bits);
                if new != old || !defined {
                    self.progress = self.steps;
                }
                self.write(block, here, lane, spot, bytes, new);
            }
            if undefined {
                let detail = "nobody wrote these bytes".to_string();
                let place = ((atomic.place.space, address), total);
                self.wrong(block, here, lane, FindingKind::Unwritten, place, detail);
            }
        }
        for (&register, values) in atomic.results.iter().zip(&results) {
            let Some(register) = register else { continue };
            block.warps[at].frames[frame as usize].put(register, active, values);
        }
        if self.options.traffic {
            request.count_global(&mut self.counters.global_atomics);
        }
    }

    pub(super) fn fence(&mut self, block: &mut Block, at: usize, active: u32, scope: Scope) {
        let warp = block.warps[at].index;
        if let Some(proxy) = &mut block.proxy {
            lanes(active).for_each(|lane| proxy.publish(warp * 32 + lane as u32));
        }
        if let Some(clocks) = &mut block.clocks {
            for lane in lanes(active) {
                clocks.fence(warp, lane, scope);
            }
        }
    }
}
