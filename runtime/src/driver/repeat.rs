//! Loops: a body's steps again and again, between buffers of the plan around it.
//!
//! Invariants:
//! - No iteration beyond the trip count runs.
//! - Iterations write a carried value to its two buffers in turn, never to the one that they read.
//! - An iteration begins when all that the one before gave to devices is done, and the loop is over when all of it is. Where a loop is
//!   recorded, the queues wait for each other; elsewhere the host waits.

use std::time::Instant;

use super::RunError;
use super::frame::{BodyFrame, Frame};
use super::record::Recorded;
use super::walk::Walk;
use crate::binding::repeat::BoundLoop;
use crate::device::Host;

/// Gives an iteration what it reads, and the places where it writes.
fn aim<P>(l: &BoundLoop<P>, body: &mut BodyFrame, slots: &[*mut u8], iteration: usize, limit: usize) {
    for (k, w) in l.slices.iter().enumerate() {
        body.inputs[1 + l.carried.len() + k] = w.place(slots, iteration);
    }
    // The last iteration, if it is known, writes where the results belong.
    let ends_in_last = l.follows.is_some() || (limit - 1 - iteration).is_multiple_of(2);
    for (k, c) in l.carried.iter().enumerate() {
        let reads_last = body.inputs[1 + k] == slots[c.last];
        let to = match ends_in_last && !reads_last || body.inputs[1 + k] == slots[c.spare] {
            true => c.last,
            false => c.spare,
        };
        body.frame.slots[c.output] = slots[to];
    }
    if let Some((here, output)) = l.follows {
        body.frame.slots[output] = slots[here];
    }
    for w in &l.stacks {
        body.frame.slots[w.output] = w.place(slots, iteration);
    }
}

