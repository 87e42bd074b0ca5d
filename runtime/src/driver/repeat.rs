//! Loops: a body's steps again and again, between buffers of the plan around it.
//!
//! Invariants:
//! - No iteration beyond the trip count runs.
//! - Iterations write a carried value to its two buffers in turn, never to the one that they read.
//! - An iteration begins when all that the one before gave to devices is done, and the loop is over when all of it is.

use std::time::Instant;

use tlc_ir::plan::Step;

use super::RunError;
use super::frame::Frame;
use super::walk::Walk;
use crate::binding::repeat::BoundLoop;
use crate::device::Host;

impl<H: Host> Walk<'_, H> {
    /// Runs a loop.
    pub(super) fn repeat(&self, l: &BoundLoop<H::Product>, frame: &mut Frame) -> Result<(), RunError> {
        let Frame {
            slots, arenas, bodies, ..
        } = frame;
        let body = &mut bodies[l.number];
        let (init, steps) = (&self.plan.init, &self.plan.steps);
        let step = init.get(l.step).or_else(|| steps.get(l.step - init.len()));
        let Some(Step::Loop(repeat)) = step else {
            unreachable!("the binding is of this plan");
        };
        let run = Walk {
            plan: &repeat.body,
            code: &self.code.bodies[l.number],
            binding: &l.body,
            ..*self
        };
        // The layout places the body's arenas inside the arenas.
        for ((inner, arena), &offset) in body.frame.arenas.iter_mut().zip(arenas).zip(&l.offsets) {
            *inner = arena.wrapping_add(offset as usize);
        }
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
        for (input, c) in body.inputs[1..].iter_mut().zip(&l.carried) {
            *input = slots[c.first];
        }
        let captures = 1 + l.carried.len() + l.slices.len();
        for (input, &slot) in body.inputs[captures..].iter_mut().zip(&l.captures) {
            *input = slots[slot];
        }
        body.inputs[0] = slots[l.counter];
        let mut iteration = 0;
        while goes_on && iteration < limit {
            // SAFETY: binding checked that the slot holds an i64.
            unsafe { slots[l.counter].cast::<i64>().write(iteration as i64) };
            for (k, w) in l.slices.iter().enumerate() {
                self.carry(w, slots, iteration, false)?;
                body.inputs[1 + l.carried.len() + k] = w.place(slots, iteration);
            }
            self.settle(&l.edges)?;
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
                self.carry(w, slots, iteration, true)?;
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
        for (k, c) in l.carried.iter().enumerate() {
            if body.inputs[1 + k] != slots[c.last] {
                // SAFETY: binding checked that each holds `bytes` bytes; they are different buffers of one device.
                unsafe { self.copy_on(c.on, body.inputs[1 + k], slots[c.last], c.bytes)? };
            }
        }
        for i in iteration..l.trip.unwrap_or(0) {
            l.stacks.iter().try_for_each(|w| self.clear(w, slots, i))?;
        }
        self.settle(&l.edges)
    }
}
