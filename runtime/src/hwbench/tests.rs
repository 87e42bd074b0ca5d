use super::*;
use crate::machine::{Cache, CacheSource};

fn sample() -> HwBench {
    let mut bandwidth = Vec::new();
    for (level, scale) in [
        (Level::L1, 8.0),
        (Level::L2, 4.0),
        (Level::L3, 2.0),
        (Level::Memory, 1.0),
    ] {
        for threads in [1, 4] {
            for (operation, nt, rate) in [
                (Operation::Read, false, 60.0),
                (Operation::Copy, false, 20.0),
                (Operation::Copy, true, 40.0),
                (Operation::Triad, false, 30.0),
                (Operation::Triad, true, 45.0),
            ] {
                // Past the caches, stores run at the memory's speed wherever the arrays are.
                let scale = if nt { 1.0 } else { scale };
                bandwidth.push(BandwidthRow {
                    operation,
                    level,
                    footprint_bytes: 0,
                    threads,
                    non_temporal: nt,
                    bytes_per_second: rate * scale * threads as f64,
                });
            }
        }
    }
    let rate = Rate {
        one_thread: 10.0,
        all_threads: 40.0,
    };
    HwBench {
        schema: SCHEMA,
        cpu_model: "Test".to_owned(),
        kernels: "portable".to_owned(),
        threads: 4,
        caches: Caches {
            l1d: Cache {
                bytes: 32 << 10,
                shared_by: 1,
            },
            l2: Cache {
                bytes: 1 << 20,
                shared_by: 1,
            },
            l3: Some(Cache {
                bytes: 32 << 20,
                shared_by: 4,
            }),
            line_bytes: 64,
            source: CacheSource::System,
        },
        bandwidth,
        f32_flops_per_second: rate,
        f64_flops_per_second: rate,
        xmm_ops_per_second: rate,
        xmm_mixed_ops_per_second: rate,
        xmm_multiplies_per_second: rate,
        xmm_divisions_per_second: rate,
        xmm_divisions_beside_per_second: rate,
        page_fault_ns: 0.1 + 0.2,
        huge_page_fault_ns: 1.0 / 3.0,
        fork_join_ns: 100.0,
        fork_join_shared_ns: 200.0,
        disturbed_share: 0.0,
    }
}

fn close(value: Option<f64>, expected: f64) {
    let value = value.unwrap();
    assert!(
        (value - expected).abs() < 1e-9 * expected,
        "{value}, expected {expected}"
    );
}

#[test]
fn the_row_follows_from_footprint_and_threads() {
    let bench = sample();
    assert_eq!(bench.level(0, 1), Level::L1);
    assert_eq!(bench.level(100 << 10, 1), Level::L2);
    assert_eq!(bench.level(100 << 10, 4), Level::L1);
    assert_eq!(bench.level(2 << 20, 1), Level::L3);
    assert_eq!(bench.level(2 << 20, 4), Level::L2);
    assert_eq!(bench.level(64 << 20, 4), Level::Memory);
    close(bench.bandwidth_bytes_per_second(1 << 30, 1, 0, 1, false), 60.0);
    close(bench.bandwidth_bytes_per_second(1 << 30, 1, 1, 1, false), 20.0);
    close(bench.bandwidth_bytes_per_second(1 << 30, 1, 1, 1, true), 40.0);
    close(bench.bandwidth_bytes_per_second(1 << 30, 2, 1, 4, true), 180.0);
    close(bench.bandwidth_bytes_per_second(16 << 20, 8, 4, 1, false), 60.0);
    // Writes only count as a copy; reads have no non-temporal form.
    close(bench.bandwidth_bytes_per_second(1 << 30, 0, 1, 1, false), 20.0);
    close(bench.bandwidth_bytes_per_second(1 << 30, 1, 0, 1, true), 60.0);
}

#[test]
fn mixes_and_thread_counts_in_between_are_blended() {
    let bench = sample();
    // Three reads a write: a triad (3 bytes at 30) and a read (1 byte at 60).
    close(
        bench.bandwidth_bytes_per_second(1 << 30, 3, 1, 1, false),
        4.0 / (3.0 / 30.0 + 1.0 / 60.0),
    );
    // Three reads for two writes: half a triad, half a copy.
    close(
        bench.bandwidth_bytes_per_second(1 << 30, 3, 2, 1, false),
        2.5 / (1.5 / 30.0 + 1.0 / 20.0),
    );
    // Two of four threads: a third of the way.
    close(bench.bandwidth_bytes_per_second(1 << 30, 1, 1, 2, false), 40.0);
    close(bench.bandwidth_bytes_per_second(1 << 30, 1, 1, 100, false), 80.0);
    assert!((bench.f32_flops_per_second.at(2, 4) - 20.0).abs() < 1e-9);
}

