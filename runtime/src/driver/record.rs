//! Warm calls of plans for several devices: what a device does without the host is recorded once and given to it at once.
//!
//! Invariants:
//! - A recording is given again only where every slot that it touches is where it was when it was made, or changed.
//! - Where the caller chooses addresses, those that come again have a recording of their own. For others the one that was used longest ago
//!   is changed: its operations are gone through as when they were recorded, and the device changes those that touch what moved.
//! - Inputs and outputs of the caller that recordings copy are staged: what is recorded has the address of memory of the call's state,
//!   which the host fills before and empties after.
//! - A segment that cannot be recorded is done step by step, in this call and in those that follow.

use std::collections::VecDeque;
use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustc_hash::{FxHashMap, FxHasher};

use super::frame::Frame;
use super::kept::Kept;
use super::walk::{Finish, Walk};
use super::{Bound, CallState, Executable, Observe, RunError, lock};
use crate::binding::segments::{MOST_OPERATIONS, Segment};
use crate::binding::steps::BoundWork;
use crate::device::{Host, Queued, RECORDED, Recorder};

/// Segments of which the state of calls keeps recordings, recordings of each, and addresses that are remembered.
const MOST: usize = 64;

/// What was recorded, which goes with it.
struct Recording {
    device: Arc<dyn Queued>,
    /// The addresses of the slots that it touches.
    places: Vec<usize>,
    /// Its number; none if the steps could not be recorded.
    number: Option<u64>,
}

