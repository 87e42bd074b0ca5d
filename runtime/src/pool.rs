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
        if self.threads == 1 {
            return run_inline(extent, grain, body);
        }
        if IN_BODY.get() {
            return run_inline(extent, grain, body);
        }
        let _in_body = InBody::enter();
        if extent <= grain
            || self
                .shared
                .busy
                .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
                .is_err()
        {
            return run_inline(extent, grain, body);
        }
        self.workers.get_or_init(|| self.spawn());
        let result = self.shared.dispatch(extent, grain, body);
        self.shared.busy.store(false, Ordering::Release);
        result
    }

    fn spawn(&self) -> Vec<JoinHandle<()>> {
        let mut workers = Vec::with_capacity(self.threads - 1);
        for index in 1..self.threads {
            let shared = Arc::clone(&self.shared);
            let spawned = std::thread::Builder::new()
                .name(format!("tlc-{index}"))
                .spawn(move || shared.work(index));
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
/// once in a process, because the answer takes a dozen system calls.
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

/// Polls until told otherwise or until its time is up; looks at the clock now and then only.
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
    /// Runs one dispatch; the caller holds `busy`.
    fn dispatch(&self, extent: u64, grain: u64, body: &Body<'_>) -> Result<(), PoolPanic> {
        let chunks = extent.div_ceil(grain);
        // SAFETY: only the lifetime changes. The pointer is followed by threads that have entered this dispatch, and
        // `close` below returns only when all of them have left and none can enter any more.
        let body = unsafe { std::mem::transmute::<*const Body<'_>, *const Body<'static>>(body) };
        let job = Job {
            body,
            extent,
            grain,
            chunks,
        };
        // SAFETY: we hold `busy`, the previous dispatch closed with nobody inside, and nobody enters before `OPEN`.
        unsafe { *self.job.get() = job };
        // The caller's first chunk needs no counting.
        self.next.store(1, Ordering::Relaxed);
        let epoch = (self.state.load(Ordering::Relaxed) >> EPOCH_SHIFT).wrapping_add(1);
        // Sequentially consistent with `sleepers`: either we see a worker about to park, or it sees this dispatch.
        self.state.store((epoch << EPOCH_SHIFT) | OPEN, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) != 0 {
            self.wake(usize::try_from(chunks - 1).unwrap_or(usize::MAX));
        }
        // SAFETY: the body is borrowed by our caller for the length of this function.
        unsafe { self.run(job, 0, Some(0)) };
        self.close();
        if self.panicked.load(Ordering::Relaxed) {
            self.panicked.store(false, Ordering::Relaxed);
            if let Some(panic) = lock(&self.panic).take() {
                return Err(panic);
            }
        }
        Ok(())
    }

    /// Takes chunks until none is left, beginning with `first`; a panic ends the job for everybody and is noted.
    ///
    /// # Safety
    ///
    /// The job's body must outlive the call.
    unsafe fn run(&self, job: Job, worker: usize, first: Option<u64>) {
        // SAFETY: the caller vouches for the pointer.
        let body = unsafe { &*job.body };
        let result = catch_unwind(AssertUnwindSafe(|| {
            let mut chunk = first.unwrap_or_else(|| self.next.fetch_add(1, Ordering::Relaxed));
            while chunk < job.chunks {
                let begin = chunk * job.grain;
                body(worker, begin, begin.saturating_add(job.grain).min(job.extent));
                chunk = self.next.fetch_add(1, Ordering::Relaxed);
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
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    /// Runs a range and checks that every index was covered once, within grain-aligned chunks.
    fn check_coverage(pool: &Pool, extent: u64, grain: u64) {
        let hits: Vec<AtomicU32> = (0..extent).map(|_| AtomicU32::new(0)).collect();
        let step = grain.max(1);
        pool.parallel_for(extent, grain, &|worker, begin, end| {
            assert!(worker < pool.threads());
            assert!(begin < end && end <= extent);
            assert_eq!(begin % step, 0);
            assert!(end - begin == step || end == extent);
            for i in begin..end {
                hits[i as usize].fetch_add(1, Ordering::Relaxed);
            }
        })
        .unwrap();
        assert!(
            hits.iter().all(|hit| hit.load(Ordering::Relaxed) == 1),
            "extent {extent} grain {grain}"
        );
    }

    fn random(state: &mut u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state
    }

    #[test]
    fn every_index_is_covered_exactly_once() {
        for threads in [1, 2, 5] {
            let pool = Pool::new(threads);
            let mut seed = 0x9e37_79b9_7f4a_7c15;
            for (extent, grain) in [(0, 1), (1, 1), (7, 0), (64, 64), (65, 64), (10, u64::MAX)] {
                check_coverage(&pool, extent, grain);
            }
            for _ in 0..300 {
                let extent = random(&mut seed) % 3000;
                let grain = random(&mut seed) % 200;
                check_coverage(&pool, extent, grain);
            }
        }
    }

    #[test]
    fn huge_extents_do_not_overflow() {
        let pool = Pool::new(2);
        let covered = AtomicU64::new(0);
        pool.parallel_for(u64::MAX, u64::MAX / 3, &|_, begin, end| {
            covered.fetch_add(end - begin, Ordering::Relaxed);
        })
        .unwrap();
        assert_eq!(covered.load(Ordering::Relaxed), u64::MAX);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        for threads in [1, 2, 5] {
            let pool = Pool::new(threads);
            for at in [0u64, 1, 17, 99] {
                let error = pool
                    .parallel_for(100, 1, &|_, begin, _| {
                        if begin == at {
                            panic!("chunk {at} is broken");
                        }
                    })
                    .unwrap_err();
                assert_eq!(error.message, format!("chunk {at} is broken"));
                assert!(error.worker < threads);
                check_coverage(&pool, 500, 7);
            }
            let error = pool.parallel_for(100, 1, &|_, _, _| panic!("all")).unwrap_err();
            assert_eq!(error.message, "all");
            let error = pool
                .parallel_for(100, 1, &|_, _, _| std::panic::panic_any(7))
                .unwrap_err();
            assert_eq!(error.message, "a panic without a message");
            check_coverage(&pool, 500, 7);
        }
    }

    #[test]
    fn a_panic_payload_that_panics_when_dropped_is_survived() {
        struct Spiteful;
        impl Drop for Spiteful {
            fn drop(&mut self) {
                panic!("even when dropped");
            }
        }
        let pool = Pool::new(3);
        assert!(
            pool.parallel_for(50, 1, &|_, _, _| std::panic::panic_any(Spiteful))
                .is_err()
        );
        check_coverage(&pool, 500, 7);
    }

    #[test]
    fn nested_calls_run_inline_on_the_same_thread() {
        for threads in [1, 2, 5] {
            let pool = Pool::new(threads);
            let total = AtomicU64::new(0);
            pool.parallel_for(40, 1, &|_, _, _| {
                let thread = std::thread::current().id();
                pool.parallel_for(10, 1, &|worker, begin, end| {
                    assert_eq!(worker, 0);
                    assert_eq!(std::thread::current().id(), thread);
                    total.fetch_add(end - begin, Ordering::Relaxed);
                })
                .unwrap();
            })
            .unwrap();
            assert_eq!(total.load(Ordering::Relaxed), 400);
            // Also within a call that ran inline itself.
            let thread = std::thread::current().id();
            pool.parallel_for(1, 1, &|_, _, _| {
                pool.parallel_for(10, 1, &|_, _, _| assert_eq!(std::thread::current().id(), thread))
                    .unwrap();
            })
            .unwrap();
        }
    }

    #[test]
    fn concurrent_callers_never_share_a_worker_index_within_a_call() {
        for threads in [2, 5] {
            let pool = Pool::new(threads);
            std::thread::scope(|scope| {
                for caller in 0..8u64 {
                    let pool = &pool;
                    scope.spawn(move || {
                        for round in 0..400 {
                            let in_use: Vec<AtomicBool> = (0..threads).map(|_| AtomicBool::new(false)).collect();
                            let sum = AtomicU64::new(0);
                            let extent = 50 + caller + round % 13;
                            pool.parallel_for(extent, 3, &|worker, begin, end| {
                                assert!(!in_use[worker].swap(true, Ordering::SeqCst), "worker index used twice");
                                sum.fetch_add((begin..end).sum(), Ordering::Relaxed);
                                in_use[worker].store(false, Ordering::SeqCst);
                            })
                            .unwrap();
                            assert_eq!(sum.load(Ordering::Relaxed), extent * (extent - 1) / 2);
                        }
                    });
                }
            });
        }
    }

    #[test]
    fn concurrent_callers_with_panics_get_their_own_panic_only() {
        let pool = Pool::new(3);
        std::thread::scope(|scope| {
            for caller in 0..4 {
                let pool = &pool;
                scope.spawn(move || {
                    for round in 0..50 {
                        let result = pool.parallel_for(20, 1, &|_, begin, _| {
                            if round % 5 == 0 && begin == 11 {
                                panic!("caller {caller}");
                            }
                        });
                        match result {
                            Ok(()) => assert_ne!(round % 5, 0),
                            Err(panic) => assert_eq!((round % 5, panic.message), (0, format!("caller {caller}"))),
                        }
                    }
                });
            }
        });
    }

    #[test]
    fn workers_take_part() {
        let pool = Pool::new(2);
        // Each chunk waits (without end, were the other thread not to come) until both have begun.
        for _ in 0..20 {
            let begun = AtomicU32::new(0);
            pool.parallel_for(2, 1, &|_, _, _| {
                begun.fetch_add(1, Ordering::SeqCst);
                while begun.load(Ordering::SeqCst) < 2 {
                    std::thread::yield_now();
                }
            })
            .unwrap();
        }
    }

    #[test]
    fn parked_workers_wake_and_a_sleeping_caller_too() {
        let pool = Pool::new(3);
        for _ in 0..5 {
            check_coverage(&pool, 100, 1);
            // Longer than the spin: the workers park.
            std::thread::sleep(Duration::from_millis(2));
            // Longer than the spin in the worker: the caller sleeps.
            let begun = AtomicU32::new(0);
            pool.parallel_for(2, 1, &|worker, _, _| {
                begun.fetch_add(1, Ordering::SeqCst);
                while begun.load(Ordering::SeqCst) < 2 {
                    std::thread::yield_now();
                }
                if worker != 0 {
                    std::thread::sleep(Duration::from_millis(3));
                }
            })
            .unwrap();
        }
    }

    #[test]
    fn pools_drop_whether_used_idle_or_parked() {
        for threads in [1, 2, 5] {
            drop(Pool::new(threads));
            let pool = Pool::new(threads);
            check_coverage(&pool, 100, 1);
            drop(pool);
            let pool = Pool::new(threads);
            check_coverage(&pool, 100, 1);
            std::thread::sleep(Duration::from_millis(1));
            drop(pool);
        }
        for _ in 0..200 {
            let pool = Pool::new(3);
            check_coverage(&pool, 10, 1);
        }
    }

    #[test]
    fn a_hundred_thousand_dispatches_lose_nothing() {
        for threads in [2, 5] {
            let pool = Pool::new(threads);
            let total = AtomicU64::new(0);
            for _ in 0..100_000 {
                pool.parallel_for(4, 1, &|_, begin, end| {
                    total.fetch_add(end - begin, Ordering::Relaxed);
                })
                .unwrap();
            }
            assert_eq!(total.load(Ordering::Relaxed), 400_000);
        }
    }

    #[test]
    fn odd_thread_counts_are_clamped() {
        assert_eq!(Pool::new(0).threads(), 1);
        assert_eq!(Pool::new(usize::MAX).threads(), MAX_THREADS);
        assert!(Pool::default().threads() >= 1);
    }
}
