//! Running a split of a warp until it has to wait, parts, or had its turn.

use super::access::Here;
use super::warp::{Frame, Join, NONE, Split, Wait, Warp};
use super::{Block, LOCAL_WINDOW, Machine, PARAM_WINDOW, SHARED_WINDOW};
use crate::arith::{Lanes, low};
use crate::program::{Call, Code, Combine, Guard, Instr, NEVER, Op, Pc, in_class};
use crate::report::FindingKind;
use crate::syntax::Space;

/// What became of a split behind an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Next {
    /// It goes on at the next instruction.
    On,
    /// It goes on elsewhere.
    Jump(Pc),
    /// The list of splits has changed, or it waits.
    Changed,
}

impl Frame {
    pub(super) fn reg(&self, register: u32) -> &Lanes {
        &self.regs[register as usize]
    }

    /// The lanes in which a guard holds.
    pub(super) fn holds(&self, guard: Guard) -> u32 {
        let lanes = self.preds[guard.pred as usize];
        if guard.inverted { !lanes } else { lanes }
    }

    /// Writes the lanes of a mask.
    pub(super) fn put(&mut self, register: u32, mask: u32, values: &Lanes) {
        let to = &mut self.regs[register as usize];
        if mask == u32::MAX {
            *to = *values;
            return;
        }
        for (i, (to, &value)) in to.iter_mut().zip(values).enumerate() {
            if mask >> i & 1 == 1 {
                *to = value;
            }
        }
    }

    pub(super) fn put_pred(&mut self, pred: u32, mask: u32, lanes: u32) {
        let to = &mut self.preds[pred as usize];
        *to = *to & !mask | lanes & mask;
    }
}

/// The set lanes of a mask.
pub(super) fn lanes(mask: u32) -> impl Iterator<Item = usize> {
    let mut left = mask;
    std::iter::from_fn(move || {
        if left == 0 {
            return None;
        }
        let lane = left.trailing_zeros();
        left &= left - 1;
        Some(lane as usize)
    })
}

