//! Measures this machine and prints what it found:
//! `cargo run --release -p tlc-runtime --example hwbench -- [threads] [quick|normal|thorough] [json]`.

use std::time::Instant;
use tlc_runtime::hwbench::{Effort, HwBench, HwBenchError};
use tlc_runtime::machine::MachineInfo;
use tlc_runtime::pool::{Pool, default_threads};

fn main() -> Result<(), HwBenchError> {
    let (mut threads, mut effort, mut json) = (default_threads(), Effort::NORMAL, false);
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "quick" => effort = Effort::QUICK,
            "normal" => effort = Effort::NORMAL,
            "thorough" => effort = Effort::THOROUGH,
            "json" => json = true,
            other => threads = other.parse().unwrap_or(threads),
        }
    }
    let pool = Pool::new(threads);
    let start = Instant::now();
    let bench = HwBench::measure(&pool, effort, &mut |_, _| ())?;
    let took = start.elapsed();
    if json {
        println!("{}", bench.to_json());
        return Ok(());
    }
    let machine = MachineInfo::detect();
    println!("{} [{}], {:?}", machine.cpu.key(), machine.cpu.vendor, machine.caches);
    println!("features {}, {:?}", machine.features.names().join(" "), machine.gpu);
    println!(
        "page {} B, huge pages {:?}, memory {:?} B, {} physical of {} logical cores",
        machine.page_bytes,
        machine.huge_pages,
        machine.memory_bytes,
        machine.cpu.physical_cores,
        machine.cpu.logical_cores
    );
    println!(
        "{:.0}% of the samples disturbed by other programs",
        bench.disturbed_share * 100.0
    );
    println!(
        "measured in {took:.1?} with {} loops; 1 thread / {} threads",
        bench.kernels, bench.threads
    );
    for (name, rate) in [
        ("f32 FMA, GFLOP/s", bench.f32_flops_per_second),
        ("f64 FMA, GFLOP/s", bench.f64_flops_per_second),
        ("128-bit arithmetic, Gop/s", bench.xmm_ops_per_second),
        ("128-bit load + arithmetic, Gop/s", bench.xmm_mixed_ops_per_second),
    ] {
        println!(
            "{name:<34} {:>8.1} {:>8.1}",
            rate.one_thread / 1e9,
            rate.all_threads / 1e9
        );
    }
    println!(
        "page fault {:.0} ns, huge page fault {:.0} ns",
        bench.page_fault_ns, bench.huge_page_fault_ns
    );
    println!(
        "fork-join {:.0} ns empty, {:.0} ns shared",
        bench.fork_join_ns, bench.fork_join_shared_ns
    );
    for row in &bench.bandwidth {
        println!(
            "{:<8} {:<6} {:<4} {} thread(s) {:>9} KiB {:>8.1} GB/s",
            format!("{:?}", row.level),
            format!("{:?}", row.operation),
            if row.non_temporal { "NT" } else { "" },
            row.threads,
            row.footprint_bytes >> 10,
            row.bytes_per_second / 1e9
        );
    }
    Ok(())
}
