//! Calls whose steps are timed one by one: by the host's clock, or by the device that runs a step where it takes times.

use std::time::Instant;

use super::{Destination, Executable, RunError, StateView, Stopped, TensorView};

/// The time of one step of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepTime {
    /// Position in the plan's steps.
    pub step: usize,
    /// Nanoseconds.
    pub ns: u64,
}

/// What the iterations of one loop took in one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoopTime {
    /// Position of the loop in its plan's steps.
    pub step: usize,
    /// How many iterations ran; for a loop inside another, in all of that one's iterations together.
    pub iterations: u64,
    /// Nanoseconds of each step of the body, in all iterations together.
    pub steps: Vec<u64>,
    /// The loops among those steps.
    pub loops: Vec<LoopTime>,
}

/// Takes the times of one call's steps, by the host's clock until the call has ended.
pub(super) struct StepClock<'t> {
    times: &'t mut Vec<StepTime>,
    /// Times that were there before the call.
    before: usize,
    begun: Instant,
    loops: Vec<LoopTime>,
}

impl<'t> StepClock<'t> {
    fn new(times: &'t mut Vec<StepTime>) -> StepClock<'t> {
        StepClock {
            before: times.len(),
            times,
            begun: Instant::now(),
            loops: Vec::new(),
        }
    }

    /// Is told when a step begins and when it ends.
    pub(super) fn step(&mut self, step: usize, begins: bool) {
        let now = Instant::now();
        if begins {
            self.begun = now;
        } else {
            let ns = now.duration_since(self.begun).as_nanos() as u64;
            self.times.push(StepTime { step, ns });
        }
    }

    /// Takes what else the call measured: its loops, and by step the nanoseconds that its device says it took.
    pub(super) fn ended(&mut self, loops: Vec<LoopTime>, device_ns: &[Option<u64>]) {
        for time in &mut self.times[self.before..] {
            time.ns = device_ns.get(time.step).copied().flatten().unwrap_or(time.ns);
        }
        self.loops = loops;
    }
}

impl Executable {
    /// As [`Executable::run_into`], and appends the time of each step to `times`: what a device says that it took, where it does, and what
    /// passed on the host otherwise. Returns what was measured in loops, whose iterations take a little longer for it.
    ///
    /// # Errors
    /// As [`Executable::run_into`].
    pub fn run_profiled(
        &self,
        inputs: &[TensorView<'_>],
        outputs: &mut [impl Destination],
        times: &mut Vec<StepTime>,
    ) -> Result<Vec<LoopTime>, RunError> {
        let mut clock = StepClock::new(times);
        self.run_timed(inputs, outputs, Some(&mut clock))?;
        Ok(clock.loops)
    }

    /// As [`Executable::run_updating_into`], timed as [`Executable::run_profiled`] is.
    ///
    /// # Errors
    /// As [`Executable::run_updating_into`].
    pub fn run_updating_profiled(
        &self,
        inputs: &[TensorView<'_>],
        states: &mut [StateView<'_>],
        outputs: &mut [impl Destination],
        times: &mut Vec<StepTime>,
    ) -> Result<Vec<LoopTime>, Stopped> {
        let mut clock = StepClock::new(times);
        self.update_into(inputs, states, outputs, Some(&mut clock))?;
        Ok(clock.loops)
    }
}
