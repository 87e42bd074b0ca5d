//! Going through the steps of a bound plan, and of the bodies of its loops, once for all devices.
//!
//! Invariants:
//! - The host does its own steps one after another, in the order of the list, and hands those of other devices to their queues. What
//!   a step waits for, it waits for before it begins: in its queue, or the host for it.
//! - A plan for the host alone has no queues, and a step of it costs no more than what it does.
//! - A run of a known binding allocates nothing on the host.

use std::sync::Arc;

use tlc_ir::plan::{Plan, Step, Storage};

use super::code::Code;
use super::frame::Frame;
use super::{RunError, UNWRITTEN};
use crate::binding::repeat::BoundWalk;
use crate::binding::segments::LaunchAt;
use crate::binding::steps::{Binding, BoundCopy, BoundLaunch, BoundStep, BoundWork};
use crate::device::{Host, KernelHandle, Peer, Places, Queued, Scratch, SlotLife};

/// A plan on its way through a call.
pub(crate) struct Walk<'r, H: Host> {
    pub(crate) plan: &'r Plan,
    pub(crate) code: &'r Code<H::Kernel>,
    pub(crate) binding: &'r Binding<H::Product>,
    pub(crate) host: &'r H,
    /// The devices beside the host, from number 1 on.
    pub(crate) others: &'r [Arc<dyn Queued>],
    /// Enough for the bodies too.
    pub(crate) scratch: Scratch,
}

impl<H: Host> Clone for Walk<'_, H> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<H: Host> Copy for Walk<'_, H> {}

/// Has the host wait for devices when a call is over, however it ends: what they still run touches memory of the call.
pub(super) struct Finish<'r>(pub(super) &'r [Arc<dyn Queued>]);

impl Drop for Finish<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|device| device.finish());
    }
}

/// What a step of a call computes, for messages.
pub(super) fn step_label(plan: &Plan, number: usize) -> &str {
    plan.steps.get(number).map_or("", |step| match step {
        Step::Launch(l) => &l.label,
        Step::Group(all) | Step::Sequence(all) => all.first().map_or("", |l| &l.label),
        Step::Gemm(g) => &g.label,
        Step::Copy { .. } => "a copy",
        Step::Loop(l) => &l.label,
        Step::Call(c) => &c.label,
    })
}

/// A slot and the first step that touches it, of a call or of those that run once, for messages.
pub(super) fn slot_text(plan: &Plan, slot: usize) -> String {
    let name = &plan.slots[slot].name;
    let touches = |s: &Step| {
        let mut found = false;
        s.visit_slots(
            &mut |other, _| found |= plan.root(other).0 as usize == slot,
            &plan.kernels,
        );
        found
    };
    if let Some(number) = plan.init.iter().position(touches) {
        return format!("`{name}`, which step {number} of those that run once touches first");
    }
    match plan.steps.iter().position(touches) {
        Some(number) => format!(
            "`{name}`, which step {number}, {}, touches first",
            step_label(plan, number)
        ),
        None => format!("`{name}`"),
    }
}

/// Writes down where a launch's buffers are.
#[inline]
fn point(l: &BoundLaunch, frame: &mut Frame) {
    for (k, &slot) in l.args.iter().enumerate() {
        frame.args[l.first_arg + k] = frame.slots[slot];
    }
}

#[inline]
fn places<'a, K>(
    (kernels, in_place): (&'a [Option<K>], &'a [Option<K>]),
    frame: &'a mut Frame,
    scratch: Scratch,
) -> Places<'a, K> {
    Places {
        kernels,
        in_place,
        slots: &frame.slots,
        args: &frame.args,
        counters: &mut frame.counters,
        scratch,
        packed: std::ptr::null_mut(),
    }
}

