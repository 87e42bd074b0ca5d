//! Instructions that lanes of a warp execute together.
//!
//! Each names the lanes that take part. Where lanes have parted, those that come first wait for the rest; a lane of the mask
//! that never comes is a finding, not an endless wait.

use super::access::Here;
use super::step::{Next, lanes};
use super::warp::{Frame, Split, Wait};
use super::{Block, Machine};
use crate::arith::low;
use crate::program::{Instr, Op, Pc, Redux, Shuffle, Vote};
use crate::report::FindingKind;

/// The register that holds an instruction's mask.
const fn mask_of(op: &Op) -> Option<u32> {
    match op {
        Op::WarpBarrier { mask }
        | Op::Shuffle { mask, .. }
        | Op::Vote { mask, .. }
        | Op::Match { mask, .. }
        | Op::Redux { mask, .. }
        | Op::Elect { mask, .. } => Some(*mask),
        _ => None,
    }
}

impl Machine<'_> {
    pub(super) fn collective(
        &mut self,
        block: &mut Block,
        at: usize,
        index: usize,
        instr: &Instr,
        active: u32,
    ) -> Next {
        if active == 0 {
            return Next::On;
        }
        let Split { pc, frame, .. } = block.warps[at].splits[index];
        if let Op::ActiveMask { d } = instr.op {
            block.warps[at].frames[frame as usize].put(d, active, &[u64::from(active); 32]);
            return Next::On;
        }
        // Who is here: this split, and those that wait at the same instruction or at a barrier of the warp.
        let warp = &block.warps[at];
        let is_barrier = matches!(instr.op, Op::WarpBarrier { .. });
        let mut here = active;
        let mut with = Vec::new();
        for (other, split) in warp.splits.iter().enumerate() {
            if other == index || split.wait != Wait::Warp {
                continue;
            }
            let same = split.pc == pc && split.frame == frame;
            let code = &self.program.codes[warp.frames[split.frame as usize].code];
            let barrier = is_barrier && matches!(code.instrs[split.pc as usize].op, Op::WarpBarrier { .. });
            if same || barrier {
                here |= self.active_of(block, at, other);
                with.push(other);
            }
        }
        let warp = &block.warps[at];
        let alive = warp.alive;
        let mut groups: Vec<(u32, u32)> = Vec::new();
        let masks = |lane: usize| match mask_of(&instr.op) {
            Some(register) => warp.frames[frame as usize].reg(register)[lane] as u32,
            None => u32::MAX,
        };
        for lane in lanes(active) {
            let mask = masks(lane);
            match groups.iter_mut().find(|(m, _)| *m == mask) {
                Some((_, members)) => *members |= 1 << lane,
                None => groups.push((mask, 1 << lane)),
            }
        }
        let missing = groups.iter().fold(0, |all, (mask, _)| all | mask & alive & !here);
        let others_can_come = warp
            .splits
            .iter()
            .enumerate()
            .any(|(i, s)| i != index && s.wait == Wait::Ready)
            || warp.joins.iter().any(|j| j.is_open && j.arrived != 0);
        let waits_at_barrier = warp.splits.iter().any(|s| matches!(s.wait, Wait::Barrier(_)));
        if missing != 0 && (others_can_come || waits_at_barrier) {
            block.warps[at].splits[index].wait = Wait::Warp;
            return Next::Changed;
        }
        if self.options.synccheck {
            let outside = groups.iter().fold(0, |all, (mask, members)| all | members & !mask);
            if missing != 0 || outside != 0 {
                let site = self.site_of(block, at, frame, pc, active);
                let detail = if missing != 0 {
                    format!("lanes {missing:#010x} of the mask do not come")
                } else {
                    format!("lanes {outside:#010x} execute it and are not in its mask")
                };
                self.found(FindingKind::WarpMask, site, None, 0, detail);
            }
        }
        for (mask, members) in groups {
            // Lanes that waited at the same instruction take part in it now.
            let members = if is_barrier { members } else { members | here & mask };
            let members = members & here;
            if let Some(clocks) = &mut block.clocks {
                clocks.warp_sync(
                    block.warps[at].index,
                    if is_barrier { here & (mask | members) } else { members },
                );
            }
            self.together(block, at, frame, pc, instr, members);
        }
        for other in with {
            let split = &mut block.warps[at].splits[other];
            split.wait = Wait::Ready;
            split.pc += 1;
        }
        Next::On
    }

    /// The lanes of a waiting split that its instruction's guard lets through.
    fn active_of(&self, block: &Block, at: usize, index: usize) -> u32 {
        let warp = &block.warps[at];
        let split = warp.splits[index];
        let frame = &warp.frames[split.frame as usize];
        let instr = &self.program.codes[frame.code].instrs[split.pc as usize];
        instr.guard.map_or(split.mask, |g| split.mask & frame.holds(g))
    }

    fn together(&mut self, block: &mut Block, at: usize, frame: u32, pc: Pc, instr: &Instr, members: u32) {
        let state = &mut block.warps[at].frames[frame as usize];
        match &instr.op {
            Op::WarpBarrier { .. } => {}
            Op::Shuffle { .. } => {
                let undefined = shuffle(state, &instr.op, members);
                if undefined != 0 {
                    let site = self.site_of(block, at, frame, pc, undefined);
                    let detail = "a lane takes a value from one that does not take part".to_string();
                    if self.options.synccheck {
                        self.found(FindingKind::WarpMask, site, None, 0, detail);
                    }
                }
            }
            Op::Vote { mode, d, p, a, .. } => {
                let holds = state.holds(*a) & members;
                let truth = match mode {
                    Vote::All => holds == members,
                    Vote::Any => holds != 0,
                    Vote::Uniform => holds == members || holds == 0,
                    Vote::Ballot => false,
                };
                if let Some(d) = d {
                    state.put(*d, members, &[u64::from(holds); 32]);
                }
                if let Some(p) = p {
                    state.put_pred(*p, members, if truth { u32::MAX } else { 0 });
                }
            }
            Op::Match { all, d, p, a, .. } => {
                let values = *state.reg(*a);
                let equal = |lane: usize| {
                    lanes(members)
                        .filter(|&l| values[l] == values[lane])
                        .fold(0_u32, |m, l| m | 1 << l)
                };
                let first = equal(members.trailing_zeros() as usize);
                let mut result = [0; 32];
                for lane in lanes(members) {
                    let same = equal(lane);
                    result[lane] = u64::from(if !*all {
                        same
                    } else if first == members {
                        members
                    } else {
                        0
                    });
                }
                state.put(*d, members, &result);
                if let Some(p) = p {
                    state.put_pred(*p, members, if first == members { u32::MAX } else { 0 });
                }
            }
            Op::Redux { op, signed, d, a, .. } => {
                let values = *state.reg(*a);
                let combine = |x: u64, y: u64| {
                    let (x, y) = (x as u32, y as u32);
                    u64::from(match (op, signed) {
                        (Redux::Add, _) => x.wrapping_add(y),
                        (Redux::And, _) => x & y,
                        (Redux::Or, _) => x | y,
                        (Redux::Xor, _) => x ^ y,
                        (Redux::Min, true) => (x as i32).min(y as i32) as u32,
                        (Redux::Max, true) => (x as i32).max(y as i32) as u32,
                        (Redux::Min, false) => x.min(y),
                        (Redux::Max, false) => x.max(y),
                    })
                };
                let result = lanes(members).map(|l| values[l]).reduce(combine).unwrap_or(0);
                state.put(*d, members, &[low(result, 32); 32]);
            }
            Op::Elect { d, p, .. } => {
                let leader = members.trailing_zeros();
                if let Some(d) = d {
                    state.put(*d, members, &[u64::from(leader); 32]);
                }
                state.put_pred(*p, members, 1 << leader);
            }
            _ => self.matrix(block, Here { at, frame, pc }, instr, members),
        }
    }
}

