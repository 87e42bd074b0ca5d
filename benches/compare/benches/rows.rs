//! Criterion benches of every workload that needs no training: tlc into bound outputs, on one thread.
//!
//! `cargo bench --manifest-path benches/compare/Cargo.toml -- [FILTER]`. They live here and not in the root package because
//! criterion costs 13 s of build.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use tlc_compare::{measure, workload};

fn rows(criterion: &mut Criterion) {
    for w in workload::all(false) {
        let mut group = criterion.benchmark_group("tlc");
        group.sample_size(20);
        let bytes: usize =
            w.inputs.iter().map(|s| s.iter().product::<usize>()).sum::<usize>() * if w.double { 8 } else { 4 };
        group.throughput(Throughput::Bytes(bytes as u64));
        // Prepared only if the filter selects it.
        group.bench_function(&w.name, |bencher| {
            measure::with_call(&w, 1, |call| bencher.iter(call)).expect("compiles and runs");
        });
        group.finish();
    }
}

criterion_group!(benches, rows);
criterion_main!(benches);
