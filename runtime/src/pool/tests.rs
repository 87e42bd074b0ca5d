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

#[test]
fn ranges_cover_every_index_exactly_once() {
    for threads in [1, 2, 5, 20] {
        let pool = Pool::new(threads);
        for (extent, grain) in [
            (0u64, 1u64),
            (1, 1),
            (7, 0),
            (64, 64),
            (65, 64),
            (1000, 1),
            (4096, 3),
            (10, u64::MAX),
        ] {
            let hits: Vec<AtomicU32> = (0..extent).map(|_| AtomicU32::new(0)).collect();
            let calls = AtomicU32::new(0);
            for _ in 0..20 {
                pool.parallel_ranges(extent, grain, &|worker, begin, end| {
                    assert!(worker < pool.threads());
                    assert!(begin < end && end <= extent);
                    calls.fetch_add(1, Ordering::Relaxed);
                    for i in begin..end {
                        hits[i as usize].fetch_add(1, Ordering::Relaxed);
                    }
                })
                .unwrap();
            }
            assert!(hits.iter().all(|hit| hit.load(Ordering::Relaxed) == 20));
            let chunks = 20 * extent.div_ceil(grain.max(1));
            assert!(
                u64::from(calls.load(Ordering::Relaxed)) <= 2 * chunks,
                "calls are about a chunk at least"
            );
            if threads == 1 && extent > 0 {
                assert_eq!(calls.load(Ordering::Relaxed), 20, "one thread needs one call");
            }
        }
    }
}

#[test]
fn a_panic_in_a_range_reaches_the_caller_and_the_pool_lives_on() {
    for threads in [1, 2, 5] {
        let pool = Pool::new(threads);
        for at in [0u64, 1, 50, 999] {
            let error = pool
                .parallel_ranges(1000, 1, &|_, begin, end| {
                    assert!(!(begin..end).contains(&at), "range of {at}")
                })
                .unwrap_err();
            assert_eq!(error.message, format!("range of {at}"));
            check_coverage(&pool, 500, 7);
        }
        let covered = AtomicU64::new(0);
        pool.parallel_ranges(u64::MAX, u64::MAX / 3000, &|_, begin, end| {
            covered.fetch_add(end - begin, Ordering::Relaxed);
        })
        .unwrap();
        assert_eq!(covered.load(Ordering::Relaxed), u64::MAX);
    }
}

/// What each of a job's threads takes if only `who` take, in turn, until nothing is left.
fn taken(threads: usize, (extent, grain, ranges): (u64, u64, bool), who: &[usize]) -> Vec<Vec<Range<u64>>> {
    let pool = Pool::new(threads);
    let mark = 1;
    let job = Job {
        mark,
        ..Job::new(threads, extent, grain, ranges)
    };
    let mut found = vec![Vec::new(); threads];
    let mut left = who.to_vec();
    while !left.is_empty() {
        left.retain(|&worker| {
            let run = pool.shared.take(&job, worker);
            found[worker].extend(run.clone().map(|run| {
                let (begin, end) = job.range(&run);
                begin..end
            }));
            run.is_some()
        });
    }
    found
}

#[test]
fn a_thread_begins_with_the_same_part_of_every_range() {
    for (extent, grain, ranges) in [
        (28, 9, true),
        (1000, 1, true),
        (1000, 1, false),
        (96, 12, true),
        (96, 12, false),
    ] {
        let [first, second] = &taken(2, (extent, grain, ranges), &[0, 1])[..] else {
            unreachable!()
        };
        assert!(first.iter().all(|run| run.end <= extent / 2), "{first:?}");
        assert!(second.iter().all(|run| run.start >= extent / 2), "{second:?}");
        let covered = |runs: &[Range<u64>]| runs.iter().map(|run| run.end - run.start).sum::<u64>();
        assert_eq!((covered(first), covered(second)), (extent / 2, extent / 2));
    }
    // Chunks as large as three in a range that has but one more iteration are two even ones.
    assert_eq!(taken(2, (13, 12, true), &[0, 1]).concat(), [0..7, 7..13]);
}

#[test]
fn a_thread_takes_from_the_back_of_a_home_whose_thread_is_late() {
    let found = taken(2, (8, 1, false), &[0]);
    assert_eq!(found[0], [0..1, 1..2, 2..3, 3..4, 7..8, 6..7, 5..6, 4..5]);
    let found = taken(2, (16, 1, true), &[1]);
    assert_eq!(found[1], [8..12, 12..14, 14..15, 15..16, 4..8, 2..4, 1..2, 0..1]);
}

#[test]
fn many_threads_share_homes() {
    for threads in [9, 64, MAX_THREADS] {
        for ranges in [false, true] {
            let who: Vec<usize> = (0..threads).collect();
            let found = taken(threads, (5000, 1, ranges), &who);
            let mut runs: Vec<_> = found.concat();
            runs.sort_by_key(|run| run.start);
            assert_eq!((runs[0].start, runs.last().unwrap().end), (0, 5000));
            assert!(runs.windows(2).all(|pair| pair[0].end == pair[1].start), "{runs:?}");
        }
    }
}

#[test]
fn homes_of_any_length_fit_their_words() {
    for threads in [2, 3, 8, 100] {
        for extent in [(1 << 20) - 1, 1 << 20, (1 << 21) - 1, (1 << 22) - 1, 1 << 40, u64::MAX] {
            for ranges in [false, true] {
                let job = Job::new(threads, extent, 1, ranges);
                for home in 0..usize::from(job.homes) {
                    let units = job.units(home);
                    assert!(units <= UNIT_MASK);
                    assert_eq!(job.run(home, 0..units), job.start(home)..job.start(home + 1));
                }
                assert_eq!(job.start(job.homes.into()), extent);
            }
        }
    }
}

#[test]
fn marks_that_come_round_are_not_taken_for_old_ones() {
    let pool = Pool::new(2);
    check_coverage(&pool, 100, 1);
    // The words say of mark 1 that nothing is left.
    let last = (MARK_MASK << EPOCH_SHIFT) | (7 << (EPOCH_SHIFT + 24));
    pool.shared.state.store(last, Ordering::SeqCst);
    for _ in 0..3 {
        check_coverage(&pool, 100, 1);
    }
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