impl<'r, H: Host> Walk<'r, H> {
    /// Finds out where each slot is. The frame already knows where the arenas are, and where the outputs go.
    pub(super) fn place(&self, frame: &mut Frame, input: &dyn Fn(usize) -> *mut u8, kept: &dyn Fn(usize) -> *mut u8) {
        for (i, slot) in self.plan.slots.iter().enumerate() {
            match &slot.storage {
                Storage::Input(k) => frame.slots[i] = input(*k as usize),
                Storage::Constant(k) => {
                    frame.slots[i] = self.code.constant(i, &self.plan.constants[*k as usize]);
                }
                Storage::Arena => {
                    let at = self.binding.sizes.layout.offsets[i].unwrap_or(0) as usize;
                    // The layout places every arena slot inside the arena's bytes, which the arena has.
                    frame.slots[i] = frame.arenas[slot.device.0 as usize].wrapping_add(at);
                }
                Storage::Persistent => frame.slots[i] = kept(i),
                Storage::Output(_) | Storage::State(_) | Storage::Alias(_) | Storage::Part { .. } => {}
                Storage::Lines => frame.slots[i] = std::ptr::null_mut(),
            }
        }
        let sizes = &self.binding.sizes;
        for (i, (&root, &begin)) in sizes.root.iter().zip(&sizes.begins).enumerate() {
            if root != i {
                // Parts lie inside of what they are parts of, as the verifier has proven or the binding checked.
                frame.slots[i] = frame.slots[root].wrapping_add(begin);
            }
        }
    }

