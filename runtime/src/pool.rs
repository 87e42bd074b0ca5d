//! The fork-join pool that runs a kernel's range on several threads.
//!
//! Invariants:
//!
//! - At most one *dispatch* uses the workers at a time: the dispatcher holds `busy`. Whoever cannot get it (another
//!   thread is dispatching, or the call is nested in a body) runs its whole range inline on its own thread, so nobody
//!   ever waits for somebody else's dispatch and there is nothing to deadlock on.
//! - Worker indices are unique within one dispatch and smaller than [`Pool::threads`]: the caller is 0, worker thread
//!   `i` is always `i`, an inline run is 0. Scratch memory therefore belongs to the *call*: two concurrent calls both
//!   use index 0, each of its own scratch.
//! - The job (a borrowed body and its range) is published in `Shared::job` before the `OPEN` bit is set. A worker
//!   *enters* by adding one to the count in the same word while `OPEN` is set, and reads the job only after that. The
//!   dispatcher clears `OPEN` and returns only once the count is zero, so no worker holds the borrow afterwards, and
//!   the job is never written while a worker may read it.
//! - A worker that is late (parked, or descheduled by the system) is never waited for: only those who entered are. The
//!   caller goes on taking chunks meanwhile and does all of them if it must.
//! - Chunks are taken one by one ([`Pool::parallel_for`]) or in runs of neighbours, fewer and fewer the fewer are left
//!   ([`Pool::parallel_ranges`]).
//! - A thread takes the chunks of its own *home* first, from the front: the first threads the first part of the range, and
//!   so on, in every dispatch. What it has none of any longer it takes from the back of others' homes. So what a thread
//!   has written in one dispatch it is most likely to read in the next, from its own cache: a line that another core has
//!   written comes late, and very late where the two share no cache.
//! - A chunk is run exactly once, except that after a panic the chunks that nobody has begun are skipped. What is taken of
//!   a home is one word, which carries the number of its dispatch: a word of an earlier one is a home that nobody has
//!   taken from, so that a dispatch need not write to all of them.
//! - A panic never leaves a worker's loop, so the count always returns to zero and the pool stays usable.
//! - A dispatch allocates nothing once the workers run (the first one spawns them).

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::float_mode::DefaultMode;

mod spread;

/// The most threads a pool has; more are clamped to this.
pub const MAX_THREADS: usize = 1024;

/// How long an idle worker polls for work before it parks.
const SPIN: Duration = Duration::from_micros(50);

/// Polls between two looks at the clock.
const POLLS_PER_CLOCK: u32 = 32;

/// The layout of `Shared::state`: the number of workers inside the current dispatch, three flags, and above them the
/// dispatch number, so that a worker enters each dispatch at most once.
const INSIDE_MASK: u64 = 0xffff;
const OPEN: u64 = 1 << 16;
const CALLER_SLEEPS: u64 = 1 << 17;
const SHUTDOWN: u64 = 1 << 18;
const EPOCH_SHIFT: u32 = 19;

/// What a parallel body is: `(worker_index, begin, end)`.
pub type Body<'a> = dyn Fn(usize, u64, u64) + Sync + 'a;

/// A body panicked. The other threads finished the chunks they had begun; chunks that nobody had begun were skipped.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a parallel body panicked on worker {worker}: {message}")]
pub struct PoolPanic {
    /// The panic's message, or a stand-in when its payload was not text.
    pub message: String,
    /// The index of the worker whose panic came first.
    pub worker: usize,
}

/// A fork-join pool: `threads - 1` workers and whoever calls.
///
/// It may be shared freely between threads; see the module's text for what concurrent and nested calls do.
#[derive(Debug)]
pub struct Pool {
    threads: usize,
    shared: Arc<Shared>,
    workers: OnceLock<Vec<JoinHandle<()>>>,
}

/// The published range and body of one dispatch. With the word that opens it, it fills a line of the cache.
#[derive(Clone, Copy)]
struct Job {
    body: *const Body<'static>,
    extent: u64,
    /// What a call of the body covers, or if `ranges` what is taken at once at least, and a call covers all of it.
    grain: u64,
    /// What is split: chunks, or if `ranges` single iterations.
    cells: u64,
    /// The dispatch, as homes' words have it.
    mark: u32,
    /// Units that are taken at once at least.
    least: u32,
    /// A thread takes one of so many parts of the units that are left of a home.
    parts: u16,
    /// Into how many homes the cells are split.
    homes: u8,
    /// A unit is two to that power cells, so that the number of a unit fits a home's word.
    unit: u8,
    ranges: bool,
}