impl Machine<'_> {
    /// Gives the warps of a block a turn; whether any could use it.
    pub(super) fn turn(&mut self, block: &mut Block) -> bool {
        let mut moved = false;
        for _ in 0..self.turns.turns(block.warps.len()) {
            self.land_some(block);
            let ready = block.warps.iter().filter(|w| w.is_ready()).count();
            if ready == 0 {
                return moved || self.unstick(block);
            }
            let pick = self.turns.pick(ready, &mut block.turn);
            let Some(at) = (0..block.warps.len()).filter(|&i| block.warps[i].is_ready()).nth(pick) else {
                continue;
            };
            let quantum = self.turns.quantum();
            self.run_warp(block, at, quantum);
            moved = true;
        }
        moved
    }

    /// Where nobody can go on: lets copies arrive, lanes go on that wait to meet others of their warp, and threads that are held for a
    /// phase.
    fn unstick(&mut self, block: &mut Block) -> bool {
        if self.land(block) {
            return true;
        }
        for at in 0..block.warps.len() {
            let warp = &mut block.warps[at];
            let waiting = warp.splits.iter().find(|s| s.wait == Wait::Warp).copied();
            if !warp.release_join() {
                continue;
            }
            // They came to where the branch ends while others of the warp wait for them inside of it.
            if let Some(split) = waiting.filter(|_| self.options.synccheck) {
                let site = self.site_of(block, at, split.frame, split.pc, split.mask);
                let detail = "lanes of the mask went past it".to_string();
                self.found(FindingKind::WarpMask, site, None, 0, detail);
            }
            return true;
        }
        self.release_held(block)
    }

    fn run_warp(&mut self, block: &mut Block, at: usize, quantum: u32) {
        let mut left = quantum;
        while left > 0 {
            let warp = &mut block.warps[at];
            let ready = warp.splits.iter().filter(|s| s.wait == Wait::Ready).count();
            if ready == 0 {
                return;
            }
            let mut turn = warp.turn;
            let pick = self.turns.pick(ready, &mut turn);
            warp.turn = turn;
            let found = (0..warp.splits.len())
                .filter(|&i| warp.splits[i].wait == Wait::Ready)
                .nth(pick);
            let Some(split) = found else { return };
            let before = left;
            self.run_split(block, at, split, &mut left);
            if left == before {
                left -= 1;
            }
        }
        // Lanes that spin keep others of their warp from nothing: those that wait to meet them are let go. Who spins looks at what others
        // write; a long computation is no reason.
        let warp = &mut block.warps[at];
        let idle = self.steps - self.progress;
        self.turns.set_fair(idle > 1000);
        if idle > 4000 && self.polled > self.progress && !warp.joins.is_empty() {
            warp.release_join();
        }
    }

    fn run_split(&mut self, block: &mut Block, at: usize, index: usize, left: &mut u32) {
        let program = self.program;
        let warp = &mut block.warps[at];
        let split = warp.splits[index];
        let Split {
            mask,
            mut pc,
            frame,
            join,
            ..
        } = split;
        let meet = match warp.joins.get(join as usize) {
            Some(j) if j.callee.is_none() && j.frame == frame => j.pc,
            _ => NEVER,
        };
        let code = &program.codes[warp.frames[frame as usize].code];
        loop {
            if pc == meet {
                let warp = &mut block.warps[at];
                warp.splits.swap_remove(index);
                warp.arrive(join, mask);
                return;
            }
            if *left == 0 {
                block.warps[at].splits[index].pc = pc;
                return;
            }
            *left -= 1;
            self.steps += 1;
            let instr = &code.instrs[pc as usize];
            let warp = &mut block.warps[at];
            let active = match instr.guard {
                None => mask,
                Some(guard) => mask & warp.frames[frame as usize].holds(guard),
            };
            self.counters.warp[instr.class as usize] += 1;
            self.counters.lanes[instr.class as usize] += u64::from(active.count_ones());
            if let Some(each) = &mut self.each {
                let at = (warp.frames[frame as usize].code, pc);
                each.begins(at, active.count_ones(), self.counters.memory());
            }
            if warp.suspicious && active != 0 {
                self.check_undefined(block, at, frame, pc, instr, active);
            }
            if let Some(watched) = &instr.watched
                && active != 0
            {
                self.check_watched(block, Here { at, frame, pc }, watched);
            }
            let warp = &mut block.warps[at];
            let next = if let Some(next) = simple(&mut warp.frames[frame as usize], instr, active) {
                next
            } else {
                warp.splits[index].pc = pc;
                self.complex(block, at, index, instr, active, code)
            };
            match next {
                Next::On => pc += 1,
                Next::Jump(to) => pc = to,
                Next::Changed => return,
            }
        }
    }

    /// Instructions that touch more than registers.
    fn complex(&mut self, block: &mut Block, at: usize, index: usize, instr: &Instr, active: u32, code: &Code) -> Next {
        let Split {
            mask, pc, frame, join, ..
        } = block.warps[at].splits[index];
        match &instr.op {
            Op::Branch { to, meet } => self.branch(&mut block.warps[at], index, active, *to, *meet),
            Op::BranchTable {
                index: by,
                targets,
                meet,
            } => self.branch_table(&mut block.warps[at], index, active, *by, targets, *meet),
            Op::Exit | Op::Trap | Op::Return => {
                if active == 0 {
                    return Next::On;
                }
                let warp = &mut block.warps[at];
                if active == mask {
                    warp.splits.swap_remove(index);
                } else {
                    warp.splits[index].mask &= !active;
                    warp.splits[index].pc = pc + 1;
                }
                if matches!(instr.op, Op::Return) {
                    let call = warp.leave(join, active, true);
                    if call != NONE {
                        let program = self.program;
                        copy_results(warp, call, active, program);
                        warp.arrive(call, active);
                        return Next::Changed;
                    }
                }
                if matches!(instr.op, Op::Trap) {
                    let site = self.site_of(block, at, frame, pc, active);
                    self.found(FindingKind::Trap, site, None, 0, String::new());
                }
                self.exit(block, at, join, active);
                Next::Changed
            }
            Op::Assertion => {
                if active != 0 {
                    let site = self.site_of(block, at, frame, pc, active);
                    self.found(FindingKind::Assertion, site, None, 0, String::new());
                    let warp = &mut block.warps[at];
                    if active == mask {
                        warp.splits.swap_remove(index);
                    } else {
                        warp.splits[index].mask &= !active;
                        warp.splits[index].pc = pc + 1;
                    }
                    self.exit(block, at, join, active);
                    return Next::Changed;
                }
                Next::On
            }
            Op::Call(call) => self.call(block, at, index, active, call, code),
            Op::Clock { d, bits } => {
                self.clock = self.steps;
                let value = low(self.clock, *bits);
                block.warps[at].frames[frame as usize].put(*d, active, &[value; 32]);
                Next::On
            }
            Op::Load(access) => {
                self.load(block, at, frame, pc, access, active);
                Next::On
            }
            Op::Store(access) => {
                self.store(block, at, frame, pc, access, active);
                Next::On
            }
            Op::Atomic(atomic) => {
                self.atomic(block, at, frame, pc, atomic, active);
                Next::On
            }
            Op::Fence(scope) => {
                self.fence(block, at, active, *scope);
                Next::On
            }
            Op::ProxyFence => {
                self.proxy_fence(block, at, active);
                Next::On
            }
            Op::PhaseFence => {
                self.fence_phases(block, at, active);
                Next::On
            }
            Op::Phase { place, what } => self.phase(block, at, index, (instr, *place, *what), active),
            Op::CopyTile(copy) => {
                self.copy_tile(block, Here { at, frame, pc }, copy, active);
                Next::On
            }
            Op::Warpgroup(what) => {
                self.warpgroup(block, Here { at, frame, pc }, what, active);
                Next::On
            }
            Op::CopyAsync {
                to,
                from,
                bytes,
                size,
                ignore,
            } => {
                self.copy_async(block, at, frame, pc, (*to, *from, *bytes, *size, *ignore), active);
                Next::On
            }
            Op::CopyCommit => {
                self.copy_commit(block, at, active);
                Next::On
            }
            Op::CopyWait(pending) => {
                self.copy_wait(block, at, active, *pending);
                Next::On
            }
            Op::Barrier {
                id,
                threads,
                kind,
                aligned,
            } => self.barrier(block, at, index, active, (*id, *threads, *kind, *aligned)),
            _ => self.collective(block, at, index, instr, active),
        }
    }

    /// Threads leave the kernel.
    fn exit(&mut self, block: &mut Block, at: usize, join: u32, active: u32) {
        self.copy_wait(block, at, active, None);
        let warp = &mut block.warps[at];
        warp.alive &= !active;
        warp.leave(join, active, false);
        self.progress = self.steps;
        if warp.alive == 0 && self.has_products {
            self.leave_warpgroup(block, at);
        }
        if block.is_done() {
            self.leave_tiles(block);
        }
        self.wake_collective(block, at);
        self.complete_barriers(block);
    }

    fn branch(&mut self, warp: &mut Warp, index: usize, active: u32, to: Pc, meet: Pc) -> Next {
        let mask = warp.splits[index].mask;
        self.counters.branches += 1;
        if active == mask {
            return Next::Jump(to);
        }
        if active == 0 {
            return Next::On;
        }
        self.counters.divergent_branches += 1;
        let pc = warp.splits[index].pc;
        part(warp, index, meet, &[(mask & !active, pc + 1), (active, to)]);
        Next::Changed
    }

    fn branch_table(&mut self, warp: &mut Warp, index: usize, active: u32, by: u32, targets: &[Pc], meet: Pc) -> Next {
        let Split { mask, pc, frame, .. } = warp.splits[index];
        self.counters.branches += 1;
        let values = warp.frames[frame as usize].reg(by);
        let mut parts: Vec<(u32, Pc)> = Vec::new();
        if mask & !active != 0 {
            parts.push((mask & !active, pc + 1));
        }
        for lane in lanes(active) {
            // An index beyond the list is undefined; the last target is as good as any.
            let target = targets[(values[lane] as usize).min(targets.len() - 1)];
            match parts.iter_mut().find(|(_, to)| *to == target) {
                Some((mask, _)) => *mask |= 1 << lane,
                None => parts.push((1 << lane, target)),
            }
        }
        if let [(_, to)] = parts[..] {
            return Next::Jump(to);
        }
        self.counters.divergent_branches += 1;
        part(warp, index, meet, &parts);
        Next::Changed
    }

    fn call(&mut self, block: &mut Block, at: usize, index: usize, active: u32, call: &Call, code: &Code) -> Next {
        if active == 0 {
            return Next::On;
        }
        let warp = &block.warps[at];
        let Split {
            mask, pc, frame, join, ..
        } = warp.splits[index];
        let caller = &warp.frames[frame as usize];
        let local_base = caller.local_base + code.local_bytes;
        let callee = &self.program.codes[call.function];
        let mut depth = 0;
        let mut outer = join;
        while outer != NONE {
            depth += 1;
            outer = warp.joins[outer as usize].parent;
        }
        if depth > 4096 || u64::from(local_base) + u64::from(callee.local_bytes) > 512 * 1024 {
            let site = self.site_of(block, at, frame, pc, active);
            self.found(
                FindingKind::OutOfBounds,
                site,
                None,
                0,
                "calls nest too deeply for the stack".to_string(),
            );
            let warp = &mut block.warps[at];
            warp.splits.swap_remove(index);
            self.exit(block, at, join, mask);
            return Next::Changed;
        }
        let mut made = self.frame(call.function, block.id, warp.index, local_base, None);
        let warp = &mut block.warps[at];
        let caller = &warp.frames[frame as usize];
        for &(from, to, bytes) in &call.arguments {
            let (from_size, to_size) = (caller.params.len() / 32, made.params.len() / 32);
            for lane in lanes(active) {
                let source = lane * from_size + from as usize;
                let target = lane * to_size + to as usize;
                made.params[target..target + bytes as usize]
                    .copy_from_slice(&caller.params[source..source + bytes as usize]);
            }
        }
        if warp.local.is_empty() && callee.local_bytes > 0 {
            warp.local = vec![Default::default(); 32];
        }
        let needed = local_base as usize + callee.local_bytes as usize;
        warp.local.iter_mut().for_each(|l| l.reserve(needed));
        let new = match warp.free_frames.pop() {
            Some(free) => {
                warp.frames[free as usize] = made;
                free
            }
            None => {
                warp.frames.push(made);
                (warp.frames.len() - 1) as u32
            }
        };
        let back = Join {
            pc: pc + 1,
            frame,
            expected: active,
            arrived: 0,
            parent: join,
            callee: Some(new),
            is_open: true,
        };
        if active == mask {
            let back = warp.open(back);
            warp.splits[index] = Split {
                mask,
                pc: 0,
                frame: new,
                join: back,
                wait: Wait::Ready,
            };
        } else {
            // Lanes that do not call wait behind the call.
            let both = Join {
                expected: mask,
                callee: None,
                ..back
            };
            let both = warp.open(both);
            let back = warp.open(Join { parent: both, ..back });
            warp.splits[index] = Split {
                mask: active,
                pc: 0,
                frame: new,
                join: back,
                wait: Wait::Ready,
            };
            warp.arrive(both, mask & !active);
        }
        Next::Changed
    }

    /// The site of the first of some lanes.
    pub(super) fn site_of(&self, block: &Block, at: usize, frame: u32, pc: Pc, mask: u32) -> crate::report::Site {
        let warp = &block.warps[at];
        let code = warp.frames[frame as usize].code;
        self.site(
            code,
            pc,
            block.id,
            self.thread_id(warp.index, mask.trailing_zeros() & 31),
        )
    }

    /// Reports undefined values that an instruction computes with, and follows those that it copies.
    fn check_undefined(&mut self, block: &mut Block, at: usize, frame: u32, pc: Pc, instr: &Instr, active: u32) {
        let warp = &mut block.warps[at];
        let state = &mut warp.frames[frame as usize];
        let used = instr.reads.iter().fold(0, |all, &r| all | state.undefined[r as usize]) & active;
        let mut copied = instr.copies.iter().fold(0, |all, &r| all | state.undefined[r as usize]) & active;
        if let Op::Select { d, a, b, by } = instr.op {
            let first = state.holds(by);
            copied = state.undefined[a as usize] & first | state.undefined[b as usize] & !first;
            let to = &mut state.undefined[d as usize];
            *to = *to & !active | copied & active;
        }
        for &register in &instr.writes {
            let to = &mut state.undefined[register as usize];
            *to = *to & !active | copied;
        }
        if used != 0 {
            // Reported once: what is computed of it counts as defined.
            for &register in &instr.reads {
                state.undefined[register as usize] &= !used;
            }
            let site = self.site_of(block, at, frame, pc, used);
            let detail = "a value that was loaded from memory never written is used".to_string();
            self.found(FindingKind::Unwritten, site, None, 0, detail);
        }
    }
}