    /// The device of that number, which is not the host.
    pub(super) fn other(&self, device: usize) -> &'r dyn Queued {
        &*self.others[device - 1]
    }

    /// Runs the step of a call of that number, or hands it to its queue. Returns the symbol that it binds, and its value.
    #[inline]
    pub(crate) fn step(&self, number: usize, frame: &mut Frame) -> Result<Option<(usize, i64)>, RunError> {
        let step = &self.binding.steps[number];
        if !self.others.is_empty() {
            return self.queued(number, step, frame);
        }
        if cfg!(debug_assertions) {
            self.mark_unwritten(number, (step.on, step.queue), frame)?;
        }
        self.work(step, step.queue, frame)
    }

    /// As [`Walk::step`], where there are devices beside the host.
    #[inline(never)]
    fn queued(
        &self,
        number: usize,
        step: &BoundStep<H::Product>,
        frame: &mut Frame,
    ) -> Result<Option<(usize, i64)>, RunError> {
        self.given(number, step, frame).map_err(|e| self.located(number, e))
    }

    fn given(
        &self,
        number: usize,
        step: &BoundStep<H::Product>,
        frame: &mut Frame,
    ) -> Result<Option<(usize, i64)>, RunError> {
        self.wait(number, step, frame)?;
        self.begin(number, (step.on, step.queue), frame)?;
        let clock = (frame.timed && step.on != 0).then(|| self.other(step.on));
        clock.map_or(Ok(()), |d| d.time(step.queue, false))?;
        let bound = self.work(step, step.queue, frame)?;
        clock.map_or(Ok(()), |d| d.time(step.queue, true))?;
        if step.on != 0 && self.binding.awaited[number] {
            frame.marks[number] = self.other(step.on).mark(step.queue)?;
        }
        Ok(bound)
    }

    /// Says of a device's error at which step of a call it showed.
    #[cold]
    #[inline(never)]
    pub(super) fn located(&self, number: usize, error: RunError) -> RunError {
        let what = step_label(self.plan, number);
        let RunError::Device { device, message } = error else {
            return error.needed_for(|| format!("step {number}, {what}"));
        };
        let message = format!("{message}; found at step {number}, {what}");
        RunError::Device { device, message }
    }

    /// Has a step wait for those that must be done before it begins. What the host does is done.
    fn wait(&self, number: usize, step: &BoundStep<H::Product>, frame: &Frame) -> Result<(), RunError> {
        let Some(turn) = self.plan.turns.get(number) else {
            return Ok(());
        };
        for &earlier in &turn.waits {
            let of = &self.binding.steps[earlier as usize];
            if of.on == 0 || (of.on, of.queue) == (step.on, step.queue) {
                continue;
            }
            let mark = frame.marks[earlier as usize];
            match step.on {
                0 => self.other(of.on).reach(mark)?,
                on => self.other(on).wait(step.queue, mark)?,
            }
        }
        Ok(())
    }

    /// Has the host wait for all that queues were given.
    #[inline]
    pub(super) fn settle(&self, queues: &[(usize, u32)]) -> Result<(), RunError> {
        if !self.others.is_empty() {
            for &(device, queue) in queues.iter().filter(|q| q.0 != 0) {
                self.other(device).settle(queue)?;
            }
        }
        Ok(())
    }

    /// Asks the device of a step, which is done, what it took in a timed call.
    #[inline]
    pub(super) fn took(&self, number: usize, frame: &mut Frame) -> Result<(), RunError> {
        let step = &self.binding.steps[number];
        if frame.timed && step.on != 0 {
            frame.device_ns[number] = self.other(step.on).time_taken(step.queue)?;
        }
        Ok(())
    }

    /// What comes before a step, in the queue of the device that it is given to.
    pub(super) fn begin(&self, number: usize, to: (usize, u32), frame: &mut Frame) -> Result<(), RunError> {
        if self.others.iter().any(|d| d.checks_slots()) {
            self.announce(&self.binding.births[number], to, frame, true)?;
        }
        match cfg!(debug_assertions) {
            true => self.mark_unwritten(number, to, frame),
            false => Ok(()),
        }
    }

    /// What comes behind it.
    pub(super) fn end(&self, number: usize, to: (usize, u32), frame: &mut Frame) -> Result<(), RunError> {
        match to.0 != 0 && self.other(to.0).checks_slots() {
            true => self.announce(&self.binding.deaths[number], to, frame, false),
            false => Ok(()),
        }
    }

    /// Says to devices that slots are born at a step, or die there.
    fn announce(&self, slots: &[usize], (at, queue): (usize, u32), frame: &Frame, born: bool) -> Result<(), RunError> {
        for (on, device) in (1..).zip(self.others) {
            let here = slots
                .iter()
                .filter(|s| self.plan.slots[**s].device.0 as usize == on)
                .map(|&slot| SlotLife {
                    slot,
                    start: frame.slots[slot],
                    bytes: self.binding.sizes.slot_bytes[slot] as usize,
                    born,
                });
            let here: Vec<SlotLife> = here.collect();
            if here.is_empty() {
                continue;
            }
            match at == on {
                true => device.announce(queue, &here)?,
                // The host does its steps one after another, and devices wait for them.
                false => {
                    device.announce(0, &here)?;
                    device.settle(0)?;
                }
            }
        }
        Ok(())
    }

    /// The kernel of a launch of a step that another device than the host runs.
    pub(super) fn handle(&self, at: &LaunchAt) -> Option<KernelHandle> {
        let mut binding = self.binding;
        let mut code = self.code;
        for &step in &at.loops {
            let BoundWork::Loop(l) = &binding.steps[step].work else {
                return None;
            };
            (binding, code) = (&l.body, &code.bodies[l.number]);
        }
        let step = &binding.steps[at.step];
        let BoundWork::Launches { launches, joined, .. } = &step.work else {
            return None;
        };
        if let Some(joined) = joined.and_then(|(_, number)| code.joined_of(step.on, number)) {
            return Some(joined);
        }
        let (apart, in_place) = code.of_other(step.on);
        let l = &launches[at.place];
        if l.in_place {
            in_place[l.kernel]
        } else {
            apart[l.kernel]
        }
    }

    /// Has the host wait at the end of a call for all that queues were given.
    #[inline]
    pub(super) fn end_of_call(&self, queues: &[(usize, u32)]) -> Result<(), RunError> {
        let last = self.binding.steps.len().saturating_sub(1);
        self.settle(queues).map_err(|e| self.located(last, e))
    }

    /// Fills the slots whose lives begin at a step, in builds with debug assertions.
    fn mark_unwritten(&self, number: usize, (at, queue): (usize, u32), frame: &mut Frame) -> Result<(), RunError> {
        if !H::VALUES {
            return Ok(());
        }
        for &slot in self.binding.births.get(number).into_iter().flatten() {
            let bytes = self.binding.sizes.slot_bytes[slot] as usize;
            let (to, device) = (frame.slots[slot], self.plan.slots[slot].device.0 as usize);
            if device != 0 && self.other(device).checks_slots() {
                // It knows that they are not written, which a value in them would hide.
                continue;
            }
            // SAFETY: the slot is in the arena, with room for its bytes, and nothing that is still needed is there once the step
            // begins.
            unsafe {
                match (at, device) {
                    (0, 0) => self.host.fill(0, to, UNWRITTEN, bytes)?,
                    (0, device) => {
                        self.other(device).fill(0, to, UNWRITTEN, bytes)?;
                        self.other(device).settle(0)?;
                    }
                    (on, device) if on == device => self.other(on).fill(queue, to, UNWRITTEN, bytes)?,
                    // Where a transfer goes to, only its own queue knows when.
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Runs what a step says, in its own queue: of several launches of the host that do not depend on each other those of these numbers alone.
    pub(super) fn part(
        &self,
        step: &BoundStep<H::Product>,
        numbers: &[usize],
        frame: &mut Frame,
    ) -> Result<(), RunError> {
        match &step.work {
            BoundWork::Launches {
                launches,
                alone,
                joined: None,
            } if step.on == 0 && !numbers.is_empty() && numbers.len() < launches.len() => {
                for of_a_run in numbers.chunk_by(|a, b| a + 1 == *b) {
                    let part = &launches[of_a_run[0]..of_a_run[0] + of_a_run.len()];
                    part.iter().for_each(|l| point(l, frame));
                    let at = places(self.code.of_host(), frame, self.scratch);
                    // SAFETY: the frame is that of this binding: every slot that these launches touch has its bytes.
                    unsafe { self.host.launch(step.queue, part, *alone, &at)? };
                }
                Ok(())
            }
            _ => self.work(step, step.queue, frame).map(drop),
        }
    }

    /// Runs what a step says, or gives it to a queue of its device.
    #[inline]
    pub(super) fn work(
        &self,
        step: &BoundStep<H::Product>,
        queue: u32,
        frame: &mut Frame,
    ) -> Result<Option<(usize, i64)>, RunError> {
        match &step.work {
            BoundWork::Launches {
                launches,
                alone,
                joined,
            } => {
                launches.iter().for_each(|l| point(l, frame));
                // SAFETY: the frame is that of this binding: every slot has its bytes on the device of the step, and the plan's
                // order keeps apart what touches the same bytes.
                unsafe {
                    match step.on {
                        0 => {
                            let at = places(self.code.of_host(), frame, self.scratch);
                            // In turn, if they are a sequence.
                            let each = if joined.is_some() { 1 } else { launches.len().max(1) };
                            let mut all = launches.chunks(each);
                            all.try_for_each(|part| self.host.launch(queue, part, *alone, &at))?;
                        }
                        on => {
                            let at = places(self.code.of_other(on), frame, self.scratch);
                            match *joined {
                                Some((joining, number)) => {
                                    let one = self.code.joined_of(on, number);
                                    let all = (&launches[..], joining);
                                    self.other(on).launch_joined(queue, all, one, &at)?;
                                }
                                None => self.other(on).launch(queue, launches, *alone, &at)?,
                            }
                        }
                    }
                }
            }
            BoundWork::Product {
                product,
                choice,
                packed,
            } => {
                product.epilogue.iter().for_each(|e| point(&e.launch, frame));
                // SAFETY: as for launches.
                unsafe {
                    match choice {
                        Some(choice) => {
                            let packed = packed.map(|number| frame.packed(number));
                            let mut at = places(self.code.of_host(), frame, self.scratch);
                            at.packed = packed.unwrap_or(at.packed);
                            self.host.multiply(queue, product, choice, &mut at)?;
                        }
                        None => {
                            let mut at = places(self.code.of_other(step.on), frame, self.scratch);
                            self.other(step.on).multiply(queue, product, &(), &mut at)?;
                        }
                    }
                }
            }
            BoundWork::Copy(c) => self.copy(step, queue, c, frame)?,
            BoundWork::Loop(l) => self.repeat(l, frame)?,
            BoundWork::Call(c) => {
                let at = places(self.code.of_host(), frame, self.scratch);
                // SAFETY: as for launches.
                return unsafe { self.host.call(c, &at) };
            }
        }
        if step.awaited_by_host {
            self.other(step.on).settle(queue)?;
        }
        Ok(None)
    }

    fn copy(&self, step: &BoundStep<H::Product>, queue: u32, c: &BoundCopy, frame: &Frame) -> Result<(), RunError> {
        let (from, to) = (frame.slots[c.src], frame.slots[c.dst]);
        // SAFETY: both slots hold `bytes` bytes under this binding, in the memory of their devices, and are different buffers.
        unsafe {
            match (c.from, c.to) {
                (0, 0) => self.host.copy(queue, from, to, c.bytes),
                (0, device) => self.other(device).upload(queue, from, to, c.bytes),
                (device, 0) => self.other(device).download(queue, from, to, c.bytes),
                (a, b) if a == b => self.other(a).copy(queue, from, to, c.bytes),
                (a, b) if step.on == a => self.other(a).exchange(queue, Peer::To(b), from, to, c.bytes),
                (a, b) => self.other(b).exchange(queue, Peer::From(a), from, to, c.bytes),
            }
        }
    }

    /// Copies within the memory of a device.
    ///
    /// # Safety
    /// As for [`Device::copy`](crate::device::Device::copy).
    pub(super) unsafe fn copy_on(
        &self,
        (device, queue): (usize, u32),
        from: *const u8,
        to: *mut u8,
        bytes: usize,
    ) -> Result<(), RunError> {
        // SAFETY: the caller's promise.
        unsafe {
            match device {
                0 => self.host.copy(queue, from, to, bytes),
                device => self.other(device).copy(queue, from, to, bytes),
            }
        }
    }

    /// Copies an iteration's elements out of the tensor, or back into it, where they do not lie together.
    pub(super) fn carry(
        &self,
        (w, queue): (&BoundWalk, u32),
        slots: &[*mut u8],
        iteration: usize,
        back: bool,
    ) -> Result<(), RunError> {
        let Some(element) = w.element else {
            return Ok(());
        };
        let position = w.along.position(iteration, w.extent);
        for o in 0..w.outer {
            let whole = slots[w.slot].wrapping_add((o * w.extent + position) * w.inner);
            let part = slots[element].wrapping_add(o * w.inner);
            let (from, to) = match back {
                true => (part, whole),
                false => (whole, part),
            };
            // SAFETY: binding checked that the tensor has `outer * extent * inner` bytes and the element's buffer
            // `outer * inner`; `position` is below `extent`, and the planner's buffers do not overlap.
            unsafe { self.copy_on((w.on, queue), from, to, w.inner)? };
        }
        Ok(())
    }

    /// Zeroes an iteration's elements in the tensor.
    pub(super) fn clear(&self, w: &BoundWalk, slots: &[*mut u8], iteration: usize) -> Result<(), RunError> {
        let position = w.along.position(iteration, w.extent);
        for o in 0..w.outer {
            let whole = slots[w.slot].wrapping_add((o * w.extent + position) * w.inner);
            // SAFETY: as in `carry`.
            unsafe {
                match w.on {
                    0 => self.host.fill(0, whole, 0, w.inner)?,
                    device => self.other(device).fill(0, whole, 0, w.inner)?,
                }
            }
        }
        Ok(())
    }
}
