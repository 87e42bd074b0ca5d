//! How [`super::HwBench`] takes time.
//!
//! Invariants: a sample is long against the clock's own cost; threads that are timed together start together; a thread
//! that lost its core meanwhile spoils the sample, which shows in its own clock standing still.

use super::{Effort, HwBenchError, Rate};
use crate::memory::{AlignedBuffer, AllocError, HUGE_PAGE_BYTES};
use crate::pool::{Pool, PoolPanic};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long threads wait for each other before a sample is given up.
const MEETING: Duration = Duration::from_millis(20);

pub(super) struct Timer<'a> {
    pool: &'a Pool,
    effort: Effort,
    /// Samples that the medians were taken of, and how many of them were disturbed.
    kept: AtomicUsize,
    disturbed: AtomicUsize,
}

/// One sample.
struct Sample {
    per_second: f64,
    /// Whether a thread lost its core meanwhile.
    disturbed: bool,
}

/// The clocks of one thread: the world's, and its own, which stands still while it has no core.
struct ThreadClock {
    start: Instant,
    own: Option<Duration>,
}

impl ThreadClock {
    fn start() -> Self {
        let own = thread_time();
        ThreadClock {
            own,
            start: Instant::now(),
        }
    }

    /// Whether this thread has been without a core for more than a twentieth of the time.
    fn is_disturbed(&self) -> bool {
        let wall = self.start.elapsed();
        let (Some(before), Some(now)) = (self.own, thread_time()) else {
            return false;
        };
        now.saturating_sub(before) < wall.mul_f64(0.95)
    }
}

/// How long this thread has run; `None` where the system does not tell.
fn thread_time() -> Option<Duration> {
    #[cfg(target_os = "linux")]
    {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: writes one `timespec`, which is ours.
        let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
        let (seconds, nanoseconds) = (u64::try_from(time.tv_sec).ok()?, u32::try_from(time.tv_nsec).ok()?);
        (result == 0).then(|| Duration::new(seconds, nanoseconds))
    }
    #[cfg(not(target_os = "linux"))]
    {
        None
    }
}

impl<'a> Timer<'a> {
    pub(super) fn new(pool: &'a Pool, effort: Effort) -> Self {
        Timer {
            pool,
            effort,
            kept: AtomicUsize::new(0),
            disturbed: AtomicUsize::new(0),
        }
    }

    /// The share of the samples kept that were disturbed.
    pub(super) fn disturbed_share(&self) -> f64 {
        self.disturbed.load(Ordering::Relaxed) as f64 / self.kept.load(Ordering::Relaxed).max(1) as f64
    }

    /// The rates on one and on all threads of `run(rounds)`, which returns the work that it did.
    pub(super) fn rates(&self, run: &(dyn Fn(u64) -> u64 + Sync)) -> Result<Rate, HwBenchError> {
        let run = |_: usize, rounds: u64| run(rounds);
        let one_thread = self.rate(1, &run)?.unwrap_or(0.0);
        let all = self.pool.threads();
        let all_threads = if all == 1 {
            one_thread
        } else {
            self.rate(all, &run)?.unwrap_or(0.0)
        };
        Ok(Rate {
            one_thread,
            all_threads,
        })
    }

    /// The median rate, in units of work per second over `threads` threads, of `run(thread, rounds)`, which returns the
    /// work that it did; `None` if the threads never met.
    pub(super) fn rate(
        &self,
        threads: usize,
        run: &(dyn Fn(usize, u64) -> u64 + Sync),
    ) -> Result<Option<f64>, HwBenchError> {
        // Find how many rounds make a sample; the trials warm the caches and the clock frequency as well.
        let target = self.effort.sample_ns.max(1000);
        let mut rounds = 1u64;
        loop {
            let start = Instant::now();
            run(0, rounds);
            let took = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX).max(1);
            if took >= target / 4 {
                let ideal = u128::from(rounds) * u128::from(target) / u128::from(took);
                rounds = u64::try_from(ideal).unwrap_or(u64::MAX).max(1);
                break;
            }
            rounds = rounds.saturating_mul(if took < target / 64 { 8 } else { 2 });
        }
        let wanted = self.effort.samples.max(1);
        let (mut samples, mut disturbed) = (Vec::with_capacity(wanted), Vec::new());
        let mut failures = 0;
        while samples.len() < wanted && disturbed.len() < 3 * wanted && failures < 10 {
            match self.sample(threads, rounds, run)? {
                Some(sample) if sample.disturbed => disturbed.push(sample.per_second),
                Some(sample) => samples.push(sample.per_second),
                None => failures += 1,
            }
        }
        // A few good samples are worth more than many bad ones; where even those lack, the least bad ones fill in.
        let fewest = wanted.div_ceil(4);
        if samples.len() < fewest {
            disturbed.sort_unstable_by(f64::total_cmp);
            let fill = disturbed.into_iter().rev().take(fewest - samples.len());
            self.disturbed.fetch_add(fill.len(), Ordering::Relaxed);
            samples.extend(fill);
        }
        self.kept.fetch_add(samples.len(), Ordering::Relaxed);
        Ok(median(&mut samples))
    }

    /// One sample: the work of all threads over the time from the first's start to the last's end.
    fn sample(
        &self,
        threads: usize,
        rounds: u64,
        run: &(dyn Fn(usize, u64) -> u64 + Sync),
    ) -> Result<Option<Sample>, HwBenchError> {
        if threads == 1 {
            let clock = ThreadClock::start();
            let work = run(0, rounds);
            let per_second = work as f64 / clock.start.elapsed().as_secs_f64().max(1e-9);
            return Ok(Some(Sample {
                per_second,
                disturbed: clock.is_disturbed(),
            }));
        }
        let origin = Instant::now();
        let nanoseconds = || u64::try_from(origin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let arrived = AtomicUsize::new(0);
        let met = AtomicUsize::new(0);
        let disturbed = AtomicUsize::new(0);
        // The first start, the latest start, the last end.
        let latest = AtomicU64::new(0);
        let (first, last, work) = (AtomicU64::new(u64::MAX), AtomicU64::new(0), AtomicU64::new(0));
        self.pool.parallel_for(threads as u64, 1, &|_, begin, _| {
            arrived.fetch_add(1, Ordering::AcqRel);
            while arrived.load(Ordering::Acquire) < threads {
                if origin.elapsed() > MEETING {
                    return;
                }
                // Another program may hold the other core.
                std::thread::yield_now();
            }
            met.fetch_add(1, Ordering::AcqRel);
            let clock = ThreadClock::start();
            let now = nanoseconds();
            first.fetch_min(now, Ordering::AcqRel);
            latest.fetch_max(now, Ordering::AcqRel);
            // The work of each chunk is its own: chunk numbers are the threads of `run`.
            work.fetch_add(run(begin as usize, rounds), Ordering::AcqRel);
            last.fetch_max(nanoseconds(), Ordering::AcqRel);
            disturbed.fetch_add(usize::from(clock.is_disturbed()), Ordering::AcqRel);
        })?;
        if met.into_inner() < threads {
            return Ok(None);
        }
        let (first, latest, last) = (first.into_inner(), latest.into_inner(), last.into_inner());
        let nanoseconds = last.saturating_sub(first).max(1);
        // Two threads on one core run one after the other, each undisturbed: that shows in their starts.
        let apart = latest.saturating_sub(first) > nanoseconds / 20;
        Ok(Some(Sample {
            per_second: work.into_inner() as f64 / (nanoseconds as f64 * 1e-9),
            disturbed: apart || disturbed.into_inner() > 0,
        }))
    }
}