/// Copies what a function returns to its caller.
fn copy_results(warp: &mut Warp, call: u32, active: u32, program: &crate::program::Program) {
    let join = warp.joins[call as usize];
    let Some(callee) = join.callee else { return };
    let caller_code = &program.codes[warp.frames[join.frame as usize].code];
    let Some(Op::Call(what)) = caller_code.instrs.get(join.pc as usize - 1).map(|i| &i.op) else {
        return;
    };
    for &(from, to, bytes) in &what.results {
        let (from_size, to_size) = (
            warp.frames[callee as usize].params.len() / 32,
            warp.frames[join.frame as usize].params.len() / 32,
        );
        for lane in lanes(active) {
            let source = lane * from_size + from as usize;
            let target = lane * to_size + to as usize;
            for i in 0..bytes as usize {
                let byte = warp.frames[callee as usize].params[source + i];
                warp.frames[join.frame as usize].params[target + i] = byte;
            }
        }
    }
}

/// Lanes part: each group goes its way, and they meet where the branch says.
fn part(warp: &mut Warp, index: usize, meet: Pc, groups: &[(u32, Pc)]) {
    let Split { mask, frame, join, .. } = warp.splits.swap_remove(index);
    let same = warp
        .joins
        .get(join as usize)
        .is_some_and(|j| j.callee.is_none() && j.pc == meet && j.frame == frame);
    let join = if meet == NEVER || same {
        join
    } else {
        warp.open(Join {
            pc: meet,
            frame,
            expected: mask,
            arrived: 0,
            parent: join,
            callee: None,
            is_open: true,
        })
    };
    for &(mask, pc) in groups {
        if pc == meet {
            warp.arrive(join, mask);
        } else {
            warp.splits.push(Split {
                mask,
                pc,
                frame,
                join,
                wait: Wait::Ready,
            });
        }
    }
}

