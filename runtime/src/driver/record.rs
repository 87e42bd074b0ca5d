//! Warm calls of plans for several devices: what a device does without the host is recorded once and given to it at once.
//!
//! Invariants:
//! - A recording is given again only where every slot that it touches is where it was when it was made.
//! - Where the caller chooses addresses, steps are recorded when they have been seen before.
//! - Inputs and outputs of the caller that recordings copy are staged: what is recorded has the address of memory of the call's state,
//!   which the host fills before and empties after.
//! - A segment that cannot be recorded is done step by step, in this call and in those that follow.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustc_hash::FxHashMap;

use super::frame::Frame;
use super::init::Kept;
use super::walk::{Finish, Walk};
use super::{Bound, CallState, Executable, RunError, lock};
use crate::binding::segments::Segment;
use crate::device::{Host, Queued, RECORDED, Recorder};

/// Segments of which the state of calls keeps recordings, and recordings of each, at different addresses.
const MOST: usize = 64;

/// What was recorded, which goes with it.
struct Recording {
    device: Arc<dyn Queued>,
    /// The addresses of the slots that it touches.
    places: Vec<usize>,
    number: Number,
}

/// What became of steps at certain addresses.
#[derive(Clone, Copy)]
enum Number {
    /// They were done once, one after another.
    Seen,
    /// They are a recording of that number.
    Recorded(u64),
    /// They could not be recorded.
    Refused,
}

impl Drop for Recording {
    fn drop(&mut self) {
        if let (Some(recorder), Number::Recorded(number)) = (self.device.recorder(), self.number) {
            recorder.forget(number);
        }
    }
}

/// Memory of the host that recordings copy from and to.
struct Staging {
    device: Arc<dyn Queued>,
    start: *mut u8,
    bytes: usize,
}

impl Drop for Staging {
    fn drop(&mut self) {
        if let Some(recorder) = self.device.recorder() {
            // SAFETY: it was allocated there, and calls wait for what they gave devices before they end.
            unsafe { recorder.release_host(self.start) };
        }
    }
}

/// What warm calls keep, one after another.
#[derive(Default)]
pub(super) struct Recordings {
    /// By binding and number of the segment: at which addresses it was seen.
    known: FxHashMap<(u64, usize), Vec<Recording>>,
    staging: Option<Staging>,
    /// Where the caller's outputs are that are staged in the present call.
    outside: Vec<*mut u8>,
}

impl Recordings {
    /// Memory for staging.
    fn staging(&mut self, device: &Arc<dyn Queued>, bytes: usize) -> Result<*mut u8, RunError> {
        match &self.staging {
            Some(known) if known.bytes >= bytes => Ok(known.start),
            _ if bytes == 0 => Ok(std::ptr::null_mut()),
            _ => {
                // Recordings that have its address are of no use any longer.
                self.known.clear();
                self.staging = None;
                let Some(recorder) = device.recorder() else {
                    unreachable!("devices that do not record are given step after step");
                };
                let start = recorder.allocate_host(bytes)?;
                let device = Arc::clone(device);
                Ok(self.staging.insert(Staging { device, start, bytes }).start)
            }
        }
    }
}

impl Executable {
    /// Where a call is staged that is given to devices as recordings, if it is.
    #[inline]
    pub(super) fn staged(&self, binding: &Bound, state: &mut CallState) -> Option<*mut u8> {
        match self.others.is_empty() || state.step_by_step || binding.segments.all.is_empty() {
            true => None,
            false => self.staging(binding, state),
        }
    }

    #[inline(never)]
    fn staging(&self, binding: &Bound, state: &mut CallState) -> Option<*mut u8> {
        if !binding.warm.load(Ordering::Relaxed) || self.others.iter().any(|d| d.recorder().is_none()) {
            return None;
        }
        // Without memory for it there is the way of the first call.
        let staging = state
            .recordings
            .staging(&self.others[0], binding.segments.staging_bytes);
        staging.ok()
    }

    /// As [`Executable::execute`], with recordings.
    #[inline(never)]
    pub(super) fn execute_recorded(
        &self,
        binding: &Bound,
        state: &mut CallState,
        staging: *mut u8,
        input: &dyn Fn(usize) -> *mut u8,
        kept: &Kept,
    ) -> Result<Option<Arc<Bound>>, RunError> {
        let staged = &binding.segments.staged;
        state.recordings.outside.clear();
        for s in staged {
            let there = staging.wrapping_add(s.offset);
            match s.input {
                // SAFETY: binding checked that the input has the bytes, and staging has room for them; nothing is on the way there.
                Some(k) => unsafe { there.copy_from_nonoverlapping(input(k), s.bytes) },
                None => {
                    state.recordings.outside.push(state.frame.slots[s.slot]);
                    state.frame.slots[s.slot] = there;
                }
            }
        }
        let through = |k: usize| {
            let found = staged.iter().find(|s| s.input == Some(k));
            found.map_or_else(|| input(k), |s| staging.wrapping_add(s.offset))
        };
        let finish = Finish(&self.others);
        let walk = self.walk(binding, &mut state.scratch);
        walk.place(&mut state.frame, &through, &|slot| kept.address(slot));
        let mut later: Option<Arc<Bound>> = None;
        let mut number = 0;
        while number < binding.steps.len() {
            let now = later.as_deref().unwrap_or(binding);
            // Sizes that data decides may be others at each call.
            let warm = now.warm.load(Ordering::Relaxed);
            let begins = now.segments.all.iter().position(|s| s.steps.start == number);
            let segment = begins.filter(|_| warm);
            if let Some(at) = segment {
                let walk = self.walk(now, &mut state.scratch);
                self.give(&walk, at, &mut state.frame, &mut state.recordings)?;
                number = now.segments.all[at].steps.end;
                continue;
            }
            let bound = self.walk(now, &mut state.scratch).step(number, &mut state.frame)?;
            if let Some(bound) = bound {
                later = Some(self.decided((binding, now), bound, state)?);
            }
            number += 1;
        }
        walk.end_of_call(&binding.queues)?;
        drop(finish);
        later.iter().for_each(|b| b.warm.store(true, Ordering::Relaxed));
        let outputs = staged.iter().filter(|s| s.input.is_none());
        for (s, &to) in outputs.zip(&state.recordings.outside) {
            // SAFETY: as above, and the devices are done. An output whose size data decided has room for the largest.
            unsafe { to.copy_from_nonoverlapping(staging.wrapping_add(s.offset), s.bytes) };
        }
        Ok(later)
    }