impl Job {
    /// A job of at least one chunk, on a pool of at least two threads.
    fn new(threads: usize, extent: u64, grain: u64, ranges: bool) -> Job {
        let chunks = extent.div_ceil(grain);
        let cells = if ranges { extent } else { chunks };
        // No thread is at home with less than a chunk.
        let homes = MOST_HOMES
            .min(threads)
            .min(usize::try_from(chunks).unwrap_or(usize::MAX));
        let most = cells.div_ceil(homes as u64);
        // One bit less than there are: the last unit may be a part of one.
        let unit = (u64::BITS - most.leading_zeros()).saturating_sub(UNIT_BITS - 1);
        let least = if ranges { grain >> unit } else { 1 };
        // Half of an even share: threads that are as fast as each other take few runs, and the last are short.
        let parts = if ranges {
            2 * threads.div_ceil(homes)
        } else {
            usize::MAX
        };
        Job {
            body: &|_, _, _| {},
            extent,
            grain,
            cells,
            mark: 0,
            least: u32::try_from(least.max(1)).unwrap_or(u32::MAX),
            parts: u16::try_from(parts).unwrap_or(u16::MAX),
            homes: homes as u8,
            unit: unit as u8,
            ranges,
        }
    }

    /// The first cell of a home; that of the one behind the last is the number of cells.
    fn start(&self, home: usize) -> u64 {
        let (home, homes) = (home as u64, u64::from(self.homes));
        self.cells / homes * home + home.min(self.cells % homes)
    }

    /// Units of a home.
    fn units(&self, home: usize) -> u64 {
        (self.start(home + 1) - self.start(home)).div_ceil(1 << self.unit)
    }

    /// Units to take where so many are left: all, if what would be left is hardly worth a call.
    fn share(&self, left: u64) -> u64 {
        let least = u64::from(self.least);
        let share = (left / u64::from(self.parts)).max(least);
        if share + least / 2 < left { share } else { left }
    }

    /// The cells of units of a home.
    fn run(&self, home: usize, units: Range<u64>) -> Range<u64> {
        let start = self.start(home);
        let end = start.saturating_add(units.end << self.unit);
        start + (units.start << self.unit)..end.min(self.start(home + 1))
    }

    /// What cells cover.
    fn range(&self, run: &Range<u64>) -> (u64, u64) {
        if self.ranges {
            return (run.start, run.end);
        }
        let end = run.end.saturating_mul(self.grain);
        (run.start * self.grain, end.min(self.extent))
    }
}

/// The most homes: a thread without work looks at all of them, so many threads share some.
const MOST_HOMES: usize = 8;

/// Bits of the number of a unit in a home's word; what is left is the dispatch.
const UNIT_BITS: u32 = 20;
const UNIT_MASK: u64 = (1 << UNIT_BITS) - 1;
const MARK_SHIFT: u32 = 2 * UNIT_BITS;
const MARK_MASK: u64 = u64::MAX >> MARK_SHIFT;

/// What is left of a home, in a cache line of its own: from its low bits up, the first unit that nobody took, the one
/// behind the last, and the dispatch that this is said of. No dispatch is 0.
#[repr(align(128))]
#[derive(Default)]
struct Home(AtomicU64);

impl Home {
    /// The first unit that is left in a dispatch, and the one behind the last.
    fn left(&self, job: &Job, home: usize) -> (u64, Range<u64>) {
        let word = self.0.load(Ordering::Relaxed);
        let left = if word >> MARK_SHIFT == u64::from(job.mark) {
            word & UNIT_MASK..word >> UNIT_BITS & UNIT_MASK
        } else {
            0..job.units(home)
        };
        (word, left)
    }

    fn word(job: &Job, left: &Range<u64>) -> u64 {
        u64::from(job.mark) << MARK_SHIFT | left.end << UNIT_BITS | left.start
    }
}