/// Instructions on registers alone. `None` for others.
fn simple(frame: &mut Frame, instr: &Instr, active: u32) -> Option<Next> {
    match &instr.op {
        Op::Alu { f, d, a, b, c } => {
            let mut result = [0; 32];
            f(frame.reg(*a), frame.reg(*b), frame.reg(*c), &mut result);
            frame.put(*d, active, &result);
        }
        Op::Move { d, a } => {
            let value = *frame.reg(*a);
            frame.put(*d, active, &value);
        }
        Op::Set { f, d, q, a, b, with } => {
            let truth = f(frame.reg(*a), frame.reg(*b));
            let (yes, no) = combined(frame, truth, *with);
            if let Some(d) = d {
                frame.put_pred(*d, active, yes);
            }
            if let Some(q) = q {
                frame.put_pred(*q, active, no);
            }
        }
        Op::Lane { what, d, a, b, c } => {
            let result = super::lane::run(what, frame.reg(*a), frame.reg(*b), frame.reg(*c));
            frame.put(*d, active, &result);
        }
        Op::Select { d, a, b, by } => {
            let first = frame.holds(*by);
            let (x, y) = (frame.reg(*a), frame.reg(*b));
            let mut result = [0; 32];
            for i in 0..32 {
                result[i] = if first >> i & 1 == 1 { x[i] } else { y[i] };
            }
            frame.put(*d, active, &result);
        }
        Op::Pack { d, parts, bits } => {
            let mut result = [0; 32];
            for (i, part) in parts.iter().enumerate() {
                for (to, &value) in result.iter_mut().zip(frame.reg(*part)) {
                    *to |= low(value, *bits) << (i as u32 * bits);
                }
            }
            frame.put(*d, active, &result);
        }
        Op::Unpack { parts, a, bits } => {
            let value = *frame.reg(*a);
            for (i, part) in parts.iter().enumerate() {
                let Some(part) = part else { continue };
                let result = value.map(|v| low(v >> (i as u32 * bits), *bits));
                frame.put(*part, active, &result);
            }
        }
        Op::SetNumber {
            f,
            d,
            a,
            b,
            with,
            truth,
        } => {
            let (yes, _) = combined(frame, f(frame.reg(*a), frame.reg(*b)), *with);
            let result = std::array::from_fn(|i| if yes >> i & 1 == 1 { *truth } else { 0 });
            frame.put(*d, active, &result);
        }
        Op::Class { name, ty, d, a } => {
            let value = frame.reg(*a);
            let truth = (0..32).fold(0, |all, i| all | u32::from(in_class(name, value[i], *ty)) << i);
            frame.put_pred(*d, active, truth);
        }
        Op::PredMove { d, a } => {
            let value = frame.holds(*a);
            frame.put_pred(*d, active, value);
        }
        Op::PredConst { d, value } => frame.put_pred(*d, active, if *value { u32::MAX } else { 0 }),
        Op::PredLogic { d, how, a, b } => {
            let value = combine(*how, frame.holds(*a), frame.holds(*b));
            frame.put_pred(*d, active, value);
        }
        Op::Carry { what, d, a, b, c } => {
            let flags = frame.preds[what.flag as usize];
            let (result, out) = super::lane::carried(what, frame.reg(*a), frame.reg(*b), frame.reg(*c), flags);
            frame.put(*d, active, &result);
            if what.writes {
                frame.put_pred(what.flag, active, out);
            }
        }
        Op::ToGeneric { d, a, space } => {
            let window = window(*space);
            let result = frame.reg(*a).map(|v| v.wrapping_add(window));
            frame.put(*d, active, &result);
        }
        Op::FromGeneric { d, a, space } => {
            let window = window(*space);
            let result = frame.reg(*a).map(|v| v.wrapping_sub(window));
            frame.put(*d, active, &result);
        }
        Op::IsSpace { d, a, space } => {
            let (value, window) = (frame.reg(*a), window(*space));
            let truth = (0..32).fold(0, |all, i| all | u32::from(value[i] >> 60 == window >> 60) << i);
            frame.put_pred(*d, active, truth);
        }
        Op::Nop => {}
        _ => return None,
    }
    Some(Next::On)
}

const fn window(space: Space) -> u64 {
    match space {
        Space::Shared => SHARED_WINDOW,
        Space::Local => LOCAL_WINDOW,
        Space::Param => PARAM_WINDOW,
        Space::Generic | Space::Global | Space::Const => 0,
    }
}

const fn combine(how: Combine, a: u32, b: u32) -> u32 {
    match how {
        Combine::And => a & b,
        Combine::Or => a | b,
        Combine::Xor => a ^ b,
    }
}

/// A comparison combined with a predicate, and its opposite combined.
fn combined(frame: &Frame, truth: u32, with: Option<(Combine, Guard)>) -> (u32, u32) {
    match with {
        None => (truth, !truth),
        Some((how, guard)) => {
            let other = frame.holds(guard);
            (combine(how, truth, other), combine(how, !truth, other))
        }
    }
}