impl Drop for Recording {
    fn drop(&mut self) {
        if let (Some(recorder), Some(number)) = (self.device.recorder(), self.number) {
            // Calls may have returned before it was done.
            self.device.finish();
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

/// Recordings of a segment.
#[derive(Default)]
struct OfSegment {
    /// That which was used last is the last.
    all: Vec<Recording>,
    /// Hashes of addresses that it was at: the latest last.
    seen: VecDeque<u64>,
}

/// Whether a segment was at these addresses before; from now on it was.
fn saw(seen: &mut VecDeque<u64>, places: impl Iterator<Item = usize>) -> bool {
    let mut hasher = FxHasher::default();
    places.for_each(|p| p.hash(&mut hasher));
    let hash = hasher.finish();
    let before = seen.contains(&hash);
    if !before {
        if seen.len() == MOST {
            seen.pop_front();
        }
        seen.push_back(hash);
    }
    before
}

/// What warm calls keep, one after another.
#[derive(Default)]
pub(super) struct Recordings {
    /// By binding and number of the segment.
    known: FxHashMap<(u64, usize), OfSegment>,
    staging: Option<Staging>,
    /// The numbers from 0 on, for the iterations of loops.
    numbers: Option<Staging>,
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

/// Numbers of iterations in [`Recordings::numbers`].
const NUMBERS: usize = MOST_OPERATIONS as usize;

/// A table of the numbers from 0 on, each an i64, that recordings may copy from.
fn numbers(device: &Arc<dyn Queued>, recorder: &dyn Recorder) -> Result<Staging, RunError> {
    let bytes = NUMBERS * size_of::<i64>();
    let start = recorder.allocate_host(bytes)?;
    let table = start.cast::<i64>();
    for i in 0..NUMBERS {
        // SAFETY: there is room for so many, and the driver aligns what it allocates to more than them.
        unsafe { table.add(i).write(i as i64) };
    }
    Ok(Staging {
        device: Arc::clone(device),
        start,
        bytes,
    })
}

/// The addresses of what a segment touches.
fn places<'f>(segment: &'f Segment, frame: &'f Frame) -> impl Iterator<Item = usize> + 'f {
    // What loops' bodies keep to themselves is in the arena.
    let arena = segment.has_loops.then(|| frame.arenas[segment.device].addr());
    segment.slots.iter().map(|&s| frame.slots[s].addr()).chain(arena)
}

/// Where steps are given that are recorded.
#[derive(Clone, Copy)]
pub(super) struct Recorded<'q> {
    device: usize,
    /// The queues whose steps are recorded, by their numbers without recording; the recording begins and ends in the first.
    queues: &'q [u32],
    /// The table of numbers.
    numbers: *mut u8,
}

impl Recorded<'_> {
    /// The queue that the recording begins and ends in.
    pub(super) fn origin(&self) -> u32 {
        RECORDED + self.queues[0]
    }

    /// Where the number of an iteration is, as an i64.
    pub(super) fn number(&self, iteration: usize) -> *mut u8 {
        // A loop that is recorded has no more iterations than the table has numbers.
        self.numbers.wrapping_add(iteration * size_of::<i64>())
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

    /// As [`Executable::execute`], with recordings, of which it is said only that they begin.
    #[inline(never)]
    pub(super) fn execute_recorded(
        &self,
        binding: &Bound,
        state: &mut CallState,
        staging: *mut u8,
        input: &dyn Fn(usize) -> *mut u8,
        (kept, observe): (&Kept, &mut Observe<'_>),
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
                // All of it may have been done if something fails.
                observe(now.segments.all[at].steps.end - 1, true, &state.frame.slots, now);
                let walk = self.walk(now, &mut state.scratch);
                self.give(&walk, at, &mut state.frame, &mut state.recordings)?;
                number = now.segments.all[at].steps.end;
                continue;
            }
            observe(number, true, &state.frame.slots, now);
            let bound = self.walk(now, &mut state.scratch).step(number, &mut state.frame)?;
            if let Some(bound) = bound {
                later = Some(self.decided((binding, now), &[bound], state)?);
            }
            number += 1;
        }
        self.end(walk, (binding, state.goes_on), finish)?;
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
        if segment.has_loops && recordings.numbers.is_none() {
            match numbers(device, recorder) {
                Ok(table) => recordings.numbers = Some(table),
                // Without memory for it there is the way of the first call.
                Err(_) => return segment.steps.clone().try_for_each(|n| walk.step(n, frame).map(drop)),
            }
        }
        let table = recordings.numbers.as_ref().map_or(std::ptr::null_mut(), |n| n.start);
        let key = (walk.binding.id, at);
        if recordings.known.len() >= MOST && !recordings.known.contains_key(&key) {
            recordings.known.clear();
        }
        let OfSegment { all, seen } = recordings.known.entry(key).or_default();
        let found = all
            .iter()
            .position(|k| k.places.iter().copied().eq(places(segment, frame)));
        let number = match found {
            Some(known) => {
                all[known..].rotate_left(1);
                all[all.len() - 1].number
            }
            // What was refused once is not asked for again.
            None if all.iter().any(|k| k.number.is_none()) => None,
            None => {
                let one_at_a_time = lock(&self.recording);
                // What never comes again is not worth a recording of its own.
                let again = saw(seen, places(segment, frame));
                let one_more = all.is_empty() || again && all.len() < MOST;
                let moved = (!one_more).then(|| all.remove(0));
                let changed = moved.filter(|old| match old.number {
                    Some(number) => walk.amend(segment, number, frame, recorder, table).is_ok(),
                    None => false,
                });
                let made = match changed {
                    Some(mut old) => {
                        old.places.clear();
                        old.places.extend(places(segment, frame));
                        old
                    }
                    None => {
                        let made = walk.record(segment, frame, recorder, table);
                        if let Err(e) = &made {
                            tracing::warn!(plan = %self.plan.name, segment = at, "not recorded: {e}");
                        }
                        Recording {
                            device: Arc::clone(device),
                            places: places(segment, frame).collect(),
                            number: made.ok(),
                        }
                    }
                };
                drop(one_at_a_time);
                let number = made.number;
                all.push(made);
                number
            }
        };
        match number {
            Some(number) => walk.replay(segment, number, frame, recorder),
            None => segment.steps.clone().try_for_each(|n| walk.step(n, frame).map(drop)),
        }
    }
}

impl<H: Host> Walk<'_, H> {
    /// Records a segment. `numbers` is a table of them, if it has loops.
    fn record(
        &self,
        segment: &Segment,
        frame: &mut Frame,
        recorder: &dyn Recorder,
        numbers: *mut u8,
    ) -> Result<u64, RunError> {
        let to = Recorded {
            device: segment.device,
            queues: &segment.queues,
            numbers,
        };
        recorder.record(to.origin())?;
        let given = self
            .spread(to)
            .and_then(|()| self.give_steps(segment.steps.clone(), to, frame))
            .and_then(|()| self.gather(to));
        let ends = segment
            .launches
            .as_ref()
            .map(|ends| ends.each_ref().map(|l| self.handle(l)));
        let kernels = ends.and_then(|[first, last]| first.zip(last));
        // Also if something failed: the recording is over.
        let recorded = recorder.recorded(to.origin(), kernels);
        given?;
        recorded
    }

    /// Goes through a segment as when it was recorded, so that its operations are at the addresses where slots are now.
    fn amend(
        &self,
        segment: &Segment,
        number: u64,
        frame: &mut Frame,
        recorder: &dyn Recorder,
        numbers: *mut u8,
    ) -> Result<(), RunError> {
        let to = Recorded {
            device: segment.device,
            queues: &segment.queues,
            numbers,
        };
        recorder.amend(number);
        let given = self.give_steps(segment.steps.clone(), to, frame);
        // Also if something failed: it is over.
        let amended = recorder.amended();
        given.and(amended)
    }

    /// Has the other queues that are recorded wait for the first.
    pub(super) fn spread(&self, to: Recorded<'_>) -> Result<(), RunError> {
        let (device, others) = (self.other(to.device), &to.queues[1..]);
        if others.is_empty() {
            return Ok(());
        }
        let begin = device.mark(to.origin())?;
        others.iter().try_for_each(|q| device.wait(RECORDED + q, begin))
    }

    /// Has the first queue that is recorded wait for the others.
    pub(super) fn gather(&self, to: Recorded<'_>) -> Result<(), RunError> {
        let device = self.other(to.device);
        to.queues[1..].iter().try_for_each(|q| {
            let end = device.mark(RECORDED + q)?;
            device.wait(to.origin(), end)
        })
    }

    /// Goes through steps in the queues for recording.
    pub(super) fn give_steps(&self, steps: Range<usize>, to: Recorded<'_>, frame: &mut Frame) -> Result<(), RunError> {
        let device = self.other(to.device);
        for number in steps.clone() {
            let step = &self.binding.steps[number];
            if let BoundWork::Loop(l) = &step.work {
                let at = (to.device, to.origin());
                self.gather(to)?;
                self.begin(number, at, frame)?;
                self.repeat_recorded(l, to, frame)?;
                self.end(number, at, frame)?;
                self.spread(to)?;
                continue;
            }
            let queue = RECORDED + step.queue;
            let waits = self.plan.turns.get(number).map(|t| &t.waits);
            for &earlier in waits.into_iter().flatten() {
                let (earlier, of) = (earlier as usize, &self.binding.steps[earlier as usize]);
                // All queues wait for a loop.
                if steps.contains(&earlier) && of.on != 0 && of.queue != step.queue {
                    device.wait(queue, frame.marks[earlier])?;
                }
            }
            self.begin(number, (step.on, queue), frame)?;
            self.work(step, queue, frame)?;
            self.end(number, (step.on, queue), frame)?;
            if self.binding.awaited[number] {
                frame.marks[number] = device.mark(queue)?;
            }
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
            // What is behind a loop relies on it without waiting, on every device.
            let all = self.binding.queues.iter().filter(|_| segment.has_loops);
            let mut beside = all.filter(|q| q.0 != segment.device || !segment.queues.contains(&q.1));
            beside.try_for_each(|&(on, q)| self.other(on).wait(q, end))?;
        }
        Ok(())
    }
}
