//! Calls whose steps are timed one by one: by the host's clock, or by the device that runs a step where it takes times.

use std::time::Instant;

use super::{Destination, Executable, RunError, TensorView};

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

/// What a timed call measured besides the time of its steps on the host.
#[derive(Default)]
pub(super) struct Measured {
    pub(super) loops: Vec<LoopTime>,
    /// By step: the nanoseconds that its device says it took.
    pub(super) device_ns: Vec<Option<u64>>,
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
        let mut last = Instant::now();
        let mut measured = Measured::default();
        let before = times.len();
        self.run_timed(inputs, outputs, Some(&mut measured), &mut |step, begins, _, _| {
            let now = Instant::now();
            if begins {
                last = now;
            } else {
                times.push(StepTime {
                    step,
                    ns: now.duration_since(last).as_nanos() as u64,
                });
            }
        })?;
        for time in &mut times[before..] {
            time.ns = measured.device_ns.get(time.step).copied().flatten().unwrap_or(time.ns);
        }
        Ok(measured.loops)
    }
}
