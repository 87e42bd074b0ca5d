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
//! - A chunk is run exactly once, except that after a panic the chunks that nobody has begun are skipped.
//! - A panic never leaves a worker's loop, so the count always returns to zero and the pool stays usable.
//! - A dispatch allocates nothing once the workers run (the first one spawns them).

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::float_mode::DefaultMode;

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

/// The published range and body of one dispatch.
#[derive(Clone, Copy)]
struct Job {
    body: *const Body<'static>,
    extent: u64,
    grain: u64,
    chunks: u64,
    /// A thread takes one of so many parts of the chunks that are left, but at least one chunk.
    parts: u64,
}

impl Job {
    /// Chunks to take of those from `next` on.
    fn share(&self, next: u64) -> u64 {
        ((self.chunks - next) / self.parts).max(1)
    }

    /// What a run of chunks covers.
    fn range(&self, first: u64, count: u64) -> (u64, u64) {
        let begin = first * self.grain;
        let end = begin.saturating_add(self.grain.saturating_mul(count));
        (begin, end.min(self.extent))
    }
}

/// What a dispatch touches, in one cache line where it fits: every line that changes hands costs the fork its latency.
#[repr(align(128))]
struct Shared {
    state: AtomicU64,
    /// The next chunk that nobody has taken.
    next: AtomicU64,
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
        let cores = default_threads();
        let spin = if threads <= cores { SPIN } else { Duration::ZERO };
        let shared = Shared {
            state: AtomicU64::new(0),
            next: AtomicU64::new(0),
            job: UnsafeCell::new(Job {
                body: &|_, _, _| {},
                extent: 0,
                grain: 1,
                chunks: 0,
                parts: u64::MAX,
            }),
            sleepers: AtomicUsize::new(0),
            busy: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
            spin,
            parked: Mutex::new(0),
            wake: Condvar::new(),
            done: Mutex::new(()),
            all_left: Condvar::new(),
            panic: Mutex::new(None),
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
        self.run_on_all(extent, grain, u64::MAX, body)
            .unwrap_or_else(|| run_inline(extent, grain, body))
    }

    /// As [`Pool::parallel_for`], but a call of the body covers as many neighbouring chunks as balance allows: all of them
    /// where one thread runs them, else a part of those that are left.
    ///
    /// # Errors
    ///
    /// [`PoolPanic`] if a body panicked (the first one, should several have); the pool stays usable.
    pub fn parallel_ranges(&self, extent: u64, grain: u64, body: &Body<'_>) -> Result<(), PoolPanic> {
        // Half of an even share: threads that are as fast as each other take few runs, and the last are short.
        let parts = 2 * self.threads as u64;
        self.run_on_all(extent, grain.max(1), parts, body)
            .unwrap_or_else(|| run_inline(extent, extent.max(1), body))
    }

    /// Runs the chunks on the workers and this thread; `None`, and nothing done, in a pool or a body without others.
    fn run_on_all(&self, extent: u64, grain: u64, parts: u64, body: &Body<'_>) -> Option<Result<(), PoolPanic>> {
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
            let whole = if parts == u64::MAX { grain } else { extent };
            return Some(run_inline(extent, whole, body));
        }
        self.workers.get_or_init(|| self.spawn());
        let job = Job {
            body: &|_, _, _| {},
            extent,
            grain,
            chunks: extent.div_ceil(grain),
            parts,
        };
        let result = self.shared.dispatch(job, body);
        busy.store(false, Ordering::Release);
        Some(result)
    }

    fn spawn(&self) -> Vec<JoinHandle<()>> {
        let mut workers = Vec::with_capacity(self.threads - 1);
        for index in 1..self.threads {
            let shared = Arc::clone(&self.shared);
            let spawned = std::thread::Builder::new().name(format!("tlc-{index}")).spawn(move || {
                // A thread starts in the mode of the one that made it.
                let _mode = DefaultMode::enter();
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
        let job = Job { body, ..job };
        let first = job.share(0);
        // SAFETY: we hold `busy`, the previous dispatch closed with nobody inside, and nobody enters before `OPEN`.
        unsafe { *self.job.get() = job };
        // The caller's first chunks need no counting.
        self.next.store(first, Ordering::Relaxed);
        let epoch = (self.state.load(Ordering::Relaxed) >> EPOCH_SHIFT).wrapping_add(1);
        // Sequentially consistent with `sleepers`: either we see a worker about to park, or it sees this dispatch.
        self.state.store((epoch << EPOCH_SHIFT) | OPEN, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) != 0 {
            self.wake(usize::try_from(job.chunks - first).unwrap_or(usize::MAX));
        }
        // SAFETY: the body is borrowed by our caller for the length of this function.
        unsafe { self.run(job, 0, Some((0, first))) };
        self.close();
        if self.panicked.load(Ordering::Relaxed) {
            self.panicked.store(false, Ordering::Relaxed);
            if let Some(panic) = lock(&self.panic).take() {
                return Err(panic);
            }
        }
        Ok(())
    }

    /// Takes the next chunks: the first of them, and how many.
    fn take(&self, job: &Job) -> Option<(u64, u64)> {
        if job.parts >= job.chunks {
            let chunk = self.next.fetch_add(1, Ordering::Relaxed);
            return (chunk < job.chunks).then_some((chunk, 1));
        }
        let mut next = self.next.load(Ordering::Relaxed);
        while next < job.chunks {
            let count = job.share(next);
            match self
                .next
                .compare_exchange_weak(next, next + count, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => return Some((next, count)),
                Err(now) => next = now,
            }
        }
        None
    }

    /// Takes chunks until none is left, beginning with `first`; a panic ends the job for everybody and is noted.
    ///
    /// # Safety
    ///
    /// The job's body must outlive the call.
    unsafe fn run(&self, job: Job, worker: usize, first: Option<(u64, u64)>) {
        // SAFETY: the caller vouches for the pointer.
        let body = unsafe { &*job.body };
        let result = catch_unwind(AssertUnwindSafe(|| {
            let mut taken = first.or_else(|| self.take(&job));
            while let Some((chunk, count)) = taken {
                let (begin, end) = job.range(chunk, count);
                body(worker, begin, end);
                taken = self.take(&job);
            }
        }));
        if let Err(payload) = result {
            self.next.fetch_max(job.chunks, Ordering::Relaxed);
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

fn run_inline(extent: u64, grain: u64, body: &Body<'_>) -> Result<(), PoolPanic> {
    let result = catch_unwind(AssertUnwindSafe(|| {
        let mut begin = 0;
        while begin < extent {
            let end = begin.saturating_add(grain).min(extent);
            body(0, begin, end);
            begin = end;
        }
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
