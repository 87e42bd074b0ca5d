//! Where the slots of a plan are during a call.

use std::sync::atomic::AtomicU32;

use super::LoopTime;
use crate::binding::repeat::BoundLoop;
use crate::binding::steps::{Binding, BoundStep, BoundWork};
use crate::device::Mark;

/// Where the slots of a plan are during a call, and those of its loops' bodies.
#[derive(Default)]
pub(crate) struct Frame {
    pub(super) slots: Vec<*mut u8>,
    /// What launches are given.
    pub(super) args: Vec<*mut u8>,
    /// The arena of each device.
    pub(super) arenas: Vec<*mut u8>,
    /// By number in [`Binding::packed`]: where the panels of that operand begin, if this call has it in panels.
    pub(super) packed: Vec<*mut u8>,
    /// By step: what its queue was given up to and with it, if a step of another queue waits for it.
    pub(super) marks: Vec<Mark>,
    /// For products with epilogues.
    pub(super) counters: Vec<AtomicU32>,
    pub(super) bodies: Vec<BodyFrame>,
    /// Whether steps are timed: those of loops' bodies, and those that devices take times of.
    pub(super) timed: bool,
    /// By step: the nanoseconds that its device says it took, in a timed call.
    pub(super) device_ns: Vec<Option<u64>>,
}

/// Where a body's slots are, and what it is given in the present iteration.
#[derive(Default)]
pub(super) struct BodyFrame {
    pub(super) inputs: Vec<*mut u8>,
    pub(super) frame: Frame,
    /// Iterations of a timed call, and nanoseconds of each step in all of them.
    pub(super) iterations: u64,
    pub(super) step_ns: Vec<u64>,
}

/// The loops among steps.
fn loops<P>(steps: &[BoundStep<P>]) -> impl Iterator<Item = (usize, &BoundLoop<P>)> {
    steps.iter().enumerate().filter_map(|(number, s)| match &s.work {
        BoundWork::Loop(l) => Some((number, &**l)),
        BoundWork::Launches { .. } | BoundWork::Product { .. } | BoundWork::Copy(_) | BoundWork::Call(_) => None,
    })
}

impl Frame {
    /// Makes room for the slots of a plan for so many devices, and of its loops' bodies.
    pub(crate) fn fit<P>(&mut self, binding: &Binding<P>, devices: usize) {
        self.slots.resize(binding.sizes.slot_bytes.len(), std::ptr::null_mut());
        self.args.resize(binding.arg_count, std::ptr::null_mut());
        self.arenas.resize(devices, std::ptr::null_mut());
        self.marks.resize(binding.awaited.len(), Mark::default());
        if devices > 1 {
            self.device_ns.resize(binding.steps.len(), None);
        }
        self.counters
            .resize_with(self.counters.len().max(binding.counters), AtomicU32::default);
        for (k, (_, l)) in loops(&binding.init).chain(loops(&binding.steps)).enumerate() {
            if self.bodies.len() == k {
                self.bodies.push(BodyFrame::default());
            }
            let body = &mut self.bodies[k];
            body.inputs.resize(l.inputs, std::ptr::null_mut());
            body.step_ns.resize(l.body.steps.len(), 0);
            body.frame.fit(&l.body, devices);
        }
    }

    /// Where the panels of an operand begin, by its number in [`Binding::packed`]; null if this call has it as the plan does.
    #[inline]
    pub(super) fn packed(&self, number: usize) -> *mut u8 {
        self.packed.get(number).copied().unwrap_or(std::ptr::null_mut())
    }

    /// Says whether steps are timed from here on. Where they are, counting starts at 0.
    pub(super) fn measure(&mut self, timed: bool) {
        self.timed = timed;
        self.device_ns.fill(None);
        for body in &mut self.bodies {
            if timed {
                body.iterations = 0;
                body.step_ns.fill(0);
            }
            body.frame.measure(timed);
        }
    }

    /// What a timed call measured in the loops among a binding's steps.
    pub(super) fn loop_times<P>(&self, binding: &Binding<P>) -> Vec<LoopTime> {
        let timed = |(step, l): (usize, &BoundLoop<P>)| {
            let body = &self.bodies[l.number];
            LoopTime {
                step,
                iterations: body.iterations,
                steps: body.step_ns.clone(),
                loops: body.frame.loop_times(&l.body),
            }
        };
        loops(&binding.steps).map(timed).collect()
    }
}