#[test]
fn the_better_kind_of_store_is_chosen() {
    let bench = sample();
    assert_eq!(bench.best_bandwidth(1 << 30, 1, 1, 1), Some((40.0, true)));
    assert_eq!(bench.best_bandwidth(1 << 10, 1, 1, 1), Some((160.0, false)));
    assert_eq!(bench.best_bandwidth(1 << 30, 1, 0, 1), Some((60.0, false)));
    let mut without = sample();
    without.bandwidth.retain(|row| !row.non_temporal);
    assert_eq!(without.best_bandwidth(1 << 30, 1, 1, 1), Some((20.0, false)));
    assert_eq!(without.bandwidth_bytes_per_second(1 << 30, 1, 1, 1, true), None);
    without.bandwidth.clear();
    assert_eq!(without.best_bandwidth(1 << 30, 1, 1, 1), None);
}

#[test]
fn json_survives_a_round_trip_and_other_text_is_refused() {
    let bench = sample();
    let text = bench.to_json();
    assert_eq!(HwBench::from_json(&text).unwrap(), bench);
    assert!(
        text.starts_with("{\n  \"schema\": 2,\n  \"cpu_model\": \"Test\""),
        "{text}"
    );
    let other = text.replace("\"schema\": 2", "\"schema\": 7");
    assert!(matches!(
        HwBench::from_json(&other),
        Err(HwBenchError::Schema { found: 7 })
    ));
    for broken in ["", "[]", "{}", "{\"schema\": 2}", &text[..text.len() / 2]] {
        assert!(
            matches!(HwBench::from_json(broken), Err(HwBenchError::Json(_))),
            "{broken}"
        );
    }
}

#[test]
fn a_measurement_has_every_row_and_positive_figures() {
    let effort = Effort {
        samples: 1,
        sample_ns: 20_000,
    };
    for threads in [1, 2] {
        let pool = Pool::new(threads);
        let (mut shares, mut last) = (Vec::new(), String::new());
        let bench = HwBench::measure(&pool, effort, &mut |share, what| {
            shares.push(share);
            last = what.to_owned();
        })
        .unwrap();
        assert!((0.0..=1.0).contains(&bench.disturbed_share));
        assert!(shares.is_sorted() && last == "done");
        assert!(shares.iter().all(|share| (0.0..=1.0).contains(share)));
        assert_eq!((bench.schema, bench.threads), (SCHEMA, threads));
        assert!(bench.is_of(&MachineInfo::detect_without_gpu()));
        assert!(
            bench
                .bandwidth
                .iter()
                .all(|row| row.bytes_per_second > 0.0 && row.footprint_bytes > 0)
        );
        let levels = if bench.caches.l3.is_some() { 4 } else { 3 };
        let kinds = if bench.kernels == "portable" { 3 } else { 5 };
        // Rows of several threads may be missing where the threads never met.
        assert_eq!(
            bench.bandwidth.iter().filter(|row| row.threads == 1).count(),
            levels * kinds
        );
        for rate in [
            bench.f32_flops_per_second,
            bench.f64_flops_per_second,
            bench.xmm_ops_per_second,
            bench.xmm_multiplies_per_second,
            bench.xmm_divisions_per_second,
            bench.xmm_divisions_beside_per_second,
        ] {
            assert!(rate.one_thread > 0.0);
        }
        assert!(bench.page_fault_ns > 0.0 && bench.huge_page_fault_ns > 0.0 && bench.fork_join_ns > 0.0);
        for footprint in [1 << 10, 1 << 19, 1 << 24, 1 << 32] {
            for (reads, writes) in [(1, 0), (1, 1), (2, 1), (5, 1)] {
                assert!(bench.best_bandwidth(footprint, reads, writes, 1).unwrap().0 > 0.0);
            }
        }
        assert_eq!(HwBench::from_json(&bench.to_json()).unwrap(), bench);
    }
}

#[test]
fn memory_footprints_respect_the_machine() {
    let mut caches = sample().caches;
    assert_eq!(memory_footprint(&caches, Some(64 << 30)), 128 << 20);
    assert_eq!(memory_footprint(&caches, Some(256 << 20)), 64 << 20);
    assert_eq!(memory_footprint(&caches, Some(100 << 20)), 25 << 20);
    caches.l3 = Some(Cache {
        bytes: 400 << 20,
        shared_by: 4,
    });
    assert_eq!(memory_footprint(&caches, None), 512 << 20);
    caches.l3 = None;
    assert_eq!(memory_footprint(&caches, None), 64 << 20);
}

#[test]
fn a_division_costs_the_multiplies_that_it_displaces() {
    let mut bench = sample();
    let rate = |one| Rate {
        one_thread: one,
        all_threads: 2.0 * one,
    };
    bench.xmm_multiplies_per_second = rate(8e9);
    bench.xmm_divisions_beside_per_second = rate(8e9 / 18.5);
    assert!((bench.division_in_multiplies() - 2.5).abs() < 1e-9);
    // A share below nothing is noise, and what could not be measured costs nothing.
    for beside in [1e9, 0.0] {
        bench.xmm_divisions_beside_per_second = rate(beside);
        assert_eq!(bench.division_in_multiplies(), 0.0);
    }
}