/// Moves values between lanes; the lanes that took one of a lane that is not there.
fn shuffle(state: &mut Frame, op: &Op, members: u32) -> u32 {
    let Op::Shuffle {
        mode, d, p, a, b, c, ..
    } = op
    else {
        return 0;
    };
    let (values, by, limits) = (*state.reg(*a), *state.reg(*b), *state.reg(*c));
    let from_undefined = state.undefined[*a as usize];
    let (mut result, mut inside, mut absent, mut undefined) = ([0; 32], 0, 0, 0);
    for lane in lanes(members) {
        let by = by[lane] as u32 & 31;
        let segment = (limits[lane] >> 8) as u32 & 31;
        let clamp = limits[lane] as u32 & 31;
        let lane_number = lane as u32;
        let highest = (lane_number & segment) | (clamp & !segment);
        let lowest = lane_number & segment;
        let (source, valid) = match mode {
            Shuffle::Up => (
                lane_number.wrapping_sub(by),
                lane_number as i32 - by as i32 >= highest as i32,
            ),
            Shuffle::Down => (lane_number + by, lane_number + by <= highest),
            Shuffle::Butterfly => (lane_number ^ by, lane_number ^ by <= highest),
            Shuffle::Index => {
                let source = lowest | (by & !segment);
                (source, source <= highest)
            }
        };
        let source = if valid { source & 31 } else { lane_number };
        inside |= u32::from(valid) << lane;
        if members >> source & 1 == 0 {
            absent |= 1 << lane;
        }
        undefined |= (from_undefined >> source & 1) << lane;
        result[lane] = values[source as usize];
    }
    if let Some(d) = d {
        state.put(*d, members, &result);
        let to = &mut state.undefined[*d as usize];
        *to = *to & !members | undefined;
    }
    if let Some(p) = p {
        state.put_pred(*p, members, inside);
    }
    absent
}