/// What a dispatch touches, in one cache line where it fits: every line that changes hands costs the fork its latency.
#[repr(align(128))]
struct Shared {
    state: AtomicU64,
    job: UnsafeCell<Job>,
    /// Workers that are parked (or about to be) and have no permit yet; changed only under `parked`.
    sleepers: AtomicUsize,
    busy: AtomicBool,
    panicked: AtomicBool,
    spin: Duration,
    /// Permits handed to parked workers.
    parked: Mutex<usize>,
    wake: Condvar,
    done: Mutex<()>,
    all_left: Condvar,
    panic: Mutex<Option<PoolPanic>>,
    homes: [Home; MOST_HOMES],
    /// Of this pool's threads.
    threads: usize,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("state", &self.state)
            .field("spin", &self.spin)
            .finish_non_exhaustive()
    }
}

// SAFETY: `job` is the only field that is not `Sync`. It is written by the holder of `busy` while `OPEN` is clear and no
// worker is inside, and read only by workers that are inside; entering synchronizes with the publication. The body it
// points to is `Sync`, and the dispatcher outlives every reader.
unsafe impl Sync for Shared {}
// SAFETY: the raw pointer in `job` is dangling outside a dispatch and never followed there; moving it is harmless.
unsafe impl Send for Shared {}

thread_local! {
    /// Whether this thread is running a body, so that nested calls run inline.
    static IN_BODY: Cell<bool> = const { Cell::new(false) };
}

impl Pool {
    /// A pool that runs on `threads` threads, the caller's included (clamped to 1..=[`MAX_THREADS`]).
    ///
    /// The workers are spawned by the first call that can use them. Should the system refuse some of them, the pool
    /// works with those it got. Idle workers poll for about 50 us before they park, unless the pool has more threads
    /// than this process may use cores.
    #[must_use]
    pub fn new(threads: usize) -> Self {
        let threads = threads.clamp(1, MAX_THREADS);
        // One thread, which every process may run, has nobody to wait for it.
        let fits = threads == 1 || threads <= default_threads();
        let spin = if fits { SPIN } else { Duration::ZERO };
        let shared = Shared {
            state: AtomicU64::new(0),
            job: UnsafeCell::new(Job::new(2, 1, 1, false)),
            sleepers: AtomicUsize::new(0),
            busy: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
            spin,
            parked: Mutex::new(0),
            wake: Condvar::new(),
            done: Mutex::new(()),
            all_left: Condvar::new(),
            panic: Mutex::new(None),
            homes: Default::default(),
            threads,
        };
        Pool {
            threads,
            shared: Arc::new(shared),
            workers: OnceLock::new(),
        }
    }

    /// The number of threads, the caller's included; worker indices are smaller than this.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Calls `body(worker_index, begin, end)` for the chunks `[0, grain), [grain, 2 grain), ...` that cover
    /// `0..extent`, each exactly once, in any order, on up to [`Pool::threads`] threads, and returns when all are done.
    ///
    /// Every chunk begins at a multiple of `grain` and all but the last are `grain` long (a `grain` of 0 counts as 1),
    /// however many threads there are. With one thread, one chunk, a busy pool, or from inside another body, all
    /// chunks run in order on the calling thread as worker 0. No two threads run with the same index in one call.
    ///
    /// # Errors
    ///
    /// [`PoolPanic`] if a body panicked (the first one, should several have); the pool stays usable.
    pub fn parallel_for(&self, extent: u64, grain: u64, body: &Body<'_>) -> Result<(), PoolPanic> {
        let grain = grain.max(1);
        self.run_on_all(extent, grain, false, body)
            .unwrap_or_else(|| run_inline(extent, grain, body))
    }

    /// As [`Pool::parallel_for`], but calls of the body cover any parts of the range, as long as balance allows: all of it
    /// where one thread runs it, else at least about `grain` of a thread's even share.
    ///
    /// # Errors
    ///
    /// [`PoolPanic`] if a body panicked (the first one, should several have); the pool stays usable.
    pub fn parallel_ranges(&self, extent: u64, grain: u64, body: &Body<'_>) -> Result<(), PoolPanic> {
        self.run_on_all(extent, grain.max(1), true, body)
            .unwrap_or_else(|| run_inline(extent, extent.max(1), body))
    }