impl<H: Host> Walk<'_, H> {
    /// A loop's body.
    fn body<'l>(&'l self, l: &'l BoundLoop<H::Product>) -> Walk<'l, H> {
        Walk {
            plan: l.body_in(self.plan),
            code: &self.code.bodies[l.number],
            binding: &l.body,
            ..*self
        }
    }

    /// Gives a loop what all its iterations read, and what the first one does.
    fn enter(l: &BoundLoop<H::Product>, frame: &mut Frame) {
        let Frame {
            slots, arenas, bodies, ..
        } = frame;
        let body = &mut bodies[l.number];
        // The layout places the body's arenas inside the arenas.
        for ((inner, arena), &offset) in body.frame.arenas.iter_mut().zip(arenas).zip(&l.offsets) {
            *inner = arena.wrapping_add(offset as usize);
        }
        for (input, c) in body.inputs[1..].iter_mut().zip(&l.carried) {
            *input = slots[c.first];
        }
        let captures = 1 + l.carried.len() + l.slices.len();
        for (input, &slot) in body.inputs[captures..].iter_mut().zip(&l.captures) {
            *input = slots[slot];
        }
    }

    /// Runs a loop.
    pub(super) fn repeat(&self, l: &BoundLoop<H::Product>, frame: &mut Frame) -> Result<(), RunError> {
        let run = self.body(l);
        Self::enter(l, frame);
        let Frame { slots, bodies, .. } = frame;
        let body = &mut bodies[l.number];
        if !H::VALUES {
            let known = l.trip.is_some() && l.count.is_none() && l.condition.is_none() && l.follows.is_none();
            self.host.enter();
            for number in 0..l.body.steps.len() {
                run.step(number, &mut body.frame)?;
            }
            self.host.leave(l.trip.map_or(1, |t| t as u64), known);
            return Ok(());
        }
        let mut limit = l.trip.unwrap_or(usize::MAX);
        if let Some(count) = l.count {
            // SAFETY: binding checked that the slot holds an i64; slots are aligned to their elements.
            let count = unsafe { slots[count].cast::<i64>().read() };
            limit = limit.min(usize::try_from(count).unwrap_or(0));
        }
        // SAFETY: binding checked that the slot holds a byte.
        let mut goes_on = l.condition.is_none_or(|c| unsafe { slots[c].read() } != 0);
        body.inputs[0] = slots[l.counter];
        let mut iteration = 0;
        while goes_on && iteration < limit {
            // SAFETY: binding checked that the slot holds an i64.
            unsafe { slots[l.counter].cast::<i64>().write(iteration as i64) };
            for w in &l.slices {
                self.carry((w, 0), slots, iteration, false)?;
            }
            self.settle(&l.edges)?;
            aim(l, body, slots, iteration, limit);
            let inputs = &body.inputs;
            run.place(&mut body.frame, &|k| inputs[k], &|_| std::ptr::null_mut());
            for number in 0..l.body.steps.len() {
                let begin = body.frame.timed.then(Instant::now);
                run.step(number, &mut body.frame)?;
                if let Some(begin) = begin {
                    run.settle(&l.body.queues)?;
                    let here = begin.elapsed().as_nanos() as u64;
                    run.took(number, &mut body.frame)?;
                    body.step_ns[number] += body.frame.device_ns.get(number).copied().flatten().unwrap_or(here);
                }
            }
            run.settle(&l.body.queues)?;
            for w in &l.stacks {
                self.carry((w, 0), slots, iteration, true)?;
            }
            for (k, c) in l.carried.iter().enumerate() {
                body.inputs[1 + k] = body.frame.slots[c.output];
            }
            if let Some((here, _)) = l.follows {
                // SAFETY: binding checked that the slot holds a byte.
                goes_on = unsafe { slots[here].read() } != 0;
            }
            iteration += 1;
        }
        body.iterations += iteration as u64;
        self.leave((l, 0), body, slots)?;
        for i in iteration..l.trip.unwrap_or(0) {
            l.stacks.iter().try_for_each(|w| self.clear(w, slots, i))?;
        }
        self.settle(&l.edges)
    }

    /// Copies what the last iteration left to where it belongs.
    fn leave(
        &self,
        (l, queue): (&BoundLoop<H::Product>, u32),
        body: &BodyFrame,
        slots: &[*mut u8],
    ) -> Result<(), RunError> {
        for (k, c) in l.carried.iter().enumerate() {
            if body.inputs[1 + k] != slots[c.last] {
                // SAFETY: binding checked that each holds `bytes` bytes; they are different buffers of one device.
                unsafe { self.copy_on((c.on, queue), body.inputs[1 + k], slots[c.last], c.bytes)? };
            }
        }
        Ok(())
    }

    /// Gives a loop that is all a device's to the queues that are recorded. The first of them is where it begins and ends.
    pub(super) fn repeat_recorded(
        &self,
        l: &BoundLoop<H::Product>,
        to: Recorded<'_>,
        frame: &mut Frame,
    ) -> Result<(), RunError> {
        let run = self.body(l);
        Self::enter(l, frame);
        let Frame { slots, bodies, .. } = frame;
        let body = &mut bodies[l.number];
        let limit = l.trip.unwrap_or(0);
        for iteration in 0..limit {
            for w in &l.slices {
                self.carry((w, to.origin()), slots, iteration, false)?;
            }
            aim(l, body, slots, iteration, limit);
            body.inputs[0] = to.number(iteration);
            let inputs = &body.inputs;
            run.place(&mut body.frame, &|k| inputs[k], &|_| std::ptr::null_mut());
            run.spread(to)?;
            run.give_steps(0..l.body.steps.len(), to, &mut body.frame)?;
            run.gather(to)?;
            for w in &l.stacks {
                self.carry((w, to.origin()), slots, iteration, true)?;
            }
            for (k, c) in l.carried.iter().enumerate() {
                body.inputs[1 + k] = body.frame.slots[c.output];
            }
        }
        self.leave((l, to.origin()), body, slots)
    }
}
