//! Prints what a fork-join costs: `cargo run --release -p tlc-runtime --example forkjoin -- [threads]`.

use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tlc_runtime::pool::Pool;

const SAMPLES: usize = 200_000;

fn main() {
    let threads = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(2);
    let pool = Pool::new(threads);
    let extent = threads as u64;
    let empty = |_: usize, begin: u64, _: u64| {
        black_box(begin);
    };
    print("inline (one chunk)", || {
        pool.parallel_for(1, 1, &empty)
            .unwrap_or_else(|panic| panic!("{panic}"))
    });
    print("empty fork-join, warm", || {
        pool.parallel_for(extent, 1, &empty)
            .unwrap_or_else(|panic| panic!("{panic}"))
    });
    let others = AtomicU32::new(0);
    print("two chunks of 100 ns, warm", || {
        let work = |worker: usize, begin: u64, _: u64| {
            if worker != 0 {
                others.fetch_add(1, Ordering::Relaxed);
            }
            for i in 0..100 {
                black_box(begin + i);
            }
        };
        pool.parallel_for(extent, 1, &work)
            .unwrap_or_else(|panic| panic!("{panic}"));
    });
    println!(
        "  of which other threads than the caller took {}",
        others.load(Ordering::Relaxed)
    );
    print("all threads meet, warm", || {
        let begun = AtomicU32::new(0);
        let meet = |_: usize, _: u64, _: u64| {
            begun.fetch_add(1, Ordering::AcqRel);
            let since = Instant::now();
            while (begun.load(Ordering::Acquire) as usize) < threads && since.elapsed() < Duration::from_micros(100) {
                spin_loop();
            }
        };
        pool.parallel_for(extent, 1, &meet)
            .unwrap_or_else(|panic| panic!("{panic}"));
    });
    let mut parked = Vec::new();
    for _ in 0..200 {
        std::thread::sleep(Duration::from_millis(1));
        let start = Instant::now();
        pool.parallel_for(extent, 1, &empty)
            .unwrap_or_else(|panic| panic!("{panic}"));
        parked.push(start.elapsed().as_nanos());
    }
    parked.sort_unstable();
    println!(
        "{:<28} median {:>6} ns",
        "empty, workers parked",
        parked[parked.len() / 2]
    );
}

/// Times batches of 16 calls, so that the clock itself does not count.
fn print(name: &str, mut call: impl FnMut()) {
    const BATCH: usize = 16;
    let mut times: Vec<f64> = Vec::with_capacity(SAMPLES / BATCH);
    for _ in 0..SAMPLES / BATCH {
        let start = Instant::now();
        for _ in 0..BATCH {
            call();
        }
        times.push(start.elapsed().as_nanos() as f64 / BATCH as f64);
    }
    times.sort_unstable_by(f64::total_cmp);
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    let mean = times.iter().sum::<f64>() / times.len() as f64;
    println!(
        "{name:<28} mean {mean:>6.0} ns, median {:>6.0} ns, p10 {:>6.0}, p99 {:>6.0}",
        at(0.5),
        at(0.1),
        at(0.99)
    );
}