    /// Runs the chunks on the workers and this thread; `None`, and nothing done, in a pool or a body without others.
    fn run_on_all(&self, extent: u64, grain: u64, ranges: bool, body: &Body<'_>) -> Option<Result<(), PoolPanic>> {
        if self.threads == 1 || IN_BODY.get() {
            return None;
        }
        let _in_body = InBody::enter();
        let busy = &self.shared.busy;
        let alone = extent <= grain
            || busy
                .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
                .is_err();
        if alone {
            let whole = if ranges { extent } else { grain };
            return Some(run_inline(extent, whole, body));
        }
        self.workers.get_or_init(|| self.spawn());
        let job = Job::new(self.threads, extent, grain, ranges);
        let result = self.shared.dispatch(job, body);
        busy.store(false, Ordering::Release);
        Some(result)
    }

    fn spawn(&self) -> Vec<JoinHandle<()>> {
        let mut workers = Vec::with_capacity(self.threads - 1);
        let core = spread::core();
        for index in 1..self.threads {
            let shared = Arc::clone(&self.shared);
            let spawned = std::thread::Builder::new().name(format!("tlc-{index}")).spawn(move || {
                // A thread starts in the mode of the one that made it.
                let _mode = DefaultMode::enter();
                spread::leave(core, index);
                shared.work(index);
            });
            match spawned {
                Ok(handle) => workers.push(handle),
                Err(error) => {
                    tracing::warn!(%error, "the system refused worker {index}; the pool runs with {index} threads");
                    break;
                }
            }
        }
        workers
    }
}

impl Default for Pool {
    /// A pool with [`default_threads`] threads.
    fn default() -> Self {
        Pool::new(default_threads())
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let Some(workers) = self.workers.take() else { return };
        self.shared.state.fetch_or(SHUTDOWN, Ordering::SeqCst);
        self.shared.wake(usize::MAX);
        for worker in workers {
            // A worker's loop catches every panic of a body, so there is nothing to learn from the result.
            let _ = worker.join();
        }
    }
}