/// The median; `None` of nothing.
pub(super) fn median(samples: &mut [f64]) -> Option<f64> {
    samples.sort_unstable_by(f64::total_cmp);
    let middle = samples.len() / 2;
    match samples.len() {
        0 => None,
        n if n % 2 == 1 => Some(samples[middle]),
        _ => Some(f64::midpoint(samples[middle - 1], samples[middle])),
    }
}

/// The median cost of an empty dispatch, in batches that hide the clock's own cost.
pub(super) fn fork_join_ns(pool: &Pool) -> Result<f64, PoolPanic> {
    const BATCH: u32 = 32;
    let extent = pool.threads() as u64;
    let empty = |_: usize, begin: u64, _: u64| {
        std::hint::black_box(begin);
    };
    for _ in 0..1000 {
        pool.parallel_for(extent, 1, &empty)?;
    }
    let mut samples = Vec::with_capacity(1000);
    for _ in 0..1000 {
        let start = Instant::now();
        for _ in 0..BATCH {
            pool.parallel_for(extent, 1, &empty)?;
        }
        samples.push(start.elapsed().as_nanos() as f64 / f64::from(BATCH));
    }
    Ok(median(&mut samples).unwrap_or(0.0))
}

/// The median cost of a dispatch in which all threads meet; 0 if most of the time they do not.
pub(super) fn fork_join_shared_ns(pool: &Pool) -> Result<f64, PoolPanic> {
    let threads = pool.threads();
    if threads == 1 {
        return Ok(0.0);
    }
    let patience = Duration::from_micros(200);
    let (mut samples, mut failures) = (Vec::with_capacity(2000), 0);
    for _ in 0..2000 {
        let arrived = AtomicUsize::new(0);
        let missed = AtomicUsize::new(0);
        let start = Instant::now();
        pool.parallel_for(threads as u64, 1, &|_, _, _| {
            arrived.fetch_add(1, Ordering::AcqRel);
            let mut polls = 0u32;
            while arrived.load(Ordering::Acquire) < threads {
                std::hint::spin_loop();
                polls += 1;
                if polls.is_multiple_of(64) && start.elapsed() > patience {
                    missed.fetch_add(1, Ordering::AcqRel);
                    return;
                }
            }
        })?;
        let took = start.elapsed().as_nanos() as f64;
        if missed.into_inner() == 0 {
            samples.push(took);
        } else {
            failures += 1;
            if failures > 200 {
                break;
            }
        }
    }
    if samples.len() < failures {
        return Ok(0.0);
    }
    Ok(median(&mut samples).unwrap_or(0.0))
}

/// The median cost of touching `bytes` of fresh memory for the first time, in nanoseconds: ordinary pages, or ranges of
/// that size that ask for huge pages.
pub(super) fn fault_ns(effort: Effort, bytes: usize, page_bytes: u64) -> Result<f64, AllocError> {
    const TOTAL: usize = 16 << 20;
    let page = usize::try_from(page_bytes).unwrap_or(4096);
    let mut samples = Vec::with_capacity(effort.samples);
    for _ in 0..effort.samples.max(1) {
        let mut fresh = if bytes >= HUGE_PAGE_BYTES {
            AlignedBuffer::zeroed(TOTAL)?
        } else {
            AlignedBuffer::fresh_small_pages(TOTAL)?
        };
        let start = Instant::now();
        for at in (0..TOTAL).step_by(page.min(bytes)) {
            // SAFETY: within the buffer. Volatile, so that each page is really touched.
            unsafe { fresh.as_mut_ptr().add(at).write_volatile(1) };
        }
        samples.push(start.elapsed().as_nanos() as f64 / (TOTAL / bytes) as f64);
    }
    Ok(median(&mut samples).unwrap_or(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&mut []), None);
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&mut [4.0, 1.0]), Some(2.5));
    }
}