    /// Gives a device a segment.
    fn give<H: Host>(
        &self,
        walk: &Walk<'_, H>,
        at: usize,
        frame: &mut Frame,
        recordings: &mut Recordings,
    ) -> Result<(), RunError> {
        let segment = &walk.binding.segments.all[at];
        let device = &self.others[segment.device - 1];
        let Some(recorder) = device.recorder() else {
            unreachable!("devices that do not record are given step after step");
        };
        let key = (walk.binding.id, at);
        if recordings.known.len() >= MOST && !recordings.known.contains_key(&key) {
            recordings.known.clear();
        }
        let all = recordings.known.entry(key).or_default();
        let places = || segment.slots.iter().map(|&s| frame.slots[s].addr());
        let found = all.iter().position(|k| k.places.iter().copied().eq(places()));
        let number = match found {
            Some(k) => all[k].number,
            None => {
                if all.len() >= MOST {
                    all.clear();
                }
                all.push(Recording {
                    device: Arc::clone(device),
                    places: places().collect(),
                    number: Number::Seen,
                });
                match segment.of_caller {
                    true => Number::Refused,
                    false => Number::Seen,
                }
            }
        };
        let number = match number {
            Number::Seen => {
                let one_at_a_time = lock(&self.recording);
                let made = walk.record(segment, frame, recorder);
                drop(one_at_a_time);
                if let Err(e) = &made {
                    tracing::warn!(plan = %self.plan.name, segment = at, "not recorded: {e}");
                }
                let made = made.map_or(Number::Refused, Number::Recorded);
                let of = found.unwrap_or(all.len() - 1);
                all[of].number = made;
                made
            }
            known => known,
        };
        match number {
            Number::Recorded(number) => walk.replay(segment, number, frame, recorder),
            Number::Seen | Number::Refused => segment.steps.clone().try_for_each(|n| walk.step(n, frame).map(drop)),
        }
    }
}

impl<H: Host> Walk<'_, H> {
    /// Records a segment.
    fn record(&self, segment: &Segment, frame: &mut Frame, recorder: &dyn Recorder) -> Result<u64, RunError> {
        let origin = RECORDED + segment.queues[0];
        recorder.record(origin)?;
        let given = self.give_recorder(segment, frame);
        let [first, last] = segment
            .launches
            .map_or([None; 2], |l| l.map(|(step, place)| self.handle(step, place)));
        // Also if something failed: the recording is over.
        let recorded = recorder.recorded(origin, first.zip(last));
        given?;
        recorded
    }

    /// Goes through the steps of a segment in the queues for recording.
    fn give_recorder(&self, segment: &Segment, frame: &mut Frame) -> Result<(), RunError> {
        let device = self.other(segment.device);
        let (origin, others) = (RECORDED + segment.queues[0], &segment.queues[1..]);
        if !others.is_empty() {
            let begin = device.mark(origin)?;
            others.iter().try_for_each(|q| device.wait(RECORDED + q, begin))?;
        }
        for number in segment.steps.clone() {
            let step = &self.binding.steps[number];
            let queue = RECORDED + step.queue;
            for &earlier in &self.plan.turns[number].waits {
                let earlier = earlier as usize;
                if segment.steps.contains(&earlier) && self.binding.steps[earlier].queue != step.queue {
                    device.wait(queue, frame.marks[earlier])?;
                }
            }
            self.begin(number, step, queue, frame)?;
            self.work(step, queue, frame)?;
            self.end(number, step, queue, frame)?;
            if self.binding.awaited[number] {
                frame.marks[number] = device.mark(queue)?;
            }
        }
        for q in others {
            let end = device.mark(RECORDED + q)?;
            device.wait(origin, end)?;
        }
        Ok(())
    }

    /// Gives the device what was recorded of a segment.
    fn replay(
        &self,
        segment: &Segment,
        number: u64,
        frame: &mut Frame,
        recorder: &dyn Recorder,
    ) -> Result<(), RunError> {
        let device = self.other(segment.device);
        let (origin, others) = (segment.queues[0], &segment.queues[1..]);
        for &earlier in &segment.waits {
            let of = &self.binding.steps[earlier];
            if (of.on, of.queue) != (segment.device, origin) {
                device.wait(origin, frame.marks[earlier])?;
            }
        }
        for &q in others {
            let before = device.mark(q)?;
            device.wait(origin, before)?;
        }
        // SAFETY: every slot is where it was when it was recorded, under the same binding, and what steps before it still do to them is
        // waited for.
        let given = unsafe { recorder.replay(origin, number) };
        given.map_err(|e| self.located(segment.steps.start, e))?;
        if segment.goes_on {
            let end = device.mark(origin)?;
            segment.awaited.iter().for_each(|&s| frame.marks[s] = end);
            others.iter().try_for_each(|&q| device.wait(q, end))?;
        }
        Ok(())
    }
}