/// The number of threads this process may run at once: its cores, less what its affinity or its container forbids. Asked
/// once in a process, because asking takes a dozen system calls.
#[must_use]
pub fn default_threads() -> usize {
    static THREADS: OnceLock<usize> = OnceLock::new();
    *THREADS.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// Marks this thread as running a body for as long as the value lives.
struct InBody;

impl InBody {
    fn enter() -> Self {
        IN_BODY.set(true);
        InBody
    }
}

impl Drop for InBody {
    fn drop(&mut self) {
        IN_BODY.set(false);
    }
}

/// Polls until asked to stop or until its time is up; looks at the clock now and then only.
struct Spinner {
    polls: u32,
    since: Option<Instant>,
    limit: Duration,
}

impl Spinner {
    fn new(limit: Duration) -> Self {
        Spinner {
            polls: 0,
            since: None,
            limit,
        }
    }

    /// Waits a moment; false once the time is up.
    fn pause(&mut self) -> bool {
        if self.limit.is_zero() {
            return false;
        }
        std::hint::spin_loop();
        self.polls += 1;
        if self.polls.is_multiple_of(POLLS_PER_CLOCK) {
            return self.since.get_or_insert_with(Instant::now).elapsed() < self.limit;
        }
        true
    }
}

impl Shared {
    /// Runs one dispatch of a job, whose body is given beside it; the caller holds `busy`.
    fn dispatch(&self, job: Job, body: &Body<'_>) -> Result<(), PoolPanic> {
        // SAFETY: only the lifetime changes. The pointer is followed by threads that have entered this dispatch, and
        // `close` below returns only when all of them have left and none can enter any more.
        let body = unsafe { std::mem::transmute::<*const Body<'_>, *const Body<'static>>(body) };
        let epoch = self.next_epoch();
        let mark = (epoch & MARK_MASK) as u32;
        let job = Job { body, mark, ..job };
        // What the caller begins with it need not ask for. Its home is the first.
        let units = job.units(0);
        let count = job.share(units);
        self.homes[0]
            .0
            .store(Home::word(&job, &(count..units)), Ordering::Relaxed);
        let first = job.run(0, 0..count);
        // SAFETY: we hold `busy`, the previous dispatch closed with nobody inside, and nobody enters before `OPEN`.
        unsafe { *self.job.get() = job };
        // Sequentially consistent with `sleepers`: either we see a worker about to park, or it sees this dispatch.
        self.state.store((epoch << EPOCH_SHIFT) | OPEN, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) != 0 {
            let others = (job.cells - first.end).div_ceil(u64::from(job.least) << job.unit);
            self.wake(usize::try_from(others).unwrap_or(usize::MAX));
        }
        // SAFETY: the body is borrowed by our caller for the length of this function.
        unsafe { self.run(job, 0, Some(first)) };
        self.close();
        if self.panicked.load(Ordering::Relaxed) {
            self.panicked.store(false, Ordering::Relaxed);
            if let Some(panic) = lock(&self.panic).take() {
                return Err(panic);
            }
        }
        Ok(())
    }

    /// The number of the next dispatch; the caller holds `busy`.
    fn next_epoch(&self) -> u64 {
        let epoch = (self.state.load(Ordering::Relaxed) >> EPOCH_SHIFT).wrapping_add(1);
        if epoch & MARK_MASK != 0 {
            return epoch;
        }
        // Words could be of a dispatch with the same mark, so long ago that the marks have come round.
        self.homes.iter().for_each(|home| home.0.store(0, Ordering::Relaxed));
        epoch.wrapping_add(1)
    }

    /// Takes the next cells of a worker: from the front of its home, or the back of another's, farthest from what is taken there.
    fn take(&self, job: &Job, worker: usize) -> Option<Range<u64>> {
        let homes = usize::from(job.homes);
        let own = worker * homes / self.threads;
        self.take_from(job, own, |left, count| left.start..left.start + count)
            .or_else(|| {
                let mut others = (1..homes).map(|other| (own + other) % homes);
                others.find_map(|home| self.take_from(job, home, |left, count| left.end - count..left.end))
            })
    }

    /// Takes from a home: `which` units, of those that are left and how many to take, at one of their ends.
    fn take_from(&self, job: &Job, home: usize, which: impl Fn(&Range<u64>, u64) -> Range<u64>) -> Option<Range<u64>> {
        let of = &self.homes[home].0;
        loop {
            let (word, left) = self.homes[home].left(job, home);
            if left.is_empty() {
                return None;
            }
            let taken = which(&left, job.share(left.end - left.start));
            let rest = if taken.start == left.start {
                taken.end..left.end
            } else {
                left.start..taken.start
            };
            let rest = Home::word(job, &rest);
            if of
                .compare_exchange_weak(word, rest, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
            {
                return Some(job.run(home, taken));
            }
        }
    }

    /// Leaves nothing of a job to take.
    fn exhaust(&self, job: &Job) {
        for home in &self.homes[..usize::from(job.homes)] {
            home.0.store(Home::word(job, &(0..0)), Ordering::Relaxed);
        }
    }

    /// Takes chunks until none is left, beginning with `first`; a panic ends the job for everybody and is noted.
    ///
    /// # Safety
    ///
    /// The job's body must outlive the call.
    unsafe fn run(&self, job: Job, worker: usize, first: Option<Range<u64>>) {
        // SAFETY: the caller vouches for the pointer.
        let body = unsafe { &*job.body };
        let result = catch_unwind(AssertUnwindSafe(|| {
            let mut taken = first.or_else(|| self.take(&job, worker));
            while let Some(run) = taken {
                let (begin, end) = job.range(&run);
                let step = if job.ranges { end - begin } else { job.grain };
                in_steps(begin, end, step, |begin, end| body(worker, begin, end));
                taken = self.take(&job, worker);
            }
        }));
        if let Err(payload) = result {
            self.exhaust(&job);
            let panic = describe(payload, worker);
            lock(&self.panic).get_or_insert(panic);
            self.panicked.store(true, Ordering::Relaxed);
        }
    }

    /// Lets no further worker in and waits until those inside have left.
    fn close(&self) {
        if self.state.fetch_and(!OPEN, Ordering::AcqRel) & INSIDE_MASK == 0 {
            return;
        }
        let mut spinner = Spinner::new(self.spin);
        while self.state.load(Ordering::Acquire) & INSIDE_MASK != 0 {
            if spinner.pause() {
                continue;
            }
            let mut guard = lock(&self.done);
            // One word holds the flag and the count: if the count is not yet zero here, the last worker sees the flag,
            // and it takes `done` before it notifies, so the notification cannot come before the wait.
            if self.state.fetch_or(CALLER_SLEEPS, Ordering::AcqRel) & INSIDE_MASK != 0 {
                while self.state.load(Ordering::Acquire) & INSIDE_MASK != 0 {
                    guard = self.all_left.wait(guard).unwrap_or_else(PoisonError::into_inner);
                }
            }
            return;
        }
    }

    /// Hands permits to as many parked workers as there are, `most` at most.
    fn wake(&self, most: usize) {
        let mut permits = lock(&self.parked);
        let count = self.sleepers.load(Ordering::Relaxed).min(most);
        self.sleepers.fetch_sub(count, Ordering::Relaxed);
        *permits += count;
        drop(permits);
        for _ in 0..count {
            self.wake.notify_one();
        }
    }

    /// A worker's life.
    fn work(&self, worker: usize) {
        // Whatever a worker runs is a body: its calls are nested ones.
        IN_BODY.set(true);
        let mut seen = 0;
        while let Some(epoch) = self.enter(seen) {
            seen = epoch;
            // SAFETY: we are inside, so the job is published, stays as it is and its body alive until we leave.
            unsafe { self.run(*self.job.get(), worker, None) };
            let before = self.state.fetch_sub(1, Ordering::AcqRel);
            if before & CALLER_SLEEPS != 0 && before & INSIDE_MASK == 1 {
                drop(lock(&self.done));
                self.all_left.notify_all();
            }
        }
    }

    /// Waits for a dispatch other than `seen` and enters it; `None` when the pool shuts down.
    fn enter(&self, seen: u64) -> Option<u64> {
        let mut spinner = Spinner::new(self.spin);
        loop {
            let state = self.state.load(Ordering::Acquire);
            if state & SHUTDOWN != 0 {
                return None;
            }
            if is_new_work(state, seen) {
                let entered = self
                    .state
                    .compare_exchange(state, state + 1, Ordering::AcqRel, Ordering::Relaxed);
                if entered.is_ok() {
                    return Some(state >> EPOCH_SHIFT);
                }
                continue;
            }
            if !spinner.pause() {
                self.park(seen);
                spinner = Spinner::new(self.spin);
            }
        }
    }

    /// Sleeps until a dispatcher hands out a permit; returns at once if there is work already.
    fn park(&self, seen: u64) {
        let mut permits = lock(&self.parked);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let state = self.state.load(Ordering::SeqCst);
        if state & SHUTDOWN != 0 || is_new_work(state, seen) {
            // No permit can have been meant for us: they are handed out under this lock.
            self.sleepers.fetch_sub(1, Ordering::SeqCst);
            return;
        }
        while *permits == 0 {
            permits = self.wake.wait(permits).unwrap_or_else(PoisonError::into_inner);
        }
        *permits -= 1;
    }
}

fn is_new_work(state: u64, seen: u64) -> bool {
    state & OPEN != 0 && state >> EPOCH_SHIFT != seen
}

/// Locks; no lock here guards a state that a panic could leave half-changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls a function for the steps of a range in turn.
fn in_steps(mut begin: u64, end: u64, step: u64, body: impl Fn(u64, u64)) {
    while begin < end {
        let next = begin.saturating_add(step).min(end);
        body(begin, next);
        begin = next;
    }
}

fn run_inline(extent: u64, grain: u64, body: &Body<'_>) -> Result<(), PoolPanic> {
    let result = catch_unwind(AssertUnwindSafe(|| {
        in_steps(0, extent, grain, |begin, end| body(0, begin, end));
    }));
    result.map_err(|payload| describe(payload, 0))
}

#[cold]
fn describe(payload: Box<dyn Any + Send>, worker: usize) -> PoolPanic {
    let message = if let Some(text) = payload.downcast_ref::<&'static str>() {
        (*text).to_owned()
    } else if let Some(text) = payload.downcast_ref::<String>() {
        text.clone()
    } else {
        "a panic without a message".to_owned()
    };
    // A payload may panic when dropped; that must not end a worker.
    if let Err(another) = catch_unwind(AssertUnwindSafe(move || drop(payload))) {
        std::mem::forget(another);
    }
    PoolPanic { message, worker }
}

#[cfg(test)]
mod tests;
